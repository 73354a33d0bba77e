//! Activations that exporters spell out.

use crate::lang::ENode;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use egg::Id;
use ir::attrs::Attr;
use tensor::DType;

/// 1 + erf(x / √2)
macro_rules! erf1 {
    () => {
        "(Add~ (Erf <(Div ?x 1.4142135623730951) (Mul~ ?x 0.7071067811865476)>) 1)"
    };
}
/// x³
macro_rules! cube {
    () => {
        "<(Pow ?x 3) (Mul~ ?x (Mul ?x ?x)) (Mul~ ?x (Pow ?x 2))>"
    };
}
/// 1 + tanh(√(2/π)·(x + 0.044715·x³)), with the factor before or after, x factored out or not
macro_rules! tanh1 {
    () => {
        concat!(
            "(Add~ (Tanh <",
            "(Mul~ (Add~ ?x (Mul~ ", cube!(), " 0.044715)) 0.7978845608028654)",
            "(Mul~ (Mul~ ?x 0.7978845608028654) (Add~ <(Mul~ (Mul~ ?x 0.044715) ?x) (Mul~ (Mul ?x ?x) 0.044715) (Mul~ (Pow ?x 2) 0.044715)> 1))",
            "(Mul~ ?x (Mul~ (Add~ <(Mul~ (Mul~ ?x 0.044715) ?x) (Mul~ (Mul ?x ?x) 0.044715) (Mul~ (Pow ?x 2) 0.044715)> 1) 0.7978845608028654))",
            "(Mul~ ?x (Add~ <(Mul~ (Mul ?x ?x) 0.035677408136300125) (Mul~ (Pow ?x 2) 0.035677408136300125)> 0.7978845608028654))",
            ">) 1)"
        )
    };
}

/// The table.
pub const RULES: &[Rule] = &[
    // gelu(x) = ½·x·(1 + erf(x / √2)), ½ and the division in any place
    rule!("gelu-erf", Reassoc, idiom [
              concat!("(Mul~ (Mul~ ?x ", erf1!(), ") 0.5)"), concat!("(Mul~ ?x (Mul~ ", erf1!(), " 0.5))"),
              concat!("(Mul~ (Mul~ ?x 0.5) ", erf1!(), ")"), concat!("(Div (Mul~ ?x ", erf1!(), ") 2)"),
              concat!("(Mul~ ?x (Div ", erf1!(), " 2))"), concat!("(Mul~ (Div ?x 2) ", erf1!(), ")"),
          ] => text "(hip:Gelu{approximate=none} ?x)";
          "x:f32[a,b]"),
    // gelu(x) ≈ ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
    rule!("gelu-tanh", Reassoc, idiom [
              concat!("(Mul~ (Mul~ ?x ", tanh1!(), ") 0.5)"), concat!("(Mul~ ?x (Mul~ ", tanh1!(), " 0.5))"),
              concat!("(Mul~ (Mul~ ?x 0.5) ", tanh1!(), ")"),
          ] => text "(hip:Gelu{approximate=tanh} ?x)";
          "x:f32[a,b]"),
    // ONNX's own Gelu
    rule!("gelu-onnx", Reassoc, law ["(Gelu{approximate=?a} ?x)"] => text "(hip:Gelu{approximate=?a} ?x)";
          "x:f32[a,b] a=tanh", "x:f32[a,b] a=none"),
    // silu(x) = x·σ(x) (at -∞ both are NaN)
    rule!("silu", Reassoc, idiom ["(Mul~ ?x (Sigmoid ?x))"] => text "(hip:Silu ?x)"; "x:f32[a,b]"),
    // hardsigmoid(x) = clip(x + 3, 0, 6) / 6
    rule!("hard-sigmoid", Reassoc, idiom [
              "(Div (Clip@c (Add~ ?x 3) ..) 6)", "(Mul~ (Clip@c (Add~ ?x 3) ..) 0.16666666666666666)",
          ] => text "(HardSigmoid{alpha=0.16666666666666666 beta=0.5} ?x)",
          if "it clips to 0 … 6", |cx, m| clip_bounds(cx, m.node("c")) == Some((0.0, 6.0)),
          if "an attribute holds a sixth as precisely", |cx, m| cx.dtype(m.root) != Some(DType::F64);
          "x:f32[a,b] @c/1:f32[]=0 @c/2:f32[]=6"),
    // hardswish(x) = x·hardsigmoid(x) = x·clip(x + 3, 0, 6) / 6
    rule!("hard-swish", Reassoc, idiom [
              "(Div (Mul~ ?x (Clip@c (Add~ ?x 3) ..)) 6)", "(Mul~ (Mul~ ?x (Clip@c (Add~ ?x 3) ..)) 0.16666666666666666)",
              "(Mul~ ?x (Div (Clip@c (Add~ ?x 3) ..) 6))", "(Mul~ ?x (Mul~ (Clip@c (Add~ ?x 3) ..) 0.16666666666666666))",
              "(Mul~ (Div ?x 6) (Clip@c (Add~ ?x 3) ..))",
          ] => text "(HardSwish ?x)",
          if "it clips to 0 … 6", |cx, m| clip_bounds(cx, m.node("c")) == Some((0.0, 6.0));
          "x:f32[a,b] @c/1:f32[]=0 @c/2:f32[]=6"),
    rule!("hard-swish-of-sigmoid", Reassoc, law [
              "(Mul~ ?x (HardSigmoid{alpha=0.16666666666666666 beta=0.5} ?x))",
          ] => text "(HardSwish ?x)",
          if "an attribute holds a sixth as precisely", |cx, m| cx.dtype(m.root) != Some(DType::F64);
          "x:f32[a,b]"),
    // clip(x, 0, ∞) = max(x, 0)
    rule!("clip-is-relu", Exact, law ["(Clip@c ?x ..)"] => text "(Relu ?x)",
          if "it clips to 0 … ∞", |cx, m| clip_bounds(cx, m.node("c")) == Some((0.0, f64::INFINITY)),
          if "the elements have signs", |cx, m| cx.dtype(m.root).is_some_and(DType::is_signed);
          "x:f32[a,b] @c/1:f32[]=0"),
];

