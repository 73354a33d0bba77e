//! Loop-nest fusion: nests that make a buffer merge into nests that read it, so that the buffer never exists.
//!
//! Two ways, tried in this order for each buffer that one nest writes and another reads:
//! - **Inlining**: the producer is pointwise; its expression takes the place of the load, at whatever coordinates the consumer asks
//!   for. The consumer may be anything (a row reduction gets a prologue).
//! - **Merging**: both run over the same rows; the phases of one follow those of the other in one nest. This gives reductions
//!   their epilogues, and results that others still need their own store (several outputs).
//!
//! A nest never recomputes much: see [`Cost`]. Values pass through the same rounding as through memory, so results are the same
//! bits with fusion off. Afterwards axes are collapsed.

mod inline;
mod merge;

use crate::views::Equalities;
use crate::{collapse, dead, nests};
use ir::Module;
use ir::attrs::Attrs;
use ir::graph::{Def, Node, NodeData, Origin, RegionId, Value};
use ir::hip::{Hip, HipOp, HipType, Layout};
use ir::nest::{Access, Axis, BinOp, Expr, ExprId, Nest, Phase, Term, UnOp};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tensor::{DType, DimId, Entity};

/// Most expressions of a fused nest: beyond that registers spill and compile time grows.
const MAX_EXPRS: usize = 96;
/// Most buffers of a fused nest.
const MAX_OPERANDS: usize = 24;

/// What computing one element costs: operations (a transcendental counts 10, a division or root 4) and loads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Weighted operations.
    pub ops: u32,
    /// Loads whose coordinates follow every axis of the producer: as many bytes as the buffer itself.
    pub full_loads: u32,
    /// All loads.
    pub loads: u32,
}

/// How often a consumer would compute an element of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repeat {
    /// Passes over the data that load it.
    passes: u32,
    /// Whether some pass loads an element at several points, or at computed coordinates.
    redundant: bool,
}

impl Cost {
    /// Whether to compute elements `repeat` times instead of once into a buffer, by a consumer among `n_readers`.
    ///
    /// Once is always better than a store and a load. Several passes (softmax reads its row three times) may repeat cheap work;
    /// points that share an element next to none; several readers only what costs no more bytes than the buffer itself.
    fn worth(self, repeat: Repeat, n_readers: usize) -> bool {
        let readers = u32::try_from(n_readers).unwrap_or(u32::MAX);
        match (repeat.redundant, n_readers) {
            (true, _) => self.ops.saturating_mul(readers) <= 2 && self.loads <= 1,
            (false, 1) => repeat.passes <= 1 || (self.ops <= 12 && self.full_loads <= 2),
            (false, _) => {
                self.ops.saturating_mul(readers.saturating_mul(repeat.passes)) <= 12
                    && self.full_loads <= 1
                    && self.loads <= 2
            }
        }
    }
}

/// The cost of expression `e` of a nest whose points are `outer`.
fn cost(nest: &Nest, e: ExprId) -> Cost {
    let mut seen = vec![false; nest.exprs.len()];
    seen[e.index()] = true;
    let mut c = Cost::default();
    for i in (0..=e.index()).rev() {
        if !seen[i] {
            continue;
        }
        let x = &nest.exprs[i];
        nests::children(x, &mut |k| seen[k.index()] = true);
        c.ops += match x {
            Expr::Unary(op, _) => match op {
                UnOp::Neg | UnOp::Abs | UnOp::Not | UnOp::BitNot | UnOp::Floor | UnOp::Ceil | UnOp::RoundEven => 1,
                UnOp::Trunc | UnOp::Sign | UnOp::IsNan | UnOp::IsInf | UnOp::ToBits | UnOp::FromBits => 1,
                UnOp::Sqrt | UnOp::Rsqrt | UnOp::Recip => 4,
                _ => 10,
            },
            Expr::Binary(BinOp::Pow, ..) => 20,
            Expr::Binary(BinOp::Div | BinOp::Mod | BinOp::Rem, ..) => 4,
            Expr::Binary(..) | Expr::Select(..) | Expr::Cast(..) | Expr::Round(..) => 1,
            Expr::LoadIf { .. } => 1,
            _ => 0,
        };
        if let Expr::Load(a) | Expr::LoadIf { access: a, .. } = x {
            c.loads += 1;
            let follows = |k: usize| mentions(a, Axis::Outer(u16::try_from(k).unwrap_or(u16::MAX)));
            c.full_loads += u32::from((0..nest.outer.len()).all(follows));
        }
    }
    c
}

fn mentions(a: &Access, axis: Axis) -> bool {
    a.coords.iter().flat_map(|c| &c.terms).any(|(t, _)| *t == Term::Axis(axis))
}

