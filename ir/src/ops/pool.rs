//! Rows of pooling.

use super::loops::{Builder, inner, outer};
use super::row::{FLOATS, ROW};
use super::window::{Geometry, geometry, pads_itself, window};
use crate::lowering::{CallSpec, Candidate, IntArg, NodeCtx, Plan};
use crate::nest::{Access, BinOp, Combiner, Coord, Expr, ExprId, Nest, Phase};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::conv::{self, Pool, Window};
use tensor::{DType, DType::*, Diagnostic, DimId, DimPool, ErrorKind, Result, Tensor};

const T: (&str, &[DType]) = ("T", FLOATS);
const T8: (&str, &[DType]) = ("T", &[F32, F16, BF16, F64, I8, U8]);
const I: (&str, &[DType]) = ("I", &[I64]);
pub(super) const CEIL: usize = 5;
pub(super) const DILATIONS: usize = 6;
pub(super) const ROUND: Tol = Tol::Rel(1e-5);

pub(super) const COMMON: [AttrDef; 4] = [
    attr("auto_pad", AttrKind::Str("NOTSET")),
    attr("kernel_shape", AttrKind::Ints),
    attr("pads", AttrKind::Ints),
    attr("strides", AttrKind::Ints),
];
const ORDER: AttrDef = attr("storage_order", AttrKind::Int(0));
pub(super) const INCLUDE: AttrDef = attr("count_include_pad", AttrKind::Int(0));
pub(super) const CEIL_MODE: AttrDef = attr("ceil_mode", AttrKind::Int(0));
pub(super) const DILATION: AttrDef = attr("dilations", AttrKind::Ints);

const MAX: OpDef = OpDef {
    name: "MaxPool",
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T"), opt("Indices", "I")],
    infer: pool_infer,
    reference: Some(|c| {
        let column_major = c.attrs.int(4) == Some(1);
        let (y, at) = pool_ref(c, Pool::Max, column_major)?;
        Ok(if c.n_outs > 1 { vec![y, at] } else { vec![y] })
    }),
    lower: &[Candidate::Kernel(|c| pool_call(c, Pool::Max)), Candidate::Loops(max_loops)],
    cases: &[
        "[1,2,7,6] kernel_shape=[3,2] strides=[2,2]",
        "[1,1,5] kernel_shape=[3] pads=[1,1]",
        "[1,1,4,4,4] kernel_shape=[2,2,2]",
        "[1,2,5,5] kernel_shape=[2,3] auto_pad=SAME_LOWER strides=[2,1]",
    ],
    ..ROW
};
const AVERAGE: OpDef = OpDef {
    name: "AveragePool",
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T")],
    dtypes: &[T],
    infer: pool_infer,
    reference: Some(|c| Ok(vec![pool_ref(c, average_kind(c.attrs.int(4)), false)?.0])),
    lower: &[
        Candidate::Kernel(|c| {
            let kind = average_kind(c.attrs.int(4));
            pool_call(c, kind)
        }),
        Candidate::Loops(average_loops),
    ],
    tolerance: ROUND,
    cases: &["[1,2,7,6] kernel_shape=[3,2] strides=[2,2]", "[1,1,5,5] kernel_shape=[3,3] pads=[1,1,1,1]"],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef { until: 7, outputs: &[req("Y", "T")], attrs: &COMMON, dtypes: &[T], ..MAX },
    OpDef { since: 8, until: 9, attrs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], ORDER], dtypes: &[T, I], ..MAX },
    OpDef {
        since: 10,
        attrs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], ORDER, CEIL_MODE, DILATION],
        dtypes: &[T8, I],
        cases: &[
            "[1,2,7,6] kernel_shape=[3,2] strides=[2,2] pads=[1,0,0,1] outs=2",
            "[1,1,6,6] kernel_shape=[3,3] strides=[2,2] ceil_mode=1",
            "[1,2,7] kernel_shape=[3] dilations=[2] pads=[1,2]",
            "[2,1,4,4] kernel_shape=[2,2] strides=[2,2] storage_order=1 outs=2",
            "[1,1,5,4]{0} kernel_shape=[3,2] strides=[2,1] pads=[2,1,0,0] dilations=[2,1] outs=2",
            "[1,1,5,5] kernel_shape=[2,2] strides=[3,3] pads=[0,0,1,1] ceil_mode=1",
            // Windows of nothing but padding.
            "[1,1,9,1] kernel_shape=[2,2] auto_pad=SAME_LOWER strides=[3,1] dilations=[2,2]",
        ],
        ..MAX
    },
    OpDef { until: 6, attrs: &COMMON, ..AVERAGE },
    OpDef {
        since: 7,
        until: 9,
        attrs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], INCLUDE],
        cases: &["[1,1,5,5] kernel_shape=[3,3] pads=[1,1,1,1] count_include_pad=1", "[1,2,5] kernel_shape=[2]"],
        ..AVERAGE
    },
    OpDef { since: 10, until: 18, attrs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], INCLUDE, CEIL_MODE], ..AVERAGE },
    OpDef {
        since: 19,
        attrs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], INCLUDE, CEIL_MODE, DILATION],
        cases: &[
            AVERAGE.cases[0],
            AVERAGE.cases[1],
            "[1,2,7,5] kernel_shape=[2,2] dilations=[2,3] pads=[1,0,1,1] strides=[2,1] ceil_mode=1",
            "[1,2,5,1] kernel_shape=[2,2] dilations=[1,2] pads=[0,1,0,1]",
        ],
        ..AVERAGE
    },
    OpDef {
        name: "GlobalAveragePool",
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[T],
        infer: global_infer,
        reference: Some(|c| Ok(vec![conv::pool(c.input(0)?, &whole(c.input(0)?), Pool::Average, false)?.0])),
        lower: &[Candidate::Loops(|c| global_loops(c, Pool::Average))],
        tolerance: ROUND,
        cases: &["[2,3,4,5]", "[1,2,7]"],
        ..ROW
    },
    OpDef {
        name: "GlobalMaxPool",
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[T],
        infer: global_infer,
        reference: Some(|c| Ok(vec![conv::pool(c.input(0)?, &whole(c.input(0)?), Pool::Max, false)?.0])),
        lower: &[Candidate::Loops(|c| global_loops(c, Pool::Max))],
        cases: &["[2,3,4,5]", "[1,2,7]"],
        ..ROW
    },
];

