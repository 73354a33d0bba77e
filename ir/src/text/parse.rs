//! Reading what both dialects share: the head of a module, graphs, constants.

use super::TextDialect;
use super::cursor::Cursor;
use crate::attrs::AttrsId;
use crate::consts::{Const, ConstData, ConstId, ExternalFile};
use crate::graph::{Def, Dialect, Graph, Guard, Module, Node, NodeData, Origin, RegionId, Rel, Value, ValueData};
use crate::op::{OpId, Registry};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tensor::{DType, Diagnostic, Entity, ErrorKind, PrimaryMap, Result, Seeded, Tensor, dims, pb};

/// How deep regions may nest.
const MAX_DEPTH: usize = 32;

/// An operand as text names it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum RawOperand {
    Absent,
    /// A value, and where in the text.
    Value(u32, usize),
    Const(ConstId),
}

/// A node before its operands are looked up.
pub(super) struct RawNode<D: Dialect> {
    pub op: D::Op,
    pub attrs: AttrsId,
    pub ins: Vec<RawOperand>,
    pub n_captures: u32,
}

/// What a graph has defined so far, by number.
pub(super) struct Ids<D: Dialect> {
    pub defs: BTreeMap<u32, ValueData<D>>,
}

impl<D: Dialect> Ids<D> {
    pub fn define(&mut self, c: &Cursor, id: u32, at: usize, data: ValueData<D>) -> Result<()> {
        // Numbers name places in an arena: a text may leave gaps, but not make the arena as large as it likes.
        if usize::try_from(id).unwrap_or(usize::MAX) >= c.budget {
            return Err(c.error(at, format!("value number {id} is too large")));
        }
        match self.defs.insert(id, data) {
            None => Ok(()),
            Some(_) => Err(c.error(at, format!("%v{id} is defined twice"))),
        }
    }
}

pub(super) fn module<D: TextDialect>(text: &str, registry: &Arc<Registry>, base: &Path) -> Result<Module<D>> {
    let mut c = Cursor::new(text);
    let mut m = Module::new(registry.clone());
    let mut files = FxHashMap::default();
    if !c.eat(D::NAME) {
        return Err(c.expected(&format!("{:?}", format!("{} module", D::NAME))));
    }
    c.expect("module")?;
    m.meta.name = c.string()?;
    while head(&mut c, &mut m, base, &mut files)? {}
    if !c.eat("graph") {
        return Err(c.expected("\"producer\", \"opset\", \"prop\", \"dim\", \"guard\", \"const\" or \"graph\""));
    }
    let main = graph(&mut c, &mut m, 0)?;
    m.graphs[m.main] = main;
    c.space();
    if !c.rest().is_empty() {
        return Err(c.expected("the end of the text"));
    }
    if m.dims.overflowed() {
        return Err(Diagnostic::new(ErrorKind::Limit, "extents of the text overflow 64 bits"));
    }
    Ok(m)
}

