//! What the five tools share: reading tensors from files, making random ones, comparing, printing, breaking on purpose. Behind the
//! feature `tools`.

pub mod bench;
pub mod caches;
pub mod data;
pub mod memory;
pub mod pools;
pub mod sabotage;
pub mod verdict;

use std::io::Write;
use std::sync::OnceLock;
use tensor::{Diagnostic, ErrorKind, Result};

/// Starts logging to standard error by `RUST_LOG` (warnings by default).
pub fn init_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let color = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(color).with_writer(std::io::stderr).init();
}

/// Why standard output could not be written, the first time that it could not.
static LOST: OnceLock<String> = OnceLock::new();

/// Writes to standard output. When a reader went away (`| head`) the program ends quietly; what cannot be written for another reason (a
/// full disk) is told by [`exit`], which every tool ends with.
pub fn print(bytes: &[u8]) {
    if LOST.get().is_some() {
        return;
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => drop(LOST.set(e.to_string())),
    }
}

/// Prints a line, as `println!` does, by [`tool::print`](crate::tool::print).
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::tool::print((format!($($text)*) + "\n").as_bytes()) };
}

/// Writes a file.
///
/// # Errors
/// `Io` with the path.
pub fn save(path: &std::path::Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, bytes)
        .map_err(|e| Diagnostic::new(ErrorKind::Io, format!("cannot write {}: {e}", path.display())))
}

/// Runs a tool's body and turns an error, or output that was lost, into a message and exit status 1.
pub fn exit(result: Result<bool>) -> std::process::ExitCode {
    let result = result.and_then(|ok| match LOST.get() {
        None => Ok(ok),
        Some(e) => Err(Diagnostic::new(ErrorKind::Io, format!("cannot write to standard output: {e}"))
            .help("what was printed is not whole: free space where it goes, or send it elsewhere")),
    });
    match result {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "error: {}", e.or_help());
            std::process::ExitCode::FAILURE
        }
    }
}

/// Splits `NAME=VALUE` at the last `=`: names of models hold anything.
///
/// # Errors
/// `Argument` when there is none.
pub fn named(text: &str) -> Result<(&str, &str)> {
    text.rsplit_once('=')
        .ok_or_else(|| Diagnostic::new(ErrorKind::Argument, format!("{text:?} is not of the form NAME=VALUE")))
}

/// The text of a file whose name ends in `.hir` or `.txt`; none for another name.
///
/// # Errors
/// `Io` with the path.
pub fn read_text(path: &std::path::Path) -> Result<Option<String>> {
    if path.extension().is_none_or(|e| e != "hir" && e != "txt") {
        return Ok(None);
    }
    let e = |e| Diagnostic::new(ErrorKind::Io, format!("cannot read {}: {e}", path.display()));
    std::fs::read_to_string(path).map(Some).map_err(e)
}

/// Reads a model: an ONNX file, or a module in text form when the name ends in `.hir` or `.txt`.
///
/// # Errors
/// As import and parsing.
pub fn read_model(path: &std::path::Path) -> Result<ir::Module<ir::Onnx>> {
    let registry = ir::Registry::builtin();
    match read_text(path)? {
        Some(text) => ir::text::parse_onnx(&text, &registry).map_err(|e| e.note("file", path.display().to_string())),
        None => ir::import::import_path(path, &registry),
    }
}

/// A generated model as an importer would give it, by a spec of [`ir::generate::SPECS`].
///
/// # Errors
/// As [`ir::generate::from_spec`].
pub fn generate(spec: &str) -> Result<ir::Module<ir::Onnx>> {
    ir::generate::from_spec(spec, &ir::Registry::builtin())
}

/// A spinner for work that takes longer than a moment; silent when standard error is no terminal.
pub fn spinner(what: &str) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new_spinner().with_message(what.to_string());
    bar.enable_steady_tick(std::time::Duration::from_millis(120));
    bar
}
