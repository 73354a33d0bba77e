//! Arithmetic, comparison, logic and selection with numpy broadcasting.

use super::broadcast::{broadcast_operands, elements, map_values, set_broadcast, truth};
use super::pointwise::{Exprs, arg, one, out_type};
use super::row::*;
use crate::lowering::Candidate::{Host, Pointwise};
use crate::lowering::NodeCtx;
use crate::nest::{BinOp, ExprId, Nest, UnOp};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req, var};
use reference::elementwise as r;
use tensor::DType::{self, *};
use tensor::dims::Proof;
use tensor::{DimId, DimPool, ErrorKind, Result, Tensor};

/// Shape rule of two operands of one type: the broadcast.
fn infer_binary(c: &mut InferCtx) -> Result<()> {
    let d = c.dtype(0)?;
    same_dtype(c, 0, 1)?;
    set_broadcast(c, 0, d, &[0, 1])
}

fn same_dtype(c: &InferCtx, a: usize, b: usize) -> Result<()> {
    let (x, y) = (c.dtype(a)?, c.dtype(b)?);
    if x == y {
        return Ok(());
    }
    Err(c.error(ErrorKind::Type, format!("{}: operands are {x} and {y} but must have one type", c.def.name)))
}

fn infer_compare(c: &mut InferCtx) -> Result<()> {
    same_dtype(c, 0, 1)?;
    set_broadcast(c, 0, DType::Bool, &[0, 1])
}

/// Shape rule with elements: two operands of one integer type.
fn infer_values(c: &mut InferCtx, f: fn(&mut DimPool, DimId, DimId) -> Option<DimId>) -> Result<()> {
    infer_binary(c)?;
    int_values(c, &[0, 1], move |p, v| f(p, v[0], v[1]));
    Ok(())
}

/// [`map_values`] for results of integer type.
pub(super) fn int_values(c: &mut InferCtx, operands: &[usize], f: impl Fn(&mut DimPool, &[DimId]) -> Option<DimId>) {
    let d = c.outs.first().and_then(|t| t.dtype());
    if matches!(d, Some(I32 | I64)) {
        map_values(c, operands, f);
    }
}

fn infer_truth(c: &mut InferCtx, f: fn(&mut DimPool, DimId, DimId) -> Proof) -> Result<()> {
    infer_compare(c)?;
    map_values(c, &[0, 1], |p, v| {
        if !tame(p, v[0]) || !tame(p, v[1]) {
            return None;
        }
        let t = f(p, v[0], v[1]);
        truth(p, t)
    });
    Ok(())
}

/// Both constants: the checked result (`None` on overflow); else nothing.
fn consts(p: &mut DimPool, a: DimId, b: DimId, f: fn(i64, i64) -> Option<i64>) -> Option<Option<DimId>> {
    let (x, y) = (p.as_const(a)?, p.as_const(b)?);
    Some(f(x, y).map(|v| p.constant(v)))
}

/// Whether a dim is far from the ends of i64, so that arithmetic with constants on it cannot overflow while it is built.
fn tame(p: &DimPool, d: DimId) -> bool {
    p.as_const(d).is_none_or(|v| v.unsigned_abs() < 1 << 31)
}

pub(super) fn dim_add(p: &mut DimPool, a: DimId, b: DimId) -> Option<DimId> {
    consts(p, a, b, i64::checked_add).unwrap_or_else(|| (tame(p, a) && tame(p, b)).then(|| p.add(a, b)))
}
fn dim_sub(p: &mut DimPool, a: DimId, b: DimId) -> Option<DimId> {
    consts(p, a, b, i64::checked_sub).unwrap_or_else(|| (tame(p, a) && tame(p, b)).then(|| p.sub(a, b)))
}
pub(super) fn dim_mul(p: &mut DimPool, a: DimId, b: DimId) -> Option<DimId> {
    consts(p, a, b, i64::checked_mul).unwrap_or_else(|| (tame(p, a) && tame(p, b)).then(|| p.mul(a, b)))
}
/// Truncating division: as floor division where neither side can be negative.
fn dim_div(p: &mut DimPool, a: DimId, b: DimId) -> Option<DimId> {
    if let Some(v) = consts(p, a, b, i64::checked_div) {
        return v;
    }
    (p.range(a).0 >= 0 && p.range(b).0 > 0).then(|| p.floordiv(a, b))
}
fn dim_mod(p: &mut DimPool, a: DimId, b: DimId) -> Option<DimId> {
    (p.range(a).0 >= 0 && p.range(b).0 > 0).then(|| p.modulo(a, b))
}
pub(super) fn dim_min(p: &mut DimPool, a: DimId, b: DimId) -> Option<DimId> {
    consts(p, a, b, |x, y| Some(x.min(y))).unwrap_or_else(|| (tame(p, a) && tame(p, b)).then(|| p.min(a, b)))
}
pub(super) fn dim_max(p: &mut DimPool, a: DimId, b: DimId) -> Option<DimId> {
    consts(p, a, b, |x, y| Some(x.max(y))).unwrap_or_else(|| (tame(p, a) && tame(p, b)).then(|| p.max(a, b)))
}

