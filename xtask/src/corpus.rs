//! Compiles real models once, saves them, and runs the artifact in fresh processes over several shapes against onnxruntime.
//!
//! Per model: test data from onnxruntime (20 shapes where dims are dynamic), `hip-compiler`, then `hip-test` on `cpu` and `guard`, with
//! one thread and all, as JIT and as shared object. A set passes when every output is within tolerance of onnxruntime's and
//! its error against the f64 interpreter is at most twice onnxruntime's own plus a floor of the dtype.

use crate::{models, setup, sh};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// Models; none for the pinned subset.
    names: Vec<String>,
    /// Every model of the list.
    #[arg(long)]
    all: bool,
    /// Shapes per model with dynamic dims.
    #[arg(long, default_value_t = 20)]
    shapes: u32,
    /// Compare with the f64 interpreter on this many of the shapes.
    #[arg(long, default_value_t = 20)]
    reference: u32,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Break each compiled model on purpose and require that the comparison notices.
    #[arg(long)]
    sabotage: bool,
}

impl Args {
    /// What CI runs.
    pub fn ci() -> Args {
        Args { names: vec![], all: false, shapes: 3, reference: 3, json: false, sabotage: false }
    }
}

/// Ways to break an artifact that `hip-test --sabotage` knows.
const SABOTAGES: &[&str] = &["weight", "operands", "pool"];

/// Runs a tool that prints one JSON document and returns it.
fn tool(cmd: &mut Command) -> Result<Value> {
    let out = sh::output(cmd)?;
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text)
        .with_context(|| format!("{} ({}): {}", sh::show(cmd), out.status, String::from_utf8_lossy(&out.stderr).trim()))
}

pub fn run(args: &Args) -> Result<()> {
    let bin = sh::tools()?;
    let picked = if args.all { models::list()? } else { models::pick(&args.names)? };
    let mut rows = Vec::new();
    for m in &picked {
        let row = model(args, m, &bin)
            .unwrap_or_else(|e| json!({"model": m.name, "passed": false, "error": format!("{e:#}")}));
        if !args.json {
            print_row(&row);
        }
        rows.push(row);
    }
    let passed = rows.iter().filter(|r| r["passed"] == true).count();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json!({"passed": passed, "models": rows}))?);
    } else {
        println!("{passed} passed, {} failed", rows.len() - passed);
    }
    if rows.is_empty() {
        bail!("no model was tested");
    }
    if args.sabotage {
        return sabotage_verdict(&rows);
    }
    if passed < rows.len() { bail!("{} models failed", rows.len() - passed) } else { Ok(()) }
}

fn print_row(r: &Value) {
    let name = r["model"].as_str().unwrap_or("?");
    if let Some(e) = r["error"].as_str() {
        return println!("FAIL {name:20} {e}");
    }
    let verdict = if r["passed"] == true { "ok  " } else { "FAIL" };
    println!(
        "{verdict} {name:20} compile {:>5} ms, {:>2} sets, worst error {:.1e} of the tolerance {:.0e}, host ops {}, {}",
        r["compile_ms"],
        r["sets"],
        r["worst"].as_f64().unwrap_or(f64::NAN),
        r["tolerance"].as_f64().unwrap_or(f64::NAN),
        r["host_ops"],
        r["detail"].as_str().unwrap_or("")
    );
}

