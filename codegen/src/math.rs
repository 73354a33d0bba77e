//! Transcendental functions as straight-line IR over scalar floats, so that LLVM's loop vectoriser widens them with the loop
//! around them. No function makes a library call; the same code serves every target.
//!
//! Errors, measured over dense sweeps against binary64 of the standard library (tests below):
//!
//! | function | f32, ulp | f64, relative |
//! | --- | --- | --- |
//! | exp | 2 | 1e-15 |
//! | log | 2 | 1e-15 |
//! | sin, cos | 2 | 4e-15 and 1e-31 absolutely |
//! | tanh | 3 | 1e-14 |
//! | erf | 6 | 1e-14 |
//! | pow | 1 | 4e-16·(1 + abs(y·log x)) |
//! | tan, asin, acos, atan, sinh, cosh, asinh, acosh, atanh | 1 (computed in f64) | 1e-14 |
//!
//! On GPUs the instructions of `approx` shorten f32: exp 4 ulp, log 3, tanh 5, erf 8. Where results are kept as f16 or bf16 only, exp
//! and erf come within 2⁻¹⁸.
//!
//! Infinities, NaN and denormal numbers behave as IEEE 754 recommends.

use crate::approx;
use crate::emit::{Em, F, I};
use crate::trig;
use inkwell::FloatPredicate as P;
use inkwell::IntPredicate as IP;
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, LN_2, LOG2_E};

/// Below the last bit of the binary64 nearest to ln 2.
const LN_2_LOW: f64 = 2.319_046_813_846_299_6e-17;

/// e^r = 1 + r + r²·Q(r) on |r| ≤ ln 2 / 2; fitted, error 4e-9.
const EXP_Q_F32: [f64; 6] =
    [5.0e-1, 1.666_666_716e-1, 4.166_646_302e-2, 8.333_298_378e-3, 1.393_388_375e-3, 1.989_958_691e-4];
/// erf(x) = x·P(x²) / Q(x²) on |x| ≤ 4; fitted, error 2e-9 before rounding.
const ERF_P_F32: [f64; 7] = [
    1.128_379_169,
    1.852_045_820e-1,
    5.431_698_348e-2,
    3.849_653_648e-3,
    3.796_051_449e-4,
    4.684_642_805e-6,
    -1.320_162_041e-8,
];
const ERF_Q_F32: [f64; 6] =
    [1.0, 4.974_667_009e-1, 1.139_588_825e-1, 1.546_216_062e-2, 1.307_573_545e-3, 6.310_932_187e-5];
/// The same on |x| ≤ 3.4; error 2⁻¹⁸.
const ERF_P_HALF: [f64; 4] = [1.128_375_210_6, 1.559_828_208e-1, 4.285_341_72e-2, 7.286_868_1e-4];
const ERF_Q_HALF: [f64; 4] = [1.0, 4.715_517_537e-1, 9.513_426_52e-2, 9.127_903_13e-3];
/// -log(erfc(t)) on 1 ≤ t ≤ 6, in u = (t - 3.5) / 2.5; fitted for binary64.
const ERFC_LOG_F64: [f64; 25] = [
    14.112437402148178,
    18.16524897091295,
    6.042206592139079,
    0.08165090972160816,
    -0.03412841107383743,
    0.014384548223855858,
    -0.00595370476058825,
    0.002373998611104979,
    -0.0008935728829393911,
    0.000307810467702855,
    -9.092505902860487e-05,
    1.851250615477763e-05,
    1.5714043988634416e-06,
    -4.6684944031060735e-06,
    3.1884232918785897e-06,
    -1.735319698876567e-06,
    1.2962017881021097e-06,
    -5.975136712093013e-07,
    -2.7755567807813355e-07,
    1.310517618656734e-07,
    2.7855527835932726e-07,
    -6.701486885169824e-08,
    -1.1195523149370086e-07,
    1.849260520208453e-08,
    1.5993604499100132e-08,
];

fn factorial(n: u32) -> f64 {
    (1..=n).map(f64::from).product()
}

/// Round to nearest integer by adding 1.5·2^(mantissa bits): gives the rounded float and the integer, no conversion instruction.
/// Right for magnitudes below 2^(mantissa bits - 1).
pub(crate) fn round_magic<'c>(e: &Em<'_, 'c>, x: F<'c>) -> (F<'c>, I<'c>) {
    let magic = e.fk(x, if e.is64(x) { 6_755_399_441_055_744.0 } else { 12_582_912.0 });
    let t = e.fadd(x, magic);
    (e.fsub(t, magic), e.sub(e.bits(t), e.bits(magic)))
}

