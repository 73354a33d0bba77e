//! The verifier of loop nests.

use super::broken;
use crate::nest::{Access, Axis, BinOp, Combiner, Expr, ExprId, Nest, Phase, Term, UnOp, compute_dtype};
use tensor::{DType, DimId, DimPool, Entity, Result};

/// What is known about an expression.
#[derive(Clone, Copy)]
struct Fact {
    dtype: DType,
    /// Depends on the inner iteration variables.
    inner: bool,
    /// How many reductions must be complete before it can be evaluated.
    after: usize,
}

/// Checks a loop nest: ranks, types, order of reductions and their uses.
///
/// # Errors
/// The first rule that does not hold.
pub fn verify_nest(n: &Nest, dims: &DimPool) -> Result<()> {
    let known = |ds: &[DimId]| match ds.iter().find(|&&d| !dims.contains(d)) {
        Some(d) => Err(broken(format!("{d} is not an extent of the module"))),
        None => Ok(()),
    };
    known(&n.outer)?;
    known(&n.inner)?;
    let mut written = false;
    for (i, p) in n.operands.iter().enumerate() {
        known(&p.shape)?;
        known(&p.strides)?;
        if p.shape.len() != p.strides.len() {
            return Err(broken(format!("p{i} has {} extents and {} strides", p.shape.len(), p.strides.len())));
        }
        if compute_dtype(p.dtype).is_none() {
            return Err(broken(format!("p{i} is {}, which has no arithmetic", p.dtype)));
        }
        if written && !p.written {
            return Err(broken(format!("p{i} is read but comes after an operand that is written")));
        }
        written |= p.written;
    }
    let reductions: Vec<(Combiner, ExprId)> = n
        .phases
        .iter()
        .flat_map(|p| match p {
            Phase::Reduce(rs) => rs.iter().map(|r| (r.combiner, r.value)).collect(),
            Phase::Store { .. } => Vec::new(),
        })
        .collect();
    let mut facts: Vec<Fact> = Vec::with_capacity(n.exprs.len());
    for (i, e) in n.exprs.iter().enumerate() {
        let f = fact(n, e, &facts, &reductions, dims).map_err(|err| err.note("expression", format!("e{i} = {e:?}")))?;
        facts.push(f);
    }
    let get = |e: ExprId| facts.get(e.index()).copied().ok_or_else(|| broken(format!("{e} does not exist")));
    let (mut done, mut stored) = (0, vec![false; n.operands.len()]);
    for (k, phase) in n.phases.iter().enumerate() {
        let ready = |f: Fact| match f.after <= done {
            true => Ok(()),
            false => Err(broken(format!("phase {k} uses reduction {} before it is complete", f.after - 1))),
        };
        match phase {
            Phase::Reduce(rs) => {
                for r in rs {
                    ready(get(r.value)?)?;
                }
                done += rs.len();
            }
            Phase::Store { over_inner, stores } => {
                for (a, e) in stores {
                    let (value, place) = (get(*e)?, access(n, a, &facts, dims)?);
                    ready(value)?;
                    ready(place)?;
                    if !over_inner && (value.inner || place.inner) {
                        return Err(broken(format!("phase {k} stores once but depends on an inner axis")));
                    }
                    let p = usize::from(a.operand);
                    if !n.operands[p].written {
                        return Err(broken(format!("phase {k} stores to p{p}, which is only read")));
                    }
                    stored[p] = true;
                }
            }
        }
    }
    match n.operands.iter().zip(&stored).position(|(p, s)| p.written && !s) {
        Some(i) => Err(broken(format!("p{i} is written by no store"))),
        None => Ok(()),
    }
}

fn axis(n: &Nest, a: Axis) -> Result<bool> {
    let (i, len, inner) = match a {
        Axis::Outer(i) => (i, n.outer.len(), false),
        Axis::Inner(i) => (i, n.inner.len(), true),
    };
    if usize::from(i) < len { Ok(inner) } else { Err(broken(format!("{a:?} is beyond the {len} axes there are"))) }
}

fn access(n: &Nest, a: &Access, facts: &[Fact], dims: &DimPool) -> Result<Fact> {
    let p = n.operands.get(usize::from(a.operand)).ok_or_else(|| broken(format!("there is no p{}", a.operand)))?;
    if p.shape.len() != a.coords.len() {
        return Err(broken(format!("p{} has {} axes but {} coordinates", a.operand, p.shape.len(), a.coords.len())));
    }
    let mut f = Fact { dtype: compute_dtype(p.dtype).unwrap_or(DType::F32), inner: false, after: 0 };
    for c in &a.coords {
        if !dims.contains(c.offset) || c.terms.iter().any(|(_, k)| !dims.contains(*k)) {
            return Err(broken("a coordinate has extents of another module"));
        }
        for (t, _) in &c.terms {
            match t {
                Term::Axis(a) => f.inner |= axis(n, *a)?,
                Term::Expr(e) => {
                    let x = facts.get(e.index()).ok_or_else(|| broken(format!("{e} is used before it is defined")))?;
                    if x.dtype != DType::I64 {
                        return Err(broken(format!("{e} is a coordinate but is {}, not i64", x.dtype)));
                    }
                    f.inner |= x.inner;
                    f.after = f.after.max(x.after);
                }
            }
        }
    }
    Ok(f)
}

