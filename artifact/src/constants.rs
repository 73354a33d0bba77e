//! The constants file beside an artifact: a 64-byte header, entries at multiples of 64 bytes, then 32 bytes that tell it from the
//! file of another model. Written as a stream, read as a mapping, so weights never sit in anonymous memory.

use crate::metadata::{CONSTANT_ALIGN, Constant, ConstantsFile, Metadata, Source};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tensor::{DType, Diagnostic, ErrorKind, Result};

const MAGIC: [u8; 8] = *b"\x89HEPCST\n";
const VERSION: u32 = 2;
/// Bytes of the id at the end of the file.
pub(crate) const ID_BYTES: u64 = 32;
const ZEROS: [u8; 64] = [0; 64];

/// Where the constants of the artifact at `path` lie: `model.hipep` has `model.constants`.
pub fn constants_path(path: &Path) -> PathBuf {
    path.with_extension("constants")
}

/// Writes constants one after the other. Equal bytes are written once.
#[derive(Debug)]
pub struct ConstantsWriter<W> {
    out: W,
    at: u64,
    seen: BTreeMap<[u8; 32], u64>,
    id: blake3::Hasher,
}

impl<W: Write> ConstantsWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// `Io` when it cannot be written.
    pub fn new(mut out: W) -> Result<ConstantsWriter<W>> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(ZEROS.get(12..).unwrap_or_default())?;
        Ok(ConstantsWriter { out, at: CONSTANT_ALIGN, seen: BTreeMap::new(), id: blake3::Hasher::new() })
    }

    /// Writes the bytes of a constant and returns its line of the metadata.
    ///
    /// # Errors
    /// `Io` when they cannot be written; `Internal` when their number is not that of `dtype` and `shape`.
    pub fn plain(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Constant> {
        let mut c = line(name, dtype, shape)?;
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if c.bytes != len {
            let text = format!("constant {name:?} {dtype}{shape:?} with {len} bytes instead of {}", c.bytes);
            return Err(Diagnostic::new(ErrorKind::Internal, text));
        }
        let hash = *blake3::hash(bytes).as_bytes();
        let offset = match self.seen.get(&hash) {
            Some(&offset) => offset,
            None => {
                let offset = self.at.next_multiple_of(CONSTANT_ALIGN);
                let gap = usize::try_from(offset - self.at).unwrap_or(0);
                self.out.write_all(ZEROS.get(..gap).unwrap_or_default())?;
                self.out.write_all(bytes)?;
                self.at = offset.saturating_add(len);
                self.seen.insert(hash, offset);
                self.id.update(&hash);
                offset
            }
        };
        c.hash = hash.to_vec();
        c.source = Some(Source::Offset(offset));
        Ok(c)
    }

    /// Ends the file with its id: it is known only now.
    ///
    /// # Errors
    /// `Io` when the rest cannot be written.
    pub fn finish(mut self) -> Result<(ConstantsFile, W)> {
        let id = self.id.finalize().as_bytes().to_vec();
        self.out.write_all(&id)?;
        self.out.flush()?;
        Ok((ConstantsFile { bytes: self.at.saturating_add(ID_BYTES), id }, self.out))
    }
}

/// The line of a constant whose bytes stay in the model's own external data file.
///
/// # Errors
/// `Limit` when its size overflows.
pub fn external(name: &str, dtype: DType, shape: &[usize], path: &str, offset: u64) -> Result<Constant> {
    let range = crate::metadata::ExternalRange { path: path.into(), offset };
    Ok(Constant { source: Some(Source::External(range)), ..line(name, dtype, shape)? })
}

/// The line of a constant whose elements are made at load.
///
/// # Errors
/// `Limit` when its size overflows.
pub fn seeded(name: &str, dtype: DType, shape: &[usize], s: &tensor::Seeded) -> Result<Constant> {
    let elements = crate::metadata::SeededElements { seed: s.seed, middle: s.middle, spread: s.spread };
    Ok(Constant { source: Some(Source::Seeded(elements)), ..line(name, dtype, shape)? })
}

/// The line of a constant whose elements are all the same; `element` are its bytes, for packed types one byte with the element in its
/// low bits.
///
/// # Errors
/// `Limit` when its size overflows, `Internal` when the element is too short.
pub fn splat(name: &str, dtype: DType, shape: &[usize], element: &[u8]) -> Result<Constant> {
    let short =
        || Diagnostic::new(ErrorKind::Internal, format!("a splat {name:?} of {dtype} from {} bytes", element.len()));
    let one = element.get(..dtype.size().unwrap_or(1)).ok_or_else(short)?;
    let bits = dtype.bits();
    let bytes = match one {
        // Repeated within the byte, so that readers need not know the type.
        [v] if (1..8).contains(&bits) => {
            vec![(0..8 / bits).fold(0u8, |a, i| a | ((v & (0xff >> (8 - bits))) << (i * bits)))]
        }
        _ => one.to_vec(),
    };
    Ok(Constant { source: Some(Source::Splat(bytes)), ..line(name, dtype, shape)? })
}

