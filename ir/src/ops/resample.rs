//! Loop nests that resample along axes.
//!
//! What a nest costs per element of the result, for k resampled axes: nearest 1 load; linear 2ᵏ loads and 2ᵏ - 1 blends; cubic 4ᵏ loads,
//! written out as long as there are at most [`WRITTEN_OUT`]. Indices and weights along an axis depend on the position along it alone: those of
//! all axes but the last are computed once per row, what only the scale decides once per kernel. Antialiasing reduces over as many elements
//! as the weights reach; a sum of the weights runs beside it.

use super::extents::quotient;
use super::loops::{Builder, inner, outer};
use super::sample::{
    Tap, blend, blend_dtype, cast, clamped, cubic, cubic_weights, extent, index, index_within, inside, last,
    linear_weights, position, split,
};
use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest, UnOp};
use reference::resize::{self, Mode, Nearest, Resize, TIE, Transform};
use smallvec::SmallVec;
use tensor::{DType, DType::*, DimId};

/// Most loads that are written out; more are a loop.
const WRITTEN_OUT: usize = 64;

/// The ratio of extents along an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scale {
    /// A number.
    Known(f32),
    /// An element of operand 2.
    Loaded(usize),
    /// Result over operand.
    Extents,
    /// The least (where no result is to be larger than its size) or greatest ratio of these sizes and extents.
    Shared {
        /// Size and extent of each axis that shares it.
        of: Vec<(DimId, DimId)>,
        /// Whether it is the least.
        larger: bool,
    },
}

/// An axis to resample.
#[derive(Clone, Debug)]
pub(super) struct Along {
    /// Which.
    pub axis: usize,
    /// Extent in the operand.
    pub n: DimId,
    /// Extent in the result.
    pub extent: DimId,
    /// See [`Scale`].
    pub scale: Scale,
    /// Where start and end of its part stand in operand 1.
    pub roi: [usize; 2],
}

/// An axis with what its loops need.
struct Lane {
    axis: usize,
    n: DimId,
    /// The coordinate, f32.
    at: ExprId,
    /// The scale, f32.
    scale: ExprId,
    /// Elements on one side that antialiased weights reach.
    reach: Option<DimId>,
}

/// The nest of a Resize.
pub(super) fn resample(c: &mut NodeCtx, how: &Resize, along: &[Along]) -> Plan<Nest> {
    let (x, out) = (c.need(0)?, c.outs[0].clone());
    let mut b = Builder::over_result(c)?;
    let mut at: Vec<Coord> = (0..out.shape.len()).map(|i| b.along(outer(i))).collect();
    let (mut lanes, mut outside) = (Vec::new(), None);
    for a in along {
        if let (Mode::Nearest(nearest), Some(times)) = (how.mode, whole_scale(&mut b, a))
            && repeats(how.transform, nearest)
        {
            // Unsigned and of 32 bits: a shift, or a product.
            let (o, times) = (position(&mut b, a.axis, U32), b.nest.expr(Expr::Int(times, U32)));
            let i = b.bin(BinOp::Div, o, times);
            let i = cast(&mut b, i, I64);
            at[a.axis] = b.computed(i);
            continue;
        }
        let lane = lane(&mut b, how, a)?;
        if how.transform == Transform::TfCropAndResize {
            let within = inside(&mut b, lane.at, a.n);
            let out = b.nest.un(UnOp::Not, within);
            outside = Some(outside.map_or(out, |o| b.bin(BinOp::Or, o, out)));
        }
        lanes.push(lane);
    }
    if let Mode::Nearest(nearest) = how.mode {
        for lane in &lanes {
            let i = nearest_index(&mut b, lane, nearest);
            at[lane.axis] = b.computed(i);
        }
        let v = b.load(0, at)?;
        let v = match outside {
            Some(cond) => {
                let other = value(&mut b, how.extrapolation, out.dtype);
                b.select(cond, other, v)
            }
            None => v,
        };
        return Ok(b.store(v));
    }
    let whole = how.mode == Mode::Linear && !how.antialias && resize::blends_in_f32(x.dtype);
    let t = if whole { F32 } else { blend_dtype(x.dtype) };
    let n_taps = if how.mode == Mode::Linear { 2 } else { 4 };
    let few =
        u32::try_from(lanes.len()).ok().and_then(|k| usize::checked_pow(n_taps, k)).is_some_and(|n| n <= WRITTEN_OUT);
    let v = if whole && few {
        let taps: Vec<_> = lanes.iter().map(|l| (l.axis, between(&mut b, l))).collect();
        products(&mut b, &mut at, &taps)?
    } else if lanes.is_empty() || (few && !how.antialias) {
        let taps: Vec<_> = lanes.iter().map(|l| (l.axis, written_taps(&mut b, l, how.mode, t))).collect();
        blend(&mut b, &mut at, &taps, t)?
    } else {
        reduced(&mut b, at, &lanes, how, t)?
    };
    let v = match outside {
        Some(cond) => {
            let other = b.nest.num(how.extrapolation.into(), t);
            b.select(cond, other, v)
        }
        None => v,
    };
    let y = converted(&mut b, v, out.dtype, how.antialias);
    Ok(b.store(y))
}

