//! Runs loop nests on host tensors, one point after the other: the oracle for generated kernels.
//!
//! Arithmetic is done in f64 or i128 and rounded (wrapped) to the compute type after every operation, so + − × ÷ √ are those of
//! the type itself and transcendental functions are correct to the last bit but one. Sums of floats are kept in f64 until the
//! end of the reduction: any order that generated code takes is near it. Every access is checked against the extents of its
//! operand and against the buffer.

use crate::nest::{Access, Axis, BinOp, Combiner, Coord, Expr, ExprId, Nest, Phase, Reduction, Term, UnOp};
use reference::{cast, data, math};
use tensor::{DType, Diagnostic, DimId, DimPool, Entity, ErrorKind, Result, SymId, Tensor};

/// Runs a nest whose buffers that are read are `reads`, in order; returns those that it writes. Buffers are row-major in the
/// extents of their operands: strides other than that are for [`eval_buffers`].
///
/// # Errors
/// As [`eval_buffers`].
pub fn eval(
    nest: &Nest,
    dims: &DimPool,
    env: &impl Fn(SymId) -> Option<i64>,
    reads: &[&Tensor],
) -> Result<Vec<Tensor>> {
    let mut reads = reads.iter();
    let mut buffers = Vec::with_capacity(nest.operands.len());
    for (i, o) in nest.operands.iter().enumerate() {
        buffers.push(if o.written {
            let shape: Result<Vec<usize>> = o.shape.iter().map(|&d| extent(dims, env, d)).collect();
            Tensor::zeros(o.dtype, &shape?)?
        } else {
            let t = reads.next().ok_or_else(|| broken(format!("operand {i} of the nest has no buffer")))?;
            (*t).clone()
        });
    }
    eval_buffers(nest, dims, env, &mut buffers)?;
    Ok(buffers.into_iter().zip(&nest.operands).filter(|(_, o)| o.written).map(|(t, _)| t).collect())
}

/// Runs a nest on buffers, one per operand: flat storage of the operand's element type into which its strides point. What is
/// written replaces the buffer, under its old shape.
///
/// # Errors
/// `Internal` when the nest is not well formed: an index outside of an operand, a buffer of another type, a reduction used
/// before it is computed. `Shape` when a dim cannot be evaluated.
pub fn eval_buffers(
    nest: &Nest,
    dims: &DimPool,
    env: &impl Fn(SymId) -> Option<i64>,
    buffers: &mut [Tensor],
) -> Result<()> {
    if buffers.len() != nest.operands.len() {
        return Err(broken(format!("{} buffers for {} operands", buffers.len(), nest.operands.len())));
    }
    let eval = |d: DimId| dims.eval(d, env);
    let mut operands = Vec::with_capacity(buffers.len());
    for (o, t) in nest.operands.iter().zip(&*buffers) {
        if o.dtype != t.dtype() || o.shape.len() != o.strides.len() {
            return Err(broken(format!("an operand of type {} has a buffer of type {}", o.dtype, t.dtype())));
        }
        let all = |s: &[DimId]| s.iter().map(|&d| eval(d)).collect::<Result<Vec<i64>>>();
        operands.push(Operand { shape: all(&o.shape)?, strides: all(&o.strides)?, cells: Cells::new(t) });
    }
    let mut dim_values = vec![None; nest.exprs.len()];
    for (e, slot) in nest.exprs.iter().zip(&mut dim_values) {
        if let Expr::Dim(d) = e {
            *slot = Some(Scalar::Int(eval(*d)?.into()));
        }
    }
    let coords = |a: &Access| a.coords.iter().map(|c| number(c, &eval)).collect::<Result<Vec<_>>>();
    let mut accesses = Vec::with_capacity(nest.exprs.len());
    for e in &nest.exprs {
        accesses.push(match e {
            Expr::Load(a) | Expr::LoadIf { access: a, .. } => coords(a)?,
            _ => vec![],
        });
    }
    let mut stores = Vec::new();
    for p in &nest.phases {
        stores.push(match p {
            Phase::Store { stores, .. } => stores.iter().map(|(a, _)| coords(a)).collect::<Result<Vec<_>>>()?,
            Phase::Reduce(_) => vec![],
        });
    }
    let extents = |s: &[DimId]| s.iter().map(|&d| eval(d)).collect::<Result<Vec<i64>>>();
    let n = nest.exprs.len();
    let mut run = Run {
        nest,
        operands,
        dim_values,
        accesses,
        types: (0..n).map(|i| nest.expr_dtype(ExprId::new(i))).collect(),
        memo: vec![(0, Scalar::Int(0)); n],
        now: 0,
        outer: vec![],
        inner: vec![],
        reduced: vec![],
    };
    let (outer, inner) = (extents(&nest.outer)?, extents(&nest.inner)?);
    for_each_point(&outer, &mut |point| run.point(point, &inner, &stores))?;
    for ((t, o), decl) in buffers.iter_mut().zip(run.operands).zip(&nest.operands) {
        if decl.written {
            *t = o.cells.tensor(t.dtype(), t.shape());
        }
    }
    Ok(())
}

