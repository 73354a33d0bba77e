//! Builds a module from a source of graphs.

use super::order::{self, MAX_DEPTH, label};
use super::problems::Problems;
use super::source::*;
use super::versions;
use crate::attrs::{Attr, Attrs, F32};
use crate::consts::{Const, ConstId};
use crate::graph::{Module, Onnx, Origin, RegionId, Value};
use crate::op::{Arity, AttrKind, OpDef, Param, Registry};
use crate::ops::random::STREAM;
use crate::ty::{Shape, TensorType, Type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;
use tensor::{Diagnostic, DimId, ErrorKind, Result, Tensor, dims, pb};

/// Greatest number of nodes, functions inlined.
const MAX_NODES: usize = 1 << 20;
/// How deep functions may call functions.
const MAX_CALLS: usize = 64;
/// Up to which version of an operator set rows without an end have been compared with ONNX's text. What ONNX changed later needs a row
/// that begins there: [`versions::CHANGED`] says what that is.
const ROWS_KNOW: &[(&str, i64)] = &[("", 26), ("ai.onnx.ml", 5)];
/// Operators of ai.onnx whose newest row has been compared with a later version's text, which changed nothing that the row does not have:
/// element types alone.
const HOLD_FROM: &[(&str, i64)] = &[
    ("Celu", 28),
    ("Compress", 28),
    ("Einsum", 28),
    ("OneHot", 28),
    ("ReduceLogSum", 28),
    ("ReduceLogSumExp", 28),
    ("Unique", 28),
];
/// Newest versions of the operator sets that [`versions`] does not have.
const OTHERS: &[(&str, i64)] = &[("com.microsoft", 1), ("ai.onnx.preview.training", 1), (crate::op::HIP_DOMAIN, 1)];

/// Builds a module of the nodes that something uses; notes say what was decided on the way.
///
/// # Errors
/// What is wrong with the model, or everything that is not supported in one error.
pub fn build<'a>(source: &dyn ModelSource<'a>, registry: &Arc<Registry>) -> Result<(Module<Onnx>, Vec<String>)> {
    let functions = source.functions()?;
    let mut by_name = FxHashMap::default();
    for (i, f) in functions.iter().enumerate() {
        if by_name.insert((f.domain, f.name, f.overload), i).is_some() {
            let e = format!("two functions are named {}:{}", f.domain, f.name);
            return Err(Diagnostic::new(ErrorKind::Malformed, e));
        }
    }
    let mut module = Module::new(registry.clone());
    module.meta = source.meta();
    let opsets = Rc::new(Opsets::new(&module.meta.opsets)?);
    let mut b = Builder {
        module,
        functions,
        by_name,
        const_values: FxHashMap::default(),
        initializers: FxHashMap::default(),
        symbols: FxHashMap::default(),
        problems: Problems::default(),
        notes: Vec::new(),
        calls: Vec::new(),
        n_nodes: 0,
        n_draws: 0,
    };
    b.main(&*source.graph(), &opsets, source.has_defaults())?;
    b.problems.finish()?;
    if b.module.dims.overflowed() {
        return Err(Diagnostic::new(ErrorKind::Limit, "extents of the model overflow 64 bits"));
    }
    crate::prune::prune(&mut b.module, &|_| false);
    Ok((b.module, b.notes))
}

/// The last change of an operator up to `version`, when that is newer than what the rows were written for.
fn changed_since(domain: &str, op: &str, version: i64) -> Option<i64> {
    let i = versions::CHANGED.binary_search_by(|(d, o, _)| (*d, *o).cmp(&(domain, op))).ok()?;
    let last = versions::CHANGED.get(i)?.2.iter().copied().filter(|&v| v <= version).max()?;
    let known = ROWS_KNOW.iter().find(|(d, _)| *d == domain).map_or(0, |&(_, v)| v);
    let also = HOLD_FROM.iter().find(|(o, _)| domain.is_empty() && *o == op).map_or(0, |&(_, v)| v);
    (last > known.max(also)).then_some(last)
}

/// Versions of the operator sets that a graph's nodes are in.
struct Opsets(FxHashMap<String, i64>);

impl Opsets {
    fn new(list: &[(String, i64)]) -> Result<Opsets> {
        let mut all = FxHashMap::default();
        for (domain, version) in list {
            if *all.entry(domain.clone()).or_insert(*version) != *version {
                let e = format!("operator set {:?} is imported with two versions", Problems::domain(domain));
                return Err(Diagnostic::new(ErrorKind::Malformed, e));
            }
        }
        Ok(Opsets(all))
    }
    fn get(&self, domain: &str) -> Option<i64> {
        // Files with operators of com.microsoft often do not import the set; it has had one version only.
        self.0.get(domain).copied().or((domain == "com.microsoft").then_some(1))
    }
}

