//! The file: a header with a section table, then sections. Little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic `89 48 45 50 0d 0a 1a 0a` (not text; a transfer as text breaks it) |
//! | 4, 4 | container version, number of sections |
//! | 8 | length of the file |
//! | 4, 4 | length of all labels, zero |
//! | 32 | blake3 of the 32 bytes above, the section table and the labels |
//! | 56 each | section: kind (4), length of its label (4), offset (8), length (8), blake3 (32) |
//! | … | labels, one after the other |
//! | … | sections, each at a multiple of 64, in the order of the table |
//!
//! The header's hash is checked when a file is opened, a section's hash by [`Artifact::intact`] before its code runs, all of them by
//! [`Artifact::verify`].

use crate::metadata::{FORMAT_VERSION, Metadata};
use bytes::Bytes;
use prost::Message;
use std::path::{Path, PathBuf};
use tensor::{Diagnostic, ErrorKind, Result};

pub(crate) const MAGIC: [u8; 8] = [0x89, b'H', b'E', b'P', 0x0d, 0x0a, 0x1a, 0x0a];
pub(crate) const FIXED: usize = 64;
pub(crate) const HASH_AT: usize = 32;
const ENTRY: usize = 56;
const ALIGN: usize = 64;
const MAX_SECTIONS: u32 = 1024;
const MAX_LABELS: u32 = 1 << 20;

/// What a section holds. Unknown kinds are kept and skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// [`Metadata`] as protobuf. Exactly one.
    Metadata,
    /// [`Metadata`] as JSON.
    MetadataJson,
    /// LLVM bitcode of the host code: `model.bc`.
    HostBitcode,
    /// A relocatable object of the host code; the label is `triple` or `triple+feature,feature`.
    HostObject,
    /// Code for a GPU; the label is the arch.
    GpuCode,
    /// Texts for people who debug the compiled model; the label says which.
    Debug,
    /// Of a later version.
    Other(u32),
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Kind::Metadata => 1,
            Kind::MetadataJson => 2,
            Kind::HostBitcode => 3,
            Kind::HostObject => 4,
            Kind::GpuCode => 5,
            Kind::Debug => 6,
            Kind::Other(n) => n,
        }
    }
    fn from_number(n: u32) -> Kind {
        match n {
            1 => Kind::Metadata,
            2 => Kind::MetadataJson,
            3 => Kind::HostBitcode,
            4 => Kind::HostObject,
            5 => Kind::GpuCode,
            6 => Kind::Debug,
            n => Kind::Other(n),
        }
    }
}

/// One line of the section table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Kind.
    pub kind: Kind,
    /// Tells sections of one kind apart.
    pub label: String,
    /// Start in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// blake3 of the bytes.
    pub hash: [u8; 32],
}

/// An opened artifact. Sections are slices of the mapped file.
#[derive(Clone, Debug)]
pub struct Artifact {
    bytes: Bytes,
    sections: Vec<Section>,
    metadata: Metadata,
    path: Option<PathBuf>,
}

fn malformed(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Malformed, message)
}

impl Artifact {
    /// Maps a file and checks its header, section table and metadata.
    ///
    /// # Errors
    /// `Io` when the file cannot be read, `Malformed` or `Limit` when it is no artifact or a damaged one.
    pub fn open(path: impl AsRef<Path>) -> Result<Artifact> {
        let path = path.as_ref();
        let bytes = tensor::map::map_file(path)?;
        let mut a = Artifact::from_bytes(bytes).map_err(|e| e.note("file", path.display().to_string()))?;
        a.path = Some(path.to_path_buf());
        Ok(a)
    }

    /// The same from memory.
    ///
    /// # Errors
    /// `Malformed` or `Limit` when the bytes are no artifact or a damaged one.
    pub fn from_bytes(bytes: Bytes) -> Result<Artifact> {
        let sections = read_header(&bytes)?;
        let of = |kind| sections.iter().filter(move |s| s.kind == kind);
        let (Some(s), 1) = (of(Kind::Metadata).next(), of(Kind::Metadata).count()) else {
            return Err(malformed("the artifact needs exactly one metadata section"));
        };
        let metadata = Metadata::decode_checked(&hashed(&bytes, s)?)?;
        Ok(Artifact { bytes, sections, metadata, path: None })
    }

    /// An artifact of metadata alone, as a native library carries it.
    ///
    /// # Errors
    /// `Malformed` or `Limit` when the metadata cannot be.
    pub fn from_metadata(bytes: &[u8], path: Option<&Path>) -> Result<Artifact> {
        let metadata = Metadata::decode_checked(bytes)?;
        Ok(Artifact { bytes: Bytes::new(), sections: Vec::new(), metadata, path: path.map(Path::to_path_buf) })
    }

