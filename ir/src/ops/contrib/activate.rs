//! Activations that fused operators name: what they compute, and the nodes that they are.

use super::float;
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use reference::activation as a;
use tensor::{DType, Tensor};

/// Names, with the parameters of each: their names, and their values where none are given.
type Known = (&'static str, &'static [(&'static str, Option<f32>)]);
const KNOWN: &[Known] = &[
    ("", &[]),
    ("Relu", &[]),
    ("Silu", &[]),
    ("Tanh", &[]),
    ("Sigmoid", &[]),
    ("Softplus", &[]),
    ("Softsign", &[]),
    ("LeakyRelu", &[("alpha", Some(0.01))]),
    ("Elu", &[("alpha", Some(1.0))]),
    ("ThresholdedRelu", &[("alpha", Some(1.0))]),
    ("HardSigmoid", &[("alpha", Some(0.2)), ("beta", Some(0.5))]),
    ("Selu", &[("alpha", Some(1.673_263_2)), ("gamma", Some(1.050_701))]),
    ("Clip", &[("min", None), ("max", None)]),
    ("ScaledTanh", &[("alpha", None), ("beta", None)]),
    ("ParametricSoftplus", &[("alpha", None), ("beta", None)]),
];

/// An activation with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Act {
    known: &'static Known,
    params: [f32; 2],
}

impl Act {
    /// The activation of this name; `given` says what the node gives for a parameter, by its name and its place.
    ///
    /// # Errors
    /// What is not known or missing, as a sentence.
    pub fn named(name: &str, given: impl Fn(&str, usize) -> Option<f32>) -> Result<Act, String> {
        let Some(known) = KNOWN.iter().find(|k| k.0 == name) else {
            let names: Vec<&str> = KNOWN.iter().map(|k| k.0).filter(|n| !n.is_empty()).collect();
            return Err(format!("activation {name:?} is none of {}", names.join(", ")));
        };
        let mut params = [0.0; 2];
        for (i, (param, value)) in known.1.iter().enumerate() {
            let value = given(param, i).or(*value);
            params[i] = value.ok_or_else(|| format!("activation {name:?} needs its parameter {param}"))?;
        }
        Ok(Act { known, params })
    }
    /// The attributes that it is in our fused operators, where they have it: what they compute is rounded once.
    pub fn fused(self) -> Option<Vec<(&'static str, Attr)>> {
        let name = match self.known.0 {
            "" => return Some(vec![]),
            "Relu" => "relu",
            "Silu" => "silu",
            "Tanh" => "tanh",
            "Sigmoid" => "sigmoid",
            "Clip" => "clip",
            "HardSigmoid" => "hard_sigmoid",
            _ => return None,
        };
        let [lo, hi] = self.params.map(float);
        Some(vec![("activation", Attr::Str(name.into())), ("act_lo", lo), ("act_hi", hi)])
    }
    /// How many parameters it takes.
    pub fn n_params(self) -> usize {
        self.known.1.len()
    }
    /// Its values.
    pub fn apply(self, x: &Tensor) -> Tensor {
        let [p, q] = self.params.map(f64::from);
        match self.known.0 {
            "Relu" => reference::elementwise::map_f64(x, |v| reference::math::max(v, 0.0)),
            "Silu" => a::swish(x, 1.0),
            "Tanh" => a::tanh(x),
            "Sigmoid" => a::sigmoid(x),
            "Softplus" => a::softplus(x),
            "Softsign" => a::softsign(x),
            "LeakyRelu" => a::leaky_relu(x, p),
            "Elu" => a::elu(x, p),
            "ThresholdedRelu" => a::thresholded_relu(x, p),
            "HardSigmoid" => a::hard_sigmoid(x, p, q),
            "Selu" => a::selu(x, p, q),
            "Clip" => reference::elementwise::clip_to(x, Some(p), Some(q)),
            "ScaledTanh" => a::scaled_tanh(x, p, q),
            "ParametricSoftplus" => a::parametric_softplus(x, p, q),
            _ => x.clone(),
        }
    }
    /// Its nodes, for a value of element type `dtype`.
    pub fn expand(self, x: &mut Expansion, v: Value, dtype: DType) -> Value {
        let (name, params) = *self.known;
        let [p, q] = self.params;
        match name {
            "" => v,
            "Silu" => x.op("Swish", &[v], &[]),
            "Clip" => {
                let (lo, hi) = (x.scalar(dtype, p.into()), x.scalar(dtype, q.into()));
                x.op("Clip", &[v, lo, hi], &[])
            }
            "ScaledTanh" | "ParametricSoftplus" => {
                let (alpha, beta) = (x.scalar(dtype, p.into()), x.scalar(dtype, q.into()));
                let v = x.op("Mul", &[v, beta], &[]);
                let y = x.op(if name == "ScaledTanh" { "Tanh" } else { "Softplus" }, &[v], &[]);
                x.op("Mul", &[y, alpha], &[])
            }
            _ => {
                let attrs: Vec<_> = params.iter().zip(self.params).map(|(k, v)| (k.0, float(v))).collect();
                x.op(name, &[v], &attrs)
            }
        }
    }
}
