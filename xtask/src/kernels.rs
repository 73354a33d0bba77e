//! Checks GPU kernels without a GPU: the hand-written ones, and with `--models` those that the corpus models are compiled to. The work is done by an example of `codegen`, which sees LLVM.

use crate::{setup, sh};
use anyhow::Result;

#[derive(clap::Args, Default)]
pub struct Args {
    /// Break kernels on purpose and count how often the checks notice.
    #[arg(long)]
    sabotage: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Check the kernels generated for the models of the corpus instead of the hand-written ones.
    #[arg(long, conflicts_with = "sabotage")]
    models: bool,
    /// Only calls (or models) whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    setup::llvm()?;
    let mut c = sh::cargo(&["run", "--quiet", "--package", "hip-ep-codegen", "--example", "kernels", "--"]);
    for (on, flag) in [(args.sabotage, "--sabotage"), (args.json, "--json")] {
        if on {
            c.arg(flag);
        }
    }
    if args.models {
        c.arg("--models").arg(crate::models::folder());
    }
    if let Some(only) = &args.only {
        c.args(["--only", only.as_str()]);
    }
    sh::run(&mut c)
}
