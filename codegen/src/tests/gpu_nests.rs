//! Nests that show every schedule of GPU kernels, with data to run them on.

use super::kit::{Close, Kit, Rng, elements};
use super::nests::{layer_norm, softmax};
use ir::nest::{Access, Axis, BinOp, Combiner, Coord, Expr, NestOperand, Phase, Reduction, Term, UnOp};
use tensor::{DType, DimId};

const O: fn(u16) -> Axis = Axis::Outer;
const I: fn(u16) -> Axis = Axis::Inner;

/// One run: arguments, elements of each buffer, points.
pub struct Sizes {
    pub params: Vec<i64>,
    pub elements: Vec<usize>,
    pub points: i64,
}

/// A nest with sizes to run it at.
pub struct Example {
    pub name: String,
    pub kit: Kit,
    pub sizes: Vec<Sizes>,
    pub close: Close,
}

impl Example {
    /// Random buffers for a run.
    pub fn buffers(&self, s: &Sizes, rng: &mut Rng) -> Vec<Vec<u8>> {
        let fill = |(o, n): (&NestOperand, &usize)| {
            if o.written {
                return vec![0; n * o.dtype.size().unwrap()];
            }
            // Indices are in range.
            if o.dtype == DType::I64 && self.name.starts_with("gather") {
                return (0..*n).flat_map(|_| i64::to_le_bytes(rng.below(6) as i64)).collect();
            }
            elements(o.dtype, *n, rng, self.close == Close::Exact)
        };
        self.kit.nest.operands.iter().zip(&s.elements).map(fill).collect()
    }
}

fn operand(k: &mut Kit, dtype: DType, shape: &[DimId], strides: &[DimId], written: bool) -> u16 {
    let (shape, strides) = (shape.iter().copied().collect(), strides.iter().copied().collect());
    k.nest.operand(NestOperand { dtype, shape, strides, written })
}

fn example(name: impl Into<String>, kit: Kit, close: Close, sizes: Vec<Sizes>) -> Example {
    Example { name: name.into(), kit, sizes, close }
}
fn sizes(params: &[i64], elements: &[i64], points: i64) -> Sizes {
    let elements = elements.iter().map(|n| *n as usize).collect();
    Sizes { params: params.to_vec(), elements, points }
}

const FEW: Close = Close::Within(2e-5, 2e-5);

/// x·x + x over one axis; of bools x ≠ true.
fn elementwise(d: DType) -> Example {
    let mut k = Kit::default();
    let n = k.param("n");
    let (x, y) = (k.op(d, &[n], &[1], false), k.op(d, &[n], &[1], true));
    k.nest.outer = vec![n];
    let v = k.load(x, &[O(0)]);
    let r = if d == DType::Bool {
        k.nest.un(UnOp::Not, v)
    } else {
        let sq = k.nest.bin(BinOp::Mul, v, v);
        k.nest.bin(BinOp::Add, sq, v)
    };
    k.store(false, y, &[O(0)], r);
    let of = |n: i64| sizes(&[n], &[n, n], n);
    example(format!("elementwise_{d}"), k, Close::Exact, [1, 7, 256, 1031, 2048].map(of).into())
}

