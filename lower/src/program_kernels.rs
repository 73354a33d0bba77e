//! Generated kernels of a host program: nests that differ only in the dims they are given become one kernel.

use crate::host::{DimSource, KernelDef};
use ir::nest::{Access, Axis, BinOp, Coord, Expr, Nest, NestOperand, Phase, Term, UnOp};
use ir::ty::Shape;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::{DimId, DimPool, Entity};

/// Kernels by what they compute.
#[derive(Default)]
pub(crate) struct Kernels {
    /// In order of first use.
    pub defs: Vec<KernelDef>,
    by_key: FxHashMap<(Nest, Vec<DimSource>), u32>,
}

impl Kernels {
    /// The kernel for a nest and the dims to pass as its i64 arguments.
    pub fn get(&mut self, dims: &DimPool, nest: &Arc<Nest>) -> (u32, Vec<DimId>) {
        let mut seen: Vec<DimId> = vec![];
        let mut index: FxHashMap<DimId, usize> = FxHashMap::default();
        let canon = map_dims(nest, &mut |d| {
            let i = *index.entry(d).or_insert_with(|| {
                seen.push(d);
                seen.len() - 1
            });
            DimId::new(i)
        });
        let mut params = vec![];
        let sources: Vec<DimSource> = seen
            .iter()
            .map(|&d| match dims.as_const(d) {
                Some(c) => DimSource::Const(c),
                None => {
                    params.push(d);
                    DimSource::Param(u32::try_from(params.len() - 1).unwrap_or(u32::MAX))
                }
            })
            .collect();
        let next = u32::try_from(self.defs.len()).unwrap_or(u32::MAX);
        let id = *self.by_key.entry((canon, sources.clone())).or_insert(next);
        if id == next {
            self.defs.push(KernelDef {
                name: format!("k{id}_{}", describe(nest)),
                nest: nest.clone(),
                dims: seen.into_iter().zip(sources).collect(),
                n_params: u32::try_from(params.len()).unwrap_or(u32::MAX),
            });
        }
        (id, params)
    }
}

/// The nest with every dim replaced.
pub(crate) fn map_dims(n: &Nest, f: &mut impl FnMut(DimId) -> DimId) -> Nest {
    fn coords(cs: &[Coord], f: &mut impl FnMut(DimId) -> DimId) -> SmallVec<[Coord; 4]> {
        let coord =
            |c: &Coord| Coord { offset: f(c.offset), terms: c.terms.iter().map(|(t, k)| (*t, f(*k))).collect() };
        cs.iter().map(coord).collect()
    }
    fn access(a: &Access, f: &mut impl FnMut(DimId) -> DimId) -> Access {
        Access { operand: a.operand, coords: coords(&a.coords, f) }
    }
    let outer = n.outer.iter().map(|&d| f(d)).collect();
    let inner = n.inner.iter().map(|&d| f(d)).collect();
    let mut operands = vec![];
    for o in &n.operands {
        let shape: Shape = o.shape.iter().map(|&d| f(d)).collect();
        let strides: Shape = o.strides.iter().map(|&d| f(d)).collect();
        operands.push(NestOperand { dtype: o.dtype, shape, strides, written: o.written });
    }
    let mut exprs = vec![];
    for e in &n.exprs {
        exprs.push(match e {
            Expr::Dim(d) => Expr::Dim(f(*d)),
            Expr::Load(a) => Expr::Load(access(a, f)),
            Expr::LoadIf { cond, access: a, other } => {
                Expr::LoadIf { cond: *cond, access: access(a, f), other: *other }
            }
            other => other.clone(),
        });
    }
    let mut phases = vec![];
    for p in &n.phases {
        phases.push(match p {
            Phase::Store { over_inner, stores } => {
                let stores = stores.iter().map(|(a, e)| (access(a, f), *e)).collect();
                Phase::Store { over_inner: *over_inner, stores }
            }
            Phase::Reduce(r) => Phase::Reduce(r.clone()),
        });
    }
    Nest { outer, inner, operands, exprs, phases }
}

/// A few words for a nest: reductions and operations in order, as `max_exp_sum_div`.
fn describe(n: &Nest) -> String {
    const MOST: usize = 4;
    let mut words: Vec<String> = vec![];
    let mut add = |w: String| {
        if words.last() != Some(&w) && words.len() < MOST {
            words.push(w);
        }
    };
    let mut reduced = false;
    for p in &n.phases {
        if let Phase::Reduce(rs) = p {
            reduced = true;
            rs.iter().for_each(|r| add(format!("{:?}", r.combiner).to_lowercase()));
        }
    }
    for e in &n.exprs {
        match e {
            Expr::Unary(op, _) => add(format!("{op:?}").to_lowercase()),
            Expr::Binary(BinOp::Max, _, z) if matches!(n.get(*z), Expr::Float(0, _)) => add("relu".into()),
            Expr::Binary(op, ..) => add(format!("{op:?}").to_lowercase()),
            Expr::Select(..) => add("select".into()),
            Expr::LoadIf { .. } => add("pad".into()),
            Expr::Load(a) if a.coords.iter().any(|c| c.terms.iter().any(|(t, _)| matches!(t, Term::Expr(_)))) => {
                add("gather".into());
            }
            _ => {}
        }
    }
    match words.is_empty() {
        true if reduced => "reduce".into(),
        true if n.exprs.iter().any(|e| matches!(e, Expr::Cast(..))) => "cast".into(),
        true if n.exprs.iter().any(|e| matches!(e, Expr::Load(_))) => "copy".into(),
        true => "fill".into(),
        false => words.join("_"),
    }
}

