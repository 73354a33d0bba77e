//! Generated pages, and small models for the examples in the documentation.

use ir::cases::{Case, Random};
use ir::consts::Const;
use ir::hip::{Hip, HipOp};
use ir::lowering::Candidate;
use ir::nest::is_storable;
use ir::op::OpDef;
use ir::{Module, Onnx, OpId, Origin, Registry, Type};
use runtime::host_ops::HOST_OPS;
use std::fmt::Write;
use std::sync::Arc;
use tensor::DType;

/// `y = relu(x)` over a vector of any length, in text form.
pub const RELU_MODEL: &str = include_str!("relu.hir");

/// The page `docs/OPS.md`: every row with its versions, types and how it runs.
pub fn render_ops() -> String {
    render_rows(&Registry::builtin())
}

fn render_rows(registry: &Arc<Registry>) -> String {
    let mut s = String::from(
        "# Operators\n\nGenerated from the operator rows (`ir/src/ops`). A line is one meaning of an operator. *Types*: those with which \
         the row's cases compile. *Runs as*: the candidates in order of \
         preference on every device; each may refuse a node with a reason (`hip-opt --explain`), the next is tried, and a node that \
         none takes is a compile error. `view` moves no bytes, `pointwise` and `loops` are generated kernels, `kernel` is one of the \
         catalog, `assemble` writes operands into their places of the result, `expanded` puts other operators in its place, `host` runs the reference function.\n\n\
         | operator | versions | types | runs as |\n|---|---|---|---|\n",
    );
    let mut lines: Vec<(String, i64, String)> = Vec::new();
    for (id, def) in registry.rows() {
        let until = if def.until == i64::MAX { "on".to_string() } else { format!("to {}", def.until) };
        let types: Vec<String> = def
            .dtypes
            .iter()
            .map(|(var, all)| {
                let runs: Vec<&str> =
                    all.iter().filter(|&&d| runs_with(registry, id, var, d)).map(|d| d.name()).collect();
                format!("{var}: {}", runs.join(" "))
            })
            .collect();
        let mut how: Vec<&str> = def.lower.iter().filter_map(|c| candidate(def, c)).collect();
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
    s += "\n## Indices out of range\nThose of Gather, GatherElements, GatherND, Scatter, ScatterElements and ScatterND count from the end where \
          they are negative. A constant one that is out of range of an axis whose extent is known is refused when the model is compiled. \
          One that is computed, or meets an extent that only a run knows, is not an error: gathering clamps it to the nearest end of the \
          axis (and gives 0 where the axis is empty), scattering drops its update.\n";
    s += "\n## Sorting\nTopK and Unique sort the rows of keys along an axis: NaN is above every number, zeros of both signs are equal, of \
          equal elements the first comes first. A row of n is a thread's on CPUs, in O(n + k log k) for the k first. On GPUs it is a block's: \
          O(n log² n), and O(n) for k up to 512 of more than 1024 elements in random order. Unique along an axis sorts once for each element \
          of a slice.\n\n## Packed elements\nElements of 4 and 2 bits share bytes: one thread computes all of a byte. A part of a buffer \
          of them is never written by itself, so what a Loop gives in each iteration cannot be packed.\n";
    s
}

/// What the page calls a candidate; `None` for a host op that the runtime does not have.
fn candidate(def: &OpDef, c: &Candidate) -> Option<&'static str> {
    Some(match c {
        Candidate::View(_) => "view",
        Candidate::Pointwise(_) => "pointwise",
        Candidate::Loops(_) => "loops",
        Candidate::Update(_) => "update",
        Candidate::Assemble(_) => "assemble",
        Candidate::Kernel(_) => "kernel",
        Candidate::Expand(_) => "expanded",
        Candidate::Regions => "control flow",
        Candidate::Host => return has_host_op(def).then_some("host"),
        _ => "other",
    })
}

fn has_host_op(def: &OpDef) -> bool {
    HOST_OPS.iter().any(|(name, _)| *name == def.full_name())
}

/// Whether every case of the row that compiles with the first types of its variables also does when `var` is `dtype`. Rows without
/// cases are taken at their word; types of results alone must be such as kernels store. Strings never cross to a device.
fn runs_with(registry: &Arc<Registry>, id: OpId, var: &str, dtype: DType) -> bool {
    let def = &registry[id];
    if dtype == DType::String && !has_host_op(def) {
        return false;
    }
    if def.cases.is_empty() {
        return true;
    }
    if !def.inputs.iter().any(|p| p.ty == var) {
        return is_storable(dtype) || dtype.bits() < 8;
    }
    let first = |v: &str| def.dtypes.iter().find(|(n, _)| *n == v).map(|(_, d)| d[0]);
    let with = |v: &str| if v == var { Some(dtype) } else { first(v) };
    let cases = || def.cases.iter().filter_map(|text| ir::cases::parse(def, text).ok());
    cases().any(|c| compiles(registry, id, &c, &with))
        && cases().all(|c| compiles(registry, id, &c, &with) || !compiles(registry, id, &c, &first))
}