    /// The same with sections of GPU code: label and code. They are copied into one piece of memory.
    ///
    /// # Errors
    /// `Malformed` for two sections of one label.
    pub fn with_gpu_code(mut self, code: &[(String, Bytes)]) -> Result<Artifact> {
        let mut bytes = self.bytes.to_vec();
        for (label, code) in code {
            if self.sections.iter().any(|s| s.kind == Kind::GpuCode && s.label == *label) {
                return Err(malformed(format!("two sections of GPU code {label:?}")));
            }
            bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
            let (offset, len, hash) = (to_u64(bytes.len()), to_u64(code.len()), *blake3::hash(code).as_bytes());
            self.sections.push(Section { kind: Kind::GpuCode, label: label.clone(), offset, len, hash });
            bytes.extend_from_slice(code);
        }
        self.bytes = bytes.into();
        Ok(self)
    }

    /// What the compiled model says about itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The section table.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The bytes of a section.
    pub fn section(&self, kind: Kind, label: &str) -> Option<Bytes> {
        self.sections.iter().find(|s| s.kind == kind && s.label == label).and_then(|s| slice(&self.bytes, s))
    }

    /// The bytes of a section after they were compared with its hash: for code, before it runs. Reads the whole section.
    ///
    /// # Errors
    /// `Malformed` with the section that is damaged.
    pub fn intact(&self, kind: Kind, label: &str) -> Result<Option<Bytes>> {
        let found = self.sections.iter().find(|s| s.kind == kind && s.label == label);
        found.map(|s| hashed(&self.bytes, s)).transpose()
    }

    /// All sections of a kind: label and bytes.
    pub fn sections_of(&self, kind: Kind) -> impl Iterator<Item = (&str, Bytes)> {
        self.sections
            .iter()
            .filter(move |s| s.kind == kind)
            .filter_map(|s| Some((s.label.as_str(), slice(&self.bytes, s)?)))
    }

    /// Where it was opened.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The whole file.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Reads everything and compares each section with its hash, and the JSON mirror with the metadata.
    ///
    /// # Errors
    /// `Malformed` with the section that is damaged.
    pub fn verify(&self) -> Result<()> {
        for s in &self.sections {
            hashed(&self.bytes, s)?;
        }
        if let Some(json) = self.section(Kind::MetadataJson, "") {
            let text = std::str::from_utf8(&json).map_err(|_| malformed("the JSON mirror is not UTF-8"))?;
            if Metadata::from_json(text)? != self.metadata {
                return Err(malformed("the JSON mirror differs from the metadata"));
            }
        }
        Ok(())
    }
}

fn damaged(s: &Section) -> Diagnostic {
    malformed(format!("section {:?} {:?} is damaged: its hash differs", s.kind, s.label))
        .help("copy the artifact again or compile the model again")
}

fn slice(bytes: &Bytes, s: &Section) -> Option<Bytes> {
    let start = usize::try_from(s.offset).ok()?;
    let end = start.checked_add(usize::try_from(s.len).ok()?)?;
    (end <= bytes.len()).then(|| bytes.slice(start..end))
}

/// The bytes of a section that agree with its hash.
fn hashed(bytes: &Bytes, s: &Section) -> Result<Bytes> {
    let all = slice(bytes, s).filter(|b| *blake3::hash(b).as_bytes() == s.hash);
    all.ok_or_else(|| damaged(s))
}

