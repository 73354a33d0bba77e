//! MatMulBnb4: products with weights of 4-bit floats or quantiles.

use super::super::loops::{Builder, inner, outer};
use super::super::row::ROW;
use super::MICROSOFT;
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req};
use reference::packed;
use tensor::DType::{BF16, F16, F32, U8, U32};
use tensor::{ErrorKind, Result, Tensor};

const MAX: i64 = 1 << 30;

/// What the attributes say of the weights `[n, k]`.
#[derive(Clone, Copy)]
struct Weights {
    k: i64,
    n: i64,
    block: i64,
    normal: bool,
    trans: bool,
}

impl Weights {
    /// # Errors
    /// What is wrong with the attributes, as a sentence.
    fn of(attrs: &crate::attrs::Attrs) -> std::result::Result<Weights, String> {
        let int = |slot: usize| attrs.int(slot).unwrap_or(0);
        let (k, n, block) = (int(0), int(1), int(2));
        if ![k, n].iter().all(|n| (0..MAX).contains(n)) {
            return Err(format!("K={k} and N={n} must be extents"));
        }
        if !(16..MAX).contains(&block) || block & (block - 1) != 0 {
            return Err(format!("block_size={block} is not a power of two from 16 on"));
        }
        match int(3) {
            t @ (0 | 1) => Ok(Weights { k, n, block, normal: t == 1, trans: int(5) != 0 }),
            t => Err(format!("quant_type={t} is neither 0 (FP4) nor 1 (NF4)")),
        }
    }
}

fn infer_bnb4(c: &mut InferCtx) -> Result<()> {
    let w = Weights::of(c.attrs).map_err(|e| c.error(ErrorKind::Unsupported, format!("MatMulBnb4: {e}")))?;
    let all = w.n * w.k;
    for (i, n, what) in [
        (1, (all + 1) / 2, "B has two codes of N * K in a byte"),
        (2, (all + w.block - 1) / w.block, "absmax has one factor for each block of N * K"),
    ] {
        let Some(s) = c.shape(i) else { continue };
        let &[d] = s.as_slice() else {
            return Err(c.error(ErrorKind::Shape, format!("MatMulBnb4: {what}: it has one axis, not {}", s.len())));
        };
        let n = c.dims.constant(n);
        c.require_eq(d, n, what)?;
    }
    let dtype = c.dtype(0)?;
    let Some(mut s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let Some(last) = s.last_mut() else { return Err(c.error(ErrorKind::Shape, "MatMulBnb4: A has no axis")) };
    let (k, n) = (c.dims.constant(w.k), c.dims.constant(w.n));
    let (from, to) = if w.trans { (k, n) } else { (n, k) };
    let own = std::mem::replace(last, to);
    let what = if w.trans { "the last axis of A has K elements" } else { "the last axis of A has N elements" };
    c.require_eq(own, from, what)?;
    c.set(0, dtype, s);
    Ok(())
}

/// What a code of 4 bits stands for: halves of the table are selected by the bits from the lowest on.
fn value(b: &mut Builder, code: ExprId, normal: bool) -> ExprId {
    let mut all: Vec<ExprId> = (0..16).map(|i| b.nest.num(packed::bnb4(i, normal), F32)).collect();
    for bit in [1.0, 2.0, 4.0, 8.0] {
        let (mask, zero) = (b.nest.num(bit, U32), b.nest.num(0.0, U32));
        let set = b.bin(BinOp::And, code, mask);
        let set = b.bin(BinOp::Ne, set, zero);
        all = all.chunks(2).map(|pair| b.select(set, pair[1], pair[0])).collect();
    }
    all[0]
}

fn bnb4_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let w = Weights::of(c.attrs)?;
    let mut b = Builder::over_result(c)?;
    let rank = b.nest.outer.len();
    let summed = b.c.dims.constant(if w.trans { w.k } else { w.n });
    b.nest.inner = vec![summed];
    let mut at: Vec<Coord> = (0..rank - 1).map(|i| b.along(outer(i))).collect();
    at.push(b.along(inner(0)));
    let a = b.load(0, at)?;
    // The place of the weight in the list of all.
    let (column, term) = (b.outer(rank - 1), b.nest.expr(Expr::Index(inner(0))));
    let (n, k) = if w.trans { (column, term) } else { (term, column) };
    let row = b.int(w.k);
    let n = b.bin(BinOp::Mul, n, row);
    let place = b.bin(BinOp::Add, n, k);
    let (two, four, one, block) = (b.int(2), b.int(4), b.int(1), b.int(w.block));
    let byte = b.bin(BinOp::Div, place, two);
    let byte = b.computed(byte);
    let word = b.load(1, [byte])?;
    let half = b.bin(BinOp::Rem, place, two);
    let half = b.bin(BinOp::Sub, one, half);
    let shift = b.bin(BinOp::Mul, half, four);
    let shift = b.nest.cast(shift, U32);
    let code = b.bin(BinOp::Shr, word, shift);
    let v = value(&mut b, code, w.normal);
    let block = b.bin(BinOp::Div, place, block);
    let block = b.computed(block);
    let scale = b.load(2, [block])?;
    let v = b.bin(BinOp::Mul, v, scale);
    let term = b.bin(BinOp::Mul, a, v);
    let y = b.reduce([(Combiner::Sum, term)])[0];
    Ok(b.store(y))
}

fn bnb4_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let w = Weights::of(c.attrs).map_err(|e| tensor::Diagnostic::new(ErrorKind::Unsupported, e))?;
    let [n, k, block] = [w.n, w.k, w.block].map(|n| usize::try_from(n).unwrap_or(0));
    Ok(vec![packed::matmul_bnb4(c.input(0)?, c.input(1)?, c.input(2)?, (n, k), block, (w.normal, w.trans))?])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = A · Bᵀ, or A · B with transB=0, with B of 4-bit codes; training_mode keeps a gradient, which nothing here has
    OpDef {
        name: "MatMulBnb4",
        domain: MICROSOFT,
        inputs: &[req("A", "T1"), req("B", "T2"), req("absmax", "T1")],
        outputs: &[req("Y", "T1")],
        attrs: &[
            attr("K", AttrKind::IntReq),
            attr("N", AttrKind::IntReq),
            attr("block_size", AttrKind::IntReq),
            attr("quant_type", AttrKind::IntReq),
            attr("training_mode", AttrKind::Int(0)),
            attr("transB", AttrKind::Int(1)),
        ],
        dtypes: &[("T1", &[F32, F16, BF16]), ("T2", &[U8])],
        infer: infer_bnb4,
        reference: Some(bnb4_ref),
        lower: &[Loops(bnb4_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,32];u8[48]{17,250,3,99,201,64,158};[6] K=32 N=3 block_size=16 quant_type=0",
            "[2,2,7];u8[18]{17,250,3,99,201,64,158};[3] K=7 N=5 block_size=16 quant_type=1",
            "[2,5];u8[18]{17,250,3,99,201,64,158};[3] K=7 N=5 block_size=16 quant_type=1 transB=0 training_mode=1",
            "[7];u8[18]{17,250,3,99,201,64,158};[3] K=7 N=5 block_size=16 quant_type=0",
            "[0,32];u8[48]{17,250,3};[6] K=32 N=3 block_size=16 quant_type=0",
        ],
        ..ROW
    },
];
