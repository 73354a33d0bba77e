//! Rows of ops that order elements or pick some of them by value. They are made of four small ops of our own: keys that compare like
//! elements, positions in order of keys, and runs of equal keys.

use super::loops::{Builder, inner, outer};
use super::movement::checked_axis;
use super::row::{ANY, BOOL, FLOATS, NUMS, PLAIN, ROW};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{CallSpec, Candidate, IntArg, NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest, UnOp};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, attr, opt, req};
use crate::ty::Shape;
use reference::sort;
use tensor::dims::Origin;
use tensor::{DType, DType::*, DimId, ErrorKind, Result};

const I: (&str, &[DType]) = ("I", &[I64]);
const AXIS: usize = 0;

const TOP_K: OpDef = OpDef {
    name: "TopK",
    inputs: &[req("X", "T"), req("K", "I")],
    outputs: &[req("Values", "T"), req("Indices", "I")],
    attrs: &[attr("axis", AttrKind::Int(-1))],
    dtypes: &[("T", FLOATS), I],
    infer: |c| {
        let k = match c.const_ints(1) {
            Some(v) if v.len() == 1 => Some(c.dims.constant(v[0])),
            Some(v) => return Err(c.error(ErrorKind::Shape, format!("TopK: K has {} elements", v.len()))),
            None => c.need_values(1).filter(|v| v.len() == 1).map(|v| v[0]),
        };
        infer_top_k(c, k)
    },
    reference: Some(|c| top_k_ref(c, reference::movement::single(c.input(1)?, "K")?.view().i64_at(0))),
    lower: &[Candidate::Expand(|x| {
        let k = x.need(1)?;
        expand_top_k(x, k)
    })],
    cases: &["[3,5];i64[1]{2}", "[4,3,2];i64[1]{3} axis=1", "[6]{1,2,2,nan,0,-0};i64[1]{6}", "[2,3];i64[1]{0}"],
    ..ROW
};

