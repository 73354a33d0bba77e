//! Scalar expressions and addresses of a nest as LLVM values. Which loops run around them, and in what order, is the caller's: it sets
//! the indices of axes and says at which [`Level`] each is fixed.

use crate::approx;
use crate::emit::{Em, I};
use crate::nest::terms::{Level, Order, Site, access_exprs, access_terms, load, needed_given};
use crate::scalar::{self, Val, Why, value_type};
use inkwell::values::{BasicValue, InstructionValue, MetadataValue, PointerValue};
use ir::nest::{Access, Axis, BinOp, Expr, ExprId, Nest, Term};
use rustc_hash::FxHashMap;
use tensor::{DType, DimId, Entity};

/// The result of a reduction.
#[derive(Clone, Copy)]
pub(crate) enum Reduced<'c> {
    /// A value that dominates its uses.
    Value(Val<'c>),
    /// An array with one element for each point of the current block.
    Array(PointerValue<'c>),
}

/// What a nest's expressions are computed from, and those of them that are at hand where the builder stands.
pub(crate) struct Values<'e, 'a, 'c> {
    pub e: &'e Em<'a, 'c>,
    pub nest: &'e Nest,
    dims: FxHashMap<DimId, I<'c>>,
    bufs: Vec<PointerValue<'c>>,
    order: Order,
    /// Level of each expression.
    levels: Vec<Level>,
    /// Indices of the outer axes whose loops are around the current block.
    pub outer: Vec<Option<I<'c>>>,
    /// The same of the inner axes.
    pub inner: Vec<Option<I<'c>>>,
    /// Results of reductions, counted over all phases.
    pub reduced: Vec<Option<Reduced<'c>>>,
    /// First point of the current block, along the last outer axis.
    pub block_start: Option<I<'c>>,
    /// Group of accesses of the parallel loop being emitted.
    pub group: Option<MetadataValue<'c>>,
    /// Expressions that are preset where they are used and never computed.
    pub given: Vec<ExprId>,
    /// Values of expressions that dominate the current block.
    values: Vec<Option<Val<'c>>>,
    /// Addresses of sites with the terms up to a level added.
    addresses: FxHashMap<Site, (Level, PointerValue<'c>)>,
    /// Reciprocals of divisors that are fixed outside the loop over what they divide, see [`approx::Reciprocal`].
    reciprocals: FxHashMap<ExprId, approx::Reciprocal<'c>>,
    /// What the current phase needs, in order.
    needed: Vec<ExprId>,
    sites: Vec<(Site, &'e Access)>,
}

/// What is at hand at a place, to return to when a loop ends.
pub(crate) struct Saved<'c> {
    values: Vec<Option<Val<'c>>>,
    addresses: FxHashMap<Site, (Level, PointerValue<'c>)>,
    reciprocals: FxHashMap<ExprId, approx::Reciprocal<'c>>,
    group: Option<MetadataValue<'c>>,
}

impl<'e, 'a, 'c> Values<'e, 'a, 'c> {
    /// `dims` and `bufs` dominate everything that is emitted; `bufs` has one pointer per operand.
    pub fn new(
        e: &'e Em<'a, 'c>,
        nest: &'e Nest,
        dims: FxHashMap<DimId, I<'c>>,
        bufs: Vec<PointerValue<'c>>,
        order: Order,
    ) -> Self {
        let n_reduced = nest.phases.iter().map(|p| if let ir::nest::Phase::Reduce(r) = p { r.len() } else { 0 }).sum();
        Values {
            e,
            nest,
            dims,
            bufs,
            levels: order.levels(nest),
            order,
            outer: vec![None; nest.outer.len()],
            inner: vec![None; nest.inner.len()],
            reduced: vec![None; n_reduced],
            block_start: None,
            group: None,
            given: Vec::new(),
            values: vec![None; nest.exprs.len()],
            addresses: FxHashMap::default(),
            reciprocals: FxHashMap::default(),
            needed: Vec::new(),
            sites: Vec::new(),
        }
    }

    /// The value of a dim.
    pub fn dim(&self, d: DimId) -> Why<I<'c>> {
        self.dims.get(&d).copied().ok_or_else(|| format!("dim {d} has no source"))
    }
    /// The index of an axis.
    pub fn axis(&self, a: Axis) -> Why<I<'c>> {
        let v = match a {
            Axis::Outer(i) => self.outer.get(usize::from(i)),
            Axis::Inner(i) => self.inner.get(usize::from(i)),
        };
        v.copied().flatten().ok_or_else(|| format!("axis {a:?} is not one of a loop around its use"))
    }
    /// The address of an operand's first element.
    pub fn buffer(&self, operand: u16) -> PointerValue<'c> {
        self.bufs[usize::from(operand)]
    }
    /// Whether a remainder of a power of two varies in loops at `level` or deeper. LLVM 19 follows such an index as a number of so many
    /// bits and forgets that it wraps: the vectoriser then takes what lies behind the last element for neighbors (SCEV's zext of a
    /// truncated recurrence, in groups of interleaved accesses).
    pub fn wraps(&self, level: Level) -> bool {
        let power = |x: ExprId| match self.nest.get(x) {
            Expr::Int(n, _) => Some(*n),
            Expr::Dim(d) => self.dims.get(d).and_then(|v| v.get_sign_extended_constant()),
            _ => None,
        };
        let wraps = |x: &Expr| match x {
            Expr::Binary(BinOp::Rem | BinOp::Mod, _, by) => {
                power(*by).is_some_and(|n| n.unsigned_abs().is_power_of_two() && n.unsigned_abs() > 1)
            }
            _ => false,
        };
        self.nest.exprs.iter().zip(&self.levels).any(|(x, l)| *l >= level && wraps(x))
    }
    /// What the current phase uses.
    pub fn needed(&self) -> &[ExprId] {
        &self.needed
    }
    /// Whether the current phase uses an expression.
    pub fn needs(&self, x: ExprId) -> bool {
        self.needed.contains(&x)
    }
    /// Gives an expression a value that was made elsewhere.
    pub fn preset(&mut self, x: ExprId, v: Val<'c>) {
        self.values[x.index()] = Some(v);
    }
    /// The value of an expression that was hoisted.
    pub fn value(&self, x: ExprId) -> Why<Val<'c>> {
        self.values[x.index()].ok_or_else(|| format!("expression {x} is not available where it is used"))
    }
    /// Indices of the axes `axes` for a linear position: the last varies fastest.
    pub fn decode(&self, mut p: I<'c>, axes: &[DimId]) -> Why<Vec<I<'c>>> {
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

    fn term_level(&self, t: &Term) -> Level {
        match t {
            Term::Axis(a) => self.order.axis(*a),
            Term::Expr(x) => self.levels[x.index()],
        }
    }
    /// The level at which an address is whole.
    pub fn access_level(&self, a: &Access) -> Level {
        access_terms(a).map(|t| self.term_level(t)).max().unwrap_or(0)
    }

    /// Starts a phase that stores to `stores`, or reduces, `roots`: what it needs, and nothing of it emitted yet.
    pub fn begin_phase(&mut self, roots: Vec<ExprId>, stores: impl Iterator<Item = &'e Access>) {
        self.sites = stores.enumerate().map(|(i, a)| (Site::Store(i), a)).collect();
        let indices: Vec<_> = self.sites.iter().flat_map(|(_, a)| access_exprs(a)).collect();
        self.needed = needed_given(self.nest, roots.into_iter().chain(indices), |x| self.given.contains(&x));
        for x in self.needed.iter().filter(|x| !self.given.contains(x)) {
            if let Some(a) = load(&self.nest.exprs[x.index()]) {
                self.sites.push((Site::Load(*x), a));
            }
        }
        self.values.fill(None);
        self.addresses.clear();
        self.reciprocals.clear();
    }
    /// What is at hand now.
    pub fn save(&self) -> Saved<'c> {
        Saved {
            values: self.values.clone(),
            addresses: self.addresses.clone(),
            reciprocals: self.reciprocals.clone(),
            group: self.group,
        }
    }
    /// Forgets what was emitted since.
    pub fn restore(&mut self, s: Saved<'c>) {
        (self.values, self.addresses, self.group) = (s.values, s.addresses, s.group);
        self.reciprocals = s.reciprocals;
    }

    /// Emits what the phase needs and is fixed at `level`, and the fixed parts of the other addresses.
    pub fn hoist(&mut self, level: Level) -> Why<()> {
        for i in 0..self.needed.len() {
            let x = self.needed[i];
            if self.levels[x.index()] <= level && self.values[x.index()].is_none() && !self.given.contains(&x) {
                let v = self.compute(x)?;
                self.values[x.index()] = Some(v);
            }
            if self.e.caps.gpu.is_some() {
                self.invert_divisor(x, level)?;
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

    /// Notes the reciprocal of what `x`, of a deeper level, divides by.
    fn invert_divisor(&mut self, x: ExprId, level: Level) -> Why<()> {
        let Expr::Binary(ir::nest::BinOp::Div, _, d) = self.nest.get(x) else { return Ok(()) };
        let is_f32 = self.nest.expr_dtype(*d) == DType::F32;
        let outside = self.levels[d.index()] <= level && level < self.levels[x.index()] && !self.given.contains(&x);
        if is_f32 && outside && !self.reciprocals.contains_key(d) {
            let r = approx::Reciprocal::new(self.e, self.value(*d)?.into_float_value());
            self.reciprocals.insert(*d, r);
        }
        Ok(())
    }

    /// The address of a site with all terms up to `level` added.
    pub fn address(&mut self, site: Site, a: &Access, level: Level) -> Why<PointerValue<'c>> {
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
    /// A product, folded where a factor is 0 or 1.
    pub fn times(&self, a: I<'c>, b: I<'c>) -> I<'c> {
        let known = |v: I<'c>| if v.is_const() { v.get_sign_extended_constant() } else { None };
        match (known(a), known(b)) {
            (Some(1), _) => b,
            (_, Some(1)) => a,
            (Some(0), _) | (_, Some(0)) => self.e.c64(0),
            _ => self.e.mul(a, b),
        }
    }

    /// Puts a load or store into the group of the parallel loop.
    pub fn mark(&self, i: Option<InstructionValue<'c>>) {
        if let (Some(i), Some(g)) = (i, self.group) {
            i.set_metadata(g, self.e.ctx.get_kind_id("llvm.access.group")).expect("a load or store takes metadata");
        }
    }
    fn load_from(&self, p: PointerValue<'c>, d: DType) -> Why<Val<'c>> {
        let v = self.e.load(scalar::memory_type(self.e, d)?, p);
        self.mark(v.as_instruction_value());
        Ok(scalar::from_memory(self.e, v, d))
    }
    /// Stores the values of the phase begun with `stores`, all of them hoisted.
    pub fn store_all(&mut self, stores: &[&'e (Access, ExprId)]) -> Why<()> {
        for (i, (a, x)) in stores.iter().enumerate() {
            let p = self.address(Site::Store(i), a, Level::MAX)?;
            let d = self.nest.operands[usize::from(a.operand)].dtype;
            let v = scalar::to_memory(self.e, self.value(*x)?, self.nest.expr_dtype(*x), d);
            let s = self.e.store(p, v);
            self.mark(Some(s));
        }
        Ok(())
    }

    /// Row-major position of the current point in `inner`.
    pub fn position(&self) -> Why<I<'c>> {
        let e = self.e;
        let mut at = e.c64(0);
        for (k, n) in self.nest.inner.iter().enumerate() {
            let i = self.axis(Axis::Inner(u16::try_from(k).unwrap_or(u16::MAX)))?;
            at = if k == 0 { i } else { e.add(e.mul(at, self.dim(*n)?), i) };
        }
        Ok(at)
    }
    /// Position of the current point in its block.
    pub fn in_block(&self) -> Why<I<'c>> {
        let at = self.outer.last().copied().flatten().zip(self.block_start);
        let (point, start) = at.ok_or("a reduction is used outside its block")?;
        Ok(self.e.sub(point, start))
    }
    /// The element of a block's array for the current point; `d` is a compute type.
    pub fn read_array(&self, p: PointerValue<'c>, d: DType) -> Why<Val<'c>> {
        let t = value_type(self.e, d);
        let v = self.e.load(t, self.e.gep(t, p, self.in_block()?));
        self.mark(v.as_instruction_value());
        Ok(v)
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
                let p = self.address(Site::Load(x), a, Level::MAX)?;
                self.load_from(p, nest.operands[usize::from(a.operand)].dtype)?
            }
            Expr::LoadIf { cond, access, other } => {
                let (c, o) = (self.value(*cond)?.into_int_value(), self.value(*other)?);
                let p = self.address(Site::Load(x), access, Level::MAX)?;
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
            Expr::Reduced(i) => match self.reduced.get(usize::from(*i)).copied().flatten() {
                Some(Reduced::Value(v)) => v,
                Some(Reduced::Array(p)) => self.read_array(p, nest.expr_dtype(x))?,
                None => return Err(format!("reduction {i} is used before it is computed")),
            },
            Expr::Unary(op, a) => scalar::unary(e, *op, self.value(*a)?, nest.expr_dtype(*a))?,
            Expr::Binary(op, a, b) => {
                let (da, db) = (nest.expr_dtype(*a), nest.expr_dtype(*b));
                if da != db {
                    return Err(format!("{op:?} of {da} and {db}: the operands' types differ"));
                }
                match self.reciprocals.get(b) {
                    Some(r) if *op == ir::nest::BinOp::Div => r.times(e, self.value(*a)?.into_float_value()).into(),
                    _ => scalar::binary(e, *op, self.value(*a)?, self.value(*b)?, da)?,
                }
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
}
