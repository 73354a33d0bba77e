//! The 8- and 4-bit floats: codes as they lie in memory ↔ f32, by integer arithmetic on every target.

use crate::emit::{Em, F, I};
use inkwell::IntPredicate as IP;
use tensor::DType;

/// What a code means: widths, bias, and which codes are no numbers.
struct Format {
    /// Bits of the fraction.
    fraction: u32,
    bias: u32,
    /// The code of the greatest finite value.
    max: u32,
    /// The code that NaN becomes.
    nan: u32,
    /// Whether the code after the greatest is infinity.
    infinity: bool,
    /// Whether NaN stands where negative zero would.
    unsigned_zero: bool,
}

fn format(d: DType) -> Format {
    let f = |fraction, bias, max, nan| Format { fraction, bias, max, nan, infinity: false, unsigned_zero: false };
    match d {
        DType::F8E4M3FN => f(3, 7, 0x7e, 0x7f),
        DType::F8E4M3FNUZ => Format { unsigned_zero: true, ..f(3, 8, 0x7f, 0x80) },
        DType::F8E5M2 => Format { infinity: true, ..f(2, 15, 0x7b, 0x7f) },
        DType::F8E5M2FNUZ => Format { unsigned_zero: true, ..f(2, 16, 0x7f, 0x80) },
        // f4e2m1 has no NaN: its codec gives the greatest value.
        _ => f(1, 1, 7, 7),
    }
}

/// The value of a code; `code` is an i8 whose unused bits are 0.
pub(crate) fn decode<'c>(e: &Em<'_, 'c>, code: I<'c>, d: DType) -> F<'c> {
    let w = e.zext(code, e.i32());
    if d == DType::F8E8M0 {
        let normal = e.shl(w, e.c32(23));
        let r = e.isel(e.icmp(IP::EQ, w, e.c32(0)), e.c32(0x40_0000), normal);
        return e.from_bits(e.isel(e.icmp(IP::EQ, w, e.c32(255)), e.c32(0x7fc0_0000), r));
    }
    let f = format(d);
    let sign_bit = 1u32 << (d.bits() - 1);
    let magnitude = e.and(w, e.c32(sign_bit - 1));
    let sign = e.shl(e.and(w, e.c32(sign_bit)), e.c32(32 - d.bits() as u32));
    let normal = e.add(e.shl(magnitude, e.c32(23 - f.fraction)), e.c32((127 - f.bias) << 23));
    let unit = (1.0 - f64::from(f.bias) - f64::from(f.fraction)).exp2();
    let tiny = e.itof(magnitude, true, e.f32());
    let tiny = e.bits(e.fmul(tiny, e.fk(tiny, unit)));
    let r = e.isel(e.icmp(IP::ULT, magnitude, e.c32(1 << f.fraction)), tiny, normal);
    let nan = e.c32(0x7fc0_0000);
    let r = match () {
        _ if f.unsigned_zero => e.isel(e.icmp(IP::EQ, w, e.c32(f.nan)), nan, r),
        _ if f.max == f.nan => r,
        _ => e.isel(e.icmp(IP::UGT, magnitude, e.c32(f.max)), nan, r),
    };
    let r = match f.infinity {
        true => e.isel(e.icmp(IP::EQ, magnitude, e.c32(f.max + 1)), e.c32(0x7f80_0000), r),
        false => r,
    };
    e.from_bits(e.or(r, sign))
}

/// The code nearest to `x`, ties to even; out-of-range values saturate, infinities stay where the format has them. An i8 whose unused
/// bits are 0.
pub(crate) fn encode<'c>(e: &Em<'_, 'c>, x: F<'c>, d: DType) -> I<'c> {
    let b = e.bits(x);
    let a = e.and(b, e.c32(0x7fff_ffff));
    let infinite = e.c32(0x7f80_0000);
    let is_nan = e.icmp(IP::UGT, a, infinite);
    if d == DType::F8E8M0 {
        let near = e.lshr(e.add(a, e.c32(0x40_0000)), e.c32(23));
        let r = e.isel(e.icmp(IP::ULT, near, e.c32(254)), near, e.c32(254));
        let r = e.isel(e.icmp(IP::ULE, a, e.c32(0x40_0000)), e.c32(0), r);
        return e.trunc(e.isel(is_nan, e.c32(255), r), e.i8());
    }
    let f = format(d);
    let dropped = 23 - f.fraction;
    let odd = e.and(e.lshr(a, e.c32(dropped)), e.c32(1));
    let rebased = e.sub(e.add(a, e.c32((1 << (dropped - 1)) - 1)), e.c32((127 - f.bias) << 23));
    let normal = e.lshr(e.add(rebased, odd), e.c32(dropped));
    // Below the least normal value, adding 2^23 units leaves the rounded number of units in the low bits.
    let shift = (24.0 - f64::from(f.bias) - f64::from(f.fraction)).exp2();
    let tiny = e.fadd(e.from_bits(a), e.f32().const_float(shift));
    let tiny = e.sub(e.bits(tiny), e.c32((shift as f32).to_bits()));
    let r = e.isel(e.icmp(IP::ULT, a, e.c32((128 - f.bias) << 23)), tiny, normal);
    let r = e.isel(e.icmp(IP::UGT, r, e.c32(f.max)), e.c32(f.max), r);
    let r = match f.infinity {
        true => e.isel(e.icmp(IP::EQ, a, infinite), e.c32(f.max + 1), r),
        false => r,
    };
    let sign = e.lshr(e.and(b, e.c32(0x8000_0000)), e.c32(32 - d.bits() as u32));
    let r = match f.unsigned_zero {
        true => e.isel(e.icmp(IP::EQ, r, e.c32(0)), r, e.or(r, sign)),
        false => e.or(r, sign),
    };
    // f4e2m1: the tensor codec gives NaN the greatest value, with its sign.
    let nan = if f.max == f.nan { e.or(e.c32(f.nan), sign) } else { e.c32(f.nan) };
    e.trunc(e.isel(is_nan, nan, r), e.i8())
}
