//! Loads an artifact through the same path as every other user of the runtime, runs it on given data, compares, times.

use clap::Parser;
use hip_ep::artifact::Source;
use hip_ep::tool;
use hip_ep::tool::data::{self, DataSet};
use hip_ep::tool::verdict::{self, Rule};
use hip_ep::{
    CompiledModel, Compiler, DeviceKind, Diagnostic, ErrorKind, Result, RunInputs, RunOptions, Session, SessionOptions,
    Tensor,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

#[derive(Parser)]
#[command(version, about = "Run an artifact (or shared object) on given data, compare with expected outputs, time it")]
struct Cli {
    /// The artifact; with --suite, folders of cases (model.onnx and test_data_set_N).
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Folder with input_N.pb and output_N.pb; may be repeated.
    #[arg(long, value_name = "DIR")]
    data_dir: Vec<PathBuf>,
    /// An input from a .pb or .npy file; may be repeated. Others are random.
    #[arg(long, value_name = "NAME=FILE")]
    input: Vec<String>,
    /// Shape of a random input: NAME=1x3x224x224; may be repeated.
    #[arg(long, value_name = "NAME=SHAPE")]
    shape: Vec<String>,
    /// Seed of random inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// cpu, guard or null.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads; all by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Timed runs per data set, after one that is not.
    #[arg(long, default_value_t = 0)]
    repeat: u32,
    /// Relative and absolute tolerance for each element, as `rtol,atol`; by default by dtype, relative to the greatest value.
    #[arg(long)]
    tolerance: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    /// With --suite: one JSON line per case as it ends.
    #[arg(long)]
    json_lines: bool,
    /// Print a hash of all outputs' bits.
    #[arg(long)]
    digest: bool,
    /// Print the values of outputs.
    #[arg(long)]
    values: bool,
    /// Print the time of every op.
    #[arg(long)]
    profile: bool,
    /// Write a Chrome trace of the last run.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Paths are cases of the ONNX backend suite: each is compiled, saved, and run in a process of its own.
    #[arg(long)]
    suite: bool,
    /// Break something on purpose: the comparison must fail. weight: largest weight off by 1 %; operands: first two inputs of one type
    /// swapped or the only one reversed; pool: constants shifted by one element; expected: expected outputs changed.
    #[arg(long, value_name = "KIND", value_parser = ["weight", "operands", "pool", "expected"])]
    sabotage: Option<String>,
}

fn main() -> ExitCode {
    tool::init_log();
    let cli = Cli::parse();
    tool::exit(if cli.suite { suite(&cli) } else { one(&cli) })
}

/// Result of all runs of one artifact.
#[derive(Default)]
struct Outcome {
    problems: Vec<String>,
    worst: f64,
    worst_error: f64,
    tolerance: f64,
    outputs: Vec<(String, Tensor)>,
    digests: Vec<String>,
    times_us: Vec<f64>,
    counters: Value,
    host_ops: u64,
    profile: Option<hip_ep::runtime::Profile>,
    n_sets: usize,
}

fn one(cli: &Cli) -> Result<bool> {
    let path = &cli.paths[0];
    let broken;
    let path = match cli.sabotage.as_deref() {
        Some(kind @ ("weight" | "pool")) => {
            broken = break_constants(path, kind)?;
            broken.path()
        }
        _ => path.as_path(),
    };
    let model = CompiledModel::load(path)?;
    let mut options = SessionOptions::default();
    options.threads = cli.threads;
    let session = model.session(DeviceKind::parse(&cli.device)?, options)?;
    let rule = match &cli.tolerance {
        None => Rule::Dtype,
        Some(t) => {
            let numbers: Vec<f64> = t.split(',').filter_map(|x| x.parse().ok()).collect();
            let [rtol, atol] = numbers[..] else {
                return Err(Diagnostic::new(ErrorKind::Argument, format!("--tolerance {t:?} is not rtol,atol")));
            };
            Rule::Suite { rtol, atol }
        }
    };
    let mut o = Outcome::default();
    let sets = if cli.data_dir.is_empty() {
        let inputs = data::inputs(session.inputs(), &cli.input, &cli.shape, cli.seed)?;
        vec![DataSet { inputs, outputs: vec![] }]
    } else {
        cli.data_dir.iter().map(|d| DataSet::read(d)).collect::<Result<_>>()?
    };
    for set in sets {
        run_set(cli, &session, set, rule, &mut o)?;
    }
    report(cli, &o)?;
    Ok(o.problems.is_empty())
}

fn run_set(cli: &Cli, session: &Session, mut set: DataSet, rule: Rule, o: &mut Outcome) -> Result<()> {
    match cli.sabotage.as_deref() {
        Some("operands") => swap_operands(&mut set.inputs),
        Some("expected") => set.outputs.iter_mut().for_each(|(_, t)| *t = changed(t)),
        _ => {}
    }
    let tensors: Vec<Tensor> = set.inputs.iter().map(|(_, t)| t.clone()).collect();
    let ports = session.inputs();
    // Files carry names; those without go by position.
    let by_name = set.inputs.iter().all(|(n, _)| ports.iter().any(|p| p.name == *n));
    let mut inputs = RunInputs::new();
    for (i, ((name, _), t)) in set.inputs.iter().zip(&tensors).enumerate() {
        if by_name {
            inputs.tensor(name, t)
        } else {
            inputs.at(i, t.view())
        };
    }
    let mut options = RunOptions::default();
    options.profile = cli.profile || cli.trace.is_some();
    let (outputs, report) = session.collect(&inputs, &options)?;
    for _ in 0..cli.repeat {
        let start = Instant::now();
        let (again, _) = session.collect(&inputs, &RunOptions::default())?;
        o.times_us.push(start.elapsed().as_secs_f64() * 1e6);
        if verdict::digest(&again) != verdict::digest(&outputs) {
            o.problems.push("a repeated run gave other bits".into());
        }
    }
    for (i, (name, want)) in set.outputs.iter().enumerate() {
        let at = session.outputs().iter().position(|p| p.name == *name).unwrap_or(i);
        let Some(got) = outputs.get(at) else {
            o.problems.push(format!("set {}: the model has no output {i} {name:?}", o.n_sets));
            continue;
        };
        o.tolerance = o.tolerance.max(verdict::tolerance(want.dtype()));
        match verdict::compare(got, want, rule) {
            Ok((share, error)) => {
                o.worst = o.worst.max(share);
                o.worst_error = o.worst_error.max(error);
                if share > 1.0 {
                    o.problems.push(format!("set {}: output {name:?} is off by {error:.2e} of its greatest value, {share:.1} times what is allowed", o.n_sets));
                }
            }
            Err(e) => {
                o.worst = f64::INFINITY;
                o.problems.push(format!("set {}: output {name:?}: {e}", o.n_sets));
            }
        }
    }
    let c = &report.counters;
    o.host_ops += c.host_ops;
    o.counters = json!({
        "launches": c.launches, "kernel_calls": c.kernel_calls, "host_ops": c.host_ops, "copies": c.copies, "copied_bytes": c.copied_bytes,
        "syncs": c.syncs, "pool_growths": c.pool_growths, "outputs": c.outputs, "input_copies": c.input_copies,
    });
    o.profile = report.profile.or(o.profile.take());
    o.digests.push(verdict::digest(&outputs));
    let names = session.outputs().iter().map(|p| p.name.clone());
    o.outputs = names.zip(outputs).collect();
    o.n_sets += 1;
    Ok(())
}

fn median(v: &[f64]) -> Option<f64> {
    let mut v = v.to_vec();
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied()
}

fn report(cli: &Cli, o: &Outcome) -> Result<()> {
    if let (Some(path), Some(p)) = (&cli.trace, &o.profile) {
        std::fs::write(path, p.chrome_trace())
            .map_err(|e| Diagnostic::new(ErrorKind::Io, format!("cannot write {}: {e}", path.display())))?;
    }
    if cli.json {
        let outputs: Vec<Value> = o.outputs.iter().map(|(n, t)| verdict::to_json(n, t, cli.values)).collect();
        let doc = json!({
            "passed": o.problems.is_empty(), "problems": o.problems, "sets": o.n_sets, "worst": o.worst_error, "share": o.worst,
            "tolerance": o.tolerance, "outputs": outputs, "digest": cli.digest.then(|| o.digests.join(" ")),
            "median_us": median(&o.times_us).map(|t| t.round()), "counters": o.counters, "host_ops": o.host_ops,
        });
        println!("{doc}");
        return Ok(());
    }
    for (name, t) in &o.outputs {
        println!("{name}: {t:?}");
    }
    if let Some(t) = median(&o.times_us) {
        println!("median {t:.0} µs over {} runs", o.times_us.len());
    }
    if cli.profile
        && let Some(p) = &o.profile
    {
        println!("{}", p.table(30));
        println!("counters {}", o.counters);
    }
    if cli.digest {
        println!("digest {}", o.digests.join(" "));
    }
    for p in &o.problems {
        println!("FAIL {p}");
    }
    if !cli.data_dir.is_empty() {
        println!(
            "{} sets, worst error {:.2e}: {}",
            o.n_sets,
            o.worst_error,
            if o.problems.is_empty() { "ok" } else { "FAILED" }
        );
    }
    Ok(())
}

/// Two inputs of one dtype and shape swapped; else the first input with more than one element reversed.
fn swap_operands(inputs: &mut [(String, Tensor)]) {
    for i in 0..inputs.len() {
        for j in i + 1..inputs.len() {
            let (a, b) = (&inputs[i].1, &inputs[j].1);
            if a.dtype() == b.dtype() && a.shape() == b.shape() && a != b {
                let t = a.clone();
                inputs[i].1 = b.clone();
                inputs[j].1 = t;
                return;
            }
        }
    }
    if let Some((_, t)) = inputs.iter_mut().find(|(_, t)| t.n_elems() > 1 && t.dtype().size().is_some()) {
        let size = t.dtype().size().unwrap_or(1);
        let mut bytes: Vec<u8> = t.bytes().chunks(size).rev().flatten().copied().collect();
        // A tensor that reads the same backwards is shifted by one element instead.
        if bytes == t.bytes()[..] {
            bytes.rotate_left(size);
        }
        if let Ok(r) = Tensor::new(t.dtype(), t.shape(), bytes.into()) {
            *t = r;
        }
    }
}

/// An expected output that no right answer is close to.
fn changed(t: &Tensor) -> Tensor {
    if t.dtype() == hip_ep::DType::String {
        return Tensor::from_strings(t.shape(), t.strings().iter().map(|s| format!("{s}?")).collect());
    }
    if t.n_elems() == 0 {
        return Tensor::zeros(t.dtype(), &[1]).unwrap_or_else(|_| t.clone());
    }
    let mut bytes = t.bytes().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x41;
    Tensor::new(t.dtype(), t.shape(), bytes.into()).unwrap_or_else(|_| t.clone())
}

/// A copy of the artifact whose constants are broken.
fn break_constants(path: &Path, kind: &str) -> Result<Broken> {
    let io = |e: std::io::Error| Diagnostic::new(ErrorKind::Io, format!("cannot copy {}: {e}", path.display()));
    let dir = std::env::temp_dir().join(format!("hip-test-{}-{kind}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(io)?;
    let copy = dir.join(path.file_name().unwrap_or_default());
    std::fs::copy(path, &copy).map_err(io)?;
    let model = CompiledModel::load(path)?;
    let mut bytes = std::fs::read(hip_ep::artifact::constants_path(path)).map_err(io)?;
    let metadata = model.metadata();
    // The largest float constants feed the most arithmetic; every one of them is broken, since one alone may be dead for some input.
    for c in &metadata.constants {
        let (Some(Source::Offset(at)), Ok(dtype)) = (&c.source, c.dtype()) else { continue };
        let (at, n) = (usize::try_from(*at).unwrap_or(0), usize::try_from(c.bytes).unwrap_or(0));
        let Some(slice) = bytes.get_mut(at..at + n) else { continue };
        match (kind, dtype) {
            ("pool", _) if n > 0 => slice.rotate_left(dtype.size().unwrap_or(1).min(n)),
            ("weight", hip_ep::DType::F32) => slice.chunks_exact_mut(4).for_each(|b| {
                let v = f32::from_le_bytes([b[0], b[1], b[2], b[3]]) * 1.01;
                b.copy_from_slice(&v.to_le_bytes());
            }),
            ("weight", hip_ep::DType::F16) => slice.chunks_exact_mut(2).for_each(|b| {
                let v = half::f16::from_f32(half::f16::from_le_bytes([b[0], b[1]]).to_f32() * 1.01);
                b.copy_from_slice(&v.to_le_bytes());
            }),
            _ => {}
        }
    }
    std::fs::write(hip_ep::artifact::constants_path(&copy), bytes).map_err(io)?;
    Ok(Broken { dir, copy })
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
            println!("{}", json!({"case": name, "outcome": outcome, "reason": reason}));
        } else {
            println!("{outcome:8} {name} {}", reason.lines().next().unwrap_or(""));
        }
    }
    let _ = std::fs::remove_dir_all(&work);
    Ok(all)
}

/// Compiles a case here, runs it in a process of its own.
fn suite_case(cli: &Cli, case: &Path, exe: &Path, work: &Path) -> Result<(&'static str, String)> {
    let compiled = match Compiler::new().compile_path(case.join("model.onnx")) {
        Ok(c) => c,
        Err(e) => return Ok(("refused", e.to_string())),
    };
    let artifact = work.join("case.hipep");
    compiled.save(&artifact)?;
    let mut sets: Vec<PathBuf> = std::fs::read_dir(case)?.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
    sets.sort();
    let tolerance =
        std::fs::read_to_string(case.join("tolerance.json")).ok().and_then(|t| serde_json::from_str::<Value>(&t).ok());
    let number = |key: &str, default: f64| tolerance.as_ref().and_then(|t| t[key].as_f64()).unwrap_or(default);
    let mut c = Command::new(exe);
    c.arg(&artifact).args(["--json", "--tolerance", &format!("{},{}", number("rtol", 1e-3), number("atol", 1e-7))]);
    sets.iter().for_each(|s| {
        c.arg("--data-dir").arg(s);
    });
    if let Some(kind) = &cli.sabotage {
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
    if doc["passed"] == true && doc["sets"].as_u64().is_some_and(|n| n > 0) {
        return Ok(("pass", String::new()));
    }
    Ok(("wrong", doc["problems"].to_string()))
}
