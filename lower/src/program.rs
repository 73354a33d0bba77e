//! The HIP dialect and its memory plan to the host program that one run executes.
//!
//! Statements come in the order of the graph. What they need (extents, addresses) is computed at the first place that needs it and kept
//! for all that follow; operands of a control-flow node are computed before it, so that both arms see them.

use crate::host::*;
use crate::plan::{Plan, Point, Reserve};
use crate::plan_live::{Live, broken, size_bytes, unknown_symbol};
use crate::program_kernels::{Kernels, copy_nest, grow_nest, work_per_point};
use crate::program_regs::{Mark, Regs, Scoped};
use ir::consts::ConstId;
use ir::graph::{Def, Rel};
use ir::hip::{Hip, HipOp, HipType, Layout, Space};
use ir::{Module, Node, RegionId, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tensor::{DType, Diagnostic, DimId, Entity, ErrorKind, Result, SymId};

/// Writes the host program of a module whose memory is planned.
///
/// # Errors
/// `Internal` when a node is not formed as `ir::hip` says, names a kernel that the catalog does not have, or needs an extent that has
/// no value; `Limit` when an extent or size is beyond 64 bits.
pub fn host_program(m: &mut Module<Hip>, plan: &Plan) -> Result<HostProgram> {
    let live = Live::new(m)?;
    let mut b = Builder {
        plan,
        live,
        regs: Regs::default(),
        kernels: Kernels::default(),
        prog: HostProgram::default(),
        ptrs: Scoped::default(),
        bases: Scoped::default(),
        picks: Scoped::default(),
        debug: FxHashMap::default(),
        pending: (0..m.guards.len()).collect(),
        reserves: FxHashMap::default(),
        outputs: FxHashSet::default(),
        m,
    };
    for (i, d) in plan.domains.iter().enumerate() {
        if let Reserve::At(p) = d.reserve {
            b.reserves.entry(p).or_default().push(i);
        }
    }
    // The entry is function 0.
    b.regs.funcs.push(Func::default());
    b.regs.begin("run");
    b.entry()?;
    b.region(b.m.main)?;
    let last = b.m.graph().order.len();
    b.before(Point { region: b.m.main, pos: last })?;
    b.regs.end(Some(FuncId::new(0)));
    if b.m.dims.overflowed() {
        return Err(Diagnostic::new(ErrorKind::Limit, "an extent or size is beyond 64 bits"));
    }
    b.finish()
}

pub(crate) struct Builder<'a> {
    pub m: &'a mut Module<Hip>,
    pub plan: &'a Plan,
    pub live: Live,
    pub regs: Regs,
    kernels: Kernels,
    pub prog: HostProgram,
    /// Addresses of values.
    ptrs: Scoped<(RegionId, Value), Reg>,
    /// Base addresses of domains.
    pub bases: Scoped<usize, Reg>,
    /// For domains with alternatives: whether the run takes an alternative (0 or 1).
    picks: Scoped<(usize, usize), Reg>,
    debug: FxHashMap<DebugNode, u32>,
    /// Guards not written yet.
    pending: Vec<usize>,
    reserves: FxHashMap<Point, Vec<usize>>,
    outputs: FxHashSet<u32>,
}

/// Marks of everything known; see [`Regs::mark`].
pub(crate) struct Marks {
    regs: Mark,
    maps: [usize; 3],
}

fn position(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(u32::MAX)
}

