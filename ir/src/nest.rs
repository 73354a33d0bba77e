//! Loop nests: what we generate kernels from, for CPU and GPU alike.
//!
//! A nest runs its phases once for every point of `outer` (parallel, no order). A phase either reduces over all of `inner`
//! or stores; a store may run once per point or once per inner point. Softmax over rows of `x[b, n]`:
//!
//! ```text
//! nest outer[b] inner[n]
//!   reduce r0 = max  x[o0, i0]
//!   reduce r1 = sum  exp(x[o0, i0] - r0)
//!   store  y[o0, i0] = exp(x[o0, i0] - r0) / r1
//! ```
//!
//! Extents, strides and coefficients are dims of the module, so one nest serves every shape. Indices are 64-bit. Loads of
//! f16, bf16 and 8-bit floats widen to f32 and stores round to nearest even: arithmetic is never done in a narrow float. A
//! reduction takes its elements in row-major order of `inner` up to reassociation that depends on the extents only.

use crate::ty::Shape;
use smallvec::SmallVec;
use tensor::{DType, DimId};

tensor::entity! {
    /// A scalar expression of a [`Nest`].
    pub struct ExprId, "e"
}

/// A loop nest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Nest {
    /// Extents of the parallel iteration space, outermost first. Empty means one point.
    pub outer: Vec<DimId>,
    /// Extents of the sequential space that reductions run over. Empty means one point.
    pub inner: Vec<DimId>,
    /// Buffers: those read first, those written last.
    pub operands: Vec<NestOperand>,
    /// Scalar expressions; operands come before users.
    pub exprs: Vec<Expr>,
    /// What happens at each outer point, in order.
    pub phases: Vec<Phase>,
}

/// A buffer of a nest. Two operands never overlap, unless they are the same buffer and every point reads only what the same
/// point then writes (in place).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NestOperand {
    /// Element type in memory.
    pub dtype: DType,
    /// Extents; coordinates are within them.
    pub shape: Shape,
    /// Strides in elements, one per axis; 0 repeats.
    pub strides: Shape,
    /// Whether the nest stores to it (else it only loads).
    pub written: bool,
}

/// An iteration variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Axis of `outer`.
    Outer(u16),
    /// Axis of `inner`.
    Inner(u16),
}

/// A term of a coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// An iteration variable.
    Axis(Axis),
    /// A computed i64 (a gathered index); the builder guarantees that it is in range or guarded.
    Expr(ExprId),
}

/// A coordinate along one axis of an operand: `offset + Σ coefficient · term`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coord {
    /// Constant part.
    pub offset: DimId,
    /// Terms with their coefficients.
    pub terms: SmallVec<[(Term, DimId); 1]>,
}

/// An element of an operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Position in [`Nest::operands`].
    pub operand: u16,
    /// One coordinate per axis of the operand.
    pub coords: SmallVec<[Coord; 4]>,
}

/// A scalar expression. Each has one compute type: f32, f64, i32, i64, u32, u64 or bool ([`Nest::expr_dtype`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expr {
    /// A float constant (bits of an f64) of compute type f32 or f64.
    Float(u64, DType),
    /// An integer or bool constant.
    Int(i64, DType),
    /// An iteration variable, i64.
    Index(Axis),
    /// A dim of the module, i64.
    Dim(DimId),
    /// An element, widened to its compute type.
    Load(Access),
    /// An element where the bool `cond` holds, else `other`; nothing is read where it does not hold.
    LoadIf {
        /// Whether to read.
        cond: ExprId,
        /// What.
        access: Access,
        /// The value otherwise; of the load's compute type.
        other: ExprId,
    },
    /// The result of reduction `i`, counted over all phases before this use.
    Reduced(u16),
    /// One operand.
    Unary(UnOp, ExprId),
    /// Two operands of the same compute type.
    Binary(BinOp, ExprId, ExprId),
    /// `cond ? a : b`; both are evaluated.
    Select(ExprId, ExprId, ExprId),
    /// Conversion to a compute type. Float to int truncates toward zero and saturates, NaN gives 0; to bool is `!= 0`.
    Cast(ExprId, DType),
    /// Rounds a float to the precision of a narrower dtype (f16, bf16, …) and back.
    Round(ExprId, DType),
}

/// Unary operations. Transcendentals are our own polynomials, the same on every target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum UnOp {
    Neg,
    Abs,
    Not,
    BitNot,
    Sqrt,
    Rsqrt,
    Recip,
    Exp,
    Log,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Floor,
    Ceil,
    RoundEven,
    Trunc,
    Sign,
    IsNan,
    IsInf,
    /// The bits of an f32 as u32, of an f64 as u64.
    ToBits,
    /// The f32 of the bits in a u32, the f64 of those in a u64.
    FromBits,
}

/// Binary operations. Integers wrap. `Div` of integers truncates, `Mod` has the divisor's sign, `Rem` the dividend's; division by
/// an integer zero gives 0. `Pow` of integers wraps; with a negative exponent it truncates `1 / aⁿ` (0 unless the base is 1 or -1). `Min` and `Max` of floats give NaN when either is NaN. Comparisons and `And`/`Or`/`Xor` of bools give bool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum BinOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Rem,
    Pow,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl UnOp {
    /// The type of `ToBits` and `FromBits` of a value of type `d`.
    pub fn reinterpreted(self, d: DType) -> DType {
        match (self, d.bits()) {
            (UnOp::ToBits, 64) => DType::U64,
            (UnOp::ToBits, _) => DType::U32,
            (_, 64) => DType::F64,
            _ => DType::F32,
        }
    }
}

