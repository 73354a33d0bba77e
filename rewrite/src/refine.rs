//! Shape refinement: a small e-graph over dim expressions. Equalities that guards state, with congruence and a few laws of
//! integer division, make equal extents equal ids; guards that follow from earlier ones go away.
//!
//! Sums and products need no rules: rebuilding through the pool's normal form joins what is equal in it.

use egg::{
    Analysis, DidMerge, EGraph, Id, Rewrite, RewriteScheduler, Runner, SearchMatches, Subst, Symbol, define_language,
    rewrite,
};
use ir::graph::{Guard, Rel};
use ir::{Module, Onnx, Type};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt;
use tensor::dims::{DimFolder, DimOp, Origin, Proof};
use tensor::{DimId, DimPool, Entity, SymId};

define_language! {
    /// A dim expression.
    enum Dim {
        Num(i64),
        "+" = Add([Id; 2]),
        "*" = Mul([Id; 2]),
        "floordiv" = FloorDiv([Id; 2]),
        "ceildiv" = CeilDiv([Id; 2]),
        "mod" = Mod([Id; 2]),
        "min" = Min([Id; 2]),
        "max" = Max([Id; 2]),
        Sym(Symbol),
    }
}

/// E-nodes of the dim e-graph.
pub const DIM_NODES: usize = 20_000;
/// Matches of one rule that are applied in a round: what one rule adds at once is bounded, too.
const DIM_MATCHES: usize = 4_000;
/// Terms of a product that is taken for the simplest form of something.
const MAX_TERMS: usize = 64;
/// Rounds of rules after each new fact.
pub const DIM_ROUNDS: usize = 4;
/// Guards used as facts; those beyond stay as they are.
pub const DIM_FACTS: usize = 256;

/// Steps of making bounds tighter after each inequality.
const ASSUME_STEPS: usize = 256;

/// What [`refine`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DimReport {
    /// Guards before.
    pub guards: usize,
    /// Guards that follow from the others or from the symbols' bounds.
    pub guards_removed: usize,
    /// Extents of values that became simpler or equal to another.
    pub dims_changed: usize,
    /// E-nodes.
    pub n_enodes: usize,
}

impl fmt::Display for DimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DimReport { guards, guards_removed, dims_changed, n_enodes } = self;
        writeln!(
            f,
            "dims       guards removed {guards_removed} of {guards}, {dims_changed} extents changed, {n_enodes} e-nodes"
        )
    }
}

/// What is known of symbols from the start.
#[derive(Clone, Default)]
struct Bounds {
    symbols: FxHashMap<Symbol, (i64, i64)>,
}

/// Bounds of a class, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    low: i64,
    high: i64,
    /// How often they got tighter.
    steps: u8,
}

/// How often bounds of a class get tighter. In a cycle, as in `x = max(0, x - 1)`, each round would take one more; wider bounds are right, too.
const MAX_TIGHTER: u8 = 64;

impl Range {
    const ALL: Range = Range::new(i64::MIN, i64::MAX);
    const fn new(low: i64, high: i64) -> Range {
        Range { low, high, steps: 0 }
    }
}

type DimGraph = EGraph<Dim, Bounds>;

