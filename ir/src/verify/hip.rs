//! The verifier of the HIP dialect.

use super::{broken, nest::verify_nest, path, regions, ssa};
use crate::graph::{Def, Graph, Module, Node, NodeData, RegionId, Value};
use crate::hip::{Hip, HipOp, HipType};
use crate::nest::{Expr, Nest, NestOperand, Phase};
use rustc_hash::FxHashSet;
use tensor::dims::Proof;
use tensor::{DType, DimId, DimPool, Entity, Result};

/// Checks a module of the HIP dialect.
///
/// # Errors
/// The first rule that does not hold, with the node.
pub fn verify_hip(m: &Module<Hip>) -> Result<()> {
    // Proofs make extents; the module's own pool stays as it is.
    let mut dims = m.dims.clone();
    for r in regions(m)? {
        let g = &m.graphs[r];
        ssa(m, r, g)?;
        for (v, data) in g.values.iter() {
            ty(&data.ty, &dims).map_err(|e| e.note("value", format!("%{v} of {r}")))?;
        }
        for &n in &g.order {
            let node = &g.nodes[n];
            operation(m, g, node, &mut dims).map_err(|e| e.node(path(r, n, node)))?;
        }
    }
    let g = m.graph();
    let mut state = State { m, outputs: FxHashSet::default() };
    let mut written: Vec<bool> = g.values.values().map(|d| matches!(d.def, Def::Input(_) | Def::Const(_))).collect();
    state.region(m.main, &mut written, &mut dims)?;
    match (0..g.outputs.len()).find(|&i| !state.outputs.contains(&u32::try_from(i).unwrap_or(u32::MAX))) {
        Some(i) => Err(broken(format!("nothing hands out graph output {i}"))),
        None => Ok(()),
    }
}

fn ty(t: &HipType, dims: &DimPool) -> Result<()> {
    if t.shape.len() != t.strides.len() {
        return Err(broken(format!("{} extents but {} strides", t.shape.len(), t.strides.len())));
    }
    match t.shape.iter().chain(&t.strides).find(|&&d| !dims.contains(d)) {
        Some(d) => Err(broken(format!("{d} is not an extent of the module"))),
        None => Ok(()),
    }
}

/// The buffer behind a value: views are looked through.
fn root(g: &Graph<Hip>, mut v: Value) -> Value {
    while let Some(n) = g.def_node(v) {
        match (&n.op, n.ins.first()) {
            (HipOp::View { .. }, Some(Some(from))) => v = *from,
            _ => break,
        }
    }
    v
}

/// How many operands are read; the rest are written.
fn n_reads(n: &NodeData<Hip>) -> usize {
    let count = |k: u32| usize::try_from(k).unwrap_or(usize::MAX).min(n.ins.len());
    match &n.op {
        HipOp::Launch(nest) => nest.operands.iter().take_while(|p| !p.written).count().min(n.ins.len()),
        HipOp::Call(c) => count(c.n_reads),
        HipOp::HostCall { n_reads, .. } => count(*n_reads),
        HipOp::Copy | HipOp::Carry | HipOp::Reuse => count(1),
        HipOp::StoreDims(_) => 0,
        _ => n.ins.len(),
    }
}

