//! The independent checker of memory plans.

use crate::plan::{ALIGN, Interval, Plan};
use ir::hip::{Hip, HipOp};
use ir::nest::{Access, Expr, ExprId, Nest, Phase, Term};
use ir::{Module, Node, RegionId, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use tensor::{Diagnostic, DimId, Entity, ErrorKind, Result, SymId};

/// What a pool needs at given symbol values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Bytes of the pool.
    pub peak: i64,
    /// The largest sum of sizes that are live at one time.
    pub live: i64,
}

/// Checks placed intervals on numbers: aligned, inside the pool, and no two live at one time share a byte. Walks over time with the
/// live set ordered by address; a newcomer must fit between its neighbors.
///
/// # Errors
/// `Internal` with the two intervals.
pub fn check_intervals(intervals: &[Interval], sizes: &[i64], offsets: &[i64], peak: i64) -> Result<PoolUse> {
    let bad = |what: String| Err(Diagnostic::new(ErrorKind::Internal, what));
    let mut events: Vec<(u32, bool, usize)> = vec![];
    for (i, x) in intervals.iter().enumerate() {
        if offsets[i] % ALIGN != 0 || sizes[i] % ALIGN != 0 {
            return bad(format!("interval {i} at {} of {} bytes is not aligned", offsets[i], sizes[i]));
        }
        if offsets[i] < 0 || sizes[i] < 0 || offsets[i].checked_add(sizes[i]).is_none_or(|e| e > peak) {
            return bad(format!("interval {i} at {} of {} bytes is outside the pool of {peak}", offsets[i], sizes[i]));
        }
        if sizes[i] > 0 {
            events.push((x.start, true, i));
            events.push((x.end.saturating_add(1), false, i));
        }
    }
    // At one time the dead leave before the new come.
    events.sort();
    let mut live: BTreeMap<i64, usize> = BTreeMap::new();
    let (mut sum, mut most) = (0i64, 0i64);
    for (t, comes, i) in events {
        let at = offsets[i];
        if !comes {
            live.remove(&at);
            sum -= sizes[i];
            continue;
        }
        let below = live.range(..=at).next_back().filter(|(o, j)| **o + sizes[**j] > at);
        let above = live.range(at..).next().filter(|(o, _)| at + sizes[i] > **o);
        if let Some((o, j)) = below.or(above) {
            return bad(format!(
                "intervals {j} [{o}, {}) and {i} [{at}, {}) share bytes at time {t}",
                o + sizes[*j],
                at + sizes[i]
            ));
        }
        live.insert(at, i);
        sum += sizes[i];
        most = most.max(sum);
    }
    Ok(PoolUse { peak, live: most })
}

