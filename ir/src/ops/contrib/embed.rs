//! The embeddings of BERT and their normalization.

use super::super::broadcast::require_broadcasts_to;
use super::super::row::ROW;
use super::{MICROSOFT, float, rounded, wide};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::data::{f64s, from_f64s, from_ints, ints};
use reference::norm;
use tensor::DType::{BF16, F16, F32, F64, I32};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

const SEGMENTS: usize = 1;
const WORD: usize = 2;
const POSITION: usize = 3;
const SEGMENT: usize = 4;
const GAMMA: usize = 5;
const BETA: usize = 6;
const MASK: usize = 7;
const POSITIONS: usize = 8;

fn infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(WORD)?;
    if c.has(SEGMENTS) != c.has(SEGMENT) {
        let text = "EmbedLayerNormalization needs segment_ids and segment_embedding together";
        return Err(c.error(ErrorKind::Malformed, text));
    }
    let (Some(ids), Some(word)) = (c.shape(0), c.shape(WORD)) else {
        c.set_unranked(0, dtype);
        c.set_unranked(1, I32);
        c.set_unranked(2, dtype);
        return Ok(());
    };
    let [b, s] = *ids.as_slice() else { return Err(c.misshapen(0, "[b, s]")) };
    let [_, hidden] = *word.as_slice() else { return Err(c.misshapen(WORD, "[words, hidden_size]")) };
    for i in [POSITION, SEGMENT] {
        match c.shape(i).as_deref() {
            Some(&[_, h]) => c.require_eq(h, hidden, "embeddings are equally wide")?,
            Some(_) => return Err(c.misshapen(i, "[entries, hidden_size]")),
            None => {}
        }
    }
    if let Some(p) = c.shape(POSITION)
        && !c.has(POSITIONS)
    {
        c.require_within(s, p[0], "there is an embedding of each position")?;
    }
    for i in [GAMMA, BETA] {
        match c.shape(i).as_deref() {
            Some(&[h]) => c.require_eq(h, hidden, "gamma and beta are as wide as embeddings")?,
            Some(_) => return Err(c.misshapen(i, "[hidden_size]")),
            None => {}
        }
    }
    for i in [SEGMENTS, MASK] {
        match c.shape(i).as_deref() {
            Some(&[b2, s2]) => {
                c.require_eq(b2, b, "segments and mask are those of input_ids")?;
                c.require_eq(s2, s, "segments and mask are those of input_ids")?;
            }
            Some(_) => return Err(c.misshapen(i, "[b, s]")),
            None => {}
        }
    }
    if let Some(p) = c.shape(POSITIONS) {
        if p.len() != 2 {
            return Err(c.misshapen(POSITIONS, "[b, s], [1, s]"));
        }
        require_broadcasts_to(c, &p, &ids, "position_ids")?;
    }
    c.set(0, dtype, [b, s, hidden]);
    c.set(1, I32, [b]);
    c.set(2, dtype, [b, s, hidden]);
    Ok(())
}

fn expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let (ids, word, position) = (x.need(0)?, x.need(WORD)?, x.need(POSITION)?);
    let (dtype, _) = x.tensor(word)?;
    let t = wide(dtype);
    let looked_up = |x: &mut Expansion, table, ids| {
        let y = x.op("Gather", &[table, ids], &[]);
        x.cast(y, t)
    };
    let mut sum = looked_up(x, word, ids);
    let of_positions = match x.input(POSITIONS) {
        Some(p) => looked_up(x, position, p),
        None => {
            let s = x.extent(ids, 1);
            let p = x.count_to(s);
            looked_up(x, position, p)
        }
    };
    sum = x.op("Add", &[sum, of_positions], &[]);
    if let (Some(ids), Some(table)) = (x.input(SEGMENTS), x.input(SEGMENT)) {
        let of_segments = looked_up(x, table, ids);
        sum = x.op("Add", &[sum, of_segments], &[]);
    }
    let (gamma, beta) = (x.need(GAMMA)?, x.need(BETA)?);
    let (gamma, beta) = (x.cast(gamma, t), x.cast(beta, t));
    let attrs = [("axis", Attr::Int(-1)), ("epsilon", float(x.attrs().float(0).unwrap_or(1e-12)))];
    let y = x.op("LayerNormalization", &[sum, gamma, beta], &attrs);
    let words = match x.input(MASK) {
        Some(mask) => {
            let one = x.scalar(I32, 1.0);
            let words = x.op("Equal", &[mask, one], &[]);
            let (words, axis) = (x.cast(words, I32), x.ints(&[1]));
            x.op("ReduceSum", &[words, axis], &[("keepdims", Attr::Int(0))])
        }
        None => {
            let (b, zero) = (x.extent(ids, 0), x.scalar(I32, 0.0));
            x.op("Expand", &[zero, b], &[])
        }
    };
    Ok(vec![x.cast(y, dtype), words, x.cast(sum, dtype)])
}

