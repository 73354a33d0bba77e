//! Rows that place elements: reversed sequences, centered parts, diagonals, unpooled elements.

use super::loops::{Builder, outer};
use super::row::{ANY, BASIC, MOVES, ROW};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{BinOp, Coord, Nest};
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, attr, opt, req};
use crate::ty::Shape;
use reference::image;
use tensor::{DType, DType::*, Diagnostic, DimId, ErrorKind, Result, Tensor};

const T: (&str, &[DType]) = ("T", ANY);
const I: (&str, &[DType]) = ("I", &[I64]);
const REVERSE: OpDef = OpDef {
    name: "ReverseSequence",
    traits: MOVES,
    inputs: &[req("input", "T"), req("sequence_lens", "I")],
    outputs: &[req("Y", "T")],
    attrs: &[attr("batch_axis", AttrKind::Int(1)), attr("time_axis", AttrKind::Int(0))],
    dtypes: &[T, I],
    infer: reverse_infer,
    reference: Some(|c| {
        let (batch, time) = reverse_axes(c.attrs).ok_or_else(|| wrong(c))?;
        Ok(vec![image::reverse_sequence(c.input(0)?, &c.input(1)?.to_i64_vec(), batch, time)?])
    }),
    lower: &[Candidate::Loops(reverse_loops)],
    cases: &["[4,3,2];i64[3]{4,0,2}", "[3,4];i64[3]{1,4,3} batch_axis=0 time_axis=1"],
    ..ROW
};

