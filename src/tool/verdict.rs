//! Whether outputs are right by the interpreter's measure, digest of bits, outputs as JSON. Tolerances are in [`tensor::compare`].

use artifact::Metadata;
use serde_json::{Value, json};
use std::fmt;
use tensor::compare::{Tolerance, ceiling, compare};
use tensor::{DType, Result, Tensor};

/// How far results are from the interpreter's, relative to its greatest value: ours, those of a peer where they are known, and what is
/// allowed whatever the peer does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Off {
    ours: f64,
    theirs: Option<f64>,
    floor: f64,
}

impl Off {
    /// Of an output. The floor is one of its dtype; without a peer in a model of half precision, which rounds between nodes where ours may
    /// not, it is as far as two right results of `half` may be apart.
    ///
    /// # Errors
    /// As [`compare`].
    pub fn of(got: &Tensor, exact: &Tensor, peer: Option<&Tensor>, half: Option<DType>) -> Result<Off> {
        let tolerance = Tolerance::of(exact.dtype());
        let floor = match half {
            Some(half) if peer.is_none() && exact.dtype().is_float() => ceiling(half),
            _ => ceiling(exact.dtype()) / 20.0,
        };
        // A peer's NaN where there is none allows nothing.
        let theirs =
            peer.and_then(|p| compare(p, exact, tolerance).ok()).map(|r| r.relative()).filter(|e| e.is_finite());
        Ok(Off { ours: compare(got, exact, tolerance)?.relative(), theirs, floor })
    }
    /// Of several results together: the greatest of each.
    pub fn with(self, other: Off) -> Off {
        let theirs = self.theirs.into_iter().chain(other.theirs).reduce(f64::max);
        Off { ours: self.ours.max(other.ours), theirs, floor: self.floor.max(other.floor) }
    }
    /// Error as a share of what is allowed: twice the peer's error plus the floor. At most 1 passes.
    pub fn share(&self) -> f64 {
        if self.ours == 0.0 { 0.0 } else { self.ours / (2.0 * self.theirs.unwrap_or(0.0) + self.floor) }
    }
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "off by {:.2e} from the interpreter", self.ours)?;
        self.theirs.map_or(Ok(()), |e| write!(f, "; the expected output is off by {e:.2e}"))
    }
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
        let off = |got: f32, peer: Option<f32>| Off::of(&t(got), &t(1.0), peer.map(t).as_ref(), None).unwrap();
        let share = |got: f32, peer: Option<f32>| off(got, peer).share();
        assert_eq!(share(1.0, None), 0.0);
        assert!(share(1.000_004, None) < 1.0);
        assert!(share(1.00002, None) > 1.0);
        assert!(share(1.00002, Some(1.00001)) < 1.0);
        assert!(share(1.00004, Some(1.00001)) > 1.0);
        assert_eq!(share(f32::NAN, Some(1.0)), f64::INFINITY);
        assert!(Off::of(&t(1.0), &Tensor::from_f32(&[1], &[1.0]), None, None).is_err());
        let half = |got: f32, peer| Off::of(&t(got), &t(1.0), peer, Some(DType::BF16)).unwrap().share();
        assert!(half(1.004, None) < 1.0 && half(1.02, None) > 1.0);
        assert!(half(1.004, Some(&t(1.0))) > 1.0);
        // One result is further off here and the peer's there: together both count where they are greatest.
        let (here, there) = (off(1.001, Some(1.0)), off(1.0, Some(1.001)));
        assert!(here.share() > 1.0 && there.share() == 0.0 && here.with(there).share() < 1.0);
        assert!(off(1.003, Some(1.0)).with(there).share() > 1.0);
        assert_eq!(there.with(off(f32::NAN, None)).share(), f64::INFINITY);
    }
}
