//! What nothing uses goes: nodes, and captures of bodies, so that each body is a function of what it needs.

use crate::graph::{Def, Module, NodeData, Onnx, RegionId, Value};
use rustc_hash::FxHashSet;

/// Removes nodes that nothing uses, but for those that `keep` names, and captures that no body of their node uses. Innermost first, so
/// that what only an inner body captured goes, too.
pub fn prune(m: &mut Module<Onnx>, keep: &dyn Fn(&NodeData<Onnx>) -> bool) {
    region(m, m.main, keep);
}

fn region(m: &mut Module<Onnx>, r: RegionId, keep: &dyn Fn(&NodeData<Onnx>) -> bool) {
    for n in m.graphs[r].order.clone() {
        let bodies = m.graphs[r].nodes[n].regions.clone();
        bodies.iter().for_each(|&b| region(m, b, keep));
        let n_caps = m.graphs[r].nodes[n].n_captures as usize;
        if n_caps == 0 || bodies.iter().any(|&b| m.graphs[b].inputs.len() < n_caps) {
            continue;
        }
        let used: Vec<FxHashSet<Value>> = bodies.iter().map(|&b| uses(m, b)).collect();
        let kept: Vec<bool> = (0..n_caps)
            .map(|k| {
                bodies.iter().zip(&used).any(|(&b, used)| {
                    let inputs = &m.graphs[b].inputs;
                    used.contains(&inputs[inputs.len() - n_caps + k])
                })
            })
            .collect();
        for &b in &bodies {
            let g = &mut m.graphs[b];
            let own = g.inputs.len() - n_caps;
            let mut i = 0;
            g.inputs.retain(|_| {
                i += 1;
                i <= own || kept[i - 1 - own]
            });
            for (i, &v) in g.inputs.iter().enumerate() {
                g.values[v].def = Def::Input(u32::try_from(i).unwrap_or(u32::MAX));
            }
        }
        let node = &mut m.graphs[r].nodes[n];
        let own = node.ins.len() - n_caps;
        let mut i = 0;
        node.ins.retain(|_| {
            i += 1;
            i <= own || kept[i - 1 - own]
        });
        node.n_captures = u32::try_from(kept.iter().filter(|k| **k).count()).unwrap_or(u32::MAX);
    }
    m.graphs[r].remove_dead(keep);
}

fn uses(m: &Module<Onnx>, b: RegionId) -> FxHashSet<Value> {
    let g = &m.graphs[b];
    let ins = g.order.iter().flat_map(|&n| g.nodes[n].ins.iter().flatten());
    g.outputs.iter().chain(ins).copied().collect()
}
