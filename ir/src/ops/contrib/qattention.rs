//! Self-attention whose projections are products of integers.

use super::super::row::ROW;
use super::qlinear::{BYTES, require_scalars};
use super::qproduct::{Integers, integer_product};
use super::{MICROSOFT, float, rounded};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::attention::{Attention, Operands, attention};
use reference::data::{from_f64s, ints};
use reference::elementwise as e;
use reference::movement::{concat, split, transpose};
use reference::quant;
use tensor::DType::{F16, F32, F64, I32, I64};
use tensor::dims::{DimPool, Proof};
use tensor::{DimId, ErrorKind, Result, Tensor};

const MASK: usize = 5;
const INPUT_ZERO: usize = 6;
const WEIGHT_ZERO: usize = 7;
const PAST: usize = 8;

struct Options {
    heads: i64,
    causal: bool,
    scale: Option<f32>,
    /// Added to the scores of keys that the mask leaves out.
    filter: f32,
}

impl Options {
    fn new(a: &Attrs) -> Options {
        Options {
            heads: a.int(2).unwrap_or(1),
            causal: a.int(5).is_some_and(|v| v != 0),
            // 0 stands for the default, too.
            scale: a.float(4).filter(|&s| s != 0.0),
            filter: a.float(1).unwrap_or(-10000.0),
        }
    }
}

/// What a mask says of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mask {
    /// `[b]`: the first keys of each sample count, up to before this one.
    Ends,
    /// `[2·b]`: those up to before the first half's key, from the second half's on.
    EndsAndStarts,
    /// `[b]` or `[2·b]`, which the run shows.
    MaybeStarts,
    /// `[b, t]`: those that are above 0 count.
    Keys,
    /// `[b, s, t]`: the same for each query.
    Scores,
    /// `[b, 1]` or `[1, 1]`: says nothing.
    Dummy,
}

/// How a mask of this shape is meant, and which extents must be equal. 4-D masks have rank 4 and are no [`Mask`].
fn mask(p: &mut DimPool, m: &[DimId], b: DimId, s: DimId, t: DimId) -> Option<(Mask, Vec<(DimId, DimId)>)> {
    match *m {
        [n] => {
            let (zero, two) = (p.constant(0), p.constant(2));
            let twice = p.mul(two, b);
            if p.prove_eq(n, b) == Proof::Yes {
                return Some((Mask::Ends, vec![]));
            }
            if p.prove_eq(n, twice) == Proof::Yes {
                return Some((Mask::EndsAndStarts, vec![]));
            }
            let (over, under) = (p.sub(n, b), p.sub(n, twice));
            Some((Mask::MaybeStarts, vec![(p.mul(over, under), zero)]))
        }
        [_, one] if p.as_const(one) == Some(1) => Some((Mask::Dummy, vec![])),
        [n, keys] => Some((Mask::Keys, vec![(n, b), (keys, t)])),
        [n, queries, keys] => Some((Mask::Scores, vec![(n, b), (queries, s), (keys, t)])),
        _ => None,
    }
}

