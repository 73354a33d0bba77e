//! Random numbers. A draw is three words from the runtime and then a function of them and of each element's place, so that results do
//! not depend on device or threads: `reference/src/random.rs` says which.
//!
//! With the attribute `seed` a node draws the same in every run. Without, it draws anew in each, from the session's seed and its own
//! place among the nodes of the model that draw: two nodes never draw the same. A node that runs several times in one run (in a loop)
//! draws anew each time. The interpreter draws what the first run of a session with seed 0 does first.

use super::loops::Builder;
use super::number::list;
use super::row::*;
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::{Expand, Kernel, Loops};
use crate::lowering::{CallSpec, IntArg, NodeCtx, Plan};
use crate::nest::{BinOp, Expr, ExprId, Nest};
use crate::op::{AttrDef, AttrKind, HIP_DOMAIN, InferCtx, OpDef, OpTraits, RefCtx, Tol, attr, req};
use reference::random::{self as r, Words};
use tensor::DType::{self, *};
use tensor::dims::Origin;
use tensor::{DimId, ErrorKind, Result, Tensor};

/// The attribute that tells nodes of rows of ai.onnx apart that draw: import numbers them, and models do not have it.
pub const STREAM: &str = "stream";
const STREAM_ATTR: AttrDef = attr(STREAM, AttrKind::Int(0));
const SEED: AttrDef = attr("seed", AttrKind::FloatOpt);
const DRAWS: OpTraits = OpTraits { random: true, ..OpTraits::NONE };
const DRAWN: (&str, &[DType]) = ("T", FLOATS);

/// An operand of which the shape counts, with results of a type of floats.
const LIKE: OpDef = OpDef {
    inputs: &[req("input", "T1")],
    outputs: &[req("output", "T2")],
    traits: DRAWS,
    dtypes: &[("T1", PLAIN), ("T2", FLOATS)],
    infer: |c| {
        let dtype = named_type(c, FLOATS)?;
        match c.shape(0) {
            Some(s) => c.set(0, dtype, s),
            None => c.set_unranked(0, dtype),
        }
        Ok(())
    },
    tolerance: Tol::Rel(2e-6),
    cases: &["[3,4] dtype=f32", "[2,0] dtype=f64", "f32[5]{1}", "[] dtype=f32 seed=3", "[7] dtype=f16"],
    ..ROW
};

/// Of a shape that an attribute gives.
const SHAPED: OpDef = OpDef {
    outputs: &[req("output", "T")],
    traits: DRAWS,
    dtypes: &[DRAWN],
    infer: |c| {
        let dtype = named_type(c, FLOATS)?;
        let Some(shape) = c.attrs.ints(slot(c.def, "shape")) else {
            return Err(c.error(ErrorKind::Malformed, format!("{}: the shape is missing", c.def.name)));
        };
        if let Some(n) = shape.iter().find(|n| **n < 0) {
            return Err(c.error(ErrorKind::Shape, format!("{}: an extent is {n}", c.def.name)));
        }
        let dims: Vec<DimId> = shape.iter().map(|&n| c.dims.constant(n)).collect();
        c.set(0, dtype, dims);
        Ok(())
    },
    tolerance: Tol::Rel(2e-6),
    ..ROW
};

