//! Rows of ops that move elements by position: transpose, concatenation, slices, tiles, padding.

use super::extents::{choose, clamp, is_axis, slice_axis, slice_dims};
use super::loops::{Builder, outer};
use super::row::{ANY, MOVES, PLAIN, ROW};
use super::run_axes::{RunAxes, stay_small};
use super::shape::{distinct_axes, extents};
use crate::lowering::{Candidate, NodeCtx, Part, Plan, Refusal, ViewOp};
use crate::nest::{BinOp, Coord, ExprId, Nest};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, attr, opt, req, var};
use crate::ty::Shape;
use reference::movement::{self, PadMode};
use tensor::dims::Proof;
use tensor::{DType, DType::*, Diagnostic, DimId, DimPool, ErrorKind, Result, Tensor};

const T: (&str, &[DType]) = ("T", ANY);
const I: (&str, &[DType]) = ("I", &[I64]);
const IND: (&str, &[DType]) = ("Tind", &[I32, I64]);

const SPLIT: OpDef = OpDef {
    name: "Split",
    traits: MOVES,
    outputs: &[var("outputs", "T")],
    dtypes: &[T, I],
    infer: split_infer,
    reference: Some(split_ref),
    lower: &[Candidate::View(split_view)],
    cases: &["[6,2] outs=3", "[7];i64[2]{3,4} outs=2", "[2,4] axis=-1 outs=2"],
    ..ROW
};
const SLICE: OpDef = OpDef {
    name: "Slice",
    traits: MOVES,
    outputs: &[req("output", "T")],
    dtypes: &[T, IND],
    infer: slice_infer,
    reference: Some(slice_ref),
    lower: &[Candidate::View(slice_view)],
    cases: &[
        "[5,4];i64[1]{1};i64[1]{-1};i64[1]{0}",
        "[5];i64[1]{-1};i64[1]{-100};i64[1]{0};i64[1]{-2}",
        "[5,6];i64[2]{1,-3};i64[2]{1000,2147483647}",
        "[6];i32[1]{4};i32[1]{1};i32[1]{0};i32[1]{-1}",
        "[0,4];i64[1]{-1};i64[1]{-9};i64[1]{0};i64[1]{-1}",
        "[7];i64[1]{1};i64[1]{7};i64[1]{-1};i64[1]{3}",
    ],
    ..ROW
};
pub(super) const PAD: OpDef = OpDef {
    name: "Pad",
    outputs: &[req("output", "T")],
    dtypes: &[("T", PLAIN), IND],
    infer: pad_infer,
    reference: Some(pad_ref),
    lower: &[Candidate::Loops(pad_loops)],
    cases: &[
        "[3,4];i64[4]{0,1,2,0}",
        "[3,4];i64[4]{0,-1,0,2}",
        "[3,4];i64[4]{1,-1,-2,2};[]{1}",
        "[4];i64[2]{2,3} mode=reflect",
        "[6];i64[2]{-2,3} mode=reflect",
        "[2];i64[2]{3,3} mode=edge",
    ],
    ..ROW
};
const PAD_INPUTS: &[crate::op::Param] =
    &[req("data", "T"), req("pads", "I64"), opt("constant_value", "T"), opt("axes", "Tind")];

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        name: "Transpose",
        traits: MOVES,
        inputs: &[req("data", "T")],
        outputs: &[req("transposed", "T")],
        attrs: &[attr("perm", AttrKind::Ints)],
        dtypes: &[T],
        infer: |c| {
            let Some(s) = c.shape(0) else {
                match c.attrs.ints(0).map(|p| p.len()) {
                    Some(n) => {
                        let d = c.unknown_extents(n);
                        c.set(0, c.dtype(0)?, d);
                    }
                    None => c.set_unranked(0, c.dtype(0)?),
                }
                return Ok(());
            };
            let perm = match c.attrs.ints(0) {
                Some(p) => {
                    let perm = c.axes(p, s.len())?;
                    if perm.len() != s.len() || p.iter().any(|&a| a < 0) {
                        let text = format!("Transpose: {p:?} is no permutation of {} axes", s.len());
                        return Err(c.error(ErrorKind::Shape, text));
                    }
                    perm
                }
                None => (0..s.len()).rev().collect(),
            };
            c.set(0, c.dtype(0)?, perm.iter().map(|&p| s[p]));
            if let Some(v) = c.values(0) {
                c.set_values(0, v);
            }
            Ok(())
        },
        reference: Some(|c| {
            let x = c.input(0)?;
            Ok(vec![movement::transpose(x, &perm(c.attrs.ints(0), x.shape().len()))?])
        }),
        lower: &[Candidate::View(|c| {
            let rank = c.need(0)?.shape.len();
            Ok(ViewOp::Permute(perm(c.attrs.ints(0), rank).into_iter().collect()))
        })],
        cases: &["[2,3,4]", "[2,3,4] perm=[1,2,0]", "[]"],
        ..ROW
    },
    OpDef {
        name: "Concat",
        since: 4,
        inputs: &[var("inputs", "T")],
        outputs: &[req("concat_result", "T")],
        attrs: &[attr("axis", AttrKind::IntReq)],
        dtypes: &[T],
        infer: concat_infer,
        reference: Some(|c| {
            let xs: Vec<&Tensor> = c.ins.iter().flatten().collect();
            let rank = xs.first().map_or(0, |x| x.shape().len()) as i64;
            let axis = c.attrs.int(0).unwrap_or(0);
            Ok(vec![movement::concat(&xs, if axis < 0 { axis + rank } else { axis } as usize)?])
        }),
        lower: &[Candidate::Assemble(concat_parts), Candidate::Loops(concat_loops)],
        cases: &["[2,3];[4,3] axis=0", "[2,0];[2,5];[2,1] axis=-1"],
        ..ROW
    },
    OpDef {
        since: 2,
        until: 12,
        inputs: &[req("input", "T")],
        attrs: &[attr("axis", AttrKind::Int(0)), attr("split", AttrKind::Ints)],
        cases: &["[6,2] outs=3", "[7,2] split=[3,4] outs=2"],
        ..SPLIT
    },
    OpDef {
        since: 13,
        until: 17,
        inputs: &[req("input", "T"), opt("split", "I")],
        attrs: &[attr("axis", AttrKind::Int(0))],
        ..SPLIT
    },
    OpDef {
        since: 18,
        inputs: &[req("input", "T"), opt("split", "I")],
        attrs: &[attr("axis", AttrKind::Int(0)), attr("num_outputs", AttrKind::IntOpt)],
        cases: &["[7] num_outputs=3 outs=3", "[7];i64[2]{3,4} outs=2"],
        ..SPLIT
    },
    OpDef {
        until: 9,
        inputs: &[req("data", "T")],
        attrs: &[attr("starts", AttrKind::Ints), attr("ends", AttrKind::Ints), attr("axes", AttrKind::Ints)],
        cases: &["[5,4] starts=[1] ends=[-1] axes=[0]", "[5,4] starts=[0,-2] ends=[3,9]"],
        ..SLICE
    },
    OpDef {
        since: 10,
        inputs: &[
            req("data", "T"),
            req("starts", "Tind"),
            req("ends", "Tind"),
            opt("axes", "Tind"),
            opt("steps", "Tind"),
        ],
        ..SLICE
    },
    OpDef {
        name: "Tile",
        traits: MOVES,
        since: 6,
        inputs: &[req("input", "T"), req("repeats", "I")],
        outputs: &[req("output", "T")],
        dtypes: &[("T", ANY), I],
        infer: |c| {
            let Some(s) = c.shape(0) else {
                c.set_unranked(0, c.dtype(0)?);
                return Ok(());
            };
            let shape: Shape = match c.need_values(1) {
                Some(r) if r.len() != s.len() => {
                    let text = format!("Tile: {} repeats for {} axes", r.len(), s.len());
                    return Err(c.error(ErrorKind::Shape, text));
                }
                Some(r) => {
                    let r: Vec<DimId> = r.iter().map(|&d| c.extent(d)).collect::<Result<_>>()?;
                    s.iter().zip(r).map(|(&d, r)| c.dims.mul(d, r)).collect()
                }
                None => c.unknown_extents(s.len()),
            };
            c.set(0, c.dtype(0)?, shape);
            Ok(())
        },
        reference: Some(|c| Ok(vec![movement::tile(c.input(0)?, &extents(c.input(1)?)?)?])),
        lower: &[Candidate::Loops(|c| {
            let (x, y) = (c.need(0)?, c.outs[0].clone());
            let mut b = Builder::over_result(c)?;
            let mut coords = Vec::new();
            for (i, (&d, &e)) in x.shape.iter().zip(&y.shape).enumerate() {
                coords.push(if d == e {
                    b.along(outer(i))
                } else {
                    let (o, n) = (b.outer(i), b.dim(d));
                    let m = b.bin(BinOp::Rem, o, n);
                    b.computed(m)
                });
            }
            let e = b.load(0, coords)?;
            Ok(b.store(e))
        })],
        cases: &["[2,3];i64[2]{1,2}", "[2];i64[1]{0}", "[2,1,3];i64[3]{2,3,2}"],
        ..ROW
    },
    OpDef {
        since: 2,
        until: 10,
        inputs: &[req("data", "T")],
        attrs: &[
            attr("mode", AttrKind::Str("constant")),
            attr("pads", AttrKind::Ints),
            attr("value", AttrKind::Float(0.0)),
        ],
        dtypes: &[("T", super::row::FLOATS)],
        cases: &["[3,4] pads=[0,1,2,0] value=0.5", "[4] pads=[1,1] mode=reflect"],
        ..PAD
    },
    OpDef {
        since: 11,
        until: 17,
        inputs: &[req("data", "T"), req("pads", "I"), opt("constant_value", "T")],
        attrs: &[attr("mode", AttrKind::Str("constant"))],
        dtypes: &[("T", PLAIN), I],
        ..PAD
    },
    OpDef {
        since: 18,
        inputs: PAD_INPUTS,
        attrs: &[attr("mode", AttrKind::Str("constant"))],
        dtypes: &[("T", PLAIN), ("I64", &[I64]), IND],
        cases: &["[3,4];i64[2]{1,1};_;i64[1]{-1}", "[3];i64[2]{4,5} mode=wrap", "[3,4];i64[4]{0,1,2,0}"],
        ..PAD
    },
];

