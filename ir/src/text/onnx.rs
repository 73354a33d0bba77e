//! What the ONNX dialect adds to the text form: types, operators, attributes.

use super::cursor::Cursor;
use super::parse::{Ids, RawNode, RawOperand, op_name};
use super::{TextDialect, print};
use crate::attrs::{Attr, Attrs, F32};
use crate::consts::Const;
use crate::graph::{Def, Graph, Module, NodeData, Onnx, Value};
use crate::op::{AttrKind, OpDef, OpId};
use crate::ty::{TensorType, Type};
use std::fmt::Write;
use tensor::{DimPool, Result};

/// How deep types may nest.
const MAX_DEPTH: usize = 16;

impl TextDialect for Onnx {
    const NAME: &'static str = "onnx";

    fn gap() -> Type {
        Type::Unknown
    }
    fn print_type(ty: &Type, dims: &mut DimPool) -> String {
        ty.display(dims)
    }
    fn print_operand(g: &Graph<Onnx>, v: Value) -> String {
        match g.values[v].def {
            Def::Const(c) => format!("@{c}"),
            _ => format!("%{v}"),
        }
    }
    fn print_consts(_: &Module<Onnx>, _: &Graph<Onnx>, _: &mut DimPool, _: &str, _: &mut String) {}
    fn print_node(m: &Module<Onnx>, g: &Graph<Onnx>, n: &NodeData<Onnx>, _: &mut DimPool, _: &str) -> String {
        let def = &m.registry[n.op];
        let ins = print::operands(g, &n.ins, n.n_captures);
        format!("{}-{}{ins}{}", def.full_name(), def.since, print_attrs(m.attrs_of(n), def, &m.dims))
    }
    fn region_name(m: &Module<Onnx>, n: &NodeData<Onnx>, i: usize) -> String {
        let name = m.registry[n.op].attrs.iter().filter(|a| a.kind == AttrKind::Graph).nth(i).map_or("", |a| a.name);
        format!(" {name}")
    }
    fn const_type(c: &Const, dims: &mut DimPool) -> Type {
        let extents: Vec<_> = c.shape.iter().map(|&d| dims.constant(i64::try_from(d).unwrap_or(i64::MAX))).collect();
        Type::tensor(c.dtype, extents)
    }
    fn parse_type(c: &mut Cursor, dims: &mut DimPool) -> Result<Type> {
        parse_type(c, dims, 0)
    }
    fn parse_node(
        c: &mut Cursor,
        m: &mut Module<Onnx>,
        ids: &mut Ids<Onnx>,
        _: &[u32],
    ) -> Result<Option<RawNode<Onnx>>> {
        let op = op_name(c, m)?;
        let mut ins: Vec<RawOperand> = Vec::new();
        while let Some(o) = operand(c, m)? {
            ins.push(o);
            if !c.eat(",") {
                break;
            }
        }
        let n_captures = captures(c, &mut ins, |c| operand(c, m))?;
        let attrs = parse_attrs(c, m, op)?;
        let attrs = m.attrs.intern(attrs);
        let _ = ids;
        Ok(Some(RawNode { op, attrs, ins, n_captures }))
    }
}

/// `captures [a, b]` after the operands.
pub(super) fn captures(
    c: &mut Cursor,
    ins: &mut Vec<RawOperand>,
    mut operand: impl FnMut(&mut Cursor) -> Result<Option<RawOperand>>,
) -> Result<u32> {
    if !c.eat("captures") {
        return Ok(0);
    }
    let list = c.list("[", "]", |c| operand(c)?.ok_or_else(|| c.expected("an operand")))?;
    let n = u32::try_from(list.len()).unwrap_or(u32::MAX);
    ins.extend(list);
    Ok(n)
}

fn operand(c: &mut Cursor, m: &Module<Onnx>) -> Result<Option<RawOperand>> {
    if c.eat("_") {
        return Ok(Some(RawOperand::Absent));
    }
    c.space();
    let at = c.at;
    if let Some(v) = c.prefixed("%v")? {
        return Ok(Some(RawOperand::Value(v, at)));
    }
    match super::parse::const_id(c, &m.consts)? {
        Some(id) => Ok(Some(RawOperand::Const(id))),
        None => Ok(None),
    }
}

fn float(v: F32) -> String {
    let x = v.get();
    if x.is_nan() && F32::new(f32::NAN) != v { format!("bits({})", x.to_bits()) } else { format!("{x:?}") }
}

