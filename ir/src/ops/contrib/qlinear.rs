//! Elementwise operators of quantized tensors, whose scales and zero points are one number each.

use super::super::broadcast::set_broadcast;
use super::super::pointwise::{Exprs, arg, one};
use super::super::row::{ROUNDED, ROW, same_type_as_0};
use super::MICROSOFT;
use crate::lowering::Candidate::Pointwise;
use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, ExprId, Nest};
use crate::op::{AttrKind, InferCtx, OpDef, Param, RefCtx, attr, opt, req};
use reference::cast::Rounding;
use reference::data::{f64s, from_f64s};
use reference::quant::{self, Granularity};
use reference::{activation, elementwise};
use tensor::DType::{self, Bool, F32, F64, I8, I32, U8};
use tensor::{ErrorKind, Result, Tensor};

pub(super) const BYTES: &[DType] = &[U8, I8];
pub(super) const T8: (&str, &[DType]) = ("T", BYTES);
pub(super) const SCALES: (&str, &[DType]) = ("tensor(float)", &[F32]);

/// Refuses scales and zero points that are not one number: of rank 0, or a list of one element.
pub(super) fn require_scalars(c: &mut InferCtx, operands: &[usize]) -> Result<()> {
    for &i in operands {
        let Some(s) = c.shape(i) else { continue };
        if s.len() > 1 || s.iter().any(|&d| c.dims.as_const(d) != Some(1)) {
            let text = format!("{}: {} is not one number, of shape [] or [1]", c.def.name, c.def.inputs[i].name);
            return Err(c.error(ErrorKind::Shape, text));
        }
    }
    Ok(())
}

/// The numbers that operand `i` stands for, whose scale and zero point follow it.
pub(super) fn values(c: &RefCtx, i: usize, to: DType) -> Result<Tensor> {
    quant::dequantize(c.input(i)?, c.input(i + 1)?, c.opt(i + 2), Granularity::Tensor, to)
}

/// Numbers as integers of the type of operand `like`, by the scale in operand `scale` and the zero point that follows it.
pub(super) fn requantized(c: &RefCtx, v: &Tensor, scale: usize, like: usize) -> Result<Vec<Tensor>> {
    let to = quant::Target { dtype: c.input(like)?.dtype(), precision: v.dtype(), saturate: true };
    Ok(vec![quant::quantize(v, c.input(scale)?, c.opt(scale + 1), Granularity::Tensor, to)?])
}

/// Operand `i` without its zero point, which is operand `i + 2`.
fn centered(n: &mut Nest, args: &[Option<ExprId>], i: usize) -> Plan<ExprId> {
    let x = n.cast(arg(args, i)?, I32);
    Ok(match args.get(i + 2).copied().flatten() {
        Some(zero) => {
            let zero = n.cast(zero, I32);
            n.bin(BinOp::Sub, x, zero)
        }
        None => x,
    })
}

/// The number that operand `i` stands for.
fn value(n: &mut Nest, args: &[Option<ExprId>], i: usize) -> Plan<ExprId> {
    let x = centered(n, args, i)?;
    let x = n.cast(x, F32);
    Ok(n.bin(BinOp::Mul, x, arg(args, i + 1)?))
}

/// A quotient by the scale of the result as its element; `zero` is the operand that its zero point is.
fn quantized(c: &NodeCtx, n: &mut Nest, q: ExprId, args: &[Option<ExprId>], zero: usize) -> Exprs {
    let to = c.outs.first().ok_or("the node has no result")?.dtype;
    let zero = args.get(zero).copied().flatten().map(|z| n.cast(z, I32));
    one(n.quantized(q, zero, to, Rounding::default()))
}

/// `f` of the number that each element stands for.
fn unary(c: &NodeCtx, n: &mut Nest, args: &[Option<ExprId>], f: impl Fn(&mut Nest, ExprId) -> ExprId) -> Exprs {
    let x = value(n, args, 0)?;
    let y = f(n, x);
    let q = n.bin(BinOp::Div, y, arg(args, 3)?);
    quantized(c, n, q, args, 4)
}

fn infer_unary(c: &mut InferCtx) -> Result<()> {
    require_scalars(c, &[1, 2, 3, 4])?;
    same_type_as_0(c)
}

fn infer_binary(c: &mut InferCtx) -> Result<()> {
    require_scalars(c, &[1, 2, 4, 5, 6, 7])?;
    let d = c.dtype(0)?;
    set_broadcast(c, 0, d, &[0, 3])
}

