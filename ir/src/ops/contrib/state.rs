//! Attention as a recurrence over a state, with what exporters fuse around it.

use super::super::linear_attention::{heads, require_beside, require_three_axes, rule};
use super::super::row::ROW;
use super::{MICROSOFT, rounded, wide};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::activation as a;
use reference::data::{f64s, from_f64s};
use reference::linear_attention::{Extra, causal_conv, linear_attention};
use reference::movement::transpose;
use reference::{elementwise as e, math};
use tensor::DType::{BF16, F16, F32, F64};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

const TYPES: &[DType] = &[F32, F16, BF16];
const SCALE: usize = 3;
const RULE: usize = 4;
const WINDOW: usize = 5;

fn int(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(0)
}

fn infer_attention(c: &mut InferCtx) -> Result<()> {
    let fail = |c: &InferCtx, kind, what: std::string::String| Err(c.error(kind, format!("LinearAttention: {what}")));
    let (n_q, h) = heads(c.attrs);
    if h == 0 || n_q == 0 || (n_q % h != 0 && h % n_q != 0) {
        let text = format!("of {n_q} query heads and {h} heads of keys and values neither is a multiple of the other");
        return fail(c, ErrorKind::Shape, text);
    }
    let Some(rule) = rule(c.attrs) else {
        let text = format!("there is no update_rule {:?}", c.attrs.str(RULE).unwrap_or(""));
        return fail(c, ErrorKind::Unsupported, text);
    };
    if let Some(n) = c.attrs.int(WINDOW).filter(|&n| n != 0) {
        return fail(
            c,
            ErrorKind::Unsupported,
            format!("state_window={n}: only the last state is kept, state_window=0"),
        );
    }
    for (i, name, wanted) in [(4, "decay", rule.gated), (5, "beta", rule.delta)] {
        if wanted && !c.has(i) {
            let text = format!("update_rule {:?} needs {name}", c.attrs.str(RULE).unwrap_or(""));
            return fail(c, ErrorKind::Shape, text);
        }
    }
    let (dtype, state) = (c.dtype(0)?, c.dtype(if c.has(3) { 3 } else { 0 })?);
    let (Some(q), Some(k), Some(v)) = (c.shape(0), c.shape(1), c.shape(2)) else {
        c.set_unranked(0, dtype);
        c.set_unranked(1, state);
        return Ok(());
    };
    require_three_axes(c)?;
    let p = &mut *c.dims;
    let (one, n_q, h) = (p.constant(1), p.constant(int(n_q)), p.constant(int(h)));
    let (d_k, d_v) = (p.floordiv(q[2], n_q), p.floordiv(v[2], h));
    // Heads of keys may be fewer than those of values, and are shared.
    let some = p.max(d_k, one);
    let n_k = p.floordiv(k[2], some);
    let whole = [(p.mul(d_k, n_q), q[2]), (p.mul(d_v, h), v[2]), (p.mul(d_k, n_k), k[2])];
    let some = p.max(n_k, one);
    let (rest, zero) = (p.modulo(h, some), p.constant(0));
    let n_out = p.max(n_q, h);
    let width = p.mul(d_v, n_out);
    for (a, b) in whole.into_iter().chain([(rest, zero)]) {
        c.require_eq(a, b, "heads divide the last axes")?;
    }
    require_beside(c, [&q, &k, &v], [h, d_k, d_v])?;
    c.set(0, dtype, [q[0], q[1], width]);
    c.set(1, state, [q[0], h, d_k, d_v]);
    Ok(())
}

/// Heads `[b, t, n · d]`, each as often in turn as `wanted / n` says, all numbers lists of one integer.
fn repeated(x: &mut Expansion, v: Value, n: Value, wanted: Value) -> Value {
    let (b, t, all) = (x.extent(v, 0), x.extent(v, 1), x.extent(v, 2));
    let (d, times, one) = (x.op("Div", &[all, n], &[]), x.op("Div", &[wanted, n], &[]), x.ints(&[1]));
    let v = x.reshape_to(v, &[b, t, n, one, d]);
    let to = x.concat(&[b, t, n, times, d], 0);
    let v = x.op("Expand", &[v, to], &[]);
    let width = x.op("Mul", &[wanted, d], &[]);
    x.reshape_to(v, &[b, t, width])
}

