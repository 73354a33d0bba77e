//! Every pass of the compiler in order, and the driver that runs them.
//!
//! A pass is a line of [`PASSES`]: a function from IR and options to IR. The driver verifies before and after, times, dumps, stops,
//! leaves out by name or by count, and calls the hooks of the seven plugin slots. Dead nodes are removed by the driver.

use crate::explain::Explain;
use crate::fuse::FuseReport;
use crate::host::HostProgram;
use crate::plan::Plan;
use ir::hip::Hip;
use ir::infer::Info;
use ir::text::{print_hip, print_onnx};
use ir::verify::{verify_hip, verify_onnx};
use ir::{Module, Onnx};
use rustc_hash::FxHashSet;
use std::path::PathBuf;
use std::time::Duration;
use tensor::{Diagnostic, ErrorKind, Result};

/// All passes, in order. The comment on a line is the reason for its place.
pub static PASSES: &[Pass] = &[
    required("infer", "types, shapes and shape values of every value", infer).gives(SHAPES),
    required("expand", "nodes that stand for several operators become those, branches that are always taken stand in the place of their If", expand).needs(SHAPES), // after shapes, which expansions ask for; before rewriting, which sees what they are made of
    optional("refine", "equal extents become one extent, guards that follow from others go", refine).needs(SHAPES), // before rewriting: rules ask whether extents are equal
    optional("rewrite", "e-graph: constants, identities, exporters' idioms", rewrite).needs(SHAPES),
    required("infer-again", "types and shape values of what rewriting made", infer)
        .needs(SHAPES)
        .slot(Slot::AfterSimplify), // hooks see the graph as lowering will
    required("outline", "bodies of control flow keep only what they use", outline)
        .needs(SHAPES)
        .slot(Slot::AfterOutline), // after rewriting, which may empty a body
    optional("guards", "guards that follow from others go", guards).needs(SHAPES), // after the last inference, which states them anew
    required("to-hip", "every node takes a candidate; buffers and views", to_hip)
        .needs(SHAPES)
        .gives(BUFFERS)
        .slot(Slot::AfterHip),
    optional("fuse", "loop nests merge, axes collapse", fuse).needs(BUFFERS).slot(Slot::BeforePlan), // before planning: buffers disappear
    required("plan", "an offset in a pool for every buffer", plan).needs(BUFFERS).gives(OFFSETS).slot(Slot::AfterPlan), // after everything that adds or removes buffers
    required("host-program", "integers, launches and calls of one run", host_program)
        .needs(OFFSETS)
        .gives(PROGRAM)
        .slot(Slot::BeforeCodegen),
];

/// What the IR is known to have at a point of the list.
type Facts = u8;
const SHAPES: Facts = 1;
const BUFFERS: Facts = 2;
const OFFSETS: Facts = 4;
const PROGRAM: Facts = 8;
const FACT_NAMES: &[(Facts, &str)] =
    &[(SHAPES, "shapes"), (BUFFERS, "buffers"), (OFFSETS, "offsets"), (PROGRAM, "program")];

/// A line of the list.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Without it the result is wrong; an optional pass only makes it better.
    pub required: bool,
    /// Plugin slot after it.
    pub slot: Option<Slot>,
    needs: Facts,
    gives: Facts,
    run: fn(&mut Unit, &Options) -> Result<()>,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pass({})", self.name)
    }
}

const fn pass(
    name: &'static str,
    doc: &'static str,
    required: bool,
    run: fn(&mut Unit, &Options) -> Result<()>,
) -> Pass {
    Pass { name, doc, required, slot: None, needs: 0, gives: 0, run }
}
const fn required(name: &'static str, doc: &'static str, run: fn(&mut Unit, &Options) -> Result<()>) -> Pass {
    pass(name, doc, true, run)
}
const fn optional(name: &'static str, doc: &'static str, run: fn(&mut Unit, &Options) -> Result<()>) -> Pass {
    pass(name, doc, false, run)
}
impl Pass {
    const fn needs(mut self, facts: Facts) -> Pass {
        self.needs |= facts;
        self
    }
    const fn gives(mut self, facts: Facts) -> Pass {
        self.gives |= facts;
        self
    }
    const fn slot(mut self, slot: Slot) -> Pass {
        self.slot = Some(slot);
        self
    }
}

