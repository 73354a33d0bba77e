//! Reductions, positions of extremes, softmax.

use super::broadcast::{elements, held};
use super::cast::int_path;
use super::elementwise::{dim_add, dim_max, dim_min, dim_mul};
use super::marked;
use super::row::*;
use super::run_axes::{RunAxes, stay_small};
use super::shape::distinct_axes;
use super::split::{Builder, axis_of, const_ints};
use crate::graph::{Guard, Rel};
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan, broadcast_coords};
use crate::nest::{Axis, BinOp, Combiner, Expr, ExprId, Nest, UnOp, compute_dtype};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::reduce::{self as r, Reduce};
use tensor::DType::{self, *};
use tensor::dims::{Origin, Proof};
use tensor::{DimId, Result, Tensor};

const ATTR_AXES: &[AttrDef] = &[attr("axes", AttrKind::Ints), attr("keepdims", AttrKind::Int(1))];
const INPUT_AXES: &[AttrDef] = &[attr("keepdims", AttrKind::Int(1)), attr("noop_with_empty_axes", AttrKind::Int(0))];

/// Where a version of a row has its axes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum From {
    Attribute,
    Operand,
    /// One element of the operand for each axis: 1 where it is reduced, else 0.
    Marks,
}

/// Which axes are reduced, of operand 0 with rank `rank`; `given` are those of the operand, if it is there.
fn marks(from: From, attrs: &crate::attrs::Attrs, given: Option<&[i64]>, rank: usize) -> Vec<bool> {
    let (axes, none) = match from {
        From::Attribute => (attrs.ints(0).unwrap_or(&[]), false),
        From::Operand => (given.unwrap_or(&[]), attrs.int(1) == Some(1)),
        From::Marks => return given.unwrap_or(&[]).iter().map(|&m| m == 1).collect(),
    };
    if axes.is_empty() { vec![!none; rank] } else { r::mark_axes(rank, axes) }
}

fn keeps(from: From, attrs: &crate::attrs::Attrs) -> bool {
    match from {
        From::Attribute => attrs.int(1) != Some(0),
        From::Operand => attrs.int(0) != Some(0),
        From::Marks => true,
    }
}

pub(super) fn infer_reduce(c: &mut InferCtx, from: From, kind: Reduce) -> Result<()> {
    let d = c.dtype(0)?;
    let keep = keeps(from, c.attrs);
    let Some(shape) = c.shape(0) else {
        c.set_unranked(0, d);
        return Ok(());
    };
    let given = match from {
        From::Operand if c.has(1) => match c.const_ints(1) {
            Some(v) => Some(v),
            None if c.list_len(1) == Some(0) => Some(vec![]),
            None => return infer_run_axes(c, &shape, keep),
        },
        From::Operand => None,
        From::Attribute => c.attrs.ints(0).map(<[i64]>::to_vec),
        From::Marks => return marked::infer(c, &shape),
    };
    let mut seen = vec![false; shape.len()];
    for &a in given.iter().flatten() {
        let a = c.axis(a, shape.len())?;
        if seen.get(a) == Some(&true) {
            return Err(c.error(tensor::ErrorKind::Shape, format!("{}: axis {a} is named twice", c.def.name)));
        }
        if let Some(s) = seen.get_mut(a) {
            *s = true;
        }
    }
    let marked = marks(from, c.attrs, given.as_deref(), shape.len());
    let one = c.dims.constant(1);
    let out: Vec<DimId> =
        shape.iter().zip(&marked).filter(|(_, m)| keep || !**m).map(|(&d, &m)| if m { one } else { d }).collect();
    c.set(0, d, out);
    if shape.len() <= 1 && marked.iter().all(|&m| m) && matches!(d, I64 | I32) {
        let f = match kind {
            Reduce::Sum => dim_add,
            Reduce::Prod => dim_mul,
            Reduce::Max => dim_max,
            Reduce::Min => dim_min,
            _ => return Ok(()),
        };
        if let Some((&first, rest)) = elements(c, 0).as_ref().and_then(|v| v.split_first())
            && let Some(v) = rest.iter().try_fold(first, |a, &b| f(c.dims, a, b)).and_then(|v| held(c, v))
        {
            c.set_values(0, [v]);
        }
    }
    Ok(())
}

