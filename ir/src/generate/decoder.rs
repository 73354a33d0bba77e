//! A decoder stack in primitive operators.

use super::Builder;
use crate::attrs::Attr;
use crate::{Module, Onnx, Registry, Value};
use std::sync::Arc;
use tensor::DType;

/// Extents of a generated decoder.
const HIDDEN: usize = 64;
const HEADS: usize = 4;
const HEAD: usize = HIDDEN / HEADS;

/// A decoder of `layers` layers over inputs `x: f32[b, s, 64]` and `mask: f32[b, 1, 1, s]`: two normalizations a layer and a
/// final one, attention, a gated or plain feed-forward part. Bracketings change from layer to layer.
pub fn decoder(registry: Arc<Registry>, layers: usize) -> Module<Onnx> {
    let mut b = Builder::new(registry);
    let mut x = b.input("x", DType::F32, &["b", "s", "64"]);
    let mask = b.input("mask", DType::F32, &["b", "1", "1", "s"]);
    for i in 0..layers {
        b.scope(format!("/layer.{i}/attn"));
        let h = norm(&mut b, x, i);
        let o = attention(&mut b, h, mask, i);
        x = b.node("Add", &[], &[x, o]);
        b.scope(format!("/layer.{i}/mlp"));
        let h = norm(&mut b, x, i + 1);
        let o = feed_forward(&mut b, h, i);
        x = if i % 2 == 0 { b.node("Add", &[], &[o, x]) } else { b.node("Add", &[], &[x, o]) };
    }
    b.scope("/final");
    let y = norm(&mut b, x, 0);
    b.output(y);
    b.module
}

pub(super) fn ints(v: &[i64]) -> Attr {
    Attr::Ints(v.into())
}

/// LayerNormalization in four spellings, RMSNormalization by turns.
fn norm(b: &mut Builder, x: Value, form: usize) -> Value {
    let axes = b.ints(&[-1]);
    if form % 5 == 4 {
        let two = b.scalar(2.0);
        let sq = b.node("Pow", &[], &[x, two]);
        let mean = b.node("ReduceMean", &[], &[sq, axes]);
        let eps = b.scalar(1e-6);
        let mean = b.node("Add", &[], &[mean, eps]);
        let root = b.node("Sqrt", &[], &[mean]);
        let r = b.node("Reciprocal", &[], &[root]);
        let y = b.node("Mul", &[], &[x, r]);
        let g = b.weight(&[HIDDEN]);
        return b.node("Mul", &[], &[g, y]);
    }
    let mean = b.node("ReduceMean", &[], &[x, axes]);
    let d = b.node("Sub", &[], &[x, mean]);
    let sq = if form.is_multiple_of(2) {
        let two = b.scalar(2.0);
        b.node("Pow", &[], &[d, two])
    } else {
        b.node("Mul", &[], &[d, d])
    };
    let var = b.node("ReduceMean", &[], &[sq, axes]);
    let eps = b.scalar(1e-5);
    let var = if form.is_multiple_of(3) { b.node("Add", &[], &[var, eps]) } else { b.node("Add", &[], &[eps, var]) };
    let root = b.node("Sqrt", &[], &[var]);
    let (g, bias) = (b.weight(&[HIDDEN]), b.weight(&[HIDDEN]));
    let y = match form % 4 {
        0 => {
            let y = b.node("Div", &[], &[d, root]);
            b.node("Mul", &[], &[y, g])
        }
        1 => {
            let r = b.node("Reciprocal", &[], &[root]);
            let y = b.node("Mul", &[], &[d, r]);
            b.node("Mul", &[], &[g, y])
        }
        2 => {
            let r = b.node("Reciprocal", &[], &[root]);
            let s = b.node("Mul", &[], &[r, g]);
            b.node("Mul", &[], &[d, s])
        }
        _ => {
            let one = b.scalar(1.0);
            let r = b.node("Div", &[], &[one, root]);
            let y = b.node("Mul", &[], &[r, d]);
            b.node("Mul", &[], &[g, y])
        }
    };
    b.node("Add", &[], &[y, bias])
}

