//! BatchNormalization: with given statistics, or with those of the batch.

use super::norm::{EPSILON, Moments, channel, epsilon, infer_channels, moments, scale_and_shift};
use super::row::*;
use super::split::{Builder, need_float};
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan, along, at_zero};
use crate::nest::{Access, Axis, BinOp, Nest, compute_dtype};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, OpTraits, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::norm as r;
use tensor::DType::{F16, F32, F64};
use tensor::{ErrorKind, Result, Tensor};

const MOMENTUM: AttrDef = attr("momentum", AttrKind::Float(0.9));

const BATCH_NORM: OpDef = OpDef {
    name: "BatchNormalization",
    inputs: &[req("X", "T"), req("scale", "T"), req("B", "T"), req("mean", "T"), req("var", "T")],
    traits: OpTraits { counts_results: true, ..OpTraits::NONE },
    outputs: &[req("Y", "T"), opt("mean", "T"), opt("var", "T"), opt("saved_mean", "T"), opt("saved_var", "T")],
    dtypes: &[("T", FLOATS)],
    infer: infer_batch_norm,
    reference: Some(batch_norm_ref),
    lower: &[Loops(|c| if c.outs.len() > 1 { batch_norm_training(c) } else { batch_norm_lower(c, true) })],
    tolerance: Tol::Rel(1e-5),
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = (X - mean) / √(var + epsilon) · scale + B per channel, with spatial=0 per element of an image. With results besides Y the
    // statistics are those of the batch, and the running ones take 1 - momentum of them.
    // Before opset 7 is_test says whether the statistics are given.
    OpDef {
        until: 6,
        attrs: &[
            EPSILON,
            MOMENTUM,
            attr("spatial", AttrKind::Int(1)),
            attr("is_test", AttrKind::Int(0)),
            attr("consumed_inputs", AttrKind::Ints),
        ],
        traits: OpTraits::NONE,
        dtypes: &[("T", &[F32, F16, F64])],
        lower: &[Loops(|c| match (c.attrs.int(3), c.attrs.int(2)) {
            (None | Some(0), _) => batch_norm_training(c),
            (_, spatial) => batch_norm_lower(c, spatial != Some(0)),
        })],
        cases: &[
            "[2,3,4,5];[3];[3];[3];[3]{0.5,1,2} is_test=1",
            "[2,3,4];[3,4];[3,4];[3,4];[3,4]{0.5,1,2} is_test=1 spatial=0",
            "[2,3,4,5];[3];[3];[3];[3]{0.5,1,2} outs=5",
            "[4,3];[3];[3];[3];[3]{0.5,1,2}",
        ],
        ..BATCH_NORM
    },
    OpDef {
        since: 7,
        until: 8,
        attrs: &[EPSILON, MOMENTUM, attr("spatial", AttrKind::Int(1))],
        lower: &[Loops(|c| match c.attrs.int(2) {
            Some(0) => batch_norm_lower(c, false),
            _ if c.outs.len() > 1 => batch_norm_training(c),
            _ => batch_norm_lower(c, true),
        })],
        cases: &[
            "[2,3,4,5];[3];[3];[3];[3]{0.5,1,2}",
            "[2,3,4];[3,4];[3,4];[3,4];[3,4]{0.5,1,2} spatial=0",
            "[2,3,4,5];[3];[3];[3];[3]{0.5,1,2} outs=5",
        ],
        ..BATCH_NORM
    },
    // The same, always spatial
    OpDef {
        since: 9,
        until: 13,
        attrs: &[EPSILON, MOMENTUM],
        cases: &["[2,3];[3];[3];[3];[3]{0.5,1,2} epsilon=0.1", "[4,3];[3];[3];[3];[3]{0.5,1,2} momentum=0.5 outs=3"],
        ..BATCH_NORM
    },
    // Training as training_mode says; the lists may have types of their own
    OpDef {
        since: 14,
        inputs: &[req("X", "T"), req("scale", "T1"), req("B", "T1"), req("input_mean", "T2"), req("input_var", "T2")],
        traits: OpTraits::NONE,
        outputs: &[req("Y", "T"), opt("running_mean", "T2"), opt("running_var", "T2")],
        attrs: &[EPSILON, MOMENTUM, attr("training_mode", AttrKind::Int(0))],
        dtypes: &[("T", FLOATS), ("T1", FLOATS), ("T2", FLOATS)],
        lower: &[Loops(|c| if c.attrs.int(2) == Some(1) { batch_norm_training(c) } else { batch_norm_lower(c, true) })],
        cases: &[
            "[2,3,4,5];[3];[3];[3];[3]{0.5,1,2}",
            "[2,3,4,5];[3];[3];[3];[3]{0.5,1,2} training_mode=1 outs=3",
            "[5,2];[2];[2];[2];[2]{0.5,1} training_mode=1 momentum=0.25",
            "[5,2,3];[2];[2];[2];[2]{0.5,1} training_mode=1 momentum=0.25 epsilon=0.1 outs=3",
        ],
        ..BATCH_NORM
    },
];

/// Whether BatchNormalization takes the statistics of the batch: as `training_mode` says, before 14 where a node has results besides
/// Y, before 7 unless `is_test` says otherwise.
fn trains(def: &OpDef, attrs: &crate::attrs::Attrs, n_outs: usize) -> bool {
    match (def.slot("training_mode"), def.slot("is_test")) {
        (Some(slot), _) => attrs.int(slot) == Some(1),
        (None, Some(slot)) => attrs.int(slot).unwrap_or(0) == 0,
        (None, None) => n_outs > 1,
    }
}

