//! Rules: equations with a numeric class and conditions on analysis facts.

use crate::facts::{Data, Graph, is_absent};
use crate::lang::{ENode, Head};
use crate::pattern::{AttrPat, Match, Pat, Pattern, PatternError};
use egg::Id;
use ir::attrs::{Attr, Attrs, F32};
use ir::consts::{Const, ConstId};
use ir::{OpDef, OpId, Registry, Shape, Type};
use smallvec::SmallVec;
use std::borrow::Cow;
use tensor::dims::Proof;
use tensor::{DType, DimId, Tensor};

/// How far the two sides of a rule may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NumClass {
    /// Equal bit for bit (the sign of a zero and the payload of a NaN aside).
    Exact,
    /// Equal in real arithmetic; rounding may differ.
    Reassoc,
    /// Differs by a bounded error that the rule states.
    Approx,
}

impl std::fmt::Display for NumClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NumClass::Exact => "exact",
            NumClass::Reassoc => "reassoc",
            NumClass::Approx => "approx",
        })
    }
}

/// Why a match is not rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skip {
    /// Nothing to see: the match is not this rule's idiom.
    No,
    /// The idiom, but for the condition named.
    Miss(Cow<'static, str>),
}

/// A near miss.
pub fn miss<T>(why: impl Into<Cow<'static, str>>) -> Result<T, Skip> {
    Err(Skip::Miss(why.into()))
}

/// The code of a right-hand side: the class that equals the match, or why not.
pub type Build = fn(&mut Cx<'_>, &Match) -> Result<Id, Skip>;

/// A condition: what it says and its test.
pub type Cond = (&'static str, fn(&mut Cx<'_>, &Match) -> bool);

/// The right-hand side of a rule.
#[derive(Clone, Copy)]
pub enum Rhs {
    /// A pattern over the variables of the left-hand side.
    Text(&'static str),
    /// Code, where constants or attributes are computed.
    Code(Build),
}

/// A rule: `lhs = rhs` under conditions. Written with [`crate::rule!`] in the tables of [`crate::rules`].
#[derive(Clone, Copy)]
pub struct Rule {
    /// Name, for reports and for switching it off.
    pub name: &'static str,
    /// Numeric class.
    pub class: NumClass,
    /// Whether it recognises an idiom: then near misses are reported.
    pub idiom: bool,
    /// Left-hand sides; each bracketing that exporters write is one.
    pub lhs: &'static [&'static str],
    /// The right-hand side of all of them.
    pub rhs: Rhs,
    /// Conditions.
    pub conds: &'static [Cond],
    /// Cases for [`crate::check::check_rule`], in its language.
    pub cases: &'static [&'static str],
}

/// Writes one [`Rule`]: `rule!("silu", Reassoc, idiom ["(Mul~ ?x (Sigmoid ?x))"] => text "(hip:Silu ?x)"; "case", …)`.
#[macro_export]
macro_rules! rule {
    ($name:literal, $class:ident, $kind:ident [$($lhs:expr),+ $(,)?] => $how:ident $rhs:expr
     $(, if $why:literal, $cond:expr)* $(,)?; $($case:literal),* $(,)?) => {
        $crate::rule::Rule {
            name: $name,
            class: $crate::rule::NumClass::$class,
            idiom: $crate::rule!(@kind $kind),
            lhs: &[$($lhs),+],
            rhs: $crate::rule!(@rhs $how $rhs),
            conds: &[$(($why, $cond)),*],
            cases: &[$($case),*],
        }
    };
    (@kind idiom) => { true };
    (@kind law) => { false };
    (@rhs text $e:expr) => { $crate::rule::Rhs::Text($e) };
    (@rhs code $e:expr) => { $crate::rule::Rhs::Code($e) };
}

/// A rule whose patterns are resolved against a registry.
pub struct Compiled {
    /// The rule.
    pub rule: Rule,
    pub(crate) lhs: Vec<(Pattern, Option<Pattern>)>,
}

