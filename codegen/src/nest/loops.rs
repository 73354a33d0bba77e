//! The loops of a kernel around the values of its nest: rows of the last outer axis, or points with loops over `inner`.

use crate::emit::I;
use crate::nest::parallel::{self, Marks};
use crate::nest::reduce::{combine, identity, is_arg};
use crate::nest::terms::{Level, Order, access_terms, load, needed, stride};
use crate::nest::values::{Reduced, Values};
use crate::scalar::{Val, Why};
use inkwell::IntPredicate as IP;
use inkwell::basic_block::BasicBlock;
use inkwell::values::{BasicValue, MetadataValue};
use ir::nest::{Access, Axis, ExprId, Nest, Phase, Reduction, Term};
use lower::host::KernelDef;
use tensor::DimId;

/// Within a row all outer axes but the last are fixed.
pub(super) const ROW: Level = 1;
/// All outer axes are fixed; inner axis k is fixed at `POINT + 1 + k`.
const POINT: Level = 2;

/// The order of a kernel's loops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// No inner axes: rows, and the vector loop along each.
    Rows,
    /// Points, and at each the inner loops.
    Points,
    /// Blocks of points, the inner loops, and the vector loop over the points of a block.
    Vertical,
}

impl Shape {
    pub fn of(def: &KernelDef) -> Shape {
        match () {
            _ if is_vertical(def) => Shape::Vertical,
            // A reduction over no inner axes has one value: points do that.
            _ if def.nest.inner.is_empty() && reductions(&def.nest).next().is_none() => Shape::Rows,
            _ => Shape::Points,
        }
    }
    /// Where all outer axes are fixed: in the vertical order that is the innermost loop.
    pub fn point(self, nest: &Nest) -> Level {
        if self == Shape::Vertical { POINT + 1 + nest.inner.len() } else { POINT }
    }
    pub fn order(self, nest: &Nest) -> Order {
        let (n, point) = (nest.outer.len(), self.point(nest));
        let outer = (0..n).map(|i| if self != Shape::Points && i + 1 < n { ROW } else { point });
        Order { outer: outer.collect(), inner: (0..nest.inner.len()).map(|i| POINT + 1 + i).collect(), reduced: point }
    }
}

fn reductions(nest: &Nest) -> impl Iterator<Item = &Reduction> {
    nest.phases.iter().flat_map(|p| match p {
        Phase::Reduce(rs) => rs.as_slice(),
        Phase::Store { .. } => &[],
    })
}

/// Whether reductions read contiguous elements along the last outer axis and not along the last inner one.
fn is_vertical(def: &KernelDef) -> bool {
    let nest = &*def.nest;
    let (Some(o), Some(i)) = (nest.outer.len().checked_sub(1), nest.inner.len().checked_sub(1)) else {
        return false;
    };
    let axis = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let (o, i) = (Axis::Outer(axis(o)), Axis::Inner(axis(i)));
    let mut any = false;
    for a in needed(nest, reductions(nest).map(|r| r.value)).iter().filter_map(|x| load(nest.get(*x))) {
        match (stride(def, a, o), stride(def, a, i)) {
            (Some(1), Some(1)) | (Some(0), _) => {}
            (Some(1), _) => any = true,
            _ => return false,
        }
    }
    any
}

/// A kernel being emitted.
pub(super) struct Kernel<'e, 'a, 'c> {
    pub v: Values<'e, 'a, 'c>,
    pub shape: Shape,
    /// The part of the linear outer space that a call works on.
    pub begin: I<'c>,
    pub end: I<'c>,
    /// Reductions of a block of points: an array for each, of value and (for the arg kinds) position. Empty in the usual order.
    pub arrays: Vec<super::vertical::Accumulator<'c>>,
}