/// Checks a module's plan at symbol values by running it on owners instead of bytes: a write claims the bytes of its buffer, and every later
/// use must find all of them still claimed by that buffer. Loops run twice, so that a claim must survive from one iteration to the next. Gives
/// the use of each domain.
///
/// `env` must give values to every symbol, those of device results included.
///
/// # Errors
/// `Internal` with node and buffers when two live buffers share bytes, a buffer is misaligned, outside its pool, used outside the times
/// that the plan states, or a nest runs in place where it may not.
pub fn check_plan(m: &Module<Hip>, plan: &Plan, env: &impl Fn(SymId) -> Option<i64>) -> Result<Vec<PoolUse>> {
    let all = plan.offsets.eval_all(&m.dims, env)?;
    let mut places = vec![];
    let mut uses = vec![];
    for d in &plan.domains {
        let best = d.packing.layouts.iter().min_by_key(|l| all[l.peak.index()]);
        let peak = best.map_or(0, |l| all[l.peak.index()]);
        places.push(best.map(|l| l.offsets.iter().map(|o| all[o.index()]).collect::<Vec<i64>>()).unwrap_or_default());
        uses.push(PoolUse { peak, live: 0 });
    }
    let eval = |d: DimId| m.dims.eval(d, env);
    let mut o = Owners::new(m, plan, &eval);
    for (i, b) in plan.buffers.iter().enumerate() {
        let ty = &m.graphs[b.region].values[b.value].ty;
        let mut bytes = i64::try_from(ty.dtype.bits()).unwrap_or(i64::MAX);
        for &d in &ty.shape {
            let d = m.dims.eval(d, env)?;
            bytes = bytes.checked_mul(d).ok_or_else(|| crate::plan::too_large(bytes, d))?;
        }
        let bytes = bytes.div_euclid(8) + i64::from(bytes % 8 != 0);
        let bytes = bytes.checked_add(ALIGN - 1).map_or(bytes, |b| b / ALIGN * ALIGN);
        let at = places[b.domain].get(b.interval).copied().unwrap_or(-1);
        let peak = uses[b.domain].peak;
        if at < 0 || at % ALIGN != 0 || at.checked_add(bytes).is_none_or(|e| e > peak) {
            return Err(bug(format!(
                "buffer {} of {} at {at} of {bytes} bytes is misaligned or outside the pool of {peak}",
                b.value, b.region
            )));
        }
        o.at.push((at, bytes));
        o.root.insert((b.region, b.value), i);
    }
    o.region(m.main)?;
    // The live sum, from what was seen: in half steps, because a buffer that is written in place of another begins where that ends.
    for (d, u) in uses.iter_mut().enumerate() {
        let mut events: Vec<(u64, bool, i64)> = vec![];
        for i in (0..plan.buffers.len()).filter(|&i| plan.buffers[i].domain == d) {
            let (mut from, mut to) = o.seen[i];
            let whole_run = plan.domains[d].space == ir::hip::Space::HostMapped;
            if whole_run || matches!(plan.domains[d].reserve, crate::plan::Reserve::Results(..)) {
                (from, to) = (0, u64::MAX - 1);
            }
            if from <= to {
                events.push((from, true, o.at[i].1));
                events.push((to + 1, false, o.at[i].1));
            }
        }
        events.sort();
        let mut sum = 0;
        for (_, comes, bytes) in events {
            sum += if comes { bytes } else { -bytes };
            u.live = u.live.max(sum);
        }
    }
    Ok(uses)
}

fn bug(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, what)
}

struct Owners<'a> {
    m: &'a Module<Hip>,
    plan: &'a Plan,
    /// Per domain: start of a claimed range to its end and owner.
    memory: Vec<BTreeMap<i64, (i64, usize)>>,
    /// Offset and bytes of each buffer.
    at: Vec<(i64, i64)>,
    /// The planned buffer behind a value; absent for inputs, outputs and constants.
    root: FxHashMap<(RegionId, Value), usize>,
    /// Elements from the start of its buffer to a view's first.
    shift: FxHashMap<(RegionId, Value), i64>,
    eval: &'a dyn Fn(DimId) -> Result<i64>,
    written: Vec<bool>,
    /// First and last use in half steps of time; the first is after the last when never used.
    seen: Vec<(u64, u64)>,
    time: u32,
}

