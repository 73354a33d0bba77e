//! Names and execution order of one graph of a source.

use super::source::{GraphRef, GraphSource};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tensor::{Diagnostic, ErrorKind, Result};

/// How deep graphs may nest.
pub(super) const MAX_DEPTH: usize = 32;

/// How a node is called in messages: its name, or its operator and first result.
pub(super) fn label<'a>(g: &dyn GraphSource<'a>, i: usize) -> String {
    let n = g.node(i);
    if !n.name.is_empty() {
        return n.name.into();
    }
    let out = n.outputs.iter().find(|o| !o.is_empty()).map_or("", String::as_str);
    format!("{}({out})", n.op)
}

/// The names that a graph uses and does not define, in order of first use.
///
/// # Errors
/// `Limit` when graphs nest too deep.
pub(super) fn free_names<'a>(g: &dyn GraphSource<'a>, depth: usize) -> Result<Vec<&'a str>> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    let mut defined: FxHashSet<&str> = g.initializers().into_iter().collect();
    defined.extend(g.inputs()?.iter().map(|v| v.name));
    (0..g.n_nodes()).for_each(|i| defined.extend(g.node(i).outputs.iter().map(String::as_str)));
    let (mut free, mut seen) = (Vec::new(), FxHashSet::default());
    let mut used = |name: &'a str| {
        if !name.is_empty() && !defined.contains(name) && seen.insert(name) {
            free.push(name);
        }
    };
    for i in 0..g.n_nodes() {
        g.node(i).inputs.iter().for_each(|n| used(n));
        for body in g.bodies(i) {
            free_names(&*body, depth + 1)?.into_iter().for_each(&mut used);
        }
    }
    g.outputs()?.iter().for_each(|v| used(v.name));
    Ok(free)
}

/// The names that the bodies of a node capture, in order of first use; the same list for all its bodies.
pub(super) fn captures<'a>(bodies: &[GraphRef<'a>], depth: usize) -> Result<Vec<&'a str>> {
    let (mut all, mut seen) = (Vec::new(), FxHashSet::default());
    for b in bodies {
        all.extend(free_names(&**b, depth)?.into_iter().filter(|&n| seen.insert(n)));
    }
    Ok(all)
}

pub(super) fn too_deep() -> Diagnostic {
    Diagnostic::new(ErrorKind::Limit, format!("graphs nest more than {MAX_DEPTH} deep"))
}

/// An order in which every node comes after those it reads from; the given order when it is one already.
///
/// # Errors
/// `Malformed` when two nodes define one name, or nodes depend on each other in a circle.
pub(super) fn execution_order<'a>(g: &dyn GraphSource<'a>, depth: usize) -> Result<Vec<usize>> {
    let n = g.n_nodes();
    let mut producer: FxHashMap<&str, usize> = FxHashMap::default();
    for i in 0..n {
        for o in g.node(i).outputs.iter().filter(|o| !o.is_empty()) {
            if let Some(first) = producer.insert(o, i) {
                return Err(Diagnostic::new(ErrorKind::Malformed, format!("two results are named {o:?}"))
                    .node(label(g, i))
                    .note("also", label(g, first))
                    .help("names of values must be unique within a graph"));
            }
        }
    }
    let mut reads: Vec<Vec<usize>> = Vec::with_capacity(n);
    let mut sorted = true;
    for i in 0..n {
        let own = g.node(i).inputs;
        let captured = captures(&g.bodies(i), depth + 1)?;
        let from: Vec<usize> =
            own.iter().map(String::as_str).chain(captured).filter_map(|x| producer.get(x).copied()).collect();
        sorted &= from.iter().all(|&p| p < i);
        reads.push(from);
    }
    if sorted {
        return Ok((0..n).collect());
    }
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut missing: Vec<usize> = vec![0; n];
    for (i, from) in reads.iter().enumerate() {
        for &p in from {
            users[p].push(i);
            missing[i] += 1;
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> = (0..n).filter(|&i| missing[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(n);
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &u in &users[i] {
            missing[u] -= 1;
            if missing[u] == 0 {
                ready.push(Reverse(u));
            }
        }
    }
    if order.len() == n {
        return Ok(order);
    }
    Err(cycle(g, &reads, &missing))
}

/// Walks backwards from a node that never became ready until one repeats: that is a circle.
fn cycle<'a>(g: &dyn GraphSource<'a>, reads: &[Vec<usize>], missing: &[usize]) -> Diagnostic {
    let stuck = |i: &usize| missing[*i] > 0;
    let mut path: Vec<usize> = (0..reads.len()).find(stuck).into_iter().collect();
    let circle = loop {
        let Some(next) = path.last().and_then(|&i| reads[i].iter().copied().find(stuck)) else { break path };
        if let Some(start) = path.iter().position(|&x| x == next) {
            break path.split_off(start);
        }
        path.push(next);
    };
    const SHOWN: usize = 8;
    let mut names: Vec<String> = circle.iter().rev().take(SHOWN).map(|&i| label(g, i)).collect();
    if circle.len() > SHOWN {
        names.push(format!("({} more)", circle.len() - SHOWN));
    }
    let first = circle.last().map(|&i| label(g, i)).unwrap_or_default();
    let what = format!("{} nodes depend on each other in a circle", circle.len());
    let what = if circle.len() == 1 { "a node depends on itself".into() } else { what };
    Diagnostic::new(ErrorKind::Malformed, what)
        .node(first.clone())
        .note("circle", format!("{} -> {first}", names.join(" -> ")))
        .help("a graph's results may only depend on earlier ones; values that go around belong in a Loop")
}
