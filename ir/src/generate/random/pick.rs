//! Which row and element type comes next: the one drawn least often among those that an opset has.

use super::Pair;
use crate::cases::Random;
use crate::op::{OpDef, OpId, Registry};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tensor::DType;

/// Opsets that models may have: the oldest that is supported, and the newest.
const OPSETS: (i64, i64) = (7, 28);
/// Times a pair was not accepted that count as once drawn, so that what is hard to build does not block the rest.
const MISSES: u32 = 8;

/// Counts of pairs.
pub struct Pairs {
    registry: Arc<Registry>,
    all: Vec<(Pair, u32)>,
    at: FxHashMap<Pair, usize>,
    /// Added to the counts when the least is looked for.
    passed_over: Vec<u32>,
    misses: Vec<u32>,
    shared: Option<FxHashSet<Pair>>,
}

/// The element types that a row counts under: those of its first type variable; its tensors' own types where there are none.
pub fn dtypes(def: &OpDef) -> Vec<DType> {
    let list = def.dtypes.first().map_or(&[DType::F32][..], |(_, list)| list);
    list.iter().copied().filter(|&d| d != DType::String).collect()
}

impl Pairs {
    /// Nothing drawn.
    pub fn new(registry: &Arc<Registry>, shared: Option<FxHashSet<Pair>>) -> Pairs {
        let rows = registry
            .rows()
            .filter(|(_, d)| d.domain.is_empty() && d.reference.is_some() && !d.traits.random && d.until >= OPSETS.0);
        let all: Vec<(Pair, u32)> = rows.flat_map(|(id, d)| dtypes(d).into_iter().map(move |t| ((id, t), 0))).collect();
        let at = all.iter().enumerate().map(|(i, &(p, _))| (p, i)).collect();
        let n = all.len();
        Pairs { registry: registry.clone(), all, at, passed_over: vec![0; n], misses: vec![0; n], shared }
    }
    /// How often each was drawn.
    pub fn counts(&self) -> Vec<(Pair, u32)> {
        self.all.clone()
    }
    /// An opset at which a row has its meaning.
    pub fn opset(&self, row: OpId, random: &mut Random) -> i64 {
        let def = &self.registry[row];
        let (lo, hi) = (def.since.max(OPSETS.0), def.until.min(OPSETS.1));
        // Rows of long standing are drawn at opsets in wide use mostly.
        let (lo, hi) = match random.below(4) {
            0 => (lo, hi),
            _ => (lo.max(13.min(hi)), hi.min(22.max(lo))),
        };
        lo + i64::try_from(random.below(u64::try_from(hi - lo + 1).unwrap_or(1))).unwrap_or(0)
    }
    /// Whether another implementation runs it; also when that is not known.
    pub fn is_shared(&self, pair: Pair) -> bool {
        self.shared.as_ref().is_none_or(|s| s.contains(&pair))
    }
    /// Whether it is known what another implementation runs.
    pub fn known(&self) -> bool {
        self.shared.is_some()
    }
    /// Counts a pair that a finished model has.
    pub fn count(&mut self, pair: Pair) {
        if let Some(&i) = self.at.get(&pair) {
            self.all[i].1 += 1;
        }
    }
    /// A pair that a model could not be begun with.
    pub fn give_up(&mut self, pair: Pair) {
        if let Some(&i) = self.at.get(&pair) {
            self.passed_over[i] += 1;
        }
    }
    /// A pair that a node could not be made of.
    pub fn missed(&mut self, pair: Pair) {
        if let Some(&i) = self.at.get(&pair) {
            self.misses[i] += 1;
            if self.misses[i].is_multiple_of(MISSES) {
                self.passed_over[i] += 1;
            }
        }
    }
    /// The pair drawn least often; of shared ones, or of any.
    pub fn least(&self, shared: bool, random: &mut Random) -> Pair {
        self.least_of(random, |p| !shared || self.is_shared(p)).unwrap_or(self.all[0].0)
    }
    /// The pair drawn least often of those that an opset has; of shared ones, or of any.
    pub fn next(&self, opset: i64, shared: bool, random: &mut Random) -> Option<Pair> {
        // Sometimes any pair, so that the same ones do not always come together.
        let fits = |p: Pair| {
            let def = &self.registry[p.0];
            (def.since..=def.until).contains(&opset) && (!shared || self.is_shared(p))
        };
        if random.below(3) > 0 {
            return self.least_of(random, fits);
        }
        let start = random.below(self.all.len() as u64) as usize;
        let turned = self.all[start..].iter().chain(&self.all[..start]);
        turned.map(|&(p, _)| p).find(|&p| fits(p))
    }
    fn least_of(&self, random: &mut Random, fits: impl Fn(Pair) -> bool) -> Option<Pair> {
        let (mut best, mut least, mut equal) = (None, u32::MAX, 0);
        for (i, &(pair, n)) in self.all.iter().enumerate() {
            let n = n + self.passed_over[i];
            if n > least || !fits(pair) {
                continue;
            }
            equal = if n < least { 1 } else { equal + 1 };
            least = n;
            // Each of the equal ones with the same chance.
            if random.below(equal) == 0 {
                best = Some(pair);
            }
        }
        best
    }
}
