//! Rows of linear quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.

use super::loops::{Builder, inner, outer};
use super::row::{ROUNDED, ROW};
use crate::attrs::Attrs;
use crate::lowering::Candidate::Loops;
use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest, Phase, UnOp};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, attr, opt, req};
use reference::cast::Rounding;
use reference::quant::{self, Granularity, Target};
use tensor::DType::{self, *};
use tensor::{DimId, ErrorKind, Result, Tensor};

pub(super) const AXIS: AttrDef = attr("axis", AttrKind::Int(1));
const BLOCK_SIZE: AttrDef = attr("block_size", AttrKind::Int(0));
const OUTPUT_DTYPE: AttrDef = attr("output_dtype", AttrKind::Int(0));
const SATURATE: AttrDef = attr("saturate", AttrKind::Int(1));

const F8: [DType; 4] = [F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ];
/// What QuantizeLinear gives, and DequantizeLinear takes with i32 added, by version.
const BYTES: &[DType] = &[U8, I8];
const WITH_F8: &[DType] = &[U8, I8, F8[0], F8[1], F8[2], F8[3]];
const WITH_PACKED: &[DType] = &[U8, I8, U16, I16, F8[0], F8[1], F8[2], F8[3], U4, I4];
const WITH_F4: &[DType] = &[U8, I8, U16, I16, F8[0], F8[1], F8[2], F8[3], U4, I4, F4E2M1];
const NEWEST: &[DType] = &[U8, I8, U16, I16, F8[0], F8[1], F8[2], F8[3], U4, I4, F4E2M1, U2, I2];
const D_BYTES: &[DType] = &[U8, I8, I32];
const D_F8: &[DType] = &[U8, I8, I32, F8[0], F8[1], F8[2], F8[3]];
const D_PACKED: &[DType] = &[U8, I8, U16, I16, I32, F8[0], F8[1], F8[2], F8[3], U4, I4];
const D_F4: &[DType] = &[U8, I8, U16, I16, I32, F8[0], F8[1], F8[2], F8[3], U4, I4, F4E2M1];
const D_NEWEST: &[DType] = &[U8, I8, U16, I16, I32, F8[0], F8[1], F8[2], F8[3], U4, I4, F4E2M1, U2, I2];
const WIDE: &[DType] = &[F32, F16, BF16, I32];
const SCALES: &[DType] = &[F32, F16, BF16];
const SCALES_24: &[DType] = &[F32, F16, BF16, F8E8M0];
const ONLY_F32: (&str, &[DType]) = ("tensor(float)", &[F32]);

/// Slots of the attributes of one of the operators; older versions have the first of them alone.
#[derive(Clone, Copy)]
struct Slots {
    axis: usize,
    block_size: usize,
    output_dtype: usize,
}
const Q: Slots = Slots { axis: 0, block_size: 2, output_dtype: 3 };
const Q_SATURATE: usize = 1;
const Q_PRECISION: usize = 4;
const D: Slots = Slots { axis: 0, block_size: 1, output_dtype: 2 };

/// The element type that an attribute names; `None` where it is 0 or absent.
fn named_dtype(attrs: &Attrs, slot: usize) -> Option<DType> {
    let n = attrs.int(slot).filter(|&n| n != 0)?;
    DType::from_onnx(i32::try_from(n).ok()?)
}

/// Whether the attribute asks for an element type that does not exist here.
fn unknown_dtype(attrs: &Attrs, slot: usize) -> bool {
    attrs.int(slot).is_some_and(|n| n != 0) && named_dtype(attrs, slot).is_none()
}

/// How scale and zero point belong to the data, by their ranks, the attributes, and whether a list has one element.
fn granularity(
    at: Slots,
    attrs: &Attrs,
    rank: usize,
    scale: usize,
    is_one: bool,
) -> Result<Granularity, std::string::String> {
    let axis = || {
        // Data of one axis has no other.
        let axis = if rank == 1 { 0 } else { attrs.int(at.axis).unwrap_or(1) };
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(at)
            .ok()
            .filter(|&a| a < rank)
            .ok_or_else(|| format!("axis {axis} is out of range for rank {rank}"))
    };
    match (scale, attrs.int(at.block_size).unwrap_or(0)) {
        (0, _) => Ok(Granularity::Tensor),
        (s, 1..) if s != rank => Err(format!("a scale of rank {s} has no blocks of data of rank {rank}")),
        (_, size @ 1..) => Ok(Granularity::Blocks { axis: axis()?, size: usize::try_from(size).unwrap_or(usize::MAX) }),
        (_, ..=-1) => Err("block_size is negative".into()),
        (1, _) if is_one => Ok(Granularity::Tensor),
        (1, _) if attrs.int(at.axis).is_none() => Err("the scale is a list; before opset 13 it is a scalar".into()),
        (1, _) => Ok(Granularity::Axis(axis()?)),
        (s, _) => Err(format!("a scale of rank {s} needs block_size")),
    }
}

