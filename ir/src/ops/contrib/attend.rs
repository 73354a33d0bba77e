//! What the attentions of com.microsoft share: heads, masks, caches, and the Attention of ai.onnx that they become.

use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::op::InferCtx;
use crate::ty::Shape;
use reference::data::{f64s, ints};
use reference::heads::{Added, Heads};
use tensor::dims::Proof;
use tensor::{DType, Diagnostic, DimId, ErrorKind, Result, Tensor};

/// Keys and values that come before those of the node.
#[derive(Clone, Copy)]
pub(super) enum Past {
    None,
    /// `[b, h, p, d]` and `[b, h, p, e]`: what is new comes after them.
    Grown(Value, Value),
    /// Buffers `[b, h, m, d]` and `[b, h, m, e]` of which the first `n` (a list of one i64) are taken: what is new is written there.
    /// Where there are beams `[b / beams, beams, m]`, a past key of a sample is that of the beam named there.
    Shared {
        key: Value,
        value: Value,
        n: Value,
        beams: Option<Value>,
    },
}

impl Past {
    /// How many positions come before, as a list of one integer; nothing where none do.
    pub fn length(self, x: &mut Expansion) -> Option<Value> {
        match self {
            Past::None => None,
            Past::Grown(k, _) => Some(x.extent(k, 2)),
            Past::Shared { n, .. } => Some(n),
        }
    }
    /// Over how many keys masks are, as a list of one integer: as many as `bias` is over, else all, and all of a shared buffer.
    pub fn n_keys(self, x: &mut Expansion, k: Value, bias: Option<Value>) -> Value {
        match (bias, self) {
            (Some(b), _) => x.extent(b, -1),
            (None, Past::Shared { key, .. }) => x.extent(key, 2),
            (None, Past::None) => x.extent(k, 2),
            (None, Past::Grown(key, _)) => {
                let (p, l) = (x.extent(key, 2), x.extent(k, 2));
                x.op("Add", &[p, l], &[])
            }
        }
    }
}

/// One attention.
pub(super) struct Attend {
    /// `[b, h, s, d]`.
    pub q: Value,
    /// `[b, hk, l, d]`.
    pub k: Value,
    /// `[b, hk, l, e]`.
    pub v: Value,
    pub past: Past,
    /// Added to the scores: broadcasts to `[b, h, s, t]`. Of a shared past it may be over fewer keys than the buffer: the others do not
    /// count.
    pub bias: Option<Value>,
    /// By default `1/√d`.
    pub scale: Option<f32>,
    /// Keys after a query's position do not count, except for the last query, which sees all.
    pub causal: bool,
    pub dtype: DType,
    /// In which type scores are, with what is added to them: see [`masked`].
    pub of_scores: DType,
    /// Whether there are always as many new keys as queries.
    pub square: bool,
}

/// What comes of it.
pub(super) struct Attended {
    /// `[b, h, s, e]`.
    pub y: Value,
    pub key: Value,
    pub value: Value,
    /// `[b, h, s, t]`: before the softmax.
    pub scores: Value,
}