fn binary_ref(c: &RefCtx, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let y = f(&values(c, 0, F64)?, &values(c, 3, F64)?)?;
    let number = |t: &Tensor| f64s(t).first().copied().unwrap_or(0.0);
    let (scale, zero) = (number(c.input(6)?), c.opt(7).map_or(0.0, number));
    let v: Vec<f64> = f64s(&y).iter().map(|v| (v / scale + zero).round_ties_even()).collect();
    Ok(vec![from_f64s(c.input(0)?.dtype(), y.shape(), &v)])
}

/// A quotient by the scale of C, plus its zero point, as an element: the sum is what is rounded.
fn rounded_sum(c: &NodeCtx, n: &mut Nest, q: ExprId, args: &[Option<ExprId>]) -> Exprs {
    let to = c.outs.first().ok_or("the node has no result")?.dtype;
    let v = match args.get(7).copied().flatten() {
        Some(zero) => {
            let zero = n.cast(zero, F32);
            n.bin(BinOp::Add, q, zero)
        }
        None => q,
    };
    one(n.quantized(v, None, to, Rounding::default()))
}

/// Quotients of the scales come first: of equal ones they are exact, and so are halves of steps.
fn add(c: &mut NodeCtx, n: &mut Nest, args: &[Option<ExprId>]) -> Exprs {
    let mut part = |i: usize| -> Plan<ExprId> {
        let x = centered(n, args, i)?;
        let x = n.cast(x, F32);
        let ratio = n.bin(BinOp::Div, arg(args, i + 1)?, arg(args, 6)?);
        Ok(n.bin(BinOp::Mul, x, ratio))
    };
    let (a, b) = (part(0)?, part(3)?);
    let q = n.bin(BinOp::Add, a, b);
    rounded_sum(c, n, q, args)
}

fn mul(c: &mut NodeCtx, n: &mut Nest, args: &[Option<ExprId>]) -> Exprs {
    let (a, b) = (centered(n, args, 0)?, centered(n, args, 3)?);
    let product = n.bin(BinOp::Mul, a, b);
    let product = n.cast(product, F32);
    let scale = n.bin(BinOp::Mul, arg(args, 1)?, arg(args, 4)?);
    let scale = n.bin(BinOp::Div, scale, arg(args, 6)?);
    let q = n.bin(BinOp::Mul, product, scale);
    rounded_sum(c, n, q, args)
}

fn select(c: &mut NodeCtx, n: &mut Nest, args: &[Option<ExprId>]) -> Exprs {
    let (x, y) = (value(n, args, 1)?, value(n, args, 4)?);
    let v = n.select(arg(args, 0)?, x, y);
    let q = n.bin(BinOp::Div, v, arg(args, 7)?);
    quantized(c, n, q, args, 8)
}

fn alpha(attrs: &crate::attrs::Attrs) -> f64 {
    attrs.float(0).unwrap_or(0.01).into()
}

const UNARY: &[Param] = &[
    req("X", "T"),
    req("X_scale", "tensor(float)"),
    opt("X_zero_point", "T"),
    req("Y_scale", "tensor(float)"),
    opt("Y_zero_point", "T"),
];
const BINARY: &[Param] = &[
    req("A", "T"),
    req("A_scale", "tensor(float)"),
    opt("A_zero_point", "T"),
    req("B", "T"),
    req("B_scale", "tensor(float)"),
    opt("B_zero_point", "T"),
    req("C_scale", "tensor(float)"),
    opt("C_zero_point", "T"),
];
const ELEMENTWISE: OpDef = OpDef { domain: MICROSOFT, dtypes: &[T8, SCALES], tolerance: ROUNDED, ..ROW };

