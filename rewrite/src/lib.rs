//! E-graph rewriting of the ONNX dialect: rules in tables, analyses, DAG-aware extraction.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
