//! Rows of ops that ask for, change or make shapes.

use super::broadcast;
use super::extents::{is_negative, is_zero, quotient};
use super::loops::{Builder, outer};
use super::movement::checked_axis;
use super::row::{ANY, MOVES, PLAIN, ROW};
use super::run_axes::RunAxes;
use crate::graph::{Guard, Rel};
use crate::lowering::{Candidate, NodeCtx, Plan, ViewOp};
use crate::nest::{BinOp, Expr, Nest};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, attr, opt, req};
use crate::ty::Shape;
use reference::movement;
use tensor::dims::{Origin, Proof};
use tensor::{DType, DType::*, Diagnostic, DimId, ErrorKind, Result, Tensor};

const T: (&str, &[DType]) = ("T", ANY);
const I: (&str, &[DType]) = ("I", &[I64]);
const RESHAPE_VIEW: &[Candidate] = &[Candidate::View(|_| Ok(ViewOp::Reshape))];

const SHAPE: OpDef = OpDef {
    name: "Shape",
    inputs: &[req("data", "T")],
    outputs: &[req("shape", "I")],
    dtypes: &[T, I],
    infer: shape_infer,
    reference: Some(|c| {
        let x = c.input(0)?;
        let rank = x.shape().len() as i64;
        let (start, end) = shape_range(c.attrs.int(0).unwrap_or(0), c.attrs.int(1), rank);
        let v: Vec<i64> = x.shape()[start..end].iter().map(|&d| d as i64).collect();
        Ok(vec![Tensor::from_i64(&[v.len()], &v)])
    }),
    cases: &["[2,3,4]", "[]", "[0,5]"],
    ..ROW
};

const RESHAPE: OpDef = OpDef {
    name: "Reshape",
    traits: MOVES,
    inputs: &[req("data", "T"), req("shape", "I")],
    outputs: &[req("reshaped", "T")],
    dtypes: &[T, I],
    infer: reshape_infer,
    reference: Some(|c| {
        let allow_zero = c.attrs.int(0).unwrap_or(0) != 0;
        Ok(vec![movement::reshape(c.input(0)?, &c.input(1)?.to_i64_vec(), allow_zero)?])
    }),
    lower: RESHAPE_VIEW,
    cases: &["[2,3,4];i64[2]{0,-1}", "[2,3];i64[1]{6}", "[4,6];i64[3]{2,-1,3}"],
    ..ROW
};

const SQUEEZE: OpDef = OpDef {
    name: "Squeeze",
    traits: MOVES,
    outputs: &[req("squeezed", "T")],
    dtypes: &[T, I],
    infer: squeeze_infer,
    reference: Some(squeeze_ref),
    lower: RESHAPE_VIEW,
    cases: &["[1,3,1] axes=[0,-1]", "[1,1]"],
    ..ROW
};

const UNSQUEEZE: OpDef = OpDef {
    name: "Unsqueeze",
    traits: MOVES,
    outputs: &[req("expanded", "T")],
    dtypes: &[T, I],
    infer: unsqueeze_infer,
    reference: Some(unsqueeze_ref),
    lower: RESHAPE_VIEW,
    cases: &["[3] axes=[0,2]", "[] axes=[0]"],
    ..ROW
};

pub(super) const RANGE: OpDef = OpDef {
    name: "Range",
    inputs: &[req("start", "T"), req("limit", "T"), req("delta", "T")],
    outputs: &[req("output", "T")],
    dtypes: &[("T", &[F32, F64, I16, I32, I64, F16, BF16])],
    infer: range_infer,
    reference: Some(|c| Ok(vec![movement::range(c.input(0)?, c.input(1)?, c.input(2)?)?])),
    lower: &[Candidate::Loops(|c| progression_loops(c, 2))],
    tolerance: super::row::ROUNDED,
    cases: &["i64[]{0};i64[]{5};i64[]{2}", "f32[]{10};f32[]{0};f32[]{-3}", "i32[]{3};i32[]{3};i32[]{1}"],
    ..ROW
};

