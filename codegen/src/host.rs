//! A host program becomes one LLVM function for each of its functions: `i32 name(ptr ctx, ptr frame)`.
//!
//! Registers are SSA values; one that another function uses has a slot in the run frame, too. The functions of the runtime's table are
//! called through a module-internal copy that `hip_ep_init` fills, so there is no undefined symbol. Every call's status is tested; the
//! first failure returns. Sizes and offsets are plain arithmetic whose overflow is gathered and tested before the next call.

use crate::emit::{Em, I};
use inkwell::IntPredicate as IP;
use inkwell::attributes::AttributeLoc;
use inkwell::basic_block::BasicBlock;
use inkwell::module::Linkage;
use inkwell::types::FunctionType;
use inkwell::values::{BasicMetadataValueEnum as Arg, FunctionValue, GlobalValue, IntValue, PointerValue};
use ir::hip::Space;
use lower::host::{Desc, Func, HostProgram, IntOp, Reg, Stmt};
use runtime::abi::{self, FIELDS};
use rustc_hash::{FxHashMap, FxHashSet};
use tensor::{Diagnostic, Entity, ErrorKind, Result};

/// Symbols a compiled model exports.
pub const EXPORTS: &[&str] =
    &[abi::SYM_INIT, abi::SYM_RUN, abi::SYM_FRAME_WORDS, abi::SYM_ABI_HASH, abi::SYM_METADATA, "hip_ep_metadata_len"];

/// Words of the frame that a run of the program needs.
///
/// # Errors
/// `Internal` when the program is broken.
pub fn frame_words(p: &HostProgram) -> Result<u64> {
    Ok(u64::try_from(Frame::of(p)?.slots.len()).unwrap_or(u64::MAX))
}

/// Which registers live in the frame.
struct Frame {
    slots: FxHashMap<Reg, u32>,
}

fn broken(what: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, format!("the host program is broken: {what}"))
}

/// Registers a statement defines and uses in its own function, in that order; what an `If` or `Loop` takes from its functions is used
/// here, after the call.
fn def_use(s: &Stmt) -> (Vec<Reg>, Vec<Reg>) {
    match s {
        Stmt::Const(r, _) | Stmt::InputDim(r, ..) | Stmt::InputPtr(r, _) | Stmt::ConstPtr(r, _) => (vec![*r], vec![]),
        Stmt::Int(r, _, a, b) => (vec![*r], vec![*a, *b]),
        Stmt::Reserve { base, bytes, .. } => (vec![*base], vec![*bytes]),
        Stmt::Output { ptr, dims, .. } => (vec![*ptr], dims.clone()),
        Stmt::Guard { cond, sides, .. } => (vec![], vec![*cond, sides.0, sides.1]),
        Stmt::Launch { buffers, params, points, work, .. } => {
            (vec![], buffers.iter().chain(params).chain([points, work]).copied().collect())
        }
        Stmt::Kernel { buffers, ints, .. } => (vec![], buffers.iter().chain(ints).copied().collect()),
        Stmt::HostOp { tensors, .. } => {
            (vec![], tensors.iter().flatten().flat_map(|d| d.dims.iter().chain([&d.ptr])).copied().collect())
        }
        Stmt::Copy { dst, src, bytes, .. } => (vec![], vec![dst.0, src.0, *bytes]),
        Stmt::StoreInts { ptr, values, .. } => (vec![], values.iter().chain([ptr]).copied().collect()),
        Stmt::Readback { reg, ptr, .. } => (vec![*reg], vec![*ptr]),
        Stmt::If { cond, merges, .. } => {
            (merges.iter().map(|m| m.0).collect(), merges.iter().flat_map(|m| [m.1, m.2]).chain([*cond]).collect())
        }
        Stmt::Loop { carried, go, .. } => {
            (carried.iter().map(|c| c.0).collect(), carried.iter().flat_map(|c| [c.1, c.2]).chain([*go]).collect())
        }
        _ => (vec![], vec![]),
    }
}

