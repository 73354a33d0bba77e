//! The linear scan on numbers: intervals are visited in start order and each is placed once, by best fit among the free gaps.
//!
//! Addresses are only the means: what the scan decides is who lies below whom. [`Stack`] keeps that relation between address
//! neighbors, and it alone gives the offsets: the offset of a buffer is the greatest end of those directly below it. Two buffers that
//! are live at once are always related through a chain of neighbors, so the offsets are free of overlap *whatever the sizes are*.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Where in a gap a buffer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// At its low end.
    Low,
    /// Long-lived ones at the low end, short-lived ones at the high end.
    Life,
    /// Beside the neighbor that dies at about the same time, so that their bytes become one gap again.
    Near,
}

/// What a scan decided for one interval; bits. The default is the low end of the best fit.
pub(crate) type Choice = u8;
/// The high end of the gap.
pub(crate) const HIGH: Choice = 1;
/// The lowest gap that fits.
pub(crate) const LOWEST: Choice = 2;
/// The gap after the best fit in size, if there is one.
pub(crate) const SECOND: Choice = 4;

/// How a scan decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Where in the gap.
    pub side: Side,
    /// Start with all bytes of the largest live sum as one gap, instead of growing as needed.
    pub cap: bool,
    /// The lowest gap that fits instead of the smallest.
    pub lowest: bool,
}

/// Where a scan's decisions come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule<'a> {
    /// A policy.
    Policy(Policy),
    /// A list, one for each interval; with all bytes of the largest live sum as one gap in the beginning.
    Choices(&'a [Choice]),
}

/// Who lies directly below whom.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stack {
    /// Interval indexes; whoever is below comes first.
    pub order: Vec<u32>,
    first: Vec<u32>,
    below: Vec<u32>,
}

impl Stack {
    fn new(mut order: Vec<u32>, n: usize, edges: &[(u32, u32)], addr: &[i64]) -> Stack {
        order.sort_by_key(|&i| (addr[i as usize], i));
        let mut first = vec![0u32; n + 1];
        edges.iter().for_each(|&(_, above)| first[above as usize + 1] += 1);
        for i in 0..n {
            first[i + 1] += first[i];
        }
        let mut fill = first.clone();
        let mut below = vec![0u32; edges.len()];
        for &(b, above) in edges {
            below[fill[above as usize] as usize] = b;
            fill[above as usize] += 1;
        }
        Stack { order, first, below }
    }
    /// Every interval on top of the one before: nothing shares bytes.
    pub fn separate(indexes: &[u32], n: usize) -> Stack {
        let edges: Vec<(u32, u32)> = indexes.windows(2).map(|w| (w[0], w[1])).collect();
        let mut addr = vec![0i64; n];
        indexes.iter().enumerate().for_each(|(k, &i)| addr[i as usize] = k as i64);
        Stack::new(indexes.to_vec(), n, &edges, &addr)
    }
    /// Those directly below `i`.
    pub fn below(&self, i: u32) -> &[u32] {
        &self.below[self.first[i as usize] as usize..self.first[i as usize + 1] as usize]
    }
    /// Offsets and peak for these sizes.
    pub fn offsets(&self, sizes: &[i64]) -> (Vec<i64>, i64) {
        let mut off = vec![0i64; sizes.len()];
        let mut peak = 0;
        for &i in &self.order {
            let ends = self.below(i).iter().map(|&b| off[b as usize].saturating_add(sizes[b as usize]));
            let o = ends.max().unwrap_or(0);
            off[i as usize] = o;
            peak = peak.max(o.saturating_add(sizes[i as usize]));
        }
        (off, peak)
    }
}

/// A small generator of pseudo-random numbers; the same everywhere.
pub(crate) struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The largest sum of sizes that are live at one time.
pub(crate) fn live_sum(spans: &[(u32, u32)], by_start: &[u32], by_end: &[u32], sizes: &[i64]) -> i64 {
    let (mut sum, mut best, mut e) = (0i64, 0i64, 0);
    for &i in by_start {
        while e < by_end.len() && spans[by_end[e] as usize].1 < spans[i as usize].0 {
            sum -= sizes[by_end[e] as usize];
            e += 1;
        }
        sum = sum.saturating_add(sizes[i as usize]);
        best = best.max(sum);
    }
    best
}

/// The scan's state: live blocks as a list in address order between two ends, and the gaps between them.
struct Scan<'a> {
    spans: &'a [(u32, u32)],
    sizes: &'a [i64],
    prev: Vec<u32>,
    next: Vec<u32>,
    addr: Vec<i64>,
    /// `(length, address, the block below)`
    gaps: BTreeSet<(i64, i64, u32)>,
    edges: Vec<(u32, u32)>,
    head: u32,
    tail: u32,
}

