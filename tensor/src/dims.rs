//! Symbolic extents: hash-consed expressions over i64 with a normal form, facts and proofs.
//!
//! A [`DimId`] names a polynomial `c0 + c1·m1 + c2·m2 + …` whose monomials are products of atoms; an atom is a symbol
//! or one of floordiv, ceildiv, mod, min, max over other dims. Two ids are equal exactly when the normal forms are.
//!
//! ```
//! use tensor::dims::{DimPool, Origin};
//! let mut p = DimPool::new();
//! let s = p.symbol("s", Origin::Input { input: 0, axis: 1 });
//! let two = p.constant(2);
//! let a = p.mul(s, two);
//! let b = p.add(s, s);
//! assert_eq!(a, b);
//! assert_eq!(p.display(a).to_string(), "2*s");
//! ```

mod facts;
mod text;

pub use text::{DimDisplay, symbol_text, unquote};

use crate::entity::PrimaryMap;
use crate::{Diagnostic, Entity, ErrorKind, Result};
use indexmap::IndexSet;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;

crate::entity! {
    /// A dim expression in a [`DimPool`].
    pub struct DimId, "d"
}
crate::entity! {
    /// A symbol in a [`DimPool`].
    pub struct SymId, "s"
}
crate::entity! {
    /// A symbol or a non-polynomial operation in a [`DimPool`].
    pub struct AtomId, "t"
}

/// Where a symbol gets its value at run time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The extent of a graph input's axis.
    Input {
        /// Position of the graph input.
        input: u32,
        /// Axis of it.
        axis: u32,
    },
    /// An element of an integer tensor that the graph computes or takes as input; unknown until read.
    ShapeValue,
    /// An extent that only the device knows once a kernel ran (NonZero and the like).
    DeviceResult,
    /// An extent of a region's parameter (loop-carried values may change shape).
    Region,
    /// Not known where from: the rank or extent was missing and no rule could derive it.
    Unknown,
}

/// A symbol: its name, origin and facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Unique in the pool; the model's own name where it has one.
    pub name: String,
    /// Where its value comes from.
    pub origin: Origin,
    /// Least value (0 unless a fact says more).
    pub lo: i64,
    /// Greatest value; `i64::MAX` when not known.
    pub hi: i64,
    /// Every value is a multiple of this (at least 1).
    pub multiple_of: i64,
}

/// A non-polynomial operation or a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atom {
    /// A symbol.
    Sym(SymId),
    /// Quotient rounded down.
    FloorDiv(DimId, DimId),
    /// Quotient rounded up.
    CeilDiv(DimId, DimId),
    /// Remainder with the divisor's sign: `a - b·floordiv(a, b)`.
    Mod(DimId, DimId),
    /// The smaller.
    Min(DimId, DimId),
    /// The greater.
    Max(DimId, DimId),
}

type Monomial = SmallVec<[AtomId; 2]>;

/// Sorted by monomial, coefficients never 0; the constant has the empty monomial.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Poly(SmallVec<[(Monomial, i64); 2]>);

/// Answer of a proof; only [`Proof::Yes`] permits reuse or fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Holds for every value the symbols may take.
    Yes,
    /// Fails for every value the symbols may take.
    No,
    /// Depends, or not decided.
    Unknown,
}

/// Builds something from a dim expression, bottom up (host code, an e-graph, a number).
pub trait DimFolder {
    /// What a sub-expression becomes.
    type Out: Clone;
    /// A constant.
    fn constant(&mut self, c: i64) -> Self::Out;
    /// A symbol.
    fn symbol(&mut self, s: SymId) -> Self::Out;
    /// A binary operation.
    fn binary(&mut self, op: DimOp, a: Self::Out, b: Self::Out) -> Self::Out;
}

/// The operations a [`DimFolder`] sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DimOp {
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// Quotient rounded down.
    FloorDiv,
    /// Quotient rounded up.
    CeilDiv,
    /// Remainder with the divisor's sign.
    Mod,
    /// The smaller.
    Min,
    /// The greater.
    Max,
}

