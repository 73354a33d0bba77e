//! Rows up to opset 6, before broadcasting was numpy's: the second operand's extents stand where `axis` says, or last.

use super::row::*;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::{self, Expand};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req};
use reference::elementwise as r;
use reference::movement::with_shape;
use tensor::DType::{self, *};
use tensor::{ErrorKind, Result, Tensor};

const AXIS: usize = 0;
const BROADCAST: usize = 1;
/// `consumed_inputs` of opset 1 was a hint about memory and says nothing about values.
const ALIGNED: &[AttrDef] =
    &[attr("axis", AttrKind::IntOpt), attr("broadcast", AttrKind::Int(0)), attr("consumed_inputs", AttrKind::Ints)];
const ARITHMETIC: (&str, &[DType]) = ("T", &[F32, F16, F64, I32, I64, U32, U64]);
const CASES: &[&str] = &[
    "[2,3];[2,3]",
    "[2,3,4];[4] broadcast=1",
    "[2,3,4];[3,4] broadcast=1",
    "[2,3,4];[3] broadcast=1 axis=1",
    "[2,3,4];[2,3] broadcast=1 axis=0",
    "[2,3,4];[2,1] broadcast=1 axis=-3",
    "[2,3];[] broadcast=1",
    "[2,3];[1] broadcast=1",
    "[2,2,2];[2] broadcast=1 axis=1",
];

const TWO: OpDef = OpDef {
    since: 1,
    until: 6,
    inputs: &[req("A", "T"), req("B", "T")],
    outputs: &[req("C", "T")],
    attrs: ALIGNED,
    dtypes: &[ARITHMETIC],
    infer: |c| {
        aligned(c)?;
        same_type_as_0(c)
    },
    cases: CASES,
    ..ROW
};

/// Of results that are bools.
const TEST: OpDef = OpDef {
    outputs: &[req("C", "B")],
    dtypes: &[ARITHMETIC, ("B", BOOL)],
    infer: |c| {
        aligned(c)?;
        match c.shape(0) {
            Some(s) => c.set(0, Bool, s),
            None => c.set_unranked(0, Bool),
        }
        Ok(())
    },
    ..TWO
};

const LOGIC: OpDef = OpDef { dtypes: &[("T", BOOL), ("B", BOOL)], ..TEST };

