//! The expansion of mixtures of experts.

use super::moe::{INPUT, Mixture, ROUTER, ROUTER_WEIGHTS, places};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use reference::moe::{Gate, RIVALS, Routing};
use tensor::DType::{Bool, F32};
use tensor::{Result, Tensor};

/// Extents that are numbers.
fn extents(x: &Expansion, v: Value) -> Result<Option<Vec<i64>>> {
    Ok(x.tensor(v)?.1.iter().map(|&d| x.as_const(d)).collect())
}

/// The weights of a layer, with their extents in the usual order.
fn weights(x: &mut Expansion, m: &Mixture, l: usize) -> Result<Value> {
    let p = places(x.def());
    let w = x.need(p[l].weights)?;
    let [fc1, fc2] = [0, 1].map(|l| x.need(p[l].weights).and_then(|v| extents(x, v)));
    let hidden = x.tensor(x.need(INPUT)?)?.1.last().and_then(|&d| x.as_const(d));
    if let (Some(h), Some(fc1), Some(fc2), Some(s)) = (hidden, fc1?, fc2?, extents(x, w)?)
        && m.turned(h, &fc1, &fc2)
    {
        return Ok(x.reshape(w, &[s[0], s[2] * m.per(l), s[1] / m.per(l)]));
    }
    Ok(w)
}

/// A layer of the chosen experts, in f32.
fn layer(x: &mut Expansion, m: &Mixture, l: usize, v: Value, experts: Value) -> Result<Value> {
    let w = weights(x, m, l)?;
    let p = places(x.def())[l];
    let at = |x: &Expansion, i: Option<usize>| i.and_then(|i| x.input(i));
    let ins = [Some(v), Some(experts), Some(w), at(x, p.scales), at(x, p.zeros), at(x, Some(p.bias))];
    let attrs = [("bits", Attr::Int(m.bits[l])), ("block_size", Attr::Int(m.block))];
    Ok(x.own("ExpertMatMul", &ins, &attrs))
}

fn two(x: &mut Expansion, name: &str, a: Value, b: Value) -> Value {
    x.op(name, &[a, b], &[])
}

fn sigmoid_times(x: &mut Expansion, v: Value, alpha: f64) -> Value {
    let a = x.scalar(F32, alpha);
    let s = two(x, "Mul", v, a);
    let s = x.op("Sigmoid", &[s], &[]);
    two(x, "Mul", v, s)
}

/// The gate's activation, times the linear part.
fn gated(x: &mut Expansion, gate: Gate, g: Value, l: Option<Value>) -> Value {
    let relu = |x: &mut Expansion| x.op("Relu", &[g], &[]);
    let of_one = match gate {
        Gate::Identity => g,
        Gate::Relu => relu(x),
        Gate::Relu2 => {
            let r = relu(x);
            two(x, "Mul", r, r)
        }
        Gate::Gelu | Gate::GeGlu => x.op("Gelu", &[g], &[("approximate", Attr::Str("tanh".into()))]),
        Gate::Silu => sigmoid_times(x, g, 1.0),
        Gate::SwiGlu { alpha, beta, limit, limit_after } => {
            let limits = limit.map(|n| (x.scalar(F32, -n), x.scalar(F32, n)));
            let from_above = |x: &mut Expansion, v: Value| limits.map_or(v, |(_, hi)| two(x, "Min", v, hi));
            let g = if limit_after { g } else { from_above(x, g) };
            let g = sigmoid_times(x, g, alpha);
            let g = if limit_after { from_above(x, g) } else { g };
            let Some(mut l) = l else { return g };
            if let Some((lo, hi)) = limits {
                l = x.op("Clip", &[l, lo, hi], &[]);
            }
            let beta = x.scalar(F32, beta);
            let l = two(x, "Add", l, beta);
            return two(x, "Mul", g, l);
        }
    };
    l.map_or(of_one, |l| two(x, "Mul", of_one, l))
}