/// The operator of ai.onnx, with as many heads of queries and keys as of states where they are fewer.
fn expand_attention(x: &mut Expansion) -> Result<Vec<Value>> {
    let (n_q, h) = heads(x.attrs());
    let rule = rule(x.attrs()).ok_or_else(|| Diagnostic::new(ErrorKind::Internal, "update_rule is not known"))?;
    let (mut q, mut k, v) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let (of_q, of_k) = (x.tensor(q)?.1[2], x.tensor(k)?.1[2]);
    let (of_heads, of_queries) = (x.ints(&[int(h)]), x.ints(&[int(n_q)]));
    // Whether there is a head of keys for each state, in numbers that are known or not.
    let each = match (x.as_const(of_q), x.as_const(of_k)) {
        (Some(wide), Some(keys)) => wide / int(n_q) * int(h) == keys,
        _ => n_q == h && x.same(of_q, of_k),
    };
    if !each {
        let all = x.extent(q, 2);
        let d = x.op("Div", &[all, of_queries], &[]);
        let keys = x.extent(k, 2);
        let n = x.op("Div", &[keys, d], &[]);
        k = repeated(x, k, n, of_heads);
    }
    if n_q < h {
        q = repeated(x, q, of_queries, of_heads);
    }
    let attrs = [
        ("kv_num_heads", Attr::Int(int(h))),
        ("q_num_heads", Attr::Int(int(n_q.max(h)))),
        ("scale", x.attrs().get(SCALE).clone()),
        ("update_rule", x.attrs().get(RULE).clone()),
    ];
    let decay = if rule.gated { Some(x.need(4)?) } else { None };
    let beta = if rule.delta { Some(x.need(5)?) } else { None };
    let ins = [Some(q), Some(k), Some(v), x.input(3), decay, beta];
    Ok(x.op_opt("LinearAttention", &ins, &attrs, 2).to_vec())
}

/// The same of a tensor `[b, t, n · d]`.
fn repeated_ref(t: &Tensor, n: usize, times: usize) -> Tensor {
    let (v, s) = (f64s(t), t.shape());
    let d = (s[2] / n.max(1)).max(1);
    let y: Vec<f64> = v.chunks(d).flat_map(|head| head.repeat(times)).collect();
    from_f64s(t.dtype(), &[s[0], s[1], s[2] * times], &y)
}