/// What a name stands for.
#[derive(Clone, Copy)]
enum Binding {
    Value(Value),
    /// A constant without a value in this graph so far.
    Const(ConstId),
    /// An initializer nothing has read so far.
    Initializer(usize),
    /// A parameter of a function that the call leaves out.
    Absent,
}

/// Where nodes are being added.
struct Scope<'a> {
    region: RegionId,
    names: FxHashMap<&'a str, Binding>,
    /// Prefix of node paths; empty in the main graph.
    path: String,
    /// Values of the attributes of the function being inlined.
    env: Rc<FxHashMap<&'a str, SourceAttr<'a>>>,
    opsets: Rc<Opsets>,
    depth: usize,
}

impl Scope<'_> {
    fn node_path(&self, label: &str) -> String {
        match (self.path.is_empty(), label.starts_with('/')) {
            (true, _) => label.into(),
            (false, true) => format!("{}{label}", self.path),
            (false, false) => format!("{}/{label}", self.path),
        }
    }
    fn value_name(&self, name: &str) -> Arc<str> {
        if self.path.is_empty() || name.is_empty() { name.into() } else { self.node_path(name).into() }
    }
}

type Functions<'a> = FxHashMap<(&'a str, &'a str, &'a str), usize>;

struct Builder<'a> {
    module: Module<Onnx>,
    functions: Vec<FunctionSource<'a>>,
    by_name: Functions<'a>,
    /// The value of a constant in a graph.
    const_values: FxHashMap<(RegionId, ConstId), Value>,
    /// The constant of an initializer that something has read.
    initializers: FxHashMap<(RegionId, usize), ConstId>,
    /// Extents by the model's name for them.
    symbols: FxHashMap<&'a str, DimId>,
    problems: Problems,
    notes: Vec<String>,
    /// Functions being inlined, outermost first.
    calls: Vec<usize>,
    n_nodes: usize,
    /// Nodes that draw random numbers, so far.
    n_draws: i64,
}

impl<'a> Builder<'a> {
    fn main(&mut self, g: &dyn GraphSource<'a>, opsets: &Rc<Opsets>, has_defaults: bool) -> Result<()> {
        let region = self.module.main;
        let mut scope = Scope {
            region,
            names: FxHashMap::default(),
            path: String::new(),
            env: Rc::default(),
            opsets: opsets.clone(),
            depth: 0,
        };
        bind_initializers(g, &mut scope)?;
        let inputs = g.inputs()?;
        // Extents that have names get them before any symbol is named after an input.
        for v in &inputs {
            if let SourceType::Tensor(_, Some(dims)) = &v.ty {
                dims.iter().for_each(|d| {
                    if let SourceDim::Named(s) = d {
                        self.named(s, dims::Origin::Unknown);
                    }
                });
            }
        }
        for v in inputs {
            let input = u32::try_from(self.module.graph().inputs.len()).unwrap_or(u32::MAX);
            let initializer = match scope.names.get(v.name) {
                Some(Binding::Initializer(_)) if !has_defaults => {
                    self.notes.push(format!("input {:?} is an initializer and kept as a constant", v.name));
                    continue;
                }
                Some(Binding::Initializer(i)) => Some(*i),
                _ => None,
            };
            let ty = self.input_type(&v, input)?;
            if let Some(i) = initializer {
                let konst = self.initializer(g, &scope, i)?;
                self.check_default(v.name, &ty, konst)?;
                self.module.defaults.insert(input, konst);
                scope.names.remove(v.name);
            }
            let value = self.module.graph_mut().add_input(ty, v.name);
            if scope.names.insert(v.name, Binding::Value(value)).is_some() {
                return Err(Diagnostic::new(ErrorKind::Malformed, format!("two graph inputs are named {:?}", v.name)));
            }
        }
        let outputs = g.outputs()?;
        self.nodes(g, &mut scope)?;
        for v in &outputs {
            let value = self.read(g, &scope, v.name)?;
            let Some(value) = value else { return Err(undefined(v.name, "graph output", "")) };
            if self.module.graph().values[value].ty == Type::Unknown {
                let ty = self.output_type(&v.ty);
                self.module.graph_mut().values[value].ty = ty;
            }
            self.module.graph_mut().outputs.push(value);
        }
        Ok(())
    }