fn extent(dims: &DimPool, env: &impl Fn(SymId) -> Option<i64>, d: DimId) -> Result<usize> {
    let v = dims.eval(d, env)?;
    usize::try_from(v).map_err(|_| broken(format!("extent {} is {v}", dims.display(d))))
}

fn broken(text: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, format!("loop nest: {text}"))
}

/// A coordinate with its dims evaluated.
type Linear = (i64, Vec<(Term, i64)>);

fn number(c: &Coord, eval: &impl Fn(DimId) -> Result<i64>) -> Result<Linear> {
    let terms = c.terms.iter().map(|&(t, k)| Ok((t, eval(k)?))).collect::<Result<Vec<_>>>()?;
    Ok((eval(c.offset)?, terms))
}

/// Calls `f` for every index tuple, row-major. Extents below 1 give none.
fn for_each_point(extents: &[i64], f: &mut impl FnMut(&[i64]) -> Result<()>) -> Result<()> {
    if extents.iter().any(|&d| d < 1) {
        return Ok(());
    }
    let mut at = vec![0; extents.len()];
    loop {
        f(&at)?;
        let Some(axis) = (0..at.len()).rev().find(|&i| at[i] + 1 < extents[i]) else { return Ok(()) };
        at[axis] += 1;
        at[axis + 1..].fill(0);
    }
}

/// A value of a compute type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scalar {
    Float(f64),
    Int(i128),
}

impl Scalar {
    fn float(self) -> f64 {
        match self {
            Scalar::Float(x) => x,
            Scalar::Int(x) => x as f64,
        }
    }
    fn int(self) -> i128 {
        match self {
            Scalar::Float(x) => x as i128,
            Scalar::Int(x) => x,
        }
    }
    fn truth(self) -> bool {
        match self {
            Scalar::Float(x) => x != 0.0,
            Scalar::Int(x) => x != 0,
        }
    }
    fn bool(b: bool) -> Scalar {
        Scalar::Int(b.into())
    }
}

/// Rounds or wraps to a compute type.
fn fit(x: Scalar, d: DType) -> Scalar {
    match (x, d) {
        (Scalar::Float(x), DType::F32) => Scalar::Float((x as f32).into()),
        (Scalar::Int(x), DType::I32) => Scalar::Int((x as i32).into()),
        (Scalar::Int(x), DType::I64) => Scalar::Int((x as i64).into()),
        (Scalar::Int(x), DType::U32) => Scalar::Int((x as u32).into()),
        (Scalar::Int(x), DType::U64) => Scalar::Int((x as u64).into()),
        (x, DType::Bool) => Scalar::bool(x.truth()),
        _ => x,
    }
}

/// Elements of a buffer.
enum Cells {
    Floats(Vec<f64>),
    Ints(Vec<i128>),
}