fn head<D: TextDialect>(
    c: &mut Cursor,
    m: &mut Module<D>,
    base: &Path,
    files: &mut FxHashMap<String, Arc<ExternalFile>>,
) -> Result<bool> {
    if c.eat("producer") {
        m.meta.producer = c.string()?;
    } else if c.eat("opset") {
        let domain = c.string()?;
        m.meta.opsets.push((domain, c.int()?));
    } else if c.eat("prop") {
        let key = c.string()?;
        m.meta.props.push((key, c.string()?));
    } else if c.eat("dim") {
        dim(c, m)?;
    } else if c.eat("guard") {
        let lhs = c.dim(&mut m.dims)?;
        let rel = if c.eat("==") {
            Rel::Eq
        } else if c.eat("<=") {
            Rel::Le
        } else if c.eat("!=") {
            Rel::Ne
        } else {
            return Err(c.expected("\"==\", \"<=\" or \"!=\""));
        };
        let rhs = c.dim(&mut m.dims)?;
        c.expect(":")?;
        let why = c.string()?;
        let node = if c.eat("at") { c.string()? } else { String::new() };
        m.guards.push(Guard { lhs, rel, rhs, why, node });
    } else if c.eat("const") {
        let at = c.at;
        let id = c.prefixed("@c")?.ok_or_else(|| c.expected("a constant like @c0"))?;
        if usize::try_from(id).ok() != Some(m.consts.len()) {
            return Err(c.error(at, format!("constants are numbered in order: @c{} is next", m.consts.len())));
        }
        let konst = constant(c, base, files)?;
        m.consts.push(konst);
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn dim<D: Dialect>(c: &mut Cursor, m: &mut Module<D>) -> Result<()> {
    c.space();
    let at = c.at;
    let name = c.symbol()?;
    if name.is_empty() || m.dims.find_symbol(&name).is_some() {
        return Err(c.error(at, format!("dim {name:?} is declared twice or has no name")));
    }
    c.expect(":")?;
    let narrow = |c: &mut Cursor| -> Result<u32> {
        let at = c.at;
        let n = c.int()?;
        u32::try_from(n).map_err(|_| c.error(at, format!("{n} is not a position")))
    };
    let origin = if c.eat("input") {
        c.expect("(")?;
        let input = narrow(c)?;
        c.expect(",")?;
        let axis = narrow(c)?;
        c.expect(")")?;
        dims::Origin::Input { input, axis }
    } else if c.eat("shape_value") {
        dims::Origin::ShapeValue
    } else if c.eat("device_result") {
        dims::Origin::DeviceResult
    } else if c.eat("region") {
        dims::Origin::Region
    } else if c.eat("unknown") {
        dims::Origin::Unknown
    } else {
        return Err(c.expected("\"input\", \"shape_value\", \"device_result\", \"region\" or \"unknown\""));
    };
    let d = m.dims.symbol(&name, origin);
    let Some(s) = m.dims.as_symbol(d) else { return Ok(()) };
    if c.eat("in") {
        let at = c.at;
        let w = c.element()?;
        let bad = || c.error(at, "expected a range like 1..512");
        let (lo, hi) = w.split_once("..").ok_or_else(bad)?;
        m.dims.sym_mut(s).lo = lo.parse().map_err(|_| bad())?;
        if !hi.is_empty() {
            m.dims.sym_mut(s).hi = hi.parse().map_err(|_| bad())?;
        } else if c.rest().starts_with('-') {
            m.dims.sym_mut(s).hi = c.int()?;
        }
        if m.dims.sym(s).lo > m.dims.sym(s).hi {
            return Err(c.error(at, "the range is empty"));
        }
    }
    if c.eat("multiple") {
        let at = c.at;
        let k = c.int()?;
        if k < 1 {
            return Err(c.error(at, "a multiple of less than 1"));
        }
        m.dims.sym_mut(s).multiple_of = k;
    }
    Ok(())
}

fn constant(c: &mut Cursor, base: &Path, files: &mut FxHashMap<String, Arc<ExternalFile>>) -> Result<Const> {
    let name = c.string_opt()?.unwrap_or_default();
    c.expect(":")?;
    c.space();
    let at = c.at;
    let dtype = c.dtype()?;
    let extent = |c: &mut Cursor| {
        let at = c.at;
        let n = c.int()?;
        usize::try_from(n).map_err(|_| c.error(at, format!("{n} is not an extent")))
    };
    let shape = c.list("[", "]", extent)?;
    let n = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d.max(1)));
    if shape.len() > pb::MAX_RANK || n.is_none_or(|n| n > pb::MAX_ELEMS) {
        return Err(c.error(at, "a constant that is too large"));
    }
    c.expect("=")?;
    c.space();
    let at = c.at;
    let data = if c.peek("[") {
        if dtype == DType::String {
            let items = c.list("[", "]", Cursor::string)?;
            if items.len() != shape.iter().product::<usize>() {
                return Err(c.error(at, format!("str{shape:?} cannot hold {} strings", items.len())));
            }
            ConstData::Strings(items.into())
        } else {
            let items = c.list("[", "]", Cursor::element)?;
            let refs: Vec<&str> = items.iter().map(String::as_str).collect();
            let t = pb::parse_literal(dtype, &shape, &refs).map_err(|e| c.error(at, e.message()))?;
            ConstData::Bytes(t.bytes().clone())
        }
    } else if c.eat("splat") {
        let t = if c.eat("bits") {
            Tensor::new(dtype, &[], hex(c)?.into())
        } else {
            let item = c.element()?;
            pb::parse_literal(dtype, &[], &[&item])
        };
        ConstData::Splat(t.map_err(|e| c.error(at, e.message()))?.bytes().iter().copied().collect())
    } else if c.eat("bits") {
        let t = Tensor::new(dtype, &shape, hex(c)?.into()).map_err(|e| c.error(at, e.message()))?;
        ConstData::Bytes(t.bytes().clone())
    } else if c.eat("file") {
        c.expect("(")?;
        let path = c.string()?;
        let number = |c: &mut Cursor| {
            c.expect(",")?;
            c.number::<u64>("a byte count")
        };
        let (offset, len) = (number(c)?, number(c)?);
        c.expect(")")?;
        let file = files.entry(path.clone()).or_insert_with(|| Arc::new(ExternalFile::new(base.join(&path))));
        ConstData::File { file: file.clone(), offset, len }
    } else if c.eat("seeded") {
        if !Seeded::makes(dtype) {
            return Err(c.error(at, format!("a seeded constant is f32, f16 or bf16, not {dtype}")));
        }
        c.expect("(")?;
        let seed = c.number::<u64>("a seed")?;
        let number = |c: &mut Cursor| {
            c.expect(",")?;
            c.number::<f32>("a number")
        };
        let (middle, spread) = (number(c)?, number(c)?);
        c.expect(")")?;
        ConstData::Seeded(Seeded { seed, middle, spread })
    } else if c.eat("digest") {
        ConstData::Digest(c.string()?.into())
    } else {
        return Err(c.expected("\"[\", \"splat\", \"bits\", \"file\", \"seeded\" or \"digest\""));
    };
    Ok(Const { dtype, shape: shape.into(), data, name })
}