/// A place where a plugin's function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// After simplification: the ONNX dialect as lowering will see it.
    AfterSimplify,
    /// After control-flow outlining: bodies are isolated and minimal.
    AfterOutline,
    /// After the step from ONNX to HIP dialect.
    AfterHip,
    /// Before memory planning.
    BeforePlan,
    /// After memory planning.
    AfterPlan,
    /// Before code generation: the host program is complete.
    BeforeCodegen,
    /// After the interface (inputs, outputs, metadata) is written; run by the library.
    AfterInterface,
}

impl Slot {
    /// All slots in order.
    pub const ALL: [Slot; 7] = [
        Slot::AfterSimplify,
        Slot::AfterOutline,
        Slot::AfterHip,
        Slot::BeforePlan,
        Slot::AfterPlan,
        Slot::BeforeCodegen,
        Slot::AfterInterface,
    ];
    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Slot::AfterSimplify => "after-simplify",
            Slot::AfterOutline => "after-outline",
            Slot::AfterHip => "after-hip",
            Slot::BeforePlan => "before-plan",
            Slot::AfterPlan => "after-plan",
            Slot::BeforeCodegen => "before-codegen",
            Slot::AfterInterface => "after-interface",
        }
    }
}

/// Options of all passes and of the driver.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Options of `rewrite`.
    pub rewrite: rewrite::Options,
    /// Options of `to-hip`.
    pub lower: crate::Options,
    /// Optional passes left out, by name.
    pub disable: Vec<String>,
    /// Last pass to run, by name.
    pub stop_after: Option<String>,
    /// How many optional passes run; the rest is left out. For bisection.
    pub bisect: Option<u32>,
    /// Whether the verifier runs before and after every pass.
    pub verify: bool,
    /// Where a failing pass leaves the IR it was given. By default the temporary folder, and only for errors that are bugs of ours.
    pub failed_dir: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            rewrite: rewrite::Options::default(),
            lower: crate::Options::default(),
            disable: Vec::new(),
            stop_after: None,
            bisect: None,
            verify: cfg!(debug_assertions),
            failed_dir: None,
        }
    }
}

/// The model on its way: what exists depends on the passes that ran.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Unit {
    /// The ONNX dialect; gone after `to-hip`.
    pub onnx: Option<Module<Onnx>>,
    /// What inference knows about it.
    pub info: Option<Info>,
    /// The HIP dialect.
    pub hip: Option<Module<Hip>>,
    /// Its memory plan.
    pub plan: Option<Plan>,
    /// The host program.
    pub program: Option<HostProgram>,
    /// Candidates chosen and refused.
    pub explain: Explain,
    /// What rewriting did.
    pub rewrite: Option<rewrite::Report>,
    /// What became of guards.
    pub guards: rewrite::refine::DimReport,
    /// What fusion did.
    pub fuse: FuseReport,
    /// Passes in the order they ran or were left out.
    pub passes: Vec<PassRecord>,
}

/// How a pass went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassRecord {
    /// Its name.
    pub name: &'static str,
    /// Time it took.
    pub time: Duration,
    /// Why it did not run.
    pub left_out: Option<&'static str>,
    /// Its position among the optional passes, from 1: what the bisect counter counts.
    pub number: Option<u32>,
}

type Hook = Box<dyn FnMut(&mut Unit) -> Result<()> + Send>;
type Watch = Box<dyn FnMut(&PassRecord, &Unit) + Send>;

/// Functions of plugins and of the caller.
#[derive(Default)]
pub struct Hooks {
    slots: Vec<(Slot, Hook)>,
    watch: Option<Watch>,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|(s, _)| s)).finish()
    }
}

