//! Rows of products of quantized tensors: MatMulInteger, QLinearMatMul, ConvInteger, QLinearConv.

use super::conv::{self, ATTRS, Places};
use super::loops::{Builder, outer};
use super::matmul::{factors, product_shape};
use super::row::{ROUNDED, ROW};
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, ExprId, Nest};
use crate::op::{InferCtx, OpDef, RefCtx, opt, req};
use crate::ty::Shape;
use reference::cast::Rounding;
use reference::quant::{self, Scales};
use tensor::DType::{self, *};
use tensor::{ErrorKind, Result, Tensor};

const BYTES: &[DType] = &[U8, I8];
const WITH_F8: &[DType] = &[U8, I8, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ];
const ONLY_I32: (&str, &[DType]) = ("T3", &[I32]);
const F32_SCALES: (&str, &[DType]) = ("tensor(float)", &[F32]);

/// Whether all extents are known to be 1: one value for the whole tensor.
fn is_scalar(dims: &tensor::DimPool, s: &Shape) -> bool {
    s.iter().all(|&d| dims.as_const(d) == Some(1))
}

/// Checks a scale or zero point against the matrix whose rows (or columns) it belongs to: one value, one for each, or of the
/// matrix's rank with extent 1 along the summed axis.
pub(super) fn check_lines(c: &mut InferCtx, i: usize, of: &Shape, rows: bool) -> Result<()> {
    let Some(s) = c.shape(i) else { return Ok(()) };
    if is_scalar(c.dims, &s) {
        return Ok(());
    }
    let what = format!("{} has one value per {}", c.def.inputs[i].name, if rows { "row" } else { "column" });
    let (r, own) = (of.len(), if rows { 2 } else { 1 });
    if r < 2 || (s.len() != 1 && s.len() != r) {
        return Err(c.error(ErrorKind::Shape, format!("{}: {what}", c.def.name)));
    }
    if s.len() == 1 {
        return c.require_eq(s[0], of[r - own], &what);
    }
    let one = c.dims.constant(1);
    for (k, (&a, &b)) in s.iter().zip(of).enumerate() {
        // The summed axis has one value; the others have the matrix's extent, or repeat.
        let b = if k == r - (3 - own) { one } else { b };
        if c.dims.as_const(a) != Some(1) {
            c.require_eq(a, b, &what)?;
        }
    }
    Ok(())
}

/// Coordinates of a value per row (or column), given those of the element of the matrix.
fn line_at(b: &mut Builder, s: &Shape, of: &[Coord], rows: bool) -> Vec<Coord> {
    let zero = b.fixed_at(0);
    if is_scalar(b.c.dims, s) {
        return s.iter().map(|_| zero.clone()).collect();
    }
    if s.len() == 1 {
        return vec![of[of.len() - if rows { 2 } else { 1 }].clone()];
    }
    let own =
        |(&d, at): (&tensor::DimId, &Coord)| if b.c.dims.as_const(d) == Some(1) { zero.clone() } else { at.clone() };
    s.iter().zip(of).map(own).collect()
}

/// `x - zero point` where `x` is operand `i` and the zero point, if it is there, operand `zero`: integers in i32, floats in f32.
fn centered(b: &mut Builder, x: ExprId, zero: usize, at: Vec<Coord>) -> Plan<ExprId> {
    let d = if b.nest.expr_dtype(x).is_float() { F32 } else { I32 };
    let x = b.nest.cast(x, d);
    if !b.c.has(zero) {
        return Ok(x);
    }
    let z = b.load(zero, at)?;
    let z = b.nest.cast(z, d);
    Ok(b.bin(BinOp::Sub, x, z))
}

/// Operands of a matrix product by position.
#[derive(Clone, Copy)]
struct Matrices {
    a: usize,
    a_zero: usize,
    b: usize,
    b_zero: usize,
}
const INTEGER: Matrices = Matrices { a: 0, b: 1, a_zero: 2, b_zero: 3 };
const QLINEAR: Matrices = Matrices { a: 0, a_zero: 2, b: 3, b_zero: 5 };

