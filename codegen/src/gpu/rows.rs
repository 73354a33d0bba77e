//! Points whose inner space threads share: who takes a row, how its positions are shared out, and its phases one after the other.

use crate::emit::I;
use crate::gpu::held::Fit;
use crate::gpu::kernel::{FIXED, Kernel, Space};
use crate::gpu::schedule::{self, WAVE_INNER};
use crate::scalar::{Val, Why};
use inkwell::IntPredicate as IP;
use inkwell::basic_block::BasicBlock;
use ir::nest::Phase;
use kernels::gpu::Schedule;

impl<'c> Kernel<'_, '_, 'c> {
    /// Rows of known length are taken in one way, or in two where only the addresses tell whether wide accesses are aligned. The length
    /// of others is known now: rows that fit are kept in registers, waves take short ones; blocks that are too many then end at once.
    pub(super) fn row_schedules(&mut self, thread: I<'c>) -> Why<()> {
        let e = self.e();
        let after = e.block("rows_done");
        let planned = self.plan.launch.schedule;
        let threads = self.threads(planned);
        if !self.plan.any_length {
            let fit = self.fit(threads, self.width());
            let wide = fit.as_ref().is_some_and(|f| f.width > 1);
            if let Some(aligned) = self.aligned.filter(|_| wide) {
                self.way(Some(aligned), planned, fit, thread, after)?;
                let fit = self.fit(threads, 1);
                self.way(None, planned, fit, thread, after)?;
            } else {
                self.way(None, planned, fit, thread, after)?;
            }
            e.at(after);
            return Ok(());
        }
        let n = self.count(&self.nest().inner)?;
        let waves_may = self.plan.waves_may;
        let mut fits = false;
        for width in if self.width() > 1 { vec![self.width(), 1] } else { vec![1] } {
            for schedule in [Schedule::WavePerPoint, Schedule::BlockPerPoint] {
                let threads = self.threads(schedule);
                let Some(fit) = self.fit(threads, width).filter(|_| waves_may || schedule == planned) else { continue };
                fits = true;
                let most = e.icmp(IP::SLE, n, e.c64(fit.capacity(threads)));
                let mut c = e.and(e.icmp(IP::SGT, n, e.c64(0)), most);
                if let Some(aligned) = self.aligned.filter(|_| width > 1) {
                    c = e.and(c, aligned);
                    let multiple = |of: i64| e.icmp(IP::EQ, e.and(n, e.c64(of - 1)), e.c64(0));
                    let whole = e.and(c, multiple(fit.strip(threads)));
                    self.way(Some(whole), schedule, Some(fit.clone().of_whole_strips()), thread, after)?;
                    c = e.and(c, multiple(i64::from(width)));
                }
                self.way(Some(c), schedule, Some(fit), thread, after)?;
            }
        }
        if waves_may && !fits {
            let short = e.icmp(IP::SLE, n, e.c64(WAVE_INNER));
            self.way(Some(short), Schedule::WavePerPoint, None, thread, after)?;
        }
        self.way(None, Schedule::BlockPerPoint, None, thread, after)?;
        e.at(after);
        Ok(())
    }

    /// Takes all points in this way where `cond` holds, and goes on to `after`; code for where it does not follows.
    fn way(
        &mut self,
        cond: Option<I<'c>>,
        schedule: Schedule,
        fit: Option<Fit>,
        thread: I<'c>,
        after: BasicBlock<'c>,
    ) -> Why<()> {
        let e = self.e();
        let (here, otherwise) = (e.block("way"), cond.map(|_| e.block("otherwise")));
        match cond.zip(otherwise) {
            Some((c, otherwise)) => e.cond_br(c, here, otherwise),
            None => e.br(here),
        };
        e.at(here);
        let saved = self.v.save();
        self.rows(schedule, fit, thread)?;
        self.v.restore(saved);
        e.br(after);
        if let Some(b) = otherwise {
            e.at(b);
        }
        Ok(())
    }

    /// Threads that share a point.
    fn threads(&self, schedule: Schedule) -> i64 {
        i64::from(if schedule == Schedule::WavePerPoint { self.w.arch.wave } else { self.plan.launch.block })
    }

    /// Points that a wave or a block shares.
    fn rows(&mut self, schedule: Schedule, fit: Option<Fit>, thread: I<'c>) -> Why<()> {
        let e = self.e();
        self.schedule = schedule;
        let threads = self.threads(schedule);
        let (group, per_block) = match schedule {
            Schedule::WavePerPoint => {
                let wave = self.w.arch.wave;
                (e.lshr(thread, e.c64(i64::from(wave.trailing_zeros()))), i64::from(self.plan.launch.block / wave))
            }
            _ => (e.c64(0), 1),
        };
        let within = e.and(thread, e.c64(threads - 1));
        let start = e.add(e.mul(self.block, e.c64(per_block)), group);
        let stride = e.c64(per_block * self.max_blocks());
        self.looped(start, self.points, stride, vec![], &mut |k, p, _| {
            k.point(p)?;
            k.shared_point(within, threads, None, fit.clone())?;
            Ok(vec![])
        })?;
        Ok(())
    }

