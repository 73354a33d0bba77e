//! Normalizations that exporters spell out.

use crate::lang::ENode;
use crate::pattern::Match;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use egg::Id;
use ir::attrs::Attr;
use ir::consts::{Const, ConstData};

/// x - mean(x)
macro_rules! centered {
    () => {
        "(Sub ?x (ReduceMean@m ?x ..))"
    };
}
/// The mean of the squares of what is centered
macro_rules! variance {
    () => {
        concat!("(ReduceMean@v <(Pow ", centered!(), " 2) (Mul ", centered!(), " ", centered!(), ")> ..)")
    };
}
/// The mean of the squares of x
macro_rules! mean_square {
    () => {
        "(ReduceMean@v <(Pow ?x 2) (Mul ?x ?x)> ..)"
    };
}

/// The table.
pub const RULES: &[Rule] = &[
    // layernorm(x) = (x - mean) / √(var + ε), without scale and bias (they follow as rules of their own)
    rule!("layernorm-core", Reassoc, idiom [
              concat!("(Div ", centered!(), " (Sqrt (Add~ ", variance!(), " ?e)))"),
              concat!("(Mul~ ", centered!(), " <(Reciprocal (Sqrt (Add~ ", variance!(), " ?e))) (Div 1 (Sqrt (Add~ ", variance!(), " ?e)))>)"),
              concat!("(Mul~ ", centered!(), " (Pow (Add~ ", variance!(), " ?e) -0.5))"),
          ] => code layernorm_core;
          "x:f32[a,b,8] e:f32[]=0.00001 @m/1:i64[1]=-1 @v/1:i64[1]=-1"),
    // d·(s·g) = (d·s)·g around the reciprocal root
    rule!("layernorm-scale-first", Reassoc, idiom [
              concat!("(Mul~ ", centered!(), " (Mul~ <(Reciprocal (Sqrt (Add~ ", variance!(), " ?e))) (Div 1 (Sqrt (Add~ ", variance!(), " ?e)))> ?g))"),
          ] => code layernorm_scale_first;
          "x:f32[a,b,8] e:f32[]=0.00001 g:f32[8] @m/1:i64[1]=-1 @v/1:i64[1]=-1"),
    // x·s + (b - mean·s) = (x - mean)·s + b with s = g / √(var + ε)
    rule!("layernorm-folded-mean", Reassoc, idiom [
              "(Add~ (Mul~ ?x ?s) (Sub ?b (Mul~ (ReduceMean@m ?x ..) ?s)))",
          ] => code layernorm_folded_mean;
          "x:f32[a,b,8] s:f32[a,b,8] b:f32[8] @m/1:i64[1]=-1"),
    // layernorm(x)·g, layernorm(x) + b
    rule!("layernorm-scale", Reassoc, idiom ["(Mul~ (LayerNormalization@n ?x 1 _) ?g)"] => code layernorm_scale;
          "x:f32[a,b,8] g:f32[8] @n.axis=-1"),
    rule!("layernorm-bias", Reassoc, idiom ["(Add~ (LayerNormalization@n ?x ?s _) ?b)"] => code layernorm_bias;
          "x:f32[a,b,8] s:f32[8] b:f32[8] @n.axis=-1"),
    // rmsnorm(x) = x / √(mean(x²) + ε)
    rule!("rmsnorm-core", Reassoc, idiom [
              concat!("(Div ?x (Sqrt (Add~ ", mean_square!(), " ?e)))"),
              concat!("(Mul~ ?x <(Reciprocal (Sqrt (Add~ ", mean_square!(), " ?e))) (Div 1 (Sqrt (Add~ ", mean_square!(), " ?e)))>)"),
              concat!("(Mul~ ?x (Pow (Add~ ", mean_square!(), " ?e) -0.5))"),
          ] => code rmsnorm_core;
          "x:f32[a,b,8] e:f32[]=0.00001 @v/1:i64[1]=-1"),
    // rmsnorm(x)·g
    rule!("rmsnorm-scale", Reassoc, idiom ["(Mul~ (RMSNormalization@n ?x 1) ?g)"] => code rmsnorm_scale;
          "x:f32[a,b,8] g:f32[8] @n.axis=-1"),
];

/// The first normalized axis, when a mean is over the last axes and keeps them.
fn mean_axis(cx: &Cx<'_>, mean: &ENode, x: Id) -> Result<usize, Skip> {
    let rank = cx.rank(x).ok_or(Skip::No)?;
    let axes =
        cx.ints_of(mean, "axes", 1).ok_or(Skip::Miss("the mean is over all axes or over computed ones".into()))?;
    let axes = cx.axes(&axes, rank);
    if cx.attr_int(mean, "keepdims").unwrap_or(1) != 1 {
        return miss("the mean drops its axes");
    }
    let first = rank.checked_sub(axes.len()).filter(|_| !axes.is_empty()).ok_or(Skip::No)?;
    if !axes.iter().copied().eq(first..rank) {
        return miss("the mean is not over the last axes");
    }
    Ok(first)
}

