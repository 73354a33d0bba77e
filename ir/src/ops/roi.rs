//! Rows that pool regions of interest.
//!
//! How many samples or pixels a bin has depends on its region, which is data: nests run over as many as the largest bin has, a number that is read
//! before they start, and skip those that a bin does not have.

use super::grid::check_image;
use super::loops::{Builder, inner, outer};
use super::row::{FLOATS, ROW};
use super::sample::{cast, clamped, extent, index, require_exact, split};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest, Phase, UnOp};
use crate::op::{AttrDef, AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, Tol, attr, req};
use crate::ty::Shape;
use reference::grid::{self, RoiAlign};
use tensor::{DType, DType::*, Diagnostic, DimId, ErrorKind, Result, Tensor};

const OLD: &[DType] = &[F32, F16, F64];
const I: (&str, &[DType]) = ("T2", &[I64]);
const MODE: AttrDef = attr("mode", AttrKind::Str("avg"));
const HEIGHT: AttrDef = attr("output_height", AttrKind::Int(1));
const WIDTH: AttrDef = attr("output_width", AttrKind::Int(1));
const RATIO: AttrDef = attr("sampling_ratio", AttrKind::Int(0));
const SCALE: AttrDef = attr("spatial_scale", AttrKind::Float(1.0));
const TRANSFORM: AttrDef = attr("coordinate_transformation_mode", AttrKind::Str("half_pixel"));
const POOLED: AttrDef = attr("pooled_shape", AttrKind::Ints);
const ALIGN: &[AttrDef] = &[MODE, HEIGHT, WIDTH, RATIO, SCALE, TRANSFORM];
/// Most samples or pixels along an axis of a bin: more would not end.
const MOST: i64 = 1 << 15;

const ROI_ALIGN: OpDef = OpDef {
    name: "RoiAlign",
    inputs: &[req("X", "T1"), req("rois", "T1"), req("batch_indices", "T2")],
    outputs: &[req("Y", "T1")],
    attrs: ALIGN,
    infer: align_infer,
    reference: Some(align_ref),
    lower: &[Candidate::Expand(align_expand)],
    tolerance: Tol::Rel(1e-5),
    cases: &[
        "[2,2,5,6];[2,4]{0.5,0.2,4.6,3.7,-1,1,3,9.5};i64[2]{1,0} output_height=2 output_width=3",
        "[1,2,5,6];[2,4]{0.5,0.2,4.6,3.7,3,3,1,1};i64[2]{0,0} output_height=2 output_width=2 sampling_ratio=2",
        "[1,1,5,6];[2,4]{0.5,0.2,4.6,3.7,-9,-3,30,40};i64[2]{0,0} mode=max output_height=2 output_width=1 \
         spatial_scale=0.5",
        "[1,1,5,6];[0,4];i64[0] output_height=2",
    ],
    ..ROW
};

const OLD_ALIGN: OpDef = OpDef {
    attrs: &[MODE, HEIGHT, WIDTH, RATIO, SCALE],
    cases: &[
        "[2,2,5,6];[2,4]{0.5,0.2,4.6,3.7,-1,1,3,9.5};i64[2]{1,0} output_height=2 output_width=3",
        "[1,1,5,6];[2,4]{0.5,0.2,4.6,3.7,3,3,1,1};i64[2]{0,0} mode=max output_height=2 output_width=2",
    ],
    ..ROI_ALIGN
};

