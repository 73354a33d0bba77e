//! Tests that run generated code.

mod host;
mod kit;
mod math;
mod nests;