fn attention_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (n_q, h) = heads(c.attrs);
    let rule = rule(c.attrs).ok_or_else(|| Diagnostic::new(ErrorKind::Unsupported, "update_rule is not known"))?;
    let (q, k) = (c.input(0)?, c.input(1)?);
    let d_k = q.shape()[2] / n_q;
    let n_k = k.shape()[2].checked_div(d_k).unwrap_or(h);
    if n_k == 0 || n_k * d_k != k.shape()[2] || h % n_k != 0 {
        let text = format!("LinearAttention: keys {:?} for {h} heads of {d_k}", k.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let (q, k) = (repeated_ref(q, n_q, (h / n_q).max(1)), repeated_ref(k, n_k, h / n_k));
    let scale = c.attrs.float(SCALE).filter(|&s| s != 0.0).map(f64::from);
    let extra =
        Extra { state: c.opt(3), decay: c.opt(4).filter(|_| rule.gated), beta: c.opt(5).filter(|_| rule.delta) };
    Ok(linear_attention([&q, &k, c.input(2)?], extra, (n_q.max(h), h), rule, scale)?.into())
}

const NDIM: usize = 3;
const LAST: usize = 1;
const DILATION: usize = 2;

/// Whether the result goes through `x · sigmoid(x)`; `None` for an activation that does not exist.
fn swish(attrs: &Attrs) -> Option<bool> {
    match attrs.str(0)? {
        "none" | "" => Some(false),
        "silu" | "swish" => Some(true),
        _ => None,
    }
}

fn dilation(attrs: &Attrs) -> i64 {
    attrs.int(DILATION).unwrap_or(1)
}

fn infer_conv(c: &mut InferCtx) -> Result<()> {
    let fail =
        |c: &InferCtx, kind, what: std::string::String| Err(c.error(kind, format!("CausalConvWithState: {what}")));
    if swish(c.attrs).is_none() {
        let text = format!("activation {:?} is none of none, silu, swish", c.attrs.str(0).unwrap_or(""));
        return fail(c, ErrorKind::Unsupported, text);
    }
    let fixed = c.def.attrs.iter().enumerate().skip(NDIM);
    for (slot, def) in fixed {
        let AttrKind::Int(usual) = def.kind else { continue };
        if let Some(n) = c.attrs.int(slot).filter(|&n| n != usual) {
            let text = format!("{}={n} is not supported, only {usual}", def.name);
            return fail(c, ErrorKind::Unsupported, text);
        }
    }
    if c.n_outs > 2 {
        let text = format!("{} is not supported: leave it out", c.def.outputs[2].name);
        return fail(c, ErrorKind::Unsupported, text);
    }
    if !(1..1 << 31).contains(&dilation(c.attrs)) {
        return fail(c, ErrorKind::Shape, format!("dilation={} is not positive", dilation(c.attrs)));
    }
    let last = c.attrs.int(LAST) == Some(1);
    let dtype = c.dtype(0)?;
    let (Some(x), Some(w)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        c.set_unranked(1, dtype);
        return Ok(());
    };
    if x.len() < 3 || (!last && x.len() != 3) || w.len() != 3 {
        return fail(c, ErrorKind::Shape, format!("input has {} axes and the weight {}, not 3", x.len(), w.len()));
    }
    let (one, step) = (c.dims.constant(1), c.dims.constant(dilation(c.attrs)));
    let channels = if last { c.dims.product(x[2..].iter().copied()) } else { x[1] };
    c.require_eq(w[0], channels, "a kernel for each channel")?;
    c.require_eq(w[1], one, "a kernel has one channel")?;
    match c.shape(2).as_deref() {
        Some(&[n]) => c.require_eq(n, channels, "a bias for each channel")?,
        Some(b) => return fail(c, ErrorKind::Shape, format!("the bias has {} axes, not 1", b.len())),
        None => {}
    }
    let gaps = c.dims.sub(w[2], one);
    let before = c.dims.mul(gaps, step);
    let mut state = x.clone();
    state[if last { 1 } else { 2 }] = before;
    if let Some(p) = c.shape(3) {
        if p.len() != state.len() {
            return fail(c, ErrorKind::Shape, format!("past_state has {} axes, not {}", p.len(), state.len()));
        }
        let what = "the state is what a kernel looks back at";
        p.iter().zip(&state).try_for_each(|(&a, &b)| c.require_eq(a, b, what))?;
    }
    c.set(0, dtype, x);
    c.set(1, dtype, state);
    Ok(())
}

/// `[b, t, c…]` as `[b, c, t]`.
fn channels_second(x: &mut Expansion, v: Value, s: &Shape, channels: Value) -> Value {
    let (b, t) = (x.extent(v, 0), x.extent(v, 1));
    let v = if s.len() == 3 { v } else { x.reshape_to(v, &[b, t, channels]) };
    x.transpose(v, &[0, 2, 1])
}

fn expand_conv(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, w) = (x.need(0)?, x.need(1)?);
    let (dtype, s) = x.tensor(data)?;
    let (last, step) = (x.attrs().int(LAST) == Some(1), dilation(x.attrs()));
    let channels = x.extent(w, 0);
    let input = if last { channels_second(x, data, &s, channels) } else { data };
    let before = match x.input(3) {
        Some(p) if last => channels_second(x, p, &s, channels),
        Some(p) => p,
        None => {
            let (b, k, one, step) = (x.extent(data, 0), x.extent(w, 2), x.ints(&[1]), x.ints(&[step]));
            let n = x.op("Sub", &[k, one], &[]);
            let n = x.op("Mul", &[n, step], &[]);
            let shape = x.concat(&[b, channels, n], 0);
            let zero = x.scalar(dtype, 0.0);
            x.op("Expand", &[zero, shape], &[])
        }
    };
    let all = x.concat(&[before, input], 2);
    let y = x.own("DepthwiseConv", &[Some(all), Some(w), x.input(2)], &[("dilation", Attr::Int(step))]);
    let y = if swish(x.attrs()) == Some(true) { x.op("Swish", &[y], &[]) } else { y };
    let (from, axis, end) = (x.extent(input, 2), x.ints(&[2]), x.ints(&[i64::MAX]));
    let state = x.op("Slice", &[all, from, end, axis], &[]);
    if !last {
        return Ok(vec![y, state]);
    }
    let mut back = |v: Value| {
        let v = x.transpose(v, &[0, 2, 1]);
        if s.len() == 3 {
            return v;
        }
        let mut extents = vec![x.extent(v, 0), x.extent(v, 1)];
        extents.extend((2..s.len()).map(|a| x.extent(data, int(a))));
        x.reshape_to(v, &extents)
    };
    Ok(vec![back(y), back(state)])
}