const UNIQUE: OpDef = OpDef {
    name: "Unique",
    since: 11,
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T"), opt("indices", "I"), opt("inverse_indices", "I"), opt("counts", "I")],
    attrs: &[attr("axis", AttrKind::IntOpt), attr("sorted", AttrKind::Int(1))],
    dtypes: &[("T", ANY), I],
    infer: |c| {
        let Some(s) = c.shape(0) else {
            c.set_unranked(0, c.dtype(0)?);
            return Ok(());
        };
        let (shape, axis) = slices(c, s, AXIS)?;
        let n = shape[axis];
        let u = picked(c, "unique", n);
        c.set_type(0, crate::ty::Type::tensor(c.dtype(0)?, replaced(&shape, axis, u)));
        for (i, d) in [(1, u), (2, n), (3, u)] {
            c.set(i, I64, [d]);
        }
        Ok(())
    },
    reference: Some(|c| {
        let x = c.input(0)?;
        let axis = c.attrs.int(AXIS).map(|a| checked_axis(a, x.shape().len()));
        Ok(sort::unique(x, axis, c.attrs.int(1) != Some(0))?.into())
    }),
    lower: &[Candidate::Expand(expand_unique)],
    cases: &[
        "[6]{2,1,1,3,4,3} outs=4",
        "[6]{2,1,1,3,4,3} sorted=0 outs=4",
        "[3,2]{1,0,1,0,2,0} axis=0 outs=4",
        "[2,4,2]{1,0,1,0,2,0} axis=-2 sorted=0 outs=4",
        "[2,3]{5,-1}",
        "[0] outs=4",
    ],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        until: 9,
        inputs: &[req("X", "T")],
        attrs: &[attr("axis", AttrKind::Int(-1)), attr("k", AttrKind::IntReq)],
        infer: |c| {
            let k = c.attrs.int(1).map(|k| c.dims.constant(k));
            infer_top_k(c, k)
        },
        reference: Some(|c| top_k_ref(c, c.attrs.int(1).unwrap_or(0))),
        lower: &[Candidate::Expand(|x| {
            let k = x.ints(&[x.attrs().int(1).unwrap_or(0)]);
            expand_top_k(x, k)
        })],
        cases: &["[3,5] k=2", "[4,3,2] k=3 axis=1"],
        ..TOP_K
    },
    OpDef { since: 10, until: 10, ..TOP_K },
    OpDef {
        since: 11,
        attrs: &[attr("axis", AttrKind::Int(-1)), attr("largest", AttrKind::Int(1)), attr("sorted", AttrKind::Int(1))],
        dtypes: &[("T", NUMS), I],
        cases: &[
            "[3,5];i64[1]{2}",
            "[4,3,2];i64[1]{3} axis=1 largest=0",
            "[6]{1,2,2,nan,0,-0};i64[1]{6} largest=0",
            "[7]{1,2,2,nan,0,-0};i64[1]{5} sorted=0",
            "[2,3];i64[1]{0}",
            "[0,3];i64[1]{2}",
        ],
        ..TOP_K
    },
    OpDef {
        name: "Compress",
        since: 9,
        inputs: &[req("input", "T"), req("condition", "B")],
        outputs: &[req("output", "T")],
        attrs: &[attr("axis", AttrKind::IntOpt)],
        dtypes: &[("T", ANY), ("B", BOOL)],
        infer: |c| {
            let dtype = c.dtype(0)?;
            let flags = match c.shape(1).as_deref() {
                Some(&[n]) => Some(n),
                Some(s) => {
                    let text = format!("Compress: the condition has {} axes, not 1", s.len());
                    return Err(c.error(ErrorKind::Shape, text));
                }
                None => None,
            };
            let Some(s) = c.shape(0) else {
                c.set_unranked(0, dtype);
                return Ok(());
            };
            let (shape, axis) = slices(c, s, AXIS)?;
            let most = flags.map_or(shape[axis], |f| c.dims.min(f, shape[axis]));
            let kept = picked(c, "kept", most);
            c.set(0, dtype, replaced(&shape, axis, kept));
            Ok(())
        },
        reference: Some(|c| {
            let x = c.input(0)?;
            let axis = c.attrs.int(AXIS).map(|a| checked_axis(a, x.shape().len()));
            Ok(vec![sort::compress(x, c.input(1)?, axis)?])
        }),
        lower: &[Candidate::Expand(expand_compress)],
        cases: &[
            "[3,2];[3]{0,1,1} axis=0",
            "[3,2];[2]{0,1} axis=1",
            "[3,2];[5]{0,1,0,0,1}",
            "[3,2];[2]{0,1} axis=-2",
            "[2];[3]{1,0,1} axis=0",
            "[0,2];[1]{1}",
        ],
        ..ROW
    },
    UNIQUE,
    OpDef {
        name: "SortKey",
        domain: HIP_DOMAIN,
        inputs: &[req("x", "T")],
        outputs: &[req("y", "K")],
        attrs: &[attr("descending", AttrKind::Int(0))],
        dtypes: &[("T", PLAIN), ("K", &[U64])],
        infer: |c| {
            match c.shape(0) {
                Some(s) => c.set(0, U64, s),
                None => c.set_unranked(0, U64),
            }
            Ok(())
        },
        reference: Some(|c| Ok(vec![sort::keys(c.input(0)?, c.attrs.int(0) == Some(1))])),
        lower: &[Candidate::Pointwise(|c, nest, args| {
            let x = args[0].ok_or("operand 0 is missing")?;
            let descending = c.attrs.int(0) == Some(1);
            let k = key(nest, x);
            let k = if descending { nest.un(UnOp::BitNot, k) } else { k };
            Ok([k].into_iter().collect())
        })],
        cases: &["[3,4]", "[6]{nan,inf,-inf,0,-0,1} descending=1"],
        ..ROW
    },
    OpDef {
        name: "ArgSort",
        domain: HIP_DOMAIN,
        inputs: &[req("keys", "K"), opt("k", "I")],
        outputs: &[req("positions", "I")],
        dtypes: &[("K", &[U64]), I],
        infer: |c| {
            let Some(mut s) = c.shape(0) else {
                c.set_unranked(0, I64);
                return Ok(());
            };
            if c.has(1) {
                let k = match c.need_values(1).and_then(|k| k.first().copied()) {
                    Some(k) => k,
                    None => c.fresh("k", Origin::Unknown),
                };
                s.last_mut().into_iter().for_each(|last| *last = k);
            }
            c.set(0, I64, s);
            Ok(())
        },
        reference: Some(|c| {
            let k = c.opt(1).map(|k| reference::movement::single(k, "k")).transpose()?;
            let k = k.map(|k| usize::try_from(k.view().i64_at(0)).unwrap_or(0));
            Ok(vec![sort::arg_sort(c.input(0)?, k)?])
        }),
        lower: &[Candidate::Kernel(|c| {
            let x = c.need(0)?;
            let (&n, rows) = x.shape.split_last().ok_or("it needs an axis")?;
            let k = c.outs[0].shape.last().copied().ok_or("it needs an axis")?;
            let rows = c.dims.product(rows.iter().copied());
            let work = c.dims.mul(rows, n);
            let pair = c.dims.constant(16);
            let scratch = c.dims.mul(work, pair);
            let ints = [rows, n, k].map(IntArg::Dim).to_vec();
            let (reads, writes) = (vec![Some(0)], vec![0]);
            Ok(CallSpec { kernel: "argsort.u64", reads, writes, ints, scalars: vec![], scratch: vec![scratch] })
        })],
        cases: &["[3,4]", "[3,4];i64[1]{2}"],
        ..ROW
    },
    OpDef {
        name: "RunStarts",
        domain: HIP_DOMAIN,
        inputs: &[req("rows", "K")],
        outputs: &[req("starts", "B")],
        dtypes: &[("K", &[U64]), ("B", BOOL)],
        infer: |c| {
            match c.shape(0).and_then(|s| s.first().copied()) {
                Some(n) => c.set(0, Bool, [n]),
                None => c.set_unranked(0, Bool),
            }
            Ok(())
        },
        reference: Some(|c| Ok(vec![sort::run_starts(c.input(0)?)])),
        lower: &[Candidate::Loops(run_starts_loops)],
        cases: &["[5,2]{1,1,1,1,2,1,2,1,2,0}", "[4,1]{3,3,4,5}", "[0,2]", "[2,0]"],
        ..ROW
    },
    OpDef {
        name: "RunLengths",
        infer: |c| {
            match c.shape(0) {
                Some(s) => c.set(0, I64, s),
                None => c.set_unranked(0, I64),
            }
            Ok(())
        },
        reference: Some(|c| Ok(vec![sort::run_lengths(c.input(0)?, c.input(1)?.n_elems())])),
        lower: &[Candidate::Loops(run_lengths_loops)],
        ..RUNS
    },
    OpDef {
        name: "RunIds",
        infer: |c| {
            match c.shape(1) {
                Some(s) => c.set(0, I64, s),
                None => c.set_unranked(0, I64),
            }
            Ok(())
        },
        reference: Some(|c| Ok(vec![sort::run_ids(c.input(0)?, c.input(1)?.n_elems())])),
        lower: &[Candidate::Loops(run_ids_loops)],
        ..RUNS
    },
];

