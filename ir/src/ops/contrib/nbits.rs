//! MatMulNBits: products with weights of a few bits in blocks.

use super::super::loops::{Builder, inner, outer};
use super::super::row::ROW;
use super::MICROSOFT;
use super::codes::{Codes, Line, dequantized};
use crate::lowering::Candidate::{Kernel, Loops};
use crate::lowering::{CallSpec, IntArg, NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest, Term};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::packed::{self, Packed};
use tensor::DType::{self, BF16, F16, F32, I32, U8};
use tensor::{DimId, ErrorKind, Result, Tensor};

const A: usize = 0;
const B: usize = 1;
const SCALES: usize = 2;
const ZEROS: usize = 3;
const GROUPS: usize = 4;
const BIAS: usize = 5;

/// What the attributes say of the weights.
#[derive(Clone, Copy)]
struct Weights {
    k: i64,
    n: i64,
    bits: i64,
    block: i64,
}

impl Weights {
    /// # Errors
    /// What is wrong with the attributes, as a sentence.
    fn of(attrs: &crate::attrs::Attrs) -> std::result::Result<Weights, String> {
        let int = |slot: usize| attrs.int(slot).unwrap_or(0);
        let w = Weights { k: int(0), n: int(1), bits: int(2), block: int(3) };
        if ![w.k, w.n, w.block].iter().all(|n| (0..1 << 40).contains(n)) {
            return Err(format!("K={}, N={} and block_size={} must be extents", w.k, w.n, w.block));
        }
        if !(2..=8).contains(&w.bits) {
            return Err(format!("bits={} is not one of 2 to 8", w.bits));
        }
        if w.block < 16 || w.block & (w.block - 1) != 0 {
            return Err(format!("block_size={} is not a power of two from 16 on", w.block));
        }
        Ok(w)
    }
    /// Blocks of a row.
    fn blocks(&self) -> i64 {
        self.k / self.block + i64::from(self.k % self.block != 0)
    }
    /// Bytes of a block.
    fn bytes(&self) -> i64 {
        self.block / 8 * self.bits
    }
    /// Bytes of a row of packed zero points.
    fn zero_bytes(&self) -> i64 {
        (self.blocks() * self.bits + 7) / 8
    }
}

/// Whether the weights are left out: a tensor without elements stands in their place.
fn omitted(dims: &tensor::DimPool, shape: &[DimId]) -> bool {
    shape.iter().any(|&d| dims.as_const(d) == Some(0))
}

/// Requires `[n, m]`, or as a list `n · m`.
fn require_table(c: &mut InferCtx, i: usize, n: i64, m: i64) -> Result<()> {
    let Some(s) = c.shape(i) else { return Ok(()) };
    let what = format!("{} has [{n}, {m}] elements", c.def.inputs[i].name);
    let extents = if s.len() == 1 { vec![n.saturating_mul(m)] } else { vec![n, m] };
    require_extents(c, i, &extents, &what)
}

