//! What generated code calls and what runs it: the C ABI, devices, pools, constants, run contexts, profiles.
//!
//! This crate builds without the compiler and without LLVM; it knows no graph. It reaches `reference` only through one table of host
//! ops. There is no thread-local state: what a run knows is in its context. In reading order: [`abi`] (the one function table that
//! generated code gets), [`model`] (code, metadata and constants put together), [`session`] (runs), [`io`] (inputs and outputs),
//! [`constants`] (weights, shared by content), [`device`] (where memory is and what runs kernels), [`team`] (threads), [`catalog`] and
//! [`host_ops`] (the two tables of what a model may call), [`profile`] (times and traces).
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

pub mod abi;
mod abi_doc;
pub mod bench;
pub mod catalog;
pub mod constants;
pub mod device;
mod device_tensor;
mod elf;
pub mod host_ops;
pub mod io;
pub mod machine;
pub mod model;
pub mod profile;
mod run;
pub mod session;
mod sharing;
mod table;
pub mod team;

pub use constants::{ConstantStore, ConstantsFrom};
pub use device::Device;
pub use device_tensor::DeviceTensor;
pub use io::{Collect, OutputAllocator, OutputBuffer, OutputRequest, RunInputs};
pub use model::{Code, Model, Services, open_shared_object};
pub use profile::{Counters, Profile, Report};
pub use session::{RunOptions, Session, SessionOptions};
pub use table::TABLE;
pub use team::Teams;
