//! Small integer tensors that follow from constants: lists of pads, axes and extents that exporters compute with nodes.

use super::{MAX_SHAPE_VALUES, State};
use crate::consts::Const;
use crate::graph::{Node, RegionId, Value};
use crate::op::RefCtx;
use tensor::{DType, DimId, Tensor};

impl State<'_> {
    /// Computes the results of a node whose operands are small constants, where the result is a small tensor of integers or bools.
    /// Shape values of rank 1 come from the rules; this is for what no rule follows.
    /// What an earlier visit computed counts no more: in a loop, operands may have turned out to change.
    pub(super) fn fold(&mut self, r: RegionId, n: Node) {
        let outs = self.m.graphs[r].nodes[n].outs.clone();
        for &v in &outs {
            self.konst.remove(&(r, v));
        }
        if outs.iter().all(|&v| self.values.contains_key(&(r, v)) || !self.is_small(r, v)) {
            return;
        }
        for (&v, t) in outs.iter().zip(self.computed(r, n).unwrap_or_default()) {
            if self.ty(r, v).dtype() == Some(t.dtype()) && self.is_small(r, v) {
                let c = self.m.consts.push(Const::from_tensor("", &t));
                self.konst.insert((r, v), c);
                self.load_const(r, v);
            }
        }
    }

    /// The results of a node whose operands are small constants.
    fn computed(&self, r: RegionId, n: Node) -> Option<Vec<Tensor>> {
        let node = &self.m.graphs[r].nodes[n];
        let def = &self.m.registry[node.op];
        let reference = def.reference.filter(|_| !def.draws() && !def.traits.regions)?;
        let operand = |v: &Option<Value>| v.map_or(Some(None), |v| self.small_tensor(r, v).map(Some));
        let ins: Option<Vec<Option<Tensor>>> = node.ins.iter().map(operand).collect();
        let attrs = &self.m.attrs[node.attrs];
        reference(&RefCtx { def, attrs, consts: &self.m.consts, ins: &ins?, n_outs: node.outs.len() }).ok()
    }

    /// Whether a value is a tensor of integers or bools with few elements.
    fn is_small(&self, r: RegionId, v: Value) -> bool {
        let ty = self.ty(r, v);
        let shape = ty.shape().filter(|_| matches!(ty.dtype(), Some(DType::I64 | DType::I32 | DType::Bool)));
        let extent = |d: DimId| usize::try_from(self.m.dims.as_const(d)?).ok();
        let n = shape.and_then(|s| s.iter().try_fold(1usize, |n, &d| n.checked_mul(extent(d)?)));
        n.is_some_and(|n| n <= MAX_SHAPE_VALUES)
    }

    /// The elements of a value that is constant and small.
    fn small_tensor(&self, r: RegionId, v: Value) -> Option<Tensor> {
        let small = |c: &Const| c.n_elems() <= MAX_SHAPE_VALUES && c.dtype != DType::String;
        if let Some(c) = self.konst_of(r, v) {
            return self.m.consts[c].read().ok().filter(|_| small(&self.m.consts[c]));
        }
        let elements: Option<Vec<i64>> = self.values.get(&(r, v))?.iter().map(|&d| self.m.dims.as_const(d)).collect();
        let (ty, elements) = (self.ty(r, v).as_tensor()?, elements?);
        let shape = ty.shape.as_ref()?.iter().map(|_| elements.len()).collect::<Vec<_>>();
        matches!(ty.dtype, DType::I64 | DType::I32).then(|| Tensor::from_i64_as(ty.dtype, &shape, &elements))
    }
}
