//! Convolutions with a sum and an activation behind them, of images with channels first or last, and of pads that are computed.

use super::super::conv::{ATTRS, conv_extents, ref_window};
use super::super::row::{FLOATS, ROW};
use super::super::window::geometry;
use super::activate::Act;
use super::{MICROSOFT, T, rounded};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::conv::{self, Pool, Window};
use reference::matmul::Activation;
use reference::movement::transpose;
use tensor::DType::{F64, I8, I64, U8};
use tensor::{Diagnostic, DimId, ErrorKind, Result, Tensor};

const SUMS: Tol = Tol::Rel(1e-5);
const DILATIONS: usize = 4;
const ACTIVATION: usize = 6;
const FUSED: [AttrDef; 8] = [
    ATTRS[0],
    ATTRS[1],
    ATTRS[2],
    ATTRS[3],
    ATTRS[4],
    ATTRS[5],
    attr("activation", AttrKind::Str("")),
    attr("activation_params", AttrKind::Floats),
];

/// The activation of a node; there is none where the row has no such attribute.
fn act(attrs: &Attrs) -> std::result::Result<Act, std::string::String> {
    let params = attrs.floats(ACTIVATION + 1).unwrap_or_default();
    let name = attrs.str(ACTIVATION).unwrap_or("");
    let act = Act::named(name, |_, i| params.get(i).copied())?;
    match params.len() <= act.n_params() {
        true => Ok(act),
        false => Err(format!(
            "activation_params has {} numbers, and activation {name:?} takes {}",
            params.len(),
            act.n_params()
        )),
    }
}

/// The order of axes that brings the channels from the end to the second place, or back.
fn moved(rank: usize, to_last: bool) -> Vec<usize> {
    match to_last {
        true => std::iter::once(0).chain(2..rank).chain([1]).collect(),
        false => [0, rank - 1].into_iter().chain(1..rank - 1).collect(),
    }
}

fn permuted(s: &Shape, perm: &[usize]) -> Shape {
    perm.iter().map(|&a| s[a]).collect()
}

/// The shape with channels in the second place, of an image that has some.
fn channels_first(c: &InferCtx, s: &Shape, last: bool) -> Result<Shape> {
    if s.len() < 3 {
        return Err(c.error(ErrorKind::Shape, format!("{}: the image has {} axes, and needs 3", c.def.name, s.len())));
    }
    Ok(if last { permuted(s, &moved(s.len(), false)) } else { s.clone() })
}

