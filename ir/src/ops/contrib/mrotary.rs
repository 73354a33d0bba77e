//! Rotary positions of three streams: time, height and width.

use super::super::row::{ROW, same_type_as_0};
use super::{MICROSOFT, rounded};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req};
use reference::attention;
use reference::data::{f64s, from_f64s};
use tensor::DType::{BF16, F16, F32, F64, I64};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

const INTERLEAVED: usize = 0;
const LAYOUT: usize = 2;
const SECTION: usize = 3;
const HEADS: usize = 4;
const ROTATED: usize = 5;
const SCALE: usize = 6;

/// Which stream the pairs of a head take their positions from: one number, 0 to 2, for each.
fn streams(attrs: &Attrs) -> std::result::Result<Vec<i64>, std::string::String> {
    let section = attrs.ints(SECTION).unwrap_or(&[]);
    let &[t, h, w] = section else {
        return Err(format!("mrope_section {section:?} is not three numbers"));
    };
    if section.iter().any(|n| !(0..1 << 20).contains(n)) {
        return Err(format!("mrope_section {section:?} has a number that is negative, or above {}", 1 << 20));
    }
    let all = t + h + w;
    Ok(match attrs.int(LAYOUT).unwrap_or(0) {
        0 => (0..all)
            .map(|i| {
                if i < t {
                    0
                } else if i < t + h {
                    1
                } else {
                    2
                }
            })
            .collect(),
        1 => (0..all)
            .map(|i| match i % 3 {
                1 if i < 3 * h => 1,
                2 if i < 3 * w => 2,
                _ => 0,
            })
            .collect(),
        n => return Err(format!("mrope_layout={n} is neither 0 (sections) nor 1 (interleaved)")),
    })
}

fn infer_rotary(c: &mut InferCtx) -> Result<()> {
    let fail = |c: &InferCtx, kind, what: std::string::String| Err(c.error(kind, format!("MRotaryEmbedding: {what}")));
    let pairs = match streams(c.attrs) {
        Ok(streams) => i64::try_from(streams.len()).unwrap_or(0),
        Err(why) => return fail(c, ErrorKind::Unsupported, why),
    };
    same_type_as_0(c)?;
    let Some(x) = c.shape(0) else { return Ok(()) };
    let heads = c.attrs.int(HEADS).unwrap_or(0);
    let (sequence, size) = match *x.as_slice() {
        [_, _, s, d] => (s, d),
        [_, s, hidden] if heads > 0 => {
            let n = c.dims.constant(heads);
            (s, c.dims.floordiv(hidden, n))
        }
        [_, _, _] => return fail(c, ErrorKind::Shape, "input [b, s, h·d] needs num_heads".into()),
        _ => return fail(c, ErrorKind::Shape, format!("input has {} axes, not 3 or 4", x.len())),
    };
    let (half, two) = (c.dims.constant(pairs), c.dims.constant(2));
    let rotated = match c.attrs.int(ROTATED).filter(|&n| n > 0) {
        Some(n) => c.dims.constant(n),
        None => size,
    };
    let rotated = c.dims.floordiv(rotated, two);
    c.require_eq(rotated, half, "mrope_section adds up to half of what is rotated")?;
    if let Some(p) = c.shape(1) {
        let &[three, b, s] = p.as_slice() else {
            return fail(c, ErrorKind::Shape, format!("position_ids have {} axes, not 3", p.len()));
        };
        let n = c.dims.constant(3);
        let what = "position_ids are [3, b, s]";
        [(three, n), (b, x[0]), (s, sequence)].into_iter().try_for_each(|(a, b)| c.require_eq(a, b, what))?;
    }
    for i in [2, 3] {
        match c.shape(i).as_deref() {
            Some(&[_, n]) => c.require_eq(n, half, "a table has half of what is rotated")?,
            Some(s) => {
                let text = format!("{} has {} axes, not 2", c.def.inputs[i].name, s.len());
                return fail(c, ErrorKind::Shape, text);
            }
            None => {}
        }
    }
    Ok(())
}

