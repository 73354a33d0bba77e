//! Operators that move elements: cancelling, composing, sinking.

use crate::lang::ENode;
use crate::pattern::Match;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use egg::Id;
use ir::attrs::Attr;
use tensor::{DType, DimId};

/// The table. All of it is exact: elements are moved, never changed.
pub const RULES: &[Rule] = &[
    // A view, a broadcast or a repetition to the same shape is x
    rule!("view-noop", Exact, law [
              "(Reshape ?x ..)", "(Squeeze ?x ..)", "(Unsqueeze ?x ..)", "(Flatten ?x ..)", "(Expand ?x ..)", "(Tile ?x ..)",
          ] => text "?x",
          if "the shape is the same", |cx, m| cx.same_type(m.v("x"), m.root);
          "#0 x:f32[a,b] @/1:i64[2]=a,b", "#4 x:f32[a,b] @/1:i64[1]=b", "#3 x:f32[a,b]"),
    // Squeeze, Unsqueeze, Flatten are reshapes
    rule!("view-as-reshape", Exact, law ["(Squeeze|Unsqueeze|Flatten ?x ..)"] => code as_reshape;
          "x:f32[a,1,b] @/1:i64[1]=1"),
    // reshape(reshape(x)) = reshape(x)
    rule!("reshape-reshape", Exact, law [
              "(Reshape|Squeeze|Unsqueeze|Flatten@o (Reshape|Squeeze|Unsqueeze|Flatten@i ?x ..) ..)",
          ] => code reshape_reshape;
          "x:f32[a,b,c] @i/1:i64[2]=a,-1 @o/1:i64[1]=-1", "x:f32[a,1,c] @i/1:i64[1]=1 @o/1:i64[1]=0"),
    // transpose by the identity is x
    rule!("transpose-noop", Exact, law ["(Transpose@t ?x)"] => text "?x", if "the axes stay", |cx, m| {
              perm(cx, m.node("t"), m.v("x")).is_some_and(|p| p.iter().enumerate().all(|(i, &a)| i == a))
          };
          "x:f32[a,b] @t.perm=0,1"),
    // transpose(transpose(x, p), q) = transpose(x, p∘q)
    rule!("transpose-transpose", Exact, law ["(Transpose@o (Transpose@i ?x))"] => code transpose_transpose;
          "x:f32[a,b,c] @i.perm=1,2,0 @o.perm=0,2,1", "x:f32[a,b,c] @i.perm=1,2,0 @o.perm=2,0,1"),
    // A transpose that moves only axes of extent 1 is a reshape
    rule!("transpose-ones", Exact, law ["(Transpose@t ?x)"] => code transpose_ones;
          "x:f32[1,b,c] @t.perm=1,0,2", "x:f32[a,b,1,1] @t.perm=0,2,3,1"),
    // reshape(transpose(reshape(x))) = transpose(x), where leading axes are one axis in between
    rule!("transpose-merged", Exact, law ["(Reshape (Transpose@t (Reshape@i ?x ..)) ..)"] => code transpose_merged;
          "x:f32[a,3,c,d] @i/1:i64[3]=-1,c,d @t.perm=0,2,1 @/1:i64[4]=a,3,d,-1", "x:f32[a,b,c,d] @i/1:i64[3]=-1,c,d @t.perm=0,2,1 @/1:i64[4]=a,b,d,c"),
    // f(transpose(x)) = transpose(f(x)) for elementwise f
    rule!("transpose-unary", Exact, law [
              "(unary@f (Transpose@t ?x))",
          ] => code transpose_unary;
          "x:f32[a,b,c] @t.perm=1,2,0 @f.to=10"),
    // transpose(x) ∘ transpose(y) = transpose(x ∘ y); transpose(x) ∘ c = transpose(x ∘ transpose⁻¹(c))
    rule!("transpose-binary", Exact, law [
              "(Add|Sub|Mul|Div|Max|Min@f (Transpose@t ?x) (Transpose@u ?y))",
              "(Add|Sub|Mul|Div|Max|Min@f (Transpose@t ?x) ?c)", "(Add|Sub|Mul|Div|Max|Min@f ?c (Transpose@u ?y))",
          ] => code transpose_binary;
          "#0 x:f32[a,b,c] y:f32[a,b,c] @t.perm=1,2,0 @u.perm=1,2,0", "#1 x:f32[a,b,c] c:f32[a]!c @t.perm=1,2,0",
          "#2 y:f32[a,b,c] c:f32[c,1]!c @u.perm=1,2,0"),
    // f(reshape(x)) = reshape(f(x)) for elementwise f
    rule!("reshape-unary", Exact, law [
              "(unary@f (Reshape@r ?x ?s))",
          ] => code reshape_unary;
          "x:f32[a,b,c] s:i64[2]=a,-1 @f.to=10"),
    // slice(f(x)) = f(slice(x)): less work
    rule!("slice-unary", Exact, law [
              "(Slice@s (unary@f ?x) ..)",
          ] => code slice_unary;
          "x:f32[4,b] @s/1:i64[1]=1 @s/2:i64[1]=3 @f.to=10"),
    // A slice of everything is x
    rule!("slice-noop", Exact, law ["(Slice@s ?x ..)"] => text "?x",
          if "the shape is the same", |cx, m| cx.same_type(m.v("x"), m.root),
          if "every step is 1", |cx, m| slices(cx, m.node("s"), m.v("x")).is_some_and(|s| s.iter().all(|s| s.3 == 1));
          "x:f32[3,b] @s/1:i64[1]=0 @s/2:i64[1]=3"),
    // slice(slice(x, a..b), c..d) = slice(x, a+c..min(a+d, b)) with constant bounds and steps of 1
    rule!("slice-slice", Exact, law ["(Slice@o (Slice@i ?x ..) ..)"] => code slice_slice;
          "x:f32[6,b] @i/1:i64[1]=1 @i/2:i64[1]=5 @o/1:i64[1]=1 @o/2:i64[1]=3"),
    // Padding by nothing is x
    rule!("pad-zero", Exact, law ["(Pad@p ?x ..)"] => text "?x",
          if "every pad is 0", |cx, m| cx.ints_of(m.node("p"), "pads", 1).is_some_and(|p| p.iter().all(|&x| x == 0));
          "x:f32[a,b] @p/1:i64[4]=0,0,0,0"),
    // Cast to the dtype x has is x
    rule!("cast-noop", Exact, law ["(Cast ?x)"] => text "?x", if "the dtype is the same", |cx, m| {
              cx.dtype(m.v("x")).is_some() && cx.dtype(m.v("x")) == cx.dtype(m.root)
          };
          "x:f32[a,b] @.to=1"),
    // cast(cast(x)) = cast(x) when the inner one loses nothing
    rule!("cast-cast", Exact, law ["(Cast@o (Cast@i ?x))"] => code cast_cast;
          "x:f16[a,b] @i.to=1 @o.to=10", "x:i32[a] @i.to=11 @o.to=7"),
    // x ∘ expand(y) = x ∘ y where the operator broadcasts anyway; a filled tensor is its scalar there
    rule!("expand-in-broadcast", Exact, law [
              "(Add|Sub|Mul|Div|Max|Min|Pow|Equal|Less|Greater|LessOrEqual|GreaterOrEqual|And|Or|Xor@f (Expand|ConstantOfShape@e ?x ..) ?y)",
              "(Add|Sub|Mul|Div|Max|Min|Pow|Equal|Less|Greater|LessOrEqual|GreaterOrEqual|And|Or|Xor@f ?y (Expand|ConstantOfShape@e ?x ..))",
              "(Where@f (Expand|ConstantOfShape@e ?x ..) ?y ?z)", "(Where@f ?p (Expand|ConstantOfShape@e ?x ..) ?z)",
              "(Where@f ?p ?y (Expand|ConstantOfShape@e ?x ..))",
          ] => code expand_in_broadcast;
          "#0 x:f32[a,1] y:f32[a,b] @e/1:i64[2]=a,b", "#1 x:f32[b] y:f32[a,1] @e/1:i64[2]=1,b", "#0 x:i64[2]=a,b y:f32[a,b]",
          "#2 x:bool[1] y:f32[a,b] z:f32[b] @e/1:i64[2]=a,b", "#3 p:bool[a,1] x:f32[b] z:f32[b] @e/1:i64[2]=1,b",
          "#4 p:bool[a,b] x:i64[2]=a,b y:f32[b]"),
    // f(expand(x)) = expand(f(x)) for elementwise f: less work, and what broadcasts anyway needs no copy
    rule!("expand-unary", Exact, law [
              "(unary@f (Expand ?x ?s))",
              "(Clip@f (Expand ?x ?s) ?lo ?hi)",
          ] => code expand_unary;
          "#0 x:f32[a,1] s:i64[2]=a,b @f.to=10", "#1 x:f32[a,1] s:i64[2]=a,b lo:f32[]=-0.5 hi:f32[]=0.5", "#1 x:f32[b] s:i64[2]=a,b lo:f32[]=-0.5 hi:"),
    // Σ expand(x) = expand(Σ x) over axes that are not expanded
    rule!("expand-reduce", Exact, law [
              "(ReduceSum|ReduceMean|ReduceMax|ReduceMin@r (Expand ?x ?s) ..)",
          ] => code expand_reduce;
          "x:f32[a,b,1] s:i64[3]=a,b,4 @r/1:i64[1]=1 @r.keepdims=0", "x:f32[a,b,1] s:i64[3]=a,b,4 @r/1:i64[1]=0"),
];

