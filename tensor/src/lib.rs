//! What every other crate stands on: element types, host tensors and views, symbolic dimensions, mapped files and
//! the one error type.
//!
//! This crate knows no operator, no graph and no device. `unsafe` is allowed in [`map`] alone (memory mapping).
//!
//! In reading order: [`DType`] (element types by ONNX number), [`Tensor`] and [`View`] (host data),
//! [`DimPool`] and [`DimId`] (symbolic extents), [`Diagnostic`] (what, where, what to do).
//!
//! ```
//! use tensor::{DType, Tensor};
//! let t = Tensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
//! assert_eq!((t.dtype(), t.view().f64_at(3)), (DType::F32, 4.0));
//! ```
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod clock;
pub mod compare;
mod diagnostic;
pub mod dims;
mod dtype;
mod dtype_small;
mod entity;
mod host;
pub mod map;
pub mod npy;
pub mod onnx_pb;
pub mod pb;
mod seeded;

pub use diagnostic::{Diagnostic, ErrorKind, Result};
pub use dims::{DimId, DimPool, SymId};
pub use dtype::DType;
pub use entity::{Entity, PrimaryMap, SecondaryMap};
pub use host::{Tensor, View, Writer};
pub use seeded::Seeded;
