//! Scalars of loop nests: one arithmetic for every compute type.

use super::internal;
use ir::nest::{BinOp, Combiner, UnOp};
use tensor::{DType, Result, Tensor};

/// A value of a compute type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Val {
    F32(f32),
    F64(f64),
    I32(i32),
    I64(i64),
    U32(u32),
    U64(u64),
    Bool(bool),
}

impl Val {
    pub fn dtype(self) -> DType {
        match self {
            Val::F32(_) => DType::F32,
            Val::F64(_) => DType::F64,
            Val::I32(_) => DType::I32,
            Val::I64(_) => DType::I64,
            Val::U32(_) => DType::U32,
            Val::U64(_) => DType::U64,
            Val::Bool(_) => DType::Bool,
        }
    }
    pub fn float(x: f64, d: DType) -> Val {
        if d == DType::F64 { Val::F64(x) } else { Val::F32(x as f32) }
    }
    pub fn int(x: i64, d: DType) -> Val {
        match d {
            DType::I32 => Val::I32(x as i32),
            DType::U32 => Val::U32(x as u32),
            DType::U64 => Val::U64(x as u64),
            DType::Bool => Val::Bool(x != 0),
            DType::F32 => Val::F32(x as f32),
            DType::F64 => Val::F64(x as f64),
            _ => Val::I64(x),
        }
    }
    pub fn as_i64(self) -> i64 {
        match self {
            Val::F32(x) => x as i64,
            Val::F64(x) => x as i64,
            Val::I32(x) => x.into(),
            Val::I64(x) => x,
            Val::U32(x) => x.into(),
            Val::U64(x) => x as i64,
            Val::Bool(x) => x.into(),
        }
    }
    pub fn as_f64(self) -> f64 {
        match self {
            Val::F32(x) => x.into(),
            Val::F64(x) => x,
            Val::U64(x) => x as f64,
            x => x.as_i64() as f64,
        }
    }
    fn is_float(self) -> bool {
        self.dtype().is_float()
    }
    pub fn cast(self, d: DType) -> Result<Val> {
        Ok(match d {
            _ if d == self.dtype() => self,
            DType::F64 => Val::F64(self.as_f64()),
            DType::F32 => match self {
                Val::I64(x) => Val::F32(x as f32),
                Val::U64(x) => Val::F32(x as f32),
                x => Val::F32(x.as_f64() as f32),
            },
            DType::Bool => Val::Bool(if self.is_float() { self.as_f64() != 0.0 } else { self.as_i64() != 0 }),
            DType::I32 if self.is_float() => Val::I32(self.as_f64() as i32),
            DType::U32 if self.is_float() => Val::U32(self.as_f64() as u32),
            DType::I64 if self.is_float() => Val::I64(self.as_f64() as i64),
            DType::U64 if self.is_float() => Val::U64(self.as_f64() as u64),
            DType::I32 | DType::U32 | DType::I64 | DType::U64 => Val::int(self.as_i64(), d),
            _ => return Err(internal(format!("{d} is no compute type"))),
        })
    }
    /// Rounds to a narrower float and back.
    pub fn round(self, d: DType) -> Result<Val> {
        let x = Tensor::from_f64_as(d, &[], &[self.as_f64()]).view().f64_at(0);
        Ok(Val::float(x, self.dtype()))
    }
    pub fn from_bytes(d: DType, b: &[u8]) -> Result<Val> {
        let t = Tensor::new(d, &[], b.to_vec().into())?;
        let v = t.view();
        Ok(match ir::nest::compute_dtype(d) {
            Some(c) if c.is_float() => Val::float(v.f64_at(0), c),
            Some(c) => Val::int(v.i64_at(0), c),
            None => return Err(internal(format!("{d} has no compute type"))),
        })
    }
    pub fn to_bytes(self, d: DType) -> Result<Vec<u8>> {
        let c = ir::nest::compute_dtype(d).ok_or_else(|| internal(format!("{d} has no compute type")))?;
        let x = self.cast(c)?;
        let t = match d {
            d if d.is_float() => Tensor::from_f64_as(d, &[], &[x.as_f64()]),
            _ => Tensor::from_i64_as(d, &[], &[x.as_i64()]),
        };
        Ok(t.bytes().to_vec())
    }
}

fn float(x: Val, f: impl Fn(f64) -> f64) -> Result<Val> {
    match x {
        Val::F32(a) => Ok(Val::F32(f(a.into()) as f32)),
        Val::F64(a) => Ok(Val::F64(f(a))),
        _ => Err(internal(format!("a float function of {}", x.dtype()))),
    }
}