/// The permutation of Transpose; reversed by default.
fn perm(given: Option<&[i64]>, rank: usize) -> Vec<usize> {
    match given {
        Some(p) => p.iter().map(|&p| p as usize).collect(),
        None => (0..rank).rev().collect(),
    }
}

/// An attribute axis of a row whose rule has checked it.
pub(crate) fn checked_axis(axis: i64, rank: usize) -> usize {
    (if axis < 0 { axis + rank as i64 } else { axis }) as usize
}

fn concat_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let shapes: Vec<Shape> = (0..c.ins.len()).filter_map(|i| c.shape(i)).collect();
    let Some(first) = shapes.first().cloned() else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    if let Some(s) = shapes.iter().find(|s| s.len() != first.len()) {
        let text = format!("Concat: operands of {} and {} axes", first.len(), s.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    if let Some(d) = (0..c.ins.len()).filter_map(|i| c.ty(i).dtype()).find(|d| *d != dtype) {
        return Err(c.error(ErrorKind::Type, format!("Concat: operands of types {dtype} and {d}")));
    }
    let axis = c.axis(c.attrs.int(0).unwrap_or(0), first.len())?;
    if first.is_empty() {
        return Err(c.error(ErrorKind::Shape, "Concat needs operands of at least 1 axis"));
    }
    let (mut out, zero) = (first.clone(), c.dims.constant(0));
    out[axis] = zero;
    for s in &shapes {
        for a in 0..out.len() {
            if a == axis {
                out[a] = c.dims.add(out[a], s[a]);
            } else if out[a] != s[a] {
                c.require_eq(out[a], s[a], &format!("operands must agree along axis {a}"))?;
                if c.dims.as_const(s[a]).is_some() {
                    out[a] = s[a];
                }
            }
        }
    }
    if shapes.len() < c.ins.len() {
        out = c.unknown_extents(first.len());
    }
    c.set(0, dtype, out);
    let values: Option<Vec<Shape>> = (0..c.ins.len()).map(|i| c.values(i)).collect();
    if let Some(v) = values.filter(|_| first.len() == 1) {
        c.set_values(0, v.into_iter().flatten());
    }
    Ok(())
}

fn concat_parts(c: &mut NodeCtx) -> Plan<Vec<Part>> {
    let rank = c.outs[0].shape.len();
    let axis = checked_axis(c.attrs.int(0).unwrap_or(0), rank);
    let zero = c.dims.constant(0);
    let (mut at, mut parts) = (zero, Vec::new());
    for i in 0..c.ins.len() {
        let x = c.need(i)?;
        let start = (0..rank).map(|a| if a == axis { at } else { zero }).collect();
        parts.push(Part { operand: i, start });
        at = c.dims.add(at, x.shape[axis]);
    }
    Ok(parts)
}

/// Every result element looks for the operand it is of: for packed elements, which parts of a buffer cannot be written with.
fn concat_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let rank = c.outs[0].shape.len();
    let axis = checked_axis(c.attrs.int(0).unwrap_or(0), rank);
    let n = c.ins.len();
    let extents = (0..n).map(|i| Ok(c.need(i)?.shape[axis])).collect::<Plan<Vec<_>>>()?;
    let mut b = Builder::over_result(c)?;
    let (mut from, t) = (b.c.dims.constant(0), b.dtype(0));
    let (mut found, o) = (b.nest.num(0.0, t), b.outer(axis));
    for (i, d) in extents.into_iter().enumerate() {
        let to = b.c.dims.add(from, d);
        let (first, end) = (b.dim(from), b.dim(to));
        let (after, before) = (b.bin(BinOp::Ge, o, first), b.bin(BinOp::Lt, o, end));
        let inside = b.bin(BinOp::And, after, before);
        let mut at: Vec<Coord> = (0..rank).map(|a| b.along(outer(a))).collect();
        let (zero, one) = (b.c.dims.constant(0), b.c.dims.constant(1));
        let start = b.c.dims.sub(zero, from);
        at[axis] = b.affine(start, one, outer(axis));
        found = b.load_if(i, at, Some(inside), found)?;
        from = to;
    }
    Ok(b.store(found))
}

