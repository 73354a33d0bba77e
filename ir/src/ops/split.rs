//! Building loop nests from a split of a shape's axes into those of the points and those that a point runs over.

use super::row::FLOATS;
use crate::lowering::{NodeCtx, Operand, Plan, add_operands, at_zero, broadcast_coords};
use crate::nest::{Access, Axis, BinOp, Combiner, Coord, Expr, ExprId, Nest, Phase, Reduction, compute_dtype};
use crate::ty::Shape;
use smallvec::SmallVec;
use tensor::DType;

/// A nest in the making: every present operand and result is in it, no phase yet.
pub struct Builder {
    /// The nest.
    pub nest: Nest,
    /// Position of each operand of the node in the nest.
    pub reads: Vec<Option<u16>>,
    /// Position of each result in the nest.
    pub writes: Vec<u16>,
    /// The shape whose axes are split.
    pub full: Shape,
    /// The iteration variable of each axis of `full`.
    pub axes: Vec<Option<Axis>>,
    n_reductions: u16,
}

impl Builder {
    /// Points along the axes of `full` that are not marked; marked ones are run over at each point.
    ///
    /// # Errors
    /// A refusal for element types that nothing is computed with.
    pub fn new(c: &mut NodeCtx, full: &Shape, inner: &[bool]) -> Plan<Builder> {
        for x in c.ins.iter().flatten().chain(c.outs) {
            if compute_dtype(x.dtype).is_none() || x.dtype.bits() < 8 {
                return Err(format!("no loops over {}", x.dtype).into());
            }
        }
        let mut nest = Nest::default();
        let (reads, writes) = add_operands(c, &mut nest);
        let mut axes = Vec::with_capacity(full.len());
        for (&d, &is_inner) in full.iter().zip(inner) {
            let (list, make): (&mut Vec<_>, fn(u16) -> Axis) =
                if is_inner { (&mut nest.inner, Axis::Inner) } else { (&mut nest.outer, Axis::Outer) };
            axes.push(u16::try_from(list.len()).ok().map(make));
            list.push(d);
        }
        Ok(Builder { nest, reads, writes, full: full.clone(), axes, n_reductions: 0 })
    }
    /// Both outer and inner axes for each axis of `full`, where the run decides which of the two runs over it.
    ///
    /// # Errors
    /// As [`Builder::new`].
    pub fn undecided(c: &mut NodeCtx, full: &Shape, outer: Shape, inner: Shape) -> Plan<Builder> {
        let mut b = Builder::new(c, full, &vec![false; full.len()])?;
        (b.nest.outer, b.nest.inner) = (outer.into_vec(), inner.into_vec());
        Ok(b)
    }
    /// Operand `i`'s element, broadcast to `full`; in its compute type.
    ///
    /// # Errors
    /// A refusal when the operand is missing.
    pub fn load(&mut self, c: &mut NodeCtx, i: usize) -> Plan<ExprId> {
        let shape = c.need(i)?.shape;
        let coords = broadcast_coords(c.dims, &shape, &self.full, &self.axes);
        self.load_at(i, coords)
    }
    /// Operand `i`'s element at given coordinates.
    ///
    /// # Errors
    /// A refusal when the operand is missing.
    pub fn load_at(&mut self, i: usize, coords: SmallVec<[Coord; 4]>) -> Plan<ExprId> {
        let operand =
            self.reads.get(i).copied().flatten().ok_or_else(|| crate::lowering::Refusal(format!("no operand {i}")))?;
        Ok(self.nest.expr(Expr::Load(Access { operand, coords })))
    }
    /// A phase of one reduction; returns its result.
    pub fn reduce(&mut self, combiner: Combiner, value: ExprId) -> ExprId {
        self.nest.phases.push(Phase::Reduce(vec![Reduction { combiner, value }]));
        self.n_reductions += 1;
        self.nest.expr(Expr::Reduced(self.n_reductions - 1))
    }
    /// Number of points that a reduction runs over, in a compute type.
    pub fn count(&mut self, c: &mut NodeCtx, dtype: DType) -> ExprId {
        let n = c.dims.product(self.nest.inner.iter().copied());
        let n = self.nest.expr(Expr::Dim(n));
        self.nest.cast(n, dtype)
    }
    /// Stores to result `i` at every point of `full`; a result with extent 1 along inner axes is stored once.
    pub fn store_inner(&mut self, c: &mut NodeCtx, i: usize, value: ExprId) {
        let coords = broadcast_coords(c.dims, &c.outs[i].shape, &self.full, &self.axes);
        let stores = vec![(Access { operand: self.writes[i], coords }, value)];
        self.nest.phases.push(Phase::Store { over_inner: true, stores });
    }
    /// Stores to results once per point. Their axes are those of `full` with the inner ones of extent 1, or left out.
    pub fn store_once(&mut self, c: &mut NodeCtx, values: &[(usize, ExprId)]) {
        let stores = values
            .iter()
            .map(|&(i, value)| {
                let keeps = c.outs[i].shape.len() == self.full.len();
                let mut coords = SmallVec::new();
                for axis in &self.axes {
                    match axis {
                        Some(a @ Axis::Outer(_)) => coords.push(crate::lowering::along(c.dims, *a)),
                        _ if keeps => coords.push(at_zero(c.dims)),
                        _ => {}
                    }
                }
                (Access { operand: self.writes[i], coords }, value)
            })
            .collect();
        self.nest.phases.push(Phase::Store { over_inner: false, stores });
    }
    /// Stores to result `i` once per point, at given coordinates.
    pub fn store_once_at(&mut self, i: usize, coords: SmallVec<[Coord; 4]>, value: ExprId) {
        let stores = vec![(Access { operand: self.writes[i], coords }, value)];
        self.nest.phases.push(Phase::Store { over_inner: false, stores });
    }
    /// `1 / √(a + epsilon)`.
    pub fn inverse_root(&mut self, a: ExprId, epsilon: f64) -> ExprId {
        let s = self.nest.bin_num(BinOp::Add, a, epsilon);
        let s = self.nest.un(crate::nest::UnOp::Sqrt, s);
        self.nest.num_bin(BinOp::Div, 1.0, s)
    }
}

/// Elements of operand `i` as integers, when it is constant.
pub fn const_ints(c: &NodeCtx, i: usize) -> Option<Vec<i64>> {
    let x = c.ins.get(i)?.as_ref()?;
    match (&x.values, x.konst) {
        (Some(v), _) => v.iter().map(|&d| c.dims.as_const(d)).collect(),
        (None, Some(k)) => Some(c.consts[k].read().ok()?.to_i64_vec()),
        _ => None,
    }
}

/// An axis counted from the start.
///
/// # Errors
/// A refusal when it is out of range (shape rules find that first).
pub fn axis_of(axis: i64, rank: usize) -> Plan<usize> {
    let r = rank as i64;
    let a = if axis < 0 { axis + r } else { axis };
    usize::try_from(a).ok().filter(|&a| a < rank).ok_or_else(|| format!("axis {axis} of rank {rank}").into())
}

/// Refuses operands that are not floats.
///
/// # Errors
/// The refusal.
pub fn need_float(x: &Operand) -> Plan<()> {
    if FLOATS.contains(&x.dtype) { Ok(()) } else { Err(format!("{} is not a float", x.dtype).into()) }
}
