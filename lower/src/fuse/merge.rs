//! Merging: two nests over the same rows become one, the phases of the second after those of the first.

use super::{Cost, Fuse, cost, repeat, through_memory};
use crate::collapse;
use crate::nests;
use ir::graph::{Node, Value};
use ir::nest::{Access, Axis, Expr, ExprId, Nest, Phase, Term};
use tensor::{DimId, Entity};

impl Fuse<'_> {
    /// Merges the producer `p` of the buffer behind `v` with `c`, when both run over the same rows and `c` reads of the buffer only
    /// what the same point has just written.
    pub(super) fn merge(&mut self, c: Node, v: Value, p: Node) -> bool {
        let (Some(cn), Some(pn)) = (self.nest(c), self.nest(p)) else { return false };
        if !Fuse::fits(&cn, &pn) {
            return false;
        }
        let b = self.root[v.index()];
        // What the producer writes must not be needed before the consumer's place, where the new nest stands.
        let written = pn.operands.iter().zip(&self.node(p).ins).filter(|(o, _)| o.written);
        let written: Vec<Value> = written.filter_map(|(_, v)| v.map(|v| self.root[v.index()])).collect();
        let late = |n: &Node| *n == c || self.pos[n] > self.pos[&c];
        if !written.iter().all(|w| self.readers.get(w).is_none_or(|l| l.iter().all(late))) {
            return false;
        }
        let Some((pn, cn)) = self.align(&pn, &cn) else { return false };
        // What the producer stores where, by buffer; each in one place.
        let mut stored: Vec<(Value, Access, ExprId)> = vec![];
        for ph in &pn.phases {
            let Phase::Store { stores, .. } = ph else { continue };
            for (a, e) in stores {
                let Some(w) = self.node(p).ins[usize::from(a.operand)] else { return false };
                let root = self.root[w.index()];
                if stored.iter().any(|s| s.0 == root) {
                    return false;
                }
                stored.push((root, a.clone(), *e));
            }
        }
        if stored.iter().all(|s| s.0 != b) {
            return false;
        }
        // Every operand of the consumer that is one of these buffers must be read where the same point has just written it.
        let mut reads: Vec<(u16, ExprId)> = vec![];
        let (mut passes, mut price) = (0, Cost::default());
        for k in (0..cn.operands.len()).filter(|&k| !cn.operands[k].written) {
            let Some(x) = self.node(c).ins[k] else { return false };
            let root = self.root[x.index()];
            let Some((_, store, e)) = stored.iter().find(|s| s.0 == root).cloned() else { continue };
            let Some(w) = self.node(p).ins[usize::from(store.operand)] else { return false };
            let k = u16::try_from(k).unwrap_or(u16::MAX);
            let same = cn.exprs.iter().all(|e| match e {
                Expr::Load(a) | Expr::LoadIf { access: a, .. } if a.operand == k => a.coords == store.coords,
                _ => true,
            });
            if self.seen(x) != self.seen(w) || !same {
                return false;
            }
            passes = passes.max(repeat(self.m, &cn, k).passes);
            let one = cost(&pn, e);
            price.ops += one.ops;
            price.loads += one.loads;
            reads.push((k, e));
        }
        // The element is computed again in each pass.
        if passes > 1 && !(price.ops <= 24 && price.loads <= 6) {
            return false;
        }
        let Some((nest, ins)) = self.merged(&pn, p, &cn, c, &reads) else { return false };
        if !Fuse::small(&nest) {
            return false;
        }
        self.set(c, nest, ins, Some(p));
        // The producer's other stores moved along.
        self.clear(p);
        self.drop_unread(c);
        true
    }

    /// Both nests over one iteration space: equal as they stand, or one of them pointwise over the other's rows and columns.
    fn align(&mut self, p: &Nest, c: &Nest) -> Option<(Nest, Nest)> {
        let same =
            |s: &Self, a: &[DimId], b: &[DimId]| a.len() == b.len() && a.iter().zip(b).all(|(&x, &y)| s.eq.same(x, y));
        // A nest without columns may get the other's, unless it passes over its one point.
        let open = |n: &Nest| {
            let once = |p: &Phase| matches!(p, Phase::Store { over_inner: false, .. });
            n.inner.is_empty() && n.phases.iter().all(once)
        };
        if same(self, &p.outer, &c.outer) && (open(p) || open(c) || same(self, &p.inner, &c.inner)) {
            let (mut p, mut c) = (p.clone(), c.clone());
            let inner = if p.inner.is_empty() { c.inner.clone() } else { p.inner.clone() };
            c.outer = p.outer.clone();
            (p.inner, c.inner) = (inner.clone(), inner);
            return Some((p, c));
        }
        let all = |n: &Nest| n.outer.iter().chain(&n.inner).copied().collect::<Vec<_>>();
        if c.inner.is_empty() && !p.inner.is_empty() && same(self, &all(p), &c.outer) {
            return Some((p.clone(), split(c, p)?));
        }
        if p.inner.is_empty() && !c.inner.is_empty() && same(self, &p.outer, &all(c)) {
            return Some((split(p, c)?, c.clone()));
        }
        None
    }

    fn merged(
        &mut self,
        pn: &Nest,
        p: Node,
        cn: &Nest,
        c: Node,
        reads: &[(u16, ExprId)],
    ) -> Option<(Nest, Vec<Option<Value>>)> {
        let (p_ins, c_ins) = (self.node(p).ins.clone(), self.node(c).ins.clone());
        let n_p = u16::try_from(pn.phases.iter().map(reductions).sum::<usize>()).ok()?;
        let mut out = Nest { outer: pn.outer.clone(), inner: pn.inner.clone(), ..Nest::default() };
        let mut ins: Vec<Option<Value>> = vec![];
        let (mut place_p, mut place_c) = (vec![0u16; pn.operands.len()], vec![0u16; cn.operands.len()]);
        for written in [false, true] {
            for (n, from, place) in [(pn, &p_ins, &mut place_p), (cn, &c_ins, &mut place_c)] {
                for (i, o) in n.operands.iter().enumerate().filter(|(_, o)| o.written == written) {
                    let same =
                        (0..out.operands.len()).find(|&j| !written && ins[j] == from[i] && out.operands[j] == *o);
                    place[i] = match same {
                        Some(j) => u16::try_from(j).ok()?,
                        None => {
                            ins.push(from[i]);
                            out.operand(o.clone())
                        }
                    };
                }
            }
        }
        let mut first = pn.clone();
        nests::move_operands(&mut first, &place_p);
        out.exprs = first.exprs;
        out.phases = first.phases;
        // The values that the consumer would have loaded.
        let mut value: Vec<Option<ExprId>> = vec![None; cn.operands.len()];
        for &(k, e) in reads {
            value[usize::from(k)] = Some(through_memory(&mut out, e, cn.operands[usize::from(k)].dtype)?);
        }
        let live = nests::live(cn);
        let mut map: Vec<Option<ExprId>> = vec![None; cn.exprs.len()];
        for (i, e) in cn.exprs.iter().enumerate().filter(|(i, _)| live[*i]) {
            let e = nests::map_children(e, &mut |x| map[x.index()].unwrap_or(x));
            let new = match e {
                Expr::Load(mut a) => match value[usize::from(a.operand)] {
                    Some(v) => v,
                    None => {
                        a.operand = place_c[usize::from(a.operand)];
                        out.expr(Expr::Load(a))
                    }
                },
                Expr::LoadIf { cond, mut access, other } => match value[usize::from(access.operand)] {
                    Some(v) => out.expr(Expr::Select(cond, v, other)),
                    None => {
                        access.operand = place_c[usize::from(access.operand)];
                        out.expr(Expr::LoadIf { cond, access, other })
                    }
                },
                Expr::Reduced(k) => out.expr(Expr::Reduced(k.checked_add(n_p)?)),
                e => out.expr(e),
            };
            map[i] = Some(new);
        }
        for ph in nests::map_phases(&cn.phases, &mut |x| map[x.index()].unwrap_or(x)) {
            let ph = match ph {
                Phase::Store { over_inner, stores } => Phase::Store {
                    over_inner,
                    stores: stores
                        .into_iter()
                        .map(|(mut a, e)| {
                            a.operand = place_c[usize::from(a.operand)];
                            (a, e)
                        })
                        .collect(),
                },
                r => r,
            };
            match (out.phases.last_mut(), ph) {
                // One pass stores what both store.
                (Some(Phase::Store { over_inner: x, stores: a }), Phase::Store { over_inner: y, stores: b })
                    if *x == y =>
                {
                    a.extend(b)
                }
                (_, ph) => out.phases.push(ph),
            }
        }
        Some((out, ins))
    }

    /// Empties a nest that moved.
    fn clear(&mut self, p: Node) {
        let ins = self.node(p).ins.to_vec();
        self.set(p, Nest::default(), ins, None);
    }
}

