//! `NonMaxSuppression`: an order by scores, the choice along it by a kernel, and a list of what was chosen.

use super::row::{BOOL, ROW};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{CallSpec, Candidate, IntArg};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, attr, opt, req};
use crate::ty::Shape;
use reference::movement::single;
use reference::nms;
use tensor::DType::{self, *};
use tensor::dims::Origin;
use tensor::{ErrorKind, Result};

const I: (&str, &[DType]) = ("I", &[I64]);
const F: (&str, &[DType]) = ("F", &[F32]);
const CENTER: &[crate::op::AttrDef] = &[attr("center_point_box", AttrKind::Int(0))];

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    // Of each batch and class: boxes by falling score, without those that cover one before them by more than iou_threshold.
    OpDef {
        name: "NonMaxSuppression",
        since: 10,
        inputs: &[
            req("boxes", "F"),
            req("scores", "F"),
            opt("max_output_boxes_per_class", "I"),
            opt("iou_threshold", "F"),
            opt("score_threshold", "F"),
        ],
        outputs: &[req("selected_indices", "I")],
        attrs: CENTER,
        dtypes: &[F, I],
        infer: |c| {
            one_number(c, &[2, 3, 4])?;
            let shape = orders(c)?;
            let count = c.fresh("kept", Origin::DeviceResult);
            if let (Some(s), Some(sym)) = (shape, c.dims.as_symbol(count)) {
                let all = c.dims.product(s);
                let most = c.dims.range(all).1;
                c.dims.sym_mut(sym).hi = most;
            }
            let three = c.dims.constant(3);
            c.set(0, I64, [count, three]);
            Ok(())
        },
        reference: Some(|c| {
            let number = |i: usize| -> Result<Option<f32>> {
                let t = c.opt(i).map(|t| single(t, c.def.inputs[i].name)).transpose()?;
                Ok(t.map(|t| t.view().f64_at(0) as f32))
            };
            let (iou, least) = (number(3)?.unwrap_or(0.0), number(4)?);
            Ok(vec![nms::non_max_suppression(c.input(0)?, c.input(1)?, limit(c, 2)?, iou, least, center(c))?])
        }),
        lower: &[Candidate::Expand(expand)],
        cases: &[
            "[1,6,4];[1,2,6];i64[1]{3};[1]{0.3};[1]{0.1}",
            "[2,7,4]{0,0,1,1,0,0.1,1,1.1,2,0,3,1.5,1,1,0,0};[2,3,7];i64[]{2};[]{0.4} center_point_box=0",
            "[1,9,4]{0.5,0.5,1,1,0.6,0.4,1,1,3,3,2,-1};[1,2,9]{1,1,0.5};i64[1]{9};[1]{0.5} center_point_box=1",
            "[1,5,4]{0,0,1,1};[1,1,5]{0.5,nan,0.75};i64[1]{5};_;[1]{0.5}",
            "[1,5,4];[1,1,5];i64[1]{-1}",
            "[1,5,4];[1,1,5]",
            "[1,5,4];[1,1,5];i64[1]{5};[1]{1}",
            "[1,0,4];[1,2,0];i64[1]{3}",
            "[2,3,4];[2,0,3];i64[1]{3}",
        ],
        ..ROW
    },
    OpDef {
        name: "Suppress",
        domain: HIP_DOMAIN,
        inputs: &[
            req("boxes", "F"),
            req("order", "I"),
            req("eligible", "B"),
            req("limit", "I"),
            req("iou_threshold", "F"),
        ],
        outputs: &[req("kept", "I")],
        attrs: CENTER,
        dtypes: &[F, I, ("B", BOOL)],
        infer: |c| {
            one_number(c, &[3, 4])?;
            match orders(c)? {
                Some(s) => c.set(0, I64, s),
                None => c.set_unranked(0, I64),
            }
            Ok(())
        },
        reference: Some(|c| {
            let iou = single(c.input(4)?, "iou_threshold")?.view().f64_at(0) as f32;
            Ok(vec![nms::suppress(c.input(0)?, c.input(1)?, c.input(2)?, limit(c, 3)?, iou, center(c))?])
        }),
        lower: &[Candidate::Kernel(|c| {
            let s = c.need(1)?.shape;
            let [batch, classes, n] = *s.as_slice() else { return Err("the order needs three axes".into()) };
            let center = c.dims.constant(i64::from(c.attrs.int(0) == Some(1)));
            let ints = [batch, classes, n, center].map(IntArg::Dim).to_vec();
            let reads = (0..5).map(Some).collect();
            Ok(CallSpec { kernel: "nms.f32", reads, writes: vec![0], ints, scalars: vec![], scratch: vec![] })
        })],
        cases: &["[1,3,4];i64[1,2,3]{0,2,1,1,0,2};[1,2,3];i64[1]{2};[1]{0.5}"],
        ..ROW
    },
];