/// The operator of today on operands whose axes stand as numpy has them.
const TODAY: &[Candidate] = &[Expand(|x| {
    let b = stretched(x)?;
    let (name, a) = (x.def().name, x.need(0)?);
    Ok(vec![x.op(name, &[a, b], &[])])
})];

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef { name: "Add", reference: Some(|c| both(c, r::add)), lower: TODAY, ..TWO },
    OpDef { name: "Sub", reference: Some(|c| both(c, r::sub)), lower: TODAY, ..TWO },
    OpDef { name: "Mul", reference: Some(|c| both(c, r::mul)), lower: TODAY, ..TWO },
    OpDef { name: "Div", reference: Some(|c| both(c, r::div)), lower: TODAY, ..TWO },
    OpDef {
        name: "Pow",
        inputs: &[req("X", "T"), req("Y", "T")],
        outputs: &[req("Z", "T")],
        dtypes: &[("T", &[F32, F16, F64])],
        reference: Some(|c| both(c, r::pow)),
        lower: TODAY,
        tolerance: Tol::Rel(2e-5),
        cases: &["[2,3]{1,2,3};[2,3]{2,3,0.5}", "[2,3]{1,4,9};[2]{0.5,2} broadcast=1 axis=0"],
        ..TWO
    },
    OpDef {
        name: "Equal",
        dtypes: &[("T", &[Bool, I32, I64]), ("B", BOOL)],
        reference: Some(|c| both(c, r::equal)),
        lower: TODAY,
        ..TEST
    },
    OpDef {
        name: "Less",
        dtypes: &[("T", &[F32, F16, F64]), ("B", BOOL)],
        reference: Some(|c| both(c, r::less)),
        lower: TODAY,
        ..TEST
    },
    OpDef {
        name: "Greater",
        dtypes: &[("T", &[F32, F16, F64]), ("B", BOOL)],
        reference: Some(|c| both(c, r::greater)),
        lower: TODAY,
        ..TEST
    },
    OpDef { name: "And", reference: Some(|c| both(c, r::and)), lower: TODAY, ..LOGIC },
    OpDef { name: "Or", reference: Some(|c| both(c, r::or)), lower: TODAY, ..LOGIC },
    OpDef { name: "Xor", reference: Some(|c| both(c, r::xor)), lower: TODAY, ..LOGIC },
    // Y = X, below zero slope · X: a slope for each channel, or one for all
    OpDef {
        name: "PRelu",
        since: 1,
        until: 6,
        inputs: &[req("X", "T"), req("slope", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[attr("consumed_inputs", AttrKind::Ints)],
        dtypes: &[("T", &[F32, F16, F64])],
        infer: |c| {
            let (Some(x), Some(slope)) = (c.shape(0), c.shape(1)) else { return same_type_as_0(c) };
            let n = c.dims.product(slope.iter().copied());
            if c.dims.as_const(n) != Some(1) {
                let (&[n], Some(&channels)) = (slope.as_slice(), x.get(1)) else {
                    let text = "PRelu before opset 7: the slope is one number, or one for each channel";
                    return Err(c.error(ErrorKind::Shape, text));
                };
                c.require_eq(n, channels, "a slope for each channel")?;
            }
            same_type_as_0(c)
        },
        reference: Some(|c| {
            let (x, slope) = (c.input(0)?, c.input(1)?);
            let mut shape = vec![1; x.shape().len()];
            if slope.n_elems() != 1 {
                shape.get_mut(1).into_iter().for_each(|n| *n = slope.n_elems());
            }
            Ok(vec![reference::activation::prelu(x, &with_shape(slope, &shape)?)?])
        }),
        lower: &[Expand(|x| {
            let (data, slope) = (x.need(0)?, x.need(1)?);
            let (rank, n) = (x.tensor(data)?.1.len(), x.tensor(slope)?.1);
            let slope = if n.iter().all(|&d| x.as_const(d) == Some(1)) {
                x.reshape(slope, &[])
            } else {
                let after: Vec<i64> = (1..rank as i64 - 1).collect();
                x.unsqueeze(slope, &after)
            };
            Ok(vec![x.op("PRelu", &[data, slope], &[])])
        })],
        tolerance: ROUNDED,
        cases: &["[2,3];[3]", "[2,3,4,5];[3]", "[2,3,4];[1]", "[4];[1]", "[2,1,3];[1]"],
        ..ROW
    },
];

/// Requires the extents of operand 1 to stand in those of operand 0.
fn aligned(c: &mut InferCtx) -> Result<()> {
    if c.dtype(0)? != c.dtype(1)? {
        let text = format!("{}: operands are {} and {} but must have one type", c.def.name, c.dtype(0)?, c.dtype(1)?);
        return Err(c.error(ErrorKind::Type, text));
    }
    let (Some(a), Some(b)) = (c.shape(0), c.shape(1)) else { return Ok(()) };
    let fail = |c: &InferCtx, what: &str| Err(c.error(ErrorKind::Shape, format!("{}: {what}", c.def.name)));
    let broadcasts = c.attrs.int(BROADCAST) == Some(1);
    if a.len() < b.len() || (!broadcasts && a.len() != b.len()) {
        return fail(
            c,
            "before opset 7 the second operand has no more axes than the first, and without broadcast=1 as many",
        );
    }
    let first = match c.attrs.int(AXIS) {
        Some(axis) if broadcasts && !a.is_empty() => c.axis(axis, a.len())?,
        _ => a.len() - b.len(),
    };
    if first + b.len() > a.len() {
        return fail(c, "the second operand's axes go beyond those of the first");
    }
    for (&n, &d) in b.iter().zip(&a[first..]) {
        if !(broadcasts && c.dims.as_const(n) == Some(1)) {
            c.require_eq(n, d, "extents where the second operand stands")?;
        }
    }
    Ok(())
}

/// Axes of operand 0 after those where operand 1 stands.
fn axes_after(attrs: &crate::attrs::Attrs, a: usize, b: usize) -> usize {
    match attrs.int(AXIS) {
        Some(axis) if attrs.int(BROADCAST) == Some(1) && a > 0 => a - super::movement::checked_axis(axis, a) - b,
        _ => 0,
    }
}

fn both(c: &RefCtx, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let mut shape = b.shape().to_vec();
    shape.extend(vec![1; axes_after(c.attrs, a.shape().len(), b.shape().len())]);
    Ok(vec![f(a, &with_shape(b, &shape)?)?])
}

/// Operand 1 with axes of extent 1 after its own.
fn stretched(x: &mut Expansion) -> Result<Value> {
    let (a, b) = (x.need(0)?, x.need(1)?);
    let (ra, rb) = (x.tensor(a)?.1.len(), x.tensor(b)?.1.len());
    let after = axes_after(x.attrs(), ra, rb);
    let axes: Vec<i64> = (rb as i64..(rb + after) as i64).collect();
    Ok(if axes.is_empty() { b } else { x.unsqueeze(b, &axes) })
}