/// What a Range of floats becomes: how many elements it has is computed beforehand.
const PROGRESSION: OpDef = OpDef {
    name: "Progression",
    domain: HIP_DOMAIN,
    inputs: &[req("start", "T"), req("delta", "T"), req("count", "I")],
    outputs: &[req("output", "T")],
    dtypes: &[("T", &[F32, F64, F16, BF16]), I],
    infer: progression_infer,
    reference: Some(|c| {
        let n = usize::try_from(movement::single(c.input(2)?, "the count")?.view().i64_at(0));
        let n = n.map_err(|_| Diagnostic::new(ErrorKind::Shape, "Progression: the count is negative"))?;
        Ok(vec![movement::progression(c.input(0)?, c.input(1)?, n)?])
    }),
    lower: &[Candidate::Loops(|c| progression_loops(c, 1))],
    tolerance: super::row::ROUNDED,
    cases: &["f32[]{10};f32[]{-3};i64[]{4}", "f32[1]{1};f32[1]{0.1};i64[]{0}"],
    ..ROW
};

/// `start + i·delta` for each `i`; `delta` is the operand of that number.
fn progression_loops(c: &mut NodeCtx, delta: usize) -> Plan<Nest> {
    let mut b = Builder::over_result(c)?;
    let (start, delta, d) = (b.scalar(0)?, b.scalar(delta)?, b.dtype(0));
    let i = b.outer(0);
    let i = b.nest.expr(Expr::Cast(i, d));
    let step = b.bin(BinOp::Mul, i, delta);
    let e = b.bin(BinOp::Add, start, step);
    Ok(b.store(e))
}

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef { until: 14, ..SHAPE },
    OpDef {
        since: 15,
        attrs: &[attr("start", AttrKind::Int(0)), attr("end", AttrKind::IntOpt)],
        cases: &["[2,3,4]", "[2,3,4] start=1 end=-1", "[2,3] start=-9 end=9", "[2] start=1 end=0"],
        ..SHAPE
    },
    OpDef {
        name: "Size",
        inputs: &[req("data", "T")],
        outputs: &[req("size", "I")],
        dtypes: &[T, I],
        infer: size_infer,
        reference: Some(|c| Ok(vec![Tensor::from_i64(&[], &[c.input(0)?.n_elems() as i64])])),
        cases: &["[2,3,4]", "[0]"],
        ..ROW
    },
    OpDef { since: 5, until: 13, ..RESHAPE },
    OpDef {
        since: 14,
        attrs: &[attr("allowzero", AttrKind::Int(0))],
        cases: &["[2,3,4];i64[2]{0,-1}", "[0,3];i64[2]{3,0} allowzero=1", "[0,3];i64[2]{0,-1}"],
        ..RESHAPE
    },
    OpDef {
        name: "Flatten",
        traits: MOVES,
        inputs: &[req("input", "T")],
        outputs: &[req("output", "T")],
        attrs: &[attr("axis", AttrKind::Int(1))],
        dtypes: &[T],
        infer: flatten_infer,
        reference: Some(|c| {
            let x = c.input(0)?;
            let (s, axis) = (x.shape(), c.attrs.int(0).unwrap_or(1));
            let axis = (if axis < 0 { axis + s.len() as i64 } else { axis }) as usize;
            let shape = [s[..axis].iter().product::<usize>(), s[axis..].iter().product()];
            Ok(vec![movement::with_shape(x, &shape)?])
        }),
        lower: RESHAPE_VIEW,
        cases: &["[2,3,4] axis=2", "[2,3] axis=0", "[2,3,4] axis=-1"],
        ..ROW
    },
    OpDef { until: 12, inputs: &[req("data", "T")], attrs: &[attr("axes", AttrKind::Ints)], ..SQUEEZE },
    OpDef {
        since: 13,
        inputs: &[req("data", "T"), opt("axes", "I")],
        cases: &["[1,3,1];i64[2]{0,-1}", "[1,1]"],
        ..SQUEEZE
    },
    OpDef { until: 12, inputs: &[req("data", "T")], attrs: &[attr("axes", AttrKind::Ints)], ..UNSQUEEZE },
    OpDef {
        since: 13,
        inputs: &[req("data", "T"), req("axes", "I")],
        cases: &["[3];i64[2]{0,2}", "[2,3];i64[1]{-1}", "[];i64[1]{0}"],
        ..UNSQUEEZE
    },
    OpDef {
        name: "Expand",
        traits: MOVES,
        since: 8,
        inputs: &[req("input", "T"), req("shape", "I")],
        outputs: &[req("output", "T")],
        dtypes: &[T, I],
        infer: expand_infer,
        reference: Some(|c| Ok(vec![movement::expand(c.input(0)?, &extents(c.input(1)?)?)?])),
        lower: &[Candidate::View(|_| Ok(ViewOp::Broadcast))],
        cases: &["[3,1];i64[3]{2,1,6}", "[3];i64[1]{1}", "[];i64[2]{2,2}", "[3,1];i64[2]{3,0}"],
        ..ROW
    },
    OpDef {
        name: "ConstantOfShape",
        since: 9,
        inputs: &[req("input", "I")],
        outputs: &[req("output", "T")],
        attrs: &[attr("value", AttrKind::Tensor)],
        dtypes: &[T, I],
        infer: constant_of_shape_infer,
        reference: Some(|c| {
            let value = match c.attrs.tensor(0) {
                Some(k) => c.consts[k].read()?,
                None => Tensor::from_f32(&[1], &[0.0]),
            };
            Ok(vec![movement::fill(&value, &extents(c.input(0)?)?)?])
        }),
        lower: &[Candidate::Loops(|c| {
            let value = match c.attrs.tensor(0) {
                Some(k) => c.consts[k].read().map_err(|e| e.message().to_string())?,
                None => Tensor::from_f32(&[1], &[0.0]),
            };
            let mut b = Builder::over_result(c)?;
            let d = crate::nest::compute_dtype(value.dtype()).ok_or("strings are not filled by loops")?;
            let v = value.view();
            let e = if d.is_float() { Expr::Float(v.f64_at(0).to_bits(), d) } else { Expr::Int(v.i64_at(0), d) };
            let e = b.nest.expr(e);
            Ok(b.store(e))
        })],
        cases: &["i64[2]{2,3}", "i64[0]", "i64[2]{0,4}"],
        ..ROW
    },
    OpDef { since: 11, until: 26, ..RANGE },
    OpDef {
        since: 27,
        attrs: &[attr("stash_type", AttrKind::Int(1))],
        infer: |c| {
            // Half floats are computed in f32 whatever the version.
            if c.attrs.int(0) != Some(1) && matches!(c.dtype(0)?, F16 | BF16) {
                let text = format!("Range: stash_type={:?} is not 1 (f32)", c.attrs.int(0).unwrap_or(0));
                return Err(c.error(ErrorKind::Unsupported, text));
            }
            range_infer(c)
        },
        ..RANGE
    },
    OpDef {
        name: "Trilu",
        since: 14,
        inputs: &[req("input", "T"), opt("k", "I")],
        outputs: &[req("output", "T")],
        attrs: &[attr("upper", AttrKind::Int(1))],
        dtypes: &[("T", PLAIN), I],
        infer: trilu_infer,
        reference: Some(trilu_ref),
        lower: &[Candidate::Loops(|c| {
            let (upper, d) = (c.attrs.int(0) != Some(0), c.need(0)?);
            let rank = d.shape.len();
            let mut b = Builder::over_result(c)?;
            let k = if b.c.has(1) { b.scalar_i64(1)? } else { b.int(0) };
            let (row, col) = (b.outer(rank - 2), b.outer(rank - 1));
            let diagonal = b.bin(BinOp::Sub, col, row);
            let keep = b.bin(if upper { BinOp::Ge } else { BinOp::Le }, diagonal, k);
            let t = b.dtype(0);
            let zero = b.nest.num(0.0, t);
            let coords: Vec<_> = (0..rank).map(|i| b.along(outer(i))).collect();
            let e = b.load_if(0, coords, Some(keep), zero)?;
            Ok(b.store(e))
        })],
        cases: &["[3,4]", "[3,4];i64[]{1} upper=0", "[2,3,3];i64[]{-1}"],
        ..ROW
    },
    PROGRESSION,
];