const UNPOOL: OpDef = OpDef {
    name: "MaxUnpool",
    inputs: &[req("X", "T1"), req("I", "T2"), opt("output_shape", "T2")],
    outputs: &[req("output", "T1")],
    attrs: &[attr("kernel_shape", AttrKind::Ints), attr("pads", AttrKind::Ints), attr("strides", AttrKind::Ints)],
    dtypes: &[("T1", &[F32, F16, F64]), ("T2", &[I64])],
    infer: unpool_infer,
    reference: Some(unpool_ref),
    lower: &[Candidate::Expand(unpool_expand)],
    cases: &[
        "[1,1,2,2];i64[1,1,2,2]{5,7,13,15} kernel_shape=[2,2] strides=[2,2]",
        "[1,1,2,2];i64[1,1,2,2]{5,7,13,15};i64[4]{1,1,5,6} kernel_shape=[2,2] strides=[2,2]",
        "[2,1,3];i64[2,1,3]{0,0,3,7,5,6} kernel_shape=[3] pads=[1,0]",
    ],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef { since: 10, until: 27, ..REVERSE },
    OpDef { since: 28, ..REVERSE },
    OpDef {
        name: "CenterCropPad",
        since: 18,
        inputs: &[req("input_data", "T"), req("shape", "Tind")],
        outputs: &[req("output_data", "T")],
        attrs: &[attr("axes", AttrKind::Ints)],
        dtypes: &[("T", BASIC), ("Tind", &[I64, I32])],
        infer: center_infer,
        reference: Some(|c| {
            let (x, sizes) = (c.input(0)?, c.input(1)?.to_i64_vec());
            let mut extents = x.shape().to_vec();
            let rank = extents.len() as i64;
            let axes = c.attrs.ints(0).map_or((0..rank).collect(), <[i64]>::to_vec);
            for (a, &n) in axes.into_iter().zip(&sizes) {
                let a = usize::try_from(if a < 0 { a + rank } else { a }).map_err(|_| wrong(c))?;
                *extents.get_mut(a).ok_or_else(|| wrong(c))? = usize::try_from(n).map_err(|_| wrong(c))?;
            }
            Ok(vec![image::center_crop_pad(x, &extents)?])
        }),
        lower: &[Candidate::Loops(center_loops)],
        cases: &[
            "[5,4];i64[2]{2,7}",
            "[5,4,3];i32[2]{8,1} axes=[0,-1]",
            "[4,5];i64[1]{0} axes=[1]",
            "[3,4];i64[2]{3,9}",
        ],
        ..ROW
    },
    OpDef {
        name: "EyeLike",
        since: 9,
        inputs: &[req("input", "T")],
        outputs: &[req("output", "")],
        attrs: &[attr("dtype", AttrKind::IntOpt), attr("k", AttrKind::Int(0))],
        dtypes: &[("T", BASIC)],
        infer: |c| {
            let dtype = match eye_dtype(c.attrs) {
                Some(d) if BASIC.contains(&d) => d,
                None if c.attrs.int(0).is_none() => c.dtype(0)?,
                _ => return Err(c.error(ErrorKind::Unsupported, "EyeLike: a dtype that has no 0 and 1")),
            };
            match c.shape(0) {
                Some(s) if s.len() != 2 => {
                    return Err(c.error(ErrorKind::Shape, format!("EyeLike needs 2 axes, not {}", s.len())));
                }
                Some(s) => c.set(0, dtype, s),
                None => c.set_unranked(0, dtype),
            }
            Ok(())
        },
        reference: Some(|c| {
            let x = c.input(0)?;
            let &[rows, columns] = x.shape() else { return Err(wrong(c)) };
            let dtype = eye_dtype(c.attrs).unwrap_or(x.dtype());
            Ok(vec![image::eye(dtype, rows, columns, c.attrs.int(1).unwrap_or(0))])
        }),
        lower: &[Candidate::Loops(|c| {
            let (k, dtype) = (c.attrs.int(1).unwrap_or(0), c.outs[0].dtype);
            let mut b = Builder::over_result(c)?;
            let (row, column, k) = (b.outer(0), b.outer(1), b.int(k));
            let at = b.bin(BinOp::Sub, column, row);
            let on = b.bin(BinOp::Eq, at, k);
            let t = crate::nest::compute_dtype(dtype).ok_or("elements that nothing is computed with")?;
            let (zero, one) = (b.nest.num(0.0, t), b.nest.num(1.0, t));
            let v = b.select(on, one, zero);
            Ok(b.store(v))
        })],
        cases: &["[3,4]", "[4,3] k=1 dtype=f32", "[3,3] k=-2 dtype=i64", "[2,0]", "[2,3] k=7 dtype=bool"],
        ..ROW
    },
    OpDef { since: 9, until: 21, ..UNPOOL },
    OpDef { since: 22, dtypes: &[("T1", super::row::FLOATS), ("T2", &[I64])], ..UNPOOL },
];

fn wrong(c: &RefCtx) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, format!("{}: operands and attributes do not fit", c.def.name))
}

fn eye_dtype(attrs: &Attrs) -> Option<DType> {
    DType::from_onnx(i32::try_from(attrs.int(0)?).ok()?)
}

/// Batch and time axis: 0 and 1 in either order.
fn reverse_axes(attrs: &Attrs) -> Option<(usize, usize)> {
    match (attrs.int(0), attrs.int(1)) {
        (Some(0), Some(1)) => Some((0, 1)),
        (Some(1), Some(0)) => Some((1, 0)),
        _ => None,
    }
}

fn reverse_infer(c: &mut InferCtx) -> Result<()> {
    let Some((batch, _)) = reverse_axes(c.attrs) else {
        let text = "ReverseSequence: one of batch_axis and time_axis must be 0, the other 1";
        return Err(c.error(ErrorKind::Shape, text));
    };
    if let Some(s) = c.shape(0) {
        if s.len() < 2 {
            return Err(c.error(ErrorKind::Shape, format!("ReverseSequence needs 2 axes, not {}", s.len())));
        }
        match c.shape(1).as_deref() {
            Some(&[n]) => c.require_eq(n, s[batch], "there is one length per sequence")?,
            Some(_) => return Err(c.error(ErrorKind::Shape, "ReverseSequence: lengths must be a list")),
            None => {}
        }
    }
    super::row::same_type_as_0(c)
}

