//! Generated kernels against the nest interpreter.

use super::kit::{Case, Close, Kit, Loaded, Rng, check, elements, tiers};
use ir::nest::{Axis, BinOp, Combiner, Coord, Expr, Phase, Reduction, Term, UnOp};
use tensor::DType;

const O: fn(u16) -> Axis = Axis::Outer;
const I: fn(u16) -> Axis = Axis::Inner;
const COMPUTE: [DType; 7] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::U64, DType::Bool];
const MEMORY: [DType; 18] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::Bool,
    DType::F8E4M3FN,
    DType::F8E4M3FNUZ,
    DType::F8E5M2,
    DType::F8E5M2FNUZ,
    DType::F8E8M0,
];
const SIZES: [i64; 7] = [0, 1, 7, 8, 9, 64, 1000];

fn size(d: DType) -> usize {
    d.size().unwrap()
}

/// Kernels over one axis, compiled together and run at every size.
struct Batch {
    kits: Vec<(String, Kit, Vec<(usize, i64)>, Close, bool)>,
}

impl Batch {
    /// `strides` of the reads; operands are reads then one write.
    fn add(
        &mut self,
        name: String,
        strides: &[i64],
        types: &[DType],
        out: DType,
        close: Close,
        specials: bool,
        f: impl FnOnce(&mut Kit, &[ir::nest::ExprId]) -> ir::nest::ExprId,
    ) {
        let mut k = Kit::default();
        let n = k.param("n");
        let reads: Vec<_> = types.iter().zip(strides).map(|(d, s)| k.op(*d, &[n], &[*s], false)).collect();
        let y = k.op(out, &[n], &[1], true);
        k.nest.outer = vec![n];
        let x: Vec<_> = reads.iter().map(|r| k.load(*r, &[O(0)])).collect();
        let v = f(&mut k, &x);
        k.store(false, y, &[O(0)], v);
        let sizes = types.iter().map(|d| size(*d)).zip(strides.iter().copied()).chain([(size(out), 1)]).collect();
        self.kits.push((name, k, sizes, close, specials));
    }
    fn run(&self, seed: u64) {
        // The tier without FMA, F16C and SSE4.1, and the one with all there is.
        for tier in ["x86-64", "native"] {
            let defs: Vec<_> = self.kits.iter().map(|(n, k, ..)| k.def(n)).collect();
            let code = Loaded::new(&defs, tier);
            let mut rng = Rng(seed);
            for (name, k, sizes, close, specials) in &self.kits {
                for n in SIZES {
                    let mut buffers = Vec::new();
                    for (o, (_, stride)) in k.nest.operands.iter().zip(sizes) {
                        let len = if n == 0 { 0 } else { (n - 1) * stride + 1 };
                        buffers.push(elements(o.dtype, len as usize, &mut rng, *specials));
                    }
                    let case = Case { params: vec![n], buffers, points: n, shared: vec![], close: *close };
                    check(k, &code, name, &case, &mut rng);
                }
            }
        }
    }
}

fn is_transcendental(op: UnOp) -> bool {
    use UnOp::*;
    let exact = matches!(op, Floor | Ceil | RoundEven | Trunc | Sign | IsNan | IsInf | ToBits | FromBits);
    !exact && !matches!(op, Neg | Abs | Not | BitNot | Sqrt | Recip)
}

#[test]
fn every_unary_operation_on_every_compute_type() {
    use UnOp::*;
    let all = [
        Neg, Abs, Not, BitNot, Sqrt, Rsqrt, Recip, Exp, Log, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh,
        Acosh, Atanh, Erf, Floor, Ceil, RoundEven, Trunc, Sign, IsNan, IsInf, ToBits, FromBits,
    ];
    let mut b = Batch { kits: vec![] };
    for d in COMPUTE {
        for op in all {
            let on_float = d.is_float() && !matches!(op, Not | BitNot | FromBits);
            let on_int = d.is_int() && matches!(op, Neg | Abs | BitNot | Sign)
                || d == DType::Bool && op == Not
                || op == FromBits && matches!(d, DType::U32 | DType::U64);
            if !on_float && !on_int {
                continue;
            }
            let mut probe = Kit::default();
            let n = probe.param("n");
            let x = probe.op(d, &[n], &[1], false);
            let x = probe.load(x, &[O(0)]);
            let v = probe.nest.un(op, x);
            let out = probe.nest.expr_dtype(v);
            let close = match d {
                _ if !is_transcendental(op) => Close::Exact,
                DType::F32 => Close::Within(6e-7, 1e-44),
                // The interpreter's own erf is good to 1e-13 of 1.
                _ => Close::Within(1e-13, 1e-13),
            };
            let strides: &[i64] = if matches!(op, Neg | Exp) { &[1, 3, 0] } else { &[1] };
            for s in strides {
                b.add(format!("{op:?}_{d}_{s}"), &[*s], &[d], out, close, true, |k, x| k.nest.un(op, x[0]));
            }
        }
    }
    assert!(b.kits.len() > 70);
    b.run(1);
}

