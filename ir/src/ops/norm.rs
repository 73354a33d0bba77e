//! Normalizations: of layers, groups, instances; of channels around each other.

use super::broadcast::require_broadcasts_to;
use super::row::*;
use super::split::{Builder, axis_of, need_float};
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan, along, at_zero};
use crate::nest::{Access, Axis, BinOp, Combiner, Coord, Expr, ExprId, Nest, Term, UnOp, compute_dtype};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::norm as r;
use smallvec::SmallVec;
use tensor::DType::*;
use tensor::{DimId, ErrorKind, Result, Tensor};

pub(super) fn epsilon(attrs: &crate::attrs::Attrs, slot: usize) -> f64 {
    attrs.float(slot).unwrap_or(1e-5).into()
}

fn ref_axis(c: &RefCtx, rank: usize) -> usize {
    let a = c.attrs.int(0).unwrap_or(-1);
    usize::try_from(if a < 0 { a + rank as i64 } else { a }).unwrap_or(0)
}

/// Statistics come in the type that `stash_type` names: f32 alone is supported.
fn check_stash(c: &InferCtx, slot: usize) -> Result<()> {
    match c.attrs.int(slot) {
        Some(1) | None => Ok(()),
        Some(t) => Err(c.error(ErrorKind::Unsupported, format!("{}: stash_type={t} is not 1 (f32)", c.def.name))),
    }
}

fn infer_layer_norm(c: &mut InferCtx) -> Result<()> {
    check_stash(c, 2)?;
    same_type_as_0(c)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(1, F32);
        c.set_unranked(2, F32);
        return Ok(());
    };
    let axis = c.axis(c.attrs.int(0).unwrap_or(-1), s.len())?;
    for (i, what) in [(1, "the scale"), (2, "the bias")] {
        if let Some(t) = c.shape(i) {
            require_broadcasts_to(c, &t, &s, what)?;
        }
    }
    let one = c.dims.constant(1);
    let stats: Shape = s.iter().enumerate().map(|(i, &d)| if i < axis { d } else { one }).collect();
    c.set(1, F32, stats.iter().copied());
    c.set(2, F32, stats);
    Ok(())
}

fn layer_norm_lower(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let axis = axis_of(c.attrs.int(0).unwrap_or(-1), x.shape.len())?;
    let eps = epsilon(c.attrs, 1);
    let marked: Vec<bool> = (0..x.shape.len()).map(|i| i >= axis).collect();
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let v = b.load(c, 0)?;
    let (mean, centred, inv) = normalize(c, &mut b, v, eps);
    let scale = b.load(c, 1)?;
    let bias = if c.has(2) { Some(b.load(c, 2)?) } else { None };
    let y = b.nest.bin(BinOp::Mul, centred, inv);
    let y = scale_and_shift(&mut b.nest, y, scale, bias);
    b.store_inner(c, 0, y);
    let stats: Vec<(usize, ExprId)> = [(1, mean), (2, inv)].into_iter().filter(|s| s.0 < c.outs.len()).collect();
    if !stats.is_empty() {
        b.store_once(c, &stats);
    }
    Ok(b.nest)
}

/// Mean of `v` over the inner points, `v - mean`, `1 / √(variance + epsilon)`.
fn normalize(c: &mut NodeCtx, b: &mut Builder, v: ExprId, eps: f64) -> (ExprId, ExprId, ExprId) {
    let Moments { mean, var, centred } = moments(c, b, v);
    (mean, centred, b.inverse_root(var, eps))
}

pub(super) struct Moments {
    pub mean: ExprId,
    pub var: ExprId,
    pub centred: ExprId,
}

/// Mean and variance of `v` over the inner points: two passes, so that nothing cancels.
pub(super) fn moments(c: &mut NodeCtx, b: &mut Builder, v: ExprId) -> Moments {
    let d = b.nest.expr_dtype(v);
    let n = b.count(c, d);
    let sum = b.reduce(Combiner::Sum, v);
    let mean = b.nest.bin(BinOp::Div, sum, n);
    let centred = b.nest.bin(BinOp::Sub, v, mean);
    let square = b.nest.bin(BinOp::Mul, centred, centred);
    let sum = b.reduce(Combiner::Sum, square);
    let var = b.nest.bin(BinOp::Div, sum, n);
    Moments { mean, var, centred }
}

