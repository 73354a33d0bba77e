//! The entry point and its options.

use crate::cost::CostModel;
use crate::facts::Facts;
use crate::refine::is_at_entry;
use crate::region::{self, Job};
use crate::report::Report;
use crate::rule::{Compiled, NumClass, Rule};
use crate::rules;
use ir::graph::Def;
use ir::{Module, Onnx, RegionId, Registry, Shape, Type, Value};
use rustc_hash::FxHashSet;
use std::time::{Duration, Instant};
use tensor::{Diagnostic, ErrorKind, Result};

/// Options of [`rewrite`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether anything is done at all.
    pub enabled: bool,
    /// The loosest numeric class of rules that run.
    pub rewrites: NumClass,
    /// Rules switched off, by name.
    pub disabled: Vec<String>,
    /// Whether constants are folded.
    pub fold: bool,
    /// Rounds of saturation per e-graph.
    pub rounds: usize,
    /// E-nodes per source node (plus ten thousand) at which saturation stops.
    pub nodes_factor: usize,
    /// Source nodes per e-graph; larger graphs are cut where few values cross.
    pub cut_nodes: usize,
    /// Time after which saturation stops. Off by default: results would depend on the machine.
    pub time: Option<Duration>,
    /// What the target's operators cost.
    pub cost: CostModel,
    /// Rules besides the built-in ones (plugins).
    pub extra: Vec<Rule>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            enabled: true,
            rewrites: NumClass::Reassoc,
            disabled: Vec::new(),
            fold: true,
            rounds: 12,
            nodes_factor: 8,
            cut_nodes: 8192,
            time: None,
            cost: CostModel::default(),
            extra: Vec::new(),
        }
    }
}

impl Options {
    /// The defaults with every rule but those named switched off, and no folding: for tests of single rules.
    pub fn only(names: &[&str]) -> Options {
        let disabled = rules::all().iter().map(|r| r.name).filter(|n| !names.contains(n)).map(String::from).collect();
        Options { disabled, fold: false, ..Options::default() }
    }
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rule({})", self.name)
    }
}

/// The rules that run under `options`, resolved against the rows; the others are noted in the report.
pub(crate) fn compile_rules(registry: &Registry, options: &Options, report: &mut Report) -> Result<Vec<Compiled>> {
    let all: Vec<Rule> = rules::all().into_iter().chain(options.extra.iter().copied()).collect();
    if let Some(unknown) = options.disabled.iter().find(|d| !all.iter().any(|r| r.name == d.as_str())) {
        let known: Vec<&str> = all.iter().map(|r| r.name).collect();
        return Err(Diagnostic::new(ErrorKind::Argument, format!("there is no rewrite rule \"{unknown}\""))
            .help(format!("known rules: {}", known.join(", "))));
    }
    let mut out = Vec::new();
    for r in &all {
        if options.disabled.iter().any(|d| d == r.name) {
            report.left_out.push((r.name, "switched off".into()));
        } else if r.class > options.rewrites {
            report.left_out.push((r.name, format!("{} rules do not run", r.class)));
        } else {
            match Compiled::new(registry, r) {
                Ok(c) => out.push(c),
                Err(crate::pattern::PatternError::NoOp(op)) => {
                    report.left_out.push((r.name, format!("no operator row {op}")));
                }
                Err(crate::pattern::PatternError::Syntax(e)) => {
                    let message = format!("rewrite rule \"{}\": {e}", r.name);
                    return Err(Diagnostic::new(ErrorKind::Internal, message));
                }
            }
        }
    }
    Ok(out)
}

/// Rewrites every graph of the module: refines extents, infers, rewrites, infers and refines again. Types and guards of the
/// module are those of the result, and [`Report::info`] is what inference knows about it: callers need not infer again
/// (who does, should run [`crate::refine`](crate::refine()) after it).
///
/// # Errors
/// `Argument` for an unknown rule name in the options; errors of shape inference; `Internal` when the independent check of
/// the extraction fails.
pub fn rewrite(module: &mut Module<Onnx>, options: &Options) -> Result<Report> {
    let mut report = rewrite_with(module, options, |m| {
        let info = ir::infer::infer(m)?;
        Ok(move |r: RegionId, v: Value| info.values(r, v).cloned())
    })?;
    let t = Instant::now();
    if options.enabled {
        report.dims_before = report.dims;
        report.info = reinfer(module)?;
        report.dims = crate::refine(module);
    } else {
        report.info = ir::infer::infer(module)?;
    }
    report.time("infer", t.elapsed());
    Ok(report)
}