/// 2^n for an n within the exponent range of normal numbers.
fn exp2i<'c>(e: &Em<'_, 'c>, n: I<'c>) -> F<'c> {
    let (bias, shift) = if n.get_type() == e.i64() { (1023, 52) } else { (127, 23) };
    e.from_bits(e.shl(e.add(n, e.ik(n, bias)), e.ik(n, shift)))
}

/// x = n·ln 2 + r; returns n and q = e^r - 1.
fn exp_parts<'c>(e: &Em<'_, 'c>, x: F<'c>) -> (I<'c>, F<'c>) {
    let (nf, n) = round_magic(e, e.fmul(x, e.fk(x, LOG2_E)));
    // The high part of ln 2 has so few bits that n times it is exact.
    let hi = if e.is64(x) { f64::from_bits(LN_2.to_bits() & !0xf_ffff_ffff) } else { 0.693_359_375 };
    let lo = (LN_2 - hi) + LN_2_LOW;
    let r = e.fsub(x, e.fmul(nf, e.fk(x, hi)));
    let r = e.fsub(r, e.fmul(nf, e.fk(x, lo)));
    let q = if e.is64(x) {
        let c: Vec<f64> = (2..=13).map(|k| 1.0 / factorial(k)).collect();
        e.poly(r, &c)
    } else {
        e.poly(r, &EXP_Q_F32)
    };
    (n, e.fma(e.fmul(r, r), q, r))
}

/// e^x.
pub fn exp<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    if e.caps.half
        && let Some(y) = approx::exp2_flushed(e, e.fmul(x, e.fk(x, LOG2_E)))
    {
        return y;
    }
    // Beyond these the result is infinite or rounds to 0.
    let x = if e.is64(x) { e.fclamp(x, -746.0, 710.0) } else { e.fclamp(x, -104.0, 89.0) };
    // x·log₂ e = t + r, r below t's last bit.
    let t = e.fmul(x, e.fk(x, LOG2_E));
    if let Some(y) = approx::exp2(e, t) {
        let high = f64::from(LOG2_E as f32);
        let r = e.fma(x, e.fk(x, high), e.fneg(t));
        let r = e.fma(x, e.fk(x, LOG2_E - high), r);
        return e.fmul(y, e.fma(r, e.fk(x, LN_2), e.fk(x, 1.0)));
    }
    let (n, q) = exp_parts(e, x);
    let p = e.fadd(q, e.fk(x, 1.0));
    // Two factors, each a normal number; a denormal result is rounded once more.
    let half = e.ashr(n, e.ik(n, 1));
    e.fmul(e.fmul(p, exp2i(e, half)), exp2i(e, e.sub(n, half)))
}

/// e^x - 1 for x ≤ 700 (f64) or 80 (f32).
fn expm1<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    let (n, q) = exp_parts(e, x);
    let s = exp2i(e, n);
    e.fma(s, q, e.fsub(s, e.fk(x, 1.0)))
}

