//! Recurrent layers over sequences, in f64.

use crate::data::{f64s, from_f64s, ints};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// Which gates a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// `h' = f(x·wᵀ + h·rᵀ + b)`
    Rnn,
    /// Gates z (update), r (reset) and h (hidden): `h' = (1 - z)·ĥ + z·h`. Where `linear_before_reset`, r is a factor of what comes of h
    /// instead of h.
    Gru {
        /// Whether it is.
        linear_before_reset: bool,
    },
    /// Gates i (input), o (output), f (forget) and c (cell): `c' = f·c + i·ĉ`, `h' = o·h(c')`. Where `input_forget`, f is `1 - i`.
    Lstm {
        /// Whether it is.
        input_forget: bool,
    },
}

impl Cell {
    /// Number of gates.
    pub fn n_gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru { .. } => 3,
            Cell::Lstm { .. } => 4,
        }
    }
    /// Number of activations, for each direction.
    pub fn n_activations(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru { .. } => 2,
            Cell::Lstm { .. } => 3,
        }
    }
}

/// An activation of a gate with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `max(x, 0)`
    Relu,
    /// `tanh(x)`
    Tanh,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// `a·x + b`
    Affine(f64, f64),
    /// `x ≥ 0 ? x : a·x`
    LeakyRelu(f64),
    /// `x ≥ a ? x : 0`
    ThresholdedRelu(f64),
    /// `a·tanh(b·x)`
    ScaledTanh(f64, f64),
    /// `min(max(a·x + b, 0), 1)`
    HardSigmoid(f64, f64),
    /// `x ≥ 0 ? x : a·(eˣ - 1)`
    Elu(f64),
    /// `x / (1 + |x|)`
    Softsign,
    /// `log(1 + eˣ)`
    Softplus,
}

impl Activation {
    pub(crate) fn of(self, x: f64) -> f64 {
        match self {
            Activation::Relu => crate::math::max(x, 0.0),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => crate::math::sigmoid(x),
            Activation::Affine(a, b) => a * x + b,
            Activation::LeakyRelu(a) => {
                if x < 0.0 {
                    a * x
                } else {
                    x
                }
            }
            Activation::ThresholdedRelu(a) => {
                if x < a {
                    0.0
                } else {
                    x
                }
            }
            Activation::ScaledTanh(a, b) => a * (b * x).tanh(),
            Activation::HardSigmoid(a, b) => (a * x + b).clamp(0.0, 1.0),
            Activation::Elu(a) => {
                if x < 0.0 {
                    a * x.exp_m1()
                } else {
                    x
                }
            }
            Activation::Softsign => x / (1.0 + x.abs()),
            Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        }
    }
}

/// How a layer computes.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its gates.
    pub cell: Cell,
    /// Whether each direction runs backwards.
    pub reverse: Vec<bool>,
    /// Activations, those of one direction after the other.
    pub activations: Vec<Activation>,
    /// Bound on the absolute value of what the activations of gates are applied to.
    pub clip: Option<f64>,
    /// Whether the batch is the first axis of sequences and states.
    pub batch_first: bool,
}

impl Layer {
    /// The bound for activation `i` of a direction. The third is that of an LSTM's cell, no gate: onnxruntime does not bound it either.
    pub fn clip_of(&self, i: usize) -> Option<f64> {
        self.clip.filter(|_| i < 2)
    }
}

/// Operands of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Sequences `[t, b, i]`.
    pub x: &'a Tensor,
    /// Weights of the input `[d, g·h, i]`.
    pub w: &'a Tensor,
    /// Weights of the state `[d, g·h, h]`.
    pub r: &'a Tensor,
    /// Biases of both `[d, 2·g·h]`.
    pub b: Option<&'a Tensor>,
    /// Lengths of the sequences `[b]`.
    pub lengths: Option<&'a Tensor>,
    /// First state `[d, b, h]`.
    pub h: Option<&'a Tensor>,
    /// First cell `[d, b, h]`.
    pub c: Option<&'a Tensor>,
    /// Peephole weights `[d, 3·h]` of gates i, o and f.
    pub p: Option<&'a Tensor>,
}

