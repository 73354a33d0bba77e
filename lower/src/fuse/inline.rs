//! Inlining: a pointwise producer's expression takes the place of loads of its result.

use super::{Fuse, Seen, cost, repeat, through_memory};
use crate::{collapse, nests};
use ir::graph::{Node, Value};
use ir::nest::{Access, Axis, BinOp, Coord, Expr, ExprId, Nest, Phase, Term, UnOp};
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::dims::Proof;
use tensor::{DType, DimId, DimPool, Entity};

/// How the consumer's operand lies over the producer's result: per axis of the operand, the producer's axis that it walks along and
/// the factor; and each producer axis's constant part.
struct Mapping {
    /// `(operand axis, producer outer axis, factor)`
    steps: Vec<(usize, usize, DimId)>,
    offsets: Vec<DimId>,
}

impl Fuse<'_> {
    /// Inlines the producer `p` of operand `k` (value `v`) into `c`, when that is possible and worth it.
    pub(super) fn inline(&mut self, c: Node, k: usize, v: Value, p: Node) -> bool {
        let (Some(cn), Some(pn)) = (self.nest(c), self.nest(p)) else { return false };
        if !Fuse::fits(&cn, &pn) {
            return false;
        }
        let b = self.root[v.index()];
        let [Phase::Store { over_inner: false, stores }] = pn.phases.as_slice() else { return false };
        let at = stores
            .iter()
            .position(|(a, _)| self.node(p).ins[usize::from(a.operand)].is_some_and(|w| self.root[w.index()] == b));
        let Some((store, e)) = at.map(|i| stores[i].clone()) else { return false };
        let readers = self.readers.get(&b).cloned().unwrap_or_default();
        let kk = u16::try_from(k).unwrap_or(u16::MAX);
        let rep = repeat(self.m, &cn, kk);
        if !cost(&pn, e).worth(rep, readers.len()) || readers.iter().any(|&n| self.nest(n).is_none()) {
            return false;
        }
        let Some(w) = self.node(p).ins[usize::from(store.operand)] else { return false };
        let (seen_c, seen_p) = (self.seen(v), self.seen(w));
        // Bits that are read as another type than they were written as.
        if seen_c.ty.dtype != seen_p.ty.dtype {
            return false;
        }
        // As it stands, else with its axes collapsed (a reshape lies between).
        let mut producer: Arc<Nest> = pn.clone();
        let mut mapping = map_axes(&mut self.m.dims, self.eq, &pn, &store, &seen_p, &seen_c);
        let mut e = e;
        if mapping.is_none() {
            let flat = collapse::collapse(&mut self.m.dims, self.eq, &pn);
            if let [Phase::Store { stores, .. }] = flat.phases.as_slice()
                && let Some(i) = at
            {
                let store;
                (store, e) = stores[i].clone();
                let o = &flat.operands[usize::from(store.operand)];
                let mut seen = seen_p;
                (seen.ty.shape, seen.ty.strides) = (o.shape.clone(), o.strides.clone());
                mapping = map_axes(&mut self.m.dims, self.eq, &flat, &store, &seen, &seen_c);
                producer = Arc::new(flat);
            }
        }
        let Some(mapping) = mapping else { return false };
        let Some((nest, ins)) = self.inlined(&cn, c, kk, &producer, p, e, &mapping) else { return false };
        if !Fuse::small(&nest) {
            return false;
        }
        let ins = self.views_for(&nest, ins);
        self.set(c, nest, ins, Some(p));
        self.drop_unread(p);
        true
    }

    /// The consumer with loads of operand `k` replaced, and its operands (those of the producer's reads still as they are).
    #[allow(clippy::too_many_arguments)]
    fn inlined(
        &mut self,
        cn: &Nest,
        c: Node,
        k: u16,
        producer: &Nest,
        p: Node,
        e: ExprId,
        mapping: &Mapping,
    ) -> Option<(Nest, Vec<Option<Value>>)> {
        let n_reads = cn.operands.iter().filter(|o| !o.written).count();
        // Reads of the consumer, reads of the producer, writes of the consumer.
        let mut base = cn.clone();
        let mut ins: Vec<Option<Value>> = self.node(c).ins[..n_reads].to_vec();
        base.operands.truncate(n_reads);
        let mut place = vec![0u16; producer.operands.len()];
        for (i, o) in producer.operands.iter().enumerate().filter(|(_, o)| !o.written) {
            let v = self.node(p).ins[i];
            let same = (0..base.operands.len()).find(|&j| ins[j] == v && base.operands[j] == *o);
            place[i] = match same {
                Some(j) => u16::try_from(j).ok()?,
                None => {
                    ins.push(v);
                    base.operand(o.clone())
                }
            };
        }
        let n_new = u16::try_from(base.operands.len() - n_reads).ok()?;
        let writes_at: Vec<u16> = (0..cn.operands.len())
            .map(|i| u16::try_from(i).unwrap_or(u16::MAX).saturating_add(if i < n_reads { 0 } else { n_new }))
            .collect();
        base.operands.extend(cn.operands[n_reads..].iter().cloned());
        ins.extend(self.node(c).ins[n_reads..].iter().copied());
        nests::move_operands(&mut base, &writes_at);
        let stored = producer.operands.iter().find(|o| o.written)?;
        let dtype = cn.operands[usize::from(k)].dtype;
        if stored.dtype.bits() != dtype.bits() {
            return None;
        }
        let dims = &mut self.m.dims;
        let mut failed = false;
        let nest = nests::rebuild(&base, &mut |n, x, _| {
            let (access, cond, other) = match &x {
                Expr::Load(a) if a.operand == k => (a.clone(), None, None),
                Expr::LoadIf { cond, access, other } if access.operand == k => {
                    (access.clone(), Some(*cond), Some(*other))
                }
                _ => return n.expr(x),
            };
            let coords = mapping.coords(dims, &access);
            let mut sub =
                Substitution { dims, from: producer, place: &place, coords, cond, map: vec![None; e.index() + 1] };
            let value = sub.expr(n, e);
            match (through_memory(n, value, dtype), cond, other) {
                (Some(x), Some(c), Some(o)) => n.expr(Expr::Select(c, x, o)),
                (Some(x), ..) => x,
                (None, ..) => {
                    failed = true;
                    value
                }
            }
        });
        (!failed).then_some((nest, ins))
    }

    /// Operands that differ from their values' types (the producer's axes were collapsed) become views.
    fn views_for(&mut self, nest: &Nest, ins: Vec<Option<Value>>) -> Vec<Option<Value>> {
        let zero = self.m.dims.constant(0);
        let mut out = vec![];
        for (o, v) in nest.operands.iter().zip(ins) {
            let Some(v) = v else {
                out.push(None);
                continue;
            };
            let ty = self.m.graphs[self.r].values[v].ty.clone();
            if ty.shape == o.shape && ty.strides == o.strides {
                out.push(Some(v));
                continue;
            }
            let ty = ir::hip::HipType { shape: o.shape.clone(), strides: o.strides.clone(), ..ty };
            let attrs = self.m.attrs.intern(ir::attrs::Attrs::default());
            let g = &mut self.m.graphs[self.r];
            let op = ir::hip::HipOp::View { offset: zero };
            let n = g.add_node(op, attrs, [Some(v)], [(ty, "".into())], [], ir::Origin::default());
            // A view belongs right after what it views, wherever the nest ends up.
            g.order.pop();
            let made = g.nodes[n].outs[0];
            self.new_views.push((v, n));
            let root = self.root[v.index()];
            self.root.resize(made.index() + 1, root);
            out.push(Some(made));
        }
        out
    }
}

