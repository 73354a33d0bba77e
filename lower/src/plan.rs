//! Memory planning: which bytes of which pool each buffer of a module gets, for every shape at once. See `docs/memory-planning.md`.

pub use crate::plan_inplace::in_place;
pub use crate::plan_live::Point;
use crate::plan_live::{Live, Root, RootKind, accesses, size_bytes};
pub use crate::plan_offsets::{OffsetExpr, OffsetId, OffsetPool};
pub use crate::plan_pack::{Interval, Layout, Packing, Sample, pack};
use ir::hip::{Hip, HipOp, Space};
use ir::{Module, Node, RegionId, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt::Write;
use tensor::{Diagnostic, DimId, DimPool, Entity, ErrorKind, Result, SymId};

/// Every buffer starts at a multiple of this many bytes and takes a multiple of them.
pub const ALIGN: i64 = 256;

/// Where every buffer of a module lives.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Offsets of all domains.
    pub offsets: OffsetPool,
    /// Pools.
    pub domains: Vec<PoolDomain>,
    /// Buffers in order of first use. Graph inputs, outputs and constants are not among them.
    pub buffers: Vec<Buffer>,
    index: FxHashMap<(RegionId, Value), usize>,
}

/// A pool: buffers of one space whose sizes are known at one point.
#[derive(Clone, Debug)]
pub struct PoolDomain {
    /// Memory space.
    pub space: Space,
    /// Where its size is known and it is reserved.
    pub reserve: Reserve,
    /// What is packed: one for each buffer, or for several that run in place of each other.
    pub intervals: Vec<Interval>,
    /// Offsets of the intervals.
    pub packing: Packing,
}

/// Where a domain is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reserve {
    /// At a point of a region. The beginning of the main graph is the run's entry; a point in a loop's body comes in every iteration.
    At(Point),
    /// At the end of the region taken of an `If`, or before a `Loop` and at the end of each iteration: for results whose size is known
    /// only there.
    Results(RegionId, Node),
}

/// A buffer in a pool.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The region of the value that defines it.
    pub region: RegionId,
    /// That value: of an `Alloc`, or a result of `If` or `Loop`.
    pub value: Value,
    /// Bytes, rounded up.
    pub size: DimId,
    /// First and last time in use; time counts nodes, with regions laid out flat.
    pub span: (u32, u32),
    /// Position in [`Plan::domains`].
    pub domain: usize,
    /// Position in [`PoolDomain::intervals`].
    pub interval: usize,
    /// The buffer whose bytes it takes over, when a nest runs in place.
    pub in_place_of: Option<usize>,
}

pub(crate) fn too_large(a: i64, b: i64) -> Diagnostic {
    Diagnostic::new(ErrorKind::Limit, format!("a buffer or pool of {a} + {b} bytes is beyond 64 bits"))
        .help("check the extents of the model")
}

/// Rounds a size up to [`ALIGN`].
pub fn round_up(dims: &mut DimPool, bytes: DimId) -> DimId {
    let align = dims.constant(ALIGN);
    let n = dims.ceildiv(bytes, align);
    dims.mul(n, align)
}

/// Evaluates a peak as [`Plan::peak_text`] writes it. `dims` are the symbols that it may name.
///
/// # Errors
/// `Malformed` for other text, `Shape` when a symbol has no value.
pub fn eval_peak(dims: &DimPool, text: &str, env: &impl Fn(SymId) -> Option<i64>) -> Result<i64> {
    let mut pool = dims.clone();
    let mut named: FxHashMap<SymId, i64> = FxHashMap::default();
    let mut parts: Vec<String> = vec![String::new()];
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars() {
        if c == ';' && !quoted {
            parts.push(String::new());
            continue;
        }
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        if let Some(p) = parts.last_mut() {
            p.push(c);
        }
    }
    let last = parts.pop().unwrap_or_default();
    let value = |pool: &mut DimPool, expr: &str, named: &FxHashMap<SymId, i64>| -> Result<i64> {
        let d = pool.parse(expr.trim()).map_err(|e| e.1)?;
        pool.eval(d, &|s| named.get(&s).copied().or_else(|| env(s)))
    };
    for p in parts {
        let (name, expr) = p
            .split_once(" = ")
            .ok_or_else(|| Diagnostic::new(ErrorKind::Malformed, format!("{p:?} does not name a part of a peak")))?;
        let v = value(&mut pool, expr, &named)?;
        let d = pool.symbol(name.trim(), tensor::dims::Origin::Unknown);
        named.extend(pool.as_symbol(d).map(|s| (s, v)));
    }
    value(&mut pool, &last, &named)
}