fn reference(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (ids, word, position) = (c.input(0)?, c.input(WORD)?, c.input(POSITION)?);
    let (&[b, s], &[_, hidden]) = (ids.shape(), word.shape()) else {
        let text = format!("words {:?} of a table {:?}", ids.shape(), word.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    };
    let positions: Vec<i128> = match c.opt(POSITIONS) {
        Some(p) => {
            let all = ints(p);
            (0..b * s).map(|i| all.get(if p.shape()[0] == 1 { i % s } else { i }).copied().unwrap_or(-1)).collect()
        }
        None => (0..b * s).map(|i| (i % s) as i128).collect(),
    };
    let mut sum = vec![0.0; b * s * hidden];
    let mut add = |table: &Tensor, rows: &[i128]| -> Result<()> {
        let v = f64s(table);
        for (i, &row) in rows.iter().enumerate() {
            let from = usize::try_from(row).ok().and_then(|r| v.get(r * hidden..(r + 1) * hidden));
            let fits = table.shape().len() == 2 && table.shape()[1] == hidden && i < b * s;
            let from = from.filter(|_| fits);
            let text = format!("row {row} of embeddings {:?}", table.shape());
            let from = from.ok_or_else(|| Diagnostic::new(ErrorKind::Argument, text))?;
            sum[i * hidden..(i + 1) * hidden].iter_mut().zip(from).for_each(|(y, x)| *y += x);
        }
        Ok(())
    };
    add(word, &ints(ids))?;
    add(position, &positions)?;
    if let (Some(ids), Some(table)) = (c.opt(SEGMENTS), c.opt(SEGMENT)) {
        add(table, &ints(ids))?;
    }
    let sum = from_f64s(F64, &[b, s, hidden], &sum);
    let epsilon = c.attrs.float(0).unwrap_or(1e-12).into();
    let gamma = rounded(c.input(GAMMA)?, F64);
    let beta = rounded(c.input(BETA)?, F64);
    let [y, ..] = norm::layer_norm(&sum, &gamma, Some(&beta), 2, epsilon, F32)?;
    let marks = c.opt(MASK).map(ints).unwrap_or_default();
    let words: Vec<i128> =
        (0..b).map(|i| marks.iter().skip(i * s).take(s).filter(|&&m| m == 1).count() as i128).collect();
    let dtype = word.dtype();
    Ok(vec![rounded(&y, dtype), from_ints(I32, &[b], &words), rounded(&sum, dtype)])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = layer normalization of embedding_sum = word + position + segment embedding; mask_index = how many elements of each row of
    // the mask are 1, else 0. mask_index_type says of the shape of mask_index what the operator always gives
    OpDef {
        name: "EmbedLayerNormalization",
        domain: MICROSOFT,
        inputs: &[
            req("input_ids", "T1"),
            opt("segment_ids", "T1"),
            req("word_embedding", "T"),
            req("position_embedding", "T"),
            opt("segment_embedding", "T"),
            req("gamma", "T"),
            req("beta", "T"),
            opt("mask", "T1"),
            opt("position_ids", "T1"),
        ],
        outputs: &[req("output", "T"), opt("mask_index", "T1"), opt("embedding_sum", "T")],
        attrs: &[attr("epsilon", AttrKind::Float(1e-12)), attr("mask_index_type", AttrKind::IntOpt)],
        dtypes: &[("T1", &[I32]), ("T", &[F32, F16, BF16])],
        infer,
        reference: Some(reference),
        lower: &[Expand(expand)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "i32[2,3]{1,0,4,2,2,3};i32[2,3]{0,0,1};[5,8];[4,8];[2,8];[8];[8];i32[2,3]{1,1,1,1,0,2} epsilon=0.001 outs=3",
            "i32[2,3]{1,0,4,2,2,3};_;[5,8];[4,8];_;[8];[8];_;i32[1,3]{3,0,1} epsilon=0.001 outs=3 mask_index_type=1",
            "i32[2,3]{1,0,4,2,2,3};_;[5,8];[4,8];_;[8];[8];_;i32[2,3]{3,0,1,1,1,0} epsilon=0.001",
        ],
        ..ROW
    },
];