/// Expressions that each phase evaluates.
fn phase_exprs(nest: &Nest, p: &Phase) -> Vec<bool> {
    let mut live = vec![false; nest.exprs.len()];
    nests::roots(std::slice::from_ref(p)).into_iter().for_each(|e| live[e.index()] = true);
    for i in (0..nest.exprs.len()).rev() {
        if live[i] {
            nests::children(&nest.exprs[i], &mut |c| live[c.index()] = true);
        }
    }
    live
}

/// How often the consumer loads elements of operand `k`.
fn repeat(m: &Module<Hip>, nest: &Nest, k: u16) -> Repeat {
    let mut out = Repeat { passes: 0, redundant: false };
    for p in &nest.phases {
        let inner = match p {
            Phase::Reduce(_) => true,
            Phase::Store { over_inner, .. } => *over_inner,
        };
        let live = phase_exprs(nest, p);
        for (e, _) in nest.exprs.iter().zip(&live).filter(|(_, l)| **l) {
            let (Expr::Load(a) | Expr::LoadIf { access: a, .. }) = e else { continue };
            if a.operand != k {
                continue;
            }
            out.passes += 1;
            let one = |d: DimId| m.dims.as_const(d) == Some(1);
            let n = |i: usize| u16::try_from(i).unwrap_or(u16::MAX);
            let missing = |space: &[DimId], axis: fn(u16) -> Axis| {
                space.iter().enumerate().any(|(i, &d)| !one(d) && !mentions(a, axis(n(i))))
            };
            out.redundant |= missing(&nest.outer, Axis::Outer) || (inner && missing(&nest.inner, Axis::Inner));
            out.redundant |= a.coords.iter().flat_map(|c| &c.terms).any(|(t, _)| matches!(t, Term::Expr(_)));
        }
    }
    out
}

/// What fusion did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseReport {
    /// Pointwise producers that went into a consumer.
    pub inlined: u32,
    /// Nests over the same rows that became one.
    pub merged: u32,
    /// Nests with fewer axes than before.
    pub collapsed: u32,
}

/// Fuses loop nests in every region, then collapses axes.
pub fn fuse(m: &mut Module<Hip>) -> FuseReport {
    let mut report = FuseReport::default();
    let eq = Equalities::new(&m.guards);
    for r in m.graphs.keys() {
        drop_ones(m, r);
        Fuse::new(m, &eq, r).run(&mut report);
        dead::remove_dead(m, r);
    }
    for r in m.graphs.keys() {
        collapse_region(m, &eq, r, &mut report);
    }
    report
}

/// Removes iteration axes of extent 1, so that rows compare equal whether or not a reduction kept its axis.
fn drop_ones(m: &mut Module<Hip>, r: RegionId) {
    for n in m.graphs[r].order.clone() {
        let HipOp::Launch(nest) = &m.graphs[r].nodes[n].op else { continue };
        if nest.outer.iter().chain(&nest.inner).any(|&d| m.dims.as_const(d) == Some(1)) {
            let new = collapse::drop_ones(&m.dims, nest);
            m.graphs[r].nodes[n].op = HipOp::Launch(Arc::new(new));
        }
    }
}

/// A value as a view of its root.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    offset: DimId,
    ty: HipType,
}

struct Fuse<'a> {
    m: &'a mut Module<Hip>,
    eq: &'a Equalities,
    r: RegionId,
    root: Vec<Value>,
    writers: FxHashMap<Value, Vec<Node>>,
    readers: FxHashMap<Value, Vec<Node>>,
    pos: FxHashMap<Node, usize>,
    /// Views made on the way, with what they view.
    new_views: Vec<(Value, Node)>,
}

