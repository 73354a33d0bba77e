//! What a model uses and this build does not have: collected over the whole model, reported in one error.

use super::source::SourceNode;
use crate::op::Registry;
use tensor::{Diagnostic, ErrorKind, Result};

/// How many different problems are spelled out.
const SHOWN: usize = 40;

/// Whether a node is a search through what a decoder may say: a loop over a model, with a choice in each step that no graph has.
fn generates(n: &SourceNode) -> bool {
    const SEARCHES: [&str; 4] = ["BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"];
    n.domain == "com.microsoft" && SEARCHES.contains(&n.op)
}

/// Problems in order of first occurrence.
#[derive(Default)]
pub(super) struct Problems {
    found: indexmap::IndexMap<(&'static str, String), Found>,
}

struct Found {
    count: usize,
    first: String,
    remedy: String,
}

impl Problems {
    /// A domain as people know it.
    pub(super) fn domain(d: &str) -> &str {
        if d.is_empty() { "ai.onnx" } else { d }
    }
    fn add(&mut self, label: &'static str, what: String, path: &str, remedy: impl FnOnce() -> String) {
        let entry = self.found.entry((label, what));
        let found = entry.or_insert_with(|| Found { count: 0, first: path.into(), remedy: remedy() });
        found.count += 1;
    }
    /// No row covers the operator at this version.
    pub(super) fn unknown_op(&mut self, n: &SourceNode, version: i64, registry: &Registry, path: &str) {
        let mut known = registry.versions(n.domain, n.op);
        known.sort_unstable();
        let what = format!("{} of {} at opset {version}", n.op, Self::domain(n.domain));
        self.add("operator", what, path, || match known.as_slice() {
            [] if generates(n) => {
                "it generates token by token with a decoder that it holds: compile the decoder's step as a model of its own, and keep the \
                 loop and the choice of tokens in the program that runs it"
                    .into()
            }
            [] => "no such operator: add a row, or include its function in the model".into(),
            rows => {
                let span = |&(a, b): &(i64, i64)| match b {
                    i64::MAX => format!("{a} on"),
                    b if a == b => a.to_string(),
                    b => format!("{a} to {b}"),
                };
                let spans: Vec<String> = rows.iter().map(span).collect();
                format!("known at opset {}: convert the model to one of these", spans.join(", "))
            }
        });
    }
    /// The operator changed in version `changed`, of which there is no row.
    pub(super) fn changed_op(&mut self, n: &SourceNode, version: i64, changed: i64, path: &str) {
        let what = format!("{} of {} at opset {version}", n.op, Self::domain(n.domain));
        self.add("operator", what, path, || {
            format!(
                "it changed in opset {changed}, and that meaning is not known: convert the model to opset {}",
                changed - 1
            )
        });
    }
    /// The model does not import the domain.
    pub(super) fn missing_opset(&mut self, n: &SourceNode, path: &str) {
        let what = format!("{} of {}", n.op, Self::domain(n.domain));
        self.add("operator", what, path, || {
            "the model imports no operator set of this domain: add it to opset_import".into()
        });
    }
    /// The operator set is newer than this build.
    pub(super) fn new_opset(&mut self, domain: &str, version: i64, newest: i64, path: &str) {
        let what = format!("{} {version}", Self::domain(domain));
        self.add("opset", what, path, || format!("the newest known is {newest}: convert the model to it"));
    }
    /// An attribute that the operator does not have, or not of this type.
    pub(super) fn unknown_attr(&mut self, op: &str, attr: &str, why: &str, path: &str) {
        self.add("attribute", format!("{attr:?} of {op}"), path, || why.into());
    }
    /// One error for all, if any.
    pub(super) fn finish(self) -> Result<()> {
        let n = self.found.len();
        if n == 0 {
            return Ok(());
        }
        let count = |label: &str| self.found.keys().filter(|(l, _)| *l == label).count();
        let parts: Vec<String> = [("operator", "operators"), ("opset", "opsets"), ("attribute", "attributes")]
            .iter()
            .filter_map(|(one, many)| match count(one) {
                0 => None,
                1 => Some(format!("1 {one}")),
                k => Some(format!("{k} {many}")),
            })
            .collect();
        let verb = if n == 1 { "is" } else { "are" };
        let message = format!("the model uses {} that {verb} not supported", parts.join(", "));
        let mut e = Diagnostic::new(ErrorKind::Unsupported, message);
        for ((label, what), f) in self.found.iter().take(SHOWN) {
            let nodes = if f.count == 1 { "1 node".into() } else { format!("{} nodes", f.count) };
            e = e.note(*label, format!("{what}: {nodes}, first {}; {}", f.first, f.remedy));
        }
        if n > SHOWN {
            e = e.note("more", format!("{} problems are not shown", n - SHOWN));
        }
        Err(e.help("each line says what would help; docs/OPS.md lists the operators that are supported"))
    }
}
