//! Rows of com.microsoft that exporters of transformers write around attention: activations with a bias, normalizations of a residual,
//! rotary positions. SimplifiedLayerNormalization is there, too, in the default domain, where exporters put it.

use super::broadcast::require_broadcasts_to;
use super::movement::checked_axis;
use super::norm::{EPSILON, epsilon};
use super::pointwise::{Exprs, arg, one};
use super::row::{FLOATS, ROW, ref1, same_type_as_0};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::{Expand, Pointwise};
use crate::nest::{BinOp, ExprId, Nest};
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::data::{f64s, from_f64s};
use reference::{activation as a, attention, elementwise as e, norm};
use tensor::DType::{self, *};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

const MICROSOFT: &str = "com.microsoft";
const T: (&str, &[DType]) = ("T", FLOATS);
/// Far smaller than elsewhere.
const SKIP_EPSILON: AttrDef = attr("epsilon", AttrKind::Float(1e-12));

/// The result is like operand 0; the others broadcast to it.
fn like_first(c: &mut InferCtx) -> Result<()> {
    same_type_as_0(c)?;
    let Some(s) = c.shape(0) else { return Ok(()) };
    for i in 1..c.ins.len() {
        if let Some(t) = c.shape(i) {
            let name = c.def.inputs[i].name;
            require_broadcasts_to(c, &t, &s, name)?;
        }
    }
    Ok(())
}

/// `f` of the sum of all operands, in f64 and rounded once.
fn of_sum(c: &RefCtx, f: impl Fn(&Tensor) -> Tensor) -> Result<Vec<Tensor>> {
    let y = f(&sum(c, &[1, 2])?);
    Ok(vec![rounded(&y, c.input(0)?.dtype())])
}

/// The sum of operand 0 and of those of `operands` that are there, in f64.
fn sum(c: &RefCtx, operands: &[usize]) -> Result<Tensor> {
    let mut y = rounded(c.input(0)?, F64);
    for &i in operands {
        if let Some(t) = c.opt(i) {
            y = e::add(&y, &rounded(t, F64))?;
        }
    }
    Ok(y)
}

/// The tensor in another float type.
fn rounded(t: &Tensor, to: DType) -> Tensor {
    from_f64s(to, t.shape(), &f64s(t))
}

fn sum_of(n: &mut Nest, args: &[Option<ExprId>]) -> Option<ExprId> {
    args.iter().flatten().copied().reduce(|x, y| n.bin(BinOp::Add, x, y))
}

fn gelu_of_sum(n: &mut Nest, args: &[Option<ExprId>], tanh: bool) -> Exprs {
    let x = sum_of(n, args).ok_or("an operand is missing")?;
    one(if tanh { n.gelu_tanh(x) } else { n.gelu(x) })
}

/// In which type residuals are added and normalized: two narrow floats lose digits when their sum is rounded.
fn wide(dtype: DType) -> DType {
    if dtype.bits() < 32 { F32 } else { dtype }
}

fn infer_skip(c: &mut InferCtx) -> Result<()> {
    like_first(c)?;
    let d = c.dtype(0)?;
    let one = c.dims.constant(1);
    match c.shape(0) {
        Some(s) => {
            let stats: Shape = s[..s.len().saturating_sub(1)].iter().copied().chain([one]).collect();
            c.set(1, F32, stats.iter().copied());
            c.set(2, F32, stats);
            c.set(3, d, s);
        }
        None => {
            c.set_unranked(1, F32);
            c.set_unranked(2, F32);
            c.set_unranked(3, d);
        }
    }
    Ok(())
}

/// The residual sum: operands 0, 1 and the bias.
fn added(x: &mut Expansion, bias: usize) -> Result<(Value, DType)> {
    let (input, skip) = (x.need(0)?, x.need(1)?);
    let (dtype, _) = x.tensor(input)?;
    let t = wide(dtype);
    let (a, b) = (x.cast(input, t), x.cast(skip, t));
    let mut y = x.op("Add", &[a, b], &[]);
    if let Some(bias) = x.input(bias) {
        let bias = x.cast(bias, t);
        y = x.op("Add", &[y, bias], &[]);
    }
    Ok((y, dtype))
}

