//! Patterns: text such as `(Mul~ ?x (Sigmoid ?x))`, matched against e-classes with backtracking.
//!
//! | text | matches |
//! |---|---|
//! | `?x` | any class; the same class at every place |
//! | `0.5` | a constant all of whose elements have this value |
//! | `_` | an absent operand |
//! | `(Op p q)` | a node of any version of `Op`; operands beyond those listed must be absent |
//! | `(Op p ..)` | the same with any further operands |
//! | `(Op~ p q)` | operands in either order |
//! | `(A\|hip:B p)` | one of several operators |
//! | `(unary p)` | a node of any elementwise operator with one operand |
//! | `(Op@n p)` | binds the node itself under `n`, for conditions on attributes |
//! | `(Op{perm=?p axis=-1} q)` | attributes: equal, or bound to a variable of their own |
//! | `1/2(Op p)` | result 1 of a node with 2 results |
//! | `<p q>` | one of several patterns |

use crate::facts::{Graph, is_absent};
use crate::lang::{ENode, Head, Kind};
use egg::Id;
use ir::attrs::{Attr, F32};
use ir::{OpDef, OpId, Registry};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use tensor::{DType, Tensor};

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The text.
    pub text: &'static str,
    pub(crate) root: Pat,
    pub(crate) names: Arc<Names>,
}

/// The variables of a pattern, in order of appearance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) vars: Vec<String>,
    pub(crate) labels: Vec<String>,
    pub(crate) attrs: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Pat {
    Var(usize),
    Scalar(f64),
    Absent,
    Any(Vec<Pat>),
    Node(Box<NodePat>),
    /// Result `.0` of a node.
    Result(u16, Box<NodePat>),
}

#[derive(Clone, Debug)]
pub(crate) struct NodePat {
    /// Names of the operators.
    pub(crate) names: Vec<String>,
    /// Every row of those names.
    pub(crate) ops: Vec<OpId>,
    pub(crate) swap: bool,
    pub(crate) label: Option<usize>,
    pub(crate) attrs: Vec<(String, AttrPat)>,
    pub(crate) kids: Vec<Pat>,
    pub(crate) rest: bool,
    pub(crate) n_outs: u16,
}

#[derive(Clone, Debug)]
pub(crate) enum AttrPat {
    Is(Attr),
    Var(usize),
}

/// Why a pattern does not compile: it is malformed, or names an operator without rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// No row has this name.
    NoOp(String),
    /// What is wrong with the text.
    Syntax(String),
}

/// Values of the variables at one place where a pattern matches.
#[derive(Clone, Debug)]
pub struct Match {
    /// The class matched.
    pub root: Id,
    /// The node of it at the root of the pattern.
    pub root_node: Option<ENode>,
    vars: SmallVec<[Option<Id>; 8]>,
    labels: SmallVec<[Option<ENode>; 2]>,
    attrs: SmallVec<[Option<Attr>; 2]>,
    /// A constant that differs from the one in the pattern: the match is a near miss, not a match.
    pub(crate) off: Option<String>,
    names: Arc<Names>,
}

impl Match {
    /// The class of `?name`. Panics on a name that the pattern does not have or did not reach.
    pub fn v(&self, name: &str) -> Id {
        self.get(name).unwrap_or_else(|| panic!("the pattern has no variable ?{name}"))
    }
    /// The class of `?name`, if the alternative that matched has it.
    pub fn get(&self, name: &str) -> Option<Id> {
        self.vars[self.names.vars.iter().position(|n| n == name)?]
    }
    /// The node labelled `@name`. Panics on a label that the pattern does not have or did not reach.
    pub fn node(&self, name: &str) -> &ENode {
        self.find_node(name).unwrap_or_else(|| panic!("the pattern has no label @{name}"))
    }
    /// The node labelled `@name`, if the alternative that matched has it.
    pub fn find_node(&self, name: &str) -> Option<&ENode> {
        self.labels[self.names.labels.iter().position(|n| n == name)?].as_ref()
    }
    pub(crate) fn attr(&self, i: usize) -> Option<&Attr> {
        self.attrs[i].as_ref()
    }
    pub(crate) fn var(&self, i: usize) -> Option<Id> {
        self.vars[i]
    }
}

