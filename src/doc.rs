//! Generated pages, and small models for the examples in the documentation.

use ir::Registry;
use ir::lowering::Candidate;
use std::fmt::Write;

/// `y = relu(x)` over a vector of any length, in text form.
pub const RELU_MODEL: &str = include_str!("relu.hir");

/// The page `docs/OPS.md`: every row with its versions, types and how it runs.
pub fn render_ops() -> String {
    let mut s = String::from(
        "# Operators\n\nGenerated from the operator rows (`ir/src/ops`). A line is one meaning of an operator. *Runs as*: the candidates in order of \
         preference on every device; each may refuse a node with a reason (`hip-opt --explain`), the next is tried, and a node that \
         none takes is a compile error. `view` moves no bytes, `pointwise` and `loops` are generated kernels, `kernel` is one of the \
         catalog, `assemble` writes operands into their places of the result, `host` runs the reference function.\n\n\
         | operator | versions | types | runs as |\n|---|---|---|---|\n",
    );
    let mut lines: Vec<(String, i64, String)> = Vec::new();
    for (_, def) in Registry::builtin().rows() {
        let until = if def.until == i64::MAX { "on".to_string() } else { format!("to {}", def.until) };
        let types: Vec<String> = def
            .dtypes
            .iter()
            .map(|(var, all)| format!("{var}: {}", all.iter().map(|d| d.name()).collect::<Vec<_>>().join(" ")))
            .collect();
        let mut how: Vec<&str> = def.lower.iter().map(candidate).collect();
        how.dedup();
        let how =
            if how.is_empty() { "only while its result is known at compile time".to_string() } else { how.join(", ") };
        let name = def.full_name();
        let line = format!("| {name} | {} {until} | {} | {how} |\n", def.since, types.join("; "));
        lines.push((name, def.since, line));
    }
    lines.sort();
    let n = lines.len();
    lines.iter().for_each(|l| s.push_str(&l.2));
    let _ = writeln!(s, "\n{n} rows.");
    s += "\n```console\n$ hip-opt model.onnx --explain --pipeline hip --emit none\n…\n/Softmax (Softmax): loops\n\
          total: 1 kernel gemm.f32, 2 loops\n```\n";
    s
}

fn candidate(c: &Candidate) -> &'static str {
    match c {
        Candidate::View(_) => "view",
        Candidate::Pointwise(_) => "pointwise",
        Candidate::Loops(_) => "loops",
        Candidate::Assemble(_) => "assemble",
        Candidate::Kernel(_) => "kernel",
        Candidate::Regions => "control flow",
        Candidate::Host => "host",
        _ => "other",
    }
}
