//! Packing live ranges of static and symbolic sizes into one pool: the planner's core, on abstract intervals.
//!
//! 1. The linear scan ([`crate::plan_scan`]) runs at a few sample values of the symbols, under a few policies. Each run gives a
//!    relation (who lies below whom) that is free of overlap for *every* value of the symbols.
//! 2. Each relation is evaluated at all samples against the largest live sum there. The best one wins. Where no single one is within
//!    a few percent everywhere (sizes that grow differently: `b·s` against `b·h·s²`), up to four are kept, and the run takes the one with
//!    the least peak.
//! 3. The relation becomes offsets: `offset = max(end of those directly below)`, folded by dim facts where they decide.

use crate::plan_offsets::{OffsetId, OffsetPool};
use crate::plan_scan::{Choice, HIGH, LOWEST, Policy, Rng, Rule, SECOND, Side, Stack, live_sum, scan};
use tensor::{DimId, DimPool, Entity, Result, SymId};

/// A live range: `size` bytes are in use from time `start` to time `end`, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// First time.
    pub start: u32,
    /// Last time; not before `start`.
    pub end: u32,
    /// Bytes, already rounded up to the alignment; never negative.
    pub size: DimId,
}

/// One way to lay the intervals out; valid for every value of the symbols.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Offset of each interval.
    pub offsets: Vec<OffsetId>,
    /// Bytes needed.
    pub peak: OffsetId,
}

/// A value for each symbol, and what the packing needs there.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Symbols with values.
    pub values: Vec<(SymId, i64)>,
    /// The largest sum of sizes live at one time.
    pub live: i64,
    /// The least peak of the layouts.
    pub peak: i64,
}

/// The result of [`pack`].
#[derive(Clone, Debug, Default)]
pub struct Packing {
    /// Alternatives, all valid; a run takes the first with the least peak.
    pub layouts: Vec<Layout>,
    /// What was sampled to choose them.
    pub samples: Vec<Sample>,
    /// Why nothing is shared, when nothing is.
    pub separate: Option<String>,
}

/// Above this many intervals fewer policies are tried, and dim facts are not asked.
const MANY: usize = 20_000;
/// Pairings of symbol values that are drawn, how many samples are used at most, and below how many those with empty buffers count, too.
const DRAWN: usize = 60;
const MOST: usize = 18;
const FEWEST: usize = 6;
/// Most layouts kept.
const MAX_LAYOUTS: usize = 4;
/// A packing this close to the live sum at every sample is good enough.
const GOOD: f64 = 1.03;

/// Packs intervals.
///
/// # Errors
/// `Limit` when a size is beyond i64.
pub fn pack(dims: &mut DimPool, pool: &mut OffsetPool, intervals: &[Interval]) -> Result<Packing> {
    let spans: Vec<(u32, u32)> = intervals.iter().map(|i| (i.start, i.end.max(i.start))).collect();
    let is_zero = |i: &usize| dims.as_const(intervals[*i].size) == Some(0);
    let mut by_start: Vec<u32> = (0..intervals.len()).filter(|i| !is_zero(i)).map(|i| i as u32).collect();
    by_start.sort_by_key(|&i| (spans[i as usize].0, i));
    let mut by_end = by_start.clone();
    by_end.sort_by_key(|&i| (spans[i as usize].1, i));

    let mut samples = sample_sizes(dims, intervals);
    let lives: Vec<i64> = samples.iter().map(|s| live_sum(&spans, &by_start, &by_end, &s.1)).collect();
    let (mut stacks, mut separate) = (vec![], None);
    if samples.is_empty() {
        stacks.push(Stack::separate(&by_start, intervals.len()));
        separate = Some("the sizes cannot be evaluated at any sample of their symbols".to_string());
    } else {
        stacks = choose(&spans, &by_start, &samples, &lives);
    }

    let overflowed = dims.overflowed();
    let mut layouts = vec![];
    for s in &stacks {
        layouts.push(layout(dims, pool, intervals, s));
    }
    if !overflowed && dims.overflowed() {
        return Err(crate::plan::too_large(i64::MAX, 1));
    }
    let samples = samples.drain(..).zip(lives).map(|((values, sizes), live)| {
        let peak = stacks.iter().map(|s| s.offsets(&sizes).1).min().unwrap_or(0);
        Sample { values, live, peak }
    });
    Ok(Packing { layouts, samples: samples.collect(), separate })
}