impl Cells {
    fn new(t: &Tensor) -> Cells {
        if t.dtype().is_float() { Cells::Floats(data::f64s(t)) } else { Cells::Ints(data::ints(t)) }
    }
    fn tensor(self, d: DType, shape: &[usize]) -> Tensor {
        match self {
            Cells::Floats(v) => data::from_f64s(d, shape, &v),
            Cells::Ints(v) => data::from_ints(d, shape, &v),
        }
    }
    fn len(&self) -> usize {
        match self {
            Cells::Floats(v) => v.len(),
            Cells::Ints(v) => v.len(),
        }
    }
}

struct Operand {
    shape: Vec<i64>,
    strides: Vec<i64>,
    cells: Cells,
}

struct Run<'n> {
    nest: &'n Nest,
    operands: Vec<Operand>,
    dim_values: Vec<Option<Scalar>>,
    accesses: Vec<Vec<Linear>>,
    types: Vec<DType>,
    /// Values of expressions at the current point, with the visit they belong to.
    memo: Vec<(u64, Scalar)>,
    now: u64,
    outer: Vec<i64>,
    inner: Vec<i64>,
    reduced: Vec<Scalar>,
}

impl Run<'_> {
    fn point(&mut self, point: &[i64], inner: &[i64], stores: &[Vec<Vec<Linear>>]) -> Result<()> {
        self.outer = point.to_vec();
        self.inner = vec![];
        self.reduced.clear();
        let nest = self.nest;
        for (phase, coords) in nest.phases.iter().zip(stores) {
            match phase {
                Phase::Reduce(list) => self.reduce(list, inner)?,
                Phase::Store { over_inner: true, stores } => {
                    for_each_point(inner, &mut |at| {
                        self.inner = at.to_vec();
                        self.now += 1;
                        self.store(stores, coords)
                    })?;
                    self.inner.clear();
                }
                Phase::Store { over_inner: false, stores } => {
                    self.now += 1;
                    self.store(stores, coords)?;
                }
            }
        }
        Ok(())
    }

    fn reduce(&mut self, list: &[Reduction], inner: &[i64]) -> Result<()> {
        let types: Vec<DType> = list.iter().map(|r| self.types[r.value.index()]).collect();
        let mut acc: Vec<Option<Scalar>> = vec![None; list.len()];
        let mut best = vec![0i128; list.len()];
        let mut k = 0i128;
        for_each_point(inner, &mut |at| {
            self.inner = at.to_vec();
            self.now += 1;
            for (i, r) in list.iter().enumerate() {
                let v = self.value(r.value)?;
                let (new, moved) = combine(r.combiner, acc[i], v);
                // Integers wrap as they go; floats are rounded at the end.
                acc[i] = Some(if types[i].is_float() { new } else { fit(new, types[i]) });
                if moved {
                    best[i] = k;
                }
            }
            k += 1;
            Ok(())
        })?;
        self.inner.clear();
        for ((r, d), (a, at)) in list.iter().zip(types).zip(acc.into_iter().zip(best)) {
            self.reduced.push(match r.combiner {
                Combiner::ArgMax | Combiner::ArgMin => Scalar::Int(at),
                c => fit(a.unwrap_or_else(|| neutral(c, d)), d),
            });
        }
        Ok(())
    }

    fn store(&mut self, stores: &[(Access, ExprId)], coords: &[Vec<Linear>]) -> Result<()> {
        for ((a, value), c) in stores.iter().zip(coords) {
            let v = self.value(*value)?;
            let p = self.position(usize::from(a.operand), c)?;
            let d = self.nest.operands[usize::from(a.operand)].dtype;
            match &mut self.operands[usize::from(a.operand)].cells {
                // Rounded at once, so that a later load sees what memory would hold.
                Cells::Floats(x) => x[p] = round(v.float(), d),
                Cells::Ints(x) => x[p] = data::ints(&data::from_ints(d, &[1], &[v.int()]))[0],
            }
        }
        Ok(())
    }

    fn axis(&self, a: Axis) -> Result<i64> {
        let (list, i) = match a {
            Axis::Outer(i) => (&self.outer, i),
            Axis::Inner(i) => (&self.inner, i),
        };
        let v = list.get(usize::from(i)).copied();
        v.ok_or_else(|| broken(format!("iteration variable {a:?} is used where it has no value")))
    }

    fn position(&mut self, operand: usize, coords: &[Linear]) -> Result<usize> {
        let rank = self.operands[operand].shape.len();
        if coords.len() != rank {
            return Err(broken(format!("{} coordinates for an operand of rank {rank}", coords.len())));
        }
        let mut p = 0i64;
        for (axis, (offset, terms)) in coords.iter().enumerate() {
            let mut x = *offset;
            for &(t, k) in terms {
                let v = match t {
                    Term::Axis(a) => self.axis(a)?,
                    Term::Expr(e) => i64::try_from(self.value(e)?.int()).unwrap_or(i64::MAX),
                };
                x = x.saturating_add(k.saturating_mul(v));
            }
            let o = &self.operands[operand];
            if !(0..o.shape[axis]).contains(&x) {
                let text =
                    format!("index {x} is outside of the {} along axis {axis} of operand {operand}", o.shape[axis]);
                return Err(broken(text));
            }
            p = p.saturating_add(x.saturating_mul(o.strides[axis]));
        }
        let n = self.operands[operand].cells.len();
        usize::try_from(p)
            .ok()
            .filter(|&p| p < n)
            .ok_or_else(|| broken(format!("element {p} is outside of the {n} of operand {operand}'s buffer")))
    }

    fn load(&mut self, e: ExprId, operand: u16) -> Result<Scalar> {
        let coords = std::mem::take(&mut self.accesses[e.index()]);
        let p = self.position(usize::from(operand), &coords);
        self.accesses[e.index()] = coords;
        let p = p?;
        Ok(match &self.operands[usize::from(operand)].cells {
            Cells::Floats(v) => Scalar::Float(v[p]),
            Cells::Ints(v) => Scalar::Int(v[p]),
        })
    }

    fn value(&mut self, e: ExprId) -> Result<Scalar> {
        let i = e.index();
        if i >= self.memo.len() {
            return Err(broken(format!("expression {e} does not exist")));
        }
        if self.memo[i].0 == self.now {
            return Ok(self.memo[i].1);
        }
        let d = self.types[i];
        let v = match self.nest.get(e).clone() {
            Expr::Float(bits, _) => Scalar::Float(f64::from_bits(bits)),
            Expr::Int(v, _) => Scalar::Int(v.into()),
            Expr::Index(a) => Scalar::Int(self.axis(a)?.into()),
            Expr::Dim(_) => self.dim_values[i].unwrap_or(Scalar::Int(0)),
            Expr::Load(a) => self.load(e, a.operand)?,
            Expr::LoadIf { cond, access, other } => {
                if self.value(cond)?.truth() {
                    self.load(e, access.operand)?
                } else {
                    self.value(other)?
                }
            }
            Expr::Reduced(k) => *self
                .reduced
                .get(usize::from(k))
                .ok_or_else(|| broken(format!("reduction {k} is used before it is computed")))?,
            Expr::Unary(op, a) => {
                let x = self.value(a)?;
                unary(op, x, self.types[a.index()])
            }
            Expr::Binary(op, a, b) => {
                let (x, y) = (self.value(a)?, self.value(b)?);
                let (da, db) = (self.types[a.index()], self.types[b.index()]);
                if da != db {
                    return Err(broken(format!("{op:?} of {da} and {db} in {e}")));
                }
                binary(op, x, y, da)
            }
            Expr::Select(c, a, b) => {
                let (c, x, y) = (self.value(c)?, self.value(a)?, self.value(b)?);
                if self.types[a.index()] != self.types[b.index()] {
                    return Err(broken(format!("a selection between two types in {e}")));
                }
                if c.truth() { x } else { y }
            }
            Expr::Cast(a, to) => {
                let x = self.value(a)?;
                convert(x, to)
            }
            Expr::Round(a, to) => Scalar::Float(round(self.value(a)?.float(), to)),
        };
        let v = fit(v, d);
        self.memo[i] = (self.now, v);
        Ok(v)
    }
}

