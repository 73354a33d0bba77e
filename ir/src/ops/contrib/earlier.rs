//! What com.microsoft had before ai.onnx, or as ai.onnx has it.

use super::super::index::GATHER_ND;
use super::super::movement::PAD;
use super::super::row::{ANY, FLOATS, PLAIN, ROW};
use super::super::shape::{RANGE, steps, trilu_infer, trilu_ref};
use super::MICROSOFT;
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, Param, RefCtx, attr, opt, req};
use crate::ty::Shape;
use reference::{movement, sort};
use tensor::DType::{F32, F64, I16, I32, I64};
use tensor::dims::Origin;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// Gives what an expansion makes the extents that its node's result has.
fn like_result(x: &mut Expansion, v: Value, dtype: DType) {
    if let Some(s) = x.result_shape(0) {
        x.expect(v, dtype, s);
    }
}

fn infer_range(c: &mut InferCtx) -> Result<()> {
    if c.has(2) {
        return (RANGE.infer)(c);
    }
    let dtype = c.dtype(0)?;
    for (i, what) in ["start", "limit"].into_iter().enumerate() {
        c.require_single(i, what)?;
    }
    let one = c.dims.constant(1);
    let n = if matches!(dtype, I32 | I64) {
        match (c.need_values(0).as_deref(), c.need_values(1).as_deref()) {
            (Some(&[s]), Some(&[l])) => Some(steps(c, s, l, one)),
            _ => None,
        }
    } else {
        match (c.const_tensor(0), c.const_tensor(1)) {
            (Some(s), Some(l)) => {
                let n = movement::range(&s, &l, &Tensor::from_f64_as(dtype, &[], &[1.0]));
                let n = n.map_err(|e| c.error(e.kind(), e.message()))?.n_elems();
                Some(c.dims.constant(i64::try_from(n).unwrap_or(i64::MAX)))
            }
            _ => None,
        }
    };
    let n = n.unwrap_or_else(|| c.fresh("range", Origin::Unknown));
    c.set(0, dtype, [n]);
    Ok(())
}

fn one_of(dtype: DType) -> Tensor {
    if dtype.is_float() { Tensor::from_f64_as(dtype, &[], &[1.0]) } else { Tensor::from_i64_as(dtype, &[], &[1]) }
}

fn expand_range(x: &mut Expansion) -> Result<Vec<Value>> {
    let dtype = x.tensor(x.need(0)?)?.0;
    let mut ins = Vec::new();
    for i in 0..3 {
        let v = match x.input(i) {
            Some(v) => v,
            None => x.constant(&one_of(dtype)),
        };
        ins.push(match x.tensor(v)?.1.len() {
            0 => v,
            _ => x.reshape(v, &[]),
        });
    }
    let y = x.op("Range", &ins, &[]);
    like_result(x, y, dtype);
    Ok(vec![y])
}

fn infer_unique(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        c.set_unranked(1, I64);
        c.set_unranked(2, I64);
        return Ok(());
    };
    let &[n] = s.as_slice() else {
        return Err(c.error(ErrorKind::Shape, format!("Unique: x has {} axes, not 1", s.len())));
    };
    let u = c.fresh("unique", Origin::DeviceResult);
    if let Some(s) = c.dims.as_symbol(u) {
        c.dims.sym_mut(s).hi = c.dims.range(n).1;
    }
    c.set(0, dtype, [u]);
    c.set(1, I64, [n]);
    c.set(2, I64, [u]);
    Ok(())
}

/// The axis that ExpandDims adds, which must be a constant of the model.
fn new_axis(axis: i64, rank: usize) -> Option<usize> {
    let n = i64::try_from(rank + 1).ok()?;
    usize::try_from(if axis < 0 { axis + n } else { axis }).ok().filter(|&a| a <= rank)
}

fn infer_expand_dims(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(axis) = c.const_ints(1).and_then(|v| v.first().copied()) else {
        let e = c.error(ErrorKind::Unsupported, "ExpandDims: the axis is computed, and extents depend on it");
        return Err(e.help("give the axis as a constant of the model"));
    };
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let Some(at) = new_axis(axis, s.len()) else {
        return Err(c.error(ErrorKind::Shape, format!("ExpandDims: axis {axis} is out of range for {} axes", s.len())));
    };
    let one = c.dims.constant(1);
    let out: Shape = s[..at].iter().copied().chain([one]).chain(s[at..].iter().copied()).collect();
    c.set(0, dtype, out);
    Ok(())
}

fn expand_dims_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let axis = movement::single(c.input(1)?, "axis")?.to_i64_vec()[0];
    let at = new_axis(axis, x.shape().len());
    let at = at.ok_or_else(|| Diagnostic::new(ErrorKind::Shape, "ExpandDims: the axis is out of range"))?;
    let mut shape = x.shape().to_vec();
    shape.insert(at, 1);
    Ok(vec![x.reshaped(&shape)])
}

/// What the rule of Pad sees: the version in which pads became an operand.
static PAD_OF_ONNX: OpDef = OpDef { since: 13, inputs: PAD_INPUTS, ..PAD };

fn infer_pad(c: &mut InferCtx) -> Result<()> {
    let own = std::mem::replace(&mut c.def, &PAD_OF_ONNX);
    let result = (PAD.infer)(c);
    c.def = own;
    result
}

