//! A loop nest becomes one function of the kernel signature: `i32 name(ptr ctx, ptr args, i64 begin, i64 end)`.
//!
//! Without `inner` the last outer axis is the vector loop, and `begin..end` is cut into rows of it. With `inner` there is one loop over
//! points, and each phase is a loop nest over `inner` whose last axis is the vector loop. Where elements lie contiguous along the last
//! outer axis and not along `inner` (a reduction of columns), the order changes: blocks of outer points, `inner`, points of a block,
//! with the reductions of a block in a small array. The loops are plain scalar loops with what
//! does not vary hoisted in front of them; LLVM's vectoriser widens them. Store loops carry parallel-access metadata: every point
//! touches what is its own, so no run-time overlap check is needed even when a kernel works in place.
//!
//! Results do not depend on `begin..end`: elementwise values are the same in vector bodies and remainders, and the order of a
//! reduction follows from the extents of `inner` alone.

use crate::emit::{Em, I};
use crate::scalar::{self, Val, Why, value_type};
use inkwell::IntPredicate as IP;
use inkwell::attributes::AttributeLoc;
use inkwell::module::Linkage;
use inkwell::types::BasicType;
use inkwell::values::{BasicValue, FunctionValue, InstructionValue, MetadataValue, PointerValue};
use ir::nest::{Access, Axis, Combiner, Expr, ExprId, Nest, Phase, Term};
use lower::host::{DimSource, KernelDef};
use rustc_hash::FxHashMap;
use tensor::{DType, Diagnostic, DimId, Entity, ErrorKind, Result};

/// How deep in the loops a value is fixed: 0 outside all loops, 1 within a row of outer points, 2 at a point, 3 + k within inner axis k.
type Level = usize;
const POINT: Level = 2;
/// Outer points whose reductions run side by side where elements lie contiguous along the last outer axis.
const BLOCK: u32 = 128;

/// Checks that the nest of `def` can be emitted: dtypes, operations, references.
///
/// # Errors
/// `Unsupported` with the reason and the model node; `Internal` where the nest refers to what it does not have.
pub fn check(def: &KernelDef, node: Option<&str>) -> Result<()> {
    let refuse = |kind, why: String| {
        let d = Diagnostic::new(kind, format!("kernel {} cannot be generated: {why}", def.name));
        Err(match node {
            Some(n) => d.node(n),
            None => d,
        })
    };
    for (i, op) in def.nest.operands.iter().enumerate() {
        use DType::*;
        if !matches!(op.dtype, F32 | F64 | F16 | BF16 | Bool | I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64) {
            let what = format!("operand {i} has {} elements, which generated kernels neither load nor store", op.dtype);
            return refuse(ErrorKind::Unsupported, what);
        }
    }
    let n = def.nest.exprs.len();
    for (i, x) in def.nest.exprs.iter().enumerate() {
        if children(x).iter().any(|c| c.index() >= i) {
            return refuse(ErrorKind::Internal, format!("expression e{i} of {n} uses a later one"));
        }
        if let Expr::Load(a) | Expr::LoadIf { access: a, .. } = x
            && usize::from(a.operand) >= def.nest.operands.len()
        {
            return refuse(ErrorKind::Internal, format!("expression e{i} loads operand {}", a.operand));
        }
    }
    Ok(())
}

/// Emits the kernel. The function is internal unless `linkage` says otherwise.
///
/// # Errors
/// As [`check`], and `Unsupported` for an operation that its compute type does not have.
pub fn emit<'c>(e: &Em<'_, 'c>, def: &KernelDef, node: Option<&str>, linkage: Linkage) -> Result<FunctionValue<'c>> {
    check(def, node)?;
    let fty = e.i32().fn_type(&[e.ptr().into(), e.ptr().into(), e.i64().into(), e.i64().into()], false);
    let f = e.m.add_function(&def.name, fty, Some(linkage));
    e.attr(f, AttributeLoc::Function, "nounwind");
    e.string_attr(f, "no-builtins", "");
    for a in ["noalias", "readonly", "nocapture"] {
        e.attr(f, AttributeLoc::Param(1), a);
    }
    for (i, name) in ["ctx", "args", "begin", "end"].iter().enumerate() {
        let p = f.get_nth_param(u32::try_from(i).unwrap_or(0)).expect("four parameters");
        match p {
            inkwell::values::BasicValueEnum::PointerValue(v) => v.set_name(name),
            _ => p.into_int_value().set_name(name),
        }
    }
    e.at(e.ctx.append_basic_block(f, "entry"));
    let kernel = Kernel::new(e, def, f);
    kernel.and_then(|mut k| k.body(f)).map_err(|why| {
        let d = Diagnostic::new(ErrorKind::Unsupported, format!("kernel {} cannot be generated: {why}", def.name));
        match node {
            Some(n) => d.node(n),
            None => d,
        }
    })?;
    Ok(f)
}

fn access_terms(a: &Access) -> impl Iterator<Item = &Term> {
    a.coords.iter().flat_map(|c| c.terms.iter().map(|(t, _)| t))
}

fn children(x: &Expr) -> Vec<ExprId> {
    let in_access = |a: &Access| {
        access_terms(a).filter_map(|t| if let Term::Expr(x) = t { Some(*x) } else { None }).collect::<Vec<_>>()
    };
    match x {
        Expr::Float(..) | Expr::Int(..) | Expr::Index(_) | Expr::Dim(_) | Expr::Reduced(_) => vec![],
        Expr::Load(a) => in_access(a),
        Expr::LoadIf { cond, access, other } => {
            let mut v = in_access(access);
            v.extend([*cond, *other]);
            v
        }
        Expr::Unary(_, a) | Expr::Cast(a, _) | Expr::Round(a, _) => vec![*a],
        Expr::Binary(_, a, b) => vec![*a, *b],
        Expr::Select(a, b, c) => vec![*a, *b, *c],
        _ => vec![],
    }
}