const ROI_POOL: OpDef = OpDef {
    name: "MaxRoiPool",
    inputs: &[req("X", "T"), req("rois", "T")],
    outputs: &[req("Y", "T")],
    attrs: &[POOLED, SCALE],
    infer: |c| pool_infer(c).map(|_| ()),
    reference: Some(pool_ref),
    lower: &[Candidate::Expand(pool_expand)],
    cases: &[
        "[2,2,6,5];[2,5]{1,0.6,1.2,4,5,0,3,2,1,1} pooled_shape=[2,3]",
        "[1,2,6,5];[2,5]{0,-4,-5,2,3,0,-9,-9,-7,-7} pooled_shape=[2,1] spatial_scale=0.7",
        "[1,1,4,4];[1,5]{0,0,0,50,60} pooled_shape=[3,3]",
    ],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    // Without the attribute regions are where they are: as mode output_half_pixel.
    OpDef { since: 10, until: 15, dtypes: &[("T1", OLD), I], ..OLD_ALIGN },
    OpDef { since: 16, until: 21, dtypes: &[("T1", OLD), I], ..ROI_ALIGN },
    OpDef { since: 22, dtypes: &[("T1", FLOATS), I], ..ROI_ALIGN },
    OpDef { until: 21, dtypes: &[("T", OLD)], ..ROI_POOL },
    OpDef { since: 22, dtypes: &[("T", FLOATS)], ..ROI_POOL },
    // samples = the most samples along rows and columns of a bin of any region
    OpDef {
        name: "RoiSamples",
        domain: HIP_DOMAIN,
        inputs: &[req("rois", "T")],
        outputs: &[req("samples", "I")],
        attrs: ALIGN,
        dtypes: &[("T", FLOATS), ("I", &[I64])],
        infer: |c| most_infer(c, 4),
        reference: Some(|c| {
            let how = align(c.attrs).ok_or_else(|| unknown(c))?;
            Ok(vec![Tensor::from_i64(&[2], &how.samples(c.input(0)?).map(|n| n as i64))])
        }),
        lower: &[Candidate::Loops(samples_loops)],
        cases: &["[3,4]{0.5,0.2,4.6,3.7,-9,-3,30,40} output_height=2", "[0,4]", "[1,4]{3,3,1,2}"],
        ..ROW
    },
    // RoiAlign with at most `samples` samples along rows and columns of a bin
    OpDef {
        name: "RoiAlign",
        domain: HIP_DOMAIN,
        inputs: &[req("X", "T1"), req("rois", "T1"), req("batch_indices", "T2"), req("samples", "T2")],
        dtypes: &[("T1", FLOATS), I],
        infer: |c| {
            align_infer(c)?;
            bounded(c, 3)
        },
        lower: &[Candidate::Loops(align_loops)],
        cases: &[
            "[2,2,5,6];[2,4]{0.5,0.2,4.6,3.7,-1,1,3,9.5};i64[2]{1,0};i64[2]{5,2} output_height=2 output_width=3",
            "[1,1,5,6];[2,4]{0.5,0.2,4.6,3.7,-9,-3,30,40};i64[2]{0,0};i64[2]{11,20} mode=max output_height=2 \
             spatial_scale=0.5",
        ],
        ..ROI_ALIGN
    },
    // pixels = the most rows and columns of a bin of any region, or some more
    OpDef {
        name: "RoiPixels",
        domain: HIP_DOMAIN,
        inputs: &[req("rois", "T")],
        outputs: &[req("pixels", "I")],
        attrs: &[POOLED, SCALE],
        dtypes: &[("T", FLOATS), ("I", &[I64])],
        infer: |c| most_infer(c, 5),
        reference: Some(|c| {
            let bins = pooled(c.attrs).ok_or_else(|| unknown(c))?;
            let most = grid::roi_pixels(c.input(0)?, bins, c.attrs.float(1).unwrap_or(1.0));
            Ok(vec![Tensor::from_i64(&[2], &most.map(|n| n as i64))])
        }),
        lower: &[Candidate::Loops(pixels_loops)],
        cases: &["[2,5]{1,0.6,1.2,4,5,0,3,2,1,1} pooled_shape=[2,3]", "[0,5] pooled_shape=[2,1]"],
        ..ROW
    },
    OpDef {
        name: "MaxRoiPool",
        domain: HIP_DOMAIN,
        inputs: &[req("X", "T"), req("rois", "T"), req("pixels", "I")],
        dtypes: &[("T", FLOATS), ("I", &[I64])],
        infer: |c| {
            pool_infer(c)?;
            bounded(c, 2)
        },
        lower: &[Candidate::Loops(pool_loops)],
        cases: &[
            "[2,2,6,5];[2,5]{1,0.6,1.2,4,5,0,3,2,1,1};i64[2]{4,4} pooled_shape=[2,3]",
            "[1,2,6,5];[2,5]{0,-4,-5,2,3,0,-9,-9,-7,-7};i64[2]{5,6} pooled_shape=[2,1] spatial_scale=0.7",
        ],
        ..ROI_POOL
    },
];

fn unknown(c: &RefCtx) -> Diagnostic {
    Diagnostic::new(ErrorKind::Unsupported, format!("{}: attributes that are not known", c.def.name))
}

