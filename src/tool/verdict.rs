//! Whether outputs are right: tolerance by dtype, worst error, digest of bits.

use serde_json::{Value, json};
use tensor::{DType, Tensor};

/// How far an output may be from the expected one: relative to the greatest finite |expected| of the tensor. Integers and bools are
/// exact.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F64 => 1e-7,
        DType::F32 => 1e-4,
        d if d.is_float() => 0.13,
        _ => 0.0,
    }
}

/// Rules of a comparison: the product's own, or the ONNX suite's `atol + rtol·|expected|` for each element.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// [`tolerance`] of the dtype.
    Dtype,
    /// Of the suite's case.
    Suite {
        /// Relative part.
        rtol: f64,
        /// Absolute part.
        atol: f64,
    },
}

/// Worst error as a share of what is allowed (`<= 1` passes) with a sentence, or the reason why the tensors cannot be compared.
///
/// # Errors
/// A sentence when dtype or shape differ.
pub fn compare(got: &Tensor, want: &Tensor, rule: Rule) -> Result<(f64, f64), String> {
    if got.dtype() != want.dtype() || got.shape() != want.shape() {
        return Err(format!("got {}{:?}, expected {}{:?}", got.dtype(), got.shape(), want.dtype(), want.shape()));
    }
    if got.dtype() == DType::String {
        return if got.strings() == want.strings() { Ok((0.0, 0.0)) } else { Err("strings differ".into()) };
    }
    if !got.dtype().is_float() {
        return if got.bytes() == want.bytes() { Ok((0.0, 0.0)) } else { Err(first_difference(got, want)) };
    }
    let (a, b) = (got.to_f64_vec(), want.to_f64_vec());
    let scale = b.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs())).max(1e-30);
    let (mut share, mut error) = (0f64, 0f64);
    for (&x, &y) in a.iter().zip(&b) {
        let allowed = match rule {
            Rule::Dtype => tolerance(got.dtype()) * scale,
            Rule::Suite { rtol, atol } => atol + rtol * y.abs(),
        };
        let d = if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() };
        // A NaN or infinity on one side only is beyond any tolerance.
        let d = if d.is_nan() { f64::INFINITY } else { d };
        share = share.max(if d == 0.0 { 0.0 } else { d / allowed });
        error = error.max(d / scale);
    }
    Ok((share, error))
}

fn first_difference(got: &Tensor, want: &Tensor) -> String {
    let (a, b) = (got.to_i64_vec(), want.to_i64_vec());
    let n = a.iter().zip(&b).filter(|(x, y)| x != y).count();
    match a.iter().zip(&b).position(|(x, y)| x != y) {
        Some(i) => format!("{n} of {} elements differ, the first at {i}: {} instead of {}", a.len(), a[i], b[i]),
        None => "bytes differ".into(),
    }
}

/// Hash of the outputs' dtypes, shapes and bits.
pub fn digest(outputs: &[Tensor]) -> String {
    let mut h = blake3::Hasher::new();
    for t in outputs {
        h.update(format!("{}{:?}", t.dtype(), t.shape()).as_bytes());
        h.update(t.bytes());
        t.strings().iter().for_each(|s| {
            h.update(s.as_bytes());
        });
    }
    h.finalize().to_hex().to_string()
}

/// A tensor as JSON: dtype, shape and, when asked, values.
pub fn to_json(name: &str, t: &Tensor, values: bool) -> Value {
    let mut v = json!({"name": name, "dtype": t.dtype().name(), "shape": t.shape()});
    if values {
        v["values"] = match t.dtype() {
            DType::String => json!(t.strings()),
            d if d.is_float() => json!(t.to_f64_vec()),
            _ => json!(t.to_i64_vec()),
        };
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_differ_differs() {
        let t = |v: &[f32]| Tensor::from_f32(&[v.len()], v);
        let share = |a: &[f32], b: &[f32]| compare(&t(a), &t(b), Rule::Dtype).map(|r| r.0);
        assert_eq!(share(&[1.0, f32::NAN], &[1.0, f32::NAN]), Ok(0.0));
        assert!(share(&[1.0, 100.0], &[1.005, 100.0]).unwrap() < 1.0);
        assert!(share(&[1.0, 100.0], &[1.05, 100.0]).unwrap() > 1.0);
        assert_eq!(share(&[f32::NAN], &[1.0]), Ok(f64::INFINITY));
        assert_eq!(share(&[f32::INFINITY], &[1.0]), Ok(f64::INFINITY));
        assert!(compare(&Tensor::from_i64(&[2], &[1, 2]), &Tensor::from_i64(&[2], &[1, 3]), Rule::Dtype).is_err());
        assert!(compare(&t(&[1.0]), &Tensor::from_i64(&[1], &[1]), Rule::Dtype).is_err());
        assert!(compare(&t(&[1.0]), &Tensor::from_f32(&[1, 1], &[1.0]), Rule::Dtype).is_err());
    }
}