#[test]
fn every_binary_operation_on_every_compute_type() {
    use BinOp::*;
    let all = [Add, Sub, Mul, Div, Mod, Rem, Pow, Min, Max, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le, Gt, Ge];
    let mut b = Batch { kits: vec![] };
    for d in COMPUTE {
        for op in all {
            let ok = match op {
                And | Or | Xor => !d.is_float(),
                Shl | Shr => d.is_int(),
                Eq | Ne | Lt | Le | Gt | Ge | Min | Max => true,
                _ => d != DType::Bool,
            };
            if !ok {
                continue;
            }
            let out = if op.is_compare() { DType::Bool } else { d };
            let close = match op {
                Pow if d == DType::F32 => Close::Within(1.2e-7, 1e-44),
                Pow => Close::Within(1e-13, 0.0),
                Mod if d.is_float() => Close::Within(1e-5, 1e-6),
                _ => Close::Exact,
            };
            // Powers and shifts get small numbers; specials of the others include the extremes and zero.
            let specials = !matches!(op, Pow | Shl | Shr | Mod);
            let strides: &[[i64; 2]] = if op == Add { &[[1, 1], [2, 1], [1, 0]] } else { &[[1, 1]] };
            for s in strides {
                let name = format!("{op:?}_{d}_{}_{}", s[0], s[1]);
                b.add(name, s, &[d, d], out, close, specials, |k, x| {
                    let (mut a, mut c) = (x[0], x[1]);
                    if d.is_int() && matches!(op, Pow | Shl | Shr) {
                        // Exponents and shifts 0..8.
                        let seven = k.nest.num(7.0, d);
                        c = k.nest.bin(BinOp::And, c, seven);
                        if op == Pow {
                            let m = k.nest.num(7.0, d);
                            a = k.nest.bin(BinOp::And, a, m);
                        }
                    }
                    k.nest.bin(op, a, c)
                });
            }
        }
    }
    assert!(b.kits.len() > 100);
    b.run(2);
}

#[test]
fn elements_of_every_type_convert_to_every_other() {
    let mut b = Batch { kits: vec![] };
    for from in MEMORY {
        for to in MEMORY {
            b.add(format!("{from}_to_{to}"), &[1], &[from], to, Close::Exact, true, |_, x| x[0]);
        }
        for c in COMPUTE {
            b.add(format!("cast_{from}_{c}"), &[1], &[from], c, Close::Exact, true, |k, x| {
                k.nest.expr(Expr::Cast(x[0], c))
            });
        }
    }
    for d in [DType::F32, DType::F64] {
        let narrow = MEMORY.into_iter().filter(|m| m.is_float() && m.bits() <= 16);
        for to in narrow.chain([DType::F4E2M1]) {
            b.add(format!("round_{d}_{to}"), &[1], &[d], d, Close::Exact, true, |k, x| {
                k.nest.expr(Expr::Round(x[0], to))
            });
        }
    }
    b.run(3);
}

