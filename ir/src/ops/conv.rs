//! Rows of convolutions.

use super::activate::{self, ACTIVATION_ATTRS};
use super::broadcast::require_broadcasts_to;
use super::loops::{Builder, inner, outer};
use super::row::{FLOATS, ROW};
use super::window::{AUTO_PAD, Geometry, KERNEL, Steps, geometry, kernel_shape, steps, window};
use crate::lowering::{CallSpec, Candidate, IntArg, NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest, Term};
use crate::op::{AttrDef, AttrKind, HIP_DOMAIN, InferCtx, OpDef, Param, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::conv::{self, Window};
use reference::matmul::Activation;
use smallvec::smallvec;
use tensor::{DType, DType::*, Diagnostic, DimId, DimPool, ErrorKind, Result, Tensor};

const T: (&str, &[DType]) = ("T", FLOATS);
const DILATIONS: usize = 4;
const GROUP: usize = 5;
/// Slot of the activation of FusedConv, of the output padding of ConvTranspose.
const AFTER: usize = 6;

pub(super) const ATTRS: [AttrDef; 6] = [
    attr("auto_pad", AttrKind::Str("NOTSET")),
    attr("kernel_shape", AttrKind::Ints),
    attr("pads", AttrKind::Ints),
    attr("strides", AttrKind::Ints),
    attr("dilations", AttrKind::Ints),
    attr("group", AttrKind::Int(1)),
];
const INPUTS: &[Param] = &[req("X", "T"), req("W", "T"), opt("B", "T")];
const SUMS: Tol = Tol::Rel(1e-5);

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        name: "Conv",
        inputs: INPUTS,
        outputs: &[req("Y", "T")],
        attrs: &ATTRS,
        dtypes: &[T],
        infer: conv_infer,
        reference: Some(|c| conv_ref(c, Activation::None)),
        lower: &[
            Candidate::Kernel(|c| conv_call(c, Activation::None)),
            Candidate::Loops(|c| conv_loops(c, Activation::None)),
        ],
        tolerance: SUMS,
        cases: &[
            "[2,3,7,6];[4,3,3,2];[4] kernel_shape=[3,2]",
            "[1,4,9];[6,2,3] kernel_shape=[3] group=2 strides=[2] pads=[1,0]",
            "[1,2,5,6];[2,1,3,3] kernel_shape=[3,3] group=2 auto_pad=SAME_UPPER strides=[2,2]",
            "[1,2,5,6];[2,2,4,2] kernel_shape=[4,2] auto_pad=SAME_LOWER strides=[1,3]",
            "[1,2,8,8];[3,2,3,3] kernel_shape=[3,3] dilations=[2,2] pads=[0,2,1,0]",
            "[1,2,4,4,4];[2,2,2,2,2] kernel_shape=[2,2,2]",
            "[1,1,6];[1,1,2] kernel_shape=[2] pads=[-1,-2]",
        ],
        ..ROW
    },
    OpDef {
        name: "FusedConv",
        domain: HIP_DOMAIN,
        inputs: &[req("X", "T"), req("W", "T"), opt("B", "T"), opt("residual", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[
            ATTRS[0],
            ATTRS[1],
            ATTRS[2],
            ATTRS[3],
            ATTRS[4],
            ATTRS[5],
            ACTIVATION_ATTRS[0],
            ACTIVATION_ATTRS[1],
            ACTIVATION_ATTRS[2],
        ],
        dtypes: &[T],
        infer: |c| {
            activate::check(c, AFTER)?;
            conv_infer(c)?;
            if let (Some(r), Some(y)) = (c.shape(3), c.outs[0].shape().cloned()) {
                require_broadcasts_to(c, &r, &y, "the residual")?;
            }
            Ok(())
        },
        reference: Some(|c| conv_ref(c, activate::of_ref(c, AFTER)?)),
        lower: &[
            Candidate::Kernel(|c| {
                let act = activate::from_attrs(c.attrs, AFTER).map_err(|e| e.message().to_string())?;
                conv_call(c, act)
            }),
            Candidate::Loops(|c| {
                let act = activate::from_attrs(c.attrs, AFTER).map_err(|e| e.message().to_string())?;
                conv_loops(c, act)
            }),
        ],
        tolerance: SUMS,
        cases: &[
            "[1,2,5,5];[3,2,3,3];[3] kernel_shape=[3,3] activation=relu",
            "[1,2,5,5];[3,2,3,3];_;[1,3,3,3] kernel_shape=[3,3] activation=silu",
        ],
        ..ROW
    },
    OpDef {
        name: "ConvTranspose",
        inputs: INPUTS,
        outputs: &[req("Y", "T")],
        attrs: &[
            ATTRS[0],
            ATTRS[1],
            ATTRS[2],
            ATTRS[3],
            ATTRS[4],
            ATTRS[5],
            attr("output_padding", AttrKind::Ints),
            attr("output_shape", AttrKind::Ints),
        ],
        dtypes: &[T],
        infer: transpose_infer,
        reference: Some(transpose_ref),
        lower: &[Candidate::Loops(transpose_loops)],
        tolerance: SUMS,
        cases: &[
            "[1,2,3,4];[2,3,3,3];[3] kernel_shape=[3,3] strides=[2,2]",
            "[1,4,5];[4,1,3] kernel_shape=[3] group=4 pads=[1,1]",
            "[1,2,3,3];[2,2,3,3] kernel_shape=[3,3] strides=[2,2] output_shape=[6,6]",
            "[1,2,3];[2,2,2] kernel_shape=[2] strides=[3] dilations=[2] output_padding=[1]",
            "[1,2,3,3];[2,2,3,3] kernel_shape=[3,3] strides=[2,2] auto_pad=SAME_UPPER",
            "[1,2,3,4];[2,3,2,3] strides=[2,1] dilations=[1,2] pads=[1,0,0,1]",
        ],
        ..ROW
    },
];

/// Spatial extents of a weight, when all are constants.
fn kernel_of(p: &DimPool, w: &[DimId]) -> Option<Vec<i64>> {
    w.get(2..)?.iter().map(|&d| p.as_const(d)).collect()
}

/// Requires the weight's window to be the one that `kernel_shape` states, where it does.
fn require_kernel(c: &mut InferCtx, w: &[DimId]) -> Result<()> {
    for (&k, &extent) in c.attrs.ints(KERNEL).unwrap_or_default().iter().zip(&w[2..]) {
        let k = c.dims.constant(k);
        c.require_eq(extent, k, "the weight's window must be kernel_shape")?;
    }
    Ok(())
}

/// Which operands are weight and bias; the image is the first.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub weight: usize,
    pub bias: usize,
}
const PLACES: Places = Places { weight: 1, bias: 2 };

