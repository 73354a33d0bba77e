//! Whether a shared object is whole: the loader maps a truncated one all the same, and the process dies where bytes are missing.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use tensor::{Diagnostic, ErrorKind, Result};

/// Bytes of the header of a 64-bit ELF file.
const HEADER_BYTES: usize = 64;
/// The type of a section without bytes in the file.
const NOBITS: u32 = 8;

/// Refuses a 64-bit little-endian ELF file that ends before its headers, segments or sections do. Other files are the loader's to refuse.
///
/// # Errors
/// `Io` when it cannot be read, `Malformed` when it is truncated.
pub fn check_whole(path: &Path) -> Result<()> {
    let name = path.display();
    let unreadable =
        |e: std::io::Error| Diagnostic::new(ErrorKind::Io, format!("cannot read the native library {name}: {e}"));
    let mut file = File::open(path).map_err(unreadable)?;
    let len = file.metadata().map_err(unreadable)?.len();
    let needed = end(&mut file, len).map_err(unreadable)?;
    if needed.is_none_or(|n| n <= len) {
        return Ok(());
    }
    let text = format!("the native library {name} is truncated: it has {len} bytes where its headers tell of more");
    Err(Diagnostic::new(ErrorKind::Malformed, text).help("copy it again, or compile the model again"))
}

/// Where the last of the file's headers, segments and sections ends, as far as headers lie in the file's `len` bytes; `None` for
/// what is no 64-bit little-endian ELF file.
fn end(file: &mut File, len: u64) -> std::io::Result<Option<u64>> {
    let mut head = Vec::new();
    file.take(HEADER_BYTES as u64).read_to_end(&mut head)?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return Ok(None);
    }
    let segments = Table { start: word(&head, 32), n: half(&head, 56), entry: half(&head, 54) };
    let sections = Table { start: word(&head, 40), n: half(&head, 60), entry: half(&head, 58) };
    let mut end = (HEADER_BYTES as u64).max(segments.end()).max(sections.end());
    if end > len {
        return Ok(Some(end));
    }
    for s in segments.entries(file)? {
        end = end.max(word(&s, 8).saturating_add(word(&s, 32)));
    }
    for s in sections.entries(file)?.iter().filter(|s| number(s, 4, 4) != u64::from(NOBITS)) {
        end = end.max(word(s, 24).saturating_add(word(s, 32)));
    }
    Ok(Some(end))
}

/// A table of headers in the file.
struct Table {
    start: u64,
    n: u64,
    entry: u64,
}

impl Table {
    fn end(&self) -> u64 {
        // A file without such headers has no table.
        if self.n == 0 { 0 } else { self.start.saturating_add(self.n.saturating_mul(self.entry)) }
    }
    /// The entries of a table that lies in the file.
    fn entries(&self, file: &mut File) -> std::io::Result<Vec<Vec<u8>>> {
        file.seek(SeekFrom::Start(self.start))?;
        (0..self.n)
            .map(|_| {
                let mut entry = Vec::new();
                file.take(self.entry).read_to_end(&mut entry)?;
                Ok(entry)
            })
            .collect()
    }
}

/// A little-endian number of `n` bytes; 0 where they are not there.
fn number(bytes: &[u8], at: usize, n: usize) -> u64 {
    let bytes = bytes.get(at..at.saturating_add(n)).unwrap_or_default();
    bytes.iter().rev().fold(0, |x, &b| (x << 8) | u64::from(b))
}
fn word(bytes: &[u8], at: usize) -> u64 {
    number(bytes, at, 8)
}
fn half(bytes: &[u8], at: usize) -> u64 {
    number(bytes, at, 2)
}