/// Experts of each token and their weights, both `[tokens, k]`.
fn routed(x: &mut Expansion, r: Routing) -> Result<(Value, Value)> {
    let logits = x.need(ROUTER)?;
    let logits = x.cast(logits, F32);
    let k = x.ints(&[i64::try_from(r.k).unwrap_or(i64::MAX)]);
    let last = [("axis", Attr::Int(-1))];
    let given = (x.def().name == "QMoE").then(|| x.input(ROUTER_WEIGHTS)).flatten();
    if r.sparse && given.is_none() {
        let top = x.op_n("TopK", &[logits, k], &last, 2);
        let weights = rivals(x, logits, top[0], top[1]);
        return Ok((top[1], weights));
    }
    let (experts, mut weights) = match given {
        Some(w) => {
            let top = x.op_n("TopK", &[logits, k], &last, 2);
            let w = x.cast(w, F32);
            (top[1], x.op("GatherElements", &[w, top[1]], &[("axis", Attr::Int(1))]))
        }
        None => {
            let all = x.op("Softmax", &[logits], &last);
            let top = x.op_n("TopK", &[all, k], &last, 2);
            (top[1], top[0])
        }
    };
    if r.normalize && !r.sparse {
        let axes = x.ints(&[-1]);
        let total = x.op("ReduceSum", &[weights, axes], &[]);
        let zero = x.scalar(F32, 0.0);
        let part = two(x, "Div", weights, total);
        let none = two(x, "Equal", total, zero);
        weights = x.op("Where", &[none, zero, part], &[]);
    }
    Ok((experts, weights))
}

/// Weights of two choices, each among the experts whose logits are near it. The second leaves out the first.
fn rivals(x: &mut Expansion, logits: Value, chosen: Value, experts: Value) -> Value {
    let (all, m) = (x.unsqueeze(logits, &[1]), x.unsqueeze(chosen, &[2]));
    let near = x.scalar(F32, RIVALS);
    let size = x.op("Abs", &[all], &[]);
    let size = two(x, "Max", size, m);
    let reach = two(x, "Mul", size, near);
    let below = two(x, "Sub", m, all);
    let far = two(x, "Greater", below, reach);
    let n = x.extent(logits, 1);
    let numbers = x.count_to(n);
    let first = x.slice(experts, 1, 0, 1);
    let first = x.unsqueeze(first, &[2]);
    let is_first = two(x, "Equal", numbers, first);
    let second = x.constant(&Tensor::from_i64_as(Bool, &[2, 1], &[0, 1]));
    let out = two(x, "And", is_first, second);
    let out = two(x, "Or", far, out);
    let above = x.op("Neg", &[below], &[]);
    let e = x.op("Exp", &[above], &[]);
    let zero = x.scalar(F32, 0.0);
    let e = x.op("Where", &[out, zero, e], &[]);
    let axes = x.ints(&[-1]);
    let total = x.op("ReduceSum", &[e, axes], &[("keepdims", Attr::Int(0))]);
    x.op("Reciprocal", &[total], &[])
}

/// Routes, layers, and the weighted sum of what the chosen experts give.
pub(super) fn expand_moe(x: &mut Expansion) -> Result<Vec<Value>> {
    let p = places(x.def());
    let m = Mixture::of(x.def(), x.attrs(), x.input(p[2].weights).is_some())?;
    let (input, router) = (x.need(INPUT)?, x.need(ROUTER)?);
    let (dtype, _) = x.tensor(input)?;
    let (experts, weights) = routed(x, m.routing)?;
    let (tokens, one, hidden) = (x.extent(router, 0), x.ints(&[1]), x.extent(input, -1));
    let rows = x.reshape_to(input, &[tokens, one, hidden]);
    let rows = x.cast(rows, F32);
    let a = layer(x, &m, 0, rows, experts)?;
    let l = match x.input(p[2].weights) {
        Some(_) => Some(layer(x, &m, 2, rows, experts)?),
        None => None,
    };
    let (g, l) = match m.fusion {
        0 => (a, l),
        how => {
            let k = x.extent(experts, 1);
            let two = x.ints(&[2]);
            let half = x.extent(a, -1);
            let half = x.op("Div", &[half, two], &[]);
            let (split, axis) = if how == 1 { ([tokens, k, half, two], 3) } else { ([tokens, k, two, half], 2) };
            let pairs = x.reshape_to(a, &split);
            let [g, l] = [0, 1].map(|i| {
                let part = x.slice(pairs, axis, i, i + 1);
                x.squeeze(part, &[axis])
            });
            (g, Some(l))
        }
    };
    let h = gated(x, m.gate, g, l);
    let y = layer(x, &m, 1, h, experts)?;
    let weights = x.unsqueeze(weights, &[2]);
    let y = two(x, "Mul", y, weights);
    let axes = x.ints(&[1]);
    let y = x.op("ReduceSum", &[y, axes], &[("keepdims", Attr::Int(0))]);
    let y = x.cast(y, dtype);
    let shape = x.op("Shape", &[input], &[]);
    Ok(vec![x.op("Reshape", &[y, shape], &[("allowzero", Attr::Int(1))])])
}
