//! The catalog of hand-written kernels and their CPU implementations.
//!
//! This crate knows no graph and no device handle. `lower` asks the catalog what a kernel accepts; `runtime` runs it. In reading
//! order: [`catalog`] (names, signatures, limits), [`team`] (how a kernel is spread over threads), `cpu` (implementations by tier),
//! [`gpu`] (architectures, sources and launches).
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod catalog;
pub mod cpu;
pub mod gpu;
pub mod team;
