//! Tests of single rules: random shapes and values that meet the conditions, both sides evaluated, compared by class.
//!
//! A rule's cases say how to build its left-hand side. A case is a list of items:
//!
//! | item | meaning |
//! |---|---|
//! | `#1` | for left-hand side 1 alone (else for all of them) |
//! | `x:f32[a,3]` | variable `?x` is an input; letters are extents from 1 to 5, the same in the whole case |
//! | `w:f32[a]!c` | … is a constant of random values; `!pos` makes them positive |
//! | `s:i64[2]=a,-1` | … is a constant of these values (letters are extents) |
//! | `b:` | … is an absent operand |
//! | `p=1,0` | attribute variable |
//! | `@n.axis=-1` | attribute of the node labelled `n` (of the root, without label), where its row has it |
//! | `@n/1:i64[1]=0` | operand 1 of the node labelled `n`, for `..` in patterns |

use crate::facts::Facts;
use crate::pattern::{AttrPat, NodePat, Pat, Pattern};
use crate::region::{self, Job};
use crate::report::Report;
use crate::rule::{Compiled, Cx, NumClass, Rule};
use crate::{CostModel, Options};
use egg::Id;
use ir::attrs::{Attr, F32};
use ir::generate::Builder;
use ir::op::AttrKind;
use ir::{Module, Onnx, Registry, Value};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tensor::{DType, Tensor};

/// What a check did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Random inputs tried.
    pub tried: u32,
    /// Inputs on which the rule applied and both sides were compared.
    pub compared: u32,
}

/// Checks a rule on `iterations` random inputs per case and left-hand side. Deterministic.
///
/// # Errors
/// A sentence with the smallest input found on which the sides differ; or when a case is malformed or never applies.
pub fn check_rule(registry: &Arc<Registry>, rule: &Rule, iterations: u32) -> Result<Checked, String> {
    let compiled = Compiled::new(registry, rule).map_err(|e| format!("{}: {e:?}", rule.name))?;
    let mut out = Checked::default();
    for text in rule.cases {
        let case = Case::parse(text).map_err(|e| format!("{}: case {text:?}: {e}", rule.name))?;
        for i in 0..compiled.lhs.len() {
            // Positions count the left-hand sides as written.
            let written = rule.lhs.iter().position(|t| *t == compiled.lhs[i].0.text);
            if case.lhs.is_some() && case.lhs != written {
                continue;
            }
            let mut compared = 0;
            let config = Config { cases: iterations, failure_persistence: None, ..Config::default() };
            let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
            let input = (proptest::collection::vec(1usize..=5, 26), proptest::num::u64::ANY)
                .prop_map(|(dims, seed)| Draw { dims, seed });
            let compared_in = std::cell::Cell::new(0u32);
            let result = runner.run(&input, |draw| {
                match one(registry, &compiled, i, &case, &draw) {
                    Ok(true) => compared_in.set(compared_in.get() + 1),
                    Ok(false) => {}
                    Err(e) => return Err(TestCaseError::fail(e)),
                }
                Ok(())
            });
            compared += compared_in.get();
            out.tried += iterations;
            out.compared += compared;
            let place = || format!("{}: {} with case {text:?}", rule.name, compiled.lhs[i].0.text);
            result.map_err(|e| format!("{}: {e}", place()))?;
            if compared == 0 {
                return Err(format!("{}: never applies", place()));
            }
        }
    }
    Ok(out)
}

/// One random choice of everything.
#[derive(Clone)]
struct Draw {
    dims: Vec<usize>,
    seed: u64,
}

impl std::fmt::Debug for Draw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "extents a to z {:?}, seed {}", self.dims, self.seed)
    }
}

/// A small random generator (the seed is proptest's).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    /// About normal, with a zero now and then.
    fn real(&mut self) -> f64 {
        if self.below(16) == 0 {
            return if self.below(2) == 0 { 0.0 } else { -0.0 };
        }
        let u = |r: &mut Rng| (r.next() >> 11) as f64 / (1u64 << 53) as f64;
        (0..4).map(|_| u(self) - 0.5).sum::<f64>() * 2.5
    }
}

#[derive(Clone, Debug)]
struct Operand {
    dtype: DType,
    shape: Vec<String>,
    konst: bool,
    positive: bool,
    values: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default)]
struct Case {
    lhs: Option<usize>,
    vars: FxHashMap<String, Option<Operand>>,
    attrs: FxHashMap<String, String>,
    node_attrs: Vec<(String, String, String)>,
    node_kids: Vec<(String, usize, Operand)>,
}

