//! Attention as com.microsoft has it: queries, keys and values are projected by the node; one tensor holds past keys and values.

use super::super::row::ROW;
use super::MICROSOFT;
use super::attend::{
    Attend, Keep, Past, between, filter, first_number, masked, merge, n_keys, number, range_of, raw, scale, split,
};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::data::{f64s, from_f64s};
use reference::heads::{Added, Heads, attend};
use tensor::DType::{BF16, F16, F32, F64, I32};
use tensor::{Diagnostic, DimId, ErrorKind, Result, Tensor};

const BIAS: usize = 2;
const MASK: usize = 3;
const PAST: usize = 4;
const SCORE_BIAS: usize = 5;
const TAKEN: usize = 6;

const HEADS: usize = 0;
const UNIDIRECTIONAL: usize = 1;
const FILTER: usize = 2;
const SCALE: usize = 3;
const ROTARY: usize = 4;
const SHARES: usize = 5;
const SIZES: usize = 6;
const ROTATED: usize = 7;

/// Positions turn by `position · BASE^(-2i / n)`.
const BASE: f64 = 10000.0;

fn is_shared(attrs: &Attrs, has_past: bool) -> bool {
    has_past && attrs.int(SHARES) == Some(1)
}

fn infer(c: &mut InferCtx) -> Result<()> {
    let n = c.heads(HEADS, "num_heads")?;
    let dtype = c.dtype(0)?;
    let shared = is_shared(c.attrs, c.has(PAST));
    if shared && !c.has(TAKEN) {
        let text = "Attention: past_present_share_buffer=1 needs past_sequence_length";
        return Err(c.error(ErrorKind::Malformed, text));
    }
    let (Some(x), Some(w)) = (c.shape(0), c.shape(1)) else {
        (0..2).for_each(|i| c.set_unranked(i, dtype));
        return Ok(());
    };
    let [b, s, width] = *x.as_slice() else { return Err(c.misshapen(0, "[b, s, input_hidden_size]")) };
    let [rows, columns] = *w.as_slice() else {
        return Err(c.misshapen(1, "[input_hidden_size, hidden_size + hidden_size + v_hidden_size]"));
    };
    c.require_eq(rows, width, "weights have a row for each element of the input")?;
    if let Some(bias) = c.shape(BIAS) {
        let [have] = *bias.as_slice() else {
            return Err(c.misshapen(BIAS, "[hidden_size + hidden_size + v_hidden_size]"));
        };
        c.require_eq(have, columns, "the bias has an element for each column of the weights")?;
    }
    let sizes = c.attrs.ints(SIZES).map(<[i64]>::to_vec);
    let (d, e) = head_sizes(c, sizes, n, columns)?;
    if c.attrs.int(ROTARY) == Some(1) {
        check_rotated(c, d)?;
    }
    let h = c.dims.constant(n);
    if c.has(PAST) || c.n_outs > 1 {
        c.require_eq(d, e, "one tensor holds keys and values of one size")?;
    }
    let (mut total, mut present) = (s, s);
    if let Some(past) = c.shape(PAST) {
        let [two, pb, ph, p, pd] = *past.as_slice() else { return Err(c.misshapen(PAST, "[2, b, num_heads, p, d]")) };
        let pair = c.dims.constant(2);
        for (a, want) in [(two, pair), (pb, b), (ph, h), (pd, d)] {
            c.require_eq(a, want, "past is [2, b, num_heads, p, d]")?;
        }
        total = c.dims.add(p, s);
        present = total;
        if shared {
            c.require_single(TAKEN, "past_sequence_length")?;
            if let Some(taken) = c.taken(TAKEN, false) {
                let end = c.dims.add(taken, s);
                c.require_within(end, p, "the buffer has room for what is new")?;
            }
            (total, present) = (p, p);
        }
    }
    c.require_score_bias(SCORE_BIAS, &[b, h, s, total], shared)?;
    check_mask(c, [b, s, total], shared)?;
    let hidden = c.dims.mul(h, e);
    c.set(0, dtype, [b, s, hidden]);
    let pair = c.dims.constant(2);
    c.set(1, dtype, [pair, b, h, present, d]);
    Ok(())
}

