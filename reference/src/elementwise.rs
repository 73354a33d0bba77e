//! Elementwise operators with numpy broadcasting: arithmetic, comparison, logic, selection.
//!
//! Floats are computed in f64 and rounded once; for + − × ÷ √ that equals arithmetic in the type itself. Integers wrap,
//! their division truncates and division by 0 gives 0.

use crate::data::{broadcast_positions, broadcast_shape, expand, f64s, from_f64s, from_ints, ints};
use crate::math;
use tensor::{DType, Result, Tensor};

/// Applies `f` to every element of a float tensor, `i` to those of an integer or bool tensor.
pub fn map(x: &Tensor, f: impl Fn(f64) -> f64, i: impl Fn(i128) -> i128) -> Tensor {
    if x.dtype().is_float() {
        from_f64s(x.dtype(), x.shape(), &f64s(x).into_iter().map(f).collect::<Vec<_>>())
    } else {
        from_ints(x.dtype(), x.shape(), &ints(x).into_iter().map(i).collect::<Vec<_>>())
    }
}

/// Applies `f` to every element as f64, whatever the type; the result truncates for integers.
pub fn map_f64(x: &Tensor, f: impl Fn(f64) -> f64) -> Tensor {
    map(x, &f, |v| f(v as f64) as i128)
}

/// Applies `f` or `i` to pairs of broadcast elements.
///
/// # Errors
/// `Shape` when the shapes do not broadcast.
pub fn zip(a: &Tensor, b: &Tensor, f: impl Fn(f64, f64) -> f64, i: impl Fn(i128, i128) -> i128) -> Result<Tensor> {
    let shape = broadcast_shape(&[a.shape(), b.shape()])?;
    if a.dtype().is_float() {
        let (x, y) = (f64s(a), f64s(b));
        let (x, y) = (expand(&x, a.shape(), &shape), expand(&y, b.shape(), &shape));
        Ok(from_f64s(a.dtype(), &shape, &x.iter().zip(&*y).map(|(&p, &q)| f(p, q)).collect::<Vec<_>>()))
    } else {
        let (x, y) = (ints(a), ints(b));
        let (x, y) = (expand(&x, a.shape(), &shape), expand(&y, b.shape(), &shape));
        Ok(from_ints(a.dtype(), &shape, &x.iter().zip(&*y).map(|(&p, &q)| i(p, q)).collect::<Vec<_>>()))
    }
}

/// Applies a predicate to pairs of broadcast elements.
///
/// # Errors
/// `Shape` when the shapes do not broadcast.
pub fn compare(
    a: &Tensor,
    b: &Tensor,
    f: impl Fn(&f64, &f64) -> bool,
    i: impl Fn(&i128, &i128) -> bool,
) -> Result<Tensor> {
    let shape = broadcast_shape(&[a.shape(), b.shape()])?;
    let bits: Vec<bool> = if a.dtype() == DType::String {
        let (x, y) = (expand(a.strings(), a.shape(), &shape), expand(b.strings(), b.shape(), &shape));
        // Strings are compared for equality alone.
        x.iter().zip(&*y).map(|(p, q)| p == q).collect()
    } else if a.dtype().is_float() {
        let (x, y) = (f64s(a), f64s(b));
        let (x, y) = (expand(&x, a.shape(), &shape), expand(&y, b.shape(), &shape));
        x.iter().zip(&*y).map(|(p, q)| f(p, q)).collect()
    } else {
        let (x, y) = (ints(a), ints(b));
        let (x, y) = (expand(&x, a.shape(), &shape), expand(&y, b.shape(), &shape));
        x.iter().zip(&*y).map(|(p, q)| i(p, q)).collect()
    };
    Ok(Tensor::from_bool(&shape, &bits))
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident: $f:expr, $i:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// `Shape` when the shapes do not broadcast.
        pub fn $name(a: &Tensor, b: &Tensor) -> Result<Tensor> {
            zip(a, b, $f, $i)
        }
    )*};
}

