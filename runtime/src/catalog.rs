//! The table of catalog kernels: what runs a kernel by its id.

use kernels::catalog::CATALOG;
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
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuKernels;

pub(crate) fn unknown(id: u32) -> Diagnostic {
    Diagnostic::new(
        ErrorKind::Unsupported,
        format!("there is no kernel {id} in this build's catalog of {}", CATALOG.len()),
    )
    .help("compile the model again with this version")
}

impl Kernels for CpuKernels {
    fn name(&self, id: u32) -> Option<&'static str> {
        usize::try_from(id).ok().and_then(|i| CATALOG.get(i)).map(|k| k.name)
    }
    unsafe fn run(&self, id: u32, team: &dyn Team, bufs: &[u64], ints: &[i64], scalars: &[f64]) -> Result<()> {
        let def = usize::try_from(id).ok().and_then(|i| CATALOG.get(i)).ok_or_else(|| unknown(id))?;
        let _ = (team, bufs, ints, scalars);
        Err(Diagnostic::new(
            ErrorKind::Unsupported,
            format!("kernel {} has no CPU implementation in this build", def.name),
        ))
    }
}
