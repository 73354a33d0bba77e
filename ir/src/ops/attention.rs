//! Attention as one operator: expanded to the operators that exporters write it in.

use super::broadcast::require_broadcasts_to;
use super::row::{BOOL, FLOATS, ROW};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::{Guard, Rel, Value};
use crate::lowering::Candidate;
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, Param, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::attention::{Attention, Operands, attention};
use tensor::dims::Proof;
use tensor::{DType, DType::*, DimId, ErrorKind, Result, Tensor};

/// The row's attributes as plain options; windows come with version 25.
struct Options {
    shown: i64,
    softcap: f64,
    precision: Option<DType>,
    kv_heads: Option<i64>,
    q_heads: Option<i64>,
    scale: Option<f64>,
    causal: bool,
    left: Option<i64>,
    right: Option<i64>,
}

impl Options {
    fn new(a: &Attrs) -> Options {
        let window = |i| a.int(i).filter(|&w| w >= 0);
        Options {
            shown: a.int(0).unwrap_or(0),
            softcap: a.float(1).unwrap_or(0.0).into(),
            precision: a.int(2).and_then(|t| DType::from_onnx(i32::try_from(t).ok()?)),
            kv_heads: a.int(3),
            q_heads: a.int(4),
            scale: a.float(5).map(f64::from),
            causal: a.int(6) == Some(1),
            left: window(7),
            right: window(8),
        }
    }
}

const MASK: usize = 3;
const PAST_KEY: usize = 4;
const PAST_VALUE: usize = 5;
const N_VALID: usize = 6;

/// Extents `[b, h, s, d]` of operand `i`; of rank 3 it is `[b, s, h·d]`.
fn heads(c: &mut InferCtx, i: usize, n: Option<i64>) -> Result<Option<Shape>> {
    let Some(s) = c.shape(i) else { return Ok(None) };
    let name = c.def.inputs[i].name;
    match (s.len(), n) {
        (4, _) => Ok(Some(s)),
        (3, Some(n)) if n > 0 => {
            let (n, zero) = (c.dims.constant(n), c.dims.constant(0));
            let rest = c.dims.modulo(s[2], n);
            c.require_eq(rest, zero, &format!("the heads divide the last axis of {name}"))?;
            let d = c.dims.floordiv(s[2], n);
            Ok(Some([s[0], n, s[1], d].into_iter().collect()))
        }
        (3, _) => {
            let text = "Attention of rank 3 needs q_num_heads and kv_num_heads, which are positive";
            Err(c.error(ErrorKind::Malformed, text))
        }
        (r, _) => Err(c.error(ErrorKind::Shape, format!("Attention: {name} has rank {r}, neither 3 nor 4"))),
    }
}

/// What attributes and operands rule out whatever the shapes are.
fn check_options(c: &InferCtx, o: &Options) -> Result<()> {
    let unsupported = |text: std::string::String| Err(c.error(ErrorKind::Unsupported, text));
    if !(0..=3).contains(&o.shown) {
        return unsupported(format!("Attention: qk_matmul_output_mode={} is none of 0, 1, 2, 3", o.shown));
    }
    if c.attrs.int(2).is_some() && !o.precision.is_some_and(|d| FLOATS.contains(&d)) {
        return unsupported(format!("Attention: softmax_precision={} is no float type", c.attrs.int(2).unwrap_or(0)));
    }
    if let Some(w) = [7, 8].into_iter().filter_map(|i| c.attrs.int(i)).find(|&w| w < -1) {
        return unsupported(format!("Attention: a window of {w} keys: it is -1 (none) or at least 0"));
    }
    if c.has(PAST_KEY) != c.has(PAST_VALUE) {
        return Err(c.error(ErrorKind::Malformed, "Attention needs past_key and past_value together"));
    }
    if c.has(N_VALID) && c.has(PAST_KEY) {
        return Err(c.error(ErrorKind::Malformed, "Attention takes nonpad_kv_seqlen or past keys, not both"));
    }
    Ok(())
}

