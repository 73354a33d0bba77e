//! Operators on sequences of tokens and words.

use super::super::row::ROW;
use super::MICROSOFT;
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, Tol, attr, req};
use reference::words;
use tensor::DType::{F32, I32, I64};
use tensor::{ErrorKind, Result};

/// The longest group of tokens: a node for each of them.
const MOST: i64 = 1 << 10;

fn infer_block(c: &mut InferCtx) -> Result<()> {
    let n = c.attrs.int(0).unwrap_or(0);
    if !(1..=MOST).contains(&n) {
        return Err(c.error(ErrorKind::Shape, format!("NGramRepeatBlock: ngram_size={n} is not from 1 to {MOST}")));
    }
    c.set_type(0, c.ty(1).clone());
    let (Some(ids), Some(scores)) = (c.shape(0), c.shape(1)) else { return Ok(()) };
    match (ids.as_slice(), scores.as_slice()) {
        (&[b, _], &[rows, _]) => c.require_eq(rows, b, "a row of scores for each sequence"),
        _ => {
            let text = format!("NGramRepeatBlock: operands have {} and {} axes, not 2", ids.len(), scores.len());
            Err(c.error(ErrorKind::Shape, text))
        }
    }
}

/// Where the `n - 1` tokens from a place on are the last ones, the token after them is forbidden. The sequence goes on with zeros, so
/// that also a short one has places to look at, of which none counts.
fn expand_block(x: &mut Expansion) -> Result<Vec<Value>> {
    let (ids, scores) = (x.need(0)?, x.need(1)?);
    let (dtype, _) = x.tensor(scores)?;
    let n = x.attrs().int(0).unwrap_or(1);
    let (b, length) = (x.extent(ids, 0), x.extent(ids, 1));
    let (more, zero, none) = (x.ints(&[n]), x.scalar(I64, 0.0), x.ints(&[0]));
    let tail = x.concat(&[b, more], 0);
    let tail = x.op("Expand", &[zero, tail], &[]);
    let all = x.concat(&[ids, tail], 1);
    let less = x.ints(&[n - 1]);
    let places = x.op("Sub", &[length, less], &[]);
    let places = x.op("Max", &[places, none], &[]);
    let from = |x: &mut Expansion, j: i64| {
        let (start, axis) = (x.ints(&[j]), x.ints(&[1]));
        let end = x.op("Add", &[places, start], &[]);
        x.op("Slice", &[all, start, end, axis], &[])
    };
    let tokens = from(x, n - 1);
    let mut repeats: Option<Value> = None;
    for j in 0..n - 1 {
        let here = from(x, j);
        let j = x.ints(&[j]);
        let at = x.op("Add", &[places, j], &[]);
        let last = x.op("Gather", &[all, at], &[("axis", Attr::Int(1))]);
        let equal = x.op("Equal", &[here, last], &[]);
        repeats = Some(repeats.map_or(equal, |r| x.op("And", &[r, equal], &[])));
    }
    let (low, high) = (x.scalar(dtype, f64::NEG_INFINITY), x.scalar(dtype, f64::INFINITY));
    let limit = match repeats {
        Some(r) => x.op("Where", &[r, low, high], &[]),
        None => {
            let like = x.op("Shape", &[tokens], &[]);
            x.op("Expand", &[low, like], &[])
        }
    };
    let attrs = [("axis", Attr::Int(1)), ("reduction", Attr::Str("min".into()))];
    Ok(vec![x.op("ScatterElements", &[scores, tokens, limit], &attrs)])
}