/// Of runs that begin at `starts` among as many places as there are marks.
const RUNS: OpDef = OpDef {
    domain: HIP_DOMAIN,
    inputs: &[req("starts", "I"), req("marks", "B")],
    outputs: &[req("y", "I")],
    dtypes: &[I, ("B", BOOL)],
    cases: &["i64[3]{0,1,4};[6]", "i64[1]{0};[3]", "i64[5]{0,1,2,3,4};[5]"],
    ..ROW
};

/// What an op picks slices from: the operand, or its elements in a row where there is no axis.
fn slices(c: &mut InferCtx, s: Shape, slot: usize) -> Result<(Shape, usize)> {
    match c.attrs.int(slot) {
        Some(_) if s.is_empty() => Err(c.error(ErrorKind::Shape, format!("{}: a scalar has no axis", c.def.name))),
        Some(a) => Ok((s.clone(), c.axis(a, s.len())?)),
        None => {
            let n = c.dims.product(s);
            Ok((Shape::from_slice(&[n]), 0))
        }
    }
}

/// An extent that the device counts: at most `most`.
fn picked(c: &mut InferCtx, name: &str, most: DimId) -> DimId {
    let n = c.fresh(name, Origin::DeviceResult);
    if let Some(s) = c.dims.as_symbol(n) {
        c.dims.sym_mut(s).hi = c.dims.range(most).1;
    }
    n
}