pub(super) fn scale_and_shift(n: &mut Nest, y: ExprId, scale: ExprId, bias: Option<ExprId>) -> ExprId {
    let d = n.expr_dtype(y);
    let scale = n.cast(scale, d);
    let y = n.bin(BinOp::Mul, y, scale);
    match bias {
        Some(b) => {
            let b = n.cast(b, d);
            n.bin(BinOp::Add, y, b)
        }
        None => y,
    }
}

fn infer_rms_norm(c: &mut InferCtx) -> Result<()> {
    check_stash(c, 2)?;
    let d = c.dtype(1)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, d);
        return Ok(());
    };
    c.axis(c.attrs.int(0).unwrap_or(-1), s.len())?;
    if let Some(t) = c.shape(1) {
        require_broadcasts_to(c, &t, &s, "the scale")?;
    }
    c.set(0, d, s);
    Ok(())
}

fn rms_norm_lower(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let axis = axis_of(c.attrs.int(0).unwrap_or(-1), x.shape.len())?;
    let eps = epsilon(c.attrs, 1);
    let marked: Vec<bool> = (0..x.shape.len()).map(|i| i >= axis).collect();
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let v = b.load(c, 0)?;
    // The result has the type of the scale, which may hold more digits than the data.
    let wide = if c.outs[0].dtype == F64 { F64 } else { b.nest.expr_dtype(v) };
    let v = b.nest.cast(v, wide);
    let square = b.nest.bin(BinOp::Mul, v, v);
    let sum = b.reduce(Combiner::Sum, square);
    let d = b.nest.expr_dtype(v);
    let n = b.count(c, d);
    let mean = b.nest.bin(BinOp::Div, sum, n);
    let inv = b.inverse_root(mean, eps);
    let y = b.nest.bin(BinOp::Mul, v, inv);
    let scale = b.load(c, 1)?;
    let y = scale_and_shift(&mut b.nest, y, scale, None);
    let out = compute_dtype(c.outs[0].dtype).unwrap_or(d);
    let y = b.nest.cast(y, out);
    b.store_inner(c, 0, y);
    Ok(b.nest)
}

/// Shape rule: the result has the type of `x`, lists `lists` have one element per channel.
pub(super) fn infer_channels(c: &mut InferCtx, lists: &[usize]) -> Result<()> {
    let Some(s) = c.shape(0) else { return same_type_as_0(c) };
    if s.len() < 2 {
        // A batch of scalars has one channel.
        if c.def.name != "BatchNormalization" || s.is_empty() {
            let text = format!("{} needs a batch and a channel axis", c.def.name);
            return Err(c.error(ErrorKind::Shape, text));
        }
    }
    let channels = s.get(1).copied().unwrap_or_else(|| c.dims.constant(1));
    for &i in lists {
        if let Some(t) = c.shape(i) {
            let what = format!("{} has one element per channel", c.def.inputs[i].name);
            match t.as_slice() {
                [d] => c.require_eq(*d, channels, &what)?,
                _ => return Err(c.error(ErrorKind::Shape, format!("{}: {what}", c.def.name))),
            }
        }
    }
    same_type_as_0(c)
}

/// The coordinate of the channel of a point.
pub(super) fn channel(c: &mut NodeCtx, axes: &[Option<Axis>]) -> SmallVec<[Coord; 4]> {
    let coord = match axes.get(1).copied().flatten() {
        Some(a) => along(c.dims, a),
        None => at_zero(c.dims),
    };
    SmallVec::from_iter([coord])
}

fn instance_norm_lower(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let eps = epsilon(c.attrs, 0);
    let marked: Vec<bool> = (0..x.shape.len()).map(|i| i >= 2).collect();
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let v = b.load(c, 0)?;
    let (_, centred, inv) = normalize(c, &mut b, v, eps);
    let at = channel(c, &b.axes);
    let (scale, bias) = (b.load_at(1, at.clone())?, b.load_at(2, at)?);
    let y = b.nest.bin(BinOp::Mul, centred, inv);
    let y = scale_and_shift(&mut b.nest, y, scale, Some(bias));
    b.store_inner(c, 0, y);
    Ok(b.nest)
}

