//! Sums with a bias that a softmax or a gate follows.

use super::super::row::{FLOATS, ROW};
use super::{MICROSOFT, T, require_divides, wide};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req};
use reference::data::{f64s, from_f64s};
use tensor::DType::F64;
use tensor::dims::Proof;
use tensor::{Diagnostic, DimId, DimPool, ErrorKind, Result, Tensor};

const AXIS: usize = 0;
const INNER: usize = 1;

fn is_inner(attrs: &crate::attrs::Attrs) -> bool {
    attrs.int(INNER).is_some_and(|v| v != 0)
}

fn infer_softmax(c: &mut InferCtx) -> Result<()> {
    c.set_type(0, c.ty(0).clone());
    let (Some(s), Some(b)) = (c.shape(0), c.shape(1)) else { return Ok(()) };
    let axis = c.axis(c.attrs.int(AXIS).unwrap_or(1), s.len())?;
    let summed = s.len() - axis;
    let Some(own) = b.len().checked_sub(summed) else {
        let text = format!("BiasSoftmax: the bias has {} axes, and {summed} axes are normalized", b.len());
        return Err(c.error(ErrorKind::Shape, text));
    };
    for (&d, &n) in b[own..].iter().zip(&s[axis..]) {
        c.require_eq(d, n, "the bias has the axes that are normalized")?;
    }
    if broadcasts(c.dims, &s[..axis], &b[..own], is_inner(c.attrs)) {
        return Ok(());
    }
    let rows = c.dims.product(b[..own].iter().copied());
    let all = c.dims.product(s[..axis].iter().copied());
    require_divides(c, rows, all, "the rows of the bias divide those of the data")
}

/// Whether adding operands of these extents broadcasts as the attribute says.
fn broadcasts(p: &mut DimPool, data: &[DimId], bias: &[DimId], inner: bool) -> bool {
    let Some(missing) = data.len().checked_sub(bias.len()) else { return false };
    let one = p.constant(1);
    let padded: Vec<DimId> = std::iter::repeat_n(one, missing).chain(bias.iter().copied()).collect();
    let equal = |p: &mut DimPool, of: std::ops::Range<usize>| {
        of.into_iter().all(|i| p.prove_eq(padded[i], data[i]) == Proof::Yes)
    };
    let ones = |of: &[DimId]| of.iter().all(|&d| d == one);
    (0..=data.len()).any(|at| match inner {
        true => ones(&padded[at..]) && equal(p, 0..at),
        false => ones(&padded[..at]) && equal(p, at..data.len()),
    })
}

/// The product of the extents of a value along axes, a list of one integer.
fn product(x: &mut Expansion, v: Value, axes: std::ops::Range<usize>) -> Value {
    let mut n = x.ints(&[1]);
    for a in axes {
        let extent = x.extent(v, i64::try_from(a).unwrap_or(0));
        n = x.op("Mul", &[n, extent], &[]);
    }
    n
}

fn expand_softmax(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, bias) = (x.need(0)?, x.need(1)?);
    let ((dtype, s), (_, b)) = (x.tensor(data)?, x.tensor(bias)?);
    let (rank, inner) = (s.len(), is_inner(x.attrs()));
    let axis = super::super::movement::checked_axis(x.attrs().int(AXIS).unwrap_or(1), rank);
    let own = b.len().saturating_sub(rank - axis);
    let t = wide(dtype);
    let (v, w) = (x.cast(data, t), x.cast(bias, t));
    let last = [("axis", Attr::Int(-1))];
    if axis + 1 == rank && broadcasts(&mut x.module_mut().dims, &s[..axis], &b[..own], inner) {
        let y = x.op("Add", &[v, w], &[]);
        let y = x.op("Softmax", &[y], &last);
        return Ok(vec![x.cast(y, dtype)]);
    }
    // Rows of data: one row of the bias for several in turn, or all of them again and again.
    let (n, all, rows) = (product(x, data, axis..rank), product(x, data, 0..axis), product(x, bias, 0..own));
    let one = x.ints(&[1]);
    let some = x.op("Max", &[rows, one], &[]);
    let times = x.op("Div", &[all, some], &[]);
    let (v, w) = match inner {
        true => (x.reshape_to(v, &[rows, times, n]), x.reshape_to(w, &[rows, one, n])),
        false => (x.reshape_to(v, &[times, rows, n]), x.reshape_to(w, &[one, rows, n])),
    };
    let y = x.op("Add", &[v, w], &[]);
    let y = x.op("Softmax", &[y], &last);
    let extents: Vec<Value> = (0..rank).map(|a| x.extent(data, i64::try_from(a).unwrap_or(0))).collect();
    let y = x.reshape_to(y, &extents);
    Ok(vec![x.cast(y, dtype)])
}

