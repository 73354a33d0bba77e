//! LLVM's side of each GPU architecture: triple, features, and what makes a function a kernel.

use crate::emit::{Caps, Em};
use inkwell::OptimizationLevel;
use inkwell::module::{FlagBehavior, Module};
use inkwell::targets::{CodeModel, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple};
use inkwell::values::FunctionValue;
use kernels::gpu::{Arch, Platform};
use tensor::{Diagnostic, ErrorKind, Result};

/// Code object version 5: ROCm 6 and later.
const CODE_OBJECT: u64 = 500;
/// LLVM's numbers of the calling conventions of kernels.
const AMDGPU_KERNEL: u32 = 91;
const PTX_KERNEL: u32 = 71;

/// What the emitter may use.
pub(crate) fn caps(arch: &Arch) -> Caps {
    Caps { f16_convert: true, round: true, gpu: Some(arch.platform), half: false }
}

/// LLVM's machine for an architecture.
pub(crate) fn machine(arch: &Arch, level: OptimizationLevel) -> Result<TargetMachine> {
    static INIT: std::sync::Once = std::sync::Once::new();
    INIT.call_once(|| {
        Target::initialize_amd_gpu(&InitializationConfig::default());
        Target::initialize_nvptx(&InitializationConfig::default());
    });
    let triple = TargetTriple::create(match arch.platform {
        Platform::Hip => "amdgcn-amd-amdhsa",
        Platform::Cuda => "nvptx64-nvidia-cuda",
    });
    let fail = |why: String| {
        Diagnostic::new(ErrorKind::Internal, format!("LLVM has no code generator for {}: {why}", arch.target()))
            .help("build with an LLVM that has the targets AMDGPU and NVPTX")
    };
    let target = Target::from_triple(&triple).map_err(|e| fail(e.to_string()))?;
    target
        .create_target_machine(&triple, arch.name, "", level, RelocMode::PIC, CodeModel::Default)
        .ok_or_else(|| fail("unknown processor".into()))
}

/// Module flags of a platform.
pub(crate) fn mark_module(m: &Module<'_>, arch: &Arch) {
    if arch.platform == Platform::Hip {
        let version = m.get_context().i32_type().const_int(CODE_OBJECT, false);
        m.add_basic_value_flag("amdhsa_code_object_version", FlagBehavior::Error, version);
    }
}

/// Makes a function a kernel with blocks of `block` threads. The fixed size is why kernels need no hidden arguments. At least `resident`
/// blocks shall find registers on a processor at once, where that can be asked for.
pub(crate) fn mark_kernel<'c>(e: &Em<'_, 'c>, f: FunctionValue<'c>, arch: &Arch, block: u32, resident: u32) {
    let size = u64::from(block);
    match arch.platform {
        Platform::Hip => {
            f.set_call_conventions(AMDGPU_KERNEL);
            e.string_attr(f, "amdgpu-flat-work-group-size", &format!("{block},{block}"));
            e.string_attr(f, "uniform-work-group-size", "true");
            let i = |v: u64| e.i32().const_int(v, false).into();
            let node = e.ctx.metadata_node(&[i(size), i(1), i(1)]);
            f.as_global_value().set_metadata(node, e.ctx.get_kind_id("reqd_work_group_size"));
        }
        Platform::Cuda => {
            f.set_call_conventions(PTX_KERNEL);
            for (key, value) in [("kernel", 1), ("maxntidx", size), ("minctasm", u64::from(resident))] {
                let function = f.as_global_value().as_pointer_value();
                let value = e.i32().const_int(value, false);
                let node = e.ctx.metadata_node(&[function.into(), e.ctx.metadata_string(key).into(), value.into()]);
                e.m.add_global_metadata("nvvm.annotations", &node).expect("a node of metadata");
            }
        }
    }
}
