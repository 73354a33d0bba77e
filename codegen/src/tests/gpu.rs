//! Structure of GPU code for every architecture: what loaders and drivers read, against LLVM's tools.

use super::gpu_nests::{Example, Sizes, all};
use super::kit::{Case, Kit, Loaded, Rng, check, same};
use crate::OptLevel;
use crate::gpu::exec::{self, Executor, Order, Region};
use crate::gpu::{self, notes};
use ir::nest::{Axis, BinOp, Expr, UnOp};
use kernels::gpu::arch::ARCHS;
use kernels::gpu::{Arch, Platform, Schedule};
use lower::host::KernelDef;
use std::process::Command;
use tensor::DType;

fn defs() -> Vec<KernelDef> {
    all().iter().map(|x| x.kit.def(&x.name)).collect()
}

/// Compiles for every architecture, on both processors.
fn for_every_arch(check: impl Fn(&'static Arch) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        while let Some(arch) = ARCHS.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            check(arch);
        }
    };
    std::thread::scope(|s| {
        s.spawn(work);
        work();
    });
}

/// What a tool of LLVM prints; `cargo xtask setup` installs them.
fn tool(name: &str, args: &[&str]) -> String {
    let out = Command::new(name).args(args).output().unwrap_or_else(|e| panic!("{name}: {e}; run cargo xtask setup"));
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && errors.is_empty(), "{name} {args:?}: {errors}");
    text.into_owned()
}