binary! {
    /// `a + b`.
    add: |x, y| x + y, |x, y| x.wrapping_add(y);
    /// `a - b`.
    sub: |x, y| x - y, |x, y| x.wrapping_sub(y);
    /// `a · b`.
    mul: |x, y| x * y, |x, y| x.wrapping_mul(y);
    /// `a / b`; integers truncate toward zero, and x / 0 is 0 for them.
    div: |x, y| x / y, |x, y| x.checked_div(y).unwrap_or(0);
    /// The remainder with the sign of `b` (Python's `%`); x mod 0 is 0 for integers.
    modulo: math::modulo,
        |x, y| { let r = x.checked_rem(y).unwrap_or(0); if r != 0 && (r < 0) != (y < 0) { r + y } else { r } };
    /// The remainder with the sign of `a` (C's `fmod`).
    rem: |x, y| x % y, |x, y| x.checked_rem(y).unwrap_or(0);
    /// The greater; NaN when either is.
    max: math::max, |x, y| x.max(y);
    /// The less; NaN when either is.
    min: math::min, |x, y| x.min(y);
    /// `a · 2ᵇ` without the bits that leave the type; a count that is negative or no less than its bits gives 0.
    shift_left: |_, _| f64::NAN, |x, y| math::shift_left(x, y, 64);
    /// `a / 2ᵇ`, rounded down; a count that is negative or no less than the bits of the type leaves the sign alone.
    shift_right: |_, _| f64::NAN, |x, y| math::shift_right(x, y, 64);
    /// Bitwise or logical and.
    and: |_, _| f64::NAN, |x, y| x & y;
    /// Bitwise or logical or.
    or: |_, _| f64::NAN, |x, y| x | y;
    /// Bitwise or logical exclusive or.
    xor: |_, _| f64::NAN, |x, y| x ^ y;
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident: $m:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// `Shape` when the shapes do not broadcast.
        pub fn $name(a: &Tensor, b: &Tensor) -> Result<Tensor> {
            compare(a, b, PartialOrd::$m, PartialOrd::$m)
        }
    )*};
}

comparisons! {
    /// `a < b`.
    less: lt;
    /// `a ≤ b`.
    less_or_equal: le;
    /// `a > b`.
    greater: gt;
    /// `a ≥ b`.
    greater_or_equal: ge;
}

/// `a = b`; strings, too.
///
/// # Errors
/// `Shape` when the shapes do not broadcast.
pub fn equal(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    compare(a, b, f64::eq, i128::eq)
}

/// `a` to the power `b` in the type of `a`. Two integers: exact and wrapping, a negative exponent truncates `1 / aⁿ`.
/// Otherwise computed in f64; an integer `a` then truncates the result and saturates, NaN gives 0.
///
/// # Errors
/// `Shape` when the shapes do not broadcast.
pub fn pow(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let shape = broadcast_shape(&[a.shape(), b.shape()])?;
    if !a.dtype().is_float() && !b.dtype().is_float() {
        let (x, y) = (ints(a), ints(b));
        let (x, y) = (expand(&x, a.shape(), &shape), expand(&y, b.shape(), &shape));
        let v: Vec<i128> = x.iter().zip(&*y).map(|(&p, &q)| math::int_pow(p, q)).collect();
        return Ok(from_ints(a.dtype(), &shape, &v));
    }
    let (x, y) = (f64s(a), f64s(b));
    let (x, y) = (expand(&x, a.shape(), &shape), expand(&y, b.shape(), &shape));
    let v = x.iter().zip(&*y).map(|(&p, &q)| p.powf(q));
    if a.dtype().is_float() {
        return Ok(from_f64s(a.dtype(), &shape, &v.collect::<Vec<_>>()));
    }
    Ok(from_ints(a.dtype(), &shape, &v.map(|x| crate::cast::float_to_int(x, a.dtype())).collect::<Vec<_>>()))
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident: $f:expr, $i:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &Tensor) -> Tensor {
            map(x, $f, $i)
        }
    )*};
}

unary! {
    /// `-x`.
    neg: |x| -x, i128::wrapping_neg;
    /// `|x|`; the least integer stays itself.
    abs: f64::abs, i128::wrapping_abs;
    /// 1, 0 or -1; NaN stays.
    sign: math::sign, i128::signum;
    /// Bitwise complement.
    bit_not: |x| x, |x| !x;
    /// Logical not.
    not: |x| x, |x| i128::from(x == 0);
    /// The greatest integer not above.
    floor: f64::floor, |x| x;
    /// The least integer not below.
    ceil: f64::ceil, |x| x;
    /// The nearest integer, ties to even.
    round: f64::round_ties_even, |x| x;
    /// `max(x, 0)`; NaN stays.
    relu: |x| math::max(x, 0.0), |x| x.max(0);
}

