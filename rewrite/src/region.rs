//! One graph through the e-graph and back: cut where few values cross, saturate, extract, rebuild with names and origins.

use crate::cost::CostModel;
use crate::extract::{self, Extraction};
use crate::facts::{Data, Facts, Graph};
use crate::lang::{ENode, Head};
use crate::report::{NearMiss, Report};
use crate::rule::Compiled;
use crate::saturate::{self, Limits};
use egg::{Id, Language};
use ir::consts::ConstId;
use ir::graph::Def;
use ir::op::Arity;
use ir::{Node, Onnx, Origin, Shape, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;
use tensor::{Diagnostic, Entity, ErrorKind, Result};

type IrGraph = ir::Graph<Onnx>;

/// What rewriting of a region needs besides the graph.
pub(crate) struct Job<'a> {
    pub(crate) rules: &'a [Compiled],
    pub(crate) cost: &'a CostModel,
    pub(crate) rounds: usize,
    pub(crate) nodes_factor: usize,
    pub(crate) cut_nodes: usize,
    pub(crate) deadline: Option<Instant>,
    pub(crate) values: &'a dyn Fn(Value) -> Option<Shape>,
    /// Paths of nodes that stay as they are, used or not.
    pub(crate) pinned: &'a FxHashSet<String>,
    pub(crate) report: &'a mut Report,
}

/// Origins named in a fused node; more are counted.
const ORIGINS: usize = 12;

/// Rewrites one graph.
pub(crate) fn rewrite(facts: Facts, old: &IrGraph, job: &mut Job<'_>) -> Result<(Facts, IrGraph)> {
    let mut facts = facts;
    let mut new = IrGraph::default();
    let mut made: FxHashMap<Value, Value> = FxHashMap::default();
    for &v in &old.inputs {
        let data = &old.values[v];
        made.insert(v, new.add_input(data.ty.clone(), data.name.clone()));
    }
    let mut konsts: FxHashMap<ConstId, Value> = FxHashMap::default();
    for piece in cut(old, job.cut_nodes) {
        facts = rewrite_piece(facts, old, piece, &mut new, &mut made, &mut konsts, job)?;
    }
    for &o in &old.outputs {
        let data = &old.values[o];
        let v = match (made.get(&o), data.def) {
            (Some(&v), _) => v,
            (None, Def::Const(c)) => const_value(&mut new, &mut konsts, &facts, c, &data.ty),
            _ => return Err(lost(&data.name)),
        };
        let v = if new.values[v].name != data.name && !data.name.is_empty() {
            // Results keep their names; a value that has another one is passed through.
            match facts.find_op("Identity") {
                Some(op) => {
                    let attrs = facts.attrs.intern(facts.registry[op].attrs_with(&[]));
                    let origin = old.def_node(o).map(|n| n.origin.clone()).unwrap_or_default();
                    let n = new.add_node(op, attrs, [Some(v)], [(data.ty.clone(), data.name.clone())], [], origin);
                    new.nodes[n].outs[0]
                }
                None => v,
            }
        } else {
            v
        };
        made.insert(o, v);
        new.outputs.push(v);
    }
    let registry = facts.registry.clone();
    new.remove_dead(|n| job.pinned.contains(&*n.origin.0) || registry[n.op].traits.random && n.outs.is_empty());
    Ok((facts, new))
}

fn lost(name: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, format!("rewriting lost the value \"{name}\""))
}

fn const_value(
    new: &mut IrGraph,
    konsts: &mut FxHashMap<ConstId, Value>,
    facts: &Facts,
    c: ConstId,
    ty: &Type,
) -> Value {
    *konsts.entry(c).or_insert_with(|| new.add_const(c, ty.clone(), facts.consts[c].name.as_str()))
}

/// Ranges of the execution order, each at most `limit` nodes, cut where the fewest values cross.
fn cut(g: &IrGraph, limit: usize) -> Vec<std::ops::Range<usize>> {
    let n = g.order.len();
    if n <= limit {
        return std::iter::once(0..n).collect();
    }
    let place: FxHashMap<Node, usize> = g.order.iter().enumerate().map(|(i, &n)| (n, i)).collect();
    // The last use of each value; a value crosses every gap between its definition and that.
    let mut last: FxHashMap<Value, usize> = FxHashMap::default();
    for (i, &node) in g.order.iter().enumerate() {
        g.nodes[node].ins.iter().flatten().for_each(|&v| {
            last.insert(v, i);
        });
    }
    let mut delta = vec![0i64; n + 2];
    for (&v, &end) in &last {
        if let Def::Node(d, _) = g.values[v].def
            && let Some(&start) = place.get(&d)
        {
            delta[start + 1] += 1;
            delta[end + 1] -= 1;
        }
    }
    let mut width = vec![0i64; n + 1];
    for i in 1..=n {
        width[i] = width[i - 1] + delta[i];
    }
    let (mut out, mut start) = (Vec::new(), 0);
    while n - start > limit {
        let window = start + limit / 2..=start + limit;
        let at = window.min_by_key(|&i| (width[i], Reverse(i))).unwrap_or(start + limit);
        out.push(start..at);
        start = at;
    }
    out.push(start..n);
    out
}

