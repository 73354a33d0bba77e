//! Loads an artifact through the same path as every other user of the runtime, runs it on given data, compares, times.
#![deny(clippy::print_stdout)] // `say!` does not panic

use clap::Parser;
use hip_ep::say;
use hip_ep::tensor::compare::{Tolerance, ceiling, compare};
use hip_ep::tool;
use hip_ep::tool::bench::{Bench, counters};
use hip_ep::tool::data::{self, DataSet};
use hip_ep::tool::sabotage::{self, Choice, Found, Kind};
use hip_ep::tool::verdict;
use hip_ep::{
    CompiledModel, Compiler, DType, DeviceKind, Diagnostic, ErrorKind, Result, RunInputs, RunOptions, Session,
    SessionOptions, Tensor,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

#[derive(Parser)]
#[command(version, about = "Run an artifact (or shared object) on given data, compare with expected outputs, time it")]
struct Cli {
    /// The artifact, one; with --suite, folders of cases (model.onnx and test_data_set_N).
    #[arg(required_unless_present = "copy_bandwidth")]
    paths: Vec<PathBuf>,
    /// Folder with input_N.pb and output_N.pb; may be repeated.
    #[arg(long, value_name = "DIR")]
    data_dir: Vec<PathBuf>,
    /// An input from a .pb or .npy file; may be repeated. Others are random.
    #[arg(long, value_name = "NAME=FILE", conflicts_with = "data_dir")]
    input: Vec<String>,
    /// Shape of a random input: NAME=1x3x224x224; may be repeated.
    #[arg(long, value_name = "NAME=SHAPE", conflicts_with = "data_dir")]
    shape: Vec<String>,
    /// Seed of random inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// cpu, hip (the first GPU), hip:N, guard or null.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads; all by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Timed runs per data set, after one that is not.
    #[arg(long, default_value_t = 0)]
    repeat: u32,
    /// Relative and absolute tolerance for each element, as `rtol,atol`, or with that of bf16 outputs as `rtol,atol,rtol`; by default by
    /// dtype, relative to the greatest value.
    #[arg(long)]
    tolerance: Option<String>,
    /// What decides where a set has the interpreter's outputs (exact_N.pb) beside the expected ones.
    #[arg(long, value_enum, default_value = "both")]
    judge: Judge,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    /// With --suite: one JSON line per case as it ends.
    #[arg(long)]
    json_lines: bool,
    /// Print a hash of all outputs' bits.
    #[arg(long)]
    digest: bool,
    /// With --json: print all values of outputs, not the first few.
    #[arg(long)]
    values: bool,
    /// Print the time of every op.
    #[arg(long)]
    profile: bool,
    /// Write a Chrome trace of the last run.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// With --repeat: profile every timed run and report medians of what the device did; runs are not compared with one another.
    #[arg(long)]
    bench: bool,
    /// Measure a copy of this many bytes within the device's memory instead of running a model.
    #[arg(long, value_name = "BYTES")]
    copy_bandwidth: Option<usize>,
    /// Paths are cases of the ONNX backend suite: each is compiled, saved, and run in a process of its own.
    #[arg(long)]
    suite: bool,
    /// Break something on purpose, so that the comparison must fail; a test aid. weight:N puts the N-th largest weight off by 1 %,
    /// expected changes the expected outputs; with --suite also epilogue, operands and pool, which are broken when a case is compiled.
    #[arg(long, value_name = "KIND[:N]")]
    sabotage: Option<String>,
}

/// What decides whether an output is right. The expected output's own error against the interpreter says what is allowed: twice as much.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Judge {
    /// Every output is near the expected one, and as near to the interpreter's as is allowed.
    Both,
    /// The interpreter alone: for models in which near values are told apart (ties of a search), or whose outputs are chance below a step.
    Interpreter,
    /// The interpreter alone, over all sets together: the greatest of our errors and twice the greatest of theirs. For models that round
    /// to steps between layers, where a value between two steps goes to either in right runs, now in one, now in the other.
    Together,
}

fn main() -> ExitCode {
    tool::init_log();
    let cli = Cli::parse();
    tool::exit(match cli.copy_bandwidth {
        Some(bytes) => copy_bandwidth(&cli, bytes),
        None if cli.suite => suite(&cli),
        None => one(&cli),
    })
}

