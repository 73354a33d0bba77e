//! Rows of ops that read or write elements by computed indices.

use super::bounds::Indexed;
use super::loops::{Builder, inner, outer};
use super::movement::checked_axis;
use super::row::{ANY, MOVES, NUMS, PLAIN, ROW};
use super::run_axes::RunAxes;
use crate::lowering::{CallSpec, Candidate, IntArg, NodeCtx, Plan, ViewOp};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest, Term};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, attr, req};
use crate::ty::Shape;
use reference::movement::{self, Scatter};
use tensor::dims::{Origin, Proof};
use tensor::{DType, DType::*, Diagnostic, DimId, ErrorKind, Result, Tensor};

const T: (&str, &[DType]) = ("T", ANY);
const TP: (&str, &[DType]) = ("T", PLAIN);
const I: (&str, &[DType]) = ("I", &[I64]);
const IND: (&str, &[DType]) = ("Tind", &[I32, I64]);

pub(super) const GATHER_ND: OpDef = OpDef {
    name: "GatherND",
    traits: MOVES,
    inputs: &[req("data", "T"), req("indices", "I")],
    outputs: &[req("output", "T")],
    dtypes: &[T, I],
    infer: gather_nd_infer,
    reference: Some(|c| {
        let batch = c.attrs.int(0).unwrap_or(0) as usize;
        Ok(vec![movement::gather_nd(c.input(0)?, c.input(1)?, batch)?])
    }),
    lower: &[Candidate::Loops(gather_nd_loops)],
    cases: &["[3,4,2];i64[5,2]{0,1,-1,3}", "[3,4];i64[2,1]{1,-1}"],
    ..ROW
};
const SCATTER_ND: OpDef = OpDef {
    name: "ScatterND",
    inputs: &[req("data", "T"), req("indices", "I"), req("updates", "T")],
    outputs: &[req("output", "T")],
    dtypes: &[TP, I],
    infer: scatter_nd_infer,
    reference: Some(|c| Ok(vec![movement::scatter_nd(c.input(0)?, c.input(1)?, c.input(2)?, how(c.attrs.str(0))?)?])),
    lower: &[Candidate::Loops(scatter_nd_loops)],
    tolerance: super::row::ROUNDED,
    cases: &["[4,3];i64[2,1]{1,-1};[2,3]", "[4,3];i64[5,2]{0,1,2,2,-1};[5]"],
    ..ROW
};
const SCATTER_ELEMENTS: OpDef = OpDef {
    name: "ScatterElements",
    inputs: &[req("data", "T"), req("indices", "Tind"), req("updates", "T")],
    outputs: &[req("output", "T")],
    dtypes: &[TP, IND],
    infer: scatter_elements_infer,
    reference: Some(|c| {
        let axis = checked_axis(c.attrs.int(0).unwrap_or(0), c.input(0)?.shape().len());
        let (x, i, u) = (c.input(0)?, c.input(1)?, c.input(2)?);
        Ok(vec![movement::scatter_elements(x, i, u, axis, how(c.attrs.str(1))?)?])
    }),
    lower: &[Candidate::Loops(scatter_elements_loops)],
    tolerance: super::row::ROUNDED,
    cases: &["[3,4];i64[2,3]{0,2,-1};[2,3] axis=0", "[3,4];i64[3,2]{1,-1,1};[3,2] axis=-1"],
    ..ROW
};
const ONE_HOT: OpDef = OpDef {
    name: "OneHot",
    since: 9,
    inputs: &[req("indices", "T1"), req("depth", "T2"), req("values", "T3")],
    outputs: &[req("output", "T3")],
    attrs: &[attr("axis", AttrKind::Int(-1))],
    dtypes: &[("T1", NUMS), ("T2", NUMS), ("T3", ANY)],
    infer: one_hot_infer,
    reference: Some(|c| {
        let x = c.input(0)?;
        let axis = checked_axis(c.attrs.int(0).unwrap_or(-1), x.shape().len() + 1);
        let depth = movement::single(c.input(1)?, "depth")?.view().i64_at(0).max(0) as usize;
        Ok(vec![movement::one_hot(x, depth, c.input(2)?, axis)?])
    }),
    lower: &[Candidate::Loops(one_hot_loops)],
    cases: &["i64[3]{0,-1,7};i64[]{4};[2]", "i64[2,2]{1,0};i64[]{3};[2] axis=0"],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        name: "Gather",
        traits: MOVES,
        inputs: &[req("data", "T"), req("indices", "Tind")],
        outputs: &[req("output", "T")],
        attrs: &[attr("axis", AttrKind::Int(0))],
        dtypes: &[T, IND],
        infer: gather_infer,
        reference: Some(|c| {
            let axis = checked_axis(c.attrs.int(0).unwrap_or(0), c.input(0)?.shape().len());
            Ok(vec![movement::gather(c.input(0)?, c.input(1)?, axis)?])
        }),
        lower: &[Candidate::View(gather_view), Candidate::Loops(gather_loops)],
        cases: &[
            "[5,3];i64[2]{-1,4}",
            "[5,3];i64[1,1]{-5}",
            "[2,5,3];i64[]{1} axis=1",
            "[4,3];i32[2,2]{0,-1,2,1} axis=-1",
        ],
        ..ROW
    },
    OpDef {
        name: "GatherElements",
        traits: MOVES,
        since: 11,
        inputs: &[req("data", "T"), req("indices", "Tind")],
        outputs: &[req("output", "T")],
        attrs: &[attr("axis", AttrKind::Int(0))],
        dtypes: &[T, IND],
        infer: |c| {
            same_rank(c, 0, 1)?;
            check_elements(c)?;
            match c.shape(1) {
                Some(s) => c.set(0, c.dtype(0)?, s),
                None => c.set_unranked(0, c.dtype(0)?),
            }
            Ok(())
        },
        reference: Some(|c| {
            let axis = checked_axis(c.attrs.int(0).unwrap_or(0), c.input(0)?.shape().len());
            Ok(vec![movement::gather_elements(c.input(0)?, c.input(1)?, axis)?])
        }),
        lower: &[Candidate::Loops(|c| {
            let x = c.need(0)?;
            let axis = checked_axis(c.attrs.int(0).unwrap_or(0), x.shape.len());
            let mut b = Builder::over_result(c)?;
            let mut coords: Vec<Coord> = (0..x.shape.len()).map(|i| b.along(outer(i))).collect();
            let i = b.load(1, coords.clone())?;
            let i = b.index(i, x.shape[axis]);
            coords[axis] = b.computed(i);
            let e = guarded_load(&mut b, 0, coords, x.shape[axis])?;
            Ok(b.store(e))
        })],
        cases: &["[3,4];i64[2,4]{0,2,-1}", "[3,4];i64[3,2]{3,0,-4} axis=1"],
        ..ROW
    },
    OpDef { since: 11, until: 11, ..GATHER_ND },
    OpDef {
        since: 12,
        attrs: &[attr("batch_dims", AttrKind::Int(0))],
        cases: &["[3,4,2];i64[5,2]{0,1,-1,3}", "[2,3,4];i64[2,1]{1,-1} batch_dims=1"],
        ..GATHER_ND
    },
    OpDef { since: 11, until: 15, ..SCATTER_ND },
    OpDef { since: 16, attrs: &[attr("reduction", AttrKind::Str("none"))], ..SCATTER_ND },
    OpDef { name: "Scatter", since: 9, until: 10, attrs: &[attr("axis", AttrKind::Int(0))], ..SCATTER_ELEMENTS },
    OpDef { since: 11, until: 15, attrs: &[attr("axis", AttrKind::Int(0))], ..SCATTER_ELEMENTS },
    OpDef {
        since: 16,
        attrs: &[attr("axis", AttrKind::Int(0)), attr("reduction", AttrKind::Str("none"))],
        ..SCATTER_ELEMENTS
    },
    ONE_HOT,
    OpDef {
        name: "NonZero",
        since: 9,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "I")],
        dtypes: &[("T", PLAIN), I],
        infer: |c| {
            let rank = match c.shape(0) {
                Some(s) => c.dims.constant(s.len() as i64),
                None => c.fresh("rank", Origin::Unknown),
            };
            let n = c.fresh("nonzero", Origin::DeviceResult);
            if let (Some(s), Some(sym)) = (c.shape(0), c.dims.as_symbol(n)) {
                let all = c.dims.product(s);
                let hi = c.dims.range(all).1;
                c.dims.sym_mut(sym).hi = hi;
            }
            c.set(0, I64, [rank, n]);
            Ok(())
        },
        reference: Some(|c| Ok(vec![movement::non_zero(c.input(0)?)])),
        lower: &[Candidate::Kernel(|c| {
            let x = c.need(0)?;
            let kernel = match x.dtype {
                F32 => "nonzero_fill.f32",
                I64 => "nonzero_fill.i64",
                I32 => "nonzero_fill.i32",
                // Others are read as truth values.
                _ => "nonzero_fill.bool",
            };
            if x.shape.len() > 8 {
                return Err("the kernel has at most 8 axes".into());
            }
            let one = c.dims.constant(1);
            let rank = c.dims.constant(x.shape.len() as i64);
            let dims = (0..8).map(|i| x.shape.get(i).copied().unwrap_or(one));
            let ints = [rank, c.outs[0].shape[1]].into_iter().chain(dims).map(IntArg::Dim).collect();
            Ok(CallSpec { kernel, reads: vec![Some(0)], writes: vec![0], ints, scalars: vec![], scratch: vec![] })
        })],
        cases: &["[3,4]", "[5]", "[0,2]"],
        ..ROW
    },
    OpDef {
        name: "CumSum",
        since: 11,
        reference: Some(|c| cumulative_ref(c, false)),
        lower: &[Candidate::Loops(|c| cumulative_loops(c, Combiner::Sum))],
        ..CUMULATIVE
    },
    OpDef {
        name: "CumProd",
        since: 26,
        reference: Some(|c| cumulative_ref(c, true)),
        lower: &[Candidate::Loops(|c| cumulative_loops(c, Combiner::Prod))],
        ..CUMULATIVE
    },
];