/// The permutation of a Transpose of `x`.
pub(crate) fn perm(cx: &Cx<'_>, t: &ENode, x: Id) -> Option<Vec<usize>> {
    let rank = cx.rank(x)?;
    match cx.attr_ints(t, "perm") {
        Some(p) if p.len() == rank => p.iter().map(|&a| usize::try_from(a).ok()).collect(),
        Some(_) => None,
        None => Some((0..rank).rev().collect()),
    }
}

/// Transposes `x`, or gives it back when the axes stay.
pub(crate) fn transpose(cx: &mut Cx<'_>, x: Id, p: &[usize]) -> Result<Id, Skip> {
    if p.iter().enumerate().all(|(i, &a)| i == a) {
        return Ok(x);
    }
    let p: Vec<i64> = p.iter().map(|&a| a as i64).collect();
    cx.add("Transpose", &[("perm", Attr::Ints(p.into()))], &[x])
}

/// The shape operand that reshapes extents `from` to `to`, as constants: extents, 0 for "as in the operand" and at most
/// one -1. `None` when that cannot say it for every value of the symbols.
fn reshape_spec(cx: &Cx<'_>, from: &[DimId], to: &[DimId]) -> Option<Vec<i64>> {
    let (mut wild, mut copies_zero) = (0, false);
    let mut out = Vec::new();
    for (i, &d) in to.iter().enumerate() {
        out.push(match cx.dim(d) {
            Some(0) => return None,
            Some(c) => c,
            None if from.get(i) == Some(&d) => {
                copies_zero |= cx.eg.analysis.dims.range(d).0 <= 0;
                0
            }
            None => {
                wild += 1;
                -1
            }
        });
    }
    (wild == 0 || (wild == 1 && !copies_zero)).then_some(out)
}

