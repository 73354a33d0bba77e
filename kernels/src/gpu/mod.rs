//! Hand-written GPU kernels: what is known about each architecture, the kernels' source text and how each is launched. Sees no LLVM and
//! no driver.

pub mod arch;
pub mod catalog;
pub mod launch;
pub mod sources;

pub use arch::{Arch, MatrixUnit, Platform};
pub use catalog::{LaunchPlan, plan};
pub use launch::{Launch, Schedule};
