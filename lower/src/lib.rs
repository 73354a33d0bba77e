//! ONNX dialect to HIP dialect, fusion into loop nests, memory planning, host program.
//!
//! This crate knows the catalog of kernels but runs none, and sees no LLVM. Every pass is a function from IR to IR; the list of
//! passes is one file. In reading order: [`host`] (what code generation takes).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod bytes;
mod collapse;
mod dead;
pub mod explain;
mod fuse;
pub mod hip_interp;
pub mod host;
pub mod host_interp;

pub mod plan;
mod plan_inplace;
mod plan_live;
mod plan_offsets;
mod plan_pack;
mod plan_scan;

#[cfg(test)]
mod lower_tests;
#[cfg(test)]
mod packed_tests;
#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod program_tests;
#[cfg(test)]
mod step_tests;

pub mod program;
mod program_control;
mod program_kernels;
mod program_print;
mod program_regs;

pub mod check;
pub mod fuzz;
pub mod nests;
pub mod pass;
mod to_hip;
pub mod views;

pub use check::check_plan;
pub use explain::Explain;
pub use fuse::{Cost, FuseReport, fuse};
pub use pass::{Hooks, Lowered, compile};
pub use plan::{Plan, plan};
pub use program::host_program;
pub use to_hip::{Options, to_hip};