fn split_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(s) = c.shape(0) else {
        (0..c.n_outs).for_each(|i| c.set_unranked(i, dtype));
        return Ok(());
    };
    let axis = c.axis(c.attrs.int(0).unwrap_or(0), s.len())?;
    if s.is_empty() {
        return Err(c.error(ErrorKind::Shape, "Split needs an operand of at least 1 axis"));
    }
    let n = s[axis];
    let by_attr: Option<Shape> = c.attrs.ints(1).map(|v| v.iter().map(|&k| c.dims.constant(k)).collect());
    let sizes: Shape = if let Some(v) = by_attr.or_else(|| c.need_values(1)) {
        if v.len() != c.n_outs {
            return Err(c.error(ErrorKind::Shape, format!("Split: {} sizes for {} results", v.len(), c.n_outs)));
        }
        let v: Shape = v.iter().map(|&d| c.extent(d)).collect::<Result<_>>()?;
        let sum = v.iter().copied().reduce(|a, b| c.dims.add(a, b)).unwrap_or(n);
        c.require_eq(sum, n, "the sizes must add up to the extent")?;
        v
    } else if c.has(1) {
        c.unknown_extents(c.n_outs)
    } else {
        let k = c.dims.constant(c.n_outs as i64);
        if c.def.since >= 18 {
            if c.attrs.int(1).is_some_and(|k| k != c.n_outs as i64) {
                return Err(c.error(ErrorKind::Shape, "Split: num_outputs is not the number of results"));
            }
            // Equal chunks, rounded up; the last is what remains.
            let chunk = c.dims.ceildiv(n, k);
            let before = c.dims.constant(c.n_outs as i64 - 1);
            let taken = c.dims.mul(chunk, before);
            let last = c.dims.sub(n, taken);
            let last = c.extent(last)?;
            (0..c.n_outs).map(|i| if i + 1 == c.n_outs { last } else { chunk }).collect()
        } else {
            let chunk = c.dims.floordiv(n, k);
            let all = c.dims.mul(chunk, k);
            c.require_eq(all, n, "the extent must be a multiple of the number of results")?;
            Shape::from_elem(chunk, c.n_outs)
        }
    };
    let values = c.values(0);
    let mut at = Some(0usize);
    for (i, &d) in sizes.iter().enumerate() {
        let mut out = s.clone();
        out[axis] = d;
        c.set(i, dtype, out);
        let len = c.dims.as_const(d).and_then(|d| usize::try_from(d).ok());
        if let (Some(v), Some(start), Some(len)) = (&values, at, len)
            && let Some(part) = v.get(start..start + len)
        {
            c.set_values(i, part.iter().copied());
        }
        at = at.zip(len).map(|(a, l)| a + l);
    }
    Ok(())
}