/// Elements of a head of queries and keys, and of values.
pub(super) fn head_sizes(c: &mut InferCtx, sizes: Option<Vec<i64>>, n: i64, columns: DimId) -> Result<(DimId, DimId)> {
    let Some(sizes) = sizes.filter(|s| !s.is_empty()) else {
        let third = c.part(columns, 3, "weights are those of queries, keys and values")?;
        let d = c.part(third, n, "num_heads divides the hidden size")?;
        return Ok((d, d));
    };
    let fits = |s: &i64| *s > 0 && s % n == 0;
    match *sizes {
        [q, k, v] if q == k && sizes.iter().all(fits) => {
            let all = c.dims.constant(q.saturating_mul(2).saturating_add(v));
            c.require_eq(all, columns, "qkv_hidden_sizes add up to the columns of the weights")?;
            Ok((c.dims.constant(q / n), c.dims.constant(v / n)))
        }
        _ => {
            let text = format!(
                "{}: qkv_hidden_sizes={sizes:?} is not three positive multiples of num_heads={n}, of which the first two are equal",
                c.def.name
            );
            Err(c.error(ErrorKind::Unsupported, text))
        }
    }
}

fn check_rotated(c: &mut InferCtx, d: DimId) -> Result<()> {
    let given = c.attrs.int(ROTATED).filter(|&r| r != 0);
    let (r, size) = (given.or_else(|| c.dims.as_const(d)), c.dims.as_const(d));
    if r.is_some_and(|r| r > 0 && r % 2 == 0 && size.is_none_or(|d| r <= d)) {
        return Ok(());
    }
    let text = "Attention: do_rotary=1 needs an even rotary_embedding_dim that is at most the known size of a head";
    Err(c.error(ErrorKind::Unsupported, text))
}

/// A mask is `[b]`, `[2·b]`, `[3·b + 2]`, `[b, t]`, `[b, s, t]` or `[b, 1, m, m]`; `[b, 1]` and `[1, 1]` mask nothing.
fn check_mask(c: &mut InferCtx, [b, s, total]: [DimId; 3], shared: bool) -> Result<()> {
    let Some(mask) = c.shape(MASK) else { return Ok(()) };
    let one = c.dims.constant(1);
    let last = mask.last().copied().unwrap_or(one);
    let over_keys = |c: &mut InferCtx| -> Result<()> {
        if let Some(bias) = c.shape(SCORE_BIAS) {
            c.require_eq(last, bias[3], "mask_index and attention_bias are over the same keys")?;
        }
        match shared {
            true => c.require_within(last, total, "mask_index is over no more keys than the buffer"),
            false => c.require_eq(last, total, "mask_index is over all keys"),
        }
    };
    match *mask.as_slice() {
        [n] => {
            // One of the three: a product of differences is 0.
            let (zero, two, three) = (c.dims.constant(0), c.dims.constant(2), c.dims.constant(3));
            let (twice, thrice) = (c.dims.mul(b, two), c.dims.mul(b, three));
            let with_starts = c.dims.add(thrice, two);
            let mut off = c.dims.sub(n, b);
            for other in [twice, with_starts] {
                let d = c.dims.sub(n, other);
                off = c.dims.mul(off, d);
            }
            c.require_eq(off, zero, "a mask_index of one axis is [b], [2·b] or [3·b + 2]")
        }
        [mb, _] if is_dummy(c.dims, last) && c.dims.as_const(mb) == Some(1) => Ok(()),
        [mb, _] => {
            c.require_eq(mb, b, "mask_index has a row per sample")?;
            if is_dummy(c.dims, last) { Ok(()) } else { over_keys(c) }
        }
        [mb, ms, _] => {
            c.require_eq(mb, b, "mask_index has rows per sample")?;
            c.require_eq(ms, s, "mask_index has a row per query")?;
            over_keys(c)
        }
        [mb, m1, m, _] => {
            c.require_eq(mb, b, "mask_index is [b, 1, m, m]")?;
            c.require_eq(m1, one, "mask_index is [b, 1, m, m]")?;
            c.require_eq(m, last, "mask_index is [b, 1, m, m]")?;
            if let Some(bias) = c.shape(SCORE_BIAS).filter(|_| shared) {
                c.require_eq(last, bias[3], "mask_index and attention_bias are over the same keys")?;
            }
            let (a, b) = if shared { (last, total) } else { (total, last) };
            c.require_within(a, b, "mask_index [b, 1, m, m] is over the longest sequence")
        }
        _ => Err(c.misshapen(MASK, "[b], [2·b], [3·b + 2], [b, t], [b, s, t], [b, 1, m, m]")),
    }
}

