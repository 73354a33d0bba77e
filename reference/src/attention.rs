//! Scaled dot-product attention and what surrounds it, sums in f64.

use crate::data::{broadcast_positions, f64s, from_f64s, ints};
use crate::math;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// Operands of [`attention`]. q, k and v are `[b, h, s, d]`, or `[b, s, h·d]` where [`Attention::heads`] says how many heads there are.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Queries.
    pub q: &'a Tensor,
    /// Keys.
    pub k: &'a Tensor,
    /// Values.
    pub v: &'a Tensor,
    /// Added to the scores, or the keys that count where it is bool. The last axis may be shorter than there are keys: the rest does
    /// not count.
    pub mask: Option<&'a Tensor>,
    /// Keys and values `[b, h, p, d]` that come before.
    pub past: Option<(&'a Tensor, &'a Tensor)>,
    /// How many keys of each sample count.
    pub n_valid: Option<&'a Tensor>,
}

/// How [`attention`] computes.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Heads of q and of k and v, for operands of rank 3.
    pub heads: Option<(usize, usize)>,
    /// Factor of the scores; by default `1/√d`.
    pub scale: Option<f64>,
    /// Keys after a query's position do not count.
    pub causal: bool,
    /// Scores become `c · tanh(score / c)`; 0 for none.
    pub softcap: f64,
    /// How many keys before a query's position count.
    pub left: Option<i64>,
    /// How many keys after a query's position count.
    pub right: Option<i64>,
    /// What the fourth result is: scores (0), capped scores (1), capped scores and mask (2), their softmax (3).
    pub shown: i64,
}

/// Elements as `[b, h, s, d]`, with these extents.
struct Heads {
    v: Vec<f64>,
    shape: [usize; 4],
}

impl Heads {
    fn new(t: &Tensor, heads: Option<usize>) -> Result<Heads> {
        let v = f64s(t);
        match (t.shape(), heads) {
            (&[b, h, s, d], _) => Ok(Heads { v, shape: [b, h, s, d] }),
            (&[b, s, hidden], Some(h)) if h > 0 && hidden % h == 0 => {
                let d = hidden / h;
                let shape = [b, h, s, d];
                let at = |i: [usize; 4]| v[((i[0] * s + i[2]) * h + i[1]) * d + i[3]];
                Ok(Heads { v: points(shape).map(at).collect(), shape })
            }
            _ => Err(bad(format!(
                "operands are [b, h, s, d] or [b, s, h·d] with a number of heads, not {:?}",
                t.shape()
            ))),
        }
    }
    fn at(&self, i: [usize; 4]) -> f64 {
        self.v[((i[0] * self.shape[1] + i[1]) * self.shape[2] + i[2]) * self.shape[3] + i[3]]
    }
    /// These after `past`, along the third axis.
    fn after(self, past: Option<&Tensor>) -> Result<Heads> {
        let Some(past) = past.map(|t| Heads::new(t, None)).transpose()? else { return Ok(self) };
        let p = past.shape[2];
        let shape = [self.shape[0], self.shape[1], p + self.shape[2], self.shape[3]];
        if past.shape != [shape[0], shape[1], p, shape[3]] {
            return Err(bad(format!("past {:?} before {:?}", past.shape, self.shape)));
        }
        let at = |[b, h, s, d]: [usize; 4]| if s < p { past.at([b, h, s, d]) } else { self.at([b, h, s - p, d]) };
        Ok(Heads { v: points(shape).map(at).collect(), shape })
    }
}

/// Coordinates in row-major order.
fn points(shape: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    let [a, b, c, d] = shape;
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).flat_map(move |k| (0..d).map(move |l| [i, j, k, l]))))
}

