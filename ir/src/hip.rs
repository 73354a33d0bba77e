//! The HIP dialect: buffers, views and kernel calls in destination-passing style.
//!
//! Values are buffers. `Alloc`, `Output`, `View` and constants define them; every other op reads some and writes others, in
//! the order of the graph. Each op names its backend. Extents are dims of the module; a `Readback` gives a symbol its value, and
//! so do `If` and `Loop`. A symbol is known from the node that defines it to the end of that node's region.
//!
//! Kernels read device and host-mapped buffers and write device buffers; the host writes host-mapped buffers (`StoreDims`) and
//! works on host and host-mapped ones. A host-mapped buffer is written once (in the body of a loop: once an iteration, after the
//! device is done with the last), so the host never waits before it writes; its bytes are not reused within a run. An absent operand of a `Call` is a null buffer. Scratch buffers come after the results.

use crate::graph::{Def, Dialect, Value};
use crate::nest::Nest;
use crate::op::OpId;
use crate::ty::Shape;
use rustc_hash::{FxHashMap, FxHashSet};
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
    /// Makes operand 1, a contiguous buffer, what operand 0, a contiguous graph input, holds: the elements of operand 0 at the same
    /// places, and 0 where operand 1 is longer along an axis. It never is shorter. Where the caller has given the same memory for both
    /// (see [`aliases`]) there is nothing to do.
    Carry,
    /// From here on operand 1, a contiguous buffer, may be in the memory of operand 0, a contiguous graph input of the same extents whose
    /// content is not needed any more. It does nothing but allow that.
    Reuse,
    /// Writes dims as integers to operand 0 (host-mapped, i32 or i64), row-major.
    StoreDims(Shape),
    /// Reads an integer element of operand 0 at run time and gives the symbol its value. A sync point.
    Readback {
        /// The symbol.
        sym: SymId,
        /// Row-major position of the element.
        index: u32,
        /// Greatest legal value; a larger one fails the run, and so does one below the symbol's `lo`.
        max: DimId,
    },
    /// Structured branch.
    ///
    /// Operands: the condition (one bool, read by the host: a sync point), then captures. Regions: then, else; the parameters of
    /// both are the captures, in order. Results: one per output of a region, contiguous.
    ///
    /// Every output of a region is a buffer that the region allocates itself (`Alloc`, each listed once), contiguous, of the dtype
    /// and space of the result. At the end of the region taken, the outputs are copied into the results, which are buffers of their
    /// own that live until their last use. A planner may lay an output and its result over each other instead.
    ///
    /// Result shapes are in terms of symbols known before the branch and of `dims`. Where a result's shape depends on `dims` its
    /// size is known only at the end of the region taken: it lives in a pool domain of its own, reserved there.
    If {
        /// Symbols that the branch defines: known after it, as the value of one or the other expression at the end of the region.
        dims: Vec<BranchDim>,
    },
    /// Structured loop.
    ///
    /// Operands: the condition before the first iteration (one bool, read by the host) or none, then the initial carried values
    /// (contiguous), then captures. Region 0: parameters are the carried values, then the captures. Its outputs are the condition for the next
    /// iteration (when `cond`), then the next carried values. Results: the carried values after the last iteration, contiguous.
    ///
    /// As with `If`, every carried output is a buffer that the body allocates itself, each listed once, contiguous; the condition may
    /// be any buffer of one bool. Each carried value has a state buffer: the initial operand is copied into it before the loop,
    /// the parameter is that buffer, the output is copied into it at the end of an iteration,
    /// and the result is that buffer. All outputs are complete before the first copy, so values may be swapped. Where the shape
    /// depends on `dims`, the state lives in a pool domain of its own, which is reserved again before each copy: its old content
    /// is dead by then.
    ///
    /// Scan outputs are captures: buffers of `trips` slices, of which iteration `iter` writes one through a view.
    Loop(Box<LoopOp>),
}

/// A symbol that [`HipOp::If`] defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BranchDim {
    /// The symbol.
    pub sym: SymId,
    /// Its value when region 0 was taken, over symbols known at the end of that region.
    pub then: DimId,
    /// Its value when region 1 was taken, over symbols known at the end of that region.
    pub els: DimId,
}

/// What a [`HipOp::Loop`] does besides its body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoopOp {
    /// Greatest number of iterations (a negative one means none); `None` runs until the condition is false.
    pub trips: Option<DimId>,
    /// Whether operand 0 and output 0 of the body are conditions; else operand 0 is absent and the outputs are the carried values.
    pub cond: bool,
    /// Number of carried values.
    pub n_carried: u32,
    /// The number of the iteration, from 0; known in the body.
    pub iter: SymId,
    /// Symbols that are the number of iterations run; known after the loop.
    pub counts: Vec<SymId>,
    /// Symbols of carried values' shapes.
    pub dims: Vec<LoopDim>,
}

/// A symbol whose value changes from one iteration of a [`HipOp::Loop`] to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoopDim {
    /// Known in the body.
    pub sym: SymId,
    /// Its value in the first iteration, over symbols known before the loop.
    pub init: DimId,
    /// Its value in the next iteration, over symbols known at the end of the body.
    pub next: DimId,
    /// The symbol that has its last value after the loop.
    pub result: Option<SymId>,
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

/// Inputs and outputs of a module that may be in the same memory: an input is carried into an output, or its memory reused for it, and
/// whatever else reads the input comes before, whatever else touches the output after.
pub fn aliases(m: &crate::graph::Module<Hip>) -> Vec<(u32, u32)> {
    let g = m.graph();
    let root = |mut v: Value| loop {
        match g.def_node(v) {
            Some(n) if matches!(n.op, HipOp::View { .. }) => match n.ins.first() {
                Some(Some(from)) => v = *from,
                _ => return v,
            },
            _ => return v,
        }
    };
    let mut pairs: Vec<Option<(u32, u32)>> = vec![];
    // By buffer: how often it is used before a carry, and which pair it is part of from then on.
    let (mut used, mut part) = (FxHashSet::default(), FxHashMap::<Value, usize>::default());
    for &n in &g.order {
        let node = &g.nodes[n];
        if matches!(node.op, HipOp::View { .. } | HipOp::Alloc | HipOp::Output(_)) {
            continue;
        }
        let mut touched: Vec<Value> = node.ins.iter().flatten().map(|&v| root(v)).collect();
        if let (HipOp::Carry | HipOp::Reuse, &[from, to]) = (&node.op, touched.as_slice()) {
            let output = g.def_node(to).and_then(|n| if let HipOp::Output(i) = n.op { Some(i) } else { None });
            if let (Def::Input(i), Some(o)) = (g.values[from].def, output)
                && !part.contains_key(&from)
                && !used.contains(&to)
            {
                part.insert(from, pairs.len());
                pairs.push(Some((i, o)));
                used.insert(to);
                touched.clear();
            }
        }
        for v in touched {
            used.insert(v);
            if let Some(&i) = part.get(&v) {
                pairs[i] = None;
            }
        }
    }
    pairs.into_iter().flatten().collect()
}

impl HipOp {
    /// Which backend runs it, as text form and `--explain` print it.
    pub fn backend(&self) -> &'static str {
        match self {
            HipOp::Launch(_) => "loops",
            HipOp::Call(_) => "kernel",
            HipOp::HostCall { .. } => "host",
            HipOp::Copy | HipOp::Carry => "copy",
            HipOp::If { .. } | HipOp::Loop(_) => "control",
            _ => "none",
        }
    }
}