/// Whether a mask of two axes is the same for all keys, which masks nothing.
fn is_dummy(dims: &tensor::DimPool, last: DimId) -> bool {
    dims.as_const(last) == Some(1)
}

fn expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let n = x.attrs().int(HEADS).unwrap_or(1);
    let (input, weights) = (x.need(0)?, x.need(1)?);
    let dtype = x.tensor(input)?.0;
    let mut all = x.op("MatMul", &[input, weights], &[]);
    if let Some(bias) = x.input(BIAS) {
        all = x.op("Add", &[all, bias], &[]);
    }
    let sizes = x.attrs().ints(SIZES).map(<[i64]>::to_vec);
    let parts = parts(x, all, sizes, 2);
    let (mut q, mut k, v) = (split(x, parts[0], n), split(x, parts[1], n), split(x, parts[2], n));
    let half = |x: &mut Expansion, past, i| {
        let part = x.slice(past, 0, i, i + 1);
        x.squeeze(part, &[0])
    };
    let past = match x.input(PAST) {
        None => Past::None,
        Some(past) => {
            let (key, value) = (half(x, past, 0), half(x, past, 1));
            if is_shared(x.attrs(), true) {
                let taken = x.need(TAKEN)?;
                Past::Shared { key, value, n: number(x, taken), beams: None }
            } else {
                Past::Grown(key, value)
            }
        }
    };
    if x.attrs().int(ROTARY) == Some(1) {
        let turned = rotate(x, [q, k], past)?;
        [q, k] = turned;
    }
    let (mut bias, mut of_scores) = (x.input(SCORE_BIAS), dtype);
    if let Some(keep) = keep(x, past, k, bias)? {
        let fill = filter(x.attrs(), FILTER);
        (bias, of_scores) = masked(x, keep, bias, dtype, fill);
    }
    let causal = x.attrs().int(UNIDIRECTIONAL) == Some(1);
    let scale = scale(x.attrs(), SCALE);
    let a = Attend { q, k, v, past, bias, scale, causal, dtype, of_scores, square: true }.expand(x);
    let mut results = vec![merge(x, a.y)];
    if x.n_outs() > 1 {
        let (key, value) = (x.unsqueeze(a.key, &[0]), x.unsqueeze(a.value, &[0]));
        results.push(x.concat(&[key, value], 0));
    }
    Ok(results)
}

/// Columns of queries, keys and values, which lie along an axis.
pub(super) fn parts(x: &mut Expansion, all: Value, sizes: Option<Vec<i64>>, axis: i64) -> [Value; 3] {
    let mut attrs = vec![("axis", Attr::Int(axis))];
    let sizes = sizes.filter(|s| !s.is_empty()).map(|s| x.ints(&s));
    if sizes.is_none() {
        attrs.push(("num_outputs", Attr::Int(3)));
    }
    let r = x.op_opt("Split", &[Some(all), sizes], &attrs, 3);
    [r[0], r[1], r[2]]
}