/// Shape rule: the data's shape; scale and zero point fit it.
fn infer_linear(c: &mut InferCtx, at: Slots, to: DType) -> Result<()> {
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, to);
        return Ok(());
    };
    if let (Some(s), Some(z)) = (c.shape(1), c.shape(2)) {
        let alone = |c: &InferCtx, s: &[DimId]| s.iter().all(|&d| c.dims.as_const(d) == Some(1));
        if s.len() == z.len() {
            for (&a, &b) in s.iter().zip(&z) {
                c.require_eq(a, b, "scale and zero point have one shape")?;
            }
        } else if !alone(c, &s) || !alone(c, &z) {
            let text = format!("{}: scale and zero point have different ranks", c.def.name);
            return Err(c.error(ErrorKind::Shape, text));
        }
    }
    if let Some(s) = c.shape(1) {
        let is_one = s.iter().all(|&d| c.dims.as_const(d) == Some(1));
        let g = granularity(at, c.attrs, x.len(), s.len(), is_one);
        let g = g.map_err(|e| c.error(ErrorKind::Shape, format!("{}: {e}", c.def.name)))?;
        match g {
            Granularity::Tensor => {}
            Granularity::Axis(axis) => c.require_eq(s[0], x[axis], "one scale per element of the axis")?,
            Granularity::Blocks { axis, size } => {
                let size = c.dims.constant(i64::try_from(size).unwrap_or(i64::MAX));
                for (i, (&a, &b)) in s.iter().zip(&x).enumerate() {
                    let b = if i == axis { c.dims.ceildiv(b, size) } else { b };
                    c.require_eq(a, b, "one scale per block")?;
                }
            }
        }
    }
    c.set(0, to, x);
    Ok(())
}

fn infer_quantize(c: &mut InferCtx) -> Result<()> {
    for s in [Q.output_dtype, Q_PRECISION] {
        if unknown_dtype(c.attrs, s) {
            return Err(c.error(ErrorKind::Unsupported, "QuantizeLinear: an element type that is not known"));
        }
    }
    let asked = named_dtype(c.attrs, Q.output_dtype);
    let zero = if c.has(2) { Some(c.dtype(2)?) } else { None };
    if let (Some(a), Some(z)) = (asked, zero)
        && a != z
    {
        return Err(c.error(ErrorKind::Type, format!("QuantizeLinear: output_dtype is {a}, the zero point is {z}")));
    }
    let to = zero.or(asked).unwrap_or(U8);
    let result = c.def.outputs[0].ty;
    let allowed = c.def.dtypes.iter().any(|(v, list)| *v == result && list.contains(&to));
    if !allowed {
        return Err(c.error(ErrorKind::Unsupported, format!("QuantizeLinear to {to}")));
    }
    infer_linear(c, Q, to)
}

fn infer_dequantize(c: &mut InferCtx) -> Result<()> {
    let slot = D.output_dtype;
    let to = match named_dtype(c.attrs, slot) {
        Some(d) => d,
        None if unknown_dtype(c.attrs, slot) => {
            return Err(c.error(ErrorKind::Unsupported, "DequantizeLinear to an element type that is not known"));
        }
        None => c.dtype(1)?,
    };
    if !SCALES.contains(&to) {
        let e = c.error(ErrorKind::Unsupported, format!("DequantizeLinear to {to}"));
        return Err(e.help("set output_dtype to float, float16 or bfloat16"));
    }
    infer_linear(c, D, to)
}

/// The type whose precision the quotient of QuantizeLinear has.
fn precision(attrs: &Attrs, scale: DType) -> DType {
    named_dtype(attrs, Q_PRECISION).unwrap_or(if scale == F8E8M0 { F32 } else { scale })
}

fn saturates(attrs: &Attrs) -> bool {
    attrs.int(Q_SATURATE) != Some(0)
}

