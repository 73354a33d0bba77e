//! MultiHeadAttention and the attention of a decoder's step: queries, keys and values come projected.

use super::super::row::ROW;
use super::MICROSOFT;
use super::attend::{
    Attend, Keep, Past, between, filter, first_number, masked, merge, n_keys, number, range_of, raw, scale, split,
    with_bias,
};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::heads::{Added, Heads, attend};
use tensor::DType::{self, BF16, F16, F32, I32};
use tensor::{Diagnostic, DimId, ErrorKind, Result, Tensor};

/// Which operand is what; the past's values follow its keys. Queries, keys and values are the first three.
struct Slots {
    bias: usize,
    mask: usize,
    score_bias: usize,
    past: usize,
    taken: usize,
    beams: usize,
    /// Attributes.
    filter: usize,
    scale: usize,
    unidirectional: Option<usize>,
    shares: Option<usize>,
}

const MHA: Slots = Slots {
    bias: 3,
    mask: 4,
    score_bias: 5,
    past: 6,
    taken: 8,
    beams: 9,
    filter: 1,
    scale: 2,
    unidirectional: Some(3),
    shares: None,
};
const STEP: Slots = Slots {
    bias: 10,
    mask: 3,
    score_bias: 4,
    past: 5,
    taken: 7,
    beams: 9,
    filter: 1,
    scale: 2,
    unidirectional: None,
    shares: Some(3),
};
const HEADS: usize = 0;

impl Slots {
    fn of(name: &str) -> &'static Slots {
        if name == "MultiHeadAttention" { &MHA } else { &STEP }
    }
    /// Whether the past is a buffer that the node writes into.
    fn is_shared(&self, attrs: &crate::attrs::Attrs, has: impl Fn(usize) -> bool) -> bool {
        has(self.past) && self.shares.map_or_else(|| has(self.taken), |i| attrs.int(i) == Some(1))
    }
}

/// Extents of the heads.
struct Extents {
    b: DimId,
    s: DimId,
    l: DimId,
    d: DimId,
    e: DimId,
    h: DimId,
}

/// What the operands' ranks and shapes say; nothing while a rank is unknown.
fn extents(c: &mut InferCtx, n: i64) -> Result<Option<Extents>> {
    let Some(q) = c.shape(0) else { return Ok(None) };
    let h = c.dims.constant(n);
    let step = c.def.name != "MultiHeadAttention";
    let divided = "num_heads divides the hidden size";
    let (b, s) = (q[0], q.get(1).copied().unwrap_or(h));
    let own = |d, e| Some(Extents { b, s, l: s, d, e, h });
    match (q.len(), c.has(1), c.has(2)) {
        (5, false, false) if !step => {
            let three = c.dims.constant(3);
            c.require_eq(q[2], h, "num_heads is that of packed queries, keys and values")?;
            c.require_eq(q[3], three, "packed queries, keys and values are three")?;
            return Ok(own(q[4], q[4]));
        }
        (3, false, false) if step => {
            let hidden = c.part(q[2], 3, "packed queries, keys and values are three")?;
            let d = c.part(hidden, n, divided)?;
            return Ok(own(d, d));
        }
        (3, true, _) => {}
        _ => return Err(c.misshapen(0, if step { STEP_QUERIES } else { MHA_QUERIES })),
    }
    let d = c.part(q[2], n, divided)?;
    let Some(k) = c.shape(1) else { return Ok(None) };
    if let Some(&kb) = k.first() {
        c.require_eq(kb, b, "queries and keys have one batch")?;
    }
    if k.len() == 5 && !c.has(2) && !step {
        let two = c.dims.constant(2);
        for (x, y) in [(k[2], h), (k[3], two), (k[4], d)] {
            c.require_eq(x, y, "packed keys and values are [b, l, num_heads, 2, d]")?;
        }
        return Ok(Some(Extents { b, s, l: k[1], d, e: d, h }));
    }
    let Some(v) = c.shape(2) else {
        return if c.has(2) {
            Ok(None)
        } else {
            Err(c.misshapen(1, "[b, l, num_heads, 2, d], where no value is given"))
        };
    };
    if k.len() != v.len() || !(3..=4).contains(&k.len()) {
        return Err(c.misshapen(1, "[b, l, h·d] and [b, h, l, d], with as many axes as value"));
    }
    c.require_eq(v[0], b, "queries and values have one batch")?;
    if k.len() == 4 {
        for (x, y) in [(k[1], h), (v[1], h), (k[3], d), (v[2], k[2])] {
            c.require_eq(x, y, "keys and values are [b, num_heads, l, d]")?;
        }
        return Ok(Some(Extents { b, s, l: k[2], d, e: v[3], h }));
    }
    c.require_eq(k[2], q[2], "queries and keys are equally wide")?;
    c.require_eq(v[1], k[1], "there are as many keys as values")?;
    let e = c.part(v[2], n, "num_heads divides the width of values")?;
    Ok(Some(Extents { b, s, l: k[1], d, e, h }))
}