pub(super) fn average_kind(include: Option<i64>) -> Pool {
    if include == Some(1) { Pool::AveragePadded } else { Pool::Average }
}

/// One window over the whole image.
pub(super) fn whole(x: &Tensor) -> Window {
    let image = x.shape().get(2..).unwrap_or(&[]).to_vec();
    let n = image.len();
    Window {
        kernel: image,
        strides: vec![1; n],
        dilations: vec![1; n],
        begin: vec![0; n],
        end: vec![0; n],
        ceil: false,
    }
}

fn pool_geometry(p: &mut DimPool, attrs: &crate::attrs::Attrs, x: &[DimId]) -> Result<Geometry> {
    geometry(p, attrs, Some(DILATIONS), &x[2..], None, attrs.int(CEIL) == Some(1))
}

pub(super) fn pool_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, dtype);
        if c.n_outs > 1 {
            c.set_unranked(1, I64);
        }
        return Ok(());
    };
    if x.len() < 3 {
        return Err(c.error(ErrorKind::Shape, format!("{} needs at least 3 axes, not {}", c.def.name, x.len())));
    }
    let g = pool_geometry(c.dims, c.attrs, &x);
    let g = g.map_err(|e| c.error(e.kind(), format!("{}: {}", c.def.name, e.message())))?;
    check_pads(c, &g)?;
    let mut out: Shape = [x[0], x[1]].into_iter().collect();
    out.extend(g.counted(c)?);
    c.set(0, dtype, out.clone());
    c.set(1, I64, out);
    Ok(())
}

/// Refuses given pads that are not below the kernel's extent: a window could lie in the padding alone, with nothing to choose from or
/// to take the mean of. Nor may they crop the image, as convolution's do.
pub(super) fn check_pads(c: &InferCtx, g: &Geometry) -> Result<()> {
    if pads_itself(c.attrs) {
        return Ok(());
    }
    for (a, &kernel) in g.kernel.iter().enumerate() {
        let pads = [g.begin[a], g.end[a]].map(|d| c.dims.as_const(d).unwrap_or(0));
        if let Some(pad) = pads.into_iter().find(|&pad| pad < 0) {
            let text = format!("{}: a pad of {pad} along axis {} is negative", c.def.name, a + 2);
            return Err(c.error(ErrorKind::Shape, text).help("crop the image with Slice, or with Pad"));
        }
        if let Some(pad) = pads.into_iter().find(|&pad| pad >= kernel) {
            let (name, axis) = (c.def.name, a + 2);
            let text = format!("{name}: a pad of {pad} along axis {axis} is not below the kernel's extent of {kernel}");
            let e = c.error(ErrorKind::Shape, text);
            return Err(e.help("a window would lie in the padding alone: give smaller pads, or pad the image with Pad"));
        }
    }
    Ok(())
}

