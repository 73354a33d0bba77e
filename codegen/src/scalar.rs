//! Scalar expressions of loop nests: conversions, unary and binary operations by compute type.

use crate::emit::{Em, F, I};
use crate::{math, small};
use inkwell::FloatPredicate as FP;
use inkwell::IntPredicate as IP;
use inkwell::attributes::AttributeLoc;
use inkwell::module::Linkage;
use inkwell::types::{BasicTypeEnum, FloatType, IntType};
use inkwell::values::{BasicValueEnum, FunctionValue};
use ir::nest::{BinOp, UnOp};
use tensor::DType;

/// A value of a compute type; bools are i1.
pub(crate) type Val<'c> = BasicValueEnum<'c>;
/// Why something cannot be emitted.
pub(crate) type Why<T> = Result<T, String>;

/// The LLVM type of a compute type.
pub(crate) fn value_type<'c>(e: &Em<'_, 'c>, d: DType) -> BasicTypeEnum<'c> {
    match d {
        DType::F32 => e.f32().into(),
        DType::F64 => e.f64().into(),
        DType::Bool => e.i1().into(),
        DType::I64 | DType::U64 => e.i64().into(),
        _ => e.i32().into(),
    }
}

fn float_type<'c>(e: &Em<'_, 'c>, d: DType) -> FloatType<'c> {
    if d == DType::F64 { e.f64() } else { e.f32() }
}
fn int_type<'c>(e: &Em<'_, 'c>, bits: usize) -> IntType<'c> {
    match bits {
        8 => e.i8(),
        16 => e.i16(),
        32 => e.i32(),
        _ => e.i64(),
    }
}

/// The element type in memory; an error for types that kernels do not load or store.
pub(crate) fn memory_type<'c>(e: &Em<'_, 'c>, d: DType) -> Why<BasicTypeEnum<'c>> {
    use DType::*;
    Ok(match d {
        F32 => e.f32().into(),
        F64 => e.f64().into(),
        Bool | I8 | U8 | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0 => e.i8().into(),
        F16 | BF16 | I16 | U16 => e.i16().into(),
        I32 | U32 => e.i32().into(),
        I64 | U64 => e.i64().into(),
        _ => return Err(format!("generated kernels neither load nor store {d} elements")),
    })
}

/// An element as it lies in memory → its compute type.
pub(crate) fn from_memory<'c>(e: &Em<'_, 'c>, v: Val<'c>, d: DType) -> Val<'c> {
    use DType::*;
    match d {
        F16 => f16_to_f32(e, v.into_int_value()).into(),
        BF16 => e.from_bits(e.shl(e.zext(v.into_int_value(), e.i32()), e.c32(16))).into(),
        I8 | I16 => e.sext(v.into_int_value(), e.i32()).into(),
        U8 | U16 => e.zext(v.into_int_value(), e.i32()).into(),
        Bool => e.icmp(IP::NE, v.into_int_value(), e.i8().const_zero()).into(),
        F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0 => small::decode(e, v.into_int_value(), d).into(),
        _ => v,
    }
}

/// A value of compute type `from` → an element of dtype `d` as it lies in memory. It is converted to the compute
/// type of `d` first (floats saturate there), then narrowed (integers wrap).
pub(crate) fn to_memory<'c>(e: &Em<'_, 'c>, v: Val<'c>, from: DType, d: DType) -> Val<'c> {
    use DType::*;
    match d {
        F16 | BF16 => {
            let x = to_f32_for_rounding(e, v, from);
            (if d == F16 { f32_to_f16(e, x) } else { f32_to_bf16(e, x) }).into()
        }
        Bool => e.zext(cast(e, v, from, Bool).into_int_value(), e.i8()).into(),
        F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0 => {
            small::encode(e, to_f32_for_rounding(e, v, from), d).into()
        }
        I8 | I16 | U8 | U16 => {
            let v = cast(e, v, from, ir::nest::compute_dtype(d).unwrap_or(I32)).into_int_value();
            e.trunc(v, int_type(e, d.bits())).into()
        }
        _ => cast(e, v, from, d),
    }
}