fn infer_group_norm(c: &mut InferCtx, per_group: bool) -> Result<()> {
    let groups = c.attrs.int(1).unwrap_or(0);
    if groups < 1 {
        return Err(c.error(ErrorKind::Shape, format!("GroupNormalization: num_groups={groups} is not positive")));
    }
    if !per_group {
        check_stash(c, 2)?;
    }
    if let Some(s) = c.shape(0) {
        if s.len() < 2 {
            return Err(c.error(ErrorKind::Shape, "GroupNormalization needs a batch and a channel axis"));
        }
        let g = c.dims.constant(groups);
        let rest = c.dims.modulo(s[1], g);
        let zero = c.dims.constant(0);
        c.require_eq(rest, zero, "the groups divide the channels")?;
        for i in [1, 2] {
            if let Some(&[d]) = c.shape(i).as_deref() {
                let what = format!("one {} per {}", c.def.inputs[i].name, if per_group { "group" } else { "channel" });
                c.require_eq(d, if per_group { g } else { s[1] }, &what)?;
            }
        }
    }
    same_type_as_0(c)
}

fn group_norm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let groups = usize::try_from(c.attrs.int(1).unwrap_or(0)).unwrap_or(0);
    Ok(vec![r::group_norm(c.input(0)?, c.input(1)?, c.input(2)?, groups, epsilon(c.attrs, 0))?])
}

/// Points are images and groups; a point runs over the channels of its group and their places.
fn group_norm_lower(c: &mut NodeCtx, per_group: bool) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let eps = epsilon(c.attrs, 0);
    let groups = c.dims.constant(c.attrs.int(1).unwrap_or(1));
    let per = c.dims.floordiv(x.shape[1], groups);
    let mut full: Shape = SmallVec::from_iter([x.shape[0], groups, per]);
    full.extend(x.shape[2..].iter().copied());
    let marked: Vec<bool> = (0..full.len()).map(|i| i >= 2).collect();
    let mut b = Builder::new(c, &full, &marked)?;
    let (one, zero) = (c.dims.constant(1), c.dims.constant(0));
    let term = |a: Option<Axis>, k: DimId| -> Plan<(Term, DimId)> { Ok((Term::Axis(a.ok_or("too many axes")?), k)) };
    let (group, member) = (b.axes[1], b.axes[2]);
    let in_channels = Coord { offset: zero, terms: SmallVec::from_iter([term(group, per)?, term(member, one)?]) };
    let mut at: SmallVec<[Coord; 4]> = SmallVec::new();
    at.push(Coord { offset: zero, terms: SmallVec::from_iter([term(b.axes[0], one)?]) });
    at.push(in_channels.clone());
    for &a in &b.axes[3..] {
        at.push(Coord { offset: zero, terms: SmallVec::from_iter([term(a, one)?]) });
    }
    let v = b.load_at(0, at.clone())?;
    let (_, centred, inv) = normalize(c, &mut b, v, eps);
    let list_at: SmallVec<[Coord; 4]> = SmallVec::from_iter([if per_group {
        Coord { offset: zero, terms: SmallVec::from_iter([term(group, one)?]) }
    } else {
        in_channels
    }]);
    let (scale, bias) = (b.load_at(1, list_at.clone())?, b.load_at(2, list_at)?);
    let y = b.nest.bin(BinOp::Mul, centred, inv);
    let y = scale_and_shift(&mut b.nest, y, scale, Some(bias));
    let stores = vec![(Access { operand: b.writes[0], coords: at }, y)];
    b.nest.phases.push(crate::nest::Phase::Store { over_inner: true, stores });
    Ok(b.nest)
}

fn infer_lrn(c: &mut InferCtx) -> Result<()> {
    let size = c.attrs.int(3).unwrap_or(0);
    if size < 1 || c.shape(0).is_some_and(|s| s.len() < 2) {
        return Err(c.error(ErrorKind::Shape, format!("LRN: size={size} must be positive, and the data have channels")));
    }
    same_type_as_0(c)
}