/// The axes are computed.
fn infer_run_axes(c: &mut InferCtx, shape: &[DimId], keep: bool) -> Result<()> {
    let d = c.dtype(0)?;
    let n_axes = c.list_len(1);
    let rank = shape.len();
    // More are marks (`crate::expand`), as long as no axis goes.
    let by_marks = keep && rank > 0 && n_axes.is_none_or(|n| !stay_small(n, rank));
    let elements = if by_marks { None } else { c.need_values(1) };
    match elements {
        Some(elements) => {
            let axes = RunAxes::new(c.dims, &elements, rank);
            axes.check(c, &elements)?;
            let out = if keep { axes.outer(c.dims, shape) } else { axes.extents_left(c.dims, shape) };
            c.set(0, d, out);
        }
        None => match if keep { Some(rank) } else { n_axes.and_then(|n| rank.checked_sub(n)) } {
            Some(rank) => {
                let fresh: Vec<DimId> = (0..rank).map(|_| c.fresh("reduced", Origin::Unknown)).collect();
                c.set(0, d, fresh);
            }
            None => c.set_unranked(0, d),
        },
    }
    Ok(())
}

pub(super) fn reduce_ref(c: &RefCtx, from: From, kind: Reduce) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let given = c.opt(1).filter(|_| from != From::Attribute).map(Tensor::to_i64_vec);
    if from == From::Operand {
        distinct_axes(c.def, given.as_deref().unwrap_or(&[]), x.shape().len())?;
    }
    let marked = marks(from, c.attrs, given.as_deref(), x.shape().len());
    if marked.len() != x.shape().len() {
        let text = format!("{}: {} marks for {} axes", c.def.name, marked.len(), x.shape().len());
        return Err(tensor::Diagnostic::new(tensor::ErrorKind::Shape, text));
    }
    Ok(vec![r::reduce(kind, x, &marked, keeps(from, c.attrs))])
}

/// Integers in which the sums of [`Reduce::Mean`] do not overflow early.
fn wide_int(d: DType) -> DType {
    if d == U64 { U64 } else { I64 }
}

pub(super) fn reduce_lower(c: &mut NodeCtx, from: From, kind: Reduce) -> Plan<Nest> {
    let x = c.need(0)?;
    let (given, computed) = match from {
        From::Operand if c.has(1) => {
            let axes = c.need(1)?;
            let none = axes.shape.first().is_some_and(|&n| c.dims.as_const(n) == Some(0));
            (if none { Some(vec![]) } else { const_ints(c, 1) }, axes.values)
        }
        _ => (None, None),
    };
    let computed = match (&given, computed) {
        _ if from == From::Marks => {
            let elements = c.need(1)?.values.ok_or("the marks are not known when it runs")?;
            Some(RunAxes::of_marks(c.dims, &elements))
        }
        (None, Some(elements)) => Some(RunAxes::new(c.dims, &elements, x.shape.len())),
        (None, None) if c.has(1) && from == From::Operand => {
            return Err("the axes are neither constant nor a few computed integers".into());
        }
        _ => None,
    };
    let (mut b, coords) = match &computed {
        Some(axes) => {
            let (outer, inner) = (axes.outer(c.dims, &x.shape), axes.inner(c.dims, &x.shape));
            (Builder::undecided(c, &x.shape, outer, inner)?, axes.positions(c.dims))
        }
        None => {
            let marked = marks(from, c.attrs, given.as_deref(), x.shape.len());
            let b = Builder::new(c, &x.shape, &marked)?;
            let coords = broadcast_coords(c.dims, &x.shape, &b.full, &b.axes);
            (b, coords)
        }
    };
    let v = b.load_at(0, coords)?;
    let int = !x.dtype.is_float();
    let own = compute_dtype(x.dtype).unwrap_or(F32);
    let result = match kind {
        Reduce::Sum => b.reduce(Combiner::Sum, v),
        Reduce::Prod => {
            // Factors far from 1 on both sides give an ordinary product whose parts would leave the range of f32, in an order of
            // their own on every device.
            let v = if int { v } else { b.nest.cast(v, F64) };
            let y = b.reduce(Combiner::Prod, v);
            if int { y } else { b.nest.cast(y, own) }
        }
        Reduce::SumSquare => {
            let v = b.nest.bin(BinOp::Mul, v, v);
            b.reduce(Combiner::Sum, v)
        }
        Reduce::L1 => {
            let v = b.nest.un(UnOp::Abs, v);
            b.reduce(Combiner::Sum, v)
        }
        Reduce::Mean => {
            let t = if int { wide_int(x.dtype) } else { own };
            let v = b.nest.cast(v, t);
            let s = b.reduce(Combiner::Sum, v);
            let n = b.count(c, t);
            let m = b.nest.bin(BinOp::Div, s, n);
            b.nest.cast(m, own)
        }
        Reduce::Max | Reduce::Min => extreme(&mut b, v, x.dtype, kind == Reduce::Max),
        Reduce::L2 | Reduce::LogSum | Reduce::LogSumExp => {
            // Squares of f32 leave its range, above and below, where their root is within it.
            let t = if int || kind == Reduce::L2 { F64 } else { own };
            let v = b.nest.cast(v, t);
            let y = smooth(&mut b, v, kind);
            let y = if int { b.nest.cast(y, int_path(x.dtype)) } else { y };
            b.nest.cast(y, own)
        }
        _ => return Err("no loops for this reduction".into()),
    };
    match &computed {
        Some(axes) if !keeps(from, c.attrs) => b.store_once_at(0, axes.positions_left(c.dims), result),
        _ => b.store_once(c, &[(0, result)]),
    }
    Ok(b.nest)
}

