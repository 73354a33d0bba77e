//! The nodes of a GroupQueryAttention.
//!
//! The present is the past with the new keys written at each sample's own position: a form in which whoever binds both to one buffer
//! need not copy. Heads that share keys are rows of one product, so that keys are never repeated.

use super::super::attend::{merge, number, split};
use super::super::float;
use super::*;
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;

/// What the nodes are made from.
struct Parts {
    o: Options,
    dtype: DType,
    /// `[b, h, s, d]`, `[b, kv, l, d]`.
    q: Value,
    k: Value,
    v: Value,
    /// Extents, each a list of one integer.
    b: Value,
    s: Value,
    /// How many keys there are: `total_sequence_length`.
    total: Value,
    /// Positions of each sample after the node, the first position of its queries and of its new keys: `[b]`.
    ends: Value,
    starts: Value,
    writes: Value,
    /// Whether there are new keys.
    appends: bool,
}

pub(super) fn expand(x: &mut Expansion) -> Result<Vec<Value>> {
    let o = Options::of(x.attrs());
    let query = x.need(0)?;
    let dtype = x.tensor(query)?.0;
    let (n, kv) = (o.heads, o.kv_heads);
    let (q, k, v) = match (x.input(KEY), x.input(VALUE)) {
        (Some(k), Some(v)) => (split(x, query, n), split(x, k, kv), split(x, v, kv)),
        _ => {
            let all = split(x, query, n + 2 * kv);
            let (q, k) = (x.slice(all, 1, 0, n), x.slice(all, 1, n, n + kv));
            (q, k, x.slice(all, 1, n + kv, n + 2 * kv))
        }
    };
    let appends = match x.input(KEY) {
        Some(k) => x.tensor(k)?.1.get(1).and_then(|&l| x.as_const(l)) != Some(0),
        None => true,
    };
    let (b, s) = (x.extent(query, 0), x.extent(query, 1));
    let (total, lengths) = (x.need(TOTAL)?, x.need(LENGTHS)?);
    let (total, lengths, one) = (number(x, total), x.cast(lengths, I64), x.ints(&[1]));
    let ends = x.op("Add", &[lengths, one], &[]);
    let most = x.op("Min", &[ends, s], &[]);
    let new = match x.input(QUERY_LENGTHS) {
        Some(n) => {
            let (n, zero) = (x.cast(n, I64), x.ints(&[0]));
            let n = x.op("Max", &[n, zero], &[]);
            x.op("Min", &[n, most], &[])
        }
        None => most,
    };
    let starts = x.op("Sub", &[ends, new], &[]);
    let writes = if appends { starts } else { ends };
    let mut p = Parts { o, dtype, q, k, v, b, s, total, ends, starts, writes, appends };
    p.turn(x)?;
    let (key, value, keys, values) = match p.o.latest() {
        Some(w) => p.latest(x, w)?,
        None => {
            let (key, keys) = p.whole(x, PAST_KEY, p.k, 1)?;
            let (value, values) = p.whole(x, PAST_VALUE, p.v, 2)?;
            (key, value, Keys { v: keys, positions: None }, values)
        }
    };
    let (y, shown) = p.attend(x, &keys, values)?;
    let mut all = vec![merge(x, y), key, value];
    all.extend(shown);
    Ok(all)
}

/// Keys with their positions `[b, t]`, where these are not 0, 1, ….
struct Keys {
    v: Value,
    positions: Option<Value>,
}

/// A position that no query sees.
const NOWHERE: f64 = -1e15;

