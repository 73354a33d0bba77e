//! Extraction: one node for every class that is needed, at the least cost with shared work counted once.
//!
//! 1. Classes are ranked: strongly connected groups in topological order, inside a group in the order in which they become
//!    computable. A node may be chosen only when its operands rank below its class, so the result is acyclic.
//! 2. In rank order each class takes its cheapest node: alternatives are compared by the cost of their cones, down to
//!    where all of them share (so that depth does not matter). What the source uses several times counts in parts.
//! 3. With the reference counts of the result, each live class is reconsidered: what would be gained and lost. Repeated
//!    while it helps, at most [`PASSES`] times.

use crate::facts::Graph;
use crate::lang::{ENode, Head};
use bumpalo::Bump;
use egg::{Id, Language};
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BinaryHeap;

/// Classes looked at when comparing the cones of one class's alternatives.
pub const CONE_LIMIT: usize = 256;
/// Rounds of local improvement.
pub const PASSES: usize = 4;

/// A chosen graph.
#[derive(Clone, Debug)]
pub struct Extraction {
    /// The node of each class needed.
    pub choice: FxHashMap<Id, ENode>,
    /// The classes needed, operands first.
    pub order: Vec<Id>,
    /// Sum of the costs of what is chosen, as counted during improvement.
    pub cost: u64,
    /// Choices changed by local improvement.
    pub improved: usize,
}

struct Alt<'e> {
    node: &'e ENode,
    kids: &'e [usize],
    cost: u64,
    /// Whether the source graph has this node: preferred between equals.
    source: bool,
}

struct Class<'e> {
    id: Id,
    alts: &'e [Alt<'e>],
    /// Its elements are known as dims: it costs nothing and needs nothing at run time.
    free: bool,
    /// Uses in the source graph.
    uses: u64,
}

/// Extracts `roots`. `cost` prices a node of a class, `source` says whether the source graph has it, `uses` how often the
/// source graph uses a class.
pub fn extract(
    eg: &Graph,
    roots: &[Id],
    cost: &dyn Fn(Id, &ENode) -> u64,
    source: &dyn Fn(Id, &ENode) -> bool,
    uses: &dyn Fn(Id) -> u32,
) -> Extraction {
    let arena = Bump::new();
    let classes = reachable(&arena, eg, roots, cost, source, uses);
    let rank = rank(&classes);
    let mut by_rank: Vec<usize> = (0..classes.len()).filter(|&c| rank[c] != usize::MAX).collect();
    by_rank.sort_by_key(|&c| rank[c]);
    let allowed = |c: usize, a: &Alt<'_>| a.kids.iter().all(|&k| rank[k] < rank[c]);
    let mut choice: Vec<usize> = vec![usize::MAX; classes.len()];
    for &c in &by_rank {
        let alts: SmallVec<[usize; 8]> =
            (0..classes[c].alts.len()).filter(|&i| allowed(c, &classes[c].alts[i])).take(64).collect();
        choice[c] = cheapest(&classes, &rank, &choice, c, &alts);
    }

    // Reference counts of the chosen graph.
    let index: FxHashMap<Id, usize> = classes.iter().enumerate().map(|(i, c)| (c.id, i)).collect();
    let mut s = State { classes: &classes, choice, refs: vec![0; classes.len()] };
    let mut total: i128 = 0;
    for &r in roots {
        total += s.acquire(index[&eg.find(r)]);
    }
    let mut improved = 0;
    for _ in 0..PASSES {
        let before = improved;
        for &c in &by_rank {
            if s.refs[c] == 0 || classes[c].alts.len() < 2 || classes[c].free {
                continue;
            }
            for i in 0..classes[c].alts.len() {
                if i == s.choice[c] || !allowed(c, &classes[c].alts[i]) {
                    continue;
                }
                let old = s.choice[c];
                // First take what the new node needs, then give back what the old one needed: shared work stays.
                let gain = s.take(c, i) - s.give(c, old);
                if gain < 0 {
                    s.choice[c] = i;
                    total += gain;
                    improved += 1;
                } else {
                    s.take(c, old);
                    s.give(c, i);
                }
            }
        }
        if improved == before {
            break;
        }
    }

    // What is needed, operands first (free classes need their operands in the graph, though not at run time).
    let mut live = vec![false; classes.len()];
    let mut stack: Vec<usize> = roots.iter().map(|&r| index[&eg.find(r)]).collect();
    while let Some(c) = stack.pop() {
        if !std::mem::replace(&mut live[c], true) {
            stack.extend(classes[c].alts[s.choice[c]].kids);
        }
    }
    let order: Vec<usize> = by_rank.into_iter().filter(|&c| live[c]).collect();
    Extraction {
        choice: order.iter().map(|&c| (classes[c].id, classes[c].alts[s.choice[c]].node.clone())).collect(),
        order: order.iter().map(|&c| classes[c].id).collect(),
        cost: u64::try_from(total.max(0)).unwrap_or(u64::MAX),
        improved,
    }
}

