//! Read-only mapped files: the one module of this crate with `unsafe`.
#![allow(unsafe_code)]

use crate::{Diagnostic, ErrorKind, Result};
use bytes::Bytes;
use std::{fs::File, path::Path};

/// An `Io` error that names the file.
pub(crate) fn io_error(path: &Path, verb: &str, e: &std::io::Error) -> Diagnostic {
    Diagnostic::new(ErrorKind::Io, format!("cannot {verb} {}: {e}", path.display()))
}

/// Maps `path` and returns its content; the mapping lives as long as any slice of it.
///
/// # Errors
/// `Io` with the path when the file cannot be opened or mapped.
pub fn map_file(path: &Path) -> Result<Bytes> {
    let fail = |e: std::io::Error| io_error(path, "read", &e);
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() {
        return Err(Diagnostic::new(ErrorKind::Io, format!("cannot read {}: not a file", path.display())));
    }
    if meta.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only. A file that another process shortens while it is mapped raises
    // SIGBUS on access; models and artifacts are documented as immutable while in use.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
    Ok(Bytes::from_owner(map))
}
