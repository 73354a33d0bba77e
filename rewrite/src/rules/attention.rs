//! Softmax attention in the bracketings that exporters write.

use crate::pattern::Match;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use crate::rules::layout::{Extent, extents, perm, reshape_to, transpose};
use egg::Id;
use ir::attrs::{Attr, F32};
use tensor::DType;

/// Scores: q·kᵀ, scaled or not
macro_rules! scores {
    () => {
        "<(Mul~ (MatMul ?q ?k) ?c) (Div (MatMul ?q ?k) ?d) (MatMul ?q ?k)>"
    };
}
/// softmax(z), where(isnan(softmax(z)), 0, softmax(z))
macro_rules! guarded {
    ($z:expr) => {
        concat!("(Softmax@s ", $z, ") (Where@n (IsNaN (Softmax@s ", $z, ")) 0 (Softmax@s ", $z, "))")
    };
}
/// softmax(z), computed in another dtype or not, with 0 for NaN or not
macro_rules! soft {
    ($z:expr) => {
        concat!(
            "<",
            guarded!($z),
            " (Cast@o <",
            guarded!(concat!("<", $z, " (Cast ", $z, ")>")),
            ">)",
            " (Where@n (IsNaN (Cast@o (Softmax@s (Cast ",
            $z,
            ")))) 0 (Cast@o (Softmax@s (Cast ",
            $z,
            "))))>",
        )
    };
}

/// The table.
pub const RULES: &[Rule] = &[
    // softmax(c·q·kᵀ + mask)·v. With where(isnan(w), 0, w) around the weights a row of NaN, as of scores of -∞ alone, has weights of 0; what
    // it gives is 0·v, or 0 also where v is not finite.
    rule!("attention", Reassoc, idiom [concat!("(MatMul ", soft!(scores!()), " ?v)")] => code attention;
          "q:f32[2,h,s,4] k:f32[2,h,4,t] v:f32[2,h,t,e] c:f32[]=0.5 d:f32[]=2"),
    rule!("attention-mask", Reassoc, idiom [
              concat!("(MatMul ", soft!(concat!("(Add~ ", scores!(), " ?mask)")), " ?v)"),
              concat!("(MatMul ", soft!("<(Mul~ (Add~ (MatMul ?q ?k) ?early) ?c) (Div (Add~ (MatMul ?q ?k) ?early) ?d)>"), " ?v)"),
          ] => code attention;
          "#0 q:f32[2,h,s,4] k:f32[2,h,4,t] v:f32[2,h,t,e] c:f32[]=0.5 d:f32[]=2 mask:f32[2,1,1,t]",
          "#1 q:f32[2,h,s,4] k:f32[2,h,4,t] v:f32[2,h,t,e] c:f32[]=0.5 d:f32[]=2 early:f32[2,1,s,t]",
          "#0 q:f32[2,h,3,4] k:f32[2,h,4,t] v:f32[2,h,t,e] c:f32[]=0.5 d:f32[]=2 mask:f32[3,1]=0,-inf,2",
          "#0 q:f32[h,s,4] k:f32[h,4,t] v:f32[h,t,e] c:f32[]=0.5 d:f32[]=2 mask:f32[s,t]"),
    // where(p, scores, low) takes where(p, 0, low) where that is not 0: what a masked score was, be it NaN, does not matter
    rule!("attention-where", Reassoc, idiom [
              concat!("(MatMul ", soft!(concat!("(Where ?p ", scores!(), " ?low)")), " ?v)"),
              concat!("(MatMul ", soft!(concat!("(Where ?p ?low2 ", scores!(), ")")), " ?v)"),
          ] => code attention;
          "#0 q:f32[2,h,s,4] k:f32[2,h,4,t] v:f32[2,h,t,e] c:f32[]=0.5 d:f32[]=2 p:bool[s,t] low:f32[]=-3e38",
          "#0 q:f32[2,h,s,4] k:f32[2,h,4,t] v:f32[2,h,t,e] c:f32[]=0.5 d:f32[]=2 p:bool[s,t] low:f32[]=-2",
          "#1 q:f32[2,h,s,4] k:f32[2,h,4,t] v:f32[2,h,t,e] c:f32[]=0.5 d:f32[]=2 p:bool[s,t] low2:f32[]=-3e38"),
    // attention over transposed keys is attention over the keys
    rule!("attention-keys", Exact, law ["(hip:Attention{k_trans=1}@a ?q (Transpose@t ?k) ?v ?mask)"] => code keys;
          "q:f32[2,h,s,4] k:f32[2,h,t,4] v:f32[2,h,t,e] mask: @t.perm=0,1,3,2 @a.scale=0.5",
          "q:f32[2,h,s,4] k:f32[2,t,h,4] v:f32[2,h,t,e] mask: @t.perm=0,2,3,1 @a.scale=0.5"),
    // A factor on q or on k is part of the scale
    rule!("attention-scale", Reassoc, law [
              "(hip:Attention@a <(Mul~ ?q ?c) (Div ?q ?d)> ?k ?v ?mask)", "(hip:Attention@a ?q <(Mul~ ?k ?c) (Div ?k ?d)> ?v ?mask)",
          ] => code scale;
          "q:f32[2,h,s,4] k:f32[2,h,t,4] v:f32[2,h,t,e] mask: c:f32[]=0.5 d:f32[]=3 @a.scale=0.5"),
    // … also under a transpose of k
    rule!("attention-scale-keys", Reassoc, law [
              "(hip:Attention@a ?q (Transpose@t <(Mul~ ?k ?c) (Div ?k ?d)>) ?v ?mask)",
          ] => code scale_keys;
          "q:f32[2,h,s,4] k:f32[2,t,h,4] v:f32[2,h,t,e] mask: c:f32[]=0.5 d:f32[]=3 @t.perm=0,2,1,3 @a.scale=0.5"),
    // Heads of keys and values that are repeated for a group of heads of queries: the queries of a group are rows of one head
    rule!("attention-groups", Exact, law [
              "(hip:Attention{k_trans=0 groups=1}@a ?q (Reshape@r (Expand ?k ?ks) ..) (Reshape@u (Expand ?v ?vs) ..) ?mask)",
          ] => code groups;
          "q:f32[b,6,s,4] k:f32[b,2,1,t,4] ks:i64[5]=b,2,3,t,4 v:f32[b,2,1,t,5] vs:i64[5]=b,2,3,t,5 mask:f32[b,1,s,t] @r/1:i64[4]=b,6,t,4 @u/1:i64[4]=b,6,t,-1 @a.scale=0.5",
          "q:f32[b,4,s,4] k:f32[b,2,1,t,4] ks:i64[5]=1,1,2,1,1 v:f32[b,2,1,t,5] vs:i64[5]=1,1,2,1,1 mask: @r/1:i64[4]=b,4,t,-1 @u/1:i64[4]=b,4,t,5 @a.nan_to_zero=1",
          "q:f32[b,4,s,4] k:f32[b,1,1,t,4] ks:i64[5]=1,1,4,1,1 v:f32[b,1,1,t,4] vs:i64[5]=1,1,4,1,1 mask:f32[s,t] @r/1:i64[4]=b,4,t,4 @u/1:i64[4]=b,4,t,4"),
];

