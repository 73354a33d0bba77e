//! Mixtures of experts: which experts each token goes to, and the sum of what they make of it.

use crate::data::{f64s, from_f64s};
use crate::math::sum;
use crate::packed::Packed;
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

fn misfit(what: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, format!("mixture of experts: {what}"))
}

/// Matrices and biases of all experts of one layer.
#[derive(Clone, Debug)]
pub struct Layer {
    weights: Vec<f64>,
    bias: Option<Vec<f64>>,
    n: usize,
    k: usize,
}

impl Layer {
    /// Of dense or packed weights `[expert, n, k]`.
    ///
    /// # Errors
    /// `Shape` when scales or biases do not fit.
    pub fn new(w: &Packed, bias: Option<&Tensor>) -> Result<Layer> {
        let weights = w.dense(None)?;
        let bias = bias.map(f64s);
        let size = w.n * w.k;
        let experts = weights.len().checked_div(size).unwrap_or(0);
        if weights.len() != experts * size || bias.as_ref().is_some_and(|b| b.len() != experts * w.n) {
            return Err(misfit("weights and biases differ in extents"));
        }
        Ok(Layer { weights, bias, n: w.n, k: w.k })
    }
    /// The product of one expert.
    fn apply(&self, expert: usize, x: &[f64]) -> Result<Vec<f64>> {
        let size = self.n * self.k;
        let from = expert.checked_mul(size).filter(|_| x.len() == self.k);
        let matrix = from.and_then(|f| self.weights.get(f..f + size));
        let matrix = matrix.ok_or_else(|| misfit("a row does not fit its expert"))?;
        let bias = |i: usize| self.bias.as_ref().map_or(0.0, |b| b[expert * self.n + i]);
        let row = |i: usize| sum(matrix[i * self.k..(i + 1) * self.k].iter().zip(x).map(|(w, x)| w * x));
        Ok((0..self.n).map(|i| row(i) + bias(i)).collect())
    }
}

/// `y[t, j] = x[t, j] · Wᵀ + bias` of expert `experts[t, j]`; `x` may have one row for all experts of a token.
///
/// # Errors
/// `Shape` when operands do not fit.
pub fn expert_matmul(x: &Tensor, experts: &Tensor, layer: &Layer) -> Result<Tensor> {
    let (&[tokens, rows, k], &[t, chosen]) = (x.shape(), experts.shape()) else { return Err(misfit("ranks")) };
    if tokens != t || (rows != 1 && rows != chosen) {
        return Err(misfit("tokens and experts differ in number"));
    }
    let (v, e) = (f64s(x), experts.to_i64_vec());
    let mut y = vec![];
    for i in 0..tokens * chosen {
        let row = i / chosen * rows + if rows == 1 { 0 } else { i % chosen };
        y.extend(layer.apply(usize::try_from(e[i]).unwrap_or(usize::MAX), &v[row * k..(row + 1) * k])?);
    }
    Ok(from_f64s(x.dtype(), &[tokens, chosen, layer.n], &y))
}

/// How tokens choose experts.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// How many.
    pub k: usize,
    /// Whether their weights are made to add up to 1.
    pub normalize: bool,
    /// Whether each choice is weighted among its near rivals alone (Phi-3.5-MoE's SparseMixer).
    pub sparse: bool,
}

/// By how much of the greater absolute value a rival may be below the choice.
pub const RIVALS: f64 = 0.02;

/// The experts of a token, best first, with their weights.
fn route(logits: &[f64], given: Option<&[f64]>, r: Routing) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let greatest = order.first().map_or(0.0, |&i| logits[i]);
    let all = sum(logits.iter().map(|&l| (l - greatest).exp()));
    let sparse = |j: usize| {
        let m = logits[order[j]];
        let rival = |i: usize| m - logits[i] <= RIVALS * m.max(logits[i].abs()) && !order[..j].contains(&i);
        1.0 / sum((0..logits.len()).filter(|&i| rival(i)).map(|i| (logits[i] - m).exp()))
    };
    let weight = |j: usize| match given {
        Some(w) => w[order[j]],
        None if r.sparse => sparse(j),
        None => (logits[order[j]] - greatest).exp() / all,
    };
    let chosen: Vec<(usize, f64)> = (0..r.k.min(order.len())).map(|j| (order[j], weight(j))).collect();
    let total = if r.normalize && !r.sparse { sum(chosen.iter().map(|c| c.1)) } else { 1.0 };
    chosen.into_iter().map(|(e, w)| (e, if total == 0.0 { 0.0 } else { w / total })).collect()
}