/// Plans the memory of a module.
///
/// # Errors
/// `Internal` when a node is not formed as `ir::hip` says or an extent has no value where a size needs it; `Limit` when a size is beyond 64
/// bits.
pub fn plan(m: &mut Module<Hip>) -> Result<Plan> {
    let live = Live::new(m)?;
    let mut plan = Plan::default();
    let mut of_root: FxHashMap<usize, usize> = FxHashMap::default();

    // Buffers in order of first use.
    let mut used: Vec<usize> = (0..live.roots.len())
        .filter(|&r| matches!(live.roots[r].kind, RootKind::Alloc | RootKind::Result) && live.roots[r].span.is_some())
        .collect();
    used.sort_by_key(|&r| (live.roots[r].span, r));
    for &r in &used {
        let Root { region, value, span, .. } = live.roots[r];
        let ty = m.graphs[region].values[value].ty.clone();
        let bytes = size_bytes(&mut m.dims, &ty);
        let size = round_up(&mut m.dims, bytes);
        let span = span.unwrap_or_default();
        of_root.insert(r, plan.buffers.len());
        plan.index.insert((region, value), plan.buffers.len());
        plan.buffers.push(Buffer { region, value, size, span, domain: 0, interval: 0, in_place_of: None });
        beyond_64_bits(m, region, value)?;
    }
    find_in_place(m, &live, &of_root, &mut plan);

    // Outputs are not in a pool, but the caller must be able to allocate them.
    for r in live.roots.iter().filter(|r| r.kind == RootKind::Output) {
        let ty = m.graphs[r.region].values[r.value].ty.clone();
        size_bytes(&mut m.dims, &ty);
        beyond_64_bits(m, r.region, r.value)?;
    }

    // Storages: chains of in-place buffers. Each is one interval of one domain.
    let mut storage_of: Vec<usize> = vec![0; plan.buffers.len()];
    let mut storages: Vec<(usize, Interval)> = vec![];
    for i in 0..plan.buffers.len() {
        let b = &plan.buffers[i];
        match b.in_place_of {
            Some(first) => {
                let s = storage_of[first];
                storages[s].1.end = storages[s].1.end.max(b.span.1);
                storage_of[i] = s;
            }
            None => {
                storage_of[i] = storages.len();
                storages.push((i, Interval { start: b.span.0, end: b.span.1, size: b.size }));
            }
        }
    }

    let mut held: Vec<Vec<usize>> = vec![vec![]; storages.len()];
    storage_of.iter().enumerate().for_each(|(i, &s)| held[s].push(i));

    // Domains by space and point.
    let mut by_domain: BTreeMap<(u8, Reserve), Vec<usize>> = BTreeMap::new();
    let mut later: BTreeMap<(u8, RegionId), Vec<(usize, usize, usize)>> = BTreeMap::new();
    for (s, &(i, _)) in storages.iter().enumerate() {
        let b = &plan.buffers[i];
        let space = space_key(m.graphs[b.region].values[b.value].ty.space);
        if let Some(n) = sized_by_own_node(m, b) {
            by_domain.entry((space, Reserve::Results(b.region, n))).or_default().push(s);
            continue;
        }
        let known = live.known_at(m, b.size, b.region)?;
        if known == (Point { region: m.main, pos: 0 }) {
            by_domain.entry((space, Reserve::At(known))).or_default().push(s);
        } else {
            let root = live.of[&(b.region, b.value)];
            let mut at = Point { region: b.region, pos: live.roots[root].need };
            while at.region != known.region {
                at = live.parent[&at.region];
            }
            later.entry((space, known.region)).or_default().push((at.pos, known.pos, s));
        }
    }
    // As few points as possible: each is as late as the first buffer that needs it allows.
    for ((space, region), mut windows) in later {
        windows.sort();
        let mut point: Option<usize> = None;
        for (need, known, s) in windows {
            let pos = match point {
                Some(p) if known <= p => p,
                _ if known <= need => need,
                _ => {
                    let b = &plan.buffers[storages[s].0];
                    return Err(Diagnostic::new(
                        ErrorKind::Internal,
                        format!("{} of {region} is used before its size is known", b.value),
                    ));
                }
            };
            point = Some(pos);
            by_domain.entry((space, Reserve::At(Point { region, pos }))).or_default().push(s);
        }
    }

    for ((_, reserve), members) in by_domain {
        let d = plan.domains.len();
        let b = &plan.buffers[storages[members[0]].0];
        let space = m.graphs[b.region].values[b.value].ty.space;
        let mut intervals = vec![];
        for &s in &members {
            let mut x = storages[s].1;
            if space == Space::HostMapped || matches!(reserve, Reserve::Results(..)) {
                // Host-mapped bytes are written once a run; results of one node are live together.
                (x.start, x.end) = (0, live.last_time);
            }
            for &i in &held[s] {
                (plan.buffers[i].domain, plan.buffers[i].interval) = (d, intervals.len());
            }
            intervals.push(x);
        }
        let packing = pack(&mut m.dims, &mut plan.offsets, &intervals)?;
        plan.domains.push(PoolDomain { space, reserve, intervals, packing });
    }
    Ok(plan)
}

