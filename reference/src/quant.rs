//! Linear quantization: numbers as `(q - zero point) · scale` with `q` of a narrow type, and products of such numbers.

use crate::cast::{Rounding, cast};
use crate::conv::{Window, conv};
use crate::data::{f64s, from_f64s, from_ints};
use crate::elementwise::sub;
use crate::matmul::{Activation, matmul};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// Which elements of a tensor share a scale and a zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// All.
    Tensor,
    /// Those at one position along an axis.
    Axis(usize),
    /// Runs of `size` along `axis`; the scale has the data's other extents.
    Blocks {
        /// The axis.
        axis: usize,
        /// Elements of a run; the last one may be shorter.
        size: usize,
    },
}

/// The scale (or zero point) of every element of a tensor of extents `shape`.
fn spread(t: &Tensor, shape: &[usize], g: Granularity) -> Result<Vec<f64>> {
    let fail =
        || Diagnostic::new(ErrorKind::Shape, format!("scales {:?} for a tensor of {shape:?} by {g:?}", t.shape()));
    let (n, v) = (shape.iter().product(), f64s(t));
    let (axis, size) = match g {
        Granularity::Tensor if v.len() == 1 => return Ok(vec![v[0]; n]),
        Granularity::Tensor => return Err(fail()),
        Granularity::Axis(axis) => (axis, 1),
        Granularity::Blocks { axis, size } => (axis, size.max(1)),
    };
    let d = *shape.get(axis).ok_or_else(fail)?;
    let mut blocks = shape.to_vec();
    blocks[axis] = d.div_ceil(size);
    let own = matches!(g, Granularity::Axis(_));
    if t.shape() != if own { &blocks[axis..=axis] } else { &blocks } {
        return Err(fail());
    }
    let inner: usize = shape[axis + 1..].iter().product();
    let at = |k: usize| {
        let (outer, i, j) = (k / (d * inner), k / inner % d, k % inner);
        if own { i } else { (outer * blocks[axis] + i / size) * inner + j }
    };
    Ok((0..n).map(|k| v[at(k)]).collect())
}

/// Rounds to the precision of a float type; integers stay what they are.
fn to_precision(v: f64, d: DType) -> f64 {
    if d.is_float() { from_f64s(d, &[1], &[v]).view().f64_at(0) } else { v }
}

/// How [`quantize`] makes its result.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its element type.
    pub dtype: DType,
    /// The type whose precision the quotient has.
    pub precision: DType,
    /// Whether values beyond an 8-bit float become its greatest.
    pub saturate: bool,
}

/// `saturate(round(x / scale) + zero_point)`, halves to even; floats are rounded once, after the zero point is added.
///
/// # Errors
/// `Shape` when scale or zero point do not fit.
pub fn quantize(x: &Tensor, scale: &Tensor, zero: Option<&Tensor>, g: Granularity, to: Target) -> Result<Tensor> {
    let s = spread(scale, x.shape(), g)?;
    let z = zero.map(|z| spread(z, x.shape(), g)).transpose()?;
    let p = to.precision;
    let quotient = |(i, &v): (usize, &f64)| {
        let q = to_precision(to_precision(v, p) / to_precision(s[i], p), p);
        let z = z.as_ref().map_or(0.0, |z| z[i]);
        if to.dtype.is_float() { q + z } else { q.round_ties_even() + z }
    };
    let v: Vec<f64> = f64s(x).iter().enumerate().map(quotient).collect();
    Ok(narrow(&v, x.shape(), to))
}

/// Values as elements of a narrow type: integers saturate (NaN is 0), floats round.
fn narrow(v: &[f64], shape: &[usize], to: Target) -> Tensor {
    if to.dtype.is_float() {
        let wide = Tensor::from_f64(shape, v);
        return cast(&wide, to.dtype, Rounding { saturate: to.saturate, ..Rounding::default() }).unwrap_or(wide);
    }
    from_f64s(to.dtype, shape, v)
}

/// `(x - zero_point) · scale` in element type `to`.
///
/// # Errors
/// `Shape` when scale or zero point do not fit.
pub fn dequantize(x: &Tensor, scale: &Tensor, zero: Option<&Tensor>, g: Granularity, to: DType) -> Result<Tensor> {
    let s = spread(scale, x.shape(), g)?;
    let z = zero.map(|z| spread(z, x.shape(), g)).transpose()?;
    let value = |(i, &v): (usize, &f64)| (v - z.as_ref().map_or(0.0, |z| z[i])) * s[i];
    Ok(from_f64s(to, x.shape(), &f64s(x).iter().enumerate().map(value).collect::<Vec<_>>()))
}