struct Scratch(std::path::PathBuf);
impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("hip-ep-gpu-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_string_lossy().into_owned()
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn schedules_follow_the_shape_of_the_nest() {
    let of = |name: &str| gpu::launch(&all().iter().find(|x| x.name == name).unwrap().kit.def(name));
    let check = |name: &str, schedule, block, vector| {
        let l = of(name);
        assert!(l.is_valid());
        assert_eq!((l.schedule, l.block, l.vector), (schedule, block, vector), "{name}");
    };
    check("elementwise_f32", Schedule::GridStride, 256, 4);
    check("elementwise_f16", Schedule::GridStride, 256, 8);
    check("elementwise_i64", Schedule::GridStride, 256, 2);
    check("elementwise_bool", Schedule::GridStride, 256, 16);
    check("gelu_f32", Schedule::GridStride, 256, 4);
    check("pool", Schedule::GridStride, 256, 1);
    check("reread", Schedule::GridStride, 256, 1);
    check("sum_f32_any", Schedule::BlockPerPoint, 256, 1);
    check("sum_f32_200", Schedule::WavePerPoint, 256, 1);
    check("sum_f32_7", Schedule::GridStride, 256, 1);
    check("sum_f16_40000", Schedule::BlockPerPoint, 1024, 1);
    check("columns_f32", Schedule::BlockPerColumns, 512, 32);
    check("columns_f16", Schedule::BlockPerColumns, 512, 64);
    check("softmax_f32", Schedule::BlockPerPoint, 256, 1);
    check("softmax_f32_197", Schedule::WavePerPoint, 256, 1);
}

#[test]
fn code_objects_are_what_loaders_expect() {
    let defs = defs();
    let nodes = vec![None; defs.len()];
    for_every_arch(|arch| {
        let ir = gpu::emit(&defs, &nodes, arch, OptLevel::Full).unwrap();
        let code = ir.code().unwrap();
        if matches!(arch.name, "gfx942" | "sm_90") {
            let again = gpu::emit(&defs, &nodes, arch, OptLevel::Full).unwrap();
            assert!(again.bitcode == ir.bitcode && again.code().unwrap() == code, "{} is not repeated", arch.name);
        }
        match arch.platform {
            Platform::Hip => check_amd(arch, &defs, &ir, &code),
            Platform::Cuda => check_ptx(arch, &defs, &code),
        }
    });
}

fn words(def: &KernelDef) -> u64 {
    def.nest.operands.len() as u64 + u64::from(def.n_params) + 1
}

fn check_amd(arch: &Arch, defs: &[KernelDef], ir: &gpu::Ir, code: &[u8]) {
    let kernels = notes::kernels(code).unwrap();
    assert_eq!(kernels.len(), defs.len());
    for def in defs {
        let k = kernels.iter().find(|k| k.name == def.name).unwrap();
        assert_eq!(k.kernarg_bytes, 8 * words(def), "{} {}", arch.name, k.name);
        assert_eq!((k.hidden_args, k.wave), (0, u64::from(arch.wave)), "{}", k.name);
        assert_eq!(k.block, u64::from(gpu::launch(def).block), "{}", k.name);
        assert_eq!((k.spills, k.private_bytes), (0, 0), "{} {} keeps values in memory", arch.name, k.name);
        assert!(k.shared_bytes <= u64::from(arch.lds_bytes) && k.vgprs > 0);
    }
    // Against LLVM's own reader, disassembler and linker.
    let dir = Scratch::new(arch.name);
    let ours = dir.file("ours.co", code);
    let object = dir.file("kernels.o", &ir.object().unwrap());
    let lld = dir.0.join("lld.co").to_string_lossy().into_owned();
    tool("ld.lld-19", &["-shared", &object, "-o", &lld]);
    tool("llvm-readelf-19", &["-a", &ours]);
    let notes = |path: &str| tool("llvm-readelf-19", &["--notes", path]).replace(path, "");
    assert_eq!(notes(&ours), notes(&lld), "{}: notes", arch.name);
    let (code, targets) = disassembly(&ours);
    assert!(!code.contains("<unknown>") && !code.contains("illegal"), "{}", arch.name);
    let (want, want_targets) = disassembly(&lld);
    assert!(code == want, "{}: the disassembly differs from that of lld's file", arch.name);
    // The tables of sine and cosine: the same place of the same section, wherever the linkers put it.
    assert!(!targets.is_empty(), "{}: nothing is relocated", arch.name);
    assert_eq!(targets, want_targets, "{}: relocations", arch.name);
    // Size, type, binding, visibility and name of each dynamic symbol.
    let symbols = |path: &str| {
        let text = tool("llvm-readelf-19", &["--dyn-syms", "--wide", path]);
        let line = |l: &str| {
            let words: Vec<&str> = l.split_whitespace().collect();
            (words.len() == 8 && words[5] != "VIS").then(|| [&words[2..6], &words[7..]].concat().join(" "))
        };
        let mut lines: Vec<String> = text.lines().filter_map(line).collect();
        lines.sort();
        assert!(lines.len() > 80);
        lines
    };
    assert_eq!(symbols(&ours), symbols(&lld), "{}: symbols", arch.name);
    let header = |path: &str| {
        let text = tool("llvm-readelf-19", &["-h", path]);
        let keep = |l: &&str| {
            ["Type", "Machine", "Flags", "OS/ABI", "ABI Version", "Class"].iter().any(|k| l.trim().starts_with(k))
        };
        text.lines().filter(keep).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(header(&ours), header(&lld), "{}: header", arch.name);
    let lookups = |path: &str| tool("llvm-readelf-19", &["--gnu-hash-table", "--hash-symbols", path]);
    for def in defs {
        assert!(lookups(&ours).contains(&format!("{}.kd", def.name)), "{}", def.name);
    }
}

/// Instructions without addresses, and what they refer to: section and offset.
fn disassembly(path: &str) -> (String, Vec<(String, u64)>) {
    let text = tool("llvm-objdump-19", &["-d", "-j", ".text", path]);
    let sections: Vec<(String, u64, u64)> = tool("llvm-readelf-19", &["-S", "--wide", path])
        .lines()
        .filter_map(|l| {
            let words: Vec<&str> = l.split(']').nth(1)?.split_whitespace().collect();
            let hex = |i: usize| u64::from_str_radix(words.get(i)?, 16).ok();
            Some(((*words.first()?).to_string(), hex(2)?, hex(4)?)).filter(|s| s.1 != 0)
        })
        .collect();
    let (mut out, mut targets) = (String::new(), vec![]);
    // Address after s_getpc, and what was added to its halves so far.
    let mut pc: Option<(u64, Option<u64>)> = None;
    for line in text.lines().skip_while(|l| !l.starts_with("Disassembly")) {
        let (code, rest) = line.split_once("//").unwrap_or((line, ""));
        let mut code = code.trim().to_string();
        if code.ends_with(">:") {
            code = code.split_whitespace().last().unwrap_or("").to_string();
        }
        let address = rest.trim().split(':').next().and_then(|a| u64::from_str_radix(a, 16).ok());
        let literal = |code: &str| {
            let v = code.rsplit(' ').next().unwrap_or("");
            let v = match v.strip_prefix("0x") {
                Some(h) => u64::from_str_radix(h, 16).ok(),
                None => v.parse::<i64>().ok().map(|v| u64::from(v as u32)),
            };
            v.unwrap_or_else(|| panic!("{code}"))
        };
        match pc {
            _ if code.starts_with("s_getpc_b64") => pc = Some((address.unwrap() + 4, None)),
            Some((at, None)) if code.starts_with("s_add_u32") || code.starts_with("s_add_co_u32") => {
                pc = Some((at, Some(literal(&code))));
                code.truncate(code.rfind(' ').unwrap());
            }
            Some((at, Some(low))) if code.starts_with("s_addc_u32") || code.starts_with("s_add_co_ci_u32") => {
                let to = at.wrapping_add(literal(&code) << 32 | low);
                let within = sections.iter().find(|s| (s.1..s.1 + s.2).contains(&to));
                let (name, start, _) = within.unwrap_or_else(|| panic!("{to:x} lies in no section"));
                targets.push((name.clone(), to - start));
                code.truncate(code.rfind(' ').unwrap());
                pc = None;
            }
            _ => {}
        }
        out.push_str(&code);
        out.push('\n');
    }
    (out, targets)
}

fn check_ptx(arch: &Arch, defs: &[KernelDef], code: &[u8]) {
    let text = std::str::from_utf8(code.strip_suffix(b"\0").expect("a trailing NUL")).unwrap();
    assert!(text.contains(&format!(".target {}", arch.name)));
    for word in [".extern", "call.uni", "call (", ".local"] {
        assert!(!text.contains(word), "{}: {word}", arch.name);
    }
    let entries: Vec<&str> = text.split(".visible .entry ").skip(1).collect();
    assert_eq!(entries.len(), defs.len());
    for def in defs {
        let entry = entries.iter().find(|e| e.starts_with(&format!("{}(", def.name))).expect(&def.name);
        let head = entry.split('{').next().unwrap();
        assert_eq!(head.matches(".param .u64").count() as u64, words(def), "{}", def.name);
        assert!(head.contains(&format!(".maxntid {}, 1, 1", gpu::launch(def).block)), "{}: {head}", def.name);
    }
    if let Ok(out) = Command::new("ptxas").arg("--version").output()
        && out.status.success()
    {
        let dir = Scratch::new(arch.name);
        let path = dir.file("kernels.ptx", text.as_bytes());
        let cubin = dir.0.join("kernels.cubin").to_string_lossy().into_owned();
        tool("ptxas", &["-arch", arch.name, &path, "-o", &cubin]);
    }
}

/// Every kernel, as the back end gets it, runs on the host in waves of 64 and of 32, for both platforms, and is compared with the nest interpreter; from
/// aligned and from odd addresses, in both orders of turns.
#[test]
fn every_kernel_computes_what_its_nest_says() {
    let (examples, defs) = (all(), defs());
    let nodes = vec![None; defs.len()];
    for name in ["gfx942", "gfx1100", "sm_90"] {
        let arch = Arch::find(name).unwrap();
        let ir = gpu::emit(&defs, &nodes, arch, OptLevel::Full).unwrap();
        let x = Executor::load(&ir.bitcode, arch).unwrap();
        let mut rng = Rng(12);
        for (e, def) in examples.iter().zip(&defs) {
            for s in &e.sizes {
                for (shift, order) in [(0, Order::Forward), (1, Order::Reverse)] {
                    run_on_host(&x, arch, e, def, s, &mut rng, shift, order);
                }
            }
        }
    }
}

/// Runs an example; `shift` moves every buffer by so many elements from an address that is a multiple of 16.
fn run_on_host(
    x: &Executor,
    arch: &Arch,
    e: &Example,
    def: &KernelDef,
    s: &Sizes,
    rng: &mut Rng,
    shift: usize,
    order: Order,
) {
    let buffers = e.buffers(s, rng);
    let mut want = buffers.clone();
    lower::hip_interp::run_nest(&e.kit.pool, &e.kit.nest, &e.kit.env(&s.params), &mut want).unwrap();
    let mut memory: Vec<Vec<u128>> = buffers.iter().map(|b| vec![0; b.len() / 16 + 2]).collect();
    let mut regions = vec![];
    for ((m, b), o) in memory.iter_mut().zip(&buffers).zip(&e.kit.nest.operands) {
        let from = shift * o.dtype.size().unwrap();
        // SAFETY: the words have room for the bytes and a shift of at most 8.
        let bytes = unsafe { std::slice::from_raw_parts_mut(m.as_mut_ptr().cast::<u8>(), 16 * m.len()) };
        bytes[from..from + b.len()].copy_from_slice(b);
        regions.push(Region { address: bytes.as_ptr() as usize + from, bytes: b.len(), writable: o.written });
    }
    let launch = gpu::launch(def);
    let words = regions.iter().map(|r| r.address as u64).chain(s.params.iter().map(|p| p.cast_unsigned()));
    let kernarg: Vec<u8> = words.chain([s.points.cast_unsigned()]).flat_map(u64::to_ne_bytes).collect();
    let grid = launch.grid(arch.wave, s.points);
    let case = format!("{} {} {:?}, shift {shift}, {order:?}", arch.name, e.name, s.params);
    let run = exec::Launch {
        kernel: &e.name,
        grid: [grid, 1, 1],
        block: launch.block,
        kernarg: &kernarg,
        regions: &regions,
        order,
        skip_barrier: None,
    };
    if grid > 0 {
        // SAFETY: the regions are this function's.
        unsafe { x.run(&run) }.unwrap_or_else(|why| panic!("{case}: {why}"));
    }
    for (i, (o, r)) in e.kit.nest.operands.iter().zip(&regions).enumerate() {
        // SAFETY: the region is alive and nobody writes to it now.
        let got = unsafe { std::slice::from_raw_parts(r.address as *const u8, r.bytes) };
        let size = o.dtype.size().unwrap();
        for (k, (g, w)) in got.chunks(size).zip(want[i].chunks(size)).enumerate() {
            assert!(same(o.dtype, g, w, e.close), "{case}: operand {i} element {k} is {g:02x?}, not {w:02x?}");
        }
    }
}

/// The nests are right, and so is what they are run on.
#[test]
fn the_examples_run_on_the_cpu() {
    let examples = all();
    let code = Loaded::new(&defs(), "native");
    let mut rng = Rng(10);
    for x in &examples {
        for s in &x.sizes {
            let buffers = x.buffers(s, &mut rng);
            let case = Case { params: s.params.clone(), buffers, points: s.points, shared: vec![], close: x.close };
            check(&x.kit, &code, &x.name, &case, &mut rng);
        }
    }
}

/// A back end that lacks an instruction ends the process, so each operation on each type goes through each back end here.
#[test]
fn every_operation_on_every_type_has_instructions() {
    use BinOp::*;
    use UnOp::*;
    let one = [
        Neg, Abs, Not, BitNot, Sqrt, Rsqrt, Recip, Exp, Log, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh,
        Acosh, Atanh, Erf, Floor, Ceil, RoundEven, Trunc, Sign, IsNan, IsInf, ToBits, FromBits,
    ];
    let two = [Add, Sub, Mul, Div, Mod, Rem, Pow, Min, Max, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le, Gt, Ge];
    let compute = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::U64, DType::Bool];
    let mut defs = Vec::new();
    let mut add =
        |name: String, d: DType, f: &dyn Fn(&mut Kit, ir::nest::ExprId, ir::nest::ExprId) -> ir::nest::ExprId| {
            let mut k = Kit::default();
            let n = k.param("n");
            // No two elements side by side: one copy of the code instead of several.
            let (a, b) = (k.op(d, &[n], &[2], false), k.op(d, &[n], &[2], false));
            k.nest.outer = vec![n];
            let (x, y) = (k.load(a, &[Axis::Outer(0)]), k.load(b, &[Axis::Outer(0)]));
            let v = f(&mut k, x, y);
            let out = k.nest.expr_dtype(v);
            let z = k.op(out, &[n], &[2], true);
            k.store(false, z, &[Axis::Outer(0)], v);
            defs.push(k.def(&name.to_lowercase()));
        };
    for d in compute {
        for op in one {
            let ok = if d.is_float() {
                !matches!(op, Not | BitNot | FromBits)
            } else if d == DType::Bool {
                op == Not
            } else {
                matches!(op, Neg | Abs | Not | BitNot | Sign) || op == FromBits && matches!(d, DType::U32 | DType::U64)
            };
            if ok {
                add(format!("{op:?}_{d}"), d, &|k, x, _| k.nest.un(op, x));
            }
        }
        for op in two {
            let ok = match op {
                And | Or | Xor => !d.is_float(),
                Shl | Shr => d.is_int(),
                Add | Sub | Mul | Div | Mod | Rem | Pow => d != DType::Bool,
                _ => true,
            };
            if ok {
                add(format!("{op:?}_{d}"), d, &|k, x, y| k.nest.bin(op, x, y));
            }
        }
        for to in compute {
            add(format!("cast_{d}_{to}"), d, &|k, x, _| k.nest.expr(Expr::Cast(x, to)));
        }
    }
    let small = [DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::F8E8M0, DType::F4E2M1];
    for to in [DType::F16, DType::BF16].into_iter().chain(small) {
        for d in [DType::F32, DType::F64] {
            add(format!("round_{d}_{to}"), d, &|k, x, _| k.nest.expr(Expr::Round(x, to)));
        }
    }
    for d in [DType::F16, DType::BF16, DType::I8, DType::U8, DType::I16, DType::U16] {
        add(format!("widen_{d}"), d, &|k, x, y| k.nest.bin(Add, x, y));
    }
    assert!(defs.len() > 250);
    let nodes = vec![None; defs.len()];
    for_every_arch(|arch| {
        for level in [OptLevel::Full, OptLevel::None] {
            // Without optimisation one of each platform and wave size will do.
            if level == OptLevel::None && !matches!(arch.name, "gfx942" | "gfx1100" | "sm_80") {
                continue;
            }
            let code = gpu::emit(&defs, &nodes, arch, level).unwrap().code().unwrap();
            if arch.platform == Platform::Hip {
                assert_eq!(notes::kernels(&code).unwrap().len(), defs.len());
            }
        }
    });
}

#[test]
fn what_cannot_be_passed_is_refused_with_the_node() {
    let mut k = Kit::default();
    let n = k.param("n");
    k.nest.outer = vec![n];
    let x: Vec<_> = (0..600).map(|_| k.op(DType::F32, &[n], &[1], false)).collect();
    let y = k.op(DType::F32, &[n], &[1], true);
    let v = k.load(x[0], &[Axis::Outer(0)]);
    k.store(false, y, &[Axis::Outer(0)], v);
    let e = gpu::emit(&[k.def("many")], &[Some("/layer/Concat".into())], &ARCHS[0], OptLevel::Full).unwrap_err();
    let text = e.to_string();
    assert!(text.contains("603 arguments") && text.contains("/layer/Concat"), "{text}");
}