impl Mapping {
    /// Coordinates along the producer's axes of the element that the consumer accesses.
    fn coords(&self, dims: &mut DimPool, a: &Access) -> Vec<Coord> {
        let mut out: Vec<Coord> = self.offsets.iter().map(|&offset| Coord { offset, terms: SmallVec::new() }).collect();
        for &(j, axis, factor) in &self.steps {
            let c = &a.coords[j];
            let to = &mut out[axis];
            let by = dims.mul(c.offset, factor);
            to.offset = dims.add(to.offset, by);
            for &(t, k) in &c.terms {
                let k = dims.mul(k, factor);
                match to.terms.iter_mut().find(|(x, _)| *x == t) {
                    Some(old) => old.1 = dims.add(old.1, k),
                    None => to.terms.push((t, k)),
                }
            }
        }
        out
    }
}

/// Finds how the consumer's operand lies over the producer's result.
fn map_axes(
    dims: &mut DimPool,
    eq: &crate::views::Equalities,
    p: &Nest,
    store: &Access,
    seen_p: &Seen,
    seen_c: &Seen,
) -> Option<Mapping> {
    let (zero, one) = (dims.constant(0), dims.constant(1));
    // The producer's result, axis by axis: stride, extent, iteration axis.
    let mut axes: Vec<(DimId, DimId, usize)> = vec![];
    for (j, c) in store.coords.iter().enumerate() {
        match c.terms.as_slice() {
            [] if dims.as_const(c.offset) == Some(0) => {}
            [(Term::Axis(Axis::Outer(a)), k)] if *k == one && dims.as_const(c.offset) == Some(0) => {
                axes.push((seen_p.ty.strides[j], seen_p.ty.shape[j], usize::from(*a)));
            }
            _ => return None,
        }
    }
    // Every element of the result is written once: no axis twice, none left out.
    let covered = (0..p.outer.len())
        .filter(|a| dims.as_const(p.outer[*a]) != Some(1))
        .all(|a| axes.iter().filter(|x| x.2 == a).count() == 1);
    if !covered || axes.iter().any(|&(_, extent, a)| !eq.same(extent, p.outer[a])) {
        return None;
    }
    let mut out = Mapping { steps: vec![], offsets: vec![zero; p.outer.len()] };
    let (tp, tc) = (&seen_p.ty, &seen_c.ty);
    if seen_p.offset == seen_c.offset && tp.shape == tc.shape && tp.strides == tc.strides {
        for (j, c) in store.coords.iter().enumerate() {
            if let [(Term::Axis(Axis::Outer(a)), _)] = c.terms.as_slice() {
                out.steps.push((j, usize::from(*a), one));
            }
        }
        return Some(out);
    }
    // By strides: along each axis of the operand, which axis of the result does one step walk, and how far?
    for (j, (&d, &s)) in tc.shape.iter().zip(&tc.strides).enumerate() {
        if dims.as_const(d) == Some(1) || dims.as_const(s) == Some(0) {
            continue;
        }
        let (axis, factor) = factor_of(dims, eq, &axes, s)?;
        out.steps.push((j, axis, factor));
    }
    let mut rest = dims.sub(seen_c.offset, seen_p.offset);
    for &(stride, _, a) in &axes {
        match (dims.as_const(rest), dims.as_const(stride)) {
            (Some(0), _) => break,
            (Some(r), Some(s)) if s > 0 && r > 0 => {
                out.offsets[a] = dims.constant(r / s);
                rest = dims.constant(r % s);
            }
            _ => {
                let q = quotient(dims, rest, stride);
                if let Some(q) = q {
                    out.offsets[a] = q;
                    rest = zero;
                }
            }
        }
    }
    if dims.as_const(rest) != Some(0) {
        return None;
    }
    // No carry from one axis to the next: the greatest and least coordinates stay within the axis. With one axis there is no next.
    if axes.len() > 1 {
        for &(_, extent, a) in &axes {
            let (mut most, mut least) = (out.offsets[a], out.offsets[a]);
            for &(j, axis, factor) in out.steps.iter().filter(|s| s.1 == a) {
                let _ = axis;
                let steps = dims.sub(tc.shape[j], one);
                let by = dims.mul(steps, factor);
                match dims.range(factor) {
                    (lo, _) if lo >= 0 => most = dims.add(most, by),
                    (_, hi) if hi <= 0 => least = dims.add(least, by),
                    _ => return None,
                }
            }
            let last = dims.sub(extent, one);
            if dims.prove_le(most, last) != Proof::Yes || dims.prove_le(zero, least) != Proof::Yes {
                return None;
            }
        }
    }
    Some(out)
}