fn prove_lt(p: &mut DimPool, a: DimId, b: DimId) -> Proof {
    not(p.prove_le(b, a))
}
fn not(p: Proof) -> Proof {
    match p {
        Proof::Yes => Proof::No,
        Proof::No => Proof::Yes,
        Proof::Unknown => Proof::Unknown,
    }
}

fn pair(n: &mut Nest, op: BinOp, a: &[Option<ExprId>]) -> Exprs {
    let (x, y) = (arg(a, 0)?, arg(a, 1)?);
    one(n.bin(op, x, y))
}

macro_rules! arithmetic {
    ($name:literal, $reference:path, $values:path, $op:ident) => {
        OpDef {
            name: $name,
            since: 7,
            inputs: &[req("A", "T"), req("B", "T")],
            outputs: &[req("C", "T")],
            dtypes: &[("T", NUMS)],
            infer: |c| infer_values(c, $values),
            reference: Some(|c| ref2(c, $reference)),
            lower: &[Pointwise(|_, n, a| pair(n, BinOp::$op, a))],
            tolerance: ROUNDED,
            cases: &["[];[]", "[2,3];[2,3]", "[2,1,3];[4,1]", "[5];[]", "[0,3];[3]", "[3]{1,-2,7};[3]{2,3,-1}"],
            ..ROW
        }
    };
}

macro_rules! comparison {
    ($name:literal, $since:literal, $reference:path, $proof:expr, $op:ident, $dtypes:expr) => {
        OpDef {
            name: $name,
            since: $since,
            inputs: &[req("A", "T"), req("B", "T")],
            outputs: &[req("C", "T1")],
            dtypes: &[("T", $dtypes), ("T1", BOOL)],
            infer: |c| infer_truth(c, $proof),
            reference: Some(|c| ref2(c, $reference)),
            lower: &[Pointwise(|_, n, a| pair(n, BinOp::$op, a)), Host],
            cases: &["[];[]", "[2,3];[2,3]", "[2,1,3];[4,1]", "[0,3];[3]", "[4]{0,1,2,3};[4]{1,1,1,1}"],
            ..ROW
        }
    };
}

macro_rules! logic {
    ($name:literal, $reference:path, $values:expr, $op:ident) => {
        OpDef {
            name: $name,
            since: 7,
            inputs: &[req("A", "T"), req("B", "T")],
            outputs: &[req("C", "T1")],
            dtypes: &[("T", BOOL), ("T1", BOOL)],
            infer: |c| {
                infer_compare(c)?;
                map_values(c, &[0, 1], |p, v| {
                    let (a, b) = (p.as_const(v[0])?, p.as_const(v[1])?);
                    let f: fn(bool, bool) -> bool = $values;
                    Some(p.constant(f(a != 0, b != 0).into()))
                });
                Ok(())
            },
            reference: Some(|c| ref2(c, $reference)),
            lower: &[Pointwise(|_, n, a| pair(n, BinOp::$op, a))],
            cases: &["[4]{0,0,1,1};[4]{0,1,0,1}", "[2,1];[3]", "[0];[0]"],
            ..ROW
        }
    };
}

