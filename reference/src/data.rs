//! Elements of host tensors as plain vectors and back, and numpy broadcasting of them.
//!
//! Floats are computed with as f64 and integers as i128, which hold every value of every element type; the result is rounded
//! or wrapped once, when the tensor is made.

use std::borrow::Cow;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor, Writer};

macro_rules! each {
    ($bytes:expr, $t:ty, $n:literal, |$x:ident| $f:expr) => {
        $bytes
            .chunks_exact($n)
            .map(|c| {
                let $x = <$t>::from_le_bytes(c.try_into().unwrap_or([0; $n]));
                $f
            })
            .collect()
    };
}

/// All elements as f64, row-major. Panics for strings.
pub fn f64s(t: &Tensor) -> Vec<f64> {
    match t.dtype() {
        DType::F32 => each!(t.bytes(), f32, 4, |x| f64::from(x)),
        DType::F64 => each!(t.bytes(), f64, 8, |x| x),
        DType::I64 => each!(t.bytes(), i64, 8, |x| x as f64),
        DType::I32 => each!(t.bytes(), i32, 4, |x| f64::from(x)),
        DType::U8 | DType::Bool => t.bytes().iter().map(|&x| f64::from(x)).collect(),
        _ => t.reshaped(&[t.n_elems()]).to_f64_vec(),
    }
}

/// All elements of an integer or bool tensor, row-major; floats truncate. Panics for strings.
pub fn ints(t: &Tensor) -> Vec<i128> {
    match t.dtype() {
        DType::I64 => each!(t.bytes(), i64, 8, |x| i128::from(x)),
        DType::U64 => each!(t.bytes(), u64, 8, |x| i128::from(x)),
        DType::I32 => each!(t.bytes(), i32, 4, |x| i128::from(x)),
        _ => t.reshaped(&[t.n_elems()]).to_i64_vec().into_iter().map(i128::from).collect(),
    }
}

/// A tensor of any numeric dtype from f64 values: floats round to nearest even, integers round and saturate.
/// Panics when the count does not match the shape.
pub fn from_f64s(dtype: DType, shape: &[usize], v: &[f64]) -> Tensor {
    match dtype {
        DType::F32 => Tensor::from_f32(shape, &v.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        DType::F64 => Tensor::from_f64(shape, v),
        _ => Tensor::from_f64_as(dtype, shape, v),
    }
}

/// A tensor of any integer dtype or bool from integers, wrapping. Panics when the count does not match the shape.
pub fn from_ints(dtype: DType, shape: &[usize], v: &[i128]) -> Tensor {
    let mut w = Writer::new(dtype, shape);
    v.iter().for_each(|&x| w.push_i64(x as i64));
    w.finish()
}

/// The numpy broadcast of shapes.
///
/// # Errors
/// `Shape` when extents along an axis are neither equal nor 1.
pub fn broadcast_shape(shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for s in shapes {
        for (o, &d) in out[rank - s.len()..].iter_mut().zip(*s) {
            match (*o, d) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *o = b,
                _ => {
                    return Err(Diagnostic::new(ErrorKind::Shape, format!("shapes {shapes:?} do not broadcast")));
                }
            }
        }
    }
    Ok(out)
}

/// Position in a contiguous tensor of shape `from` of every row-major element of its broadcast to `to`; `None` when the two
/// shapes hold the same elements in the same order.
pub fn broadcast_positions(from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let pad = to.len() - from.len();
    if from.iter().product::<usize>() == to.iter().product::<usize>() && to[..pad].iter().all(|&d| d == 1) {
        return None;
    }
    let mut strides = vec![0; to.len()];
    let mut step = 1;
    for (i, &d) in from.iter().enumerate().rev() {
        strides[pad + i] = if d == 1 { 0 } else { step };
        step *= d;
    }
    Some(strided_positions(to, &strides))
}

/// Row-major positions `Σ index·stride` over `shape`.
pub fn strided_positions(shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let n: usize = shape.iter().product();
    let mut out = Vec::with_capacity(n);
    if n == 0 {
        return out;
    }
    let Some((&last, outer)) = shape.split_last() else {
        return vec![0];
    };
    let step = strides[outer.len()];
    let mut index = vec![0usize; outer.len()];
    let mut base = 0usize;
    loop {
        out.extend((0..last).map(|i| base + i * step));
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return out;
            }
            axis -= 1;
            index[axis] += 1;
            base += strides[axis];
            if index[axis] < outer[axis] {
                break;
            }
            base -= strides[axis] * outer[axis];
            index[axis] = 0;
        }
    }
}

/// Elements of a contiguous tensor of shape `from`, broadcast to `to`.
pub fn expand<'a, T: Clone>(v: &'a [T], from: &[usize], to: &[usize]) -> Cow<'a, [T]> {
    match broadcast_positions(from, to) {
        None => Cow::Borrowed(v),
        Some(p) => Cow::Owned(p.into_iter().map(|i| v[i].clone()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        assert_eq!(broadcast_shape(&[&[2, 1], &[3], &[]]).unwrap(), [2, 3]);
        assert_eq!(broadcast_shape(&[&[0], &[1]]).unwrap(), [0]);
        assert!(broadcast_shape(&[&[2], &[3]]).is_err());
        assert_eq!(*expand(&[1, 2], &[2, 1], &[2, 3]), [1, 1, 1, 2, 2, 2]);
        assert_eq!(*expand(&[7], &[], &[2, 2]), [7; 4]);
        assert_eq!(*expand(&[1, 2], &[2], &[2, 2]), [1, 2, 1, 2]);
        assert_eq!(expand::<i32>(&[], &[0], &[3, 0]).len(), 0);
    }

    #[test]
    fn elements_survive_the_way_through_vectors() {
        for &d in DType::ALL {
            if d.is_int() {
                let t = Tensor::from_i64_as(d, &[3], &[1, -1, 0]);
                assert_eq!(from_ints(d, &[3], &ints(&t)), t, "{d}");
            } else if d.is_float() && d != DType::F8E8M0 {
                let t = Tensor::from_f64_as(d, &[3], &[1.0, -2.0, 0.5]);
                assert_eq!(from_f64s(d, &[3], &f64s(&t)), t, "{d}");
            }
        }
    }
}
