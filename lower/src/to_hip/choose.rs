//! The first pass of lowering: which nodes run at all, and which candidate each takes.

use super::{Lowering, Options};
use crate::explain::NodeChoice;
use crate::nests;
use ir::consts::ConstId;
use ir::graph::{Def, Node, RegionId, Value};
use ir::lowering::{CallSpec, Candidate, NodeCtx, Operand, Part, Plan, Refusal, ViewOp};
use ir::nest::{Nest, compute_dtype};
use ir::op::OpDef;
use kernels::catalog::{Access, CATALOG, KernelDef};
use rustc_hash::{FxHashMap, FxHashSet};
use tensor::dims::Origin;
use tensor::{DType, Diagnostic, ErrorKind, Result, SymId};

/// What a node does when emitted.
#[derive(Clone)]
pub(super) enum Action {
    /// Nothing: its results are dims, or nothing uses them.
    Nothing,
    View(ViewOp),
    Nest(Nest),
    /// Operand 0 becomes the result, into which the nest stores.
    Update(Nest),
    Assemble(Vec<Part>),
    Call(CallSpec),
    Host,
    /// A branch whose condition is a constant: this region in place of the node.
    Inline(RegionId),
    Branch,
    Loop,
}

#[derive(Clone)]
pub(super) struct Choice {
    pub action: Action,
    /// Position in `Explain::nodes`.
    pub note: usize,
}

/// Chooses for all nodes.
pub(super) fn choose(cx: &mut Lowering, options: &Options) -> Result<()> {
    let mut st = State { options, failed: vec![], konst: FxHashMap::default() };
    st.region(cx, cx.src.main)?;
    if st.failed.is_empty() {
        return Ok(());
    }
    let n = st.failed.len();
    let mut e = Diagnostic::new(
        ErrorKind::Unsupported,
        format!("{n} {} cannot run on this target", if n == 1 { "node" } else { "nodes" }),
    );
    if let Some((_, path, _)) = st.failed.first() {
        e = e.node(path.clone());
    }
    for (op, path, reasons) in st.failed {
        e = e.note(op, format!("{path}: {reasons}"));
    }
    Err(e)
}

struct State<'a> {
    options: &'a Options,
    /// Operator, path, reasons.
    failed: Vec<(String, String, String)>,
    /// Constants that parameters of bodies stand for.
    konst: FxHashMap<(RegionId, Value), ConstId>,
}

