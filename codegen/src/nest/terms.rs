//! What expressions and accesses of a nest depend on. Nothing here knows LLVM or a target.

use ir::nest::{Access, Axis, Expr, ExprId, Nest, Term};
use lower::host::{DimSource, KernelDef};
use tensor::{DimId, Entity};

/// How deep in the loops a value is fixed; 0 is outside all loops. An emitter numbers its loops from the outside to the inside.
pub(crate) type Level = usize;

/// The level at which each axis, and what reductions give, is fixed: the order of an emitter's loops.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// One per axis of `outer`.
    pub outer: Vec<Level>,
    /// One per axis of `inner`.
    pub inner: Vec<Level>,
    /// Where a reduction's result is read.
    pub reduced: Level,
}

impl Order {
    /// The level of an axis; of one that the nest does not have, deeper than all.
    pub fn axis(&self, a: Axis) -> Level {
        let level = match a {
            Axis::Outer(i) => self.outer.get(usize::from(i)),
            Axis::Inner(i) => self.inner.get(usize::from(i)),
        };
        level.copied().unwrap_or(Level::MAX)
    }
    /// The level of each expression: the deepest of what it depends on.
    pub fn levels(&self, nest: &Nest) -> Vec<Level> {
        let mut levels: Vec<Level> = Vec::with_capacity(nest.exprs.len());
        for x in &nest.exprs {
            let own = match x {
                Expr::Index(a) => self.axis(*a),
                Expr::Reduced(_) => self.reduced,
                Expr::Load(a) | Expr::LoadIf { access: a, .. } => {
                    let axes = access_terms(a).filter_map(|t| if let Term::Axis(x) = t { Some(*x) } else { None });
                    axes.map(|x| self.axis(x)).max().unwrap_or(0)
                }
                _ => 0,
            };
            levels.push(children(x).iter().map(|c| levels[c.index()]).max().unwrap_or(0).max(own));
        }
        levels
    }
}

/// Where an element is loaded or stored: an expression, or the k-th store of the current phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Site {
    Load(ExprId),
    Store(usize),
}

/// The terms of all coordinates.
pub(crate) fn access_terms(a: &Access) -> impl Iterator<Item = &Term> {
    a.coords.iter().flat_map(|c| c.terms.iter().map(|(t, _)| t))
}

/// The computed terms of all coordinates.
pub(crate) fn access_exprs(a: &Access) -> impl Iterator<Item = ExprId> {
    access_terms(a).filter_map(|t| if let Term::Expr(x) = t { Some(*x) } else { None })
}

/// The access of a load, guarded or not.
pub(crate) fn load(x: &Expr) -> Option<&Access> {
    match x {
        Expr::Load(a) | Expr::LoadIf { access: a, .. } => Some(a),
        _ => None,
    }
}

/// What an expression uses.
pub(crate) fn children(x: &Expr) -> Vec<ExprId> {
    match x {
        Expr::Float(..) | Expr::Int(..) | Expr::Index(_) | Expr::Dim(_) | Expr::Reduced(_) => vec![],
        Expr::Load(a) => access_exprs(a).collect(),
        Expr::LoadIf { cond, access, other } => access_exprs(access).chain([*cond, *other]).collect(),
        Expr::Unary(_, a) | Expr::Cast(a, _) | Expr::Round(a, _) => vec![*a],
        Expr::Binary(_, a, b) => vec![*a, *b],
        Expr::Select(a, b, c) => vec![*a, *b, *c],
        _ => vec![],
    }
}

/// What `roots` use, directly or not, and the roots themselves, operands before users.
pub(crate) fn needed(nest: &Nest, roots: impl IntoIterator<Item = ExprId>) -> Vec<ExprId> {
    needed_given(nest, roots, |_| false)
}

/// The same where some are given: they are in the list, what only they use is not.
pub(crate) fn needed_given(
    nest: &Nest,
    roots: impl IntoIterator<Item = ExprId>,
    given: impl Fn(ExprId) -> bool,
) -> Vec<ExprId> {
    let mut mark = vec![false; nest.exprs.len()];
    for r in roots {
        mark[r.index()] = true;
    }
    for i in (0..mark.len()).rev() {
        if mark[i] && !given(ExprId::new(i)) {
            for c in children(&nest.exprs[i]) {
                mark[c.index()] = true;
            }
        }
    }
    (0..mark.len()).filter(|i| mark[*i]).map(ExprId::new).collect()
}

/// How far apart in memory, in elements, two neighbors along an axis are, when that is a constant.
pub(crate) fn stride(def: &KernelDef, a: &Access, axis: Axis) -> Option<i64> {
    let known = |d: DimId| {
        def.dims
            .iter()
            .find(|(x, _)| *x == d)
            .and_then(|(_, s)| if let DimSource::Const(c) = s { Some(*c) } else { None })
    };
    let strides = &def.nest.operands[usize::from(a.operand)].strides;
    let mut sum = 0i64;
    for (c, s) in a.coords.iter().zip(strides) {
        for (t, k) in &c.terms {
            match t {
                Term::Axis(x) if *x == axis => sum = sum.checked_add(known(*k)?.checked_mul(known(*s)?)?)?,
                Term::Axis(_) => {}
                Term::Expr(_) => return None,
            }
        }
    }
    Some(sum)
}
