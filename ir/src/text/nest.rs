//! Loop nests as text.

use super::cursor::Cursor;
use crate::lowering::contiguous;
use crate::nest::{
    Access, Axis, BinOp, Combiner, Coord, Expr, ExprId, Nest, NestOperand, Phase, Reduction, Term, UnOp,
};
use crate::ty::Shape;
use std::fmt::Write;
use tensor::{DType, DimId, DimPool, Entity, Result};

const UNARY: &[UnOp] = &[
    UnOp::Neg,
    UnOp::Abs,
    UnOp::Not,
    UnOp::BitNot,
    UnOp::Sqrt,
    UnOp::Rsqrt,
    UnOp::Recip,
    UnOp::Exp,
    UnOp::Log,
    UnOp::Sin,
    UnOp::Cos,
    UnOp::Tan,
    UnOp::Asin,
    UnOp::Acos,
    UnOp::Atan,
    UnOp::Sinh,
    UnOp::Cosh,
    UnOp::Tanh,
    UnOp::Asinh,
    UnOp::Acosh,
    UnOp::Atanh,
    UnOp::Erf,
    UnOp::Floor,
    UnOp::Ceil,
    UnOp::RoundEven,
    UnOp::Trunc,
    UnOp::Sign,
    UnOp::IsNan,
    UnOp::IsInf,
    UnOp::ToBits,
    UnOp::FromBits,
];
const BINARY: &[BinOp] = &[
    BinOp::Add,
    BinOp::Sub,
    BinOp::Mul,
    BinOp::Div,
    BinOp::Mod,
    BinOp::Rem,
    BinOp::Pow,
    BinOp::Min,
    BinOp::Max,
    BinOp::And,
    BinOp::Or,
    BinOp::Xor,
    BinOp::Shl,
    BinOp::Shr,
    BinOp::Eq,
    BinOp::Ne,
    BinOp::Lt,
    BinOp::Le,
    BinOp::Gt,
    BinOp::Ge,
];
const COMBINERS: &[Combiner] =
    &[Combiner::Sum, Combiner::Prod, Combiner::Max, Combiner::Min, Combiner::ArgMax, Combiner::ArgMin];

fn axis(a: Axis) -> String {
    match a {
        Axis::Outer(i) => format!("o{i}"),
        Axis::Inner(i) => format!("i{i}"),
    }
}

fn factor(d: DimId, dims: &DimPool) -> String {
    match dims.as_const(d) {
        Some(c) if c >= 0 => c.to_string(),
        _ => format!("({})", dims.display(d)),
    }
}

fn coord(c: &Coord, dims: &DimPool) -> String {
    let mut parts: Vec<String> = c
        .terms
        .iter()
        .map(|(t, k)| {
            let t = match t {
                Term::Axis(a) => axis(*a),
                Term::Expr(e) => e.to_string(),
            };
            if dims.as_const(*k) == Some(1) { t } else { format!("{}*{t}", factor(*k, dims)) }
        })
        .collect();
    if dims.as_const(c.offset) != Some(0) || parts.is_empty() {
        parts.push(factor(c.offset, dims));
    }
    parts.join(" + ")
}

fn access(a: &Access, dims: &DimPool) -> String {
    let coords: Vec<String> = a.coords.iter().map(|c| coord(c, dims)).collect();
    format!("p{}[{}]", a.operand, coords.join(", "))
}

pub(super) fn dims_list(ds: &[DimId], dims: &DimPool) -> String {
    ds.iter().map(|&d| dims.display(d).to_string()).collect::<Vec<_>>().join(", ")
}

/// A float by its bits where its digits would not bring them back.
pub(super) fn float(bits: u64) -> String {
    let x = f64::from_bits(bits);
    if x.is_nan() && bits != f64::NAN.to_bits() { format!("bits({bits})") } else { format!("{x:?}") }
}

pub(super) fn parse_float(c: &mut Cursor) -> Result<u64> {
    if c.eat("bits") {
        c.expect("(")?;
        let bits = c.number("a 64-bit pattern")?;
        c.expect(")")?;
        return Ok(bits);
    }
    Ok(c.number::<f64>("a float")?.to_bits())
}

