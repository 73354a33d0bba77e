//! Running programs and finding our own.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Prints the command and runs it with the terminal's output.
///
/// # Errors
/// When it cannot be started or fails.
pub fn run(cmd: &mut Command) -> Result<()> {
    let shown = show(cmd);
    eprintln!("$ {shown}");
    let status = cmd.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown} failed: {status}");
    }
    Ok(())
}

/// Runs quietly and returns standard output.
///
/// # Errors
/// When it cannot be started or fails; the message holds the end of standard error.
pub fn read(cmd: &mut Command) -> Result<String> {
    let shown = show(cmd);
    let out = output(cmd)?;
    if !out.status.success() {
        let err = String::from_utf8_lossy(&out.stderr);
        let tail: Vec<&str> = err.lines().rev().take(8).collect();
        bail!("{shown} failed: {}\n{}", out.status, tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs quietly and returns everything.
///
/// # Errors
/// When it cannot be started.
pub fn output(cmd: &mut Command) -> Result<Output> {
    let shown = show(cmd);
    cmd.stdin(std::process::Stdio::null()).output().with_context(|| format!("cannot start {shown}"))
}

/// The command as a line.
pub fn show(cmd: &Command) -> String {
    let words = std::iter::once(cmd.get_program()).chain(cmd.get_args());
    words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// `cargo` with arguments.
pub fn cargo(args: &[&str]) -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.args(args);
    c
}

/// Builds the tools once and returns the folder they lie in. Cargo shows on a terminal how far it is.
///
/// # Errors
/// When the build fails.
pub fn tools() -> Result<PathBuf> {
    let mut build = cargo(&["build", "--package", "hip-ep", "--bins"]);
    if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        build.arg("--quiet");
    }
    run(&mut build)?;
    Ok(target().join("debug"))
}
