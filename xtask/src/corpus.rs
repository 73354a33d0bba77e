//! Compiles real models once, saves them, and runs the artifact in fresh processes over several shapes against onnxruntime.
//!
//! Per model: test data from onnxruntime (20 shapes where dims are dynamic), `hip-compiler`, then `hip-test` on `cpu` and `guard`, with
//! one thread and all, as JIT and as shared object. A set passes when every output is within tolerance of onnxruntime's and
//! its error against the f64 interpreter is at most twice onnxruntime's own plus a floor of the dtype; of models that the list marks as
//! `quantised` or with `ties`, the second alone decides (`hip-test --judge`). The model compiled without
//! `rewrite` and without the dim e-graph (`refine` and `guards`) must pass as well. The pools of up to three shapes hold at most 1.15 times what lives in them.
//!
//! `--sabotage` breaks compiled models in several places of each kind; the same comparison must notice.

use crate::breaks::Tally;
use crate::measure::{both_runs, compiler, data, inspect, interpret, is_half, judge, test, tool};
use crate::{models, sh};
use anyhow::{Result, bail};
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
    /// Compare with the f64 interpreter on this many of the shapes (all of a model in half precision).
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

/// Ways to break a model while it is compiled.
const WHEN_COMPILED: &[&str] = &["epilogue", "operands", "pool"];
/// Builds with passes left out: those of the e-graph, and both that use the dim e-graph.
const WITHOUT: &[(&str, &[&str])] =
    &[("rewrite", &["--disable", "rewrite"]), ("refine", &["--disable", "refine", "--disable", "guards"])];
/// Weights that are put off by 1 %, one at a time: the largest.
const N_WEIGHTS: usize = 5;
/// How many times as many shapes are drawn of a model that rounds to steps between layers.
const DRAWS: u32 = 3;
/// Shapes at which the passes left out, the pools and the breaks are looked at.
const FEW: usize = 3;

pub fn run(args: &Args) -> Result<()> {
    let bin = sh::tools()?;
    let picked = if args.all { models::list()? } else { models::pick(&args.names)? };
    let (mut rows, mut tally) = (Vec::new(), Tally::default());
    for m in &picked {
        let row = model(args, m, &bin, &mut tally)
            .unwrap_or_else(|e| json!({"model": m.name, "passed": false, "error": format!("{e:#}")}));
        if !args.json {
            print_row(&row);
        }
        rows.push(row);
    }
    let passed = rows.iter().filter(|r| r["passed"] == true).count();
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&json!({"passed": passed, "sabotage": tally.json(), "models": rows}))?
        );
    } else {
        println!("{passed} passed, {} failed", rows.len() - passed);
    }
    if rows.is_empty() {
        bail!("no model was tested");
    }
    if passed < rows.len() {
        bail!("{} models failed", rows.len() - passed);
    }
    if args.sabotage {
        return tally.verdict();
    }
    // Of chosen models nothing is known; of the whole list or the pinned part it must hold.
    let helped: Vec<&str> = rows.iter().filter(|r| lost_by_refine(r)).filter_map(|r| r["model"].as_str()).collect();
    if args.names.is_empty() && helped.is_empty() {
        bail!("no model loses a guard or a copy by the passes refine and guards");
    }
    if !args.json {
        println!("models that lose a guard or a copy by refine and guards: {}", helped.join(", "));
    }
    Ok(())
}

/// Whether the default build has fewer guards or copies than the one without the dim e-graph.
fn lost_by_refine(row: &Value) -> bool {
    ["guards", "copies"].iter().any(|what| {
        let n = |build: &str| row["builds"][build][what].as_u64();
        n("default").zip(n("refine")).is_some_and(|(with, without)| with < without)
    })
}

