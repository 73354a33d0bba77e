//! Padding of sequences, removed and restored: tokens one after the other, with the place of each.

use super::super::row::ROW;
use super::MICROSOFT;
use super::attend::range_of;
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{InferCtx, OpDef, RefCtx, req};
use reference::data::{f64s, from_f64s, from_ints, ints};
use reference::heads::unpack;
use tensor::DType::{self, BF16, F16, F32, I32, I64};
use tensor::dims::Origin;
use tensor::{Diagnostic, DimId, ErrorKind, Result, Tensor};

fn infer_remove(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let n = c.fresh("tokens", Origin::DeviceResult);
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, dtype);
        (1..4).for_each(|i| c.set_unranked(i, I32));
        return Ok(());
    };
    let [b, s, hidden] = *x.as_slice() else { return Err(c.misshapen(0, "[b, s, hidden_size]")) };
    match c.shape(1).as_deref() {
        Some(&[k]) => c.require_eq(k, b, "there is a count of tokens for each sequence")?,
        Some(_) => return Err(c.misshapen(1, "[b]")),
        None => {}
    }
    let places = c.dims.mul(b, s);
    let most = c.dims.range(places).1;
    if let Some(sym) = c.dims.as_symbol(n) {
        c.dims.sym_mut(sym).hi = most;
    }
    let one = c.dims.constant(1);
    let ends = c.dims.add(b, one);
    c.set(0, dtype, [n, hidden]);
    c.set(1, I32, [b, s]);
    c.set(2, I32, [ends]);
    c.set(3, I32, [one]);
    Ok(())
}

fn expand_remove(x: &mut Expansion) -> Result<Vec<Value>> {
    let (input, counts) = (x.need(0)?, x.need(1)?);
    let (b, s, hidden) = (x.extent(input, 0), x.extent(input, 1), x.extent(input, 2));
    let places = x.op("Mul", &[b, s], &[]);
    let j = x.count_to(s);
    let wide = x.cast(counts, I64);
    let column = x.unsqueeze(wide, &[1]);
    let keep = x.op("Less", &[j, column], &[]);
    let keep = x.reshape_to(keep, &[places]);
    let found = x.op("NonZero", &[keep], &[]);
    if let Some(shape) = x.result_shape(0) {
        let one = x.dim(1);
        x.expect(found, I64, [one, shape[0]]);
    }
    let found = x.squeeze(found, &[0]);
    let rows = x.reshape_to(input, &[places, hidden]);
    let tokens = x.op("Gather", &[rows, found], &[]);
    // Where each place comes in the list of tokens and then of padding.
    let (kept, one, zero) = (x.cast(keep, I64), x.scalar(I64, 1.0), x.scalar(I64, 0.0));
    let padding = x.op("Sub", &[one, kept], &[]);
    let before = |x: &mut Expansion, v| x.op("CumSum", &[v, zero], &[("exclusive", Attr::Int(1))]);
    let (of_tokens, of_padding) = (before(x, kept), before(x, padding));
    let axis = x.ints(&[0]);
    let n = x.op("ReduceSum", &[kept, axis], &[]);
    let of_padding = x.op("Add", &[of_padding, n], &[]);
    let at = x.op("Where", &[keep, of_tokens, of_padding], &[]);
    let all = x.count_to(places);
    let offsets = x.op("ScatterElements", &[all, at, all], &[]);
    let offsets = x.reshape_to(offsets, &[b, s]);
    let sums = x.op("CumSum", &[counts, zero], &[]);
    let first = x.constant(&from_ints(I32, &[1], &[0]));
    let ends = x.concat(&[first, sums], 0);
    let most = x.concat(&[first, counts], 0);
    let most = x.op("ReduceMax", &[most, axis], &[]);
    Ok(vec![tokens, x.cast(offsets, I32), ends, most])
}

fn bad(text: std::string::String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

fn remove_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let (input, counts) = (c.input(0)?, c.input(1)?);
    let (&[b, s, hidden], &[k]) = (input.shape(), counts.shape()) else {
        return Err(bad(format!("tokens {:?} and counts {:?}", input.shape(), counts.shape())));
    };
    if k != b {
        return Err(bad(format!("{k} counts for {b} sequences")));
    }
    let counts = ints(counts);
    let (tokens, padding): (Vec<usize>, Vec<usize>) = (0..b * s).partition(|i| ((i % s) as i128) < counts[i / s]);
    let v = f64s(input);
    let kept: Vec<f64> = tokens.iter().flat_map(|&i| v[i * hidden..(i + 1) * hidden].iter().copied()).collect();
    let offsets: Vec<i128> = tokens.iter().chain(&padding).map(|&i| i as i128).collect();
    let ends: Vec<i128> = (0..=b).map(|i| counts[..i].iter().sum()).collect();
    Ok(vec![
        from_f64s(input.dtype(), &[tokens.len(), hidden], &kept),
        from_ints(I32, &[b, s], &offsets),
        from_ints(I32, &[b + 1], &ends),
        from_ints(I32, &[1], &[counts.iter().copied().max().unwrap_or(0).max(0)]),
    ])
}