/// What another runtime's f32 results may be off by where an exact result judges ours.
const ROUNDING: f64 = 1e-6;

/// Result of all runs of one artifact.
#[derive(Default)]
struct Outcome {
    problems: Vec<String>,
    /// The half precision that the model computes in, whatever its outputs are.
    half: Option<DType>,
    share: f64,
    error: f64,
    exact_share: Option<f64>,
    /// With [`Judge::Together`], of each output over all sets.
    off: BTreeMap<String, verdict::Off>,
    tolerance: f64,
    outputs: Vec<(String, Tensor)>,
    digests: Vec<String>,
    times_us: Vec<f64>,
    counters: Value,
    /// Counters of the last repeated run.
    steady: Value,
    bench: Bench,
    io_bytes: usize,
    host_ops: u64,
    profile: Option<hip_ep::runtime::Profile>,
    n_sets: usize,
    /// Sets with expected outputs.
    n_compared: usize,
    sabotage: Option<Found>,
}

fn copy_bandwidth(cli: &Cli, bytes: usize) -> Result<bool> {
    let rate = hip_ep::runtime::bench::copy_bandwidth(&DeviceKind::parse(&cli.device)?.open()?, bytes)?;
    if cli.json {
        say!("{}", json!({"passed": true, "bytes": bytes, "gb_per_s": rate}));
    } else {
        say!("{rate:.0} GB/s read and written by a copy of {bytes} bytes");
    }
    Ok(true)
}

fn one(cli: &Cli) -> Result<bool> {
    let [path] = &cli.paths[..] else {
        return Err(Diagnostic::new(ErrorKind::Argument, format!("{} artifacts are given", cli.paths.len()))
            .help("run one at a time, or folders of cases with --suite"));
    };
    let mut o = Outcome::default();
    let choice = cli.sabotage.as_deref().map(Choice::parse).transpose()?;
    let broken;
    let path = match choice {
        Some(Choice { kind: Kind::Weight, nth }) => {
            let (files, found) = break_weight(path, nth)?;
            o.sabotage = Some(found);
            broken = files;
            broken.path()
        }
        Some(Choice { kind: Kind::Expected, .. }) | None => path.as_path(),
        Some(_) => {
            return Err(Diagnostic::new(ErrorKind::Argument, "a compiled model can only be broken in its weights")
                .help("break it when it is compiled: hip-compiler --sabotage"));
        }
    };
    let model = CompiledModel::load(path)?;
    let mut options = SessionOptions::default();
    options.threads = cli.threads;
    o.half = verdict::half(model.metadata());
    let session = model.session(DeviceKind::parse(&cli.device)?, options)?;
    let given = cli.tolerance.as_deref().map(parse_tolerance).transpose()?;
    let tolerance = |d: DType| match given {
        Some((each, of_bf16)) => {
            if d == DType::BF16 {
                of_bf16
            } else {
                each
            }
        }
        None => Tolerance::of(d),
    };
    let sets = if cli.data_dir.is_empty() {
        let inputs = data::inputs(session.inputs(), &cli.input, &cli.shape, cli.seed)?;
        vec![DataSet::of_inputs(inputs)]
    } else {
        cli.data_dir.iter().map(|d| DataSet::read(d)).collect::<Result<_>>()?
    };
    for mut set in sets {
        if choice.is_some_and(|c| c.kind == Kind::Expected) {
            set.outputs.iter_mut().chain(&mut set.exact).for_each(|(_, t)| *t = sabotage::expected(t));
        }
        run_set(cli, &session, &set, &tolerance, &mut o)?;
    }
    for (name, off) in &o.off {
        o.exact_share = Some(o.exact_share.unwrap_or(0.0).max(off.share()));
        if off.share() > 1.0 {
            o.problems.push(format!("output {name:?}, {} sets together: {off}", o.n_sets));
        }
    }
    match (choice, &o.sabotage) {
        (Some(Choice { nth, .. }), Some(f)) if f.what.is_empty() => {
            o.problems.push(format!("nothing was broken: of the {} weights that can be there is no {nth}", f.places));
        }
        (Some(Choice { kind: Kind::Expected, .. }), _) if o.n_compared == 0 => {
            o.problems.push("nothing was broken: there are no expected outputs".into());
        }
        _ => {}
    }
    report(cli, &o)?;
    Ok(o.problems.is_empty())
}