fn infer_words(c: &mut InferCtx) -> Result<()> {
    let fail = |c: &InferCtx, what: String| Err(c.error(ErrorKind::Shape, format!("WordConvEmbedding: {what}")));
    let dtype = c.dtype(1)?;
    let (Some(words), Some(w), Some(table)) = (c.shape(0), c.shape(1), c.shape(3)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let (&[s, _], &[m, channels, k, e], &[_, width]) = (words.as_slice(), w.as_slice(), table.as_slice()) else {
        let [a, b, d] = [words.len(), w.len(), table.len()];
        return fail(c, format!("Sequence, W and C have {a}, {b} and {d} axes, not 2, 4 and 2"));
    };
    let one = c.dims.constant(1);
    c.require_eq(channels, one, "a kernel has one channel")?;
    c.require_eq(width, e, "kernels have the width of an embedded character")?;
    match c.shape(2).as_deref() {
        Some(&[n]) => c.require_eq(n, m, "a bias for each kernel")?,
        Some(b) => return fail(c, format!("B has {} axes, not 1", b.len())),
        None => {}
    }
    for (slot, extent) in [e, k, m].into_iter().enumerate() {
        if let Some(n) = c.attrs.int(slot).filter(|&n| n != -1) {
            let n = c.dims.constant(n);
            c.require_eq(extent, n, &format!("{} is that of the operands", c.def.attrs[slot].name))?;
        }
    }
    c.require_le(k, words[1], "WordConvEmbedding: words have at least as many places as a kernel");
    c.set(0, dtype, [s, m]);
    Ok(())
}

fn expand_words(x: &mut Expansion) -> Result<Vec<Value>> {
    let (words, w, bias, table) = (x.need(0)?, x.need(1)?, x.need(2)?, x.need(3)?);
    let (dtype, _) = x.tensor(w)?;
    let (zero, none, one) = (x.scalar(I32, 0.0), x.scalar(dtype, 0.0), x.ints(&[1]));
    let is_char = x.op("Greater", &[words, zero], &[]);
    let count = x.cast(is_char, I64);
    let axis = x.ints(&[1]);
    let count = x.op("ReduceSum", &[count, axis], &[]);
    let first = x.ints(&[0]);
    let first = x.op("Gather", &[is_char, first], &[("axis", Attr::Int(1))]);
    // The characters that the kernel lies on, at each of its places.
    let (s, length) = (x.extent(words, 0), x.extent(words, 1));
    let [m, k, e] = [0, 2, 3].map(|a| x.extent(w, a));
    let less = x.op("Sub", &[length, k], &[]);
    let places = x.op("Add", &[less, one], &[]);
    let steps = x.count_to(places);
    let starts = x.unsqueeze(steps, &[1]);
    let within = x.count_to(k);
    let at = x.op("Add", &[starts, within], &[]);
    let under = x.op("Gather", &[words, at], &[("axis", Attr::Int(1))]);
    let chars = x.op("Gather", &[table, under], &[]);
    let width = x.op("Mul", &[k, e], &[]);
    let chars = x.reshape_to(chars, &[s, places, width]);
    let kernels = x.reshape_to(w, &[m, width]);
    let kernels = x.transpose(kernels, &[1, 0]);
    let y = x.op("MatMul", &[chars, kernels], &[]);
    let y = x.op("Add", &[y, bias], &[]);
    let y = x.op("Tanh", &[y], &[]);
    // Those where it lies on characters alone: one for a short word.
    let n = x.op("Sub", &[count, k], &[]);
    let n = x.op("Add", &[n, one], &[]);
    let n = x.op("Max", &[n, one], &[]);
    let counts = x.op("Less", &[steps, n], &[]);
    let counts = x.unsqueeze(counts, &[2]);
    let low = x.scalar(dtype, -2.0);
    let y = x.op("Where", &[counts, y, low], &[]);
    let axis = x.ints(&[1]);
    let y = x.op("ReduceMax", &[y, axis], &[("keepdims", Attr::Int(0))]);
    Ok(vec![x.op("Where", &[first, y, none], &[])])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // scores, -∞ for tokens that would repeat a group of ngram_size
    OpDef {
        name: "NGramRepeatBlock",
        domain: MICROSOFT,
        inputs: &[req("input_ids", "Tid"), req("scores", "T")],
        outputs: &[req("scores_out", "T")],
        attrs: &[attr("ngram_size", AttrKind::IntReq)],
        dtypes: &[("Tid", &[I64]), ("T", &[F32])],
        infer: infer_block,
        reference: Some(|c| {
            let n = usize::try_from(c.attrs.int(0).unwrap_or(0)).unwrap_or(0);
            Ok(vec![words::block_repeated(c.input(0)?, c.input(1)?, n)?])
        }),
        lower: &[Expand(expand_block)],
        cases: &[
            "i64[2,7]{1,2,3,1,2,1,2,0,1,0,1,0};[2,5] ngram_size=3",
            "i64[2,7]{1,2,3,1,2,1,2,0,1,0,1,0};[2,5] ngram_size=1",
            "i64[1,6]{3,3,3,2,3,3};[1,4] ngram_size=2",
            "i64[1,2]{0,0};[1,4] ngram_size=3",
            "i64[1,2]{0,0};[1,4] ngram_size=5",
            "i64[2,0];[2,4] ngram_size=2",
        ],
        ..ROW
    },
    // Y = greatest tanh(convolution of embedded characters by W + B) of each word
    OpDef {
        name: "WordConvEmbedding",
        domain: MICROSOFT,
        inputs: &[req("Sequence", "T"), req("W", "T1"), req("B", "T1"), req("C", "T1")],
        outputs: &[req("Y", "T1")],
        attrs: &[
            attr("char_embedding_size", AttrKind::IntOpt),
            attr("conv_window_size", AttrKind::IntOpt),
            attr("embedding_size", AttrKind::IntOpt),
        ],
        dtypes: &[("T", &[I32]), ("T1", &[F32])],
        infer: infer_words,
        reference: Some(|c| Ok(vec![words::embed_words(c.input(0)?, c.input(1)?, c.input(2)?, c.input(3)?)?])),
        lower: &[Expand(expand_words)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "i32[4,6]{1,4,2,0,0,0,3,0,0,0,0,0,0,0,0,0,0,0,1,2,3,4,1,2};[5,1,3,2];[5];[5,2]",
            "i32[2,3]{2,2,2,0,1,1};[2,1,3,4];[2];[3,4] embedding_size=2 conv_window_size=3 char_embedding_size=4",
        ],
        ..ROW
    },
];
