//! GB/s of generated kernels beside a copy of the same number of bytes, one thread, and how long compiling them took.
//! Arguments: the tier, then `ir` or `asm` to see the code instead.

use codegen::{CpuTarget, Options, compile, jit};
use ir::nest::{Access, Axis, BinOp, Combiner, Coord, Expr, ExprId, Nest, NestOperand, Phase, Reduction, Term, UnOp};
use lower::host::{DimSource, Func, HostProgram, KernelDef, Reg, Stmt};
use runtime::abi::{self, KernelFn, RunCtx, Status, Table, TensorDesc};
use std::sync::Arc;
use std::time::Instant;
use tensor::dims::Origin;
use tensor::{DType, DimId, DimPool, Entity};

struct Build {
    pool: DimPool,
    nest: Nest,
    params: Vec<DimId>,
}

impl Build {
    fn new(names: &[&str]) -> Build {
        let mut pool = DimPool::new();
        let params = names.iter().map(|n| pool.symbol(n, Origin::Unknown)).collect();
        Build { pool, nest: Nest::default(), params }
    }
    /// A contiguous operand.
    fn operand(&mut self, dtype: DType, shape: &[DimId], written: bool) -> u16 {
        let mut strides = vec![self.pool.constant(1)];
        for d in shape.iter().skip(1).rev() {
            let s = *strides.last().unwrap();
            strides.push(self.pool.mul(s, *d));
        }
        strides.reverse();
        // Products of symbols are parameters of their own.
        for s in &strides {
            if self.pool.as_const(*s).is_none() && !self.params.contains(s) {
                self.params.push(*s);
            }
        }
        let (shape, strides) = (shape.iter().copied().collect(), strides.into_iter().collect());
        self.nest.operand(NestOperand { dtype, shape, strides, written })
    }
    fn access(&mut self, operand: u16, axes: &[Axis]) -> Access {
        let (zero, one) = (self.pool.constant(0), self.pool.constant(1));
        let coords = axes.iter().map(|a| Coord { offset: zero, terms: [(Term::Axis(*a), one)].into_iter().collect() });
        Access { operand, coords: coords.collect() }
    }
    fn load(&mut self, operand: u16, axes: &[Axis]) -> ExprId {
        let a = self.access(operand, axes);
        self.nest.expr(Expr::Load(a))
    }
    fn store(&mut self, over_inner: bool, operand: u16, axes: &[Axis], v: ExprId) {
        let a = self.access(operand, axes);
        self.nest.phases.push(Phase::Store { over_inner, stores: vec![(a, v)] });
    }
    fn reduce(&mut self, combiner: Combiner, value: ExprId) {
        self.nest.phases.push(Phase::Reduce(vec![Reduction { combiner, value }]));
    }
    fn def(self, name: &str) -> KernelDef {
        let mut p = self.pool.clone();
        let n = p.constant(i64::MAX - 5).index();
        let source = |d: DimId| match self.pool.as_const(d) {
            Some(c) => Some(DimSource::Const(c)),
            None => self.params.iter().position(|p| *p == d).map(|i| DimSource::Param(u32::try_from(i).unwrap())),
        };
        let dims = (0..n).map(DimId::new).filter_map(|d| Some((d, source(d)?))).collect();
        let n_params = u32::try_from(self.params.len()).unwrap();
        KernelDef { name: name.into(), nest: Arc::new(self.nest), dims, n_params }
    }
}

const O: Axis = Axis::Outer(0);
const I: Axis = Axis::Inner(0);

/// y = f(x…), one axis.
fn map(name: &str, n_reads: usize, f: impl FnOnce(&mut Nest, &[ExprId]) -> ExprId) -> KernelDef {
    let mut b = Build::new(&["n"]);
    let n = b.params[0];
    let reads: Vec<_> = (0..n_reads).map(|_| b.operand(DType::F32, &[n], false)).collect();
    let y = b.operand(DType::F32, &[n], true);
    b.nest.outer = vec![n];
    let x: Vec<_> = reads.iter().map(|r| b.load(*r, &[O])).collect();
    let v = f(&mut b.nest, &x);
    b.store(false, y, &[O], v);
    b.def(name)
}

