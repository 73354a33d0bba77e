//! Samples of images: at a grid of places, and of regions.

use super::super::bounds::Indexed;
use super::super::grid::{SAMPLE, check_image};
use super::super::loops::{Builder, outer};
use super::super::row::{FLOATS, ROW};
use super::super::sample::{
    Tap, blend, blend_dtype, cast, extent, index, inside, last, position, require_exact, split,
};
use super::MICROSOFT;
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, Coord, ExprId, Nest};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req};
use reference::crop;
use smallvec::SmallVec;
use tensor::DType::I32;
use tensor::{DimId, ErrorKind, Result, Tensor};

fn nearest(attrs: &crate::attrs::Attrs) -> Option<bool> {
    match attrs.str(1)? {
        "bilinear" => Some(false),
        "nearest" => Some(true),
        _ => None,
    }
}

fn infer_crop(c: &mut InferCtx) -> Result<()> {
    let fail = |c: &InferCtx, kind, what: std::string::String| Err(c.error(kind, format!("CropAndResize: {what}")));
    let dtype = c.dtype(0)?;
    if nearest(c.attrs).is_none() {
        let text = format!("mode {:?} is neither bilinear nor nearest", c.attrs.str(1).unwrap_or(""));
        return fail(c, ErrorKind::Unsupported, text);
    }
    let size = c.need_values(3);
    let (Some(x), Some(rois)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let (&[images, channels, height, width], &[n, four]) = (x.as_slice(), rois.as_slice()) else {
        return fail(c, ErrorKind::Shape, format!("X has {} axes, not 4, or rois {}, not 2", x.len(), rois.len()));
    };
    let k = c.dims.constant(4);
    c.require_eq(four, k, "a region is four numbers")?;
    if let Some(b) = c.shape(2) {
        let &[m] = b.as_slice() else {
            return fail(c, ErrorKind::Shape, format!("batch_indices have {} axes, not 1", b.len()));
        };
        c.require_eq(m, n, "an image for each region")?;
        c.check_indices(2, &[Indexed { axis: 0, extent: images }])?;
        // Images do not count from the end.
        if let Some(i) = c.const_ints(2).into_iter().flatten().find(|&i| i < 0) {
            return fail(c, ErrorKind::Shape, format!("there is no image {i}"));
        }
    }
    let (rows, columns) = match size.as_deref() {
        Some(&[rows, columns]) => (c.extent(rows)?, c.extent(columns)?),
        Some(v) => return fail(c, ErrorKind::Shape, format!("crop_size has {} elements, not 2", v.len())),
        None => {
            let d = c.unknown_extents(2);
            (d[0], d[1])
        }
    };
    let out = [n, channels, rows, columns];
    check_image(c, &[height, width], &out);
    c.require_some(images, out, "there is no image for regions");
    out[2..].iter().for_each(|&d| require_exact(c, d));
    c.set(0, dtype, out);
    Ok(())
}

/// Where along an axis of extent `n` a crop has its place: from the first to the last of the region, its middle where there is one place.
fn place(b: &mut Builder, axis: usize, (from, to): (ExprId, ExprId), n: DimId, crop: DimId) -> ExprId {
    let t = b.nest.expr_dtype(from);
    let (one, half, last, count) = (b.nest.num(1.0, t), b.nest.num(0.5, t), last(b, n, t), extent(b, crop, t));
    let steps = b.bin(BinOp::Sub, count, one);
    let span = b.bin(BinOp::Sub, to, from);
    let span = b.bin(BinOp::Mul, span, last);
    let step = b.bin(BinOp::Div, span, steps);
    let i = position(b, axis, t);
    let (begin, end) = (b.bin(BinOp::Mul, from, last), b.bin(BinOp::Mul, to, last));
    let way = b.bin(BinOp::Mul, i, step);
    let at = b.bin(BinOp::Add, begin, way);
    // Both ends are exact.
    let (is_first, is_last) = (b.nest.bin_num(BinOp::Eq, i, 0.0), b.bin(BinOp::Eq, i, steps));
    let at = b.select(is_last, end, at);
    let at = b.select(is_first, begin, at);
    let sum = b.bin(BinOp::Add, from, to);
    let middle = b.bin(BinOp::Mul, sum, half);
    let middle = b.bin(BinOp::Mul, middle, last);
    let single = b.bin(BinOp::Le, count, one);
    b.select(single, middle, at)
}

fn crop_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    let nearest = nearest(c.attrs).ok_or("unknown mode")?;
    let other = f64::from(c.attrs.float(0).unwrap_or(0.0));
    let mut b = Builder::over_result(c)?;
    let t = blend_dtype(x.dtype);
    let mut bounds = Vec::new();
    for i in 0..4 {
        let at = [b.along(outer(0)), b.fixed_at(i)];
        let v = b.load(1, at)?;
        bounds.push(cast(&mut b, v, t));
    }
    let at = [b.along(outer(0))];
    let image = b.load(2, at)?;
    let image = b.index(image, x.shape[0]);
    let mut at: Vec<Coord> = vec![b.computed(image), b.along(outer(1))];
    let (mut axes, mut all) = (Vec::new(), None);
    for a in 0..2 {
        let (n, crop) = (x.shape[2 + a], b.nest.outer[2 + a]);
        let place = place(&mut b, 2 + a, (bounds[a], bounds[2 + a]), n, crop);
        let within = inside(&mut b, place, n);
        all = b.and(all, Some(within));
        let (floor, part) = split(&mut b, place);
        let one = b.nest.num(1.0, t);
        let next = b.bin(BinOp::Add, floor, one);
        let mut taps: SmallVec<[Tap; 4]> = SmallVec::new();
        if nearest {
            let up = b.nest.bin_num(BinOp::Ge, part, 0.5);
            let near = b.select(up, next, floor);
            taps.push(Tap { index: index(&mut b, near, n), weight: one, inside: None });
        } else {
            let before = b.bin(BinOp::Sub, one, part);
            taps.push(Tap { index: index(&mut b, floor, n), weight: before, inside: None });
            taps.push(Tap { index: index(&mut b, next, n), weight: part, inside: None });
        }
        axes.push((2 + a, taps));
        at.push(b.along(outer(2 + a)));
    }
    let y = blend(&mut b, &mut at, &axes, t)?;
    let other = b.nest.num(other, t);
    let all = all.ok_or("an image without axes")?;
    let y = b.select(all, y, other);
    let y = cast(&mut b, y, t);
    Ok(b.store(y))
}

