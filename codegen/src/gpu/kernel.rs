//! A loop nest becomes a GPU kernel: `void name(buffers…, i64 parameters…, i64 points)`.
//!
//! Threads share out a linear space, outer points or the inner points of one: each takes `width` neighbors at once as long as
//! addresses are multiples of the wide access, which is tested once when the kernel starts, and single ones for the rest. Reductions
//! are kept per thread, then combined between lanes by exchanges and between waves through shared memory, in an order that follows from
//! extents and architecture alone; every thread ends with the result.

use crate::emit::{Caps, Em, I};
use crate::gpu::held::Held;
use crate::gpu::schedule::{self, Plan, WIDEST};
use crate::gpu::vector;
use crate::gpu::wave::{GLOBAL, Shared, Wave};
use crate::nest::terms::{Level, Order, Site};
use crate::nest::values::Values;
use crate::scalar::{self, Val, Why};
use inkwell::attributes::AttributeLoc;
use inkwell::module::Linkage;
use inkwell::values::{BasicValue, FunctionValue, PointerValue};
use inkwell::{AddressSpace, IntPredicate as IP};
use ir::nest::{Access, Axis, ExprId, Nest, Phase, Term};
use kernels::gpu::{Arch, Schedule};
use lower::host::{DimSource, KernelDef};
use rustc_hash::FxHashMap;
use tensor::{Diagnostic, DimId, ErrorKind, Result};

/// Words of arguments that every driver takes.
const MAX_WORDS: usize = 500;

/// Emits a kernel.
///
/// # Errors
/// `Unsupported` with the reason and the node for what cannot be generated.
pub(crate) fn emit<'c>(
    e: &Em<'_, 'c>,
    def: &KernelDef,
    node: Option<&str>,
    arch: &'static Arch,
) -> Result<FunctionValue<'c>> {
    crate::nest::check(def, node)?;
    let refuse = |why: String| {
        let text = format!("kernel {} cannot be generated for {}: {why}", def.name, arch.target());
        let d = Diagnostic::new(ErrorKind::Unsupported, text);
        match node {
            Some(n) => d.node(n),
            None => d,
        }
    };
    let n_words = def.nest.operands.len() + usize::try_from(def.n_params).unwrap_or(usize::MAX) + 1;
    if n_words > MAX_WORDS {
        return Err(refuse(format!("it has {n_words} arguments; at most {MAX_WORDS} can be passed")));
    }
    let plan = Plan::of(def);
    let caps = Caps { half: schedule::keeps_half(&def.nest), ..e.caps };
    let e = &Em::new(e.ctx, e.m, caps);
    let pointer = e.ctx.ptr_type(AddressSpace::from(GLOBAL));
    let mut params: Vec<inkwell::types::BasicMetadataTypeEnum<'c>> = vec![pointer.into(); def.nest.operands.len()];
    params.resize(n_words, e.i64().into());
    let f = e.m.add_function(&def.name, e.ctx.void_type().fn_type(&params, false), Some(Linkage::External));
    super::target::mark_kernel(e, f, arch, plan.launch.block, (plan.resident / plan.launch.block).max(1));
    e.attr(f, AttributeLoc::Function, "nounwind");
    e.string_attr(f, "no-builtins", "");
    e.at(e.ctx.append_basic_block(f, "entry"));
    Kernel::new(e, def, f, arch, plan).and_then(|mut k| k.body()).map_err(refuse)?;
    debug_assert!(f.verify(true), "the emitter made a function that LLVM refuses");
    Ok(f)
}

/// A space that threads share out.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Space {
    Outer,
    Inner,
}

/// Levels: of what is fixed for neighbors taken at once, and of all.
pub(super) const FIXED: Level = 1;