fn replaced(shape: &Shape, axis: usize, by: DimId) -> Shape {
    let mut s = shape.clone();
    s[axis] = by;
    s
}

fn infer_top_k(c: &mut InferCtx, k: Option<DimId>) -> Result<()> {
    let Some(mut s) = c.shape(0) else {
        c.set_unranked(0, c.dtype(0)?);
        c.set_unranked(1, I64);
        return Ok(());
    };
    let axis = c.axis(c.attrs.int(AXIS).unwrap_or(-1), s.len())?;
    let Some(n) = s.get(axis).copied() else { return Err(c.error(ErrorKind::Shape, "TopK: a scalar has no axis")) };
    s[axis] = match k {
        Some(k) => {
            let k = c.extent(k)?;
            if c.dims.prove_le(k, n) == tensor::dims::Proof::No {
                let [k, n] = [k, n].map(|d| c.dims.display(d).to_string());
                return Err(c.error(ErrorKind::Shape, format!("TopK: {k} of {n} elements along axis {axis}")));
            }
            c.require_le(k, n, "TopK: K must not exceed the extent of the axis");
            k
        }
        None => c.fresh("k", Origin::Unknown),
    };
    c.set(0, c.dtype(0)?, s.clone());
    c.set(1, I64, s);
    Ok(())
}

fn top_k_ref(c: &RefCtx, k: i64) -> Result<Vec<tensor::Tensor>> {
    let x = c.input(0)?;
    let axis = checked_axis(c.attrs.int(AXIS).unwrap_or(-1), x.shape().len());
    let largest = c.def.slot("largest").is_none_or(|slot| c.attrs.int(slot) != Some(0));
    Ok(sort::top_k(x, usize::try_from(k).unwrap_or(0), axis, largest)?.into())
}

/// Keys along the last axis, the positions of the least, and what stands there.
fn expand_top_k(x: &mut Expansion, mut k: Value) -> Result<Vec<Value>> {
    // One element, also where the model does not say how many there are.
    let one = |x: &Expansion, s: &Shape| s.len() == 1 && x.as_const(s[0]) == Some(1);
    if !x.tensor(k).is_ok_and(|t| one(x, &t.1)) {
        k = x.reshape(k, &[1]);
    }
    let data = x.need(0)?;
    let rank = x.tensor(data)?.1.len();
    let axis = checked_axis(x.attrs().int(AXIS).unwrap_or(-1), rank);
    let largest = x.def().slot("largest").is_none_or(|slot| x.attrs().int(slot) != Some(0));
    let mut perm: Vec<i64> = (0..rank as i64).collect();
    perm.swap(axis, rank - 1);
    let turn = |x: &mut Expansion, v: Value| if axis + 1 == rank { v } else { x.transpose(v, &perm) };
    let rows = turn(x, data);
    let keys = x.own("SortKey", &[Some(rows)], &[("descending", Attr::Int(largest.into()))]);
    let found = x.own("ArgSort", &[Some(keys), Some(k)], &[]);
    let values = x.op("GatherElements", &[rows, found], &[("axis", Attr::Int(-1))]);
    Ok(vec![turn(x, values), turn(x, found)])
}

/// The positions of true elements, as many as result 0 has along `axis`.
fn places(x: &mut Expansion, marks: Value, axis: usize) -> Value {
    let found = x.op("NonZero", &[marks], &[]);
    if let Some(n) = x.result_shape(0).and_then(|s| s.get(axis).copied()) {
        let one = x.dim(1);
        x.expect(found, I64, [one, n]);
    }
    x.squeeze(found, &[0])
}