impl Attend {
    /// The nodes.
    pub fn expand(self, x: &mut Expansion) -> Attended {
        let mut bias = self.bias;
        let by_row = self.causal && self.square;
        if self.causal && !by_row {
            let low = self.after_queries(x);
            bias = Some(bias.map_or(low, |b| x.op("Add", &[b, low], &[])));
        }
        let mut attrs = vec![("is_causal", Attr::Int(by_row.into())), ("qk_matmul_output_mode", Attr::Int(2))];
        if let Some(s) = self.scale {
            attrs.push(("scale", super::float(s)));
        }
        let wide =
            |x: &mut Expansion, v| Some(if self.of_scores == self.dtype { v } else { x.cast(v, self.of_scores) });
        let own = |x: &mut Expansion, v| if self.of_scores == self.dtype { v } else { x.cast(v, self.dtype) };
        let q = wide(x, self.q);
        let mut a = match self.past {
            Past::None | Past::Grown(..) => {
                let mut ins = vec![q, wide(x, self.k), wide(x, self.v), bias];
                if let Past::Grown(key, value) = self.past {
                    ins.extend([wide(x, key), wide(x, value)]);
                }
                let mut a = Attended::of(x, &ins, &attrs);
                (a.key, a.value) = (own(x, a.key), own(x, a.value));
                a
            }
            Past::Shared { key, value, n, beams } => {
                let b = x.extent(self.q, 0);
                let from = x.op("Expand", &[n, b], &[]);
                let written = |x: &mut Expansion, cache, new| {
                    x.op("TensorScatter", &[cache, new, from], &[("axis", Attr::Int(2))])
                };
                let present = (written(x, key, self.k), written(x, value, self.v));
                let (keys, values) = match beams {
                    None => present,
                    Some(beams) => {
                        let (key, value) = (of_beams(x, key, beams), of_beams(x, value, beams));
                        (written(x, key, self.k), written(x, value, self.v))
                    }
                };
                let own = x.extent(self.k, 2);
                let n_valid = x.op("Add", &[from, own], &[]);
                let ins = [q, wide(x, keys), wide(x, values), bias, None, None, Some(n_valid)];
                let mut a = Attended::of(x, &ins, &attrs);
                (a.key, a.value) = present;
                let (zero, total, axis) = (x.ints(&[0]), x.op("Add", &[n, own], &[]), x.ints(&[3]));
                a.scores = x.op("Slice", &[a.scores, zero, total, axis], &[]);
                a
            }
        };
        (a.y, a.scores) = (own(x, a.y), own(x, a.scores));
        if self.causal {
            // What is shown of keys that do not count is the least number.
            let least = x.scalar(self.dtype, least(self.dtype));
            a.scores = x.op("Max", &[a.scores, least], &[]);
        }
        a
    }

    /// -∞ for keys after a query's position, `[s, t]`; the last query sees all.
    fn after_queries(&self, x: &mut Expansion) -> Value {
        let s = x.extent(self.q, 2);
        let past = self.past.length(x);
        let n_keys = self.past.n_keys(x, self.k, self.bias);
        let (i, j) = (x.count_to(s), x.count_to(n_keys));
        let i = x.unsqueeze(i, &[1]);
        let last = x.ints(&[1]);
        let last = x.op("Sub", &[s, last], &[]);
        let is_last = x.op("Equal", &[i, last], &[]);
        let p = past.map_or(i, |p| x.op("Add", &[i, p], &[]));
        let seen = x.op("LessOrEqual", &[j, p], &[]);
        let seen = x.op("Or", &[seen, is_last], &[]);
        filled(x, seen, self.of_scores, f32::NEG_INFINITY)
    }
}

impl Attended {
    fn of(x: &mut Expansion, ins: &[Option<Value>], attrs: &[(&str, Attr)]) -> Attended {
        let r = x.op_opt("Attention", ins, attrs, 4);
        Attended { y: r[0], key: r[1], value: r[2], scores: r[3] }
    }
}

/// A cache `[b, h, m, d]` with each position taken from the beam of the sample that `beams` names.
fn of_beams(x: &mut Expansion, cache: Value, beams: Value) -> Value {
    let (b, m, width) = (x.extent(cache, 0), x.extent(cache, 2), x.extent(beams, 1));
    let rows = x.transpose(cache, &[0, 2, 1, 3]);
    let (h, d) = (x.extent(cache, 1), x.extent(cache, 3));
    let places = x.op("Mul", &[b, m], &[]);
    let rows = x.reshape_to(rows, &[places, h, d]);
    let beams = x.cast(beams, DType::I64);
    let beams = x.reshape_to(beams, &[b, m]);
    // The first sample of each one's group, then the beam's place in it.
    let samples = x.count_to(b);
    let within = x.op("Mod", &[samples, width], &[]);
    let first = x.op("Sub", &[samples, within], &[]);
    let first = x.unsqueeze(first, &[1]);
    let sample = x.op("Add", &[first, beams], &[]);
    let start = x.op("Mul", &[sample, m], &[]);
    let j = x.count_to(m);
    let at = x.op("Add", &[start, j], &[]);
    // What lies after the past may name no beam.
    let (zero, one) = (x.ints(&[0]), x.ints(&[1]));
    let last = x.op("Sub", &[places, one], &[]);
    let at = x.op("Max", &[at, zero], &[]);
    let at = x.op("Min", &[at, last], &[]);
    let y = x.op("Gather", &[rows, at], &[]);
    x.transpose(y, &[0, 2, 1, 3])
}