#[test]
fn maxima_and_selects_of_f16_keep_nan_and_the_sign_of_zero() {
    /// The result, the first operand when a comparison holds unless swapped.
    fn expected(op: BinOp, swap: bool, a: f32, b: f32) -> f32 {
        let extreme = |first: bool| match (a.is_nan() || b.is_nan(), first) {
            (true, _) => f32::NAN,
            (_, true) => a,
            (_, false) => b,
        };
        let holds = match op {
            // +0 is greater than -0 here.
            BinOp::Max => return extreme(a > b || a == b && b.is_sign_negative()),
            BinOp::Min => return extreme(a < b || a == b && a.is_sign_negative()),
            BinOp::Gt => a > b,
            BinOp::Ge => a >= b,
            BinOp::Lt => a < b,
            BinOp::Le => a <= b,
            _ => panic!("{op:?} is not in this test"),
        };
        if holds == swap { b } else { a }
    }
    let special = [0.0, -0.0, f32::NAN, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, 7.5].map(half::f16::from_f32);
    let (x, y): (Vec<_>, Vec<_>) = special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b))).unzip();
    let points = x.len() as i64;
    let mut defs = Vec::new();
    let mut cases = Vec::new();
    for (op, swaps) in [
        (BinOp::Max, &[false][..]),
        (BinOp::Min, &[false]),
        (BinOp::Gt, &[false, true]),
        (BinOp::Ge, &[false, true]),
        (BinOp::Lt, &[false, true]),
        (BinOp::Le, &[false, true]),
    ] {
        for (swap, with_zero) in swaps.iter().flat_map(|s| [(*s, false), (*s, true)]) {
            let mut k = Kit::default();
            let n = k.param("n");
            let [a, b, out] = [false, false, true].map(|w| k.op(DType::F16, &[n], &[1], w));
            k.nest.outer = vec![n];
            let a = k.load(a, &[O(0)]);
            let b = if with_zero { k.nest.num(0.0, DType::F32) } else { k.load(b, &[O(0)]) };
            let mut v = k.nest.bin(op, a, b);
            if !matches!(op, BinOp::Max | BinOp::Min) {
                v = if swap { k.nest.select(v, b, a) } else { k.nest.select(v, a, b) };
            }
            k.store(false, out, &[O(0)], v);
            let name = format!("{op:?}_{swap}_{with_zero}");
            defs.push(k.def(&name));
            cases.push((name, op, swap, with_zero));
        }
    }
    for tier in tiers() {
        // Loading fails where a kernel calls a library.
        let code = Loaded::new(&defs, tier);
        for (name, op, swap, with_zero) in &cases {
            let mut out = vec![half::f16::ZERO; x.len()];
            let args = [x.as_ptr() as u64, y.as_ptr() as u64, out.as_mut_ptr() as u64, points.cast_unsigned()];
            code.call(name, &args, 0, points);
            for ((a, b), got) in x.iter().zip(&y).zip(&out) {
                let b = if *with_zero { 0.0 } else { b.to_f32() };
                let want = half::f16::from_f32(expected(*op, *swap, a.to_f32(), b));
                let equal = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(equal, "{tier} {name} of {a}, {b} gives {got}, not {want}");
            }
        }
    }
}

#[test]
fn every_f16_and_rounding_to_it_is_exact() {
    // All 65,536 halves to f32 and back, and f32 values around the halves' midpoints.
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let mut floats: Vec<f32> = Vec::new();
    for h in (0..0x7c00u16).chain([0x7bff]) {
        let (a, b) = (half::f16::from_bits(h).to_f32(), half::f16::from_bits(h + 1).to_f32());
        let mid = if b.is_finite() { (a + b) / 2.0 } else { 65520.0 };
        for x in [a, mid, f32::from_bits(mid.to_bits() + 1), f32::from_bits(mid.to_bits().max(1) - 1)] {
            floats.extend([x, -x]);
        }
    }
    let mut k = Kit::default();
    let n = k.param("n");
    let (x, y) = (k.op(DType::F16, &[n], &[1], false), k.op(DType::F32, &[n], &[1], true));
    k.nest.outer = vec![n];
    let v = k.load(x, &[O(0)]);
    k.store(false, y, &[O(0)], v);
    let widen = k.def("widen");
    let mut k = Kit::default();
    let n = k.param("n");
    let (x, y) = (k.op(DType::F32, &[n], &[1], false), k.op(DType::F16, &[n], &[1], true));
    k.nest.outer = vec![n];
    let v = k.load(x, &[O(0)]);
    k.store(false, y, &[O(0)], v);
    let narrow = k.def("narrow");
    for tier in tiers() {
        let code = Loaded::new(&[widen.clone(), narrow.clone()], tier);
        let mut wide = vec![0f32; halves.len()];
        code.call("widen", &[halves.as_ptr() as u64, wide.as_mut_ptr() as u64, 65536], 0, 65536);
        for (h, w) in halves.iter().zip(&wide) {
            let want = half::f16::from_bits(*h).to_f32();
            assert!(want.to_bits() == w.to_bits() || want.is_nan() && w.is_nan(), "{tier} {h:04x} gives {w}");
        }
        let mut out = vec![0u16; floats.len()];
        let n = floats.len() as i64;
        code.call("narrow", &[floats.as_ptr() as u64, out.as_mut_ptr() as u64, n.cast_unsigned()], 0, n);
        for (f, h) in floats.iter().zip(&out) {
            assert_eq!(half::f16::from_f32(*f).to_bits(), *h, "{tier} {f:e}");
        }
    }
}

