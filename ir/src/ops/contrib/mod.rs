//! Rows of com.microsoft: what exporters and optimizers of transformers, speech and quantized models write beyond ai.onnx.

mod activate;
mod attend;
pub mod attention;
pub mod bias;
pub mod bnb4;
mod codes;
pub mod compositions;
pub mod conv;
pub mod crop;
pub mod earlier;
pub mod embed;
pub mod experts;
pub mod fused;
pub mod gather_blocks;
pub mod gqa;
pub mod group_norm;
pub mod inverse;
pub mod masked;
pub mod mha;
pub mod moe;
mod moe_expand;
pub mod mrotary;
pub mod nbits;
pub mod packed;
pub mod padding;
pub mod position;
pub mod qattention;
pub mod qconvert;
pub mod qembed;
pub mod qfloat;
pub mod qlinear;
pub mod qlstm;
pub mod qpool;
pub mod qproduct;
pub mod residual;
pub mod rotary;
pub mod softmax;
pub mod sparse;
pub mod state;
pub mod words;

use super::broadcast::require_broadcasts_to;
use super::row::{FLOATS, same_type_as_0};
use crate::attrs::Attr;
use crate::op::{InferCtx, RefCtx};
use reference::data::{f64s, from_f64s};
use reference::elementwise as e;
use tensor::DType::{self, F32, F64};
use tensor::{DimId, Result, Tensor};

const MICROSOFT: &str = "com.microsoft";
const T: (&str, &[DType]) = ("T", FLOATS);

/// The result is like operand 0; the others broadcast to it.
fn like_first(c: &mut InferCtx) -> Result<()> {
    same_type_as_0(c)?;
    let Some(s) = c.shape(0) else { return Ok(()) };
    for i in 1..c.ins.len() {
        if let Some(t) = c.shape(i) {
            let name = c.def.inputs[i].name;
            require_broadcasts_to(c, &t, &s, name)?;
        }
    }
    Ok(())
}

/// States that `part` divides `whole`, where both may be 0.
fn require_divides(c: &mut InferCtx, part: DimId, whole: DimId, what: &str) -> Result<()> {
    let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
    let some = c.dims.min(whole, one);
    let name = c.def.name;
    c.require_le(some, part, &format!("{name}: {what}"));
    let part = c.dims.max(part, one);
    let rest = c.dims.modulo(whole, part);
    c.require_eq(rest, zero, what)
}

/// The sum of operand 0 and of those of `operands` that are there, in f64.
fn sum(c: &RefCtx, operands: &[usize]) -> Result<Tensor> {
    let mut y = rounded(c.input(0)?, F64);
    for &i in operands {
        if let Some(t) = c.opt(i) {
            y = e::add(&y, &rounded(t, F64))?;
        }
    }
    Ok(y)
}

/// The tensor in another float type.
fn rounded(t: &Tensor, to: DType) -> Tensor {
    from_f64s(to, t.shape(), &f64s(t))
}

/// In which type residuals are added and normalized: two narrow floats lose digits when their sum is rounded.
fn wide(dtype: DType) -> DType {
    if dtype.bits() < 32 { F32 } else { dtype }
}

fn float(v: f32) -> Attr {
    Attr::Float(crate::attrs::F32::new(v))
}