fn bad(text: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// `softmax(scale · q·kᵀ + mask)·v`, the present keys and values, and the scores on their way. A query without a key that counts gives 0.
///
/// # Errors
/// `Shape` when operands do not fit together.
pub fn attention(x: &Operands, how: &Attention) -> Result<[Tensor; 4]> {
    let q = Heads::new(x.q, how.heads.map(|h| h.0))?;
    let k = Heads::new(x.k, how.heads.map(|h| h.1))?.after(x.past.map(|p| p.0))?;
    let v = Heads::new(x.v, how.heads.map(|h| h.1))?.after(x.past.map(|p| p.1))?;
    let ([b, hq, s, d], [_, hk, t, e]) = (q.shape, v.shape);
    if k.shape != [b, hk, t, d] || v.shape[0] != b || hk == 0 || hq % hk != 0 {
        return Err(bad(format!("queries {:?}, keys {:?}, values {:?}", q.shape, k.shape, v.shape)));
    }
    let past = x.past.map_or(0, |p| p.0.shape()[2]);
    let n_valid = x.n_valid.map(ints);
    if n_valid.as_ref().is_some_and(|n| n.len() != b) {
        return Err(bad(format!("{b} samples need as many counts of keys")));
    }
    let scores = [b, hq, s, t];
    let mask = mask(x.mask, scores)?;
    let counts = |i: usize, row: usize, key: usize| {
        let valid = n_valid.as_ref().map(|n| n[i]);
        let offset = valid.map_or(past as i128, |n| n - s as i128);
        let (p, key) = (offset + row as i128, key as i128);
        valid.is_none_or(|n| key < n)
            && (!how.causal || key <= p)
            && how.left.is_none_or(|w| key >= p - i128::from(w))
            && how.right.is_none_or(|w| key <= p + i128::from(w))
    };
    // Heads of nothing have scores of 0.
    let scale = how.scale.unwrap_or(1.0 / (d.max(1) as f64).sqrt());
    let (mut y, mut shown) = (vec![0.0; b * hq * s * e], vec![0.0; scores.iter().product()]);
    for [i, h, row, _] in points([b, hq, s, 1]) {
        let kv = h / (hq / hk);
        let at = (i * hq + h) * s + row;
        let bias: Vec<f64> =
            (0..t).map(|j| mask[at * t + j] + if counts(i, row, j) { 0.0 } else { f64::NEG_INFINITY }).collect();
        let raw: Vec<f64> =
            (0..t).map(|j| scale * (0..d).map(|c| q.at([i, h, row, c]) * k.at([i, kv, j, c])).sum::<f64>()).collect();
        let cap = |v: &f64| if how.softcap > 0.0 { how.softcap * (v / how.softcap).tanh() } else { *v };
        let capped: Vec<f64> = raw.iter().map(cap).collect();
        let biased: Vec<f64> = capped.iter().zip(&bias).map(|(a, b)| a + b).collect();
        let soft = if bias.iter().all(|&b| b == f64::NEG_INFINITY) { vec![0.0; t] } else { softmax(&biased) };
        for c in 0..e {
            y[at * e + c] = math::sum((0..t).filter(|&j| soft[j] != 0.0).map(|j| soft[j] * v.at([i, kv, j, c])));
        }
        let show = [&raw, &capped, &biased, &soft][usize::try_from(how.shown).unwrap_or(0).min(3)];
        shown[at * t..(at + 1) * t].copy_from_slice(show);
    }
    let dtype = x.q.dtype();
    let y = match x.q.shape().len() {
        3 => {
            let at = |[i, row, h, c]: [usize; 4]| y[((i * hq + h) * s + row) * e + c];
            from_f64s(dtype, &[b, s, hq * e], &points([b, s, hq, e]).map(at).collect::<Vec<_>>())
        }
        _ => from_f64s(dtype, &[b, hq, s, e], &y),
    };
    let present = |h: &Heads, dtype: DType| from_f64s(dtype, &h.shape, &h.v);
    Ok([y, present(&k, x.k.dtype()), present(&v, x.v.dtype()), from_f64s(dtype, &scores, &shown)])
}

/// What a mask adds to each score.
fn mask(t: Option<&Tensor>, scores: [usize; 4]) -> Result<Vec<f64>> {
    let n = scores.iter().product();
    let Some(t) = t else { return Ok(vec![0.0; n]) };
    let mut v = f64s(t);
    if t.dtype() == DType::Bool {
        v.iter_mut().for_each(|x| *x = if *x != 0.0 { 0.0 } else { f64::NEG_INFINITY });
    }
    let mut shape = t.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        let (have, want) = (*last, scores[3]);
        if have > want {
            return Err(bad(format!("a mask over {have} keys where there are {want}")));
        }
        let rows: usize = v.len().checked_div(have).unwrap_or(0);
        v = (0..rows)
            .flat_map(|r| (0..want).map(move |j| (r, j)))
            .map(|(r, j)| if j < have { v[r * have + j] } else { f64::NEG_INFINITY })
            .collect();
        *last = want;
    }
    let fits = shape.len() <= 4
        && shape.iter().rev().zip(scores.iter().rev()).all(|(&a, &b)| a == b || a == 1)
        && v.len() == shape.iter().product::<usize>();
    if !fits {
        return Err(bad(format!("a mask {:?} for scores {scores:?}", t.shape())));
    }
    Ok(match broadcast_positions(&shape, &scores) {
        Some(p) => p.into_iter().map(|i| v[i]).collect(),
        None => v,
    })
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let greatest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = x.iter().map(|v| (v - greatest).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|v| v / sum).collect()
}

