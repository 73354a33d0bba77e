//! Rotary positions of decoders.

use super::loops::{Builder, outer};
use super::row::{FLOATS, ROW, same_type_as_0};
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Coord, ExprId, Nest, Term, UnOp};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::attention as r;
use tensor::DType::*;
use tensor::dims::Proof;
use tensor::{DimId, DimPool, ErrorKind, Result};

fn heads_of(c: &RefCtx) -> Option<usize> {
    c.attrs.int(0).and_then(|n| usize::try_from(n).ok())
}

/// Extents `[b, h, s, d]` of x.
fn by_head(dims: &mut DimPool, x: &Shape, heads: Option<i64>) -> Option<[DimId; 4]> {
    match (x.as_slice(), heads) {
        (&[b, h, s, d], _) => Some([b, h, s, d]),
        (&[b, s, hidden], Some(n)) if n > 0 => {
            let n = dims.constant(n);
            let d = dims.floordiv(hidden, n);
            Some([b, n, s, d])
        }
        _ => None,
    }
}

fn infer_rotary(c: &mut InferCtx) -> Result<()> {
    let n = c.attrs.int(1).unwrap_or(0);
    if n < 0 || n % 2 != 0 {
        return Err(c.error(ErrorKind::Shape, format!("RotaryEmbedding: rotary_embedding_dim={n} is no even number")));
    }
    let Some(x) = c.shape(0) else { return same_type_as_0(c) };
    let Some([b, h, s, d]) = by_head(c.dims, &x, c.attrs.int(0)) else {
        let text = "RotaryEmbedding needs X [b, h, s, d], or [b, s, h·d] and a positive num_heads";
        return Err(c.error(ErrorKind::Shape, text));
    };
    let zero = c.dims.constant(0);
    if x.len() == 3 {
        let rest = c.dims.modulo(x[2], h);
        c.require_eq(rest, zero, "the heads divide the last axis")?;
    }
    let two = c.dims.constant(2);
    let rotated = if n == 0 { d } else { c.dims.constant(n) };
    let rest = c.dims.modulo(rotated, two);
    c.require_eq(rest, zero, "an even number of elements is rotated")?;
    if n > 0 && c.dims.prove_le(rotated, d) == Proof::No {
        return Err(
            c.error(ErrorKind::Shape, format!("RotaryEmbedding: {n} elements of a head are rotated, it has fewer"))
        );
    }
    let half = c.dims.floordiv(rotated, two);
    let looked_up = c.has(3);
    for i in [1, 2] {
        let Some(t) = c.shape(i) else { continue };
        let want: &[Option<DimId>] = if looked_up { &[None, Some(half)] } else { &[Some(b), Some(s), Some(half)] };
        if t.len() != want.len() {
            let text = format!("RotaryEmbedding: {} has rank {}, not {}", c.def.inputs[i].name, t.len(), want.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
        for (&d, want) in t.iter().zip(want) {
            if let Some(want) = want {
                c.require_eq(
                    d,
                    *want,
                    &format!("{} has the positions and half of the elements", c.def.inputs[i].name),
                )?;
            }
        }
    }
    if let Some(p) = c.shape(3) {
        let what = "position_ids are [b, s]";
        match *p.as_slice() {
            [pb, ps] => {
                c.require_eq(pb, b, what)?;
                c.require_eq(ps, s, what)?;
                if let Some(&rows) = c.shape(1).as_deref().and_then(<[_]>::first) {
                    c.require_some(rows, x.iter().copied(), "cos_cache has no position to look up");
                }
            }
            _ => return Err(c.error(ErrorKind::Shape, format!("RotaryEmbedding: {what}"))),
        }
    }
    same_type_as_0(c)
}

/// A point per element of `[b, h, s, d]`: `x·cos ∓ partner·sin`.
fn rotary_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (heads, n, interleaved) = (c.attrs.int(0), c.attrs.int(1).unwrap_or(0), c.attrs.int(2) == Some(1));
    let (x, cos) = (c.need(0)?, c.need(1)?);
    let [batch, h, s, d] = by_head(c.dims, &x.shape, heads).ok_or("x is not split into heads")?;
    let rotated = if n == 0 { d } else { c.dims.constant(n) };
    let two = c.dims.constant(2);
    let half = c.dims.floordiv(rotated, two);
    let mut b = Builder::new(c)?;
    b.nest.outer = vec![batch, h, s, d];
    let (e, zero, half_e) = (b.outer(3), b.int(0), b.dim(half));
    let inside = (rotated != d).then(|| {
        let n = b.dim(rotated);
        b.bin(BinOp::Lt, e, n)
    });
    let (pair, partner, first) = if interleaved {
        let (one, two) = (b.int(1), b.int(2));
        let odd = b.bin(BinOp::Mod, e, two);
        let first = b.bin(BinOp::Eq, odd, zero);
        let (up, down) = (b.bin(BinOp::Add, e, one), b.bin(BinOp::Sub, e, one));
        (b.bin(BinOp::Div, e, two), b.select(first, up, down), first)
    } else {
        let first = b.bin(BinOp::Lt, e, half_e);
        let (up, down) = (b.bin(BinOp::Add, e, half_e), b.bin(BinOp::Sub, e, half_e));
        (b.select(first, e, down), b.select(first, up, down), first)
    };
    let float = b.dtype(0);
    let nothing = b.nest.num(0.0, float);
    let own = at_element(&mut b, x.shape.len(), d, None);
    let own = b.load(0, own)?;
    let other = at_element(&mut b, x.shape.len(), d, Some(partner));
    let other = b.load_if(0, other, inside, nothing)?;
    let row = match b.c.has(3) {
        true => {
            let at = [b.along(outer(0)), b.along(outer(2))];
            let p = b.load(3, at)?;
            let p = b.index(p, cos.shape[0]);
            vec![b.computed(p)]
        }
        false => vec![b.along(outer(0)), b.along(outer(2))],
    };
    let angle = |b: &mut Builder, i: usize| -> Plan<ExprId> {
        let pair = b.computed(pair);
        b.load_if(i, row.iter().cloned().chain([pair]), inside, nothing)
    };
    let (cos, sin) = (angle(&mut b, 1)?, angle(&mut b, 2)?);
    let minus = b.nest.un(UnOp::Neg, sin);
    let sin = b.select(first, minus, sin);
    let (p, q) = (b.bin(BinOp::Mul, own, cos), b.bin(BinOp::Mul, other, sin));
    let y = b.bin(BinOp::Add, p, q);
    let y = inside.map_or(y, |i| b.select(i, y, own));
    let coords = at_element(&mut b, x.shape.len(), d, None);
    Ok(b.store_at(coords, y))
}

/// Where the element of a point is in x or y, or another one of its head.
fn at_element(b: &mut Builder, rank: usize, d: DimId, element: Option<ExprId>) -> Vec<Coord> {
    let last = match element {
        Some(e) => b.computed(e),
        None => b.along(outer(3)),
    };
    let (batch, head, place) = (b.along(outer(0)), b.along(outer(1)), b.along(outer(2)));
    if rank == 4 {
        return vec![batch, head, place, last];
    }
    let mut hidden = last;
    hidden.terms.push((Term::Axis(outer(1)), d));
    vec![batch, place, hidden]
}

/// The partner of each element, negated for the first of a pair.
fn rotate_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let interleaved = c.attrs.int(0) == Some(1);
    let shape = c.need(0)?.shape;
    let (last, two) = (shape.len() - 1, c.dims.constant(2));
    let half = c.dims.floordiv(shape[last], two);
    let mut b = Builder::over_result(c)?;
    let e = b.outer(last);
    let (first, apart) = if interleaved {
        let (two, zero, one) = (b.int(2), b.int(0), b.int(1));
        let odd = b.bin(BinOp::Mod, e, two);
        (b.bin(BinOp::Eq, odd, zero), one)
    } else {
        let half = b.dim(half);
        (b.bin(BinOp::Lt, e, half), half)
    };
    let (up, down) = (b.bin(BinOp::Add, e, apart), b.bin(BinOp::Sub, e, apart));
    let partner = b.select(first, up, down);
    let mut at: Vec<Coord> = (0..last).map(|i| b.along(outer(i))).collect();
    at.push(b.computed(partner));
    let v = b.load(0, at)?;
    let minus = b.nest.un(UnOp::Neg, v);
    let y = b.select(first, minus, v);
    Ok(b.store(y))
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Pairs (a, b) of a head's elements become (a·cos - b·sin, a·sin + b·cos) by the position. Positions out of range are treated as
    // indices of Gather
    OpDef {
        name: "RotaryEmbedding",
        since: 23,
        inputs: &[req("X", "T"), req("cos_cache", "T"), req("sin_cache", "T"), opt("position_ids", "M")],
        outputs: &[req("Y", "T")],
        attrs: &[
            attr("num_heads", AttrKind::IntOpt),
            attr("rotary_embedding_dim", AttrKind::Int(0)),
            attr("interleaved", AttrKind::Int(0)),
        ],
        dtypes: &[("T", &[F32, F16, BF16]), ("M", &[I64])],
        infer: infer_rotary,
        reference: Some(|c| {
            let n = c.attrs.int(1).and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
            let (x, cos, sin) = (c.input(0)?, c.input(1)?, c.input(2)?);
            Ok(vec![r::rotary(x, cos, sin, c.opt(3), heads_of(c), n, c.attrs.int(2) == Some(1))?])
        }),
        lower: &[Candidate::Loops(rotary_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,4,8];[5,4];[5,4];i64[2,4]{0,3,4,1,2}",
            "[2,4,24];[2,4,4];[2,4,4] num_heads=3",
            "[2,3,4,8];[2,4,2];[2,4,2] rotary_embedding_dim=4",
            "[2,4,24];[5,3];[5,3];i64[2,4]{1,4,0,2,3} num_heads=3 rotary_embedding_dim=6 interleaved=1",
            "[2,3,4,6];[2,4,3];[2,4,3] interleaved=1",
        ],
        ..ROW
    },
    // Pairs (a, b) of the last axis, its halves or neighbors, become (-b, a): what rotary positions multiply by the sine
    OpDef {
        name: "Rotate",
        domain: HIP_DOMAIN,
        inputs: &[req("x", "T")],
        outputs: &[req("y", "T")],
        attrs: &[attr("interleaved", AttrKind::Int(0))],
        dtypes: &[("T", FLOATS)],
        infer: |c| {
            if let Some(s) = c.shape(0) {
                let Some(&last) = s.last() else { return Err(c.error(ErrorKind::Shape, "Rotate needs an axis")) };
                let (two, zero) = (c.dims.constant(2), c.dims.constant(0));
                let rest = c.dims.modulo(last, two);
                c.require_eq(rest, zero, "elements are rotated in pairs")?;
            }
            same_type_as_0(c)
        },
        reference: Some(|c| Ok(vec![r::rotate(c.input(0)?, c.attrs.int(0) == Some(1))])),
        lower: &[Candidate::Loops(rotate_loops)],
        cases: &["[2,3,6]", "[4] interleaved=1", "f16[2,2]", "[2,0]", "[3,4] interleaved=1"],
        ..ROW
    },
];
