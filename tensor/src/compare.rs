//! Comparison of tensors, with a report of the worst element.

use crate::{DType, Diagnostic, ErrorKind, Result, Tensor};
use half::{bf16, f16};
use std::fmt;

/// How far apart elements may be. Integers, bools and strings are compared exactly whatever is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Equal values: NaN equals NaN, -0 equals 0.
    Exact,
    /// At most so many representable values apart.
    Ulp(u64),
    /// `|a - b| ≤ abs + rel · max|b|`, where the greatest |b| is over all finite elements of the expected tensor.
    Rel {
        /// Share of the greatest |b|.
        rel: f64,
        /// Absolute part.
        abs: f64,
    },
    /// `|a - b| ≤ abs + rel · |b|` for each element by itself, as the ONNX suite has it. An infinite or NaN element matches only
    /// the same.
    Each {
        /// Share of |b|.
        rel: f64,
        /// Absolute part.
        abs: f64,
    },
}

impl Tolerance {
    /// How far two right results of a dtype may be apart: a share of the greatest |b|; integers, bools and strings are exact.
    pub fn of(dtype: DType) -> Tolerance {
        Tolerance::Rel { rel: ceiling(dtype), abs: 0.0 }
    }
}

/// The share of the greatest |b| that [`Tolerance::of`] allows; 0 for what is exact.
pub fn ceiling(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F64 => 1e-7,
        DType::F32 => 1e-4,
        d if d.is_float() => 0.13,
        _ => 0.0,
    }
}

/// The element that is furthest off.
#[derive(Clone, Debug, PartialEq)]
pub struct Worst {
    /// Its index.
    pub index: Vec<usize>,
    /// The element compared.
    pub got: f64,
    /// The element expected.
    pub expected: f64,
    /// How far off: a difference, or a number of representable values.
    pub error: f64,
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Number of elements.
    pub n: usize,
    /// Elements beyond the tolerance.
    pub n_bad: usize,
    /// The furthest one, also when within tolerance; none when all are equal. Infinite where only one side is NaN or infinite.
    pub worst: Option<Worst>,
    /// What was allowed, in the unit of [`Worst::error`]; where each element has its own, at the worst.
    pub allowed: f64,
    /// The greatest error as a share of what was allowed there: at most 1 when all is within tolerance.
    pub share: f64,
    /// The greatest finite |b|.
    pub scale: f64,
}

impl Report {
    /// Whether every element is within tolerance.
    pub fn ok(&self) -> bool {
        self.n_bad == 0
    }
    /// The worst error as a share of the greatest |b|; 0 when all are equal.
    pub fn relative(&self) -> f64 {
        self.worst.as_ref().map_or(0.0, |w| w.error / self.scale.max(1e-30))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.worst {
            None => write!(f, "{} elements are equal", self.n),
            Some(w) => write!(
                f,
                "{} of {} elements differ; the worst is at {:?}: {:?}, expected {:?}, off by {:e}, allowed {:e}",
                self.n_bad, self.n, w.index, w.got, w.expected, w.error, self.allowed
            ),
        }
    }
}

