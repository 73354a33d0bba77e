//! Argument reduction and polynomials of sine and cosine.
//!
//! x = n·π/2 + r with |r| ≤ π/4. Below 2^20 the multiple is subtracted with π/2 in three parts. From there on x = m·2^k with an integer
//! m, and a table holds 2^k·2/π mod 4 in parts that are so short that the products with (halves of) m are exact; the digits of 2/π are
//! computed here. Both ways are computed for every element and one is selected: no branch stands in the way of the vectoriser.

use crate::emit::{Em, F, I};
use crate::math::round_magic;
use inkwell::module::Linkage;
use inkwell::values::PointerValue;
use inkwell::{AddressSpace, FloatPredicate as P};
use std::sync::LazyLock;

/// Sine and cosine of the rest and which quadrant it lies in.
pub(crate) struct Reduced<'c> {
    /// sin r.
    pub sin: F<'c>,
    /// cos r.
    pub cos: F<'c>,
    /// n is odd: the two change places.
    pub odd: I<'c>,
    /// n mod 4 is 2 or 3: sine changes sign.
    pub upper: I<'c>,
}

/// 2/π as bits: `[0]` weighs 1/2.
static TWO_BY_PI: LazyLock<Vec<bool>> = LazyLock::new(|| {
    // Fixed point, little-endian limbs, the last one the integer part. π = 16·atan(1/5) - 4·atan(1/239).
    const LIMBS: usize = 45;
    type Fix = Vec<u32>;
    fn div(a: &mut Fix, d: u32) {
        let mut r = 0u64;
        for x in a.iter_mut().rev() {
            let v = (r << 32) | u64::from(*x);
            *x = u32::try_from(v / u64::from(d)).expect("a quotient digit fits");
            r = v % u64::from(d);
        }
    }
    fn add(a: &mut Fix, b: &Fix, minus: bool) {
        let mut carry = u64::from(minus);
        for (x, y) in a.iter_mut().zip(b) {
            let y = if minus { !*y } else { *y };
            let v = u64::from(*x) + u64::from(y) + carry;
            *x = (v & 0xffff_ffff) as u32;
            carry = v >> 32;
        }
    }
    fn atan_inverse(d: u32, times: u32) -> Fix {
        let mut power = vec![0; LIMBS];
        power[LIMBS - 1] = times;
        div(&mut power, d);
        let mut sum = power.clone();
        let mut k = 1;
        while power.iter().any(|x| *x != 0) {
            div(&mut power, d * d);
            let mut term = power.clone();
            div(&mut term, 2 * k + 1);
            add(&mut sum, &term, k % 2 == 1);
            k += 1;
        }
        sum
    }
    let mut pi = atan_inverse(5, 16);
    add(&mut pi, &atan_inverse(239, 4), true);
    // Long division 2 / π, a bit at a time: the remainder doubles, and π is taken off where it fits.
    let less = |a: &Fix, b: &Fix| a.iter().rev().lt(b.iter().rev());
    let mut rest = vec![0; LIMBS];
    rest[LIMBS - 1] = 2;
    (0..1300)
        .map(|_| {
            let copy = rest.clone();
            add(&mut rest, &copy, false);
            let bit = !less(&rest, &pi);
            if bit {
                add(&mut rest, &pi, true);
            }
            bit
        })
        .collect()
});

/// The digits of 2^k·2/π mod 4 whose weights are 2^hi down to 2^lo.
fn part(k: i32, hi: i32, lo: i32) -> f64 {
    let bits = &*TWO_BY_PI;
    (lo..=hi)
        .filter(|w| usize::try_from(k - w - 1).is_ok_and(|i| bits.get(i).copied().unwrap_or(false)))
        .map(|w| f64::from(w).exp2())
        .sum()
}

/// A constant table of f64, once a module.
fn table<'c>(e: &Em<'_, 'c>, name: &str, values: impl Fn() -> Vec<f64>) -> PointerValue<'c> {
    if let Some(g) = e.m.get_global(name) {
        return g.as_pointer_value();
    }
    let v: Vec<_> = values().into_iter().map(|x| e.f64().const_float(x)).collect();
    let init = e.f64().const_array(&v);
    // Lanes read different entries, so on a GPU the table lies in global memory.
    let space = e.caps.gpu.map(|_| AddressSpace::from(1u16));
    let g = e.m.add_global(init.get_type(), space, name);
    g.set_initializer(&init);
    g.set_constant(true);
    g.set_linkage(Linkage::Private);
    g.as_pointer_value()
}

/// x - 4·round(x / 4).
fn mod4<'c>(e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
    let (q, _) = round_magic(e, e.fmul(x, e.fk(x, 0.25)));
    e.fsub(x, e.fmul(q, e.fk(x, 4.0)))
}

const F32_K0: i32 = -3; // 2^20 = 2^23 · 2^-3
const F64_K0: i32 = -32;

