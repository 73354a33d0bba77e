//! Convolutions: constants and paddings folded in, epilogues fused on.

use crate::lang::ENode;
use crate::pattern::Match;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use crate::rules::activation::{activation, set_activation};
use egg::Id;
use ir::attrs::Attr;
use tensor::DType;

/// The table.
pub const RULES: &[Rule] = &[
    // bn(x ∗ w + b) = x ∗ (w·s) + ((b - mean)·s + offset) with s = scale / √(variance + ε), all constants
    rule!("bn-into-conv", Reassoc, idiom ["(BatchNormalization@n (Conv@c ?x ?w ?b) ?s ?o ?m ?v)"] => code bn_into_conv;
          "x:f32[n,c,5,5] w:f32[m,c,3,3]!c b:f32[m]!c s:f32[m]!c o:f32[m]!c m:f32[m]!c v:f32[m]!c!pos",
          "x:f32[n,c,5] w:f32[m,c,3]!c b: s:f32[m]!c o:f32[m]!c m:f32[m]!c v:f32[m]!c!pos"),
    // (x ∗ w + b) + c = x ∗ w + (b + c) for a constant c per channel
    rule!("add-into-conv", Reassoc, idiom ["(Add~ (Conv@c ?x ?w ?b) ?k)"] => code add_into_conv;
          "x:f32[n,c,5,5] w:f32[m,c,3,3]!c b:f32[m]!c k:f32[1,m,1,1]!c", "x:f32[n,c,5,5] w:f32[m,c,3,3] b: k:f32[m,1,1]!c"),
    // (x ∗ w + b)·c = x ∗ (w·c) + b·c for a constant c per channel
    rule!("mul-into-conv", Reassoc, idiom ["(Mul~ (Conv@c ?x ?w ?b) ?k)", "(Div (Conv@c ?x ?w ?b) ?d)"] => code mul_into_conv;
          "#0 x:f32[n,c,5,5] w:f32[m,c,3,3]!c b:f32[m]!c k:f32[1,m,1,1]!c", "#0 x:f32[n,c,5,5] w:f32[m,c,3,3]!c b: k:f32[]=3",
          "#1 x:f32[n,c,5,5] w:f32[m,c,3,3]!c b:f32[m]!c d:f32[m,1,1]!c!pos"),
    // conv(pad(x, 0)) = conv(x) with larger pads
    rule!("pad-into-conv", Exact, idiom ["(Conv@c (Pad@p ?x ..) ?w ?b)"] => code pad_into_conv;
          "x:f32[n,c,5,5] w:f32[m,c,3,3] b: @p/1:i64[8]=0,0,1,1,0,0,2,0"),
    // maxpool(pad(x, p)) = maxpool(x) with larger pads, for p = -∞ or p = 0 ≤ x, each pad below the kernel's extent
    rule!("pad-into-maxpool", Exact, idiom ["(MaxPool@c (Pad@p ?x ..))"] => code pad_into_maxpool;
          "x:f32[n,c,5,5] @p/1:i64[8]=0,0,1,1,0,0,1,1 @p/2:f32[]=-inf @c.kernel_shape=3,3 @c.strides=2,2"),
    // averagepool(pad(x, 0)) = averagepool(x) with larger pads that count
    rule!("pad-into-averagepool", Exact, idiom ["(AveragePool@c (Pad@p ?x ..))"] => code pad_into_averagepool;
          "x:f32[n,c,5,5] @p/1:i64[8]=0,0,1,1,0,0,1,1 @c.kernel_shape=3,3"),
    // A convolution is a fused convolution without epilogue
    rule!("conv-as-fused", Exact, law ["(Conv@c ?x ?w ?b)"] => code conv_as_fused;
          "x:f32[n,c,5,5] w:f32[m,c,3,3] b:f32[m]", "x:f32[n,c,7,6] w:f32[m,c,3,3] b: @c.pads=1,0,2,1 @c.strides=2,1"),
    // f(conv(x)) as an epilogue
    rule!("conv-activation", Reassoc, idiom [
              "(Relu|Clip|Sigmoid|Tanh|HardSigmoid|hip:Gelu|hip:Silu@f (hip:FusedConv@c ?x ?w ?b ?r) ..)",
          ] => code conv_activation;
          "x:f32[n,c,5,5] w:f32[m,c,3,3] b:f32[m] r: @c.kernel_shape=3,3 @c.strides=1,1 @c.dilations=1,1 @c.pads=0,0,0,0"),
    // conv(x) + r as an epilogue
    rule!("conv-residual", Reassoc, idiom ["(Add~ (hip:FusedConv@c ?x ?w ?b _) ?r)"] => code conv_residual;
          "x:f32[n,c,5,5] w:f32[m,c,3,3] b:f32[m] r:f32[n,m,3,3] @c.kernel_shape=3,3 @c.strides=1,1 @c.dilations=1,1 @c.pads=0,0,0,0"),
];