/// Every class reachable through any alternative, in order of id, with alternatives resolved to positions.
fn reachable<'e>(
    arena: &'e Bump,
    eg: &'e Graph,
    roots: &[Id],
    cost: &dyn Fn(Id, &ENode) -> u64,
    source: &dyn Fn(Id, &ENode) -> bool,
    uses: &dyn Fn(Id) -> u32,
) -> Vec<Class<'e>> {
    let mut seen: FxHashMap<Id, usize> = FxHashMap::default();
    let mut stack: Vec<Id> = roots.iter().map(|&r| eg.find(r)).collect();
    let mut ids = Vec::new();
    while let Some(id) = stack.pop() {
        if seen.insert(id, 0).is_none() {
            ids.push(id);
            eg[id].nodes.iter().for_each(|n| n.for_each(|k| stack.push(eg.find(k))));
        }
    }
    ids.sort_unstable();
    ids.iter().enumerate().for_each(|(i, &id)| {
        seen.insert(id, i);
    });
    let class = |&id: &Id| {
        let c = &eg[id];
        let mut nodes: Vec<&ENode> = c.nodes.iter().collect();
        // A constant is taken wherever there is one.
        if let Some(k) = nodes.iter().position(|n| matches!(n.head, Head::Const(_) | Head::Leaf(_))) {
            nodes = vec![nodes[k]];
        }
        let alts = nodes.into_iter().map(|node| Alt {
            node,
            kids: arena.alloc_slice_fill_iter(node.kids.iter().map(|&k| seen[&eg.find(k)])),
            cost: cost(id, node),
            source: source(id, node),
        });
        Class {
            id,
            alts: arena.alloc_slice_fill_iter(alts),
            free: c.data.values.is_some(),
            uses: uses(id).max(1).into(),
        }
    };
    ids.iter().map(class).collect()
}

