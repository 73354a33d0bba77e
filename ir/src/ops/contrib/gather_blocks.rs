//! GatherBlockQuantized: rows of a quantized table, dequantized.

use super::super::loops::{Builder, outer};
use super::super::row::ROW;
use super::MICROSOFT;
use super::codes::Line;
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, Coord, Expr, ExprId, Nest};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::packed::{self, Blocks};
use tensor::DType::{self, BF16, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F16, F32, I4, I32, I64, U4, U8};
use tensor::{DimPool, ErrorKind, Result, Tensor};

const DATA: usize = 0;
const INDICES: usize = 1;
const SCALES: usize = 2;
const ZEROS: usize = 3;
const CODES: &[DType] = &[U8, U4, I4, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1];

/// Where elements and their scales are.
#[derive(Clone, Copy)]
struct Table {
    gather: usize,
    quantize: usize,
    /// 0: one for the whole axis.
    block: i64,
    /// Bits of an element in bytes; 0 where the element type says it.
    bits: i64,
}

impl Table {
    /// # Errors
    /// What is wrong with the attributes, as a sentence.
    fn of(attrs: &crate::attrs::Attrs, data: DType, rank: usize) -> std::result::Result<Table, String> {
        let axis = |name: &str, slot: usize, default: i64| {
            let a = attrs.int(slot).unwrap_or(default);
            let at = if a < 0 { a + rank as i64 } else { a };
            let at = usize::try_from(at).ok().filter(|&a| a < rank);
            at.ok_or_else(|| format!("{name}={a} is out of range for data of rank {rank}"))
        };
        let (gather, quantize) = (axis("gather_axis", 0, 0)?, axis("quantize_axis", 1, 1)?);
        let (block, bits) = (attrs.int(2).unwrap_or(128), attrs.int(3).unwrap_or(4));
        let one = block == 0 && data.is_float();
        if !one && (!(16..1 << 40).contains(&block) || block & (block - 1) != 0) {
            return Err(format!("block_size={block} is not a power of two from 16 on"));
        }
        let bits = match (data, bits) {
            (U8, 2 | 4 | 8) => bits,
            (U8, _) => return Err(format!("bits={bits} of elements in bytes are not 2, 4 or 8")),
            (U4 | I4, b) if b != 4 => return Err(format!("bits={b} is not what elements of {data} have")),
            _ => 0,
        };
        if data == U8 && gather != 0 {
            return Err(format!("gather_axis={gather} of data of bytes is not 0"));
        }
        if bits != 0 && bits < 8 && gather == quantize {
            return Err("gather_axis and quantize_axis are the same, and elements share bytes along it".into());
        }
        Ok(Table { gather, quantize, block, bits })
    }
    /// Elements of a byte.
    fn per_byte(&self) -> i64 {
        8i64.checked_div(self.bits).unwrap_or(1)
    }
    /// Whether several zero points share a byte.
    fn packs_zeros(&self) -> bool {
        self.per_byte() > 1
    }
    /// Extents of the data in elements.
    fn elements(&self, dims: &mut DimPool, data: &Shape) -> Shape {
        let mut s = data.clone();
        let per = dims.constant(self.per_byte());
        s.last_mut().into_iter().for_each(|d| *d = dims.mul(*d, per));
        s
    }
}