/// Reshapes `x` to the extents of `like`.
pub(crate) fn reshape_like(cx: &mut Cx<'_>, x: Id, like: Id) -> Result<Id, Skip> {
    let (Some(from), Some(to)) = (cx.shape(x), cx.shape(like)) else { return Err(Skip::No) };
    if cx.same_dims(&from, &to) {
        return Ok(x);
    }
    let Some(spec) = reshape_spec(cx, &from, &to) else {
        return miss("the shape has several unknown extents");
    };
    let spec = cx.ints_const(&spec);
    cx.add("Reshape", &[], &[x, spec])
}

/// An extent in terms of those of a tensor.
#[derive(Clone, Copy)]
pub(crate) enum Extent {
    /// A number.
    Is(i64),
    /// That of an axis.
    Of(usize),
    /// That of an axis, times a number.
    Times(usize, i64),
}

/// The shape operand `extents`, in terms of those of `x`.
pub(crate) fn extents(cx: &mut Cx<'_>, x: Id, extents: &[Extent]) -> Result<Id, Skip> {
    let shape = cx.shape(x).ok_or(Skip::No)?;
    let mut all: Vec<Id> = Vec::new();
    for &e in extents {
        let (axis, times) = match e {
            Extent::Is(n) => {
                all.push(cx.ints_const(&[n]));
                continue;
            }
            Extent::Of(axis) => (axis, 1),
            Extent::Times(axis, n) => (axis, n),
        };
        if let Some(n) = cx.dim(shape[axis]) {
            all.push(cx.ints_const(&[n * times]));
            continue;
        }
        let at = axis as i64;
        let n = cx.add("Shape", &[("start", Attr::Int(at)), ("end", Attr::Int(at + 1))], &[x])?;
        let times = cx.ints_const(&[times]);
        all.push(if matches!(e, Extent::Of(_)) { n } else { cx.add("Mul", &[], &[n, times])? });
    }
    cx.add("Concat", &[("axis", Attr::Int(0))], &all)
}