/// The operand that slices are picked from, and the axis they lie along.
fn sliced(x: &mut Expansion) -> Result<(Value, usize)> {
    let data = x.need(0)?;
    let rank = x.tensor(data)?.1.len();
    Ok(match x.attrs().int(AXIS) {
        Some(a) => (data, checked_axis(a, rank)),
        None if rank == 1 => (data, 0),
        None => (x.reshape(data, &[-1]), 0),
    })
}

fn expand_compress(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, axis) = sliced(x)?;
    let mut keep = x.need(1)?;
    let (flags, shape) = (x.tensor(keep)?.1, x.tensor(x.need(0)?)?.1);
    let n = match x.attrs().int(AXIS) {
        Some(_) => x.as_const(shape[axis]),
        None => shape.iter().map(|&d| x.as_const(d)).product(),
    };
    // A condition may be longer than the axis; what is beyond counts for nothing.
    if !matches!((flags.first().and_then(|&d| x.as_const(d)), n), (Some(f), Some(n)) if f <= n) {
        let (zero, first) = (x.ints(&[0]), x.ints(&[0]));
        let end = x.extent(data, axis as i64);
        keep = x.op("Slice", &[keep, zero, end, first], &[]);
    }
    let kept = places(x, keep, axis);
    Ok(vec![x.op("Gather", &[data, kept], &[("axis", Attr::Int(axis as i64))])])
}

/// Slices in order, by one sort of their keys or, of several elements, one for each element from the last on; runs of equal ones.
fn expand_unique(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, axis) = sliced(x)?;
    let rank = if x.attrs().int(AXIS).is_some() { x.tensor(data)?.1.len() } else { 1 };
    let by_value = x.attrs().int(1) != Some(0);
    let along = [("axis", Attr::Int(axis as i64))];
    let gather = |x: &mut Expansion, v: Value, at: Value| x.op("Gather", &[v, at], &[]);
    let ascending = |x: &mut Expansion, v: Value| {
        let keys = x.own("SortKey", &[Some(v)], &[]);
        x.own("ArgSort", &[Some(keys)], &[])
    };
    let keys = x.own("SortKey", &[Some(data)], &[]);
    let (order, rows) = if rank == 1 {
        let order = x.own("ArgSort", &[Some(keys)], &[]);
        let sorted = gather(x, keys, order);
        (order, x.unsqueeze(sorted, &[1]))
    } else {
        let mut perm: Vec<i64> = (0..rank as i64).collect();
        perm[..=axis].rotate_right(1);
        let rows = x.transpose(keys, &perm);
        let rows = x.op("Flatten", &[rows], &[("axis", Attr::Int(1))]);
        let (n, m) = (x.extent(rows, 0), x.extent(rows, 1));
        let start = x.count_to(n);
        let trips = x.squeeze(m, &[0]);
        let order = x.repeat(trips, &[start], &[rows, trips], |x, i, order, captured| {
            let one = x.scalar(I64, 1.0);
            let column = x.op("Sub", &[captured[1], one], &[]);
            let column = x.op("Sub", &[column, i], &[]);
            let keys = x.op("Gather", &[captured[0], column], &[("axis", Attr::Int(1))]);
            let keys = x.op("Gather", &[keys, order[0]], &[]);
            let next = x.own("ArgSort", &[Some(keys)], &[]);
            Ok((vec![x.op("Gather", &[order[0], next], &[])], vec![]))
        })?[0];
        (order, gather(x, rows, order))
    };
    let marks = x.own("RunStarts", &[Some(rows)], &[]);
    let starts = places(x, marks, axis);
    let mut first = gather(x, order, starts);
    let mut counts = x.own("RunLengths", &[Some(starts), Some(marks)], &[]);
    let mut ids = x.own("RunIds", &[Some(starts), Some(marks)], &[]);
    if !by_value {
        let turn = ascending(x, first);
        first = gather(x, first, turn);
        counts = gather(x, counts, turn);
        let back = ascending(x, turn);
        ids = gather(x, back, ids);
    }
    // Where each place went in the order.
    let back = ascending(x, order);
    let inverse = gather(x, ids, back);
    Ok(vec![x.op("Gather", &[data, first], &along), first, inverse, counts])
}