const UNIFORM: &[AttrDef] = &[
    attr("dtype", AttrKind::Int(1)),
    attr("low", AttrKind::Float(0.0)),
    attr("high", AttrKind::Float(1.0)),
    SEED,
    STREAM_ATTR,
    attr("shape", AttrKind::Ints),
];
const NORMAL: &[AttrDef] = &[
    attr("dtype", AttrKind::Int(1)),
    attr("mean", AttrKind::Float(0.0)),
    attr("scale", AttrKind::Float(1.0)),
    SEED,
    STREAM_ATTR,
    attr("shape", AttrKind::Ints),
];
/// Of the element type where the model says so, else of the operand's.
const DTYPE: AttrDef = attr("dtype", AttrKind::IntOpt);

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        name: "RandomUniform",
        attrs: UNIFORM,
        reference: Some(|c| Ok(vec![r::uniform(of(c), &shape(c), words(c), pair(c))])),
        lower: &[Expand(|x| {
            let shape = given_shape(x);
            uniform(x, shape)
        })],
        cases: &["shape=[3,4]", "shape=[2,3] low=-2 high=5 dtype=f64 seed=1.5", "shape=[0,3]", "shape=[6] dtype=bf16"],
        ..SHAPED
    },
    OpDef {
        name: "RandomNormal",
        attrs: NORMAL,
        reference: Some(|c| Ok(vec![r::normal(of(c), &shape(c), words(c), pair(c))])),
        lower: &[Expand(|x| {
            let shape = given_shape(x);
            normal(x, shape)
        })],
        cases: &["shape=[3,4]", "shape=[2,3] mean=-2 scale=5 dtype=f64 seed=1.5", "shape=[0,3]", "shape=[6] dtype=f16"],
        ..SHAPED
    },
    OpDef {
        name: "RandomUniformLike",
        attrs: &[DTYPE, UNIFORM[1], UNIFORM[2], SEED, STREAM_ATTR],
        reference: Some(|c| Ok(vec![r::uniform(of(c), c.input(0)?.shape(), words(c), pair(c))])),
        lower: &[Expand(|x| {
            let shape = like(x)?;
            uniform(x, shape)
        })],
        ..LIKE
    },
    OpDef {
        name: "RandomNormalLike",
        attrs: &[DTYPE, NORMAL[1], NORMAL[2], SEED, STREAM_ATTR],
        reference: Some(|c| Ok(vec![r::normal(of(c), c.input(0)?.shape(), words(c), pair(c))])),
        lower: &[Expand(|x| {
            let shape = like(x)?;
            normal(x, shape)
        })],
        ..LIKE
    },
    // 1 with the probability that the element is, else 0
    OpDef {
        name: "Bernoulli",
        since: 15,
        attrs: &[DTYPE, SEED, STREAM_ATTR],
        dtypes: &[("T1", FLOATS), ("T2", BASIC)],
        infer: |c| {
            let dtype = named_type(c, BASIC)?;
            match c.shape(0) {
                Some(s) => c.set(0, dtype, s),
                None => c.set_unranked(0, dtype),
            }
            Ok(())
        },
        reference: Some(|c| Ok(vec![r::bernoulli(of(c), c.input(0)?, words(c))])),
        lower: &[Expand(|x| {
            let (p, shape) = (x.need(0)?, like(x)?);
            let u = unit(x, shape, F64);
            let p = x.cast(p, F64);
            let below = x.op("Less", &[u, p], &[]);
            let to = result_type(x)?;
            Ok(vec![x.cast(below, to)])
        })],
        tolerance: Tol::Exact,
        cases: &["[3,4]{0.1,0.5,0.9}", "[5]{0,1} dtype=i32", "[4]{0.5} dtype=bool seed=2", "[3]{0.5} dtype=f64"],
        ..LIKE
    },
    // Classes by their log-weights
    OpDef {
        name: "Multinomial",
        since: 7,
        inputs: &[req("input", "T1")],
        outputs: &[req("output", "T2")],
        attrs: &[attr("dtype", AttrKind::Int(6)), attr("sample_size", AttrKind::Int(1)), SEED, STREAM_ATTR],
        dtypes: &[("T1", FLOATS), ("T2", &[I32, I64])],
        infer: |c| {
            let dtype = named_type(c, &[I32, I64])?;
            let n = c.attrs.int(1).unwrap_or(1);
            if n < 0 {
                return Err(c.error(ErrorKind::Shape, format!("Multinomial: sample_size is {n}")));
            }
            let n = c.dims.constant(n);
            match c.shape(0).as_deref() {
                Some(&[b, classes]) => {
                    c.require_some(classes, [b, n], "there is a class to draw");
                    c.set(0, dtype, [b, n]);
                    Ok(())
                }
                Some(s) => {
                    let text = format!("Multinomial: the weights have {} axes, not 2", s.len());
                    Err(c.error(ErrorKind::Shape, text))
                }
                None => {
                    c.set_unranked(0, dtype);
                    Ok(())
                }
            }
        },
        reference: Some(|c| {
            let n = usize::try_from(c.attrs.int(1).unwrap_or(1)).unwrap_or(0);
            Ok(vec![r::multinomial(of(c), c.input(0)?, n, words(c))?])
        }),
        lower: &[Expand(expand_multinomial)],
        tolerance: Tol::Exact,
        cases: &[
            "[2,3] sample_size=5",
            "[1,4]{0,-inf,1,2} sample_size=9 dtype=i64 seed=1",
            "[3,1]",
            "[0,4] sample_size=2",
        ],
        ..LIKE
    },
    // Key, number of the draw and of the run
    OpDef {
        name: "Draw",
        domain: HIP_DOMAIN,
        outputs: &[req("words", "I")],
        attrs: &[attr("stream", AttrKind::Int(0)), attr("seed", AttrKind::Int(-1))],
        dtypes: &[("I", &[I64])],
        traits: DRAWS,
        infer: |c| {
            let three = c.dims.constant(3);
            c.set(0, I64, [three]);
            Ok(())
        },
        reference: Some(|c| {
            let seed = c.attrs.int(1).filter(|s| *s >= 0);
            Ok(vec![Tensor::from_i64(&[3], &r::first_words(c.attrs.int(0).unwrap_or(0), seed))])
        }),
        lower: &[Kernel(|c| {
            // The runtime puts the session's seed and the numbers of draw and run in the place of the zeros.
            let (zero, seed) = (c.dims.constant(0), c.dims.constant(c.attrs.int(1).unwrap_or(-1)));
            let stream = c.dims.constant(c.attrs.int(0).unwrap_or(0));
            let ints = [stream, seed, zero, zero, zero].map(IntArg::Dim).to_vec();
            Ok(CallSpec { kernel: "draw.i64", reads: vec![], writes: vec![0], ints, scalars: vec![], scratch: vec![] })
        })],
        cases: &["stream=2", "seed=77"],
        ..ROW
    },
    // 64 random bits for each element
    OpDef {
        name: "RandomBits",
        domain: HIP_DOMAIN,
        inputs: &[req("words", "I"), req("shape", "I")],
        outputs: &[req("bits", "U")],
        dtypes: &[("I", &[I64]), ("U", &[U64])],
        infer: |c| {
            match (c.need_values(1), c.list_len(1)) {
                (Some(s), _) => {
                    let s = s.iter().map(|&d| c.extent(d)).collect::<Result<Vec<_>>>()?;
                    c.set(0, U64, s);
                }
                (None, Some(rank)) => {
                    let s: Vec<DimId> = (0..rank).map(|_| c.fresh("n", Origin::Unknown)).collect();
                    c.set(0, U64, s);
                }
                (None, None) => c.set_unranked(0, U64),
            }
            Ok(())
        },
        reference: Some(|c| {
            let (w, shape) = (c.input(0)?.to_i64_vec(), c.input(1)?.to_i64_vec());
            let shape: Vec<usize> = shape.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
            let w: Words = [0, 1, 2].map(|i| w.get(i).copied().unwrap_or(0));
            let bits: Vec<i128> = r::bits(w, shape.iter().product()).into_iter().map(i128::from).collect();
            Ok(vec![reference::data::from_ints(U64, &shape, &bits)])
        }),
        lower: &[Loops(bits_loops)],
        cases: &["i64[3]{5,0,0};i64[2]{3,4}", "i64[3]{-9223372036854775808,7,9};i64[1]{6}", "i64[3]{1,2,3};i64[0]"],
        ..ROW
    },
];

