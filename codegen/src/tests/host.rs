//! Host programs built by hand, run against a table that records the calls.

use super::kit::Kit;
use crate::{CpuTarget, Options, compile, jit, native, object_from_bitcode};
use ir::hip::Space;
use ir::nest::{Axis, BinOp, Expr, Phase};
use lower::host::*;
use runtime::abi::{self, KernelFn, RunCtx, Status, Table, TensorDesc};
use std::ffi::c_void;
use tensor::{DType, Entity};

/// What the run context is in these tests.
#[derive(Default)]
struct Log {
    calls: Vec<String>,
    dims: Vec<i64>,
    buffer: Vec<f32>,
    readback: Vec<i64>,
}

fn log<'a>(ctx: *mut RunCtx) -> &'a mut Log {
    // SAFETY: every test passes a live Log as the context and runs on one thread.
    unsafe { &mut *ctx.cast::<Log>() }
}
/// # Safety
/// `out` is writable.
unsafe fn give(out: *mut i64, v: i64) -> Status {
    // SAFETY: the caller says so.
    unsafe { *out = v };
    0
}
unsafe extern "C" fn input_dim(c: *mut RunCtx, input: u32, axis: u32, out: *mut i64) -> Status {
    log(c).calls.push(format!("input_dim {input} {axis}"));
    // SAFETY: generated code passes its own slot.
    unsafe { give(out, log(c).dims[axis as usize]) }
}
unsafe extern "C" fn input_ptr(c: *mut RunCtx, input: u32, out: *mut i64) -> Status {
    log(c).calls.push(format!("input_ptr {input}"));
    // SAFETY: as above.
    unsafe { give(out, log(c).buffer.as_ptr() as i64) }
}
unsafe extern "C" fn const_ptr(c: *mut RunCtx, index: u32, out: *mut i64) -> Status {
    log(c).calls.push(format!("const_ptr {index}"));
    // SAFETY: as above.
    unsafe { give(out, log(c).buffer.as_ptr() as i64) }
}
unsafe extern "C" fn reserve(c: *mut RunCtx, domain: u32, bytes: i64, out: *mut i64) -> Status {
    log(c).calls.push(format!("reserve {domain} {bytes}"));
    // SAFETY: as above.
    unsafe { give(out, 0x1000) }
}
unsafe extern "C" fn output(c: *mut RunCtx, index: u32, rank: u32, dims: *const i64, out: *mut i64) -> Status {
    // SAFETY: generated code passes `rank` extents.
    let d = unsafe { std::slice::from_raw_parts(dims, rank as usize) };
    log(c).calls.push(format!("output {index} {d:?}"));
    // SAFETY: as above.
    unsafe { give(out, log(c).buffer.as_ptr() as i64) }
}
unsafe extern "C" fn guard_failed(c: *mut RunCtx, what: u32, node: u32, lhs: i64, rhs: i64) -> Status {
    log(c).calls.push(format!("guard_failed {what} {node} {lhs} {rhs}"));
    7
}
unsafe extern "C" fn arith_failed(c: *mut RunCtx, node: u32) -> Status {
    log(c).calls.push(format!("arith_failed {}", node.cast_signed()));
    8
}
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn launch(
    c: *mut RunCtx,
    kernel: u32,
    func: Option<KernelFn>,
    args: *const u64,
    nb: u32,
    ni: u32,
    points: i64,
    work: i64,
    node: u32,
) -> Status {
    log(c).calls.push(format!("launch {kernel} {nb} {ni} {points} {work} {node}"));
    let Some(func) = func else { return 1 };
    // SAFETY: the kernel gets the arguments that generated code made for it.
    unsafe { func(std::ptr::null_mut::<c_void>(), args, 0, points) }
}
unsafe extern "C" fn kernel(c: *mut RunCtx, id: u32, args: *const u64, nb: u32, ni: u32, ns: u32, node: u32) -> Status {
    // SAFETY: generated code passes that many words.
    let a = unsafe { std::slice::from_raw_parts(args, (nb + ni + ns) as usize) };
    let scalars: Vec<f64> = a[(nb + ni) as usize..].iter().map(|b| f64::from_bits(*b)).collect();
    log(c).calls.push(format!(
        "kernel {id} {:?} {:?} {scalars:?} {node}",
        &a[..nb as usize],
        &a[nb as usize..(nb + ni) as usize]
    ));
    0
}
unsafe extern "C" fn host_op(c: *mut RunCtx, op: u32, t: *const TensorDesc, n: u32, n_reads: u32, node: u32) -> Status {
    // SAFETY: generated code passes `n` descriptors.
    let all = unsafe { std::slice::from_raw_parts(t, n as usize) };
    let mut text = Vec::new();
    for d in all {
        if d.rank == u32::MAX {
            text.push("-".to_string());
            continue;
        }
        // SAFETY: `dims` has `rank` extents, and is not read for scalars.
        let dims = if d.rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(d.dims, d.rank as usize) } };
        text.push(format!("{}:{}{dims:?}@{}+{}", d.data as usize, d.dtype, d.space, d.bytes));
    }
    log(c).calls.push(format!("host_op {op} {} {n_reads} {node}", text.join(" ")));
    0
}
unsafe extern "C" fn copy(c: *mut RunCtx, dst: i64, ds: u32, src: i64, ss: u32, bytes: i64, node: u32) -> Status {
    log(c).calls.push(format!("copy {dst}@{ds} {src}@{ss} {bytes} {node}"));
    0
}
unsafe extern "C" fn store_ints(c: *mut RunCtx, ptr: i64, dtype: i32, n: u32, values: *const i64) -> Status {
    // SAFETY: generated code passes `n` values.
    let v = unsafe { std::slice::from_raw_parts(values, n as usize) };
    log(c).calls.push(format!("store_ints {ptr} {dtype} {v:?}"));
    0
}
unsafe extern "C" fn readback(
    c: *mut RunCtx,
    ptr: i64,
    space: u32,
    dtype: i32,
    index: u32,
    node: u32,
    out: *mut i64,
) -> Status {
    log(c).calls.push(format!("readback {ptr} {space} {dtype} {index} {node}"));
    let v = log(c).readback.remove(0);
    // SAFETY: as above.
    unsafe { give(out, v) }
}