fn fact(n: &Nest, e: &Expr, facts: &[Fact], reductions: &[(Combiner, ExprId)], dims: &DimPool) -> Result<Fact> {
    let get =
        |e: ExprId| facts.get(e.index()).copied().ok_or_else(|| broken(format!("{e} is used before it is defined")));
    let plain = |dtype| Fact { dtype, inner: false, after: 0 };
    let need = |ok: bool, what: &str| if ok { Ok(()) } else { Err(broken(what)) };
    let both = |a: Fact, b: Fact| Fact { dtype: a.dtype, inner: a.inner || b.inner, after: a.after.max(b.after) };
    Ok(match e {
        Expr::Float(_, d) => {
            need(matches!(d, DType::F32 | DType::F64), "a float constant is f32 or f64")?;
            plain(*d)
        }
        Expr::Int(_, d) => {
            need(
                compute_dtype(*d) == Some(*d) && !d.is_float(),
                "an integer constant has an integer compute type or bool",
            )?;
            plain(*d)
        }
        Expr::Index(a) => Fact { inner: axis(n, *a)?, ..plain(DType::I64) },
        Expr::Dim(d) => {
            need(dims.contains(*d), "an extent of another module")?;
            plain(DType::I64)
        }
        Expr::Load(a) => access(n, a, facts, dims)?,
        Expr::LoadIf { cond, access: a, other } => {
            let (c, a, o) = (get(*cond)?, access(n, a, facts, dims)?, get(*other)?);
            need(c.dtype == DType::Bool, "the condition of load_if is a bool")?;
            need(a.dtype == o.dtype, "both values of load_if have one type")?;
            both(both(a, o), c)
        }
        Expr::Reduced(i) => {
            let i = usize::from(*i);
            let (combiner, value) = reductions.get(i).ok_or_else(|| broken(format!("there is no reduction {i}")))?;
            let dtype = match combiner {
                Combiner::ArgMax | Combiner::ArgMin => DType::I64,
                _ => get(*value)?.dtype,
            };
            Fact { dtype, inner: false, after: i + 1 }
        }
        Expr::Unary(op, a) => {
            let a = get(*a)?;
            let (float, bool) = (a.dtype.is_float(), a.dtype == DType::Bool);
            match op {
                UnOp::Not => need(bool, "Not takes a bool")?,
                UnOp::BitNot => need(a.dtype.is_int(), "BitNot takes an integer")?,
                UnOp::FromBits => {
                    need(matches!(a.dtype, DType::U32 | DType::U64), "FromBits takes an unsigned integer")?
                }
                UnOp::Neg | UnOp::Abs | UnOp::Sign => need(!bool, "arithmetic on a bool")?,
                _ => need(float, &format!("{op:?} takes a float"))?,
            }
            let dtype = match op {
                UnOp::IsNan | UnOp::IsInf => DType::Bool,
                UnOp::ToBits | UnOp::FromBits => op.reinterpreted(a.dtype),
                _ => a.dtype,
            };
            Fact { dtype, ..a }
        }
        Expr::Binary(op, a, b) => {
            let (a, b) = (get(*a)?, get(*b)?);
            need(
                a.dtype == b.dtype,
                &format!("{op:?} takes two operands of one type, not {} and {}", a.dtype, b.dtype),
            )?;
            let (float, bool) = (a.dtype.is_float(), a.dtype == DType::Bool);
            match op {
                BinOp::And | BinOp::Or | BinOp::Xor => need(!float, &format!("{op:?} takes integers or bools"))?,
                BinOp::Shl | BinOp::Shr => need(a.dtype.is_int(), &format!("{op:?} takes integers"))?,
                BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div | BinOp::Mod | BinOp::Rem | BinOp::Pow => {
                    need(!bool, "arithmetic on bools")?
                }
                _ => {}
            }
            let f = both(a, b);
            Fact { dtype: if op.is_compare() { DType::Bool } else { a.dtype }, ..f }
        }
        Expr::Select(c, a, b) => {
            let (c, a, b) = (get(*c)?, get(*a)?, get(*b)?);
            need(c.dtype == DType::Bool, "the condition of select is a bool")?;
            need(a.dtype == b.dtype, "both values of select have one type")?;
            both(both(a, b), c)
        }
        Expr::Cast(a, d) => {
            need(compute_dtype(*d) == Some(*d), &format!("{d} is not a type to compute in"))?;
            Fact { dtype: *d, ..get(*a)? }
        }
        Expr::Round(a, d) => {
            let a = get(*a)?;
            need(a.dtype.is_float() && d.is_float(), "round takes a float to a float's precision")?;
            a
        }
    })
}
