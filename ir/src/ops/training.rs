//! Steps of optimizers (ai.onnx.preview.training): of several tensors at once, each with its gradient and what is kept with it.

use super::row::ROW;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrKind, InferCtx, OpDef, Param, RefCtx, Tol, attr, req, var};
use reference::data::{f64s, from_f64s};
use reference::movement::single;
use reference::training::{self, Adam};
use tensor::DType::{self, F32, F64, I64};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

const DOMAIN: &str = "ai.onnx.preview.training";
const INPUTS: &[Param] = &[req("R", "T1"), req("T", "T2"), var("inputs", "T3")];
const TYPES: &[(&str, &[DType])] = &[("T1", &[F32, F64]), ("T2", &[I64]), ("T3", &[F32, F64])];

const STEP: OpDef = OpDef {
    domain: DOMAIN,
    inputs: INPUTS,
    outputs: &[var("outputs", "T3")],
    dtypes: TYPES,
    tolerance: Tol::Rel(1e-5),
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // V' = alpha V + beta (norm X + G), X' = X - R V'; nesterov: X - R (norm X + G + alpha V'). The first step has beta = 1
    OpDef {
        name: "Momentum",
        attrs: &[
            attr("alpha", AttrKind::Float(0.0)),
            attr("beta", AttrKind::Float(0.0)),
            attr("mode", AttrKind::Str("standard")),
            attr("norm_coefficient", AttrKind::Float(0.0)),
        ],
        infer: |c| {
            let mode = c.attrs.str(2).unwrap_or("standard");
            if !["standard", "nesterov"].contains(&mode) {
                let text = format!("Momentum: mode={mode:?} is not \"standard\" or \"nesterov\"");
                return Err(c.error(ErrorKind::Unsupported, text));
            }
            infer_step(c, 3)
        },
        reference: Some(|c| {
            let (rate, t) = (number(c, 0)?, single(c.input(1)?, "T")?.view().i64_at(0));
            let beta = if t > 0 { float(c, 1) } else { 1.0 };
            let list = [float(c, 0), beta, float(c, 3)];
            steps(c, 3, |v| training::momentum(rate, list, c.attrs.str(2) == Some("nesterov"), v[0], v[1], v[2]).into())
        }),
        lower: &[Expand(expand_momentum)],
        cases: &[
            "[];i64[]{0};[3];[3];[3] alpha=0.9 beta=0.5 outs=2",
            "[1];i64[1]{3};[2];[4,1];[2];[4,1];[2];[4,1] alpha=0.9 beta=0.5 norm_coefficient=0.1 outs=4",
            "[];i64[]{2};[3];[3];[3] alpha=0.9 beta=0.5 norm_coefficient=0.1 mode=nesterov outs=2",
        ],
        ..STEP
    },
    // H' = H + (norm X + G)², X' = X - R / (1 + T decay) (norm X + G) / (√H' + epsilon)
    OpDef {
        name: "Adagrad",
        attrs: &[
            attr("decay_factor", AttrKind::Float(0.0)),
            attr("epsilon", AttrKind::Float(1e-6)),
            attr("norm_coefficient", AttrKind::Float(0.0)),
        ],
        infer: |c| infer_step(c, 3),
        reference: Some(|c| {
            let t = single(c.input(1)?, "T")?.view().i64_at(0) as f64;
            let rate = number(c, 0)? / (1.0 + t * float(c, 0));
            steps(c, 3, |v| training::adagrad(rate, float(c, 1), float(c, 2), v[0], v[1], v[2]).into())
        }),
        lower: &[Expand(expand_adagrad)],
        cases: &[
            "[];i64[]{0};[3];[3];[3]{0.5,1,2} outs=2",
            "[1];i64[]{3};[2];[4,1];[2];[4,1];[2]{0.5,2};[4,1]{1,3} decay_factor=0.5 epsilon=0.1 norm_coefficient=0.1 outs=4",
        ],
        ..STEP
    },
    // G' = norm X + G, V' = alpha V + (1 - alpha) G', H' = beta H + (1 - beta) G'²,
    // X' = (1 - norm_post) (X - R √(1 - betaᵀ) / (1 - alphaᵀ) V' / (√H' + epsilon))
    OpDef {
        name: "Adam",
        attrs: &[
            attr("alpha", AttrKind::Float(0.9)),
            attr("beta", AttrKind::Float(0.999)),
            attr("epsilon", AttrKind::Float(1e-6)),
            attr("norm_coefficient", AttrKind::Float(0.0)),
            attr("norm_coefficient_post", AttrKind::Float(0.0)),
        ],
        infer: |c| infer_step(c, 4),
        reference: Some(|c| {
            let (mut rate, t) = (number(c, 0)?, single(c.input(1)?, "T")?.view().i64_at(0));
            let [alpha, beta, epsilon, norm, norm_post] = [0, 1, 2, 3, 4].map(|i| float(c, i));
            if t > 0 {
                rate *= (1.0 - beta.powf(t as f64)).sqrt() / (1.0 - alpha.powf(t as f64));
            }
            let p = Adam { rate, keep: [alpha, beta], epsilon, norm, norm_post };
            steps(c, 4, |v| training::adam(p, v[0], v[1], v[2], v[3]).into())
        }),
        lower: &[Expand(expand_adam)],
        cases: &[
            "[];i64[]{0};[3];[3];[3];[3]{0.5,1,2} outs=3",
            "[1];i64[]{3};[2];[4,1];[2];[4,1];[2];[4,1];[2]{0.5,2};[4,1]{1,3} epsilon=0.1 norm_coefficient=0.1 norm_coefficient_post=0.2 outs=6",
        ],
        ..STEP
    },
];

