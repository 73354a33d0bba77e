//! Conversion between element types, and rows whose result is an operand as it is.

use super::broadcast::{elements, map_values};
use super::elementwise::copy_lower;
use super::pointwise::{Exprs, arg, one, out_type};
use super::row::*;
use crate::lowering::Candidate::{Host, Pointwise, View};
use crate::lowering::{NodeCtx, Plan, ViewOp};
use crate::nest::{ExprId, Nest};
use crate::op::{AttrKind, InferCtx, OpDef, Param, RefCtx, attr, opt, req};
use tensor::DType::{self, *};
use tensor::{ErrorKind, Result, Tensor};

/// The compute type that a float passes through on its way to an integer type; see [`reference::cast::float_to_int`].
pub(super) fn int_path(to: DType) -> DType {
    match to {
        U64 => U64,
        I64 | U32 => I64,
        _ => I32,
    }
}

/// The element type that the attribute `to` names.
fn target(c: &crate::attrs::Attrs) -> Option<DType> {
    DType::from_onnx(i32::try_from(c.int(0)?).ok()?)
}

fn infer_to(c: &mut InferCtx, to: DType) -> Result<()> {
    c.dtype(0)?;
    match c.shape(0) {
        Some(s) => c.set(0, to, s),
        None => c.set_unranked(0, to),
    }
    if matches!(to, I32 | I64 | Bool) && elements(c, 0).is_some() {
        let from = c.dtype(0)?;
        map_values(c, &[0], |p, v| match (to, p.as_const(v[0])) {
            (I64, _) => Some(v[0]),
            (Bool, Some(k)) => Some(p.constant((k != 0).into())),
            (Bool, None) => (p.range(v[0]).0 > 0).then(|| p.constant(1)),
            (_, Some(k)) => i32::try_from(k).is_ok().then_some(v[0]),
            // An extent or index that is a symbol: tensors of more than 2^31 elements along an axis are outside i32 anyway,
            // and exporters cast extents to i32 freely.
            (_, None) => matches!(from, I64 | I32).then_some(v[0]),
        });
    }
    Ok(())
}

fn infer_cast(c: &mut InferCtx) -> Result<()> {
    let to = target(c.attrs)
        .ok_or_else(|| c.error(ErrorKind::Unsupported, format!("Cast to element type {:?}", c.attrs.get(0))))?;
    if matches!(to, C64 | C128) {
        return Err(c.error(ErrorKind::Unsupported, format!("Cast to {to}")));
    }
    infer_to(c, to)
}

fn cast_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let to = target(c.attrs).unwrap_or(x.dtype());
    Ok(vec![reference::cast::cast(x, to, c.attrs.int(1) != Some(0))?])
}

fn same_type_view(c: &mut NodeCtx) -> Plan<ViewOp> {
    let (from, to) = (c.need(0)?.dtype, c.outs[0].dtype);
    if from == to { Ok(ViewOp::Reshape) } else { Err(format!("{from} becomes {to}").into()) }
}

fn cast_lower(c: &mut NodeCtx, n: &mut Nest, a: &[Option<ExprId>]) -> Exprs {
    let x = arg(a, 0)?;
    let (from, to) = (c.need(0)?.dtype, c.outs[0].dtype);
    let saturates = c.attrs.int(1) != Some(0);
    if SMALL_FLOATS.contains(&to) && !saturates {
        return Err(format!("conversion to {to} with saturate=0 is not generated").into());
    }
    if to == F4E2M1 || to == F8E8M0 || from == F8E8M0 {
        return Err(format!("conversion between {from} and {to} is not generated").into());
    }
    let wide = out_type(c, 0)?;
    let x = match from.is_float() && to.is_int() {
        true => n.cast(x, int_path(to)),
        false => x,
    };
    one(n.cast(x, wide))
}

/// Slots of `Cast` from version 19 on; `CastLike` has only the second.
const SATURATE: crate::op::AttrDef = attr("saturate", AttrKind::Int(1));

fn cast_like_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    Ok(vec![reference::cast::cast(c.input(0)?, c.input(1)?.dtype(), c.attrs.int(0) != Some(0))?])
}

fn infer_cast_like(c: &mut InferCtx) -> Result<()> {
    let to = c.dtype(1)?;
    infer_to(c, to)
}

