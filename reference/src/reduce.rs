//! Reductions over axes, positions of extremes, softmax. Sums are in f64 (integers in i128).

use crate::data::{f64s, from_f64s, from_ints, ints, strided_positions};
use crate::math;
use tensor::{DType, Tensor};

/// What a reduction computes of the reduced elements x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduce {
    /// Σ x
    Sum,
    /// Σ x / n; integers truncate.
    Mean,
    /// The greatest; NaN wins; of nothing -∞ or the least integer.
    Max,
    /// The least; NaN wins; of nothing +∞ or the greatest integer.
    Min,
    /// Π x
    Prod,
    /// Σ x²
    SumSquare,
    /// Σ |x|
    L1,
    /// √Σ x²
    L2,
    /// ln Σ x
    LogSum,
    /// ln Σ eˣ without overflow
    LogSumExp,
}

/// The axes of a shape in two groups: where groups of elements start, and where their elements lie from there.
struct Groups {
    outer: Vec<usize>,
    inner: Vec<usize>,
}

fn groups(shape: &[usize], reduced: &[bool]) -> Groups {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    let pick = |want: bool| {
        let axes: Vec<usize> = (0..shape.len()).filter(|&i| reduced[i] == want).collect();
        let (s, t): (Vec<_>, Vec<_>) = axes.iter().map(|&i| (shape[i], strides[i])).unzip();
        strided_positions(&s, &t)
    };
    Groups { outer: pick(false), inner: pick(true) }
}

/// The shape after a reduction.
pub fn reduced_shape(shape: &[usize], reduced: &[bool], keepdims: bool) -> Vec<usize> {
    let dims = shape.iter().zip(reduced);
    dims.filter(|(_, r)| keepdims || !**r).map(|(&d, &r)| if r { 1 } else { d }).collect()
}

/// Marks axes; negative ones count from the end. Axes out of range are ignored: callers check them.
pub fn mark_axes(rank: usize, axes: &[i64]) -> Vec<bool> {
    let mut marked = vec![false; rank];
    for &a in axes {
        let a = if a < 0 { a + rank as i64 } else { a };
        if let Some(m) = usize::try_from(a).ok().and_then(|a| marked.get_mut(a)) {
            *m = true;
        }
    }
    marked
}

fn reduce_floats(kind: Reduce, x: &[f64], at: impl Iterator<Item = usize> + Clone) -> f64 {
    let v = at.map(|i| x[i]);
    match kind {
        Reduce::Sum => math::sum(v),
        Reduce::Mean => {
            let n = v.clone().count() as f64;
            math::sum(v) / n
        }
        Reduce::Max => v.fold(f64::NEG_INFINITY, math::max),
        Reduce::Min => v.fold(f64::INFINITY, math::min),
        Reduce::Prod => v.product(),
        Reduce::SumSquare => math::sum(v.map(|x| x * x)),
        Reduce::L1 => math::sum(v.map(f64::abs)),
        Reduce::L2 => math::sum(v.map(|x| x * x)).sqrt(),
        Reduce::LogSum => math::sum(v).ln(),
        Reduce::LogSumExp => {
            let m = v.clone().fold(f64::NEG_INFINITY, math::max);
            let m = if m.is_infinite() { 0.0 } else { m };
            math::sum(v.map(|x| (x - m).exp())).ln() + m
        }
    }
}

fn reduce_ints(kind: Reduce, x: &[i128], at: impl Iterator<Item = usize> + Clone, d: DType) -> i128 {
    let v = at.map(|i| x[i]);
    let wide = |f: f64| crate::cast::float_to_int(f, d);
    let sum = |v: &mut dyn Iterator<Item = i128>| v.fold(0i128, |a, b| a.wrapping_add(b));
    let bits = d.bits().min(64) as u32;
    let (lo, hi) = match (d, d.is_signed()) {
        (DType::Bool, _) => (0, 1),
        (_, true) => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        (_, false) => (0, (1i128 << bits) - 1),
    };
    match kind {
        Reduce::Sum => sum(&mut v.into_iter()),
        Reduce::Mean => {
            let n = v.clone().count() as i128;
            sum(&mut v.into_iter()).checked_div(n).unwrap_or(0)
        }
        Reduce::Max => v.max().unwrap_or(lo),
        Reduce::Min => v.min().unwrap_or(hi),
        Reduce::Prod => v.fold(1i128, |a, b| a.wrapping_mul(b)),
        Reduce::SumSquare => sum(&mut v.map(|x| x.wrapping_mul(x))),
        Reduce::L1 => sum(&mut v.map(i128::wrapping_abs)),
        Reduce::L2 => wide((sum(&mut v.map(|x| x.wrapping_mul(x))) as f64).sqrt()),
        Reduce::LogSum => wide((sum(&mut v.into_iter()) as f64).ln()),
        Reduce::LogSumExp => {
            let f: Vec<f64> = v.map(|x| x as f64).collect();
            wide(reduce_floats(kind, &f, 0..f.len()))
        }
    }
}

/// Reduces the marked axes; no marked axis makes each element a group of its own.
pub fn reduce(kind: Reduce, x: &Tensor, reduced: &[bool], keepdims: bool) -> Tensor {
    let shape = reduced_shape(x.shape(), reduced, keepdims);
    let g = groups(x.shape(), reduced);
    if x.dtype().is_float() {
        let v = f64s(x);
        let at = |&o: &usize| reduce_floats(kind, &v, g.inner.iter().map(move |i| o + i));
        return from_f64s(x.dtype(), &shape, &g.outer.iter().map(at).collect::<Vec<_>>());
    }
    let v = ints(x);
    let at = |&o: &usize| reduce_ints(kind, &v, g.inner.iter().map(move |i| o + i), x.dtype());
    from_ints(x.dtype(), &shape, &g.outer.iter().map(at).collect::<Vec<_>>())
}

