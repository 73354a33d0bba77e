//! Breaks compiled models on purpose, so that the checks that should notice can be checked themselves. A test aid: nothing but tools
//! and tests uses it.
//!
//! [`hooks`] breaks at the plugin slots, after all rewriting and fusion: what the broken artifact computes is wrong, but it reads and
//! writes only memory of its own. [`weight`] and [`expected`] break the files around an artifact.

use artifact::{Metadata, Source};
use ir::hip::{Call, Hip, HipOp, Space};
use ir::nest::{BinOp, Expr, ExprId, Nest, Phase, Term, UnOp};
use ir::{Graph, Module, Node, RegionId, Value};
use kernels::catalog::{Access, CATALOG};
use lower::host::{HostProgram, IntOp, Reg, Stmt};
use lower::pass::{Hooks, Slot, Unit};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tensor::{DType, Diagnostic, Entity, ErrorKind, Result, Tensor};

/// A way to break a compiled model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A fused activation, bias or residual is left out.
    Epilogue,
    /// Operands of one operation that is not commutative change places.
    Operands,
    /// A value of a pool is read elsewhere than where it was written.
    Pool,
    /// One weight tensor is off by 1 %.
    Weight,
    /// The expected outputs are changed.
    Expected,
}

/// Which of the places where a kind can break something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The kind.
    pub kind: Kind,
    /// The place, from 0; beyond the last one nothing is broken.
    pub nth: usize,
}

impl Choice {
    /// From `KIND` (the first place) or `KIND:N`.
    ///
    /// # Errors
    /// `Argument` with the kinds.
    pub fn parse(text: &str) -> Result<Choice> {
        let (name, nth) = text.split_once(':').unwrap_or((text, "0"));
        let kind = match name {
            "epilogue" => Some(Kind::Epilogue),
            "operands" => Some(Kind::Operands),
            "pool" => Some(Kind::Pool),
            "weight" => Some(Kind::Weight),
            "expected" => Some(Kind::Expected),
            _ => None,
        };
        kind.zip(nth.parse().ok()).map(|(kind, nth)| Choice { kind, nth }).ok_or_else(|| {
            Diagnostic::new(ErrorKind::Argument, format!("{text:?} is no way to break a model"))
                .help("the ways are epilogue, operands, pool, weight and expected, with :N for the N-th place")
        })
    }
}

/// What was found and broken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Places where the kind could break something.
    pub places: usize,
    /// What was broken, with the node; empty when nothing was.
    pub what: String,
}

/// Hooks that break what is compiled with them, and where they tell what they did. [`Kind::Weight`] and [`Kind::Expected`] break
/// nothing here.
pub fn hooks(choice: Choice) -> (Hooks, Arc<Mutex<Found>>) {
    let found = Arc::new(Mutex::new(Found::default()));
    let mut hooks = Hooks::new();
    let tell = |f: &Arc<Mutex<Found>>, x: Found| f.lock().map(|mut f| *f = x).unwrap_or_default();
    let told = found.clone();
    match choice.kind {
        Kind::Epilogue | Kind::Operands => hooks.add(Slot::BeforePlan, move |u: &mut Unit| {
            if let Some(m) = &mut u.hip {
                tell(&told, break_code(m, choice));
            }
            Ok(())
        }),
        Kind::Pool => hooks.add(Slot::BeforeCodegen, move |u: &mut Unit| {
            if let Some(p) = &mut u.program {
                tell(&told, break_program(p, choice.nth));
            }
            Ok(())
        }),
        Kind::Weight | Kind::Expected => {}
    }
    (hooks, found)
}

/// A change of one node.
enum Edit {
    /// Integer argument `i` of a call becomes 0.
    Zero(usize),
    /// Operand `i` becomes absent.
    Absent(usize),
    /// Two operands change places.
    Swap(usize, usize),
    /// An expression of a nest gives way to another one.
    Replace(ExprId, Expr),
}

