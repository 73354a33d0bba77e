//! What generated code calls and what runs it: the C ABI, devices, pools, constants, run contexts, profiles.
//!
//! This crate builds without the compiler and without LLVM. It reaches `reference` only through one table of host ops. In reading
//! order: [`abi`] (the one function table that generated code gets).
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod abi;