impl BinOp {
    /// Whether the result is a bool whatever the operands are.
    pub fn is_compare(self) -> bool {
        matches!(self, BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge)
    }
}

/// How a reduction combines. Over nothing, sums are 0, products 1, `Max` is -∞ or the least value of the compute type, `Min` +∞ or
/// the greatest, positions are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Combiner {
    /// Sum; f32 values accumulate in f32 lanes that are added at the end.
    Sum,
    /// Product.
    Prod,
    /// Greatest; NaN wins.
    Max,
    /// Least; NaN wins.
    Min,
    /// Position (i64, row-major over `inner`) of the greatest; the first of equals; the first NaN wins.
    ArgMax,
    /// Position of the least; the first of equals; the first NaN wins.
    ArgMin,
}

/// One reduction over `inner`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    /// How.
    pub combiner: Combiner,
    /// What, evaluated at every inner point.
    pub value: ExprId,
}

/// A step at each outer point.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Reductions in one pass over `inner`.
    Reduce(Vec<Reduction>),
    /// Stores in one pass: over `inner` when `over_inner`, else once.
    Store {
        /// Whether the pass runs over `inner`.
        over_inner: bool,
        /// Destination and value; converted to the operand's dtype.
        stores: Vec<(Access, ExprId)>,
    },
}

/// The type in which elements of `d` are computed with; `None` for types that have none (strings, complex).
pub fn compute_dtype(d: DType) -> Option<DType> {
    use DType::*;
    Some(match d {
        F64 | I64 | U64 | I32 | U32 | Bool | F32 => d,
        I8 | I16 | I4 | I2 => I32,
        U8 | U16 | U4 | U2 => U32,
        _ if d.is_float() => F32,
        _ => return None,
    })
}

/// Whether generated kernels load and store elements of a type. Others are moved by views and copies of whole buffers alone.
pub fn is_storable(d: DType) -> bool {
    use DType::*;
    matches!(d, F32 | F64 | F16 | BF16 | Bool | I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64)
        || matches!(d, F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0)
}

impl Nest {
    /// Adds an operand.
    pub fn operand(&mut self, op: NestOperand) -> u16 {
        self.operands.push(op);
        u16::try_from(self.operands.len() - 1).unwrap_or(u16::MAX)
    }
    /// Adds an expression, or finds the equal one.
    pub fn expr(&mut self, e: Expr) -> ExprId {
        use tensor::Entity;
        // Nests are small; a linear search over the last expressions finds nearly every repeat.
        match self.exprs.iter().rposition(|x| *x == e) {
            Some(i) => ExprId::new(i),
            None => {
                self.exprs.push(e);
                ExprId::new(self.exprs.len() - 1)
            }
        }
    }
    /// The expression.
    pub fn get(&self, e: ExprId) -> &Expr {
        &self.exprs[tensor::Entity::index(e)]
    }
    /// A unary operation.
    pub fn un(&mut self, op: UnOp, a: ExprId) -> ExprId {
        self.expr(Expr::Unary(op, a))
    }
    /// A binary operation.
    pub fn bin(&mut self, op: BinOp, a: ExprId, b: ExprId) -> ExprId {
        self.expr(Expr::Binary(op, a, b))
    }
    /// A constant of the given compute type.
    pub fn num(&mut self, v: f64, dtype: DType) -> ExprId {
        self.expr(if dtype.is_float() { Expr::Float(v.to_bits(), dtype) } else { Expr::Int(v as i64, dtype) })
    }
    /// The compute type of an expression.
    pub fn expr_dtype(&self, e: ExprId) -> DType {
        match self.get(e) {
            Expr::Float(_, d) | Expr::Int(_, d) | Expr::Cast(_, d) => *d,
            Expr::Index(_) | Expr::Dim(_) => DType::I64,
            Expr::Load(a) | Expr::LoadIf { access: a, .. } => {
                compute_dtype(self.operands[usize::from(a.operand)].dtype).unwrap_or(DType::F32)
            }
            Expr::Reduced(i) => {
                let all = self.phases.iter().filter_map(|p| match p {
                    Phase::Reduce(r) => Some(r),
                    Phase::Store { .. } => None,
                });
                match all.flatten().nth(usize::from(*i)) {
                    Some(r) if matches!(r.combiner, Combiner::ArgMax | Combiner::ArgMin) => DType::I64,
                    Some(r) => self.expr_dtype(r.value),
                    None => DType::F32,
                }
            }
            Expr::Unary(UnOp::Not | UnOp::IsNan | UnOp::IsInf, _) => DType::Bool,
            Expr::Unary(op @ (UnOp::ToBits | UnOp::FromBits), a) => op.reinterpreted(self.expr_dtype(*a)),
            Expr::Binary(op, ..) if op.is_compare() => DType::Bool,
            Expr::Unary(_, a) | Expr::Binary(_, a, _) | Expr::Select(_, a, _) | Expr::Round(a, _) => {
                self.expr_dtype(*a)
            }
        }
    }
}