impl Analysis<Dim> for Bounds {
    type Data = Range;
    fn make(eg: &mut DimGraph, n: &Dim, _: Id) -> Range {
        let r = |i: &Id| {
            let Range { low, high, .. } = eg[*i].data;
            (i128::from(low), i128::from(high))
        };
        let both = |a: &Id, b: &Id, f: &dyn Fn(i128, i128) -> i128| {
            let ((a0, a1), (b0, b1)) = (r(a), r(b));
            let c = [f(a0, b0), f(a0, b1), f(a1, b0), f(a1, b1)];
            Range::new(clamp(c.into_iter().min().unwrap_or(0)), clamp(c.into_iter().max().unwrap_or(0)))
        };
        match n {
            Dim::Num(c) => Range::new(*c, *c),
            Dim::Sym(s) => eg.analysis.symbols.get(s).map_or(Range::ALL, |&(low, high)| Range::new(low, high)),
            Dim::Add([a, b]) => both(a, b, &|x, y| x + y),
            Dim::Mul([a, b]) => both(a, b, &|x, y| x.saturating_mul(y)),
            Dim::Min([a, b]) => both(a, b, &|x, y| x.min(y)),
            Dim::Max([a, b]) => both(a, b, &|x, y| x.max(y)),
            Dim::FloorDiv([a, b]) if r(b).0 > 0 => both(a, b, &|x, y| x.div_euclid(y)),
            Dim::CeilDiv([a, b]) if r(b).0 > 0 => both(a, b, &|x, y| -(-x).div_euclid(y)),
            Dim::Mod([_, b]) if r(b).0 > 0 => Range::new(0, clamp(r(b).1 - 1)),
            _ => Range::ALL,
        }
    }
    fn merge(&mut self, a: &mut Range, b: Range) -> DidMerge {
        let steps = a.steps.max(b.steps);
        let (low, high) = (a.low.max(b.low), a.high.min(b.high));
        let tighter = (low, high) != (a.low, a.high) && a.steps < MAX_TIGHTER;
        *a = if tighter { Range { low, high, steps: MAX_TIGHTER.min(steps + 1) } } else { Range { steps, ..*a } };
        DidMerge(tighter, (a.low, a.high) != (b.low, b.high))
    }
    fn modify(eg: &mut DimGraph, id: Id) {
        let Range { low, high, .. } = eg[id].data;
        if low == high {
            let k = eg.add(Dim::Num(low));
            eg.union(id, k);
        }
    }
}

fn clamp(x: i128) -> i64 {
    i64::try_from(x).unwrap_or(if x < 0 { i64::MIN } else { i64::MAX })
}

fn positive(v: &'static str) -> impl Fn(&mut DimGraph, Id, &Subst) -> bool {
    let v = v.parse().ok();
    move |eg, _, s| v.is_some_and(|v| eg[s[v]].data.low > 0)
}

fn le(a: &'static str, b: &'static str) -> impl Fn(&mut DimGraph, Id, &Subst) -> bool {
    let (a, b) = (a.parse().ok(), b.parse().ok());
    move |eg, _, s| a.zip(b).is_some_and(|(a, b)| eg[s[a]].data.high <= eg[s[b]].data.low)
}

fn rules() -> Vec<Rewrite<Dim, Bounds>> {
    vec![
        // a·b / b = a and its remainder is 0, for b > 0
        rewrite!("div-mul"; "(floordiv (* ?a ?b) ?b)" => "?a" if positive("?b")),
        rewrite!("div-mul-left"; "(floordiv (* ?b ?a) ?b)" => "?a" if positive("?b")),
        rewrite!("ceildiv-mul"; "(ceildiv (* ?a ?b) ?b)" => "?a" if positive("?b")),
        rewrite!("ceildiv-mul-left"; "(ceildiv (* ?b ?a) ?b)" => "?a" if positive("?b")),
        rewrite!("div-self"; "(floordiv ?b ?b)" => "1" if positive("?b")),
        rewrite!("mod-mul"; "(mod (* ?a ?b) ?b)" => "0" if positive("?b")),
        rewrite!("mod-mul-left"; "(mod (* ?b ?a) ?b)" => "0" if positive("?b")),
        rewrite!("mod-self"; "(mod ?b ?b)" => "0" if positive("?b")),
        // ⌊⌊a / b⌋ / c⌋ = ⌊a / (b·c)⌋ for b, c > 0
        rewrite!("div-div"; "(floordiv (floordiv ?a ?b) ?c)" => "(floordiv ?a (* ?b ?c))" if positive("?b") if positive("?c")),
        rewrite!("ceildiv-ceildiv"; "(ceildiv (ceildiv ?a ?b) ?c)" => "(ceildiv ?a (* ?b ?c))" if positive("?b") if positive("?c")),
        rewrite!("ceildiv-one"; "(ceildiv ?a 1)" => "?a"),
        rewrite!("div-one"; "(floordiv ?a 1)" => "?a"),
        // min and max
        rewrite!("min-same"; "(min ?a ?a)" => "?a"),
        rewrite!("max-same"; "(max ?a ?a)" => "?a"),
        rewrite!("min-le"; "(min ?a ?b)" => "?a" if le("?a", "?b")),
        rewrite!("min-ge"; "(min ?a ?b)" => "?b" if le("?b", "?a")),
        rewrite!("max-le"; "(max ?a ?b)" => "?b" if le("?a", "?b")),
        rewrite!("max-ge"; "(max ?a ?b)" => "?a" if le("?b", "?a")),
        rewrite!("max-min"; "(max ?a (min ?a ?b))" => "?a"),
        rewrite!("min-max"; "(min ?a (max ?a ?b))" => "?a"),
    ]
}

