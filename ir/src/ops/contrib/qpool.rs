//! Averages of quantized images.

use super::super::pool::{CEIL, CEIL_MODE, COMMON, INCLUDE, average_kind, check_pads, whole};
use super::super::row::{ROUNDED, ROW};
use super::super::window::{geometry, window};
use super::MICROSOFT;
use super::qfloat::{dequantize, quantize};
use super::qlinear::{SCALES, T8, requantized, require_scalars, values};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, attr, opt, req};
use crate::ty::Shape;
use reference::conv::{Pool, pool};
use reference::movement;
use tensor::DType::{F32, F64, I32};
use tensor::{ErrorKind, Result, Tensor};

const INCLUDES: usize = 4;
/// Slots of `channels_last` of both operators.
const LAST: usize = 6;
const GLOBAL_LAST: usize = 0;

fn flag(attrs: &Attrs, slot: usize) -> bool {
    attrs.int(slot).is_some_and(|v| v != 0)
}

/// How axes are moved so that the channels are the second, and back.
fn orders(rank: usize) -> [Vec<usize>; 2] {
    let last = rank.saturating_sub(1);
    let first = [0, last].into_iter().chain(1..last).collect();
    [first, [0].into_iter().chain(2..rank).chain([1]).collect()]
}

fn moved(x: &mut Expansion, v: Value, order: &[usize]) -> Value {
    let order: Vec<i64> = order.iter().map(|&a| i64::try_from(a).unwrap_or(i64::MAX)).collect();
    x.transpose(v, &order)
}

/// Which axes are the image's.
fn spatial(rank: usize, channels_last: bool) -> std::ops::Range<usize> {
    if channels_last { 1..rank.saturating_sub(1) } else { 2..rank }
}

/// The shape of X, if it is known.
fn image(c: &mut InferCtx) -> Result<Option<Shape>> {
    require_scalars(c, &[1, 2, 3, 4])?;
    let dtype = c.dtype(0)?;
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(None);
    };
    if x.len() < 3 {
        return Err(c.error(ErrorKind::Shape, format!("{} needs at least 3 axes, not {}", c.def.name, x.len())));
    }
    Ok(Some(x))
}

fn infer_average(c: &mut InferCtx) -> Result<()> {
    let Some(mut x) = image(c)? else { return Ok(()) };
    let at = spatial(x.len(), flag(c.attrs, LAST));
    let g = geometry(c.dims, c.attrs, None, &x[at.clone()], None, c.attrs.int(CEIL) == Some(1));
    let g = g.map_err(|e| c.error(e.kind(), format!("{}: {}", c.def.name, e.message())))?;
    check_pads(c, &g)?;
    x[at].copy_from_slice(&g.counted(c)?);
    let dtype = c.dtype(0)?;
    c.set(0, dtype, x);
    Ok(())
}

fn infer_global(c: &mut InferCtx) -> Result<()> {
    let Some(mut x) = image(c)? else { return Ok(()) };
    let one = c.dims.constant(1);
    let at = spatial(x.len(), flag(c.attrs, GLOBAL_LAST));
    x[at].fill(one);
    let dtype = c.dtype(0)?;
    c.set(0, dtype, x);
    Ok(())
}

/// What `f` makes of the numbers with the channels as the second axis.
fn through(c: &RefCtx, v: &Tensor, channels_last: bool, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let [first, back] = orders(v.shape().len());
    let y = match channels_last {
        true => movement::transpose(&f(&movement::transpose(v, &first)?)?, &back)?,
        false => f(v)?,
    };
    requantized(c, &y, 3, 0)
}

fn average_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    through(c, &values(c, 0, F32)?, flag(c.attrs, LAST), |v| {
        let w = window(c.attrs, None, v.shape().get(2..).unwrap_or(&[]), None, c.attrs.int(CEIL) == Some(1))?;
        Ok(pool(v, &w, average_kind(c.attrs.int(INCLUDES)), false)?.0)
    })
}

fn global_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let v = values(c, 0, F64)?;
    through(c, &v, flag(c.attrs, GLOBAL_LAST), |v| Ok(pool(v, &whole(v), Pool::Average, false)?.0))
}

fn expand_average(x: &mut Expansion) -> Result<Vec<Value>> {
    let (input, scale, y_scale) = (x.need(0)?, x.need(1)?, x.need(3)?);
    let (zero, y_zero) = (x.input(2), x.input(4));
    let (_, shape) = x.tensor(input)?;
    let last = flag(x.attrs(), LAST);
    let [first, back] = orders(shape.len());
    let v = if last { moved(x, input, &first) } else { input };
    let v = dequantize(x, v, scale, zero)?;
    let all: Vec<(&str, Attr)> = x.def().attrs[..LAST].iter().map(|a| a.name).zip(x.attrs().slots().to_vec()).collect();
    let given: Vec<(&str, Attr)> = all.into_iter().filter(|(_, a)| *a != Attr::Absent).collect();
    let y = x.op("AveragePool", &[v], &given);
    let y = quantize(x, y, y_scale, y_zero, 0)?;
    Ok(vec![if last { moved(x, y, &back) } else { y }])
}

