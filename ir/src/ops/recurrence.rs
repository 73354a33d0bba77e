//! Recurrent layers: expanded to one product over all steps of the input and a loop over the steps.

use super::row::{FLOATS, ROW};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate;
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, Param, RefCtx, Tol, attr, opt, req};
use reference::recurrence::{Activation, Cell, Layer, Operands, recurrent};
use tensor::DType::{self, *};
use tensor::{ErrorKind, Result, Tensor};

const HIDDEN: usize = 0;
const DIRECTION: usize = 1;
const ACTIVATIONS: usize = 2;
const ALPHA: usize = 3;
const BETA: usize = 4;
const CLIP: usize = 5;

/// The layer that a node's attributes describe, or what is wrong with them.
pub(super) fn layer(def: &OpDef, a: &Attrs) -> std::result::Result<Layer, std::string::String> {
    let flag = |name| def.slot(name).and_then(|i| a.int(i)).is_some_and(|v| v != 0);
    let cell = match def.name {
        "LSTM" | "DynamicQuantizeLSTM" => Cell::Lstm { input_forget: flag("input_forget") },
        "GRU" => Cell::Gru { linear_before_reset: flag("linear_before_reset") },
        _ => Cell::Rnn,
    };
    let reverse = match a.str(DIRECTION) {
        Some("forward") | None => vec![false],
        Some("reverse") => vec![true],
        Some("bidirectional") => vec![false, true],
        Some(d) => return Err(format!("direction {d:?} is none of forward, reverse, bidirectional")),
    };
    let clip = a.float(CLIP).map(f64::from);
    if let Some(c) = clip.filter(|c| c.is_nan() || *c < 0.0) {
        return Err(format!("clip={c} is negative"));
    }
    let activations = activations(cell, reverse.len(), a)?;
    Ok(Layer { cell, reverse, activations, clip, batch_first: flag("layout") })
}

/// Activations with their parameters; each takes the next of the lists that it has a use for.
fn activations(
    cell: Cell,
    n_directions: usize,
    a: &Attrs,
) -> std::result::Result<Vec<Activation>, std::string::String> {
    let default: &[&str] = match cell {
        Cell::Rnn => &["Tanh"],
        Cell::Gru { .. } => &["Sigmoid", "Tanh"],
        Cell::Lstm { .. } => &["Sigmoid", "Tanh", "Tanh"],
    };
    let want = cell.n_activations() * n_directions;
    let given: Vec<&str> = match a.get(ACTIVATIONS) {
        Attr::Strs(v) => v.iter().map(|s| &**s).collect(),
        _ => default.iter().copied().cycle().take(want).collect(),
    };
    // The default of RNN's row in ONNX has names for two directions.
    if given.len() < want || (given.len() > want && cell != Cell::Rnn) {
        return Err(format!("{} activations where {want} are needed", given.len()));
    }
    let mut lists = [ALPHA, BETA].map(|i| a.floats(i).unwrap_or_default().into_iter().map(f64::from));
    let mut all = Vec::new();
    for name in given.into_iter().take(want) {
        let mut next = |list: usize, default: Option<f64>| {
            let missing = || format!("activation {name} needs {}", ["activation_alpha", "activation_beta"][list]);
            lists[list].next().or(default).ok_or_else(missing)
        };
        all.push(match name.to_ascii_lowercase().as_str() {
            "relu" => Activation::Relu,
            "tanh" => Activation::Tanh,
            "sigmoid" => Activation::Sigmoid,
            "affine" => Activation::Affine(next(0, Some(1.0))?, next(1, Some(0.0))?),
            "leakyrelu" => Activation::LeakyRelu(next(0, Some(0.01))?),
            "thresholdedrelu" => Activation::ThresholdedRelu(next(0, Some(1.0))?),
            "scaledtanh" => Activation::ScaledTanh(next(0, None)?, next(1, None)?),
            "hardsigmoid" => Activation::HardSigmoid(next(0, Some(0.2))?, next(1, Some(0.5))?),
            "elu" => Activation::Elu(next(0, Some(1.0))?),
            "softsign" => Activation::Softsign,
            "softplus" => Activation::Softplus,
            _ => return Err(format!("activation {name:?} is not known")),
        });
    }
    Ok(all)
}

