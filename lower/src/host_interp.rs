//! The interpreter of host programs: what generated host code and the runtime do, on byte arenas. Tests compare it with the other
//! interpreters; a pool begins with every bit set, so that bytes taken from another buffer or from nobody show.

use crate::hip_interp::{Interp, Ptr};
use crate::host::*;
use crate::program_kernels::map_dims;
use crate::program_regs::eval;
use ir::Module;
use ir::hip::{Call, Hip};
use rustc_hash::FxHashMap;
use tensor::{DType, Diagnostic, DimId, Entity, ErrorKind, Result, Tensor};

/// What a run did besides its results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Bytes of each domain at the end.
    pub pools: Vec<i64>,
    /// Launches, catalog kernels and copies that ran.
    pub n_launches: usize,
    /// Catalog kernels that ran.
    pub n_kernels: usize,
    /// Copies that ran.
    pub n_copies: usize,
    /// Calls of `Output`: index and extents, in order.
    pub outputs: Vec<(u32, Vec<i64>)>,
}

/// Runs a program. `m` is the module it was made from, for constants.
///
/// # Errors
/// `Guard` when a guard does not hold, `Argument` for inputs that do not fit the ports, `Internal` for what the program must not do: leave a
/// buffer, divide by zero, use a register before it is set.
pub fn run(p: &HostProgram, m: &Module<Hip>, inputs: &[Tensor]) -> Result<(Vec<Tensor>, Trace)> {
    if inputs.len() != p.inputs.len() {
        return Err(argument(format!("{} inputs are given where there are {}", inputs.len(), p.inputs.len())));
    }
    for (t, port) in inputs.iter().zip(&p.inputs) {
        let fits = t.dtype() == port.dtype
            && t.shape().len() == port.fixed.len()
            && t.shape().iter().zip(&port.fixed).all(|(&d, f)| f.is_none_or(|f| i64::try_from(d) == Ok(f)));
        if !fits {
            return Err(argument(format!("input {:?} is {}{:?}", port.name, t.dtype(), t.shape())));
        }
    }
    let mut r = Run {
        p,
        m,
        regs: vec![None; p.n_regs as usize],
        buffers: vec![],
        inputs,
        pools: vec![None; p.domains.len()],
        consts: vec![None; p.constants.len()],
        outputs: vec![None; p.outputs.len()],
        trace: Trace::default(),
    };
    r.func(FuncId::new(0))?;
    let mut results = vec![];
    for (i, o) in r.outputs.iter().enumerate() {
        let (buffer, dims) = o.clone().ok_or_else(|| bug(format!("output {i} was not asked for")))?;
        let shape: Vec<usize> = dims.iter().map(|&d| usize::try_from(d).unwrap_or(0)).collect();
        results.push(Tensor::new(p.outputs[i].dtype, &shape, r.buffers[buffer].clone().into())?);
    }
    r.trace.pools = r.pools.iter().map(|p| p.map_or(0, |b| len(&r.buffers[b]))).collect();
    Ok((results, r.trace))
}

fn bug(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, what)
}
fn argument(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Argument, what)
}
fn len(b: &[u8]) -> i64 {
    i64::try_from(b.len()).unwrap_or(i64::MAX)
}

/// Addresses are a buffer's number, from 1, above this many bits of offset.
const OFFSET_BITS: u32 = 40;

struct Run<'a> {
    p: &'a HostProgram,
    m: &'a Module<Hip>,
    regs: Vec<Option<i64>>,
    buffers: Vec<Vec<u8>>,
    inputs: &'a [Tensor],
    /// Buffers of domains, constants and outputs.
    pools: Vec<Option<usize>>,
    consts: Vec<Option<usize>>,
    outputs: Vec<Option<(usize, Vec<i64>)>>,
    trace: Trace,
}

