//! Dropout: in inference the data as it is, in training with elements dropped at random.

use super::pointwise::{Exprs, arg, out_type};
use super::random::{STREAM, unit};
use super::row::*;
use crate::expand::Expansion;
use crate::graph::{Def, Module, NodeData, Onnx, RegionId, Value};
use crate::lowering::Candidate::{Pointwise, View};
use crate::lowering::{NodeCtx, Plan, ViewOp};
use crate::nest::{ExprId, Nest};
use crate::op::{AttrKind, InferCtx, OpDef, Param, RefCtx, attr, opt, req};
use reference::random as r;
use tensor::DType::{self, *};
use tensor::{Result, Tensor};

/// The slot of [`STREAM`].
const STREAM_SLOT: usize = 1;

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Inference: output = data, mask = 1 of the type of the data
    OpDef {
        name: "Dropout",
        since: 7,
        until: 9,
        inputs: &[req("data", "T")],
        outputs: &[req("output", "T"), opt("mask", "T")],
        attrs: &[attr("ratio", AttrKind::Float(0.5))],
        dtypes: &[("T", FLOATS)],
        infer: |c| infer_dropout(c, None),
        reference: Some(|c| dropout_ref(c, None)),
        lower: &[View(dropout_view), Pointwise(dropout_lower)],
        cases: &["[2,3]", "[2,3] outs=2"],
        ..ROW
    },
    // Inference: output = data, mask = true
    OpDef {
        name: "Dropout",
        since: 10,
        until: 11,
        inputs: &[req("data", "T")],
        outputs: DROPOUT_OUT,
        attrs: &[attr("ratio", AttrKind::Float(0.5))],
        dtypes: &[("T", FLOATS), ("M", BOOL)],
        infer: |c| infer_dropout(c, Some(Bool)),
        reference: Some(|c| dropout_ref(c, Some(Bool))),
        lower: &[View(dropout_view), Pointwise(dropout_lower)],
        cases: &["[2,3]", "[2,3] outs=2"],
        ..ROW
    },
    // Where training_mode is absent or false: output = data, mask = true. Else mask = u ≥ ratio for u drawn from [0, 1), and
    // output = data / (1 - ratio) where mask holds, 0 elsewhere: by expansion
    OpDef {
        name: "Dropout",
        since: 12,
        inputs: &[req("data", "T"), opt("ratio", "T1"), opt("training_mode", "M")],
        outputs: DROPOUT_OUT,
        attrs: &[attr("seed", AttrKind::IntOpt), attr(STREAM, AttrKind::Int(0))],
        dtypes: &[("T", FLOATS), ("T1", FLOATS), ("M", BOOL)],
        infer: |c| infer_dropout(c, Some(Bool)),
        reference: Some(|c| dropout_ref(c, Some(Bool))),
        lower: &[View(dropout_view), Pointwise(dropout_lower)],
        cases: &["[2,3]", "[2,3];[]{0.3} outs=2", "[2,3];[]{0.3};bool[]{0} outs=2", "[2,3];f32[]{0};bool[]{1} outs=2"],
        ..ROW
    },
];

/// Shape rule: the data's shape. Where nothing is dropped the data goes through.
fn infer_dropout(c: &mut InferCtx, mask: Option<DType>) -> Result<()> {
    let d = c.dtype(0)?;
    for i in 1..3 {
        c.require_single(i, if i == 1 { "the ratio" } else { "training_mode" })?;
    }
    let inference = !c.has(2) || c.const_ints(2).is_some_and(|v| v.iter().all(|&v| v == 0));
    if inference {
        same_as_0(c)?;
    } else {
        same_type_as_0(c)?;
    }
    match c.shape(0) {
        Some(s) => c.set(1, mask.unwrap_or(d), s),
        None => c.set_unranked(1, mask.unwrap_or(d)),
    }
    Ok(())
}

fn dropout_ref(c: &RefCtx, mask: Option<DType>) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let ratio = c.opt(1).map_or(0.5, |r| r.view().f64_at(0));
    if c.opt(2).is_some_and(|t| t.view().i64_at(0) != 0) && ratio != 0.0 {
        let words = r::first_words(c.attrs.int(STREAM_SLOT).unwrap_or(0), c.attrs.int(0));
        return Ok(r::dropout(x, ratio, words).into());
    }
    let ones = vec![1; x.n_elems()];
    Ok(vec![x.clone(), Tensor::from_i64_as(mask.unwrap_or(x.dtype()), x.shape(), &ones)])
}

fn dropout_inference(c: &NodeCtx) -> Plan<()> {
    let value = |i: usize| Plan::Ok(c.need(i)?.konst.and_then(|k| c.consts[k].splat_f64()));
    if !c.has(2) || (c.has(1) && value(1)? == Some(0.0)) {
        return Ok(());
    }
    match value(2)? {
        Some(0.0) => Ok(()),
        _ => Err("elements may be dropped".into()),
    }
}

fn dropout_view(c: &mut NodeCtx) -> Plan<ViewOp> {
    dropout_inference(c)?;
    if c.outs.len() > 1 { Err("the mask is used".into()) } else { Ok(ViewOp::Reshape) }
}

fn dropout_lower(c: &mut NodeCtx, n: &mut Nest, a: &[Option<ExprId>]) -> Exprs {
    dropout_inference(c)?;
    let x = arg(a, 0)?;
    let mut out = smallvec::SmallVec::from_iter([x]);
    if c.outs.len() > 1 {
        let d = out_type(c, 1)?;
        out.push(n.num(1.0, d));
    }
    Ok(out)
}

const DROPOUT_OUT: &[Param] = &[req("output", "T"), opt("mask", "M")];

/// Whether a node may drop elements: its training_mode is not known to be false, nor its ratio known to be 0.
pub(crate) fn may_drop(m: &Module<Onnx>, region: RegionId, node: &NodeData<Onnx>) -> bool {
    let known = |i: usize| {
        let v = node.ins.get(i).copied().flatten()?;
        match m.graphs[region].values[v].def {
            Def::Const(c) => Some(m.consts[c].splat_f64()),
            _ => Some(None),
        }
    };
    known(2).is_some_and(|mode| mode != Some(0.0)) && known(1).is_none_or(|ratio| ratio != Some(0.0))
}

/// Dropout where training_mode is true at run time.
pub(crate) fn expand_training(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, mode) = (x.need(0)?, x.need(2)?);
    let (dtype, _) = x.tensor(data)?;
    let ratio = match x.input(1) {
        Some(v) => {
            let v = x.cast(v, F64);
            x.reshape(v, &[])
        }
        None => x.scalar(F64, 0.5),
    };
    let mode = x.reshape(mode, &[]);
    let shape = x.op("Shape", &[data], &[]);
    let u = unit(x, shape, F64);
    let kept = x.op("GreaterOrEqual", &[u, ratio], &[]);
    let off = x.op("Not", &[mode], &[]);
    let mask = x.op("Or", &[kept, off], &[]);
    let one = x.scalar(F64, 1.0);
    let share = x.op("Sub", &[one, ratio], &[]);
    let share = x.op("Where", &[mode, share, one], &[]);
    let share = x.cast(share, dtype);
    let (y, zero) = (x.op("Div", &[data, share], &[]), x.scalar(dtype, 0.0));
    Ok(vec![x.op("Where", &[mask, y, zero], &[]), mask])
}