fn align(attrs: &Attrs) -> Option<RoiAlign> {
    let max = match attrs.str(0)? {
        "avg" => false,
        "max" => true,
        _ => return None,
    };
    let half_pixel = match attrs.str(5) {
        None | Some("output_half_pixel") => false,
        Some("half_pixel") => true,
        _ => return None,
    };
    let count = |slot: usize, least: i64| {
        attrs.int(slot).filter(|n| (least..MOST).contains(n)).and_then(|n| usize::try_from(n).ok())
    };
    let bins = [count(1, 1)?, count(2, 1)?];
    Some(RoiAlign { max, half_pixel, bins, ratio: count(3, 0)?, scale: attrs.float(4).unwrap_or(1.0) })
}

/// States that a computed bound of a bin is one that loops end with.
fn bounded(c: &mut InferCtx, i: usize) -> Result<()> {
    let most = c.dims.constant(MOST);
    for n in c.need_values(i).into_iter().flatten() {
        let n = c.extent(n)?;
        c.require_le(n, most, &format!("{}: a bin has at most {MOST} samples along an axis", c.def.name));
    }
    Ok(())
}

/// How many regions operand `i` has, each of as many numbers.
fn count(c: &mut InferCtx, i: usize, columns: i64) -> Result<DimId> {
    match c.shape(i).as_deref() {
        Some(&[m, k]) => {
            let columns = c.dims.constant(columns);
            c.require_eq(k, columns, "a region is that many numbers")?;
            Ok(m)
        }
        Some(_) => Err(c.error(ErrorKind::Shape, format!("{}: regions have 2 axes", c.def.name))),
        None => Ok(c.fresh("regions", tensor::dims::Origin::Unknown)),
    }
}

/// Shape rule of what is read of all regions: two numbers.
fn most_infer(c: &mut InferCtx, columns: i64) -> Result<()> {
    count(c, 0, columns)?;
    let two = c.dims.constant(2);
    c.set(0, I64, [two]);
    Ok(())
}

/// Shape rule: `[n, c, h, w]`, regions `[m, columns]` → `[m, c, bins…]`.
fn regions(c: &mut InferCtx, columns: i64, bins: [usize; 2]) -> Result<()> {
    let (dtype, name) = (c.dtype(0)?, c.def.name);
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if x.len() != 4 {
        return Err(c.error(ErrorKind::Shape, format!("{name} needs 4 axes, not {}", x.len())));
    }
    let m = count(c, 1, columns)?;
    c.require_some(x[0], [m, x[1]], "there is no image for regions");
    let [h, w] = bins.map(|n| c.dims.constant(n as i64));
    c.set(0, dtype, [m, x[1], h, w]);
    Ok(())
}

fn align_infer(c: &mut InferCtx) -> Result<()> {
    let Some(how) = align(c.attrs) else {
        return Err(c.error(ErrorKind::Unsupported, "RoiAlign: attributes that are not known, or out of range"));
    };
    match (c.shape(1).as_deref(), c.shape(2).as_deref()) {
        (Some(&[m, _]), Some(&[n])) => c.require_eq(m, n, "there is one image per region")?,
        (Some(_), Some(_)) => return Err(c.error(ErrorKind::Shape, "RoiAlign: regions [m, 4] and images [m]")),
        _ => {}
    }
    if let (Some(x), Some(&[m, _])) = (c.shape(0).filter(|x| x.len() == 4), c.shape(1).as_deref()) {
        check_image(c, &x[2..], &[m, x[1]]);
    }
    regions(c, 4, how.bins)
}

fn align_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let how = align(c.attrs).ok_or_else(|| unknown(c))?;
    Ok(vec![grid::roi_align(c.input(0)?, c.input(1)?, c.input(2)?, how)?])
}

fn align_expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let (image, rois, batch) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let slots: Vec<Attr> = x.attrs().slots().to_vec();
    let mut attrs: Vec<(&str, Attr)> = ALIGN.iter().map(|a| a.name).zip(slots).collect();
    if attrs.len() < ALIGN.len() {
        attrs.push((TRANSFORM.name, Attr::Str("output_half_pixel".into())));
    }
    let samples = match x.attrs().int(3) {
        Some(n) if n > 0 => x.ints(&[n, n]),
        _ => x.own("RoiSamples", &[Some(rois)], &attrs),
    };
    Ok(vec![x.own("RoiAlign", &[Some(image), Some(rois), Some(batch), Some(samples)], &attrs)])
}

/// A bin along one axis: where it begins, its extent and its number of samples, which is i64.
struct Bin {
    first: ExprId,
    extent: ExprId,
    samples: ExprId,
}

