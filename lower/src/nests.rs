//! Building and editing loop nests: pointwise and copy nests, rebuilding expressions, folding what is known.

use crate::views::{Equalities, broadcast_step};
use ir::Shape;
use ir::lowering::{Operand, Plan, Refusal};
use ir::nest::{Access, Axis, BinOp, Coord, Expr, ExprId, Nest, NestOperand, Phase, Reduction, Term, compute_dtype};
use smallvec::SmallVec;
use tensor::{DType, DimId, DimPool, Entity};

/// The coordinate that is an iteration variable.
pub fn axis_coord(dims: &mut DimPool, axis: Axis) -> Coord {
    let (zero, one) = (dims.constant(0), dims.constant(1));
    Coord { offset: zero, terms: SmallVec::from_iter([(Term::Axis(axis), one)]) }
}

/// The access to the element of operand `k` at the position `outer` of a pointwise nest, broadcast.
fn pointwise_access(dims: &mut DimPool, eq: &Equalities, k: u16, shape: &[DimId], outer: &[DimId]) -> Access {
    let (zero, lead) = (dims.constant(0), outer.len().saturating_sub(shape.len()));
    // Axes before all of the results' have one element.
    let over = shape.len().saturating_sub(outer.len());
    let coords = shape.iter().enumerate().map(|(i, &d)| {
        let mut terms = SmallVec::new();
        if let Some(axis) = (lead + i).checked_sub(over) {
            let step = broadcast_step(dims, eq, d, outer[axis]);
            if dims.as_const(step) != Some(0) {
                terms.push((Term::Axis(Axis::Outer(u16::try_from(axis).unwrap_or(u16::MAX))), step));
            }
        }
        Coord { offset: zero, terms }
    });
    Access { operand: k, coords: coords.collect() }
}

/// A nest that computes each element of the results from the operands' elements at the same (broadcast) position. Gives the nest
/// and the node's operands that it reads, in order; strides are those of contiguous buffers.
pub fn pointwise(
    dims: &mut DimPool,
    eq: &Equalities,
    ins: &[Option<Operand>],
    outs: &[Operand],
    build: &mut dyn FnMut(&mut DimPool, &mut Nest, &[Option<ExprId>]) -> Plan<SmallVec<[ExprId; 1]>>,
) -> Plan<Nest> {
    let Some(first) = outs.first() else { return Err(Refusal::from("it has no result")) };
    let outer = first.shape.clone();
    if let Some(o) = outs.iter().find(|o| o.shape != outer) {
        let n = (o.shape.len(), outer.len());
        return Err(Refusal(format!("its results have different shapes (ranks {} and {})", n.0, n.1)));
    }
    let mut nest = Nest { outer: outer.to_vec(), ..Nest::default() };
    let mut args = vec![];
    for x in ins {
        let Some(x) = x else {
            args.push(None);
            continue;
        };
        let over = x.shape.len().saturating_sub(outer.len());
        if x.shape[..over].iter().any(|&d| dims.as_const(d) != Some(1)) {
            return Err(Refusal(format!("an operand of rank {} has no place in rank {}", x.shape.len(), outer.len())));
        }
        compute_dtype(x.dtype).ok_or_else(|| Refusal(format!("loops cannot compute with {}", x.dtype)))?;
        let strides = crate::views::row_major(dims, &x.shape);
        let k = nest.operand(NestOperand { dtype: x.dtype, shape: x.shape.clone(), strides, written: false });
        let access = pointwise_access(dims, eq, k, &x.shape, &outer);
        args.push(Some(nest.expr(Expr::Load(access))));
    }
    let results = build(dims, &mut nest, &args)?;
    if results.len() != outs.len() {
        return Err(Refusal(format!("it gives {} of {} results", results.len(), outs.len())));
    }
    let mut stores = vec![];
    for (o, e) in outs.iter().zip(results) {
        compute_dtype(o.dtype).ok_or_else(|| Refusal(format!("loops cannot compute with {}", o.dtype)))?;
        let strides = crate::views::row_major(dims, &o.shape);
        let k = nest.operand(NestOperand { dtype: o.dtype, shape: o.shape.clone(), strides, written: true });
        stores.push((pointwise_access(dims, eq, k, &o.shape, &outer), e));
    }
    nest.phases.push(Phase::Store { over_inner: false, stores });
    Ok(nest)
}

