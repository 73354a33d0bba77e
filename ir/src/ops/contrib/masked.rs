//! Pooling of what a mask leaves.

use super::super::pool::COMMON;
use super::super::row::ROW;
use super::super::window::{geometry, window};
use super::MICROSOFT;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, attr, req};
use crate::ty::Shape;
use reference::crop::masked_max_pool;
use tensor::DType::{Bool, F32, I32, I64};
use tensor::{ErrorKind, Result, Tensor};

fn int(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(0)
}

fn infer_masked(c: &mut InferCtx) -> Result<()> {
    let fail = |c: &InferCtx, what: String| Err(c.error(ErrorKind::Shape, format!("MaxpoolWithMask: {what}")));
    let dtype = c.dtype(0)?;
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if !(3..=5).contains(&x.len()) {
        return fail(c, format!("X has {} axes, not 3 to 5", x.len()));
    }
    if let Some(m) = c.shape(1) {
        if m.len() != x.len() {
            return fail(c, format!("the mask has {} axes, X {}", m.len(), x.len()));
        }
        let one = c.dims.constant(1);
        for (i, (&a, &b)) in m.iter().zip(&x).enumerate() {
            if i > 1 || a != one {
                c.require_eq(a, b, "the mask has the extents of X, or is one for all")?;
            }
        }
    }
    let g = geometry(c.dims, c.attrs, None, &x[2..], None, false);
    let g = g.map_err(|e| c.error(e.kind(), format!("MaxpoolWithMask: {}", e.message())))?;
    let mut out: Shape = [x[0], x[1]].into_iter().collect();
    out.extend(g.counted(c)?);
    c.set(0, dtype, out);
    Ok(())
}

/// Pads of spatial axis `a` of `rank`, each a list of one integer.
fn pads(x: &mut Expansion, data: Value, a: usize, rank: usize) -> (Value, Value) {
    let number = |x: &Expansion, slot: usize, i: usize| x.attrs().ints(slot).and_then(|v| v.get(i).copied());
    let auto = x.attrs().str(0).unwrap_or("NOTSET").to_owned();
    if !auto.starts_with("SAME") {
        let of = |x: &Expansion, i: usize| if auto == "VALID" { 0 } else { number(x, 2, i).unwrap_or(0) };
        let (begin, end) = (of(x, a), of(x, a + rank));
        return (x.ints(&[begin]), x.ints(&[end]));
    }
    let (stride, kernel) = (number(x, 3, a).unwrap_or(1), number(x, 1, a).unwrap_or(1));
    let n = x.extent(data, int(2 + a));
    let (zero, one, two) = (x.ints(&[0]), x.ints(&[1]), x.ints(&[2]));
    let (stride, kernel) = (x.ints(&[stride]), x.ints(&[kernel]));
    // As many windows as strides fit the image, rounded up.
    let before = x.op("Sub", &[stride, one], &[]);
    let more = x.op("Add", &[n, before], &[]);
    let windows = x.op("Div", &[more, stride], &[]);
    let last = x.op("Sub", &[windows, one], &[]);
    let reach = x.op("Mul", &[last, stride], &[]);
    let reach = x.op("Add", &[reach, kernel], &[]);
    let total = x.op("Sub", &[reach, n], &[]);
    let total = x.op("Max", &[total, zero], &[]);
    let small = x.op("Div", &[total, two], &[]);
    let large = x.op("Sub", &[total, small], &[]);
    if auto == "SAME_UPPER" { (small, large) } else { (large, small) }
}

/// Whether an element of an image counts, by the mask; of images of several axes the first element always does.
fn counts(x: &mut Expansion, data: Value, mask: Value, rank: usize) -> Value {
    let zero = x.scalar(I32, 0.0);
    let out = x.op("Equal", &[mask, zero], &[]);
    let kept = x.op("Not", &[out], &[]);
    if rank == 1 {
        return kept;
    }
    let mut first = None;
    for a in 0..rank {
        let n = x.extent(data, int(2 + a));
        let steps = x.count_to(n);
        let axes: Vec<i64> = (1..rank - a).map(int).collect();
        let steps = if axes.is_empty() { steps } else { x.unsqueeze(steps, &axes) };
        let zero = x.scalar(I64, 0.0);
        let here = x.op("Equal", &[steps, zero], &[]);
        first = Some(first.map_or(here, |f| x.op("And", &[f, here], &[])));
    }
    first.map_or(kept, |f| x.op("Or", &[kept, f], &[]))
}