fn gelu(n: &mut Nest, x: ExprId) -> ExprId {
    let (half, one) = (n.num(0.5, DType::F32), n.num(1.0, DType::F32));
    let root = n.num(std::f64::consts::FRAC_1_SQRT_2, DType::F32);
    let t = n.bin(BinOp::Mul, x, root);
    let t = n.un(UnOp::Erf, t);
    let t = n.bin(BinOp::Add, t, one);
    let h = n.bin(BinOp::Mul, x, half);
    n.bin(BinOp::Mul, h, t)
}

fn softmax() -> KernelDef {
    let mut b = Build::new(&["m", "n"]);
    let (m, n) = (b.params[0], b.params[1]);
    let (x, y) = (b.operand(DType::F32, &[m, n], false), b.operand(DType::F32, &[m, n], true));
    (b.nest.outer, b.nest.inner) = (vec![m], vec![n]);
    let v = b.load(x, &[O, I]);
    b.reduce(Combiner::Max, v);
    let r = b.nest.expr(Expr::Reduced(0));
    let t = b.nest.bin(BinOp::Sub, v, r);
    let e = b.nest.un(UnOp::Exp, t);
    b.reduce(Combiner::Sum, e);
    let r = b.nest.expr(Expr::Reduced(1));
    let q = b.nest.bin(BinOp::Div, e, r);
    b.store(true, y, &[O, I], q);
    b.def("softmax")
}

fn sums(name: &str, columns: bool) -> KernelDef {
    let mut b = Build::new(&["m", "n"]);
    let (m, n) = (b.params[0], b.params[1]);
    let x = b.operand(DType::F32, &[m, n], false);
    let y = b.operand(DType::F32, &[if columns { n } else { m }], true);
    let (outer, inner) = if columns { (n, m) } else { (m, n) };
    (b.nest.outer, b.nest.inner) = (vec![outer], vec![inner]);
    let axes = if columns { [I, O] } else { [O, I] };
    let v = b.load(x, &axes);
    b.reduce(Combiner::Sum, v);
    let r = b.nest.expr(Expr::Reduced(0));
    b.store(false, y, &[O], r);
    b.def(name)
}

thread_local!(static KERNELS: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) });

/// Keeps the kernel's address: the program below launches each kernel once, over no points.
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn launch(
    _: *mut RunCtx,
    _: u32,
    f: Option<KernelFn>,
    _: *const u64,
    _: u32,
    _: u32,
    _: i64,
    _: i64,
    _: u32,
) -> Status {
    KERNELS.with(|k| k.borrow_mut().extend(f.map(|f| f as usize)));
    0
}
macro_rules! unused {
    ($($name:ident($($t:ty),*);)*) => { $(unsafe extern "C" fn $name($(_: $t),*) -> Status { 1 })* };
}
unused! {
    input_dim(*mut RunCtx, u32, u32, *mut i64);
    input_ptr(*mut RunCtx, u32, *mut i64);
    const_ptr(*mut RunCtx, u32, *mut i64);
    reserve(*mut RunCtx, u32, i64, *mut i64);
    output(*mut RunCtx, u32, u32, *const i64, *mut i64);
    guard_failed(*mut RunCtx, u32, u32, i64, i64);
    arith_failed(*mut RunCtx, u32);
    kernel(*mut RunCtx, u32, *const u64, u32, u32, u32, u32);
    host_op(*mut RunCtx, u32, *const TensorDesc, u32, u32, u32);
    copy(*mut RunCtx, i64, u32, i64, u32, i64, u32);
    store_ints(*mut RunCtx, i64, i32, u32, *const i64);
    readback(*mut RunCtx, i64, u32, i32, u32, u32, *mut i64);
}

fn best(mut f: impl FnMut()) -> f64 {
    let once = |f: &mut dyn FnMut()| {
        let t = Instant::now();
        f();
        t.elapsed().as_secs_f64()
    };
    (0..40).map(|_| once(&mut f)).fold(f64::MAX, f64::min)
}