fn model(args: &Args, m: &models::Model, bin: &Path) -> Result<Value> {
    let path = models::fetch(m)?;
    let dir = sh::target().join("corpus").join(&m.name);
    let sets = data(args, m, &path, &dir)?;
    let artifact = dir.join("model.hipep");
    let start = Instant::now();
    sh::read(Command::new(bin.join("hip-compiler")).arg(&path).arg("-o").arg(&artifact))?;
    let compile_ms = start.elapsed().as_millis() as u64;
    let native = dir.join("model.so");
    sh::read(Command::new(bin.join("hip-compiler")).arg(&path).args(["--mode", "native", "-o"]).arg(&native))?;
    if args.sabotage {
        return sabotage(m, bin, &artifact, &sets);
    }
    let before = hash(&artifact)?;
    let test = |extra: &[&str], file: &Path, sets: &[PathBuf]| {
        let mut c = Command::new(bin.join("hip-test"));
        c.arg(file).arg("--json").args(extra);
        sets.iter().for_each(|s| {
            c.arg("--data-dir").arg(s);
        });
        tool(&mut c)
    };
    let cpu = test(&["--device", "cpu", "--digest"], &artifact, &sets)?;
    let guard = test(&["--device", "guard", "--digest"], &artifact, &sets)?;
    let solo = test(&["--device", "cpu", "--threads", "1", "--digest"], &artifact, &sets)?;
    let so = test(&["--device", "cpu", "--digest"], &native, &sets)?;
    let mut problems = Vec::new();
    let mut expect = |ok: bool, what: &str| {
        if !ok {
            problems.push(what.to_string());
        }
    };
    // In half precision two right answers differ by more than a tolerance from one another: the interpreter decides below.
    let half = cpu["outputs"].as_array().is_some_and(|o| o.iter().any(|o| o["dtype"] == "f16" || o["dtype"] == "bf16"));
    expect(cpu["passed"] == true || half, "outputs differ from onnxruntime");
    expect(cpu["digest"] == solo["digest"], "one thread and all threads differ in bits");
    expect(cpu["digest"] == so["digest"], "JIT and shared object differ in bits");
    expect(cpu["digest"] == guard["digest"], "cpu and guard differ in bits");
    expect(cpu["host_ops"] == 0, "host ops ran");
    expect(hash(&artifact)? == before, "the artifact changed");
    let mut ratio = Value::Null;
    let reference = if half { sets.len() } else { args.reference as usize };
    if reference > 0 {
        let n = sets.len().min(reference);
        let mut c = Command::new(bin.join("hip-onnx-runner"));
        c.arg(&path).args(["--json", "--compare", "reference"]);
        sets[..n].iter().for_each(|s| {
            c.arg("--data-dir").arg(s);
        });
        let r = tool(&mut c)?;
        expect(r["passed"] == true, "error against the interpreter is beyond twice onnxruntime's");
        ratio = r["worst_ratio"].clone();
    }
    Ok(json!({
        "model": m.name, "passed": problems.is_empty(), "compile_ms": compile_ms, "sets": sets.len(), "worst": cpu["worst"],
        "tolerance": cpu["tolerance"], "host_ops": cpu["host_ops"], "profile": cpu["counters"], "error_ratio": ratio, "detail": problems.join("; "),
    }))
}

/// Test data of the model, made once per number of shapes.
fn data(args: &Args, m: &models::Model, path: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    let data = dir.join(format!("data-{}", args.shapes));
    let done = data.join("done.json");
    if !done.exists() {
        std::fs::create_dir_all(&data)?;
        let spec = data.join("spec.json");
        std::fs::write(&spec, m.json()?)?;
        let mut c = Command::new(setup::python()?);
        c.arg("xtask/py/reference.py").arg(path).arg(&spec).arg(&data).args([&args.shapes.to_string(), "7"]);
        let out = sh::read(&mut c)?;
        let report: Value = serde_json::from_str(out.trim())?;
        if report["sets"].as_array().is_none_or(Vec::is_empty) {
            bail!("onnxruntime ran no shape: {}", report["error"]);
        }
        std::fs::write(&done, out)?;
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(done)?)?;
    let n = report["sets"].as_array().map_or(0, Vec::len);
    Ok((0..n).map(|i| data.join(format!("test_data_set_{i}"))).collect())
}

fn hash(path: &Path) -> Result<String> {
    Ok(blake3::hash(&std::fs::read(path)?).to_hex().to_string())
}

fn sabotage(m: &models::Model, bin: &Path, artifact: &Path, sets: &[PathBuf]) -> Result<Value> {
    let mut noticed = serde_json::Map::new();
    for kind in SABOTAGES {
        let mut c = Command::new(bin.join("hip-test"));
        c.arg(artifact).args(["--json", "--sabotage", kind]).arg("--data-dir").arg(&sets[0]);
        let r = tool(&mut c)?;
        noticed.insert((*kind).into(), json!(r["passed"] == false));
    }
    Ok(
        json!({"model": m.name, "passed": noticed.values().all(|v| v == true), "sabotage": noticed, "detail": format!("{noticed:?}")}),
    )
}

/// At least 95 % of all breaks must be noticed; the others are listed.
fn sabotage_verdict(rows: &[Value]) -> Result<()> {
    let (mut n, mut seen) = (0, 0);
    for r in rows {
        let Some(kinds) = r["sabotage"].as_object() else { bail!("{}: {}", r["model"], r["error"]) };
        for (kind, v) in kinds {
            n += 1;
            if v == true { seen += 1 } else { println!("insensitive: {} to {kind}", r["model"]) }
        }
    }
    println!("{seen} of {n} breaks noticed");
    if n == 0 || seen * 100 < n * 95 { bail!("fewer than 95 % of the breaks were noticed") } else { Ok(()) }
}