/// Natural logarithm.
pub fn log<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    let d = e.is64(x);
    let (bits_one, bits_sqrt_half, shift, mask, lift, lift_bits) = if d {
        (0x3ff0_0000_0000_0000, 0x3fe6_a09e_667f_3bcd, 52, 0xf_ffff_ffff_ffff, 18_014_398_509_481_984.0, 54)
    } else {
        (0x3f80_0000, 0x3f35_04f3, 23, 0x7f_ffff, 33_554_432.0, 25)
    };
    let min_normal = if d { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
    let tiny = e.fcmp(P::OLT, x, e.fk(x, min_normal));
    let xs = e.fsel(tiny, e.fmul(x, e.fk(x, lift)), x);
    // x = 2^k·m with m in [sqrt(1/2), sqrt(2)).
    let bits = e.bits(xs);
    let off = e.add(bits, e.ik(bits, bits_one - bits_sqrt_half));
    let k = e.sub(e.ashr(off, e.ik(bits, shift)), e.ik(bits, if d { 1023 } else { 127 }));
    let k = e.sub(k, e.isel(tiny, e.ik(bits, lift_bits), e.ik(bits, 0)));
    let m = e.from_bits(e.add(e.and(off, e.ik(bits, mask)), e.ik(bits, bits_sqrt_half)));
    let kf = if d {
        // |k| is small: the magic constant turns it into a float without a conversion that older targets lack for i64.
        let magic = 6_755_399_441_055_744.0f64;
        let b = e.add(k, e.ik(k, magic.to_bits().cast_signed()));
        e.fsub(e.from_bits(b), e.fk(x, magic))
    } else {
        e.itof(k, true, e.f32())
    };
    let f = e.fsub(m, e.fk(x, 1.0));
    let s = approx::quotient(e, f, e.fadd(f, e.fk(x, 2.0)));
    let z = e.fmul(s, s);
    // log(1 + f) = f - (f²/2 - s·(f²/2 + R)), R = Σ 2/(2k+1)·z^k
    let c: Vec<f64> = (1..=if d { 10 } else { 4 }).map(|k| 2.0 / f64::from(2 * k + 1)).collect();
    let r = e.fmul(z, e.poly(z, &c));
    let h = e.fmul(e.fmul(f, f), e.fk(x, 0.5));
    let hi = if d { f64::from_bits(LN_2.to_bits() & !0xf_ffff_ffff) } else { 0.693_359_375 };
    let lo = (LN_2 - hi) + LN_2_LOW;
    let t = e.fma(s, e.fadd(h, r), e.fmul(kf, e.fk(x, lo)));
    let y = e.fsub(e.fmul(kf, e.fk(x, hi)), e.fsub(e.fsub(h, t), f));
    let inf = e.fk(x, f64::INFINITY);
    let zero = e.fk(x, 0.0);
    // NaN and +inf give themselves; x + x keeps a NaN quiet.
    let y = e.fsel(e.fcmp(P::ULT, x, inf), y, e.fadd(x, x));
    let y = e.fsel(e.fcmp(P::UNO, x, x), e.fadd(x, x), y);
    let y = e.fsel(e.fcmp(P::OEQ, x, zero), e.fk(x, f64::NEG_INFINITY), y);
    e.fsel(e.fcmp(P::OLT, x, zero), e.fk(x, f64::NAN), y)
}

/// log(1 + y) for y ≥ -1.
fn log1p<'c>(e: &Em<'_, 'c>, y: F<'c>) -> F<'c> {
    let one = e.fk(y, 1.0);
    let u = e.fadd(y, one);
    let c = e.fdiv(e.fsub(y, e.fsub(u, one)), u);
    // For 0 < |y| ≪ 1 and for large y the correction is exact or nothing; 1 + y = inf or 0 would make it NaN.
    let plain = e.or(e.fcmp(P::UGE, e.fabs(y), e.fk(y, 1e300)), e.fcmp(P::ULE, u, e.fk(y, 0.0)));
    e.fadd(log(e, u), e.fsel(plain, e.fk(y, 0.0), c))
}

/// Computes in f64 and rounds once.
fn in_f64<'c>(e: &Em<'_, 'c>, x: F<'c>, f: impl Fn(&Em<'_, 'c>, F<'c>) -> F<'c>) -> F<'c> {
    if e.is64(x) { f(e, x) } else { e.fptrunc(f(e, e.fpext(x, e.f64())), e.f32()) }
}

/// Hyperbolic tangent.
pub fn tanh<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    let a = e.fclamp(e.fabs(x), 0.0, if e.is64(x) { 22.0 } else { 10.0 });
    let t = expm1(e, e.fadd(a, a));
    e.copysign(approx::quotient(e, t, e.fadd(t, e.fk(x, 2.0))), x)
}

/// Hyperbolic sine.
pub fn sinh<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let a = e.fabs(x);
        let t = expm1(e, e.fclamp(a, 0.0, 40.0));
        let half = e.fk(x, 0.5);
        let small = e.fmul(half, e.fadd(t, e.fdiv(t, e.fadd(t, e.fk(x, 1.0)))));
        let w = exp(e, e.fmul(a, half));
        let large = e.fmul(e.fmul(half, w), w);
        e.copysign(e.fsel(e.fcmp(P::OGT, a, e.fk(x, 40.0)), large, small), x)
    })
}

/// Hyperbolic cosine.
pub fn cosh<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let a = e.fabs(x);
        let half = e.fk(x, 0.5);
        let w = exp(e, e.fmul(a, half));
        let large = e.fmul(e.fmul(half, w), w);
        // 1 / (2 e^a) = 1 / (4 · e^a / 2)
        let rest = e.fdiv(e.fk(x, 0.25), large);
        e.fadd(large, rest)
    })
}