fn infer_attention(c: &mut InferCtx) -> Result<()> {
    let o = Options::new(c.attrs);
    check_options(c, &o)?;
    let (t1, t2) = (c.dtype(0)?, c.dtype(2)?);
    let shapes = (heads(c, 0, o.q_heads)?, heads(c, 1, o.kv_heads)?, heads(c, 2, o.kv_heads)?);
    let (Some(q), Some(k), Some(v)) = shapes else {
        [t1, t1, t2, t1].into_iter().enumerate().for_each(|(i, d)| c.set_unranked(i, d));
        return Ok(());
    };
    if (1..3).any(|i| c.shape(i).map(|s| s.len()) != c.shape(0).map(|s| s.len())) {
        return Err(c.error(ErrorKind::Shape, "Attention: Q, K and V have one rank"));
    }
    c.require_eq(q[0], k[0], "Q and K have one batch")?;
    c.require_eq(q[0], v[0], "Q and V have one batch")?;
    c.require_eq(k[1], v[1], "K and V have as many heads")?;
    c.require_eq(k[2], v[2], "K and V have as many positions")?;
    c.require_eq(q[3], k[3], "heads of Q and K are of one size")?;
    let (zero, rest) = (c.dims.constant(0), c.dims.modulo(q[1], k[1]));
    c.require_eq(rest, zero, "the heads of K divide those of Q")?;
    let mut total = k[2];
    for (i, x) in [(PAST_KEY, &k), (PAST_VALUE, &v)] {
        let Some(p) = c.shape(i) else { continue };
        if p.len() != 4 {
            return Err(c.error(ErrorKind::Shape, format!("Attention: {} has rank 4", c.def.inputs[i].name)));
        }
        for axis in [0, 1, 3] {
            c.require_eq(p[axis], x[axis], &format!("{} continues along axis 2", c.def.inputs[i].name))?;
        }
        total = c.dims.add(p[2], k[2]);
    }
    if let Some(n) = c.shape(N_VALID) {
        let what = "nonpad_kv_seqlen has one element per sample";
        match *n.as_slice() {
            [n] => c.require_eq(n, q[0], what)?,
            _ => return Err(c.error(ErrorKind::Shape, format!("Attention: {what}"))),
        }
    }
    let scores: Shape = [q[0], q[1], q[2], total].into_iter().collect();
    check_mask(c, &scores)?;
    if c.shape(0).is_some_and(|s| s.len() == 3) {
        let hidden = c.dims.mul(q[1], v[3]);
        c.set(0, t1, [q[0], q[2], hidden]);
    } else {
        c.set(0, t1, [q[0], q[1], q[2], v[3]]);
    }
    c.set(1, t1, [k[0], k[1], total, k[3]]);
    c.set(2, t2, [v[0], v[1], total, v[3]]);
    c.set(3, t1, scores);
    Ok(())
}

/// A mask broadcasts to the scores; its last axis may end earlier.
fn check_mask(c: &mut InferCtx, scores: &Shape) -> Result<()> {
    let Some(mut mask) = c.shape(MASK) else { return Ok(()) };
    let total = scores[3];
    if let Some(last) = mask.last_mut() {
        let have = std::mem::replace(last, total);
        match c.dims.prove_le(have, total) {
            Proof::Yes => {}
            Proof::No => {
                let (have, total) = (c.dims.display(have).to_string(), c.dims.display(total).to_string());
                let text = format!("Attention: the mask is over {have} keys where there are {total}");
                return Err(c.error(ErrorKind::Shape, text));
            }
            Proof::Unknown => {
                let why = "Attention: the mask is over no more keys than there are".into();
                c.guards.push(Guard { lhs: have, rel: Rel::Le, rhs: total, why, node: c.path.into() });
            }
        }
    }
    require_broadcasts_to(c, &mask, scores, "the mask")
}

