//! Memory planning. See `docs/memory-planning.md`.

pub use crate::plan_offsets::{OffsetExpr, OffsetId, OffsetPool};
pub use crate::plan_pack::{Interval, Layout, Packing, Sample, pack};
use tensor::{Diagnostic, ErrorKind};

/// Every buffer starts at a multiple of this many bytes and takes a multiple of them.
pub const ALIGN: i64 = 256;

pub(crate) fn too_large(a: i64, b: i64) -> Diagnostic {
    Diagnostic::new(ErrorKind::Limit, format!("a buffer or pool of {a} + {b} bytes is beyond 64 bits"))
        .help("check the extents of the model")
}