/// Which keys count by the mask, of 4 axes.
fn keep(x: &mut Expansion, past: Past, k: Value, bias: Option<Value>) -> Result<Option<Value>> {
    let Some(mask) = x.input(MASK) else { return Ok(None) };
    let (dtype, shape) = x.tensor(mask)?;
    let input = x.need(0)?;
    let (b, s) = (x.extent(input, 0), x.extent(input, 1));
    Ok(match shape.len() {
        1 => {
            // What follows the ends are starts where there are as many of them; else there is no start.
            let (zero, n) = (x.ints(&[0]), x.extent(mask, 0));
            let ends = range_of(x, mask, zero, b);
            let twice = x.op("Add", &[b, b], &[]);
            let pads = x.concat(&[zero, b], 0);
            let longer = x.op("Pad", &[mask, pads], &[]);
            let starts = range_of(x, longer, b, twice);
            let with_starts = x.op("Equal", &[n, twice], &[]);
            let none = x.scalar(dtype, 0.0);
            let starts = x.op("Where", &[with_starts, starts, none], &[]);
            let n_keys = past.n_keys(x, k, bias);
            Some(between(x, ends, Some(starts), n_keys))
        }
        2 if x.as_const(shape[1]) == Some(1) => None,
        2 | 3 => Some(raw(x, mask)?),
        _ => {
            let mut rows = x.count_to(s);
            if let Some(p) = past.length(x) {
                rows = x.op("Add", &[rows, p], &[]);
            }
            let mut mask = x.op("Gather", &[mask, rows], &[("axis", Attr::Int(2))]);
            if !matches!(past, Past::Shared { .. }) {
                let (zero, n_keys, axis) = (x.ints(&[0]), past.n_keys(x, k, bias), x.ints(&[3]));
                mask = x.op("Slice", &[mask, zero, n_keys, axis], &[]);
            }
            let zero = x.scalar(dtype, 0.0);
            Some(x.op("Greater", &[mask, zero], &[]))
        }
    })
}

/// How many elements of a head are rotated.
fn n_rotated(attrs: &Attrs, head: Option<i64>) -> i64 {
    attrs.int(ROTATED).filter(|&r| r != 0).or(head).unwrap_or(0)
}

/// How fast each pair of elements turns.
fn speeds(n: i64) -> Vec<f64> {
    (0..n / 2).map(|i| BASE.powf(-2.0 * i as f64 / n as f64)).collect()
}

/// Queries and keys turned by their positions, those after the past's.
fn rotate(x: &mut Expansion, [q, k]: [Value; 2], past: Past) -> Result<[Value; 2]> {
    let (input, weights) = (x.need(0)?, x.need(1)?);
    let dtype = x.tensor(input)?.0;
    let columns = x.tensor(weights)?.1[1];
    let heads = x.attrs().int(HEADS).unwrap_or(1);
    let hidden = match x.attrs().ints(SIZES) {
        Some(&[q, ..]) => Some(q),
        _ => x.as_const(columns).map(|w| w / 3),
    };
    let n = n_rotated(x.attrs(), hidden.map(|w| w / heads));
    let speeds = speeds(n);
    let speeds = x.constant(&from_f64s(F32, &[speeds.len()], &speeds));
    let (b, s) = (x.extent(input, 0), x.extent(input, 1));
    let mut positions = x.count_to(s);
    if let Some(p) = past.length(x) {
        positions = x.op("Add", &[positions, p], &[]);
    }
    let positions = x.cast(positions, F32);
    let positions = x.unsqueeze(positions, &[1]);
    let angles = x.op("Mul", &[positions, speeds], &[]);
    let half = x.ints(&[n / 2]);
    let all = x.concat(&[b, s, half], 0);
    let angles = x.op("Expand", &[angles, all], &[]);
    let [cos, sin] = ["Cos", "Sin"].map(|f| {
        let y = x.op(f, &[angles], &[]);
        x.cast(y, dtype)
    });
    let attrs = [("rotary_embedding_dim", Attr::Int(n))];
    Ok([q, k].map(|v| x.op("RotaryEmbedding", &[v, cos, sin], &attrs)))
}

