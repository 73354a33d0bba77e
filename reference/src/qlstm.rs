//! The LSTM layer with quantized weights, which quantizes the input and the states as they come.

use crate::data::{f64s, from_f64s, ints};
use crate::quant::dynamic_quantize;
use crate::recurrence::{Cell, Layer};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// Weights `[d, k, n]` of `d` directions; scale and zero point are `[d]`, or `[d, n]` by column.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// The integers.
    pub q: &'a Tensor,
    /// The scales.
    pub scale: &'a Tensor,
    /// The zero points.
    pub zero: &'a Tensor,
}

impl Weights<'_> {
    fn fits(&self, [d, k, n]: [usize; 3]) -> bool {
        let small = |t: &Tensor| t.shape() == [d] || t.shape() == [d, n];
        self.q.shape() == [d, k, n] && small(self.scale) && small(self.zero)
    }
    /// `rows [m, k]` times the weights of a direction. The rows are quantized with one scale and one zero point for all.
    fn product(&self, d: usize, m: usize, rows: &[f64]) -> Vec<f64> {
        let (k, n) = (self.q.shape()[1], self.q.shape()[2]);
        let [a, a_scale, a_zero] = dynamic_quantize(&Tensor::from_f64(&[m, k], rows));
        let (a, a_scale, a_zero) = (f64s(&a), f64s(&a_scale)[0], f64s(&a_zero)[0]);
        let of_column = |t: &Tensor, c: usize| f64s(t)[if t.shape().len() == 2 { d * n + c } else { d }];
        let w = &f64s(self.q)[d * k * n..(d + 1) * k * n];
        let columns: Vec<(f64, f64)> = (0..n).map(|c| (of_column(self.scale, c), of_column(self.zero, c))).collect();
        let element = |at: usize| {
            let (row, c) = (at / n, at % n);
            let (scale, zero) = columns[c];
            let sum: f64 = (0..k).map(|i| (a[row * k + i] - a_zero) * (w[i * n + c] - zero)).sum();
            sum * a_scale * scale
        };
        (0..m * n).map(element).collect()
    }
}

/// Operands of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Sequences `[t, b, i]`.
    pub x: &'a Tensor,
    /// Weights of the input `[d, i, 4·h]`.
    pub w: Weights<'a>,
    /// Weights of the state `[d, h, 4·h]`.
    pub r: Weights<'a>,
    /// Biases of both `[d, 8·h]`.
    pub b: Option<&'a Tensor>,
    /// Lengths of the sequences `[b]`.
    pub lengths: Option<&'a Tensor>,
    /// First states `[d, b, h]`.
    pub h: Option<&'a Tensor>,
    /// First cells `[d, b, h]`.
    pub c: Option<&'a Tensor>,
    /// Peepholes `[d, 3·h]` of the gates i, o and f.
    pub p: Option<&'a Tensor>,
}

/// The layer: all states `[t, d, b, h]`, the last ones and the last cells `[d, b, h]`. The input is quantized once, over the steps that a
/// sequence has; the states at each step, over the sequences that go on. A sequence's first step is that of the others in either direction.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn quantized_lstm(o: &Operands, layer: &Layer) -> Result<[Tensor; 3]> {
    let (&[t, b, i], &[d, h, n]) = (o.x.shape(), o.r.q.shape()) else {
        return Err(bad("x and r have rank 3"));
    };
    let list = |t: Option<&Tensor>, n: usize| t.map_or_else(|| vec![0.0; n], f64s);
    let (bias, peep) = (list(o.b, d * 2 * n), list(o.p, d * 3 * h));
    let (mut hs, mut cs) = (list(o.h, d * b * h), list(o.c, d * b * h));
    let fits = n == 4 * h && o.w.fits([d, i, n]) && o.r.fits([d, h, n]) && layer.reverse.len() == d;
    if !fits
        || o.lengths.is_some_and(|l| l.shape() != [b])
        || bias.len() != d * 2 * n
        || peep.len() != d * 3 * h
        || hs.len() != d * b * h
        || cs.len() != hs.len()
    {
        return Err(bad("the weights or states do not fit"));
    }
    let Cell::Lstm { input_forget } = layer.cell else { return Err(bad("the cell is no LSTM")) };
    let lengths: Vec<usize> = match o.lengths {
        Some(l) => ints(l).into_iter().map(|n| usize::try_from(n).unwrap_or(0).min(t)).collect(),
        None => vec![t; b],
    };
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut y = vec![0.0; t * d * b * h];
    for dir in 0..d {
        let acts = &layer.activations[dir * 3..dir * 3 + 3];
        let act = |f: usize, v: f64| acts[f].of(layer.clip_of(f).map_or(v, |c| v.clamp(-c, c)));
        let of_input = o.w.product(dir, longest * b, &f64s(o.x)[..longest * b * i]);
        for step in 0..longest {
            let goes_on = |k: usize| step < lengths[k];
            let mut old = hs[dir * b * h..(dir + 1) * b * h].to_vec();
            (0..b).filter(|&k| !goes_on(k)).for_each(|k| old[k * h..(k + 1) * h].fill(0.0));
            let of_state = o.r.product(dir, b, &old);
            for k in (0..b).filter(|&k| goes_on(k)) {
                let s = if layer.reverse[dir] { lengths[k] - 1 - step } else { step };
                let at = (dir * b + k) * h;
                for e in 0..h {
                    let gate = |q: usize| {
                        let c = q * h + e;
                        let bias = bias[dir * 2 * n + c] + bias[dir * 2 * n + n + c];
                        of_input[(s * b + k) * n + c] + of_state[k * n + c] + bias
                    };
                    let p = |q: usize| peep[(dir * 3 + q) * h + e];
                    let c = cs[at + e];
                    let input = act(0, gate(0) + p(0) * c);
                    let forget = if input_forget { 1.0 - input } else { act(0, gate(2) + p(2) * c) };
                    let c = forget * c + input * act(1, gate(3));
                    let output = act(0, gate(1) + p(1) * c);
                    (cs[at + e], hs[at + e]) = (c, output * act(2, c));
                }
                let at_y = ((s * d + dir) * b + k) * h;
                y[at_y..at_y + h].copy_from_slice(&hs[at..at + h]);
            }
        }
    }
    let dtype = o.x.dtype();
    Ok([from_f64s(dtype, &[t, d, b, h], &y), from_f64s(dtype, &[d, b, h], &hs), from_f64s(dtype, &[d, b, h], &cs)])
}

fn bad(text: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, format!("a quantized LSTM: {text}"))
}