    /// Adds the nodes of `g` in execution order.
    fn nodes(&mut self, g: &dyn GraphSource<'a>, scope: &mut Scope<'a>) -> Result<()> {
        let at = |e: Diagnostic, scope: &Scope| match (e.node_path().is_some(), scope.path.is_empty()) {
            (false, false) => e.node(scope.path.clone()),
            _ => e,
        };
        for i in order::execution_order(g, scope.depth).map_err(|e| at(e, scope))? {
            self.n_nodes += 1;
            if self.n_nodes > MAX_NODES {
                let e = format!("the model has more than {MAX_NODES} nodes once functions are inlined");
                return Err(Diagnostic::new(ErrorKind::Limit, e));
            }
            let path = scope.node_path(&label(g, i));
            self.node(g, i, &path, scope).map_err(|e| e.node(path))?;
        }
        Ok(())
    }

    fn node(&mut self, g: &dyn GraphSource<'a>, i: usize, path: &str, scope: &mut Scope<'a>) -> Result<()> {
        let node = g.node(i);
        let attrs = self.resolve(g.attrs(i)?, scope, path)?;
        if let Some(&f) = self.by_name.get(&(node.domain, node.op, node.overload)) {
            let ins = self.operands(g, &node, path, scope)?;
            return self.inline(f, &node, &ins, attrs, path, scope);
        }
        if node.domain.is_empty() && node.op == "Constant" {
            let c = self.constant_node(&node, attrs)?;
            let id = self.module.consts.push(c);
            return bind(scope, node.outputs.first().map_or("", String::as_str), Binding::Const(id));
        }
        let ins = self.operands(g, &node, path, scope)?;
        let Some(op) = self.row(&node, path, scope) else { return self.dangling(&node, scope) };
        let registry = self.module.registry.clone();
        let def = &registry[op];
        self.arity(def, def.inputs, &ins.iter().map(Option::is_some).collect::<Vec<_>>(), "operand")?;
        self.arity(def, def.outputs, &node.outputs.iter().map(|o| !o.is_empty()).collect::<Vec<_>>(), "result")?;
        let (slots, bodies) = self.slots(def, attrs, path)?;
        let slots = match def.slot(STREAM).filter(|_| def.domain.is_empty()) {
            Some(stream) => {
                self.n_draws += 1;
                let mut all = slots.slots().to_vec();
                all[stream] = Attr::Int(self.n_draws);
                Attrs::new(all)
            }
            None => slots,
        };
        let attrs = self.module.attrs.intern(slots);

        let mut ins: SmallVec<[Option<Value>; 4]> = ins.into_iter().collect();
        let variadic = def.inputs.last().is_some_and(|p| p.arity == Arity::Variadic);
        while !variadic && matches!(ins.last(), Some(None)) {
            ins.pop();
        }
        let (regions, captured) = self.bodies(g, &bodies, path, scope)?;
        let n_captures = u32::try_from(captured.len()).unwrap_or(u32::MAX);
        ins.extend(captured.into_iter().map(Some));

        let mut outs = Vec::with_capacity(node.outputs.len());
        let last = node.outputs.iter().rposition(|o| !o.is_empty()).map_or(1, |i| i + 1);
        let repeats = def.outputs.last().is_some_and(|p| p.arity == Arity::Variadic);
        for o in &node.outputs[..if repeats { node.outputs.len() } else { last.min(node.outputs.len()) }] {
            outs.push((Type::Unknown, scope.value_name(o)));
        }
        let graph = &mut self.module.graphs[scope.region];
        let n = graph.add_node(op, attrs, ins, outs, regions, Origin(path.into()));
        graph.nodes[n].n_captures = n_captures;
        let values = graph.nodes[n].outs.clone();
        for (o, v) in node.outputs.iter().zip(values) {
            bind(scope, o, Binding::Value(v))?;
        }
        Ok(())
    }

    /// The row of a node's operator, or a remembered problem.
    fn row(&mut self, node: &SourceNode, path: &str, scope: &Scope) -> Option<crate::op::OpId> {
        let Some(version) = scope.opsets.get(node.domain) else {
            self.problems.missing_opset(node, path);
            return None;
        };
        let newest = versions::NEWEST.iter().chain(OTHERS).find(|(d, _)| *d == node.domain).map(|&(_, v)| v);
        if newest.is_some_and(|n| version > n) {
            self.problems.new_opset(node.domain, version, newest.unwrap_or(0), path);
            return None;
        }
        let found = self.module.registry.find(node.domain, node.op, version);
        let Some(row) = found else {
            self.problems.unknown_op(node, version, &self.module.registry, path);
            return None;
        };
        // A row without an end speaks for the versions that were known when it was written, and no further.
        let changed = changed_since(node.domain, node.op, version);
        if let Some(v) = changed.filter(|&v| v > self.module.registry[row].since) {
            self.problems.changed_op(node, version, v, path);
            return None;
        }
        found
    }

