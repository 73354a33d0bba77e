//! Kernels of a model to one module, and the module to what a driver loads.

use crate::emit::Em;
use crate::gpu::{elf, kernel, target};
use crate::object::{self, OptLevel};
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{FileType, TargetMachine};
use kernels::gpu::{Arch, Platform};
use lower::host::KernelDef;
use tensor::{Diagnostic, ErrorKind, Result};

/// The module of all kernels for one architecture, optimised: what the back end gets, and what can be executed in its place.
#[derive(Clone, Debug)]
pub struct Ir {
    /// What it was made for.
    pub arch: &'static Arch,
    /// LLVM bitcode.
    pub bitcode: Vec<u8>,
}

fn internal(what: &str, why: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, format!("LLVM {what}: {why}"))
}

/// Emits and optimises kernels. `nodes` are the model nodes of the kernels, for messages.
///
/// # Errors
/// `Unsupported` for a kernel that cannot be generated, with the node and the reason.
pub fn emit(defs: &[KernelDef], nodes: &[Option<String>], arch: &'static Arch, level: OptLevel) -> Result<Ir> {
    let ctx = Context::create();
    let machine = target::machine(arch, OptimizationLevel::Aggressive)?;
    let m = object::module(&ctx, "kernels", &machine);
    target::mark_module(&m, arch);
    let e = Em::new(&ctx, &m, target::caps(arch));
    for (i, def) in defs.iter().enumerate() {
        kernel::emit(&e, def, nodes.get(i).and_then(Option::as_deref), arch)?;
    }
    object::verify(&m)?;
    optimise(&m, &machine, level)?;
    object::verify(&m)?;
    Ok(Ir { arch, bitcode: object::bitcode(&m) })
}

/// The pipeline of GPU kernels. Vectors are the emitter's: wide accesses depend on alignment that LLVM cannot see.
fn optimise(m: &Module<'_>, machine: &TargetMachine, level: OptLevel) -> Result<()> {
    let o = PassBuilderOptions::create();
    o.set_loop_vectorization(false);
    o.set_loop_slp_vectorization(false);
    o.set_loop_interleaving(false);
    o.set_loop_unrolling(true);
    // Helpers are always inlined, also without optimisation.
    let passes = if level == OptLevel::None { "always-inline,globaldce" } else { "default<O2>,globaldce" };
    m.run_passes(passes, machine, o).map_err(|e| internal("could not optimise", e.to_string_lossy()))
}

impl Ir {
    fn parse<'c>(&self, ctx: &'c Context) -> Result<Module<'c>> {
        let b = MemoryBuffer::create_from_memory_range_copy(&self.bitcode, "kernels");
        Module::parse_bitcode_from_buffer(&b, ctx).map_err(|e| internal("cannot read its bitcode", e.to_string_lossy()))
    }

    /// As text.
    ///
    /// # Errors
    /// `Internal` when LLVM cannot read the bitcode.
    pub fn text(&self) -> Result<String> {
        Ok(self.parse(&Context::create())?.print_to_string().to_string_lossy().into_owned())
    }

    /// What the driver loads: a code object, or PTX text with a trailing NUL.
    ///
    /// # Errors
    /// `Internal` when the back end or the linker fails.
    pub fn code(&self) -> Result<Vec<u8>> {
        match self.arch.platform {
            Platform::Hip => elf::link(&self.object()?),
            Platform::Cuda => {
                let mut text = self.write(FileType::Assembly)?;
                text.push(0);
                Ok(text)
            }
        }
    }

    /// The relocatable object that a code object is made of; of a platform with objects.
    pub(crate) fn object(&self) -> Result<Vec<u8>> {
        self.write(FileType::Object)
    }

    /// Assembly text.
    ///
    /// # Errors
    /// As [`Ir::code`].
    pub fn assembly(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.write(FileType::Assembly)?).into_owned())
    }

    fn write(&self, kind: FileType) -> Result<Vec<u8>> {
        let ctx = Context::create();
        // Code generation uses the module up, so each kind of output has its own.
        let m = self.parse(&ctx)?;
        let machine = target::machine(self.arch, OptimizationLevel::Aggressive)?;
        let b = machine
            .write_to_memory_buffer(&m, kind)
            .map_err(|e| internal("could not generate code", e.to_string_lossy()))?;
        Ok(b.as_slice().to_vec())
    }
}