fn infer_gather(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(SCALES)?;
    let (Some(data), Some(indices)) = (c.shape(DATA), c.shape(INDICES)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let of = c.dtype(DATA)?;
    let name = c.def.name;
    let t = Table::of(c.attrs, of, data.len()).map_err(|e| c.error(ErrorKind::Unsupported, format!("{name}: {e}")))?;
    if of.is_float() && c.has(ZEROS) {
        return Err(c.error(ErrorKind::Unsupported, format!("{name}: zero points of float data")));
    }
    if t.packs_zeros() && c.has(ZEROS) && t.quantize + 1 != data.len() {
        let text = format!("{name}: zero points in bytes where blocks lie along axis {}, not the last", t.quantize);
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let elements = t.elements(c.dims, &data);
    for i in [SCALES, ZEROS] {
        let Some(s) = c.shape(i) else { continue };
        if s.len() != data.len() {
            let text = format!("{name}: data of {} axes has {} of {}", data.len(), c.def.inputs[i].name, s.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
        for (axis, (&d, &whole)) in s.iter().zip(&elements).enumerate() {
            if axis != t.quantize && of.is_float() && c.dims.as_const(d) == Some(1) {
                continue;
            }
            let mut n = whole;
            if axis == t.quantize {
                let size = c.dims.constant(t.block);
                n = if t.block == 0 { c.dims.constant(1) } else { c.dims.ceildiv(whole, size) };
                if i == ZEROS && t.packs_zeros() {
                    let per = c.dims.constant(t.per_byte());
                    n = c.dims.ceildiv(n, per);
                }
            }
            let what = format!("{} has one element per block", c.def.inputs[i].name);
            c.require_eq(d, n, &what)?;
        }
    }
    let out: Shape = elements[..t.gather].iter().chain(&indices).chain(&elements[t.gather + 1..]).copied().collect();
    c.set(0, dtype, out);
    Ok(())
}

/// The element's coordinates in the data (in elements), and whether the index is one of the axis.
fn place(b: &mut Builder, t: Table) -> Plan<(Vec<ExprId>, Option<ExprId>)> {
    let (data, q) = (b.c.need(DATA)?.shape, b.c.need(INDICES)?.shape.len());
    let n = t.elements(b.c.dims, &data)[t.gather];
    let at: Vec<Coord> = (0..q).map(|k| b.along(outer(t.gather + k))).collect();
    let i = b.load(INDICES, at)?;
    let i = b.nest.cast(i, I64);
    let (zero, extent) = (b.int(0), b.dim(n));
    let shifted = b.bin(BinOp::Add, i, extent);
    let negative = b.bin(BinOp::Lt, i, zero);
    let i = b.select(negative, shifted, i);
    let inside = b.within(i, n, true, true);
    let mut at = Vec::new();
    for a in 0..data.len() {
        at.push(match a.cmp(&t.gather) {
            std::cmp::Ordering::Less => b.outer(a),
            std::cmp::Ordering::Equal => i,
            std::cmp::Ordering::Greater => b.outer(a + q - 1),
        });
    }
    Ok((at, inside))
}

fn gather_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (data, scales) = (c.need(DATA)?, c.need(SCALES)?);
    let t = Table::of(c.attrs, data.dtype, data.shape.len())?;
    let mut b = Builder::over_result(c)?;
    let (at, inside) = place(&mut b, t)?;
    let last = at.len() - 1;
    let coords = |b: &mut Builder, at: &[ExprId]| at.iter().map(|&e| coord(b, e)).collect::<Vec<_>>();
    let code = if t.per_byte() > 1 {
        let (row, from) = (coords(&mut b, &at[..last]), b.fixed_at(0));
        Line { operand: DATA, row, from, bits: t.bits }.code(&mut b, at[last], inside)?
    } else {
        let (at, d) = (coords(&mut b, &at), b.dtype(DATA));
        let zero = b.nest.num(0.0, d);
        b.load_if(DATA, at, inside, zero)?
    };
    let mut block_at = at;
    block_at[t.quantize] = if t.block == 0 {
        b.int(0)
    } else {
        let size = b.int(t.block);
        b.bin(BinOp::Div, block_at[t.quantize], size)
    };
    let zero = if b.c.has(ZEROS) {
        Some(if t.packs_zeros() {
            let (row, from) = (coords(&mut b, &block_at[..last]), b.fixed_at(0));
            Line { operand: ZEROS, row, from, bits: t.bits }.code(&mut b, block_at[last], inside)?
        } else {
            let (at, d) = (coords(&mut b, &block_at), b.dtype(ZEROS));
            let none = b.nest.num(0.0, d);
            b.load_if(ZEROS, at, inside, none)?
        })
    } else {
        None
    };
    let one = |b: &Builder, a: usize| b.c.dims.as_const(scales.shape[a]) == Some(1);
    let at: Vec<Coord> =
        (0..=last).map(|a| if one(&b, a) { b.fixed_at(0) } else { coord(&mut b, block_at[a]) }).collect();
    let none = b.nest.num(0.0, F32);
    let scale = b.load_if(SCALES, at, inside, none)?;
    let [code, zero] = [Some(code), zero].map(|e| e.map(|e| b.nest.cast(e, F32)));
    let zero = match zero {
        None if t.bits > 0 => Some(b.nest.num(f64::from(1u32 << (t.bits - 1)), F32)),
        z => z,
    };
    let code = code.ok_or("no code")?;
    let v = zero.map_or(code, |z| b.bin(BinOp::Sub, code, z));
    let y = b.bin(BinOp::Mul, v, scale);
    let y = match inside {
        Some(cond) => b.select(cond, y, none),
        None => y,
    };
    Ok(b.store(y))
}

/// A coordinate; an iteration variable stays one.
fn coord(b: &mut Builder, e: ExprId) -> Coord {
    match b.nest.get(e) {
        Expr::Index(axis) => {
            let axis = *axis;
            b.along(axis)
        }
        _ => b.computed(e),
    }
}

fn gather_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let data = c.input(DATA)?;
    let t = Table::of(c.attrs, data.dtype(), data.shape().len())
        .map_err(|e| tensor::Diagnostic::new(ErrorKind::Unsupported, e))?;
    let [block, bits] = [t.block, t.bits].map(|n| usize::try_from(n).unwrap_or(0));
    let how = Blocks { gather: t.gather, quantize: t.quantize, block, bits };
    Ok(vec![packed::gather_blocks(data, c.input(INDICES)?, c.input(SCALES)?, c.opt(ZEROS), how)?])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = (data - zero point) · scale of the slices that indices name; slices that do not exist are 0
    OpDef {
        name: "GatherBlockQuantized",
        domain: MICROSOFT,
        inputs: &[req("data", "T1"), req("indices", "Tind"), req("scales", "T2"), opt("zero_points", "T1")],
        outputs: &[req("output", "T2")],
        attrs: &[
            attr("gather_axis", AttrKind::Int(0)),
            attr("quantize_axis", AttrKind::Int(1)),
            attr("block_size", AttrKind::Int(128)),
            attr("bits", AttrKind::Int(4)),
        ],
        dtypes: &[("T1", CODES), ("Tind", &[I32, I64]), ("T2", &[F32, F16, BF16])],
        infer: infer_gather,
        reference: Some(gather_ref),
        lower: &[Loops(gather_loops)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "u8[5,20]{17,250,3,99,201,64,158};i64[2,2]{0,-1,7,2};[5,3] block_size=16",
            "u8[5,20]{17,250,3,99,201,64};i32[3]{4,-6,1};[5,3];u8[5,2]{130,9,77,255} block_size=16 quantize_axis=-1",
            "u8[3,20]{17,250,3,99,201,64,158};i64[]{2};[3,2];u8[3,2]{130,9,77,255} block_size=16 bits=8",
            "u8[3,10]{17,250,3,99,201,64,158};i64[2]{2,0};[3,3];u8[3,1]{130,9,77,255} block_size=16 bits=2",
            "u8[3,20,2]{17,250,3,99,201};i64[2]{2,0};[3,2,4] block_size=16 quantize_axis=1",
            "u8[20,3]{17,250,3,99,201};i64[2]{2,19};[2,3];u8[2,3]{130,9,77,255} block_size=16 quantize_axis=0 bits=8",
            "u4[3,20]{1,15,3,9};i64[2]{2,0};[3,2];u4[3,2]{3,9,8} block_size=16",
            "i4[2,20,3]{1,-8,3,7};i64[2,1]{19,-3};[2,2,3] block_size=16 gather_axis=1 quantize_axis=1",
            "i4[20,3]{1,-8,3,7};i32[2]{2,-4};[2,3];i4[2,3]{-3,2,7} block_size=16 gather_axis=-1 quantize_axis=0",
            "f8e4m3fn[3,20]{1,-8,0.5,7};i64[2]{2,5};[3,2] block_size=16",
            "f8e5m2[3,20]{1,-8,0.5,7};i64[2]{2,1};[1,1] block_size=0",
            "f4e2m1[3,21]{1,-6,0.5,3,4};i64[2]{2,1};[1,2] block_size=16",
            "u8[5,20]{17,250};i64[0]{};[5,3] block_size=16",
        ],
        ..ROW
    },
];
