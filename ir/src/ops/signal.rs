//! Windows and the weights of the mel scale: made of ops over counts.

use super::number::{length_of, list};
use super::row::{FLOATS, INTS, NUMS, ROW};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate;
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req};
use reference::movement::single;
use reference::signal;
use std::f64::consts::{LN_10, TAU};
use tensor::DType::{self, *};
use tensor::{ErrorKind, Result, Tensor};

const N: (&str, &[DType]) = ("N", &[I64, I32]);
const DATATYPE: AttrDef = attr("output_datatype", AttrKind::Int(1));
const PERIODIC: usize = 0;

const WINDOW: OpDef = OpDef {
    since: 17,
    inputs: &[req("size", "N")],
    outputs: &[req("output", "T")],
    attrs: &[attr("periodic", AttrKind::Int(1)), DATATYPE],
    dtypes: &[N, ("T", NUMS)],
    infer: |c| {
        let (n, dtype) = (length_of(c, 0, "size")?, datatype(c, 1)?);
        c.set(0, dtype, [n]);
        Ok(())
    },
    tolerance: Tol::Rel(2e-6),
    cases: &[
        "i64[]{10}",
        "i32[]{7} periodic=0",
        "i64[1]{5} output_datatype=f64",
        "i64[]{9} output_datatype=f16",
        "i64[]{9} output_datatype=i32 periodic=0",
        "i64[]{1}",
        "i64[]{0}",
    ],
    ..ROW
};

/// Terms of the windows: a₀ - a₁ cos(2πk/N) + a₂ cos(4πk/N).
const HANN: [f64; 3] = [0.5, 0.5, 0.0];
const HAMMING: [f64; 3] = [25.0 / 46.0, 21.0 / 46.0, 0.0];
const BLACKMAN: [f64; 3] = [0.42, 0.5, 0.08];

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        name: "HannWindow",
        reference: Some(|c| window_ref(c, HANN)),
        lower: &[Candidate::Expand(|x| expand_window(x, HANN))],
        ..WINDOW
    },
    OpDef {
        name: "HammingWindow",
        reference: Some(|c| window_ref(c, HAMMING)),
        lower: &[Candidate::Expand(|x| expand_window(x, HAMMING))],
        ..WINDOW
    },
    OpDef {
        name: "BlackmanWindow",
        reference: Some(|c| window_ref(c, BLACKMAN)),
        lower: &[Candidate::Expand(|x| expand_window(x, BLACKMAN))],
        ..WINDOW
    },
    // Triangles of height 1 between frequencies that are equally far apart in mel(f) = 2595 log10(1 + f/700)
    OpDef {
        name: "MelWeightMatrix",
        since: 17,
        inputs: &[
            req("num_mel_bins", "N"),
            req("dft_length", "N"),
            req("sample_rate", "N"),
            req("lower_edge_hertz", "F"),
            req("upper_edge_hertz", "F"),
        ],
        outputs: &[req("output", "T")],
        attrs: &[DATATYPE],
        dtypes: &[N, ("F", FLOATS), ("T", NUMS)],
        infer: |c| {
            let (n, length) = (length_of(c, 0, "num_mel_bins")?, length_of(c, 1, "dft_length")?);
            for i in 2..5 {
                c.require_single(i, c.def.inputs[i].name)?;
            }
            let (one, two) = (c.dims.constant(1), c.dims.constant(2));
            let half = c.dims.floordiv(length, two);
            let bins = c.dims.add(half, one);
            let dtype = datatype(c, 0)?;
            c.set(0, dtype, [bins, n]);
            Ok(())
        },
        reference: Some(|c| {
            let int =
                |i: usize| Ok::<i64, tensor::Diagnostic>(single(c.input(i)?, c.def.inputs[i].name)?.view().i64_at(0));
            let float =
                |i: usize| Ok::<f64, tensor::Diagnostic>(single(c.input(i)?, c.def.inputs[i].name)?.view().f64_at(0));
            let [n, length] = [int(0)?, int(1)?].map(|n| usize::try_from(n).unwrap_or(0));
            Ok(vec![signal::mel_weights(of(c, 0), n, length, int(2)?, (float(3)?, float(4)?))?])
        }),
        lower: &[Candidate::Expand(expand_mel)],
        tolerance: Tol::Rel(2e-6),
        cases: &[
            "i64[]{8};i64[]{16};i64[]{8192};f32[]{0};f32[]{4096}",
            "i32[]{5};i32[]{33};i32[1]{16000};f32[]{125};f32[]{7600} output_datatype=f64",
            "i64[]{40};i64[]{64};i64[]{8000};f32[]{20};f32[]{3900}",
            "i64[]{4};i64[]{16};i64[]{8192};f64[]{0};f64[]{4096} output_datatype=i8",
        ],
        ..ROW
    },
];

/// The element type that an attribute names, as its number in ONNX.
fn datatype(c: &InferCtx, slot: usize) -> Result<DType> {
    let number = c.attrs.int(slot).unwrap_or(1);
    match i32::try_from(number).ok().and_then(DType::from_onnx).filter(|d| FLOATS.contains(d) || INTS.contains(d)) {
        Some(d) => Ok(d),
        None => {
            let text = format!("{}: output_datatype={number} is no type of numbers", c.def.name);
            Err(c.error(ErrorKind::Unsupported, text))
        }
    }
}

/// The same where inference has accepted it.
fn of(c: &RefCtx, slot: usize) -> DType {
    let number = c.attrs.int(slot).unwrap_or(1);
    i32::try_from(number).ok().and_then(DType::from_onnx).unwrap_or(F32)
}