impl Hooks {
    /// None.
    pub fn new() -> Hooks {
        Hooks::default()
    }
    /// Adds a function to a slot; those of a slot run in the order they were added. What it leaves is verified like a pass's result.
    pub fn add(&mut self, slot: Slot, f: impl FnMut(&mut Unit) -> Result<()> + Send + 'static) {
        self.slots.push((slot, Box::new(f)));
    }
    /// Calls `f` after every pass with what it left: progress and dumps.
    pub fn watch(&mut self, f: impl FnMut(&PassRecord, &Unit) + Send + 'static) {
        self.watch = Some(Box::new(f));
    }
    /// Runs the functions of a slot; says whether there were any.
    ///
    /// # Errors
    /// The first one of a function.
    pub fn run(&mut self, slot: Slot, unit: &mut Unit) -> Result<bool> {
        let mut any = false;
        for (_, f) in self.slots.iter_mut().filter(|(s, _)| *s == slot) {
            f(unit)?;
            any = true;
        }
        Ok(any)
    }
}

impl Unit {
    /// A module of the ONNX dialect at the start of its way.
    pub fn from_onnx(m: Module<Onnx>) -> Unit {
        Unit { onnx: Some(m), ..Unit::default() }
    }
    /// A module of the HIP dialect; passes before `fuse` have nothing to do.
    pub fn from_hip(m: Module<Hip>) -> Unit {
        Unit { hip: Some(m), ..Unit::default() }
    }
    /// The current IR as text.
    pub fn text(&self) -> String {
        match (&self.program, &self.plan, &self.hip, &self.onnx) {
            (Some(p), ..) => p.to_string(),
            (_, Some(p), Some(m), _) => format!("{}\n{}", print_hip(m), p.display(m)),
            (_, _, Some(m), _) => print_hip(m),
            (.., Some(m)) => print_onnx(m),
            _ => String::new(),
        }
    }
    fn facts(&self) -> Facts {
        let mut f = 0;
        f |= if self.info.is_some() { SHAPES } else { 0 };
        f |= if self.hip.is_some() { BUFFERS } else { 0 };
        f |= if self.plan.is_some() { OFFSETS } else { 0 };
        f | if self.program.is_some() { PROGRAM } else { 0 }
    }
    fn onnx_mut(&mut self) -> Result<&mut Module<Onnx>> {
        self.onnx.as_mut().ok_or_else(|| missing("a module of the ONNX dialect"))
    }
    fn hip_mut(&mut self) -> Result<&mut Module<Hip>> {
        self.hip.as_mut().ok_or_else(|| missing("a module of the HIP dialect"))
    }
    fn verify(&self) -> Result<()> {
        match (&self.hip, &self.onnx) {
            (Some(m), _) => verify_hip(m),
            (_, Some(m)) => verify_onnx(m),
            _ => Ok(()),
        }
    }
}

fn missing(what: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, format!("a pass needs {what}, which earlier passes did not leave"))
}

fn infer(u: &mut Unit, _: &Options) -> Result<()> {
    let m = u.onnx_mut()?;
    let info = ir::infer::infer(m)?;
    // Operands of a type that a row does not take are the model's mistake, found in every build.
    verify_onnx(m)?;
    u.info = Some(info);
    Ok(())
}
fn expand(u: &mut Unit, o: &Options) -> Result<()> {
    if ir::expand::expand(u.onnx_mut()?)? { infer(u, o) } else { Ok(()) }
}
fn refine(u: &mut Unit, _: &Options) -> Result<()> {
    rewrite::refine(u.onnx_mut()?);
    u.info = Some(ir::infer::infer(u.onnx_mut()?)?);
    Ok(())
}
fn rewrite(u: &mut Unit, o: &Options) -> Result<()> {
    u.rewrite = Some(rewrite::rewrite(u.onnx_mut()?, &o.rewrite)?);
    Ok(())
}
fn outline(u: &mut Unit, o: &Options) -> Result<()> {
    prune(u.onnx_mut()?);
    infer(u, o)
}
fn guards(u: &mut Unit, _: &Options) -> Result<()> {
    u.guards = rewrite::prune_guards(u.onnx_mut()?);
    Ok(())
}
fn to_hip(u: &mut Unit, o: &Options) -> Result<()> {
    let info = u.info.take().ok_or_else(|| missing("inferred shapes"))?;
    let m = u.onnx.take().ok_or_else(|| missing("a module of the ONNX dialect"))?;
    let (hip, explain) = crate::to_hip(&m, &info, &o.lower)?;
    (u.hip, u.explain) = (Some(hip), explain);
    Ok(())
}
fn fuse(u: &mut Unit, _: &Options) -> Result<()> {
    u.fuse = crate::fuse(u.hip_mut()?);
    Ok(())
}
fn plan(u: &mut Unit, _: &Options) -> Result<()> {
    u.plan = Some(crate::plan(u.hip_mut()?)?);
    Ok(())
}
fn host_program(u: &mut Unit, _: &Options) -> Result<()> {
    let plan = u.plan.take().ok_or_else(|| missing("a memory plan"))?;
    let program = crate::host_program(u.hip_mut()?, &plan);
    u.plan = Some(plan);
    u.program = Some(program?);
    Ok(())
}

