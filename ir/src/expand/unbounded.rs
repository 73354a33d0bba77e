//! Loops that end by a condition alone and collect what their iterations give: how much that is, nobody knows beforehand.
//!
//! Such a loop becomes two: one that collects nothing and counts the iterations, and one that runs as often and collects. What the first
//! does not need for the condition and the carried values is dead code there.

use super::Expansion;
use crate::graph::{Def, Module, NodeData, Onnx, RegionId, Value};
use crate::ops::dropout;
use tensor::{DType, Diagnostic, ErrorKind, Result};

/// A greatest number of iterations from here on is no bound for memory (exporters write the greatest integer for "until the condition").
const NO_BOUND: i64 = 1 << 31;

/// Where the operands of a Loop begin that are carried.
const CARRIED: usize = 2;

/// Whether a node is such a loop.
pub(super) fn is_unbounded(m: &Module<Onnx>, r: RegionId, node: &NodeData<Onnx>) -> bool {
    let def = &m.registry[node.op];
    if def.name != "Loop" || !def.domain.is_empty() {
        return false;
    }
    let own = node.ins.len().saturating_sub(node.n_captures as usize);
    let collects = node.outs.len() > own.saturating_sub(CARRIED);
    let trips = node.ins.first().copied().flatten();
    let bound = trips.map(|v| m.graphs[r].as_const(v).and_then(|c| m.consts[c].splat_f64()));
    collects && bound.is_none_or(|n| n.is_some_and(|n| n >= NO_BOUND as f64))
}

/// The two loops.
///
/// # Errors
/// `Unsupported` when the iterations draw random numbers, so that the two would differ.
pub(super) fn expand_unbounded(x: &mut Expansion) -> Result<Vec<Value>> {
    let node = x.node().clone();
    let own = node.ins.len() - node.n_captures as usize;
    let carried: Vec<Value> = node.ins[CARRIED.min(own)..own].iter().copied().flatten().collect();
    let (trips, cond) = (x.input(0), x.input(1));
    let captured = x.captures();
    let Some(&body) = node.regions.first() else {
        return Err(Diagnostic::new(ErrorKind::Malformed, "Loop has no body"));
    };
    if draws(x.module(), body) {
        let e = Diagnostic::new(
            ErrorKind::Unsupported,
            "a loop without a trip count that draws random numbers collects results",
        );
        return Err(e.help("give the loop a greatest trip count"));
    }
    let counting = x.module_mut().copy_region(body);
    // The count is carried behind the other values: 0, then the number of the iteration and 1.
    let g = &mut x.module_mut().graphs[counting];
    let count = g.add_input(crate::Type::tensor(DType::I64, []), "");
    if let Some(last) = g.inputs.pop() {
        g.inputs.insert(CARRIED + carried.len(), last);
    }
    for (i, v) in g.inputs.clone().into_iter().enumerate() {
        g.values[v].def = Def::Input(u32::try_from(i).unwrap_or(u32::MAX));
    }
    let iteration = g.inputs[0];
    g.outputs.truncate(1 + carried.len());
    debug_assert!(g.inputs.contains(&count));
    let next = x.within(counting, |x| {
        let one = x.scalar(DType::I64, 1.0);
        x.op("Add", &[iteration, one], &[])
    });
    x.module_mut().graphs[counting].outputs.push(next);
    let zero = x.scalar(DType::I64, 0.0);
    let counted: Vec<Value> = carried.iter().copied().chain([zero]).collect();
    let first = x.add_loop(counting, (trips, cond), &counted, &captured, counted.len());
    let n = first[carried.len()];
    Ok(x.add_loop(body, (Some(n), cond), &carried, &captured, node.outs.len()))
}

/// Whether a graph draws random numbers.
fn draws(m: &Module<Onnx>, r: RegionId) -> bool {
    let g = &m.graphs[r];
    let random = |n| {
        let def = &m.registry[g.nodes[n].op];
        def.traits.random || def.draws() && dropout::may_drop(m, r, &g.nodes[n])
    };
    g.order.iter().any(|&n| random(n) || g.nodes[n].regions.iter().any(|&b| draws(m, b)))
}
