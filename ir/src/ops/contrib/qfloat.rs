//! Operators of quantized tensors as the float operator between DequantizeLinear and QuantizeLinear.

use super::super::row::{ROUNDED, ROW, same_type_as_0};
use super::MICROSOFT;
use super::qlinear::{BYTES, SCALES, T8, requantized, require_scalars, values};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, attr, opt, req, var};
use crate::ty::Shape;
use reference::quant::{self, Granularity};
use reference::{movement, reduce};
use tensor::DType::F32;
use tensor::{ErrorKind, Result, Tensor};

/// A scale or zero point as rank 0.
fn number(x: &mut Expansion, v: Value) -> Result<Value> {
    Ok(if x.tensor(v)?.1.is_empty() { v } else { x.reshape(v, &[]) })
}

/// The numbers that a value stands for, in f32.
pub(super) fn dequantize(x: &mut Expansion, v: Value, scale: Value, zero: Option<Value>) -> Result<Value> {
    let mut ins = vec![v, number(x, scale)?];
    if let Some(zero) = zero {
        ins.push(number(x, zero)?);
    }
    Ok(x.op("DequantizeLinear", &ins, &[]))
}

/// Numbers as integers of the type of operand `like` of the node.
pub(super) fn quantize(x: &mut Expansion, v: Value, scale: Value, zero: Option<Value>, like: usize) -> Result<Value> {
    let zero = match zero {
        Some(zero) => number(x, zero)?,
        None => {
            let like = x.need(like)?;
            let dtype = x.tensor(like)?.0;
            x.scalar(dtype, 0.0)
        }
    };
    let scale = number(x, scale)?;
    Ok(x.op("QuantizeLinear", &[v, scale, zero], &[]))
}

/// Where the tensors of QLinearConcat begin; each has its scale and zero point behind it.
const FIRST: usize = 2;

fn infer_concat(c: &mut InferCtx) -> Result<()> {
    let n = c.ins.len().saturating_sub(FIRST);
    if n == 0 || !n.is_multiple_of(3) || !(0..c.ins.len()).all(|i| c.has(i)) {
        let text = "QLinearConcat: the inputs are not triples of a tensor, its scale and its zero point";
        return Err(c.error(ErrorKind::Malformed, text));
    }
    let dtype = c.dtype(1)?;
    let mut shapes: Vec<Option<Shape>> = vec![];
    for i in (FIRST..c.ins.len()).step_by(3) {
        for (at, want) in [(i, dtype), (i + 1, F32), (i + 2, dtype)] {
            let have = c.dtype(at)?;
            if have != want || !BYTES.contains(&dtype) {
                let text = format!("QLinearConcat: operand {at} is {have}, beside a zero point of Y that is {dtype}");
                return Err(c.error(ErrorKind::Type, text).help("all are uint8 or all int8, and scales are float"));
            }
        }
        for at in [i + 1, i + 2] {
            if c.shape(at).is_some_and(|s| s.iter().any(|&d| c.dims.as_const(d) != Some(1)) || s.len() > 1) {
                let text = format!("QLinearConcat: operand {at} is not one number, of shape [] or [1]");
                return Err(c.error(ErrorKind::Shape, text));
            }
        }
        shapes.push(c.shape(i));
    }
    require_scalars(c, &[0, 1])?;
    let Some(shapes) = shapes.into_iter().collect::<Option<Vec<Shape>>>() else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let mut y = shapes[0].clone();
    if y.is_empty() || shapes.iter().any(|s| s.len() != y.len()) {
        return Err(c.error(ErrorKind::Shape, "QLinearConcat: the tensors have no axis, or different ranks"));
    }
    let axis = c.axis(c.attrs.int(0).unwrap_or(0), y.len())?;
    for s in &shapes[1..] {
        for a in 0..y.len() {
            if a == axis {
                y[a] = c.dims.add(y[a], s[a]);
            } else {
                c.require_eq(y[a], s[a], &format!("the tensors agree along axis {a}"))?;
            }
        }
    }
    c.set(0, dtype, y);
    Ok(())
}

fn concat_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (scale, zero) = (c.input(0)?, c.input(1)?);
    let to = quant::Target { dtype: zero.dtype(), precision: F32, saturate: true };
    let mut all = vec![];
    for i in (FIRST..c.ins.len()).step_by(3) {
        all.push(quant::quantize(&values(c, i, F32)?, scale, Some(zero), Granularity::Tensor, to)?);
    }
    let all: Vec<&Tensor> = all.iter().collect();
    let rank = all.first().map_or(0, |x| x.shape().len());
    let axis = super::super::movement::checked_axis(c.attrs.int(0).unwrap_or(0), rank);
    Ok(vec![movement::concat(&all, axis)?])
}