/// The states of all steps `[t, d, b, h]` (0 after the end of a sequence), the last state and the last cell `[d, b, h]`.
///
/// # Errors
/// `Shape` when operands do not fit together.
pub fn recurrent(o: &Operands, layer: &Layer) -> Result<[Tensor; 3]> {
    let dims = |t: &Tensor| <[usize; 3]>::try_from(t.shape()).map_err(|_| bad(&format!("rank 3, not {:?}", t.shape())));
    let [xt, xb, i] = dims(o.x)?;
    let (t, b) = if layer.batch_first { (xb, xt) } else { (xt, xb) };
    let ([d, _, h], g, n) = (dims(o.r)?, layer.cell.n_gates(), layer.cell.n_activations());
    let state: &[usize] = if layer.batch_first { &[b, d, h] } else { &[d, b, h] };
    let fits = |t: Option<&Tensor>, shape: &[usize]| t.is_none_or(|t| t.shape() == shape);
    let all_fit = o.w.shape() == [d, g * h, i]
        && o.r.shape() == [d, g * h, h]
        && fits(o.b, &[d, 2 * g * h])
        && fits(o.lengths, &[b])
        && fits(o.h, state)
        && fits(o.c, state)
        && fits(o.p, &[d, 3 * h])
        && layer.reverse.len() == d
        && layer.activations.len() == n * d;
    if !all_fit {
        return Err(bad(&format!("x {:?}, w {:?} and r {:?} do not fit", o.x.shape(), o.w.shape(), o.r.shape())));
    }
    let list = |t: Option<&Tensor>, n: usize| t.map_or_else(|| vec![0.0; n], f64s);
    let (x, w, r) = (f64s(o.x), f64s(o.w), f64s(o.r));
    let (bias, peep) = (list(o.b, d * 2 * g * h), list(o.p, d * 3 * h));
    let (mut hs, mut cs) = (list(o.h, d * b * h), list(o.c, d * b * h));
    let lengths: Vec<usize> = match o.lengths {
        Some(l) => ints(l).into_iter().map(|n| usize::try_from(n).unwrap_or(0).min(t)).collect(),
        None => vec![t; b],
    };
    let mut y = vec![0.0; t * d * b * h];
    for dir in 0..d {
        let acts = &layer.activations[dir * n..(dir + 1) * n];
        for (k, &length) in lengths.iter().enumerate() {
            let at = if layer.batch_first { (k * d + dir) * h } else { (dir * b + k) * h };
            for step in 0..length {
                let s = if layer.reverse[dir] { length - 1 - step } else { step };
                let row = if layer.batch_first { k * t + s } else { s * b + k };
                // Gate `q`, element `e`: what comes of the input and what comes of a state.
                let of_input = |q: usize, e: usize| {
                    let row_w = (dir * g + q) * h + e;
                    (0..i).map(|c| x[row * i + c] * w[row_w * i + c]).sum::<f64>() + bias[dir * 2 * g * h + q * h + e]
                };
                let of_state = |state: &[f64], q: usize, e: usize| {
                    let row_r = (dir * g + q) * h + e;
                    let sum: f64 = (0..h).map(|c| state[c] * r[row_r * h + c]).sum();
                    sum + bias[dir * 2 * g * h + (g + q) * h + e]
                };
                let act = |f: usize, v: f64| acts[f].of(layer.clip_of(f).map_or(v, |c| v.clamp(-c, c)));
                let old = hs[at..at + h].to_vec();
                let both = |q: usize, e: usize| of_input(q, e) + of_state(&old, q, e);
                match layer.cell {
                    Cell::Rnn => (0..h).for_each(|e| hs[at + e] = act(0, both(0, e))),
                    Cell::Gru { linear_before_reset } => {
                        let reset: Vec<f64> = (0..h).map(|e| act(0, both(1, e))).collect();
                        let damped: Vec<f64> = old.iter().zip(&reset).map(|(a, b)| a * b).collect();
                        for e in 0..h {
                            let z = act(0, both(0, e));
                            let s = if linear_before_reset {
                                reset[e] * of_state(&old, 2, e)
                            } else {
                                of_state(&damped, 2, e)
                            };
                            let new = act(1, of_input(2, e) + s);
                            hs[at + e] = (1.0 - z) * new + z * old[e];
                        }
                    }
                    Cell::Lstm { input_forget } => {
                        for e in 0..h {
                            let p = |q: usize| peep[(dir * 3 + q) * h + e];
                            let c = cs[at + e];
                            let input = act(0, both(0, e) + p(0) * c);
                            let forget = if input_forget { 1.0 - input } else { act(0, both(2, e) + p(2) * c) };
                            let c = forget * c + input * act(1, both(3, e));
                            let output = act(0, both(1, e) + p(1) * c);
                            (cs[at + e], hs[at + e]) = (c, output * act(2, c));
                        }
                    }
                }
                let at_y = if layer.batch_first { ((k * t + s) * d + dir) * h } else { ((s * d + dir) * b + k) * h };
                y[at_y..at_y + h].copy_from_slice(&hs[at..at + h]);
            }
        }
    }
    let shape = if layer.batch_first { [b, t, d, h] } else { [t, d, b, h] };
    let dtype = o.x.dtype();
    Ok([from_f64s(dtype, &shape, &y), from_f64s(dtype, state, &hs), from_f64s(dtype, state, &cs)])
}

fn bad(text: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, format!("a recurrent layer: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer that adds up its input, with lengths.
    fn sums(reverse: bool, lengths: Option<&Tensor>) -> [Vec<f64>; 2] {
        let x = Tensor::from_f32(&[3, 2, 1], &[1.0, 10.0, 2.0, 20.0, 4.0, 40.0]);
        let one = Tensor::from_f32(&[1, 1, 1], &[1.0]);
        let activations = vec![Activation::Affine(1.0, 0.0)];
        let layer = Layer { cell: Cell::Rnn, reverse: vec![reverse], activations, clip: None, batch_first: false };
        let o = Operands { x: &x, w: &one, r: &one, b: None, lengths, h: None, c: None, p: None };
        let [y, h, _] = recurrent(&o, &layer).unwrap();
        [y.to_f64_vec(), h.to_f64_vec()]
    }

    #[test]
    fn states_run_along_each_sequence_to_its_end() {
        assert_eq!(sums(false, None), [vec![1.0, 10.0, 3.0, 30.0, 7.0, 70.0], vec![7.0, 70.0]]);
        let l = Tensor::from_i32(&[2], &[2, 3]);
        assert_eq!(sums(false, Some(&l)), [vec![1.0, 10.0, 3.0, 30.0, 0.0, 70.0], vec![3.0, 70.0]]);
        assert_eq!(sums(true, Some(&l)), [vec![3.0, 70.0, 2.0, 60.0, 0.0, 40.0], vec![3.0, 70.0]]);
    }
}
