//! Developer commands. This crate depends on none of ours, so that it builds before LLVM is installed.
//!
//! In reading order: `demo` and `test` (the README's two commands), `check`, `kernels`, `corpus`, `generated`, `conformance`, `random`, `compare`; each is
//! one file. `measure` is what `corpus` and `generated` share. `gpu_kit` makes what runs on other machines, `smoke` tests its smallest script. `setup` brings what a command needs and says
//! what and why; `models` fetches models by package name; `breaks` counts what `--sabotage` breaks; `suite` runs a program over many cases; `tidy` holds the rules of the tree,
//! `deny` those for packages we depend on.

mod breaks;
mod check;
mod compare;
mod conformance;
mod corpus;
mod demo;
mod deny;
mod generated;
mod gpu_kit;
mod kernels;
mod measure;
mod models;
mod random;
mod setup;
mod sh;
mod smoke;
mod suite;
mod test;
mod tidy;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of hip-ep")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing, fetch a real model, compile it and run it on real text.
    Demo,
    /// Install what is missing, then run everything that CI runs.
    Test(test::Args),
    /// Format, clippy, docs, generated files, rules of the tree.
    Check(check::Args),
    /// Check the GPU kernels: compiled, structure, executed on the host.
    Kernels(kernels::Args),
    /// Compile real models and compare with onnxruntime over several shapes.
    Corpus(corpus::Args),
    /// Compile graphs that exporters have made into a folder, compare them with onnxruntime, and decode with those that can.
    Generated(generated::Args),
    /// Run the ONNX backend suite.
    Conformance(conformance::Args),
    /// Make random models from the operator rows and compare with the interpreter and onnxruntime.
    Random(random::Args),
    /// Fetch models of the corpus into target/models.
    Models(models::Args),
    GpuKit(gpu_kit::Args),
    /// Compare the runtime's table of driver functions with HIP's headers.
    Compare,
    /// Install what building and testing needs.
    Setup,
}

fn main() -> anyhow::Result<()> {
    std::env::set_current_dir(sh::root())?;
    match Cli::parse().command {
        Command::Demo => demo::run(),
        Command::Test(a) => test::run(&a),
        Command::Check(a) => check::run(&a),
        Command::Kernels(a) => kernels::run(&a),
        Command::Corpus(a) => corpus::run(&a),
        Command::Generated(a) => generated::run(&a),
        Command::Conformance(a) => conformance::run(&a),
        Command::Random(a) => random::run(&a),
        Command::Models(a) => models::run(&a),
        Command::GpuKit(a) => gpu_kit::run(&a),
        Command::Compare => compare::run(),
        Command::Setup => {
            setup::llvm()?;
            if let Err(why) = setup::hip() {
                println!("set-up: going on without HIP's headers and library: {why:#}");
            }
            setup::python().map(|_| ())
        }
    }
}