/// Conversion between compute types.
pub(crate) fn cast<'c>(e: &Em<'_, 'c>, v: Val<'c>, from: DType, to: DType) -> Val<'c> {
    if from == to {
        return v;
    }
    match (from.is_float(), to.is_float()) {
        (true, true) => {
            let (v, t) = (v.into_float_value(), float_type(e, to));
            (if to == DType::F64 { e.fpext(v, t) } else { e.fptrunc(v, t) }).into()
        }
        (true, false) if to == DType::Bool => {
            let v = v.into_float_value();
            e.fcmp(FP::UNE, v, e.fk(v, 0.0)).into()
        }
        (true, false) => float_to_int(e, v.into_float_value(), to.is_signed(), int_type(e, to.bits())).into(),
        (false, true) => e.itof(v.into_int_value(), from.is_signed(), float_type(e, to)).into(),
        (false, false) if to == DType::Bool => {
            let v = v.into_int_value();
            e.icmp(IP::NE, v, e.ik(v, 0)).into()
        }
        (false, false) => {
            let v = v.into_int_value();
            let (have, want) = (v.get_type().get_bit_width(), int_type(e, to.bits()));
            match have.cmp(&want.get_bit_width()) {
                std::cmp::Ordering::Equal => v.into(),
                std::cmp::Ordering::Greater => e.trunc(v, want).into(),
                std::cmp::Ordering::Less if from.is_signed() => e.sext(v, want).into(),
                std::cmp::Ordering::Less => e.zext(v, want).into(),
            }
        }
    }
}

/// Truncates toward zero, saturates, NaN gives 0.
fn float_to_int<'c>(e: &Em<'_, 'c>, x: F<'c>, signed: bool, t: IntType<'c>) -> I<'c> {
    let name = if signed { "llvm.fptosi.sat" } else { "llvm.fptoui.sat" };
    e.intr(name, &[t.into(), x.get_type().into()], &[x.into()]).into_int_value()
}

/// To f32 such that a second rounding to a narrower float gives the same as one rounding would: the last bit is made odd where
/// the first rounding was inexact.
fn to_f32_for_rounding<'c>(e: &Em<'_, 'c>, v: Val<'c>, from: DType) -> F<'c> {
    let x = match from {
        DType::F32 => return v.into_float_value(),
        DType::F64 => v.into_float_value(),
        _ => cast(e, v, from, DType::F64).into_float_value(),
    };
    let y = e.fptrunc(x, e.f32());
    let back = e.fpext(y, e.f64());
    let b = e.bits(y);
    let inexact = e.fcmp(FP::ONE, back, x);
    let even = e.icmp(IP::EQ, e.and(b, e.ik(b, 1)), e.ik(b, 0));
    let above = e.fcmp(FP::OGT, e.fabs(back), e.fabs(x));
    let odd = e.isel(above, e.sub(b, e.ik(b, 1)), e.add(b, e.ik(b, 1)));
    e.from_bits(e.isel(e.and(inexact, even), odd, b))
}

/// binary16 bits → f32. On CPUs by integer arithmetic even where an instruction does it: LLVM narrows the comparisons and selects
/// of extended halves to half and forms a maximum there, which ignores NaN or calls `fmaxf`.
fn f16_to_f32<'c>(e: &Em<'_, 'c>, h: I<'c>) -> F<'c> {
    if e.caps.gpu.is_some() {
        return e.fpext(e.from_bits(h), e.f32());
    }
    let w = e.zext(h, e.i32());
    let sign = e.shl(e.and(w, e.c32(0x8000)), e.c32(16));
    let em = e.and(w, e.c32(0x7fff));
    let shifted = e.shl(em, e.c32(13));
    let normal = e.add(shifted, e.c32(112 << 23));
    let special = e.or(shifted, e.c32(0x7f80_0000));
    // A NaN comes out quiet, as from the instruction.
    let nan = e.icmp(IP::UGT, em, e.c32(0x7c00));
    let special = e.isel(nan, e.or(special, e.c32(0x40_0000)), special);
    let tiny = e.itof(em, true, e.f32());
    let tiny = e.bits(e.fmul(tiny, e.fk(tiny, (-24f64).exp2())));
    let r = e.isel(e.icmp(IP::UGE, em, e.c32(0x7c00)), special, normal);
    let r = e.isel(e.icmp(IP::ULT, em, e.c32(0x400)), tiny, r);
    e.from_bits(e.or(r, sign))
}

