//! Constants: mapped, shared by content between models and sessions, uploaded once per device.

use crate::device::{Buffer, Device, Space, Stream};
use crate::io::HostBytes;
use crate::team::lock;
use artifact::{Artifact, Constant, Source};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::SystemTime;
use tensor::{DType, Diagnostic, ErrorKind, Result, Seeded};

/// Where a model's constants come from.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConstantsFrom {
    /// The constants file; by default the one beside the artifact.
    pub file: Option<PathBuf>,
    /// The content of the constants file when it is in memory.
    pub bytes: Option<Bytes>,
    /// The bytes of single constants by index, as a compiler in the same process has them: contiguous, little-endian.
    pub parts: BTreeMap<usize, Bytes>,
    /// The folder of external data files; by default the artifact's.
    pub folder: Option<PathBuf>,
}

/// What makes two constants the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// Hash of the content.
    Content(Vec<u8>, u64),
    /// One element and the number of bytes.
    Splat(Vec<u8>, u64),
    /// Parameters as bits, element type and the number of bytes.
    Seeded([u64; 3], i32, u64),
    /// A range of a file as it was when it was first seen.
    File { path: PathBuf, changed: Option<SystemTime>, len: u64, offset: u64, bytes: u64 },
    /// Bytes of the caller, by address.
    Part(usize, usize),
}

/// How a constant is found when it is first needed.
#[derive(Debug)]
enum Lazy {
    Bytes(Bytes),
    Splat(Vec<u8>, u64),
    Seeded(Seeded, DType, u64),
    File(Arc<MappedFile>, u64, u64),
}

#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    map: OnceLock<Result<Bytes>>,
}

impl MappedFile {
    fn bytes(&self) -> Result<Bytes> {
        self.map.get_or_init(|| tensor::map::map_file(&self.path)).clone()
    }
}

/// A constant in the store.
#[derive(Debug)]
struct Entry {
    lazy: Lazy,
    /// Aligned for the widest element.
    align: usize,
    host: OnceLock<Result<Bytes>>,
    devices: Mutex<Vec<(usize, Buffer)>>,
}

impl Entry {
    /// The bytes, aligned; materialised or mapped now if need be.
    fn host(&self) -> Result<&Bytes> {
        self.host.get_or_init(|| self.load()).as_ref().map_err(Clone::clone)
    }
    fn load(&self) -> Result<Bytes> {
        let bytes = match &self.lazy {
            Lazy::Bytes(b) => b.clone(),
            Lazy::Splat(element, len) => return splat(element, *len),
            Lazy::Seeded(s, dtype, len) => {
                let mut out = HostBytes::zeroed(length(*len)?)?;
                s.fill(*dtype, out.as_mut())?;
                return Ok(Bytes::from_owner(out));
            }
            Lazy::File(file, offset, len) => {
                let all = file.bytes()?;
                slice(&all, *offset, *len).ok_or_else(|| {
                    let text = format!("bytes {offset}..+{len} of an external data file of {} bytes", all.len());
                    Diagnostic::new(ErrorKind::Malformed, text).note("file", file.path.display().to_string())
                })?
            }
        };
        if bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(self.align) {
            return Ok(bytes);
        }
        // Kernels load whole elements; what lies at an odd address is copied once.
        let mut copy = HostBytes::zeroed(bytes.len())?;
        copy.as_mut().copy_from_slice(&bytes);
        Ok(Bytes::from_owner(copy))
    }
    /// Its address, and whether it was uploaded now.
    fn addr_on(&self, device: &Arc<dyn Device>, stream: Stream) -> Result<(usize, bool)> {
        let host = self.host()?;
        if device.properties().host_is_device {
            let addr = host.as_ptr().expose_provenance();
            return Ok((if host.is_empty() { 64 } else { addr }, false));
        }
        let id = device.identity();
        let mut all = lock(&self.devices);
        if let Some((_, b)) = all.iter().find(|(d, _)| *d == id) {
            return Ok((b.addr(), false));
        }
        let buffer = Buffer::new(device, Space::Device, host.len())?;
        let from = (host.as_ptr().expose_provenance(), Space::Host);
        // SAFETY: the buffer has this length and is new.
        unsafe { device.copy(stream, (buffer.addr(), Space::Device), from, host.len())? };
        // Runs on other streams may use it at once.
        device.synchronize(stream)?;
        let addr = buffer.addr();
        all.push((id, buffer));
        Ok((addr, true))
    }
}

