//! Loop nests over packed elements become loop nests over bytes.
//!
//! Elements of 4 and 2 bits have no address: a load takes the byte and cuts the element out. Where the result is packed, a point
//! computes all elements of one byte, so that no two points write to the same byte; bits beyond the last element are 0.

use crate::nests;
use ir::lowering::Plan;
use ir::nest::{Access, Axis, BinOp, Coord, Expr, ExprId, Nest, NestOperand, Phase, Reduction, Term, UnOp};
use smallvec::SmallVec;
use tensor::{DType, DimId, DimPool, Entity};

/// Whether several elements share a byte.
pub fn is_packed(d: DType) -> bool {
    d.size().is_none() && d != DType::String
}

/// Elements in a byte.
pub fn per_byte(d: DType) -> i64 {
    i64::try_from(8 / d.bits().max(1)).unwrap_or(1)
}

/// Where the elements of a packed operand are.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The first element, counted from the start of the buffer.
    pub offset: DimId,
    /// Bytes of the buffer.
    pub n_bytes: DimId,
}

/// The nest over bytes. `places` are those of packed operands, which become lists of u8: the whole buffers. A packed result must be
/// contiguous and be all of its buffer.
///
/// # Errors
/// A refusal where several results are written at once, or one is not written element by element in row-major order.
pub fn over_bytes(dims: &mut DimPool, nest: &Nest, places: &[Option<Place>]) -> Plan<Nest> {
    let mut r = Rewrite { dims, from: nest, places, to: Nest::default(), map: vec![], point: None, n_reduced: 0 };
    r.to.inner.clone_from(&nest.inner);
    for (o, place) in nest.operands.iter().zip(places) {
        r.to.operands.push(match place {
            Some(p) => bytes(r.dims, p.n_bytes, o.written),
            None => o.clone(),
        });
    }
    let written = nest.operands.iter().zip(places).filter(|(o, _)| o.written);
    match written.clone().find_map(|(o, p)| p.map(|p| (o, p))) {
        None => r.whole(),
        Some((o, place)) if written.count() == 1 => r.by_byte(o.dtype, place)?,
        Some((o, _)) => return Err(format!("{} is written together with another result", o.dtype).into()),
    }
    let to = std::mem::take(&mut r.to);
    Ok(nests::simplify(dims, &to))
}

fn bytes(dims: &mut DimPool, n: DimId, written: bool) -> NestOperand {
    let one = dims.constant(1);
    let list = |d| SmallVec::from_iter([d]);
    NestOperand { dtype: DType::U8, shape: list(n), strides: list(one), written }
}

struct Rewrite<'a> {
    dims: &'a mut DimPool,
    from: &'a Nest,
    places: &'a [Option<Place>],
    to: Nest,
    /// What expressions of `from` have become.
    map: Vec<ExprId>,
    /// The outer axes of `from`, where they are no longer axes.
    point: Option<Vec<ExprId>>,
    n_reduced: u16,
}

