//! Attention as a recurrence over a state, and the short convolution that stands before it: expanded to a loop over steps, and to a
//! convolution.

use super::loops::{Builder, inner, outer};
use super::row::ROW;
use crate::attrs::Attrs;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Nest};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::linear_attention::{Extra, Rule, causal_conv, depthwise, linear_attention};
use tensor::DType::{self, *};
use tensor::{Diagnostic, DimId, ErrorKind, Result};

const KV_HEADS: usize = 1;
const Q_HEADS: usize = 2;
const SCALE: usize = 3;
const UPDATE_RULE: usize = 4;
const TYPES: &[DType] = &[F32, F16, BF16];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // state = exp(decay) · state + key ⊗ β (value - state · key); output = scale · query · state, step by step
    OpDef {
        name: "LinearAttention",
        since: 27,
        inputs: &[
            req("query", "T"),
            req("key", "T"),
            req("value", "T"),
            opt("past_state", "S"),
            opt("decay", "T"),
            opt("beta", "T"),
        ],
        outputs: &[req("output", "T"), req("present_state", "S")],
        attrs: &[
            attr("chunk_size", AttrKind::Int(64)),
            attr("kv_num_heads", AttrKind::IntReq),
            attr("q_num_heads", AttrKind::IntReq),
            attr("scale", AttrKind::Float(0.0)),
            attr("update_rule", AttrKind::Str("gated_delta")),
        ],
        dtypes: &[("T", TYPES), ("S", TYPES)],
        infer: infer_linear_attention,
        reference: Some(|c| {
            let (n_q, h) = heads(c.attrs);
            let scale = c.attrs.float(SCALE).filter(|&s| s != 0.0).map(f64::from);
            let extra = Extra { state: c.opt(3), decay: c.opt(4), beta: c.opt(5) };
            let rule = rule(c.attrs).ok_or_else(|| unknown_rule(c))?;
            Ok(linear_attention([c.input(0)?, c.input(1)?, c.input(2)?], extra, (n_q, h), rule, scale)?.into())
        }),
        lower: &[Candidate::Expand(expand_linear_attention)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,8];[2,3,2];[2,3,3];[2,1,2,3];[2,3,1];[2,3,1] q_num_heads=4 kv_num_heads=1",
            "[1,4,6];[1,4,6];[1,4,4];_;[1,4,6] q_num_heads=2 kv_num_heads=2 update_rule=gated",
            "[2,2,6];[2,2,3];[2,2,5];_;_;[2,2,1] q_num_heads=2 kv_num_heads=1 update_rule=delta scale=0.5",
            "[1,1,4];[1,1,4];[1,1,4];[1,2,2,2] q_num_heads=2 kv_num_heads=2 update_rule=linear",
        ],
        ..ROW
    },
    // output = activation(depthwise convolution of past_state followed by input); present_state = its last k - 1 positions
    OpDef {
        name: "CausalConvWithState",
        since: 27,
        inputs: &[req("input", "T"), req("weight", "T"), opt("bias", "T"), opt("past_state", "T")],
        outputs: &[req("output", "T"), req("present_state", "T")],
        attrs: &[attr("activation", AttrKind::Str("none"))],
        dtypes: &[("T", TYPES)],
        infer: infer_causal_conv,
        reference: Some(|c| {
            let swish = swish(c.attrs).unwrap_or(false);
            Ok(causal_conv(c.input(0)?, c.input(1)?, c.opt(2), c.opt(3), 1, swish)?.into())
        }),
        lower: &[Candidate::Expand(expand_causal_conv)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,5];[3,1,4];[3];[2,3,3] activation=silu",
            "[1,2,2];[2,1,4] activation=swish",
            "[2,3,4];[3,1,1];[3]",
            "[1,1,1];[1,1,2];_;[1,1,1]",
        ],
        ..ROW
    },
    // y[b, c, n] = Σ w[c, 0, k] · x[b, c, n + dilation · k] + bias[c]
    OpDef {
        name: "DepthwiseConv",
        domain: HIP_DOMAIN,
        inputs: &[req("x", "T"), req("w", "T"), opt("bias", "T")],
        outputs: &[req("y", "T")],
        attrs: &[attr("dilation", AttrKind::Int(1))],
        dtypes: &[("T", TYPES)],
        infer: |c| {
            let dtype = c.dtype(0)?;
            let (Some(x), Some(w)) = (c.shape(0), c.shape(1)) else {
                c.set_unranked(0, dtype);
                return Ok(());
            };
            let (one, step) = (c.dims.constant(1), c.dims.constant(dilation(c.attrs)));
            let gaps = c.dims.sub(w[2], one);
            let reach = c.dims.mul(gaps, step);
            let places = c.dims.sub(x[2], reach);
            let places = c.extent(places)?;
            c.set(0, dtype, [x[0], x[1], places]);
            Ok(())
        },
        reference: Some(|c| {
            let step = usize::try_from(dilation(c.attrs)).unwrap_or(1);
            Ok(vec![depthwise(c.input(0)?, c.input(1)?, c.opt(2), step)?])
        }),
        lower: &[Candidate::Loops(depthwise_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,6];[3,1,4];[3]", "[1,2,5];[2,1,1]", "[2,3,7];[3,1,3];[3] dilation=2"],
        ..ROW
    },
];

