//! The LSTM layer with quantized weights: integer products of the whole input, and of the state in a loop over the steps.

use super::super::recurrence::{COMMON, OUTPUTS, Step, direction, infer_weights, layer, parts};
use super::super::row::ROW;
use super::MICROSOFT;
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use reference::qlstm::{Operands, Weights, quantized_lstm};
use reference::recurrence::{Cell, Layer};
use tensor::DType::{F32, I8, I32, I64, U8};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// Operands: the weights of input and state, and where scale and zero point of each begin.
const W: (usize, usize) = (1, 8);
const R: (usize, usize) = (2, 10);
const LENGTHS: usize = 4;
const STATES: [usize; 2] = [5, 6];

fn infer_qlstm(c: &mut InferCtx) -> Result<()> {
    infer_weights(c, true)?;
    for (weights, scale) in [W, R] {
        let Some(w) = c.shape(weights) else { continue };
        for i in [scale, scale + 1] {
            let Some(s) = c.shape(i) else { continue };
            let what = format!("{} is [num_directions] or [num_directions, 4*hidden_size]", c.def.inputs[i].name);
            match *s.as_slice() {
                [d] => c.require_eq(d, w[0], &what)?,
                [d, n] => {
                    c.require_eq(d, w[0], &what)?;
                    c.require_eq(n, w[2], &what)?;
                }
                _ => return Err(c.error(ErrorKind::Shape, format!("DynamicQuantizeLSTM: {what}"))),
            }
        }
    }
    Ok(())
}

fn layer_of(def: &OpDef, attrs: &crate::attrs::Attrs) -> Result<Layer> {
    layer(def, attrs).map_err(|e| Diagnostic::new(ErrorKind::Unsupported, e))
}

fn qlstm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let weights = |(q, scale): (usize, usize)| -> Result<Weights> {
        Ok(Weights { q: c.input(q)?, scale: c.input(scale)?, zero: c.input(scale + 1)? })
    };
    let o = Operands {
        x: c.input(0)?,
        w: weights(W)?,
        r: weights(R)?,
        b: c.opt(3),
        lengths: c.opt(LENGTHS),
        h: c.opt(STATES[0]),
        c: c.opt(STATES[1]),
        p: c.opt(7),
    };
    let mut all = Vec::from(quantized_lstm(&o, &layer_of(c.def, c.attrs)?)?);
    all.truncate(c.n_outs);
    Ok(all)
}

/// Rows as integers with one scale and one zero point for all of them.
struct Rows {
    q: Value,
    scale: Value,
    zero: Value,
}

impl Rows {
    fn of(x: &mut Expansion, rows: Value) -> Rows {
        let r = x.op_n("DynamicQuantizeLinear", &[rows], &[], 3);
        Rows { q: r[0], scale: r[1], zero: r[2] }
    }
    /// Their product with integer weights `[k, n]`, whose scale and zero point are one number or one for each column.
    fn product(&self, x: &mut Expansion, [w, scale, zero]: [Value; 3]) -> Value {
        let sum = x.op("MatMulInteger", &[self.q, w, self.zero, zero], &[]);
        let sum = x.cast(sum, F32);
        let scale = x.op("Mul", &[self.scale, scale], &[]);
        x.op("Mul", &[sum, scale], &[])
    }
}

/// Which steps count for which sequences.
#[derive(Clone, Copy)]
struct Lengths {
    lengths: Value,
    /// Whether a sequence has a step `[t, b, 1]`.
    running: Value,
}

/// The sequences, with zeros where none has a step, so that what is there does not stretch the range; and their lengths.
fn sequences(x: &mut Expansion, n_steps: Value) -> Result<(Value, Option<Lengths>)> {
    let seq = x.need(0)?;
    let Some(lengths) = x.input(LENGTHS) else { return Ok((seq, None)) };
    let lengths = x.cast(lengths, I64);
    let lengths = x.op("Min", &[lengths, n_steps], &[]);
    let t = x.count_to(n_steps);
    let t = x.unsqueeze(t, &[1]);
    let running = x.op("Less", &[t, lengths], &[]);
    let running = x.unsqueeze(running, &[2]);
    let first = x.ints(&[0]);
    let longest = x.op("ReduceMax", &[lengths, first], &[]);
    let some = x.op("Less", &[t, longest], &[]);
    let (some, zero) = (x.unsqueeze(some, &[2]), x.scalar(F32, 0.0));
    Ok((x.op("Where", &[some, seq, zero], &[]), Some(Lengths { lengths, running })))
}

/// Steps in the order in which a direction goes through them: each sequence from its end, without what is behind it.
fn ordered(x: &mut Expansion, v: Value, reverse: bool, lengths: Option<Lengths>) -> Value {
    match lengths {
        _ if !reverse => v,
        None => x.reverse(v, 0),
        Some(l) => {
            x.op("ReverseSequence", &[v, l.lengths], &[("time_axis", Attr::Int(0)), ("batch_axis", Attr::Int(1))])
        }
    }
}

/// The weights of a direction with their scale and zero point.
fn weights(x: &mut Expansion, (q, scale): (usize, usize), d: usize, layer: &Layer) -> Result<[Value; 3]> {
    let all = [x.need(q)?, x.need(scale)?, x.need(scale + 1)?];
    Ok(all.map(|v| direction(x, v, d, layer, 0)))
}