/// A nest that copies element by element.
pub fn copy(dims: &mut DimPool, dtype: DType, shape: &[DimId], from: &[DimId], to: &[DimId]) -> Nest {
    convert(dims, (dtype, from), (dtype, to), shape)
}

/// A nest that copies elements from one type to another, each with the strides of its buffer.
pub fn convert(dims: &mut DimPool, from: (DType, &[DimId]), to: (DType, &[DimId]), shape: &[DimId]) -> Nest {
    let mut nest = Nest { outer: shape.to_vec(), ..Nest::default() };
    let shape: Shape = shape.into();
    let mut operand = |(dtype, strides): (DType, &[DimId]), written| {
        nest.operand(NestOperand { dtype, shape: shape.clone(), strides: strides.into(), written })
    };
    let (a, b) = (operand(from, false), operand(to, true));
    let coords: SmallVec<[Coord; 4]> =
        (0..shape.len()).map(|i| axis_coord(dims, Axis::Outer(u16::try_from(i).unwrap_or(u16::MAX)))).collect();
    let mut value = nest.expr(Expr::Load(Access { operand: a, coords: coords.clone() }));
    if let Some(compute) = compute_dtype(to.0) {
        value = cast(&mut nest, value, compute);
    }
    nest.phases.push(Phase::Store { over_inner: false, stores: vec![(Access { operand: b, coords }, value)] });
    nest
}

/// Calls `f` on every expression that `e` uses directly.
pub fn children(e: &Expr, f: &mut dyn FnMut(ExprId)) {
    let access = |a: &Access, f: &mut dyn FnMut(ExprId)| {
        a.coords.iter().flat_map(|c| &c.terms).for_each(|(t, _)| {
            if let Term::Expr(x) = t {
                f(*x);
            }
        });
    };
    match e {
        Expr::Load(a) => access(a, f),
        Expr::LoadIf { cond, access: a, other } => {
            f(*cond);
            access(a, f);
            f(*other);
        }
        Expr::Unary(_, a) | Expr::Cast(a, _) | Expr::Round(a, _) => f(*a),
        Expr::Binary(_, a, b) => {
            f(*a);
            f(*b);
        }
        Expr::Select(a, b, c) => [a, b, c].into_iter().for_each(|x| f(*x)),
        _ => {}
    }
}

/// The access with its computed coordinates replaced.
pub fn map_access(a: &Access, f: &mut dyn FnMut(ExprId) -> ExprId) -> Access {
    let mut a = a.clone();
    for (t, _) in a.coords.iter_mut().flat_map(|c| &mut c.terms) {
        if let Term::Expr(x) = t {
            *x = f(*x);
        }
    }
    a
}

/// The expression with its direct operands replaced.
pub fn map_children(e: &Expr, f: &mut dyn FnMut(ExprId) -> ExprId) -> Expr {
    match e {
        Expr::Load(a) => Expr::Load(map_access(a, f)),
        Expr::LoadIf { cond, access, other } => {
            Expr::LoadIf { cond: f(*cond), access: map_access(access, f), other: f(*other) }
        }
        Expr::Unary(op, a) => Expr::Unary(*op, f(*a)),
        Expr::Binary(op, a, b) => Expr::Binary(*op, f(*a), f(*b)),
        Expr::Select(c, a, b) => Expr::Select(f(*c), f(*a), f(*b)),
        Expr::Cast(a, d) => Expr::Cast(f(*a), *d),
        Expr::Round(a, d) => Expr::Round(f(*a), *d),
        leaf => leaf.clone(),
    }
}