fn ref_granularity(c: &RefCtx, at: Slots) -> Result<Granularity> {
    let (x, s) = (c.input(0)?, c.input(1)?);
    let g = granularity(at, c.attrs, x.shape().len(), s.shape().len(), s.n_elems() == 1);
    g.map_err(|e| tensor::Diagnostic::new(ErrorKind::Shape, format!("{}: {e}", c.def.name)))
}

fn quantize_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let scale = c.input(1)?;
    let named = named_dtype(c.attrs, Q.output_dtype).unwrap_or(U8);
    let to = Target {
        dtype: c.opt(2).map_or(named, |z| z.dtype()),
        precision: precision(c.attrs, scale.dtype()),
        saturate: saturates(c.attrs),
    };
    Ok(vec![quant::quantize(c.input(0)?, scale, c.opt(2), ref_granularity(c, Q)?, to)?])
}

fn dequantize_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let scale = c.input(1)?;
    let to = named_dtype(c.attrs, D.output_dtype).unwrap_or(scale.dtype());
    Ok(vec![quant::dequantize(c.input(0)?, scale, c.opt(2), ref_granularity(c, D)?, to)?])
}

/// Coordinates of the scale of the point.
fn scale_at(b: &mut Builder, rank: usize, g: Granularity) -> Vec<Coord> {
    match g {
        Granularity::Tensor => (0..rank).map(|_| b.fixed_at(0)).collect(),
        Granularity::Axis(axis) => vec![b.along(outer(axis))],
        Granularity::Blocks { axis, size } => (0..rank)
            .map(|i| match i == axis {
                true => {
                    let (o, size) = (b.outer(i), b.int(i64::try_from(size).unwrap_or(i64::MAX)));
                    let block = b.bin(BinOp::Div, o, size);
                    b.computed(block)
                }
                false => b.along(outer(i)),
            })
            .collect(),
    }
}

/// The data's element, its scale and its zero point, each in its compute type.
fn operands(b: &mut Builder, slots: Slots) -> Plan<(ExprId, ExprId, Option<ExprId>)> {
    let (x, s) = (b.c.need(0)?, b.c.need(1)?);
    let rank = x.shape.len();
    let is_one = s.shape.iter().all(|&d| b.c.dims.as_const(d) == Some(1));
    let g = granularity(slots, b.c.attrs, rank, s.shape.len(), is_one)?;
    let at: Vec<Coord> = (0..rank).map(|i| b.along(outer(i))).collect();
    let v = b.load(0, at)?;
    let at = scale_at(b, s.shape.len(), g);
    let scale = b.load(1, at.clone())?;
    let zero = match b.c.ins.get(2).cloned().flatten() {
        // A zero point of one element may have another rank than the scale.
        Some(z) if g == Granularity::Tensor => {
            let at = scale_at(b, z.shape.len(), g);
            Some(b.load(2, at)?)
        }
        Some(_) => Some(b.load(2, at)?),
        None => None,
    };
    Ok((v, scale, zero))
}

/// Least and greatest value of an integer type.
pub(super) fn int_range(d: DType) -> (f64, f64) {
    let bits = d.bits() as i32 - i32::from(d.is_signed());
    (if d.is_signed() { -(2f64.powi(bits)) } else { 0.0 }, 2f64.powi(bits) - 1.0)
}

impl Nest {
    /// A quotient as an element of a narrow type: integers round half to even, then the zero point is added and the sum saturates;
    /// floats round once, after the addition.
    pub(super) fn quantized(&mut self, q: ExprId, zero: Option<ExprId>, to: DType, how: Rounding) -> ExprId {
        let wide = self.expr_dtype(q);
        let zero = zero.map(|z| self.cast(z, wide));
        if to.is_float() {
            let v = zero.map_or(q, |z| self.bin(BinOp::Add, q, z));
            return self.convert(v, to, how);
        }
        let (lo, hi) = int_range(to);
        let rounded = self.un(UnOp::RoundEven, q);
        // The bounds first, so that every sum is exact.
        let v = match zero {
            None => self.clamp(rounded, lo, hi),
            Some(z) => {
                let (lo, hi) = (self.num_bin(BinOp::Sub, lo, z), self.num_bin(BinOp::Sub, hi, z));
                let v = self.bin(BinOp::Max, rounded, lo);
                let v = self.bin(BinOp::Min, v, hi);
                self.bin(BinOp::Add, v, z)
            }
        };
        self.convert(v, to, how)
    }
}