impl DimOp {
    /// The value, or `None` on overflow and division by zero.
    pub fn eval(self, a: i64, b: i64) -> Option<i64> {
        match self {
            DimOp::Add => a.checked_add(b),
            DimOp::Mul => a.checked_mul(b),
            DimOp::FloorDiv => floor_div(a, b),
            DimOp::CeilDiv => {
                floor_div(a, b).and_then(|q| if q.checked_mul(b)? == a { Some(q) } else { q.checked_add(1) })
            }
            DimOp::Mod => floor_div(a, b).and_then(|q| a.checked_sub(q.checked_mul(b)?)),
            DimOp::Min => Some(a.min(b)),
            DimOp::Max => Some(a.max(b)),
        }
    }
    /// Name in text form.
    pub fn name(self) -> &'static str {
        match self {
            DimOp::Add => "+",
            DimOp::Mul => "*",
            DimOp::FloorDiv => "floordiv",
            DimOp::CeilDiv => "ceildiv",
            DimOp::Mod => "mod",
            DimOp::Min => "min",
            DimOp::Max => "max",
        }
    }
}

/// Bounds of a function that grows with both operands.
fn both(a: (i64, i64), b: (i64, i64), f: fn(i64, i64) -> i64) -> (i64, i64) {
    (f(a.0, b.0), f(a.1, b.1))
}

/// Bounds of a quotient rounded down, where neither operand is negative and the divisor is not 0.
fn quotient(a: (i64, i64), b: (i64, i64)) -> Option<(i64, i64)> {
    (b.0 > 0 && a.0 >= 0).then(|| (a.0 / b.1.max(1), a.1 / b.0))
}

/// Greatest common divisor; that with 0 is the other.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    if a % b != 0 && (a < 0) != (b < 0) { q.checked_sub(1) } else { Some(q) }
}

/// The pool of a module: every dim expression once.
#[derive(Clone, Debug, Default)]
pub struct DimPool {
    polys: IndexSet<Poly>,
    atoms: IndexSet<Atom>,
    symbols: PrimaryMap<SymId, Symbol>,
    by_name: FxHashMap<String, SymId>,
    /// Overflow while building is remembered, not lost: see [`DimPool::overflowed`].
    overflowed: bool,
}

impl DimPool {
    /// An empty pool.
    pub fn new() -> DimPool {
        DimPool::default()
    }

    fn intern(&mut self, mut p: Poly) -> DimId {
        p.0.retain(|(_, c)| *c != 0);
        p.0.sort_by(|a, b| (a.0.len(), &a.0).cmp(&(b.0.len(), &b.0)));
        DimId::new(self.polys.insert_full(p).0)
    }
    fn poly(&self, d: DimId) -> &Poly {
        &self.polys[d.index()]
    }
    fn atom_dim(&mut self, a: Atom) -> DimId {
        let id = AtomId::new(self.atoms.insert_full(a).0);
        self.intern(Poly(SmallVec::from_iter([(Monomial::from_iter([id]), 1)])))
    }

