//! Removes buffers, writes and readbacks that nothing needs.

use crate::nests;
use ir::Module;
use ir::graph::{RegionId, Value};
use ir::hip::{Hip, HipOp};
use rustc_hash::FxHashSet;
use tensor::{DimId, DimPool, Entity, SymId};

/// Symbols that extents of the op and of its operands' types mention.
fn symbols_of_node(m: &Module<Hip>, r: RegionId, n: ir::Node, out: &mut FxHashSet<SymId>) {
    let g = &m.graphs[r];
    let node = &g.nodes[n];
    let mut dims: Vec<DimId> = vec![];
    for &v in node.ins.iter().flatten().chain(&node.outs) {
        let ty = &g.values[v].ty;
        dims.extend(ty.shape.iter().chain(&ty.strides));
    }
    match &node.op {
        HipOp::View { offset } => dims.push(*offset),
        HipOp::Launch(nest) => dims.extend(nests::dims_of(nest)),
        HipOp::Call(c) => dims.extend(&c.ints),
        HipOp::StoreDims(x) => dims.extend(x.iter()),
        HipOp::Readback { max, .. } => dims.push(*max),
        HipOp::If { dims: d } => dims.extend(d.iter().flat_map(|d| [d.then, d.els])),
        HipOp::Loop(l) => {
            dims.extend(l.trips);
            dims.extend(l.dims.iter().flat_map(|d| [d.init, d.next]));
        }
        _ => {}
    }
    let mut seen = FxHashSet::default();
    for d in dims {
        if seen.insert(d) {
            add_symbols(&m.dims, d, out);
        }
    }
    for &b in &node.regions {
        symbols_of_region(m, b, out);
    }
}
fn add_symbols(p: &DimPool, d: DimId, out: &mut FxHashSet<SymId>) {
    if p.as_const(d).is_none() {
        out.extend(p.symbols_of(d));
    }
}
fn symbols_of_region(m: &Module<Hip>, r: RegionId, out: &mut FxHashSet<SymId>) {
    for &n in &m.graphs[r].order {
        symbols_of_node(m, r, n, out);
    }
}

/// How many of a node's operands it reads; the rest it writes.
pub(crate) fn n_reads(m: &Module<Hip>, r: RegionId, n: ir::Node) -> usize {
    let node = &m.graphs[r].nodes[n];
    match &node.op {
        HipOp::Launch(nest) => nest.operands.iter().filter(|o| !o.written).count(),
        HipOp::Call(c) => c.n_reads as usize,
        HipOp::HostCall { n_reads, .. } => *n_reads as usize,
        HipOp::Copy | HipOp::Carry | HipOp::Reuse => 1,
        HipOp::StoreDims(_) => 0,
        _ => node.ins.len(),
    }
}

/// Removes what has no effect in a region: writes to buffers that nobody reads, and what only they needed.
pub(crate) fn remove_dead(m: &mut Module<Hip>, r: RegionId) {
    let g = &m.graphs[r];
    let root = roots(m, r);
    let mut live: FxHashSet<Value> = g.outputs.iter().flat_map(|&v| [v, root[v.index()]]).collect();
    // Parameters of a body may be written for the outside (slices of scan outputs).
    live.extend(g.inputs.iter().copied());
    let mut symbols: FxHashSet<SymId> = FxHashSet::default();
    for guard in &m.guards {
        add_symbols(&m.dims, guard.lhs, &mut symbols);
        add_symbols(&m.dims, guard.rhs, &mut symbols);
    }
    // Symbols that the node which owns this body asks for at its end.
    for owner in m.graphs.values() {
        for &n in &owner.order {
            let node = &owner.nodes[n];
            if node.regions.contains(&r) {
                let dims: Vec<DimId> = match &node.op {
                    HipOp::If { dims } => dims.iter().flat_map(|d| [d.then, d.els]).collect(),
                    HipOp::Loop(l) => l.dims.iter().map(|d| d.next).collect(),
                    _ => vec![],
                };
                dims.into_iter().for_each(|d| add_symbols(&m.dims, d, &mut symbols));
            }
        }
    }
    let mut keep = vec![];
    for &n in g.order.iter().rev() {
        let node = &g.nodes[n];
        let needed = match &node.op {
            HipOp::Alloc | HipOp::View { .. } => node.outs.iter().any(|v| live.contains(v)),
            HipOp::Output(_) | HipOp::PassOutput(_) => true,
            HipOp::Readback { sym, .. } => symbols.contains(sym),
            HipOp::If { .. } | HipOp::Loop(_) => true,
            _ => node.ins[n_reads(m, r, n)..].iter().flatten().any(|v| live.contains(&root[v.index()])),
        };
        if needed {
            for &v in node.ins.iter().flatten() {
                live.insert(v);
                live.insert(root[v.index()]);
            }
            symbols_of_node(m, r, n, &mut symbols);
            keep.push(n);
        }
    }
    keep.reverse();
    m.graphs[r].order = keep;
}

/// The buffer behind each value: what the chain of views starts from.
pub fn roots(m: &Module<Hip>, r: RegionId) -> Vec<Value> {
    let g = &m.graphs[r];
    let mut root: Vec<Value> = g.values.keys().collect();
    for &n in &g.order {
        let node = &g.nodes[n];
        if let (HipOp::View { .. }, Some(Some(x))) = (&node.op, node.ins.first()) {
            root[node.outs[0].index()] = root[x.index()];
        }
    }
    root
}