/// Pairs `(a, b)` of the last axis become `(-b, a)`; pairs are neighbors where `interleaved`, else elements of the two halves.
pub fn rotate(x: &Tensor, interleaved: bool) -> Tensor {
    let n = x.shape().last().copied().unwrap_or(0);
    let (apart, v) = (if interleaved { 1 } else { n / 2 }, f64s(x));
    let is_first = |e: usize| if interleaved { e.is_multiple_of(2) } else { e < apart };
    let y: Vec<f64> = (0..v.len()).map(|i| if is_first(i % n) { -v[i + apart] } else { v[i - apart] }).collect();
    from_f64s(x.dtype(), x.shape(), &y)
}

/// Rotates pairs of each head's elements by the angle of their position: `(a, b)` becomes `(a·cos - b·sin, a·sin + b·cos)`. The first
/// `n_rotated` elements of a head are rotated; pairs are neighbors where `interleaved`, else elements half of that apart.
///
/// # Shapes
/// x `[b, h, s, d]`, or `[b, s, h·d]` with the number of heads; cos and sin `[b, s, n_rotated / 2]`, or, looked up by positions
/// `[b, s]`, `[p, n_rotated / 2]`
///
/// # Errors
/// `Shape` when they do not fit together.
pub fn rotary(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    positions: Option<&Tensor>,
    heads: Option<usize>,
    n_rotated: Option<usize>,
    interleaved: bool,
) -> Result<Tensor> {
    let h = Heads::new(x, heads)?;
    let [b, _, s, d] = h.shape;
    let n = n_rotated.unwrap_or(d);
    let half = n / 2;
    let rows = cos.shape().first().copied().unwrap_or(0);
    let cache: &[usize] = if positions.is_some() { &[rows, half] } else { &[b, s, half] };
    let fits = n.is_multiple_of(2) && n <= d && cos.shape() == cache && sin.shape() == cache;
    if !fits || positions.is_some_and(|p| p.shape() != [b, s]) || (positions.is_some() && rows == 0 && b * s > 0) {
        let text = format!("cos {:?} and sin {:?} rotate {n} elements of {:?}", cos.shape(), sin.shape(), x.shape());
        return Err(bad(text));
    }
    let (cos, sin, positions) = (f64s(cos), f64s(sin), positions.map(ints));
    let rotated = |[i, head, row, e]: [usize; 4]| {
        let own = h.at([i, head, row, e]);
        if e >= n {
            return own;
        }
        let (pair, partner, first) = match interleaved {
            true => (e / 2, e ^ 1, e % 2 == 0),
            false => (e % half, (e + half) % n, e < half),
        };
        let at = match &positions {
            Some(p) => {
                let (p, rows) = (p[i * s + row], rows as i128);
                (if p < 0 { p + rows } else { p }).clamp(0, rows - 1) as usize
            }
            None => i * s + row,
        };
        let (c, s) = (cos[at * half + pair], sin[at * half + pair]);
        let other = h.at([i, head, row, partner]);
        own * c + if first { -other * s } else { other * s }
    };
    let shape = h.shape;
    let y: Vec<f64> = match x.shape().len() {
        3 => points([shape[0], shape[2], shape[1], shape[3]]).map(|[b, s, h, d]| rotated([b, h, s, d])).collect(),
        _ => points(shape).map(rotated).collect(),
    };
    Ok(from_f64s(x.dtype(), x.shape(), &y))
}

/// `cache` with zeros after it, so that it has `length` places along an axis.
///
/// # Errors
/// `Shape` when it has more.
pub fn grown(cache: &Tensor, axis: usize, length: usize) -> Result<Tensor> {
    let mut more = cache.shape().to_vec();
    let d = more.get_mut(axis).ok_or_else(|| bad(format!("{:?} has no axis {axis}", cache.shape())))?;
    *d = length.checked_sub(*d).ok_or_else(|| bad(format!("a cache of {d} places does not fit into {length}")))?;
    crate::movement::concat(&[cache, &Tensor::zeros(cache.dtype(), &more)?], axis)
}

