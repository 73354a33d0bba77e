//! Export: a module of the ONNX dialect becomes an ONNX model.
//!
//! Importing the result gives an equal module up to names, with two exceptions: a value that is several graph outputs gets an
//! `Identity` for each but the first, since ONNX names outputs by their values; and constants that nothing uses are left out.
//! Operators of our own `hip` domain are written as they are, under the domain `hip` version 1: other runtimes refuse them, so
//! export before rewriting to get a model for those. External data is put into the model.

use crate::attrs::Attr;
use crate::consts::ConstId;
use crate::graph::{Def, Graph, Module, NodeData, Onnx, RegionId, Value};
use crate::op::AttrKind;
use crate::ops::random::STREAM;
use crate::ty::Type;
use bytes::Bytes;
use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use tensor::onnx_pb::*;
use tensor::{Diagnostic, DimPool, ErrorKind, Result, pb};

/// Greatest size of a protobuf message.
const MAX_BYTES: usize = (1 << 31) - 1;

/// The bytes of an `.onnx` file.
///
/// # Errors
/// `Unsupported` when no version of an operator set has all the operators that the module uses, `Limit` beyond 2 GB, and what
/// reading constants gives.
pub fn to_onnx(m: &Module<Onnx>) -> Result<Vec<u8>> {
    let model = to_proto(m)?;
    let len = model.encoded_len();
    if len > MAX_BYTES {
        let e = format!("the model takes {len} bytes, but a protobuf file has at most {MAX_BYTES}");
        return Err(Diagnostic::new(ErrorKind::Limit, e));
    }
    Ok(model.encode_to_vec())
}

/// [`to_onnx`] before it is encoded.
///
/// # Errors
/// As [`to_onnx`].
pub fn to_proto(m: &Module<Onnx>) -> Result<ModelProto> {
    let opset_import = opsets(m)?;
    let version = opset_import.iter().find(|o| o.domain.is_empty()).map_or(17, |o| o.version);
    let mut e = Export { m, names: Names::default(), consts: BTreeMap::new() };
    let g = m.graph();
    // Graph inputs and outputs get their names first: they are what callers see.
    let mut names: FxHashMap<Value, String> = FxHashMap::default();
    for &v in g.inputs.iter().chain(&g.outputs) {
        let name = || e.names.fresh(&g.values[v].name, "x");
        match g.values[v].def {
            Def::Const(_) => {}
            _ => drop(names.entry(v).or_insert_with(name)),
        }
    }
    let default = |(&i, &c): (&u32, &ConstId)| {
        let v = g.inputs.get(usize::try_from(i).ok()?)?;
        Some((names.get(v)?.clone(), c))
    };
    let defaults: Vec<(String, ConstId)> = m.defaults.iter().filter_map(default).collect();
    let mut graph = e.graph(m.main, names, "", None)?;
    for (name, c) in &defaults {
        graph.initializer.push(e.tensor(*c, name)?);
    }
    graph.name = if m.meta.name.is_empty() { "main".into() } else { m.meta.name.clone() };
    for (id, name) in &e.consts {
        graph.initializer.push(e.tensor(*id, name)?);
    }
    Ok(ModelProto {
        ir_version: Some(match version {
            ..=18 => 8,
            19 | 20 => 9,
            21 | 22 => 10,
            23 => 11,
            24 => 12,
            _ => 13,
        }),
        producer_name: m.meta.producer.clone(),
        graph: Some(graph),
        opset_import,
        metadata_props: m
            .meta
            .props
            .iter()
            .map(|(k, v)| StringStringEntryProto { key: k.clone(), value: v.clone() })
            .collect(),
        ..Default::default()
    })
}

/// A version of each operator set at which every row in use has its meaning; the model's own where it will do.
fn opsets(m: &Module<Onnx>) -> Result<Vec<OperatorSetIdProto>> {
    // Per domain: the rows that allow the least and the most.
    let mut bounds: BTreeMap<&str, (crate::OpId, crate::OpId)> = BTreeMap::new();
    for g in m.graphs.values() {
        for op in g.order.iter().map(|&n| g.nodes[n].op) {
            let def = &m.registry[op];
            let (lo, hi) = bounds.entry(def.domain).or_insert((op, op));
            if def.since > m.registry[*lo].since {
                *lo = op;
            }
            if def.until < m.registry[*hi].until {
                *hi = op;
            }
        }
    }
    let mut out = Vec::new();
    for (domain, version) in &m.meta.opsets {
        if !bounds.contains_key(domain.as_str()) {
            out.push(OperatorSetIdProto { domain: domain.clone(), version: *version });
        }
    }
    for (domain, (lo, hi)) in bounds {
        let (a, b) = (&m.registry[lo], &m.registry[hi]);
        if a.since > b.until {
            let e = format!(
                "no version of the operator set {:?} has both {}-{} and {}-{} (until {})",
                if domain.is_empty() { "ai.onnx" } else { domain },
                a.name,
                a.since,
                b.name,
                b.since,
                b.until
            );
            return Err(Diagnostic::new(ErrorKind::Unsupported, e).help("export the model before it is rewritten"));
        }
        let own = m.meta.opsets.iter().find(|(d, _)| d == domain).map_or(a.since, |o| o.1);
        out.push(OperatorSetIdProto { domain: domain.into(), version: own.clamp(a.since, b.until) });
    }
    out.sort_by(|a, b| a.domain.cmp(&b.domain));
    Ok(out)
}

