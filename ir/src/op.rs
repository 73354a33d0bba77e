//! Operator rows and their registry: one row per meaning of an operator.

use crate::attrs::{Attr, Attrs};
use crate::consts::{Const, ConstId};
use crate::graph::{Guard, Rel};
use crate::lowering::Candidate;
use crate::ty::{PartialShape, Shape, TensorType, Type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::{DType, Diagnostic, DimId, DimPool, ErrorKind, PrimaryMap, Result, Tensor, dims};

tensor::entity! {
    /// A row of the [`Registry`].
    pub struct OpId, "op"
}

/// The domain of ONNX's own operators is the empty string; ours (fused forms that rewriting makes) is [`HIP_DOMAIN`].
pub const HIP_DOMAIN: &str = "hip";

/// Turns attributes into plain parameters and calls a reference function.
pub type ReferenceFn = fn(&RefCtx) -> Result<Vec<Tensor>>;

/// Everything known about one meaning of an operator.
#[derive(Clone)]
pub struct OpDef {
    /// Name, as in ONNX.
    pub name: &'static str,
    /// Domain; empty for ai.onnx.
    pub domain: &'static str,
    /// First opset version with this meaning.
    pub since: i64,
    /// Last opset version with this meaning; `i64::MAX` while current.
    pub until: i64,
    /// Operands.
    pub inputs: &'static [Param],
    /// Results.
    pub outputs: &'static [Param],
    /// Attributes; their order is the order of slots.
    pub attrs: &'static [AttrDef],
    /// Allowed element types of each type variable that parameters name.
    pub dtypes: &'static [(&'static str, &'static [DType])],
    /// Sets types (and shape values) of the results. Runs again whenever operands become better known.
    pub infer: fn(&mut InferCtx) -> Result<()>,
    /// The meaning: operands to results on host tensors. Control flow has `None` and is run by the interpreter.
    pub reference: Option<ReferenceFn>,
    /// Ways to run it, best first.
    pub lower: &'static [Candidate],
    /// Extra facts.
    pub traits: OpTraits,
    /// Tolerance of a device result against the reference.
    pub tolerance: Tol,
    /// Cases for tests and the model generator: small shape strings in the row's own mini-language (see `ir/src/cases.rs`).
    pub cases: &'static [&'static str],
}

/// Facts about an operator that rewriting and scheduling ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTraits {
    /// Draws random numbers: never merged with an equal node, never folded.
    pub random: bool,
    /// Has graph attributes; their names are at the end of `attrs` as [`AttrKind::Graph`].
    pub regions: bool,
    /// Only moves or repeats elements of operand 0; the other operands say where to.
    pub moves: bool,
    /// A pointwise operator whose result also depends on where an element stands.
    pub positional: bool,
    /// Computes something else where it has more results: none of them is left out.
    pub counts_results: bool,
}

impl OpTraits {
    /// No extra facts.
    pub const NONE: OpTraits =
        OpTraits { random: false, regions: false, moves: false, positional: false, counts_results: false };
}

/// Tolerance of results: `|a - b| ≤ abs + rel·max|b|` per dtype class, exact for integers and bool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tol {
    /// Equal bits (NaN equals NaN): movement, comparison, integers.
    Exact,
    /// Relative to the greatest |y| of the tensor, for f32; narrower floats use their dtype's ceiling.
    Rel(f64),
}

/// An operand or result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name, as in ONNX.
    pub name: &'static str,
    /// Type variable in `dtypes`, or empty when not a plain tensor.
    pub ty: &'static str,
    /// How often it may occur.
    pub arity: Arity,
}

/// How often a parameter occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Once.
    Required,
    /// At most once.
    Optional,
    /// Any number; the last parameter only.
    Variadic,
}

/// A required parameter.
pub const fn req(name: &'static str, ty: &'static str) -> Param {
    Param { name, ty, arity: Arity::Required }
}
/// An optional parameter.
pub const fn opt(name: &'static str, ty: &'static str) -> Param {
    Param { name, ty, arity: Arity::Optional }
}
/// A variadic parameter.
pub const fn var(name: &'static str, ty: &'static str) -> Param {
    Param { name, ty, arity: Arity::Variadic }
}

/// An attribute of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttrDef {
    /// Name, as in ONNX.
    pub name: &'static str,
    /// Type and default.
    pub kind: AttrKind,
}