impl<'e, 'a, 'c> Kernel<'e, 'a, 'c> {
    /// Emits the loops; the builder stands in the entry block.
    pub fn body(&mut self) -> Why<()> {
        let e = self.v.e;
        if self.shape == Shape::Vertical {
            self.accumulators();
        }
        let (work, exit) = (e.block("work"), e.block("exit"));
        e.cond_br(e.icmp(IP::SLT, self.begin, self.end), work, exit);
        e.at(exit);
        e.ret(&e.i32().const_zero());
        e.at(work);
        match self.shape {
            Shape::Vertical => self.blocks(exit),
            Shape::Points => self.points(exit),
            Shape::Rows => self.rows(exit),
        }
    }

    /// The indices after `idx`.
    fn advance(&self, idx: &[I<'c>], axes: &[DimId]) -> Why<Vec<I<'c>>> {
        let e = self.v.e;
        let mut out = idx.to_vec();
        let mut carry = None;
        for k in (0..idx.len()).rev() {
            let next = e.add(idx[k], e.c64(1));
            let next = match carry {
                Some(c) => e.isel(c, next, idx[k]),
                None => next,
            };
            if k == 0 {
                out[0] = next;
            } else {
                let wrap = e.icmp(IP::EQ, next, self.v.dim(axes[k])?);
                out[k] = e.isel(wrap, e.c64(0), next);
                carry = Some(wrap);
            }
        }
        Ok(out)
    }

    /// Nests without inner axes.
    fn rows(&mut self, exit: BasicBlock<'c>) -> Why<()> {
        let e = self.v.e;
        let nest = self.v.nest;
        let stores: Vec<_> = nest
            .phases
            .iter()
            .flat_map(|p| match p {
                Phase::Store { stores, .. } => stores.as_slice(),
                Phase::Reduce(_) => &[],
            })
            .collect();
        self.v.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
        self.v.hoist(0)?;
        let Some((last, fixed)) = nest.outer.split_last() else {
            self.vector_loop(self.begin, self.end, &stores, None)?;
            e.br(exit);
            return Ok(());
        };
        self.each_row(*last, fixed, exit, &mut |k, from, to| {
            k.v.hoist(ROW)?;
            k.vector_loop(from, to, &stores, Some(fixed.len()))
        })
    }

    /// Cuts `begin..end` into rows of the last outer axis; `body` gets the part of the row and has the other outer axes set.
    pub fn each_row(
        &mut self,
        last: DimId,
        fixed: &[DimId],
        exit: BasicBlock<'c>,
        body: &mut dyn FnMut(&mut Self, I<'c>, I<'c>) -> Why<()>,
    ) -> Why<()> {
        let e = self.v.e;
        if fixed.is_empty() {
            body(self, self.begin, self.end)?;
            e.br(exit);
            return Ok(());
        }
        let width = self.v.dim(last)?;
        let first_row = e.udiv_raw(self.begin, width);
        let first_col = e.urem_raw(self.begin, width);
        let idx0 = self.v.decode(first_row, fixed)?;
        let (from, head) = (e.here(), e.block("row"));
        e.br(head);
        e.at(head);
        let (p, c) = (e.phi(e.i64(), "p"), e.phi(e.i64(), "col"));
        let idx: Vec<_> = (0..fixed.len()).map(|k| e.phi(e.i64(), &format!("o{k}"))).collect();
        let (pv, cv) = (p.as_basic_value().into_int_value(), c.as_basic_value().into_int_value());
        let iv: Vec<_> = idx.iter().map(|x| x.as_basic_value().into_int_value()).collect();
        for (k, v) in iv.iter().enumerate() {
            self.v.outer[k] = Some(*v);
        }
        let stop = e.add(cv, e.sub(self.end, pv));
        let stop = e.isel(e.icmp(IP::SLT, stop, width), stop, width);
        body(self, cv, stop)?;
        let p1 = e.add(pv, e.sub(stop, cv));
        let idx1 = self.advance(&iv, fixed)?;
        let back = e.here();
        let latch = e.cond_br(e.icmp(IP::SLT, p1, self.end), head, exit);
        Marks { group: None, scalar: self.v.wraps(ROW) }.put(e, latch);
        p.add_incoming(&[(&self.begin, from), (&p1, back)]);
        c.add_incoming(&[(&first_col, from), (&e.c64(0), back)]);
        for (k, x) in idx.iter().enumerate() {
            x.add_incoming(&[(&idx0[k], from), (&idx1[k], back)]);
        }
        Ok(())
    }

    /// Whether there is any inner point; nothing in front of the inner loops may read before that is known.
    pub fn some_inner(&self) -> Why<I<'c>> {
        let e = self.v.e;
        let yes = e.i1().const_int(1, false);
        let mut some = yes;
        for d in &self.v.nest.inner {
            let positive = e.icmp(IP::SGT, self.v.dim(*d)?, e.c64(0));
            if !(positive.is_const() && positive.get_zero_extended_constant() == Some(1)) {
                some = if some == yes { positive } else { e.and(some, positive) };
            }
        }
        Ok(some)
    }

    fn vector_loop(&mut self, from: I<'c>, to: I<'c>, stores: &[&'e (Access, ExprId)], axis: Option<usize>) -> Why<()> {
        self.looped((from, to), POINT, &[], self.independent(stores, POINT), |k, i, _| {
            if let Some(a) = axis {
                k.v.outer[a] = Some(i);
            }
            k.v.hoist(POINT)?;
            k.v.store_all(stores)?;
            Ok(vec![])
        })
        .map(|_| ())
    }

    /// Nests with inner axes (or reductions over the one point that no inner axis is).
    fn points(&mut self, exit: BasicBlock<'c>) -> Why<()> {
        let e = self.v.e;
        let nest = self.v.nest;
        let some = self.some_inner()?;
        let idx0 = self.v.decode(self.begin, &nest.outer)?;
        let (from, head) = (e.here(), e.block("point"));
        e.br(head);
        e.at(head);
        let p = e.phi(e.i64(), "p");
        let idx: Vec<_> = (0..nest.outer.len()).map(|k| e.phi(e.i64(), &format!("o{k}"))).collect();
        let iv: Vec<_> = idx.iter().map(|x| x.as_basic_value().into_int_value()).collect();
        for (k, v) in iv.iter().enumerate() {
            self.v.outer[k] = Some(*v);
        }
        let mut n_reduced = 0;
        for phase in &nest.phases {
            match phase {
                Phase::Reduce(rs) => {
                    self.v.begin_phase(rs.iter().map(|r| r.value).collect(), std::iter::empty());
                    let kinds: Vec<_> = rs.iter().map(|r| (r.combiner, nest.expr_dtype(r.value), r.value)).collect();
                    let mut start = Vec::new();
                    for (c, d, _) in &kinds {
                        start.extend(identity(e, *c, *d)?);
                    }
                    let start2 = start.clone();
                    let out = self.guarded(some, start, |k| {
                        k.inner_loops(0, start2, None, &mut |k, acc| {
                            let mut out = Vec::new();
                            let mut at = 0;
                            for (c, d, x) in &kinds {
                                let v = k.v.value(*x)?;
                                let n = 1 + usize::from(is_arg(*c));
                                out.extend(combine(e, *c, *d, false, &acc[at..at + n], v, || k.v.position())?);
                                at += n;
                            }
                            Ok(out)
                        })
                    })?;
                    let mut at = 0;
                    for (c, ..) in &kinds {
                        let arg = usize::from(is_arg(*c));
                        self.v.reduced[n_reduced] = Some(Reduced::Value(out[at + arg]));
                        at += 1 + arg;
                        n_reduced += 1;
                    }
                }
                Phase::Store { over_inner, stores } => {
                    self.v.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
                    let stores: Vec<_> = stores.iter().collect();
                    if *over_inner {
                        let last = POINT + nest.inner.len();
                        let group = self.independent(&stores, last);
                        self.guarded(some, vec![], |k| {
                            k.inner_loops(0, vec![], group, &mut |k, _| {
                                k.v.store_all(&stores)?;
                                Ok(vec![])
                            })
                        })?;
                    } else {
                        self.v.hoist(POINT)?;
                        self.v.store_all(&stores)?;
                    }
                }
            }
        }
        let pv = p.as_basic_value().into_int_value();
        let p1 = e.nsw_add(pv, e.c64(1));
        let idx1 = self.advance(&iv, &nest.outer)?;
        let back = e.here();
        let latch = e.cond_br(e.icmp(IP::SLT, p1, self.end), head, exit);
        Marks { group: None, scalar: self.v.wraps(POINT) }.put(e, latch);
        p.add_incoming(&[(&self.begin, from), (&p1, back)]);
        for (k, x) in idx.iter().enumerate() {
            x.add_incoming(&[(&idx0[k], from), (&idx1[k], back)]);
        }
        Ok(())
    }

    /// Runs `body` where `some` holds; else the results are `start`.
    pub fn guarded(
        &mut self,
        some: I<'c>,
        start: Vec<Val<'c>>,
        body: impl FnOnce(&mut Self) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        if some.is_const() {
            return if some.get_zero_extended_constant() == Some(1) { body(self) } else { Ok(start) };
        }
        self.v.e.guarded(some, &start, || body(self))
    }

    /// Loops over inner axes from `k` on; `body` gets and gives the carried values.
    #[allow(clippy::type_complexity)]
    pub fn inner_loops(
        &mut self,
        k: usize,
        carried: Vec<Val<'c>>,
        group: Option<MetadataValue<'c>>,
        body: &mut dyn FnMut(&mut Self, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        self.v.hoist(POINT + k)?;
        if k == self.v.nest.inner.len() {
            return body(self, &carried);
        }
        let n = self.v.dim(self.v.nest.inner[k])?;
        let last = k + 1 == self.v.nest.inner.len();
        let range = (self.v.e.c64(0), n);
        self.looped(range, POINT + 1 + k, &carried, if last { group } else { None }, |g, i, acc| {
            g.v.inner[k] = Some(i);
            g.inner_loops(k + 1, acc.to_vec(), group, body)
        })
    }

    /// A loop over a range (not empty) with carried values, whose index is fixed at `level`; values and addresses made inside are
    /// forgotten afterwards.
    pub fn looped(
        &mut self,
        (from, to): (I<'c>, I<'c>),
        level: Level,
        carried: &[Val<'c>],
        group: Option<MetadataValue<'c>>,
        body: impl FnOnce(&mut Self, I<'c>, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.v.e;
        let (pre, head) = (e.here(), e.block("loop"));
        e.br(head);
        e.at(head);
        let i = e.phi(e.i64(), "i");
        let phis: Vec<_> = carried.iter().map(|v| e.phi(v.get_type(), "acc")).collect();
        let iv = i.as_basic_value().into_int_value();
        let acc: Vec<_> = phis.iter().map(|p| p.as_basic_value()).collect();
        let saved = self.v.save();
        self.v.group = group;
        let out = body(self, iv, &acc)?;
        self.v.restore(saved);
        let next = e.nsw_add(iv, e.c64(1));
        let (back, after) = (e.here(), e.block("done"));
        let latch = e.cond_br(e.icmp(IP::SLT, next, to), head, after);
        Marks { group, scalar: self.v.wraps(level) }.put(e, latch);
        i.add_incoming(&[(&from, pre), (&next, back)]);
        for ((p, start), end) in phis.iter().zip(carried).zip(&out) {
            p.add_incoming(&[(start as &dyn BasicValue<'c>, pre), (end as &dyn BasicValue<'c>, back)]);
        }
        e.at(after);
        Ok(out)
    }

    /// An access group when the iterations of the loop at `level` store to places of their own.
    pub fn independent(&self, stores: &[&(Access, ExprId)], level: Level) -> Option<MetadataValue<'c>> {
        let own = |a: &Access| {
            let mut terms = access_terms(a);
            terms.all(|t| matches!(t, Term::Axis(_))) && self.v.access_level(a) == level
        };
        stores.iter().all(|s| own(&s.0)).then(|| parallel::distinct_node(self.v.e))
    }
}
