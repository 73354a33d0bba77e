//! If nodes that stand in the way of types.
//!
//! Where the condition is decided, the branch that is taken stands in the node's place. Where the branches give results of different ranks,
//! what works with such a result goes into both branches, where the rank is known; it comes out again as soon as the ranks agree.

use crate::graph::{Def, Module, Node, NodeData, Onnx, RegionId, Value};
use crate::ty::Type;
use rustc_hash::{FxHashMap, FxHashSet};

/// Most nodes that go into branches, over a whole module: each is there twice afterwards, and more often where branches are nested.
const MAX_SUNK: usize = 10_000;

/// What went into branches so far.
#[derive(Default)]
pub(super) struct Sunk {
    rounds: u32,
    nodes: usize,
}

/// Changes every region as far as types are known. Says whether there was anything to change; types must then be inferred anew.
pub(super) fn settle(m: &mut Module<Onnx>, sunk: &mut Sunk) -> bool {
    let mut any = false;
    // One step at a time at first, so that no more goes into branches than must; ever more where it takes long.
    let steps = 1 << (sunk.rounds / 8).min(16);
    sunk.rounds += 1;
    for r in used_regions(m) {
        any |= inline_decided(m, r);
        drop_unused(m, r);
        // One node at a time: what another node gives may be among what goes into the branches of this one.
        if let Some(n) = m.graphs[r].order.iter().copied().find(|&n| splits(m, r, n).next().is_some()) {
            let moved = follow(m, r, n, steps);
            if !moved.is_empty() && sunk.nodes + moved.len() <= MAX_SUNK {
                sunk.nodes += moved.len();
                sink(m, r, n, &moved);
                any = true;
            }
        }
    }
    any
}

/// The regions that nodes refer to, outer ones first.
pub(super) fn used_regions(m: &Module<Onnx>) -> Vec<RegionId> {
    let mut all = vec![m.main];
    let mut at = 0;
    while let Some(&r) = all.get(at) {
        all.extend(m.graphs[r].order.iter().flat_map(|&n| m.graphs[r].nodes[n].regions.iter().copied()));
        at += 1;
    }
    all
}

fn is_if(m: &Module<Onnx>, node: &NodeData<Onnx>) -> bool {
    let def = &m.registry[node.op];
    def.name == "If" && def.domain.is_empty() && node.regions.len() == 2
}

/// The branch that a node always takes.
fn decided(m: &Module<Onnx>, r: RegionId, node: &NodeData<Onnx>) -> Option<RegionId> {
    let cond = node.ins.first().copied().flatten().filter(|_| is_if(m, node))?;
    let t = m.consts[m.graphs[r].as_const(cond)?].read().ok().filter(|t| t.n_elems() == 1)?;
    Some(node.regions[usize::from(t.view().i64_at(0) == 0)])
}

/// Puts the branches that are always taken in the place of their nodes, also where such a branch holds another such node.
fn inline_decided(m: &mut Module<Onnx>, r: RegionId) -> bool {
    let mut any = false;
    let mut todo: Vec<Node> = m.graphs[r].order.iter().rev().copied().collect();
    let mut order = vec![];
    while let Some(n) = todo.pop() {
        match decided(m, r, &m.graphs[r].nodes[n]) {
            Some(branch) => {
                any = true;
                todo.extend(inline(m, r, n, branch).into_iter().rev());
            }
            None => order.push(n),
        }
    }
    m.graphs[r].order = order;
    any
}

/// Drops results that nothing uses: what they are need not be known.
fn drop_unused(m: &mut Module<Onnx>, r: RegionId) {
    let g = &m.graphs[r];
    let ins = g.order.iter().flat_map(|&n| g.nodes[n].ins.iter().flatten().copied());
    let used: FxHashSet<Value> = ins.chain(g.outputs.iter().copied()).collect();
    for n in g.order.clone() {
        let node = m.graphs[r].nodes[n].clone();
        let keep: Vec<bool> = node.outs.iter().map(|v| used.contains(v)).collect();
        // One without any result goes as a whole, when dead nodes do.
        if !is_if(m, &node) || keep.iter().all(|k| *k) || !keep.contains(&true) {
            continue;
        }
        for &b in &node.regions {
            let mut kept = keep.iter();
            m.graphs[b].outputs.retain(|_| kept.next().copied().unwrap_or(true));
        }
        let outs = node.outs.iter().zip(&keep).filter(|(_, k)| **k).map(|(&v, _)| v);
        set_outs(m, r, n, outs.collect());
    }
}

