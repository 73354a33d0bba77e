//! GPUs, by HIP's functions: one table that a platform fills from the driver it finds when the process runs. Nothing is linked, and
//! vendors are named in the platforms' files only.
//!
//! [`probe()`] tells what there is; [`Hip::open`] opens a device. Work is queued on streams of its own and never on the default one.
//! Host memory is copied through pinned memory of the stream, so that copies neither wait nor read what the caller has changed
//! meanwhile. Memory that is freed while work is queued is kept until that work is done: each stream counts what was queued and what
//! is known to be done, so that this costs no event.

mod amd;
mod code;
mod device;
mod library;
mod nvidia;
mod platform;
mod probe;
mod rtc;
mod stream;
pub mod table;

pub use amd::ARCH_OFFSETS;
pub use device::Hip;
pub use library::Attempt;
pub use platform::Platform;
pub use probe::{DeviceInfo, Probed, doctor, probe, report};
pub use table::{Failure, Functions, Symbols, Table};

use device::Shared;
