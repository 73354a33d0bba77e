//! Printing what both dialects share: the head of a module, graphs, constants.

use super::{PrintOptions, TextDialect};
use crate::consts::{Const, ConstData};
use crate::graph::{Graph, Module, RegionId, Rel, Value};
use std::fmt::Write;
use tensor::dims::Origin;
use tensor::{DType, DimPool, pb};

/// A symbol's name as extents print it.
pub(super) fn symbol(dims: &DimPool, s: tensor::SymId) -> String {
    tensor::dims::symbol_text(&dims.sym(s).name)
}

pub(super) fn module<D: TextDialect>(m: &Module<D>, options: &mut PrintOptions) -> String {
    let mut o = String::new();
    let _ = writeln!(o, "{} module {:?}", D::NAME, m.meta.name);
    if !m.meta.producer.is_empty() {
        let _ = writeln!(o, "producer {:?}", m.meta.producer);
    }
    for (domain, version) in &m.meta.opsets {
        let _ = writeln!(o, "opset {domain:?} {version}");
    }
    for (k, v) in &m.meta.props {
        let _ = writeln!(o, "prop {k:?} {v:?}");
    }
    for (id, s) in m.dims.symbols() {
        let origin = match s.origin {
            Origin::Input { input, axis } => format!("input({input}, {axis})"),
            Origin::ShapeValue => "shape_value".into(),
            Origin::DeviceResult => "device_result".into(),
            Origin::Region => "region".into(),
            _ => "unknown".into(),
        };
        let _ = write!(o, "dim {} : {origin}", symbol(&m.dims, id));
        if (s.lo, s.hi) != (0, i64::MAX) {
            let _ = write!(o, " in {}..", s.lo);
            if s.hi != i64::MAX {
                let _ = write!(o, "{}", s.hi);
            }
        }
        if s.multiple_of != 1 {
            let _ = write!(o, " multiple {}", s.multiple_of);
        }
        o.push('\n');
    }
    for g in &m.guards {
        let rel = match g.rel {
            Rel::Eq => "==",
            Rel::Le => "<=",
            Rel::Ne => "!=",
        };
        let _ = write!(o, "guard {} {rel} {} : {:?}", m.dims.display(g.lhs), m.dims.display(g.rhs), g.why);
        if !g.node.is_empty() {
            let _ = write!(o, " at {:?}", g.node);
        }
        o.push('\n');
    }
    for (id, c) in m.consts.iter() {
        let name = if c.name.is_empty() { String::new() } else { format!(" {:?}", c.name) };
        let _ = writeln!(o, "const @{id}{name} : {}{:?} = {}", c.dtype, c.shape.as_slice(), data(c, options));
    }
    o.push('\n');
    o.push_str(&graph(m, m.main));
    o
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn elements(c: &Const) -> Option<String> {
    let t = c.read().ok()?;
    if t.dtype() == DType::String {
        return Some(t.strings().iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", "));
    }
    Some(pb::literal(&t)?.join(", "))
}

fn data(c: &Const, options: &mut PrintOptions) -> String {
    match &c.data {
        ConstData::File { file, offset, len } => {
            return format!("file({:?}, {offset}, {len})", file.path.display().to_string());
        }
        ConstData::Splat(_) => {
            let one = Const { shape: Default::default(), ..c.clone() };
            return match elements(&one) {
                Some(e) => format!("splat {e}"),
                None => format!("splat bits \"{}\"", hex(one.read().ok().as_ref().map_or(&[], |t| t.bytes()))),
            };
        }
        ConstData::Seeded(s) => return format!("seeded({}, {:?}, {:?})", s.seed, s.middle, s.spread),
        ConstData::Digest(d) => return format!("digest {d:?}"),
        _ => {}
    }
    let small = c.n_elems() <= options.max_inline;
    if small && let Some(e) = elements(c) {
        return format!("[{e}]");
    }
    match c.read() {
        Ok(t) if t.dtype() == DType::String => format!("[{}]", elements(c).unwrap_or_default()),
        Ok(t) if small => {
            format!("bits \"{}\"", hex(t.bytes()))
        }
        Ok(t) => match &mut options.sidecar {
            Some(s) => {
                let offset = s.bytes.len().next_multiple_of(64);
                s.bytes.resize(offset, 0);
                s.bytes.extend_from_slice(t.bytes());
                format!("file({:?}, {offset}, {})", s.path, t.bytes().len())
            }
            None => format!("digest \"{}\"", blake3::hash(t.bytes()).to_hex()),
        },
        Err(e) => format!("digest {:?}", format!("unreadable: {}", e.message())),
    }
}