fn real(cx: &Cx<'_>, id: Id) -> Result<DType, Skip> {
    match cx.dtype(id) {
        Some(d @ (DType::F32 | DType::F64)) => Ok(d),
        _ => miss("constants of this dtype would lose precision"),
    }
}

/// Output channels and rank of a convolution's weight.
fn channels(cx: &Cx<'_>, w: Id) -> Result<(i64, usize), Skip> {
    let shape = cx.shape(w).ok_or(Skip::No)?;
    let m = shape.first().and_then(|&d| cx.dim(d)).ok_or(Skip::No)?;
    Ok((m, shape.len()))
}

/// A constant per channel, as a vector [m]: its shape broadcasts to [1, m, 1, …]. A scalar is repeated.
fn per_channel(cx: &mut Cx<'_>, k: Id, m: i64, rank: usize) -> Result<Id, Skip> {
    if !cx.is_const(k) {
        return miss("the other operand is not a constant");
    }
    let shape = cx.static_shape(k).ok_or(Skip::No)?;
    if shape.iter().all(|&d| d == 1) && shape.len() <= rank {
        let one = cx.ints_const(&[1]);
        let k = cx.add("Reshape", &[], &[k, one])?;
        let m = cx.ints_const(&[m]);
        return cx.add("Expand", &[], &[k, m]);
    }
    let from_end = rank - 1;
    let fits = shape.len() <= rank
        && shape.iter().rev().enumerate().all(|(i, &d)| if i + 1 == from_end { d == m } else { d == 1 });
    if !fits || shape.len() < from_end {
        return miss("the constant is not one value per channel");
    }
    let m = cx.ints_const(&[m]);
    cx.add("Reshape", &[], &[k, m])
}

/// w · s with s one factor per output channel.
fn scaled(cx: &mut Cx<'_>, w: Id, s: Id, rank: usize) -> Result<Id, Skip> {
    let mut shape = vec![1; rank];
    shape[0] = -1;
    let spec = cx.ints_const(&shape);
    let s = cx.add("Reshape", &[], &[s, spec])?;
    cx.add("Mul", &[], &[w, s])
}

/// Node `c` over folded weights and bias, if folding left numbers.
fn refolded(cx: &mut Cx<'_>, c: &ENode, x: Id, w: Id, b: Id) -> Result<Id, Skip> {
    if !cx.is_finite(w) || !(cx.absent(b) || cx.is_finite(b)) {
        return miss("the folded weights overflow");
    }
    cx.with_kids(c, &[x, w, b])
}

fn bn_into_conv(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (n, c) = (m.node("n").clone(), m.node("c").clone());
    if !matches!(n.head, crate::lang::Head::Op { n_outs: 1, .. }) || cx.attr_int(&n, "training_mode").unwrap_or(0) != 0
    {
        return miss("the normalization is in training mode");
    }
    if cx.attr_int(&n, "spatial").unwrap_or(1) != 1 {
        return miss("the normalization is not per channel");
    }
    let dtype = real(cx, m.root)?;
    let (w, b) = (m.v("w"), m.v("b"));
    for (name, what) in [("s", "scale"), ("o", "offset"), ("m", "mean"), ("v", "variance"), ("w", "weight")] {
        if !cx.is_const(m.v(name)) {
            return miss(format!("the {what} is not a constant"));
        }
    }
    if !cx.absent(b) && !cx.is_const(b) {
        return miss("the bias is not a constant");
    }
    let (_, rank) = channels(cx, w)?;
    let eps = cx.attr_float(&n, "epsilon").unwrap_or(1e-5);
    let eps = cx.scalar_const(dtype, eps.into());
    let v = cx.add("Add", &[], &[m.v("v"), eps])?;
    let root = cx.add("Sqrt", &[], &[v])?;
    let s = cx.add("Div", &[], &[m.v("s"), root])?;
    let w = scaled(cx, w, s, rank)?;
    let mean = m.v("m");
    let shift = if cx.absent(b) { cx.add("Neg", &[], &[mean])? } else { cx.add("Sub", &[], &[b, mean])? };
    let shift = cx.add("Mul", &[], &[shift, s])?;
    let b = cx.add("Add", &[], &[shift, m.v("o")])?;
    refolded(cx, &c, m.v("x"), w, b)
}