/// The bins of a region along an axis (0: rows), in the order of operations of the reference. The region is row `m` of operand `rois`.
fn bin(b: &mut Builder, how: RoiAlign, rois: usize, m: Coord, a: usize) -> Plan<Bin> {
    let f = b.dtype(rois);
    let scale = b.nest.num(how.scale.into(), f);
    let shift = b.nest.num(0.5, f);
    let mut edge = |k: i64| {
        let at = [m.clone(), b.fixed_at(k)];
        let v = b.load(rois, at)?;
        let v = b.bin(BinOp::Mul, v, scale);
        Plan::Ok(if how.half_pixel { b.bin(BinOp::Sub, v, shift) } else { v })
    };
    let k = 1 - a as i64;
    let (first, end) = (edge(k)?, edge(k + 2)?);
    let mut len = b.bin(BinOp::Sub, end, first);
    if !how.half_pixel {
        let one = b.nest.num(1.0, f);
        len = b.bin(BinOp::Max, len, one);
    }
    let n = b.nest.num(how.bins[a] as f64, f);
    let extent = b.bin(BinOp::Div, len, n);
    let samples = if how.ratio > 0 {
        b.int(how.ratio as i64)
    } else {
        let (n, zero) = (b.nest.un(UnOp::Ceil, extent), b.int(0));
        let n = b.nest.expr(Expr::Cast(n, I64));
        b.bin(BinOp::Max, n, zero)
    };
    Ok(Bin { first, extent, samples })
}

/// One point with a reduction over all regions for rows, then columns.
fn samples_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (rois, how) = (c.need(0)?, align(c.attrs).ok_or("unknown attributes")?);
    let mut b = Builder::new(c)?;
    b.nest.inner = vec![rois.shape[0]];
    let m = b.along(inner(0));
    let (rows, columns) = (bin(&mut b, how, 0, m.clone(), 0)?, bin(&mut b, how, 0, m, 1)?);
    Ok(store_pair(b, rows.samples, columns.samples))
}

/// Stores the greatest of two values, not below 0, as a list of two.
fn store_pair(mut b: Builder, rows: ExprId, columns: ExprId) -> Nest {
    let r = b.reduce([(Combiner::Max, rows), (Combiner::Max, columns)]);
    let zero = b.int(0);
    let mut stores = Vec::new();
    for (k, v) in (0..).zip(r) {
        let (v, at) = (b.bin(BinOp::Max, v, zero), b.fixed_at(k));
        stores.push((b.result(0, [at]), v));
    }
    b.nest.phases.push(Phase::Store { over_inner: false, stores });
    b.nest
}

fn bounds(c: &NodeCtx, i: usize) -> Plan<Vec<DimId>> {
    let values: Shape = c.need(i)?.values.ok_or("the samples are not known when it runs")?;
    if values.len() == 2 { Ok(values.to_vec()) } else { Err("samples are two numbers".into()) }
}

