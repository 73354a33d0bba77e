//! The interpreter of the HIP dialect: runs a module on host tensors, slowly and checked. Tests compare it with the ONNX
//! interpreter and with compiled code.
//!
//! Buffers begin filled with ones in every bit (NaN), so that reading what nothing wrote shows. Accesses out of range are errors.

mod calls;
mod scalar;

use crate::bytes::{is_packed, per_byte};
use ir::Module;
use ir::graph::{Def, Node, RegionId, Rel, Value};
use ir::hip::{Hip, HipOp, HipType, LoopOp};
use ir::nest::{Access, Axis, Combiner, Expr, ExprId, Nest, Phase, Term, compute_dtype};
use rustc_hash::FxHashMap;
use scalar::Val;
use tensor::dims::Origin;
use tensor::{DType, Diagnostic, DimId, Entity, ErrorKind, Result, SymId, Tensor};

/// Runs the main graph.
///
/// # Errors
/// `Argument` for wrong inputs, `Guard` when a guard does not hold, `Internal` when the module reads or writes out of range or uses
/// a symbol before it is known.
pub fn run(m: &Module<Hip>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let g = m.graph();
    if g.inputs.len() != inputs.len() {
        let text = format!("{} inputs are given where the graph has {}", inputs.len(), g.inputs.len());
        return Err(Diagnostic::new(ErrorKind::Argument, text));
    }
    let mut it = Interp { m, buffers: vec![], env: FxHashMap::default() };
    for (s, sym) in m.dims.symbols() {
        if let Origin::Input { input, axis } = sym.origin {
            let t = inputs.get(input as usize).and_then(|t| t.shape().get(axis as usize));
            if let Some(&d) = t {
                it.env.insert(s, i64::try_from(d).unwrap_or(i64::MAX));
            }
        }
    }
    for guard in &m.guards {
        let (a, b) = (it.eval(guard.lhs), it.eval(guard.rhs));
        if let (Ok(a), Ok(b)) = (a, b) {
            let holds = match guard.rel {
                Rel::Eq => a == b,
                Rel::Le => a <= b,
                Rel::Ne => a != b,
            };
            if !holds {
                return Err(Diagnostic::new(ErrorKind::Guard, format!("{}: {a} and {b}", guard.why)).node(&*guard.node));
            }
        }
    }
    let mut params = vec![];
    for (&v, t) in g.inputs.iter().zip(inputs) {
        let p = it.tensor(t)?;
        let want = it.ptr_type(&g.values[v].ty)?;
        if p.shape != want.shape || p.dtype != want.dtype {
            let text = format!(
                "input \"{}\" is {}{:?}, not {}{:?}",
                g.values[v].name, p.dtype, p.shape, want.dtype, want.shape
            );
            return Err(Diagnostic::new(ErrorKind::Argument, text));
        }
        params.push(p);
    }
    let mut outputs = vec![None; g.outputs.len()];
    let outs = it.region(m.main, params, &mut outputs)?;
    let mut result = vec![];
    for (i, p) in outs.iter().enumerate() {
        match &outputs[i] {
            Some(o) if it.same_bytes(o, p)? => result.push(it.read(o)?),
            Some(_) => return Err(internal(format!("output {i} is not what the graph lists"))),
            None => return Err(internal(format!("output {i} is never handed out"))),
        }
    }
    Ok(result)
}

/// Runs one nest, operand `i` on `buffers[i]` from its start: what generated kernels are compared with. `env` gives symbols values.
///
/// # Errors
/// `Internal` when the nest reads or writes out of range, or is not well-formed.
pub fn run_nest(dims: &tensor::DimPool, nest: &Nest, env: &[(SymId, i64)], buffers: &mut [Vec<u8>]) -> Result<()> {
    let mut m = Module::<Hip>::new(ir::op::Registry::builtin());
    m.dims = dims.clone();
    let mut it = Interp { m: &m, buffers: vec![], env: env.iter().copied().collect() };
    let mut ptrs = vec![];
    for (i, o) in nest.operands.iter().enumerate() {
        let all = |s: &[DimId]| s.iter().map(|&d| it.eval(d)).collect::<Result<Vec<i64>>>();
        ptrs.push(Ptr { buffer: i, offset: 0, shape: all(&o.shape)?, strides: all(&o.strides)?, dtype: o.dtype });
    }
    it.buffers = buffers.to_vec();
    it.launch(nest, &ptrs)?;
    buffers.clone_from_slice(&it.buffers);
    Ok(())
}