/// One load per element. A length that is longer than the sequence reads no foreign memory.
fn reverse_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let x = c.need(0)?;
    let (batch, time) = reverse_axes(c.attrs).ok_or("unknown axes")?;
    let mut b = Builder::over_result(c)?;
    let mut at: Vec<Coord> = (0..x.shape.len()).map(|a| b.along(outer(a))).collect();
    let len = b.load(1, [at[batch].clone()])?;
    let (t, one, zero, n) = (b.outer(time), b.int(1), b.int(0), b.dim(x.shape[time]));
    let len = b.bin(BinOp::Min, len, n);
    let last = b.bin(BinOp::Sub, len, one);
    let back = b.bin(BinOp::Sub, last, t);
    let reversed = b.bin(BinOp::Ge, back, zero);
    let t = b.select(reversed, back, t);
    at[time] = b.computed(t);
    let v = b.load(0, at)?;
    Ok(b.store(v))
}

fn center_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(mut s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let axes = match c.attrs.ints(0) {
        Some(axes) => c.axes(axes, s.len())?,
        None => (0..s.len()).collect(),
    };
    match c.need_values(1) {
        Some(v) if v.len() != axes.len() => {
            let text = format!("CenterCropPad: {} extents for {} axes", v.len(), axes.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
        Some(v) => {
            for (&a, &d) in axes.iter().zip(&v) {
                s[a] = c.extent(d)?;
            }
        }
        None => axes.iter().zip(c.unknown_extents(axes.len())).for_each(|(&a, d)| s[a] = d),
    }
    c.set(0, dtype, s);
    Ok(())
}

/// One load per element, shifted along each axis whose extent changes.
fn center_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let (x, y) = (c.need(0)?, c.outs[0].shape.clone());
    let mut b = Builder::over_result(c)?;
    let (mut at, mut inside) = (Vec::new(), None);
    for (a, (&n, &m)) in x.shape.iter().zip(&y).enumerate() {
        let mut coord = b.along(outer(a));
        if n != m {
            let p = &mut *b.c.dims;
            let (zero, two) = (p.constant(0), p.constant(2));
            let mut half = |a: DimId, b: DimId| {
                let d = p.sub(a, b);
                let d = p.max(d, zero);
                p.floordiv(d, two)
            };
            // One of the two is 0.
            let (cut, pad) = (half(n, m), half(m, n));
            coord.offset = p.sub(cut, pad);
            let (o, shift) = (b.outer(a), b.dim(coord.offset));
            let i = b.bin(BinOp::Add, o, shift);
            let within = b.within(i, n, true, true);
            inside = b.and(inside, within);
        }
        at.push(coord);
    }
    let t = b.dtype(0);
    let zero = b.nest.num(0.0, t);
    let v = b.load_if(0, at, inside, zero)?;
    Ok(b.store(v))
}

/// Windows of MaxUnpool: kernel, pads before and after together, strides; one entry per spatial axis.
struct Unpool {
    kernel: Vec<i64>,
    pads: Vec<i64>,
    strides: Vec<i64>,
}

impl Unpool {
    fn new(attrs: &Attrs, rank: usize) -> Option<Unpool> {
        let n = rank.checked_sub(2).filter(|&n| n > 0)?;
        let list = |slot: usize, len: usize, default: i64| {
            let v = attrs.ints(slot).map_or(vec![default; len], <[i64]>::to_vec);
            (v.len() == len && v.iter().all(|&x| x >= default && x < 1 << 31)).then_some(v)
        };
        attrs.ints(0)?;
        let (kernel, pads, strides) = (list(0, n, 1)?, list(1, 2 * n, 0)?, list(2, n, 1)?);
        Some(Unpool { kernel, pads: (0..n).map(|a| pads[a] + pads[a + n]).collect(), strides })
    }
    /// What an extent times the stride is short of the unpooled extent, along each axis.
    fn rest(&self) -> Vec<i64> {
        (0..self.kernel.len()).map(|a| self.kernel[a] - self.strides[a] - self.pads[a]).collect()
    }
}

fn unpool_infer(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let Some(u) = Unpool::new(c.attrs, s.len()) else {
        let text = format!("MaxUnpool: attributes do not fit {} axes", s.len());
        return Err(c.error(ErrorKind::Shape, text));
    };
    if let Some(i) = c.shape(1) {
        if i.len() != s.len() {
            return Err(c.error(ErrorKind::Shape, "MaxUnpool: there is one position per element"));
        }
        for (&a, &b) in s.iter().zip(&i) {
            c.require_eq(a, b, "there is one position per element")?;
        }
    }
    let mut out: Shape = s.clone();
    for (a, rest) in u.rest().into_iter().enumerate() {
        let (stride, rest) = (c.dims.constant(u.strides[a]), c.dims.constant(rest));
        let n = c.dims.mul(s[2 + a], stride);
        let n = c.dims.add(n, rest);
        out[2 + a] = c.extent(n)?;
    }
    if c.has(2) {
        out = match c.need_values(2) {
            Some(v) if v.len() == s.len() => {
                for (&n, &d) in out.iter().zip(&v) {
                    c.require_le(n, d, "MaxUnpool: output_shape must not be smaller than what is unpooled");
                }
                v
            }
            Some(_) => return Err(c.error(ErrorKind::Shape, "MaxUnpool: output_shape is not of as many axes")),
            None => c.unknown_extents(s.len()),
        };
    }
    c.set(0, dtype, out);
    Ok(())
}

fn unpool_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (x, at) = (c.input(0)?, c.input(1)?);
    let u = Unpool::new(c.attrs, x.shape().len()).ok_or_else(|| wrong(c))?;
    let mut inner = x.shape().to_vec();
    for (a, rest) in u.rest().into_iter().enumerate() {
        let n = inner[2 + a] as i64 * u.strides[a] + rest;
        inner[2 + a] = usize::try_from(n).map_err(|_| wrong(c))?;
    }
    let outer = match c.opt(2) {
        Some(t) => t.to_i64_vec().into_iter().map(|n| n.max(0) as usize).collect(),
        None => inner.clone(),
    };
    Ok(vec![image::max_unpool(x, at, &inner, &outer)?])
}