pub(super) fn print(n: &Nest, dims: &mut DimPool, indent: &str) -> String {
    let mut o = String::from("{\n");
    let line = |o: &mut String, text: String| {
        let _ = writeln!(o, "{indent}  {text}");
    };
    line(&mut o, format!("outer [{}] inner [{}]", dims_list(&n.outer, dims), dims_list(&n.inner, dims)));
    for (i, p) in n.operands.iter().enumerate() {
        let mut text = format!("p{i} : {}[{}]", p.dtype, dims_list(&p.shape, dims));
        if p.strides != contiguous(dims, &p.shape) {
            let _ = write!(text, " strides({})", dims_list(&p.strides, dims));
        }
        line(&mut o, text + if p.written { " written" } else { "" });
    }
    for (i, e) in n.exprs.iter().enumerate() {
        let text = match e {
            Expr::Float(bits, d) => format!("float {} : {d}", float(*bits)),
            Expr::Int(v, d) => format!("int {v} : {d}"),
            Expr::Index(a) => format!("index {}", axis(*a)),
            Expr::Dim(d) => format!("dim ({})", dims.display(*d)),
            Expr::Load(a) => format!("load {}", access(a, dims)),
            Expr::LoadIf { cond, access: a, other } => format!("load_if {cond} {} else {other}", access(a, dims)),
            Expr::Reduced(i) => format!("reduced {i}"),
            Expr::Unary(op, a) => format!("{op:?} {a}"),
            Expr::Binary(op, a, b) => format!("{op:?} {a}, {b}"),
            Expr::Select(c, a, b) => format!("select {c}, {a}, {b}"),
            Expr::Cast(a, d) => format!("cast {a} : {d}"),
            Expr::Round(a, d) => format!("round {a} : {d}"),
        };
        line(&mut o, format!("e{i} = {text}"));
    }
    for p in &n.phases {
        let text = match p {
            Phase::Reduce(rs) => {
                let all: Vec<String> = rs.iter().map(|r| format!("{:?} {}", r.combiner, r.value)).collect();
                format!("reduce {}", all.join(", "))
            }
            Phase::Store { over_inner, stores } => {
                let all: Vec<String> = stores.iter().map(|(a, e)| format!("{} = {e}", access(a, dims))).collect();
                format!("store {}{}", if *over_inner { "inner " } else { "" }, all.join(", "))
            }
        };
        line(&mut o, text);
    }
    let _ = write!(o, "{indent}}}");
    o
}

fn expr_id(c: &mut Cursor) -> Result<ExprId> {
    let n = c.prefixed("e")?.ok_or_else(|| c.expected("an expression like e0"))?;
    Ok(ExprId::new(usize::try_from(n).unwrap_or(0)))
}

fn parse_axis(c: &mut Cursor) -> Result<Option<Axis>> {
    for (prefix, make) in [("o", Axis::Outer as fn(u16) -> Axis), ("i", Axis::Inner)] {
        if let Some(n) = c.prefixed(prefix)? {
            let n = u16::try_from(n).map_err(|_| c.error(c.at, "an axis number that is too large"))?;
            return Ok(Some(make(n)));
        }
    }
    Ok(None)
}

fn parse_factor(c: &mut Cursor, dims: &mut DimPool) -> Result<DimId> {
    if c.eat("(") {
        let d = c.dim(dims)?;
        c.expect(")")?;
        return Ok(d);
    }
    let n = c.int()?;
    Ok(dims.constant(n))
}

fn parse_coord(c: &mut Cursor, dims: &mut DimPool) -> Result<Coord> {
    let mut out = Coord { offset: dims.constant(0), terms: Default::default() };
    loop {
        let mut k = dims.constant(1);
        let mut term = parse_term(c)?;
        if term.is_none() {
            k = parse_factor(c, dims)?;
            if c.eat("*") {
                term = parse_term(c)?;
                if term.is_none() {
                    return Err(c.expected("an axis or an expression"));
                }
            }
        }
        match term {
            Some(t) => out.terms.push((t, k)),
            None => out.offset = dims.add(out.offset, k),
        }
        if !c.eat("+") {
            return Ok(out);
        }
    }
}

fn parse_term(c: &mut Cursor) -> Result<Option<Term>> {
    if let Some(a) = parse_axis(c)? {
        return Ok(Some(Term::Axis(a)));
    }
    Ok(c.prefixed("e")?.map(|n| Term::Expr(ExprId::new(usize::try_from(n).unwrap_or(0)))))
}

fn parse_access(c: &mut Cursor, dims: &mut DimPool) -> Result<Access> {
    let operand = c.prefixed("p")?.ok_or_else(|| c.expected("an operand like p0"))?;
    let operand = u16::try_from(operand).map_err(|_| c.error(c.at, "an operand number that is too large"))?;
    Ok(Access { operand, coords: c.list("[", "]", |c| parse_coord(c, dims))?.into() })
}

fn typed<T>(c: &mut Cursor, value: T) -> Result<(T, DType)> {
    c.expect(":")?;
    Ok((value, c.dtype()?))
}

