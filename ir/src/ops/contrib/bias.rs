//! Activations with a bias, and the sum of a bias and a residual.

use super::super::pointwise::{Exprs, arg, one};
use super::super::row::{ROW, ref1, same_type_as_0};
use super::{MICROSOFT, T, like_first, rounded, sum};
use crate::lowering::Candidate::Pointwise;
use crate::nest::{BinOp, ExprId, Nest};
use crate::op::{AttrKind, OpDef, RefCtx, Tol, attr, opt, req};
use reference::activation as a;
use tensor::{Result, Tensor};

/// `f` of the sum of all operands, in f64 and rounded once.
fn of_sum(c: &RefCtx, f: impl Fn(&Tensor) -> Tensor) -> Result<Vec<Tensor>> {
    let y = f(&sum(c, &[1, 2])?);
    Ok(vec![rounded(&y, c.input(0)?.dtype())])
}

fn sum_of(n: &mut Nest, args: &[Option<ExprId>]) -> Option<ExprId> {
    args.iter().flatten().copied().reduce(|x, y| n.bin(BinOp::Add, x, y))
}

fn gelu_of_sum(n: &mut Nest, args: &[Option<ExprId>], tanh: bool) -> Exprs {
    let x = sum_of(n, args).ok_or("an operand is missing")?;
    one(if tanh { n.gelu_tanh(x) } else { n.gelu(x) })
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = X · Φ(X)
    OpDef {
        name: "Gelu",
        domain: MICROSOFT,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[T],
        infer: same_type_as_0,
        reference: Some(|c| ref1(c, a::gelu)),
        lower: &[Pointwise(|_, n, args| gelu_of_sum(n, args, false))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3]", "[6]{0,1,-1,5,-5,nan}"],
        ..ROW
    },
    // C = (A + B) · Φ(A + B)
    OpDef {
        name: "BiasGelu",
        domain: MICROSOFT,
        inputs: &[req("A", "T"), req("B", "T")],
        outputs: &[req("C", "T")],
        dtypes: &[T],
        infer: like_first,
        reference: Some(|c| of_sum(c, a::gelu)),
        lower: &[Pointwise(|_, n, args| gelu_of_sum(n, args, false))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3];[3]", "[2,4,8];[8]", "[0,3];[3]"],
        ..ROW
    },
    // Y = gelu(X + bias) by tanh
    OpDef {
        name: "FastGelu",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), opt("bias", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[T],
        infer: like_first,
        reference: Some(|c| of_sum(c, a::gelu_tanh)),
        lower: &[Pointwise(|_, n, args| gelu_of_sum(n, args, true))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3]", "[2,4,8];[8]"],
        ..ROW
    },
    // Y = X · sigmoid(alpha · X)
    OpDef {
        name: "QuickGelu",
        domain: MICROSOFT,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[attr("alpha", AttrKind::Float(1.702))],
        dtypes: &[T],
        infer: same_type_as_0,
        reference: Some(|c| ref1(c, |x| a::swish(x, c.attrs.float(0).unwrap_or(1.702).into()))),
        lower: &[Pointwise(|c, n, args| {
            let x = arg(args, 0)?;
            let scaled = n.bin_num(BinOp::Mul, x, c.attrs.float(0).unwrap_or(1.702).into());
            let s = n.sigmoid(scaled);
            one(n.bin(BinOp::Mul, x, s))
        })],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3]", "[5]{0,1,-1,20,-20} alpha=0.5"],
        ..ROW
    },
    // Y = X + bias + skip
    OpDef {
        name: "BiasAdd",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("bias", "T"), req("skip", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[T],
        infer: like_first,
        reference: Some(|c| of_sum(c, |y| y.clone())),
        lower: &[Pointwise(|_, n, args| one(sum_of(n, args).ok_or("an operand is missing")?))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,8];[8];[2,3,8]"],
        ..ROW
    },
];
