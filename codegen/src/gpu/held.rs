//! Rows that are read once: where a point's inner space is small enough, each thread keeps its elements in registers for all phases. The
//! loop over them is unrolled. What is kept changes from phase to phase: after a phase has computed something from kept elements that
//! later phases want in their place (softmax: the exponentials), that is kept instead.

use crate::emit::I;
use crate::gpu::kernel::{Kernel, Space};
use crate::gpu::schedule::{product, varies};
use crate::nest::terms::{Level, access_exprs, children, needed, needed_given};
use crate::scalar::{Val, Why, value_type};
use inkwell::IntPredicate as IP;
use ir::nest::{Axis, Expr, ExprId, Nest, Phase};
use tensor::Entity;

/// Most registers (of 32 bits) that a thread may keep.
const MOST: i64 = 32;
/// Most strips where the length is known at run time only.
const MOST_STRIPS: i64 = 8;

/// Elements of an expression at neighbors.
type Kept<'c> = (ExprId, Vec<Val<'c>>);

/// Which loads are kept, and how a row lies in the threads' registers: strip s of a thread holds the `width` elements from
/// `(s·threads + thread)·width` on.
#[derive(Clone)]
pub(super) struct Fit {
    loads: Vec<ExprId>,
    pub width: u32,
    n_strips: i64,
    /// Length of the row, where it is known.
    inner: Option<i64>,
    /// Whether a row of any length is a number of whole strips, so that all threads agree on which there are.
    whole: bool,
}

impl Fit {
    /// The longest row.
    pub fn capacity(&self, threads: i64) -> i64 {
        self.n_strips * self.strip(threads)
    }
    /// Elements that `threads` threads take at once.
    pub fn strip(&self, threads: i64) -> i64 {
        threads * i64::from(self.width)
    }
    /// The same for rows that are a number of whole strips.
    pub fn of_whole_strips(self) -> Fit {
        Fit { whole: true, ..self }
    }
}

/// A thread's elements of the current point.
#[derive(Clone)]
pub(super) struct Held<'c> {
    fit: Fit,
    n: I<'c>,
    /// By strip.
    strips: Vec<Vec<Kept<'c>>>,
    /// Which strip is being computed.
    at: usize,
    /// What this phase is to keep, and what it computed of it so far, by expression.
    keep: Vec<ExprId>,
    kept: Vec<Vec<Val<'c>>>,
}

impl<'c> Held<'c> {
    /// The elements of the current strip.
    pub fn current(&self) -> &[Kept<'c>] {
        self.strips.get(self.at).map_or(&[], Vec::as_slice)
    }
}

/// What a phase computes over the inner space.
fn roots(p: &Phase) -> Vec<ExprId> {
    match p {
        Phase::Reduce(rs) => rs.iter().map(|r| r.value).collect(),
        Phase::Store { over_inner: true, stores } => {
            stores.iter().flat_map(|(a, x)| access_exprs(a).chain([*x])).collect()
        }
        Phase::Store { .. } => vec![],
    }
}

/// By expression, whether it depends on an inner axis.
fn inner(nest: &Nest) -> Vec<bool> {
    let mut inner = vec![false; nest.exprs.len()];
    for k in 0..nest.inner.len() {
        let axis = Axis::Inner(u16::try_from(k).unwrap_or(u16::MAX));
        for (i, v) in varies(nest, axis).into_iter().enumerate() {
            inner[i] |= v;
        }
    }
    inner
}

