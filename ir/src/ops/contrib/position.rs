//! Biases of attention scores by relative positions.

use super::super::row::ROW;
use super::attend::{first_number, number, split};
use super::padding::restore;
use super::{MICROSOFT, wide};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::data::{f64s, from_f64s};
use reference::heads::{Heads, bucket, unpack};
use tensor::DType::{self, BF16, F16, F32, I32, I64};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

const BIDIRECTIONAL: usize = 0;
const MOST: usize = 1;
/// Distances that a table of buckets is made for.
const LONGEST: i64 = 1 << 16;

fn infer_relative(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    c.require_single(1, "query_length")?;
    c.require_single(2, "key_length")?;
    let lengths = (c.need_values(1), c.need_values(2));
    let Some(table) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let [buckets, heads] = *table.as_slice() else { return Err(c.misshapen(0, "[num_buckets, num_heads]")) };
    let most = c.attrs.int(MOST).unwrap_or(0);
    let n = c.dims.as_const(buckets).map(|n| if c.attrs.int(BIDIRECTIONAL) == Some(1) { n / 2 } else { n });
    if !n.is_some_and(|n| n >= 2 && most > n / 2 && most <= LONGEST) {
        let text = format!(
            "RelativePositionBias: max_distance={most} is not above the near half of a known number of buckets and at most {LONGEST}"
        );
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let (Some(q), Some(k)) = lengths else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let one = c.dims.constant(1);
    let (q, k) = (q.first().copied().unwrap_or(one), k.first().copied().unwrap_or(one));
    let (q, k) = (c.extent(q)?, c.extent(k)?);
    c.set(0, dtype, [one, heads, q, k]);
    Ok(())
}

fn expand_relative(x: &mut Expansion) -> Result<Vec<Value>> {
    let (table, q, k) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let shape = x.tensor(table)?.1;
    let (n, both) = (x.as_const(shape[0]).unwrap_or(2), x.attrs().int(BIDIRECTIONAL) == Some(1));
    let most = x.attrs().int(MOST).unwrap_or(0).min(LONGEST);
    let (q, k) = (number(x, q), number(x, k));
    let (i, j) = (x.count_to(q), x.count_to(k));
    let i = x.unsqueeze(i, &[1]);
    let before = x.op("Sub", &[i, j], &[]);
    let (zero, last) = (x.scalar(I64, 0.0), x.scalar(I64, most as f64));
    let far = if both { x.op("Abs", &[before], &[]) } else { x.op("Max", &[before, zero], &[]) };
    let far = x.op("Min", &[far, last], &[]);
    let of_far: Vec<i64> = (0..=most).map(|d| bucket(-d, n, both, most)).collect();
    let of_far = x.ints(&of_far);
    let mut buckets = x.op("Gather", &[of_far, far], &[]);
    if both {
        let after = x.op("Less", &[before, zero], &[]);
        let half = x.scalar(I64, (n / 2) as f64);
        let shift = x.op("Where", &[after, half, zero], &[]);
        buckets = x.op("Add", &[buckets, shift], &[]);
    }
    // The table is [num_buckets, num_heads] with one head after the other in memory.
    let heads = x.extent(table, 1);
    let n = x.ints(&[n]);
    let by_head = x.reshape_to(table, &[heads, n]);
    let y = x.op("Gather", &[by_head, buckets], &[("axis", Attr::Int(1))]);
    Ok(vec![x.unsqueeze(y, &[0])])
}

fn relative_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let table = c.input(0)?;
    let size = |i: usize| -> Result<usize> { Ok(usize::try_from(first_number(c.input(i)?)).unwrap_or(0)) };
    let (q, k) = (size(1)?, size(2)?);
    let &[n, h] = table.shape() else { return Err(Diagnostic::new(ErrorKind::Shape, "a table has two axes")) };
    let (v, both, most) = (f64s(table), c.attrs.int(BIDIRECTIONAL) == Some(1), c.attrs.int(MOST).unwrap_or(0));
    let y = Heads::build([1, h, q, k], |[_, j, q, k]| {
        let b = bucket(k as i64 - q as i64, n as i64, both, most);
        usize::try_from(b).ok().and_then(|b| v.get(j * n + b)).copied().unwrap_or(f64::NAN)
    });
    Ok(vec![y.tensor(table.dtype())])
}

