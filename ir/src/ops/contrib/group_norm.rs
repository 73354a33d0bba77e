//! Normalizations with an activation or a gate behind them: of groups of channels, and of rows.

use super::super::norm::epsilon;
use super::super::row::{FLOATS, ROW};
use super::{MICROSOFT, float, require_divides, rounded, wide};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, Param, RefCtx, Tol, attr, opt, req};
use reference::activation as a;
use reference::data::{broadcast_positions, broadcast_shape, f64s, from_f64s};
use reference::{elementwise as e, math, norm};
use tensor::DType::{BF16, F16, F32, F64};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

const TYPES: &[DType] = &[F32, F16, BF16];
const SKIP: usize = 3;
const BIAS: usize = 4;

const ATTRS: [AttrDef; 4] = [
    attr("activation", AttrKind::IntReq),
    attr("channels_last", AttrKind::Int(1)),
    attr("epsilon", AttrKind::Float(1e-5)),
    attr("groups", AttrKind::IntReq),
];

fn groups(attrs: &Attrs) -> i64 {
    attrs.int(3).unwrap_or(0)
}

fn channels_last(attrs: &Attrs) -> bool {
    attrs.int(1) != Some(0)
}

fn infer_group_norm(c: &mut InferCtx) -> Result<()> {
    let refuse = |c: &InferCtx, kind, why: std::string::String| Err(c.error(kind, format!("{}: {why}", c.def.name)));
    if !matches!(c.attrs.int(0), Some(0 | 1)) {
        let text = format!("activation={:?} is neither 0 (none) nor 1 (SiLU)", c.attrs.int(0).unwrap_or(-1));
        return refuse(c, ErrorKind::Unsupported, text);
    }
    let n = groups(c.attrs);
    if n < 1 {
        return refuse(c, ErrorKind::Shape, format!("groups={n} is not positive"));
    }
    for i in 0..2 {
        c.set_type(i, c.ty(0).clone());
    }
    let Some(s) = c.shape(0) else { return Ok(()) };
    if s.len() < 3 {
        return refuse(c, ErrorKind::Shape, format!("X has {} axes, and needs 3", s.len()));
    }
    let at = if channels_last(c.attrs) { s.len() - 1 } else { 1 };
    let channels = s[at];
    let (n, zero) = (c.dims.constant(n), c.dims.constant(0));
    let rest = c.dims.modulo(channels, n);
    c.require_eq(rest, zero, "the groups divide the channels")?;
    for i in [1, 2, BIAS] {
        match c.shape(i).as_deref() {
            Some(&[d]) => c.require_eq(d, channels, &format!("{} has an element per channel", c.def.inputs[i].name))?,
            Some(t) => {
                return refuse(c, ErrorKind::Shape, format!("{} has {} axes, not 1", c.def.inputs[i].name, t.len()));
            }
            None => {}
        }
    }
    let Some(skip) = c.shape(SKIP) else { return Ok(()) };
    let what = "skip has the batch and the channels";
    if skip.len() == 2 {
        c.require_eq(skip[0], s[0], what)?;
        return c.require_eq(skip[1], channels, what);
    }
    if skip.len() != s.len() {
        let text = format!("skip has {} axes, and X {}: it is [n, c], or has the axes of X", skip.len(), s.len());
        return refuse(c, ErrorKind::Shape, text);
    }
    // One element for all places of an image, or one for each.
    let one = c.dims.constant(1);
    let places = |i: usize| i != 0 && i != at;
    let spread = (0..s.len()).all(|i| !places(i) || skip[i] == one);
    (0..s.len()).filter(|&i| !spread || !places(i)).try_for_each(|i| c.require_eq(skip[i], s[i], what))
}

/// The operand `[c]` or `[n, c]` under a shape that broadcasts to X of `rank` axes.
fn spread(x: &mut Expansion, v: Value, rank: usize, own: usize, last: bool) -> Value {
    let rank = i64::try_from(rank).unwrap_or(3);
    let axes: Vec<i64> = match (last, own) {
        (true, 1) => return v,
        (true, _) | (false, 1) => (1..rank - 1).collect(),
        (false, _) => (2..rank).collect(),
    };
    x.unsqueeze(v, &axes)
}

/// The sum of X, skip and bias, of those that there are, in at least f32.
fn summed(x: &mut Expansion, t: DType) -> Result<Value> {
    let data = x.need(0)?;
    let rank = x.tensor(data)?.1.len();
    let last = channels_last(x.attrs());
    let mut sum = x.cast(data, t);
    for i in [SKIP, BIAS] {
        let Some(v) = x.input(i) else { continue };
        let own = x.tensor(v)?.1.len();
        let v = x.cast(v, t);
        let v = if own == rank { v } else { spread(x, v, rank, own, last) };
        sum = x.op("Add", &[sum, v], &[]);
    }
    Ok(sum)
}