    /// Binds results of a node that has a problem, so that the rest of the graph is looked at too.
    fn dangling(&mut self, node: &SourceNode<'a>, scope: &mut Scope<'a>) -> Result<()> {
        for o in node.outputs {
            let graph = &mut self.module.graphs[scope.region];
            let v = graph.values.push(crate::graph::ValueData {
                ty: Type::Unknown,
                def: crate::graph::Def::Input(u32::MAX),
                name: o.as_str().into(),
            });
            bind(scope, o, Binding::Value(v))?;
        }
        Ok(())
    }

    /// Replaces references to attributes of the function by their values; what the call does not give is dropped.
    fn resolve(
        &mut self,
        attrs: Vec<(&'a str, SourceAttr<'a>)>,
        scope: &Scope<'a>,
        path: &str,
    ) -> Result<Vec<(&'a str, SourceAttr<'a>)>> {
        let mut out = Vec::with_capacity(attrs.len());
        for (name, value) in attrs {
            let value = match value {
                SourceAttr::Ref(r) => match scope.env.get(r) {
                    Some(SourceAttr::Graph(_)) => {
                        return Err(Diagnostic::new(
                            ErrorKind::Unsupported,
                            format!("attribute {name:?} refers to the graph {r:?} of the calling node"),
                        )
                        .node(path)
                        .help("inline the function in the model"));
                    }
                    Some(v) => v.clone(),
                    None if scope.path.is_empty() => {
                        let e = format!("attribute {name:?} refers to {r:?}, but the node is in no function");
                        return Err(Diagnostic::new(ErrorKind::Malformed, e).node(path));
                    }
                    None => continue,
                },
                v => v,
            };
            if out.iter().any(|(n, _)| *n == name) {
                return Err(
                    Diagnostic::new(ErrorKind::Malformed, format!("attribute {name:?} is given twice")).node(path)
                );
            }
            out.push((name, value));
        }
        Ok(out)
    }

    fn operands(
        &mut self,
        g: &dyn GraphSource<'a>,
        node: &SourceNode<'a>,
        path: &str,
        scope: &Scope<'a>,
    ) -> Result<Vec<Option<Value>>> {
        let mut ins = Vec::with_capacity(node.inputs.len());
        for name in node.inputs {
            let value = self.read(g, scope, name)?;
            if value.is_none() && !name.is_empty() && !scope.names.contains_key(name.as_str()) {
                return Err(undefined(name, "operand", path));
            }
            ins.push(value);
        }
        Ok(ins)
    }

    /// The value a name stands for in this graph; a constant gets one when first read.
    fn read(&mut self, g: &dyn GraphSource<'a>, scope: &Scope<'a>, name: &str) -> Result<Option<Value>> {
        let Some(&binding) = scope.names.get(name).filter(|_| !name.is_empty()) else { return Ok(None) };
        let id = match binding {
            Binding::Value(v) => return Ok(Some(v)),
            Binding::Absent => return Ok(None),
            Binding::Const(id) => id,
            Binding::Initializer(i) => self.initializer(g, scope, i)?,
        };
        Ok(Some(self.const_value(scope.region, id, scope.value_name(name))))
    }

    /// A default must be what the input declares.
    fn check_default(&self, name: &str, ty: &Type, konst: ConstId) -> Result<()> {
        let c = &self.module.consts[konst];
        let extent = |d: &DimId, n: usize| {
            self.module.dims.as_const(*d).is_none_or(|want| usize::try_from(want).is_ok_and(|want| want == n))
        };
        let fits = ty.dtype() == Some(c.dtype)
            && ty
                .shape()
                .is_none_or(|s| s.len() == c.shape.len() && s.iter().zip(&c.shape).all(|(d, &n)| extent(d, n)));
        if fits {
            return Ok(());
        }
        let text = format!("the default of graph input {name:?} is not what the input declares");
        let e = Diagnostic::new(ErrorKind::Malformed, text).note("declared", ty.display(&self.module.dims));
        let e = e.note("default", format!("{}{:?}", c.dtype, c.shape.as_slice()));
        Err(e.help("correct the initializer of that name, or the input"))
    }

    fn initializer(&mut self, g: &dyn GraphSource<'a>, scope: &Scope<'a>, i: usize) -> Result<ConstId> {
        let key = (scope.region, i);
        if let Some(&id) = self.initializers.get(&key) {
            return Ok(id);
        }
        let id = self.module.consts.push(g.initializer(i)?);
        self.initializers.insert(key, id);
        Ok(id)
    }

