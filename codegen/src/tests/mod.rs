//! Tests that run generated code.
#![allow(clippy::approx_constant, clippy::too_many_arguments, clippy::if_same_then_else)] // arguments of functions under test

mod gpu;
mod gpu_nests;
mod host;
mod kit;
mod math;
mod nests;
