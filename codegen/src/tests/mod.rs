//! Tests that run generated code.

mod kit;
mod math;
