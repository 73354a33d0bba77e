//! The table of catalog kernels: what runs a kernel by its id.

use kernels::catalog::CATALOG;
use kernels::cpu::{Args, Tier};
use kernels::team::Team;
use tensor::{Diagnostic, ErrorKind, Result};

/// Runs kernels of the catalog.
pub trait Kernels: Send + Sync {
    /// The name of a kernel.
    fn name(&self, id: u32) -> Option<&'static str>;

    /// Runs a kernel.
    ///
    /// # Errors
    /// `Unsupported` for an unknown id or arguments outside the kernel's limits.
    ///
    /// # Safety
    /// The arguments are those of the kernel's signature, over live memory of the extents they state.
    unsafe fn run(&self, id: u32, team: &dyn Team, bufs: &[u64], ints: &[i64], scalars: &[f64]) -> Result<()>;
}

/// The kernels of [`CATALOG`] on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct CpuKernels {
    tier: Tier,
}

impl CpuKernels {
    /// The kernels of one tier. Results are equal bits within a tier only.
    ///
    /// # Errors
    /// `Unsupported` when this machine does not run the tier.
    pub fn new(tier: Tier) -> Result<CpuKernels> {
        if tier == Tier::Portable || tier == Tier::detect() {
            return Ok(CpuKernels { tier });
        }
        let text = format!("this machine does not run the {} kernels; it runs {}", tier.name(), Tier::detect().name());
        Err(Diagnostic::new(ErrorKind::Unsupported, text))
    }
    /// The tier.
    pub fn tier(&self) -> Tier {
        self.tier
    }
}

impl Default for CpuKernels {
    /// The best tier this machine runs.
    fn default() -> CpuKernels {
        CpuKernels { tier: Tier::detect() }
    }
}

impl Kernels for CpuKernels {
    fn name(&self, id: u32) -> Option<&'static str> {
        usize::try_from(id).ok().and_then(|i| CATALOG.get(i)).map(|k| k.name)
    }
    unsafe fn run(&self, id: u32, team: &dyn Team, bufs: &[u64], ints: &[i64], scalars: &[f64]) -> Result<()> {
        // SAFETY: the caller's promise.
        let done = unsafe { kernels::cpu::run(id, self.tier, team, &Args { bufs, ints, scalars }) };
        done.map_err(|e| Diagnostic::new(ErrorKind::Device, format!("{}: {}", self.name(id).unwrap_or("kernel"), e.0)))
    }
}
