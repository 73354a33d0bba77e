//! Normalizations of a residual. SimplifiedLayerNormalization is here, too, in the default domain, where exporters put it.

use super::super::broadcast::require_broadcasts_to;
use super::super::movement::checked_axis;
use super::super::norm::{EPSILON, epsilon};
use super::super::row::{FLOATS, ROW};
use super::{MICROSOFT, T, float, like_first, rounded, sum, wide};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::data::{f64s, from_f64s};
use reference::norm;
use tensor::DType::{self, F32, F64};
use tensor::{ErrorKind, Result, Tensor};

/// Far smaller than elsewhere.
const SKIP_EPSILON: AttrDef = attr("epsilon", AttrKind::Float(1e-12));

fn infer_skip(c: &mut InferCtx) -> Result<()> {
    like_first(c)?;
    let d = c.dtype(0)?;
    let one = c.dims.constant(1);
    match c.shape(0) {
        Some(s) => {
            let stats: Shape = s[..s.len().saturating_sub(1)].iter().copied().chain([one]).collect();
            c.set(1, F32, stats.iter().copied());
            c.set(2, F32, stats);
            c.set(3, d, s);
        }
        None => {
            c.set_unranked(1, F32);
            c.set_unranked(2, F32);
            c.set_unranked(3, d);
        }
    }
    Ok(())
}

/// The residual sum: operands 0, 1 and the bias.
fn added(x: &mut Expansion, bias: usize) -> Result<(Value, DType)> {
    let (input, skip) = (x.need(0)?, x.need(1)?);
    let (dtype, _) = x.tensor(input)?;
    let t = wide(dtype);
    let (a, b) = (x.cast(input, t), x.cast(skip, t));
    let mut y = x.op("Add", &[a, b], &[]);
    if let Some(bias) = x.input(bias) {
        let bias = x.cast(bias, t);
        y = x.op("Add", &[y, bias], &[]);
    }
    Ok((y, dtype))
}

fn norm_attrs(x: &Expansion) -> [(&'static str, Attr); 2] {
    [("axis", Attr::Int(-1)), ("epsilon", float(x.attrs().float(0).unwrap_or(1e-12)))]
}

fn expand_skip_layer_norm(x: &mut Expansion) -> Result<Vec<Value>> {
    let (sum, dtype) = added(x, 4)?;
    let attrs = norm_attrs(x);
    let mut ins = vec![sum];
    for i in [2, 3] {
        if let Some(v) = x.input(i) {
            ins.push(x.cast(v, wide(dtype)));
        }
    }
    let r = x.op_n("LayerNormalization", &ins, &attrs, 3);
    let (y, sum) = (x.cast(r[0], dtype), x.cast(sum, dtype));
    Ok(vec![y, r[1], r[2], sum])
}

fn skip_layer_norm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let s = sum(c, &[1, 4])?;
    let axis = s.shape().len().saturating_sub(1);
    let [y, mean, inv] = norm::layer_norm(&s, c.input(2)?, c.opt(3), axis, epsilon(c.attrs, 0), F32)?;
    let d = c.input(0)?.dtype();
    Ok(vec![rounded(&y, d), mean, inv, rounded(&s, d)])
}

fn expand_skip_rms_norm(x: &mut Expansion) -> Result<Vec<Value>> {
    let (sum, dtype) = added(x, 3)?;
    let attrs = norm_attrs(x);
    let scale = x.need(2)?;
    let scale = x.cast(scale, wide(dtype));
    let y = x.op("RMSNormalization", &[sum, scale], &attrs);
    let last = x.ints(&[-1]);
    let mean = x.op("ReduceMean", &[sum, last], &[]);
    let inv = inverse_root(x, sum, wide(dtype), -1);
    let (y, sum) = (x.cast(y, dtype), x.cast(sum, dtype));
    Ok(vec![y, x.cast(mean, F32), inv, sum])
}

/// `1 / √(mean(v²) + epsilon)` over the axes from `axis` on, as f32.
fn inverse_root(x: &mut Expansion, v: Value, dtype: DType, axis: i64) -> Value {
    let axes: Vec<i64> = (axis..0).collect();
    let axes = x.ints(&axes);
    let slot = if x.def().name == "SimplifiedLayerNormalization" { 1 } else { 0 };
    let epsilon = x.scalar(dtype, x.attrs().float(slot).unwrap_or(1e-12).into());
    let square = x.op("Mul", &[v, v], &[]);
    let mean = x.op("ReduceMean", &[square, axes], &[]);
    let mean = x.op("Add", &[mean, epsilon], &[]);
    let root = x.op("Sqrt", &[mean], &[]);
    let inv = x.op("Reciprocal", &[root], &[]);
    x.cast(inv, F32)
}

/// `1 / √(mean(v²) + epsilon)` over the axes from `axis` on.
fn inverse_roots(v: &Tensor, axis: usize, epsilon: f64) -> Tensor {
    let mut shape = v.shape().to_vec();
    let n: usize = shape[axis..].iter().product();
    shape[axis..].fill(1);
    let values = f64s(v);
    let inv = |row: usize| {
        let squares = values[row * n..(row + 1) * n].iter().map(|v| v * v);
        1.0 / (reference::math::sum(squares) / n as f64 + epsilon).sqrt()
    };
    let rows: usize = shape.iter().product();
    from_f64s(F32, &shape, &(0..rows).map(inv).collect::<Vec<_>>())
}

