//! GPU code: loop nests to code objects for AMD and PTX for NVIDIA, and the hand-written kernels, precompiled for every architecture.
//!
//! In reading order: `schedule` (who takes which points), `kernel` (the loops), `rows` (points that threads share), `reduce`, `held` (rows in
//! registers), `vector` and `wave` (wide accesses, what threads do together), `target` (LLVM's side of an architecture), [`code`] (modules to code), [`elf`] (relocatable object → code object),
//! [`notes`] (what a code object says about its kernels).

pub mod code;
pub mod elf;
#[cfg(test)]
#[allow(dead_code)]
pub(crate) mod exec;
mod held;
mod kernel;
pub mod notes;
mod reduce;
mod rows;
mod schedule;
pub(crate) mod target;
mod vector;
mod wave;

pub use code::{Ir, emit};

use kernels::gpu::{Arch, Launch};
use lower::host::KernelDef;
use tensor::{Diagnostic, ErrorKind, Result};

include!(concat!(env!("OUT_DIR"), "/gpu_table.rs"));

/// How the kernel that [`emit`] makes of a nest is launched; the same for every architecture.
pub fn launch(def: &KernelDef) -> Launch {
    schedule::Plan::of(def).launch
}

/// The hand-written kernels for an architecture: a code object (AMD) or PTX text with a null byte at its end (NVIDIA). `None` when
/// this build had no clang.
pub fn precompiled(arch: &Arch) -> Option<&'static [u8]> {
    TABLE.iter().find(|t| t.0 == arch.name).map(|t| t.1).filter(|code| !code.is_empty())
}

/// As [`precompiled`].
///
/// # Errors
/// `Unsupported` when this build had no clang, with what to install.
pub fn catalog_code(arch: &Arch) -> Result<&'static [u8]> {
    precompiled(arch).ok_or_else(|| {
        let what = format!("this build has no kernels for {}: clang 19 was missing when it was built", arch.target());
        Diagnostic::new(ErrorKind::Unsupported, what).help("install clang-19 and lld-19 and build again")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::gpu::Platform;
    use kernels::gpu::arch::ARCHS;
    use kernels::gpu::catalog::ENTRIES;

    fn contains(code: &[u8], what: &str) -> bool {
        code.windows(what.len()).any(|w| w == what.as_bytes())
    }

    #[test]
    fn every_architecture_has_every_kernel() {
        for a in ARCHS {
            let code = precompiled(a).unwrap();
            for (symbol, _) in ENTRIES {
                let (name, end) = match a.platform {
                    Platform::Hip => (format!("\0{symbol}.kd\0"), &b"\0"[..]),
                    Platform::Cuda => (format!(".entry {symbol}("), &b"\0"[..]),
                };
                assert!(contains(code, &name), "{} has no {symbol}", a.name);
                assert!(a.platform == Platform::Hip || code.ends_with(end), "{}", a.name);
            }
        }
    }
}