fn pool_ref(c: &RefCtx, kind: Pool, column_major: bool) -> Result<(Tensor, Tensor)> {
    let x = c.input(0)?;
    if x.shape().len() < 3 {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("{} of {:?}", c.def.name, x.shape())));
    }
    let w = window(c.attrs, Some(DILATIONS), &x.shape()[2..], None, c.attrs.int(CEIL) == Some(1))?;
    conv::pool(x, &w, kind, column_major)
}

pub(super) fn node_geometry(c: &mut NodeCtx) -> Plan<Geometry> {
    let x = c.need(0)?;
    pool_geometry(c.dims, c.attrs, &x.shape).map_err(|e| e.message().to_string().into())
}

fn pool_call(c: &mut NodeCtx, kind: Pool) -> Plan<CallSpec> {
    let x = c.need(0)?;
    let kernel = match x.dtype {
        F32 => "pool2d.f32",
        F16 => "pool2d.f16",
        d => return Err(format!("no kernel for {d}").into()),
    };
    if c.outs.len() > 1 {
        return Err("the kernel gives no indices".into());
    }
    let g = node_geometry(c)?;
    let g = g.planar(c.dims)?;
    let nc = c.dims.mul(x.shape[0], x.shape[1]);
    let kind = match kind {
        Pool::Max => 0,
        Pool::Average => 1,
        Pool::AveragePadded => 2,
    };
    let mut k = |v: i64| c.dims.constant(v);
    let ints = [
        nc,
        g.image[0],
        g.image[1],
        k(g.kernel[0]),
        k(g.kernel[1]),
        k(g.strides[0]),
        k(g.strides[1]),
        g.begin[0],
        g.begin[1],
        k(g.dilations[0]),
        k(g.dilations[1]),
        g.outs[0],
        g.outs[1],
        k(kind),
        g.end[0],
        g.end[1],
    ];
    let ints = ints.into_iter().map(IntArg::Dim).collect();
    Ok(CallSpec { kernel, reads: vec![Some(0)], writes: vec![0], ints, scalars: vec![], scratch: vec![] })
}

/// The least number of an element type as one of its compute type: it loses against every element, and is the maximum of no elements.
fn least(b: &mut Builder, element: DType, compute: DType) -> ExprId {
    let bits = element.bits();
    let e = match compute {
        F64 | F32 => Expr::Float(f64::NEG_INFINITY.to_bits(), compute),
        _ if !element.is_signed() => Expr::Int(0, compute),
        _ => Expr::Int(i64::MIN >> (64 - bits.min(64)), compute),
    };
    b.nest.expr(e)
}

