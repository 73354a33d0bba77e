//! Rows that sample images at the places of a grid, and the row that makes grids.

use super::loops::{Builder, outer};
use super::row::{BASIC, FLOATS, ROW};
use super::sample::{
    Tap, blend, blend_dtype, cast, clamped, cubic_weights, extent, index, inside, linear_weights, require_exact, split,
};
use crate::attrs::Attrs;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Coord, Expr, ExprId, Nest, UnOp};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req};
use crate::ty::Shape;
use reference::grid::{self, GridSample, Padding, Sampling};
use smallvec::SmallVec;
use tensor::{DType, DType::*, Diagnostic, DimId, ErrorKind, Result, Tensor};

const GRID: (&str, &[DType]) = ("T2", &[F32, F16, F64]);
const CORNERS: AttrDef = attr("align_corners", AttrKind::Int(0));
const PADDING: AttrDef = attr("padding_mode", AttrKind::Str("zeros"));

pub(super) const SAMPLE: OpDef = OpDef {
    name: "GridSample",
    inputs: &[req("X", "T1"), req("grid", "T2")],
    outputs: &[req("Y", "T1")],
    attrs: &[attr("mode", AttrKind::Str("linear")), PADDING, CORNERS],
    dtypes: &[("T1", BASIC), GRID],
    infer: sample_infer,
    reference: Some(|c| {
        let how = how(c.attrs).ok_or_else(|| Diagnostic::new(ErrorKind::Unsupported, "GridSample: unknown modes"))?;
        Ok(vec![grid::grid_sample(c.input(0)?, c.input(1)?, how)?])
    }),
    lower: &[Candidate::Loops(sample_loops)],
    tolerance: Tol::Rel(1e-5),
    cases: &[
        "[2,3,4,5];[2,3,2,2] mode=nearest",
        "[1,1,4,5];[1,3,2,2] mode=nearest padding_mode=reflection align_corners=1",
        "[1,1,4,5];[1,3,2,2] mode=nearest padding_mode=border",
        "[1,4,5];[1,7,1] mode=nearest",
    ],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        since: 16,
        until: 19,
        attrs: &[attr("mode", AttrKind::Str("bilinear")), PADDING, CORNERS],
        cases: &["[2,3,4,5];[2,3,2,2] mode=nearest", "[1,1,4,5];[1,3,2,2] mode=nearest align_corners=1"],
        ..SAMPLE
    },
    OpDef { since: 20, until: 21, ..SAMPLE },
    OpDef { since: 22, dtypes: &[("T1", BASIC), ("T2", FLOATS)], ..SAMPLE },
    OpDef {
        name: "AffineGrid",
        since: 20,
        inputs: &[req("theta", "T1"), req("size", "T2")],
        outputs: &[req("grid", "T1")],
        attrs: &[CORNERS],
        dtypes: &[("T1", FLOATS), ("T2", &[I64])],
        infer: affine_infer,
        reference: Some(affine_ref),
        lower: &[Candidate::Loops(affine_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,2,3];i64[4]{2,5,3,4}",
            "[2,2,3];i64[4]{2,5,1,4} align_corners=1",
            "[1,3,4];i64[5]{1,2,3,2,4}",
            "[1,3,4];i64[5]{1,2,3,1,2} align_corners=1",
        ],
        ..ROW
    },
];

fn how(attrs: &Attrs) -> Option<GridSample> {
    let mode = match attrs.str(0)? {
        "nearest" => Sampling::Nearest,
        "linear" | "bilinear" => Sampling::Linear,
        "cubic" | "bicubic" => Sampling::Cubic,
        _ => return None,
    };
    let padding = match attrs.str(1)? {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        _ => return None,
    };
    Some(GridSample { mode, padding, align_corners: attrs.int(2) == Some(1) })
}