/// Type of an attribute, with its default where it has one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum AttrKind {
    /// Integer with default.
    Int(i64),
    /// Integer, absent by default.
    IntOpt,
    /// Integer that must be given.
    IntReq,
    /// Float with default.
    Float(f32),
    /// Float, absent by default.
    FloatOpt,
    /// String with default.
    Str(&'static str),
    /// String, absent by default.
    StrOpt,
    /// Integers, absent by default.
    Ints,
    /// Floats, absent by default.
    Floats,
    /// Strings, absent by default.
    Strs,
    /// Tensor, absent by default.
    Tensor,
    /// Type, absent by default.
    Type,
    /// Graph that must be given; becomes a region, takes no slot.
    Graph,
}

/// An attribute.
pub const fn attr(name: &'static str, kind: AttrKind) -> AttrDef {
    AttrDef { name, kind }
}

impl OpDef {
    /// `Name`, or `domain:Name` outside ai.onnx.
    pub fn full_name(&self) -> String {
        if self.domain.is_empty() { self.name.into() } else { format!("{}:{}", self.domain, self.name) }
    }
    /// Whether each result element is a function of the operands' elements at the same (broadcast) position, whatever that is.
    pub fn is_elementwise(&self) -> bool {
        !self.traits.positional && self.lower.iter().any(|c| matches!(c, Candidate::Pointwise(_)))
    }
    /// Whether it is elementwise with one operand and one result.
    pub fn is_unary(&self) -> bool {
        let one = |p: &[Param]| matches!(p, [p] if p.arity == Arity::Required);
        self.is_elementwise() && one(self.inputs) && one(self.outputs)
    }
    /// Whether nodes of the row may draw random numbers: import numbers them.
    pub fn draws(&self) -> bool {
        self.traits.random || self.slot(crate::ops::random::STREAM).is_some()
    }
    /// The slot of an attribute.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.attrs.iter().filter(|a| a.kind != AttrKind::Graph).position(|a| a.name == name)
    }
    /// Attributes with every slot at its default ([`Attr::Absent`] where there is none).
    pub fn default_attrs(&self) -> SmallVec<[Attr; 8]> {
        let slots = self.attrs.iter().filter(|a| a.kind != AttrKind::Graph);
        slots
            .map(|a| match a.kind {
                AttrKind::Int(v) => Attr::Int(v),
                AttrKind::Float(v) => Attr::Float(crate::attrs::F32::new(v)),
                AttrKind::Str(v) => Attr::Str(v.into()),
                _ => Attr::Absent,
            })
            .collect()
    }
    /// Attributes at their defaults but for those given. Panics on a name the row does not have: for use with literal names.
    pub fn attrs_with(&self, given: &[(&str, Attr)]) -> Attrs {
        let mut slots = self.default_attrs();
        for (name, value) in given {
            let i = self.slot(name).unwrap_or_else(|| panic!("{} has no attribute {name}", self.name));
            slots[i] = value.clone();
        }
        Attrs::new(slots)
    }
}

/// All rows: the static ones of [`crate::ops`] and those that plugins add.
pub struct Registry {
    rows: PrimaryMap<OpId, OpDef>,
    by_name: FxHashMap<(&'static str, &'static str), SmallVec<[OpId; 2]>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry({} rows)", self.rows.len())
    }
}

impl Registry {
    /// The built-in rows.
    pub fn builtin() -> Arc<Registry> {
        static ONCE: std::sync::OnceLock<Arc<Registry>> = std::sync::OnceLock::new();
        ONCE.get_or_init(|| Arc::new(Registry::with_rows(crate::ops::rows()))).clone()
    }
    /// A registry of these rows. Panics when two rows of one operator overlap in versions.
    pub fn with_rows(defs: impl IntoIterator<Item = OpDef>) -> Registry {
        let mut r = Registry { rows: PrimaryMap::new(), by_name: FxHashMap::default() };
        for def in defs {
            let key = (def.domain, def.name);
            let (since, until) = (def.since, def.until);
            assert!(since <= until, "{key:?} has an empty version range");
            let id = r.rows.push(def);
            let same = r.by_name.entry(key).or_default();
            for &o in same.iter() {
                let (a, b) = (r.rows[o].since, r.rows[o].until);
                assert!(until < a || since > b, "{key:?} has two rows for versions {since}..={until}");
            }
            same.push(id);
        }
        r
    }
    /// The row for an operator at an opset version.
    pub fn find(&self, domain: &str, name: &str, version: i64) -> Option<OpId> {
        let domain = if domain == "ai.onnx" { "" } else { domain };
        let rows = self.by_name.get(&(domain, name) as &(&str, &str))?;
        rows.iter().copied().find(|&id| (self.rows[id].since..=self.rows[id].until).contains(&version))
    }
    /// The newest row of an operator. Panics when there is none: for use with literal names of built-in rows.
    pub fn newest(&self, domain: &str, name: &str) -> OpId {
        let rows = self.by_name.get(&(domain, name) as &(&str, &str));
        let id = rows.and_then(|r| r.iter().copied().max_by_key(|&id| self.rows[id].since));
        id.unwrap_or_else(|| panic!("no row {domain}:{name}"))
    }
    /// Versions known for an operator, for messages: `(since, until)` of each row.
    pub fn versions(&self, domain: &str, name: &str) -> Vec<(i64, i64)> {
        let rows = self.by_name.get(&(domain, name) as &(&str, &str));
        rows.into_iter().flatten().map(|&id| (self.rows[id].since, self.rows[id].until)).collect()
    }
    /// All rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (OpId, &OpDef)> {
        self.rows.iter()
    }
}