fn break_code(m: &mut Module<Hip>, choice: Choice) -> Found {
    let mut places: Vec<(RegionId, Node, Edit, String)> = vec![];
    for r in m.graphs.keys() {
        let g = &m.graphs[r];
        for &n in &g.order {
            let edits = match (&g.nodes[n].op, choice.kind) {
                (HipOp::Call(c), Kind::Epilogue) => call_epilogues(m, g, n, c),
                (HipOp::Launch(nest), Kind::Epilogue) => {
                    let zero = |i: u16| {
                        g.nodes[n].ins.get(usize::from(i)).copied().flatten().is_some_and(|v| is_zero(m, g, v))
                    };
                    nest_epilogues(nest, &zero)
                }
                (HipOp::Call(c), _) => call_swaps(g, n, c),
                (HipOp::Launch(nest), _) => nest_swaps(nest),
                _ => vec![],
            };
            places.extend(edits.into_iter().map(|(e, what)| (r, n, e, what)));
        }
    }
    let n_places = places.len();
    let Some((r, n, edit, what)) = places.into_iter().nth(choice.nth) else {
        return Found { places: n_places, what: String::new() };
    };
    let zero = m.dims.constant(0);
    let node = &mut m.graphs[r].nodes[n];
    match (edit, &mut node.op) {
        (Edit::Zero(i), HipOp::Call(c)) => {
            if let Some(x) = Arc::make_mut(c).ints.get_mut(i) {
                *x = zero;
            }
        }
        (Edit::Replace(e, by), HipOp::Launch(nest)) => {
            if let Some(x) = Arc::make_mut(nest).exprs.get_mut(e.index()) {
                *x = by;
            }
        }
        (Edit::Absent(i), _) => {
            if let Some(x) = node.ins.get_mut(i) {
                *x = None;
            }
        }
        (Edit::Swap(i, j), _) => node.ins.swap(i, j),
        _ => {}
    }
    Found { places: n_places, what: format!("{what} of {}", node.origin) }
}

fn call_epilogues(m: &Module<Hip>, g: &Graph<Hip>, n: Node, c: &Call) -> Vec<(Edit, String)> {
    let mut out = vec![];
    let Some(def) = CATALOG.iter().find(|k| k.name == c.kernel) else { return out };
    if let Some(i) = def.ints.iter().position(|x| *x == "activation")
        && c.ints.get(i).is_some_and(|&d| m.dims.as_const(d) != Some(kernels::catalog::activation::NONE))
    {
        out.push((Edit::Zero(i), format!("the activation of {}", c.kernel)));
    }
    for (i, b) in def.buffers.iter().enumerate() {
        let given = g.nodes[n].ins.get(i).copied().flatten();
        if b.optional && ["bias", "residual", "mask"].contains(&b.name) && given.is_some_and(|v| !is_zero(m, g, v)) {
            out.push((Edit::Absent(i), format!("the {} of {}", b.name, c.kernel)));
        }
    }
    out
}

/// Whether a value is a constant of zeros: a bias that is none.
fn is_zero(m: &Module<Hip>, g: &Graph<Hip>, v: Value) -> bool {
    let mut v = v;
    while let Some(HipOp::View { .. }) = g.def_node(v).map(|n| &n.op) {
        match g.def_node(v).and_then(|n| n.ins.first().copied().flatten()) {
            Some(from) => v = from,
            None => break,
        }
    }
    // A sign is not a value.
    let zeros = |t: Tensor| t.to_f64_vec().iter().all(|x| *x == 0.0);
    g.as_const(v).is_some_and(|c| m.consts[c].dtype.is_float() && m.consts[c].read().is_ok_and(zeros))
}