fn infer_conv(c: &mut InferCtx, last: bool) -> Result<()> {
    act(c.attrs).map_err(|why| c.error(ErrorKind::Unsupported, format!("{}: {why}", c.def.name)))?;
    let dtype = c.dtype(0)?;
    let (Some(x), Some(w)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let x = channels_first(c, &x, last)?;
    let mut y = conv_extents(c, 2, (x, w))?;
    if last {
        y = permuted(&y, &moved(y.len(), true));
    }
    if let Some(z) = c.shape(3) {
        if z.len() != y.len() {
            return Err(
                c.error(ErrorKind::Shape, format!("{}: Z has {} axes, the result {}", c.def.name, z.len(), y.len()))
            );
        }
        z.iter().zip(&y).try_for_each(|(&a, &b)| c.require_eq(a, b, "Z has the extents of the result"))?;
    }
    c.set(0, dtype, y);
    Ok(())
}

fn turned(x: &Tensor, to_last: bool) -> Result<Tensor> {
    transpose(x, &moved(x.shape().len(), to_last))
}

fn conv_ref(c: &RefCtx, last: bool) -> Result<Vec<Tensor>> {
    let act = act(c.attrs).map_err(|why| Diagnostic::new(ErrorKind::Unsupported, why))?;
    let wide = |t: &Tensor| rounded(t, F64);
    let image = |t: &Tensor| if last { turned(&wide(t), false) } else { Ok(wide(t)) };
    let (x, w) = (image(c.input(0)?)?, wide(c.input(1)?));
    let (window, group) = ref_window(c, &x, &w)?;
    let z = c.opt(3).map(image).transpose()?;
    let y = conv::conv(&x, &w, c.opt(2).map(wide).as_ref(), z.as_ref(), &window, group, Activation::None)?;
    let y = rounded(&act.apply(&y), c.input(0)?.dtype());
    Ok(vec![if last { turned(&y, true)? } else { y }])
}

fn flip(x: &mut Expansion, v: Value, rank: usize, to_last: bool) -> Value {
    let perm: Vec<i64> = moved(rank, to_last).into_iter().filter_map(|a| i64::try_from(a).ok()).collect();
    x.transpose(v, &perm)
}

/// The first attributes, by name.
fn own(x: &Expansion, n: usize) -> Vec<(&'static str, Attr)> {
    x.def().attrs[..n].iter().enumerate().map(|(i, a)| (a.name, x.attrs().get(i).clone())).collect()
}

fn expand_conv(x: &mut Expansion, last: bool) -> Result<Vec<Value>> {
    let act = act(x.attrs()).map_err(|why| Diagnostic::new(ErrorKind::Unsupported, why))?;
    let data = x.need(0)?;
    let (dtype, s) = x.tensor(data)?;
    let image = if last { flip(x, data, s.len(), false) } else { data };
    let z = x.input(3).map(|z| if last { flip(x, z, s.len(), false) } else { z });
    let ins = [Some(image), Some(x.need(1)?), x.input(2), z];
    let mut attrs = own(x, ACTIVATION);
    let fused = act.fused();
    attrs.extend(fused.iter().flatten().cloned());
    let y = match z {
        // A convolution alone, as rules look for it.
        None if attrs.len() == ACTIVATION => x.op_opt("Conv", &ins[..3], &attrs, 1)[0],
        _ => x.own("FusedConv", &ins, &attrs),
    };
    let y = if fused.is_some() { y } else { act.expand(x, y, dtype) };
    Ok(vec![if last { flip(x, y, s.len(), true) } else { y }])
}

fn infer_pool(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let x = channels_first(c, &s, true)?;
    let g = geometry(c.dims, c.attrs, Some(DILATIONS), &x[2..], None, c.attrs.int(5) == Some(1));
    let g = g.map_err(|e| c.error(e.kind(), format!("{}: {}", c.def.name, e.message())))?;
    let mut y: Shape = [x[0], x[1]].into_iter().collect();
    y.extend(g.counted(c)?);
    c.set(0, dtype, permuted(&y, &moved(y.len(), true)));
    Ok(())
}

fn pool_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = turned(c.input(0)?, false)?;
    let ceil = c.attrs.int(5) == Some(1);
    let window = super::super::window::window(c.attrs, Some(DILATIONS), &x.shape()[2..], None, ceil)?;
    Ok(vec![turned(&conv::pool(&x, &window, Pool::Max, false)?.0, true)?])
}

const PADS: usize = 2;

/// Strides, dilations and what is added behind, of `rank` axes.
fn steps(attrs: &Attrs, rank: usize) -> Option<[Vec<i64>; 3]> {
    let list = |slot: usize, other: i64, least: i64| {
        let v = attrs.ints(slot).filter(|v| !v.is_empty()).map_or_else(|| vec![other; rank], <[i64]>::to_vec);
        (v.len() == rank && v.iter().all(|n| (least..1 << 31).contains(n))).then_some(v)
    };
    Some([list(2, 1, 1)?, list(3, 1, 1)?, list(5, 0, 0)?])
}