const BIAS: usize = 1;
const RELATIVE: usize = 2;
const WEIGHT: usize = 3;
const GATE_BIAS: usize = 4;
const FACTOR: usize = 5;
const OFFSETS: usize = 6;

fn infer_gated(c: &mut InferCtx) -> Result<()> {
    let n = c.heads(0, "num_heads")?;
    let dtype = c.dtype(0)?;
    let Some(q) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let offsets = c.shape(OFFSETS);
    let (b, s, hidden) = match (q.as_slice(), offsets.as_deref()) {
        (&[b, s, hidden], None) if !c.has(OFFSETS) => (b, s, hidden),
        (&[tokens, hidden], Some(&[b, s])) => {
            let places = c.dims.mul(b, s);
            c.require_within(tokens, places, "there is a place for each token")?;
            (b, s, hidden)
        }
        (_, None) if c.has(OFFSETS) => {
            c.set_unranked(0, dtype);
            return Ok(());
        }
        _ => return Err(c.misshapen(0, "[b, s, h·d] and, with a token_offset [b, s], [tokens, h·d]")),
    };
    let d = c.part(hidden, n, "num_heads divides the hidden size")?;
    let (h, one) = (c.dims.constant(n), c.dims.constant(1));
    let width = c.shape(WEIGHT).and_then(|w| w.get(1).copied());
    if let Some(width) = width {
        c.part(width, 2, "the gates' weights are those of two gates")?;
    }
    let width = width.unwrap_or(one);
    let wanted: [(usize, &[_], &str); 5] = [
        (BIAS, &[hidden], "[h·d]"),
        (RELATIVE, &[one, h, s, s], "[1, h, s, s]"),
        (WEIGHT, &[d, width], "[d, D]"),
        (GATE_BIAS, &[width], "[D]"),
        (FACTOR, &[one, h, one, one], "[1, h, 1, 1]"),
    ];
    for (i, wanted, text) in wanted {
        let Some(have) = c.shape(i) else { continue };
        if have.len() != wanted.len() {
            return Err(c.misshapen(i, text));
        }
        for (&a, &b) in have.iter().zip(wanted) {
            c.require_eq(a, b, &format!("{} is {text}", c.def.inputs[i].name))?;
        }
    }
    c.set(0, dtype, [b, h, s, s]);
    Ok(())
}

fn expand_gated(x: &mut Expansion) -> Result<Vec<Value>> {
    let n = x.attrs().int(0).unwrap_or(1);
    let (query, bias) = (x.need(0)?, x.need(BIAS)?);
    let (dtype, t) = x.tensor(query).map(|(d, _)| (d, wide(d)))?;
    let query = match x.input(OFFSETS) {
        Some(offsets) => restore(x, query, offsets, dtype),
        None => query,
    };
    let q = x.op("Add", &[query, bias], &[]);
    let q = split(x, q, n);
    let weight = x.need(WEIGHT)?;
    let both = x.op("MatMul", &[q, weight], &[]);
    let [both, of_gates, factor, relative] = {
        let (a, b, c) = (x.need(GATE_BIAS)?, x.need(FACTOR)?, x.need(RELATIVE)?);
        [both, a, b, c].map(|v| x.cast(v, t))
    };
    let both = x.op("Add", &[both, of_gates], &[]);
    let halves = x.op_opt("Split", &[Some(both), None], &[("axis", Attr::Int(3)), ("num_outputs", Attr::Int(2))], 2);
    let last = x.ints(&[3]);
    let [u, r] = [halves[0], halves[1]].map(|v| {
        let v = x.op("ReduceSum", &[v, last], &[]);
        x.op("Sigmoid", &[v], &[])
    });
    let (one, two) = (x.scalar(t, 1.0), x.scalar(t, 2.0));
    let gate = x.op("Mul", &[r, factor], &[]);
    let gate = x.op("Sub", &[gate, one], &[]);
    let gate = x.op("Mul", &[u, gate], &[]);
    let gate = x.op("Add", &[gate, two], &[]);
    let y = x.op("Mul", &[gate, relative], &[]);
    Ok(vec![x.cast(y, dtype)])
}