fn operation(m: &Module<Hip>, g: &Graph<Hip>, n: &NodeData<Hip>, dims: &mut DimPool) -> Result<()> {
    let counts = |ins: usize, outs: usize| {
        if (n.ins.len(), n.outs.len()) == (ins, outs) {
            return Ok(());
        }
        Err(broken(format!("has {} operands and {} results, not {ins} and {outs}", n.ins.len(), n.outs.len())))
    };
    let present = |i: usize| -> Result<&HipType> {
        let v = n.ins.get(i).copied().flatten().ok_or_else(|| broken(format!("operand {i} is absent")))?;
        Ok(&g.values[v].ty)
    };
    let known = |ds: &[tensor::DimId]| match ds.iter().find(|&&d| !m.dims.contains(d)) {
        Some(d) => Err(broken(format!("{d} is not an extent of the module"))),
        None => Ok(()),
    };
    match &n.op {
        HipOp::Alloc | HipOp::Output(_) => counts(0, 1),
        HipOp::PassOutput(_) => {
            counts(1, 0)?;
            present(0).map(|_| ())
        }
        HipOp::View { offset } => {
            counts(1, 1)?;
            known(&[*offset])?;
            view(present(0)?, &g.values[n.outs[0]].ty, *offset, dims)
        }
        HipOp::Launch(nest) => {
            counts(nest.operands.len(), 0)?;
            verify_nest(nest, dims)?;
            for (i, p) in nest.operands.iter().enumerate() {
                let t = present(i)?;
                if t.dtype != p.dtype {
                    return Err(broken(format!("operand {i} is {} but the nest's p{i} is {}", t.dtype, p.dtype)));
                }
            }
            overlaps(g, n, nest, dims)
        }
        HipOp::Call(c) => {
            if usize::try_from(c.n_reads).is_ok_and(|k| k > n.ins.len()) || !n.outs.is_empty() {
                return Err(broken(format!("{} reads {} of {} operands", c.kernel, c.n_reads, n.ins.len())));
            }
            known(&c.ints)
        }
        HipOp::HostCall { n_reads, op } => {
            if usize::try_from(*n_reads).is_ok_and(|k| k > n.ins.len()) || op.index() >= m.registry.rows().len() {
                return Err(broken("a host call with too few operands or of no row"));
            }
            Ok(())
        }
        HipOp::Copy => {
            counts(2, 0)?;
            let (a, b) = (present(0)?.clone(), present(1)?.clone());
            if a.dtype != b.dtype || a.shape.len() != b.shape.len() {
                return Err(broken("a copy between different types"));
            }
            match a.shape.iter().zip(&b.shape).any(|(&x, &y)| dims.prove_eq(x, y) == Proof::No) {
                true => Err(broken("a copy between different extents")),
                false => Ok(()),
            }
        }
        HipOp::Carry | HipOp::Reuse => {
            counts(2, 0)?;
            let (a, b) = (present(0)?.clone(), present(1)?.clone());
            if a.dtype != b.dtype || a.shape.len() != b.shape.len() {
                return Err(broken("operand 1 is of another type than operand 0"));
            }
            match a.shape.iter().zip(&b.shape).any(|(&x, &y)| dims.prove_le(x, y) == Proof::No) {
                true => Err(broken("operand 1 is shorter than operand 0")),
                false => Ok(()),
            }
        }
        HipOp::StoreDims(ds) => {
            counts(1, 0)?;
            known(ds)?;
            let t = present(0)?.clone();
            let n = dims.product(t.shape.iter().copied());
            if !matches!(t.dtype, DType::I32 | DType::I64) || dims.as_const(n) != i64::try_from(ds.len()).ok() {
                return Err(broken(format!(
                    "{} dims do not fill a {} of {} elements",
                    ds.len(),
                    t.dtype,
                    dims.display(n)
                )));
            }
            Ok(())
        }
        HipOp::Readback { max, .. } => {
            counts(1, 0)?;
            known(&[*max])?;
            match present(0)?.dtype.is_int() {
                true => Ok(()),
                false => Err(broken("reads back something that is not an integer")),
            }
        }
        HipOp::If { dims: ds } => {
            ds.iter().try_for_each(|d| known(&[d.then, d.els]))?;
            let n_captures = usize::try_from(n.n_captures).unwrap_or(usize::MAX);
            if n.regions.len() != 2 || n.ins.len() != n_captures.saturating_add(1) {
                return Err(broken("a branch has a condition, captures and two bodies"));
            }
            condition(present(0)?)?;
            n.regions.iter().try_for_each(|&r| {
                body(m, r, n_captures, n.outs.len())?;
                allocated(&m.graphs[r], r, 0)
            })
        }
        HipOp::Loop(l) => {
            l.dims.iter().try_for_each(|d| known(&[d.init, d.next]))?;
            known(l.trips.as_slice())?;
            let n_carried = usize::try_from(l.n_carried).unwrap_or(usize::MAX);
            let n_captures = usize::try_from(n.n_captures).unwrap_or(usize::MAX);
            let &[r] = n.regions.as_slice() else { return Err(broken("a loop has one body")) };
            if n.ins.len() != n_carried.saturating_add(n_captures).saturating_add(1) || n.outs.len() != n_carried {
                return Err(broken(
                    "a loop has a condition, carried values and captures, and a result for each carried value",
                ));
            }
            if l.cond != n.ins[0].is_some() {
                return Err(broken("operand 0 of a loop is present just when it has a condition"));
            }
            if l.cond {
                condition(present(0)?)?;
            }
            body(m, r, n_carried + n_captures, n_carried + usize::from(l.cond))?;
            allocated(&m.graphs[r], r, usize::from(l.cond))
        }
    }
}