impl Frame {
    fn of(p: &HostProgram) -> Result<Frame> {
        let mut home: FxHashMap<Reg, usize> = FxHashMap::default();
        // What a loop carries is read by its body, so it always has a slot.
        let mut shared: FxHashSet<Reg> = FxHashSet::default();
        for (i, f) in p.funcs.iter().enumerate() {
            for s in &f.body {
                for r in def_use(s).0 {
                    if home.insert(r, i).is_some() {
                        return Err(broken(format!("register {r} is defined twice")));
                    }
                }
                if let Stmt::Loop { carried, .. } = s {
                    shared.extend(carried.iter().map(|c| c.0));
                }
            }
        }
        for (i, f) in p.funcs.iter().enumerate() {
            for s in &f.body {
                for r in def_use(s).1 {
                    match home.get(&r) {
                        Some(h) if *h == i => {}
                        Some(_) => {
                            shared.insert(r);
                        }
                        None => return Err(broken(format!("register {r} of function {} is never defined", f.name))),
                    }
                }
            }
        }
        let mut order: Vec<_> = shared.into_iter().collect();
        order.sort();
        let slots = order.into_iter().zip(0u32..).collect();
        Ok(Frame { slots })
    }
}

/// Emits the host program into the module of `e`; kernels are declared and come from other modules. Without `cpu_kernels` their
/// addresses are null.
///
/// # Errors
/// `Internal` where the program refers to what it does not have.
pub fn emit(e: &Em<'_, '_>, p: &HostProgram, metadata: &[u8], cpu_kernels: bool) -> Result<()> {
    let frame = Frame::of(p)?;
    let table = emit_table(e);
    export_u64(e, abi::SYM_FRAME_WORDS, frame_words(p)?);
    export_u64(e, abi::SYM_ABI_HASH, abi::abi_hash());
    export_u64(e, "hip_ep_metadata_len", u64::try_from(metadata.len()).unwrap_or(u64::MAX));
    let bytes = e.ctx.const_string(metadata, false);
    let g = e.m.add_global(bytes.get_type(), None, abi::SYM_METADATA);
    g.set_initializer(&bytes);
    g.set_constant(true);
    g.set_alignment(8);

    let fty = e.i32().fn_type(&[e.ptr().into(), e.ptr().into()], false);
    let mut funcs = Vec::new();
    for (i, f) in p.funcs.iter().enumerate() {
        let mut name = format!("f{i}.{}", f.name);
        name.retain(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        funcs.push(e.m.add_function(&name, fty, Some(Linkage::Internal)));
    }
    let kty = e.i32().fn_type(&[e.ptr().into(), e.ptr().into(), e.i64().into(), e.i64().into()], false);
    let kernels: Vec<_> = p
        .kernels
        .iter()
        .map(|k| match cpu_kernels {
            true => e.m.add_function(&k.name, kty, Some(Linkage::External)).as_global_value().as_pointer_value(),
            false => e.ptr().const_null(),
        })
        .collect();
    for (f, v) in p.funcs.iter().zip(&funcs) {
        attributes(e, *v);
        let mut h = Host::new(e, f, &frame, table, &funcs, &kernels, *v);
        h.body()?;
    }

    let run = e.m.add_function(abi::SYM_RUN, fty, None);
    attributes(e, run);
    e.at(e.ctx.append_basic_block(run, "entry"));
    let status = match funcs.first() {
        Some(f) => {
            let params: Vec<Arg<'_>> = run.get_params().into_iter().map(Into::into).collect();
            e.call(*f, &params).into_int_value()
        }
        None => e.i32().const_zero(),
    };
    e.ret(&status);
    Ok(())
}

fn attributes<'c>(e: &Em<'_, 'c>, f: FunctionValue<'c>) {
    // Orchestration gains nothing from optimisation and costs much compile time.
    for a in ["nounwind", "noinline", "optnone"] {
        e.attr(f, AttributeLoc::Function, a);
    }
    e.string_attr(f, "no-builtins", "");
}

fn export_u64(e: &Em<'_, '_>, name: &str, v: u64) {
    let g = e.m.add_global(e.i64(), None, name);
    g.set_initializer(&e.i64().const_int(v, false));
    g.set_constant(true);
}