/// The pass of that name.
///
/// # Errors
/// `Argument` with the names that exist.
pub fn find(name: &str) -> Result<&'static Pass> {
    PASSES.iter().find(|p| p.name == name).ok_or_else(|| {
        let known: Vec<&str> = PASSES.iter().map(|p| p.name).collect();
        Diagnostic::new(ErrorKind::Argument, format!("there is no pass \"{name}\""))
            .help(format!("known passes: {}", known.join(", ")))
    })
}

/// Names that `name` may have been meant to be, the nearest first.
fn nearest<'n>(name: &str, all: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let steps = |other: &str| {
        // Insertions, deletions and changes of one byte, row by row.
        let mut row: Vec<usize> = (0..=other.len()).collect();
        for (i, a) in name.bytes().enumerate() {
            let mut before = std::mem::replace(&mut row[0], i + 1);
            for (j, b) in other.bytes().enumerate() {
                let change = before + usize::from(a != b);
                before = row[j + 1];
                row[j + 1] = change.min(row[j] + 1).min(before + 1);
            }
        }
        row[other.len()]
    };
    let mut near: Vec<(usize, &str)> = all.map(|n| (steps(n), n)).filter(|(d, n)| *d <= n.len() / 3).collect();
    near.sort();
    near.into_iter().take(3).map(|(_, n)| n).collect()
}

/// The pass of that name, for switching it off; rewrite rules are switched off by [`rewrite`]'s options.
fn find_optional(name: &str) -> Result<&'static Pass> {
    find(name).map_err(|_| {
        let rules = rewrite::rules::all();
        let optional = PASSES.iter().filter(|p| !p.required).map(|p| p.name);
        let near = nearest(name, optional.clone().chain(rules.iter().map(|r| r.name)));
        let near = if near.is_empty() { String::new() } else { format!("did you mean {}? ", near.join(" or ")) };
        let known: Vec<&str> = optional.collect();
        let help = format!("{near}hip-opt --list-rules lists the rules; optional passes are {}", known.join(", "));
        Diagnostic::new(ErrorKind::Argument, format!("there is no pass or rewrite rule \"{name}\"")).help(help)
    })
}

