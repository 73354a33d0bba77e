//! A host program with its kernels to bitcode and objects.

use crate::elf::{self, Object};
use crate::emit::Em;
use crate::host::{self, EXPORTS};
use crate::object::{self, Kernels, OptLevel};
use crate::target::CpuTarget;
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::{Linkage, Module};
use lower::host::{HostProgram, Stmt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
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
}

impl Options {
    /// The defaults for a target.
    pub fn new(target: CpuTarget) -> Options {
        Options { target, level: OptLevel::Full, n_threads: 0, want_ir: false, want_asm: false }
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
}

/// Kernels in one LLVM module; fixed, so that the output does not depend on the number of threads.
const KERNELS_PER_MODULE: usize = 8;

/// Compiles a host program with its kernels; `metadata` is embedded.
///
/// # Errors
/// `Unsupported` for a kernel that cannot be generated, with the model node and the reason; `Internal` for a broken program.
pub fn compile(program: &HostProgram, options: &Options, metadata: &[u8]) -> Result<Compiled> {
    let nodes = kernel_nodes(program);
    let chunks: Vec<_> = program.kernels.chunks(KERNELS_PER_MODULE).zip(nodes.chunks(KERNELS_PER_MODULE)).collect();
    let results: Vec<Mutex<Option<Result<Kernels>>>> = chunks.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some((defs, nodes)) = chunks.get(i) else { return };
            let r =
                object::kernels(&format!("kernels{i}"), defs, nodes, &options.target, options.level, options.want_asm);
            if let Ok(mut slot) = results[i].lock() {
                *slot = Some(r);
            }
        }
    };
    let n = if options.n_threads == 0 {
        std::thread::available_parallelism().map_or(1, usize::from)
    } else {
        options.n_threads
    };
    let host = std::thread::scope(|s| {
        for _ in 1..n.min(chunks.len() + 1).max(1) {
            s.spawn(work);
        }
        let host = host_module(program, &nodes, options, metadata);
        work();
        host
    });
    let Host { bitcode, ir, object } = host?;
    let mut kernels = Vec::new();
    for r in results {
        let r = r.into_inner().unwrap_or(None);
        kernels.push(r.unwrap_or_else(|| Err(Diagnostic::new(ErrorKind::Internal, "a compile thread gave up")))?);
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
    Ok(Compiled { bitcode, object: elf::archive(&members), ir, asm })
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
    host::emit(&Em::new(&ctx, &m, o.target.caps()), p, metadata)?;
    let whole = m.clone();
    object::emit_kernels(&Em::new(&ctx, &whole, o.target.caps()), &p.kernels, nodes, &o.target)?;
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
