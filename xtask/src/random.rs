//! Random models: made from the operator rows, compiled to artifacts, run by `hip-test` in fresh processes, compared with the interpreter
//! and, where it runs them, with onnxruntime, at the ceilings of the element types.
//!
//! Most random models are made of what onnxruntime runs: `xtask/data/onnxruntime.txt` says which rows, element types and opsets these are,
//! and of rows of other domains than ai.onnx why it does not run the rest.
//! `--probe` asks it anew, with one model for each.
//! All of it lies in `target/random`: `made.jsonl` says which models there are, `onnxruntime.jsonl` and `results.jsonl` grow by a line per
//! model, so that `--resume` goes on where a run was stopped. At the end what passed is deleted, what did not is listed in `failed.jsonl`,
//! and `coverage.md` counts the rows and element types.

use crate::breaks::Tally;
use crate::{setup, sh, suite};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Args {
    /// How many models.
    #[arg(long, default_value_t = 42_000)]
    count: usize,
    /// Seed; another one gives other models.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Models whose rows are all of one domain (ai.onnx, com.microsoft); of both where it is not said.
    #[arg(long)]
    domain: Option<String>,
    /// The device they run on: cpu, guard, hip.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Go on with the run that was stopped: its models, without those that it has results of.
    #[arg(long, conflicts_with_all = ["count", "seed", "probe"])]
    resume: bool,
    /// Ask onnxruntime anew which rows, element types and opsets it runs, compare one model of each with the interpreter, and write
    /// `xtask/data/onnxruntime.txt`; no random models.
    #[arg(long)]
    probe: bool,
    /// Break each model that passes on purpose, in each way that it offers; at least 95 % of the breaks must be noticed.
    #[arg(long)]
    sabotage: bool,
}

impl Args {
    /// What CI runs: a few hundred, the same ones every time.
    pub fn ci() -> Args {
        Args { count: 450, seed: 1, domain: None, device: "cpu".into(), resume: false, probe: false, sabotage: false }
    }
}

/// What onnxruntime runs: an operator's row, an element type, the opsets.
fn peer_list() -> PathBuf {
    sh::root().join("xtask/data/onnxruntime.txt")
}

/// Between a row with an element type and why onnxruntime does not run it.
const LACKS: &str = " - ";
/// What onnxruntime says, and what that means.
const LACKING: &[(&str, &str)] = &[
    ("NOT_IMPLEMENTED", "no CPU kernel"),
    ("Type Error", "not of this element type"),
    ("Unsupported data type", "not of this element type"),
    ("DataRaw()", "past and present must be one buffer"),
    ("No corresponding Numpy type", "results that Python cannot take"),
];
/// Where it says something else.
const REFUSES: &str = "its kernel refuses the row's cases";
/// Processes that make models, each with its own seed: the same models on every machine.
const PARTS: usize = 16;
/// Least share of models, in percent, that onnxruntime must run as well.
const SHARED: usize = 60;
/// Least share, in percent, of models that must pass: the others are refused with a reason, here and by onnxruntime.
const PASSED: usize = 99;
/// Of a full run: models, and how often each row must have come with each element type.
const FULL: (usize, usize) = (42_000, 50);

/// Operators of which onnxruntime is known to give something else than the text demands, and why.
const DIFFERS: &[(&str, &str)] = &[
    ("AffineGrid", "its function rounds to f16 at every step"),
    ("Cast", "2^-127 of f8e8m0 becomes false"),
    ("ReduceProd", "integers beyond their range are left open"),
    ("Resize", "which extent align_corners spans where the scale gives none is read in two ways"),
    ("ReduceLogSum", "an infinity as an integer is left open"),
    ("ReduceLogSumExp", "an infinity as an integer is left open"),
    (
        "com.microsoft:MaxpoolWithMask",
        "it takes the mask of the first channel, and nothing after a masked element of a row",
    ),
    ("com.microsoft:QLinearSoftmax", "its table of powers is rounded"),
];

/// A model that was made.
struct Made {
    case: String,
    pairs: Vec<String>,
    /// Whether it is made of what onnxruntime runs and reads alike.
    shared: bool,
}

/// Counts of a row with an element type.
#[derive(Default)]
struct Covered {
    passed: usize,
    shared: usize,
}