/// `rtol,atol` or `rtol,atol,rtol` of bf16.
fn parse_tolerance(text: &str) -> Result<(Tolerance, Tolerance)> {
    let number = |x: &str| x.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
    let numbers: Option<Vec<f64>> = text.split(',').map(number).collect();
    let (rel, abs, brief) = match numbers.as_deref() {
        Some(&[rel, abs]) => (rel, abs, rel),
        Some(&[rel, abs, brief]) => (rel, abs, brief),
        _ => {
            let text = format!("--tolerance {text:?} is not rtol,atol or rtol,atol,rtol");
            return Err(Diagnostic::new(ErrorKind::Argument, text)
                .help("each is a number from 0 on: --tolerance 1e-3,1e-6; without it the dtype says what is allowed"));
        }
    };
    Ok((Tolerance::Each { rel, abs }, Tolerance::Each { rel: brief, abs }))
}

fn run_set(
    cli: &Cli,
    session: &Session,
    set: &DataSet,
    tolerance: &dyn Fn(DType) -> Tolerance,
    o: &mut Outcome,
) -> Result<()> {
    let names: Vec<&str> = session.inputs().iter().map(|p| p.name.as_str()).collect();
    let tensors = set.in_order(&names, &|i| session.default_input(i))?;
    let inputs = RunInputs::in_order(&tensors);
    let mut options = RunOptions::default();
    options.profile = cli.profile || cli.trace.is_some();
    let (outputs, report) = session.collect(&inputs, &options)?;
    for _ in 0..cli.repeat {
        let start = Instant::now();
        let mut options = RunOptions::default();
        options.profile = cli.bench;
        let (again, report) = session.collect(&inputs, &options)?;
        o.times_us.push(start.elapsed().as_secs_f64() * 1e6);
        o.steady = counters(&report.counters);
        report.profile.iter().for_each(|p| o.bench.add(p));
        if !cli.bench && verdict::digest(&again) != verdict::digest(&outputs) {
            o.problems.push("a repeated run gave other bits".into());
        }
    }
    let at = |i: usize, name: &str| session.outputs().iter().position(|p| p.name == name).unwrap_or(i);
    for (i, (name, want)) in set.outputs.iter().enumerate() {
        let mut say = |what: String| o.problems.push(format!("set {}: output {name:?}: {what}", o.n_sets));
        let Some(got) = outputs.get(at(i, name)) else {
            say("the model has no such output".into());
            continue;
        };
        o.tolerance = o.tolerance.max(ceiling(want.dtype()));
        // In half precision two right answers may be further apart than a tolerance: where it is known, the exact one decides.
        let is_half = o.half.is_some() || matches!(want.dtype(), DType::F16 | DType::BF16);
        let decides = set.exact.is_empty() || (cli.judge == Judge::Both && !is_half);
        // Where the exact result is known as well, it says how precise ours must be: the other runtime then shows that the meaning is the
        // same, and its own rounding, of some units of f32 around 1, does not count (a sigmoid of 1e-7).
        let allowed = match tolerance(want.dtype()) {
            Tolerance::Rel { rel, abs } if !set.exact.is_empty() && want.dtype() == DType::F32 => {
                Tolerance::Rel { rel, abs: abs.max(ROUNDING) }
            }
            other => other,
        };
        match compare(got, want, allowed) {
            Ok(r) => {
                o.share = o.share.max(r.share);
                o.error = o.error.max(r.relative());
                if !r.ok() && decides {
                    say(format!("{r}; {:.1} times what is allowed", r.share));
                }
            }
            Err(e) => {
                o.share = f64::INFINITY;
                say(e.to_string());
            }
        }
    }
    for (i, (name, exact)) in set.exact.iter().enumerate() {
        let mut say = |what: String| o.problems.push(format!("set {}: output {name:?}: {what}", o.n_sets));
        let peer = set.outputs.iter().find(|(n, _)| n == name).or(set.outputs.get(i)).map(|(_, t)| t);
        match outputs.get(at(i, name)).map(|got| verdict::Off::of(got, exact, peer, o.half)) {
            Some(Ok(off)) if cli.judge == Judge::Together => {
                o.off.entry(name.clone()).and_modify(|all| *all = all.with(off)).or_insert(off);
            }
            Some(Ok(off)) => {
                o.exact_share = Some(o.exact_share.unwrap_or(0.0).max(off.share()));
                if off.share() > 1.0 {
                    say(off.to_string());
                }
            }
            Some(Err(e)) => say(e.to_string()),
            None => say("the model has no such output".into()),
        }
    }
    let c = &report.counters;
    o.host_ops += c.host_ops;
    o.counters = counters(c);
    o.io_bytes = tensors.iter().chain(&outputs).map(|t| t.bytes().len()).sum();
    o.profile = report.profile.or(o.profile.take());
    o.digests.push(verdict::digest(&outputs));
    let names = session.outputs().iter().map(|p| p.name.clone());
    o.outputs = names.zip(outputs).collect();
    o.n_sets += 1;
    o.n_compared += usize::from(set.is_expected());
    Ok(())
}