/// Reshapes `x` to `to`, in terms of its own extents.
pub(crate) fn reshape_to(cx: &mut Cx<'_>, x: Id, to: &[Extent]) -> Result<Id, Skip> {
    let shape = extents(cx, x, to)?;
    cx.add("Reshape", &[("allowzero", Attr::Int(1))], &[x, shape])
}

fn as_reshape(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    reshape_like(cx, m.v("x"), m.root)
}

fn reshape_reshape(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (o, x) = (m.node("o").clone(), m.v("x"));
    match reshape_like(cx, x, m.root) {
        Ok(id) => return Ok(id),
        Err(Skip::No) => return Err(Skip::No),
        Err(_) => {}
    }
    // The outer shape operand serves, unless it copies extents of the inner shape.
    if cx.def(&o).map(|d| d.name) != Some("Reshape") {
        return Err(Skip::No);
    }
    let shape = cx.kid(&o, 1).ok_or(Skip::No)?;
    let Some(v) = cx.data(shape).values.clone() else { return miss("the shape is computed") };
    if v.iter().any(|&d| cx.dim(d) == Some(0)) {
        return miss("the shape copies extents of its operand");
    }
    cx.with_kids(&o, &[x, shape])
}

fn transpose_transpose(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let x = m.v("x");
    let (Some(i), Some(o)) = (perm(cx, m.node("i"), x), perm(cx, m.node("o"), x)) else { return Err(Skip::No) };
    let p: Vec<usize> = o.iter().map(|&a| i[a]).collect();
    transpose(cx, x, &p)
}

fn transpose_ones(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let x = m.v("x");
    let p = perm(cx, m.node("t"), x).ok_or(Skip::No)?;
    let shape = cx.shape(x).ok_or(Skip::No)?;
    let wide: Vec<usize> = p.iter().copied().filter(|&a| cx.dim(shape[a]) != Some(1)).collect();
    if !wide.is_sorted() {
        return Err(Skip::No);
    }
    reshape_like(cx, x, m.root)
}

fn transpose_merged(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (x, t) = (m.v("x"), m.node("t").clone());
    let p = perm(cx, &t, t.kids[0]).ok_or(Skip::No)?;
    let (Some(from), Some(mid), Some(to)) = (cx.shape(x), cx.shape(t.kids[0]), cx.shape(m.root)) else {
        return Err(Skip::No);
    };
    let lead = (from.len() + 1).checked_sub(mid.len()).filter(|&n| n > 1).ok_or(Skip::No)?;
    if p.first() != Some(&0) || to.len() != from.len() || !cx.same_dims(&from[lead..], &mid[1..]) {
        return Err(Skip::No);
    }
    let p: Vec<usize> = (0..lead).chain(p[1..].iter().map(|a| a + lead - 1)).collect();
    let moved: Vec<DimId> = p.iter().map(|&a| from[a]).collect();
    if !cx.same_dims(&moved, &to) {
        return Err(Skip::No);
    }
    transpose(cx, x, &p)
}

fn transpose_unary(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let x = m.v("x");
    let p = perm(cx, m.node("t"), x).ok_or(Skip::No)?;
    let y = cx.with_kids(m.node("f"), &[x])?;
    transpose(cx, y, &p)
}

fn transpose_binary(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let f = m.node("f").clone();
    let (x, y, p) = match (m.get("x"), m.get("y"), m.get("c")) {
        (Some(x), Some(y), _) => {
            let (p, q) = (perm(cx, m.node("t"), x).ok_or(Skip::No)?, perm(cx, m.node("u"), y).ok_or(Skip::No)?);
            if p != q {
                return Err(Skip::No);
            }
            (x, y, p)
        }
        (Some(x), None, Some(c)) => {
            let p = perm(cx, m.node("t"), x).ok_or(Skip::No)?;
            (x, moved_const(cx, c, &p)?, p)
        }
        (None, Some(y), Some(c)) => {
            let p = perm(cx, m.node("u"), y).ok_or(Skip::No)?;
            (moved_const(cx, c, &p)?, y, p)
        }
        _ => return Err(Skip::No),
    };
    if cx.rank(m.root) != Some(p.len()) {
        return Err(Skip::No);
    }
    let y = cx.with_kids(&f, &[x, y])?;
    transpose(cx, y, &p)
}

