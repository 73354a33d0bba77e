//! QuantizeLinear and DequantizeLinear as com.microsoft had them before ai.onnx took 16- and 4-bit integers.

use super::super::quant::{AXIS, DEQUANTIZE, QUANTIZE};
use super::MICROSOFT;
use crate::op::{OpDef, opt, req};
use tensor::DType::{F16, F32, I4, I8, I16, I32, U4, U8, U16};

const CASES: &[&str] =
    &["[2,3];[]{0.25};[]{1}", "[2,3];[3]{0.25,2,0.5};[3]{1,0,2} axis=-1", "[2,3];[2]{0.25,2} axis=0"];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // y = saturate(round(x / y_scale) + y_zero_point)
    OpDef {
        domain: MICROSOFT,
        since: 1,
        inputs: &[req("x", "T1"), req("y_scale", "T1"), opt("y_zero_point", "T2")],
        outputs: &[req("y", "T2")],
        attrs: &[AXIS],
        dtypes: &[("T1", &[F32, F16]), ("T2", &[U8, I8, U16, I16, U4, I4])],
        cases: CASES,
        ..QUANTIZE
    },
    // y = (x - x_zero_point) · x_scale
    OpDef {
        domain: MICROSOFT,
        since: 1,
        inputs: &[req("x", "T1"), req("x_scale", "T2"), opt("x_zero_point", "T1")],
        outputs: &[req("y", "T2")],
        attrs: &[AXIS],
        dtypes: &[("T1", &[U8, I8, U16, I16, I32, U4, I4]), ("T2", &[F32, F16])],
        cases: CASES,
        ..DEQUANTIZE
    },
];
