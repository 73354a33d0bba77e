//! Rows that write new rows into a cache of keys or values, where the caller may hold past and present in one place.

use super::loops::{Builder, outer};
use super::row::{PLAIN, ROW, same_type_as_0};
use crate::attrs::Attrs;
use crate::graph::{Guard, Rel};
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Coord, Expr, Nest};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, attr, opt, req};
use crate::ty::Shape;
use reference::attention::{grown, tensor_scatter};
use tensor::DType::{self, I64};
use tensor::dims::Proof;
use tensor::{DimId, ErrorKind, Result};

/// Operand of [`ROWS`]: how many positions the present has.
const LENGTH: usize = 3;
const AXIS: usize = 1;
const INDICES: &[DType] = &[I64];

fn is_circular(a: &Attrs) -> Option<bool> {
    match a.str(0) {
        Some("linear") | None => Some(false),
        Some("circular") => Some(true),
        _ => None,
    }
}

fn infer(c: &mut InferCtx) -> Result<()> {
    let name = c.def.name;
    if is_circular(c.attrs).is_none() {
        let text = format!("{name}: mode {:?} is neither linear nor circular", c.attrs.str(0));
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let (Some(x), Some(u)) = (c.shape(0), c.shape(1)) else { return same_type_as_0(c) };
    let axis = c.axis(c.attrs.int(AXIS).unwrap_or(-2), x.len())?;
    if axis == 0 || u.len() != x.len() {
        let text = format!("{name}: update has the rank of past_cache, and the axis is not that of the batch");
        return Err(c.error(ErrorKind::Shape, text));
    }
    for i in (0..x.len()).filter(|&i| i != axis) {
        c.require_eq(x[i], u[i], "update and past_cache differ along the axis alone")?;
    }
    let mut y = x.clone();
    if c.has(LENGTH) {
        let n = c.need_values(LENGTH).and_then(|n| n.first().copied());
        y[axis] = n.unwrap_or_else(|| c.fresh("length", tensor::dims::Origin::Unknown));
        not_longer(c, x[axis], y[axis], "the present has room for the past")?;
    }
    not_longer(c, u[axis], y[axis], "an update is not longer than the cache")?;
    if let Some(w) = c.shape(2) {
        let what = "write_indices has one element per sample";
        match *w.as_slice() {
            [n] => c.require_eq(n, x[0], what)?,
            _ => return Err(c.error(ErrorKind::Shape, format!("{name}: {what}"))),
        }
    }
    let d = c.dtype(0)?;
    c.set(0, d, y);
    Ok(())
}

fn not_longer(c: &mut InferCtx, a: DimId, b: DimId, what: &str) -> Result<()> {
    let why = format!("{}: {what}", c.def.name);
    match c.dims.prove_le(a, b) {
        Proof::Yes => {}
        Proof::No => return Err(c.error(ErrorKind::Shape, why)),
        Proof::Unknown => c.guards.push(Guard { lhs: a, rel: Rel::Le, rhs: b, why, node: c.path.into() }),
    }
    Ok(())
}

/// The axis along which is written, extents of the past, the update and the present, and whether what is written wraps around.
fn parts(c: &NodeCtx) -> Plan<(usize, [Shape; 3], bool)> {
    let (x, u) = (c.need(0)?.shape, c.need(1)?.shape);
    let y = c.outs.first().ok_or("the node has no result")?.shape.clone();
    let axis = super::split::axis_of(c.attrs.int(AXIS).unwrap_or(-2), x.len())?;
    let circular = is_circular(c.attrs).ok_or("an unknown mode")?;
    Ok((axis, [x, u, y], circular))
}

/// A point per element of the present: the update's where one is written there.
fn whole(c: &mut NodeCtx) -> Plan<Nest> {
    let (axis, [x, u, y], circular) = parts(c)?;
    let mut b = Builder::over_result(c)?;
    let mut at: Vec<Coord> = (0..y.len()).map(|i| b.along(outer(i))).collect();
    let mut place = b.outer(axis);
    let past = match x[axis] == y[axis] {
        true => b.load(0, at.clone())?,
        false => {
            let there = b.within(place, x[axis], false, true);
            let zero = b.nest.num(0.0, b.dtype(0));
            b.load_if(0, at.clone(), there, zero)?
        }
    };
    if b.c.has(2) {
        let sample = b.along(outer(0));
        let mut from = b.load(2, [sample])?;
        let n = b.dim(y[axis]);
        if circular {
            from = b.bin(BinOp::Mod, from, n);
        }
        place = b.bin(BinOp::Sub, place, from);
        if circular {
            place = b.bin(BinOp::Mod, place, n);
        }
    }
    let written = b.within(place, u[axis], true, true);
    at[axis] = b.computed(place);
    let value = b.load_if(1, at, written, past)?;
    Ok(b.store(value))
}

/// A point per element of the update, over a result that holds the past. An update is not longer than the cache, so its places modulo
/// the length are places of their own also where they lie outside: there, what is left out stores what the place holds.
fn rows(c: &mut NodeCtx) -> Plan<Nest> {
    let (axis, [_, u, y], circular) = parts(c)?;
    let mut b = Builder::new(c)?;
    b.nest.outer = u.to_vec();
    let mut at: Vec<Coord> = (0..u.len()).map(|i| b.along(outer(i))).collect();
    let new = b.load(1, at.clone())?;
    if !b.c.has(2) {
        return Ok(b.store_at(at, new));
    }
    let (sample, j, n) = (b.along(outer(0)), b.outer(axis), b.dim(y[axis]));
    let from = b.load(2, [sample])?;
    let start = b.bin(BinOp::Mod, from, n);
    let place = b.bin(BinOp::Add, start, j);
    let place = b.bin(BinOp::Mod, place, n);
    at[axis] = b.computed(place);
    if circular {
        return Ok(b.store_at(at, new));
    }
    let held = b.result(0, at.clone());
    let held = b.nest.expr(Expr::Load(held));
    let wanted = b.bin(BinOp::Add, from, j);
    Ok(match b.within(wanted, y[axis], true, true) {
        Some(inside) => {
            let value = b.select(inside, new, held);
            b.store_at(at, value)
        }
        None => b.store_at(at, new),
    })
}

/// A point per element.
fn replaced(c: &mut NodeCtx) -> Plan<Nest> {
    let mut b = Builder::over_result(c)?;
    let at: Vec<Coord> = (0..b.nest.outer.len()).map(|i| b.along(outer(i))).collect();
    let value = b.load(1, at)?;
    Ok(b.store(value))
}

/// present_cache = past_cache with update written along the axis from write_indices[sample] on. What would be written outside is left
/// out where the mode is linear
const TENSOR_SCATTER: OpDef = OpDef {
    name: "TensorScatter",
    since: 24,
    inputs: &[req("past_cache", "T"), req("update", "T"), opt("write_indices", "I")],
    outputs: &[req("present_cache", "T")],
    attrs: &[attr("mode", AttrKind::Str("linear")), attr("axis", AttrKind::Int(-2))],
    dtypes: &[("T", PLAIN), ("I", INDICES)],
    infer,
    reference: Some(|c| {
        let rank = c.input(0)?.shape().len();
        let axis = c.attrs.int(AXIS).unwrap_or(-2);
        let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).unwrap_or(0);
        let length = c.opt(LENGTH).and_then(|n| usize::try_from(*n.to_i64_vec().first()?).ok());
        let past = length.map(|n| grown(c.input(0)?, axis, n)).transpose()?;
        let past = past.as_ref().map_or_else(|| c.input(0), Ok)?;
        Ok(vec![tensor_scatter(past, c.input(1)?, c.opt(2), axis, is_circular(c.attrs) == Some(true))?])
    }),
    lower: &[Candidate::Update(rows), Candidate::Loops(whole)],
    cases: &[
        "[2,3,5,4];[2,3,2,4]",
        "[2,3,5,4];[2,3,2,4];i64[2]{3,1}",
        "[2,3,5,4];[2,3,3,4];i64[2]{-2,4}",
        "[3,2,5,4];[3,2,5,4];i64[3]{5,-9223372036854775808,9223372036854775807}",
        "[3,5,2];[3,4,2];i64[3]{4,-1,9223372036854775806} mode=circular axis=1",
    ],
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    TENSOR_SCATTER,
    // TensorScatter into a cache that may have to grow: it gets `length` positions, zeros after those of the past
    OpDef {
        name: "CacheUpdate",
        domain: HIP_DOMAIN,
        since: 1,
        inputs: &[req("past_cache", "T"), req("update", "T"), opt("write_indices", "I"), req("length", "I")],
        cases: &[
            "[2,3,5,4];[2,3,2,4];i64[2]{3,1};i64[1]{5}",
            "[2,3,5,4];[2,3,2,4];i64[2]{3,6};i64[1]{7}",
            "[2,3,0,4];[2,3,2,4];i64[2]{0,1};i64[1]{3}",
        ],
        ..TENSOR_SCATTER
    },
    // The second operand: a cache that has been made anew from another, in whose memory it may lie
    OpDef {
        name: "CacheReplace",
        domain: HIP_DOMAIN,
        inputs: &[req("past_cache", "T"), req("cache", "T")],
        outputs: &[req("present_cache", "T")],
        dtypes: &[("T", PLAIN)],
        infer: |c| {
            if let (Some(x), Some(y)) = (c.shape(0), c.shape(1)) {
                if x.len() != y.len() {
                    return Err(c.error(ErrorKind::Shape, "CacheReplace: both caches are of one shape"));
                }
                x.iter().zip(&y).try_for_each(|(&a, &b)| c.require_eq(a, b, "both caches are of one shape"))?;
            }
            same_type_as_0(c)
        },
        reference: Some(|c| Ok(vec![c.input(1)?.clone()])),
        lower: &[Candidate::Update(replaced), Candidate::Loops(replaced)],
        cases: &["[2,3,5,4];[2,3,5,4]", "[0,3];[0,3]"],
        ..ROW
    },
];