/// Shape rule: `x [t, b, i]`, `w [d, g·h, i]`, `r [d, g·h, h]` → `y [t, d, b, h]`, last states `[d, b, h]`; with layout 1 the batch
/// comes first.
fn infer_layer(c: &mut InferCtx) -> Result<()> {
    infer_weights(c, false)
}

/// The same where the weights may be stored the other way round: `w [d, i, g·h]`, `r [d, h, g·h]`.
pub(super) fn infer_weights(c: &mut InferCtx, transposed: bool) -> Result<()> {
    let dtype = c.dtype(0)?;
    let layer = match layer(c.def, c.attrs) {
        Ok(l) => l,
        Err(text) => return Err(c.error(ErrorKind::Unsupported, format!("{}: {text}", c.def.name))),
    };
    let (Some(x), Some(w), Some(r)) = (c.shape(0), c.shape(1), c.shape(2)) else {
        (0..3).for_each(|i| c.set_unranked(i, dtype));
        return Ok(());
    };
    for (i, s) in [&x, &w, &r].into_iter().enumerate() {
        if s.len() != 3 {
            let text = format!("{}: {} has rank {}, not 3", c.def.name, c.def.inputs[i].name, s.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
    }
    let (t, b) = if layer.batch_first { (x[1], x[0]) } else { (x[0], x[1]) };
    let n = |c: &mut InferCtx, n: usize| c.dims.constant(i64::try_from(n).unwrap_or(i64::MAX));
    let (d, g, h) = (n(c, layer.reverse.len()), n(c, layer.cell.n_gates()), r[if transposed { 1 } else { 2 }]);
    if let Some(asked) = c.attrs.int(HIDDEN) {
        let asked = c.dims.constant(asked);
        c.require_eq(
            asked,
            h,
            if transposed { "hidden_size is axis 1 of R" } else { "hidden_size is the last axis of R" },
        )?;
    }
    let gates = c.dims.mul(g, h);
    let (two, three) = (n(c, 2), n(c, 3));
    let (biases, peepholes) = (c.dims.mul(two, gates), c.dims.mul(three, h));
    let state = if layer.batch_first { [b, d, h] } else { [d, b, h] };
    let (w, r) = if transposed { ([d, x[2], gates], [d, h, gates]) } else { ([d, gates, x[2]], [d, gates, h]) };
    let want: [&[_]; 7] = [&w, &r, &[d, biases], &[b], &state, &state, &[d, peepholes]];
    for (i, want) in want.into_iter().enumerate() {
        let (i, Some(s)) = (i + 1, c.shape(i + 1)) else { continue };
        let name = c.def.inputs[i].name;
        if s.len() != want.len() {
            let text = format!("{}: {name} has rank {}, not {}", c.def.name, s.len(), want.len());
            return Err(c.error(ErrorKind::Shape, text));
        }
        for (axis, (&a, &b)) in s.iter().zip(want).enumerate() {
            c.require_eq(a, b, &format!("axis {axis} of {name}"))?;
        }
    }
    c.set(0, dtype, if layer.batch_first { [b, t, d, h] } else { [t, d, b, h] });
    c.set(1, dtype, state);
    c.set(2, dtype, state);
    Ok(())
}

fn layer_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let layer = layer(c.def, c.attrs).map_err(|e| tensor::Diagnostic::new(ErrorKind::Unsupported, e))?;
    let (x, w, r) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let o = Operands { x, w, r, b: c.opt(3), lengths: c.opt(4), h: c.opt(5), c: c.opt(6), p: c.opt(7) };
    let mut all = Vec::from(recurrent(&o, &layer)?);
    all.truncate(c.n_outs);
    Ok(all)
}

/// What the steps of one direction need, besides the state.
pub(super) struct Step<'a> {
    pub layer: &'a Layer,
    pub activations: &'a [Activation],
    pub dtype: DType,
}