fn conv_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let step = usize::try_from(dilation(c.attrs)).unwrap_or(1);
    let swish = swish(c.attrs).unwrap_or(false);
    if c.attrs.int(LAST) != Some(1) {
        return Ok(causal_conv(x, w, c.opt(2), c.opt(3), step, swish)?.into());
    }
    let turned = |t: &Tensor| {
        let s = t.shape();
        transpose(&t.reshaped(&[s[0], s[1], s[2..].iter().product()]), &[0, 2, 1])
    };
    let state = c.opt(3).map(turned).transpose()?;
    let results = causal_conv(&turned(x)?, w, c.opt(2), state.as_ref(), step, swish)?;
    results
        .into_iter()
        .map(|t| {
            let t = transpose(&t, &[0, 2, 1])?;
            let shape = [&t.shape()[..2], &x.shape()[2..]].concat();
            Ok(t.reshaped(&shape))
        })
        .collect()
}

fn infer_gate(c: &mut InferCtx) -> Result<()> {
    if c.n_outs > 1 && !c.has(3) {
        return Err(c.error(ErrorKind::Shape, "LinearAttentionGate: beta is a result, and b is missing"));
    }
    c.set_type(0, c.ty(0).clone());
    c.set_type(1, c.ty(if c.has(3) { 3 } else { 0 }).clone());
    let Some(&n) = c.shape(0).as_ref().and_then(|s| s.last()) else { return Ok(()) };
    for i in [1, 2] {
        match c.shape(i).as_deref() {
            Some(&[d]) => c.require_eq(d, n, &format!("{} has an element for each head", c.def.inputs[i].name))?,
            Some(s) => {
                let text = format!("LinearAttentionGate: {} has {} axes, not 1", c.def.inputs[i].name, s.len());
                return Err(c.error(ErrorKind::Shape, text));
            }
            None => {}
        }
    }
    Ok(())
}