fn quantize_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (to, p) = (c.outs[0].dtype, precision(c.attrs, c.need(1)?.dtype));
    let how = Rounding { saturate: saturates(c.attrs), ..Rounding::default() };
    let mut b = Builder::over_result(c)?;
    let (x, scale, zero) = operands(&mut b, Q)?;
    let n = &mut b.nest;
    // Integer scales divide in f64, which holds every i32.
    let wide = if p.is_float() { F32 } else { F64 };
    let narrow = |n: &mut Nest, e: ExprId| {
        let e = n.cast(e, wide);
        if matches!(p, F16 | BF16) { n.expr(Expr::Round(e, p)) } else { e }
    };
    let (x, scale) = (narrow(n, x), narrow(n, scale));
    let q = n.bin(BinOp::Div, x, scale);
    let q = narrow(n, q);
    let y = n.quantized(q, zero, to, how);
    Ok(b.store(y))
}

fn dequantize_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let mut b = Builder::over_result(c)?;
    let (x, scale, zero) = operands(&mut b, D)?;
    let long = b.c.need(0)?.dtype == I32;
    let n = &mut b.nest;
    // Integers are subtracted as such, those of 32 bits in 64.
    let d = match n.expr_dtype(x) {
        d if d.is_float() => F32,
        _ if long => I64,
        _ => I32,
    };
    let mut v = n.cast(x, d);
    if let Some(z) = zero {
        let z = n.cast(z, d);
        v = n.bin(BinOp::Sub, v, z);
    }
    let (v, scale) = (n.cast(v, F32), n.cast(scale, F32));
    let y = n.bin(BinOp::Mul, v, scale);
    Ok(b.store(y))
}

/// One point that runs over all elements three times: the range, and the values.
fn dynamic_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    let mut b = Builder::new(c)?;
    b.nest.inner = x.shape.to_vec();
    let at: Vec<Coord> = (0..x.shape.len()).map(|i| b.along(inner(i))).collect();
    let v = b.load(0, at.clone())?;
    let range = b.reduce([(Combiner::Min, v), (Combiner::Max, v)]);
    let n = &mut b.nest;
    let (lo, hi) = (n.bin_num(BinOp::Min, range[0], 0.0), n.bin_num(BinOp::Max, range[1], 0.0));
    let extent = n.bin(BinOp::Sub, hi, lo);
    let step = n.bin_num(BinOp::Div, extent, 255.0);
    let (none, one) = (n.bin(BinOp::Eq, hi, lo), n.num(1.0, F32));
    let scale = n.select(none, one, step);
    let below = n.un(UnOp::Neg, lo);
    let zero = n.bin(BinOp::Div, below, scale);
    let zero = n.clamp(zero, 0.0, 255.0);
    let zero = n.un(UnOp::RoundEven, zero);
    let q = n.bin(BinOp::Div, v, scale);
    let y = n.quantized(q, Some(zero), U8, Rounding::default());
    let stored = n.convert(zero, U8, Rounding::default());
    let results = [Some((scale, 1)), Some((stored, 2))];
    let stores = results.into_iter().flatten().filter(|(_, i)| *i < b.c.outs.len());
    let stores: Vec<_> = stores.map(|(e, i)| (b.result(i, []), e)).collect();
    if !stores.is_empty() {
        b.nest.phases.push(Phase::Store { over_inner: false, stores });
    }
    let y = (b.result(0, at), y);
    b.nest.phases.push(Phase::Store { over_inner: true, stores: vec![y] });
    Ok(b.nest)
}

fn infer_dynamic(c: &mut InferCtx) -> Result<()> {
    match c.shape(0) {
        Some(s) => c.set(0, U8, s),
        None => c.set_unranked(0, U8),
    }
    c.set(1, F32, []);
    c.set(2, U8, []);
    Ok(())
}