fn cast_like_lower(c: &mut NodeCtx, n: &mut Nest, a: &[Option<ExprId>]) -> Exprs {
    if c.attrs.int(0) == Some(0) && SMALL_FLOATS.contains(&c.outs[0].dtype) {
        return Err("conversion with saturate=0 is not generated".into());
    }
    let attrs = crate::attrs::Attrs::default();
    let ins = [c.ins[0].clone()];
    let mut inner = NodeCtx { dims: c.dims, attrs: &attrs, ins: &ins, outs: c.outs, consts: c.consts };
    cast_lower(&mut inner, n, &a[..1])
}

const CAST_CASES: &[&str] = &[
    "[5]{-1.5,2.5,0,1,100} to=f32",
    "[5]{-1,2.5,0,1,100} to=f16",
    "[5]{-1,2.5,0,1,100} to=bf16",
    "[5]{-1,2.5,0,1,100} to=f64",
    "[5]{-1,2.5,0,1,100} to=i32",
    "[5]{-1,2.5,0,1,100} to=i64",
    "[5]{-1,2.5,0,1,100} to=i8",
    "[5]{-1,2.5,0,1,300} to=u8",
    "[5]{-1,2.5,0,1,300} to=i16",
    "[5]{-1,2.5,0,1,300} to=u16",
    "[5]{1,2.5,0,1,300} to=u32",
    "[5]{1,2.5,0,1,300} to=u64",
    "[2,3]{-1,2.5,0,1,0} to=bool",
    "[] to=f32",
    "[0,3] to=i64",
];

fn infer_identity(c: &mut InferCtx) -> Result<()> {
    same_as_0(c)?;
    if c.values(0).is_none()
        && let Some(v) = elements(c, 0)
    {
        c.set_values(0, v);
    }
    Ok(())
}

/// Shape rule of Dropout in inference: the data as it is, and a mask of ones.
fn infer_dropout(c: &mut InferCtx, mask: Option<DType>) -> Result<()> {
    let d = c.dtype(0)?;
    if c.const_ints(2).is_some_and(|v| v.iter().any(|&v| v != 0)) {
        let e = c.error(ErrorKind::Unsupported, "Dropout with training_mode=1");
        return Err(e.help("export the model in inference mode"));
    }
    same_as_0(c)?;
    match c.shape(0) {
        Some(s) => c.set(1, mask.unwrap_or(d), s),
        None => c.set_unranked(1, mask.unwrap_or(d)),
    }
    Ok(())
}

fn dropout_ref(c: &RefCtx, mask: Option<DType>) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let ratio = c.opt(1).map_or(0.5, |r| r.view().f64_at(0));
    if c.opt(2).is_some_and(|t| t.view().i64_at(0) != 0) && ratio != 0.0 {
        return Err(tensor::Diagnostic::new(ErrorKind::Unsupported, "Dropout with training_mode=1"));
    }
    let ones = vec![1; x.n_elems()];
    Ok(vec![x.clone(), Tensor::from_i64_as(mask.unwrap_or(x.dtype()), x.shape(), &ones)])
}

fn dropout_inference(c: &NodeCtx) -> Plan<()> {
    if !c.has(2) {
        return Ok(());
    }
    match c.need(2)?.konst.and_then(|k| c.consts[k].splat_f64()) {
        Some(0.0) => Ok(()),
        Some(_) => Err("training_mode is 1".into()),
        None => Err("training_mode is not constant".into()),
    }
}

fn dropout_view(c: &mut NodeCtx) -> Plan<ViewOp> {
    dropout_inference(c)?;
    if c.outs.len() > 1 { Err("the mask is used".into()) } else { Ok(ViewOp::Reshape) }
}

fn dropout_lower(c: &mut NodeCtx, n: &mut Nest, a: &[Option<ExprId>]) -> Exprs {
    dropout_inference(c)?;
    let x = arg(a, 0)?;
    let mut out = smallvec::SmallVec::from_iter([x]);
    if c.outs.len() > 1 {
        let d = out_type(c, 1)?;
        out.push(n.num(1.0, d));
    }
    Ok(out)
}

