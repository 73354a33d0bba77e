//! Ops that order elements or pick some of them by value.

use crate::movement;
use std::cmp::Ordering;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

fn fail(text: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// Elements that can be put in order: NaN is above every number, -0 equals 0.
enum Ordered {
    Floats(Vec<f64>),
    Ints(Vec<i128>),
    Strings(Vec<String>),
}

impl Ordered {
    fn of(x: &Tensor) -> Ordered {
        match x.dtype() {
            DType::String => Ordered::Strings(x.strings().to_vec()),
            d if d.is_float() => Ordered::Floats(x.to_f64_vec()),
            _ => Ordered::Ints(crate::data::ints(x)),
        }
    }
    fn cmp(&self, i: usize, k: usize) -> Ordering {
        match self {
            Ordered::Strings(v) => v[i].cmp(&v[k]),
            Ordered::Ints(v) => v[i].cmp(&v[k]),
            Ordered::Floats(v) => v[i].partial_cmp(&v[k]).unwrap_or_else(|| v[i].is_nan().cmp(&v[k].is_nan())),
        }
    }
}

/// A number of 64 bits for each element, in the order of the elements: NaN is above every number, -0 equals 0. In the opposite order
/// where `descending`. For floats these are the bits of an f32, of an f64 for f64: inverted below zero, else with the sign bit set.
pub fn keys(x: &Tensor, descending: bool) -> Tensor {
    let top = 1u64 << 63;
    let f64_key = |v: f64| if v < 0.0 { !v.to_bits() } else { v.to_bits() | top };
    let f32_key = |v: f32| u64::from(if v < 0.0 { !v.to_bits() } else { v.to_bits() | 1 << 31 });
    let keys: Vec<u64> = match Ordered::of(x) {
        Ordered::Floats(v) => v
            .into_iter()
            .map(|v| match x.dtype() {
                _ if v.is_nan() => u64::MAX,
                DType::F64 => f64_key(v),
                _ => f32_key(v as f32),
            })
            .collect(),
        // Signed ones are moved up by 2⁶³; bits of u64 are in order as they are.
        Ordered::Ints(v) if x.dtype().is_signed() => v.into_iter().map(|v| (v as i64 as u64) ^ top).collect(),
        Ordered::Ints(v) => v.into_iter().map(|v| v as u64).collect(),
        Ordered::Strings(_) => vec![0; x.n_elems()],
    };
    let keys: Vec<i64> = keys.into_iter().map(|k| if descending { !k } else { k } as i64).collect();
    Tensor::from_i64_as(DType::U64, x.shape(), &keys)
}

/// Along the last axis, the positions of the `k` least elements in ascending order, of equal ones the first position first.
///
/// # Errors
/// `Shape` when there is no axis or fewer than `k` elements along it.
pub fn arg_sort(x: &Tensor, k: Option<usize>) -> Result<Tensor> {
    let Some((&n, outer)) = x.shape().split_last() else { return Err(fail("ArgSort needs an axis")) };
    let k = k.unwrap_or(n);
    if k > n {
        return Err(fail(format!("ArgSort: {k} of {n} elements")));
    }
    let v = Ordered::of(x);
    let mut out = Vec::new();
    for row in 0..outer.iter().product() {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| v.cmp(row * n + a, row * n + b));
        out.extend(order[..k].iter().map(|&i| i as i64));
    }
    let shape: Vec<usize> = outer.iter().copied().chain([k]).collect();
    Ok(Tensor::from_i64(&shape, &out))
}

/// `TopK`: the `k` greatest (or least) elements along `axis` in order, and their positions; of equal ones the first position first.
///
/// # Errors
/// `Shape` for fewer than `k` elements.
pub fn top_k(x: &Tensor, k: usize, axis: usize, largest: bool) -> Result<[Tensor; 2]> {
    let n = x.shape().get(axis).copied().ok_or_else(|| fail("TopK needs an axis"))?;
    if k > n {
        return Err(fail(format!("TopK: {k} of {n} elements")));
    }
    let v = Ordered::of(x);
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let outer: usize = x.shape()[..axis].iter().product();
    let mut shape = x.shape().to_vec();
    shape[axis] = k;
    let mut found = vec![0i64; outer * k * inner];
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let at = |j: usize| (o * n + j) * inner + i;
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| {
            let c = v.cmp(at(a), at(b));
            if largest { c.reverse() } else { c }
        });
        for (j, &p) in order[..k].iter().enumerate() {
            found[(o * k + j) * inner + i] = p as i64;
        }
    }
    let found = Tensor::from_i64(&shape, &found);
    Ok([movement::gather_elements(x, &found, axis)?, found])
}

/// `Compress`: the slices along `axis` (elements, without one) for which the condition holds. It may be shorter than the axis.
///
/// # Errors
/// `Shape` for an axis that does not exist.
pub fn compress(x: &Tensor, keep: &Tensor, axis: Option<usize>) -> Result<Tensor> {
    let flat = x.reshaped(&[x.n_elems()]);
    let (x, axis) = axis.map_or((&flat, 0), |axis| (x, axis));
    let n = x.shape().get(axis).copied().ok_or_else(|| fail("Compress: the axis does not exist"))?;
    let kept: Vec<i64> =
        keep.to_i64_vec().into_iter().take(n).enumerate().filter(|k| k.1 != 0).map(|k| k.0 as i64).collect();
    movement::gather(x, &Tensor::from_i64(&[kept.len()], &kept), axis)
}

