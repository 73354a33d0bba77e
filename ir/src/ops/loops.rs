//! Pieces of which rows build loop nests.

use crate::lowering::{NodeCtx, Operand, Plan, add_operand};
use crate::nest::{Access, Axis, BinOp, Coord, Expr, ExprId, Nest, Phase, Term, compute_dtype};
use smallvec::smallvec;
use tensor::{DType, DimId, DimPool};

/// A nest under construction: the node's present operands and results are its operands, `outer` is free.
pub struct Builder<'a, 'c> {
    /// The node.
    pub c: &'a mut NodeCtx<'c>,
    /// What is built.
    pub nest: Nest,
    reads: Vec<Option<u16>>,
    writes: Vec<u16>,
}

impl<'a, 'c> Builder<'a, 'c> {
    /// All operands and results as buffers.
    ///
    /// # Errors
    /// Refuses element types that generated code does not load.
    pub fn new(c: &'a mut NodeCtx<'c>) -> Plan<Builder<'a, 'c>> {
        let mut nest = Nest::default();
        let mut add = |p: &mut DimPool, o: &Operand, written| {
            if compute_dtype(o.dtype).is_none() {
                return Err(crate::lowering::Refusal(format!("loops do not load elements of type {}", o.dtype)));
            }
            Ok(add_operand(p, &mut nest, o, written))
        };
        let reads = c.ins.iter().map(|o| o.as_ref().map(|o| add(c.dims, o, false)).transpose()).collect::<Plan<_>>()?;
        let writes = c.outs.iter().map(|o| add(c.dims, o, true)).collect::<Plan<_>>()?;
        Ok(Builder { c, nest, reads, writes })
    }
    /// One outer axis per axis of result 0.
    ///
    /// # Errors
    /// As [`Builder::new`].
    pub fn over_result(c: &'a mut NodeCtx<'c>) -> Plan<Builder<'a, 'c>> {
        let mut b = Builder::new(c)?;
        b.nest.outer = b.c.outs[0].shape.to_vec();
        Ok(b)
    }
    /// The compute type of operand `i`.
    pub fn dtype(&self, i: usize) -> DType {
        self.c.ins[i].as_ref().and_then(|o| compute_dtype(o.dtype)).unwrap_or(DType::F32)
    }
    /// A dim as an i64 expression.
    pub fn dim(&mut self, d: DimId) -> ExprId {
        match self.c.dims.as_const(d) {
            Some(k) => self.int(k),
            None => self.nest.expr(Expr::Dim(d)),
        }
    }
    /// An i64.
    pub fn int(&mut self, v: i64) -> ExprId {
        self.nest.expr(Expr::Int(v, DType::I64))
    }
    /// An outer axis as an i64 expression.
    pub fn outer(&mut self, i: usize) -> ExprId {
        self.nest.expr(Expr::Index(outer(i)))
    }
    /// A binary operation.
    pub fn bin(&mut self, op: BinOp, a: ExprId, b: ExprId) -> ExprId {
        self.nest.bin(op, a, b)
    }
    /// `cond ? a : b`.
    pub fn select(&mut self, cond: ExprId, a: ExprId, b: ExprId) -> ExprId {
        self.nest.expr(Expr::Select(cond, a, b))
    }
    /// The coordinate `axis`.
    pub fn along(&mut self, axis: Axis) -> Coord {
        let (zero, one) = (self.c.dims.constant(0), self.c.dims.constant(1));
        Coord { offset: zero, terms: smallvec![(Term::Axis(axis), one)] }
    }
    /// The coordinate `offset + step · axis`.
    pub fn affine(&mut self, offset: DimId, step: DimId, axis: Axis) -> Coord {
        Coord { offset, terms: smallvec![(Term::Axis(axis), step)] }
    }
    /// A fixed coordinate.
    pub fn fixed(&mut self, d: DimId) -> Coord {
        Coord { offset: d, terms: smallvec![] }
    }
    /// A fixed coordinate by number.
    pub fn fixed_at(&mut self, i: i64) -> Coord {
        let d = self.c.dims.constant(i);
        self.fixed(d)
    }
    /// A computed coordinate.
    pub fn computed(&mut self, e: ExprId) -> Coord {
        let (zero, one) = (self.c.dims.constant(0), self.c.dims.constant(1));
        Coord { offset: zero, terms: smallvec![(Term::Expr(e), one)] }
    }
    /// The element of operand `i` of the node at `coords`.
    ///
    /// # Errors
    /// Refuses when the operand is absent.
    pub fn access(&self, i: usize, coords: impl IntoIterator<Item = Coord>) -> Plan<Access> {
        match self.reads.get(i).copied().flatten() {
            Some(operand) => Ok(Access { operand, coords: coords.into_iter().collect() }),
            None => Err(format!("operand {i} is missing").into()),
        }
    }
    /// Loads an element of operand `i` of the node.
    ///
    /// # Errors
    /// As [`Builder::access`].
    pub fn load(&mut self, i: usize, coords: impl IntoIterator<Item = Coord>) -> Plan<ExprId> {
        let a = self.access(i, coords)?;
        Ok(self.nest.expr(Expr::Load(a)))
    }
    /// Loads an element where `cond` holds.
    ///
    /// # Errors
    /// As [`Builder::access`].
    pub fn load_if(
        &mut self,
        i: usize,
        coords: impl IntoIterator<Item = Coord>,
        cond: Option<ExprId>,
        other: ExprId,
    ) -> Plan<ExprId> {
        let access = self.access(i, coords)?;
        Ok(self.nest.expr(match cond {
            Some(cond) => Expr::LoadIf { cond, access, other },
            None => Expr::Load(access),
        }))
    }
    /// The scalar operand `i` (rank 0, or its first element), cast to i64.
    ///
    /// # Errors
    /// As [`Builder::access`].
    pub fn scalar_i64(&mut self, i: usize) -> Plan<ExprId> {
        let e = self.scalar(i)?;
        Ok(self.nest.expr(Expr::Cast(e, DType::I64)))
    }
    /// The first element of operand `i`.
    ///
    /// # Errors
    /// As [`Builder::access`].
    pub fn scalar(&mut self, i: usize) -> Plan<ExprId> {
        let rank = self.c.need(i)?.shape.len();
        let coords: Vec<Coord> = (0..rank).map(|_| self.fixed_at(0)).collect();
        self.load(i, coords)
    }
    /// An index into an axis of extent `n`: negative ones count from the end, others are clamped into the axis. (ONNX leaves
    /// indices out of range undefined; clamping reads no foreign memory.)
    pub fn index(&mut self, e: ExprId, n: DimId) -> ExprId {
        let e = if self.nest.expr_dtype(e) == DType::I64 { e } else { self.nest.expr(Expr::Cast(e, DType::I64)) };
        let (zero, n) = (self.int(0), self.dim(n));
        let shifted = self.bin(BinOp::Add, e, n);
        let neg = self.bin(BinOp::Lt, e, zero);
        let e = self.select(neg, shifted, e);
        let one = self.int(1);
        let last = self.bin(BinOp::Sub, n, one);
        let e = self.bin(BinOp::Min, e, last);
        self.bin(BinOp::Max, e, zero)
    }
    /// Both, where both are given.
    pub fn and(&mut self, a: Option<ExprId>, b: Option<ExprId>) -> Option<ExprId> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.bin(BinOp::And, a, b)),
            _ => a.or(b),
        }
    }
    /// `0 ≤ e < n`, without the halves said not to be needed.
    pub fn within(&mut self, e: ExprId, n: DimId, below: bool, above: bool) -> Option<ExprId> {
        let (zero, n) = (self.int(0), self.dim(n));
        let lo = below.then(|| self.bin(BinOp::Ge, e, zero));
        let hi = above.then(|| self.bin(BinOp::Lt, e, n));
        self.and(lo, hi)
    }
    /// Adds reductions over `inner`; the results in order.
    pub fn reduce(&mut self, rs: impl IntoIterator<Item = (crate::nest::Combiner, ExprId)>) -> Vec<ExprId> {
        let before: usize = self.nest.phases.iter().map(|p| if let Phase::Reduce(r) = p { r.len() } else { 0 }).sum();
        let rs: Vec<_> = rs.into_iter().map(|(combiner, value)| crate::nest::Reduction { combiner, value }).collect();
        let n = rs.len();
        self.nest.phases.push(Phase::Reduce(rs));
        (before..before + n).map(|i| self.nest.expr(Expr::Reduced(u16::try_from(i).unwrap_or(u16::MAX)))).collect()
    }
    /// The element of result `i` at `coords`.
    pub fn result(&self, i: usize, coords: impl IntoIterator<Item = Coord>) -> Access {
        Access { operand: self.writes[i], coords: coords.into_iter().collect() }
    }
    /// Stores to result 0 at the outer point and finishes.
    pub fn store(mut self, value: ExprId) -> Nest {
        let coords: Vec<Coord> = (0..self.nest.outer.len()).map(|i| self.along(outer(i))).collect();
        self.store_at(coords, value)
    }
    /// Stores to result 0 at given coordinates, once per outer point, and finishes.
    pub fn store_at(mut self, coords: Vec<Coord>, value: ExprId) -> Nest {
        let access = self.result(0, coords);
        self.nest.phases.push(Phase::Store { over_inner: false, stores: vec![(access, value)] });
        self.nest
    }
}

/// Axis `i` of `outer`.
pub fn outer(i: usize) -> Axis {
    Axis::Outer(u16::try_from(i).unwrap_or(u16::MAX))
}
/// Axis `i` of `inner`.
pub fn inner(i: usize) -> Axis {
    Axis::Inner(u16::try_from(i).unwrap_or(u16::MAX))
}