/// A constant that broadcasts against transpose(x, p), seen before the transpose.
fn moved_const(cx: &mut Cx<'_>, c: Id, p: &[usize]) -> Result<Id, Skip> {
    if !cx.is_const(c) {
        return Err(Skip::No);
    }
    let shape = cx.static_shape(c).ok_or(Skip::No)?;
    if shape.iter().all(|&d| d == 1) && shape.len() <= p.len() {
        return Ok(c);
    }
    let lead = p.len().checked_sub(shape.len()).ok_or(Skip::No)?;
    let full: Vec<i64> = std::iter::repeat_n(1, lead).chain(shape).collect();
    let mut inverse = vec![0; p.len()];
    p.iter().enumerate().for_each(|(i, &a)| inverse[a] = i);
    let spec = cx.ints_const(&full);
    let c = cx.add("Reshape", &[], &[c, spec])?;
    transpose(cx, c, &inverse)
}

fn reshape_unary(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let y = cx.with_kids(m.node("f"), &[m.v("x")])?;
    cx.with_kids(m.node("r"), &[y, m.v("s")])
}

fn slice_unary(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (s, f) = (m.node("s").clone(), m.node("f").clone());
    let mut kids: Vec<Id> = s.kids.to_vec();
    kids[0] = m.v("x");
    let y = cx.with_kids(&s, &kids)?;
    cx.with_kids(&f, &[y])
}

/// Axis, start, end, step of each sliced axis, when all are constants. Negative starts and ends stay as they are.
pub(crate) fn slices(cx: &Cx<'_>, s: &ENode, x: Id) -> Option<Vec<(usize, i64, i64, i64)>> {
    let rank = cx.rank(x)?;
    let (starts, ends) = (cx.ints_of(s, "starts", 1)?, cx.ints_of(s, "ends", 2)?);
    let old = cx.def(s)?.slot("starts").is_some();
    let given = if old { cx.attr_ints(s, "axes") } else { cx.kid(s, 3).map(|k| cx.ints(k)).unwrap_or(None) };
    let axes = match (given, !old && cx.kid(s, 3).is_some()) {
        (Some(a), _) => a,
        (None, true) => return None,
        (None, false) => (0..starts.len() as i64).collect(),
    };
    let steps = match cx.kid(s, 4).filter(|_| !old) {
        Some(k) => cx.ints(k)?,
        None => vec![1; starts.len()],
    };
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return None;
    }
    let axis = |a: i64| usize::try_from(if a < 0 { a + rank as i64 } else { a }).ok();
    (0..starts.len()).map(|i| Some((axis(axes[i])?, starts[i], ends[i], steps[i]))).collect()
}

fn slice_slice(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let x = m.v("x");
    let (i, o) = (m.node("i").clone(), m.node("o").clone());
    let (Some(i), Some(o)) = (slices(cx, &i, x), slices(cx, &o, x)) else { return miss("bounds are computed") };
    if i.iter().chain(&o).any(|s| s.1 < 0 || s.2 < 0 || s.3 != 1) {
        return miss("a bound is negative or a step is not 1");
    }
    let mut all = i;
    for s in o {
        match all.iter_mut().find(|a| a.0 == s.0) {
            Some(a) => *a = (a.0, a.1.saturating_add(s.1), a.2.min(a.1.saturating_add(s.2)), 1),
            None => all.push(s),
        }
    }
    all.sort_unstable();
    let column = |f: &dyn Fn(&(usize, i64, i64, i64)) -> i64| all.iter().map(f).collect::<Vec<i64>>();
    let (starts, ends, axes) = (column(&|s| s.1), column(&|s| s.2), column(&|s| s.0 as i64));
    let kids = [x, cx.ints_const(&starts), cx.ints_const(&ends), cx.ints_const(&axes)];
    cx.add("Slice", &[], &kids)
}

/// Whether every value of `from` is one of `to`.
fn holds(from: DType, to: DType) -> bool {
    use DType::*;
    let int = |d: DType| if d == Bool { (1, false) } else { (d.bits() as u32, d.is_signed()) };
    let mantissa = |d: DType| match d {
        F64 => 53,
        F32 => 24,
        F16 => 11,
        BF16 => 8,
        _ => 0,
    };
    if from == to {
        return true;
    }
    match (from.is_float(), to.is_float()) {
        (true, true) => matches!((from, to), (F16 | BF16, F32 | F64) | (F32, F64)),
        (true, false) => false,
        (false, true) => {
            let (bits, signed) = int(from);
            (from.is_int() || from == Bool) && bits - u32::from(signed) <= mantissa(to) && to != F16
        }
        (false, false) => {
            let ((b, s), (c, t)) = (int(from), int(to));
            (from.is_int() || from == Bool) && to.is_int() && if s == t { b <= c } else { t && b < c }
        }
    }
}