/// Attention with the scale on the scores, on q, or on both sides, as product or quotient; k transposed in one step or two.
fn attention(b: &mut Builder, h: Value, mask: Value, form: usize) -> Value {
    let split = b.ints(&[0, 0, HEADS as i64, HEAD as i64]);
    let heads = |b: &mut Builder, perm: &[i64]| {
        let (w, bias) = (b.weight(&[HIDDEN, HIDDEN]), b.weight(&[HIDDEN]));
        let y = b.node("MatMul", &[], &[h, w]);
        let y = b.node("Add", &[], &[bias, y]);
        let y = b.node("Reshape", &[], &[y, split]);
        b.node("Transpose", &[("perm", ints(perm))], &[y])
    };
    let mut q = heads(b, &[0, 2, 1, 3]);
    let mut kt = if form.is_multiple_of(2) {
        heads(b, &[0, 2, 3, 1])
    } else {
        let k = heads(b, &[0, 2, 1, 3]);
        b.node("Transpose", &[("perm", ints(&[0, 1, 3, 2]))], &[k])
    };
    let v = heads(b, &[0, 2, 1, 3]);
    let scale = 1.0 / (HEAD as f32).sqrt();
    match form % 5 {
        1 => {
            let c = b.scalar(scale);
            q = b.node("Mul", &[], &[q, c]);
        }
        2 => {
            let c = b.scalar(scale.sqrt());
            q = b.node("Mul", &[], &[q, c]);
            kt = b.node("Mul", &[], &[kt, c]);
        }
        3 => {
            let c = b.scalar(1.0 / scale);
            q = b.node("Div", &[], &[q, c]);
        }
        _ => {}
    }
    let mut s = b.node("MatMul", &[], &[q, kt]);
    match form % 5 {
        0 => {
            let c = b.scalar(1.0 / scale);
            s = b.node("Div", &[], &[s, c]);
        }
        4 => {
            let c = b.scalar(scale);
            s = b.node("Mul", &[], &[c, s]);
        }
        _ => {}
    }
    let s = b.node("Add", &[], &[s, mask]);
    let p = b.node("Softmax", &[("axis", Attr::Int(-1))], &[s]);
    let y = b.node("MatMul", &[], &[p, v]);
    let y = b.node("Transpose", &[("perm", ints(&[0, 2, 1, 3]))], &[y]);
    let merge = b.ints(&[0, 0, HIDDEN as i64]);
    let y = b.node("Reshape", &[], &[y, merge]);
    let w = b.weight(&[HIDDEN, HIDDEN]);
    b.node("MatMul", &[], &[y, w])
}

/// Gated SiLU, GELU with erf, GELU with tanh by turns.
fn feed_forward(b: &mut Builder, h: Value, form: usize) -> Value {
    let (up, down) = (b.weight(&[HIDDEN, 2 * HIDDEN]), b.weight(&[2 * HIDDEN, HIDDEN]));
    let u = b.node("MatMul", &[], &[h, up]);
    let y = match form % 3 {
        0 => {
            let gate = b.weight(&[HIDDEN, 2 * HIDDEN]);
            let g = b.node("MatMul", &[], &[h, gate]);
            let s = b.node("Sigmoid", &[], &[g]);
            let g = b.node("Mul", &[], &[g, s]);
            b.node("Mul", &[], &[g, u])
        }
        1 => {
            let c = b.scalar(std::f32::consts::SQRT_2);
            let d = b.node("Div", &[], &[u, c]);
            let e = b.node("Erf", &[], &[d]);
            let one = b.scalar(1.0);
            let e = b.node("Add", &[], &[e, one]);
            let y = b.node("Mul", &[], &[u, e]);
            let half = b.scalar(0.5);
            b.node("Mul", &[], &[y, half])
        }
        _ => {
            let three = b.scalar(3.0);
            let cube = b.node("Pow", &[], &[u, three]);
            let c = b.scalar(0.044715);
            let t = b.node("Mul", &[], &[c, cube]);
            let t = b.node("Add", &[], &[u, t]);
            let c = b.scalar(0.797_884_6);
            let t = b.node("Mul", &[], &[t, c]);
            let t = b.node("Tanh", &[], &[t]);
            let one = b.scalar(1.0);
            let t = b.node("Add", &[], &[one, t]);
            let half = b.scalar(0.5);
            let y = b.node("Mul", &[], &[half, u]);
            b.node("Mul", &[], &[y, t])
        }
    };
    b.node("MatMul", &[], &[y, down])
}