/// Where an element is loaded or stored: an expression, or the k-th store of the current phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Site {
    Load(ExprId),
    Store(usize),
}

struct Kernel<'e, 'a, 'c> {
    e: &'e Em<'a, 'c>,
    nest: &'e Nest,
    dims: FxHashMap<DimId, I<'c>>,
    bufs: Vec<PointerValue<'c>>,
    begin: I<'c>,
    end: I<'c>,
    outer: Vec<Option<I<'c>>>,
    inner: Vec<Option<I<'c>>>,
    reduced: Vec<Option<Val<'c>>>,
    /// Level of each expression.
    levels: Vec<Level>,
    /// Values of expressions that dominate the current block.
    values: Vec<Option<Val<'c>>>,
    /// Addresses of sites with the terms up to a level added.
    addresses: FxHashMap<Site, (Level, PointerValue<'c>)>,
    /// What the current phase needs, in order.
    needed: Vec<ExprId>,
    sites: Vec<(Site, &'e Access)>,
    /// Group of accesses of the vector loop being emitted.
    group: Option<MetadataValue<'c>>,
    /// Reductions of a block of points: an array for each, of value and (for the arg kinds) position. Empty in the usual order.
    arrays: Vec<(PointerValue<'c>, Option<PointerValue<'c>>)>,
    vertical: bool,
    /// First point of the block.
    block_start: Option<I<'c>>,
}

impl<'e, 'a, 'c> Kernel<'e, 'a, 'c> {
    fn new(e: &'e Em<'a, 'c>, def: &'e KernelDef, f: FunctionValue<'c>) -> Why<Self> {
        let nest = &*def.nest;
        let param = |i| f.get_nth_param(i).expect("four parameters");
        let args = param(1).into_pointer_value();
        let bufs = (0i64..).zip(&nest.operands).map(|(i, _)| {
            let p = e.load(e.ptr(), e.gep(e.i64(), args, e.c64(i))).into_pointer_value();
            p.set_name(&format!("buf{i}"));
            p
        });
        let bufs: Vec<_> = bufs.collect();
        let n = i64::try_from(bufs.len()).unwrap_or(0);
        let mut dims = FxHashMap::default();
        for (d, source) in &def.dims {
            let v = match source {
                DimSource::Const(c) => e.c64(*c),
                DimSource::Param(i) => e.load(e.i64(), e.gep(e.i64(), args, e.c64(n + i64::from(*i)))).into_int_value(),
            };
            if matches!(source, DimSource::Param(_)) {
                v.set_name(&d.to_string());
            }
            dims.insert(*d, v);
        }
        let n_reduced = nest.phases.iter().map(|p| if let Phase::Reduce(r) = p { r.len() } else { 0 }).sum();
        let mut k = Kernel {
            e,
            nest,
            dims,
            bufs,
            begin: param(2).into_int_value(),
            end: param(3).into_int_value(),
            outer: vec![None; nest.outer.len()],
            inner: vec![None; nest.inner.len()],
            reduced: vec![None; n_reduced],
            levels: Vec::new(),
            values: vec![None; nest.exprs.len()],
            addresses: FxHashMap::default(),
            needed: Vec::new(),
            sites: Vec::new(),
            group: None,
            arrays: Vec::new(),
            vertical: false,
            block_start: None,
        };
        k.vertical = k.is_vertical();
        for x in &nest.exprs {
            let own = match x {
                Expr::Index(a) => k.axis_level(*a),
                Expr::Reduced(_) => k.point_level(),
                Expr::Load(a) | Expr::LoadIf { access: a, .. } => access_terms(a)
                    .filter_map(|t| if let Term::Axis(x) = t { Some(k.axis_level(*x)) } else { None })
                    .max()
                    .unwrap_or(0),
                _ => 0,
            };
            let level = children(x).iter().map(|c| k.levels[c.index()]).max().unwrap_or(0).max(own);
            k.levels.push(level);
        }
        Ok(k)
    }

    fn has_inner(&self) -> bool {
        !self.nest.inner.is_empty()
    }
    /// Where all outer axes are fixed: in the vertical order that is the innermost loop.
    fn point_level(&self) -> Level {
        if self.vertical { POINT + 1 + self.nest.inner.len() } else { POINT }
    }
    /// Whether reductions read contiguous elements along the last outer axis and not along the last inner one.
    fn is_vertical(&self) -> bool {
        let nest = self.nest;
        let (Some(o), Some(i)) = (nest.outer.len().checked_sub(1), nest.inner.len().checked_sub(1)) else {
            return false;
        };
        let axis = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let (o, i) = (Axis::Outer(axis(o)), Axis::Inner(axis(i)));
        let mut mark = vec![false; nest.exprs.len()];
        for p in &nest.phases {
            if let Phase::Reduce(rs) = p {
                rs.iter().for_each(|r| mark[r.value.index()] = true);
            }
        }
        let mut any = false;
        for x in (0..mark.len()).rev() {
            if !mark[x] {
                continue;
            }
            children(&nest.exprs[x]).iter().for_each(|c| mark[c.index()] = true);
            if let Expr::Load(a) | Expr::LoadIf { access: a, .. } = &nest.exprs[x] {
                let (along, across) = (self.stride(a, o), self.stride(a, i));
                match (along, across) {
                    (Some(1), Some(1)) | (Some(0), _) => {}
                    (Some(1), _) => any = true,
                    _ => return false,
                }
            }
        }
        any
    }
    /// How far apart in memory two neighbors along an axis are, when that is a constant.
    fn stride(&self, a: &Access, axis: Axis) -> Option<i64> {
        let known = |d: DimId| self.dims.get(&d).filter(|v| v.is_const()).and_then(|v| v.get_sign_extended_constant());
        let strides = &self.nest.operands[usize::from(a.operand)].strides;
        let mut sum = 0i64;
        for (c, s) in a.coords.iter().zip(strides) {
            for (t, k) in &c.terms {
                match t {
                    Term::Axis(x) if *x == axis => sum = sum.checked_add(known(*k)?.checked_mul(known(*s)?)?)?,
                    Term::Axis(_) => {}
                    Term::Expr(_) => return None,
                }
            }
        }
        Some(sum)
    }
    fn axis_level(&self, a: Axis) -> Level {
        match a {
            // Within a row all outer axes but the last are fixed.
            Axis::Outer(i) if (self.vertical || !self.has_inner()) && usize::from(i) + 1 < self.nest.outer.len() => 1,
            Axis::Outer(_) => self.point_level(),
            Axis::Inner(i) => POINT + 1 + usize::from(i),
        }
    }
    fn term_level(&self, t: &Term) -> Level {
        match t {
            Term::Axis(a) => self.axis_level(*a),
            Term::Expr(x) => self.levels[x.index()],
        }
    }
    fn access_level(&self, a: &Access) -> Level {
        access_terms(a).map(|t| self.term_level(t)).max().unwrap_or(0)
    }
    fn dim(&self, d: DimId) -> Why<I<'c>> {
        self.dims.get(&d).copied().ok_or_else(|| format!("dim {d} has no source"))
    }
    fn axis(&self, a: Axis) -> Why<I<'c>> {
        let v = match a {
            Axis::Outer(i) => self.outer.get(usize::from(i)),
            Axis::Inner(i) => self.inner.get(usize::from(i)),
        };
        v.copied().flatten().ok_or_else(|| format!("axis {a:?} is not one of a loop around its use"))
    }

    /// Emits the loops.
    fn body(&mut self, f: FunctionValue<'c>) -> Why<()> {
        let e = self.e;
        if self.vertical {
            for p in &self.nest.phases {
                let Phase::Reduce(rs) = p else { continue };
                for r in rs {
                    let value = e.alloca(value_type(e, self.nest.expr_dtype(r.value)).array_type(BLOCK), "acc");
                    let arg = matches!(r.combiner, Combiner::ArgMax | Combiner::ArgMin);
                    self.arrays.push((value, arg.then(|| e.alloca(e.i64().array_type(BLOCK), "at"))));
                }
            }
        }
        let (work, exit) = (e.block("work"), e.block("exit"));
        e.cond_br(e.icmp(IP::SLT, self.begin, self.end), work, exit);
        e.at(exit);
        e.ret(&e.i32().const_zero());
        e.at(work);
        match () {
            _ if self.vertical => self.blocks(exit),
            _ if self.has_inner() => self.points(exit),
            _ => self.rows(exit),
        }?;
        debug_assert!(f.verify(true), "the emitter made a function that LLVM refuses");
        Ok(())
    }

    /// Indices of the outer axes `axes` for a linear position: the last varies fastest.
    fn decode(&self, mut p: I<'c>, axes: &[DimId]) -> Why<Vec<I<'c>>> {
        let e = self.e;
        let mut idx = Vec::new();
        for (k, d) in axes.iter().enumerate().rev() {
            if k == 0 {
                idx.push(p);
            } else {
                let n = self.dim(*d)?;
                idx.push(e.urem_raw(p, n));
                p = e.udiv_raw(p, n);
            }
        }
        idx.reverse();
        Ok(idx)
    }
    /// The indices after `idx`.
    fn advance(&self, idx: &[I<'c>], axes: &[DimId]) -> Why<Vec<I<'c>>> {
        let e = self.e;
        let mut out = idx.to_vec();
        let mut carry = None;
        for k in (0..idx.len()).rev() {
            let next = e.add(idx[k], e.c64(1));
            let next = match carry {
                Some(c) => e.isel(c, next, idx[k]),
                None => next,
            };
            if k == 0 {
                out[0] = next;
            } else {
                let wrap = e.icmp(IP::EQ, next, self.dim(axes[k])?);
                out[k] = e.isel(wrap, e.c64(0), next);
                carry = Some(wrap);
            }
        }
        Ok(out)
    }

    /// Nests without inner axes.
    fn rows(&mut self, exit: inkwell::basic_block::BasicBlock<'c>) -> Why<()> {
        let e = self.e;
        let nest = self.nest;
        let stores: Vec<_> = nest
            .phases
            .iter()
            .flat_map(|p| match p {
                Phase::Store { stores, .. } => stores.as_slice(),
                Phase::Reduce(_) => &[],
            })
            .collect();
        let has_reduce = nest.phases.iter().any(|p| matches!(p, Phase::Reduce(_)));
        if has_reduce {
            // One inner point: the reduction is its only value.
            return self.points(exit);
        }
        self.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
        self.hoist(0)?;
        let Some((last, fixed)) = nest.outer.split_last() else {
            self.vector_loop(self.begin, self.end, &stores, None)?;
            e.br(exit);
            return Ok(());
        };
        self.each_row(*last, fixed, exit, &mut |k, from, to| {
            k.hoist(1)?;
            k.vector_loop(from, to, &stores, Some(fixed.len()))
        })
    }

    /// Cuts `begin..end` into rows of the last outer axis; `body` gets the part of the row and has the other outer axes set.
    fn each_row(
        &mut self,
        last: DimId,
        fixed: &[DimId],
        exit: inkwell::basic_block::BasicBlock<'c>,
        body: &mut dyn FnMut(&mut Self, I<'c>, I<'c>) -> Why<()>,
    ) -> Why<()> {
        let e = self.e;
        if fixed.is_empty() {
            body(self, self.begin, self.end)?;
            e.br(exit);
            return Ok(());
        }
        let width = self.dim(last)?;
        let first_row = e.udiv_raw(self.begin, width);
        let first_col = e.urem_raw(self.begin, width);
        let idx0 = self.decode(first_row, fixed)?;
        let (from, head) = (e.here(), e.block("row"));
        e.br(head);
        e.at(head);
        let (p, c) = (e.phi(e.i64(), "p"), e.phi(e.i64(), "col"));
        let idx: Vec<_> = (0..fixed.len()).map(|k| e.phi(e.i64(), &format!("o{k}"))).collect();
        let (pv, cv) = (p.as_basic_value().into_int_value(), c.as_basic_value().into_int_value());
        let iv: Vec<_> = idx.iter().map(|x| x.as_basic_value().into_int_value()).collect();
        for (k, v) in iv.iter().enumerate() {
            self.outer[k] = Some(*v);
        }
        let stop = e.add(cv, e.sub(self.end, pv));
        let stop = e.isel(e.icmp(IP::SLT, stop, width), stop, width);
        body(self, cv, stop)?;
        let p1 = e.add(pv, e.sub(stop, cv));
        let idx1 = self.advance(&iv, fixed)?;
        let back = e.here();
        e.cond_br(e.icmp(IP::SLT, p1, self.end), head, exit);
        p.add_incoming(&[(&self.begin, from), (&p1, back)]);
        c.add_incoming(&[(&first_col, from), (&e.c64(0), back)]);
        for (k, x) in idx.iter().enumerate() {
            x.add_incoming(&[(&idx0[k], from), (&idx1[k], back)]);
        }
        Ok(())
    }

    /// Whether there is any inner point; nothing in front of the inner loops may read before that is known.
    fn some_inner(&self) -> Why<I<'c>> {
        let e = self.e;
        let yes = e.i1().const_int(1, false);
        let mut some = yes;
        for d in &self.nest.inner {
            let positive = e.icmp(IP::SGT, self.dim(*d)?, e.c64(0));
            if !(positive.is_const() && positive.get_zero_extended_constant() == Some(1)) {
                some = if some == yes { positive } else { e.and(some, positive) };
            }
        }
        Ok(some)
    }

    /// The vertical order.
    fn blocks(&mut self, exit: inkwell::basic_block::BasicBlock<'c>) -> Why<()> {
        let e = self.e;
        let nest = self.nest;
        let Some((last, fixed)) = nest.outer.split_last() else { return Err("no outer axis".into()) };
        let column = fixed.len();
        let some = self.some_inner()?;
        self.each_row(*last, fixed, exit, &mut |k, from, to| {
            let (pre, head) = (e.here(), e.block("block"));
            e.br(head);
            e.at(head);
            let start = e.phi(e.i64(), "block");
            let sv = start.as_basic_value().into_int_value();
            let next = e.nsw_add(sv, e.c64(i64::from(BLOCK)));
            let stop = e.isel(e.icmp(IP::SLT, next, to), next, to);
            k.block_start = Some(sv);
            let mut first = 0;
            for phase in &nest.phases {
                match phase {
                    Phase::Reduce(rs) => {
                        k.begin_phase(rs.iter().map(|r| r.value).collect(), std::iter::empty());
                        k.columns(column, sv, stop, Some(k.distinct_node()), &mut |k| {
                            for (i, r) in rs.iter().enumerate() {
                                let start = k.identity(r.combiner, nest.expr_dtype(r.value))?;
                                k.put_array(first + i, &start)?;
                            }
                            Ok(())
                        })?;
                        k.guarded(some, vec![], |k| {
                            k.inner_loops(0, vec![], None, &mut |k, _| {
                                k.columns(column, sv, stop, Some(k.distinct_node()), &mut |k| {
                                    k.hoist(Level::MAX)?;
                                    for (i, r) in rs.iter().enumerate() {
                                        let d = nest.expr_dtype(r.value);
                                        let acc = k.get_array(first + i, d)?;
                                        let v = k.combine(r.combiner, d, &acc, k.value(r.value)?)?;
                                        k.put_array(first + i, &v)?;
                                    }
                                    Ok(())
                                })?;
                                Ok(vec![])
                            })
                        })?;
                        first += rs.len();
                    }
                    Phase::Store { over_inner, stores } => {
                        k.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
                        let stores: Vec<_> = stores.iter().collect();
                        let group = k.independent(&stores, k.point_level());
                        if *over_inner {
                            k.guarded(some, vec![], |k| {
                                k.inner_loops(0, vec![], None, &mut |k, _| {
                                    k.columns(column, sv, stop, group, &mut |k| {
                                        k.hoist(Level::MAX)?;
                                        k.store_all(&stores)
                                    })?;
                                    Ok(vec![])
                                })
                            })?;
                        } else {
                            k.hoist(1)?;
                            k.columns(column, sv, stop, group, &mut |k| {
                                k.hoist(Level::MAX)?;
                                k.store_all(&stores)
                            })?;
                        }
                    }
                }
            }
            let (back, after) = (e.here(), e.block("blocks_done"));
            e.cond_br(e.icmp(IP::SLT, next, to), head, after);
            start.add_incoming(&[(&from, pre), (&next, back)]);
            e.at(after);
            Ok(())
        })
    }
    /// A vector loop over the points of a block.
    fn columns(
        &mut self,
        axis: usize,
        from: I<'c>,
        to: I<'c>,
        group: Option<MetadataValue<'c>>,
        body: &mut dyn FnMut(&mut Self) -> Why<()>,
    ) -> Why<()> {
        self.looped(from, to, &[], group, |k, i, _| {
            k.outer[axis] = Some(i);
            body(k)?;
            Ok(vec![])
        })?;
        Ok(())
    }
    /// Position of the current point in its block.
    fn in_block(&self) -> Why<I<'c>> {
        let at = self.outer.last().copied().flatten().zip(self.block_start);
        let (point, start) = at.ok_or("a reduction is used outside its block")?;
        Ok(self.e.sub(point, start))
    }
    fn read_array(&self, p: PointerValue<'c>, d: DType) -> Why<Val<'c>> {
        let t = value_type(self.e, d);
        let v = self.e.load(t, self.e.gep(t, p, self.in_block()?));
        self.mark(v.as_instruction_value());
        Ok(v)
    }
    fn get_array(&self, i: usize, d: DType) -> Why<Vec<Val<'c>>> {
        let (value, at) = self.arrays[i];
        let mut out = vec![self.read_array(value, d)?];
        if let Some(p) = at {
            out.push(self.read_array(p, DType::I64)?);
        }
        Ok(out)
    }
    fn put_array(&self, i: usize, v: &[Val<'c>]) -> Why<()> {
        let (value, at) = self.arrays[i];
        let j = self.in_block()?;
        for (p, v) in [Some(value), at].into_iter().flatten().zip(v) {
            let s = self.e.store(self.e.gep(v.get_type(), p, j), *v);
            self.mark(Some(s));
        }
        Ok(())
    }

    fn vector_loop(&mut self, from: I<'c>, to: I<'c>, stores: &[&'e (Access, ExprId)], axis: Option<usize>) -> Why<()> {
        self.looped(from, to, &[], self.independent(stores, POINT), |k, i, _| {
            if let Some(a) = axis {
                k.outer[a] = Some(i);
            }
            k.hoist(POINT)?;
            k.store_all(stores)?;
            Ok(vec![])
        })
        .map(|_| ())
    }

    /// Nests with inner axes (or reductions over the one point that no inner axis is).
    fn points(&mut self, exit: inkwell::basic_block::BasicBlock<'c>) -> Why<()> {
        let e = self.e;
        let nest = self.nest;
        let some = self.some_inner()?;
        let idx0 = self.decode(self.begin, &nest.outer)?;
        let (from, head) = (e.here(), e.block("point"));
        e.br(head);
        e.at(head);
        let p = e.phi(e.i64(), "p");
        let idx: Vec<_> = (0..nest.outer.len()).map(|k| e.phi(e.i64(), &format!("o{k}"))).collect();
        let iv: Vec<_> = idx.iter().map(|x| x.as_basic_value().into_int_value()).collect();
        for (k, v) in iv.iter().enumerate() {
            self.outer[k] = Some(*v);
        }
        let mut n_reduced = 0;
        for phase in &nest.phases {
            match phase {
                Phase::Reduce(rs) => {
                    self.begin_phase(rs.iter().map(|r| r.value).collect(), std::iter::empty());
                    let kinds: Vec<_> = rs.iter().map(|r| (r.combiner, nest.expr_dtype(r.value), r.value)).collect();
                    let mut start = Vec::new();
                    for (c, d, _) in &kinds {
                        start.extend(self.identity(*c, *d)?);
                    }
                    let start2 = start.clone();
                    let out = self.guarded(some, start, |k| {
                        k.inner_loops(0, start2, None, &mut |k, acc| {
                            let mut out = Vec::new();
                            let mut at = 0;
                            for (c, d, x) in &kinds {
                                let v = k.value(*x)?;
                                let n = if matches!(c, Combiner::ArgMax | Combiner::ArgMin) { 2 } else { 1 };
                                out.extend(k.combine(*c, *d, &acc[at..at + n], v)?);
                                at += n;
                            }
                            Ok(out)
                        })
                    })?;
                    let mut at = 0;
                    for (c, ..) in &kinds {
                        let arg = matches!(c, Combiner::ArgMax | Combiner::ArgMin);
                        self.reduced[n_reduced] = Some(out[at + usize::from(arg)]);
                        at += 1 + usize::from(arg);
                        n_reduced += 1;
                    }
                }
                Phase::Store { over_inner, stores } => {
                    self.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
                    let stores: Vec<_> = stores.iter().collect();
                    if *over_inner {
                        let last = POINT + nest.inner.len();
                        let group = self.independent(&stores, last);
                        self.guarded(some, vec![], |k| {
                            k.inner_loops(0, vec![], group, &mut |k, _| {
                                k.store_all(&stores)?;
                                Ok(vec![])
                            })
                        })?;
                    } else {
                        self.hoist(POINT)?;
                        self.store_all(&stores)?;
                    }
                }
            }
        }
        let pv = p.as_basic_value().into_int_value();
        let p1 = e.nsw_add(pv, e.c64(1));
        let idx1 = self.advance(&iv, &nest.outer)?;
        let back = e.here();
        e.cond_br(e.icmp(IP::SLT, p1, self.end), head, exit);
        p.add_incoming(&[(&self.begin, from), (&p1, back)]);
        for (k, x) in idx.iter().enumerate() {
            x.add_incoming(&[(&idx0[k], from), (&idx1[k], back)]);
        }
        Ok(())
    }

    /// Runs `body` where `some` holds; else the results are `start`.
    fn guarded(
        &mut self,
        some: I<'c>,
        start: Vec<Val<'c>>,
        body: impl FnOnce(&mut Self) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        if some.is_const() {
            return if some.get_zero_extended_constant() == Some(1) { body(self) } else { Ok(start) };
        }
        let e = self.e;
        let (from, inside, after) = (e.here(), e.block("inner"), e.block("after"));
        e.cond_br(some, inside, after);
        e.at(inside);
        let out = body(self)?;
        let end = e.here();
        e.br(after);
        e.at(after);
        let merged = start.iter().zip(&out).map(|(s, o)| {
            let phi = e.phi(s.get_type(), "");
            phi.add_incoming(&[(s as &dyn BasicValue<'c>, from), (o as &dyn BasicValue<'c>, end)]);
            phi.as_basic_value()
        });
        Ok(merged.collect())
    }

    /// Loops over inner axes from `k` on; `body` gets and gives the carried values.
    #[allow(clippy::type_complexity)]
    fn inner_loops(
        &mut self,
        k: usize,
        carried: Vec<Val<'c>>,
        group: Option<MetadataValue<'c>>,
        body: &mut dyn FnMut(&mut Self, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        self.hoist(POINT + k)?;
        if k == self.nest.inner.len() {
            return body(self, &carried);
        }
        let n = self.dim(self.nest.inner[k])?;
        let last = k + 1 == self.nest.inner.len();
        self.looped(self.e.c64(0), n, &carried, if last { group } else { None }, |g, i, acc| {
            g.inner[k] = Some(i);
            g.inner_loops(k + 1, acc.to_vec(), group, body)
        })
    }

    /// A loop `from..to` (not empty) with carried values; values and addresses made inside are forgotten afterwards.
    fn looped(
        &mut self,
        from: I<'c>,
        to: I<'c>,
        carried: &[Val<'c>],
        group: Option<MetadataValue<'c>>,
        body: impl FnOnce(&mut Self, I<'c>, &[Val<'c>]) -> Why<Vec<Val<'c>>>,
    ) -> Why<Vec<Val<'c>>> {
        let e = self.e;
        let (pre, head) = (e.here(), e.block("loop"));
        e.br(head);
        e.at(head);
        let i = e.phi(e.i64(), "i");
        let phis: Vec<_> = carried.iter().map(|v| e.phi(v.get_type(), "acc")).collect();
        let iv = i.as_basic_value().into_int_value();
        let acc: Vec<_> = phis.iter().map(|p| p.as_basic_value()).collect();
        let saved = (self.values.clone(), self.addresses.clone(), self.group);
        self.group = group;
        let out = body(self, iv, &acc)?;
        (self.values, self.addresses, self.group) = saved;
        let next = e.nsw_add(iv, e.c64(1));
        let (back, after) = (e.here(), e.block("done"));
        let latch = e.cond_br(e.icmp(IP::SLT, next, to), head, after);
        if let Some(g) = group {
            self.parallel(latch, g);
        }
        i.add_incoming(&[(&from, pre), (&next, back)]);
        for ((p, start), end) in phis.iter().zip(carried).zip(&out) {
            p.add_incoming(&[(start as &dyn BasicValue<'c>, pre), (end as &dyn BasicValue<'c>, back)]);
        }
        e.at(after);
        Ok(out)
    }

    /// An access group when the iterations of the loop at `level` store to places of their own.
    fn independent(&self, stores: &[&(Access, ExprId)], level: Level) -> Option<MetadataValue<'c>> {
        let own = |a: &Access| {
            let mut terms = access_terms(a);
            terms.all(|t| matches!(t, Term::Axis(_))) && self.access_level(a) == level
        };
        stores.iter().all(|s| own(&s.0)).then(|| self.distinct_node())
    }
    /// `distinct !{}`, which the C interface cannot make: it comes from a line of text.
    fn distinct_node(&self) -> MetadataValue<'c> {
        let text = "!g = !{!0}\n!0 = distinct !{}\n";
        let buffer = inkwell::memory_buffer::MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "group");
        let m = self.e.ctx.create_module_from_ir(buffer).expect("two lines of metadata");
        m.get_global_metadata("g")[0]
    }
    fn parallel(&self, latch: InstructionValue<'c>, group: MetadataValue<'c>) {
        let ctx = self.e.ctx;
        let accesses = ctx.metadata_node(&[ctx.metadata_string("llvm.loop.parallel_accesses").into(), group.into()]);
        set_loop_id(latch, accesses, ctx);
    }
    fn mark(&self, i: Option<InstructionValue<'c>>) {
        if let (Some(i), Some(g)) = (i, self.group) {
            i.set_metadata(g, self.e.ctx.get_kind_id("llvm.access.group")).expect("a load or store takes metadata");
        }
    }

    /// Starts a phase: what it needs, and nothing of it emitted yet.
    fn begin_phase(&mut self, roots: Vec<ExprId>, stores: impl Iterator<Item = &'e Access>) {
        let mut mark = vec![false; self.nest.exprs.len()];
        self.sites = stores.enumerate().map(|(i, a)| (Site::Store(i), a)).collect();
        for r in roots.into_iter().chain(self.sites.iter().flat_map(|(_, a)| {
            access_terms(a).filter_map(|t| if let Term::Expr(x) = t { Some(*x) } else { None }).collect::<Vec<_>>()
        })) {
            mark[r.index()] = true;
        }
        for i in (0..mark.len()).rev() {
            if mark[i] {
                for c in children(&self.nest.exprs[i]) {
                    mark[c.index()] = true;
                }
            }
        }
        self.needed = (0..mark.len()).filter(|i| mark[*i]).map(ExprId::new).collect();
        for x in &self.needed {
            if let Expr::Load(a) | Expr::LoadIf { access: a, .. } = &self.nest.exprs[x.index()] {
                self.sites.push((Site::Load(*x), a));
            }
        }
        self.values.fill(None);
        self.addresses.clear();
    }

    /// Emits what the phase needs and is fixed at `level`, and the fixed parts of the other addresses.
    fn hoist(&mut self, level: Level) -> Why<()> {
        for i in 0..self.needed.len() {
            let x = self.needed[i];
            if self.levels[x.index()] <= level && self.values[x.index()].is_none() {
                let v = self.compute(x)?;
                self.values[x.index()] = Some(v);
            }
        }
        for i in 0..self.sites.len() {
            let (site, a) = self.sites[i];
            let whole = match site {
                Site::Load(x) => self.levels[x.index()] <= level,
                Site::Store(_) => false,
            };
            if !whole {
                self.address(site, a, level)?;
            }
        }
        Ok(())
    }
    fn value(&self, x: ExprId) -> Why<Val<'c>> {
        self.values[x.index()].ok_or_else(|| format!("expression {x} is not available where it is used"))
    }

    /// The address of a site with all terms up to `level` added.
    fn address(&mut self, site: Site, a: &Access, level: Level) -> Why<PointerValue<'c>> {
        let e = self.e;
        let operand = &self.nest.operands[usize::from(a.operand)];
        let (done, base) = match self.addresses.get(&site) {
            Some((l, p)) => (Some(*l), *p),
            None => (None, self.bufs[usize::from(a.operand)]),
        };
        if done.is_some_and(|l| l >= level) {
            return Ok(base);
        }
        let mut sum: Option<I<'c>> = None;
        let plus = |sum: &mut Option<I<'c>>, v: I<'c>| {
            let zero = v.is_const() && v.get_sign_extended_constant() == Some(0);
            *sum = match *sum {
                _ if zero => *sum,
                Some(s) => Some(e.add(s, v)),
                None => Some(v),
            };
        };
        for (axis, c) in a.coords.iter().enumerate() {
            let stride =
                operand.strides.get(axis).ok_or_else(|| format!("operand {} has no axis {axis}", a.operand))?;
            let stride = self.dim(*stride)?;
            if done.is_none() {
                plus(&mut sum, self.times(self.dim(c.offset)?, stride));
            }
            for (t, coefficient) in &c.terms {
                let l = self.term_level(t);
                if l > level || done.is_some_and(|d| l <= d) {
                    continue;
                }
                let v = match t {
                    Term::Axis(x) => self.axis(*x)?,
                    Term::Expr(x) => self.value(*x)?.into_int_value(),
                };
                let v = if v.get_type() == e.i64() { v } else { e.sext(v, e.i64()) };
                plus(&mut sum, self.times(v, self.times(self.dim(*coefficient)?, stride)));
            }
        }
        let p = match sum {
            Some(s) => e.gep_plain(scalar::memory_type(e, operand.dtype)?, base, s),
            None => base,
        };
        self.addresses.insert(site, (level, p));
        Ok(p)
    }
    fn times(&self, a: I<'c>, b: I<'c>) -> I<'c> {
        let known = |v: I<'c>| if v.is_const() { v.get_sign_extended_constant() } else { None };
        match (known(a), known(b)) {
            (Some(1), _) => b,
            (_, Some(1)) => a,
            (Some(0), _) | (_, Some(0)) => self.e.c64(0),
            _ => self.e.mul(a, b),
        }
    }

    fn load_from(&self, p: PointerValue<'c>, d: DType) -> Why<Val<'c>> {
        let v = self.e.load(scalar::memory_type(self.e, d)?, p);
        self.mark(v.as_instruction_value());
        Ok(scalar::from_memory(self.e, v, d))
    }

    fn store_all(&mut self, stores: &[&'e (Access, ExprId)]) -> Why<()> {
        for (i, (a, x)) in stores.iter().enumerate() {
            let p = self.address(Site::Store(i), a, usize::MAX)?;
            let d = self.nest.operands[usize::from(a.operand)].dtype;
            let v = scalar::to_memory(self.e, self.value(*x)?, self.nest.expr_dtype(*x), d);
            let s = self.e.store(p, v);
            self.mark(Some(s));
        }
        Ok(())
    }

    fn compute(&mut self, x: ExprId) -> Why<Val<'c>> {
        let e = self.e;
        let nest = self.nest;
        let int = |d: DType| value_type(e, d).into_int_type();
        Ok(match nest.get(x) {
            Expr::Float(bits, DType::F64) => e.f64().const_float(f64::from_bits(*bits)).into(),
            Expr::Float(bits, _) => e.f32().const_float(f64::from_bits(*bits)).into(),
            Expr::Int(v, d) if d.is_float() => value_type(e, *d).into_float_type().const_float(*v as f64).into(),
            Expr::Int(v, DType::Bool) => e.i1().const_int(u64::from(*v != 0), false).into(),
            Expr::Int(v, d) => int(*d).const_int(v.cast_unsigned(), true).into(),
            Expr::Index(a) => self.axis(*a)?.into(),
            Expr::Dim(d) => self.dim(*d)?.into(),
            Expr::Load(a) => {
                let p = self.address(Site::Load(x), a, usize::MAX)?;
                self.load_from(p, nest.operands[usize::from(a.operand)].dtype)?
            }
            Expr::LoadIf { cond, access, other } => {
                let (c, o) = (self.value(*cond)?.into_int_value(), self.value(*other)?);
                let p = self.address(Site::Load(x), access, usize::MAX)?;
                let (from, read, after) = (e.here(), e.block("read"), e.block("join"));
                e.cond_br(c, read, after);
                e.at(read);
                let v = self.load_from(p, nest.operands[usize::from(access.operand)].dtype)?;
                let end = e.here();
                e.br(after);
                e.at(after);
                let phi = e.phi(v.get_type(), "");
                if v.get_type() != o.get_type() {
                    return Err(format!("the alternative of the guarded load {x} has another type"));
                }
                phi.add_incoming(&[(&o as &dyn BasicValue<'c>, from), (&v as &dyn BasicValue<'c>, end)]);
                phi.as_basic_value()
            }
            Expr::Reduced(i) if self.vertical => {
                let i = usize::from(*i);
                let (value, at) = *self.arrays.get(i).ok_or_else(|| format!("reduction {i} does not exist"))?;
                self.read_array(at.unwrap_or(value), nest.expr_dtype(x))?
            }
            Expr::Reduced(i) => {
                let v = self.reduced.get(usize::from(*i)).copied().flatten();
                v.ok_or_else(|| format!("reduction {i} is used before it is computed"))?
            }
            Expr::Unary(op, a) => scalar::unary(e, *op, self.value(*a)?, nest.expr_dtype(*a))?,
            Expr::Binary(op, a, b) => {
                let (da, db) = (nest.expr_dtype(*a), nest.expr_dtype(*b));
                if da != db {
                    return Err(format!("{op:?} of {da} and {db}: the operands' types differ"));
                }
                scalar::binary(e, *op, self.value(*a)?, self.value(*b)?, da)?
            }
            Expr::Select(c, a, b) => {
                if nest.expr_dtype(*a) != nest.expr_dtype(*b) || nest.expr_dtype(*c) != DType::Bool {
                    return Err(format!("the choice {x} has a condition that is no bool or sides of different types"));
                }
                e.sel(self.value(*c)?.into_int_value(), self.value(*a)?, self.value(*b)?)
            }
            Expr::Cast(a, d) => {
                if ir::nest::compute_dtype(*d) != Some(*d) {
                    return Err(format!("{d} is no compute type"));
                }
                scalar::cast(e, self.value(*a)?, nest.expr_dtype(*a), *d)
            }
            Expr::Round(a, d) => scalar::round(e, self.value(*a)?, nest.expr_dtype(*a), *d)?,
            other => return Err(format!("the expression {other:?} is not known to this code generator")),
        })
    }

    /// What a reduction starts from (value, and position for the arg kinds).
    fn identity(&self, c: Combiner, d: DType) -> Why<Vec<Val<'c>>> {
        let e = self.e;
        let t = value_type(e, d);
        let extreme = |greatest: bool| -> Val<'c> {
            if d.is_float() {
                return t
                    .into_float_type()
                    .const_float(if greatest { f64::INFINITY } else { f64::NEG_INFINITY })
                    .into();
            }
            let it = t.into_int_type();
            let ones = it.const_all_ones();
            let top = e.shl(it.const_int(1, false), it.const_int(u64::from(it.get_bit_width() - 1), false));
            match (d.is_signed(), greatest) {
                (true, true) => e.xor(ones, top),
                (true, false) => top,
                (false, true) => ones,
                (false, false) => it.const_zero(),
            }
            .into()
        };
        let number = |v: f64| -> Val<'c> {
            if d.is_float() {
                t.into_float_type().const_float(v).into()
            } else {
                t.into_int_type().const_int(u64::from(v != 0.0), false).into()
            }
        };
        Ok(match c {
            Combiner::Sum | Combiner::Prod if d == DType::Bool => return Err(format!("{c:?} of bools is not defined")),
            Combiner::Sum => vec![number(0.0)],
            Combiner::Prod => vec![number(1.0)],
            Combiner::Max => vec![extreme(false)],
            Combiner::Min => vec![extreme(true)],
            Combiner::ArgMax => vec![extreme(false), e.c64(0).into()],
            Combiner::ArgMin => vec![extreme(true), e.c64(0).into()],
            other => return Err(format!("the reduction {other:?} is not known to this code generator")),
        })
    }

    fn combine(&self, c: Combiner, d: DType, acc: &[Val<'c>], v: Val<'c>) -> Why<Vec<Val<'c>>> {
        use inkwell::FloatPredicate as FP;
        use ir::nest::BinOp;
        let e = self.e;
        Ok(match c {
            // Side by side each point adds in order.
            Combiner::Sum if d.is_float() && self.vertical => {
                vec![e.fadd(acc[0].into_float_value(), v.into_float_value()).into()]
            }
            Combiner::Sum if d.is_float() => {
                vec![e.fadd_reassoc(acc[0].into_float_value(), v.into_float_value()).into()]
            }
            Combiner::Sum => vec![scalar::binary(e, BinOp::Add, acc[0], v, d)?],
            Combiner::Prod => vec![scalar::binary(e, BinOp::Mul, acc[0], v, d)?],
            Combiner::Max if d == DType::Bool => vec![scalar::binary(e, BinOp::Or, acc[0], v, d)?],
            Combiner::Min if d == DType::Bool => vec![scalar::binary(e, BinOp::And, acc[0], v, d)?],
            Combiner::Max => vec![scalar::binary(e, BinOp::Max, acc[0], v, d)?],
            Combiner::Min => vec![scalar::binary(e, BinOp::Min, acc[0], v, d)?],
            _ => {
                let max = c == Combiner::ArgMax;
                let mut better =
                    scalar::binary(e, if max { BinOp::Gt } else { BinOp::Lt }, v, acc[0], d)?.into_int_value();
                if d.is_float() {
                    let (new, old) = (v.into_float_value(), acc[0].into_float_value());
                    better = e.or(better, e.and(e.is_nan(new), e.fcmp(FP::ORD, old, old)));
                }
                let mut at = e.c64(0);
                for (k, n) in self.nest.inner.iter().enumerate() {
                    let i = self.axis(Axis::Inner(u16::try_from(k).unwrap_or(u16::MAX)))?;
                    at = if k == 0 { i } else { e.add(e.mul(at, self.dim(*n)?), i) };
                }
                vec![e.sel(better, v, acc[0]), e.isel(better, at, acc[1].into_int_value()).into()]
            }
        })
    }
}