fn split_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let axis = checked_axis(c.attrs.int(0).unwrap_or(0), x.shape().len());
    let d = x.shape()[axis];
    let given = c.opt(1).map(extents).transpose()?;
    let given = given.or_else(|| c.attrs.ints(1).map(|v| v.iter().map(|&d| d as usize).collect()));
    if given.is_none() && c.def.since < 18 && !d.is_multiple_of(c.n_outs) {
        let text = format!("Split: an extent of {d} has no {} equal parts", c.n_outs);
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let sizes = given.unwrap_or_else(|| {
        let chunk = d.div_ceil(c.n_outs);
        (0..c.n_outs).map(|i| chunk.min(d.saturating_sub(i * chunk))).collect()
    });
    movement::split(x, axis, &sizes)
}

fn split_view(c: &mut NodeCtx) -> Plan<ViewOp> {
    let rank = c.need(0)?.shape.len();
    let axis = checked_axis(c.attrs.int(0).unwrap_or(0), rank);
    let zero = c.dims.constant(0);
    let (mut at, mut all) = (zero, Vec::new());
    for i in 0..c.outs.len() {
        all.push((0..rank).map(|a| if a == axis { at } else { zero }).collect());
        at = c.dims.add(at, c.outs[i].shape[axis]);
    }
    Ok(ViewOp::Parts(all))
}

