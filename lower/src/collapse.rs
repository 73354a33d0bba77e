//! Axis collapsing: axes of an iteration space that step through every operand like one axis become one axis.
//!
//! An elementwise op over contiguous tensors becomes one-dimensional, a bias over rows two-dimensional. Axes of extent 1 go away. The
//! order of elements does not change, so results are the same bits.

use crate::nests;
use crate::views::Equalities;
use ir::nest::{Access, Axis, Coord, Expr, Nest, Phase, Term};
use smallvec::SmallVec;
use tensor::DimPool;

/// The nest with fewer axes. Operands may have fewer axes, too; they begin at the same element.
pub fn collapse(dims: &mut DimPool, eq: &Equalities, nest: &Nest) -> Nest {
    let mut nest = drop_ones(dims, nest);
    drop_fixed_coords(dims, &mut nest);
    // From the innermost out, so that a run of axes ends as its innermost.
    for inner in [false, true] {
        let n = if inner { nest.inner.len() } else { nest.outer.len() };
        for i in (0..n.saturating_sub(1)).rev() {
            let (a, b) = pair(inner, i);
            try_merge(dims, eq, &mut nest, a, b, inner);
        }
    }
    nest
}

fn pair(inner: bool, i: usize) -> (Axis, Axis) {
    let n = |i: usize| u16::try_from(i).unwrap_or(u16::MAX);
    if inner { (Axis::Inner(n(i)), Axis::Inner(n(i + 1))) } else { (Axis::Outer(n(i)), Axis::Outer(n(i + 1))) }
}

/// Every access of the nest, to change.
pub(crate) fn accesses(nest: &mut Nest) -> impl Iterator<Item = &mut Access> {
    let loads = nest.exprs.iter_mut().filter_map(|e| match e {
        Expr::Load(a) | Expr::LoadIf { access: a, .. } => Some(a),
        _ => None,
    });
    let stores = nest.phases.iter_mut().filter_map(|p| match p {
        Phase::Store { stores, .. } => Some(stores),
        Phase::Reduce(_) => None,
    });
    loads.chain(stores.flatten().map(|(a, _)| a))
}

fn indexed(nest: &Nest, axis: Axis) -> bool {
    nests::live(nest).iter().zip(&nest.exprs).any(|(l, e)| *l && *e == Expr::Index(axis))
}

/// Renumbers axes after axis `gone` of its space was removed.
fn remove_axis(nest: &mut Nest, gone: Axis) {
    let shift = |a: &mut Axis| match (a, gone) {
        (Axis::Outer(i), Axis::Outer(g)) if *i > g => *i -= 1,
        (Axis::Inner(i), Axis::Inner(g)) if *i > g => *i -= 1,
        _ => {}
    };
    for a in accesses(nest) {
        for (t, _) in a.coords.iter_mut().flat_map(|c| &mut c.terms) {
            if let Term::Axis(x) = t {
                shift(x);
            }
        }
    }
    for e in &mut nest.exprs {
        if let Expr::Index(x) = e {
            shift(x);
        }
    }
    match gone {
        Axis::Outer(g) => drop(nest.outer.remove(usize::from(g))),
        Axis::Inner(g) => drop(nest.inner.remove(usize::from(g))),
    }
}

/// Removes iteration axes of extent 1.
pub(crate) fn drop_ones(dims: &DimPool, nest: &Nest) -> Nest {
    let zero = Expr::Int(0, tensor::DType::I64);
    let one = |dims: &DimPool, d| dims.as_const(d) == Some(1);
    let (outer, inner) = (nest.outer.clone(), nest.inner.clone());
    let is_one = |dims: &DimPool, a: Axis| match a {
        Axis::Outer(i) => one(dims, outer[usize::from(i)]),
        Axis::Inner(i) => one(dims, inner[usize::from(i)]),
    };
    let mut out = nests::rebuild(nest, &mut |n, e, _| match e {
        Expr::Index(a) if is_one(dims, a) => n.expr(zero.clone()),
        e => n.expr(e),
    });
    for a in accesses(&mut out) {
        for c in &mut a.coords {
            c.terms.retain(|(t, _)| !matches!(t, Term::Axis(x) if is_one(dims, *x)));
        }
    }
    for i in (0..outer.len()).rev().filter(|&i| one(dims, outer[i])) {
        remove_axis(&mut out, Axis::Outer(u16::try_from(i).unwrap_or(u16::MAX)));
    }
    for i in (0..inner.len()).rev().filter(|&i| one(dims, inner[i])) {
        remove_axis(&mut out, Axis::Inner(u16::try_from(i).unwrap_or(u16::MAX)));
    }
    out
}

/// Removes axes of operands along which every access is at coordinate 0.
fn drop_fixed_coords(dims: &DimPool, nest: &mut Nest) {
    for k in 0..nest.operands.len() {
        for axis in (0..nest.operands[k].shape.len()).rev() {
            let fixed = |c: &Coord| c.terms.is_empty() && dims.as_const(c.offset) == Some(0);
            if accesses(nest).filter(|a| usize::from(a.operand) == k).all(|a| fixed(&a.coords[axis])) {
                accesses(nest).filter(|a| usize::from(a.operand) == k).for_each(|a| drop(a.coords.remove(axis)));
                nest.operands[k].shape.remove(axis);
                nest.operands[k].strides.remove(axis);
            }
        }
    }
}

