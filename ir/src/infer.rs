//! Shape inference: types of every value, small integer tensors as lists of dims, facts assumed as guards.
//!
//! Nodes are visited in order, bodies where their node stands. A rule that cannot derive an extent asks for a symbol; the node
//! remembers it, so that a later visit gets the same one. Bodies of loops are visited until their parameters no longer change:
//! an extent that differs between the initial value and the body's result becomes a symbol of the region, once and for all,
//! so the number of visits is bounded by the number of carried extents.
//!
//! A shape value (`Info::values`) is an i64 or i32 tensor of rank at most 1 with at most 64 elements whose elements are known
//! as dims. Where an extent depends on elements that nothing derives, each element becomes a symbol of origin
//! [`Origin::ShapeValue`] that the compiled program reads at run time.

mod conditions;
mod fold;
mod regions;
mod scan;
#[cfg(test)]
mod tests;

use crate::consts::ConstId;
use crate::graph::{Def, Guard, Module, Node, Onnx, RegionId, Rel, Value};
use crate::op::{InferCtx, InferIn};
use crate::ty::{PartialShape, Shape, Type};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use tensor::dims::{Origin, Proof};
use tensor::{DType, Diagnostic, DimId, ErrorKind, Result, SymId};

/// Most elements of a tensor that is followed as a shape value.
pub const MAX_SHAPE_VALUES: usize = 64;
/// Most passes over the main graph. More than one is needed only when a value's elements became symbols after a use.
const MAX_PASSES: usize = 4;
/// How far the search for elements goes back through ops that move or combine them.
const MAX_DEMAND_DEPTH: usize = 32;
/// Ops whose result elements follow from operand elements.
const TRANSPARENT: &[&str] = &[
    "Add",
    "Cast",
    "Concat",
    "Div",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Max",
    "Min",
    "Mul",
    "Neg",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Sub",
    "Unsqueeze",
];

/// What inference knows beyond the types it wrote into the module.
#[derive(Clone, Debug, Default)]
pub struct Info {
    values: FxHashMap<(RegionId, Value), Shape>,
    /// What stays unknown: one sentence each, with the node's path. Empty when every used value has a type with derived extents.
    pub unknown: Vec<String>,
}

impl Info {
    /// Elements of a small integer tensor as dims, row-major, when they are known.
    pub fn values(&self, region: RegionId, value: Value) -> Option<&Shape> {
        self.values.get(&(region, value))
    }
}

/// Infers types and shape values of the whole module and collects guards. Twice changes nothing.
///
/// # Errors
/// What a row's rule refuses, with the node; `Type` and `Shape` when a declared output contradicts what is inferred (but in its rank); `Shape`
/// for an extent that is negative for every input; `Limit` when extents overflow.
pub fn infer(m: &mut Module<Onnx>) -> Result<Info> {
    let declared: Vec<(Value, Type)> = m.graph().outputs.iter().map(|&v| (v, m.graph().values[v].ty.clone())).collect();
    let (main, n_consts) = (m.main, m.consts.len());
    let mut st = State {
        m,
        values: FxHashMap::default(),
        partial: FxHashMap::default(),
        konst: FxHashMap::default(),
        symbols: FxHashMap::default(),
        joins: FxHashMap::default(),
        guards: FxHashMap::default(),
        owner: FxHashMap::default(),
        parent: FxHashMap::default(),
        named: FxHashMap::default(),
        before: FxHashMap::default(),
        loops: FxHashSet::default(),
        unsteady: FxHashSet::default(),
        taken: BTreeMap::new(),
        conditions: FxHashMap::default(),
        again: false,
    };
    for _ in 0..MAX_PASSES {
        st.again = false;
        st.region(main)?;
        if !st.again {
            break;
        }
    }
    st.check_declared(&declared)?;
    // Folded on the way, for rules alone.
    st.m.consts.truncate(n_consts);
    st.settle_conditions();
    let unknown = st.report_unknown();
    let guards = st.collect_guards(main);
    let mut values = st.values;
    values.retain(|&(r, v), _| matches!(m.graphs[r].values[v].ty.dtype(), Some(d) if d.is_int()));
    add_guards(&mut m.guards, guards);
    Ok(Info { values, unknown })
}

