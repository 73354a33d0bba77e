//! Attention over blocks of keys: which blocks a block of queries sees is a table for each layout of heads.

use super::super::row::ROW;
use super::attend::{first_number, merge, number, scale, split};
use super::{MICROSOFT, float};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::data::ints;
use reference::heads::{Heads, attend};
use tensor::DType::{BF16, F16, F32, I32, I64};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

const KEY: usize = 1;
const VALUE: usize = 2;
const PAST_KEY: usize = 3;
const PAST_VALUE: usize = 4;
const ROWS_OF_BLOCKS: usize = 5;
const COLUMNS: usize = 6;
const TOTAL: usize = 7;
const LENGTHS: usize = 8;
const COS: usize = 9;
const SIN: usize = 10;

const HEADS: usize = 0;
const KV_HEADS: usize = 1;
const BLOCK: usize = 2;
const SCALE: usize = 3;
const ROTARY: usize = 4;
const INTERLEAVED: usize = 5;

fn infer(c: &mut InferCtx) -> Result<()> {
    let (n, kv) = (c.heads(HEADS, "num_heads")?, c.heads(KV_HEADS, "kv_num_heads")?);
    let dtype = c.dtype(0)?;
    if n % kv != 0 || c.attrs.int(BLOCK).is_none_or(|b| b <= 0) {
        let block = c.attrs.int(BLOCK).unwrap_or(0);
        let text = format!(
            "SparseAttention: kv_num_heads={kv} must divide num_heads={n}, and sparse_block_size={block} be positive"
        );
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    if c.has(KEY) != c.has(VALUE) {
        return Err(c.error(ErrorKind::Malformed, "SparseAttention needs key and value together"));
    }
    if c.attrs.int(ROTARY) == Some(1) && !(c.has(COS) && c.has(SIN)) {
        return Err(c.error(ErrorKind::Malformed, "SparseAttention: do_rotary=1 needs cos_cache and sin_cache"));
    }
    let (Some(q), Some(past)) = (c.shape(0), c.shape(PAST_KEY)) else {
        (0..3).for_each(|i| c.set_unranked(i, dtype));
        return Ok(());
    };
    let [b, s, width] = *q.as_slice() else { return Err(c.misshapen(0, "[b, s, h·d]")) };
    let heads = if c.has(KEY) { n } else { n.saturating_add(kv.saturating_mul(2)) };
    let d = c.part(width, heads, "the number of heads divides the hidden size")?;
    let [h, k] = [n, kv].map(|n| c.dims.constant(n));
    let of_keys = c.dims.mul(k, d);
    for i in [KEY, VALUE] {
        let Some(x) = c.shape(i) else { continue };
        if x.len() != 3 {
            return Err(c.misshapen(i, "[b, s, kv_num_heads·d]"));
        }
        for (&a, b) in x.iter().zip([b, s, of_keys]) {
            c.require_eq(a, b, "keys and values are [b, s, kv_num_heads·d]")?;
        }
    }
    let m = past.get(2).copied().unwrap_or(d);
    for i in [PAST_KEY, PAST_VALUE] {
        let Some(x) = c.shape(i) else { continue };
        if x.len() != 4 {
            return Err(c.misshapen(i, "[b, kv_num_heads, m, d]"));
        }
        for (&a, b) in x.iter().zip([b, k, m, d]) {
            c.require_eq(a, b, "past keys and values are [b, kv_num_heads, m, d]")?;
        }
    }
    c.require_within(s, m, "the cache has room for what is new")?;
    if let (Some(rows), Some(columns)) = (c.shape(ROWS_OF_BLOCKS), c.shape(COLUMNS)) {
        let (&[layouts, _], &[l2, _]) = (rows.as_slice(), columns.as_slice()) else {
            return Err(c.misshapen(ROWS_OF_BLOCKS, "[layouts, blocks + 1], with columns [layouts, n]"));
        };
        c.require_eq(layouts, l2, "rows and columns are of the same layouts")?;
        let (zero, rest) = (c.dims.constant(0), c.dims.modulo(h, layouts));
        c.require_eq(rest, zero, "the number of layouts divides num_heads")?;
    }
    if c.attrs.int(ROTARY) == Some(1) {
        c.require_rotary_caches((COS, SIN), d)?;
    }
    c.require_single(TOTAL, "total_sequence_length")?;
    match c.shape(LENGTHS).as_deref() {
        Some(&[k]) => c.require_eq(k, b, "there is a length of the keys of each sample")?,
        Some(_) => return Err(c.misshapen(LENGTHS, "[b]")),
        None => {}
    }
    let hidden = c.dims.mul(h, d);
    c.set(0, dtype, [b, s, hidden]);
    c.set(1, dtype, [b, k, m, d]);
    c.set(2, dtype, [b, k, m, d]);
    Ok(())
}

fn expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let [n, kv, block] = [HEADS, KV_HEADS, BLOCK].map(|i| x.attrs().int(i).unwrap_or(1));
    let query = x.need(0)?;
    let s = x.extent(query, 1);
    let (mut q, mut k, v) = match (x.input(KEY), x.input(VALUE)) {
        (Some(k), Some(v)) => (split(x, query, n), split(x, k, kv), split(x, v, kv)),
        _ => {
            let all = split(x, query, n + 2 * kv);
            let (q, k) = (x.slice(all, 1, 0, n), x.slice(all, 1, n, n + kv));
            (q, k, x.slice(all, 1, n + kv, n + 2 * kv))
        }
    };
    // Where each sample's new positions start: at 0 where all positions are new.
    let (total, lengths) = (x.need(TOTAL)?, x.need(LENGTHS)?);
    let (total, lengths) = (number(x, total), x.cast(lengths, I64));
    let all_new = x.op("Equal", &[total, s], &[]);
    let before = x.op("Sub", &[lengths, s], &[]);
    let zero = x.scalar(I64, 0.0);
    let start = x.op("Where", &[all_new, zero, before], &[]);
    let column = x.unsqueeze(start, &[1]);
    let steps = x.count_to(s);
    let positions = x.op("Add", &[column, steps], &[]);
    if x.attrs().int(ROTARY) == Some(1) {
        let (cos, sin) = (x.need(COS)?, x.need(SIN)?);
        // Tables of a known width may be for a part of the head.
        let width = x.tensor(cos)?.1.get(1).and_then(|&w| x.as_const(w)).unwrap_or(0);
        let interleaved = x.attrs().int(INTERLEAVED).unwrap_or(0);
        let attrs = [("interleaved", Attr::Int(interleaved)), ("rotary_embedding_dim", Attr::Int(2 * width))];
        [q, k] = [q, k].map(|v| x.op("RotaryEmbedding", &[v, cos, sin, positions], &attrs));
    }
    let (past_key, past_value) = (x.need(PAST_KEY)?, x.need(PAST_VALUE)?);
    let axis = [("axis", Attr::Int(2))];
    let key = x.op("TensorScatter", &[past_key, k, start], &axis);
    let value = x.op("TensorScatter", &[past_value, v, start], &axis);
    let m = x.extent(past_key, 2);
    let j = x.count_to(m);
    let rows = x.unsqueeze(positions, &[1, 3]);
    let seen = x.op("LessOrEqual", &[j, rows], &[]);
    let of_blocks = of_blocks(x, positions, j, n, block)?;
    let mask = x.op("And", &[seen, of_blocks], &[]);
    let attrs: Vec<(&str, Attr)> = scale(x.attrs(), SCALE).map(|s| ("scale", float(s))).into_iter().collect();
    let y = x.op("Attention", &[q, key, value, mask], &attrs);
    Ok(vec![merge(x, y), key, value])
}