/// Bytes as pairs of hexadecimal digits in a string.
fn hex(c: &mut Cursor) -> Result<Vec<u8>> {
    c.space();
    let (at, text) = (c.at, c.string()?);
    let byte = |p: &[u8]| std::str::from_utf8(p).ok().and_then(|s| u8::from_str_radix(s, 16).ok());
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| c.error(at, "bits are pairs of hexadecimal digits"))
}

/// A constant of the module, if one is next.
pub(super) fn const_id(c: &mut Cursor, consts: &PrimaryMap<ConstId, Const>) -> Result<Option<ConstId>> {
    c.space();
    let at = c.at;
    let Some(n) = c.prefixed("@c")? else { return Ok(None) };
    let i = usize::try_from(n).unwrap_or(usize::MAX);
    if i >= consts.len() {
        return Err(c.error(at, format!("there is no constant @c{n}")));
    }
    Ok(Some(ConstId::new(i)))
}

/// An operator: `Softmax-13`, `com.microsoft:Gelu-1`.
pub(super) fn op_name<D: Dialect>(c: &mut Cursor, m: &Module<D>) -> Result<OpId> {
    c.space();
    let at = c.at;
    let mut name = c.word("an operator")?;
    let mut domain = "";
    if c.rest().starts_with(':') && c.rest()[1..].starts_with(|c: char| c.is_ascii_alphabetic()) {
        c.expect(":")?;
        domain = name;
        name = c.word("an operator")?;
    }
    let registry = m.registry.clone();
    let known = || -> Vec<String> {
        let prefix = if domain.is_empty() { String::new() } else { format!("{domain}:") };
        registry.versions(domain, name).iter().map(|(since, _)| format!("{prefix}{name}-{since}")).collect()
    };
    if !c.peek("-") {
        let rows = known();
        let like = if rows.is_empty() { "Relu-6".to_string() } else { rows.join(" or ") };
        return Err(c
            .expected("\"-\"")
            .help(format!("an operator is written NAME-VERSION: {like}; docs/OPS.md has them")));
    }
    c.expect("-")?;
    let version = c.number("a version")?;
    registry.find(domain, name, version).ok_or_else(|| {
        let e = c.error(at, format!("there is no operator {name} of domain {domain:?} at version {version}"));
        let rows = known();
        let rows =
            if rows.is_empty() { String::new() } else { format!(": of this name there are {}", rows.join(", ")) };
        Diagnostic::new(ErrorKind::Unsupported, e.message())
            .help(format!("docs/OPS.md has the operators and their versions{rows}"))
    })
}

/// The constant that a parameter is where nothing is given.
fn default<D: Dialect>(c: &mut Cursor, m: &Module<D>) -> Result<ConstId> {
    c.space();
    let at = c.at;
    let id = c.prefixed("@c")?.ok_or_else(|| c.expected("a constant like @c0"))?;
    match usize::try_from(id).ok().filter(|&i| i < m.consts.len()) {
        Some(i) => Ok(ConstId::new(i)),
        None => Err(c.error(at, format!("there is no constant @c{id}"))),
    }
}

