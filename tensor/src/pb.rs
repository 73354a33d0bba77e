//! Tensors in ONNX's protobuf form: `.pb` files and the tensors inside models.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

use crate::onnx_pb::{EXTERNAL, TensorProto};
use crate::{DType, Diagnostic, ErrorKind, Result, Tensor, Writer};
use bytes::Bytes;
use prost::Message;
use std::path::Path;

/// Greatest number of elements a tensor may declare.
pub const MAX_ELEMS: usize = 1 << 40;
/// Greatest rank a tensor may have.
pub const MAX_RANK: usize = 64;

fn malformed(t: &TensorProto, what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new(ErrorKind::Malformed, format!("tensor {:?} {what}", t.name))
}

/// The element type of a tensor.
///
/// # Errors
/// `Unsupported` for a number that is not a known element type.
pub fn dtype(t: &TensorProto) -> Result<DType> {
    DType::from_onnx(t.data_type).ok_or_else(|| {
        Diagnostic::new(ErrorKind::Unsupported, format!("tensor {:?} has element type number {}", t.name, t.data_type))
            .help("known element types are 1 to 26 of TensorProto.DataType")
    })
}

/// The extents of a tensor, checked against the limits of this build.
///
/// # Errors
/// `Malformed` for negative extents, `Limit` when rank or size is beyond [`MAX_RANK`] or [`MAX_ELEMS`].
pub fn shape(t: &TensorProto) -> Result<Vec<usize>> {
    let too_large =
        || Diagnostic::new(ErrorKind::Limit, format!("tensor {:?} declares dims {:?}: too large", t.name, t.dims));
    if t.dims.len() > MAX_RANK {
        let e = format!("tensor {:?} has rank {}; at most {MAX_RANK} is supported", t.name, t.dims.len());
        return Err(Diagnostic::new(ErrorKind::Limit, e));
    }
    if let Some(d) = t.dims.iter().find(|&&d| d < 0) {
        return Err(malformed(t, format!("declares the negative extent {d}")));
    }
    let shape: Option<Vec<usize>> = t.dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    // Extents count as at least 1: a zero must not hide an overflow of the others.
    let n = shape.as_ref().and_then(|s| s.iter().try_fold(1usize, |a, &d| a.checked_mul(d.max(1))));
    match (shape, n) {
        (Some(s), Some(n)) if n <= MAX_ELEMS => Ok(s),
        _ => Err(too_large()),
    }
}

/// The elements of a tensor whose data is in the message; `raw_data` is shared, typed fields are converted.
///
/// # Errors
/// `Malformed` when the number of elements does not fit the extents or the data is external.
pub fn read(t: &TensorProto) -> Result<Tensor> {
    let (dtype, shape) = (dtype(t)?, shape(t)?);
    let n: usize = shape.iter().product();
    if t.data_location == EXTERNAL {
        return Err(malformed(t, "keeps its data in another file"));
    }
    let count = |have: usize, want: usize, field: &str| {
        if have == want {
            return Ok(());
        }
        Err(malformed(t, format!("is {dtype}{shape:?} and needs {want} entries of {field} but has {have}")))
    };
    if dtype == DType::String {
        count(t.string_data.len(), n, "string_data")?;
        let strings: Result<Vec<String>, _> = t.string_data.iter().map(|s| String::from_utf8(s.to_vec())).collect();
        let strings = strings.map_err(|_| malformed(t, "has a string that is not UTF-8"))?;
        return Ok(Tensor::from_strings(&shape, strings));
    }
    if let Some(raw) = &t.raw_data {
        return Tensor::new(dtype, &shape, raw.clone())
            .map_err(|e| malformed(t, "has raw data of the wrong size").note("data", e.message()));
    }
    let le = |it: &mut dyn Iterator<Item = Vec<u8>>| Bytes::from(it.flatten().collect::<Vec<u8>>());
    let typed = |b: Bytes| Tensor::new(dtype, &shape, b);
    match dtype {
        DType::F32 => {
            count(t.float_data.len(), n, "float_data")?;
            Ok(Tensor::from_f32(&shape, &t.float_data))
        }
        DType::C64 => {
            count(t.float_data.len(), n.saturating_mul(2), "float_data")?;
            typed(le(&mut t.float_data.iter().map(|x| x.to_le_bytes().to_vec())))
        }
        DType::F64 => {
            count(t.double_data.len(), n, "double_data")?;
            Ok(Tensor::from_f64(&shape, &t.double_data))
        }
        DType::C128 => {
            count(t.double_data.len(), n.saturating_mul(2), "double_data")?;
            typed(le(&mut t.double_data.iter().map(|x| x.to_le_bytes().to_vec())))
        }
        DType::I64 => {
            count(t.int64_data.len(), n, "int64_data")?;
            Ok(Tensor::from_i64(&shape, &t.int64_data))
        }
        DType::U64 => {
            count(t.uint64_data.len(), n, "uint64_data")?;
            typed(le(&mut t.uint64_data.iter().map(|x| x.to_le_bytes().to_vec())))
        }
        DType::U32 => {
            count(t.uint64_data.len(), n, "uint64_data")?;
            let fits = t.uint64_data.iter().map(|&x| u32::try_from(x)).collect::<Result<Vec<u32>, _>>();
            let fits = fits.map_err(|_| malformed(t, "has a value beyond 32 bits"))?;
            typed(le(&mut fits.iter().map(|x| x.to_le_bytes().to_vec())))
        }
        DType::I32 => {
            count(t.int32_data.len(), n, "int32_data")?;
            Ok(Tensor::from_i32(&shape, &t.int32_data))
        }
        // Sixteen bits and fewer lie in int32_data as bit patterns; packed types hold one byte of elements an entry.
        _ => {
            let width = dtype.size().unwrap_or(1);
            let entries = if dtype.size().is_some() { n } else { dtype.size_bytes(n).unwrap_or(usize::MAX) };
            count(t.int32_data.len(), entries, "int32_data")?;
            let bytes = t.int32_data.iter().flat_map(|&x| x.to_le_bytes().into_iter().take(width)).collect::<Vec<u8>>();
            typed(bytes.into())
        }
    }
}