/// The rows. Numbers x are (X - X_zero_point) · X_scale, results saturate(round(y / Y_scale) + Y_zero_point) but where something else is said.
pub static ROWS: &[OpDef] = &[
    // C = saturate(round((a + b) / C_scale + C_zero_point))
    OpDef {
        name: "QLinearAdd",
        inputs: BINARY,
        outputs: &[req("C", "T")],
        infer: infer_binary,
        reference: Some(|c| binary_ref(c, elementwise::add)),
        lower: &[Pointwise(add)],
        cases: &[
            "[2,3];[]{0.5};[]{3};[2,3];[]{0.25};[]{5};[]{0.5};[]{3}",
            "[2,1,4]{250,100,3,90};[1]{0.5};_;[3,1];[]{4};[1]{1};[]{0.5}",
            "[5]{1,2,3,4,127};[]{0.125};[]{1};[];[]{0.125};_;[]{0.25};[]{7}",
            "[0,3];[]{1};_;[3];[]{1};_;[]{1}",
        ],
        ..ELEMENTWISE
    },
    // C = saturate(round(a · b / C_scale + C_zero_point))
    OpDef {
        name: "QLinearMul",
        inputs: BINARY,
        outputs: &[req("C", "T")],
        infer: infer_binary,
        reference: Some(|c| binary_ref(c, elementwise::mul)),
        lower: &[Pointwise(mul)],
        cases: &[
            "[2,3];[]{0.5};[]{3};[2,3];[]{0.25};[]{5};[]{0.5};[]{3}",
            "[2,1,4]{250,100,3,90};[1]{0.5};_;[3,1];[]{4};[1]{1};[]{0.5}",
            "[5]{1,2,3,4,127};[]{0.125};[]{1};[];[]{0.125};_;[]{0.25};[]{7}",
        ],
        ..ELEMENTWISE
    },
    // y = 1 / (1 + e^-x)
    OpDef {
        name: "QLinearSigmoid",
        inputs: UNARY,
        outputs: &[req("Y", "T")],
        infer: infer_unary,
        reference: Some(|c| requantized(c, &activation::sigmoid(&values(c, 0, F32)?), 3, 0)),
        lower: &[Pointwise(|c, n, args| unary(c, n, args, |n, x| n.sigmoid(x)))],
        cases: &[
            "[2,3];[]{0.5};[]{3};[1]{0.01};[]{3}",
            "[5]{0,1,120,-128,-3};[]{0.25};_;[]{0.0039}",
            "[];[1]{0.5};_;[]{1}",
        ],
        ..ELEMENTWISE
    },
    // y = x ≥ 0 ? x : alpha · x
    OpDef {
        name: "QLinearLeakyRelu",
        inputs: UNARY,
        outputs: &[req("Y", "T")],
        attrs: &[attr("alpha", AttrKind::Float(0.01))],
        infer: infer_unary,
        reference: Some(|c| requantized(c, &activation::leaky_relu(&values(c, 0, F32)?, alpha(c.attrs)), 3, 0)),
        lower: &[Pointwise(|c, n, args| {
            let alpha = alpha(c.attrs);
            unary(c, n, args, |n, x| {
                let below = n.bin_num(BinOp::Lt, x, 0.0);
                let damped = n.bin_num(BinOp::Mul, x, alpha);
                n.select(below, damped, x)
            })
        })],
        cases: &[
            "[2,3];[]{0.5};[]{5};[1]{0.25};[]{3} alpha=0.125",
            "[5]{0,1,120,-128,-3};[]{0.25};_;[]{0.0039}",
            "[4]{200,7,9,255};[1]{2};[]{100};[]{0.5} alpha=-1",
        ],
        ..ELEMENTWISE
    },
    // z = condition ? x : y
    OpDef {
        name: "QLinearWhere",
        inputs: &[
            req("condition", "B"),
            req("X", "T"),
            req("x_scale", "TF"),
            req("x_zero_point", "T"),
            req("Y", "T"),
            req("y_scale", "TF"),
            req("y_zero_point", "T"),
            req("z_scale", "TF"),
            req("z_zero_point", "T"),
        ],
        outputs: &[req("Z", "T")],
        dtypes: &[("B", &[Bool]), ("TF", &[F32]), T8],
        infer: |c| {
            require_scalars(c, &[2, 3, 5, 6, 7, 8])?;
            let d = c.dtype(1)?;
            set_broadcast(c, 0, d, &[0, 1, 4])
        },
        reference: Some(|c| {
            let z = elementwise::select(c.input(0)?, &values(c, 1, F32)?, &values(c, 4, F32)?)?;
            requantized(c, &z, 7, 1)
        }),
        lower: &[Pointwise(select)],
        cases: &[
            "[2,3];[2,3];[]{0.5};[]{3};[2,3];[]{0.25};[]{5};[]{0.5};[]{3}",
            "[2,1,1];[4]{250,100,3,90};[1]{0.5};[]{1};[3,1];[]{4};[1]{1};[]{0.5};[]{7}",
        ],
        ..ELEMENTWISE
    },
];
