//! What a plan needs at the shapes of a run, by the independent checker.

use ir::Module;
use ir::hip::{Hip, HipOp};
use lower::check::PoolUse;
use lower::plan::Plan;
use std::collections::BTreeMap;
use tensor::Result;

/// Checks a plan for inputs of these shapes and sums the use of its pools: bytes of all pools, and the most that is live in each. Views
/// and constants count nowhere; sizes are rounded as the plan rounds them.
///
/// # Errors
/// As [`lower::check_plan`]; also when the model has sizes that only the device knows.
pub fn at_shapes(m: &Module<Hip>, plan: &Plan, shapes: &[Vec<usize>]) -> Result<PoolUse> {
    let mut values = BTreeMap::new();
    let g = m.graph();
    for (&v, shape) in g.inputs.iter().zip(shapes) {
        for (&d, &n) in g.values[v].ty.shape.iter().zip(shape) {
            values.extend(m.dims.as_symbol(d).zip(i64::try_from(n).ok()));
        }
    }
    // Any iteration of a loop stands for all: no size depends on which it is. How many there are is known where no condition ends them.
    for node in m.graphs.values().flat_map(|g| g.order.iter().map(|&n| &g.nodes[n])) {
        let HipOp::Loop(l) = &node.op else { continue };
        values.insert(l.iter, 0);
        let trips = l.trips.filter(|_| !l.cond).and_then(|d| m.dims.eval(d, &|s| values.get(&s).copied()).ok());
        values.extend(trips.into_iter().flat_map(|n| l.counts.iter().map(move |&s| (s, n.max(0)))));
    }
    let uses = lower::check_plan(m, plan, &|s| values.get(&s).copied())?;
    Ok(uses.iter().fold(PoolUse { peak: 0, live: 0 }, |a, u| PoolUse { peak: a.peak + u.peak, live: a.live + u.live }))
}