pub(super) fn trilu_infer(c: &mut InferCtx) -> Result<()> {
    if c.shape(0).is_some_and(|s| s.len() < 2) {
        return Err(c.error(ErrorKind::Shape, "Trilu needs at least 2 axes"));
    }
    c.require_single(1, "k")?;
    c.set_type(0, c.ty(0).clone());
    Ok(())
}

pub(super) fn trilu_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let k = c.opt(1).map_or(Ok(0), |k| movement::single(k, "k").map(|k| k.view().i64_at(0)))?;
    Ok(vec![movement::trilu(c.input(0)?, k, c.attrs.int(0) != Some(0))?])
}

/// Elements of a shape operand.
pub(crate) fn extents(t: &Tensor) -> Result<Vec<usize>> {
    let ints = t.to_i64_vec().into_iter();
    let bad = |d| Diagnostic::new(ErrorKind::Shape, format!("an extent is negative: {d}"));
    ints.map(|d| usize::try_from(d).map_err(|_| bad(d))).collect()
}

/// Which axes `Shape` tells of.
fn shape_range(start: i64, end: Option<i64>, rank: i64) -> (usize, usize) {
    let at = |v: i64| if v < 0 { v.saturating_add(rank) } else { v }.clamp(0, rank) as usize;
    let (s, e) = (at(start), at(end.unwrap_or(rank)));
    (s, e.max(s))
}

