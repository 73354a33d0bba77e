//! GroupQueryAttention: the attention of decoders, with rotary positions, normalization, cache and window inside.

mod meaning;
mod nodes;

use super::super::broadcast::require_broadcasts_to;
use super::super::row::ROW;
use super::MICROSOFT;
use super::attend::scale;
use crate::attrs::Attrs;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, Tol, attr, opt, req};
use crate::ty::Shape;
use tensor::DType::{self, BF16, F8E4M3FN, F16, F32, I8, I32, I64, U8};
use tensor::{DimId, ErrorKind, Result};

const KEY: usize = 1;
const VALUE: usize = 2;
const PAST_KEY: usize = 3;
const PAST_VALUE: usize = 4;
const LENGTHS: usize = 5;
const TOTAL: usize = 6;
const COS: usize = 7;
const SIN: usize = 8;
const POSITIONS: usize = 9;
const BIAS: usize = 10;
const SINKS: usize = 11;
const KEY_SCALE: usize = 12;
const VALUE_SCALE: usize = 13;
const QUERY_NORM: usize = 14;
const KEY_NORM: usize = 15;
const QUERY_LENGTHS: usize = 16;

/// How an element is quantized in the cache.
#[derive(Clone, Copy, PartialEq)]
enum Quant {
    None,
    PerTensor,
    PerChannel,
}

impl Quant {
    fn of(name: &str) -> Option<Quant> {
        [("NONE", Quant::None), ("PER_TENSOR", Quant::PerTensor), ("PER_CHANNEL", Quant::PerChannel)]
            .into_iter()
            .find_map(|(n, q)| (n == name).then_some(q))
    }
}

/// The row's attributes as plain options.
struct Options {
    heads: i64,
    kv_heads: i64,
    scale: Option<f32>,
    softcap: f32,
    window: Option<i64>,
    latest: bool,
    rotary: bool,
    interleaved: bool,
    causal: bool,
    smooth: bool,
    shown: i64,
    /// Of queries and keys.
    epsilon: [f32; 2],
    bits: Option<i64>,
    /// Of keys and values.
    quant: [Option<Quant>; 2],
}

impl Options {
    fn of(a: &Attrs) -> Options {
        let is = |i: usize| a.int(i) == Some(1);
        let epsilon = |i: usize| a.float(i).or(a.float(12)).unwrap_or(1e-6);
        Options {
            heads: a.int(0).unwrap_or(0),
            kv_heads: a.int(1).unwrap_or(0),
            scale: scale(a, 2),
            softcap: a.float(3).unwrap_or(0.0),
            window: a.int(4).filter(|&w| w > 0),
            latest: is(5),
            rotary: is(6),
            interleaved: is(7),
            causal: a.int(8) != Some(0),
            smooth: is(9),
            shown: a.int(10).unwrap_or(0),
            epsilon: [epsilon(11), epsilon(13)],
            bits: a.int(14),
            quant: [15, 16].map(|i| Quant::of(a.str(i).unwrap_or("NONE"))),
        }
    }
    /// The window where it is also all that the cache holds.
    fn latest(&self) -> Option<i64> {
        self.window.filter(|_| self.latest)
    }
    fn is_quantized(&self) -> bool {
        self.quant[0] != Some(Quant::None)
    }
    /// The element type of a cache that is not given.
    fn cache(&self, dtype: DType) -> DType {
        match (self.is_quantized(), self.bits) {
            (false, _) => dtype,
            (true, Some(4)) => U8,
            _ => I8,
        }
    }
}