/// Whether a node by itself compiles.
fn compiles(registry: &Arc<Registry>, id: OpId, case: &Case, dtype_of: &dyn Fn(&str) -> Option<DType>) -> bool {
    let mut m = one_node(registry, id, case, dtype_of);
    let mut options = lower::Options::default();
    options.host_ops = has_host_op(&registry[id]);
    let info = ir::infer::infer(&mut m).and_then(|info| match ir::expand::expand(&mut m)? {
        true => ir::infer::infer(&mut m),
        false => Ok(info),
    });
    let hip = info.and_then(|info| lower::to_hip(&m, &info, &options));
    hip.is_ok_and(|(hip, _)| is_generated(&hip))
}

/// Whether code can be generated for every nest.
fn is_generated(m: &Module<Hip>) -> bool {
    let mut nodes = m.graphs.values().flat_map(|g| g.order.iter().map(|&n| &g.nodes[n].op));
    nodes.all(|op| match op {
        HipOp::Launch(nest) => nest.operands.iter().all(|o| is_storable(o.dtype)),
        _ => true,
    })
}

/// A model of one node: the operands of a case as inputs, those of a type of their own as constants.
fn one_node(registry: &Arc<Registry>, id: OpId, case: &Case, dtype_of: &dyn Fn(&str) -> Option<DType>) -> Module<Onnx> {
    let def = &registry[id];
    let mut m = Module::new(registry.clone());
    let (mut ins, mut random) = (vec![], Random::new(1));
    for (i, operand) in case.operands.iter().enumerate() {
        let Some(o) = operand else {
            ins.push(None);
            continue;
        };
        let param = def.inputs.get(i).or(def.inputs.last());
        let dtype = o.dtype.or_else(|| dtype_of(param?.ty)).unwrap_or(DType::F32);
        let shape: Vec<_> = o.shape.iter().map(|&n| m.dims.constant(i64::try_from(n).unwrap_or(i64::MAX))).collect();
        let ty = Type::tensor(dtype, shape);
        ins.push(Some(if o.dtype.is_some() {
            let konst = m.consts.push(Const::from_tensor("", &o.tensor(dtype, &mut random)));
            m.graph_mut().add_const(konst, ty, "")
        } else {
            m.graph_mut().add_input(ty, format!("x{i}"))
        }));
    }
    let attrs = m.attrs.intern(case.attrs.clone());
    let outs = (0..case.n_outs).map(|i| (Type::Unknown, format!("y{i}").into()));
    let n = m.graph_mut().add_node(id, attrs, ins, outs, [], Origin("/case".into()));
    m.graph_mut().outputs = m.graph().nodes[n].outs.to_vec();
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of an operator's newest row.
    fn line<'p>(page: &'p str, name: &str) -> &'p str {
        page.lines().rfind(|l| l.starts_with(&format!("| {name} |"))).unwrap_or_default()
    }

    #[test]
    fn the_table_lists_what_compiles() {
        let page = render_ops();
        let table = page.split_once("|---|").map_or("", |(_, t)| t);
        assert!(!table.contains(", host") && !table.contains("| host"), "no host op exists");
        assert!(!table.contains(" str"), "strings do not cross to the device");
        assert!(line(&page, "NonZero").contains(" f16 ") && line(&page, "NonZero").contains(" u8 "));
    }

    #[test]
    fn types_and_candidates_that_nothing_takes_are_left_out() {
        let registry = Registry::builtin();
        let mut row = registry[registry.newest("", "Abs")].clone();
        row.lower = &[
            Candidate::Loops(|c| match c.need(0)?.dtype {
                DType::F32 => {
                    let x = c.outs[0].clone();
                    Ok(lower::nests::copy(c.dims, x.dtype, &x.shape, &x.shape, &x.shape))
                }
                d => Err(format!("no loops for {d}").into()),
            }),
            Candidate::Host,
        ];
        let page = render_rows(&Arc::new(Registry::with_rows([row])));
        assert_eq!(line(&page, "Abs"), "| Abs | 6 on | T: f32 | loops |");
    }
}