fn print_attr(a: &Attr, dims: &DimPool) -> String {
    let join = |it: &mut dyn Iterator<Item = String>| format!("[{}]", it.collect::<Vec<_>>().join(", "));
    match a {
        Attr::Absent => "_".into(),
        Attr::Int(v) => v.to_string(),
        Attr::Float(v) => float(*v),
        Attr::Str(s) => format!("{s:?}"),
        Attr::Ints(v) => join(&mut v.iter().map(|x| x.to_string())),
        Attr::Floats(v) => join(&mut v.iter().map(|&x| float(x))),
        Attr::Strs(v) => join(&mut v.iter().map(|x| format!("{x:?}"))),
        Attr::Tensor(c) => format!("@{c}"),
        Attr::Type(t) => t.display(dims),
    }
}

/// Attributes that are not at their default.
pub(super) fn print_attrs(attrs: &Attrs, def: &OpDef, dims: &DimPool) -> String {
    let defaults = def.default_attrs();
    let slots = def.attrs.iter().filter(|a| a.kind != AttrKind::Graph);
    let mut o = String::new();
    for ((a, default), value) in slots.zip(&defaults).zip(attrs.slots()) {
        if value != default {
            let _ = write!(o, "{}{} = {}", if o.is_empty() { " {" } else { ", " }, a.name, print_attr(value, dims));
        }
    }
    if o.is_empty() { o } else { o + "}" }
}

fn parse_float(c: &mut Cursor) -> Result<F32> {
    if c.eat("bits") {
        c.expect("(")?;
        let bits = c.number("a 32-bit pattern")?;
        c.expect(")")?;
        return Ok(F32::new(f32::from_bits(bits)));
    }
    Ok(F32::new(c.number("a float")?))
}

pub(super) fn parse_attrs<D: crate::graph::Dialect>(c: &mut Cursor, m: &mut Module<D>, op: OpId) -> Result<Attrs> {
    let registry = m.registry.clone();
    let def = &registry[op];
    let mut slots = def.default_attrs();
    if !c.peek("{") {
        return Ok(Attrs::new(slots));
    }
    c.list("{", "}", |c| {
        c.space();
        let at = c.at;
        let name = c.word("an attribute")?;
        let kind = def.attrs.iter().find(|a| a.name == name).map(|a| a.kind);
        let (Some(kind), Some(i)) = (kind, def.slot(name)) else {
            let known: Vec<&str> = def.attrs.iter().filter(|a| a.kind != AttrKind::Graph).map(|a| a.name).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let e = c.error(at, format!("{}-{} has no attribute {name:?}", def.full_name(), def.since));
            return Err(e.help(format!("its attributes are {known}")));
        };
        c.expect("=")?;
        slots[i] = if c.eat("_") {
            Attr::Absent
        } else {
            match kind {
                AttrKind::Int(_) | AttrKind::IntOpt | AttrKind::IntReq => Attr::Int(c.int()?),
                AttrKind::Float(_) | AttrKind::FloatOpt => Attr::Float(parse_float(c)?),
                AttrKind::Str(_) | AttrKind::StrOpt => Attr::Str(c.string()?.into()),
                AttrKind::Ints => Attr::Ints(c.list("[", "]", Cursor::int)?.into()),
                AttrKind::Floats => Attr::Floats(c.list("[", "]", parse_float)?.into()),
                AttrKind::Strs => Attr::Strs(c.list("[", "]", |c| Ok(c.string()?.into()))?.into()),
                AttrKind::Tensor => {
                    let id = super::parse::const_id(c, &m.consts)?;
                    Attr::Tensor(id.ok_or_else(|| c.expected("a constant"))?)
                }
                AttrKind::Type => Attr::Type(Box::new(parse_type(c, &mut m.dims, 0)?)),
                AttrKind::Graph => Attr::Absent,
            }
        };
        Ok(())
    })?;
    Ok(Attrs::new(slots))
}

fn parse_type(c: &mut Cursor, dims: &mut DimPool, depth: usize) -> Result<Type> {
    if depth > MAX_DEPTH {
        return Err(c.error(c.at, "types nest too deep"));
    }
    if c.eat("?") {
        return Ok(Type::Unknown);
    }
    for (word, make) in [("seq", Type::Sequence as fn(Box<Type>) -> Type), ("opt", Type::Optional)] {
        if c.eat(word) {
            c.expect("<")?;
            let t = parse_type(c, dims, depth + 1)?;
            c.expect(">")?;
            return Ok(make(Box::new(t)));
        }
    }
    if c.eat("map") {
        c.expect("<")?;
        let key = c.dtype()?;
        c.expect(",")?;
        let value = Box::new(parse_type(c, dims, depth + 1)?);
        c.expect(">")?;
        return Ok(Type::Map { key, value });
    }
    let dtype = c.dtype()?;
    let before = c.at;
    c.expect("[")?;
    if c.eat("*") {
        c.expect("]")?;
        return Ok(Type::Tensor(TensorType { dtype, shape: None }));
    }
    c.at = before;
    Ok(Type::tensor(dtype, c.dims("[", "]", dims)?))
}