/// Expressions that the phases use directly, in order.
pub fn roots(phases: &[Phase]) -> Vec<ExprId> {
    let mut out = vec![];
    for p in phases {
        match p {
            Phase::Reduce(rs) => out.extend(rs.iter().map(|r| r.value)),
            Phase::Store { stores, .. } => {
                for (a, e) in stores {
                    a.coords.iter().flat_map(|c| &c.terms).for_each(|(t, _)| {
                        if let Term::Expr(x) = t {
                            out.push(*x);
                        }
                    });
                    out.push(*e);
                }
            }
        }
    }
    out
}

/// Which expressions the phases use, directly or not.
pub fn live(nest: &Nest) -> Vec<bool> {
    let mut live = vec![false; nest.exprs.len()];
    roots(&nest.phases).into_iter().for_each(|e| live[e.index()] = true);
    for i in (0..nest.exprs.len()).rev() {
        if live[i] {
            children(&nest.exprs[i], &mut |c| live[c.index()] = true);
        }
    }
    live
}

/// The phases with their expressions replaced.
pub fn map_phases(phases: &[Phase], f: &mut dyn FnMut(ExprId) -> ExprId) -> Vec<Phase> {
    let phase = |p: &Phase, f: &mut dyn FnMut(ExprId) -> ExprId| match p {
        Phase::Reduce(rs) => {
            Phase::Reduce(rs.iter().map(|r| Reduction { combiner: r.combiner, value: f(r.value) }).collect())
        }
        Phase::Store { over_inner, stores } => Phase::Store {
            over_inner: *over_inner,
            stores: stores.iter().map(|(a, e)| (map_access(a, f), f(*e))).collect(),
        },
    };
    phases.iter().map(|p| phase(p, f)).collect()
}

/// Rebuilds the live expressions bottom up: `f` adds to the new nest what an expression (its operands already replaced) becomes.
/// `f` is given the expression's compute type, too.
pub fn rebuild(nest: &Nest, f: &mut dyn FnMut(&mut Nest, Expr, DType) -> ExprId) -> Nest {
    let live = live(nest);
    let mut out = Nest { exprs: vec![], ..nest.clone() };
    let mut map: Vec<Option<ExprId>> = vec![None; nest.exprs.len()];
    for (i, e) in nest.exprs.iter().enumerate() {
        if live[i] {
            if matches!(e, Expr::Reduced(_)) {
                // Its type is asked of the phases: those reductions come before it.
                out.phases = map_phases(&nest.phases, &mut |c| map[c.index()].unwrap_or(ExprId::new(0)));
            }
            let e = map_children(e, &mut |c| map[c.index()].unwrap_or(c));
            let dtype = nest.expr_dtype(ExprId::new(i));
            map[i] = Some(f(&mut out, e, dtype));
        }
    }
    // `Reduced` counts over phases, which the new nest keeps.
    out.phases = map_phases(&nest.phases, &mut |c| map[c.index()].unwrap_or(c));
    out
}

/// Replaces every load of operand `k` by a literal of its compute type.
pub fn replace_loads(nest: &Nest, k: u16, literal: &Expr) -> Nest {
    rebuild(nest, &mut |n, e, dtype| match &e {
        Expr::Load(a) if a.operand == k => {
            let x = n.expr(literal.clone());
            cast(n, x, dtype)
        }
        Expr::LoadIf { cond, access, other } if access.operand == k => {
            let x = n.expr(literal.clone());
            let x = cast(n, x, dtype);
            n.expr(Expr::Select(*cond, x, *other))
        }
        _ => n.expr(e),
    })
}

/// `x` converted, unless it is of that type already.
pub fn cast(n: &mut Nest, x: ExprId, dtype: DType) -> ExprId {
    if n.expr_dtype(x) == dtype { x } else { n.expr(Expr::Cast(x, dtype)) }
}

/// Folds integer expressions of literals and dims, and computed coordinates that are affine, into dims.
pub fn simplify(dims: &mut DimPool, nest: &Nest) -> Nest {
    rebuild(nest, &mut |n, e, _| {
        let e = fold(dims, n, e);
        n.expr(e)
    })
    .with_coords(dims)
}