fn slot(def: &OpDef, name: &str) -> usize {
    def.slot(name).unwrap_or(usize::MAX)
}

/// The element type that `dtype` names, else operand 0's.
fn named_type(c: &InferCtx, allowed: &[DType]) -> Result<DType> {
    let dtype = match c.attrs.int(0) {
        Some(n) => i32::try_from(n).ok().and_then(DType::from_onnx),
        None => Some(c.dtype(0)?),
    };
    dtype.filter(|d| allowed.contains(d)).ok_or_else(|| {
        let text = format!("{}: results are not of the type that dtype or the operand names", c.def.name);
        c.error(ErrorKind::Type, text)
    })
}

/// The same where inference has accepted it.
fn of(c: &RefCtx) -> DType {
    let named = c.attrs.int(0).and_then(|n| i32::try_from(n).ok()).and_then(DType::from_onnx);
    named.or(c.opt(0).map(Tensor::dtype)).unwrap_or(F32)
}

fn shape(c: &RefCtx) -> Vec<usize> {
    let list = c.attrs.ints(slot(c.def, "shape")).unwrap_or(&[]);
    list.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect()
}

/// Attributes 1 and 2.
fn pair(c: &RefCtx) -> (f64, f64) {
    (c.attrs.float(1).unwrap_or(0.0).into(), c.attrs.float(2).unwrap_or(1.0).into())
}

