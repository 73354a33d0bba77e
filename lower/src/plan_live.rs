//! Live ranges: which buffer stands behind each value, when it is first and last used, and where its size is known.
//!
//! Time counts nodes in execution order with regions laid out flat: a control-flow node has a time at its entry, its regions'
//! nodes follow, each region has a time at its end, and the node one at its exit.

use ir::graph::Def;
use ir::hip::{Hip, HipOp, HipType};
use ir::{Graph, Module, Node, RegionId, Value};
use rustc_hash::FxHashMap;
use tensor::dims::Origin;
use tensor::{Diagnostic, DimId, DimPool, ErrorKind, Result, SymId};

/// What a root buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootKind {
    /// Graph input.
    Input,
    /// Constant.
    Const,
    /// Buffer of a graph output.
    Output,
    /// `Alloc`.
    Alloc,
    /// Result of `If`, or state of `Loop`.
    Result,
}

/// A buffer that is no view of another.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    /// The region of the value that defines it.
    pub region: RegionId,
    /// That value.
    pub value: Value,
    /// What it is.
    pub kind: RootKind,
    /// First and last time in use.
    pub span: Option<(u32, u32)>,
    /// The node of its own region at which it is first used (or that contains the use).
    pub need: usize,
}

/// A point of a region: before the node at a position, or after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// The region.
    pub region: RegionId,
    /// Position in its order.
    pub pos: usize,
}

/// The analysis of a module.
pub(crate) struct Live {
    /// Every root.
    pub roots: Vec<Root>,
    /// The root behind a value.
    pub of: FxHashMap<(RegionId, Value), usize>,
    /// The control-flow node that owns a region.
    pub parent: FxHashMap<RegionId, Point>,
    /// Where a symbol becomes known: it may be used from that point on.
    pub known: FxHashMap<SymId, Point>,
    /// Time of each node (control flow: its entry).
    pub times: FxHashMap<(RegionId, Node), u32>,
    /// Greatest time.
    pub last_time: u32,
}

/// Operands of a node that are read and written.
pub(crate) fn accesses(g: &Graph<Hip>, n: Node) -> (Vec<Value>, Vec<Value>) {
    let node = &g.nodes[n];
    let split = |k: usize| {
        let k = k.min(node.ins.len());
        (node.ins[..k].iter().flatten().copied().collect(), node.ins[k..].iter().flatten().copied().collect())
    };
    match &node.op {
        HipOp::Launch(nest) => split(nest.operands.iter().filter(|o| !o.written).count()),
        HipOp::Call(c) => split(c.n_reads as usize),
        HipOp::HostCall { n_reads, .. } => split(*n_reads as usize),
        HipOp::Copy | HipOp::Carry | HipOp::Reuse => split(1),
        HipOp::StoreDims(_) => split(0),
        HipOp::PassOutput(_) | HipOp::Readback { .. } => split(node.ins.len()),
        // The rest of a control-flow node's operands are used where its regions use them.
        HipOp::If { .. } | HipOp::Loop(_) => split(1),
        _ => (vec![], vec![]),
    }
}

/// Bytes of a contiguous buffer of this type, not rounded.
pub(crate) fn size_bytes(dims: &mut DimPool, ty: &HipType) -> DimId {
    let n = dims.product(ty.shape.iter().copied());
    match ty.dtype.size() {
        Some(size) => {
            let k = dims.constant(i64::try_from(size).unwrap_or(i64::MAX));
            dims.mul(n, k)
        }
        None => {
            let bits = dims.constant(i64::try_from(ty.dtype.bits()).unwrap_or(i64::MAX));
            let eight = dims.constant(8);
            let all = dims.mul(n, bits);
            dims.ceildiv(all, eight)
        }
    }
}

/// An error for a broken invariant at a node.
pub(crate) fn broken(m: &Module<Hip>, region: RegionId, n: Node, what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, what).node(m.graphs[region].nodes[n].origin.to_string())
}