/// Rows of x[m, n] with a bias of [n], f16 in, f32 or f16 out, and the exact erf form of gelu.
fn gelu(to: DType) -> Example {
    let mut k = Kit::default();
    let (m, n) = (k.param("m"), k.param("n"));
    let one = k.d(1);
    let x = operand(&mut k, DType::F16, &[m, n], &[n, one], false);
    let b = operand(&mut k, DType::F32, &[n], &[one], false);
    let y = operand(&mut k, to, &[m, n], &[n, one], true);
    k.nest.outer = vec![m, n];
    let (x, b) = (k.load(x, &[O(0), O(1)]), k.load(b, &[O(1)]));
    let v = k.nest.bin(BinOp::Add, x, b);
    let (half, one, root) =
        (k.nest.num(0.5, DType::F32), k.nest.num(1.0, DType::F32), k.nest.num(0.707_106_77, DType::F32));
    let t = k.nest.bin(BinOp::Mul, v, root);
    let t = k.nest.un(UnOp::Erf, t);
    let t = k.nest.bin(BinOp::Add, t, one);
    let h = k.nest.bin(BinOp::Mul, v, half);
    let r = k.nest.bin(BinOp::Mul, h, t);
    k.store(false, y, &[O(0), O(1)], r);
    let of = |(m, n): (i64, i64)| sizes(&[m, n], &[m * n, n, m * n], m * n);
    // x/2 times the error of erf where results are kept as f16.
    let close = if to == DType::F16 { Close::Within(1e-3, 9e-6) } else { Close::Within(2e-6, 2e-6) };
    example(format!("gelu_{to}"), k, close, [(1, 8), (5, 13), (9, 64), (3, 700)].map(of).into())
}

/// Sine and cosine of numbers of any size: tables in global memory.
fn sines(d: DType) -> Example {
    let mut k = Kit::default();
    let n = k.param("n");
    let (x, y) = (k.op(d, &[n], &[1], false), k.op(d, &[n], &[1], true));
    k.nest.outer = vec![n];
    let v = k.load(x, &[O(0)]);
    let (s, c) = (k.nest.un(UnOp::Sin, v), k.nest.un(UnOp::Cos, v));
    let r = k.nest.bin(BinOp::Sub, s, c);
    k.store(false, y, &[O(0)], r);
    let close = if d == DType::F64 { Close::Within(1e-13, 1e-13) } else { Close::Within(2e-6, 2e-6) };
    let of = |n: i64| sizes(&[n], &[n, n], n);
    example(format!("sines_{d}"), k, close, [5, 64, 1000].map(of).into())
}

/// Three outer axes with dims known only at run time, through steps that no vector takes.
fn transpose() -> Example {
    let mut k = Kit::default();
    let (a, b, c) = (k.param("a"), k.param("b"), k.param("c"));
    let one = k.d(1);
    let (bc, ac) = (k.pool.mul(b, c), k.pool.mul(a, c));
    k.params.extend([bc, ac]);
    let x = operand(&mut k, DType::F32, &[a, b, c], &[bc, c, one], false);
    let y = operand(&mut k, DType::F32, &[b, c, a], &[ac, a, one], true);
    k.nest.outer = vec![b, c, a];
    let v = k.load(x, &[O(2), O(0), O(1)]);
    k.store(false, y, &[O(0), O(1), O(2)], v);
    let of = |(a, b, c): (i64, i64, i64)| {
        let n = a * b * c;
        sizes(&[a, b, c, b * c, a * c], &[n, n], n)
    };
    example("transpose", k, Close::Exact, [(4, 3, 5), (8, 7, 6), (3, 2, 9)].map(of).into())
}

/// One reduction of the rows of x[m, n]; the greatest length is `n` where that is known.
fn rows(c: Combiner, d: DType, n: Option<i64>) -> Example {
    let mut k = Kit::default();
    let m = k.param("m");
    let len = match n {
        Some(n) => k.d(n),
        None => k.param("n"),
    };
    let one = k.d(1);
    let arg = matches!(c, Combiner::ArgMax | Combiner::ArgMin);
    let out = if arg { DType::I64 } else { ir::nest::compute_dtype(d).unwrap() };
    let x = operand(&mut k, d, &[m, len], &[len, one], false);
    let y = operand(&mut k, out, &[m], &[one], true);
    (k.nest.outer, k.nest.inner) = (vec![m], vec![len]);
    let value = k.load(x, &[O(0), I(0)]);
    k.nest.phases.push(Phase::Reduce(vec![Reduction { combiner: c, value }]));
    let r = k.nest.expr(Expr::Reduced(0));
    k.store(false, y, &[O(0)], r);
    let close = match c {
        Combiner::Sum if d.is_float() => Close::Within(1e-5, 1e-3),
        Combiner::Prod if d.is_float() => Close::Within(1e-4, 1e-30),
        _ => Close::Exact,
    };
    let name = format!("{c:?}_{d}_{}", n.map_or("any".into(), |n| n.to_string())).to_lowercase();
    let runs = match n {
        Some(n) => [1i64, 5, 9].map(|m| sizes(&[m], &[m * n, m], m)).into(),
        None => [(3i64, 0i64), (2, 1), (3, 255), (2, 257), (2, 1024), (1, 2051)]
            .map(|(m, n)| sizes(&[m, n], &[m * n, m], m))
            .into(),
    };
    example(name, k, close, runs)
}

