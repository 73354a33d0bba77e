//! Rows of losses over classes.

use super::loops::{Builder, inner, outer};
use super::row::{FLOATS, ROW};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, Nest, UnOp};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::loss::{self, Reduction};
use tensor::DType::*;
use tensor::{DType, ErrorKind, Result};

const REDUCTION: &str = "reduction";
const ATTRS: &[AttrDef] = &[attr("ignore_index", AttrKind::IntOpt), attr(REDUCTION, AttrKind::Str("mean"))];
const IND: (&str, &[DType]) = ("Tind", &[I64, I32]);
const NO_BF16: &[DType] = &[F32, F16, F64];

fn reduction(name: Option<&str>) -> Option<Reduction> {
    Some(match name? {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        "mean" => Reduction::Mean,
        _ => return None,
    })
}

/// Shape rule: samples `[n, d…]` of scores `[n, c, d…]`, weights `[c]`; the loss of each sample, or one.
fn infer_loss(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(how) = reduction(c.attrs.str(1)) else {
        let text = format!("{}: reduction {:?} is none of none, sum, mean", c.def.name, c.attrs.str(1));
        return Err(c.error(ErrorKind::Unsupported, text));
    };
    let (scores, targets) = (c.shape(0), c.shape(1));
    if let (Some(x), Some(t)) = (&scores, &targets) {
        if x.len() < 2 || t.len() + 1 != x.len() {
            let text = format!("{} needs scores [n, c, …] and targets [n, …]", c.def.name);
            return Err(c.error(ErrorKind::Shape, text));
        }
        for (i, &d) in t.iter().enumerate() {
            c.require_eq(d, x[if i == 0 { 0 } else { i + 1 }], "scores and targets have the same samples")?;
        }
        c.require_some(x[1], t.iter().copied(), "there is no class for targets");
    }
    if let (Some(x), Some(&[w])) = (&scores, c.shape(2).as_deref()) {
        c.require_eq(w, x[1], "one weight per class")?;
    } else if c.shape(2).is_some_and(|w| w.len() != 1) {
        return Err(c.error(ErrorKind::Shape, format!("{}: weights are a list", c.def.name)));
    }
    let of_scores = scores.map(|x| x.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, &d)| d).collect());
    match (how, targets.or(of_scores)) {
        (Reduction::None, Some(t)) => c.set(0, dtype, t),
        (Reduction::None, None) => c.set_unranked(0, dtype),
        _ => c.set(0, dtype, []),
    }
    Ok(())
}

/// One pass over the samples: the loss of each, or sums of losses and weights.
fn nll_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, t) = (c.need(0)?, c.need(1)?);
    let how = reduction(c.attrs.str(1)).ok_or("an unknown reduction")?;
    let (ignored, weighted) = (c.attrs.int(0), c.has(2));
    let axis = if how == Reduction::None { outer } else { inner };
    let mut b = Builder::new(c)?;
    match how {
        Reduction::None => b.nest.outer = t.shape.to_vec(),
        _ => b.nest.inner = t.shape.to_vec(),
    }
    let mut at: Vec<Coord> = (0..t.shape.len()).map(|i| b.along(axis(i))).collect();
    let target = b.load(1, at.clone())?;
    let target = b.nest.expr(Expr::Cast(target, I64));
    let class = b.index(target, x.shape[1]);
    let counts = ignored.map(|k| {
        let k = b.int(k);
        b.bin(BinOp::Ne, target, k)
    });
    let d = b.dtype(0);
    let zero = b.nest.num(0.0, d);
    let place = b.computed(class);
    at.insert(1, place.clone());
    let v = b.load_if(0, at, counts, zero)?;
    let weight = match (weighted, counts) {
        (true, _) => b.load_if(2, [place], counts, zero)?,
        (false, Some(counts)) => {
            let one = b.nest.num(1.0, d);
            b.select(counts, one, zero)
        }
        (false, None) => b.nest.num(1.0, d),
    };
    let v = b.nest.un(UnOp::Neg, v);
    let v = b.bin(BinOp::Mul, v, weight);
    let y = match how {
        Reduction::None => v,
        Reduction::Sum => b.reduce([(Combiner::Sum, v)])[0],
        Reduction::Mean => {
            let sums = b.reduce([(Combiner::Sum, v), (Combiner::Sum, weight)]);
            b.bin(BinOp::Div, sums[0], sums[1])
        }
    };
    Ok(b.store(y))
}