fn words(c: &RefCtx) -> Words {
    let seed = c.attrs.float(slot(c.def, "seed")).map(|s| s.to_bits().into());
    r::first_words(c.attrs.int(slot(c.def, STREAM)).unwrap_or(0), seed)
}

fn given_shape(x: &mut Expansion) -> Value {
    let list = x.attrs().ints(slot(x.def(), "shape")).unwrap_or(&[]).to_vec();
    x.ints(&list)
}

/// The shape of operand 0.
fn like(x: &mut Expansion) -> Result<Value> {
    let v = x.need(0)?;
    Ok(x.op("Shape", &[v], &[]))
}

fn result_type(x: &Expansion) -> Result<DType> {
    match x.attrs().int(0).and_then(|n| i32::try_from(n).ok()).and_then(DType::from_onnx) {
        Some(d) => Ok(d),
        None => Ok(x.tensor(x.need(0)?)?.0),
    }
}

/// 64 random bits for each element of a shape.
fn bits(x: &mut Expansion, shape: Value) -> Value {
    let stream = x.attrs().int(slot(x.def(), STREAM)).unwrap_or(0);
    // Of one operator an integer, of the others a float.
    let at = slot(x.def(), "seed");
    let seed =
        x.attrs().float(at).map(|s| s.to_bits().into()).or(x.attrs().int(at).map(|s| s & i64::MAX)).unwrap_or(-1);
    let words = x.own("Draw", &[], &[("stream", Attr::Int(stream)), ("seed", Attr::Int(seed))]);
    x.own("RandomBits", &[Some(words), Some(shape)], &[])
}

/// `bits >> by` as f64, times a power of two: `· 2^-power`.
fn fraction(x: &mut Expansion, bits: Value, by: u32, power: u32) -> Value {
    let by = x.scalar(U64, by.into());
    let high = x.op("BitShift", &[bits, by], &[("direction", Attr::Str("RIGHT".into()))]);
    let (wide, scale) = (x.cast(high, F64), x.scalar(F64, 0.5f64.powi(power.cast_signed())));
    x.op("Mul", &[wide, scale], &[])
}

/// Numbers in [0, 1) with as many digits as `dtype` has, in f64.
pub(super) fn unit(x: &mut Expansion, shape: Value, dtype: DType) -> Value {
    let bits = bits(x, shape);
    let p = r::digits(dtype);
    fraction(x, bits, 64 - p, p)
}

/// `a + b · v`, in the type of the results.
fn placed(x: &mut Expansion, v: Value, a: f64, b: f64) -> Result<Vec<Value>> {
    let (a, b) = (x.scalar(F64, a), x.scalar(F64, b));
    let v = x.op("Mul", &[v, b], &[]);
    let v = x.op("Add", &[v, a], &[]);
    let to = result_type(x)?;
    Ok(vec![if to == F64 { v } else { x.cast(v, to) }])
}

fn attributes(x: &Expansion) -> (f64, f64) {
    (x.attrs().float(1).unwrap_or(0.0).into(), x.attrs().float(2).unwrap_or(1.0).into())
}

fn uniform(x: &mut Expansion, shape: Value) -> Result<Vec<Value>> {
    let to = result_type(x)?;
    let u = unit(x, shape, to);
    let (low, high) = attributes(x);
    placed(x, u, low, high - low)
}

fn normal(x: &mut Expansion, shape: Value) -> Result<Vec<Value>> {
    let bits = bits(x, shape);
    let mask = x.constant(&reference::data::from_ints(U64, &[], &[0xffff_ffff]));
    let low = x.op("BitwiseAnd", &[bits, mask], &[]);
    let (u, v) = (fraction(x, bits, 32, 32), fraction(x, low, 0, 32));
    // In (0, 1): the logarithm is finite.
    let half = x.scalar(F64, 0.5f64.powi(33));
    let u = x.op("Add", &[u, half], &[]);
    let log = x.op("Log", &[u], &[]);
    let (minus, tau) = (x.scalar(F64, -2.0), x.scalar(F64, std::f64::consts::TAU));
    let square = x.op("Mul", &[log, minus], &[]);
    let radius = x.op("Sqrt", &[square], &[]);
    let angle = x.op("Mul", &[v, tau], &[]);
    let cos = x.op("Cos", &[angle], &[]);
    let z = x.op("Mul", &[radius, cos], &[]);
    let (mean, scale) = attributes(x);
    placed(x, z, mean, scale)
}