/// Makes these values the results of a node, in order.
fn set_outs(m: &mut Module<Onnx>, r: RegionId, n: Node, outs: Vec<Value>) {
    let g = &mut m.graphs[r];
    for (i, &v) in outs.iter().enumerate() {
        g.values[v].def = Def::Node(n, u32::try_from(i).unwrap_or(u32::MAX));
    }
    g.nodes[n].outs = outs.into_iter().collect();
}

/// The nodes of a branch in the region around; they define the results of node `n`.
fn inline(m: &mut Module<Onnx>, r: RegionId, n: Node, branch: RegionId) -> Vec<Node> {
    let node = m.graphs[r].nodes[n].clone();
    let g = &m.graphs[branch];
    let (nodes, given) = (g.order.clone(), g.outputs.clone());
    let own = node.ins.len() - node.n_captures as usize;
    let mut map: FxHashMap<Value, Value> =
        g.inputs.iter().zip(&node.ins[own..]).filter_map(|(&p, v)| Some((p, (*v)?))).collect();
    // A result that a node of the branch computes is that node's; what is captured, constant or given twice is copied.
    let mut copied = vec![];
    for (&out, &v) in node.outs.iter().zip(&given) {
        match g.values[v].def {
            Def::Node(..) if !map.contains_key(&v) => drop(map.insert(v, out)),
            _ => copied.push((out, v)),
        }
    }
    let mut made = transplant(m, branch, r, &nodes, &mut map);
    for (out, v) in copied {
        let from = moved(m, branch, r, v, &mut map);
        let identity = m.registry.newest("", "Identity");
        let attrs = m.attrs.intern(m.registry[identity].attrs_with(&[]));
        let copy = NodeData {
            op: identity,
            attrs,
            ins: [Some(from)].into_iter().collect(),
            outs: [out].into_iter().collect(),
            regions: Default::default(),
            n_captures: 0,
            origin: node.origin.clone(),
        };
        let copy = m.graphs[r].nodes.push(copy);
        m.graphs[r].values[out].def = Def::Node(copy, 0);
        made.push(copy);
    }
    made
}

/// The results of a node that other ones use and that have one rank in one branch and another in the other.
fn splits<'a>(m: &'a Module<Onnx>, r: RegionId, n: Node) -> impl Iterator<Item = Value> + 'a {
    let node = &m.graphs[r].nodes[n];
    let count = if is_if(m, node) { node.outs.len() } else { 0 };
    let unranked = |&i: &usize| {
        let is = |b: RegionId, v: Value| m.graphs[b].values[v].ty.shape().is_none();
        // A branch whose own result has no rank yet counts where another node of this kind is why.
        let inner = |b: RegionId| {
            let v = m.graphs[b].outputs[i];
            !is(b, v) || matches!(m.graphs[b].values[v].def, Def::Node(n, _) if splits(m, b, n).any(|s| s == v))
        };
        is(r, node.outs[i])
            && node.regions.iter().all(|&b| m.graphs[b].outputs.get(i).is_some_and(|&v| is_tensor(m, b, v)) && inner(b))
    };
    let split: Vec<Value> = (0..count).filter(unranked).map(|i| node.outs[i]).collect();
    split.into_iter()
}

fn is_tensor(m: &Module<Onnx>, r: RegionId, v: Value) -> bool {
    matches!(m.graphs[r].values[v].ty, Type::Tensor(_))
}

/// What must go into the branches of node `n`: the nodes that use a result of two ranks, up to `steps` after one another as long as what they
/// give has no rank, and what lies between them. In order.
fn follow(m: &Module<Onnx>, r: RegionId, n: Node, steps: usize) -> Vec<Node> {
    let g = &m.graphs[r];
    // With how many steps led to each.
    let mut unranked: FxHashMap<Value, usize> = splits(m, r, n).map(|v| (v, 0)).collect();
    let mut after: FxHashSet<Value> = g.nodes[n].outs.iter().copied().collect();
    let mut chosen: FxHashSet<Node> = FxHashSet::default();
    let uses = |x: &NodeData<Onnx>, set: &FxHashSet<Value>| x.ins.iter().flatten().any(|v| set.contains(v));
    let mut depends = vec![];
    for &x in g.order.iter().filter(|&&x| x != n) {
        let node = &g.nodes[x];
        if uses(node, &after) {
            depends.push(x);
            after.extend(node.outs.iter().copied());
        }
        if let Some(step) = node.ins.iter().flatten().filter_map(|v| unranked.get(v)).min().filter(|&&s| s < steps) {
            let step = step + 1;
            chosen.insert(x);
            unranked.extend(node.outs.iter().filter(|&&v| g.values[v].ty.shape().is_none()).map(|&v| (v, step)));
        }
    }
    // Of the others that depend on the node: those whose results one of the chosen needs.
    let mut needed: FxHashSet<Value> = FxHashSet::default();
    for x in depends.into_iter().rev() {
        let node = &g.nodes[x];
        if chosen.contains(&x) || node.outs.iter().any(|v| needed.contains(v)) {
            chosen.insert(x);
            needed.extend(node.ins.iter().flatten());
        }
    }
    g.order.iter().copied().filter(|x| chosen.contains(x)).collect()
}