/// The loss over the logarithms of softmax.
fn expand_cross_entropy(x: &mut Expansion) -> Result<Vec<Value>> {
    let (ignored, how) = (x.attrs().get(0).clone(), x.attrs().get(1).clone());
    let log = x.op("LogSoftmax", &[x.need(0)?], &[("axis", crate::attrs::Attr::Int(1))]);
    let ins: Vec<Value> = [Some(log), x.input(1), x.input(2)].into_iter().flatten().collect();
    let loss = x.op("NegativeLogLikelihoodLoss", &ins, &[("ignore_index", ignored), (REDUCTION, how)]);
    Ok(vec![loss, log])
}

fn how(c: &RefCtx) -> Reduction {
    reduction(c.attrs.str(1)).unwrap_or(Reduction::Mean)
}

const CASES: &[&str] = &[
    "[3,5];i64[3]{4,0,2}",
    "[3,5];i64[3]{4,0,2};[5] reduction=none",
    "[2,4,3];i64[2,3]{3,0,1,2};[4]{1,0.5,2,3} reduction=mean ignore_index=2",
    "[2,4,3];i64[2,3]{3,-7,1,2};[4] reduction=none ignore_index=-7",
    "[2,4,3,2];i64[2,3,2]{3,0,9,1,2} reduction=sum ignore_index=9",
    "[2,3,2,1,2];i64[2,2,1,2]{2,0,1} ignore_index=1",
];

const NLL: OpDef = OpDef {
    name: "NegativeLogLikelihoodLoss",
    inputs: &[req("input", "T"), req("target", "Tind"), opt("weight", "T")],
    outputs: &[req("loss", "T")],
    attrs: ATTRS,
    infer: infer_loss,
    reference: Some(|c| {
        let (x, t, w) = (c.input(0)?, c.input(1)?, c.opt(2));
        Ok(vec![loss::negative_log_likelihood(x, t, w, c.attrs.int(0), how(c))?])
    }),
    lower: &[Candidate::Loops(nll_loops)],
    tolerance: Tol::Rel(1e-5),
    cases: CASES,
    ..ROW
};
const CROSS_ENTROPY: OpDef = OpDef {
    name: "SoftmaxCrossEntropyLoss",
    inputs: &[req("scores", "T"), req("labels", "Tind"), opt("weights", "T")],
    outputs: &[req("output", "T"), opt("log_prob", "T")],
    attrs: ATTRS,
    infer: |c| {
        infer_loss(c)?;
        c.set_type(1, c.ty(0).clone());
        Ok(())
    },
    reference: Some(|c| {
        let (x, t, w) = (c.input(0)?, c.input(1)?, c.opt(2));
        Ok(loss::softmax_cross_entropy(x, t, w, c.attrs.int(0), how(c))?.into())
    }),
    lower: &[Candidate::Expand(expand_cross_entropy)],
    tolerance: Tol::Rel(1e-5),
    cases: &[
        "[3,5];i64[3]{4,0,2} outs=2",
        "[3,5];i64[3]{4,0,2};[5]{1,2,0.5} reduction=none",
        "[2,4,3];i64[2,3]{3,0,1,2};[4]{1,0.5,2,3} ignore_index=2 outs=2",
        "[2,4,3,2];i64[2,3,2]{3,0,-1,1,2} reduction=sum ignore_index=-1",
    ],
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // loss[n, …] = -input[n, target[n, …], …] · weight[target[n, …]], 0 where ignored; the mean is over the weights. Targets out of
    // range are treated as those of Gather
    OpDef { since: 12, until: 21, dtypes: &[("T", NO_BF16), IND], ..NLL },
    OpDef { since: 22, dtypes: &[("T", FLOATS), IND], ..NLL },
    // output = the loss above of log_prob = LogSoftmax(scores) along the classes
    OpDef { since: 12, until: 12, dtypes: &[("T", NO_BF16), IND], ..CROSS_ENTROPY },
    OpDef { since: 13, dtypes: &[("T", FLOATS), IND], ..CROSS_ENTROPY },
];