impl State<'_> {
    fn region(&mut self, cx: &mut Lowering, r: RegionId) -> Result<()> {
        let needed = needed(cx, r);
        for &n in &cx.src.graphs[r].order {
            let node = &cx.src.graphs[r].nodes[n];
            let op = cx.src.registry[node.op].full_name();
            let mut choice =
                NodeChoice { path: node.origin.to_string(), op, chosen: String::new(), refused: vec![], notes: vec![] };
            let note = cx.explain.nodes.len();
            let action = if !needed.contains(&n) {
                let known = node.outs.iter().any(|&v| cx.host_known(r, v).is_some());
                choice.chosen = if known { "shape" } else { "dead" }.into();
                Action::Nothing
            } else {
                match self.node(cx, r, n, &mut choice) {
                    Some(a) => a,
                    None => {
                        let why: Vec<String> = choice.refused.iter().map(|(c, w)| format!("{c}: {w}")).collect();
                        let version = &cx.src.registry[node.op];
                        let op = format!("{} (since {})", choice.op, version.since);
                        self.failed.push((op, choice.path.clone(), why.join("; ")));
                        choice.chosen = "refused".into();
                        Action::Nothing
                    }
                }
            };
            cx.explain.nodes.push(choice);
            let bodies: Vec<RegionId> = match &action {
                Action::Inline(b) => vec![*b],
                Action::Branch | Action::Loop => node.regions.to_vec(),
                _ => vec![],
            };
            for b in bodies {
                if matches!(action, Action::Loop) {
                    let iter = cx.out.dims.symbol("iter", Origin::Region);
                    cx.iterations.insert(b, iter);
                    let trips = node.ins.first().copied().flatten().and_then(|v| cx.info.values(r, v));
                    if let Some(&[n]) = trips.map(|x| x.as_slice()) {
                        cx.below.push((iter, n));
                    }
                }
                let n_caps = node.n_captures as usize;
                let params = &cx.src.graphs[b].inputs;
                let (caps, own) = (&node.ins[node.ins.len() - n_caps..], params.len().saturating_sub(n_caps));
                for (&p, v) in params[own..].iter().zip(caps) {
                    if let Some(c) = v.and_then(|v| self.konst_of(cx, r, v)) {
                        self.konst.insert((b, p), c);
                    }
                }
                self.region(cx, b)?;
            }
            cx.choices.insert((r, n), Choice { action, note });
        }
        Ok(())
    }

    fn konst_of(&self, cx: &Lowering, r: RegionId, v: Value) -> Option<ConstId> {
        cx.src.graphs[r].as_const(v).or_else(|| self.konst.get(&(r, v)).copied())
    }

    /// The candidate that takes the node; refusals go to `choice`.
    fn node(&mut self, cx: &mut Lowering, r: RegionId, n: Node, choice: &mut NodeChoice) -> Option<Action> {
        let src = cx.src;
        let node = &src.graphs[r].nodes[n];
        let def = &src.registry[node.op];
        let g = &src.graphs[r];
        let operand = |v: Value| -> Plan<Operand> {
            let name = &g.values[v].name;
            let t = g.values[v].ty.as_tensor();
            let t = t.ok_or_else(|| {
                Refusal(format!("\"{name}\" is {}: only tensors are compiled", g.values[v].ty.display(&src.dims)))
            })?;
            let shape = t.shape.clone().ok_or_else(|| Refusal(format!("the rank of \"{name}\" is not known")))?;
            let number = || cx.iterations.get(&r).filter(|_| g.inputs.first() == Some(&v));
            let values = cx.info.values(r, v).cloned().or_else(|| number().map(|&d| [d].into_iter().collect()));
            Ok(Operand { dtype: t.dtype, shape, values, konst: self.konst_of(cx, r, v) })
        };
        let refuse = |choice: &mut NodeChoice, name: &str, why: String| {
            choice.refused.push((name.into(), why));
        };
        let n_own = node.ins.len() - node.n_captures as usize;
        let ins: Plan<Vec<Option<Operand>>> = node.ins[..n_own].iter().map(|v| v.map(operand).transpose()).collect();
        let outs: Plan<Vec<Operand>> = node.outs.iter().map(|&v| operand(v)).collect();
        let (ins, outs) = match (ins, outs) {
            (Ok(i), Ok(o)) => (i, o),
            (Err(e), _) | (_, Err(e)) => {
                refuse(choice, "any", e.0);
                return None;
            }
        };
        if def.lower.is_empty() {
            refuse(choice, "any", "its row has no candidates".into());
        }
        for c in def.lower {
            let (name, plan) = self.candidate(cx, r, n, def, c, &ins, &outs);
            match plan {
                Ok(a) => {
                    choice.chosen = name;
                    return Some(a);
                }
                Err(e) => refuse(choice, &name, e.0),
            }
        }
        None
    }

    #[allow(clippy::too_many_arguments)]
    fn candidate(
        &self,
        cx: &mut Lowering,
        r: RegionId,
        n: Node,
        def: &OpDef,
        c: &Candidate,
        ins: &[Option<Operand>],
        outs: &[Operand],
    ) -> (String, Plan<Action>) {
        let node = &cx.src.graphs[r].nodes[n];
        let (attrs, consts) = (&cx.src.attrs[node.attrs], &cx.src.consts);
        macro_rules! ctx {
            () => {
                &mut NodeCtx { dims: &mut cx.out.dims, attrs, ins, outs, consts, below: &cx.below }
            };
        }
        match c {
            Candidate::View(f) => {
                let plan = f(ctx!()).and_then(|v| match (&ins.first(), outs.first()) {
                    (Some(Some(a)), Some(b)) if v == ViewOp::Bits && a.dtype.bits() == b.dtype.bits() => {
                        Ok(Action::View(v))
                    }
                    (Some(Some(a)), Some(b)) if a.dtype != b.dtype => Err("a view cannot change the dtype".into()),
                    (Some(Some(_)), Some(_)) => Ok(Action::View(v)),
                    _ => Err("it has no operand".into()),
                });
                ("view".into(), plan)
            }
            Candidate::Pointwise(f) => {
                let plan = nests::pointwise(&mut cx.out.dims, &cx.eq, ins, outs, &mut |dims, nest, args| {
                    f(&mut NodeCtx { dims, attrs, ins, outs, consts, below: &cx.below }, nest, args)
                });
                ("loops".into(), plan.map(Action::Nest))
            }
            Candidate::Loops(f) => ("loops".into(), f(ctx!()).and_then(|nest| fits(nest, ins, outs)).map(Action::Nest)),
            Candidate::Update(f) => {
                let held = match outs.iter().find(|o| crate::bytes::is_packed(o.dtype)) {
                    Some(o) => Err(Refusal(format!("rows of {} share bytes", o.dtype))),
                    None => held_by_caller(cx, r, n),
                };
                let plan = held.and_then(|()| f(ctx!())).and_then(|nest| fits(nest, ins, outs)).map(Action::Update);
                ("update".into(), plan)
            }
            Candidate::Assemble(f) => {
                let plan = f(ctx!()).and_then(|parts| {
                    if let Some(o) = outs.iter().find(|o| crate::bytes::is_packed(o.dtype)) {
                        return Err(Refusal(format!("parts of {} share bytes", o.dtype)));
                    }
                    if outs.iter().any(|o| compute_dtype(o.dtype).is_none()) {
                        return Err(Refusal(format!("loops cannot copy {}", outs[0].dtype)));
                    }
                    Ok(Action::Assemble(parts))
                });
                ("assemble".into(), plan)
            }
            Candidate::Kernel(f) => match f(ctx!()) {
                Ok(spec) => {
                    (format!("kernel {}", spec.kernel), check_call(&spec, ins, outs).map(|()| Action::Call(spec)))
                }
                Err(e) => ("kernel".into(), Err(e)),
            },
            Candidate::Expand(_) => {
                ("expand".into(), Err("it stands for other operators, which pass expand puts in its place".into()))
            }
            Candidate::Regions => {
                let plan = match def.name {
                    "If" => match node.ins.first().copied().flatten().and_then(|v| self.konst_of(cx, r, v)) {
                        Some(c) => match cx.src.consts[c].read() {
                            Ok(t) if t.n_elems() == 1 => {
                                Ok(Action::Inline(node.regions[usize::from(t.view().i64_at(0) == 0)]))
                            }
                            _ => Err("its condition cannot be read".into()),
                        },
                        None => Ok(Action::Branch),
                    },
                    "Loop" => Ok(Action::Loop),
                    other => Err(Refusal(format!("bodies of {other} are not compiled"))),
                };
                ("regions".into(), plan)
            }
            Candidate::Host => {
                let strings = ins.iter().flatten().chain(outs).any(|o| o.dtype == DType::String);
                let plan = match def.reference {
                    _ if !self.options.host_ops => Err("host ops are off".into()),
                    _ if strings => Err("strings do not cross to the device".into()),
                    None => Err("it has no reference function".into()),
                    Some(_) => Ok(Action::Host),
                };
                ("host".into(), plan)
            }
            _ => ("unknown".into(), Err("this candidate is not known here".into())),
        }
    }
}

