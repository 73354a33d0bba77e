//! A host program with its kernels to bitcode and objects.

use crate::elf::{self, Object};
use crate::emit::Em;
use crate::gpu;
use crate::host::{self, EXPORTS};
use crate::object::{self, Kernels, OptLevel};
use crate::target::CpuTarget;
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::{Linkage, Module};
use kernels::gpu::Arch;
use lower::host::{HostProgram, KernelDef, Stmt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tensor::{Diagnostic, ErrorKind, Result};

/// How to compile.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The CPU.
    pub target: CpuTarget,
    /// Optimisation of kernels; host code is never optimised.
    pub level: OptLevel,
    /// Threads to compile kernels with; 0 for all. The output does not depend on it.
    pub n_threads: usize,
    /// Whether to give the LLVM IR as text.
    pub want_ir: bool,
    /// Whether to give the kernels' assembly as text.
    pub want_asm: bool,
    /// Whether kernels run on the CPU, too; else host code has no pointers to any.
    pub cpu_kernels: bool,
    /// GPUs to make kernels for.
    pub gpus: Vec<&'static Arch>,
}

impl Options {
    /// The defaults for a target.
    pub fn new(target: CpuTarget) -> Options {
        Options {
            target,
            level: OptLevel::Full,
            n_threads: 0,
            want_ir: false,
            want_asm: false,
            cpu_kernels: true,
            gpus: Vec::new(),
        }
    }
}

/// What compiling gives. Equal input gives equal bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Compiled {
    /// Host code and kernels, before optimisation: the portable form.
    pub bitcode: Vec<u8>,
    /// Objects for the target, as an `ar` archive.
    pub object: Vec<u8>,
    /// The bitcode as text, when asked for.
    pub ir: Option<String>,
    /// The kernels' assembly, when asked for.
    pub asm: Option<String>,
    /// Code for GPUs, in the order of the options.
    pub gpu: Vec<GpuCode>,
    /// How long each target took in the threads that worked on it; not part of what equal input gives.
    pub times: Vec<(String, Duration)>,
}

/// A section of GPU code.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuCode {
    /// Target and what it holds: `hip:gfx942/generated`.
    pub label: String,
    /// A code object, or PTX text with a trailing NUL.
    pub bytes: Vec<u8>,
}

/// Kernels in one LLVM module; fixed, so that the output does not depend on the number of threads.
const KERNELS_PER_MODULE: usize = 8;

/// Compiles a host program with its kernels; `metadata` is embedded.
///
/// # Errors
/// `Unsupported` for a kernel that cannot be generated, with the model node and the reason; `Internal` for a broken program.
pub fn compile(program: &HostProgram, options: &Options, metadata: &[u8]) -> Result<Compiled> {
    let nodes = kernel_nodes(program);
    let defs: &[KernelDef] = if options.cpu_kernels { &program.kernels } else { &[] };
    let chunks: Vec<_> = defs.chunks(KERNELS_PER_MODULE).zip(nodes.chunks(KERNELS_PER_MODULE)).collect();
    let n_gpus = options.gpus.len();
    let results: Slots<Kernels> = slots(chunks.len());
    let gpu_results: Slots<Vec<u8>> = slots(n_gpus);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            // GPUs first: each is one long job.
            if let Some(arch) = options.gpus.get(i) {
                let code = || gpu::emit(&program.kernels, &nodes, arch, options.level)?.code();
                gpu_results[i].fill(code);
                continue;
            }
            let i = i - n_gpus;
            let Some((defs, nodes)) = chunks.get(i) else { return };
            let name = format!("kernels{i}");
            results[i].fill(|| object::kernels(&name, defs, nodes, &options.target, options.level, options.want_asm));
        }
    };
    let n = if options.n_threads == 0 {
        std::thread::available_parallelism().map_or(1, usize::from)
    } else {
        options.n_threads
    };
    let host = std::thread::scope(|s| {
        for _ in 1..n.min(chunks.len() + n_gpus + 1).max(1) {
            s.spawn(work);
        }
        let start = Instant::now();
        let host = host_module(program, &nodes, options, metadata).map(|h| (h, start.elapsed()));
        work();
        host
    });
    let (Host { bitcode, ir, object }, mut cpu_time) = host?;
    let mut kernels = Vec::new();
    for r in results {
        let (k, time) = r.take()?;
        cpu_time += time;
        kernels.push(k);
    }
    let mut times = vec![("host and cpu".to_string(), cpu_time)];
    let mut gpu_code = Vec::new();
    for (arch, r) in options.gpus.iter().zip(gpu_results) {
        let (bytes, time) = r.take()?;
        times.push((arch.target(), time));
        gpu_code.push(GpuCode { label: format!("{}/generated", arch.target()), bytes });
        // Also when the model calls none of the catalog: small helpers of the runtime are in it.
        let catalog = gpu::catalog_code(arch)?.to_vec();
        gpu_code.push(GpuCode { label: format!("{}/catalog", arch.target()), bytes: catalog });
    }
    let mut members = vec![("host.o".to_string(), object)];
    let mut asm = options.want_asm.then(String::new);
    for (i, k) in kernels.into_iter().enumerate() {
        members.push((format!("kernels{i}.o"), k.object));
        if let (Some(a), Some(k)) = (&mut asm, k.asm) {
            a.push_str(&k);
        }
    }
    let parsed: Vec<_> = members.iter().map(|m| Object::parse(&m.1)).collect::<Result<_>>()?;
    closed(&parsed)?;
    Ok(Compiled { bitcode, object: elf::archive(&members), ir, asm, gpu: gpu_code, times })
}

/// What a thread made, and how long it took.
struct Slot<T>(Mutex<Option<(Result<T>, Duration)>>);
type Slots<T> = Vec<Slot<T>>;

