//! Attention over sequences of several lengths without their padding.

use super::super::row::ROW;
use super::attend::{merge, range_of, scale, split, with_bias};
use super::padding::{M, T, places, require_places, restore};
use super::{MICROSOFT, float};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::data::{f64s, from_f64s, ints};
use reference::heads::{Added, Heads, attend, unpack};
use tensor::DType::{self, I64};
use tensor::{Diagnostic, DimId, ErrorKind, Result, Tensor};

fn bad(text: std::string::String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// Queries, keys and values come projected.
const MHA: &str = "PackedMultiHeadAttention";

/// Elements of a head of queries and keys and of values; nothing while a rank is unknown.
fn head_sizes(c: &mut InferCtx, n: i64) -> Result<Option<(DimId, DimId)>> {
    let divided = "num_heads divides the hidden size";
    let Some(x) = c.shape(0) else { return Ok(None) };
    if c.def.name == MHA {
        if x.len() == 4 && !c.has(1) && !c.has(2) {
            let (h, three) = (c.dims.constant(n), c.dims.constant(3));
            c.require_eq(x[1], h, "packed queries, keys and values are [tokens, num_heads, 3, d]")?;
            c.require_eq(x[2], three, "packed queries, keys and values are [tokens, num_heads, 3, d]")?;
            return Ok(Some((x[3], x[3])));
        }
        if x.len() != 2 || !c.has(1) || !c.has(2) {
            let text = "[tokens, h·d] with keys and values and [tokens, num_heads, 3, d] without";
            return Err(c.misshapen(0, text));
        }
        let (Some(k), Some(v)) = (c.shape(1), c.shape(2)) else { return Ok(None) };
        let (&[kn, kd], &[vn, vd]) = (k.as_slice(), v.as_slice()) else {
            return Err(c.misshapen(1, "[tokens, h·d], as value is"));
        };
        for (a, b) in [(kn, x[0]), (vn, x[0]), (kd, x[1])] {
            c.require_eq(a, b, "queries, keys and values are of the same tokens")?;
        }
        return Ok(Some((c.part(x[1], n, divided)?, c.part(vd, n, divided)?)));
    }
    let Some(w) = c.shape(1) else { return Ok(None) };
    let (&[_, width], &[rows, columns]) = (x.as_slice(), w.as_slice()) else {
        return Err(c.misshapen(0, "[tokens, input_hidden_size], and weights have two axes"));
    };
    c.require_eq(rows, width, "weights have a row for each element of the input")?;
    super::attention::head_sizes(c, c.attrs.ints(2).map(<[i64]>::to_vec), n, columns).map(Some)
}

fn infer_attention(c: &mut InferCtx) -> Result<()> {
    let (n, dtype) = (c.heads(0, "num_heads")?, c.dtype(0)?);
    let mha = c.def.name == MHA;
    let fill = if mha { c.attrs.float(2) } else { None };
    if fill.is_some_and(|f| f > -1000.0) {
        let text = format!(
            "{MHA}: mask_filter_value={} lets padding count, which is not among the tokens",
            fill.unwrap_or(0.0)
        );
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let (bias, offsets) = if mha { (3, 4) } else { (2, 3) };
    let (ends, score_bias) = (offsets + 1, offsets + 2);
    let (Some((d, e)), Some(x)) = (head_sizes(c, n)?, c.shape(0)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let h = c.dims.constant(n);
    let (hidden, of_values) = (c.dims.mul(h, d), c.dims.mul(h, e));
    match c.shape(bias).as_deref() {
        Some(&[k]) => {
            let all = c.dims.add(hidden, hidden);
            let all = c.dims.add(all, of_values);
            c.require_eq(k, all, "the bias is over queries, keys and values")?;
        }
        Some(_) => return Err(c.misshapen(bias, "[h·d + h·d + h·e]")),
        None => {}
    }
    if let Some((b, s)) = require_places(c, offsets, x[0])? {
        match c.shape(ends).as_deref() {
            Some(&[k]) => {
                let one = c.dims.constant(1);
                let all = c.dims.add(b, one);
                c.require_eq(k, all, "there is an end of each sequence after a 0")?;
            }
            Some(_) => return Err(c.misshapen(ends, "[b + 1]")),
            None => {}
        }
        c.require_score_bias(score_bias, &[b, h, s, s], false)?;
    }
    c.set(0, dtype, [x[0], of_values]);
    Ok(())
}

fn expand_attention(x: &mut Expansion) -> Result<Vec<Value>> {
    let n = x.attrs().int(0).unwrap_or(1);
    let mha = x.def().name == MHA;
    let first = x.need(0)?;
    let (dtype, shape) = x.tensor(first)?;
    let (bias, offsets) = if mha { (x.input(3), x.need(4)?) } else { (x.input(2), x.need(3)?) };
    let (ends, score_bias) = if mha { (x.need(5)?, x.input(6)) } else { (x.need(4)?, x.input(5)) };
    let tokens = x.extent(first, 0);
    let parts: [Value; 3] = if mha && shape.len() == 4 {
        let bias = bias.map(|b| x.reshape(b, &[3, n, -1]));
        let (h, d) = (x.extent(first, 1), x.extent(first, 3));
        let hidden = x.op("Mul", &[h, d], &[]);
        [0, 1, 2].map(|i| {
            let mut part = x.slice(first, 2, i, i + 1);
            part = x.squeeze(part, &[2]);
            if let Some(b) = bias {
                let b = x.slice(b, 0, i, i + 1);
                let b = x.squeeze(b, &[0]);
                part = x.op("Add", &[part, b], &[]);
            }
            x.reshape_to(part, &[tokens, hidden])
        })
    } else if mha {
        let (k, v) = (x.need(1)?, x.need(2)?);
        let hidden = x.extent(first, 1);
        let twice = x.op("Add", &[hidden, hidden], &[]);
        match bias {
            None => [first, k, v],
            Some(b) => {
                let (zero, end) = (x.ints(&[0]), x.extent(b, 0));
                let ranges = [(first, zero, hidden), (k, hidden, twice), (v, twice, end)];
                ranges.map(|(v, from, to)| {
                    let b = range_of(x, b, from, to);
                    x.op("Add", &[v, b], &[])
                })
            }
        }
    } else {
        let weights = x.need(1)?;
        let mut all = x.op("MatMul", &[first, weights], &[]);
        if let Some(b) = bias {
            all = x.op("Add", &[all, b], &[]);
        }
        let sizes = x.attrs().ints(2).map(<[i64]>::to_vec);
        let parts = super::attention::parts(x, all, sizes, 1);
        [parts[0], parts[1], parts[2]]
    };
    let [q, k, v] = parts.map(|p| {
        let p = restore(x, p, offsets, dtype);
        split(x, p, n)
    });
    // Sequences end where their tokens do.
    let (zero, one, end) = (x.ints(&[0]), x.ints(&[1]), x.extent(ends, 0));
    let last = x.op("Sub", &[end, one], &[]);
    let (to, from) = (range_of(x, ends, one, end), range_of(x, ends, zero, last));
    let lengths = x.op("Sub", &[to, from], &[]);
    let lengths = x.cast(lengths, I64);
    let attrs: Vec<(&str, Attr)> = scale(x.attrs(), 1).map(|s| ("scale", float(s))).into_iter().collect();
    let ins = [Some(q), Some(k), Some(v), score_bias, None, None, Some(lengths)];
    let y = x.op_opt("Attention", &ins, &attrs, 1)[0];
    let y = merge(x, y);
    let (b, s, hidden) = (x.extent(y, 0), x.extent(y, 1), x.extent(y, 2));
    let all = x.op("Mul", &[b, s], &[]);
    let y = x.reshape_to(y, &[all, hidden]);
    let at = places(x, offsets, tokens);
    Ok(vec![x.op("Gather", &[y, at], &[])])
}

fn attention_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let n = c.attrs.int(0).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let mha = c.def.name == MHA;
    let first = c.input(0)?;
    let (dtype, tokens) = (first.dtype(), first.shape()[0]);
    let (bias, offsets) = if mha { (c.opt(3), c.input(4)?) } else { (c.opt(2), c.input(3)?) };
    let (ends, score_bias) = if mha { (c.input(5)?, c.opt(6)) } else { (c.input(4)?, c.opt(5)) };
    // Heads [1, h, tokens, d], with their bias.
    let one = |t: &Tensor| match *t.shape() {
        [k, hidden] => Heads::split(&t.reshaped(&[1, k, hidden]), n),
        _ => Err(bad(format!("{:?} is not [tokens, h·d]", t.shape()))),
    };
    let parts = match (mha, first.shape()) {
        (true, &[k, h, p, d]) => {
            let all = first.reshaped(&[1, k, h, p, d]);
            [Heads::part(&all, 0)?, Heads::part(&all, 1)?, Heads::part(&all, 2)?]
        }
        (true, _) => [one(first)?, one(c.input(1)?)?, one(c.input(2)?)?],
        _ => super::attention::all_projected(
            c,
            &first.reshaped(&[1, tokens, first.n_elems() / tokens.max(1)]),
            c.attrs.ints(2),
            n,
        )?,
    };
    let bias = bias.filter(|_| mha);
    let hidden = n * parts[0].shape[3];
    if let Some(b) = bias
        && b.shape() != [2 * hidden + n * parts[2].shape[3]]
    {
        return Err(bad(format!("a bias {:?}", b.shape())));
    }
    let [q, k, v] = parts;
    let parts = [with_bias(q, bias, 0, hidden)?, with_bias(k, bias, 1, hidden)?, with_bias(v, bias, 2, hidden)?];
    let [q, k, v] = parts.map(|p| {
        let flat = p.merged(DType::F64);
        let flat = flat.reshaped(&flat.shape()[1..]);
        Heads::split(&unpack(&flat, offsets)?, n)
    });
    let (q, k, v) = (q?, k?, v?);
    let [b, _, s, _] = q.shape;
    let ends = ints(ends);
    if ends.len() != b + 1 {
        return Err(bad(format!("{} ends of {b} sequences", ends.len())));
    }
    let score_bias = score_bias.map(|t| Added::of(t, [b, n, s, s], s)).transpose()?;
    let added = |at: [usize; 4]| {
        if at[3] as i128 >= ends[at[0] + 1] - ends[at[0]] {
            return f64::NEG_INFINITY;
        }
        score_bias.as_ref().map_or(0.0, |b| b.at(at))
    };
    let (y, _) = attend(&q, &k, &v, scale(c.attrs, 1).map(f64::from), added)?;
    let (y, hidden) = (y.merged(DType::F64), n * v.shape[3]);
    let y = f64s(&y);
    let mut kept = Vec::with_capacity(tokens * hidden);
    for at in ints(offsets).into_iter().take(tokens) {
        let at = usize::try_from(at).unwrap_or(0);
        kept.extend_from_slice(&y[at * hidden..(at + 1) * hidden]);
    }
    Ok(vec![from_f64s(dtype, &[tokens, hidden], &kept)])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Attention over each sequence's tokens; queries, keys and values are columns of input·weights + bias
    OpDef {
        name: "PackedAttention",
        domain: MICROSOFT,
        inputs: &[
            req("input", "T"),
            req("weights", "T"),
            req("bias", "T"),
            req("token_offset", "M"),
            req("cumulative_sequence_length", "M"),
            opt("attention_bias", "T"),
        ],
        outputs: &[req("output", "T")],
        attrs: &[
            attr("num_heads", AttrKind::IntReq),
            attr("scale", AttrKind::FloatOpt),
            attr("qkv_hidden_sizes", AttrKind::Ints),
        ],
        dtypes: &[T, M],
        infer: infer_attention,
        reference: Some(attention_ref),
        lower: &[Expand(expand_attention)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            "[7,2];[2,24];[24];i32[3,4]{0,4,5,8,9,10,11,1,2,3,6,7};i32[4]{0,1,3,7} num_heads=2 scale=0.1",
            "[7,2];[2,28];[28];i32[3,4]{0,4,5,8,9,10,11,1,2,3,6,7};i32[4]{0,1,3,7};[1,2,4,4] num_heads=2 scale=0.1 qkv_hidden_sizes=[8,8,12]",
        ],
        ..ROW
    },
    // Attention over each sequence's tokens
    OpDef {
        name: MHA,
        domain: MICROSOFT,
        inputs: &[
            req("query", "T"),
            opt("key", "T"),
            opt("value", "T"),
            opt("bias", "T"),
            req("token_offset", "M"),
            req("cumulative_sequence_length", "M"),
            opt("attention_bias", "T"),
        ],
        outputs: &[req("output", "T")],
        attrs: &[
            attr("num_heads", AttrKind::IntReq),
            attr("scale", AttrKind::FloatOpt),
            attr("mask_filter_value", AttrKind::Float(-10000.0)),
        ],
        dtypes: &[T, M],
        infer: infer_attention,
        reference: Some(attention_ref),
        lower: &[Expand(expand_attention)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            "[7,8];[7,8];[7,6];[22];i32[3,4]{0,4,5,8,9,10,11,1,2,3,6,7};i32[4]{0,1,3,7} num_heads=2",
            "[7,2,3,4];_;_;_;i32[3,4]{0,4,5,8,9,10,11,1,2,3,6,7};i32[4]{0,1,3,7};[3,1,4,4] num_heads=2 scale=0.4",
            "[4,2,3,4];_;_;[24];i32[2,4]{4,5,6,7,0,1,2,3};i32[3]{0,0,4} num_heads=2",
        ],
        ..ROW
    },
];
