//! Matrix products with epilogues.

use crate::lang::ENode;
use crate::pattern::Match;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use crate::rules::activation::{activation, set_activation};
use crate::rules::layout::perm;
use egg::Id;
use ir::attrs::{Attr, F32};

/// The table.
pub const RULES: &[Rule] = &[
    // A product of matrices is a fused product without epilogue
    rule!("matmul-as-fused", Exact, law ["(MatMul ?a ?b)"] => text "(hip:FusedMatMul ?a ?b)",
          if "both are matrices of floats", |cx, m| {
              let floats = cx.dtype(m.v("a")).is_some_and(tensor::DType::is_float);
              floats && cx.rank(m.v("a")) >= Some(2) && cx.rank(m.v("b")) >= Some(2)
          };
          "a:f32[n,k] b:f32[k,m]", "a:f32[p,n,k] b:f32[k,m]"),
    // gemm(a, b, c) = α·a·b + c for β = 1 (or no c)
    rule!("gemm-as-fused", Reassoc, law ["(Gemm@g ?a ?b ?c)"] => code gemm;
          "a:f32[n,k] b:f32[k,m] c:f32[m]", "a:f32[k,n] b:f32[m,k] c: @g.transA=1 @g.transB=1 @g.alpha=0.5"),
    // a·b + c with a vector or scalar c along the last axis
    rule!("matmul-bias", Reassoc, idiom ["(Add~ (hip:FusedMatMul@p ?a ?b _ _) ?c)"] => code bias;
          "a:f32[p,n,k] b:f32[k,m] c:f32[m]"),
    // (a·b)·c with a constant scalar c
    rule!("matmul-scale", Reassoc, law [
              "(Mul~ (hip:FusedMatMul@p ?a ?b _ _) ?c)", "(Div (hip:FusedMatMul@p ?a ?b _ _) ?d)",
          ] => code scale;
          "#0 a:f32[p,n,k] b:f32[k,m] c:f32[]=3", "#1 a:f32[p,n,k] b:f32[k,m] d:f32[]=3"),
    // a·b + c + r
    rule!("matmul-residual", Reassoc, idiom ["(Add~ (hip:FusedMatMul@p ?a ?b ?c _) ?r)"] => code residual;
          "a:f32[p,n,k] b:f32[k,m] c:f32[m] r:f32[p,n,m]", "a:f32[p,n,k] b:f32[k,m] c: r:f32[p,n,m]"),
    // f(a·b + c + r) as an epilogue
    rule!("matmul-activation", Reassoc, idiom [
              "(Relu|Clip|Sigmoid|Tanh|HardSigmoid|hip:Gelu|hip:Silu@f (hip:FusedMatMul@p ?a ?b ?c ?r) ..)",
          ] => code matmul_activation;
          "a:f32[p,n,k] b:f32[k,m] c:f32[m] r:"),
    // aᵀ·b and a·bᵀ read the operand as it is
    rule!("matmul-transposed", Exact, law [
              "(hip:FusedMatMul@p (Transpose@t ?a) ?b ?c ?r)", "(hip:FusedMatMul@p ?a (Transpose@u ?b) ?c ?r)",
          ] => code transposed;
          "#0 a:f32[p,k,n] b:f32[p,k,m] c: r: @t.perm=0,2,1", "#1 a:f32[p,n,k] b:f32[m,k] c: r: @u.perm=1,0"),
];

/// Whether a fused product has no activation.
pub(crate) fn is_plain(cx: &Cx<'_>, p: &ENode) -> bool {
    cx.attr_str(p, "activation").is_empty()
}

fn gemm(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (g, c) = (m.node("g").clone(), m.v("c"));
    if !cx.dtype(m.v("a")).is_some_and(tensor::DType::is_float) {
        return miss("the product is not of floats");
    }
    let beta = cx.attr_float(&g, "beta").unwrap_or(1.0);
    let c = match beta {
        1.0 => c,
        0.0 => cx.none(),
        _ if cx.absent(c) => c,
        _ => return miss("beta is not 1"),
    };
    let int = |cx: &Cx<'_>, n: &str| Attr::Int(i64::from(cx.attr_int(&g, n).unwrap_or(0) != 0));
    let alpha = cx.attr_float(&g, "alpha").unwrap_or(1.0);
    let attrs = [("transA", int(cx, "transA")), ("transB", int(cx, "transB")), ("alpha", Attr::Float(F32::new(alpha)))];
    cx.add("hip:FusedMatMul", &attrs, &[m.v("a"), m.v("b"), c])
}

fn bias(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (p, c) = (m.node("p").clone(), m.v("c"));
    let shape = cx.shape(c).ok_or(Skip::No)?;
    let product = cx.eg.lookup(p.clone()).ok_or(Skip::No)?;
    let lead = shape.len().saturating_sub(1);
    if !is_plain(cx, &p) || shape[..lead].iter().any(|&d| cx.dim(d) != Some(1)) {
        return Err(Skip::No);
    }
    if !cx.same_type(product, m.root) || cx.dtype(c) != cx.dtype(m.root) {
        return miss("the addend changes the type of the product");
    }
    cx.with_kids(&p, &[m.v("a"), m.v("b"), c])
}

fn scale(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let p = m.node("p").clone();
    let c = match (m.get("c"), m.get("d")) {
        (Some(c), _) => cx.scalar(c),
        (None, Some(d)) => cx.scalar(d).map(|v| 1.0 / v),
        _ => None,
    };
    let alpha = f64::from(cx.attr_float(&p, "alpha").unwrap_or(1.0)) * c.ok_or(Skip::No)?;
    let product = cx.eg.lookup(p.clone()).ok_or(Skip::No)?;
    if !is_plain(cx, &p) || !(alpha as f32).is_normal() || !cx.same_type(product, m.root) {
        return Err(Skip::No);
    }
    let alpha = cx.attr_of(m.root, alpha)?;
    cx.with_attrs(&p, &[("alpha", alpha)], &[m.v("a"), m.v("b")])
}

fn residual(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (p, r) = (m.node("p").clone(), m.v("r"));
    let product = cx.eg.lookup(p.clone()).ok_or(Skip::No)?;
    if !is_plain(cx, &p) || cx.is_const(r) || cx.rank(r).is_none_or(|n| n < 2) {
        return Err(Skip::No);
    }
    if !cx.same_type(r, m.root) || !cx.same_type(product, m.root) {
        return Err(Skip::No);
    }
    cx.with_kids(&p, &[m.v("a"), m.v("b"), m.v("c"), r])
}

fn matmul_activation(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (p, f) = (m.node("p").clone(), m.node("f").clone());
    let act = activation(cx, &f, m.root)?;
    set_activation(cx, &p, &act)
}

fn transposed(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let p = m.node("p").clone();
    let (name, t, x) = match m.find_node("t") {
        Some(t) => ("transA", t.clone(), m.v("a")),
        None => ("transB", m.node("u").clone(), m.v("b")),
    };
    let axes = perm(cx, &t, x).ok_or(Skip::No)?;
    let n = axes.len();
    let swaps = n >= 2 && axes[n - 2..] == [n - 1, n - 2] && axes[..n - 2].iter().enumerate().all(|(i, &a)| i == a);
    if !swaps {
        return Err(Skip::No);
    }
    let flip = Attr::Int(i64::from(cx.attr_int(&p, name).unwrap_or(0) == 0));
    cx.with_attrs(&p, &[(name, flip)], &[m.v("a"), m.v("b"), m.v("c"), m.v("r")])
}