fn smooth(b: &mut Builder, v: ExprId, kind: Reduce) -> ExprId {
    match kind {
        Reduce::L2 => {
            let v = b.nest.bin(BinOp::Mul, v, v);
            let s = b.reduce(Combiner::Sum, v);
            b.nest.un(UnOp::Sqrt, s)
        }
        Reduce::LogSum => {
            let s = b.reduce(Combiner::Sum, v);
            b.nest.un(UnOp::Log, s)
        }
        _ => {
            // An infinite maximum is not taken out: ∞ - ∞ is not a number.
            let m = b.reduce(Combiner::Max, v);
            let (inf, zero) = (b.nest.un(UnOp::IsInf, m), b.nest.num_like(0.0, m));
            let m = b.nest.select(inf, zero, m);
            let d = b.nest.bin(BinOp::Sub, v, m);
            let e = b.nest.un(UnOp::Exp, d);
            let s = b.reduce(Combiner::Sum, e);
            let l = b.nest.un(UnOp::Log, s);
            b.nest.bin(BinOp::Add, l, m)
        }
    }
}

/// The greatest or least element. The combiner starts from the end of the compute type; types narrower than that have ends of
/// their own, which show when nothing is reduced.
fn extreme(b: &mut Builder, v: ExprId, d: DType, greatest: bool) -> ExprId {
    let combiner = if greatest { Combiner::Max } else { Combiner::Min };
    let v = if d == Bool { b.nest.cast(v, I32) } else { v };
    let m = b.reduce(combiner, v);
    let bits = d.bits() as i32;
    let (lo, hi) = match d {
        Bool => (0.0, 1.0),
        I8 | I16 => (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0),
        U8 | U16 => (0.0, 2f64.powi(bits) - 1.0),
        _ => return m,
    };
    let m = if greatest { b.nest.bin_num(BinOp::Max, m, lo) } else { b.nest.bin_num(BinOp::Min, m, hi) };
    if d == Bool { b.nest.cast(m, Bool) } else { m }
}

pub(super) const REDUCE_NUMS: &[DType] = &[F32, F16, BF16, F64, I32, I64, U32, U64];
pub(super) const EXTREME: &[DType] = &[F32, F16, BF16, F64, I32, I64, U32, U64, I8, U8, Bool];

const ATTR_CASES: &[&str] = &[
    "[2,3,4]",
    "[2,3,4] axes=[1]",
    "[2,3,4] axes=[0,-1] keepdims=0",
    "[5] axes=[0] keepdims=0",
    "[2,0,3] axes=[1]",
    "[]",
];
const OPERAND_CASES: &[&str] = &[
    "[2,3,4]",
    "[2,3,4];i64[1]{1}",
    "[2,3,4];i64[2]{0,-1} keepdims=0",
    "[2,3];i64[0] noop_with_empty_axes=1",
    "[2,3];i64[0]",
    "[2,3] noop_with_empty_axes=1",
    "[2,0,3];i64[1]{1} keepdims=0",
    "[4,130];i64[1]{1}",
];