pub(super) struct Kernel<'e, 'a, 'c> {
    pub(super) v: Values<'e, 'a, 'c>,
    pub(super) w: Wave<'e, 'a, 'c>,
    pub(super) def: &'e KernelDef,
    pub(super) plan: Plan,
    /// How the current points are shared: the plan's schedule, or by waves where rows turn out short.
    pub(super) schedule: Schedule,
    pub(super) points: I<'c>,
    pub(super) thread: I<'c>,
    pub(super) block: I<'c>,
    /// Whether wide accesses are aligned; `None` where nothing is wide.
    pub(super) aligned: Option<I<'c>>,
    /// Arrays in shared memory, by reduction: values, and positions for the arg kinds.
    pub(super) shared: Vec<Vec<Shared<'c>>>,
    /// Elements of the current point that every phase finds in registers.
    pub(super) held: Option<Held<'c>>,
}

impl<'e, 'a, 'c> Kernel<'e, 'a, 'c> {
    fn new(e: &'e Em<'a, 'c>, def: &'e KernelDef, f: FunctionValue<'c>, arch: &'static Arch, plan: Plan) -> Why<Self> {
        let nest = &*def.nest;
        let param = |i: usize| {
            let i = u32::try_from(i).unwrap_or(u32::MAX);
            f.get_nth_param(i).ok_or_else(|| format!("the kernel has no argument {i}"))
        };
        let mut bufs = Vec::new();
        for i in 0..nest.operands.len() {
            let p = param(i)?.into_pointer_value();
            p.set_name(&format!("buf{i}"));
            bufs.push(p);
        }
        let mut dims = FxHashMap::default();
        for (d, source) in &def.dims {
            let v = match source {
                DimSource::Const(c) => e.c64(*c),
                DimSource::Param(i) => {
                    let v = param(bufs.len() + usize::try_from(*i).unwrap_or(usize::MAX))?.into_int_value();
                    v.set_name(&d.to_string());
                    v
                }
            };
            dims.insert(*d, v);
        }
        let points = param(usize::try_from(f.count_params()).unwrap_or(0).wrapping_sub(1))?.into_int_value();
        points.set_name("points");
        let w = Wave { e, arch };
        // Within the space that is shared out, the last axis is the innermost loop.
        let order = match plan.launch.schedule {
            Schedule::GridStride => {
                let n = nest.outer.len();
                let outer = (0..n).map(|i| if i + 1 == n { FIXED + 1 } else { FIXED }).collect();
                Order { outer, inner: (0..nest.inner.len()).map(|k| FIXED + 2 + k).collect(), reduced: FIXED + 1 }
            }
            _ => {
                let n = nest.inner.len();
                let inner = (0..n).map(|k| FIXED + 1 + usize::from(k + 1 == n)).collect();
                Order { outer: vec![FIXED; nest.outer.len()], inner, reduced: FIXED }
            }
        };
        let v = Values::new(e, nest, dims, bufs, order);
        let (thread, block) = (w.thread(), e.zext(w.block(), e.i64()));
        let schedule = plan.launch.schedule;
        let mut k =
            Kernel { v, w, def, plan, schedule, points, thread, block, aligned: None, shared: Vec::new(), held: None };
        k.aligned = k.alignment()?;
        k.shared = k.arrays();
        Ok(k)
    }

