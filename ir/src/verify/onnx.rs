//! The verifier of the ONNX dialect.

use super::{broken, path, regions, ssa};
use crate::attrs::{Attr, Attrs};
use crate::consts::Const;
use crate::graph::{Def, Graph, Module, NodeData, Onnx, RegionId};
use crate::op::{Arity, AttrKind, OpDef, Param};
use crate::ty::Type;
use rustc_hash::FxHashMap;
use tensor::{DType, DimPool, Result};

/// Checks a module of the ONNX dialect.
///
/// # Errors
/// The first rule that does not hold, with the node.
pub fn verify_onnx(m: &Module<Onnx>) -> Result<()> {
    for r in regions(m)? {
        let g = &m.graphs[r];
        ssa(m, r, g)?;
        for (v, data) in g.values.iter() {
            extents(&data.ty, &m.dims).map_err(|e| e.note("value", format!("%{v} of {r}")))?;
            if let Def::Const(c) = data.def
                && let Some(c) = m.consts.get(c)
            {
                constant(c, &data.ty, &m.dims).map_err(|e| e.note("value", format!("%{v} of {r}")))?;
            }
        }
        for &n in &g.order {
            node(m, r, g, &g.nodes[n]).map_err(|e| e.node(path(r, n, &g.nodes[n])))?;
        }
    }
    for g in &m.guards {
        if !m.dims.contains(g.lhs) || !m.dims.contains(g.rhs) {
            return Err(broken("a guard is about extents of another module"));
        }
    }
    Ok(())
}

fn extents(ty: &Type, dims: &DimPool) -> Result<()> {
    match ty {
        Type::Tensor(t) => match t.shape.iter().flatten().find(|&&d| !dims.contains(d)) {
            Some(d) => Err(broken(format!("{d} is not an extent of the module"))),
            None => Ok(()),
        },
        Type::Sequence(t) | Type::Optional(t) | Type::Map { value: t, .. } => extents(t, dims),
        Type::Unknown => Ok(()),
    }
}

fn constant(c: &Const, ty: &Type, dims: &DimPool) -> Result<()> {
    let Some(t) = ty.as_tensor() else { return Ok(()) };
    let fits = t.dtype == c.dtype
        && t.shape.as_ref().is_none_or(|s| {
            let same =
                |(&d, &e): (&tensor::DimId, &usize)| dims.as_const(d).is_none_or(|d| usize::try_from(d) == Ok(e));
            s.len() == c.shape.len() && s.iter().zip(&c.shape).all(same)
        });
    if fits {
        return Ok(());
    }
    Err(broken(format!("the constant is {}{:?} but its value is {}", c.dtype, c.shape.as_slice(), ty.display(dims))))
}

fn node(m: &Module<Onnx>, r: RegionId, g: &Graph<Onnx>, n: &NodeData<Onnx>) -> Result<()> {
    if tensor::Entity::index(n.op) >= m.registry.rows().len() {
        return Err(broken(format!("{} is not a row of the registry", n.op)));
    }
    let def = &m.registry[n.op];
    let own = &n.ins[..n.ins.len() - usize::try_from(n.n_captures).unwrap_or(0)];
    let name = format!("{}-{}", def.full_name(), def.since);
    let count = |params: &[Param], present: &dyn Fn(usize) -> bool, len: usize, what: &str| {
        let variadic = params.last().is_some_and(|p| p.arity == Arity::Variadic);
        if len > params.len() && !variadic {
            return Err(broken(format!("{name} has at most {} {what}s but {len} are given", params.len())));
        }
        match params.iter().enumerate().find(|(i, p)| p.arity == Arity::Required && !present(*i)) {
            Some((i, p)) => Err(broken(format!("{name} needs {what} {i}, {:?}", p.name))),
            None => Ok(()),
        }
    };
    count(def.inputs, &|i| own.get(i).is_some_and(Option::is_some), own.len(), "operand")?;
    count(def.outputs, &|i| i < n.outs.len(), n.outs.len(), "result")?;
    attributes(def, m.attrs_of(n), m).map_err(|e| e.note("operator", name.clone()))?;
    let n_graphs = def.attrs.iter().filter(|a| a.kind == AttrKind::Graph).count();
    if n.regions.len() != n_graphs {
        return Err(broken(format!("{name} has {n_graphs} bodies but {} are given", n.regions.len())));
    }
    let ins = own.iter().enumerate().filter_map(|(i, v)| Some((i, &g.values[(*v)?].ty)));
    let outs = n.outs.iter().enumerate().map(|(i, v)| (i, &g.values[*v].ty));
    let mut bound: FxHashMap<&str, (DType, String)> = FxHashMap::default();
    dtypes(def, def.inputs, ins, "operand", &mut bound)?;
    dtypes(def, def.outputs, outs, "result", &mut bound)?;
    for &body in &n.regions {
        let params = &m.graphs[body].inputs;
        let captured = &n.ins[own.len()..];
        for (v, &p) in captured.iter().zip(&params[params.len() - captured.len()..]) {
            let Some(v) = v else { continue };
            let (outer, inner) = (&g.values[*v].ty, &m.graphs[body].values[p].ty);
            if let (Some(a), Some(b)) = (outer.dtype(), inner.dtype())
                && a != b
            {
                let e = format!("%{v} of {r} is {a}, but the parameter %{p} of {body} that it is captured as is {b}");
                return Err(broken(e));
            }
        }
    }
    Ok(())
}