pub(crate) fn reduce<'c>(e: &Em<'_, 'c>, x: F<'c>) -> Reduced<'c> {
    let wide = e.is64(x);
    let xd = if wide { x } else { e.fpext(x, e.f64()) };
    let big = e.fcmp(P::OGE, e.fabs(xd), e.fk(xd, 1_048_576.0));

    // Below 2^20: 33 + 33 + 53 bits of π/2.
    let near = e.fsel(big, e.fk(xd, 0.0), xd);
    let (nf, n_near) = round_magic(e, e.fmul(near, e.fk(xd, std::f64::consts::FRAC_2_PI)));
    let r = e.fsub(near, e.fmul(nf, e.fk(xd, 1.570_796_326_734_125_6)));
    let r = e.fsub(r, e.fmul(nf, e.fk(xd, 6.077_100_506_303_966e-11)));
    let r_near = e.fsub(r, e.fmul(nf, e.fk(xd, 2.022_266_248_795_950_6e-21)));

    // From there on: the table.
    let bits = e.bits(x);
    let (shift, mask, hidden, bias) =
        if wide { (52, (1i64 << 52) - 1, 1i64 << 52, 1023 + 52) } else { (23, (1i64 << 23) - 1, 1i64 << 23, 127 + 23) };
    let k0 = if wide { F64_K0 } else { F32_K0 };
    let ex = e.lshr(e.and(bits, e.ik(bits, if wide { i64::MAX } else { 0x7fff_ffff })), e.ik(bits, shift));
    let idx = e.sub(ex, e.ik(bits, bias + i64::from(k0)));
    // Infinities and NaN have the exponent after the last entry.
    let n_entries = if wide { 971 - F64_K0 + 2 } else { 104 - F32_K0 + 2 };
    let idx = e.isel(big, idx, e.ik(bits, 0));
    let idx = if wide { idx } else { e.zext(idx, e.i64()) };
    let entries = |hi: i32, lo: i32| move || (0..n_entries).map(|i| part(i + k0, hi, lo)).collect::<Vec<_>>();
    let fetch = |name: &str, hi: i32, lo: i32| {
        let t = table(e, name, entries(hi, lo));
        e.load(e.f64(), e.gep(e.f64(), t, idx)).into_float_value()
    };
    let m = e.or(e.and(bits, e.ik(bits, mask)), e.ik(bits, hidden));
    // A 53-bit integer as a float: the exponent of 2^52 over its mantissa, less nothing (the hidden bit is the 2^52).
    let m = if wide {
        e.from_bits(e.or(e.and(m, e.ik(bits, mask)), e.ik(bits, 0x4330_0000_0000_0000)))
    } else {
        e.itof(m, true, e.f64())
    };
    let (whole, low) = if wide {
        let mh = e.from_bits(e.and(e.bits(m), e.c64(!((1 << 27) - 1))));
        let ml = e.fsub(m, mh);
        let (t1, t2) = (fetch("trig.a1", 1, -24), fetch("trig.a2", -25, -50));
        let (t3, t4, t5) = (fetch("trig.a3", -51, -76), fetch("trig.a4", -77, -102), fetch("trig.a5", -103, -155));
        // mh·t1 is a multiple of 8.
        let s = e.fadd(mod4(e, e.fmul(ml, t1)), mod4(e, e.fmul(mh, t2)));
        let s = e.fadd(mod4(e, s), mod4(e, e.fmul(ml, t2)));
        let s = e.fadd(mod4(e, s), mod4(e, e.fmul(mh, t3)));
        (s, [e.fmul(ml, t3), e.fmul(mh, t4), e.fadd(e.fmul(ml, t4), e.fmul(m, t5))])
    } else {
        let (t1, t2) = (fetch("trig.b1", 1, -27), fetch("trig.b2", -28, -80));
        (mod4(e, e.fmul(m, t1)), [e.fmul(m, t2), e.fk(m, 0.0), e.fk(m, 0.0)])
    };
    let (n1f, n1) = round_magic(e, whole);
    // From the greatest down: each sum is exact where it cancels.
    let q = low.into_iter().fold(e.fsub(whole, n1f), |q, x| e.fadd(q, x));
    let (n2f, n2) = round_magic(e, q);
    let q = e.fsub(q, n2f);
    // The table is for |x|.
    let neg = e.fcmp(P::OLT, xd, e.fk(xd, 0.0));
    let n = e.add(n1, n2);
    let n_far = e.isel(neg, e.neg(n), n);
    let q = e.fsel(neg, e.fneg(q), q);
    let r_far = e.fmul(q, e.fk(xd, std::f64::consts::FRAC_PI_2));

    let n = e.isel(big, n_far, n_near);
    let r = e.fsel(big, r_far, r_near);
    // x - x is 0, or NaN for infinities and NaN.
    let r = e.fadd(r, e.fsub(xd, xd));
    let r = if wide { r } else { e.fptrunc(r, e.f32()) };
    let z = e.fmul(r, r);
    let terms = if wide { 8 } else { 4 };
    let coefficient = |k: u32| (if k % 4 >= 2 { -1.0 } else { 1.0 }) / (1..=k).map(f64::from).product::<f64>();
    let s: Vec<f64> = (1..=terms).map(|i| coefficient(2 * i + 1)).collect();
    let c: Vec<f64> = (2..=terms + 1).map(|i| coefficient(2 * i)).collect();
    let sin = e.fma(e.fmul(r, z), e.poly(z, &s), r);
    let cos = e.fma(e.fmul(z, z), e.poly(z, &c), e.fsub(e.fk(r, 1.0), e.fmul(z, e.fk(r, 0.5))));
    let bit = |b: i64| e.icmp(inkwell::IntPredicate::NE, e.and(n, e.ik(n, b)), e.ik(n, 0));
    Reduced { sin, cos, odd: bit(1), upper: bit(2) }
}