/// A nest that copies a tensor between any strides.
pub(crate) fn copy_nest(dims: &mut DimPool, dtype: tensor::DType, shape: &Shape, from: &Shape, to: &Shape) -> Nest {
    let mut n = Nest { outer: shape.to_vec(), ..Nest::default() };
    let (zero, one) = (dims.constant(0), dims.constant(1));
    for (strides, written) in [(from, false), (to, true)] {
        n.operand(NestOperand { dtype, shape: shape.clone(), strides: strides.clone(), written });
    }
    let at = |operand| Access {
        operand,
        coords: (0..shape.len())
            .map(|i| {
                let axis = Axis::Outer(u16::try_from(i).unwrap_or(u16::MAX));
                Coord { offset: zero, terms: SmallVec::from_iter([(Term::Axis(axis), one)]) }
            })
            .collect(),
    };
    let x = n.expr(Expr::Load(at(0)));
    n.phases.push(Phase::Store { over_inner: false, stores: vec![(at(1), x)] });
    n
}

/// A nest that copies a contiguous tensor to the beginning of a contiguous one that is nowhere shorter; zeros go elsewhere.
pub(crate) fn grow_nest(dims: &mut DimPool, dtype: tensor::DType, from: &Shape, to: &Shape) -> Nest {
    let mut n = Nest { outer: to.to_vec(), ..Nest::default() };
    let (zero, one) = (dims.constant(0), dims.constant(1));
    for (shape, written) in [(from, false), (to, true)] {
        let strides = crate::views::row_major(dims, shape);
        n.operand(NestOperand { dtype, shape: shape.clone(), strides, written });
    }
    let axis = |i: usize| Axis::Outer(u16::try_from(i).unwrap_or(u16::MAX));
    let coord = |i| Coord { offset: zero, terms: SmallVec::from_iter([(Term::Axis(axis(i)), one)]) };
    let at = |operand| Access { operand, coords: (0..to.len()).map(coord).collect() };
    let mut there = None;
    for (i, &d) in from.iter().enumerate().filter(|&(i, d)| *d != to[i]) {
        let (index, length) = (n.expr(Expr::Index(axis(i))), n.expr(Expr::Dim(d)));
        let below = n.bin(BinOp::Lt, index, length);
        there = Some(there.map_or(below, |t| n.bin(BinOp::And, t, below)));
    }
    let compute = ir::nest::compute_dtype(dtype).unwrap_or(tensor::DType::F32);
    let other = n.num(0.0, compute);
    let x = n.expr(match there {
        Some(cond) => Expr::LoadIf { cond, access: at(0), other },
        None => Expr::Load(at(0)),
    });
    n.phases.push(Phase::Store { over_inner: false, stores: vec![(at(1), x)] });
    n
}

/// About how many elements a point touches: loads and stores, each times its passes.
pub(crate) fn work_per_point(n: &Nest) -> (i64, i64) {
    let loads = n.exprs.iter().filter(|e| matches!(e, Expr::Load(_) | Expr::LoadIf { .. })).count();
    let heavy = |e: &&Expr| {
        matches!(
            e,
            Expr::Unary(
                UnOp::Exp
                    | UnOp::Log
                    | UnOp::Erf
                    | UnOp::Tanh
                    | UnOp::Sin
                    | UnOp::Cos
                    | UnOp::Tan
                    | UnOp::Sinh
                    | UnOp::Cosh
                    | UnOp::Asin
                    | UnOp::Acos
                    | UnOp::Atan
                    | UnOp::Asinh
                    | UnOp::Acosh
                    | UnOp::Atanh,
                _
            ) | Expr::Binary(BinOp::Pow, ..)
        )
    };
    // A transcendental costs about as much as four elements.
    let each = i64::try_from(loads + 4 * n.exprs.iter().filter(heavy).count()).unwrap_or(i64::MAX).max(1);
    let (mut inner, mut once) = (0, 0);
    for p in &n.phases {
        match p {
            Phase::Reduce(_) => inner += each,
            Phase::Store { over_inner: true, stores } => inner += each + i64::try_from(stores.len()).unwrap_or(1),
            Phase::Store { stores, .. } => once += each + i64::try_from(stores.len()).unwrap_or(1),
        }
    }
    (inner, once)
}