/// Reads fixed-size fields one after the other.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or_else(cut_short)?;
        self.0 = tail;
        Ok(*head)
    }
    fn slice(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or_else(cut_short)?;
        self.0 = tail;
        Ok(head)
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

fn cut_short() -> Diagnostic {
    malformed("the artifact is cut short within its header").help("copy it again")
}

fn read_header(bytes: &[u8]) -> Result<Vec<Section>> {
    let mut c = Cursor(bytes);
    if bytes.len() < MAGIC.len() || c.take::<8>()? != MAGIC {
        return Err(malformed("this is no compiled model: its first bytes are not an artifact's")
            .help("compile the ONNX file first, with hip-compiler"));
    }
    let version = c.u32()?;
    if version != FORMAT_VERSION {
        return Err(malformed(format!(
            "an artifact of container version {version}; this reads version {FORMAT_VERSION}"
        ))
        .help("compile the model again with this version"));
    }
    let n = c.u32()?;
    let len = c.u64()?;
    let n_labels = c.u32()?;
    c.u32()?;
    let want: [u8; 32] = c.take()?;
    if n > MAX_SECTIONS || n_labels > MAX_LABELS {
        return Err(Diagnostic::new(ErrorKind::Limit, format!("{n} sections with {n_labels} bytes of labels")));
    }
    if u64::try_from(bytes.len()).ok() != Some(len) {
        return Err(malformed(format!("the artifact has {} bytes but its header says {len}", bytes.len()))
            .help("it is cut short or something was appended: copy it again"));
    }
    let (n, n_labels) =
        (usize::try_from(n).map_err(|_| cut_short())?, usize::try_from(n_labels).map_err(|_| cut_short())?);
    let table = c.slice(n * ENTRY)?;
    let labels = c.slice(n_labels)?;
    let mut hash = blake3::Hasher::new();
    hash.update(bytes.get(..HASH_AT).ok_or_else(cut_short)?).update(table).update(labels);
    if *hash.finalize().as_bytes() != want {
        return Err(malformed("the header of the artifact is damaged: its hash differs")
            .help("copy the artifact again or compile the model again"));
    }
    let (mut table, mut labels) = (Cursor(table), Cursor(labels));
    let mut sections: Vec<Section> = Vec::with_capacity(n);
    let mut free = header_len(n, n_labels);
    for i in 0..n {
        let kind = Kind::from_number(table.u32()?);
        let label = labels.slice(usize::try_from(table.u32()?).map_err(|_| cut_short())?)?;
        let label = std::str::from_utf8(label).map_err(|_| malformed("a section label is not UTF-8"))?.to_string();
        let (offset, size, hash) = (table.u64()?, table.u64()?, table.take()?);
        let end = offset.checked_add(size).filter(|&e| e <= len);
        let start = usize::try_from(offset).ok().filter(|&o| o >= free && o.is_multiple_of(ALIGN));
        let (Some(end), Some(_)) = (end.and_then(|e| usize::try_from(e).ok()), start) else {
            return Err(malformed(format!("section {i} lies at {offset}..+{size} of {len} bytes")));
        };
        free = end;
        if sections.iter().any(|s| s.kind == kind && s.label == label) {
            return Err(malformed(format!("two sections {kind:?} {label:?}")));
        }
        sections.push(Section { kind, label, offset, len: size, hash });
    }
    Ok(sections)
}

fn header_len(n: usize, n_labels: usize) -> usize {
    FIXED.saturating_add(n.saturating_mul(ENTRY)).saturating_add(n_labels)
}

/// Builds an artifact. The same content gives the same bytes.
#[derive(Clone, Debug)]
pub struct Builder {
    metadata: Metadata,
    sections: Vec<(Kind, String, Bytes)>,
}

impl Builder {
    /// Starts with the metadata; its JSON mirror is made from it.
    pub fn new(metadata: Metadata) -> Builder {
        Builder { metadata, sections: Vec::new() }
    }

    /// Adds a section.
    pub fn section(&mut self, kind: Kind, label: impl Into<String>, bytes: impl Into<Bytes>) -> &mut Builder {
        self.sections.push((kind, label.into(), bytes.into()));
        self
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// `Malformed` when the metadata does not hold together, `Internal` for two sections of one kind and label.
    pub fn finish(&self) -> Result<Vec<u8>> {
        self.metadata.check()?;
        let mut all = self.sections.clone();
        all.push((Kind::Metadata, String::new(), self.metadata.encode_to_vec().into()));
        all.push((Kind::MetadataJson, String::new(), self.metadata.to_json()?.into()));
        all.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let internal = |text: &str| Diagnostic::new(ErrorKind::Internal, text.to_string());
        if all.iter().zip(all.iter().skip(1)).any(|(a, b)| (a.0, &a.1) == (b.0, &b.1)) {
            return Err(internal("two sections of one kind and label in an artifact"));
        }
        let labels: String = all.iter().map(|s| s.1.as_str()).collect();
        let too_big = || internal("an artifact with too many sections or labels");
        let n = u32::try_from(all.len()).ok().filter(|&n| n <= MAX_SECTIONS).ok_or_else(too_big)?;
        let n_labels = u32::try_from(labels.len()).ok().filter(|&n| n <= MAX_LABELS).ok_or_else(too_big)?;

        let mut at = header_len(all.len(), labels.len());
        let mut table = Vec::with_capacity(all.len() * ENTRY);
        for (kind, label, bytes) in &all {
            at = at.next_multiple_of(ALIGN);
            table.extend_from_slice(&kind.number().to_le_bytes());
            table.extend_from_slice(&u32::try_from(label.len()).map_err(|_| too_big())?.to_le_bytes());
            table.extend_from_slice(&to_u64(at).to_le_bytes());
            table.extend_from_slice(&to_u64(bytes.len()).to_le_bytes());
            table.extend_from_slice(blake3::hash(bytes).as_bytes());
            at = at.checked_add(bytes.len()).ok_or_else(too_big)?;
        }
        let mut out = Vec::with_capacity(at);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&n.to_le_bytes());
        out.extend_from_slice(&to_u64(at).to_le_bytes());
        out.extend_from_slice(&n_labels.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        let mut hash = blake3::Hasher::new();
        hash.update(&out).update(&table).update(labels.as_bytes());
        out.extend_from_slice(hash.finalize().as_bytes());
        out.extend_from_slice(&table);
        out.extend_from_slice(labels.as_bytes());
        for (_, _, bytes) in &all {
            out.resize(out.len().next_multiple_of(ALIGN), 0);
            out.extend_from_slice(bytes);
        }
        Ok(out)
    }

    /// Writes the file, through a temporary one beside it so that no reader sees half of it.
    ///
    /// # Errors
    /// As [`Builder::finish`]; `Io` with the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let bytes = self.finish()?;
        crate::constants::write_beside(path, |f| std::io::Write::write_all(f, &bytes))
    }
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