fn print_row(r: &Value) {
    let name = r["model"].as_str().unwrap_or("?");
    if let Some(e) = r["error"].as_str() {
        return println!("FAIL {name:20} {e}");
    }
    let verdict = if r["passed"] == true { "ok  " } else { "FAIL" };
    if let Some(s) = r["sabotage"].as_str() {
        return println!("{verdict} {name:20} noticed: {s} {}", r["detail"].as_str().unwrap_or(""));
    }
    println!(
        "{verdict} {name:20} compile {:>5} ms, {:>2} sets, worst error {:.1e} of the tolerance {:.0e}, {:.2} of what the interpreter allows, host ops {}, {}",
        r["compile_ms"],
        r["sets"],
        r["worst"].as_f64().unwrap_or(f64::NAN),
        r["tolerance"].as_f64().unwrap_or(f64::NAN),
        r["exact_share"].as_f64().unwrap_or(f64::NAN),
        r["host_ops"],
        r["detail"].as_str().unwrap_or("")
    );
    let n = |what: &str| {
        let of = |build: &str| r["builds"][build][what].to_string();
        format!("{what} {} ({} without refine, {} without rewrite)", of("default"), of("refine"), of("rewrite"))
    };
    println!("     {}, {}, {}", n("guards"), n("copies"), n("launches"));
    let pools: Vec<String> = r["pools"].as_array().into_iter().flatten().map(pool_text).collect();
    println!("     pools: {}", pools.join("; "));
}

fn pool_text(p: &Value) -> String {
    match p["error"].as_str() {
        Some(e) => e.into(),
        None => format!("{} of {} live bytes = {:.3}", p["peak"], p["live"], pool_ratio(p)),
    }
}

fn pool_ratio(p: &Value) -> f64 {
    match (p["peak"].as_f64(), p["live"].as_f64()) {
        (Some(peak), Some(live)) if live > 0.0 => peak / live,
        (Some(0.0), Some(_)) => 1.0,
        _ => f64::INFINITY,
    }
}

fn compile(bin: &Path, model: &Path, output: &Path, extra: &[&str]) -> Result<String> {
    sh::read(compiler(bin, model, output).args(extra))
}

fn model(args: &Args, m: &models::Model, bin: &Path, tally: &mut Tally) -> Result<Value> {
    let path = models::fetch(m)?;
    let dir = sh::target().join("corpus").join(&m.name);
    let (judge, together) = (judge(m), m.flag("quantised") == Some(true));
    // Where right results differ by chance, more shapes and both of onnxruntime's runs show how far.
    let shapes = match together {
        true => both_runs(m, &path, args.shapes * DRAWS, &dir)?,
        false => data(m, &path, args.shapes, &dir, &[])?.into_iter().map(|s| vec![s]).collect(),
    };
    let sets = shapes.concat();
    let artifact = dir.join("model.hipep");
    let start = Instant::now();
    compile(bin, &path, &artifact, &[])?;
    let compile_ms = start.elapsed().as_millis() as u64;
    let default = inspect(bin, &artifact)?;
    let all = is_half(&default) || !judge.is_empty();
    let n_exact = if all { shapes.len() } else { shapes.len().min(args.reference as usize) };
    interpret(bin, &path, &shapes, n_exact)?;
    let few = if together { &sets[..] } else { &sets[..sets.len().min(FEW)] };
    if args.sabotage {
        return sabotage(m, bin, &path, &artifact, (few, judge), tally);
    }
    let native = dir.join("model.so");
    compile(bin, &path, &native, &["--mode", "native"])?;
    let before = hash(&artifact)?;
    let cpu = test(bin, &artifact, &sets, &[&["--device", "cpu", "--digest"], judge].concat())?;
    let guard = test(bin, &artifact, &sets, &[&["--device", "guard", "--digest"], judge].concat())?;
    let solo = test(bin, &artifact, &sets, &[&["--device", "cpu", "--threads", "1", "--digest"], judge].concat())?;
    let so = test(bin, &native, &sets, &[&["--device", "cpu", "--digest"], judge].concat())?;
    let mut problems = Vec::new();
    let mut expect = |ok: bool, what: &str| {
        if !ok {
            problems.push(what.to_string());
        }
    };
    expect(cpu["passed"] == true, &format!("outputs are wrong: {}", cpu["problems"]));
    expect(n_exact == 0 || cpu["exact_share"].is_number(), "nothing was compared with the interpreter");
    expect(cpu["digest"] == solo["digest"], "one thread and all threads differ in bits");
    expect(cpu["digest"] == so["digest"], "JIT and shared object differ in bits");
    expect(cpu["digest"] == guard["digest"], "cpu and guard differ in bits");
    expect(cpu["host_ops"] == 0, "host ops ran");
    expect(hash(&artifact)? == before, "the artifact changed");
    let mut builds = json!({"default": counts(&default, &test(bin, &artifact, few, judge)?)});
    for (pass, flags) in WITHOUT {
        let other = dir.join(format!("no-{pass}.hipep"));
        compile(bin, &path, &other, flags)?;
        let run = test(bin, &other, few, judge)?;
        expect(run["passed"] == true, &format!("without {pass} outputs are wrong: {}", run["problems"]));
        builds[*pass] = counts(&inspect(bin, &other)?, &run);
    }
    let mut c = Command::new(bin.join("hip-opt"));
    c.arg(&path).args(["--pipeline", "host", "--emit", "none"]);
    few.iter().for_each(|s| {
        c.arg("--pools").arg(s);
    });
    let pools = tool(&mut c)?;
    for p in pools.as_array().into_iter().flatten() {
        // Where a loop ends by a condition, only the run knows the sizes.
        let unknown = p["error"].as_str().is_some_and(|e| e.contains("has no value"));
        expect(unknown || pool_ratio(p) <= 1.15, &format!("pools: {}", pool_text(p)));
    }
    expect(pools.as_array().is_some_and(|p| p.len() == few.len()), "no pool was measured");
    Ok(json!({
        "model": m.name, "passed": problems.is_empty(), "compile_ms": compile_ms, "sets": sets.len(), "worst": cpu["worst"],
        "tolerance": cpu["tolerance"], "host_ops": cpu["host_ops"], "profile": cpu["counters"], "exact_share": cpu["exact_share"],
        "builds": builds, "pools": pools, "detail": problems.join("; "),
    }))
}