impl Pattern {
    /// Compiles `text` against the rows of `registry`.
    ///
    /// # Errors
    /// [`PatternError`] when an operator has no row or the text is malformed.
    pub fn new(registry: &Registry, text: &'static str) -> Result<Pattern, PatternError> {
        Pattern::with_names(registry, text, Names::default())
    }
    /// A result pattern: variables are numbered as in the pattern that matched.
    pub(crate) fn result(registry: &Registry, text: &'static str, of: &Pattern) -> Result<Pattern, PatternError> {
        Pattern::with_names(registry, text, (*of.names).clone())
    }
    fn with_names(registry: &Registry, text: &'static str, names: Names) -> Result<Pattern, PatternError> {
        let mut p = Parser { rest: text, names, registry, missing: None };
        let root = p.pat()?;
        p.space();
        if !p.rest.is_empty() {
            return Err(p.bad("text after the end"));
        }
        if let Some(op) = p.missing {
            return Err(PatternError::NoOp(op));
        }
        Ok(Pattern { text, root, names: Arc::new(p.names) })
    }
    /// The kinds of node that can be at the root.
    pub fn root_kinds(&self) -> Vec<Kind> {
        fn go(p: &Pat, out: &mut Vec<Kind>) {
            match p {
                Pat::Node(n) => out.extend(n.ops.iter().map(|&o| Kind::Op(o))),
                Pat::Any(ps) => ps.iter().for_each(|p| go(p, out)),
                Pat::Result(..) => out.push(Kind::Proj),
                _ => {}
            }
        }
        let mut out = Vec::new();
        go(&self.root, &mut out);
        out
    }
    /// Every match in the class, at most `limit`. With `near`, also places where one constant differs.
    pub fn matches(&self, eg: &Graph, class: Id, near: bool, limit: usize) -> Vec<Match> {
        let mut s = Search { eg, near, limit, out: Vec::new() };
        let m = Match {
            root: class,
            root_node: None,
            vars: smallvec![None; self.names.vars.len()],
            labels: smallvec![None; self.names.labels.len()],
            attrs: smallvec![None; self.names.attrs.len()],
            off: None,
            names: self.names.clone(),
        };
        s.go(Some(&Goal { pat: &self.root, class, next: None }), m, true);
        s.out
    }
}

struct Goal<'a> {
    pat: &'a Pat,
    class: Id,
    next: Option<&'a Goal<'a>>,
}

struct Search<'e> {
    eg: &'e Graph,
    near: bool,
    limit: usize,
    out: Vec<Match>,
}

/// Stands for the elementwise operators with one operand.
const UNARY: &str = "unary";

/// Whether a constant `have` of type `dtype` is the number `want` of a pattern. A number that every float type holds is that number
/// alone. Others are rounded: in f32 also to the decimals that exporters write (1.4142135), else as the type rounds.
fn is_number(dtype: DType, have: f64, want: f64) -> bool {
    const HALF_DIGITS: u64 = (1 << (52 - 10)) - 1;
    let off = (have - want).abs();
    match dtype {
        _ if want.to_bits() & HALF_DIGITS == 0 => off == 0.0,
        DType::F64 => off <= 4.0 * f64::EPSILON * want.abs(),
        DType::F32 => off <= 1e-6 * want.abs(),
        d if d.is_float() => Tensor::from_f64_as(d, &[], &[want]).to_f64_vec() == [have],
        _ => off == 0.0,
    }
}