/// An operand in the type that the layer computes in: narrow floats would lose more of the state with each step.
fn operand(x: &mut Expansion, i: usize) -> Result<Option<Value>> {
    let Some(v) = x.input(i) else { return Ok(None) };
    Ok(Some(match x.tensor(v)?.0 {
        F16 | BF16 => x.cast(v, F32),
        _ => v,
    }))
}

fn needed(x: &mut Expansion, i: usize) -> Result<Value> {
    x.need(i)?;
    operand(x, i)?.ok_or_else(|| tensor::Diagnostic::new(ErrorKind::Malformed, format!("operand {i} is missing")))
}

/// Per direction: the input's part of all gates at once, then a loop that carries the state.
fn expand_layer(x: &mut Expansion) -> Result<Vec<Value>> {
    let layer = layer(x.def(), x.attrs()).map_err(|e| tensor::Diagnostic::new(ErrorKind::Unsupported, e))?;
    let of_model = x.need(0).and_then(|v| x.tensor(v))?.0;
    let dtype = if matches!(of_model, F16 | BF16) { F32 } else { of_model };
    let mut seq = needed(x, 0)?;
    if layer.batch_first {
        seq = x.transpose(seq, &[1, 0, 2]);
    }
    let (n_steps, batch) = (x.extent(seq, 0), x.extent(seq, 1));
    let r = x.need(2)?;
    let hidden = x.extent(r, 2);
    let running = match x.input(4) {
        Some(lengths) => {
            let t = x.count_to(n_steps);
            let (t, lengths) = (x.unsqueeze(t, &[1]), x.cast(lengths, I64));
            let running = x.op("Less", &[t, lengths], &[]);
            Some(x.unsqueeze(running, &[2]))
        }
        None => None,
    };
    let n_states = if matches!(layer.cell, Cell::Lstm { .. }) { 2 } else { 1 };
    let (mut ys, mut last) = (vec![], vec![vec![]; n_states]);
    for (d, &reverse) in layer.reverse.iter().enumerate() {
        let n = layer.cell.n_activations();
        let step = Step { layer: &layer, activations: &layer.activations[d * n..(d + 1) * n], dtype };
        let mut initial = vec![];
        for i in 5..5 + n_states {
            initial.push(match operand(x, i)? {
                Some(s) if layer.batch_first => direction(x, s, d, &layer, 1),
                Some(s) => direction(x, s, d, &layer, 0),
                None => {
                    let (zero, shape) = (x.scalar(dtype, 0.0), x.concat(&[batch, hidden], 0));
                    x.op("Expand", &[zero, shape], &[])
                }
            });
        }
        let steps = |x: &mut Expansion, v: Value| if reverse { x.reverse(v, 0) } else { v };
        let ordered = steps(x, seq);
        let running = running.map(|m| steps(x, m));
        let mut results = step.run(x, d, ordered, n_steps, running, &initial)?;
        let y = results.split_off(n_states);
        let y = steps(x, y[0]);
        ys.push(x.unsqueeze(y, &[1]));
        let axis = i64::from(layer.batch_first);
        for (list, v) in last.iter_mut().zip(results) {
            list.push(x.unsqueeze(v, &[axis]));
        }
    }
    let join = |x: &mut Expansion, all: &[Value], axis| if all.len() == 1 { all[0] } else { x.concat(all, axis) };
    let mut y = join(x, &ys, 1);
    if layer.batch_first {
        y = x.transpose(y, &[2, 0, 1, 3]);
    }
    let mut all = vec![y];
    for list in last {
        all.push(join(x, &list, i64::from(layer.batch_first)));
    }
    Ok(match of_model == dtype {
        true => all,
        false => all.into_iter().map(|v| x.cast(v, of_model)).collect(),
    })
}

/// The part of an operand that is one direction's.
pub(super) fn direction(x: &mut Expansion, v: Value, d: usize, layer: &Layer, axis: i64) -> Value {
    let v = match layer.reverse.len() {
        1 => v,
        n => parts(x, v, n, axis)[d],
    };
    x.squeeze(v, &[axis])
}

/// Equal parts along an axis.
pub(super) fn parts(x: &mut Expansion, v: Value, n: usize, axis: i64) -> Vec<Value> {
    let count = Attr::Int(i64::try_from(n).unwrap_or(i64::MAX));
    x.op_n("Split", &[v], &[("axis", Attr::Int(axis)), ("num_outputs", count)], n).to_vec()
}