fn median(v: &[f64]) -> Option<f64> {
    let mut v = v.to_vec();
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied()
}

fn report(cli: &Cli, o: &Outcome) -> Result<()> {
    if let (Some(path), Some(p)) = (&cli.trace, &o.profile) {
        tool::save(path, p.chrome_trace())?;
    }
    if cli.json {
        let outputs: Vec<Value> = o.outputs.iter().map(|(n, t)| verdict::to_json(n, t, cli.values)).collect();
        let doc = json!({
            "passed": o.problems.is_empty(), "problems": o.problems, "sets": o.n_sets, "compared": o.n_compared, "worst": o.error, "share": o.share,
            "exact_share": o.exact_share, "sabotage": o.sabotage.as_ref().map(|f| json!({"places": f.places, "what": f.what})),
            "tolerance": o.tolerance, "outputs": outputs, "digest": cli.digest.then(|| o.digests.join(" ")),
            "median_us": median(&o.times_us).map(|t| t.round()), "counters": o.counters, "steady": o.steady, "host_ops": o.host_ops,
            "io_bytes": o.io_bytes, "bench": o.bench.to_json(),
        });
        say!("{doc}");
        return Ok(());
    }
    for (name, t) in &o.outputs {
        say!("{name}: {t:?}");
    }
    if let Some(t) = median(&o.times_us) {
        say!("median {t:.0} µs over {} runs", o.times_us.len());
    }
    if cli.profile
        && let Some(p) = &o.profile
    {
        say!("profile of the first run of the last set:\n{}", p.table(30));
        say!("counters {}", o.counters);
    }
    if cli.digest {
        say!("digest {}", o.digests.join(" "));
    }
    for p in &o.problems {
        say!("FAIL {p}");
    }
    let verdict = if o.problems.is_empty() { "ok" } else { "FAILED" };
    match o.n_compared {
        _ if cli.data_dir.is_empty() => {}
        0 => say!("{} sets, not compared: {}", o.n_sets, data::NOT_COMPARED),
        n if n == o.n_sets => say!("{n} sets, worst error {:.2e}: {verdict}", o.error),
        n => say!(
            "{} sets, {} of them not compared ({}), worst error {:.2e}: {verdict}",
            o.n_sets,
            o.n_sets - n,
            data::NOT_COMPARED,
            o.error
        ),
    }
    Ok(())
}

