//! The HIP dialect: buffers, views and kernel calls in destination-passing style.
//!
//! Values are buffers. `Alloc`, `Output`, `View` and constants define them; every other op reads some and writes others, in
//! the order of the graph. Each op names its backend. Extents are dims of the module; a `Readback` gives a symbol its value.

use crate::graph::Dialect;
use crate::nest::Nest;
use crate::op::OpId;
use crate::ty::Shape;
use std::sync::Arc;
use tensor::{DType, DimId, SymId};

/// The HIP dialect.
#[derive(Clone, Debug)]
pub struct Hip;

impl Dialect for Hip {
    type Op = HipOp;
    type Ty = HipType;
}

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Memory of the device; host code may not touch it.
    Device,
    /// Ordinary host memory; kernels may not touch it.
    Host,
    /// Host memory that kernels may read: shape scalars.
    HostMapped,
}

/// How the elements of a constant or buffer lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// By the strides of the type.
    Strided,
    /// Packed for the GEMM micro-kernel of a tier: opaque to everything else.
    Packed,
}

/// The type of a buffer or view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HipType {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
    /// Strides in elements; 0 repeats.
    pub strides: Shape,
    /// Layout.
    pub layout: Layout,
    /// Memory space.
    pub space: Space,
}

/// What a node of the HIP dialect does. Nodes with reads and writes have operands `reads ++ writes` and no results.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HipOp {
    /// Defines a buffer that lives until its last use; contiguous.
    Alloc,
    /// Defines the buffer of graph output `i`, got from the caller once its shape is known; contiguous.
    Output(u32),
    /// Hands operand 0 out as graph output `i`: an input passed through, or a value that is several outputs. The runtime
    /// copies it into the caller's buffer for that output.
    PassOutput(u32),
    /// Another shape and strides over operand 0's bytes, from an element offset. Costs nothing.
    View {
        /// First element, relative to operand 0's first.
        offset: DimId,
    },
    /// Runs a loop nest. Operands in the nest's order.
    Launch(Arc<Nest>),
    /// Calls a kernel of the catalog.
    Call(Arc<Call>),
    /// Calls a host op (its reference function) on host copies.
    HostCall {
        /// The operator.
        op: OpId,
        /// Operands that are read; the rest are written.
        n_reads: u32,
    },
    /// Copies operand 0 to operand 1, of the same shape and dtype, between spaces or layouts.
    Copy,
    /// Writes dims as integers to operand 0 (host-mapped, i32 or i64), row-major.
    StoreDims(Shape),
    /// Reads an integer element of operand 0 at run time and gives the symbol its value. A sync point.
    Readback {
        /// The symbol.
        sym: SymId,
        /// Row-major position of the element.
        index: u32,
        /// Greatest legal value; a larger or negative one fails the run.
        max: DimId,
    },
    /// Structured branch: operand 0 is the condition, regions 0 and 1 write the same destination operands.
    If,
    /// Structured loop; see `docs/IR.md`.
    Loop,
}

/// A call of a catalog kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Its name in the catalog.
    pub kernel: &'static str,
    /// Operands that are read; the rest are written.
    pub n_reads: u32,
    /// Integer arguments, in the order of the kernel's signature.
    pub ints: Vec<DimId>,
    /// Scalar arguments (bits of f64), in the order of the kernel's signature.
    pub scalars: Vec<u64>,
}

impl HipOp {
    /// Which backend runs it, as text form and `--explain` print it.
    pub fn backend(&self) -> &'static str {
        match self {
            HipOp::Launch(_) => "loops",
            HipOp::Call(_) => "kernel",
            HipOp::HostCall { .. } => "host",
            HipOp::Copy => "copy",
            HipOp::If | HipOp::Loop => "control",
            _ => "none",
        }
    }
}