fn slice(all: &Bytes, offset: u64, len: u64) -> Option<Bytes> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    (end <= all.len()).then(|| all.slice(start..end))
}

fn length(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Diagnostic::new(ErrorKind::Limit, format!("a constant of {len} bytes")))
}

fn splat(element: &[u8], len: u64) -> Result<Bytes> {
    let mut out = HostBytes::zeroed(length(len)?)?;
    if !element.is_empty() && element.iter().any(|&b| b != 0) {
        for chunk in out.as_mut().chunks_mut(element.len()) {
            let part = element.get(..chunk.len()).unwrap_or_default();
            chunk.copy_from_slice(part);
        }
    }
    Ok(Bytes::from_owner(out))
}

/// Constants of all models of a process, by content. Share one between models to hold equal weights once.
#[derive(Debug, Default)]
pub struct ConstantStore {
    entries: Mutex<BTreeMap<Key, Weak<Entry>>>,
    files: Mutex<BTreeMap<PathBuf, Weak<MappedFile>>>,
}

impl ConstantStore {
    /// Empty.
    pub fn new() -> Arc<ConstantStore> {
        Arc::new(ConstantStore::default())
    }

    /// Number of constants that some model still holds.
    pub fn len(&self) -> usize {
        lock(&self.entries).values().filter(|e| e.strong_count() > 0).count()
    }

    /// Whether no model holds a constant.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The constants of an artifact. Reads nothing but the header of the constants file.
    ///
    /// # Errors
    /// `Io` when the constants file or an external file is missing, `Malformed` when one is too short or not the artifact's.
    pub fn load(&self, artifact: &Artifact, from: &ConstantsFrom) -> Result<ConstantSet> {
        let m = artifact.metadata();
        let beside = artifact.path().map(artifact::constants_path);
        let folder = from.folder.clone().or_else(|| artifact.path()?.parent().map(Path::to_path_buf));
        let covered = |i: usize| from.parts.contains_key(&i);
        let needs_file =
            m.constants.iter().enumerate().any(|(i, c)| matches!(c.source, Some(Source::Offset(_))) && !covered(i));
        let file = match (&from.bytes, needs_file) {
            (_, false) => Bytes::new(),
            (Some(b), true) => {
                artifact::constants::check(b, m)?;
                b.clone()
            }
            (None, true) => {
                let path = from.file.as_ref().or(beside.as_ref()).ok_or_else(|| {
                    Diagnostic::new(ErrorKind::Argument, "the model has constants but no constants file was given")
                })?;
                artifact::constants::open(path, m)?
            }
        };
        let mut all = Vec::with_capacity(m.constants.len());
        for (i, c) in m.constants.iter().enumerate() {
            let entry = match from.parts.get(&i) {
                Some(part) => self.part(c, part),
                None => self.entry(c, &file, folder.as_deref()),
            };
            all.push(entry.map_err(|e| e.note("constant", format!("{i} {:?}", c.name)))?);
        }
        lock(&self.entries).retain(|_, e| e.strong_count() > 0);
        lock(&self.files).retain(|_, f| f.strong_count() > 0);
        Ok(ConstantSet { entries: all, names: m.constants.iter().map(|c| c.name.clone()).collect() })
    }

    fn part(&self, c: &Constant, part: &Bytes) -> Result<Arc<Entry>> {
        if u64::try_from(part.len()).ok() != Some(c.bytes) {
            let text = format!("a constant of {} bytes was given {}", c.bytes, part.len());
            return Err(Diagnostic::new(ErrorKind::Argument, text));
        }
        let key = if c.hash.is_empty() {
            Key::Part(part.as_ptr().addr(), part.len())
        } else {
            Key::Content(c.hash.clone(), c.bytes)
        };
        Ok(self.insert(key, c, Lazy::Bytes(part.clone())))
    }