/// `cache` with `update` written along an axis, from the place on that each sample (axis 0) names, by default 0. Where `circular`,
/// places are taken modulo the axis; else what would be written outside is left out.
///
/// # Errors
/// `Shape` when they do not fit together.
pub fn tensor_scatter(
    cache: &Tensor,
    update: &Tensor,
    from: Option<&Tensor>,
    axis: usize,
    circular: bool,
) -> Result<Tensor> {
    let (shape, mut other) = (cache.shape(), update.shape().to_vec());
    let n = other.get(axis).copied().unwrap_or(0);
    if let Some(d) = other.get_mut(axis) {
        *d = shape.get(axis).copied().unwrap_or(0);
    }
    let most = shape.get(axis).copied().unwrap_or(0);
    if axis == 0 || other != shape || n > most || from.is_some_and(|f| f.shape() != [shape[0]]) {
        return Err(bad(format!("{:?} cannot be written into {shape:?} along axis {axis}", update.shape())));
    }
    let from = from.map(ints);
    let inner: usize = shape[axis + 1..].iter().product();
    let per_sample = (shape[1..axis].iter().product::<usize>() * most * inner).max(1);
    // Where each element comes from: the cache, or place `k` of the update.
    let taken = |i: usize| {
        let place = (i / inner.max(1) % most) as i128 - from.as_ref().map_or(0, |f| f[i / per_sample]);
        let place = if circular { place.rem_euclid(most as i128) } else { place };
        let k = usize::try_from(place).ok().filter(|&k| k < n)?;
        Some((i / (most * inner) * n + k) * inner + i % inner)
    };
    if cache.dtype().is_float() {
        let (mut c, u) = (f64s(cache), f64s(update));
        c.iter_mut().enumerate().for_each(|(i, x)| *x = taken(i).map_or(*x, |k| u[k]));
        return Ok(from_f64s(cache.dtype(), shape, &c));
    }
    let (mut c, u) = (ints(cache), ints(update));
    c.iter_mut().enumerate().for_each(|(i, x)| *x = taken(i).map_or(*x, |k| u[k]));
    Ok(crate::data::from_ints(cache.dtype(), shape, &c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Attention {
        Attention { heads: None, scale: Some(1.0), causal: false, softcap: 0.0, left: None, right: None, shown: 3 }
    }

    /// Equal scores: a softmax is one over the number of keys that count.
    fn shares(how: &Attention, s: usize, t: usize, mask: Option<&Tensor>, n_valid: Option<&Tensor>) -> Vec<f64> {
        let zeros = |n| Tensor::from_f32(&[1, 1, n, 1], &vec![0.0; n]);
        let (q, k) = (zeros(s), zeros(t));
        attention(&Operands { q: &q, k: &k, v: &k, mask, past: None, n_valid }, how).unwrap()[3].to_f64_vec()
    }

    #[test]
    fn keys_that_do_not_count_have_no_share() {
        let causal = Attention { causal: true, ..plain() };
        assert_eq!(shares(&causal, 2, 2, None, None), [1.0, 0.0, 0.5, 0.5]);
        let window = Attention { left: Some(0), right: Some(1), ..plain() };
        assert_eq!(shares(&window, 2, 3, None, None), [0.5, 0.5, 0.0, 0.0, 0.5, 0.5]);
        let short = Tensor::from_bool(&[1], &[true]);
        assert_eq!(shares(&plain(), 1, 2, Some(&short), None), [1.0, 0.0]);
        // Three keys count: of two queries the last stands at the third.
        let valid = Tensor::from_i64(&[1], &[3]);
        assert_eq!(shares(&causal, 2, 4, None, Some(&valid))[..4], [0.5, 0.5, 0.0, 0.0]);
        // One key counts: the first query stands before all.
        let one = Tensor::from_i64(&[1], &[1]);
        assert_eq!(shares(&causal, 2, 2, None, Some(&one)), [0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn caches_are_written_around_their_end() {
        let (c, u) = (Tensor::from_i64(&[1, 4, 1], &[0; 4]), Tensor::from_i64(&[1, 2, 1], &[1, 2]));
        let from = Tensor::from_i64(&[1], &[3]);
        assert_eq!(tensor_scatter(&c, &u, Some(&from), 1, true).unwrap().to_i64_vec(), [2, 0, 0, 1]);
        assert_eq!(tensor_scatter(&c, &u, Some(&from), 1, false).unwrap().to_i64_vec(), [0, 0, 0, 1]);
        assert_eq!(tensor_scatter(&c, &u, None, 1, false).unwrap().to_i64_vec(), [1, 2, 0, 0]);
    }
}