fn window_ref(c: &RefCtx, a: [f64; 3]) -> Result<Vec<Tensor>> {
    let size = usize::try_from(single(c.input(0)?, "size")?.view().i64_at(0)).unwrap_or(0);
    Ok(vec![signal::window(of(c, 1), size, c.attrs.int(PERIODIC) != Some(0), a)])
}

/// Node by node in f64.
struct F64s<'a, 'm>(&'a mut Expansion<'m>);

impl F64s<'_, '_> {
    fn op(&mut self, name: &str, a: Value, b: Value) -> Value {
        self.0.op(name, &[a, b], &[])
    }
    fn un(&mut self, name: &str, a: Value) -> Value {
        self.0.op(name, &[a], &[])
    }
    fn num(&mut self, v: f64) -> Value {
        self.0.scalar(F64, v)
    }
    fn with(&mut self, name: &str, a: Value, b: f64) -> Value {
        let b = self.num(b);
        self.op(name, a, b)
    }
    /// Operand `i`, one number, as a list of one.
    fn number(&mut self, i: usize) -> Result<Value> {
        let v = self.0.need(i)?;
        let v = self.0.cast(v, F64);
        Ok(self.0.reshape(v, &[1]))
    }
    /// 0, 1, … up to before `n`.
    fn count(&mut self, n: Value) -> Value {
        let k = self.0.count_to(n);
        self.0.cast(k, F64)
    }
}

/// The result in the type that its attribute names.
fn typed(x: &mut Expansion, y: Value, slot: usize) -> Value {
    let to = Attr::Int(x.attrs().int(slot).unwrap_or(1));
    x.op("Cast", &[y], &[("to", to)])
}

fn expand_window(x: &mut Expansion, a: [f64; 3]) -> Result<Vec<Value>> {
    let size = x.need(0)?;
    let size = list(x, size);
    let periodic = x.attrs().int(PERIODIC) != Some(0);
    let mut f = F64s(x);
    let (k, mut n) = (f.count(size), f.0.cast(size, F64));
    if !periodic {
        n = f.with("Sub", n, 1.0);
    }
    let t = f.with("Mul", k, TAU);
    let t = f.op("Div", t, n);
    let cos = f.un("Cos", t);
    let one = f.with("Mul", cos, -a[1]);
    let mut y = f.with("Add", one, a[0]);
    if a[2] != 0.0 {
        let t = f.with("Mul", t, 2.0);
        let cos = f.un("Cos", t);
        let two = f.with("Mul", cos, a[2]);
        y = f.op("Add", y, two);
    }
    Ok(vec![typed(x, y, 1)])
}

fn expand_mel(x: &mut Expansion) -> Result<Vec<Value>> {
    let (n, length) = (x.need(0)?, x.need(1)?);
    let (n, length) = (list(x, n), list(x, length));
    let (one, two) = (x.ints(&[1]), x.ints(&[2]));
    let half = x.op("Div", &[length, two], &[]);
    let bins = x.op("Add", &[half, one], &[]);
    let points = x.op("Add", &[n, two], &[]);
    let mut f = F64s(x);
    let (rate, low, high) = (f.number(2)?, f.number(3)?, f.number(4)?);
    let mel = |f: &mut F64s, hz: Value| {
        let r = f.with("Div", hz, 700.0);
        let r = f.with("Add", r, 1.0);
        let l = f.un("Log", r);
        let m = f.with("Mul", l, 2595.0);
        f.with("Div", m, LN_10)
    };
    let (low, high) = (mel(&mut f, low), mel(&mut f, high));
    let (i, count) = (f.count(points), f.0.cast(points, F64));
    let span = f.op("Sub", high, low);
    let step = f.op("Div", span, count);
    let at = f.op("Mul", i, step);
    let at = f.op("Add", low, at);
    let e = f.with("Div", at, 2595.0);
    let e = f.with("Mul", e, LN_10);
    let e = f.un("Exp", e);
    let e = f.with("Sub", e, 1.0);
    let hz = f.with("Mul", e, 700.0);
    let wide = f.0.cast(length, F64);
    let wide = f.with("Add", wide, 1.0);
    let place = f.op("Mul", hz, wide);
    let place = f.op("Div", place, rate);
    let place = f.un("Floor", place);
    // [1, n] each: where triangles begin, have their peak, and end.
    let part = |f: &mut F64s, from: i64| {
        let (start, axis) = (f.0.ints(&[from]), f.0.ints(&[0]));
        let end = f.0.op("Add", &[n, start], &[]);
        f.0.op("Slice", &[place, start, end, axis], &[])
    };
    let (from, peak, to) = (part(&mut f, 0), part(&mut f, 1), part(&mut f, 2));
    let j = f.count(bins);
    let j = f.0.unsqueeze(j, &[1]);
    let slope = |f: &mut F64s, a: (Value, Value), b: (Value, Value)| {
        let (up, all) = (f.op("Sub", a.0, a.1), f.op("Sub", b.0, b.1));
        f.op("Div", up, all)
    };
    let (rise, fall) = (slope(&mut f, (j, from), (peak, from)), slope(&mut f, (to, j), (to, peak)));
    let before = f.op("Less", j, peak);
    let inside = f.op("GreaterOrEqual", j, from);
    let rising = f.op("And", before, inside);
    let after = f.op("Greater", j, peak);
    let inside = f.op("Less", j, to);
    let falling = f.op("And", after, inside);
    let top = f.op("Equal", j, peak);
    let (none, all) = (f.num(0.0), f.num(1.0));
    let y = f.0.op("Where", &[falling, fall, none], &[]);
    let y = f.0.op("Where", &[rising, rise, y], &[]);
    let y = f.0.op("Where", &[top, all, y], &[]);
    Ok(vec![typed(x, y, 0)])
}
