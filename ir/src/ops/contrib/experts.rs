//! ExpertMatMul, of our own: each row is multiplied by the matrices of the experts that were chosen for it.

use super::super::loops::{Builder, inner, outer};
use super::super::row::ROW;
use super::codes::{Codes, Line, dequantized};
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::moe::{self, Layer};
use reference::packed::Packed;
use tensor::DType::{self, BF16, F16, F32, I64, U8};
use tensor::{DimId, ErrorKind, Result, Tensor};

const X: usize = 0;
const EXPERTS: usize = 1;
const WEIGHTS: usize = 2;
const SCALES: usize = 3;
const ZEROS: usize = 4;
const BIAS: usize = 5;

fn bits(attrs: &crate::attrs::Attrs) -> i64 {
    attrs.int(0).unwrap_or(0)
}
fn block(attrs: &crate::attrs::Attrs) -> i64 {
    attrs.int(1).unwrap_or(0)
}

fn with_rank<const N: usize>(c: &InferCtx, i: usize) -> Result<Option<[DimId; N]>> {
    let Some(s) = c.shape(i) else { return Ok(None) };
    let rank = s.len();
    s.as_slice().try_into().map(Some).map_err(|_| {
        let text = format!("{}: {} has {N} axes, not {rank}", c.def.name, c.def.inputs[i].name);
        c.error(ErrorKind::Shape, text)
    })
}

fn infer_experts(c: &mut InferCtx) -> Result<()> {
    let (x, experts, w) = (with_rank::<3>(c, X)?, with_rank::<2>(c, EXPERTS)?, with_rank::<3>(c, WEIGHTS)?);
    let (Some([t, j, k]), Some([t2, chosen]), Some([e, n, line])) = (x, experts, w) else {
        c.set_unranked(0, F32);
        return Ok(());
    };
    c.require_eq(t, t2, "each row has its experts")?;
    if c.dims.as_const(j) != Some(1) {
        c.require_eq(j, chosen, "each row is one, or one for each expert")?;
    }
    let (bits, block) = (bits(c.attrs), block(c.attrs));
    if bits == 0 {
        c.require_eq(line, k, "rows of weights have the row's elements")?;
    } else {
        let (eight, width) = (c.dims.constant(8), c.dims.constant(bits));
        let (have, need) = (c.dims.mul(line, eight), c.dims.mul(k, width));
        c.require_eq(have, need, "rows of weights have the bits of the row's elements")?;
        let mut want: Shape = [e, n].into_iter().collect();
        if block > 0 {
            let size = c.dims.constant(block);
            let blocks = c.dims.floordiv(k, size);
            let whole = c.dims.mul(blocks, size);
            c.require_eq(whole, k, "blocks fill the rows of weights")?;
            want.push(blocks);
        }
        same(c, SCALES, &want, "one scale for each block")?;
        if let Some(last) = want.last_mut() {
            let all = c.dims.mul(*last, width);
            *last = c.dims.ceildiv(all, eight);
        }
        same(c, ZEROS, &want, "one zero point for each block")?;
    }
    same(c, BIAS, &[e, n], "one bias for each column")?;
    c.require_some(e, [t, chosen, n], "there is no expert");
    c.set(0, F32, [t, chosen, n]);
    Ok(())
}