/// Requires boxes `[batch, n, 4]`; the extents `[batch, classes, n]` of operand 1.
fn orders(c: &mut InferCtx) -> Result<Option<Shape>> {
    if !(0..=1).contains(&c.attrs.int(0).unwrap_or(0)) {
        let text = format!("{}: center_point_box is 0 (corners) or 1 (center and size)", c.def.name);
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let (boxes, order) = (c.shape(0), c.shape(1));
    let what = c.def.inputs[1].name;
    if boxes.as_ref().is_some_and(|s| s.len() != 3) || order.as_ref().is_some_and(|s| s.len() != 3) {
        let text = format!("{}: boxes are [batch, n, 4], {what} [batch, classes, n]", c.def.name);
        return Err(c.error(ErrorKind::Shape, text));
    }
    if let Some([_, _, corners]) = boxes.as_deref() {
        let four = c.dims.constant(4);
        c.require_eq(*corners, four, "a box is four numbers")?;
    }
    if let (Some(&[b, n, _]), Some(&[d, _, m])) = (boxes.as_deref(), order.as_deref()) {
        c.require_eq(b, d, &format!("boxes and {what} are of as many images"))?;
        c.require_eq(n, m, &format!("boxes and {what} are of as many boxes"))?;
    }
    Ok(order)
}

/// Requires operands that are one number.
fn one_number(c: &mut InferCtx, operands: &[usize]) -> Result<()> {
    for &i in operands {
        let Some(s) = c.shape(i) else { continue };
        let n = c.dims.product(s);
        let one = c.dims.constant(1);
        c.require_eq(n, one, &format!("{} is one number", c.def.inputs[i].name))?;
    }
    Ok(())
}

fn limit(c: &RefCtx, i: usize) -> Result<i64> {
    c.opt(i).map_or(Ok(0), |t| Ok(single(t, "the limit")?.view().i64_at(0)))
}

fn center(c: &RefCtx) -> bool {
    c.attrs.int(0) == Some(1)
}

fn expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let (boxes, scores) = (x.need(0)?, x.need(1)?);
    let keys = x.own("SortKey", &[Some(scores)], &[("descending", Attr::Int(1))]);
    let order = x.own("ArgSort", &[Some(keys)], &[]);
    // One number each, whatever their rank.
    let number = |x: &mut Expansion, i: usize| x.input(i).map(|v| x.reshape(v, &[1]));
    let eligible = match number(x, 4) {
        Some(least) => {
            let falling = x.op("GatherElements", &[scores, order], &[("axis", Attr::Int(-1))]);
            x.op("Greater", &[falling, least], &[])
        }
        None => x.op("Equal", &[order, order], &[]),
    };
    let limit = number(x, 2).unwrap_or_else(|| x.ints(&[0]));
    let zero = |x: &mut Expansion| x.constant(&reference::data::from_f64s(F32, &[1], &[0.0]));
    let iou = number(x, 3).unwrap_or_else(|| zero(x));
    let center = x.attrs().int(0).unwrap_or(0);
    let ins = [boxes, order, eligible, limit, iou].map(Some);
    let kept = x.own("Suppress", &ins, &[("center_point_box", Attr::Int(center))]);
    let none = x.scalar(I64, 0.0);
    let marks = x.op("GreaterOrEqual", &[kept, none], &[]);
    let found = x.op("NonZero", &[marks], &[]);
    if let Some(&[count, three]) = x.result_shape(0).as_deref() {
        x.expect(found, I64, [three, count]);
    }
    let places = x.transpose(found, &[1, 0]);
    let chosen = x.op("GatherND", &[kept, places], &[]);
    let chosen = x.unsqueeze(chosen, &[1]);
    let classes = x.slice(places, 1, 0, 2);
    Ok(vec![x.concat(&[classes, chosen], 1)])
}