/// Moves nodes that follow `n` into its branches.
fn sink(m: &mut Module<Onnx>, r: RegionId, n: Node, nodes: &[Node]) {
    let g = &m.graphs[r];
    let node = g.nodes[n].clone();
    let inside: FxHashSet<Node> = nodes.iter().copied().collect();
    let made: Vec<Value> =
        node.outs.iter().copied().chain(nodes.iter().flat_map(|&x| g.nodes[x].outs.clone())).collect();
    // What they use from outside, captures from now on.
    let inner: FxHashSet<Value> = made.iter().copied().collect();
    let (mut captured, mut seen) = (vec![], FxHashSet::default());
    for v in nodes.iter().flat_map(|&x| g.nodes[x].ins.iter().flatten().copied()) {
        if !inner.contains(&v) && seen.insert(v) {
            captured.push(v);
        }
    }
    // Results: what is used outside.
    let rest: Vec<Node> = g.order.iter().copied().filter(|x| *x != n && !inside.contains(x)).collect();
    let used: FxHashSet<Value> =
        rest.iter().flat_map(|&x| g.nodes[x].ins.iter().flatten().copied()).chain(g.outputs.iter().copied()).collect();
    let outs: Vec<Value> = made.into_iter().filter(|v| used.contains(v)).collect();
    for &b in &node.regions {
        let mut map: FxHashMap<Value, Value> =
            node.outs.iter().copied().zip(m.graphs[b].outputs.iter().copied()).collect();
        for &v in &captured {
            let ty = m.graphs[r].values[v].ty.clone();
            let name = m.graphs[r].values[v].name.clone();
            map.insert(v, m.graphs[b].add_input(ty, name));
        }
        let own = transplant(m, r, b, nodes, &mut map);
        let g = &mut m.graphs[b];
        g.order.extend(own);
        g.outputs = outs.iter().filter_map(|v| map.get(v).copied()).collect();
    }
    set_outs(m, r, n, outs);
    let g = &mut m.graphs[r];
    let data = &mut g.nodes[n];
    data.n_captures += u32::try_from(captured.len()).unwrap_or(u32::MAX);
    data.ins.extend(captured.into_iter().map(Some));
    // What depends on the node comes behind it, everything else before.
    let mut after: FxHashSet<Value> = g.nodes[n].outs.iter().copied().collect();
    let (mut first, mut last) = (vec![], vec![]);
    for x in rest {
        if g.nodes[x].ins.iter().flatten().any(|v| after.contains(v)) {
            after.extend(g.nodes[x].outs.iter().copied());
            last.push(x);
        } else {
            first.push(x);
        }
    }
    g.order = first.into_iter().chain([n]).chain(last).collect();
}

/// Nodes of graph `from` again, in graph `to`, with bodies of their own. `map` says what values of the one are in the other; results that it has
/// become results of the new nodes.
fn transplant(
    m: &mut Module<Onnx>,
    from: RegionId,
    to: RegionId,
    nodes: &[Node],
    map: &mut FxHashMap<Value, Value>,
) -> Vec<Node> {
    let mut made = vec![];
    for &n in nodes {
        let mut node = m.graphs[from].nodes[n].clone();
        for v in node.ins.iter_mut().flatten() {
            *v = moved(m, from, to, *v, map);
        }
        for body in &mut node.regions {
            *body = m.copy_region(*body);
        }
        let outs = std::mem::take(&mut node.outs);
        let new = m.graphs[to].nodes.push(node);
        for (i, old) in outs.into_iter().enumerate() {
            let def = Def::Node(new, u32::try_from(i).unwrap_or(u32::MAX));
            let mut data = m.graphs[from].values[old].clone();
            data.def = def;
            let g = &mut m.graphs[to];
            let v = *map.entry(old).or_insert_with(|| g.values.push(data));
            g.values[v].def = def;
            g.nodes[new].outs.push(v);
        }
        made.push(new);
    }
    made
}