impl Case {
    fn parse(text: &str) -> Result<Case, String> {
        let mut c = Case::default();
        for item in text.split_whitespace() {
            let bad = || format!("cannot read {item:?}");
            if let Some(i) = item.strip_prefix('#') {
                c.lhs = Some(i.parse().map_err(|_| bad())?);
            } else if let Some(rest) = item.strip_prefix('@') {
                let at = rest.find(['.', '/']).ok_or_else(bad)?;
                let (label, rest) = (rest[..at].to_string(), &rest[at..]);
                if let Some(attr) = rest.strip_prefix('.') {
                    let (k, v) = attr.split_once('=').ok_or_else(bad)?;
                    c.node_attrs.push((label, k.into(), v.into()));
                } else {
                    let (i, operand) = rest[1..].split_once(':').ok_or_else(bad)?;
                    c.node_kids.push((label, i.parse().map_err(|_| bad())?, Operand::parse(operand).ok_or_else(bad)?));
                }
            } else if let Some((name, operand)) = item.split_once(':') {
                let operand = if operand.is_empty() { None } else { Some(Operand::parse(operand).ok_or_else(bad)?) };
                c.vars.insert(name.into(), operand);
            } else {
                let (k, v) = item.split_once('=').ok_or_else(bad)?;
                c.attrs.insert(k.into(), v.into());
            }
        }
        Ok(c)
    }
}

impl Operand {
    fn parse(text: &str) -> Option<Operand> {
        let (dtype, rest) = text.split_once('[')?;
        let (shape, rest) = rest.split_once(']')?;
        let list = |s: &str| s.split(',').filter(|x| !x.is_empty()).map(String::from).collect::<Vec<_>>();
        let values = rest.split_once('=').map(|(_, v)| list(v));
        Some(Operand {
            dtype: DType::from_name(dtype)?,
            shape: list(shape),
            konst: values.is_some() || rest.contains("!c"),
            positive: rest.contains("!pos"),
            values,
        })
    }
}

fn extent(d: &str, draw: &Draw) -> Option<usize> {
    match d.parse() {
        Ok(n) => Some(n),
        Err(_) => {
            let c = d.bytes().next().filter(u8::is_ascii_lowercase)?;
            draw.dims.get(usize::from(c - b'a')).copied()
        }
    }
}

/// Builds the left-hand side of a case.
struct Lhs<'a> {
    b: Builder,
    case: &'a Case,
    draw: &'a Draw,
    rng: Rng,
    pattern: &'a Pattern,
    class: NumClass,
    symbolic: bool,
    vars: FxHashMap<usize, Option<Value>>,
    labels: FxHashMap<usize, Vec<Value>>,
    inputs: Vec<Tensor>,
    dtype: DType,
}