/// Float to integer truncates and saturates, NaN gives 0; integers wrap; to bool is `≠ 0`.
fn convert(x: Scalar, to: DType) -> Scalar {
    match (x, to) {
        (x, DType::Bool) => Scalar::bool(x.truth()),
        (Scalar::Float(v), DType::U32) => Scalar::Int((v as u32).into()),
        (Scalar::Float(v), d) if !d.is_float() => Scalar::Int(cast::float_to_int(v, d)),
        (Scalar::Int(v), DType::F32) => Scalar::Float((v as f32).into()),
        (Scalar::Int(v), d) if d.is_float() => Scalar::Float(v as f64),
        (x, _) => x,
    }
}

/// To the precision of a float type.
fn round(x: f64, d: DType) -> f64 {
    match d {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        _ => data::f64s(&data::from_f64s(d, &[1], &[x]))[0],
    }
}

fn neutral(c: Combiner, d: DType) -> Scalar {
    let ends = match d {
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::U64 => (0, u64::MAX.into()),
        DType::Bool => (0, 1),
        _ => (i64::MIN.into(), i64::MAX.into()),
    };
    match (c, d.is_float()) {
        (Combiner::Sum, true) => Scalar::Float(0.0),
        (Combiner::Prod, true) => Scalar::Float(1.0),
        (Combiner::Max, true) => Scalar::Float(f64::NEG_INFINITY),
        (Combiner::Min, true) => Scalar::Float(f64::INFINITY),
        (Combiner::Prod, false) => Scalar::Int(1),
        (Combiner::Max, false) => Scalar::Int(ends.0),
        (Combiner::Min, false) => Scalar::Int(ends.1),
        _ => Scalar::Int(0),
    }
}