/// Symbol values with the sizes there. Values are small primes and powers as real extents are, then pseudo-random pairings of
/// them; those at which a size is negative or cannot be evaluated are left out, and those at which one is 0 (a sequence shorter than
/// a window) where there are enough others: what is empty there says nothing of the layout where models are run.
fn sample_sizes(dims: &DimPool, intervals: &[Interval]) -> Vec<(Vec<(SymId, i64)>, Vec<i64>)> {
    const TYPICAL: [i64; 10] = [1, 2, 3, 7, 16, 61, 128, 211, 384, 640];
    let mut distinct: Vec<DimId> = intervals.iter().map(|i| i.size).collect();
    distinct.sort();
    distinct.dedup();
    let mut syms: Vec<SymId> = distinct.iter().flat_map(|&d| dims.symbols_of(d)).collect();
    syms.sort();
    syms.dedup();
    let fit = |s: SymId, v: i64| {
        let f = dims.sym(s);
        let m = f.multiple_of.max(1);
        let v = v.clamp(f.lo.max(1), f.hi.max(1));
        let up = v.checked_add(m - 1).map_or(v, |x| x / m * m);
        if up > f.hi { v / m * m } else { up }
    };
    let mut picks: Vec<Vec<i64>> = vec![];
    if syms.is_empty() {
        picks.push(vec![]);
    } else {
        for v in [7, 61, 384, 1] {
            picks.push(syms.iter().map(|&s| fit(s, v)).collect());
        }
        let mut rng = Rng(1);
        let n = if intervals.len() > MANY { 2 } else { DRAWN };
        for _ in 0..n {
            picks.push(syms.iter().map(|&s| fit(s, TYPICAL[(rng.next() % 10) as usize])).collect());
        }
    }
    let (mut out, mut empty): (Vec<(Vec<(SymId, i64)>, Vec<i64>)>, Vec<_>) = (vec![], vec![]);
    for p in picks {
        if out.len() == MOST {
            break;
        }
        let values: Vec<(SymId, i64)> = syms.iter().copied().zip(p).collect();
        if out.iter().chain(&empty).any(|(v, _)| *v == values) {
            continue;
        }
        let env = |s: SymId| values.iter().find(|(x, _)| *x == s).map(|(_, v)| *v);
        let sizes: Option<Vec<i64>> =
            distinct.iter().map(|&d| dims.eval(d, &env).ok().filter(|&v| (0..=i64::MAX / 4).contains(&v))).collect();
        let Some(sizes) = sizes else { continue };
        let of = |d: DimId| distinct.binary_search(&d).map_or(0, |i| sizes[i]);
        let all = intervals.iter().map(|i| of(i.size)).collect();
        let never = |d: DimId| dims.as_const(d) == Some(0);
        let is_whole = distinct.iter().zip(&sizes).all(|(&d, &size)| size > 0 || never(d));
        if is_whole { &mut out } else { &mut empty }.push((values, all));
    }
    let lacking = FEWEST.saturating_sub(out.len());
    out.extend(empty.into_iter().take(lacking));
    out
}

/// A scan's result, and its peak over the live sum at each sample.
struct Found {
    stack: Stack,
    choices: Vec<Choice>,
    ratios: Vec<f64>,
}