/// Over axis 1 of x[a, b, c] with c contiguous: sum and arg max, and centered values stored over b again.
fn columns(d: DType) -> Example {
    let mut k = Kit::default();
    let dims: Vec<_> = ["a", "b", "c"].map(|n| k.param(n)).to_vec();
    let plane = k.pool.mul(dims[1], dims[2]);
    k.params.push(plane);
    let one = k.d(1);
    let cd = ir::nest::compute_dtype(d).unwrap();
    let x = operand(&mut k, d, &dims, &[plane, dims[2], one], false);
    let y = operand(&mut k, cd, &[dims[0], dims[2]], &[dims[2], one], true);
    let z = operand(&mut k, DType::I64, &[dims[0], dims[2]], &[dims[2], one], true);
    let w = operand(&mut k, cd, &dims, &[plane, dims[2], one], true);
    (k.nest.outer, k.nest.inner) = (vec![dims[0], dims[2]], vec![dims[1]]);
    let v = k.load(x, &[O(0), I(0), O(1)]);
    let r = |combiner| Reduction { combiner, value: v };
    k.nest.phases.push(Phase::Reduce(vec![r(Combiner::Max), r(Combiner::ArgMax)]));
    let (r0, r1) = (k.nest.expr(Expr::Reduced(0)), k.nest.expr(Expr::Reduced(1)));
    let (ya, za) = (k.access(y, &[O(0), O(1)]), k.access(z, &[O(0), O(1)]));
    k.nest.phases.push(Phase::Store { over_inner: false, stores: vec![(ya, r0), (za, r1)] });
    let c = if d == DType::Bool { k.nest.bin(BinOp::Xor, v, r0) } else { k.nest.bin(BinOp::Sub, v, r0) };
    k.store(true, w, &[O(0), I(0), O(1)], c);
    let of = |(a, b, c): (i64, i64, i64)| sizes(&[a, b, c, b * c], &[a * b * c, a * c, a * c, a * b * c], a * c);
    let runs = [(2, 3, 5), (1, 70, 129), (3, 0, 7), (2, 90, 33)].map(of).into();
    example(format!("columns_{d}"), k, Close::Exact, runs)
}

/// Padding of x[m, n] by two columns on each side, plus rows of t gathered by an index.
fn gather() -> Example {
    let mut k = Kit::default();
    let (m, n) = (k.param("m"), k.param("n"));
    let four = k.d(4);
    let wide = k.pool.add(n, four);
    k.params.push(wide);
    let one = k.d(1);
    let six = k.d(6);
    let x = operand(&mut k, DType::F32, &[m, n], &[n, one], false);
    let t = operand(&mut k, DType::F32, &[six, wide], &[wide, one], false);
    let idx = operand(&mut k, DType::I64, &[m], &[one], false);
    let y = operand(&mut k, DType::F32, &[m, wide], &[wide, one], true);
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
    let access = Access { operand: x, coords: [coord(O(0), zero), coord(O(1), minus)].into_iter().collect() };
    let padded = k.nest.expr(Expr::LoadIf { cond, access, other });
    let at = k.load(idx, &[O(0)]);
    let gathered = Coord { offset: zero, terms: [(Term::Expr(at), one)].into_iter().collect() };
    let access = Access { operand: t, coords: [gathered, coord(O(1), zero)].into_iter().collect() };
    let g = k.nest.expr(Expr::Load(access));
    let v = k.nest.bin(BinOp::Add, padded, g);
    k.store(false, y, &[O(0), O(1)], v);
    let of = |(m, n): (i64, i64)| sizes(&[m, n, n + 4], &[m * n, 6 * (n + 4), m, m * (n + 4)], m * (n + 4));
    example("gather", k, Close::Exact, [(3, 0), (3, 1), (4, 7), (5, 28)].map(of).into())
}