/// Which keys `j` (`[m]`) lie in blocks that queries at positions `[b, s]` see: `[b, heads, s, m]`.
fn of_blocks(x: &mut Expansion, positions: Value, j: Value, heads: i64, block: i64) -> Result<Value> {
    let (rows, columns) = (x.need(ROWS_OF_BLOCKS)?, x.need(COLUMNS)?);
    let (zero, one) = (x.ints(&[0]), x.ints(&[1]));
    let (layouts, ends) = (x.extent(rows, 0), x.slice(rows, 1, 1, i64::MAX));
    let n = x.extent(ends, 1);
    let (columns, ends) = (x.cast(columns, I64), x.cast(ends, I64));
    // The row of an entry: how many rows end before it. What is no entry goes to a column of its own.
    let listed = x.extent(columns, 1);
    let entries = x.count_to(listed);
    let entry = x.unsqueeze(entries, &[1]);
    let by_row = x.unsqueeze(ends, &[1]);
    let ended = x.op("LessOrEqual", &[by_row, entry], &[]);
    let ended = x.cast(ended, I64);
    let last_axis = x.ints(&[2]);
    let row = x.op("ReduceSum", &[ended, last_axis], &[("keepdims", Attr::Int(0))]);
    let last = x.op("Sub", &[n, one], &[]);
    let is_entry = x.op("Less", &[row, n], &[]);
    let row = x.op("Min", &[row, last], &[]);
    let named = x.op("GreaterOrEqual", &[columns, zero], &[]);
    let is_entry = x.op("And", &[is_entry, named], &[]);
    let column = x.op("Where", &[is_entry, columns, n], &[]);
    let width = x.op("Add", &[n, one], &[]);
    let at = x.op("Mul", &[row, width], &[]);
    let at = x.op("Add", &[at, column], &[]);
    let size = x.op("Mul", &[n, width], &[]);
    let (flat, of_entries) = (x.concat(&[layouts, size], 0), x.concat(&[layouts, listed], 0));
    let (no, yes) = (x.scalar(I32, 0.0), x.scalar(I32, 1.0));
    let (nothing, marks) = (x.op("Expand", &[no, flat], &[]), x.op("Expand", &[yes, of_entries], &[]));
    let table = x.op("ScatterElements", &[nothing, at, marks], &[("axis", Attr::Int(1))]);
    let table = x.reshape_to(table, &[layouts, n, width]);
    let size = x.ints(&[block]);
    let row = x.op("Div", &[positions, size], &[]);
    let row = x.op("Min", &[row, last], &[]);
    let column = x.op("Div", &[j, size], &[]);
    let column = x.op("Min", &[column, n], &[]);
    let of_rows = x.op("Gather", &[table, row], &[("axis", Attr::Int(1))]);
    let y = x.op("Gather", &[of_rows, column], &[("axis", Attr::Int(3))]);
    let y = x.op("Greater", &[y, no], &[]);
    // Layouts in turn for the heads.
    let y = x.transpose(y, &[1, 0, 2, 3]);
    let (b, s, m) = (x.extent(positions, 0), x.extent(positions, 1), x.extent(j, 0));
    let heads = x.ints(&[heads]);
    let times = x.op("Div", &[heads, layouts], &[]);
    let y = x.unsqueeze(y, &[1]);
    let wide = x.concat(&[b, times, layouts, s, m], 0);
    let y = x.op("Expand", &[y, wide], &[]);
    Ok(x.reshape_to(y, &[b, heads, s, m]))
}