/// The error function, by its series near 0 and a continued fraction beyond.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 3.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-17 * sum.abs() && n < 200.0 {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        return (2.0 / std::f64::consts::PI.sqrt() * sum).copysign(x);
    }
    let mut f = 0.0;
    for k in (1..60).rev() {
        f = f64::from(k) / 2.0 / (a + f);
    }
    (1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + f)).copysign(x)
}

pub(super) fn unary(op: UnOp, x: Val) -> Result<Val> {
    use UnOp::*;
    Ok(match op {
        Neg | Abs | Sign if !x.is_float() => {
            let v = x.as_i64();
            let r = match op {
                Neg => v.wrapping_neg(),
                Abs if matches!(x, Val::U64(_)) => v,
                Abs => v.wrapping_abs(),
                _ => v.signum(),
            };
            Val::int(r, x.dtype())
        }
        Not => Val::Bool(x.as_i64() == 0),
        BitNot => Val::int(!x.as_i64(), x.dtype()),
        IsNan => Val::Bool(x.as_f64().is_nan()),
        IsInf => Val::Bool(x.as_f64().is_infinite()),
        ToBits | FromBits => match x {
            Val::F32(v) => Val::U32(v.to_bits()),
            Val::F64(v) => Val::U64(v.to_bits()),
            Val::U32(v) => Val::F32(f32::from_bits(v)),
            Val::U64(v) => Val::F64(f64::from_bits(v)),
            _ => return Err(internal(format!("{op:?} of {}", x.dtype()))),
        },
        Neg => float(x, |a| -a)?,
        Abs => float(x, f64::abs)?,
        Sqrt => float(x, f64::sqrt)?,
        Rsqrt => float(x, |a| 1.0 / a.sqrt())?,
        Recip => float(x, |a| 1.0 / a)?,
        Exp => float(x, f64::exp)?,
        Log => float(x, f64::ln)?,
        Sin => float(x, f64::sin)?,
        Cos => float(x, f64::cos)?,
        Tan => float(x, f64::tan)?,
        Asin => float(x, f64::asin)?,
        Acos => float(x, f64::acos)?,
        Atan => float(x, f64::atan)?,
        Sinh => float(x, f64::sinh)?,
        Cosh => float(x, f64::cosh)?,
        Tanh => float(x, f64::tanh)?,
        Asinh => float(x, f64::asinh)?,
        Acosh => float(x, f64::acosh)?,
        Atanh => float(x, f64::atanh)?,
        Erf => float(x, erf)?,
        Floor => float(x, f64::floor)?,
        Ceil => float(x, f64::ceil)?,
        RoundEven => float(x, f64::round_ties_even)?,
        Trunc => float(x, f64::trunc)?,
        Sign => float(x, |a| {
            if a > 0.0 {
                1.0
            } else if a < 0.0 {
                -1.0
            } else {
                a
            }
        })?,
        other => return Err(internal(format!("{other:?} is not known here"))),
    })
}