fn expand_qlstm(x: &mut Expansion) -> Result<Vec<Value>> {
    let layer = layer_of(x.def(), x.attrs())?;
    let Cell::Lstm { input_forget } = layer.cell else {
        return Err(Diagnostic::new(ErrorKind::Internal, "DynamicQuantizeLSTM is no LSTM"));
    };
    let (input, r) = (x.need(0)?, x.need(R.0)?);
    let (n_steps, batch, hidden) = (x.extent(input, 0), x.extent(input, 1), x.extent(r, 1));
    let (seq, lengths) = sequences(x, n_steps)?;
    let rows = Rows::of(x, seq);
    let (mut ys, mut last) = (vec![], [vec![], vec![]]);
    for (d, &reverse) in layer.reverse.iter().enumerate() {
        let step = Step { layer: &layer, activations: &layer.activations[d * 3..d * 3 + 3], dtype: F32 };
        let mut initial = vec![];
        for i in STATES {
            initial.push(match x.input(i) {
                Some(s) => direction(x, s, d, &layer, 0),
                None => {
                    let (zero, shape) = (x.scalar(F32, 0.0), x.concat(&[batch, hidden], 0));
                    x.op("Expand", &[zero, shape], &[])
                }
            });
        }
        let w = weights(x, W, d, &layer)?;
        let mut gates = rows.product(x, w);
        if let Some(b) = x.input(3) {
            let b = direction(x, b, d, &layer, 0);
            let halves = parts(x, b, 2, 0);
            let b = x.op("Add", &[halves[0], halves[1]], &[]);
            gates = x.op("Add", &[gates, b], &[]);
        }
        let gates = ordered(x, gates, reverse, lengths);
        let mut captured = vec![gates];
        captured.extend(weights(x, R, d, &layer)?);
        captured.extend(lengths.map(|l| l.running));
        let n_shared = captured.len();
        if let Some(p) = x.input(7) {
            let p = direction(x, p, d, &layer, 0);
            captured.extend(parts(x, p, 3, 0));
        }
        let mut results = x.repeat(n_steps, &initial, &captured, |x, t, state, captured| {
            let on = lengths.map(|_| x.op("Gather", &[captured[4], t], &[]));
            let zero = x.scalar(F32, 0.0);
            let h = on.map_or(state[0], |on| x.op("Where", &[on, state[0], zero], &[]));
            let now = x.op("Gather", &[captured[0], t], &[]);
            let part = Rows::of(x, h).product(x, [captured[1], captured[2], captured[3]]);
            let z = x.op("Add", &[now, part], &[]);
            let peepholes = Some(&captured[n_shared..]).filter(|p| !p.is_empty());
            let mut next = step.lstm(x, state[1], z, peepholes, input_forget);
            let mut y = next[0];
            if let Some(on) = on {
                y = x.op("Where", &[on, y, zero], &[]);
                for (new, &old) in next.iter_mut().zip(state) {
                    *new = x.op("Where", &[on, *new, old], &[]);
                }
            }
            Ok((next, vec![y]))
        })?;
        let y = results.split_off(2);
        let y = ordered(x, y[0], reverse, lengths);
        ys.push(x.unsqueeze(y, &[1]));
        for (list, v) in last.iter_mut().zip(results) {
            list.push(x.unsqueeze(v, &[0]));
        }
    }
    let mut join = |all: &[Value], axis| if all.len() == 1 { all[0] } else { x.concat(all, axis) };
    Ok(vec![join(&ys, 1), join(&last[0], 0), join(&last[1], 0)])
}

/// The rows.
pub static ROWS: &[OpDef] = &[
    // As LSTM, with products of integers: X by its range over all steps, the state by that of each step
    OpDef {
        name: "DynamicQuantizeLSTM",
        domain: MICROSOFT,
        inputs: &[
            req("X", "T"),
            req("W", "T2"),
            req("R", "T2"),
            opt("B", "T"),
            opt("sequence_lens", "T1"),
            opt("initial_h", "T"),
            opt("initial_c", "T"),
            opt("P", "T"),
            req("W_scale", "T"),
            req("W_zero_point", "T2"),
            req("R_scale", "T"),
            req("R_zero_point", "T2"),
        ],
        outputs: OUTPUTS,
        attrs: &[
            COMMON[0],
            COMMON[1],
            COMMON[2],
            COMMON[3],
            COMMON[4],
            COMMON[5],
            attr("input_forget", AttrKind::Int(0)),
        ],
        dtypes: &[("T", &[F32]), ("T1", &[I32]), ("T2", &[U8, I8])],
        infer: infer_qlstm,
        reference: Some(qlstm_ref),
        lower: &[Expand(expand_qlstm)],
        tolerance: Tol::Rel(2e-5),
        cases: &[
            "[3,2,4];[1,4,20];[1,5,20];_;_;_;_;_;[1]{0.05};[1]{3};[1]{0.1};[1]{4} outs=3",
            "[3,2,4];[1,4,20];[1,5,20];_;_;_;_;_;[1]{0.05};[1]{3};[1]{0.1};[1]{4} outs=3 hidden_size=5",
            "[3,2,4];[2,4,20];[2,5,20];[2,40];i32[2]{3,1};[2,2,5];[2,2,5];[2,15];[2]{0.05,0.1};[2]{3,4};[2,20]{0.1,0.05,0.02};[2,20]{4} outs=3 direction=bidirectional",
            "[4,3,4];[1,4,20];[1,5,20];_;i32[3]{2,0,3};_;_;_;[1,20]{0.05,0.1};[1,20]{3};[1]{0.1};[1]{4} outs=3 direction=reverse input_forget=1 clip=0.6",
            "[3,2,4];[1,4,20];[1,5,20];[1,40];_;_;[1,2,5];[1,15];[1]{0.05};[1]{3};[1]{0.1};[1]{4} outs=1 activations=[HardSigmoid,Softsign,Relu] activation_alpha=[0.3] direction=reverse",
        ],
        ..ROW
    },
];