/// Adds a dim to the e-graph.
struct ToGraph<'a>(&'a mut DimGraph);

impl DimFolder for ToGraph<'_> {
    type Out = Id;
    fn constant(&mut self, c: i64) -> Id {
        self.0.add(Dim::Num(c))
    }
    fn symbol(&mut self, s: SymId) -> Id {
        self.0.add(Dim::Sym(sym_name(s)))
    }
    fn binary(&mut self, op: DimOp, a: Id, b: Id) -> Id {
        self.0.add(match op {
            DimOp::Add => Dim::Add([a, b]),
            DimOp::Mul => Dim::Mul([a, b]),
            DimOp::FloorDiv => Dim::FloorDiv([a, b]),
            DimOp::CeilDiv => Dim::CeilDiv([a, b]),
            DimOp::Mod => Dim::Mod([a, b]),
            DimOp::Min => Dim::Min([a, b]),
            DimOp::Max => Dim::Max([a, b]),
        })
    }
}

fn sym_name(s: SymId) -> Symbol {
    Symbol::from(format!("s{}", s.index()))
}

/// The simplest expression of each class as a dim of the pool: fewest operations, symbols of graph inputs first, older
/// symbols first. A worklist from the leaves; classes and nodes in order of id.
struct Simplest {
    dim: FxHashMap<Id, DimId>,
}

impl Simplest {
    fn of(eg: &DimGraph, pool: &mut DimPool) -> Simplest {
        type Cost = (u64, u64);
        let mut best: FxHashMap<Id, (Cost, DimId)> = FxHashMap::default();
        let mut ids: Vec<Id> = eg.classes().map(|c| c.id).collect();
        ids.sort_unstable();
        loop {
            let mut changed = false;
            for &id in &ids {
                for n in &eg[id].nodes {
                    let Some((cost, dim)) = Self::node(eg, n, &best, pool) else { continue };
                    if best.get(&id).is_none_or(|(c, _)| cost < *c) {
                        best.insert(id, (cost, dim));
                        changed = true;
                    }
                }
            }
            if !changed {
                return Simplest { dim: best.into_iter().map(|(k, (_, d))| (k, d)).collect() };
            }
        }
    }
    fn node(
        eg: &DimGraph,
        n: &Dim,
        best: &FxHashMap<Id, ((u64, u64), DimId)>,
        pool: &mut DimPool,
    ) -> Option<((u64, u64), DimId)> {
        let (op, kids) = match n {
            Dim::Num(c) => return Some(((0, 0), pool.constant(*c))),
            Dim::Sym(s) => {
                let i: usize = s.as_str().get(1..)?.parse().ok()?;
                let s = SymId::new(i);
                let input = matches!(pool.sym(s).origin, Origin::Input { .. });
                return Some(((if input { 2 } else { 5 }, i as u64), pool.sym_dim(s)));
            }
            Dim::Add(k) => (DimOp::Add, k),
            Dim::Mul(k) => (DimOp::Mul, k),
            Dim::FloorDiv(k) => (DimOp::FloorDiv, k),
            Dim::CeilDiv(k) => (DimOp::CeilDiv, k),
            Dim::Mod(k) => (DimOp::Mod, k),
            Dim::Min(k) => (DimOp::Min, k),
            Dim::Max(k) => (DimOp::Max, k),
        };
        let ((a, da), (b, db)) = (best.get(&eg.find(kids[0]))?, best.get(&eg.find(kids[1]))?);
        // Products are kept as sums: a long one is not the simplest, and multiplying it out costs much.
        if op == DimOp::Mul && pool.n_terms(*da).saturating_mul(pool.n_terms(*db)) > MAX_TERMS {
            return None;
        }
        let step = if matches!(op, DimOp::Add | DimOp::Mul) { 1 } else { 3 };
        // A constant factor of zero and the like are simplified by the pool; division by zero stays an opaque term.
        // Where guards leave an extent 0 alone, it equals all its multiples: those beyond 64 bits are not simplest.
        Some(((a.0 + b.0 + step, a.1 + b.1), pool.checked(|p| p.binary(op, *da, *db))?))
    }
}

