//! Inverse matrices: elimination above and below, a column at a time.

use super::super::row::{FLOATS, ROW, same_type_as_0};
use super::{MICROSOFT, wide};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{OpDef, Tol, req};
use tensor::{ErrorKind, Result};

/// Beside each matrix stands the identity. For each column the row with the greatest element on or below the diagonal changes places with
/// the one on it and is divided by that element, and what its multiples are of the column is taken off all others: what stands where the
/// identity stood is the inverse. Matrices without one get infinities and NaN.
fn expand_inverse(x: &mut Expansion) -> Result<Vec<Value>> {
    let data = x.need(0)?;
    let (dtype, shape) = x.tensor(data)?;
    if shape.last().and_then(|&m| x.as_const(m)) == Some(0) {
        return Ok(vec![data]);
    }
    let t = wide(dtype);
    let rank = i64::try_from(shape.len()).unwrap_or(2);
    let m = x.extent(data, rank - 1);
    let extents: Vec<Value> = (0..rank).map(|a| x.extent(data, a)).collect();
    let mut n = x.ints(&[1]);
    for &b in &extents[..shape.len() - 2] {
        n = x.op("Mul", &[n, b], &[]);
    }
    let a = x.cast(data, t);
    let a = x.reshape_to(a, &[n, m, m]);
    let rows = x.count_to(m);
    let (row, column) = (x.unsqueeze(rows, &[1]), x.unsqueeze(rows, &[0]));
    let unit = x.op("Equal", &[row, column], &[]);
    let unit = x.cast(unit, t);
    let all = x.concat(&[n, m, m], 0);
    let unit = x.op("Expand", &[unit, all], &[]);
    let trips = x.squeeze(m, &[0]);
    let along = |a: i64| [("axis", Attr::Int(a))];
    let results = x.repeat(trips, &[a, unit], &[rows], |x, i, state, captured| {
        let (a, b, rows) = (state[0], state[1], captured[0]);
        let minus = x.scalar(t, -1.0);
        let column = x.op("Gather", &[a, i], &along(2));
        let size = x.op("Abs", &[column], &[]);
        let left = x.op("GreaterOrEqual", &[rows, i], &[]);
        let size = x.op("Where", &[left, size, minus], &[]);
        let best = x.op("ArgMax", &[size], &along(1));
        let is_best = x.op("Equal", &[rows, best], &[]);
        let is_best = x.unsqueeze(is_best, &[2]);
        let here = x.op("Equal", &[rows, i], &[]);
        let here = x.unsqueeze(here, &[0, 2]);
        let at = x.unsqueeze(best, &[2]);
        // The rows of both that go up.
        let mut up = |v: Value| {
            let current = x.op("Gather", &[v, i], &along(1));
            let current = x.unsqueeze(current, &[1]);
            let like = x.op("Shape", &[current], &[]);
            let at = x.op("Expand", &[at, like], &[]);
            let best = x.op("GatherElements", &[v, at], &along(1));
            (x.op("Where", &[is_best, current, v], &[]), best)
        };
        let ((a, from_a), (b, from_b)) = (up(a), up(b));
        let pivot = x.op("Gather", &[from_a, i], &along(2));
        let pivot = x.unsqueeze(pivot, &[2]);
        let (from_a, from_b) = (x.op("Div", &[from_a, pivot], &[]), x.op("Div", &[from_b, pivot], &[]));
        let factor = x.op("Gather", &[a, i], &along(2));
        let factor = x.unsqueeze(factor, &[2]);
        let mut off = |v: Value, row: Value| {
            let multiple = x.op("Mul", &[factor, row], &[]);
            let rest = x.op("Sub", &[v, multiple], &[]);
            x.op("Where", &[here, row, rest], &[])
        };
        Ok((vec![off(a, from_a), off(b, from_b)], vec![]))
    })?;
    let y = x.reshape_to(results[1], &extents);
    Ok(vec![x.cast(y, dtype)])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // X · Y = 1, for the matrices in the last two axes
    OpDef {
        name: "Inverse",
        domain: MICROSOFT,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", FLOATS)],
        infer: |c| {
            same_type_as_0(c)?;
            match c.shape(0).as_deref() {
                Some([.., rows, columns]) => c.require_eq(*rows, *columns, "matrices are square"),
                Some(_) => Err(c.error(ErrorKind::Shape, "Inverse needs matrices")),
                None => Ok(()),
            }
        },
        reference: Some(|c| Ok(vec![reference::matmul::inverse(c.input(0)?)?])),
        lower: &[Expand(expand_inverse)],
        tolerance: Tol::Rel(1e-4),
        cases: &[
            "[3,3]{4,1,-1,2,5,0.5,-1,0.25,3}",
            "[2,2]{0,2,4,0}",
            "[2,4,4]{0,1,0.5,4,5,0.25,1,-1,1,-6,0,2,0.5,1,7,1}",
            "[2,1,1]{4,-0.5}",
            "[2,3,3,3]{0,0,2,4,1,1,0.5,3,-1}",
            "[0,2,2]",
            "[3,0,0]",
        ],
        ..ROW
    },
];