fn reductions(p: &Phase) -> usize {
    match p {
        Phase::Reduce(r) => r.len(),
        Phase::Store { .. } => 0,
    }
}

/// A pointwise nest over `rows ++ columns` as one over the rows that stores along the columns, like `like`.
fn split(n: &Nest, like: &Nest) -> Option<Nest> {
    let [Phase::Store { over_inner: false, .. }] = n.phases.as_slice() else { return None };
    let rows = like.outer.len();
    let to = |a: &mut Axis| {
        if let Axis::Outer(i) = *a
            && let Some(k) = usize::from(i).checked_sub(rows)
        {
            *a = Axis::Inner(u16::try_from(k).unwrap_or(u16::MAX));
        }
    };
    let mut out = n.clone();
    for a in collapse::accesses(&mut out) {
        for (t, _) in a.coords.iter_mut().flat_map(|c| &mut c.terms) {
            if let Term::Axis(x) = t {
                to(x);
            }
        }
    }
    for e in &mut out.exprs {
        if let Expr::Index(x) = e {
            to(x);
        }
    }
    (out.outer, out.inner) = (like.outer.clone(), like.inner.clone());
    for p in &mut out.phases {
        if let Phase::Store { over_inner, .. } = p {
            *over_inner = true;
        }
    }
    Some(out)
}