const CUMULATIVE: OpDef = OpDef {
    inputs: &[req("x", "T"), req("axis", "Tind")],
    outputs: &[req("y", "T")],
    attrs: &[attr("exclusive", AttrKind::Int(0)), attr("reverse", AttrKind::Int(0))],
    dtypes: &[("T", NUMS), IND],
    infer: |c| {
        c.require_single(1, "the axis")?;
        if let (Some(s), Some(axis)) = (c.shape(0), c.need_values(1)) {
            RunAxes::new(c.dims, &axis, s.len()).check(c, &axis)?;
        }
        super::row::same_type_as_0(c)
    },
    tolerance: super::row::ROUNDED,
    cases: &[
        "[3,4];i64[]{1}",
        "[5];i64[]{0} exclusive=1 reverse=1",
        "[2,3];i64[]{-1} reverse=1",
        "[3,4];i64[]{0} exclusive=1",
    ],
    ..ROW
};

/// The reduction of a Scatter row.
fn how(name: Option<&str>) -> Result<Scatter> {
    let name = name.unwrap_or("none");
    Scatter::from_name(name)
        .ok_or_else(|| Diagnostic::new(ErrorKind::Unsupported, format!("reduction {name:?} is not known")))
}

fn same_rank(c: &InferCtx, i: usize, k: usize) -> Result<()> {
    match (c.shape(i), c.shape(k)) {
        (Some(a), Some(b)) if a.len() != b.len() => {
            let text = format!("{}: operands of {} and {} axes", c.def.name, a.len(), b.len());
            Err(c.error(ErrorKind::Shape, text))
        }
        _ => Ok(()),
    }
}