pub(super) fn parse(c: &mut Cursor, dims: &mut DimPool) -> Result<Nest> {
    let mut n = Nest::default();
    c.expect("{")?;
    c.expect("outer")?;
    n.outer = c.dims("[", "]", dims)?;
    c.expect("inner")?;
    n.inner = c.dims("[", "]", dims)?;
    loop {
        c.space();
        let at = c.at;
        let Some(i) = c.prefixed("p")? else { break };
        if usize::try_from(i).ok() != Some(n.operands.len()) {
            return Err(c.error(at, format!("operands are numbered in order: p{} is next", n.operands.len())));
        }
        c.expect(":")?;
        let dtype = c.dtype()?;
        let shape: Shape = c.dims("[", "]", dims)?.into();
        let strides = if c.eat("strides") { c.dims("(", ")", dims)?.into() } else { contiguous(dims, &shape) };
        n.operands.push(NestOperand { dtype, shape, strides, written: c.eat("written") });
    }
    loop {
        c.space();
        let at = c.at;
        let Some(i) = c.prefixed("e")? else { break };
        if usize::try_from(i).ok() != Some(n.exprs.len()) {
            return Err(c.error(at, format!("expressions are numbered in order: e{} is next", n.exprs.len())));
        }
        c.expect("=")?;
        let e = parse_expr(c, dims)?;
        n.exprs.push(e);
    }
    loop {
        if c.eat("reduce") {
            let mut rs = Vec::new();
            loop {
                c.space();
                let at = c.at;
                let w = c.word("a combiner")?;
                let combiner = COMBINERS.iter().copied().find(|k| format!("{k:?}") == w);
                let combiner = combiner.ok_or_else(|| c.error(at, format!("{w:?} is not a combiner")))?;
                rs.push(Reduction { combiner, value: expr_id(c)? });
                if !c.eat(",") {
                    break;
                }
            }
            n.phases.push(Phase::Reduce(rs));
        } else if c.eat("store") {
            let over_inner = c.eat("inner");
            let mut stores = Vec::new();
            loop {
                let a = parse_access(c, dims)?;
                c.expect("=")?;
                stores.push((a, expr_id(c)?));
                if !c.eat(",") {
                    break;
                }
            }
            n.phases.push(Phase::Store { over_inner, stores });
        } else {
            break;
        }
    }
    if !c.eat("}") {
        return Err(c.expected("an operand, an expression, \"reduce\", \"store\" or \"}\""));
    }
    Ok(n)
}

fn parse_expr(c: &mut Cursor, dims: &mut DimPool) -> Result<Expr> {
    c.space();
    let at = c.at;
    Ok(match c.word("an operation")? {
        "float" => {
            let bits = parse_float(c)?;
            let (bits, d) = typed(c, bits)?;
            Expr::Float(bits, d)
        }
        "int" => {
            let v = c.int()?;
            let (v, d) = typed(c, v)?;
            Expr::Int(v, d)
        }
        "index" => Expr::Index(parse_axis(c)?.ok_or_else(|| c.expected("an axis like o0 or i0"))?),
        "dim" => {
            c.expect("(")?;
            let d = c.dim(dims)?;
            c.expect(")")?;
            Expr::Dim(d)
        }
        "load" => Expr::Load(parse_access(c, dims)?),
        "load_if" => {
            let cond = expr_id(c)?;
            let access = parse_access(c, dims)?;
            c.expect("else")?;
            Expr::LoadIf { cond, access, other: expr_id(c)? }
        }
        "reduced" => Expr::Reduced(c.number("a reduction")?),
        "select" => {
            let cond = expr_id(c)?;
            c.expect(",")?;
            let a = expr_id(c)?;
            c.expect(",")?;
            Expr::Select(cond, a, expr_id(c)?)
        }
        "cast" => {
            let e = expr_id(c)?;
            let (e, d) = typed(c, e)?;
            Expr::Cast(e, d)
        }
        "round" => {
            let e = expr_id(c)?;
            let (e, d) = typed(c, e)?;
            Expr::Round(e, d)
        }
        w => {
            let a = |c: &mut Cursor| expr_id(c);
            if let Some(&op) = UNARY.iter().find(|k| format!("{k:?}") == w) {
                return Ok(Expr::Unary(op, a(c)?));
            }
            let op = BINARY.iter().copied().find(|k| format!("{k:?}") == w);
            let op = op.ok_or_else(|| c.error(at, format!("{w:?} is not an operation")))?;
            let x = a(c)?;
            c.expect(",")?;
            Expr::Binary(op, x, a(c)?)
        }
    })
}