/// What attributes and operands rule out whatever the shapes are.
fn check(c: &InferCtx, o: &Options) -> Result<()> {
    let name = c.def.name;
    let refuse = |kind, text: &str| Err(c.error(kind, format!("{name}: {text}")));
    let (malformed, unsupported) = (ErrorKind::Malformed, ErrorKind::Unsupported);
    if o.heads % o.kv_heads != 0 {
        return refuse(unsupported, &format!("kv_num_heads={} must divide num_heads={}", o.kv_heads, o.heads));
    }
    for (a, b) in [(KEY, VALUE), (PAST_KEY, PAST_VALUE), (COS, SIN), (QUERY_NORM, KEY_NORM)] {
        if c.has(a) != c.has(b) {
            let (a, b) = (c.def.inputs[a].name, c.def.inputs[b].name);
            return refuse(malformed, &format!("needs {a} and {b} together"));
        }
    }
    if o.rotary && !c.has(COS) {
        return refuse(malformed, "do_rotary=1 needs cos_cache and sin_cache");
    }
    if let Some(n) = c.attrs.int(8).filter(|n| !(0..=1).contains(n)) {
        return refuse(unsupported, &format!("causal={n} is neither 0 nor 1"));
    }
    if !o.causal && o.window.is_some() {
        return refuse(unsupported, "causal=0 has no window: local_window_size must be -1");
    }
    if !(0..=2).contains(&o.shown) {
        return refuse(unsupported, &format!("qk_output={} is none of 0, 1, 2", o.shown));
    }
    if c.n_outs > 3 && o.shown == 0 {
        return refuse(malformed, "output_qk needs qk_output=1 or qk_output=2");
    }
    if o.latest {
        if o.window.is_none() {
            return refuse(malformed, "sliding_window_cache=1 needs local_window_size above 0");
        }
        if !c.has(PAST_KEY) {
            return refuse(malformed, "sliding_window_cache=1 needs past_key and past_value");
        }
        if c.n_outs > 3 {
            return refuse(
                unsupported,
                "sliding_window_cache=1 has no output_qk: keys that were dropped have no scores",
            );
        }
    }
    if c.has(QUERY_LENGTHS) && !(o.causal && c.has(PAST_KEY)) {
        return refuse(malformed, "query_seqlens needs causal=1, past_key and past_value");
    }
    if o.epsilon.iter().any(|&e| !(e.is_finite() && e > 0.0)) {
        return refuse(unsupported, "the epsilon of a normalization must be finite and above 0");
    }
    check_cache(c, o)
}

/// How the cache is stored.
fn check_cache(c: &InferCtx, o: &Options) -> Result<()> {
    let name = c.def.name;
    let refuse = |kind, text: std::string::String| Err(c.error(kind, format!("{name}: {text}")));
    let [Some(k), Some(v)] = o.quant else {
        return refuse(
            ErrorKind::Unsupported,
            "k_quant_type and v_quant_type are each one of NONE, PER_TENSOR, PER_CHANNEL".into(),
        );
    };
    if (k == Quant::None) != (v == Quant::None) {
        return refuse(
            ErrorKind::Unsupported,
            "k_quant_type and v_quant_type differ: keys and values are quantized together".into(),
        );
    }
    let dtype = if c.has(PAST_KEY) { c.dtype(PAST_KEY)? } else { o.cache(c.dtype(0)?) };
    if c.has(PAST_KEY) && c.dtype(PAST_VALUE)? != dtype {
        return refuse(ErrorKind::Type, "past_key and past_value are of one element type".into());
    }
    if !o.is_quantized() {
        return match [F32, F16, BF16].contains(&dtype) {
            true => Ok(()),
            false => refuse(ErrorKind::Type, format!("a cache of {dtype} needs k_quant_type and v_quant_type")),
        };
    }
    if !(c.has(KEY_SCALE) && c.has(VALUE_SCALE)) {
        return refuse(ErrorKind::Malformed, "a quantized cache needs k_scale and v_scale".into());
    }
    match (dtype, o.bits) {
        (I8 | F8E4M3FN, Some(8)) | (U8, Some(4)) | (F8E4M3FN, None) => Ok(()),
        (_, bits) => refuse(
            ErrorKind::Unsupported,
            format!(
                "a quantized cache of {dtype} with kv_cache_bit_width={}: int8 and float8e4m3fn have 8 bits, uint8 has 4",
                bits.unwrap_or(0)
            ),
        ),
    }
}