fn gated_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let n = c.attrs.int(0).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let query = c.input(0)?;
    let query = match c.opt(OFFSETS) {
        Some(offsets) => unpack(query, offsets)?,
        None => query.clone(),
    };
    let q = Heads::split(&query, n)?.plus(&f64s(c.input(BIAS)?))?;
    let [b, h, s, d] = q.shape;
    let [relative, weight, bias, factor] = [RELATIVE, WEIGHT, GATE_BIAS, FACTOR].map(|i| c.input(i));
    let (relative, weight, bias, factor) = (relative?, weight?, bias?, factor?);
    let width = bias.n_elems();
    if relative.shape() != [1, h, s, s] || weight.shape() != [d, width] || factor.shape() != [1, h, 1, 1] {
        let text = format!("gates {:?}, {:?} of {:?}", weight.shape(), factor.shape(), relative.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let (relative, w, bias, factor) = (f64s(relative), f64s(weight), f64s(bias), f64s(factor));
    let gate = |b: usize, j: usize, row: usize| {
        let of = |half: usize| {
            let columns = half * (width / 2)..(half + 1) * (width / 2);
            let sum = columns.map(|o| bias[o] + (0..d).map(|i| q.at([b, j, row, i]) * w[i * width + o]).sum::<f64>());
            1.0 / (1.0 + (-reference::math::sum(sum)).exp())
        };
        of(0) * (of(1) * factor[j] - 1.0) + 2.0
    };
    let mut y = Vec::with_capacity(b * h * s * s);
    for row in 0..b * h * s {
        let (i, j, k) = (row / (h * s), row / s % h, row % s);
        let g = gate(i, j, k);
        y.extend((0..s).map(|l| g * relative[(j * s + k) * s + l]));
    }
    Ok(vec![from_f64s(query.dtype(), &[b, h, s, s], &y)])
}

const T: &[DType] = &[F32, F16, BF16];

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output[0, h, q, k] = the bias of head h for the bucket of the distance k - q
    OpDef {
        name: "RelativePositionBias",
        domain: MICROSOFT,
        inputs: &[req("bias_table", "T"), req("query_length", "U"), req("key_length", "U")],
        outputs: &[req("output", "T")],
        attrs: &[attr("is_bidirectional", AttrKind::Int(0)), attr("max_distance", AttrKind::IntReq)],
        dtypes: &[("T", T), ("U", &[I64])],
        infer: infer_relative,
        reference: Some(relative_ref),
        lower: &[Expand(expand_relative)],
        cases: &[
            "f32[8,3];i64[1]{21};i64[1]{21} max_distance=16",
            "f16[8,3];i64[]{9};i64[1]{12} max_distance=5 is_bidirectional=1",
            "bf16[32,2];i64[1]{40};i64[]{40} max_distance=128 is_bidirectional=1",
            "f32[4,1];i64[1]{0};i64[1]{3} max_distance=16",
        ],
        ..ROW
    },
    // output = (u · (r · eco_a - 1) + 2) · rel_pos with gates u, r = sigmoid of the sums of the halves of (query + query_bias)·weight + bias
    OpDef {
        name: "GatedRelativePositionBias",
        domain: MICROSOFT,
        inputs: &[
            req("query_layer", "T"),
            req("query_bias", "T"),
            req("rel_pos", "T"),
            req("weight", "T"),
            req("bias", "T"),
            req("eco_a", "T"),
            opt("token_offset", "M"),
        ],
        outputs: &[req("output", "T")],
        attrs: &[attr("num_heads", AttrKind::IntReq)],
        dtypes: &[("T", T), ("M", &[I32])],
        infer: infer_gated,
        reference: Some(gated_ref),
        lower: &[Expand(expand_gated)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[2,5,6];[6];[1,3,5,5];[2,8];[8];[1,3,1,1] num_heads=3",
            "[7,6];[6];[1,3,5,5];[2,8];[8];[1,3,1,1];i32[2,5]{0,1,2,5,6,7,8,3,4,9} num_heads=3",
        ],
        ..ROW
    },
];