fn infer_transposed(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let refuse = |c: &InferCtx, kind, why: &str| Err(c.error(kind, format!("{}: {why}", c.def.name)));
    let auto = c.attrs.str(0).unwrap_or("NOTSET");
    if !matches!(auto, "NOTSET" | "" | "VALID" | "SAME_UPPER" | "SAME_LOWER") {
        return refuse(c, ErrorKind::Unsupported, &format!("auto_pad {auto:?} is not known"));
    }
    let same = auto.starts_with("SAME");
    let (Some(x), Some(w)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if x.len() < 3 || x.len() != w.len() {
        return refuse(c, ErrorKind::Shape, "image and weight have as many axes, at least 3");
    }
    let rank = x.len() - 2;
    if let Some(kernel) = c.def.slot("kernel_shape").and_then(|slot| c.attrs.ints(slot)).map(<[i64]>::to_vec) {
        if kernel.len() != rank {
            return refuse(c, ErrorKind::Shape, "kernel_shape has a number for each spatial axis");
        }
        for (&n, &have) in kernel.iter().zip(&w[2..]) {
            let n = c.dims.constant(n);
            c.require_eq(n, have, "kernel_shape is that of the weight")?;
        }
    }
    let Some([strides, dilations, extra]) = steps(c.attrs, rank) else {
        return refuse(
            c,
            ErrorKind::Shape,
            "strides, dilations and output_padding have a number for each spatial axis",
        );
    };
    let pads: Option<Vec<DimId>> = match c.has(PADS) {
        true if !same => c.need_values(PADS).map(|v| v.to_vec()),
        _ => Some(vec![c.dims.constant(0); 2 * rank]),
    };
    let Some(pads) = pads else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if pads.len() != 2 * rank {
        return refuse(c, ErrorKind::Shape, "Pads are two numbers for each spatial axis");
    }
    let group = c.dims.constant(c.attrs.int(4).unwrap_or(1));
    let channels = c.dims.mul(w[1], group);
    let mut out: Shape = [x[0], channels].into_iter().collect();
    for a in 0..rank {
        let (s, d, one) = (c.dims.constant(strides[a]), c.dims.constant(dilations[a]), c.dims.constant(1));
        if same {
            out.push(c.dims.mul(x[2 + a], s));
            continue;
        }
        let more = c.dims.constant(extra[a] + 1);
        let (last, gaps) = (c.dims.sub(x[2 + a], one), c.dims.sub(w[2 + a], one));
        let (reach, span) = (c.dims.mul(last, s), c.dims.mul(gaps, d));
        let full = c.dims.add(reach, span);
        let full = c.dims.add(full, more);
        let zero = c.dims.constant(0);
        for &p in [pads[a], pads[a + rank]].iter() {
            c.require_le(zero, p, &format!("{}: pads are not negative", c.def.name));
        }
        let n = c.dims.sub(full, pads[a]);
        let n = c.dims.sub(n, pads[a + rank]);
        out.push(c.extent(n)?);
    }
    c.set(0, dtype, out);
    Ok(())
}

fn transposed_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let rank = x.shape().len().saturating_sub(2);
    let wrong = || Diagnostic::new(ErrorKind::Shape, "ConvTransposeWithDynamicPads: attributes do not fit");
    let steps = steps(c.attrs, rank).ok_or_else(wrong)?;
    let [strides, dilations, extra] =
        steps.map(|v| v.into_iter().filter_map(|n| usize::try_from(n).ok()).collect::<Vec<_>>());
    let kernel = w.shape().get(2..).unwrap_or(&[]).to_vec();
    let int = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let mut pads = c.opt(PADS).map_or_else(|| vec![0; 2 * rank], Tensor::to_i64_vec);
    if x.shape().len() < 3 || w.shape().len() != x.shape().len() || pads.len() != 2 * rank || kernel.contains(&0) {
        return Err(wrong());
    }
    let mut outs = Vec::new();
    for a in 0..rank {
        let span = int((kernel[a] - 1) * dilations[a] + 1 + extra[a]);
        let full = (int(x.shape()[2 + a]) - 1) * int(strides[a]) + span;
        if let Some(auto) = c.attrs.str(0).filter(|auto| auto.starts_with("SAME")) {
            let total = (full - int(x.shape()[2 + a] * strides[a])).max(0);
            let (small, large) = (total / 2, total - total / 2);
            (pads[a], pads[a + rank]) = if auto == "SAME_UPPER" { (small, large) } else { (large, small) };
            outs.push(x.shape()[2 + a] * strides[a]);
            continue;
        }
        outs.push(usize::try_from(full - pads[a] - pads[a + rank]).map_err(|_| wrong())?);
    }
    let window =
        Window { kernel, strides, dilations, begin: pads[..rank].to_vec(), end: pads[rank..].to_vec(), ceil: false };
    let group = usize::try_from(c.attrs.int(4).unwrap_or(1)).unwrap_or(1);
    Ok(vec![conv::conv_transpose(x, w, c.opt(3), &window, group, &outs)?])
}

