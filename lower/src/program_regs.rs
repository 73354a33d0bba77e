//! Registers of a host program under construction: integer arithmetic with every value computed once where it dominates.

use crate::host::{Func, FuncId, IntOp, Reg, Stmt};
use crate::plan::{OffsetExpr, OffsetId, OffsetPool};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use tensor::dims::{DimFolder, DimOp};
use tensor::{DimId, DimPool, Entity, SymId};

/// A map whose newest entries can be taken back: what an arm of a branch computes is not known after it.
#[derive(Debug)]
pub(crate) struct Scoped<K, V> {
    map: FxHashMap<K, V>,
    trail: Vec<(K, Option<V>)>,
}

impl<K, V> Default for Scoped<K, V> {
    fn default() -> Self {
        Scoped { map: FxHashMap::default(), trail: vec![] }
    }
}

impl<K: Copy + Eq + Hash, V: Copy> Scoped<K, V> {
    pub fn get(&self, k: &K) -> Option<V> {
        self.map.get(k).copied()
    }
    pub fn set(&mut self, k: K, v: V) {
        let old = self.map.insert(k, v);
        self.trail.push((k, old));
    }
    pub fn mark(&self) -> usize {
        self.trail.len()
    }
    pub fn reset(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some((k, Some(v))) => self.map.insert(k, v),
                Some((k, None)) => self.map.remove(&k),
                None => None,
            };
        }
    }
}

/// Most calls, and most statements, in one function.
const MAX_CALLS: usize = 48;
const MAX_STMTS: usize = 400;

/// A function being written: closed chunks and the open one.
struct Open {
    name: String,
    chunks: Vec<Vec<Stmt>>,
    body: Vec<Stmt>,
    n_calls: usize,
}

/// Marks of all maps; see [`Regs::mark`].
#[derive(Clone, Copy)]
pub(crate) struct Mark([usize; 5]);

/// Registers, functions and what is known about them.
#[derive(Default)]
pub(crate) struct Regs {
    /// Finished functions.
    pub funcs: Vec<Func>,
    /// Number of registers.
    pub n_regs: usize,
    /// Symbols with values.
    pub syms: Scoped<SymId, Reg>,
    open: Vec<Open>,
    value: FxHashMap<Reg, i64>,
    consts: Scoped<i64, Reg>,
    ints: Scoped<(IntOp, Reg, Reg), Reg>,
    dims: Scoped<DimId, Reg>,
    offsets: Scoped<OffsetId, Reg>,
    /// A symbol that had no value.
    missing: Option<SymId>,
}

impl Regs {
    /// A register.
    pub fn fresh(&mut self) -> Reg {
        self.n_regs += 1;
        Reg::new(self.n_regs - 1)
    }
    /// What is known now.
    pub fn mark(&self) -> Mark {
        Mark([self.syms.mark(), self.consts.mark(), self.ints.mark(), self.dims.mark(), self.offsets.mark()])
    }
    /// Forgets what became known since.
    pub fn reset(&mut self, m: Mark) {
        self.syms.reset(m.0[0]);
        self.consts.reset(m.0[1]);
        self.ints.reset(m.0[2]);
        self.dims.reset(m.0[3]);
        self.offsets.reset(m.0[4]);
    }

    /// Starts a function; statements go there until [`Regs::end`].
    pub fn begin(&mut self, name: impl Into<String>) {
        self.open.push(Open { name: name.into(), chunks: vec![], body: vec![], n_calls: 0 });
    }
    /// Ends the innermost function: one that calls the chunks when it was too long for one. It becomes function `at`, or a new one.
    pub fn end(&mut self, at: Option<FuncId>) -> FuncId {
        let Some(mut o) = self.open.pop() else { return FuncId::new(0) };
        let body = if o.chunks.is_empty() {
            o.body
        } else {
            o.chunks.push(std::mem::take(&mut o.body));
            let mut calls: Vec<Stmt> = vec![];
            for (i, body) in o.chunks.into_iter().enumerate() {
                self.funcs.push(Func { name: format!("{}_{}", o.name, i + 1), body });
                calls.push(Stmt::Call(FuncId::new(self.funcs.len() - 1)));
            }
            // Very long programs get a tree of such functions.
            let mut level = 0;
            while calls.len() > MAX_CALLS {
                let mut next = vec![];
                for (i, c) in calls.chunks(MAX_CALLS).enumerate() {
                    let name = format!("{}_part_{level}_{}", o.name, i + 1);
                    self.funcs.push(Func { name, body: c.to_vec() });
                    next.push(Stmt::Call(FuncId::new(self.funcs.len() - 1)));
                }
                calls = next;
                level += 1;
            }
            calls
        };
        let f = Func { name: o.name, body };
        match at.filter(|a| a.index() < self.funcs.len()) {
            Some(a) => {
                self.funcs[a.index()] = f;
                a
            }
            None => {
                self.funcs.push(f);
                FuncId::new(self.funcs.len() - 1)
            }
        }
    }
    /// Appends a statement.
    pub fn push(&mut self, s: Stmt) {
        let Some(o) = self.open.last_mut() else { return };
        let is_call = !matches!(s, Stmt::Const(..) | Stmt::Int(..));
        if (is_call && o.n_calls >= MAX_CALLS) || o.body.len() >= MAX_STMTS {
            o.chunks.push(std::mem::take(&mut o.body));
            o.n_calls = 0;
        }
        o.n_calls += usize::from(is_call);
        o.body.push(s);
    }

