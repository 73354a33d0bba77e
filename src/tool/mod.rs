//! What the five tools share: reading tensors from files, making random ones, comparing, printing, breaking on purpose. Behind the
//! feature `tools`.

pub mod bench;
pub mod data;
pub mod pools;
pub mod sabotage;
pub mod verdict;

use tensor::{Diagnostic, ErrorKind, Result};

/// Starts logging to standard error by `RUST_LOG` (warnings by default), and ends quietly when a reader of standard output goes away
/// (`| head`).
pub fn init_log() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |p| {
        if p.payload_as_str().is_some_and(|t| t.starts_with("failed printing to stdout") && t.contains("Broken pipe")) {
            std::process::exit(0);
        }
        hook(p);
    }));
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let color = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(color).with_writer(std::io::stderr).init();
}

/// Runs a tool's body and turns an error into a message and exit status 1.
pub fn exit(result: Result<bool>) -> std::process::ExitCode {
    match result {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {}", e.or_help());
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

/// Reads a model: an ONNX file, or a module in text form when the name ends in `.hir` or `.txt`.
///
/// # Errors
/// As import and parsing.
pub fn read_model(path: &std::path::Path) -> Result<ir::Module<ir::Onnx>> {
    let registry = ir::Registry::builtin();
    if path.extension().is_some_and(|e| e == "hir" || e == "txt") {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Diagnostic::new(ErrorKind::Io, format!("cannot read {}: {e}", path.display())))?;
        return ir::text::parse_onnx(&text, &registry);
    }
    ir::import::import_path(path, &registry)
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
