//! Fourier transforms: along an axis, and of frames of a signal. Both are made of one op of our own, whose kernel factors the length.

use super::loops::{Builder, outer};
use super::movement::checked_axis;
use super::number::{length_of, list, product};
use super::row::{FLOATS, ROW};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{CallSpec, Candidate, IntArg, NodeCtx, Plan};
use crate::nest::{BinOp, Expr};
use crate::op::{AttrDef, AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::movement::single;
use reference::signal::{self, Direction};
use tensor::DType::{self, *};
use tensor::{DimId, ErrorKind, Result, Tensor};

const INVERSE: usize = 0;
const ONESIDED: usize = 1;
const AXIS: usize = 2;
const N: (&str, &[DType]) = ("N", &[I64, I32]);
const BOTH: &[AttrDef] = &[attr("inverse", AttrKind::Int(0)), attr("onesided", AttrKind::Int(0))];
/// Signals that a kernel transforms at a time: what scratch memory is for.
const SLOTS: i64 = 256;

const DFT: OpDef = OpDef {
    name: "DFT",
    since: 20,
    inputs: &[req("input", "T"), opt("dft_length", "N"), opt("axis", "I")],
    outputs: &[req("output", "T")],
    attrs: BOTH,
    dtypes: &[("T", FLOATS), N, ("I", &[I64])],
    infer: |c| {
        let axis = match c.has(2) {
            false => -2,
            true => match c.const_ints(2).as_deref() {
                Some(&[axis]) => axis,
                Some(_) => return Err(c.error(ErrorKind::Shape, "DFT: axis is one number")),
                None => return Err(c.error(ErrorKind::Unsupported, "DFT: the axis must be a constant")),
            },
        };
        infer_dft(c, axis)
    },
    reference: Some(|c| {
        let axis = c.opt(2).map(|t| single(t, "axis")).transpose()?.map_or(-2, |t| t.view().i64_at(0));
        dft_ref(c, axis)
    }),
    lower: &[Candidate::Expand(|x| {
        let axis = x.input(2).and_then(|v| x.const_tensor(v)).map_or(-2, |t| t.view().i64_at(0));
        expand_dft(x, axis)
    })],
    tolerance: Tol::Rel(2e-6),
    cases: &[
        "[2,8,1]",
        "[2,3,5,2];_;i64[]{1}",
        "[3,12,2];i64[]{7}",
        "[3,4,2];i32[]{6};i64[]{0} inverse=1",
        "[2,9,1];_;i64[]{-2} onesided=1",
        "[2,5,2] inverse=1 onesided=1",
        "[2,5,2];i64[]{9} inverse=1 onesided=1",
        "[2,5,2];i64[]{4} inverse=1 onesided=1",
        "[1,30,1] inverse=1",
        "[2,1,1]",
        "[0,6,1]",
    ],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    // y[k] = Σ x[t] exp(-2πi kt/n), inverse: exp(2πi kt/n) / n. Rows of real and imaginary parts along the last axis
    OpDef {
        since: 17,
        until: 19,
        inputs: &[req("input", "T"), opt("dft_length", "N")],
        attrs: &[BOTH[0], BOTH[1], attr("axis", AttrKind::Int(1))],
        dtypes: &[("T", FLOATS), N],
        infer: |c| infer_dft(c, c.attrs.int(AXIS).unwrap_or(1)),
        reference: Some(|c| dft_ref(c, c.attrs.int(AXIS).unwrap_or(1))),
        lower: &[Candidate::Expand(|x| {
            let axis = x.attrs().int(AXIS).unwrap_or(1);
            expand_dft(x, axis)
        })],
        cases: &["[2,6,1]", "[2,3,5,2] axis=2", "[2,3,5,2];i64[]{4} axis=-2 inverse=1", "[3,9,1];i64[]{11} onesided=1"],
        ..DFT
    },
    DFT,
    // The transform of each frame of a signal times a window
    OpDef {
        name: "STFT",
        since: 17,
        inputs: &[req("signal", "T"), req("frame_step", "N"), opt("window", "T"), opt("frame_length", "N")],
        outputs: &[req("output", "T")],
        attrs: &[attr("onesided", AttrKind::Int(1))],
        dtypes: &[("T", FLOATS), N],
        infer: infer_stft,
        reference: Some(stft_ref),
        lower: &[Candidate::Expand(expand_stft)],
        tolerance: Tol::Rel(2e-6),
        cases: &[
            "[2,20,1];i64[]{3};[8]",
            "[1,20,1];i64[]{4};_;i64[]{7}",
            "[2,15,2];i32[]{5};[6];i32[]{6} onesided=0",
            "[1,15,2];i64[]{5};[6]",
            "[2,9];i64[]{2};[4]",
            "[2,9,1];i64[]{1}",
            "[2,16,1];i64[]{20};[16] onesided=0",
        ],
        ..ROW
    },
    // y[b, f, k, c] = x[b, f · step + k, c]: frames that lie within the signal
    OpDef {
        name: "Frames",
        domain: HIP_DOMAIN,
        inputs: &[req("x", "T"), req("step", "I"), req("length", "I")],
        outputs: &[req("y", "T")],
        dtypes: &[("T", FLOATS), ("I", &[I64])],
        infer: |c| {
            let (step, n) = (length_of(c, 1, "step")?, length_of(c, 2, "length")?);
            let Some(&[b, length, parts]) = c.shape(0).as_deref() else {
                return Err(c.error(ErrorKind::Shape, "Frames: the signal is [batch, length, 1 or 2]"));
            };
            let frames = frames_of(c, length, step, n);
            c.set(0, c.dtype(0)?, [b, frames, n, parts]);
            Ok(())
        },
        reference: Some(|c| {
            let number = |i: usize| -> Result<usize> {
                Ok(usize::try_from(single(c.input(i)?, c.def.inputs[i].name)?.view().i64_at(0)).unwrap_or(0))
            };
            Ok(vec![signal::frames(c.input(0)?, number(1)?, number(2)?)?])
        }),
        lower: &[Candidate::Loops(|c| {
            let mut b = Builder::over_result(c)?;
            let [batch, f, k, part] = [0, 1, 2, 3].map(outer);
            let (step, f, k) = (b.scalar_i64(1)?, b.nest.expr(Expr::Index(f)), b.nest.expr(Expr::Index(k)));
            let start = b.bin(BinOp::Mul, f, step);
            let at = b.bin(BinOp::Add, start, k);
            let coords = [b.along(batch), b.computed(at), b.along(part)];
            let v = b.load(0, coords)?;
            Ok(b.store(v))
        })],
        cases: &["[2,9,1];i64[1]{2};i64[1]{4}", "[1,7,2];i64[1]{9};i64[1]{7}", "[3,5,1];i64[1]{1};i64[1]{1}"],
        ..ROW
    },
    // The same of [outer, t, inner, 1 or 2] along axis 1 with the roots of unity: cos and sin of 2πk/n
    OpDef {
        name: "Dft",
        domain: HIP_DOMAIN,
        inputs: &[req("x", "T"), req("roots", "R")],
        outputs: &[req("y", "T")],
        attrs: BOTH,
        dtypes: &[("T", &[F32, F64]), ("R", &[F64])],
        infer: |c| {
            let (Some(x), Some(roots)) = (c.shape(0), c.shape(1)) else {
                c.set_unranked(0, c.dtype(0)?);
                return Ok(());
            };
            let (&[outer, _, inner, _], &[n, _]) = (x.as_slice(), roots.as_slice()) else {
                return Err(c.error(ErrorKind::Shape, "Dft: x is [outer, t, inner, 1 or 2], roots [n, 2]"));
            };
            // Conditions stand here, too: what expands into this node leaves none behind.
            require_parts(c, x[3], None)?;
            let one = c.dims.constant(1);
            c.require_le(one, n, "a transform needs a length");
            let (bins, parts) = spectrum(c, n);
            c.set(0, c.dtype(0)?, [outer, bins, inner, parts]);
            Ok(())
        },
        reference: Some(|c| {
            let roots = c.input(1)?.to_f64_vec();
            let roots: Vec<(f64, f64)> = roots.chunks_exact(2).map(|r| (r[0], r[1])).collect();
            Ok(vec![signal::dft_rows(c.input(0)?, &roots, direction(c))?])
        }),
        lower: &[Candidate::Kernel(dft_kernel)],
        tolerance: Tol::Rel(2e-6),
        cases: &["[2,3,2,1];f64[4,2]{1,0,0,1,-1,0,0,-1}", "[1,3,2,2];f64[4,2]{1,0,0,1,-1,0,0,-1} inverse=1 onesided=1"],
        ..ROW
    },
];

fn direction(c: &RefCtx) -> Direction {
    Direction { inverse: c.attrs.int(INVERSE) == Some(1), onesided: c.attrs.int(ONESIDED) == Some(1) }
}

/// Bins of a spectrum or elements of a signal of length `n`, and parts of each.
fn spectrum(c: &mut InferCtx, n: DimId) -> (DimId, DimId) {
    let (one, two) = (c.dims.constant(1), c.dims.constant(2));
    match (c.attrs.int(ONESIDED) == Some(1), c.attrs.int(INVERSE) == Some(1)) {
        (true, true) => (n, one),
        (true, false) => (half_of(c, n), two),
        (false, _) => (n, two),
    }
}

fn half_of(c: &mut InferCtx, n: DimId) -> DimId {
    let (one, two) = (c.dims.constant(1), c.dims.constant(2));
    let half = c.dims.floordiv(n, two);
    c.dims.add(half, one)
}

const EITHER: &str = "the last axis has 1 element (real) or 2 (complex)";

/// Requires real or complex elements along the last axis, of extent `parts`: of one kind where `wanted` says which.
fn require_parts(c: &mut InferCtx, parts: DimId, wanted: Option<(i64, &str)>) -> Result<()> {
    let n = c.dims.as_const(parts);
    match (n, wanted) {
        (Some(n), Some((w, what))) if n != w => Err(c.error(ErrorKind::Shape, format!("{}: {what}", c.def.name))),
        (Some(1 | 2), _) => Ok(()),
        (None, Some((w, what))) => {
            let w = c.dims.constant(w);
            c.require_eq(parts, w, what)
        }
        (Some(_), _) => Err(c.error(ErrorKind::Shape, format!("{}: {EITHER}", c.def.name))),
        (None, None) => {
            let (one, two, what) = (c.dims.constant(1), c.dims.constant(2), format!("{}: {EITHER}", c.def.name));
            c.require_le(one, parts, &what);
            c.require_le(parts, two, &what);
            Ok(())
        }
    }
}

fn infer_dft(c: &mut InferCtx, axis: i64) -> Result<()> {
    let dtype = c.dtype(0)?;
    let given = if c.has(1) { Some(length_of(c, 1, "dft_length")?) } else { None };
    let Some(mut s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if s.len() < 2 {
        return Err(c.error(ErrorKind::Shape, "DFT: the input needs an axis of elements and one of their parts"));
    }
    let (axis, last) = (c.axis(axis, s.len())?, s.len() - 1);
    if axis == last {
        return Err(c.error(ErrorKind::Shape, "DFT: the last axis holds real and imaginary parts, not elements"));
    }
    let (onesided, inverse) = (c.attrs.int(ONESIDED) == Some(1), c.attrs.int(INVERSE) == Some(1));
    let wanted = match (onesided, inverse) {
        (true, false) => Some((1, "one side of a spectrum needs a real signal")),
        (true, true) => Some((2, "a real signal needs one side of a complex spectrum")),
        _ => None,
    };
    require_parts(c, s[last], wanted)?;
    let n = match given {
        Some(n) => n,
        None if onesided && inverse => {
            let (one, two) = (c.dims.constant(1), c.dims.constant(2));
            let less = c.dims.sub(s[axis], one);
            c.dims.mul(two, less)
        }
        None => s[axis],
    };
    let one = c.dims.constant(1);
    c.require_le(one, n, "DFT: a transform needs a length");
    (s[axis], s[last]) = spectrum(c, n);
    c.set(0, dtype, s);
    Ok(())
}

fn dft_ref(c: &RefCtx, axis: i64) -> Result<Vec<Tensor>> {
    let (x, d) = (c.input(0)?, direction(c));
    let axis = checked_axis(axis, x.shape().len());
    let t = x.shape().get(axis).copied().unwrap_or(0);
    let default = if d.inverse && d.onesided { (2 * t).saturating_sub(2) } else { t };
    let n = c.opt(1).map(|n| single(n, "dft_length")).transpose()?;
    let n = n.map_or(default, |n| usize::try_from(n.view().i64_at(0)).unwrap_or(0));
    Ok(vec![signal::dft(x, axis, n, d)?])
}

/// A transform of `rows` `[outer, t, inner, parts]` of length `n` (a list of one): `[outer, bins, inner, parts]` in `dtype`.
fn transform(x: &mut Expansion, rows: Value, n: Value, dtype: DType, attrs: &[(&str, Attr)]) -> Value {
    let wide = if dtype == F64 { F64 } else { F32 };
    let rows = if dtype == wide { rows } else { x.cast(rows, wide) };
    let roots = roots(x, n);
    let y = x.own("Dft", &[Some(rows), Some(roots)], attrs);
    if dtype == wide { y } else { x.cast(y, dtype) }
}

/// cos and sin of 2πk/n: `[n, 2]` in f64.
fn roots(x: &mut Expansion, n: Value) -> Value {
    let (k, count) = (x.count_to(n), x.cast(n, F64));
    let (k, tau) = (x.cast(k, F64), x.scalar(F64, std::f64::consts::TAU));
    let step = x.op("Div", &[tau, count], &[]);
    let turn = x.op("Mul", &[k, step], &[]);
    let parts = ["Cos", "Sin"].map(|f| {
        let v = x.op(f, &[turn], &[]);
        x.unsqueeze(v, &[1])
    });
    x.concat(&parts, 1)
}

fn expand_dft(x: &mut Expansion, axis: i64) -> Result<Vec<Value>> {
    let input = x.need(0)?;
    let (dtype, shape) = x.tensor(input)?;
    let (rank, axis) = (shape.len(), checked_axis(axis, shape.len()));
    let extents: Vec<Value> = (0..rank as i64).map(|i| x.extent(input, i)).collect();
    let flags = [INVERSE, ONESIDED].map(|i| x.attrs().int(i) == Some(1));
    let n = match x.input(1) {
        Some(n) => list(x, n),
        None if flags == [true, true] => {
            let (one, two) = (x.ints(&[1]), x.ints(&[2]));
            let less = x.op("Sub", &[extents[axis], one], &[]);
            x.op("Mul", &[less, two], &[])
        }
        None => extents[axis],
    };
    let (outer, inner) = (product(x, &extents[..axis]), product(x, &extents[axis + 1..rank - 1]));
    let rows = x.reshape_to(input, &[outer, extents[axis], inner, extents[rank - 1]]);
    let [inverse, onesided] = flags.map(|f| Attr::Int(f.into()));
    let y = transform(x, rows, n, dtype, &[("inverse", inverse), ("onesided", onesided)]);
    let mut last = extents;
    (last[axis], last[rank - 1]) = (x.extent(y, 1), x.extent(y, 3));
    Ok(vec![x.reshape_to(y, &last)])
}

/// Of `n log n` for lengths of small factors: `n` times the sum of its prime factors.
fn dft_kernel(c: &mut NodeCtx) -> Plan<CallSpec> {
    let (x, roots, y) = (c.need(0)?, c.need(1)?, c.outs[0].shape.clone());
    let kernel = if x.dtype == F64 { "dft.f64" } else { "dft.f32" };
    let (&[outer, t, inner, parts], &[n, _]) = (x.shape.as_slice(), roots.shape.as_slice()) else {
        return Err("x is [outer, t, inner, parts], roots [n, 2]".into());
    };
    let inverse = c.dims.constant(i64::from(c.attrs.int(INVERSE) == Some(1)));
    let ints = [outer, t, inner, parts, n, y[1], y[3], inverse].map(IntArg::Dim).to_vec();
    let (all, most, bytes) = (c.dims.mul(outer, inner), c.dims.constant(SLOTS), c.dims.constant(32));
    let slots = c.dims.min(all, most);
    let scratch = c.dims.product([slots, n, bytes]);
    Ok(CallSpec {
        kernel,
        reads: vec![Some(0), Some(1)],
        writes: vec![0],
        ints,
        scalars: vec![],
        scratch: vec![scratch],
    })
}

fn infer_stft(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let step = length_of(c, 1, "frame_step")?;
    let given = if c.has(3) { Some(length_of(c, 3, "frame_length")?) } else { None };
    let window = match c.shape(2).as_deref() {
        Some(&[n]) => Some(n),
        Some(s) => return Err(c.error(ErrorKind::Shape, format!("STFT: the window has {} axes, not 1", s.len()))),
        None => None,
    };
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let (b, length) = match *s.as_slice() {
        [b, length] => (b, length),
        [b, length, parts] => {
            require_parts(c, parts, None)?;
            (b, length)
        }
        _ => return Err(c.error(ErrorKind::Shape, "STFT: the signal is [batch, length, 1 or 2]")),
    };
    if let (Some(w), Some(n)) = (window, given) {
        c.require_eq(w, n, "the window is as long as a frame")?;
    }
    let n = given.or(window).unwrap_or(length);
    let frames = frames_of(c, length, step, n);
    let bins = if c.attrs.int(0) != Some(0) { half_of(c, n) } else { n };
    let two = c.dims.constant(2);
    c.set(0, dtype, [b, frames, bins, two]);
    Ok(())
}

/// How many frames of `n` elements lie within `length`, one every `step`.
fn frames_of(c: &mut InferCtx, length: DimId, step: DimId, n: DimId) -> DimId {
    let one = c.dims.constant(1);
    c.require_le(one, n, "a frame needs a length");
    c.require_le(one, step, "frames are at least one element apart");
    c.require_le(n, length, "a frame is no longer than the signal");
    let room = c.dims.sub(length, n);
    let steps = c.dims.floordiv(room, step);
    c.dims.add(steps, one)
}

fn stft_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let mut shape = x.shape().to_vec();
    if shape.len() == 2 {
        shape.push(1);
    }
    let x = reference::movement::with_shape(x, &shape)?;
    let number = |i: usize| -> Result<Option<usize>> {
        let t = c.opt(i).map(|t| single(t, c.def.inputs[i].name)).transpose()?;
        Ok(t.map(|t| usize::try_from(t.view().i64_at(0)).unwrap_or(0)))
    };
    let (step, given) = (number(1)?.unwrap_or(0), number(3)?);
    let n = given.or(c.opt(2).map(Tensor::n_elems)).unwrap_or(shape[1]);
    Ok(vec![signal::stft(&x, step, c.opt(2), n, c.attrs.int(0) != Some(0))?])
}

fn expand_stft(x: &mut Expansion) -> Result<Vec<Value>> {
    let (signal, step) = (x.need(0)?, x.need(1)?);
    let (dtype, shape) = x.tensor(signal)?;
    let signal = if shape.len() == 2 { x.unsqueeze(signal, &[2]) } else { signal };
    let step = list(x, step);
    let length = x.extent(signal, 1);
    let n = match (x.input(3), x.input(2)) {
        (Some(n), _) => list(x, n),
        (None, Some(w)) => x.extent(w, 0),
        (None, None) => length,
    };
    let one = x.ints(&[1]);
    let mut cut = x.own("Frames", &[Some(signal), Some(step), Some(n)], &[]);
    let frames = x.extent(cut, 1);
    if let Some(w) = x.input(2) {
        let w = x.unsqueeze(w, &[1]);
        cut = x.op("Mul", &[cut, w], &[]);
    }
    let (b, parts) = (x.extent(signal, 0), x.extent(signal, 2));
    let outer = product(x, &[b, frames]);
    let rows = x.reshape_to(cut, &[outer, n, one, parts]);
    let onesided = Attr::Int(i64::from(x.attrs().int(0) != Some(0)));
    let y = transform(x, rows, n, dtype, &[("onesided", onesided)]);
    let (bins, two) = (x.extent(y, 1), x.extent(y, 3));
    Ok(vec![x.reshape_to(y, &[b, frames, bins, two])])
}
