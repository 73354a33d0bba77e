//! The table of GPU architectures. Whoever needs to know a wave size, a matrix unit or a limit asks here.

/// Which vendor's driver loads the code, and so in which form it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Platform {
    /// AMD: code objects (ELF) for `hipModuleLoadData`.
    Hip,
    /// NVIDIA: PTX text for `cuModuleLoadData`.
    Cuda,
}

impl Platform {
    /// The name before the colon of a target: `hip`, `cuda`.
    pub fn name(self) -> &'static str {
        match self {
            Platform::Hip => "hip",
            Platform::Cuda => "cuda",
        }
    }
}

/// Instructions that multiply f16 matrices with sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixUnit {
    /// None: f16 products are computed by FMA in f32.
    None,
    /// CDNA `v_mfma_f32_16x16x16_f16`, one wave of 64.
    Mfma,
    /// RDNA3 `v_wmma_f32_16x16x16_f16`; both halves of the wave hold the same operand rows.
    Wmma11,
    /// RDNA4 `v_wmma_f32_16x16x16_f16`; each half of the wave holds half of k.
    Wmma12,
    /// NVIDIA `mma.sync.m16n8k16`.
    MmaSync,
}

/// A GPU architecture that code is generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    /// The vendor's name of it: `gfx942`, `sm_90`.
    pub name: &'static str,
    /// Whose it is.
    pub platform: Platform,
    /// Work-items that run in step: 64 or 32. RDNA is used in its wave32 mode.
    pub wave: u32,
    /// How f16 matrix products are computed.
    pub matrix: MatrixUnit,
    /// Shared memory that a block may have without asking the driver for more, in bytes.
    pub lds_bytes: u32,
}

const fn hip(name: &'static str, wave: u32, matrix: MatrixUnit) -> Arch {
    Arch { name, platform: Platform::Hip, wave, matrix, lds_bytes: 65_536 }
}
const fn cuda(name: &'static str) -> Arch {
    // More than 48 KiB needs a call to the driver and a size known at launch only.
    Arch { name, platform: Platform::Cuda, wave: 32, matrix: MatrixUnit::MmaSync, lds_bytes: 49_152 }
}

/// All architectures.
pub static ARCHS: &[Arch] = &[
    hip("gfx90a", 64, MatrixUnit::Mfma),
    hip("gfx942", 64, MatrixUnit::Mfma),
    hip("gfx1030", 32, MatrixUnit::None),
    hip("gfx1100", 32, MatrixUnit::Wmma11),
    hip("gfx1151", 32, MatrixUnit::Wmma11),
    hip("gfx1201", 32, MatrixUnit::Wmma12),
    cuda("sm_80"),
    cuda("sm_90"),
];

/// Architectures that are known and that this build cannot generate code for, with the reason.
pub static REFUSED: &[(&str, &str)] = &[("gfx950", "it needs LLVM 22, this build has LLVM 19")];

impl Arch {
    /// The architecture of a name. AMD's names may carry feature suffixes, as drivers report them: `gfx942:sramecc+:xnack-`.
    ///
    /// # Errors
    /// For a name that is not in the table: the reason, and the names that are.
    pub fn find(name: &str) -> Result<&'static Arch, String> {
        let base = name.split(':').next().unwrap_or(name);
        if let Some(a) = ARCHS.iter().find(|a| a.name == base) {
            return Ok(a);
        }
        if let Some((_, why)) = REFUSED.iter().find(|r| r.0 == base) {
            return Err(format!("no code is generated for {base}: {why}"));
        }
        let known: Vec<_> = ARCHS.iter().map(|a| a.name).collect();
        Err(format!("there is no GPU architecture \"{base}\"; the known ones are {}", known.join(", ")))
    }

    /// The architecture of a target: `hip:gfx942`, `cuda:sm_90`.
    ///
    /// # Errors
    /// As for [`Arch::find`], and when platform and name do not belong together.
    pub fn parse_target(target: &str) -> Result<&'static Arch, String> {
        let Some((platform, name)) = target.split_once(':') else {
            return Err(format!("\"{target}\" is not a GPU target; write hip:gfx942 or cuda:sm_90"));
        };
        let arch = Arch::find(name)?;
        if arch.platform.name() != platform {
            return Err(format!("{name} is no {platform} architecture; write {}", arch.target()));
        }
        Ok(arch)
    }

    /// The target's name, as [`Arch::parse_target`] reads it.
    pub fn target(&self) -> String {
        format!("{}:{}", self.platform.name(), self.name)
    }

    /// Whether code for this architecture runs on a device that reports `device` as its name. On AMD the names must be equal; PTX also
    /// runs on later architectures.
    pub fn runs_on(&self, device: &str) -> bool {
        let base = device.split(':').next().unwrap_or(device);
        match self.platform {
            Platform::Hip => base == self.name,
            Platform::Cuda => {
                let number = |s: &str| s.strip_prefix("sm_").and_then(|n| n.parse::<u32>().ok());
                matches!((number(self.name), number(base)), (Some(code), Some(device)) if code <= device)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_refused_with_a_reason() {
        assert_eq!(Arch::find("gfx942:sramecc+:xnack-").unwrap().wave, 64);
        assert_eq!(Arch::find("gfx1100").unwrap().wave, 32);
        assert!(Arch::find("gfx950").unwrap_err().contains("LLVM 22"));
        let e = Arch::find("gfx1").unwrap_err();
        assert!(ARCHS.iter().all(|a| e.contains(a.name)), "{e}");
    }

    #[test]
    fn targets_parse_back() {
        for a in ARCHS {
            assert_eq!(Arch::parse_target(&a.target()), Ok(a));
        }
        assert!(Arch::parse_target("cuda:gfx942").unwrap_err().contains("hip:gfx942"));
        assert!(Arch::parse_target("gfx942").is_err());
    }

    #[test]
    fn ptx_runs_on_later_devices_and_code_objects_on_their_own() {
        let (a, n) = (Arch::find("gfx942").unwrap(), Arch::find("sm_80").unwrap());
        assert!(a.runs_on("gfx942:sramecc+:xnack-") && !a.runs_on("gfx90a"));
        assert!(n.runs_on("sm_90") && n.runs_on("sm_100") && !Arch::find("sm_90").unwrap().runs_on("sm_80"));
    }
}