impl Step<'_> {
    /// The loop of one direction: last states, then the states of all steps in the order of the loop.
    fn run(
        &self,
        x: &mut Expansion,
        d: usize,
        seq: Value,
        n_steps: Value,
        running: Option<Value>,
        initial: &[Value],
    ) -> Result<Vec<Value>> {
        let (cell, layer) = (self.layer.cell, self.layer);
        let n_gates = cell.n_gates();
        let (w, r) = (needed(x, 1)?, needed(x, 2)?);
        let [w, r] = [w, r].map(|v| {
            let v = direction(x, v, d, layer, 0);
            x.transpose(v, &[1, 0])
        });
        let mut gates = x.op("MatMul", &[seq, w], &[]);
        // What is added to the state's part of the hidden gate of a GRU before it is reset.
        let mut state_bias = None;
        if let Some(b) = operand(x, 3)? {
            let b = direction(x, b, d, layer, 0);
            let halves = parts(x, b, 2, 0);
            let mut of_state = halves[1];
            if let (Cell::Gru { linear_before_reset: true }, zrh) = (cell, parts(x, of_state, n_gates, 0)) {
                let zero = x.op("Sub", &[zrh[2], zrh[2]], &[]);
                of_state = x.concat(&[zrh[0], zrh[1], zero], 0);
                state_bias = Some(zrh[2]);
            }
            let b = x.op("Add", &[halves[0], of_state], &[]);
            gates = x.op("Add", &[gates, b], &[]);
        }
        let mut captured = vec![gates];
        let mut capture = |v: Option<Value>| {
            v.map(|v| {
                captured.push(v);
                captured.len() - 1
            })
        };
        // Gates that the state meets before any other is known, and the rest.
        let (r, r_hidden) = match cell {
            Cell::Gru { linear_before_reset: false } => {
                let zrh = parts(x, r, 3, 1);
                (x.concat(&zrh[..2], 1), Some(zrh[2]))
            }
            _ => (r, None),
        };
        let (r, r_hidden) = (capture(Some(r)), capture(r_hidden));
        let (state_bias, running) = (capture(state_bias), capture(running));
        let peepholes = operand(x, 7)?.map(|p| {
            let p = direction(x, p, d, layer, 0);
            parts(x, p, 3, 0).into_iter().map(|v| capture(Some(v))).collect::<Vec<_>>()
        });
        x.repeat(n_steps, initial, &captured, |x, t, state, captured| {
            let at = |i: Option<usize>| i.map(|i| captured[i]);
            let now = x.op("Gather", &[captured[0], t], &[]);
            let h = state[0];
            let part = match at(r) {
                Some(r) => x.op("MatMul", &[h, r], &[]),
                None => h,
            };
            let mut next = match cell {
                Cell::Rnn => {
                    let z = x.op("Add", &[now, part], &[]);
                    vec![self.activate(x, 0, z)]
                }
                Cell::Gru { .. } => {
                    let hidden = at(r_hidden).map_or(Hidden::Reset(at(state_bias)), Hidden::Product);
                    vec![self.gru(x, h, now, part, hidden)]
                }
                Cell::Lstm { input_forget } => {
                    let z = x.op("Add", &[now, part], &[]);
                    let p = peepholes.as_ref().map(|p| p.iter().filter_map(|&i| at(i)).collect::<Vec<_>>());
                    self.lstm(x, state[1], z, p.as_deref(), input_forget)
                }
            };
            let mut y = next[0];
            if let Some(running) = at(running) {
                let on = x.op("Gather", &[running, t], &[]);
                let zero = x.scalar(self.dtype, 0.0);
                y = x.op("Where", &[on, y, zero], &[]);
                for (new, &old) in next.iter_mut().zip(state) {
                    *new = x.op("Where", &[on, *new, old], &[]);
                }
            }
            Ok((next, vec![y]))
        })
    }

    fn gru(&self, x: &mut Expansion, h: Value, now: Value, part: Value, hidden: Hidden) -> Value {
        let of_input = parts(x, now, 3, 1);
        let n_parts = if matches!(hidden, Hidden::Product(_)) { 2 } else { 3 };
        let of_state = parts(x, part, n_parts, 1);
        let gate = |x: &mut Expansion, k: usize| {
            let s = x.op("Add", &[of_input[k], of_state[k]], &[]);
            self.activate(x, 0, s)
        };
        let (z, r) = (gate(x, 0), gate(x, 1));
        let s = match hidden {
            Hidden::Product(weights) => {
                let damped = x.op("Mul", &[r, h], &[]);
                x.op("MatMul", &[damped, weights], &[])
            }
            Hidden::Reset(bias) => {
                let s = bias.map_or(of_state[2], |b| x.op("Add", &[of_state[2], b], &[]));
                x.op("Mul", &[r, s], &[])
            }
        };
        let new = x.op("Add", &[of_input[2], s], &[]);
        let new = self.activate(x, 1, new);
        let one = x.scalar(self.dtype, 1.0);
        let rest = x.op("Sub", &[one, z], &[]);
        let (a, b) = (x.op("Mul", &[rest, new], &[]), x.op("Mul", &[z, h], &[]));
        x.op("Add", &[a, b], &[])
    }

    /// The next state and the next cell.
    pub fn lstm(
        &self,
        x: &mut Expansion,
        c: Value,
        z: Value,
        peepholes: Option<&[Value]>,
        coupled: bool,
    ) -> Vec<Value> {
        let iofc = parts(x, z, 4, 1);
        let gate = |x: &mut Expansion, k: usize, c: Value| {
            let z = match peepholes {
                Some(p) => {
                    let seen = x.op("Mul", &[p[k], c], &[]);
                    x.op("Add", &[iofc[k], seen], &[])
                }
                None => iofc[k],
            };
            self.activate(x, 0, z)
        };
        let input = gate(x, 0, c);
        let forget = match coupled {
            true => {
                let one = x.scalar(self.dtype, 1.0);
                x.op("Sub", &[one, input], &[])
            }
            false => gate(x, 2, c),
        };
        let new = self.activate(x, 1, iofc[3]);
        let (kept, added) = (x.op("Mul", &[forget, c], &[]), x.op("Mul", &[input, new], &[]));
        let next = x.op("Add", &[kept, added], &[]);
        let output = gate(x, 1, next);
        let shown = self.activate(x, 2, next);
        vec![x.op("Mul", &[output, shown], &[]), next]
    }

    fn activate(&self, x: &mut Expansion, which: usize, v: Value) -> Value {
        let d = self.dtype;
        let v = match self.layer.clip_of(which) {
            Some(c) => {
                let (low, high) = (x.scalar(d, -c), x.scalar(d, c));
                x.op("Clip", &[v, low, high], &[])
            }
            None => v,
        };
        let alpha = |a: f64| [("alpha", Attr::Float(crate::attrs::F32::new(a as f32)))];
        let scaled = |x: &mut Expansion, v: Value, by: f64| {
            let by = x.scalar(d, by);
            x.op("Mul", &[v, by], &[])
        };
        match self.activations[which] {
            Activation::Relu => x.op("Relu", &[v], &[]),
            Activation::Tanh => x.op("Tanh", &[v], &[]),
            Activation::Sigmoid => x.op("Sigmoid", &[v], &[]),
            Activation::Softsign => x.op("Softsign", &[v], &[]),
            Activation::Softplus => x.op("Softplus", &[v], &[]),
            Activation::Elu(a) => x.op("Elu", &[v], &alpha(a)),
            Activation::LeakyRelu(a) => x.op("LeakyRelu", &[v], &alpha(a)),
            Activation::HardSigmoid(a, b) => {
                let beta = ("beta", Attr::Float(crate::attrs::F32::new(b as f32)));
                x.op("HardSigmoid", &[v], &[alpha(a)[0].clone(), beta])
            }
            Activation::ThresholdedRelu(a) => {
                let (bound, zero) = (x.scalar(d, a), x.scalar(d, 0.0));
                let below = x.op("Less", &[v, bound], &[]);
                x.op("Where", &[below, zero, v], &[])
            }
            Activation::Affine(a, b) => {
                let (y, b) = (scaled(x, v, a), x.scalar(d, b));
                x.op("Add", &[y, b], &[])
            }
            Activation::ScaledTanh(a, b) => {
                let y = scaled(x, v, b);
                let y = x.op("Tanh", &[y], &[]);
                scaled(x, y, a)
            }
        }
    }
}