macro_rules! bitwise {
    ($name:literal, $reference:path, $op:ident) => {
        OpDef {
            name: $name,
            since: 18,
            inputs: &[req("A", "T"), req("B", "T")],
            outputs: &[req("C", "T")],
            dtypes: &[("T", INTS)],
            infer: infer_binary,
            reference: Some(|c| ref2(c, $reference)),
            lower: &[Pointwise(|_, n, a| pair(n, BinOp::$op, a))],
            cases: &["[4]{0,1,6,-3};[4]{5,3,3,1}", "[2,1];[3]"],
            ..ROW
        }
    };
}

fn infer_variadic(c: &mut InferCtx) -> Result<()> {
    let d = c.dtype(0)?;
    let all: Vec<usize> = (0..c.ins.len()).collect();
    for &i in &all[1..] {
        same_dtype(c, 0, i)?;
    }
    set_broadcast(c, 0, d, &all)
}

/// Up to version 7 the operands have one shape.
fn infer_variadic_equal(c: &mut InferCtx) -> Result<()> {
    infer_variadic(c)?;
    let Some(first) = c.shape(0) else { return Ok(()) };
    for i in 1..c.ins.len() {
        let Some(s) = c.shape(i) else { continue };
        if s.len() != first.len() {
            let name = c.def.name;
            return Err(c.error(ErrorKind::Shape, format!("{name}: before opset 8 all operands have one shape")));
        }
        for (&a, &b) in first.iter().zip(&s) {
            c.require_eq(a, b, "all operands have one shape")?;
        }
    }
    Ok(())
}

fn fold_ref(c: &RefCtx, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let mut acc = c.input(0)?.clone();
    for i in 1..c.ins.len() {
        acc = f(&acc, c.input(i)?)?;
    }
    Ok(vec![acc])
}

/// Sums in f64 and rounds once, unlike a chain of additions.
fn sum_ref(c: &RefCtx, mean: bool) -> Result<Vec<Tensor>> {
    let d = c.input(0)?.dtype();
    let wide: Vec<Option<Tensor>> = c
        .ins
        .iter()
        .map(|x| x.as_ref().map(|x| reference::data::from_f64s(F64, x.shape(), &reference::data::f64s(x))))
        .collect();
    let sum = fold_ref(&RefCtx { ins: &wide, ..*c }, r::add)?;
    let n = if mean { c.ins.len() as f64 } else { 1.0 };
    let v: Vec<f64> = reference::data::f64s(&sum[0]).into_iter().map(|x| x / n).collect();
    Ok(vec![reference::data::from_f64s(d, sum[0].shape(), &v)])
}

fn fold(n: &mut Nest, op: BinOp, a: &[Option<ExprId>]) -> crate::lowering::Plan<ExprId> {
    let mut acc = arg(a, 0)?;
    for i in 1..a.len() {
        let x = arg(a, i)?;
        acc = n.bin(op, acc, x);
    }
    Ok(acc)
}

fn fold_values(c: &mut InferCtx, f: fn(&mut DimPool, DimId, DimId) -> Option<DimId>) {
    let all: Vec<usize> = (0..c.ins.len()).collect();
    int_values(c, &all, |p, v| v[1..].iter().try_fold(v[0], |a, &b| f(p, a, b)));
}

macro_rules! variadic {
    ($name:literal, $since:literal..=$until:expr, $dtypes:expr, $infer:expr, $reference:expr, $lower:expr, $cases:expr) => {
        OpDef {
            name: $name,
            since: $since,
            until: $until,
            inputs: &[var("data_0", "T")],
            outputs: &[req("out", "T")],
            dtypes: &[("T", $dtypes)],
            infer: $infer,
            reference: Some($reference),
            lower: &[Pointwise($lower)],
            tolerance: ROUNDED,
            cases: $cases,
            ..ROW
        }
    };
}

const EQUAL_SHAPES: &[&str] = &["[2,3]", "[2,3];[2,3]", "[4];[4];[4]"];
const BROADCAST: &[&str] = &["[2,3]", "[2,3];[3]", "[4,1];[];[5]", "[2]{nan,1};[2]{1,-inf}", "[0,2];[2]"];

fn mean_lower(_: &mut NodeCtx, n: &mut Nest, a: &[Option<ExprId>]) -> Exprs {
    let s = fold(n, BinOp::Add, a)?;
    one(n.bin_num(BinOp::Div, s, a.len() as f64))
}

