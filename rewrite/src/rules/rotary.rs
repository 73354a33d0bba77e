//! Rotary positions as exporters write them.

use crate::pattern::Match;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use crate::rules::layout::slices;
use egg::Id;
use ir::attrs::Attr;

/// The table.
pub const RULES: &[Rule] = &[
    // [-b, a] of x = [a, b] in halves of the last axis
    rule!("rotate-halves", Exact, idiom [
              "(Concat@c (Neg (Slice@b ?x ..)) (Slice@a ?x ..))",
          ] => code halves;
          "x:f32[m,n,6] @c.axis=-1 @a/1:i64[1]=0 @a/2:i64[1]=3 @a/3:i64[1]=-1 @b/1:i64[1]=3 @b/2:i64[1]=9223372036854775807 @b/3:i64[1]=-1",
          "x:f16[n,2] @c.axis=1 @a/1:i64[1]=-2 @a/2:i64[1]=-1 @a/3:i64[1]=1 @b/1:i64[1]=-1 @b/2:i64[1]=2 @b/3:i64[1]=1"),
    // … which a Split takes apart
    rule!("rotate-split", Exact, idiom [
              "(Concat@c (Neg 1/2(Split@s ?x ..)) 0/2(Split@s ?x ..))",
          ] => code split;
          "x:f32[m,n,6] @c.axis=-1 @s/1:i64[2]=3,3 @s.axis=2", "x:f32[n,4] @c.axis=1 @s.axis=-1 @s.num_outputs=2"),
    // -b, a of each pair a, b of neighbors in the last axis
    rule!("rotate-neighbors", Exact, idiom [
              "(Reshape (Concat@c (Reshape@v (Neg (Slice@b ?x ..)) ..) (Reshape@u (Slice@a ?x ..) ..)) ..)",
          ] => code neighbors;
          "x:f32[m,n,6] @c.axis=-1 @u/1:i64[4]=m,n,3,1 @v/1:i64[4]=m,n,3,1 @/1:i64[3]=m,n,6 @a/1:i64[1]=0 @a/2:i64[1]=6 @a/3:i64[1]=2 @a/4:i64[1]=2 @b/1:i64[1]=1 @b/2:i64[1]=6 @b/3:i64[1]=2 @b/4:i64[1]=2"),
];

/// Start and number of elements taken of the last axis by slice `name`, and the step; nothing else is sliced.
fn part(cx: &Cx<'_>, m: &Match, name: &str) -> Result<(i64, i64, i64), Skip> {
    let x = m.v("x");
    let shape = cx.shape(x).ok_or(Skip::No)?;
    let Some(all) = slices(cx, m.node(name), x) else { return miss("bounds are computed") };
    let (&[(axis, start, end, step)], Some(&last)) = (all.as_slice(), shape.last()) else { return Err(Skip::No) };
    let Some(n) = cx.dim(last) else { return miss("the size of a head is not known") };
    if axis + 1 != shape.len() || step < 1 {
        return Err(Skip::No);
    }
    let within = |v: i64| if v < 0 { v.saturating_add(n).max(0) } else { v.min(n) };
    let (start, end) = (within(start), within(end));
    Ok((start, (end - start).max(0).div_euclid(step) + i64::from((end - start).max(0) % step > 0), step))
}

/// Whether the parts that are joined along axis `axis` of `rank` are joined along the last one.
fn joins_last(cx: &Cx<'_>, m: &Match, rank: usize) -> bool {
    let axis = cx.attr_int(m.node("c"), "axis");
    axis == Some(-1) || axis == i64::try_from(rank).ok().map(|r| r - 1)
}

fn rotated(cx: &mut Cx<'_>, m: &Match, interleaved: bool) -> Result<Id, Skip> {
    let x = m.v("x");
    let (a, b) = (part(cx, m, "a")?, part(cx, m, "b")?);
    let n = a.1;
    let parts = if interleaved { [(0, n, 2), (1, n, 2)] } else { [(0, n, 1), (n, n, 1)] };
    if [a, b] != parts || !cx.dtype(x).is_some_and(tensor::DType::is_float) {
        return miss("the parts are not what is rotated");
    }
    rotate(cx, m, interleaved)
}

fn rotate(cx: &mut Cx<'_>, m: &Match, interleaved: bool) -> Result<Id, Skip> {
    let x = m.v("x");
    let y = cx.add("hip:Rotate", &[("interleaved", Attr::Int(interleaved.into()))], &[x])?;
    if cx.same_type(y, m.root) { Ok(y) } else { Err(Skip::No) }
}

fn halves(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let rank = cx.rank(m.v("x")).ok_or(Skip::No)?;
    if joins_last(cx, m, rank) { rotated(cx, m, false) } else { Err(Skip::No) }
}

fn split(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let x = m.v("x");
    let shape = cx.shape(x).ok_or(Skip::No)?;
    let (rank, axis) = (shape.len(), cx.attr_int(m.node("s"), "axis").unwrap_or(0));
    let Some(n) = shape.last().and_then(|&d| cx.dim(d)) else { return miss("the size of a head is not known") };
    if !joins_last(cx, m, rank) || (axis != -1 && axis + 1 != rank as i64) {
        return Err(Skip::No);
    }
    // The first part, which comes last.
    let first = m.root_node.as_ref().and_then(|n| n.kids.get(1)).and_then(|&a| cx.shape(a)).ok_or(Skip::No)?;
    if first.last().and_then(|&d| cx.dim(d)) != Some(n / 2) || n % 2 != 0 {
        return miss("the parts are no halves");
    }
    rotate(cx, m, false)
}

fn neighbors(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let rank = cx.rank(m.v("x")).ok_or(Skip::No)?;
    // Each element has an axis of its own along which the pair is joined.
    for (name, slice) in [("u", "a"), ("v", "b")] {
        let of = cx.eg.lookup(m.node(slice).clone()).ok_or(Skip::No)?;
        let view = cx.eg.lookup(m.node(name).clone()).ok_or(Skip::No)?;
        let (Some(from), Some(to)) = (cx.shape(of), cx.shape(view)) else { return Err(Skip::No) };
        if to.len() != rank + 1 || cx.dim(to[rank]) != Some(1) || !cx.same_dims(&from, &to[..rank]) {
            return Err(Skip::No);
        }
    }
    if joins_last(cx, m, rank + 1) { rotated(cx, m, true) } else { Err(Skip::No) }
}
