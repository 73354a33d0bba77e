//! Attention over heads in the layouts of com.microsoft: splitting and joining heads, caches, the core with any terms added to scores.

use crate::attention::rotary;
use crate::data::{f64s, from_f64s, ints};
use crate::math;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// Elements `[b, h, s, d]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    /// Elements, row-major.
    pub v: Vec<f64>,
    /// Extents.
    pub shape: [usize; 4],
}

fn bad(text: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

impl Heads {
    /// An element for each coordinate.
    pub fn build(shape: [usize; 4], f: impl Fn([usize; 4]) -> f64) -> Heads {
        let [b, h, s, d] = shape;
        let mut v = Vec::with_capacity(b * h * s * d);
        for i in 0..b {
            for j in 0..h {
                for k in 0..s {
                    v.extend((0..d).map(|l| f([i, j, k, l])));
                }
            }
        }
        Heads { v, shape }
    }
    /// Of `[b, h, s, d]`.
    ///
    /// # Errors
    /// `Shape` for another rank.
    pub fn of(t: &Tensor) -> Result<Heads> {
        match *t.shape() {
            [b, h, s, d] => Ok(Heads { v: f64s(t), shape: [b, h, s, d] }),
            _ => Err(bad(format!("{:?} is not [b, h, s, d]", t.shape()))),
        }
    }
    /// Queries of `n` heads, keys and values of `kv` heads: three tensors, or all side by side in the first where there are no others.
    ///
    /// # Errors
    /// As [`Heads::split`].
    pub fn of_decoder(query: &Tensor, others: Option<(&Tensor, &Tensor)>, n: usize, kv: usize) -> Result<[Heads; 3]> {
        if let Some((k, v)) = others {
            return Ok([Heads::split(query, n)?, Heads::split(k, kv)?, Heads::split(v, kv)?]);
        }
        let all = Heads::split(query, n + 2 * kv)?;
        let [b, _, s, d] = all.shape;
        let of = |from: usize, n: usize| Heads::build([b, n, s, d], |[b, j, s, d]| all.at([b, from + j, s, d]));
        Ok([of(0, n), of(n, kv), of(n + kv, kv)])
    }
    /// Of `[b, s, h·d]`.
    ///
    /// # Errors
    /// `Shape` where that is not the shape.
    pub fn split(t: &Tensor, h: usize) -> Result<Heads> {
        match *t.shape() {
            [b, s, hidden] if h > 0 && hidden % h == 0 => {
                let (v, d) = (f64s(t), hidden / h);
                Ok(Heads::build([b, h, s, d], |[i, j, k, l]| v[((i * s + k) * h + j) * d + l]))
            }
            _ => Err(bad(format!("{:?} is not [b, s, h·d] of {h} heads", t.shape()))),
        }
    }
    /// Part `part` of `[b, s, h, parts, d]`.
    ///
    /// # Errors
    /// `Shape` where there is no such part.
    pub fn part(t: &Tensor, part: usize) -> Result<Heads> {
        match *t.shape() {
            [b, s, h, parts, d] if part < parts => {
                let v = f64s(t);
                Ok(Heads::build([b, h, s, d], |[i, j, k, l]| v[(((i * s + k) * h + j) * parts + part) * d + l]))
            }
            _ => Err(bad(format!("{:?} has no part {part}", t.shape()))),
        }
    }
    /// An element.
    pub fn at(&self, [i, j, k, l]: [usize; 4]) -> f64 {
        self.v[((i * self.shape[1] + j) * self.shape[2] + k) * self.shape[3] + l]
    }
    /// With element `j·d + l` of a bias added to elements `l` of head `j`.
    ///
    /// # Errors
    /// `Shape` when the bias is shorter.
    pub fn plus(&self, bias: &[f64]) -> Result<Heads> {
        let [_, h, _, d] = self.shape;
        if bias.len() < h * d {
            return Err(bad(format!("a bias of {} for {h} heads of {d}", bias.len())));
        }
        Ok(Heads::build(self.shape, |[i, j, k, l]| self.at([i, j, k, l]) + bias[j * d + l]))
    }
    /// These after `past`.
    ///
    /// # Errors
    /// `Shape` when other extents differ.
    pub fn after(&self, past: &Heads) -> Result<Heads> {
        let ([b, h, p, d], [b2, h2, s, d2]) = (past.shape, self.shape);
        if (b, h, d) != (b2, h2, d2) {
            return Err(bad(format!("a past of {:?} before {:?}", past.shape, self.shape)));
        }
        let at = |[i, j, k, l]: [usize; 4]| if k < p { past.at([i, j, k, l]) } else { self.at([i, j, k - p, l]) };
        Ok(Heads::build([b, h, p + s, d], at))
    }
    /// `cache` with these written from position `from[sample]` on. What would be written outside is left out.
    ///
    /// # Errors
    /// `Shape` when other extents differ.
    pub fn within(&self, cache: &Heads, from: &[i128]) -> Result<Heads> {
        let ([b, h, _, d], [b2, h2, s, d2]) = (cache.shape, self.shape);
        if (b, h, d) != (b2, h2, d2) || from.len() != b {
            return Err(bad(format!("{:?} into a cache of {:?}", self.shape, cache.shape)));
        }
        Ok(Heads::build(cache.shape, |[i, j, k, l]| {
            let own = usize::try_from(k as i128 - from[i]).ok().filter(|&k| k < s);
            own.map_or(cache.at([i, j, k, l]), |k| self.at([i, j, k, l]))
        }))
    }
    /// Rotated by positions `[b, s]`; see [`rotary`].
    ///
    /// # Errors
    /// `Shape` when the tables do not fit.
    pub fn rotated(&self, positions: &[i128], cos: &Tensor, sin: &Tensor, interleaved: bool) -> Result<Heads> {
        let [b, _, s, d] = self.shape;
        let n = 2 * cos.shape().get(1).copied().unwrap_or(0);
        let p: Vec<i64> = positions.iter().map(|&p| i64::try_from(p).unwrap_or(0)).collect();
        let x = self.tensor(DType::F64);
        Heads::of(&rotary(&x, cos, sin, Some(&Tensor::from_i64(&[b, s], &p)), None, Some(n.min(d)), interleaved)?)
    }
    /// As a tensor `[b, h, s, d]`.
    pub fn tensor(&self, dtype: DType) -> Tensor {
        from_f64s(dtype, &self.shape, &self.v)
    }
    /// As a tensor `[b, s, h·d]`.
    pub fn merged(&self, dtype: DType) -> Tensor {
        let [b, h, s, d] = self.shape;
        let turned = Heads::build([b, s, h, d], |[i, k, j, l]| self.at([i, j, k, l]));
        from_f64s(dtype, &[b, s, h * d], &turned.v)
    }
}

/// `softmax(scale · q·kᵀ + added)·v` and the scores before the softmax. Heads of k and v serve equally many heads of q each. A key where
/// -∞ is added does not count; a query without a key that counts gives 0.
///
/// # Shapes
/// q `[b, h, s, d]`, k `[b, hk, t, d]`, v `[b, hk, t, e]`, added at `[b, h, s, t]`
///
/// # Errors
/// `Shape` when they do not fit together.
pub fn attend(
    q: &Heads,
    k: &Heads,
    v: &Heads,
    scale: Option<f64>,
    added: impl Fn([usize; 4]) -> f64,
) -> Result<(Heads, Heads)> {
    let ([b, h, s, d], [_, hk, t, e]) = (q.shape, v.shape);
    if k.shape != [b, hk, t, d] || v.shape[0] != b || hk == 0 || h % hk != 0 {
        return Err(bad(format!("queries {:?}, keys {:?}, values {:?}", q.shape, k.shape, v.shape)));
    }
    let scale = scale.unwrap_or(1.0 / (d.max(1) as f64).sqrt());
    let scores = Heads::build([b, h, s, t], |[i, j, row, key]| {
        let products = (0..d).map(|c| q.at([i, j, row, c]) * k.at([i, j / (h / hk), key, c]));
        scale * math::sum(products) + added([i, j, row, key])
    });
    let mut y = Heads { v: vec![0.0; b * h * s * e], shape: [b, h, s, e] };
    for row in 0..b * h * s {
        let x = &scores.v[row * t..(row + 1) * t];
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if most == f64::NEG_INFINITY {
            continue;
        }
        let shares: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
        let all = math::sum(shares.iter().copied());
        let (i, j) = (row / (h * s), row / s % h / (h / hk));
        for c in 0..e {
            let part = |(key, share): (usize, &f64)| share / all * v.at([i, j, key, c]);
            y.v[row * e + c] = math::sum(shares.iter().enumerate().filter(|(_, s)| **s != 0.0).map(part));
        }
    }
    Ok((y, scores))
}

/// What is added to scores `[b, h, s, t]`. Where an extent is 1, the only element serves all; keys beyond the last do not count.
#[derive(Clone, Debug)]
pub struct Added {
    v: Vec<f64>,
    shape: [usize; 4],
}

impl Added {
    /// Of 4 axes, over `n_keys` keys.
    ///
    /// # Errors
    /// `Shape` where it is not for such scores.
    pub fn of(t: &Tensor, scores: [usize; 4], n_keys: usize) -> Result<Added> {
        let fits = |shape: &[usize; 4]| {
            (0..3).all(|i| shape[i] == 1 || shape[i] == scores[i]) && shape[3] == n_keys && n_keys <= scores[3]
        };
        match t.shape().try_into() {
            Ok(shape) if fits(&shape) => Ok(Added { v: f64s(t), shape }),
            _ => Err(bad(format!("{:?} for scores {scores:?}", t.shape()))),
        }
    }
    /// What is added to a score.
    pub fn at(&self, at: [usize; 4]) -> f64 {
        if at[3] >= self.shape[3] {
            return f64::NEG_INFINITY;
        }
        let i = at.iter().zip(&self.shape).fold(0, |i, (&k, &n)| i * n + if n == 1 { 0 } else { k });
        self.v[i]
    }
}

/// Relative positions in buckets, as T5 has them: near ones each in its own, farther ones by the logarithm of the distance.
pub fn bucket(distance: i64, n_buckets: i64, bidirectional: bool, most: i64) -> i64 {
    let (n, base) = if bidirectional { (n_buckets / 2, n_buckets / 2) } else { (n_buckets, 0) };
    let (base, far) = match (bidirectional, distance > 0) {
        (true, true) => (base, distance),
        (false, true) => (0, 0),
        _ => (0, -distance),
    };
    let exact = n / 2;
    if far < exact {
        return base + far;
    }
    // In f32, as models were trained: a bucket's border is where this rounding puts it.
    let ratio = (far as f32 / exact as f32).ln() / (most as f32 / exact as f32).ln();
    base + (exact + (ratio * (n - exact) as f32) as i64).min(n - 1)
}

/// Tokens `[n, hidden]` at their places of `[b, s, hidden]`, where offsets are `[b, s]`; zeros elsewhere.
///
/// # Errors
/// `Shape` when they do not fit together, `Argument` for a place outside.
pub fn unpack(tokens: &Tensor, offsets: &Tensor) -> Result<Tensor> {
    let (&[n, hidden], &[b, s]) = (tokens.shape(), offsets.shape()) else {
        return Err(bad(format!("tokens {:?} at {:?}", tokens.shape(), offsets.shape())));
    };
    if n > b * s {
        return Err(bad(format!("{n} tokens at {b}·{s} places")));
    }
    let v = f64s(tokens);
    let mut y = vec![0.0; b * s * hidden];
    for (i, at) in ints(offsets).into_iter().take(n).enumerate() {
        let at = usize::try_from(at).ok().filter(|&at| at < b * s);
        let at = at.ok_or_else(|| Diagnostic::new(ErrorKind::Argument, format!("token {i} is placed outside")))?;
        y[at * hidden..(at + 1) * hidden].copy_from_slice(&v[i * hidden..(i + 1) * hidden]);
    }
    Ok(from_f64s(tokens.dtype(), &[b, s, hidden], &y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_do_not_count_have_no_share() {
        let zeros = |h, s| Heads::build([1, h, s, 1], |_| 0.0);
        let v = Heads::build([1, 1, 3, 1], |[_, _, k, _]| k as f64);
        let low = f64::NEG_INFINITY;
        let added = |[_, j, _, k]: [usize; 4]| if k > j { low } else { 0.0 };
        let (y, _) = attend(&zeros(2, 1), &zeros(1, 3), &v, None, added).unwrap();
        assert_eq!(y.v, [0.0, 0.5]);
        let (y, _) = attend(&zeros(1, 1), &zeros(1, 3), &v, None, |_| low).unwrap();
        assert_eq!(y.v, [0.0]);
    }

    #[test]
    fn far_positions_share_buckets() {
        let of = |d: &[i64], both| d.iter().map(|&d| bucket(d, 8, both, 16)).collect::<Vec<_>>();
        assert_eq!(of(&[1, 0, -1, -3, -4, -5, -8, -15, -16, -99], false), [0, 0, 1, 3, 4, 4, 6, 7, 7, 7]);
        assert_eq!(of(&[0, -1, -2, 1, 2, 99], true), [0, 1, 2, 5, 6, 7]);
    }
}