fn infer(c: &mut InferCtx) -> Result<()> {
    for (slot, name) in [(0, "num_heads"), (1, "kv_num_heads")] {
        c.heads(slot, name)?;
    }
    let o = Options::of(c.attrs);
    check(c, &o)?;
    let dtype = c.dtype(0)?;
    let cache = if c.has(PAST_KEY) { c.dtype(PAST_KEY)? } else { o.cache(dtype) };
    c.require_single(TOTAL, "total_sequence_length")?;
    let unknown = |c: &mut InferCtx| {
        [dtype, cache, cache, dtype].into_iter().enumerate().for_each(|(i, d)| c.set_unranked(i, d));
        Ok(())
    };
    let Some(q) = c.shape(0) else { return unknown(c) };
    let [b, s, width] = *q.as_slice() else { return Err(c.misshapen(0, "[b, s, h·d]")) };
    let of_query = if c.has(KEY) { o.heads } else { o.heads.saturating_add(o.kv_heads.saturating_mul(2)) };
    let d = c.part(width, of_query, "the number of heads divides the hidden size")?;
    let [h, k] = [o.heads, o.kv_heads].map(|n| c.dims.constant(n));
    let x = Extents { b, s, h, k, d };
    keys(c, &x)?;
    let stored = if cache == U8 { c.part(d, 2, "a byte has two elements of a head")? } else { d };
    let total = c.taken(TOTAL, true);
    let mut past = None;
    for i in [PAST_KEY, PAST_VALUE] {
        let Some(p) = c.shape(i) else { continue };
        if p.len() != 4 {
            return Err(c.misshapen(i, "[b, kv_num_heads, m, d]"));
        }
        let m = *past.get_or_insert(p[2]);
        for (&a, b) in p.iter().zip([b, k, m, stored]) {
            c.require_eq(a, b, "past keys and values are [b, kv_num_heads, m, d]")?;
        }
    }
    if c.has(PAST_KEY) && past.is_none() {
        return unknown(c);
    }
    if let (Some(w), Some(m)) = (o.latest(), past) {
        let w = c.dims.constant(w);
        c.require_within(w, m, "a cache of the latest positions holds local_window_size of them")?;
    }
    vectors(c, &o, &x)?;
    let hidden = c.dims.mul(h, d);
    c.set(0, dtype, [b, s, hidden]);
    let Some(total) = total else {
        (1..3).for_each(|i| c.set_unranked(i, cache));
        c.set_unranked(3, dtype);
        return Ok(());
    };
    terms(c, &o, &x, total)?;
    let present = match (past, o.latest()) {
        (Some(m), Some(_)) => m,
        (Some(m), None) => c.dims.max(m, total),
        (None, _) => total,
    };
    if o.latest().is_none() {
        c.require_within(s, total, "there are as many positions as queries")?;
    }
    c.set(1, cache, [b, k, present, stored]);
    c.set(2, cache, [b, k, present, stored]);
    c.set(3, dtype, [b, h, s, total]);
    Ok(())
}

/// Extents of the heads.
struct Extents {
    b: DimId,
    s: DimId,
    h: DimId,
    k: DimId,
    d: DimId,
}

/// Keys and values are as many as queries, or none where all are in the past.
fn keys(c: &mut InferCtx, x: &Extents) -> Result<()> {
    let of_keys = c.dims.mul(x.k, x.d);
    let l = c.shape(KEY).and_then(|k| k.get(1).copied()).unwrap_or(x.s);
    for i in [KEY, VALUE] {
        let Some(k) = c.shape(i) else { continue };
        if k.len() != 3 {
            return Err(c.misshapen(i, "[b, s, kv_num_heads·d] and [b, 0, kv_num_heads·d]"));
        }
        for (&a, b) in k.iter().zip([x.b, l, of_keys]) {
            c.require_eq(a, b, "keys and values are [b, s, kv_num_heads·d]")?;
        }
    }
    let none_new = c.has(PAST_KEY) && !c.has(QUERY_LENGTHS) && c.dims.as_const(l) == Some(0);
    if none_new { Ok(()) } else { c.require_eq(l, x.s, "there are as many keys as queries, or none beside a past") }
}