/// Zeros with the elements scattered into them, all axes as one: positions count through the whole tensor. With `output_shape` (which the
/// text has for windows that fit several extents) positions still count in what kernel, strides and pads give; zeros follow.
fn unpool_expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let (v, at) = (x.need(0)?, x.need(1)?);
    let (dtype, s) = x.tensor(v)?;
    let fail = || Diagnostic::new(ErrorKind::Shape, "MaxUnpool: attributes do not fit");
    let u = Unpool::new(x.attrs(), s.len()).ok_or_else(fail)?;
    let (strides, rest) = (x.ints(&u.strides), x.ints(&u.rest()));
    let planes = x.op("Shape", &[v], &[("end", Attr::Int(2))]);
    let image = x.op("Shape", &[v], &[("start", Attr::Int(2))]);
    let image = x.op("Mul", &[image, strides], &[]);
    let image = x.op("Add", &[image, rest], &[]);
    let shape = x.concat(&[planes, image], 0);
    let zero = x.scalar(dtype, 0.0);
    let zeros = x.op("Expand", &[zero, shape], &[]);
    let [zeros, at, v] = [zeros, at, v].map(|v| x.reshape(v, &[-1]));
    let y = x.op("ScatterElements", &[zeros, at, v], &[]);
    let mut y = x.op("Reshape", &[y, shape], &[("allowzero", Attr::Int(1))]);
    if let Some(whole) = x.input(2) {
        let after = x.op("Sub", &[whole, shape], &[]);
        let before = x.ints(&vec![0; s.len()]);
        let pads = x.concat(&[before, after], 0);
        y = x.op("Pad", &[y, pads], &[]);
    }
    Ok(vec![y])
}