/// 4 loads per sample; places along rows are computed once per row of samples.
fn align_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, how, most) = (c.need(0)?, align(c.attrs).ok_or("unknown attributes")?, bounds(c, 3)?);
    let mut b = Builder::over_result(c)?;
    let t = b.dtype(0);
    b.nest.inner = most.clone();
    let m = b.along(outer(0));
    let image = b.load(2, [m.clone()])?;
    let image = b.index(image, x.shape[0]);
    let (zero, one) = (b.nest.num(0.0, t), b.nest.num(1.0, t));
    let (mut valid, mut counted, mut count, mut lanes) = (None, None, None, Vec::new());
    for a in 0..2 {
        let bin = bin(&mut b, how, 1, m.clone(), a)?;
        let f = b.nest.expr_dtype(bin.first);
        // What was read of all regions holds for each of them.
        let most = b.dim(most[a]);
        let samples = b.bin(BinOp::Min, bin.samples, most);
        let s = b.nest.expr(Expr::Index(inner(a)));
        let there = b.bin(BinOp::Lt, s, samples);
        counted = b.and(counted, Some(there));
        count = Some(count.map_or(samples, |c| b.bin(BinOp::Mul, c, samples)));
        let (o, half, n) = (b.outer(2 + a), b.nest.num(0.5, f), cast(&mut b, samples, f));
        let (o, s) = (cast(&mut b, o, f), cast(&mut b, s, f));
        let start = b.bin(BinOp::Mul, o, bin.extent);
        let start = b.bin(BinOp::Add, bin.first, start);
        let s = b.bin(BinOp::Add, s, half);
        let s = b.bin(BinOp::Mul, s, bin.extent);
        let s = b.bin(BinOp::Div, s, n);
        let place = b.bin(BinOp::Add, start, s);
        let (minus, len) = (b.nest.num(-1.0, f), extent(&mut b, x.shape[2 + a], f));
        let (after, before) = (b.bin(BinOp::Ge, place, minus), b.bin(BinOp::Le, place, len));
        let within = b.bin(BinOp::And, after, before);
        valid = b.and(valid, Some(within));
        let place = clamped(&mut b, place, x.shape[2 + a]);
        let (floor, part) = split(&mut b, place);
        let step = b.nest.num(1.0, f);
        let next = b.bin(BinOp::Add, floor, step);
        let part = cast(&mut b, part, t);
        let rest = b.bin(BinOp::Sub, one, part);
        let n = x.shape[2 + a];
        lanes.push([(index(&mut b, floor, n), rest), (index(&mut b, next, n), part)]);
    }
    let valid = b.and(valid, counted);
    let [image, channel] = [b.computed(image), b.along(outer(1))];
    let (mut sum, mut greatest) = (None, None);
    for (row, v) in lanes[0] {
        for (column, w) in lanes[1] {
            let at = [image.clone(), channel.clone(), b.computed(row), b.computed(column)];
            let e = b.load_if(0, at, valid, zero)?;
            let w = b.bin(BinOp::Mul, v, w);
            let e = b.bin(BinOp::Mul, w, e);
            sum = Some(sum.map_or(e, |s| b.bin(BinOp::Add, s, e)));
            greatest = Some(greatest.map_or(e, |g| b.bin(BinOp::Max, g, e)));
        }
    }
    let (sum, greatest) = (sum.ok_or("no samples")?, greatest.ok_or("no samples")?);
    let (count, counted) = (count.ok_or("no samples")?, counted.ok_or("no samples")?);
    // What is not there does not count; what is outside of the image is 0.
    let none = b.int(0);
    let y = if how.max {
        let least = b.nest.num(f64::NEG_INFINITY, t);
        let outside = b.select(counted, zero, least);
        let v = match valid {
            Some(valid) => b.select(valid, greatest, outside),
            None => greatest,
        };
        let y = b.reduce([(Combiner::Max, v)])[0];
        let some = b.bin(BinOp::Gt, count, none);
        b.select(some, y, zero)
    } else {
        let v = match valid {
            Some(valid) => b.select(valid, sum, zero),
            None => sum,
        };
        let y = b.reduce([(Combiner::Sum, v)])[0];
        let single = b.int(1);
        let n = b.bin(BinOp::Max, count, single);
        let n = b.nest.expr(Expr::Cast(n, t));
        b.bin(BinOp::Div, y, n)
    };
    Ok(b.store(y))
}

fn pooled(attrs: &Attrs) -> Option<[usize; 2]> {
    let &[h, w] = attrs.ints(0)? else { return None };
    let bin = |n: i64| usize::try_from(n).ok().filter(|n| (1..1 << 15).contains(n));
    Some([bin(h)?, bin(w)?])
}

fn pool_infer(c: &mut InferCtx) -> Result<()> {
    let Some(bins) = pooled(c.attrs) else {
        let text = format!("MaxRoiPool: pooled_shape {:?} must be two positive numbers", c.attrs.ints(0));
        return Err(c.error(ErrorKind::Shape, text));
    };
    // An image without elements has bins without pixels.
    c.shape(0).into_iter().flatten().skip(2).for_each(|n| require_exact(c, n));
    regions(c, 5, bins)
}

fn pool_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let bins = pooled(c.attrs).ok_or_else(|| unknown(c))?;
    Ok(vec![grid::max_roi_pool(c.input(0)?, c.input(1)?, bins, c.attrs.float(1).unwrap_or(1.0))?])
}

fn pool_expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let (image, rois) = (x.need(0)?, x.need(1)?);
    let attrs = [(POOLED.name, x.attrs().get(0).clone()), (SCALE.name, x.attrs().get(1).clone())];
    let pixels = x.own("RoiPixels", &[Some(rois)], &attrs);
    Ok(vec![x.own("MaxRoiPool", &[Some(image), Some(rois), Some(pixels)], &attrs)])
}