/// Sums of integers, which are exact, by the quotient of the scales over the number of elements.
fn expand_global(x: &mut Expansion) -> Result<Vec<Value>> {
    let (input, scale, y_scale) = (x.need(0)?, x.need(1)?, x.need(3)?);
    let (zero, y_zero) = (x.need(2)?, x.need(4)?);
    let (_, shape) = x.tensor(input)?;
    let at = spatial(shape.len(), flag(x.attrs(), GLOBAL_LAST));
    let n: Option<f64> = shape[at.clone()].iter().map(|&d| Some(x.as_const(d)? as f64)).product();
    let axes: Vec<i64> = at.map(|a| i64::try_from(a).unwrap_or(i64::MAX)).collect();
    let n = match n {
        Some(n) => x.scalar(F32, n),
        None => {
            let extents: Vec<Value> = axes.iter().map(|&a| x.extent(input, a)).collect();
            let all = x.concat(&extents, 0);
            let n = x.op("ReduceProd", &[all], &[("keepdims", Attr::Int(0))]);
            x.cast(n, F32)
        }
    };
    let axes = x.ints(&axes);
    let (v, zero) = (x.cast(input, I32), x.cast(zero, I32));
    let v = x.op("Sub", &[v, zero], &[]);
    let sum = x.op("ReduceSum", &[v, axes], &[]);
    let sum = x.cast(sum, F32);
    let steps = x.op("Mul", &[y_scale, n], &[]);
    let ratio = x.op("Div", &[scale, steps], &[]);
    let y = x.op("Mul", &[sum, ratio], &[]);
    let one = x.scalar(F32, 1.0);
    Ok(vec![quantize(x, y, one, Some(y_zero), 0)?])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // y = the mean of x in each window
    OpDef {
        name: "QLinearAveragePool",
        domain: MICROSOFT,
        inputs: &[
            req("X", "T"),
            req("x_scale", "tensor(float)"),
            opt("x_zero_point", "T"),
            req("y_scale", "tensor(float)"),
            opt("y_zero_point", "T"),
        ],
        outputs: &[req("Y", "T")],
        attrs: &[
            COMMON[0],
            COMMON[1],
            COMMON[2],
            COMMON[3],
            INCLUDE,
            CEIL_MODE,
            attr("channels_last", AttrKind::Int(0)),
        ],
        dtypes: &[T8, SCALES],
        infer: infer_average,
        reference: Some(average_ref),
        lower: &[Expand(expand_average)],
        tolerance: ROUNDED,
        cases: &[
            "[1,2,7,6];[]{0.5};[]{3};[]{0.25};[]{5} kernel_shape=[2,2] strides=[2,2]",
            "[1,5,5,3];[]{0.5};_;[1]{0.5} kernel_shape=[2,4] pads=[1,1,1,1] count_include_pad=1 channels_last=1",
            "[2,1,6];[]{0.5};[1]{3};[]{0.25} kernel_shape=[4] strides=[2] ceil_mode=1 pads=[1,1]",
            "[1,1,4,4,4];[]{0.5};[]{3};[]{0.25};[]{5} kernel_shape=[2,2,2] auto_pad=SAME_UPPER",
        ],
        ..ROW
    },
    // y = the mean of x in each channel
    OpDef {
        name: "QLinearGlobalAveragePool",
        domain: MICROSOFT,
        inputs: &[
            req("X", "T"),
            req("x_scale", "tensor(float)"),
            req("x_zero_point", "T"),
            req("y_scale", "tensor(float)"),
            req("y_zero_point", "T"),
        ],
        outputs: &[req("Y", "T")],
        attrs: &[attr("channels_last", AttrKind::Int(0))],
        dtypes: &[T8, SCALES],
        infer: infer_global,
        reference: Some(global_ref),
        lower: &[Expand(expand_global)],
        tolerance: ROUNDED,
        cases: &[
            "[2,3,4,4];[]{0.5};[]{3};[]{0.25};[]{5}",
            "[2,4,2,3];[1]{0.5};[1]{3};[1]{0.5};[1]{0} channels_last=1",
            "[1,2,8];[]{0.5};[]{3};[]{0.25};[]{5}",
        ],
        ..ROW
    },
];
