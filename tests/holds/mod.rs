//! One module per promise.

mod almost;
mod bitcode;
mod branches;
mod caches;
mod cases;
mod constants;
mod detection;
mod determinism;
mod docs;
mod empty;
mod errors;
mod gpu;
mod growth;
pub mod kit;
mod memory;
mod mutants;
mod operands;
mod outputs;
mod pools;
mod random;
mod run_time;
mod sabotage;
mod scale;
mod spellings;
mod targets;
mod tools;