/// The lists of a Slice, all of the same length.
struct Slices {
    starts: Shape,
    ends: Shape,
    axes: Shape,
    steps: Shape,
}

impl Slices {
    /// Absent axes are the first ones, absent steps 1.
    fn new(p: &mut DimPool, starts: Shape, ends: Shape, axes: Option<Shape>, steps: Option<Shape>) -> Slices {
        let one = p.constant(1);
        let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).map(|k| p.constant(k)).collect());
        let steps = steps.unwrap_or_else(|| Shape::from_elem(one, starts.len()));
        Slices { starts, ends, axes, steps }
    }
    /// Start, end and step along each axis of `shape`; `None` where nothing is cut. Where only a run knows which axes are meant, an
    /// axis that is not is cut from 0 to its end.
    fn by_axis(&self, p: &mut DimPool, shape: &[DimId]) -> Vec<Option<[DimId; 3]>> {
        let rank = shape.len() as i64;
        let known: Option<Vec<i64>> = self.axes.iter().map(|&a| p.as_const(a)).collect();
        let mut out = vec![None; shape.len()];
        if let Some(axes) = known {
            for (k, a) in axes.into_iter().enumerate() {
                if let Some(o) = out.get_mut(checked_axis(a, shape.len())) {
                    *o = Some([self.starts[k], self.ends[k], self.steps[k]]);
                }
            }
            return out;
        }
        let (zero, one) = (p.constant(0), p.constant(1));
        // No axis is as long: the difference to its extent cannot overflow.
        let (least, most) = (p.constant(-(1 << 48)), p.constant(1 << 48));
        for ((axis, &n), o) in (0i64..).zip(shape).zip(&mut out) {
            let mut cut = [zero, n, one];
            for (k, &a) in self.axes.iter().enumerate() {
                let is = is_axis(p, a, axis, rank);
                for (c, v) in cut.iter_mut().zip([self.starts[k], self.ends[k], self.steps[k]]) {
                    let v = clamp(p, v, least, most);
                    *c = choose(p, is, *c, v);
                }
            }
            *o = Some(cut);
        }
        out
    }
}

fn slice_params(c: &mut InferCtx, rank: usize) -> Result<Option<Slices>> {
    let (starts, ends, axes, steps) = if c.def.since < 10 {
        let mut list = |i: usize| -> Option<Shape> {
            let v = c.attrs.ints(i)?.to_vec();
            Some(v.into_iter().map(|k| c.dims.constant(k)).collect())
        };
        (list(0), list(1), list(2), None)
    } else {
        if c.has(3) && c.const_ints(3).is_none() && c.list_len(3).is_none_or(|n| !stay_small(n, rank)) {
            // Nodes before it make lists of all axes (`crate::expand`).
            [1, 2, 4].into_iter().try_for_each(|i| same_length(c, i, 3))?;
            return Ok(None);
        }
        let (axes, steps) = (c.need_values(3), c.need_values(4));
        if (axes.is_none() && c.has(3)) || (steps.is_none() && c.has(4)) {
            return Ok(None);
        }
        (c.need_values(1), c.need_values(2), axes, steps)
    };
    let (Some(starts), Some(ends)) = (starts, ends) else { return Ok(None) };
    let p = Slices::new(c.dims, starts, ends, axes, steps);
    if p.starts.len() != p.ends.len() || p.starts.len() != p.axes.len() || p.starts.len() != p.steps.len() {
        let [a, b, d, e] = [&p.starts, &p.ends, &p.axes, &p.steps].map(|v| v.len());
        return Err(c.error(ErrorKind::Shape, format!("Slice: {a} starts, {b} ends, {d} axes, {e} steps")));
    }
    match p.axes.iter().map(|&a| c.dims.as_const(a)).collect::<Option<Vec<i64>>>() {
        Some(axes) => {
            c.axes(&axes, rank)?;
        }
        None => RunAxes::new(c.dims, &p.axes, rank).check(c, &p.axes)?,
    }
    Ok(Some(p))
}