/// The new accumulator, and whether it is the new element.
fn combine(c: Combiner, acc: Option<Scalar>, v: Scalar) -> (Scalar, bool) {
    let Some(a) = acc else { return (v, true) };
    let less = |x: Scalar, y: Scalar| match (x, y) {
        (Scalar::Float(x), Scalar::Float(y)) => !y.is_nan() && (x.is_nan() || x < y),
        (x, y) => x.int() < y.int(),
    };
    let greater = |x: Scalar, y: Scalar| match (x, y) {
        (Scalar::Float(x), Scalar::Float(y)) => !y.is_nan() && (x.is_nan() || x > y),
        (x, y) => x.int() > y.int(),
    };
    match (c, a, v) {
        (Combiner::Sum, Scalar::Float(x), Scalar::Float(y)) => (Scalar::Float(x + y), false),
        (Combiner::Prod, Scalar::Float(x), Scalar::Float(y)) => (Scalar::Float(x * y), false),
        (Combiner::Max, Scalar::Float(x), Scalar::Float(y)) => (Scalar::Float(math::max(x, y)), false),
        (Combiner::Min, Scalar::Float(x), Scalar::Float(y)) => (Scalar::Float(math::min(x, y)), false),
        (Combiner::Sum, x, y) => (Scalar::Int(x.int().wrapping_add(y.int())), false),
        (Combiner::Prod, x, y) => (Scalar::Int(x.int().wrapping_mul(y.int())), false),
        (Combiner::Max | Combiner::ArgMax, ..) => {
            if greater(v, a) {
                (v, true)
            } else {
                (a, false)
            }
        }
        (Combiner::Min | Combiner::ArgMin, ..) => {
            if less(v, a) {
                (v, true)
            } else {
                (a, false)
            }
        }
    }
}