/// A copy of the artifact with a weight that is off by 1 %.
fn break_weight(path: &Path, nth: usize) -> Result<(Broken, Found)> {
    let io = |e: std::io::Error| Diagnostic::new(ErrorKind::Io, format!("cannot copy {}: {e}", path.display()));
    let dir = std::env::temp_dir().join(format!("hip-test-{}-weight", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(io)?;
    let copy = dir.join(path.file_name().unwrap_or_default());
    let files = Broken { dir, copy };
    std::fs::copy(path, files.path()).map_err(io)?;
    let mut bytes = std::fs::read(hip_ep::artifact::constants_path(path)).map_err(io)?;
    let found = sabotage::weight(CompiledModel::load(path)?.metadata(), &mut bytes, nth);
    std::fs::write(hip_ep::artifact::constants_path(files.path()), bytes).map_err(io)?;
    Ok((files, found))
}

/// Files that vanish with it.
struct Broken {
    dir: PathBuf,
    copy: PathBuf,
}

impl Broken {
    fn path(&self) -> &Path {
        &self.copy
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn suite(cli: &Cli) -> Result<bool> {
    let exe = std::env::current_exe()
        .map_err(|e| Diagnostic::new(ErrorKind::Io, format!("cannot find this program: {e}")))?;
    let work = std::env::temp_dir().join(format!("hip-test-suite-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let mut all = true;
    for case in &cli.paths {
        let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (outcome, reason) = match suite_case(cli, case, &exe, &work) {
            Ok(r) => r,
            Err(e) => ("error", e.to_string()),
        };
        all &= outcome == "pass";
        if cli.json_lines {
            say!("{}", json!({"case": name, "outcome": outcome, "reason": reason}));
        } else {
            say!("{outcome:8} {name} {}", reason.lines().next().unwrap_or(""));
        }
    }
    let _ = std::fs::remove_dir_all(&work);
    Ok(all)
}

/// Compiles a case here, runs it in a process of its own.
fn suite_case(cli: &Cli, case: &Path, exe: &Path, work: &Path) -> Result<(&'static str, String)> {
    let choice = cli.sabotage.as_deref().map(Choice::parse).transpose()?;
    let (mut hooks, found) = choice.map(sabotage::hooks).unwrap_or_default();
    let mut compile = || Compiler::new().compile_with(tool::read_model(&case.join("model.onnx"))?, &mut hooks);
    let compiled = match compile() {
        Ok(c) => c,
        Err(e) => return Ok(("refused", e.to_string())),
    };
    let inside = choice.is_some_and(|c| !matches!(c.kind, Kind::Weight | Kind::Expected));
    let mut what = found.lock().map(|f| f.what.clone()).unwrap_or_default();
    if inside && what.is_empty() {
        return Ok(("none", "nothing to break".into()));
    }
    let artifact = work.join("case.hipep");
    compiled.save(&artifact)?;
    let mut sets: Vec<PathBuf> = std::fs::read_dir(case)?.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
    sets.sort();
    if sets.is_empty() {
        return Ok(("error", format!("no data: {} has no folder test_data_set_N", case.display())));
    }
    let compares = |s: &PathBuf| ["output_0.pb", "exact_0.pb"].iter().any(|f| s.join(f).exists());
    if let Some(s) = sets.iter().find(|s| !compares(s)) {
        return Ok(("error", format!("no data: {} has no output_0.pb to compare with", s.display())));
    }
    let tolerance =
        std::fs::read_to_string(case.join("tolerance.json")).ok().and_then(|t| serde_json::from_str::<Value>(&t).ok());
    let number = |key: &str, default: f64| tolerance.as_ref().and_then(|t| t[key].as_f64()).unwrap_or(default);
    let mut c = Command::new(exe);
    let (rel, abs) = (number("rtol", 1e-3), number("atol", 1e-7));
    // The suite's own runner takes at least two last places of bf16 for outputs of that type.
    let of_bf16 = rel.max((-6f64).exp2());
    c.arg(&artifact).args(["--json", "--device", &cli.device]);
    // A case may ask for the tolerances of its element types instead of one for all.
    if tolerance.as_ref().is_none_or(|t| t["by"] != "dtype") {
        c.args(["--tolerance", &format!("{rel},{abs},{of_bf16}")]);
    }
    sets.iter().for_each(|s| {
        c.arg("--data-dir").arg(s);
    });
    if let Some(kind) = cli.sabotage.as_ref().filter(|_| !inside) {
        c.args(["--sabotage", kind]);
    }
    let out = c.output()?;
    let doc: Value = match serde_json::from_slice(&out.stdout) {
        Ok(v) => v,
        Err(_) => {
            let err = String::from_utf8_lossy(&out.stderr).trim().to_string();
            return Ok((if out.status.code().is_some() { "error" } else { "crash" }, format!("{}: {err}", out.status)));
        }
    };
    if let Some(broken) = doc["sabotage"]["what"].as_str() {
        if broken.is_empty() {
            return Ok(("none", "nothing to break".into()));
        }
        what = broken.into();
    }
    if doc["passed"] == true && doc["compared"].as_u64().is_some_and(|n| n > 0) {
        return Ok(("pass", what));
    }
    Ok(("wrong", doc["problems"].to_string()))
}