fn call_swaps(g: &Graph<Hip>, n: Node, c: &Call) -> Vec<(Edit, String)> {
    let ins = &g.nodes[n].ins;
    let mut out = vec![];
    for i in 0..(c.n_reads as usize).min(ins.len()) {
        for j in 0..i {
            if let (Some(Some(a)), Some(Some(b))) = (ins.get(i), ins.get(j))
                && a != b
                && g.values[*a].ty == g.values[*b].ty
            {
                out.push((Edit::Swap(j, i), format!("operands {j} and {i} of {}", c.kernel)));
            }
        }
    }
    out
}

/// Whether values of the nest decide what is read: then a wrong one could read outside a buffer.
fn indexes_by_value(nest: &Nest) -> bool {
    let computed = |a: &ir::nest::Access| a.coords.iter().flat_map(|c| &c.terms).any(|t| matches!(t.0, Term::Expr(_)));
    let stores = nest.phases.iter().flat_map(|p| match p {
        Phase::Store { stores, .. } => stores.iter().map(|s| &s.0).collect::<Vec<_>>(),
        Phase::Reduce(_) => vec![],
    });
    stores.into_iter().any(computed)
        || nest.exprs.iter().any(|e| match e {
            Expr::Load(a) => computed(a),
            Expr::LoadIf { access, .. } => computed(access),
            _ => false,
        })
}

/// Expressions that a store or a reduction needs, those nearest to it first.
fn needed(nest: &Nest) -> Vec<ExprId> {
    let mut todo: Vec<ExprId> = vec![];
    for p in &nest.phases {
        match p {
            Phase::Reduce(rs) => todo.extend(rs.iter().map(|r| r.value)),
            Phase::Store { stores, .. } => todo.extend(stores.iter().map(|s| s.1)),
        }
    }
    let mut seen = vec![false; nest.exprs.len()];
    let mut out = vec![];
    while let Some(e) = todo.pop() {
        if std::mem::replace(&mut seen[e.index()], true) {
            continue;
        }
        out.push(e);
        match nest.get(e) {
            Expr::Unary(_, a) | Expr::Cast(a, _) | Expr::Round(a, _) => todo.push(*a),
            Expr::Binary(_, a, b) => todo.extend([*a, *b]),
            Expr::Select(c, a, b) => todo.extend([*c, *a, *b]),
            Expr::LoadIf { other, .. } => todo.push(*other),
            _ => {}
        }
    }
    out.sort();
    out.reverse();
    out
}

/// Whether an element of an operand is in the expression.
fn loads(nest: &Nest, e: ExprId) -> bool {
    match nest.get(e) {
        Expr::Load(_) | Expr::LoadIf { .. } => true,
        Expr::Unary(_, a) | Expr::Cast(a, _) | Expr::Round(a, _) => loads(nest, *a),
        Expr::Binary(_, a, b) => loads(nest, *a) || loads(nest, *b),
        Expr::Select(_, a, b) => loads(nest, *a) || loads(nest, *b),
        _ => false,
    }
}

/// The operand of which the expression is an element as it lies in memory, but for its type: a bias or a residual when it is added.
fn element(nest: &Nest, e: ExprId) -> Option<u16> {
    match nest.get(e) {
        Expr::Load(a) | Expr::LoadIf { access: a, .. } => Some(a.operand),
        Expr::Cast(a, _) | Expr::Round(a, _) => element(nest, *a),
        _ => None,
    }
}

fn rounds(op: UnOp) -> bool {
    matches!(op, UnOp::Trunc | UnOp::Floor | UnOp::Ceil | UnOp::RoundEven)
}

