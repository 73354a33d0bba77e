//! The container of a compiled model: header, sections, metadata, and the constants file beside it.
//!
//! Stands above `tensor`, below `runtime` and `codegen`; knows no IR, no LLVM and no device. Everything it reads is treated as
//! hostile: a damaged file gives an error, never a panic, and takes bounded memory. In reading order: [`metadata`] (what a compiled
//! model says about itself), [`container`] (the file), [`constants`] (the weights beside it), [`gpu`] (code for GPUs in a
//! native library), [`fuzz`] (the fuzzing entry).
//!
//! ```
//! use artifact::{Artifact, Builder, Kind, Metadata};
//! let mut b = Builder::new(Metadata { compiler_version: "0.1.0".into(), ..Metadata::new() });
//! b.section(Kind::HostBitcode, "", b"BC".to_vec());
//! let bytes = b.finish()?;
//! let a = Artifact::from_bytes(bytes.into())?;
//! assert_eq!(a.metadata().compiler_version, "0.1.0");
//! assert_eq!(a.section(Kind::HostBitcode, "").as_deref(), Some(&b"BC"[..]));
//! assert!(Artifact::from_bytes(vec![0; 64].into()).is_err());
//! # Ok::<(), tensor::Diagnostic>(())
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]
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

pub mod constants;
pub mod container;
pub mod fuzz;
pub mod gpu;
pub mod metadata;

pub use constants::{ConstantsWriter, constants_path, external, lock_folder, seeded, splat, write_beside};
pub use container::{Artifact, Builder, Kind};
pub use metadata::{
    Alias, Constant, ConstantsFile, Count, DebugNode, Domain, ExternalRange, GpuLaunch, Kernel, Metadata, Port, Source,
    Symbol, Target,
};