#[test]
fn reductions_of_every_combiner_and_type() {
    use Combiner::*;
    let mut kits = Vec::new();
    for d in [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::U32,
        DType::U64,
        DType::U8,
        DType::Bool,
    ] {
        for c in [Sum, Prod, Max, Min, ArgMax, ArgMin] {
            if d == DType::Bool && matches!(c, Sum | Prod) {
                continue;
            }
            for stride in [1i64, 5] {
                let mut k = Kit::default();
                let (m, n) = (k.param("m"), k.param("n"));
                let row = k.pool.constant(1100 * stride);
                let one = k.pool.constant(stride);
                let x = k.nest.operand(ir::nest::NestOperand {
                    dtype: d,
                    shape: [m, n].into_iter().collect(),
                    strides: [row, one].into_iter().collect(),
                    written: false,
                });
                let out = match c {
                    ArgMax | ArgMin => DType::I64,
                    _ => ir::nest::compute_dtype(d).unwrap(),
                };
                let y = k.op(out, &[m], &[1], true);
                (k.nest.outer, k.nest.inner) = (vec![m], vec![n]);
                let value = k.load(x, &[O(0), I(0)]);
                k.nest.phases.push(Phase::Reduce(vec![Reduction { combiner: c, value }]));
                let r = k.nest.expr(Expr::Reduced(0));
                k.store(false, y, &[O(0)], r);
                kits.push((format!("{c:?}_{d}_{stride}"), k, c, d, stride, out));
            }
        }
    }
    let defs: Vec<_> = kits.iter().map(|k| k.1.def(&k.0)).collect();
    for tier in tiers() {
        let code = Loaded::new(&defs, tier);
        let mut rng = Rng(4);
        for (name, k, c, d, stride, out) in &kits {
            for n in SIZES {
                let m = 3;
                let specials = !matches!(c, Sum | Prod);
                let x = elements(*d, (m * 1100 * stride) as usize, &mut rng, specials);
                let y = vec![0u8; m as usize * size(*out)];
                let close = match c {
                    Sum if d.is_float() => Close::Within(1e-5, 1e-3),
                    Prod if d.is_float() => Close::Within(1e-4, 0.0),
                    _ => Close::Exact,
                };
                let case = Case { params: vec![m, n], buffers: vec![x, y], points: m, shared: vec![], close };
                check(k, &code, name, &case, &mut rng);
            }
        }
    }
}

/// Softmax of the rows of x[m, n], in f32; `x` may be of a narrow type.
pub fn softmax(d: DType) -> Kit {
    let mut k = Kit::default();
    let (m, n) = (k.param("m"), k.param("n"));
    let one = k.d(1);
    let mut op = |written| {
        k.nest.operand(ir::nest::NestOperand {
            dtype: d,
            shape: [m, n].into_iter().collect(),
            strides: [n, one].into_iter().collect(),
            written,
        })
    };
    let (x, y) = (op(false), op(true));
    (k.nest.outer, k.nest.inner) = (vec![m], vec![n]);
    let v = k.load(x, &[O(0), I(0)]);
    k.nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Max, value: v }]));
    let r0 = k.nest.expr(Expr::Reduced(0));
    let t = k.nest.bin(BinOp::Sub, v, r0);
    let e = k.nest.un(UnOp::Exp, t);
    k.nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Sum, value: e }]));
    let r1 = k.nest.expr(Expr::Reduced(1));
    let q = k.nest.bin(BinOp::Div, e, r1);
    k.store(true, y, &[O(0), I(0)], q);
    k
}