/// The least finite number.
pub(super) fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        DType::BF16 => -f64::from(f32::from_bits(0x7f7f_0000)),
        DType::F64 => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}

/// `[b, s, h·d]` as `[b, h, s, d]`.
pub(super) fn split(x: &mut Expansion, v: Value, heads: i64) -> Value {
    let (b, s, hidden, n) = (x.extent(v, 0), x.extent(v, 1), x.extent(v, 2), x.ints(&[heads]));
    let d = x.op("Div", &[hidden, n], &[]);
    let y = x.reshape_to(v, &[b, s, n, d]);
    x.transpose(y, &[0, 2, 1, 3])
}

/// `[b, h, s, d]` as `[b, s, h·d]`.
pub(super) fn merge(x: &mut Expansion, v: Value) -> Value {
    let (b, h, s, d) = (x.extent(v, 0), x.extent(v, 1), x.extent(v, 2), x.extent(v, 3));
    let hidden = x.op("Mul", &[h, d], &[]);
    let y = x.transpose(v, &[0, 2, 1, 3]);
    x.reshape_to(y, &[b, s, hidden])
}

/// Elements `from` to before `to` of a vector, each a list of one integer.
pub(super) fn range_of(x: &mut Expansion, v: Value, from: Value, to: Value) -> Value {
    let axis = x.ints(&[0]);
    x.op("Slice", &[v, from, to, axis], &[])
}

/// A number as a list of one i64.
pub(super) fn number(x: &mut Expansion, v: Value) -> Value {
    let v = x.cast(v, DType::I64);
    x.reshape(v, &[1])
}

/// What is added to scores: 0 where `keep` is true, else `filter`.
pub(super) fn filled(x: &mut Expansion, keep: Value, dtype: DType, filter: f32) -> Value {
    let (zero, low) = (x.scalar(dtype, 0.0), x.scalar(dtype, filter.into()));
    x.op("Where", &[keep, zero, low], &[])
}

/// `bias` with `filter` added for keys that do not count, and the type of it: where no key of a query counts, the fill must leave the scores
/// (and what else is added to them) their digits, which a narrow float does not.
pub(super) fn masked(
    x: &mut Expansion,
    keep: Value,
    bias: Option<Value>,
    dtype: DType,
    filter: f32,
) -> (Option<Value>, DType) {
    let narrow = dtype.bits() < 32;
    let wide = if narrow { DType::F32 } else { dtype };
    let added = filled(x, keep, wide, filter);
    let bias = bias.map(|b| if narrow { x.cast(b, wide) } else { b });
    (Some(bias.map_or(added, |b| x.op("Add", &[b, added], &[]))), wide)
}

/// Which of `n_keys` keys (a list of one integer) lie before `ends` and not before `starts`, both `[b]`: `[b, 1, 1, t]`.
pub(super) fn between(x: &mut Expansion, ends: Value, starts: Option<Value>, n_keys: Value) -> Value {
    let j = x.count_to(n_keys);
    let column = |x: &mut Expansion, v: Value| {
        let v = x.cast(v, DType::I64);
        x.unsqueeze(v, &[1, 2, 3])
    };
    let ends = column(x, ends);
    let keep = x.op("Less", &[j, ends], &[]);
    let Some(starts) = starts else { return keep };
    let starts = column(x, starts);
    let after = x.op("GreaterOrEqual", &[j, starts], &[]);
    x.op("And", &[keep, after], &[])
}