/// Shape rule: `[n, c, image…]` at `[n, outs…, r]` → `[n, c, outs…]`.
fn sample_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(how) = how(c.attrs) else {
        let text = format!("GridSample: mode {:?} or padding {:?} is not known", c.attrs.str(0), c.attrs.str(1));
        return Err(c.error(ErrorKind::Unsupported, text));
    };
    if how.mode != Sampling::Nearest && !dtype.is_float() {
        let text = format!("GridSample: elements of type {dtype} are sampled with mode nearest only");
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let (Some(x), Some(g)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if x.len() < 3 || x.len() != g.len() {
        let text = format!("GridSample needs [n, c, image…] and [n, outs…, r], not {} and {} axes", x.len(), g.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    let r = x.len() - 2;
    if r > 3 {
        let text = format!("GridSample: {r} spatial axes are more than 3");
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    c.require_eq(x[0], g[0], "image and grid have the same batches")?;
    let n = c.dims.constant(r as i64);
    c.require_eq(g[r + 1], n, "a place has one coordinate per spatial axis")?;
    let out: Shape = [x[0], x[1]].into_iter().chain(g[1..=r].iter().copied()).collect();
    check_image(c, &x[2..], &out);
    c.set(0, dtype, out);
    Ok(())
}

/// States that an image has elements to sample for a result of extents `out`, and that coordinates are exact.
pub(super) fn check_image(c: &mut InferCtx, image: &[DimId], out: &[DimId]) {
    for &n in image {
        c.require_some(n, out.iter().copied(), "an image without elements cannot be sampled");
        require_exact(c, n);
    }
}

/// A coordinate mirrored at the borders until it lies between them: as the reference's.
fn reflected(b: &mut Builder, x: ExprId, lo: ExprId, hi: ExprId) -> ExprId {
    let t = b.nest.expr_dtype(x);
    let (half, two, zero) = (b.nest.num(0.5, t), b.nest.num(2.0, t), b.nest.num(0.0, t));
    let (below, above) = (b.bin(BinOp::Lt, x, lo), b.bin(BinOp::Gt, x, hi));
    let range = b.bin(BinOp::Sub, hi, lo);
    let (under, over) = (b.bin(BinOp::Sub, lo, x), b.bin(BinOp::Sub, x, hi));
    let d = b.select(below, under, over);
    let n = b.bin(BinOp::Div, d, range);
    let n = b.nest.un(UnOp::Trunc, n);
    let turns = b.bin(BinOp::Mul, n, range);
    let rest = b.bin(BinOp::Sub, d, turns);
    let pairs = b.bin(BinOp::Mul, n, half);
    let pairs = b.nest.un(UnOp::Floor, pairs);
    let pairs = b.bin(BinOp::Mul, pairs, two);
    let odd = b.bin(BinOp::Ne, n, pairs);
    let from_lo = b.bin(BinOp::Ne, below, odd);
    let (up, down) = (b.bin(BinOp::Add, lo, rest), b.bin(BinOp::Sub, hi, rest));
    let y = b.select(from_lo, up, down);
    let flat = b.bin(BinOp::Le, range, zero);
    let y = b.select(flat, lo, y);
    let outside = b.bin(BinOp::Or, below, above);
    b.select(outside, y, x)
}

/// The elements of an axis that make one at normalized place `x`.
fn taps(b: &mut Builder, how: GridSample, n: DimId, x: ExprId, t: DType) -> SmallVec<[Tap; 4]> {
    let f = b.nest.expr_dtype(x);
    let (one, half, len) = (b.nest.num(1.0, f), b.nest.num(0.5, f), extent(b, n, f));
    let last = b.bin(BinOp::Sub, len, one);
    let (lo, hi) = match how.align_corners {
        true => (b.nest.num(0.0, f), last),
        false => (b.nest.num(-0.5, f), b.bin(BinOp::Sub, len, half)),
    };
    let x = b.bin(BinOp::Add, x, one);
    let mut x = if how.align_corners {
        let x = b.bin(BinOp::Mul, x, half);
        b.bin(BinOp::Mul, x, last)
    } else {
        let x = b.bin(BinOp::Mul, x, len);
        let x = b.bin(BinOp::Sub, x, one);
        b.bin(BinOp::Mul, x, half)
    };
    if how.mode == Sampling::Nearest {
        x = b.nest.un(UnOp::RoundEven, x);
    }
    match how.padding {
        // Between the outermost centers and the edges interpolation repeats the border itself. Cubic weights of places outside are of
        // where they are, as in onnxruntime and PyTorch; the text has border values for them, whatever their weights.
        Padding::Border if how.mode != Sampling::Cubic => {
            let (below, above) = (b.bin(BinOp::Lt, x, lo), b.bin(BinOp::Gt, x, hi));
            let (outside, near) = (b.bin(BinOp::Or, below, above), clamped(b, x, n));
            x = b.select(outside, near, x);
        }
        Padding::Reflection => x = reflected(b, x, lo, hi),
        Padding::Border | Padding::Zeros => {}
    }
    let pixel = |b: &mut Builder, i: ExprId| match how.padding {
        Padding::Reflection => {
            let i = reflected(b, i, lo, hi);
            let i = b.nest.un(UnOp::Trunc, i);
            (index(b, i, n), None)
        }
        Padding::Border => (index(b, i, n), None),
        Padding::Zeros => (index(b, i, n), Some(inside(b, i, n))),
    };
    if how.mode == Sampling::Nearest {
        let (index, inside) = pixel(b, x);
        return SmallVec::from_iter([Tap { index, weight: one, inside }]);
    }
    let (floor, part) = split(b, x);
    let part = cast(b, part, t);
    let (first, weights): (f64, SmallVec<[ExprId; 4]>) = match how.mode {
        Sampling::Cubic => (-1.0, cubic_weights(b, part, -0.75).into_iter().collect()),
        _ => (0.0, linear_weights(b, part).into_iter().collect()),
    };
    let mut taps = SmallVec::new();
    for (k, weight) in weights.into_iter().enumerate() {
        let step = b.nest.num(first + k as f64, f);
        let place = b.bin(BinOp::Add, floor, step);
        let (index, inside) = pixel(b, place);
        taps.push(Tap { index, weight, inside });
    }
    taps
}

/// What it costs per element of the result, for r spatial axes: r loads of the grid, and of the image 1 load (nearest), 2ʳ (linear) or 4ʳ (cubic).
/// Indices and weights are of the place, which is of all axes but the channels': they are computed per element.
fn sample_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, g, how) = (c.need(0)?, c.need(1)?, how(c.attrs).ok_or("unknown modes")?);
    let r = x.shape.len() - 2;
    let mut b = Builder::over_result(c)?;
    let f = if g.dtype == F64 { F64 } else { F32 };
    let t = if how.mode == Sampling::Nearest { b.dtype(0) } else { blend_dtype(x.dtype) };
    let mut axes = Vec::new();
    for a in 0..r {
        let mut at = vec![b.along(outer(0))];
        at.extend((0..r).map(|o| b.along(outer(2 + o))));
        // The first coordinate is that of the last axis.
        at.push(b.fixed_at((r - 1 - a) as i64));
        let place = b.load(1, at)?;
        let place = cast(&mut b, place, f);
        axes.push((2 + a, taps(&mut b, how, x.shape[2 + a], place, t)));
    }
    let mut at: Vec<Coord> = (0..r + 2).map(|i| b.along(outer(i))).collect();
    if how.mode != Sampling::Nearest {
        let y = blend(&mut b, &mut at, &axes, t)?;
        return Ok(b.store(y));
    }
    let mut all = None;
    for (axis, taps) in &axes {
        at[*axis] = b.computed(taps[0].index);
        all = b.and(all, taps[0].inside);
    }
    let zero = b.nest.num(0.0, t);
    let y = b.load_if(0, at, all, zero)?;
    Ok(b.store(y))
}

/// Shape rule: maps `[n, r, r + 1]` and the extents `[n, c, image…]` → `[n, image…, r]`.
fn affine_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let size = c.need_values(1);
    let rank = size.as_ref().map(SmallVec::len).or_else(|| c.list_len(1));
    let Some(rank) = rank else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let wrong = |c: &InferCtx| c.error(ErrorKind::Shape, "AffineGrid needs maps [n, r, r + 1] of r = 2 or 3 axes");
    let r = rank.checked_sub(2).filter(|r| (2..=3).contains(r)).ok_or_else(|| wrong(c))?;
    let size = match size {
        Some(v) => v.iter().map(|&d| c.extent(d)).collect::<Result<Shape>>()?,
        None => c.unknown_extents(rank),
    };
    if let Some(t) = c.shape(0) {
        let &[n, rows, columns] = t.as_slice() else { return Err(wrong(c)) };
        let (have, one) = (c.dims.constant(r as i64), c.dims.constant(1));
        let more = c.dims.add(have, one);
        c.require_eq(rows, have, "a map has one row per axis")?;
        c.require_eq(columns, more, "a map has one column per axis, and one more")?;
        c.require_eq(n, size[0], "there is one map per batch")?;
    }
    size[2..].iter().for_each(|&n| require_exact(c, n));
    let last = c.dims.constant(r as i64);
    c.set(0, dtype, [size[0]].into_iter().chain(size[2..].iter().copied()).chain([last]).collect::<Shape>());
    Ok(())
}

fn affine_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let size: Vec<usize> = c.input(1)?.to_i64_vec().into_iter().map(|n| n.max(0) as usize).collect();
    Ok(vec![grid::affine_grid(c.input(0)?, size.get(2..).unwrap_or(&[]), c.attrs.int(0) == Some(1))?])
}

