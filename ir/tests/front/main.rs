//! Import, export, text form and verifier, against models built here.

mod errors;
mod import;
mod model;
mod text;
mod verify;