/// Type variables: allowed element types, and one type for all parameters that share a variable.
fn dtypes<'t>(
    def: &OpDef,
    params: &[Param],
    types: impl Iterator<Item = (usize, &'t Type)>,
    what: &str,
    bound: &mut FxHashMap<&'static str, (DType, String)>,
) -> Result<()> {
    for (i, ty) in types {
        let (Some(p), Some(dtype)) = (params.get(i).or(params.last()), ty.dtype()) else { continue };
        let Some((var, allowed)) = def.dtypes.iter().find(|(v, _)| *v == p.ty) else { continue };
        let name = format!("{}-{}", def.full_name(), def.since);
        if !allowed.contains(&dtype) {
            let all: Vec<&str> = allowed.iter().map(|d| d.name()).collect();
            return Err(broken(format!("{name}: {what} {i} is {dtype}, which is not one of {}", all.join(", "))));
        }
        let (first, place) = bound.entry(var).or_insert_with(|| (dtype, format!("{what} {i}")));
        if *first != dtype {
            return Err(broken(format!("{name}: {place} is {first} but {what} {i} is {dtype}; they must be equal")));
        }
    }
    Ok(())
}

fn attributes(def: &OpDef, attrs: &Attrs, m: &Module<Onnx>) -> Result<()> {
    let slots: Vec<_> = def.attrs.iter().filter(|a| a.kind != AttrKind::Graph).collect();
    if slots.len() != attrs.slots().len() {
        return Err(broken(format!("{} attribute slots, but the row has {}", attrs.slots().len(), slots.len())));
    }
    for (a, value) in slots.iter().zip(attrs.slots()) {
        let fits = match (a.kind, value) {
            (AttrKind::IntReq, Attr::Absent) => false,
            (AttrKind::Int(_) | AttrKind::Float(_) | AttrKind::Str(_), Attr::Absent) => false,
            (_, Attr::Absent) => true,
            (AttrKind::Int(_) | AttrKind::IntOpt | AttrKind::IntReq, Attr::Int(_)) => true,
            (AttrKind::Float(_) | AttrKind::FloatOpt, Attr::Float(_)) => true,
            (AttrKind::Str(_) | AttrKind::StrOpt, Attr::Str(_)) => true,
            (AttrKind::Ints, Attr::Ints(_)) | (AttrKind::Floats, Attr::Floats(_)) => true,
            (AttrKind::Strs, Attr::Strs(_)) | (AttrKind::Type, Attr::Type(_)) => true,
            (AttrKind::Tensor, Attr::Tensor(c)) => m.consts.get(*c).is_some(),
            _ => false,
        };
        if !fits {
            return Err(broken(format!("attribute {:?} must be {:?} but is {value:?}", a.name, a.kind)));
        }
    }
    Ok(())
}
