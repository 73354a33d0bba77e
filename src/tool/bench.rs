//! Times of ops over repeated runs.

use runtime::{Counters, Profile};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Collects profiles of equal runs.
#[derive(Debug, Default)]
pub struct Bench {
    ops: BTreeMap<String, (usize, Vec<u64>)>,
    totals: Vec<u64>,
}

impl Bench {
    /// Adds the profile of one run.
    pub fn add(&mut self, p: &Profile) {
        let all = p.by_what();
        self.totals.push(all.iter().map(|t| t.time_ns).sum());
        for t in all {
            let line = self.ops.entry(t.what).or_default();
            line.0 = t.n;
            line.1.push(t.time_ns);
        }
    }

    /// Medians in microseconds over the runs: of all ops together, and of the ops by what ran, longest first. Null without runs.
    pub fn to_json(&self) -> Value {
        if self.totals.is_empty() {
            return Value::Null;
        }
        let us = |v: &[u64]| {
            let mut v = v.to_vec();
            v.sort_unstable();
            v.get(v.len() / 2).copied().unwrap_or(0) as f64 / 1e3
        };
        let mut lines: Vec<(&String, usize, f64)> = self.ops.iter().map(|(k, (n, v))| (k, *n, us(v))).collect();
        lines.sort_by(|a, b| b.2.total_cmp(&a.2));
        let ops: Vec<Value> =
            lines.iter().map(|(what, n, us)| json!({"what": what, "n": n, "median_us": us})).collect();
        json!({"runs": self.totals.len(), "median_us": us(&self.totals), "ops": ops})
    }
}

/// Counters by name.
pub fn counters(c: &Counters) -> Value {
    json!({
        "launches": c.launches, "kernel_calls": c.kernel_calls, "host_ops": c.host_ops, "copies": c.copies, "copied_bytes": c.copied_bytes,
        "syncs": c.syncs, "stores": c.stores, "pool_growths": c.pool_growths, "outputs": c.outputs, "shared_outputs": c.shared_outputs, "input_copies": c.input_copies,
        "output_copies": c.output_copies, "constant_copies": c.constant_copies,
    })
}