/// Tensors of one kind, of which there are `kinds`: weights, gradients, what is kept.
fn per_kind(n_ins: usize, kinds: usize) -> Option<usize> {
    let n = n_ins.checked_sub(2)?;
    (n > 0 && n % kinds == 0).then_some(n / kinds)
}

fn infer_step(c: &mut InferCtx, kinds: usize) -> Result<()> {
    c.require_single(0, "R")?;
    c.require_single(1, "T")?;
    let Some(n) = per_kind(c.ins.len(), kinds).filter(|n| c.n_outs <= n * (kinds - 1)) else {
        let text = format!("{}: R, T and then {kinds} tensors for each that is optimized", c.def.name);
        return Err(c.error(ErrorKind::Shape, text));
    };
    for i in 0..n {
        for kind in 1..kinds {
            let (at, of) = (2 + kind * n + i, 2 + i);
            if c.dtype(at)? != c.dtype(of)? {
                return Err(c.error(ErrorKind::Type, format!("{}: operands {of} and {at} have one type", c.def.name)));
            }
            if let (Some(a), Some(b)) = (c.shape(of), c.shape(at)) {
                if a.len() != b.len() {
                    let text = format!("{}: operands {of} and {at} have one shape", c.def.name);
                    return Err(c.error(ErrorKind::Shape, text));
                }
                a.iter().zip(&b).try_for_each(|(&a, &b)| c.require_eq(a, b, "tensors that go together"))?;
            }
        }
        // Results are new weights and then what is kept; gradients have none.
        for kind in 0..kinds - 1 {
            c.set_type(kind * n + i, c.ty(2 + i).clone());
        }
    }
    Ok(())
}

fn float(c: &RefCtx, slot: usize) -> f64 {
    c.attrs.float(slot).unwrap_or(0.0).into()
}

fn number(c: &RefCtx, i: usize) -> Result<f64> {
    Ok(single(c.input(i)?, "R")?.view().f64_at(0))
}

/// One step of each tensor.
fn steps(c: &RefCtx, kinds: usize, f: impl Fn(&[&[f64]]) -> Vec<Vec<f64>>) -> Result<Vec<Tensor>> {
    let n = per_kind(c.ins.len(), kinds);
    let n = n.ok_or_else(|| Diagnostic::new(ErrorKind::Shape, "a step of an optimizer lacks operands"))?;
    let mut out: Vec<Option<Tensor>> = vec![None; n * (kinds - 1)];
    for i in 0..n {
        let of: Vec<&Tensor> = (0..kinds).map(|k| c.input(2 + k * n + i)).collect::<Result<_>>()?;
        if of.iter().any(|t| t.shape() != of[0].shape()) {
            return Err(Diagnostic::new(ErrorKind::Shape, "tensors of one step differ in shape"));
        }
        let values: Vec<Vec<f64>> = of.iter().map(|t| f64s(t)).collect();
        let all: Vec<&[f64]> = values.iter().map(Vec::as_slice).collect();
        for (kind, v) in f(&all).iter().enumerate() {
            out[kind * n + i] = Some(from_f64s(of[0].dtype(), of[0].shape(), v));
        }
    }
    Ok(out.into_iter().flatten().take(c.n_outs).collect())
}

/// Adds nodes for one tensor in its type.
struct Step<'a, 'm> {
    x: &'a mut Expansion<'m>,
    dtype: DType,
}