/// Operands with an element per sample, head or element of a head.
fn vectors(c: &mut InferCtx, o: &Options, x: &Extents) -> Result<()> {
    let each = [
        (LENGTHS, x.b, "there is a length of the keys of each sample"),
        (QUERY_LENGTHS, x.b, "there is a number of queries of each sample"),
        (SINKS, x.h, "there is a sink of each head"),
        (QUERY_NORM, x.d, "q_norm_weight is over the elements of a head"),
        (KEY_NORM, x.d, "k_norm_weight is over the elements of a head"),
    ];
    for (i, n, what) in each {
        match c.shape(i).as_deref() {
            Some(&[have]) => c.require_eq(have, n, what)?,
            Some(_) => return Err(c.misshapen(i, "[n]")),
            None => {}
        }
    }
    for (i, quant) in [KEY_SCALE, VALUE_SCALE].into_iter().zip(o.quant).filter(|_| o.is_quantized()) {
        let Some(s) = c.shape(i) else { continue };
        let one = c.dims.constant(1);
        if s.len() == 4 && quant == Some(Quant::PerChannel) {
            let to: Shape = [one, x.k, one, x.d].into_iter().collect();
            require_broadcasts_to(c, &s, &to, "a scale of each channel")?;
            continue;
        }
        let n = c.dims.product(s.iter().copied());
        match quant {
            Some(Quant::PerChannel) => {
                let all = c.dims.mul(x.k, x.d);
                c.require_eq(n, all, "there is a scale of each channel")?;
            }
            _ => c.require_eq(n, one, "there is one scale of all elements")?,
        }
    }
    Ok(())
}

