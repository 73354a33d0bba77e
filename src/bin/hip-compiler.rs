//! Compiles an ONNX model (or a module in text form) to an artifact and its constants.
#![deny(clippy::print_stdout)] // `say!` does not panic

use clap::{Parser, ValueEnum};
use hip_ep::ir::generate::SPECS;
use hip_ep::tool::sabotage::{self, Choice};
use hip_ep::{CompileOptions, Compiler, Constants, Diagnostic, ErrorKind, Result, Target};
use hip_ep::{say, tool};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(version, about = "Compile an ONNX model to an artifact that hip-onnx-runner, hip-test and the library run")]
struct Cli {
    /// ONNX file, or a module in text form (.hir, .txt).
    #[arg(required_unless_present_any = ["docs", "generate"], conflicts_with = "generate")]
    model: Option<PathBuf>,
    #[arg(long, value_name = "SPEC", help = format!("Take a generated model instead of a file: {SPECS}"))]
    generate: Option<String>,
    /// The artifact; by default the model's name with the extension hipep (or so).
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// What to write: bitcode with an object for the target, or a shared object that runs without LLVM.
    #[arg(long, value_enum, default_value_t = Mode::Bitcode)]
    mode: Mode,
    /// What to compile for, separated by commas: cpu, cpu:TIER (x86-64, x86-64-v2, x86-64-v3, x86-64-v4, native), hip:ARCH, cuda:ARCH.
    #[arg(long, value_name = "TARGET,…", default_value = "cpu")]
    target: String,
    /// Loosest numeric class of rewrite rules that run.
    #[arg(long, value_enum, default_value_t = Rewrites::Reassoc)]
    rewrites: Rewrites,
    /// Leave out an optional pass or a rewrite rule; may be repeated.
    #[arg(long, value_name = "NAME")]
    disable: Vec<String>,
    /// Effort of optimising generated kernels.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=3))]
    opt_level: u8,
    /// Where weights go.
    #[arg(long, value_enum, default_value_t = Where::Sidecar)]
    constants: Where,
    /// Print the time of each stage.
    #[arg(long)]
    timings: bool,
    /// Break the compiled model on purpose (a test aid, see `hip_ep::tool::sabotage`): leave out the N-th fused activation, bias or
    /// residual (epilogue), exchange operands of the N-th operation that is not commutative (operands), read the N-th value of a pool
    /// elsewhere than where it was written (pool). Prints JSON with the number of such places and what was broken instead of the path.
    #[arg(long, value_name = "KIND[:N]", hide = true)]
    sabotage: Option<String>,
    /// Print a generated page and stop.
    #[arg(long, value_name = "PAGE", value_parser = ["options"])]
    docs: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Bitcode,
    Native,
}

#[derive(Clone, Copy, ValueEnum)]
enum Rewrites {
    Exact,
    Reassoc,
    Approx,
}

#[derive(Clone, Copy, ValueEnum)]
enum Where {
    Sidecar,
    Reference,
}

fn main() -> ExitCode {
    tool::init_log();
    tool::exit(run(&Cli::parse()))
}

/// Refuses an output that would overwrite the model, or whose files cannot be written beside each other and renamed.
fn check_output(output: &Path, model: Option<&Path>) -> Result<()> {
    let constants = hip_ep::artifact::constants_path(output);
    let fail = |text: String, help: &str| Err(Diagnostic::new(ErrorKind::Argument, text).help(help));
    if constants == output {
        let text = format!("the artifact {} would have the name of its constants file", output.display());
        return fail(text, "give it another extension: -o model.hipep");
    }
    for file in [output, &constants] {
        let real = std::fs::canonicalize(file).ok();
        if real.is_some() && real == model.and_then(|m| std::fs::canonicalize(m).ok()) {
            let text = format!("writing {} would overwrite the model", file.display());
            return fail(text, "write to another name or folder: -o out/model.hipep");
        }
        if std::fs::metadata(file).is_ok_and(|m| !m.is_file()) {
            let text = format!("cannot write {}: it is there and is no regular file", file.display());
            return fail(text, "write to a new name, or to a file that may be replaced: -o model.hipep");
        }
    }
    Ok(())
}

fn run(cli: &Cli) -> Result<bool> {
    if cli.docs.is_some() {
        tool::print(CompileOptions::render_markdown().as_bytes());
        return Ok(true);
    }
    let model = match (&cli.generate, &cli.model) {
        (Some(spec), _) => PathBuf::from(spec.replace(':', "-")),
        (None, Some(path)) => path.clone(),
        (None, None) => return Err(Diagnostic::new(ErrorKind::Argument, "no model is given")),
    };
    let mut options = CompileOptions::default();
    options.targets = Target::parse_list(&cli.target)?;
    options.rewrites = match cli.rewrites {
        Rewrites::Exact => hip_ep::rewrite::rule::NumClass::Exact,
        Rewrites::Reassoc => hip_ep::rewrite::rule::NumClass::Reassoc,
        Rewrites::Approx => hip_ep::rewrite::rule::NumClass::Approx,
    };
    options.disabled = cli.disable.clone();
    options.opt_level = cli.opt_level;
    options.constants = match cli.constants {
        Where::Sidecar => Constants::Sidecar,
        Where::Reference => Constants::Reference,
    };
    let extension = match cli.mode {
        Mode::Bitcode => "hipep",
        Mode::Native => "so",
    };
    if model.is_dir() {
        return Err(Diagnostic::new(ErrorKind::Argument, format!("{} is a folder, not a model", model.display()))
            .help("name the file in it: an ONNX model, or a module in text form"));
    }
    let output = cli.output.clone().unwrap_or_else(|| model.with_extension(extension));
    check_output(&output, cli.model.as_deref())?;
    options.artifact_folder = output.parent().map(PathBuf::from);
    let bar = tool::spinner("import");
    let start = Instant::now();
    let mut times = Vec::new();
    let mut lap = |what: &str, next: &str| {
        times.push((what.to_string(), start.elapsed()));
        bar.set_message(next.to_string());
    };
    let module = match &cli.generate {
        Some(spec) => tool::generate(spec)?,
        None => tool::read_model(&model)?,
    };
    lap("import", "compile");
    let compiler = Compiler::with(options);
    let choice = cli.sabotage.as_deref().map(Choice::parse).transpose()?;
    let (mut hooks, found) = choice.map(sabotage::hooks).unwrap_or_default();
    let compiled = compiler.compile_with(module, &mut hooks)?;
    lap("compile", "write");
    match cli.mode {
        Mode::Bitcode => compiled.save(&output)?,
        Mode::Native => compiled.save_native(&output)?,
    }
    lap("write", "");
    bar.finish_and_clear();
    if cli.timings {
        let mut last = std::time::Duration::ZERO;
        for (what, at) in times {
            eprintln!("{what:10} {:8.1} ms", (at - last).as_secs_f64() * 1e3);
            last = at;
        }
        // Within the time of compile, on several threads.
        for (what, time) in compiled.code_times() {
            eprintln!("  code for {what:16} {:8.1} ms", time.as_secs_f64() * 1e3);
        }
    }
    match choice {
        None => say!("{}", output.display()),
        Some(_) => {
            let found = found.lock().map(|f| f.clone()).unwrap_or_default();
            say!("{}", serde_json::json!({"places": found.places, "what": found.what}));
        }
    }
    Ok(true)
}