/// What the hidden gate of a GRU takes of the state.
enum Hidden {
    /// The product of these weights and the state times the reset gate.
    Product(Value),
    /// The reset gate times what comes of the state, with this bias.
    Reset(Option<Value>),
}

const NO_BF16: &[DType] = &[F32, F16, F64];
const INPUTS: &[Param] = &[
    req("X", "T"),
    req("W", "T"),
    req("R", "T"),
    opt("B", "T"),
    opt("sequence_lens", "T1"),
    opt("initial_h", "T"),
    opt("initial_c", "T"),
    opt("P", "T"),
];
pub(super) const OUTPUTS: &[Param] = &[opt("Y", "T"), opt("Y_h", "T"), opt("Y_c", "T")];
pub(super) const COMMON: [AttrDef; 6] = [
    attr("hidden_size", AttrKind::IntOpt),
    attr("direction", AttrKind::Str("forward")),
    attr("activations", AttrKind::Strs),
    attr("activation_alpha", AttrKind::Floats),
    attr("activation_beta", AttrKind::Floats),
    attr("clip", AttrKind::FloatOpt),
];
const LAYOUT: AttrDef = attr("layout", AttrKind::Int(0));

/// The attributes of all layers, then these. The last one is `layout`, which came with version 14.
const fn attrs<const N: usize>(own: &[AttrDef]) -> [AttrDef; N] {
    let mut all = [LAYOUT; N];
    let mut i = 0;
    while i < COMMON.len() + own.len() {
        all[i] = if i < COMMON.len() { COMMON[i] } else { own[i - COMMON.len()] };
        i += 1;
    }
    all
}
static RNN_ATTRS: [AttrDef; 7] = attrs(&[]);
static GRU_ATTRS: [AttrDef; 8] = attrs(&[attr("linear_before_reset", AttrKind::Int(0))]);
static LSTM_ATTRS: [AttrDef; 8] = attrs(&[attr("input_forget", AttrKind::Int(0))]);