/// The step between the taps of a DepthwiseConv.
fn dilation(a: &Attrs) -> i64 {
    a.int(0).unwrap_or(1)
}

/// Heads of queries, and of keys and values.
pub(super) fn heads(a: &Attrs) -> (usize, usize) {
    let n = |slot| usize::try_from(a.int(slot).unwrap_or(0)).unwrap_or(0);
    (n(Q_HEADS), n(KV_HEADS))
}

pub(super) fn rule(a: &Attrs) -> Option<Rule> {
    Some(match a.str(UPDATE_RULE)? {
        "linear" => Rule { gated: false, delta: false },
        "gated" => Rule { gated: true, delta: false },
        "delta" => Rule { gated: false, delta: true },
        "gated_delta" => Rule { gated: true, delta: true },
        _ => return None,
    })
}

fn unknown_rule(c: &RefCtx) -> Diagnostic {
    let text = format!("LinearAttention: there is no update_rule {:?}", c.attrs.str(UPDATE_RULE));
    Diagnostic::new(ErrorKind::Unsupported, text)
}

fn infer_linear_attention(c: &mut InferCtx) -> Result<()> {
    let fail =
        |c: &InferCtx, what: std::string::String| Err(c.error(ErrorKind::Shape, format!("LinearAttention: {what}")));
    let (n_q, h) = heads(c.attrs);
    if h == 0 || n_q == 0 || n_q % h != 0 {
        return fail(c, format!("{n_q} query heads are no multiple of {h} heads of keys and values"));
    }
    let Some(rule) = rule(c.attrs) else {
        let text = format!("LinearAttention: there is no update_rule {:?}", c.attrs.str(UPDATE_RULE));
        return Err(c.error(ErrorKind::Unsupported, text));
    };
    for (i, name, wanted) in [(4, "decay", rule.gated), (5, "beta", rule.delta)] {
        if c.has(i) != wanted {
            let what = if wanted { "needs" } else { "does not take" };
            return fail(c, format!("update_rule {:?} {what} {name}", c.attrs.str(UPDATE_RULE).unwrap_or("")));
        }
    }
    let (dtype, state) = (c.dtype(0)?, c.dtype(if c.has(3) { 3 } else { 0 })?);
    let (Some(q), Some(k), Some(v)) = (c.shape(0), c.shape(1), c.shape(2)) else {
        c.set_unranked(0, dtype);
        c.set_unranked(1, state);
        return Ok(());
    };
    require_three_axes(c)?;
    let dims = &mut *c.dims;
    let (n_q, h) = (dims.constant(i64::try_from(n_q).unwrap_or(1)), dims.constant(i64::try_from(h).unwrap_or(1)));
    let (d_k, d_v) = (dims.floordiv(q[2], n_q), dims.floordiv(v[2], h));
    let whole = [(d_k, n_q, q[2]), (d_k, h, k[2]), (d_v, h, v[2])].map(|(d, n, all)| (dims.mul(d, n), all));
    let width = dims.mul(d_v, n_q);
    for (a, b) in whole {
        c.require_eq(a, b, "heads divide the last axes, and queries and keys have one width")?;
    }
    require_beside(c, [&q, &k, &v], [h, d_k, d_v])?;
    c.set(0, dtype, [q[0], q[1], width]);
    c.set(1, state, [q[0], h, d_k, d_v]);
    Ok(())
}