fn require_extents(c: &mut InferCtx, i: usize, extents: &[i64], what: &str) -> Result<()> {
    let Some(s) = c.shape(i) else { return Ok(()) };
    if s.len() != extents.len() {
        let text = format!("{}: {what}, it has {} axes", c.def.name, s.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    for (&d, &n) in s.iter().zip(extents) {
        let n = c.dims.constant(n);
        c.require_eq(d, n, what)?;
    }
    Ok(())
}

fn infer_nbits(c: &mut InferCtx) -> Result<()> {
    let w = Weights::of(c.attrs).map_err(|e| c.error(ErrorKind::Unsupported, format!("MatMulNBits: {e}")))?;
    if c.attrs.int(5).is_some_and(|p| p != 0) {
        let text = format!("MatMulNBits: weight_prepacked={:?} is a layout of another device", c.attrs.int(5));
        return Err(c.error(ErrorKind::Unsupported, text).help("export the weights with weight_prepacked=0"));
    }
    let left_out = c.shape(B).is_some_and(|s| omitted(c.dims, &s));
    if let Some(s) = c.shape(B).filter(|_| left_out) {
        for (&d, n) in s.iter().zip([w.n, w.blocks(), w.bytes()]) {
            let n = if c.dims.as_const(d) == Some(0) { d } else { c.dims.constant(n) };
            c.require_eq(d, n, "B that is left out has the other extents of one that is not")?;
        }
    } else {
        let what = "B has N rows of blocks of block_size * bits / 8 bytes";
        require_extents(c, B, &[w.n, w.blocks(), w.bytes()], what)?;
        require_table(c, SCALES, w.n, w.blocks())?;
        if c.has(ZEROS) {
            let packed = c.dtype(ZEROS)? == U8;
            require_table(c, ZEROS, w.n, if packed { w.zero_bytes() } else { w.blocks() })?;
        }
        if let Some(s) = c.shape(GROUPS) {
            let whole = w.blocks() * w.block;
            let padded = s.first().is_some_and(|&d| c.dims.as_const(d) == Some(whole));
            require_extents(c, GROUPS, &[if padded { whole } else { w.k }], "g_idx has one block for each of K")?;
        }
    }
    require_extents(c, BIAS, &[w.n], "the bias has N elements")?;
    let dtype = c.dtype(A)?;
    let Some(mut s) = c.shape(A) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let Some(last) = s.last_mut() else { return Err(c.error(ErrorKind::Shape, "MatMulNBits: A has no axis")) };
    let (k, n) = (c.dims.constant(w.k), c.dims.constant(w.n));
    let own = std::mem::replace(last, n);
    c.require_eq(own, k, "the last axis of A has K elements")?;
    c.set(0, dtype, s);
    Ok(())
}

/// Where scale or zero point of a block of the point's column are in a table of `blocks` to a row.
fn block_at(b: &mut Builder, i: usize, block: &Coord, blocks: i64) -> Plan<Vec<Coord>> {
    let column = outer(b.nest.outer.len() - 1);
    Ok(if b.c.need(i)?.shape.len() == 1 {
        let step = b.c.dims.constant(blocks);
        let mut at = block.clone();
        at.terms.push((Term::Axis(column), step));
        vec![at]
    } else {
        vec![b.along(column), block.clone()]
    })
}

/// A packed zero point of the column's block, whose number is `block`.
fn packed_zero(b: &mut Builder, w: Weights, block: ExprId) -> Plan<ExprId> {
    let first = b.fixed_at(0);
    let mut row = block_at(b, ZEROS, &first, w.zero_bytes())?;
    let from = row.pop().unwrap_or(first);
    Line { operand: ZEROS, row, from, bits: w.bits }.code(b, block, None)
}

/// `(B - zero point) · scale` of the point's column.
fn weight(b: &mut Builder, w: Weights, codes: Codes, inside: Option<ExprId>) -> Plan<ExprId> {
    let column = b.along(outer(b.nest.outer.len() - 1));
    let code = codes.code(b, B, vec![column], true)?;
    let (block, number) = if b.c.has(GROUPS) {
        let (at, zero) = (codes.place(b), b.nest.num(0.0, I32));
        let g = b.load_if(GROUPS, [at], inside, zero)?;
        let g = b.index(g, codes.blocks);
        (b.computed(g), g)
    } else {
        (b.along(inner(0)), b.nest.expr(Expr::Index(inner(0))))
    };
    let at = block_at(b, SCALES, &block, w.blocks())?;
    let scale = b.load(SCALES, at)?;
    let zero = match b.c.ins.get(ZEROS).cloned().flatten() {
        Some(z) if z.dtype == U8 => Some(packed_zero(b, w, number)?),
        Some(_) => {
            let at = block_at(b, ZEROS, &block, w.blocks())?;
            Some(b.load(ZEROS, at)?)
        }
        None => None,
    };
    Ok(dequantized(b, code, zero, scale, w.bits))
}

/// One sum for each element of the result, with weights dequantized where they are read.
fn nbits_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let w = Weights::of(c.attrs)?;
    let mut b = Builder::over_result(c)?;
    let rank = b.nest.outer.len();
    let shape = b.c.need(B)?.shape;
    let mut y = if omitted(b.c.dims, &shape) {
        b.nest.num(0.0, F32)
    } else {
        let codes = Codes { bits: w.bits, blocks: b.c.dims.constant(w.blocks()), bytes: b.c.dims.constant(w.bytes()) };
        codes.loops(&mut b);
        let place = codes.place(&mut b);
        let inside = if w.k % w.block == 0 {
            None
        } else {
            let k = b.c.dims.constant(w.k);
            let e = place_value(&mut b, w);
            b.within(e, k, false, true)
        };
        let mut at: Vec<Coord> = (0..rank - 1).map(|i| b.along(outer(i))).collect();
        at.push(place);
        let zero = b.nest.num(0.0, F32);
        let a = b.load_if(A, at, inside, zero)?;
        let v = weight(&mut b, w, codes, inside)?;
        let term = b.bin(BinOp::Mul, a, v);
        b.reduce([(Combiner::Sum, term)])[0]
    };
    if b.c.has(BIAS) {
        let at = b.along(outer(rank - 1));
        let bias = b.load(BIAS, [at])?;
        y = b.bin(BinOp::Add, y, bias);
    }
    Ok(b.store(y))
}

/// A call of the kernel, which has blocks in order and packed zero points.
fn nbits_call(c: &mut NodeCtx) -> Plan<CallSpec> {
    let (w, a) = (Weights::of(c.attrs)?, c.need(A)?);
    let kernel = match a.dtype {
        F32 => "nbits.f32",
        F16 => "nbits.f16",
        d => return Err(format!("no kernel for {d}").into()),
    };
    if ![2, 4, 8].contains(&w.bits) {
        return Err(format!("no kernel for {} bits", w.bits).into());
    }
    if c.has(GROUPS) {
        return Err("the kernel has the blocks of a row in order".into());
    }
    if omitted(c.dims, &c.need(B)?.shape) {
        return Err("the weights are left out".into());
    }
    let zeros = c.ins.get(ZEROS).cloned().flatten();
    if let Some(z) = zeros.as_ref().filter(|z| z.dtype != U8) {
        return Err(format!("the kernel has packed zero points, not {}", z.dtype).into());
    }
    let rows = c.dims.product(a.shape[..a.shape.len() - 1].iter().copied());
    let ints = [w.n, w.k, w.bits, w.block].map(|n| c.dims.constant(n));
    Ok(CallSpec {
        kernel,
        reads: vec![Some(A), Some(B), Some(SCALES), zeros.map(|_| ZEROS), c.has(BIAS).then_some(BIAS)],
        writes: vec![0],
        ints: [rows].into_iter().chain(ints).map(IntArg::Dim).collect(),
        scalars: vec![],
        scratch: vec![],
    })
}

/// The element's place in its row, as a number.
fn place_value(b: &mut Builder, w: Weights) -> ExprId {
    let per = Codes::group(w.bits).0;
    let [block, group, element] = [0, 1, 2].map(|i| b.nest.expr(Expr::Index(inner(i))));
    let (of_block, per) = (b.int(w.block), b.int(per));
    let block = b.bin(BinOp::Mul, block, of_block);
    let group = b.bin(BinOp::Mul, group, per);
    let at = b.bin(BinOp::Add, block, group);
    b.bin(BinOp::Add, at, element)
}

fn nbits_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let w = Weights::of(c.attrs).map_err(|e| tensor::Diagnostic::new(ErrorKind::Unsupported, e))?;
    let size = |n: i64| usize::try_from(n).unwrap_or(0);
    let packed = Packed {
        codes: c.input(B)?,
        scales: c.opt(SCALES),
        zeros: c.opt(ZEROS),
        bits: size(w.bits),
        n: size(w.n),
        k: size(w.k),
        block: size(w.block),
    };
    Ok(vec![packed::matmul_nbits(c.input(A)?, &packed, c.opt(GROUPS), c.opt(BIAS))?])
}