    /// A constant.
    pub fn int(&mut self, v: i64) -> Reg {
        if let Some(r) = self.consts.get(&v) {
            return r;
        }
        let r = self.fresh();
        self.push(Stmt::Const(r, v));
        self.consts.set(v, r);
        self.value.insert(r, v);
        r
    }
    /// The value of a register when it is a constant.
    pub fn as_const(&self, r: Reg) -> Option<i64> {
        self.value.get(&r).copied()
    }
    /// `a op b`, folded where possible.
    pub fn op(&mut self, op: IntOp, a: Reg, b: Reg) -> Reg {
        use IntOp::*;
        let (x, y) = (self.as_const(a), self.as_const(b));
        if let (Some(x), Some(y)) = (x, y)
            && let Some(v) = eval(op, x, y)
        {
            return self.int(v);
        }
        match (op, x, y) {
            (Add | Sub, _, Some(0)) | (Mul | FloorDiv | CeilDiv, _, Some(1)) => return a,
            (Add, Some(0), _) | (Mul, Some(1), _) => return b,
            (Mul, Some(0), _) | (Mul, _, Some(0)) => return self.int(0),
            (Min | Max, _, _) if a == b => return a,
            (Eq | Le, _, _) if a == b => return self.int(1),
            (Sub, _, _) if a == b => return self.int(0),
            _ => {}
        }
        let swap = matches!(op, Add | Mul | Min | Max | Eq | And) && b < a;
        let (a, b) = if swap { (b, a) } else { (a, b) };
        if let Some(r) = self.ints.get(&(op, a, b)) {
            return r;
        }
        let r = self.fresh();
        self.push(Stmt::Int(r, op, a, b));
        self.ints.set((op, a, b), r);
        r
    }
    /// A dim.
    ///
    /// # Errors
    /// The symbol that has no value.
    pub fn dim(&mut self, dims: &DimPool, d: DimId) -> Result<Reg, SymId> {
        if let Some(r) = self.dims.get(&d) {
            return Ok(r);
        }
        let r = dims.fold(d, &mut Emit(self));
        if let Some(s) = self.missing.take() {
            return Err(s);
        }
        self.dims.set(d, r);
        Ok(r)
    }
    /// An offset.
    ///
    /// # Errors
    /// The symbol that has no value.
    pub fn offset(&mut self, dims: &DimPool, pool: &OffsetPool, root: OffsetId) -> Result<Reg, SymId> {
        // A stack of its own: offsets may be nested as deep as a model is long.
        let mut todo = vec![root];
        while let Some(&o) = todo.last() {
            if self.offsets.get(&o).is_some() {
                todo.pop();
                continue;
            }
            let children: Vec<OffsetId> = match pool.get(o) {
                OffsetExpr::Dim(_) => vec![],
                OffsetExpr::Add(x, _) => vec![*x],
                OffsetExpr::Max(xs) => xs.to_vec(),
            };
            let open: Vec<OffsetId> = children.iter().copied().filter(|c| self.offsets.get(c).is_none()).collect();
            if !open.is_empty() {
                todo.extend(open);
                continue;
            }
            let r = match pool.get(o) {
                OffsetExpr::Dim(d) => self.dim(dims, *d)?,
                OffsetExpr::Add(x, d) => {
                    let (a, b) = (self.offsets.get(x), self.dim(dims, *d)?);
                    let a = a.unwrap_or(b);
                    self.op(IntOp::Add, a, b)
                }
                OffsetExpr::Max(_) => {
                    let regs: Vec<Reg> = children.iter().filter_map(|c| self.offsets.get(c)).collect();
                    let first = regs.first().copied().unwrap_or_else(|| self.int(0));
                    regs[1.min(regs.len())..].iter().fold(first, |a, &b| self.op(IntOp::Max, a, b))
                }
            };
            self.offsets.set(o, r);
        }
        self.offsets.get(&root).ok_or_else(|| SymId::new(0))
    }
}

/// The value of an operation; `None` on overflow and division by zero.
pub(crate) fn eval(op: IntOp, a: i64, b: i64) -> Option<i64> {
    match op {
        IntOp::Add => a.checked_add(b),
        IntOp::Sub => a.checked_sub(b),
        IntOp::Mul => a.checked_mul(b),
        IntOp::FloorDiv => DimOp::FloorDiv.eval(a, b),
        IntOp::CeilDiv => DimOp::CeilDiv.eval(a, b),
        IntOp::Mod => DimOp::Mod.eval(a, b),
        IntOp::Min => Some(a.min(b)),
        IntOp::Max => Some(a.max(b)),
        IntOp::Eq => Some(i64::from(a == b)),
        IntOp::Le => Some(i64::from(a <= b)),
        IntOp::Lt => Some(i64::from(a < b)),
        IntOp::And => Some(i64::from(a != 0 && b != 0)),
    }
}

struct Emit<'a>(&'a mut Regs);

impl DimFolder for Emit<'_> {
    type Out = Reg;
    fn constant(&mut self, c: i64) -> Reg {
        self.0.int(c)
    }
    fn symbol(&mut self, s: SymId) -> Reg {
        match self.0.syms.get(&s) {
            Some(r) => r,
            None => {
                self.0.missing.get_or_insert(s);
                self.0.int(0)
            }
        }
    }
    fn binary(&mut self, op: DimOp, a: Reg, b: Reg) -> Reg {
        let op = match op {
            DimOp::Add => IntOp::Add,
            DimOp::Mul => IntOp::Mul,
            DimOp::FloorDiv => IntOp::FloorDiv,
            DimOp::CeilDiv => IntOp::CeilDiv,
            DimOp::Mod => IntOp::Mod,
            DimOp::Min => IntOp::Min,
            DimOp::Max => IntOp::Max,
        };
        self.0.op(op, a, b)
    }
}
