//! Tensors in host memory: owned ([`Tensor`]) and borrowed with strides ([`View`]).

use crate::{DType, Diagnostic, ErrorKind, Result};
use bytes::Bytes;
use half::{bf16, f16};
use smallvec::SmallVec;
use std::sync::Arc;

/// An owned, contiguous, row-major host tensor. Cloning shares the bytes.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    dtype: DType,
    shape: SmallVec<[usize; 6]>,
    data: Data,
}

#[derive(Clone, PartialEq)]
enum Data {
    Bytes(Bytes),
    Strings(Arc<[String]>),
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape.as_slice())?;
        let v = self.view();
        let n = self.n_elems().min(8);
        if self.dtype == DType::String {
            return write!(f, " {:?}", &self.strings()[..n]);
        }
        let items: Vec<f64> = (0..n).map(|i| v.f64_at(i)).collect();
        write!(f, " {items:?}{}", if self.n_elems() > n { " .." } else { "" })
    }
}

/// Product of extents; `None` on overflow.
pub(crate) fn checked_product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d))
}

impl Tensor {
    /// A tensor over existing bytes (shared, not copied).
    ///
    /// # Errors
    /// `Malformed` when the byte length is not that of `shape` × `dtype`, or `dtype` is a string.
    pub fn new(dtype: DType, shape: &[usize], bytes: Bytes) -> Result<Tensor> {
        let want = checked_product(shape).and_then(|n| dtype.size_bytes(n));
        if want != Some(bytes.len()) {
            let want = want.map_or("more than addressable".into(), |w| w.to_string());
            return Err(Diagnostic::new(
                ErrorKind::Malformed,
                format!("{dtype}{shape:?} needs {want} bytes but the data has {}", bytes.len()),
            ));
        }
        Ok(Tensor { dtype, shape: shape.into(), data: Data::Bytes(bytes) })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// `Limit` when the size overflows, `Type` for strings.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let n = checked_product(shape)
            .and_then(|n| dtype.size_bytes(n))
            .ok_or_else(|| Diagnostic::new(ErrorKind::Limit, format!("{dtype}{shape:?} is too large")))?;
        Ok(Tensor { dtype, shape: shape.into(), data: Data::Bytes(vec![0u8; n].into()) })
    }

    /// A string tensor.
    pub fn from_strings(shape: &[usize], strings: Vec<String>) -> Tensor {
        assert_eq!(checked_product(shape), Some(strings.len()), "shape and number of strings");
        Tensor { dtype: DType::String, shape: shape.into(), data: Data::Strings(strings.into()) }
    }