impl std::ops::Index<OpId> for Registry {
    type Output = OpDef;
    fn index(&self, id: OpId) -> &OpDef {
        &self.rows[id]
    }
}

/// What a shape rule sees and sets.
pub struct InferCtx<'a> {
    /// The row.
    pub def: &'a OpDef,
    /// The node's attributes.
    pub attrs: &'a Attrs,
    /// Extents; rules make symbols here.
    pub dims: &'a mut DimPool,
    /// Constants of the module.
    pub consts: &'a PrimaryMap<ConstId, Const>,
    /// Operands; `None` where absent.
    pub ins: &'a [Option<InferIn<'a>>],
    /// Number of results of the node.
    pub n_outs: usize,
    /// Result types; start as [`Type::Unknown`].
    pub outs: Vec<Type>,
    /// Elements of results that are small integer tensors, as dims.
    pub out_values: Vec<Option<Shape>>,
    /// Elements of results of which only some are known as dims.
    pub out_partial: Vec<PartialShape>,
    /// Facts assumed.
    pub guards: Vec<Guard>,
    /// The node's path, for guards.
    pub path: &'a str,
    /// Symbols this node made on an earlier visit, handed out again in the same order so that inference reaches a fixpoint.
    pub symbols: &'a mut Vec<DimId>,
    /// How many of `symbols` this visit has handed out.
    pub n_symbols: usize,
    /// Operands whose elements the rule needs as dims and does not know: see [`InferCtx::need_values`].
    pub demands: SmallVec<[usize; 2]>,
}

/// An operand as a shape rule sees it.
#[derive(Clone, Copy)]
pub struct InferIn<'a> {
    /// Its type.
    pub ty: &'a Type,
    /// Its elements as dims, when it is a small integer tensor with known elements; row-major.
    pub values: Option<&'a Shape>,
    /// The constant behind it.
    pub konst: Option<ConstId>,
}