fn unary(op: UnOp, x: Scalar, d: DType) -> Scalar {
    if let (UnOp::Not, x) = (op, x) {
        return Scalar::bool(!x.truth());
    }
    let Scalar::Float(v) = x else {
        let v = x.int();
        return Scalar::Int(match op {
            UnOp::Neg => v.wrapping_neg(),
            UnOp::Abs => v.wrapping_abs(),
            UnOp::BitNot => !v,
            UnOp::Sign => v.signum(),
            UnOp::IsNan | UnOp::IsInf => 0,
            UnOp::FromBits if d == DType::U64 => return Scalar::Float(f64::from_bits(v as u64)),
            UnOp::FromBits => return Scalar::Float(f32::from_bits(v as u32).into()),
            // The others leave whole numbers as they are; a smooth function of an integer is a builder's mistake, and shows.
            UnOp::Floor | UnOp::Ceil | UnOp::RoundEven | UnOp::Trunc => v,
            _ => return fit(convert(unary(op, Scalar::Float(v as f64), DType::F64), d), d),
        });
    };
    Scalar::Float(match op {
        UnOp::IsNan => return Scalar::bool(v.is_nan()),
        UnOp::IsInf => return Scalar::bool(v.is_infinite()),
        UnOp::ToBits if d == DType::F64 => return Scalar::Int(v.to_bits().into()),
        UnOp::ToBits => return Scalar::Int((v as f32).to_bits().into()),
        UnOp::Neg => -v,
        UnOp::Abs => v.abs(),
        UnOp::Sqrt => v.sqrt(),
        UnOp::Rsqrt => 1.0 / v.sqrt(),
        UnOp::Recip => 1.0 / v,
        UnOp::Exp => v.exp(),
        UnOp::Log => v.ln(),
        UnOp::Sin => v.sin(),
        UnOp::Cos => v.cos(),
        UnOp::Tan => v.tan(),
        UnOp::Asin => v.asin(),
        UnOp::Acos => v.acos(),
        UnOp::Atan => v.atan(),
        UnOp::Sinh => v.sinh(),
        UnOp::Cosh => v.cosh(),
        UnOp::Tanh => v.tanh(),
        UnOp::Asinh => v.asinh(),
        UnOp::Acosh => v.acosh(),
        UnOp::Atanh => v.atanh(),
        UnOp::Erf => math::erf(v),
        UnOp::Floor => v.floor(),
        UnOp::Ceil => v.ceil(),
        UnOp::RoundEven => v.round_ties_even(),
        UnOp::Trunc => v.trunc(),
        UnOp::Sign => math::sign(v),
        UnOp::Not | UnOp::BitNot | UnOp::FromBits => v,
    })
}

