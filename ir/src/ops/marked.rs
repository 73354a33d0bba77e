//! Reductions over the axes that an operand marks: what reductions with computed axes become.

use super::reduce::{EXTREME, From, REDUCE_NUMS, infer_reduce, reduce_lower, reduce_ref};
use super::row::ROW;
use super::run_axes::RunAxes;
use crate::lowering::Candidate::Loops;
use crate::op::{HIP_DOMAIN, InferCtx, OpDef, Tol, req};
use reference::reduce::Reduce;
use tensor::DType::*;
use tensor::{DimId, Result};

/// Each axis has a mark.
pub(super) fn infer(c: &mut InferCtx, shape: &[DimId]) -> Result<()> {
    let d = c.dtype(0)?;
    let n = c.dims.constant(i64::try_from(shape.len()).unwrap_or(i64::MAX));
    if let Some([marks]) = c.shape(1).as_deref() {
        c.require_eq(*marks, n, "there is one mark for each axis")?;
    }
    let Some(elements) = c.need_values(1) else {
        let fresh = c.unknown_extents(shape.len());
        c.set(0, d, fresh);
        return Ok(());
    };
    let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
    let what = format!(
        "{}: axes are from {} to {}, each at most once",
        c.def.name,
        -(shape.len() as i64),
        shape.len() as i64 - 1
    );
    for &e in &elements {
        c.require_le(zero, e, &what);
        c.require_le(e, one, &what);
    }
    let out = RunAxes::of_marks(c.dims, &elements).outer(c.dims, shape);
    c.set(0, d, out);
    Ok(())
}

const CASES: &[&str] = &["[2,3,4];i64[3]{0,1,0}", "[2,3];i64[2]{1,1}", "[2,3];i64[2]{0,0}", "[2,0,3];i64[3]{1,1,0}"];

macro_rules! marked {
    ($name:literal, $kind:ident, $dtypes:expr) => {
        OpDef {
            name: $name,
            domain: HIP_DOMAIN,
            inputs: &[req("data", "T"), req("marks", "tensor(int64)")],
            outputs: &[req("reduced", "T")],
            dtypes: &[("T", $dtypes), ("tensor(int64)", &[I64])],
            infer: |c| infer_reduce(c, From::Marks, Reduce::$kind),
            reference: Some(|c| reduce_ref(c, From::Marks, Reduce::$kind)),
            lower: &[Loops(|c| reduce_lower(c, From::Marks, Reduce::$kind))],
            tolerance: Tol::Rel(1e-5),
            cases: CASES,
            ..ROW
        }
    };
}

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    marked!("ReduceSum", Sum, REDUCE_NUMS),
    marked!("ReduceMean", Mean, REDUCE_NUMS),
    marked!("ReduceMax", Max, EXTREME),
    marked!("ReduceMin", Min, EXTREME),
    marked!("ReduceProd", Prod, REDUCE_NUMS),
    marked!("ReduceSumSquare", SumSquare, REDUCE_NUMS),
    marked!("ReduceL1", L1, REDUCE_NUMS),
    marked!("ReduceL2", L2, REDUCE_NUMS),
    marked!("ReduceLogSum", LogSum, REDUCE_NUMS),
    marked!("ReduceLogSumExp", LogSumExp, REDUCE_NUMS),
];