/// Layer normalisation of the rows of x[m, n] with scale and bias [n].
pub fn layer_norm() -> Kit {
    let mut k = Kit::default();
    let (m, n) = (k.param("m"), k.param("n"));
    let one = k.d(1);
    let mut op = |two: bool, written| {
        k.nest.operand(ir::nest::NestOperand {
            dtype: DType::F32,
            shape: if two { [m, n].into_iter().collect() } else { [n].into_iter().collect() },
            strides: if two { [n, one].into_iter().collect() } else { [one].into_iter().collect() },
            written,
        })
    };
    let (x, g, b, y) = (op(true, false), op(false, false), op(false, false), op(true, true));
    (k.nest.outer, k.nest.inner) = (vec![m], vec![n]);
    let v = k.load(x, &[O(0), I(0)]);
    k.nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Sum, value: v }]));
    let s = k.nest.expr(Expr::Reduced(0));
    let count = k.nest.expr(Expr::Dim(n));
    let count = k.nest.expr(Expr::Cast(count, DType::F32));
    let mean = k.nest.bin(BinOp::Div, s, count);
    let c = k.nest.bin(BinOp::Sub, v, mean);
    let c2 = k.nest.bin(BinOp::Mul, c, c);
    k.nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Sum, value: c2 }]));
    let s2 = k.nest.expr(Expr::Reduced(1));
    let var = k.nest.bin(BinOp::Div, s2, count);
    let eps = k.nest.num(1e-5, DType::F32);
    let var = k.nest.bin(BinOp::Add, var, eps);
    let inv = k.nest.un(UnOp::Rsqrt, var);
    let (lg, lb) = (k.load(g, &[I(0)]), k.load(b, &[I(0)]));
    let z = k.nest.bin(BinOp::Mul, c, inv);
    let z = k.nest.bin(BinOp::Mul, z, lg);
    let z = k.nest.bin(BinOp::Add, z, lb);
    k.store(true, y, &[O(0), I(0)], z);
    k
}

#[test]
fn rows_of_softmax_and_layer_norm_also_in_place() {
    for tier in tiers() {
        for (name, k, d) in [
            ("softmax", softmax(DType::F32), DType::F32),
            ("softmax16", softmax(DType::F16), DType::F16),
            ("layer_norm", layer_norm(), DType::F32),
        ] {
            let code = Loaded::new(&[k.def(name)], tier);
            let mut rng = Rng(5);
            for n in SIZES {
                for in_place in [false, true] {
                    let m = 4usize;
                    let last = k.nest.operands.len() - 1;
                    let row = n as usize;
                    let mut buffers = vec![elements(d, m * row, &mut rng, false)];
                    for _ in 1..last {
                        buffers.push(elements(d, row, &mut rng, false));
                    }
                    buffers.push(vec![0u8; m * row * size(d)]);
                    let shared = if in_place { vec![(last, 0)] } else { vec![] };
                    let close = if d == DType::F16 { Close::Within(1e-3, 1e-6) } else { Close::Within(2e-5, 2e-5) };
                    let case = Case { params: vec![m as i64, n], buffers, points: m as i64, shared, close };
                    // In place the second run would read results; cuts start from the buffers each time.
                    check(&k, &code, name, &case, &mut rng);
                }
            }
        }
    }
}

#[test]
fn outer_axes_walk_any_strides_from_any_cut() {
    for (shape, xs) in
        [([3i64, 5, 7], [35i64, 7, 1]), ([4, 1, 9], [1, 100, 4]), ([2, 3, 64], [0, 64, 1]), ([5, 4, 3], [1, 5, 20])]
    {
        let mut k = Kit::default();
        let dims: Vec<_> = ["a", "b", "c"].map(|n| k.param(n)).to_vec();
        let x = k.op(DType::F32, &dims, &xs, false);
        let y = k.op(DType::F32, &dims, &[shape[1] * shape[2], shape[2], 1], true);
        k.nest.outer = dims;
        let v = k.load(x, &[O(0), O(1), O(2)]);
        let mut sum = v;
        for a in 0..3 {
            let i = k.nest.expr(Expr::Index(O(a)));
            let i = k.nest.expr(Expr::Cast(i, DType::F32));
            let s = k.nest.num(100.0, DType::F32);
            sum = k.nest.bin(BinOp::Mul, sum, s);
            sum = k.nest.bin(BinOp::Add, sum, i);
        }
        k.store(false, y, &[O(0), O(1), O(2)], sum);
        let points: i64 = shape.iter().product();
        for tier in tiers() {
            let code = Loaded::new(&[k.def("walk")], tier);
            let mut rng = Rng(6);
            let buffers = vec![elements(DType::F32, 500, &mut rng, false), vec![0; points as usize * 4]];
            let case = Case { params: shape.to_vec(), buffers, points, shared: vec![], close: Close::Exact };
            for _ in 0..5 {
                check(&k, &code, "walk", &case, &mut rng);
            }
        }
    }
}