/// The message for a tensor, with `raw_data` (strings: `string_data`).
pub fn write(name: &str, tensor: &Tensor) -> TensorProto {
    let mut t = TensorProto {
        name: name.into(),
        data_type: tensor.dtype().onnx(),
        dims: tensor.shape().iter().map(|&d| i64::try_from(d).unwrap_or(i64::MAX)).collect(),
        ..Default::default()
    };
    if tensor.dtype() == DType::String {
        t.string_data = tensor.strings().iter().map(|s| Bytes::copy_from_slice(s.as_bytes())).collect();
    } else {
        t.raw_data = Some(tensor.bytes().clone());
    }
    t
}

/// Reads a `.pb` file holding one tensor; returns it with its name.
///
/// # Errors
/// `Io` when the file cannot be read, `Malformed` when it is not a tensor.
pub fn read_tensor(path: &Path) -> Result<(String, Tensor)> {
    let bytes = Bytes::from(std::fs::read(path).map_err(|e| crate::map::io_error(path, "read", &e))?);
    let t = TensorProto::decode(bytes)
        .map_err(|e| Diagnostic::new(ErrorKind::Malformed, format!("{} is not a tensor file: {e}", path.display())))?;
    Ok((t.name.clone(), read(&t).map_err(|e| e.note("file", path.display().to_string()))?))
}

/// Writes a `.pb` file holding one tensor.
///
/// # Errors
/// `Io` when the file cannot be written.
pub fn write_tensor(path: &Path, name: &str, tensor: &Tensor) -> Result<()> {
    std::fs::write(path, write(name, tensor).encode_to_vec()).map_err(|e| crate::map::io_error(path, "write", &e))
}

/// Builds a tensor from elements printed as text; see [`literal`].
///
/// # Errors
/// `Malformed` when an element does not parse as `dtype` or the count is wrong.
pub fn parse_literal(dtype: DType, shape: &[usize], items: &[&str]) -> Result<Tensor> {
    let bad = |s: &str| Diagnostic::new(ErrorKind::Malformed, format!("{s:?} is not a value of {dtype}"));
    let n = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d));
    if n != Some(items.len()) || dtype.size_bytes(items.len()).is_none() {
        let e = format!("{dtype}{shape:?} cannot hold {} values", items.len());
        return Err(Diagnostic::new(ErrorKind::Malformed, e));
    }
    if matches!(dtype, DType::C64 | DType::C128) {
        return Err(bad("a complex literal"));
    }
    let mut w = Writer::new(dtype, shape);
    for &s in items {
        if dtype == DType::Bool {
            w.push_i64(match s {
                "true" => 1,
                "false" => 0,
                _ => return Err(bad(s)),
            });
        } else if dtype == DType::U64 {
            w.push_i64(s.parse::<u64>().map_err(|_| bad(s))?.cast_signed());
        } else if dtype.is_int() {
            let v: i64 = s.parse().map_err(|_| bad(s))?;
            let bits = dtype.bits().min(63);
            let (lo, hi) = match (dtype.is_signed(), dtype.bits()) {
                (_, 64) => (i64::MIN, i64::MAX),
                (true, _) => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
                (false, _) => (0, (1i64 << bits) - 1),
            };
            if !(lo..=hi).contains(&v) {
                return Err(bad(s));
            }
            w.push_i64(v);
        } else {
            w.push_f64(s.parse().map_err(|_| bad(s))?);
        }
    }
    Ok(w.finish())
}

