//! Builds nests by hand, runs them through the JIT and compares them with the nest interpreter.

use crate::CpuTarget;
use crate::object::{self, OptLevel};
use crate::orc::Orc;
use ir::nest::{Access, Axis, Coord, Expr, ExprId, Nest, NestOperand, Phase, Term};
use lower::host::{DimSource, KernelDef};
use runtime::abi::KernelFn;
use std::sync::Arc;
use tensor::dims::{DimPool, Origin};
use tensor::{DType, DimId, Entity, SymId};

/// A kernel under construction.
#[derive(Clone, Default)]
pub struct Kit {
    pub pool: DimPool,
    pub nest: Nest,
    /// Symbols in the order of the kernel's i64 arguments.
    pub params: Vec<DimId>,
}

impl Kit {
    pub fn d(&mut self, v: i64) -> DimId {
        self.pool.constant(v)
    }
    /// A dim that is an argument of the kernel.
    pub fn param(&mut self, name: &str) -> DimId {
        let d = self.pool.symbol(name, Origin::Unknown);
        self.params.push(d);
        d
    }
    pub fn op(&mut self, dtype: DType, shape: &[DimId], strides: &[i64], written: bool) -> u16 {
        let shape = shape.iter().copied().collect();
        let strides = strides.iter().map(|v| self.pool.constant(*v)).collect();
        self.nest.operand(NestOperand { dtype, shape, strides, written })
    }
    pub fn operand(&mut self, dtype: DType, shape: &[i64], strides: &[i64], written: bool) -> u16 {
        let shape: Vec<_> = shape.iter().map(|v| self.pool.constant(*v)).collect();
        self.op(dtype, &shape, strides, written)
    }
    /// An access whose coordinates are the given axes.
    pub fn access(&mut self, operand: u16, axes: &[Axis]) -> Access {
        let (zero, one) = (self.d(0), self.d(1));
        let coords = axes.iter().map(|a| Coord { offset: zero, terms: [(Term::Axis(*a), one)].into_iter().collect() });
        Access { operand, coords: coords.collect() }
    }
    pub fn load(&mut self, operand: u16, axes: &[Axis]) -> ExprId {
        let a = self.access(operand, axes);
        self.nest.expr(Expr::Load(a))
    }
    pub fn store(&mut self, over_inner: bool, operand: u16, axes: &[Axis], v: ExprId) {
        let a = self.access(operand, axes);
        self.nest.phases.push(Phase::Store { over_inner, stores: vec![(a, v)] });
    }
    /// The kernel.
    pub fn def(&self, name: &str) -> KernelDef {
        let mut n = self.pool.clone();
        let count = n.constant(i64::MAX - 77).index();
        let mut dims = Vec::new();
        for d in (0..count).map(DimId::new) {
            if let Some(c) = self.pool.as_const(d) {
                dims.push((d, DimSource::Const(c)));
            } else if let Some(i) = self.params.iter().position(|p| *p == d) {
                dims.push((d, DimSource::Param(i as u32)));
            }
        }
        KernelDef { name: name.into(), nest: Arc::new(self.nest.clone()), dims, n_params: self.params.len() as u32 }
    }
    pub fn env(&self, values: &[i64]) -> Vec<(SymId, i64)> {
        // Parameters that are expressions follow from the symbols.
        let all = self.params.iter().zip(values);
        all.filter_map(|(d, v)| Some((self.pool.as_symbol(*d)?, *v))).collect()
    }
}

/// Loaded kernels.
pub struct Loaded {
    orc: Orc,
}

impl Loaded {
    pub fn new(defs: &[KernelDef], tier: &str) -> Loaded {
        Loaded::try_new(defs, tier).unwrap()
    }
    pub fn try_new(defs: &[KernelDef], tier: &str) -> tensor::Result<Loaded> {
        let nodes = vec![None; defs.len()];
        let target = CpuTarget::tier(tier)?;
        let orc = Orc::new().unwrap();
        let chunks: Vec<_> = defs.chunks(16).zip(nodes.chunks(16)).collect();
        let built = std::thread::scope(|s| {
            let work = |i: usize| {
                let (chunks, target) = (&chunks, &target);
                s.spawn(move || {
                    let mine = chunks.iter().enumerate().skip(i).step_by(2);
                    let build = |(i, (d, n)): (usize, &(&[KernelDef], &[Option<String>]))| {
                        object::kernels(&format!("test{i}"), d, n, target, OptLevel::Full, false)
                    };
                    mine.map(build).collect::<Vec<_>>()
                })
            };
            let both = [work(0), work(1)];
            both.into_iter().flat_map(|t| t.join().unwrap()).collect::<tensor::Result<Vec<_>>>()
        })?;
        for k in built {
            let parsed = crate::elf::Object::parse(&k.object).unwrap();
            assert_eq!(crate::elf::undefined(&[parsed]), Vec::<String>::new(), "library calls on {tier}");
            orc.add(&k.object).unwrap();
        }
        Ok(Loaded { orc })
    }
    pub fn call(&self, name: &str, args: &[u64], begin: i64, end: i64) {
        let a = self.orc.lookup(name).unwrap();
        // SAFETY: the address is that of a function with the kernel signature, and the arguments are those its nest names.
        let status = unsafe {
            let f: KernelFn = std::mem::transmute::<usize, KernelFn>(a);
            f(std::ptr::null_mut(), args.as_ptr(), begin, end)
        };
        assert_eq!(status, 0);
    }
}

