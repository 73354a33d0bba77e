//! NumPy's `.npy` files.

use crate::map::io_error;
use crate::{DType, Diagnostic, ErrorKind, Result, Tensor};
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's letter and size for each dtype that it has.
const TYPES: &[(DType, char, usize)] = &[
    (DType::Bool, 'b', 1),
    (DType::I8, 'i', 1),
    (DType::U8, 'u', 1),
    (DType::I16, 'i', 2),
    (DType::U16, 'u', 2),
    (DType::I32, 'i', 4),
    (DType::U32, 'u', 4),
    (DType::I64, 'i', 8),
    (DType::U64, 'u', 8),
    (DType::F16, 'f', 2),
    (DType::F32, 'f', 4),
    (DType::F64, 'f', 8),
    (DType::C64, 'c', 8),
    (DType::C128, 'c', 16),
];

/// Reads a `.npy` file.
///
/// # Errors
/// `Io` when it cannot be read, `Malformed` or `Unsupported` for its content.
pub fn read(path: &Path) -> Result<Tensor> {
    let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
    decode(&bytes).map_err(|e| e.note("file", path.display().to_string()))
}

/// Writes a `.npy` file.
///
/// # Errors
/// `Io` when it cannot be written, `Unsupported` for a dtype that NumPy does not have.
pub fn write(path: &Path, t: &Tensor) -> Result<()> {
    std::fs::write(path, encode(t)?).map_err(|e| io_error(path, "write", &e))
}

fn malformed(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Malformed, what)
}

/// The value of a key in the header, up to the comma or bracket that ends it.
fn field<'a>(header: &'a str, key: &str) -> Result<&'a str> {
    let at = header.find(&format!("'{key}'")).ok_or_else(|| malformed(format!("the header has no {key:?}")))?;
    let rest = header[at + key.len() + 2..].trim_start().strip_prefix(':').unwrap_or("").trim_start();
    let end = match rest.strip_prefix('(') {
        Some(inner) => inner.find(')').map(|i| i + 2),
        None => rest.find([',', '}']),
    };
    Ok(rest[..end.ok_or_else(|| malformed("the header does not end"))?].trim())
}

/// A tensor from the bytes of a `.npy` file. Big-endian and column-major files are converted.
///
/// # Errors
/// `Malformed` when it is not one, `Unsupported` for an element type without a dtype.
pub fn decode(bytes: &[u8]) -> Result<Tensor> {
    let cut = || malformed("the file is truncated");
    if !bytes.starts_with(MAGIC) {
        return Err(malformed("not an .npy file"));
    }
    let version = *bytes.get(6).ok_or_else(cut)?;
    let (start, len): (usize, Option<usize>) = match version {
        1 => (10, bytes.get(8..10).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])))),
        2 | 3 => {
            (12, bytes.get(8..12).and_then(|b| usize::try_from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])).ok()))
        }
        v => return Err(Diagnostic::new(ErrorKind::Unsupported, format!(".npy version {v} is not known"))),
    };
    let end = len.and_then(|l| start.checked_add(l)).ok_or_else(cut)?;
    let header = bytes.get(start..end).ok_or_else(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| malformed("the header is not text"))?;
    let descr = field(header, "descr")?.trim_matches('\'');
    let unsupported = || Diagnostic::new(ErrorKind::Unsupported, format!("element type {descr:?} is not supported"));
    let listed = field(header, "shape")?;
    let extents = listed.trim_matches(['(', ')']).split(',').map(str::trim).filter(|s| !s.is_empty());
    let shape: Result<Vec<usize>, _> = extents.map(str::parse).collect();
    let shape = shape.map_err(|_| malformed(format!("extents {listed:?}")))?;
    let columns = field(header, "fortran_order")? == "True";
    let mut it = descr.chars();
    let (order, letter) = (it.next().ok_or_else(unsupported)?, it.next().ok_or_else(unsupported)?);
    let size: usize = it.as_str().parse().map_err(|_| unsupported())?;
    let big = match order {
        '<' | '|' | '=' => false,
        '>' => true,
        _ => return Err(unsupported()),
    };
    let n = crate::host::checked_product(&shape).ok_or_else(|| malformed("extents overflow"))?;
    let width = if letter == 'U' { size.checked_mul(4).ok_or_else(unsupported)? } else { size };
    let total = n.checked_mul(width).and_then(|t| end.checked_add(t)).ok_or_else(|| malformed("extents overflow"))?;
    let mut data = bytes.get(end..total).ok_or_else(cut)?.to_vec();
    if letter == 'U' {
        let word = |b: &[u8]| {
            if big {
                u32::from_be_bytes([b[0], b[1], b[2], b[3]])
            } else {
                u32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
        };
        let text = |i: usize| -> Option<String> {
            let chars = data[i * width..(i + 1) * width].chunks(4).map(word);
            let mut s: Vec<char> = chars.map(char::from_u32).collect::<Option<_>>()?;
            while s.last() == Some(&'\0') {
                s.pop();
            }
            Some(s.into_iter().collect())
        };
        let all: Option<Vec<String>> = order_of(&shape, columns).into_iter().map(text).collect();
        return Ok(Tensor::from_strings(&shape, all.ok_or_else(|| malformed("a string that is not Unicode"))?));
    }
    let found = TYPES.iter().find(|(_, l, s)| *l == letter && *s == size);
    let dtype = found.map(|&(d, ..)| d).ok_or_else(unsupported)?;
    if big {
        let part = if letter == 'c' { size / 2 } else { size };
        data.chunks_mut(part.max(1)).for_each(<[u8]>::reverse);
    }
    if columns && shape.len() > 1 {
        let from = order_of(&shape, true);
        data = from.into_iter().flat_map(|i| data[i * size..(i + 1) * size].to_vec()).collect();
    }
    Tensor::new(dtype, &shape, data.into())
}