fn expand_concat(x: &mut Expansion) -> Result<Vec<Value>> {
    let (scale, zero) = (x.need(0)?, x.need(1)?);
    let n = x.node().ins.len();
    let mut all = vec![];
    for i in (FIRST..n).step_by(3) {
        let (v, s, z) = (x.need(i)?, x.need(i + 1)?, x.need(i + 2)?);
        // What has the result's scale already keeps its integers.
        all.push(if (s, z) == (scale, zero) {
            v
        } else {
            let v = dequantize(x, v, s, Some(z))?;
            quantize(x, v, scale, Some(zero), 1)?
        });
    }
    let axis = x.attrs().int(0).unwrap_or(0);
    Ok(vec![x.concat(&all, axis)])
}

const AXIS: usize = 0;
/// From this version of ai.onnx on, Softmax is along one axis; before, over all from it on.
const ONE_AXIS: i64 = 13;

fn one_axis(attrs: &Attrs) -> bool {
    attrs.int(1).unwrap_or(ONE_AXIS) >= ONE_AXIS
}

fn infer_softmax(c: &mut InferCtx) -> Result<()> {
    require_scalars(c, &[1, 2, 3, 4])?;
    if let Some(s) = c.shape(0) {
        c.axis(c.attrs.int(AXIS).unwrap_or(-1), s.len())?;
    }
    same_type_as_0(c)
}

fn softmax_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let v = values(c, 0, F32)?;
    let axis = super::super::movement::checked_axis(c.attrs.int(AXIS).unwrap_or(-1), v.shape().len());
    let over: Vec<bool> = (0..v.shape().len()).map(|i| if one_axis(c.attrs) { i == axis } else { i >= axis }).collect();
    requantized(c, &reduce::softmax(&v, &over, false), 3, 0)
}

fn expand_softmax(x: &mut Expansion) -> Result<Vec<Value>> {
    let (input, scale, y_scale) = (x.need(0)?, x.need(1)?, x.need(3)?);
    let (zero, y_zero) = (x.input(2), x.input(4));
    let axis = Attr::Int(x.attrs().int(AXIS).unwrap_or(-1));
    let v = dequantize(x, input, scale, zero)?;
    let y = if one_axis(x.attrs()) {
        x.op("Softmax", &[v], &[("axis", axis)])
    } else {
        let rows = x.op("Flatten", &[v], &[("axis", axis)]);
        let y = x.op("Softmax", &[rows], &[("axis", Attr::Int(-1))]);
        let shape = x.op("Shape", &[input], &[]);
        x.op("Reshape", &[y, shape], &[("allowzero", Attr::Int(1))])
    };
    Ok(vec![quantize(x, y, y_scale, y_zero, 0)?])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = the tensors one after the other along `axis`, all with the scale and zero point of Y
    OpDef {
        name: "QLinearConcat",
        domain: MICROSOFT,
        inputs: &[req("Y_scale", "TF"), req("Y_zero_point", "TV"), var("inputs", "TV")],
        outputs: &[req("Y", "T8")],
        attrs: &[attr("axis", AttrKind::IntReq)],
        dtypes: &[("T8", BYTES), ("TF", &[F32])],
        infer: infer_concat,
        reference: Some(concat_ref),
        lower: &[Expand(expand_concat)],
        tolerance: ROUNDED,
        cases: &[
            "[]{0.5};u8[]{3};u8[2,3]{1,100,250};f32[]{0.25};u8[]{5};u8[2,2]{7,9};f32[1]{0.5};u8[1]{3} axis=1",
            "[1]{0.5};i8[1]{-3};i8[1,3]{1,100,-120};f32[]{2};i8[]{5};i8[2,3]{7,9};f32[1]{0.5};i8[1]{3} axis=-2",
        ],
        ..ROW
    },
    // y = softmax(x) along `axis`; of an opset before 13 over all axes from it on
    OpDef {
        name: "QLinearSoftmax",
        domain: MICROSOFT,
        inputs: &[
            req("X", "T"),
            req("X_scale", "tensor(float)"),
            opt("x_zero_point", "T"),
            req("y_scale", "tensor(float)"),
            req("y_zero_point", "T"),
        ],
        outputs: &[req("Y", "T")],
        attrs: &[attr("axis", AttrKind::Int(-1)), attr("opset", AttrKind::IntReq)],
        dtypes: &[T8, SCALES],
        infer: infer_softmax,
        reference: Some(softmax_ref),
        lower: &[Expand(expand_softmax)],
        tolerance: ROUNDED,
        cases: &[
            "[2,3,5];[]{0.25};[]{3};[]{0.00390625};[]{0} opset=13",
            "[2,3,5];[1]{0.25};_;[1]{0.00390625};[1]{7} opset=17 axis=1",
            "[2,3,5];[]{0.1};[]{3};[]{0.01};[]{0} opset=12 axis=1",
            "[2,3];[]{0.1};[]{3};[]{0.01};[]{0} opset=11",
        ],
        ..ROW
    },
];