fn table() -> Table {
    Table {
        size_bytes: size_of::<Table>() as u64,
        version: u64::from(abi::ABI_VERSION),
        input_dim,
        input_ptr,
        const_ptr,
        reserve,
        output,
        guard_failed,
        arith_failed,
        launch,
        kernel,
        host_op,
        copy,
        store_ints,
        readback,
    }
}

/// Registers are made in order.
#[derive(Default)]
struct Prog(HostProgram);
impl Prog {
    fn reg(&mut self) -> Reg {
        self.0.n_regs += 1;
        Reg::new(self.0.n_regs as usize - 1)
    }
    fn func(&mut self, name: &str) -> usize {
        self.0.funcs.push(Func { name: name.into(), body: vec![] });
        self.0.funcs.len() - 1
    }
    fn put(&mut self, f: usize, s: Stmt) {
        self.0.funcs[f].body.push(s);
    }
    fn konst(&mut self, f: usize, v: i64) -> Reg {
        let r = self.reg();
        self.put(f, Stmt::Const(r, v));
        r
    }
    fn int(&mut self, f: usize, op: IntOp, a: Reg, b: Reg) -> Reg {
        let r = self.reg();
        self.put(f, Stmt::Int(r, op, a, b));
        r
    }
    fn dim(&mut self, f: usize, axis: u32) -> Reg {
        let r = self.reg();
        self.put(f, Stmt::InputDim(r, 0, axis));
        r
    }
    fn show(&mut self, f: usize, values: &[Reg]) {
        let ptr = self.konst(f, 1);
        self.put(f, Stmt::StoreInts { ptr, dtype: DType::I64, values: values.to_vec() });
    }
}

