//! What the HIP dialect adds to the text form: buffers, views, calls.

use super::cursor::Cursor;
use super::nest::{self, dims_list};
use super::onnx::{captures, parse_attrs, print_attrs};
use super::parse::{Ids, RawNode, RawOperand, const_id, op_name};
use super::{TextDialect, print};
use crate::attrs::Attrs;
use crate::consts::Const;
use crate::graph::{Def, Graph, Module, NodeData, Value, ValueData};
use crate::hip::{BranchDim, Call, Hip, HipOp, HipType, Layout, LoopDim, LoopOp, Space};
use crate::lowering::contiguous;
use crate::ty::Shape;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use tensor::{DType, DimId, DimPool, Result, SymId};

/// How many different kernel names texts may mention in one process; names of the catalog live forever.
const MAX_NAMES: usize = 4096;

impl TextDialect for Hip {
    const NAME: &'static str = "hip";

    fn gap() -> HipType {
        HipType {
            dtype: DType::U8,
            shape: Default::default(),
            strides: Default::default(),
            layout: Layout::Strided,
            space: Space::Device,
        }
    }
    fn print_type(ty: &HipType, dims: &mut DimPool) -> String {
        let mut o = format!("{}[{}]", ty.dtype, dims_list(&ty.shape, dims));
        if ty.strides != contiguous(dims, &ty.shape) {
            let _ = write!(o, " strides({})", dims_list(&ty.strides, dims));
        }
        if ty.layout == Layout::Packed {
            o.push_str(" packed");
        }
        match ty.space {
            Space::Device => {}
            Space::Host => o.push_str(" host"),
            Space::HostMapped => o.push_str(" mapped"),
        }
        o
    }
    fn print_operand(_: &Graph<Hip>, v: Value) -> String {
        format!("%{v}")
    }
    fn print_consts(_: &Module<Hip>, g: &Graph<Hip>, dims: &mut DimPool, indent: &str, out: &mut String) {
        let nodes = g.order.iter().flat_map(|&n| g.nodes[n].ins.iter().flatten().copied());
        let used: BTreeSet<Value> = nodes.chain(g.outputs.iter().copied()).collect();
        for v in used {
            if let Def::Const(c) = g.values[v].def {
                let _ = writeln!(out, "{indent}%{v} = const @{c} : {}", Self::print_type(&g.values[v].ty, dims));
            }
        }
    }
    fn print_node(m: &Module<Hip>, g: &Graph<Hip>, n: &NodeData<Hip>, dims: &mut DimPool, indent: &str) -> String {
        let all = print::operands(g, &n.ins, n.n_captures);
        let arrow = |n_reads: usize| {
            let at = n_reads.min(n.ins.len());
            let (reads, writes) = (print::operands(g, &n.ins[..at], 0), print::operands(g, &n.ins[at..], 0));
            if writes.is_empty() { reads } else { format!("{reads} ->{writes}") }
        };
        let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        match &n.op {
            HipOp::Alloc => "alloc".into(),
            HipOp::Output(i) => format!("output({i})"),
            HipOp::PassOutput(i) => format!("pass_output({i}){all}"),
            HipOp::View { offset } => format!("view{all} offset({})", dims.display(*offset)),
            HipOp::Launch(nest) => {
                let n_reads = nest.operands.iter().filter(|p| !p.written).count();
                format!("launch{} {}", arrow(n_reads), nest::print(nest, dims, indent))
            }
            HipOp::Call(call) => {
                let mut o = format!("call {}{}", call.kernel, arrow(count(call.n_reads)));
                if !call.ints.is_empty() {
                    let _ = write!(o, " ints [{}]", dims_list(&call.ints, dims));
                }
                if !call.scalars.is_empty() {
                    let scalars: Vec<String> = call.scalars.iter().map(|&s| nest::float(s)).collect();
                    let _ = write!(o, " scalars [{}]", scalars.join(", "));
                }
                o
            }
            HipOp::HostCall { op, n_reads } => {
                let def = &m.registry[*op];
                let attrs = print_attrs(m.attrs_of(n), def, dims);
                format!("host_call {}-{}{}{attrs}", def.full_name(), def.since, arrow(count(*n_reads)))
            }
            HipOp::Copy => format!("copy{}", arrow(1)),
            HipOp::Carry => format!("carry{}", arrow(1)),
            HipOp::Reuse => format!("reuse{}", arrow(1)),
            HipOp::StoreDims(ds) => format!("store_dims [{}]{}", dims_list(ds, dims), arrow(0)),
            HipOp::Readback { sym, index, max } => {
                format!("readback {}({index}) max({}){}", print::symbol(dims, *sym), dims.display(*max), arrow(1))
            }
            HipOp::If { dims: ds } => {
                let mut o = format!("if{all}");
                if !ds.is_empty() {
                    let one = |d: &BranchDim| {
                        let name = print::symbol(dims, d.sym);
                        format!("{name} = ({}, {})", dims.display(d.then), dims.display(d.els))
                    };
                    let _ = write!(o, " dims [{}]", ds.iter().map(one).collect::<Vec<_>>().join(", "));
                }
                o
            }
            HipOp::Loop(l) => {
                let mut o = format!("loop{all} iter {}", print::symbol(dims, l.iter));
                if let Some(t) = l.trips {
                    let _ = write!(o, " trips({})", dims.display(t));
                }
                if l.cond {
                    o.push_str(" cond");
                }
                let _ = write!(o, " carried {}", l.n_carried);
                if !l.counts.is_empty() {
                    let names: Vec<String> = l.counts.iter().map(|&s| print::symbol(dims, s)).collect();
                    let _ = write!(o, " counts [{}]", names.join(", "));
                }
                if !l.dims.is_empty() {
                    let one = |d: &LoopDim| {
                        let result = d.result.map_or(String::new(), |r| format!(" -> {}", print::symbol(dims, r)));
                        let name = print::symbol(dims, d.sym);
                        format!("{name} = ({}, {}){result}", dims.display(d.init), dims.display(d.next))
                    };
                    let _ = write!(o, " dims [{}]", l.dims.iter().map(one).collect::<Vec<_>>().join(", "));
                }
                o
            }
        }
    }
    fn region_name(_: &Module<Hip>, _: &NodeData<Hip>, _: usize) -> String {
        String::new()
    }
    fn const_type(c: &Const, dims: &mut DimPool) -> HipType {
        let shape: Shape = c.shape.iter().map(|&d| dims.constant(i64::try_from(d).unwrap_or(i64::MAX))).collect();
        let strides = contiguous(dims, &shape);
        HipType { dtype: c.dtype, shape, strides, layout: Layout::Strided, space: Space::Device }
    }
    fn parse_type(c: &mut Cursor, dims: &mut DimPool) -> Result<HipType> {
        let dtype = c.dtype()?;
        let shape: Shape = c.dims("[", "]", dims)?.into();
        let strides = if c.eat("strides") { c.dims("(", ")", dims)?.into() } else { contiguous(dims, &shape) };
        let layout = if c.eat("packed") { Layout::Packed } else { Layout::Strided };
        let space = if c.eat("host") {
            Space::Host
        } else if c.eat("mapped") {
            Space::HostMapped
        } else {
            Space::Device
        };
        Ok(HipType { dtype, shape, strides, layout, space })
    }
    fn parse_node(
        c: &mut Cursor,
        m: &mut Module<Hip>,
        ids: &mut Ids<Hip>,
        outs: &[u32],
    ) -> Result<Option<RawNode<Hip>>> {
        c.space();
        let at = c.at;
        let mut attrs = Attrs::default();
        let mut ins = Vec::new();
        let mut n_captures = 0;
        let op = match c.word("an operation")? {
            "const" => {
                let id = const_id(c, &m.consts)?.ok_or_else(|| c.expected("a constant"))?;
                c.expect(":")?;
                let ty = Self::parse_type(c, &mut m.dims)?;
                let &[v] = outs else { return Err(c.error(at, "a constant defines one value")) };
                let name = m.consts[id].name.as_str().into();
                ids.define(c, v, at, ValueData { ty, def: Def::Const(id), name })?;
                return Ok(None);
            }
            "alloc" => HipOp::Alloc,
            "output" => HipOp::Output(position(c)?),
            "pass_output" => {
                let i = position(c)?;
                operands(c, &mut ins)?;
                HipOp::PassOutput(i)
            }
            "view" => {
                operands(c, &mut ins)?;
                c.expect("offset")?;
                HipOp::View { offset: in_parens(c, m)? }
            }
            "launch" => {
                arrow(c, &mut ins)?;
                HipOp::Launch(Arc::new(nest::parse(c, &mut m.dims)?))
            }
            "call" => {
                c.space();
                let at = c.at;
                let name = c.word("a kernel")?;
                let kernel = intern(name).ok_or_else(|| c.error(at, "too many kernel names, or too long a one"))?;
                let n_reads = arrow(c, &mut ins)?;
                let ints = if c.eat("ints") { c.dims("[", "]", &mut m.dims)? } else { Vec::new() };
                let scalars = if c.eat("scalars") { c.list("[", "]", nest::parse_float)? } else { Vec::new() };
                HipOp::Call(Arc::new(Call { kernel, n_reads, ints, scalars }))
            }
            "host_call" => {
                let op = op_name(c, m)?;
                let n_reads = arrow(c, &mut ins)?;
                attrs = parse_attrs(c, m, op)?;
                HipOp::HostCall { op, n_reads }
            }
            "copy" => {
                arrow(c, &mut ins)?;
                HipOp::Copy
            }
            "carry" => {
                arrow(c, &mut ins)?;
                HipOp::Carry
            }
            "reuse" => {
                arrow(c, &mut ins)?;
                HipOp::Reuse
            }
            "store_dims" => {
                let ds = c.dims("[", "]", &mut m.dims)?;
                arrow(c, &mut ins)?;
                HipOp::StoreDims(ds.into())
            }
            "readback" => {
                let sym = known_symbol(c, m)?;
                let index = position(c)?;
                c.expect("max")?;
                let max = in_parens(c, m)?;
                arrow(c, &mut ins)?;
                HipOp::Readback { sym, index, max }
            }
            "if" => {
                operands(c, &mut ins)?;
                n_captures = captures(c, &mut ins, operand)?;
                let mut dims = Vec::new();
                if c.eat("dims") {
                    dims = c.list("[", "]", |c| {
                        let sym = known_symbol(c, m)?;
                        let (then, els) = pair(c, m)?;
                        Ok(BranchDim { sym, then, els })
                    })?;
                }
                HipOp::If { dims }
            }
            "loop" => {
                operands(c, &mut ins)?;
                n_captures = captures(c, &mut ins, operand)?;
                c.expect("iter")?;
                let iter = known_symbol(c, m)?;
                let trips = if c.eat("trips") { Some(in_parens(c, m)?) } else { None };
                let cond = c.eat("cond");
                c.expect("carried")?;
                let n_carried = c.number("a count")?;
                let mut l = LoopOp { trips, cond, n_carried, iter, counts: Vec::new(), dims: Vec::new() };
                if c.eat("counts") {
                    l.counts = c.list("[", "]", |c| known_symbol(c, m))?;
                }
                if c.eat("dims") {
                    l.dims = c.list("[", "]", |c| {
                        let sym = known_symbol(c, m)?;
                        let (init, next) = pair(c, m)?;
                        let result = if c.eat("->") { Some(known_symbol(c, m)?) } else { None };
                        Ok(LoopDim { sym, init, next, result })
                    })?;
                }
                HipOp::Loop(Box::new(l))
            }
            w => return Err(c.error(at, format!("{w:?} is not an operation of the hip dialect"))),
        };
        let attrs = m.attrs.intern(attrs);
        Ok(Some(RawNode { op, attrs, ins, n_captures }))
    }
}