/// Tables of positions and what is added to scores.
fn terms(c: &mut InferCtx, o: &Options, x: &Extents, total: DimId) -> Result<()> {
    if o.rotary
        && let Some(p) = c.require_rotary_caches((COS, SIN), x.d)?
        && !c.has(POSITIONS)
        && !c.has(QUERY_LENGTHS)
    {
        c.require_within(total, p, "cos_cache is for all positions")?;
    }
    match c.shape(POSITIONS).as_deref() {
        Some(&[b, s]) => {
            c.require_eq(b, x.b, "position_ids are [b, s]")?;
            c.require_eq(s, x.s, "position_ids are [b, s]")?;
        }
        Some(_) => return Err(c.misshapen(POSITIONS, "[b, s]")),
        None => {}
    }
    c.require_score_bias(BIAS, &[x.b, x.h, x.s, total], false)
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Attention of decoders: heads of queries share heads of keys, each sample has its own number of positions in the cache. The cache is
    // of the type of the queries, another float, or quantized: the shape rule checks it with the attributes
    OpDef {
        name: "GroupQueryAttention",
        domain: MICROSOFT,
        inputs: &[
            req("query", "T"),
            opt("key", "T"),
            opt("value", "T"),
            opt("past_key", ""),
            opt("past_value", ""),
            req("seqlens_k", "M"),
            req("total_sequence_length", "M"),
            opt("cos_cache", "T"),
            opt("sin_cache", "T"),
            opt("position_ids", "I"),
            opt("attention_bias", "T"),
            opt("head_sink", "T"),
            opt("k_scale", "S"),
            opt("v_scale", "S"),
            opt("q_norm_weight", "T"),
            opt("k_norm_weight", "T"),
            opt("query_seqlens", "M"),
        ],
        outputs: &[req("output", "T"), opt("present_key", ""), opt("present_value", ""), opt("output_qk", "T")],
        attrs: &[
            attr("num_heads", AttrKind::IntReq),
            attr("kv_num_heads", AttrKind::IntReq),
            attr("scale", AttrKind::FloatOpt),
            attr("softcap", AttrKind::Float(0.0)),
            attr("local_window_size", AttrKind::Int(-1)),
            attr("sliding_window_cache", AttrKind::Int(0)),
            attr("do_rotary", AttrKind::Int(0)),
            attr("rotary_interleaved", AttrKind::Int(0)),
            attr("causal", AttrKind::Int(1)),
            attr("smooth_softmax", AttrKind::Int(-1)),
            attr("qk_output", AttrKind::Int(0)),
            attr("q_norm_epsilon", AttrKind::FloatOpt),
            attr("qk_norm_epsilon", AttrKind::Float(1e-6)),
            attr("k_norm_epsilon", AttrKind::FloatOpt),
            attr("kv_cache_bit_width", AttrKind::IntOpt),
            attr("k_quant_type", AttrKind::Str("NONE")),
            attr("v_quant_type", AttrKind::Str("NONE")),
        ],
        dtypes: &[("T", &[F32, F16, BF16]), ("M", &[I32]), ("I", &[I64]), ("S", &[F32])],
        infer,
        reference: Some(meaning::reference),
        lower: &[Expand(nodes::expand)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            // Prompts, also of different lengths, into no buffer and a long one
            "[2,5,32];_;_;_;_;i32[2]{4,2};i32[1]{5} num_heads=4 kv_num_heads=2 outs=3",
            "[2,3,16];[2,3,8];[2,3,8];[2,1,7,8];[2,1,7,8];i32[2]{2,1};i32[]{3} num_heads=2 kv_num_heads=1 scale=0.3 outs=3",
            // Steps: the cache grows, or has room
            "[1,3,16];[1,3,8];[1,3,8];[1,1,4,8];[1,1,4,8];i32[1]{6};i32[1]{7} num_heads=2 kv_num_heads=1 outs=3",
            "[2,1,24];_;_;[2,2,9,4];[2,2,9,4];i32[2]{6,3};i32[1]{7} num_heads=2 kv_num_heads=2 outs=3",
            "[2,1,24];_;_;[2,2,9,4];[2,2,9,4];i32[2]{6,3};i32[1]{7} num_heads=2 kv_num_heads=2",
            "[2,2,16];[2,0,8];[2,0,8];[2,1,5,8];[2,1,5,8];i32[2]{4,3};i32[1]{5} num_heads=2 kv_num_heads=1 outs=3",
            // Positions
            "[2,2,32];_;_;[2,2,6,4];[2,2,6,4];i32[2]{5,3};i32[1]{6};[9,2];[9,2] num_heads=4 kv_num_heads=2 do_rotary=1 outs=3",
            "[1,3,48];_;_;_;_;i32[1]{2};i32[1]{3};[9,4];[9,4];i64[1,3]{4,1,1} num_heads=4 kv_num_heads=1 do_rotary=1 rotary_interleaved=1 outs=3",
            "[1,2,16];[1,2,8];[1,2,8];[1,1,3,8];[1,1,3,8];i32[1]{4};i32[1]{5};[9,1];[9,1];i64[1,2]{7,2} num_heads=2 kv_num_heads=1 do_rotary=1 outs=3",
            // Scores
            "[2,3,16];[2,3,8];[2,3,8];[2,1,4,8];[2,1,4,8];i32[2]{6,5};i32[1]{7};_;_;_;[2,1,3,7] num_heads=2 kv_num_heads=1 softcap=1.5 local_window_size=2 qk_output=1 outs=4",
            "[2,3,16];[2,3,8];[2,3,8];_;_;i32[2]{2,2};i32[1]{3};_;_;_;[1,4,3,3] num_heads=4 kv_num_heads=2 outs=3",
            "[2,3,16];[2,3,8];[2,3,8];_;_;i32[2]{2,1};i32[1]{3} num_heads=2 kv_num_heads=1 smooth_softmax=1 qk_output=2 outs=4",
            "[1,2,16];[1,2,8];[1,2,8];[1,2,3,4];[1,2,3,4];i32[1]{4};i32[1]{5};_;_;_;_;[4] num_heads=4 kv_num_heads=2 outs=3",
            "[2,3,16];[2,3,8];[2,3,8];_;_;i32[2]{2,1};i32[1]{3} num_heads=2 kv_num_heads=1 causal=0 qk_output=2 outs=4",
            "[1,2,16];[1,2,8];[1,2,8];[1,1,3,8];[1,1,3,8];i32[1]{4};i32[1]{5};_;_;_;_;_;_;_;[8];[8] num_heads=2 kv_num_heads=1 qk_norm_epsilon=0.1 k_norm_epsilon=0.5 outs=3",
            // Padded chunks
            "[2,3,16];[2,3,8];[2,3,8];[2,1,9,8];[2,1,9,8];i32[2]{4,5};i32[1]{8};[9,4];[9,4];_;_;_;_;_;_;_;i32[2]{2,3} num_heads=2 kv_num_heads=1 do_rotary=1 outs=3",
            // The latest positions alone
            "[2,1,16];[2,1,8];[2,1,8];[2,1,6,8];[2,1,6,8];i32[2]{9,2};i32[1]{10};_;_;_;_;[2] num_heads=2 kv_num_heads=1 local_window_size=4 sliding_window_cache=1 outs=3",
            "[1,7,16];[1,7,8];[1,7,8];[1,1,4,8];[1,1,4,8];i32[1]{11};i32[1]{12};_;_;_;[1,2,7,12] num_heads=2 kv_num_heads=1 local_window_size=4 sliding_window_cache=1 outs=3",
            "[2,3,16];[2,3,8];[2,3,8];[2,1,5,8];[2,1,5,8];i32[2]{6,1};i32[1]{7};_;_;_;[1,1,3,7];_;_;_;_;_;i32[2]{3,1} num_heads=2 kv_num_heads=1 local_window_size=3 sliding_window_cache=1 outs=3",
            // Quantized caches
            "[1,2,16];[1,2,8];[1,2,8];i8[1,2,5,4];i8[1,2,5,4];i32[1]{4};i32[1]{5};_;_;_;_;_;[1]{0.0078125};[]{0.125} num_heads=4 kv_num_heads=2 k_quant_type=PER_TENSOR v_quant_type=PER_TENSOR kv_cache_bit_width=8 outs=3",
            "[1,2,16];[1,2,8];[1,2,8];u8[1,2,3,2]{18,171,255,0};u8[1,2,3,2]{18,171,255};i32[1]{4};i32[1]{5};_;_;_;_;_;[1,2,1,4]{0.25,0.125};[8]{0.5,0.25,0.125} num_heads=4 kv_num_heads=2 k_quant_type=PER_CHANNEL v_quant_type=PER_CHANNEL kv_cache_bit_width=4 outs=3",
            "[1,2,16];[1,2,8];[1,2,8];f8e4m3fn[1,2,3,4];f8e4m3fn[1,2,3,4];i32[1]{4};i32[1]{5};_;_;_;_;_;[1]{0.5};[1]{0.25} num_heads=4 kv_num_heads=2 k_quant_type=PER_TENSOR v_quant_type=PER_TENSOR outs=3",
            "[2,3,16];[2,3,8];[2,3,8];_;_;i32[2]{2,2};i32[1]{3};_;_;_;_;_;[1]{0.0625};[1]{0.125} num_heads=4 kv_num_heads=2 k_quant_type=PER_TENSOR v_quant_type=PER_TENSOR kv_cache_bit_width=8 outs=3",
            "f16[1,2,16];f16[1,2,8];f16[1,2,8];f16[1,1,3,8];f16[1,1,3,8];i32[1]{4};i32[1]{5} num_heads=2 kv_num_heads=1 outs=3",
            "[1,2,16];[1,2,8];[1,2,8];f16[1,1,3,8];f16[1,1,3,8];i32[1]{4};i32[1]{5} num_heads=2 kv_num_heads=1 outs=3",
        ],
        ..ROW
    },
];
