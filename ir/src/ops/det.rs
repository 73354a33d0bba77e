//! Determinants: elimination, a column at a time.

use super::row::{FLOATS, ROW};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate;
use crate::op::{InferCtx, OpDef, Tol, req};
use crate::ty::Shape;
use reference::matmul::det;
use tensor::DType::*;
use tensor::{ErrorKind, Result};

/// The rows.
pub static ROWS: &[OpDef] = &[OpDef {
    name: "Det",
    since: 11,
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T")],
    dtypes: &[("T", FLOATS)],
    infer: infer_det,
    reference: Some(|c| Ok(vec![det(c.input(0)?)?])),
    lower: &[Candidate::Expand(expand_det)],
    tolerance: Tol::Rel(1e-4),
    cases: &["[3,3]", "[2,4,4]", "[2,1,1]", "[2,2]{0,2,3,4}", "[2,2]{1,2,2,4}", "[3,0,0]", "[0,2,2]"],
    ..ROW
}];

fn infer_det(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let [batch @ .., rows, columns] = s.as_slice() else {
        return Err(c.error(ErrorKind::Shape, "Det needs matrices"));
    };
    c.require_eq(*rows, *columns, "matrices are square")?;
    c.set(0, dtype, batch.iter().copied().collect::<Shape>());
    Ok(())
}

/// For each column: the row with the greatest element below the diagonal goes up (which turns the sign), and what its multiples are of
/// the column is taken off the rows below.
fn expand_det(x: &mut Expansion) -> Result<Vec<Value>> {
    let data = x.need(0)?;
    let (dtype, shape) = x.tensor(data)?;
    let wide = if dtype == F64 { F64 } else { F32 };
    let rank = i64::try_from(shape.len()).unwrap_or(2);
    let m = x.extent(data, rank - 1);
    let batch: Vec<Value> = (0..rank - 2).map(|a| x.extent(data, a)).collect();
    let mut n = x.ints(&[1]);
    for &b in &batch {
        n = x.op("Mul", &[n, b], &[]);
    }
    if shape.last().and_then(|&m| x.as_const(m)) == Some(0) {
        // The determinant of nothing.
        let one = x.scalar(dtype, 1.0);
        if batch.is_empty() {
            return Ok(vec![one]);
        }
        let shape = x.concat(&batch, 0);
        return Ok(vec![x.op("Expand", &[one, shape], &[])]);
    }
    let a = x.cast(data, wide);
    let a = x.reshape_to(a, &[n, m, m]);
    let one = x.scalar(wide, 1.0);
    let start = x.op("Expand", &[one, n], &[]);
    let rows = x.count_to(m);
    let trips = x.squeeze(m, &[0]);
    let along = |a: i64| [("axis", Attr::Int(a))];
    let results = x.repeat(trips, &[a, start], &[rows], |x, i, state, captured| {
        let (a, product, rows) = (state[0], state[1], captured[0]);
        let (zero, one, minus) = (x.scalar(wide, 0.0), x.scalar(wide, 1.0), x.scalar(wide, -1.0));
        let column = x.op("Gather", &[a, i], &along(2));
        let size = x.op("Abs", &[column], &[]);
        let left = x.op("GreaterOrEqual", &[rows, i], &[]);
        let size = x.op("Where", &[left, size, minus], &[]);
        let best = x.op("ArgMax", &[size], &along(1));
        let is_best = x.op("Equal", &[rows, best], &[]);
        let is_best = x.unsqueeze(is_best, &[2]);
        let at = x.unsqueeze(best, &[2]);
        let current = x.op("Gather", &[a, i], &along(1));
        let current = x.unsqueeze(current, &[1]);
        // The row at `best`, along all columns.
        let like = x.op("Shape", &[current], &[]);
        let at = x.op("Expand", &[at, like], &[]);
        let pivots = x.op("GatherElements", &[a, at], &along(1));
        let a = x.op("Where", &[is_best, current, a], &[]);
        let pivot = x.op("Gather", &[pivots, i], &along(2));
        let best = x.squeeze(best, &[1]);
        let stays = x.op("Equal", &[best, i], &[]);
        let sign = x.op("Where", &[stays, one, minus], &[]);
        let flat = x.squeeze(pivot, &[1]);
        let product = x.op("Mul", &[product, flat], &[]);
        let product = x.op("Mul", &[product, sign], &[]);
        let column = x.op("Gather", &[a, i], &along(2));
        let factor = x.op("Div", &[column, pivot], &[]);
        let below = x.op("Greater", &[rows, i], &[]);
        let singular = x.op("Equal", &[pivot, zero], &[]);
        let regular = x.op("Not", &[singular], &[]);
        let counts = x.op("And", &[below, regular], &[]);
        let factor = x.op("Where", &[counts, factor, zero], &[]);
        let factor = x.unsqueeze(factor, &[2]);
        let off = x.op("Mul", &[factor, pivots], &[]);
        Ok((vec![x.op("Sub", &[a, off], &[]), product], vec![]))
    })?;
    let y = if batch.is_empty() { x.reshape(results[1], &[]) } else { x.reshape_to(results[1], &batch) };
    Ok(vec![x.cast(y, dtype)])
}