    fn from_vec<T: bytemuck::NoUninit>(dtype: DType, shape: &[usize], v: &[T]) -> Tensor {
        assert_eq!(checked_product(shape), Some(v.len()), "shape and number of values");
        Tensor { dtype, shape: shape.into(), data: Data::Bytes(bytemuck::cast_slice::<T, u8>(v).to_vec().into()) }
    }
    /// From f32 values. Panics when the count does not match the shape.
    pub fn from_f32(shape: &[usize], v: &[f32]) -> Tensor {
        Self::from_vec(DType::F32, shape, v)
    }
    /// From f64 values. Panics when the count does not match the shape.
    pub fn from_f64(shape: &[usize], v: &[f64]) -> Tensor {
        Self::from_vec(DType::F64, shape, v)
    }
    /// From i64 values. Panics when the count does not match the shape.
    pub fn from_i64(shape: &[usize], v: &[i64]) -> Tensor {
        Self::from_vec(DType::I64, shape, v)
    }
    /// From i32 values. Panics when the count does not match the shape.
    pub fn from_i32(shape: &[usize], v: &[i32]) -> Tensor {
        Self::from_vec(DType::I32, shape, v)
    }
    /// From bools. Panics when the count does not match the shape.
    pub fn from_bool(shape: &[usize], v: &[bool]) -> Tensor {
        let b: Vec<u8> = v.iter().map(|&b| b.into()).collect();
        Self::from_vec(DType::Bool, shape, &b)
    }
    /// Builds any numeric dtype from f64 values, rounding to nearest even (integers saturate, bool is `!= 0`).
    /// Panics when the count does not match the shape.
    pub fn from_f64_as(dtype: DType, shape: &[usize], v: &[f64]) -> Tensor {
        let mut w = Writer::new(dtype, shape);
        v.iter().for_each(|&x| w.push_f64(x));
        w.finish()
    }
    /// Builds any integer or bool dtype from i64 values, wrapping. Panics when the count does not match the shape.
    pub fn from_i64_as(dtype: DType, shape: &[usize], v: &[i64]) -> Tensor {
        let mut w = Writer::new(dtype, shape);
        v.iter().for_each(|&x| w.push_i64(x));
        w.finish()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// Number of elements.
    pub fn n_elems(&self) -> usize {
        self.shape.iter().product()
    }
    /// The raw little-endian bytes; empty for strings.
    pub fn bytes(&self) -> &Bytes {
        static EMPTY: Bytes = Bytes::from_static(&[]);
        match &self.data {
            Data::Bytes(b) => b,
            Data::Strings(_) => &EMPTY,
        }
    }
    /// The strings; empty for numeric dtypes.
    pub fn strings(&self) -> &[String] {
        match &self.data {
            Data::Bytes(_) => &[],
            Data::Strings(s) => s,
        }
    }
    /// A contiguous view of the whole.
    pub fn view(&self) -> View<'_> {
        View {
            dtype: self.dtype,
            shape: self.shape.clone(),
            strides: row_major(&self.shape),
            offset: 0,
            data: self.bytes(),
        }
    }
    /// The same bytes under another shape. Panics when the element counts differ.
    pub fn reshaped(&self, shape: &[usize]) -> Tensor {
        assert_eq!(checked_product(shape), Some(self.n_elems()), "reshape keeps the number of elements");
        Tensor { dtype: self.dtype, shape: shape.into(), data: self.data.clone() }
    }
    /// All elements as f64 (exact for every type but i64/u64 beyond 2^53). Panics for strings.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        let v = self.view();
        (0..self.n_elems()).map(|i| v.f64_at(i)).collect()
    }
    /// Whether no element is NaN or infinite. Panics for strings.
    pub fn is_finite(&self) -> bool {
        // Of f32, which weights are, by the exponents.
        const ALL_ONES: u32 = 0x7f80_0000;
        let finite = |b: &[u8; 4]| u32::from_le_bytes(*b) & ALL_ONES != ALL_ONES;
        match self.dtype {
            DType::F32 => self.bytes().as_chunks().0.iter().all(finite),
            _ => {
                let v = self.view();
                (0..self.n_elems()).all(|i| v.f64_at(i).is_finite())
            }
        }
    }
    /// All elements as i64 (floats truncated). Panics for strings.
    pub fn to_i64_vec(&self) -> Vec<i64> {
        let v = self.view();
        (0..self.n_elems()).map(|i| v.i64_at(i)).collect()
    }
}

/// Row-major strides in elements.
pub(crate) fn row_major(shape: &[usize]) -> SmallVec<[isize; 6]> {
    let mut s: SmallVec<[isize; 6]> = SmallVec::from_elem(1, shape.len());
    for i in (0..shape.len().saturating_sub(1)).rev() {
        s[i] = s[i + 1] * shape[i + 1].max(1) as isize;
    }
    s
}

/// A borrowed, strided tensor. Strides are in elements.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: SmallVec<[usize; 6]>,
    /// Strides in elements; 0 repeats, negative walks back.
    pub strides: SmallVec<[isize; 6]>,
    /// First element's position in `data`, in elements.
    pub offset: usize,
    /// The bytes.
    pub data: &'a [u8],
}

impl View<'_> {
    /// Number of elements.
    pub fn n_elems(&self) -> usize {
        self.shape.iter().product()
    }
    /// Position in `data` (in elements) of the row-major `i`-th element.
    pub fn position(&self, mut i: usize) -> usize {
        let mut p = self.offset as isize;
        for (&d, &s) in self.shape.iter().zip(&self.strides).rev() {
            p += (i % d) as isize * s;
            i /= d;
        }
        p as usize
    }
    /// The row-major `i`-th element as f64. Panics out of range and for strings.
    pub fn f64_at(&self, i: usize) -> f64 {
        let p = self.position(i);
        let b = self.data;
        macro_rules! get {
            ($t:ty, $n:literal) => {
                <$t>::from_le_bytes(b[p * $n..p * $n + $n].try_into().unwrap_or([0; $n]))
            };
        }
        match self.dtype {
            DType::F32 => get!(f32, 4).into(),
            DType::F64 => get!(f64, 8),
            DType::F16 => get!(f16, 2).into(),
            DType::BF16 => get!(bf16, 2).into(),
            DType::I64 => get!(i64, 8) as f64,
            DType::U64 => get!(u64, 8) as f64,
            DType::String | DType::C64 | DType::C128 => panic!("{} has no f64 value", self.dtype),
            d if d.is_float() => crate::host::small_float(d, b, p),
            _ => self.i64_at(i) as f64,
        }
    }
    /// The row-major `i`-th element as i64; floats truncate, u64 wraps. Panics out of range and for strings.
    pub fn i64_at(&self, i: usize) -> i64 {
        let p = self.position(i);
        let b = self.data;
        macro_rules! get {
            ($t:ty, $n:literal) => {
                <$t>::from_le_bytes(b[p * $n..p * $n + $n].try_into().unwrap_or([0; $n])) as i64
            };
        }
        match self.dtype {
            DType::I64 => get!(i64, 8),
            DType::U64 => get!(u64, 8),
            DType::I32 => get!(i32, 4),
            DType::U32 => get!(u32, 4),
            DType::I16 => get!(i16, 2),
            DType::U16 => get!(u16, 2),
            DType::I8 => get!(i8, 1),
            DType::U8 => get!(u8, 1),
            DType::Bool => (b[p] != 0).into(),
            DType::U4 => ((b[p / 2] >> (4 * (p % 2))) & 15).into(),
            DType::I4 => i64::from((((b[p / 2] >> (4 * (p % 2))) << 4) as i8) >> 4),
            DType::U2 => ((b[p / 4] >> (2 * (p % 4))) & 3).into(),
            DType::I2 => i64::from((((b[p / 4] >> (2 * (p % 4))) << 6) as i8) >> 6),
            _ => self.f64_at(i) as i64,
        }
    }
}