    fn entry(&self, c: &Constant, file: &Bytes, folder: Option<&Path>) -> Result<Arc<Entry>> {
        let malformed = |text: String| Diagnostic::new(ErrorKind::Malformed, text);
        match c.source.as_ref().ok_or_else(|| malformed("a constant without a source".into()))? {
            Source::Offset(offset) => {
                let bytes = slice(file, *offset, c.bytes).ok_or_else(|| {
                    malformed(format!("bytes {offset}..+{} of a constants file of {}", c.bytes, file.len()))
                })?;
                Ok(self.insert(Key::Content(c.hash.clone(), c.bytes), c, Lazy::Bytes(bytes)))
            }
            Source::Splat(element) => {
                Ok(self.insert(Key::Splat(element.clone(), c.bytes), c, Lazy::Splat(element.clone(), c.bytes)))
            }
            Source::Seeded(s) => {
                let bits = [s.seed, u64::from(s.middle.to_bits()), u64::from(s.spread.to_bits())];
                let lazy = Lazy::Seeded(s.seeded(), c.dtype()?, c.bytes);
                Ok(self.insert(Key::Seeded(bits, c.dtype, c.bytes), c, lazy))
            }
            Source::External(range) => {
                let path = folder.map_or_else(|| PathBuf::from(&range.path), |f| f.join(&range.path));
                let found = std::fs::metadata(&path).map_err(|e| {
                    Diagnostic::new(ErrorKind::Io, format!("cannot read external data {}: {e}", path.display()))
                        .help("the model's external data files must lie beside the artifact, or their folder be given")
                })?;
                if range.offset.checked_add(c.bytes).is_none_or(|end| end > found.len()) {
                    let text = format!(
                        "bytes {}..+{} of {} with {} bytes",
                        range.offset,
                        c.bytes,
                        path.display(),
                        found.len()
                    );
                    return Err(malformed(text));
                }
                let path = std::fs::canonicalize(&path).unwrap_or(path);
                let key = Key::File {
                    path: path.clone(),
                    changed: found.modified().ok(),
                    len: found.len(),
                    offset: range.offset,
                    bytes: c.bytes,
                };
                let mapped = self.file(path);
                Ok(self.insert(key, c, Lazy::File(mapped, range.offset, c.bytes)))
            }
        }
    }

    fn file(&self, path: PathBuf) -> Arc<MappedFile> {
        let mut files = lock(&self.files);
        if let Some(f) = files.get(&path).and_then(Weak::upgrade) {
            return f;
        }
        let f = Arc::new(MappedFile { path: path.clone(), map: OnceLock::new() });
        files.insert(path, Arc::downgrade(&f));
        f
    }

    fn insert(&self, key: Key, c: &Constant, lazy: Lazy) -> Arc<Entry> {
        let align = c.dtype().ok().and_then(|d| d.size()).unwrap_or(1).clamp(1, 16).next_power_of_two();
        let mut entries = lock(&self.entries);
        if let Some(e) = entries.get(&key).and_then(Weak::upgrade).filter(|e| e.align >= align) {
            return e;
        }
        let e = Arc::new(Entry { lazy, align, host: OnceLock::new(), devices: Mutex::default() });
        entries.insert(key, Arc::downgrade(&e));
        e
    }
}

/// The constants of a model.
#[derive(Debug)]
pub struct ConstantSet {
    entries: Vec<Arc<Entry>>,
    names: Vec<String>,
}

impl ConstantSet {
    /// How many.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// The bytes of a constant in host memory.
    ///
    /// # Errors
    /// `Argument` for an index there is none of; `Io` or `Malformed` when its file cannot be mapped.
    pub fn host(&self, index: usize) -> Result<Bytes> {
        self.entry(index)?.host().cloned().map_err(|e| self.named(e, index))
    }
    /// The address of a constant in a device's memory; uploads it the first time and says so.
    pub(crate) fn addr_on(&self, index: usize, device: &Arc<dyn Device>, stream: Stream) -> Result<(usize, bool)> {
        self.entry(index)?.addr_on(device, stream).map_err(|e| self.named(e, index))
    }
    fn entry(&self, index: usize) -> Result<&Arc<Entry>> {
        let none = || Diagnostic::new(ErrorKind::Internal, format!("constant {index} of {}", self.entries.len()));
        self.entries.get(index).ok_or_else(none)
    }
    fn named(&self, e: Diagnostic, index: usize) -> Diagnostic {
        e.note("constant", format!("{index} {:?}", self.names.get(index).map_or("", |n| n)))
    }
}