/// Names that are taken.
#[derive(Default)]
struct Names(FxHashSet<String>);

impl Names {
    /// `name` if it is free, else a variation.
    fn fresh(&mut self, name: &str, default: &str) -> String {
        let base = if name.is_empty() { default } else { name };
        let mut unique = base.to_string();
        let mut k = self.0.len();
        while !self.0.insert(unique.clone()) {
            unique = format!("{base}_{k}");
            k += 1;
        }
        unique
    }
}

struct Export<'a> {
    m: &'a Module<Onnx>,
    names: Names,
    /// Constants in use, which are all initializers of the main graph: bodies see them from there.
    consts: BTreeMap<ConstId, String>,
}

impl Export<'_> {
    fn graph(
        &mut self,
        r: RegionId,
        mut names: FxHashMap<Value, String>,
        path: &str,
        n_captured: Option<usize>,
    ) -> Result<GraphProto> {
        let m = self.m;
        let g = &m.graphs[r];
        let mut out = GraphProto { name: format!("{r}"), ..Default::default() };
        for (v, data) in g.values.iter() {
            if let Def::Input(_) = data.def
                && g.inputs.contains(&v)
                && !names.contains_key(&v)
            {
                names.insert(v, self.names.fresh(&data.name, "x"));
            }
        }
        for &n in &g.order {
            let node =
                self.node(g, &g.nodes[n], path, &mut names).map_err(|e| e.node(g.nodes[n].origin.to_string()))?;
            out.node.push(node);
        }
        // A body's captured parameters are seen from outside, not passed.
        let main = n_captured.is_none();
        let n_own = g.inputs.len() - n_captured.unwrap_or(0).min(g.inputs.len());
        for &v in &g.inputs[..n_own] {
            out.input.push(info(&names[&v], &g.values[v].ty, &m.dims, true));
        }
        let mut seen = FxHashSet::default();
        for &v in &g.outputs {
            let mut name = self.name(g, v, &mut names);
            // Bodies must not hand out what they see from outside under its own name.
            let outside = !main && (g.as_const(v).is_some() || g.inputs[n_own..].contains(&v));
            if outside || !seen.insert(v) {
                let copy = self.names.fresh("", &format!("{name}_out"));
                let (input, output) = (vec![name], vec![copy.clone()]);
                out.node.push(NodeProto { op_type: "Identity".into(), input, output, ..Default::default() });
                name = copy;
            }
            out.output.push(info(&name, &g.values[v].ty, &m.dims, false));
        }
        Ok(out)
    }

    fn name(&mut self, g: &Graph<Onnx>, v: Value, names: &mut FxHashMap<Value, String>) -> String {
        if let Def::Const(c) = g.values[v].def {
            return self.constant(c);
        }
        names.entry(v).or_insert_with(|| self.names.fresh(&g.values[v].name, "t")).clone()
    }

    fn constant(&mut self, c: ConstId) -> String {
        let (names, m) = (&mut self.names, self.m);
        self.consts.entry(c).or_insert_with(|| names.fresh(&m.consts[c].name, "c")).clone()
    }

    fn tensor(&self, c: ConstId, name: &str) -> Result<TensorProto> {
        Ok(pb::write(name, &self.m.consts[c].read()?))
    }

    fn node(
        &mut self,
        g: &Graph<Onnx>,
        n: &NodeData<Onnx>,
        path: &str,
        names: &mut FxHashMap<Value, String>,
    ) -> Result<NodeProto> {
        let m = self.m;
        let def = &m.registry[n.op];
        let own = n.ins.len() - usize::try_from(n.n_captures).unwrap_or(0).min(n.ins.len());
        let ins: Vec<String> = n.ins.iter().map(|v| v.map_or(String::new(), |v| self.name(g, v, names))).collect();
        let mut attribute = Vec::new();
        let slots = def.attrs.iter().filter(|a| a.kind != AttrKind::Graph);
        for ((a, default), value) in slots.zip(def.default_attrs()).zip(m.attrs_of(n).slots()) {
            // Import numbers the nodes that draw random numbers.
            let numbered = a.name == STREAM && def.domain.is_empty();
            if *value != default && !numbered {
                attribute.extend(self.attr(a.name, value)?);
            }
        }
        let graphs = def.attrs.iter().filter(|a| a.kind == AttrKind::Graph);
        for (a, &r) in graphs.zip(&n.regions) {
            let body = &m.graphs[r];
            let first = body.inputs.len() - (n.ins.len() - own).min(body.inputs.len());
            let captured = body.inputs[first..].iter().copied().zip(ins[own..].iter().cloned()).collect();
            let inner = format!("{}/{}/", n.origin, a.name);
            let g = Some(Box::new(self.graph(r, captured, &inner, Some(ins.len() - own))?));
            attribute.push(AttributeProto { g, ..plain(a.name, AttributeType::Graph) });
        }
        let output = n.outs.iter().map(|&v| self.name(g, v, names)).collect();
        Ok(NodeProto {
            op_type: def.name.into(),
            domain: def.domain.into(),
            // Import puts the path of the owner in front of nodes of bodies.
            name: n.origin.0.strip_prefix(path).unwrap_or(&n.origin.0).to_string(),
            input: ins[..own].to_vec(),
            output,
            attribute,
            ..Default::default()
        })
    }

    fn attr(&mut self, name: &str, value: &Attr) -> Result<Option<AttributeProto>> {
        use AttributeType as T;
        let text = |s: &str| Bytes::copy_from_slice(s.as_bytes());
        Ok(Some(match value {
            Attr::Absent => return Ok(None),
            Attr::Int(v) => AttributeProto { i: Some(*v), ..plain(name, T::Int) },
            Attr::Float(v) => AttributeProto { f: Some(v.get()), ..plain(name, T::Float) },
            Attr::Str(v) => AttributeProto { s: Some(text(v)), ..plain(name, T::String) },
            Attr::Ints(v) => AttributeProto { ints: v.to_vec(), ..plain(name, T::Ints) },
            Attr::Floats(v) => AttributeProto { floats: v.iter().map(|x| x.get()).collect(), ..plain(name, T::Floats) },
            Attr::Strs(v) => AttributeProto { strings: v.iter().map(|s| text(s)).collect(), ..plain(name, T::Strings) },
            Attr::Tensor(c) => {
                let t = self.tensor(*c, &self.m.consts[*c].name)?;
                AttributeProto { t: Some(Box::new(t)), ..plain(name, T::Tensor) }
            }
            Attr::Type(t) => {
                AttributeProto { tp: proto_type(t, &self.m.dims, false).map(Box::new), ..plain(name, T::TypeProto) }
            }
        }))
    }
}