fn attention_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let o = Options::new(c.attrs);
    let how = Attention {
        heads: Some((o.q_heads.unwrap_or(0), o.kv_heads.unwrap_or(0)))
            .map(|(q, k)| (usize::try_from(q).unwrap_or(0), usize::try_from(k).unwrap_or(0))),
        scale: o.scale,
        causal: o.causal,
        softcap: o.softcap,
        left: o.left,
        right: o.right,
        shown: o.shown,
    };
    let past = c.opt(PAST_KEY).zip(c.opt(PAST_VALUE));
    let (q, k, v) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let x = Operands { q, k, v, mask: c.opt(MASK), past, n_valid: c.opt(N_VALID) };
    let mut all = Vec::from(attention(&x, &how)?);
    all.truncate(c.n_outs);
    Ok(all)
}

/// The operators of a node. Where no key counts for a query, its row of the result is 0: chosen, since the softmax of -∞ alone is NaN.
fn expand_attention(x: &mut Expansion) -> Result<Vec<Value>> {
    let o = Options::new(x.attrs());
    let (q, k, v) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let (dtype, q_shape) = x.tensor(q)?;
    let value_dtype = x.tensor(v)?.0;
    let q4 = split_heads(x, q, o.q_heads)?;
    let (k4, v4) = (split_heads(x, k, o.kv_heads)?, split_heads(x, v, o.kv_heads)?);
    let (key, value) = match (x.input(PAST_KEY), x.input(PAST_VALUE)) {
        (Some(pk), Some(pv)) => (x.concat(&[pk, k4], 2), x.concat(&[pv, v4], 2)),
        _ => (k4, v4),
    };
    let bias = bias(x, &o, dtype, q4, key)?;
    let (keys, mut values) = (repeat_heads(x, q4, key, &o)?, repeat_heads(x, q4, value, &o)?);
    if value_dtype != dtype {
        values = x.cast(values, dtype);
    }
    let raw = scores(x, &o, dtype, q4, keys)?;
    let capped = match o.softcap > 0.0 {
        true => {
            let cap = x.scalar(dtype, o.softcap);
            let y = x.op("Div", &[raw, cap], &[]);
            let y = x.op("Tanh", &[y], &[]);
            x.op("Mul", &[y, cap], &[])
        }
        false => raw,
    };
    let biased = bias.map_or(capped, |b| x.op("Add", &[capped, b], &[]));
    let precise = o.precision.filter(|&p| p != dtype);
    let z = precise.map_or(biased, |p| x.cast(biased, p));
    let z = x.op("Softmax", &[z], &[("axis", Attr::Int(-1))]);
    let soft = if precise.is_some() { x.cast(z, dtype) } else { z };
    let mut y = x.op("MatMul", &[soft, values], &[]);
    let mut shares = soft;
    // Without a mask every query sees a key.
    if let Some(bias) = bias.filter(|_| x.input(MASK).is_some() || x.input(N_VALID).is_some() || o.left.is_some()) {
        let last = x.ints(&[-1]);
        let most = x.op("ReduceMax", &[bias, last], &[]);
        let (low, zero) = (x.scalar(dtype, f64::NEG_INFINITY), x.scalar(dtype, 0.0));
        let none = x.op("Equal", &[most, low], &[]);
        y = x.op("Where", &[none, zero, y], &[]);
        shares = x.op("Where", &[none, zero, soft], &[]);
    }
    if q_shape.len() == 3 {
        y = x.transpose(y, &[0, 2, 1, 3]);
        let (b, s, h, d) = (x.extent(q4, 0), x.extent(q4, 2), x.extent(q4, 1), x.extent(value, 3));
        let hidden = x.op("Mul", &[h, d], &[]);
        y = x.reshape_to(y, &[b, s, hidden]);
    }
    Ok(vec![y, key, value, [raw, capped, biased, shares][usize::try_from(o.shown).unwrap_or(0).min(3)]])
}

