//! What a row says about running its operator: candidates in order of preference, as plain data that `lower` interprets.

use crate::attrs::Attrs;
use crate::consts::{Const, ConstId};
use crate::nest::{Access, Axis, Coord, Expr, ExprId, Nest, NestOperand, Phase, Term};
use crate::ty::Shape;
use smallvec::SmallVec;
use tensor::dims::{Origin, Proof};
use tensor::{DType, DimId, DimPool, PrimaryMap};

/// Why a candidate cannot take a node; printed by `--explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl<S: Into<String>> From<S> for Refusal {
    fn from(s: S) -> Self {
        Refusal(s.into())
    }
}

/// A candidate accepts with a plan or refuses with a reason.
pub type Plan<T> = Result<T, Refusal>;

/// See [`Candidate::Pointwise`].
pub type PointwiseFn = fn(&mut NodeCtx, &mut Nest, &[Option<ExprId>]) -> Plan<SmallVec<[ExprId; 1]>>;

/// One way to run an operator.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Candidate {
    /// The result is operand 0 seen differently; no bytes move. Where the operand's strides do not allow it, `lower` copies.
    View(fn(&mut NodeCtx) -> Plan<ViewOp>),
    /// Each result element depends on the operand elements at the same (broadcast) position. `args[i]` is operand `i`'s element in
    /// its compute type; absent operands are `None`. Returns one expression per result, each in the compute type of its dtype.
    Pointwise(PointwiseFn),
    /// A whole loop nest. Operands of the nest: present operands of the node in order, then results; all contiguous row-major
    /// (`lower` puts actual strides in afterwards).
    Loops(fn(&mut NodeCtx) -> Plan<Nest>),
    /// The result is operand 0 with some elements replaced, for a cache that the caller may hold in one place: the result begins as operand
    /// 0, with zeros where it is longer, and the nest stores what is new. The nest's operands are those of [`Candidate::Loops`]; it does not
    /// load operand 0, and of the result only elements that the same point then stores. A nest that stores all elements needs no such
    /// beginning.
    Update(fn(&mut NodeCtx) -> Plan<Nest>),
    /// The operands laid side by side in the result: one destination view of the result per operand.
    Assemble(fn(&mut NodeCtx) -> Plan<Vec<Part>>),
    /// A kernel of the catalog.
    Kernel(fn(&mut NodeCtx) -> Plan<CallSpec>),
    /// Other operators in its place: see [`crate::expand`]. It is the only candidate of its row.
    Expand(crate::expand::ExpandFn),
    /// Control flow: `lower` builds regions.
    Regions,
    /// The reference function, on host copies. Only for ops that need no speed.
    Host,
}

/// What a candidate may ask about its node.
pub struct NodeCtx<'a> {
    /// Extents.
    pub dims: &'a mut DimPool,
    /// The node's attributes.
    pub attrs: &'a Attrs,
    /// Operands; `None` where absent.
    pub ins: &'a [Option<Operand>],
    /// Results.
    pub outs: &'a [Operand],
    /// Constants of the module.
    pub consts: &'a PrimaryMap<ConstId, Const>,
    /// Numbers of iterations of the loops around the node, each with the trip count that it stays below.
    pub below: &'a [(DimId, DimId)],
}

/// Type and knowledge of an operand or result.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
    /// Its elements as dims when it is a small integer tensor whose elements are known symbolically; row-major.
    pub values: Option<Shape>,
    /// The constant behind it.
    pub konst: Option<ConstId>,
}

impl NodeCtx<'_> {
    /// Operand `i`, or a refusal that says it is missing.
    pub fn need(&self, i: usize) -> Plan<Operand> {
        self.ins.get(i).cloned().flatten().ok_or_else(|| Refusal(format!("operand {i} is missing")))
    }
    /// `index` as one that counts from the axis' beginning, where the host knows it and that it names one of the axis' `extent` elements.
    pub fn inside(&mut self, index: DimId, extent: DimId) -> Option<DimId> {
        let from_host = |s| matches!(self.dims.sym(s).origin, Origin::Input { .. } | Origin::Region);
        if !self.dims.symbols_of(index).into_iter().all(from_host) {
            return None;
        }
        let place = match self.dims.range(index) {
            (0.., _) => index,
            (_, ..=-1) => self.dims.add(index, extent),
            _ => return None,
        };
        if self.below.iter().any(|&(number, trips)| number == place && self.dims.prove_le(trips, extent) == Proof::Yes)
        {
            return Some(place);
        }
        let one = self.dims.constant(1);
        let (next, is_first) = (self.dims.add(place, one), self.dims.range(place).0 >= 0);
        (is_first && self.dims.prove_le(next, extent) == Proof::Yes).then_some(place)
    }
    /// Whether operand `i` is present.
    pub fn has(&self, i: usize) -> bool {
        self.ins.get(i).is_some_and(|x| x.is_some())
    }
}

/// How a view sees operand 0. The result's extents come from its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewOp {
    /// The same elements in row-major order under the result's shape.
    Reshape,
    /// Result axis `i` is operand axis `perm[i]`.
    Permute(SmallVec<[usize; 4]>),
    /// Along each axis: first element and step.
    Slice(Vec<(DimId, DimId)>),
    /// The part at `at` of the axis, in whose place the result has `axes` axes of extent 1.
    Select {
        /// The axis.
        axis: usize,
        /// Position along it.
        at: DimId,
        /// Axes in its place.
        axes: usize,
    },
    /// Numpy broadcast to the result's shape (stride 0 on repeated axes).
    Broadcast,
    /// The same bits as elements of the result's type, which has as many.
    Bits,
    /// Result `i` is the `i`-th part: per result, the first element along each axis (Split).
    Parts(Vec<Vec<DimId>>),
}