/// Rows whose indices have the data's axes: constant ones are in range, and along the other axes they do not reach beyond the data.
fn check_elements(c: &mut InferCtx) -> Result<()> {
    let Some(s) = c.shape(0) else { return Ok(()) };
    let axis = c.axis(c.attrs.int(0).unwrap_or(0), s.len())?;
    if let Some(&extent) = s.get(axis) {
        c.check_indices(1, &[Indexed { axis, extent }])?;
    }
    for (a, (n, s)) in c.shape(1).into_iter().flatten().zip(s).enumerate().filter(|&(a, _)| a != axis) {
        let name = c.def.name;
        if c.dims.prove_le(n, s) == Proof::No {
            let [n, s] = [n, s].map(|d| c.dims.display(d).to_string());
            let text = format!("{name}: {n} indices along axis {a} are more than the {s} elements of the data");
            return Err(c.error(ErrorKind::Shape, text));
        }
        c.require_le(n, s, &format!("{name}: indices must not reach beyond the data along axis {a}"));
    }
    Ok(())
}

fn gather_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let (Some(s), Some(i)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let axis = c.axis(c.attrs.int(0).unwrap_or(0), s.len())?;
    if s.is_empty() {
        return Err(c.error(ErrorKind::Shape, "Gather needs data of at least 1 axis"));
    }
    c.set(0, dtype, s[..axis].iter().chain(&i).chain(&s[axis + 1..]).copied().collect::<Shape>());
    c.check_indices(1, &[Indexed { axis, extent: s[axis] }])?;
    if let (Some(v), Some(idx), 1) = (c.values(0), c.const_ints(1), s.len()) {
        let n = v.len() as i64;
        let at = |i: i64| v.get(usize::try_from(if i < 0 { i + n } else { i }).ok()?).copied();
        if let Some(all) = idx.iter().map(|&i| at(i)).collect::<Option<Vec<DimId>>>() {
            c.set_values(0, all);
        }
    }
    Ok(())
}