fn expand_pad(x: &mut Expansion) -> Result<Vec<Value>> {
    let mut pads = x.need(1)?;
    if x.tensor(pads)?.1.len() > 1 {
        pads = x.reshape(pads, &[-1]);
    }
    let ins: Vec<Value> = [x.need(0)?, pads].into_iter().chain(x.input(2)).collect();
    let mode = x.attrs().get(0).clone();
    Ok(vec![x.op("Pad", &ins, &[("mode", mode)])])
}

const PAD_INPUTS: &[Param] = &[req("data", "T"), req("pads", "P"), opt("value", "T")];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // As Trilu of ai.onnx
    OpDef {
        name: "Trilu",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), opt("k", "I")],
        outputs: &[req("Y", "T")],
        attrs: &[attr("upper", AttrKind::Int(1))],
        dtypes: &[("T", PLAIN), ("I", &[I64])],
        infer: trilu_infer,
        reference: Some(trilu_ref),
        lower: &[Expand(|x| {
            let ins: Vec<Value> = [Some(x.need(0)?), x.input(1)].into_iter().flatten().collect();
            let upper = Attr::Int((x.attrs().int(0) != Some(0)).into());
            Ok(vec![x.op("Trilu", &ins, &[("upper", upper)])])
        })],
        cases: &["[3,4]", "[2,3,3];i64[]{1}", "[2,4,3];i64[]{-1} upper=0"],
        ..ROW
    },
    // As Unique of ai.onnx, in order of occurrence
    OpDef {
        name: "Unique",
        domain: MICROSOFT,
        inputs: &[req("x", "T")],
        outputs: &[req("y", "T"), req("idx", "I"), req("counts", "I")],
        dtypes: &[("T", ANY), ("I", &[I64])],
        infer: infer_unique,
        reference: Some(|c| {
            let [y, _, inverse, counts] = sort::unique(c.input(0)?, None, false)?;
            Ok(vec![y, inverse, counts])
        }),
        lower: &[Expand(|x| {
            let data = x.need(0)?;
            let dtype = x.tensor(data)?.0;
            let all = x.op_n("Unique", &[data], &[("sorted", Attr::Int(0))], 4);
            like_result(x, all[0], dtype);
            like_result(x, all[1], I64);
            like_result(x, all[3], I64);
            Ok(vec![all[0], all[2], all[3]])
        })],
        cases: &["[6]{2,1,1,3,4,3}", "[5]{0}", "[0]", "[7]{1,0,1,0,1}"],
        ..ROW
    },
    // Y = X with a new axis
    OpDef {
        name: "ExpandDims",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("axis", "I")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", ANY), ("I", &[I32])],
        infer: infer_expand_dims,
        reference: Some(expand_dims_ref),
        lower: &[Expand(|x| {
            let (data, axis) = (x.need(0)?, x.need(1)?);
            let axis = x.const_tensor(axis).map_or(0, |t| t.to_i64_vec().first().copied().unwrap_or(0));
            Ok(vec![x.unsqueeze(data, &[axis])])
        })],
        cases: &["[2,3];i32[]{1}", "[2,3];i32[1]{-1}", "[];i32[]{0}", "[2,3];i32[]{-3}"],
        ..ROW
    },
    // Y = start, start + delta, … before limit
    OpDef {
        name: "Range",
        domain: MICROSOFT,
        inputs: &[req("start", "T"), req("limit", "T"), opt("delta", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", &[F32, F64, I16, I32, I64])],
        infer: infer_range,
        reference: Some(|c| {
            let one = one_of(c.input(0)?.dtype());
            Ok(vec![movement::range(c.input(0)?, c.input(1)?, c.opt(2).unwrap_or(&one))?])
        }),
        lower: &[Expand(expand_range)],
        tolerance: super::super::row::ROUNDED,
        cases: &[
            "i64[]{0};i64[]{5};i64[]{2}",
            "i64[1]{2};i64[1]{6}",
            "f32[1]{10};f32[]{0};f32[1]{-3}",
            "f32[]{0.5};f32[]{4}",
            "i32[]{3};i32[]{3};i32[]{1}",
        ],
        ..ROW
    },
    // As Pad of ai.onnx
    OpDef {
        domain: MICROSOFT,
        infer: infer_pad,
        lower: &[Expand(expand_pad)],
        inputs: PAD_INPUTS,
        attrs: &[attr("mode", AttrKind::Str("constant"))],
        dtypes: &[("T", FLOATS), ("P", &[I64])],
        cases: &[
            "[3,4];i64[4]{0,1,2,0}",
            "[3,4];i64[4]{1,-1,-2,2};[]{1}",
            "[3,4];i64[4]{0,1,1,0};[1]{1}",
            "[4];i64[2]{2,3} mode=reflect",
            "[2];i64[2]{3,3} mode=edge",
        ],
        ..PAD
    },
    // As GatherND of ai.onnx without batches
    OpDef {
        domain: MICROSOFT,
        inputs: &[req("data", "T"), req("indices", "Tind")],
        dtypes: &[("T", PLAIN), ("Tind", &[I64, I32])],
        cases: &["[3,4,2];i64[5,2]{0,1,-1,3}", "[3,4];i32[2,1]{1,-1}"],
        ..GATHER_ND
    },
];
