//! Products of integer matrices as numbers: DynamicQuantizeMatMul, MatMulIntegerToFloat, QGemm.

use super::super::broadcast::require_broadcasts_to;
use super::super::matmul::product_shape;
use super::super::qproduct::check_lines;
use super::super::row::{ROUNDED, ROW};
use super::qfloat::quantize;
use super::qlinear::{BYTES, require_scalars};
use super::{MICROSOFT, rounded};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, attr, opt, req};
use reference::elementwise as e;
use reference::movement::transpose;
use reference::quant::{self, Granularity};
use tensor::DType::{self, F16, F32, F64, I32};
use tensor::{ErrorKind, Result, Tensor};

/// Integers with their zero point, one number or one for each column.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    pub q: Value,
    pub zero: Option<Value>,
}

/// The product of integer matrices in i32.
pub(super) fn integer_product(x: &mut Expansion, a: Integers, b: Integers) -> Value {
    x.op_opt("MatMulInteger", &[Some(a.q), Some(b.q), a.zero, b.zero], &[], 1)[0]
}

/// Checks what the result is made of besides the matrices A (operand 0) and B (operand 1): a scale and a zero point of B, and a bias.
fn infer_product(c: &mut InferCtx, [scale, zero, bias]: [usize; 3], to: DType) -> Result<()> {
    if let Some(b) = c.shape(1) {
        check_lines(c, scale, &b, false)?;
        check_lines(c, zero, &b, false)?;
    }
    let ranks = [0, scale].map(|i| c.shape(i).map(|s| s.len()));
    if let [Some(1), Some(2..)] = ranks {
        let text = format!("{}: a scale of B by matrix, where A is no matrix", c.def.name);
        return Err(c.error(ErrorKind::Shape, text).help("give the scale one axis"));
    }
    let Some(y) = product_shape(c, (0, 1), (false, false))? else {
        c.set_unranked(0, to);
        return Ok(());
    };
    if let Some(s) = c.shape(bias) {
        match (s.as_slice(), y.last()) {
            (&[n], Some(&columns)) => c.require_eq(n, columns, "bias has one value per column of B")?,
            _ => return Err(c.error(ErrorKind::Shape, format!("{}: bias is not a list", c.def.name))),
        }
    }
    c.set(0, to, y);
    Ok(())
}

/// `sum · scale + bias` in f64.
fn scaled(sum: &Tensor, scales: [&Tensor; 2], bias: Option<&Tensor>) -> Result<Tensor> {
    let [a, b] = scales.map(|s| rounded(s, F64));
    let one = if a.n_elems() == 1 { a.reshaped(&[]) } else { a };
    let b = if b.n_elems() == 1 { b.reshaped(&[]) } else { b };
    let y = e::mul(&rounded(sum, F64), &e::mul(&one, &b)?)?;
    bias.map_or(Ok(y.clone()), |bias| e::add(&y, &rounded(bias, F64)))
}

fn dynamic_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let [a, scale, zero] = quant::dynamic_quantize(c.input(0)?);
    let sum = quant::matmul_integer(&a, c.input(1)?, Some(&zero), c.opt(3))?;
    Ok(vec![rounded(&scaled(&sum, [&scale, c.input(2)?], c.opt(4))?, F32)])
}

fn to_float_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let sum = quant::matmul_integer(c.input(0)?, c.input(1)?, c.opt(4), c.opt(5))?;
    let y = scaled(&sum, [c.input(2)?, c.input(3)?], c.opt(6))?;
    Ok(vec![rounded(&y, c.input(2)?.dtype())])
}

/// The sum as numbers: times the scales, plus the bias, in f32.
fn numbers(x: &mut Expansion, sum: Value, scales: [Value; 2], bias: Option<Value>) -> Value {
    let [a, b] = scales.map(|s| x.cast(s, F32));
    let scale = x.op("Mul", &[a, b], &[]);
    let sum = x.cast(sum, F32);
    let y = x.op("Mul", &[sum, scale], &[]);
    match bias {
        Some(bias) => {
            let bias = x.cast(bias, F32);
            x.op("Add", &[y, bias], &[])
        }
        None => y,
    }
}

/// A scale of one element as rank 0, so that it does not add an axis to a result without one.
fn factor(x: &mut Expansion, i: usize) -> Result<Value> {
    let v = x.need(i)?;
    let (_, s) = x.tensor(v)?;
    let single = !s.is_empty() && s.iter().all(|&d| x.as_const(d) == Some(1));
    Ok(if single { x.reshape(v, &[]) } else { v })
}

fn expand_dynamic(x: &mut Expansion) -> Result<Vec<Value>> {
    let (a, b) = (x.need(0)?, x.need(1)?);
    let r = x.op_n("DynamicQuantizeLinear", &[a], &[], 3);
    let (a, b) = (Integers { q: r[0], zero: Some(r[2]) }, Integers { q: b, zero: x.input(3) });
    let sum = integer_product(x, a, b);
    let scale = factor(x, 2)?;
    let bias = x.input(4);
    Ok(vec![numbers(x, sum, [r[1], scale], bias)])
}