fn cast_cast(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let x = m.v("x");
    let o = m.node("o").clone();
    let (Some(from), Some(mid), Some(to)) = (cx.dtype(x), cx.dtype(o.kids[0]), cx.dtype(m.root)) else {
        return Err(Skip::No);
    };
    if !holds(from, mid) {
        return miss(format!("{mid} does not hold every {from}"));
    }
    // What is too large for an integer wraps when it comes from another one, not when it comes from a float.
    if mid.is_float() && !from.is_float() && !to.is_float() && !holds(from, to) {
        return miss(format!("{to} does not hold every {from}"));
    }
    if from == to {
        return Ok(x);
    }
    cx.with_kids(&o, &[x])
}

fn expand_in_broadcast(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let f = m.node("f").clone();
    let out = cx.shape(m.root).ok_or(Skip::No)?;
    for i in 0..f.kids.len() {
        let Some(small) = expanded(cx, f.kids[i]) else { continue };
        let mut kids = f.kids.to_vec();
        kids[i] = small;
        // Every extent of the result must still come from some operand.
        let shapes: Option<Vec<_>> = kids.iter().map(|&k| cx.shape(k)).collect();
        let Some(shapes) = shapes else { continue };
        let covered = (0..out.len()).all(|from_end| {
            let want = out[out.len() - 1 - from_end];
            cx.dim(want) == Some(1) || shapes.iter().any(|s| s.len() > from_end && s[s.len() - 1 - from_end] == want)
        });
        let rank = shapes.iter().map(|s| s.len()).max() == Some(out.len());
        if covered && rank {
            return cx.with_kids(&f, &kids);
        }
    }
    Err(Skip::No)
}

/// What an expanded or filled class repeats.
fn expanded(cx: &mut Cx<'_>, id: Id) -> Option<Id> {
    let nodes = cx.eg[id].nodes.clone();
    for n in nodes {
        match cx.def(&n).map(|d| d.name) {
            Some("Expand") => return n.kids.first().copied(),
            Some("ConstantOfShape") => {
                let value = match cx.attr(&n, "value") {
                    Attr::Tensor(c) => cx.eg.analysis.consts[c].read().ok().map(|t| t.reshaped(&[])),
                    _ => Some(tensor::Tensor::from_f32(&[], &[0.0])),
                };
                return value.map(|t| cx.constant(&t));
            }
            _ => {}
        }
    }
    None
}

fn expand_unary(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let f = m.node("f").clone();
    let mut kids = f.kids.to_vec();
    kids[0] = m.v("x");
    let y = cx.with_kids(&f, &kids)?;
    let s = m.v("s");
    cx.add("Expand", &[], &[y, s])
}

fn expand_reduce(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (r, x) = (m.node("r").clone(), m.v("x"));
    let (Some(small), Some(large)) = (cx.shape(x), cx.shape(r.kids[0])) else { return Err(Skip::No) };
    let axes = cx.ints_of(&r, "axes", 1).filter(|a| !a.is_empty()).ok_or(Skip::No)?;
    let axes = cx.axes(&axes, large.len());
    if small.len() != large.len() || axes.iter().any(|&a| small.get(a) != large.get(a)) {
        return Err(Skip::No);
    }
    let mut kids = r.kids.to_vec();
    kids[0] = x;
    let y = cx.with_kids(&r, &kids)?;
    // Extents of 1 in the operand of Expand keep what is there.
    let keep = cx.attr_int(&r, "keepdims").unwrap_or(1) != 0;
    let mut spec = Vec::new();
    for i in 0..large.len() {
        match (axes.contains(&i), cx.dim(large[i])) {
            (true, _) if !keep => {}
            (true, _) => spec.push(1),
            (false, _) if small[i] == large[i] => spec.push(1),
            (false, Some(c)) => spec.push(c),
            (false, None) => return miss("an expanded extent is not known"),
        }
    }
    let spec = cx.ints_const(&spec);
    cx.add("Expand", &[], &[y, spec])
}
