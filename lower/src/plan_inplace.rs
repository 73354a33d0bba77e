//! Whether a loop nest may write its result over a dead operand.

use ir::nest::{Access, Axis, Expr, ExprId, Nest, Phase, Term};
use tensor::{DimPool, Entity};

/// Whether operand `w` of the nest may be the very buffer of operand `r`: every point reads from it only the element that the same
/// point then writes, and never after writing it. Both must start at the same byte; that is the caller's part.
pub fn in_place(dims: &DimPool, nest: &Nest, r: usize, w: usize) -> bool {
    let (Some(a), Some(b)) = (nest.operands.get(r), nest.operands.get(w)) else { return false };
    let same_layout = a.shape == b.shape && a.strides == b.strides;
    if !same_layout || a.dtype.size().is_none() || a.dtype.size() != b.dtype.size() || a.written || !b.written {
        return false;
    }
    let mut stores = vec![];
    for (p, phase) in nest.phases.iter().enumerate() {
        if let Phase::Store { over_inner, stores: list } = phase {
            let to_w = list.iter().enumerate().filter(|(_, (x, _))| usize::from(x.operand) == w);
            stores.extend(to_w.map(|(j, (x, _))| (p, j, *over_inner, x)));
        }
    }
    let [(p, j, over_inner, access)] = stores[..] else { return false };
    if !names_its_point(dims, nest, access, over_inner) {
        return false;
    }
    let loads = |e: &Expr| match e {
        Expr::Load(x) | Expr::LoadIf { access: x, .. } => Some(x.clone()),
        _ => None,
    };
    for x in nest.exprs.iter().filter_map(loads) {
        let operand = usize::from(x.operand);
        if operand == w || (operand == r && x.coords != access.coords) {
            return false;
        }
    }
    // What is evaluated once the element is overwritten.
    let mut late: Vec<ExprId> = vec![];
    for (q, phase) in nest.phases.iter().enumerate().skip(p) {
        match phase {
            Phase::Reduce(rs) => late.extend(rs.iter().map(|r| r.value)),
            Phase::Store { stores, .. } => {
                let skip = if q == p { j + 1 } else { 0 };
                for (x, v) in stores.iter().skip(skip) {
                    late.push(*v);
                    late.extend(indexes(x));
                }
            }
        }
    }
    let mut seen = vec![false; nest.exprs.len()];
    while let Some(e) = late.pop() {
        if std::mem::replace(&mut seen[e.index()], true) {
            continue;
        }
        match nest.get(e) {
            Expr::Load(x) => {
                if usize::from(x.operand) == r {
                    return false;
                }
                late.extend(indexes(x));
            }
            Expr::LoadIf { cond, access: x, other } => {
                if usize::from(x.operand) == r {
                    return false;
                }
                late.extend(indexes(x));
                late.extend([*cond, *other]);
            }
            Expr::Unary(_, a) | Expr::Cast(a, _) | Expr::Round(a, _) => late.push(*a),
            Expr::Binary(_, a, b) => late.extend([*a, *b]),
            Expr::Select(a, b, c) => late.extend([*a, *b, *c]),
            Expr::Float(..) | Expr::Int(..) | Expr::Index(_) | Expr::Dim(_) | Expr::Reduced(_) => {}
            // An expression this function does not know may read anything.
            _ => return false,
        }
    }
    true
}

fn indexes(x: &Access) -> impl Iterator<Item = ExprId> + '_ {
    x.coords.iter().flat_map(|c| c.terms.iter()).filter_map(|(t, _)| match t {
        Term::Expr(e) => Some(*e),
        Term::Axis(_) => None,
    })
}

/// Whether different points have different coordinates: every axis that takes more than one value is alone in some coordinate.
fn names_its_point(dims: &DimPool, nest: &Nest, x: &Access, over_inner: bool) -> bool {
    if indexes(x).next().is_some() {
        return false;
    }
    let alone = |axis: Axis| {
        x.coords.iter().any(|c| match c.terms.as_slice() {
            [(Term::Axis(a), k)] => *a == axis && dims.as_const(*k).is_some_and(|k| k != 0),
            _ => false,
        })
    };
    let named = |extents: &[tensor::DimId], make: fn(u16) -> Axis| {
        extents
            .iter()
            .enumerate()
            .all(|(i, &d)| dims.as_const(d).is_some_and(|d| d <= 1) || u16::try_from(i).is_ok_and(|i| alone(make(i))))
    };
    named(&nest.outer, Axis::Outer) && (!over_inner || named(&nest.inner, Axis::Inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::nest::{BinOp, Combiner, Coord, NestOperand, Reduction};
    use smallvec::smallvec;
    use tensor::{DType, DimId};

    /// `y[o, i] = x[o, i] / sum(x[o, :])`, or with reads one element to the side, or with a second store that reads late.
    fn softmaxish(shift: i64, late: bool, dims: &mut DimPool) -> Nest {
        let (n, m) = (dims.constant(4), dims.constant(8));
        let (one, shift) = (dims.constant(1), dims.constant(shift));
        let coord = |offset: DimId, axis| Coord { offset, terms: smallvec![(Term::Axis(axis), one)] };
        let zero = dims.constant(0);
        let at = |operand, shift| Access {
            operand,
            coords: smallvec![coord(zero, Axis::Outer(0)), coord(shift, Axis::Inner(0))],
        };
        let mut nest = Nest { outer: vec![n], inner: vec![m], ..Nest::default() };
        for written in [false, true, true] {
            let o = NestOperand { dtype: DType::F32, shape: smallvec![n, m], strides: smallvec![m, one], written };
            nest.operand(o);
        }
        let x = nest.expr(Expr::Load(at(0, shift)));
        let r = nest.expr(Expr::Reduced(0));
        let q = nest.bin(BinOp::Div, x, r);
        let mut stores = vec![(at(1, zero), q)];
        if late {
            stores.push((at(2, zero), x));
        }
        nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Sum, value: x }]));
        nest.phases.push(Phase::Store { over_inner: true, stores });
        nest
    }

    #[test]
    fn a_nest_runs_in_place_when_each_point_reads_what_it_writes() {
        let mut dims = DimPool::new();
        let check = |nest: &Nest, w: usize, dims: &DimPool| in_place(dims, nest, 0, w);
        let plain = softmaxish(0, false, &mut dims);
        assert!(check(&plain, 1, &dims));
        let shifted = softmaxish(1, false, &mut dims);
        assert!(!check(&shifted, 1, &dims), "a neighbor's element is read");
        let late = softmaxish(0, true, &mut dims);
        assert!(!check(&late, 1, &dims), "the second store reads after the first wrote");
        assert!(check(&late, 2, &dims));
        let mut narrow = plain.clone();
        narrow.operands[1].dtype = DType::F16;
        assert!(!check(&narrow, 1, &dims), "elements of another size");
        let mut flat = plain;
        flat.outer.push(dims.constant(2));
        assert!(!check(&flat, 1, &dims), "two points write one element");
    }
}