pub fn run(args: &Args) -> Result<()> {
    let bin = std::path::absolute(sh::tools()?)?;
    sh::run(&mut sh::cargo(&["build", "--quiet", "--package", "hip-ep-ir", "--example", "random_models"]))?;
    let generator = bin.join("examples/random_models");
    let dir = std::path::absolute(sh::target().join("random"))?;
    if !args.resume {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir)?;
    }
    if args.probe {
        return probe(&bin, &generator, &dir, args);
    }
    let all: Vec<String> =
        sh::read(of_domain(Command::new(&generator).arg("--list"), args))?.lines().map(str::to_string).collect();
    let (shared, lacking) = (read_shared()?, read_lacking()?);
    let shared: BTreeSet<String> = all.iter().filter(|p| shared.contains(*p)).cloned().collect();
    println!("{} of {} rows with an element type run in onnxruntime", shared.len(), all.len());
    let mut whys: BTreeMap<&str, usize> = BTreeMap::new();
    all.iter().filter_map(|p| lacking.get(p)).for_each(|why| *whys.entry(why).or_default() += 1);
    whys.iter().for_each(|(why, n)| println!("{n:5} do not: {why}"));
    let (mut covered, mut totals) = (BTreeMap::<String, Covered>::new(), Totals::default());
    let list = dir.join("made.jsonl");
    if !args.resume {
        // Under its name only when it is whole.
        let lines = make(&generator, &dir, args, PARTS.min(args.count.max(1)))?;
        std::fs::write(dir.join("made.part"), lines)?;
        std::fs::rename(dir.join("made.part"), &list)?;
    }
    let made = read_made(&std::fs::read_to_string(&list).context("there is no run to resume")?)?;
    let names: Vec<String> = made.iter().map(|m| m.case.clone()).collect();
    let shared_names: Vec<String> = made.iter().filter(|m| m.shared).map(|m| m.case.clone()).collect();
    let peer = peer_outputs(&dir, &shared_names, Some(&dir.join("onnxruntime.jsonl")))?;
    println!("onnxruntime refuses of the {} models that are made of what it runs:", shared_names.len());
    suite::reasons(&peer, "ran");
    let device = ["--device", args.device.as_str()];
    let mut results = suite::hip_test(&bin, &dir, &names, &device, Some(&dir.join("results.jsonl")))?;
    for (name, r) in &mut results {
        r["onnxruntime"] = peer.get(name).map_or(Value::Null, |p| p["outcome"].clone());
    }
    if args.sabotage {
        return sabotage(&bin, &dir, &results);
    }
    for m in &made {
        let (result, with_peer) = (&results[&m.case], peer.get(&m.case).is_some_and(|p| p["outcome"] == "ran"));
        totals.add(result, with_peer);
        if result["outcome"] == "pass" {
            let _ = std::fs::remove_dir_all(dir.join(&m.case));
            for p in m.pairs.iter().collect::<BTreeSet<_>>() {
                let c = covered.entry(p.clone()).or_default();
                c.passed += 1;
                c.shared += usize::from(with_peer);
            }
        }
    }
    report(&dir, &all, &shared, &lacking, &covered, &results, &totals)
}

#[derive(Default)]
struct Totals {
    n: usize,
    passed: usize,
    with_peer: usize,
    refused_here_alone: usize,
    wrong: usize,
}

impl Totals {
    fn add(&mut self, result: &Value, with_peer: bool) {
        self.n += 1;
        self.passed += usize::from(result["outcome"] == "pass");
        self.with_peer += usize::from(result["outcome"] == "pass" && with_peer);
        self.wrong += usize::from(!["pass", "refused"].iter().any(|o| result["outcome"] == *o));
        self.refused_here_alone += usize::from(result["outcome"] == "refused" && with_peer);
    }
}

/// The rows with an element type that onnxruntime runs.
fn read_shared() -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(peer_list())?;
    let runs = text.lines().filter(|line| !line.contains(LACKS));
    Ok(runs.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_string())).collect())
}

/// Why onnxruntime runs none of the others, where it was asked.
fn read_lacking() -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(peer_list())?;
    let lacks = text.lines().filter_map(|line| line.split_once(LACKS));
    Ok(lacks.map(|(pair, why)| (pair.to_string(), why.to_string())).collect())
}