/// Inverse hyperbolic sine.
pub fn asinh<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let a = e.fabs(x);
        let one = e.fk(x, 1.0);
        let a2 = e.fmul(a, a);
        let small = log1p(e, e.fadd(a, e.fdiv(a2, e.fadd(one, e.fintr("llvm.sqrt", e.fadd(one, a2))))));
        let large = e.fadd(log(e, a), e.fk(x, LN_2));
        e.copysign(e.fsel(e.fcmp(P::OGT, a, e.fk(x, 1e150)), large, small), x)
    })
}

/// Inverse hyperbolic cosine; NaN below 1.
pub fn acosh<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let t = e.fsub(x, e.fk(x, 1.0));
        let small = log1p(e, e.fadd(t, e.fintr("llvm.sqrt", e.fadd(e.fadd(t, t), e.fmul(t, t)))));
        let large = e.fadd(log(e, x), e.fk(x, LN_2));
        let y = e.fsel(e.fcmp(P::OGT, x, e.fk(x, 1e150)), large, small);
        e.fsel(e.fcmp(P::OLT, x, e.fk(x, 1.0)), e.fk(x, f64::NAN), y)
    })
}

/// Inverse hyperbolic tangent; NaN beyond ±1.
pub fn atanh<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let a = e.fabs(x);
        let y = log1p(e, e.fdiv(e.fadd(a, a), e.fsub(e.fk(x, 1.0), a)));
        e.copysign(e.fmul(y, e.fk(x, 0.5)), x)
    })
}

/// Arc tangent.
pub fn atan<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let a = e.fabs(x);
        let one = e.fk(x, 1.0);
        let inv = e.fcmp(P::OGT, a, one);
        let t = e.fsel(inv, e.fdiv(one, a), a);
        // atan t = π/4 + atan((t - 1) / (t + 1)) brings t below tan(π/8).
        let mid = e.fcmp(P::OGT, t, e.fk(x, 0.414_213_562_373_095_03));
        let y = e.fsel(mid, e.fdiv(e.fsub(t, one), e.fadd(t, one)), t);
        let z = e.fmul(y, y);
        let c: Vec<f64> = (1..=21u32).map(|k| if k % 2 == 1 { -1.0 } else { 1.0 } / f64::from(2 * k + 1)).collect();
        let p = e.fma(e.fmul(y, z), e.poly(z, &c), y);
        // π/4 below its last bit: 3.06e-17.
        let p = e.fsel(mid, e.fadd(e.fk(x, FRAC_PI_4), e.fadd(p, e.fk(x, 3.061_616_997_868_383e-17))), p);
        let r = e.fsub(e.fk(x, FRAC_PI_2), e.fsub(p, e.fk(x, 6.123_233_995_736_766e-17)));
        e.copysign(e.fsel(inv, r, p), x)
    })
}

/// Arc sine; NaN beyond ±1.
pub fn asin<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let one = e.fk(x, 1.0);
        let c = e.fintr("llvm.sqrt", e.fmul(e.fsub(one, x), e.fadd(one, x)));
        atan(e, e.fdiv(x, c))
    })
}

/// Arc cosine; NaN beyond ±1.
pub fn acos<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let one = e.fk(x, 1.0);
        let q = e.fdiv(e.fsub(one, x), e.fadd(one, x));
        let a = atan(e, e.fintr("llvm.sqrt", q));
        e.fadd(a, a)
    })
}