fn nest_epilogues(nest: &Nest, is_zero: &dyn Fn(u16) -> bool) -> Vec<(Edit, String)> {
    if indexes_by_value(nest) {
        return vec![];
    }
    // The smaller of a value and itself is that value, of every type.
    let only = |x: ExprId| Expr::Binary(BinOp::Min, x, x);
    let is_number = |e: ExprId| matches!(nest.get(e), Expr::Float(..));
    let mut out = vec![];
    for e in needed(nest).into_iter().filter(|e| nest.expr_dtype(*e).is_float()) {
        match *nest.get(e) {
            // What rounds makes coordinates of an image and steps of a quantized value: no activation.
            Expr::Unary(op, x) if nest.expr_dtype(x) == nest.expr_dtype(e) && !rounds(op) => {
                out.push((Edit::Replace(e, only(x)), format!("{op:?}")));
            }
            Expr::Binary(BinOp::Add, a, b) if element(nest, b).is_some_and(|i| !is_zero(i)) && !is_number(a) => {
                out.push((Edit::Replace(e, only(a)), "the second term of a sum".to_string()));
            }
            Expr::Binary(BinOp::Max, a, b) if is_number(a) != is_number(b) => {
                let x = if is_number(a) { b } else { a };
                out.push((Edit::Replace(e, only(x)), "a lower bound".to_string()));
            }
            _ => {}
        }
    }
    out
}

fn nest_swaps(nest: &Nest) -> Vec<(Edit, String)> {
    use BinOp::{Div, Ge, Gt, Le, Lt, Mod, Pow, Rem, Sub};
    let by_value = indexes_by_value(nest) || nest.exprs.iter().any(|e| matches!(e, Expr::LoadIf { .. }));
    let mut out = vec![];
    for e in needed(nest) {
        match *nest.get(e) {
            Expr::Binary(op @ (Sub | Div | Pow | Mod | Rem | Lt | Le | Gt | Ge), a, b)
                if (nest.expr_dtype(a).is_float() || !by_value) && a != b && (loads(nest, a) || loads(nest, b)) =>
            {
                out.push((Edit::Replace(e, Expr::Binary(op, b, a)), format!("the operands of {op:?}")));
            }
            Expr::Select(c, a, b) if nest.expr_dtype(e).is_float() && a != b => {
                out.push((Edit::Replace(e, Expr::Select(c, b, a)), "the choices of a select".to_string()));
            }
            _ => {}
        }
    }
    out
}

/// How far from its place a value of a pool is read, in bytes: the least step of a plan.
const SHIFT: i64 = lower::plan::ALIGN;

/// Has one kernel read one value of a pool [`SHIFT`] bytes behind the place where it was written. Pools grow by as much, so the read stays
/// inside.
fn break_program(p: &mut HostProgram, nth: usize) -> Found {
    let on_device = |d: u32| p.domains.get(d as usize).is_some_and(|d| d.space == Space::Device);
    let mut in_pool: BTreeSet<Reg> = BTreeSet::new();
    let mut places: Vec<(usize, usize, usize)> = vec![];
    for (f, func) in p.funcs.iter().enumerate() {
        for (i, s) in func.body.iter().enumerate() {
            let reads: Vec<bool> = match s {
                Stmt::Reserve { base, domain, .. } if on_device(*domain) => {
                    in_pool.insert(*base);
                    continue;
                }
                Stmt::Int(r, IntOp::Add, a, b) if in_pool.contains(a) || in_pool.contains(b) => {
                    in_pool.insert(*r);
                    continue;
                }
                Stmt::Launch { kernel, .. } => match p.kernels.get(*kernel as usize) {
                    Some(k) if !indexes_by_value(&k.nest) => k.nest.operands.iter().map(|o| !o.written).collect(),
                    _ => continue,
                },
                Stmt::Kernel { id, .. } => match CATALOG.get(*id as usize) {
                    Some(k) => k.buffers.iter().map(|b| b.access == Access::Read && b.dtype.is_float()).collect(),
                    None => continue,
                },
                _ => continue,
            };
            let (Stmt::Launch { buffers, .. } | Stmt::Kernel { buffers, .. }) = s else { continue };
            let read = reads.iter().zip(buffers).enumerate().filter(|(_, (read, b))| **read && in_pool.contains(b));
            places.extend(read.map(|(j, _)| (f, i, j)));
        }
    }
    let Some(&(f, i, j)) = places.get(nth) else { return Found { places: places.len(), what: String::new() } };
    let mut fresh = || {
        p.n_regs += 1;
        Reg::new(p.n_regs as usize - 1)
    };
    let mut shifted = |by: Reg| (fresh(), fresh(), by);
    let mut node = 0;
    for (g, func) in p.funcs.iter_mut().enumerate() {
        let body = std::mem::take(&mut func.body);
        for (k, mut s) in body.into_iter().enumerate() {
            let more = match &mut s {
                Stmt::Reserve { bytes, .. } => Some(bytes),
                Stmt::Launch { buffers, node: at, .. } | Stmt::Kernel { buffers, node: at, .. } if (g, k) == (f, i) => {
                    node = *at;
                    buffers.get_mut(j)
                }
                _ => None,
            };
            if let Some(more) = more {
                let (shift, sum, old) = shifted(*more);
                func.body.extend([Stmt::Const(shift, SHIFT), Stmt::Int(sum, IntOp::Add, old, shift)]);
                *more = sum;
            }
            func.body.push(s);
        }
    }
    let of = p.debug.get(node as usize).map_or(String::new(), |d| format!("{} of {}", d.what, d.path));
    Found { places: places.len(), what: format!("operand {j} of {of} is read {SHIFT} bytes off") }
}

