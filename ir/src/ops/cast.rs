//! Conversion between element types, and rows whose result is an operand as it is.

use super::broadcast::{elements, map_values};
use super::elementwise::copy_lower;
use super::pointwise::{Exprs, arg, one, out_type};
use super::row::*;
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::{Expand, Host, Pointwise, View};
use crate::lowering::{NodeCtx, Plan, ViewOp};
use crate::nest::{BinOp, Expr, ExprId, Nest, UnOp, compute_dtype};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, attr, req};
use reference::cast::{self, Ends, Rounding, SCALE_ENDS, ScaleRounding};
use tensor::DType::{self, *};
use tensor::{ErrorKind, Result, Tensor};

/// The compute type that a float passes through on its way to an integer type; see [`reference::cast::float_to_int`].
pub(super) fn int_path(to: DType) -> DType {
    match to {
        U64 => U64,
        I64 | U32 => I64,
        _ => I32,
    }
}

/// The element type that the attribute `to` names.
fn target(c: &crate::attrs::Attrs) -> Option<DType> {
    DType::from_onnx(i32::try_from(c.int(0)?).ok()?)
}

fn infer_to(c: &mut InferCtx, to: DType) -> Result<()> {
    c.dtype(0)?;
    match c.shape(0) {
        Some(s) => c.set(0, to, s),
        None => c.set_unranked(0, to),
    }
    // Whole numbers stay what they are in floats that hold every extent.
    if matches!(to, F32 | F64)
        && c.dtype(0)?.is_int()
        && let Some(v) = c.values(0)
    {
        c.set_values(0, v);
    }
    if matches!(to, I32 | I64 | Bool) && elements(c, 0).is_some() {
        let from = c.dtype(0)?;
        map_values(c, &[0], |p, v| match (to, p.as_const(v[0])) {
            (I64, _) => Some(v[0]),
            (Bool, Some(k)) => Some(p.constant((k != 0).into())),
            (Bool, None) => (p.range(v[0]).0 > 0).then(|| p.constant(1)),
            (_, Some(_)) => Some(v[0]),
            (_, None) => matches!(from, I64 | I32).then_some(v[0]),
        });
    }
    Ok(())
}

fn infer_cast(c: &mut InferCtx) -> Result<()> {
    let to = target(c.attrs)
        .ok_or_else(|| c.error(ErrorKind::Unsupported, format!("Cast to element type {:?}", c.attrs.get(0))))?;
    if matches!(to, C64 | C128) {
        return Err(c.error(ErrorKind::Unsupported, format!("Cast to {to}")));
    }
    checked_rounding(c, 1)?;
    infer_to(c, to)
}

/// Attributes of a row as [`Rounding`]; `slot` is that of `saturate`, which `round_mode` follows.
fn rounding(attrs: &Attrs, slot: usize) -> Option<Rounding> {
    let scale = ScaleRounding::from_name(attrs.str(slot + 1).unwrap_or("up"))?;
    Some(Rounding { saturate: attrs.int(slot) != Some(0), scale })
}

/// The rounding of a node, or what is wrong with it.
fn checked_rounding(c: &InferCtx, slot: usize) -> Result<Rounding> {
    let mode = c.attrs.str(slot + 1).unwrap_or("");
    rounding(c.attrs, slot).ok_or_else(|| {
        let e = c.error(ErrorKind::Unsupported, format!("{}: there is no round_mode {mode:?}", c.def.name));
        e.help("it is up, down or nearest")
    })
}

fn cast_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let to = target(c.attrs).unwrap_or(x.dtype());
    Ok(vec![cast::cast(x, to, rounding(c.attrs, 1).unwrap_or_default())?])
}

fn same_type_view(c: &mut NodeCtx) -> Plan<ViewOp> {
    let (from, to) = (c.need(0)?.dtype, c.outs[0].dtype);
    if from == to { Ok(ViewOp::Reshape) } else { Err(format!("{from} becomes {to}").into()) }
}

fn cast_lower(c: &mut NodeCtx, n: &mut Nest, a: &[Option<ExprId>], slot: usize) -> Exprs {
    let x = arg(a, 0)?;
    let to = c.outs[0].dtype;
    let how = rounding(c.attrs, slot).ok_or("round_mode is not known")?;
    out_type(c, 0)?;
    one(n.convert(x, to, how))
}

