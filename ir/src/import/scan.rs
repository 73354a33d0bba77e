//! A walk over the wire format before decoding: finds where a file is cut off and bounds what decoding it will take.

use tensor::{Diagnostic, ErrorKind, Result};

/// Greatest memory that the decoded messages of a model may take, weights in raw form excluded.
const MAX_DECODED_BYTES: u64 = 1 << 30;
/// Greatest nesting of messages.
const MAX_DEPTH: u32 = 90;

/// The messages that nest or repeat without bound.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    ValueInfo,
    Function,
    Type,
    Sequence,
    Map,
    TensorType,
    Shape,
    Sparse,
    /// A message whose fields are plain.
    Leaf,
    /// A string.
    Text,
    /// Numbers, one or packed, each of at most this many bytes once decoded.
    Numbers,
    /// Bytes that decoding shares.
    Shared,
}

/// What a length-delimited field holds.
fn child(parent: Kind, field: u64) -> Kind {
    use Kind::*;
    match (parent, field) {
        (Model, 7) | (Attribute, 6 | 11) => Graph,
        (Model, 25) => Function,
        (Model, 8 | 14) | (Function, 9) | (Graph, 16) | (Node, 9) | (Tensor, 13) => Leaf,
        (Graph, 1) | (Function, 7) => Node,
        (Graph, 5) | (Attribute, 5 | 10) | (Sparse, 1 | 2) => Tensor,
        (Graph, 11..=13) | (Function, 12) => ValueInfo,
        (Graph, 15) | (Attribute, 22 | 23) => Sparse,
        (Node, 5) | (Function, 11) => Attribute,
        (Attribute, 14 | 15) | (ValueInfo, 2) | (Sequence, 1) | (Map, 2) => Type,
        (Type, 1 | 8) => TensorType,
        (Type, 4 | 9) => Sequence,
        (Type, 5) => Map,
        (TensorType, 2) => Shape,
        (Shape, 1) => Leaf,
        (Tensor, 1 | 4 | 5 | 7 | 10 | 11) | (Attribute, 7 | 8) | (Sparse, 3) => Numbers,
        (Tensor, 6 | 9) | (Attribute, 4 | 9) => Shared,
        (Model | Graph | Node | Attribute | Tensor | ValueInfo | Function | Leaf, _) => Text,
        _ => Shared,
    }
}

/// Bytes of the struct that a message of this kind becomes, with its share of the list that holds it.
fn cost(kind: Kind) -> u64 {
    use std::mem::size_of;
    use tensor::onnx_pb as pb;
    let size = match kind {
        Kind::Model => size_of::<pb::ModelProto>(),
        Kind::Graph => size_of::<pb::GraphProto>(),
        Kind::Node => size_of::<pb::NodeProto>(),
        Kind::Attribute => size_of::<pb::AttributeProto>(),
        Kind::Tensor => size_of::<pb::TensorProto>(),
        Kind::ValueInfo => size_of::<pb::ValueInfoProto>(),
        Kind::Function => size_of::<pb::FunctionProto>(),
        Kind::Type | Kind::Sequence | Kind::Map | Kind::TensorType | Kind::Shape => size_of::<pb::TypeProto>(),
        Kind::Sparse => size_of::<pb::SparseTensorProto>(),
        Kind::Leaf => size_of::<pb::StringStringEntryProto>(),
        Kind::Text | Kind::Shared => 32,
        Kind::Numbers => 0,
    };
    u64::try_from(size).unwrap_or(u64::MAX)
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    decoded: u64,
}

/// Checks that `bytes` is a well-formed sequence of fields down to the tensors, and small enough once decoded.
///
/// # Errors
/// `Malformed` with the offset of the first broken field, `Limit` when decoding would take more than the build allows.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let mut s = Scan { bytes, at: 0, decoded: 0 };
    s.message(Kind::Model, bytes.len(), 0)
}

impl Scan<'_> {
    fn broken(&self, at: usize, what: String) -> Diagnostic {
        Diagnostic::new(ErrorKind::Malformed, format!("not an ONNX model, or a damaged one: {what} at byte {at}"))
    }
    fn varint(&mut self, end: usize) -> Result<u64> {
        let start = self.at;
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let Some(&b) = self.bytes.get(self.at).filter(|_| self.at < end) else {
                return Err(self.broken(start, "the file ends inside a number".into()));
            };
            self.at += 1;
            v |= u64::from(b & 0x7f) << shift;
            if b < 0x80 {
                return Ok(v);
            }
        }
        Err(self.broken(start, "a number has more than ten bytes".into()))
    }
    fn message(&mut self, kind: Kind, end: usize, depth: u32) -> Result<()> {
        if depth > MAX_DEPTH {
            let e = format!("the model nests messages more than {MAX_DEPTH} deep");
            return Err(Diagnostic::new(ErrorKind::Limit, e).note("at", format!("byte {}", self.at)));
        }
        self.spend(cost(kind))?;
        while self.at < end {
            let start = self.at;
            let tag = self.varint(end)?;
            let (field, wire) = (tag >> 3, tag & 7);
            let skip = match wire {
                0 => {
                    self.varint(end)?;
                    self.spend(if child(kind, field) == Kind::Numbers { 8 } else { 0 })?;
                    0
                }
                1 => 8,
                5 => 4,
                2 => {
                    let len = self.varint(end)?;
                    usize::try_from(len).unwrap_or(usize::MAX)
                }
                w => {
                    return Err(self
                        .broken(start, format!("field {field} has wire type {w}"))
                        .help("is this file an ONNX model? If it is, copy or download it again"));
                }
            };
            let Some(stop) = self.at.checked_add(skip).filter(|&s| s <= end) else {
                let have = end - self.at;
                let e = self.broken(start, format!("field {field} needs {skip} bytes but {have} are left"));
                return Err(if end == self.bytes.len() {
                    e.help("the file is truncated; copy or download it again")
                } else {
                    e
                });
            };
            if wire == 2 {
                let size = u64::try_from(skip).unwrap_or(u64::MAX);
                match child(kind, field) {
                    // A varint of one byte becomes eight; floats and doubles keep their size.
                    Kind::Numbers if kind == Kind::Tensor && matches!(field, 4 | 10) => self.spend(size)?,
                    Kind::Numbers => self.spend(size.saturating_mul(8))?,
                    Kind::Text => self.spend(size.saturating_add(32))?,
                    Kind::Shared => self.spend(32)?,
                    k => {
                        self.message(k, stop, depth + 1)?;
                        continue;
                    }
                }
            }
            self.at = stop;
        }
        Ok(())
    }
    fn spend(&mut self, n: u64) -> Result<()> {
        self.decoded = self.decoded.saturating_add(n);
        if self.decoded > MAX_DECODED_BYTES {
            let e = format!("the model's messages take more than {MAX_DECODED_BYTES} bytes once decoded");
            return Err(
                Diagnostic::new(ErrorKind::Limit, e).help("keep large tensors in raw_data or in an external file")
            );
        }
        Ok(())
    }
}