impl Lhs<'_> {
    fn operand(&mut self, o: &Operand, name: &str) -> Result<Value, String> {
        let shape: Option<Vec<usize>> = o.shape.iter().map(|d| extent(d, self.draw)).collect();
        let shape = shape.ok_or("an extent is no letter or number")?;
        let n: usize = shape.iter().product();
        let values: Vec<f64> = match &o.values {
            Some(v) => {
                let read = |x: &String| extent(x, self.draw).map(|e| e as f64).or_else(|| x.parse().ok());
                let v: Option<Vec<f64>> = v.iter().map(read).collect();
                v.filter(|v| v.len() == n).ok_or("values do not fit the shape")?
            }
            None if o.dtype == DType::Bool => (0..n).map(|_| self.rng.below(2) as f64).collect(),
            None if o.positive => (0..n).map(|_| 0.5 + self.rng.real().abs()).collect(),
            None => (0..n).map(|_| self.element(o.dtype)).collect(),
        };
        let t = Tensor::from_f64_as(o.dtype, &shape, &values);
        if o.konst {
            return Ok(self.b.tensor(&t));
        }
        self.inputs.push(t);
        let known: Vec<String> = shape.iter().map(|d| d.to_string()).collect();
        let dims: Vec<&str> = if self.symbolic {
            o.shape.iter().map(String::as_str).collect()
        } else {
            known.iter().map(String::as_str).collect()
        };
        Ok(self.b.input(name, o.dtype, &dims))
    }
    /// An element; for rules that promise every bit now and then one at the end of what the type holds.
    fn element(&mut self, dtype: DType) -> f64 {
        if dtype.is_int() && dtype.bits() <= 8 {
            // Each value is as likely.
            return self.rng.below(1 << dtype.bits()) as f64
                - if dtype.is_signed() { f64::from(1 << (dtype.bits() - 1)) } else { 0.0 };
        }
        if self.class != NumClass::Exact || self.rng.below(12) > 0 {
            return self.rng.real();
        }
        let i = self.rng.below(3);
        if dtype.is_float() { [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][i] } else { [f64::MIN, f64::MAX, 1.0][i] }
    }
    /// The value of a pattern; `None` is an absent operand.
    fn pat(&mut self, p: &Pat) -> Result<Option<Value>, String> {
        match p {
            Pat::Var(i) => {
                if let Some(v) = self.vars.get(i) {
                    return Ok(*v);
                }
                let name = self.pattern.names.vars[*i].clone();
                let operand = self.case.vars.get(&name).ok_or_else(|| format!("?{name} is not given"))?.clone();
                let v = operand.map(|o| self.operand(&o, &name)).transpose()?;
                if let Some(v) = v
                    && let Some(d) = self.b.module.graph().values[v].ty.dtype()
                    && self.vars.is_empty()
                {
                    self.dtype = d;
                }
                self.vars.insert(*i, v);
                Ok(v)
            }
            Pat::Scalar(v) => {
                let t = Tensor::from_f64_as(self.dtype, &[], &[*v]);
                Ok(Some(self.b.tensor(&t)))
            }
            Pat::Absent => Ok(None),
            Pat::Any(ps) => {
                let start = self.rng.below(ps.len());
                let fits =
                    |p: &Pat| vars_of(p).iter().all(|&i| self.case.vars.contains_key(&self.pattern.names.vars[i]));
                let i = (0..ps.len()).map(|k| (start + k) % ps.len()).find(|&i| fits(&ps[i]));
                self.pat(&ps[i.ok_or("no alternative has all its variables")?])
            }
            Pat::Node(n) => self.results(n).map(|v| v.first().copied()),
            Pat::Result(i, n) => self.results(n).map(|v| v.get(usize::from(*i)).copied()),
        }
    }
    /// The results of the node with this label, which is built once.
    fn results(&mut self, n: &NodePat) -> Result<Vec<Value>, String> {
        if let Some(v) = n.label.and_then(|l| self.labels.get(&l)) {
            return Ok(v.clone());
        }
        let v = self.node(n)?;
        if let Some(l) = n.label {
            self.labels.insert(l, v.clone());
        }
        Ok(v)
    }
    fn node(&mut self, n: &NodePat) -> Result<Vec<Value>, String> {
        let registry = self.b.module.registry.clone();
        let rows: Vec<_> = n
            .names
            .iter()
            .filter_map(|name| {
                let (domain, name) = name.split_once(':').unwrap_or(("", name));
                let newest =
                    n.ops.iter().copied().filter(|&o| registry[o].name == name && registry[o].domain == domain);
                newest.max_by_key(|&o| registry[o].since)
            })
            .collect();
        let op = rows[self.rng.below(rows.len())];
        let def = &registry[op];
        // Variables first, in order of appearance, so that constants know the dtype.
        let mut kids: Vec<Option<Value>> = vec![None; n.kids.len()];
        let (late, early): (Vec<usize>, Vec<usize>) =
            (0..n.kids.len()).partition(|&i| matches!(n.kids[i], Pat::Scalar(_)));
        for i in early.into_iter().chain(late) {
            kids[i] = self.pat(&n.kids[i])?;
        }
        if n.swap && kids.len() == 2 && self.rng.below(2) == 0 {
            kids.swap(0, 1);
        }
        let label = n.label.map_or("", |l| self.pattern.names.labels[l].as_str()).to_string();
        let case = self.case;
        for (l, i, o) in case.node_kids.iter().filter(|(l, _, _)| *l == label) {
            if *i < def.inputs.len() {
                kids.resize(kids.len().max(i + 1), None);
                kids[*i] = Some(self.operand(o, &format!("{l}{i}"))?);
            }
        }
        let mut slots = def.default_attrs();
        let mut set = |name: &str, text: &str| -> Result<(), String> {
            let Some(slot) = def.slot(name) else { return Ok(()) };
            let kind = def.attrs.iter().find(|a| a.name == name).map(|a| a.kind);
            slots[slot] = parse_attr(kind, text).ok_or_else(|| format!("{name}={text} is no attribute"))?;
            Ok(())
        };
        for (name, a) in &n.attrs {
            match a {
                AttrPat::Is(Attr::Int(v)) => set(name, &v.to_string())?,
                AttrPat::Is(Attr::Float(v)) => set(name, &v.get().to_string())?,
                AttrPat::Is(Attr::Str(v)) => set(name, v)?,
                AttrPat::Is(Attr::Ints(v)) => set(name, &v.iter().map(i64::to_string).collect::<Vec<_>>().join(","))?,
                AttrPat::Is(_) => return Err(format!("attribute {name} cannot be built")),
                AttrPat::Var(i) => {
                    let var = &self.pattern.names.attrs[*i];
                    set(name, self.case.attrs.get(var).ok_or_else(|| format!("attribute ?{var} is not given"))?)?;
                }
            }
        }
        for (l, k, v) in &self.case.node_attrs {
            if *l == label {
                set(k, v)?;
            }
        }
        while kids.last() == Some(&None) {
            kids.pop();
        }
        Ok(self.b.node_with(op, ir::attrs::Attrs::new(slots), &kids, n.n_outs.into()))
    }
}