/// The nest, if it is one over the node's operands and results.
fn fits(nest: Nest, ins: &[Option<Operand>], outs: &[Operand]) -> Plan<Nest> {
    let want = ins.iter().flatten().count() + outs.len();
    if nest.operands.len() != want {
        return Err(Refusal(format!("its nest has {} operands, not {want}", nest.operands.len())));
    }
    match nest.operands.iter().find(|o| compute_dtype(o.dtype).is_none()) {
        Some(o) => Err(Refusal(format!("loops cannot compute with {}", o.dtype))),
        None => Ok(nest),
    }
}

/// Whether operand and result 0 of a node are the caller's: only then can they be in one place.
fn held_by_caller(cx: &Lowering, r: RegionId, n: Node) -> Plan<()> {
    let g = &cx.src.graphs[r];
    let node = &g.nodes[n];
    let from = node.ins.first().copied().flatten();
    if r != cx.src.main || !from.is_some_and(|v| matches!(g.values[v].def, Def::Input(_))) {
        return Err("operand 0 is no input of the model".into());
    }
    match node.outs.first().is_some_and(|v| g.outputs.contains(v)) {
        true => Ok(()),
        false => Err("the result is no output of the model".into()),
    }
}

/// Nodes that must run: some result is used as a tensor and is not known as dims, or the node counts what such dims need.
fn needed(cx: &Lowering, r: RegionId) -> FxHashSet<Node> {
    let g = &cx.src.graphs[r];
    let counted = counts(cx, r);
    let elements = elements(cx, r);
    let mut demanded: FxHashSet<Value> = g.outputs.iter().copied().collect();
    // What a guard says of an element is checked, whether anything else reads the element or not.
    let mut symbols: FxHashSet<SymId> = cx
        .src
        .guards
        .iter()
        .flat_map(|g| [g.lhs, g.rhs])
        .collect::<FxHashSet<_>>()
        .into_iter()
        .flat_map(|d| cx.src.dims.symbols_of(d))
        .filter(|&s| cx.src.dims.sym(s).origin == Origin::ShapeValue)
        .collect();
    let mut out = FxHashSet::default();
    for &n in g.order.iter().rev() {
        let node = &g.nodes[n];
        let gives =
            |made: &FxHashMap<Node, Vec<SymId>>| made.get(&n).is_some_and(|s| s.iter().any(|s| symbols.contains(s)));
        let mut needed = gives(&counted) || gives(&elements);
        for v in node.outs.iter().filter(|v| demanded.contains(v)) {
            match cx.host_known(r, *v) {
                Some(x) => symbols.extend(x.iter().flat_map(|&d| cx.src.dims.symbols_of(d))),
                None => needed = true,
            }
        }
        if needed {
            out.insert(n);
            demanded.extend(node.ins.iter().flatten());
            let extents = node.outs.iter().filter_map(|&v| g.values[v].ty.shape()).flatten();
            symbols.extend(extents.flat_map(|&d| cx.src.dims.symbols_of(d)));
        }
    }
    out
}