trait Coords {
    fn with_coords(self, dims: &mut DimPool) -> Self;
}
impl Coords for Nest {
    fn with_coords(self, dims: &mut DimPool) -> Nest {
        let mut out = rebuild(&self, &mut |n, e, _| {
            let e = match e {
                Expr::Load(a) => Expr::Load(affine_access(dims, n, &a)),
                Expr::LoadIf { cond, access, other } => {
                    Expr::LoadIf { cond, access: affine_access(dims, n, &access), other }
                }
                e => e,
            };
            n.expr(e)
        });
        let mut phases = std::mem::take(&mut out.phases);
        for p in &mut phases {
            if let Phase::Store { stores, .. } = p {
                stores.iter_mut().for_each(|(a, _)| *a = affine_access(dims, &out, a));
            }
        }
        out.phases = phases;
        out
    }
}

fn affine_access(dims: &mut DimPool, n: &Nest, a: &Access) -> Access {
    let coords = a.coords.iter().map(|c| {
        let mut out = Coord { offset: c.offset, terms: SmallVec::new() };
        for &(t, k) in &c.terms {
            add_term(dims, n, &mut out, t, k);
        }
        out
    });
    Access { operand: a.operand, coords: coords.collect() }
}

/// Adds `k · t` to a coordinate, taking sums apart.
fn add_term(dims: &mut DimPool, n: &Nest, out: &mut Coord, t: Term, k: DimId) {
    let known = match t {
        Term::Axis(_) => None,
        Term::Expr(e) => match n.get(e) {
            Expr::Int(v, DType::I64) => Some(dims.constant(*v)),
            Expr::Dim(d) => Some(*d),
            Expr::Index(axis) => return add_term(dims, n, out, Term::Axis(*axis), k),
            Expr::Binary(BinOp::Add, a, b) if n.expr_dtype(e) == DType::I64 => {
                let (a, b) = (*a, *b);
                add_term(dims, n, out, Term::Expr(a), k);
                return add_term(dims, n, out, Term::Expr(b), k);
            }
            _ => None,
        },
    };
    if let Some(d) = known {
        let d = dims.mul(d, k);
        out.offset = dims.add(out.offset, d);
    } else if let Some(old) = out.terms.iter_mut().find(|(x, _)| *x == t) {
        old.1 = dims.add(old.1, k);
    } else {
        out.terms.push((t, k));
    }
}

/// The dim that an i64 expression is.
fn as_dim(dims: &mut DimPool, n: &Nest, e: ExprId) -> Option<DimId> {
    match n.get(e) {
        Expr::Int(v, DType::I64) => Some(dims.constant(*v)),
        Expr::Dim(d) => Some(*d),
        _ => None,
    }
}