/// Position (i64) of the greatest (or least) along an axis: the first of equals, or the last. The first (last) NaN wins.
pub fn arg_extreme(x: &Tensor, axis: usize, keepdims: bool, least: bool, last: bool) -> Tensor {
    let reduced: Vec<bool> = (0..x.shape().len()).map(|i| i == axis).collect();
    let shape = reduced_shape(x.shape(), &reduced, keepdims);
    let g = groups(x.shape(), &reduced);
    let float = x.dtype().is_float();
    let (f, i) = if float { (f64s(x), vec![]) } else { (vec![], ints(x)) };
    // Whether the element at `a` beats the one at `b`, which comes earlier in the search.
    let beats = |a: usize, b: usize| match (float, least) {
        (true, false) => !f[b].is_nan() && (f[a].is_nan() || f[a] > f[b]),
        (true, true) => !f[b].is_nan() && (f[a].is_nan() || f[a] < f[b]),
        (false, false) => i[a] > i[b],
        (false, true) => i[a] < i[b],
    };
    let n = g.inner.len();
    let search = |&o: &usize| {
        let mut order = (0..n).map(|k| if last { n - 1 - k } else { k });
        let first = order.next().unwrap_or(0);
        order.fold(first, |best, k| if beats(o + g.inner[k], o + g.inner[best]) { k } else { best }) as i64
    };
    Tensor::from_i64(&shape, &g.outer.iter().map(search).collect::<Vec<_>>())
}

/// `e^(x - max) / Σ e^(x - max)` over the marked axes together, or its logarithm.
pub fn softmax(x: &Tensor, over: &[bool], log: bool) -> Tensor {
    let g = groups(x.shape(), over);
    let v = f64s(x);
    let mut y = vec![0.0; v.len()];
    for o in &g.outer {
        let m = g.inner.iter().map(|i| v[o + i]).fold(f64::NEG_INFINITY, math::max);
        let sum: f64 = g.inner.iter().map(|i| (v[o + i] - m).exp()).sum();
        for i in &g.inner {
            let d = v[o + i] - m;
            y[o + i] = if log { d - sum.ln() } else { d.exp() / sum };
        }
    }
    from_f64s(x.dtype(), x.shape(), &y)
}

/// One 1 per group of the marked axes: at the first greatest element, or the first NaN.
pub fn hardmax(x: &Tensor, over: &[bool]) -> Tensor {
    let g = groups(x.shape(), over);
    let v = f64s(x);
    let mut y = vec![0.0; v.len()];
    for o in &g.outer {
        let best = g.inner.iter().map(|i| o + i).reduce(|b, a| {
            let beats = !v[b].is_nan() && (v[a].is_nan() || v[a] > v[b]);
            if beats { a } else { b }
        });
        if let Some(b) = best {
            y[b] = 1.0;
        }
    }
    from_f64s(x.dtype(), x.shape(), &y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: Reduce, shape: &[usize], v: &[f32], axes: &[i64], expected: &[f64]) {
        let x = Tensor::from_f32(shape, v);
        let y = reduce(kind, &x, &mark_axes(shape.len(), axes), false).to_f64_vec();
        assert_eq!(format!("{y:?}"), format!("{expected:?}"), "{kind:?}");
    }

    #[test]
    fn reductions_follow_numpy() {
        let v = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        check(Reduce::Sum, &[2, 3], &v, &[0], &[5.0, 7.0, 9.0]);
        check(Reduce::Mean, &[2, 3], &v, &[-1], &[2.0, 5.0]);
        check(Reduce::Max, &[2, 3], &v, &[0, 1], &[6.0]);
        check(Reduce::Prod, &[2, 3], &v, &[], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        check(Reduce::L2, &[2], &[3.0, -4.0], &[0], &[5.0]);
        check(Reduce::Max, &[0], &[], &[0], &[f64::NEG_INFINITY]);
        check(Reduce::Mean, &[0], &[], &[0], &[f64::NAN]);
        check(Reduce::LogSumExp, &[2], &[f32::NEG_INFINITY; 2], &[0], &[f64::NEG_INFINITY]);
        check(Reduce::LogSumExp, &[2], &[f32::INFINITY, 1.0], &[0], &[f64::INFINITY]);
    }

    #[test]
    fn positions_of_equals_and_nan() {
        let x = Tensor::from_f32(&[1, 4], &[1.0, 3.0, 3.0, 0.0]);
        let at = |least, last| arg_extreme(&x, 1, false, least, last).to_i64_vec();
        assert_eq!((at(false, false), at(false, true), at(true, false)), (vec![1], vec![2], vec![3]));
        let x = Tensor::from_f32(&[4], &[1.0, f32::NAN, 9.0, f32::NAN]);
        assert_eq!(arg_extreme(&x, 0, false, false, false).to_i64_vec(), [1]);
        assert_eq!(arg_extreme(&x, 0, false, true, true).to_i64_vec(), [3]);
    }

    #[test]
    fn softmax_rows_add_up_to_one() {
        let y = softmax(&Tensor::from_f32(&[2, 2], &[1000.0, 1000.0, 0.0, f32::NEG_INFINITY]), &[false, true], false);
        assert_eq!(y.to_f64_vec(), [0.5, 0.5, 1.0, 0.0]);
    }
}