fn expand_to_float(x: &mut Expansion) -> Result<Vec<Value>> {
    let (a, b, scale) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let to = x.tensor(scale)?.0;
    let sum = integer_product(x, Integers { q: a, zero: x.input(4) }, Integers { q: b, zero: x.input(5) });
    let scales = [factor(x, 2)?, factor(x, 3)?];
    let bias = x.input(6);
    let y = numbers(x, sum, scales, bias);
    Ok(vec![x.cast(y, to)])
}

/// Operands of QGemm from C on.
const C: usize = 6;
const Y_SCALE: usize = 7;
const Y_ZERO: usize = 8;

fn gemm_flags(attrs: &crate::attrs::Attrs) -> (bool, bool, f32) {
    let flag = |i: usize| attrs.int(i).is_some_and(|v| v != 0);
    (flag(0), flag(1), attrs.float(2).unwrap_or(1.0))
}

fn infer_gemm(c: &mut InferCtx) -> Result<()> {
    if c.has(Y_SCALE) != c.has(Y_ZERO) {
        let text = "QGemm: y_scale and y_zero_point are given together, or the result is a float";
        return Err(c.error(ErrorKind::Unsupported, text).help("give both, or none"));
    }
    require_scalars(c, &[1, 2, Y_SCALE, Y_ZERO])?;
    let to = if c.has(Y_ZERO) { c.dtype(Y_ZERO)? } else { F32 };
    let (trans_a, trans_b, _) = gemm_flags(c.attrs);
    for i in [0, 3] {
        if c.shape(i).is_some_and(|s| s.len() != 2) {
            let text = format!("QGemm: {} is not a matrix", c.def.inputs[i].name);
            return Err(c.error(ErrorKind::Shape, text));
        }
    }
    if let Some(b) = c.shape(3) {
        let columns = b[if trans_b { 0 } else { 1 }];
        for i in [4, 5] {
            let Some(s) = c.shape(i) else { continue };
            let name = c.def.inputs[i].name;
            match *s.as_slice() {
                [] => {}
                [d] if c.dims.as_const(d) == Some(1) => {}
                [d] => c.require_eq(d, columns, &format!("{name} has one value per column of B"))?,
                _ => {
                    let text = format!("QGemm: {name} is neither one number nor one per column of B");
                    return Err(c.error(ErrorKind::Shape, text));
                }
            }
        }
    }
    let Some(y) = product_shape(c, (0, 3), (trans_a, trans_b))? else {
        c.set_unranked(0, to);
        return Ok(());
    };
    if let Some(s) = c.shape(C) {
        require_broadcasts_to(c, &s, &y, "C")?;
    }
    c.set(0, to, y);
    Ok(())
}

fn gemm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (trans_a, trans_b, alpha) = gemm_flags(c.attrs);
    let matrix = |i: usize, trans: bool| -> Result<Tensor> {
        let m = c.input(i)?;
        if trans { transpose(m, &[1, 0]) } else { Ok(m.clone()) }
    };
    let mut sum = quant::matmul_integer(&matrix(0, trans_a)?, &matrix(3, trans_b)?, c.opt(2), c.opt(5))?;
    if let Some(added) = c.opt(C) {
        sum = e::add(&sum, added)?;
    }
    let alpha = Tensor::from_f64(&[], &[alpha.into()]);
    let y = e::mul(&scaled(&sum, [c.input(1)?, c.input(4)?], None)?, &alpha)?;
    let (Some(scale), Some(zero)) = (c.opt(Y_SCALE), c.opt(Y_ZERO)) else { return Ok(vec![rounded(&y, F32)]) };
    let to = quant::Target { dtype: zero.dtype(), precision: F64, saturate: true };
    Ok(vec![quant::quantize(&y, scale, Some(zero), Granularity::Tensor, to)?])
}

