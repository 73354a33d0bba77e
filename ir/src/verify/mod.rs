//! Verifiers: what must hold of a module between any two passes. The list is in `docs/IR.md`.
//!
//! A module that a verifier accepts makes no later stage fail on its structure. Errors name the node and the rule broken.

mod hip;
mod nest;
mod onnx;

pub use hip::verify_hip;
pub use nest::verify_nest;
pub use onnx::verify_onnx;

use crate::graph::{Def, Dialect, Graph, Module, Node, NodeData, RegionId, Value};
use tensor::{Diagnostic, Entity, ErrorKind, Result};

fn broken(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Malformed, what)
}

/// The path of a node, or its place where it has none.
fn path<D: Dialect>(r: RegionId, n: Node, node: &NodeData<D>) -> String {
    if node.origin.0.is_empty() { format!("{n} of {r}") } else { node.origin.0.to_string() }
}

/// Regions in use, each of which must be used once: the main graph first, then bodies in the order of their nodes.
fn regions<D: Dialect>(m: &Module<D>) -> Result<Vec<RegionId>> {
    let mut seen = vec![false; m.graphs.len()];
    let mut out = vec![m.main];
    let mut next = 0;
    while let Some(&r) = out.get(next) {
        next += 1;
        let Some(g) = m.graphs.get(r) else { return Err(broken(format!("{r} is not a region of the module"))) };
        if std::mem::replace(&mut seen[r.index()], true) {
            return Err(broken(format!("{r} is the body of two nodes")));
        }
        for &n in &g.order {
            let node = g.nodes.get(n).ok_or_else(|| broken(format!("{n} is not a node of {r}")))?;
            out.extend(node.regions.iter().copied());
        }
    }
    Ok(out)
}

/// SSA: values are what their definitions say, operands are defined before they are used, captures match parameters.
fn ssa<D: Dialect>(m: &Module<D>, r: RegionId, g: &Graph<D>) -> Result<()> {
    let mut defined = vec![false; g.values.len()];
    let n_values = g.values.len();
    let known = |v: Value| match v.index() < n_values {
        true => Ok(v.index()),
        false => Err(broken(format!("{v} is not a value of {r}"))),
    };
    for (i, &v) in g.inputs.iter().enumerate() {
        let at = known(v)?;
        if g.values[v].def != Def::Input(u32::try_from(i).unwrap_or(u32::MAX))
            || std::mem::replace(&mut defined[at], true)
        {
            return Err(broken(format!("{v} is parameter {i} of {r} but is not defined as it")));
        }
    }
    let usable = |defined: &[bool], v: Value| -> Result<bool> {
        Ok(match g.values.get(v).map(|d| d.def) {
            None => return Err(broken(format!("{v} is not a value of {r}"))),
            Some(Def::Const(c)) if m.consts.get(c).is_none() => {
                return Err(broken(format!("{v} is {c}, which is not a constant of the module")));
            }
            Some(Def::Const(_)) => true,
            Some(_) => defined[v.index()],
        })
    };
    let mut seen = vec![false; g.nodes.len()];
    for &n in &g.order {
        let node = &g.nodes[n];
        let at = |e: Diagnostic| e.node(path(r, n, node));
        if std::mem::replace(&mut seen[n.index()], true) {
            return Err(at(broken(format!("{n} occurs twice in the order"))));
        }
        for (i, v) in node.ins.iter().enumerate().filter_map(|(i, v)| Some((i, (*v)?))) {
            if !usable(&defined, v).map_err(at)? {
                return Err(at(broken(format!("operand {i}, %{v}, is used before it is defined"))));
            }
        }
        for (i, &v) in node.outs.iter().enumerate() {
            let k = known(v).map_err(at)?;
            let def = Def::Node(n, u32::try_from(i).unwrap_or(u32::MAX));
            if g.values[v].def != def || std::mem::replace(&mut defined[k], true) {
                return Err(at(broken(format!("%{v} is result {i} but is not defined as it"))));
            }
        }
        let n_captures = usize::try_from(node.n_captures).unwrap_or(usize::MAX);
        if n_captures > node.ins.len() || (n_captures > 0 && node.regions.is_empty()) {
            return Err(at(broken(format!(
                "{n_captures} captures, {} operands, {} bodies",
                node.ins.len(),
                node.regions.len()
            ))));
        }
        if node.ins[node.ins.len() - n_captures..].contains(&None) {
            return Err(at(broken("a captured operand is absent")));
        }
        for &body in &node.regions {
            if m.graphs[body].inputs.len() < n_captures {
                return Err(at(broken(format!("{body} has fewer parameters than the node has captures"))));
            }
        }
    }
    for (i, &v) in g.outputs.iter().enumerate() {
        if !usable(&defined, v)? {
            return Err(broken(format!("output {i} of {r}, %{v}, is defined by nothing")));
        }
    }
    Ok(())
}