fn space_key(s: Space) -> u8 {
    match s {
        Space::Device => 0,
        Space::Host => 1,
        Space::HostMapped => 2,
    }
}

/// The control-flow node that defines the buffer and also symbols of its size.
fn sized_by_own_node(m: &Module<Hip>, b: &Buffer) -> Option<Node> {
    let g = &m.graphs[b.region];
    let ir::graph::Def::Node(n, _) = g.values[b.value].def else { return None };
    let own: Vec<SymId> = match &g.nodes[n].op {
        HipOp::If { dims } => dims.iter().map(|d| d.sym).collect(),
        HipOp::Loop(l) => l.counts.iter().copied().chain(l.dims.iter().filter_map(|d| d.result)).collect(),
        _ => return None,
    };
    m.dims.symbols_of(b.size).iter().any(|s| own.contains(s)).then_some(n)
}

/// An error that names the buffer's node when the size that was just computed does not fit an i64.
fn beyond_64_bits(m: &Module<Hip>, region: RegionId, value: Value) -> Result<()> {
    if !m.dims.overflowed() {
        return Ok(());
    }
    let v = &m.graphs[region].values[value];
    let dims: Vec<String> = v.ty.shape.iter().map(|&d| m.dims.display(d).to_string()).collect();
    let what = format!("{}[{}] takes more bytes than 64 bits can count", v.ty.dtype, dims.join(", "));
    let e = Diagnostic::new(ErrorKind::Limit, what).help("check the extents that the model computes or declares");
    Err(match v.def {
        ir::graph::Def::Node(n, _) => e.node(m.graphs[region].nodes[n].origin.to_string()),
        _ => e,
    })
}

/// Lets nests write over operands that die there.
fn find_in_place(m: &Module<Hip>, live: &Live, of_root: &FxHashMap<usize, usize>, plan: &mut Plan) {
    let mut taken = vec![false; plan.buffers.len()];
    let mut nodes: Vec<(u32, RegionId, Node)> = live.times.iter().map(|(&(r, n), &t)| (t, r, n)).collect();
    nodes.sort();
    for (time, region, n) in nodes {
        let g = &m.graphs[region];
        let HipOp::Launch(nest) = &g.nodes[n].op else { continue };
        let (reads, writes) = accesses(g, n);
        let root = |v: &Value| live.of.get(&(region, *v)).copied();
        for (j, w) in writes.iter().enumerate() {
            let Some((wr, &wb)) = root(w).and_then(|r| Some((r, of_root.get(&r)?))) else { continue };
            let is_alloc = |r: usize| live.roots[r].kind == RootKind::Alloc && live.roots[r].region == region;
            let once = writes.iter().chain(&reads).filter(|v| root(v) == Some(wr)).count() == 1;
            if !is_alloc(wr) || plan.buffers[wb].span.0 != time || !once || !starts_at_root(m, region, *w) {
                continue;
            }
            for r in &reads {
                let Some((rr, &rb)) = root(r).and_then(|x| Some((x, of_root.get(&x)?))) else { continue };
                let (a, b) = (&plan.buffers[rb], &plan.buffers[wb]);
                // Values of other regions are not among this one's.
                if taken[rb] || !is_alloc(rr) || g.values[*r].ty.space != Space::Device {
                    continue;
                }
                let same = a.size == b.size && a.span.1 == time && a.span.0 < time;
                if !same || g.values[live.roots[rr].value].ty.space != g.values[live.roots[wr].value].ty.space {
                    continue;
                }
                // Every way in which the nest sees the dying buffer must allow it.
                let all = reads.iter().enumerate().filter(|(_, v)| root(v) == Some(rr));
                let ok = all
                    .into_iter()
                    .all(|(i, v)| starts_at_root(m, region, *v) && in_place(&m.dims, nest, i, reads.len() + j));
                if ok && !writes.iter().any(|v| root(v) == Some(rr)) {
                    taken[rb] = true;
                    plan.buffers[wb].in_place_of = Some(rb);
                    break;
                }
            }
        }
    }
}