/// The elements as text that [`parse_literal`] reads back to the same bits; `None` where there is no such text (NaN with a
/// payload, strings, complex numbers).
pub fn literal(t: &Tensor) -> Option<Vec<String>> {
    if matches!(t.dtype(), DType::String | DType::C64 | DType::C128) {
        return None;
    }
    let v = t.view();
    let items: Vec<String> = (0..t.n_elems())
        .map(|i| match t.dtype() {
            DType::Bool => (v.i64_at(i) != 0).to_string(),
            DType::U64 => v.i64_at(i).cast_unsigned().to_string(),
            d if d.is_int() => v.i64_at(i).to_string(),
            DType::F64 => format!("{:?}", v.f64_at(i)),
            // The shortest text of the narrow value: what is left is exact in f32.
            _ => {
                #[allow(clippy::cast_possible_truncation)]
                let short = v.f64_at(i) as f32;
                format!("{short:?}")
            }
        })
        .collect();
    let refs: Vec<&str> = items.iter().map(String::as_str).collect();
    let back = parse_literal(t.dtype(), t.shape(), &refs).ok()?;
    (back.bytes() == t.bytes()).then_some(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes, reads back, and compares.
    fn check(t: &Tensor) {
        let pb = write("x", t);
        let back = TensorProto::decode(Bytes::from(pb.encode_to_vec())).unwrap();
        assert_eq!(read(&back).unwrap(), *t);
    }

    #[test]
    fn every_dtype_round_trips() {
        for &d in DType::ALL {
            if d == DType::String {
                check(&Tensor::from_strings(&[2], vec!["a".into(), "β".into()]));
                continue;
            }
            let n = d.size_bytes(6).unwrap();
            let bytes: Vec<u8> =
                (0..n).map(|i| (i * 37 % 251) as u8 & if d == DType::Bool { 1 } else { 255 }).collect();
            check(&Tensor::new(d, &[2, 3], bytes.into()).unwrap());
        }
    }

    #[test]
    fn typed_fields_are_read_as_onnx_defines_them() {
        let base =
            |d: DType, dims: &[i64]| TensorProto { data_type: d.onnx(), dims: dims.to_vec(), ..Default::default() };
        let f16 = TensorProto { int32_data: vec![0x3c00, 0xc000], ..base(DType::F16, &[2]) };
        assert_eq!(read(&f16).unwrap().to_f64_vec(), [1.0, -2.0]);
        let i8s = TensorProto { int32_data: vec![-1, 127], ..base(DType::I8, &[2]) };
        assert_eq!(read(&i8s).unwrap().to_i64_vec(), [-1, 127]);
        let u4 = TensorProto { int32_data: vec![0x21, 0x3], ..base(DType::U4, &[3]) };
        assert_eq!(read(&u4).unwrap().to_i64_vec(), [1, 2, 3]);
        let u32s = TensorProto { uint64_data: vec![4_000_000_000], ..base(DType::U32, &[1]) };
        assert_eq!(read(&u32s).unwrap().to_i64_vec(), [4_000_000_000]);
        let bools = TensorProto { int32_data: vec![1, 0], ..base(DType::Bool, &[2]) };
        assert_eq!(read(&bools).unwrap().to_i64_vec(), [1, 0]);
        let f64s = TensorProto { double_data: vec![0.1], ..base(DType::F64, &[]) };
        assert_eq!(read(&f64s).unwrap().to_f64_vec(), [0.1]);
        let short = TensorProto { float_data: vec![1.0], name: "w".into(), ..base(DType::F32, &[2]) };
        assert_eq!(
            read(&short).unwrap_err().to_string(),
            "tensor \"w\" is f32[2] and needs 2 entries of float_data but has 1"
        );
    }

    #[test]
    fn bad_extents_are_refused() {
        let t =
            |dims: &[i64]| TensorProto { data_type: 1, dims: dims.to_vec(), name: "w".into(), ..Default::default() };
        assert_eq!(read(&t(&[2, -1])).unwrap_err().message(), "tensor \"w\" declares the negative extent -1");
        assert_eq!(read(&t(&[i64::MAX, 0, i64::MAX])).unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!(read(&t(&[1; 65])).unwrap_err().kind(), ErrorKind::Limit);
    }

    #[test]
    fn literals_keep_every_bit() {
        for t in [
            Tensor::from_f32(&[5], &[0.1, -0.0, f32::INFINITY, f32::NAN, 1e-45]),
            Tensor::from_f64(&[2], &[0.1, f64::MIN_POSITIVE]),
            Tensor::from_f64_as(DType::BF16, &[2], &[0.1, 3e38]),
            Tensor::from_i64(&[2], &[i64::MIN, i64::MAX]),
            Tensor::from_i64_as(DType::U64, &[1], &[-1]),
            Tensor::from_i64_as(DType::I4, &[3], &[-8, 7, 0]),
            Tensor::from_bool(&[2], &[true, false]),
        ] {
            let items = literal(&t).expect("printable");
            let refs: Vec<&str> = items.iter().map(String::as_str).collect();
            assert_eq!(parse_literal(t.dtype(), t.shape(), &refs).unwrap().bytes(), t.bytes(), "{items:?}");
        }
        assert!(parse_literal(DType::I8, &[1], &["128"]).is_err());
    }
}