/// `[b, s, h·d]` as `[b, h, s, d]`.
fn split_heads(x: &mut Expansion, v: Value, heads: Option<i64>) -> Result<Value> {
    let (_, shape) = x.tensor(v)?;
    let (3, Some(n)) = (shape.len(), heads) else { return Ok(v) };
    let (b, s, hidden, n) = (x.extent(v, 0), x.extent(v, 1), x.extent(v, 2), x.ints(&[n]));
    let d = x.op("Div", &[hidden, n], &[]);
    let y = x.reshape_to(v, &[b, s, n, d]);
    Ok(x.transpose(y, &[0, 2, 1, 3]))
}

/// The number of heads of operand `i`.
fn n_heads(x: &mut Expansion, i: usize, attribute: Option<i64>) -> Result<Option<DimId>> {
    let v = x.need(i)?;
    let (_, shape) = x.tensor(v)?;
    Ok(match (shape.len(), attribute) {
        (3, Some(n)) => Some(x.dim(n)),
        (4, _) => Some(shape[1]),
        _ => None,
    })
}

/// Each head of keys or values as often as there are heads of queries for it, one after the other.
fn repeat_heads(x: &mut Expansion, q: Value, v: Value, o: &Options) -> Result<Value> {
    let (of_q, of_k) = (n_heads(x, 0, o.q_heads)?, n_heads(x, 1, o.kv_heads)?);
    if of_q.zip(of_k).is_some_and(|(a, b)| x.same(a, b)) {
        return Ok(v);
    }
    let (hq, hk) = (x.extent(q, 1), x.extent(v, 1));
    let (b, t, d) = (x.extent(v, 0), x.extent(v, 2), x.extent(v, 3));
    let times = x.op("Div", &[hq, hk], &[]);
    let wide = x.concat(&[b, hk, times, t, d], 0);
    let y = x.unsqueeze(v, &[2]);
    let y = x.op("Expand", &[y, wide], &[]);
    Ok(x.reshape_to(y, &[b, hq, t, d]))
}

/// `scale · q·kᵀ`, half of the scale on each side: products of narrow floats overflow later.
fn scores(x: &mut Expansion, o: &Options, dtype: DType, q: Value, k: Value) -> Result<Value> {
    let operand = x.need(0)?;
    let (_, shape) = x.tensor(operand)?;
    let size = match (shape.len(), o.q_heads) {
        (3, Some(n)) => x.as_const(shape[2]).and_then(|hidden| hidden.checked_div(n)),
        _ => shape.last().and_then(|&d| x.as_const(d)),
    };
    let half = match (o.scale, size) {
        (Some(s), _) => x.scalar(dtype, s.abs().sqrt()),
        (None, Some(d)) => x.scalar(dtype, (d as f64).powf(-0.25)),
        (None, None) => {
            let d = x.extent(q, 3);
            let mut y = x.cast(d, if dtype == F64 { F64 } else { F32 });
            for op in ["Sqrt", "Sqrt", "Reciprocal"] {
                y = x.op(op, &[y], &[]);
            }
            x.cast(y, dtype)
        }
    };
    let mut q = x.op("Mul", &[q, half], &[]);
    if o.scale.is_some_and(|s| s < 0.0) {
        q = x.op("Neg", &[q], &[]);
    }
    let k = x.transpose(k, &[0, 1, 3, 2]);
    let k = x.op("Mul", &[k, half], &[]);
    Ok(x.op("MatMul", &[q, k], &[]))
}

/// What is added to the scores: the mask, and -∞ where a key does not count. Nothing where all count.
fn bias(x: &mut Expansion, o: &Options, dtype: DType, q: Value, key: Value) -> Result<Option<Value>> {
    let mut allowed = allowed(x, o, q, key)?;
    let mut added = None;
    if let Some(mask) = x.input(MASK) {
        let (of_mask, shape) = x.tensor(mask)?;
        let to = if of_mask == Bool { Bool } else { dtype };
        let m = if of_mask == to { mask } else { x.cast(mask, to) };
        let m = pad_mask(x, m, &shape, to, key)?;
        match to {
            Bool => allowed = and(x, allowed, m),
            _ => added = Some(m),
        }
    }
    let low = allowed.map(|allowed| {
        let (zero, low) = (x.scalar(dtype, 0.0), x.scalar(dtype, f64::NEG_INFINITY));
        x.op("Where", &[allowed, zero, low], &[])
    });
    Ok(match (added, low) {
        (Some(a), Some(b)) => Some(x.op("Add", &[a, b], &[])),
        (a, b) => a.or(b),
    })
}