impl<'a> Fuse<'a> {
    fn new(m: &'a mut Module<Hip>, eq: &'a Equalities, r: RegionId) -> Fuse<'a> {
        let root = dead::roots(m, r);
        let (mut writers, mut readers) =
            (FxHashMap::<Value, Vec<Node>>::default(), FxHashMap::<Value, Vec<Node>>::default());
        let mut pos = FxHashMap::default();
        for (i, &n) in m.graphs[r].order.iter().enumerate() {
            pos.insert(n, i);
            let node = &m.graphs[r].nodes[n];
            if matches!(node.op, HipOp::View { .. }) {
                continue;
            }
            let n_reads = dead::n_reads(m, r, n);
            for (k, v) in node.ins.iter().enumerate() {
                let Some(v) = v else { continue };
                let map = if k < n_reads { &mut readers } else { &mut writers };
                let list = map.entry(root[v.index()]).or_default();
                if list.last() != Some(&n) {
                    list.push(n);
                }
            }
        }
        Fuse { m, eq, r, root, writers, readers, pos, new_views: vec![] }
    }

    fn node(&self, n: Node) -> &NodeData<Hip> {
        &self.m.graphs[self.r].nodes[n]
    }
    fn nest(&self, n: Node) -> Option<Arc<Nest>> {
        match &self.node(n).op {
            HipOp::Launch(nest) => Some(nest.clone()),
            _ => None,
        }
    }

    fn run(&mut self, report: &mut FuseReport) {
        for c in self.m.graphs[self.r].order.clone() {
            // Each success may bring new producers into reach.
            while self.nest(c).is_some() && self.step(c, report) {}
        }
        let gone: FxHashSet<Node> = self.m.graphs[self.r]
            .order
            .iter()
            .copied()
            .filter(|&n| self.nest(n).is_some_and(|nest| nest.phases.is_empty()))
            .collect();
        self.m.graphs[self.r].order.retain(|n| !gone.contains(n));
        self.place_views();
    }

    /// Puts the new views into the order: each right after what it views.
    fn place_views(&mut self) {
        if self.new_views.is_empty() {
            return;
        }
        let g = &mut self.m.graphs[self.r];
        let mut after: FxHashMap<Option<Node>, Vec<Node>> = FxHashMap::default();
        for (v, n) in std::mem::take(&mut self.new_views) {
            let def = match g.values[v].def {
                Def::Node(d, _) => Some(d),
                _ => None,
            };
            after.entry(def).or_default().push(n);
        }
        let mut order = vec![];
        let mut todo: Vec<Node> = after.remove(&None).unwrap_or_default();
        let old = std::mem::take(&mut g.order);
        todo.reverse();
        let mut next = old.into_iter();
        loop {
            let n = match todo.pop() {
                Some(n) => n,
                None => match next.next() {
                    Some(n) => n,
                    None => break,
                },
            };
            order.push(n);
            if let Some(more) = after.remove(&Some(n)) {
                todo.extend(more.into_iter().rev());
            }
        }
        g.order = order;
    }

    /// Fuses one producer into `c`; says whether it did.
    fn step(&mut self, c: Node, report: &mut FuseReport) -> bool {
        let Some(nest) = self.nest(c) else { return false };
        let n_reads = nest.operands.iter().filter(|o| !o.written).count();
        for k in 0..n_reads {
            let Some(v) = self.node(c).ins[k] else { continue };
            let Some((p, private)) = self.producer(v, c) else { continue };
            if private && self.inline(c, k, v, p) {
                report.inlined += 1;
                return true;
            }
            if self.merge(c, v, p) {
                report.merged += 1;
                return true;
            }
        }
        false
    }

    /// The nest that alone writes the buffer behind `v`, and whether nothing outside this region's nests can see the buffer.
    fn producer(&self, v: Value, c: Node) -> Option<(Node, bool)> {
        let b = self.root[v.index()];
        let g = &self.m.graphs[self.r];
        let Def::Node(n, _) = g.values[b].def else { return None };
        let private = match g.nodes[n].op {
            HipOp::Alloc => !g.outputs.iter().any(|o| self.root[o.index()] == b),
            HipOp::Output(_) => false,
            _ => return None,
        };
        let [p] = self.writers.get(&b)?.as_slice() else { return None };
        (self.nest(*p).is_some() && *p != c && self.pos[p] < self.pos[&c]).then_some((*p, private))
    }

    /// A value's offset from its root, and its type.
    fn seen(&mut self, v: Value) -> Seen {
        let mut offset = self.m.dims.constant(0);
        let mut at = v;
        loop {
            let g = &self.m.graphs[self.r];
            let Def::Node(n, _) = g.values[at].def else { break };
            let HipOp::View { offset: by } = g.nodes[n].op else { break };
            let Some(Some(x)) = g.nodes[n].ins.first().copied() else { break };
            offset = self.m.dims.add(offset, by);
            at = x;
        }
        Seen { offset, ty: self.m.graphs[self.r].values[v].ty.clone() }
    }

    /// Replaces node `c`'s nest and operands.
    fn set(&mut self, c: Node, mut nest: Nest, mut ins: Vec<Option<Value>>, from: Option<Node>) {
        let kept = nests::prune_operands(&mut nest);
        ins = kept.into_iter().map(|k| ins[k]).collect();
        let old: Vec<Value> = self.node(c).ins.iter().flatten().copied().collect();
        for v in old {
            let b = self.root[v.index()];
            for map in [&mut self.readers, &mut self.writers] {
                if let Some(l) = map.get_mut(&b) {
                    l.retain(|&n| n != c);
                }
            }
        }
        for (o, v) in nest.operands.iter().zip(&ins) {
            let Some(v) = v else { continue };
            let map = if o.written { &mut self.writers } else { &mut self.readers };
            let list = map.entry(self.root[v.index()]).or_default();
            if !list.contains(&c) {
                list.push(c);
            }
        }
        let origin = from.map(|p| join(&self.node(p).origin, &self.node(c).origin));
        let node = &mut self.m.graphs[self.r].nodes[c];
        node.ins = ins.into_iter().collect();
        node.op = HipOp::Launch(Arc::new(nest));
        node.origin = origin.unwrap_or(node.origin.clone());
    }

    /// Drops the producer's stores to buffers that nobody reads any more.
    fn drop_unread(&mut self, p: Node) {
        let Some(nest) = self.nest(p) else { return };
        let ins = self.node(p).ins.to_vec();
        let g = &self.m.graphs[self.r];
        let unread = |k: u16| {
            let Some(v) = ins[usize::from(k)] else { return false };
            let b = self.root[v.index()];
            let private = matches!(g.values[b].def, Def::Node(n, _) if g.nodes[n].op == HipOp::Alloc)
                && !g.outputs.iter().any(|o| self.root[o.index()] == b);
            private && self.readers.get(&b).is_none_or(|l| l.is_empty())
        };
        let mut out = (*nest).clone();
        let mut changed = false;
        for ph in &mut out.phases {
            if let Phase::Store { stores, .. } = ph {
                let n = stores.len();
                stores.retain(|(a, _)| !unread(a.operand));
                changed |= stores.len() < n;
            }
        }
        if !changed {
            return;
        }
        out.phases.retain(|p| !matches!(p, Phase::Store { stores, .. } if stores.is_empty()));
        if !out.phases.iter().any(|p| matches!(p, Phase::Store { .. })) {
            out.phases.clear();
        }
        self.set(p, out, ins, None);
    }

    /// Whether a nest made of both could fit the limits; asked before any work is done.
    fn fits(a: &Nest, b: &Nest) -> bool {
        a.exprs.len() + b.exprs.len() <= MAX_EXPRS
    }
    /// The nest fits the limits.
    fn small(nest: &Nest) -> bool {
        nest.exprs.len() <= MAX_EXPRS && nest.operands.len() <= MAX_OPERANDS
    }
}