#[test]
fn guarded_loads_and_gathers_read_only_what_they_may() {
    // y[i, j] = j >= 2 && j < n + 2 ? x[i, j - 2] : -1   (padding), then z[i, j] = t[idx[i]][j] (gather).
    let mut k = Kit::default();
    let (m, n) = (k.param("m"), k.param("n"));
    let four = k.d(4);
    let wide = k.pool.add(n, four);
    k.params.push(wide);
    let one = k.d(1);
    let op = |k: &mut Kit, dtype, s0, s1, written| {
        k.nest.operand(ir::nest::NestOperand {
            dtype,
            shape: [s0, s1].into_iter().collect(),
            strides: [s1, one].into_iter().collect(),
            written,
        })
    };
    let x = op(&mut k, DType::F32, m, n, false);
    let rows = k.d(6);
    let t = op(&mut k, DType::F32, rows, wide, false);
    let idx = k.op(DType::I64, &[m], &[1], false);
    let y = op(&mut k, DType::F32, m, wide, true);
    k.nest.outer = vec![m, wide];
    let j = k.nest.expr(Expr::Index(O(1)));
    let two = k.nest.num(2.0, DType::I64);
    let len = k.nest.expr(Expr::Dim(n));
    let stop = k.nest.bin(BinOp::Add, len, two);
    let (ge, lt) = (k.nest.bin(BinOp::Ge, j, two), k.nest.bin(BinOp::Lt, j, stop));
    let cond = k.nest.bin(BinOp::And, ge, lt);
    let other = k.nest.num(-1.0, DType::F32);
    let (zero, minus) = (k.d(0), k.d(-2));
    let coord = |a: Axis, offset| Coord { offset, terms: [(Term::Axis(a), one)].into_iter().collect() };
    let access = ir::nest::Access { operand: x, coords: [coord(O(0), zero), coord(O(1), minus)].into_iter().collect() };
    let padded = k.nest.expr(Expr::LoadIf { cond, access, other });
    let at = k.load(idx, &[O(0)]);
    let gathered = Coord { offset: zero, terms: [(Term::Expr(at), one)].into_iter().collect() };
    let access = ir::nest::Access { operand: t, coords: [gathered, coord(O(1), zero)].into_iter().collect() };
    let g = k.nest.expr(Expr::Load(access));
    let v = k.nest.bin(BinOp::Add, padded, g);
    k.store(false, y, &[O(0), O(1)], v);
    for tier in tiers() {
        let code = Loaded::new(&[k.def("pad")], tier);
        let mut rng = Rng(7);
        for n in [0i64, 1, 7, 30] {
            let (m, w) = (3usize, n as usize + 4);
            let idx: Vec<u8> = [5i64, 0, 3].iter().flat_map(|i| i.to_le_bytes()).collect();
            let x = elements(DType::F32, m * n as usize, &mut rng, false);
            let t = elements(DType::F32, 6 * w, &mut rng, false);
            let buffers = vec![x, t, idx, vec![0; m * w * 4]];
            // The third parameter is n + 4, which the interpreter computes by itself.
            let case = Case {
                params: vec![3, n, n + 4],
                buffers,
                points: (m * w) as i64,
                shared: vec![],
                close: Close::Exact,
            };
            check(&k, &code, "pad", &case, &mut rng);
        }
    }
}