/// Asks onnxruntime what it runs: one model of each row and element type, at each opset of the row; of other domains than ai.onnx each case
/// of the row. The newest that onnxruntime runs, or each of these cases, must be right by the interpreter.
fn probe(bin: &Path, generator: &Path, dir: &Path, args: &Args) -> Result<()> {
    let single = dir.join("single");
    let out = sh::read(of_domain(Command::new(generator).arg("--single").arg("--out").arg(&single), args))?;
    // Of each pair its cases with their opsets, the oldest first.
    let mut cases: BTreeMap<String, Vec<(String, Vec<i64>)>> = BTreeMap::new();
    for line in out.lines() {
        let v: Value = serde_json::from_str(line)?;
        let pair = v["pairs"][0].as_str().context("a model of no row")?.to_string();
        let opsets = v["opsets"].as_array().context("a model of no opset")?.iter().filter_map(Value::as_i64);
        cases.entry(pair).or_default().push((v["case"].as_str().context("no name")?.into(), opsets.collect()));
    }
    let names: Vec<String> = cases.values().flatten().map(|(case, _)| case.clone()).collect();
    let ran = peer_outputs(&single, &names, None)?;
    let runs = |case: &str| ran[case]["outcome"] == "ran";
    let other = |pair: &str| pair.contains(':');
    let op = |pair: &str| pair.split(' ').next().unwrap_or_default().to_string();
    let known = |pair: &str| DIFFERS.iter().find(|d| d.0 == op(pair)).map(|d| d.1);
    let mut chosen: Vec<(&String, &String)> = vec![];
    for (pair, cases) in &cases {
        let newest = cases.iter().rfind(|(case, _)| runs(case)).or(cases.last());
        let all = cases.iter().filter(|_| other(pair));
        chosen.extend(all.chain(newest.filter(|_| !other(pair))).map(|(case, _)| (pair, case)));
    }
    let names: Vec<String> = chosen.iter().map(|(_, case)| case.to_string()).collect();
    let here = suite::hip_test(bin, &single, &names, &[], None)?;
    let (mut shared, mut differ, mut wrong) = (BTreeSet::new(), BTreeSet::new(), vec![]);
    for (pair, case) in chosen {
        let reason = here[case]["reason"].as_str().unwrap_or_default();
        let set = |n: usize| reason.contains(&format!("set {n}:"));
        match here[case]["outcome"].as_str() {
            // Of cases that are read in two ways random models are free.
            Some("wrong") if set(1) && !set(0) && other(pair) => {
                println!("onnxruntime differs in {case} ({pair})");
                known(pair).is_none() && shared.insert(pair.clone())
            }
            Some("wrong") if set(1) && !set(0) => differ.insert(pair.clone()),
            Some("wrong" | "crash" | "error") => {
                wrong.push(format!("{case} ({pair}): {reason}"));
                false
            }
            Some("refused") if runs(case) && other(pair) => {
                wrong.push(format!("{case} ({pair}) is refused, but onnxruntime runs it: {reason}"));
                false
            }
            _ => runs(case) && (!other(pair) || known(pair).is_none()) && shared.insert(pair.clone()),
        };
    }
    if !wrong.is_empty() {
        bail!("{} models of one node are wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
    for pair in &differ {
        let why = known(pair).unwrap_or("for no known reason");
        println!("onnxruntime differs in {pair}, its results are left out: {why}");
    }
    let unknown: Vec<&String> = differ.iter().filter(|p| known(p).is_none()).collect();
    if !unknown.is_empty() {
        bail!("onnxruntime differs for no known reason: {unknown:?}");
    }
    // What was not asked stays as it was.
    let asked = |line: &str| match &args.domain {
        Some(d) => line.split(' ').next().and_then(|op| op.split_once(':')).map_or("ai.onnx", |o| o.0) == d,
        None => true,
    };
    let before = std::fs::read_to_string(peer_list())?;
    let mut lines: BTreeSet<String> = before.lines().filter(|l| !asked(l)).map(str::to_string).collect();
    for (pair, cases) in &cases {
        let opsets: BTreeSet<i64> = cases.iter().filter(|(case, _)| runs(case)).flat_map(|c| c.1.clone()).collect();
        if shared.contains(pair) {
            let opsets: Vec<String> = opsets.iter().map(i64::to_string).collect();
            lines.insert(format!("{pair} {}", opsets.join(",")));
        } else if let Some((case, _)) = cases.first().filter(|_| other(pair) && opsets.is_empty()) {
            let reason = ran[case]["reason"].as_str().unwrap_or_default();
            let why = LACKING.iter().find(|(said, _)| reason.contains(said)).map_or(REFUSES, |w| w.1);
            lines.insert(format!("{pair}{LACKS}{why}"));
        } else if let Some(why) = known(pair).filter(|_| other(pair)) {
            lines.insert(format!("{pair}{LACKS}differs: {why}"));
        }
    }
    println!("{} rows with an element type run in onnxruntime: {}", shared.len(), peer_list().display());
    let text: String = lines.iter().map(|l| format!("{l}\n")).collect();
    Ok(std::fs::write(peer_list(), text)?)
}

/// Has the models made, by several processes at once; a line of each.
fn make(generator: &Path, dir: &Path, args: &Args, parts: usize) -> Result<String> {
    let start = |part: usize| {
        let mut c = Command::new(generator);
        let count = args.count / parts + usize::from(part < args.count % parts);
        c.args(["--count", &count.to_string(), "--seed", &(args.seed * 1000 + part as u64).to_string()]);
        of_domain(&mut c, args)
            .arg("--shared")
            .arg(peer_list())
            .arg("--out")
            .arg(dir)
            .args(["--prefix", &format!("m{part}_")]);
        sh::read(&mut c)
    };
    let outs: Vec<Result<String>> = std::thread::scope(|s| {
        let running: Vec<_> = (0..parts).map(|part| s.spawn(move || start(part))).collect();
        running.into_iter().map(|t| t.join().expect("no thread panicked")).collect()
    });
    outs.into_iter().collect()
}

/// Says to the generator which domain is asked for.
fn of_domain<'a>(generator: &'a mut Command, args: &Args) -> &'a mut Command {
    generator.args(args.domain.iter().flat_map(|d| ["--domain", d]))
}