/// Where an operand goes in an assembled result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which operand.
    pub operand: usize,
    /// First element of its place, one per axis of the result.
    pub start: Vec<DimId>,
}

/// A catalog call as a row describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSpec {
    /// Name in the catalog.
    pub kernel: &'static str,
    /// Operands read, by position in the node; `None` passes a null buffer.
    pub reads: Vec<Option<usize>>,
    /// Results written, by position.
    pub writes: Vec<usize>,
    /// Integer arguments in the order of the kernel's signature.
    pub ints: Vec<IntArg>,
    /// Scalar arguments in the order of the kernel's signature.
    pub scalars: Vec<f64>,
    /// Scratch buffers the kernel needs, in bytes each; passed after the results.
    pub scratch: Vec<DimId>,
}

/// An integer argument of a [`CallSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntArg {
    /// A dim.
    Dim(DimId),
    /// The stride in elements that `lower` chose for a read buffer's axis (`buffer` counts reads).
    ReadStride {
        /// Position in `reads`.
        buffer: usize,
        /// Axis.
        axis: usize,
    },
}

/// What a [`Candidate::Pointwise`] holds.
pub type Pointwise = fn(&mut NodeCtx, &mut Nest, &[Option<ExprId>]) -> Plan<SmallVec<[ExprId; 1]>>;

/// An iteration variable used as a coordinate.
pub fn along(dims: &mut DimPool, axis: Axis) -> Coord {
    Coord { offset: dims.constant(0), terms: SmallVec::from_iter([(Term::Axis(axis), dims.constant(1))]) }
}

/// The coordinate 0.
pub fn at_zero(dims: &mut DimPool) -> Coord {
    Coord { offset: dims.constant(0), terms: SmallVec::new() }
}

/// Strides in elements of a contiguous row-major tensor. Where an extent is 0 they do not matter.
pub fn contiguous(dims: &mut DimPool, shape: &[DimId]) -> Shape {
    let mut step = dims.constant(1);
    let mut strides: Shape = SmallVec::from_elem(step, shape.len());
    for (s, &d) in strides.iter_mut().zip(shape).rev() {
        *s = step;
        step = dims.mul(step, d);
    }
    strides
}

/// Adds a contiguous operand to a nest.
pub fn add_operand(dims: &mut DimPool, nest: &mut Nest, x: &Operand, written: bool) -> u16 {
    let strides = contiguous(dims, &x.shape);
    nest.operand(NestOperand { dtype: x.dtype, shape: x.shape.clone(), strides, written })
}

/// Adds a node's present operands to a nest in order, then its results: what a nest of a row starts with. Returns the positions
/// of the operands (`None` where absent) and of the results.
pub fn add_operands(ctx: &mut NodeCtx, nest: &mut Nest) -> (Vec<Option<u16>>, Vec<u16>) {
    let (ins, outs) = (ctx.ins, ctx.outs);
    let reads = ins.iter().map(|x| x.as_ref().map(|x| add_operand(ctx.dims, nest, x, false))).collect();
    let writes = outs.iter().map(|x| add_operand(ctx.dims, nest, x, true)).collect();
    (reads, writes)
}

/// Coordinates of the element of `shape` that is broadcast to the point whose coordinates along `full` are `axes`.
pub fn broadcast_coords(
    dims: &mut DimPool,
    shape: &[DimId],
    full: &[DimId],
    axes: &[Option<Axis>],
) -> SmallVec<[Coord; 4]> {
    let pad = full.len() - shape.len().min(full.len());
    let coord = |(i, &d): (usize, &DimId)| match axes.get(pad + i).copied().flatten() {
        // An extent of 1 repeats; where the result has 1, too, either reading is the same element. Where it is 0, nothing is read.
        Some(axis) if !dims.is_at_most_one(d) => along(dims, axis),
        _ => at_zero(dims),
    };
    shape.iter().enumerate().map(coord).collect()
}

/// The nest of a [`Candidate::Pointwise`]: one parallel axis per axis of the results, one store per result.
///
/// # Errors
/// The candidate's refusal, or the dtype that has no compute type.
pub fn build_pointwise(ctx: &mut NodeCtx, f: Pointwise) -> Plan<Nest> {
    let mut nest = Nest::default();
    let full = ctx.outs.first().map(|o| o.shape.clone()).ok_or("the node has no result")?;
    for x in ctx.ins.iter().flatten().chain(ctx.outs) {
        if crate::nest::compute_dtype(x.dtype).is_none() {
            return Err(Refusal(format!("nothing can be computed with {}", x.dtype)));
        }
    }
    nest.outer = full.to_vec();
    let (reads, writes) = add_operands(ctx, &mut nest);
    let axes: Vec<Option<Axis>> = (0..full.len()).map(|i| u16::try_from(i).ok().map(Axis::Outer)).collect();
    let ins = ctx.ins;
    let mut args = Vec::with_capacity(ins.len());
    for (x, position) in ins.iter().zip(reads) {
        args.push(match (x, position) {
            (Some(x), Some(operand)) => {
                let coords = broadcast_coords(ctx.dims, &x.shape, &full, &axes);
                Some(nest.expr(Expr::Load(Access { operand, coords })))
            }
            _ => None,
        });
    }
    let values = f(ctx, &mut nest, &args)?;
    let outs = ctx.outs;
    let mut stores = Vec::with_capacity(outs.len());
    for ((out, operand), value) in outs.iter().zip(writes).zip(values) {
        let coords = broadcast_coords(ctx.dims, &out.shape, &full, &axes);
        stores.push((Access { operand, coords }, value));
    }
    nest.phases.push(Phase::Store { over_inner: false, stores });
    Ok(nest)
}
