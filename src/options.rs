//! What a compile may be asked for.

use kernels::gpu::Arch;
use kernels::gpu::arch::ARCHS;
use rewrite::rule::NumClass;
use std::path::{Path, PathBuf};
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
    /// GPUs of an architecture.
    Gpu(&'static Arch),
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
    /// From `cpu`, `cpu:TIER`, `hip:ARCH` or `cuda:ARCH`.
    ///
    /// # Errors
    /// `Argument` for anything else; it lists what there is.
    pub fn parse(text: &str) -> Result<Target> {
        let names: Vec<_> = ARCHS.iter().map(Arch::target).collect();
        let help = format!(
            "the targets are cpu, cpu:TIER with TIER x86-64, x86-64-v2, x86-64-v3, x86-64-v4 or native, and {}",
            names.join(", ")
        );
        match text.split_once(':') {
            None if text == "cpu" => Ok(Target::host()),
            Some(("cpu", tier)) => Ok(Target::Cpu { tier: tier.into() }),
            Some(("hip" | "cuda", _)) => Arch::parse_target(text)
                .map(Target::Gpu)
                .map_err(|why| Diagnostic::new(ErrorKind::Argument, why).help(help)),
            _ => Err(Diagnostic::new(ErrorKind::Argument, format!("there is no target {text:?}")).help(help)),
        }
    }
    /// From a list separated by commas: `hip:gfx942,cuda:sm_90,cpu`.
    ///
    /// # Errors
    /// As [`Target::parse`], and `Argument` for a target that is named twice or a second CPU tier.
    pub fn parse_list(text: &str) -> Result<Vec<Target>> {
        let mut out: Vec<Target> = vec![];
        for part in text.split(',') {
            let t = Target::parse(part.trim())?;
            let is_cpu = |t: &Target| matches!(t, Target::Cpu { .. });
            if let Some(other) = out.iter().find(|o| **o == t || is_cpu(o) && is_cpu(&t)) {
                let text = format!("the targets {} and {} cannot both be in one artifact", other.name(), t.name());
                return Err(
                    Diagnostic::new(ErrorKind::Argument, text).help("name each target once, and one tier of the CPU")
                );
            }
            out.push(t);
        }
        Ok(out)
    }
    /// As [`Target::parse`] reads it.
    pub fn name(&self) -> String {
        match self {
            Target::Cpu { tier } => format!("cpu:{tier}"),
            Target::Gpu(arch) => arch.target(),
        }
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
    /// What to compile for: kernels for each target, in one artifact. Host code is made for the tier of the CPU target, for the least
    /// one where there is none.
    pub targets: Vec<Target>,
    /// The loosest numeric class of rewrite rules that run: `Exact`, `Reassoc` (default) or `Approx`.
    pub rewrites: NumClass,
    /// Optional passes and rewrite rules that do not run, by name.
    pub disabled: Vec<String>,
    /// Effort of optimising generated kernels, 0 to 3.
    pub opt_level: u8,
    /// Where constants go.
    pub constants: Constants,
    /// The folder that the artifact will lie in. External data in it, or below it, is then referred to by its path from there, so that
    /// the folder can be moved; other external data, and all without this, by its absolute path.
    pub artifact_folder: Option<PathBuf>,
}

/// A folder without links and relative parts; that of a bare file name is empty and means the current one.
pub(crate) fn real_folder(folder: &Path) -> std::io::Result<PathBuf> {
    if folder.as_os_str().is_empty() { Path::new(".").canonicalize() } else { folder.canonicalize() }
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            targets: vec![Target::host()],
            rewrites: NumClass::Reassoc,
            disabled: Vec::new(),
            opt_level: 3,
            constants: Constants::Sidecar,
            artifact_folder: None,
        }
    }
}

/// Every option with its default and meaning: the source of `docs/options.md`.
pub const OPTIONS: &[(&str, &str, &str)] = &[
    (
        "target",
        "cpu",
        "what to compile for, separated by commas: `cpu` (the best portable tier of this machine), `cpu:x86-64`, `cpu:x86-64-v2`, `cpu:x86-64-v3`, `cpu:x86-64-v4`, `cpu:native`; AMD GPUs `hip:gfx90a`, `hip:gfx942`, `hip:gfx1030`, `hip:gfx1100`, `hip:gfx1151`, `hip:gfx1201`; NVIDIA GPUs `cuda:sm_80`, `cuda:sm_90` (and later ones, which take their code)",
    ),
    (
        "rewrites",
        "reassoc",
        "loosest numeric class of rewrite rules: `exact` keeps every bit but the sign of a zero and the payload of a NaN, `reassoc` may change rounding, `approx` may use bounded approximations",
    ),
    ("disable", "", "optional passes and rewrite rules that do not run, by name"),
    ("opt-level", "3", "effort of optimising generated kernels, 0 to 3"),
    (
        "constants",
        "sidecar",
        "`sidecar` writes weights to a file beside the artifact; `reference` leaves those of external data files where they are ([constants](constants.md))",
    ),
];