fn operand(c: &mut Cursor) -> Result<Option<RawOperand>> {
    if c.eat("_") {
        return Ok(Some(RawOperand::Absent));
    }
    let before = c.at;
    c.space();
    let at = c.at;
    match c.prefixed("%v")? {
        Some(v) => Ok(Some(RawOperand::Value(v, at))),
        None => {
            c.at = before;
            Ok(None)
        }
    }
}

fn operands(c: &mut Cursor, ins: &mut Vec<RawOperand>) -> Result<()> {
    while let Some(o) = operand(c)? {
        ins.push(o);
        if !c.eat(",") {
            break;
        }
    }
    Ok(())
}

/// `reads -> writes`; how many are read.
fn arrow(c: &mut Cursor, ins: &mut Vec<RawOperand>) -> Result<u32> {
    operands(c, ins)?;
    let n = u32::try_from(ins.len()).unwrap_or(u32::MAX);
    if c.eat("->") {
        operands(c, ins)?;
    }
    Ok(n)
}

fn position(c: &mut Cursor) -> Result<u32> {
    c.expect("(")?;
    let i = c.number("a position")?;
    c.expect(")")?;
    Ok(i)
}

fn in_parens(c: &mut Cursor, m: &mut Module<Hip>) -> Result<DimId> {
    c.expect("(")?;
    let d = c.dim(&mut m.dims)?;
    c.expect(")")?;
    Ok(d)
}

fn pair(c: &mut Cursor, m: &mut Module<Hip>) -> Result<(DimId, DimId)> {
    c.expect("=")?;
    c.expect("(")?;
    let a = c.dim(&mut m.dims)?;
    c.expect(",")?;
    let b = c.dim(&mut m.dims)?;
    c.expect(")")?;
    Ok((a, b))
}

fn known_symbol(c: &mut Cursor, m: &Module<Hip>) -> Result<SymId> {
    c.space();
    let at = c.at;
    let name = c.symbol()?;
    m.dims.find_symbol(&name).ok_or_else(|| c.error(at, format!("there is no dim {name:?}")))
}

/// Names of kernels are static in the catalog; those of texts become so.
fn intern(name: &str) -> Option<&'static str> {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(n) = names.get(name) {
        return Some(n);
    }
    if names.len() >= MAX_NAMES || name.len() > 64 {
        return None;
    }
    let n: &'static str = Box::leak(name.to_string().into_boxed_str());
    names.insert(n);
    Some(n)
}