impl Compiled {
    /// Resolves the patterns. Left-hand sides that name operators without rows are dropped.
    ///
    /// # Errors
    /// The first [`PatternError`] when no left-hand side is left, or the right-hand side has none.
    pub fn new(registry: &Registry, rule: &Rule) -> Result<Compiled, PatternError> {
        let mut lhs = Vec::new();
        let mut first = None;
        for text in rule.lhs {
            let p = match Pattern::new(registry, text) {
                Ok(p) => p,
                Err(e @ PatternError::NoOp(_)) => {
                    first.get_or_insert(e);
                    continue;
                }
                Err(e) => return Err(e),
            };
            let rhs = match rule.rhs {
                Rhs::Text(t) => Some(Pattern::result(registry, t, &p)?),
                Rhs::Code(_) => None,
            };
            lhs.push((p, rhs));
        }
        match (lhs.is_empty(), first) {
            (true, Some(e)) => Err(e),
            _ => Ok(Compiled { rule: *rule, lhs }),
        }
    }
    /// The class that equals the match of left-hand side `i`, when the conditions hold.
    ///
    /// # Errors
    /// [`Skip`] when they do not.
    pub fn apply(&self, cx: &mut Cx<'_>, i: usize, m: &Match) -> Result<Id, Skip> {
        for (why, test) in self.rule.conds {
            if !test(cx, m) {
                return miss(*why);
            }
        }
        if let Some(off) = &m.off {
            return miss(off.clone());
        }
        match (&self.rule.rhs, &self.lhs[i].1) {
            (Rhs::Code(f), _) => f(cx, m),
            (_, Some(p)) => cx.build(&p.root, m),
            _ => Err(Skip::No),
        }
    }
}

/// What conditions and right-hand sides see: the e-graph with helpers.
pub struct Cx<'a> {
    /// The e-graph.
    pub eg: &'a mut Graph,
}