const MHA_QUERIES: &str = "[b, s, h·d] with keys and [b, s, num_heads, 3, d] without keys and values";
const STEP_QUERIES: &str = "[b, 1, h·d] with keys and [b, 1, 3·h·d] without keys and values";

fn infer(c: &mut InferCtx) -> Result<()> {
    let slots = Slots::of(c.def.name);
    let n = c.heads(HEADS, "num_heads")?;
    let name = c.def.name;
    if c.has(slots.past) != c.has(slots.past + 1) {
        return Err(c.error(ErrorKind::Malformed, format!("{name} needs past_key and past_value together")));
    }
    let shared = slots.is_shared(c.attrs, |i| c.has(i));
    if shared && !c.has(slots.taken) {
        let text = format!("{name}: past_present_share_buffer=1 needs past_sequence_length");
        return Err(c.error(ErrorKind::Malformed, text));
    }
    if c.has(slots.beams) && c.has(slots.past) && !shared {
        let text = format!("{name}: cache_indirection needs a past in a buffer that is shared with the present");
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let dtype = c.dtype(0)?;
    let Some(x) = extents(c, n)? else {
        (0..4).for_each(|i| c.set_unranked(i, dtype));
        return Ok(());
    };
    if let Some(k) = c.shape(1)
        && k.len() == 4
        && c.has(slots.past)
    {
        return Err(c.misshapen(1, "[b, l, h·d], where there is a past"));
    }
    if slots.unidirectional.is_none() {
        let one = c.dims.constant(1);
        c.require_eq(x.s, one, "a step has one query")?;
    }
    if let Some(bias) = c.shape(slots.bias) {
        let (d, e) = (c.dims.mul(x.h, x.d), c.dims.mul(x.h, x.e));
        let all = c.dims.add(d, d);
        let all = c.dims.add(all, e);
        match *bias.as_slice() {
            [n] => c.require_eq(n, all, "the bias is over queries, keys and values")?,
            _ => return Err(c.misshapen(slots.bias, "[h·d + h·d + h·e]")),
        }
    }
    let (total, present) = past_extents(c, slots, &x, shared)?;
    let keys = if shared { present } else { total };
    check_mask(c, slots, &x, keys, shared)?;
    c.require_score_bias(slots.score_bias, &[x.b, x.h, x.s, keys], shared)?;
    if let (Some(mask), Some(bias)) = (c.shape(slots.mask), c.shape(slots.score_bias))
        && mask.len() > 1
    {
        c.require_eq(mask[mask.len() - 1], bias[3], "the mask and attention_bias are over the same keys")?;
    }
    let hidden = c.dims.mul(x.h, x.e);
    c.set(0, dtype, [x.b, x.s, hidden]);
    c.set(1, dtype, [x.b, x.h, present, x.d]);
    c.set(2, dtype, [x.b, x.h, present, x.e]);
    c.set(3, dtype, [x.b, x.h, x.s, total]);
    Ok(())
}

/// How many keys there are, and how many positions the present has.
fn past_extents(c: &mut InferCtx, slots: &Slots, x: &Extents, shared: bool) -> Result<(DimId, DimId)> {
    let (Some(pk), Some(pv)) = (c.shape(slots.past), c.shape(slots.past + 1)) else { return Ok((x.l, x.l)) };
    for (i, p, d) in [(slots.past, &pk, x.d), (slots.past + 1, &pv, x.e)] {
        if p.len() != 4 {
            return Err(c.misshapen(i, "[b, num_heads, p, d]"));
        }
        for (a, b) in [(p[0], x.b), (p[1], x.h), (p[2], pk[2]), (p[3], d)] {
            c.require_eq(a, b, &format!("{} is [b, num_heads, p, d]", c.def.inputs[i].name))?;
        }
    }
    if !shared {
        let total = c.dims.add(pk[2], x.l);
        return Ok((total, total));
    }
    c.require_single(slots.taken, "past_sequence_length")?;
    if let Some(i) = c.shape(slots.beams) {
        let [groups, beams, m] = *i.as_slice() else { return Err(c.misshapen(slots.beams, "[b / beams, beams, m]")) };
        let all = c.dims.mul(groups, beams);
        c.require_eq(all, x.b, "cache_indirection is over all samples")?;
        c.require_eq(m, pk[2], "cache_indirection is over the positions of the buffer")?;
    }
    // Only scores that are shown have the taken part's extent.
    let n_outs = c.n_outs;
    let Some(taken) = c.taken(slots.taken, n_outs > 3) else { return Ok((pk[2], pk[2])) };
    let total = c.dims.add(taken, x.l);
    c.require_within(total, pk[2], "the buffer has room for what is new")?;
    Ok((total, pk[2]))
}

/// A mask is `[b]`, `[3·b + 2]`, `[b, t]` or `[b, s, t]`.
fn check_mask(c: &mut InferCtx, slots: &Slots, x: &Extents, keys: DimId, shared: bool) -> Result<()> {
    let Some(mask) = c.shape(slots.mask) else { return Ok(()) };
    let over_keys = |c: &mut InferCtx, t| match shared {
        true => c.require_within(t, keys, "the mask is over no more keys than the buffer"),
        false => c.require_eq(t, keys, "the mask is over all keys"),
    };
    match *mask.as_slice() {
        [n] => {
            // One of the two: a product of differences is 0. The lengths come first in both.
            let (zero, two, three) = (c.dims.constant(0), c.dims.constant(2), c.dims.constant(3));
            let with_starts = c.dims.mul(x.b, three);
            let with_starts = c.dims.add(with_starts, two);
            let (a, b) = (c.dims.sub(n, x.b), c.dims.sub(n, with_starts));
            let off = c.dims.mul(a, b);
            c.require_eq(off, zero, "a mask of one axis is [b] or [3·b + 2]")
        }
        [b, t] => {
            c.require_eq(b, x.b, "the mask has a row per sample")?;
            over_keys(c, t)
        }
        [b, s, t] => {
            c.require_eq(b, x.b, "the mask has rows per sample")?;
            c.require_eq(s, x.s, "the mask has a row per query")?;
            over_keys(c, t)
        }
        _ => Err(c.misshapen(slots.mask, "[b], [3·b + 2], [b, t], [b, s, t]")),
    }
}

fn expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let slots = Slots::of(x.def().name);
    let n = x.attrs().int(HEADS).unwrap_or(1);
    let [q, k, v] = heads(x, slots, n)?;
    let shared = slots.is_shared(x.attrs(), |i| x.input(i).is_some());
    let past = match (x.input(slots.past), x.input(slots.past + 1)) {
        (Some(key), Some(value)) if shared => {
            let taken = x.need(slots.taken)?;
            Past::Shared { key, value, n: number(x, taken), beams: x.input(slots.beams) }
        }
        (Some(key), Some(value)) => Past::Grown(key, value),
        _ => Past::None,
    };
    let first = x.need(0)?;
    let (dtype, queries) = x.tensor(first)?;
    let square = match x.input(1).map(|k| x.tensor(k)).transpose()? {
        Some((_, k)) => x.same(queries[1], if k.len() == 4 { k[2] } else { k[1] }),
        None => true,
    };
    let (mut bias, mut of_scores) = (x.input(slots.score_bias), dtype);
    if let Some(mask) = x.input(slots.mask) {
        let keep = if x.tensor(mask)?.1.len() == 1 {
            let (zero, b) = (x.ints(&[0]), x.extent(q, 0));
            let ends = range_of(x, mask, zero, b);
            let n_keys = past.n_keys(x, k, bias);
            between(x, ends, None, n_keys)
        } else {
            raw(x, mask)?
        };
        let fill = filter(x.attrs(), slots.filter);
        (bias, of_scores) = masked(x, keep, bias, dtype, fill);
    }
    let causal = slots.unidirectional.is_some_and(|i| x.attrs().int(i) == Some(1));
    let scale = scale(x.attrs(), slots.scale);
    let a = Attend { q, k, v, past, bias, scale, causal, dtype, of_scores, square }.expand(x);
    Ok(vec![merge(x, a.y), a.key, a.value, a.scores])
}