/// Guards of the artifact; copies, launches and kernel calls of its last run.
fn counts(metadata: &Value, run: &Value) -> Value {
    let guards = metadata["guards"].as_array().map_or(0, Vec::len);
    let n = |what: &str| run["counters"][what].as_u64().unwrap_or(0);
    json!({"guards": guards, "copies": n("copies"), "launches": n("launches") + n("kernel_calls")})
}

fn hash(path: &Path) -> Result<String> {
    Ok(blake3::hash(&std::fs::read(path)?).to_hex().to_string())
}

/// Breaks the model in several ways and asks whether the comparison with onnxruntime and the interpreter sees it.
fn sabotage(
    m: &models::Model,
    bin: &Path,
    path: &Path,
    artifact: &Path,
    (sets, judge): (&[PathBuf], &[&str]),
    tally: &mut Tally,
) -> Result<Value> {
    let whole = test(bin, artifact, sets, judge)?;
    if whole["passed"] != true {
        bail!("it is wrong before it is broken: {}", whole["problems"]);
    }
    let mut mine = Tally::default();
    let broken = artifact.with_extension("broken.hipep");
    for kind in WHEN_COMPILED {
        let make = |n: usize| -> Result<Value> {
            Ok(serde_json::from_str(compile(bin, path, &broken, &["--sabotage", &format!("{kind}:{n}")])?.trim())?)
        };
        let places = make(0)?["places"].as_u64().unwrap_or(0) as usize;
        if places == 0 {
            mine.none(kind, &m.name);
        }
        let mut chosen = vec![0, places / 2, places.saturating_sub(1)];
        chosen.dedup();
        for n in chosen.into_iter().filter(|&n| n < places) {
            let what = make(n)?["what"].as_str().unwrap_or("?").to_string();
            // A break may also make the run fail; then there are no outputs to compare, and nothing to overlook.
            let noticed = test(bin, &broken, sets, judge).map_or(true, |r| r["passed"] == false);
            mine.made(kind, &m.name, &what, noticed);
        }
    }
    for n in 0..N_WEIGHTS {
        let r = test(bin, artifact, sets, &[&["--sabotage", &format!("weight:{n}")], judge].concat())?;
        match r["sabotage"]["what"].as_str() {
            Some(what) if !what.is_empty() => mine.made("weight", &m.name, what, r["passed"] == false),
            _ if n == 0 => mine.none("weight", &m.name),
            _ => {}
        }
    }
    let r = test(bin, artifact, sets, &[&["--sabotage", "expected"], judge].concat())?;
    mine.made("expected", &m.name, "the expected outputs", r["passed"] == false);
    let line = mine.line();
    tally.add(mine);
    Ok(json!({"model": m.name, "passed": true, "sabotage": line}))
}