/// Tiers this machine can run.
pub fn tiers() -> Vec<&'static str> {
    let n = CpuTarget::native();
    let mut v = vec!["x86-64", "native"];
    if n.has("avx2") && n.has("fma") && n.has("f16c") && n.has("bmi2") {
        v.push("x86-64-v3");
    }
    v
}

/// A small deterministic generator.
pub struct Rng(pub u64);
impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// Elements for tests: small numbers, now and then a special one.
pub fn elements(d: DType, n: usize, rng: &mut Rng, specials: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..n {
        let special = specials && rng.below(13) == 0;
        let unit = rng.below(20_001) as f64 / 10_000.0 - 1.0;
        let small = rng.below(41) as i64 - 20;
        let float = match (special, rng.below(5)) {
            (true, 0) => f64::NAN,
            (true, 1) => f64::INFINITY,
            (true, 2) => f64::NEG_INFINITY,
            (true, 3) => -0.0,
            (true, _) => 1e30,
            (_, 0) => small as f64,
            _ => unit * 4.0,
        };
        let int = if special { [i64::MIN, i64::MAX, 0, -1][rng.below(4) as usize] } else { small };
        let t = match d {
            DType::Bool => tensor::Tensor::from_bool(&[], &[small > 0]),
            d if d.is_float() => tensor::Tensor::from_f64_as(d, &[], &[float]),
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
                tensor::Tensor::from_i64_as(d, &[], &[int.wrapping_abs() & 0x7f])
            }
            d => tensor::Tensor::from_i64_as(d, &[], &[int]),
        };
        out.extend_from_slice(t.bytes());
    }
    out
}

/// How results may differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Close {
    Exact,
    /// Relative to the value, and this much absolutely.
    Within(f64, f64),
}

/// Whether two elements are equal up to `close`.
pub fn same(d: DType, got: &[u8], want: &[u8], close: Close) -> bool {
    let t = |b: &[u8]| tensor::Tensor::new(d, &[], b.to_vec().into()).unwrap();
    if got == want {
        return true;
    }
    if !d.is_float() {
        return false;
    }
    let (g, w) = (t(got).view().f64_at(0), t(want).view().f64_at(0));
    if g.is_nan() || w.is_nan() || g == w {
        return g.is_nan() == w.is_nan();
    }
    match close {
        Close::Exact => false,
        Close::Within(r, a) => (g - w).abs() <= r * w.abs() + a,
    }
}

/// One comparison: parameters of the kernel, buffers (or the operand they share), number of outer points.
pub struct Case {
    pub params: Vec<i64>,
    pub buffers: Vec<Vec<u8>>,
    pub points: i64,
    /// Operands that are the same memory as an earlier one: `(operand, earlier)`.
    pub shared: Vec<(usize, usize)>,
    pub close: Close,
}

/// Runs `name` whole and in pieces; compares with the interpreter, and the pieces with the whole bit for bit.
pub fn check(kit: &Kit, code: &Loaded, name: &str, case: &Case, rng: &mut Rng) {
    let mut want = case.buffers.clone();
    lower::hip_interp::run_nest(&kit.pool, &kit.nest, &kit.env(&case.params), &mut want).unwrap();
    let run = |cuts: &[i64]| {
        let mut b = case.buffers.clone();
        let mut at: Vec<u64> = b.iter_mut().map(|x| x.as_mut_ptr() as u64).collect();
        for (i, j) in &case.shared {
            at[*i] = at[*j];
        }
        at.extend(case.params.iter().map(|p| p.cast_unsigned()));
        for w in cuts.windows(2) {
            code.call(name, &at, w[0], w[1]);
        }
        for (i, j) in &case.shared {
            b[*i] = b[*j].clone();
        }
        b
    };
    let whole = run(&[0, case.points]);
    for (i, o) in kit.nest.operands.iter().enumerate().filter(|o| o.1.written) {
        let size = o.dtype.size().unwrap();
        for (k, (g, w)) in whole[i].chunks(size).zip(want[i].chunks(size)).enumerate() {
            assert!(
                same(o.dtype, g, w, case.close),
                "{name} {:?}: operand {i} element {k} is {g:02x?}, not {w:02x?} ({})",
                case.params,
                o.dtype
            );
        }
    }
    for _ in 0..3 {
        let mut cuts: Vec<i64> = (0..rng.below(6)).map(|_| rng.below(case.points.cast_unsigned() + 1) as i64).collect();
        cuts.extend([0, case.points]);
        cuts.sort_unstable();
        assert!(run(&cuts) == whole, "{name} {:?}: the result depends on the cuts {cuts:?}", case.params);
    }
}