fn add_guards(all: &mut Vec<Guard>, more: Vec<Guard>) {
    let key = |g: &Guard| match g.rel {
        Rel::Eq | Rel::Ne => (g.rel, g.lhs.min(g.rhs), g.lhs.max(g.rhs)),
        Rel::Le => (g.rel, g.lhs, g.rhs),
    };
    let mut seen: FxHashSet<_> = all.iter().map(key).collect();
    all.extend(more.into_iter().filter(|g| seen.insert(key(g))));
}

/// Whether elements of such a tensor are followed; the number of elements where it is. Bools are followed inside inference
/// only, for conditions on elements, and floats for extents that were cast.
pub(crate) fn shape_value_len(ty: &Type, as_const: impl Fn(DimId) -> Option<i64>) -> Option<usize> {
    let t = ty.as_tensor()?;
    let n = match t.shape.as_deref()? {
        [] => 1,
        [n] => usize::try_from(as_const(*n)?).ok()?,
        _ => return None,
    };
    (matches!(t.dtype, DType::I64 | DType::I32 | DType::Bool | DType::F32 | DType::F64) && n <= MAX_SHAPE_VALUES)
        .then_some(n)
}

/// What a rule said of a node.
struct Visit {
    types: Vec<Type>,
    values: Vec<Option<Shape>>,
    partial: Vec<PartialShape>,
    guards: Vec<Guard>,
    demands: SmallVec<[usize; 2]>,
}

struct State<'m> {
    m: &'m mut Module<Onnx>,
    values: FxHashMap<(RegionId, Value), Shape>,
    /// Elements of values of which only some are known.
    partial: FxHashMap<(RegionId, Value), PartialShape>,
    /// Constants that parameters of bodies stand for.
    konst: FxHashMap<(RegionId, Value), ConstId>,
    /// Symbols each node has made.
    symbols: FxHashMap<(RegionId, Node), Vec<DimId>>,
    /// Symbols for extents in which joined types differ, by value and axis.
    joins: FxHashMap<(RegionId, Value, usize), DimId>,
    guards: FxHashMap<(RegionId, Node), Vec<Guard>>,
    /// The region in which a symbol made here gets its value; symbols of the main graph are absent.
    owner: FxHashMap<SymId, RegionId>,
    parent: FxHashMap<RegionId, RegionId>,
    /// Symbols of elements in use, and the value whose elements they are, so that none stands for two.
    named: FxHashMap<DimId, (RegionId, Value)>,
    /// Shapes that parameters of loops had before this inference.
    before: FxHashMap<(RegionId, Value), Shape>,
    /// Loop bodies visited before.
    loops: FxHashSet<RegionId>,
    /// Parameters of loops whose elements change between iterations.
    unsteady: FxHashSet<(RegionId, Value)>,
    /// The branch that is always taken, by node.
    taken: BTreeMap<(RegionId, Node), bool>,
    /// Conditions of branches as dims of 0 or 1, where what a branch demands needs them.
    conditions: FxHashMap<(RegionId, Node), DimId>,
    /// Whether elements of a value became known after a use of it.
    again: bool,
}

