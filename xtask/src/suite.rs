//! Runs a program over many cases: one process per chunk, as many at once as there are processors, one line of JSON per case.

use crate::sh;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ways to break a case that `hip-test --suite --sabotage` knows.
pub const SABOTAGES: &[&str] = &["expected", "weight", "epilogue", "operands", "pool"];
/// Cases per process.
const CHUNK: usize = 50;

/// Runs `program` with names of cases added to its arguments; what it says of each, by name. It prints one line of JSON per case with
/// `case`, `outcome` and `reason`. When it dies, the case it died in counts as `crash` and the rest runs in another process.
///
/// # Errors
/// When it cannot be started.
pub fn run(program: &(dyn Fn() -> Command + Sync), names: &[String]) -> Result<BTreeMap<String, Value>> {
    let chunks: Vec<&[String]> = names.chunks(CHUNK).collect();
    let next = AtomicUsize::new(0);
    let results = std::sync::Mutex::new(BTreeMap::<String, Value>::new());
    let failed = std::sync::Mutex::new(None);
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            s.spawn(|| {
                while let Some(c) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match chunk(program, c) {
                        Ok(r) => results.lock().expect("no thread panicked").extend(r),
                        Err(e) => *failed.lock().expect("no thread panicked") = Some(e),
                    }
                }
            });
        }
    });
    match failed.into_inner().expect("no thread panicked") {
        Some(e) => Err(e),
        None => Ok(results.into_inner().expect("no thread panicked")),
    }
}

/// [`run`] with `hip-test --suite` on cases that are folders of `dir`.
///
/// # Errors
/// As [`run`].
pub fn hip_test(bin: &Path, dir: &Path, names: &[String], extra: &[&str]) -> Result<BTreeMap<String, Value>> {
    let tool = std::path::absolute(bin)?.join("hip-test");
    let program = || {
        let mut c = Command::new(&tool);
        c.args(["--suite", "--json-lines"]).args(extra).current_dir(dir);
        c
    };
    run(&program, names)
}

fn chunk(program: &(dyn Fn() -> Command + Sync), names: &[String]) -> Result<BTreeMap<String, Value>> {
    let mut results: BTreeMap<String, Value> = BTreeMap::new();
    let mut todo: Vec<&String> = names.iter().collect();
    while !todo.is_empty() {
        let out = sh::output(program().args(&todo))?;
        let lines = String::from_utf8_lossy(&out.stdout).into_owned();
        for r in lines.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()) {
            results.insert(r["case"].as_str().unwrap_or_default().to_string(), r);
        }
        todo.retain(|n| !results.contains_key(*n));
        if let Some(first) = todo.first().copied() {
            let err = String::from_utf8_lossy(&out.stderr).lines().last().unwrap_or_default().to_string();
            let line = json!({"case": first, "outcome": "crash", "reason": format!("{}: {err}", out.status)});
            results.insert(first.clone(), line);
            todo.remove(0);
        }
    }
    Ok(results)
}

/// Prints how many cases did not have the outcome `good` for which reason, the most frequent first.
pub fn reasons(results: &BTreeMap<String, Value>, good: &str) {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for r in results.values().filter(|r| r["outcome"] != good) {
        let reason =
            r["reason"].as_str().unwrap_or("?").lines().next().unwrap_or("").chars().take(110).collect::<String>();
        *reasons.entry(format!("{}: {reason}", r["outcome"].as_str().unwrap_or("?"))).or_default() += 1;
    }
    let mut by_count: Vec<_> = reasons.into_iter().collect();
    by_count.sort_by_key(|(r, n)| (std::cmp::Reverse(*n), r.clone()));
    for (reason, n) in by_count.iter().take(40) {
        println!("{n:5} {reason}");
    }
    if by_count.len() > 40 {
        println!("      … and {} more reasons (--json has all)", by_count.len() - 40);
    }
}