/// How often each element stands in the result, where that is a whole number.
fn whole_scale(b: &mut Builder, a: &Along) -> Option<i64> {
    match a.scale {
        Scale::Known(s) if s >= 1.0 && s.fract() == 0.0 && s < 65536.0 => {
            let times = b.c.dims.constant(s as i64);
            (b.c.dims.mul(a.n, times) == a.extent).then_some(s as i64)
        }
        Scale::Extents => match quotient(b.c.dims, &[a.extent], &[a.n]) {
            (q, true) => b.c.dims.as_const(q).filter(|&q| q >= 1),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a whole scale s makes element ⌊x / s⌋ the nearest: (x + ½) / s - ½ is less than ½ away from it.
fn repeats(transform: Transform, nearest: Nearest) -> bool {
    use Transform::*;
    match nearest {
        Nearest::Simple => true,
        Nearest::Floor => matches!(transform, Asymmetric | TfHalfPixelForNn),
        Nearest::RoundPreferFloor | Nearest::RoundPreferCeil => {
            matches!(transform, HalfPixel | HalfPixelSymmetric | PytorchHalfPixel)
        }
        Nearest::Ceil => false,
    }
}

fn float(b: &mut Builder, v: f32) -> ExprId {
    b.nest.num(v.into(), F32)
}

fn scale(b: &mut Builder, a: &Along) -> Plan<ExprId> {
    Ok(match &a.scale {
        Scale::Known(s) => float(b, *s),
        Scale::Loaded(k) => {
            let k = b.fixed_at(*k as i64);
            b.load(2, [k])?
        }
        Scale::Extents => {
            let (m, n) = (extent(b, a.extent, F32), extent(b, a.n, F32));
            b.bin(BinOp::Div, m, n)
        }
        Scale::Shared { of, larger } => {
            let op = if *larger { BinOp::Min } else { BinOp::Max };
            let mut best = None;
            for &(m, n) in of {
                let (m, n) = (extent(b, m, F32), extent(b, n, F32));
                let ratio = b.bin(BinOp::Div, m, n);
                best = Some(best.map_or(ratio, |r| b.bin(op, r, ratio)));
            }
            best.unwrap_or_else(|| float(b, 1.0))
        }
    })
}

/// The coordinate along an axis, in the order of operations of the reference.
fn lane(b: &mut Builder, how: &Resize, a: &Along) -> Plan<Lane> {
    let scale = scale(b, a)?;
    let x = position(b, a.axis, F32);
    let (half, one, n) = (float(b, 0.5), float(b, 1.0), extent(b, a.n, F32));
    let width = |b: &mut Builder| match a.scale {
        Scale::Extents => extent(b, a.extent, F32),
        _ => b.bin(BinOp::Mul, n, scale),
    };
    let centered = |b: &mut Builder| {
        let x = b.bin(BinOp::Add, x, half);
        b.bin(BinOp::Div, x, scale)
    };
    let at = match how.transform {
        Transform::HalfPixel | Transform::PytorchHalfPixel => {
            let x = centered(b);
            b.bin(BinOp::Sub, x, half)
        }
        Transform::HalfPixelSymmetric => {
            let (whole, width) = (extent(b, a.extent, F32), width(b));
            let ratio = b.bin(BinOp::Div, whole, width);
            let rest = b.bin(BinOp::Sub, one, ratio);
            let center = b.bin(BinOp::Mul, n, half);
            let offset = b.bin(BinOp::Mul, center, rest);
            let x = centered(b);
            let x = b.bin(BinOp::Add, offset, x);
            b.bin(BinOp::Sub, x, half)
        }
        Transform::AlignCorners => {
            let (n, width) = (last(b, a.n, F32), width(b));
            let width = b.bin(BinOp::Sub, width, one);
            let x = b.bin(BinOp::Mul, x, n);
            b.bin(BinOp::Div, x, width)
        }
        Transform::Asymmetric => b.bin(BinOp::Div, x, scale),
        Transform::TfHalfPixelForNn => centered(b),
        Transform::TfCropAndResize => {
            let mut part = |k: usize| {
                let k = b.fixed_at(i64::try_from(k).unwrap_or(i64::MAX));
                let v = b.load(1, [k])?;
                Plan::Ok(b.nest.expr(Expr::Cast(v, F32)))
            };
            let (start, end) = (part(a.roi[0])?, part(a.roi[1])?);
            let (n, m) = (last(b, a.n, F32), last(b, a.extent, F32));
            let first = b.bin(BinOp::Mul, start, n);
            let len = b.bin(BinOp::Sub, end, start);
            let step = b.bin(BinOp::Mul, x, len);
            let step = b.bin(BinOp::Mul, step, n);
            let step = b.bin(BinOp::Div, step, m);
            let many = b.bin(BinOp::Add, first, step);
            let sum = b.bin(BinOp::Add, start, end);
            let middle = b.bin(BinOp::Mul, half, sum);
            let middle = b.bin(BinOp::Mul, middle, n);
            single_or(b, a.extent, middle, many)
        }
    };
    let zero = float(b, 0.0);
    let at = match how.transform {
        Transform::PytorchHalfPixel | Transform::AlignCorners => single_or(b, a.extent, zero, at),
        _ => at,
    };
    let reach = if how.antialias { Some(reach(b, how, a)) } else { None };
    Ok(Lane { axis: a.axis, n: a.n, at, scale, reach })
}

/// One value where the result has one element, else the other.
fn single_or(b: &mut Builder, extent: DimId, single: ExprId, many: ExprId) -> ExprId {
    match b.c.dims.range(extent) {
        (_, hi) if hi <= 1 => single,
        (lo, _) if lo > 1 => many,
        _ => {
            let (one, m) = (b.int(1), b.dim(extent));
            let is_single = b.bin(BinOp::Le, m, one);
            b.select(is_single, single, many)
        }
    }
}

/// Elements on each side of a coordinate that weights stretched by 1 / scale reach.
fn reach(b: &mut Builder, how: &Resize, a: &Along) -> DimId {
    let p = &mut *b.c.dims;
    let (one, r) = (p.constant(1), if how.mode == Mode::Linear { 1 } else { 2 });
    let least = p.constant(r);
    let mut over = |m: DimId, n: DimId| {
        let (n, m) = (p.mul(n, least), p.max(m, one));
        p.ceildiv(n, m)
    };
    let far = match &a.scale {
        Scale::Known(s) => {
            let far = -(-(r as f32) / s.min(1.0)).floor();
            p.constant(far as i64)
        }
        // Of a scale that is loaded the extent was rounded down: this is not less than what its weights reach.
        Scale::Extents | Scale::Loaded(_) => over(a.extent, a.n),
        Scale::Shared { of, larger } => {
            let all: Vec<DimId> = of.iter().map(|&(m, n)| over(m, n)).collect();
            // The least scale reaches farthest.
            let join = |x, y| if *larger { p.max(x, y) } else { p.min(x, y) };
            all.into_iter().reduce(join).unwrap_or(least)
        }
    };
    b.c.dims.max(far, least)
}

fn nearest_index(b: &mut Builder, lane: &Lane, nearest: Nearest) -> ExprId {
    let (half, one, zero) = (float(b, 0.5), float(b, 1.0), float(b, 0.0));
    let (floor, part) = split(b, lane.at);
    let v = match nearest {
        Nearest::RoundPreferFloor | Nearest::RoundPreferCeil => {
            let off = b.bin(BinOp::Sub, part, half);
            let prefer_floor = nearest == Nearest::RoundPreferFloor;
            let tie = float(b, if prefer_floor { TIE } else { -TIE });
            let up = b.bin(if prefer_floor { BinOp::Gt } else { BinOp::Ge }, off, tie);
            let step = b.select(up, one, zero);
            b.bin(BinOp::Add, floor, step)
        }
        Nearest::Floor => floor,
        Nearest::Ceil => b.nest.un(UnOp::Ceil, lane.at),
        Nearest::Simple => {
            let down = b.bin(BinOp::Lt, lane.scale, one);
            let ceil = b.nest.un(UnOp::Ceil, lane.at);
            b.select(down, ceil, floor)
        }
    };
    index(b, v, lane.n)
}

/// The elements around a coordinate with their weights in type `t`.
fn written_taps(b: &mut Builder, lane: &Lane, mode: Mode, t: DType) -> SmallVec<[Tap; 4]> {
    let (a, exclude) = match mode {
        Mode::Cubic { a, exclude_outside } => (f64::from(a), exclude_outside),
        _ => {
            // Within the axis the coordinate is between two of its elements, or the last.
            let at = clamped(b, lane.at, lane.n);
            let (floor, part) = split(b, at);
            let (part, one, last) = (cast(b, part, t), float(b, 1.0), last(b, lane.n, F32));
            let next = b.bin(BinOp::Add, floor, one);
            let before = b.bin(BinOp::Lt, next, last);
            let next = b.select(before, next, last);
            let weights = linear_weights(b, part);
            let tap = |(place, weight)| Tap { index: index_within(b, place), weight, inside: None };
            return [floor, next].into_iter().zip(weights).map(tap).collect();
        }
    };
    let (floor, part) = split(b, lane.at);
    let part = cast(b, part, t);
    let (mut weights, mut sum) = (cubic_weights(b, part, a), None);
    let places = [-1.0, 0.0, 1.0, 2.0].map(|k| {
        let step = float(b, k);
        b.bin(BinOp::Add, floor, step)
    });
    if exclude {
        for (w, place) in weights.iter_mut().zip(places) {
            *w = excluded(b, *w, place, lane.n);
            sum = Some(sum.map_or(*w, |s| b.bin(BinOp::Add, s, *w)));
        }
    }
    let share = sum.map(|sum| nonzero(b, sum));
    let tap = |(place, w)| {
        let weight = share.map_or(w, |s| b.bin(BinOp::Div, w, s));
        Tap { index: index(b, place, lane.n), weight, inside: None }
    };
    places.into_iter().zip(weights).map(tap).collect()
}

/// The two elements that a coordinate is between, which are one beyond the ends, with linear weights in f32.
fn between(b: &mut Builder, lane: &Lane) -> [Tap; 2] {
    let (floor, part) = split(b, lane.at);
    let (part, one) = (cast(b, part, F32), float(b, 1.0));
    let next = b.bin(BinOp::Add, floor, one);
    let (places, weights) = ([floor, next], linear_weights(b, part));
    [0, 1].map(|k| Tap { index: index(b, places[k], lane.n), weight: weights[k], inside: None })
}

/// The weighted sum as the reference takes it for whole numbers: each product of all weights times an element, the last axis fastest.
fn products(b: &mut Builder, at: &mut [Coord], axes: &[(usize, [Tap; 2])]) -> Plan<ExprId> {
    let (half, mut sum) = (float(b, 0.5), None);
    for corner in 0..1usize << axes.len() {
        let mut weight = None;
        for (k, (axis, taps)) in axes.iter().rev().enumerate() {
            let tap = taps[corner >> k & 1];
            at[*axis] = b.computed(tap.index);
            let single = b.bin(BinOp::Eq, taps[0].index, taps[1].index);
            let w = b.select(single, half, tap.weight);
            weight = Some(weight.map_or(w, |p| b.bin(BinOp::Mul, p, w)));
        }
        let v = b.load(0, at.to_vec())?;
        let v = cast(b, v, F32);
        let v = weight.map_or(v, |w| b.bin(BinOp::Mul, w, v));
        sum = Some(sum.map_or(v, |s| b.bin(BinOp::Add, s, v)));
    }
    sum.ok_or_else(|| "no elements".into())
}

/// A weight, 0 outside of the axis.
fn excluded(b: &mut Builder, w: ExprId, place: ExprId, n: DimId) -> ExprId {
    let (inside, none) = (inside(b, place, n), b.nest.num(0.0, b.nest.expr_dtype(w)));
    b.select(inside, w, none)
}

/// What sums of weights are divided by: 1 instead of 0.
fn nonzero(b: &mut Builder, sum: ExprId) -> ExprId {
    let t = b.nest.expr_dtype(sum);
    let (zero, one) = (b.nest.num(0.0, t), b.nest.num(1.0, t));
    let is_zero = b.bin(BinOp::Eq, sum, zero);
    b.select(is_zero, one, sum)
}

/// The weighted sum as a reduction over the elements that weights reach.
fn reduced(b: &mut Builder, mut at: Vec<Coord>, lanes: &[Lane], how: &Resize, t: DType) -> Plan<ExprId> {
    let (a, exclude) = match how.mode {
        Mode::Cubic { a, exclude_outside } => (f64::from(a), exclude_outside),
        _ => (0.0, false),
    };
    let mut product = None;
    for (k, lane) in lanes.iter().enumerate() {
        let (two, one) = (b.c.dims.constant(2), b.c.dims.constant(1));
        let reach = lane.reach.unwrap_or(if how.mode == Mode::Linear { one } else { two });
        let n_taps = b.c.dims.mul(reach, two);
        b.nest.inner.push(n_taps);
        // Elements 1 - reach … reach from the one before.
        let i = b.nest.expr(Expr::Index(inner(k)));
        let first = b.c.dims.sub(one, reach);
        let first = b.dim(first);
        let step = b.bin(BinOp::Add, i, first);
        let step = b.nest.expr(Expr::Cast(step, I32));
        let step = cast(b, step, F32);
        let (floor, part) = split(b, lane.at);
        let place = b.bin(BinOp::Add, floor, step);
        let (part, step) = (cast(b, part, t), cast(b, step, t));
        let mut d = b.bin(BinOp::Sub, step, part);
        if lane.reach.is_some() {
            let one = float(b, 1.0);
            let squeeze = b.bin(BinOp::Min, lane.scale, one);
            let squeeze = cast(b, squeeze, t);
            d = b.bin(BinOp::Mul, d, squeeze);
        }
        let d = b.nest.un(UnOp::Abs, d);
        let (zero, one, two) = (b.nest.num(0.0, t), b.nest.num(1.0, t), b.nest.num(2.0, t));
        let mut w = if how.mode == Mode::Linear {
            let w = b.bin(BinOp::Sub, one, d);
            b.bin(BinOp::Max, w, zero)
        } else {
            let (near, far) = (cubic(b, d, a, true), cubic(b, d, a, false));
            let (is_near, is_far) = (b.bin(BinOp::Le, d, one), b.bin(BinOp::Lt, d, two));
            let far = b.select(is_far, far, zero);
            b.select(is_near, near, far)
        };
        if exclude {
            w = excluded(b, w, place, lane.n);
        }
        let i = index(b, place, lane.n);
        at[lane.axis] = b.computed(i);
        product = Some(product.map_or(w, |p| b.bin(BinOp::Mul, p, w)));
    }
    let v = b.load(0, at)?;
    let v = cast(b, v, t);
    let w = product.ok_or("no axis is resampled")?;
    let v = b.bin(BinOp::Mul, w, v);
    if !how.antialias && !exclude {
        return Ok(b.reduce([(Combiner::Sum, v)])[0]);
    }
    let sums = b.reduce([(Combiner::Sum, v), (Combiner::Sum, w)]);
    let all = nonzero(b, sums[1]);
    Ok(b.bin(BinOp::Div, sums[0], all))
}

/// The least and greatest number of an element type that is narrower than what it is computed in.
fn narrow(d: DType) -> Option<(f64, f64)> {
    Some(match d {
        I8 => (-128.0, 127.0),
        U8 => (0.0, 255.0),
        I16 => (-32768.0, 32767.0),
        U16 => (0.0, 65535.0),
        _ => return None,
    })
}

/// A number as an element: whole ones truncate (where antialiasing smooths they round, as in onnxruntime, which does so after each axis) and
/// saturate.
fn converted(b: &mut Builder, v: ExprId, d: DType, rounds: bool) -> ExprId {
    if d.is_float() {
        return v;
    }
    let mut v = v;
    let t = b.nest.expr_dtype(v);
    if rounds && d != Bool {
        let half = b.nest.num(0.5, t);
        v = b.bin(BinOp::Add, v, half);
        v = b.nest.un(UnOp::Floor, v);
    }
    if let Some((lo, hi)) = narrow(d) {
        let (lo, hi) = (b.nest.num(lo, t), b.nest.num(hi, t));
        v = b.bin(BinOp::Max, v, lo);
        v = b.bin(BinOp::Min, v, hi);
    }
    b.nest.expr(Expr::Cast(v, crate::nest::compute_dtype(d).unwrap_or(d)))
}

/// A constant as an element.
fn value(b: &mut Builder, v: f32, d: DType) -> ExprId {
    let t = crate::nest::compute_dtype(d).unwrap_or(F32);
    if t.is_float() {
        return b.nest.num(v.into(), t);
    }
    let v = b.nest.num(v.into(), F64);
    converted(b, v, d, false)
}