fn max_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    let (g, column_major, n_outs) = (node_geometry(c)?, c.attrs.int(4) == Some(1), c.outs.len());
    let mut b = Builder::over_result(c)?;
    b.nest.inner = g.kernel_dims(b.c.dims);
    let taps = g.taps(&mut b, 0);
    let at = [vec![b.along(outer(0)), b.along(outer(1))], taps.coords].concat();
    let t = b.dtype(0);
    let other = least(&mut b, x.dtype, t);
    let v = b.load_if(0, at, taps.inside, other)?;
    if n_outs < 2 {
        let y = b.reduce([(Combiner::Max, v)])[0];
        return Ok(b.store(y));
    }
    let r = b.reduce([(Combiner::Max, v), (Combiner::ArgMax, v)]);
    // From the position in the window to that in the tensor.
    let rank = g.image.len();
    let (mut p, mut place) = (r[1], vec![r[1]; rank]);
    for a in (0..rank).rev() {
        let n = b.int(g.kernel[a]);
        let k = b.bin(BinOp::Rem, p, n);
        p = b.bin(BinOp::Div, p, n);
        let (o, s, d, begin) = (b.outer(2 + a), b.int(g.strides[a]), b.int(g.dilations[a]), b.dim(g.begin[a]));
        let i = b.bin(BinOp::Mul, o, s);
        // Where all elements are the least of their type, the first in the window is a padding: then it is the first that is none.
        let (zero, round) = (b.int(0), b.int(g.dilations[a] - 1));
        let before = b.bin(BinOp::Sub, begin, i);
        let before = b.bin(BinOp::Max, before, zero);
        let before = b.bin(BinOp::Add, before, round);
        let first = b.bin(BinOp::Div, before, d);
        let k = b.bin(BinOp::Max, k, first);
        let j = b.bin(BinOp::Mul, k, d);
        let i = b.bin(BinOp::Add, i, j);
        place[a] = b.bin(BinOp::Sub, i, begin);
    }
    let (n, ch, channels) = (b.outer(0), b.outer(1), b.dim(x.shape[1]));
    let mut index = b.bin(BinOp::Mul, n, channels);
    index = b.bin(BinOp::Add, index, ch);
    let size = b.c.dims.product(g.image.iter().copied());
    let size = b.dim(size);
    index = b.bin(BinOp::Mul, index, size);
    let mut step = b.c.dims.constant(1);
    let axes: Vec<usize> = if column_major { (0..rank).collect() } else { (0..rank).rev().collect() };
    for a in axes {
        let s = b.dim(step);
        let t = b.bin(BinOp::Mul, place[a], s);
        index = b.bin(BinOp::Add, index, t);
        step = b.c.dims.mul(step, g.image[a]);
    }
    let coords: Vec<Coord> = (0..rank + 2).map(|i| b.along(outer(i))).collect();
    let first = u16::try_from(b.nest.operands.len() - 2).unwrap_or(u16::MAX);
    let access = |k: u16| Access { operand: first + k, coords: coords.iter().cloned().collect() };
    let stores = vec![(access(0), r[0]), (access(1), index)];
    b.nest.phases.push(Phase::Store { over_inner: false, stores });
    Ok(b.nest)
}

fn average_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (g, kind) = (node_geometry(c)?, average_kind(c.attrs.int(4)));
    let mut b = Builder::over_result(c)?;
    b.nest.inner = g.kernel_dims(b.c.dims);
    let taps = g.taps(&mut b, 0);
    let at = [vec![b.along(outer(0)), b.along(outer(1))], taps.coords].concat();
    let t = b.dtype(0);
    let (zero, one) = (b.nest.num(0.0, t), b.nest.num(1.0, t));
    let v = b.load_if(0, at, taps.inside, zero)?;
    let counted = if kind == Pool::Average { taps.inside } else { taps.padded };
    let count = match counted {
        Some(cond) => b.select(cond, one, zero),
        None => one,
    };
    let r = b.reduce([(Combiner::Sum, v), (Combiner::Sum, count)]);
    // Windows with gaps may meet nothing but padding: 0.
    let some = if counted.is_some() { b.bin(BinOp::Max, r[1], one) } else { r[1] };
    let y = b.bin(BinOp::Div, r[0], some);
    Ok(b.store(y))
}

pub(super) fn global_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if x.len() < 2 {
        return Err(c.error(ErrorKind::Shape, format!("{} needs at least 2 axes, not {}", c.def.name, x.len())));
    }
    let one = c.dims.constant(1);
    c.set(0, dtype, x.iter().enumerate().map(|(i, &d)| if i < 2 { d } else { one }).collect::<Shape>());
    Ok(())
}

fn global_loops(c: &mut NodeCtx, kind: Pool) -> Plan<Nest> {
    let x = c.need(0)?;
    let mut b = Builder::over_result(c)?;
    b.nest.inner = x.shape[2..].to_vec();
    let mut at = vec![b.along(outer(0)), b.along(outer(1))];
    at.extend((0..x.shape.len() - 2).map(|i| b.along(inner(i))));
    let v = b.load(0, at)?;
    if kind == Pool::Max {
        let y = b.reduce([(Combiner::Max, v)])[0];
        return Ok(b.store(y));
    }
    let sum = b.reduce([(Combiner::Sum, v)])[0];
    let n = b.c.dims.product(x.shape[2..].iter().copied());
    let n = b.dim(n);
    let t = b.nest.expr_dtype(sum);
    let n = b.nest.expr(Expr::Cast(n, t));
    let y = b.bin(BinOp::Div, sum, n);
    Ok(b.store(y))
}