/// The e-graph of a piece with what is needed to come back.
pub(crate) struct Source {
    pub(crate) eg: Graph,
    pub(crate) class: FxHashMap<Value, Id>,
    /// Nodes as they were added: class, e-node, position in the order.
    nodes: Vec<(Id, ENode, usize)>,
    uses: FxHashMap<Id, u32>,
    pub(crate) roots: Vec<(Value, Id)>,
}

/// Brings a piece of a graph into an e-graph.
pub(crate) fn load(
    facts: Facts,
    old: &IrGraph,
    piece: &std::ops::Range<usize>,
    new: &IrGraph,
    made: &FxHashMap<Value, Value>,
    job: &Job<'_>,
) -> Source {
    let registry = facts.registry.clone();
    let mut eg = Graph::new(facts);
    let absent = eg.add(ENode::leaf(Head::Absent));
    eg.analysis.set_absent(absent);
    let mut s =
        Source { eg, class: FxHashMap::default(), nodes: Vec::new(), uses: FxHashMap::default(), roots: Vec::new() };
    // Values that something outside the piece needs, and those used at all.
    let mut outside: FxHashSet<Value> = old.outputs.iter().copied().collect();
    old.order[piece.end..].iter().for_each(|&n| outside.extend(old.nodes[n].ins.iter().flatten()));
    let is_pinned = |n: Node| job.pinned.contains(&*old.nodes[n].origin.0);
    outside.extend(old.order[piece.clone()].iter().filter(|n| is_pinned(**n)).flat_map(|&n| &old.nodes[n].outs));
    let mut used = outside.clone();
    old.order[piece.clone()].iter().for_each(|&n| used.extend(old.nodes[n].ins.iter().flatten()));

    for at in piece.clone() {
        let n = old.order[at];
        let node = &old.nodes[n];
        let def = &registry[node.op];
        let mut kids: SmallVec<[Id; 4]> = SmallVec::new();
        for v in &node.ins {
            kids.push(match v {
                Some(v) => operand(&mut s, old, *v, new, made, job),
                None => absent,
            });
        }
        // Captures of bodies keep their places at the end.
        while node.regions.is_empty() && kids.last() == Some(&absent) {
            kids.pop();
        }
        // Optional results that nobody uses are not asked for.
        let mut n_outs = node.outs.len();
        while n_outs > 1
            && !def.traits.counts_results
            && !used.contains(&node.outs[n_outs - 1])
            && def.outputs.get(n_outs - 1).is_some_and(|p| p.arity == Arity::Optional)
        {
            n_outs -= 1;
        }
        let opaque = def.traits.random || !node.regions.is_empty() || is_pinned(n);
        let head = Head::Op {
            op: node.op,
            attrs: node.attrs,
            n_outs: u16::try_from(n_outs).unwrap_or(u16::MAX),
            unique: if opaque { u32::try_from(n.index() + 1).unwrap_or(u32::MAX) } else { 0 },
        };
        let data = |v: Value| (old.values[v].ty.clone(), (job.values)(v));
        let preset = if n_outs == 1 {
            let (ty, values) = data(node.outs[0]);
            Data { values, ..Data::of_type(ty) }
        } else {
            let outs: Vec<(Type, Option<Shape>)> = node.outs[..n_outs].iter().map(|&v| data(v)).collect();
            Data { outs: Some(outs.into()), ..Data::of_type(Type::Unknown) }
        };
        let enode = ENode { head, kids };
        let fresh = s.eg.lookup(enode.clone()).is_none();
        s.eg.analysis.preset = Some(preset);
        let id = s.eg.add(enode.clone());
        s.eg.analysis.preset = None;
        s.nodes.push((id, enode.clone(), at));
        // Reading extents is no use of the elements.
        if fresh && !matches!(def.name, "Shape" | "Size") {
            enode.kids.iter().for_each(|&k| *s.uses.entry(k).or_default() += 1);
        }
        for (i, &v) in node.outs.iter().enumerate().take(n_outs) {
            let class = if n_outs == 1 {
                id
            } else {
                let (ty, values) = data(v);
                s.eg.analysis.preset = Some(Data { values, ..Data::of_type(ty) });
                let head = Head::Proj(u16::try_from(i).unwrap_or(u16::MAX));
                let p = s.eg.add(ENode { head, kids: SmallVec::from_slice(&[id]) });
                s.eg.analysis.preset = None;
                p
            };
            s.class.insert(v, class);
            if outside.contains(&v) {
                s.roots.push((v, class));
                *s.uses.entry(class).or_default() += 1;
            }
        }
    }
    s
}

