//! The analysis: what is known about every value of a class — type, elements, constant, range.

use crate::fold;
use crate::lang::{ENode, Head};
use egg::{DidMerge, Id};
use ir::attrs::AttrPool;
use ir::consts::{Const, ConstData, ConstId};
use ir::op::{InferCtx, InferIn};
use ir::{OpId, Registry, Shape, Type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::dims::Proof;
use tensor::{DType, DimId, DimPool, Entity, PrimaryMap, Tensor};

/// The e-graph of one region.
pub type Graph = egg::EGraph<ENode, Facts>;

/// What is known about a class. Facts only become more precise.
#[derive(Clone, Debug)]
pub struct Data {
    /// Its type; [`Type::Unknown`] for operators with several results.
    pub ty: Arc<Type>,
    /// Types and elements of each result, for operators with several.
    pub outs: Option<Arc<[(Type, Option<Shape>)]>>,
    /// Elements as dims, for small integer tensors.
    pub values: Option<Shape>,
    /// The constant it is.
    pub konst: Option<ConstId>,
    /// Bounds of every element that is not NaN.
    pub range: (f64, f64),
}

impl Data {
    /// Only a type is known.
    pub fn of_type(ty: Type) -> Data {
        Data { ty: Arc::new(ty), outs: None, values: None, konst: None, range: ALL }
    }
}

/// The state of the analysis: the module's pools while its e-graphs are alive.
pub struct Facts {
    /// The rows.
    pub registry: Arc<Registry>,
    /// Extents.
    pub dims: DimPool,
    /// Attribute lists.
    pub attrs: AttrPool,
    /// Constants.
    pub consts: PrimaryMap<ConstId, Const>,
    /// Data of the node that is added next, when the module knows it (source nodes).
    pub preset: Option<Data>,
    /// Whether constants are folded.
    pub fold: bool,
    /// How many nodes were folded to a constant.
    pub n_folded: usize,
    /// Unions that would join different types: a broken rule. Empty in every test.
    pub conflicts: Vec<String>,
    /// Symbols from here on were made by rewriting: less precise than the module's own.
    first_new_symbol: usize,
    n_old_consts: usize,
    absent: Option<Id>,
    small: FxHashMap<(DType, SmallVec<[usize; 4]>, Vec<u8>), ConstId>,
    derived: FxHashMap<Derivation, ConstId>,
    newest: FxHashMap<(&'static str, &'static str), OpId>,
}

/// Bounds of what may be anything.
const ALL: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

fn least(v: &[f64]) -> f64 {
    v.iter().copied().fold(f64::INFINITY, f64::min)
}
fn greatest(v: &[f64]) -> f64 {
    v.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// What a constant was made from: what it is, the constant, and numbers that say how.
pub type Derivation = (&'static str, ConstId, [usize; 6]);

/// Constants up to this size are one constant when their content is equal.
const SMALL_CONST_BYTES: usize = 64;

impl Facts {
    /// Over the pools of a module.
    pub fn new(registry: Arc<Registry>, dims: DimPool, attrs: AttrPool, consts: PrimaryMap<ConstId, Const>) -> Facts {
        let mut newest: FxHashMap<(&'static str, &'static str), OpId> = FxHashMap::default();
        for (id, def) in registry.rows() {
            let e = newest.entry((def.domain, def.name)).or_insert(id);
            if registry[*e].since < def.since {
                *e = id;
            }
        }
        let (first_new_symbol, n_old_consts) = (dims.symbols().len(), consts.len());
        Facts {
            registry,
            dims,
            attrs,
            consts,
            preset: None,
            fold: true,
            n_folded: 0,
            conflicts: Vec::new(),
            first_new_symbol,
            n_old_consts,
            absent: None,
            small: FxHashMap::default(),
            derived: FxHashMap::default(),
            newest,
        }
    }

    /// The newest row of an operator, written as in patterns: `Add`, `hip:Gelu`.
    pub fn find_op(&self, name: &str) -> Option<OpId> {
        let key = name.split_once(':').unwrap_or(("", name));
        self.newest.get(&key as &(&str, &str)).copied()
    }

    /// The class of the absent operand.
    pub fn absent_class(&self) -> Option<Id> {
        self.absent
    }
    pub(crate) fn set_absent(&mut self, id: Id) {
        self.absent = Some(id);
    }
    /// Bytes of a constant that rewriting made; 0 for the module's own.
    pub fn made_const_bytes(&self, c: ConstId) -> u64 {
        match &self.consts[c].data {
            ConstData::Bytes(b) if c.index() >= self.n_old_consts => b.len() as u64,
            _ => 0,
        }
    }

    /// The constant that `make` makes from others; the same one when it was made before. `None` when `make` has none.
    pub fn derived(
        &mut self,
        from: Derivation,
        make: impl FnOnce(&PrimaryMap<ConstId, Const>) -> Option<Const>,
    ) -> Option<ConstId> {
        if let Some(&c) = self.derived.get(&from) {
            return Some(c);
        }
        let c = make(&self.consts)?;
        let c = self.constant(c);
        self.derived.insert(from, c);
        Some(c)
    }

    /// Adds a constant, or finds an equal one when it is small.
    pub fn constant(&mut self, c: Const) -> ConstId {
        let bytes = match &c.data {
            ConstData::Bytes(b) if b.len() <= SMALL_CONST_BYTES => Some(b.to_vec()),
            ConstData::Splat(e) => Some(e.iter().copied().chain([0xfe, 0xed]).collect()),
            _ => None,
        };
        let Some(bytes) = bytes else { return self.consts.push(c) };
        let key = (c.dtype, c.shape.clone(), bytes);
        if let Some(&id) = self.small.get(&key) {
            return id;
        }
        let id = self.consts.push(c);
        self.small.insert(key, id);
        id
    }

    /// The constant that stands for `id`: the first one with equal content when it is small.
    pub fn canonical_const(&mut self, id: ConstId) -> ConstId {
        let c = &self.consts[id];
        let ConstData::Bytes(b) = &c.data else { return id };
        if b.len() > SMALL_CONST_BYTES {
            return id;
        }
        *self.small.entry((c.dtype, c.shape.clone(), b.to_vec())).or_insert(id)
    }

    /// What is known about a constant.
    pub fn const_data(&mut self, id: ConstId) -> Data {
        let c = &self.consts[id];
        let (dtype, shape, n) = (c.dtype, c.shape.clone(), c.n_elems());
        let tensor = (n <= 64 && dtype != DType::String).then(|| c.read().ok()).flatten();
        let splat = c.splat_f64();
        let ints = tensor.as_ref().filter(|_| matches!(dtype, DType::I64 | DType::I32) && shape.len() <= 1);
        let ints: Option<Vec<i64>> = ints.map(Tensor::to_i64_vec);
        let range = match (&tensor, splat) {
            (_, Some(v)) => (v, v),
            (Some(t), _) if n > 0 && !matches!(dtype, DType::C64 | DType::C128) => {
                let v = t.to_f64_vec();
                // Elements that are NaN have no bounds, and equal bounds would say that all elements are one number.
                if v.iter().any(|x| x.is_nan()) { ALL } else { (least(&v), greatest(&v)) }
            }
            _ => ALL,
        };
        let dims: Shape = shape.iter().map(|&d| self.dims.constant(i64::try_from(d).unwrap_or(i64::MAX))).collect();
        let values = ints.map(|v| v.into_iter().map(|x| self.dims.constant(x)).collect());
        Data { ty: Arc::new(Type::tensor(dtype, dims)), outs: None, values, konst: Some(id), range }
    }

    /// Whether two types may be those of one value: equal dtypes and ranks, and no extents that are never equal.
    pub fn compatible(&mut self, a: &Type, b: &Type) -> bool {
        match (a, b) {
            (Type::Unknown, _) | (_, Type::Unknown) => true,
            (Type::Tensor(x), Type::Tensor(y)) => {
                x.dtype == y.dtype
                    && match (&x.shape, &y.shape) {
                        (Some(s), Some(t)) => {
                            s.len() == t.len() && s.iter().zip(t).all(|(&d, &e)| self.dims.prove_eq(d, e) != Proof::No)
                        }
                        _ => true,
                    }
            }
            _ => a == b,
        }
    }

    fn is_new(&self, d: DimId) -> bool {
        self.dims.symbols_of(d).iter().any(|s| s.index() >= self.first_new_symbol)
    }

    /// The more precise of two dims that are equal: a constant, else one over the module's own symbols, else the older.
    fn better_dim(&self, a: DimId, b: DimId) -> DimId {
        let key = |d| (self.dims.as_const(d).is_none(), self.is_new(d), d);
        if key(a) <= key(b) { a } else { b }
    }

    /// The more precise of two types of one value.
    pub fn join(&mut self, a: &Arc<Type>, b: &Arc<Type>) -> Arc<Type> {
        match (&**a, &**b) {
            (x, y) if x == y => a.clone(),
            (Type::Unknown, _) => b.clone(),
            (_, Type::Unknown) => a.clone(),
            (Type::Tensor(x), Type::Tensor(y)) => match (&x.shape, &y.shape) {
                (None, _) => b.clone(),
                (_, None) => a.clone(),
                (Some(s), Some(t)) if s.len() == t.len() => {
                    let s: Shape = s.iter().zip(t).map(|(&d, &e)| self.better_dim(d, e)).collect();
                    Arc::new(Type::tensor(x.dtype, s))
                }
                _ => a.clone(),
            },
            _ => a.clone(),
        }
    }

    /// Runs the row's shape rule: type and elements of each result. A rule that refuses gives nothing.
    fn infer(
        &mut self,
        op: OpId,
        attrs: ir::attrs::AttrsId,
        kids: &[Data],
        absent: &[bool],
        n_outs: usize,
    ) -> Vec<(Type, Option<Shape>)> {
        let registry = self.registry.clone();
        let ins: SmallVec<[Option<InferIn<'_>>; 4]> = kids
            .iter()
            .zip(absent)
            .map(|(d, &no)| (!no).then_some(InferIn { ty: &d.ty, values: d.values.as_ref(), konst: d.konst }))
            .collect();
        let attrs = self.attrs[attrs].clone();
        let mut symbols = Vec::new();
        let mut cx = InferCtx {
            def: &registry[op],
            attrs: &attrs,
            dims: &mut self.dims,
            consts: &self.consts,
            ins: &ins,
            n_outs,
            outs: vec![Type::Unknown; n_outs],
            out_values: vec![None; n_outs],
            out_partial: vec![Default::default(); n_outs],
            guards: Vec::new(),
            demands: SmallVec::new(),
            path: "",
            symbols: &mut symbols,
            n_symbols: 0,
        };
        match (registry[op].infer)(&mut cx) {
            Ok(()) => cx.outs.into_iter().zip(cx.out_values).collect(),
            Err(_) => vec![(Type::Unknown, None); n_outs],
        }
    }
}

/// Bounds of an operator's result from its name and the bounds of its operands, `None` for absent ones. Integers may wrap.
fn range_of(name: &str, is_float: bool, kids: &[Option<(f64, f64)>]) -> (f64, f64) {
    let k = |i: usize| kids.get(i).copied().flatten().unwrap_or(ALL);
    match name {
        "Relu" => (k(0).0.max(0.0), k(0).1.max(0.0)),
        "Sigmoid" | "HardSigmoid" | "Softmax" if is_float => (0.0, 1.0),
        "Tanh" | "Erf" | "Sin" | "Cos" if is_float => (-1.0, 1.0),
        "Exp" | "Sqrt" | "Abs" | "Softplus" | "ReduceL2" | "ReduceSumSquare" if is_float => (0.0, f64::INFINITY),
        "MaxPool" | "Reshape" | "Transpose" | "Squeeze" | "Unsqueeze" | "Flatten" | "Identity" | "Slice" | "Expand"
        | "Gather" | "GlobalAveragePool" | "GlobalMaxPool" => k(0),
        // Paddings may count.
        "AveragePool" => (k(0).0.min(0.0), k(0).1.max(0.0)),
        "Concat" if !kids.is_empty() => {
            (0..kids.len()).map(k).reduce(|r, s| (r.0.min(s.0), r.1.max(s.1))).unwrap_or(ALL)
        }
        "Max" if !kids.is_empty() => (0..kids.len()).map(k).reduce(|r, s| (r.0.max(s.0), r.1.max(s.1))).unwrap_or(ALL),
        "Add" | "Mul" if is_float && k(0).0 >= 0.0 && k(1).0 >= 0.0 => (0.0, f64::INFINITY),
        // min(max(x, lo), hi), also where lo > hi
        "Clip" if kids.len() > 1 => {
            let bound = |i: usize, free: f64| kids.get(i).copied().flatten().unwrap_or((free, free));
            let (lo, hi) = (bound(1, f64::NEG_INFINITY), bound(2, f64::INFINITY));
            (k(0).0.max(lo.0).min(hi.0), k(0).1.max(lo.1).min(hi.1))
        }
        "Clip" => k(0),
        _ => ALL,
    }
}

impl egg::Analysis<ENode> for Facts {
    type Data = Data;

    fn make(eg: &mut Graph, node: &ENode, _id: Id) -> Data {
        if let Some(d) = eg.analysis.preset.take() {
            return complete(eg, node, d);
        }
        match node.head {
            Head::Leaf(_) | Head::Absent => Data::of_type(Type::Unknown),
            Head::Const(c) => eg.analysis.const_data(c),
            Head::Proj(i) => {
                let outs = eg[node.kids[0]].data.outs.clone();
                match outs.as_ref().and_then(|o| o.get(usize::from(i))) {
                    Some((ty, values)) => Data { values: values.clone(), ..Data::of_type(ty.clone()) },
                    None => Data::of_type(Type::Unknown),
                }
            }
            Head::Op { op, attrs, n_outs, .. } => {
                let (kids, absent) = operands(eg, node);
                let mut outs = eg.analysis.infer(op, attrs, &kids, &absent, n_outs.into());
                let d = if n_outs == 1 {
                    let (ty, values) = outs.swap_remove(0);
                    Data { values, ..Data::of_type(ty) }
                } else {
                    Data { outs: Some(outs.into()), ..Data::of_type(Type::Unknown) }
                };
                complete(eg, node, d)
            }
        }
    }

    fn remake(eg: &mut Graph, node: &ENode, id: Id) -> Data {
        // The type is known already; operands may have become constants.
        let d = eg[id].data.clone();
        complete(eg, node, d)
    }

    fn merge(&mut self, a: &mut Data, b: Data) -> DidMerge {
        if !self.compatible(&a.ty, &b.ty) {
            let text = format!("{} and {}", a.ty.display(&self.dims), b.ty.display(&self.dims));
            debug_assert!(false, "joining classes of different types: {text}");
            self.conflicts.push(text);
        }
        let ty = self.join(&a.ty, &b.ty);
        let news_for_a = (a.konst.is_none() && b.konst.is_some()) || (a.values.is_none() && b.values.is_some());
        let news_for_b = (b.konst.is_none() && a.konst.is_some()) || (b.values.is_none() && a.values.is_some());
        a.ty = ty;
        a.outs = a.outs.take().or(b.outs);
        a.values = a.values.take().or(b.values);
        a.konst = match (a.konst, b.konst) {
            (Some(x), Some(y)) => Some(x.min(y)),
            (x, y) => x.or(y),
        };
        a.range = (a.range.0.max(b.range.0), a.range.1.min(b.range.1));
        DidMerge(news_for_a, news_for_b)
    }

    fn modify(eg: &mut Graph, id: Id) {
        let Some(c) = eg[id].data.konst else { return };
        if eg[id].nodes.iter().any(|n| matches!(n.head, Head::Const(_))) {
            return;
        }
        eg.analysis.preset = None;
        let k = eg.add(ENode::leaf(Head::Const(c)));
        eg.union(id, k);
    }
}

/// What is known about the operands, and which are absent.
fn operands(eg: &Graph, node: &ENode) -> (SmallVec<[Data; 4]>, SmallVec<[bool; 4]>) {
    let kids = node.kids.iter().map(|&k| eg[k].data.clone()).collect();
    let absent = node.kids.iter().map(|&k| is_absent(eg, k)).collect();
    (kids, absent)
}

/// Whether a class is the absent operand.
pub fn is_absent(eg: &Graph, id: Id) -> bool {
    eg[id].nodes.iter().any(|n| n.head == Head::Absent)
}

/// Adds range and constant to what is known.
fn complete(eg: &mut Graph, node: &ENode, mut d: Data) -> Data {
    let Head::Op { op, .. } = node.head else { return d };
    let (kids, absent) = operands(eg, node);
    let name = eg.analysis.registry[op].name;
    let ranges: SmallVec<[_; 4]> = kids.iter().zip(&absent).map(|(d, no)| (!no).then_some(d.range)).collect();
    let r = range_of(name, d.ty.dtype().is_some_and(DType::is_float), &ranges);
    d.range = (d.range.0.max(r.0), d.range.1.min(r.1));
    if d.konst.is_none() && eg.analysis.fold {
        d.konst = fold::fold(&mut eg.analysis, node, &kids, &absent, &d);
        if let Some(c) = d.konst {
            eg.analysis.n_folded += 1;
            if d.values.is_none() {
                d.values = eg.analysis.const_data(c).values;
            }
        }
    }
    d
}
