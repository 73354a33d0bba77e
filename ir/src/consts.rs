//! Constants: references until something reads them. Importing a model copies no weight.

use bytes::Bytes;
use smallvec::SmallVec;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tensor::{DType, Diagnostic, ErrorKind, Result, Seeded, Tensor};

tensor::entity! {
    /// A constant of a module.
    pub struct ConstId, "c"
}

/// A constant tensor.
#[derive(Clone, Debug)]
pub struct Const {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: SmallVec<[usize; 4]>,
    /// Where the elements are.
    pub data: ConstData,
    /// The model's name for it, empty if it has none.
    pub name: String,
}

/// Where a constant's elements are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConstData {
    /// Bytes in memory, in a mapped model file or the caller's; little-endian, contiguous. Cloning shares them.
    Bytes(Bytes),
    /// One element repeated; the bytes of the element (one byte for packed types, in the low bits).
    Splat(SmallVec<[u8; 8]>),
    /// Pseudo-random elements, made when read.
    Seeded(Seeded),
    /// A range of an external file, mapped when first read.
    File {
        /// The file.
        file: Arc<ExternalFile>,
        /// Start in bytes; any alignment.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Strings.
    Strings(Arc<[String]>),
    /// Nothing but a digest: read from a text that did not show the elements. Reading it fails.
    Digest(Arc<str>),
}

/// An external data file, mapped once for all constants in it.
#[derive(Debug)]
pub struct ExternalFile {
    /// Its path.
    pub path: PathBuf,
    map: OnceLock<Result<Bytes>>,
}

impl ExternalFile {
    /// Not opened until read.
    pub fn new(path: PathBuf) -> ExternalFile {
        ExternalFile { path, map: OnceLock::new() }
    }
    /// The mapped content.
    ///
    /// # Errors
    /// `Io` when the file cannot be mapped.
    pub fn bytes(&self) -> Result<Bytes> {
        self.map.get_or_init(|| tensor::map::map_file(&self.path)).clone()
    }
}

impl Const {
    /// From a host tensor (shares its bytes).
    pub fn from_tensor(name: impl Into<String>, t: &Tensor) -> Const {
        let data = if t.dtype() == DType::String {
            ConstData::Strings(t.strings().into())
        } else {
            ConstData::Bytes(t.bytes().clone())
        };
        Const { dtype: t.dtype(), shape: t.shape().into(), data, name: name.into() }
    }
    /// Number of elements.
    pub fn n_elems(&self) -> usize {
        self.shape.iter().product()
    }
    /// Bytes of the contiguous form; 0 for strings.
    pub fn size_bytes(&self) -> usize {
        self.dtype.size_bytes(self.n_elems()).unwrap_or(0)
    }
    /// The elements as a tensor. Splats and seeded ones are materialised; mapped data is shared.
    ///
    /// # Errors
    /// `Io` when an external file is missing or too short, `Malformed` when lengths do not fit.
    pub fn read(&self) -> Result<Tensor> {
        let named = |e: Diagnostic| if self.name.is_empty() { e } else { e.note("tensor", format!("{:?}", self.name)) };
        match &self.data {
            ConstData::Bytes(b) => Tensor::new(self.dtype, &self.shape, b.clone()).map_err(named),
            ConstData::Splat(e) => {
                let bytes: Vec<u8> = match self.dtype.size() {
                    Some(size) => e.iter().copied().take(size).cycle().take(self.size_bytes()).collect(),
                    None => {
                        let (bits, v) = (self.dtype.bits(), e.first().copied().unwrap_or(0));
                        let full = (0..8 / bits).fold(0u8, |a, i| a | (v & (0xff >> (8 - bits))) << (i * bits));
                        vec![full; self.size_bytes()]
                    }
                };
                Tensor::new(self.dtype, &self.shape, bytes.into()).map_err(named)
            }
            ConstData::Seeded(s) => {
                let mut bytes = vec![0; self.size_bytes()];
                s.fill(self.dtype, &mut bytes).map_err(named)?;
                Tensor::new(self.dtype, &self.shape, bytes.into()).map_err(named)
            }
            ConstData::File { file, offset, len } => {
                let all = file.bytes().map_err(named)?;
                let range = usize::try_from(*offset).ok().zip(usize::try_from(*len).ok());
                let range = range.and_then(|(o, l)| Some(o..o.checked_add(l)?)).filter(|r| r.end <= all.len());
                let range = range.ok_or_else(|| {
                    named(Diagnostic::new(
                        ErrorKind::Malformed,
                        format!(
                            "{} has {} bytes but bytes {offset}..+{len} are needed",
                            file.path.display(),
                            all.len()
                        ),
                    ))
                })?;
                Tensor::new(self.dtype, &self.shape, all.slice(range)).map_err(named)
            }
            ConstData::Strings(s) => Ok(Tensor::from_strings(&self.shape, s.to_vec())),
            ConstData::Digest(_) => Err(named(
                Diagnostic::new(ErrorKind::Argument, "only the digest of a constant is known, not its elements")
                    .help("print the text with a sidecar file, or start from the model"),
            )),
        }
    }
    /// The value when every element is the same, without reading large data: splats and single elements only.
    pub fn splat_f64(&self) -> Option<f64> {
        match &self.data {
            ConstData::Splat(_) => {
                let one = Const { shape: SmallVec::new(), ..self.clone() };
                Some(one.read().ok()?.view().f64_at(0))
            }
            _ if self.n_elems() == 1 && self.dtype != DType::String => Some(self.read().ok()?.view().f64_at(0)),
            _ => None,
        }
    }
}
