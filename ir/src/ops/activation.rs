//! Functions of one operand: signs and roundings, smooth functions, activations, clipping.

use super::broadcast::{map_values, require_broadcasts_to};
use super::elementwise::{dim_max, dim_min, int_values};
use super::pointwise::{Exprs, arg, one};
use super::row::*;
use crate::lowering::Candidate::Pointwise;
use crate::lowering::NodeCtx;
use crate::nest::{BinOp, Expr, ExprId, Nest, UnOp};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, OpTraits, Tol, attr, opt, req};
use reference::{activation as a, elementwise as e};
use tensor::DType::*;
use tensor::{ErrorKind, Result};

fn unary(n: &mut Nest, op: UnOp, args: &[Option<ExprId>]) -> Exprs {
    let x = arg(args, 0)?;
    one(n.un(op, x))
}

/// Attribute `i` as the f64 of its f32.
fn num(c: &crate::attrs::Attrs, i: usize) -> f64 {
    c.float(i).unwrap_or(0.0).into()
}

/// `x > 0`-like tests against a constant.
fn test(n: &mut Nest, op: BinOp, x: ExprId, v: f64) -> ExprId {
    n.bin_num(op, x, v)
}

/// `eˣ - 1`. The nest has no such operation: below 1/2 a series keeps the digits that the difference would lose. Its first term left
/// out is below a quarter of the last bit.
fn exp_m1(n: &mut Nest, x: ExprId) -> ExprId {
    let terms = if n.expr_dtype(x) == F64 { 15u32 } else { 9 };
    let e = n.un(UnOp::Exp, x);
    let plain = n.bin_num(BinOp::Sub, e, 1.0);
    // Σ xᵏ / k! by Horner, from the last term down to x²/2.
    let coefficient = |k: u32| 1.0 / (1..=k).map(f64::from).product::<f64>();
    let mut t = n.bin_num(BinOp::Mul, x, coefficient(terms));
    for k in (2..terms).rev() {
        let sum = n.bin_num(BinOp::Add, t, coefficient(k));
        t = n.bin(BinOp::Mul, sum, x);
    }
    let rest = n.bin(BinOp::Mul, t, x);
    let series = n.bin(BinOp::Add, x, rest);
    let abs = n.un(UnOp::Abs, x);
    let small = n.bin_num(BinOp::Lt, abs, 0.5);
    n.select(small, series, plain)
}

/// A function of one float operand without attributes.
macro_rules! function {
    ($name:literal, $since:literal, $reference:expr, $op:ident) => {
        function!(
            $name,
            $since,
            $reference,
            |_c, n, x| n.un(UnOp::$op, x),
            ["[2,3]", "[7]{nan,inf,-inf,0,-0,1e-3,-30}"]
        )
    };
    ($name:literal, $since:literal, $reference:expr, |$c:ident, $n:ident, $x:ident| $body:expr, $cases:expr) => {
        function!($name, $since, &[], $reference, |$c, $n, $x| $body, $cases)
    };
    ($name:literal, $since:literal, $attrs:expr, $reference:expr, |$c:ident, $n:ident, $x:ident| $body:expr, $cases:expr) => {
        OpDef {
            name: $name,
            since: $since,
            inputs: &[req("X", "T")],
            outputs: &[req("Y", "T")],
            attrs: $attrs,
            dtypes: &[("T", FLOATS)],
            infer: same_type_as_0,
            reference: Some(|c| ref1(c, |x| $reference(c.attrs, x))),
            lower: &[Pointwise(|$c, $n, args| {
                let $x = arg(args, 0)?;
                one($body)
            })],
            tolerance: Tol::Rel(1e-5),
            cases: &$cases,
            ..ROW
        }
    };
}

const SPECIAL: [&str; 3] = ["[2,3]", "[0,2]", "[9]{nan,inf,-inf,0,-0.5,1e-3,-30,4,-1e-3}"];
/// Also what is far below zero, each alone: beside a greater element the tolerance would hide it.
const FAR_BELOW: [&str; 6] = [SPECIAL[0], SPECIAL[1], SPECIAL[2], "[1]{-14}", "[1]{-30}", "[1]{-55}"];

