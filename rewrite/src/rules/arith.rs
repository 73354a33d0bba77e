//! Identities and constant arithmetic of elementwise operators.

use crate::pattern::Match;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use egg::Id;
use tensor::dims::Proof;
use tensor::{DType, DimId, Tensor};

fn keeps_type(cx: &mut Cx<'_>, m: &Match) -> bool {
    cx.same_type(m.v("x"), m.root)
}

/// The table.
pub const RULES: &[Rule] = &[
    // x + 0 = x (a zero may change its sign)
    rule!("add-zero", Exact, law ["(Add~ ?x 0)"] => text "?x", if "x has the type of the sum", keeps_type;
          "x:f32[a,b]", "x:i64[a]"),
    // x - 0 = x
    rule!("sub-zero", Exact, law ["(Sub ?x 0)"] => text "?x", if "x has the type of the result", keeps_type;
          "x:f32[a,b]"),
    // x · 1 = x, x / 1 = x, x¹ = x
    rule!("mul-one", Exact, law ["(Mul~ ?x 1)", "(Div ?x 1)", "(Pow ?x 1)"] => text "?x",
          if "x has the type of the result", keeps_type;
          "x:f32[a,b]"),
    // x² = x · x
    rule!("square", Reassoc, law ["(Pow ?x 2)"] => text "(Mul ?x ?x)", if "x has the type of the result", keeps_type;
          "x:f32[a,b]"),
    // -(-x) = x, ¬¬x = x
    rule!("involution", Exact, law ["(Neg (Neg ?x))", "(Not (Not ?x))"] => text "?x"; "#0 x:f32[a,b]", "#1 x:bool[a]"),
    // f(f(x)) = f(x) for max(·, 0), |·| and rounding
    rule!("idempotent", Exact, law [
              "(Relu (Relu ?x))", "(Abs (Abs ?x))", "(Floor (Floor ?x))", "(Ceil (Ceil ?x))", "(Round (Round ?x))",
          ] => code idempotent;
          "x:f32[a,b]"),
    // max(x, 0) = x for x ≥ 0
    rule!("relu-of-nonnegative", Exact, law ["(Relu ?x)"] => text "?x",
    if "no element is negative", |cx, m| cx.data(m.v("x")).range.0 >= 0.0;
          "x:f32[a]!c!pos"),
    // (x · a) · b = x · (a · b) and the same with division, for constants a and b of one element, a · b finite and not 0
    rule!("scale-twice", Reassoc, law [
              "(Mul~ (Mul~ ?x ?a) ?b)", "(Mul~ (Div ?x ?d) ?b)", "(Div (Mul~ ?x ?a) ?e)", "(Div (Div ?x ?d) ?e)",
          ] => code scale_twice;
          "#0 x:f32[m,n] a:f32[]=3 b:f32[]=0.5", "#1 x:f32[m,n] d:f32[]=3 b:f32[]=0.5",
          "#2 x:f32[m,n] a:f32[]=3 e:f32[1]=0.7", "#3 x:f32[m,n] d:f32[]=3 e:f32[]=5"),
    // The sum, product, maximum, minimum, mean of one is itself
    rule!("variadic-of-one", Exact, law ["(Sum ?x)", "(Max ?x)", "(Min ?x)", "(Mean ?x)", "(Concat ?x)"] => text "?x";
          "x:f32[a,b]"),
    // Σ(x, y) = x + y
    rule!("sum-of-two", Exact, law ["(Sum ?x ?y)"] => text "(Add ?x ?y)"; "x:f32[a,b] y:f32[a,b]", "x:f32[a,b] y:f32[b]"),
    // where(true, x, y) = x, where(false, x, y) = y
    rule!("where-const", Exact, law ["(Where ?c ?x ?y)"] => code where_const;
          "c:bool[]=1 x:f32[a,b] y:f32[b]", "c:bool[2]=0,0 x:f32[2] y:f32[a,2]"),
    // where(a = b, x, y) = y when no element of a and b can be equal, x when all are (extents are never -1)
    rule!("where-extents", Exact, law ["(Where (Equal ?a ?b) ?x ?y)"] => code where_extents;
          "a:i64[2]=3,4 b:i64[]=-1 x:i64[]=1 y:i64[2]=5,6", "a:i64[2]=3,4 b:i64[2]=3,4 x:i64[2]=1,2 y:i64[]=5"),
    // Dropout outside training is x
    rule!("dropout", Exact, law ["(Dropout@d ?x ..)"] => code dropout; "x:f32[a,b]"),
    rule!("identity", Exact, law ["(Identity ?x)"] => text "?x"; "x:f32[a,b]"),
];

fn idempotent(_: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    m.root_node.as_ref().map(|n| n.kids[0]).ok_or(Skip::No)
}

/// Whether a float type holds `v` with all its digits: neither 0 nor subnormal nor infinite.
fn is_normal(dtype: DType, v: f64) -> bool {
    let least = match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F32 | DType::BF16 => f32::MIN_POSITIVE.into(),
        DType::F16 => 2f64.powi(-14),
        _ => return false,
    };
    let held = Tensor::from_f64_as(dtype, &[], &[v]).to_f64_vec();
    held.iter().all(|h| h.is_finite() && h.abs() >= least)
}

fn scale_twice(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let dtype = cx.dtype(m.root).filter(|d| d.is_float()).ok_or(Skip::No)?;
    let mut scale = 1.0;
    for (name, inverse) in [("a", false), ("b", false), ("d", true), ("e", true)] {
        if let Some(id) = m.get(name) {
            let v = cx.scalar(id).ok_or(Skip::No)?;
            scale *= if inverse { 1.0 / v } else { v };
        }
    }
    if !is_normal(dtype, scale) {
        return miss("the product of the constants is not a normal number");
    }
    let x = m.v("x");
    if !cx.same_type(x, m.root) {
        return Err(Skip::No);
    }
    let c = cx.scalar_const(dtype, scale);
    cx.add("Mul", &[], &[x, c])
}

fn where_const(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let x = match cx.splat(m.v("c")) {
        Some(1.0) => m.v("x"),
        Some(0.0) => m.v("y"),
        _ => return Err(Skip::No),
    };
    if cx.same_type(x, m.root) { Ok(x) } else { Err(Skip::No) }
}

fn where_extents(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (Some(a), Some(b)) = (cx.data(m.v("a")).values.clone(), cx.data(m.v("b")).values.clone()) else {
        return Err(Skip::No);
    };
    let n = a.len().max(b.len());
    if n == 0 || (a.len() != n && a.len() != 1) || (b.len() != n && b.len() != 1) {
        return Err(Skip::No);
    }
    let pick = |v: &[DimId], i: usize| v[if v.len() == 1 { 0 } else { i }];
    let proofs: Vec<Proof> = (0..n).map(|i| cx.eg.analysis.dims.prove_eq(pick(&a, i), pick(&b, i))).collect();
    let x = if proofs.iter().all(|&p| p == Proof::No) {
        m.v("y")
    } else if proofs.iter().all(|&p| p == Proof::Yes) {
        m.v("x")
    } else {
        return Err(Skip::No);
    };
    if cx.same_type(x, m.root) { Ok(x) } else { Err(Skip::No) }
}

fn dropout(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let d = m.node("d");
    if !matches!(d.head, crate::lang::Head::Op { n_outs: 1, .. }) {
        return Err(Skip::No);
    }
    match cx.kid(d, 2) {
        Some(training) if cx.splat(training) != Some(0.0) => miss("training mode is not off"),
        _ => Ok(m.v("x")),
    }
}