/// Whether lists have an element per channel, not one per element of an image.
fn is_spatial(def: &OpDef, attrs: &crate::attrs::Attrs) -> bool {
    def.slot("spatial").is_none_or(|slot| attrs.int(slot) != Some(0))
}

fn infer_batch_norm(c: &mut InferCtx) -> Result<()> {
    let training = trains(c.def, c.attrs, c.n_outs);
    if is_spatial(c.def, c.attrs) {
        infer_channels(c, &[1, 2, 3, 4])?;
    } else {
        if training {
            return Err(c.error(ErrorKind::Unsupported, "BatchNormalization with spatial=0 in training"));
        }
        let of_image = c.shape(0).map(|s| s.iter().skip(1).copied().collect::<Shape>());
        for i in 1..5 {
            let (Some(want), Some(s)) = (&of_image, c.shape(i)) else { continue };
            let what = format!("{} has one element per element of an image", c.def.inputs[i].name);
            if s.len() != want.len() {
                return Err(c.error(ErrorKind::Shape, format!("BatchNormalization: {what}")));
            }
            s.iter().zip(want).try_for_each(|(&a, &b)| c.require_eq(a, b, &what))?;
        }
        same_type_as_0(c)?;
    }
    // Results after Y exist in training alone: else their types stay unknown, so that any use of them is refused.
    for i in (1..c.n_outs).filter(|_| training) {
        let list = 3 + (i - 1) % 2;
        let dtype = c.dtype(list)?;
        match c.shape(list) {
            Some(s) => c.set(i, dtype, s),
            None => c.set_unranked(i, dtype),
        }
    }
    Ok(())
}

fn batch_norm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let [x, scale, bias, mean, var] = [c.input(0)?, c.input(1)?, c.input(2)?, c.input(3)?, c.input(4)?];
    if !trains(c.def, c.attrs, c.n_outs) {
        let spatial = is_spatial(c.def, c.attrs);
        return Ok(vec![r::batch_norm(x, scale, bias, mean, var, epsilon(c.attrs, 0), spatial)?]);
    }
    let momentum = c.attrs.float(1).unwrap_or(0.9);
    let [y, running_mean, running_var, own_mean, own_var] =
        r::batch_norm_training(x, scale, bias, mean, var, epsilon(c.attrs, 0), momentum.into())?;
    Ok(vec![y, running_mean, running_var, own_mean, own_var])
}

/// Points are channels; a point runs over its places in all images.
fn batch_norm_training(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let (eps, momentum) = (epsilon(c.attrs, 0), f64::from(c.attrs.float(1).unwrap_or(0.9)));
    let marked: Vec<bool> = (0..x.shape.len()).map(|i| i != 1).collect();
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let at = channel(c, &b.axes);
    let v = b.load(c, 0)?;
    let d = b.nest.expr_dtype(v);
    let Moments { mean, var, centred } = moments(c, &mut b, v);
    let inv = b.inverse_root(var, eps);
    let (scale, bias) = (b.load_at(1, at.clone())?, b.load_at(2, at.clone())?);
    let y = b.nest.bin(BinOp::Mul, centred, inv);
    let y = scale_and_shift(&mut b.nest, y, scale, Some(bias));
    b.store_inner(c, 0, y);
    let mut stores = Vec::new();
    for i in 1..c.outs.len() {
        let own = if i % 2 == 1 { mean } else { var };
        let value = if i < 3 {
            let old = b.load_at(3 + (i - 1) % 2, at.clone())?;
            let old = b.nest.cast(old, d);
            let old = b.nest.bin_num(BinOp::Mul, old, momentum);
            let new = b.nest.bin_num(BinOp::Mul, own, 1.0 - momentum);
            b.nest.bin(BinOp::Add, old, new)
        } else {
            own
        };
        let out = compute_dtype(c.outs[i].dtype).unwrap_or(d);
        let value = b.nest.cast(value, out);
        stores.push((Access { operand: b.writes[i], coords: at.clone() }, value));
    }
    if !stores.is_empty() {
        b.nest.phases.push(crate::nest::Phase::Store { over_inner: false, stores });
    }
    Ok(b.nest)
}

fn batch_norm_lower(c: &mut NodeCtx, spatial: bool) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let eps = epsilon(c.attrs, 0);
    let mut b = Builder::new(c, &x.shape, &vec![false; x.shape.len()])?;
    let at = match spatial {
        true => channel(c, &b.axes),
        false => {
            let coord = |a: &Option<Axis>| match *a {
                Some(a) => along(c.dims, a),
                None => at_zero(c.dims),
            };
            b.axes.iter().skip(1).map(coord).collect()
        }
    };
    let v = b.load(c, 0)?;
    let d = b.nest.expr_dtype(v);
    let mut list = [v; 4];
    for (i, e) in list.iter_mut().enumerate() {
        let l = b.load_at(i + 1, at.clone())?;
        *e = b.nest.cast(l, d);
    }
    let [scale, bias, mean, var] = list;
    let inv = b.inverse_root(var, eps);
    let y = b.nest.bin(BinOp::Sub, v, mean);
    let y = b.nest.bin(BinOp::Mul, y, inv);
    let y = scale_and_shift(&mut b.nest, y, scale, Some(bias));
    let coords = crate::lowering::broadcast_coords(c.dims, &c.outs[0].shape, &b.full, &b.axes);
    let stores = vec![(Access { operand: b.writes[0], coords }, y)];
    b.nest.phases.push(crate::nest::Phase::Store { over_inner: false, stores });
    Ok(b.nest)
}