/// Requires queries, keys, values, decay and beta to have the axes `[b, t, heads · d]`.
///
/// # Errors
/// `Shape` with the first that has not.
pub(super) fn require_three_axes(c: &InferCtx) -> Result<()> {
    for i in [0, 1, 2, 4, 5] {
        if let Some(s) = c.shape(i).filter(|s| s.len() != 3) {
            let text = format!("LinearAttention: {} has {} axes, not 3", c.def.inputs[i].name, s.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
    }
    Ok(())
}

/// What every form demands of operands beside queries, keys and values: one batch and as many steps, a decay per head or element of
/// the keys, a beta per head or for all, and a past state `[b, h, d_k, d_v]`, where there are `h` heads of states.
///
/// # Errors
/// `Shape` where one never meets it.
pub(super) fn require_beside(c: &mut InferCtx, [q, k, v]: [&Shape; 3], [h, d_k, d_v]: [DimId; 3]) -> Result<()> {
    for s in [k, v] {
        c.require_eq(q[0], s[0], "operands have one batch")?;
        c.require_eq(q[1], s[1], "operands have as many steps")?;
    }
    if let Some(g) = c.shape(4).filter(|g| g[2] != h) {
        let per_key = c.dims.mul(h, d_k);
        c.require_eq(g[2], per_key, "the decay is per head or per element of the keys")?;
    }
    if let Some(b) = c.shape(5).filter(|b| c.dims.as_const(b[2]) != Some(1)) {
        c.require_eq(b[2], h, "beta is per head")?;
    }
    if let Some(s) = c.shape(3) {
        if s.len() != 4 {
            let text = format!("LinearAttention: past_state has {} axes, not 4", s.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
        let past = [q[0], h, d_k, d_v];
        s.iter().zip(past).try_for_each(|(&a, b)| c.require_eq(a, b, "past_state is a state of each head"))?;
    }
    Ok(())
}

fn int(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(0)
}

fn expand_linear_attention(x: &mut Expansion) -> Result<Vec<Value>> {
    let (n_q, h) = heads(x.attrs());
    let scale = x.attrs().float(SCALE).filter(|&s| s != 0.0);
    let (q, k, v) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let (past, decay, beta) = (x.input(3), x.input(4), x.input(5));
    let (dtype, q_shape) = x.tensor(q)?;
    let state_type = past.map_or(Ok(dtype), |p| x.tensor(p).map(|t| t.0))?;
    let steps = x.extent(q, 1);
    // [b, t, heads · d] as [t, b, heads…, d], in f32.
    let by_step = |x: &mut Expansion, v: Value, heads: &[i64]| {
        let v = x.cast(v, F32);
        let mut split = vec![x.extent(v, 0), x.extent(v, 1)];
        split.extend(heads.iter().map(|&n| x.ints(&[n])));
        let (all, n) = (x.extent(v, 2), x.ints(&[heads.iter().product()]));
        split.push(x.op("Div", &[all, n], &[]));
        let v = x.reshape_to(v, &split);
        let perm: Vec<i64> = [1, 0].into_iter().chain(2..int(split.len())).collect();
        x.transpose(v, &perm)
    };
    let n_share = int(n_q / h.max(1));
    let width = x.as_const(q_shape[2]).map(|n| n / int(n_q).max(1));
    let q = by_step(x, q, &[int(h), n_share]);
    let k = by_step(x, k, &[int(h)]);
    let v = by_step(x, v, &[int(h)]);
    let mut captured = vec![q, k, v];
    if let Some(g) = decay {
        captured.push(by_step(x, g, &[int(h)]));
    }
    if let Some(b) = beta {
        // One rate for all heads, or one for each.
        let b = x.cast(b, F32);
        captured.push(x.transpose(b, &[1, 0, 2]));
    }
    let state = match past {
        Some(p) => x.cast(p, F32),
        None => {
            let (b, dk, dv) = (x.extent(k, 1), x.extent(k, 3), x.extent(v, 3));
            let heads = x.ints(&[int(h)]);
            let shape = x.concat(&[b, heads, dk, dv], 0);
            let zero = x.scalar(F32, 0.0);
            x.op("Expand", &[zero, shape], &[])
        }
    };
    let scale = match (scale, width) {
        (Some(s), _) => x.scalar(F32, s.into()),
        (None, Some(d)) => x.scalar(F32, 1.0 / (d as f64).sqrt()),
        (None, None) => {
            let d = x.extent(k, 3);
            let d = x.cast(d, F32);
            let root = x.op("Sqrt", &[d], &[]);
            x.op("Reciprocal", &[root], &[])
        }
    };
    captured.push(scale);
    let trips = x.squeeze(steps, &[0]);
    let (gated, delta) = (decay.is_some(), beta.is_some());
    let results = x.repeat(trips, &[state], &captured, |x, i, state, all| {
        let at = |x: &mut Expansion, v: Value| x.op("Gather", &[v, i], &[]);
        let mut rest = all.iter().copied();
        let mut next =
            || rest.next().ok_or_else(|| Diagnostic::new(ErrorKind::Internal, "an operand of a step is missing"));
        let (q, k, v) = (next()?, next()?, next()?);
        let (q, k, v) = (at(x, q), at(x, k), at(x, v));
        let mut state = state[0];
        if gated {
            let g = next()?;
            let g = at(x, g);
            let factor = x.op("Exp", &[g], &[]);
            let factor = x.unsqueeze(factor, &[3]);
            state = x.op("Mul", &[state, factor], &[]);
        }
        let mut value = x.unsqueeze(v, &[2]);
        if delta {
            let key = x.unsqueeze(k, &[2]);
            let known = x.op("MatMul", &[key, state], &[]);
            value = x.op("Sub", &[value, known], &[]);
            let rate = next()?;
            let rate = at(x, rate);
            let rate = x.unsqueeze(rate, &[2, 3]);
            value = x.op("Mul", &[value, rate], &[]);
        }
        let key = x.unsqueeze(k, &[3]);
        let new = x.op("Mul", &[key, value], &[]);
        state = x.op("Add", &[state, new], &[]);
        let y = x.op("MatMul", &[q, state], &[]);
        let scale = next()?;
        Ok((vec![state], vec![x.op("Mul", &[y, scale], &[])]))
    })?;
    // [t, b, h, share, d_v] as [b, t, heads · d_v].
    let y = x.transpose(results[1], &[1, 0, 2, 3, 4]);
    let widths = [2, 3, 4].map(|a| x.extent(y, a));
    let width = x.op("Mul", &widths[..2], &[]);
    let width = x.op("Mul", &[width, widths[2]], &[]);
    let (b, t) = (x.extent(y, 0), x.extent(y, 1));
    let y = x.reshape_to(y, &[b, t, width]);
    Ok(vec![x.cast(y, dtype), x.cast(results[0], state_type)])
}

/// Whether the result goes through `x · sigmoid(x)`; `None` for an activation that does not exist.
fn swish(a: &Attrs) -> Option<bool> {
    match a.str(0)? {
        "none" => Some(false),
        "silu" | "swish" => Some(true),
        _ => None,
    }
}

fn depthwise_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (w, biased) = (c.need(1)?, c.has(2));
    let mut b = Builder::over_result(c)?;
    b.nest.inner = vec![w.shape[2]];
    let (image, channel, tap, first) = (b.along(outer(0)), b.along(outer(1)), b.along(inner(0)), b.fixed_at(0));
    let (zero, step) = (b.c.dims.constant(0), b.c.dims.constant(dilation(b.c.attrs)));
    let mut place = b.along(outer(2));
    place.terms.extend(b.affine(zero, step, inner(0)).terms);
    let x = b.load(0, [image, channel.clone(), place])?;
    let k = b.load(1, [channel.clone(), first, tap])?;
    let product = b.bin(BinOp::Mul, x, k);
    let mut y = b.reduce([(Combiner::Sum, product)])[0];
    if biased {
        let bias = b.load(2, [channel])?;
        y = b.bin(BinOp::Add, y, bias);
    }
    Ok(b.store(y))
}

fn infer_causal_conv(c: &mut InferCtx) -> Result<()> {
    if swish(c.attrs).is_none() {
        let text = format!("CausalConvWithState: there is no activation {:?}", c.attrs.str(0).unwrap_or(""));
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let dtype = c.dtype(0)?;
    let (Some(x), Some(w)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        c.set_unranked(1, dtype);
        return Ok(());
    };
    let past = c.shape(3);
    if x.len() != 3 || w.len() != 3 || past.as_ref().is_some_and(|p| p.len() != 3) {
        return Err(c.error(ErrorKind::Shape, "CausalConvWithState: input, weight and state have 3 axes"));
    }
    let one = c.dims.constant(1);
    c.require_eq(w[0], x[1], "a kernel for each channel")?;
    c.require_eq(w[1], one, "a kernel has one channel")?;
    if let Some(&[n]) = c.shape(2).as_deref() {
        c.require_eq(n, x[1], "a bias for each channel")?;
    }
    let before = c.dims.sub(w[2], one);
    let state = [x[0], x[1], before];
    if let Some(p) = past {
        p.iter().zip(state).try_for_each(|(&a, b)| c.require_eq(a, b, "the state is what a kernel looks back at"))?;
    }
    c.set(0, dtype, x);
    c.set(1, dtype, state);
    Ok(())
}

fn expand_causal_conv(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, w) = (x.need(0)?, x.need(1)?);
    let (dtype, _) = x.tensor(data)?;
    let before = match x.input(3) {
        Some(p) => p,
        None => {
            let (b, c, k, one) = (x.extent(data, 0), x.extent(data, 1), x.extent(w, 2), x.ints(&[1]));
            let n = x.op("Sub", &[k, one], &[]);
            let shape = x.concat(&[b, c, n], 0);
            let zero = x.scalar(dtype, 0.0);
            x.op("Expand", &[zero, shape], &[])
        }
    };
    let all = x.concat(&[before, data], 2);
    let y = x.own("DepthwiseConv", &[Some(all), Some(w), x.input(2)], &[]);
    let y = if swish(x.attrs()) == Some(true) { x.op("Swish", &[y], &[]) } else { y };
    let (from, axis, end) = (x.extent(data, 2), x.ints(&[2]), x.ints(&[i64::MAX]));
    let last = x.op("Slice", &[all, from, end, axis], &[]);
    Ok(vec![y, last])
}
