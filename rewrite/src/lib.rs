//! E-graph rewriting of the ONNX dialect: rules in tables, analyses, DAG-aware extraction; and shape refinement.
//!
//! [`rewrite`] takes a module whose types are inferred and gives one that means the same with fewer and larger operators:
//! constants folded, identities gone, exporters' idioms (GELU, LayerNormalization, attention, convolution with batch
//! normalization) as one node each. Graph outputs keep name, dtype and shape. This crate knows no device: a target is a
//! [`CostModel`]. It never changes meaning: each rule states its numeric class and is tested through the interpreter
//! ([`check::check_rule`]).
//!
//! In reading order: [`rules`] (the tables, one file per algebra), [`rule::Rule`] (an equation with conditions),
//! [`pattern`] (the syntax), [`lang::ENode`] and [`facts::Data`] (the e-graph and what is known about its classes),
//! [`saturate`](mod@saturate), [`extract`](mod@extract), [`Report`]; [`refine`](mod@refine) for extents.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod check;
pub mod cost;
pub mod extract;
pub mod facts;
mod fold;
pub mod fuzz;
pub mod lang;
pub mod pattern;
pub mod refine;
mod region;
pub mod report;
pub mod rule;
pub mod rules;
pub mod saturate;

mod options;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use cost::CostModel;
pub use fold::FOLD_BYTES;
pub use options::{Options, rewrite};
pub use refine::{prune_guards, refine};
pub use report::Report;