/// Tokens `[n, hidden]` at their places of `[b, s, hidden]`; zeros elsewhere.
pub(super) fn restore(x: &mut Expansion, tokens: Value, offsets: Value, dtype: DType) -> Value {
    let (n, hidden) = (x.extent(tokens, 0), x.extent(tokens, 1));
    let (b, s) = (x.extent(offsets, 0), x.extent(offsets, 1));
    let at = places(x, offsets, n);
    let at = x.unsqueeze(at, &[1]);
    let all = x.op("Mul", &[b, s], &[]);
    let shape = x.concat(&[all, hidden], 0);
    let zero = x.scalar(dtype, 0.0);
    let zeros = x.op("Expand", &[zero, shape], &[]);
    let y = x.op("ScatterND", &[zeros, at, tokens], &[]);
    x.reshape_to(y, &[b, s, hidden])
}

/// The places of the first `n` tokens: `[n]`.
pub(super) fn places(x: &mut Expansion, offsets: Value, n: Value) -> Value {
    let (b, s) = (x.extent(offsets, 0), x.extent(offsets, 1));
    let all = x.op("Mul", &[b, s], &[]);
    let flat = x.reshape_to(offsets, &[all]);
    let flat = x.cast(flat, I64);
    let zero = x.ints(&[0]);
    range_of(x, flat, zero, n)
}

/// Requires offsets `[b, s]` with a place for each of `n` tokens; their extents.
pub(super) fn require_places(c: &mut InferCtx, i: usize, n: DimId) -> Result<Option<(DimId, DimId)>> {
    let Some(offsets) = c.shape(i) else { return Ok(None) };
    let [b, s] = *offsets.as_slice() else { return Err(c.misshapen(i, "[b, s]")) };
    let all = c.dims.mul(b, s);
    c.require_within(n, all, "there is a place for each token")?;
    Ok(Some((b, s)))
}

fn infer_restore(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let [n, hidden] = *x.as_slice() else { return Err(c.misshapen(0, "[tokens, hidden_size]")) };
    match require_places(c, 1, n)? {
        Some((b, s)) => c.set(0, dtype, [b, s, hidden]),
        None => c.set_unranked(0, dtype),
    }
    Ok(())
}

pub(super) const T: (&str, &[DType]) = ("T", &[F32, F16, BF16]);
pub(super) const M: (&str, &[DType]) = ("M", &[I32]);

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = the first sequence_token_count[b] tokens of each sequence b; token_offset = where they were, then where padding was
    OpDef {
        name: "RemovePadding",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("sequence_token_count", "M")],
        outputs: &[
            req("output", "T"),
            req("token_offset", "M"),
            req("cumulated_seq_len", "M"),
            req("max_seq_len", "M"),
        ],
        dtypes: &[T, M],
        infer: infer_remove,
        reference: Some(remove_ref),
        lower: &[Expand(expand_remove)],
        cases: &["[3,4,5];i32[3]{1,2,4}", "[2,3,2];i32[2]{0,3}", "[2,3,2];i32[2]{0,0}"],
        ..ROW
    },
    // output[token_offset[i]] = input[i], else 0
    OpDef {
        name: "RestorePadding",
        domain: MICROSOFT,
        inputs: &[req("input", "T"), req("token_offset", "M")],
        outputs: &[req("output", "T")],
        dtypes: &[T, M],
        infer: infer_restore,
        reference: Some(|c| Ok(vec![unpack(c.input(0)?, c.input(1)?)?])),
        lower: &[Expand(|x| {
            let (tokens, offsets) = (x.need(0)?, x.need(1)?);
            let (dtype, _) = x.tensor(tokens)?;
            Ok(vec![restore(x, tokens, offsets, dtype)])
        })],
        cases: &["[7,5];i32[3,4]{0,4,5,8,9,10,11,1,2,3,6,7}", "[0,5];i32[1,2]{0,1}"],
        ..ROW
    },
];