/// Average over windows of 3 × 3 of x[h + 2, w + 2].
fn pool() -> Example {
    let mut k = Kit::default();
    let (h, w) = (k.param("h"), k.param("w"));
    let (one, two, three) = (k.d(1), k.d(2), k.d(3));
    let (hh, ww) = (k.pool.add(h, two), k.pool.add(w, two));
    k.params.extend([hh, ww]);
    let x = operand(&mut k, DType::F32, &[hh, ww], &[ww, one], false);
    let y = operand(&mut k, DType::F32, &[h, w], &[w, one], true);
    (k.nest.outer, k.nest.inner) = (vec![h, w], vec![three, three]);
    let zero = k.d(0);
    let coord = |a: Axis, b: Axis| Coord {
        offset: zero,
        terms: [(Term::Axis(a), one), (Term::Axis(b), one)].into_iter().collect(),
    };
    let access = Access { operand: x, coords: [coord(O(0), I(0)), coord(O(1), I(1))].into_iter().collect() };
    let value = k.nest.expr(Expr::Load(access));
    k.nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Sum, value }]));
    let r = k.nest.expr(Expr::Reduced(0));
    let nine = k.nest.num(9.0, DType::F32);
    let r = k.nest.bin(BinOp::Div, r, nine);
    k.store(false, y, &[O(0), O(1)], r);
    let of = |(h, w): (i64, i64)| sizes(&[h, w, h + 2, w + 2], &[(h + 2) * (w + 2), h * w], h * w);
    example("pool", k, FEW, [(1, 1), (5, 9), (12, 31)].map(of).into())
}

/// Sum over axes 0 and 2 of x[a, b, c]: two inner axes shared by a block.
fn two_axes() -> Example {
    let mut k = Kit::default();
    let dims: Vec<_> = ["a", "b", "c"].map(|n| k.param(n)).to_vec();
    let one = k.d(1);
    let plane = k.pool.mul(dims[1], dims[2]);
    k.params.push(plane);
    let x = operand(&mut k, DType::F32, &dims, &[plane, dims[2], one], false);
    let y = operand(&mut k, DType::F32, &dims[1..2], &[one], true);
    let at = operand(&mut k, DType::I64, &dims[1..2], &[one], true);
    (k.nest.outer, k.nest.inner) = (vec![dims[1]], vec![dims[0], dims[2]]);
    let value = k.load(x, &[I(0), O(0), I(1)]);
    let r = |combiner| Reduction { combiner, value };
    k.nest.phases.push(Phase::Reduce(vec![r(Combiner::Sum), r(Combiner::ArgMin)]));
    let (r0, r1) = (k.nest.expr(Expr::Reduced(0)), k.nest.expr(Expr::Reduced(1)));
    let (ya, za) = (k.access(y, &[O(0)]), k.access(at, &[O(0)]));
    k.nest.phases.push(Phase::Store { over_inner: false, stores: vec![(ya, r0), (za, r1)] });
    let of = |(a, b, c): (i64, i64, i64)| sizes(&[a, b, c, b * c], &[a * b * c, b, b], b);
    example("two_axes", k, Close::Within(1e-5, 1e-3), [(3, 2, 5), (7, 3, 64), (2, 2, 300), (0, 2, 4)].map(of).into())
}