/// y = saturate(round(x / y_scale) + y_zero_point)
pub(super) const QUANTIZE: OpDef = OpDef {
    name: "QuantizeLinear",
    inputs: &[req("x", "T1"), req("y_scale", "T2"), opt("y_zero_point", "T3")],
    outputs: &[req("y", "T3")],
    attrs: &[AXIS, SATURATE, BLOCK_SIZE, OUTPUT_DTYPE, attr("precision", AttrKind::Int(0))],
    infer: infer_quantize,
    reference: Some(quantize_ref),
    lower: &[Loops(quantize_loops)],
    tolerance: ROUNDED,
    cases: &[
        "[2,3]{-1,2.5,0,1,3,300};[]{2};[]{1}",
        "[2,3]{-1,2.5,0,1,3,300};[3]{2,1,4};[3]{1,0,2} axis=-1",
        "[2,5]{-1,2.5,0,1,3,300};[2,3]{2,1,4};[2,3]{1,0,2} axis=1 block_size=2",
        "[3,2,2];[2,2,2]{2,1,4} axis=0 block_size=2 output_dtype=i8",
        "[4]{-1,2.5,7,100};[]{0.5} precision=f16 output_dtype=i8",
        "[3];[3]{1,2,3}",
        "[0,2];[]{1}",
    ],
    ..ROW
};

/// y = (x - x_zero_point) · x_scale
pub(super) const DEQUANTIZE: OpDef = OpDef {
    name: "DequantizeLinear",
    inputs: &[req("x", "T1"), req("x_scale", "T2"), opt("x_zero_point", "T1")],
    outputs: &[req("y", "T3")],
    attrs: &[AXIS, BLOCK_SIZE, OUTPUT_DTYPE],
    infer: infer_dequantize,
    reference: Some(dequantize_ref),
    lower: &[Loops(dequantize_loops)],
    tolerance: ROUNDED,
    cases: &[
        "[2,3];[]{0.25};[]{1} output_dtype=f32",
        "[2,3];[2]{0.25,2};[2]{1,0} axis=0 output_dtype=f16",
        "[2,5];[2,3]{2,0.5,4};[2,3]{1,0,2} axis=1 block_size=2 output_dtype=f32",
        "[3];[] output_dtype=bf16",
        "[2]{-2147483648,5};[]{2};[]{1} output_dtype=f32",
        "[0,2];[]{1} output_dtype=f32",
    ],
    ..ROW
};

const Q_10: &[&str] = &["[2,3]{-1,2.5,0,1,3,300};[]{2};[]{1}", "[2,3];[]{0.5}", "[0,2];[]{1}"];
const Q_13: &[&str] = &[Q_10[0], Q_10[1], "[2,3]{-1,2.5,0,1,3,300};[3]{2,1,4};[3]{1,0,2} axis=-1", "[4];[4]{1,2,4}"];
const Q_19: &[&str] = &[Q_10[0], Q_13[2], "[2,3]{-1,1e6,0,1,-1e6,300};[]{2};[]{0} saturate=0"];
const Q_21: &[&str] = &[Q_10[0], Q_13[2], QUANTIZE.cases[2], QUANTIZE.cases[3]];
const D_10: &[&str] = &["[2,3];[]{0.25};[]{1}", "[2,3];[]{0.5}", "[0,2];[]{1}"];
const D_13: &[&str] = &[D_10[0], D_10[1], "[2,3];[3]{0.25,2,-1};[3]{1,0,2} axis=-1", "[4];[4]{1,2,4}"];
const D_21: &[&str] = &[D_10[0], D_13[2], "[2,5];[2,3]{2,0.5,4};[2,3]{1,0,2} axis=1 block_size=2"];