fn expand_multinomial(x: &mut Expansion) -> Result<Vec<Value>> {
    let logs = x.need(0)?;
    let n = x.ints(&[x.attrs().int(1).unwrap_or(1)]);
    let (b, classes) = (x.extent(logs, 0), x.extent(logs, 1));
    let shape = x.concat(&[b, n], 0);
    let u = unit(x, shape, F64);
    let u = x.unsqueeze(u, &[2]);
    let wide = x.cast(logs, F64);
    let (axis, one) = (x.ints(&[1]), x.scalar(I64, 1.0));
    let top = x.op("ReduceMax", &[wide, axis], &[]);
    let rest = x.op("Sub", &[wide, top], &[]);
    let weights = x.op("Exp", &[rest], &[]);
    let sums = x.op("CumSum", &[weights, one], &[]);
    let sums = x.unsqueeze(sums, &[1]);
    // The greatest sum, which is the last, is the sum of all.
    let at = x.ints(&[2]);
    let all = x.op("ReduceMax", &[sums, at], &[]);
    let bound = x.op("Mul", &[u, all], &[]);
    let below = x.op("LessOrEqual", &[sums, bound], &[]);
    let below = x.cast(below, I64);
    let count = x.op("ReduceSum", &[below, at], &[("keepdims", Attr::Int(0))]);
    let classes = list(x, classes);
    let most = x.op("Sub", &[classes, one], &[]);
    let y = x.op("Min", &[count, most], &[]);
    let to = result_type(x)?;
    Ok(vec![if to == I64 { y } else { x.cast(y, to) }])
}

/// See [`r::bits`].
fn bits_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let shape = c.outs[0].shape.clone();
    let mut b = Builder::over_result(c)?;
    let mut at = b.int(0);
    for (i, &n) in shape.iter().enumerate() {
        let (n, place) = (b.dim(n), b.outer(i));
        let above = b.bin(BinOp::Mul, at, n);
        at = b.bin(BinOp::Add, above, place);
    }
    let wide = |b: &mut Builder, e: ExprId| b.nest.expr(Expr::Cast(e, U64));
    let num = |b: &mut Builder, v: u32| b.nest.expr(Expr::Int(v.into(), U64));
    let load = |b: &mut Builder, i: i64| -> Plan<ExprId> {
        let place = b.fixed_at(i);
        let e = b.load(0, [place])?;
        Ok(wide(b, e))
    };
    let (key, draw, run) = (load(&mut b, 0)?, load(&mut b, 1)?, load(&mut b, 2)?);
    let at = wide(&mut b, at);
    let low = |b: &mut Builder, e: ExprId| {
        let mask = num(b, u32::MAX);
        b.bin(BinOp::And, e, mask)
    };
    let high = |b: &mut Builder, e: ExprId| {
        let by = num(b, 32);
        b.bin(BinOp::Shr, e, by)
    };
    let mut x = [low(&mut b, at), high(&mut b, at), low(&mut b, draw), low(&mut b, run)];
    let mut keys = [low(&mut b, key), high(&mut b, key)];
    for _ in 0..10 {
        let (m, n) = (num(&mut b, 0xD251_1F53), num(&mut b, 0xCD9E_8D57));
        let (p, q) = (b.bin(BinOp::Mul, x[0], m), b.bin(BinOp::Mul, x[2], n));
        let mixed = |b: &mut Builder, p: ExprId, y: ExprId, k: ExprId| {
            let h = high(b, p);
            let h = b.bin(BinOp::Xor, h, y);
            b.bin(BinOp::Xor, h, k)
        };
        x = [mixed(&mut b, q, x[1], keys[0]), low(&mut b, q), mixed(&mut b, p, x[3], keys[1]), low(&mut b, p)];
        for (k, step) in keys.iter_mut().zip([0x9E37_79B9, 0xBB67_AE85]) {
            let step = num(&mut b, step);
            let sum = b.bin(BinOp::Add, *k, step);
            *k = low(&mut b, sum);
        }
    }
    let by = num(&mut b, 32);
    let upper = b.bin(BinOp::Shl, x[1], by);
    let e = b.bin(BinOp::Or, x[0], upper);
    Ok(b.store(e))
}
