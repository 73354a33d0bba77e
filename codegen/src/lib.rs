//! Host programs and loop nests to LLVM; JIT; native libraries. The only crate that sees LLVM types.
#![deny(missing_docs)]

pub mod emit;
pub mod math;
pub mod nest;
mod object;
mod orc;
mod scalar;
pub mod target;
#[cfg(test)]
mod tests;
mod trig;

pub use object::OptLevel;