/// Every rule in every round, each with a bounded number of matches.
struct Bounded;

impl RewriteScheduler<Dim, Bounds> for Bounded {
    fn search_rewrite<'a>(
        &mut self,
        _: usize,
        eg: &DimGraph,
        rule: &'a Rewrite<Dim, Bounds>,
    ) -> Vec<SearchMatches<'a, Dim>> {
        rule.search_with_limit(eg, DIM_MATCHES)
    }
}

/// Saturates, then joins classes whose simplest forms are one dim, until nothing changes. A graph that is full stays as it is.
fn close(mut eg: DimGraph, pool: &mut DimPool) -> DimGraph {
    for _ in 0..DIM_ROUNDS {
        if eg.total_number_of_nodes() > DIM_NODES {
            break;
        }
        let runner = Runner::<Dim, Bounds>::new(Bounds::default())
            .with_egraph(eg)
            .with_scheduler(Bounded)
            .with_iter_limit(DIM_ROUNDS)
            .with_node_limit(DIM_NODES)
            .with_time_limit(std::time::Duration::from_secs(3600))
            .run(&rules());
        eg = runner.egraph;
        let simplest = Simplest::of(&eg, pool);
        let mut ids: Vec<(DimId, Id)> = simplest.dim.iter().map(|(&id, &d)| (d, id)).collect();
        ids.sort_unstable();
        let mut changed = false;
        for w in ids.windows(2) {
            if w[0].0 == w[1].0 {
                changed |= eg.union(w[0].1, w[1].1);
            }
        }
        eg.rebuild();
        if !changed {
            break;
        }
    }
    eg
}

/// Drops each guard `a ≤ b` for which another one, `c ≤ d`, leaves no more room: d - c ≤ b - a for every value of the symbols
/// (`1 ≤ s` where `3 ≤ s` is checked anyway). Only guards checked at the entry make others unnecessary.
fn weaker(pool: &mut DimPool, guards: &mut Vec<Guard>) {
    if guards.len() > DIM_FACTS {
        return;
    }
    let room: Vec<Option<DimId>> =
        guards.iter().map(|g| (g.rel == Rel::Le).then(|| pool.checked(|p| p.sub(g.rhs, g.lhs))).flatten()).collect();
    let strong: Vec<bool> = guards.iter().map(|g| is_at_entry(pool, g)).collect();
    let mut gone = vec![false; guards.len()];
    for i in 0..guards.len() {
        let Some(a) = room[i] else { continue };
        gone[i] = (0..guards.len())
            .filter(|&j| j != i && !gone[j] && strong[j])
            .any(|j| room[j].is_some_and(|b| pool.prove_le(b, a) == Proof::Yes));
    }
    let mut i = 0;
    guards.retain(|_| {
        i += 1;
        !gone[i - 1]
    });
}

/// Whether `a ≤ b` because one is the minimum or maximum of the other and something.
fn bounded(eg: &DimGraph, a: Id, b: Id) -> bool {
    let is = |k: &[Id; 2], x: Id| k.iter().any(|&k| eg.find(k) == eg.find(x));
    eg[a].nodes.iter().any(|n| matches!(n, Dim::Min(k) if is(k, b)))
        || eg[b].nodes.iter().any(|n| matches!(n, Dim::Max(k) if is(k, a)))
}

/// Whether what a guard says is known once the run's inputs are.
#[must_use]
pub fn is_at_entry(pool: &DimPool, g: &Guard) -> bool {
    pool.is_at_entry(g.lhs) && pool.is_at_entry(g.rhs)
}

/// The dims of a module in an e-graph.
struct Dims {
    eg: DimGraph,
    id_of: FxHashMap<DimId, Id>,
}

impl Dims {
    /// Nothing when there is nothing to find out.
    fn of(module: &mut Module<Onnx>) -> Option<Dims> {
        let mut seen: FxHashSet<DimId> = FxHashSet::default();
        let mut dims: Vec<DimId> = Vec::new();
        let mut note = |d: DimId| {
            if seen.insert(d) {
                dims.push(d);
            }
        };
        for g in module.graphs.values() {
            g.values.values().for_each(|v| each_dim(&v.ty, &mut note));
        }
        module.guards.iter().for_each(|g| [g.lhs, g.rhs].into_iter().for_each(&mut note));
        if dims.iter().all(|&d| module.dims.as_const(d).is_some()) && module.guards.is_empty() {
            return None;
        }
        let pool = &mut module.dims;
        let symbols = pool.symbols().map(|(s, x)| (sym_name(s), (x.lo, x.hi))).collect();
        let mut eg = DimGraph::new(Bounds { symbols });
        let id_of = dims.iter().map(|&d| (d, pool.fold(d, &mut ToGraph(&mut eg)))).collect();
        eg.rebuild();
        Some(Dims { eg: close(eg, pool), id_of })
    }