fn expand_group_norm(x: &mut Expansion) -> Result<Vec<Value>> {
    let data = x.need(0)?;
    let (dtype, s) = x.tensor(data)?;
    let t = wide(dtype);
    let rank = i64::try_from(s.len()).unwrap_or(3);
    let sum = summed(x, t)?;
    let (silu, last) = (x.attrs().int(0) == Some(1), channels_last(x.attrs()));
    let attrs = [("num_groups", Attr::Int(groups(x.attrs()))), ("epsilon", float(x.attrs().float(2).unwrap_or(1e-5)))];
    let to_first: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let to_last: Vec<i64> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    let image = if last { x.transpose(sum, &to_first) } else { sum };
    let (scale, shift) = (x.need(1)?, x.need(2)?);
    let (scale, shift) = (x.cast(scale, t), x.cast(shift, t));
    let y = x.op("GroupNormalization", &[image, scale, shift], &attrs);
    let y = if silu { x.op("Swish", &[y], &[]) } else { y };
    let y = if last { x.transpose(y, &to_last) } else { y };
    Ok(vec![x.cast(y, dtype), x.cast(sum, dtype)])
}

/// An operand in f64 at every place of X.
fn at_places(c: &RefCtx, i: usize, shape: &[usize], at: usize) -> Result<Option<Tensor>> {
    let Some(v) = c.opt(i) else { return Ok(None) };
    let mut own = v.shape().to_vec();
    if own.len() < shape.len() {
        let channels = own.pop().unwrap_or(1);
        own.resize(shape.len(), 1);
        own[at] = channels;
    }
    if broadcast_shape(&[&own, shape])? != shape {
        let text = format!("{} {:?} does not broadcast to {shape:?}", c.def.inputs[i].name, v.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let values = f64s(v);
    let values = match broadcast_positions(&own, shape) {
        Some(p) => p.into_iter().map(|i| values[i]).collect(),
        None => values,
    };
    Ok(Some(from_f64s(F64, shape, &values)))
}

fn group_norm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let (shape, last) = (x.shape(), channels_last(c.attrs));
    let at = if last { shape.len() - 1 } else { 1 };
    let mut sum = rounded(x, F64);
    for i in [SKIP, BIAS] {
        if let Some(v) = at_places(c, i, shape, at)? {
            sum = e::add(&sum, &v)?;
        }
    }
    let rank = shape.len();
    let to_first: Vec<usize> = [0, at].into_iter().chain((1..rank).filter(|&a| a != at)).collect();
    let back: Vec<usize> = (0..rank).map(|a| to_first.iter().position(|&b| b == a).unwrap_or(0)).collect();
    let image = reference::movement::transpose(&sum, &to_first)?;
    let n = usize::try_from(groups(c.attrs)).unwrap_or(1);
    let y = norm::group_norm(&image, c.input(1)?, c.input(2)?, n, epsilon(c.attrs, 2))?;
    let y = if c.attrs.int(0) == Some(1) { a::swish(&y, 1.0) } else { y };
    let y = reference::movement::transpose(&y, &back)?;
    Ok(vec![rounded(&y, x.dtype()), rounded(&sum, x.dtype())])
}

/// Whether the gate goes through `x · sigmoid(x)`, or through `sigmoid(x)`; `None` for an activation that does not exist.
fn gate_is_silu(attrs: &Attrs) -> Option<bool> {
    match attrs.str(0)? {
        "silu" | "swish" => Some(true),
        "sigmoid" => Some(false),
        _ => None,
    }
}

fn infer_gated(c: &mut InferCtx) -> Result<()> {
    if gate_is_silu(c.attrs).is_none() {
        let text =
            format!("GatedRMSNorm: activation {:?} is none of silu, swish, sigmoid", c.attrs.str(0).unwrap_or(""));
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    c.set_type(0, c.ty(0).clone());
    let (Some(x), Some(scale)) = (c.shape(0), c.shape(1)) else { return Ok(()) };
    let (Some(&width), &[n]) = (x.last(), scale.as_slice()) else {
        return Err(c.error(ErrorKind::Shape, "GatedRMSNorm: X has an axis, and the scale exactly one"));
    };
    require_divides(c, n, width, "the scale divides the last axis")?;
    if let Some(g) = c.shape(2) {
        if g.len() != x.len() {
            return Err(
                c.error(ErrorKind::Shape, format!("GatedRMSNorm: the gate has {} axes, X {}", g.len(), x.len()))
            );
        }
        g.iter().zip(&x).try_for_each(|(&a, &b)| c.require_eq(a, b, "the gate has the extents of X"))?;
    }
    Ok(())
}

fn expand_gated(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, scale, gate) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let ((dtype, s), (_, of_scale)) = (x.tensor(data)?, x.tensor(scale)?);
    let t = wide(dtype);
    let (v, w, g) = (x.cast(data, t), x.cast(scale, t), x.cast(gate, t));
    let silu = gate_is_silu(x.attrs()) == Some(true);
    let attrs = [("axis", Attr::Int(-1)), ("epsilon", float(x.attrs().float(1).unwrap_or(1e-5)))];
    let rank = s.len();
    let y = if s.last().zip(of_scale.first()).is_some_and(|(&a, &b)| x.same(a, b)) {
        x.op("RMSNormalization", &[v, w], &attrs)
    } else {
        let extents: Vec<Value> = (0..rank).map(|a| x.extent(data, i64::try_from(a).unwrap_or(0))).collect();
        let n = x.extent(scale, 0);
        let mut split = extents.clone();
        split[rank - 1] = x.op("Div", &[extents[rank - 1], n], &[]);
        split.push(n);
        let rows = x.reshape_to(v, &split);
        let y = x.op("RMSNormalization", &[rows, w], &attrs);
        x.reshape_to(y, &extents)
    };
    let g = x.op(if silu { "Swish" } else { "Sigmoid" }, &[g], &[]);
    let y = x.op("Mul", &[y, g], &[]);
    Ok(vec![x.cast(y, dtype)])
}

fn gated_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, scale, gate) = (c.input(0)?, f64s(c.input(1)?), f64s(c.input(2)?));
    let (v, n, eps) = (f64s(x), scale.len().max(1), epsilon(c.attrs, 1));
    let whole = x.shape().last().is_some_and(|&d| d % n == 0 && (d == 0 || !scale.is_empty()));
    if !whole || gate.len() != v.len() {
        let text = format!("GatedRMSNorm: a scale of {} elements for {:?}", scale.len(), x.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let silu = gate_is_silu(c.attrs) == Some(true);
    let mut y = Vec::with_capacity(v.len());
    for (row, g) in v.chunks(n).zip(gate.chunks(n)) {
        let mean = math::sum(row.iter().map(|v| v * v)) / n as f64;
        let inv = 1.0 / (mean + eps).sqrt();
        y.extend((0..n).map(|i| row[i] * inv * scale[i] * math::sigmoid(g[i]) * if silu { g[i] } else { 1.0 }));
    }
    Ok(vec![from_f64s(x.dtype(), x.shape(), &y)])
}

const INPUTS: [Param; 5] = [req("X", "T"), req("gamma", "M"), req("beta", "M"), req("skip", "T"), opt("bias", "T")];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = activation(gamma · (X - mean) / √(variance + epsilon) + beta) per image and group of channels
    OpDef {
        name: "GroupNorm",
        domain: MICROSOFT,
        inputs: &[INPUTS[0], INPUTS[1], INPUTS[2]],
        outputs: &[req("Y", "T")],
        attrs: &ATTRS,
        dtypes: &[("T", TYPES), ("M", TYPES)],
        infer: infer_group_norm,
        reference: Some(group_norm_ref),
        lower: &[Expand(expand_group_norm)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,2,4];[4];[4] groups=2 activation=0",
            "[2,3,2,4];[4];[4] groups=4 activation=1 epsilon=0.01",
            "[2,6,3,2];[6];[6] groups=3 activation=1 channels_last=0",
            "[1,5,4];[4];[4] groups=1 activation=1",
            "[0,3,2,4];[4];[4] groups=2 activation=0",
        ],
        ..ROW
    },
    // S = X + skip + bias; Y = GroupNorm of S
    OpDef {
        name: "SkipGroupNorm",
        domain: MICROSOFT,
        inputs: &INPUTS,
        outputs: &[req("Y", "T"), opt("S", "T")],
        attrs: &ATTRS,
        dtypes: &[("T", TYPES), ("M", TYPES)],
        infer: infer_group_norm,
        reference: Some(group_norm_ref),
        lower: &[Expand(expand_group_norm)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,2,4];[4];[4];[2,3,2,4];[4] groups=2 activation=0 outs=2",
            "[2,3,2,4];[4];[4];[2,1,1,4] groups=2 activation=1 outs=2",
            "[2,3,2,4];[4];[4];[2,4];[4] groups=1 activation=1 epsilon=0.01",
            "[2,6,3,2];[6];[6];[2,6];[6] groups=3 activation=1 channels_last=0 outs=2",
            "[2,6,3,2];[6];[6];[2,6,1,1] groups=2 activation=0 channels_last=0",
        ],
        ..ROW
    },
    // Y = X / √(mean(X²) + epsilon) · scale · activation(gate), over as many elements in turn as the scale has
    OpDef {
        name: "GatedRMSNorm",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("scale", "T"), req("gate", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[attr("activation", AttrKind::Str("silu")), attr("epsilon", AttrKind::Float(1e-5))],
        dtypes: &[("T", FLOATS)],
        infer: infer_gated,
        reference: Some(gated_ref),
        lower: &[Expand(expand_gated)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,8];[8];[2,3,8]",
            "[2,3,8];[4];[2,3,8] epsilon=0.01 activation=swish",
            "[5,6];[2];[5,6] activation=sigmoid",
            "[0,3,8];[4];[0,3,8]",
        ],
        ..ROW
    },
];