/// Constant bounds of a Clip, which are attributes in old versions.
pub(crate) fn clip_bounds(cx: &Cx<'_>, c: &ENode) -> Option<(f64, f64)> {
    let bound = |name: &str, i: usize, free: f64| match (cx.def(c)?.slot(name), cx.kid(c, i)) {
        (Some(_), _) => {
            cx.attr_float(c, name).map_or(Some(free), |v| Some(if v.abs() == f32::MAX { free } else { v.into() }))
        }
        (None, Some(k)) => cx.splat(k),
        (None, None) => Some(free),
    };
    Some((bound("min", 1, f64::NEG_INFINITY)?, bound("max", 2, f64::INFINITY)?))
}

/// An activation as an epilogue: its name, and two parameters for those that have them.
pub(crate) struct Activation(&'static str, Option<(Attr, Attr)>);

/// The epilogue that applies what node `f`, of class `of`, does.
pub(crate) fn activation(cx: &Cx<'_>, f: &ENode, of: Id) -> Result<Activation, Skip> {
    let name = cx.def(f).map_or("", |d| d.name);
    Ok(match name {
        "Relu" => Activation("relu", None),
        "Sigmoid" => Activation("sigmoid", None),
        "Tanh" => Activation("tanh", None),
        "Silu" => Activation("silu", None),
        "Gelu" if cx.attr_str(f, "approximate") == "tanh" => Activation("gelu_tanh", None),
        "Gelu" => Activation("gelu", None),
        "HardSigmoid" => {
            let (a, b) = (cx.attr_float(f, "alpha").unwrap_or(0.2), cx.attr_float(f, "beta").unwrap_or(0.5));
            Activation("hard_sigmoid", Some((cx.attr_of(of, a.into())?, cx.attr_of(of, b.into())?)))
        }
        "Clip" => match clip_bounds(cx, f) {
            Some((lo, hi)) if lo <= hi => Activation("clip", Some((cx.attr_of(of, lo)?, cx.attr_of(of, hi)?))),
            Some(_) => return miss("the bounds are in the wrong order"),
            None => return miss("the bounds are computed"),
        },
        _ => return Err(Skip::No),
    })
}

/// Node `n` (a fused convolution or product) with the activation as its epilogue.
pub(crate) fn set_activation(cx: &mut Cx<'_>, n: &ENode, act: &Activation) -> Result<Id, Skip> {
    if !cx.attr_str(n, "activation").is_empty() {
        return miss("it has an activation already");
    }
    let kids = n.kids.to_vec();
    let mut change = vec![("activation", Attr::Str(act.0.into()))];
    if let Some((lo, hi)) = &act.1 {
        change.push(("act_lo", lo.clone()));
        change.push(("act_hi", hi.clone()));
    }
    cx.with_attrs(n, &change, &kids)
}