    /// A constant.
    pub fn constant(&mut self, c: i64) -> DimId {
        self.intern(Poly(SmallVec::from_iter([(Monomial::new(), c)])))
    }
    /// A new symbol with values from 0 up. A taken name gets a number appended.
    pub fn symbol(&mut self, name: &str, origin: Origin) -> DimId {
        let mut unique = name.to_string();
        let mut k = self.symbols.len();
        while unique.is_empty() || self.by_name.contains_key(&unique) {
            unique = format!("{name}_{k}");
            k += 1;
        }
        let s = self.symbols.push(Symbol { name: unique.clone(), origin, lo: 0, hi: i64::MAX, multiple_of: 1 });
        self.by_name.insert(unique, s);
        self.atom_dim(Atom::Sym(s))
    }
    /// The dim of an existing symbol.
    pub fn sym_dim(&mut self, s: SymId) -> DimId {
        self.atom_dim(Atom::Sym(s))
    }
    /// The symbol of that name.
    pub fn find_symbol(&self, name: &str) -> Option<SymId> {
        self.by_name.get(name).copied()
    }
    /// Name, origin and facts of a symbol.
    pub fn sym(&self, s: SymId) -> &Symbol {
        &self.symbols[s]
    }
    /// The same, to add facts. Facts only become more precise; the name stays.
    pub fn sym_mut(&mut self, s: SymId) -> &mut Symbol {
        &mut self.symbols[s]
    }
    /// All symbols in order of creation.
    pub fn symbols(&self) -> impl ExactSizeIterator<Item = (SymId, &Symbol)> {
        self.symbols.iter()
    }
    /// Whether `d` is an expression of this pool (as far as its number tells).
    pub fn contains(&self, d: DimId) -> bool {
        d.index() < self.polys.len()
    }
    /// Whether building any expression overflowed i64; the importer and shape inference turn this into a `Limit` error.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// The value when it is a constant.
    pub fn as_const(&self, d: DimId) -> Option<i64> {
        match self.poly(d).0.as_slice() {
            [] => Some(0),
            [(m, c)] if m.is_empty() => Some(*c),
            _ => None,
        }
    }
    /// The symbol when it is exactly one.
    pub fn as_symbol(&self, d: DimId) -> Option<SymId> {
        match self.poly(d).0.as_slice() {
            [(m, 1)] if m.len() == 1 => match self.atoms[m[0].index()] {
                Atom::Sym(s) => Some(s),
                _ => None,
            },
            _ => None,
        }
    }

    fn check(&mut self, v: Option<i64>) -> i64 {
        v.unwrap_or_else(|| {
            self.overflowed = true;
            0
        })
    }