/// r + 1 loads per element.
fn affine_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (image, corners): (Shape, bool) = {
        let s = &c.outs[0].shape;
        (s[1..s.len() - 1].into(), c.attrs.int(0) == Some(1))
    };
    let r = image.len();
    let mut b = Builder::over_result(c)?;
    let t = b.dtype(0);
    let (one, two) = (b.nest.num(1.0, t), b.nest.num(2.0, t));
    let mut sum = None;
    for k in 0..=r {
        let at = [b.along(outer(0)), b.along(outer(1 + r)), b.fixed_at(k as i64)];
        let factor = b.load(0, at)?;
        let part = if k == r {
            factor
        } else {
            let a = r - 1 - k;
            let (i, n) = (b.outer(1 + a), extent(&mut b, image[a], t));
            let i = b.nest.expr(Expr::Cast(i, t));
            let i = b.bin(BinOp::Mul, i, two);
            let place = if corners {
                let n = b.bin(BinOp::Sub, n, one);
                let place = b.bin(BinOp::Div, i, n);
                let place = b.bin(BinOp::Sub, place, one);
                let (single, first) = (b.dim(image[a]), b.int(1));
                let single = b.bin(BinOp::Le, single, first);
                b.select(single, one, place)
            } else {
                let i = b.bin(BinOp::Add, i, one);
                let place = b.bin(BinOp::Div, i, n);
                b.bin(BinOp::Sub, place, one)
            };
            b.bin(BinOp::Mul, factor, place)
        };
        sum = Some(sum.map_or(part, |s| b.bin(BinOp::Add, s, part)));
    }
    let y = sum.ok_or("a map without columns")?;
    Ok(b.store(y))
}