/// Loads from an axis of extent `n` at a computed place; 0 where the axis is empty.
fn guarded_load(b: &mut Builder, i: usize, coords: Vec<Coord>, n: DimId) -> Plan<ExprId> {
    if b.c.dims.range(n).0 > 0 {
        return b.load(i, coords);
    }
    let (zero, e) = (b.int(0), b.dim(n));
    let some = b.bin(BinOp::Gt, e, zero);
    let t = b.dtype(i);
    let other = b.nest.num(0.0, t);
    b.load_if(i, coords, Some(some), other)
}

/// One index that the host knows names a part of its operand.
fn gather_view(c: &mut NodeCtx) -> Plan<ViewOp> {
    let (x, i) = (c.need(0)?, c.need(1)?);
    let axis = checked_axis(c.attrs.int(0).unwrap_or(0), x.shape.len());
    if i.shape.iter().any(|&d| c.dims.as_const(d) != Some(1)) {
        return Err("there is more than one index".into());
    }
    let Some(&[index]) = i.values.as_deref() else { return Err("the index is not known to the host".into()) };
    match c.inside(index, x.shape[axis]) {
        Some(at) => Ok(ViewOp::Select { axis, at, axes: i.shape.len() }),
        None => Err("the index may be outside of the axis, or the run has to read it".into()),
    }
}

fn gather_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, i) = (c.need(0)?, c.need(1)?);
    let axis = checked_axis(c.attrs.int(0).unwrap_or(0), x.shape.len());
    let q = i.shape.len();
    let mut b = Builder::over_result(c)?;
    let at: Vec<Coord> = (0..q).map(|k| b.along(outer(axis + k))).collect();
    let e = b.load(1, at)?;
    let e = b.index(e, x.shape[axis]);
    let mut coords = Vec::new();
    for a in 0..x.shape.len() {
        coords.push(match a.cmp(&axis) {
            std::cmp::Ordering::Less => b.along(outer(a)),
            std::cmp::Ordering::Equal => b.computed(e),
            std::cmp::Ordering::Greater => b.along(outer(a + q - 1)),
        });
    }
    let e = guarded_load(&mut b, 0, coords, x.shape[axis])?;
    Ok(b.store(e))
}

