//! What was chosen for each node, and why the rest was not.

use std::fmt;

/// The choices that [`crate::to_hip`] made, node by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explain {
    /// Nodes in order, those of bodies after the node that owns them.
    pub nodes: Vec<NodeChoice>,
}

/// One node's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChoice {
    /// The model node's path.
    pub path: String,
    /// The operator.
    pub op: String,
    /// The candidate taken: `view`, `loops`, `kernel gemm.f32`, …; `shape` when all results are known as dims and nothing runs;
    /// `dead` when nothing uses the results.
    pub chosen: String,
    /// Candidates before it, with the reason of each.
    pub refused: Vec<(String, String)>,
    /// What it costs beyond the candidate itself: copies of operands or results, with the reason.
    pub notes: Vec<String>,
}

impl Explain {
    /// How many nodes took each candidate, by name.
    pub fn counts(&self) -> Vec<(String, usize)> {
        let mut out = std::collections::BTreeMap::<&str, usize>::new();
        self.nodes.iter().for_each(|n| *out.entry(&n.chosen).or_default() += 1);
        out.into_iter().map(|(k, n)| (k.to_string(), n)).collect()
    }
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for n in &self.nodes {
            writeln!(f, "{} ({}): {}", n.path, n.op, n.chosen)?;
            for (candidate, reason) in &n.refused {
                writeln!(f, "  not {candidate}: {reason}")?;
            }
            for note in &n.notes {
                writeln!(f, "  {note}")?;
            }
        }
        for (i, (chosen, n)) in self.counts().into_iter().enumerate() {
            write!(f, "{}{n} {chosen}", if i == 0 { "total: " } else { ", " })?;
        }
        if self.nodes.is_empty() { Ok(()) } else { writeln!(f) }
    }
}
