//! Modules to optimised objects, and archives of objects.

use crate::emit::Em;
use crate::nest;
use crate::target::CpuTarget;
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::module::{Linkage, Module};
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{FileType, TargetMachine};
use lower::host::KernelDef;
use tensor::{Diagnostic, ErrorKind, Result};

/// How hard kernels are optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OptLevel {
    /// No vectorisation: quick builds and debugging.
    None,
    /// Vectorised.
    #[default]
    Full,
}

/// A module with the machine's triple and layout.
pub(crate) fn module<'c>(ctx: &'c Context, name: &str, machine: &TargetMachine) -> Module<'c> {
    let m = ctx.create_module(name);
    m.set_source_file_name(name);
    m.set_triple(&machine.get_triple());
    m.set_data_layout(&machine.get_target_data().get_data_layout());
    m
}

fn internal(what: &str, why: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, format!("LLVM {what}: {why}"))
}

/// Checks a module with LLVM's verifier.
pub(crate) fn verify(m: &Module<'_>) -> Result<()> {
    m.verify().map_err(|e| internal("refuses the generated module", e.to_string_lossy()))
}

/// The kernel pipeline. Kernels are loops over straight-line code that the emitter has hoisted already, so that a part of what
/// `default<O2>` does is enough: it takes half the time and the kernels run as fast (`codegen/examples/bandwidth.rs`).
const PIPELINE: &str = concat!(
    // The vectoriser must know that tables of constants do not overlap buffers.
    "require<globals-aa>,function(",
    "early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,loop-mssa(licm),",
    // Short inner loops vanish, so that the loop around them is vectorised.
    "loop(indvars,loop-unroll-full),early-cse<memssa>,loop-vectorize,loop-unroll<O2;no-runtime;no-partial>,",
    "instcombine<no-verify-fixpoint>,simplifycfg,slp-vectorizer,early-cse<memssa>,loop-mssa(licm))",
);

/// Runs the kernel pipeline; functions marked `optnone` are left alone.
pub(crate) fn optimise(m: &Module<'_>, machine: &TargetMachine, level: OptLevel) -> Result<()> {
    if level == OptLevel::None {
        return Ok(());
    }
    let o = PassBuilderOptions::create();
    o.set_loop_vectorization(true);
    o.set_loop_slp_vectorization(true);
    o.set_loop_interleaving(true);
    o.set_loop_unrolling(true);
    m.run_passes(PIPELINE, machine, o).map_err(|e| internal("could not optimise", e.to_string_lossy()))
}

/// Emits an object file. The module is used up.
pub(crate) fn object(m: &Module<'_>, machine: &TargetMachine) -> Result<Vec<u8>> {
    let b = machine
        .write_to_memory_buffer(m, FileType::Object)
        .map_err(|e| internal("could not emit an object", e.to_string_lossy()))?;
    Ok(b.as_slice().to_vec())
}

/// The bitcode of a module.
pub(crate) fn bitcode(m: &Module<'_>) -> Vec<u8> {
    let b = m.write_bitcode_to_memory();
    b.as_slice().to_vec()
}

/// Kernels as an object for a target, and as text.
pub(crate) struct Kernels {
    pub object: Vec<u8>,
    pub asm: Option<String>,
}

/// Emits kernels; `nodes` gives the model node of each for the message.
///
/// # Errors
/// As [`nest::emit`].
pub(crate) fn emit_kernels(
    e: &Em<'_, '_>,
    defs: &[KernelDef],
    nodes: &[Option<String>],
    target: &CpuTarget,
) -> Result<()> {
    let width = target.vector_bits().to_string();
    for (def, node) in defs.iter().zip(nodes) {
        let f = nest::emit(e, def, node.as_deref(), Linkage::External)?;
        e.string_attr(f, "prefer-vector-width", &width);
    }
    Ok(())
}

/// Emits, optimises and compiles kernels in a context of their own, so that several threads can work at once.
///
/// # Errors
/// As [`emit_kernels`].
pub(crate) fn kernels(
    name: &str,
    defs: &[KernelDef],
    nodes: &[Option<String>],
    target: &CpuTarget,
    level: OptLevel,
    want_asm: bool,
) -> Result<Kernels> {
    let ctx = Context::create();
    let opt = if level == OptLevel::None { OptimizationLevel::None } else { OptimizationLevel::Aggressive };
    let machine = target.machine(opt)?;
    let m = module(&ctx, name, &machine);
    emit_kernels(&Em::new(&ctx, &m, target.caps()), defs, nodes, target)?;
    verify(&m)?;
    optimise(&m, &machine, level)?;
    let asm = if want_asm {
        let copy = m.clone();
        let b = machine
            .write_to_memory_buffer(&copy, FileType::Assembly)
            .map_err(|e| internal("could not emit assembly", e.to_string_lossy()))?;
        Some(String::from_utf8_lossy(b.as_slice()).into_owned())
    } else {
        None
    };
    let object = object(&m, &machine)?;
    Ok(Kernels { object, asm })
}