/// See [`sort::keys`].
fn key(nest: &mut Nest, x: ExprId) -> ExprId {
    let d = nest.expr_dtype(x);
    let wide = |nest: &mut Nest, e: ExprId| nest.expr(Expr::Cast(e, U64));
    if d.is_float() {
        let bits = nest.un(UnOp::ToBits, x);
        let b = nest.expr_dtype(bits);
        let top = nest.expr(Expr::Int(if b == U64 { i64::MIN } else { 1 << 31 }, b));
        let (zero, all) = (nest.num(0.0, d), nest.expr(Expr::Int(-1, U64)));
        // Below zero greater bits are less. Zeros are equal: neither is below.
        let (above, below) = (nest.bin(BinOp::Or, bits, top), nest.un(UnOp::BitNot, bits));
        let negative = nest.bin(BinOp::Lt, x, zero);
        let k = nest.expr(Expr::Select(negative, below, above));
        let (k, nan) = (wide(nest, k), nest.un(UnOp::IsNan, x));
        return nest.expr(Expr::Select(nan, all, k));
    }
    if d.is_signed() {
        let x = nest.expr(Expr::Cast(x, I64));
        let (k, top) = (wide(nest, x), nest.expr(Expr::Int(i64::MIN, U64)));
        return nest.bin(BinOp::Xor, k, top);
    }
    wide(nest, x)
}

fn run_starts_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    let mut b = Builder::over_result(c)?;
    b.nest.inner = vec![x.shape[1]];
    let (row, column) = (b.along(outer(0)), b.along(inner(0)));
    let minus = b.c.dims.constant(-1);
    let above = Coord { offset: minus, ..row.clone() };
    let (o, zero) = (b.outer(0), b.int(0));
    let (first, later) = (b.bin(BinOp::Eq, o, zero), b.bin(BinOp::Gt, o, zero));
    let this = b.load(0, [row, column.clone()])?;
    let last = b.load_if(0, [above, column], Some(later), this)?;
    let differs = b.bin(BinOp::Ne, this, last);
    let differs = b.nest.expr(Expr::Cast(differs, I64));
    let any = b.reduce([(Combiner::Sum, differs)])[0];
    let any = b.bin(BinOp::Gt, any, zero);
    let e = b.bin(BinOp::Or, first, any);
    Ok(b.store(e))
}

fn run_lengths_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (starts, marks) = (c.need(0)?, c.need(1)?);
    let mut b = Builder::over_result(c)?;
    let at = b.along(outer(0));
    let one = b.c.dims.constant(1);
    let next = Coord { offset: one, ..at.clone() };
    let (o, one) = (b.outer(0), b.int(1));
    let after = b.bin(BinOp::Add, o, one);
    let (u, n) = (b.dim(starts.shape[0]), b.dim(marks.shape[0]));
    let more = b.bin(BinOp::Lt, after, u);
    let end = b.load_if(0, [next], Some(more), n)?;
    let start = b.load(0, [at])?;
    let e = b.bin(BinOp::Sub, end, start);
    Ok(b.store(e))
}

/// How many runs begin at or before each place, less 1: by bisection, without branches.
fn run_ids_loops(c: &mut NodeCtx) -> Plan<Nest> {
    /// More elements than memories hold.
    const MOST: i64 = 1 << 40;
    let starts = c.need(0)?;
    let n = starts.shape[0];
    let most = c.dims.range(n).1.clamp(1, MOST);
    let mut b = Builder::over_result(c)?;
    let (o, u, mut found, one) = (b.outer(0), b.dim(n), b.int(0), b.int(1));
    for bit in (0..64 - most.leading_zeros()).rev() {
        let step = b.int(1 << bit);
        let next = b.bin(BinOp::Add, found, step);
        let inside = b.bin(BinOp::Le, next, u);
        let at = b.bin(BinOp::Sub, next, one);
        let at = b.computed(at);
        let beyond = b.int(i64::MAX);
        let start = b.load_if(0, [at], Some(inside), beyond)?;
        let before = b.bin(BinOp::Le, start, o);
        found = b.select(before, next, found);
    }
    let e = b.bin(BinOp::Sub, found, one);
    Ok(b.store(e))
}