impl Scan<'_> {
    fn end(&self, b: u32) -> i64 {
        if b == self.head { 0 } else { self.addr[b as usize] + self.sizes[b as usize] }
    }
    /// The gap above `b` as an entry of `gaps`.
    fn gap(&self, b: u32) -> (i64, i64, u32) {
        let from = self.end(b);
        (self.addr[self.next[b as usize] as usize] - from, from, b)
    }
    fn remove(&mut self, b: u32) {
        let (p, q) = (self.prev[b as usize], self.next[b as usize]);
        let (below, above) = (self.gap(p), self.gap(b));
        self.gaps.remove(&below);
        self.gaps.remove(&above);
        self.next[p as usize] = q;
        self.prev[q as usize] = p;
        let joined = self.gap(p);
        if joined.0 > 0 {
            self.gaps.insert(joined);
        }
    }
    fn insert(&mut self, b: u32, gap: (i64, i64, u32), low: bool) {
        let p = gap.2;
        let q = self.next[p as usize];
        self.gaps.remove(&gap);
        self.addr[b as usize] = if low { gap.1 } else { gap.1 + gap.0 - self.sizes[b as usize] };
        self.prev[b as usize] = p;
        self.next[b as usize] = q;
        self.next[p as usize] = b;
        self.prev[q as usize] = b;
        for g in [self.gap(p), self.gap(b)] {
            if g.0 > 0 {
                self.gaps.insert(g);
            }
        }
        if p != self.head {
            self.edges.push((p, b));
        }
        if q != self.tail {
            self.edges.push((b, q));
        }
    }
    fn lowest(&self, size: i64) -> Option<(i64, i64, u32)> {
        let mut b = self.head;
        loop {
            let g = self.gap(b);
            if g.0 >= size {
                return Some(g);
            }
            b = self.next[b as usize];
            if b == self.tail {
                return None;
            }
        }
    }
}

/// Places the intervals of `by_start` (start order; `spans` are first and last time, both inclusive) with positive `sizes`.
/// `live` is the largest live sum for these sizes.
pub(crate) fn scan(
    spans: &[(u32, u32)],
    by_start: &[u32],
    sizes: &[i64],
    live: i64,
    rule: Rule,
) -> (Stack, Vec<Choice>) {
    let n = spans.len();
    let (head, tail) = (n as u32, n as u32 + 1);
    let mut s = Scan {
        spans,
        sizes,
        prev: vec![head; n + 2],
        next: vec![tail; n + 2],
        addr: vec![0; n + 2],
        gaps: BTreeSet::new(),
        edges: Vec::with_capacity(2 * n),
        head,
        tail,
    };
    let mut cap = if matches!(rule, Rule::Policy(Policy { cap: false, .. })) { 0 } else { live };
    s.addr[tail as usize] = cap;
    if cap > 0 {
        s.gaps.insert(s.gap(head));
    }
    let mut order: Vec<u32> = by_start.to_vec();
    // Of those that start together the largest goes first.
    order.sort_by_key(|&i| (spans[i as usize].0, Reverse(sizes[i as usize]), i));
    let last_time = spans.iter().map(|s| s.1).max().unwrap_or(0);
    let mut active: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
    let mut choices = vec![0; n];
    for &i in &order {
        let (start, end) = s.spans[i as usize];
        while let Some(&Reverse((e, b))) = active.peek() {
            if e >= start {
                break;
            }
            active.pop();
            s.remove(b);
        }
        let size = sizes[i as usize];
        let mut choice = match rule {
            Rule::Policy(p) if p.lowest => LOWEST,
            Rule::Policy(_) => 0,
            Rule::Choices(c) => c[i as usize],
        };
        let fit = if choice & LOWEST != 0 {
            s.lowest(size)
        } else {
            let mut fits = s.gaps.range((size, i64::MIN, 0)..).copied();
            let best = fits.next();
            if choice & SECOND != 0 { fits.next().or(best) } else { best }
        };
        let gap = fit.unwrap_or_else(|| {
            // Nothing fits: the topmost gap grows as much as it lacks.
            let top = s.prev[tail as usize];
            let old = s.gap(top);
            s.gaps.remove(&old);
            cap += size - old.0;
            s.addr[tail as usize] = cap;
            let grown = s.gap(top);
            s.gaps.insert(grown);
            grown
        });
        let high = match rule {
            Rule::Choices(_) => choice & HIGH != 0,
            Rule::Policy(p) => match p.side {
                Side::Low => false,
                Side::Life => (end - start) <= last_time / 8,
                Side::Near => {
                    let (p, q) = (gap.2, s.next[gap.2 as usize]);
                    let far = |b: u32| if b >= head { u32::MAX - end } else { spans[b as usize].1.abs_diff(end) };
                    far(p) > far(q)
                }
            },
        };
        choice = if high { choice | HIGH } else { choice & !HIGH };
        choices[i as usize] = choice;
        s.insert(i, gap, !high);
        active.push(Reverse((end, i)));
    }
    let Scan { edges, mut addr, .. } = s;
    addr.truncate(n);
    (Stack::new(order, n, &edges, &addr), choices)
}