fn internal(text: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, text)
}

/// A view of a buffer with numbers for extents.
#[derive(Clone, Debug)]
pub(crate) struct Ptr {
    pub buffer: usize,
    pub offset: i64,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub dtype: DType,
}

impl Ptr {
    fn n_elems(&self) -> i64 {
        self.shape.iter().product()
    }
    /// Position of the row-major `i`-th element.
    fn at(&self, mut i: i64) -> i64 {
        let mut p = self.offset;
        for (&d, &s) in self.shape.iter().zip(&self.strides).rev() {
            p += (i % d) * s;
            i /= d;
        }
        p
    }
}

pub(crate) struct Interp<'m> {
    pub m: &'m Module<Hip>,
    pub buffers: Vec<Vec<u8>>,
    pub env: FxHashMap<SymId, i64>,
}

impl Interp<'_> {
    fn eval(&self, d: DimId) -> Result<i64> {
        self.m.dims.eval(d, &|s| self.env.get(&s).copied())
    }
    fn ptr_type(&self, ty: &HipType) -> Result<Ptr> {
        let all = |s: &[DimId]| s.iter().map(|&d| self.eval(d)).collect::<Result<Vec<i64>>>();
        Ok(Ptr { buffer: 0, offset: 0, shape: all(&ty.shape)?, strides: all(&ty.strides)?, dtype: ty.dtype })
    }
    fn alloc(&mut self, ty: &HipType) -> Result<Ptr> {
        let mut p = self.ptr_type(ty)?;
        if p.shape.iter().any(|&d| d < 0) {
            return Err(internal(format!("a buffer has extents {:?}", p.shape)));
        }
        let n = usize::try_from(p.n_elems()).unwrap_or(0);
        let bytes = ty.dtype.size_bytes(n).ok_or_else(|| internal("a buffer is too large".into()))?;
        p.buffer = self.buffers.len();
        self.buffers.push(vec![0xff; bytes]);
        Ok(p)
    }
    fn tensor(&mut self, t: &Tensor) -> Result<Ptr> {
        let shape: Vec<i64> = t.shape().iter().map(|&d| i64::try_from(d).unwrap_or(i64::MAX)).collect();
        let mut strides = vec![1; shape.len()];
        for i in (0..shape.len().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * shape[i + 1];
        }
        self.buffers.push(t.bytes().to_vec());
        Ok(Ptr { buffer: self.buffers.len() - 1, offset: 0, shape, strides, dtype: t.dtype() })
    }
    fn read(&self, p: &Ptr) -> Result<Tensor> {
        let shape: Vec<usize> = p.shape.iter().map(|&d| usize::try_from(d).unwrap_or(0)).collect();
        if is_packed(p.dtype) {
            let range = self.whole_bytes(p)?;
            return Tensor::new(p.dtype, &shape, self.buffers[p.buffer][range].to_vec().into());
        }
        let size = p.dtype.size().ok_or_else(|| internal(format!("{} has no whole bytes", p.dtype)))?;
        let mut bytes = vec![];
        for i in 0..p.n_elems() {
            bytes.extend_from_slice(self.bytes(p, p.at(i), size)?);
        }
        Tensor::new(p.dtype, &shape, bytes.into())
    }
    /// The bytes of packed elements that lie side by side from the start of a byte on.
    fn whole_bytes(&self, p: &Ptr) -> Result<std::ops::Range<usize>> {
        let per = per_byte(p.dtype);
        let in_order = (0..p.n_elems()).all(|i| p.at(i) == p.offset + i);
        let size = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        let (first, n) = (size(p.offset / per), size((p.n_elems() + per - 1) / per));
        match first.checked_add(n).filter(|&end| end <= self.buffers[p.buffer].len()) {
            Some(end) if in_order && p.offset % per == 0 => Ok(first..end),
            _ => Err(internal(format!("elements of {} do not fill bytes", p.dtype))),
        }
    }
    fn same_bytes(&self, a: &Ptr, b: &Ptr) -> Result<bool> {
        Ok(self.read(a)? == self.read(b)?)
    }
    fn bytes(&self, p: &Ptr, at: i64, size: usize) -> Result<&[u8]> {
        let b = &self.buffers[p.buffer];
        let start = usize::try_from(at).ok().and_then(|a| a.checked_mul(size));
        let range = start.and_then(|s| Some(s..s.checked_add(size)?)).filter(|r| r.end <= b.len());
        let range = range.ok_or_else(|| {
            internal(format!("element {at} of a buffer of {} bytes of {} is out of range", b.len(), p.dtype))
        })?;
        Ok(&b[range])
    }
    fn load(&self, p: &Ptr, at: i64) -> Result<Val> {
        let size = p.dtype.size().ok_or_else(|| internal(format!("{} has no whole bytes", p.dtype)))?;
        Val::from_bytes(p.dtype, self.bytes(p, at, size)?)
    }
    fn store(&mut self, p: &Ptr, at: i64, v: Val) -> Result<()> {
        let new = v.to_bytes(p.dtype)?;
        self.bytes(p, at, new.len())?;
        let start = usize::try_from(at).unwrap_or(0) * new.len();
        self.buffers[p.buffer][start..start + new.len()].copy_from_slice(&new);
        Ok(())
    }
    fn copy(&mut self, from: &Ptr, to: &Ptr) -> Result<()> {
        if from.shape != to.shape || from.dtype != to.dtype {
            return Err(internal(format!("a copy of {:?} to {:?}", from.shape, to.shape)));
        }
        if is_packed(from.dtype) {
            let (a, b) = (self.whole_bytes(from)?, self.whole_bytes(to)?);
            let bytes = self.buffers[from.buffer][a].to_vec();
            self.buffers[to.buffer][b].copy_from_slice(&bytes);
            return Ok(());
        }
        let size = from.dtype.size().ok_or_else(|| internal(format!("{} has no whole bytes", from.dtype)))?;
        for i in 0..from.n_elems() {
            let x = self.bytes(from, from.at(i), size)?.to_vec();
            self.bytes(to, to.at(i), size)?;
            let start = usize::try_from(to.at(i)).unwrap_or(0) * size;
            self.buffers[to.buffer][start..start + size].copy_from_slice(&x);
        }
        Ok(())
    }

    /// Copies to the beginning of every axis; what is longer gets zeros.
    fn carry(&mut self, from: &Ptr, to: &Ptr) -> Result<()> {
        if from.shape.len() != to.shape.len() || from.shape.iter().zip(&to.shape).any(|(a, b)| a > b) {
            return Err(internal(format!("{:?} is carried into {:?}", from.shape, to.shape)));
        }
        let size = to.dtype.size().ok_or_else(|| internal(format!("{} has no whole bytes", to.dtype)))?;
        for i in 0..to.n_elems() {
            self.bytes(to, to.at(i), size)?;
            let start = usize::try_from(to.at(i)).unwrap_or(0) * size;
            self.buffers[to.buffer][start..start + size].fill(0);
        }
        self.copy(from, &Ptr { shape: from.shape.clone(), ..to.clone() })
    }

    /// Runs a region. Gives its outputs; `outputs` receives what the main graph hands out.
    fn region(&mut self, r: RegionId, params: Vec<Ptr>, outputs: &mut [Option<Ptr>]) -> Result<Vec<Ptr>> {
        let g = &self.m.graphs[r];
        if g.inputs.len() != params.len() {
            return Err(internal(format!("a region takes {} buffers but gets {}", g.inputs.len(), params.len())));
        }
        let mut at: FxHashMap<Value, Ptr> = g.inputs.iter().copied().zip(params).collect();
        for &n in &g.order {
            self.node(r, n, &mut at, outputs).map_err(|e| e.node(g.nodes[n].origin.to_string()))?;
        }
        g.outputs.iter().map(|&v| self.get(r, v, &mut at)).collect()
    }
    fn get(&mut self, r: RegionId, v: Value, at: &mut FxHashMap<Value, Ptr>) -> Result<Ptr> {
        if let Some(p) = at.get(&v) {
            return Ok(p.clone());
        }
        let Def::Const(c) = self.m.graphs[r].values[v].def else {
            return Err(internal(format!("{v} is used before it is defined")));
        };
        let p = self.tensor(&self.m.consts[c].read()?)?;
        at.insert(v, p.clone());
        Ok(p)
    }

    fn node(
        &mut self,
        r: RegionId,
        n: Node,
        at: &mut FxHashMap<Value, Ptr>,
        outputs: &mut [Option<Ptr>],
    ) -> Result<()> {
        let m = self.m;
        let g = &m.graphs[r];
        let node = &g.nodes[n];
        let mut ops: Vec<Option<Ptr>> = vec![];
        for v in &node.ins {
            ops.push(v.map(|v| self.get(r, v, at)).transpose()?);
        }
        let need = |k: usize| ops.get(k).cloned().flatten().ok_or_else(|| internal(format!("operand {k} is missing")));
        match &node.op {
            HipOp::Alloc => {
                let p = self.alloc(&g.values[node.outs[0]].ty)?;
                at.insert(node.outs[0], p);
            }
            HipOp::Output(i) => {
                let p = self.alloc(&g.values[node.outs[0]].ty)?;
                let slot = outputs.get_mut(*i as usize).ok_or_else(|| internal(format!("there is no output {i}")))?;
                if slot.replace(p.clone()).is_some() {
                    return Err(internal(format!("output {i} is handed out twice")));
                }
                at.insert(node.outs[0], p);
            }
            HipOp::PassOutput(i) => {
                let slot = outputs.get_mut(*i as usize).ok_or_else(|| internal(format!("there is no output {i}")))?;
                if slot.replace(need(0)?).is_some() {
                    return Err(internal(format!("output {i} is handed out twice")));
                }
            }
            HipOp::View { offset } => {
                let from = need(0)?;
                let mut p = self.ptr_type(&g.values[node.outs[0]].ty)?;
                (p.buffer, p.offset) = (from.buffer, from.offset + self.eval(*offset)?);
                at.insert(node.outs[0], p);
            }
            HipOp::Launch(nest) => {
                let ops: Vec<Ptr> = (0..ops.len()).map(need).collect::<Result<_>>()?;
                self.launch(nest, &ops)?;
            }
            HipOp::Call(call) => self.call(call, &ops)?,
            HipOp::HostCall { op, n_reads } => {
                let def = &m.registry[*op];
                let f = def.reference.ok_or_else(|| internal(format!("{} has no reference function", def.name)))?;
                let n_reads = *n_reads as usize;
                let ins: Vec<Option<Tensor>> = ops[..n_reads]
                    .iter()
                    .map(|p| p.as_ref().map(|p| self.read(p)).transpose())
                    .collect::<Result<_>>()?;
                let cx = ir::op::RefCtx {
                    def,
                    attrs: &m.attrs[node.attrs],
                    consts: &m.consts,
                    ins: &ins,
                    n_outs: ops.len() - n_reads,
                };
                for (t, k) in f(&cx)?.iter().zip(n_reads..) {
                    let from = self.tensor(t)?;
                    self.copy(&from, &need(k)?)?;
                }
            }
            HipOp::Copy => self.copy(&need(0)?, &need(1)?)?,
            HipOp::Carry => self.carry(&need(0)?, &need(1)?)?,
            HipOp::Reuse => {}
            HipOp::StoreDims(x) => {
                let p = need(0)?;
                for (i, &d) in x.iter().enumerate() {
                    let v = Val::I64(self.eval(d)?);
                    let i = i64::try_from(i).unwrap_or(i64::MAX);
                    self.store(&p, p.at(i), v)?;
                }
            }
            HipOp::Readback { sym, index, max } => {
                let p = need(0)?;
                let v = self.load(&p, p.at(i64::from(*index)))?.as_i64();
                let max = self.eval(*max)?;
                if v > max || v < m.dims.sym(*sym).lo {
                    let name = &m.dims.sym(*sym).name;
                    return Err(Diagnostic::new(ErrorKind::Shape, format!("{name} is {v}, beyond {max}")));
                }
                self.env.insert(*sym, v);
            }
            HipOp::If { dims } => {
                let c = need(0)?;
                let taken = self.load(&c, c.at(0))?.as_i64() != 0;
                let params = (1..ops.len()).map(need).collect::<Result<Vec<_>>>()?;
                let outs = self.region(node.regions[usize::from(!taken)], params, &mut [])?;
                for d in dims {
                    let v = self.eval(if taken { d.then } else { d.els })?;
                    self.env.insert(d.sym, v);
                }
                self.results(r, n, &outs, at)?;
            }
            HipOp::Loop(l) => {
                let outs = self.loop_(l, node.regions[0], &ops)?;
                self.results(r, n, &outs, at)?;
            }
            other => return Err(internal(format!("{other:?} is not known here"))),
        }
        Ok(())
    }
    /// Copies a body's outputs into the results of the node.
    fn results(&mut self, r: RegionId, n: Node, outs: &[Ptr], at: &mut FxHashMap<Value, Ptr>) -> Result<()> {
        let g = &self.m.graphs[r];
        for (&v, from) in g.nodes[n].outs.iter().zip(outs) {
            let to = self.alloc(&g.values[v].ty)?;
            self.copy(from, &to)?;
            at.insert(v, to);
        }
        Ok(())
    }
    fn loop_(&mut self, l: &LoopOp, body: RegionId, ops: &[Option<Ptr>]) -> Result<Vec<Ptr>> {
        let trips = l.trips.map(|d| self.eval(d)).transpose()?.unwrap_or(i64::MAX);
        let mut go = match (l.cond, &ops[0]) {
            (false, _) => true,
            (true, Some(p)) => self.load(p, p.at(0))?.as_i64() != 0,
            (true, None) => return Err(internal("a loop has no condition".into())),
        };
        let n = l.n_carried as usize;
        let all = |s: &[Option<Ptr>]| s.iter().cloned().collect::<Option<Vec<Ptr>>>();
        let missing = || internal("an operand of a loop is missing".into());
        let mut state = all(&ops[1..1 + n]).ok_or_else(missing)?;
        let captures = all(&ops[1 + n..]).ok_or_else(missing)?;
        for d in &l.dims {
            let v = self.eval(d.init)?;
            self.env.insert(d.sym, v);
        }
        let mut i = 0;
        while go && i < trips {
            self.env.insert(l.iter, i);
            let params = state.iter().chain(&captures).cloned().collect();
            let mut outs = self.region(body, params, &mut [])?;
            if l.cond {
                let c = outs.remove(0);
                go = self.load(&c, c.at(0))?.as_i64() != 0;
            }
            let next = l.dims.iter().map(|d| self.eval(d.next)).collect::<Result<Vec<i64>>>()?;
            self.env.extend(l.dims.iter().map(|d| d.sym).zip(next));
            state = outs;
            i += 1;
        }
        self.env.extend(l.counts.iter().map(|&s| (s, i)));
        for d in &l.dims {
            let v = self.env[&d.sym];
            self.env.extend(d.result.map(|s| (s, v)));
        }
        Ok(state)
    }

    pub fn launch(&mut self, nest: &Nest, ops: &[Ptr]) -> Result<()> {
        if nest.operands.len() != ops.len() {
            return Err(internal(format!("a nest of {} operands gets {}", nest.operands.len(), ops.len())));
        }
        let mut ptrs = vec![];
        for (o, p) in nest.operands.iter().zip(ops) {
            let all = |s: &[DimId]| s.iter().map(|&d| self.eval(d)).collect::<Result<Vec<i64>>>();
            let (shape, strides) = (all(&o.shape)?, all(&o.strides)?);
            let matters = |a: &[i64], b: &[i64]| {
                a.len() == b.len() && a.iter().zip(b).zip(&shape).all(|((x, y), d)| x == y || *d <= 1)
            };
            if o.dtype != p.dtype || shape != p.shape || !matters(&strides, &p.strides) {
                return Err(internal(format!(
                    "a nest sees {}{shape:?} with strides {strides:?} where the buffer is {}{:?} with {:?}",
                    o.dtype, p.dtype, p.shape, p.strides
                )));
            }
            ptrs.push(Ptr { shape, strides, ..p.clone() });
        }
        let all = |s: &[DimId]| s.iter().map(|&d| self.eval(d)).collect::<Result<Vec<i64>>>();
        let (outer, inner) = (all(&nest.outer)?, all(&nest.inner)?);
        let types: Vec<DType> = (0..nest.exprs.len()).map(|i| nest.expr_dtype(ExprId::new(i))).collect();
        let mut run =
            NestRun { it: self, nest, ptrs, types, reduced: vec![], at_outer: vec![], at_inner: vec![], memo: vec![] };
        for i in 0..outer.iter().product::<i64>() {
            run.at_outer = unravel(i, &outer);
            run.point(&inner)?;
        }
        Ok(())
    }
}