impl Search<'_> {
    fn go(&mut self, goal: Option<&Goal<'_>>, mut m: Match, root: bool) {
        if self.out.len() >= self.limit {
            return;
        }
        let Some(g) = goal else {
            self.out.push(m);
            return;
        };
        let class = self.eg.find(g.class);
        match g.pat {
            Pat::Var(i) => match m.vars[*i] {
                Some(c) if self.eg.find(c) != class => {}
                _ => {
                    m.vars[*i] = Some(class);
                    self.go(g.next, m, false);
                }
            },
            Pat::Absent => {
                if is_absent(self.eg, class) {
                    self.go(g.next, m, false);
                }
            }
            Pat::Scalar(want) => {
                let data = &self.eg[class].data;
                let Some(c) = data.konst else { return };
                let (lo, hi) = data.range;
                if lo != hi {
                    return;
                }
                if is_number(self.eg.analysis.consts[c].dtype, lo, *want) {
                    self.go(g.next, m, false);
                } else if self.near && m.off.is_none() {
                    m.off = Some(format!("a constant is {lo}, not {want}"));
                    self.go(g.next, m, false);
                }
            }
            Pat::Any(ps) => {
                for p in ps {
                    self.go(Some(&Goal { pat: p, class, next: g.next }), m.clone(), root);
                }
            }
            Pat::Result(i, p) => {
                let of = self.eg[class].nodes.iter().filter(|n| n.head == Head::Proj(*i)).map(|n| n.kids[0]);
                of.for_each(|class| self.node(p, self.eg.find(class), g.next, m.clone(), root));
            }
            Pat::Node(p) => self.node(p, class, g.next, m, root),
        }
    }
    fn node(&mut self, p: &NodePat, class: Id, next: Option<&Goal<'_>>, m: Match, root: bool) {
        let eg = self.eg;
        for n in &eg[class].nodes {
            let Head::Op { op, attrs, unique: 0, n_outs } = n.head else { continue };
            if !p.ops.contains(&op) || n_outs != p.n_outs {
                continue;
            }
            // One look ahead spares most copies of the match.
            let in_order = (0..p.kids.len()).all(|i| n.kids.get(i).is_none_or(|&k| self.may(&p.kids[i], k)));
            let swapped = p.swap
                && n.kids.len() == 2
                && p.kids.len() == 2
                && eg.find(n.kids[0]) != eg.find(n.kids[1])
                && self.may(&p.kids[0], n.kids[1])
                && self.may(&p.kids[1], n.kids[0]);
            if !(in_order || swapped) || (!p.rest && n.kids.len() > p.kids.len()) {
                continue;
            }
            let mut m = m.clone();
            let def = &eg.analysis.registry[op];
            let list = &eg.analysis.attrs[attrs];
            let fits = p.attrs.iter().all(|(name, want)| {
                let Some(slot) = def.slot(name) else { return false };
                match want {
                    AttrPat::Is(a) => attr_is(list.get(slot), a),
                    AttrPat::Var(i) => match &m.attrs[*i] {
                        Some(a) => a == list.get(slot),
                        None => {
                            m.attrs[*i] = Some(list.get(slot).clone());
                            true
                        }
                    },
                }
            });
            if !fits {
                continue;
            }
            if let Some(l) = p.label {
                match &m.labels[l] {
                    Some(x) if x != n => continue,
                    _ => m.labels[l] = Some(n.clone()),
                }
            }
            if root {
                m.root_node = Some(n.clone());
            }
            if swapped {
                self.kids(&p.kids, &[n.kids[1], n.kids[0]], next, m.clone());
            }
            if in_order {
                self.kids(&p.kids, &n.kids, next, m);
            }
        }
    }
    /// Whether `pat` can match in a class, by a look at its nodes.
    fn may(&self, pat: &Pat, class: Id) -> bool {
        match pat {
            Pat::Var(_) => true,
            Pat::Scalar(_) => self.eg[class].data.konst.is_some(),
            Pat::Absent => is_absent(self.eg, class),
            Pat::Any(ps) => ps.iter().any(|p| self.may(p, class)),
            Pat::Node(p) => self.eg[class].nodes.iter().any(|n| n.op().is_some_and(|o| p.ops.contains(&o))),
            Pat::Result(i, _) => self.eg[class].nodes.iter().any(|n| n.head == Head::Proj(*i)),
        }
    }
    fn kids(&mut self, pats: &[Pat], kids: &[Id], next: Option<&Goal<'_>>, m: Match) {
        match (pats.split_last(), kids) {
            (None, _) => self.go(next, m, false),
            (Some((p, before)), kids) => match kids.get(before.len()) {
                Some(&k) => {
                    let goal = Goal { pat: p, class: k, next };
                    self.kids(before, &kids[..before.len()], Some(&goal), m);
                }
                // An operand that the node does not have.
                None => {
                    if let Some(a) = self.eg.analysis.absent_class() {
                        let goal = Goal { pat: p, class: a, next };
                        self.kids(before, kids, Some(&goal), m);
                    }
                }
            },
        }
    }
}

/// Whether an attribute has the value in a pattern; floats are compared as constants are.
fn attr_is(have: &Attr, want: &Attr) -> bool {
    match (have, want) {
        (Attr::Float(a), Attr::Float(b)) => is_number(DType::F32, a.get().into(), b.get().into()),
        (Attr::Absent, Attr::Str(s)) => s.is_empty(),
        _ => have == want,
    }
}

struct Parser<'r> {
    rest: &'static str,
    names: Names,
    registry: &'r Registry,
    /// An operator without rows.
    missing: Option<String>,
}

