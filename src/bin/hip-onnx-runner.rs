//! Compiles an ONNX model in memory and runs it.
#![deny(clippy::print_stdout)] // `say!` does not panic

use clap::Parser;
use hip_ep::artifact::Port;
use hip_ep::runtime::Report;
use hip_ep::say;
use hip_ep::tensor::compare::{Tolerance, compare};
use hip_ep::tool;
use hip_ep::tool::caches::Caches;
use hip_ep::tool::data::{self, DataSet};
use hip_ep::tool::verdict;
use hip_ep::{
    Collect, CompileOptions, Compiler, DeviceKind, Diagnostic, ErrorKind, Hooks, Result, RunInputs, RunOptions,
    Session, SessionOptions, Target, Tensor,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(version, about = "Compile an ONNX model in memory and run it")]
struct Cli {
    /// ONNX file, or a module in text form (.hir, .txt).
    #[arg(required_unless_present = "doctor")]
    model: Option<PathBuf>,
    /// Print which GPUs, drivers and libraries there are, and the line that mends what is missing; then stop.
    #[arg(long)]
    doctor: bool,
    /// An input from a .pb or .npy file; may be repeated. Others are random.
    #[arg(long, value_name = "NAME=FILE", conflicts_with = "data_dir")]
    input: Vec<String>,
    /// Shape of a random input: NAME=1x3x224x224; may be repeated.
    #[arg(long, value_name = "NAME=SHAPE", conflicts_with = "data_dir")]
    shape: Vec<String>,
    /// Seed of random inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder with input_N.pb and output_N.pb; may be repeated.
    #[arg(long, value_name = "DIR")]
    data_dir: Vec<PathBuf>,
    /// Also run the interpreter, which computes every node by its reference function, and compare.
    #[arg(long, value_parser = ["reference"])]
    compare: Option<String>,
    /// Run only the interpreter and write its outputs into each --data-dir as exact_N.pb: `hip-test` then compares with them as well.
    #[arg(long, requires = "data_dir")]
    write_exact: bool,
    /// Give every output that may be in the memory of an input that input's memory: caches are updated in place. The line `shared` says
    /// what was copied of them.
    #[arg(long)]
    share: bool,
    /// cpu, hip (the first GPU), hip:N, guard or null.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads; all by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Leave out an optional pass or a rewrite rule; may be repeated.
    #[arg(long, value_name = "NAME")]
    disable: Vec<String>,
    /// Timed runs, after one that is not.
    #[arg(long, default_value_t = 0)]
    repeat: u32,
    /// Print the time of every op.
    #[arg(long)]
    profile: bool,
    /// Write a Chrome trace.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write inputs and outputs as .pb files to DIR/set_0, DIR/set_1 and so on, which are folders for --data-dir.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    tool::init_log();
    tool::exit(run(&Cli::parse()))
}

