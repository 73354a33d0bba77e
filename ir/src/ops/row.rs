//! What rows are made of: an empty row to start from, lists of element types, small rules and adapters that many rows share.

use crate::lowering::Candidate;
use crate::op::{InferCtx, OpDef, OpTraits, RefCtx, Tol};
use tensor::DType::{self, *};
use tensor::{Result, Tensor};

/// A row with nothing in it; rows are written as `OpDef { name: …, ..ROW }`.
pub const ROW: OpDef = OpDef {
    name: "",
    domain: "",
    since: 1,
    until: i64::MAX,
    inputs: &[],
    outputs: &[],
    attrs: &[],
    dtypes: &[],
    infer: |_| Ok(()),
    reference: None,
    lower: &[],
    traits: OpTraits::NONE,
    tolerance: Tol::Exact,
    cases: &[],
};

/// Traits of rows that move elements of operand 0.
pub const MOVES: OpTraits = OpTraits { moves: true, ..OpTraits::NONE };

/// Floats that arithmetic is defined for.
pub const FLOATS: &[DType] = &[F32, F16, BF16, F64];
/// Integers of 8 bits and more.
pub const INTS: &[DType] = &[I32, I64, I8, I16, U8, U16, U32, U64];
/// Floats and integers that arithmetic is defined for.
pub const NUMS: &[DType] = &[F32, F16, BF16, F64, I32, I64, I8, I16, U8, U16, U32, U64];
/// Floats and signed integers.
pub const SIGNED: &[DType] = &[F32, F16, BF16, F64, I32, I64, I8, I16];
/// Bool alone.
pub const BOOL: &[DType] = &[DType::Bool];
/// The 8- and 4-bit floats.
pub const SMALL_FLOATS: &[DType] = &[F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1];
/// Bool and numbers of 8 bits and more, without the 8-bit floats: what ONNX has had from the beginning, and bf16.
pub const BASIC: &[DType] = &[F32, F16, BF16, F64, I32, I64, I8, I16, U8, U16, U32, U64, DType::Bool];
/// Every type of real numbers and bool, without strings.
pub const PLAIN: &[DType] = &[
    F32,
    F16,
    BF16,
    F64,
    I32,
    I64,
    I8,
    I16,
    U8,
    U16,
    U32,
    U64,
    DType::Bool,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F4E2M1,
    U4,
    I4,
    U2,
    I2,
];
/// Every element type that tensors may have here: [`PLAIN`] and strings.
pub const ANY: &[DType] = &[
    F32,
    F16,
    BF16,
    F64,
    I32,
    I64,
    I8,
    I16,
    U8,
    U16,
    U32,
    U64,
    DType::Bool,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F4E2M1,
    U4,
    I4,
    U2,
    I2,
    String,
];

/// f32 results within a few roundings of the reference.
pub const ROUNDED: Tol = Tol::Rel(2e-6);

/// No candidate but the reference function.
pub const HOST: &[Candidate] = &[Candidate::Host];

/// Shape rule: the result has operand 0's type; values known as dims pass through.
pub fn same_as_0(c: &mut InferCtx) -> Result<()> {
    c.set_type(0, c.ty(0).clone());
    if let Some(v) = c.values(0) {
        c.set_values(0, v);
    }
    Ok(())
}

/// Shape rule: the result has operand 0's type, its elements are computed.
pub fn same_type_as_0(c: &mut InferCtx) -> Result<()> {
    c.set_type(0, c.ty(0).clone());
    Ok(())
}

/// Adapter: one operand.
pub fn ref1(c: &RefCtx, f: impl Fn(&Tensor) -> Tensor) -> Result<Vec<Tensor>> {
    Ok(vec![f(c.input(0)?)])
}
/// Adapter: two operands.
pub fn ref2(c: &RefCtx, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    Ok(vec![f(c.input(0)?, c.input(1)?)?])
}
