//! Rows of pooling with norms: (Σ |x|ᵖ)^(1/p) over windows.

use super::loops::{Builder, inner, outer};
use super::pool::{
    CEIL, CEIL_MODE, COMMON, DILATION, DILATIONS, ROUND, global_infer, node_geometry, pool_infer, whole,
};
use super::row::{FLOATS, ROW};
use super::window::window;
use crate::attrs::Attrs;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Combiner, ExprId, Nest, UnOp};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, attr, req};
use reference::image;
use tensor::{DType, DType::*, ErrorKind, Result};

const OLD: (&str, &[DType]) = ("T", &[F32, F16, F64]);
const T: (&str, &[DType]) = ("T", FLOATS);
const P: AttrDef = attr("p", AttrKind::Int(2));
/// The slot of p in LpPool.
const EXPONENT: usize = 4;

const POOL: OpDef = OpDef {
    name: "LpPool",
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T")],
    infer: |c| {
        check(c, EXPONENT)?;
        pool_infer(c)
    },
    reference: Some(|c| {
        let x = c.input(0)?;
        let w =
            window(c.attrs, Some(DILATIONS), x.shape().get(2..).unwrap_or(&[]), None, c.attrs.int(CEIL) == Some(1))?;
        Ok(vec![image::lp_pool(x, &w, exponent(c.attrs, EXPONENT))?])
    }),
    lower: &[Candidate::Loops(loops)],
    tolerance: ROUND,
    cases: &[
        "[1,2,7,6] kernel_shape=[3,2] strides=[2,2] pads=[1,0,1,0]",
        "[1,1,7] kernel_shape=[3] p=1 auto_pad=SAME_LOWER strides=[2]",
        "[1,1,4,4,4] kernel_shape=[2,2,2] p=3 auto_pad=VALID",
    ],
    ..ROW
};
const LATE: OpDef = OpDef {
    attrs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], P, CEIL_MODE, DILATION],
    cases: &[
        "[1,2,7,6] kernel_shape=[3,2] strides=[2,2] pads=[1,0,1,0]",
        "[1,2,7,8] kernel_shape=[2,3] strides=[2,3] ceil_mode=1 p=4",
        "[2,1,9] kernel_shape=[3] dilations=[2] p=1",
    ],
    ..POOL
};
const GLOBAL: OpDef = OpDef {
    name: "GlobalLpPool",
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T")],
    attrs: &[P],
    infer: |c| {
        check(c, 0)?;
        global_infer(c)
    },
    reference: Some(|c| {
        let x = c.input(0)?;
        Ok(vec![image::lp_pool(x, &whole(x), exponent(c.attrs, 0))?])
    }),
    lower: &[Candidate::Loops(global_loops)],
    tolerance: ROUND,
    cases: &["[2,3,4,5]", "[1,2,7] p=1", "[1,2,3,2,2] p=3"],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef { since: 2, until: 17, attrs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], P], dtypes: &[OLD], ..POOL },
    OpDef { since: 18, until: 21, dtypes: &[OLD], ..LATE },
    OpDef { since: 22, dtypes: &[T], ..LATE },
    OpDef { since: 2, until: 21, dtypes: &[OLD], ..GLOBAL },
    OpDef { since: 22, dtypes: &[T], ..GLOBAL },
];

fn exponent(attrs: &Attrs, slot: usize) -> i64 {
    attrs.int(slot).unwrap_or(2)
}

fn check(c: &InferCtx, slot: usize) -> Result<()> {
    let p = exponent(c.attrs, slot);
    if p > 0 {
        return Ok(());
    }
    Err(c.error(ErrorKind::Unsupported, format!("{}: a norm with p = {p}, which must be at least 1", c.def.name)))
}

/// The norm over `inner` of elements.
fn norm(b: &mut Builder, v: ExprId, p: i64) -> ExprId {
    let t = b.nest.expr_dtype(v);
    let v = b.nest.un(UnOp::Abs, v);
    let power = match p {
        1 => v,
        2 => b.bin(BinOp::Mul, v, v),
        _ => {
            let p = b.nest.num(p as f64, t);
            b.bin(BinOp::Pow, v, p)
        }
    };
    let sum = b.reduce([(Combiner::Sum, power)])[0];
    match p {
        1 => sum,
        2 => b.nest.un(UnOp::Sqrt, sum),
        _ => {
            let root = b.nest.num(1.0 / p as f64, t);
            b.bin(BinOp::Pow, sum, root)
        }
    }
}

fn loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (g, p) = (node_geometry(c)?, exponent(c.attrs, EXPONENT));
    let mut b = Builder::over_result(c)?;
    b.nest.inner = g.kernel_dims(b.c.dims);
    let taps = g.taps(&mut b, 0);
    let at = [vec![b.along(outer(0)), b.along(outer(1))], taps.coords].concat();
    let t = b.dtype(0);
    let zero = b.nest.num(0.0, t);
    let v = b.load_if(0, at, taps.inside, zero)?;
    let y = norm(&mut b, v, p);
    Ok(b.store(y))
}

fn global_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, p) = (c.need(0)?, exponent(c.attrs, 0));
    let mut b = Builder::over_result(c)?;
    b.nest.inner = x.shape[2..].to_vec();
    let mut at = vec![b.along(outer(0)), b.along(outer(1))];
    at.extend((0..x.shape.len() - 2).map(|i| b.along(inner(i))));
    let v = b.load(0, at)?;
    let y = norm(&mut b, v, p);
    Ok(b.store(y))
}