/// Which keys count by a mask `[b, t]` or `[b, s, t]` of numbers above 0, as 4 axes.
pub(super) fn raw(x: &mut Expansion, mask: Value) -> Result<Value> {
    let (dtype, shape) = x.tensor(mask)?;
    let zero = x.scalar(dtype, 0.0);
    let keep = x.op("Greater", &[mask, zero], &[]);
    Ok(x.unsqueeze(keep, if shape.len() == 2 { &[1, 2] } else { &[1] }))
}

/// The custom scale of an attribute: 0 stands for none.
pub(super) fn scale(attrs: &crate::attrs::Attrs, slot: usize) -> Option<f32> {
    attrs.float(slot).filter(|&s| s != 0.0)
}

/// The fill of masked scores, by default -10000.
pub(super) fn filter(attrs: &crate::attrs::Attrs, slot: usize) -> f32 {
    attrs.float(slot).unwrap_or(-10000.0)
}

impl InferCtx<'_> {
    /// The number of heads in an attribute.
    pub(super) fn heads(&self, slot: usize, name: &str) -> Result<i64> {
        match self.attrs.int(slot) {
            Some(n) if n > 0 => Ok(n),
            n => {
                let text = format!("{}: {name}={} is not positive", self.def.name, n.unwrap_or(0));
                Err(self.error(ErrorKind::Unsupported, text))
            }
        }
    }
    /// An extent split in `n` equal parts.
    pub(super) fn part(&mut self, d: DimId, n: i64, what: &str) -> Result<DimId> {
        let (n, zero) = (self.dims.constant(n), self.dims.constant(0));
        let rest = self.dims.modulo(d, n);
        self.require_eq(rest, zero, what)?;
        Ok(self.dims.floordiv(d, n))
    }
    /// An error about the shape of operand `i`.
    pub(super) fn misshapen(&self, i: usize, allowed: &str) -> tensor::Diagnostic {
        let name = self.def.inputs[i].name;
        self.error(ErrorKind::Shape, format!("{}: {name} is none of {allowed}", self.def.name))
    }
    /// Requires operand `i`, where present, to be added to scores `[b, h, s, t]`. Where `shorter`, it may be over fewer keys.
    pub(super) fn require_score_bias(&mut self, i: usize, scores: &[DimId; 4], shorter: bool) -> Result<()> {
        let Some(bias) = self.shape(i) else { return Ok(()) };
        if bias.len() != 4 {
            return Err(self.misshapen(i, "[b or 1, h or 1, s, t]"));
        }
        let name = self.def.inputs[i].name;
        let mut to: Shape = scores.iter().copied().collect();
        if shorter {
            self.require_within(bias[3], to[3], &format!("{name} is over no more keys than the buffer"))?;
            to[3] = bias[3];
        } else {
            self.require_eq(bias[3], to[3], &format!("{name} is over all keys"))?;
        }
        super::super::broadcast::require_broadcasts_to(self, &bias, &to, name)
    }
    /// Checks tables of cosines and sines, operands `cos` and `sin`: `[positions, rotated / 2]` both, for heads of `head` elements.
    /// Gives for how many positions they are; nothing where one is missing or of unknown rank.
    pub(super) fn require_rotary_caches(&mut self, (cos, sin): (usize, usize), head: DimId) -> Result<Option<DimId>> {
        let (Some(c), Some(s)) = (self.shape(cos), self.shape(sin)) else { return Ok(None) };
        let (&[p, w], &[p2, w2]) = (c.as_slice(), s.as_slice()) else {
            return Err(self.misshapen(cos, "[positions, rotated / 2], as sin_cache is"));
        };
        self.require_eq(p, p2, "cos_cache and sin_cache are of one shape")?;
        self.require_eq(w, w2, "cos_cache and sin_cache are of one shape")?;
        let (one, two) = (self.dims.constant(1), self.dims.constant(2));
        let rotated = self.dims.mul(w, two);
        self.require_within(one, w, "cos_cache is for at least one pair of elements")?;
        self.require_within(rotated, head, "cos_cache is for at most the elements of a head")?;
        Ok(Some(p))
    }
    /// Requires `a ≤ b`: refused now where it never holds, else a guard.
    pub(super) fn require_within(&mut self, a: DimId, b: DimId, what: &str) -> Result<()> {
        let what = format!("{}: {what}", self.def.name);
        if self.dims.prove_le(a, b) == Proof::No {
            return Err(self.error(ErrorKind::Shape, what));
        }
        self.require_le(a, b, &what);
        Ok(())
    }
    /// How many of a shared buffer are taken, where the node shows scores and so must know.
    pub(super) fn taken(&mut self, i: usize, needed: bool) -> Option<DimId> {
        let v = if needed { self.need_values(i) } else { self.values(i) };
        v.and_then(|v| v.first().copied())
    }
}

