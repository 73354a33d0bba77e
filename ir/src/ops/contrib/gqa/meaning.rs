//! What a GroupQueryAttention means: operands and attributes as the reference takes them.

use super::super::attend::first_number;
use super::*;
use crate::op::RefCtx;
use reference::data::{f64s, from_f64s, ints};
use reference::grouped::{Latest, Scores, Step, grouped};
use reference::heads::{Added, Heads};
use reference::norm;
use tensor::{Diagnostic, Tensor};

/// Elements of a cache as numbers, and back.
struct Stored<'a> {
    dtype: DType,
    scale: Option<&'a Tensor>,
    kv_heads: usize,
}

impl Stored<'_> {
    fn scale(&self, [_, h, _, d]: [usize; 4], width: usize) -> f64 {
        let Some(s) = self.scale else { return 1.0 };
        let v = f64s(s);
        let at = match *s.shape() {
            [_, heads, _, own] => (if heads == 1 { 0 } else { h }) * own + if own == 1 { 0 } else { d },
            _ if v.len() == self.kv_heads * width => h * width + d,
            _ => 0,
        };
        v.get(at).copied().unwrap_or(1.0)
    }
    /// As stored: the numbers before they are packed.
    fn write(&self, x: &Heads) -> Heads {
        let d = x.shape[3];
        let y = Heads::build(x.shape, |at| {
            let y = x.at(at) / self.scale(at, d);
            match self.dtype {
                I8 => y.round_ties_even().clamp(-128.0, 127.0),
                U8 => y.round_ties_even().clamp(-8.0, 7.0),
                F8E4M3FN => y.clamp(-448.0, 448.0),
                _ => y,
            }
        });
        if self.dtype.is_float() { Heads { v: f64s(&y.tensor(self.dtype)), ..y } } else { y }
    }
    fn read(&self, x: &Heads) -> Heads {
        Heads::build(x.shape, |at| x.at(at) * self.scale(at, x.shape[3]))
    }
    fn unpack(&self, t: &Tensor) -> Result<Heads> {
        let x = Heads::of(t)?;
        if self.dtype != U8 {
            return Ok(x);
        }
        let [b, h, s, d] = x.shape;
        Ok(Heads::build([b, h, s, 2 * d], |[b, h, s, d]| {
            let byte = x.at([b, h, s, d / 2]) as u8;
            f64::from(if d % 2 == 0 { byte & 15 } else { byte >> 4 }) - 8.0
        }))
    }
    fn pack(&self, x: &Heads) -> Tensor {
        let [b, h, s, d] = x.shape;
        if self.dtype != U8 {
            return x.tensor(self.dtype);
        }
        let bytes = Heads::build([b, h, s, d / 2], |[b, h, s, d]| {
            (x.at([b, h, s, 2 * d]) + 8.0) + 16.0 * (x.at([b, h, s, 2 * d + 1]) + 8.0)
        });
        bytes.tensor(U8)
    }
}

/// Each head over the root of its mean square, times the weights.
fn normalized(x: &Heads, weight: Option<&Tensor>, epsilon: f32) -> Result<Heads> {
    let Some(w) = weight else { return Ok(x.clone()) };
    Heads::of(&norm::rms_norm(&x.tensor(DType::F64), &from_f64s(DType::F64, w.shape(), &f64s(w)), 3, epsilon.into())?)
}

