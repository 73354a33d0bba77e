//! Scalar functions that the standard library lacks.

use std::cmp::Ordering;

/// Σ v, of nothing 0. (`Iterator::sum` starts from -0, whose reciprocal is -∞.)
pub fn sum(v: impl Iterator<Item = f64>) -> f64 {
    v.fold(0.0, |a, b| a + b)
}
/// The greater, 0 above -0; NaN when either is: `maximum` of IEEE 754-2019.
pub fn max(x: f64, y: f64) -> f64 {
    match x.partial_cmp(&y) {
        None => f64::NAN,
        Some(Ordering::Greater) => x,
        Some(Ordering::Less) => y,
        Some(Ordering::Equal) if x.is_sign_negative() => y,
        Some(Ordering::Equal) => x,
    }
}

/// The less, -0 below 0; NaN when either is: `minimum` of IEEE 754-2019.
pub fn min(x: f64, y: f64) -> f64 {
    -max(-x, -y)
}

/// The remainder with the sign of `y`, zeros too (Python's `%`): `y` infinite gives `x`, or `y` where the signs differ.
pub fn modulo(x: f64, y: f64) -> f64 {
    let r = x % y;
    match r != 0.0 {
        true if (r < 0.0) != (y < 0.0) => r + y,
        true => r,
        false => r.copysign(y),
    }
}

/// `x` shifted right by `n` bits of `bits`; a count that is negative or too great leaves the sign alone.
pub fn shift_right(x: i128, n: i128, bits: i128) -> i128 {
    x >> if (0..bits).contains(&n) { n } else { bits }
}

/// `x` shifted left by `n` bits; a count that is negative, or not below the `bits` of the type, gives 0.
pub fn shift_left(x: i128, n: i128, bits: i128) -> i128 {
    if (0..bits).contains(&n) { x << n } else { 0 }
}

/// 1, 0 or -1; NaN stays.
pub fn sign(x: f64) -> f64 {
    if x.is_nan() || x == 0.0 { x + 0.0 } else { x.signum() }
}

/// `xⁿ`, wrapping; a negative exponent truncates `1 / x⁻ⁿ`, and 0 to a negative power is 0.
pub fn int_pow(x: i128, n: i128) -> i128 {
    if n < 0 {
        return match x {
            1 => 1,
            -1 => 1 - 2 * (n & 1),
            _ => 0,
        };
    }
    let (mut result, mut base, mut n) = (1i128, x, n);
    while n > 0 {
        if n & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        n >>= 1;
    }
    result
}

/// The error function, to about 1e-15.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    let y = if a.is_nan() {
        return x;
    } else if a > 6.0 {
        1.0
    } else if a < 3.0 {
        // 2/√π · e^(-x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!: all terms are positive, so nothing cancels.
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term > 1e-17 * sum {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * sum
    } else {
        // The continued fraction of erfc, from the inside out.
        let tail = (1..40).rev().fold(a, |t, k| a + f64::from(k) / 2.0 / t);
        1.0 - (-a * a).exp() / (tail * std::f64::consts::PI.sqrt())
    };
    y.copysign(x)
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + eˣ)` without overflow.
pub fn softplus(x: f64) -> f64 {
    max(x, 0.0) + (-x.abs()).exp().ln_1p()
}

/// `x · Φ(x)`, Φ the normal distribution.
pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

/// The tanh approximation of [`gelu`].
pub fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_above_negative_zero() {
        for (x, y) in [(-0.0, 0.0), (0.0, -0.0)] {
            assert_eq!((max(x, y).to_bits(), min(x, y).to_bits()), (0.0f64.to_bits(), (-0.0f64).to_bits()));
        }
        assert_eq!((max(-0.0, -0.0).to_bits(), max(2.0, -3.0), min(2.0, -3.0)), ((-0.0f64).to_bits(), 2.0, -3.0));
        assert!(
            [max(f64::NAN, 1.0), max(1.0, f64::NAN), min(f64::NAN, 1.0), min(1.0, f64::NAN)].iter().all(|x| x.is_nan())
        );
    }

    #[test]
    fn erf_agrees_with_published_values() {
        let table = [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.999, 0.999_977_771_3),
            (3.5, 0.999_999_256_901_627_7),
            (-1.0, -0.842_700_792_949_714_9),
            (f64::INFINITY, 1.0),
        ];
        for (x, y) in table {
            assert!((erf(x) - y).abs() < if x == 2.999 { 1e-7 } else { 1e-14 }, "erf({x}) = {}", erf(x));
        }
        assert!(erf(f64::NAN).is_nan());
    }
}