/// The extent of the last axis of the indices, which must be constant.
fn depth(c: &InferCtx, i: &Shape) -> Result<usize> {
    match i.last().map(|&d| c.dims.as_const(d)) {
        Some(Some(k)) => Ok(k as usize),
        Some(None) => {
            let text =
                format!("{}: the last extent of the indices must be known when the model is compiled", c.def.name);
            Err(c.error(ErrorKind::Unsupported, text))
        }
        None => Err(c.error(ErrorKind::Shape, format!("{}: indices need an axis", c.def.name))),
    }
}

fn gather_nd_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let (Some(s), Some(i)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let batch = usize::try_from(c.attrs.int(0).unwrap_or(0)).unwrap_or(usize::MAX);
    let k = depth(c, &i)?;
    if batch >= i.len() || batch.saturating_add(k) > s.len() {
        let text = format!("GatherND: {k} indices after {batch} batch axes are too many for {} axes", s.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    for a in 0..batch {
        c.require_eq(s[a], i[a], &format!("batch axis {a} must agree"))?;
    }
    c.check_indices(1, &indexed(&s, batch, k))?;
    c.set(0, dtype, i[..i.len() - 1].iter().chain(&s[batch + k..]).copied().collect::<Shape>());
    Ok(())
}

/// The `k` axes after the first `batch`.
fn indexed(s: &Shape, batch: usize, k: usize) -> Vec<Indexed> {
    s.iter().enumerate().skip(batch).take(k).map(|(axis, &extent)| Indexed { axis, extent }).collect()
}

fn gather_nd_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, i) = (c.need(0)?, c.need(1)?);
    let batch = c.attrs.int(0).unwrap_or(0) as usize;
    let lead = i.shape.len() - 1;
    let k = c.dims.as_const(i.shape[lead]).ok_or("the last extent of the indices is not constant")? as usize;
    let mut b = Builder::over_result(c)?;
    let mut coords: Vec<Coord> = (0..batch).map(|a| b.along(outer(a))).collect();
    let mut cond = None;
    for j in 0..k {
        let mut at: Vec<Coord> = (0..lead).map(|a| b.along(outer(a))).collect();
        at.push(b.fixed_at(j as i64));
        let e = b.load(1, at)?;
        let n = x.shape[batch + j];
        let e = b.index(e, n);
        coords.push(b.computed(e));
        if b.c.dims.range(n).0 <= 0 {
            let (zero, n) = (b.int(0), b.dim(n));
            let some = b.bin(BinOp::Gt, n, zero);
            cond = b.and(cond, Some(some));
        }
    }
    for a in batch + k..x.shape.len() {
        coords.push(b.along(outer(lead + a - batch - k)));
    }
    let t = b.dtype(0);
    let zero = b.nest.num(0.0, t);
    let e = b.load_if(0, coords, cond, zero)?;
    Ok(b.store(e))
}

fn scatter_nd_infer(c: &mut InferCtx) -> Result<()> {
    how(c.attrs.str(0)).map_err(|e| c.error(e.kind(), e.message()))?;
    if let (Some(s), Some(i)) = (c.shape(0), c.shape(1)) {
        let k = depth(c, &i)?;
        if k > s.len() {
            return Err(c.error(ErrorKind::Shape, format!("ScatterND: {k} indices are too many for {} axes", s.len())));
        }
        c.check_indices(1, &indexed(&s, 0, k))?;
        if let Some(u) = c.shape(2) {
            let want: Shape = i[..i.len() - 1].iter().chain(&s[k..]).copied().collect();
            if want.len() != u.len() {
                let text = format!("ScatterND: updates have {} axes instead of {}", u.len(), want.len());
                return Err(c.error(ErrorKind::Shape, text));
            }
            for (a, (&w, &u)) in want.iter().zip(&u).enumerate() {
                c.require_eq(w, u, &format!("axis {a} of the updates must fit"))?;
            }
        }
    }
    c.set_type(0, c.ty(0).clone());
    Ok(())
}