/// What a value of graph `from` is in graph `to`; constants follow.
fn moved(m: &mut Module<Onnx>, from: RegionId, to: RegionId, v: Value, map: &mut FxHashMap<Value, Value>) -> Value {
    if let Some(&v) = map.get(&v) {
        return v;
    }
    let data = m.graphs[from].values[v].clone();
    debug_assert!(matches!(data.def, Def::Const(_)), "a value of another graph");
    let new = m.graphs[to].values.push(data);
    map.insert(v, new);
    new
}

#[cfg(test)]
mod tests {
    use crate::expand::expand;
    use crate::infer::infer;
    use crate::op::Registry;
    use crate::text::{parse_onnx, print_onnx};

    fn expanded(text: &str) -> String {
        let mut m = parse_onnx(text, &Registry::builtin()).unwrap();
        infer(&mut m).unwrap();
        assert!(expand(&mut m).unwrap());
        crate::verify::verify_onnx(&m).unwrap();
        print_onnx(&m)
    }

    #[test]
    fn a_decided_branch_stands_in_the_place_of_its_node() {
        let text = expanded(
            "onnx module \"t\"\nopset \"\" 17\ndim n : input(0, 0)\nconst @c0 : bool[] = [true]\n\n\
            graph(%v0 \"x\" : f32[n]) {\n\
                %v1, %v2, %v3 = If-16 @c0 captures [%v0] : f32[n], f32[n], f32[n]  ; /if\n\
                region then_branch(%v0 : f32[n]) {\n\
                    %v1 = Exp-13 %v0 : f32[n]  ; /if/exp\n\
                    return %v1, %v0, %v1\n\
                }\n\
                region else_branch(%v0 : f32[n]) {\n\
                    %v1 = Log-13 %v0 : f32[n]  ; /if/log\n\
                    return %v1, %v1, %v1\n\
                }\n\
                return %v1 \"a\", %v2 \"b\", %v3 \"c\"\n}\n",
        );
        let nodes: Vec<&str> = text.lines().filter(|l| l.contains(" = ")).skip(1).map(str::trim).collect();
        assert!(!text.contains("If-") && !text.contains("Log-"), "{text}");
        assert_eq!(nodes.len(), 3, "{text}");
        assert!(nodes[0].contains("Exp-6 %v0"), "{text}");
    }

    #[test]
    fn what_uses_a_result_of_two_ranks_goes_into_the_branches() {
        // The sum is of rank 2 whatever the branch; its negation needs the exponential, which stays outside.
        let text = expanded(
            "onnx module \"t\"\nopset \"\" 17\ndim n : input(1, 0)\nconst @c0 \"axes\" : i64[1] = [0]\n\n\
            graph(%v0 \"c\" : bool[], %v1 \"x\" : f32[n], %v2 \"y\" : f32[3, n]) {\n\
                %v3 = If-16 %v0 captures [%v1, @c0] : f32[*]  ; /if\n\
                region then_branch(%v0 : f32[n], %v1 : i64[1]) {\n\
                    %v2 = Unsqueeze-13 %v0, %v1 : f32[1, n]  ; /if/unsqueeze\n\
                    return %v2\n\
                }\n\
                region else_branch(%v0 : f32[n], %v1 : i64[1]) {\n\
                    %v2 = Identity-16 %v0 : f32[n]  ; /if/identity\n\
                    return %v2\n\
                }\n\
                %v4 = Exp-13 %v2 : f32[3, n]  ; /exp\n\
                %v5 = Neg-13 %v3 : f32[*]  ; /neg\n\
                %v6 = Add-14 %v5, %v4 : f32[*]  ; /add\n\
                %v7 = Abs-13 %v6 : f32[*]  ; /abs\n\
                return %v7 \"z\"\n}\n",
        );
        let main: Vec<&str> = text.lines().filter(|l| l.starts_with("  %v")).map(str::trim).collect();
        assert_eq!(main.len(), 3, "{text}");
        assert!(main[0].contains("Exp-6"), "{text}");
        assert!(main[1].contains("If-1 ") && main[1].contains(": f32[3, n]"), "{text}");
        assert!(main[2].contains("Abs-6") && main[2].contains(": f32[3, n]"), "{text}");
        assert_eq!(text.matches("Neg-6").count(), 2, "{text}");
        assert_eq!(text.matches("Add-7").count(), 2, "{text}");
    }
}
