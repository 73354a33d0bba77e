//! Activations at the end of fused ops: attributes, codes of the kernels, expressions of loops.

use crate::lowering::Plan;
use crate::nest::{BinOp, ExprId, Nest, UnOp};
use crate::op::{AttrDef, AttrKind, InferCtx, RefCtx, attr};
use reference::matmul::Activation;
use tensor::{Diagnostic, ErrorKind, Result};

/// The attributes, in the order in which every fused row ends its list.
pub const ACTIVATION_ATTRS: [AttrDef; 3] =
    [attr("activation", AttrKind::Str("")), attr("act_lo", AttrKind::Float(0.0)), attr("act_hi", AttrKind::Float(0.0))];

/// The activation of a node whose three attributes begin at slot `at`.
///
/// # Errors
/// `Unsupported` for an unknown name.
pub fn from_attrs(attrs: &crate::attrs::Attrs, at: usize) -> Result<Activation> {
    let (name, lo, hi) = (attrs.str(at).unwrap_or(""), attrs.float(at + 1), attrs.float(at + 2));
    Activation::from_name(name, lo.unwrap_or(0.0).into(), hi.unwrap_or(0.0).into())
        .ok_or_else(|| Diagnostic::new(ErrorKind::Unsupported, format!("activation {name:?} is not known")))
}

/// The same in a reference function.
///
/// # Errors
/// As [`from_attrs`].
pub fn of_ref(c: &RefCtx, at: usize) -> Result<Activation> {
    from_attrs(c.attrs, at)
}

/// The same in a shape rule: checks the name.
///
/// # Errors
/// As [`from_attrs`].
pub fn check(c: &InferCtx, at: usize) -> Result<()> {
    from_attrs(c.attrs, at).map(|_| ()).map_err(|e| c.error(e.kind(), e.message()))
}

/// The code that kernels know it by, and its two parameters.
pub fn code(a: Activation) -> (i64, [f64; 2]) {
    match a {
        Activation::None => (0, [0.0; 2]),
        Activation::Relu => (1, [0.0; 2]),
        Activation::Gelu => (2, [0.0; 2]),
        Activation::GeluTanh => (3, [0.0; 2]),
        Activation::Silu => (4, [0.0; 2]),
        Activation::Sigmoid => (5, [0.0; 2]),
        Activation::Tanh => (6, [0.0; 2]),
        Activation::Clip(lo, hi) => (7, [lo, hi]),
        Activation::HardSigmoid(a, b) => (8, [a, b]),
    }
}

/// `act(x)` as an expression.
///
/// # Errors
/// Refuses integers, but for no activation.
pub fn apply(n: &mut Nest, a: Activation, x: ExprId) -> Plan<ExprId> {
    let t = n.expr_dtype(x);
    if a == Activation::None {
        return Ok(x);
    }
    if !t.is_float() {
        return Err(format!("no activation of {t}").into());
    }
    let (zero, one, half) = (n.num(0.0, t), n.num(1.0, t), n.num(0.5, t));
    let sigmoid = |n: &mut Nest, x: ExprId| {
        let m = n.un(UnOp::Neg, x);
        let e = n.un(UnOp::Exp, m);
        let d = n.bin(BinOp::Add, e, one);
        n.bin(BinOp::Div, one, d)
    };
    Ok(match a {
        Activation::None => x,
        Activation::Relu => n.bin(BinOp::Max, x, zero),
        Activation::Gelu => {
            let k = n.num(std::f64::consts::FRAC_1_SQRT_2, t);
            let s = n.bin(BinOp::Mul, x, k);
            let e = n.un(UnOp::Erf, s);
            let e = n.bin(BinOp::Add, e, one);
            let h = n.bin(BinOp::Mul, x, half);
            n.bin(BinOp::Mul, h, e)
        }
        Activation::GeluTanh => {
            let (k, c) = (n.num((2.0 / std::f64::consts::PI).sqrt(), t), n.num(0.044715, t));
            let x2 = n.bin(BinOp::Mul, x, x);
            let x3 = n.bin(BinOp::Mul, x2, x);
            let p = n.bin(BinOp::Mul, x3, c);
            let p = n.bin(BinOp::Add, x, p);
            let p = n.bin(BinOp::Mul, p, k);
            let e = n.un(UnOp::Tanh, p);
            let e = n.bin(BinOp::Add, e, one);
            let h = n.bin(BinOp::Mul, x, half);
            n.bin(BinOp::Mul, h, e)
        }
        Activation::Silu => {
            let s = sigmoid(n, x);
            n.bin(BinOp::Mul, x, s)
        }
        Activation::Sigmoid => sigmoid(n, x),
        Activation::Tanh => n.un(UnOp::Tanh, x),
        Activation::Clip(lo, hi) => {
            let (lo, hi) = (n.num(lo, t), n.num(hi, t));
            let m = n.bin(BinOp::Max, x, lo);
            n.bin(BinOp::Min, m, hi)
        }
        Activation::HardSigmoid(a, b) => {
            let (a, b) = (n.num(a, t), n.num(b, t));
            let m = n.bin(BinOp::Mul, x, a);
            let m = n.bin(BinOp::Add, m, b);
            let m = n.bin(BinOp::Max, m, zero);
            n.bin(BinOp::Min, m, one)
        }
    })
}