/// Base and exponent of any types; the result has the base's. Constant exponents 1, 2, 3 and ½ multiply or take the root.
fn pow_lower(c: &mut NodeCtx, n: &mut Nest, a: &[Option<ExprId>]) -> Exprs {
    let (x, y) = (arg(a, 0)?, arg(a, 1)?);
    let (dx, dy) = (n.expr_dtype(x), n.expr_dtype(y));
    let exponent = c.need(1)?.konst.and_then(|k| c.consts[k].splat_f64());
    match exponent {
        Some(1.0) => return one(x),
        Some(2.0) => return one(n.bin(BinOp::Mul, x, x)),
        Some(3.0) => {
            let x2 = n.bin(BinOp::Mul, x, x);
            return one(n.bin(BinOp::Mul, x2, x));
        }
        Some(0.5) if dx.is_float() => {
            // The power ½ of -∞ is +∞, its root is NaN.
            let root = n.un(UnOp::Sqrt, x);
            let inf = n.num_like(f64::NEG_INFINITY, x);
            let is = n.bin(BinOp::Eq, x, inf);
            let pos = n.num_like(f64::INFINITY, x);
            return one(n.select(is, pos, root));
        }
        _ => {}
    }
    if dx.is_float() {
        let y = n.cast(y, dx);
        return one(n.bin(BinOp::Pow, x, y));
    }
    if !dy.is_float() {
        // i64 holds every exponent that matters: beyond 2^63 only bases 0, 1 and -1 have a lasting value.
        let (wx, wy) = (n.cast(x, I64), n.cast(y, I64));
        let p = n.bin(BinOp::Pow, wx, wy);
        return one(n.cast(p, dx));
    }
    let (wx, wy) = (n.cast(x, F64), n.cast(y, F64));
    let p = n.bin(BinOp::Pow, wx, wy);
    // The power is good to 14 digits: what is that close to an integer is one, and must not be truncated to the next lower.
    let near = n.un(UnOp::RoundEven, p);
    let off = n.bin(BinOp::Sub, p, near);
    let off = n.un(UnOp::Abs, off);
    let (digits, size) = (n.num(1e-13, F64), n.un(UnOp::Abs, near));
    let slack = n.bin(BinOp::Mul, size, digits);
    let is_int = n.bin(BinOp::Le, off, slack);
    let p = n.select(is_int, near, p);
    let through = super::cast::int_path(c.need(0)?.dtype);
    let p = n.cast(p, through);
    one(n.cast(p, dx))
}

fn infer_pow(c: &mut InferCtx) -> Result<()> {
    let d = c.dtype(0)?;
    set_broadcast(c, 0, d, &[0, 1])
}

fn infer_where(c: &mut InferCtx) -> Result<()> {
    let d = c.dtype(1)?;
    same_dtype(c, 1, 2)?;
    match broadcast_operands(c, &[0, 1, 2])? {
        Some(s) => c.set(0, d, s),
        None => c.set_unranked(0, d),
    }
    // Where the condition is known, only the chosen side needs to be.
    if let Some(cond) = elements(c, 0) {
        let known: Vec<Option<i64>> = cond.iter().map(|&v| c.dims.as_const(v)).collect();
        let all = |want: bool| known.iter().all(|k| k.is_some_and(|k| (k != 0) == want));
        match (all(true), all(false)) {
            (true, _) => int_values(c, &[1], |_, v| Some(v[0])),
            (_, true) => int_values(c, &[2], |_, v| Some(v[0])),
            _ => int_values(c, &[0, 1, 2], |p, v| Some(if p.as_const(v[0])? != 0 { v[1] } else { v[2] })),
        }
    }
    Ok(())
}

fn mod_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let fmod = c.attrs.int(0).unwrap_or(0) != 0;
    ref2(c, if fmod { r::rem } else { r::modulo })
}

fn infer_mod(c: &mut InferCtx) -> Result<()> {
    if !matches!(c.attrs.int(0), Some(0 | 1)) {
        return Err(c.error(ErrorKind::Unsupported, format!("Mod: fmod is {:?}, not 0 or 1", c.attrs.get(0))));
    }
    infer_values(c, dim_mod)
}