fn clip_bounds(c: &mut NodeCtx, n: &mut Nest, args: &[Option<ExprId>]) -> Exprs {
    let mut x = arg(args, 0)?;
    for (i, op) in [(1, BinOp::Max), (2, BinOp::Min)] {
        if c.has(i) {
            let bound = arg(args, i)?;
            x = n.bin(op, x, bound);
        }
    }
    one(x)
}

/// Both operands have one shape: nothing is broadcast.
fn infer_gated(c: &mut InferCtx) -> Result<()> {
    if let (Some(a), Some(b)) = (c.shape(0), c.shape(1)) {
        if a.len() != b.len() {
            return Err(c.error(ErrorKind::Shape, format!("{}: operands of different rank", c.def.name)));
        }
        for (&a, &b) in a.iter().zip(&b) {
            c.require_eq(a, b, "the operands have one shape")?;
        }
    }
    same_type_as_0(c)
}

fn infer_clip(c: &mut InferCtx) -> Result<()> {
    same_type_as_0(c)?;
    for i in [1, 2] {
        // A bound is a scalar; one element in another shape is what some exporters write.
        if let Some(s) = c.shape(i) {
            let one = c.dims.constant(1);
            for d in s {
                c.require_eq(d, one, "a bound has one element")?;
            }
        }
    }
    match (c.has(1), c.has(2)) {
        (true, true) => int_values(c, &[0, 1, 2], |p, v| {
            let x = dim_max(p, v[0], v[1])?;
            dim_min(p, x, v[2])
        }),
        (true, false) => int_values(c, &[0, 1], |p, v| dim_max(p, v[0], v[1])),
        (false, true) => int_values(c, &[0, 2], |p, v| dim_min(p, v[0], v[1])),
        (false, false) => {}
    }
    Ok(())
}

fn infer_prelu(c: &mut InferCtx) -> Result<()> {
    same_type_as_0(c)?;
    if let (Some(slope), Some(x)) = (c.shape(1), c.shape(0)) {
        require_broadcasts_to(c, &slope, &x, "the slope")?;
    }
    Ok(())
}

/// ai.onnx.ml Scaler: Y = (X - offset) · scale along the last axis, as f32.
fn scaler_lower(c: &mut NodeCtx, n: &mut Nest, args: &[Option<ExprId>]) -> Exprs {
    let x = arg(args, 0)?;
    let x = n.cast(x, F32);
    let rank = c.outs[0].shape.len();
    let column = match rank {
        0 => None,
        r => u16::try_from(r - 1).ok().map(crate::nest::Axis::Outer),
    };
    let pick = |i: usize, n: &mut Nest| -> crate::lowering::Plan<ExprId> {
        let list = c.attrs.floats(i).unwrap_or_else(|| vec![if i == 0 { 0.0 } else { 1.0 }]);
        if list.iter().all(|v| v.to_bits() == list[0].to_bits()) {
            return Ok(n.num(list[0].into(), F32));
        }
        // Each column's number by a chain of selections: scalers have few columns.
        if list.len() > 64 {
            return Err(format!("{} columns are more than a chain of selections is made for", list.len()).into());
        }
        let index = n.expr(Expr::Index(column.ok_or("a scalar has no columns")?));
        let mut acc = n.num(list[list.len() - 1].into(), F32);
        for (k, &v) in list.iter().enumerate().rev().skip(1) {
            let is = n.bin_num(BinOp::Eq, index, k as f64);
            let v = n.num(v.into(), F32);
            acc = n.select(is, v, acc);
        }
        Ok(acc)
    };
    let (offset, scale) = (pick(0, n)?, pick(1, n)?);
    let d = n.bin(BinOp::Sub, x, offset);
    one(n.bin(BinOp::Mul, d, scale))
}