/// The number that a tensor of one is.
pub(super) fn first_number(t: &Tensor) -> i128 {
    ints(t).first().copied().unwrap_or(0)
}

/// Which keys count, as the texts of masks say it: for `[b]` or `[3·b + 2]` those before the sample's number, for `[2·b]` also not before
/// the number in the second half, for `[b, t]` and `[b, s, t]` those whose number is above 0.
pub(super) enum Keep {
    All,
    Before(Vec<i128>),
    Between(Vec<i128>, Vec<i128>),
    Raw(Added),
}

impl Keep {
    pub(super) fn of(mask: Option<&Tensor>, scores: [usize; 4], n_keys: usize) -> Result<Keep> {
        let Some(mask) = mask else { return Ok(Keep::All) };
        let (numbers, b) = (ints(mask), scores[0]);
        Ok(match *mask.shape() {
            [n] if n == 2 * b => Keep::Between(numbers[..b].into(), numbers[b..].into()),
            [n] if n == b || n == 3 * b + 2 => Keep::Before(numbers),
            [n, t] => Keep::Raw(Added::of(&mask.reshaped(&[n, 1, 1, t]), scores, n_keys)?),
            [n, s, t] => Keep::Raw(Added::of(&mask.reshaped(&[n, 1, s, t]), scores, n_keys)?),
            _ => return Err(Diagnostic::new(ErrorKind::Shape, format!("a mask {:?} of {b} samples", mask.shape()))),
        })
    }
    /// What is added to the score of a key; keys that a mask does not reach do not count at all.
    pub(super) fn added(&self, at: [usize; 4], filter: f64) -> f64 {
        let ([b, ..], t) = (at, at[3] as i128);
        let keep = match self {
            Keep::All => true,
            Keep::Before(ends) => t < ends[b],
            Keep::Between(ends, starts) => t < ends[b] && t >= starts[b],
            Keep::Raw(mask) => match mask.at(at) {
                f64::NEG_INFINITY => return f64::NEG_INFINITY,
                v => v > 0.0,
            },
        };
        if keep { 0.0 } else { filter }
    }
}

/// Heads with the part of a bias for queries (0), keys (1) or values (2), where those of queries and keys are `hidden` wide.
pub(super) fn with_bias(heads: Heads, bias: Option<&Tensor>, part: usize, hidden: usize) -> Result<Heads> {
    match bias {
        Some(b) => heads.plus(f64s(b).get(part * hidden..).unwrap_or(&[])),
        None => Ok(heads),
    }
}

/// Over how many of the keys a mask and a bias are: all, but for a shared buffer as many as the last axis of one of them has.
pub(super) fn n_keys(all: usize, shared: bool, terms: [Option<&Tensor>; 2]) -> usize {
    let rows = |t: &&Tensor| shared && t.shape().len() > 1;
    terms.into_iter().flatten().find(rows).and_then(|t| t.shape().last().copied()).unwrap_or(all)
}