/// A step for each element of the window: along its last axis a row ends at the first element that does not count.
fn expand_masked(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, mask) = (x.need(0)?, x.need(1)?);
    let rank = x.tensor(data)?.1.len() - 2;
    let kernel = x.attrs().ints(1).unwrap_or(&[]).to_vec();
    let strides = x.attrs().ints(3).map_or_else(|| vec![1; rank], <[i64]>::to_vec);
    let kept = counts(x, data, mask, rank);
    let pads: Vec<(Value, Value)> = (0..rank).map(|a| pads(x, data, a, rank)).collect();
    let none = x.ints(&[0, 0]);
    let (begin, end): (Vec<Value>, Vec<Value>) = pads.into_iter().unzip();
    let all: Vec<Value> = [none].into_iter().chain(begin).chain([none]).chain(end).collect();
    let all = x.concat(&all, 0);
    let (least, yes) = (x.scalar(F32, f32::MIN.into()), x.constant(&Tensor::from_i64_as(Bool, &[], &[1])));
    let image = x.op("Pad", &[data, all, least], &[]);
    let kept = x.op("Pad", &[kept, all, yes], &[]);
    let (axes, steps) = (x.ints(&(2..2 + int(rank)).collect::<Vec<_>>()), x.ints(&strides));
    let mut best = least;
    let mut goes_on: Option<Value> = None;
    for i in 0..kernel.iter().product::<i64>() {
        let mut rest = i;
        let mut at = vec![0; rank];
        for a in (0..rank).rev() {
            (at[a], rest) = (rest % kernel[a], rest / kernel[a]);
        }
        let to: Vec<i64> =
            at.iter().zip(&kernel).map(|(&k, &n)| if k + 1 == n { i64::MAX } else { k + 1 - n }).collect();
        let (from, to) = (x.ints(&at), x.ints(&to));
        let mut tap = |v: Value| x.op("Slice", &[v, from, to, axes, steps], &[]);
        let (value, counts) = (tap(image), tap(kept));
        let row = match goes_on.filter(|_| at[rank - 1] > 0) {
            Some(row) => x.op("And", &[row, counts], &[]),
            None => counts,
        };
        goes_on = Some(row);
        // Not a maximum: NaN does not count.
        let greater = x.op("Greater", &[value, best], &[]);
        let taken = x.op("And", &[greater, row], &[]);
        best = x.op("Where", &[taken, value, best], &[]);
    }
    Ok(vec![best])
}

fn masked_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let w = window(c.attrs, None, x.shape().get(2..).unwrap_or(&[]), None, false)?;
    Ok(vec![masked_max_pool(x, c.input(1)?, &w)?])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // MaxPool of elements whose mask is not 0; a row of a window ends at the first element that the mask leaves out
    OpDef {
        name: "MaxpoolWithMask",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("M", "M")],
        outputs: &[req("Y", "T")],
        // The order of storage is one of indices, which are no result.
        attrs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], attr("storage_order", AttrKind::Int(0))],
        dtypes: &[("T", &[F32]), ("M", &[I32])],
        infer: infer_masked,
        reference: Some(masked_ref),
        lower: &[Expand(expand_masked)],
        cases: &[
            "[2,3,7];i32[1,1,7]{1,1,0,1,0,0,1} kernel_shape=[3] pads=[1,1]",
            "[1,2,5,6];[1,2,5,6]{0,1,1,1,0,1,1} kernel_shape=[2,3] strides=[2,1]",
            "[1,2,5,6];[1,1,5,6]{1,0,1,1,1,0,1} kernel_shape=[3,2] auto_pad=SAME_UPPER strides=[2,2]",
            "[1,1,3,4,3];[1,1,3,4,3]{1,0,1,1,1} kernel_shape=[2,2,2] pads=[0,1,0,1,0,1] storage_order=1",
            "[1,1,5,6];[1,1,5,6]{0} kernel_shape=[3,2] auto_pad=VALID",
        ],
        ..ROW
    },
];