    /// All phases of the current point, its inner space shared out between `threads` threads. Stores only where `inside` holds.
    pub(super) fn shared_point(
        &mut self,
        thread: I<'c>,
        threads: i64,
        inside: Option<I<'c>>,
        fit: Option<Fit>,
    ) -> Why<()> {
        let e = self.e();
        let nest = self.nest();
        let n = self.count(&nest.inner)?;
        let some = self.some_inner()?;
        let has_block = self.schedule != Schedule::WavePerPoint;
        // Rows in registers are not empty.
        let some = if fit.is_some() { e.i1().const_int(1, false) } else { some };
        if let Some(fit) = fit {
            self.hold(fit, thread, threads)?;
        }
        let mut n_reduced = 0;
        let mut after_store = false;
        for (p, phase) in nest.phases.iter().enumerate() {
            if after_store && has_block {
                self.w.barrier()?;
            }
            after_store = matches!(phase, Phase::Store { .. });
            match phase {
                Phase::Reduce(rs) => {
                    self.v.begin_phase(rs.iter().map(|r| r.value).collect(), std::iter::empty());
                    self.choose_kept(p);
                    let start = self.start(rs)?;
                    let own = self.guarded(some, start.clone(), &mut |k| {
                        k.v.hoist(FIXED)?;
                        k.strip_reduce(rs, n, thread, threads, &start)
                    })?;
                    let all = self.exchange(rs, own, n_reduced, thread, threads)?;
                    self.keep(rs, &all, &mut n_reduced);
                }
                Phase::Store { over_inner: true, stores } => {
                    let list: Vec<_> = stores.iter().enumerate().map(|(i, s)| ((p, i), s)).collect();
                    self.v.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
                    let go = inside.map_or(some, |i| e.and(i, some));
                    self.guarded(go, vec![], &mut |k| {
                        k.v.hoist(FIXED)?;
                        k.strip(n, thread, threads, vec![], &mut |k, q, width, _| {
                            k.store_lanes(Space::Inner, q, width, &list, n)?;
                            Ok(vec![])
                        })
                    })?;
                }
                Phase::Store { stores, .. } => {
                    let list: Vec<_> = stores.iter().collect();
                    self.v.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
                    let first = e.icmp(IP::EQ, thread, e.c64(0));
                    let go = inside.map_or(first, |i| e.and(i, first));
                    self.guarded(go, vec![], &mut |k| {
                        k.v.hoist(FIXED)?;
                        k.v.store_all(&list)?;
                        Ok(vec![])
                    })?;
                }
            }
        }
        self.release();
        // The next point uses the same shared memory.
        if has_block { self.w.barrier() } else { Ok(()) }
    }

    /// Takes the inner positions `thread, thread + threads, …` of `n`: runs of `width` neighbors while they are aligned, then single ones.
    /// `body` gets the position, how many neighbors, and a set of accumulators for each; the result are the sets of all.
    pub(super) fn strip(
        &mut self,
        n: I<'c>,
        thread: I<'c>,
        threads: i64,
        acc: Vec<Val<'c>>,
        body: &mut dyn FnMut(&mut Self, I<'c>, u32, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        if self.held.is_some() {
            return self.held_strip(thread, threads, acc, body);
        }
        let Some(aligned) = self.aligned else {
            return self.strip_by_rows(n, thread, threads, acc, body);
        };
        let width = i64::from(self.width());
        let wide = e.isel(aligned, e.and(n, e.c64(-width)), e.c64(0));
        let sets = acc.repeat(usize::try_from(width).unwrap_or(1));
        let from = e.mul(thread, e.c64(width));
        let w = self.width();
        let step = e.c64(threads.saturating_mul(width));
        let sets = self.looped(from, wide, step, sets, &mut |k, p, acc| body(k, p, w, acc))?;
        let (head, rest) = sets.split_at(acc.len());
        let from = e.add(wide, thread);
        let head = self.looped(from, n, e.c64(threads), head.to_vec(), &mut |k, p, acc| body(k, p, 1, acc))?;
        Ok(head.iter().chain(rest).copied().collect())
    }

    /// As [`Kernel::strip`], one position after the other; of columns several at once, each with accumulators of its own, so that as
    /// many loads are on their way.
    fn strip_by_rows(
        &mut self,
        n: I<'c>,
        thread: I<'c>,
        threads: i64,
        acc: Vec<Val<'c>>,
        body: &mut dyn FnMut(&mut Self, I<'c>, u32, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        let step = e.c64(threads);
        if self.schedule != Schedule::BlockPerColumns || acc.is_empty() {
            return self.looped(thread, n, step, acc, &mut |k, p, acc| body(k, p, 1, acc));
        }
        let n_acc = acc.len();
        let mut carried = acc.repeat((schedule::SUMS_AT_ONCE / n_acc).max(1));
        let at_once = i64::try_from(carried.len() / n_acc).unwrap_or(1);
        carried.push(thread.into());
        let to = e.sub(n, e.c64((at_once - 1) * threads));
        let mut sets = self.looped(thread, to, e.c64(at_once * threads), carried, &mut |k, p, acc| {
            let (mut out, mut at) = (Vec::new(), p);
            for set in acc[..acc.len() - 1].chunks(n_acc) {
                let here = k.v.save();
                out.extend(body(k, at, 1, set)?);
                k.v.restore(here);
                at = e.add(at, step);
            }
            out.push(at.into());
            Ok(out)
        })?;
        let from = sets.pop().ok_or("a loop lost its position")?.into_int_value();
        let rest = sets.split_off(n_acc);
        let head = self.looped(from, n, step, sets, &mut |k, p, acc| body(k, p, 1, acc))?;
        Ok(head.into_iter().chain(rest).collect())
    }

    /// Whether there is any inner point; nothing is read in front of the inner loops before that is known.
    pub(super) fn some_inner(&self) -> Why<I<'c>> {
        let e = self.e();
        let n = &self.nest().inner;
        let mut some = e.i1().const_int(1, false);
        for d in n {
            some = e.and(some, e.icmp(IP::SGT, self.v.dim(*d)?, e.c64(0)));
        }
        Ok(some)
    }
}