fn run(cli: &Cli) -> Result<bool> {
    if cli.doctor {
        tool::print(hip_ep::doctor().as_bytes());
        return Ok(true);
    }
    let Some(path) = &cli.model else { return Err(Diagnostic::new(ErrorKind::Argument, "there is no model to run")) };
    if cli.write_exact {
        return write_exact(cli, path);
    }
    let bar = tool::spinner("compile");
    let start = Instant::now();
    let module = tool::read_model(path)?;
    let reference = cli.compare.is_some().then(|| typed(module.clone())).transpose()?;
    let mut options = CompileOptions::default();
    options.disabled = cli.disable.clone();
    let device = DeviceKind::parse(&cli.device)?;
    if matches!(device, DeviceKind::Hip(_)) {
        options.targets = Target::parse_list(&device.target()?)?;
    }
    let model = Compiler::with(options).compile_with(module, &mut Hooks::default())?;
    let mut so = SessionOptions::default();
    so.threads = cli.threads;
    let session = model.session(device, so)?;
    let compile_ms = start.elapsed().as_secs_f64() * 1e3;
    bar.finish_and_clear();
    let sets = if cli.data_dir.is_empty() {
        let inputs = data::inputs(session.inputs(), &cli.input, &cli.shape, cli.seed)?;
        vec![DataSet::of_inputs(inputs)]
    } else {
        cli.data_dir.iter().map(|d| DataSet::read(d)).collect::<Result<_>>()?
    };
    let (mut problems, mut docs, mut worst_ratio) = (Vec::new(), Vec::new(), 0f64);
    for (k, set) in sets.iter().enumerate() {
        let ports: Vec<&str> = session.inputs().iter().map(|p| p.name.as_str()).collect();
        let tensors: Vec<Tensor> = set.in_order(&ports, &|i| session.default_input(i))?;
        let inputs = RunInputs::in_order(&tensors);
        let mut ro = RunOptions::default();
        ro.profile = cli.profile || cli.trace.is_some();
        let named: Vec<(String, Tensor)> = ports.iter().map(|n| n.to_string()).zip(tensors.iter().cloned()).collect();
        let mut caches = cli.share.then(|| Caches::new(&session, &named, 0)).transpose()?;
        let mut run = |o: &RunOptions<'_>| match &mut caches {
            None => collect(&session, &inputs, o),
            Some(c) => in_place(&session, &named, c, o),
        };
        let (mut collected, report) = run(&ro)?;
        let mut times: Vec<f64> = Vec::new();
        for _ in 0..cli.repeat {
            let t = Instant::now();
            run(&RunOptions::default())?;
            times.push(t.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        let lost = |name: &str| Diagnostic::new(ErrorKind::Internal, format!("output {name:?} was not produced"));
        let output = |p: &Port| match caches.as_ref().map(|c| c.read(&p.name)).transpose()?.flatten() {
            Some(t) => Ok(t),
            None => collected.take(&p.name).ok_or_else(|| lost(&p.name)),
        };
        let outputs: Vec<Tensor> = session.outputs().iter().map(output).collect::<Result<_>>()?;
        let names: Vec<String> = session.outputs().iter().map(|p| p.name.clone()).collect();
        for (i, (name, want)) in set.outputs.iter().enumerate() {
            let at = names.iter().position(|n| n == name).unwrap_or(i);
            match outputs.get(at).map(|got| compare(got, want, Tolerance::of(want.dtype()))) {
                // With the interpreter at hand, distance from a peer's output is not what decides.
                Some(Ok(r)) if r.ok() || reference.is_some() => {}
                Some(Ok(r)) => problems.push(format!("set {k}: output {name:?}: {r}")),
                Some(Err(e)) => problems.push(format!("set {k}: output {name:?}: {e}")),
                None => problems.push(format!("set {k}: there is no output {name:?}")),
            }
        }
        if let Some(m) = &reference {
            let exact = hip_ep::ir::interp::run(m, &tensors)?;
            let half = verdict::half(model.metadata());
            for (i, (name, want)) in names.iter().zip(&exact).enumerate() {
                let peer = set.outputs.iter().find(|(n, _)| n == name).or(set.outputs.get(i)).map(|(_, t)| t);
                let off = verdict::Off::of(&outputs[i], want, peer, half)?;
                worst_ratio = worst_ratio.max(off.share());
                if off.share() > 1.0 {
                    problems.push(format!("set {k}: output {name:?}: {off}"));
                }
            }
        }
        if let Some(dir) = &cli.dump {
            dump(&dir.join(format!("set_{k}")), &set.inputs, &names, &outputs)?;
        }
        if let (Some(path), Some(p)) = (&cli.trace, &report.profile) {
            tool::save(path, p.chrome_trace())?;
        }
        let median = times.get(times.len() / 2).copied();
        if cli.json {
            let outs: Vec<Value> = names.iter().zip(&outputs).map(|(n, t)| verdict::to_json(n, t, false)).collect();
            docs.push(json!({"outputs": outs, "median_us": median}));
            continue;
        }
        for (name, t) in names.iter().zip(&outputs) {
            say!("{name}: {t:?}");
        }
        if cli.share {
            let c = &report.counters;
            say!("shared {} outputs, {} bytes copied in {} copies", c.shared_outputs, c.copied_bytes, c.copies);
        }
        if let Some(t) = median {
            say!("median {t:.0} µs over {} runs", times.len());
        }
        if cli.profile
            && let Some(p) = &report.profile
        {
            say!("profile of the first run:\n{}", p.table(30));
        }
    }
    if cli.json {
        say!(
            "{}",
            json!({"passed": problems.is_empty(), "problems": problems, "worst_ratio": reference.is_some().then_some(worst_ratio), "compile_ms": compile_ms, "sets": docs})
        );
    } else {
        say!("compiled in {compile_ms:.0} ms");
        problems.iter().for_each(|p| say!("FAIL {p}"));
        let n_silent = sets.iter().filter(|s| !s.is_expected()).count();
        if n_silent > 0 && !cli.data_dir.is_empty() && reference.is_none() {
            say!("{n_silent} of {} sets not compared: {}", sets.len(), data::NOT_COMPARED);
        }
        if cli.compare.is_some() {
            say!("worst error against the interpreter: {worst_ratio:.2} of what is allowed");
        }
    }
    Ok(problems.is_empty())
}

/// A run whose outputs are in memory of their own.
fn collect(session: &Session, inputs: &RunInputs<'_>, options: &RunOptions<'_>) -> Result<(Collect, Report)> {
    let mut collected = Collect::new();
    let report = session.run(inputs, &mut collected, options)?;
    Ok((collected, report))
}

/// A run whose caches are in one place.
fn in_place(
    session: &Session,
    inputs: &[(String, Tensor)],
    caches: &mut Caches,
    options: &RunOptions<'_>,
) -> Result<(Collect, Report)> {
    let mut given = RunInputs::new();
    for (name, t) in inputs.iter().filter(|(n, _)| !caches.has(n)) {
        given.tensor(name, t);
    }
    caches.bind(&mut given);
    collect(session, &given, options)
}

/// The model as the interpreter takes it: with types, which say what loops without an iteration give.
fn typed(mut m: hip_ep::ir::Module<hip_ep::ir::Onnx>) -> Result<hip_ep::ir::Module<hip_ep::ir::Onnx>> {
    hip_ep::ir::infer::infer(&mut m)?;
    Ok(m)
}

/// Runs the interpreter on every data set and leaves its outputs there.
fn write_exact(cli: &Cli, path: &std::path::Path) -> Result<bool> {
    let m = typed(tool::read_model(path)?)?;
    let g = m.graph();
    let names = |vs: &[hip_ep::ir::Value]| vs.iter().map(|&v| g.values[v].name.to_string()).collect::<Vec<_>>();
    let (ins, outs) = (names(&g.inputs), names(&g.outputs));
    let ins: Vec<&str> = ins.iter().map(String::as_str).collect();
    for dir in &cli.data_dir {
        let exact = hip_ep::ir::interp::run(&m, &DataSet::read(dir)?.in_order(&ins, &|i| m.default_input(i))?)?;
        DataSet::write_exact(dir, &outs.iter().cloned().zip(exact).collect::<Vec<_>>())?;
    }
    Ok(true)
}

fn dump(dir: &std::path::Path, inputs: &[(String, Tensor)], names: &[String], outputs: &[Tensor]) -> Result<()> {
    std::fs::create_dir_all(dir)
        .map_err(|e| Diagnostic::new(ErrorKind::Io, format!("cannot make the folder {}: {e}", dir.display())))?;
    for (i, (name, t)) in inputs.iter().enumerate() {
        hip_ep::tensor::pb::write_tensor(&dir.join(format!("input_{i}.pb")), name, t)?;
    }
    for (i, (name, t)) in names.iter().zip(outputs).enumerate() {
        hip_ep::tensor::pb::write_tensor(&dir.join(format!("output_{i}.pb")), name, t)?;
    }
    Ok(())
}