fn and(x: &mut Expansion, a: Option<Value>, b: Value) -> Option<Value> {
    Some(a.map_or(b, |a| x.op("And", &[a, b], &[])))
}

/// The mask with as many keys as there are: those it does not reach do not count.
fn pad_mask(x: &mut Expansion, mask: Value, shape: &Shape, dtype: DType, key: Value) -> Result<Value> {
    let Some(&last) = shape.last() else { return Ok(mask) };
    if x.input(PAST_KEY).is_none() {
        let k = x.need(1)?;
        let (_, k) = x.tensor(k)?;
        if x.same(last, if k.len() == 3 { k[1] } else { k[2] }) {
            return Ok(mask);
        }
    }
    let (have, want) = (x.extent(mask, -1), x.extent(key, 2));
    let more = x.op("Sub", &[want, have], &[]);
    let none = x.ints(&vec![0; 2 * shape.len() - 1]);
    let pads = x.concat(&[none, more], 0);
    let fill = match dtype {
        Bool => x.constant(&Tensor::from_bool(&[], &[false])),
        d => x.scalar(d, f64::NEG_INFINITY),
    };
    Ok(x.op("Pad", &[mask, pads, fill], &[]))
}

/// Which keys count for which queries by their positions: `[s, t]` or `[b, 1, s, t]`. Nothing where all do.
fn allowed(x: &mut Expansion, o: &Options, q: Value, key: Value) -> Result<Option<Value>> {
    let n_keys = x.extent(key, 2);
    let n_valid = x.input(N_VALID).map(|n| x.unsqueeze(n, &[1, 2, 3]));
    if !o.causal && o.left.is_none() && o.right.is_none() && n_valid.is_none() {
        return Ok(None);
    }
    let j = x.count_to(n_keys);
    let mut all = n_valid.map(|n| x.op("Less", &[j, n], &[]));
    if !o.causal && o.left.is_none() && o.right.is_none() {
        return Ok(all);
    }
    let n_queries = x.extent(q, 2);
    let i = x.count_to(n_queries);
    let i = x.unsqueeze(i, &[1]);
    let offset = match (x.input(PAST_KEY), n_valid) {
        (Some(p), _) => Some(x.extent(p, 2)),
        (None, Some(n)) => Some(x.op("Sub", &[n, n_queries], &[])),
        _ => None,
    };
    let i = offset.map_or(i, |o| x.op("Add", &[i, o], &[]));
    let shifted = |x: &mut Expansion, v: Value, by: i64| {
        let by = x.ints(&[by]);
        x.op("Add", &[v, by], &[])
    };
    if o.causal {
        let c = x.op("LessOrEqual", &[j, i], &[]);
        all = and(x, all, c);
    }
    if let Some(w) = o.left {
        let last = shifted(x, j, w);
        let c = x.op("GreaterOrEqual", &[last, i], &[]);
        all = and(x, all, c);
    }
    if let Some(w) = o.right {
        let last = shifted(x, i, w);
        let c = x.op("LessOrEqual", &[j, last], &[]);
        all = and(x, all, c);
    }
    Ok(all)
}

const MASKS: &[DType] = &[F32, Bool, F16, BF16, F64, I8, I16, I32, I64, U8, U16, U32, U64];

