//! Reads a model or a module in text form, runs passes, prints what they leave: plays the part of an `opt` tool for both dialects.
#![deny(clippy::print_stdout)] // `say!` does not panic

use clap::{Parser, ValueEnum};
use hip_ep::ir::generate::SPECS;
use hip_ep::lower::pass::{self, Slot, Unit};
use hip_ep::{CompileOptions, Compiler, Diagnostic, ErrorKind, Hooks, Result, Target};
use hip_ep::{say, tool};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(version, about = "Run passes on an ONNX model or on IR text and print the result")]
struct Cli {
    /// ONNX file, or a module in text form (.hir, .txt).
    #[arg(required_unless_present_any = ["list_passes", "list_rules", "docs", "generate"], conflicts_with = "generate")]
    model: Option<PathBuf>,
    #[arg(long, value_name = "SPEC", help = format!("Take a generated model instead of a file: {SPECS}"))]
    generate: Option<String>,
    /// How far to go: the ONNX dialect, the HIP dialect with its plan, or the host program.
    #[arg(long, value_enum, default_value_t = Pipeline::Onnx)]
    pipeline: Pipeline,
    /// Run only these optional passes (and the required ones before the last of them); may be repeated.
    #[arg(long = "pass", value_name = "NAME")]
    passes: Vec<String>,
    /// Stop after this pass.
    #[arg(long, value_name = "NAME")]
    stop_after: Option<String>,
    /// Leave out an optional pass or a rewrite rule; may be repeated.
    #[arg(long, value_name = "NAME")]
    disable: Vec<String>,
    /// Run only the first N optional passes.
    #[arg(long, value_name = "N")]
    bisect: Option<u32>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Emit::Text)]
    emit: Emit,
    /// What llvm and asm are for, separated by commas: cpu, cpu:TIER, hip:ARCH, cuda:ARCH.
    #[arg(long, value_name = "TARGET,…", default_value = "cpu")]
    target: String,
    /// Check the IR before and after every pass (on by default in debug builds).
    #[arg(long)]
    verify: bool,
    /// Print to standard error what rewriting did: counts per rule, near misses, stop reasons.
    #[arg(long)]
    report: bool,
    /// Print for each node what runs it and why not something better.
    #[arg(long)]
    explain: bool,
    /// With --pipeline hip or host: print as JSON what the pools need at the shapes of the inputs in this folder, and the most that lives
    /// in them, by the independent checker; may be repeated.
    #[arg(long, value_name = "DIR")]
    pools: Vec<PathBuf>,
    /// Print the IR after this pass, or after `all`, to standard error; may be repeated.
    #[arg(long, value_name = "NAME")]
    dump_after: Vec<String>,
    /// Print the time of each pass.
    #[arg(long)]
    timings: bool,
    /// Where to write; standard output by default.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// List the passes and plugin slots and stop.
    #[arg(long)]
    list_passes: bool,
    /// List the rewrite rules, each with its numeric class, and stop.
    #[arg(long)]
    list_rules: bool,
    /// Print a generated page and stop.
    #[arg(long, value_name = "PAGE", value_parser = ["passes", "ops"])]
    docs: Option<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Pipeline {
    Onnx,
    Hip,
    Host,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Emit {
    Text,
    Onnx,
    Llvm,
    Asm,
    None,
}

fn main() -> ExitCode {
    tool::init_log();
    tool::exit(run(&Cli::parse()))
}

fn run(cli: &Cli) -> Result<bool> {
    match cli.docs.as_deref() {
        Some("passes") => tool::print(pass::render().as_bytes()),
        Some(_) => tool::print(hip_ep::doc::render_ops().as_bytes()),
        None if cli.list_passes => {
            pass::PASSES
                .iter()
                .for_each(|p| say!("{:14} {} {}", p.name, if p.required { "required" } else { "optional" }, p.doc));
            say!("slots: {}", Slot::ALL.map(|s| s.name()).join(", "));
        }
        None if cli.list_rules => hip_ep::rewrite::rules::all()
            .iter()
            .for_each(|r| say!("{:24} {:8} {}", r.name, r.class.to_string(), r.lhs.first().unwrap_or(&""))),
        None => return optimise(cli),
    }
    Ok(true)
}

fn optimise(cli: &Cli) -> Result<bool> {
    let compiler = Compiler::with({
        let mut o = CompileOptions::default();
        o.targets = Target::parse_list(&cli.target)?;
        o.disabled = cli.disable.clone();
        o
    });
    let mut options = compiler.pass_options();
    options.bisect = cli.bisect;
    options.verify |= cli.verify;
    let last = |what: &str| pass::PASSES.iter().take_while(|p| p.name != what).last().map(|p| p.name.to_string());
    options.stop_after = match (&cli.stop_after, cli.pipeline, cli.emit) {
        (Some(name), ..) => Some(name.clone()),
        (_, _, Emit::Llvm | Emit::Asm) => None,
        (_, Pipeline::Onnx, _) => last("to-hip"),
        (_, Pipeline::Hip, _) => last("host-program"),
        (_, Pipeline::Host, _) => None,
    };
    if let Some(end) = cli.passes.iter().max_by_key(|n| pass::PASSES.iter().position(|p| p.name == **n)) {
        for name in &cli.passes {
            pass::find(name)?;
        }
        let skip = |p: &&pass::Pass| !p.required && !cli.passes.iter().any(|n| n == p.name);
        options.disable.extend(pass::PASSES.iter().filter(skip).map(|p| p.name.to_string()));
        options.stop_after = Some(end.clone());
    }
    for name in cli.dump_after.iter().filter(|n| *n != "all") {
        pass::find(name)?;
    }
    let mut hooks = Hooks::default();
    let (dump, timings) = (cli.dump_after.clone(), cli.timings);
    hooks.watch(move |record, unit| {
        if timings {
            eprintln!(
                "{:14} {:8.1} ms {}",
                record.name,
                record.time.as_secs_f64() * 1e3,
                record.left_out.unwrap_or("")
            );
        }
        if dump.iter().any(|n| n == "all" || n == record.name) {
            eprintln!("// after {}\n{}", record.name, unit.text());
        }
    });
    let start = std::time::Instant::now();
    let input = match (&cli.generate, &cli.model) {
        (Some(spec), _) => Read::Onnx(Box::new(tool::generate(spec)?)),
        (None, Some(path)) => read(path)?,
        (None, None) => return Err(Diagnostic::new(ErrorKind::Argument, "no model is given")),
    };
    if timings {
        eprintln!("{:14} {:8.1} ms", "import", start.elapsed().as_secs_f64() * 1e3);
    }
    let unit = match input {
        Read::Onnx(m) => Unit::from_onnx(*m),
        Read::Hip(m) => Unit::from_hip(*m),
    };
    let unit = pass::run(unit, &options, &mut hooks)?;
    if cli.report
        && let Some(r) = &unit.rewrite
    {
        eprintln!("{r}");
        eprintln!("guards     {} of {} removed before lowering", unit.guards.guards_removed, unit.guards.guards);
    }
    if cli.report {
        unit.info.iter().flat_map(|i| &i.unknown).for_each(|what| eprintln!("unknown    {what}"));
    }
    if cli.explain {
        eprintln!("{}", unit.explain);
    }
    if !cli.pools.is_empty() {
        say!("{}", pools(&unit, &cli.pools)?);
    }
    let bytes = match cli.emit {
        Emit::None => return Ok(true),
        Emit::Text => unit.text().into_bytes(),
        Emit::Onnx => match &unit.onnx {
            Some(m) => hip_ep::ir::export::to_onnx(m)?,
            None => {
                return Err(Diagnostic::new(
                    ErrorKind::Argument,
                    "ONNX can be written only before the step to the HIP dialect",
                )
                .help("use --pipeline onnx"));
            }
        },
        Emit::Llvm | Emit::Asm => {
            let p = unit.program.as_ref().ok_or_else(|| {
                Diagnostic::new(
                    ErrorKind::Argument,
                    "code is generated from the host program; the passes stopped before it",
                )
            })?;
            let (llvm, asm) = compiler.code_text(p)?;
            if cli.emit == Emit::Llvm { llvm.into_bytes() } else { asm.into_bytes() }
        }
    };
    match &cli.output {
        Some(path) => tool::save(path, bytes)?,
        None => tool::print(&bytes),
    }
    Ok(true)
}

/// Use of the pools at the shapes of data sets.
fn pools(unit: &Unit, dirs: &[PathBuf]) -> Result<serde_json::Value> {
    let (Some(m), Some(plan)) = (&unit.hip, &unit.plan) else {
        return Err(Diagnostic::new(ErrorKind::Argument, "there is no memory plan").help("use --pipeline hip or host"));
    };
    let g = m.graph();
    let names: Vec<&str> = g.inputs.iter().map(|&v| &*g.values[v].name).collect();
    let one = |dir: &PathBuf| -> Result<serde_json::Value> {
        let inputs = tool::data::DataSet::read(dir)?.in_order(&names, &|i| m.default_input(i))?;
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
        Ok(match tool::pools::at_shapes(m, plan, &shapes) {
            Ok(u) => serde_json::json!({"shapes": shapes, "peak": u.peak, "live": u.live}),
            Err(e) => serde_json::json!({"shapes": shapes, "error": e.to_string()}),
        })
    };
    dirs.iter().map(one).collect()
}

enum Read {
    Onnx(Box<hip_ep::ir::Module<hip_ep::ir::Onnx>>),
    Hip(Box<hip_ep::ir::Module<hip_ep::ir::hip::Hip>>),
}

/// A model, or text of either dialect (its first word says which).
fn read(path: &std::path::Path) -> Result<Read> {
    if let Some(text) = tool::read_text(path)? {
        let registry = hip_ep::ir::Registry::builtin();
        let first = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with("//") && !l.starts_with(';'));
        if first.is_some_and(|l| l.starts_with("hip")) {
            let m = hip_ep::ir::text::parse_hip(&text, &registry);
            return Ok(Read::Hip(Box::new(m.map_err(|e| e.note("file", path.display().to_string()))?)));
        }
    }
    Ok(Read::Onnx(Box::new(tool::read_model(path)?)))
}
