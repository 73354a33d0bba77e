//! The typed-arena IR: an ONNX dialect, a HIP dialect in destination-passing style, and loop nests.
//!
//! `ir` knows no device, no LLVM and no e-graph. It reads and writes ONNX files ([`import`]) and the text form, and holds the
//! one static list of operator rows ([`ops`]); everything known about an operator is in its row.
//!
//! In reading order: [`Module`] and [`Graph`] (arenas of nodes and values, generic over [`Dialect`]), [`Type`],
//! [`attrs::Attrs`], [`consts::Const`], [`op::OpDef`] (a row), [`nest::Nest`] (loop nests), [`hip::HipOp`].
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod attrs;
pub mod cases;
pub mod consts;
pub mod expand;
pub mod export;
pub mod fuzz;
pub mod generate;
pub mod graph;
pub mod hip;
pub mod import;
pub mod infer;
pub mod interp;
pub mod lowering;
pub mod nest;
pub mod nest_eval;
pub mod op;
pub mod ops;
pub mod prune;
pub mod text;
pub mod ty;
pub mod verify;

pub use graph::{Dialect, Graph, Module, Node, NodeData, Onnx, Origin, RegionId, Value, ValueData};
pub use op::{OpDef, OpId, Registry};
pub use ty::{Shape, TensorType, Type};
