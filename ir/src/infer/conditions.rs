//! Conditions of branches: as dims, and what they make of the guards in branches.

use super::State;
use crate::graph::{Def, Guard, Node, RegionId, Value};
use crate::ty::Type;
use tensor::dims::Proof;
use tensor::{DType, DimId, Result};

/// How far the search for what a condition compares goes back.
const MAX_DEPTH: usize = 16;
/// Dims within ± this can be subtracted from one another and from larger ones that are cut at twice as much.
const SMALL: i64 = 1 << 40;

impl State<'_> {
    /// Condition `v` of node `n` as a dim of 0 or 1: what integers compare, and logic on it. `None` where it is something else.
    pub(super) fn condition(&mut self, r: RegionId, n: Node, v: Value) -> Result<Option<DimId>> {
        self.truth_of(r, n, v, 0)
    }

    fn truth_of(&mut self, r: RegionId, user: Node, v: Value, depth: usize) -> Result<Option<DimId>> {
        if let Some(c) = self.konst_of(r, v).and_then(|c| self.m.consts[c].read().ok()).filter(|t| t.n_elems() == 1) {
            return Ok(Some(self.m.dims.constant(i64::from(c.view().i64_at(0) != 0))));
        }
        let single = self.ty(r, v).shape().is_some_and(|s| s.iter().all(|&d| self.m.dims.as_const(d) == Some(1)));
        if !single || depth == MAX_DEPTH {
            return Ok(None);
        }
        if self.ty(r, v).dtype().is_some_and(|d| d.is_int()) {
            // An integer as a condition: whether it differs from 0.
            let Some(a) = self.element(r, user, v)? else { return Ok(None) };
            let zero = self.m.dims.constant(0);
            let equal = self.is_equal(a, zero);
            return Ok(equal.map(|d| self.negated(d)));
        }
        let Def::Node(n, 0) = self.m.graphs[r].values[v].def else { return Ok(None) };
        let name = self.m.registry[self.m.graphs[r].nodes[n].op].name;
        let ins = self.m.graphs[r].nodes[n].ins.clone();
        let (Some(Some(x)), y) = (ins.first().copied(), ins.get(1).copied().flatten()) else { return Ok(None) };
        match (name, y) {
            ("Identity" | "Cast" | "Squeeze" | "Unsqueeze" | "Reshape", _) => self.truth_of(r, n, x, depth + 1),
            ("Not", _) => Ok(self.truth_of(r, n, x, depth + 1)?.map(|d| self.negated(d))),
            ("And" | "Or" | "Xor", Some(y)) => {
                let a = self.truth_of(r, n, x, depth + 1)?;
                let (Some(a), Some(b)) = (a, self.truth_of(r, n, y, depth + 1)?) else { return Ok(None) };
                let dims = &mut self.m.dims;
                Ok(Some(match name {
                    "And" => dims.min(a, b),
                    "Or" => dims.max(a, b),
                    // |a - b|
                    _ => {
                        let (high, low) = (dims.max(a, b), dims.min(a, b));
                        dims.sub(high, low)
                    }
                }))
            }
            ("Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual", Some(y)) => {
                let a = self.element(r, n, x)?;
                let (Some(a), Some(b)) = (a, self.element(r, n, y)?) else { return Ok(None) };
                Ok(match name {
                    "Equal" => self.is_equal(a, b),
                    "Less" => self.is_below(a, b),
                    "Greater" => self.is_below(b, a),
                    "LessOrEqual" => self.is_below(b, a).map(|d| self.negated(d)),
                    _ => self.is_below(a, b).map(|d| self.negated(d)),
                })
            }
            _ => Ok(None),
        }
    }

    /// The only element of an integer tensor.
    pub(super) fn element(&mut self, r: RegionId, user: Node, v: Value) -> Result<Option<DimId>> {
        if !matches!(self.ty(r, v), Type::Tensor(t) if matches!(t.dtype, DType::I64 | DType::I32)) {
            return Ok(None);
        }
        self.load_const(r, v);
        if !self.values.contains_key(&(r, v)) {
            self.demand(r, user, v, 0)?;
        }
        Ok(self.values.get(&(r, v)).filter(|x| x.len() == 1).map(|x| x[0]))
    }

    fn negated(&mut self, truth: DimId) -> DimId {
        let one = self.m.dims.constant(1);
        self.m.dims.sub(one, truth)
    }

    /// 1 where the dims are equal, else 0.
    fn is_equal(&mut self, a: DimId, b: DimId) -> Option<DimId> {
        match self.m.dims.prove_eq(a, b) {
            Proof::Yes => return Some(self.m.dims.constant(1)),
            Proof::No => return Some(self.m.dims.constant(0)),
            Proof::Unknown => {}
        }
        let (a, b) = self.small(a, b)?;
        let dims = &mut self.m.dims;
        let (x, y) = (dims.sub(a, b), dims.sub(b, a));
        let (distance, one) = (dims.max(x, y), dims.constant(1));
        let differs = dims.min(distance, one);
        Some(self.negated(differs))
    }

    /// 1 where a < b, else 0.
    fn is_below(&mut self, a: DimId, b: DimId) -> Option<DimId> {
        match self.m.dims.prove_le(b, a) {
            Proof::Yes => return Some(self.m.dims.constant(0)),
            Proof::No => return Some(self.m.dims.constant(1)),
            Proof::Unknown => {}
        }
        let (a, b) = self.small(a, b)?;
        let dims = &mut self.m.dims;
        let (zero, one) = (dims.constant(0), dims.constant(1));
        let x = dims.sub(b, a);
        let x = dims.max(x, zero);
        Some(dims.min(x, one))
    }

    /// Both so small that their difference does not overflow, and in the same order: extents are, else one must be small by itself.
    fn small(&mut self, a: DimId, b: DimId) -> Option<(DimId, DimId)> {
        let dims = &mut self.m.dims;
        let within = |dims: &tensor::DimPool, d: DimId| {
            let (lo, hi) = dims.range(d);
            lo >= -SMALL && hi <= SMALL
        };
        // The difference of two that are not negative does not overflow.
        if dims.range(a).0 >= 0 && dims.range(b).0 >= 0 {
            return Some((a, b));
        }
        if !within(dims, a) && !within(dims, b) {
            return None;
        }
        let mut cut = |d: DimId| {
            if within(dims, d) {
                return d;
            }
            let (lo, hi) = (dims.constant(-2 * SMALL), dims.constant(2 * SMALL));
            let d = dims.min(d, hi);
            dims.max(d, lo)
        };
        Some((cut(a), cut(b)))
    }

    /// 1 where the trip count of a loop lets it run at all, else 0, when that is known as a dim.
    fn runs(&mut self, r: RegionId, n: Node) -> Option<DimId> {
        let node = &self.m.graphs[r].nodes[n];
        let trips = match self.m.registry[node.op].name {
            "Loop" => node.ins.first().copied().flatten()?,
            _ => return None,
        };
        let trips = *self.values.get(&(r, trips))?.first()?;
        let zero = self.m.dims.constant(0);
        self.is_below(zero, trips)
    }

    /// Guards of a region and of the bodies in it that may run, in order. Those of a branch hold where it is taken, those of a loop's body
    /// where it runs, as far as that is known as a dim; others hold always.
    pub(super) fn collect_guards(&mut self, r: RegionId) -> Vec<Guard> {
        let mut out = Vec::new();
        for n in self.m.graphs[r].order.clone() {
            out.extend(self.guards.get(&(r, n)).into_iter().flatten().cloned());
            let taken = self.taken.get(&(r, n)).copied();
            let condition = self.conditions.get(&(r, n)).copied().or_else(|| self.runs(r, n));
            for (i, body) in self.m.graphs[r].nodes[n].regions.clone().into_iter().enumerate() {
                if taken.is_some_and(|t| t != (i == 0)) {
                    continue;
                }
                let mut inner = self.collect_guards(body);
                if let Some(truth) = condition {
                    let truth = if i == 0 { truth } else { self.negated(truth) };
                    for g in &mut inner {
                        (g.lhs, g.rhs) = (self.m.dims.mul(truth, g.lhs), self.m.dims.mul(truth, g.rhs));
                    }
                }
                out.extend(inner);
            }
        }
        out
    }
}