/// Where the elements of a row-major tensor lie in the file.
fn order_of(shape: &[usize], columns: bool) -> Vec<usize> {
    let n: usize = shape.iter().product();
    let place = |mut i: usize| {
        // Row-major position to index, innermost axis first; column-major strides grow with the axis.
        let mut index = vec![0; shape.len()];
        for (x, &d) in index.iter_mut().zip(shape).rev() {
            *x = i % d;
            i /= d;
        }
        index.iter().zip(shape).rev().fold(0, |a, (&x, &d)| a * d + x)
    };
    (0..n).map(|i| if columns { place(i) } else { i }).collect()
}

/// The bytes of a `.npy` file.
///
/// # Errors
/// `Unsupported` for a dtype that NumPy does not have.
pub fn encode(t: &Tensor) -> Result<Vec<u8>> {
    let mut strings = Vec::new();
    let (descr, data): (String, &[u8]) = if t.dtype() == DType::String {
        let longest = t.strings().iter().map(|s| s.chars().count()).max().unwrap_or(0).max(1);
        for s in t.strings() {
            let padded = s.chars().chain(std::iter::repeat('\0')).take(longest);
            strings.extend(padded.flat_map(|c| u32::from(c).to_le_bytes()));
        }
        (format!("<U{longest}"), &strings)
    } else {
        let found = TYPES.iter().find(|(d, ..)| *d == t.dtype());
        let &(_, letter, size) = found.ok_or_else(|| {
            Diagnostic::new(ErrorKind::Unsupported, format!(".npy has no element type for {}", t.dtype()))
                .help("write a .pb file, or convert to f32 first")
        })?;
        (format!("{}{letter}{size}", if size == 1 { '|' } else { '<' }), t.bytes())
    };
    let dims: Vec<String> = t.shape().iter().map(|d| format!("{d},")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", dims.join(" "));
    // The data starts at a multiple of 64 bytes.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.push_str(&" ".repeat(padded - 1 - header.len()));
    header.push('\n');
    let len = u16::try_from(header.len()).map_err(|_| malformed("too many extents for an .npy header"))?;
    Ok([MAGIC, &[1, 0], &len.to_le_bytes(), header.as_bytes(), data].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(t: &Tensor) {
        let bytes = encode(t).unwrap();
        assert_eq!(decode(&bytes).unwrap(), *t);
        for cut in [3, 9, 60, bytes.len() - 1] {
            assert!(decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn round_trips() {
        for &(d, _, size) in TYPES {
            let bytes: Vec<u8> =
                (0..6 * size).map(|i| if d == DType::Bool { 1 } else { (i as u8).wrapping_mul(7) }).collect();
            check(&Tensor::new(d, &[3, 2], bytes.into()).unwrap());
        }
        check(&Tensor::from_f32(&[], &[1.5]));
        check(&Tensor::from_strings(&[2], vec!["añ".into(), "bcd".into()]));
        assert!(encode(&Tensor::zeros(DType::BF16, &[1]).unwrap()).is_err());
    }

    #[test]
    fn files_that_numpy_writes() {
        let file = |descr: &str, columns: &str, shape: &str, data: &[u8]| {
            let mut h = format!("{{'descr': '{descr}', 'fortran_order': {columns}, 'shape': {shape}, }}");
            h.push_str(&" ".repeat(117 - h.len()));
            h.push('\n');
            [MAGIC, &[1, 0], &[118, 0], h.as_bytes(), data].concat()
        };
        let big = decode(&file(">i2", "False", "(2,)", &[0, 1, 1, 0])).unwrap();
        assert_eq!(big.to_i64_vec(), [1, 256]);
        let columns = decode(&file("|u1", "True", "(2, 3)", &[1, 2, 3, 4, 5, 6])).unwrap();
        assert_eq!(columns.to_i64_vec(), [1, 3, 5, 2, 4, 6]);
        assert_eq!(decode(&file("|V2", "False", "(1,)", &[0, 0])).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(decode(b"PK").unwrap_err().message(), "not an .npy file");
    }
}