/// The rows.
pub static ROWS: &[OpDef] = &[
    OpDef {
        since: 10,
        until: 12,
        inputs: &[req("x", "T1"), req("y_scale", "tensor(float)"), opt("y_zero_point", "T2")],
        outputs: &[req("y", "T2")],
        attrs: &[],
        dtypes: &[("T1", &[F32, I32]), ("T2", BYTES), ONLY_F32],
        cases: Q_10,
        ..QUANTIZE
    },
    // By axis
    OpDef {
        since: 13,
        until: 18,
        inputs: &[req("x", "T1"), req("y_scale", "tensor(float)"), opt("y_zero_point", "T2")],
        outputs: &[req("y", "T2")],
        attrs: &[AXIS],
        dtypes: &[("T1", &[F32, I32]), ("T2", BYTES), ONLY_F32],
        cases: Q_13,
        ..QUANTIZE
    },
    // To 8-bit floats, scales of the type of x
    OpDef {
        since: 19,
        until: 20,
        inputs: &[req("x", "T1"), req("y_scale", "T1"), opt("y_zero_point", "T2")],
        outputs: &[req("y", "T2")],
        attrs: &[AXIS, SATURATE],
        dtypes: &[("T1", WIDE), ("T2", WITH_F8)],
        cases: Q_19,
        ..QUANTIZE
    },
    // By blocks
    OpDef {
        since: 21,
        until: 22,
        inputs: &[req("x", "T1"), req("y_scale", "T1"), opt("y_zero_point", "T2")],
        outputs: &[req("y", "T2")],
        attrs: &[AXIS, SATURATE, BLOCK_SIZE, OUTPUT_DTYPE],
        dtypes: &[("T1", WIDE), ("T2", WITH_PACKED)],
        cases: Q_21,
        ..QUANTIZE
    },
    // Scales of a type and a precision of their own
    OpDef { since: 23, until: 23, dtypes: &[("T1", WIDE), ("T2", WIDE), ("T3", WITH_F4)], ..QUANTIZE },
    OpDef {
        since: 24,
        until: 24,
        dtypes: &[("T1", WIDE), ("T2", &[F32, F16, BF16, I32, F8E8M0]), ("T3", WITH_F4)],
        ..QUANTIZE
    },
    OpDef {
        since: 25,
        until: 27,
        dtypes: &[("T1", WIDE), ("T2", &[F32, F16, BF16, I32, F8E8M0]), ("T3", NEWEST)],
        ..QUANTIZE
    },
    // Its 6-bit floats are refused where their tensors are read.
    OpDef { since: 28, dtypes: &[("T1", WIDE), ("T2", &[F32, F16, BF16, I32, F8E8M0]), ("T3", NEWEST)], ..QUANTIZE },
    OpDef {
        since: 10,
        until: 12,
        inputs: &[req("x", "T"), req("x_scale", "tensor(float)"), opt("x_zero_point", "T")],
        outputs: &[req("y", "tensor(float)")],
        attrs: &[],
        dtypes: &[("T", D_BYTES), ONLY_F32],
        cases: D_10,
        ..DEQUANTIZE
    },
    OpDef {
        since: 13,
        until: 18,
        inputs: &[req("x", "T"), req("x_scale", "tensor(float)"), opt("x_zero_point", "T")],
        outputs: &[req("y", "tensor(float)")],
        attrs: &[AXIS],
        dtypes: &[("T", D_BYTES), ONLY_F32],
        cases: D_13,
        ..DEQUANTIZE
    },
    OpDef {
        since: 19,
        until: 20,
        outputs: &[req("y", "T2")],
        attrs: &[AXIS],
        dtypes: &[("T1", D_F8), ("T2", SCALES)],
        cases: D_13,
        ..DEQUANTIZE
    },
    OpDef {
        since: 21,
        until: 22,
        outputs: &[req("y", "T2")],
        attrs: &[AXIS, BLOCK_SIZE],
        dtypes: &[("T1", D_PACKED), ("T2", SCALES)],
        cases: D_21,
        ..DEQUANTIZE
    },
    OpDef { since: 23, until: 23, dtypes: &[("T1", D_F4), ("T2", SCALES), ("T3", SCALES)], ..DEQUANTIZE },
    OpDef { since: 24, until: 24, dtypes: &[("T1", D_F4), ("T2", SCALES_24), ("T3", SCALES)], ..DEQUANTIZE },
    OpDef { since: 25, until: 27, dtypes: &[("T1", D_NEWEST), ("T2", SCALES_24), ("T3", SCALES)], ..DEQUANTIZE },
    OpDef { since: 28, dtypes: &[("T1", D_NEWEST), ("T2", SCALES_24), ("T3", SCALES)], ..DEQUANTIZE },
    // y = saturate(round(x / scale) + zero point), both from the range of x and 0
    OpDef {
        name: "DynamicQuantizeLinear",
        since: 11,
        inputs: &[req("x", "T1")],
        outputs: &[req("y", "T2"), req("y_scale", "tensor(float)"), req("y_zero_point", "T2")],
        dtypes: &[("T1", &[F32]), ("T2", &[U8]), ONLY_F32],
        infer: infer_dynamic,
        reference: Some(|c| Ok(quant::dynamic_quantize(c.input(0)?).to_vec())),
        lower: &[Loops(dynamic_loops)],
        tolerance: ROUNDED,
        cases: &["[2,3]", "[6]{0,2,-3,-2.5,1.34,0.5}", "[4]{1,2.1,1.3,2.5}", "[]{-1}", "[2]{0,0}", "[0,3]"],
        ..ROW
    },
];
