//! Rows that move between channels and blocks of pixels.

use super::extents::quotient;
use super::loops::{Builder, inner, outer};
use super::row::{ANY, MOVES, NUMS, ROW};
use crate::attrs::Attrs;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, Nest, Term};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, attr, req};
use crate::ty::Shape;
use reference::conv::Window;
use reference::image;
use smallvec::SmallVec;
use tensor::{DType, DType::*, Diagnostic, DimId, DimPool, ErrorKind, Result, Tensor};

const T: (&str, &[DType]) = ("T", ANY);
const MODE: AttrDef = attr("mode", AttrKind::Str("DCR"));
const BLOCK: AttrDef = attr("blocksize", AttrKind::IntReq);

const DEPTH_TO_SPACE: OpDef = OpDef {
    name: "DepthToSpace",
    traits: MOVES,
    inputs: &[req("input", "T")],
    outputs: &[req("output", "T")],
    attrs: &[BLOCK, MODE],
    dtypes: &[T],
    infer: |c| infer(c, true),
    reference: Some(|c| reference(c, image::depth_to_space)),
    lower: &[Candidate::Expand(|x| expand(x, true))],
    cases: &[
        "[2,8,3,2] blocksize=2",
        "[1,18,2,3] blocksize=3 mode=CRD",
        "[0,4,2,2] blocksize=2",
        "[1,3,2,2] blocksize=1",
    ],
    ..ROW
};
const SPACE_TO_DEPTH: OpDef = OpDef {
    name: "SpaceToDepth",
    infer: |c| infer(c, false),
    reference: Some(|c| reference(c, image::space_to_depth)),
    lower: &[Candidate::Expand(|x| expand(x, false))],
    cases: &["[2,2,6,4] blocksize=2", "[1,1,3,6] blocksize=3"],
    ..DEPTH_TO_SPACE
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef { until: 10, attrs: &[BLOCK], cases: &["[2,8,3,2] blocksize=2"], ..DEPTH_TO_SPACE },
    OpDef { since: 11, until: 27, ..DEPTH_TO_SPACE },
    OpDef { since: 28, ..DEPTH_TO_SPACE },
    OpDef { until: 27, attrs: &[BLOCK], ..SPACE_TO_DEPTH },
    OpDef { since: 28, cases: &["[2,2,6,4] blocksize=2", "[1,2,3,6] blocksize=3 mode=CRD"], ..SPACE_TO_DEPTH },
    OpDef {
        name: "Col2Im",
        since: 18,
        inputs: &[req("input", "T"), req("image_shape", "I"), req("block_shape", "I")],
        outputs: &[req("output", "T")],
        attrs: &[attr("dilations", AttrKind::Ints), attr("pads", AttrKind::Ints), attr("strides", AttrKind::Ints)],
        dtypes: &[("T", NUMS), ("I", &[I64])],
        infer: col2im_infer,
        reference: Some(|c| {
            let list = |i: usize| -> Result<Vec<usize>> {
                Ok(c.input(i)?.to_i64_vec().into_iter().map(|n| usize::try_from(n).unwrap_or(0)).collect())
            };
            let (image, block) = (list(1)?, list(2)?);
            let b = Steps::new(c.attrs, block.len())
                .ok_or_else(|| Diagnostic::new(ErrorKind::Shape, "Col2Im: attributes do not fit"))?;
            Ok(vec![image::col2im(c.input(0)?, &image, &b.window(block))?])
        }),
        lower: &[Candidate::Loops(col2im_loops)],
        tolerance: super::row::ROUNDED,
        cases: &[
            "[1,5,5];i64[2]{5,5};i64[2]{1,5}",
            "[2,8,12];i64[2]{4,5};i64[2]{2,2}",
            "[1,4,9];i64[2]{6,6};i64[2]{2,2} strides=[2,2]",
            "[1,4,12];i64[2]{4,5};i64[2]{2,2} pads=[0,1,0,1] dilations=[1,3]",
            "[1,8,12];i64[3]{3,4,3};i64[3]{2,2,2}",
            "[1,4,6];i64[2]{5,5};i64[2]{2,2} strides=[2,3] pads=[1,0,1,2]",
            "[1,8,16];i64[3]{7,4,3};i64[3]{2,2,1} strides=[2,1,3] pads=[1,1,0,0,1,0] dilations=[1,2,1]",
        ],
        ..ROW
    },
];

/// The edge of a block.
fn edge(attrs: &Attrs) -> Option<i64> {
    attrs.int(0).filter(|b| (1..1 << 15).contains(b))
}

/// Whether channels count within blocks first.
fn depth_first(attrs: &Attrs) -> Option<bool> {
    match attrs.str(1) {
        None | Some("DCR") => Some(false),
        Some("CRD") => Some(true),
        _ => None,
    }
}