/// `cond ? a : b`, broadcast; any element type, strings included. `a` and `b` have one type.
///
/// # Errors
/// `Shape` when the shapes do not broadcast.
pub fn select(cond: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let shape = broadcast_shape(&[cond.shape(), a.shape(), b.shape()])?;
    let n: usize = shape.iter().product();
    let at = |from: &[usize]| {
        let p = broadcast_positions(from, &shape);
        move |i: usize| p.as_ref().map_or(i, |p| p[i])
    };
    let (pc, pa, pb) = (at(cond.shape()), at(a.shape()), at(b.shape()));
    let c = cond.bytes();
    if a.dtype() == DType::String {
        let pick = |i| if c[pc(i)] != 0 { a.strings()[pa(i)].clone() } else { b.strings()[pb(i)].clone() };
        return Ok(Tensor::from_strings(&shape, (0..n).map(pick).collect()));
    }
    if let Some(size) = a.dtype().size() {
        let mut bytes = Vec::with_capacity(n * size);
        for i in 0..n {
            let (src, p) = if c[pc(i)] != 0 { (a.bytes(), pa(i)) } else { (b.bytes(), pb(i)) };
            bytes.extend_from_slice(&src[p * size..(p + 1) * size]);
        }
        return Tensor::new(a.dtype(), &shape, bytes.into());
    }
    let (x, y) = (f64s(a), f64s(b));
    let pick = |i| if c[pc(i)] != 0 { x[pa(i)] } else { y[pb(i)] };
    Ok(from_f64s(a.dtype(), &shape, &(0..n).map(pick).collect::<Vec<_>>()))
}

/// Whether each element is NaN.
pub fn is_nan(x: &Tensor) -> Tensor {
    Tensor::from_bool(x.shape(), &f64s(x).into_iter().map(f64::is_nan).collect::<Vec<_>>())
}

/// Whether each element is an infinity of a wanted sign.
pub fn is_inf(x: &Tensor, negative: bool, positive: bool) -> Tensor {
    let is = |v: f64| v.is_infinite() && if v < 0.0 { negative } else { positive };
    Tensor::from_bool(x.shape(), &f64s(x).into_iter().map(is).collect::<Vec<_>>())
}

/// `min(max(x, lo), hi)`; NaN stays. Bounds are scalars of the type of `x`.
pub fn clip(x: &Tensor, lo: Option<&Tensor>, hi: Option<&Tensor>) -> Tensor {
    if x.dtype().is_float() {
        let get = |t: Option<&Tensor>| t.and_then(|t| f64s(t).first().copied());
        clip_to(x, get(lo), get(hi))
    } else {
        let get = |t: Option<&Tensor>| t.and_then(|t| ints(t).first().copied());
        let (lo, hi) = (get(lo).unwrap_or(i128::MIN), get(hi).unwrap_or(i128::MAX));
        map(x, |v| v, |v| v.max(lo).min(hi))
    }
}

/// [`clip`] of a float tensor with plain bounds.
pub fn clip_to(x: &Tensor, lo: Option<f64>, hi: Option<f64>) -> Tensor {
    let (lo, hi) = (lo.unwrap_or(f64::NEG_INFINITY), hi.unwrap_or(f64::INFINITY));
    map(x, |v| math::min(math::max(v, lo), hi), |v| v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_divide_and_take_powers_as_documented() {
        let a = Tensor::from_i64_as(DType::I8, &[4], &[-7, 7, -128, 5]);
        let b = Tensor::from_i64_as(DType::I8, &[4], &[2, -2, -1, 0]);
        assert_eq!(div(&a, &b).unwrap().to_i64_vec(), [-3, -3, -128, 0]);
        assert_eq!(modulo(&a, &b).unwrap().to_i64_vec(), [1, -1, 0, 0]);
        assert_eq!(rem(&a, &b).unwrap().to_i64_vec(), [-1, 1, 0, 0]);
        let (x, y) = (Tensor::from_i64(&[4], &[2, -1, 3, 0]), Tensor::from_i64(&[4], &[-1, -3, 4, 0]));
        assert_eq!(pow(&x, &y).unwrap().to_i64_vec(), [0, -1, 81, 1]);
    }

    #[test]
    fn nan_wins_in_min_and_max() {
        let (a, b) = (Tensor::from_f32(&[2], &[f32::NAN, 1.0]), Tensor::from_f32(&[2], &[1.0, f32::NAN]));
        assert!(max(&a, &b).unwrap().to_f64_vec().iter().all(|x| x.is_nan()));
        assert!(min(&a, &b).unwrap().to_f64_vec().iter().all(|x| x.is_nan()));
    }
}