/// Queries, keys and values `[b, h, s, d]` with their bias.
fn heads(x: &mut Expansion, slots: &Slots, n: i64) -> Result<[Value; 3]> {
    let q = x.need(0)?;
    let rank = x.tensor(q)?.1.len();
    let bias = x.input(slots.bias);
    let (q, k, v) = match (rank, x.input(1), x.input(2)) {
        (5, ..) => {
            let bias = bias.map(|b| x.reshape(b, &[3, n, -1]));
            return Ok([0, 1, 2].map(|i| packed(x, q, i, bias)));
        }
        (_, None, _) => {
            let third = x.op_opt("Split", &[Some(q), None], &[("axis", int(2)), ("num_outputs", int(3))], 3);
            (third[0], third[1], third[2])
        }
        (_, Some(k), None) => {
            let hidden = x.extent(q, 2);
            let q = plus(x, q, bias, |x, b| {
                let zero = x.ints(&[0]);
                range_of(x, b, zero, hidden)
            });
            let of_pair = bias.map(|b| {
                let twice = x.op("Add", &[hidden, hidden], &[]);
                let end = x.op("Add", &[twice, hidden], &[]);
                let b = range_of(x, b, hidden, end);
                x.reshape(b, &[2, n, -1])
            });
            return Ok([split(x, q, n), packed(x, k, 0, of_pair), packed(x, k, 1, of_pair)]);
        }
        (_, Some(k), Some(v)) => (q, k, v),
    };
    let in_heads = x.input(1).map(|k| x.tensor(k)).transpose()?.is_some_and(|k| k.1.len() == 4);
    let hidden = x.extent(q, 2);
    let q = plus(x, q, bias, |x, b| {
        let zero = x.ints(&[0]);
        range_of(x, b, zero, hidden)
    });
    let q = split(x, q, n);
    // Those of a cross attention come with their bias.
    if in_heads {
        return Ok([q, k, v]);
    }
    let twice = x.op("Add", &[hidden, hidden], &[]);
    let k = plus(x, k, bias, |x, b| range_of(x, b, hidden, twice));
    let v = plus(x, v, bias, |x, b| {
        let end = x.extent(b, 0);
        range_of(x, b, twice, end)
    });
    Ok([q, split(x, k, n), split(x, v, n)])
}