/// Combines what is there with what is scattered to it.
fn combine(b: &mut Builder, how: Scatter, old: ExprId, hit: ExprId, new: ExprId) -> Plan<ExprId> {
    let t = b.nest.expr_dtype(old);
    if t == Bool {
        return Err("bool elements are not reduced".into());
    }
    let (combiner, op, neutral) = match how {
        Scatter::Add => (Combiner::Sum, BinOp::Add, b.nest.num(0.0, t)),
        Scatter::Mul => (Combiner::Prod, BinOp::Mul, b.nest.num(1.0, t)),
        Scatter::Max => (Combiner::Max, BinOp::Max, old),
        Scatter::Min => (Combiner::Min, BinOp::Min, old),
        Scatter::None => return Err("not a reduction".into()),
    };
    let v = b.select(hit, new, neutral);
    let r = b.reduce([(combiner, v)]);
    Ok(b.bin(op, old, r[0]))
}

/// Every result element looks through all index tuples for the last that names it: right for duplicates, and for tuples out
/// of range, which name nothing.
fn scatter_nd_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, i, u) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let how = how(c.attrs.str(0)).map_err(|e| e.message().to_string())?;
    let lead = i.shape.len() - 1;
    let k = c.dims.as_const(i.shape[lead]).ok_or("the last extent of the indices is not constant")? as usize;
    let mut b = Builder::over_result(c)?;
    b.nest.inner = i.shape[..lead].to_vec();
    let zero = b.int(0);
    let mut hit = None;
    for j in 0..k {
        let mut at: Vec<Coord> = (0..lead).map(|a| b.along(inner(a))).collect();
        at.push(b.fixed_at(j as i64));
        let e = b.load(1, at)?;
        let n = b.dim(x.shape[j]);
        let shifted = b.bin(BinOp::Add, e, n);
        let neg = b.bin(BinOp::Lt, e, zero);
        let e = b.select(neg, shifted, e);
        let o = b.outer(j);
        let same = b.bin(BinOp::Eq, e, o);
        hit = b.and(hit, Some(same));
    }
    let all: Vec<Coord> = (0..x.shape.len()).map(|a| b.along(outer(a))).collect();
    let old = b.load(0, all)?;
    let hit = match hit {
        Some(h) => h,
        None => b.nest.expr(Expr::Int(1, Bool)),
    };
    let rest: Vec<Coord> = (k..x.shape.len()).map(|a| b.along(outer(a))).collect();
    if how != Scatter::None {
        let mut at: Vec<Coord> = (0..lead).map(|a| b.along(inner(a))).collect();
        at.extend(rest);
        let t = b.dtype(2);
        let none = b.nest.num(0.0, t);
        let new = b.load_if(2, at, Some(hit), none)?;
        let e = combine(&mut b, how, old, hit, new)?;
        return Ok(b.store(e));
    }
    // The greatest row-major position of a tuple that names this element; -1 for none.
    let minus = b.int(-1);
    let mut position = zero;
    for a in 0..lead {
        let (n, at) = (b.dim(u.shape[a]), b.nest.expr(Expr::Index(inner(a))));
        position = b.bin(BinOp::Mul, position, n);
        position = b.bin(BinOp::Add, position, at);
    }
    let v = b.select(hit, position, minus);
    let last = b.reduce([(Combiner::Max, v)])[0];
    let mut at = vec![zero; lead];
    let mut p = last;
    for a in (0..lead).rev() {
        let n = b.dim(u.shape[a]);
        at[a] = b.bin(BinOp::Rem, p, n);
        p = b.bin(BinOp::Div, p, n);
    }
    let mut coords: Vec<Coord> = at.into_iter().map(|e| b.computed(e)).collect();
    coords.extend(rest);
    let found = b.bin(BinOp::Ge, last, zero);
    let e = b.load_if(2, coords, Some(found), old)?;
    Ok(b.store(e))
}