/// f32 → binary16 bits, round to nearest even.
fn f32_to_f16<'c>(e: &Em<'_, 'c>, x: F<'c>) -> I<'c> {
    if e.caps.f16_convert {
        return e.bits(e.fptrunc(x, e.ctx.f16_type()));
    }
    let b = e.bits(x);
    let a = e.and(b, e.c32(0x7fff_ffff));
    let sign = e.and(e.lshr(b, e.c32(16)), e.c32(0x8000));
    let nan = e.or(e.and(e.lshr(a, e.c32(13)), e.c32(0x3ff)), e.c32(0x7e00));
    // Below 2^-14 adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    let tiny = e.fadd(e.from_bits(a), e.f32().const_float(0.5));
    let tiny = e.sub(e.bits(tiny), e.c32(0x3f00_0000));
    let odd = e.and(e.lshr(a, e.c32(13)), e.c32(1));
    let normal = e.add(a, e.c32(0xc800_0fff));
    let normal = e.lshr(e.add(normal, odd), e.c32(13));
    let r = e.isel(e.icmp(IP::ULT, a, e.c32(0x3880_0000)), tiny, normal);
    let r = e.isel(e.icmp(IP::UGE, a, e.c32(0x477f_f000)), e.c32(0x7c00), r);
    let r = e.isel(e.icmp(IP::UGT, a, e.c32(0x7f80_0000)), nan, r);
    e.trunc(e.or(r, sign), e.i16())
}

/// f32 → bfloat16 bits, round to nearest even; NaN stays NaN.
fn f32_to_bf16<'c>(e: &Em<'_, 'c>, x: F<'c>) -> I<'c> {
    let b = e.bits(x);
    let odd = e.and(e.lshr(b, e.c32(16)), e.c32(1));
    let r = e.lshr(e.add(e.add(b, e.c32(0x7fff)), odd), e.c32(16));
    let nan = e.or(e.lshr(b, e.c32(16)), e.c32(0x40));
    e.trunc(e.isel(e.is_nan(x), nan, r), e.i16())
}

/// Rounds to the precision of `to` and back.
pub(crate) fn round<'c>(e: &Em<'_, 'c>, v: Val<'c>, from: DType, to: DType) -> Why<Val<'c>> {
    if !from.is_float() {
        return Err(format!("rounding {from} to {to} is not defined: only floats are rounded"));
    }
    use DType::*;
    let narrow = match to {
        F64 => return Ok(v),
        F32 if from == F32 => return Ok(v),
        F32 => cast(e, v, from, DType::F32).into_float_value(),
        F16 => f16_to_f32(e, f32_to_f16(e, to_f32_for_rounding(e, v, from))),
        BF16 => from_memory(e, f32_to_bf16(e, to_f32_for_rounding(e, v, from)).into(), to).into_float_value(),
        F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0 | F4E2M1 => {
            small::decode(e, small::encode(e, to_f32_for_rounding(e, v, from), to), to)
        }
        _ => return Err(format!("generated kernels do not round to {to}")),
    };
    Ok(cast(e, narrow.into(), DType::F32, from))
}

/// A unary operation on a value of compute type `d`.
pub(crate) fn unary<'c>(e: &Em<'_, 'c>, op: UnOp, v: Val<'c>, d: DType) -> Why<Val<'c>> {
    use UnOp::*;
    if d.is_float() {
        let x = v.into_float_value();
        let one = e.fk(x, 1.0);
        return Ok(match op {
            Neg => e.fneg(x),
            Abs => e.fabs(x),
            Sqrt => e.fintr("llvm.sqrt", x),
            Rsqrt => e.fdiv(one, e.fintr("llvm.sqrt", x)),
            Recip => e.fdiv(one, x),
            Exp => math::exp(e, x),
            Log => math::log(e, x),
            Sin => math::sin(e, x),
            Cos => math::cos(e, x),
            Tan => math::tan(e, x),
            Asin => math::asin(e, x),
            Acos => math::acos(e, x),
            Atan => math::atan(e, x),
            Sinh => math::sinh(e, x),
            Cosh => math::cosh(e, x),
            Tanh => math::tanh(e, x),
            Asinh => math::asinh(e, x),
            Acosh => math::acosh(e, x),
            Atanh => math::atanh(e, x),
            Erf => math::erf(e, x),
            Floor => e.floor(x),
            Ceil => e.fneg(e.floor(e.fneg(x))),
            RoundEven => e.round_even(x),
            Trunc => e.ftrunc(x),
            Sign => {
                let z = e.fk(x, 0.0);
                let s = e.fsel(e.fcmp(FP::OGT, x, z), one, e.fsel(e.fcmp(FP::OLT, x, z), e.fneg(one), x));
                return Ok(s.into());
            }
            IsNan => return Ok(e.is_nan(x).into()),
            IsInf => return Ok(e.fcmp(FP::OEQ, e.fabs(x), e.fk(x, f64::INFINITY)).into()),
            ToBits => return Ok(e.bits(x).into()),
            _ => return Err(format!("{op:?} is not defined on {d}")),
        }
        .into());
    }
    let x = v.into_int_value();
    let zero = e.ik(x, 0);
    let signed = d.is_signed();
    Ok(match op {
        Not if d == DType::Bool => e.not(x),
        BitNot => e.not(x),
        IsNan | IsInf => e.i1().const_zero(),
        FromBits if !signed && d != DType::Bool => return Ok(e.from_bits(x).into()),
        _ if d == DType::Bool => return Err(format!("{op:?} is not defined on {d}")),
        Not => e.icmp(IP::EQ, x, zero),
        Neg => e.neg(x),
        Abs if signed => e.isel(e.icmp(IP::SLT, x, zero), e.neg(x), x),
        Abs | Floor | Ceil | RoundEven | Trunc => x,
        Sign => {
            let pos = e.isel(e.icmp(IP::NE, x, zero), e.ik(x, 1), zero);
            if signed { e.isel(e.icmp(IP::SLT, x, zero), e.ik(x, -1), pos) } else { pos }
        }
        _ => return Err(format!("{op:?} is not defined on {d}")),
    }
    .into())
}