    /// Whether a guard holds whenever the facts do.
    fn holds(&self, pool: &mut DimPool, g: &Guard) -> bool {
        let (eg, a, b) = (&self.eg, self.id_of[&g.lhs], self.id_of[&g.rhs]);
        if g.rel == Rel::Ne {
            let (a, b) = (eg[a].data, eg[b].data);
            return a.high < b.low || b.high < a.low || pool.prove_eq(g.lhs, g.rhs) == Proof::No;
        }
        eg.find(a) == eg.find(b)
            || g.rel == Rel::Le
                && (eg[a].data.high <= eg[b].data.low || bounded(eg, a, b) || pool.prove_le(g.lhs, g.rhs) == Proof::Yes)
    }

    /// Leaves out the guards that follow from others. Equalities in order, each kept one a fact for the next; then
    /// inequalities forwards, and those left once more backwards, because a later layer often needs more of an extent than an
    /// earlier one. A guard is removed only because of guards that are kept, so that none goes because of itself.
    fn prune(&mut self, pool: &mut DimPool, guards: &mut Vec<Guard>) {
        weaker(pool, guards);
        let mut facts = 0;
        guards.retain(|g| {
            if g.rel != Rel::Eq {
                return true;
            }
            if self.holds(pool, g) {
                return false;
            }
            if facts < DIM_FACTS && is_at_entry(pool, g) {
                facts += 1;
                self.eg.union(self.id_of[&g.lhs], self.id_of[&g.rhs]);
                self.eg.rebuild();
                let eg = std::mem::replace(&mut self.eg, DimGraph::new(Bounds::default()));
                self.eg = close(eg, pool);
            }
            true
        });
        let equalities = self.eg.clone();
        for backwards in [false, true] {
            self.eg = equalities.clone();
            let mut kept: Vec<Guard> = Vec::new();
            let mut facts = 0;
            let mut one = |g: &Guard| {
                let (a, b) = (self.id_of[&g.lhs], self.id_of[&g.rhs]);
                let same = |k: &Guard| {
                    self.eg.find(self.id_of[&k.lhs]) == self.eg.find(a)
                        && self.eg.find(self.id_of[&k.rhs]) == self.eg.find(b)
                };
                match g.rel {
                    Rel::Eq => return true,
                    Rel::Ne => return !self.holds(pool, g),
                    Rel::Le => {}
                }
                let usable = is_at_entry(pool, g);
                if self.holds(pool, g) || usable && kept.iter().any(same) {
                    return false;
                }
                if usable {
                    kept.push(g.clone());
                    if facts < DIM_FACTS {
                        facts += 1;
                        assume_le(&mut self.eg, a, b);
                    }
                }
                true
            };
            if backwards {
                let mut keep: Vec<bool> = guards.iter().rev().map(&mut one).collect();
                guards.retain(|_| keep.pop().unwrap_or(true));
            } else {
                guards.retain(&mut one);
            }
        }
        // Bounds that inequalities gave are no facts for extents: what an error says of an extent stays what the model says.
        self.eg = equalities;
    }
}