/// Checks ranks, channels and the bias; gives the shapes of x and w, when known.
fn checked(c: &mut InferCtx, at: Places, transposed: bool) -> Result<Option<(Shape, Shape, i64)>> {
    let (Some(x), Some(w)) = (c.shape(0), c.shape(at.weight)) else { return Ok(None) };
    let group = check(c, at.bias, (&x, &w), transposed)?;
    Ok(Some((x, w, group)))
}

/// Checks ranks, channels and the bias, operand `bias`, of an image `[n, c, …]` and a weight; gives the number of groups.
fn check(c: &mut InferCtx, bias: usize, (x, w): (&Shape, &Shape), transposed: bool) -> Result<i64> {
    let group = c.attrs.int(GROUP).unwrap_or(1);
    if group < 1 {
        return Err(c.error(ErrorKind::Shape, format!("{}: group is {group}", c.def.name)));
    }
    if x.len() < 3 || x.len() != w.len() {
        let text = format!("{}: the image has {} axes and the weight {}", c.def.name, x.len(), w.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    let k = c.dims.constant(group);
    if transposed {
        c.require_eq(x[1], w[0], "channels of image and weight")?;
    } else {
        let all = c.dims.mul(w[1], k);
        c.require_eq(x[1], all, "channels of the image and of the weight in all groups")?;
    }
    // Channels of the image: those of the weight, of which one extent may be known where the other is not.
    let (what, split) = if transposed { ("image", &[x[1], w[0]][..]) } else { ("output", &[w[0]][..]) };
    require_groups(c, split, group, what)?;
    if let Some(b) = c.shape(bias) {
        let m = if transposed { c.dims.mul(w[1], k) } else { w[0] };
        match b.as_slice() {
            [n] => c.require_eq(*n, m, "one bias per output channel")?,
            _ => return Err(c.error(ErrorKind::Shape, format!("{}: the bias has {} axes", c.def.name, b.len()))),
        }
    }
    Ok(group)
}

/// Requires channels, given by one or more extents that are equal, to be a multiple of the number of groups.
fn require_groups(c: &mut InferCtx, channels: &[DimId], group: i64, what: &str) -> Result<()> {
    let (k, zero) = (c.dims.constant(group), c.dims.constant(0));
    for &n in channels {
        if c.dims.as_const(n).is_some_and(|n| n % group != 0) {
            let text = format!("{}: {} {what} channels in {group} groups", c.def.name, c.dims.display(n));
            return Err(c.error(ErrorKind::Shape, text).help("the number of channels must be a multiple of group"));
        }
        let rest = c.dims.modulo(n, k);
        c.require_eq(rest, zero, &format!("{what} channels must be a multiple of group, {group}"))?;
    }
    Ok(())
}

fn conv_infer(c: &mut InferCtx) -> Result<()> {
    let d = c.dtype(0)?;
    conv_shape(c, PLACES, d)
}

/// Shape rule of a convolution that gives elements of type `to`.
pub(super) fn conv_shape(c: &mut InferCtx, at: Places, to: DType) -> Result<()> {
    let (Some(x), Some(w)) = (c.shape(0), c.shape(at.weight)) else {
        c.set_unranked(0, to);
        return Ok(());
    };
    let out = conv_extents(c, at.bias, (x, w))?;
    c.set(0, to, out);
    Ok(())
}

/// Extents `[n, m, …]` of the convolution of an image `[n, c, …]`, whose bias is operand `bias`.
pub(super) fn conv_extents(c: &mut InferCtx, bias: usize, (x, w): (Shape, Shape)) -> Result<Shape> {
    check(c, bias, (&x, &w), false)?;
    let kernel = kernel_of(c.dims, &w);
    let g = geometry(c.dims, c.attrs, Some(DILATIONS), &x[2..], kernel, false);
    let g = g.map_err(|e| c.error(e.kind(), format!("{}: {}", c.def.name, e.message())))?;
    require_kernel(c, &w)?;
    let mut out: Shape = [x[0], w[0]].into_iter().collect();
    out.extend(g.counted(c)?);
    Ok(out)
}

/// Windows and groups of a node on tensors.
pub(super) fn ref_window(c: &RefCtx, x: &Tensor, w: &Tensor) -> Result<(Window, usize)> {
    if x.shape().len() < 3 || w.shape().len() != x.shape().len() {
        let text = format!("{} of {:?} by {:?}", c.def.name, x.shape(), w.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let win = window(c.attrs, Some(DILATIONS), &x.shape()[2..], Some(&w.shape()[2..]), false)?;
    Ok((win, c.attrs.int(GROUP).unwrap_or(1).max(0) as usize))
}

fn conv_ref(c: &RefCtx, act: Activation) -> Result<Vec<Tensor>> {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let (win, group) = ref_window(c, x, w)?;
    // A residual that broadcasts is added as it is.
    Ok(vec![conv::conv(x, w, c.opt(2), c.opt(3), &win, group, act)?])
}

fn node_geometry(c: &mut NodeCtx, at: Places) -> Plan<Geometry> {
    let (x, w) = (c.need(0)?, c.need(at.weight)?);
    let kernel = kernel_of(c.dims, &w.shape);
    let g = geometry(c.dims, c.attrs, Some(DILATIONS), &x.shape[2..], kernel, false);
    g.map_err(|e| e.message().to_string().into())
}

/// A call of the convolution kernel; a 1-D image is one row.
fn conv_call(c: &mut NodeCtx, act: Activation) -> Plan<CallSpec> {
    let (x, w, y) = (c.need(0)?, c.need(1)?, c.outs[0].clone());
    let kernel = match x.dtype {
        F32 => "conv2d.f32",
        F16 => "conv2d.f16",
        d => return Err(format!("no kernel for {d}").into()),
    };
    let g = node_geometry(c, PLACES)?;
    if !g.pads_outward(c.dims) {
        return Err("the kernel does not crop".into());
    }
    let g = g.planar(c.dims)?;
    if let Some(Some(r)) = c.ins.get(3)
        && (r.shape.len() != y.shape.len() || r.shape.iter().zip(&y.shape).any(|(a, b)| a != b))
    {
        return Err("the residual is not of the result's shape".into());
    }
    let (code, params) = activate::code(act);
    let group = c.attrs.int(GROUP).unwrap_or(1);
    let mut k = |v: i64| c.dims.constant(v);
    let ints = [
        x.shape[0],
        x.shape[1],
        g.image[0],
        g.image[1],
        w.shape[0],
        k(g.kernel[0]),
        k(g.kernel[1]),
        k(group),
        k(g.strides[0]),
        k(g.strides[1]),
        g.begin[0],
        g.begin[1],
        k(g.dilations[0]),
        k(g.dilations[1]),
        g.outs[0],
        g.outs[1],
        k(code),
    ];
    let reads = (0..4).map(|i| c.has(i).then_some(i)).collect();
    let ints = ints.into_iter().map(IntArg::Dim).collect();
    Ok(CallSpec { kernel, reads, writes: vec![0], ints, scalars: params.to_vec(), scratch: vec![] })
}

/// `e` along axis `axis` of `per_group` elements per group: the group as an expression, times `by`.
fn group_base(b: &mut Builder, axis: usize, per_group: DimId, by: DimId) -> ExprId {
    let (o, mg, by) = (b.outer(axis), b.dim(per_group), b.dim(by));
    let g = b.bin(BinOp::Div, o, mg);
    b.bin(BinOp::Mul, g, by)
}

/// Where the factors of the point's terms lie, and whether that of the image does: the padding is outside. `inner` becomes the
/// channels of a group and the window.
pub(super) struct Factors {
    pub image: Vec<Coord>,
    pub inside: Option<ExprId>,
    pub weight: Vec<Coord>,
}

/// A nest over the result of a convolution, and its factors.
pub(super) fn factors<'a, 'c>(c: &'a mut NodeCtx<'c>, at: Places) -> Plan<(Builder<'a, 'c>, Factors)> {
    let w = c.need(at.weight)?;
    let g = node_geometry(c, at)?;
    let group = c.attrs.int(GROUP).unwrap_or(1);
    let mut b = Builder::over_result(c)?;
    let kernel = g.kernel_dims(b.c.dims);
    b.nest.inner = [vec![w.shape[1]], kernel].concat();
    let taps = g.taps(&mut b, 1);
    let channel = if group == 1 {
        b.along(inner(0))
    } else {
        let k = b.c.dims.constant(group);
        let per_group = b.c.dims.floordiv(w.shape[0], k);
        let base = group_base(&mut b, 1, per_group, w.shape[1]);
        let (zero, one) = (b.c.dims.constant(0), b.c.dims.constant(1));
        Coord { offset: zero, terms: smallvec![(Term::Expr(base), one), (Term::Axis(inner(0)), one)] }
    };
    let image = [vec![b.along(outer(0)), channel], taps.coords].concat();
    let weight = std::iter::once(b.along(outer(1))).chain((0..w.shape.len() - 1).map(|i| b.along(inner(i)))).collect();
    Ok((b, Factors { image, inside: taps.inside, weight }))
}

/// The convolution as one nest: any number of axes, any type.
fn conv_loops(c: &mut NodeCtx, act: Activation) -> Plan<Nest> {
    let (mut b, at) = factors(c, PLACES)?;
    let t = b.dtype(0);
    let zero = b.nest.num(0.0, t);
    let x = b.load_if(0, at.image, at.inside, zero)?;
    let f = b.load(1, at.weight)?;
    let p = b.bin(BinOp::Mul, x, f);
    let mut y = b.reduce([(Combiner::Sum, p)])[0];
    if b.c.has(2) {
        let at = b.along(outer(1));
        let e = b.load(2, [at])?;
        y = b.bin(BinOp::Add, y, e);
    }
    if let Some(Some(r)) = b.c.ins.get(3).cloned() {
        let pad = b.nest.outer.len() - r.shape.len();
        let one = b.c.dims.constant(1);
        let at: Vec<Coord> = (0..r.shape.len())
            .map(|i| if r.shape[i] == one { b.fixed_at(0) } else { b.along(outer(pad + i)) })
            .collect();
        let e = b.load(3, at)?;
        y = b.bin(BinOp::Add, y, e);
    }
    let y = activate::apply(&mut b.nest, act, y)?;
    Ok(b.store(y))
}

/// A transposed convolution: every element of the image goes to a window of the result, whose pads are cut off. One entry per spatial
/// axis.
struct Transposed {
    image: Vec<DimId>,
    /// Extents of the window: the weight's, whether they are numbers or not.
    kernel: Vec<DimId>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    begin: Vec<DimId>,
    end: Vec<DimId>,
    outs: Vec<DimId>,
}

fn transposed(p: &mut DimPool, attrs: &crate::attrs::Attrs, x: &[DimId], w: &[DimId]) -> Result<Transposed> {
    let (image, rank) = (&x[2..], x.len() - 2);
    let Steps { strides, dilations, pads } = steps(attrs, Some(DILATIONS), rank)?;
    kernel_shape(attrs, rank, kernel_of(p, w))?;
    let kernel = w[2..].to_vec();
    let list = |slot: usize| attrs.ints(slot).filter(|v| !v.is_empty()).map(|v| v.to_vec());
    let extra = list(AFTER).unwrap_or_else(|| vec![0; rank]);
    let asked = list(AFTER + 1).map(|v| if v.len() == rank + 2 { v[2..].to_vec() } else { v });
    if extra.len() != rank || extra.iter().any(|&e| e < 0) || asked.as_ref().is_some_and(|v| v.len() != rank) {
        let text = format!("output_padding {extra:?} and output_shape {asked:?} must be {rank} numbers");
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let auto = attrs.str(AUTO_PAD).unwrap_or("NOTSET");
    let same = matches!(auto, "SAME_UPPER" | "SAME_LOWER");
    let (zero, one, two) = (p.constant(0), p.constant(1), p.constant(2));
    let (mut begin, mut end, mut outs) = (vec![zero; rank], vec![zero; rank], Vec::new());
    for a in 0..rank {
        let (s, d, more) = (p.constant(strides[a]), p.constant(dilations[a]), p.constant(extra[a].saturating_add(1)));
        let gaps = p.sub(kernel[a], one);
        let span = p.mul(gaps, d);
        let span = p.add(span, more);
        let last = p.sub(image[a], one);
        let reach = p.mul(last, s);
        let full = p.add(reach, span);
        let out = match &asked {
            Some(v) => Some(p.constant(v[a])),
            None if same => Some(p.mul(image[a], s)),
            None => None,
        };
        match out {
            Some(out) => {
                let total = p.sub(full, out);
                let total = p.max(total, zero);
                let small = p.floordiv(total, two);
                let large = p.sub(total, small);
                (begin[a], end[a]) = if auto == "SAME_UPPER" { (small, large) } else { (large, small) };
                outs.push(out);
            }
            None => {
                if let (Some(pads), false) = (&pads, auto == "VALID") {
                    begin[a] = p.constant(pads[a]);
                    end[a] = p.constant(pads[a + rank]);
                }
                let out = p.sub(full, begin[a]);
                outs.push(p.sub(out, end[a]));
            }
        }
    }
    Ok(Transposed { image: image.to_vec(), kernel, strides, dilations, begin, end, outs })
}

fn transpose_infer(c: &mut InferCtx) -> Result<()> {
    let Some((x, w, group)) = checked(c, PLACES, true)? else {
        c.set_unranked(0, c.dtype(0)?);
        return Ok(());
    };
    let g = transposed(c.dims, c.attrs, &x, &w);
    let g = g.map_err(|e| c.error(e.kind(), format!("ConvTranspose: {}", e.message())))?;
    require_kernel(c, &w)?;
    let k = c.dims.constant(group);
    let m = c.dims.mul(w[1], k);
    let mut out: Shape = [x[0], m].into_iter().collect();
    for d in g.outs {
        out.push(c.extent(d)?);
    }
    c.set(0, c.dtype(0)?, out);
    Ok(())
}

fn transpose_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, w) = (c.input(0)?, c.input(1)?);
    if x.shape().len() < 3 || w.shape().len() != x.shape().len() {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("ConvTranspose of {:?} by {:?}", x.shape(), w.shape())));
    }
    let mut p = DimPool::new();
    let [image, weight] = [x, w].map(|t| t.shape().iter().map(|&d| p.constant(d as i64)).collect::<Vec<DimId>>());
    let g = transposed(&mut p, c.attrs, &image, &weight)?;
    let to = |v: &[i64]| v.iter().map(|&x| x as usize).collect::<Vec<_>>();
    let num = |v: &[DimId]| v.iter().map(|&d| p.as_const(d).unwrap_or(0)).collect::<Vec<_>>();
    let win = Window {
        kernel: w.shape()[2..].to_vec(),
        strides: to(&g.strides),
        dilations: to(&g.dilations),
        begin: num(&g.begin),
        end: num(&g.end),
        ceil: false,
    };
    let outs = num(&g.outs);
    if outs.iter().any(|&o| o < 0) {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("ConvTranspose: extents {outs:?}")));
    }
    let group = c.attrs.int(GROUP).unwrap_or(1).max(0) as usize;
    Ok(vec![conv::conv_transpose(x, w, c.opt(2), &win, group, &to(&outs))?])
}