fn parse_attr(kind: Option<AttrKind>, text: &str) -> Option<Attr> {
    Some(match kind? {
        AttrKind::Int(_) | AttrKind::IntOpt | AttrKind::IntReq => Attr::Int(text.parse().ok()?),
        AttrKind::Float(_) | AttrKind::FloatOpt => Attr::Float(F32::new(text.parse().ok()?)),
        AttrKind::Str(_) | AttrKind::StrOpt => Attr::Str(text.into()),
        AttrKind::Ints => Attr::Ints(text.split(',').map(|x| x.parse().ok()).collect::<Option<Vec<i64>>>()?.into()),
        _ => return None,
    })
}

fn vars_of(p: &Pat) -> Vec<usize> {
    match p {
        Pat::Var(i) => vec![*i],
        Pat::Scalar(_) | Pat::Absent => vec![],
        // One alternative is enough.
        Pat::Any(ps) => ps.iter().map(vars_of).min_by_key(Vec::len).unwrap_or_default(),
        Pat::Node(n) | Pat::Result(_, n) => n.kids.iter().flat_map(vars_of).collect(),
    }
}

/// Builds, rewrites and compares once; whether the rule applied.
fn one(registry: &Arc<Registry>, rule: &Compiled, lhs: usize, case: &Case, draw: &Draw) -> Result<bool, String> {
    let pattern = &rule.lhs[lhs].0;
    let mut rng = Rng(draw.seed);
    let symbolic = rng.below(2) == 0;
    let mut l = Lhs {
        b: Builder::new(registry.clone()),
        case,
        draw,
        rng,
        pattern,
        class: rule.rule.class,
        symbolic,
        vars: FxHashMap::default(),
        labels: FxHashMap::default(),
        inputs: Vec::new(),
        dtype: DType::F32,
    };
    let root = l.pat(&pattern.root)?.ok_or("the left-hand side is absent")?;
    l.b.output(root);
    let (mut left, inputs) = (l.b.module, l.inputs);
    // Shapes that the operators refuse (a broadcast that does not fit) are no inputs of the rule.
    let Ok(info) = ir::infer::infer(&mut left) else { return Ok(false) };
    let Ok(want) = evaluate(&left, &inputs) else { return Ok(false) };
    let main = left.main;
    let mut right = left.clone();
    let mut facts = Facts::new(
        registry.clone(),
        std::mem::take(&mut right.dims),
        std::mem::take(&mut right.attrs),
        std::mem::take(&mut right.consts),
    );
    facts.fold = false;
    let old = std::mem::take(&mut right.graphs[main]);
    let mut report = Report::default();
    let options = Options::default();
    let cost: CostModel = options.cost;
    let mut job = Job {
        rules: &[],
        cost: &cost,
        rounds: 1,
        nodes_factor: 1,
        cut_nodes: usize::MAX,
        deadline: None,
        pinned: &Default::default(),
        values: &|v| info.values(main, v).cloned(),
        report: &mut report,
    };
    let mut new = ir::Graph::default();
    let mut made: FxHashMap<Value, Value> = FxHashMap::default();
    for &v in &old.inputs {
        made.insert(v, new.add_input(old.values[v].ty.clone(), old.values[v].name.clone()));
    }
    let piece = 0..old.order.len();
    let mut s = region::load(facts, &old, &piece, &new, &made, &job);
    s.eg.rebuild();
    s.eg.analysis.fold = true;
    let class = s.eg.find(s.class[&root]);
    let mut result: Option<Id> = None;
    for m in pattern.matches(&s.eg, class, false, 64) {
        if let Ok(id) = rule.apply(&mut Cx { eg: &mut s.eg }, lhs, &m) {
            result = Some(id);
            break;
        }
    }
    let Some(result) = result else { return Ok(false) };
    s.eg.rebuild();
    let (a, b) = (s.eg[class].data.ty.clone(), s.eg[result].data.ty.clone());
    if !s.eg.analysis.compatible(&a, &b) || b.as_tensor().is_none() {
        let show = |t: &ir::Type| t.display(&s.eg.analysis.dims);
        return Err(format!("the sides have types {} and {}", show(&a), show(&b)));
    }
    s.roots = vec![(root, result)];
    let mut konsts = FxHashMap::default();
    let facts =
        region::finish(s, &old, Vec::new(), &mut new, &mut made, &mut konsts, &mut job).map_err(|e| e.to_string())?;
    right.dims = facts.dims;
    right.attrs = facts.attrs;
    right.consts = facts.consts;
    new.outputs.push(made[&root]);
    right.graphs[main] = new;
    let have = evaluate(&right, &inputs).map_err(|e| format!("right side: {e}"))?;
    same(rule.rule.class, &want, &have)?;
    Ok(true)
}