impl Live {
    /// Analyzes a module.
    ///
    /// # Errors
    /// `Internal` when a node is not formed as `ir::hip` says.
    pub fn new(m: &Module<Hip>) -> Result<Live> {
        let mut l = Live {
            roots: vec![],
            of: FxHashMap::default(),
            parent: FxHashMap::default(),
            known: FxHashMap::default(),
            times: FxHashMap::default(),
            last_time: 0,
        };
        let main = &m.graphs[m.main];
        for &v in &main.inputs {
            l.root(m.main, v, RootKind::Input, 0);
            for &d in &main.values[v].ty.shape {
                // An axis that is exactly a symbol gives the symbol its value.
                if let Some(s) = m.dims.as_symbol(d) {
                    l.known.entry(s).or_insert(Point { region: m.main, pos: 0 });
                }
            }
        }
        let mut now = 0;
        l.walk(m, m.main, &mut now, &mut vec![])?;
        l.last_time = now;
        Ok(l)
    }

    fn root(&mut self, region: RegionId, value: Value, kind: RootKind, need: usize) -> usize {
        self.roots.push(Root { region, value, kind, span: None, need });
        self.of.insert((region, value), self.roots.len() - 1);
        self.roots.len() - 1
    }

    /// The root behind a value; constants get theirs when first asked for.
    fn resolve(&mut self, m: &Module<Hip>, region: RegionId, v: Value) -> Result<usize> {
        if let Some(&r) = self.of.get(&(region, v)) {
            return Ok(r);
        }
        match m.graphs[region].values[v].def {
            Def::Const(_) => Ok(self.root(region, v, RootKind::Const, 0)),
            _ => Err(Diagnostic::new(ErrorKind::Internal, format!("{v} of {region} is used before it is defined"))),
        }
    }

    /// Records a use at a time and place.
    fn touch(&mut self, root: usize, time: u32, at: Point) {
        let mut at = at;
        let home = self.roots[root].region;
        while at.region != home {
            match self.parent.get(&at.region) {
                Some(p) => at = *p,
                None => break,
            }
        }
        let r = &mut self.roots[root];
        r.span = Some(match r.span {
            None => {
                r.need = at.pos;
                (time, time)
            }
            Some((a, b)) => (a.min(time), b.max(time)),
        });
    }

    fn walk(&mut self, m: &Module<Hip>, region: RegionId, now: &mut u32, outer: &mut Vec<RegionId>) -> Result<()> {
        let g = &m.graphs[region];
        if outer.contains(&region) {
            return Err(Diagnostic::new(ErrorKind::Internal, format!("{region} contains itself")));
        }
        outer.push(region);
        for (pos, &n) in g.order.iter().enumerate() {
            let node = &g.nodes[n];
            *now += 1;
            let time = *now;
            self.times.insert((region, n), time);
            let here = Point { region, pos };
            let operand = |i: usize| {
                node.ins
                    .get(i)
                    .copied()
                    .flatten()
                    .ok_or_else(|| broken(m, region, n, format!("operand {i} is missing")))
            };
            match &node.op {
                HipOp::Alloc | HipOp::Output(_) => {
                    let kind = if node.op == HipOp::Alloc { RootKind::Alloc } else { RootKind::Output };
                    let &v = node.outs.first().ok_or_else(|| broken(m, region, n, "a buffer without a value"))?;
                    self.root(region, v, kind, pos);
                }
                HipOp::View { .. } => {
                    let r = self.resolve(m, region, operand(0)?)?;
                    let &v = node.outs.first().ok_or_else(|| broken(m, region, n, "a view without a value"))?;
                    self.of.insert((region, v), r);
                }
                HipOp::If { .. } | HipOp::Loop(_) => self.control(m, here, n, now, outer)?,
                _ => {
                    let (reads, writes) = accesses(g, n);
                    for v in reads.into_iter().chain(writes) {
                        let r = self.resolve(m, region, v)?;
                        self.touch(r, time, here);
                    }
                    if let HipOp::Readback { sym, .. } = node.op {
                        self.known.insert(sym, Point { region, pos: pos + 1 });
                    }
                }
            }
        }
        outer.pop();
        Ok(())
    }