/// The factor in a match: constant ?c, or the inverse of constant ?d.
fn factor(cx: &Cx<'_>, m: &Match) -> Result<f64, Skip> {
    let v = match (m.get("c"), m.get("d")) {
        (Some(c), _) => cx.scalar(c),
        (None, Some(d)) => cx.scalar(d).map(|v| 1.0 / v),
        (None, None) => Some(1.0),
    };
    match v {
        Some(v) if (v as f32).is_normal() => Ok(v),
        Some(_) => miss("the scale is not a normal number"),
        None => miss("the scale is not a constant scalar"),
    }
}

fn attention(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (q, k, v) = (m.v("q"), m.v("k"), m.v("v"));
    let (Some(sq), Some(sk), Some(sv)) = (cx.shape(q), cx.shape(k), cx.shape(v)) else { return Err(Skip::No) };
    let rank = sq.len();
    if !(3..=4).contains(&rank) || sk.len() != rank || sv.len() != rank {
        return miss("q, k and v are not of rank 3 or 4");
    }
    if !cx.same_dims(&sq[..rank - 2], &sk[..rank - 2]) || !cx.same_dims(&sq[..rank - 2], &sv[..rank - 2]) {
        return miss("batch and heads of q, k and v differ");
    }
    let dtype = cx.dtype(q).ok_or(Skip::No)?;
    if cx.dtype(k) != Some(dtype) || cx.dtype(v) != Some(dtype) || cx.dtype(m.root) != Some(dtype) {
        return miss("q, k and v have different dtypes");
    }
    if !matches!(dtype, DType::F32 | DType::F16) {
        return miss(format!("no kernel computes attention with {dtype}"));
    }
    let s = m.node("s").clone();
    let axis = cx.attr_int(&s, "axis");
    if axis != Some(-1) && axis != Some(rank as i64 - 1) {
        return miss("the softmax is not over the last axis");
    }
    let scores = [&sq[..rank - 1], &sk[rank - 1..]].concat();
    let z = cx.shape(s.kids[0]).ok_or(Skip::No)?;
    if !cx.same_dims(&z, &scores) {
        return miss("the mask changes the shape of the scores");
    }
    let scale = factor(cx, m)?;
    let selects = i64::from(m.get("p").is_some());
    let mask = match (m.get("mask"), m.get("p")) {
        (Some(mask), _) => mask,
        // (z + mask)·c = z·c + mask·c
        (None, None) if let Some(mask) = m.get("early") => match (m.get("c"), m.get("d")) {
            (Some(c), _) => cx.add("Mul", &[], &[mask, c])?,
            (_, Some(d)) => cx.add("Div", &[], &[mask, d])?,
            _ => return Err(Skip::No),
        },
        (None, Some(p)) => {
            let (low, first) = match (m.get("low"), m.get("low2")) {
                (Some(l), _) => (l, false),
                (_, Some(l)) => (l, true),
                _ => return Err(Skip::No),
            };
            match cx.scalar(low) {
                Some(0.0) => return miss("the masked value is 0"),
                Some(_) => {}
                None => return miss("the masked value is not a constant"),
            }
            let zero = cx.scalar_const(dtype, 0.0);
            cx.add("Where", &[], &if first { [p, low, zero] } else { [p, zero, low] })?
        }
        (None, None) => cx.none(),
    };
    if !cx.absent(mask) && cx.dtype(mask) != Some(dtype) {
        return miss("the mask has another dtype");
    }
    let attrs = [
        ("scale", Attr::Float(F32::new(scale as f32))),
        ("k_trans", Attr::Int(1)),
        ("mask_selects", Attr::Int(selects)),
        ("nan_to_zero", Attr::Int(m.find_node("n").is_some().into())),
    ];
    cx.add("hip:Attention", &attrs, &[q, k, v, mask])
}