impl Parts {
    /// In which type products are computed: there is no fast product of bf16.
    fn wide(&self) -> DType {
        if self.dtype == BF16 { F32 } else { self.dtype }
    }
    /// `[b]` as `[b, 1]`.
    fn column(x: &mut Expansion, v: Value) -> Value {
        x.unsqueeze(v, &[1])
    }
    /// The position of each query: `[b, s]`.
    fn positions(&self, x: &mut Expansion) -> Value {
        let (column, steps) = (Self::column(x, self.starts), x.count_to(self.s));
        x.op("Add", &[column, steps], &[])
    }
    /// Normalizes queries and keys, then rotates them.
    fn turn(&mut self, x: &mut Expansion) -> Result<()> {
        if let (Some(q), Some(k)) = (x.input(QUERY_NORM), x.input(KEY_NORM)) {
            let of = |x: &mut Expansion, v, w, e| {
                x.op("RMSNormalization", &[v, w], &[("axis", Attr::Int(-1)), ("epsilon", float(e))])
            };
            (self.q, self.k) = (of(x, self.q, q, self.o.epsilon[0]), of(x, self.k, k, self.o.epsilon[1]));
        }
        if !self.o.rotary {
            return Ok(());
        }
        let (cos, sin) = (x.need(COS)?, x.need(SIN)?);
        let chunk = x.input(QUERY_LENGTHS).is_some();
        let positions = match x.input(POSITIONS) {
            Some(p) if chunk => p,
            Some(p) => {
                // Of prompts the first position alone counts.
                let (first, steps, axes) = (x.slice(p, 0, 0, 1), x.count_to(self.s), x.ints(&[0, 1]));
                let first = x.slice(first, 1, 0, 1);
                // Its extents are 1 also where those of the positions are not known.
                let first = x.op("ReduceSum", &[first, axes], &[]);
                let prompt = x.op("Add", &[first, steps], &[]);
                let is_prompt = x.op("Equal", &[self.total, self.s], &[]);
                x.op("Where", &[is_prompt, prompt, p], &[])
            }
            None => {
                let p = self.positions(x);
                // Padding may lie beyond the tables.
                if chunk { self.up_to_last(x, p) } else { p }
            }
        };
        // Tables of a known width may be for a part of the head.
        let width = x.tensor(cos)?.1.get(1).and_then(|&w| x.as_const(w)).unwrap_or(0);
        let attrs =
            [("interleaved", Attr::Int(self.o.interleaved.into())), ("rotary_embedding_dim", Attr::Int(2 * width))];
        self.q = x.op("RotaryEmbedding", &[self.q, cos, sin, positions], &attrs);
        if self.appends {
            self.k = x.op("RotaryEmbedding", &[self.k, cos, sin, positions], &attrs);
        }
        Ok(())
    }
    fn up_to_last(&self, x: &mut Expansion, positions: Value) -> Value {
        let (ends, one) = (Self::column(x, self.ends), x.ints(&[1]));
        let last = x.op("Sub", &[ends, one], &[]);
        x.op("Min", &[positions, last], &[])
    }
    /// The present of a cache of all positions, and the first `total` of it.
    fn whole(&self, x: &mut Expansion, past: usize, new: Value, result: usize) -> Result<(Value, Value)> {
        let store = Store::of(x, self, past)?;
        let new = store.write(x, new)?;
        let wanted = x.result_shape(result).and_then(|s| s.get(2).copied());
        let (cache, exact) = match x.input(past) {
            Some(p) => {
                let m = x.tensor(p)?.1[2];
                let fits = wanted.is_some_and(|w| x.same(m, w));
                if !fits && self.appends {
                    let length = self.length(x, p);
                    let ins = [Some(p), Some(new), Some(self.writes), Some(length)];
                    let present = x.own("CacheUpdate", &ins, &[("axis", Attr::Int(2))]);
                    return Ok((present, self.keys(x, &store, present)?));
                }
                (if fits { p } else { self.grown(x, p) }, false)
            }
            None => {
                let (zero, h, d) = (x.scalar(store.dtype, 0.0), x.ints(&[self.o.kv_heads]), x.extent(new, 3));
                let shape = x.concat(&[self.b, h, self.total, d], 0);
                (x.op("Expand", &[zero, shape], &[]), true)
            }
        };
        let present = match self.appends {
            true => x.op("TensorScatter", &[cache, new, self.writes], &[("axis", Attr::Int(2))]),
            false => cache,
        };
        let keys = if exact { store.read(x, present)? } else { self.keys(x, &store, present)? };
        Ok((present, keys))
    }
    /// The first `total` positions of a present.
    fn keys(&self, x: &mut Expansion, store: &Store, present: Value) -> Result<Value> {
        let (zero, axis) = (x.ints(&[0]), x.ints(&[2]));
        let keys = x.op("Slice", &[present, zero, self.total, axis], &[]);
        store.read(x, keys)
    }
    /// How many positions a past with room for `total` has.
    fn length(&self, x: &mut Expansion, past: Value) -> Value {
        let m = x.extent(past, 2);
        x.op("Max", &[m, self.total], &[])
    }
    /// The past with room for `total` positions.
    fn grown(&self, x: &mut Expansion, past: Value) -> Value {
        let (m, zero) = (x.extent(past, 2), x.ints(&[0]));
        let length = self.length(x, past);
        let more = x.op("Sub", &[length, m], &[]);
        let none = x.ints(&[0; 6]);
        let pads = x.concat(&[none, more, zero], 0);
        x.op("Pad", &[past, pads], &[])
    }
    /// Presents and keys of a cache that holds the latest positions alone.
    fn latest(&self, x: &mut Expansion, window: i64) -> Result<(Value, Value, Keys, Value)> {
        let past = x.need(PAST_KEY)?;
        let m = x.extent(past, 2);
        let rows = x.count_to(m);
        // The first position that the cache holds before and after.
        let before = self.first_held(x, self.writes, m, window);
        let after = self.first_held(x, self.ends, m, window);
        let held = x.op("Sub", &[self.writes, before], &[]);
        let (column, held) = (Self::column(x, before), Self::column(x, held));
        let old = x.op("Add", &[column, rows], &[]);
        let (is_held, nowhere) = (x.op("Less", &[rows, held], &[]), x.scalar(I64, NOWHERE));
        let old = x.op("Where", &[is_held, old, nowhere], &[]);
        let positions = if self.appends {
            let own = self.positions(x);
            x.concat(&[old, own], 1)
        } else {
            old
        };
        // Where the rows of the present lie among the past's rows and the new ones.
        let (after, writes) = (Self::column(x, after), Self::column(x, self.writes));
        let position = x.op("Add", &[after, rows], &[]);
        let ends = Self::column(x, self.ends);
        let is_kept = x.op("Less", &[position, ends], &[]);
        let in_past = x.op("Sub", &[position, column], &[]);
        let in_new = x.op("Sub", &[position, writes], &[]);
        let in_new = x.op("Add", &[in_new, m], &[]);
        let is_new = x.op("GreaterOrEqual", &[position, writes], &[]);
        let at = x.op("Where", &[is_new, in_new, in_past], &[]);
        let (zero, is_kept4) = (x.scalar(I64, 0.0), x.unsqueeze(is_kept, &[1, 3]));
        let at = x.op("Where", &[is_kept, at, zero], &[]);
        let at = x.unsqueeze(at, &[1, 3]);
        let of = |x: &mut Expansion, past: usize, new: Value| -> Result<(Value, Value)> {
            let store = Store::of(x, self, past)?;
            let past = x.need(past)?;
            let all = if self.appends {
                let new = store.write(x, new)?;
                x.concat(&[past, new], 2)
            } else {
                past
            };
            let shape = x.op("Shape", &[past], &[]);
            let at = x.op("Expand", &[at, shape], &[]);
            let present = x.op("GatherElements", &[all, at], &[("axis", Attr::Int(2))]);
            let zero = x.scalar(store.dtype, 0.0);
            let present = x.op("Where", &[is_kept4, present, zero], &[]);
            // Keys are read from what is laid together, so the past's memory is free.
            let present = x.own("CacheReplace", &[Some(past), Some(present)], &[]);
            Ok((present, store.read(x, all)?))
        };
        let (key, keys) = of(x, PAST_KEY, self.k)?;
        let (value, values) = of(x, PAST_VALUE, self.v)?;
        Ok((key, value, Keys { v: keys, positions: Some(positions) }, values))
    }
    /// The first position that a cache of `m` rows holds after `n` (`[b]`) positions.
    fn first_held(&self, x: &mut Expansion, n: Value, m: Value, window: i64) -> Value {
        let (zero, one, window) = (x.ints(&[0]), x.ints(&[1]), x.ints(&[window - 1]));
        let step = x.op("Sub", &[m, window], &[]);
        let over = x.op("Sub", &[n, m], &[]);
        let over = x.op("Max", &[over, zero], &[]);
        let up = x.op("Add", &[over, step], &[]);
        let up = x.op("Sub", &[up, one], &[]);
        let times = x.op("Div", &[up, step], &[]);
        x.op("Mul", &[times, step], &[])
    }
    /// Queries, and whatever else has a row for each, with the rows of heads that share keys one after the other: `[b, kv, g·s, …]`.
    fn rows(&self, x: &mut Expansion) -> Value {
        let g = x.ints(&[self.o.heads / self.o.kv_heads]);
        x.op("Mul", &[g, self.s], &[])
    }
    /// Which keys a query sees: `[b, 1, g·s or 1, t]`.
    fn seen(&self, x: &mut Expansion, keys: &Keys) -> Value {
        let (g, one) = (self.o.heads / self.o.kv_heads, x.ints(&[1]));
        let at = match self.o.causal {
            true => {
                let p = self.positions(x);
                self.up_to_last(x, p)
            }
            false => {
                let ends = Self::column(x, self.ends);
                x.op("Sub", &[ends, one], &[])
            }
        };
        let at = if self.o.causal && g > 1 {
            let (groups, rows) = (x.ints(&[g]), self.rows(x));
            let wide = x.concat(&[self.b, groups, self.s], 0);
            let at = x.unsqueeze(at, &[1]);
            let at = x.op("Expand", &[at, wide], &[]);
            x.reshape_to(at, &[self.b, rows])
        } else {
            at
        };
        let at = x.unsqueeze(at, &[1, 3]);
        let j = match keys.positions {
            Some(p) => x.unsqueeze(p, &[1, 2]),
            None => x.count_to(self.total),
        };
        let seen = x.op("LessOrEqual", &[j, at], &[]);
        let Some(w) = self.o.window else { return seen };
        let w = x.ints(&[w]);
        let first = x.op("Sub", &[at, w], &[]);
        let within = x.op("Greater", &[j, first], &[]);
        x.op("And", &[seen, within], &[])
    }
    /// What is added to scores, `[b or 1, kv or 1, g·s, t]`.
    fn bias(&self, x: &mut Expansion, keys: &Keys) -> Result<Option<Value>> {
        let Some(mut bias) = x.input(BIAS) else { return Ok(None) };
        let shape = x.tensor(bias)?.1;
        let (one, rows) = (x.ints(&[1]), self.rows(x));
        let (n, kv, g) = (self.o.heads, self.o.kv_heads, self.o.heads / self.o.kv_heads);
        let mut samples = x.extent(bias, 0);
        let mut heads = x.extent(bias, 1);
        if let Some(p) = keys.positions {
            // Its keys are all positions.
            let (zero, last) = (x.ints(&[0]), x.op("Sub", &[self.total, one], &[]));
            let at = x.op("Max", &[p, zero], &[]);
            let at = x.op("Min", &[at, last], &[]);
            let t = x.extent(at, 1);
            let at = x.unsqueeze(at, &[1, 2]);
            let (to, from) =
                (x.concat(&[self.b, heads, self.s, t], 0), x.concat(&[self.b, heads, self.s, self.total], 0));
            let (at, all) = (x.op("Expand", &[at, to], &[]), x.op("Expand", &[bias, from], &[]));
            bias = x.op("GatherElements", &[all, at], &[("axis", Attr::Int(3))]);
            samples = self.b;
        }
        let t = x.extent(bias, 3);
        let is = |x: &Expansion, i: usize, n: i64| x.as_const(shape[i]) == Some(n);
        if is(x, 1, 1) && n > 1 {
            if g == 1 {
                return Ok(Some(bias));
            }
            let groups = x.ints(&[g]);
            let wide = x.concat(&[samples, groups, self.s, t], 0);
            let bias = x.op("Expand", &[bias, wide], &[]);
            return Ok(Some(x.reshape_to(bias, &[samples, one, rows, t])));
        }
        if !is(x, 1, n) {
            heads = x.ints(&[n]);
            let wide = x.concat(&[samples, heads, self.s, t], 0);
            bias = x.op("Expand", &[bias, wide], &[]);
        }
        let kv = x.ints(&[kv]);
        Ok(Some(x.reshape_to(bias, &[samples, kv, rows, t])))
    }
    /// The result `[b, h, s, d]`, and what is shown of the scores.
    fn attend(&self, x: &mut Expansion, keys: &Keys, values: Value) -> Result<(Value, Option<Value>)> {
        let (rows, kv, d) = (self.rows(x), x.ints(&[self.o.kv_heads]), x.extent(self.q, 3));
        let heads = x.ints(&[self.o.heads]);
        let q = x.reshape_to(self.q, &[self.b, kv, rows, d]);
        let q = if self.wide() == self.dtype { q } else { x.cast(q, self.wide()) };
        let seen = self.seen(x, keys);
        let bias = self.bias(x, keys)?;
        let sink = self.sink(x)?;
        let shows = x.n_outs() > 3;
        let plain = sink.is_none() && self.o.softcap <= 0.0 && !shows;
        let size = {
            let operand = x.tensor(self.q).ok().and_then(|(_, s)| s.get(3).copied());
            operand.and_then(|d| x.as_const(d))
        };
        if let (true, Some(scale)) =
            (plain, self.o.scale.map(f64::from).or(size.map(|d| 1.0 / (d.max(1) as f64).sqrt())))
        {
            let wide = self.wide();
            let (zero, low) = (x.scalar(wide, 0.0), x.scalar(wide, f64::NEG_INFINITY));
            let bias = bias.map(|b| if wide == self.dtype { b } else { x.cast(b, wide) });
            let mask = x.op("Where", &[seen, bias.unwrap_or(zero), low], &[]);
            let attrs = [("scale", float(scale as f32))];
            let y = x.own("Attention", &[Some(q), Some(keys.v), Some(values), Some(mask)], &attrs);
            let y = if wide == self.dtype { y } else { x.cast(y, self.dtype) };
            return Ok((x.reshape_to(y, &[self.b, heads, self.s, d]), None));
        }
        let turned = x.transpose(keys.v, &[0, 1, 3, 2]);
        let z = x.op("MatMul", &[q, turned], &[]);
        let z = x.cast(z, F32);
        let scale = match (self.o.scale, size) {
            (Some(s), _) => x.scalar(F32, s.into()),
            (None, Some(d)) => x.scalar(F32, 1.0 / (d.max(1) as f64).sqrt()),
            (None, None) => {
                let d = x.cast(d, F32);
                let root = x.op("Sqrt", &[d], &[]);
                x.op("Reciprocal", &[root], &[])
            }
        };
        let mut z = x.op("Mul", &[z, scale], &[]);
        if self.o.softcap > 0.0 {
            let cap = x.scalar(F32, self.o.softcap.into());
            let y = x.op("Div", &[z, cap], &[]);
            let y = x.op("Tanh", &[y], &[]);
            z = x.op("Mul", &[y, cap], &[]);
        }
        if let Some(b) = bias {
            let b = x.cast(b, F32);
            z = x.op("Add", &[z, b], &[]);
        }
        let (zero, low) = (x.scalar(F32, 0.0), x.scalar(F32, f64::NEG_INFINITY));
        let scores = x.op("Where", &[seen, z, low], &[]);
        let shares = match sink {
            Some(sink) => {
                let last = x.ints(&[-1]);
                let most = x.op("ReduceMax", &[scores, last], &[]);
                let most = x.op("Max", &[most, sink], &[]);
                let exp = |x: &mut Expansion, v| {
                    let v = x.op("Sub", &[v, most], &[]);
                    x.op("Exp", &[v], &[])
                };
                let (e, own) = (exp(x, scores), exp(x, sink));
                let sum = x.op("ReduceSum", &[e, last], &[]);
                let sum = x.op("Add", &[sum, own], &[]);
                x.op("Div", &[e, sum], &[])
            }
            None => x.op("Softmax", &[scores], &[("axis", Attr::Int(-1))]),
        };
        let shown = shows.then(|| {
            let v = if self.o.shown == 1 { x.op("Where", &[seen, z, zero], &[]) } else { shares };
            let v = x.cast(v, self.dtype);
            x.reshape_to(v, &[self.b, heads, self.s, self.total])
        });
        let shares = x.cast(shares, self.wide());
        let y = x.op("MatMul", &[shares, values], &[]);
        let y = x.cast(y, self.dtype);
        Ok((x.reshape_to(y, &[self.b, heads, self.s, d]), shown))
    }
    /// A score that has a share but no value, for each row: `[1, kv, g·s, 1]`, or one for all.
    fn sink(&self, x: &mut Expansion) -> Result<Option<Value>> {
        let Some(sink) = x.input(SINKS) else { return Ok(self.o.smooth.then(|| x.scalar(F32, 0.0))) };
        let sink = x.cast(sink, F32);
        let column = Self::column(x, sink);
        let (one, heads, kv, rows) = (x.ints(&[1]), x.ints(&[self.o.heads]), x.ints(&[self.o.kv_heads]), self.rows(x));
        let wide = x.concat(&[heads, self.s], 0);
        let all = x.op("Expand", &[column, wide], &[]);
        Ok(Some(x.reshape_to(all, &[one, kv, rows, one])))
    }
}