/// A binary operation on values of compute type `d`.
pub(crate) fn binary<'c>(e: &Em<'_, 'c>, op: BinOp, a: Val<'c>, b: Val<'c>, d: DType) -> Why<Val<'c>> {
    use BinOp::*;
    if d.is_float() {
        let (x, y) = (a.into_float_value(), b.into_float_value());
        let cmp = |p| Ok(e.fcmp(p, x, y).into());
        return Ok(match op {
            Add => e.fadd(x, y),
            Sub => e.fsub(x, y),
            Mul => e.fmul(x, y),
            Div => e.fdiv(x, y),
            Min => e.fintr2("llvm.minimum", x, y),
            Max => e.fintr2("llvm.maximum", x, y),
            Pow => math::pow(e, x, y),
            Rem => e.call(fmod(e, x.get_type()), &[x.into(), y.into()]).into_float_value(),
            Mod => {
                let r = e.call(fmod(e, x.get_type()), &[x.into(), y.into()]).into_float_value();
                let z = e.fk(x, 0.0);
                let differ = e.xor(e.fcmp(FP::OLT, r, z), e.fcmp(FP::OLT, y, z));
                let r = e.fsel(e.fcmp(FP::OEQ, r, z), e.copysign(z, y), r);
                e.fsel(e.and(e.fcmp(FP::UNE, r, z), differ), e.fadd(r, y), r)
            }
            Eq => return cmp(FP::OEQ),
            Ne => return cmp(FP::UNE),
            Lt => return cmp(FP::OLT),
            Le => return cmp(FP::OLE),
            Gt => return cmp(FP::OGT),
            Ge => return cmp(FP::OGE),
            _ => return Err(format!("{op:?} is not defined on {d}")),
        }
        .into());
    }
    let (x, y) = (a.into_int_value(), b.into_int_value());
    let s = d.is_signed();
    let pick = |signed, unsigned| if s { signed } else { unsigned };
    let (lt, le, gt, ge) =
        (pick(IP::SLT, IP::ULT), pick(IP::SLE, IP::ULE), pick(IP::SGT, IP::UGT), pick(IP::SGE, IP::UGE));
    let v = match op {
        And => e.and(x, y),
        Or => e.or(x, y),
        Xor => e.xor(x, y),
        Eq => e.icmp(IP::EQ, x, y),
        Ne => e.icmp(IP::NE, x, y),
        Lt => e.icmp(lt, x, y),
        Le => e.icmp(le, x, y),
        Gt => e.icmp(gt, x, y),
        Ge => e.icmp(ge, x, y),
        Min => e.isel(e.icmp(lt, x, y), x, y),
        Max => e.isel(e.icmp(gt, x, y), x, y),
        _ if d == DType::Bool => return Err(format!("{op:?} is not defined on {d}")),
        Add => e.add(x, y),
        Sub => e.sub(x, y),
        Mul => e.mul(x, y),
        Div => divide(e, x, y, s).0,
        Rem => divide(e, x, y, s).1,
        Mod => {
            let r = divide(e, x, y, s).1;
            if s {
                let z = e.ik(x, 0);
                let differ = e.icmp(IP::SLT, e.xor(r, y), z);
                e.isel(e.and(e.icmp(IP::NE, r, z), differ), e.add(r, y), r)
            } else {
                r
            }
        }
        Pow => e.call(int_pow(e, x.get_type(), s), &[x.into(), y.into()]).into_int_value(),
        Shl | Shr => {
            let width = i64::from(x.get_type().get_bit_width());
            let fits = e.icmp(IP::ULT, y, e.ik(x, width));
            let by = e.isel(fits, y, e.ik(x, if s && op == Shr { width - 1 } else { 0 }));
            match (op, s) {
                (Shl, _) => e.isel(fits, e.shl(x, by), e.ik(x, 0)),
                (_, true) => e.ashr(x, by),
                (_, false) => e.isel(fits, e.lshr(x, by), e.ik(x, 0)),
            }
        }
        _ => return Err(format!("{op:?} is not known to this code generator")),
    };
    Ok(v.into())
}