/// Requires two lists, where present, to have as many elements.
fn same_length(c: &mut InferCtx, a: usize, b: usize) -> Result<()> {
    match (c.shape(a).as_deref(), c.shape(b).as_deref()) {
        (Some([m]), Some([n])) => c.require_eq(*m, *n, "the lists must have as many elements as there are axes"),
        _ => Ok(()),
    }
}

fn slice_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let Some(p) = slice_params(c, s.len())? else {
        let d = c.unknown_extents(s.len());
        c.set(0, dtype, d);
        return Ok(());
    };
    let mut out = s.clone();
    let mut picked = None;
    for (a, cut) in p.by_axis(c.dims, &s).into_iter().enumerate() {
        let Some([start, end, step]) = cut else { continue };
        let (first, len) = slice_axis(c, s[a], start, end, step)?;
        out[a] = len;
        picked = Some((first, step));
    }
    c.set(0, dtype, out.clone());
    let first = picked.map_or(Some((0, 1)), |(f, s)| Some((c.dims.as_const(f)?, c.dims.as_const(s)?)));
    if let (Some(v), Some((first, step)), [n]) = (c.values(0), first, out.as_slice())
        && let Some(n) = c.dims.as_const(*n)
    {
        let all: Option<Vec<DimId>> = (0..n).map(|i| v.get(usize::try_from(first + i * step).ok()?).copied()).collect();
        if let Some(all) = all {
            c.set_values(0, all);
        }
    }
    Ok(())
}

fn slice_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let list = |operand: usize, slot: usize| {
        c.opt(operand).map(|t| t.to_i64_vec()).or_else(|| c.attrs.ints(slot).map(|a| a.to_vec()))
    };
    let starts = list(1, 0).unwrap_or_default();
    let ends = list(2, 1).unwrap_or_default();
    let axes = list(3, 2).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = list(4, 3).unwrap_or_else(|| vec![1; starts.len()]);
    let axes = distinct_axes(c.def, &axes, x.shape().len())?;
    if ends.len() != starts.len() || steps.len() != starts.len() {
        return Err(Diagnostic::new(ErrorKind::Shape, "Slice: lists of different lengths"));
    }
    Ok(vec![movement::slice(x, &axes, &starts, &ends, &steps)?])
}

fn slice_view(c: &mut NodeCtx) -> Plan<ViewOp> {
    let x = c.need(0)?;
    let list = |c: &mut NodeCtx, operand: usize, slot: usize| -> Plan<Option<Shape>> {
        if !c.has(operand) {
            return Ok(c.attrs.ints(slot).map(|v| v.to_vec()).map(|v| v.iter().map(|&k| c.dims.constant(k)).collect()));
        }
        c.need(operand)?.values.map(Some).ok_or_else(|| Refusal(format!("elements of operand {operand} are not known")))
    };
    let (starts, ends) = (list(c, 1, 0)?.ok_or("no starts")?, list(c, 2, 1)?.ok_or("no ends")?);
    let (axes, steps) = (list(c, 3, 2)?, list(c, 4, 3)?);
    let p = Slices::new(c.dims, starts, ends, axes, steps);
    let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
    let cuts = p.by_axis(c.dims, &x.shape);
    let out = x.shape.iter().zip(cuts).map(|(&n, cut)| match cut {
        Some([start, end, step]) => (slice_dims(c.dims, n, start, end, step).0, step),
        None => (zero, one),
    });
    let out = out.collect();
    Ok(ViewOp::Slice(out))
}