/// Runs the passes over what `unit` holds, up to the last or to `stop_after`.
///
/// # Errors
/// `Argument` for unknown pass names and for switching off a required pass; what a pass or hook reports; `Internal` when the verifier
/// finds a pass's result wrong.
pub fn run(mut unit: Unit, options: &Options, hooks: &mut Hooks) -> Result<Unit> {
    options.stop_after.iter().try_for_each(|n| find(n).map(|_| ()))?;
    options.disable.iter().try_for_each(|n| find_optional(n).map(|_| ()))?;
    if let Some(p) = options.disable.iter().find(|n| find(n).is_ok_and(|p| p.required)) {
        let optional: Vec<&str> = PASSES.iter().filter(|p| !p.required).map(|p| p.name).collect();
        let text = format!("pass \"{p}\" is required: without it nothing runs");
        let help = format!("optional passes are {}; rewrite rules can be left out, too", optional.join(", "));
        return Err(Diagnostic::new(ErrorKind::Argument, text).help(help));
    }
    // What comes from outside is checked in every build; what passes make, where asked for.
    unit.verify()?;
    unit.onnx.iter_mut().for_each(prune);
    let mut number = 0;
    for p in PASSES {
        // A unit that starts as HIP dialect enters the list where its passes begin.
        if unit.onnx.is_none() && unit.hip.is_some() && p.needs & (BUFFERS | OFFSETS) == 0 {
            continue;
        }
        let missing_facts = p.needs & !unit.facts();
        if missing_facts != 0 {
            let names: Vec<&str> = FACT_NAMES.iter().filter(|(f, _)| f & missing_facts != 0).map(|(_, n)| *n).collect();
            return Err(missing(&names.join(", ")));
        }
        if !p.required {
            number += 1;
        }
        let left_out = match () {
            _ if options.disable.iter().any(|n| n == p.name) => Some("switched off"),
            _ if !p.required && options.bisect.is_some_and(|b| number > b) => Some("beyond the bisect count"),
            _ => None,
        };
        let start = std::time::Instant::now();
        if left_out.is_none() {
            let before = unit.clone();
            step(p, &mut unit, options).map_err(|e| leave(e, p.name, &before, options))?;
        }
        let record =
            PassRecord { name: p.name, time: start.elapsed(), left_out, number: (!p.required).then_some(number) };
        unit.passes.push(record.clone());
        if let Some(w) = &mut hooks.watch {
            w(&record, &unit);
        }
        if let Some(slot) = p.slot
            && hooks.run(slot, &mut unit).map_err(|e| e.note("plugin slot", slot.name()))?
        {
            unit.verify().map_err(|e| e.note("plugin slot", slot.name()))?;
            if unit.onnx.is_some() {
                infer(&mut unit, options)?;
            }
        }
        if options.stop_after.as_deref() == Some(p.name) {
            break;
        }
    }
    Ok(unit)
}

fn step(p: &Pass, unit: &mut Unit, options: &Options) -> Result<()> {
    if options.verify {
        unit.verify().map_err(|e| e.note("verified", format!("before pass {}", p.name)))?;
    }
    let asking = unit.onnx.as_ref().map(asking).unwrap_or_default();
    (p.run)(unit, options)?;
    if let Some(m) = &mut unit.onnx {
        remove_dead(m, &asking);
    }
    if options.verify {
        unit.verify().map_err(|e| e.note("verified", format!("after pass {}", p.name)))?;
    }
    let missing_facts = p.gives & !unit.facts();
    if missing_facts != 0 { Err(missing(&format!("what {} promises", p.name))) } else { Ok(()) }
}

/// The paths of nodes that ask something of what only the run knows. Extents of others may have been simplified because of it,
/// so it is checked even where their own results are no longer used.
pub(crate) fn asking(m: &Module<Onnx>) -> FxHashSet<String> {
    m.guards.iter().filter(|g| !rewrite::refine::is_at_entry(&m.dims, g)).map(|g| g.node.clone()).collect()
}

/// Nodes whose results nothing uses, but for those that ask something of the run. Random ops have no effect but their results.
fn remove_dead(m: &mut Module<Onnx>, asking: &FxHashSet<String>) {
    for r in m.graphs.keys() {
        m.graphs[r].remove_dead(|n| asking.contains(&*n.origin.0));
    }
}

/// The same for bodies and what they capture.
fn prune(m: &mut Module<Onnx>) {
    let asking = asking(m);
    ir::prune::prune(m, &|n| asking.contains(&*n.origin.0));
}