    fn const_value(&mut self, region: RegionId, id: ConstId, name: Arc<str>) -> Value {
        let Module { dims, consts, graphs, .. } = &mut self.module;
        *self.const_values.entry((region, id)).or_insert_with(|| {
            let c = &consts[id];
            let shape = c.shape.iter().map(|&d| dims.constant(i64::try_from(d).unwrap_or(i64::MAX)));
            let ty = Type::tensor(c.dtype, shape.collect::<Vec<_>>());
            graphs[region].add_const(id, ty, name)
        })
    }

    /// Builds the bodies of a node. Captured constants become constants of the bodies; other captures are returned.
    fn bodies(
        &mut self,
        g: &dyn GraphSource<'a>,
        bodies: &[(&'static str, GraphRef<'a>)],
        path: &str,
        scope: &Scope<'a>,
    ) -> Result<(Vec<RegionId>, Vec<Value>)> {
        if bodies.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        if scope.depth + 1 > MAX_DEPTH {
            return Err(order::too_deep());
        }
        let graphs: Vec<GraphRef<'a>> = bodies.iter().map(|(_, b)| b.clone()).collect();
        let (mut constants, mut captured, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        for name in order::captures(&graphs, scope.depth + 1)? {
            match scope.names.get(name) {
                None => return Err(undefined(name, "captured value", path)),
                Some(Binding::Value(v)) => captured.push((name, *v)),
                Some(Binding::Absent) => absent.push(name),
                Some(Binding::Const(id)) => constants.push((name, *id)),
                Some(Binding::Initializer(i)) => constants.push((name, self.initializer(g, scope, *i)?)),
            }
        }
        let mut regions = Vec::with_capacity(bodies.len());
        for (attr, body) in bodies {
            let region = self.module.graphs.push(crate::graph::Graph::default());
            let mut inner = Scope {
                region,
                names: FxHashMap::default(),
                path: format!("{path}/{attr}"),
                env: scope.env.clone(),
                opsets: scope.opsets.clone(),
                depth: scope.depth + 1,
            };
            let fail = |e: Diagnostic| e.node(path);
            bind_initializers(&**body, &mut inner).map_err(fail)?;
            for v in body.inputs()? {
                // What a body's parameter holds follows from the operands; a declared dtype is a hint.
                let ty = match &v.ty {
                    SourceType::Tensor(dtype, _) => Type::Tensor(TensorType { dtype: *dtype, shape: None }),
                    _ => Type::Unknown,
                };
                let value = self.module.graphs[region].add_input(ty, inner.value_name(v.name));
                inner.names.remove(v.name);
                bind(&mut inner, v.name, Binding::Value(value)).map_err(fail)?;
            }
            for (name, outer) in &captured {
                let ty = self.module.graphs[scope.region].values[*outer].ty.clone();
                let value = self.module.graphs[region].add_input(ty, inner.value_name(name));
                inner.names.entry(name).or_insert(Binding::Value(value));
            }
            for name in &absent {
                inner.names.entry(name).or_insert(Binding::Absent);
            }
            for (name, id) in &constants {
                inner.names.entry(name).or_insert(Binding::Const(*id));
            }
            self.nodes(&**body, &mut inner)?;
            for v in body.outputs()? {
                let value = self.read(&**body, &inner, v.name)?;
                let value = value.ok_or_else(|| undefined(v.name, "result of a body", path))?;
                self.module.graphs[region].outputs.push(value);
            }
            regions.push(region);
        }
        Ok((regions, captured.into_iter().map(|(_, v)| v).collect()))
    }

    /// Puts the nodes of a function in place of a call.
    fn inline(
        &mut self,
        f: usize,
        node: &SourceNode<'a>,
        ins: &[Option<Value>],
        attrs: Vec<(&'a str, SourceAttr<'a>)>,
        path: &str,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        let name = |b: &Self, f: usize| format!("{}:{}", b.functions[f].domain, b.functions[f].name);
        if self.calls.contains(&f) || self.calls.len() >= MAX_CALLS {
            let chain: Vec<String> = self.calls.iter().chain([&f]).map(|&c| name(self, c)).collect();
            let recursive = self.calls.contains(&f);
            let what = if recursive { "calls itself" } else { "is called too deep" };
            let kind = if recursive { ErrorKind::Malformed } else { ErrorKind::Limit };
            let chain = chain[chain.len().saturating_sub(8)..].join(" -> ");
            return Err(Diagnostic::new(kind, format!("function {} {what}", name(self, f))).note("calls", chain));
        }
        let func = &self.functions[f];
        if ins.len() > func.inputs.len() || node.outputs.len() > func.outputs.len() {
            return Err(Diagnostic::new(
                ErrorKind::Malformed,
                format!(
                    "function {} has {} parameters and {} results but the call has {} and {}",
                    name(self, f),
                    func.inputs.len(),
                    func.outputs.len(),
                    ins.len(),
                    node.outputs.len()
                ),
            ));
        }
        let mut env: FxHashMap<&'a str, SourceAttr<'a>> = FxHashMap::default();
        for (a, default) in &func.attrs {
            if let Some(d) = default {
                env.insert(a, d.clone());
            }
        }
        for (a, v) in attrs {
            if !func.attrs.iter().any(|(n, _)| *n == a) {
                self.problems.unknown_attr(&name(self, f), a, "the function does not declare it", path);
                continue;
            }
            env.insert(a, v);
        }
        let func = &self.functions[f];
        let opsets = if func.opsets.is_empty() { scope.opsets.clone() } else { Rc::new(Opsets::new(&func.opsets)?) };
        let mut inner = Scope {
            region: scope.region,
            names: FxHashMap::default(),
            path: path.into(),
            env: Rc::new(env),
            opsets,
            depth: scope.depth,
        };
        let (params, results, body) = (func.inputs.clone(), func.outputs.clone(), func.body.clone());
        for (i, p) in params.iter().enumerate() {
            let b = match ins.get(i).copied().flatten() {
                // A constant stays one, so that bodies inside the function can take it along.
                Some(v) => match self.module.graphs[scope.region].as_const(v) {
                    Some(id) => Binding::Const(id),
                    None => Binding::Value(v),
                },
                None => Binding::Absent,
            };
            bind(&mut inner, p, b)?;
        }
        self.calls.push(f);
        self.nodes(&*body, &mut inner)?;
        self.calls.pop();
        for (o, r) in node.outputs.iter().zip(&results).filter(|(o, _)| !o.is_empty()) {
            let binding = inner.names.get(r).copied().ok_or_else(|| undefined(r, "result of a function", path))?;
            if let Binding::Value(v) = binding {
                let value = &mut self.module.graphs[scope.region].values[v];
                if matches!(value.def, crate::graph::Def::Node(..)) && !ins.contains(&Some(v)) {
                    value.name = scope.value_name(o);
                }
            }
            bind(scope, o, binding)?;
        }
        Ok(())
    }

    /// The tensor that a `Constant` node gives.
    fn constant_node(&mut self, node: &SourceNode, attrs: Vec<(&'a str, SourceAttr<'a>)>) -> Result<Const> {
        let [(name, value)] = attrs.as_slice() else {
            let e = format!("a Constant needs exactly one attribute but has {}", attrs.len());
            return Err(Diagnostic::new(ErrorKind::Malformed, e));
        };
        let len = |n: usize| [n];
        let strings = |s: &[Arc<str>]| s.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let t = match (*name, value) {
            ("value" | "sparse_value", SourceAttr::Tensor(c)) => {
                let mut c = c.clone();
                if c.name.is_empty() {
                    c.name = node.outputs.first().cloned().unwrap_or_default();
                }
                return Ok(c);
            }
            ("value_int", SourceAttr::Int(v)) => Tensor::from_i64(&[], &[*v]),
            ("value_ints", SourceAttr::Ints(v)) => Tensor::from_i64(&len(v.len()), v),
            ("value_float", SourceAttr::Float(v)) => Tensor::from_f32(&[], &[*v]),
            ("value_floats", SourceAttr::Floats(v)) => Tensor::from_f32(&len(v.len()), v),
            ("value_string", SourceAttr::Str(v)) => Tensor::from_strings(&[], vec![v.to_string()]),
            ("value_strings", SourceAttr::Strs(v)) => Tensor::from_strings(&len(v.len()), strings(v)),
            (n, v) => {
                let e = format!("a Constant has no attribute {n:?} of type {}", v.kind());
                return Err(Diagnostic::new(ErrorKind::Malformed, e));
            }
        };
        Ok(Const::from_tensor(node.outputs.first().map_or("", String::as_str), &t))
    }

    fn arity(&self, def: &OpDef, params: &[Param], present: &[bool], what: &str) -> Result<()> {
        let variadic = params.last().is_some_and(|p| p.arity == Arity::Variadic);
        let fail =
            |e: String| Err(Diagnostic::new(ErrorKind::Malformed, format!("{}-{} {e}", def.full_name(), def.since)));
        if present.len() > params.len() && !variadic && present[params.len()..].contains(&true) {
            return fail(format!("has at most {} {what}s but {} are given", params.len(), present.len()));
        }
        for (i, p) in params.iter().enumerate() {
            if p.arity == Arity::Required && !present.get(i).copied().unwrap_or(false) {
                return fail(format!("needs {what} {i}, {:?}", p.name));
            }
        }
        Ok(())
    }

    /// Attributes in slot order with defaults filled in, and bodies in the row's order.
    #[allow(clippy::type_complexity)]
    fn slots(
        &mut self,
        def: &OpDef,
        attrs: Vec<(&'a str, SourceAttr<'a>)>,
        path: &str,
    ) -> Result<(Attrs, Vec<(&'static str, GraphRef<'a>)>)> {
        let mut slots = def.default_attrs();
        let mut given: FxHashMap<&str, GraphRef<'a>> = FxHashMap::default();
        let mut ints_given = vec![false; slots.len()];
        let op = format!("{}-{}", def.full_name(), def.since);
        for (name, value) in attrs {
            // What import numbers is not the model's to give.
            let numbered = |name: &str| name == STREAM && def.domain.is_empty();
            let Some(a) = def.attrs.iter().find(|a| a.name == name && !numbered(name)) else {
                self.problems.unknown_attr(&op, name, "the operator has none of this name", path);
                continue;
            };
            let kind = value.kind();
            let slot = match (a.kind, value) {
                (AttrKind::Graph, SourceAttr::Graph(g)) => {
                    given.insert(a.name, g);
                    continue;
                }
                (AttrKind::Int(_) | AttrKind::IntOpt | AttrKind::IntReq, SourceAttr::Int(v)) => Attr::Int(v),
                (AttrKind::Float(_) | AttrKind::FloatOpt, SourceAttr::Float(v)) => Attr::Float(F32::new(v)),
                (AttrKind::Str(_) | AttrKind::StrOpt, SourceAttr::Str(v)) => Attr::Str(v),
                (AttrKind::Ints, SourceAttr::Ints(v)) => Attr::Ints(v.into()),
                (AttrKind::Floats, SourceAttr::Floats(v)) => Attr::Floats(v.iter().map(|&x| F32::new(x)).collect()),
                (AttrKind::Strs, SourceAttr::Strs(v)) => Attr::Strs(v.into()),
                (AttrKind::Tensor, SourceAttr::Tensor(c)) => Attr::Tensor(self.module.consts.push(c)),
                (AttrKind::Type, SourceAttr::Type(t)) => Attr::Type(Box::new(self.element_type(&t))),
                (want, _) => {
                    let why = format!("it must be {} but is {kind}", kind_name(want));
                    self.problems.unknown_attr(&op, name, &why, path);
                    continue;
                }
            };
            if let Some(i) = def.slot(name) {
                slots[i] = slot;
                ints_given[i] = true;
            }
        }
        for a in def.attrs.iter().filter(|a| a.kind == AttrKind::IntReq) {
            if def.slot(a.name).is_some_and(|i| !ints_given[i]) {
                self.problems.unknown_attr(&op, a.name, "it must be given", path);
            }
        }
        let mut bodies = Vec::new();
        for a in def.attrs.iter().filter(|a| a.kind == AttrKind::Graph) {
            match given.remove(a.name) {
                Some(g) => bodies.push((a.name, g)),
                None => self.problems.unknown_attr(&op, a.name, "it must be given", path),
            }
        }
        Ok((Attrs::new(slots), bodies))
    }

    /// The type of a graph input: missing, zero and negative extents are symbols named after input and axis.
    fn input_type(&mut self, v: &SourceValue<'a>, input: u32) -> Result<Type> {
        let SourceType::Tensor(dtype, dims) = &v.ty else {
            if matches!(v.ty, SourceType::Unknown) {
                return Err(Diagnostic::new(
                    ErrorKind::Malformed,
                    format!("graph input {:?} declares no type", v.name),
                )
                .help("declare its element type, and its rank if known"));
            }
            return Ok(self.element_type(&v.ty));
        };
        let Some(dims) = dims else { return Ok(Type::Tensor(TensorType { dtype: *dtype, shape: None })) };
        check_extents(v.name, dims)?;
        let mut shape = Shape::new();
        for (axis, d) in dims.iter().enumerate() {
            let origin = dims::Origin::Input { input, axis: u32::try_from(axis).unwrap_or(u32::MAX) };
            shape.push(match d {
                SourceDim::Known(n) if *n > 0 => self.module.dims.constant(*n),
                SourceDim::Named(s) => {
                    let d = self.named(s, origin.clone());
                    if let Some(sym) = self.module.dims.as_symbol(d) {
                        let sym = self.module.dims.sym_mut(sym);
                        if sym.origin == dims::Origin::Unknown {
                            sym.origin = origin;
                        }
                    }
                    d
                }
                _ => self.module.dims.symbol(&format!("{}_{axis}", v.name), origin),
            });
        }
        Ok(Type::Tensor(TensorType { dtype: *dtype, shape: Some(shape) }))
    }

    /// The declared type of a graph output, a hint until inference has its own.
    fn output_type(&mut self, ty: &SourceType<'a>) -> Type {
        let SourceType::Tensor(dtype, dims) = ty else { return self.element_type(ty) };
        // Exporters write an empty shape where they know none.
        let says = |d: &SourceDim| !matches!(d, SourceDim::Unknown | SourceDim::Known(..=0));
        let known = dims.as_ref().filter(|d| !d.is_empty() && d.iter().all(says));
        let shape = known.map(|dims| {
            let dim = |d: &SourceDim<'a>| match d {
                SourceDim::Known(n) => self.module.dims.constant(*n),
                SourceDim::Named(s) => self.named(s, dims::Origin::Unknown),
                SourceDim::Unknown => self.module.dims.constant(0),
            };
            dims.iter().map(dim).collect()
        });
        Type::Tensor(TensorType { dtype: *dtype, shape })
    }

