//! What rewriting did, and what it almost did.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Why saturation of a region ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stop {
    /// No rule had anything to add.
    Saturated,
    /// The round limit.
    Rounds,
    /// The node limit.
    Nodes,
    /// The time limit (off unless asked for).
    Time,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::Saturated => "saturated",
            Stop::Rounds => "round limit",
            Stop::Nodes => "node limit",
            Stop::Time => "time limit",
        })
    }
}

/// A place where a rule would have applied but for one condition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NearMiss {
    /// The rule.
    pub rule: &'static str,
    /// The model node at the root of the match.
    pub node: String,
    /// The condition that failed.
    pub why: String,
}

/// What [`crate::rewrite`] did. Prints as a table for `--report`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Nodes before and after, over all regions.
    pub n_nodes: (usize, usize),
    /// How often each rule made two classes equal that were not.
    pub applied: BTreeMap<&'static str, usize>,
    /// Fused operators in the result, by name.
    pub result_ops: BTreeMap<String, usize>,
    /// Near misses, in order of rule and node.
    pub misses: Vec<NearMiss>,
    /// Rules left out, with the reason: switched off, class not allowed, operators without rows.
    pub left_out: Vec<(&'static str, String)>,
    /// Why saturation ended, with the number of e-graphs (regions and cuts) it did so in.
    pub stops: BTreeMap<Stop, usize>,
    /// E-nodes and classes at the end, over all e-graphs.
    pub n_enodes: usize,
    /// See `n_enodes`.
    pub n_classes: usize,
    /// The greatest number of rounds.
    pub rounds: usize,
    /// Nodes folded to constants.
    pub n_folded: usize,
    /// Choices that local improvement of the extraction changed.
    pub n_improved: usize,
    /// Estimated cost of the result, in picoseconds.
    pub cost: u64,
    /// Unions refused because types differ: a broken rule. Empty unless there is a bug.
    pub conflicts: Vec<String>,
    /// What refining dims of the model as it came did.
    pub dims_before: crate::refine::DimReport,
    /// What refining dims of the result did.
    pub dims: crate::refine::DimReport,
    /// What inference knows about the result.
    pub info: ir::infer::Info,
    /// Time per phase.
    pub times: Vec<(&'static str, Duration)>,
}

impl Report {
    pub(crate) fn time(&mut self, phase: &'static str, d: Duration) {
        match self.times.iter_mut().find(|(p, _)| *p == phase) {
            Some((_, t)) => *t += d,
            None => self.times.push((phase, d)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "nodes      {} -> {} ({} folded)", self.n_nodes.0, self.n_nodes.1, self.n_folded)?;
        writeln!(f, "e-graph    {} e-nodes, {} classes, {} rounds", self.n_enodes, self.n_classes, self.rounds)?;
        let stops: Vec<String> = self.stops.iter().map(|(s, n)| format!("{s} ({n})")).collect();
        writeln!(f, "stopped    {}", stops.join(", "))?;
        writeln!(f, "cost       {} us estimated, {} choices improved", self.cost / 1_000_000, self.n_improved)?;
        write!(f, "{}{}", self.dims_before, self.dims)?;
        let (before, after) = (self.dims_before.guards, self.dims.guards - self.dims.guards_removed);
        writeln!(f, "guards     {before} before, {after} after")?;
        let times: Vec<String> = self.times.iter().map(|(p, d)| format!("{p} {:.3} s", d.as_secs_f64())).collect();
        writeln!(f, "time       {}", times.join(", "))?;
        for (rule, n) in &self.applied {
            writeln!(f, "rule       {n:5} {rule}")?;
        }
        for (op, n) in &self.result_ops {
            writeln!(f, "made       {n:5} {op}")?;
        }
        for m in &self.misses {
            writeln!(f, "near miss  {} at {}: {}", m.rule, m.node, m.why)?;
        }
        for (rule, why) in &self.left_out {
            writeln!(f, "left out   {rule}: {why}")?;
        }
        for c in &self.conflicts {
            writeln!(f, "BUG        a rule would join {c}")?;
        }
        Ok(())
    }
}