fn main() {
    let tier = std::env::args().nth(1).unwrap_or_else(|| "native".into());
    let defs = vec![
        map("copy", 1, |_, x| x[0]),
        map("add_mul_relu", 3, |n, x| {
            let zero = n.num(0.0, DType::F32);
            let m = n.bin(BinOp::Mul, x[0], x[1]);
            let a = n.bin(BinOp::Add, m, x[2]);
            n.bin(BinOp::Max, a, zero)
        }),
        map("gelu", 1, |n, x| gelu(n, x[0])),
        map("exp", 1, |n, x| n.un(UnOp::Exp, x[0])),
        map("tanh", 1, |n, x| n.un(UnOp::Tanh, x[0])),
        map("sin", 1, |n, x| n.un(UnOp::Sin, x[0])),
        softmax(),
        sums("row_sum", false),
        sums("column_sum", true),
    ];
    let names: Vec<_> = defs.iter().map(|d| d.name.clone()).collect();
    let zero = Reg::new(0);
    let mut body = vec![Stmt::Const(zero, 0)];
    for (i, d) in (0u32..).zip(&defs) {
        let (buffers, params) = (vec![zero; d.nest.operands.len()], vec![zero; d.n_params as usize]);
        body.push(Stmt::Launch { kernel: i, buffers, params, points: zero, work: zero, node: 0 });
    }
    let funcs = vec![Func { name: "run".into(), body }];
    let program = HostProgram { funcs, n_regs: 1, kernels: defs, ..HostProgram::default() };
    let mut options = Options::new(CpuTarget::tier(&tier).unwrap());
    let show = std::env::args().nth(2);
    options.want_asm = show.as_deref() == Some("asm");
    options.want_ir = show.as_deref() == Some("ir");
    let t = Instant::now();
    let compiled = compile(&program, &options, b"").unwrap();
    println!("{} kernels compiled for {tier} in {:.1} ms", names.len(), t.elapsed().as_secs_f64() * 1e3);
    if let Some(text) = compiled.asm.or(compiled.ir) {
        println!("{text}");
        return;
    }
    let code = jit::load(&compiled.object).unwrap();
    let table = Table {
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
    };
    let mut frame = vec![0u64; 64];
    // SAFETY: the table is complete and the frame long enough; the launches above are over no points.
    unsafe {
        assert_eq!((code.init())(&table), 0);
        assert_eq!((code.run())(std::ptr::null_mut(), frame.as_mut_ptr()), 0);
    }
    let kernels = KERNELS.with(|k| k.borrow().clone());
    for n in [16usize << 10, 256 << 10, 8 << 20] {
        let m = n / 1024;
        let buffers: Vec<Vec<f32>> =
            (0..4).map(|b| (0..n).map(|i| ((i * 7 + b) % 1000) as f32 * 0.004 - 2.0).collect()).collect();
        let mut out = vec![0f32; n];
        // Short measurements, the best of many: the machine may be busy.
        let reps = (1 << 17) / n + 1;
        let copied = best(|| {
            for _ in 0..reps {
                out.copy_from_slice(std::hint::black_box(&buffers[0]));
                std::hint::black_box(&mut out);
            }
        });
        let gb = |bytes: usize, s: f64| (bytes * reps) as f64 / s / 1e9;
        println!("{n} elements: memcpy {:.1} GB/s", gb(8 * n, copied));
        for (i, name) in names.iter().enumerate() {
            let nest = &program.kernels[i].nest;
            let reads = nest.operands.len() - 1;
            let mut args: Vec<u64> = buffers[..reads].iter().map(|b| b.as_ptr() as u64).collect();
            args.push(out.as_mut_ptr() as u64);
            let (points, bytes) = match name.as_str() {
                "softmax" | "row_sum" | "column_sum" => {
                    args.extend([m as u64, 1024]);
                    args.extend([1024]);
                    let columns = name == "column_sum";
                    (if columns { 1024 } else { m }, if name == "softmax" { 8 * n } else { 4 * n })
                }
                _ => {
                    args.push(n as u64);
                    (n, 4 * n * (reads + 1))
                }
            };
            // SAFETY: the address came from the program's launch of this kernel; the buffers are as long as its parameters say.
            let s = best(|| unsafe {
                let f: KernelFn = std::mem::transmute::<usize, KernelFn>(kernels[i]);
                for _ in 0..reps {
                    f(std::ptr::null_mut(), args.as_ptr(), 0, i64::try_from(points).unwrap());
                }
            });
            println!("  {name:14} {:7.1} GB/s  {:6.2} of memcpy", gb(bytes, s), gb(bytes, s) / gb(8 * n, copied));
        }
    }
}