macro_rules! reduction {
    ($name:literal, $kind:ident, $attr_until:literal, $dtypes:expr) => {
        [
            OpDef {
                name: $name,
                until: $attr_until,
                inputs: &[req("data", "T")],
                outputs: &[req("reduced", "T")],
                attrs: ATTR_AXES,
                dtypes: &[("T", $dtypes)],
                infer: |c| infer_reduce(c, From::Attribute, Reduce::$kind),
                reference: Some(|c| reduce_ref(c, From::Attribute, Reduce::$kind)),
                lower: &[Loops(|c| reduce_lower(c, From::Attribute, Reduce::$kind))],
                tolerance: Tol::Rel(1e-5),
                cases: ATTR_CASES,
                ..ROW
            },
            OpDef {
                name: $name,
                since: $attr_until + 1,
                inputs: &[req("data", "T"), opt("axes", "tensor(int64)")],
                outputs: &[req("reduced", "T")],
                attrs: INPUT_AXES,
                dtypes: &[("T", $dtypes), ("tensor(int64)", &[I64])],
                infer: |c| infer_reduce(c, From::Operand, Reduce::$kind),
                reference: Some(|c| reduce_ref(c, From::Operand, Reduce::$kind)),
                lower: &[Loops(|c| reduce_lower(c, From::Operand, Reduce::$kind))],
                tolerance: Tol::Rel(1e-5),
                cases: OPERAND_CASES,
                ..ROW
            },
        ]
    };
}

fn infer_arg(c: &mut InferCtx) -> Result<()> {
    let Some(shape) = c.shape(0) else {
        c.set_unranked(0, I64);
        return Ok(());
    };
    let axis = c.axis(c.attrs.int(0).unwrap_or(0), shape.len())?;
    let keep = c.attrs.int(1) != Some(0);
    let one = c.dims.constant(1);
    if let Some(&d) = shape.get(axis) {
        at_least_one(c, d)?;
    }
    let out: Vec<DimId> = shape
        .iter()
        .enumerate()
        .filter(|&(i, _)| keep || i != axis)
        .map(|(i, &d)| if i == axis { one } else { d })
        .collect();
    c.set(0, I64, out);
    Ok(())
}

/// Nothing has no greatest element.
fn at_least_one(c: &mut InferCtx, d: DimId) -> Result<()> {
    let one = c.dims.constant(1);
    match c.dims.prove_le(one, d) {
        Proof::Yes => {}
        Proof::No => {
            let name = c.def.name;
            return Err(c.error(tensor::ErrorKind::Shape, format!("{name}: the axis has no elements")));
        }
        Proof::Unknown => {
            let why = format!("{}: the axis needs elements", c.def.name);
            c.guards.push(Guard { lhs: one, rel: Rel::Le, rhs: d, why, node: c.path.into() });
        }
    }
    Ok(())
}

fn arg_ref(c: &RefCtx, least: bool) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let rank = x.shape().len();
    let a = c.attrs.int(0).unwrap_or(0);
    let axis = usize::try_from(if a < 0 { a + rank as i64 } else { a }).unwrap_or(0);
    if rank == 0 {
        return Ok(vec![Tensor::from_i64(&[], &[0])]);
    }
    Ok(vec![r::arg_extreme(x, axis, c.attrs.int(1) != Some(0), least, c.attrs.int(2) == Some(1))])
}