fn operand(
    s: &mut Source,
    old: &IrGraph,
    v: Value,
    new: &IrGraph,
    made: &FxHashMap<Value, Value>,
    job: &Job<'_>,
) -> Id {
    if let Some(&id) = s.class.get(&v) {
        return id;
    }
    let konst = old.as_const(v).or_else(|| made.get(&v).and_then(|&n| new.as_const(n)));
    let id = match konst {
        Some(c) => {
            let c = s.eg.analysis.canonical_const(c);
            s.eg.add(ENode::leaf(Head::Const(c)))
        }
        None => {
            s.eg.analysis.preset = Some(Data { values: (job.values)(v), ..Data::of_type(old.values[v].ty.clone()) });
            let id = s.eg.add(ENode::leaf(Head::Leaf(u32::try_from(v.index()).unwrap_or(u32::MAX))));
            s.eg.analysis.preset = None;
            id
        }
    };
    s.class.insert(v, id);
    id
}

fn rewrite_piece(
    facts: Facts,
    old: &IrGraph,
    piece: std::ops::Range<usize>,
    new: &mut IrGraph,
    made: &mut FxHashMap<Value, Value>,
    konsts: &mut FxHashMap<ConstId, Value>,
    job: &mut Job<'_>,
) -> Result<Facts> {
    let t = Instant::now();
    let mut s = load(facts, old, &piece, new, made, job);
    job.report.time("build", t.elapsed());

    let t = Instant::now();
    let limits = Limits {
        nodes: piece.len().saturating_mul(job.nodes_factor).saturating_add(10_000),
        rounds: job.rounds,
        deadline: job.deadline,
    };
    let sat = saturate::saturate(&mut s.eg, job.rules, &limits);
    job.report.time("saturate", t.elapsed());
    *job.report.stops.entry(sat.stop).or_default() += 1;
    job.report.rounds = job.report.rounds.max(sat.rounds);
    job.report.n_enodes += s.eg.total_size();
    job.report.n_classes += s.eg.number_of_classes();
    for (rule, n) in &sat.applied {
        *job.report.applied.entry(rule).or_default() += n;
    }

    finish(s, old, sat.misses, new, made, konsts, job)
}

/// Extracts the roots and emits them.
pub(crate) fn finish(
    s: Source,
    old: &IrGraph,
    misses: Vec<(&'static str, Id, String)>,
    new: &mut IrGraph,
    made: &mut FxHashMap<Value, Value>,
    konsts: &mut FxHashMap<ConstId, Value>,
    job: &mut Job<'_>,
) -> Result<Facts> {
    let t = Instant::now();
    let eg = &s.eg;
    // Source nodes under today's ids; the first position of each.
    let mut source: FxHashMap<ENode, usize> = FxHashMap::default();
    let mut at_class: FxHashMap<Id, Vec<usize>> = FxHashMap::default();
    for (id, node, at) in &s.nodes {
        source.entry(node.clone().map_children(|k| eg.find(k))).or_insert(*at);
        at_class.entry(eg.find(*id)).or_default().push(*at);
    }
    let mut roots: Vec<Id> = s.roots.iter().map(|&(_, id)| eg.find(id)).collect();
    roots.dedup();
    let price = |id: Id, n: &ENode| job.cost.node(eg, &eg[id].data.ty, n);
    let is_source = |_: Id, n: &ENode| source.contains_key(&n.clone().map_children(|k| eg.find(k)));
    let mut uses: FxHashMap<Id, u32> = FxHashMap::default();
    for (&id, &n) in &s.uses {
        let e = uses.entry(eg.find(id)).or_default();
        *e = (*e).max(n);
    }
    let x = extract::extract(eg, &roots, &price, &is_source, &|id| uses.get(&id).copied().unwrap_or(1));
    for (rule, class, why) in misses {
        // What became part of something else is no loss.
        if x.choice.contains_key(&class) {
            let node = at_class.get(&class).and_then(|a| a.first());
            let node = node.map_or(String::new(), |&a| old.nodes[old.order[a]].origin.to_string());
            job.report.misses.push(NearMiss { rule, node, why });
        }
    }
    if let Err(why) = extract::check(eg, &roots, &x, &price) {
        return Err(Diagnostic::new(ErrorKind::Internal, format!("extraction is wrong: {why}")));
    }
    job.report.n_improved += x.improved;
    job.report.cost = job.report.cost.saturating_add(x.cost);
    job.report.time("extract", t.elapsed());

    let t = Instant::now();
    let mut b = Rebuild { old, new, made, konsts, s: &s, x: &x, source: &source, at_class: &at_class };
    b.run(job)?;
    job.report.time("rebuild", t.elapsed());
    Ok(s.eg.analysis)
}

/// Emits an extraction into the new graph.
struct Rebuild<'a> {
    old: &'a IrGraph,
    new: &'a mut IrGraph,
    made: &'a mut FxHashMap<Value, Value>,
    konsts: &'a mut FxHashMap<ConstId, Value>,
    s: &'a Source,
    x: &'a Extraction,
    source: &'a FxHashMap<ENode, usize>,
    at_class: &'a FxHashMap<Id, Vec<usize>>,
}