fn float(v: f32) -> Attr {
    Attr::Float(crate::attrs::F32::new(v))
}

fn norm_attrs(x: &Expansion) -> [(&'static str, Attr); 2] {
    [("axis", Attr::Int(-1)), ("epsilon", float(x.attrs().float(0).unwrap_or(1e-12)))]
}

fn expand_skip_layer_norm(x: &mut Expansion) -> Result<Vec<Value>> {
    let (sum, dtype) = added(x, 4)?;
    let attrs = norm_attrs(x);
    let mut ins = vec![sum];
    for i in [2, 3] {
        if let Some(v) = x.input(i) {
            ins.push(x.cast(v, wide(dtype)));
        }
    }
    let r = x.op_n("LayerNormalization", &ins, &attrs, 3);
    let (y, sum) = (x.cast(r[0], dtype), x.cast(sum, dtype));
    Ok(vec![y, r[1], r[2], sum])
}

fn skip_layer_norm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let s = sum(c, &[1, 4])?;
    let axis = s.shape().len().saturating_sub(1);
    let [y, mean, inv] = norm::layer_norm(&s, c.input(2)?, c.opt(3), axis, epsilon(c.attrs, 0), F32)?;
    let d = c.input(0)?.dtype();
    Ok(vec![rounded(&y, d), mean, inv, rounded(&s, d)])
}

fn expand_skip_rms_norm(x: &mut Expansion) -> Result<Vec<Value>> {
    let (sum, dtype) = added(x, 3)?;
    let attrs = norm_attrs(x);
    let scale = x.need(2)?;
    let scale = x.cast(scale, wide(dtype));
    let y = x.op("RMSNormalization", &[sum, scale], &attrs);
    let last = x.ints(&[-1]);
    let mean = x.op("ReduceMean", &[sum, last], &[]);
    let inv = inverse_root(x, sum, wide(dtype), -1);
    let (y, sum) = (x.cast(y, dtype), x.cast(sum, dtype));
    Ok(vec![y, x.cast(mean, F32), inv, sum])
}

/// `1 / √(mean(v²) + epsilon)` over the axes from `axis` on, as f32.
fn inverse_root(x: &mut Expansion, v: Value, dtype: DType, axis: i64) -> Value {
    let axes: Vec<i64> = (axis..0).collect();
    let axes = x.ints(&axes);
    let slot = if x.def().name == "SimplifiedLayerNormalization" { 1 } else { 0 };
    let epsilon = x.scalar(dtype, x.attrs().float(slot).unwrap_or(1e-12).into());
    let square = x.op("Mul", &[v, v], &[]);
    let mean = x.op("ReduceMean", &[square, axes], &[]);
    let mean = x.op("Add", &[mean, epsilon], &[]);
    let root = x.op("Sqrt", &[mean], &[]);
    let inv = x.op("Reciprocal", &[root], &[]);
    x.cast(inv, F32)
}

/// `1 / √(mean(v²) + epsilon)` over the axes from `axis` on.
fn inverse_roots(v: &Tensor, axis: usize, epsilon: f64) -> Tensor {
    let mut shape = v.shape().to_vec();
    let n: usize = shape[axis..].iter().product();
    shape[axis..].fill(1);
    let values = f64s(v);
    let inv = |row: usize| {
        let squares = values[row * n..(row + 1) * n].iter().map(|v| v * v);
        1.0 / (reference::math::sum(squares) / n as f64 + epsilon).sqrt()
    };
    let rows: usize = shape.iter().product();
    from_f64s(F32, &shape, &(0..rows).map(inv).collect::<Vec<_>>())
}