pub(super) fn graph<D: TextDialect>(m: &Module<D>, region: RegionId) -> String {
    let mut o = String::from("graph");
    // Types of the HIP dialect compare strides with those of a contiguous tensor, which makes extents.
    let mut dims = m.dims.clone();
    body(m, &m.graphs[region], &mut dims, "", true, &mut o);
    o
}

fn body<D: TextDialect>(m: &Module<D>, g: &Graph<D>, dims: &mut DimPool, indent: &str, names: bool, o: &mut String) {
    let name = |v: Value| {
        let n = &g.values[v].name;
        if n.is_empty() || !names { String::new() } else { format!(" {n:?}") }
    };
    let default = |i: usize| match u32::try_from(i).ok().and_then(|i| m.defaults.get(&i)) {
        Some(c) if names => format!(" = @{c}"),
        _ => String::new(),
    };
    let param =
        |(i, &v): (usize, &Value)| format!("%{v}{} : {}{}", name(v), D::print_type(&g.values[v].ty, dims), default(i));
    let params: Vec<String> = g.inputs.iter().enumerate().map(param).collect();
    let _ = writeln!(o, "({}) {{", params.join(", "));
    let inner = format!("{indent}  ");
    D::print_consts(m, g, dims, &inner, o);
    for &n in &g.order {
        let node = &g.nodes[n];
        let outs: Vec<String> = node.outs.iter().map(|v| format!("%{v}")).collect();
        let types: Vec<String> = node.outs.iter().map(|&v| D::print_type(&g.values[v].ty, dims)).collect();
        o.push_str(&inner);
        if !outs.is_empty() {
            let _ = write!(o, "{} = ", outs.join(", "));
        }
        o.push_str(&D::print_node(m, g, node, dims, &inner));
        if !types.is_empty() {
            let _ = write!(o, " : {}", types.join(", "));
        }
        let origin = &*node.origin.0;
        if !origin.is_empty() {
            let plain = origin.trim() == origin && !origin.starts_with('"') && !origin.contains(char::is_control);
            let _ = if plain { write!(o, "  ; {origin}") } else { write!(o, "  ; {origin:?}") };
        }
        o.push('\n');
        for (i, &r) in node.regions.iter().enumerate() {
            let _ = write!(o, "{inner}region{}", D::region_name(m, node, i));
            body(m, &m.graphs[r], dims, &inner, false, o);
        }
    }
    let outs: Vec<String> = g.outputs.iter().map(|&v| format!("{}{}", D::print_operand(g, v), name(v))).collect();
    let _ = writeln!(o, "{inner}return{}{}", if outs.is_empty() { "" } else { " " }, outs.join(", "));
    let _ = writeln!(o, "{indent}}}");
}

/// Operands, then captures in brackets.
pub(super) fn operands<D: TextDialect>(g: &Graph<D>, ins: &[Option<Value>], n_captures: u32) -> String {
    let show = |vs: &[Option<Value>]| {
        let all: Vec<String> = vs.iter().map(|v| v.map_or("_".into(), |v| D::print_operand(g, v))).collect();
        all.join(", ")
    };
    let own = ins.len() - usize::try_from(n_captures).unwrap_or(0).min(ins.len());
    let mut o = String::new();
    if own > 0 {
        let _ = write!(o, " {}", show(&ins[..own]));
    }
    if own < ins.len() {
        let _ = write!(o, " captures [{}]", show(&ins[own..]));
    }
    o
}