/// Puts one weight off by 1 %: the `nth` largest tensor of floats in a constants file, `bytes`. A single number is a parameter and no
/// weight; one of zeros and infinities alone stays what it is.
pub fn weight(metadata: &Metadata, bytes: &mut [u8], nth: usize) -> Found {
    let mut all: Vec<(&artifact::Constant, DType, std::ops::Range<usize>)> = vec![];
    for c in &metadata.constants {
        let (Some(Source::Offset(at)), Ok(dtype)) = (&c.source, c.dtype()) else { continue };
        let (at, n) = (usize::try_from(*at).unwrap_or(0), usize::try_from(c.bytes).unwrap_or(0));
        let is_weight = matches!(dtype, DType::F32 | DType::F16 | DType::F64 | DType::BF16);
        let elements = n / dtype.size().unwrap_or(1).max(1);
        let changes = |b: &[u8]| {
            let t = Tensor::new(dtype, &[elements], b.to_vec().into());
            t.is_ok_and(|t| t.to_f64_vec().iter().any(|x| x.is_finite() && *x != 0.0))
        };
        if is_weight && elements > 1 && bytes.get(at..at + n).is_some_and(changes) {
            all.push((c, dtype, at..at + n));
        }
    }
    all.sort_by_key(|(c, ..)| std::cmp::Reverse(c.bytes));
    let places = all.len();
    let Some((c, dtype, range)) = all.into_iter().nth(nth) else { return Found { places, what: String::new() } };
    let broken = bytes.get_mut(range).and_then(|slice| {
        let n = slice.len() / dtype.size()?;
        let t = Tensor::new(dtype, &[n], slice.to_vec().into()).ok()?;
        let mut w = tensor::Writer::new(dtype, &[n]);
        t.to_f64_vec().iter().for_each(|x| w.push_f64(x * 1.01));
        slice.copy_from_slice(w.finish().bytes());
        Some(())
    });
    let what = broken.map_or(String::new(), |()| format!("weight {:?} of {} bytes is off by 1 %", c.name, c.bytes));
    Found { places, what }
}

/// An expected output that no right answer is close to.
pub fn expected(t: &Tensor) -> Tensor {
    if t.dtype() == DType::String {
        return Tensor::from_strings(t.shape(), t.strings().iter().map(|s| format!("{s}?")).collect());
    }
    if t.n_elems() == 0 {
        return Tensor::zeros(t.dtype(), &[1]).unwrap_or_else(|_| t.clone());
    }
    let mut bytes = t.bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        // Any byte but 0 is true.
        *last = if t.dtype() == DType::Bool { u8::from(*last == 0) } else { *last ^ 0x41 };
    }
    Tensor::new(t.dtype(), t.shape(), bytes.into()).unwrap_or_else(|_| t.clone())
}