fn bad(text: std::string::String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

fn reference(c: &RefCtx) -> Result<Vec<Tensor>> {
    let size = |i: usize| c.attrs.int(i).and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0).unwrap_or(1);
    let (n, kv, block) = (size(HEADS), size(KV_HEADS), size(BLOCK));
    let query = c.input(0)?;
    let [mut q, mut k, v] = Heads::of_decoder(query, c.opt(KEY).zip(c.opt(VALUE)), n, kv)?;
    let [b, _, s, _] = q.shape;
    let lengths = ints(c.input(LENGTHS)?);
    if lengths.len() != b {
        return Err(bad(format!("{} lengths of {b} samples", lengths.len())));
    }
    let all_new = first_number(c.input(TOTAL)?) == s as i128;
    let start: Vec<i128> = lengths.iter().map(|n| if all_new { 0 } else { n - s as i128 }).collect();
    if c.attrs.int(ROTARY) == Some(1) {
        let positions: Vec<i128> = start.iter().flat_map(|p| (0..s).map(move |i| p + i as i128)).collect();
        let (cos, sin) = (c.input(COS)?, c.input(SIN)?);
        let turned = |x: &Heads| x.rotated(&positions, cos, sin, c.attrs.int(INTERLEAVED) == Some(1));
        (q, k) = (turned(&q)?, turned(&k)?);
    }
    let key = k.within(&Heads::of(c.input(PAST_KEY)?)?, &start)?;
    let value = v.within(&Heads::of(c.input(PAST_VALUE)?)?, &start)?;
    let (rows, columns) = (c.input(ROWS_OF_BLOCKS)?, c.input(COLUMNS)?);
    let (&[layouts, ends], &[l2, listed]) = (rows.shape(), columns.shape()) else {
        return Err(bad(format!("blocks {:?}, {:?}", rows.shape(), columns.shape())));
    };
    if layouts == 0 || layouts != l2 || n % layouts != 0 {
        return Err(bad(format!("{layouts} layouts of {n} heads")));
    }
    let (rows, columns) = (ints(rows), ints(columns));
    let added = |[b, h, i, j]: [usize; 4]| {
        let position = start[b] + i as i128;
        let layout = h % layouts;
        let row = usize::try_from(position).unwrap_or(0) / block;
        let sees = row + 1 < ends && {
            let (from, to) = (rows[layout * ends + row], rows[layout * ends + row + 1]);
            let own = (0..listed).filter(|&e| from <= e as i128 && (e as i128) < to);
            own.into_iter().any(|e| columns[layout * listed + e] == (j / block) as i128)
        };
        if sees && j as i128 <= position { 0.0 } else { f64::NEG_INFINITY }
    };
    let (y, _) = attend(&q, &key, &value, scale(c.attrs, SCALE).map(f64::from), added)?;
    let dtype = query.dtype();
    Ok(vec![y.merged(dtype), key.tensor(dtype), value.tensor(dtype)])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Attention in which a query sees the keys up to its position that lie in blocks which its head's layout names for its block
    OpDef {
        name: "SparseAttention",
        domain: MICROSOFT,
        inputs: &[
            req("query", "T"),
            opt("key", "T"),
            opt("value", "T"),
            req("past_key", "T"),
            req("past_value", "T"),
            req("block_row_indices", "M"),
            req("block_col_indices", "M"),
            req("total_sequence_length", "M"),
            req("key_total_sequence_lengths", "M"),
            opt("cos_cache", "T"),
            opt("sin_cache", "T"),
        ],
        outputs: &[req("output", "T"), req("present_key", "T"), req("present_value", "T")],
        attrs: &[
            attr("num_heads", AttrKind::IntReq),
            attr("kv_num_heads", AttrKind::IntReq),
            attr("sparse_block_size", AttrKind::IntReq),
            attr("scale", AttrKind::FloatOpt),
            attr("do_rotary", AttrKind::Int(0)),
            attr("rotary_interleaved", AttrKind::Int(0)),
        ],
        dtypes: &[("T", &[F32, F16, BF16]), ("M", &[I32])],
        infer,
        reference: Some(reference),
        lower: &[Expand(expand)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            "[2,7,32];[2,7,16];[2,7,16];[2,2,8,8];[2,2,8,8];i32[2,5]{0,1,3,5,8,0,1,3,6,9};i32[2,9]{0,0,1,1,2,1,2,3,-1,0,0,1,0,1,2,0,2,3};i32[1]{7};i32[2]{7,5} num_heads=4 kv_num_heads=2 sparse_block_size=2",
            "[2,1,64];_;_;[2,2,8,8];[2,2,8,8];i32[1,5]{0,1,3,5,8};i32[1,8]{0,0,1,1,2,1,2,3};i32[]{8};i32[2]{8,3};[9,4];[9,4] num_heads=4 kv_num_heads=2 sparse_block_size=2 do_rotary=1 scale=0.3",
            "[2,3,48];_;_;[2,1,8,8];[2,1,8,8];i32[2,3]{0,1,2,0,1,3};i32[2,3]{0,1,-1,0,0,1};i32[1]{7};i32[2]{7,5};[8,4];[8,4] num_heads=4 kv_num_heads=1 sparse_block_size=4 do_rotary=1 rotary_interleaved=1",
        ],
        ..ROW
    },
];