/// `x` as u8 with a scale and a zero point of its own: the range of `x` and 0, in 255 steps. A range of 0 has the scale 1.
/// Gives values, scale, zero point; arithmetic is f32's.
pub fn dynamic_quantize(x: &Tensor) -> [Tensor; 3] {
    let v: Vec<f32> = f64s(x).iter().map(|&v| v as f32).collect();
    let (lo, hi) = (v.iter().fold(0f32, |a, &b| a.min(b)), v.iter().fold(0f32, |a, &b| a.max(b)));
    let scale = if hi == lo { 1.0 } else { (hi - lo) / 255.0 };
    let zero = (-lo / scale).clamp(0.0, 255.0).round_ties_even();
    let q = |x: &f32| f64::from(((x / scale).round_ties_even() + zero).clamp(0.0, 255.0));
    [
        from_f64s(DType::U8, x.shape(), &v.iter().map(q).collect::<Vec<_>>()),
        Tensor::from_f32(&[], &[scale]),
        from_f64s(DType::U8, &[], &[zero.into()]),
    ]
}

/// `x - zero_point` in f64, which holds the sums of its products exactly.
fn centered(x: &Tensor, zero: Option<&Tensor>) -> Result<Tensor> {
    let wide = |t: &Tensor| Tensor::from_f64(t.shape(), &f64s(t));
    match zero {
        None => Ok(wide(x)),
        Some(z) if z.n_elems() == 1 => sub(&wide(x), &wide(&z.reshaped(&[]))),
        Some(z) => sub(&wide(x), &wide(z)),
    }
}

/// A list of one value per row as a column.
fn per_row(t: &Tensor) -> Tensor {
    if t.shape().len() == 1 { t.reshaped(&[t.n_elems(), 1]) } else { t.clone() }
}

/// A list of one value per output channel, against a tensor of `rank` axes whose axis `axis` are those channels.
fn per_channel(t: &Tensor, axis: usize, rank: usize) -> Tensor {
    let mut shape = vec![1; rank];
    shape[axis] = t.n_elems();
    t.reshaped(&shape)
}

/// The one value of a tensor, without axes.
fn scalar(t: &Tensor) -> Result<Tensor> {
    match t.n_elems() {
        1 => Ok(t.reshaped(&[])),
        _ => Err(Diagnostic::new(ErrorKind::Shape, format!("{t:?} is not a scalar"))),
    }
}

fn wrapped(t: &Tensor) -> Tensor {
    from_ints(DType::I32, t.shape(), &f64s(t).iter().map(|&v| v as i128).collect::<Vec<_>>())
}

/// `(a - a_zero) · (b - b_zero)` in wrapping i32; zero points per tensor, per row of `a` and per column of `b`.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn matmul_integer(a: &Tensor, b: &Tensor, a_zero: Option<&Tensor>, b_zero: Option<&Tensor>) -> Result<Tensor> {
    let a_zero = a_zero.map(per_row);
    Ok(wrapped(&matmul(&centered(a, a_zero.as_ref())?, &centered(b, b_zero)?)?))
}

/// Scales of a product: of both operands and of the result.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    /// Of the left operand, or the image.
    pub a: &'a Tensor,
    /// Of the right operand, or the weight.
    pub b: &'a Tensor,
    /// Of the result.
    pub y: &'a Tensor,
}

/// `saturate(round(sum · scale_a · scale_b / scale_y) + zero)`, as f32 computes it.
fn requantize(sum: &Tensor, s: Scales, zero: &Tensor) -> Result<Tensor> {
    let wide = |t: &Tensor| Tensor::from_f32(t.shape(), &f64s(t).iter().map(|&v| v as f32).collect::<Vec<_>>());
    let scale = crate::elementwise::mul(&wide(s.a), &wide(s.b))?;
    let scale = crate::elementwise::div(&scale, &wide(s.y))?;
    let v = crate::elementwise::mul(&wide(sum), &scale)?;
    let to = Target { dtype: zero.dtype(), precision: DType::F32, saturate: true };
    let round = |v: f64| if to.dtype.is_float() { v } else { v.round_ties_even() };
    let v = sub(&crate::elementwise::map_f64(&v, round), &crate::elementwise::map_f64(&wide(zero), |z| -z))?;
    Ok(narrow(&f64s(&v), v.shape(), to))
}

