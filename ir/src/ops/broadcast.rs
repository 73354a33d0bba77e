//! Numpy broadcasting of symbolic shapes, and of integer tensors whose elements are known as dims.

use crate::op::InferCtx;
use crate::ty::{PartialShape, Shape};
use tensor::dims::{Origin, Proof};
use tensor::{DType, DimId, DimPool, Result};

/// The broadcast of shapes, aligned at their last axes. An extent that is never above 1 (that of `x[-1:]`) repeats where it is 1 and
/// leaves nothing where it is 0. Of two others that are not known to be equal, both are required to be equal: a symbol that may be 1
/// at run time against another extent becomes a guard, never a choice.
///
/// # Errors
/// `Shape` when two extents can never be equal.
pub fn broadcast(c: &mut InferCtx, shapes: &[Shape]) -> Result<Shape> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let one = c.dims.constant(1);
    let mut out = Shape::from_elem(one, rank);
    for s in shapes {
        let pad = rank - s.len();
        for (axis, &d) in s.iter().enumerate() {
            out[pad + axis] = join(c, out[pad + axis], d, &format!("broadcast along axis {}", pad + axis))?;
        }
    }
    Ok(out)
}

/// The broadcast of two extents; see [`broadcast`].
///
/// # Errors
/// `Shape` when they can never be equal.
pub fn join(c: &mut InferCtx, a: DimId, b: DimId, what: &str) -> Result<DimId> {
    if a == b || c.dims.range(b) == (1, 1) {
        return Ok(a);
    }
    if c.dims.range(a) == (1, 1) {
        return Ok(b);
    }
    match (c.dims.is_at_most_one(a), c.dims.is_at_most_one(b)) {
        (true, _) => spread(c, a, b, what),
        (_, true) => spread(c, b, a, what),
        _ if c.dims.is_part(a, b) => left_by(c, a, b, what),
        _ if c.dims.is_part(b, a) => left_by(c, b, a, what),
        _ => {
            c.require_eq(a, b, what)?;
            // The constant is the better known of the two.
            Ok(if c.dims.as_const(b).is_some() { b } else { a })
        }
    }
}

/// The broadcast of an extent `a` that is 0 or 1 with another one: `b` where `a` is 1, else 0, which needs `b` to be at most 1.
fn spread(c: &mut InferCtx, a: DimId, b: DimId, what: &str) -> Result<DimId> {
    if c.dims.vanishes_with(b, a) {
        return Ok(b);
    }
    // Nor is `b` taken for 0 where it is an extent that a loop carries: it would be another one in each iteration.
    let carried = |s| c.dims.sym(s).origin == Origin::Region;
    if c.dims.as_const(a) == Some(0) && c.dims.symbols_of(b).into_iter().any(carried) {
        c.require_eq(a, b, what)?;
        return Ok(a);
    }
    if c.dims.range(b).0 > 1 || c.dims.symbols_of(b).into_iter().any(carried) {
        let one = c.dims.constant(1);
        c.require_eq(a, one, what)?;
        return Ok(b);
    }
    if c.dims.is_at_most_one(b) && c.dims.vanishes_with(a, b) {
        return Ok(a);
    }
    let both = c.dims.mul(a, b);
    left_by(c, both, b, what)
}

/// `part`, which is `whole` or 0: what an extent that is 0 or 1 leaves of `whole` in a broadcast. Where it leaves nothing, `whole` must
/// be at most 1.
fn left_by(c: &mut InferCtx, part: DimId, whole: DimId, what: &str) -> Result<DimId> {
    let one = c.dims.constant(1);
    let most = c.dims.add(part, one);
    let what = format!("{}: {what}, where an extent is 0", c.def.name);
    c.require_le(whole, most, &what);
    Ok(part)
}

/// The broadcast of all present operands from `first` on; `None` while a rank is unknown.
///
/// # Errors
/// As [`broadcast`].
pub fn broadcast_operands(c: &mut InferCtx, operands: &[usize]) -> Result<Option<Shape>> {
    let shapes: Option<Vec<Shape>> = operands.iter().filter(|&&i| c.has(i)).map(|&i| c.shape(i)).collect();
    match shapes {
        Some(s) => broadcast(c, &s).map(Some),
        None => Ok(None),
    }
}

