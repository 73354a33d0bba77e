//! CPU targets: what is known about each, and LLVM's target machine for it.

use crate::emit::Caps;
use inkwell::OptimizationLevel;
use inkwell::targets::{CodeModel, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple};
use tensor::{Diagnostic, ErrorKind, Result};

/// A CPU to generate code for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CpuTarget {
    /// LLVM triple: `x86_64-unknown-linux-gnu`.
    pub triple: String,
    /// LLVM's name of the CPU, a psABI level for the portable tiers.
    pub cpu: String,
    /// LLVM's feature list, as `+avx2,+fma`; empty for the portable tiers.
    pub features: String,
}

/// The tiers that code can be generated for, besides `native`: name, and what their instructions include.
const TIERS: &[(&str, Caps)] = &[
    ("x86-64", Caps { f16_convert: false, round: false, gpu: None, half: false }),
    ("x86-64-v2", Caps { f16_convert: false, round: true, gpu: None, half: false }),
    ("x86-64-v3", Caps { f16_convert: true, round: true, gpu: None, half: false }),
    ("x86-64-v4", Caps { f16_convert: true, round: true, gpu: None, half: false }),
];

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Features of every x86-64 processor.
const BASE: &[&str] = &["64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "x87"];

/// LLVM's feature list without those that no machine is asked for.
fn checked_features(features: &str) -> String {
    let known = |f: &str| BASE.contains(&f) || runtime::machine::is_checked(f);
    let each = features.split(',').map(|f| match f.strip_prefix('+') {
        Some(name) if !known(name) => format!("-{name}"),
        _ => f.to_string(),
    });
    each.collect::<Vec<_>>().join(",")
}

impl CpuTarget {
    /// A portable tier or `native`, this machine with all its features.
    ///
    /// # Errors
    /// `Argument` for another name; it lists the known ones.
    pub fn tier(name: &str) -> Result<CpuTarget> {
        if name == "native" {
            return Ok(CpuTarget::native());
        }
        if TIERS.iter().any(|t| t.0 == name) {
            return Ok(CpuTarget { triple: TRIPLE.into(), cpu: name.into(), features: String::new() });
        }
        let known: Vec<_> = TIERS.iter().map(|t| t.0).chain(["native"]).collect();
        Err(Diagnostic::new(ErrorKind::Argument, format!("there is no CPU tier \"{name}\""))
            .help(format!("the tiers are {}", known.join(", "))))
    }

    /// This machine. The name alone is unreliable in virtual machines: what counts is the feature list. It holds only features that
    /// the runtime checks when it loads a model, so that code for this machine is refused by another one rather than faulting there.
    pub fn native() -> CpuTarget {
        let text = |s: inkwell::support::LLVMString| s.to_string_lossy().into_owned();
        CpuTarget {
            triple: TRIPLE.into(),
            cpu: text(TargetMachine::get_host_cpu_name()),
            features: checked_features(&text(TargetMachine::get_host_cpu_features())),
        }
    }

    /// What code for this target needs of a machine, for the artifact: the level, or the features that are used, as `+avx2,+fma`.
    pub fn requirement(&self) -> String {
        if self.features.is_empty() {
            return self.cpu.clone();
        }
        self.features.split(',').filter(|f| f.starts_with('+')).collect::<Vec<_>>().join(",")
    }

    /// Whether a feature is part of the target.
    pub fn has(&self, feature: &str) -> bool {
        self.features.split(',').any(|f| f.strip_prefix('+') == Some(feature))
    }

    /// What the emitter may use.
    pub fn caps(&self) -> Caps {
        match TIERS.iter().find(|t| t.0 == self.cpu) {
            Some(t) if self.features.is_empty() => t.1,
            _ => Caps { f16_convert: self.has("f16c"), round: self.has("sse4.1"), gpu: None, half: false },
        }
    }

    /// Vector width kernels should prefer, in bits.
    pub(crate) fn vector_bits(&self) -> u32 {
        if self.cpu == "x86-64-v4" || self.has("avx512f") { 512 } else { 256 }
    }

    /// LLVM's machine.
    pub(crate) fn machine(&self, level: OptimizationLevel) -> Result<TargetMachine> {
        static INIT: std::sync::Once = std::sync::Once::new();
        INIT.call_once(|| Target::initialize_x86(&InitializationConfig::default()));
        let fail = |why: String| {
            Diagnostic::new(ErrorKind::Argument, format!("LLVM has no code generator for {}: {why}", self.triple))
                .help("this build generates code for x86_64-unknown-linux-gnu")
        };
        let triple = TargetTriple::create(&self.triple);
        let target = Target::from_triple(&triple).map_err(|e| fail(e.to_string()))?;
        target
            .create_target_machine(&triple, &self.cpu, &self.features, level, RelocMode::PIC, CodeModel::Small)
            .ok_or_else(|| fail(format!("unknown CPU {}", self.cpu)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_for_this_machine_uses_only_what_is_checked() {
        assert_eq!(checked_features("+64bit,+avx2,-avx512f,+tsxldtrk,+bmi"), "+64bit,+avx2,-avx512f,-tsxldtrk,+bmi");
        let native = CpuTarget::native();
        let needs = native.requirement();
        assert!(!needs.is_empty() && needs.split(',').all(|f| f.starts_with('+')), "{needs:?}");
        assert!(
            needs.split(',').all(|f| BASE.contains(&&f[1..]) || runtime::machine::is_checked(&f[1..])),
            "{needs:?}"
        );
        assert_eq!(CpuTarget::tier("x86-64-v3").unwrap().requirement(), "x86-64-v3");
    }
}
