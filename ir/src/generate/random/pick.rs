//! Which row and element type comes next: the one drawn least often among those that an opset has.
//!
//! Models are of two kinds: those made of what another implementation runs, too, and those of anything. Each kind has its own count
//! of what it could not build, so that a pair that one kind never takes still comes in the other.

use super::Pair;
use crate::cases::Random;
use crate::op::{OpDef, OpId, Registry};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tensor::DType;

/// Opsets that models may have: the oldest that is supported, and the newest.
const OPSETS: (i64, i64) = (7, 28);
/// Opsets in wide use.
const COMMON: std::ops::RangeInclusive<i64> = 13..=22;
/// Opsets drawn, of which the one with the rarest pairs is taken.
const OFFERS: usize = 4;
/// Times a pair was not accepted that count as once drawn, so that what is hard to build does not block the rest.
const MISSES: u32 = 32;

/// What another implementation runs: rows and element types, each at the opsets at which it does.
#[derive(Clone, Default)]
pub struct Peer(FxHashMap<Pair, Vec<i64>>);

impl Peer {
    /// Adds a pair at an opset.
    pub fn insert(&mut self, pair: Pair, opset: i64) {
        self.0.entry(pair).or_default().push(opset);
    }
    /// Whether nothing is known: models of one node, which are made to ask.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Whether it runs a pair at an opset.
    pub fn runs(&self, pair: Pair, opset: i64) -> bool {
        self.opsets(pair).contains(&opset)
    }
    /// The opsets at which it runs a pair.
    pub fn opsets(&self, pair: Pair) -> &[i64] {
        self.0.get(&pair).map_or(&[], Vec::as_slice)
    }
}

/// Domains whose rows models are made of.
const DOMAINS: &[&str] = &["", "com.microsoft"];

/// Counts of pairs.
pub struct Pairs {
    registry: Arc<Registry>,
    all: Vec<(Pair, u32)>,
    at: FxHashMap<Pair, usize>,
    /// Of each kind of model, by whether it is shared: what is added to the counts when the least is looked for.
    passed_over: [Vec<u32>; 2],
    misses: [Vec<u32>; 2],
    peer: Option<Arc<Peer>>,
}

/// The element types that a row counts under: those of its first type variable; its tensors' own types where there are none.
pub fn dtypes(def: &OpDef) -> Vec<DType> {
    let list = def.dtypes.first().map_or(&[DType::F32][..], |(_, list)| list);
    list.iter().copied().filter(|&d| d != DType::String).collect()
}