/// Requires `from` to broadcast to `to` without changing it (the second operand of PRelu, scales of norms).
///
/// # Errors
/// `Shape` when it never does.
pub fn require_broadcasts_to(c: &mut InferCtx, from: &Shape, to: &Shape, what: &str) -> Result<()> {
    if from.len() > to.len() {
        let (a, b) = (from.len(), to.len());
        let name = c.def.name;
        return Err(
            c.error(tensor::ErrorKind::Shape, format!("{name}: {what} has rank {a}, more than the {b} of the data"))
        );
    }
    for (&f, &t) in from.iter().rev().zip(to.iter().rev()) {
        match c.dims.range(f) {
            (1, 1) => {}
            // 1, or 0 where there is nothing.
            (0, 1) if c.dims.vanishes_with(t, f) => {}
            (0, 1) => {
                let left = c.dims.mul(t, f);
                c.require_eq(left, t, what)?;
            }
            _ => c.require_eq(f, t, what)?,
        }
    }
    Ok(())
}

/// Sets result `out` to the broadcast of operands, of type `dtype`.
///
/// # Errors
/// As [`broadcast`].
pub fn set_broadcast(c: &mut InferCtx, out: usize, dtype: DType, operands: &[usize]) -> Result<()> {
    match broadcast_operands(c, operands)? {
        Some(s) => c.set(out, dtype, s),
        None => c.set_unranked(out, dtype),
    }
    Ok(())
}

/// Elements of operand `i` as dims: known by inference, or read from a small integer or bool constant of rank 0 or 1.
pub fn elements(c: &mut InferCtx, i: usize) -> Option<Shape> {
    if let Some(v) = c.values(i) {
        return Some(v);
    }
    let x = c.ins.get(i)?.as_ref()?;
    let k = &c.consts[x.konst?];
    if !(k.dtype.is_int() || k.dtype == DType::Bool) || k.shape.len() > 1 || k.n_elems() > 64 {
        return None;
    }
    let ints = k.read().ok()?.to_i64_vec();
    Some(ints.into_iter().map(|v| c.dims.constant(v)).collect())
}

/// Computes the elements of result 0, when the elements of all `operands` are known as dims and the result has rank 0 or 1.
/// `f` gets one element of each operand; an element for which it gives `None`, or that may leave the element type, stays unknown.
pub fn map_values(c: &mut InferCtx, operands: &[usize], f: impl Fn(&mut DimPool, &[DimId]) -> Option<DimId>) {
    let Some(out) = c.outs.first().and_then(|t| t.shape()).filter(|s| s.len() <= 1).cloned() else { return };
    let n = out.first().map_or(Some(1), |&d| c.dims.as_const(d)).and_then(|n| usize::try_from(n).ok());
    let Some(n) = n.filter(|&n| n <= 64) else { return };
    let mut elems = Vec::with_capacity(operands.len());
    for &i in operands {
        match elements(c, i) {
            Some(v) if v.len() == n || v.len() == 1 => elems.push(v),
            _ => return,
        }
    }
    let values: PartialShape = (0..n)
        .map(|k| {
            let args: Vec<DimId> = elems.iter().map(|v| v[if v.len() == 1 { 0 } else { k }]).collect();
            f(c.dims, &args).and_then(|d| held(c, d))
        })
        .collect();
    c.set_known(0, values);
}

/// `d` as an element of result 0. In an i32 tensor constants wrap, and other dims are elements only where they cannot leave
/// the type: extents are required not to, what the run computes may wrap there and is read from the tensor instead.
pub fn held(c: &mut InferCtx, d: DimId) -> Option<DimId> {
    if c.outs.first().and_then(|t| t.dtype()) != Some(DType::I32) {
        return Some(d);
    }
    if let Some(k) = c.dims.as_const(d) {
        let low = u32::try_from(k.rem_euclid(1 << 32)).ok()?;
        return Some(c.dims.constant(low.cast_signed().into()));
    }
    let (least, greatest) = (i64::from(i32::MIN), i64::from(i32::MAX));
    let (lo, hi) = c.dims.range(d);
    if lo >= least && hi <= greatest {
        return Some(d);
    }
    if c.dims.symbols_of(d).into_iter().any(|s| c.dims.sym(s).origin == Origin::ShapeValue) {
        return None;
    }
    let (least, greatest) = (c.dims.constant(least), c.dims.constant(greatest));
    let what = format!("{}: an extent in an i32 tensor must be below 2³¹", c.def.name);
    c.require_le(least, d, &what);
    c.require_le(d, greatest, &what);
    Some(d)
}

/// A 0 or 1 for a proof; `None` while undecided.
pub fn truth(dims: &mut DimPool, p: Proof) -> Option<DimId> {
    match p {
        Proof::Yes => Some(dims.constant(1)),
        Proof::No => Some(dims.constant(0)),
        Proof::Unknown => None,
    }
}