/// Merges iteration axes `a` and `b`, neighbors, when every operand allows it.
fn try_merge(dims: &mut DimPool, eq: &Equalities, nest: &mut Nest, a: Axis, b: Axis, inner: bool) {
    if indexed(nest, a) || indexed(nest, b) {
        return;
    }
    let at = |x: Axis| match x {
        Axis::Outer(i) | Axis::Inner(i) => usize::from(i),
    };
    let space = if inner { &nest.inner } else { &nest.outer };
    let (da, db) = (space[at(a)], space[at(b)]);
    let one = dims.constant(1);
    let is_axis = |c: &Coord, x: Axis, dims: &DimPool| {
        dims.as_const(c.offset) == Some(0) && c.terms.as_slice() == [(Term::Axis(x), one)]
    };
    let mentions = |c: &Coord, x: Axis| c.terms.iter().any(|(t, _)| *t == Term::Axis(x));
    // Per operand: the axis of it that merges with the next one; all accesses must agree.
    let mut merge: Vec<Option<usize>> = vec![None; nest.operands.len()];
    let mut seen = vec![false; nest.operands.len()];
    let operands = nest.operands.clone();
    for acc in accesses(nest) {
        let k = usize::from(acc.operand);
        let used = acc.coords.iter().any(|c| mentions(c, a) || mentions(c, b));
        let place = match used {
            false => None,
            true => {
                let n = acc.coords.iter().filter(|c| mentions(c, a) || mentions(c, b)).count();
                let j = (0..acc.coords.len().saturating_sub(1))
                    .find(|&j| is_axis(&acc.coords[j], a, dims) && is_axis(&acc.coords[j + 1], b, dims));
                let Some(j) = j.filter(|_| n == 2) else { return };
                let o = &operands[k];
                let step = dims.mul(o.shape[j + 1], o.strides[j + 1]);
                if !eq.same(o.shape[j + 1], db) || !eq.same(o.strides[j], step) {
                    return;
                }
                Some(j)
            }
        };
        if seen[k] && merge[k] != place {
            return;
        }
        (merge[k], seen[k]) = (place, true);
    }
    let both = dims.mul(da, db);
    for acc in accesses(nest) {
        if let Some(j) = merge[usize::from(acc.operand)] {
            acc.coords.remove(j);
            // What remains is the coordinate of `b`, which now is the merged axis.
        }
    }
    for (o, j) in nest.operands.iter_mut().zip(&merge) {
        if let Some(j) = *j {
            o.shape[j + 1] = dims.mul(o.shape[j], o.shape[j + 1]);
            o.shape.remove(j);
            o.strides.remove(j);
        }
    }
    if inner {
        nest.inner[at(b)] = both;
    } else {
        nest.outer[at(b)] = both;
    }
    remove_axis(nest, a);
}

/// The affine coordinate `offset + Σ k · term` with every axis replaced by an affine coordinate.
pub(crate) fn substitute(dims: &mut DimPool, c: &Coord, of: &dyn Fn(Axis) -> Coord) -> Coord {
    let mut out = Coord { offset: c.offset, terms: SmallVec::new() };
    for &(t, k) in &c.terms {
        match t {
            Term::Axis(a) => {
                let sub = of(a);
                let by = dims.mul(sub.offset, k);
                out.offset = dims.add(out.offset, by);
                for (t, j) in sub.terms {
                    let jk = dims.mul(j, k);
                    add(dims, &mut out, t, jk);
                }
            }
            Term::Expr(_) => add(dims, &mut out, t, k),
        }
    }
    out
}
fn add(dims: &mut DimPool, c: &mut Coord, t: Term, k: tensor::DimId) {
    match c.terms.iter_mut().find(|(x, _)| *x == t) {
        Some(old) => old.1 = dims.add(old.1, k),
        None => c.terms.push((t, k)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{nests, views};
    use tensor::DType;
    use tensor::dims::Origin;

    /// `outer extents` after collapsing a copy from strides to contiguous.
    fn check(shape: &[&str], from: &[&str], want: &str) {
        let mut p = DimPool::new();
        for s in ["b", "s"] {
            p.symbol(s, Origin::Unknown);
        }
        let mut parse = |x: &&str| {
            let parts: Vec<_> = x.split('*').collect();
            let ds: Vec<_> = parts
                .iter()
                .map(|t| match t.parse::<i64>() {
                    Ok(c) => p.constant(c),
                    Err(_) => {
                        let s = p.find_symbol(t).unwrap();
                        p.sym_dim(s)
                    }
                })
                .collect();
            p.product(ds)
        };
        let shape: Vec<_> = shape.iter().map(&mut parse).collect();
        let from: Vec<_> = from.iter().map(&mut parse).collect();
        let to = views::row_major(&mut p, &shape);
        let nest = nests::copy(&mut p, DType::F32, &shape, &from, &to);
        let got = collapse(&mut p, &Equalities::default(), &nest);
        let got: Vec<String> = got.outer.iter().map(|&d| p.display(d).to_string()).collect();
        assert_eq!(got.join(", "), want);
    }

    #[test]
    fn axes_that_step_alike_become_one() {
        check(&["2", "3", "4"], &["12", "4", "1"], "24");
        check(&["b", "s", "4"], &["4*s", "4", "1"], "4*b*s");
        check(&["2", "3", "4"], &["0", "4", "1"], "2, 12");
        check(&["2", "3", "4"], &["24", "8", "1"], "6, 4");
        check(&["3", "4"], &["1", "3"], "3, 4");
        check(&["1", "5", "1"], &["7", "1", "9"], "5");
        check(&["1", "1"], &["7", "9"], "");
    }
}
