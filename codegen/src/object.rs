//! Modules to optimised objects, and archives of objects.

use crate::emit::Em;
use crate::nest;
use crate::target::CpuTarget;
use inkwell::OptimizationLevel;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::context::Context;
use inkwell::module::{Linkage, Module};
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{FileType, TargetMachine};
use inkwell::values::{BasicValue, BasicValueEnum, FunctionValue, InstructionOpcode};
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
    "instcombine<no-verify-fixpoint>,simplifycfg)",
);
/// The rest of it: straight-line code becomes vectors.
const PACK: &str = "require<globals-aa>,function(slp-vectorizer,early-cse<memssa>,loop-mssa(licm))";

/// Runs the kernel pipeline; functions marked `optnone` are left alone.
pub(crate) fn optimise(m: &Module<'_>, machine: &TargetMachine, level: OptLevel) -> Result<()> {
    if level == OptLevel::None {
        return Ok(());
    }
    let run = |passes: &str| {
        let o = PassBuilderOptions::create();
        o.set_loop_vectorization(true);
        o.set_loop_slp_vectorization(true);
        o.set_loop_interleaving(true);
        o.set_loop_unrolling(true);
        m.run_passes(passes, machine, o).map_err(|e| internal("could not optimise", e.to_string_lossy()))
    };
    run(PIPELINE)?;
    // LLVM 19's SLP vectoriser narrows the least and the greatest of integers of one bit to i1 and compares those with their sign: 1 is
    // less than 0 then. It leaves functions with this attribute alone.
    let kind = Attribute::get_named_enum_kind_id("noimplicitfloat");
    let alone: Vec<FunctionValue<'_>> = m.get_functions().filter(|f| orders_bits(*f)).collect();
    let mark = m.get_context().create_enum_attribute(kind, 0);
    alone.iter().for_each(|f| f.add_attribute(AttributeLoc::Function, mark));
    let done = run(PACK);
    alone.iter().for_each(|f| f.remove_enum_attribute(AttributeLoc::Function, kind));
    done
}

/// Whether a function takes the signed minimum or maximum of an integer that has one bit.
fn orders_bits(f: FunctionValue<'_>) -> bool {
    f.get_basic_block_iter().flat_map(|b| b.get_instructions()).any(|i| {
        let callee = || i.get_operand(i.get_num_operands().checked_sub(1)?)?.value();
        let is_order = |v: BasicValueEnum<'_>| {
            let BasicValueEnum::PointerValue(p) = v else { return false };
            let name = p.get_name().to_bytes();
            name.starts_with(b"llvm.smin.i") || name.starts_with(b"llvm.smax.i")
        };
        i.get_opcode() == InstructionOpcode::Call
            && callee().is_some_and(is_order)
            && (0..2).filter_map(|k| i.get_operand(k)?.value()).any(is_bit)
    })
}

fn is_bit(v: BasicValueEnum<'_>) -> bool {
    let BasicValueEnum::IntValue(v) = v else { return false };
    let Some(i) = v.as_instruction_value() else { return false };
    let operand = |k: u32| match i.get_operand(k)?.value()? {
        BasicValueEnum::IntValue(x) => Some(x),
        _ => None,
    };
    let constant = || operand(1)?.get_zero_extended_constant();
    match i.get_opcode() {
        InstructionOpcode::ZExt => operand(0).is_some_and(|x| x.get_type().get_bit_width() == 1),
        InstructionOpcode::And => constant() == Some(1),
        InstructionOpcode::LShr => constant() == Some(u64::from(v.get_type().get_bit_width()) - 1),
        _ => false,
    }
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