impl<'c> Kernel<'_, '_, 'c> {
    /// Loads of the inner space that two phases use and that nothing of the nest changes or reductions place.
    fn holdable(&self) -> Vec<ExprId> {
        let nest = self.nest();
        let mut reduced = vec![false; nest.exprs.len()];
        for (i, x) in nest.exprs.iter().enumerate() {
            reduced[i] = matches!(x, Expr::Reduced(_)) || children(x).iter().any(|c| reduced[c.index()]);
        }
        let inner = inner(nest);
        let mut uses = vec![0; nest.exprs.len()];
        for p in &nest.phases {
            for x in needed(nest, roots(p)) {
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

    /// Registers of an expression's value.
    fn words(&self, list: &[ExprId]) -> i64 {
        list.iter().map(|x| if self.nest().expr_dtype(*x).size() == Some(8) { 2 } else { 1 }).sum()
    }

    /// How rows fit into the registers of `threads` threads, `width` neighbors at once, if they do or, of unknown length, may.
    pub(super) fn fit(&self, threads: i64, width: u32) -> Option<Fit> {
        let inner = product(self.def, &self.nest().inner);
        if inner == Some(0) {
            return None;
        }
        let mut loads = self.holdable();
        let width = if inner.is_none_or(|n| n % i64::from(width) == 0) { width } else { 1 };
        if width > 1 {
            loads.retain(|x| self.plan.loads.contains(x));
        }
        let words = self.words(&loads) * i64::from(width);
        let n_strips = match inner {
            Some(n) => (n + threads * i64::from(width) - 1) / (threads * i64::from(width)),
            None => (MOST / words.max(1)).min(MOST_STRIPS),
        };
        let fits = !loads.is_empty() && n_strips > 0 && words * n_strips <= MOST;
        fits.then_some(Fit { loads, width, n_strips, inner, whole: false })
    }

    /// Reads what later phases keep using.
    pub(super) fn hold(&mut self, fit: Fit, thread: I<'c>, threads: i64) -> Why<()> {
        let n = self.count(&self.nest().inner)?;
        self.v.begin_phase(fit.loads.clone(), std::iter::empty());
        self.v.hoist(1)?;
        let (loads, width, n_strips) = (fit.loads.clone(), fit.width, fit.n_strips);
        self.held = Some(Held { fit, n, strips: vec![], at: usize::MAX, keep: vec![], kept: vec![] });
        let mut strips = Vec::new();
        for s in 0..n_strips {
            let zeros = self.zeros(&loads, width);
            let values = self.in_strip(s, thread, threads, zeros, &mut |k, q, _| {
                let idx = k.decode(q, Space::Inner, n)?;
                k.set(Space::Inner, &idx);
                k.v.hoist(2)?;
                let mut out = Vec::new();
                for x in &loads {
                    if width > 1 {
                        out.extend(k.load_wide(*x, width)?);
                    } else {
                        k.v.hoist(Level::MAX)?;
                        out.push(k.v.value(*x)?);
                    }
                }
                Ok(out)
            })?;
            let per = usize::try_from(width).unwrap_or(1);
            strips.push(loads.iter().copied().zip(values.chunks(per).map(<[Val<'c>]>::to_vec)).collect());
        }
        self.v.given = loads;
        if let Some(h) = &mut self.held {
            h.strips = strips;
        }
        Ok(())
    }
    /// Forgets the current point's elements.
    pub(super) fn release(&mut self) {
        self.held = None;
        self.v.given.clear();
    }

    fn zeros(&self, list: &[ExprId], width: u32) -> Vec<Val<'c>> {
        let n = usize::try_from(width).unwrap_or(1);
        let zero = |x: &ExprId| vec![value_type(self.e(), self.nest().expr_dtype(*x)).const_zero(); n];
        list.iter().flat_map(zero).collect()
    }

    /// Decides what phase `p`, which has begun, keeps for the later ones: where they take up what it computes from kept elements, and
    /// that needs no more registers.
    pub(super) fn choose_kept(&mut self, p: usize) {
        let nest = self.nest();
        let Some(h) = &mut self.held else { return };
        h.keep.clear();
        let inner = inner(nest);
        let given = self.v.given.clone();
        // Computed by this phase from kept elements.
        let mut derived = vec![false; nest.exprs.len()];
        for x in self.v.needed() {
            let from = children(nest.get(*x)).iter().any(|c| derived[c.index()] || given.contains(c));
            derived[x.index()] = from && !given.contains(x) && inner[x.index()];
        }
        let later = nest.phases[p + 1..].iter().flat_map(roots);
        let stop = |x: ExprId| derived[x.index()] || given.contains(&x);
        let keep: Vec<ExprId> = needed_given(nest, later, stop).into_iter().filter(|x| stop(*x)).collect();
        let new = keep.iter().any(|x| derived[x.index()]);
        if new
            && self.words(&keep) <= self.words(&given)
            && let Some(h) = &mut self.held
        {
            h.keep = keep;
        }
    }
    /// Notes the values that this phase is to keep, at the current lane.
    pub(super) fn note_kept(&mut self) -> Why<()> {
        let Some(h) = &mut self.held else { return Ok(()) };
        for (x, list) in h.keep.iter().zip(&mut h.kept) {
            list.push(self.v.value(*x)?);
        }
        Ok(())
    }

    /// Runs `body` at the thread's position in strip `s`, if it has one.
    fn in_strip(
        &mut self,
        s: i64,
        thread: I<'c>,
        threads: i64,
        acc: Vec<Val<'c>>,
        body: &mut dyn FnMut(&mut Self, I<'c>, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        let Some((fit, n)) = self.held.as_ref().map(|h| (&h.fit, h.n)) else {
            return Err("a strip of registers that are not held".into());
        };
        let step = fit.strip(threads);
        let q = e.add(e.mul(thread, e.c64(i64::from(fit.width))), e.c64(s * step));
        if fit.inner.is_some_and(|inner| (s + 1) * step <= inner) {
            let here = self.v.save();
            let out = body(self, q, &acc)?;
            self.v.restore(here);
            return Ok(out);
        }
        let inside = if fit.whole { e.icmp(IP::SLT, e.c64(s * step), n) } else { e.icmp(IP::SLT, q, n) };
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
        let Some(h) = &self.held else { return Ok(acc) };
        let (width, n, keep) = (h.fit.width, h.strips.len(), h.keep.clone());
        let per = usize::try_from(width).unwrap_or(1);
        let mut sets = acc.repeat(per);
        let n_sets = sets.len();
        let mut strips = Vec::new();
        for s in 0..n {
            let at = i64::try_from(s).unwrap_or(0);
            if let Some(h) = &mut self.held {
                h.at = s;
            }
            let start = sets.into_iter().chain(self.zeros(&keep, width)).collect();
            let mut out = self.in_strip(at, thread, threads, start, &mut |k, q, all| {
                if let Some(h) = &mut k.held {
                    h.kept = vec![vec![]; h.keep.len()];
                }
                let mut out = body(k, q, width, &all[..n_sets])?;
                out.extend(k.held.iter_mut().flat_map(|h| std::mem::take(&mut h.kept)).flatten());
                Ok(out)
            })?;
            let values = out.split_off(n_sets);
            sets = out;
            strips.push(keep.iter().copied().zip(values.chunks(per).map(<[Val<'c>]>::to_vec)).collect());
        }
        if !keep.is_empty() {
            self.v.given.clone_from(&keep);
            if let Some(h) = &mut self.held {
                (h.strips, h.keep) = (strips, vec![]);
            }
        }
        Ok(sets)
    }
}