impl Pairs {
    /// Nothing drawn. Of one domain alone, if that is given.
    pub fn new(registry: &Arc<Registry>, peer: Option<Peer>, domain: Option<&str>) -> Pairs {
        let of_domain = |d: &OpDef| domain.map_or(DOMAINS.contains(&d.domain), |domain| d.domain == domain);
        let rows = registry.rows().filter(|(_, d)| {
            of_domain(d) && d.reference.is_some() && !d.traits.random && (!d.domain.is_empty() || d.until >= OPSETS.0)
        });
        let all: Vec<(Pair, u32)> = rows.flat_map(|(id, d)| dtypes(d).into_iter().map(move |t| ((id, t), 0))).collect();
        let at = all.iter().enumerate().map(|(i, &(p, _))| (p, i)).collect();
        let n = all.len();
        let none = || [vec![0; n], vec![0; n]];
        Pairs { registry: registry.clone(), all, at, passed_over: none(), misses: none(), peer: peer.map(Arc::new) }
    }
    /// How often each was drawn.
    pub fn counts(&self) -> Vec<(Pair, u32)> {
        self.all.clone()
    }
    /// The opsets at which a row has its meaning.
    pub fn opsets(&self, row: OpId) -> std::ops::RangeInclusive<i64> {
        let def = &self.registry[row];
        // Versions of other domains are their own: such rows come at every opset.
        if !def.domain.is_empty() {
            return OPSETS.0..=OPSETS.1;
        }
        def.since.max(OPSETS.0)..=def.until.min(OPSETS.1)
    }
    /// An opset at which a row has its meaning; for a shared model, at which another implementation runs the pair.
    pub fn opset(&self, pair: Pair, shared: bool, random: &mut Random) -> i64 {
        let range = self.opsets(pair.0);
        let all: Vec<i64> = match &self.peer {
            Some(peer) if shared => peer.opsets(pair).to_vec(),
            _ => range.clone().collect(),
        };
        let any = |from: &[i64], random: &mut Random| from.get(random.below(from.len() as u64) as usize).copied();
        // Rows of long standing are drawn at opsets in wide use, or where there are others that came seldom.
        let usual: Vec<i64> = all.iter().copied().filter(|o| COMMON.contains(o)).collect();
        if !usual.is_empty() && random.below(3) == 0 {
            return any(&usual, random).unwrap_or(*range.end());
        }
        let drawn: Vec<i64> = (0..OFFERS).filter_map(|_| any(&all, random)).collect();
        let rarest = |&opset: &i64| self.rank(opset, shared);
        drawn.into_iter().min_by_key(rarest).unwrap_or(*range.end())
    }
    /// The count of the pair drawn least often at an opset, and how many others are as rare.
    fn rank(&self, opset: i64, shared: bool) -> (u32, std::cmp::Reverse<usize>) {
        let counts = || {
            let fits = self.all.iter().zip(&self.passed_over[usize::from(shared)]);
            fits.filter(|((p, _), _)| self.fits(*p, opset, shared)).map(|((_, n), passed)| n + passed)
        };
        let least = counts().min().unwrap_or(u32::MAX);
        (least, std::cmp::Reverse(counts().filter(|&n| n == least).count()))
    }
    /// Whether a model of this kind may have the pair at this opset.
    fn fits(&self, pair: Pair, opset: i64, shared: bool) -> bool {
        match &self.peer {
            Some(peer) if shared => peer.runs(pair, opset),
            _ => self.opsets(pair.0).contains(&opset),
        }
    }
    /// What another implementation runs, where that is known.
    pub fn peer(&self) -> Option<&Arc<Peer>> {
        self.peer.as_ref()
    }
    /// Whether a model of this kind may have the pair at some opset.
    fn serves(&self, pair: Pair, shared: bool) -> bool {
        !shared || self.peer.as_ref().is_none_or(|p| !p.opsets(pair).is_empty())
    }
    /// Counts a pair that a finished model has.
    pub fn count(&mut self, pair: Pair) {
        if let Some(&i) = self.at.get(&pair) {
            self.all[i].1 += 1;
        }
    }
    /// A pair that a model could not be begun with.
    pub fn give_up(&mut self, pair: Pair, shared: bool) {
        if let Some(&i) = self.at.get(&pair) {
            self.passed_over[usize::from(shared)][i] += 1;
        }
    }
    /// A pair that a node could not be made of.
    pub fn missed(&mut self, pair: Pair, shared: bool) {
        if let Some(&i) = self.at.get(&pair) {
            let misses = &mut self.misses[usize::from(shared)][i];
            *misses += 1;
            self.passed_over[usize::from(shared)][i] += u32::from(misses.is_multiple_of(MISSES));
        }
    }
    /// The pair drawn least often; of shared ones, or of any.
    pub fn least(&self, shared: bool, random: &mut Random) -> Pair {
        self.least_of(shared, random, |p| self.serves(p, shared)).unwrap_or(self.all[0].0)
    }
    /// The pair drawn least often of those that an opset has; of shared ones, or of any.
    pub fn next(&self, opset: i64, shared: bool, random: &mut Random) -> Option<Pair> {
        let fits = |p: Pair| self.fits(p, opset, shared);
        // Sometimes any pair, so that the same ones do not always come together.
        if random.below(8) > 0 {
            return self.least_of(shared, random, fits);
        }
        let start = random.below(self.all.len() as u64) as usize;
        let turned = self.all[start..].iter().chain(&self.all[..start]);
        turned.map(|&(p, _)| p).find(|&p| fits(p))
    }
    fn least_of(&self, shared: bool, random: &mut Random, fits: impl Fn(Pair) -> bool) -> Option<Pair> {
        let passed_over = &self.passed_over[usize::from(shared)];
        let (mut best, mut least, mut equal) = (None, u32::MAX, 0);
        for (&(pair, n), &passed) in self.all.iter().zip(passed_over) {
            let n = n + passed;
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