/// The relations to keep, best first.
fn choose(
    spans: &[(u32, u32)],
    by_start: &[u32],
    samples: &[(Vec<(SymId, i64)>, Vec<i64>)],
    lives: &[i64],
) -> Vec<Stack> {
    let n = by_start.len().max(1);
    // Addresses must differ even where a size happens to be 0 at the sample.
    let sizes: Vec<Vec<i64>> = samples.iter().map(|(_, s)| s.iter().map(|&x| x.max(1)).collect()).collect();
    let at = |i: usize, rule: Rule| -> Found {
        let (stack, choices) = scan(spans, by_start, &sizes[i], lives[i], rule);
        let ratio = |(x, &live): (&(_, Vec<i64>), &i64)| stack.offsets(&x.1).1 as f64 / live.max(1) as f64;
        let ratios = samples.iter().zip(lives).map(ratio).collect();
        Found { stack, choices, ratios }
    };
    let worst = |r: &[f64]| r.iter().copied().fold(0.0, f64::max);

    let mut found: Vec<Found> = vec![];
    // About this many scans in all.
    let budget = if n > MANY { 3 } else { (1_000_000 / n).min(1500) };
    let mut policies: Vec<Policy> = vec![];
    for cap in [true, false] {
        for lowest in if n <= MANY / 4 { &[false, true][..] } else { &[false] } {
            policies.extend([Side::Near, Side::Life, Side::Low].map(|side| Policy { side, cap, lowest: *lowest }));
        }
    }
    'search: for &policy in &policies {
        for i in 0..samples.len() {
            let f = at(i, Rule::Policy(policy));
            let perfect = worst(&f.ratios) <= 1.0;
            found.push(f);
            if found.len() >= budget || perfect {
                break 'search;
            }
        }
    }
    let mut least = vec![f64::INFINITY; samples.len()];
    for f in &found {
        least.iter_mut().zip(&f.ratios).for_each(|(a, b)| *a = a.min(*b));
    }
    // Where no policy comes near the live sum, a few decisions are turned at random, as long as that helps.
    let mut scans = found.len();
    let mut rng = Rng(2);
    let mut stuck = vec![false; samples.len()];
    while let Some(i) = (0..samples.len()).filter(|&i| !stuck[i]).max_by(|&a, &b| least[a].total_cmp(&least[b])) {
        if least[i] <= GOOD || scans >= budget || n > MANY {
            break;
        }
        stuck[i] = true;
        let Some(start) = found.iter().min_by(|a, b| a.ratios[i].total_cmp(&b.ratios[i])) else { break };
        let (mut choices, mut score) = (start.choices.clone(), start.ratios[i]);
        for _ in 0..budget / 4 {
            let mut next = choices.clone();
            for _ in 0..1 + rng.next() % 3 {
                let k = by_start[(rng.next() % n as u64) as usize] as usize;
                next[k] ^= [HIGH, HIGH, LOWEST, SECOND][(rng.next() % 4) as usize];
            }
            let f = at(i, Rule::Choices(&next));
            scans += 1;
            if f.ratios[i] <= score {
                choices = next;
                if f.ratios[i] < score {
                    score = f.ratios[i];
                    least.iter_mut().zip(&f.ratios).for_each(|(a, b)| *a = a.min(*b));
                    found.push(f);
                }
            }
            if score <= 1.0 || scans >= budget {
                break;
            }
        }
    }

    // Greedy: the one with the least worst ratio, then those that lower it.
    let mut kept: Vec<usize> = vec![];
    let mut least = vec![f64::INFINITY; samples.len()];
    while kept.len() < MAX_LAYOUTS {
        let with = |r: &[f64]| -> (f64, f64) {
            let m: Vec<f64> = least.iter().zip(r).map(|(a, b)| a.min(*b)).collect();
            (worst(&m), m.iter().sum())
        };
        let candidates = found.iter().enumerate().map(|(k, f)| (with(&f.ratios), k));
        let Some(((w, _), k)) = candidates.min_by(|a, b| a.0.0.total_cmp(&b.0.0).then(a.0.1.total_cmp(&b.0.1))) else {
            break;
        };
        let now = worst(&least);
        if !kept.is_empty() && (now <= GOOD || w > now - 0.01) {
            break;
        }
        least = least.iter().zip(&found[k].ratios).map(|(a, b)| a.min(*b)).collect();
        kept.push(k);
    }
    kept.into_iter().map(|k| found[k].stack.clone()).collect()
}

/// Offsets as expressions.
fn layout(dims: &mut DimPool, pool: &mut OffsetPool, intervals: &[Interval], s: &Stack) -> Layout {
    let prove = s.order.len() <= MANY;
    let zero = dims.constant(0);
    let zero = pool.dim(zero);
    let mut offsets = vec![zero; intervals.len()];
    let mut ends = vec![zero; intervals.len()];
    let mut covered = vec![false; intervals.len()];
    for &i in &s.order {
        let below = s.below(i);
        below.iter().for_each(|&b| covered[b as usize] = true);
        let o = pool.max(dims, below.iter().map(|&b| ends[b as usize]), prove);
        offsets[i as usize] = o;
        ends[i as usize] = pool.add(dims, o, intervals[i as usize].size);
    }
    let tops: Vec<OffsetId> = s.order.iter().filter(|&&i| !covered[i as usize]).map(|&i| ends[i as usize]).collect();
    let peak = max_tree(dims, pool, tops, prove);
    Layout { offsets, peak }
}

/// The maximum of many: pairwise in a tree, so that lists stay short.
fn max_tree(dims: &mut DimPool, pool: &mut OffsetPool, mut os: Vec<OffsetId>, prove: bool) -> OffsetId {
    os.sort();
    os.dedup();
    while os.len() > 4 {
        let mut next = Vec::with_capacity(os.len() / 4 + 1);
        for c in os.chunks(4) {
            next.push(pool.max(dims, c.iter().copied(), prove));
        }
        next.sort();
        next.dedup();
        os = next;
    }
    pool.max(dims, os, prove)
}

impl Packing {
    /// Offsets and peak for these symbol values, as a run computes them.
    ///
    /// # Errors
    /// `Shape` when a symbol has no value or a size cannot be computed.
    pub fn at(
        &self,
        dims: &DimPool,
        pool: &OffsetPool,
        env: &impl Fn(SymId) -> Option<i64>,
    ) -> Result<(Vec<i64>, i64)> {
        let all = pool.eval_all(dims, env)?;
        let best = self.layouts.iter().min_by_key(|l| all[l.peak.index()]);
        Ok(best.map_or_else(Default::default, |l| {
            (l.offsets.iter().map(|o| all[o.index()]).collect(), all[l.peak.index()])
        }))
    }
}