fn infer_attention(c: &mut InferCtx) -> Result<()> {
    let o = Options::new(c.attrs);
    let unsupported = |c: &InferCtx, text: &str| Err(c.error(ErrorKind::Unsupported, format!("QAttention: {text}")));
    if c.attrs.int(0).is_some_and(|v| v != 0) {
        return unsupported(c, "do_rotary=1 is not supported");
    }
    if c.attrs.int(3).is_some_and(|v| v != 0) && c.has(PAST) {
        return unsupported(c, "past_present_share_buffer=1 needs the length of the past, which no operand gives");
    }
    if o.heads < 1 {
        return unsupported(c, &format!("num_heads={} is not positive", o.heads));
    }
    require_scalars(c, &[3, INPUT_ZERO])?;
    let dtype = c.dtype(3)?;
    let (Some(x), Some(w)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        c.set_unranked(1, dtype);
        return Ok(());
    };
    for (i, rank) in [(0, 3), (1, 2), (2, 1), (PAST, 5)] {
        if let Some(s) = c.shape(i).filter(|s| s.len() != rank) {
            let text = format!("QAttention: {} has rank {}, not {rank}", c.def.inputs[i].name, s.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
    }
    let (b, s) = (x[0], x[1]);
    c.require_eq(x[2], w[0], "inner extents")?;
    if let Some(bias) = c.shape(2) {
        c.require_eq(bias[0], w[1], "bias has one value per column of the weight")?;
    }
    for i in [4, WEIGHT_ZERO] {
        let Some(of_column) = c.shape(i) else { continue };
        match *of_column.as_slice() {
            [] => {}
            [n] if c.dims.as_const(n) == Some(1) => {}
            [n] => c.require_eq(n, w[1], &format!("{} has one value per column", c.def.inputs[i].name))?,
            _ => {
                let name = c.def.inputs[i].name;
                let text = format!("QAttention: {name} is neither one number nor one per column of the weight");
                return Err(c.error(ErrorKind::Shape, text));
            }
        }
    }
    let (heads, three, zero) = (c.dims.constant(o.heads), c.dims.constant(3), c.dims.constant(0));
    let parts = c.dims.mul(heads, three);
    let rest = c.dims.modulo(w[1], parts);
    c.require_eq(rest, zero, "the columns of the weight are three times the heads' sizes")?;
    let hidden = c.dims.floordiv(w[1], three);
    let size = c.dims.floordiv(hidden, heads);
    let mut total = s;
    let two = c.dims.constant(2);
    if let Some(past) = c.shape(PAST) {
        for (axis, want) in [(0, two), (1, b), (2, heads), (4, size)] {
            c.require_eq(past[axis], want, "past is [2, batch, heads, length, size of a head]")?;
        }
        total = c.dims.add(past[3], s);
    }
    if let Some(m) = c.shape(MASK) {
        let Some((_, equal)) = mask(c.dims, &m, b, s, total) else {
            return unsupported(c, &format!("a mask_index of rank {} is not supported", m.len()));
        };
        for (have, want) in equal {
            c.require_eq(have, want, "mask_index is [b], [2·b], [b, t] or [b, s, t]")?;
        }
    }
    c.set(0, dtype, [b, s, hidden]);
    c.set(1, dtype, [two, b, heads, total, size]);
    Ok(())
}

/// `[b, 1, s or 1, t]`: the filter's value for keys that the mask leaves out, and whether a key is behind the query.
fn mask_ref(m: &Tensor, kind: Mask, o: &Options, [b, s, t]: [usize; 3]) -> Tensor {
    let v = ints(m);
    let counts = |i: usize, q: usize, k: usize| match kind {
        Mask::Ends => (k as i128) < v[i],
        // Of a known batch it is known which of the two it is.
        Mask::EndsAndStarts | Mask::MaybeStarts => (k as i128) < v[i] && k as i128 >= v[b + i],
        Mask::Keys => v[i * t + k] > 0,
        Mask::Scores => v[(i * s + q) * t + k] > 0,
        Mask::Dummy => true,
    };
    let at = |p: usize| if counts(p / (s * t), p / t % s, p % t) { 0.0 } else { f64::from(o.filter) };
    from_f64s(F64, &[b, 1, s, t], &(0..b * s * t).map(at).collect::<Vec<_>>())
}

fn attention_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let o = Options::new(c.attrs);
    let bad = || tensor::Diagnostic::new(ErrorKind::Shape, "QAttention: the operands do not fit");
    let (x, w) = (c.input(0)?, c.input(1)?);
    let heads = usize::try_from(o.heads).map_err(|_| bad())?;
    let (&[b, s, _], &[_, columns]) = (x.shape(), w.shape()) else { return Err(bad()) };
    if heads == 0 || !columns.is_multiple_of(3 * heads) {
        return Err(bad());
    }
    let number = |t: &Tensor| if t.n_elems() == 1 { t.reshaped(&[]) } else { t.clone() };
    let sum = quant::matmul_integer(x, w, c.opt(INPUT_ZERO).map(number).as_ref(), c.opt(WEIGHT_ZERO))?;
    let scale = e::mul(&rounded(&number(c.input(3)?), F64), &rounded(&number(c.input(4)?), F64))?;
    let all = e::add(&e::mul(&rounded(&sum, F64), &scale)?, &rounded(c.input(2)?, F64))?;
    let size = columns / (3 * heads);
    let mut qkv = vec![];
    for part in split(&all, 2, &[columns / 3; 3])? {
        qkv.push(transpose(&part.reshaped(&[b, s, heads, size]), &[0, 2, 1, 3])?);
    }
    let past: Option<Vec<Tensor>> = match c.opt(PAST) {
        Some(p) => {
            let &[2, pb, h, n, d] = p.shape() else { return Err(bad()) };
            let both = split(&rounded(p, F64), 0, &[1, 1])?;
            Some(both.iter().map(|t| t.reshaped(&[pb, h, n, d])).collect())
        }
        None => None,
    };
    let t = s + past.as_ref().map_or(0, |p| p[0].shape()[2]);
    let filter = match c.opt(MASK) {
        Some(m) => {
            let mut p = DimPool::new();
            let mut dim = |n: usize| p.constant(i64::try_from(n).unwrap_or(i64::MAX));
            let (of_mask, b_dim, s_dim, t_dim) =
                (m.shape().iter().map(|&n| dim(n)).collect::<Shape>(), dim(b), dim(s), dim(t));
            let (kind, equal) = mask(&mut p, &of_mask, b_dim, s_dim, t_dim).ok_or_else(bad)?;
            if equal.iter().any(|(a, b)| a != b) {
                return Err(bad());
            }
            Some(mask_ref(m, kind, &o, [b, s, t]))
        }
        None => None,
    };
    let how = Attention {
        heads: None,
        scale: o.scale.map(f64::from),
        causal: o.causal,
        softcap: 0.0,
        left: None,
        right: None,
        shown: 0,
    };
    let before = past.as_ref().map(|p| (&p[0], &p[1]));
    let operands = Operands { q: &qkv[0], k: &qkv[1], v: &qkv[2], mask: filter.as_ref(), past: before, n_valid: None };
    let [y, key, value, _] = attention(&operands, &how)?;
    let d = c.input(3)?.dtype();
    let y = transpose(&y, &[0, 2, 1, 3])?.reshaped(&[b, s, columns / 3]);
    let apart = |t: &Tensor| t.reshaped(&[&[1], t.shape()].concat());
    let present = concat(&[&apart(&key), &apart(&value)], 0)?;
    Ok(vec![rounded(&y, d), rounded(&present, d)])
}

/// How many columns of the weight are a head's, a list of one integer.
fn head_size(x: &mut Expansion, o: &Options) -> Result<Value> {
    let weight = x.need(1)?;
    let (columns, parts) = (x.extent(weight, 1), x.ints(&[3 * o.heads]));
    Ok(x.op("Div", &[columns, parts], &[]))
}

/// The projections of the input, each `[b, heads, s, size]`, in f32.
fn projections(x: &mut Expansion, o: &Options) -> Result<Vec<Value>> {
    let (input, weight, bias) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let (a, w) = (Integers { q: input, zero: x.input(INPUT_ZERO) }, Integers { q: weight, zero: x.input(WEIGHT_ZERO) });
    let sum = integer_product(x, a, w);
    let (input_scale, weight_scale) = (x.need(3)?, x.need(4)?);
    let (input_scale, weight_scale) = (x.cast(input_scale, F32), x.cast(weight_scale, F32));
    let scale = x.op("Mul", &[input_scale, weight_scale], &[]);
    let (sum, bias) = (x.cast(sum, F32), x.cast(bias, F32));
    let y = x.op("Mul", &[sum, scale], &[]);
    let y = x.op("Add", &[y, bias], &[]);
    let (b, s, heads, size) = (x.extent(input, 0), x.extent(input, 1), x.ints(&[o.heads]), head_size(x, o)?);
    let all = x.op_n("Split", &[y], &[("axis", Attr::Int(2)), ("num_outputs", Attr::Int(3))], 3);
    let mut parts = vec![];
    for v in all {
        let v = x.reshape_to(v, &[b, s, heads, size]);
        parts.push(x.transpose(v, &[0, 2, 1, 3]));
    }
    Ok(parts)
}

/// What is added to the scores for the mask, `[b, 1, 1 or s, t]`.
fn filter(x: &mut Expansion, o: &Options, n_keys: Value) -> Result<Option<Value>> {
    let Some(m) = x.input(MASK) else { return Ok(None) };
    let (shape, input) = (x.tensor(m)?.1, x.need(0)?);
    let input = x.tensor(input)?.1;
    // Extents that must be equal are known to be.
    let dims = &mut x.module_mut().dims;
    let Some((kind, _)) = mask(dims, &shape, input[0], input[1], input[1]) else { return Ok(None) };
    let zero = x.ints(&[0]);
    let counts = match kind {
        Mask::Dummy => return Ok(None),
        Mask::Keys | Mask::Scores => {
            let m = x.cast(m, I64);
            let counts = x.op("Greater", &[m, zero], &[]);
            x.unsqueeze(counts, if kind == Mask::Keys { &[1, 2] } else { &[1] })
        }
        Mask::Ends | Mask::EndsAndStarts | Mask::MaybeStarts => {
            let mut m = x.cast(m, I64);
            let k = x.count_to(n_keys);
            let input = x.need(0)?;
            let (batch, axis) = (x.extent(input, 0), x.ints(&[0]));
            if kind == Mask::MaybeStarts {
                // Zeros behind the ends are starts that leave out nothing.
                let none = x.scalar(I64, 0.0);
                let none = x.op("Expand", &[none, batch], &[]);
                m = x.concat(&[m, none], 0);
            }
            let ends = x.op("Slice", &[m, zero, batch, axis], &[]);
            let ends = x.unsqueeze(ends, &[1, 2, 3]);
            let counts = x.op("Less", &[k, ends], &[]);
            if kind == Mask::Ends {
                counts
            } else {
                let twice = x.op("Add", &[batch, batch], &[]);
                let starts = x.op("Slice", &[m, batch, twice, axis], &[]);
                let starts = x.unsqueeze(starts, &[1, 2, 3]);
                let from = x.op("GreaterOrEqual", &[k, starts], &[]);
                x.op("And", &[counts, from], &[])
            }
        }
    };
    let (none, filter) = (x.scalar(F32, 0.0), x.scalar(F32, o.filter.into()));
    Ok(Some(x.op("Where", &[counts, none, filter], &[])))
}

fn expand_attention(x: &mut Expansion) -> Result<Vec<Value>> {
    let o = Options::new(x.attrs());
    let input_scale = x.need(3)?;
    let to = x.tensor(input_scale)?.0;
    let qkv = projections(x, &o)?;
    let input = x.need(0)?;
    let (b, s) = (x.extent(input, 0), x.extent(input, 1));
    let mut n_keys = s;
    let mut past = [None, None];
    if let Some(p) = x.input(PAST) {
        let p = x.cast(p, F32);
        let both = x.op_n("Split", &[p], &[("axis", Attr::Int(0)), ("num_outputs", Attr::Int(2))], 2);
        past = [Some(x.squeeze(both[0], &[0])), Some(x.squeeze(both[1], &[0]))];
        let n = x.extent(p, 3);
        n_keys = x.op("Add", &[n, s], &[]);
    }
    let filter = filter(x, &o, n_keys)?;
    let mut attrs = vec![("is_causal", Attr::Int(o.causal.into()))];
    attrs.extend(o.scale.map(|s| ("scale", float(s))));
    let ins = [Some(qkv[0]), Some(qkv[1]), Some(qkv[2]), filter, past[0], past[1]];
    let r = x.op_opt("Attention", &ins, &attrs, 3);
    let y = x.transpose(r[0], &[0, 2, 1, 3]);
    let (size, heads) = (head_size(x, &o)?, x.ints(&[o.heads]));
    let hidden = x.op("Mul", &[size, heads], &[]);
    let y = x.reshape_to(y, &[b, s, hidden]);
    let (key, value) = (x.unsqueeze(r[1], &[0]), x.unsqueeze(r[2], &[0]));
    let present = x.concat(&[key, value], 0);
    Ok(vec![x.cast(y, to), x.cast(present, to)])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = softmax(scale · Q·Kᵀ + mask)·V per head, [Q K V] = input · weight + bias; keys and values after those of the past
    OpDef {
        name: "QAttention",
        domain: MICROSOFT,
        inputs: &[
            req("input", "T1"),
            req("weight", "T2"),
            req("bias", "T3"),
            req("input_scale", "T3"),
            req("weight_scale", "T3"),
            opt("mask_index", "T4"),
            opt("input_zero_point", "T1"),
            opt("weight_zero_point", "T2"),
            opt("past", "T3"),
        ],
        outputs: &[req("output", "T3"), opt("present", "T3")],
        attrs: &[
            attr("do_rotary", AttrKind::Int(0)),
            attr("mask_filter_value", AttrKind::FloatOpt),
            attr("num_heads", AttrKind::IntReq),
            attr("past_present_share_buffer", AttrKind::IntOpt),
            attr("scale", AttrKind::FloatOpt),
            attr("unidirectional", AttrKind::Int(0)),
        ],
        dtypes: &[("T1", BYTES), ("T2", BYTES), ("T3", &[F32, F16]), ("T4", &[I32])],
        infer: infer_attention,
        reference: Some(attention_ref),
        lower: &[Expand(expand_attention)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            "[2,3,5];[5,24];[24];[]{0.02};[]{0.1};_;[]{3};[]{2} num_heads=2",
            "[2,3,5];[5,24];[24];[1]{0.02};[24]{0.1,0.05};i32[2]{1,3};_;[24]{2,1,3} num_heads=4 unidirectional=1",
            "[2,3,5];[5,24];[24];[]{0.02};[]{0.1};i32[4]{3,2,1,0};[]{3} num_heads=2 outs=2 scale=0.5",
            "[2,3,5];[5,24];[24];[]{0.02};[]{0.1};i32[2,7]{1,0,1,1};[]{3};[]{2};[2,2,2,4,4] num_heads=2 outs=2 unidirectional=1",
            "[2,3,5];[5,24];[24];[]{0.02};[]{0.1};i32[2,3,3]{1,0,0,1,1};[]{3};[]{2} num_heads=2 mask_filter_value=-3",
            "[2,1,5];[5,24];[24];[]{0.02};[]{0.1};i32[2,1]{0,1};_;_;[2,2,2,4,4] num_heads=2 outs=2",
        ],
        ..ROW
    },
];