/// `Unique`: the different slices along `axis` (elements, without one); where each stands first; which of them stands at each place;
/// how often each occurs. In ascending order, else in the order of first occurrence.
///
/// # Errors
/// `Shape` for an axis that does not exist.
pub fn unique(x: &Tensor, axis: Option<usize>, sorted: bool) -> Result<[Tensor; 4]> {
    let flat = x.reshaped(&[x.n_elems()]);
    let (x, axis) = axis.map_or((&flat, 0), |axis| (x, axis));
    let n = x.shape().get(axis).copied().ok_or_else(|| fail("Unique: the axis does not exist"))?;
    let v = Ordered::of(x);
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let outer: usize = x.shape()[..axis].iter().product();
    let cmp = |a: usize, b: usize| {
        let places = (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i)));
        let each = places.map(|(o, i)| v.cmp((o * n + a) * inner + i, (o * n + b) * inner + i));
        each.fold(Ordering::Equal, Ordering::then)
    };
    let mut first: Vec<usize> = Vec::new();
    for a in 0..n {
        if !first.iter().any(|&b| cmp(a, b) == Ordering::Equal) {
            first.push(a);
        }
    }
    if sorted {
        first.sort_by(|&a, &b| cmp(a, b));
    }
    let inverse: Vec<i64> =
        (0..n).map(|a| first.iter().position(|&b| cmp(a, b) == Ordering::Equal).map_or(-1, |p| p as i64)).collect();
    let counts: Vec<i64> =
        (0..first.len()).map(|u| inverse.iter().filter(|&&i| i == u as i64).count() as i64).collect();
    let first: Vec<i64> = first.into_iter().map(|i| i as i64).collect();
    let list = |v: &[i64]| Tensor::from_i64(&[v.len()], v);
    Ok([movement::gather(x, &list(&first), axis)?, list(&first), list(&inverse), list(&counts)])
}

/// Of rows `[n, m]`, whether each differs from the one before; the first does.
pub fn run_starts(x: &Tensor) -> Tensor {
    let (n, m) = (x.shape()[0], x.shape()[1]);
    let v = Ordered::of(x);
    let differs = |r: usize| (0..m).any(|i| v.cmp(r * m + i, (r - 1) * m + i) != Ordering::Equal);
    Tensor::from_bool(&[n], &(0..n).map(|r| r == 0 || differs(r)).collect::<Vec<_>>())
}

/// Lengths of runs that begin at `starts` (ascending, the first is 0) among `n` places.
pub fn run_lengths(starts: &Tensor, n: usize) -> Tensor {
    let s = starts.to_i64_vec();
    let next = |i: usize| s.get(i + 1).copied().unwrap_or(n as i64);
    Tensor::from_i64(&[s.len()], &(0..s.len()).map(|i| next(i) - s[i]).collect::<Vec<_>>())
}

/// The number of the run in which each of `n` places is.
pub fn run_ids(starts: &Tensor, n: usize) -> Tensor {
    let s = starts.to_i64_vec();
    let id = |i: usize| s.iter().filter(|&&s| s <= i as i64).count() as i64 - 1;
    Tensor::from_i64(&[n], &(0..n).map(id).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_greatest_and_zeros_are_equal() {
        let x = Tensor::from_f32(&[6], &[0.0, f32::NAN, -0.0, f32::INFINITY, -1.0, 2.0]);
        assert_eq!(arg_sort(&x, None).unwrap().to_i64_vec(), [4, 0, 2, 5, 3, 1]);
        assert_eq!(arg_sort(&keys(&x, false), None).unwrap().to_i64_vec(), [4, 0, 2, 5, 3, 1]);
        assert_eq!(arg_sort(&keys(&x, true), Some(3)).unwrap().to_i64_vec(), [1, 3, 5]);
        let x = Tensor::from_i64(&[3], &[i64::MAX, i64::MIN, -1]);
        assert_eq!(arg_sort(&keys(&x, false), None).unwrap().to_i64_vec(), [1, 2, 0]);
    }

    #[test]
    fn unique_in_both_orders() {
        let x = Tensor::from_i64(&[6], &[2, 1, 1, 3, 4, 3]);
        let lists = |sorted| unique(&x, None, sorted).unwrap().map(|t| t.to_i64_vec());
        assert_eq!(lists(true), [vec![1, 2, 3, 4], vec![1, 0, 3, 4], vec![1, 0, 0, 2, 3, 2], vec![2, 1, 2, 1]]);
        assert_eq!(lists(false), [vec![2, 1, 3, 4], vec![0, 1, 3, 4], vec![0, 1, 1, 2, 3, 2], vec![1, 2, 2, 1]]);
        let rows = Tensor::from_i64(&[3, 2], &[1, 0, 1, 0, 0, 9]);
        let [y, first, ..] = unique(&rows, Some(0), true).unwrap();
        assert_eq!((y.to_i64_vec(), first.to_i64_vec()), (vec![0, 9, 1, 0], vec![2, 0]));
    }
}
