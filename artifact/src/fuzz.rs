//! The fuzzing entry: bytes in, no panic out.

use crate::container::{Artifact, FIXED, HASH_AT, MAGIC};
use bytes::Bytes;

/// Opens bytes as an artifact, and once more with the header's and the metadata's hashes made right so that a fuzzer gets past them.
/// Returns how many of the two opened.
pub fn open(data: &[u8]) -> usize {
    let plain = usize::from(walk(Bytes::copy_from_slice(data)));
    let mut b = data.to_vec();
    repair(&mut b);
    plain + usize::from(walk(b.into()))
}

fn walk(bytes: Bytes) -> bool {
    let Ok(a) = Artifact::from_bytes(bytes) else { return false };
    let _ = a.verify();
    for s in a.sections() {
        let _ = a.section(s.kind, &s.label);
    }
    let m = a.metadata();
    m.inputs.iter().chain(&m.outputs).for_each(|p| drop(p.display()));
    let _ = m.to_json();
    true
}

/// Makes magic, length, and hashes right where the table can be found.
fn repair(b: &mut [u8]) -> Option<()> {
    let len = u64::try_from(b.len()).ok()?;
    b.get_mut(..8)?.copy_from_slice(&MAGIC);
    b.get_mut(8..12)?.copy_from_slice(&1u32.to_le_bytes());
    b.get_mut(16..24)?.copy_from_slice(&len.to_le_bytes());
    let word = |b: &[u8], at: usize| usize::try_from(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?)).ok();
    let long = |b: &[u8], at: usize| usize::try_from(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?)).ok();
    let (n, n_labels) = (word(b, 12)?.min(1024), word(b, 24)?);
    for i in 0..n {
        let at = FIXED + i * 56;
        let (offset, size) = (long(b, at + 8)?, long(b, at + 16)?);
        let Some(hash) = b.get(offset..offset.checked_add(size)?).map(blake3::hash) else { continue };
        b.get_mut(at + 24..at + 56)?.copy_from_slice(hash.as_bytes());
    }
    let mut h = blake3::Hasher::new();
    h.update(b.get(..HASH_AT)?).update(b.get(FIXED..FIXED.checked_add(n * 56)?.checked_add(n_labels)?)?);
    let hash = *h.finalize().as_bytes();
    b.get_mut(HASH_AT..FIXED)?.copy_from_slice(&hash);
    Some(())
}