const INPUTS: &[Param] = &[
    req("Q", "T1"),
    req("K", "T1"),
    req("V", "T2"),
    opt("attn_mask", "U"),
    opt("past_key", "T1"),
    opt("past_value", "T2"),
    opt("nonpad_kv_seqlen", "I"),
];
const ATTRS: &[AttrDef] = &[
    attr("qk_matmul_output_mode", AttrKind::Int(0)),
    attr("softcap", AttrKind::Float(0.0)),
    attr("softmax_precision", AttrKind::IntOpt),
    attr("kv_num_heads", AttrKind::IntOpt),
    attr("q_num_heads", AttrKind::IntOpt),
    attr("scale", AttrKind::FloatOpt),
    attr("is_causal", AttrKind::Int(0)),
    attr("left_window_size", AttrKind::Int(-1)),
    attr("right_window_size", AttrKind::Int(-1)),
];
const CASES_23: &[&str] = &[
    "[2,3,4,8];[2,3,6,8];[2,3,6,5]",
    "[2,4,8];[2,6,8];[2,6,10] q_num_heads=2 kv_num_heads=2 is_causal=1 softcap=2",
    "[2,6,4,8];[2,3,6,8];[2,3,6,5];[4,6] scale=0.5 outs=4",
    "[2,4,12];[2,5,6];[2,5,4];_;[2,2,3,3];[2,2,3,2] q_num_heads=4 kv_num_heads=2 is_causal=1 outs=4 qk_matmul_output_mode=3",
    "[1,2,3,4];[1,2,5,4];[1,2,5,4];bool[1,2,3,5]{1,0,0,1,1,0} softcap=3 qk_matmul_output_mode=2 outs=4",
    "[1,2,3,4];[1,2,5,4];[1,2,5,4];bool[3,4]{1,1,0,1,0,0,0,0,1} is_causal=1 qk_matmul_output_mode=3 outs=4",
    "[2,1,3,4];[2,1,2,4];[2,1,2,4];[2,1,3,4];[2,1,3,4];[2,1,3,4] qk_matmul_output_mode=1 softcap=1 outs=4",
    "[2,1,3,4];[2,1,2,4];[2,1,2,4];f32[3,1]{0.5,-inf,2} softmax_precision=f64 scale=-0.25",
];

const ATTENTION: OpDef = OpDef {
    name: "Attention",
    outputs: &[req("Y", "T1"), opt("present_key", "T1"), opt("present_value", "T2"), opt("qk_matmul_output", "T1")],
    dtypes: &[("T1", FLOATS), ("T2", FLOATS), ("U", MASKS), ("I", &[I64]), ("B", BOOL)],
    infer: infer_attention,
    reference: Some(attention_ref),
    lower: &[Candidate::Expand(expand_attention)],
    tolerance: Tol::Rel(2e-5),
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = softmax(scale · Q·Kᵀ + mask)·V per head; keys and values after those of the past
    OpDef {
        since: 23,
        until: 23,
        inputs: INPUTS.split_at(6).0,
        attrs: ATTRS.split_at(7).0,
        cases: CASES_23,
        ..ATTENTION
    },
    // The same over the first keys of each sample
    OpDef {
        since: 24,
        until: 24,
        inputs: INPUTS,
        attrs: ATTRS.split_at(7).0,
        cases: &[
            "[2,3,4,8];[2,3,6,8];[2,3,6,5];_;_;_;i64[2]{6,3} is_causal=1 outs=4 qk_matmul_output_mode=3",
            "[2,4,2,8];[2,2,6,8];[2,2,6,5];bool[2,5]{1,1,0,1};_;_;i64[2]{1,5}",
        ],
        ..ATTENTION
    },
    // The same within a window around each query's position
    OpDef {
        since: 25,
        inputs: INPUTS,
        attrs: ATTRS,
        cases: &[
            "[2,3,4,8];[2,3,6,8];[2,3,6,5] left_window_size=1 right_window_size=1",
            "[2,3,4,8];[2,3,6,8];[2,3,6,5];_;_;_;i64[2]{6,2} left_window_size=2 is_causal=1",
            "[1,2,3,4];[1,2,2,4];[1,2,2,4];[3,4];[1,2,3,4];[1,2,3,4] left_window_size=2 right_window_size=0",
        ],
        ..ATTENTION
    },
];