fn fold(dims: &mut DimPool, n: &Nest, e: Expr) -> Expr {
    let dim = |dims: &DimPool, d: DimId| match dims.as_const(d) {
        Some(v) => Expr::Int(v, DType::I64),
        None => Expr::Dim(d),
    };
    match &e {
        Expr::Dim(d) => dim(dims, *d),
        Expr::Cast(a, DType::I64) => match n.get(*a) {
            Expr::Int(v, _) => Expr::Int(*v, DType::I64),
            _ if n.expr_dtype(*a) == DType::I64 => n.get(*a).clone(),
            _ => e,
        },
        Expr::Cast(a, DType::I32) => match n.get(*a) {
            Expr::Int(v, DType::I64 | DType::Bool) if i32::try_from(*v).is_ok() => Expr::Int(*v, DType::I32),
            _ => e,
        },
        Expr::Select(c, a, b) => match n.get(*c) {
            Expr::Int(v, _) => n.get(if *v != 0 { *a } else { *b }).clone(),
            _ => e,
        },
        Expr::LoadIf { cond, access, other } => match n.get(*cond) {
            Expr::Int(0, _) => n.get(*other).clone(),
            Expr::Int(..) => Expr::Load(access.clone()),
            _ => e,
        },
        Expr::Binary(op, a, b) => {
            let (Some(x), Some(y)) = (as_dim(dims, n, *a), as_dim(dims, n, *b)) else { return e };
            let consts = dims.as_const(x).zip(dims.as_const(y));
            match op {
                BinOp::Add => consts.map_or_else(|| true, |(x, y)| x.checked_add(y).is_some()).then(|| dims.add(x, y)),
                BinOp::Sub => consts.map_or_else(|| true, |(x, y)| x.checked_sub(y).is_some()).then(|| dims.sub(x, y)),
                BinOp::Mul => consts.map_or_else(|| true, |(x, y)| x.checked_mul(y).is_some()).then(|| dims.mul(x, y)),
                _ => None,
            }
            .map(|d| dim(dims, d))
            .or_else(|| {
                let holds = match (op, consts) {
                    (BinOp::Lt, Some((x, y))) => Some(x < y),
                    (BinOp::Le, Some((x, y))) => Some(x <= y),
                    (BinOp::Gt, Some((x, y))) => Some(x > y),
                    (BinOp::Ge, Some((x, y))) => Some(x >= y),
                    (BinOp::Eq, Some((x, y))) => Some(x == y),
                    (BinOp::Ne, Some((x, y))) => Some(x != y),
                    _ => None,
                };
                holds.map(|h| Expr::Int(h.into(), DType::Bool))
            })
            .unwrap_or(e)
        }
        _ => e,
    }
}

/// Drops operands that nothing reads or stores to. Gives the positions kept, in order.
pub fn prune_operands(nest: &mut Nest) -> Vec<usize> {
    let live = live(nest);
    let mut used = vec![false; nest.operands.len()];
    for (e, _) in nest.exprs.iter().zip(&live).filter(|(_, l)| **l) {
        if let Expr::Load(a) | Expr::LoadIf { access: a, .. } = e {
            used[usize::from(a.operand)] = true;
        }
    }
    for p in &nest.phases {
        if let Phase::Store { stores, .. } = p {
            stores.iter().for_each(|(a, _)| used[usize::from(a.operand)] = true);
        }
    }
    let kept: Vec<usize> = (0..used.len()).filter(|&i| used[i]).collect();
    if kept.len() < used.len() {
        let place: Vec<u16> = (0..used.len())
            .map(|i| u16::try_from(kept.iter().position(|&k| k == i).unwrap_or(0)).unwrap_or(u16::MAX))
            .collect();
        move_operands(nest, &place);
        nest.operands = kept.iter().map(|&i| nest.operands[i].clone()).collect();
    }
    kept
}

/// Renumbers operands in every access; the list of operands stays.
pub fn move_operands(nest: &mut Nest, place: &[u16]) {
    let to = |a: &mut Access| a.operand = place[usize::from(a.operand)];
    for e in &mut nest.exprs {
        if let Expr::Load(a) | Expr::LoadIf { access: a, .. } = e {
            to(a);
        }
    }
    for p in &mut nest.phases {
        if let Phase::Store { stores, .. } = p {
            stores.iter_mut().for_each(|(a, _)| to(a));
        }
    }
}

/// Every dim that the nest mentions, in order, with repeats.
pub fn dims_of(nest: &Nest) -> Vec<DimId> {
    let mut out: Vec<DimId> = nest.outer.iter().chain(&nest.inner).copied().collect();
    out.extend(nest.operands.iter().flat_map(|o| o.shape.iter().chain(&o.strides)));
    let access = |a: &Access, out: &mut Vec<DimId>| {
        for c in &a.coords {
            out.push(c.offset);
            out.extend(c.terms.iter().map(|(_, k)| *k));
        }
    };
    for e in &nest.exprs {
        match e {
            Expr::Load(a) | Expr::LoadIf { access: a, .. } => access(a, &mut out),
            Expr::Dim(d) => out.push(*d),
            _ => {}
        }
    }
    for p in &nest.phases {
        if let Phase::Store { stores, .. } = p {
            stores.iter().for_each(|(a, _)| access(a, &mut out));
        }
    }
    out
}