impl Nest {
    /// `x` as an element of type `to`, in its compute type: what [`cast::cast`] does to one element.
    pub fn convert(&mut self, x: ExprId, to: DType, how: Rounding) -> ExprId {
        let wide = compute_dtype(to).unwrap_or(F32);
        let from = self.expr_dtype(x);
        if !to.is_float() {
            let x = if from.is_float() && to.is_int() { self.cast(x, int_path(to)) } else { x };
            return self.cast(x, wide);
        }
        if to == wide {
            return self.cast(x, wide);
        }
        // Integers that f32 rounds are beyond the range of every narrower float but bf16.
        let by_f64 = from == F64 || (to == BF16 && !self.is_f32(x));
        let x = self.cast(x, if by_f64 { F64 } else { F32 });
        let x = match (to, Ends::of(to)) {
            (_, Some(e)) if how.saturate => self.clamp(x, -e.max, e.max),
            (_, Some(e)) => self.leave_range(x, e),
            (F4E2M1, _) => {
                let (nan, zero) = (self.un(UnOp::IsNan, x), self.num_like(-0.0, x));
                self.select(nan, zero, x)
            }
            (F8E8M0, _) => {
                let x = self.cast(x, F32);
                self.power_of_two(x, how)
            }
            _ => x,
        };
        // One rounding from f64, not two by way of f32.
        let x = if self.expr_dtype(x) == F64 { self.expr(Expr::Round(x, to)) } else { x };
        self.cast(x, F32)
    }

    /// Whether f32 holds every value that an expression can have.
    fn is_f32(&self, x: ExprId) -> bool {
        match self.get(x) {
            Expr::Load(a) => self.operands[usize::from(a.operand)].dtype.bits() <= 16,
            _ => matches!(self.expr_dtype(x), F32 | Bool),
        }
    }

    /// What is beyond the range of an 8-bit float becomes what stands for that.
    fn leave_range(&mut self, x: ExprId, e: Ends) -> ExprId {
        let size = self.un(UnOp::Abs, x);
        let beyond = self.bin_num(if e.tie_stays { BinOp::Gt } else { BinOp::Ge }, size, e.tie);
        let (instead, zero) = (self.num_like(e.beyond, x), self.num_like(0.0, x));
        let (negative, minus) = (self.bin(BinOp::Lt, x, zero), self.num_like(-e.beyond, x));
        let instead = self.select(negative, minus, instead);
        self.select(beyond, instead, x)
    }

    /// The power of two that an f8e8m0 holds for the magnitude of an f32.
    fn power_of_two(&mut self, x: ExprId, how: Rounding) -> ExprId {
        let int = |n: &mut Nest, v: u32| n.expr(Expr::Int(v.into(), U32));
        let (least, greatest) = SCALE_ENDS;
        let size = self.un(UnOp::Abs, x);
        let bits = self.un(UnOp::ToBits, size);
        let (carry, exponent) = (int(self, how.scale.carry()), int(self, 0xff80_0000));
        let sum = self.bin(BinOp::Add, bits, carry);
        let mut r = self.bin(BinOp::And, sum, exponent);
        let (lo, hi) = (int(self, least), int(self, greatest));
        if how.saturate {
            r = self.bin(BinOp::Min, r, hi);
        }
        let small = self.bin(BinOp::Le, bits, lo);
        r = self.select(small, lo, r);
        let y = self.un(UnOp::FromBits, r);
        let mut bad = self.un(UnOp::IsNan, x);
        if !how.saturate {
            let (under, over) = (self.bin(BinOp::Lt, bits, lo), self.bin(BinOp::Gt, r, hi));
            let outside = self.bin(BinOp::Or, under, over);
            bad = self.bin(BinOp::Or, bad, outside);
        }
        let nan = self.num_like(f64::NAN, x);
        self.select(bad, nan, y)
    }
}

/// Slots of `Cast` from version 19 on; `CastLike` has only the second.
const SATURATE: crate::op::AttrDef = attr("saturate", AttrKind::Int(1));

/// Versions from 24 on have it, with f8e8m0.
const ROUND_MODE: crate::op::AttrDef = attr("round_mode", AttrKind::Str("up"));