/// Pads of each axis (begin, end) and the axes they are for.
fn pad_params(c: &mut InferCtx, rank: usize) -> Result<Option<(Vec<usize>, Shape)>> {
    if c.has(3) && c.const_ints(3).is_none() {
        // Nodes before it make a list of all axes (`crate::expand`).
        if let (Some([n]), Some([axes])) = (c.shape(1).as_deref(), c.shape(3).as_deref()) {
            let both = c.dims.add(*axes, *axes);
            c.require_eq(*n, both, "there must be two pads for each axis")?;
        }
        return Ok(None);
    }
    let pads: Option<Shape> = if c.def.since < 11 {
        let v = c.attrs.ints(1).unwrap_or(&[]).to_vec();
        Some(v.into_iter().map(|k| c.dims.constant(k)).collect())
    } else {
        c.need_values(1)
    };
    let axes = c.const_list(3, "axes")?;
    let axes = c.axes(&axes.unwrap_or_else(|| (0..rank as i64).collect()), rank)?;
    let Some(pads) = pads else { return Ok(None) };
    if pads.len() != 2 * axes.len() {
        return Err(c.error(ErrorKind::Shape, format!("Pad: {} pads for {} axes", pads.len(), axes.len())));
    }
    Ok(Some((axes, pads)))
}

fn pad_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let mode = c.attrs.str(0).unwrap_or("constant");
    if PadMode::from_name(mode).is_none() || (mode == "wrap" && c.def.since < 18) {
        return Err(c.error(ErrorKind::Unsupported, format!("Pad: mode {mode:?} is not one of this version's")));
    }
    c.require_single(2, "the value")?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let Some((axes, pads)) = pad_params(c, s.len())? else {
        let d = c.unknown_extents(s.len());
        c.set(0, dtype, d);
        return Ok(());
    };
    let mut out = s.clone();
    for (k, &a) in axes.iter().enumerate() {
        let both = c.dims.add(pads[k], pads[k + axes.len()]);
        let d = c.dims.add(s[a], both);
        out[a] = c.extent(d)?;
        require_repeatable(c, mode, (a, s[a]), (pads[k], pads[k + axes.len()]))?;
    }
    c.set(0, dtype, out);
    Ok(())
}

/// What negative pads leave of an axis of extent `n`: its first element and how many there are.
fn kept(p: &mut DimPool, n: DimId, (begin, end): (DimId, DimId)) -> (DimId, DimId) {
    let zero = p.constant(0);
    let (front, back) = (p.min(begin, zero), p.min(end, zero));
    let removed = p.add(front, back);
    (p.sub(zero, front), p.add(n, removed))
}

/// Elements that are repeated must be there: at least one, and for `reflect` as many as are added beside the edge.
fn require_repeatable(
    c: &mut InferCtx,
    mode: &str,
    (axis, n): (usize, DimId),
    (begin, end): (DimId, DimId),
) -> Result<()> {
    let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
    if mode == "constant" || (begin, end) == (zero, zero) {
        return Ok(());
    }
    let needed = if mode == "reflect" {
        let added = c.dims.max(begin, end);
        let added = c.dims.max(added, zero);
        c.dims.add(added, one)
    } else {
        one
    };
    let (_, left) = kept(c.dims, n, (begin, end));
    if c.dims.prove_le(needed, left) == Proof::No {
        let [needed, left] = [needed, left].map(|d| c.dims.display(d).to_string());
        let text = format!("Pad: mode {mode:?} needs {needed} elements along axis {axis}, the pads leave {left}");
        return Err(c.error(ErrorKind::Shape, text).help("pad by less, or with a constant"));
    }
    c.require_le(needed, left, &format!("Pad: elements that mode {mode:?} repeats must be left along axis {axis}"));
    Ok(())
}

fn pad_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let rank = x.shape().len();
    let pads = c.opt(1).map(|t| t.to_i64_vec()).or_else(|| c.attrs.ints(1).map(|p| p.to_vec())).unwrap_or_default();
    let axes = c.opt(3).map(|t| t.to_i64_vec()).unwrap_or_else(|| (0..rank as i64).collect());
    let (mut begin, mut end) = (vec![0; rank], vec![0; rank]);
    for (k, a) in distinct_axes(c.def, &axes, rank)?.into_iter().enumerate() {
        let (Some(&p), Some(&q)) = (pads.get(k), pads.get(k + axes.len())) else {
            return Err(Diagnostic::new(ErrorKind::Shape, format!("Pad: {} pads for {} axes", pads.len(), axes.len())));
        };
        (begin[a], end[a]) = (p, q);
    }
    let mode = PadMode::from_name(c.attrs.str(0).unwrap_or("constant")).unwrap_or(PadMode::Constant);
    let value = match c.opt(2) {
        Some(v) => v.clone(),
        None => Tensor::from_f64_as(x.dtype(), &[], &[c.attrs.float(2).unwrap_or(0.0).into()]),
    };
    Ok(vec![movement::pad(x, &begin, &end, mode, &value)?])
}