    /// A type in an attribute or inside a sequence: its extents may differ from element to element, so only numbers count.
    fn element_type(&mut self, ty: &SourceType<'a>) -> Type {
        match ty {
            SourceType::Tensor(dtype, dims) => {
                let known = |d: &SourceDim| match d {
                    SourceDim::Known(n) if *n > 0 => Some(*n),
                    _ => None,
                };
                let all: Option<Vec<i64>> = dims.as_ref().and_then(|d| d.iter().map(known).collect());
                let shape = all.map(|d| d.into_iter().map(|n| self.module.dims.constant(n)).collect());
                Type::Tensor(TensorType { dtype: *dtype, shape })
            }
            SourceType::Sequence(t) => Type::Sequence(Box::new(self.element_type(t))),
            SourceType::Optional(t) => Type::Optional(Box::new(self.element_type(t))),
            SourceType::Map(key, t) => Type::Map { key: *key, value: Box::new(self.element_type(t)) },
            SourceType::Unknown => Type::Unknown,
        }
    }

    fn named(&mut self, name: &'a str, origin: dims::Origin) -> DimId {
        let dims = &mut self.module.dims;
        *self.symbols.entry(name).or_insert_with(|| dims.symbol(name, origin))
    }
}

fn bind_initializers<'a>(g: &dyn GraphSource<'a>, scope: &mut Scope<'a>) -> Result<()> {
    for (i, name) in g.initializers().into_iter().enumerate() {
        bind(scope, name, Binding::Initializer(i))?;
    }
    Ok(())
}