#[test]
fn reductions_over_several_axes_with_two_results() {
    // mean and greatest over axes 0 and 2 of x[a, b, c].
    let mut k = Kit::default();
    let dims: Vec<_> = ["a", "b", "c"].map(|n| k.param(n)).to_vec();
    let x = k.op(DType::F32, &dims, &[77, 11, 1], false);
    let (y, z) = (k.op(DType::F32, &dims[1..2], &[1], true), k.op(DType::F32, &dims[1..2], &[1], true));
    (k.nest.outer, k.nest.inner) = (vec![dims[1]], vec![dims[0], dims[2]]);
    let v = k.load(x, &[I(0), O(0), I(1)]);
    let a = |combiner| Reduction { combiner, value: v };
    k.nest.phases.push(Phase::Reduce(vec![a(Combiner::Sum), a(Combiner::Max), a(Combiner::ArgMin)]));
    let r: Vec<_> = (0..3).map(|i| k.nest.expr(Expr::Reduced(i))).collect();
    let at = k.nest.expr(Expr::Cast(r[2], DType::F32));
    let sum = k.nest.bin(BinOp::Add, r[1], at);
    let (ya, za) = (k.access(y, &[O(0)]), k.access(z, &[O(0)]));
    k.nest.phases.push(Phase::Store { over_inner: false, stores: vec![(ya, r[0]), (za, sum)] });
    for tier in tiers() {
        let code = Loaded::new(&[k.def("two")], tier);
        let mut rng = Rng(8);
        for (a, c) in [(5, 11), (1, 9), (0, 11), (5, 0)] {
            let buffers = vec![elements(DType::F32, 77 * 5, &mut rng, false), vec![0; 28], vec![0; 28]];
            let case =
                Case { params: vec![a, 7, c], buffers, points: 7, shared: vec![], close: Close::Within(1e-5, 1e-5) };
            check(&k, &code, "two", &case, &mut rng);
        }
    }
}

#[test]
fn columns_reduce_side_by_side() {
    // Over axis 1 of x[a, b, c] with c contiguous: sum, arg max, and the centered values stored over b again.
    for d in [DType::F32, DType::F16, DType::I32, DType::Bool] {
        let mut k = Kit::default();
        let dims: Vec<_> = ["a", "b", "c"].map(|n| k.param(n)).to_vec();
        let plane = k.pool.mul(dims[1], dims[2]);
        k.params.push(plane);
        let one = k.d(1);
        let cd = ir::nest::compute_dtype(d).unwrap();
        let strides = [plane, dims[2], one];
        let x = k.nest.operand(ir::nest::NestOperand {
            dtype: d,
            shape: dims.iter().copied().collect(),
            strides: strides.into_iter().collect(),
            written: false,
        });
        let mut out = |dtype, three: bool| {
            let shape = if three { dims.clone() } else { vec![dims[0], dims[2]] };
            let strides = if three { strides.to_vec() } else { vec![dims[2], one] };
            let (shape, strides) = (shape.into_iter().collect(), strides.into_iter().collect());
            k.nest.operand(ir::nest::NestOperand { dtype, shape, strides, written: true })
        };
        let (y, z, w) = (out(cd, false), out(DType::I64, false), out(cd, true));
        (k.nest.outer, k.nest.inner) = (vec![dims[0], dims[2]], vec![dims[1]]);
        let v = k.load(x, &[O(0), I(0), O(1)]);
        let first = if d == DType::Bool { Combiner::Max } else { Combiner::Sum };
        let r = |combiner| Reduction { combiner, value: v };
        k.nest.phases.push(Phase::Reduce(vec![r(first), r(Combiner::ArgMax)]));
        let (r0, r1) = (k.nest.expr(Expr::Reduced(0)), k.nest.expr(Expr::Reduced(1)));
        let (ya, za) = (k.access(y, &[O(0), O(1)]), k.access(z, &[O(0), O(1)]));
        k.nest.phases.push(Phase::Store { over_inner: false, stores: vec![(ya, r0), (za, r1)] });
        let c = if d == DType::Bool { k.nest.bin(BinOp::Xor, v, r0) } else { k.nest.bin(BinOp::Sub, v, r0) };
        k.store(true, w, &[O(0), I(0), O(1)], c);
        for tier in tiers() {
            let code = Loaded::new(&[k.def("columns")], tier);
            let mut rng = Rng(9);
            for (a, b, c) in [(2, 3, 5), (1, 70, 129), (3, 0, 7), (2, 5, 300), (1, 1, 128)] {
                let n = (a * b * c) as usize;
                let m = (a * c) as usize;
                let buffers =
                    vec![elements(d, n, &mut rng, false), vec![0; m * size(cd)], vec![0; m * 8], vec![0; n * size(cd)]];
                // In order, so exactly the interpreter's sums.
                let params = vec![a, b, c, b * c];
                let case = Case { params, buffers, points: a * c, shared: vec![], close: Close::Exact };
                check(&k, &code, "columns", &case, &mut rng);
            }
        }
    }
}