fn int(v: i64) -> crate::attrs::Attr {
    crate::attrs::Attr::Int(v)
}

fn plus(x: &mut Expansion, v: Value, bias: Option<Value>, part: impl FnOnce(&mut Expansion, Value) -> Value) -> Value {
    let Some(bias) = bias else { return v };
    let bias = part(x, bias);
    x.op("Add", &[v, bias], &[])
}

/// Part `i` of `[b, s, h, parts, d]`, with that of a bias `[parts, h, d]`, as `[b, h, s, d]`.
fn packed(x: &mut Expansion, v: Value, i: i64, bias: Option<Value>) -> Value {
    let part = x.slice(v, 3, i, i + 1);
    let part = x.squeeze(part, &[3]);
    let part = plus(x, part, bias, |x, b| {
        let b = x.slice(b, 0, i, i + 1);
        x.squeeze(b, &[0])
    });
    x.transpose(part, &[0, 2, 1, 3])
}

fn reference(c: &RefCtx) -> Result<Vec<Tensor>> {
    let slots = Slots::of(c.def.name);
    let n = c.attrs.int(HEADS).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let first = c.input(0)?;
    let third = |i: usize| -> Result<Heads> {
        let all = Heads::split(first, 3 * n)?;
        let [b, h, s, d] = all.shape;
        Ok(Heads::build([b, h / 3, s, d], |[b, j, s, d]| all.at([b, i * n + j, s, d])))
    };
    let four = |t: &Tensor| if t.shape().len() == 4 { Heads::of(t) } else { Heads::split(t, n) };
    let (q, k, v) = match (first.shape().len(), c.opt(1), c.opt(2)) {
        (5, ..) => (Heads::part(first, 0)?, Heads::part(first, 1)?, Heads::part(first, 2)?),
        (_, None, _) => (third(0)?, third(1)?, third(2)?),
        (_, Some(k), None) => (Heads::split(first, n)?, Heads::part(k, 0)?, Heads::part(k, 1)?),
        (_, Some(k), Some(v)) => (Heads::split(first, n)?, four(k)?, four(v)?),
    };
    let (bias, hidden) = (c.opt(slots.bias), n * q.shape[3]);
    let of_keys = bias.filter(|_| c.opt(1).is_none_or(|k| k.shape().len() != 4));
    let wide = 2 * hidden + n * v.shape[3];
    if let Some(b) = bias
        && b.shape() != [wide]
    {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("a bias {:?} where {wide} are biased", b.shape())));
    }
    let q = with_bias(q, bias, 0, hidden)?;
    let (k, v) = (with_bias(k, of_keys, 1, hidden)?, with_bias(v, of_keys, 2, hidden)?);
    let [batch, _, s, _] = q.shape;
    let l = k.shape[2];
    let shared = slots.is_shared(c.attrs, |i| c.opt(i).is_some());
    // Keys and values to attend over, what becomes of the past, and how many positions lie before.
    let (keys, values, present, past) = match (c.opt(slots.past), c.opt(slots.past + 1)) {
        (Some(pk), Some(pv)) => {
            let (pk, pv) = (Heads::of(pk)?, Heads::of(pv)?);
            if shared {
                let taken = c.opt(slots.taken).map_or(0, first_number);
                let from = vec![taken; batch];
                let seen = |cache: &Heads| of_beams(cache, c.opt(slots.beams));
                let present = (k.within(&pk, &from)?, v.within(&pv, &from)?);
                let (keys, values) = (k.within(&seen(&pk), &from)?, v.within(&seen(&pv), &from)?);
                (keys, values, present, usize::try_from(taken).unwrap_or(0))
            } else {
                let all = (k.after(&pk)?, v.after(&pv)?);
                (all.0.clone(), all.1.clone(), all, pk.shape[2])
            }
        }
        _ => (k.clone(), v.clone(), (k, v), 0),
    };
    let total = past + l;
    let of_scores = [batch, n, s, keys.shape[2]];
    let n_keys = n_keys(keys.shape[2], shared, [c.opt(slots.score_bias), c.opt(slots.mask)]);
    let keep = Keep::of(c.opt(slots.mask), of_scores, n_keys)?;
    let score_bias = c.opt(slots.score_bias).map(|t| Added::of(t, of_scores, n_keys)).transpose()?;
    let fill = filter(c.attrs, slots.filter).into();
    let causal = slots.unidirectional.is_some_and(|i| c.attrs.int(i) == Some(1));
    let least = super::attend::least(first.dtype());
    let added = |at: [usize; 4]| {
        if at[3] >= total || causal && at[3] > past + at[2] && at[2] + 1 < s {
            return f64::NEG_INFINITY;
        }
        keep.added(at, fill) + score_bias.as_ref().map_or(0.0, |b| b.at(at))
    };
    let scale = scale(c.attrs, slots.scale).map(f64::from);
    let (y, scores) = attend(&q, &keys, &values, scale, added)?;
    let [b, h, s, all] = scores.shape;
    let total = total.min(all);
    let shown = Heads::build([b, h, s, total], |at| if causal { scores.at(at).max(least) } else { scores.at(at) });
    let dtype = first.dtype();
    let mut all = vec![y.merged(dtype), present.0.tensor(dtype), present.1.tensor(dtype), shown.tensor(dtype)];
    all.truncate(c.n_outs);
    Ok(all)
}