pub(super) fn binary(op: BinOp, a: Val, b: Val) -> Result<Val> {
    use BinOp::*;
    if a.dtype() != b.dtype() {
        return Err(internal(format!("{op:?} of {} and {}", a.dtype(), b.dtype())));
    }
    let d = a.dtype();
    if op.is_compare() {
        let ord = match a {
            Val::F32(_) | Val::F64(_) => a.as_f64().partial_cmp(&b.as_f64()),
            Val::U64(x) => Some(x.cmp(&(b.as_i64() as u64))),
            _ => Some(a.as_i64().cmp(&b.as_i64())),
        };
        use std::cmp::Ordering as O;
        return Ok(Val::Bool(match op {
            Eq => ord == Some(O::Equal),
            Ne => ord != Some(O::Equal),
            Lt => ord == Some(O::Less),
            Le => matches!(ord, Some(O::Less | O::Equal)),
            Gt => ord == Some(O::Greater),
            _ => matches!(ord, Some(O::Greater | O::Equal)),
        }));
    }
    let min_max = |a: f64, b: f64, min: bool| match () {
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        // 0 is above -0.
        _ if a == b && a.is_sign_negative() == min => a,
        _ if a == b => b,
        _ if min => a.min(b),
        _ => a.max(b),
    };
    if let (Val::F32(x), Val::F32(y)) = (a, b) {
        return Ok(Val::F32(match op {
            Add => x + y,
            Sub => x - y,
            Mul => x * y,
            Div => x / y,
            Mod => python_mod(x.into(), y.into()) as f32,
            Rem => x % y,
            Pow => f64::from(x).powf(y.into()) as f32,
            Min | Max => min_max(x.into(), y.into(), op == Min) as f32,
            _ => return Err(internal(format!("{op:?} of floats"))),
        }));
    }
    if let (Val::F64(x), Val::F64(y)) = (a, b) {
        return Ok(Val::F64(match op {
            Add => x + y,
            Sub => x - y,
            Mul => x * y,
            Div => x / y,
            Mod => python_mod(x, y),
            Rem => x % y,
            Pow => x.powf(y),
            Min | Max => min_max(x, y, op == Min),
            _ => return Err(internal(format!("{op:?} of floats"))),
        }));
    }
    let unsigned = matches!(a, Val::U64(_));
    let width = if matches!(d, DType::I32 | DType::U32) { 32 } else { 64 };
    let (x, y) = (a.as_i64(), b.as_i64());
    let (ux, uy) = (x as u64, y as u64);
    let r = match op {
        Add => x.wrapping_add(y),
        Sub => x.wrapping_sub(y),
        Mul => x.wrapping_mul(y),
        Div | Mod | Rem if y == 0 => 0,
        Div if unsigned => (ux / uy) as i64,
        Mod | Rem if unsigned => (ux % uy) as i64,
        Div => x.wrapping_div(y),
        Rem => x.wrapping_rem(y),
        Mod => x.wrapping_rem(y).wrapping_add(y).wrapping_rem(y),
        Pow => (x as f64).powf(y as f64) as i64,
        Min if unsigned => ux.min(uy) as i64,
        Max if unsigned => ux.max(uy) as i64,
        Min => x.min(y),
        Max => x.max(y),
        And => x & y,
        Or => x | y,
        Xor => x ^ y,
        Shl if !(0..width).contains(&y) => 0,
        Shr if !(0..width).contains(&y) => {
            if d.is_signed() && x < 0 {
                -1
            } else {
                0
            }
        }
        Shl => x.wrapping_shl(y as u32),
        Shr if d == DType::I64 || d == DType::I32 => x.wrapping_shr(y as u32),
        Shr => (ux >> y) as i64,
        _ => return Err(internal(format!("{op:?} of {d}"))),
    };
    Ok(Val::int(r, d))
}

/// The remainder with the divisor's sign, that of a zero too.
fn python_mod(x: f64, y: f64) -> f64 {
    let r = x % y;
    if r == 0.0 {
        0f64.copysign(y)
    } else if r.is_sign_negative() == y.is_sign_negative() {
        r
    } else {
        r + y
    }
}

/// One step of a reduction; positions go along for the arg combiners.
pub(super) fn combine(c: Combiner, old: (Val, i64), new: (Val, i64)) -> Result<(Val, i64)> {
    let nan = |v: Val| v.as_f64().is_nan();
    let wins =
        |by: BinOp| -> Result<bool> { Ok(!nan(old.0) && (nan(new.0) || binary(by, new.0, old.0)? == Val::Bool(true))) };
    Ok(match c {
        Combiner::Sum => (binary(BinOp::Add, old.0, new.0)?, 0),
        Combiner::Prod => (binary(BinOp::Mul, old.0, new.0)?, 0),
        Combiner::Max => (binary(BinOp::Max, old.0, new.0)?, 0),
        Combiner::Min => (binary(BinOp::Min, old.0, new.0)?, 0),
        Combiner::ArgMax => {
            if wins(BinOp::Gt)? {
                new
            } else {
                old
            }
        }
        Combiner::ArgMin => {
            if wins(BinOp::Lt)? {
                new
            } else {
                old
            }
        }
        other => return Err(internal(format!("{other:?} is not known here"))),
    })
}

/// The value of a reduction over nothing.
pub(super) fn identity(c: Combiner, d: DType) -> Result<Val> {
    let ends = |d: DType, least: bool| match d {
        DType::F32 | DType::F64 => Val::float(if least { f64::NEG_INFINITY } else { f64::INFINITY }, d),
        DType::I32 => Val::I32(if least { i32::MIN } else { i32::MAX }),
        DType::I64 => Val::I64(if least { i64::MIN } else { i64::MAX }),
        DType::U32 => Val::U32(if least { 0 } else { u32::MAX }),
        DType::U64 => Val::U64(if least { 0 } else { u64::MAX }),
        _ => Val::Bool(!least),
    };
    Ok(match c {
        Combiner::Sum => Val::int(0, d),
        Combiner::Prod => Val::int(1, d),
        Combiner::Max => ends(d, true),
        Combiner::Min => ends(d, false),
        _ => Val::I64(0),
    })
}