/// Both paths, each once.
fn join(a: &Origin, b: &Origin) -> Origin {
    let mut parts: Vec<&str> = a.0.split(" + ").collect();
    parts.extend(b.0.split(" + ").filter(|x| !a.0.split(" + ").any(|y| y == *x)));
    parts.retain(|p| !p.is_empty());
    Origin(parts.join(" + ").into())
}

/// The value stored for a buffer of type `d`, as a load of it gives: converted and rounded. `None` where a store wraps.
fn through_memory(n: &mut Nest, e: ExprId, d: DType) -> Option<ExprId> {
    let compute = ir::nest::compute_dtype(d)?;
    let e = nests::cast(n, e, compute);
    match () {
        _ if d == compute => Some(e),
        _ if d.is_float() => Some(n.expr(Expr::Round(e, d))),
        _ => None,
    }
}

/// Collapses the axes of every nest of a region; operands with fewer axes get views.
fn collapse_region(m: &mut Module<Hip>, eq: &Equalities, r: RegionId, report: &mut FuseReport) {
    let mut order = vec![];
    for n in std::mem::take(&mut m.graphs[r].order) {
        if let HipOp::Launch(nest) = &m.graphs[r].nodes[n].op {
            let mut new = collapse::collapse(&mut m.dims, eq, nest);
            // The one pass of merging may bring further neighbors together.
            new = nests::rebuild(&new, &mut |n, e, _| n.expr(e));
            if new != **nest {
                report.collapsed += u32::from(new.outer.len() + new.inner.len() < nest.outer.len() + nest.inner.len());
                let zero = m.dims.constant(0);
                for (k, o) in new.operands.iter().enumerate() {
                    let Some(v) = m.graphs[r].nodes[n].ins[k] else { continue };
                    let old = &m.graphs[r].values[v].ty;
                    if old.shape == o.shape && old.strides == o.strides {
                        continue;
                    }
                    let ty = HipType {
                        dtype: old.dtype,
                        shape: o.shape.clone(),
                        strides: o.strides.clone(),
                        layout: Layout::Strided,
                        space: old.space,
                    };
                    let attrs = m.attrs.intern(Attrs::default());
                    let origin = m.graphs[r].nodes[n].origin.clone();
                    let g = &mut m.graphs[r];
                    let view =
                        g.add_node(HipOp::View { offset: zero }, attrs, [Some(v)], [(ty, "".into())], [], origin);
                    g.order.pop();
                    order.push(view);
                    let seen = g.nodes[view].outs[0];
                    g.nodes[n].ins[k] = Some(seen);
                }
                m.graphs[r].nodes[n].op = HipOp::Launch(Arc::new(new));
            }
        }
        order.push(n);
    }
    m.graphs[r].order = order;
}