fn target() -> CpuTarget {
    CpuTarget::native()
}

fn run_code(code: &jit::Code, log: &mut Log) -> Status {
    assert_eq!(code.abi_hash(), abi::abi_hash());
    let t = table();
    // SAFETY: the table is complete, the context is what the table's functions expect, the frame has as many words as asked for.
    unsafe {
        assert_eq!((code.init())(&t), 0);
        let mut frame = vec![0u64; code.frame_words() as usize + 1];
        (code.run())(std::ptr::from_mut(log).cast(), frame.as_mut_ptr())
    }
}

/// Compiles, loads, runs; gives status and calls.
fn check(p: &Prog, log: &mut Log) -> (Status, Vec<String>) {
    let c = compile(&p.0, &Options::new(target()), b"meta").unwrap();
    let code = jit::load(&c.object).unwrap();
    assert_eq!(code.metadata(), b"meta");
    let s = run_code(&code, log);
    (s, log.calls.clone())
}

fn add_kernel() -> KernelDef {
    let mut k = Kit::default();
    let n = k.pool.symbol("n", tensor::dims::Origin::Unknown);
    let one = k.d(1);
    let mut op = |written| {
        let o = ir::nest::NestOperand {
            dtype: DType::F32,
            shape: [n].into_iter().collect(),
            strides: [one].into_iter().collect(),
            written,
        };
        k.nest.operand(o)
    };
    let (x, y) = (op(false), op(true));
    k.nest.outer = vec![n];
    let a = k.access(x, &[Axis::Outer(0)]);
    let l = k.nest.expr(Expr::Load(a));
    let v = k.nest.bin(BinOp::Add, l, l);
    let s = k.access(y, &[Axis::Outer(0)]);
    k.nest.phases = vec![Phase::Store { over_inner: false, stores: vec![(s, v)] }];
    let mut d = k.def("k0_double");
    d.dims.push((n, DimSource::Param(0)));
    d.n_params = 1;
    d
}

/// Input, output, one launch of a kernel that doubles in place; a second function uses registers of the first.
fn doubling() -> Prog {
    let mut p = Prog::default();
    p.0.kernels.push(add_kernel());
    p.0.debug.push(DebugNode { path: "/double".into(), what: "loops k0".into() });
    let (main, part) = (p.func("run"), p.func("run_1"));
    let n = p.dim(main, 0);
    let x = p.reg();
    p.put(main, Stmt::InputPtr(x, 0));
    p.put(main, Stmt::Call(FuncId::new(part)));
    let y = p.reg();
    p.put(part, Stmt::Output { ptr: y, index: 0, dims: vec![n] });
    let launch = Stmt::Launch { kernel: 0, buffers: vec![x, y], params: vec![n], points: n, work: n, node: 0 };
    p.put(part, launch);
    p
}