fn arg_lower(c: &mut NodeCtx, least: bool) -> Plan<Nest> {
    let x = c.need(0)?;
    let rank = x.shape.len();
    let axis = axis_of(c.attrs.int(0).unwrap_or(0), rank)?;
    let last = c.attrs.int(2) == Some(1);
    let marked: Vec<bool> = (0..rank).map(|i| i == axis).collect();
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let combiner = if least { Combiner::ArgMin } else { Combiner::ArgMax };
    let n = x.shape[axis];
    let mut coords = broadcast_coords(c.dims, &x.shape, &b.full, &b.axes);
    if last {
        // The last of equals is the first when one walks backward.
        let one = c.dims.constant(1);
        let minus = c.dims.constant(-1);
        coords[axis].offset = c.dims.sub(n, one);
        coords[axis].terms = smallvec::SmallVec::from_iter([(crate::nest::Term::Axis(Axis::Inner(0)), minus)]);
    }
    let v = b.load_at(0, coords)?;
    let mut at = b.reduce(combiner, v);
    if last {
        let one = c.dims.constant(1);
        let top = c.dims.sub(n, one);
        let top = b.nest.expr(Expr::Dim(top));
        at = b.nest.bin(BinOp::Sub, top, at);
    }
    b.store_once(c, &[(0, at)]);
    Ok(b.nest)
}

macro_rules! arg_rows {
    ($name:literal, $least:literal) => {
        [
            OpDef {
                name: $name,
                until: 11,
                inputs: &[req("data", "T")],
                outputs: &[req("reduced", "tensor(int64)")],
                attrs: &[attr("axis", AttrKind::Int(0)), attr("keepdims", AttrKind::Int(1))],
                dtypes: &[("T", NUMS), ("tensor(int64)", &[I64])],
                infer: infer_arg,
                reference: Some(|c| arg_ref(c, $least)),
                lower: &[Loops(|c| arg_lower(c, $least))],
                cases: &["[4,5]", "[2,3,4] axis=-1 keepdims=0", "[6]{1,3,3,0,nan,9}"],
                ..ROW
            },
            OpDef {
                name: $name,
                since: 12,
                inputs: &[req("data", "T")],
                outputs: &[req("reduced", "tensor(int64)")],
                attrs: &[
                    attr("axis", AttrKind::Int(0)),
                    attr("keepdims", AttrKind::Int(1)),
                    attr("select_last_index", AttrKind::Int(0)),
                ],
                dtypes: &[("T", NUMS), ("tensor(int64)", &[I64])],
                infer: infer_arg,
                reference: Some(|c| arg_ref(c, $least)),
                lower: &[Loops(|c| arg_lower(c, $least))],
                cases: &[
                    "[4,5]",
                    "[2,3,4] axis=1 keepdims=0",
                    "[6]{1,3,3,0,0,2} select_last_index=1",
                    "[3,2]{1,1,1,1,0,2} select_last_index=1 axis=-1",
                ],
                ..ROW
            },
        ]
    };
}

/// Axes over which a softmax adds up to 1: from `axis` on together before version 13, `axis` alone since.
fn softmax_marks(rank: usize, axis: usize, flatten: bool) -> Vec<bool> {
    (0..rank).map(|i| if flatten { i >= axis } else { i == axis }).collect()
}

fn softmax_axis(attrs: &crate::attrs::Attrs, rank: usize) -> usize {
    let a = attrs.int(0).unwrap_or(-1);
    usize::try_from(if a < 0 { a + rank as i64 } else { a }).unwrap_or(0)
}

fn infer_softmax(c: &mut InferCtx) -> Result<()> {
    if let Some(s) = c.shape(0) {
        c.axis(c.attrs.int(0).unwrap_or(-1), s.len())?;
    }
    same_type_as_0(c)
}

fn softmax_lower(c: &mut NodeCtx, flatten: bool, log: bool) -> Plan<Nest> {
    let x = c.need(0)?;
    let marked = softmax_marks(x.shape.len(), softmax_axis(c.attrs, x.shape.len()), flatten);
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let v = b.load(c, 0)?;
    let m = b.reduce(Combiner::Max, v);
    let d = b.nest.bin(BinOp::Sub, v, m);
    let e = b.nest.un(UnOp::Exp, d);
    let s = b.reduce(Combiner::Sum, e);
    let y = if log {
        let l = b.nest.un(UnOp::Log, s);
        b.nest.bin(BinOp::Sub, d, l)
    } else {
        b.nest.bin(BinOp::Div, e, s)
    };
    b.store_inner(c, 0, y);
    Ok(b.nest)
}