/// The coordinates of both factors, and the sum of their products without the zero points.
fn sum_of_products(b: &mut Builder, m: Matrices) -> Plan<(Vec<Coord>, Vec<Coord>, ExprId)> {
    let (x, w) = (b.c.need(m.a)?.shape, b.c.need(m.b)?.shape);
    let (x_at, w_at) = factors(b, &x, &w, (false, false));
    let zero_at = |b: &mut Builder, i: usize, of: &[Coord], rows| match b.c.ins.get(i).cloned().flatten() {
        Some(z) => line_at(b, &z.shape, of, rows),
        None => vec![],
    };
    let (xz_at, wz_at) = (zero_at(b, m.a_zero, &x_at, true), zero_at(b, m.b_zero, &w_at, false));
    let e = b.load(m.a, x_at.clone())?;
    let e = centered(b, e, m.a_zero, xz_at)?;
    let f = b.load(m.b, w_at.clone())?;
    let f = centered(b, f, m.b_zero, wz_at)?;
    let term = product(b, e, f);
    Ok((x_at, w_at, b.reduce([(Combiner::Sum, term)])[0]))
}

fn product(b: &mut Builder, e: ExprId, f: ExprId) -> ExprId {
    // A float operand makes the product one of floats.
    let d = if b.nest.expr_dtype(e).is_float() || b.nest.expr_dtype(f).is_float() { F32 } else { I32 };
    let (e, f) = (b.nest.cast(e, d), b.nest.cast(f, d));
    b.bin(BinOp::Mul, e, f)
}

fn matmul_infer(c: &mut InferCtx, m: Matrices, to: DType) -> Result<()> {
    if let (Some(a), Some(b)) = (c.shape(m.a), c.shape(m.b)) {
        check_lines(c, m.a_zero, &a, true)?;
        check_lines(c, m.b_zero, &b, false)?;
    }
    match product_shape(c, (m.a, m.b), (false, false))? {
        Some(s) => c.set(0, to, s),
        None => c.set_unranked(0, to),
    }
    Ok(())
}

fn matmul_integer_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let mut b = Builder::over_result(c)?;
    let (_, _, sum) = sum_of_products(&mut b, INTEGER)?;
    Ok(b.store(sum))
}

/// `saturate(round(sum · scale_a · scale_b / scale_y) + zero)`, in f32.
fn requantized(b: &mut Builder, sum: ExprId, scales: [ExprId; 3], zero: ExprId) -> ExprId {
    let to = b.c.outs[0].dtype;
    let n = &mut b.nest;
    let [sa, sb, sy] = scales.map(|s| n.cast(s, F32));
    let scale = n.bin(BinOp::Mul, sa, sb);
    let scale = n.bin(BinOp::Div, scale, sy);
    let sum = n.cast(sum, F32);
    let q = n.bin(BinOp::Mul, sum, scale);
    n.quantized(q, Some(zero), to, Rounding::default())
}

fn qlinear_matmul_infer(c: &mut InferCtx) -> Result<()> {
    let to = c.dtype(7)?;
    if let (Some(a), Some(b)) = (c.shape(0), c.shape(3)) {
        check_lines(c, 1, &a, true)?;
        check_lines(c, 4, &b, false)?;
    }
    matmul_infer(c, QLINEAR, to)?;
    if let Some(y) = c.outs[0].shape().cloned() {
        check_lines(c, 6, &y, true)?;
        check_lines(c, 7, &y, true)?;
    }
    Ok(())
}