fn binary(op: BinOp, x: Scalar, y: Scalar, d: DType) -> Scalar {
    if let (Scalar::Float(a), Scalar::Float(b)) = (x, y) {
        return Scalar::Float(match op {
            BinOp::Add => a + b,
            BinOp::Sub => a - b,
            BinOp::Mul => a * b,
            BinOp::Div => a / b,
            BinOp::Rem => a % b,
            BinOp::Mod => math::modulo(a, b),
            BinOp::Pow => a.powf(b),
            BinOp::Min => math::min(a, b),
            BinOp::Max => math::max(a, b),
            BinOp::Eq => return Scalar::bool(a == b),
            BinOp::Ne => return Scalar::bool(a != b),
            BinOp::Lt => return Scalar::bool(a < b),
            BinOp::Le => return Scalar::bool(a <= b),
            BinOp::Gt => return Scalar::bool(a > b),
            BinOp::Ge => return Scalar::bool(a >= b),
            BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr => f64::NAN,
        });
    }
    let (a, b) = (x.int(), y.int());
    let bits = d.bits() as i128;
    Scalar::Int(match op {
        BinOp::Add => a.wrapping_add(b),
        BinOp::Sub => a.wrapping_sub(b),
        BinOp::Mul => a.wrapping_mul(b),
        BinOp::Div => a.checked_div(b).unwrap_or(0),
        BinOp::Rem => a.checked_rem(b).unwrap_or(0),
        BinOp::Mod => {
            let r = a.checked_rem(b).unwrap_or(0);
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        }
        BinOp::Pow => math::int_pow(a, b),
        BinOp::Min => a.min(b),
        BinOp::Max => a.max(b),
        BinOp::And => a & b,
        BinOp::Or => a | b,
        BinOp::Xor => a ^ b,
        BinOp::Shl => math::shift_left(a, b, bits),
        BinOp::Shr => math::shift_right(a, b, bits),
        BinOp::Eq => (a == b).into(),
        BinOp::Ne => (a != b).into(),
        BinOp::Lt => (a < b).into(),
        BinOp::Le => (a <= b).into(),
        BinOp::Gt => (a > b).into(),
        BinOp::Ge => (a >= b).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::NestOperand;
    use smallvec::SmallVec;
    use tensor::dims::Origin;

    /// Rows of `x[b, n]`: softmax, as in the documentation of nests, into `y` with row stride `pitch`.
    fn softmax(pitch: i64) -> (Nest, DimPool, [SymId; 2]) {
        let mut p = DimPool::new();
        let (b, n) = (p.symbol("b", Origin::Unknown), p.symbol("n", Origin::Unknown));
        let (zero, one, pitch) = (p.constant(0), p.constant(1), p.constant(pitch));
        let mut nest = Nest { outer: vec![b], inner: vec![n], ..Nest::default() };
        let shape: SmallVec<[DimId; 4]> = SmallVec::from_iter([b, n]);
        let x = nest.operand(NestOperand {
            dtype: DType::F32,
            shape: shape.clone(),
            strides: SmallVec::from_iter([n, one]),
            written: false,
        });
        let y = nest.operand(NestOperand {
            dtype: DType::F32,
            shape,
            strides: SmallVec::from_iter([pitch, one]),
            written: true,
        });
        let along = |a| Coord { offset: zero, terms: SmallVec::from_iter([(Term::Axis(a), one)]) };
        let coords: SmallVec<[Coord; 4]> = SmallVec::from_iter([along(Axis::Outer(0)), along(Axis::Inner(0))]);
        let v = nest.expr(Expr::Load(Access { operand: x, coords: coords.clone() }));
        nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Max, value: v }]));
        let m = nest.expr(Expr::Reduced(0));
        let d = nest.bin(BinOp::Sub, v, m);
        let e = nest.un(UnOp::Exp, d);
        nest.phases.push(Phase::Reduce(vec![Reduction { combiner: Combiner::Sum, value: e }]));
        let s = nest.expr(Expr::Reduced(1));
        let q = nest.bin(BinOp::Div, e, s);
        nest.phases.push(Phase::Store { over_inner: true, stores: vec![(Access { operand: y, coords }, q)] });
        let syms = [p.as_symbol(b).unwrap(), p.as_symbol(n).unwrap()];
        (nest, p, syms)
    }

    #[test]
    fn a_softmax_runs_with_strides() {
        let (nest, p, [b, n]) = softmax(3);
        let env = |s| if s == b { Some(2) } else { (s == n).then_some(2) };
        let x = Tensor::from_f32(&[2, 2], &[1.0, 1.0, f32::NEG_INFINITY, 5.0]);
        let mut buffers = [x, Tensor::from_f32(&[6], &[9.0; 6])];
        eval_buffers(&nest, &p, &env, &mut buffers).unwrap();
        assert_eq!(buffers[1].to_f64_vec(), [0.5, 0.5, 9.0, 0.0, 1.0, 9.0]);
    }

    #[test]
    fn zero_is_above_negative_zero() {
        let signs = |x: f64, y: f64| {
            let (x, y) = (Scalar::Float(x), Scalar::Float(y));
            let all = [
                binary(BinOp::Max, x, y, DType::F32),
                binary(BinOp::Min, x, y, DType::F32),
                combine(Combiner::Max, Some(x), y).0,
                combine(Combiner::Min, Some(x), y).0,
            ];
            all.map(|v| v.float().is_sign_negative())
        };
        assert_eq!(signs(0.0, -0.0), [false, true, false, true]);
        assert_eq!(signs(-0.0, 0.0), [false, true, false, true]);
    }

    #[test]
    fn accesses_outside_are_errors() {
        let (nest, p, [b, n]) = softmax(3);
        let env = |s| if s == b { Some(2) } else { (s == n).then_some(2) };
        let mut buffers = [Tensor::from_f32(&[3], &[0.0; 3]), Tensor::from_f32(&[6], &[9.0; 6])];
        let e = eval_buffers(&nest, &p, &env, &mut buffers).unwrap_err();
        assert!(e.message().contains("element 3 is outside of the 3"), "{e}");
    }
}