/// The product of quantized matrices, quantized; scales and zero points as in [`matmul_integer`].
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn qlinear_matmul(a: &Tensor, b: &Tensor, s: Scales, zeros: [&Tensor; 3]) -> Result<Tensor> {
    let [a_zero, b_zero, y_zero] = zeros;
    let exact = matmul(&centered(a, Some(&per_row(a_zero)))?, &centered(b, Some(b_zero))?)?;
    let sum = if a.dtype().is_float() || b.dtype().is_float() { exact } else { wrapped(&exact) };
    let line = |t: &Tensor| scalar(t).unwrap_or_else(|_| t.clone());
    let (sa, sb, sy) = (line(&per_row(s.a)), line(s.b), line(&per_row(s.y)));
    requantize(&sum, Scales { a: &sa, b: &sb, y: &sy }, &line(&per_row(y_zero)))
}

/// The sums of `conv(x - x_zero, w - w_zero)`, a padded element being 0; `w_zero` per tensor or output channel.
fn conv_sums(
    x: &Tensor,
    w: &Tensor,
    x_zero: Option<&Tensor>,
    w_zero: Option<&Tensor>,
    window: &Window,
    group: usize,
) -> Result<Tensor> {
    let w_zero = w_zero.map(|z| per_channel(z, 0, w.shape().len()));
    conv(&centered(x, x_zero)?, &centered(w, w_zero.as_ref())?, None, None, window, group, Activation::None)
}

/// `conv(x - x_zero, w - w_zero)` in wrapping i32, a padded element being `x_zero`.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn conv_integer(
    x: &Tensor,
    w: &Tensor,
    x_zero: Option<&Tensor>,
    w_zero: Option<&Tensor>,
    window: &Window,
    group: usize,
) -> Result<Tensor> {
    Ok(wrapped(&conv_sums(x, w, x_zero, w_zero, window, group)?))
}

/// The convolution of quantized tensors with an i32 bias, quantized.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn qlinear_conv(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    s: Scales,
    zeros: [&Tensor; 3],
    window: &Window,
    group: usize,
) -> Result<Tensor> {
    let mut sum = conv_sums(x, w, Some(zeros[0]), Some(zeros[1]), window, group)?;
    let rank = sum.shape().len();
    if let Some(b) = bias {
        let wide = Tensor::from_f64(b.shape(), &f64s(b));
        sum = crate::elementwise::add(&sum, &per_channel(&wide, 1, rank))?;
    }
    let sb = per_channel(s.b, 1, rank);
    requantize(&wrapped(&sum), Scales { a: &scalar(s.a)?, b: &sb, y: &scalar(s.y)? }, &scalar(zeros[2])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::ints;

    #[test]
    fn blocks_share_scales_along_their_axis() {
        let x = Tensor::from_f32(&[2, 3], &[1.0, 2.5, 3.5, -4.0, 5.0, 300.0]);
        let s = Tensor::from_f32(&[2, 2], &[1.0, 0.5, 2.0, 1.0]);
        let z = from_ints(DType::I8, &[2, 2], &[0, 1, 0, -1]);
        let to = Target { dtype: DType::I8, precision: DType::F32, saturate: true };
        let q = quantize(&x, &s, Some(&z), Granularity::Blocks { axis: 1, size: 2 }, to).unwrap();
        assert_eq!(ints(&q), [1, 2, 8, -2, 2, 127]);
        let y = dequantize(&q, &s, Some(&z), Granularity::Blocks { axis: 1, size: 2 }, DType::F32).unwrap();
        assert_eq!(f64s(&y), [1.0, 2.0, 3.5, -4.0, 4.0, 128.0]);
        assert!(quantize(&x, &s, None, Granularity::Axis(2), to).is_err());
    }

    #[test]
    fn a_range_without_extent_has_the_scale_one() {
        let [y, s, z] = dynamic_quantize(&Tensor::from_f32(&[2], &[0.0, 0.0]));
        assert_eq!((f64s(&y), f64s(&s), f64s(&z)), (vec![0.0; 2], vec![1.0], vec![0.0]));
    }

    #[test]
    fn padding_of_an_integer_convolution_is_its_zero_point() {
        let x = from_ints(DType::U8, &[1, 1, 2], &[3, 4]);
        let w = from_ints(DType::I8, &[1, 1, 3], &[1, -1, 2]);
        let z = from_ints(DType::U8, &[], &[3]);
        let window =
            Window { kernel: vec![3], strides: vec![1], dilations: vec![1], begin: vec![1], end: vec![1], ceil: false };
        let y = conv_integer(&x, &w, Some(&z), None, &window, 1).unwrap();
        assert_eq!(ints(&y), [2, -1]);
    }
}