/// Compares `got` with `expected`.
///
/// # Errors
/// `Type` or `Shape` when the two have different dtypes or extents.
///
/// ```
/// use tensor::{Tensor, compare::{compare, Tolerance}};
/// let (a, b) = (Tensor::from_f32(&[2], &[1.0, 2.0]), Tensor::from_f32(&[2], &[1.0, 2.5]));
/// let r = compare(&a, &b, Tolerance::Rel { rel: 0.1, abs: 0.0 }).unwrap();
/// assert_eq!((r.ok(), r.worst.unwrap().index), (false, vec![1]));
/// ```
pub fn compare(got: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Result<Report> {
    if got.dtype() != expected.dtype() {
        let e = format!("the tensor is {}, expected {}", got.dtype(), expected.dtype());
        return Err(Diagnostic::new(ErrorKind::Type, e));
    }
    if got.shape() != expected.shape() {
        let e = format!("the tensor has extents {:?}, expected {:?}", got.shape(), expected.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, e));
    }
    let dtype = got.dtype();
    match dtype {
        DType::String => {
            let (a, b) = (got.strings(), expected.strings());
            let error = |i: usize| if a[i] == b[i] { 0.0 } else { f64::INFINITY };
            Ok(collect(got.shape(), a.len(), 1.0, |i| (0.0, 0.0, error(i), 0.0)))
        }
        // Complex numbers are two floats.
        DType::C64 | DType::C128 => {
            let part = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
            let shape: Vec<usize> = got.shape().iter().copied().chain([2]).collect();
            let parts = |t: &Tensor| Tensor::new(part, &shape, t.bytes().clone());
            compare(&parts(got)?, &parts(expected)?, tolerance)
        }
        d if !d.is_float() => {
            let (a, b) = (got.view(), expected.view());
            let scale = (0..expected.n_elems()).map(|i| b.i64_at(i).unsigned_abs()).max().unwrap_or(0);
            Ok(collect(got.shape(), got.n_elems(), scale as f64, |i| {
                let (x, y) = (a.i64_at(i), b.i64_at(i));
                (x as f64, y as f64, x.abs_diff(y) as f64, 0.0)
            }))
        }
        _ => {
            let (a, b) = (got.view(), expected.view());
            let finite = (0..expected.n_elems()).map(|i| b.f64_at(i).abs()).filter(|x| x.is_finite());
            let scale = finite.fold(0.0, f64::max);
            let allowed = |y: f64| match tolerance {
                Tolerance::Exact => 0.0,
                Tolerance::Ulp(n) => n as f64,
                Tolerance::Rel { rel, abs } => abs + rel * scale,
                Tolerance::Each { rel, abs } => abs + rel * y.abs(),
            };
            Ok(collect(got.shape(), got.n_elems(), scale, |i| {
                let (x, y) = (a.f64_at(i), b.f64_at(i));
                let error = match (x == y || (x.is_nan() && y.is_nan()), tolerance) {
                    (true, _) => 0.0,
                    _ if !x.is_finite() || !y.is_finite() => f64::INFINITY,
                    (_, Tolerance::Ulp(_)) => ulps(dtype, x, y) as f64,
                    _ => (x - y).abs(),
                };
                // What is infinitely far off is never allowed, though a share of an infinite or NaN element would be.
                (x, y, error, if error.is_finite() { allowed(y) } else { 0.0 })
            }))
        }
    }
}

/// Goes over all elements: `element` gives the one compared, the one expected, the error and what is allowed.
fn collect(shape: &[usize], n: usize, scale: f64, element: impl Fn(usize) -> (f64, f64, f64, f64)) -> Report {
    let (mut n_bad, mut share, mut allowed) = (0, 0f64, 0.0);
    let mut worst = None::<(usize, f64, f64, f64)>;
    for i in 0..n {
        let (got, expected, error, may) = element(i);
        n_bad += usize::from(error > may);
        if error > 0.0 {
            share = share.max(error / may);
        }
        if i == 0 || error > worst.map_or(0.0, |w| w.3) {
            allowed = may;
        }
        if error > worst.map_or(0.0, |w| w.3) {
            worst = Some((i, got, expected, error));
        }
    }
    let worst = worst.map(|(mut i, got, expected, error)| {
        let mut index = vec![0; shape.len()];
        for (x, &d) in index.iter_mut().zip(shape).rev() {
            *x = i % d;
            i /= d;
        }
        Worst { index, got, expected, error }
    });
    Report { n, n_bad, worst, allowed, share, scale }
}