impl Rewrite<'_> {
    /// The same points.
    fn whole(&mut self) {
        self.to.outer.clone_from(&self.from.outer);
        self.exprs();
        let from = self.from;
        for p in &from.phases {
            let p = match p {
                Phase::Reduce(rs) => self.reduction(rs),
                Phase::Store { over_inner, stores } => Phase::Store {
                    over_inner: *over_inner,
                    stores: stores.iter().map(|(a, e)| (self.access(a), self.map[e.index()])).collect(),
                },
            };
            self.to.phases.push(p);
        }
    }

    /// A point for a byte of the result.
    fn by_byte(&mut self, dtype: DType, place: Place) -> Plan<()> {
        let from = self.from;
        let (store, before) = from.phases.split_last().ok_or("it stores nothing")?;
        let Phase::Store { over_inner: false, stores } = store else {
            return Err(format!("{dtype} is written more than once at a point").into());
        };
        let [(to, value)] = stores.as_slice() else { return Err("it has several results".into()) };
        if before.iter().any(|p| matches!(p, Phase::Store { .. })) || !self.is_row_major(to) {
            return Err(format!("{dtype} is not written in row-major order").into());
        }
        self.to.outer = vec![place.n_bytes];
        let n = self.dims.product(from.outer.iter().copied());
        let (n, per) = (self.dim(n), per_byte(dtype));
        let byte = self.to.expr(Expr::Index(Axis::Outer(0)));
        let mut sum = None;
        for k in 0..per {
            let (count, k_at) = (self.int(per), self.int(k));
            let first = self.to.bin(BinOp::Mul, byte, count);
            let at = self.to.bin(BinOp::Add, first, k_at);
            // What is beyond the end is computed as the last element is, and left out.
            let one = self.int(1);
            let last = self.to.bin(BinOp::Sub, n, one);
            let near = self.to.bin(BinOp::Min, at, last);
            self.point = Some(self.unravel(near));
            self.exprs();
            for p in before {
                if let Phase::Reduce(rs) = p {
                    let p = self.reduction(rs);
                    self.to.phases.push(p);
                }
            }
            let reductions = before.iter().map(|p| if let Phase::Reduce(rs) = p { rs.len() } else { 0 }).sum::<usize>();
            self.n_reduced = self.n_reduced.saturating_add(u16::try_from(reductions).unwrap_or(u16::MAX));
            let bits = self.encode(self.map[value.index()], dtype);
            let (inside, none) = (self.to.bin(BinOp::Lt, at, n), self.bits(0));
            let bits = if k == 0 { bits } else { self.to.expr(Expr::Select(inside, bits, none)) };
            let shift = self.bits(u32::try_from(k).unwrap_or(0) * u32::try_from(dtype.bits()).unwrap_or(8));
            let bits = self.to.bin(BinOp::Shl, bits, shift);
            sum = Some(sum.map_or(bits, |sum| self.to.bin(BinOp::Or, sum, bits)));
        }
        let coord = nests::axis_coord(self.dims, Axis::Outer(0));
        let access = Access { operand: to.operand, coords: SmallVec::from_iter([coord]) };
        let stores = sum.map(|e| (access, e)).into_iter().collect();
        self.to.phases.push(Phase::Store { over_inner: false, stores });
        Ok(())
    }

    /// Whether each point writes the element at its own place.
    fn is_row_major(&self, a: &Access) -> bool {
        let (dims, outer) = (&self.dims, &self.from.outer);
        let shape = &self.from.operands[usize::from(a.operand)].shape;
        shape.as_slice() == outer.as_slice()
            && a.coords.len() == outer.len()
            && a.coords.iter().enumerate().all(|(i, c)| {
                let own = match c.terms.as_slice() {
                    [] => dims.as_const(outer[i]) == Some(1),
                    [(Term::Axis(Axis::Outer(k)), step)] => usize::from(*k) == i && dims.as_const(*step) == Some(1),
                    _ => false,
                };
                own && dims.as_const(c.offset) == Some(0)
            })
    }

    /// The outer coordinates of the row-major `at`-th point.
    fn unravel(&mut self, at: ExprId) -> Vec<ExprId> {
        let mut step = self.dims.constant(1);
        let mut out = vec![];
        for (i, &d) in self.from.outer.iter().enumerate().rev() {
            let (n, by) = (self.dim(d), self.dim(step));
            let q = if self.dims.as_const(step) == Some(1) { at } else { self.to.bin(BinOp::Div, at, by) };
            out.push(if i == 0 { q } else { self.to.bin(BinOp::Rem, q, n) });
            step = self.dims.mul(step, d);
        }
        out.reverse();
        out
    }

    /// All expressions, for the current point.
    fn exprs(&mut self) {
        self.map.clear();
        let from = self.from;
        for e in &from.exprs {
            let new = match e {
                Expr::Index(Axis::Outer(i)) if self.point.is_some() => self.axis(*i),
                Expr::Reduced(i) => self.to.expr(Expr::Reduced(i.saturating_add(self.n_reduced))),
                Expr::Load(a) => match self.packed(a) {
                    Some((dtype, place)) => self.element(a, dtype, place, None),
                    None => {
                        let a = self.access(a);
                        self.to.expr(Expr::Load(a))
                    }
                },
                Expr::LoadIf { cond, access, other } => {
                    let (cond, other) = (self.map[cond.index()], self.map[other.index()]);
                    match self.packed(access) {
                        Some((dtype, place)) => {
                            let x = self.element(access, dtype, place, Some(cond));
                            self.to.expr(Expr::Select(cond, x, other))
                        }
                        None => {
                            let access = self.access(access);
                            self.to.expr(Expr::LoadIf { cond, access, other })
                        }
                    }
                }
                e => {
                    let e = nests::map_children(e, &mut |c| self.map[c.index()]);
                    self.to.expr(e)
                }
            };
            self.map.push(new);
        }
    }

    fn axis(&mut self, i: u16) -> ExprId {
        match self.point.as_ref().and_then(|p| p.get(usize::from(i))) {
            Some(&e) => e,
            None => self.to.expr(Expr::Index(Axis::Outer(i))),
        }
    }

    fn packed(&self, a: &Access) -> Option<(DType, Place)> {
        let k = usize::from(a.operand);
        self.places[k].map(|p| (self.from.operands[k].dtype, p))
    }

    fn reduction(&self, rs: &[Reduction]) -> Phase {
        let value = |r: &Reduction| Reduction { combiner: r.combiner, value: self.map[r.value.index()] };
        Phase::Reduce(rs.iter().map(value).collect())
    }

    fn term(&self, t: Term) -> Term {
        match (t, &self.point) {
            (Term::Expr(e), _) => Term::Expr(self.map[e.index()]),
            (Term::Axis(Axis::Outer(i)), Some(p)) => p.get(usize::from(i)).map_or(t, |&e| Term::Expr(e)),
            _ => t,
        }
    }

    fn access(&self, a: &Access) -> Access {
        let coord =
            |c: &Coord| Coord { offset: c.offset, terms: c.terms.iter().map(|&(t, k)| (self.term(t), k)).collect() };
        Access { operand: a.operand, coords: a.coords.iter().map(coord).collect() }
    }

    fn int(&mut self, v: i64) -> ExprId {
        self.to.expr(Expr::Int(v, DType::I64))
    }
    fn bits(&mut self, v: u32) -> ExprId {
        self.to.expr(Expr::Int(v.into(), DType::U32))
    }
    fn dim(&mut self, d: DimId) -> ExprId {
        match self.dims.as_const(d) {
            Some(v) => self.int(v),
            None => self.to.expr(Expr::Dim(d)),
        }
    }

    /// The position of an element in its buffer.
    fn position(&mut self, a: &Access, place: Place) -> ExprId {
        let strides = self.from.operands[usize::from(a.operand)].strides.clone();
        let (mut offset, mut terms) = (place.offset, Vec::new());
        for (c, &s) in a.coords.iter().zip(&strides) {
            let start = self.dims.mul(c.offset, s);
            offset = self.dims.add(offset, start);
            for &(t, k) in &c.terms {
                terms.push((self.term(t), self.dims.mul(k, s)));
            }
        }
        let mut at = self.dim(offset);
        for (t, k) in terms {
            let e = match t {
                Term::Axis(axis) => self.to.expr(Expr::Index(axis)),
                Term::Expr(e) => e,
            };
            let step = self.dim(k);
            let by = if self.dims.as_const(k) == Some(1) { e } else { self.to.bin(BinOp::Mul, e, step) };
            at = self.to.bin(BinOp::Add, at, by);
        }
        at
    }

    /// An element of a packed operand, in its compute type; read where `cond` holds.
    fn element(&mut self, a: &Access, dtype: DType, place: Place, cond: Option<ExprId>) -> ExprId {
        let at = self.position(a, place);
        let per = per_byte(dtype);
        let (log, low) = (self.int(i64::from(per.trailing_zeros())), self.int(per - 1));
        let byte_at = self.to.bin(BinOp::Shr, at, log);
        let (zero, one) = (self.dims.constant(0), self.dims.constant(1));
        let coord = Coord { offset: zero, terms: SmallVec::from_iter([(Term::Expr(byte_at), one)]) };
        let access = Access { operand: a.operand, coords: SmallVec::from_iter([coord]) };
        let byte = match cond {
            Some(cond) => {
                let other = self.bits(0);
                self.to.expr(Expr::LoadIf { cond, access, other })
            }
            None => self.to.expr(Expr::Load(access)),
        };
        let width = i64::try_from(dtype.bits()).unwrap_or(8);
        let (k, width) = (self.to.bin(BinOp::And, at, low), self.int(width));
        let shift = self.to.bin(BinOp::Mul, k, width);
        let shift = self.to.expr(Expr::Cast(shift, DType::U32));
        let (v, mask) = (self.to.bin(BinOp::Shr, byte, shift), self.mask(dtype));
        let v = self.to.bin(BinOp::And, v, mask);
        self.decode(v, dtype)
    }

    fn mask(&mut self, dtype: DType) -> ExprId {
        self.bits((1u32 << dtype.bits()) - 1)
    }

    /// The value of the bits of an element.
    fn decode(&mut self, v: ExprId, dtype: DType) -> ExprId {
        if dtype.is_float() {
            // Codes are ordered: 0 and ½ have no leading 1, from 1 on they are the upper bits of an f32.
            let (seven, two) = (self.bits(7), self.bits(2));
            let code = self.to.bin(BinOp::And, v, seven);
            let small = self.to.expr(Expr::Cast(code, DType::F32));
            let half = self.to.num(0.5, DType::F32);
            let small = self.to.bin(BinOp::Mul, small, half);
            let (up, bias) = (self.bits(22), self.bits(126 << 23));
            let bits = self.to.bin(BinOp::Shl, code, up);
            let bits = self.to.bin(BinOp::Add, bits, bias);
            let small_bits = self.to.un(UnOp::ToBits, small);
            let is_small = self.to.bin(BinOp::Lt, code, two);
            let bits = self.to.expr(Expr::Select(is_small, small_bits, bits));
            let (eight, up) = (self.bits(8), self.bits(28));
            let sign = self.to.bin(BinOp::And, v, eight);
            let sign = self.to.bin(BinOp::Shl, sign, up);
            let bits = self.to.bin(BinOp::Or, bits, sign);
            return self.to.un(UnOp::FromBits, bits);
        }
        if !dtype.is_signed() {
            return v;
        }
        let sign = self.to.expr(Expr::Int(1 << (dtype.bits() - 1), DType::I32));
        let v = self.to.expr(Expr::Cast(v, DType::I32));
        let v = self.to.bin(BinOp::Xor, v, sign);
        self.to.bin(BinOp::Sub, v, sign)
    }

    /// The bits of a value as an element: integers wrap, floats round to nearest even and saturate.
    fn encode(&mut self, x: ExprId, dtype: DType) -> ExprId {
        if !dtype.is_float() {
            let v = self.to.expr(Expr::Cast(x, DType::U32));
            let mask = self.mask(dtype);
            return self.to.bin(BinOp::And, v, mask);
        }
        // The code of a magnitude is how many middles between neighbours lie below it; a tie goes to the even code.
        const MIDDLES: [(f64, BinOp); 7] = [
            (0.25, BinOp::Gt),
            (0.75, BinOp::Ge),
            (1.25, BinOp::Gt),
            (1.75, BinOp::Ge),
            (2.5, BinOp::Gt),
            (3.5, BinOp::Ge),
            (5.0, BinOp::Gt),
        ];
        let size = self.to.un(UnOp::Abs, x);
        let mut code = self.bits(0);
        for (middle, op) in MIDDLES {
            let middle = self.to.num(middle, DType::F32);
            let above = self.to.bin(op, size, middle);
            let above = self.to.expr(Expr::Cast(above, DType::U32));
            code = self.to.bin(BinOp::Add, code, above);
        }
        // NaN has no code: it is the greatest, as on the host.
        let (nan, top) = (self.to.un(UnOp::IsNan, x), self.bits(7));
        let bits = self.to.un(UnOp::ToBits, x);
        let (down, eight) = (self.bits(28), self.bits(8));
        let sign = self.to.bin(BinOp::Shr, bits, down);
        let sign = self.to.bin(BinOp::And, sign, eight);
        let code = self.to.bin(BinOp::Or, code, sign);
        self.to.expr(Expr::Select(nan, top, code))
    }
}