fn skip_rms_norm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let s = sum(c, &[1, 3])?;
    let (axis, eps) = (s.shape().len().saturating_sub(1), epsilon(c.attrs, 0));
    let scale = rounded(c.input(2)?, F64);
    let y = norm::rms_norm(&s, &scale, axis, eps)?;
    let over: Vec<bool> = (0..s.shape().len()).map(|i| i == axis).collect();
    let mean = reference::reduce::reduce(reference::reduce::Reduce::Mean, &s, &over, true);
    let d = c.input(0)?.dtype();
    Ok(vec![rounded(&y, d), rounded(&mean, F32), inverse_roots(&s, axis, eps), rounded(&s, d)])
}

fn infer_simplified(c: &mut InferCtx) -> Result<()> {
    if c.attrs.int(2).is_some_and(|t| t != 1) {
        let text = format!("SimplifiedLayerNormalization: stash_type={:?} is not 1 (f32)", c.attrs.int(2));
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let d = c.dtype(1)?;
    let Some(s) = c.shape(0) else {
        c.set_unranked(0, d);
        c.set_unranked(1, F32);
        return Ok(());
    };
    let axis = c.axis(c.attrs.int(0).unwrap_or(-1), s.len())?;
    if let Some(t) = c.shape(1) {
        require_broadcasts_to(c, &t, &s, "the scale")?;
    }
    let one = c.dims.constant(1);
    c.set(0, d, s.iter().copied());
    c.set(1, F32, s.iter().enumerate().map(|(i, &d)| if i < axis { d } else { one }));
    Ok(())
}

fn expand_simplified(x: &mut Expansion) -> Result<Vec<Value>> {
    let (input, scale) = (x.need(0)?, x.need(1)?);
    let (dtype, shape) = x.tensor(input)?;
    let rank = i64::try_from(shape.len()).unwrap_or(i64::MAX);
    let axis = x.attrs().int(0).unwrap_or(-1);
    let axis = if axis < 0 { axis } else { axis - rank };
    let attrs = [("axis", Attr::Int(axis)), ("epsilon", float(x.attrs().float(1).unwrap_or(1e-5)))];
    let y = x.op("RMSNormalization", &[input, scale], &attrs);
    if x.n_outs() < 2 {
        return Ok(vec![y]);
    }
    let wide = wide(dtype);
    let v = x.cast(input, wide);
    let inv = inverse_root(x, v, wide, axis);
    Ok(vec![y, inv])
}

fn simplified_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let axis = checked_axis(c.attrs.int(0).unwrap_or(-1), x.shape().len());
    let eps = epsilon(c.attrs, 1);
    Ok(vec![norm::rms_norm(x, c.input(1)?, axis, eps)?, inverse_roots(x, axis, eps)])
}

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
    // Y = X · Φ(X)
    OpDef {
        name: "Gelu",
        domain: MICROSOFT,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[T],
        infer: same_type_as_0,
        reference: Some(|c| ref1(c, a::gelu)),
        lower: &[Pointwise(|_, n, args| gelu_of_sum(n, args, false))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3]", "[6]{0,1,-1,5,-5,nan}"],
        ..ROW
    },
    // C = (A + B) · Φ(A + B)
    OpDef {
        name: "BiasGelu",
        domain: MICROSOFT,
        inputs: &[req("A", "T"), req("B", "T")],
        outputs: &[req("C", "T")],
        dtypes: &[T],
        infer: like_first,
        reference: Some(|c| of_sum(c, a::gelu)),
        lower: &[Pointwise(|_, n, args| gelu_of_sum(n, args, false))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3];[3]", "[2,4,8];[8]", "[0,3];[3]"],
        ..ROW
    },
    // Y = gelu(X + bias) by tanh
    OpDef {
        name: "FastGelu",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), opt("bias", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[T],
        infer: like_first,
        reference: Some(|c| of_sum(c, a::gelu_tanh)),
        lower: &[Pointwise(|_, n, args| gelu_of_sum(n, args, true))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3]", "[2,4,8];[8]"],
        ..ROW
    },
    // Y = X · sigmoid(alpha · X)
    OpDef {
        name: "QuickGelu",
        domain: MICROSOFT,
        inputs: &[req("X", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[attr("alpha", AttrKind::Float(1.702))],
        dtypes: &[T],
        infer: same_type_as_0,
        reference: Some(|c| ref1(c, |x| a::swish(x, c.attrs.float(0).unwrap_or(1.702).into()))),
        lower: &[Pointwise(|c, n, args| {
            let x = arg(args, 0)?;
            let scaled = n.bin_num(BinOp::Mul, x, c.attrs.float(0).unwrap_or(1.702).into());
            let s = n.sigmoid(scaled);
            one(n.bin(BinOp::Mul, x, s))
        })],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3]", "[5]{0,1,-1,20,-20} alpha=0.5"],
        ..ROW
    },
    // Y = X + bias + skip
    OpDef {
        name: "BiasAdd",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("bias", "T"), req("skip", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[T],
        infer: like_first,
        reference: Some(|c| of_sum(c, |y| y.clone())),
        lower: &[Pointwise(|_, n, args| one(sum_of(n, args).ok_or("an operand is missing")?))],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,8];[8];[2,3,8]"],
        ..ROW
    },
    // output = layer normalization of input + skip + bias over the last axis; input_skip_bias_sum = input + skip + bias
    OpDef {
        name: "SkipLayerNormalization",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("skip", "T"), req("gamma", "T"), opt("beta", "T"), opt("bias", "T")],
        outputs: &[req("output", "T"), opt("mean", "U"), opt("inv_std_var", "U"), opt("input_skip_bias_sum", "T")],
        attrs: &[SKIP_EPSILON],
        dtypes: &[T, ("U", &[F32])],
        infer: infer_skip,
        reference: Some(skip_layer_norm_ref),
        lower: &[Expand(expand_skip_layer_norm)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,3,8];[2,3,8];[8];[8];[8] outs=4 epsilon=0.001",
            "[2,3,8];[3,8];[8] epsilon=0.001",
            "[4,8];[8];[8];_;[8] epsilon=0.001 outs=4",
        ],
        ..ROW
    },
    // output = RMS normalization of input + skip + bias over the last axis; input_skip_bias_sum = input + skip + bias
    OpDef {
        name: "SkipSimplifiedLayerNormalization",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("skip", "T"), req("gamma", "T"), opt("bias", "T")],
        outputs: &[req("output", "T"), opt("mean", "U"), opt("inv_std_var", "U"), opt("input_skip_bias_sum", "T")],
        attrs: &[SKIP_EPSILON],
        dtypes: &[T, ("U", &[F32])],
        infer: infer_skip,
        reference: Some(skip_rms_norm_ref),
        lower: &[Expand(expand_skip_rms_norm)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,8];[2,3,8];[8];[8] outs=4", "[2,3,8];[3,8];[8] epsilon=0.001"],
        ..ROW
    },
    // Y = X / √(mean(X²) + epsilon) · scale, over the axes from `axis` on
    OpDef {
        name: "SimplifiedLayerNormalization",
        inputs: &[req("X", "T"), req("scale", "V")],
        outputs: &[req("Y", "V"), opt("inv_std_var", "U")],
        attrs: &[attr("axis", AttrKind::Int(-1)), EPSILON, attr("stash_type", AttrKind::Int(1))],
        dtypes: &[T, ("V", FLOATS), ("U", &[F32])],
        infer: infer_simplified,
        reference: Some(simplified_ref),
        lower: &[Expand(expand_simplified)],
        tolerance: Tol::Rel(1e-5),
        cases: &["[2,3,8];[8]", "[2,3,4];[3,4] axis=1 epsilon=0.01 outs=2"],
        ..ROW
    },
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