fn add_into_conv(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let c = m.node("c").clone();
    if !cx.is_const(m.v("k")) {
        return Err(Skip::No);
    }
    let (w, b) = (m.v("w"), m.v("b"));
    let (n, rank) = channels(cx, w)?;
    let k = per_channel(cx, m.v("k"), n, rank)?;
    let b = if cx.absent(b) {
        k
    } else if cx.is_const(b) {
        real(cx, m.root)?;
        cx.add("Add", &[], &[b, k])?
    } else {
        return miss("the bias is not a constant");
    };
    cx.with_kids(&c, &[m.v("x"), w, b])
}

fn mul_into_conv(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let c = m.node("c").clone();
    let (k, divide) = match (m.get("k"), m.get("d")) {
        (Some(k), _) => (k, false),
        (_, Some(d)) => (d, true),
        _ => return Err(Skip::No),
    };
    if !cx.is_const(k) {
        return Err(Skip::No);
    }
    let (w, b) = (m.v("w"), m.v("b"));
    let (n, rank) = channels(cx, w)?;
    let mut k = per_channel(cx, k, n, rank)?;
    if !cx.is_const(w) || !(cx.absent(b) || cx.is_const(b)) {
        return miss("weight or bias is not a constant");
    }
    let dtype = real(cx, m.root)?;
    if divide {
        let one = cx.scalar_const(dtype, 1.0);
        k = cx.add("Div", &[], &[one, k])?;
    }
    let w = scaled(cx, w, k, rank)?;
    let b = if cx.absent(b) { b } else { cx.add("Mul", &[], &[b, k])? };
    refolded(cx, &c, m.v("x"), w, b)
}

/// Pads of a constant Pad over the spatial axes (all begins, then all ends) and the value.
fn spatial_pads(cx: &Cx<'_>, p: &ENode, x: Id) -> Result<(Vec<i64>, f64), Skip> {
    let rank = cx.rank(x).ok_or(Skip::No)?;
    if cx.attr_str(p, "mode") != "constant" {
        return miss("the padding is not constant");
    }
    let pads = cx.ints_of(p, "pads", 1).ok_or(Skip::Miss("the pads are computed".into()))?;
    if cx.kid(p, 3).is_some() || pads.len() != 2 * rank || rank < 3 {
        return miss("the padding names axes");
    }
    if pads.iter().any(|&x| x < 0) {
        return miss("a pad is negative");
    }
    if [0, 1, rank, rank + 1].iter().any(|&i| pads[i] != 0) {
        return miss("batch or channels are padded");
    }
    let value = match (cx.def(p).and_then(|d| d.slot("value")), cx.kid(p, 2)) {
        (Some(_), _) => cx.attr_float(p, "value").unwrap_or(0.0).into(),
        (None, Some(v)) => cx.splat(v).ok_or(Skip::Miss("the padding value is computed".into()))?,
        (None, None) => 0.0,
    };
    Ok((pads[2..rank].iter().chain(&pads[rank + 2..]).copied().collect(), value))
}

/// The node's own pads, when they are given as numbers.
fn own_pads(cx: &Cx<'_>, c: &ENode, n_spatial: usize) -> Result<Vec<i64>, Skip> {
    match cx.attr_str(c, "auto_pad").as_str() {
        "" | "NOTSET" => Ok(cx.attr_ints(c, "pads").unwrap_or_else(|| vec![0; 2 * n_spatial])),
        "VALID" => Ok(vec![0; 2 * n_spatial]),
        _ => miss("its own padding is automatic"),
    }
}

fn with_pads(cx: &mut Cx<'_>, c: &ENode, pads: &[i64], more: &[(&str, Attr)], kids: &[Id]) -> Result<Id, Skip> {
    let mut change = vec![("pads", Attr::Ints(pads.into())), ("auto_pad", Attr::Str("NOTSET".into()))];
    change.extend(more.iter().cloned());
    cx.with_attrs(c, &change, kids)
}

fn pad_into_conv(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (c, x) = (m.node("c").clone(), m.v("x"));
    let (pads, value) = spatial_pads(cx, m.node("p"), x)?;
    if value != 0.0 {
        return miss("the padding value is not 0");
    }
    let own = own_pads(cx, &c, pads.len() / 2)?;
    let sum: Vec<i64> = pads.iter().zip(&own).map(|(a, b)| a + b).collect();
    with_pads(cx, &c, &sum, &[], &[x, m.v("w"), m.v("b")])
}