/// Operands that are one buffer: only where each point reads the very elements that it then writes, or writes several places of
/// it.
fn overlaps(g: &Graph<Hip>, n: &NodeData<Hip>, nest: &Nest, dims: &mut DimPool) -> Result<()> {
    let root_of = |i: usize| n.ins.get(i).copied().flatten().map(|v| root(g, v));
    let loads = |k: usize| {
        nest.exprs.iter().filter_map(move |e| match e {
            Expr::Load(a) | Expr::LoadIf { access: a, .. } if usize::from(a.operand) == k => Some(a),
            _ => None,
        })
    };
    for (w, to) in nest.operands.iter().enumerate().filter(|(_, p)| p.written) {
        for (k, from) in nest.operands.iter().enumerate().filter(|&(k, _)| k != w && root_of(k) == root_of(w)) {
            let stores = nest.phases.iter().flat_map(|p| match p {
                Phase::Store { stores, .. } => stores.as_slice(),
                Phase::Reduce(_) => &[],
            });
            let mut stores = stores.map(|(a, _)| a).filter(|a| usize::from(a.operand) == w);
            // Places of an assembled result are disjoint by construction; the same place twice is not.
            if from.written && n.ins.get(k) != n.ins.get(w) {
                continue;
            }
            // Another place of the buffer: whether the two share elements depends on extents. What lowering places side by side is
            // disjoint; here only the same place is judged.
            if let (Some(&Some(a)), Some(&Some(b))) = (n.ins.get(k), n.ins.get(w))
                && offset(g, a, dims) != offset(g, b, dims)
            {
                continue;
            }
            // The stride of an axis of extent 1 moves nothing.
            let strides = |t: &NestOperand, dims: &DimPool| -> Vec<Option<DimId>> {
                let one = |d: DimId| dims.as_const(d) == Some(1);
                t.shape.iter().zip(&t.strides).map(|(&d, &s)| (!one(d)).then_some(s)).collect()
            };
            let same_place = from.shape == to.shape && strides(from, dims) == strides(to, dims);
            if from.written || !same_place || stores.any(|s| loads(k).any(|l| l.coords != s.coords)) {
                return Err(broken(format!("p{k} and p{w} are one buffer, and points touch what is not their own")));
            }
        }
    }
    Ok(())
}

/// First element of a view, relative to its root buffer.
fn offset(g: &Graph<Hip>, mut v: Value, dims: &mut DimPool) -> DimId {
    let mut sum = dims.constant(0);
    while let Some(n) = g.def_node(v) {
        let (HipOp::View { offset }, Some(&Some(base))) = (&n.op, n.ins.first()) else { break };
        sum = dims.add(sum, *offset);
        v = base;
    }
    sum
}

fn condition(t: &HipType) -> Result<()> {
    if t.dtype == DType::Bool { Ok(()) } else { Err(broken(format!("a condition is bool, not {}", t.dtype))) }
}

fn body(m: &Module<Hip>, r: RegionId, n_in: usize, n_out: usize) -> Result<()> {
    let g = &m.graphs[r];
    if (g.inputs.len(), g.outputs.len()) == (n_in, n_out) {
        return Ok(());
    }
    Err(broken(format!(
        "{r} has {} parameters and {} outputs, not {n_in} and {n_out}",
        g.inputs.len(),
        g.outputs.len()
    )))
}

/// Outputs of a body from `skip` on are buffers that it allocates, each once.
fn allocated(g: &Graph<Hip>, r: RegionId, skip: usize) -> Result<()> {
    let mut seen = FxHashSet::default();
    for &v in &g.outputs[skip..] {
        if !g.def_node(v).is_some_and(|n| n.op == HipOp::Alloc) || !seen.insert(v) {
            return Err(broken(format!("output %{v} of {r} is not a buffer that the body allocates for it alone")));
        }
    }
    Ok(())
}

/// A view shows elements of its operand only, as far as that can be told.
fn view(from: &HipType, to: &HipType, offset: tensor::DimId, dims: &mut DimPool) -> Result<()> {
    if from.space != to.space || from.layout != to.layout {
        return Err(broken("a view has the space and layout of its operand"));
    }
    let zero = dims.constant(0);
    if from.dtype.bits() != to.dtype.bits() {
        // The bytes of all packed elements.
        let n = dims.product(from.shape.iter().copied());
        let per_byte = dims.constant(i64::try_from(8 / from.dtype.bits().clamp(1, 8)).unwrap_or(1));
        let n_bytes = dims.ceildiv(n, per_byte);
        let whole = offset == zero && to.shape.as_slice() == [n_bytes] && dims.as_const(to.strides[0]) == Some(1);
        return match from.dtype.size().is_none() && to.dtype == DType::U8 && whole {
            true => Ok(()),
            false => Err(broken(format!("a view of {} as {}", from.dtype, to.dtype))),
        };
    }
    let span = |t: &HipType, dims: &mut DimPool| {
        let one = dims.constant(1);
        let (mut low, mut high) = (zero, zero);
        for (&d, &s) in t.shape.iter().zip(&t.strides) {
            let last = dims.sub(d, one);
            let reach = dims.mul(last, s);
            if dims.range(s).1 < 0 { low = dims.add(low, reach) } else { high = dims.add(high, reach) }
        }
        (low, high)
    };
    let empty = to.shape.iter().chain(&from.shape).any(|&d| dims.range(d).0 < 1);
    let (low, high) = span(to, dims);
    let (from_low, from_high) = span(from, dims);
    let (first, last) = (dims.add(offset, low), dims.add(offset, high));
    if !empty && (dims.prove_le(from_low, first) == Proof::No || dims.prove_le(last, from_high) == Proof::No) {
        return Err(broken(format!(
            "the view shows elements {} to {} of a buffer that has {} to {}",
            dims.display(first),
            dims.display(last),
            dims.display(from_low),
            dims.display(from_high)
        )));
    }
    Ok(())
}