/// Makes `a ≤ b` a fact: the bounds of both, of what they are made of, and of what is made of them become tighter.
fn assume_le(eg: &mut DimGraph, a: Id, b: Id) {
    let mut work = vec![(a, i64::MIN, eg[b].data.high), (b, eg[a].data.low, i64::MAX)];
    // Bounds in a cycle may go on getting tighter by one; any number of steps is right.
    for _ in 0..ASSUME_STEPS {
        let Some((id, lo, hi)) = work.pop() else { break };
        let id = eg.find(id);
        let was = eg[id].data;
        let (lo, hi) = (lo.max(was.low), hi.min(was.high));
        if (lo, hi) == (was.low, was.high) {
            continue;
        }
        eg.set_analysis_data(id, Range { low: lo, high: hi, ..was });
        for n in &eg[id].nodes {
            let k = match n {
                Dim::Num(_) | Dim::Sym(_) => continue,
                Dim::Add(k)
                | Dim::Mul(k)
                | Dim::FloorDiv(k)
                | Dim::CeilDiv(k)
                | Dim::Mod(k)
                | Dim::Min(k)
                | Dim::Max(k) => k,
            };
            let r = k.map(|i| (eg[i].data.low, eg[i].data.high));
            // What must hold of operand `i`, `o` being the bounds of the other one. An end without a bound stays so.
            let low = |x: i64, f: &dyn Fn(i128) -> i128| if x == i64::MIN { x } else { clamp(f(i128::from(x))) };
            let high = |x: i64, f: &dyn Fn(i128) -> i128| if x == i64::MAX { x } else { clamp(f(i128::from(x))) };
            for i in 0..2 {
                let (o0, o1) = r[1 - i];
                let c = i128::from(o0);
                let constant = o0 == o1 && c > 0;
                match n {
                    Dim::Add(_) => {
                        let l = if o1 == i64::MAX { i64::MIN } else { low(lo, &|x| x - i128::from(o1)) };
                        let h = if o0 == i64::MIN { i64::MAX } else { high(hi, &|x| x - i128::from(o0)) };
                        work.push((k[i], l, h));
                    }
                    Dim::Mul(_) if constant => {
                        work.push((k[i], low(lo, &|x| -(-x).div_euclid(c)), high(hi, &|x| x.div_euclid(c))));
                    }
                    Dim::FloorDiv(_) if constant && i == 0 => {
                        work.push((k[i], low(lo, &|x| x * c), high(hi, &|x| x * c + c - 1)));
                    }
                    Dim::CeilDiv(_) if constant && i == 0 => {
                        work.push((k[i], low(lo, &|x| x * c - c + 1), high(hi, &|x| x * c)));
                    }
                    Dim::Min(_) => work.push((k[i], lo, i64::MAX)),
                    Dim::Max(_) => work.push((k[i], i64::MIN, hi)),
                    _ => {}
                }
            }
        }
        eg.rebuild();
    }
    eg.rebuild();
}

/// Removes guards that follow from others and changes nothing else.
pub fn prune_guards(module: &mut Module<Onnx>) -> DimReport {
    let mut report = DimReport { guards: module.guards.len(), ..DimReport::default() };
    if module.guards.is_empty() {
        return report;
    }
    if let Some(mut dims) = Dims::of(module) {
        dims.prune(&mut module.dims, &mut module.guards);
        report.n_enodes = dims.eg.total_size();
    }
    report.guards_removed = report.guards - module.guards.len();
    report
}

/// Refines the dims of a module: removes guards that follow from others, and makes extents that are equal under the
/// remaining guards equal ids. Types of the main graph's inputs stay as declared. Guards about extents that are known
/// only during the run are neither used as facts nor removed, unless they hold always.
pub fn refine(module: &mut Module<Onnx>) -> DimReport {
    let mut report = DimReport { guards: module.guards.len(), ..DimReport::default() };
    let Some(mut dims) = Dims::of(module) else { return report };
    let pool = &mut module.dims;
    dims.prune(pool, &mut module.guards);
    report.guards_removed = report.guards - module.guards.len();
    let Dims { eg, id_of } = dims;
    report.n_enodes = eg.total_size();

    if eg.classes().any(|c| c.data.low > c.data.high) {
        // No input meets all guards, and "equal" extents are not: the guards, all kept, refuse every run.
        return report;
    }
    let simplest = Simplest::of(&eg, pool);
    let new: FxHashMap<DimId, DimId> = id_of
        .iter()
        .filter_map(|(&d, &id)| simplest.dim.get(&eg.find(id)).map(|&s| (d, s)))
        .filter(|(d, s)| d != s)
        .collect();
    report.dims_changed = new.len();
    let main = module.main;
    for r in module.graphs.keys() {
        let g = &mut module.graphs[r];
        for v in g.values.values_mut() {
            let declared = r == main && matches!(v.def, ir::graph::Def::Input(_));
            if !declared {
                map_dims(&mut v.ty, &new);
            }
        }
    }
    report
}