fn unravel(mut i: i64, shape: &[i64]) -> Vec<i64> {
    let mut out = vec![0; shape.len()];
    for (o, &d) in out.iter_mut().zip(shape).rev() {
        *o = i % d;
        i /= d;
    }
    out
}

struct NestRun<'a, 'm> {
    it: &'a mut Interp<'m>,
    nest: &'a Nest,
    ptrs: Vec<Ptr>,
    types: Vec<DType>,
    reduced: Vec<Val>,
    at_outer: Vec<i64>,
    at_inner: Vec<i64>,
    memo: Vec<Option<Val>>,
}

impl NestRun<'_, '_> {
    fn point(&mut self, inner: &[i64]) -> Result<()> {
        self.reduced.clear();
        let n_inner = inner.iter().product::<i64>();
        for phase in &self.nest.phases {
            match phase {
                Phase::Reduce(rs) => {
                    let mut acc: Vec<Option<(Val, i64)>> = vec![None; rs.len()];
                    for i in 0..n_inner {
                        self.start(unravel(i, inner));
                        for (r, a) in rs.iter().zip(&mut acc) {
                            let x = self.eval(r.value)?;
                            *a = Some(match *a {
                                None => (x, i),
                                Some(old) => scalar::combine(r.combiner, old, (x, i))?,
                            });
                        }
                    }
                    for (r, a) in rs.iter().zip(acc) {
                        let dtype = self.types[r.value.index()];
                        self.reduced.push(match (r.combiner, a) {
                            (Combiner::ArgMax | Combiner::ArgMin, a) => Val::I64(a.map_or(0, |a| a.1)),
                            (_, Some(a)) => a.0,
                            (c, None) => scalar::identity(c, dtype)?,
                        });
                    }
                }
                Phase::Store { over_inner, stores } => {
                    for i in 0..if *over_inner { n_inner } else { 1 } {
                        self.start(if *over_inner { unravel(i, inner) } else { vec![] });
                        for (a, e) in stores {
                            let x = self.eval(*e)?;
                            let (k, at) = self.position(a)?;
                            let p = self.ptrs[k].clone();
                            self.it.store(&p, at, x)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
    fn start(&mut self, inner: Vec<i64>) {
        self.at_inner = inner;
        self.memo.clear();
        self.memo.resize(self.nest.exprs.len(), None);
    }
    fn axis(&self, a: Axis) -> Result<i64> {
        let v = match a {
            Axis::Outer(i) => self.at_outer.get(usize::from(i)),
            Axis::Inner(i) => self.at_inner.get(usize::from(i)),
        };
        v.copied().ok_or_else(|| internal(format!("{a:?} is not iterated here")))
    }
    /// Operand and position in elements of an access; every coordinate is checked.
    fn position(&mut self, a: &Access) -> Result<(usize, i64)> {
        let k = usize::from(a.operand);
        let mut at = self.ptrs[k].offset;
        if a.coords.len() != self.ptrs[k].shape.len() {
            return Err(internal(format!("{} coordinates for rank {}", a.coords.len(), self.ptrs[k].shape.len())));
        }
        for (axis, c) in a.coords.iter().enumerate() {
            let mut x = self.it.eval(c.offset)?;
            for &(t, factor) in &c.terms {
                let v = match t {
                    Term::Axis(a) => self.axis(a)?,
                    Term::Expr(e) => self.eval(e)?.as_i64(),
                };
                x += v * self.it.eval(factor)?;
            }
            let d = self.ptrs[k].shape[axis];
            if x < 0 || x >= d {
                return Err(internal(format!("coordinate {x} along axis {axis} of extent {d}")));
            }
            at += x * self.ptrs[k].strides[axis];
        }
        Ok((k, at))
    }
    fn eval(&mut self, e: ExprId) -> Result<Val> {
        if let Some(v) = self.memo[e.index()] {
            return Ok(v);
        }
        let dtype = self.types[e.index()];
        let nest = self.nest;
        let v = match nest.get(e) {
            Expr::Float(bits, d) => Val::float(f64::from_bits(*bits), *d),
            Expr::Int(v, d) => Val::int(*v, *d),
            Expr::Index(a) => Val::I64(self.axis(*a)?),
            Expr::Dim(d) => Val::I64(self.it.eval(*d)?),
            Expr::Load(a) => self.load(a)?,
            Expr::LoadIf { cond, access, other } => match self.eval(*cond)?.as_i64() {
                0 => self.eval(*other)?,
                _ => self.load(access)?,
            },
            Expr::Reduced(i) => self.reduced[usize::from(*i)],
            Expr::Unary(op, a) => scalar::unary(*op, self.eval(*a)?)?,
            Expr::Binary(op, a, b) => scalar::binary(*op, self.eval(*a)?, self.eval(*b)?)?,
            Expr::Select(c, a, b) => {
                // Both are evaluated.
                let (c, a, b) = (self.eval(*c)?, self.eval(*a)?, self.eval(*b)?);
                if c.as_i64() != 0 { a } else { b }
            }
            Expr::Cast(a, d) => self.eval(*a)?.cast(*d)?,
            Expr::Round(a, d) => self.eval(*a)?.round(*d)?,
            other => return Err(internal(format!("{other:?} is not known here"))),
        };
        if v.dtype() != dtype {
            return Err(internal(format!("{e} is {} but has compute type {dtype}", v.dtype())));
        }
        self.memo[e.index()] = Some(v);
        Ok(v)
    }
    fn load(&mut self, a: &Access) -> Result<Val> {
        let (k, at) = self.position(a)?;
        let p = &self.ptrs[k];
        let compute = compute_dtype(p.dtype).ok_or_else(|| internal(format!("{} has no compute type", p.dtype)))?;
        self.it.load(p, at)?.cast(compute)
    }
}