/// The copy of the table and `hip_ep_init`, which fills it.
fn emit_table<'c>(e: &Em<'_, 'c>) -> GlobalValue<'c> {
    let n = u32::try_from(FIELDS.len()).unwrap_or(u32::MAX);
    let ty = e.ptr().array_type(n);
    let g = e.m.add_global(ty, None, "table");
    g.set_initializer(&ty.const_zero());
    g.set_linkage(Linkage::Internal);

    let f = e.m.add_function(abi::SYM_INIT, e.i32().fn_type(&[e.ptr().into()], false), None);
    attributes(e, f);
    e.at(e.ctx.append_basic_block(f, "entry"));
    let from = f.get_nth_param(0).expect("one parameter").into_pointer_value();
    let (keep, refuse) = (e.block("keep"), e.block("refuse"));
    let word = |i: i64| e.load(e.i64(), e.gep(e.i64(), from, e.c64(i))).into_int_value();
    let size = i64::try_from(std::mem::size_of::<abi::Table>()).unwrap_or(i64::MAX);
    let same_size = e.icmp(IP::EQ, word(0), e.c64(size));
    let same_version = e.icmp(IP::EQ, word(1), e.c64(i64::from(abi::ABI_VERSION)));
    e.cond_br(e.and(same_size, same_version), keep, refuse);
    e.at(refuse);
    e.ret(&e.c32(1));
    e.at(keep);
    for i in 0..i64::from(n) {
        let v = e.load(e.ptr(), e.gep(e.ptr(), from, e.c64(i + 2))).into_pointer_value();
        e.store(e.gep(e.ptr(), g.as_pointer_value(), e.c64(i)), v);
    }
    e.ret(&e.i32().const_zero());
    g
}

struct Host<'e, 'a, 'c> {
    e: &'e Em<'a, 'c>,
    f: &'e Func,
    layout: &'e Frame,
    table: GlobalValue<'c>,
    funcs: &'e [FunctionValue<'c>],
    kernels: &'e [PointerValue<'c>],
    ctx: PointerValue<'c>,
    frame: PointerValue<'c>,
    /// Values of registers: those of this function, and those loaded from the frame since the last call of a function.
    values: FxHashMap<Reg, I<'c>>,
    own: FxHashSet<Reg>,
    /// Scratch of the frame: arguments, descriptors, extents, result.
    args: Option<PointerValue<'c>>,
    descs: Option<PointerValue<'c>>,
    dims: Option<PointerValue<'c>>,
    out: PointerValue<'c>,
    /// Returns the status it gets.
    fail: BasicBlock<'c>,
    failures: Vec<(IntValue<'c>, BasicBlock<'c>)>,
    overflow: Option<I<'c>>,
    node: u32,
}

fn space(s: Space) -> u32 {
    match s {
        Space::Device => 0,
        Space::Host => 1,
        Space::HostMapped => 2,
    }
}
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
const DESC_WORDS: i64 = 7;

