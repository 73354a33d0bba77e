//! Activations and other smooth functions of one float.

use crate::data::{expand, f64s, from_f64s, from_ints, ints};
use crate::elementwise::map_f64;
use crate::math;
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($p:ident),*): |$x:ident| $f:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &Tensor, $($p: f64),*) -> Tensor {
            map_f64(x, |$x| $f)
        }
    )*};
}

functions! {
    /// `√x`.
    sqrt(): |x| x.sqrt();
    /// `1 / x`.
    reciprocal(): |x| 1.0 / x;
    /// `eˣ`.
    exp(): |x| x.exp();
    /// Natural logarithm.
    log(): |x| x.ln();
    /// The error function.
    erf(): |x| math::erf(x);
    /// Sine.
    sin(): |x| x.sin();
    /// Cosine.
    cos(): |x| x.cos();
    /// Tangent.
    tan(): |x| x.tan();
    /// Inverse sine.
    asin(): |x| x.asin();
    /// Inverse cosine.
    acos(): |x| x.acos();
    /// Inverse tangent.
    atan(): |x| x.atan();
    /// Hyperbolic sine.
    sinh(): |x| x.sinh();
    /// Hyperbolic cosine.
    cosh(): |x| x.cosh();
    /// Hyperbolic tangent.
    tanh(): |x| x.tanh();
    /// Inverse hyperbolic sine.
    asinh(): |x| x.asinh();
    /// Inverse hyperbolic cosine.
    acosh(): |x| x.acosh();
    /// Inverse hyperbolic tangent.
    atanh(): |x| x.atanh();
    /// `1 / (1 + e^-x)`.
    sigmoid(): |x| math::sigmoid(x);
    /// `x < 0 ? alpha·x : x`.
    leaky_relu(alpha): |x| if x < 0.0 { alpha * x } else { x };
    /// `x > alpha ? x : 0`.
    thresholded_relu(alpha): |x| if x > alpha { x } else { 0.0 };
    /// `max(0, min(1, alpha·x + beta))`.
    hard_sigmoid(alpha, beta): |x| math::max(0.0, math::min(1.0, alpha * x + beta));
    /// `x · max(0, min(1, x/6 + 1/2))`.
    hard_swish(): |x| x * math::max(0.0, math::min(1.0, x / 6.0 + 0.5));
    /// `x < 0 ? alpha·(eˣ - 1) : x`.
    elu(alpha): |x| if x < 0.0 { alpha * x.exp_m1() } else { x };
    /// `gamma · (x > 0 ? x : alpha·(eˣ - 1))`.
    selu(alpha, gamma): |x| gamma * if x > 0.0 { x } else { alpha * x.exp_m1() };
    /// `max(0, x) + min(0, alpha·(e^(x/alpha) - 1))`.
    celu(alpha): |x| math::max(0.0, x) + math::min(0.0, alpha * (x / alpha).exp_m1());
    /// `ln(1 + eˣ)`.
    softplus(): |x| math::softplus(x);
    /// `alpha · ln(1 + e^(beta·x))`.
    parametric_softplus(alpha, beta): |x| alpha * math::softplus(beta * x);
    /// `alpha · tanh(beta·x)`.
    scaled_tanh(alpha, beta): |x| alpha * (beta * x).tanh();
    /// `x / (1 + |x|)`.
    softsign(): |x| x / (1.0 + x.abs());
    /// `x · tanh(softplus(x))`.
    mish(): |x| x * math::softplus(x).tanh();
    /// `x · sigmoid(alpha·x)`.
    swish(alpha): |x| x * math::sigmoid(alpha * x);
    /// `x · Φ(x)`.
    gelu(): |x| math::gelu(x);
    /// The tanh approximation of [`gelu`].
    gelu_tanh(): |x| math::gelu_tanh(x);
    /// `x < -lambda ? x + bias : x > lambda ? x - bias : 0`.
    shrink(lambda, bias): |x| if x < -lambda { x + bias } else if x > lambda { x - bias } else { 0.0 };
}

/// `x / (1 + e^(-alpha·x)) · gated`.
///
/// # Errors
/// `Shape` when the operands have different shapes.
pub fn swiglu(x: &Tensor, gated: &Tensor, alpha: f64) -> Result<Tensor> {
    if x.shape() != gated.shape() {
        let text = format!("{:?} and {:?} must be one shape", x.shape(), gated.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let v: Vec<f64> = f64s(x).iter().zip(f64s(gated)).map(|(&x, b)| x / (1.0 + (-alpha * x).exp()) * b).collect();
    Ok(from_f64s(x.dtype(), x.shape(), &v))
}

/// `x < 0 ? slope·x : x`, `slope` broadcast to the shape of `x`.
///
/// # Errors
/// `Shape` when `slope` does not broadcast to `x`.
pub fn prelu(x: &Tensor, slope: &Tensor) -> Result<Tensor> {
    let shape = crate::data::broadcast_shape(&[x.shape(), slope.shape()])?;
    if shape != x.shape() {
        let text = format!("slope {:?} does not broadcast to {:?}", slope.shape(), x.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    if x.dtype().is_float() {
        let s = f64s(slope);
        let s = expand(&s, slope.shape(), &shape);
        let v: Vec<f64> = f64s(x).iter().zip(&*s).map(|(&x, &s)| if x < 0.0 { s * x } else { x }).collect();
        return Ok(from_f64s(x.dtype(), &shape, &v));
    }
    let s = ints(slope);
    let s = expand(&s, slope.shape(), &shape);
    let v: Vec<i128> = ints(x).iter().zip(&*s).map(|(&x, &s)| if x < 0 { s.wrapping_mul(x) } else { x }).collect();
    Ok(from_ints(x.dtype(), &shape, &v))
}

/// `(x - offset[c]) · scale[c]` as f32, `c` along the last axis; a list of one element serves all columns.
///
/// # Errors
/// `Shape` when a list has neither one element nor one per column.
pub fn scaler(x: &Tensor, offset: &[f64], scale: &[f64]) -> Result<Tensor> {
    let c = x.shape().last().copied().unwrap_or(1);
    for (name, list) in [("offset", offset), ("scale", scale)] {
        if list.len() != 1 && list.len() != c {
            let text = format!("{name} has {} elements for {c} columns", list.len());
            return Err(Diagnostic::new(ErrorKind::Shape, text));
        }
    }
    let at = |list: &[f64], i: usize| list[if list.len() == 1 { 0 } else { i % c }];
    let v = f64s(x).into_iter().enumerate().map(|(i, v)| (v - at(offset, i)) * at(scale, i));
    Ok(from_f64s(tensor::DType::F32, x.shape(), &v.collect::<Vec<_>>()))
}
