//! External data: files beside the model, confined to its directory, mapped when first read.

use crate::consts::{ConstData, ExternalFile};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tensor::onnx_pb::TensorProto;
use tensor::{DType, Diagnostic, ErrorKind, Result};

/// Where a model may read data from, and the files it has named so far.
pub struct Files {
    /// The model's directory; none for a model in memory.
    base: Option<PathBuf>,
    /// Directories that a file may really lie in: the model's, and the one a linked model file really lies in (model caches
    /// link both the model and its data into one folder).
    roots: Vec<PathBuf>,
    open: RefCell<BTreeMap<String, (Arc<ExternalFile>, u64)>>,
}

impl Files {
    /// Files beside a model: `base` is its directory, `model` the model file itself when there is one.
    pub fn new(base: Option<&Path>, model: Option<&Path>) -> Files {
        let real = |p: &Path| if p.as_os_str().is_empty() { Path::new(".").canonicalize() } else { p.canonicalize() };
        let beside = model.and_then(|m| m.canonicalize().ok()).and_then(|m| m.parent().map(Path::to_path_buf));
        let roots = base.and_then(|b| real(b).ok()).into_iter().chain(beside).collect();
        Files { base: base.map(Path::to_path_buf), roots, open: RefCell::default() }
    }

    /// The range of a file that holds a tensor's elements.
    ///
    /// # Errors
    /// `Malformed` when location, offset or length are wrong or outside the file, `Io` when the file is missing, `Argument` when
    /// the model has no directory.
    pub(super) fn external(&self, t: &TensorProto, dtype: DType, shape: &[usize]) -> Result<ConstData> {
        let named = |kind, what: String| Diagnostic::new(kind, format!("tensor {:?} {what}", t.name));
        let bad = |what: String| named(ErrorKind::Malformed, what);
        let get = |key: &str| t.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        let number = |key: &str| -> Result<Option<u64>> {
            let parse = |v: &str| {
                v.parse().map_err(|_| bad(format!("has {key} {v:?} in its external data; a byte count is needed")))
            };
            get(key).map(parse).transpose()
        };
        let n: usize = shape.iter().product();
        let need = dtype.size_bytes(n).and_then(|b| u64::try_from(b).ok());
        let need = need.ok_or_else(|| bad(format!("of type {dtype} cannot be stored externally")))?;
        let location = get("location").filter(|l| !l.is_empty());
        let location = location.ok_or_else(|| bad("is external but names no location".into()))?;
        let offset = number("offset")?.unwrap_or(0);
        let len = number("length")?.unwrap_or(need);
        if len != need {
            return Err(bad(format!("is {dtype}{shape:?} and takes {need} bytes but its external data has {len}")));
        }
        let (file, size) = self.file(t, location)?;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(bad(format!("needs {len} bytes at offset {offset} of {location:?}, which has {size} bytes"))
                .help("the data file is truncated or belongs to another model"));
        }
        Ok(ConstData::File { file, offset, len })
    }

    fn file(&self, t: &TensorProto, location: &str) -> Result<(Arc<ExternalFile>, u64)> {
        if let Some(known) = self.open.borrow().get(location) {
            return Ok(known.clone());
        }
        let fail = |kind, what: String| Diagnostic::new(kind, format!("tensor {:?} {what}", t.name));
        let base = self.base.as_ref().ok_or_else(|| {
            fail(
                ErrorKind::Argument,
                format!("keeps its data in {location:?}, but the model was given without a directory"),
            )
            .help("import it from its file, or pass the directory")
        })?;
        let outside = || {
            fail(ErrorKind::Malformed, format!("keeps its data in {location:?}, outside the model's directory"))
                .help("external data must lie in the model's directory or below it")
        };
        let relative = Path::new(location);
        if !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
            return Err(outside());
        }
        let path = base.join(relative);
        let size = std::fs::metadata(&path).map_err(|e| {
            fail(ErrorKind::Io, format!("keeps its data in {location:?}, which cannot be read: {e}"))
                .help("copy the data file next to the model")
        })?;
        if !size.is_file() {
            return Err(fail(ErrorKind::Io, format!("keeps its data in {location:?}, which is not a file")));
        }
        let real =
            path.canonicalize().map_err(|e| fail(ErrorKind::Io, format!("keeps its data in {location:?}: {e}")))?;
        if !self.roots.iter().any(|r| real.starts_with(r)) {
            return Err(outside());
        }
        let known = (Arc::new(ExternalFile::new(path)), size.len());
        self.open.borrow_mut().insert(location.into(), known.clone());
        Ok(known)
    }
}