fn bad(text: std::string::String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// Queries, keys and values: columns of `x · weights + bias`, where x is `[b, s, width]` and the others are operands 1 and 2.
pub(super) fn all_projected(c: &RefCtx, x: &Tensor, sizes: Option<&[i64]>, n: usize) -> Result<[Heads; 3]> {
    let w = c.input(1)?;
    let (&[b, s, width], &[rows, columns]) = (x.shape(), w.shape()) else {
        return Err(bad(format!("inputs {:?} and weights {:?}", x.shape(), w.shape())));
    };
    let bias = c.opt(BIAS).map(f64s).unwrap_or_else(|| vec![0.0; columns]);
    let sizes: Vec<usize> = match sizes {
        Some(v) => v.iter().filter_map(|&v| usize::try_from(v).ok()).collect(),
        None => vec![columns / 3; 3],
    };
    let fits = sizes.iter().sum::<usize>() == columns && sizes.iter().all(|s| s % n == 0);
    if !fits || rows != width || bias.len() != columns {
        return Err(bad(format!("inputs {:?}, weights {:?} and a bias of {}", x.shape(), w.shape(), bias.len())));
    }
    let (x, w) = (f64s(x), f64s(w));
    let of = |first: usize, size: usize| {
        let d = size / n;
        Heads::build([b, n, s, d], |[b, j, row, l]| {
            let column = first + j * d + l;
            let products = (0..width).map(|i| x[(b * s + row) * width + i] * w[i * columns + column]);
            reference::math::sum(products) + bias[column]
        })
    };
    Ok([of(0, sizes[0]), of(sizes[0], sizes[1]), of(sizes[0] + sizes[1], sizes[2])])
}

fn reference(c: &RefCtx) -> Result<Vec<Tensor>> {
    let n = c.attrs.int(HEADS).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let [mut q, mut k, v] = all_projected(c, c.input(0)?, c.attrs.ints(SIZES), n)?;
    let d = q.shape[3];
    let [b, _, s, _] = q.shape;
    let past = c.opt(PAST);
    let shared = is_shared(c.attrs, past.is_some());
    let halves = past.map(|t| -> Result<[Heads; 2]> {
        let &[2, b, h, p, d] = t.shape() else { return Err(bad(format!("a past {:?}", t.shape()))) };
        let v = f64s(t);
        let (key, value) = v.split_at(v.len() / 2);
        Ok([key, value].map(|v| Heads { v: v.into(), shape: [b, h, p, d] }))
    });
    let halves = halves.transpose()?;
    let before = match (&halves, shared) {
        (_, true) => c.opt(TAKEN).map_or(0, |t| usize::try_from(first_number(t)).unwrap_or(0)),
        (Some([key, _]), _) => key.shape[2],
        (None, _) => 0,
    };
    if c.attrs.int(ROTARY) == Some(1) {
        let speeds = speeds(n_rotated(c.attrs, i64::try_from(d).ok()));
        let angles: Vec<f64> = (0..s).flat_map(|i| speeds.iter().map(move |v| (before + i) as f64 * v)).collect();
        let table =
            |f: fn(f64) -> f64| from_f64s(F64, &[s, speeds.len()], &angles.iter().copied().map(f).collect::<Vec<_>>());
        let (cos, sin) = (table(f64::cos), table(f64::sin));
        let rows: Vec<i128> = (0..b).flat_map(|_| (0..s).map(|i| i as i128)).collect();
        (q, k) = (q.rotated(&rows, &cos, &sin, false)?, k.rotated(&rows, &cos, &sin, false)?);
    }
    let (keys, values) = match &halves {
        Some([pk, pv]) if shared => {
            let from = vec![before as i128; b];
            (k.within(pk, &from)?, v.within(pv, &from)?)
        }
        Some([pk, pv]) => (k.after(pk)?, v.after(pv)?),
        None => (k, v),
    };
    let scores = [b, n, s, keys.shape[2]];
    let (mask, bias) = (c.opt(MASK), c.opt(SCORE_BIAS));
    let megatron = mask.filter(|m| m.shape().len() == 4);
    let mask = mask.filter(|m| m.shape().len() != 4 && !(m.shape().len() == 2 && m.shape()[1] == 1));
    let n_keys = n_keys(scores[3], shared, [bias, mask]);
    let keep = Keep::of(mask, scores, n_keys)?;
    let bias = bias.map(|t| Added::of(t, scores, n_keys)).transpose()?;
    let square = megatron.map(|m| (f64s(m), m.shape()[3]));
    let (fill, total) = (f64::from(filter(c.attrs, FILTER)), before + s);
    let causal = c.attrs.int(UNIDIRECTIONAL) == Some(1);
    let added = |at: [usize; 4]| {
        let [b, _, row, key] = at;
        if key >= total || causal && key > before + row {
            return f64::NEG_INFINITY;
        }
        let of_square = square.as_ref().map_or(0.0, |(v, m)| {
            let i = (b * m + before + row) * m + key;
            if v.get(i).is_some_and(|&v| v > 0.0) { 0.0 } else { fill }
        });
        keep.added(at, fill) + of_square + bias.as_ref().map_or(0.0, |b| b.at(at))
    };
    let (y, _) = attend(&q, &keys, &values, scale(c.attrs, SCALE).map(f64::from), added)?;
    let dtype = c.input(0)?.dtype();
    let mut all = vec![y.merged(dtype)];
    if c.n_outs > 1 {
        let pair: Vec<f64> = keys.v.iter().chain(&values.v).copied().collect();
        let [b, h, t, d] = keys.shape;
        if values.shape != keys.shape {
            return Err(bad(format!("keys {:?} and values {:?} in one tensor", keys.shape, values.shape)));
        }
        all.push(from_f64s(dtype, &[2, b, h, t, d], &pair));
    }
    Ok(all)
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = softmax(scale · Q·Kᵀ + mask + attention_bias)·V per head, where Q, K and V are columns of input·weights + bias, K and V after
    // those of the past, and a masked key adds mask_filter_value
    OpDef {
        name: "Attention",
        domain: MICROSOFT,
        inputs: &[
            req("input", "T"),
            req("weights", "T"),
            opt("bias", "T"),
            opt("mask_index", "M"),
            opt("past", "T"),
            opt("attention_bias", "T"),
            opt("past_sequence_length", "M"),
        ],
        outputs: &[req("output", "T"), opt("present", "T")],
        attrs: &[
            attr("num_heads", AttrKind::IntReq),
            attr("unidirectional", AttrKind::Int(0)),
            attr("mask_filter_value", AttrKind::Float(-10000.0)),
            attr("scale", AttrKind::FloatOpt),
            attr("do_rotary", AttrKind::Int(0)),
            attr("past_present_share_buffer", AttrKind::Int(0)),
            attr("qkv_hidden_sizes", AttrKind::Ints),
            attr("rotary_embedding_dim", AttrKind::IntOpt),
        ],
        dtypes: &[("T", &[F32, F16, BF16]), ("M", &[I32])],
        infer,
        reference: Some(reference),
        lower: &[Expand(expand)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            "[2,3,2];[2,24];[24];i32[2]{2,3} num_heads=2 scale=0.1 outs=2",
            "[2,3,2];[2,24];_;i32[4]{2,3,1,0} num_heads=2 scale=0.1",
            "[2,3,2];[2,24];[24];i32[2]{0,3} num_heads=2 mask_filter_value=-300",
            "[2,3,2];[2,24];[24];i32[8]{2,3,0,3,6,0,3,6} num_heads=4 scale=0.1",
            "[2,3,2];[2,28];[28];i32[2,3]{1,0,1,0,1,1} num_heads=2 scale=0.1 qkv_hidden_sizes=[8,8,12] mask_filter_value=-2",
            "[2,3,2];[2,24];[24];i32[2,1]{1,0};_;[1,2,3,3] num_heads=2 scale=0.1 unidirectional=1 outs=2",
            "[2,3,2];[2,24];[24];i32[1,1]{0};_;[2,1,3,3] num_heads=2 scale=0.1",
            "[2,3,2];[2,24];[24];i32[2,3,7]{1,0,1,1,1};[2,2,2,4,4];[2,2,3,7] num_heads=2 scale=0.1 outs=2",
            "[2,3,2];[2,24];[24];i32[2,1,9,9]{1,1,0,1,1};[2,2,2,4,4] num_heads=2 scale=0.1 unidirectional=1 outs=2",
            "[2,3,2];[2,24];[24];i32[2,1,9,9]{1,1,0,1,1};[2,2,2,9,4];_;i32[1]{4} num_heads=2 scale=0.1 past_present_share_buffer=1 outs=2",
            "[2,1,2];[2,24];[24];i32[2]{5,3};[2,2,2,9,4];_;i32[]{4} num_heads=2 scale=0.1 past_present_share_buffer=1 unidirectional=1 outs=2",
            "[2,3,2];[2,24];[24];_;[2,2,2,4,4] num_heads=2 scale=0.1 unidirectional=1 do_rotary=1 qkv_hidden_sizes=[8,8,8] outs=2",
            "[2,3,2];[2,48];[48] num_heads=2 scale=0.1 do_rotary=1 rotary_embedding_dim=4",
        ],
        ..ROW
    },
];