fn number_of(list: &mut Vec<String>, name: &str) -> usize {
    list.iter().position(|n| n == name).unwrap_or_else(|| {
        list.push(name.into());
        list.len() - 1
    })
}

impl Parser<'_> {
    fn bad(&self, what: &str) -> PatternError {
        PatternError::Syntax(format!("{what} at {:?}", self.rest))
    }
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }
    fn eat(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(r) => {
                self.rest = r;
                true
            }
            None => false,
        }
    }
    fn word(&mut self, stop: &str) -> &'static str {
        let end = self.rest.find(|c: char| c.is_whitespace() || stop.contains(c)).unwrap_or(self.rest.len());
        let (w, r) = self.rest.split_at(end);
        self.rest = r;
        w
    }
    fn pat(&mut self) -> Result<Pat, PatternError> {
        self.space();
        if self.eat('?') {
            let name = self.word("()<>");
            return Ok(Pat::Var(number_of(&mut self.names.vars, name)));
        }
        if self.eat('<') {
            let mut ps = Vec::new();
            // Alternatives over operators without rows are dropped.
            let (outer, mut last) = (self.missing.take(), None);
            loop {
                self.space();
                if self.eat('>') {
                    self.missing = outer.or(if ps.is_empty() { last } else { None });
                    return Ok(Pat::Any(ps));
                }
                let p = self.pat()?;
                match self.missing.take() {
                    None => ps.push(p),
                    missing => last = missing,
                }
            }
        }
        if self.eat('(') {
            return Ok(Pat::Node(Box::new(self.node()?)));
        }
        let word = self.word("()<>");
        if let Some((i, n)) = word.split_once('/')
            && let (Ok(i), Ok(n_outs)) = (i.parse(), n.parse())
            && self.eat('(')
        {
            return Ok(Pat::Result(i, Box::new(NodePat { n_outs, ..self.node()? })));
        }
        match word {
            "_" => Ok(Pat::Absent),
            w => w.parse().map(Pat::Scalar).map_err(|_| self.bad(&format!("{w:?} is no number"))),
        }
    }
    fn node(&mut self) -> Result<NodePat, PatternError> {
        let head = self.word("()<>{@~");
        let is = |d: &OpDef, name: &str| match name.split_once(':') {
            _ if name == UNARY => d.is_unary(),
            Some((domain, name)) => d.domain == domain && d.name == name,
            None => d.domain.is_empty() && d.name == name,
        };
        let (mut names, mut ops) = (Vec::new(), Vec::new());
        for (id, d) in self.registry.rows().filter(|(_, d)| head.split('|').any(|n| is(d, n))) {
            ops.push(id);
            let name = d.full_name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if ops.is_empty() {
            self.missing.get_or_insert_with(|| head.into());
        }
        let mut p = NodePat {
            names,
            ops,
            swap: self.eat('~'),
            label: None,
            attrs: vec![],
            kids: vec![],
            rest: false,
            n_outs: 1,
        };
        while self.rest.starts_with(['@', '{']) {
            if self.eat('@') {
                let name = self.word("()<>{");
                p.label = Some(number_of(&mut self.names.labels, name));
                continue;
            }
            self.eat('{');
            loop {
                self.space();
                if self.eat('}') {
                    break;
                }
                let key = self.word("=}");
                if !self.eat('=') {
                    return Err(self.bad("an attribute needs a value"));
                }
                let value = self.word("}");
                p.attrs.push((key.into(), self.attr(value)));
            }
        }
        loop {
            self.space();
            if self.eat(')') {
                return Ok(p);
            }
            if let Some(r) = self.rest.strip_prefix("..") {
                self.rest = r;
                p.rest = true;
                continue;
            }
            if self.rest.is_empty() {
                return Err(self.bad("missing )"));
            }
            p.kids.push(self.pat()?);
        }
    }
    fn attr(&mut self, v: &str) -> AttrPat {
        if let Some(name) = v.strip_prefix('?') {
            return AttrPat::Var(number_of(&mut self.names.attrs, name));
        }
        let ints: Option<Vec<i64>> = v.split(',').map(|x| x.parse().ok()).collect();
        AttrPat::Is(match (ints, v.parse::<f32>()) {
            (Some(i), _) if i.len() == 1 && !v.contains(',') => Attr::Int(i[0]),
            (Some(i), _) => Attr::Ints(i.into()),
            (None, Ok(x)) => Attr::Float(F32::new(x)),
            _ => Attr::Str(v.into()),
        })
    }
}
