//! Rotary positions as com.microsoft has them.

use super::super::row::{ROW, same_type_as_0};
use super::MICROSOFT;
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, req};
use reference::attention;
use tensor::DType::{BF16, F16, F32, I64};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// What com.microsoft's RotaryEmbedding says of itself.
struct Rotary {
    interleaved: bool,
    heads: i64,
    rotated: i64,
}

impl Rotary {
    fn of(attrs: &crate::attrs::Attrs) -> Result<Rotary> {
        let n = |i: usize| attrs.int(i).unwrap_or(0);
        let refuse = |text: std::string::String| {
            Err(Diagnostic::new(ErrorKind::Unsupported, format!("RotaryEmbedding: {text}")))
        };
        if attrs.float(4).is_some_and(|s| s != 1.0) {
            return refuse(format!("scale={:?} is not 1", attrs.float(4)));
        }
        if n(1) != 0 {
            return refuse("packed batches (is_packed_batching=1) are not supported".into());
        }
        Ok(Rotary { interleaved: n(0) == 1, heads: n(2), rotated: n(3) })
    }
    /// Elements of a head of x `[b, s, hidden]` where the number of heads is not given, by the width of the table of cosines.
    ///
    /// # Errors
    /// `Unsupported` where the table covers a part of the head.
    fn by_table(&self) -> Result<()> {
        if self.rotated == 0 {
            return Ok(());
        }
        let text = "RotaryEmbedding: rotary_embedding_dim is given, the number of heads is not";
        Err(Diagnostic::new(ErrorKind::Unsupported, text).help("set num_heads"))
    }
}

fn infer_rotary(c: &mut InferCtx) -> Result<()> {
    Rotary::of(c.attrs).map_err(|e| c.error(e.kind(), e.message().to_string()))?;
    if let Some(p) = c.shape(1)
        && !(1..=2).contains(&p.len())
    {
        return Err(c.error(ErrorKind::Shape, "RotaryEmbedding: position_ids are [1] or [b, s]"));
    }
    same_type_as_0(c)
}

/// The operator of ai.onnx, with positions of every element where only the first is given.
fn expand_rotary(x: &mut Expansion) -> Result<Vec<Value>> {
    let r = Rotary::of(x.attrs())?;
    let (input, positions, cos, sin) = (x.need(0)?, x.need(1)?, x.need(2)?, x.need(3)?);
    let (_, shape) = x.tensor(input)?;
    let attrs = [
        ("interleaved", Attr::Int(r.interleaved.into())),
        ("rotary_embedding_dim", Attr::Int(r.rotated)),
        ("num_heads", Attr::Int(r.heads)),
    ];
    let (_, given) = x.tensor(positions)?;
    let sequence = if shape.len() == 4 { 2 } else { 1 };
    let (b, s) = (x.extent(input, 0), x.extent(input, sequence));
    let positions = if given.len() == 2 {
        positions
    } else {
        let steps = x.count_to(s);
        let all = x.op("Add", &[positions, steps], &[]);
        let wide = x.concat(&[b, s], 0);
        x.op("Expand", &[all, wide], &[])
    };
    if shape.len() == 4 {
        return Ok(vec![x.op("RotaryEmbedding", &[input, cos, sin, positions], &attrs[..2])]);
    }
    if r.heads > 0 {
        return Ok(vec![x.op("RotaryEmbedding", &[input, cos, sin, positions], &attrs)]);
    }
    r.by_table()?;
    let (half, two) = (x.extent(cos, 1), x.ints(&[2]));
    let (d, hidden) = (x.op("Mul", &[half, two], &[]), x.extent(input, 2));
    let h = x.op("Div", &[hidden, d], &[]);
    let heads = x.reshape_to(input, &[b, s, h, d]);
    let heads = x.transpose(heads, &[0, 2, 1, 3]);
    let y = x.op("RotaryEmbedding", &[heads, cos, sin, positions], &attrs[..2]);
    let y = x.transpose(y, &[0, 2, 1, 3]);
    Ok(vec![x.reshape_to(y, &[b, s, hidden])])
}

fn rotary_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let r = Rotary::of(c.attrs)?;
    let (x, p, cos, sin) = (c.input(0)?, c.input(1)?, c.input(2)?, c.input(3)?);
    let size = |n: i64| usize::try_from(n).ok().filter(|&n| n > 0);
    let heads = match (x.shape(), size(r.heads)) {
        (&[_, _, hidden], None) => {
            r.by_table()?;
            let d = 2 * cos.shape().get(1).copied().unwrap_or(0);
            Some(hidden.checked_div(d).unwrap_or(0))
        }
        (_, heads) => heads,
    };
    let sequence = x.shape()[if x.shape().len() == 4 { 2 } else { 1 }];
    let positions = match p.shape() {
        [_, _] => p.clone(),
        _ => {
            let first = p.to_i64_vec().first().copied().unwrap_or(0);
            let steps = (first..).take(sequence);
            let all: Vec<i64> = (0..x.shape()[0]).flat_map(|_| steps.clone()).collect();
            Tensor::from_i64(&[x.shape()[0], sequence], &all)
        }
    };
    let y = attention::rotary(x, cos, sin, Some(&positions), heads, size(r.rotated), r.interleaved)?;
    Ok(vec![y])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // As RotaryEmbedding of ai.onnx, with positions of every element, or of the first
    OpDef {
        name: "RotaryEmbedding",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("position_ids", "M"), req("cos_cache", "T"), req("sin_cache", "T")],
        outputs: &[req("output", "T")],
        attrs: &[
            attr("interleaved", AttrKind::Int(0)),
            attr("is_packed_batching", AttrKind::Int(0)),
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
            "[2,4,24];i64[2,4]{0,3,4,1,2,2,0,1};[5,4];[5,4]",
            "[2,3,2,8];i64[1]{2};[5,4];[5,4]",
            "[2,2,24];i64[2,2]{0,3,4,1};[5,2];[5,2] num_heads=3 rotary_embedding_dim=4 interleaved=1",
        ],
        ..ROW
    },
];
