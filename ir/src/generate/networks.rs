//! Networks of published sizes with seeded weights: what benches measure.

use super::Builder;
use super::decoder::ints;
use crate::attrs::Attr;
use crate::{Module, Onnx, Registry, Value};
use std::sync::Arc;
use tensor::DType;

/// Extents of BERT-base.
const HIDDEN: usize = 768;
const HEADS: usize = 12;
const FEED: usize = 3072;

/// Layers of BERT-base in f16 (Devlin et al., 2018) over `x: f16[b, s, 768]` and an additive `mask: f16[b, 1, 1, s]`: attention
/// spelled out, normalization after each residual sum, GELU.
pub fn encoder(registry: Arc<Registry>, layers: usize) -> Module<Onnx> {
    let d = DType::F16;
    let mut b = Builder::new(registry);
    let mut x = b.input("x", d, &["b", "s", "768"]);
    let mask = b.input("mask", d, &["b", "1", "1", "s"]);
    let split = b.ints(&[0, 0, HEADS as i64, (HIDDEN / HEADS) as i64]);
    let merge = b.ints(&[0, 0, HIDDEN as i64]);
    // 1 / √64
    let scale = b.tensor(&tensor::pb::parse_literal(d, &[], &["0.125"]).expect("a number"));
    let linear = |b: &mut Builder, x: Value, k: usize, n: usize| {
        let (w, bias) = (b.seeded(d, &[k, n], 0.0, (3.0 / k as f32).sqrt()), b.seeded(d, &[n], 0.0, 0.1));
        let y = b.node("MatMul", &[], &[x, w]);
        b.node("Add", &[], &[y, bias])
    };
    let norm = |b: &mut Builder, x: Value| {
        let (g, beta) = (b.seeded(d, &[HIDDEN], 1.0, 0.25), b.seeded(d, &[HIDDEN], 0.0, 0.1));
        b.node("LayerNormalization", &[("axis", Attr::Int(-1))], &[x, g, beta])
    };
    for i in 0..layers {
        b.scope(format!("/layer.{i}"));
        let heads = |b: &mut Builder, perm: &[i64]| {
            let y = linear(b, x, HIDDEN, HIDDEN);
            let y = b.node("Reshape", &[], &[y, split]);
            b.node("Transpose", &[("perm", ints(perm))], &[y])
        };
        let (q, kt, v) = (heads(&mut b, &[0, 2, 1, 3]), heads(&mut b, &[0, 2, 3, 1]), heads(&mut b, &[0, 2, 1, 3]));
        let s = b.node("MatMul", &[], &[q, kt]);
        let s = b.node("Mul", &[], &[s, scale]);
        let s = b.node("Add", &[], &[s, mask]);
        let p = b.node("Softmax", &[("axis", Attr::Int(-1))], &[s]);
        let y = b.node("MatMul", &[], &[p, v]);
        let y = b.node("Transpose", &[("perm", ints(&[0, 2, 1, 3]))], &[y]);
        let y = b.node("Reshape", &[], &[y, merge]);
        let y = linear(&mut b, y, HIDDEN, HIDDEN);
        let y = b.node("Add", &[], &[y, x]);
        let h = norm(&mut b, y);
        let y = linear(&mut b, h, HIDDEN, FEED);
        let y = b.node("Gelu", &[], &[y]);
        let y = linear(&mut b, y, FEED, HIDDEN);
        let y = b.node("Add", &[], &[y, h]);
        x = norm(&mut b, y);
    }
    b.output(x);
    b.module
}

/// ResNet-50 (He et al., 2015; strides in the 3×3 convolutions) with normalizations folded, over `x: [b, 3, 224, 224]` of `d`.
pub fn resnet50(registry: Arc<Registry>, d: DType) -> Module<Onnx> {
    let mut b = Builder::new(registry);
    let x = b.input("x", d, &["b", "3", "224", "224"]);
    // Half of what ReLU keeps: variance 2 / fan-in, less on the branch that is added.
    let conv = |b: &mut Builder, x: Value, c: usize, m: usize, k: usize, stride: i64, gain: f32| {
        let spread = gain * (6.0 / (c * k * k) as f32).sqrt();
        let (w, bias) = (b.seeded(d, &[m, c, k, k], 0.0, spread), b.seeded(d, &[m], 0.0, 0.1));
        let pad = (k / 2) as i64;
        let attrs =
            [("kernel_shape", ints(&[k as i64; 2])), ("strides", ints(&[stride; 2])), ("pads", ints(&[pad; 4]))];
        b.node("Conv", &attrs, &[x, w, bias])
    };
    b.scope("/stem");
    let y = conv(&mut b, x, 3, 64, 7, 2, 1.0);
    let y = b.node("Relu", &[], &[y]);
    let pool = [("kernel_shape", ints(&[3; 2])), ("strides", ints(&[2; 2])), ("pads", ints(&[1; 4]))];
    let mut x = b.node("MaxPool", &pool, &[y]);
    let mut c = 64;
    for (stage, (blocks, mid)) in [(3, 64), (4, 128), (6, 256), (3, 512)].into_iter().enumerate() {
        for i in 0..blocks {
            b.scope(format!("/stage{stage}/block{i}"));
            let stride = if i == 0 && stage > 0 { 2 } else { 1 };
            let y = conv(&mut b, x, c, mid, 1, 1, 1.0);
            let y = b.node("Relu", &[], &[y]);
            let y = conv(&mut b, y, mid, mid, 3, stride, 1.0);
            let y = b.node("Relu", &[], &[y]);
            let y = conv(&mut b, y, mid, 4 * mid, 1, 1, 0.25);
            let skip = if i == 0 { conv(&mut b, x, c, 4 * mid, 1, stride, 0.7) } else { x };
            let y = b.node("Add", &[], &[y, skip]);
            x = b.node("Relu", &[], &[y]);
            c = 4 * mid;
        }
    }
    b.scope("/head");
    let y = b.node("GlobalAveragePool", &[], &[x]);
    let y = b.node("Flatten", &[("axis", Attr::Int(1))], &[y]);
    let (w, bias) = (b.seeded(d, &[c, 1000], 0.0, (3.0 / c as f32).sqrt()), b.seeded(d, &[1000], 0.0, 0.1));
    let y = b.node("MatMul", &[], &[y, w]);
    let y = b.node("Add", &[], &[y, bias]);
    b.output(y);
    b.module
}