fn crop_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let size = c.input(3)?.to_i64_vec();
    let size: Vec<usize> = size.iter().filter_map(|&n| usize::try_from(n).ok()).collect();
    let nearest = nearest(c.attrs) == Some(true);
    let other = c.attrs.float(0).unwrap_or(0.0).into();
    Ok(vec![crop::crop_and_resize([c.input(0)?, c.input(1)?, c.input(2)?], &size, nearest, other)?])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // GridSample of ai.onnx, with the names that its modes had first
    OpDef {
        domain: MICROSOFT,
        since: 1,
        attrs: &[attr("mode", AttrKind::Str("bilinear")), SAMPLE.attrs[1], SAMPLE.attrs[2]],
        dtypes: &[("T1", FLOATS), ("T2", FLOATS)],
        cases: &[
            "[2,3,4,5];[2,3,2,2]",
            "[1,2,4,5];[1,3,2,2] mode=bicubic align_corners=1",
            "[1,1,4,5];[1,3,2,2] mode=nearest padding_mode=border",
            "[1,1,4,5];[1,3,2,2] padding_mode=reflection",
        ],
        ..SAMPLE
    },
    // Regions of images, each resized to crop_size with its corners on corners
    OpDef {
        name: "CropAndResize",
        domain: MICROSOFT,
        inputs: &[req("X", "T1"), req("rois", "T1"), req("batch_indices", "T2"), req("crop_size", "T2")],
        outputs: &[req("Y", "T1")],
        attrs: &[attr("extrapolation_value", AttrKind::Float(0.0)), attr("mode", AttrKind::Str("bilinear"))],
        dtypes: &[("T1", FLOATS), ("T2", &[I32])],
        infer: infer_crop,
        reference: Some(crop_ref),
        lower: &[Loops(crop_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,2,5,6];[3,4]{0.5,0.25,1,0.75,-0.25,0,0.5,1.25,1,1,0,0};i32[3]{1,0,1};i32[2]{3,2} extrapolation_value=9",
            "[2,2,5,6];[2,4]{0,0,1,1,0.5,0.125,0.25,0.75};i32[2]{1,0};i32[2]{4,7} mode=nearest",
            "[1,1,5,6];[1,4]{0.25,0.5,1,1};i32[1]{0};i32[2]{1,1}",
            "[1,1,5,6];[0,4];i32[0];i32[2]{2,3}",
        ],
        ..ROW
    },
];