fn infer_scaler(c: &mut InferCtx) -> Result<()> {
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, F32);
        return Ok(());
    };
    for (i, name) in [(0, "offset"), (1, "scale")] {
        let n = c.attrs.floats(i).map_or(1, |v| v.len());
        if n == 0 {
            return Err(c.error(ErrorKind::Shape, format!("Scaler: {name} is empty")));
        }
        if n > 1 {
            let last = s.last().copied().unwrap_or_else(|| c.dims.constant(1));
            let n = c.dims.constant(n as i64);
            c.require_eq(last, n, &format!("one {name} per column"))?;
        }
    }
    c.set(0, F32, s);
    Ok(())
}

/// GELU, exact or by tanh.
const GELU: OpDef = OpDef {
    name: "Gelu",
    since: 20,
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T")],
    attrs: &[attr("approximate", AttrKind::Str("none"))],
    dtypes: &[("T", FLOATS)],
    infer: |c| match c.attrs.str(0) {
        Some("none" | "tanh") | None => same_type_as_0(c),
        Some(x) => Err(c.error(ErrorKind::Unsupported, format!("Gelu: approximate={x:?} is not none or tanh"))),
    },
    reference: Some(|c| ref1(c, |x| if c.attrs.str(0) == Some("tanh") { a::gelu_tanh(x) } else { a::gelu(x) })),
    lower: &[Pointwise(|c, n, args| {
        let x = arg(args, 0)?;
        one(if c.attrs.str(0) == Some("tanh") { n.gelu_tanh(x) } else { n.gelu(x) })
    })],
    tolerance: Tol::Rel(1e-5),
    cases: &["[2,3]", "[2,3] approximate=tanh", "[6]{0,1,-1,5,-5,nan}"],
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = -X
    OpDef {
        name: "Neg",
        since: 6,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", SIGNED)],
        infer: |c| {
            same_type_as_0(c)?;
            int_values(c, &[0], |p, v| {
                let zero = p.constant(0);
                p.as_const(v[0]).is_none_or(|x| x.unsigned_abs() < 1 << 62).then(|| p.sub(zero, v[0]))
            });
            Ok(())
        },
        reference: Some(|c| ref1(c, e::neg)),
        lower: &[Pointwise(|_, n, x| unary(n, UnOp::Neg, x))],
        cases: &["[2,3]", "[]", "[0]"],
        ..ROW
    },
    // Y = |X|
    OpDef {
        name: "Abs",
        since: 6,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", NUMS)],
        infer: |c| {
            same_type_as_0(c)?;
            int_values(c, &[0], |p, v| match p.as_const(v[0]) {
                Some(x) => x.checked_abs().map(|x| p.constant(x)),
                None => (p.range(v[0]).0 >= 0).then_some(v[0]),
            });
            Ok(())
        },
        reference: Some(|c| ref1(c, e::abs)),
        lower: &[Pointwise(|_, n, x| unary(n, UnOp::Abs, x))],
        cases: &["[2,3]", "[3]{-2,0,2}"],
        ..ROW
    },
    // Y = 1, 0 or -1
    OpDef {
        name: "Sign",
        since: 9,
        inputs: &[req("input", "T")],
        outputs: &[req("output", "T")],
        dtypes: &[("T", NUMS)],
        infer: same_type_as_0,
        reference: Some(|c| ref1(c, e::sign)),
        lower: &[Pointwise(|_, n, x| unary(n, UnOp::Sign, x))],
        cases: &["[4]{-2,0,2,1}", "[2,3]"],
        ..ROW
    },
    // Y = max(X, 0)
    OpDef {
        name: "Relu",
        since: 6,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", SIGNED)],
        infer: |c| {
            same_type_as_0(c)?;
            map_values(c, &[0], |p, v| {
                let zero = p.constant(0);
                dim_max(p, v[0], zero)
            });
            Ok(())
        },
        reference: Some(|c| ref1(c, e::relu)),
        lower: &[Pointwise(|_, n, args| {
            let x = arg(args, 0)?;
            one(n.bin_num(BinOp::Max, x, 0.0))
        })],
        cases: &["[2,3]", "[4]{-1,0,1,2}", "[0]"],
        ..ROW
    },
    function!("Floor", 6, |_, x| e::floor(x), Floor),
    function!("Ceil", 6, |_, x| e::ceil(x), Ceil),
    function!(
        "Round",
        11,
        |_, x| e::round(x),
        |_c, n, x| n.un(UnOp::RoundEven, x),
        ["[6]{0.5,1.5,2.5,-0.5,-1.5,nan}", "[2,3]"]
    ),
    function!("Sqrt", 6, |_, x| a::sqrt(x), Sqrt),
    function!(
        "Reciprocal",
        6,
        |_, x| a::reciprocal(x),
        |_c, n, x| n.num_bin(BinOp::Div, 1.0, x),
        ["[2,3]", "[4]{inf,0,2,-4}"]
    ),
    function!(
        "Exp",
        6,
        |_, x| a::exp(x),
        |_c, n, x| n.un(UnOp::Exp, x),
        ["[2,3]", "[5]{nan,-inf,0,1,-30}", "[2]{inf,1}"]
    ),
    function!("Log", 6, |_, x| a::log(x), Log),
    function!("Erf", 9, |_, x| a::erf(x), Erf),
    function!("Sin", 7, |_, x| a::sin(x), Sin),
    function!("Cos", 7, |_, x| a::cos(x), Cos),
    function!("Tan", 7, |_, x| a::tan(x), |_c, n, x| n.un(UnOp::Tan, x), ["[2,3]", "[3]{0,0.5,-1}"]),
    function!("Asin", 7, |_, x| a::asin(x), |_c, n, x| n.un(UnOp::Asin, x), ["[5]{-1,-0.5,0,0.5,1}"]),
    function!("Acos", 7, |_, x| a::acos(x), |_c, n, x| n.un(UnOp::Acos, x), ["[5]{-1,-0.5,0,0.5,1}"]),
    function!("Atan", 7, |_, x| a::atan(x), Atan),
    function!("Sinh", 9, |_, x| a::sinh(x), |_c, n, x| n.un(UnOp::Sinh, x), ["[2,3]", "[3]{0,0.01,-1}"]),
    function!("Cosh", 9, |_, x| a::cosh(x), |_c, n, x| n.un(UnOp::Cosh, x), ["[2,3]", "[3]{0,0.01,-1}"]),
    function!("Asinh", 9, |_, x| a::asinh(x), |_c, n, x| n.un(UnOp::Asinh, x), ["[2,3]", "[3]{0,0.01,-1}"]),
    function!("Acosh", 9, |_, x| a::acosh(x), |_c, n, x| n.un(UnOp::Acosh, x), ["[4]{1,1.5,2,10}"]),
    function!("Atanh", 9, |_, x| a::atanh(x), |_c, n, x| n.un(UnOp::Atanh, x), ["[4]{-0.5,0,0.5,0.9}"]),
    function!("Tanh", 6, |_, x| a::tanh(x), Tanh),
    function!("Sigmoid", 6, |_, x| a::sigmoid(x), |_c, n, x| n.sigmoid(x), SPECIAL),
    function!("Softplus", 1, |_, x| a::softplus(x), |_c, n, x| n.softplus(x), FAR_BELOW),
    function!(
        "Softsign",
        1,
        |_, x| a::softsign(x),
        |_c, n, x| {
            let d = n.un(UnOp::Abs, x);
            let d = n.bin_num(BinOp::Add, d, 1.0);
            n.bin(BinOp::Div, x, d)
        },
        ["[2,3]", "[4]{0,-1,5,nan}"]
    ),
    function!(
        "LeakyRelu",
        6,
        &[attr("alpha", AttrKind::Float(0.01))],
        |c, x| a::leaky_relu(x, num(c, 0)),
        |c, n, x| {
            let s = n.bin_num(BinOp::Mul, x, num(c.attrs, 0));
            let neg = test(n, BinOp::Lt, x, 0.0);
            n.select(neg, s, x)
        },
        ["[2,3]", "[5]{nan,inf,-inf,0,-1} alpha=0.2"]
    ),
    function!(
        "ThresholdedRelu",
        10,
        &[attr("alpha", AttrKind::Float(1.0))],
        |c, x| a::thresholded_relu(x, num(c, 0)),
        |c, n, x| {
            let zero = n.num_like(0.0, x);
            let above = test(n, BinOp::Gt, x, num(c.attrs, 0));
            n.select(above, x, zero)
        },
        ["[2,3]", "[4]{0.5,1,2,-3} alpha=0.75"]
    ),
    function!(
        "HardSigmoid",
        6,
        &[attr("alpha", AttrKind::Float(0.2)), attr("beta", AttrKind::Float(0.5))],
        |c, x| a::hard_sigmoid(x, num(c, 0), num(c, 1)),
        |c, n, x| {
            let s = n.bin_num(BinOp::Mul, x, num(c.attrs, 0));
            let s = n.bin_num(BinOp::Add, s, num(c.attrs, 1));
            n.clamp(s, 0.0, 1.0)
        },
        ["[2,3]", "[5]{nan,inf,-inf,3,-3} alpha=0.5 beta=0.1"]
    ),
    function!(
        "HardSwish",
        14,
        |_, x| a::hard_swish(x),
        |_c, n, x| {
            let s = n.bin_num(BinOp::Mul, x, 1.0 / 6.0);
            let s = n.bin_num(BinOp::Add, s, 0.5);
            let s = n.clamp(s, 0.0, 1.0);
            n.bin(BinOp::Mul, x, s)
        },
        ["[2,3]", "[5]{4,-4,3,0,nan}"]
    ),
    function!(
        "Elu",
        6,
        &[attr("alpha", AttrKind::Float(1.0))],
        |c, x| a::elu(x, num(c, 0)),
        |c, n, x| {
            let m = exp_m1(n, x);
            let m = n.bin_num(BinOp::Mul, m, num(c.attrs, 0));
            let neg = test(n, BinOp::Lt, x, 0.0);
            n.select(neg, m, x)
        },
        ["[2,3]", "[6]{nan,inf,-inf,0,-1,-1e-4} alpha=2"]
    ),
    function!(
        "Selu",
        6,
        // The defaults of the specification, as f32.
        &[attr("alpha", AttrKind::Float(1.673_263_2)), attr("gamma", AttrKind::Float(1.050_701))],
        |c, x| a::selu(x, num(c, 0), num(c, 1)),
        |c, n, x| {
            let m = exp_m1(n, x);
            let m = n.bin_num(BinOp::Mul, m, num(c.attrs, 0));
            let pos = test(n, BinOp::Gt, x, 0.0);
            let y = n.select(pos, x, m);
            n.bin_num(BinOp::Mul, y, num(c.attrs, 1))
        },
        ["[2,3]", "[5]{nan,inf,-inf,0,-1}"]
    ),
    function!(
        "Celu",
        12,
        &[attr("alpha", AttrKind::Float(1.0))],
        |c, x| a::celu(x, num(c, 0)),
        |c, n, x| {
            let alpha = num(c.attrs, 0);
            let s = n.bin_num(BinOp::Div, x, alpha);
            let m = exp_m1(n, s);
            let m = n.bin_num(BinOp::Mul, m, alpha);
            let low = n.bin_num(BinOp::Min, m, 0.0);
            let high = n.bin_num(BinOp::Max, x, 0.0);
            n.bin(BinOp::Add, high, low)
        },
        ["[2,3]", "[4]{0,-1,2,nan} alpha=0.5"]
    ),
    function!(
        "Mish",
        18,
        |_, x| a::mish(x),
        |_c, n, x| {
            let s = n.softplus(x);
            let t = n.un(UnOp::Tanh, s);
            n.bin(BinOp::Mul, x, t)
        },
        ["[2,3]", "[4]{0,-5,20,nan}", "[1]{-14}", "[1]{-30}", "[1]{-55}"]
    ),
    function!(
        "Swish",
        24,
        &[attr("alpha", AttrKind::Float(1.0))],
        |c, x| a::swish(x, num(c, 0)),
        |c, n, x| {
            let s = n.bin_num(BinOp::Mul, x, num(c.attrs, 0));
            let s = n.sigmoid(s);
            n.bin(BinOp::Mul, x, s)
        },
        ["[2,3]", "[4]{0,-5,20,nan} alpha=2"]
    ),
    // Y = A · sigmoid(alpha · A) · B
    OpDef {
        name: "SwiGLU",
        since: 28,
        inputs: &[req("A", "T"), req("B", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[attr("alpha", AttrKind::Float(1.0))],
        dtypes: &[("T", FLOATS)],
        infer: infer_gated,
        reference: Some(|c| ref2(c, |x, gated| a::swiglu(x, gated, num(c.attrs, 0)))),
        lower: &[Pointwise(|c, n, args| {
            let (x, gated) = (arg(args, 0)?, arg(args, 1)?);
            let s = n.bin_num(BinOp::Mul, x, num(c.attrs, 0));
            let s = n.sigmoid(s);
            let y = n.bin(BinOp::Mul, x, s);
            one(n.bin(BinOp::Mul, y, gated))
        })],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3];[2,3]", "[4]{0,-5,20,nan};[4] alpha=2"],
        ..ROW
    },
    function!(
        "Shrink",
        9,
        &[attr("bias", AttrKind::Float(0.0)), attr("lambd", AttrKind::Float(0.5))],
        |c, x| a::shrink(x, num(c, 1), num(c, 0)),
        |c, n, x| {
            let (bias, lambda) = (num(c.attrs, 0), num(c.attrs, 1));
            let zero = n.num_like(0.0, x);
            let (plus, minus) = (n.bin_num(BinOp::Add, x, bias), n.bin_num(BinOp::Sub, x, bias));
            let (low, high) = (test(n, BinOp::Lt, x, -lambda), test(n, BinOp::Gt, x, lambda));
            let y = n.select(high, minus, zero);
            n.select(low, plus, y)
        },
        ["[2,3]", "[4]{0,-2,2,nan} bias=0.25 lambd=1"]
    ),
    // Y = X < 0 ? slope · X : X
    OpDef {
        name: "PRelu",
        since: 7,
        inputs: &[req("X", "T"), req("slope", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", &[F32, F16, BF16, F64, I32, I64, U32, U64])],
        infer: infer_prelu,
        reference: Some(|c| ref2(c, a::prelu)),
        lower: &[Pointwise(|_, n, args| {
            let (x, slope) = (arg(args, 0)?, arg(args, 1)?);
            let s = n.bin(BinOp::Mul, x, slope);
            let neg = test(n, BinOp::Lt, x, 0.0);
            one(n.select(neg, s, x))
        })],
        tolerance: ROUNDED,
        cases: &["[2,3];[2,3]", "[2,3,2];[3,1]", "[4];[]", "[2,3];[1]"],
        ..ROW
    },
    GELU,
    OpDef { domain: HIP_DOMAIN, since: 1, ..GELU },
    // Y = X · sigmoid(X)
    OpDef {
        domain: HIP_DOMAIN,
        ..function!(
            "Silu",
            1,
            |_, x| a::swish(x, 1.0),
            |_c, n, x| {
                let s = n.sigmoid(x);
                n.bin(BinOp::Mul, x, s)
            },
            ["[2,3]", "[4]{0,-5,20,nan}"]
        )
    },
    // output = min(max(input, min), max), the bounds as attributes
    OpDef {
        until: 10,
        ..function!(
            "Clip",
            6,
            &[attr("max", AttrKind::Float(f32::MAX)), attr("min", AttrKind::Float(f32::MIN))],
            |c, x| e::clip_to(x, Some(num(c, 1)), Some(num(c, 0))),
            |c, n, x| n.clamp(x, num(c.attrs, 1), num(c.attrs, 0)),
            ["[2,3]", "[2,3] min=-0.5 max=0.5", "[2]{nan,1} min=0"]
        )
    },
    // output = min(max(input, min), max), the bounds as operands
    OpDef {
        name: "Clip",
        since: 11,
        inputs: &[req("input", "T"), opt("min", "T"), opt("max", "T")],
        outputs: &[req("output", "T")],
        dtypes: &[("T", NUMS)],
        infer: infer_clip,
        reference: Some(|c| Ok(vec![e::clip(c.input(0)?, c.opt(1), c.opt(2))])),
        lower: &[Pointwise(clip_bounds)],
        cases: &[
            "[2,3]",
            "[5]{0,1,2,3,4};[]{1};[]{3}",
            "[4]{0,1,2,3};_;[]{2}",
            "[4]{0,1,2,3};[]{2}",
            "[3]{0,5,9};[]{7};[]{3}",
        ],
        ..ROW
    },
    // Y = (X - offset) · scale along the last axis, as f32
    OpDef {
        name: "Scaler",
        domain: "ai.onnx.ml",
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "tensor")],
        attrs: &[attr("offset", AttrKind::Floats), attr("scale", AttrKind::Floats)],
        dtypes: &[("T", &[F32, F64, I32, I64]), ("tensor", &[F32])],
        infer: infer_scaler,
        reference: Some(|c| {
            let list = |i, d: f64| c.attrs.floats(i).map_or(vec![d], |v| v.into_iter().map(f64::from).collect());
            Ok(vec![a::scaler(c.input(0)?, &list(0, 0.0), &list(1, 1.0))?])
        }),
        lower: &[Pointwise(scaler_lower)],
        traits: OpTraits { positional: true, ..OpTraits::NONE },
        tolerance: ROUNDED,
        cases: &["[2,3]", "[2,3] offset=[1,2,3] scale=[0.5,2,4]", "[4,2] offset=[0.5] scale=[2]"],
        ..ROW
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::{Access, Axis, Coord, NestOperand, Phase, Term};
    use tensor::Tensor;
    use tensor::dims::DimPool;

    /// `exp_m1` of every element by the interpreter of nests.
    fn evaluate(x: &Tensor) -> Tensor {
        let mut dims = DimPool::new();
        let (zero, one, len) = (dims.constant(0), dims.constant(1), dims.constant(x.shape()[0] as i64));
        let mut n = Nest { outer: vec![len], ..Nest::default() };
        let [read, write] = [false, true].map(|written| {
            let (shape, strides) = ([len].into_iter().collect(), [one].into_iter().collect());
            let operand = n.operand(NestOperand { dtype: x.dtype(), shape, strides, written });
            let terms = [(Term::Axis(Axis::Outer(0)), one)].into_iter().collect();
            Access { operand, coords: [Coord { offset: zero, terms }].into_iter().collect() }
        });
        let v = n.expr(Expr::Load(read));
        let v = exp_m1(&mut n, v);
        n.phases = vec![Phase::Store { over_inner: false, stores: vec![(write, v)] }];
        crate::nest_eval::eval(&n, &dims, &|_| None, &[x]).unwrap().remove(0)
    }

    #[test]
    fn exp_m1_keeps_its_digits_near_zero() {
        let xs: Vec<f64> = (0..4000).map(|i| -20.0 * (-0.007 * f64::from(i)).exp()).collect();
        for (d, bound) in [(F64, 1e-14), (F32, 4e-7)] {
            let x = Tensor::from_f64_as(d, &[xs.len()], &xs);
            let y = evaluate(&x);
            for i in 0..xs.len() {
                let (x, y) = (x.view().f64_at(i), y.view().f64_at(i));
                assert!((y / x.exp_m1() - 1.0).abs() < bound, "{d} {x:e} gives {y:e}, not {:e}", x.exp_m1());
            }
        }
    }
}
