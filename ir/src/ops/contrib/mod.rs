//! Rows of com.microsoft: what exporters and optimizers of transformers, speech and quantized models write beyond ai.onnx.

pub mod bias;
pub mod bnb4;
pub mod experts;
pub mod gather_blocks;
pub mod moe;
mod moe_expand;
pub mod nbits;
mod packed;
pub mod residual;
pub mod rotary;

use super::broadcast::require_broadcasts_to;
use super::row::{FLOATS, same_type_as_0};
use crate::attrs::Attr;
use crate::op::{InferCtx, RefCtx};
use reference::data::{f64s, from_f64s};
use reference::elementwise as e;
use tensor::DType::{self, F32, F64};
use tensor::{Result, Tensor};

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