/// A cache with each position taken from the beam that `[b / beams, beams, m]` names.
fn of_beams(cache: &Heads, beams: Option<&Tensor>) -> Heads {
    let Some(beams) = beams else { return cache.clone() };
    let &[_, width, m] = beams.shape() else { return cache.clone() };
    let named = reference::data::ints(beams);
    Heads::build(cache.shape, |[b, h, t, d]| {
        let beam = named.get(b * m + t).and_then(|&beam| usize::try_from(beam).ok()).unwrap_or(0);
        cache.at([(b / width.max(1) * width + beam).min(cache.shape[0] - 1), h, t, d])
    })
}

const T: &[DType] = &[F32, F16, BF16];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = softmax(scale · Q·Kᵀ + mask + attention_bias)·V per head, where a masked key adds mask_filter_value
    OpDef {
        name: "MultiHeadAttention",
        domain: MICROSOFT,
        inputs: &[
            req("query", "T"),
            opt("key", "T"),
            opt("value", "T"),
            opt("bias", "T"),
            opt("key_padding_mask", "M"),
            opt("attention_bias", "T"),
            opt("past_key", "T"),
            opt("past_value", "T"),
            opt("past_sequence_length", "M"),
            opt("cache_indirection", "M"),
        ],
        outputs: &[req("output", "T"), opt("present_key", "T"), opt("present_value", "T"), opt("qk", "QK")],
        attrs: &[
            attr("num_heads", AttrKind::IntReq),
            attr("mask_filter_value", AttrKind::Float(-10000.0)),
            attr("scale", AttrKind::FloatOpt),
            attr("unidirectional", AttrKind::Int(0)),
        ],
        dtypes: &[("T", T), ("QK", T), ("M", &[I32])],
        infer,
        reference: Some(reference),
        lower: &[Expand(expand)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            "[2,3,8];[2,5,8];[2,5,12];[28] num_heads=2",
            "[2,3,2,3,4];_;_;[24] num_heads=2 unidirectional=1 outs=4",
            "[2,3,8];[2,5,2,2,4];_;[24];i32[2]{3,5} num_heads=2 scale=0.3",
            "[2,3,8];[2,5,8];[2,5,8];_;i32[8]{2,5,0,3,6,0,2,7} num_heads=4 outs=4",
            "[2,3,8];[2,5,8];[2,5,8];_;i32[2,5]{1,1,0,1,2,-1,1};[1,2,3,5] num_heads=2 mask_filter_value=-3 outs=4",
            "[2,3,8];[2,5,8];[2,5,8];_;i32[2,3,5]{1,0,1,0,0,1,1};[2,1,3,5] num_heads=2 outs=4",
            "[2,3,8];[2,3,8];[2,3,6];_;_;[1,1,3,7];[2,2,4,4];[2,2,4,3] num_heads=2 unidirectional=1 outs=4",
            "[2,1,8];[2,1,8];[2,1,8];_;i32[2,4]{0,1,1,1,1};_;[2,2,3,4];[2,2,3,4] num_heads=2 outs=3",
            "[2,3,8];[2,5,8];[2,5,8];[24];i32[2]{4,5};_;[2,2,2,4];[2,2,2,4] num_heads=2 unidirectional=1 outs=4",
            "[2,3,8];[2,3,8];[2,3,8];_;_;_;[2,2,9,4];[2,2,9,4];i32[1]{2} num_heads=2 unidirectional=1 outs=4",
            "[2,3,8];[2,3,8];[2,3,8];_;i32[2,5]{1,0,1,1};[2,2,3,5];[2,2,9,4];[2,2,9,4];i32[]{2} num_heads=2 outs=3",
            "[4,1,8];[4,1,8];[4,1,8];_;i32[4]{3,5,5,4};_;[4,2,7,4];[4,2,7,4];i32[1]{4};i32[2,2,7]{0,1,1,0,9,-1,7} num_heads=2 outs=4",
            "[2,3,8];[2,2,5,4];[2,2,5,4];[24];i32[2,5]{1,0,1,1} num_heads=2 outs=4",
            "[2,1,8];[2,5,8];[2,5,8] num_heads=2 unidirectional=1",
            "[2,3,8];[2,3,8];[2,3,8];_;i32[2]{0,3} num_heads=2 mask_filter_value=-2 unidirectional=1",
            "[2,3,8];[2,3,8];[2,3,8];_;i32[2]{0,3} num_heads=2 mask_filter_value=-300",
            "[2,3,8];[2,0,8];[2,0,8] num_heads=2",
            "[0,3,8];[0,5,8];[0,5,8];_;i32[0] num_heads=2",
        ],
        ..ROW
    },
    // The same for one query, whose key and value go into the past
    OpDef {
        name: "DecoderMaskedMultiHeadAttention",
        domain: MICROSOFT,
        inputs: &[
            req("query", "T"),
            opt("key", "T"),
            opt("value", "T"),
            opt("mask_index", "M"),
            opt("attention_bias", "T"),
            opt("past_key", "T"),
            opt("past_value", "T"),
            opt("past_sequence_length", "M"),
            opt("beam_width", "M"),
            opt("cache_indirection", "M"),
            opt("bias", "T"),
        ],
        outputs: &[req("output", "T"), opt("present_key", "T"), opt("present_value", "T"), opt("qk", "QK")],
        attrs: &[
            attr("num_heads", AttrKind::IntReq),
            attr("mask_filter_value", AttrKind::Float(-10000.0)),
            attr("scale", AttrKind::FloatOpt),
            attr("past_present_share_buffer", AttrKind::Int(0)),
            attr("output_qk", AttrKind::Int(0)),
        ],
        dtypes: &[("T", T), ("QK", T), ("M", &[I32])],
        infer,
        reference: Some(reference),
        lower: &[Expand(expand)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            "[2,1,8];[2,1,8];[2,1,8];i32[2,4]{1,0,1,1};_;[2,2,7,4];[2,2,7,4];i32[1]{3};_;_;[24] num_heads=2 past_present_share_buffer=1 output_qk=1 outs=4",
            "[2,1,24];_;_;_;[1,2,1,4];[2,2,7,4];[2,2,7,4];i32[]{3} num_heads=2 past_present_share_buffer=1 scale=0.4 outs=3",
            "[2,1,8];[2,1,8];[2,1,8];_;_;[2,2,3,4];[2,2,3,4];i32[1]{3} num_heads=2 outs=3",
            "[2,1,8];[2,2,5,4];[2,2,5,4];i32[2,5]{1,0,1,1} num_heads=2 mask_filter_value=-4",
            "[4,1,8];[4,1,8];[4,1,8];_;_;[4,2,7,4];[4,2,7,4];i32[1]{4};i32[1]{2};i32[2,2,7]{0,1,1,0,9,-1,7} num_heads=2 past_present_share_buffer=1 outs=3",
        ],
        ..ROW
    },
];
