//! What a compile may be asked for.

use rewrite::rule::NumClass;
use tensor::{Diagnostic, ErrorKind, Result};

/// What to compile for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// The CPU device, with code for a psABI tier: `x86-64`, `x86-64-v2`, `x86-64-v3`, `x86-64-v4` or `native`.
    Cpu {
        /// The tier.
        tier: String,
    },
}

impl Target {
    /// The CPU device at the best portable tier this machine runs.
    pub fn host() -> Target {
        let tier = match kernels::cpu::Tier::detect() {
            kernels::cpu::Tier::Portable => "x86-64",
            _ => "x86-64-v3",
        };
        Target::Cpu { tier: tier.into() }
    }
    /// From `cpu` or `cpu:TIER`.
    ///
    /// # Errors
    /// `Argument` for anything else.
    pub fn parse(text: &str) -> Result<Target> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(Target::host()),
            Some(("cpu", tier)) => Ok(Target::Cpu { tier: tier.into() }),
            _ => Err(Diagnostic::new(ErrorKind::Argument, format!("there is no target {text:?}"))
                .help("the targets are cpu and cpu:TIER with TIER x86-64, x86-64-v2, x86-64-v3, x86-64-v4 or native")),
        }
    }
    pub(crate) fn tier(&self) -> &str {
        let Target::Cpu { tier } = self;
        tier
    }
    pub(crate) fn triple(&self) -> &'static str {
        "x86_64-unknown-linux-gnu"
    }
}

/// Where constants go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Constants {
    /// All into the file beside the artifact.
    #[default]
    Sidecar,
    /// Weights that the model keeps in external data files stay there; the artifact refers to them by path.
    Reference,
}

/// Options of a compile. All have defaults; everything that changes bytes is in the artifact.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompileOptions {
    /// What to compile for.
    pub target: Target,
    /// The loosest numeric class of rewrite rules that run: `Exact`, `Reassoc` (default) or `Approx`.
    pub rewrites: NumClass,
    /// Optional passes and rewrite rules that do not run, by name.
    pub disabled: Vec<String>,
    /// Effort of optimising generated kernels, 0 to 3.
    pub opt_level: u8,
    /// Where constants go.
    pub constants: Constants,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            target: Target::host(),
            rewrites: NumClass::Reassoc,
            disabled: Vec::new(),
            opt_level: 3,
            constants: Constants::Sidecar,
        }
    }
}

/// Every option with its default and meaning: the source of `docs/options.md`.
pub const OPTIONS: &[(&str, &str, &str)] = &[
    (
        "target",
        "cpu",
        "what to compile for: `cpu` (the best portable tier of this machine), `cpu:x86-64`, `cpu:x86-64-v2`, `cpu:x86-64-v3`, `cpu:x86-64-v4`, `cpu:native`",
    ),
    (
        "rewrites",
        "reassoc",
        "loosest numeric class of rewrite rules: `exact` keeps every bit, `reassoc` may change rounding, `approx` may use bounded approximations",
    ),
    ("disable", "", "optional passes and rewrite rules that do not run, by name"),
    ("opt-level", "3", "effort of optimising generated kernels, 0 to 3"),
    (
        "constants",
        "sidecar",
        "`sidecar` writes weights to a file beside the artifact; `reference` leaves those of external data files where they are",
    ),
];

impl CompileOptions {
    #[cfg(feature = "llvm")]
    pub(crate) fn level(&self) -> codegen::OptLevel {
        if self.opt_level == 0 { codegen::OptLevel::None } else { codegen::OptLevel::Full }
    }
    /// One line per option, as the artifact keeps them.
    pub fn lines(&self) -> Vec<String> {
        vec![
            format!("target={}:{}", "cpu", self.target.tier()),
            format!("rewrites={:?}", self.rewrites).to_lowercase(),
            format!("disable={}", self.disabled.join(",")),
            format!("opt-level={}", self.opt_level),
            format!("constants={:?}", self.constants).to_lowercase(),
        ]
    }
    /// The page `docs/options.md`.
    pub fn render_markdown() -> String {
        let mut s = String::from(
            "# Compile options\n\nFields of `CompileOptions`, flags of `hip-compiler` and `hip-opt` by the same names. Everything that changes bytes is kept in the artifact (`hip-inspect` prints it) and hashed.\n\n| option | default | meaning |\n|---|---|---|\n",
        );
        for (name, default, doc) in OPTIONS {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            s += &format!("| `{name}` | {default} | {doc} |\n");
        }
        s
    }
}