fn shape_infer(c: &mut InferCtx) -> Result<()> {
    let Some(s) = c.shape(0) else {
        let d = c.unknown_extents(1);
        c.set(0, I64, d);
        return Ok(());
    };
    let (start, end) = shape_range(c.attrs.int(0).unwrap_or(0), c.attrs.int(1), s.len() as i64);
    let n = c.dims.constant((end - start) as i64);
    c.set(0, I64, [n]);
    c.set_values(0, s[start..end].iter().copied());
    Ok(())
}

fn size_infer(c: &mut InferCtx) -> Result<()> {
    c.set(0, I64, []);
    if let Some(s) = c.shape(0) {
        let n = c.dims.product(s);
        c.set_values(0, [n]);
    }
    Ok(())
}

/// Sets result 0 to operand 0 under another shape; elements stay known.
fn set_reshaped(c: &mut InferCtx, shape: impl IntoIterator<Item = DimId>) -> Result<()> {
    c.set(0, c.dtype(0)?, shape);
    if let Some(v) = c.values(0) {
        c.set_values(0, v);
    }
    Ok(())
}

/// `Reshape`. An element that is a symbol and never negative is taken as the extent it says: where it is 0 there are no
/// elements, and a run in which the operator's text says something else (beside a -1 it copies the operand's extent) is refused.
/// One that may be -1 or 0 at run time follows the rule for each case by arithmetic.
fn reshape_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(target) = c.need_values(1) else {
        match c.list_len(1) {
            Some(n) => {
                let s = c.unknown_extents(n);
                c.set(0, dtype, s);
            }
            None => c.set_unranked(0, dtype),
        }
        return Ok(());
    };
    let ins = c.shape(0);
    let allow_zero = c.attrs.int(0).unwrap_or(0) != 0;
    let zero = c.dims.constant(0);
    // Every extent as it is when it is not the one to infer; `open` is the position of a -1.
    let (mut shape, mut open, mut maybe, mut literal) = (Shape::new(), None, Vec::new(), Vec::new());
    for (i, &d) in target.iter().enumerate() {
        let kept = ins.as_ref().and_then(|s| s.get(i)).copied();
        let (lo, _) = c.dims.range(d);
        shape.push(match c.dims.as_const(d) {
            Some(-1) if open.is_none() => {
                open = Some(i);
                c.dims.constant(1)
            }
            Some(0) if !allow_zero => match (kept, &ins) {
                (Some(k), _) => k,
                (None, None) => c.fresh("kept", Origin::Unknown),
                (None, Some(s)) => {
                    let text = format!("Reshape: extent {i} is 0 but the operand has only {} axes", s.len());
                    return Err(c.error(ErrorKind::Shape, text));
                }
            },
            Some(k) if k < 0 => {
                return Err(c.error(ErrorKind::Shape, format!("Reshape: extent {k} of the new shape is not possible")));
            }
            Some(_) => d,
            // What the operand has as an extent is one, though its bounds may not say so.
            None if lo >= 0 || ins.as_ref().is_some_and(|s| s.contains(&d)) => {
                if lo <= 0 && !allow_zero {
                    literal.extend(kept.map(|k| (d, k)));
                }
                d
            }
            None => {
                maybe.push(i);
                let positive = c.dims.max(d, zero);
                match kept.filter(|_| !allow_zero) {
                    Some(k) => {
                        let z = is_zero(c.dims, d);
                        let k = c.dims.mul(z, k);
                        c.dims.add(positive, k)
                    }
                    None => positive,
                }
            }
        });
    }
    require_reshape(c, &target, open.is_some(), &maybe, allow_zero)?;
    for (d, kept) in literal.into_iter().filter(|(d, kept)| open.is_some() && d != kept) {
        let z = is_zero(c.dims, d);
        let copied = c.dims.mul(z, kept);
        c.require_le(copied, zero, "Reshape: an extent that is 0 beside a -1 means the operand's, which is not 0");
    }
    let Some(ins) = ins else {
        if let Some(i) = open {
            shape[i] = c.fresh("rest", Origin::Unknown);
        }
        return set_reshaped(c, shape);
    };
    let total = c.dims.product(ins.iter().copied());
    // What is open is the quotient of the extents that are not kept, so that it is one where a kept extent is 0, too.
    let one = c.dims.constant(1);
    let (mut left, mut given) = (ins.to_vec(), shape.to_vec());
    if !allow_zero {
        for (k, &d) in target.iter().enumerate().take(ins.len()) {
            if d != zero && !maybe.contains(&k) {
                continue;
            }
            let kept = is_zero(c.dims, d);
            let rest = c.dims.sub(one, left[k]);
            let rest = c.dims.mul(kept, rest);
            left[k] = c.dims.add(left[k], rest);
            let positive = c.dims.max(d, zero);
            given[k] = c.dims.add(positive, kept);
        }
    }
    let others =
        |i: usize| -> Vec<DimId> { given.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, &d)| d).collect() };
    if let Some(i) = open {
        let (q, exact) = quotient(c.dims, &left, &others(i));
        shape[i] = q;
        if !exact {
            let all = c.dims.product(shape.iter().copied());
            c.require_eq(all, total, "the number of elements must be a multiple of the extents given")?;
        }
        return set_reshaped(c, shape);
    }
    for i in maybe {
        let (q, _) = quotient(c.dims, &left, &others(i));
        let neg = is_negative(c.dims, target[i]);
        let q = c.dims.mul(neg, q);
        shape[i] = c.dims.add(shape[i], q);
    }
    let all = c.dims.product(shape.iter().copied());
    c.require_eq(all, total, "the number of elements must stay the same")?;
    set_reshaped(c, shape)
}