fn keys(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (a, k) = (m.node("a").clone(), m.v("k"));
    let mut p = perm(cx, m.node("t"), k).ok_or(Skip::No)?;
    let n = p.len();
    p.swap(n - 2, n - 1);
    let k = transpose(cx, k, &p)?;
    let kids = [m.v("q"), k, m.v("v"), m.v("mask")];
    cx.with_attrs(&a, &[("k_trans", Attr::Int(0))], &kids)
}

fn scaled(cx: &mut Cx<'_>, m: &Match, k: Id) -> Result<Id, Skip> {
    let a = m.node("a").clone();
    let (q, v, mask) = (m.v("q"), m.v("v"), m.v("mask"));
    let f = factor(cx, m)?;
    let scale = f64::from(cx.attr_float(&a, "scale").unwrap_or(1.0)) * f;
    if !cx.same_type(q, a.kids[0]) || !cx.same_type(k, a.kids[1]) || !(scale as f32).is_normal() {
        return Err(Skip::No);
    }
    cx.with_attrs(&a, &[("scale", Attr::Float(F32::new(scale as f32)))], &[q, k, v, mask])
}

fn scale(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    scaled(cx, m, m.v("k"))
}

fn scale_keys(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let k = m.v("k");
    let p = perm(cx, m.node("t"), k).ok_or(Skip::No)?;
    let k = transpose(cx, k, &p)?;
    scaled(cx, m, k)
}

/// The number of heads of queries for one of keys, where `v`, `[b, h, 1, t, e]`, becomes operand `of`, `[b, g·h, t, e]`, by repeating heads.
fn group(cx: &mut Cx<'_>, v: Id, of: Id) -> Result<i64, Skip> {
    let (Some(from), Some(to)) = (cx.shape(v), cx.shape(of)) else { return Err(Skip::No) };
    let (&[b, h, one, t, e], &[b2, h2, t2, e2]) = (from.as_slice(), to.as_slice()) else { return Err(Skip::No) };
    let (Some(1), Some(h), Some(h2)) = (cx.dim(one), cx.dim(h), cx.dim(h2)) else { return Err(Skip::No) };
    if h < 1 || h2 <= h || h2 % h != 0 || !cx.same_dims(&[b, t, e], &[b2, t2, e2]) {
        return Err(Skip::No);
    }
    Ok(h2 / h)
}

fn groups(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (a, q, k, v, mask) = (m.node("a").clone(), m.v("q"), m.v("k"), m.v("v"), m.v("mask"));
    let g = group(cx, k, a.kids[1])?;
    let (Some(sq), Some(sv)) = (cx.shape(q), cx.shape(v)) else { return Err(Skip::No) };
    let (&[_, h, s, _], Some(e)) = (sq.as_slice(), sv.last().copied()) else { return Err(Skip::No) };
    let (Some(h), Some(e)) = (cx.dim(h), cx.dim(e)) else { return miss("heads or the size of a head are not known") };
    if group(cx, v, a.kids[2])? != g {
        return miss("keys and values repeat differently");
    }
    if !cx.absent(mask) {
        let sm = cx.shape(mask).ok_or(Skip::No)?;
        let axis = |back: usize| sm.len().checked_sub(back).map(|i| sm[i]);
        if axis(3).is_some_and(|heads| cx.dim(heads) != Some(1)) {
            return miss("the mask differs from head to head");
        }
        if axis(2).is_some_and(|rows| cx.dim(rows) != Some(1) && !cx.same_dims(&[rows], &[s])) {
            return miss("the mask's rows are not those of the queries");
        }
    }
    let axis = cx.ints_const(&[2]);
    let (k, v) = (cx.add("Squeeze", &[], &[k, axis])?, cx.add("Squeeze", &[], &[v, axis])?);
    let (hk, d) = (Extent::Is(h / g), Extent::Of(3));
    let rows = reshape_to(cx, q, &[Extent::Of(0), hk, Extent::Times(2, g), d])?;
    let y = cx.with_attrs(&a, &[("groups", Attr::Int(g))], &[rows, k, v, mask])?;
    let shape = extents(cx, q, &[Extent::Of(0), Extent::Is(h), Extent::Of(2), Extent::Is(e)])?;
    cx.add("Reshape", &[("allowzero", Attr::Int(1))], &[y, shape])
}
