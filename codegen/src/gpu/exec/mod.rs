//! Runs GPU kernels on this machine: for tests, slow and strict. What runs is the LLVM module that goes to the back end; instruction
//! selection and timing are what this does not see.
//!
//! [`Executor::load`] takes a module of kernels for an architecture, [`Executor::run`] launches one as a driver would: grid, block, packed
//! arguments. The threads of a block are fibers (`fiber`), wave operations follow the ISA documents (`wave`), `rewrite` makes the module
//! one for the host.

mod fiber;
mod rewrite;
#[cfg(test)]
mod tests;
mod wave;

pub use fiber::{Order, Region};

use corosensei::stack::DefaultStack;
use fiber::{Job, Shared, run_block};
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::execution_engine::ExecutionEngine;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::targets::{InitializationConfig, Target, TargetData};
use inkwell::types::{BasicMetadataTypeEnum, BasicType, BasicTypeEnum};
use inkwell::values::{AnyValue, BasicValueEnum, FunctionValue, InstructionOpcode, InstructionValue};
use kernels::gpu::Arch;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The host's data layout, as LLVM writes it.
const LAYOUT: &str = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128";

/// Kernels of one module, ready to run.
pub struct Executor {
    wave: usize,
    constants: Vec<Region>,
    kernels: BTreeMap<String, Kernel>,
    barriers: BTreeMap<String, Vec<u32>>,
    /// Per kernel.
    shared: RefCell<BTreeMap<String, Shared>>,
    stacks: RefCell<Vec<DefaultStack>>,
    _engine: ExecutionEngine<'static>,
}

#[derive(Clone, Copy)]
struct Kernel {
    entry: unsafe extern "C" fn(*const u8),
    kernarg_bytes: usize,
}

/// A launch, as a driver gets it.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// Symbol.
    pub kernel: &'a str,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// The packed arguments.
    pub kernarg: &'a [u8],
    /// Memory that the kernel may touch.
    pub regions: &'a [Region],
    /// Order of turns.
    pub order: Order,
    /// A barrier that does nothing, to see whether it is missed; see [`Executor::barriers`].
    pub skip_barrier: Option<u32>,
}