/// Requires the new shape of `Reshape` to say one: no number below -1, at most one -1, with `allowzero` no 0 beside it. `maybe`
/// are the elements that may be negative when the model runs, `open` whether another one is always -1.
fn require_reshape(c: &mut InferCtx, target: &Shape, open: bool, maybe: &[usize], allow_zero: bool) -> Result<()> {
    let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
    if open {
        let others: Vec<DimId> = target.iter().copied().filter(|&d| c.dims.as_const(d) != Some(-1)).collect();
        if allow_zero && others.contains(&zero) {
            let text = "Reshape: with allowzero the new shape has a 0 and a -1, so that any extent would do for the -1";
            return Err(c.error(ErrorKind::Shape, text).help("give the extent in place of -1, or leave out allowzero"));
        }
        let (least, what) = match allow_zero {
            true => (one, "Reshape: beside a -1 and with allowzero an extent must not be 0 or negative"),
            false => (zero, "Reshape: beside a -1 an extent of the new shape must not be negative"),
        };
        others.into_iter().for_each(|d| c.require_le(least, d, what));
        return Ok(());
    }
    let minus = c.dims.constant(-1);
    let mut n_open = zero;
    for &i in maybe {
        c.require_le(minus, target[i], "Reshape: an extent of the new shape must not be below -1");
        let negative = is_negative(c.dims, target[i]);
        n_open = c.dims.add(n_open, negative);
    }
    c.require_le(n_open, one, "Reshape: at most one extent of the new shape can be -1");
    if allow_zero && !maybe.is_empty() {
        let n_zeros = target.iter().fold(zero, |n, &d| {
            let z = is_zero(c.dims, d);
            c.dims.add(n, z)
        });
        let both = c.dims.mul(n_open, n_zeros);
        c.require_le(both, zero, "Reshape: with allowzero the new shape must not have a 0 and a -1");
    }
    Ok(())
}

