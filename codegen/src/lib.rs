//! Host programs and loop nests to LLVM; JIT; native libraries. The only crate that sees LLVM types.
//!
//! [`compile()`] turns a host program with its kernels into bitcode and objects. [`jit::load`] maps objects into this process,
//! [`native::link_shared`] makes a shared library of them that needs neither LLVM nor a linker. In reading order: [`emit`] (the builder),
//! [`math`] (transcendental functions), [`nest`] (kernels), [`host`] (orchestration), [`target`] (CPUs),
//! [`gpu`] (code for GPUs).
//!
//! Generated code has no undefined symbol: it calls the runtime through the function table that its `init` receives. It is the same for
//! equal input, whatever the number of compile threads.
#![deny(missing_docs)]

mod approx;
mod compile;
mod elf;
pub mod emit;
pub mod gpu;
pub mod host;
pub mod jit;
pub mod math;
pub mod native;
pub mod nest;
mod object;
mod orc;
mod scalar;
mod small;
pub mod target;
#[cfg(test)]
mod tests;
mod trig;

pub use compile::{Compiled, GpuCode, Options, compile, foreign_symbols, gpu_text, object_from_bitcode};
pub use host::frame_words;
pub use object::OptLevel;
pub use target::CpuTarget;