impl State<'_> {
    fn region(&mut self, r: RegionId) -> Result<()> {
        let order = self.m.graphs[r].order.clone();
        for n in order {
            if self.m.graphs[r].nodes[n].regions.is_empty() { self.node(r, n) } else { self.control(r, n) }
                .map_err(|e| e.node(self.path(r, n)))?;
        }
        Ok(())
    }

    fn path(&self, r: RegionId, n: Node) -> String {
        self.m.graphs[r].nodes[n].origin.to_string()
    }

    fn ty(&self, r: RegionId, v: Value) -> &Type {
        &self.m.graphs[r].values[v].ty
    }

    /// The constant behind a value, also through captures.
    fn konst_of(&self, r: RegionId, v: Value) -> Option<ConstId> {
        self.m.graphs[r].as_const(v).or_else(|| self.konst.get(&(r, v)).copied())
    }

    /// Puts the elements of a small integer constant into the table.
    fn load_const(&mut self, r: RegionId, v: Value) {
        let Some(c) = self.konst_of(r, v) else { return };
        let konst = &self.m.consts[c];
        let small = konst.shape.len() <= 1 && konst.n_elems() <= MAX_SHAPE_VALUES;
        if !small || !matches!(konst.dtype, DType::I64 | DType::I32) || self.values.contains_key(&(r, v)) {
            return;
        }
        if let Ok(t) = konst.read() {
            let dims: Shape = t.to_i64_vec().into_iter().map(|x| self.m.dims.constant(x)).collect();
            self.values.insert((r, v), dims);
        }
    }

    /// Visits a node without bodies until it demands nothing new.
    fn node(&mut self, r: RegionId, n: Node) -> Result<()> {
        let ins = self.m.graphs[r].nodes[n].ins.clone();
        ins.iter().flatten().for_each(|&v| self.load_const(r, v));
        let first = !self.symbols.contains_key(&(r, n));
        let mut symbols = self.symbols.remove(&(r, n)).unwrap_or_default();
        let n_known = symbols.len();
        let mut steady = !first;
        let (types, values, partial, guards) = loop {
            let Visit { types, values, partial, guards, demands } = self.visit(r, n, &mut symbols)?;
            let mut more = false;
            for v in demands.into_iter().filter_map(|i| ins[i]) {
                more |= self.demand(r, n, v, 0)?;
            }
            if more {
                continue;
            }
            if !steady && !symbols.is_empty() {
                steady = true;
                if self.reuse_symbols(r, n, &types, &mut symbols) {
                    continue;
                }
            }
            break (types, values, partial, guards);
        };
        for &d in &symbols[n_known.min(symbols.len())..] {
            self.own(r, d);
        }
        self.symbols.insert((r, n), symbols);
        self.guards.insert((r, n), guards);
        let outs = self.m.graphs[r].nodes[n].outs.clone();
        for (((v, ty), vals), partial) in outs.into_iter().zip(types).zip(values).zip(partial) {
            self.check_extents(&ty)?;
            // A rule that says nothing about a result leaves what is known.
            let keep_old = matches!(ty, Type::Unknown);
            if !keep_old {
                self.m.graphs[r].values[v].ty = ty;
            }
            match vals {
                Some(x) if shape_value_len(self.ty(r, v), |d| self.m.dims.as_const(d)) == Some(x.len()) => {
                    self.values.insert((r, v), x);
                }
                _ => self.keep_named(r, v, &partial),
            }
            self.partial.insert((r, v), partial);
        }
        self.fold(r, n);
        match self.m.dims.overflowed() {
            true => Err(Diagnostic::new(ErrorKind::Limit, "extents overflow 64 bits")),
            false => Ok(()),
        }
    }

    /// Of a value whose elements the rule does not know all: those that a use demanded stay symbols.
    fn keep_named(&mut self, r: RegionId, v: Value, partial: &PartialShape) {
        let Some(old) = self.values.remove(&(r, v)) else { return };
        // Where an earlier visit saw other extents or other operands, in a loop, what it found counts no more.
        if shape_value_len(self.ty(r, v), |d| self.m.dims.as_const(d)) != Some(old.len()) {
            return;
        }
        let own = |d: DimId| self.named.get(&d) == Some(&(r, v));
        let element = |(k, &d)| partial.get(k).copied().flatten().or_else(|| own(d).then_some(d));
        if let Some(kept) = old.iter().enumerate().map(element).collect::<Option<Shape>>() {
            self.values.insert((r, v), kept);
        }
    }

    /// Runs the rule once.
    fn visit(&mut self, r: RegionId, n: Node, symbols: &mut Vec<DimId>) -> Result<Visit> {
        let registry = self.m.registry.clone();
        let m = &mut *self.m;
        let g = &m.graphs[r];
        let node = &g.nodes[n];
        let (values, konst) = (&self.values, &self.konst);
        let ins: SmallVec<[Option<InferIn>; 4]> = node
            .ins
            .iter()
            .map(|v| {
                v.map(|v| InferIn {
                    ty: &g.values[v].ty,
                    values: values.get(&(r, v)),
                    konst: g.as_const(v).or_else(|| konst.get(&(r, v)).copied()),
                })
            })
            .collect();
        let def = &registry[node.op];
        let n_outs = node.outs.len();
        let mut ctx = InferCtx {
            def,
            attrs: &m.attrs[node.attrs],
            dims: &mut m.dims,
            consts: &m.consts,
            ins: &ins,
            n_outs,
            outs: vec![Type::Unknown; n_outs],
            out_values: vec![None; n_outs],
            out_partial: vec![PartialShape::new(); n_outs],
            guards: Vec::new(),
            path: &node.origin.0,
            symbols,
            n_symbols: 0,
            demands: SmallVec::new(),
        };
        (def.infer)(&mut ctx)?;
        Ok(Visit {
            types: ctx.outs,
            values: ctx.out_values,
            partial: ctx.out_partial,
            guards: ctx.guards,
            demands: ctx.demands,
        })
    }

    /// Finds or makes dims for the elements of `v` where possible; says whether it did. Where an op only moves or combines
    /// elements, those of its operands become symbols, so that what is known of the rest stays known.
    fn demand(&mut self, r: RegionId, n: Node, v: Value, depth: usize) -> Result<bool> {
        let len = shape_value_len(self.ty(r, v), |d| self.m.dims.as_const(d));
        let readable = self.ty(r, v).dtype().is_some_and(|d| d.is_int()) && !self.values.contains_key(&(r, v));
        let Some(len) = len.filter(|_| readable) else { return Ok(false) };
        if let Def::Node(def, _) = self.m.graphs[r].values[v].def
            && depth < MAX_DEMAND_DEPTH
            && TRANSPARENT.contains(&self.m.registry[self.m.graphs[r].nodes[def].op].name)
        {
            for x in self.m.graphs[r].nodes[def].ins.clone().into_iter().flatten() {
                self.load_const(r, x);
                self.demand(r, def, x, depth + 1)?;
            }
            // Another use may have demanded the operands after the last visit.
            self.node(r, def)?;
            if self.values.contains_key(&(r, v)) {
                return Ok(true);
            }
        }
        let name = self.m.graphs[r].values[v].name.to_string();
        let name = if name.is_empty() { v.to_string() } else { name };
        let partial = self.partial.get(&(r, v)).cloned().unwrap_or_default();
        let (lo, hi) = match self.ty(r, v).dtype() {
            Some(DType::I32) => (i32::MIN.into(), i32::MAX.into()),
            _ => (i64::MIN, i64::MAX),
        };
        let dims: Shape = (0..len)
            .map(|i| {
                if let Some(d) = partial.get(i).copied().flatten() {
                    return d;
                }
                let hint = if self.ty(r, v).shape().is_some_and(|s| s.is_empty()) {
                    format!("{name}_value")
                } else {
                    format!("{name}_value{i}")
                };
                let known = self.symbol_of_before(&hint);
                let d = known.unwrap_or_else(|| self.m.dims.symbol(&hint, Origin::ShapeValue));
                if let Some(s) = self.m.dims.as_symbol(d) {
                    let sym = self.m.dims.sym_mut(s);
                    (sym.lo, sym.hi) = (lo, hi);
                }
                self.named.insert(d, (r, v));
                self.own(r, d);
                d
            })
            .collect();
        self.values.insert((r, v), dims);
        // Uses before this one may derive more now.
        let used_before = |n2: &Node| self.m.graphs[r].nodes[*n2].ins.contains(&Some(v));
        self.again |= self.m.graphs[r].order.iter().find(|n2| used_before(n2)) != Some(&n);
        Ok(true)
    }

    /// The symbol of a shape value in a module that was inferred before. It has a number behind its name where that was taken.
    fn symbol_of_before(&mut self, hint: &str) -> Option<DimId> {
        let mut found = vec![self.m.dims.find_symbol(hint)?];
        let numbered = |name: &str| {
            let n = name.strip_prefix(hint).and_then(|n| n.strip_prefix('_'));
            n.is_some_and(|n| !n.is_empty() && n.bytes().all(|c| c.is_ascii_digit()))
        };
        found.extend(self.m.dims.symbols().filter(|(_, s)| numbered(&s.name)).map(|(id, _)| id));
        found.retain(|&s| self.m.dims.sym(s).origin == Origin::ShapeValue);
        found.into_iter().map(|s| self.m.dims.sym_dim(s)).find(|d| !self.named.contains_key(d))
    }

    /// On the first visit: where the value already has a type with a symbol of the same origin (the module was inferred before),
    /// takes that symbol. Says whether any changed.
    fn reuse_symbols(&mut self, r: RegionId, n: Node, types: &[Type], symbols: &mut [DimId]) -> bool {
        let mut changed = false;
        for (&v, ty) in self.m.graphs[r].nodes[n].outs.iter().zip(types) {
            let (Some(new), Some(old)) = (ty.shape(), self.m.graphs[r].values[v].ty.shape()) else { continue };
            if new.len() != old.len() {
                continue;
            }
            for (a, b) in new.iter().zip(old) {
                let origin = |d: DimId| self.m.dims.as_symbol(d).map(|s| &self.m.dims.sym(s).origin);
                let same = a != b && origin(*a) == origin(*b) && !matches!(origin(*a), None | Some(Origin::Unknown));
                if let Some(i) = symbols.iter().position(|s| same && s == a) {
                    symbols[i] = *b;
                    changed = true;
                }
            }
        }
        changed
    }

    /// Notes that `d`, a symbol, gets its value in region `r`.
    fn own(&mut self, r: RegionId, d: DimId) {
        if let Some(s) = self.m.dims.as_symbol(d).filter(|_| r != self.m.main) {
            self.owner.entry(s).or_insert(r);
        }
    }

    fn check_extents(&self, ty: &Type) -> Result<()> {
        let negative = ty.shape().into_iter().flatten().find(|&&d| self.m.dims.range(d).1 < 0);
        negative.map_or(Ok(()), |&d| {
            let text = format!("an extent is negative: {} in {}", self.m.dims.display(d), ty.display(&self.m.dims));
            Err(Diagnostic::new(ErrorKind::Shape, text))
        })
    }

    fn check_declared(&mut self, declared: &[(Value, Type)]) -> Result<()> {
        let main = self.m.main;
        for (v, want) in declared {
            let got = self.ty(main, *v).clone();
            let name = self.m.graph().values[*v].name.to_string();
            let path = self.m.graph().def_node(*v).map(|n| n.origin.to_string());
            let fail = |m: &Module<Onnx>, kind, what: &str| {
                let e = Diagnostic::new(kind, format!("output \"{name}\" is declared with another {what} than it has"));
                let e = path.iter().fold(e, |e, p| e.node(p.clone()));
                let e = e.note("declared", want.display(&m.dims)).note("inferred", got.display(&m.dims));
                Err(e.help("correct the output's type in the model, or remove its shape"))
            };
            if let (Some(a), Some(b)) = (want.dtype(), got.dtype())
                && a != b
            {
                return fail(self.m, ErrorKind::Type, "element type");
            }
            let (Some(a), Some(b)) = (want.shape(), got.shape()) else { continue };
            // A rank of its own says that the exporter did not know the shape: onnxruntime runs such models, too.
            if a.len() != b.len() {
                continue;
            }
            for (&x, &y) in a.iter().zip(b) {
                // Only numbers bind: names that a model gives to extents of outputs are often invented by exporters.
                if self.m.dims.as_const(x).is_some() && self.m.dims.prove_eq(x, y) == Proof::No {
                    return fail(self.m, ErrorKind::Shape, "extent");
                }
            }
        }
        Ok(())
    }

    /// Sentences about used values whose types or extents are not derived; each symbol once.
    fn report_unknown(&self) -> Vec<String> {
        let (mut out, mut seen) = (Vec::new(), FxHashSet::default());
        for (_, g) in self.m.graphs.iter() {
            let mut used: FxHashSet<Value> = g.outputs.iter().copied().collect();
            used.extend(g.order.iter().flat_map(|&n| g.nodes[n].ins.iter().flatten().copied()));
            let nodes = g.order.iter().flat_map(|&n| g.nodes[n].outs.iter().map(move |&v| (Some(n), v)));
            for (n, v) in g.inputs.iter().map(|&v| (None, v)).chain(nodes) {
                if !used.contains(&v) {
                    continue;
                }
                let data = &g.values[v];
                let place = n.map_or("graph input".into(), |n| g.nodes[n].origin.to_string());
                let text = data.ty.display(&self.m.dims);
                match &data.ty {
                    Type::Unknown => out.push(format!("{place}: the type of \"{}\" is not known", data.name)),
                    Type::Tensor(t) => match &t.shape {
                        None => out.push(format!("{place}: the rank of \"{}\" is not known: {text}", data.name)),
                        Some(s) => {
                            for sym in s.iter().flat_map(|&d| self.m.dims.symbols_of(d)) {
                                if self.m.dims.sym(sym).origin == Origin::Unknown && seen.insert(sym) {
                                    let sym = &self.m.dims.sym(sym).name;
                                    out.push(format!(
                                        "{place}: extent {sym} of \"{}\" is not derived: {text}",
                                        data.name
                                    ));
                                }
                            }
                        }
                    },
                    _ => {}
                }
            }
        }
        out
    }
}