fn lrn_lower(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let num = |i: usize| f64::from(c.attrs.float(i).unwrap_or(0.0));
    let (alpha, beta, bias) = (num(0), num(1), num(2));
    let size = c.attrs.int(3).unwrap_or(1);
    let mut full = x.shape.clone();
    full.push(c.dims.constant(size));
    let marked: Vec<bool> = (0..full.len()).map(|i| i == x.shape.len()).collect();
    let mut b = Builder::new(c, &full, &marked)?;
    let (one, zero) = (c.dims.constant(1), c.dims.constant(0));
    let below = c.dims.constant(-((size - 1) / 2));
    let axes = b.axes.clone();
    let mut at: SmallVec<[Coord; 4]> = SmallVec::new();
    for &a in &axes[..x.shape.len()] {
        at.push(Coord { offset: zero, terms: SmallVec::from_iter([(Term::Axis(a.ok_or("too many axes")?), one)]) });
    }
    let here = b.load_at(0, at.clone())?;
    let channel_axis = axes[1].ok_or("too many axes")?;
    let mut around = at.clone();
    around[1].offset = below;
    around[1].terms.push((Term::Axis(Axis::Inner(0)), one));
    // Channels outside count as 0.
    let n = &mut b.nest;
    let (k, i) = (n.expr(Expr::Index(channel_axis)), n.expr(Expr::Index(Axis::Inner(0))));
    let (below, total) = (n.expr(Expr::Dim(below)), n.expr(Expr::Dim(x.shape[1])));
    let k = n.bin(BinOp::Add, k, i);
    let k = n.bin(BinOp::Add, k, below);
    let low = n.bin_num(BinOp::Ge, k, 0.0);
    let high = n.bin(BinOp::Lt, k, total);
    let cond = n.bin(BinOp::And, low, high);
    let other = n.num_like(0.0, here);
    let access = Access { operand: b.reads[0].ok_or("no operand 0")?, coords: around };
    let v = n.expr(Expr::LoadIf { cond, access, other });
    let square = n.bin(BinOp::Mul, v, v);
    let sum = b.reduce(Combiner::Sum, square);
    let n = &mut b.nest;
    let s = n.bin_num(BinOp::Mul, sum, alpha / size as f64);
    let s = n.bin_num(BinOp::Add, s, bias);
    let beta = n.num_like(beta, s);
    let p = n.bin(BinOp::Pow, s, beta);
    let y = n.bin(BinOp::Div, here, p);
    let stores = vec![(Access { operand: b.writes[0], coords: at }, y)];
    b.nest.phases.push(crate::nest::Phase::Store { over_inner: false, stores });
    Ok(b.nest)
}

fn infer_lp(c: &mut InferCtx) -> Result<()> {
    if !matches!(c.attrs.int(1), Some(1 | 2)) {
        return Err(c.error(ErrorKind::Unsupported, "LpNormalization: p is neither 1 nor 2"));
    }
    if let Some(s) = c.shape(0) {
        c.axis(c.attrs.int(0).unwrap_or(-1), s.len())?;
    }
    same_type_as_0(c)
}

fn lp_lower(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let axis = axis_of(c.attrs.int(0).unwrap_or(-1), x.shape.len())?;
    let marked: Vec<bool> = (0..x.shape.len()).map(|i| i == axis).collect();
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let v = b.load(c, 0)?;
    let own = b.nest.expr_dtype(v);
    // Sums and squares of f32 leave its range, above and below, where the quotient is within it.
    let v = b.nest.cast(v, F64);
    let norm = if c.attrs.int(1) == Some(1) {
        let a = b.nest.un(UnOp::Abs, v);
        b.reduce(Combiner::Sum, a)
    } else {
        let s = b.nest.bin(BinOp::Mul, v, v);
        let s = b.reduce(Combiner::Sum, s);
        b.nest.un(UnOp::Sqrt, s)
    };
    let y = b.nest.bin(BinOp::Div, v, norm);
    let zero = b.nest.num_like(0.0, norm);
    let nothing = b.nest.bin(BinOp::Eq, norm, zero);
    let y = b.nest.select(nothing, zero, y);
    let y = b.nest.cast(y, own);
    b.store_inner(c, 0, y);
    Ok(b.nest)
}