/// The symbols that only a node's kernel or bodies give values, by that node: they come up first in the extents of its results.
fn counts(cx: &Lowering, r: RegionId) -> FxHashMap<Node, Vec<SymId>> {
    let g = &cx.src.graphs[r];
    let extents = g.inputs.iter().filter_map(|&v| g.values[v].ty.shape()).flatten();
    let mut seen: FxHashSet<SymId> = extents.flat_map(|&d| cx.src.dims.symbols_of(d)).collect();
    let mut made: FxHashMap<Node, Vec<SymId>> = FxHashMap::default();
    for &n in &g.order {
        let extents = g.nodes[n].outs.iter().filter_map(|&v| g.values[v].ty.shape()).flatten();
        let counted = extents.filter_map(|&d| cx.src.dims.as_symbol(d));
        let own = |s: SymId| match cx.src.dims.sym(s).origin {
            Origin::DeviceResult => true,
            Origin::Region => !g.nodes[n].regions.is_empty(),
            _ => false,
        };
        for s in counted.filter(|&s| own(s) && seen.insert(s)) {
            made.entry(n).or_default().push(s);
        }
    }
    made
}

/// The symbols that stand for elements of a node's results, by the first node that has them.
fn elements(cx: &Lowering, r: RegionId) -> FxHashMap<Node, Vec<SymId>> {
    let g = &cx.src.graphs[r];
    let symbols = |v: Value| {
        let elems = cx.info.values(r, v).into_iter().flatten();
        let symbols = elems.filter_map(|&d| cx.src.dims.as_symbol(d));
        symbols.filter(|&s| cx.src.dims.sym(s).origin == Origin::ShapeValue).collect::<Vec<_>>()
    };
    let mut seen: FxHashSet<SymId> = g.inputs.iter().flat_map(|&v| symbols(v)).collect();
    let mut made: FxHashMap<Node, Vec<SymId>> = FxHashMap::default();
    for &n in &g.order {
        let node = &g.nodes[n];
        // Extents are dims that the host has; what they are computed from gives them their values.
        if cx.src.registry[node.op].lower.is_empty() {
            continue;
        }
        let new = node.outs.iter().flat_map(|&v| symbols(v)).filter(|&s| seen.insert(s));
        made.entry(n).or_default().extend(new);
    }
    made
}

/// The kernel of the catalog.
pub(super) fn kernel(name: &str) -> Option<&'static KernelDef> {
    CATALOG.iter().find(|k| k.name == name)
}

/// Whether a kernel that reads truth values can have them of an operand's elements: whether each differs from 0.
fn is_truth_of(operand: DType, wanted: DType) -> bool {
    wanted == DType::Bool && compute_dtype(operand).is_some()
}

/// Whether the call fits the kernel's signature.
fn check_call(spec: &CallSpec, ins: &[Option<Operand>], outs: &[Operand]) -> Plan<()> {
    let k = kernel(spec.kernel).ok_or_else(|| Refusal(format!("the catalog has no {}", spec.kernel)))?;
    let of = |a: Access| k.buffers.iter().filter(move |b| b.access == a);
    let counts = [
        ("buffers to read", spec.reads.len(), of(Access::Read).count()),
        ("buffers to write", spec.writes.len(), of(Access::Write).count()),
        ("scratch buffers", spec.scratch.len(), of(Access::Scratch).count()),
        ("integers", spec.ints.len(), k.ints.len()),
        ("scalars", spec.scalars.len(), k.scalars.len()),
    ];
    for (what, have, want) in counts {
        if have != want {
            return Err(Refusal(format!("the row passes {have} {what} where the kernel takes {want}")));
        }
    }
    for (b, at) in of(Access::Read).zip(&spec.reads) {
        match at.and_then(|i| ins.get(i)).and_then(|x| x.as_ref()) {
            Some(x) if x.dtype != b.dtype && !is_truth_of(x.dtype, b.dtype) => {
                return Err(Refusal(format!("{} is {} where the kernel takes {}", b.name, x.dtype, b.dtype)));
            }
            None if !b.optional => return Err(Refusal(format!("{} is missing", b.name))),
            _ => {}
        }
    }
    for (b, &at) in of(Access::Write).zip(&spec.writes) {
        match outs.get(at) {
            Some(o) if o.dtype != b.dtype => {
                return Err(Refusal(format!("{} is {} where the kernel gives {}", b.name, o.dtype, b.dtype)));
            }
            None => return Err(Refusal(format!("result {at} is missing"))),
            _ => {}
        }
    }
    Ok(())
}