fn same(c: &mut InferCtx, i: usize, want: &[DimId], what: &str) -> Result<()> {
    let Some(s) = c.shape(i) else { return Ok(()) };
    if s.len() != want.len() {
        let text = format!("{}: {what}: {} axes, not {}", c.def.name, s.len(), want.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    s.iter().zip(want).try_for_each(|(&a, &b)| c.require_eq(a, b, what))
}

/// The element of the point's expert and column, and where it is in its row.
fn weight(b: &mut Builder, expert: &Coord) -> Plan<(ExprId, Coord)> {
    let w = b.c.need(WEIGHTS)?;
    let row = vec![expert.clone(), b.along(outer(2))];
    let (bits, block) = (bits(b.c.attrs), block(b.c.attrs));
    if bits == 0 {
        b.nest.inner = vec![b.c.need(X)?.shape[2]];
        let at = b.along(inner(0));
        let v = b.load(WEIGHTS, row.into_iter().chain([at.clone()]))?;
        return Ok((b.nest.cast(v, F32), at));
    }
    let codes = if block > 0 {
        let size = b.c.dims.constant(block / 8 * bits);
        Codes { bits, blocks: b.c.dims.floordiv(w.shape[2], size), bytes: size }
    } else {
        Codes { bits, blocks: b.c.dims.constant(1), bytes: w.shape[2] }
    };
    codes.loops(b);
    let code = codes.code(b, WEIGHTS, row.clone(), false)?;
    let mut at = row.clone();
    if block > 0 {
        at.push(b.along(inner(0)));
    }
    let scale = b.load(SCALES, at)?;
    let zero = if b.c.has(ZEROS) {
        let from = b.fixed_at(0);
        let (row, number) = match block > 0 {
            true => (row, b.nest.expr(Expr::Index(inner(0)))),
            false => (vec![expert.clone()], b.outer(2)),
        };
        Some(Line { operand: ZEROS, row, from, bits }.code(b, number, None)?)
    } else {
        None
    };
    let v = dequantized(b, code, zero, scale, bits);
    Ok((v, codes.place(b)))
}

fn experts_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, n_experts) = (c.need(X)?, c.need(WEIGHTS)?.shape[0]);
    let mut b = Builder::over_result(c)?;
    let at = [b.along(outer(0)), b.along(outer(1))];
    let e = b.load(EXPERTS, at)?;
    let e = b.index(e, n_experts);
    let expert = b.computed(e);
    let (w, place) = weight(&mut b, &expert)?;
    let one = b.c.dims.as_const(x.shape[1]) == Some(1);
    let at = [b.along(outer(0)), if one { b.fixed_at(0) } else { b.along(outer(1)) }, place];
    let v = b.load(X, at)?;
    let term = b.bin(BinOp::Mul, v, w);
    let mut y = b.reduce([(Combiner::Sum, term)])[0];
    if b.c.has(BIAS) {
        let at = [expert, b.along(outer(2))];
        let bias = b.load(BIAS, at)?;
        y = b.bin(BinOp::Add, y, bias);
    }
    Ok(b.store(y))
}

fn experts_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, w) = (c.input(X)?, c.input(WEIGHTS)?);
    let (n, k) = (w.shape().get(1).copied().unwrap_or(0), x.shape().last().copied().unwrap_or(0));
    let [bits, block] = [bits(c.attrs), block(c.attrs)].map(|n| usize::try_from(n).unwrap_or(0));
    let packed = Packed { codes: w, scales: c.opt(SCALES), zeros: c.opt(ZEROS), bits, n, k, block };
    let layer = Layer::new(&packed, c.opt(BIAS))?;
    Ok(vec![moe::expert_matmul(x, c.input(EXPERTS)?, &layer)?])
}

const FLOATS: &[DType] = &[F32, F16, BF16];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // y[t, j, n] = Σ x[t, j, k] · weights[experts[t, j], n, k] + bias[experts[t, j], n]; with bits > 0 weights are packed
    OpDef {
        name: "ExpertMatMul",
        domain: HIP_DOMAIN,
        inputs: &[
            req("x", "T"),
            req("experts", "I"),
            req("weights", "W"),
            opt("scales", "S"),
            opt("zero_points", "Z"),
            opt("bias", "B"),
        ],
        outputs: &[req("y", "T")],
        attrs: &[attr("bits", AttrKind::Int(0)), attr("block_size", AttrKind::Int(0))],
        dtypes: &[
            ("T", &[F32]),
            ("I", &[I64]),
            ("W", &[F32, F16, BF16, U8]),
            ("S", FLOATS),
            ("Z", &[U8]),
            ("B", FLOATS),
        ],
        infer: infer_experts,
        reference: Some(experts_ref),
        lower: &[Loops(experts_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,1,6];i64[2,2]{0,2,1,1};[3,5,6];_;_;[3,5]",
            "[2,2,6];i64[2,2]{0,2,1,1};[3,5,6]",
            "[2,1,8];i64[2,2]{0,2,1,1};u8[3,5,4]{17,250,3,99,201,64,158};[3,5];u8[3,3]{130,9,77};[3,5] bits=4",
            "[2,2,32];i64[2,2]{0,2,1,1};u8[3,5,32]{17,250,3,99,201};[3,5,2];u8[3,5,2]{130,9,77} bits=8 block_size=16",
            "[1,1,32];i64[1,2]{2,1};u8[3,5,16]{17,250,3,99,201};[3,5,2];u8[3,5,1]{130,9,77} bits=4 block_size=16",
            "[1,1,32];i64[1,1]{2};u8[3,5,12]{17,250,3,99,201};[3,5,1] bits=3 block_size=32",
            "[2,1,8];i64[2,1]{2,0};u8[3,5,2]{17,250,3,99,201};[3,5];_;[3,5] bits=2",
        ],
        ..ROW
    },
];