fn skip_rms_norm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let s = sum(c, &[1, 3])?;
    let (axis, eps) = (s.shape().len().saturating_sub(1), epsilon(c.attrs, 0));
    let scale = rounded(c.input(2)?, F64);
    let y = norm::rms_norm(&s, &scale, axis, eps)?;
    let over: Vec<bool> = (0..s.shape().len()).map(|i| i == axis).collect();
    let mean = reference::reduce::reduce(reference::reduce::Reduce::Mean, &s, &over, true);
    let d = c.input(0)?.dtype();
    Ok(vec![rounded(&y, d), rounded(&mean, F32), inverse_roots(&s, axis, eps), rounded(&s, d)])
}

fn infer_simplified(c: &mut InferCtx) -> Result<()> {
    if c.attrs.int(2).is_some_and(|t| t != 1) {
        let text = format!("SimplifiedLayerNormalization: stash_type={:?} is not 1 (f32)", c.attrs.int(2));
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let d = c.dtype(1)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, d);
        c.set_unranked(1, F32);
        return Ok(());
    };
    let axis = c.axis(c.attrs.int(0).unwrap_or(-1), s.len())?;
    if let Some(t) = c.shape(1) {
        require_broadcasts_to(c, &t, &s, "the scale")?;
    }
    let one = c.dims.constant(1);
    c.set(0, d, s.iter().copied());
    c.set(1, F32, s.iter().enumerate().map(|(i, &d)| if i < axis { d } else { one }));
    Ok(())
}

fn expand_simplified(x: &mut Expansion) -> Result<Vec<Value>> {
    let (input, scale) = (x.need(0)?, x.need(1)?);
    let (dtype, shape) = x.tensor(input)?;
    let rank = i64::try_from(shape.len()).unwrap_or(i64::MAX);
    let axis = x.attrs().int(0).unwrap_or(-1);
    let axis = if axis < 0 { axis } else { axis - rank };
    let attrs = [("axis", Attr::Int(axis)), ("epsilon", float(x.attrs().float(1).unwrap_or(1e-5)))];
    let y = x.op("RMSNormalization", &[input, scale], &attrs);
    if x.n_outs() < 2 {
        return Ok(vec![y]);
    }
    let wide = wide(dtype);
    let v = x.cast(input, wide);
    let inv = inverse_root(x, v, wide, axis);
    Ok(vec![y, inv])
}

fn simplified_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let axis = checked_axis(c.attrs.int(0).unwrap_or(-1), x.shape().len());
    let eps = epsilon(c.attrs, 1);
    Ok(vec![norm::rms_norm(x, c.input(1)?, axis, eps)?, inverse_roots(x, axis, eps)])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = layer normalization of input + skip + bias over the last axis; input_skip_bias_sum = input + skip + bias
    OpDef {
        name: "SkipLayerNormalization",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("skip", "T"), req("gamma", "T"), opt("beta", "T"), opt("bias", "T")],
        outputs: &[req("output", "T"), opt("mean", "U"), opt("inv_std_var", "U"), opt("input_skip_bias_sum", "T")],
        attrs: &[SKIP_EPSILON],
        dtypes: &[T, ("U", &[F32])],
        infer: infer_skip,
        reference: Some(skip_layer_norm_ref),
        lower: &[Expand(expand_skip_layer_norm)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,8];[2,3,8];[8];[8];[8] outs=4 epsilon=0.001",
            "[2,3,8];[3,8];[8] epsilon=0.001",
            "[4,8];[8];[8];_;[8] epsilon=0.001 outs=4",
        ],
        ..ROW
    },
    // output = RMS normalization of input + skip + bias over the last axis; input_skip_bias_sum = input + skip + bias
    OpDef {
        name: "SkipSimplifiedLayerNormalization",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("skip", "T"), req("gamma", "T"), opt("bias", "T")],
        outputs: &[req("output", "T"), opt("mean", "U"), opt("inv_std_var", "U"), opt("input_skip_bias_sum", "T")],
        attrs: &[SKIP_EPSILON],
        dtypes: &[T, ("U", &[F32])],
        infer: infer_skip,
        reference: Some(skip_rms_norm_ref),
        lower: &[Expand(expand_skip_rms_norm)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,8];[2,3,8];[8];[8] outs=4", "[2,3,8];[3,8];[8] epsilon=0.001"],
        ..ROW
    },
    // Y = X / √(mean(X²) + epsilon) · scale, over the axes from `axis` on
    OpDef {
        name: "SimplifiedLayerNormalization",
        inputs: &[req("X", "T"), req("scale", "V")],
        outputs: &[req("Y", "V"), opt("inv_std_var", "U")],
        attrs: &[attr("axis", AttrKind::Int(-1)), EPSILON, attr("stash_type", AttrKind::Int(1))],
        dtypes: &[T, ("V", FLOATS), ("U", &[F32])],
        infer: infer_simplified,
        reference: Some(simplified_ref),
        lower: &[Expand(expand_simplified)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,8];[8]", "[2,3,4];[3,4] axis=1 epsilon=0.01 outs=2"],
        ..ROW
    },
];