/// First pixel of a region and extent of its bins along an axis (0: rows).
fn pixels(b: &mut Builder, rois: usize, m: Coord, a: usize, bins: [usize; 2], scale: f32) -> Plan<(ExprId, ExprId)> {
    let f = b.dtype(rois);
    let (scale, half, one) = (b.nest.num(scale.into(), f), b.nest.num(0.5, f), b.nest.num(1.0, f));
    let mut edge = |k: i64| {
        let at = [m.clone(), b.fixed_at(k)];
        let v = b.load(rois, at)?;
        let v = b.bin(BinOp::Mul, v, scale);
        // Half away from zero.
        let (whole, sign) = (b.nest.un(UnOp::Abs, v), b.nest.un(UnOp::Sign, v));
        let floor = b.nest.un(UnOp::Floor, whole);
        let part = b.bin(BinOp::Sub, whole, floor);
        let (up, next) = (b.bin(BinOp::Ge, part, half), b.bin(BinOp::Add, floor, one));
        let whole = b.select(up, next, floor);
        Plan::Ok(b.bin(BinOp::Mul, whole, sign))
    };
    let k = 2 - a as i64;
    let (first, last) = (edge(k)?, edge(k + 2)?);
    let len = b.bin(BinOp::Sub, last, first);
    let len = b.bin(BinOp::Add, len, one);
    let len = b.bin(BinOp::Max, len, one);
    let n = b.nest.num(bins[a] as f64, f);
    Ok((first, b.bin(BinOp::Div, len, n)))
}

/// A bin of extent e has at most ⌊e⌋ + 2 pixels: it may begin and end within one.
fn pixels_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (rois, bins) = (c.need(0)?, pooled(c.attrs).ok_or("unknown attributes")?);
    let scale = c.attrs.float(1).unwrap_or(1.0);
    let mut b = Builder::new(c)?;
    b.nest.inner = vec![rois.shape[0]];
    let m = b.along(inner(0));
    let two = b.int(2);
    let mut most = |a: usize| {
        let (_, extent) = pixels(&mut b, 0, m.clone(), a, bins, scale)?;
        let n = b.nest.un(UnOp::Floor, extent);
        let n = b.nest.expr(Expr::Cast(n, I64));
        Plan::Ok(b.bin(BinOp::Add, n, two))
    };
    let (rows, columns) = (most(0)?, most(1)?);
    Ok(store_pair(b, rows, columns))
}

/// One load per pixel of the largest bin.
fn pool_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, bins, most) = (c.need(0)?, pooled(c.attrs).ok_or("unknown attributes")?, bounds(c, 2)?);
    let scale = c.attrs.float(1).unwrap_or(1.0);
    let mut b = Builder::over_result(c)?;
    let t = b.dtype(0);
    b.nest.inner = most;
    let m = b.along(outer(0));
    let at = [m.clone(), b.fixed_at(0)];
    let image = b.load(1, at)?;
    let image = b.nest.expr(Expr::Cast(image, I64));
    let image = b.index(image, x.shape[0]);
    let mut at = vec![b.computed(image), b.along(outer(1))];
    let mut inside = None;
    for a in 0..2 {
        let (first, bin) = pixels(&mut b, 1, m.clone(), a, bins, scale)?;
        let f = b.nest.expr_dtype(bin);
        let (o, one, zero) = (b.outer(2 + a), b.nest.num(1.0, f), b.nest.num(0.0, f));
        let o = cast(&mut b, o, f);
        let next = b.bin(BinOp::Add, o, one);
        let (from, to) = (b.bin(BinOp::Mul, o, bin), b.bin(BinOp::Mul, next, bin));
        let (from, to) = (b.nest.un(UnOp::Floor, from), b.nest.un(UnOp::Ceil, to));
        let (from, to) = (b.bin(BinOp::Add, from, first), b.bin(BinOp::Add, to, first));
        let n = extent(&mut b, x.shape[2 + a], f);
        let from = b.bin(BinOp::Max, from, zero);
        let to = b.bin(BinOp::Min, to, n);
        let k = b.nest.expr(Expr::Index(inner(a)));
        let k = cast(&mut b, k, f);
        let place = b.bin(BinOp::Add, from, k);
        let before = b.bin(BinOp::Lt, place, to);
        inside = b.and(inside, Some(before));
        let place = index(&mut b, place, x.shape[2 + a]);
        at.push(b.computed(place));
    }
    let least = b.nest.num(f64::NEG_INFINITY, t);
    let v = b.load_if(0, at, inside, least)?;
    let (zero, one) = (b.int(0), b.int(1));
    let counts = match inside {
        Some(inside) => b.select(inside, one, zero),
        None => one,
    };
    let r = b.reduce([(Combiner::Max, v), (Combiner::Max, counts)]);
    let (some, none) = (b.bin(BinOp::Gt, r[1], zero), b.nest.num(0.0, t));
    let y = b.select(some, r[0], none);
    Ok(b.store(y))
}