/// Quotient toward zero and remainder; by zero both are 0; the quotient of the least value by -1 wraps.
fn divide<'c>(e: &Em<'_, 'c>, x: I<'c>, y: I<'c>, signed: bool) -> (I<'c>, I<'c>) {
    let (zero, one) = (e.ik(x, 0), e.ik(x, 1));
    let by_zero = e.icmp(IP::EQ, y, zero);
    if !signed {
        let d = e.isel(by_zero, one, y);
        return (e.isel(by_zero, zero, e.udiv_raw(x, d)), e.isel(by_zero, zero, e.urem_raw(x, d)));
    }
    let minus = e.icmp(IP::EQ, y, e.ik(x, -1));
    let d = e.isel(e.or(by_zero, minus), one, y);
    let q = e.isel(minus, e.neg(x), e.sdiv_raw(x, d));
    (e.isel(by_zero, zero, q), e.isel(by_zero, zero, e.srem_raw(x, d)))
}

/// A helper function of the module: made on first use, never inlined into nothing, no library call.
fn helper<'c>(
    e: &Em<'_, 'c>,
    name: &str,
    ty: BasicTypeEnum<'c>,
    body: impl FnOnce(&Em<'_, 'c>, FunctionValue<'c>),
) -> FunctionValue<'c> {
    if let Some(f) = e.m.get_function(name) {
        return f;
    }
    let fty = match ty {
        BasicTypeEnum::FloatType(t) => t.fn_type(&[ty.into(), ty.into()], false),
        _ => ty.into_int_type().fn_type(&[ty.into(), ty.into()], false),
    };
    let f = e.m.add_function(name, fty, Some(Linkage::Internal));
    e.attr(f, AttributeLoc::Function, "nounwind");
    e.string_attr(f, "no-builtins", "");
    if e.caps.gpu.is_some() {
        e.attr(f, AttributeLoc::Function, "alwaysinline");
    }
    let inner = Em::new(e.ctx, e.m, e.caps);
    inner.at(e.ctx.append_basic_block(f, "entry"));
    body(&inner, f);
    f
}

