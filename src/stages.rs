//! The stages between import and code generation.

use crate::options::CompileOptions;
use ir::hip::Hip;
use ir::{Module, Onnx};
use lower::host::HostProgram;
use tensor::Result;

/// Callers' passes.
#[derive(Default)]
pub struct Hooks {}

/// What code generation takes.
pub struct Lowered {
    /// The HIP dialect.
    pub hip: Module<Hip>,
    /// The host program.
    pub program: HostProgram,
}

pub(crate) fn lower(mut m: Module<Onnx>, options: &CompileOptions, _: &mut Hooks) -> Result<Lowered> {
    ir::infer::infer(&mut m)?;
    let mut ro = rewrite::Options::default();
    ro.rewrites = options.rewrites;
    ro.enabled = !options.disabled.iter().any(|d| d == "rewrite");
    let report = rewrite::rewrite(&mut m, &ro)?;
    tracing::info!("{report}");
    let info = ir::infer::infer(&mut m)?;
    let (mut hip, explain) = lower::to_hip(&m, &info, &Default::default())?;
    tracing::debug!("{explain}");
    if !options.disabled.iter().any(|d| d == "fuse") {
        lower::fuse(&mut hip);
    }
    let plan = lower::plan(&mut hip)?;
    let program = lower::host_program(&mut hip, &plan)?;
    Ok(Lowered { hip, program })
}