const FLOATS: &[DType] = &[F32, F16, BF16];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = A · dequantized Bᵀ + bias; accuracy_level is how much accuracy may be lost, and none is
    OpDef {
        name: "MatMulNBits",
        domain: MICROSOFT,
        inputs: &[
            req("A", "T1"),
            req("B", "T2"),
            req("scales", "T1"),
            opt("zero_points", "T3"),
            opt("g_idx", "T4"),
            opt("bias", "T1"),
        ],
        outputs: &[req("Y", "T1")],
        attrs: &[
            attr("K", AttrKind::IntReq),
            attr("N", AttrKind::IntReq),
            attr("bits", AttrKind::Int(4)),
            attr("block_size", AttrKind::IntReq),
            attr("accuracy_level", AttrKind::Int(0)),
            attr("weight_prepacked", AttrKind::Int(0)),
        ],
        dtypes: &[("T1", FLOATS), ("T2", &[U8]), ("T3", &[U8, F32, F16, BF16]), ("T4", &[I32])],
        infer: infer_nbits,
        reference: Some(nbits_ref),
        lower: &[Kernel(nbits_call), Loops(nbits_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[3,32];u8[5,2,8]{17,250,3,99,201,64,158};[5,2] K=32 N=5 block_size=16",
            "[2,2,40];u8[3,3,8]{17,250,3,99,201,64,158};[9];u8[3,2]{130,9,77,255,31} K=40 N=3 block_size=16",
            "[40];u8[3,3,8]{17,250,3,99,201,64,158};[9];u8[6]{130,9,77,255,31};_;[3] K=40 N=3 block_size=16 bits=4",
            "[2,40];u8[3,3,4]{17,250,3,99,201};[3,3];f32[3,3]{1.5,2,0};_;[3] K=40 N=3 block_size=16 bits=2",
            "[2,40];u8[3,3,4]{17,250,3,99,201};[3,3];u8[3,1]{27,50,14} K=40 N=3 block_size=16 bits=2",
            "[2,72];u8[3,3,12]{17,250,3,99,201};[3,3];u8[3,2]{130,1,77,0} K=72 N=3 block_size=32 bits=3",
            "[1,16];u8[2,1,14]{17,250,3,99,201};[2,1] K=16 N=2 block_size=16 bits=7",
            "[1,1,70];u8[2,3,32]{17,250,3,99,201};[2,3];u8[6]{128,130,9} K=70 N=2 block_size=32 bits=8 accuracy_level=4",
            "[2,70];u8[2,3,32]{17,250,3,99,201};[6];_;_;[2] K=70 N=2 block_size=32 bits=8",
            "[2,40];u8[3,3,8]{17,250,3,99,201,64,158};[9];u8[6]{130,9,77};i32[40]{2,0,1,1} K=40 N=3 block_size=16",
            "[2,40];u8[3,3,8]{17,250,3,99,201};[9];f32[9]{7,8.5};i32[48]{2,0,1,1} K=40 N=3 block_size=16",
            "[0,32];u8[5,2,8]{17,250,3};[5,2] K=32 N=5 block_size=16",
            "[2,40];u8[0,3,8];[0];_;_;[3] K=40 N=3 block_size=16",
            "[2,40];u8[3,3,0];[3,3] K=40 N=3 block_size=16",
        ],
        ..ROW
    },
];