impl Step<'_, '_> {
    fn op(&mut self, name: &str, a: Value, b: Value) -> Value {
        self.x.op(name, &[a, b], &[])
    }
    fn num(&mut self, v: f64) -> Value {
        self.x.scalar(self.dtype, v)
    }
    fn times(&mut self, a: Value, by: f64) -> Value {
        let by = self.num(by);
        self.op("Mul", a, by)
    }
    /// Operand `i`, one number, in this type.
    fn number(&mut self, i: usize) -> Result<Value> {
        let v = self.x.need(i)?;
        let v = self.x.cast(v, self.dtype);
        Ok(self.x.reshape(v, &[]))
    }
    /// `1` where T is above 0, else `0`: as a bool.
    fn later(&mut self) -> Result<Value> {
        let t = self.x.need(1)?;
        let (t, zero) = (self.x.reshape(t, &[]), self.x.scalar(I64, 0.0));
        Ok(self.x.op("Greater", &[t, zero], &[]))
    }
    /// `a · share + b · other`.
    fn blend(&mut self, a: Value, share: f64, b: Value, other: f64) -> Value {
        let (a, b) = (self.times(a, share), self.times(b, other));
        self.op("Add", a, b)
    }
    /// The gradient with a share of the weight.
    fn gradient(&mut self, x: Value, g: Value, norm: f64) -> Value {
        let x = self.times(x, norm);
        self.op("Add", x, g)
    }
    /// `a / (√h + epsilon)`.
    fn scaled(&mut self, a: Value, h: Value, epsilon: f64) -> Value {
        let (root, epsilon) = (self.x.op("Sqrt", &[h], &[]), self.num(epsilon));
        let root = self.op("Add", root, epsilon);
        self.op("Div", a, root)
    }
    /// `x - rate · by`.
    fn down(&mut self, x: Value, rate: Value, by: Value) -> Value {
        let by = self.op("Mul", rate, by);
        self.op("Sub", x, by)
    }
}

/// The tensors of each step to its new values, in the order of the results.
fn each(x: &mut Expansion, kinds: usize, f: impl Fn(&mut Step, &[Value]) -> Result<Vec<Value>>) -> Result<Vec<Value>> {
    let n = per_kind(x.node().ins.len(), kinds).unwrap_or(0);
    let mut out = vec![vec![]; kinds - 1];
    for i in 0..n {
        let of: Vec<Value> = (0..kinds).map(|k| x.need(2 + k * n + i)).collect::<Result<_>>()?;
        let dtype = x.tensor(of[0])?.0;
        let new = f(&mut Step { x: &mut *x, dtype }, &of)?;
        out.iter_mut().zip(new).for_each(|(o, v)| o.push(v));
    }
    Ok(out.concat())
}

fn attribute(s: &Step, slot: usize) -> f64 {
    s.x.attrs().float(slot).unwrap_or(0.0).into()
}

fn expand_momentum(x: &mut Expansion) -> Result<Vec<Value>> {
    each(x, 3, |s, of| {
        let [alpha, beta, norm] = [0, 1, 3].map(|i| attribute(s, i));
        let rate = s.number(0)?;
        let g = s.gradient(of[0], of[1], norm);
        let (later, first, beta) = (s.later()?, s.num(1.0), s.num(beta));
        let beta = s.x.op("Where", &[later, beta, first], &[]);
        let (old, new) = (s.times(of[2], alpha), s.op("Mul", g, beta));
        let v = s.op("Add", old, new);
        let by = if s.x.attrs().str(2) == Some("nesterov") {
            let ahead = s.times(v, alpha);
            s.op("Add", g, ahead)
        } else {
            v
        };
        Ok(vec![s.down(of[0], rate, by), v])
    })
}

fn expand_adagrad(x: &mut Expansion) -> Result<Vec<Value>> {
    each(x, 3, |s, of| {
        let [decay, epsilon, norm] = [0, 1, 2].map(|i| attribute(s, i));
        let (rate, t, one) = (s.number(0)?, s.number(1)?, s.num(1.0));
        let t = s.times(t, decay);
        let t = s.op("Add", t, one);
        let rate = s.op("Div", rate, t);
        let g = s.gradient(of[0], of[1], norm);
        let square = s.op("Mul", g, g);
        let h = s.op("Add", of[2], square);
        let by = s.scaled(g, h, epsilon);
        Ok(vec![s.down(of[0], rate, by), h])
    })
}

fn expand_adam(x: &mut Expansion) -> Result<Vec<Value>> {
    each(x, 4, |s, of| {
        let [alpha, beta, epsilon, norm, post] = [0, 1, 2, 3, 4].map(|i| attribute(s, i));
        let g = s.gradient(of[0], of[1], norm);
        let v = s.blend(of[2], alpha, g, 1.0 - alpha);
        let square = s.op("Mul", g, g);
        let h = s.blend(of[3], beta, square, 1.0 - beta);
        // What is left of a start at 0: in f64, as 1 - betaᵀ is small.
        let mut wide = Step { x: &mut *s.x, dtype: F64 };
        let (rate, t) = (wide.number(0)?, wide.number(1)?);
        let left = |s: &mut Step, base: f64| {
            let (base, one) = (s.num(base), s.num(1.0));
            let power = s.op("Pow", base, t);
            s.op("Sub", one, power)
        };
        let (of_h, of_v) = (left(&mut wide, beta), left(&mut wide, alpha));
        let of_h = wide.x.op("Sqrt", &[of_h], &[]);
        let corrected = wide.op("Mul", rate, of_h);
        let corrected = wide.op("Div", corrected, of_v);
        let later = wide.later()?;
        let rate = wide.x.op("Where", &[later, corrected, rate], &[]);
        let rate = s.x.cast(rate, s.dtype);
        let by = s.scaled(v, h, epsilon);
        let new = s.down(of[0], rate, by);
        Ok(vec![s.times(new, 1.0 - post), v, h])
    })
}