fn flatten_infer(c: &mut InferCtx) -> Result<()> {
    let Some(s) = c.shape(0) else {
        let d = c.unknown_extents(2);
        return set_reshaped(c, d);
    };
    let (axis, rank) = (c.attrs.int(0).unwrap_or(1), s.len() as i64);
    if !(-rank..=rank).contains(&axis) {
        return Err(c.error(ErrorKind::Shape, format!("Flatten: axis {axis} is out of range for rank {rank}")));
    }
    let at = if axis < 0 { axis + rank } else { axis } as usize;
    let (a, b) = (c.dims.product(s[..at].iter().copied()), c.dims.product(s[at..].iter().copied()));
    set_reshaped(c, [a, b])
}

/// The axes of Squeeze, Unsqueeze: an attribute up to opset 12, an operand since.
fn axes_of(c: &InferCtx) -> Result<Option<Vec<i64>>> {
    match c.def.attrs.is_empty() {
        false => Ok(c.attrs.ints(0).map(|a| a.to_vec())),
        true => c.const_list(1, "axes"),
    }
}

/// Whether the axes are an operand that is not constant.
fn has_run_axes(c: &InferCtx) -> bool {
    c.def.attrs.is_empty() && c.has(1) && c.const_ints(1).is_none()
}

fn squeeze_infer(c: &mut InferCtx) -> Result<()> {
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, c.dtype(0)?);
        return Ok(());
    };
    let one = c.dims.constant(1);
    if has_run_axes(c) {
        let Some(elements) = c.need_values(1) else {
            c.set_unranked(0, c.dtype(0)?);
            return Ok(());
        };
        let axes = RunAxes::new(c.dims, &elements, s.len());
        axes.check(c, &elements)?;
        for n in axes.inner(c.dims, &s) {
            c.require_eq(n, one, "the axes must have extent 1")?;
        }
        let rest = axes.extents_left(c.dims, &s);
        return set_reshaped(c, rest);
    }
    let axes = axes_of(c)?;
    let gone = match axes {
        Some(a) => {
            let gone = c.axes(&a, s.len())?;
            for &a in &gone {
                c.require_eq(s[a], one, &format!("axis {a} must have extent 1"))?;
            }
            gone
        }
        None => {
            // Which extents are 1 decides the rank, so it must be known when compiled: an extent that may be 1 is taken not to be.
            let ones: Vec<Proof> = s.iter().map(|&d| c.dims.prove_eq(d, one)).collect();
            for (axis, &d) in s.iter().enumerate().filter(|(i, _)| ones[*i] == Proof::Unknown) {
                let why = format!("Squeeze: without axes, axis {axis} must not have extent 1");
                c.guards.push(Guard { lhs: d, rel: Rel::Ne, rhs: one, why, node: c.path.into() });
            }
            (0..s.len()).filter(|&i| ones[i] == Proof::Yes).collect()
        }
    };
    let rest: Shape = s.iter().enumerate().filter(|(i, _)| !gone.contains(i)).map(|(_, &d)| d).collect();
    set_reshaped(c, rest)
}

fn unsqueeze_infer(c: &mut InferCtx) -> Result<()> {
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, c.dtype(0)?);
        return Ok(());
    };
    if has_run_axes(c) {
        // Which extents are 1, nodes before it compute (`crate::expand`).
        let Some(n) = c.list_len(1) else {
            c.set_unranked(0, c.dtype(0)?);
            return Ok(());
        };
        let fresh = c.unknown_extents(s.len() + n);
        c.set(0, c.dtype(0)?, fresh);
        return Ok(());
    }
    let Some(axes) = axes_of(c)? else {
        return Err(c.error(ErrorKind::Argument, "Unsqueeze: axes are missing"));
    };
    let rank = s.len() + axes.len();
    let (axes, one) = (c.axes(&axes, rank)?, c.dims.constant(1));
    let mut rest = s.into_iter();
    let shape: Shape = (0..rank).map(|i| if axes.contains(&i) { one } else { rest.next().unwrap_or(one) }).collect();
    set_reshaped(c, shape)
}

/// The axes operand or attribute in the reference, of a tensor of rank `rank`.
fn ref_axes(c: &RefCtx, rank: usize) -> Result<Option<Vec<usize>>> {
    let axes = c.opt(1).map(|t| t.to_i64_vec()).or_else(|| c.attrs.ints(0).map(|a| a.to_vec()));
    axes.map(|a| distinct_axes(c.def, &a, rank)).transpose()
}