const DROPOUT_OUT: &[Param] = &[req("output", "T"), opt("mask", "M")];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = input in element type `to`; 8-bit floats did not exist
    OpDef {
        name: "Cast",
        since: 6,
        until: 18,
        inputs: &[req("input", "T1")],
        outputs: &[req("output", "T2")],
        attrs: &[attr("to", AttrKind::IntReq)],
        dtypes: &[("T1", ANY), ("T2", ANY)],
        infer: infer_cast,
        reference: Some(cast_ref),
        lower: &[View(same_type_view), Pointwise(cast_lower), Host],
        tolerance: ROUNDED,
        cases: CAST_CASES,
        ..ROW
    },
    // output = input in element type `to`
    OpDef {
        name: "Cast",
        since: 19,
        inputs: &[req("input", "T1")],
        outputs: &[req("output", "T2")],
        // The rounding of f8e8m0 (version 24) is the default, up, where it is asked for at all: that type is refused below.
        attrs: &[attr("to", AttrKind::IntReq), SATURATE, attr("round_mode", AttrKind::Str("up"))],
        dtypes: &[("T1", ANY), ("T2", ANY)],
        infer: |c| {
            if target(c.attrs) == Some(F8E8M0) && c.dtype(0)? != F8E8M0 {
                return Err(c.error(ErrorKind::Unsupported, "Cast to f8e8m0"));
            }
            infer_cast(c)
        },
        reference: Some(cast_ref),
        lower: &[View(same_type_view), Pointwise(cast_lower), Host],
        tolerance: ROUNDED,
        cases: CAST_CASES,
        ..ROW
    },
    // output = input in the element type of the second operand
    OpDef {
        name: "CastLike",
        since: 15,
        inputs: &[req("input", "T1"), req("target_type", "T2")],
        outputs: &[req("output", "T2")],
        attrs: &[SATURATE, attr("round_mode", AttrKind::Str("up"))],
        dtypes: &[("T1", ANY), ("T2", ANY)],
        infer: infer_cast_like,
        reference: Some(cast_like_ref),
        lower: &[View(same_type_view), Pointwise(cast_like_lower), Host],
        tolerance: ROUNDED,
        cases: &["[5]{-1,2.5,0,1,100};[]"],
        ..ROW
    },
    // output = input
    OpDef {
        name: "Identity",
        traits: MOVES,
        inputs: &[req("input", "V")],
        outputs: &[req("output", "V")],
        dtypes: &[("V", ANY)],
        infer: infer_identity,
        reference: Some(|c| ref1(c, Tensor::clone)),
        lower: &[View(|_| Ok(ViewOp::Reshape)), Pointwise(copy_lower), Host],
        cases: &["[2,3]", "[]", "[0]"],
        ..ROW
    },
    // Inference: output = data, mask = 1 of the type of the data
    OpDef {
        name: "Dropout",
        since: 7,
        until: 9,
        inputs: &[req("data", "T")],
        outputs: &[req("output", "T"), opt("mask", "T")],
        attrs: &[attr("ratio", AttrKind::Float(0.5))],
        dtypes: &[("T", FLOATS)],
        infer: |c| infer_dropout(c, None),
        reference: Some(|c| dropout_ref(c, None)),
        lower: &[View(dropout_view), Pointwise(dropout_lower)],
        cases: &["[2,3]", "[2,3] outs=2"],
        ..ROW
    },
    // Inference: output = data, mask = true
    OpDef {
        name: "Dropout",
        since: 10,
        until: 11,
        inputs: &[req("data", "T")],
        outputs: DROPOUT_OUT,
        attrs: &[attr("ratio", AttrKind::Float(0.5))],
        dtypes: &[("T", FLOATS), ("M", BOOL)],
        infer: |c| infer_dropout(c, Some(Bool)),
        reference: Some(|c| dropout_ref(c, Some(Bool))),
        lower: &[View(dropout_view), Pointwise(dropout_lower)],
        cases: &["[2,3]", "[2,3] outs=2"],
        ..ROW
    },
    // With training_mode false or absent: output = data, mask = true
    OpDef {
        name: "Dropout",
        since: 12,
        inputs: &[req("data", "T"), opt("ratio", "T1"), opt("training_mode", "M")],
        outputs: DROPOUT_OUT,
        attrs: &[attr("seed", AttrKind::IntOpt)],
        dtypes: &[("T", FLOATS), ("T1", FLOATS), ("M", BOOL)],
        infer: |c| infer_dropout(c, Some(Bool)),
        reference: Some(|c| dropout_ref(c, Some(Bool))),
        lower: &[View(dropout_view), Pointwise(dropout_lower)],
        cases: &["[2,3]", "[2,3];[]{0.3} outs=2"],
        ..ROW
    },
];