pub(super) fn graph<D: TextDialect>(c: &mut Cursor, m: &mut Module<D>, depth: usize) -> Result<Graph<D>> {
    if depth > MAX_DEPTH {
        return Err(c.error(c.at, "regions nest too deep"));
    }
    let mut ids = Ids { defs: BTreeMap::new() };
    let mut g = Graph::default();
    let params = c.list("(", ")", |c| {
        c.space();
        let at = c.at;
        let id = c.prefixed("%v")?.ok_or_else(|| c.expected("a value like %v0"))?;
        let name = c.string_opt()?.unwrap_or_default();
        c.expect(":")?;
        let ty = D::parse_type(c, &mut m.dims)?;
        let default = if depth == 0 && c.eat("=") { Some(default(c, m)?) } else { None };
        Ok((id, at, name, ty, default))
    })?;
    for (i, (id, at, name, ty, default)) in params.into_iter().enumerate() {
        let i = u32::try_from(i).unwrap_or(u32::MAX);
        m.defaults.extend(default.map(|c| (i, c)));
        let def = Def::Input(i);
        ids.define(c, id, at, ValueData { ty, def, name: name.into() })?;
        g.inputs.push(Value::new(usize::try_from(id).unwrap_or(usize::MAX)));
    }
    c.expect("{")?;
    let mut raw: Vec<RawNode<D>> = Vec::new();
    let mut rest: Vec<(Vec<u32>, String, Vec<RegionId>)> = Vec::new();
    while !c.eat("return") {
        if c.peek("}") {
            return Err(c.expected("a node or \"return\""));
        }
        c.space();
        let start = c.at;
        let mut outs = Vec::new();
        while let Some(id) = c.prefixed("%v")? {
            outs.push(id);
            if !c.eat(",") {
                break;
            }
        }
        if !outs.is_empty() {
            c.expect("=")?;
        }
        let n = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let Some(node) = D::parse_node(c, m, &mut ids, &outs)? else { continue };
        let mut types = Vec::new();
        if !outs.is_empty() {
            c.expect(":")?;
            loop {
                types.push(D::parse_type(c, &mut m.dims)?);
                if !c.eat(",") {
                    break;
                }
            }
        }
        if types.len() != outs.len() {
            return Err(c.error(start, format!("{} results but {} types", outs.len(), types.len())));
        }
        let origin = c.origin()?;
        for (i, (id, ty)) in outs.iter().zip(types).enumerate() {
            let def = Def::Node(Node::new(usize::try_from(n).unwrap_or(0)), u32::try_from(i).unwrap_or(u32::MAX));
            ids.define(c, *id, start, ValueData { ty, def, name: "".into() })?;
        }
        let mut regions = Vec::new();
        while c.eat("region") {
            if !c.peek("(") {
                c.word("the name of a region")?;
            }
            let inner = graph(c, m, depth + 1)?;
            regions.push(m.graphs.push(inner));
        }
        raw.push(node);
        rest.push((outs, origin, regions));
    }
    let mut outputs = Vec::new();
    if !c.peek("}") {
        loop {
            c.space();
            let at = c.at;
            let o = match c.prefixed("%v")? {
                Some(v) => RawOperand::Value(v, at),
                None => RawOperand::Const(const_id(c, &m.consts)?.ok_or_else(|| c.expected("a value"))?),
            };
            outputs.push((o, c.string_opt()?.unwrap_or_default()));
            if !c.eat(",") {
                break;
            }
        }
    }
    c.expect("}")?;

    // Numbers of the text are numbers of the arena; gaps are values that nothing uses.
    let len = ids.defs.keys().next_back().map_or(0, |&k| k + 1);
    let left = c.budget.checked_sub(usize::try_from(len).unwrap_or(usize::MAX));
    c.budget = left.ok_or_else(|| c.error(c.at, "the text has too many values"))?;
    for i in 0..len {
        let gap = || ValueData { ty: D::gap(), def: Def::Input(u32::MAX), name: "".into() };
        g.values.push(ids.defs.remove(&i).unwrap_or_else(gap));
    }
    let mut consts: FxHashMap<ConstId, Value> = FxHashMap::default();
    let mut find = |g: &mut Graph<D>, m: &mut Module<D>, o: RawOperand| -> Result<Option<Value>> {
        match o {
            RawOperand::Absent => Ok(None),
            RawOperand::Const(id) => Ok(Some(match consts.get(&id) {
                Some(&v) => v,
                None => {
                    let ty = D::const_type(&m.consts[id], &mut m.dims);
                    let v = g.add_const(id, ty, m.consts[id].name.as_str());
                    consts.insert(id, v);
                    v
                }
            })),
            RawOperand::Value(n, at) => {
                let v = Value::new(usize::try_from(n).unwrap_or(0));
                let known = g.values.get(v).is_some_and(|d| n < len && d.def != Def::Input(u32::MAX));
                if known { Ok(Some(v)) } else { Err(c.error(at, format!("%v{n} is not defined in this graph"))) }
            }
        }
    };
    for (node, (outs, origin, regions)) in raw.into_iter().zip(rest) {
        let mut ins: SmallVec<[Option<Value>; 4]> = SmallVec::new();
        for o in node.ins {
            ins.push(find(&mut g, m, o)?);
        }
        let n = g.nodes.push(NodeData {
            op: node.op,
            attrs: node.attrs,
            ins,
            outs: outs.iter().map(|&id| Value::new(usize::try_from(id).unwrap_or(0))).collect(),
            regions: regions.into_iter().collect(),
            n_captures: node.n_captures,
            origin: Origin(origin.into()),
        });
        g.order.push(n);
    }
    for (o, name) in outputs {
        if let Some(v) = find(&mut g, m, o)? {
            if !name.is_empty() && g.values[v].name.is_empty() {
                g.values[v].name = name.into();
            }
            g.outputs.push(v);
        }
    }
    Ok(g)
}