fn slots<T>(n: usize) -> Slots<T> {
    (0..n).map(|_| Slot(Mutex::new(None))).collect()
}

impl<T> Slot<T> {
    fn fill(&self, make: impl FnOnce() -> Result<T>) {
        let start = Instant::now();
        let made = make();
        if let Ok(mut slot) = self.0.lock() {
            *slot = Some((made, start.elapsed()));
        }
    }
    fn take(self) -> Result<(T, Duration)> {
        let slot = self.0.into_inner().unwrap_or(None);
        let (made, time) = slot.ok_or_else(|| Diagnostic::new(ErrorKind::Internal, "a compile thread gave up"))?;
        Ok((made?, time))
    }
}

/// The kernels of a program for a GPU as text: LLVM IR as the back end gets it, and assembly.
///
/// # Errors
/// As [`compile`].
pub fn gpu_text(program: &HostProgram, arch: &'static Arch, level: OptLevel) -> Result<(String, String)> {
    let ir = gpu::emit(&program.kernels, &kernel_nodes(program), arch, level)?;
    Ok((ir.text()?, ir.assembly()?))
}

fn closed(objects: &[Object]) -> Result<()> {
    let missing = elf::undefined(objects);
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("generated code calls {}, which a compiled model must not need", missing.join(", "));
    Err(Diagnostic::new(ErrorKind::Internal, what)
        .help("compile for the CPU tier that the bitcode was made for, or a later one"))
}

/// Path of the first node that launches each kernel.
fn kernel_nodes(p: &HostProgram) -> Vec<Option<String>> {
    let mut out = vec![None; p.kernels.len()];
    for s in p.funcs.iter().flat_map(|f| &f.body) {
        if let Stmt::Launch { kernel, node, .. } = s {
            let index = |i: u32| usize::try_from(i).unwrap_or(usize::MAX);
            if let Some(slot @ None) = out.get_mut(index(*kernel)) {
                *slot = p.debug.get(index(*node)).map(|d| d.path.clone());
            }
        }
    }
    out
}

/// The portable form of everything, and the host program's object.
struct Host {
    bitcode: Vec<u8>,
    ir: Option<String>,
    object: Vec<u8>,
}

/// Emits the host program, and with it all kernels once more: that is far cheaper than linking the modules that they are compiled in,
/// because each link looks at all that is there already. Only the ABI's symbols stay visible.
fn host_module(p: &HostProgram, nodes: &[Option<String>], o: &Options, metadata: &[u8]) -> Result<Host> {
    let ctx = Context::create();
    let machine = o.target.machine(OptimizationLevel::None)?;
    let m = object::module(&ctx, "model", &machine);
    host::emit(&Em::new(&ctx, &m, o.target.caps()), p, metadata, o.cpu_kernels)?;
    let whole = m.clone();
    let defs: &[KernelDef] = if o.cpu_kernels { &p.kernels } else { &[] };
    object::emit_kernels(&Em::new(&ctx, &whole, o.target.caps()), defs, nodes, &o.target)?;
    for f in whole.get_functions() {
        if f.count_basic_blocks() > 0 && !EXPORTS.contains(&&*f.get_name().to_string_lossy()) {
            f.set_linkage(Linkage::Internal);
        }
    }
    object::verify(&whole)?;
    let foreign = foreign_symbols(&whole);
    if !foreign.is_empty() {
        let what = format!("generated code refers to {}, which nothing defines", foreign.join(", "));
        return Err(Diagnostic::new(ErrorKind::Internal, what));
    }
    let ir = o.want_ir.then(|| whole.print_to_string().to_string_lossy().into_owned());
    Ok(Host { bitcode: object::bitcode(&whole), ir, object: object::object(&m, &machine)? })
}

fn parse<'c>(ctx: &'c Context, bitcode: &[u8]) -> Result<Module<'c>> {
    let b = MemoryBuffer::create_from_memory_range_copy(bitcode, "module");
    Module::parse_bitcode_from_buffer(&b, ctx).map_err(|e| {
        Diagnostic::new(ErrorKind::Malformed, format!("LLVM cannot read the bitcode: {}", e.to_string_lossy()))
            .help("compile the model again")
    })
}

/// Functions and globals that a module declares but does not define, without LLVM's intrinsics.
pub fn foreign_symbols(m: &Module<'_>) -> Vec<String> {
    let functions = m.get_functions().filter(|f| f.count_basic_blocks() == 0);
    let functions = functions.map(|f| f.get_name().to_string_lossy().into_owned()).filter(|n| !n.starts_with("llvm."));
    let globals = m.get_globals().filter(|g| g.is_declaration());
    functions.chain(globals.map(|g| g.get_name().to_string_lossy().into_owned())).collect()
}

/// An object for another machine from the portable form: what an artifact does that has no object for the CPU at hand.
///
/// # Errors
/// `Malformed` when it is not bitcode; `Internal` when the target lacks instructions that the bitcode relies on.
pub fn object_from_bitcode(bitcode: &[u8], target: &CpuTarget, level: OptLevel) -> Result<Vec<u8>> {
    let ctx = Context::create();
    let m = parse(&ctx, bitcode)?;
    let opt = if level == OptLevel::None { OptimizationLevel::None } else { OptimizationLevel::Aggressive };
    let machine = target.machine(opt)?;
    m.set_triple(&machine.get_triple());
    m.set_data_layout(&machine.get_target_data().get_data_layout());
    object::verify(&m)?;
    object::optimise(&m, &machine, level)?;
    let o = object::object(&m, &machine)?;
    closed(&[Object::parse(&o)?])?;
    Ok(o)
}