const RNN_CASES: &[&str] = &[
    "[3,2,4];[1,5,4];[1,5,5] outs=2 hidden_size=5",
    "[3,2,4];[2,5,4];[2,5,5];[2,10];i32[2]{3,1};[2,2,5] outs=2 direction=bidirectional activations=[Relu,Elu] activation_alpha=[0.5]",
    "[3,2,4];[1,5,4];[1,5,5];_;i32[2]{0,2} outs=2 direction=reverse activations=[HardSigmoid] clip=0.5",
    "[3,2,4];[2,5,4];[2,5,5] outs=2 direction=bidirectional activations=[ScaledTanh,ThresholdedRelu] activation_alpha=[0.5,0.25] activation_beta=[2]",
    "[3,2,4];[2,5,4];[2,5,5] outs=2 direction=bidirectional activations=[Softsign,Softplus]",
];
const GRU_CASES: &[&str] = &[
    "[3,2,4];[1,15,4];[1,15,5] outs=2",
    "[3,2,4];[2,15,4];[2,15,5];[2,30];i32[2]{3,1};[2,2,5] outs=2 direction=bidirectional linear_before_reset=1",
    "[3,2,4];[1,15,4];[1,15,5];[1,30];i32[2]{1,2} outs=2 direction=reverse activations=[LeakyRelu,Affine] activation_alpha=[0.1,0.3] activation_beta=[0.2]",
    "[3,2,4];[1,15,4];[1,15,5];_;_;[1,2,5] outs=2 linear_before_reset=1 clip=0.7",
];
const LSTM_CASES: &[&str] = &[
    "[3,2,4];[1,20,4];[1,20,5] outs=3",
    "[3,2,4];[2,20,4];[2,20,5];[2,40];i32[2]{3,1};[2,2,5];[2,2,5];[2,15] outs=3 direction=bidirectional",
    "[3,2,4];[1,20,4];[1,20,5];[1,40];_;_;[1,2,5];[1,15] outs=3 input_forget=1 clip=0.6 direction=reverse",
    "[3,2,4];[1,20,4];[1,20,5] outs=1 activations=[HardSigmoid,Softsign,Relu] activation_alpha=[0.3]",
];