fn expand_gemm(x: &mut Expansion) -> Result<Vec<Value>> {
    let (trans_a, trans_b, alpha) = gemm_flags(x.attrs());
    let (mut a, mut b) = (x.need(0)?, x.need(3)?);
    if trans_a {
        a = x.transpose(a, &[1, 0]);
    }
    if trans_b {
        b = x.transpose(b, &[1, 0]);
    }
    let mut sum = integer_product(x, Integers { q: a, zero: x.input(2) }, Integers { q: b, zero: x.input(5) });
    if let Some(added) = x.input(C) {
        sum = x.op("Add", &[sum, added], &[]);
    }
    let (mut a_scale, b_scale) = (factor(x, 1)?, factor(x, 4)?);
    if alpha != 1.0 {
        let alpha = x.scalar(F32, alpha.into());
        a_scale = x.op("Mul", &[alpha, a_scale], &[]);
    }
    let mut scale = x.op("Mul", &[a_scale, b_scale], &[]);
    let quantized = x.input(Y_SCALE).is_some();
    if quantized {
        let y_scale = factor(x, Y_SCALE)?;
        scale = x.op("Div", &[scale, y_scale], &[]);
    }
    let sum = x.cast(sum, F32);
    let y = x.op("Mul", &[sum, scale], &[]);
    if !quantized {
        return Ok(vec![y]);
    }
    let (one, zero) = (x.scalar(F32, 1.0), x.input(Y_ZERO));
    Ok(vec![quantize(x, y, one, zero, Y_ZERO)?])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = A · B + bias, A as integers by its range
    OpDef {
        name: "DynamicQuantizeMatMul",
        domain: MICROSOFT,
        inputs: &[req("A", "T1"), req("B", "T2"), req("b_scale", "T1"), opt("b_zero_point", "T2"), opt("bias", "T1")],
        outputs: &[req("Y", "T1")],
        dtypes: &[("T1", &[F32]), ("T2", BYTES)],
        infer: |c| infer_product(c, [2, 3, 4], F32),
        reference: Some(dynamic_ref),
        lower: &[Expand(expand_dynamic)],
        tolerance: ROUNDED,
        cases: &[
            "[3,4];[4,5];[]{0.5}",
            "[2,3,4];[4,5];[5]{0.5,0.1,2};[5]{1,0,3};[5]",
            "[2,3,4];[2,4,5];[2,1,5]{0.5,0.1,2};[2,1,5]{1,0,3};[5]",
            "[4];[4,5];[1]{0.5};[1]{3};[5]",
            "[3,0];[0,5];[]{0.5}",
        ],
        ..ROW
    },
    // Y = (A - a_zero_point) · (B - b_zero_point) · a_scale · b_scale + bias
    OpDef {
        name: "MatMulIntegerToFloat",
        domain: MICROSOFT,
        inputs: &[
            req("A", "T1"),
            req("B", "T2"),
            req("a_scale", "T3"),
            req("b_scale", "T3"),
            opt("a_zero_point", "T1"),
            opt("b_zero_point", "T2"),
            opt("bias", "T3"),
        ],
        outputs: &[req("Y", "T3")],
        dtypes: &[("T1", BYTES), ("T2", BYTES), ("T3", &[F32, F16])],
        infer: |c| {
            require_scalars(c, &[2, 4])?;
            let to = c.dtype(2)?;
            infer_product(c, [3, 5, 6], to)
        },
        reference: Some(to_float_ref),
        lower: &[Expand(expand_to_float)],
        tolerance: ROUNDED,
        cases: &[
            "[3,4];[4,5];[]{0.5};[]{0.25}",
            "[2,3,4];[4,5];[1]{0.5};[5]{0.5,0.1,2};[]{7};[5]{1,0,3};[5]",
            "[2,3,4];[2,4,5];[]{0.5};[2,1,5]{0.5,0.1,2};_;[2,1,5]{1,0,3}",
            "[4];[4,5];[]{0.5};[1]{0.5};[1]{3};_;[5]",
        ],
        ..ROW
    },
    // y = alpha · a_scale · b_scale · ((A - a_zero_point) · (B - b_zero_point) + C), quantized where y_scale is given
    OpDef {
        name: "QGemm",
        domain: MICROSOFT,
        inputs: &[
            req("A", "TA"),
            req("a_scale", "T"),
            req("a_zero_point", "TA"),
            req("B", "TB"),
            req("b_scale", "T"),
            req("b_zero_point", "TB"),
            opt("C", "TC"),
            opt("y_scale", "T"),
            opt("y_zero_point", "TYZ"),
        ],
        outputs: &[req("Y", "TY")],
        attrs: &[
            attr("transA", AttrKind::Int(0)),
            attr("transB", AttrKind::Int(0)),
            attr("alpha", AttrKind::Float(1.0)),
        ],
        dtypes: &[
            ("T", &[F32]),
            ("TA", BYTES),
            ("TB", BYTES),
            ("TC", &[I32]),
            ("TYZ", BYTES),
            ("TY", &[F32, BYTES[0], BYTES[1]]),
        ],
        infer: infer_gemm,
        reference: Some(gemm_ref),
        lower: &[Expand(expand_gemm)],
        tolerance: ROUNDED,
        cases: &[
            "[3,4];[]{0.5};[]{1};[4,5];[]{0.25};[]{2}",
            "[4,3];[1]{0.5};[1]{1};[5,4];[5]{0.25,0.5,2};[5]{2,0,1};[5]{100,-3,7};[]{0.5};[]{3} transA=1 transB=1 alpha=0.5",
            "[3,4];[]{0.5};[]{1};[4,5];[]{0.25};[]{2};[3,1]{100,-3,7};[1]{0.25};[1]{9}",
            "[3,4];[]{0.5};[]{1};[5,4];[5]{0.25};[5]{2};[]{7} transB=1 alpha=2",
        ],
        ..ROW
    },
];
