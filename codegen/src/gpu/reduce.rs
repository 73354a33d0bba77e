//! Reductions: what a thread starts from and takes up, and how the parts of a wave and of a block become one.

use crate::emit::I;
use crate::gpu::kernel::{Kernel, Space};
use crate::gpu::wave::Shared;
use crate::nest::reduce::{combine, identity, is_arg};
use crate::nest::values::Reduced;
use crate::scalar::{self, Val, Why};
use inkwell::{FloatPredicate as FP, IntPredicate as IP};
use ir::nest::{BinOp, Combiner, Phase, Reduction};
use kernels::gpu::Schedule;
use tensor::DType;

impl<'c> Kernel<'_, '_, 'c> {
    /// Arrays in shared memory, by reduction.
    pub(super) fn arrays(&self) -> Vec<Vec<Shared<'c>>> {
        let n = match self.plan.launch.schedule {
            Schedule::BlockPerPoint => self.plan.launch.block / self.w.arch.wave,
            Schedule::BlockPerColumns => self.plan.launch.block,
            _ => return vec![],
        };
        let mut out = Vec::new();
        for p in &self.nest().phases {
            let Phase::Reduce(rs) = p else { continue };
            for r in rs {
                let name = |what: &str| format!("{}_{what}{}", self.def.name, out.len());
                let mut arrays = vec![self.w.shared(&name("value"), self.nest().expr_dtype(r.value), n)];
                if is_arg(r.combiner) {
                    arrays.push(self.w.shared(&name("at"), DType::I64, n));
                }
                out.push(arrays);
            }
        }
        out
    }

    pub(super) fn start(&self, rs: &[Reduction]) -> Why<Vec<Val<'c>>> {
        let mut out = Vec::new();
        for r in rs {
            out.extend(identity(self.e(), r.combiner, self.nest().expr_dtype(r.value))?);
        }
        Ok(out)
    }
    /// One more element, at the current point, of each reduction.
    pub(super) fn accumulate(&self, rs: &[Reduction], acc: &[Val<'c>]) -> Why<Vec<Val<'c>>> {
        let mut out = Vec::new();
        let mut at = 0;
        for r in rs {
            let n = 1 + usize::from(is_arg(r.combiner));
            let v = self.v.value(r.value)?;
            let d = self.nest().expr_dtype(r.value);
            out.extend(combine(self.e(), r.combiner, d, true, &acc[at..at + n], v, || self.v.position())?);
            at += n;
        }
        Ok(out)
    }
    /// Two partial results of each reduction.
    pub(super) fn merge(&self, rs: &[Reduction], a: &[Val<'c>], b: &[Val<'c>]) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        let mut out = Vec::new();
        let mut at = 0;
        for r in rs {
            let d = self.nest().expr_dtype(r.value);
            if !is_arg(r.combiner) {
                let no_position = || Err("a plain reduction has no position".to_string());
                out.extend(combine(e, r.combiner, d, true, &a[at..=at], b[at], no_position)?);
                at += 1;
                continue;
            }
            // Of equals the first position, of NaNs too: the order of merging does not matter.
            let op = if r.combiner == Combiner::ArgMax { BinOp::Gt } else { BinOp::Lt };
            let (x, y) = (a[at], b[at]);
            let (i, j) = (a[at + 1].into_int_value(), b[at + 1].into_int_value());
            let mut better = scalar::binary(e, op, y, x, d)?.into_int_value();
            let mut equal = scalar::binary(e, BinOp::Eq, x, y, d)?.into_int_value();
            if d.is_float() {
                let (x, y) = (x.into_float_value(), y.into_float_value());
                better = e.or(better, e.and(e.is_nan(y), e.fcmp(FP::ORD, x, x)));
                equal = e.or(equal, e.and(e.is_nan(x), e.is_nan(y)));
            }
            let take = e.or(better, e.and(equal, e.icmp(IP::SLT, j, i)));
            out.extend([e.sel(take, y, x), e.isel(take, j, i).into()]);
            at += 2;
        }
        Ok(out)
    }
    /// Makes the results of a phase readable by the later ones.
    pub(super) fn keep(&mut self, rs: &[Reduction], acc: &[Val<'c>], n_reduced: &mut usize) {
        let mut at = 0;
        for r in rs {
            let arg = usize::from(is_arg(r.combiner));
            self.v.reduced[*n_reduced] = Some(Reduced::Value(acc[at + arg]));
            at += 1 + arg;
            *n_reduced += 1;
        }
    }

    /// What one thread reduces.
    pub(super) fn strip_reduce(
        &mut self,
        rs: &[Reduction],
        n: I<'c>,
        thread: I<'c>,
        threads: i64,
        start: &[Val<'c>],
    ) -> Why<Vec<Val<'c>>> {
        let n_acc = start.len();
        self.strip(n, thread, threads, start.to_vec(), &mut |k, q, width, acc| {
            let mut out = vec![];
            k.lanes(Space::Inner, q, width, n, &mut |k, lane| {
                out.extend(k.accumulate(rs, &acc[lane * n_acc..(lane + 1) * n_acc])?);
                Ok(())
            })?;
            Ok(out)
        })
        .and_then(|acc| self.merge_all(rs, &acc, n_acc))
    }
    /// Merges accumulators that lie one after the other.
    fn merge_all(&self, rs: &[Reduction], acc: &[Val<'c>], n_acc: usize) -> Why<Vec<Val<'c>>> {
        let mut sets = acc.chunks(n_acc);
        let mut out = sets.next().unwrap_or(&[]).to_vec();
        for s in sets {
            out = self.merge(rs, &out, s)?;
        }
        Ok(out)
    }

    /// Combines the threads' parts; every thread gets the result.
    pub(super) fn exchange(
        &mut self,
        rs: &[Reduction],
        own: Vec<Val<'c>>,
        first: usize,
        thread: I<'c>,
        threads: i64,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.e();
        let arrays: Vec<_> = self.shared.iter().skip(first).take(rs.len()).flatten().copied().collect();
        let read = |k: &Self, at: I<'c>| -> Vec<Val<'c>> { arrays.iter().map(|a| k.w.get(a, at)).collect() };
        if self.plan.launch.schedule == Schedule::BlockPerColumns {
            for (a, v) in arrays.iter().zip(&own) {
                self.w.put(a, self.thread, *v);
            }
            self.w.barrier()?;
            let columns = self.plan.launch.vector;
            let column = e.urem_raw(self.thread, e.c32(columns));
            let mut all = read(self, column);
            for part in 1..u32::try_from(threads).unwrap_or(1) {
                let next = read(self, e.add(column, e.c32(part * columns)));
                all = self.merge(rs, &all, &next)?;
            }
            return Ok(all);
        }
        let wave = self.w.arch.wave;
        let lane = self.w.lane(self.thread);
        let mut all = own;
        let mut mask = wave / 2;
        while mask > 0 {
            let other: Vec<_> = all.iter().map(|v| self.w.shuffle_xor(*v, mask, lane)).collect();
            all = self.merge(rs, &all, &other)?;
            mask /= 2;
        }
        if self.schedule == Schedule::WavePerPoint {
            return Ok(all);
        }
        let _ = thread;
        let own_wave = e.lshr(self.thread, e.c32(wave.trailing_zeros()));
        self.guarded(e.icmp(IP::EQ, lane, e.c32(0)), vec![], &mut |k| {
            for (a, v) in arrays.iter().zip(&all) {
                k.w.put(a, own_wave, *v);
            }
            Ok(vec![])
        })?;
        self.w.barrier()?;
        let mut result = read(self, e.c32(0));
        for i in 1..self.plan.launch.block / wave {
            let next = read(self, e.c32(i));
            result = self.merge(rs, &result, &next)?;
        }
        Ok(result)
    }
}
