//! Host programs and loop nests to LLVM; artifacts; JIT; native libraries. The only crate that sees LLVM types.
#![deny(missing_docs)]
