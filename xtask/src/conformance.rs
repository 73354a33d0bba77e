//! The ONNX backend suite: every case compiled to an artifact, run by `hip-test` in fresh processes, compared at the suite's tolerances.
//!
//! The list of cases that pass (`xtask/data/conformance.txt`) may only grow. What is refused counts as not passed and is grouped by reason.

use crate::breaks::Tally;
use crate::{setup, sh, suite};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Args {
    /// Only cases whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Write the list of passing cases anew (it must not lose any).
    #[arg(long)]
    bless: bool,
    /// Print one JSON document instead of a summary.
    #[arg(long)]
    json: bool,
    /// Break each passing case on purpose in each way that it offers; at least 95 % of the breaks must be noticed.
    #[arg(long)]
    sabotage: bool,
}

impl Args {
    /// What CI runs.
    pub fn ci() -> Args {
        Args { filter: None, bless: false, json: false, sabotage: false }
    }
}

const LIST: &str = "xtask/data/conformance.txt";
/// The expected values of these are what another generator of random numbers drew: shapes and element types must agree, elements do not.
/// `tests/holds/random.rs` says what draws must be like.
const DRAWN: (&str, &str) = ("elements differ", "the expected values are another generator's draws");
/// Cases that right results fail: what the comparison then says, and why.
const NOT_EXACT: &[(&str, &str, &str)] = &[
    (
        "test_dft_inverse_opset19",
        "1.9 times what is allowed",
        "expected values are sums in f32: 1.9e-7 where the sum is 0, and the case allows 1e-7",
    ),
    ("test_bernoulli", DRAWN.0, DRAWN.1),
    ("test_bernoulli_double", DRAWN.0, DRAWN.1),
    ("test_bernoulli_double_expanded", DRAWN.0, DRAWN.1),
    ("test_bernoulli_expanded", DRAWN.0, DRAWN.1),
    ("test_bernoulli_seed", DRAWN.0, DRAWN.1),
    ("test_bernoulli_seed_expanded", DRAWN.0, DRAWN.1),
    ("test_training_dropout", DRAWN.0, DRAWN.1),
    ("test_training_dropout_default", DRAWN.0, DRAWN.1),
    ("test_training_dropout_default_mask", DRAWN.0, DRAWN.1),
    ("test_training_dropout_mask", DRAWN.0, DRAWN.1),
];

/// The suite as folders; written once.
fn data() -> Result<(PathBuf, Vec<String>)> {
    let dir = sh::target().join("conformance");
    let stamp = dir.join("done.json");
    if !stamp.exists() {
        sh::read(Command::new(setup::python()?).arg("xtask/py/conformance_data.py").arg(&dir))
            .and_then(|s| Ok(std::fs::write(&stamp, s)?))?;
    }
    let mut names: Vec<String> = std::fs::read_dir(&dir)?
        .flatten()
        .filter(|e| e.path().join("model.onnx").exists())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok((dir, names))
}

pub fn run(args: &Args) -> Result<()> {
    let bin = sh::tools()?;
    let (dir, mut names) = data()?;
    if let Some(f) = &args.filter {
        names.retain(|n| n.contains(f));
    }
    if names.is_empty() {
        bail!("no case matches");
    }
    if args.sabotage {
        return sabotage(&bin, &dir, &names);
    }
    let results = suite::hip_test(&bin, &dir, &names, &[], None)?;
    let of = |what: &str| results.values().filter(|r| r["outcome"] == what).collect::<Vec<_>>();
    let passed: BTreeSet<String> = of("pass").iter().filter_map(|r| r["case"].as_str()).map(str::to_string).collect();
    let before: BTreeSet<String> =
        std::fs::read_to_string(LIST).unwrap_or_default().lines().map(str::to_string).collect();
    let considered: BTreeSet<&String> = names.iter().collect();
    let lost: Vec<&String> = before.iter().filter(|n| considered.contains(n) && !passed.contains(*n)).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        suite::reasons(&results, "pass");
        println!("{} passed, {} failed", passed.len(), results.len() - passed.len());
        for (name, by, why) in NOT_EXACT.iter().filter(|n| names.iter().any(|m| m == n.0)) {
            println!("{name}: {by}: {why}");
        }
    }
    let died: Vec<&Value> = [of("crash"), of("timeout")].concat();
    if !died.is_empty() {
        bail!("{} cases crashed or did not end: {died:?}", died.len());
    }
    let exact = |r: &&Value| {
        let off = r["reason"].to_string();
        NOT_EXACT.iter().any(|(name, by, _)| r["case"] == *name && off.contains(by))
    };
    let wrong: Vec<&Value> = of("wrong").into_iter().filter(|r| !exact(r)).collect();
    if !wrong.is_empty() {
        let wrong: Vec<String> = wrong.iter().map(|r| format!("{}: {}", r["case"], r["reason"])).collect();
        bail!("{} cases gave wrong answers:\n{}", wrong.len(), wrong.join("\n"));
    }
    if !lost.is_empty() {
        let why: Vec<String> = lost
            .iter()
            .map(|n| format!("{n}: {}", results.get(*n).map_or(Value::Null, |r| r["reason"].clone())))
            .collect();
        bail!("{} cases no longer pass:\n{}", lost.len(), why.join("\n"));
    }
    if args.bless {
        let all: BTreeSet<&String> = before.union(&passed).collect();
        let text: Vec<&str> = all.iter().map(|s| s.as_str()).collect();
        std::fs::write(LIST, text.join("\n") + "\n").context(LIST)?;
    }
    Ok(())
}

/// Breaks the cases of the list, of those wanted.
fn sabotage(bin: &Path, dir: &Path, wanted: &[String]) -> Result<()> {
    let list: BTreeSet<String> = std::fs::read_to_string(LIST).context(LIST)?.lines().map(str::to_string).collect();
    let names: Vec<String> = wanted.iter().filter(|n| list.contains(*n)).cloned().collect();
    let mut tally = Tally::default();
    for kind in suite::SABOTAGES {
        for (name, r) in suite::hip_test(bin, dir, &names, &["--sabotage", kind], None)? {
            let reason = r["reason"].as_str().unwrap_or("");
            match r["outcome"].as_str() {
                Some("none") => tally.none(kind, &name),
                Some("refused") => bail!("{name} is on the list but is refused: {reason}"),
                outcome => tally.made(kind, &name, reason, outcome != Some("pass")),
            }
        }
    }
    tally.verdict()
}
