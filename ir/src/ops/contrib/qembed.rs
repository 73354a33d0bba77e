//! Embeddings of words, positions and segments from quantized tables, normalized.

use super::super::row::ROW;
use super::qfloat::dequantize;
use super::qlinear::BYTES;
use super::{MICROSOFT, float, rounded};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::{Guard, Rel, Value};
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::data::{from_ints, ints};
use reference::elementwise as e;
use reference::movement::gather;
use reference::norm::layer_norm;
use reference::quant::{self, Granularity};
use tensor::DType::{F32, F64, I32};
use tensor::dims::Proof;
use tensor::{ErrorKind, Result, Tensor};

/// A quantized operand: itself, its scale and its zero point by position.
#[derive(Clone, Copy)]
struct Table(usize, usize, usize);

const WORDS: Table = Table(2, 8, 13);
const POSITIONS: Table = Table(3, 9, 14);
const SEGMENTS: Table = Table(4, 10, 15);
const GAMMA: Table = Table(5, 11, 16);
const BETA: Table = Table(6, 12, 17);
const SEGMENT_IDS: usize = 1;
const MASK: usize = 7;

fn epsilon(attrs: &crate::attrs::Attrs) -> f32 {
    attrs.float(0).unwrap_or(1e-12)
}

fn infer_embed(c: &mut InferCtx) -> Result<()> {
    let group = [SEGMENT_IDS, SEGMENTS.0, SEGMENTS.1, SEGMENTS.2];
    if group.iter().any(|&i| c.has(i) != c.has(SEGMENT_IDS)) {
        let text = "QEmbedLayerNormalization: segment_ids, segment_embedding, its scale and its zero point go together";
        return Err(c.error(ErrorKind::Malformed, text).help("give all four, or none"));
    }
    for Table(_, scale, zero) in [WORDS, POSITIONS, SEGMENTS, GAMMA, BETA] {
        super::qlinear::require_scalars(c, &[scale, zero])?;
    }
    let (Some(ids), Some(words)) = (c.shape(0), c.shape(WORDS.0)) else {
        c.set_unranked(0, F32);
        c.set_unranked(1, I32);
        return Ok(());
    };
    let ranks = [(0, 2), (SEGMENT_IDS, 2), (MASK, 2), (WORDS.0, 2), (POSITIONS.0, 2), (SEGMENTS.0, 2)];
    for (i, rank) in ranks.into_iter().chain([(GAMMA.0, 1), (BETA.0, 1)]) {
        if let Some(s) = c.shape(i).filter(|s| s.len() != rank) {
            let name = c.def.inputs[i].name;
            let text = format!("QEmbedLayerNormalization: {name} has rank {}, not {rank}", s.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
    }
    let hidden = words[1];
    for i in [POSITIONS.0, SEGMENTS.0, GAMMA.0, BETA.0] {
        let Some(&d) = c.shape(i).as_ref().and_then(|s| s.last()) else { continue };
        c.require_eq(d, hidden, &format!("the last axis of {} is hidden_size", c.def.inputs[i].name))?;
    }
    for i in [SEGMENT_IDS, MASK] {
        let Some(s) = c.shape(i) else { continue };
        for axis in 0..2 {
            c.require_eq(s[axis], ids[axis], &format!("{} has the shape of input_ids", c.def.inputs[i].name))?;
        }
    }
    if let Some(p) = c.shape(POSITIONS.0) {
        let why = "QEmbedLayerNormalization: there is an embedding for each position of the sequence";
        match c.dims.prove_le(ids[1], p[0]) {
            Proof::Yes => {}
            Proof::No => return Err(c.error(ErrorKind::Shape, format!("{why}, which does not hold"))),
            Proof::Unknown => {
                c.guards.push(Guard { lhs: ids[1], rel: Rel::Le, rhs: p[0], why: why.into(), node: c.path.into() });
            }
        }
    }
    c.set(0, F32, [ids[0], ids[1], hidden]);
    c.set(1, I32, [ids[0]]);
    Ok(())
}

fn embed_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let numbers = |Table(q, scale, zero): Table| {
        quant::dequantize(c.input(q)?, c.input(scale)?, c.opt(zero), Granularity::Tensor, F64)
    };
    let ids = c.input(0)?;
    let &[b, s] = ids.shape() else {
        return Err(tensor::Diagnostic::new(ErrorKind::Shape, format!("input_ids are of rank 2, not {ids:?}")));
    };
    if c.opt(MASK).is_some_and(|m| m.shape() != [b, s]) {
        return Err(tensor::Diagnostic::new(ErrorKind::Shape, "the mask has the shape of input_ids"));
    }
    let steps: Vec<i64> = (0..).take(s).collect();
    let positions = gather(&numbers(POSITIONS)?, &Tensor::from_i64(&[s], &steps), 0)?;
    let mut sum = e::add(&gather(&numbers(WORDS)?, ids, 0)?, &positions)?;
    if let Some(segments) = c.opt(SEGMENT_IDS) {
        sum = e::add(&sum, &gather(&numbers(SEGMENTS)?, segments, 0)?)?;
    }
    let [y, ..] = layer_norm(&sum, &numbers(GAMMA)?, Some(&numbers(BETA)?), 2, epsilon(c.attrs).into(), F64)?;
    let counts: Vec<i128> = match c.opt(MASK).map(ints) {
        Some(m) => (0..b).map(|i| m[i * s..(i + 1) * s].iter().filter(|&&v| v == 1).count() as i128).collect(),
        None => vec![0; b],
    };
    Ok(vec![rounded(&y, F32), from_ints(I32, &[b], &counts)])
}

/// The numbers of a table, or of rows taken from it.
fn numbers(x: &mut Expansion, Table(q, scale, zero): Table, rows: Option<Value>) -> Result<Value> {
    let (q, scale, zero) = (x.need(q)?, x.need(scale)?, x.need(zero)?);
    let q = rows.map_or(q, |rows| x.op("Gather", &[q, rows], &[("axis", Attr::Int(0))]));
    dequantize(x, q, scale, Some(zero))
}

fn expand_embed(x: &mut Expansion) -> Result<Vec<Value>> {
    let ids = x.need(0)?;
    let (batch, steps) = (x.extent(ids, 0), x.extent(ids, 1));
    let positions = x.count_to(steps);
    let (words, positions) = (numbers(x, WORDS, Some(ids))?, numbers(x, POSITIONS, Some(positions))?);
    let mut sum = x.op("Add", &[words, positions], &[]);
    if let Some(segments) = x.input(SEGMENT_IDS) {
        let segments = numbers(x, SEGMENTS, Some(segments))?;
        sum = x.op("Add", &[sum, segments], &[]);
    }
    let (gamma, beta) = (numbers(x, GAMMA, None)?, numbers(x, BETA, None)?);
    let attrs = [("axis", Attr::Int(-1)), ("epsilon", float(epsilon(x.attrs())))];
    let y = x.op("LayerNormalization", &[sum, gamma, beta], &attrs);
    let counts = match x.input(MASK) {
        Some(mask) => {
            let one = x.scalar(I32, 1.0);
            let counts = x.op("Equal", &[mask, one], &[]);
            let (counts, axis) = (x.cast(counts, I32), x.ints(&[1]));
            x.op("ReduceSum", &[counts, axis], &[("keepdims", Attr::Int(0))])
        }
        None => {
            let zero = x.scalar(I32, 0.0);
            x.op("Expand", &[zero, batch], &[])
        }
    };
    Ok(vec![y, counts])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // layernorm_out = layer normalization of word + position + segment embeddings; mask_index_out = how many of the mask are 1
    OpDef {
        name: "QEmbedLayerNormalization",
        domain: MICROSOFT,
        inputs: &[
            req("input_ids", "T1"),
            opt("segment_ids", "T1"),
            req("word_embedding_quant", "T2"),
            req("position_embedding_quant", "T2"),
            opt("segment_embedding", "T2"),
            req("gamma_quant", "T2"),
            req("beta_quant", "T2"),
            opt("mask", "T1"),
            req("word_embedding_scale", "T"),
            req("position_embedding_scale", "T"),
            opt("segment_embedding_scale", "T"),
            req("gamma_scale", "T"),
            req("beta_scale", "T"),
            req("word_embedding_zero_point", "T2"),
            req("position_embedding_zero_point", "T2"),
            opt("segment_embedding_zero_point", "T2"),
            req("gamma_zero_point", "T2"),
            req("beta_zero_point", "T2"),
        ],
        outputs: &[req("layernorm_out", "T"), opt("mask_index_out", "T1")],
        attrs: &[attr("epsilon", AttrKind::Float(1e-12))],
        dtypes: &[("T", &[F32]), ("T1", &[I32]), ("T2", BYTES)],
        infer: infer_embed,
        reference: Some(embed_ref),
        lower: &[Expand(expand_embed)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3]{0,5,6,2,1,4};[2,3]{0,1};[7,8];[4,8];[2,8];[8];[8];[2,3]{1,1,0,1,0,0};[]{0.1};[]{0.2};[]{0.3};[]{0.05};[]{0.5};[]{3};[]{4};[]{5};[]{1};[]{2} outs=2",
            "[2,3]{0,5,6,2,1,4};_;[7,8];[4,8];_;[8];[8];_;[1]{0.1};[1]{0.2};_;[1]{0.05};[1]{0.5};[1]{3};[1]{4};_;[1]{1};[1]{2} outs=2 epsilon=0.1",
        ],
        ..ROW
    },
];