/// Error function. f32: one rational function. f64: an odd polynomial up to 1, beyond it 1 - exp(-g(t)) with g fitted to -log(erfc).
pub fn erf<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    let one = e.fk(x, 1.0);
    if !e.is64(x) {
        let ratio = |t, p: &[f64], q: &[f64]| {
            let z = e.fmul(t, t);
            approx::quotient(e, e.fmul(t, e.poly(z, p)), e.poly(z, q))
        };
        if e.caps.half {
            // At its end the fit is a little too large: clamped it is ±1.
            let y = ratio(e.fclamp(x, -3.4, 3.4), &ERF_P_HALF, &ERF_Q_HALF);
            return e.fclamp(y, -1.0, 1.0);
        }
        let y = ratio(e.fclamp(x, -4.0, 4.0), &ERF_P_F32, &ERF_Q_F32);
        // From here on ±1 is nearest; the fit comes one ulp short, which 1 + erf(x) of a large negative x would show.
        let far = e.fcmp(P::OGE, e.fabs(x), e.fk(x, 3.92));
        return e.fsel(far, e.copysign(one, x), e.fclamp(y, -1.0, 1.0));
    }
    let a = e.fabs(x);
    let z = e.fclamp(e.fmul(x, x), 0.0, 1.0);
    let c: Vec<f64> = (0..20u32)
        .map(|k| {
            std::f64::consts::FRAC_2_SQRT_PI / (factorial(k) * f64::from(2 * k + 1))
                * if k % 2 == 1 { -1.0 } else { 1.0 }
        })
        .collect();
    let small = e.fmul(x, e.poly(z, &c));
    let t = e.fclamp(a, 1.0, 6.0);
    let u = e.fmul(e.fsub(t, e.fk(x, 3.5)), e.fk(x, 0.4));
    let g = e.poly(u, &ERFC_LOG_F64);
    let (n, q) = exp_parts(e, e.fneg(g));
    let p = e.fmul(e.fadd(q, one), exp2i(e, n));
    let large = e.copysign(e.fsub(one, p), x);
    e.fsel(e.fcmp(P::UGT, a, one), e.fsel(e.is_nan(x), x, large), small)
}

/// Sine.
pub fn sin<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    let r = trig::reduce(e, x);
    let v = e.fsel(r.odd, r.cos, r.sin);
    let v = e.fsel(r.upper, e.fneg(v), v);
    // -0 stays -0.
    e.fsel(e.fcmp(P::OEQ, x, e.fk(x, 0.0)), x, v)
}

/// Cosine.
pub fn cos<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    let r = trig::reduce(e, x);
    let v = e.fsel(r.odd, r.sin, r.cos);
    e.fsel(e.xor(r.odd, r.upper), e.fneg(v), v)
}

/// Tangent.
pub fn tan<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    in_f64(e, x, |e, x| {
        let r = trig::reduce(e, x);
        let v = e.fdiv(e.fsel(r.odd, e.fneg(r.cos), r.sin), e.fsel(r.odd, r.sin, r.cos));
        e.fsel(e.fcmp(P::OEQ, x, e.fk(x, 0.0)), x, v)
    })
}

/// x^y as C's `pow`.
pub fn pow<'c>(e: &Em<'_, 'c>, x: F<'c>, y: F<'c>) -> F<'c> {
    if !e.is64(x) {
        let r = pow(e, e.fpext(x, e.f64()), e.fpext(y, e.f64()));
        return e.fptrunc(r, e.f32());
    }
    let (zero, one, inf) = (e.fk(x, 0.0), e.fk(x, 1.0), e.fk(x, f64::INFINITY));
    let a = e.fabs(x);
    let ay = e.fabs(y);
    // |x|^y. log gives -inf for 0 and inf for inf; 0·inf (NaN) can only come from |x| = 1 or y = 0, which are set below.
    let r = exp(e, e.fmul(y, log(e, a)));
    // y is an integer when rounding leaves it, odd when its half is not one.
    let is_int = e.and(e.fcmp(P::OEQ, e.ftrunc(y), y), e.fcmp(P::OLT, ay, inf));
    let hy = e.fmul(y, e.fk(y, 0.5));
    let odd = e.and(is_int, e.fcmp(P::UNE, e.ftrunc(hy), hy));
    let neg = e.icmp(IP::SLT, e.bits(x), e.c64(0));
    let r = e.fsel(e.and(neg, odd), e.fneg(r), r);
    // A negative finite base has no value for a fractional exponent.
    let bad = e.and(e.and(e.fcmp(P::OLT, x, zero), e.fcmp(P::OGT, x, e.fneg(inf))), e.not(is_int));
    let bad = e.and(bad, e.fcmp(P::OLT, ay, inf));
    let r = e.fsel(bad, e.fk(x, f64::NAN), r);
    let r = e.fsel(e.or(e.is_nan(x), e.is_nan(y)), e.fadd(x, y), r);
    let unit = e.and(e.fcmp(P::OEQ, a, one), e.fcmp(P::OEQ, ay, inf));
    let r = e.fsel(unit, one, r);
    e.fsel(e.or(e.fcmp(P::OEQ, x, one), e.fcmp(P::OEQ, y, zero)), one, r)
}