fn plain(name: &str, ty: AttributeType) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: Some(ty as i32), ..Default::default() }
}

fn info(name: &str, ty: &Type, dims: &DimPool, input: bool) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), r#type: proto_type(ty, dims, input), ..Default::default() }
}

/// A declared type. Extents that are neither numbers nor symbols are left open; those of graph inputs never are.
fn proto_type(ty: &Type, dims: &DimPool, input: bool) -> Option<TypeProto> {
    use type_proto::Value as V;
    let boxed = |t: &Type| proto_type(t, dims, input).map(Box::new);
    let value = match ty {
        Type::Tensor(t) => {
            let dim = |&d: &tensor::DimId| match (dims.as_const(d), dims.as_symbol(d)) {
                (Some(c), _) => dimension::Value::DimValue(c),
                (_, Some(s)) => dimension::Value::DimParam(dims.sym(s).name.clone()),
                _ if input => dimension::Value::DimParam(dims.display(d).to_string()),
                _ => dimension::Value::DimParam(String::new()),
            };
            return Some(tensor_type(t.dtype.onnx(), t.shape.as_ref().map(|s| s.iter().map(dim).collect())));
        }
        Type::Sequence(t) => V::SequenceType(Box::new(type_proto::Sequence { elem_type: boxed(t) })),
        Type::Optional(t) => V::OptionalType(Box::new(type_proto::Sequence { elem_type: boxed(t) })),
        Type::Map { key, value } => {
            V::MapType(Box::new(type_proto::Map { key_type: key.onnx(), value_type: boxed(value) }))
        }
        Type::Unknown => return None,
    };
    Some(TypeProto { value: Some(value), ..Default::default() })
}