/// The tables at the positions, a stream for each column, then the operator of ai.onnx.
fn expand_rotary(x: &mut Expansion) -> Result<Vec<Value>> {
    let streams = streams(x.attrs()).map_err(|why| Diagnostic::new(ErrorKind::Unsupported, why))?;
    let (input, positions) = (x.need(0)?, x.need(1)?);
    let (dtype, shape) = x.tensor(input)?;
    let half = i64::try_from(streams.len()).unwrap_or(0);
    let streams = x.ints(&streams);
    let of_column = x.op("Gather", &[positions, streams], &[("axis", Attr::Int(0))]);
    let of_column = x.transpose(of_column, &[1, 2, 0]);
    let rows = x.reshape(of_column, &[-1, half]);
    let (b, s, n) = (x.extent(positions, 1), x.extent(positions, 2), x.ints(&[half]));
    let scale = x.attrs().float(SCALE).filter(|&s| s != 1.0);
    let mut table = |i: usize| -> Result<Value> {
        let t = x.need(i)?;
        let t = x.op("GatherElements", &[t, rows], &[("axis", Attr::Int(0))]);
        let t = x.reshape_to(t, &[b, s, n]);
        Ok(match scale {
            Some(v) => {
                let v = x.scalar(dtype, v.into());
                x.op("Mul", &[t, v], &[])
            }
            None => t,
        })
    };
    let (cos, sin) = (table(2)?, table(3)?);
    let number = |slot: usize| Attr::Int(x.attrs().int(slot).unwrap_or(0));
    let attrs = [
        ("interleaved", Attr::Int((x.attrs().int(INTERLEAVED) == Some(1)).into())),
        ("rotary_embedding_dim", number(ROTATED)),
        ("num_heads", number(HEADS)),
    ];
    let given = if shape.len() == 4 { 2 } else { 3 };
    Ok(vec![x.op("RotaryEmbedding", &[input, cos, sin], &attrs[..given])])
}

fn rotary_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, positions) = (c.input(0)?, c.input(1)?);
    let wrong = |what: &str| Diagnostic::new(ErrorKind::Shape, format!("MRotaryEmbedding: {what}"));
    let streams = streams(c.attrs).map_err(|why| wrong(&why))?;
    let &[3, b, s] = positions.shape() else { return Err(wrong("position_ids are [3, b, s]")) };
    let at = positions.to_i64_vec();
    let scale = f64::from(c.attrs.float(SCALE).unwrap_or(1.0));
    let table = |i: usize| -> Result<Tensor> {
        let t = c.input(i)?;
        let (v, half) = (f64s(t), streams.len());
        let mut y = Vec::new();
        for place in 0..b * s {
            for (column, &stream) in streams.iter().enumerate() {
                let row = usize::try_from(stream).ok().and_then(|k| usize::try_from(at[k * b * s + place]).ok());
                let e = row.and_then(|row| v.get(row * half + column));
                y.push(scale * e.ok_or_else(|| wrong("a position is outside the table"))?);
            }
        }
        Ok(rounded(&from_f64s(F64, &[b, s, half], &y), t.dtype()))
    };
    let size = |slot: usize| c.attrs.int(slot).and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
    let heads = if x.shape().len() == 4 { None } else { size(HEADS) };
    let interleaved = c.attrs.int(INTERLEAVED) == Some(1);
    Ok(vec![attention::rotary(x, &table(2)?, &table(3)?, None, heads, size(ROTATED), interleaved)?])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // As RotaryEmbedding of ai.onnx; each pair of a head takes its position from one of three streams
    OpDef {
        name: "MRotaryEmbedding",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("position_ids", "M"), req("cos_cache", "T"), req("sin_cache", "T")],
        outputs: &[req("output", "T")],
        attrs: &[
            attr("interleaved", AttrKind::Int(0)),
            // Packed batches have positions like others.
            attr("is_packed_batching", AttrKind::Int(0)),
            attr("mrope_layout", AttrKind::Int(0)),
            attr("mrope_section", AttrKind::Ints),
            attr("num_heads", AttrKind::Int(0)),
            attr("rotary_embedding_dim", AttrKind::Int(0)),
            attr("scale", AttrKind::Float(1.0)),
        ],
        dtypes: &[("T", &[F32, F16, BF16]), ("M", &[I64])],
        infer: infer_rotary,
        reference: Some(rotary_ref),
        lower: &[Expand(expand_rotary)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,24];i64[3,2,3]{0,3,4,1,2,2,0,1};[5,6];[5,6] num_heads=2 mrope_section=[2,2,2]",
            "[2,2,3,12];i64[3,2,3]{0,3,4,1,2,2,0,1};[5,6];[5,6] mrope_section=[3,2,1] mrope_layout=1",
            "[1,4,16];i64[3,1,4]{0,3,4,1,2};[5,2];[5,2] num_heads=2 rotary_embedding_dim=4 mrope_section=[1,1,0] \
             interleaved=1 scale=0.5",
        ],
        ..ROW
    },
];