/// Attaches `!llvm.loop`. The node must refer to itself in its first operand, which the interface only allows by a temporary node.
fn set_loop_id<'c>(latch: InstructionValue<'c>, property: MetadataValue<'c>, ctx: &'c inkwell::context::Context) {
    use inkwell::llvm_sys::core::{LLVMMDNodeInContext2, LLVMMetadataAsValue, LLVMSetMetadata, LLVMValueAsMetadata};
    use inkwell::llvm_sys::debuginfo::{LLVMMetadataReplaceAllUsesWith, LLVMTemporaryMDNode};
    use inkwell::values::AsValueRef;
    let c = ctx.raw();
    // SAFETY: all handles belong to `ctx`, which outlives the call; the temporary node is replaced, which frees it.
    unsafe {
        let temporary = LLVMTemporaryMDNode(c, std::ptr::null_mut(), 0);
        let mut operands = [temporary, LLVMValueAsMetadata(property.as_value_ref())];
        let node = LLVMMDNodeInContext2(c, operands.as_mut_ptr(), operands.len());
        LLVMMetadataReplaceAllUsesWith(temporary, node);
        LLVMSetMetadata(latch.as_value_ref(), ctx.get_kind_id("llvm.loop"), LLVMMetadataAsValue(c, node));
    }
}