impl<'e, 'a, 'c> Host<'e, 'a, 'c> {
    #[allow(clippy::too_many_arguments)]
    fn new(
        e: &'e Em<'a, 'c>,
        f: &'e Func,
        layout: &'e Frame,
        table: GlobalValue<'c>,
        funcs: &'e [FunctionValue<'c>],
        kernels: &'e [PointerValue<'c>],
        v: FunctionValue<'c>,
    ) -> Self {
        let param = |i| v.get_nth_param(i).expect("two parameters").into_pointer_value();
        param(0).set_name("ctx");
        param(1).set_name("frame");
        e.at(e.ctx.append_basic_block(v, "entry"));
        let (mut args, mut descs, mut dims) = (0, 0, 0);
        for s in &f.body {
            match s {
                Stmt::Launch { buffers, params, .. } => args = args.max(buffers.len() + params.len()),
                Stmt::Kernel { buffers, ints, scalars, .. } => {
                    args = args.max(buffers.len() + ints.len() + scalars.len())
                }
                Stmt::Output { dims, .. } => args = args.max(dims.len()),
                Stmt::StoreInts { values, .. } => args = args.max(values.len()),
                Stmt::HostOp { tensors, .. } => {
                    descs = descs.max(tensors.len());
                    dims = dims.max(tensors.iter().flatten().map(|d| d.dims.len()).sum());
                }
                _ => {}
            }
        }
        let array = |n: usize, name: &str| (n > 0).then(|| e.alloca(e.i64().array_type(count(n)), name));
        let (args, dims) = (array(args, "args"), array(dims, "dims"));
        let descs = array(descs * 7, "descs");
        let out = e.alloca(e.i64(), "out");
        let fail = e.block("fail");
        let own = f.body.iter().flat_map(|s| def_use(s).0).collect();
        Host {
            e,
            f,
            layout,
            table,
            funcs,
            kernels,
            ctx: param(0),
            frame: param(1),
            values: FxHashMap::default(),
            own,
            args,
            descs,
            dims,
            out,
            fail,
            failures: Vec::new(),
            overflow: None,
            node: 0,
        }
    }

    fn body(&mut self) -> Result<()> {
        let nodes = self.nodes_ahead();
        for (i, s) in self.f.body.iter().enumerate() {
            self.node = nodes[i];
            self.stmt(s)?;
        }
        let e = self.e;
        self.test_overflow();
        e.ret(&e.i32().const_zero());
        e.at(self.fail);
        if self.failures.is_empty() {
            e.b.build_unreachable().expect("the builder stands in a block");
            return Ok(());
        }
        let phi = e.phi(e.i32(), "status");
        for (v, b) in &self.failures {
            phi.add_incoming(&[(v, *b)]);
        }
        e.ret(&phi.as_basic_value());
        Ok(())
    }

    /// The node that an arithmetic failure is reported at: that of the next statement that has one, for its sizes are being computed.
    fn nodes_ahead(&self) -> Vec<u32> {
        let mut out = Vec::new();
        let mut node = None;
        for s in self.f.body.iter().rev() {
            node = match s {
                Stmt::Guard { node, .. }
                | Stmt::Launch { node, .. }
                | Stmt::Kernel { node, .. }
                | Stmt::HostOp { node, .. }
                | Stmt::Copy { node, .. }
                | Stmt::Readback { node, .. } => Some(*node),
                _ => node,
            };
            out.push(node.unwrap_or(u32::MAX));
        }
        out.reverse();
        // After the last one: the last one.
        for i in 1..out.len() {
            if out[i] == u32::MAX {
                out[i] = out[i - 1];
            }
        }
        out
    }

    fn slot(&self, r: Reg) -> Option<PointerValue<'c>> {
        let s = self.layout.slots.get(&r)?;
        Some(self.e.gep(self.e.i64(), self.frame, self.e.c64(i64::from(*s))))
    }
    fn get(&mut self, r: Reg) -> Result<I<'c>> {
        if let Some(v) = self.values.get(&r) {
            return Ok(*v);
        }
        let p = self.slot(r).filter(|_| !self.own.contains(&r));
        let p = p.ok_or_else(|| broken(format!("register {r} is used in {} before its definition", self.f.name)))?;
        let v = self.e.load(self.e.i64(), p).into_int_value();
        v.set_name(&format!("r{}", r.index()));
        self.values.insert(r, v);
        Ok(v)
    }
    fn set(&mut self, r: Reg, v: I<'c>) {
        if !v.is_const() {
            v.set_name(&format!("r{}", r.index()));
        }
        self.values.insert(r, v);
        if let Some(p) = self.slot(r) {
            self.e.store(p, v);
        }
    }
    /// Forgets what other functions may have changed.
    fn forget(&mut self) {
        let own = &self.own;
        self.values.retain(|r, _| own.contains(r));
    }

    fn function_type(&self, field: usize) -> FunctionType<'c> {
        let e = self.e;
        let params: Vec<_> = FIELDS[field]
            .args
            .iter()
            .map(|a| match a.1 {
                "ptr" => e.ptr().into(),
                "i32" => e.i32().into(),
                _ => e.i64().into(),
            })
            .collect();
        e.i32().fn_type(&params, false)
    }

    /// Calls a function of the table; returns its status.
    fn table_call(&self, name: &str, args: &[Arg<'c>]) -> Result<I<'c>> {
        let e = self.e;
        let i = FIELDS.iter().position(|f| f.name == name).ok_or_else(|| broken(format!("no table entry {name}")))?;
        let slot = e.gep(e.ptr(), self.table.as_pointer_value(), e.c64(i64::try_from(i).unwrap_or(0)));
        let f = e.load(e.ptr(), slot).into_pointer_value();
        f.set_name(name);
        let mut all = vec![Arg::from(self.ctx)];
        all.extend_from_slice(args);
        Ok(e.call_ptr(self.function_type(i), f, &all, "status").into_int_value())
    }
    fn check(&mut self, status: I<'c>) {
        let e = self.e;
        let next = e.block("ok");
        self.failures.push((status, e.here()));
        e.cond_br(e.icmp(IP::NE, status, e.i32().const_zero()), self.fail, next);
        e.at(next);
    }
    fn call(&mut self, name: &str, args: &[Arg<'c>]) -> Result<()> {
        self.test_overflow();
        let s = self.table_call(name, args)?;
        self.check(s);
        Ok(())
    }
    /// Calls a function that writes one i64.
    fn call_out(&mut self, name: &str, args: &[Arg<'c>]) -> Result<I<'c>> {
        let mut all = args.to_vec();
        all.push(self.out.into());
        self.call(name, &all)?;
        Ok(self.e.load(self.e.i64(), self.out).into_int_value())
    }
    /// Returns a failure where `bad` holds.
    fn fail_if(&mut self, bad: I<'c>) -> Result<()> {
        let e = self.e;
        let (report, next) = (e.block("arith"), e.block("ok"));
        e.cond_br(bad, report, next);
        e.at(report);
        let s = self.table_call("arith_failed", &[e.c32(self.node).into()])?;
        self.failures.push((s, e.here()));
        e.br(self.fail);
        e.at(next);
        Ok(())
    }
    fn test_overflow(&mut self) {
        if let Some(o) = self.overflow.take() {
            // A table without arith_failed cannot be: its entry is named in this file's tests.
            let _ = self.fail_if(o);
        }
    }
    fn checked(&mut self, name: &str, a: I<'c>, b: I<'c>) -> I<'c> {
        let e = self.e;
        if let (true, true) = (a.is_const(), b.is_const())
            && let (Some(x), Some(y)) = (a.get_sign_extended_constant(), b.get_sign_extended_constant())
        {
            let v = match name {
                "llvm.sadd.with.overflow" => x.checked_add(y),
                "llvm.ssub.with.overflow" => x.checked_sub(y),
                _ => x.checked_mul(y),
            };
            if let Some(v) = v {
                return e.c64(v);
            }
        }
        let pair = e.intr(name, &[e.i64().into()], &[a.into(), b.into()]).into_struct_value();
        let part = |i| e.b.build_extract_value(pair, i, "").expect("a pair").into_int_value();
        let o = part(1);
        self.overflow = Some(match self.overflow {
            Some(x) => e.or(x, o),
            None => o,
        });
        part(0)
    }
    /// Writes words to the argument scratch.
    fn words(&mut self, values: &[I<'c>]) -> PointerValue<'c> {
        let e = self.e;
        let Some(p) = self.args else { return e.ptr().const_null() };
        for (i, v) in (0i64..).zip(values) {
            e.store(e.gep(e.i64(), p, e.c64(i)), *v);
        }
        p
    }
    fn all(&mut self, regs: &[Reg]) -> Result<Vec<I<'c>>> {
        regs.iter().map(|r| self.get(*r)).collect()
    }
    fn in_range(&self, what: &str, i: u32, n: usize) -> Result<usize> {
        let i = usize::try_from(i).unwrap_or(usize::MAX);
        if i < n { Ok(i) } else { Err(broken(format!("{}: {what} {i} of {n}", self.f.name))) }
    }

    fn stmt(&mut self, s: &Stmt) -> Result<()> {
        let e = self.e;
        let k = |v: u32| Arg::from(e.c32(v));
        match s {
            Stmt::Const(r, v) => self.set(*r, e.c64(*v)),
            Stmt::Int(r, op, a, b) => {
                let (a, b) = (self.get(*a)?, self.get(*b)?);
                let v = self.int(*op, a, b)?;
                self.set(*r, v);
            }
            Stmt::InputDim(r, input, axis) => {
                let v = self.call_out("input_dim", &[k(*input), k(*axis)])?;
                self.set(*r, v);
            }
            Stmt::InputPtr(r, input) => {
                let v = self.call_out("input_ptr", &[k(*input)])?;
                self.set(*r, v);
            }
            Stmt::ConstPtr(r, index) => {
                let v = self.call_out("const_ptr", &[k(*index)])?;
                self.set(*r, v);
            }
            Stmt::Reserve { base, domain, bytes } => {
                let n = self.get(*bytes)?;
                let v = self.call_out("reserve", &[k(*domain), n.into()])?;
                self.set(*base, v);
            }
            Stmt::Output { ptr, index, dims } => {
                let d = self.all(dims)?;
                let p = self.words(&d);
                let v = self.call_out("output", &[k(*index), k(count(dims.len())), p.into()])?;
                self.set(*ptr, v);
            }
            Stmt::Guard { cond, sides, what, node } => {
                let (c, l, r) = (self.get(*cond)?, self.get(sides.0)?, self.get(sides.1)?);
                self.test_overflow();
                let (bad, next) = (e.block("guard"), e.block("ok"));
                e.cond_br(e.icmp(IP::EQ, c, e.c64(0)), bad, next);
                e.at(bad);
                let s = self.table_call("guard_failed", &[k(*what), k(*node), l.into(), r.into()])?;
                self.failures.push((s, e.here()));
                e.br(self.fail);
                e.at(next);
            }
            Stmt::Launch { kernel, buffers, params, points, work, node } => {
                let i = self.in_range("kernel", *kernel, self.kernels.len())?;
                let mut words = self.all(buffers)?;
                words.extend(self.all(params)?);
                let (points, work) = (self.get(*points)?, self.get(*work)?);
                self.test_overflow();
                let p = self.words(&words);
                let f = self.kernels[i];
                let (nb, ni) = (k(count(buffers.len())), k(count(params.len())));
                self.call("launch", &[k(*kernel), f.into(), p.into(), nb, ni, points.into(), work.into(), k(*node)])?;
            }
            Stmt::Kernel { id, buffers, ints, scalars, node } => {
                let mut words = self.all(buffers)?;
                words.extend(self.all(ints)?);
                words.extend(scalars.iter().map(|x| e.c64(x.to_bits().cast_signed())));
                let p = self.words(&words);
                let n = [buffers.len(), ints.len(), scalars.len()].map(|n| k(count(n)));
                self.call("kernel", &[k(*id), p.into(), n[0], n[1], n[2], k(*node)])?;
            }
            Stmt::HostOp { op, tensors, n_reads, node } => {
                let p = self.describe(tensors)?;
                self.call("host_op", &[k(*op), p.into(), k(count(tensors.len())), k(*n_reads), k(*node)])?;
            }
            Stmt::Copy { dst, src, bytes, node } => {
                let (d, s, n) = (self.get(dst.0)?, self.get(src.0)?, self.get(*bytes)?);
                let args = [d.into(), k(space(dst.1)), s.into(), k(space(src.1)), n.into(), k(*node)];
                self.call("copy", &args)?;
            }
            Stmt::StoreInts { ptr, dtype, values } => {
                let words = self.all(values)?;
                let to = self.get(*ptr)?;
                let p = self.words(&words);
                let d = e.i32().const_int(i64::from(dtype.onnx()).cast_unsigned(), true);
                self.call("store_ints", &[to.into(), d.into(), k(count(values.len())), p.into()])?;
            }
            Stmt::Readback { reg, ptr, space: sp, dtype, index, node } => {
                let p = self.get(*ptr)?;
                let d = e.i32().const_int(i64::from(dtype.onnx()).cast_unsigned(), true);
                let args = [p.into(), k(space(*sp)), d.into(), k(*index), k(*node)];
                let v = self.call_out("readback", &args)?;
                self.set(*reg, v);
            }
            Stmt::Call(f) => self.call_func(f.index())?,
            Stmt::If { cond, then, els, merges } => {
                let c = self.get(*cond)?;
                self.test_overflow();
                let (yes, no, join) = (e.block("then"), e.block("else"), e.block("join"));
                e.cond_br(e.icmp(IP::NE, c, e.c64(0)), yes, no);
                let before = self.values.clone();
                let mut arms = Vec::new();
                for (block, f, side) in [(yes, then, 0), (no, els, 1)] {
                    e.at(block);
                    self.values.clone_from(&before);
                    self.call_func(f.index())?;
                    let regs: Vec<_> = merges.iter().map(|m| if side == 0 { m.1 } else { m.2 }).collect();
                    let values = self.all(&regs)?;
                    arms.push((values, e.here()));
                    e.br(join);
                }
                e.at(join);
                self.values = before;
                self.forget();
                let phis: Vec<_> = merges.iter().map(|_| e.phi(e.i64(), "")).collect();
                for (i, (m, phi)) in merges.iter().zip(&phis).enumerate() {
                    phi.add_incoming(&[(&arms[0].0[i], arms[0].1), (&arms[1].0[i], arms[1].1)]);
                    let v = phi.as_basic_value().into_int_value();
                    v.set_name(&format!("r{}", m.0.index()));
                    self.values.insert(m.0, v);
                }
                for m in merges {
                    let v = self.get(m.0)?;
                    if let Some(p) = self.slot(m.0) {
                        e.store(p, v);
                    }
                }
            }
            Stmt::Loop { carried, go, body } => {
                let slot = |h: &Self, r: Reg| h.slot(r).ok_or_else(|| broken(format!("loop register {r} has no slot")));
                let initial: Vec<_> = carried.iter().map(|c| c.1).collect();
                let values = self.all(&initial)?;
                self.test_overflow();
                for (c, v) in carried.iter().zip(&values) {
                    e.store(slot(self, c.0)?, *v);
                }
                let go = slot(self, *go)?;
                let (head, run, done) = (e.block("while"), e.block("do"), e.block("done"));
                e.br(head);
                e.at(head);
                let c = e.load(e.i64(), go).into_int_value();
                e.cond_br(e.icmp(IP::NE, c, e.c64(0)), run, done);
                e.at(run);
                let before = self.values.clone();
                self.call_func(body.index())?;
                // All are read before any is written: they may be permuted. A carried register itself is in its slot.
                let mut next = Vec::new();
                for c in carried {
                    next.push(if carried.iter().any(|x| x.0 == c.2) {
                        e.load(e.i64(), slot(self, c.2)?).into_int_value()
                    } else {
                        self.get(c.2)?
                    });
                }
                for (c, v) in carried.iter().zip(&next) {
                    e.store(slot(self, c.0)?, *v);
                }
                e.br(head);
                e.at(done);
                self.values = before;
                self.forget();
                for c in carried {
                    let v = e.load(e.i64(), slot(self, c.0)?).into_int_value();
                    v.set_name(&format!("r{}", c.0.index()));
                    self.values.insert(c.0, v);
                }
            }
            other => return Err(broken(format!("{}: statement {other:?} is not known", self.f.name))),
        }
        Ok(())
    }

    fn call_func(&mut self, i: usize) -> Result<()> {
        let f = *self.funcs.get(i).ok_or_else(|| broken(format!("{} calls function {i}", self.f.name)))?;
        self.test_overflow();
        let s = self.e.call(f, &[self.ctx.into(), self.frame.into()]).into_int_value();
        self.check(s);
        self.forget();
        Ok(())
    }

    /// Fills descriptors in the scratch.
    fn describe(&mut self, tensors: &[Option<Desc>]) -> Result<PointerValue<'c>> {
        let e = self.e;
        let (Some(descs), n_dims) = (self.descs, self.dims) else { return Ok(e.ptr().const_null()) };
        let mut at = 0i64;
        for (i, t) in (0i64..).zip(tensors) {
            let put = |w: i64, v: I<'c>| {
                e.store(e.gep(e.i64(), descs, e.c64(i * DESC_WORDS + w)), v);
            };
            let pair = |lo: u32, hi: u32| e.c64((u64::from(hi) << 32 | u64::from(lo)).cast_signed());
            let Some(t) = t else {
                for w in [0, 1, 2, 3, 5, 6] {
                    put(w, e.c64(0));
                }
                put(4, pair(u32::MAX, 0));
                continue;
            };
            let ptr = self.get(t.ptr)?;
            let extents = self.all(&t.dims)?;
            let mut elems = e.c64(1);
            let first = at;
            for d in &extents {
                if let Some(p) = n_dims {
                    e.store(e.gep(e.i64(), p, e.c64(at)), *d);
                }
                at += 1;
                elems = self.checked("llvm.smul.with.overflow", elems, *d);
            }
            let bits = i64::try_from(t.dtype.bits()).unwrap_or(0);
            let bytes = if bits >= 8 {
                self.checked("llvm.smul.with.overflow", elems, e.c64(bits / 8))
            } else {
                let b = self.checked("llvm.smul.with.overflow", elems, e.c64(bits));
                e.lshr(e.add(b, e.c64(7)), e.c64(3))
            };
            put(0, ptr);
            let dims = match n_dims {
                Some(p) if !extents.is_empty() => {
                    let p = e.gep(e.i64(), p, e.c64(first));
                    e.b.build_ptr_to_int(p, e.i64(), "").expect("a pointer")
                }
                _ => e.c64(0),
            };
            put(1, dims);
            put(2, e.c64(0));
            put(3, bytes);
            put(4, pair(count(extents.len()), t.dtype.onnx().cast_unsigned()));
            put(5, pair(space(t.space), 0));
            put(6, e.c64(0));
        }
        Ok(descs)
    }

    fn int(&mut self, op: IntOp, a: I<'c>, b: I<'c>) -> Result<I<'c>> {
        let e = self.e;
        let flag = |p| e.zext(e.icmp(p, a, b), e.i64());
        Ok(match op {
            IntOp::Add => self.checked("llvm.sadd.with.overflow", a, b),
            IntOp::Sub => self.checked("llvm.ssub.with.overflow", a, b),
            IntOp::Mul => self.checked("llvm.smul.with.overflow", a, b),
            IntOp::Min => e.isel(e.icmp(IP::SLT, a, b), a, b),
            IntOp::Max => e.isel(e.icmp(IP::SGT, a, b), a, b),
            IntOp::Eq => flag(IP::EQ),
            IntOp::Le => flag(IP::SLE),
            IntOp::Lt => flag(IP::SLT),
            IntOp::And => {
                let t = |x: I<'c>| e.icmp(IP::NE, x, e.c64(0));
                e.zext(e.and(t(a), t(b)), e.i64())
            }
            IntOp::FloorDiv | IntOp::CeilDiv | IntOp::Mod => {
                if !b.is_const() || matches!(b.get_sign_extended_constant(), Some(0 | -1) | None) {
                    let zero = e.icmp(IP::EQ, b, e.c64(0));
                    // The least value has no negative.
                    let least = e.and(e.icmp(IP::EQ, b, e.c64(-1)), e.icmp(IP::EQ, a, e.c64(i64::MIN)));
                    let bad = e.or(zero, least);
                    self.test_overflow();
                    self.fail_if(bad)?;
                }
                let (q, r) = (e.sdiv_raw(a, b), e.srem_raw(a, b));
                let rest = e.icmp(IP::NE, r, e.c64(0));
                let differ = e.icmp(IP::SLT, e.xor(r, b), e.c64(0));
                match op {
                    IntOp::FloorDiv => e.sub(q, e.zext(e.and(rest, differ), e.i64())),
                    IntOp::CeilDiv => e.add(q, e.zext(e.and(rest, e.not(differ)), e.i64())),
                    _ => e.add(r, e.isel(e.and(rest, differ), b, e.c64(0))),
                }
            }
        })
    }
}