/// C's `fmod`: long division of the mantissas, as many bits a step as fit in 64.
fn fmod<'c>(e: &Em<'_, 'c>, t: FloatType<'c>) -> FunctionValue<'c> {
    let wide = t == e.f64();
    helper(e, if wide { "hip.fmod.f64" } else { "hip.fmod.f32" }, t.into(), |e, f| {
        let param = |i| f.get_nth_param(i).expect("two parameters").into_float_value();
        let (a, b) = (param(0), param(1));
        let (shift, step) = if wide { (52, 11) } else { (23, 40) };
        let (x, y) = (e.fabs(a), e.fabs(b));
        let (special, plain) = (e.block("special"), e.block("plain"));
        let inf = e.fk(a, f64::INFINITY);
        let usual = e.and(e.fcmp(FP::OGE, x, y), e.fcmp(FP::OLT, x, inf));
        let usual = e.and(usual, e.fcmp(FP::OGT, y, e.fk(a, 0.0)));
        e.cond_br(usual, plain, special);
        // x < y gives x; NaN, x infinite, y zero give NaN.
        e.at(special);
        let r = e.fsel(e.fcmp(FP::OLT, x, y), a, e.fk(a, f64::NAN));
        e.ret(&r);

        e.at(plain);
        let split = |v: F<'c>| {
            let bits = e.bits(v);
            let bits = if wide { bits } else { e.zext(bits, e.i64()) };
            let exp = e.lshr(bits, e.c64(shift));
            let frac = e.and(bits, e.c64((1 << shift) - 1));
            let denormal = e.icmp(IP::EQ, exp, e.c64(0));
            (e.isel(denormal, frac, e.or(frac, e.c64(1 << shift))), e.isel(denormal, e.c64(1), exp))
        };
        let ((mx, ex), (my, ey)) = (split(x), split(y));
        let (head, body, done) = (e.block("head"), e.block("body"), e.block("done"));
        let (r0, left0) = (e.urem_raw(mx, my), e.sub(ex, ey));
        let from = e.here();
        e.br(head);
        e.at(head);
        let (r, left) = (e.phi(e.i64(), "r"), e.phi(e.i64(), "left"));
        let (rv, lv) = (r.as_basic_value().into_int_value(), left.as_basic_value().into_int_value());
        e.cond_br(e.icmp(IP::SGT, lv, e.c64(0)), body, done);
        e.at(body);
        let n = e.isel(e.icmp(IP::SLT, lv, e.c64(step)), lv, e.c64(step));
        let (r1, left1) = (e.urem_raw(e.shl(rv, n), my), e.sub(lv, n));
        e.br(head);
        r.add_incoming(&[(&r0, from), (&r1, body)]);
        left.add_incoming(&[(&left0, from), (&left1, body)]);
        e.at(done);
        // r·2^(ey - bias), exact; in two factors because one may be out of range.
        let rf = e.itof(rv, true, e.f64());
        let scale = e.sub(ey, e.c64(if wide { 1075 } else { 150 }));
        let half = e.ashr(scale, e.c64(1));
        let p2 = |n: I<'c>| e.from_bits(e.shl(e.add(n, e.c64(1023)), e.c64(52)));
        let v = e.fmul(e.fmul(rf, p2(half)), p2(e.sub(scale, half)));
        let v = if wide { v } else { e.fptrunc(v, e.f32()) };
        e.ret(&e.copysign(v, a));
    })
}

/// Integer power by squaring, wrapping; a negative exponent gives 1 / power truncated to an integer (0 for base 0).
fn int_pow<'c>(e: &Em<'_, 'c>, t: IntType<'c>, signed: bool) -> FunctionValue<'c> {
    let name = format!("hip.pow.{}{}", if signed { "i" } else { "u" }, t.get_bit_width());
    helper(e, &name, t.into(), |e, f| {
        let param = |i| f.get_nth_param(i).expect("two parameters").into_int_value();
        let (a, n) = (param(0), param(1));
        let (head, body, done) = (e.block("head"), e.block("body"), e.block("done"));
        let one = e.ik(a, 1);
        if signed {
            let (negative, plain) = (e.block("negative"), e.block("plain"));
            e.cond_br(e.icmp(IP::SLT, n, e.ik(a, 0)), negative, plain);
            e.at(negative);
            let odd = e.icmp(IP::NE, e.and(n, one), e.ik(a, 0));
            let m = e.isel(odd, e.ik(a, -1), one);
            let r = e.isel(e.icmp(IP::EQ, a, e.ik(a, -1)), m, e.ik(a, 0));
            e.ret(&e.isel(e.icmp(IP::EQ, a, one), one, r));
            e.at(plain);
        }
        let from = e.here();
        e.br(head);
        e.at(head);
        let (p, q, k) = (e.phi(t, "power"), e.phi(t, "square"), e.phi(t, "left"));
        let v = |x: &inkwell::values::PhiValue<'c>| x.as_basic_value().into_int_value();
        let (pv, qv, kv) = (v(&p), v(&q), v(&k));
        e.cond_br(e.icmp(IP::NE, kv, e.ik(a, 0)), body, done);
        e.at(body);
        let odd = e.icmp(IP::NE, e.and(kv, one), e.ik(a, 0));
        let p1 = e.isel(odd, e.mul(pv, qv), pv);
        let (q1, k1) = (e.mul(qv, qv), e.lshr(kv, one));
        e.br(head);
        p.add_incoming(&[(&one, from), (&p1, body)]);
        q.add_incoming(&[(&a, from), (&q1, body)]);
        k.add_incoming(&[(&n, from), (&k1, body)]);
        e.at(done);
        e.ret(&pv);
    })
}