    fn control(
        &mut self,
        m: &Module<Hip>,
        here: Point,
        n: Node,
        now: &mut u32,
        outer: &mut Vec<RegionId>,
    ) -> Result<()> {
        let g = &m.graphs[here.region];
        let node = &g.nodes[n];
        let entry = *now;
        if let Some(c) = node.ins.first().copied().flatten() {
            let r = self.resolve(m, here.region, c)?;
            self.touch(r, entry, here);
        }
        let after = Point { region: here.region, pos: here.pos + 1 };
        let results: Vec<usize> =
            node.outs.iter().map(|&v| self.root(here.region, v, RootKind::Result, here.pos)).collect();
        let mut operands = vec![];
        for v in node.ins.iter().skip(1) {
            let v = v.ok_or_else(|| broken(m, here.region, n, "a capture is missing"))?;
            operands.push(self.resolve(m, here.region, v)?);
        }
        let n_carried = match &node.op {
            HipOp::Loop(l) => l.n_carried as usize,
            _ => 0,
        };
        if n_carried > operands.len() || n_carried > results.len() {
            return Err(broken(m, here.region, n, "fewer operands or results than carried values"));
        }
        // A loop's states live from the entry on; initial values are read there.
        for i in 0..n_carried {
            self.touch(operands[i], entry, here);
            self.touch(results[i], entry, here);
        }
        let first_root = self.roots.len();
        for &body in &node.regions {
            self.parent.insert(body, here);
            let params = results[..n_carried].iter().chain(&operands[n_carried..]);
            let b = &m.graphs[body];
            if b.inputs.len() != operands.len() {
                return Err(broken(m, here.region, n, "parameters of a region do not fit the operands"));
            }
            for (&v, &r) in b.inputs.iter().zip(params) {
                self.of.insert((body, v), r);
            }
            if let HipOp::Loop(l) = &node.op {
                let start = Point { region: body, pos: 0 };
                self.known.insert(l.iter, start);
                self.known.extend(l.dims.iter().map(|d| (d.sym, start)));
            }
            self.walk(m, body, now, outer)?;
            *now += 1;
            let end = Point { region: body, pos: b.order.len() };
            for &v in &b.outputs {
                let r = self.resolve(m, body, v)?;
                self.touch(r, *now, end);
            }
            for &r in &results {
                self.touch(r, *now, here);
            }
        }
        *now += 1;
        match &node.op {
            HipOp::If { dims } => self.known.extend(dims.iter().map(|d| (d.sym, after))),
            HipOp::Loop(l) => {
                let defined = l.counts.iter().copied().chain(l.dims.iter().filter_map(|d| d.result));
                self.known.extend(defined.map(|s| (s, after)));
                // What is defined outside and used in the body is needed in every iteration.
                for r in 0..first_root {
                    if self.roots[r].span.is_some_and(|(_, b)| b > entry) {
                        self.touch(r, entry, here);
                        self.touch(r, *now, here);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The innermost point at which every symbol of `d` is known, as seen from `region`.
    ///
    /// # Errors
    /// `Internal` with the symbol that is not known there.
    pub fn known_at(&self, m: &Module<Hip>, d: DimId, region: RegionId) -> Result<Point> {
        let mut chain = vec![region];
        while let Some(p) = self.parent.get(&chain[chain.len() - 1]) {
            chain.push(p.region);
        }
        let depth = |r: RegionId| chain.iter().rev().position(|&c| c == r);
        let mut best = Point { region: m.main, pos: 0 };
        for s in m.dims.symbols_of(d) {
            let p = self.known.get(&s).filter(|p| depth(p.region).is_some());
            let p = p.ok_or_else(|| unknown_symbol(m, s, d))?;
            best = best.max_by_depth(*p, &depth);
        }
        Ok(best)
    }
}

impl Point {
    fn max_by_depth(self, o: Point, depth: &impl Fn(RegionId) -> Option<usize>) -> Point {
        if (depth(o.region), o.pos) > (depth(self.region), self.pos) { o } else { self }
    }
}

/// An error for an extent that no node gives a value.
pub(crate) fn unknown_symbol(m: &Module<Hip>, s: SymId, d: DimId) -> Diagnostic {
    let from = match m.dims.sym(s).origin {
        Origin::Input { input, axis } => format!("axis {axis} of input {input}"),
        Origin::ShapeValue => "a shape value".into(),
        Origin::DeviceResult => "a device result".into(),
        Origin::Region => "a region's parameter".into(),
        _ => "no known place".into(),
    };
    Diagnostic::new(
        ErrorKind::Internal,
        format!("extent \"{}\" (from {from}) has no value where {} is needed", m.dims.sym(s).name, m.dims.display(d)),
    )
}