    /// Sum.
    pub fn add(&mut self, a: DimId, b: DimId) -> DimId {
        let mut p = self.poly(a).clone();
        for (m, c) in self.poly(b).0.clone() {
            match p.0.iter().position(|(n, _)| *n == m) {
                Some(i) => p.0[i].1 = self.check(p.0[i].1.checked_add(c)),
                None => p.0.push((m, c)),
            }
        }
        self.intern(p)
    }
    /// Difference.
    pub fn sub(&mut self, a: DimId, b: DimId) -> DimId {
        let minus = self.constant(-1);
        let b = self.mul(b, minus);
        self.add(a, b)
    }
    /// Product.
    pub fn mul(&mut self, a: DimId, b: DimId) -> DimId {
        let (pa, pb) = (self.poly(a).clone(), self.poly(b).clone());
        let mut out = Poly::default();
        let mut at: FxHashMap<Monomial, usize> = FxHashMap::default();
        for (ma, ca) in &pa.0 {
            for (mb, cb) in &pb.0 {
                let mut m: Monomial = ma.iter().chain(mb).copied().collect();
                m.sort();
                let c = self.check(ca.checked_mul(*cb));
                match at.entry(m) {
                    Entry::Occupied(i) => out.0[*i.get()].1 = self.check(out.0[*i.get()].1.checked_add(c)),
                    Entry::Vacant(v) => {
                        out.0.push((v.key().clone(), c));
                        v.insert(out.0.len() - 1);
                    }
                }
            }
        }
        self.intern(out)
    }
    /// How many terms a dim has as a sum of products: what work on it costs.
    pub fn n_terms(&self, d: DimId) -> usize {
        self.poly(d).0.len()
    }
    /// Product of all.
    pub fn product(&mut self, ds: impl IntoIterator<Item = DimId>) -> DimId {
        let one = self.constant(1);
        ds.into_iter().fold(one, |a, d| self.mul(a, d))
    }
    /// Quotient rounded down. Division by a constant 0 gives an opaque term whose evaluation fails.
    pub fn floordiv(&mut self, a: DimId, b: DimId) -> DimId {
        if let Some(q) = self.exact_quotient(a, b) {
            return q;
        }
        match (self.as_const(a), self.as_const(b)) {
            (Some(x), Some(y)) if y != 0 => {
                let v = self.check(floor_div(x, y));
                return self.constant(v);
            }
            (None, Some(k)) if k > 1 => {
                // g·a / g·k = a / k
                let g = self.poly(a).0.iter().fold(k.unsigned_abs(), |g, (_, c)| gcd(g, c.unsigned_abs()));
                if let Some(g) = i64::try_from(g).ok().filter(|&g| g > 1) {
                    let reduced = Poly(self.poly(a).0.iter().map(|(m, c)| (m.clone(), c / g)).collect());
                    let (a, k) = (self.intern(reduced), self.constant(k / g));
                    return self.floordiv(a, k);
                }
                // (k·q + d + r) / k = q + d / k + r / k when k divides d
                let (whole, divisible, rest) = self.split_multiple(a, k);
                let zero = self.constant(0);
                if whole != zero || (divisible != zero && rest != zero) {
                    let d = match self.as_const(divisible) {
                        Some(_) => zero,
                        None => self.floordiv(divisible, b),
                    };
                    let r = self.floordiv(rest, b);
                    let sum = self.add(whole, d);
                    return self.add(sum, r);
                }
                let (lo, hi) = self.range(a);
                if lo >= 0 && hi < k {
                    return zero;
                }
            }
            _ => {}
        }
        self.atom_dim(Atom::FloorDiv(a, b))
    }
    /// Quotient rounded up.
    pub fn ceildiv(&mut self, a: DimId, b: DimId) -> DimId {
        if let Some(q) = self.exact_quotient(a, b) {
            return q;
        }
        match (self.as_const(a), self.as_const(b)) {
            (Some(x), Some(y)) if y != 0 => {
                let v = self.check(DimOp::CeilDiv.eval(x, y));
                self.constant(v)
            }
            (_, Some(k)) if k > 0 => {
                let km1 = self.constant(k - 1);
                let s = self.add(a, km1);
                self.floordiv(s, b)
            }
            _ => self.atom_dim(Atom::CeilDiv(a, b)),
        }
    }
    /// Remainder with the divisor's sign.
    pub fn modulo(&mut self, a: DimId, b: DimId) -> DimId {
        if self.exact_quotient(a, b).is_some() {
            return self.constant(0);
        }
        match (self.as_const(a), self.as_const(b)) {
            (Some(x), Some(y)) if y != 0 => {
                let v = self.check(DimOp::Mod.eval(x, y));
                return self.constant(v);
            }
            (None, Some(k)) if k > 1 => {
                let (_, _, rest) = self.split_multiple(a, k);
                if rest != a {
                    return self.modulo(rest, b);
                }
                let (lo, hi) = self.range(a);
                if lo >= 0 && hi < k {
                    return a;
                }
            }
            _ => {}
        }
        self.atom_dim(Atom::Mod(a, b))
    }
    /// The smaller.
    pub fn min(&mut self, a: DimId, b: DimId) -> DimId {
        match (self.prove_le(a, b), self.prove_le(b, a)) {
            (Proof::Yes, _) => a,
            (_, Proof::Yes) => b,
            _ => self.atom_dim(Atom::Min(a.min(b), a.max(b))),
        }
    }
    /// The greater.
    pub fn max(&mut self, a: DimId, b: DimId) -> DimId {
        match (self.prove_le(a, b), self.prove_le(b, a)) {
            (Proof::Yes, _) => b,
            (_, Proof::Yes) => a,
            _ => self.atom_dim(Atom::Max(a.min(b), a.max(b))),
        }
    }
    /// One binary operation.
    pub fn binary(&mut self, op: DimOp, a: DimId, b: DimId) -> DimId {
        match op {
            DimOp::Add => self.add(a, b),
            DimOp::Mul => self.mul(a, b),
            DimOp::FloorDiv => self.floordiv(a, b),
            DimOp::CeilDiv => self.ceildiv(a, b),
            DimOp::Mod => self.modulo(a, b),
            DimOp::Min => self.min(a, b),
            DimOp::Max => self.max(a, b),
        }
    }