/// A later phase reads what an earlier one wrote: kept in one thread.
fn reread() -> Example {
    let mut k = Kit::default();
    let (m, n) = (k.param("m"), k.param("n"));
    let one = k.d(1);
    let x = operand(&mut k, DType::F32, &[m, n], &[n, one], false);
    let y = operand(&mut k, DType::F32, &[m, n], &[n, one], true);
    let z = operand(&mut k, DType::F32, &[m], &[one], true);
    (k.nest.outer, k.nest.inner) = (vec![m], vec![n]);
    let v = k.load(x, &[O(0), I(0)]);
    let d = k.nest.bin(BinOp::Add, v, v);
    k.store(true, y, &[O(0), I(0)], d);
    let w = k.load(y, &[O(0), I(0)]);
    k.nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Max, value: w }]));
    let r = k.nest.expr(Expr::Reduced(0));
    k.store(false, z, &[O(0)], r);
    let of = |(m, n): (i64, i64)| sizes(&[m, n], &[m * n, m * n, m], m);
    example("reread", k, Close::Exact, [(3, 5), (70, 33)].map(of).into())
}

/// Softmax of rows of a known length: kept in registers.
pub fn softmax_known(d: DType, n: i64) -> Kit {
    let mut k = softmax(d);
    let (len, old) = (k.d(n), k.params[1]);
    k.params.truncate(1);
    let swap = |x: &mut DimId| {
        if *x == old {
            *x = len;
        }
    };
    k.nest.inner.iter_mut().for_each(swap);
    for o in &mut k.nest.operands {
        o.shape.iter_mut().chain(&mut o.strides).for_each(swap);
    }
    k
}

/// All of them.
pub fn all() -> Vec<Example> {
    use Combiner::*;
    use DType::*;
    let mut out: Vec<Example> =
        [F32, F64, F16, BF16, F8E4M3FN, F8E5M2FNUZ, I8, U8, I32, I64, Bool].into_iter().map(elementwise).collect();
    out.extend([gelu(F32), gelu(F16), sines(F32), sines(F64), transpose(), gather(), pool(), two_axes(), reread()]);
    for (c, d) in [
        (Sum, F32),
        (Sum, F16),
        (Max, BF16),
        (ArgMax, F32),
        (ArgMin, F16),
        (Min, I64),
        (Prod, F64),
        (Max, Bool),
        (ArgMax, I32),
    ] {
        out.extend([rows(c, d, None), rows(c, d, Some(200))]);
    }
    out.push(rows(Sum, F32, Some(7)));
    out.push(rows(Sum, F16, Some(40_000)));
    out.extend([F32, F16, Bool, I32].into_iter().map(columns));
    let row = |m: i64, n: i64, extra: usize| {
        let mut e = vec![m * n];
        e.extend(vec![n; extra]);
        e.push(m * n);
        sizes(&[m, n], &e, m)
    };
    for (d, n) in [(F32, 197), (F32, 256), (F16, 768), (F16, 200), (F32, 4096), (F32, 20_000)] {
        let close = if d == F16 { Close::Within(1e-3, 1e-6) } else { FEW };
        let runs = [1, 5].map(|m| sizes(&[m], &[m * n, m * n], m)).into();
        out.push(example(format!("softmax_{d}_{n}"), softmax_known(d, n), close, runs));
    }
    let runs = |extra: usize| {
        // In registers of a wave and of a block; from memory by a wave and by a block, for odd lengths and long ones.
        let lengths = [(2, 0), (3, 1), (2, 77), (3, 256), (2, 1501), (2, 1504), (1, 8192), (1, 8200)];
        // The interpreter's sum of squares, one after the other, is too far off for long ones.
        lengths.into_iter().filter(|l| extra == 0 || l.1 < 2000).map(|(m, n)| row(m, n, extra)).collect()
    };
    out.push(example("softmax_f32", softmax(F32), FEW, runs(0)));
    out.push(example("softmax_f16", softmax(F16), Close::Within(1e-3, 1e-6), runs(0)));
    out.push(example("layer_norm", layer_norm(), FEW, runs(2)));
    out
}