/// The value of an 8- or 4-bit float.
fn small_float(dtype: DType, b: &[u8], p: usize) -> f64 {
    crate::dtype_small::decode(dtype, if dtype.bits() == 4 { (b[p / 2] >> (4 * (p % 2))) & 15 } else { b[p] })
}

/// Builds a contiguous tensor element by element in row-major order.
pub struct Writer {
    dtype: DType,
    shape: SmallVec<[usize; 6]>,
    bytes: Vec<u8>,
    n: usize,
}

impl Writer {
    /// A writer for `shape`; [`Writer::finish`] panics unless every element was pushed.
    pub fn new(dtype: DType, shape: &[usize]) -> Writer {
        let n = checked_product(shape).and_then(|n| dtype.size_bytes(n)).expect("tensor size");
        Writer { dtype, shape: shape.into(), bytes: Vec::with_capacity(n), n: 0 }
    }
    /// Appends a value rounded to nearest even; integers saturate (NaN is 0), bool is `!= 0`.
    pub fn push_f64(&mut self, x: f64) {
        match self.dtype {
            DType::F32 => self.bytes.extend_from_slice(&(x as f32).to_le_bytes()),
            DType::F64 => self.bytes.extend_from_slice(&x.to_le_bytes()),
            DType::F16 => self.bytes.extend_from_slice(&f16::from_f64(x).to_le_bytes()),
            DType::BF16 => self.bytes.extend_from_slice(&bf16::from_f64(x).to_le_bytes()),
            DType::Bool => self.bytes.push(u8::from(x != 0.0)),
            DType::U64 => self.bytes.extend_from_slice(&(x.round_ties_even() as u64).to_le_bytes()),
            d if d.is_float() => return self.push_bits(crate::dtype_small::encode(d, x)),
            d => {
                let bits = d.bits() as u32;
                let (lo, hi) = if d.is_signed() {
                    (-(2f64.powi(bits as i32 - 1)), 2f64.powi(bits as i32 - 1) - 1.0)
                } else {
                    (0.0, 2f64.powi(bits as i32) - 1.0)
                };
                return self.push_i64(x.round_ties_even().clamp(lo, hi) as i64);
            }
        }
        self.n += 1;
    }
    /// Appends an integer, wrapping to the width of the dtype (floats are rounded).
    pub fn push_i64(&mut self, x: i64) {
        match self.dtype {
            DType::Bool => self.bytes.push(u8::from(x != 0)),
            DType::I64 | DType::U64 => self.bytes.extend_from_slice(&x.to_le_bytes()),
            DType::I32 | DType::U32 => self.bytes.extend_from_slice(&(x as i32).to_le_bytes()),
            DType::I16 | DType::U16 => self.bytes.extend_from_slice(&(x as i16).to_le_bytes()),
            DType::I8 | DType::U8 => self.bytes.push(x as u8),
            DType::U4 | DType::I4 | DType::U2 | DType::I2 => return self.push_bits(x as u8),
            _ => return self.push_f64(x as f64),
        }
        self.n += 1;
    }
    fn push_bits(&mut self, v: u8) {
        let bits = self.dtype.bits();
        let per = 8 / bits;
        let v = v & (0xff >> (8 - bits));
        if self.n.is_multiple_of(per) {
            self.bytes.push(v);
        } else if let Some(last) = self.bytes.last_mut() {
            *last |= v << (bits * (self.n % per));
        }
        self.n += 1;
    }
    /// The tensor. Panics when the number of pushed elements is not that of the shape.
    pub fn finish(self) -> Tensor {
        assert_eq!(Some(self.n), checked_product(&self.shape), "elements written");
        Tensor { dtype: self.dtype, shape: self.shape, data: Data::Bytes(self.bytes.into()) }
    }
}