fn scatter_elements_infer(c: &mut InferCtx) -> Result<()> {
    how(c.attrs.str(1)).map_err(|e| c.error(e.kind(), e.message()))?;
    same_rank(c, 0, 1)?;
    same_rank(c, 1, 2)?;
    check_elements(c)?;
    if let (Some(i), Some(u)) = (c.shape(1), c.shape(2)) {
        for (a, (&i, &u)) in i.iter().zip(&u).enumerate() {
            c.require_eq(i, u, &format!("axis {a} of updates and indices must agree"))?;
        }
    }
    c.set_type(0, c.ty(0).clone());
    Ok(())
}

/// Every result element looks along the axis of the indices for the last that names it.
fn scatter_elements_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, i) = (c.need(0)?, c.need(1)?);
    let how = how(c.attrs.str(1)).map_err(|e| e.message().to_string())?;
    let axis = checked_axis(c.attrs.int(0).unwrap_or(0), x.shape.len());
    let mut b = Builder::over_result(c)?;
    b.nest.inner = vec![i.shape[axis]];
    let (mut inside, zero) = (None, b.int(0));
    let mut at = Vec::new();
    for a in 0..x.shape.len() {
        if a == axis {
            at.push(b.along(inner(0)));
            continue;
        }
        at.push(b.along(outer(a)));
        if b.c.dims.prove_le(x.shape[a], i.shape[a]) != Proof::Yes {
            let o = b.outer(a);
            let w = b.within(o, i.shape[a], false, true);
            inside = b.and(inside, w);
        }
    }
    let minus = b.nest.num(-1.0, b.dtype(1));
    let e = b.load_if(1, at.clone(), inside, minus)?;
    let e = if b.nest.expr_dtype(e) == I64 { e } else { b.nest.expr(Expr::Cast(e, I64)) };
    let n = b.dim(x.shape[axis]);
    let shifted = b.bin(BinOp::Add, e, n);
    let neg = b.bin(BinOp::Lt, e, zero);
    let e = b.select(neg, shifted, e);
    let o = b.outer(axis);
    let same = b.bin(BinOp::Eq, e, o);
    let hit = b.and(inside, Some(same)).unwrap_or(same);
    let all: Vec<Coord> = (0..x.shape.len()).map(|a| b.along(outer(a))).collect();
    let old = b.load(0, all)?;
    if how != Scatter::None {
        let t = b.dtype(2);
        let none = b.nest.num(0.0, t);
        let new = b.load_if(2, at, Some(hit), none)?;
        let e = combine(&mut b, how, old, hit, new)?;
        return Ok(b.store(e));
    }
    let (k, minus) = (b.nest.expr(Expr::Index(inner(0))), b.int(-1));
    let v = b.select(hit, k, minus);
    let last = b.reduce([(Combiner::Max, v)])[0];
    let found = b.bin(BinOp::Ge, last, zero);
    at[axis] = b.computed(last);
    let e = b.load_if(2, at, Some(found), old)?;
    Ok(b.store(e))
}

fn one_hot_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(2)?;
    let Some(mut s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let axis = c.axis(c.attrs.int(0).unwrap_or(-1), s.len() + 1)?;
    c.require_single(1, "the depth")?;
    let two = c.dims.constant(2);
    match c.shape(2).as_deref() {
        Some([n]) => c.require_eq(*n, two, "values are off and on")?,
        Some(v) => return Err(c.error(ErrorKind::Shape, format!("OneHot: values of {} axes", v.len()))),
        None => {}
    }
    let depth = match c.const_ints(1) {
        Some(v) if v.len() == 1 => c.dims.constant(v[0]),
        Some(v) => return Err(c.error(ErrorKind::Shape, format!("OneHot: {} depths", v.len()))),
        None => match c.need_values(1) {
            Some(v) if v.len() == 1 => v[0],
            _ => c.fresh("depth", Origin::Unknown),
        },
    };
    let depth = c.extent(depth)?;
    s.insert(axis, depth);
    c.set(0, dtype, s);
    Ok(())
}

