//! The container of a compiled model and its metadata. Stands above `tensor`, below `runtime` and `codegen`.
#![deny(missing_docs)]