/// How many representable values of `dtype` lie between two finite numbers of it.
fn ulps(dtype: DType, x: f64, y: f64) -> u64 {
    // Sign and magnitude to a number line on which neighbours differ by one.
    let line = |bits: u64, width: u32| {
        let magnitude = (bits & !(1u64 << (width - 1))).cast_signed();
        if bits >> (width - 1) & 1 == 1 { -magnitude } else { magnitude }
    };
    let place = |v: f64| match dtype {
        DType::F64 => line(v.to_bits(), 64),
        DType::F32 => line(u64::from((v as f32).to_bits()), 32),
        DType::F16 => line(u64::from(f16::from_f64(v).to_bits()), 16),
        DType::BF16 => line(u64::from(bf16::from_f64(v).to_bits()), 16),
        d => line(u64::from(crate::dtype_small::encode(d, v)), u32::try_from(d.bits()).unwrap_or(8)),
    };
    place(x).abs_diff(place(y))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: &[f32], b: &[f32], t: Tolerance) -> Report {
        compare(&Tensor::from_f32(&[a.len()], a), &Tensor::from_f32(&[b.len()], b), t).unwrap()
    }

    #[test]
    fn special_values() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert!(check(&[nan, inf, -0.0], &[nan, inf, 0.0], Tolerance::Exact).ok());
        let huge = Tolerance::Rel { rel: 1e9, abs: 1e9 };
        let each = Tolerance::Each { rel: 1e-3, abs: 1e-7 };
        for (a, b) in [(nan, 1.0), (inf, 1.0), (inf, -inf), (1.0, nan), (1.0, inf), (-inf, inf), (nan, inf), (inf, nan)]
        {
            for t in [huge, each, Tolerance::Exact, Tolerance::Ulp(9), Tolerance::Each { rel: 0.0, abs: f64::INFINITY }]
            {
                let r = check(&[a], &[b], t);
                assert_eq!(
                    (r.n_bad, r.share, r.worst.unwrap().error),
                    (1, f64::INFINITY, f64::INFINITY),
                    "{a} {b} {t:?}"
                );
            }
        }
        assert!(check(&[nan, inf, -inf, 1.0], &[nan, inf, -inf, 1.0], each).ok());
        assert_eq!(check(&[inf, 2.0], &[inf, 1.0], each).n_bad, 1);
    }

    #[test]
    fn tolerances_and_the_worst_element() {
        let next = f32::from_bits(1f32.to_bits() + 3);
        assert!(check(&[next], &[1.0], Tolerance::Ulp(3)).ok());
        assert!(!check(&[next], &[1.0], Tolerance::Ulp(2)).ok());
        assert_eq!(check(&[-1e-45], &[1e-45], Tolerance::Ulp(2)).n_bad, 0);
        let r = check(&[1.0, 99.0, 3.5], &[1.0, 100.0, 3.0], Tolerance::Rel { rel: 0.006, abs: 0.0 });
        assert_eq!(
            r.to_string(),
            "1 of 3 elements differ; the worst is at [1]: 99.0, expected 100.0, off by 1e0, allowed 6e-1"
        );
        assert_eq!(check(&[], &[], Tolerance::Exact).to_string(), "0 elements are equal");
    }

    #[test]
    fn shares_of_what_is_allowed() {
        let of = Tolerance::of(DType::F32);
        assert_eq!(check(&[1.0, f32::NAN], &[1.0, f32::NAN], of).share, 0.0);
        assert!(check(&[1.0, 100.0], &[1.005, 100.0], of).ok());
        let r = check(&[1.0, 100.0], &[1.05, 100.0], of);
        assert!(!r.ok() && r.share > 4.9 && r.share < 5.1, "{r:?}");
        assert!((r.relative() - 5e-4).abs() < 1e-6, "{r:?}");
        assert_eq!(check(&[f32::NAN], &[1.0], of).share, f64::INFINITY);
        assert_eq!(check(&[f32::INFINITY], &[1.0], of).relative(), f64::INFINITY);
        // The same difference beside a small and a great element.
        let each = Tolerance::Each { rel: 1e-2, abs: 0.0 };
        assert_eq!(check(&[1.5, 100.5], &[1.0, 100.0], each).n_bad, 1);
        let r = check(&[1.0, 100.5], &[1.0, 100.0], each);
        assert!(r.ok() && (r.share - 0.5).abs() < 1e-9, "{r:?}");
        assert!(check(&[0.0], &[0.0], Tolerance::of(DType::F32)).ok());
    }

    #[test]
    fn integers_are_exact_and_types_must_agree() {
        let big = Tensor::from_i64(&[1, 2], &[i64::MAX, 1]);
        let off = Tensor::from_i64(&[1, 2], &[i64::MAX - 1, 1]);
        let r = compare(&big, &off, Tolerance::Rel { rel: 1.0, abs: 1.0 }).unwrap();
        assert_eq!((r.n_bad, r.worst.unwrap().index), (1, vec![0, 0]));
        let f = Tensor::from_f32(&[1, 2], &[0.0; 2]);
        assert_eq!(compare(&big, &f, Tolerance::Exact).unwrap_err().message(), "the tensor is i64, expected f32");
        let s = |v: &str| Tensor::from_strings(&[], vec![v.into()]);
        assert!(compare(&s("a"), &s("a"), Tolerance::Exact).unwrap().ok());
        assert!(!compare(&s("a"), &s("b"), Tolerance::Exact).unwrap().ok());
    }
}