/// Ranks: strongly connected groups in topological order (operands first); inside a group, as classes become computable.
fn rank(classes: &[Class<'_>]) -> Vec<usize> {
    let n = classes.len();
    const NONE: usize = usize::MAX;
    let mut needs = DiGraph::<(), (), u32>::with_capacity(n, n);
    (0..n).for_each(|_| {
        needs.add_node(());
    });
    let at = |c: usize| NodeIndex::<u32>::new(c);
    for (c, class) in classes.iter().enumerate() {
        class.alts.iter().flat_map(|a| a.kids).for_each(|&k| {
            needs.update_edge(at(c), at(k), ());
        });
    }
    // Groups come operands first.
    let groups = tarjan_scc(&needs).into_iter().map(|g| {
        let mut g: Vec<usize> = g.into_iter().map(NodeIndex::index).collect();
        g.sort_unstable();
        g
    });
    let mut rank = vec![NONE; n];
    let mut at = 0;
    for group in groups {
        let mut left = group;
        while !left.is_empty() {
            let ready: Vec<usize> = left
                .iter()
                .copied()
                .filter(|&c| classes[c].alts.iter().any(|a| a.kids.iter().all(|&k| rank[k] != NONE)))
                .collect();
            if ready.is_empty() {
                break; // only reachable through itself: not computable, and never needed
            }
            for &c in &ready {
                rank[c] = at;
                at += 1;
            }
            left.retain(|c| !ready.contains(c));
        }
    }
    rank
}

/// The alternative with the cheapest cone.
fn cheapest(classes: &[Class<'_>], rank: &[usize], choice: &[usize], c: usize, alts: &[usize]) -> usize {
    if alts.len() < 2 {
        return alts.first().copied().unwrap_or(usize::MAX);
    }
    let full = if alts.len() == 64 { u64::MAX } else { (1u64 << alts.len()) - 1 };
    let mut cost: Vec<u64> = alts.iter().map(|&i| classes[c].alts[i].cost).collect();
    let mut mask: FxHashMap<usize, u64> = FxHashMap::default();
    let mut heap: BinaryHeap<(usize, usize)> = BinaryHeap::new();
    let mut partial = 0usize;
    let push = |k: usize,
                m: u64,
                heap: &mut BinaryHeap<(usize, usize)>,
                mask: &mut FxHashMap<usize, u64>,
                partial: &mut usize| {
        let alt = &classes[k].alts[choice[k]];
        if classes[k].free || (alt.kids.is_empty() && alt.cost == 0) {
            return;
        }
        let e = mask.entry(k).or_insert_with(|| {
            heap.push((rank[k], k));
            *partial += 1;
            0
        });
        if *e != full && *e | m == full {
            *partial -= 1;
        }
        *e |= m;
    };
    for (b, &i) in alts.iter().enumerate() {
        for &k in classes[c].alts[i].kids {
            push(k, 1 << b, &mut heap, &mut mask, &mut partial);
        }
    }
    let mut looked = 0;
    while partial > 0 && looked < CONE_LIMIT {
        let Some((_, k)) = heap.pop() else { break };
        looked += 1;
        let m = mask[&k];
        if m != full {
            partial -= 1;
            for (b, x) in cost.iter_mut().enumerate() {
                if m & (1 << b) != 0 {
                    *x = x.saturating_add(classes[k].alts[choice[k]].cost / classes[k].uses);
                }
            }
        }
        for &kk in classes[k].alts[choice[k]].kids {
            push(kk, m, &mut heap, &mut mask, &mut partial);
        }
    }
    let best = (0..alts.len()).min_by_key(|&b| (cost[b], !classes[c].alts[alts[b]].source, b));
    best.map_or(usize::MAX, |b| alts[b])
}

struct State<'a, 'e> {
    classes: &'a [Class<'e>],
    choice: Vec<usize>,
    refs: Vec<u32>,
}

impl State<'_, '_> {
    /// Adds one use of class `c`; the cost of what becomes live.
    fn acquire(&mut self, c: usize) -> i128 {
        let (mut cost, mut stack) = (0, vec![c]);
        while let Some(c) = stack.pop() {
            self.refs[c] += 1;
            if self.refs[c] == 1 && !self.classes[c].free {
                let a = &self.classes[c].alts[self.choice[c]];
                cost += i128::from(a.cost);
                stack.extend(a.kids);
            }
        }
        cost
    }
    /// Removes one use of class `c`; the cost of what is no longer live.
    fn release(&mut self, c: usize) -> i128 {
        let (mut cost, mut stack) = (0, vec![c]);
        while let Some(c) = stack.pop() {
            self.refs[c] -= 1;
            if self.refs[c] == 0 && !self.classes[c].free {
                let a = &self.classes[c].alts[self.choice[c]];
                cost += i128::from(a.cost);
                stack.extend(a.kids);
            }
        }
        cost
    }
    /// The cost of using node `i` in live class `c`.
    fn take(&mut self, c: usize, i: usize) -> i128 {
        let kids = self.classes[c].alts[i].kids;
        kids.iter().fold(i128::from(self.classes[c].alts[i].cost), |a, &k| a + self.acquire(k))
    }
    /// What no longer using node `i` in live class `c` gives back.
    fn give(&mut self, c: usize, i: usize) -> i128 {
        let kids = self.classes[c].alts[i].kids;
        kids.iter().fold(i128::from(self.classes[c].alts[i].cost), |a, &k| a + self.release(k))
    }
}

/// Checks an extraction against the e-graph alone: each choice is a node of its class, operands are chosen and come first,
/// roots are there, and the cost is the sum over what is live.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(eg: &Graph, roots: &[Id], x: &Extraction, cost: &dyn Fn(Id, &ENode) -> u64) -> Result<(), String> {
    let mut place: FxHashMap<Id, usize> = FxHashMap::default();
    for (i, &id) in x.order.iter().enumerate() {
        let node = x.choice.get(&id).ok_or_else(|| format!("class {id} has no choice"))?;
        let canon = node.clone().map_children(|k| eg.find(k));
        if eg.lookup(canon).map(|k| eg.find(k)) != Some(eg.find(id)) {
            return Err(format!("{node:?} is not in class {id}"));
        }
        for &k in &node.kids {
            if !place.contains_key(&eg.find(k)) {
                return Err(format!("operand {k} of class {id} does not come before it"));
            }
        }
        if place.insert(eg.find(id), i).is_some() {
            return Err(format!("class {id} is chosen twice"));
        }
    }
    if let Some(r) = roots.iter().find(|&&r| !place.contains_key(&eg.find(r))) {
        return Err(format!("root {r} is not extracted"));
    }
    let mut live: Vec<bool> = vec![false; x.order.len()];
    roots.iter().for_each(|&r| live[place[&eg.find(r)]] = true);
    let mut sum: u64 = 0;
    for (i, &id) in x.order.iter().enumerate().rev() {
        if live[i] && eg[id].data.values.is_none() {
            sum = sum.saturating_add(cost(id, &x.choice[&id]));
            x.choice[&id].for_each(|k| live[place[&eg.find(k)]] = true);
        }
    }
    if sum != x.cost {
        return Err(format!("the cost is {sum}, not {}", x.cost));
    }
    Ok(())
}
