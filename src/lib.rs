//! An ONNX compiler and runtime for AMD GPUs, NVIDIA GPUs and CPUs, hand-written in Rust, without MLIR.
//!
//! [`Compiler`] turns a model into a [`CompiledModel`], which can be saved, loaded in another process, and opened as a [`Session`]
//! (`Send + Sync`, any number of runs at once). One compile serves every shape that the model's symbolic dims allow.
//!
//! ```no_run
//! use hip_ep::{CompiledModel, Compiler, DeviceKind, RunInputs, Tensor};
//! # fn main() -> hip_ep::Result<()> {
//! Compiler::new().compile_path("model.onnx")?.save("model.hipep")?;
//! let session = CompiledModel::load("model.hipep")?.session(DeviceKind::Cpu, Default::default())?;
//! let x = Tensor::from_f32(&[1, 4], &[1.0, 2.0, 3.0, 4.0]);
//! let (outputs, report) = session.collect(&RunInputs::in_order(&[x]), &Default::default())?;
//! let counts = report.counters;
//! println!("{outputs:?}, {} generated kernels, {} of the catalog", counts.launches, counts.kernel_calls);
//! # Ok(())
//! # }
//! ```
//!
//! - **Inputs** go by position or by name ([`RunInputs`]); **outputs** come as tensors, or go to memory of the caller's ([`OutputAllocator`]).
//! - **Devices**: [`CompileOptions::targets`] says what code an artifact holds ([`Target`]), [`DeviceKind`] where a session runs; [`doctor`]
//!   tells which GPUs there are.
//! - **Operators of your own** need no fork: give their rows to `ir::Registry::with_rows` beside the built-in ones, read the model with
//!   that registry (`ir::import`, `ir::text`), and compile the module with [`Compiler::compile_with`], which takes passes of your own, too
//!   ([`Hooks`]).
//! - **Features**: `llvm` compiles; without it shared objects still load and run. `tools` is what only the five programs need.
//!
//! This crate holds no algorithm: import and IR are in `ir`, the e-graph in `rewrite`, lowering and planning in `lower`, LLVM in
//! `codegen`, devices in `runtime`; they are re-exported here under their names. Errors are [`Diagnostic`]s. Libraries log through
//! `tracing`, never print and never exit.
#![deny(missing_docs, clippy::print_stdout)]
#![deny(unsafe_code)]

mod compiler;
pub mod doc;
#[cfg_attr(not(feature = "llvm"), allow(dead_code, unused_imports))] // reached through code generation only
mod emit;
mod model;
mod options;
#[cfg(feature = "tools")]
pub mod tool;

pub use compiler::Compiler;
pub use model::{CompiledModel, DeviceKind};
pub use options::{CompileOptions, Constants, OPTIONS, Target};

#[doc(inline)]
pub use lower::pass::{Hooks, Lowered};
#[doc(inline)]
pub use runtime::device::hip::doctor;
#[doc(inline)]
pub use runtime::{
    Collect, DeviceTensor, OutputAllocator, OutputBuffer, OutputRequest, RunInputs, RunOptions, Session, SessionOptions,
};
#[doc(inline)]
pub use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

pub use artifact;
#[cfg(feature = "llvm")]
pub use codegen;
pub use ir;
pub use lower;
pub use rewrite;
pub use runtime;
pub use tensor;