    /// `a / b` when it is a polynomial for every value: `b` a non-zero constant dividing all coefficients (or symbols by
    /// their `multiple_of` fact only when alone), or `b` one monomial that divides every monomial of `a` and is never 0.
    fn exact_quotient(&mut self, a: DimId, b: DimId) -> Option<DimId> {
        if let Some(k) = self.as_const(b) {
            if k == 0 {
                return None;
            }
            let p = self.poly(a);
            let q = p.0.iter().map(|(m, c)| Some((m.clone(), (c.checked_rem(k)? == 0).then_some(c / k)?)));
            let q: Option<SmallVec<_>> = q.collect();
            return q.map(|q| self.intern(Poly(q)));
        }
        let (mb, cb) = match self.poly(b).0.as_slice() {
            [(m, c)] => (m.clone(), *c),
            _ => return (a == b && self.range(b).0 > 0).then(|| self.constant(1)),
        };
        if self.range(b).0 <= 0 {
            return None;
        }
        let mut out = Poly::default();
        for (m, c) in self.poly(a).0.clone() {
            if c.checked_rem(cb)? != 0 {
                return None;
            }
            let mut rest = m;
            for t in &mb {
                let i = rest.iter().position(|x| x == t)?;
                rest.remove(i);
            }
            out.0.push((rest, c / cb));
        }
        Some(self.intern(out))
    }

    /// `a = k·whole + divisible + rest` for `k > 1`: the terms whose coefficients are multiples of `k`, those that `k` divides
    /// because of facts about symbols, and the others.
    fn split_multiple(&mut self, a: DimId, k: i64) -> (DimId, DimId, DimId) {
        let (mut whole, mut divisible, mut rest) = (Poly::default(), Poly::default(), Poly::default());
        for (m, c) in &self.poly(a).0 {
            let q = c.div_euclid(k);
            if c % k == 0 {
                whole.0.push((m.clone(), q));
            } else if m.is_empty() {
                whole.0.push((m.clone(), q));
                rest.0.push((m.clone(), c.rem_euclid(k)));
            } else if self.known_multiple(m, *c, k) {
                divisible.0.push((m.clone(), *c));
            } else {
                rest.0.push((m.clone(), *c));
            }
        }
        (self.intern(whole), self.intern(divisible), self.intern(rest))
    }

    /// Whether every value of `c·m` is a multiple of `k`.
    fn known_multiple(&self, m: &Monomial, c: i64, k: i64) -> bool {
        // Take out of k what each factor is known to contain.
        let mut left = k.unsigned_abs() / gcd(k.unsigned_abs(), c.unsigned_abs());
        for t in m {
            if let Atom::Sym(s) = self.atoms[t.index()] {
                left /= gcd(left, self.symbols[s].multiple_of.unsigned_abs());
            }
        }
        left == 1
    }

    /// Visits `d` bottom up.
    pub fn fold<F: DimFolder>(&self, d: DimId, f: &mut F) -> F::Out {
        let mut sum: Option<F::Out> = None;
        for (m, c) in self.poly(d).0.iter().rev() {
            let mut term: Option<F::Out> = None;
            for t in m {
                let a = match self.atoms[t.index()] {
                    Atom::Sym(s) => f.symbol(s),
                    Atom::FloorDiv(a, b) => self.fold2(DimOp::FloorDiv, a, b, f),
                    Atom::CeilDiv(a, b) => self.fold2(DimOp::CeilDiv, a, b, f),
                    Atom::Mod(a, b) => self.fold2(DimOp::Mod, a, b, f),
                    Atom::Min(a, b) => self.fold2(DimOp::Min, a, b, f),
                    Atom::Max(a, b) => self.fold2(DimOp::Max, a, b, f),
                };
                term = Some(match term {
                    Some(x) => f.binary(DimOp::Mul, x, a),
                    None => a,
                });
            }
            let term = match term {
                None => f.constant(*c),
                Some(x) if *c == 1 => x,
                Some(x) => {
                    let k = f.constant(*c);
                    f.binary(DimOp::Mul, k, x)
                }
            };
            sum = Some(match sum {
                Some(x) => f.binary(DimOp::Add, x, term),
                None => term,
            });
        }
        sum.unwrap_or_else(|| f.constant(0))
    }
    fn fold2<F: DimFolder>(&self, op: DimOp, a: DimId, b: DimId, f: &mut F) -> F::Out {
        let (a, b) = (self.fold(a, f), self.fold(b, f));
        f.binary(op, a, b)
    }