/// Which buffers hold something, and which graph outputs have been handed out.
struct State<'a> {
    m: &'a Module<Hip>,
    outputs: FxHashSet<u32>,
}

impl State<'_> {
    /// Follows a region; `written` says which of its values hold something, at the start and at the end.
    fn region(&mut self, r: RegionId, written: &mut Vec<bool>, dims: &mut DimPool) -> Result<()> {
        let m = self.m;
        let g = &m.graphs[r];
        written.resize(g.values.len(), false);
        for &n in &g.order {
            let node = &g.nodes[n];
            self.node(r, g, n, node, written, dims).map_err(|e| e.node(path(r, n, node)))?;
        }
        for &v in &g.outputs {
            read(g, v, written, dims).map_err(|e| e.note("output of", r.to_string()))?;
        }
        for node in g.order.iter().map(|&n| &g.nodes[n]).filter(|n| matches!(n.op, HipOp::Output(_))) {
            node.outs.iter().try_for_each(|&v| read(g, v, written, dims))?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        r: RegionId,
        g: &Graph<Hip>,
        _: Node,
        n: &NodeData<Hip>,
        written: &mut [bool],
        dims: &mut DimPool,
    ) -> Result<()> {
        match &n.op {
            HipOp::Output(i) | HipOp::PassOutput(i) => {
                let outputs = self.m.graph().outputs.len();
                if r != self.m.main || usize::try_from(*i).is_ok_and(|i| i >= outputs) || !self.outputs.insert(*i) {
                    return Err(broken(format!("graph output {i} is handed out twice, in a body, or does not exist")));
                }
            }
            HipOp::View { .. } => return Ok(()),
            _ => {}
        }
        let split = n_reads(n);
        if !matches!(n.op, HipOp::If { .. } | HipOp::Loop(_)) {
            for v in n.ins[..split].iter().flatten() {
                read(g, *v, written, dims)?;
            }
            for v in n.ins[split..].iter().flatten() {
                let b = root(g, *v);
                let constant = matches!(g.values[b].def, Def::Const(_));
                if constant || (r == self.m.main && matches!(g.values[b].def, Def::Input(_))) {
                    return Err(broken(format!("writes to %{b}, which is a constant or an input of the graph")));
                }
                written[b.index()] = true;
            }
        }
        if n.regions.is_empty() {
            return Ok(());
        }
        // Captures may be destinations: they hold what they held before; the other operands are read.
        let own = n.ins.len() - usize::try_from(n.n_captures).unwrap_or(0);
        for v in n.ins[..own].iter().flatten() {
            read(g, *v, written, dims)?;
        }
        let captured: Vec<Value> = n.ins[own..].iter().flatten().map(|&v| root(g, v)).collect();
        let mut after: Option<Vec<bool>> = None;
        for &body in &n.regions {
            let inner = &self.m.graphs[body];
            let first = inner.inputs.len() - captured.len();
            let mut state: Vec<bool> = inner.values.values().map(|d| matches!(d.def, Def::Const(_))).collect();
            inner.inputs[..first].iter().for_each(|v| state[v.index()] = true);
            for (&p, &c) in inner.inputs[first..].iter().zip(&captured) {
                state[p.index()] = written[c.index()];
            }
            self.region(body, &mut state, dims)?;
            let now: Vec<bool> = inner.inputs[first..].iter().map(|p| state[p.index()]).collect();
            // What only one arm writes does not count as written after a branch.
            after = Some(match after {
                None => now,
                Some(a) => a.into_iter().zip(now).map(|(a, b)| a && b).collect(),
            });
        }
        for (c, w) in captured.iter().zip(after.unwrap_or_default()) {
            written[c.index()] |= w;
        }
        n.outs.iter().for_each(|v| written[v.index()] = true);
        Ok(())
    }
}

fn read(g: &Graph<Hip>, v: Value, written: &[bool], dims: &mut DimPool) -> Result<()> {
    let b = root(g, v);
    if written[b.index()] {
        return Ok(());
    }
    // A buffer without elements holds all it ever will.
    let n = dims.product(g.values[b].ty.shape.iter().copied());
    if dims.as_const(n) == Some(0) {
        return Ok(());
    }
    Err(broken(format!("%{b} is read before anything is written to it")))
}
