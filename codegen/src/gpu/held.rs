//! Rows that are read once: where the inner space is known and small enough, each thread keeps its elements of a point in registers for
//! all phases. The loop over them is unrolled; wide accesses are tested where they stand.

use crate::emit::I;
use crate::gpu::kernel::{Kernel, Space};
use crate::gpu::schedule::{product, varies};
use crate::nest::terms::{Level, access_exprs, children, load, needed};
use crate::scalar::{Val, Why, value_type};
use inkwell::IntPredicate as IP;
use ir::nest::{Axis, Expr, ExprId, Phase};
use tensor::Entity;

/// Most registers (of 32 bits) that a thread may keep.
const MOST: i64 = 32;

/// Elements of a load at neighbors.
type Loaded<'c> = (ExprId, Vec<Val<'c>>);

/// A thread's elements of the current point.
#[derive(Clone)]
pub(super) struct Held<'c> {
    /// By strip.
    strips: Vec<Vec<Loaded<'c>>>,
    width: u32,
    inner: i64,
    /// Which strip is being computed.
    at: usize,
}

impl<'c> Held<'c> {
    /// The elements of the current strip.
    pub fn current(&self) -> &[Loaded<'c>] {
        self.strips.get(self.at).map_or(&[], Vec::as_slice)
    }
}

impl<'c> Kernel<'_, '_, 'c> {
    /// Loads of the inner space that two phases use and that nothing of the nest changes or reductions place.
    fn holdable(&self) -> Vec<ExprId> {
        let nest = self.nest();
        let mut reduced = vec![false; nest.exprs.len()];
        for (i, x) in nest.exprs.iter().enumerate() {
            reduced[i] = matches!(x, Expr::Reduced(_)) || children(x).iter().any(|c| reduced[c.index()]);
        }
        let mut inner = vec![false; nest.exprs.len()];
        for k in 0..nest.inner.len() {
            let axis = Axis::Inner(u16::try_from(k).unwrap_or(u16::MAX));
            for (i, v) in varies(nest, axis).into_iter().enumerate() {
                inner[i] |= v;
            }
        }
        let mut uses = vec![0; nest.exprs.len()];
        for p in &nest.phases {
            let roots: Vec<ExprId> = match p {
                Phase::Reduce(rs) => rs.iter().map(|r| r.value).collect(),
                Phase::Store { over_inner: true, stores } => {
                    stores.iter().flat_map(|(a, x)| access_exprs(a).chain([*x])).collect()
                }
                Phase::Store { .. } => vec![],
            };
            for x in needed(nest, roots) {
                uses[x.index()] += 1;
            }
        }
        let ok = |i: &usize| {
            let x = &nest.exprs[*i];
            let plain = matches!(x, Expr::Load(a) if !nest.operands[usize::from(a.operand)].written);
            plain && uses[*i] > 1 && inner[*i] && !reduced[*i]
        };
        (0..nest.exprs.len()).filter(ok).map(ExprId::new).collect()
    }

    /// Reads what later phases keep using, when it fits.
    pub(super) fn hold(&mut self, thread: I<'c>, threads: i64) -> Why<()> {
        let e = self.e();
        let Some(inner) = product(self.def, &self.nest().inner).filter(|n| *n > 0) else { return Ok(()) };
        let mut loads = self.holdable();
        let width = if inner % i64::from(self.width()) == 0 { self.width() } else { 1 };
        if width > 1 {
            loads.retain(|x| self.plan.loads.contains(x));
        }
        let words: i64 = loads
            .iter()
            .filter_map(|x| load(self.nest().get(*x)))
            .map(|a| if self.nest().operands[usize::from(a.operand)].dtype.size() == Some(8) { 2 } else { 1 })
            .sum();
        let step = threads * i64::from(width);
        let n_strips = (inner + step - 1) / step;
        if loads.is_empty() || words * n_strips * i64::from(width) > MOST {
            return Ok(());
        }
        self.v.begin_phase(loads.clone(), std::iter::empty());
        self.v.hoist(1)?;
        self.held = Some(Held { strips: vec![], width, inner, at: usize::MAX });
        let mut strips = Vec::new();
        let n = usize::try_from(width).unwrap_or(1);
        let total = self.count(&self.nest().inner)?;
        for s in 0..n_strips {
            let mut zeros = Vec::new();
            for x in &loads {
                zeros.extend(vec![value_type(e, self.nest().expr_dtype(*x)).const_zero(); n]);
            }
            let list = loads.clone();
            let values = self.in_strip(s, thread, step, zeros, &mut |k, q, _| {
                let idx = k.decode(q, Space::Inner, total)?;
                k.set(Space::Inner, &idx);
                k.v.hoist(2)?;
                let mut out = Vec::new();
                for x in &list {
                    if width > 1 {
                        out.extend(k.load_wide(*x, width)?);
                    } else {
                        k.v.hoist(Level::MAX)?;
                        out.push(k.v.value(*x)?);
                    }
                }
                Ok(out)
            })?;
            strips.push(loads.iter().copied().zip(values.chunks(n).map(<[Val<'c>]>::to_vec)).collect());
        }
        if let Some(h) = &mut self.held {
            h.strips = strips;
        }
        Ok(())
    }

    /// Runs `body` at the thread's position in strip `s`, if it has one.
    fn in_strip(
        &mut self,
        s: i64,
        thread: I<'c>,
        step: i64,
        acc: Vec<Val<'c>>,
        body: &mut dyn FnMut(&mut Self, I<'c>, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        let Some((width, inner)) = self.held.as_ref().map(|h| (i64::from(h.width), h.inner)) else {
            return Err("a strip of registers that are not held".into());
        };
        let q = e.add(e.mul(thread, e.c64(width)), e.c64(s * step));
        if (s + 1) * step <= inner {
            let here = self.v.save();
            let out = body(self, q, &acc)?;
            self.v.restore(here);
            return Ok(out);
        }
        let inside = e.icmp(IP::SLT, q, e.c64(inner));
        self.guarded(inside, acc.clone(), &mut |k| body(k, q, &acc))
    }

    /// A loop over all strips, as [`Kernel::strip`] is.
    pub(super) fn held_strip(
        &mut self,
        thread: I<'c>,
        threads: i64,
        acc: Vec<Val<'c>>,
        body: &mut dyn FnMut(&mut Self, I<'c>, u32, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let Some((width, n)) = self.held.as_ref().map(|h| (h.width, h.strips.len())) else { return Ok(acc) };
        let step = threads * i64::from(width);
        let mut sets = acc.repeat(usize::try_from(width).unwrap_or(1));
        for s in 0..n {
            if let Some(h) = &mut self.held {
                h.at = s;
            }
            let at = i64::try_from(s).unwrap_or(0);
            sets = self.in_strip(at, thread, step, sets, &mut |k, q, acc| body(k, q, width, acc))?;
        }
        Ok(sets)
    }
}