fn softmax_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, bias) = (c.input(0)?, c.input(1)?);
    let axis = super::super::movement::checked_axis(c.attrs.int(AXIS).unwrap_or(1), x.shape().len());
    let n: usize = x.shape()[axis..].iter().product();
    let (v, b) = (f64s(x), f64s(bias));
    let (all, rows) = (v.len().checked_div(n).unwrap_or(0), b.len().checked_div(n).unwrap_or(0));
    if all > 0 && (rows == 0 || all % rows != 0) {
        let text = format!("BiasSoftmax: a bias of {rows} rows for {all} rows");
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let row = |i: usize| if is_inner(c.attrs) { i / (all / rows) } else { i % rows };
    let sums: Vec<f64> =
        (0..all).flat_map(|i| (0..n).map(move |k| (i, k))).map(|(i, k)| v[i * n + k] + b[row(i) * n + k]).collect();
    let flat = reference::reduce::softmax(&from_f64s(F64, &[all, n], &sums), &[false, true], false);
    Ok(vec![from_f64s(x.dtype(), x.shape(), &f64s(&flat))])
}

fn infer_split(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let [n, places, d] = *s.as_slice() else {
        return Err(c.error(ErrorKind::Shape, format!("BiasSplitGelu: X has {} axes, not 3", s.len())));
    };
    match c.shape(1).as_deref() {
        Some(&[m]) => c.require_eq(m, d, "the bias has an element for each of the last axis")?,
        Some(b) => {
            return Err(c.error(ErrorKind::Shape, format!("BiasSplitGelu: the bias has {} axes, not 1", b.len())));
        }
        None => {}
    }
    let (two, zero) = (c.dims.constant(2), c.dims.constant(0));
    let rest = c.dims.modulo(d, two);
    c.require_eq(rest, zero, "the last axis has two halves")?;
    let half = c.dims.floordiv(d, two);
    c.set(0, dtype, [n, places, half]);
    Ok(())
}

fn split_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, bias) = (c.input(0)?, f64s(c.input(1)?));
    let d = bias.len();
    if x.shape().len() != 3 || x.shape()[2] != d || d % 2 != 0 {
        let text = format!("BiasSplitGelu: {d} elements of the bias for {:?}", x.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let v: Vec<f64> = f64s(x).iter().enumerate().map(|(i, v)| v + bias[i % d]).collect();
    let rows = v.chunks(d.max(1));
    let y: Vec<f64> =
        rows.flat_map(|r| (0..d / 2).map(|i| r[i] * reference::math::gelu(r[d / 2 + i])).collect::<Vec<_>>()).collect();
    Ok(vec![from_f64s(x.dtype(), &[x.shape()[0], x.shape()[1], d / 2], &y)])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = softmax(data + bias) over the axes from `axis` on; the bias broadcasts along the axes before it, inner or outer ones
    OpDef {
        name: "BiasSoftmax",
        domain: MICROSOFT,
        inputs: &[req("data", "T"), req("bias", "T")],
        outputs: &[req("output", "T")],
        attrs: &[attr("axis", AttrKind::Int(1)), attr("is_inner_broadcast", AttrKind::IntReq)],
        dtypes: &[T],
        infer: infer_softmax,
        reference: Some(softmax_ref),
        lower: &[Expand(expand_softmax)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,4,5];[2,1,1,5] axis=3 is_inner_broadcast=1",
            "[2,3,4,5];[1,1,4,5] axis=-1 is_inner_broadcast=0",
            "[2,3,4];[4] axis=2 is_inner_broadcast=0",
            "[2,3,4,5];[2,1,4,5] axis=2 is_inner_broadcast=1",
            "[2,3,4,5];[3,4,5] axis=2 is_inner_broadcast=0",
            "[6,5];[2,5] is_inner_broadcast=1",
            "[6,5];[2,5] is_inner_broadcast=0",
            "[2,5];[2,5] is_inner_broadcast=0",
        ],
        ..ROW
    },
    // Y = left half of (X + bias) · gelu(right half)
    OpDef {
        name: "BiasSplitGelu",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("bias", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", FLOATS)],
        infer: infer_split,
        reference: Some(split_ref),
        lower: &[Expand(|x| {
            let (data, bias) = (x.need(0)?, x.need(1)?);
            let dtype = x.tensor(data)?.0;
            let (v, b) = (x.cast(data, wide(dtype)), x.cast(bias, wide(dtype)));
            let sum = x.op("Add", &[v, b], &[]);
            let halves = x.op_n("Split", &[sum], &[("axis", Attr::Int(-1)), ("num_outputs", Attr::Int(2))], 2);
            let gate = x.op("Gelu", &[halves[1]], &[]);
            let y = x.op("Mul", &[halves[0], gate], &[]);
            Ok(vec![x.cast(y, dtype)])
        })],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,8];[8]", "[1,5,2];[2]", "[0,3,4];[4]"],
        ..ROW
    },
];