fn cast_like_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    Ok(vec![cast::cast(c.input(0)?, c.input(1)?.dtype(), rounding(c.attrs, 0).unwrap_or_default())?])
}

fn infer_cast_like(c: &mut InferCtx) -> Result<()> {
    checked_rounding(c, 0)?;
    let to = c.dtype(1)?;
    infer_to(c, to)
}

/// Cast to the element type of the second operand, whose extents do not matter.
fn expand_cast_like(x: &mut Expansion) -> Result<Vec<Value>> {
    let like = x.type_of(x.need(1)?);
    let to = like.dtype().ok_or_else(|| {
        tensor::Diagnostic::new(
            tensor::ErrorKind::Type,
            "CastLike: the operand that says the element type is no tensor",
        )
    })?;
    let attrs = x.attrs().clone();
    let saturate = Attr::Int(attrs.int(0).unwrap_or(1));
    let round_mode = Attr::Str(attrs.str(1).unwrap_or("up").into());
    let attrs = [("to", Attr::Int(i64::from(to.onnx()))), ("saturate", saturate), ("round_mode", round_mode)];
    Ok(vec![x.op("Cast", &[x.need(0)?], &attrs)])
}

/// Where the bits of memory are those of the compute type, or those of integers.
fn bit_cast_lower(c: &mut NodeCtx, n: &mut Nest, a: &[Option<ExprId>]) -> Exprs {
    let (x, from, to) = (arg(a, 0)?, c.need(0)?.dtype, c.outs[0].dtype);
    let whole = |d: DType| matches!(d, F32 | F64);
    let bits = match from {
        d if whole(d) => n.un(UnOp::ToBits, x),
        d if d.is_int() => x,
        d => return Err(format!("nests do not see the bits of {d}").into()),
    };
    let wide = compute_dtype(to).ok_or("no compute type")?;
    one(match to {
        F32 | F64 => {
            let bits = n.cast(bits, if to == F32 { U32 } else { U64 });
            n.un(UnOp::FromBits, bits)
        }
        d if d.is_int() => n.cast(bits, wide),
        d => return Err(format!("nests do not see the bits of {d}").into()),
    })
}

const CAST_CASES: &[&str] = &[
    "[5]{-1.5,2.5,0,1,100} to=f32",
    "[5]{-1,2.5,0,1,100} to=f16",
    "[5]{-1,2.5,0,1,100} to=bf16",
    "[5]{-1,2.5,0,1,100} to=f64",
    "[5]{-1,2.5,0,1,100} to=i32",
    "[5]{-1,2.5,0,1,100} to=i64",
    "[5]{-1,2.5,0,1,100} to=i8",
    "[5]{-1,2.5,0,1,300} to=u8",
    "[5]{-1,2.5,0,1,300} to=i16",
    "[5]{-1,2.5,0,1,300} to=u16",
    "[5]{1,2.5,0,1,300} to=u32",
    "[5]{1,2.5,0,1,300} to=u64",
    "[2,3]{-1,2.5,0,1,0} to=bool",
    "[] to=f32",
    "[0,3] to=i64",
];

fn infer_identity(c: &mut InferCtx) -> Result<()> {
    same_as_0(c)?;
    if c.values(0).is_none()
        && let Some(v) = elements(c, 0)
    {
        c.set_values(0, v);
    }
    Ok(())
}

/// Element types before version 19.
const OLD: &[DType] = &[F32, F16, BF16, F64, I32, I64, I8, I16, U8, U16, U32, U64, Bool, String];
/// Element types of versions 19 and 20.
const F8: &[DType] = &[
    F32, F16, BF16, F64, I32, I64, I8, I16, U8, U16, U32, U64, Bool, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, String,
];
/// Element types of versions 21 to 23.
const PACKED: &[DType] = &[
    F32, F16, BF16, F64, I32, I64, I8, I16, U8, U16, U32, U64, Bool, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, U4, I4,
    F4E2M1, String,
];
const TO: crate::op::AttrDef = attr("to", AttrKind::IntReq);