impl Rebuild<'_> {
    fn run(&mut self, job: &mut Job<'_>) -> Result<()> {
        let eg = &self.s.eg;
        // Names (those of graph outputs first) and declared types.
        let outputs: FxHashSet<Value> = self.old.outputs.iter().copied().collect();
        let mut names: FxHashMap<Id, Value> = FxHashMap::default();
        let mut sorted: Vec<(Value, Id)> = self.s.class.iter().map(|(&v, &id)| (v, eg.find(id))).collect();
        sorted.sort_unstable();
        for (v, id) in sorted {
            if !matches!(self.old.values[v].def, Def::Node(..)) {
                continue;
            }
            let e = names.entry(id).or_insert(v);
            if outputs.contains(&v) && !outputs.contains(e) {
                *e = v;
            }
        }
        let mut values: FxHashMap<Id, Value> = FxHashMap::default();
        let mut nodes: FxHashMap<Id, Node> = FxHashMap::default();
        let origins = self.origins();
        for id in self.schedule() {
            let n = &self.x.choice[&id];
            match n.head {
                Head::Absent => {}
                Head::Leaf(i) => {
                    let v = Value::new(i as usize);
                    values.insert(id, *self.made.get(&v).ok_or_else(|| lost(&self.old.values[v].name))?);
                }
                Head::Const(c) => {
                    let v = const_value(self.new, self.konsts, &eg.analysis, c, &eg[id].data.ty);
                    values.insert(id, v);
                }
                Head::Proj(i) => {
                    let node = nodes[&eg.find(n.kids[0])];
                    values.insert(id, self.new.nodes[node].outs[usize::from(i)]);
                }
                Head::Op { op, attrs, n_outs, unique } => {
                    let ins: Vec<Option<Value>> = n.kids.iter().map(|&k| values.get(&eg.find(k)).copied()).collect();
                    let at = self.source.get(&n.clone().map_children(|k| eg.find(k))).copied();
                    let outs: Vec<(Type, Arc<str>)> = if n_outs == 1 {
                        let named = names.get(&id).map(|&v| &self.old.values[v]);
                        let name = named.map_or_else(|| Arc::from(""), |v| v.name.clone());
                        let declared = names.get(&id).filter(|v| outputs.contains(v));
                        let ty = declared.map_or((*eg[id].data.ty).clone(), |&v| self.old.values[v].ty.clone());
                        vec![(ty, name)]
                    } else {
                        let old_outs = at.map(|a| &self.old.nodes[self.old.order[a]].outs);
                        let types = eg[id].data.outs.clone();
                        (0..usize::from(n_outs))
                            .map(|i| {
                                let v = old_outs.and_then(|o| o.get(i)).map(|&v| &self.old.values[v]);
                                let ty = types.as_ref().and_then(|t| t.get(i)).map(|t| t.0.clone());
                                let ty = v.map(|v| v.ty.clone()).or(ty).unwrap_or(Type::Unknown);
                                (ty, v.map_or_else(|| Arc::from(""), |v| v.name.clone()))
                            })
                            .collect()
                    };
                    let regions = match unique {
                        0 => SmallVec::new(),
                        u => self.old.nodes[Node::new(u as usize - 1)].regions.clone(),
                    };
                    let def = &eg.analysis.registry[op];
                    if at.is_none() {
                        *job.report.result_ops.entry(def.full_name()).or_default() += 1;
                    }
                    let node = self.new.add_node(op, attrs, ins, outs, regions, origins[&id].clone());
                    if let Some(u) = unique.checked_sub(1) {
                        self.new.nodes[node].n_captures = self.old.nodes[Node::new(u as usize)].n_captures;
                    }
                    nodes.insert(id, node);
                    if n_outs == 1 {
                        values.insert(id, self.new.nodes[node].outs[0]);
                    }
                }
            }
        }
        for (v, id) in &self.s.roots {
            let n = values.get(&eg.find(*id)).ok_or_else(|| lost(&self.old.values[*v].name))?;
            self.made.insert(*v, *n);
        }
        Ok(())
    }

    /// Operands first, otherwise in the order of the source.
    fn schedule(&self) -> Vec<Id> {
        let eg = &self.s.eg;
        let order = &self.x.order;
        let index: FxHashMap<Id, usize> = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let mut place = vec![0usize; order.len()];
        let mut waits = vec![0usize; order.len()];
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
        for (i, id) in order.iter().enumerate() {
            let n = &self.x.choice[id];
            let kids: Vec<usize> = n.kids.iter().map(|&k| index[&eg.find(k)]).collect();
            let own = self.at_class.get(id).and_then(|a| a.iter().min()).map(|&a| a + 1);
            place[i] = own.unwrap_or_else(|| kids.iter().map(|&k| place[k]).max().unwrap_or(0));
            waits[i] = kids.len();
            kids.iter().for_each(|&k| users[k].push(i));
        }
        let mut ready: BinaryHeap<Reverse<(usize, usize)>> =
            (0..order.len()).filter(|&i| waits[i] == 0).map(|i| Reverse((place[i], i))).collect();
        let mut out = Vec::with_capacity(order.len());
        while let Some(Reverse((_, i))) = ready.pop() {
            out.push(order[i]);
            for &u in &users[i] {
                waits[u] -= 1;
                if waits[u] == 0 {
                    ready.push(Reverse((place[u], u)));
                }
            }
        }
        out
    }

    /// The model nodes each chosen node stands for: its own; for a fused one those of its class and of what is inside it;
    /// for a helper those of its user.
    fn origins(&self) -> FxHashMap<Id, Origin> {
        let eg = &self.s.eg;
        let mut out: FxHashMap<Id, Origin> = FxHashMap::default();
        let mut from_user: FxHashMap<Id, Origin> = FxHashMap::default();
        for &id in self.x.order.iter().rev() {
            let n = &self.x.choice[&id];
            let own = self.source.get(&n.clone().map_children(|k| eg.find(k)));
            let origin = match (own, self.at_class.get(&id)) {
                (Some(&at), _) => self.old.nodes[self.old.order[at]].origin.clone(),
                (None, Some(at)) => self.fused(at[0], n),
                (None, None) => from_user.get(&id).cloned().unwrap_or_default(),
            };
            n.for_each(|k| {
                from_user.entry(eg.find(k)).or_insert_with(|| origin.clone());
            });
            out.insert(id, origin);
        }
        out
    }
    fn fused(&self, at: usize, chosen: &ENode) -> Origin {
        let eg = &self.s.eg;
        let stop: FxHashSet<Id> = chosen.kids.iter().map(|&k| eg.find(k)).collect();
        let mut seen: Vec<usize> = vec![at];
        let mut i = 0;
        while i < seen.len() && seen.len() < 64 {
            let node = &self.old.nodes[self.old.order[seen[i]]];
            for v in node.ins.iter().flatten() {
                let Some(k) = self.s.class.get(v).map(|&k| eg.find(k)) else { continue };
                if stop.contains(&k) || self.x.choice.contains_key(&k) {
                    continue;
                }
                if let Some(a) = self.at_class.get(&k).map(|a| a[0])
                    && !seen.contains(&a)
                {
                    seen.push(a);
                }
            }
            i += 1;
        }
        seen.sort_unstable();
        let mut paths: Vec<&str> = seen.iter().map(|&a| &*self.old.nodes[self.old.order[a]].origin.0).collect();
        paths.dedup();
        paths.retain(|p| !p.is_empty());
        let more = paths.len().saturating_sub(ORIGINS);
        paths.truncate(ORIGINS);
        let mut text = paths.join(" + ");
        if more > 0 {
            text.push_str(&format!(" + {more} more"));
        }
        Origin(text.into())
    }
}