/// Infers types from nothing, so that extents which only dead nodes gave values to are derived from what is there. Guards
/// over extents that are known only during the run are those of the nodes that are left; guards over input extents stay,
/// because refinement took them for facts.
fn reinfer(module: &mut Module<Onnx>) -> Result<ir::infer::Info> {
    let dims = &module.dims;
    module.guards.retain(|g| is_at_entry(dims, g));
    let outputs = module.graph().outputs.clone();
    let mut old: Vec<(RegionId, Value, Type)> = Vec::new();
    for r in module.graphs.keys() {
        let main = r == module.main;
        for v in module.graphs[r].values.keys() {
            let data = &mut module.graphs[r].values[v];
            if matches!(data.def, Def::Node(..)) && !(main && outputs.contains(&v)) {
                old.push((r, v, std::mem::replace(&mut data.ty, Type::Unknown)));
            }
        }
    }
    let info = ir::infer::infer(module)?;
    let mut worse = false;
    for (r, v, ty) in old {
        let now = &mut module.graphs[r].values[v].ty;
        if now.shape().is_none() && ty.as_tensor().is_none_or(|t| t.shape.is_some()) && *now != ty {
            (*now, worse) = (ty, true);
        }
    }
    if worse { ir::infer::infer(module) } else { Ok(info) }
}

/// [`rewrite`] with a given way to know the elements of small integer tensors.
pub(crate) fn rewrite_with<V: Fn(RegionId, Value) -> Option<Shape>>(
    module: &mut Module<Onnx>,
    options: &Options,
    infer: impl FnOnce(&mut Module<Onnx>) -> Result<V>,
) -> Result<Report> {
    let mut report = Report::default();
    if !options.enabled {
        return Ok(report);
    }
    let t = Instant::now();
    report.dims = crate::refine(module);
    report.time("dims", t.elapsed());
    let t = Instant::now();
    let values = infer(module)?;
    report.time("infer", t.elapsed());

    let rules = compile_rules(&module.registry, options, &mut report)?;
    let deadline = options.time.map(|d| Instant::now() + d);
    // What only the run can check is checked for a node that is there: it stays, as its result may have been taken for something else
    // because of what is checked.
    let run_time = |g: &&ir::graph::Guard| !is_at_entry(&module.dims, g);
    let pinned: FxHashSet<String> = module.guards.iter().filter(run_time).map(|g| g.node.clone()).collect();
    let mut facts = Facts::new(
        module.registry.clone(),
        std::mem::take(&mut module.dims),
        std::mem::take(&mut module.attrs),
        std::mem::take(&mut module.consts),
    );
    facts.fold = options.fold;
    for r in module.graphs.keys() {
        let old = std::mem::take(&mut module.graphs[r]);
        report.n_nodes.0 += old.order.len();
        let mut job = Job {
            rules: &rules,
            cost: &options.cost,
            rounds: options.rounds,
            nodes_factor: options.nodes_factor,
            cut_nodes: options.cut_nodes.max(64),
            deadline,
            values: &|v| values(r, v),
            pinned: &pinned,
            report: &mut report,
        };
        let (f, new) = region::rewrite(facts, &old, &mut job)?;
        facts = f;
        report.n_nodes.1 += new.order.len();
        module.graphs[r] = new;
    }
    report.n_folded = facts.n_folded;
    report.conflicts = std::mem::take(&mut facts.conflicts);
    report.misses.sort();
    report.misses.dedup();
    module.dims = facts.dims;
    module.attrs = facts.attrs;
    module.consts = facts.consts;
    Ok(report)
}