impl Executor {
    /// Takes LLVM bitcode for an architecture.
    ///
    /// # Errors
    /// When it is not bitcode, uses what is not known here, or the host lacks AVX2 and FMA.
    pub fn load(bitcode: &[u8], arch: &Arch) -> Result<Executor, String> {
        if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")) {
            return Err("running kernels on the host needs a CPU with AVX2, FMA and F16C".into());
        }
        let config = InitializationConfig::default();
        Target::initialize_native(&config)?;
        let ctx = Context::create();
        let buffer = MemoryBuffer::create_from_memory_range_copy(bitcode, "kernels");
        let module = Module::parse_bitcode_from_buffer(&buffer, &ctx).map_err(|e| e.to_string())?;
        let text = module.print_to_string().to_string();
        let kernels: Vec<String> = module
            .get_functions()
            .filter(|f| f.count_basic_blocks() > 0)
            .map(|f| (f.get_call_conventions(), f.get_name().to_string_lossy().into_owned()))
            // CUDA's kernels may be plain functions that metadata names.
            .filter(|(c, n)| KERNEL.contains(c) || text.contains(&format!("!{{ptr @{n}, !\"kernel\", i32 1}}")))
            .map(|f| f.1)
            .collect();
        Executor::from_text(&text, &kernels, arch)
    }

    fn from_text(text: &str, names: &[String], arch: &Arch) -> Result<Executor, String> {
        // The code lives as long as its context; a test loads a handful of modules.
        let ctx: &'static Context = Box::leak(Box::new(Context::create()));
        let mut r = rewrite::rewrite(text)?;
        r.text.push_str(&rewrite::shim_attributes());
        // LLVM wants a null byte after the text.
        let mut bytes = r.text.into_bytes();
        bytes.push(0);
        let buffer = MemoryBuffer::create_from_memory_range_copy(&bytes[..bytes.len() - 1], "host");
        let module = ctx.create_module_from_ir(buffer).map_err(|e| format!("the rewritten module: {e}"))?;
        let data = TargetData::create(LAYOUT);
        module.set_data_layout(&data.get_data_layout());
        let mut sizes = BTreeMap::new();
        for f in module.get_functions().collect::<Vec<_>>() {
            let name = f.get_name().to_string_lossy().into_owned();
            if f.count_basic_blocks() > 0 && !name.starts_with("hipx.") {
                instrument(&module, ctx, f, &data)?;
            }
        }
        for name in names {
            let f = module.get_function(name).ok_or_else(|| format!("{name} got lost"))?;
            sizes.insert(name.clone(), wrap(&module, ctx, f, &data)?);
        }
        module.verify().map_err(|e| format!("the rewritten module: {e}"))?;
        let engine = module.create_jit_execution_engine(OptimizationLevel::Less).map_err(|e| e.to_string())?;
        let address = |name: &str| engine.get_function_address(name).map_err(|e| format!("{name}: {e}"));
        let region = |g: &rewrite::Global, writable: bool| -> Result<Region, String> {
            let (a, s) = (address(&g.address)?, address(&g.size)?);
            // SAFETY: accessors that `rewrite` defined with these signatures.
            let (at, bytes) = unsafe {
                let at: extern "C" fn() -> usize = std::mem::transmute(a);
                let bytes: extern "C" fn() -> usize = std::mem::transmute(s);
                (at(), bytes())
            };
            Ok(Region { address: at, bytes, writable })
        };
        // Shared memory that a function names which is no kernel may be any kernel's.
        let mut shared = BTreeMap::new();
        for name in names {
            let of = |g: &&rewrite::Global| g.users.iter().any(|u| u == name || !names.contains(u));
            let regions = r.shared.iter().filter(of).map(|g| region(g, true)).collect::<Result<_, _>>()?;
            shared.insert(name.clone(), Shared::new(regions));
        }
        let constants = r.globals.iter().map(|s| region(s, false)).collect::<Result<_, _>>()?;
        let mut kernels = BTreeMap::new();
        for (name, bytes) in sizes {
            let a = address(&format!("hipx.call.{name}"))?;
            // SAFETY: `wrap` defined it with this signature.
            let entry = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*const u8)>(a) };
            kernels.insert(name, Kernel { entry, kernarg_bytes: bytes });
        }
        Ok(Executor {
            wave: arch.wave as usize,
            shared: RefCell::new(shared),
            constants,
            kernels,
            barriers: r.barriers,
            stacks: Default::default(),
            _engine: engine,
        })
    }

    /// Names and argument sizes in bytes.
    pub fn kernels(&self) -> impl Iterator<Item = (&str, usize)> {
        self.kernels.iter().map(|(n, k)| (n.as_str(), k.kernarg_bytes))
    }

    /// The barriers that stand in a kernel's own text.
    pub fn barriers(&self, kernel: &str) -> Vec<u32> {
        self.barriers.get(kernel).cloned().unwrap_or_default()
    }

    /// Runs a launch to its end.
    ///
    /// # Errors
    /// What was noticed: an access out of bounds, a race in shared memory, a meeting that not everybody came to, wrong arguments.
    ///
    /// # Safety
    /// The regions are memory that lives during the call and that nobody else uses.
    pub unsafe fn run(&self, launch: &Launch<'_>) -> Result<(), String> {
        let k = self.kernels.get(launch.kernel).ok_or_else(|| format!("there is no kernel {}", launch.kernel))?;
        if k.kernarg_bytes != launch.kernarg.len() {
            return Err(format!(
                "{} takes {} bytes of arguments, got {}",
                launch.kernel,
                k.kernarg_bytes,
                launch.kernarg.len()
            ));
        }
        let regions: Vec<Region> = launch.regions.iter().chain(&self.constants).copied().collect();
        let (mut stacks, mut shared) = (self.stacks.borrow_mut(), self.shared.borrow_mut());
        let shared = shared.get_mut(launch.kernel).ok_or_else(|| format!("there is no kernel {}", launch.kernel))?;
        let blocks: Vec<[u32; 3]> = (0..launch.grid[2])
            .flat_map(|z| (0..launch.grid[1]).flat_map(move |y| (0..launch.grid[0]).map(move |x| [x, y, z])))
            .collect();
        let n = blocks.len();
        for i in 0..n {
            let job = Job {
                entry: k.entry,
                kernarg: launch.kernarg,
                ids: blocks[if launch.order == Order::Forward { i } else { n - 1 - i }],
                threads: launch.block as usize,
                wave: self.wave,
                regions: &regions,
                order: launch.order,
                skip_barrier: launch.skip_barrier,
            };
            // SAFETY: the wrapper reads `kernarg_bytes`; the regions are the caller's promise.
            unsafe { run_block(&job, shared, &mut stacks) }.map_err(|e| format!("{}: {e}", launch.kernel))?;
        }
        Ok(())
    }
}

