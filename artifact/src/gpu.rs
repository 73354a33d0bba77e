//! GPU code in a native library, which has no sections of ours: a table of labels and lengths, then the bytes, as the data symbol
//! `hip_ep_gpu`.

use bytes::Bytes;
use tensor::{Diagnostic, ErrorKind, Result};

/// Symbol of the packed sections; its length is the u64 `hip_ep_gpu_len`.
pub const SYM_GPU: &str = "hip_ep_gpu";
/// See [`SYM_GPU`].
pub const SYM_GPU_LEN: &str = "hip_ep_gpu_len";
/// Most bytes that are read.
pub const MAX_BYTES: usize = 1 << 30;
const MOST: u32 = 1 << 10;

fn malformed(text: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Malformed, format!("the GPU code of a native library is damaged: {text}"))
        .help("compile the model again")
}

/// Packs sections of GPU code: the number, then of each the length of its label and of its code as u32, then labels and code.
pub fn pack(sections: &[(&str, Bytes)]) -> Vec<u8> {
    let n = |v: usize| u32::try_from(v).unwrap_or(u32::MAX).to_le_bytes();
    let mut out = n(sections.len()).to_vec();
    for (label, code) in sections {
        out.extend(n(label.len()));
        out.extend(n(code.len()));
    }
    for (label, code) in sections {
        out.extend_from_slice(label.as_bytes());
        out.extend_from_slice(code);
    }
    out
}

/// The sections that [`pack`] packed: label and code.
///
/// # Errors
/// `Malformed` when the bytes are not that.
pub fn unpack(bytes: &[u8]) -> Result<Vec<(String, Bytes)>> {
    let mut rest = bytes;
    let mut word = || -> Result<u32> {
        let (head, tail) = rest.split_first_chunk::<4>().ok_or_else(|| malformed("it is cut short"))?;
        rest = tail;
        Ok(u32::from_le_bytes(*head))
    };
    let count = word()?;
    if count > MOST {
        return Err(malformed("it has too many sections"));
    }
    let mut sizes = vec![];
    for _ in 0..count {
        sizes.push((word()?, word()?));
    }
    let mut take = |n: u32| -> Result<&[u8]> {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let (head, tail) = rest.split_at_checked(n).ok_or_else(|| malformed("it is cut short"))?;
        rest = tail;
        Ok(head)
    };
    let mut out = vec![];
    for (label, code) in sizes {
        let label = std::str::from_utf8(take(label)?).map_err(|_| malformed("a label is not UTF-8"))?.to_string();
        out.push((label, Bytes::copy_from_slice(take(code)?)));
    }
    if rest.is_empty() { Ok(out) } else { Err(malformed("something follows it")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_sections_come_back_and_damage_is_told() {
        let sections = [("hip:gfx942/generated", Bytes::from_static(b"ELF")), ("cuda:sm_90/generated", Bytes::new())];
        let packed = pack(&sections);
        let back = unpack(&packed).unwrap();
        assert_eq!(back.len(), 2);
        assert!(back.iter().zip(&sections).all(|(a, b)| a.0 == b.0 && a.1 == b.1));
        assert!(unpack(&pack(&[])).unwrap().is_empty());
        for cut in 0..packed.len() {
            assert_eq!(unpack(&packed[..cut]).unwrap_err().kind(), ErrorKind::Malformed);
        }
        let mut longer = packed.clone();
        longer.push(0);
        assert!(unpack(&longer).is_err());
        longer[3] = 255;
        assert!(unpack(&longer).is_err());
    }
}