const LAYER: OpDef = OpDef {
    since: 7,
    until: 13,
    dtypes: &[("T", NO_BF16), ("T1", &[I32])],
    infer: infer_layer,
    reference: Some(layer_ref),
    lower: &[Candidate::Expand(expand_layer)],
    tolerance: Tol::Rel(2e-5),
    ..ROW
};
const RNN: OpDef = OpDef {
    name: "RNN",
    inputs: INPUTS.split_at(6).0,
    outputs: OUTPUTS.split_at(2).0,
    attrs: RNN_ATTRS.split_at(6).0,
    cases: RNN_CASES,
    ..LAYER
};
const GRU: OpDef = OpDef {
    name: "GRU",
    inputs: INPUTS.split_at(6).0,
    outputs: OUTPUTS.split_at(2).0,
    attrs: GRU_ATTRS.split_at(7).0,
    cases: GRU_CASES,
    ..LAYER
};
const LSTM: OpDef = OpDef {
    name: "LSTM",
    inputs: INPUTS,
    outputs: OUTPUTS,
    attrs: LSTM_ATTRS.split_at(7).0,
    cases: LSTM_CASES,
    ..LAYER
};
const RNN_14: OpDef = OpDef {
    since: 14,
    until: 21,
    attrs: &RNN_ATTRS,
    cases: &[
        "[2,3,4];[2,5,4];[2,5,5];[2,10];i32[2]{3,1};[2,2,5] outs=2 direction=bidirectional layout=1",
        RNN_CASES[0],
    ],
    ..RNN
};
const GRU_14: OpDef = OpDef {
    since: 14,
    until: 21,
    attrs: &GRU_ATTRS,
    cases: &[
        "[2,3,4];[2,15,4];[2,15,5];[2,30];i32[2]{3,1};[2,2,5] outs=2 direction=bidirectional layout=1",
        GRU_CASES[1],
    ],
    ..GRU
};
const LSTM_14: OpDef = OpDef {
    since: 14,
    until: 21,
    attrs: &LSTM_ATTRS,
    cases: &[
        "[2,3,4];[2,20,4];[2,20,5];_;i32[2]{3,1};[2,2,5];[2,2,5] outs=3 direction=bidirectional layout=1",
        LSTM_CASES[1],
    ],
    ..LSTM
};
const WITH_BF16: &[(&str, &[DType])] = &[("T", FLOATS), ("T1", &[I32])];

/// The rows. Activations of gates are applied to clipped values. From 14 on the batch may be the first axis, from 22 on there is bf16.
pub static ROWS: &[OpDef] = &[
    // h' = f(x·Wᵀ + h·Rᵀ + Wb + Rb)
    RNN,
    RNN_14,
    OpDef { since: 22, until: i64::MAX, dtypes: WITH_BF16, ..RNN_14 },
    // z, r = f(x·Wᵀ + h·Rᵀ + Wb + Rb); ĥ = g(x·Whᵀ + (r ⊙ h)·Rhᵀ + Rbh + Wbh); h' = (1 - z) ⊙ ĥ + z ⊙ h
    GRU,
    GRU_14,
    OpDef { since: 22, until: i64::MAX, dtypes: WITH_BF16, ..GRU_14 },
    // i, o, f = f(x·Wᵀ + h·Rᵀ + P ⊙ c + Wb + Rb); ĉ = g(x·Wcᵀ + h·Rcᵀ + Wbc + Rbc); c' = f ⊙ c + i ⊙ ĉ; h' = o ⊙ h(c')
    LSTM,
    LSTM_14,
    OpDef { since: 22, until: i64::MAX, dtypes: WITH_BF16, ..LSTM_14 },
];