/// How the cache holds elements.
struct Store {
    dtype: DType,
    own: DType,
    /// In which type it is read.
    wide: DType,
    /// `[1, kv or 1, 1, d or 1]`, or a scalar.
    scale: Option<Value>,
}

impl Store {
    fn of(x: &mut Expansion, p: &Parts, past: usize) -> Result<Store> {
        let dtype = x.input(past).map(|p| x.tensor(p)).transpose()?.map_or(p.o.cache(p.dtype), |(d, _)| d);
        let (i, quant) = if past == PAST_KEY { (KEY_SCALE, p.o.quant[0]) } else { (VALUE_SCALE, p.o.quant[1]) };
        let scale = match (x.input(i).filter(|_| p.o.is_quantized()), quant) {
            (Some(s), Some(Quant::PerChannel)) => {
                // Extents that the model does not tell are not to be taken for those of the cache.
                let shape = x.tensor(s)?.1;
                let known: Option<Vec<i64>> = shape.iter().map(|&n| x.as_const(n)).collect();
                let heads = if shape.len() == 4 && x.as_const(shape[1]) == Some(1) { 1 } else { p.o.kv_heads };
                let whole = shape.len() == 4 && known.is_some();
                Some(if whole { s } else { x.reshape(s, &[1, heads, 1, -1]) })
            }
            (Some(s), Some(Quant::PerTensor)) => Some(x.reshape(s, &[])),
            (s, _) => s,
        };
        Ok(Store { dtype, own: p.dtype, wide: p.wide(), scale })
    }
    fn write(&self, x: &mut Expansion, v: Value) -> Result<Value> {
        let Some(scale) = self.scale else {
            return Ok(if self.dtype == self.own { v } else { x.cast(v, self.dtype) });
        };
        let v = x.cast(v, F32);
        let v = x.op("Div", &[v, scale], &[]);
        if self.dtype == F8E4M3FN {
            return Ok(x.cast(v, F8E4M3FN));
        }
        let v = x.op("Round", &[v], &[]);
        let (low, high) = if self.dtype == U8 { (-8.0, 7.0) } else { (-128.0, 127.0) };
        let (low, high) = (x.scalar(F32, low), x.scalar(F32, high));
        let v = x.op("Clip", &[v, low, high], &[]);
        if self.dtype == I8 {
            return Ok(x.cast(v, I8));
        }
        // Two elements in a byte, the first in its lower half.
        let (eight, sixteen) = (x.scalar(F32, 8.0), x.scalar(F32, 16.0));
        let v = x.op("Add", &[v, eight], &[]);
        let axis = x.ints(&[3]);
        let every_second = |x: &mut Expansion, from: i64| {
            let (from, to, two) = (x.ints(&[from]), x.ints(&[i64::MAX]), x.ints(&[2]));
            x.op("Slice", &[v, from, to, axis, two], &[])
        };
        let (low, high) = (every_second(x, 0), every_second(x, 1));
        let high = x.op("Mul", &[high, sixteen], &[]);
        let v = x.op("Add", &[low, high], &[]);
        Ok(x.cast(v, U8))
    }
    fn read(&self, x: &mut Expansion, v: Value) -> Result<Value> {
        let Some(scale) = self.scale else {
            return Ok(if self.dtype == self.wide { v } else { x.cast(v, self.wide) });
        };
        let mut v = x.cast(v, F32);
        if self.dtype == U8 {
            let (b, h, t, d) = (x.extent(v, 0), x.extent(v, 1), x.extent(v, 2), x.extent(v, 3));
            let (two, eight, sixteen) = (x.ints(&[2]), x.scalar(F32, 8.0), x.scalar(F32, 16.0));
            let high = x.op("Div", &[v, sixteen], &[]);
            let high = x.op("Floor", &[high], &[]);
            let of_high = x.op("Mul", &[high, sixteen], &[]);
            let low = x.op("Sub", &[v, of_high], &[]);
            let (low, high) = (x.unsqueeze(low, &[4]), x.unsqueeze(high, &[4]));
            let both = x.concat(&[low, high], 4);
            let d = x.op("Mul", &[d, two], &[]);
            let both = x.reshape_to(both, &[b, h, t, d]);
            v = x.op("Sub", &[both, eight], &[]);
        }
        let v = x.op("Mul", &[v, scale], &[]);
        Ok(x.cast(v, self.wide))
    }
}
