//! Whether outputs are right by the interpreter's measure, digest of bits, outputs as JSON. Tolerances are in [`tensor::compare`].

use artifact::Metadata;
use serde_json::{Value, json};
use tensor::compare::{Tolerance, ceiling, compare};
use tensor::{DType, Result, Tensor};

/// Error of an output against the interpreter's as a share of what is allowed: twice the error of a peer's output (where it is known)
/// plus a floor of the dtype. At most 1 passes. Without a peer in a model of half precision, which rounds between nodes where ours may
/// not, as far as two right results of `half` may be apart.
///
/// # Errors
/// As [`compare`].
pub fn against_exact(
    got: &Tensor,
    exact: &Tensor,
    peer: Option<&Tensor>,
    half: Option<DType>,
) -> Result<(f64, String)> {
    let tolerance = Tolerance::of(exact.dtype());
    let ours = compare(got, exact, tolerance)?.relative();
    let theirs = peer.and_then(|p| compare(p, exact, tolerance).ok()).map_or(0.0, |r| r.relative());
    let allowed = match half {
        Some(half) if peer.is_none() && exact.dtype().is_float() => ceiling(half),
        _ => 2.0 * theirs + ceiling(exact.dtype()) / 20.0,
    };
    let share = if ours == 0.0 { 0.0 } else { ours / allowed };
    let theirs = peer.map(|_| format!("; the expected output is off by {theirs:.2e}")).unwrap_or_default();
    Ok((share, format!("off by {ours:.2e} from the interpreter{theirs}")))
}

/// The half precision that a model computes in: that of outputs or weights, the briefer one of two.
pub fn half(md: &Metadata) -> Option<DType> {
    let weights = md.constants.iter().filter(|c| c.shape.len() > 1).map(|c| c.dtype);
    let all: Vec<DType> = md.outputs.iter().map(|p| p.dtype).chain(weights).filter_map(DType::from_onnx).collect();
    [DType::BF16, DType::F16].into_iter().find(|d| all.contains(d))
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
            d if d.is_float() => t.to_f64_vec().into_iter().map(number).collect(),
            _ => json!(t.to_i64_vec()),
        };
    }
    v
}

/// A number as JSON, which has none that are not finite: those are the strings `nan`, `inf` and `-inf`.
fn number(x: f64) -> Value {
    match x {
        x if x.is_finite() => json!(x),
        x if x.is_nan() => json!("nan"),
        x => json!(if x > 0.0 { "inf" } else { "-inf" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_json_does_not_have_are_words() {
        let t = Tensor::from_f32(&[4], &[1.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!(to_json("y", &t, true)["values"], json!([1.5, "nan", "inf", "-inf"]));
    }

    #[test]
    fn the_peer_sets_what_is_allowed() {
        let t = |v: f32| Tensor::from_f32(&[2], &[1.0, v]);
        let share =
            |got: f32, peer: Option<f32>| against_exact(&t(got), &t(1.0), peer.map(t).as_ref(), None).unwrap().0;
        assert_eq!(share(1.0, None), 0.0);
        assert!(share(1.000_004, None) < 1.0);
        assert!(share(1.00002, None) > 1.0);
        assert!(share(1.00002, Some(1.00001)) < 1.0);
        assert!(share(1.00004, Some(1.00001)) > 1.0);
        assert_eq!(share(f32::NAN, Some(1.0)), f64::INFINITY);
        assert!(against_exact(&t(1.0), &Tensor::from_f32(&[1], &[1.0]), None, None).is_err());
        let half = |got: f32, peer| against_exact(&t(got), &t(1.0), peer, Some(DType::BF16)).unwrap().0;
        assert!(half(1.004, None) < 1.0 && half(1.02, None) > 1.0);
        assert!(half(1.004, Some(&t(1.0))) > 1.0);
    }
}