fn qlinear_matmul_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let mut b = Builder::over_result(c)?;
    let (x_at, w_at, sum) = sum_of_products(&mut b, QLINEAR)?;
    let y_at: Vec<Coord> = (0..b.nest.outer.len()).map(|i| b.along(outer(i))).collect();
    let mut line = |i: usize, of: &[Coord], rows: bool| {
        let s = b.c.need(i)?.shape;
        let at = line_at(&mut b, &s, of, rows);
        b.load(i, at)
    };
    let scales = [line(1, &x_at, true)?, line(4, &w_at, false)?, line(6, &y_at, true)?];
    let zero = line(7, &y_at, true)?;
    let y = requantized(&mut b, sum, scales, zero);
    Ok(b.store(y))
}

/// Operands of a convolution by position.
#[derive(Clone, Copy)]
struct Images {
    places: Places,
    x_zero: usize,
    w_zero: usize,
}
const CONV_INTEGER: Images = Images { places: Places { weight: 1, bias: usize::MAX }, x_zero: 2, w_zero: 3 };
const QLINEAR_CONV: Images = Images { places: Places { weight: 3, bias: 8 }, x_zero: 2, w_zero: 5 };

/// Checks that operand `i` has one value, or with `channels` one for each output channel.
fn check_channels(c: &mut InferCtx, i: usize, weight: usize, channels: bool) -> Result<()> {
    let (Some(s), Some(w)) = (c.shape(i), c.shape(weight)) else { return Ok(()) };
    match s.as_slice() {
        _ if is_scalar(c.dims, &s) => Ok(()),
        [d] if channels => {
            c.require_eq(*d, w[0], &format!("{} has one value per output channel", c.def.inputs[i].name))
        }
        _ => {
            let text = format!("{}: {} is not a scalar", c.def.name, c.def.inputs[i].name);
            Err(c.error(ErrorKind::Shape, text))
        }
    }
}

/// Coordinates of a value per tensor or output channel.
fn channel_at(b: &mut Builder, i: usize) -> Plan<Vec<Coord>> {
    let s = b.c.need(i)?.shape;
    Ok(match is_scalar(b.c.dims, &s) {
        true => s.iter().map(|_| b.fixed_at(0)).collect(),
        false => vec![b.along(outer(1))],
    })
}

/// The sum of products of image and weight without their zero points; padding is the image's zero point.
fn conv_sum<'a, 'c>(c: &'a mut NodeCtx<'c>, im: Images) -> Plan<(Builder<'a, 'c>, ExprId)> {
    let (mut b, at) = conv::factors(c, im.places)?;
    let optional = |b: &mut Builder, i: usize| if b.c.has(i) { channel_at(b, i) } else { Ok(vec![]) };
    let (xz_at, wz_at) = (optional(&mut b, im.x_zero)?, optional(&mut b, im.w_zero)?);
    let padding = match b.c.has(im.x_zero) {
        true => b.load(im.x_zero, xz_at.clone())?,
        false => {
            let d = b.dtype(0);
            b.nest.num(0.0, d)
        }
    };
    let x = b.load_if(0, at.image, at.inside, padding)?;
    let x = centered(&mut b, x, im.x_zero, xz_at)?;
    let w = b.load(im.places.weight, at.weight)?;
    let w = centered(&mut b, w, im.w_zero, wz_at)?;
    let term = product(&mut b, x, w);
    let sum = b.reduce([(Combiner::Sum, term)])[0];
    Ok((b, sum))
}

fn qlinear_conv_infer(c: &mut InferCtx) -> Result<()> {
    for (i, channels) in [(1, false), (2, false), (4, true), (5, true), (6, false), (7, false)] {
        check_channels(c, i, 3, channels)?;
    }
    let to = c.dtype(7)?;
    conv::conv_shape(c, QLINEAR_CONV.places, to)
}

fn qlinear_conv_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (mut b, mut sum) = conv_sum(c, QLINEAR_CONV)?;
    let bias = QLINEAR_CONV.places.bias;
    if b.c.has(bias) {
        let at = b.along(outer(1));
        let e = b.load(bias, [at])?;
        sum = b.bin(BinOp::Add, sum, e);
    }
    let mut scalar = |i: usize| {
        let at = channel_at(&mut b, i)?;
        b.load(i, at)
    };
    let scales = [scalar(1)?, scalar(4)?, scalar(6)?];
    let zero = scalar(7)?;
    let y = requantized(&mut b, sum, scales, zero);
    Ok(b.store(y))
}

