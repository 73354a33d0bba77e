//! Import: a model becomes a [`Module`] of the ONNX dialect.
//!
//! The builder ([`build`]) reads any [`ModelSource`]; ONNX's protobuf is one. No weight is copied: constants are slices of
//! the mapped file or ranges of external files. A file is hostile input: its structure is checked before it is decoded, sizes
//! and depths have limits, external data must lie in the model's directory.
//!
//! What is not supported is reported in one error for the whole model: operators, operator sets, attributes.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

// These index by keys and positions that they handed out themselves.
#[allow(clippy::indexing_slicing)]
mod build;
mod external;
#[allow(clippy::indexing_slicing)]
mod order;
mod problems;
mod proto;
mod scan;
pub mod source;
mod versions;

pub use build::build;
pub use external::Files;
pub use proto::ProtoModel;

use crate::graph::{Module, Onnx};
use crate::op::Registry;
use bytes::Bytes;
use prost::Message;
use source::ModelSource;
use std::path::Path;
use std::sync::Arc;
use tensor::onnx_pb::ModelProto;
use tensor::{Diagnostic, ErrorKind, Result};

/// An imported model.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The module.
    pub module: Module<Onnx>,
    /// What was decided on the way: inputs kept as constants.
    pub notes: Vec<String>,
}

/// Imports a model file. External data is looked for in its directory.
///
/// # Errors
/// `Io` when a file cannot be read; `Malformed`, `Limit` or `Unsupported` with the node when the model cannot be compiled.
pub fn import_path(path: &Path, registry: &Arc<Registry>) -> Result<Module<Onnx>> {
    Ok(import_file(path, registry)?.module)
}

/// [`import_path`] with its notes.
///
/// # Errors
/// As [`import_path`].
pub fn import_file(path: &Path, registry: &Arc<Registry>) -> Result<Imported> {
    let bytes = tensor::map::map_file(path)?;
    let files = Files::new(Some(path.parent().unwrap_or(Path::new(""))), Some(path));
    import(bytes, &files, registry).map_err(|e| e.note("file", path.display().to_string()))
}

/// Imports a model in memory. External data is looked for in `base`.
///
/// # Errors
/// As [`import_path`].
pub fn import_bytes(bytes: Bytes, base: Option<&Path>, registry: &Arc<Registry>) -> Result<Module<Onnx>> {
    Ok(import(bytes, &Files::new(base, None), registry)?.module)
}

fn import(bytes: Bytes, files: &Files, registry: &Arc<Registry>) -> Result<Imported> {
    known_format(&bytes)?;
    scan::check(&bytes)?;
    let model = ModelProto::decode(bytes)
        .map_err(|e| Diagnostic::new(ErrorKind::Malformed, format!("not an ONNX model, or a damaged one: {e}")))?;
    import_proto(&model, files, registry)
}

/// Imports a decoded model.
///
/// # Errors
/// As [`import_path`].
pub fn import_proto(model: &ModelProto, files: &Files, registry: &Arc<Registry>) -> Result<Imported> {
    let Some(graph) = &model.graph else {
        return Err(Diagnostic::new(ErrorKind::Malformed, "not an ONNX model: it has no graph"));
    };
    let source: &dyn ModelSource = &ProtoModel { model, graph, files };
    let (module, notes) = build(source, registry)?;
    Ok(Imported { module, notes })
}

/// Refuses what is recognisably something else, by its first bytes.
fn known_format(bytes: &[u8]) -> Result<()> {
    const FORMATS: &[(&[u8], &str, &str)] = &[
        (b"PK\x03\x04", "a zip archive", "unpack it; a PyTorch checkpoint must be exported with torch.onnx.export"),
        (b"\x89HDF", "an HDF5 file", "convert it with tf2onnx"),
        (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself with `git lfs pull`"),
        (b"GGUF", "a GGUF file", "export the model to ONNX"),
        (b"\x80\x02", "a Python pickle", "export the model with torch.onnx.export"),
        (b"\x1f\x8b", "a gzip archive", "unpack it"),
        (b"\x89HEP\r\n", "a compiled model", "run it with hip-test, look inside with hip-inspect"),
        (b"\x89HEPCST", "the constants file of a compiled model", "give the .hipep or .so file beside it to hip-test"),
        (b"\x7fELF", "a program or shared object", "a model that was compiled to a shared object runs with hip-test"),
        (b"<", "a text file", "download the model file itself, not its web page"),
        (b"{", "a text file", "download the model file itself"),
    ];
    if bytes.is_empty() {
        let e = Diagnostic::new(ErrorKind::Malformed, "not an ONNX model: the file is empty");
        return Err(e.help("copy or download it again"));
    }
    let tflite = bytes.get(4..8) == Some(b"TFL3");
    let found = FORMATS.iter().find(|(magic, ..)| bytes.starts_with(magic)).map(|&(_, what, help)| (what, help));
    match found.or(tflite.then_some(("a TensorFlow Lite file", "convert it with tf2onnx --tflite"))) {
        Some((what, help)) => {
            Err(Diagnostic::new(ErrorKind::Malformed, format!("not an ONNX model but {what}")).help(help))
        }
        None => Ok(()),
    }
}