fn one_hot_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    let axis = checked_axis(c.attrs.int(0).unwrap_or(-1), x.shape.len() + 1);
    let depth = c.outs[0].shape[axis];
    let mut b = Builder::over_result(c)?;
    let at: Vec<Coord> = (0..x.shape.len()).map(|a| b.along(outer(if a < axis { a } else { a + 1 }))).collect();
    let i = b.load(0, at)?;
    let i = b.nest.expr(Expr::Cast(i, I64));
    let (zero, n) = (b.int(0), b.dim(depth));
    let shifted = b.bin(BinOp::Add, i, n);
    let neg = b.bin(BinOp::Lt, i, zero);
    let i = b.select(neg, shifted, i);
    let o = b.outer(axis);
    let hot = b.bin(BinOp::Eq, i, o);
    let (first, second) = (b.fixed_at(0), b.fixed_at(1));
    let (off, on) = (b.load(2, [first])?, b.load(2, [second])?);
    let e = b.select(hot, on, off);
    Ok(b.store(e))
}

/// Sums or products of a prefix, each on its own: quadratic along the axis, exact in order. Which axis it is may be for the run to
/// know: then the position along it and its extent are sums over all axes, of which one counts.
fn cumulative_loops(c: &mut NodeCtx, combiner: Combiner) -> Plan<Nest> {
    let (x, k) = (c.need(0)?, c.need(1)?);
    let axis = k.values.as_ref().and_then(|v| v.first().copied()).ok_or("the axis is not known when it runs")?;
    let axes = RunAxes::new(c.dims, &[axis], x.shape.len());
    let (exclusive, reverse) = (c.attrs.int(0) == Some(1), c.attrs.int(1) == Some(1));
    let mut b = Builder::over_result(c)?;
    let (zero, one) = (b.c.dims.constant(0), b.c.dims.constant(1));
    let (mut n, mut o, mut at) = (zero, b.int(0), Vec::new());
    for (a, (&extent, &mark)) in x.shape.iter().zip(axes.marks()).enumerate() {
        let (other, along) = (b.c.dims.sub(one, mark), b.c.dims.mul(mark, extent));
        n = b.c.dims.add(n, along);
        let steps = [(Term::Axis(outer(a)), other), (Term::Axis(inner(0)), mark)];
        let terms = steps.into_iter().filter(|s| s.1 != zero).collect();
        at.push(Coord { offset: zero, terms });
        if mark != zero {
            let (m, i) = (b.dim(mark), b.outer(a));
            let part = b.bin(BinOp::Mul, m, i);
            o = b.bin(BinOp::Add, o, part);
        }
    }
    b.nest.inner = vec![n];
    let k = b.nest.expr(Expr::Index(inner(0)));
    let op = match (reverse, exclusive) {
        (false, false) => BinOp::Le,
        (false, true) => BinOp::Lt,
        (true, false) => BinOp::Ge,
        (true, true) => BinOp::Gt,
    };
    let counts = b.bin(op, k, o);
    let t = b.dtype(0);
    let neutral = b.nest.num(if combiner == Combiner::Prod { 1.0 } else { 0.0 }, t);
    let v = b.load_if(0, at, Some(counts), neutral)?;
    let e = b.reduce([(combiner, v)])[0];
    Ok(b.store(e))
}

fn cumulative_ref(c: &RefCtx, product: bool) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let axis = movement::single(c.input(1)?, "the axis")?.view().i64_at(0);
    let axis = checked_axis(axis, x.shape().len());
    if axis >= x.shape().len() {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("{}: the axis is out of range", c.def.name)));
    }
    Ok(vec![movement::cumulative(x, axis, product, c.attrs.int(0) == Some(1), c.attrs.int(1) == Some(1))])
}