/// LLVM's numbers of the calling conventions of AMD's and NVIDIA's kernels.
const KERNEL: [u32; 2] = [91, 71];

/// Puts a check before every access to memory.
fn instrument(m: &Module<'_>, ctx: &Context, f: FunctionValue<'_>, data: &TargetData) -> Result<(), String> {
    let builder = ctx.create_builder();
    let (load, store) = (m.get_function("hipx.load"), m.get_function("hipx.store"));
    let (Some(load), Some(store)) = (load, store) else { return Err("the checks are missing".into()) };
    let i64t = ctx.i64_type();
    let put = |at: &InstructionValue<'_>, check: FunctionValue<'_>, pointer: BasicValueEnum<'_>, n: u64| {
        builder.position_before(at);
        builder
            .build_call(check, &[pointer.into_pointer_value().into(), i64t.const_int(n, false).into()], "")
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    for b in f.get_basic_blocks() {
        for i in b.get_instructions().collect::<Vec<_>>() {
            let operand = |n: u32| i.get_operand(n).and_then(|o| o.value());
            match i.get_opcode() {
                InstructionOpcode::Load => {
                    let t = BasicTypeEnum::try_from(i.get_type()).map_err(|()| "a load of no value")?;
                    let p = operand(0).ok_or("a load without address")?;
                    put(&i, load, p, data.get_store_size(&t))?;
                }
                InstructionOpcode::Store => {
                    let v = operand(0).ok_or("a store without value")?;
                    let p = operand(1).ok_or("a store without address")?;
                    put(&i, store, p, data.get_store_size(&v.get_type()))?;
                }
                InstructionOpcode::AtomicRMW | InstructionOpcode::AtomicCmpXchg => {
                    return Err("atomic operations are not known to the execution on the host".into());
                }
                InstructionOpcode::Call => {
                    let text = i.print_to_string().to_string();
                    if ["@llvm.memcpy", "@llvm.memmove", "@llvm.memset"].iter().any(|n| text.contains(n)) {
                        return Err(format!("{text}: not known to the execution on the host"));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Defines `hipx.call.NAME(arguments)`, which calls a kernel with what a packed argument buffer holds; returns the buffer's size.
fn wrap<'a>(m: &Module<'a>, ctx: &'a Context, f: FunctionValue<'a>, data: &TargetData) -> Result<usize, String> {
    let name = f.get_name().to_string_lossy().into_owned();
    f.set_call_conventions(0);
    let ptr = ctx.ptr_type(inkwell::AddressSpace::default());
    let w = m.add_function(&format!("hipx.call.{name}"), ctx.void_type().fn_type(&[ptr.into()], false), None);
    let builder = ctx.create_builder();
    builder.position_at_end(ctx.append_basic_block(w, "entry"));
    let buffer = w.get_nth_param(0).ok_or("no parameter")?.into_pointer_value();
    let mut at = 0u64;
    let mut args = Vec::new();
    for t in f.get_type().get_param_types() {
        let t: BasicTypeEnum<'_> = match t {
            BasicMetadataTypeEnum::IntType(t) => t.as_basic_type_enum(),
            BasicMetadataTypeEnum::FloatType(t) => t.as_basic_type_enum(),
            BasicMetadataTypeEnum::PointerType(t) => t.as_basic_type_enum(),
            t => return Err(format!("{name} takes an argument of type {t}")),
        };
        let size = data.get_store_size(&t);
        at = at.next_multiple_of(size);
        // SAFETY: an address inside the buffer, which has the size that is returned below.
        let p = unsafe { builder.build_gep(ctx.i8_type(), buffer, &[ctx.i64_type().const_int(at, false)], "") };
        let v = p.and_then(|p| builder.build_load(t, p, "")).map_err(|e| e.to_string())?;
        args.push(v.into());
        at += size;
    }
    builder.build_call(f, &args, "").and_then(|_| builder.build_return(None)).map_err(|e| e.to_string())?;
    usize::try_from(at).map_err(|e| e.to_string())
}