fn reference(c: &RefCtx, f: fn(&Tensor, usize, bool) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let (Some(block), Some(first)) = (edge(c.attrs), depth_first(c.attrs)) else {
        return Err(Diagnostic::new(ErrorKind::Unsupported, format!("{}: unknown blocks", c.def.name)));
    };
    Ok(vec![f(c.input(0)?, block as usize, first)?])
}

/// Shape rule: `[n, c, h, w]` with channels over b², pixels times b; or the other way round.
fn infer(c: &mut InferCtx, to_space: bool) -> Result<()> {
    let (dtype, name) = (c.dtype(0)?, c.def.name);
    let Some(block) = edge(c.attrs) else {
        return Err(c.error(ErrorKind::Shape, format!("{name}: a blocksize of {:?}", c.attrs.int(0))));
    };
    if depth_first(c.attrs).is_none() {
        return Err(c.error(ErrorKind::Unsupported, format!("{name}: mode {:?} is not known", c.attrs.str(1))));
    }
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let &[n, depth, h, w] = s.as_slice() else {
        return Err(c.error(ErrorKind::Shape, format!("{name} needs 4 axes, not {}", s.len())));
    };
    let (b, area) = (c.dims.constant(block), c.dims.constant(block * block));
    let whole = |c: &mut InferCtx, d: DimId, by: DimId| -> Result<DimId> {
        let (q, exact) = quotient(c.dims, &[d], &[by]);
        if !exact {
            let back = c.dims.mul(q, by);
            c.require_eq(back, d, &format!("blocks of {block} must fill the extents"))?;
        }
        Ok(q)
    };
    let out = if to_space {
        let depth = whole(c, depth, area)?;
        [n, depth, c.dims.mul(h, b), c.dims.mul(w, b)]
    } else {
        let (h, w) = (whole(c, h, b)?, whole(c, w, b)?);
        [n, c.dims.mul(depth, area), h, w]
    };
    c.set(0, dtype, out);
    Ok(())
}

/// Splits axes, moves the parts and joins them.
fn expand(x: &mut Expansion, to_space: bool) -> Result<Vec<Value>> {
    let (v, block) = (x.need(0)?, edge(x.attrs()).unwrap_or(1));
    let first = depth_first(x.attrs()).unwrap_or(false);
    let [n, c, h, w] = [0, 1, 2, 3].map(|a| x.extent(v, a));
    let (b, area) = (x.ints(&[block]), x.ints(&[block * block]));
    let mut times = |name: &str, a: Value, b: Value| x.op(name, &[a, b], &[]);
    let y = if to_space {
        let (c, hb, wb) = (times("Div", c, area), times("Mul", h, b), times("Mul", w, b));
        let split = if first { [n, c, b, b, h, w] } else { [n, b, b, c, h, w] };
        let y = x.reshape_to(v, &split);
        let y = x.transpose(y, if first { &[0, 1, 4, 2, 5, 3] } else { &[0, 3, 4, 1, 5, 2] });
        x.reshape_to(y, &[n, c, hb, wb])
    } else {
        let (hb, wb, cb) = (times("Div", h, b), times("Div", w, b), times("Mul", c, area));
        let y = x.reshape_to(v, &[n, c, hb, b, wb, b]);
        let y = x.transpose(y, if first { &[0, 1, 3, 5, 2, 4] } else { &[0, 3, 5, 1, 2, 4] });
        x.reshape_to(y, &[n, cb, hb, wb])
    };
    Ok(vec![y])
}

/// Where blocks of an image are, one entry per spatial axis.
struct Steps {
    dilations: Vec<i64>,
    begin: Vec<i64>,
    end: Vec<i64>,
    strides: Vec<i64>,
}

impl Steps {
    fn new(attrs: &Attrs, rank: usize) -> Option<Steps> {
        let list = |slot: usize, len: usize, default: i64| {
            let v = attrs.ints(slot).map_or(vec![default; len], <[i64]>::to_vec);
            (v.len() == len && v.iter().all(|&x| x >= default && x < 1 << 31)).then_some(v)
        };
        let (dilations, mut begin, strides) = (list(0, rank, 1)?, list(1, 2 * rank, 0)?, list(2, rank, 1)?);
        let end = begin.split_off(rank);
        (rank > 0).then_some(Steps { dilations, begin, end, strides })
    }
    fn window(&self, kernel: Vec<usize>) -> Window {
        let list = |v: &[i64]| v.iter().map(|&x| x as usize).collect();
        Window {
            kernel,
            strides: list(&self.strides),
            dilations: list(&self.dilations),
            begin: self.begin.clone(),
            end: self.end.clone(),
            ceil: false,
        }
    }
    /// Number of places of a block along each axis of an image.
    fn places(&self, p: &mut DimPool, image: &[DimId], block: &[DimId]) -> Vec<DimId> {
        let one = p.constant(1);
        let mut place = |(a, (&n, &k)): (usize, (&DimId, &DimId))| {
            let (pads, by) = (p.constant(self.begin[a] + self.end[a]), p.constant(self.dilations[a]));
            let (whole, s) = (p.add(n, pads), p.constant(self.strides[a]));
            let reach = p.sub(k, one);
            let reach = p.mul(reach, by);
            let room = p.sub(whole, reach);
            let room = p.sub(room, one);
            let steps = p.floordiv(room, s);
            p.add(steps, one)
        };
        image.iter().zip(block).enumerate().map(&mut place).collect()
    }
}

