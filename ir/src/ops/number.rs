//! Numbers that operands give: in shape rules as dims, in expansions as lists of one integer.

use crate::expand::Expansion;
use crate::graph::Value;
use crate::op::InferCtx;
use tensor::dims::Origin;
use tensor::{DType, DimId, Result};

/// The number that operand `i` is, as an extent; a symbol of the run where it is not known.
pub fn length_of(c: &mut InferCtx, i: usize, name: &str) -> Result<DimId> {
    c.require_single(i, name)?;
    match c.need_values(i).and_then(|v| v.first().copied()) {
        Some(n) => c.extent(n),
        None => Ok(c.fresh(name, Origin::Unknown)),
    }
}

/// An integer operand as a list of one i64.
pub fn list(x: &mut Expansion, v: Value) -> Value {
    let wide = match x.tensor(v) {
        Ok((DType::I64, _)) => v,
        _ => x.cast(v, DType::I64),
    };
    x.reshape(wide, &[1])
}

/// The product of extents.
pub fn product(x: &mut Expansion, extents: &[Value]) -> Value {
    let Some((&first, rest)) = extents.split_first() else { return x.ints(&[1]) };
    rest.iter().fold(first, |p, &e| x.op("Mul", &[p, e], &[]))
}