/// Whether a value sees its root from the first byte on.
fn starts_at_root(m: &Module<Hip>, region: RegionId, v: Value) -> bool {
    let g = &m.graphs[region];
    let mut v = v;
    while let Some(node) = g.def_node(v) {
        let HipOp::View { offset } = node.op else { return true };
        match (m.dims.as_const(offset), node.ins.first()) {
            (Some(0), Some(Some(x))) => v = *x,
            _ => return false,
        }
    }
    true
}

impl Plan {
    /// The buffer that a value defines, if it has one.
    pub fn buffer(&self, region: RegionId, value: Value) -> Option<&Buffer> {
        Some(&self.buffers[*self.index.get(&(region, value))?])
    }
    /// Peak bytes of a domain as an expression over dims, as the artifact states it.
    pub fn peak_text(&self, dims: &DimPool, domain: &PoolDomain) -> String {
        let mut definitions = String::new();
        let mut least: Option<String> = None;
        for (l, prefix) in domain.packing.layouts.iter().zip(["t", "u", "v", "w"]) {
            let (head, body) = self.offsets.display_parts(dims, l.peak, prefix);
            definitions += &head;
            least = Some(least.map_or(body.clone(), |a| format!("min({a}, {body})")));
        }
        definitions + &least.unwrap_or_else(|| "0".into())
    }
    /// Peak bytes of each domain at symbol values; `None` where a symbol has no value.
    pub fn peaks_at(&self, dims: &DimPool, env: &impl Fn(SymId) -> Option<i64>) -> Vec<Option<i64>> {
        let mut memo: Vec<Option<i64>> = Vec::with_capacity(self.offsets.len());
        for (_, e) in self.offsets.iter() {
            let v = match e {
                OffsetExpr::Dim(d) => dims.eval(*d, env).ok(),
                OffsetExpr::Add(o, d) => {
                    memo[o.index()].zip(dims.eval(*d, env).ok()).and_then(|(a, b)| a.checked_add(b))
                }
                OffsetExpr::Max(os) => os
                    .iter()
                    .map(|o| memo[o.index()])
                    .collect::<Option<Vec<_>>>()
                    .map(|v| v.into_iter().max().unwrap_or(0)),
            };
            memo.push(v);
        }
        let peak = |d: &PoolDomain| {
            let all: Option<Vec<i64>> = d.packing.layouts.iter().map(|l| memo[l.peak.index()]).collect();
            all?.into_iter().min()
        };
        self.domains.iter().map(peak).collect()
    }
    /// Prints the plan: domains with peaks, buffers as lifetimes and offsets.
    pub fn display(&self, m: &Module<Hip>) -> String {
        let mut out = String::new();
        for (d, dom) in self.domains.iter().enumerate() {
            let at = match dom.reserve {
                Reserve::At(p) if p.region == m.main && p.pos == 0 => "at entry".to_string(),
                Reserve::At(p) => format!("in {} before position {}", p.region, p.pos),
                Reserve::Results(r, n) => format!("for results of {n} in {r}"),
            };
            let _ = writeln!(out, "domain {d} {:?} {at}: {} bytes", dom.space, self.peak_text(&m.dims, dom));
            if let Some(why) = &dom.packing.separate {
                let _ = writeln!(out, "  nothing is shared: {why}");
            }
            for b in self.buffers.iter().filter(|b| b.domain == d) {
                let offs: Vec<String> =
                    dom.packing.layouts.iter().map(|l| self.offsets.display(&m.dims, l.offsets[b.interval])).collect();
                let (r, v) = (b.region, b.value);
                let place = b.in_place_of.map_or(String::new(), |i| format!(" in place of {}", self.buffers[i].value));
                let _ = writeln!(
                    out,
                    "  {r}.{v} [{}, {}] at {} size {}{place}",
                    b.span.0,
                    b.span.1,
                    offs.join(" | "),
                    m.dims.display(b.size)
                );
            }
        }
        out
    }
}