/// Every result element gathers the elements of x whose windows cover it.
fn transpose_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, w) = (c.need(0)?, c.need(1)?);
    let g = transposed(c.dims, c.attrs, &x.shape, &w.shape).map_err(|e| e.message().to_string())?;
    let group = c.attrs.int(GROUP).unwrap_or(1);
    let mut b = Builder::over_result(c)?;
    let k = b.c.dims.constant(group);
    let per_group = b.c.dims.floordiv(x.shape[1], k);
    b.nest.inner = [vec![per_group], g.kernel].concat();
    // Channel of x and of w: those of this group. Output channel within the group.
    let base = group_base(&mut b, 1, w.shape[1], per_group);
    let (zero, one) = (b.c.dims.constant(0), b.c.dims.constant(1));
    let channel = Coord { offset: zero, terms: smallvec![(Term::Expr(base), one), (Term::Axis(inner(0)), one)] };
    let (o, mg) = (b.outer(1), b.dim(w.shape[1]));
    let within_group = b.bin(BinOp::Rem, o, mg);
    let mut x_at = vec![b.along(outer(0)), channel.clone()];
    let mut w_at = vec![channel, b.computed(within_group)];
    let mut cond = None;
    let zero = b.int(0);
    for a in 0..g.image.len() {
        let (o, k) = (b.outer(2 + a), b.nest.expr(Expr::Index(inner(1 + a))));
        let (s, d, begin) = (b.int(g.strides[a]), b.int(g.dilations[a]), b.dim(g.begin[a]));
        let shift = b.bin(BinOp::Mul, k, d);
        let t = b.bin(BinOp::Add, o, begin);
        let t = b.bin(BinOp::Sub, t, shift);
        let i = b.bin(BinOp::Div, t, s);
        let rest = b.bin(BinOp::Rem, t, s);
        let whole = b.bin(BinOp::Eq, rest, zero);
        let positive = b.bin(BinOp::Ge, t, zero);
        let below = b.within(i, g.image[a], false, true);
        cond = b.and(cond, Some(whole));
        cond = b.and(cond, Some(positive));
        cond = b.and(cond, below);
        x_at.push(b.computed(i));
        w_at.push(b.along(inner(1 + a)));
    }
    let t = b.dtype(0);
    let none = b.nest.num(0.0, t);
    let x = b.load_if(0, x_at, cond, none)?;
    let f = b.load(1, w_at)?;
    let p = b.bin(BinOp::Mul, x, f);
    let mut y = b.reduce([(Combiner::Sum, p)])[0];
    if b.c.has(2) {
        let at = b.along(outer(1));
        let e = b.load(2, [at])?;
        y = b.bin(BinOp::Add, y, e);
    }
    Ok(b.store(y))
}