/// Every result element reads its source where there is one. Pads of a Pad node are known as dims.
fn pad_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    let rank = x.shape.len();
    let mode = PadMode::from_name(c.attrs.str(0).unwrap_or("constant")).ok_or("unknown mode")?;
    let pads: Shape = match c.ins.get(1).cloned().flatten() {
        Some(p) => p.values.ok_or("pads are not known as dims")?,
        None => c.attrs.ints(1).unwrap_or(&[]).to_vec().into_iter().map(|k| c.dims.constant(k)).collect(),
    };
    let axes: Vec<usize> = match c.ins.get(3).cloned().flatten() {
        Some(a) => {
            let a = a.values.ok_or("axes are not constant")?;
            let a: Option<Vec<i64>> = a.iter().map(|&d| c.dims.as_const(d)).collect();
            a.ok_or("axes are not constant")?.into_iter().map(|a| checked_axis(a, rank)).collect()
        }
        None => (0..rank).collect(),
    };
    let zero = c.dims.constant(0);
    let mut of_axis = vec![(zero, zero); rank];
    axes.iter().enumerate().for_each(|(k, &a)| of_axis[a] = (pads[k], pads[k + axes.len()]));
    let attr_value = c.attrs.float(2);
    let mut b = Builder::over_result(c)?;
    let (mut coords, mut cond): (Vec<_>, Option<ExprId>) = (Vec::new(), None);
    for (a, &(begin, end)) in of_axis.iter().enumerate() {
        let added = b.c.dims.max(begin, end);
        if mode != PadMode::Constant && b.c.dims.prove_le(added, zero) != Proof::Yes {
            coords.push(repeated(&mut b, mode, a, (begin, end)));
            continue;
        }
        let one = b.c.dims.constant(1);
        let offset = b.c.dims.sub(zero, begin);
        coords.push(b.affine(offset, one, outer(a)));
        // Removed elements need no test: only where something is added can the source be missing.
        let [before, after] = [begin, end].map(|pad| b.c.dims.prove_le(pad, zero) != Proof::Yes);
        if before || after {
            let (o, p) = (b.outer(a), b.dim(begin));
            let i = b.bin(BinOp::Sub, o, p);
            let inside = b.within(i, x.shape[a], before, after);
            cond = b.and(cond, inside);
        }
    }
    let t = b.dtype(0);
    let other = match (b.c.has(2), mode) {
        (true, PadMode::Constant) => b.scalar(2)?,
        _ => b.nest.num(attr_value.unwrap_or(0.0).into(), t),
    };
    let e = b.load_if(0, coords, cond, other)?;
    Ok(b.store(e))
}

/// Where along axis `a` the element lies that a padded place of the result repeats: a place among the elements that negative
/// pads leave, after those they remove.
fn repeated(b: &mut Builder, mode: PadMode, a: usize, pads: (DimId, DimId)) -> Coord {
    let n = b.c.ins[0].as_ref().map_or(b.c.outs[0].shape[a], |x| x.shape[a]);
    let (first, left) = kept(b.c.dims, n, pads);
    let zero = b.c.dims.constant(0);
    let before = b.c.dims.max(pads.0, zero);
    let (o, before) = (b.outer(a), b.dim(before));
    let i = b.bin(BinOp::Sub, o, before);
    let (left, k0, k1) = (b.dim(left), b.int(0), b.int(1));
    let last = b.bin(BinOp::Sub, left, k1);
    let abs = |b: &mut Builder, e: ExprId| {
        let minus = b.bin(BinOp::Sub, k0, e);
        b.bin(BinOp::Max, e, minus)
    };
    let e = match mode {
        PadMode::Wrap => b.bin(BinOp::Mod, i, left),
        PadMode::Reflect => {
            // last - |last - |i||: mirrored at 0, then at the last.
            let e = abs(b, i);
            let e = b.bin(BinOp::Sub, last, e);
            let e = abs(b, e);
            b.bin(BinOp::Sub, last, e)
        }
        PadMode::Edge | PadMode::Constant => {
            let e = b.bin(BinOp::Min, i, last);
            b.bin(BinOp::Max, e, k0)
        }
    };
    Coord { offset: first, ..b.computed(e) }
}