fn pool_is_plain(cx: &Cx<'_>, c: &ENode) -> Result<(), Skip> {
    let one = matches!(c.head, crate::lang::Head::Op { n_outs: 1, .. });
    if !one || cx.attr_int(c, "ceil_mode").unwrap_or(0) != 0 {
        return miss("the pooling rounds up or gives indices");
    }
    Ok(())
}

fn pad_into_maxpool(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (c, x) = (m.node("c").clone(), m.v("x"));
    let (pads, value) = spatial_pads(cx, m.node("p"), x)?;
    pool_is_plain(cx, &c)?;
    if value != f64::NEG_INFINITY && !(value == 0.0 && cx.data(x).range.0 >= 0.0) {
        return miss(format!("the padding value {value} could win"));
    }
    let own = own_pads(cx, &c, pads.len() / 2)?;
    let sum: Vec<i64> = pads.iter().zip(&own).map(|(a, b)| a + b).collect();
    let kernel = cx.attr_ints(&c, "kernel_shape").ok_or(Skip::No)?;
    if sum.iter().enumerate().any(|(i, &p)| p >= kernel[i % kernel.len()]) {
        return miss("a window would lie in the padding alone");
    }
    with_pads(cx, &c, &sum, &[], &[x])
}

fn pad_into_averagepool(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (c, x) = (m.node("c").clone(), m.v("x"));
    let (pads, value) = spatial_pads(cx, m.node("p"), x)?;
    pool_is_plain(cx, &c)?;
    if value != 0.0 {
        return miss("the padding value is not 0");
    }
    let own = own_pads(cx, &c, pads.len() / 2)?;
    if own.iter().any(|&p| p != 0) && cx.attr_int(&c, "count_include_pad") != Some(1) {
        return miss("the pooling's own padding does not count");
    }
    let sum: Vec<i64> = pads.iter().zip(&own).map(|(a, b)| a + b).collect();
    let kernel = cx.attr_ints(&c, "kernel_shape").ok_or(Skip::No)?;
    if sum.iter().enumerate().any(|(i, &p)| p >= kernel[i % kernel.len()]) {
        return miss("a window would lie in the padding alone");
    }
    with_pads(cx, &c, &sum, &[("count_include_pad", Attr::Int(1))], &[x])
}

fn conv_as_fused(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (c, x, w) = (m.node("c").clone(), m.v("x"), m.v("w"));
    let shape = cx.static_shape(w).ok_or(Skip::No)?;
    let n = shape.len().checked_sub(2).filter(|&n| n > 0).ok_or(Skip::No)?;
    let ones = vec![1; n];
    let strides = cx.attr_ints(&c, "strides").unwrap_or_else(|| ones.clone());
    let dilations = cx.attr_ints(&c, "dilations").unwrap_or(ones);
    let kernel = shape[2..].to_vec();
    let pads = match own_pads(cx, &c, n) {
        Ok(p) => p,
        Err(_) => {
            // Automatic padding of known extents.
            let x = cx.shape(x).ok_or(Skip::No)?;
            let upper = cx.attr_str(&c, "auto_pad") == "SAME_UPPER";
            let mut pads = vec![0; 2 * n];
            for i in 0..n {
                let d = cx.dim(x[i + 2]).ok_or(Skip::No)?;
                let out = (d + strides[i] - 1) / strides[i];
                let all = ((out - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - d).max(0);
                let small = all / 2;
                (pads[i], pads[n + i]) = if upper { (small, all - small) } else { (all - small, small) };
            }
            pads
        }
    };
    let ints = |v: Vec<i64>| Attr::Ints(v.into());
    let group = Attr::Int(cx.attr_int(&c, "group").unwrap_or(1));
    let attrs = [
        ("kernel_shape", ints(kernel)),
        ("strides", ints(strides)),
        ("dilations", ints(dilations)),
        ("pads", ints(pads)),
        ("group", group),
    ];
    cx.add("hip:FusedConv", &attrs, &[x, w, m.v("b")])
}

fn conv_activation(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (c, f) = (m.node("c").clone(), m.node("f").clone());
    let act = activation(cx, &f, m.root)?;
    set_activation(cx, &c, &act)
}

fn conv_residual(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (c, r) = (m.node("c").clone(), m.v("r"));
    if !cx.attr_str(&c, "activation").is_empty() {
        return Err(Skip::No);
    }
    let product = cx.eg.lookup(c.clone()).ok_or(Skip::No)?;
    if cx.is_const(r) || !cx.same_type(r, m.root) || !cx.same_type(product, m.root) {
        return Err(Skip::No);
    }
    let b = m.v("b");
    cx.with_kids(&c, &[m.v("x"), m.v("w"), b, r])
}
