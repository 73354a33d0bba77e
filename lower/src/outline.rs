//! Control-flow outlining: bodies keep only the captures they use, so that each is a function of what it needs.

use crate::pass::asking;
use ir::graph::{RegionId, Value};
use ir::{Module, Onnx};
use rustc_hash::FxHashSet;

/// Removes captures that no body of a node uses, and nodes in bodies that nothing uses. Innermost first, so that what only an inner
/// body captured goes, too.
pub fn outline(m: &mut Module<Onnx>) {
    let (main, asking) = (m.main, asking(m));
    region(m, main, &asking);
}

fn region(m: &mut Module<Onnx>, r: RegionId, asking: &FxHashSet<String>) {
    for n in m.graphs[r].order.clone() {
        let bodies = m.graphs[r].nodes[n].regions.clone();
        bodies.iter().for_each(|&b| region(m, b, asking));
        let n_caps = m.graphs[r].nodes[n].n_captures as usize;
        if n_caps == 0 || bodies.iter().any(|&b| m.graphs[b].inputs.len() < n_caps) {
            continue;
        }
        let used: Vec<FxHashSet<Value>> = bodies.iter().map(|&b| uses(m, b)).collect();
        let keep: Vec<bool> = (0..n_caps)
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
                i <= own || keep[i - 1 - own]
            });
            for (i, &v) in g.inputs.iter().enumerate() {
                g.values[v].def = ir::graph::Def::Input(u32::try_from(i).unwrap_or(u32::MAX));
            }
        }
        let node = &mut m.graphs[r].nodes[n];
        let own = node.ins.len() - n_caps;
        let mut i = 0;
        node.ins.retain(|_| {
            i += 1;
            i <= own || keep[i - 1 - own]
        });
        node.n_captures = u32::try_from(keep.iter().filter(|k| **k).count()).unwrap_or(u32::MAX);
    }
    m.graphs[r].remove_dead(|n| asking.contains(&*n.origin.0));
}

fn uses(m: &Module<Onnx>, b: RegionId) -> FxHashSet<Value> {
    let g = &m.graphs[b];
    let ins = g.order.iter().flat_map(|&n| g.nodes[n].ins.iter().flatten());
    g.outputs.iter().chain(ins).copied().collect()
}