/// output = input in element type `to`.
const CAST: OpDef = OpDef {
    name: "Cast",
    inputs: &[req("input", "T1")],
    outputs: &[req("output", "T2")],
    attrs: &[TO, SATURATE, ROUND_MODE],
    dtypes: &[("T1", ANY), ("T2", ANY)],
    infer: infer_cast,
    reference: Some(cast_ref),
    lower: &[View(same_type_view), Pointwise(|c, n, a| cast_lower(c, n, a, 1))],
    tolerance: ROUNDED,
    cases: CAST_CASES,
    ..ROW
};

/// output = input in the element type of the second operand.
const CAST_LIKE: OpDef = OpDef {
    name: "CastLike",
    inputs: &[req("input", "T1"), req("target_type", "T2")],
    outputs: &[req("output", "T2")],
    attrs: &[SATURATE, ROUND_MODE],
    dtypes: &[("T1", ANY), ("T2", ANY)],
    infer: infer_cast_like,
    reference: Some(cast_like_ref),
    lower: &[Expand(expand_cast_like)],
    tolerance: ROUNDED,
    cases: &["[5]{-1,2.5,0,1,100};[]", "[]{3};[2,3]", "[2]{1,0};[0,7]"],
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    OpDef { since: 6, until: 18, attrs: &[TO], dtypes: &[("T1", OLD), ("T2", OLD)], ..CAST },
    // With 8-bit floats
    OpDef { since: 19, until: 20, attrs: &[TO, SATURATE], dtypes: &[("T1", F8), ("T2", F8)], ..CAST },
    // With packed integers, from 23 on f4e2m1
    OpDef { since: 21, until: 23, attrs: &[TO, SATURATE], dtypes: &[("T1", PACKED), ("T2", PACKED)], ..CAST },
    // With f8e8m0, from 25 on integers of 2 bits. 28 adds 6-bit floats, which are refused where their tensors are read.
    OpDef { since: 24, until: 27, ..CAST },
    OpDef { since: 28, ..CAST },
    OpDef { since: 15, until: 18, attrs: &[], dtypes: &[("T1", OLD), ("T2", OLD)], ..CAST_LIKE },
    OpDef { since: 19, until: 20, attrs: &[SATURATE], dtypes: &[("T1", F8), ("T2", F8)], ..CAST_LIKE },
    OpDef { since: 21, until: 23, attrs: &[SATURATE], dtypes: &[("T1", PACKED), ("T2", PACKED)], ..CAST_LIKE },
    OpDef { since: 24, ..CAST_LIKE },
    // The same bits as another type of the same width
    OpDef {
        name: "BitCast",
        since: 26,
        inputs: &[req("input", "T1")],
        outputs: &[req("output", "T2")],
        attrs: &[TO],
        dtypes: &[("T1", PLAIN), ("T2", PLAIN)],
        infer: |c| {
            let from = c.dtype(0)?;
            match target(c.attrs) {
                Some(to) if to.bits() == from.bits() && from.bits() > 0 => match c.shape(0) {
                    Some(s) => c.set(0, to, s),
                    None => c.set_unranked(0, to),
                },
                to => {
                    let to = to.map_or_else(|| format!("type {:?}", c.attrs.get(0)), |to| to.to_string());
                    let text = format!("BitCast of {from} to {to}: both have the same number of bits");
                    return Err(c.error(ErrorKind::Type, text));
                }
            }
            Ok(())
        },
        reference: Some(|c| {
            let x = c.input(0)?;
            Ok(vec![Tensor::new(target(c.attrs).unwrap_or(x.dtype()), x.shape(), x.bytes().clone())?])
        }),
        lower: &[View(|_| Ok(ViewOp::Bits)), Pointwise(bit_cast_lower)],
        cases: &["f32[2,3] to=i32", "i64[3]{-1,2,0} to=f64", "f16[4] to=u16", "u8[5] to=i8", "f32[0] to=u32"],
        ..ROW
    },
    // output = input
    OpDef {
        name: "Identity",
        traits: MOVES,
        inputs: &[req("input", "V")],
        outputs: &[req("output", "V")],
        dtypes: &[("V", ANY)],
        infer: infer_identity,
        reference: Some(|c| ref1(c, Tensor::clone)),
        lower: &[View(|_| Ok(ViewOp::Reshape)), Pointwise(copy_lower), Host],
        cases: &["[2,3]", "[]", "[0]"],
        ..ROW
    },
];