impl<'a> Owners<'a> {
    fn new(m: &'a Module<Hip>, plan: &'a Plan, eval: &'a dyn Fn(DimId) -> Result<i64>) -> Owners<'a> {
        let n = plan.buffers.len();
        Owners {
            m,
            plan,
            memory: vec![BTreeMap::new(); plan.domains.len()],
            at: vec![],
            root: FxHashMap::default(),
            shift: FxHashMap::default(),
            eval,
            written: vec![false; n],
            seen: vec![(u64::MAX, 0); n],
            time: 0,
        }
    }
    fn shift_of(&self, r: RegionId, v: Value) -> i64 {
        self.shift.get(&(r, v)).copied().unwrap_or(0)
    }
    fn name(&self, i: usize) -> String {
        let b = &self.plan.buffers[i];
        format!("{}.{}", b.region, b.value)
    }
    /// Records a use; `late` for one that begins when the step's reads are done.
    fn note(&mut self, i: usize, late: bool) -> Result<()> {
        let b = &self.plan.buffers[i];
        if self.time < b.span.0 || self.time > b.span.1 {
            let (a, z) = b.span;
            return Err(bug(format!("buffer {} is used at {} but planned for [{a}, {z}]", self.name(i), self.time)));
        }
        let t = 2 * u64::from(self.time) + u64::from(late);
        let s = &mut self.seen[i];
        *s = (s.0.min(t), s.1.max(t));
        Ok(())
    }
    /// The first range in a buffer's bytes that somebody else claims, or that nobody does.
    fn foreign(&self, i: usize) -> Option<Option<usize>> {
        let (at, bytes) = self.at[i];
        let mut pos = at;
        let memory = &self.memory[self.plan.buffers[i].domain];
        while pos < at + bytes {
            match memory.range(..=pos).next_back() {
                Some((_, &(end, owner))) if end > pos => {
                    if owner != i {
                        return Some(Some(owner));
                    }
                    pos = end;
                }
                _ => return Some(None),
            }
        }
        None
    }
    fn claim(&mut self, i: usize) {
        let (at, bytes) = self.at[i];
        let memory = &mut self.memory[self.plan.buffers[i].domain];
        let end = at + bytes;
        let touched: Vec<(i64, (i64, usize))> =
            memory.range(..end).rev().take_while(|(_, (e, _))| *e > at).map(|(s, x)| (*s, *x)).collect();
        for (s, (e, owner)) in touched {
            memory.remove(&s);
            if s < at {
                memory.insert(s, (at, owner));
            }
            if e > end {
                memory.insert(end, (e, owner));
            }
        }
        if bytes > 0 {
            memory.insert(at, (end, i));
        }
        self.written[i] = true;
    }
    fn read(&mut self, i: usize) -> Result<()> {
        self.note(i, false)?;
        if !self.written[i] {
            return Err(bug(format!("buffer {} is read before it is written", self.name(i))));
        }
        match self.foreign(i) {
            None => Ok(()),
            Some(by) => {
                let by = by.map_or("nothing".into(), |j| self.name(j));
                Err(bug(format!("buffer {} is read but its bytes are held by {by}", self.name(i))))
            }
        }
    }
    fn write(&mut self, i: usize, late: bool) -> Result<()> {
        self.note(i, late)?;
        if !self.written[i] {
            self.claim(i);
        } else if let Some(by) = self.foreign(i) {
            let by = by.map_or("nothing".into(), |j| self.name(j));
            return Err(bug(format!("buffer {} is written again but its bytes are held by {by}", self.name(i))));
        }
        Ok(())
    }
    fn overlap(&self, i: usize, j: usize) -> bool {
        let ((a, n), (b, k)) = (self.at[i], self.at[j]);
        i != j && self.plan.buffers[i].domain == self.plan.buffers[j].domain && a < b + k && b < a + n
    }
    /// What a domain holds is gone when it is reserved.
    fn reserved(&mut self, at: crate::plan::Reserve) {
        for (d, x) in self.plan.domains.iter().enumerate() {
            if x.reserve == at {
                self.memory[d].clear();
                for (i, b) in self.plan.buffers.iter().enumerate() {
                    if b.domain == d {
                        self.written[i] = false;
                    }
                }
            }
        }
    }

    fn region(&mut self, r: RegionId) -> Result<()> {
        let m = self.m;
        let g = &m.graphs[r];
        for pos in 0..=g.order.len() {
            self.reserved(crate::plan::Reserve::At(crate::plan::Point { region: r, pos }));
            let Some(&n) = g.order.get(pos) else { break };
            self.time += 1;
            let path = || g.nodes[n].origin.to_string();
            self.node(r, n).map_err(|e| e.node(path()))?;
        }
        Ok(())
    }

    fn node(&mut self, r: RegionId, n: Node) -> Result<()> {
        let m = self.m;
        let g = &m.graphs[r];
        let node = &g.nodes[n];
        let root = |o: &Self, v: Value| o.root.get(&(r, v)).copied();
        let n_reads = match &node.op {
            HipOp::Alloc | HipOp::Output(_) => return Ok(()),
            HipOp::View { offset } => {
                let of = node.ins.first().copied().flatten();
                if let (Some(of), Some(&v)) = (of, node.outs.first())
                    && let Some(i) = root(self, of)
                {
                    self.root.insert((r, v), i);
                    let shift = self.shift_of(r, of) + (self.eval)(*offset)?;
                    self.shift.insert((r, v), shift);
                }
                return Ok(());
            }
            HipOp::If { .. } | HipOp::Loop(_) => return self.control(r, n),
            HipOp::Launch(nest) => nest.operands.iter().take_while(|o| !o.written).count(),
            HipOp::Call(c) => c.n_reads as usize,
            HipOp::HostCall { n_reads, .. } => *n_reads as usize,
            HipOp::Copy | HipOp::Carry | HipOp::Reuse | HipOp::PassOutput(_) | HipOp::Readback { .. } => 1,
            HipOp::StoreDims(_) => 0,
            other => return Err(bug(format!("{other:?} is not known to the checker"))),
        };
        let roots: Vec<Option<usize>> = node.ins.iter().map(|v| v.and_then(|v| root(self, v))).collect();
        let (reads, writes) = roots.split_at(n_reads.min(roots.len()));
        for i in reads.iter().flatten() {
            self.read(*i)?;
        }
        for (j, w) in writes.iter().enumerate() {
            let Some(w) = *w else { continue };
            let mut late = false;
            for (k, x) in reads.iter().enumerate() {
                let Some(x) = x.filter(|&x| self.overlap(x, w)) else { continue };
                late = true;
                let shift = |o: &Self, k: usize| node.ins[k].map(|v| o.shift_of(r, v));
                let allowed = match &node.op {
                    HipOp::Launch(nest) => {
                        let same_place = self.at[x] == self.at[w] && shift(self, k) == shift(self, n_reads + j);
                        same_place && reads_own_element(nest, k, n_reads + j)
                    }
                    _ => false,
                };
                if !allowed {
                    return Err(bug(format!("{} is written over {}, which is read", self.name(w), self.name(x))));
                }
            }
            if let Some(x) = writes.iter().take(j).flatten().find(|x| self.overlap(**x, w)) {
                return Err(bug(format!("{} and {} are written to the same bytes", self.name(w), self.name(*x))));
            }
            self.write(w, late)?;
        }
        Ok(())
    }

    fn control(&mut self, r: RegionId, n: Node) -> Result<()> {
        let m = self.m;
        let node = &m.graphs[r].nodes[n];
        let of = |o: &Self, v: Option<Value>| v.and_then(|v| o.root.get(&(r, v)).copied());
        let (n_carried, rounds, cond) = match &node.op {
            HipOp::Loop(l) => (l.n_carried as usize, 2, usize::from(l.cond)),
            _ => (0, 1, 0),
        };
        if let Some(i) = of(self, node.ins.first().copied().flatten()) {
            self.read(i)?;
        }
        let results: Vec<Option<usize>> = node.outs.iter().map(|&v| of(self, Some(v))).collect();
        let operands: Vec<Option<usize>> = node.ins.iter().skip(1).map(|&v| of(self, v)).collect();
        let at = crate::plan::Reserve::Results(r, n);
        if n_carried > 0 {
            self.reserved(at);
        }
        for (init, state) in operands.iter().zip(&results).take(n_carried) {
            init.map_or(Ok(()), |i| self.read(i))?;
            state.map_or(Ok(()), |i| self.write(i, false))?;
        }
        let entry = self.time;
        let mut exit = entry;
        for _ in 0..rounds {
            self.time = entry;
            for &body in &node.regions {
                let params = results.iter().take(n_carried).chain(operands.iter().skip(n_carried));
                for (&v, root) in m.graphs[body].inputs.iter().zip(params) {
                    if let Some(i) = *root {
                        self.root.insert((body, v), i);
                    }
                }
                let captures = m.graphs[body].inputs.iter().zip(node.ins.iter().skip(1)).skip(n_carried);
                for (&p, v) in captures {
                    let shift = v.map_or(0, |v| self.shift_of(r, v));
                    self.shift.insert((body, p), shift);
                }
                // What a body allocates is fresh in every iteration.
                for (i, b) in self.plan.buffers.iter().enumerate() {
                    if b.region == body {
                        self.written[i] = false;
                    }
                }
                self.region(body)?;
                self.time += 1;
                let outs = &m.graphs[body].outputs;
                for v in outs {
                    if let Some(&i) = self.root.get(&(body, *v)) {
                        self.read(i)?;
                    }
                }
                self.reserved(at);
                let copied = outs.get(cond.min(outs.len())..).unwrap_or_default();
                for (v, to) in copied.iter().zip(&results) {
                    let from = self.root.get(&(body, *v)).copied();
                    if let (Some(from), Some(to)) = (from, *to) {
                        if self.overlap(from, to) {
                            return Err(bug(format!("{} is copied over itself", self.name(from))));
                        }
                        self.write(to, false)?;
                    }
                }
            }
            self.time += 1;
            exit = self.time;
        }
        self.time = exit;
        // Only one arm ran, or the loop ran any number of times: results are there all the same.
        for i in results.into_iter().flatten() {
            self.read(i)?;
        }
        Ok(())
    }
}

/// Whether a nest reads operand `r` only where the same point writes operand `w`, before it does. Another wording of the planner's rule:
/// it looks at the accesses one by one in the order in which phases evaluate them.
fn reads_own_element(nest: &Nest, r: usize, w: usize) -> bool {
    let (a, b) = (&nest.operands[r], &nest.operands[w]);
    if a.strides != b.strides || a.shape != b.shape || a.dtype.bits() != b.dtype.bits() {
        return false;
    }
    let touches = |root: ExprId, operand: usize| -> Vec<&Access> {
        let mut found = vec![];
        let mut needed = vec![false; nest.exprs.len()];
        needed[root.index()] = true;
        // Operands come before users, so one pass from the end sees every needed expression.
        for (i, e) in nest.exprs.iter().enumerate().rev() {
            if !needed[i] {
                continue;
            }
            let mut need = |x: &ExprId| needed[x.index()] = true;
            let mut access = None;
            match e {
                Expr::Load(x) => access = Some(x),
                Expr::LoadIf { cond, access: x, other } => {
                    need(cond);
                    need(other);
                    access = Some(x);
                }
                Expr::Unary(_, x) | Expr::Cast(x, _) | Expr::Round(x, _) => need(x),
                Expr::Binary(_, x, y) => [x, y].into_iter().for_each(need),
                Expr::Select(x, y, z) => [x, y, z].into_iter().for_each(need),
                _ => {}
            }
            if let Some(x) = access {
                let terms = x.coords.iter().flat_map(|c| &c.terms);
                terms.for_each(|(t, _)| {
                    if let Term::Expr(e) = t {
                        needed[e.index()] = true;
                    }
                });
                if usize::from(x.operand) == operand {
                    found.push(x);
                }
            }
        }
        found
    };
    let mut own: Option<&Access> = None;
    let mut before: Vec<&Access> = vec![];
    for p in &nest.phases {
        match p {
            Phase::Reduce(rs) => {
                for x in rs {
                    let t = touches(x.value, r);
                    if own.is_some() && !t.is_empty() {
                        return false;
                    }
                    before.extend(t);
                }
            }
            Phase::Store { stores, .. } => {
                for (to, value) in stores {
                    let t = touches(*value, r);
                    if own.is_some() && !t.is_empty() {
                        return false;
                    }
                    before.extend(t);
                    if usize::from(to.operand) == w {
                        if own.is_some() {
                            return false;
                        }
                        own = Some(to);
                    }
                }
            }
        }
    }
    own.is_some_and(|own| before.iter().all(|x| x.coords == own.coords))
}