fn read_made(lines: &str) -> Result<Vec<Made>> {
    let mut made = vec![];
    for line in lines.lines() {
        let v: Value = serde_json::from_str(line)?;
        let pairs = v["pairs"].as_array().into_iter().flatten().filter_map(|p| Some(p.as_str()?.to_string()));
        made.push(Made {
            case: v["case"].as_str().context("a model without a name")?.into(),
            pairs: pairs.collect(),
            shared: v["shared"] == true,
        });
    }
    Ok(made)
}

/// Runs onnxruntime on cases of a folder.
fn peer_outputs(dir: &Path, names: &[String], log: Option<&Path>) -> Result<BTreeMap<String, Value>> {
    let python: PathBuf = std::path::absolute(setup::python()?)?;
    let program = || {
        let mut c = Command::new(&python);
        c.arg(sh::root().join("xtask/py/peer_outputs.py")).arg(dir);
        c
    };
    suite::run(&program, names, log)
}

fn report(
    dir: &Path,
    all: &[String],
    shared: &BTreeSet<String>,
    lacking: &BTreeMap<String, String>,
    covered: &BTreeMap<String, Covered>,
    results: &BTreeMap<String, Value>,
    t: &Totals,
) -> Result<()> {
    suite::reasons(results, "pass");
    let lines: String = results.values().filter(|r| r["outcome"] != "pass").map(|r| format!("{r}\n")).collect();
    std::fs::write(dir.join("failed.jsonl"), lines)?;
    let none = Covered::default();
    let mut table =
        "| row and element type | models | also in onnxruntime | onnxruntime has it |\n|---|---|---|---|\n".to_string();
    for pair in all {
        let c = covered.get(pair).unwrap_or(&none);
        let has = if shared.contains(pair) { "yes" } else { lacking.get(pair).map_or("no", String::as_str) };
        writeln!(table, "| {pair} | {} | {} | {has} |", c.passed, c.shared)?;
    }
    let path = dir.join("coverage.md");
    std::fs::write(&path, table)?;
    let times = |pair: &String| covered.get(pair).map_or(0, |c| c.passed);
    let mut counts: Vec<usize> = all.iter().map(times).collect();
    counts.sort_unstable();
    let at = |share: usize| counts.get(counts.len() * share / 100).copied().unwrap_or(0);
    println!(
        "each row with an element type in {} models at least, {} in the median; {} never; table in {}",
        at(0),
        at(50),
        counts.iter().filter(|&&n| n == 0).count(),
        path.display()
    );
    println!(
        "{} of {} passed, {} of them ({} %) also against onnxruntime, {} refused that it runs",
        t.passed,
        t.n,
        t.with_peer,
        t.with_peer * 100 / t.passed.max(1),
        t.refused_here_alone
    );
    // What is refused with a reason is no wrong answer; what onnxruntime runs must not be refused.
    if t.wrong + t.refused_here_alone > 0 {
        bail!(
            "{} models are wrong or refused here alone; they are in {}",
            t.wrong + t.refused_here_alone,
            dir.display()
        );
    }
    if t.passed * 100 < t.n * PASSED {
        bail!("fewer than {PASSED} % of the models passed; the others are in {}", dir.display());
    }
    if t.with_peer * 100 < t.passed * SHARED {
        bail!("fewer than {SHARED} % of the models ran in onnxruntime");
    }
    let seldom: Vec<&str> = all.iter().filter(|p| times(p) < FULL.1).map(String::as_str).collect();
    if t.n >= FULL.0 && !seldom.is_empty() {
        bail!("{} rows with an element type came in fewer than {} models: {}", seldom.len(), FULL.1, seldom.join(", "));
    }
    Ok(())
}

/// Breaks the models that pass.
fn sabotage(bin: &Path, dir: &Path, results: &BTreeMap<String, Value>) -> Result<()> {
    let names: Vec<String> = results.iter().filter(|(_, r)| r["outcome"] == "pass").map(|(n, _)| n.clone()).collect();
    let mut tally = Tally::default();
    for kind in suite::SABOTAGES {
        for (name, r) in suite::hip_test(bin, dir, &names, &["--sabotage", kind], None)? {
            match r["outcome"].as_str() {
                Some("none") => tally.none(kind, &name),
                outcome => tally.made(kind, &name, r["reason"].as_str().unwrap_or(""), outcome != Some("pass")),
            }
        }
    }
    tally.verdict()
}
