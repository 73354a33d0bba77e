//! f32 functions as branch-free polynomials, so that loops over them vectorise in every tier.

/// e^x: 2^n · p(r) with |r| ≤ ln2/2, p of degree 6; relative error below 2.5e-7. Overflow gives infinity, NaN stays.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these the result is infinite, or 0 after two scalings.
    let c = x.clamp(-105.0, 89.5);
    let n = (c * std::f32::consts::LOG2_E).round_ties_even();
    let r = (-n).mul_add(0.693_359_4, c);
    let r = (-n).mul_add(-2.121_944_4e-4, r);
    let p = 1.388_889e-3f32;
    let p = p.mul_add(r, 8.333_334e-3);
    let p = p.mul_add(r, 4.166_666_6e-2);
    let p = p.mul_add(r, 1.666_666_7e-1);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r, 1.0);
    let p = p.mul_add(r, 1.0);
    // 2^n in two halves, so that neither factor leaves the normal range.
    let (n, half) = (n as i32, (n as i32) >> 1);
    let pow2 = |k: i32| f32::from_bits(((k + 127) << 23) as u32);
    p * pow2(half) * pow2(n - half)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// tanh: odd polynomial near 0, else 1 - 2/(e^2|x| + 1); error below 4e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let x2 = x * x;
    let small = x * (1.0 + x2 * (-0.333_333_34 + x2 * (0.133_333_34 + x2 * (-0.053_968_254 + x2 * 0.021_869_488))));
    let large = (1.0 - 2.0 / (exp(2.0 * a) + 1.0)).copysign(x);
    if a < 0.35 { small } else { large }
}

/// erf: its Maclaurin series below 0.9; above, 1 - t·e^(q(t) - x²) with t = 1/(1 + |x|/2) and q the fit of Numerical Recipes'
/// `erfcc`; absolute error below 3e-7.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let x2 = x * x;
    let small = x * horner(x2, &ERF_SERIES);
    let t = 1.0 / 0.5f32.mul_add(a, 1.0);
    let large = (1.0 - t * exp(horner(t, &ERFC_FIT) - x2)).copysign(x);
    if a < 0.9 { small } else { large }
}

/// 2/√π · (-1)^n / (n! (2n + 1)).
const ERF_SERIES: [f32; 10] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    -3.761_263_9e-1,
    1.128_379_2e-1,
    -2.686_617_1e-2,
    5.223_978e-3,
    -8.548_327e-4,
    1.205_533_3e-4,
    -1.492_565e-5,
    1.646_211_4e-6,
    -1.636_584_5e-7,
];
const ERFC_FIT: [f32; 10] = [
    -1.265_512_2,
    1.000_023_7,
    0.374_091_96,
    0.096_784_18,
    -0.186_288_06,
    0.278_868_07,
    -1.135_204,
    1.488_515_9,
    -0.822_152_2,
    0.170_872_77,
];

/// c0 + c1 x + c2 x² + …
#[inline(always)]
fn horner<const N: usize>(x: f32, c: &[f32; N]) -> f32 {
    let mut p = c[N - 1];
    for i in (0..N - 1).rev() {
        p = p.mul_add(x, c[i]);
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few exact values of erf (Abramowitz and Stegun, table 7.1).
    const ERF: [(f32, f64); 6] = [
        (0.1, 0.112_462_916_0),
        (0.5, 0.520_499_877_8),
        (0.89, 0.791_843_246_8),
        (1.0, 0.842_700_792_9),
        (1.5, 0.966_105_146_5),
        (2.0, 0.995_322_265_0),
    ];

    #[test]
    fn errors_stay_within_what_the_docs_say() {
        for i in -9000..9000 {
            let x = i as f32 * 0.01;
            let e = f64::from(exp(x)) / f64::from(x).exp() - 1.0;
            assert!(e.abs() < 2.5e-7 || !(-87.0..=88.7).contains(&x), "exp({x}) is off by {e:e}");
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 4e-7, "tanh({x})");
        }
        for (x, y) in ERF {
            assert!((f64::from(erf(x)) - y).abs() < 3e-7, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        // From 3.92 on ±1 is the nearest f32.
        for x in (0..500).map(|i| 3.92 + i as f32 * 0.01).chain([1e30, f32::INFINITY]) {
            assert_eq!((erf(x), erf(-x)), (1.0, -1.0), "erf(±{x})");
        }
        assert_eq!((exp(200.0), exp(-200.0), erf(9.0), tanh(50.0)), (f32::INFINITY, 0.0, 1.0, 1.0));
        assert!(
            exp(f32::NAN).is_nan() && erf(f32::NAN).is_nan() && tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan()
        );
        assert_eq!((exp(f32::NEG_INFINITY), exp(f32::INFINITY)), (0.0, f32::INFINITY));
    }
}