/// The axes that MeanVarianceNormalization runs over.
fn mvn_axes(attrs: &crate::attrs::Attrs, rank: usize) -> Vec<bool> {
    let axes = attrs.ints(0).unwrap_or(&[0, 2, 3]);
    (0..rank).map(|i| axes.iter().any(|&a| (if a < 0 { a + rank as i64 } else { a }) == i as i64)).collect()
}

fn mvn_lower(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    need_float(&x)?;
    let marked = mvn_axes(c.attrs, x.shape.len());
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let v = b.load(c, 0)?;
    let Moments { var, centred, .. } = moments(c, &mut b, v);
    let root = b.nest.un(UnOp::Sqrt, var);
    let root = b.nest.bin_num(BinOp::Add, root, r::MVN_EPSILON);
    let y = b.nest.bin(BinOp::Div, centred, root);
    b.store_inner(c, 0, y);
    Ok(b.nest)
}

pub(super) const EPSILON: AttrDef = attr("epsilon", AttrKind::Float(1e-5));

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = (X - Mean) · InvStdDev · Scale + B; InvStdDev = 1 / √(variance + epsilon), over the axes from `axis` on
    OpDef {
        name: "LayerNormalization",
        since: 17,
        inputs: &[req("X", "T"), req("Scale", "T"), opt("B", "T")],
        outputs: &[req("Y", "T"), opt("Mean", "U"), opt("InvStdDev", "U")],
        attrs: &[attr("axis", AttrKind::Int(-1)), EPSILON, attr("stash_type", AttrKind::Int(1))],
        dtypes: &[("T", FLOATS), ("U", &[F32])],
        infer: infer_layer_norm,
        reference: Some(|c| {
            let x = c.input(0)?;
            let axis = ref_axis(c, x.shape().len());
            Ok(r::layer_norm(x, c.input(1)?, c.opt(2), axis, epsilon(c.attrs, 1), F32)?.into())
        }),
        lower: &[Loops(layer_norm_lower)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,8];[8];[8]",
            "[2,3,8];[8] outs=3",
            "[2,3,4];[3,4];[3,4] axis=1 outs=3",
            "[3,4];[1];[4] epsilon=0.1",
            "[0,4];[4];[4]",
        ],
        ..ROW
    },
    // Y = X / √(mean(X²) + epsilon) · scale, over the axes from `axis` on
    OpDef {
        name: "RMSNormalization",
        since: 23,
        inputs: &[req("X", "T"), req("scale", "V")],
        outputs: &[req("Y", "V")],
        attrs: &[attr("axis", AttrKind::Int(-1)), EPSILON, attr("stash_type", AttrKind::Int(1))],
        dtypes: &[("T", FLOATS), ("V", FLOATS)],
        infer: infer_rms_norm,
        reference: Some(|c| {
            let x = c.input(0)?;
            let axis = ref_axis(c, x.shape().len());
            Ok(vec![r::rms_norm(x, c.input(1)?, axis, epsilon(c.attrs, 1))?])
        }),
        lower: &[Loops(rms_norm_lower)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,8];[8]", "[2,3,4];[3,4] axis=1 epsilon=0.01", "[2,4];[1]"],
        ..ROW
    },
    // y = scale · (x - mean) / √(variance + epsilon) + B per image and channel
    OpDef {
        name: "InstanceNormalization",
        since: 6,
        inputs: &[req("input", "T"), req("scale", "T"), req("B", "T")],
        outputs: &[req("output", "T")],
        attrs: &[EPSILON],
        dtypes: &[("T", FLOATS)],
        infer: |c| infer_channels(c, &[1, 2]),
        reference: Some(|c| {
            let x = c.input(0)?;
            let channels = x.shape().get(1).copied().unwrap_or(1).max(1);
            Ok(vec![r::group_norm(x, c.input(1)?, c.input(2)?, channels, epsilon(c.attrs, 0))?])
        }),
        lower: &[Loops(instance_norm_lower)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,4,5];[3];[3]", "[1,2,6];[2];[2] epsilon=0.01"],
        ..ROW
    },
    // Per group of channels, scale and bias per group
    OpDef {
        name: "GroupNormalization",
        since: 18,
        until: 20,
        inputs: &[req("X", "T"), req("scale", "T"), req("bias", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[EPSILON, attr("num_groups", AttrKind::IntReq)],
        dtypes: &[("T", FLOATS)],
        infer: |c| infer_group_norm(c, true),
        reference: Some(group_norm_ref),
        lower: &[Loops(|c| group_norm_lower(c, true))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,4,3,2];[2];[2] num_groups=2", "[1,6,5];[3];[3] num_groups=3"],
        ..ROW
    },
    // Per group of channels, scale and bias per channel
    OpDef {
        name: "GroupNormalization",
        since: 21,
        inputs: &[req("X", "T"), req("scale", "T"), req("bias", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[EPSILON, attr("num_groups", AttrKind::IntReq), attr("stash_type", AttrKind::Int(1))],
        dtypes: &[("T", FLOATS)],
        infer: |c| infer_group_norm(c, false),
        reference: Some(group_norm_ref),
        lower: &[Loops(|c| group_norm_lower(c, false))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,4,3,2];[4];[4] num_groups=2", "[1,6,5];[6];[6] num_groups=3"],
        ..ROW
    },
    // Y = X / (bias + alpha/size · Σ X²)^beta, the sum over `size` channels around each
    OpDef {
        name: "LRN",
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[
            attr("alpha", AttrKind::Float(1e-4)),
            attr("beta", AttrKind::Float(0.75)),
            attr("bias", AttrKind::Float(1.0)),
            attr("size", AttrKind::IntReq),
        ],
        dtypes: &[("T", FLOATS)],
        infer: infer_lrn,
        reference: Some(|c| {
            let num = |i: usize| f64::from(c.attrs.float(i).unwrap_or(0.0));
            let size = usize::try_from(c.attrs.int(3).unwrap_or(1)).unwrap_or(1);
            Ok(vec![r::lrn(c.input(0)?, size, num(0), num(1), num(2))])
        }),
        lower: &[Loops(lrn_lower)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,5,2,3] size=3", "[1,4,3] size=2 alpha=0.5 beta=0.5 bias=2"],
        ..ROW
    },
    // Y = (X - mean) / (√variance + 1e-9) over `axes`
    OpDef {
        name: "MeanVarianceNormalization",
        since: 9,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[attr("axes", AttrKind::Ints)],
        dtypes: &[("T", FLOATS)],
        infer: |c| {
            if let Some(s) = c.shape(0) {
                for &a in c.attrs.ints(0).unwrap_or(&[0, 2, 3]) {
                    c.axis(a, s.len())?;
                }
            }
            same_type_as_0(c)
        },
        reference: Some(|c| {
            let x = c.input(0)?;
            Ok(vec![r::mean_variance_norm(x, &mvn_axes(c.attrs, x.shape().len()))])
        }),
        lower: &[Loops(mvn_lower)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,4,5]", "[2,5,3] axes=[1,-1]", "[6] axes=[0]"],
        ..ROW
    },
    // output = input / (Σ |x|ᵖ)^(1/p) along an axis; 0 where the sum is 0
    OpDef {
        name: "LpNormalization",
        inputs: &[req("input", "T")],
        outputs: &[req("output", "T")],
        attrs: &[attr("axis", AttrKind::Int(-1)), attr("p", AttrKind::Int(2))],
        dtypes: &[("T", FLOATS)],
        infer: infer_lp,
        reference: Some(|c| {
            let x = c.input(0)?;
            Ok(vec![r::lp_norm(x, ref_axis(c, x.shape().len()), c.attrs.int(1).unwrap_or(2))])
        }),
        lower: &[Loops(lp_lower)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3]", "[2,3,2] axis=1 p=1", "[2,2]{0,0,3,4}"],
        ..ROW
    },
];