fn qlinear_matmul_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let s = Scales { a: c.input(1)?, b: c.input(4)?, y: c.input(6)? };
    let zeros = [c.input(2)?, c.input(5)?, c.input(7)?];
    Ok(vec![quant::qlinear_matmul(c.input(0)?, c.input(3)?, s, zeros)?])
}

fn qlinear_conv_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, w) = (c.input(0)?, c.input(3)?);
    let (window, group) = conv::ref_window(c, x, w)?;
    let s = Scales { a: c.input(1)?, b: c.input(4)?, y: c.input(6)? };
    let zeros = [c.input(2)?, c.input(5)?, c.input(7)?];
    Ok(vec![quant::qlinear_conv(x, w, c.opt(8), s, zeros, &window, group)?])
}

/// y = saturate(round((a - a_zero_point) · (b - b_zero_point) · a_scale · b_scale / y_scale) + y_zero_point)
const QLINEAR_MATMUL: OpDef = OpDef {
    name: "QLinearMatMul",
    outputs: &[req("y", "T3")],
    infer: qlinear_matmul_infer,
    reference: Some(qlinear_matmul_ref),
    lower: &[Loops(qlinear_matmul_loops)],
    tolerance: ROUNDED,
    cases: &[
        "[3,4];[]{0.5};[]{1};[4,5];[]{0.25};[]{2};[]{2};[]{3}",
        "[3,4];[3]{0.5,1,2};[3]{1,2,0};[4,5];[5]{0.25,1,2,0.5,4};[5]{2,0,1,3,4};[]{2};[]{3}",
        "[2,3,4];[2,3,1]{0.5,1,2};[2,3,1]{1,2,0};[4,5];[1]{0.25};[1]{2};[]{0.01};[]{3}",
        "[4];[]{0.5};[]{1};[4];[]{0.25};[]{2};[]{2};[]{3}",
        "[2,0];[]{0.5};[]{1};[0,3];[]{0.25};[]{2};[]{2};[]{3}",
    ],
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = (A - a_zero_point) · (B - b_zero_point) in wrapping i32
    OpDef {
        name: "MatMulInteger",
        since: 10,
        inputs: &[req("A", "T1"), req("B", "T2"), opt("a_zero_point", "T1"), opt("b_zero_point", "T2")],
        outputs: &[req("Y", "T3")],
        dtypes: &[("T1", BYTES), ("T2", BYTES), ONLY_I32],
        infer: |c| matmul_infer(c, INTEGER, I32),
        reference: Some(|c| Ok(vec![quant::matmul_integer(c.input(0)?, c.input(1)?, c.opt(2), c.opt(3))?])),
        lower: &[Loops(matmul_integer_loops)],
        cases: &[
            "[3,4]{250,3,7,100};[4,5]",
            "[3,4];[4,5];[]{3};[]{250}",
            "[3,4];[4,5];[3]{3,1,2};[5]{1,0,2,4,3}",
            "[2,3,4];[2,4,5];[2,3,1]{3,1,2};[2,1,5]{1,0,2,4,3}",
            "[2,1,3,4];[5,4,2];[1]{3}",
            "[4];[4,3];_;[3]{1,2,3}",
            "[2,0];[0,3];[]{1};[]{1}",
        ],
        ..ROW
    },
    OpDef {
        since: 10,
        until: 20,
        inputs: &[
            req("a", "T1"),
            req("a_scale", "tensor(float)"),
            req("a_zero_point", "T1"),
            req("b", "T2"),
            req("b_scale", "tensor(float)"),
            req("b_zero_point", "T2"),
            req("y_scale", "tensor(float)"),
            req("y_zero_point", "T3"),
        ],
        dtypes: &[("T1", BYTES), ("T2", BYTES), ("T3", BYTES), F32_SCALES],
        ..QLINEAR_MATMUL
    },
    // Scales of narrow floats, 8-bit floats
    OpDef {
        since: 21,
        inputs: &[
            req("a", "T1"),
            req("a_scale", "TS"),
            req("a_zero_point", "T1"),
            req("b", "T2"),
            req("b_scale", "TS"),
            req("b_zero_point", "T2"),
            req("y_scale", "TS"),
            req("y_zero_point", "T3"),
        ],
        dtypes: &[("TS", &[F32, F16, BF16]), ("T1", WITH_F8), ("T2", WITH_F8), ("T3", WITH_F8)],
        ..QLINEAR_MATMUL
    },
    // y = the convolution of x - x_zero_point by w - w_zero_point in wrapping i32
    OpDef {
        name: "ConvInteger",
        since: 10,
        inputs: &[req("x", "T1"), req("w", "T2"), opt("x_zero_point", "T1"), opt("w_zero_point", "T2")],
        outputs: &[req("y", "T3")],
        attrs: &ATTRS,
        dtypes: &[("T1", BYTES), ("T2", BYTES), ONLY_I32],
        infer: |c| {
            check_channels(c, 2, 1, false)?;
            check_channels(c, 3, 1, true)?;
            conv::conv_shape(c, CONV_INTEGER.places, I32)
        },
        reference: Some(|c| {
            let (x, w) = (c.input(0)?, c.input(1)?);
            let (window, group) = conv::ref_window(c, x, w)?;
            Ok(vec![quant::conv_integer(x, w, c.opt(2), c.opt(3), &window, group)?])
        }),
        lower: &[Loops(|c| {
            let (b, sum) = conv_sum(c, CONV_INTEGER)?;
            Ok(b.store(sum))
        })],
        cases: &[
            "[1,2,5,4]{250,3,100,7,0};[3,2,2,2];[]{3} kernel_shape=[2,2] pads=[1,0,1,2]",
            "[2,4,6];[6,2,3];[]{5};[6]{1,2,0,3,4,5} kernel_shape=[3] group=2 strides=[2] auto_pad=SAME_UPPER",
            "[1,1,4,4];[1,1,2,2] kernel_shape=[2,2]",
        ],
        ..ROW
    },
    // y = saturate(round(sum · x_scale · w_scale / y_scale) + y_zero_point), sum as of ConvInteger with B added
    OpDef {
        name: "QLinearConv",
        since: 10,
        inputs: &[
            req("x", "T1"),
            req("x_scale", "tensor(float)"),
            req("x_zero_point", "T1"),
            req("w", "T2"),
            req("w_scale", "tensor(float)"),
            req("w_zero_point", "T2"),
            req("y_scale", "tensor(float)"),
            req("y_zero_point", "T3"),
            opt("B", "T4"),
        ],
        outputs: &[req("y", "T3")],
        attrs: &ATTRS,
        dtypes: &[("T1", BYTES), ("T2", BYTES), ("T3", BYTES), ("T4", &[I32]), F32_SCALES],
        infer: qlinear_conv_infer,
        reference: Some(qlinear_conv_ref),
        lower: &[Loops(qlinear_conv_loops)],
        tolerance: ROUNDED,
        cases: &[
            "[1,2,5,4];[]{0.5};[]{3};[3,2,2,2];[]{0.25};[]{1};[]{0.5};[]{7} kernel_shape=[2,2] pads=[1,0,1,2]",
            "[2,4,6];[]{0.5};[]{3};[6,2,3];[6]{1,0.25,2,1,0.5,4};[6]{1,2,0,3,4,5};[]{3};[]{7};[6]{1,100,-50} kernel_shape=[3] group=2",
            "[1,1,4,4];[1]{0.5};[1]{3};[1,1,2,2];[1]{0.25};[1]{1};[1]{0.5};[1]{7} kernel_shape=[2,2] strides=[2,2]",
        ],
        ..ROW
    },
];