fn gate_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let [raw, bias, scale] = [rounded(x, F64), rounded(c.input(1)?, F64), rounded(c.input(2)?, F64)];
    let decay = e::mul(&a::softplus(&e::add(&raw, &bias)?), &scale)?;
    let beta = c.opt(3).map(|b| e::map_f64(b, math::sigmoid));
    Ok(std::iter::once(rounded(&decay, x.dtype())).chain(beta).collect())
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // As LinearAttention of ai.onnx; heads of queries and of keys may be fewer than states
    OpDef {
        name: "LinearAttention",
        domain: MICROSOFT,
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
            attr("state_window", AttrKind::Int(0)),
        ],
        dtypes: &[("T", TYPES), ("S", TYPES)],
        infer: infer_attention,
        reference: Some(attention_ref),
        lower: &[Expand(expand_attention)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,8];[2,3,2];[2,3,3];[2,1,2,3];[2,3,1];[2,3,1] q_num_heads=4 kv_num_heads=1",
            "[1,4,6];[1,4,6];[1,4,4];_;[1,4,6] q_num_heads=2 kv_num_heads=2 update_rule=gated",
            "[2,2,6];[2,2,3];[2,2,5];_;_;[2,2,1] q_num_heads=2 kv_num_heads=1 update_rule=delta scale=0.5",
            "[1,1,4];[1,1,4];[1,1,4];[1,2,2,2];[1,1,4] q_num_heads=2 kv_num_heads=2 update_rule=linear",
            "[2,3,4];[2,3,4];[2,3,12];[2,4,2,3];[2,3,8];[2,3,4] q_num_heads=2 kv_num_heads=4",
            "[1,2,3];[1,2,6];[1,2,8];_;[1,2,12] q_num_heads=1 kv_num_heads=4 update_rule=gated",
        ],
        ..ROW
    },
    // As CausalConvWithState of ai.onnx, with taps that lie apart, and of channels first or last
    OpDef {
        name: "CausalConvWithState",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("weight", "T"), opt("bias", "T"), opt("past_state", "T")],
        outputs: &[req("output", "T"), req("present_state", "T"), opt("state_update", "T")],
        attrs: &[
            attr("activation", AttrKind::Str("none")),
            attr("channels_last", AttrKind::Int(0)),
            attr("dilation", AttrKind::Int(1)),
            // Only these values, from here on.
            attr("ndim", AttrKind::Int(1)),
            attr("state_window", AttrKind::Int(0)),
            attr("state_length", AttrKind::Int(0)),
            attr("state_channels_last", AttrKind::Int(-1)),
            attr("state_update_capacity", AttrKind::Int(0)),
            attr("input_channels", AttrKind::Int(0)),
            attr("input_channel_offset", AttrKind::Int(0)),
        ],
        dtypes: &[("T", TYPES)],
        infer: infer_conv,
        reference: Some(conv_ref),
        lower: &[Expand(expand_conv)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,5];[3,1,4];[3];[2,3,3] activation=silu",
            "[1,2,2];[2,1,4] activation=swish",
            "[2,3,4];[3,1,3];[3] dilation=2",
            "[1,1,1];[1,1,2];_;[1,1,3] dilation=3",
            "[2,5,3];[3,1,4];[3];[2,3,3] channels_last=1",
            "[2,5,3,2];[6,1,3];[6];[2,4,3,2] channels_last=1 dilation=2 activation=silu",
            "[2,5,2,3];[6,1,2] channels_last=1",
        ],
        ..ROW
    },
    // decay = decay_scale · ln(1 + exp(a + dt_bias)); beta = sigmoid(b)
    OpDef {
        name: "LinearAttentionGate",
        domain: MICROSOFT,
        inputs: &[req("a", "T"), req("dt_bias", "TF"), req("decay_scale", "TF"), opt("b", "T")],
        outputs: &[req("decay", "T"), opt("beta", "T")],
        dtypes: &[("T", TYPES), ("TF", &[F32])],
        infer: infer_gate,
        reference: Some(gate_ref),
        lower: &[Expand(|x| {
            let (raw, bias, scale) = (x.need(0)?, x.need(1)?, x.need(2)?);
            let dtype = x.tensor(raw)?.0;
            let v = x.cast(raw, F32);
            let v = x.op("Add", &[v, bias], &[]);
            let v = x.op("Softplus", &[v], &[]);
            let v = x.op("Mul", &[v, scale], &[]);
            let mut results = vec![x.cast(v, dtype)];
            if let Some(b) = x.input(3) {
                let b = x.cast(b, wide(dtype));
                let b = x.op("Sigmoid", &[b], &[]);
                results.push(x.cast(b, dtype));
            }
            Ok(results)
        })],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,4];[4];[4];[2,3,4] outs=2",
            "[1,5,2];[2];[2]",
            "[1,5,2];[2];[2];[1,5,2]",
            "[0,5,2];[2];[2];[0,5,2] outs=2",
        ],
        ..ROW
    },
];