/// The whole, of which the pads are cut off.
fn expand_transposed(x: &mut Expansion) -> Result<Vec<Value>> {
    let data = x.need(0)?;
    let rank = x.tensor(data)?.1.len();
    let mut ins = vec![data, x.need(1)?];
    ins.extend(x.input(3));
    let attrs = own(x, ACTIVATION);
    let y = x.op("ConvTranspose", &ins, &attrs);
    let chosen = x.attrs().str(0).is_some_and(|auto| auto.starts_with("SAME"));
    let Some(pads) = x.input(PADS).filter(|_| !chosen) else { return Ok(vec![y]) };
    let spatial = i64::try_from(rank - 2).unwrap_or(0);
    let (begin, after) = (x.slice(pads, 0, 0, spatial), x.slice(pads, 0, spatial, 2 * spatial));
    let extents: Vec<Value> = (0..spatial).map(|a| x.extent(y, 2 + a)).collect();
    let extents = x.concat(&extents, 0);
    let end = x.op("Sub", &[extents, after], &[]);
    let axes: Vec<i64> = (2..2 + spatial).collect();
    let axes = x.ints(&axes);
    Ok(vec![x.op("Slice", &[y, begin, end, axes], &[])])
}

const CONV: OpDef = OpDef {
    name: "FusedConv",
    domain: MICROSOFT,
    inputs: &[req("X", "T"), req("W", "T"), opt("B", "T"), opt("Z", "T")],
    outputs: &[req("Y", "T")],
    attrs: &FUSED,
    dtypes: &[T],
    infer: |c| infer_conv(c, false),
    reference: Some(|c| conv_ref(c, false)),
    lower: &[Expand(|x| expand_conv(x, false))],
    tolerance: SUMS,
    cases: &[
        "[1,2,5,5];[3,2,3,3];[3] kernel_shape=[3,3] activation=Relu",
        "[2,4,9];[6,2,3];_;[2,6,4] kernel_shape=[3] group=2 strides=[2] pads=[1,0] activation=Tanh",
        "[1,2,5,6];[2,1,3,3];[2];[1,2,3,3] kernel_shape=[3,3] group=2 auto_pad=SAME_UPPER strides=[2,2] activation=LeakyRelu activation_params=[0.1]",
        "[1,2,4,4,4];[2,2,2,2,2] kernel_shape=[2,2,2] activation=HardSigmoid activation_params=[0.3,0.4]",
        "[1,1,6];[2,1,3] kernel_shape=[3] dilations=[2] activation=Clip activation_params=[-1,0.5]",
        "[1,1,6];[2,1,3] kernel_shape=[3] activation=Sigmoid auto_pad=SAME_LOWER",
        "[1,1,6];[2,1,3] kernel_shape=[3] activation=Silu auto_pad=VALID",
        "[0,1,6];[2,1,3] kernel_shape=[3]",
    ],
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = activation(convolution of X by W + B + Z)
    CONV,
    // The same of images with channels last.
    OpDef {
        name: "NhwcFusedConv",
        infer: |c| infer_conv(c, true),
        reference: Some(|c| conv_ref(c, true)),
        lower: &[Expand(|x| expand_conv(x, true))],
        cases: &[
            "[1,5,4,2];[3,2,3,2];[3];[1,3,3,3] kernel_shape=[3,2] activation=Relu",
            "[2,9,4];[6,2,3] kernel_shape=[3] group=2 strides=[2] pads=[1,0] activation=LeakyRelu activation_params=[0.1]",
        ],
        ..CONV
    },
    OpDef {
        name: "NhwcConv",
        inputs: &[req("X", "T"), req("W", "T"), opt("B", "T")],
        attrs: &ATTRS,
        infer: |c| infer_conv(c, true),
        reference: Some(|c| conv_ref(c, true)),
        lower: &[Expand(|x| expand_conv(x, true))],
        cases: &[
            "[1,5,4,2];[3,2,3,2];[3] kernel_shape=[3,2]",
            "[2,9,4];[6,2,3] kernel_shape=[3] group=2 strides=[2] pads=[1,0]",
            "[1,5,6,2];[2,1,3,3] kernel_shape=[3,3] group=2 auto_pad=SAME_LOWER dilations=[1,2]",
            "[1,3,4,4,2];[2,2,2,2,2] kernel_shape=[2,2,2]",
        ],
        ..CONV
    },
    // The greatest elements of windows, of images with channels last.
    OpDef {
        name: "NhwcMaxPool",
        domain: MICROSOFT,
        inputs: &[req("x", "T")],
        outputs: &[req("y", "T")],
        attrs: &[ATTRS[0], ATTRS[1], ATTRS[2], ATTRS[3], ATTRS[4], attr("ceil_mode", AttrKind::Int(0))],
        dtypes: &[("T", &[I8, U8])],
        infer: infer_pool,
        reference: Some(pool_ref),
        lower: &[Expand(|x| {
            let data = x.need(0)?;
            let rank = x.tensor(data)?.1.len();
            let image = flip(x, data, rank, false);
            let attrs = own(x, 6);
            let y = x.op("MaxPool", &[image], &attrs);
            Ok(vec![flip(x, y, rank, true)])
        })],
        cases: &[
            "[1,7,6,2] kernel_shape=[3,2] strides=[2,2] pads=[1,0,0,1]",
            "[1,6,6,1] kernel_shape=[3,3] strides=[2,2] ceil_mode=1",
            "[2,7,3] kernel_shape=[3] dilations=[2] auto_pad=SAME_UPPER",
        ],
        ..ROW
    },
    // ConvTranspose whose pads are an operand, but where auto_pad chooses them.
    OpDef {
        name: "ConvTransposeWithDynamicPads",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("W", "T"), opt("Pads", "P"), opt("B", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[ATTRS[0], ATTRS[1], ATTRS[3], ATTRS[4], ATTRS[5], attr("output_padding", AttrKind::Ints)],
        dtypes: &[("T", FLOATS), ("P", &[I64])],
        infer: infer_transposed,
        reference: Some(transposed_ref),
        lower: &[Expand(expand_transposed)],
        tolerance: SUMS,
        cases: &[
            "[1,2,3,4];[2,3,3,3];i64[4]{0,1,1,0};[3] strides=[2,2]",
            "[1,4,5];[4,1,3];i64[2]{1,1} kernel_shape=[3] group=4 dilations=[2]",
            "[1,2,3];[2,2,2] strides=[3] output_padding=[1] kernel_shape=[2]",
            "[1,2,3,4];[2,3,3,3];i64[4]{0,1,1,0} strides=[2,1] auto_pad=VALID",
            "[1,2,3,4];[2,3,4,3];i64[4]{0,1,1,0} strides=[2,2] auto_pad=SAME_UPPER",
            "[1,2,3,4];[2,3,4,3];i64[4]{0,1,1,0} strides=[1,2] auto_pad=SAME_LOWER",
        ],
        ..ROW
    },
];
