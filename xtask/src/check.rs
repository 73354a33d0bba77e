//! What a reviewer runs: format, lints, docs, generated files, rules of the tree. Needs no GPU; `--no-llvm` needs no LLVM either.

use crate::{deny, setup, sh, tidy};
use anyhow::{Result, bail};

#[derive(clap::Args, Default)]
pub struct Args {
    /// Leave out the crates that need LLVM.
    #[arg(long)]
    no_llvm: bool,
    /// Write generated files anew instead of comparing.
    #[arg(long)]
    bless: bool,
}

pub fn run(args: &Args) -> Result<()> {
    sh::run(&mut sh::cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    deny::run()?;
    if !args.no_llvm {
        setup::llvm()?;
    }
    if args.bless {
        if args.no_llvm {
            bail!("the generated files come out of the tools, which need LLVM: leave --no-llvm out");
        }
        return generated(true);
    }
    let scope: &[&str] = if args.no_llvm { &[] } else { &["--workspace"] };
    let mut clippy = sh::cargo(&["clippy", "--quiet", "--all-targets"]);
    sh::run(clippy.args(scope).args(["--", "--deny", "warnings"]))?;
    // The library as an application without LLVM builds it, and with the tools' helpers.
    for features in ["", "tools"] {
        let mut lean = sh::cargo(&["clippy", "--quiet", "--package", "hip-ep", "--no-default-features"]);
        sh::run(lean.args(["--features", features, "--", "--deny", "warnings"]))?;
    }
    let mut doc = sh::cargo(&["doc", "--quiet", "--no-deps"]);
    sh::run(doc.args(scope).env("RUSTDOCFLAGS", "--deny warnings"))?;
    if !args.no_llvm {
        generated(false)?;
    }
    println!("check: ok");
    Ok(())
}

/// Files that come out of the code: `(path, tool and arguments that print it)`.
const GENERATED: &[(&str, &str, &[&str])] = &[
    ("docs/ABI.md", "hip-inspect", &["--docs", "abi"]),
    ("docs/passes.md", "hip-opt", &["--docs", "passes"]),
    ("docs/options.md", "hip-compiler", &["--docs", "options"]),
    ("docs/OPS.md", "hip-opt", &["--docs", "ops"]),
];

fn generated(bless: bool) -> Result<()> {
    let bin = sh::tools()?;
    for (path, tool, args) in GENERATED {
        let want = sh::read(std::process::Command::new(bin.join(tool)).args(*args))?;
        if bless {
            std::fs::write(path, want)?;
        } else if std::fs::read_to_string(path).unwrap_or_default() != want {
            bail!("{path} is out of date: cargo xtask check --bless");
        }
    }
    Ok(())
}