pub(super) fn reference(c: &RefCtx) -> Result<Vec<Tensor>> {
    let o = Options::of(c.attrs);
    let size = |n: i64| usize::try_from(n).ok().filter(|&n| n > 0).unwrap_or(1);
    let (n, kv) = (size(o.heads), size(o.kv_heads));
    let query = c.input(0)?;
    let dtype = query.dtype();
    let [q, k, v] = Heads::of_decoder(query, c.opt(KEY).zip(c.opt(VALUE)), n, kv)?;
    let mut q = normalized(&q, c.opt(QUERY_NORM), o.epsilon[0])?;
    let mut k = normalized(&k, c.opt(KEY_NORM), o.epsilon[1])?;
    let ([b, _, s, d], l) = (q.shape, k.shape[2]);
    let totals: Vec<i128> = ints(c.input(LENGTHS)?).iter().map(|n| n + 1).collect();
    let given = c.opt(QUERY_LENGTHS).map(ints);
    let positions = c.opt(POSITIONS).is_none_or(|p| p.shape() == [b, s]);
    if totals.len() != b
        || !positions
        || (l != s && l != 0)
        || [k.shape[0], v.shape[0]] != [b, b]
        || v.shape[2] != l
        || given.as_ref().is_some_and(|g| g.len() != b)
    {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("{} lengths of {b} samples", totals.len())));
    }
    let fewer = |n: usize| totals.iter().map(move |&t| t.min(n as i128)).collect::<Vec<_>>();
    let (queries, new) = match given {
        Some(g) => {
            let g: Vec<i128> = g.into_iter().zip(fewer(s)).map(|(n, most)| n.clamp(0, most)).collect();
            (g.clone(), g)
        }
        None => (fewer(s), fewer(l)),
    };
    let starts: Vec<i128> = totals.iter().zip(&queries).map(|(t, n)| t - n).collect();
    let total = first_number(c.input(TOTAL)?);
    if o.rotary {
        let own = |i: usize| match c.opt(POSITIONS).map(ints) {
            // Of prompts the first position alone counts.
            Some(p) if total == s as i128 && c.opt(QUERY_LENGTHS).is_none() => p[0] + (i % s) as i128,
            Some(p) => p[i],
            None => starts[i / s] + (i % s) as i128,
        };
        let last = |i: usize| {
            if c.opt(QUERY_LENGTHS).is_some() && c.opt(POSITIONS).is_none() { totals[i / s] - 1 } else { i128::MAX }
        };
        let positions: Vec<i128> = (0..b * s).map(|i| own(i).min(last(i))).collect();
        let (cos, sin) = (c.input(COS)?, c.input(SIN)?);
        q = q.rotated(&positions, cos, sin, o.interleaved)?;
        if l > 0 {
            k = k.rotated(&positions, cos, sin, o.interleaved)?;
        }
    }
    let total = usize::try_from(total).unwrap_or(0);
    let cache = c.opt(PAST_KEY).map_or(o.cache(dtype), Tensor::dtype);
    let past_length = c.opt(PAST_KEY).map_or(0, |p| p.shape().get(2).copied().unwrap_or(0));
    let latest = o.latest().map(|w| Latest { capacity: past_length as i128, window: w.into() });
    let length = if latest.is_some() { past_length } else { past_length.max(total) };
    let step = Step { total: totals.clone(), new, latest };
    let of_cache = |past: usize, scale: usize, new: &Heads| -> Result<(Tensor, Heads)> {
        let scale = if o.is_quantized() { c.opt(scale) } else { None };
        let stored = Stored { dtype: cache, scale, kv_heads: kv };
        let none = Heads { v: vec![], shape: [b, kv, 0, d] };
        if scale.is_some_and(|s| {
            !matches!(*s.shape(), [1, h, 1, w] if (h == 1 || h == kv) && (w == 1 || w == d))
                && ![1, kv * d].contains(&s.n_elems())
        }) {
            return Err(Diagnostic::new(ErrorKind::Shape, format!("scales {scale:?} for {kv} heads of {d}")));
        }
        let past = c.opt(past).map(|p| stored.unpack(p)).transpose()?.unwrap_or(none);
        // What is written has been of the type of the queries.
        let new = stored.write(&Heads { v: f64s(&new.tensor(dtype)), ..new.clone() });
        Ok((stored.pack(&step.present(&past, &new, length)?), stored.read(&step.all(&past, &new, total)?)))
    };
    let (key, keys) = of_cache(PAST_KEY, KEY_SCALE, &k)?;
    let (value, values) = of_cache(PAST_VALUE, VALUE_SCALE, &v)?;
    let how = Scores {
        scale: o.scale.map(f64::from),
        softcap: o.softcap.into(),
        added: c.opt(BIAS).map(|t| Added::of(t, [b, n, s, total], total)).transpose()?,
        sinks: c.opt(SINKS).map(f64s).or_else(|| o.smooth.then(|| vec![0.0; n])),
        causal: o.causal,
        window: o.window.map(i128::from),
    };
    let (y, scores, shares) = grouped([&q, &keys, &values], &starts, &totals, &how)?;
    let shown = if o.shown == 1 { scores } else { shares };
    let mut all = vec![y.merged(dtype), key, value, shown.tensor(dtype)];
    all.truncate(c.n_outs);
    Ok(all)
}