impl<'a> InferCtx<'a> {
    /// Whether operand `i` is present.
    pub fn has(&self, i: usize) -> bool {
        self.ins.get(i).is_some_and(|x| x.is_some())
    }
    /// Type of operand `i`; unknown when absent.
    pub fn ty(&self, i: usize) -> &'a Type {
        self.ins.get(i).and_then(|x| x.as_ref()).map_or(&Type::Unknown, |x| x.ty)
    }
    /// Element type of operand `i`.
    ///
    /// # Errors
    /// `Type` when it is absent or not a tensor.
    pub fn dtype(&self, i: usize) -> Result<DType> {
        self.ty(i)
            .dtype()
            .ok_or_else(|| self.error(ErrorKind::Type, format!("operand {i} of {} is not a tensor", self.def.name)))
    }
    /// Extents of operand `i`, when its rank is known.
    pub fn shape(&self, i: usize) -> Option<Shape> {
        self.ty(i).shape().cloned()
    }
    /// Elements of operand `i` as dims, when known: of an integer tensor.
    pub fn values(&self, i: usize) -> Option<Shape> {
        self.whole_values(i).filter(|_| !self.dtype(i).is_ok_and(|d| d.is_float()))
    }
    /// As [`InferCtx::values`], also of a float tensor whose elements are whole numbers: extents that were cast.
    pub fn whole_values(&self, i: usize) -> Option<Shape> {
        self.ins.get(i)?.as_ref()?.values.cloned()
    }
    /// Elements of operand `i` as dims where extents of the result depend on them. When they are not known, inference gives
    /// each element a symbol that is read at run time (if the operand is a small integer tensor) and visits the node again.
    pub fn need_values(&mut self, i: usize) -> Option<Shape> {
        let v = self.values(i);
        if v.is_none() && self.has(i) {
            self.demands.push(i);
        }
        v
    }
    /// Elements of operand `i` as constants, when all are known.
    pub fn const_ints(&self, i: usize) -> Option<Vec<i64>> {
        match self.values(i) {
            Some(v) => v.iter().map(|&d| self.dims.as_const(d)).collect(),
            None => Some(self.const_tensor(i)?.to_i64_vec()),
        }
    }
    /// The constant tensor behind operand `i`. Reads it: for small ones.
    pub fn const_tensor(&self, i: usize) -> Option<Tensor> {
        self.consts[self.ins.get(i)?.as_ref()?.konst?].read().ok()
    }
    /// Sets result `i` to a tensor of known rank.
    pub fn set(&mut self, i: usize, dtype: DType, shape: impl IntoIterator<Item = DimId>) {
        self.set_type(i, Type::tensor(dtype, shape));
    }
    /// Sets result `i` to a tensor whose rank is not known.
    pub fn set_unranked(&mut self, i: usize, dtype: DType) {
        self.set_type(i, Type::Tensor(TensorType { dtype, shape: None }));
    }
    /// Sets result `i`, if the node has it.
    pub fn set_type(&mut self, i: usize, ty: Type) {
        if let Some(o) = self.outs.get_mut(i) {
            *o = ty;
        }
    }
    /// Sets the elements of result `i` as dims.
    pub fn set_values(&mut self, i: usize, values: impl IntoIterator<Item = DimId>) {
        if let Some(o) = self.out_values.get_mut(i) {
            *o = Some(values.into_iter().collect());
        }
    }
    /// Sets those elements of result `i` that are known. The others become symbols where a use needs them.
    pub fn set_known(&mut self, i: usize, values: PartialShape) {
        match values.iter().copied().collect::<Option<Shape>>() {
            Some(all) => self.set_values(i, all),
            None => self.out_partial.get_mut(i).into_iter().for_each(|o| o.clone_from(&values)),
        }
    }
    /// A symbol for an extent that this rule cannot derive: the same one at every visit of the node.
    pub fn fresh(&mut self, hint: &str, origin: dims::Origin) -> DimId {
        if self.n_symbols == self.symbols.len() {
            let s = self.dims.symbol(hint, origin);
            self.symbols.push(s);
        }
        self.n_symbols += 1;
        self.symbols[self.n_symbols - 1]
    }
    /// States that two extents must be equal: checked now where possible, else a guard at the run's entry.
    ///
    /// # Errors
    /// `Shape` with `what` when they never are.
    pub fn require_eq(&mut self, a: DimId, b: DimId, what: &str) -> Result<()> {
        match self.dims.prove_eq(a, b) {
            dims::Proof::Yes => Ok(()),
            dims::Proof::No => Err(self.error(
                ErrorKind::Shape,
                format!(
                    "{}: {what}: {} and {} must be equal",
                    self.def.name,
                    self.dims.display(a),
                    self.dims.display(b)
                ),
            )),
            dims::Proof::Unknown => {
                let why = format!("{}: {what}", self.def.name);
                self.guards.push(Guard { lhs: a, rel: Rel::Eq, rhs: b, why, node: self.path.into() });
                Ok(())
            }
        }
    }
    /// An error at this node.
    pub fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Diagnostic {
        let mut e = Diagnostic::new(kind, message).node(self.path);
        for (i, x) in self.ins.iter().enumerate() {
            if let (Some(x), Some(p)) = (x, self.def.inputs.get(i.min(self.def.inputs.len().saturating_sub(1)))) {
                e = e.note(p.name, x.ty.display(self.dims));
            }
        }
        e
    }
    /// Normalises an axis against a rank.
    ///
    /// # Errors
    /// `Shape` when out of range.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        let r = rank as i64;
        if (-r..r.max(1)).contains(&axis) {
            return Ok(if axis < 0 { axis + r } else { axis } as usize);
        }
        Err(self.error(ErrorKind::Shape, format!("{}: axis {axis} is out of range for rank {rank}", self.def.name)))
    }
}

/// What a reference adapter sees.
pub struct RefCtx<'a> {
    /// The row.
    pub def: &'a OpDef,
    /// The node's attributes.
    pub attrs: &'a Attrs,
    /// Constants of the module (for tensor attributes).
    pub consts: &'a PrimaryMap<ConstId, Const>,
    /// Operands; `None` where absent.
    pub ins: &'a [Option<Tensor>],
    /// Number of results wanted.
    pub n_outs: usize,
}

impl RefCtx<'_> {
    /// Operand `i`.
    ///
    /// # Errors
    /// `Argument` when absent.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        self.opt(i).ok_or_else(|| Diagnostic::new(ErrorKind::Argument, format!("{} needs operand {i}", self.def.name)))
    }
    /// Operand `i`, if present.
    pub fn opt(&self, i: usize) -> Option<&Tensor> {
        self.ins.get(i).and_then(|x| x.as_ref())
    }
}
