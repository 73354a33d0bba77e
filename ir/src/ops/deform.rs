//! Rows of deformable convolution: elements of windows are moved by data, sampled, then multiplied as in any convolution.

use super::grid::check_image;
use super::loops::{Builder, outer};
use super::row::{FLOATS, ROW};
use super::sample::{Tap, blend, blend_dtype, cast, index, inside, linear_weights, split};
use super::window::Geometry;
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Coord, Expr, Nest};
use crate::op::{AttrDef, AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::conv::Window;
use reference::grid;
use smallvec::SmallVec;
use tensor::{DType::*, Diagnostic, DimId, DimPool, ErrorKind, Result};

const DILATIONS: AttrDef = attr("dilations", AttrKind::Ints);
const KERNEL: AttrDef = attr("kernel_shape", AttrKind::Ints);
const OFFSET_GROUP: AttrDef = attr("offset_group", AttrKind::Int(1));
const PADS: AttrDef = attr("pads", AttrKind::Ints);
const STRIDES: AttrDef = attr("strides", AttrKind::Ints);
const GROUP: AttrDef = attr("group", AttrKind::Int(1));
const SHARED: &[AttrDef] = &[KERNEL, DILATIONS, PADS, STRIDES, OFFSET_GROUP];

const DEFORM_CONV: OpDef = OpDef {
    name: "DeformConv",
    inputs: &[req("X", "T"), req("W", "T"), req("offset", "T"), opt("B", "T"), opt("mask", "T")],
    outputs: &[req("Y", "T")],
    attrs: &[KERNEL, DILATIONS, PADS, STRIDES, OFFSET_GROUP, GROUP],
    infer: conv_infer,
    reference: Some(|c| {
        let w = c.input(1)?;
        let kernel: Vec<i64> = w.shape().iter().skip(2).map(|&k| k as i64).collect();
        let columns = columns_ref(c, Some(kernel), 2, 4)?;
        let groups = usize::try_from(c.attrs.int(5).unwrap_or(1)).unwrap_or(0);
        Ok(vec![grid::deform_conv(&columns, w, c.opt(3), groups)?])
    }),
    lower: &[Candidate::Expand(expand)],
    tolerance: Tol::Rel(1e-5),
    cases: &[
        "[1,1,3,3];[1,1,2,2];[1,8,4,4] kernel_shape=[2,2] pads=[1,1,1,1]",
        "[2,4,5,4];[6,2,3,2];[2,24,2,3];[6];[2,12,2,3] kernel_shape=[3,2] group=2 offset_group=2 strides=[2,1]",
        "[1,2,6,5];[1,2,2,2];[1,8,4,3];_;[1,4,4,3] dilations=[2,2] kernel_shape=[2,2]",
        "[1,2,5];[2,2,3];[1,3,5];[2] kernel_shape=[3] pads=[1,1]",
        "[1,1,3,3,2];[1,1,2,1,2];[1,12,2,3,1] kernel_shape=[2,1,2]",
    ],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef { since: 19, until: 21, dtypes: &[("T", &[F32, F16, F64])], ..DEFORM_CONV },
    OpDef { since: 22, dtypes: &[("T", FLOATS)], ..DEFORM_CONV },
    // columns [n, c, kernel, outs…]: the moved elements of each window, times the mask
    OpDef {
        name: "DeformColumns",
        domain: HIP_DOMAIN,
        inputs: &[req("X", "T"), req("offset", "T"), opt("mask", "T")],
        outputs: &[req("columns", "T")],
        attrs: SHARED,
        dtypes: &[("T", FLOATS)],
        infer: |c| {
            let out = columns_infer(c, None, 1, 2)?;
            match out {
                Some(s) => c.set(0, c.dtype(0)?, s),
                None => c.set_unranked(0, c.dtype(0)?),
            }
            Ok(())
        },
        reference: Some(|c| {
            let (v, shape) = columns_ref(c, None, 1, 2)?;
            Ok(vec![reference::data::from_f64s(c.input(0)?.dtype(), &shape, &v)])
        }),
        lower: &[Candidate::Loops(columns_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[1,1,3,3];[1,8,4,4] pads=[1,1,1,1] kernel_shape=[2,2]",
            "[2,4,5,4];[2,24,2,3];[2,12,2,3] offset_group=2 strides=[2,1] kernel_shape=[3,2]",
        ],
        ..ROW
    },
];

/// Windows as numbers.
struct Numbers {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
}

/// Attributes as numbers, for a kernel that the weight or the attribute gives.
fn numbers(attrs: &Attrs, rank: usize, kernel: Option<Vec<i64>>) -> Option<Numbers> {
    let list = |slot: usize, len: usize, default: i64| {
        let v = attrs.ints(slot).map_or(vec![default; len], <[i64]>::to_vec);
        (v.len() == len && v.iter().all(|&x| x >= default && x < 1 << 31)).then_some(v)
    };
    let given = attrs.ints(0).map(|_| list(0, rank, 1)).map_or(Some(None), |k| k.map(Some))?;
    let kernel = match (given, kernel) {
        (Some(a), Some(b)) if a != b => return None,
        (Some(k), _) | (None, Some(k)) => k,
        (None, None) => return None,
    };
    let fits = kernel.len() == rank && kernel.iter().all(|k| (1..1 << 15).contains(k));
    let (dilations, pads, strides) = (list(1, rank, 1)?, list(2, 2 * rank, 0)?, list(3, rank, 1)?);
    fits.then_some(Numbers { kernel, strides, dilations, pads })
}

/// Windows over an image.
fn geometry(p: &mut DimPool, n: Numbers, image: &[DimId]) -> Geometry {
    let rank = image.len();
    let dims = |p: &mut DimPool, v: &[i64]| v.iter().map(|&x| p.constant(x)).collect::<Vec<_>>();
    let (begin, end) = (dims(p, &n.pads[..rank]), dims(p, &n.pads[rank..]));
    let one = p.constant(1);
    let mut outs = Vec::new();
    for a in 0..rank {
        let span = (n.kernel[a] - 1).saturating_mul(n.dilations[a]).saturating_add(1);
        let more = p.constant((n.pads[a] + n.pads[a + rank]).saturating_sub(span));
        let (room, s) = (p.add(image[a], more), p.constant(n.strides[a]));
        let steps = p.floordiv(room, s);
        outs.push(p.add(steps, one));
    }
    let Numbers { kernel, strides, dilations, .. } = n;
    Geometry { image: image.to_vec(), kernel, strides, dilations, begin, end, outs }
}

fn groups(attrs: &Attrs) -> i64 {
    attrs.int(4).unwrap_or(1)
}

/// Shape rule: `[n, c, image…]` → `[n, c, kernel, outs…]`. Checks offsets (operand `offset`) and mask.
fn columns_infer(c: &mut InferCtx, kernel: Option<Vec<i64>>, offset: usize, mask: usize) -> Result<Option<Shape>> {
    let name = c.def.name;
    let Some(x) = c.shape(0) else { return Ok(None) };
    let r = x.len().checked_sub(2).filter(|r| (1..=3).contains(r));
    let r = r.ok_or_else(|| c.error(ErrorKind::Shape, format!("{name}: images have 1 to 3 spatial axes")))?;
    let n = numbers(c.attrs, r, kernel);
    let n = n.ok_or_else(|| c.error(ErrorKind::Shape, format!("{name}: attributes do not fit {r} spatial axes")))?;
    let og = groups(c.attrs);
    if !(1..1 << 31).contains(&og) {
        return Err(c.error(ErrorKind::Shape, format!("{name}: an offset_group of {og}")));
    }
    let area: i64 = n.kernel.iter().product();
    let g = geometry(c.dims, n, &x[2..]);
    let outs = g.counted(c)?;
    let out: Shape = [x[0], x[1]].into_iter().chain(outs.iter().copied()).collect();
    check_image(c, &x[2..], &out);
    let group = c.dims.constant(og);
    let rest = c.dims.modulo(x[1], group);
    let zero = c.dims.constant(0);
    c.require_eq(rest, zero, "groups of offsets divide the channels")?;
    for (i, per, what) in [(offset, r as i64, "offsets"), (mask, 1, "mask")] {
        let Some(s) = c.shape(i) else { continue };
        let channels = c.dims.constant(og * area * per);
        let want: Shape = [x[0], channels].into_iter().chain(outs.iter().copied()).collect();
        if s.len() != want.len() {
            return Err(c.error(ErrorKind::Shape, format!("{name}: {what} of {} axes", s.len())));
        }
        for (&a, &b) in s.iter().zip(&want) {
            c.require_eq(a, b, &format!("{what} are one per group, element of the window and place"))?;
        }
    }
    let area = c.dims.constant(area);
    Ok(Some([x[0], x[1], area].into_iter().chain(outs).collect()))
}

fn columns_ref(c: &RefCtx, kernel: Option<Vec<i64>>, offset: usize, mask: usize) -> Result<(Vec<f64>, Vec<usize>)> {
    let x = c.input(0)?;
    let rank = x.shape().len().saturating_sub(2);
    let fail = || Diagnostic::new(ErrorKind::Shape, format!("{}: attributes do not fit", c.def.name));
    let n = numbers(c.attrs, rank, kernel).ok_or_else(fail)?;
    let list = |v: &[i64]| v.iter().map(|&x| x as usize).collect();
    let mut begin = n.pads;
    let end = begin.split_off(rank);
    let w = Window {
        kernel: list(&n.kernel),
        strides: list(&n.strides),
        dilations: list(&n.dilations),
        begin,
        end,
        ceil: false,
    };
    let groups = usize::try_from(groups(c.attrs)).unwrap_or(0);
    grid::deform_columns(x, c.input(offset)?, c.opt(mask), &w, groups)
}

/// The extents of the kernel: the attribute, or what the weight shows.
fn kernel_of(c: &mut InferCtx, w: &Shape) -> Result<Vec<i64>> {
    if let Some(k) = c.attrs.ints(0).filter(|k| k.len() + 2 == w.len()) {
        for (&k, &d) in k.iter().zip(&w[2..]) {
            let k = c.dims.constant(k);
            c.require_eq(k, d, "kernel_shape is the weight's")?;
        }
        return Ok(k.to_vec());
    }
    let k: Option<Vec<i64>> = w.iter().skip(2).map(|&d| c.dims.as_const(d)).collect();
    let text = "DeformConv: the kernel's extents must be known when the model is compiled";
    k.ok_or_else(|| c.error(ErrorKind::Unsupported, text).help("give kernel_shape"))
}

fn conv_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let (Some(x), Some(w)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if w.len() != x.len() || w.len() < 3 {
        let text = format!("DeformConv of {} axes by {}", x.len(), w.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    let kernel = kernel_of(c, &w)?;
    let Some(columns) = columns_infer(c, Some(kernel), 2, 4)? else { return Ok(()) };
    let g = c.attrs.int(5).unwrap_or(1);
    if !(1..1 << 31).contains(&g) {
        return Err(c.error(ErrorKind::Shape, format!("DeformConv: a group of {g}")));
    }
    let (g, zero) = (c.dims.constant(g), c.dims.constant(0));
    let channels = c.dims.mul(w[1], g);
    c.require_eq(channels, x[1], "channels are those of the weight in all groups")?;
    let rest = c.dims.modulo(w[0], g);
    c.require_eq(rest, zero, "groups divide the channels of the result")?;
    match c.shape(3).as_deref() {
        Some(&[n]) => c.require_eq(n, w[0], "there is one bias per channel")?,
        Some(s) => return Err(c.error(ErrorKind::Shape, format!("DeformConv: a bias of {} axes", s.len()))),
        None => {}
    }
    c.set(0, dtype, [x[0], w[0]].into_iter().chain(columns[3..].iter().copied()).collect::<Shape>());
    Ok(())
}

/// Columns, then a product per group, then the bias.
fn expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let (image, w, offset) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let (bias, mask) = (x.input(3), x.input(4));
    let (_, ws) = x.tensor(w)?;
    let r = ws.len().saturating_sub(2);
    let shown = ws.iter().skip(2).map(|&d| x.as_const(d).unwrap_or(0)).collect();
    let kernel = x.attrs().ints(0).map_or(shown, <[i64]>::to_vec);
    let mut attrs: Vec<(&str, Attr)> = SHARED.iter().map(|a| a.name).zip(x.attrs().slots().to_vec()).collect();
    attrs[0].1 = Attr::Ints(kernel.into());
    let group = x.attrs().int(5).unwrap_or(1);
    let columns = x.own("DeformColumns", &[Some(image), Some(offset), mask], &attrs);
    // [n, g, c / g · kernel, outs] by [g, m / g, c / g · kernel]
    let outs = x.op("Shape", &[columns], &[("start", Attr::Int(3))]);
    let (n, m) = (x.extent(image, 0), x.extent(w, 0));
    let shape = x.op("Shape", &[w], &[("start", Attr::Int(1))]);
    let rows = x.op("ReduceProd", &[shape], &[("keepdims", Attr::Int(1))]);
    let places = x.op("ReduceProd", &[outs], &[("keepdims", Attr::Int(1))]);
    let g = x.ints(&[group]);
    let per_group = x.op("Div", &[m, g], &[]);
    let columns = x.reshape_to(columns, &[n, g, rows, places]);
    let w = x.reshape_to(w, &[g, per_group, rows]);
    let y = x.op("MatMul", &[w, columns], &[]);
    let mut y = x.reshape_to(y, &[n, m, outs]);
    if let Some(bias) = bias {
        let axes: Vec<i64> = (1..=r as i64).collect();
        let bias = x.unsqueeze(bias, &axes);
        y = x.op("Add", &[y, bias], &[]);
    }
    Ok(vec![y])
}

/// r loads of offsets, 2ʳ of the image (and 1 of the mask) per element; channels of a group compute the same places again.
fn columns_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, og, masked) = (c.need(0)?, groups(c.attrs), c.has(2));
    let r = x.shape.len() - 2;
    let n = numbers(c.attrs, r, None).ok_or("attributes do not fit")?;
    let area: i64 = n.kernel.iter().product();
    let g = geometry(c.dims, n, &x.shape[2..]);
    let mut b = Builder::over_result(c)?;
    let t = blend_dtype(x.dtype);
    let (k, area) = (b.outer(2), b.int(area));
    // Of all groups' elements of the window, this one.
    let mut element = k;
    if og > 1 {
        let group = b.c.dims.constant(og);
        let per = b.c.dims.floordiv(x.shape[1], group);
        let (ch, per) = (b.outer(1), b.dim(per));
        let group = b.bin(BinOp::Div, ch, per);
        let before = b.bin(BinOp::Mul, group, area);
        element = b.bin(BinOp::Add, before, k);
    }
    let place: Vec<Coord> = (0..r).map(|a| b.along(outer(3 + a))).collect();
    let (mut rest, mut axes) = (k, Vec::new());
    for a in (0..r).rev() {
        let (size, rank, number) = (b.int(g.kernel[a]), b.int(r as i64), b.int(a as i64));
        let tap = b.bin(BinOp::Rem, rest, size);
        rest = b.bin(BinOp::Div, rest, size);
        let row = b.bin(BinOp::Mul, element, rank);
        let row = b.bin(BinOp::Add, row, number);
        let mut at = vec![b.along(outer(0)), b.computed(row)];
        at.extend(place.iter().cloned());
        let offset = b.load(1, at)?;
        let (o, s, d, begin) = (b.outer(3 + a), b.int(g.strides[a]), b.int(g.dilations[a]), b.dim(g.begin[a]));
        let o = b.bin(BinOp::Mul, o, s);
        let tap = b.bin(BinOp::Mul, tap, d);
        let at = b.bin(BinOp::Add, o, tap);
        let at = b.bin(BinOp::Sub, at, begin);
        let at = b.nest.expr(Expr::Cast(at, t));
        let at = b.bin(BinOp::Add, at, offset);
        let (floor, part) = split(&mut b, at);
        let one = b.nest.num(1.0, t);
        let next = b.bin(BinOp::Add, floor, one);
        let weights = linear_weights(&mut b, part);
        let mut taps: SmallVec<[Tap; 4]> = SmallVec::new();
        for (place, weight) in [floor, next].into_iter().zip(weights) {
            let inside = Some(inside(&mut b, place, x.shape[2 + a]));
            taps.push(Tap { index: index(&mut b, place, x.shape[2 + a]), weight, inside });
        }
        axes.push((2 + a, taps));
    }
    axes.reverse();
    let mut at: Vec<Coord> = (0..r + 2).map(|i| b.along(outer(i))).collect();
    let mut y = blend(&mut b, &mut at, &axes, t)?;
    if masked {
        let mut at = vec![b.along(outer(0)), b.computed(element)];
        at.extend(place);
        let m = b.load(2, at)?;
        let m = cast(&mut b, m, t);
        y = b.bin(BinOp::Mul, y, m);
    }
    Ok(b.store(y))
}