fn line(name: &str, dtype: DType, shape: &[usize]) -> Result<Constant> {
    let n = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d)).and_then(|n| dtype.size_bytes(n));
    let bytes = n.and_then(|n| u64::try_from(n).ok());
    let bytes = bytes
        .ok_or_else(|| Diagnostic::new(ErrorKind::Limit, format!("constant {name:?} {dtype}{shape:?} is too large")))?;
    let shape: Result<Vec<u64>, _> = shape.iter().map(|&d| u64::try_from(d)).collect();
    Ok(Constant {
        name: name.into(),
        dtype: dtype.onnx(),
        shape: shape.map_err(|_| Diagnostic::new(ErrorKind::Limit, "extents beyond 64 bits"))?,
        bytes,
        layout: "plain".into(),
        hash: Vec::new(),
        source: None,
    })
}

/// Maps the constants file of an artifact and checks its header, its length and its id.
///
/// # Errors
/// `Io` when it cannot be read, `Malformed` when it is not the file the metadata speaks of.
pub fn open(path: &Path, metadata: &Metadata) -> Result<Bytes> {
    let bytes =
        tensor::map::map_file(path).map_err(|e| e.help("the constants file lies beside the artifact; copy both"))?;
    check(&bytes, metadata).map_err(|e| e.note("file", path.display().to_string()))?;
    Ok(bytes)
}

/// Checks header, length and id of a constants file. Reads none of its entries.
///
/// # Errors
/// `Malformed` when it is not the file the metadata speaks of.
pub fn check(bytes: &Bytes, metadata: &Metadata) -> Result<()> {
    let malformed = |text: String| Diagnostic::new(ErrorKind::Malformed, text);
    let fail = |text: String| {
        Err(malformed(text).help("copy the file that was written with the artifact, or compile the model again"))
    };
    let Some(file) = metadata.constants_file.as_ref() else {
        return Err(malformed("the artifact speaks of no constants file".into()).help("compile the model again"));
    };
    if bytes.get(..8) != Some(&MAGIC[..]) || bytes.get(8..12) != Some(&VERSION.to_le_bytes()[..]) {
        return fail(format!("this is no constants file of version {VERSION}"));
    }
    if u64::try_from(bytes.len()).ok() != Some(file.bytes) {
        return fail(format!("the constants file has {} bytes but the artifact needs {}", bytes.len(), file.bytes));
    }
    let id = bytes.len().checked_sub(file.id.len()).and_then(|at| bytes.get(at..));
    if u64::try_from(file.id.len()).ok() != Some(ID_BYTES) || id != Some(&file.id[..]) {
        return Err(malformed("the constants file is not the one that was written with the artifact".into())
            .help("the file beside the artifact belongs to another model; compile again or restore it"));
    }
    Ok(())
}

/// Reads all constants in the constants file and compares them with their hashes.
///
/// # Errors
/// `Malformed` with the first that differs.
pub fn verify(file: &Bytes, metadata: &Metadata) -> Result<()> {
    for c in &metadata.constants {
        let Some(Source::Offset(offset)) = c.source else { continue };
        let range = usize::try_from(offset).ok().zip(usize::try_from(c.bytes).ok());
        let bytes = range.and_then(|(o, n)| file.get(o..o.checked_add(n)?));
        if bytes.is_none_or(|b| blake3::hash(b).as_bytes()[..] != c.hash[..]) {
            return Err(Diagnostic::new(
                ErrorKind::Malformed,
                format!("constant {:?} is damaged: its hash differs", c.name),
            ));
        }
    }
    Ok(())
}

/// Keeps other processes from writing into the folder of `path` until the result is dropped: an artifact and its constants are two
/// files. Where the file system has no locks, nothing is kept.
pub fn lock_folder(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder).ok()?;
    folder.lock().ok()?;
    Some(folder)
}

/// Writes a file through a temporary one beside it, then renames it.
///
/// # Errors
/// `Io` with the path.
pub fn write_beside(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temp = path.with_file_name(name);
    let done = File::create(&temp).and_then(|mut f| write(&mut f)).and_then(|()| std::fs::rename(&temp, path));
    done.map_err(|e| {
        let _ = std::fs::remove_file(&temp);
        Diagnostic::new(ErrorKind::Io, format!("cannot write {}: {e}", path.display()))
    })
}