fn each_dim(ty: &Type, f: &mut impl FnMut(DimId)) {
    match ty {
        Type::Tensor(t) => t.shape.iter().flatten().copied().for_each(f),
        Type::Sequence(t) | Type::Optional(t) => each_dim(t, f),
        Type::Map { value, .. } => each_dim(value, f),
        Type::Unknown => {}
    }
}

fn map_dims(ty: &mut Type, new: &FxHashMap<DimId, DimId>) {
    match ty {
        Type::Tensor(t) => t.shape.iter_mut().flatten().for_each(|d| *d = new.get(d).copied().unwrap_or(*d)),
        Type::Sequence(t) | Type::Optional(t) => map_dims(t, new),
        Type::Map { value, .. } => map_dims(value, new),
        Type::Unknown => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Registry, Type};
    use std::sync::Arc;
    use tensor::DType;

    /// A module with inputs `[b, s]` and `[c, t]` and guards given as pairs of texts.
    fn module(guards: &[(&str, Rel, &str)]) -> Module<Onnx> {
        let mut m = Module::<Onnx>::new(Arc::new(Registry::with_rows([])));
        for (input, names) in [(0, ["b", "s"]), (1, ["c", "t"])] {
            let ds: Vec<DimId> =
                (0..2).map(|axis| m.dims.symbol(names[axis as usize], Origin::Input { input, axis })).collect();
            m.graph_mut().add_input(Type::tensor(DType::F32, ds), "x");
        }
        m.dims.symbol("u", Origin::DeviceResult);
        for (l, rel, r) in guards {
            let (lhs, rhs) = (m.dims.parse(l).unwrap(), m.dims.parse(r).unwrap());
            m.guards.push(Guard { lhs, rel: *rel, rhs, why: String::new(), node: String::new() });
        }
        m
    }

    /// Refines such a module with one value of each shape text.
    fn check(guards: &[(&str, Rel, &str)], left: &[&str], dims: &[(&str, &str)]) {
        let mut m = module(guards);
        let mut values = vec![];
        for (before, _) in dims {
            let d = m.dims.parse(before).unwrap();
            let c = m.consts.push(ir::consts::Const::from_tensor("", &tensor::Tensor::from_f32(&[], &[0.0])));
            values.push(m.graph_mut().add_const(c, Type::tensor(DType::F32, [d]), ""));
        }
        let report = refine(&mut m);
        assert!(!m.dims.overflowed());
        let show = |m: &Module<Onnx>, d| m.dims.display(d).to_string();
        let have: Vec<String> =
            m.guards.iter().map(|g| format!("{} {:?} {}", show(&m, g.lhs), g.rel, show(&m, g.rhs))).collect();
        assert_eq!(have, left);
        assert_eq!(report.guards_removed, guards.len() - left.len());
        for (v, (_, after)) in values.iter().zip(dims) {
            assert_eq!(show(&m, m.graph().values[*v].ty.shape().unwrap()[0]), *after);
        }
    }

    #[test]
    fn guards_that_follow_from_others_go_and_equal_extents_become_one() {
        check(
            &[
                ("t", Rel::Eq, "s"),
                ("4*t", Rel::Eq, "4*s"),
                ("c", Rel::Eq, "b"),
                ("b*s", Rel::Eq, "c*t"),
                ("floordiv(t + 3, 2)", Rel::Eq, "floordiv(s + 3, 2)"),
            ],
            &["t Eq s", "c Eq b"],
            &[("c*t", "b*s"), ("floordiv(t + 3, 2)", "floordiv(s + 1, 2) + 1"), ("max(s, t)", "s")],
        );
    }

    #[test]
    fn what_always_holds_needs_no_guard_and_what_the_device_decides_is_no_fact() {
        check(
            &[("0", Rel::Le, "s"), ("min(s, t)", Rel::Le, "s"), ("u", Rel::Eq, "s"), ("2*u", Rel::Eq, "2*s")],
            &["u Eq s", "2*u Eq 2*s"],
            &[("u", "u"), ("min(s, max(s, t))", "s")],
        );
    }

    #[test]
    fn of_inequalities_the_strongest_is_left_wherever_it_stands() {
        // What a stack of windows over an image asks of its height.
        check(
            &[
                ("0", Rel::Le, "s - 2"),
                ("0", Rel::Le, "floordiv(s + 1, 2) - 1"),
                ("0", Rel::Le, "floordiv(s + 1, 2) - 5"),
                ("0", Rel::Le, "floordiv(s + 1, 2) - 3"),
            ],
            &["0 Le floordiv(s + 1, 2) - 5"],
            &[("max(s, 3)", "max(3, s)")],
        );
        check(
            &[("s", Rel::Le, "1000"), ("s", Rel::Le, "2000"), ("min(s, 900)", Rel::Le, "b")],
            &["s Le 1000", "min(s, 900) Le b"],
            &[],
        );
        // The second guard holds from s = 9 on.
        let half = "floordiv(s + 1, 2) - 5";
        check(&[("10", Rel::Le, "s"), ("0", Rel::Le, half)], &["10 Le s"], &[]);
        check(&[("9", Rel::Le, "s"), ("0", Rel::Le, half)], &["9 Le s"], &[]);
        check(&[("8", Rel::Le, "s"), ("0", Rel::Le, half)], &["0 Le floordiv(s + 1, 2) - 5"], &[]);
        check(&[("3*t", Rel::Le, "2*s"), ("t", Rel::Le, "s")], &["3*t Le 2*s", "t Le s"], &[]);
        // Of two that say the same, one stays; what the device decides is no fact.
        check(&[("s", Rel::Le, "t"), ("s", Rel::Le, "t")], &["s Le t"], &[]);
        check(&[("u", Rel::Le, "7"), ("u", Rel::Le, "8")], &["u Le 7", "u Le 8"], &[]);
    }

    #[test]
    fn what_must_differ_is_dropped_where_it_does() {
        check(
            &[
                ("s", Rel::Ne, "1"),
                ("2", Rel::Le, "t"),
                ("t", Rel::Ne, "1"),
                ("s", Rel::Ne, "s + 1"),
                ("b", Rel::Eq, "c"),
            ],
            &["s Ne 1", "2 Le t", "b Eq c"],
            &[("c", "b")],
        );
        // Equal and other than equal: no run passes, and both are checked.
        check(&[("b", Rel::Eq, "c"), ("b", Rel::Ne, "c")], &["b Eq c", "b Ne c"], &[]);
    }

    #[test]
    fn of_two_bounds_the_tighter_one_stays() {
        check(
            &[
                ("1", Rel::Le, "s"),
                ("5", Rel::Le, "floordiv(t, 2)"),
                ("3", Rel::Le, "s"),
                ("3", Rel::Le, "s"),
                ("0", Rel::Le, "floordiv(t, 2)"),
            ],
            &["5 Le floordiv(t, 2)", "3 Le s"],
            &[],
        );
    }

    #[test]
    fn guards_that_contradict_each_other_change_no_extent() {
        let both = [("4", Rel::Eq, "s"), ("s", Rel::Eq, "2")];
        check(&both, &["4 Eq s", "s Eq 2"], &[("s", "s"), ("4", "4"), ("2*t", "2*t")]);
    }

    #[test]
    fn guards_may_leave_zero_alone() {
        // What is half and twice itself is 0, and equals all its multiples: every further guard finds more of them.
        let zero = [("2*floordiv(s, 2)", Rel::Eq, "s"), ("floordiv(s, 2)", Rel::Eq, "s")];
        let more =
            [("b", Rel::Eq, "2"), ("c", Rel::Eq, "2*b"), ("t", Rel::Eq, "floordiv(s, 4) + 3"), ("u", Rel::Eq, "s")];
        let left =
            ["2*floordiv(s, 2) Eq s", "floordiv(s, 2) Eq s", "b Eq 2", "c Eq 2*b", "t Eq floordiv(s, 4) + 3", "u Eq s"];
        check(&[&zero[..], &more].concat(), &left, &[("s", "0"), ("2*c*s", "0")]);
    }

    /// The guard bounds `s` by less than itself, round after round: 2⁶³ rounds, were there no end.
    #[test]
    fn bounds_in_a_cycle_end() {
        let less = "max(0, min(s, max(0, s - 1)) - min(1, s))";
        check(&[(less, Rel::Eq, "s")], &["max(0, -min(1, s) + min(s, max(0, s - 1))) Eq s"], &[]);
    }

    #[test]
    fn nothing_is_removed_without_a_reason() {
        check(
            &[("s", Rel::Eq, "t"), ("b", Rel::Eq, "t")],
            &["s Eq t", "b Eq t"],
            &[("floordiv(b*s, c)", "floordiv(b*b, c)")],
        );
    }
}