#[test]
fn a_launch_runs_through_jit_and_native_library_alike() {
    let p = doubling();
    let c = compile(&p.0, &Options::new(target()), b"meta").unwrap();
    let want = ["input_dim 0 0", "input_ptr 0", "output 0 [1000]", "launch 0 2 1 1000 1000 0"];
    let start: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let doubled: Vec<f32> = start.iter().map(|x| x + x).collect();
    for object in [c.object.clone(), object_from_bitcode(&c.bitcode, &target(), crate::OptLevel::Full).unwrap()] {
        let code = jit::load(&object).unwrap();
        let mut log = Log { dims: vec![1000], buffer: start.clone(), ..Log::default() };
        assert_eq!(run_code(&code, &mut log), 0);
        assert_eq!(log.calls, want);
        assert_eq!(log.buffer, doubled);

        let dir = std::env::temp_dir().join(format!("hip-ep-codegen-{}-{}", std::process::id(), object.len()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("model.so");
        native::link_shared(
            &object,
            &artifact::gpu::pack(&[("hip:x/generated", bytes::Bytes::from_static(b"code"))]),
            &path,
        )
        .unwrap();
        // SAFETY: the library has no initialisers, and its symbols have the ABI's types.
        unsafe {
            let lib = libloading::Library::new(&path).unwrap();
            let init = lib.get::<abi::InitFn>(b"hip_ep_init\0").unwrap();
            let run = lib.get::<abi::RunFn>(b"hip_ep_run\0").unwrap();
            let words = **lib.get::<*const u64>(b"hip_ep_frame_words\0").unwrap();
            let hash = **lib.get::<*const u64>(b"hip_ep_abi_hash\0").unwrap();
            assert_eq!((words, hash), (code.frame_words(), abi::abi_hash()));
            let bytes = *lib.get::<*const [u8; 4]>(b"hip_ep_metadata\0").unwrap();
            assert_eq!(&*bytes, b"meta");
            let mut log = Log { dims: vec![1000], buffer: start.clone(), ..Log::default() };
            let t = table();
            assert_eq!(init(&t), 0);
            let mut frame = vec![0u64; words as usize];
            assert_eq!(run(std::ptr::from_mut(&mut log).cast(), frame.as_mut_ptr()), 0);
            assert_eq!(log.calls, want);
            assert_eq!(log.buffer, doubled);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn init_refuses_another_table() {
    let c = compile(&doubling().0, &Options::new(target()), b"").unwrap();
    let code = jit::load(&c.object).unwrap();
    let (mut short, mut newer) = (table(), table());
    short.size_bytes -= 8;
    newer.version += 1;
    // SAFETY: both tables are complete; only what they say of themselves is wrong.
    unsafe {
        assert_eq!((code.init())(&short), 1);
        assert_eq!((code.init())(&newer), 1);
    }
}

#[test]
fn integer_operations_round_as_dims_do() {
    let values = [(7i64, 2i64), (-7, 2), (7, -2), (-7, -2), (6, 3), (-6, 3), (0, 5), (5, 1), (5, -1)];
    let ops = [
        IntOp::Add,
        IntOp::Sub,
        IntOp::Mul,
        IntOp::FloorDiv,
        IntOp::CeilDiv,
        IntOp::Mod,
        IntOp::Min,
        IntOp::Max,
        IntOp::Eq,
        IntOp::Le,
        IntOp::Lt,
        IntOp::And,
    ];
    for constant in [false, true] {
        for (x, y) in values {
            let mut p = Prog::default();
            let f = p.func("run");
            let (a, b) = if constant { (p.konst(f, x), p.konst(f, y)) } else { (p.dim(f, 0), p.dim(f, 1)) };
            let r: Vec<Reg> = ops.iter().map(|op| p.int(f, *op, a, b)).collect();
            p.show(f, &r);
            let mut log = Log { dims: vec![x, y], ..Log::default() };
            let (s, calls) = check(&p, &mut log);
            use tensor::dims::DimOp as D;
            let d = |o: D| o.eval(x, y).unwrap();
            let want = [
                x + y,
                x - y,
                x * y,
                d(D::FloorDiv),
                d(D::CeilDiv),
                d(D::Mod),
                x.min(y),
                x.max(y),
                i64::from(x == y),
                i64::from(x <= y),
                i64::from(x < y),
                i64::from(x != 0 && y != 0),
            ];
            assert_eq!((s, calls.last().unwrap().as_str()), (0, format!("store_ints 1 7 {want:?}").as_str()));
        }
    }
}

#[test]
fn division_by_zero_and_overflow_fail_at_the_node_whose_size_it_was() {
    for (op, x, y) in
        [(IntOp::FloorDiv, 5, 0), (IntOp::Mod, i64::MIN, -1), (IntOp::Mul, i64::MAX, 2), (IntOp::Add, i64::MAX, 1)]
    {
        let mut p = Prog::default();
        let f = p.func("run");
        let (a, b) = (p.dim(f, 0), p.dim(f, 1));
        let r = p.int(f, op, a, b);
        let zero = p.konst(f, 0);
        p.put(f, Stmt::Copy { dst: (zero, Space::Host), src: (zero, Space::Device), bytes: r, node: 3 });
        let mut log = Log { dims: vec![x, y], ..Log::default() };
        let (s, calls) = check(&p, &mut log);
        assert_eq!((s, calls.last().unwrap().as_str()), (8, "arith_failed 3"), "{op:?}");
        assert!(!calls.iter().any(|c| c.starts_with("copy")));
    }
}

#[test]
fn guards_calls_and_descriptors_get_what_the_program_says() {
    let mut p = Prog::default();
    let f = p.func("run");
    let (n, m) = (p.dim(f, 0), p.dim(f, 1));
    let same = p.int(f, IntOp::Eq, n, m);
    let (ten, zero) = (p.konst(f, 10), p.konst(f, 0));
    p.put(f, Stmt::Kernel { id: 4, buffers: vec![ten, zero], ints: vec![n, m], scalars: vec![0.5, -1.0], node: 1 });
    let base = p.reg();
    p.put(f, Stmt::Reserve { base, domain: 2, bytes: n });
    let c = p.reg();
    p.put(f, Stmt::ConstPtr(c, 6));
    let d = |ptr, dtype, dims, space| Some(Desc { ptr, dtype, dims, space });
    let tensors = vec![
        d(ten, DType::F32, vec![n, m], Space::Host),
        None,
        d(base, DType::I4, vec![m], Space::Device),
        d(zero, DType::I64, vec![], Space::HostMapped),
    ];
    p.put(f, Stmt::HostOp { op: 9, tensors, n_reads: 2, node: 5 });
    p.put(f, Stmt::Copy { dst: (ten, Space::Host), src: (base, Space::HostMapped), bytes: m, node: 2 });
    p.put(f, Stmt::Guard { cond: same, sides: (n, m), what: 11, node: 12 });
    p.show(f, &[n]);
    let mut log = Log { dims: vec![3, 5], ..Log::default() };
    let (s, calls) = check(&p, &mut log);
    let want = [
        "input_dim 0 0",
        "input_dim 0 1",
        "kernel 4 [10, 0] [3, 5] [0.5, -1.0] 1",
        "reserve 2 3",
        "const_ptr 6",
        "host_op 9 10:1[3, 5]@1+60 - 4096:22[5]@0+3 0:7[]@2+8 2 5",
        "copy 10@1 4096@2 5 2",
        "guard_failed 11 12 3 5",
    ];
    assert_eq!((s, calls), (7, want.map(String::from).to_vec()));
}

#[test]
fn if_merges_values_of_both_arms() {
    for cond in [0, 4] {
        let mut p = Prog::default();
        let (f, a, b) = (p.func("run"), p.func("then"), p.func("else"));
        let (c, outer) = (p.dim(f, 0), p.dim(f, 1));
        let (x, y) = (p.konst(a, 11), p.int(b, IntOp::Add, outer, outer));
        let (r, q) = (p.reg(), p.reg());
        let merges = vec![(r, x, y), (q, outer, y)];
        p.put(f, Stmt::If { cond: c, then: FuncId::new(a), els: FuncId::new(b), merges });
        p.show(f, &[r, q]);
        let mut log = Log { dims: vec![cond, 50], ..Log::default() };
        let (s, calls) = check(&p, &mut log);
        let want = if cond != 0 { "store_ints 1 7 [11, 50]" } else { "store_ints 1 7 [100, 100]" };
        assert_eq!((s, calls.last().unwrap().as_str()), (0, want));
    }
}

#[test]
fn loops_carry_permute_and_stop() {
    // a, b = b, a + b while the counter is not 0: Fibonacci.
    let mut p = Prog::default();
    let (f, body, after) = (p.func("run"), p.func("body"), p.func("after"));
    let (n, zero, one) = (p.dim(f, 0), p.konst(f, 0), p.konst(f, 1));
    let (a, b, go) = (p.reg(), p.reg(), p.reg());
    let sum = p.int(body, IntOp::Add, a, b);
    let less = p.int(body, IntOp::Sub, go, one);
    let carried = vec![(a, zero, b), (b, one, sum), (go, n, less)];
    p.put(f, Stmt::Loop { carried, go, body: FuncId::new(body) });
    p.put(f, Stmt::Call(FuncId::new(after)));
    p.show(f, &[a, b, go]);
    p.show(after, &[a]);
    for (n, fib) in [(0, [0, 1, 0]), (1, [1, 1, 0]), (10, [55, 89, 0])] {
        let mut log = Log { dims: vec![n], ..Log::default() };
        let (s, calls) = check(&p, &mut log);
        let got = (s, calls[1].as_str(), calls[2].as_str());
        assert_eq!(
            got,
            (0, format!("store_ints 1 7 [{}]", fib[0]).as_str(), format!("store_ints 1 7 {fib:?}").as_str())
        );
    }
}

#[test]
fn bitcode_has_one_call_site_per_statement_and_no_foreign_symbol() {
    let mut p = doubling();
    let zero = p.konst(0, 0);
    for id in 0..5 {
        p.put(0, Stmt::Kernel { id, buffers: vec![zero], ints: vec![], scalars: vec![], node: 0 });
    }
    let mut o = Options::new(target());
    o.want_ir = true;
    let c = compile(&p.0, &o, b"meta").unwrap();
    let ir = c.ir.unwrap();
    let calls = |name: &str| ir.lines().filter(|l| l.contains("call i32 %") && l.contains(&format!("%{name}"))).count();
    assert_eq!((calls("launch"), calls("kernel")), (1, 5), "{ir}");
    let dir = std::env::temp_dir().join(format!("hip-ep-dis-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("model.bc");
    std::fs::write(&path, &c.bitcode).unwrap();
    let dis = std::process::Command::new("/usr/lib/llvm-19/bin/llvm-dis").arg("-o").arg("-").arg(&path).output();
    std::fs::remove_dir_all(&dir).unwrap();
    match dis {
        Ok(out) => assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("@hip_ep_run")),
        Err(e) => println!("llvm-dis is not installed ({e}): reading the bitcode was tested in process alone"),
    }
}

#[test]
fn output_is_the_same_for_any_number_of_threads() {
    let mut p = doubling();
    let proto = p.0.kernels[0].clone();
    for i in 1..40 {
        let mut k = proto.clone();
        k.name = format!("k{i}_double");
        p.0.kernels.push(k);
    }
    let mut o = Options::new(target());
    o.n_threads = 1;
    let a = compile(&p.0, &o, b"meta").unwrap();
    o.n_threads = 4;
    let b = compile(&p.0, &o, b"meta").unwrap();
    assert!(a.bitcode == b.bitcode && a.object == b.object);
    let here = std::env::current_dir().unwrap();
    let text = String::from_utf8_lossy(&a.object).into_owned();
    assert!(!text.contains(here.to_str().unwrap()) && !text.contains("/tmp"));
}

#[test]
fn a_kernel_of_an_unsupported_type_is_refused_with_its_node() {
    let mut p = doubling();
    let mut nest = (*p.0.kernels[0].nest).clone();
    nest.operands[0].dtype = DType::C64;
    p.0.kernels[0].nest = std::sync::Arc::new(nest);
    let e = compile(&p.0, &Options::new(target()), b"").unwrap_err();
    let want = "kernel k0_double cannot be generated: operand 0 has c64 elements, which generated kernels neither load nor store";
    assert_eq!((e.message(), e.node_path()), (want, Some("/double")));
}
