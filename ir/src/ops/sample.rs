//! Elements between elements: places and weights of which rows that interpolate build their loop nests.

use super::loops::Builder;
use crate::lowering::Plan;
use crate::nest::{BinOp, Coord, Expr, ExprId, UnOp};
use crate::op::InferCtx;
use smallvec::SmallVec;
use tensor::{DType, DType::*, DimId};

/// Extents up to here are exact in f32, in which coordinates are computed.
pub(super) const MOST: i64 = 1 << 24;

/// States that coordinates along an axis are exact in f32.
pub(super) fn require_exact(c: &mut InferCtx, n: DimId) {
    let (most, name) = (c.dims.constant(MOST), c.def.name);
    c.require_le(n, most, &format!("{name}: extents are at most {MOST}, up to which coordinates in f32 are exact"));
}

/// An element along one axis that takes part in a weighted sum.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    /// Its index, within the axis.
    pub index: ExprId,
    /// Its weight.
    pub weight: ExprId,
    /// Whether it is there, where that is not certain; else it is 0.
    pub inside: Option<ExprId>,
}

/// The type in which elements of type `d` are interpolated: whole numbers in f64, so that a constant image stays what it is when its sums
/// are truncated.
pub(super) fn blend_dtype(d: DType) -> DType {
    if d == F64 || !d.is_float() { F64 } else { F32 }
}

/// A value in another compute type.
pub(super) fn cast(b: &mut Builder, e: ExprId, t: DType) -> ExprId {
    if b.nest.expr_dtype(e) == t { e } else { b.nest.expr(Expr::Cast(e, t)) }
}

/// An extent as a float.
pub(super) fn extent(b: &mut Builder, d: DimId, t: DType) -> ExprId {
    match b.c.dims.as_const(d) {
        Some(k) => b.nest.num(k as f64, t),
        None => {
            let d = b.dim(d);
            b.nest.expr(Expr::Cast(d, t))
        }
    }
}

/// The last coordinate of an axis as a float.
pub(super) fn last(b: &mut Builder, n: DimId, t: DType) -> ExprId {
    let (n, one) = (extent(b, n, t), b.nest.num(1.0, t));
    b.bin(BinOp::Sub, n, one)
}

/// A float within the axis; 0 for NaN. (Choices are one instruction each; `Min` and `Max`, which keep NaN, are several.)
pub(super) fn clamped(b: &mut Builder, v: ExprId, n: DimId) -> ExprId {
    let t = b.nest.expr_dtype(v);
    let (zero, last) = (b.nest.num(0.0, t), last(b, n, t));
    let after = b.bin(BinOp::Gt, v, zero);
    let v = b.select(after, v, zero);
    let before = b.bin(BinOp::Lt, v, last);
    b.select(before, v, last)
}

/// A position along an outer axis of an extent that [`require_exact`] holds, as a number of type `t`: by way of 32 bits, which vectors convert.
pub(super) fn position(b: &mut Builder, axis: usize, t: DType) -> ExprId {
    let o = b.outer(axis);
    let o = b.nest.expr(Expr::Cast(o, I32));
    cast(b, o, t)
}

/// A whole float as an index; of those outside the axis the nearest within it. NaN is the first.
pub(super) fn index(b: &mut Builder, v: ExprId, n: DimId) -> ExprId {
    let v = clamped(b, v, n);
    index_within(b, v)
}

/// The same of one that is within the axis.
pub(super) fn index_within(b: &mut Builder, v: ExprId) -> ExprId {
    // Extents fit: shape rules see to it with `require_exact`.
    let v = b.nest.expr(Expr::Cast(v, I32));
    b.nest.expr(Expr::Cast(v, I64))
}

/// Whether a float is within the axis.
pub(super) fn inside(b: &mut Builder, v: ExprId, n: DimId) -> ExprId {
    let t = b.nest.expr_dtype(v);
    let (zero, last) = (b.nest.num(0.0, t), last(b, n, t));
    let (after, before) = (b.bin(BinOp::Ge, v, zero), b.bin(BinOp::Le, v, last));
    b.bin(BinOp::And, after, before)
}

/// A coordinate as a whole number and what is left, both floats.
pub(super) fn split(b: &mut Builder, at: ExprId) -> (ExprId, ExprId) {
    let floor = b.nest.un(UnOp::Floor, at);
    let part = b.bin(BinOp::Sub, at, floor);
    (floor, part)
}

/// The weights of the two elements around a coordinate: `1 - part` and `part`.
pub(super) fn linear_weights(b: &mut Builder, part: ExprId) -> [ExprId; 2] {
    let one = b.nest.num(1.0, b.nest.expr_dtype(part));
    [b.bin(BinOp::Sub, one, part), part]
}

/// The weights of the four elements around a coordinate, from the one before the nearest two on.
pub(super) fn cubic_weights(b: &mut Builder, part: ExprId, a: f64) -> [ExprId; 4] {
    let t = b.nest.expr_dtype(part);
    [-1.0, 0.0, 1.0, 2.0].map(|k| {
        let step = b.nest.num(k, t);
        let d = if k > 0.0 { b.bin(BinOp::Sub, step, part) } else { b.bin(BinOp::Sub, part, step) };
        cubic(b, d, a, k == 0.0 || k == 1.0)
    })
}

/// The weight of cubic convolution with coefficient `a` at a distance that is not negative: below 1, or from 1 to 2.
pub(super) fn cubic(b: &mut Builder, d: ExprId, a: f64, near: bool) -> ExprId {
    let t = b.nest.expr_dtype(d);
    let coefficients = if near { [a + 2.0, -(a + 3.0), 0.0, 1.0] } else { [a, -5.0 * a, 8.0 * a, -4.0 * a] };
    let mut y = b.nest.num(coefficients[0], t);
    for &c in &coefficients[1..] {
        y = b.bin(BinOp::Mul, y, d);
        if c != 0.0 {
            let c = b.nest.num(c, t);
            y = b.bin(BinOp::Add, y, c);
        }
    }
    y
}

/// The weighted sum of elements of operand 0 in type `t`: nested, the last of the axes innermost. It costs one load per combination of taps.
pub(super) fn blend(b: &mut Builder, at: &mut [Coord], axes: &[(usize, SmallVec<[Tap; 4]>)], t: DType) -> Plan<ExprId> {
    blend_where(b, at, axes, None, t)
}

fn blend_where(
    b: &mut Builder,
    at: &mut [Coord],
    axes: &[(usize, SmallVec<[Tap; 4]>)],
    inside: Option<ExprId>,
    t: DType,
) -> Plan<ExprId> {
    let Some(((axis, taps), rest)) = axes.split_first() else {
        let zero = b.nest.num(0.0, b.dtype(0));
        let v = b.load_if(0, at.to_vec(), inside, zero)?;
        return Ok(cast(b, v, t));
    };
    let mut sum = None;
    for tap in taps {
        at[*axis] = b.computed(tap.index);
        let inside = b.and(inside, tap.inside);
        let v = blend_where(b, at, rest, inside, t)?;
        let v = b.bin(BinOp::Mul, tap.weight, v);
        sum = Some(sum.map_or(v, |s| b.bin(BinOp::Add, s, v)));
    }
    sum.ok_or_else(|| "an axis without elements".into())
}