/// Axes of a tensor of rank `rank` that the run gives, which the shape rule has not seen.
///
/// # Errors
/// `Shape` when one is out of range or named twice.
pub(super) fn distinct_axes(def: &OpDef, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut found: Vec<usize> = Vec::with_capacity(axes.len());
    for &axis in axes {
        let at = checked_axis(axis, rank);
        if at >= rank || found.contains(&at) {
            let text = format!("{}: axis {axis} is out of range or named twice, the rank is {rank}", def.name);
            return Err(Diagnostic::new(ErrorKind::Shape, text));
        }
        found.push(at);
    }
    Ok(found)
}

fn squeeze_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let axes = ref_axes(c, x.shape().len())?;
    if let Some(a) = axes.iter().flatten().find(|&&a| x.shape()[a] != 1) {
        let text = format!("Squeeze: axis {a} has extent {}, not 1", x.shape()[*a]);
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let goes = |i: usize, d: usize| axes.as_ref().map_or(d == 1, |a| a.contains(&i));
    let shape: Vec<usize> = x.shape().iter().enumerate().filter(|&(i, &d)| !goes(i, d)).map(|(_, &d)| d).collect();
    Ok(vec![movement::with_shape(x, &shape)?])
}

fn unsqueeze_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let count = c.opt(1).map_or_else(|| c.attrs.ints(0).map_or(0, <[i64]>::len), Tensor::n_elems);
    let rank = x.shape().len() + count;
    let axes = ref_axes(c, rank)?.unwrap_or_default();
    let mut rest = x.shape().iter().copied();
    let shape: Vec<usize> = (0..rank).map(|i| if axes.contains(&i) { 1 } else { rest.next().unwrap_or(1) }).collect();
    Ok(vec![movement::with_shape(x, &shape)?])
}

/// `Expand`. Where the operand's extent is a number above 1, the asked extent may be that number or 1 and the result is the
/// same; otherwise extents follow the rules of broadcasting.
fn expand_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let (Some(target), Some(s)) = (c.need_values(1), c.shape(0)) else {
        match (c.list_len(1), c.shape(0)) {
            (Some(n), Some(s)) => {
                let d = c.unknown_extents(n.max(s.len()));
                c.set(0, dtype, d);
            }
            _ => c.set_unranked(0, dtype),
        }
        return Ok(());
    };
    let rank = s.len().max(target.len());
    let one = c.dims.constant(1);
    let mut shape = Shape::new();
    for i in 0..rank {
        let a = (i + s.len()).checked_sub(rank).map_or(one, |k| s[k]);
        let v = (i + target.len()).checked_sub(rank).map_or(one, |k| target[k]);
        let known = c.dims.as_const(a).filter(|&k| k != 1);
        shape.push(match known {
            Some(_) if c.dims.as_const(v).is_none() => {
                let (p, q) = (c.dims.sub(v, one), c.dims.sub(v, a));
                let (product, zero) = (c.dims.mul(p, q), c.dims.constant(0));
                c.require_eq(product, zero, "the shape asked for must be 1 or the operand's extent")?;
                a
            }
            _ if c.dims.as_const(a) == Some(1) => c.extent(v)?,
            _ if c.dims.is_at_most_one(a) => {
                // Not equal to an extent, so that nothing else says that it is one.
                let v = c.extent(v)?;
                broadcast::join(c, a, v, &format!("broadcast along axis {i}"))?
            }
            _ => broadcast::join(c, a, v, &format!("broadcast along axis {i}"))?,
        });
    }
    c.set(0, dtype, shape.clone());
    repeat_values(c, &shape);
    Ok(())
}

/// Elements of a result that repeats operand 0's single element, or has the operand's elements.
fn repeat_values(c: &mut InferCtx, shape: &Shape) {
    let n = match shape.as_slice() {
        [] => Some(1),
        [n] => c.dims.as_const(*n),
        _ => None,
    };
    let (Some(v), Some(n)) = (c.values(0), n.and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= 64)) else {
        return;
    };
    if v.len() == n {
        c.set_values(0, v);
    } else if let [one] = v.as_slice() {
        c.set_values(0, std::iter::repeat_n(*one, n));
    }
}

