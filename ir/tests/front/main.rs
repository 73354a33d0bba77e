//! Import, export, text form and verifier, against models built here.

mod errors;
mod export;
mod fuzz;
mod import;
mod model;
mod text;
mod verify;