/// The result's axis whose stride divides `s`, the widest first, and the quotient.
fn factor_of(
    dims: &mut DimPool,
    eq: &crate::views::Equalities,
    axes: &[(DimId, DimId, usize)],
    s: DimId,
) -> Option<(usize, DimId)> {
    if let Some(x) = axes.iter().find(|x| eq.same(x.0, s)) {
        return Some((x.2, dims.constant(1)));
    }
    axes.iter().find_map(|x| Some((x.2, quotient(dims, s, x.0)?)))
}

/// `a / b` when exact for every value of the symbols.
fn quotient(dims: &mut DimPool, a: DimId, b: DimId) -> Option<DimId> {
    if dims.as_const(b) == Some(0) {
        return None;
    }
    let q = dims.floordiv(a, b);
    (dims.mul(q, b) == a).then_some(q)
}

/// Copies expressions of a producer into a consumer's nest.
struct Substitution<'a> {
    dims: &'a mut DimPool,
    from: &'a Nest,
    /// The producer's operands in the new nest.
    place: &'a [u16],
    /// What the producer's axes are.
    coords: Vec<Coord>,
    /// Whether the element exists: nothing is read where it does not.
    cond: Option<ExprId>,
    map: Vec<Option<ExprId>>,
}

impl Substitution<'_> {
    fn expr(&mut self, n: &mut Nest, e: ExprId) -> ExprId {
        if let Some(x) = self.map[e.index()] {
            return x;
        }
        let out = match self.from.get(e).clone() {
            Expr::Index(Axis::Outer(a)) => self.index(n, usize::from(a)),
            Expr::Load(a) => {
                let access = self.access(n, &a);
                match self.cond {
                    None => n.expr(Expr::Load(access)),
                    Some(cond) => {
                        let d = n.operands[usize::from(access.operand)].dtype;
                        let other = n.num(0.0, ir::nest::compute_dtype(d).unwrap_or(DType::F32));
                        n.expr(Expr::LoadIf { cond, access, other })
                    }
                }
            }
            Expr::LoadIf { cond, access, other } => {
                let mut cond = self.expr(n, cond);
                let access = self.access(n, &access);
                let other = self.expr(n, other);
                if let Some(c) = self.cond {
                    cond = n.bin(BinOp::And, c, cond);
                }
                n.expr(Expr::LoadIf { cond, access, other })
            }
            x => {
                let x = nests::map_children(&x, &mut |c| self.expr(n, c));
                n.expr(x)
            }
        };
        self.map[e.index()] = Some(out);
        out
    }
    fn access(&mut self, n: &mut Nest, a: &Access) -> Access {
        let a = nests::map_access(a, &mut |x| self.expr(n, x));
        let coords = self.coords.clone();
        let of = |x: Axis| match x {
            Axis::Outer(i) => coords[usize::from(i)].clone(),
            Axis::Inner(_) => Coord { offset: coords[0].offset, terms: SmallVec::new() },
        };
        let new = a.coords.iter().map(|c| collapse::substitute(self.dims, c, &of)).collect();
        Access { operand: self.place[usize::from(a.operand)], coords: new }
    }
    /// An axis of the producer as an i64 expression.
    fn index(&mut self, n: &mut Nest, axis: usize) -> ExprId {
        let c = self.coords[axis].clone();
        let mut sum: Option<ExprId> = None;
        let literal = |dims: &DimPool, n: &mut Nest, d: DimId| match dims.as_const(d) {
            Some(v) => n.expr(Expr::Int(v, DType::I64)),
            None => n.expr(Expr::Dim(d)),
        };
        for (t, k) in c.terms {
            let x = match t {
                Term::Axis(a) => n.expr(Expr::Index(a)),
                Term::Expr(e) => e,
            };
            let x = match self.dims.as_const(k) {
                Some(1) => x,
                Some(-1) => n.un(UnOp::Neg, x),
                _ => {
                    let k = literal(self.dims, n, k);
                    n.bin(BinOp::Mul, k, x)
                }
            };
            sum = Some(match sum {
                Some(s) => n.bin(BinOp::Add, s, x),
                None => x,
            });
        }
        let offset = self.dims.as_const(c.offset);
        match (sum, offset) {
            (Some(s), Some(0)) => s,
            (Some(s), _) => {
                let o = literal(self.dims, n, c.offset);
                n.bin(BinOp::Add, s, o)
            }
            (None, _) => literal(self.dims, n, c.offset),
        }
    }
}