/// Shape rule: `[n, c · block, columns]` → `[n, c, image…]`.
fn col2im_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let &[n, rows, columns] = s.as_slice() else {
        return Err(c.error(ErrorKind::Shape, format!("Col2Im needs 3 axes, not {}", s.len())));
    };
    let (image, block) = (c.need_values(1), c.need_values(2));
    let rank = [&image, &block].into_iter().flatten().map(SmallVec::len).next().or(c.list_len(1)).or(c.list_len(2));
    let Some(rank) = rank else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if [&image, &block].into_iter().flatten().any(|v| v.len() != rank) {
        return Err(c.error(ErrorKind::Shape, "Col2Im: image and block must be of as many axes"));
    }
    let Some(steps) = Steps::new(c.attrs, rank) else {
        return Err(c.error(ErrorKind::Shape, format!("Col2Im: attributes do not fit {rank} spatial axes")));
    };
    let known = image.is_some() && block.is_some();
    let image: Shape = match image {
        Some(v) => v.iter().map(|&d| c.extent(d)).collect::<Result<_>>()?,
        None => c.unknown_extents(rank),
    };
    let Some(block) = block.filter(|_| known) else {
        let channels = c.fresh("channels", tensor::dims::Origin::Unknown);
        c.set(0, dtype, [n, channels].into_iter().chain(image));
        return Ok(());
    };
    let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
    block.iter().for_each(|&k| c.require_le(one, k, "Col2Im: a block has elements"));
    let places = steps.places(c.dims, &image, &block);
    places.iter().for_each(|&d| c.require_le(zero, d, "Col2Im: a block must not be larger than the padded image"));
    let all = c.dims.product(places);
    c.require_eq(all, columns, "there is one column per place of the block")?;
    let (q, exact) = quotient(c.dims, &[rows], &block);
    if !exact {
        let area = c.dims.product(block);
        let back = c.dims.mul(q, area);
        c.require_eq(back, rows, "rows are channels times the block")?;
    }
    c.set(0, dtype, [n, q].into_iter().chain(image));
    Ok(())
}

/// Each pixel sums over the block: of every element the column that has it on this pixel, if there is one.
fn col2im_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let block = c.need(2)?.values.ok_or("the block is not known when it runs")?;
    let g = Steps::new(c.attrs, block.len()).ok_or("attributes do not fit")?;
    let image: Vec<DimId> = c.outs[0].shape[2..].to_vec();
    let places = g.places(c.dims, &image, &block);
    let area = c.dims.product(block.iter().copied());
    let mut b = Builder::over_result(c)?;
    b.nest.inner = block.to_vec();
    let zero = b.c.dims.constant(0);
    let (zero_int, mut inside, mut column) = (b.int(0), None, b.int(0));
    let mut row = Coord { offset: zero, terms: [(Term::Axis(outer(1)), area)].into_iter().collect() };
    let (mut below, mut step) = (b.c.dims.constant(1), b.c.dims.constant(1));
    for a in (0..image.len()).rev() {
        row.terms.push((Term::Axis(inner(a)), step));
        step = b.c.dims.mul(step, block[a]);
        let (o, k) = (b.outer(2 + a), b.nest.expr(Expr::Index(inner(a))));
        let (pad, dilation) = (b.int(g.begin[a]), b.int(g.dilations[a]));
        let o = b.bin(BinOp::Add, o, pad);
        let k = b.bin(BinOp::Mul, k, dilation);
        let mut place = b.bin(BinOp::Sub, o, k);
        let mut fits = b.bin(BinOp::Ge, place, zero_int);
        if g.strides[a] > 1 {
            let s = b.int(g.strides[a]);
            let rest = b.bin(BinOp::Rem, place, s);
            let whole = b.bin(BinOp::Eq, rest, zero_int);
            fits = b.bin(BinOp::And, fits, whole);
            place = b.bin(BinOp::Div, place, s);
        }
        let before = b.within(place, places[a], false, true);
        inside = b.and(inside, Some(fits));
        inside = b.and(inside, before);
        let below_dim = b.dim(below);
        let part = b.bin(BinOp::Mul, place, below_dim);
        column = b.bin(BinOp::Add, column, part);
        below = b.c.dims.mul(below, places[a]);
    }
    let at = vec![b.along(outer(0)), row, b.computed(column)];
    let t = b.dtype(0);
    let none = b.nest.num(0.0, t);
    let v = b.load_if(0, at, inside, none)?;
    let y = b.reduce([(Combiner::Sum, v)])[0];
    Ok(b.store(y))
}
