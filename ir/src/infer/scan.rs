//! Scan: types of its body's parameters and of its results.

use super::State;
use crate::graph::{NodeData, Onnx, RegionId, Value};
use crate::ops::scan::Scan;
use crate::ty::{Shape, TensorType, Type};
use tensor::{Diagnostic, DimId, ErrorKind, Result};

impl State<'_> {
    /// Scan: operands `initial…, sequences…, captures…`; parameters `states…, elements…, captures…`; results of the body `states…,
    /// given…`; results of the node `states…, sequences given…`.
    pub(super) fn scan(&mut self, r: RegionId, node: &NodeData<Onnx>) -> Result<()> {
        let scan = Scan::new(self.m, node)?;
        let body = scan.body;
        self.seed_captures(r, node, body)?;
        let params = self.m.graphs[body].inputs.clone();
        for (&v, &p) in scan.initial.iter().zip(&params) {
            self.m.graphs[body].values[p].ty = self.ty(r, v).without(scan.batched.then_some(0));
        }
        let mut trips = None;
        for (k, (&v, &p)) in scan.sequences.iter().zip(&params[scan.initial.len()..]).enumerate() {
            let ty = self.ty(r, v).without(scan.batched.then_some(0));
            let axis = match ty.shape() {
                Some(s) => Some(scan.input_axis(k, s.len())?),
                None => None,
            };
            let extent = axis.and_then(|a| ty.shape()?.get(a).copied());
            if let (Some(a), Some(b)) = (trips, extent)
                && self.m.dims.prove_eq(a, b) == tensor::dims::Proof::No
            {
                let text = format!("Scan: sequence {k} has another number of elements than those before it");
                return Err(Diagnostic::new(ErrorKind::Shape, text));
            }
            trips = trips.or(extent);
            self.m.graphs[body].values[p].ty = ty.without(axis);
        }
        self.region(body)?;
        let results = self.m.graphs[body].outputs.clone();
        let batch = match scan.batched {
            true => scan.sequences.first().and_then(|&v| self.ty(r, v).shape()?.first().copied()),
            false => None,
        };
        for (k, (&out, &v)) in node.outs.iter().zip(&results).enumerate() {
            let ty = match scan.initial.get(k) {
                Some(&initial) => self.ty(r, initial).clone(),
                None => self.given(r, out, body, v, &scan, k - scan.initial.len(), (trips, batch))?,
            };
            self.m.graphs[r].values[out].ty = ty;
            self.values.remove(&(r, out));
        }
        Ok(())
    }

    /// The type of what the iterations give.
    #[allow(clippy::too_many_arguments)]
    fn given(
        &mut self,
        r: RegionId,
        out: Value,
        body: RegionId,
        v: Value,
        scan: &Scan,
        k: usize,
        (trips, batch): (Option<DimId>, Option<DimId>),
    ) -> Result<Type> {
        let ty = self.outward(r, out, body, self.ty(body, v).clone());
        let Type::Tensor(TensorType { dtype, shape: Some(s) }) = ty else { return Ok(ty) };
        let Some(trips) = trips else { return Ok(Type::Tensor(TensorType { dtype, shape: None })) };
        let mut all: Shape = s;
        all.insert(scan.output_axis(k, all.len() + 1)?, trips);
        all.insert_many(0, batch);
        Ok(Type::tensor(dtype, all))
    }
}