fn constant_of_shape_infer(c: &mut InferCtx) -> Result<()> {
    let konst = c.attrs.tensor(0).map(|k| c.consts[k].clone());
    let dtype = konst.as_ref().map_or(F32, |k| k.dtype);
    if let Some(k) = konst.as_ref().filter(|k| k.n_elems() != 1) {
        let text = format!("ConstantOfShape: the value must be one number, not {}", k.n_elems());
        return Err(c.error(ErrorKind::Shape, text));
    }
    let Some(target) = c.need_values(0) else {
        match c.list_len(0) {
            Some(n) => {
                let d = c.unknown_extents(n);
                c.set(0, dtype, d);
            }
            None => c.set_unranked(0, dtype),
        }
        return Ok(());
    };
    let shape: Shape = target.iter().map(|&d| c.extent(d)).collect::<Result<_>>()?;
    c.set(0, dtype, shape.clone());
    let n = match shape.as_slice() {
        [] => Some(1),
        [n] => c.dims.as_const(*n),
        _ => None,
    };
    if let (Some(k), Some(n), true) = (konst, n.filter(|&n| n <= 64), matches!(dtype, I64 | I32)) {
        let v = c.dims.constant(k.read()?.view().i64_at(0));
        c.set_values(0, std::iter::repeat_n(v, n as usize));
    }
    Ok(())
}

/// How many steps of `d` lead from `s` to before `l`.
pub(super) fn steps(c: &mut InferCtx, s: DimId, l: DimId, d: DimId) -> DimId {
    let (span, zero) = (c.dims.sub(l, s), c.dims.constant(0));
    let n = c.dims.ceildiv(span, d);
    c.dims.max(n, zero)
}

/// The one element of a float operand as a dim, when it is known and a whole number.
fn whole(c: &mut InferCtx, i: usize) -> Option<DimId> {
    if let Some(v) = c.whole_values(i) {
        return v.first().copied();
    }
    let v = c.const_tensor(i)?.to_f64_vec().first().copied()?;
    (v.fract() == 0.0 && v.abs() < f64::from(1 << 24)).then(|| c.dims.constant(v as i64))
}

fn progression_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    for (i, what) in ["start", "delta", "the count"].into_iter().enumerate() {
        c.require_single(i, what)?;
    }
    let n = match c.need_values(2).as_deref() {
        Some([n]) => *n,
        _ => c.fresh("count", Origin::Unknown),
    };
    let zero = c.dims.constant(0);
    c.require_le(zero, n, "Range: from start to limit by delta must be fewer than 10¹² steps");
    c.set(0, dtype, [n]);
    Ok(())
}

fn range_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    for (i, what) in ["start", "limit", "delta"].into_iter().enumerate() {
        c.require_single(i, what)?;
    }
    if !matches!(dtype, I64 | I32) {
        let given: Option<Vec<Tensor>> = (0..3).map(|i| c.const_tensor(i)).collect();
        let n = match given.as_deref() {
            Some([s, l, d]) => {
                let n = movement::range(s, l, d).map_err(|e| c.error(e.kind(), e.message()))?.n_elems();
                c.dims.constant(n as i64)
            }
            _ => match (whole(c, 0), whole(c, 1), whole(c, 2)) {
                (Some(s), Some(l), Some(d)) if c.dims.as_const(d) != Some(0) => steps(c, s, l, d),
                _ => c.fresh("range", Origin::Unknown),
            },
        };
        c.set(0, dtype, [n]);
        return Ok(());
    }
    let (Some(s), Some(l), Some(d)) = (c.need_values(0), c.need_values(1), c.need_values(2)) else {
        let n = c.fresh("range", Origin::Unknown);
        c.set(0, dtype, [n]);
        return Ok(());
    };
    let (Some(&s), Some(&l), Some(&d)) = (s.first(), l.first(), d.first()) else {
        return Err(c.error(ErrorKind::Shape, "Range: start, limit and delta have one element each"));
    };
    if c.dims.as_const(d) == Some(0) {
        return Err(c.error(ErrorKind::Shape, "Range: delta is 0"));
    }
    let n = steps(c, s, l, d);
    c.set(0, dtype, [n]);
    if let Some(n) = c.dims.as_const(n).filter(|&n| n <= 64) {
        let values: Vec<DimId> = (0..n)
            .map(|i| {
                let i = c.dims.constant(i);
                let step = c.dims.mul(i, d);
                c.dims.add(s, step)
            })
            .collect();
        c.set_values(0, values);
    }
    Ok(())
}