/// The one result, by the interpreter.
fn evaluate(m: &Module<Onnx>, inputs: &[Tensor]) -> Result<Tensor, String> {
    let mut out = ir::interp::run(m, inputs).map_err(|e| e.to_string())?;
    out.pop().ok_or_else(|| "no result".into())
}

fn same(class: NumClass, want: &Tensor, have: &Tensor) -> Result<(), String> {
    if want.dtype() != have.dtype() || want.shape() != have.shape() {
        return Err(format!("the sides are {want:?} and {have:?}"));
    }
    let (a, b) = (want.to_f64_vec(), have.to_f64_vec());
    let scale = a.iter().copied().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
    let rel = match (class, want.dtype()) {
        _ if !want.dtype().is_float() => 0.0,
        (NumClass::Exact, _) => 0.0,
        (NumClass::Reassoc, DType::F16 | DType::BF16) => 1e-2,
        (NumClass::Reassoc, _) => 2e-5,
        (NumClass::Approx, _) => 1e-2,
    };
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        let fine = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= rel * scale.max(1e-3);
        if !fine {
            return Err(format!("element {i} is {x} on the left and {y} on the right ({class})\n{want:?}\n{have:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rule, rules};

    #[test]
    fn every_rule_holds_on_random_inputs() {
        let registry = Registry::builtin();
        let mut errors = vec![];
        for rule in rules::all() {
            match check_rule(&registry, &rule, 24) {
                Ok(c) => assert!(c.compared > 0, "{} has no case", rule.name),
                Err(e) => errors.push(e),
            }
        }
        assert!(errors.is_empty(), "{} rules:\n{}", errors.len(), errors.join("\n\n"));
    }

    #[test]
    fn unsound_rules_are_caught() {
        let registry = Registry::builtin();
        let swapped = rule!("sub-commutes", Exact, law ["(Sub ?x ?y)"] => text "(Sub ?y ?x)"; "x:f32[a] y:f32[a]");
        let rounding = rule!("div-by-reciprocal", Exact, law ["(Div ?x ?y)"] => text "(Mul ?x (Reciprocal ?y))"; "x:f32[5,5] y:f32[5,5]");
        let shape = rule!("drop-broadcast", Exact, law ["(Add ?x ?y)"] => text "?x"; "x:f32[a] y:f32[b,a]");
        let never =
            rule!("never", Exact, law ["(Add ?x ?y)"] => text "?x", if "never", |_, _| false; "x:f32[a] y:f32[a]");
        let nan = rule!("equal-itself", Exact, law ["(Where (Equal ?x ?x) ?a ?b)"] => text "?a"; "x:f32[m] a:f32[m] b:f32[m]");
        let wraps = rule!("grows", Exact, law ["(Less ?x (Add ?x 1))"] => text "(Equal ?x ?x)"; "x:i32[m]");
        for (rule, what) in [
            (nan, "element"),
            (wraps, "element"),
            (swapped, "element"),
            (rounding, "element"),
            (shape, "types"),
            (never, "never applies"),
        ] {
            let e = check_rule(&registry, &rule, 64).unwrap_err();
            assert!(e.contains(what), "{e}");
        }
    }
}
