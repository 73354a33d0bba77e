//! The meaning of each operator: plain functions over host tensors, sums in f64. Nothing fast, nothing clever.
//!
//! This crate knows no graph, no attribute list and no device: functions take tensors and plain parameters.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod activation;
pub mod attention;
pub mod cast;
pub mod conv;
pub mod crop;
pub mod data;
pub mod einsum;
pub mod elementwise;
pub mod grid;
pub mod grouped;
pub mod heads;
pub mod image;
pub mod linear_attention;
pub mod loss;
pub mod math;
pub mod matmul;
pub mod moe;
pub mod movement;
pub mod nms;
pub mod norm;
pub mod packed;
pub mod qlstm;
pub mod quant;
pub mod random;
pub mod recurrence;
pub mod reduce;
pub mod resize;
pub mod signal;
pub mod sort;
pub mod training;
pub mod words;