/// What stands between the layers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Gate {
    Relu,
    Relu2,
    /// By tanh.
    Gelu,
    Silu,
    Identity,
    /// `G · sigmoid(alpha · G) · (L + beta)` of gate and linear part, both clamped by the limit: the gate from above, before or after
    /// its activation.
    SwiGlu {
        alpha: f64,
        beta: f64,
        limit: Option<f64>,
        limit_after: bool,
    },
    /// `gelu(g) · l`.
    GeGlu,
}

impl Gate {
    fn of(self, g: f64, l: Option<f64>) -> f64 {
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let gelu = |v: f64| v / 2.0 * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (v + 0.044715 * v * v * v)).tanh());
        let of_one = match self {
            Gate::Relu => g.max(0.0),
            Gate::Relu2 => g.max(0.0) * g.max(0.0),
            Gate::Gelu | Gate::GeGlu => gelu(g),
            Gate::Silu => g * sigmoid(g),
            Gate::Identity => g,
            Gate::SwiGlu { alpha, beta, limit, limit_after } => {
                let limit = limit.unwrap_or(f64::INFINITY);
                let before = if limit_after { g } else { g.min(limit) };
                let gate = before * sigmoid(alpha * before);
                let gate = if limit_after { gate.min(limit) } else { gate };
                return gate * (l.unwrap_or(0.0).clamp(-limit, limit) + beta);
            }
        };
        of_one * l.unwrap_or(1.0)
    }
}

/// The layers of the experts.
#[derive(Clone, Debug)]
pub struct Experts {
    /// The first: gates, and the linear part where it is in it.
    pub fc1: Layer,
    /// The last.
    pub fc2: Layer,
    /// The linear part, where it is a layer of its own.
    pub fc3: Option<Layer>,
    /// What stands between.
    pub gate: Gate,
    /// How `fc1` holds gates and linear parts: 0 gates alone, 1 in turn, 2 all gates first.
    pub fusion: i64,
}

impl Experts {
    fn apply(&self, expert: usize, x: &[f64]) -> Result<Vec<f64>> {
        let a = self.fc1.apply(expert, x)?;
        let l = self.fc3.as_ref().map(|f| f.apply(expert, x)).transpose()?;
        let half = a.len() / 2;
        let hidden: Vec<f64> = match (self.fusion, l) {
            (1, _) => (0..half).map(|i| self.gate.of(a[2 * i], Some(a[2 * i + 1]))).collect(),
            (2, _) => (0..half).map(|i| self.gate.of(a[i], Some(a[half + i]))).collect(),
            (_, Some(l)) => a.iter().zip(l).map(|(&g, l)| self.gate.of(g, Some(l))).collect(),
            (_, None) => a.iter().map(|&g| self.gate.of(g, None)).collect(),
        };
        self.fc2.apply(expert, &hidden)
    }
}

/// Each token through its experts. `weights` says what they count where `logits` only choose them.
///
/// # Errors
/// `Shape` when operands do not fit.
pub fn moe(x: &Tensor, logits: &Tensor, weights: Option<&Tensor>, r: Routing, experts: &Experts) -> Result<Tensor> {
    let hidden = x.shape().last().copied().unwrap_or(0);
    let tokens = x.n_elems().checked_div(hidden).unwrap_or(0);
    let n = match logits.shape() {
        &[t, n] if t == tokens && r.k <= n => n,
        _ => return Err(misfit("the router's rows are not one per token with as many experts as are chosen")),
    };
    if weights.is_some_and(|w| w.shape() != logits.shape()) {
        return Err(misfit("weights and logits of the router differ in extents"));
    }
    let (v, l, w) = (f64s(x), f64s(logits), weights.map(f64s));
    let mut y = Vec::with_capacity(v.len());
    for t in 0..tokens {
        let row = t * n..(t + 1) * n;
        let mut all = vec![0.0; hidden];
        for (expert, weight) in route(&l[row.clone()], w.as_ref().map(|w| &w[row]), r) {
            let one = experts.apply(expert, &v[t * hidden..(t + 1) * hidden])?;
            if one.len() != hidden {
                return Err(misfit("experts give rows of another length"));
            }
            all.iter_mut().zip(one).for_each(|(a, o)| *a += weight * o);
        }
        y.extend(all);
    }
    Ok(from_f64s(x.dtype(), x.shape(), &y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing() {
        let r = Routing { k: 2, normalize: true, sparse: false };
        let got = route(&[0.0, 2.0, 1.0], None, r);
        let e = 1f64.exp();
        assert_eq!((got[0].0, got[1].0), (1, 2));
        assert!((got[0].1 - e / (1.0 + e)).abs() < 1e-12 && (got[0].1 + got[1].1 - 1.0).abs() < 1e-12);
        // No rival is near: each choice counts fully.
        let got = route(&[0.0, 2.0, 1.0], None, Routing { sparse: true, ..r });
        assert_eq!(got, [(1, 1.0), (2, 1.0)]);
    }
}