/// Leaves the IR that a failing pass was given in a file, and names the file in the error.
fn leave(e: Diagnostic, pass: &str, before: &Unit, options: &Options) -> Diagnostic {
    let dir = match (&options.failed_dir, e.kind()) {
        (Some(d), _) => d.clone(),
        (None, ErrorKind::Internal) => std::env::temp_dir(),
        _ => return e,
    };
    let path = dir.join(format!("hip-ep-failed-{pass}-{}.txt", std::process::id()));
    match std::fs::write(&path, before.text()) {
        Ok(()) => e.note("pass", format!("{pass}; the IR it was given is in {}", path.display())),
        Err(io) => {
            e.note("pass", format!("{pass}; the IR it was given could not be written to {}: {io}", path.display()))
        }
    }
}

/// What compiling gives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Lowered {
    /// The HIP dialect, with the constants.
    pub hip: Module<Hip>,
    /// Its memory plan.
    pub plan: Plan,
    /// The host program.
    pub program: HostProgram,
    /// Everything else that the passes left: reports, choices, times.
    pub unit: Unit,
}

/// Runs the whole list.
///
/// # Errors
/// As [`run`]; `Argument` when the options stop before the end.
pub fn compile(module: Module<Onnx>, options: &Options, hooks: &mut Hooks) -> Result<Lowered> {
    let mut unit = run(Unit::from_onnx(module), options, hooks)?;
    match (unit.hip.take(), unit.plan.take(), unit.program.take()) {
        (Some(hip), Some(plan), Some(program)) => Ok(Lowered { hip, plan, program, unit }),
        _ => Err(Diagnostic::new(ErrorKind::Argument, "the passes stopped before the host program")
            .help("leave out stop_after, or use lower::pass::run")),
    }
}

/// The list as a page of documentation.
pub fn render() -> String {
    let mut out = String::from(
        "# Passes\n\nGenerated from `lower/src/pass.rs`. A required pass is needed for a right result; with every optional pass off the \
         results are the same, up to the numeric class of the rewrite rules that ran. `--disable NAME` leaves an optional pass out, \
         `--stop-after NAME` stops, `--dump-after NAME` prints, `--bisect N` runs only the first N optional passes.\n\n\
         | # | pass | kind | needs | gives | what it does | plugin slot after it |\n|---|---|---|---|---|---|---|\n",
    );
    let names = |f: Facts| {
        let all: Vec<&str> = FACT_NAMES.iter().filter(|(x, _)| x & f != 0).map(|(_, n)| *n).collect();
        all.join(", ")
    };
    for (i, p) in PASSES.iter().enumerate() {
        let kind = if p.required { "required" } else { "optional" };
        let slot = p.slot.map_or(String::new(), |s| format!("`{}`", s.name()));
        let (needs, gives) = (names(p.needs), names(p.gives));
        out += &format!("| {} | `{}` | {kind} | {needs} | {gives} | {} | {slot} |\n", i + 1, p.name, p.doc);
    }
    out += &format!(
        "\nThe seventh slot, `{}`, runs in the library once inputs, outputs and metadata are written. A plugin is a function that a \
         program gives to a slot: `Hooks::add`, then `Compiler::compile_with`; what it leaves is verified.\n",
        Slot::AfterInterface.name()
    );
    out += "\n```console\n$ hip-opt model.onnx --disable rewrite --stop-after infer-again\n…\n\
            \u{20} %v7 = Erf-9 %v6 : f32[batch, seq, 8]  ; /act/Erf\n…\n\
            $ hip-opt model.onnx --pipeline host --timings --emit none\n…\n\
            plan…ms…\nhost-program…ms…\n```\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_is_given_before_it_is_needed() {
        let mut facts = 0;
        for p in PASSES {
            assert_eq!(p.needs & !facts, 0, "{} comes too early", p.name);
            facts |= p.gives;
        }
        let slots: Vec<Slot> = PASSES.iter().filter_map(|p| p.slot).collect();
        assert_eq!(slots, Slot::ALL[..6]);
    }

    #[test]
    fn the_page_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/passes.md");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, render()).unwrap();
        }
        let fresh = std::fs::read_to_string(path).unwrap() == render();
        assert!(fresh, "docs/passes.md is stale: BLESS=1 cargo test -p hip-ep-lower fresh");
    }
}