impl Cx<'_> {
    /// What is known about a class.
    pub fn data(&self, id: Id) -> &Data {
        &self.eg[id].data
    }
    /// Its type.
    pub fn ty(&self, id: Id) -> &Type {
        &self.eg[id].data.ty
    }
    /// Its element type.
    pub fn dtype(&self, id: Id) -> Option<DType> {
        self.ty(id).dtype()
    }
    /// Its extents, when its rank is known.
    pub fn shape(&self, id: Id) -> Option<Shape> {
        self.ty(id).shape().cloned()
    }
    /// Its rank, when known.
    pub fn rank(&self, id: Id) -> Option<usize> {
        self.ty(id).shape().map(|s| s.len())
    }
    /// Its extents, when all are known.
    pub fn static_shape(&self, id: Id) -> Option<Vec<i64>> {
        self.shape(id)?.iter().map(|&d| self.eg.analysis.dims.as_const(d)).collect()
    }
    /// A dim as a number.
    pub fn dim(&self, d: DimId) -> Option<i64> {
        self.eg.analysis.dims.as_const(d)
    }
    /// Whether both classes have the same dtype and provably the same shape.
    pub fn same_type(&mut self, a: Id, b: Id) -> bool {
        self.dtype(a).is_some() && self.dtype(a) == self.dtype(b) && self.same_shape(a, b)
    }
    /// Whether both classes have provably the same shape.
    pub fn same_shape(&mut self, a: Id, b: Id) -> bool {
        let (Some(s), Some(t)) = (self.shape(a), self.shape(b)) else { return false };
        self.same_dims(&s, &t)
    }
    /// Whether two lists of extents are provably equal.
    pub fn same_dims(&mut self, s: &[DimId], t: &[DimId]) -> bool {
        s.len() == t.len() && s.iter().zip(t).all(|(&d, &e)| self.eg.analysis.dims.prove_eq(d, e) == Proof::Yes)
    }
    /// Whether the class is the absent operand.
    pub fn absent(&self, id: Id) -> bool {
        is_absent(self.eg, id)
    }
    /// The class of the absent operand.
    pub fn none(&mut self) -> Id {
        self.eg.add(ENode::leaf(Head::Absent))
    }
    /// Whether the class is a constant.
    pub fn is_const(&self, id: Id) -> bool {
        self.data(id).konst.is_some()
    }
    /// The constant it is.
    pub fn konst(&self, id: Id) -> Option<&Const> {
        self.data(id).konst.map(|c| &self.eg.analysis.consts[c])
    }
    /// The one value all its elements have, when it is a constant.
    pub fn splat(&self, id: Id) -> Option<f64> {
        let d = self.data(id);
        (d.konst.is_some() && d.range.0 == d.range.1).then_some(d.range.0)
    }
    /// The value, when it is a constant of one element.
    pub fn scalar(&self, id: Id) -> Option<f64> {
        (self.konst(id)?.n_elems() == 1).then(|| self.splat(id)).flatten()
    }
    /// Whether the class is no constant (or one that folding left alone) or one of finite elements.
    pub fn is_finite(&self, id: Id) -> bool {
        let Some(t) = self.konst(id).map(Const::read) else { return true };
        t.is_ok_and(|t| t.is_finite())
    }
    /// A number as an attribute, which is f32, of a node that computes in the element type of `of`.
    ///
    /// # Errors
    /// When the rounding would show: in f64.
    pub fn attr_of(&self, of: Id, v: f64) -> Result<Attr, Skip> {
        let single = v as f32;
        if self.dtype(of) == Some(DType::F64) && f64::from(single) != v {
            return miss(format!("an attribute, which is f32, does not hold {v}"));
        }
        Ok(Attr::Float(F32::new(single)))
    }
    /// Its elements, when they are known integers.
    pub fn ints(&self, id: Id) -> Option<Vec<i64>> {
        let v = self.data(id).values.as_ref()?;
        v.iter().map(|&d| self.dim(d)).collect()
    }
    /// The row of a node.
    pub fn def(&self, n: &ENode) -> Option<&OpDef> {
        n.op().map(|o| &self.eg.analysis.registry[o])
    }
    /// An attribute of a node; absent when its row has none of that name.
    pub fn attr(&self, n: &ENode, name: &str) -> Attr {
        let slot = self.def(n).and_then(|d| d.slot(name));
        match (slot, n.attrs()) {
            (Some(s), Some(a)) => self.eg.analysis.attrs[a].get(s).clone(),
            _ => Attr::Absent,
        }
    }
    /// An integer attribute.
    pub fn attr_int(&self, n: &ENode, name: &str) -> Option<i64> {
        match self.attr(n, name) {
            Attr::Int(v) => Some(v),
            _ => None,
        }
    }
    /// A float attribute.
    pub fn attr_float(&self, n: &ENode, name: &str) -> Option<f32> {
        match self.attr(n, name) {
            Attr::Float(v) => Some(v.get()),
            _ => None,
        }
    }
    /// An integer-list attribute.
    pub fn attr_ints(&self, n: &ENode, name: &str) -> Option<Vec<i64>> {
        match self.attr(n, name) {
            Attr::Ints(v) => Some(v.to_vec()),
            _ => None,
        }
    }
    /// A string attribute; empty when absent.
    pub fn attr_str(&self, n: &ENode, name: &str) -> String {
        match self.attr(n, name) {
            Attr::Str(v) => v.to_string(),
            _ => String::new(),
        }
    }
    /// Operand `i` of a node, when present.
    pub fn kid(&self, n: &ENode, i: usize) -> Option<Id> {
        n.kids.get(i).copied().filter(|&k| !self.absent(k))
    }
    /// Integers that are an attribute in older versions of an operator and operand `i` in newer ones.
    pub fn ints_of(&self, n: &ENode, name: &str, i: usize) -> Option<Vec<i64>> {
        match self.def(n)?.slot(name) {
            Some(_) => self.attr_ints(n, name),
            None => self.ints(self.kid(n, i)?),
        }
    }
    /// Axes made non-negative and sorted.
    pub fn axes(&self, axes: &[i64], rank: usize) -> Vec<usize> {
        let r = rank as i64;
        let mut a: Vec<usize> = axes.iter().map(|&x| (if x < 0 { x + r } else { x }).max(0) as usize).collect();
        a.sort_unstable();
        a
    }
    /// The newest row of an operator.
    pub fn op(&self, name: &str) -> Result<OpId, Skip> {
        self.eg.analysis.find_op(name).ok_or(Skip::No)
    }
    /// Adds the newest row of an operator with one result.
    ///
    /// # Errors
    /// When there is no such row or it lacks an attribute.
    pub fn add(&mut self, name: &str, attrs: &[(&str, Attr)], kids: &[Id]) -> Result<Id, Skip> {
        let op = self.op(name)?;
        let registry = self.eg.analysis.registry.clone();
        let def = &registry[op];
        let mut slots = def.default_attrs();
        for (k, v) in attrs {
            slots[def.slot(k).ok_or(Skip::No)?] = v.clone();
        }
        Ok(self.add_op(op, Attrs::new(slots), kids))
    }
    /// Adds a node of a row with one result. Trailing absent operands are dropped.
    pub fn add_op(&mut self, op: OpId, attrs: Attrs, kids: &[Id]) -> Id {
        let attrs = self.eg.analysis.attrs.intern(attrs);
        let mut kids: SmallVec<[Id; 4]> = kids.into();
        while kids.last().is_some_and(|&k| self.absent(k)) {
            kids.pop();
        }
        self.eg.analysis.preset = None;
        self.eg.add(ENode { head: Head::Op { op, attrs, n_outs: 1, unique: 0 }, kids })
    }
    /// The same operator and attributes over other operands.
    pub fn with_kids(&mut self, n: &ENode, kids: &[Id]) -> Result<Id, Skip> {
        match n.head {
            Head::Op { op, attrs, n_outs: 1, unique: 0 } => {
                let attrs = self.eg.analysis.attrs[attrs].clone();
                Ok(self.add_op(op, attrs, kids))
            }
            _ => Err(Skip::No),
        }
    }
    /// The same operator over other operands, with some attributes changed.
    pub fn with_attrs(&mut self, n: &ENode, change: &[(&str, Attr)], kids: &[Id]) -> Result<Id, Skip> {
        let Head::Op { op, attrs, n_outs: 1, unique: 0 } = n.head else { return Err(Skip::No) };
        let registry = self.eg.analysis.registry.clone();
        let mut slots: Vec<Attr> = self.eg.analysis.attrs[attrs].slots().to_vec();
        for (k, v) in change {
            slots[registry[op].slot(k).ok_or(Skip::No)?] = v.clone();
        }
        Ok(self.add_op(op, Attrs::new(slots), kids))
    }
    /// Adds a constant.
    pub fn constant(&mut self, t: &Tensor) -> Id {
        let c = self.eg.analysis.constant(Const::from_tensor("", t));
        self.const_id(c)
    }
    /// Adds a constant given as such.
    pub fn const_id(&mut self, c: ConstId) -> Id {
        self.eg.analysis.preset = None;
        self.eg.add(ENode::leaf(Head::Const(c)))
    }
    /// A scalar constant.
    pub fn scalar_const(&mut self, dtype: DType, v: f64) -> Id {
        self.constant(&Tensor::from_f64_as(dtype, &[], &[v]))
    }
    /// A 1-D i64 constant.
    pub fn ints_const(&mut self, v: &[i64]) -> Id {
        self.constant(&Tensor::from_i64(&[v.len()], v))
    }
    /// Builds a right-hand side.
    pub(crate) fn build(&mut self, p: &Pat, m: &Match) -> Result<Id, Skip> {
        match p {
            Pat::Var(i) => m.var(*i).ok_or(Skip::No),
            Pat::Absent => Ok(self.none()),
            // What is built has one result.
            Pat::Result(..) => Err(Skip::No),
            Pat::Scalar(v) => {
                let dtype = self.dtype(m.root).ok_or(Skip::No)?;
                Ok(self.scalar_const(dtype, *v))
            }
            Pat::Any(ps) => self.build(ps.first().ok_or(Skip::No)?, m),
            Pat::Node(n) => {
                let kids: Vec<Id> = n.kids.iter().map(|k| self.build(k, m)).collect::<Result<_, _>>()?;
                let attrs: Vec<(&str, Attr)> = n
                    .attrs
                    .iter()
                    .map(|(k, a)| match a {
                        AttrPat::Is(a) => Ok((k.as_str(), a.clone())),
                        AttrPat::Var(i) => Ok((k.as_str(), m.attr(*i).cloned().ok_or(Skip::No)?)),
                    })
                    .collect::<Result<_, Skip>>()?;
                self.add(&n.names[0], &attrs, &kids)
            }
        }
    }
}
