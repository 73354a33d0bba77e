//! All set-up, then everything that CI runs. Each step prints its time, so that a slow one is seen.

use crate::{check, compare, conformance, corpus, kernels, random, setup, sh, smoke};
use anyhow::{Result, bail};
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// Only the steps whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Print the steps and stop.
    #[arg(long)]
    list: bool,
}

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("set-up", || {
        // Tests say what they leave out without it.
        let _ = setup::hip();
        setup::llvm().and_then(|()| setup::python().map(|_| ()))
    }),
    ("check", || check::run(&check::Args::default())),
    // One selection of packages: of a part of them, Cargo would build everything again with other features of what they share.
    ("tests", || {
        sh::run(&mut tests(&[]))?;
        sh::run(&mut sh::cargo(&["test", "--quiet", "-p", "xtask"]))
    }),
    ("kernels", || kernels::run(&kernels::Args::default())),
    ("mutants", || {
        // 50,000 models and 100,000 artifacts; the test by itself takes a few hundred.
        let mut test = tests(&["--test", "main", "mutants", "--", "--nocapture"]);
        sh::run(test.env("HIP_EP_MUTANTS", "50000"))
    }),
    ("example embed", || example("embed")),
    ("example native", || example("native")),
    ("amd-smoke", smoke::run),
    ("compare with HIP", compare::run),
    ("fuzz targets", || sh::run(sh::cargo(&["check", "--quiet"]).current_dir("fuzz"))),
    ("corpus", || corpus::run(&corpus::Args::ci())),
    ("random models", || random::run(&random::Args::ci())),
    ("conformance", || conformance::run(&conformance::Args::ci())),
];

/// Tests of all packages but this one.
fn tests(args: &[&str]) -> std::process::Command {
    let mut c = sh::cargo(&["test", "--quiet", "--workspace", "--exclude", "xtask"]);
    c.args(args);
    c
}

/// Tests of an example, which is a workspace of its own. They share a target folder: most of what they build is the same.
fn example(name: &str) -> Result<()> {
    let target = sh::target().join("examples");
    let mut test = sh::cargo(&["test", "--quiet", "--target-dir"]);
    sh::run(test.arg(target).current_dir(sh::root().join("examples").join(name)))
}

pub fn run(args: &Args) -> Result<()> {
    let wanted = |name: &str| args.only.as_ref().is_none_or(|o| name.contains(o.as_str()));
    let steps: Vec<&Step> = STEPS.iter().filter(|s| wanted(s.0)).collect();
    if steps.is_empty() {
        bail!("no step matches; the steps are {}", STEPS.iter().map(|s| s.0).collect::<Vec<_>>().join(", "));
    }
    let mut times = Vec::new();
    for (name, step) in steps {
        if args.list {
            println!("{name}");
            continue;
        }
        println!("== {name}");
        let start = Instant::now();
        step().map_err(|e| e.context(format!("step \"{name}\" failed")))?;
        times.push(format!("{name} {:.0} s", start.elapsed().as_secs_f64()));
    }
    println!("times: {}", times.join(", "));
    Ok(())
}
