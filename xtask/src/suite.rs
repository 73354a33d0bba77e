//! Runs a program over many cases: one process per chunk, as many at once as there are processors, one line of JSON per case.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Ways to break a case that `hip-test --suite --sabotage` knows.
pub const SABOTAGES: &[&str] = &["expected", "weight", "epilogue", "operands", "pool"];
/// Cases per process.
const CHUNK: usize = 50;
/// How long a case may take: several times what the slowest takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs `program` with names of cases added to its arguments; what it says of each, by name. It prints one line of JSON per case with
/// `case`, `outcome` and `reason`. When it dies, the case it died in counts as `crash`, and as `timeout` when it says nothing for three
/// minutes; the rest runs in another process.
///
/// Each line is added to the file `log` as it comes. Cases that the file has already do not run again: what was interrupted goes on.
///
/// # Errors
/// When it cannot be started, or the file cannot be read or written.
pub fn run(
    program: &(dyn Fn() -> Command + Sync),
    names: &[String],
    log: Option<&Path>,
) -> Result<BTreeMap<String, Value>> {
    let results = Mutex::new(Results::open(log)?);
    let todo: Vec<&String> = names.iter().filter(|n| !lock(&results).by_case.contains_key(*n)).collect();
    let chunks: Vec<&[&String]> = todo.chunks(CHUNK).collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            s.spawn(|| {
                while let Some(c) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(e) = chunk(program, c, &results) {
                        *lock(&failed) = Some(e);
                    }
                }
            });
        }
    });
    match lock(&failed).take() {
        Some(e) => Err(e),
        None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner).by_case),
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of cases so far, and the file that keeps it.
#[derive(Default)]
struct Results {
    by_case: BTreeMap<String, Value>,
    log: Option<File>,
}

impl Results {
    fn open(log: Option<&Path>) -> Result<Results> {
        let Some(path) = log else { return Ok(Results::default()) };
        let before = if path.exists() { std::fs::read_to_string(path)? } else { String::new() };
        let mut file = File::options().append(true).create(true).open(path)?;
        if !before.is_empty() && !before.ends_with('\n') {
            // The end of a line is missing: it was being written when the program was stopped.
            file.write_all(b"\n")?;
        }
        let mut results = Results { by_case: BTreeMap::new(), log: Some(file) };
        for r in before.lines().filter_map(|l| serde_json::from_str(l).ok()) {
            results.keep(r);
        }
        Ok(results)
    }

    fn keep(&mut self, r: Value) {
        self.by_case.insert(r["case"].as_str().unwrap_or_default().to_string(), r);
    }

    fn add(&mut self, r: Value) -> Result<()> {
        if let Some(file) = &mut self.log {
            writeln!(file, "{r}")?;
        }
        self.keep(r);
        Ok(())
    }
}

/// [`run`] with `hip-test --suite` on cases that are folders of `dir`.
///
/// # Errors
/// As [`run`].
pub fn hip_test(
    bin: &Path,
    dir: &Path,
    names: &[String],
    extra: &[&str],
    log: Option<&Path>,
) -> Result<BTreeMap<String, Value>> {
    let tool = std::path::absolute(bin)?.join("hip-test");
    let program = || {
        let mut c = Command::new(&tool);
        c.args(["--suite", "--json-lines"]).args(extra).current_dir(dir);
        c
    };
    run(&program, names, log)
}

fn chunk(program: &(dyn Fn() -> Command + Sync), names: &[&String], results: &Mutex<Results>) -> Result<()> {
    let mut todo = names.to_vec();
    while !todo.is_empty() {
        let end = process(program().args(&todo), results)?;
        todo.retain(|n| !lock(results).by_case.contains_key(*n));
        if let Some(first) = (!todo.is_empty()).then(|| todo.remove(0)) {
            let (outcome, reason) = end;
            lock(results).add(json!({"case": first, "outcome": outcome, "reason": reason}))?;
        }
    }
    Ok(())
}

/// Runs one process to its end, or until it says nothing for too long; what a case is that it did not come to.
fn process(cmd: &mut Command, results: &Mutex<Results>) -> Result<(&'static str, String)> {
    let cmd = cmd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = cmd.spawn().with_context(|| format!("cannot start {}", cmd.get_program().display()))?;
    let (stdout, stderr) = (child.stdout.take().context("no stdout")?, child.stderr.take().context("no stderr")?);
    let (said, lines) = mpsc::channel();
    // They end with the process; whoever holds its output longer is not waited for.
    std::thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|l| said.send(l)));
    let (told, errors) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = vec![];
        let _ = BufReader::new(stderr).read_to_end(&mut bytes);
        told.send(String::from_utf8_lossy(&bytes).lines().last().unwrap_or_default().to_string())
    });
    loop {
        match lines.recv_timeout(LIMIT) {
            Ok(line) => {
                if let Ok(r) = serde_json::from_str(&line) {
                    lock(results).add(r)?;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                return Ok(("timeout", format!("not done after {} s", LIMIT.as_secs())));
            }
        }
    }
    let status = child.wait()?;
    let error = errors.recv_timeout(LIMIT).unwrap_or_default();
    Ok(("crash", format!("{status}: {error}")))
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