impl Builder<'_> {
    /// What is known now.
    pub fn mark(&self) -> Marks {
        Marks { regs: self.regs.mark(), maps: [self.ptrs.mark(), self.bases.mark(), self.picks.mark()] }
    }
    /// Forgets what became known since.
    pub fn reset(&mut self, m: Marks) {
        self.regs.reset(m.regs);
        self.ptrs.reset(m.maps[0]);
        self.bases.reset(m.maps[1]);
        self.picks.reset(m.maps[2]);
    }

    /// A dim.
    pub fn dim(&mut self, d: DimId) -> Result<Reg> {
        self.regs.dim(&self.m.dims, d).map_err(|s| unknown_symbol(self.m, s, d))
    }
    fn dims(&mut self, ds: &[DimId]) -> Result<Vec<Reg>> {
        ds.iter().map(|&d| self.dim(d)).collect()
    }
    /// Gives a symbol its value, then writes the guards that it makes decidable.
    pub fn define(&mut self, s: SymId, r: Reg) -> Result<()> {
        self.regs.syms.set(s, r);
        self.guards()
    }

    fn debug(&mut self, path: impl Into<String>, what: impl Into<String>) -> u32 {
        let node = DebugNode { path: path.into(), what: what.into() };
        let list = &mut self.prog.debug;
        *self.debug.entry(node).or_insert_with_key(|n| {
            list.push(n.clone());
            position(list.len() - 1)
        })
    }
    /// The debug entry of a node.
    pub fn node(&mut self, at: Point, what: impl Into<String>) -> u32 {
        let g = &self.m.graphs[at.region];
        let path = g.nodes[g.order[at.pos]].origin.to_string();
        self.debug(path, what)
    }

    fn guard(&mut self, cond: Reg, sides: (Reg, Reg), what: String, node: u32) {
        if self.regs.as_const(cond) == Some(1) {
            return;
        }
        let list = &mut self.prog.guards;
        let what = list.iter().position(|g| *g == what).unwrap_or_else(|| {
            list.push(what);
            list.len() - 1
        });
        self.regs.push(Stmt::Guard { cond, sides, what: position(what), node });
    }

    /// Input extents, what they must satisfy, and the ports.
    fn entry(&mut self) -> Result<()> {
        let inputs = self.m.graph().inputs.clone();
        let mut repeats = vec![];
        for (i, v) in inputs.iter().enumerate() {
            let data = &self.m.graph().values[*v];
            let (name, ty) = (data.name.to_string(), data.ty.clone());
            let mut port = self.port(&name, &ty);
            let default = self.m.defaults.get(&position(i)).copied();
            port.default = default.map(|c| position(self.constant(c)));
            self.prog.inputs.push(port);
            for (axis, &d) in ty.shape.iter().enumerate() {
                // Fixed extents are checked against the port before the program starts.
                if self.m.dims.as_const(d).is_some() {
                    continue;
                }
                let r = self.regs.fresh();
                self.regs.push(Stmt::InputDim(r, position(i), position(axis)));
                match self.m.dims.as_symbol(d).filter(|s| self.regs.syms.get(s).is_none()) {
                    Some(s) => self.regs.syms.set(s, r),
                    None => repeats.push((name.clone(), axis, d, r)),
                }
            }
        }
        let none = self.debug("", "input");
        for (name, axis, d, r) in repeats {
            let want = self.dim(d)?;
            let cond = self.regs.op(IntOp::Eq, r, want);
            let what = format!("input {name:?} axis {axis}: the extent must equal {}", self.m.dims.display(d));
            self.guard(cond, (r, want), what, none);
        }
        // Facts about input symbols that code may rely on.
        let facts: Vec<_> = self.m.dims.symbols().map(|(s, x)| (s, x.clone())).collect();
        for (s, x) in facts {
            let Some(r) = self.regs.syms.get(&s) else { continue };
            let place = self.place_of(&[s]);
            let need = |b: &mut Self, op, a: i64, left: bool, sentence: String| {
                let c = b.regs.int(a);
                let cond = if left { b.regs.op(op, c, r) } else { b.regs.op(op, r, c) };
                b.guard(cond, (r, c), format!("{place}{sentence}"), none);
            };
            if x.lo > 0 {
                need(self, IntOp::Le, x.lo, true, format!("{} must be at least {}", x.name, x.lo));
            }
            if x.hi < i64::MAX {
                need(self, IntOp::Le, x.hi, false, format!("{} must be at most {}", x.name, x.hi));
            }
            if x.multiple_of > 1 {
                let k = self.regs.int(x.multiple_of);
                let zero = self.regs.int(0);
                let rest = self.regs.op(IntOp::Mod, r, k);
                let cond = self.regs.op(IntOp::Eq, rest, zero);
                let what = format!("{place}{} must be a multiple of {}", x.name, x.multiple_of);
                self.guard(cond, (r, k), what, none);
            }
        }
        self.guards()
    }

    /// `input "x" axis 1: ` for the first of the symbols that is an input's extent, else nothing.
    fn place_of(&self, syms: &[SymId]) -> String {
        let g = self.m.graph();
        for &s in syms {
            for &v in &g.inputs {
                let x = &g.values[v];
                if let Some(axis) = x.ty.shape.iter().position(|&d| self.m.dims.as_symbol(d) == Some(s)) {
                    return format!("input {:?} axis {axis}: ", x.name);
                }
            }
        }
        String::new()
    }

    /// Writes the module's guards whose symbols all have values.
    fn guards(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut rest = vec![];
        for i in std::mem::take(&mut self.pending) {
            let g = self.m.guards[i].clone();
            let mut syms = self.m.dims.symbols_of(g.lhs);
            syms.extend(self.m.dims.symbols_of(g.rhs));
            if syms.iter().any(|s| self.regs.syms.get(s).is_none()) {
                rest.push(i);
                continue;
            }
            let (a, b) = (self.dim(g.lhs)?, self.dim(g.rhs)?);
            let (cond, relation) = match g.rel {
                Rel::Eq => (self.regs.op(IntOp::Eq, a, b), "must equal"),
                Rel::Le => (self.regs.op(IntOp::Le, a, b), "must be at most"),
                Rel::Ne => {
                    let (same, no) = (self.regs.op(IntOp::Eq, a, b), self.regs.int(0));
                    (self.regs.op(IntOp::Eq, same, no), "must not be")
                }
            };
            let d = |d| self.m.dims.display(d).to_string();
            let why = if g.why.is_empty() { String::new() } else { format!("{}: ", g.why) };
            let what = format!("{}{why}{} {relation} {}", self.place_of(&syms), d(g.lhs), d(g.rhs));
            let node = self.debug(g.node, "guard");
            self.guard(cond, (a, b), what, node);
        }
        self.pending = rest;
        Ok(())
    }

    /// Position of a constant in the program's list.
    fn constant(&mut self, konst: ConstId) -> usize {
        match self.prog.constants.iter().position(|u| u.konst == konst) {
            Some(p) => p,
            None => {
                self.prog.constants.push(ConstUse { konst, layout: ConstLayout::Plain });
                self.prog.constants.len() - 1
            }
        }
    }

    fn port(&self, name: &str, ty: &HipType) -> Port {
        Port {
            name: name.to_string(),
            dtype: ty.dtype,
            dims: ty.shape.iter().map(|&d| self.m.dims.display(d).to_string()).collect(),
            fixed: ty.shape.iter().map(|&d| self.m.dims.as_const(d)).collect(),
            default: None,
        }
    }

    /// What is due before the node at a point: domains reserved there.
    pub fn before(&mut self, at: Point) -> Result<()> {
        for d in self.reserves.get(&at).cloned().unwrap_or_default() {
            self.reserve(d)?;
        }
        Ok(())
    }
    /// Reserves a domain.
    pub fn reserve(&mut self, domain: usize) -> Result<()> {
        let bytes = self.pick(domain)?;
        let base = self.regs.fresh();
        self.regs.push(Stmt::Reserve { base, domain: position(domain), bytes });
        self.bases.set(domain, base);
        Ok(())
    }
    /// Decides which of a domain's layouts the run takes, by the extents known here; gives its peak.
    pub fn pick(&mut self, domain: usize) -> Result<Reg> {
        let plan = self.plan;
        let layouts = &plan.domains[domain].packing.layouts;
        let mut peaks = vec![];
        for l in layouts {
            let r = self.regs.offset(&self.m.dims, &plan.offsets, l.peak);
            peaks.push(r.map_err(|s| self.no_value(s))?);
        }
        let first = peaks.first().copied().unwrap_or_else(|| self.regs.int(0));
        let bytes = peaks.iter().fold(first, |a, &b| self.regs.op(IntOp::Min, a, b));
        if peaks.len() > 1 {
            // The first whose peak is the least; exactly one of these is 1.
            let mut rest = self.regs.int(1);
            for (k, &p) in peaks.iter().enumerate() {
                let least = self.regs.op(IntOp::Eq, p, bytes);
                let pick = self.regs.op(IntOp::Mul, least, rest);
                rest = self.regs.op(IntOp::Sub, rest, pick);
                self.picks.set((domain, k), pick);
            }
        }
        Ok(bytes)
    }
    /// The domain's base is another register from here on.
    pub fn rebase(&mut self, domain: usize, base: Reg) {
        self.bases.set(domain, base);
    }
    fn no_value(&self, s: SymId) -> Diagnostic {
        Diagnostic::new(
            ErrorKind::Internal,
            format!("a pool is sized by \"{}\" where it has no value", self.m.dims.sym(s).name),
        )
    }

    /// The address of a planned buffer; its domain is reserved.
    pub fn buffer_ptr(&mut self, region: RegionId, v: Value) -> Result<Reg> {
        let plan = self.plan;
        let missing = || Diagnostic::new(ErrorKind::Internal, format!("{v} of {region} has no place in the plan"));
        let b = plan.buffer(region, v).ok_or_else(missing)?;
        let base = self.bases.get(&b.domain).ok_or_else(|| {
            Diagnostic::new(ErrorKind::Internal, format!("{v} of {region} is used before its pool is reserved"))
        })?;
        let layouts = &plan.domains[b.domain].packing.layouts;
        let mut offsets = vec![];
        for l in layouts {
            let r = self.regs.offset(&self.m.dims, &plan.offsets, l.offsets[b.interval]);
            offsets.push(r.map_err(|s| self.no_value(s))?);
        }
        let first = offsets.first().copied().unwrap_or_else(|| self.regs.int(0));
        let mut offset = first;
        if offsets.iter().any(|&o| o != first) {
            offset = self.regs.int(0);
            for (k, &o) in offsets.iter().enumerate() {
                let pick = self.picks.get(&(b.domain, k)).ok_or_else(missing)?;
                let part = self.regs.op(IntOp::Mul, pick, o);
                offset = self.regs.op(IntOp::Add, offset, part);
            }
        }
        Ok(self.regs.op(IntOp::Add, base, offset))
    }

    /// The address of a value.
    pub fn ptr(&mut self, region: RegionId, v: Value) -> Result<Reg> {
        if let Some(r) = self.ptrs.get(&(region, v)) {
            return Ok(r);
        }
        let data = self.m.graphs[region].values[v].clone();
        let r = match data.def {
            Def::Const(c) => {
                if data.ty.layout != Layout::Strided {
                    let text = format!("constant {c} is not laid out plainly");
                    return Err(Diagnostic::new(ErrorKind::Internal, text));
                }
                let pos = self.constant(c);
                let r = self.regs.fresh();
                self.regs.push(Stmt::ConstPtr(r, position(pos)));
                r
            }
            Def::Input(i) if region == self.m.main => {
                let r = self.regs.fresh();
                self.regs.push(Stmt::InputPtr(r, i));
                r
            }
            Def::Input(_) => {
                return Err(Diagnostic::new(ErrorKind::Internal, format!("parameter {v} of {region} has no address")));
            }
            Def::Node(n, _) => match self.m.graphs[region].nodes[n].op.clone() {
                HipOp::View { offset } => {
                    let from = self.m.graphs[region].nodes[n].ins.first().copied().flatten();
                    let from = from.ok_or_else(|| broken(self.m, region, n, "a view of nothing"))?;
                    let base = self.ptr(region, from)?;
                    let bytes = self.byte_offset(region, n, data.ty.dtype, offset)?;
                    let bytes = self.dim(bytes)?;
                    let bytes = self.unless_empty(bytes, &data.ty.shape)?;
                    self.regs.op(IntOp::Add, base, bytes)
                }
                HipOp::Output(i) => {
                    let dims = self.dims(&data.ty.shape)?;
                    self.output(i, dims)
                }
                _ => self.buffer_ptr(region, v)?,
            },
        };
        self.ptrs.set((region, v), r);
        Ok(r)
    }
    /// Gives a parameter of a region its address.
    pub fn bind(&mut self, region: RegionId, v: Value, r: Reg) {
        self.ptrs.set((region, v), r);
    }
    fn output(&mut self, index: u32, dims: Vec<Reg>) -> Reg {
        let ptr = self.regs.fresh();
        self.outputs.insert(index);
        self.regs.push(Stmt::Output { ptr, index, dims });
        ptr
    }
    /// `bytes`, or 0 when one of the extents is 0: an empty view may begin outside of its buffer, which devices refuse.
    fn unless_empty(&mut self, bytes: Reg, shape: &[DimId]) -> Result<Reg> {
        if self.regs.as_const(bytes) == Some(0) {
            return Ok(bytes);
        }
        let one = self.m.dims.constant(1);
        let least = shape.iter().fold(one, |least, &d| self.m.dims.min(least, d));
        let some = self.dim(least)?;
        Ok(self.regs.op(IntOp::Mul, bytes, some))
    }
    fn byte_offset(&mut self, region: RegionId, n: Node, dtype: DType, elems: DimId) -> Result<DimId> {
        let dims = &mut self.m.dims;
        if let Some(size) = dtype.size() {
            let k = dims.constant(i64::try_from(size).unwrap_or(i64::MAX));
            return Ok(dims.mul(elems, k));
        }
        // Packed elements: a view must start at a whole byte.
        let per_byte = i64::try_from(8 / dtype.bits().max(1)).unwrap_or(1);
        match dims.as_const(elems) {
            Some(e) if e % per_byte == 0 => Ok(dims.constant(e / per_byte)),
            _ => Err(broken(self.m, region, n, format!("a view of {dtype} that does not start at a whole byte"))),
        }
    }
    /// Whether a value lies row-major without gaps.
    pub fn is_contiguous(&mut self, region: RegionId, v: Value) -> bool {
        let ty = self.m.graphs[region].values[v].ty.clone();
        let mut want = self.m.dims.constant(1);
        for (&d, &s) in ty.shape.iter().zip(&ty.strides).rev() {
            if self.m.dims.as_const(d).is_none_or(|d| d > 1) && s != want {
                return false;
            }
            want = self.m.dims.mul(want, d);
        }
        true
    }

    /// Writes the statements of a region's nodes.
    pub fn region(&mut self, region: RegionId) -> Result<()> {
        for pos in 0..self.m.graphs[region].order.len() {
            let at = Point { region, pos };
            self.before(at)?;
            self.node_stmts(at)?;
        }
        Ok(())
    }

    fn node_stmts(&mut self, at: Point) -> Result<()> {
        let region = at.region;
        let n = self.m.graphs[region].order[at.pos];
        let node = self.m.graphs[region].nodes[n].clone();
        let operand = |i: usize| {
            let v = node.ins.get(i).copied().flatten();
            v.ok_or_else(|| {
                Diagnostic::new(ErrorKind::Internal, format!("operand {i} is missing")).node(&*node.origin.0)
            })
        };
        match &node.op {
            HipOp::Alloc | HipOp::Output(_) | HipOp::View { .. } => {}
            HipOp::PassOutput(i) => {
                let v = operand(0)?;
                let from = self.ptr(region, v)?;
                let shape = self.m.graphs[region].values[v].ty.shape.clone();
                let dims = self.dims(&shape)?;
                let to = self.output(*i, dims);
                let dst = (to, Space::Device);
                self.copy_value(at, (region, v), from, dst)?;
            }
            HipOp::Launch(nest) => {
                let buffers: Vec<Reg> =
                    (0..node.ins.len()).map(|i| self.ptr(region, operand(i)?)).collect::<Result<_>>()?;
                self.launch(at, nest, buffers)?;
            }
            HipOp::Call(c) => {
                let id = kernels::catalog::find(c.kernel)
                    .ok_or_else(|| broken(self.m, region, n, format!("the catalog has no kernel {}", c.kernel)))?;
                let def = &kernels::catalog::CATALOG[id as usize];
                let fits = def.buffers.len() == node.ins.len()
                    && def.ints.len() == c.ints.len()
                    && def.scalars.len() == c.scalars.len()
                    && def.buffers.iter().zip(&node.ins).all(|(b, v)| v.is_some() || b.optional);
                if !fits {
                    let what = format!(
                        "{} takes {} buffers, {} integers and {} scalars, not {}, {} and {} (or one it needs is missing)",
                        c.kernel,
                        def.buffers.len(),
                        def.ints.len(),
                        def.scalars.len(),
                        node.ins.len(),
                        c.ints.len(),
                        c.scalars.len()
                    );
                    return Err(broken(self.m, region, n, what));
                }
                let mut buffers = vec![];
                for v in &node.ins {
                    buffers.push(match v {
                        Some(v) => self.ptr(region, *v)?,
                        None => self.regs.int(0),
                    });
                }
                let ints = self.dims(&c.ints)?;
                let scalars = c.scalars.iter().map(|&b| f64::from_bits(b)).collect();
                let node = self.node(at, format!("kernel {}", c.kernel));
                self.regs.push(Stmt::Kernel { id, buffers, ints, scalars, node });
            }
            HipOp::HostCall { op, n_reads } => {
                let mut tensors = vec![];
                for v in &node.ins {
                    tensors.push(match v {
                        None => None,
                        Some(v) => {
                            if !self.is_contiguous(region, *v) {
                                return Err(broken(self.m, region, n, "a host op takes contiguous operands only"));
                            }
                            let ty = self.m.graphs[region].values[*v].ty.clone();
                            let (ptr, dims) = (self.ptr(region, *v)?, self.dims(&ty.shape)?);
                            Some(Desc { ptr, dtype: ty.dtype, dims, space: ty.space })
                        }
                    });
                }
                let text = self.host_op_text(*op, node.attrs);
                let name = self.m.registry[*op].full_name();
                let list = &mut self.prog.host_ops;
                let pos = list.iter().position(|t| *t == text).unwrap_or_else(|| {
                    list.push(text);
                    list.len() - 1
                });
                let node = self.node(at, format!("host {name}"));
                self.regs.push(Stmt::HostOp { op: position(pos), tensors, n_reads: *n_reads, node });
            }
            HipOp::Copy => {
                let (from, to) = (operand(0)?, operand(1)?);
                let (src, dst) = (self.ptr(region, from)?, self.ptr(region, to)?);
                let to_ty = self.m.graphs[region].values[to].ty.clone();
                if self.is_contiguous(region, to) {
                    self.copy_value(at, (region, from), src, (dst, to_ty.space))?;
                } else {
                    let from_ty = self.m.graphs[region].values[from].ty.clone();
                    let host = from_ty.space == Space::Host || to_ty.space != Space::Device;
                    if host || from_ty.shape != to_ty.shape {
                        return Err(broken(self.m, region, n, "a copy between spaces is of contiguous buffers"));
                    }
                    let nest =
                        copy_nest(&mut self.m.dims, from_ty.dtype, &from_ty.shape, &from_ty.strides, &to_ty.strides);
                    self.launch(at, &Arc::new(nest), vec![src, dst])?;
                }
            }
            HipOp::Reuse => {}
            HipOp::Carry => self.carry(at, operand(0)?, operand(1)?)?,
            HipOp::StoreDims(values) => {
                let v = operand(0)?;
                let ty = self.m.graphs[region].values[v].ty.clone();
                if !matches!(ty.dtype, DType::I32 | DType::I64) || ty.space == Space::Device {
                    return Err(broken(self.m, region, n, "dims are stored as i32 or i64 where the host may write"));
                }
                let (ptr, values) = (self.ptr(region, v)?, self.dims(values)?);
                self.regs.push(Stmt::StoreInts { ptr, dtype: ty.dtype, values });
            }
            HipOp::Readback { sym, index, max } => {
                let v = operand(0)?;
                let symbol = self.m.dims.sym(*sym);
                let (what, least) = (format!("extent {}", symbol.name), symbol.lo);
                let reg = self.readback(at, v, *index, &what)?;
                let debug = self.node(at, "readback");
                // A bound or an index may be any number of its type; what is an extent has a guard of its own.
                let (lo, hi) = match self.m.graphs[region].values[v].ty.dtype {
                    DType::I32 => (i32::MIN.into(), i32::MAX.into()),
                    _ => (i64::MIN, i64::MAX),
                };
                if least > lo {
                    let bound = self.regs.int(least);
                    let cond = self.regs.op(IntOp::Le, bound, reg);
                    self.guard(cond, (reg, bound), format!("{what} must be at least {least}"), debug);
                }
                if self.m.dims.as_const(*max).is_none_or(|max| max < hi) {
                    let bound = self.dim(*max)?;
                    let cond = self.regs.op(IntOp::Le, reg, bound);
                    let text = format!("{what} must be at most {}", self.m.dims.display(*max));
                    self.guard(cond, (reg, bound), text, debug);
                }
                self.define(*sym, reg)?;
            }
            HipOp::If { .. } => self.branch(at, &node)?,
            HipOp::Loop(_) => self.looped(at, &node)?,
            _ => return Err(broken(self.m, region, n, "a node that the host program does not know")),
        }
        Ok(())
    }

    /// Reads an integer or bool element.
    pub fn readback(&mut self, at: Point, v: Value, index: u32, what: &str) -> Result<Reg> {
        let ptr = self.ptr(at.region, v)?;
        let ty = self.m.graphs[at.region].values[v].ty.clone();
        let node = self.node(at, format!("readback {what}"));
        let reg = self.regs.fresh();
        self.regs.push(Stmt::Readback { reg, ptr, space: ty.space, dtype: ty.dtype, index, node });
        Ok(reg)
    }

    /// Copies a value row-major to contiguous memory.
    pub fn copy_value(&mut self, at: Point, from: (RegionId, Value), src: Reg, dst: (Reg, Space)) -> Result<()> {
        let ty = self.m.graphs[from.0].values[from.1].ty.clone();
        if self.is_contiguous(from.0, from.1) {
            let bytes = size_bytes(&mut self.m.dims, &ty);
            let bytes = self.dim(bytes)?;
            let node = self.node(at, "copy");
            self.regs.push(Stmt::Copy { dst, src: (src, ty.space), bytes, node });
            return Ok(());
        }
        if ty.space == Space::Host || dst.1 != Space::Device {
            let n = self.m.graphs[at.region].order[at.pos];
            return Err(broken(self.m, at.region, n, "a copy between spaces is of contiguous buffers"));
        }
        let dims = &mut self.m.dims;
        let mut to = ir::Shape::new();
        let mut stride = dims.constant(1);
        for &d in ty.shape.iter().rev() {
            to.insert(0, stride);
            stride = dims.mul(stride, d);
        }
        let nest = copy_nest(dims, ty.dtype, &ty.shape, &ty.strides, &to);
        self.launch(at, &Arc::new(nest), vec![src, dst.0])
    }

    /// Copies a value into a contiguous one that may be longer: all at once where it is not, which does nothing where the caller gave the
    /// same memory for both, else element by element.
    fn carry(&mut self, at: Point, from: Value, to: Value) -> Result<()> {
        let (src, dst) = (self.ptr(at.region, from)?, self.ptr(at.region, to)?);
        let g = &self.m.graphs[at.region];
        let (a, b) = (g.values[from].ty.clone(), g.values[to].ty.clone());
        let mut fits = None;
        for (&x, &y) in a.shape.iter().zip(&b.shape).filter(|(x, y)| x != y) {
            let (x, y) = (self.dim(x)?, self.dim(y)?);
            let same = self.regs.op(IntOp::Eq, x, y);
            fits = Some(fits.map_or(same, |f| self.regs.op(IntOp::And, f, same)));
        }
        let bytes = size_bytes(&mut self.m.dims, &a);
        let mut bytes = self.dim(bytes)?;
        if let Some(fits) = fits {
            bytes = self.regs.op(IntOp::Mul, bytes, fits);
        }
        let node = self.node(at, "copy of a cache");
        self.regs.push(Stmt::Copy { dst: (dst, b.space), src: (src, a.space), bytes, node });
        let Some(fits) = fits else { return Ok(()) };
        let nest = Arc::new(grow_nest(&mut self.m.dims, a.dtype, &a.shape, &b.shape));
        let one = self.regs.int(1);
        let grows = self.regs.op(IntOp::Sub, one, fits);
        self.launch_if(at, &nest, vec![src, dst], Some(grows))
    }

    fn launch(&mut self, at: Point, nest: &Arc<ir::nest::Nest>, buffers: Vec<Reg>) -> Result<()> {
        self.launch_if(at, nest, buffers, None)
    }
    /// Launches; over no point where `on` is 0.
    fn launch_if(&mut self, at: Point, nest: &Arc<ir::nest::Nest>, buffers: Vec<Reg>, on: Option<Reg>) -> Result<()> {
        if buffers.len() != nest.operands.len() {
            let n = self.m.graphs[at.region].order[at.pos];
            return Err(broken(self.m, at.region, n, "operands do not fit the nest"));
        }
        let (kernel, params) = self.kernels.get(&self.m.dims, nest);
        let params = self.dims(&params)?;
        let points = self.m.dims.product(nest.outer.iter().copied());
        let mut points = self.dim(points)?;
        if let Some(on) = on {
            points = self.regs.op(IntOp::Mul, points, on);
        }
        let inner = self.m.dims.product(nest.inner.iter().copied());
        let (per_inner, once) = work_per_point(nest);
        let (k, once) = (self.m.dims.constant(per_inner), self.m.dims.constant(once));
        let work = self.m.dims.mul(inner, k);
        let work = self.m.dims.add(work, once);
        let work = self.dim(work)?;
        let name = self.kernels.defs[kernel as usize].name.clone();
        let node = self.node(at, format!("loops {name}"));
        self.regs.push(Stmt::Launch { kernel, buffers, params, points, work, node });
        Ok(())
    }

    /// `Name-13 {axis = 1, mode = "linear"}`.
    fn host_op_text(&self, op: ir::OpId, attrs: ir::attrs::AttrsId) -> String {
        use ir::attrs::Attr;
        let def = &self.m.registry[op];
        let slots = &self.m.attrs[attrs];
        let named = def.attrs.iter().filter(|a| a.kind != ir::op::AttrKind::Graph);
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        let text = |(a, v): (&ir::op::AttrDef, &Attr)| {
            let v = match v {
                Attr::Absent | Attr::Tensor(_) | Attr::Type(_) => return None,
                Attr::Int(i) => i.to_string(),
                Attr::Float(f) => format!("{:?}", f.get()),
                Attr::Str(s) => format!("{s:?}"),
                Attr::Ints(i) => list(i.iter().map(i64::to_string).collect()),
                Attr::Floats(f) => list(f.iter().map(|x| format!("{:?}", x.get())).collect()),
                Attr::Strs(s) => list(s.iter().map(|x| format!("{x:?}")).collect()),
            };
            Some(format!("{} = {v}", a.name))
        };
        let attrs: Vec<String> = named.zip(slots.slots()).filter_map(text).collect();
        let braces = if attrs.is_empty() { String::new() } else { format!(" {{{}}}", attrs.join(", ")) };
        format!("{}-{}{braces}", def.full_name(), def.since)
    }

    fn finish(mut self) -> Result<HostProgram> {
        for &i in &self.pending {
            let g = &self.m.guards[i];
            let mut syms = self.m.dims.symbols_of(g.lhs);
            syms.extend(self.m.dims.symbols_of(g.rhs));
            let s = syms.into_iter().find(|s| !self.live.known.contains_key(s));
            // A device result that no node reads any more: the guard's node is gone too, so nothing relies on it.
            let gone = |s: &SymId| self.m.dims.sym(*s).origin == tensor::dims::Origin::DeviceResult;
            if let Some(s) = s.filter(|s| !gone(s)) {
                return Err(unknown_symbol(self.m, s, g.lhs).node(g.node.clone()));
            }
        }
        let g = self.m.graph();
        for &v in &g.outputs {
            let x = &g.values[v];
            let port = self.port(&x.name, &x.ty);
            self.prog.outputs.push(port);
        }
        for i in 0..self.prog.outputs.len() {
            if !self.outputs.contains(&position(i)) {
                let name = &self.prog.outputs[i].name;
                return Err(Diagnostic::new(ErrorKind::Internal, format!("output {name:?} is never written")));
            }
        }
        for d in &self.plan.domains {
            let peak = self.plan.peak_text(&self.m.dims, d);
            self.prog.domains.push(Domain { space: d.space, peak });
        }
        self.prog.aliases = ir::hip::aliases(self.m);
        self.prog.n_regs = position(self.regs.n_regs);
        self.prog.funcs = self.regs.funcs;
        self.prog.kernels = self.kernels.defs;
        Ok(self.prog)
    }

    /// The root of a value is a planned buffer whose size is known only with its node's results.
    pub fn result_domain(&self, region: RegionId, v: Value, n: Node) -> Option<usize> {
        let b = self.plan.buffer(region, v)?;
        (self.plan.domains[b.domain].reserve == Reserve::Results(region, n)).then_some(b.domain)
    }
    /// All operands of a node get their addresses now.
    pub fn hoist_operands(&mut self, at: Point) -> Result<()> {
        let g = &self.m.graphs[at.region];
        let ins = g.nodes[g.order[at.pos]].ins.clone();
        ins.into_iter().flatten().try_for_each(|v| self.ptr(at.region, v).map(|_| ()))
    }
}