impl Run<'_> {
    fn get(&self, r: Reg) -> Result<i64> {
        self.regs[r.index()].ok_or_else(|| bug(format!("{r} is used before it is set")))
    }
    fn all(&self, rs: &[Reg]) -> Result<Vec<i64>> {
        rs.iter().map(|&r| self.get(r)).collect()
    }
    fn set(&mut self, r: Reg, v: i64) {
        self.regs[r.index()] = Some(v);
    }
    fn new_buffer(&mut self, bytes: Vec<u8>) -> i64 {
        self.buffers.push(bytes);
        i64::try_from(self.buffers.len()).unwrap_or(0) << OFFSET_BITS
    }
    /// Buffer and offset of an address.
    fn place(&self, addr: i64) -> Result<(usize, i64)> {
        let buffer = usize::try_from((addr >> OFFSET_BITS) - 1).ok().filter(|&b| b < self.buffers.len());
        let buffer = buffer.ok_or_else(|| bug(format!("{addr:#x} is no address")))?;
        Ok((buffer, addr & ((1 << OFFSET_BITS) - 1)))
    }
    fn range(&self, addr: i64, n: i64) -> Result<(usize, std::ops::Range<usize>)> {
        let (b, at) = self.place(addr)?;
        let range = usize::try_from(at).ok().zip(usize::try_from(n).ok()).map(|(a, n)| a..a + n);
        let range = range.filter(|r| r.end <= self.buffers[b].len());
        Ok((b, range.ok_or_else(|| bug(format!("bytes {at}..+{n} leave a buffer of {}", self.buffers[b].len())))?))
    }

    fn func(&mut self, f: FuncId) -> Result<()> {
        let p = self.p;
        for s in &p.funcs[f.index()].body {
            let named = |e: Diagnostic| match node_of(s).and_then(|n| p.debug.get(n as usize)) {
                Some(d) if !d.path.is_empty() => e.node(d.path.clone()),
                _ => e,
            };
            self.stmt(s).map_err(|e| named(e).note("statement", p.stmt(s)))?;
        }
        Ok(())
    }

    fn stmt(&mut self, s: &Stmt) -> Result<()> {
        match s {
            Stmt::Const(r, v) => self.set(*r, *v),
            Stmt::Int(r, op, a, b) => {
                let (a, b) = (self.get(*a)?, self.get(*b)?);
                let v = eval(*op, a, b).ok_or_else(|| bug(format!("{op:?} of {a} and {b} has no value")))?;
                self.set(*r, v);
            }
            Stmt::InputDim(r, input, axis) => {
                let d = self.inputs[*input as usize].shape()[*axis as usize];
                self.set(*r, i64::try_from(d).unwrap_or(i64::MAX));
            }
            Stmt::InputPtr(r, input) => {
                let bytes = self.inputs[*input as usize].bytes().to_vec();
                let at = self.new_buffer(bytes);
                self.set(*r, at);
            }
            Stmt::ConstPtr(r, c) => {
                let i = *c as usize;
                if self.consts[i].is_none() {
                    let t = self.m.consts[self.p.constants[i].konst].read()?;
                    self.new_buffer(t.bytes().to_vec());
                    self.consts[i] = Some(self.buffers.len());
                }
                let at = i64::try_from(self.consts[i].unwrap_or(0)).unwrap_or(0) << OFFSET_BITS;
                self.set(*r, at);
            }
            Stmt::Reserve { base, domain, bytes } => {
                let bytes = usize::try_from(self.get(*bytes)?).map_err(|_| bug("a pool of negative size"))?;
                let at = self.new_buffer(vec![0xff; bytes]);
                self.pools[*domain as usize] = Some(self.buffers.len() - 1);
                self.set(*base, at);
            }
            Stmt::Output { ptr, index, dims } => {
                let dims = self.all(dims)?;
                let n: i64 = dims.iter().product();
                let n = usize::try_from(n).map_err(|_| bug("an output of negative size"))?;
                let bytes = self.p.outputs[*index as usize].dtype.size_bytes(n).unwrap_or(0);
                let at = self.new_buffer(vec![0xff; bytes]);
                if self.outputs[*index as usize].is_some() {
                    return Err(bug(format!("output {index} is asked for twice")));
                }
                self.outputs[*index as usize] = Some((self.buffers.len() - 1, dims.clone()));
                self.trace.outputs.push((*index, dims));
                self.set(*ptr, at);
            }
            Stmt::Guard { cond, sides, what, .. } => {
                if self.get(*cond)? == 0 {
                    let (a, b) = (self.get(sides.0)?, self.get(sides.1)?);
                    let text = format!("{}; here {a} and {b}", self.p.guards[*what as usize]);
                    return Err(Diagnostic::new(ErrorKind::Guard, text));
                }
            }
            Stmt::Launch { kernel, buffers, params, points, .. } => {
                let (buffers, params) = (self.all(buffers)?, self.all(params)?);
                let points = self.get(*points)?;
                self.trace.n_launches += 1;
                if points > 0 {
                    self.launch(&self.p.kernels[*kernel as usize], &buffers, &params, points)?;
                }
            }
            Stmt::Kernel { id, buffers, ints, scalars, .. } => {
                let (buffers, ints) = (self.all(buffers)?, self.all(ints)?);
                self.trace.n_kernels += 1;
                self.kernel(*id, &buffers, &ints, scalars)?;
            }
            Stmt::HostOp { op, .. } => {
                let text = &self.p.host_ops[*op as usize];
                return Err(Diagnostic::new(ErrorKind::Unsupported, format!("host op {text} in this interpreter")));
            }
            Stmt::Copy { dst, src, bytes, .. } => {
                let n = self.get(*bytes)?;
                self.trace.n_copies += 1;
                let (a, from) = self.range(self.get(src.0)?, n)?;
                let (b, to) = self.range(self.get(dst.0)?, n)?;
                let bytes = self.buffers[a][from].to_vec();
                self.buffers[b][to].copy_from_slice(&bytes);
            }
            Stmt::StoreInts { ptr, dtype, values } => {
                let at = self.get(*ptr)?;
                let mut bytes = vec![];
                for v in self.all(values)? {
                    match dtype {
                        DType::I32 => {
                            let v = i32::try_from(v).map_err(|_| bug(format!("{v} is no i32")))?;
                            bytes.extend_from_slice(&v.to_le_bytes());
                        }
                        _ => bytes.extend_from_slice(&v.to_le_bytes()),
                    }
                }
                let (b, r) = self.range(at, len(&bytes))?;
                self.buffers[b][r].copy_from_slice(&bytes);
            }
            Stmt::Readback { reg, ptr, dtype, index, .. } => {
                let size = i64::try_from(dtype.size().unwrap_or(1)).unwrap_or(1);
                let (b, r) = self.range(self.get(*ptr)? + i64::from(*index) * size, size)?;
                let bytes = &self.buffers[b][r];
                let word = |n: usize| {
                    let mut w = [0u8; 8];
                    w[..n].copy_from_slice(&bytes[..n]);
                    i64::from_le_bytes(w)
                };
                let v = match dtype {
                    DType::Bool | DType::U8 => i64::from(bytes[0]),
                    DType::I32 => word(4) << 32 >> 32,
                    DType::I64 => word(8),
                    d => return Err(bug(format!("a readback of {d}"))),
                };
                self.set(*reg, v);
            }
            Stmt::Call(f) => self.func(*f)?,
            Stmt::If { cond, then, els, merges } => {
                let taken = self.get(*cond)? != 0;
                self.func(if taken { *then } else { *els })?;
                for (r, a, b) in merges {
                    let v = self.get(if taken { *a } else { *b })?;
                    self.set(*r, v);
                }
            }
            Stmt::Loop { carried, go, body } => {
                for (r, init, _) in carried {
                    let v = self.get(*init)?;
                    self.set(*r, v);
                }
                while self.get(*go)? != 0 {
                    self.func(*body)?;
                    let next = carried.iter().map(|(_, _, n)| self.get(*n)).collect::<Result<Vec<_>>>()?;
                    for ((r, _, _), v) in carried.iter().zip(next) {
                        self.set(*r, v);
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs something on the other interpreter, over our buffers. `f` gets a module that has nothing but dims.
    fn with_interp(&mut self, m: &Module<Hip>, f: impl FnOnce(&mut Interp<'_>) -> Result<()>) -> Result<()> {
        let mut it = Interp { m, buffers: std::mem::take(&mut self.buffers), env: FxHashMap::default() };
        let result = f(&mut it);
        self.buffers = it.buffers;
        result
    }

    fn ptr(&self, addr: i64, dtype: DType, shape: Vec<i64>, strides: Vec<i64>) -> Result<Ptr> {
        let (buffer, at) = self.place(addr)?;
        let size = i64::try_from(dtype.size().unwrap_or(1)).unwrap_or(1);
        if at % size != 0 {
            return Err(bug(format!("address {at} of {dtype} is not aligned")));
        }
        Ok(Ptr { buffer, offset: at / size, shape, strides, dtype })
    }

    fn launch(&mut self, k: &KernelDef, buffers: &[i64], params: &[i64], points: i64) -> Result<()> {
        let mut m = Module::<Hip>::new(self.m.registry.clone());
        let value = |d: DimId| {
            k.dims.iter().find(|(x, _)| *x == d).and_then(|(_, s)| match s {
                DimSource::Const(c) => Some(*c),
                DimSource::Param(i) => params.get(*i as usize).copied(),
            })
        };
        let nest = map_dims(&k.nest, &mut |d| m.dims.constant(value(d).unwrap_or(i64::MIN)));
        let get = |d: &DimId| m.dims.as_const(*d).unwrap_or(0);
        if nest.outer.iter().map(get).product::<i64>() != points {
            return Err(bug(format!("{} is launched over {points} points", k.name)));
        }
        let mut ops = vec![];
        for (o, &addr) in nest.operands.iter().zip(buffers) {
            let (shape, strides) = (o.shape.iter().map(get).collect(), o.strides.iter().map(get).collect());
            ops.push(self.ptr(addr, o.dtype, shape, strides)?);
        }
        self.with_interp(&m, |it| it.launch(&nest, &ops))
    }

    fn kernel(&mut self, id: u32, buffers: &[i64], ints: &[i64], scalars: &[f64]) -> Result<()> {
        let def = kernels::catalog::CATALOG.get(id as usize).ok_or_else(|| bug(format!("there is no kernel {id}")))?;
        let mut m = Module::<Hip>::new(self.m.registry.clone());
        let ints = ints.iter().map(|&i| m.dims.constant(i)).collect();
        let n_reads = def.buffers.iter().filter(|b| b.access == kernels::catalog::Access::Read).count();
        let call = Call {
            kernel: def.name,
            n_reads: u32::try_from(n_reads).unwrap_or(0),
            ints,
            scalars: scalars.iter().map(|s| s.to_bits()).collect(),
        };
        let mut ops = vec![];
        for (b, &addr) in def.buffers.iter().zip(buffers) {
            ops.push(if addr == 0 { None } else { Some(self.ptr(addr, b.dtype, vec![], vec![])?) });
        }
        self.with_interp(&m, |it| it.call(&call, &ops))
    }
}

fn node_of(s: &Stmt) -> Option<u32> {
    match s {
        Stmt::Guard { node, .. }
        | Stmt::Launch { node, .. }
        | Stmt::Kernel { node, .. }
        | Stmt::HostOp { node, .. }
        | Stmt::Copy { node, .. }
        | Stmt::Readback { node, .. } => Some(*node),
        _ => None,
    }
}