const MOD: OpDef = OpDef {
    name: "Mod",
    inputs: &[req("A", "T"), req("B", "T")],
    outputs: &[req("C", "T")],
    attrs: &[attr("fmod", AttrKind::Int(0))],
    dtypes: &[("T", NUMS)],
    infer: infer_mod,
    reference: Some(mod_ref),
    lower: &[Pointwise(|c, n, a| pair(n, if c.attrs.int(0) == Some(1) { BinOp::Rem } else { BinOp::Mod }, a))],
    tolerance: ROUNDED,
    cases: &[
        "[6]{-7,7,-7,7,5,0};[6]{3,-3,-3,3,5,2} fmod=1",
        "[6]{-7,7,-7,7,5,0};[6]{3,-3,-3,3,-5,2}",
        "f32[8]{inf,1,-1,1,-0,0,nan,3};f32[8]{2,inf,inf,-inf,2,-2,1,0}",
        "[2,3];[3]",
    ],
    ..ROW
};

/// Whether the attribute `direction` says left.
fn shifts_left(attrs: &crate::attrs::Attrs) -> Option<bool> {
    match attrs.str(0) {
        Some("LEFT") => Some(true),
        Some("RIGHT") => Some(false),
        _ => None,
    }
}

const BIT_SHIFT: OpDef = OpDef {
    name: "BitShift",
    inputs: &[req("X", "T"), req("Y", "T")],
    outputs: &[req("Z", "T")],
    attrs: &[attr("direction", AttrKind::StrOpt)],
    dtypes: &[("T", INTS)],
    infer: |c| {
        if shifts_left(c.attrs).is_none() {
            return Err(c.error(ErrorKind::Unsupported, "BitShift: direction must be LEFT or RIGHT"));
        }
        infer_binary(c)
    },
    reference: Some(|c| ref2(c, if shifts_left(c.attrs) == Some(true) { r::shift_left } else { r::shift_right })),
    lower: &[Pointwise(|c, n, a| {
        let left = shifts_left(c.attrs).ok_or("direction is neither LEFT nor RIGHT")?;
        pair(n, if left { BinOp::Shl } else { BinOp::Shr }, a)
    })],
    cases: &[
        "[6]{1,-1,100,-128,7,5};[6]{1,2,3,7,8,-1} direction=LEFT",
        "[6]{1,-1,100,-128,-7,-5};[6]{1,2,3,7,8,-1} direction=RIGHT",
        "[2,3];[3]{1,64,9} direction=RIGHT",
        "[2,1];[3]{1,0,33} direction=LEFT",
    ],
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // C = A + B
    arithmetic!("Add", r::add, dim_add, Add),
    // C = A - B
    arithmetic!("Sub", r::sub, dim_sub, Sub),
    // C = A · B
    arithmetic!("Mul", r::mul, dim_mul, Mul),
    // C = A / B; integers truncate toward zero
    arithmetic!("Div", r::div, dim_div, Div),
    // C = A mod B: the divisor's sign, or with fmod the dividend's
    OpDef {
        since: 10,
        until: 27,
        infer: |c| {
            if c.attrs.int(0) == Some(0) && c.dtype(0)?.is_float() {
                let e = c.error(ErrorKind::Type, "Mod of floats needs fmod=1 before opset 28");
                return Err(e.help("export the model with opset 28 or newer, or set fmod"));
            }
            infer_mod(c)
        },
        cases: &[
            "[6]{-7,7,-7,7,5,0};[6]{3,-3,-3,3,5,2} fmod=1",
            "[2,3];[3] fmod=1",
            "i32[4]{-7,7,-7,7};i32[4]{3,-3,-3,3}",
        ],
        ..MOD
    },
    // The same, floats either way
    OpDef { since: 28, ..MOD },
    // Z = X shifted by Y bits; unsigned
    OpDef { since: 11, until: 27, dtypes: &[("T", &[U8, U16, U32, U64])], ..BIT_SHIFT },
    // Signed, too: to the right the sign stays
    OpDef { since: 28, ..BIT_SHIFT },
    // Z = Xʸ in one float type
    OpDef {
        name: "Pow",
        since: 7,
        until: 11,
        inputs: &[req("X", "T"), req("Y", "T")],
        outputs: &[req("Z", "T")],
        dtypes: &[("T", FLOATS)],
        infer: infer_pow,
        reference: Some(|c| ref2(c, r::pow)),
        lower: &[Pointwise(pow_lower)],
        tolerance: Tol::Rel(2e-5),
        cases: &["[2,3];[3]{2,3,0.5}", "[4]{0,1,4,9};[]{0.5}"],
        ..ROW
    },
    // Z = Xʸ in the type of X
    OpDef {
        name: "Pow",
        since: 12,
        inputs: &[req("X", "T"), req("Y", "T1")],
        outputs: &[req("Z", "T")],
        dtypes: &[("T", &[F32, F16, BF16, F64, I32, I64]), ("T1", NUMS)],
        infer: infer_pow,
        reference: Some(|c| ref2(c, r::pow)),
        lower: &[Pointwise(pow_lower)],
        tolerance: Tol::Rel(2e-5),
        cases: &["[2,3]{1,2,3,4,5,6};[3]{2,3,1}", "[4]{0,1,2,5};[]{2}", "[3]{-2,-1,3};[3]{3,3,3}"],
        ..ROW
    },
    // C = (A = B)
    comparison!("Equal", 7, r::equal, DimPool::prove_eq, Eq, ANY),
    // C = (A < B)
    comparison!("Less", 7, r::less, prove_lt, Lt, NUMS),
    // C = (A > B)
    comparison!("Greater", 7, r::greater, |p, a, b| prove_lt(p, b, a), Gt, NUMS),
    // C = (A ≤ B)
    comparison!("LessOrEqual", 12, r::less_or_equal, DimPool::prove_le, Le, NUMS),
    // C = (A ≥ B)
    comparison!("GreaterOrEqual", 12, r::greater_or_equal, |p, a, b| p.prove_le(b, a), Ge, NUMS),
    logic!("And", r::and, |a, b| a && b, And),
    logic!("Or", r::or, |a, b| a || b, Or),
    logic!("Xor", r::xor, |a, b| a != b, Xor),
    bitwise!("BitwiseAnd", r::and, And),
    bitwise!("BitwiseOr", r::or, Or),
    bitwise!("BitwiseXor", r::xor, Xor),
    // Y = ¬X, bit by bit
    OpDef {
        name: "BitwiseNot",
        since: 18,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", INTS)],
        infer: same_type_as_0,
        reference: Some(|c| ref1(c, r::bit_not)),
        lower: &[Pointwise(|_, n, a| {
            let x = arg(a, 0)?;
            one(n.un(UnOp::BitNot, x))
        })],
        cases: &["[4]{0,1,-1,7}"],
        ..ROW
    },
    // Y = ¬X
    OpDef {
        name: "Not",
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", BOOL)],
        infer: |c| {
            same_type_as_0(c)?;
            map_values(c, &[0], |p, v| {
                let x = p.as_const(v[0])?;
                Some(p.constant((x == 0).into()))
            });
            Ok(())
        },
        reference: Some(|c| ref1(c, r::not)),
        lower: &[Pointwise(|_, n, a| {
            let x = arg(a, 0)?;
            one(n.un(UnOp::Not, x))
        })],
        cases: &["[3]{0,1,0}", "[]", "[0,2]"],
        ..ROW
    },
    // out = condition ? X : Y
    OpDef {
        name: "Where",
        since: 9,
        inputs: &[req("condition", "B"), req("X", "T"), req("Y", "T")],
        outputs: &[req("output", "T")],
        dtypes: &[("B", BOOL), ("T", ANY)],
        infer: infer_where,
        reference: Some(|c| Ok(vec![r::select(c.input(0)?, c.input(1)?, c.input(2)?)?])),
        lower: &[
            Pointwise(|_, n, a| {
                let (c, x, y) = (arg(a, 0)?, arg(a, 1)?, arg(a, 2)?);
                one(n.select(c, x, y))
            }),
            Host,
        ],
        cases: &["[2,3];[2,3];[2,3]", "[3,1]{1,0,1};[];[2]", "[];[2];[1]", "[0];[0];[]"],
        ..ROW
    },
    // Y = (X is NaN)
    OpDef {
        name: "IsNaN",
        since: 9,
        inputs: &[req("X", "T1")],
        outputs: &[req("Y", "T2")],
        dtypes: &[("T1", FLOATS), ("T2", BOOL)],
        infer: infer_predicate,
        reference: Some(|c| ref1(c, r::is_nan)),
        lower: &[Pointwise(|_, n, a| {
            let x = arg(a, 0)?;
            one(n.un(UnOp::IsNan, x))
        })],
        cases: &["[4]{nan,inf,0,-inf}", "[2,0]"],
        ..ROW
    },
    // Y = (X is an infinity of a wanted sign)
    OpDef {
        name: "IsInf",
        since: 10,
        inputs: &[req("X", "T1")],
        outputs: &[req("Y", "T2")],
        attrs: &[attr("detect_negative", AttrKind::Int(1)), attr("detect_positive", AttrKind::Int(1))],
        dtypes: &[("T1", FLOATS), ("T2", BOOL)],
        infer: infer_predicate,
        reference: Some(|c| ref1(c, |x| r::is_inf(x, c.attrs.int(0) != Some(0), c.attrs.int(1) != Some(0)))),
        lower: &[Pointwise(|c, n, a| {
            let x = arg(a, 0)?;
            let (neg, pos) = (c.attrs.int(0) != Some(0), c.attrs.int(1) != Some(0));
            one(match (neg, pos) {
                (true, true) => n.un(UnOp::IsInf, x),
                (true, false) => n.bin_num(BinOp::Eq, x, f64::NEG_INFINITY),
                (false, true) => n.bin_num(BinOp::Eq, x, f64::INFINITY),
                (false, false) => n.num(0.0, DType::Bool),
            })
        })],
        cases: &["[4]{nan,inf,0,-inf}", "[3]{inf,-inf,1} detect_negative=0", "[3]{inf,-inf,1} detect_positive=0"],
        ..ROW
    },
    variadic!(
        "Sum",
        6..=7,
        FLOATS,
        infer_variadic_equal,
        |c| sum_ref(c, false),
        |_, n, a| one(fold(n, BinOp::Add, a)?),
        EQUAL_SHAPES
    ),
    variadic!(
        "Sum",
        8..=i64::MAX,
        FLOATS,
        infer_variadic,
        |c| sum_ref(c, false),
        |_, n, a| one(fold(n, BinOp::Add, a)?),
        BROADCAST
    ),
    variadic!("Mean", 6..=7, FLOATS, infer_variadic_equal, |c| sum_ref(c, true), mean_lower, EQUAL_SHAPES),
    variadic!("Mean", 8..=i64::MAX, FLOATS, infer_variadic, |c| sum_ref(c, true), mean_lower, BROADCAST),
    variadic!(
        "Min",
        6..=7,
        FLOATS,
        infer_variadic_equal,
        |c| fold_ref(c, r::min),
        |_, n, a| one(fold(n, BinOp::Min, a)?),
        EQUAL_SHAPES
    ),
    variadic!(
        "Min",
        8..=i64::MAX,
        NUMS,
        |c| {
            infer_variadic(c)?;
            fold_values(c, dim_min);
            Ok(())
        },
        |c| fold_ref(c, r::min),
        |_, n, a| one(fold(n, BinOp::Min, a)?),
        BROADCAST
    ),
    variadic!(
        "Max",
        6..=7,
        FLOATS,
        infer_variadic_equal,
        |c| fold_ref(c, r::max),
        |_, n, a| one(fold(n, BinOp::Max, a)?),
        EQUAL_SHAPES
    ),
    variadic!(
        "Max",
        8..=i64::MAX,
        NUMS,
        |c| {
            infer_variadic(c)?;
            fold_values(c, dim_max);
            Ok(())
        },
        |c| fold_ref(c, r::max),
        |_, n, a| one(fold(n, BinOp::Max, a)?),
        BROADCAST
    ),
];

fn infer_predicate(c: &mut InferCtx) -> Result<()> {
    match c.shape(0) {
        Some(s) => c.set(0, DType::Bool, s),
        None => c.set_unranked(0, DType::Bool),
    }
    Ok(())
}

/// The one type of the operands of a row that stores what it loads, for rows elsewhere.
pub(super) fn copy_lower(c: &mut NodeCtx, _: &mut Nest, a: &[Option<ExprId>]) -> Exprs {
    out_type(c, 0)?;
    one(arg(a, 0)?)
}