    pub(super) fn e(&self) -> &'e Em<'a, 'c> {
        self.v.e
    }
    pub(super) fn nest(&self) -> &'e Nest {
        self.v.nest
    }
    pub(super) fn width(&self) -> u32 {
        self.plan.width
    }
    /// Blocks between the points of a block and its next ones.
    pub(super) fn max_blocks(&self) -> i64 {
        i64::from(self.plan.launch.schedule.max_blocks())
    }
    pub(super) fn axes(&self, s: Space) -> &'e [DimId] {
        match s {
            Space::Outer => &self.nest().outer,
            Space::Inner => &self.nest().inner,
        }
    }
    pub(super) fn count(&self, axes: &[DimId]) -> Why<I<'c>> {
        let mut n = self.e().c64(1);
        for d in axes {
            n = self.v.times(n, self.v.dim(*d)?);
        }
        Ok(n)
    }

    /// The accesses that move several elements.
    fn wide(&self) -> Vec<&'e Access> {
        let nest = self.nest();
        let loads = self.plan.loads.iter().filter_map(|x| crate::nest::terms::load(nest.get(*x)));
        let stores = self.plan.stores.iter().filter_map(|(p, i)| match &nest.phases[*p] {
            Phase::Store { stores, .. } => Some(&stores[*i].0),
            Phase::Reduce(_) => None,
        });
        loads.chain(stores).collect()
    }

    /// Whether every wide access is aligned at every position that is a multiple of the width: a bit of the base address, of an offset
    /// or of a step along another axis would show.
    fn alignment(&self) -> Why<Option<I<'c>>> {
        if self.width() < 2 {
            return Ok(None);
        }
        let e = self.e();
        let nest = self.nest();
        let (axes, along) = if schedule::is_flat(nest) {
            (&nest.outer, Axis::Outer(u16::try_from(nest.outer.len() - 1).unwrap_or(0)))
        } else {
            (&nest.inner, Axis::Inner(u16::try_from(nest.inner.len() - 1).unwrap_or(0)))
        };
        let mut bad = e.c64(0);
        for a in self.wide() {
            let operand = &nest.operands[usize::from(a.operand)];
            let size = i64::try_from(operand.dtype.size().unwrap_or(1)).unwrap_or(1);
            let address = e.from_ptr(self.v.buffer(a.operand));
            let mut bits = address;
            for (c, s) in a.coords.iter().zip(&operand.strides) {
                let step = self.v.times(self.v.dim(*s)?, e.c64(size));
                bits = e.or(bits, self.v.times(self.v.dim(c.offset)?, step));
                for (t, k) in &c.terms {
                    if *t != Term::Axis(along) {
                        bits = e.or(bits, self.v.times(self.v.dim(*k)?, step));
                    }
                }
            }
            let mask = (size * i64::from(self.width())).min(WIDEST) - 1;
            bad = e.or(bad, e.and(bits, e.c64(mask)));
        }
        // A run of neighbors stays within a row.
        if let [_, .., row] = axes.as_slice() {
            bad = e.or(bad, e.and(self.v.dim(*row)?, e.c64(i64::from(self.width()) - 1)));
        }
        Ok(Some(e.icmp(IP::EQ, bad, e.c64(0))))
    }

    fn body(&mut self) -> Why<()> {
        let e = self.e();
        let wide_thread = e.zext(self.thread, e.i64());
        let per_block = i64::from(self.plan.launch.points_per_block(self.w.arch.wave));
        let stride = e.c64(per_block * self.max_blocks());
        let start = e.mul(self.block, e.c64(per_block));
        let points = self.points;
        match self.plan.launch.schedule {
            Schedule::GridStride if schedule::is_flat(self.nest()) => self.flat(wide_thread)?,
            Schedule::GridStride => {
                self.looped(e.add(start, wide_thread), points, stride, vec![], &mut |k, p, _| {
                    k.point(p)?;
                    k.sequential()?;
                    Ok(vec![])
                })?;
            }
            Schedule::BlockPerPoint | Schedule::WavePerPoint => self.row_schedules(wide_thread)?,
            Schedule::BlockPerColumns => {
                let columns = i64::from(self.plan.launch.vector);
                let (column, part) = (e.urem_raw(wide_thread, e.c64(columns)), e.udiv_raw(wide_thread, e.c64(columns)));
                let parts = i64::from(self.plan.launch.block) / columns;
                self.looped(start, points, stride, vec![], &mut |k, first, _| {
                    // Threads past the end work on the last point and store nothing: all take part in the exchange.
                    let p = e.add(first, column);
                    let inside = e.icmp(IP::SLT, p, points);
                    k.point(e.isel(inside, p, e.sub(points, e.c64(1))))?;
                    k.shared_point(part, parts, Some(inside), None)?;
                    Ok(vec![])
                })?;
            }
        }
        e.ret_void();
        Ok(())
    }

    /// Sets the indices of the outer axes.
    pub(super) fn point(&mut self, p: I<'c>) -> Why<()> {
        let idx = self.decode(p, Space::Outer, self.points)?;
        self.v.outer = idx.into_iter().map(Some).collect();
        Ok(())
    }

    /// Indices for a linear position, the last axis varying fastest. Divisions are of 32 bits where the number of positions allows.
    pub(super) fn decode(&self, p: I<'c>, space: Space, total: I<'c>) -> Why<Vec<I<'c>>> {
        let e = self.e();
        let axes = self.axes(space);
        let [first, rest @ ..] = axes else { return Ok(vec![]) };
        if rest.is_empty() {
            return Ok(vec![p]);
        }
        let narrow = |k: &Self| -> Why<Vec<I<'c>>> {
            let mut q = e.trunc(p, e.i32());
            let mut idx = Vec::new();
            for d in rest.iter().rev() {
                let n = e.trunc(k.v.dim(*d)?, e.i32());
                idx.push(e.zext(e.urem_raw(q, n), e.i64()));
                q = e.udiv_raw(q, n);
            }
            idx.push(e.zext(q, e.i64()));
            idx.reverse();
            Ok(idx)
        };
        let limit = i64::from(i32::MAX);
        match schedule::product(self.def, axes) {
            Some(n) if n <= limit => return narrow(self),
            Some(_) => return self.v.decode(p, axes),
            None => {}
        }
        let _ = first;
        let (small, large, join) = (e.block("small"), e.block("large"), e.block("decoded"));
        e.cond_br(e.icmp(IP::SLE, total, e.c64(limit)), small, large);
        e.at(small);
        let a = narrow(self)?;
        let from_small = e.here();
        e.br(join);
        e.at(large);
        let b = self.v.decode(p, axes)?;
        let from_large = e.here();
        e.br(join);
        e.at(join);
        let all = |idx: Vec<I<'c>>| idx.into_iter().map(Val::from).collect::<Vec<_>>();
        let merged = e.merge([(from_small, &all(a)), (from_large, &all(b))]);
        Ok(merged.into_iter().map(Val::into_int_value).collect())
    }

    /// Flat nests: threads share out the outer points.
    fn flat(&mut self, thread: I<'c>) -> Why<()> {
        let e = self.e();
        let mut stores = Vec::new();
        for (p, phase) in self.nest().phases.iter().enumerate() {
            if let Phase::Store { stores: list, .. } = phase {
                stores.extend(list.iter().enumerate().map(|(i, s)| ((p, i), s)));
            }
        }
        self.v.begin_phase(stores.iter().map(|s| s.1.1).collect(), stores.iter().map(|s| &s.1.0));
        let n = self.points;
        let (block, width) = (i64::from(self.plan.launch.block), i64::from(self.width()));
        let own = e.mul(self.block, e.c64(block * width));
        let stride = e.c64(self.max_blocks() * block * width);
        self.guarded(e.icmp(IP::SLT, e.c64(0), n), vec![], &mut |k| {
            k.v.hoist(0)?;
            let mut wide = e.c64(0);
            if let Some(aligned) = k.aligned {
                wide = e.isel(aligned, e.and(n, e.c64(-width)), wide);
                let from = e.add(own, e.mul(thread, e.c64(width)));
                let w = k.width();
                k.looped(from, wide, stride, vec![], &mut |k, p, _| {
                    k.store_lanes(Space::Outer, p, w, &stores, n)?;
                    Ok(vec![])
                })?;
            }
            // The rest, or all, one by one: a block takes the same points as it would take by runs.
            k.looped(own, n, stride, vec![], &mut |k, first, _| {
                let end = e.add(first, e.c64(block * width));
                let end = e.isel(e.icmp(IP::SLT, end, n), end, n);
                let from = e.isel(e.icmp(IP::SLT, first, wide), wide, first);
                k.looped(e.add(from, thread), end, e.c64(block), vec![], &mut |k, p, _| {
                    k.store_lanes(Space::Outer, p, 1, &stores, n)?;
                    Ok(vec![])
                })
            })
        })?;
        Ok(())
    }

    /// All phases of the current point in one thread.
    fn sequential(&mut self) -> Why<()> {
        let nest = self.nest();
        let some = self.some_inner()?;
        let mut n_reduced = 0;
        for phase in &nest.phases {
            match phase {
                Phase::Reduce(rs) => {
                    self.v.begin_phase(rs.iter().map(|r| r.value).collect(), std::iter::empty());
                    let start = self.start(rs)?;
                    let acc = self.guarded(some, start.clone(), &mut |k| {
                        k.inner_loops(0, start.clone(), &mut |k, acc| k.accumulate(rs, acc))
                    })?;
                    self.keep(rs, &acc, &mut n_reduced);
                }
                Phase::Store { over_inner, stores } => {
                    let list: Vec<_> = stores.iter().collect();
                    self.v.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
                    if *over_inner {
                        self.guarded(some, vec![], &mut |k| {
                            k.inner_loops(0, vec![], &mut |k, _| {
                                k.v.store_all(&list)?;
                                Ok(vec![])
                            })
                        })?;
                    } else {
                        self.v.hoist(FIXED + 1)?;
                        self.v.store_all(&list)?;
                    }
                }
            }
        }
        Ok(())
    }
    fn inner_loops(
        &mut self,
        k: usize,
        carried: Vec<Val<'c>>,
        body: &mut dyn FnMut(&mut Self, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        self.v.hoist(FIXED + 1 + k)?;
        let Some(d) = self.nest().inner.get(k) else { return body(self, &carried) };
        let e = self.e();
        let n = self.v.dim(*d)?;
        self.looped(e.c64(0), n, e.c64(1), carried, &mut |g, i, acc| {
            g.v.inner[k] = Some(i);
            g.inner_loops(k + 1, acc.to_vec(), body)
        })
    }

    /// Computes what the phase needs at `width` neighbors from `at` on; `take` is called at each with everything at hand.
    pub(super) fn lanes(
        &mut self,
        space: Space,
        at: I<'c>,
        width: u32,
        total: I<'c>,
        take: &mut dyn FnMut(&mut Self, usize) -> Why<()>,
    ) -> Why<()> {
        let e = self.e();
        let idx = self.decode(at, space, total)?;
        self.set(space, &idx);
        let mut loaded: Vec<(ExprId, Vec<Val<'c>>)> = Vec::new();
        if let Some(h) = self.held.as_ref().filter(|_| space == Space::Inner) {
            loaded = h.current().to_vec();
        }
        // What neighbors share is computed of the first one's elements.
        for (x, values) in &loaded {
            self.v.preset(*x, values[0]);
        }
        self.v.hoist(FIXED + usize::from(space == Space::Inner))?;
        if width > 1 {
            let here = self.v.save();
            for x in self.plan.loads.clone() {
                if self.v.needs(x) && loaded.iter().all(|l| l.0 != x) {
                    loaded.push((x, self.load_wide(x, width)?));
                }
            }
            self.v.restore(here);
        }
        for lane in 0..usize::try_from(width).unwrap_or(1) {
            let here = self.v.save();
            let mut idx = idx.clone();
            if let Some(last) = idx.last_mut()
                && lane > 0
            {
                *last = e.add(*last, e.c64(i64::try_from(lane).unwrap_or(0)));
            }
            self.set(space, &idx);
            for (x, values) in &loaded {
                self.v.preset(*x, values[lane]);
            }
            self.v.hoist(Level::MAX)?;
            self.note_kept()?;
            take(self, lane)?;
            self.v.restore(here);
        }
        self.set(space, &idx);
        Ok(())
    }
    /// Neighboring elements of a load, from the current point on.
    pub(super) fn load_wide(&mut self, x: ExprId, width: u32) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        let a = crate::nest::terms::load(self.nest().get(x)).ok_or("a wide load of no element")?;
        let p = self.v.address(Site::Load(x), a, Level::MAX)?;
        let d = self.nest().operands[usize::from(a.operand)].dtype;
        let elements = vector::load(e, p, d, width)?;
        Ok(elements.into_iter().map(|v| scalar::from_memory(e, v, d)).collect())
    }
    pub(super) fn set(&mut self, space: Space, idx: &[I<'c>]) {
        let to = if space == Space::Outer { &mut self.v.outer } else { &mut self.v.inner };
        *to = idx.iter().copied().map(Some).collect();
    }

    /// Stores at `width` neighbors from `at` on. All values are computed before the first is stored.
    pub(super) fn store_lanes(
        &mut self,
        space: Space,
        at: I<'c>,
        width: u32,
        stores: &[((usize, usize), &'e (Access, ExprId))],
        total: I<'c>,
    ) -> Why<()> {
        let e = self.e();
        let nest = self.nest();
        let mut out: Vec<Vec<(PointerValue<'c>, Val<'c>)>> = vec![vec![]; stores.len()];
        self.lanes(space, at, width, total, &mut |k, _| {
            for (i, (_, (a, x))) in stores.iter().enumerate() {
                out[i].push((k.v.address(Site::Store(i), a, Level::MAX)?, k.v.value(*x)?));
            }
            Ok(())
        })?;
        for ((place, (a, x)), lanes) in stores.iter().zip(&out) {
            let (from, d) = (nest.expr_dtype(*x), nest.operands[usize::from(a.operand)].dtype);
            if width > 1 && self.plan.stores.contains(place) {
                let values: Vec<_> = lanes.iter().map(|l| l.1).collect();
                vector::store(e, lanes[0].0, from, d, &values);
            } else {
                for (p, v) in lanes {
                    e.store(*p, scalar::to_memory(e, *v, from, d));
                }
            }
        }
        Ok(())
    }

    /// Runs `body` where `cond` holds; else the results are `start`.
    pub(super) fn guarded(
        &mut self,
        cond: I<'c>,
        start: Vec<Val<'c>>,
        body: &mut dyn FnMut(&mut Self) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        if cond.is_const() && cond.get_zero_extended_constant() == Some(1) {
            return body(self);
        }
        let here = self.v.save();
        let out = e.guarded(cond, &start, || body(self))?;
        self.v.restore(here);
        Ok(out)
    }

    /// A loop `from, from + step, …` below `to`, which may be empty, with carried values.
    pub(super) fn looped(
        &mut self,
        from: I<'c>,
        to: I<'c>,
        step: I<'c>,
        carried: Vec<Val<'c>>,
        body: &mut dyn FnMut(&mut Self, I<'c>, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        let (pre, head, after) = (e.here(), e.block("loop"), e.block("done"));
        e.cond_br(e.icmp(IP::SLT, from, to), head, after);
        e.at(head);
        let i = e.phi(e.i64(), "i");
        let phis: Vec<_> = carried.iter().map(|v| e.phi(v.get_type(), "acc")).collect();
        let iv = i.as_basic_value().into_int_value();
        let acc: Vec<_> = phis.iter().map(|p| p.as_basic_value()).collect();
        let here = self.v.save();
        let out = body(self, iv, &acc)?;
        self.v.restore(here);
        let next = e.nsw_add(iv, step);
        let back = e.here();
        e.cond_br(e.icmp(IP::SLT, next, to), head, after);
        i.add_incoming(&[(&from, pre), (&next, back)]);
        e.at(after);
        let mut results = Vec::new();
        for ((p, start), end) in phis.iter().zip(&carried).zip(&out) {
            p.add_incoming(&[(start as &dyn BasicValue<'c>, pre), (end as &dyn BasicValue<'c>, back)]);
            let result = e.phi(start.get_type(), "");
            result.add_incoming(&[(start as &dyn BasicValue<'c>, pre), (end as &dyn BasicValue<'c>, back)]);
            results.push(result.as_basic_value());
        }
        Ok(results)
    }
}