fn bind<'a>(scope: &mut Scope<'a>, name: &'a str, binding: Binding) -> Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    match scope.names.insert(name, binding) {
        None => Ok(()),
        Some(_) => Err(Diagnostic::new(ErrorKind::Malformed, format!("the name {name:?} is defined twice"))
            .help("names of inputs, initializers and results must be unique within a graph")),
    }
}

fn undefined(name: &str, what: &str, path: &str) -> Diagnostic {
    let e = Diagnostic::new(ErrorKind::Malformed, format!("{what} {name:?} is defined nowhere"))
        .help("it must be an input, an initializer or a result of this graph or of one around it");
    if path.is_empty() { e } else { e.node(path) }
}

fn check_extents(name: &str, dims: &[SourceDim]) -> Result<()> {
    let mut known = dims.iter().map(|d| match d {
        SourceDim::Known(n) if *n > 0 => usize::try_from(*n).ok(),
        _ => Some(1),
    });
    let n = known.try_fold(1usize, |a, d| a.checked_mul(d?));
    if dims.len() > pb::MAX_RANK || n.is_none_or(|n| n > pb::MAX_ELEMS) {
        let shown = dims.iter().take(8).map(|d| match d {
            SourceDim::Known(n) => n.to_string(),
            SourceDim::Named(s) => s.to_string(),
            SourceDim::Unknown => "?".into(),
        });
        let shown: Vec<String> = shown.collect();
        let e = format!("graph input {name:?} has rank {} and extents [{}]: too large", dims.len(), shown.join(", "));
        return Err(Diagnostic::new(ErrorKind::Limit, e));
    }
    Ok(())
}

fn kind_name(k: AttrKind) -> &'static str {
    match k {
        AttrKind::Int(_) | AttrKind::IntOpt | AttrKind::IntReq => "int",
        AttrKind::Float(_) | AttrKind::FloatOpt => "float",
        AttrKind::Str(_) | AttrKind::StrOpt => "string",
        AttrKind::Ints => "ints",
        AttrKind::Floats => "floats",
        AttrKind::Strs => "strings",
        AttrKind::Tensor => "tensor",
        AttrKind::Type => "type",
        AttrKind::Graph => "graph",
    }
}
