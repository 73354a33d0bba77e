//! Small functions that are compositions: distances, complex products, slices that overlap, a gated sum.

use super::super::broadcast::broadcast;
use super::super::movement::checked_axis;
use super::super::row::{PLAIN, ROW};
use super::{MICROSOFT, T, rounded, wide};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::data::{broadcast_positions, broadcast_shape, f64s, from_f64s};
use reference::{elementwise as e, movement};
use tensor::DType::{BF16, F16, F32, F64};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

fn is_rooted(attrs: &crate::attrs::Attrs) -> Option<bool> {
    match attrs.str(0)? {
        "sqeuclidean" => Some(false),
        "euclidean" => Some(true),
        _ => None,
    }
}

fn infer_distances(c: &mut InferCtx) -> Result<()> {
    if is_rooted(c.attrs).is_none() {
        let text = format!("CDist: metric {:?} is neither sqeuclidean nor euclidean", c.attrs.str(0).unwrap_or(""));
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let dtype = c.dtype(0)?;
    let (Some(a), Some(b)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let (&[m, n], &[k, n2]) = (a.as_slice(), b.as_slice()) else {
        return Err(c.error(ErrorKind::Shape, format!("CDist: operands have {} and {} axes, not 2", a.len(), b.len())));
    };
    c.require_eq(n, n2, "points have as many coordinates")?;
    c.set(0, dtype, [m, k]);
    Ok(())
}

/// Differences before they are squared: squares of near points that are taken off each other would leave nothing.
fn expand_distances(x: &mut Expansion) -> Result<Vec<Value>> {
    let (a, b) = (x.need(0)?, x.need(1)?);
    let (a, b, axis) = (x.unsqueeze(a, &[1]), x.unsqueeze(b, &[0]), x.ints(&[2]));
    let d = x.op("Sub", &[a, b], &[]);
    let d = x.op("Mul", &[d, d], &[]);
    let d = x.op("ReduceSum", &[d, axis], &[("keepdims", Attr::Int(0))]);
    Ok(vec![if is_rooted(x.attrs()) == Some(true) { x.op("Sqrt", &[d], &[]) } else { d }])
}

fn distances_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let (&[m, n], &[k, _]) = (a.shape(), b.shape()) else {
        return Err(Diagnostic::new(ErrorKind::Shape, "CDist: operands have 2 axes"));
    };
    if b.shape()[1] != n {
        return Err(Diagnostic::new(ErrorKind::Shape, "CDist: points have as many coordinates"));
    }
    let (u, v) = (f64s(a), f64s(b));
    let mut y = Vec::with_capacity(m * k);
    for (i, j) in (0..m).flat_map(|i| (0..k).map(move |j| (i, j))) {
        let sum: f64 = (0..n).map(|t| (u[i * n + t] - v[j * n + t]).powi(2)).sum();
        y.push(if is_rooted(c.attrs) == Some(true) { sum.sqrt() } else { sum });
    }
    Ok(vec![from_f64s(a.dtype(), &[m, k], &y)])
}

fn infer_complex(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let (Some(a), Some(b)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let two = c.dims.constant(2);
    for s in [&a, &b] {
        let Some(&d) = s.last() else {
            return Err(c.error(ErrorKind::Shape, format!("{}: a number has a real and an imaginary part", c.def.name)));
        };
        c.require_eq(d, two, "the last axis is a real and an imaginary part")?;
    }
    let s = broadcast(c, &[a, b])?;
    c.set(0, dtype, s);
    Ok(())
}

fn expand_complex(x: &mut Expansion, conjugate: bool) -> Result<Vec<Value>> {
    let (a, b) = (x.need(0)?, x.need(1)?);
    let dtype = x.tensor(a)?.0;
    let mut parts = |v: Value| {
        let v = x.cast(v, wide(dtype));
        (x.slice(v, -1, 0, 1), x.slice(v, -1, 1, 2))
    };
    let ((ar, ai), (br, bi)) = (parts(a), parts(b));
    let mut mul = |u: Value, v: Value| x.op("Mul", &[u, v], &[]);
    let (rr, ii, ri, ir) = (mul(ar, br), mul(ai, bi), mul(ar, bi), mul(ai, br));
    let (real, imaginary) = match conjugate {
        true => (x.op("Add", &[rr, ii], &[]), x.op("Sub", &[ir, ri], &[])),
        false => (x.op("Sub", &[rr, ii], &[]), x.op("Add", &[ir, ri], &[])),
    };
    let y = x.concat(&[real, imaginary], -1);
    Ok(vec![x.cast(y, dtype)])
}

fn complex_ref(c: &RefCtx, conjugate: bool) -> Result<Vec<Tensor>> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let shape = broadcast_shape(&[a.shape(), b.shape()])?;
    let all = |t: &Tensor| {
        let v = f64s(t);
        match broadcast_positions(t.shape(), &shape) {
            Some(p) => p.into_iter().map(|i| v[i]).collect(),
            None => v,
        }
    };
    let sign = if conjugate { -1.0 } else { 1.0 };
    let (u, v) = (all(a), all(b));
    let pairs = u.chunks(2).zip(v.chunks(2));
    let y: Vec<f64> =
        pairs.flat_map(|(u, v)| [u[0] * v[0] - sign * u[1] * v[1], u[1] * v[0] + sign * u[0] * v[1]]).collect();
    Ok(vec![from_f64s(a.dtype(), &shape, &y)])
}

/// Axis, size and step of UnfoldTensor.
fn unfolding(attrs: &crate::attrs::Attrs) -> (i64, i64, i64) {
    let n = |slot: usize, usual: i64| attrs.int(slot).unwrap_or(usual);
    (n(0, -1), n(1, 0), n(2, 1))
}

fn infer_unfold(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let (axis, size, step) = unfolding(c.attrs);
    if size < 1 || step < 1 {
        return Err(c.error(ErrorKind::Shape, format!("UnfoldTensor: size={size} and step={step} are positive")));
    }
    let Some(mut s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if s.is_empty() {
        return Err(c.error(ErrorKind::Shape, "UnfoldTensor: a scalar has no axis"));
    }
    let axis = c.axis(axis, s.len())?;
    let (size, step, one) = (c.dims.constant(size), c.dims.constant(step), c.dims.constant(1));
    c.require_le(size, s[axis], "UnfoldTensor: a slice is no longer than the axis");
    let room = c.dims.sub(s[axis], size);
    let more = c.dims.floordiv(room, step);
    s[axis] = c.dims.add(more, one);
    s.push(size);
    c.set(0, dtype, s);
    Ok(())
}

fn expand_unfold(x: &mut Expansion) -> Result<Vec<Value>> {
    let data = x.need(0)?;
    let rank = x.tensor(data)?.1.len();
    let (axis, size, step) = unfolding(x.attrs());
    let axis = i64::try_from(checked_axis(axis, rank)).unwrap_or(0);
    let rank = i64::try_from(rank).unwrap_or(0);
    let n = x.extent(data, axis);
    let (wide, one, by) = (x.ints(&[size]), x.ints(&[1]), x.ints(&[step]));
    let n = x.op("Sub", &[n, wide], &[]);
    let n = x.op("Div", &[n, by], &[]);
    let n = x.op("Add", &[n, one], &[]);
    let starts = x.count_to(n);
    let starts = x.op("Mul", &[starts, by], &[]);
    let starts = x.unsqueeze(starts, &[1]);
    let within = x.count_to(wide);
    let places = x.op("Add", &[starts, within], &[]);
    let y = x.op("Gather", &[data, places], &[("axis", Attr::Int(axis))]);
    let perm: Vec<i64> = (0..=axis).chain(axis + 2..=rank).chain([axis + 1]).collect();
    Ok(vec![x.transpose(y, &perm)])
}

fn unfold_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let (axis, size, step) = unfolding(c.attrs);
    let (axis, shape) = (checked_axis(axis, x.shape().len()), x.shape());
    let [size, step] = [size, step].map(|n| usize::try_from(n).unwrap_or(1));
    let Some(room) = shape[axis].checked_sub(size) else {
        return Err(Diagnostic::new(ErrorKind::Shape, "UnfoldTensor: a slice is no longer than the axis"));
    };
    let n = room / step + 1;
    let mut parts = Vec::new();
    for k in 0..size {
        let at: Vec<i64> = (0..n).filter_map(|i| i64::try_from(i * step + k).ok()).collect();
        let part = movement::gather(x, &Tensor::from_i64(&[n], &at), axis)?;
        let wide = [part.shape(), &[1]].concat();
        parts.push(part.reshaped(&wide));
    }
    let parts: Vec<&Tensor> = parts.iter().collect();
    Ok(vec![movement::concat(&parts, shape.len())?])
}

fn infer_gated(c: &mut InferCtx) -> Result<()> {
    if c.has(3) {
        let e = c.error(ErrorKind::Unsupported, "GatedAdd: gate_weight is not supported");
        return Err(e.help("project the gate with MatMul and Sigmoid before the node"));
    }
    c.set_type(0, c.ty(0).clone());
    let Some(s) = c.shape(0) else { return Ok(()) };
    let one = c.dims.constant(1);
    for i in [1, 2] {
        let Some(t) = c.shape(i) else { continue };
        if t.len() != s.len() || s.is_empty() {
            let text = format!("GatedAdd: {} has {} axes, X {}", c.def.inputs[i].name, t.len(), s.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
        let mut wanted = s.clone();
        if i == 2 {
            wanted[s.len() - 1] = one;
        }
        let what =
            format!("{} has the extents of X{}", c.def.inputs[i].name, if i == 2 { ", the last of 1" } else { "" });
        t.iter().zip(&wanted).try_for_each(|(&a, &b)| c.require_eq(a, b, &what))?;
    }
    Ok(())
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // C[m, k] = the distance of A[m] from B[k]
    OpDef {
        name: "CDist",
        domain: MICROSOFT,
        inputs: &[req("A", "T"), req("B", "T")],
        outputs: &[req("C", "T")],
        attrs: &[attr("metric", AttrKind::Str("sqeuclidean"))],
        dtypes: &[("T", &[F32, F64])],
        infer: infer_distances,
        reference: Some(distances_ref),
        lower: &[Expand(expand_distances)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[3,5];[4,5]", "[3,5];[4,5] metric=euclidean", "[0,5];[4,5]", "[2,0];[3,0]"],
        ..ROW
    },
    // C = A · B, of numbers whose parts lie along the last axis
    OpDef {
        name: "ComplexMul",
        domain: MICROSOFT,
        inputs: &[req("A", "T"), req("B", "T")],
        outputs: &[req("C", "T")],
        dtypes: &[T],
        infer: infer_complex,
        reference: Some(|c| complex_ref(c, false)),
        lower: &[Expand(|x| expand_complex(x, false))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[3,4,2];[3,4,2]", "[3,4,2];[4,2]", "[0,2];[1,2]"],
        ..ROW
    },
    // C = A · conjugate of B
    OpDef {
        name: "ComplexMulConj",
        domain: MICROSOFT,
        inputs: &[req("A", "T"), req("B", "T")],
        outputs: &[req("C", "T")],
        dtypes: &[T],
        infer: infer_complex,
        reference: Some(|c| complex_ref(c, true)),
        lower: &[Expand(|x| expand_complex(x, true))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[3,4,2];[3,4,2]", "[1,2];[3,4,2]"],
        ..ROW
    },
    // Slices of `size` elements along an axis, `step` apart, each along a new last axis
    OpDef {
        name: "UnfoldTensor",
        domain: MICROSOFT,
        inputs: &[req("input", "T")],
        outputs: &[req("output", "T")],
        attrs: &[attr("dim", AttrKind::Int(-1)), attr("size", AttrKind::IntReq), attr("step", AttrKind::Int(1))],
        dtypes: &[("T", PLAIN)],
        infer: infer_unfold,
        reference: Some(unfold_ref),
        lower: &[Expand(expand_unfold)],
        cases: &["[2,7] size=3", "[2,7,3] dim=1 size=2 step=2", "[5] dim=0 size=5 step=3"],
        ..ROW
    },
    // output = X + Y · gate, of one number for each row
    OpDef {
        name: "GatedAdd",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("Y", "T"), req("gate", "T"), opt("gate_weight", "T")],
        outputs: &[req("output", "T")],
        dtypes: &[("T", &[F32, F16, BF16])],
        infer: infer_gated,
        reference: Some(|c| {
            let scaled = e::mul(c.input(1)?, c.input(2)?)?;
            let sum = e::add(&rounded(c.input(0)?, F64), &rounded(&scaled, F64))?;
            Ok(vec![rounded(&sum, c.input(0)?.dtype())])
        }),
        lower: &[Expand(|x| {
            let (a, b, gate) = (x.need(0)?, x.need(1)?, x.need(2)?);
            let scaled = x.op("Mul", &[b, gate], &[]);
            Ok(vec![x.op("Add", &[a, scaled], &[])])
        })],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,4];[2,3,4];[2,3,1]", "[0,4];[0,4];[0,1]"],
        ..ROW
    },
];