impl CompileOptions {
    #[cfg(feature = "llvm")]
    pub(crate) fn level(&self) -> codegen::OptLevel {
        if self.opt_level == 0 { codegen::OptLevel::None } else { codegen::OptLevel::Full }
    }
    /// Tier of the CPU that host code, and kernels of the CPU target, are made for.
    pub fn tier(&self) -> &str {
        let tier = self.targets.iter().find_map(|t| match t {
            Target::Cpu { tier } => Some(tier.as_str()),
            Target::Gpu(_) => None,
        });
        tier.unwrap_or("x86-64")
    }
    /// The GPU architectures among the targets.
    pub fn gpus(&self) -> impl Iterator<Item = &'static Arch> {
        self.targets.iter().filter_map(|t| match t {
            Target::Gpu(arch) => Some(*arch),
            Target::Cpu { .. } => None,
        })
    }
    /// Whether kernels are made for the CPU.
    pub fn has_cpu(&self) -> bool {
        self.targets.iter().any(|t| matches!(t, Target::Cpu { .. }))
    }
    /// LLVM triple of the host code.
    #[cfg_attr(not(feature = "llvm"), allow(dead_code))]
    pub(crate) fn triple(&self) -> &'static str {
        "x86_64-unknown-linux-gnu"
    }
    /// Names of the devices as the artifact keeps them: `cpu`, `hip:gfx942`.
    #[cfg_attr(not(feature = "llvm"), allow(dead_code))]
    pub(crate) fn devices(&self) -> String {
        let name = |t: &Target| match t {
            Target::Cpu { .. } => "cpu".to_string(),
            Target::Gpu(arch) => arch.target(),
        };
        self.targets.iter().map(name).collect::<Vec<_>>().join(",")
    }
    /// How the artifact names an external file.
    pub(crate) fn external_path<'p>(&self, file: &'p Path) -> &'p Path {
        let folder = self.artifact_folder.as_ref().and_then(|f| real_folder(f).ok());
        folder.and_then(|f| file.strip_prefix(f).ok()).unwrap_or(file)
    }
    /// One line per option, as the artifact keeps them.
    pub fn lines(&self) -> Vec<String> {
        vec![
            format!("target={}", self.targets.iter().map(Target::name).collect::<Vec<_>>().join(",")),
            format!("rewrites={:?}", self.rewrites).to_lowercase(),
            format!("disable={}", self.disabled.join(",")),
            format!("opt-level={}", self.opt_level),
            format!("constants={:?}", self.constants).to_lowercase(),
        ]
    }
    /// The page `docs/options.md`.
    pub fn render_markdown() -> String {
        let mut s = String::from(
            "# Compile options\n\nFields of `CompileOptions`, flags of `hip-compiler` by the same names (`hip-opt` takes `target` and `disable`). Everything that changes bytes is kept in the artifact and hashed.\n\n| option | default | meaning |\n|---|---|---|\n",
        );
        for (name, default, doc) in OPTIONS {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            s += &format!("| `{name}` | {default} | {doc} |\n");
        }
        s + "\n```console\n$ hip-compiler model.onnx --target cpu:x86-64 --rewrites exact --disable fuse --opt-level 1\nmodel.hipep\n\
             $ hip-inspect model.hipep\n…\noption      target=cpu:x86-64\noption      rewrites=exact\noption      disable=fuse\n\
             option      opt-level=1\noption      constants=sidecar\n…\n```\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_in_order_and_refused_with_the_known_ones() {
        let names =
            |text: &str| -> Vec<String> { Target::parse_list(text).unwrap().iter().map(Target::name).collect() };
        assert_eq!(names("hip:gfx942,cuda:sm_90, cpu:native"), ["hip:gfx942", "cuda:sm_90", "cpu:native"]);
        assert_eq!(names("cpu:x86-64"), ["cpu:x86-64"]);
        let refused = |text: &str, word: &str| {
            let e = Target::parse_list(text).unwrap_err().to_string();
            assert!(e.contains(word), "{e}");
        };
        refused("hip:gfx1", "hip:gfx1151");
        refused("hip:gfx950", "LLVM 22");
        refused("cuda:gfx942", "hip:gfx942");
        refused("cpu,cpu:native", "cannot both");
        refused("hip:gfx942,hip:gfx942", "cannot both");
        refused("", "there is no target");
        let mut o = CompileOptions::default();
        o.targets = Target::parse_list("hip:gfx942,cuda:sm_90").unwrap();
        assert!(!o.has_cpu() && o.gpus().count() == 2 && o.tier() == "x86-64");
        assert_eq!(o.lines()[0], "target=hip:gfx942,cuda:sm_90");
    }
}