fn epsilon(cx: &Cx<'_>, e: Id, of: Id) -> Result<Attr, Skip> {
    match cx.scalar(e) {
        Some(v) if v >= 0.0 => cx.attr_of(of, v),
        _ => miss("epsilon is not a constant"),
    }
}

/// Ones of the normalized shape.
fn ones(cx: &mut Cx<'_>, x: Id, first: usize) -> Result<Id, Skip> {
    let shape = cx.shape(x).ok_or(Skip::No)?;
    let dtype = cx.dtype(x).ok_or(Skip::No)?;
    let extents: Option<Vec<usize>> =
        shape[first..].iter().map(|&d| cx.dim(d).and_then(|v| usize::try_from(v).ok())).collect();
    let Some(extents) = extents else { return miss("the normalized extent is not known") };
    let one = tensor::Tensor::from_f64_as(dtype, &[], &[1.0]);
    let data = ConstData::Splat(one.bytes().iter().copied().collect());
    let c = Const { dtype, shape: extents.into_iter().collect(), data, name: String::new() };
    let c = cx.eg.analysis.constant(c);
    Ok(cx.const_id(c))
}

fn core(cx: &mut Cx<'_>, m: &Match, op: &str) -> Result<Id, Skip> {
    let x = m.v("x");
    let first = mean_axis(cx, m.node("v"), x)?;
    if let Some(mean) = m.find_node("m")
        && mean_axis(cx, mean, x)? != first
    {
        return miss("mean and variance are over different axes");
    }
    let e = epsilon(cx, m.v("e"), x)?;
    let g = ones(cx, x, first)?;
    let axis = first as i64 - cx.rank(x).unwrap_or(0) as i64;
    cx.add(op, &[("axis", Attr::Int(axis)), ("epsilon", e)], &[x, g])
}

fn layernorm_core(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    core(cx, m, "LayerNormalization")
}

fn layernorm_scale_first(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let y = core(cx, m, "LayerNormalization")?;
    let g = m.v("g");
    if !cx.same_type(y, m.root) {
        return miss("the scale changes the shape");
    }
    cx.add("Mul", &[], &[y, g])
}

fn layernorm_folded_mean(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let mean = m.node("m").clone();
    let mean = cx.eg.lookup(mean).ok_or(Skip::No)?;
    let d = cx.add("Sub", &[], &[m.v("x"), mean])?;
    let y = cx.add("Mul", &[], &[d, m.v("s")])?;
    cx.add("Add", &[], &[y, m.v("b")])
}

/// A scale or bias as a tensor of the normalized shape.
fn affine(cx: &mut Cx<'_>, n: &ENode, x: Id, g: Id) -> Result<Id, Skip> {
    let shape = cx.shape(x).ok_or(Skip::No)?;
    let axis = cx.attr_int(n, "axis").unwrap_or(-1);
    let first = usize::try_from(if axis < 0 { axis + shape.len() as i64 } else { axis }).map_err(|_| Skip::No)?;
    let have = cx.shape(g).ok_or(Skip::No)?;
    if cx.dtype(g) != cx.dtype(x) {
        return miss("scale or bias has another dtype");
    }
    let want = shape.get(first..).ok_or(Skip::No)?.to_vec();
    if cx.same_dims(&have, &want) {
        return Ok(g);
    }
    // Leading axes of extent 1 are dropped from constants.
    let lead = have.len().saturating_sub(want.len());
    if have.len() <= shape.len()
        && have[..lead].iter().all(|&d| cx.dim(d) == Some(1))
        && cx.same_dims(&have[lead..], &want)
    {
        let spec: Option<Vec<i64>> = want.iter().map(|&d| cx.dim(d)).collect();
        let spec = cx.ints_const(&spec.ok_or(Skip::No)?);
        return cx.add("Reshape", &[], &[g, spec]);
    }
    miss("scale or bias has not the normalized shape")
}

fn layernorm_scale(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let n = m.node("n").clone();
    let x = m.v("x");
    let g = affine(cx, &n, x, m.v("g"))?;
    cx.with_kids(&n, &[x, g])
}

fn layernorm_bias(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let n = m.node("n").clone();
    let x = m.v("x");
    if !matches!(cx.splat(m.v("s")), Some(v) if v == 1.0) && cx.same_type(m.v("b"), m.root) && !cx.is_const(m.v("b")) {
        return Err(Skip::No); // a residual, not a bias
    }
    let b = affine(cx, &n, x, m.v("b"))?;
    cx.with_kids(&n, &[x, m.v("s"), b])
}

fn rmsnorm_core(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    core(cx, m, "RMSNormalization")
}

fn rmsnorm_scale(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let n = m.node("n").clone();
    let x = m.v("x");
    let g = affine(cx, &n, x, m.v("g"))?;
    cx.with_kids(&n, &[x, g])
}