    /// The value under `env`.
    ///
    /// # Errors
    /// `Shape` when a symbol has no value, on overflow and on division by zero.
    pub fn eval(&self, d: DimId, env: &impl Fn(SymId) -> Option<i64>) -> Result<i64> {
        struct Eval<'a, E>(&'a DimPool, &'a E);
        impl<E: Fn(SymId) -> Option<i64>> DimFolder for Eval<'_, E> {
            type Out = Result<i64>;
            fn constant(&mut self, c: i64) -> Self::Out {
                Ok(c)
            }
            fn symbol(&mut self, s: SymId) -> Self::Out {
                (self.1)(s).ok_or_else(|| {
                    Diagnostic::new(ErrorKind::Shape, format!("dim \"{}\" has no value", self.0.sym(s).name))
                })
            }
            fn binary(&mut self, op: DimOp, a: Self::Out, b: Self::Out) -> Self::Out {
                let (a, b) = (a?, b?);
                op.eval(a, b)
                    .ok_or_else(|| Diagnostic::new(ErrorKind::Shape, format!("cannot compute {a} {} {b}", op.name())))
            }
        }
        self.fold(d, &mut Eval(self, env))
    }

    /// Whether a dim is known once the extents of the inputs are.
    pub fn is_at_entry(&self, d: DimId) -> bool {
        self.symbols_of(d).iter().all(|&s| matches!(self.sym(s).origin, Origin::Input { .. }))
    }
    /// Replaces symbols; `f` returns the replacement or `None` to keep one.
    pub fn substitute(&mut self, d: DimId, f: &impl Fn(SymId) -> Option<DimId>) -> DimId {
        self.substitute_memo(d, f, &mut FxHashMap::default())
    }
    fn substitute_memo(
        &mut self,
        d: DimId,
        f: &impl Fn(SymId) -> Option<DimId>,
        done: &mut FxHashMap<DimId, DimId>,
    ) -> DimId {
        if let Some(&r) = done.get(&d) {
            return r;
        }
        let mut sum = self.constant(0);
        for (m, c) in self.poly(d).0.clone() {
            let mut term = self.constant(c);
            for t in m {
                let (op, a, b) = match self.atoms[t.index()] {
                    Atom::Sym(s) => {
                        let x = f(s).unwrap_or_else(|| self.sym_dim(s));
                        term = self.mul(term, x);
                        continue;
                    }
                    Atom::FloorDiv(a, b) => (DimOp::FloorDiv, a, b),
                    Atom::CeilDiv(a, b) => (DimOp::CeilDiv, a, b),
                    Atom::Mod(a, b) => (DimOp::Mod, a, b),
                    Atom::Min(a, b) => (DimOp::Min, a, b),
                    Atom::Max(a, b) => (DimOp::Max, a, b),
                };
                let (a, b) = (self.substitute_memo(a, f, done), self.substitute_memo(b, f, done));
                let x = self.binary(op, a, b);
                term = self.mul(term, x);
            }
            sum = self.add(sum, term);
        }
        done.insert(d, sum);
        sum
    }

    /// The symbols `d` depends on, each once, in order of creation.
    pub fn symbols_of(&self, d: DimId) -> Vec<SymId> {
        struct Collect(Vec<SymId>);
        impl DimFolder for Collect {
            type Out = ();
            fn constant(&mut self, _: i64) {}
            fn symbol(&mut self, s: SymId) {
                self.0.push(s);
            }
            fn binary(&mut self, _: DimOp, (): (), (): ()) {}
        }
        let mut c = Collect(Vec::new());
        self.fold(d, &mut c);
        c.0.sort();
        c.0.dedup();
        c.0
    }

    /// Prints an expression: `2*s + 1`, `floordiv(s, 4)`.
    pub fn display(&self, d: DimId) -> DimDisplay<'_> {
        DimDisplay(self, d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> (DimPool, DimId, DimId) {
        let mut p = DimPool::new();
        let s = p.symbol("s", Origin::Unknown);
        let t = p.symbol("t", Origin::Unknown);
        (p, s, t)
    }

    #[test]
    fn equal_values_have_equal_ids() {
        let (mut p, s, t) = pool();
        let k = |p: &mut DimPool, c| p.constant(c);
        let (two, four) = (k(&mut p, 2), k(&mut p, 4));
        let st = p.add(s, t);
        let a = p.mul(st, two);
        let (b1, b2) = (p.mul(s, two), p.mul(two, t));
        let b = p.add(b2, b1);
        assert_eq!(a, b);
        let s4 = p.mul(s, four);
        assert_eq!(p.floordiv(s4, four), s);
        let s4p2 = p.add(s4, two);
        assert_eq!(p.floordiv(s4p2, four), s);
        assert_eq!(p.modulo(s4p2, four), two);
        let d = p.floordiv(s, four);
        assert_eq!(p.display(d).to_string(), "floordiv(s, 4)");
    }

    #[test]
    fn proofs_follow_the_bounds_of_symbols() {
        let (mut p, s, t) = pool();
        let one = p.constant(1);
        let s1 = p.add(s, one);
        assert_eq!(p.prove_le(s, s1), Proof::Yes);
        assert_eq!(p.prove_eq(s, s1), Proof::No);
        assert_eq!(p.prove_eq(s, t), Proof::Unknown);
        assert_eq!(p.max(s, s1), s1);
        // s·t / t is s only once t is known not to be 0.
        let st = p.mul(s, t);
        assert_ne!(p.floordiv(st, t), s);
        let sym = p.as_symbol(t).unwrap();
        p.sym_mut(sym).lo = 1;
        assert_eq!(p.floordiv(st, t), s);
    }

    #[test]
    fn bounds_of_quotients_60_deep_take_no_time() {
        let (mut p, s, t) = pool();
        let two = p.constant(2);
        let half = |p: &mut DimPool, d| {
            let sum = p.add(d, t);
            p.floordiv(sum, two)
        };
        let d = (0..60).fold(s, |d, _| half(&mut p, d));
        assert_eq!(p.range(d).0, 0);
    }

    #[test]
    fn evaluation_rounds_as_documented_and_reports_what_is_missing() {
        let (mut p, s, t) = pool();
        let three = p.constant(3);
        let q = p.floordiv(s, three);
        let c = p.ceildiv(s, three);
        let env = |x: SymId| (x == p.as_symbol(s).unwrap()).then_some(-7);
        assert_eq!((p.eval(q, &env), p.eval(c, &env)), (Ok(-3), Ok(-2)));
        assert!(p.eval(t, &env).unwrap_err().message().contains("\"t\" has no value"));
    }

    #[test]
    fn facts_about_multiples_are_used() {
        let (mut p, s, t) = pool();
        let sym = p.as_symbol(s).unwrap();
        p.sym_mut(sym).multiple_of = 8;
        let mut text = |e: &str| {
            let d = p.parse(e).unwrap();
            p.display(d).to_string()
        };
        assert_eq!(text("mod(s, 4)"), "0");
        assert_eq!(text("mod(3*s + t, 8)"), "mod(t, 8)");
        assert_eq!(text("ceildiv(s, 8)"), "floordiv(s, 8)");
        assert_eq!(text("floordiv(s + 7, 8)"), "floordiv(s, 8)");
        assert_eq!(text("floordiv(2*t, 6)"), "floordiv(t, 3)");
        assert_eq!(text("mod(s, 16)"), "mod(s, 16)");
        let _ = t;
    }

    #[test]
    fn text_reads_back_whatever_the_order_of_creation() {
        let exprs =
            ["min(t + 1, 4*s)", "s*t - 2*floordiv(s, 3) + max(s, t)", "-t", "\"a b\" + 1", "mod(s, 5)*mod(t, 3)"];
        let texts: Vec<Vec<String>> = [false, true]
            .map(|reversed| {
                let (mut p, ..) = pool();
                p.symbol("a b", Origin::Unknown);
                let mut all = exprs.to_vec();
                if reversed {
                    all.reverse();
                }
                let mut out: Vec<String> = all
                    .iter()
                    .map(|e| {
                        let d = p.parse(e).unwrap();
                        let text = p.display(d).to_string();
                        assert_eq!(p.parse(&text).unwrap(), d, "{text}");
                        text
                    })
                    .collect();
                out.sort();
                out
            })
            .to_vec();
        assert_eq!(texts[0], texts[1]);
        let (mut p, ..) = pool();
        for (text, at, what) in [
            ("s +", 3, "expected an extent"),
            ("min(s", 5, "expected \",\""),
            ("s t", 2, "expected an operator or the end of the extent"),
        ] {
            let (i, e) = p.parse(text).unwrap_err();
            assert_eq!((i, e.message()), (at, what), "{text}");
        }
    }

    #[test]
    fn substitution_replaces_everywhere() {
        let (mut p, s, _) = pool();
        let e = p.parse("floordiv(s + t, 4) + s*s").unwrap();
        let sym = p.as_symbol(s).unwrap();
        let k = p.parse("t").unwrap();
        let r = p.substitute(e, &|x| (x == sym).then_some(k));
        assert_eq!(p.display(r).to_string(), "t*t + floordiv(t, 2)");
    }

    use proptest::prelude::*;

    /// An expression tree over `s` (a multiple of 4, at least 4) and `t`.
    #[derive(Clone, Debug)]
    enum Tree {
        Num(i64),
        S,
        T,
        Op(DimOp, Box<Tree>, Box<Tree>),
    }

    fn tree() -> impl Strategy<Value = Tree> {
        let leaf = prop_oneof![(-9i64..9).prop_map(Tree::Num), Just(Tree::S), Just(Tree::T)];
        let op = prop::sample::select(vec![
            DimOp::Add,
            DimOp::Mul,
            DimOp::FloorDiv,
            DimOp::CeilDiv,
            DimOp::Mod,
            DimOp::Min,
            DimOp::Max,
        ]);
        leaf.prop_recursive(4, 24, 2, move |inner| {
            (op.clone(), inner.clone(), inner).prop_map(|(o, a, b)| Tree::Op(o, Box::new(a), Box::new(b)))
        })
    }

    fn direct(t: &Tree, s: i64, v: i64) -> Option<i64> {
        match t {
            Tree::Num(n) => Some(*n),
            Tree::S => Some(s),
            Tree::T => Some(v),
            Tree::Op(op, a, b) => op.eval(direct(a, s, v)?, direct(b, s, v)?),
        }
    }

    fn build(p: &mut DimPool, t: &Tree, s: DimId, v: DimId) -> DimId {
        match t {
            Tree::Num(n) => p.constant(*n),
            Tree::S => s,
            Tree::T => v,
            Tree::Op(op, a, b) => {
                let (a, b) = (build(p, a, s, v), build(p, b, s, v));
                p.binary(*op, a, b)
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn the_normal_form_has_the_value_of_the_expression(t in tree(), u in tree(), k in 1i64..40, v in 0i64..50) {
            let (mut p, s, w) = pool();
            let sym = p.as_symbol(s).unwrap();
            p.sym_mut(sym).multiple_of = 4;
            p.sym_mut(sym).lo = 4;
            let (a, b) = (build(&mut p, &t, s, w), build(&mut p, &u, s, w));
            let text = p.display(a).to_string();
            prop_assert_eq!(p.parse(&text).unwrap(), a, "{}", text);
            let other = p.as_symbol(w).unwrap();
            let env = |x: SymId| if x == sym { Some(4 * k) } else if x == other { Some(v) } else { None };
            let (x, y) = (direct(&t, 4 * k, v), direct(&u, 4 * k, v));
            if let (Some(x), false) = (x, p.overflowed()) {
                prop_assert_eq!(p.eval(a, &env), Ok(x), "{}", text);
                let (lo, hi) = p.range(a);
                prop_assert!(lo <= x && x <= hi, "{} = {} is outside {}..{}", text, x, lo, hi);
                if let Some(y) = y {
                    let (eq, le) = (p.prove_eq(a, b), p.prove_le(a, b));
                    prop_assert!(eq != Proof::Yes || x == y);
                    prop_assert!(eq != Proof::No || x != y);
                    prop_assert!(le != Proof::Yes || x <= y);
                    prop_assert!(le != Proof::No || x > y);
                }
            }
        }
    }
}