fn hardmax_lower(c: &mut NodeCtx, flatten: bool) -> Plan<Nest> {
    let x = c.need(0)?;
    let marked = softmax_marks(x.shape.len(), softmax_axis(c.attrs, x.shape.len()), flatten);
    let mut b = Builder::new(c, &x.shape, &marked)?;
    let v = b.load(c, 0)?;
    let best = b.reduce(Combiner::ArgMax, v);
    let mut at = b.nest.num(0.0, I64);
    for (i, d) in b.nest.inner.clone().into_iter().enumerate() {
        let d = b.nest.expr(Expr::Dim(d));
        let k = b.nest.expr(Expr::Index(Axis::Inner(i as u16)));
        let scaled = b.nest.bin(BinOp::Mul, at, d);
        at = b.nest.bin(BinOp::Add, scaled, k);
    }
    let is = b.nest.bin(BinOp::Eq, at, best);
    let (one, zero) = (b.nest.num_like(1.0, v), b.nest.num_like(0.0, v));
    let y = b.nest.select(is, one, zero);
    b.store_inner(c, 0, y);
    Ok(b.nest)
}

const SOFTMAX_CASES: &[&str] = &[
    "[2,3,5] axis=1",
    "[1]  axis=0",
    "[4,130] axis=1",
    "[2,3] axis=0",
    "[0,7] axis=1",
    "[2,3]{-inf,-inf,-inf,1,nan,2} axis=1",
    "[2,2]{inf,1,1000,999} axis=-1",
];

macro_rules! softmax {
    ($name:literal, $reference:expr, $lower:expr) => {
        [
            softmax!($name, 1, 12, 1, true, $reference, $lower),
            softmax!($name, 13, i64::MAX, -1, false, $reference, $lower),
        ]
    };
    ($name:literal, $since:literal, $until:expr, $axis:literal, $flatten:literal, $reference:expr, $lower:expr) => {
        OpDef {
            name: $name,
            since: $since,
            until: $until,
            inputs: &[req("input", "T")],
            outputs: &[req("output", "T")],
            attrs: &[attr("axis", AttrKind::Int($axis))],
            dtypes: &[("T", FLOATS)],
            infer: infer_softmax,
            reference: Some(|c| {
                let x = c.input(0)?;
                let rank = x.shape().len();
                let f: fn(&Tensor, &[bool]) -> Tensor = $reference;
                Ok(vec![f(x, &softmax_marks(rank, softmax_axis(c.attrs, rank), $flatten))])
            }),
            lower: &[Loops(|c| {
                let f: fn(&mut NodeCtx, bool) -> Plan<Nest> = $lower;
                f(c, $flatten)
            })],
            tolerance: Tol::Rel(1e-5),
            cases: SOFTMAX_CASES,
            ..ROW
        }
    };
}

/// Reduction rows, two of each.
static REDUCTIONS: &[[OpDef; 2]] = &[
    reduction!("ReduceSum", Sum, 12, REDUCE_NUMS),
    reduction!("ReduceMean", Mean, 17, REDUCE_NUMS),
    reduction!("ReduceMax", Max, 17, EXTREME),
    reduction!("ReduceMin", Min, 17, EXTREME),
    reduction!("ReduceProd", Prod, 17, REDUCE_NUMS),
    reduction!("ReduceSumSquare", SumSquare, 17, REDUCE_NUMS),
    reduction!("ReduceL1", L1, 17, REDUCE_NUMS),
    reduction!("ReduceL2", L2, 17, REDUCE_NUMS),
    reduction!("ReduceLogSum", LogSum, 17, REDUCE_NUMS),
    reduction!("ReduceLogSumExp", LogSumExp, 17, REDUCE_NUMS),
    arg_rows!("ArgMax", false),
    arg_rows!("ArgMin", true),
    // output = e^(x - max) / Σ e^(x - max)
    softmax!("Softmax", |x, over| r::softmax(x, over, false), |c, flatten| softmax_lower(c, flatten, false)),
    // output = x - max - ln Σ e^(x - max)
    softmax!("LogSoftmax", |x, over| r::softmax(x, over, true), |c, flatten| softmax_lower(c, flatten, true)),
    // output = 1 at the first greatest element, 0 elsewhere
    softmax!("Hardmax", r::hardmax, hardmax_lower),
];

/// The rows.
pub static ROWS: &[OpDef] = REDUCTIONS.as_flattened();
