//! Chains and mixed graphs.

use super::decoder::ints;
use super::{Builder, Random};
use crate::attrs::Attr;
use crate::{Module, Onnx, Registry, Value};
use std::sync::Arc;
use tensor::DType;

/// Extent of the last axis of most values.
pub const WIDTH: usize = 32;
const GROUPS: usize = 4;
/// Values that wait for their first use, at most.
const OPEN: usize = 24;

/// `nodes` operators in a row over `x: f32[b, 32]`: products with matrices and elementwise work by turns.
pub fn chain(registry: &Arc<Registry>, nodes: usize) -> Module<Onnx> {
    let mut b = Builder::new(registry.clone());
    let mut x = b.input("x", DType::F32, &["b", "32"]);
    for i in 0..nodes {
        x = match i % 4 {
            0 => {
                let w = b.weight(&[WIDTH, WIDTH]);
                b.node("MatMul", &[], &[x, w])
            }
            1 => {
                let c = b.weight(&[WIDTH]);
                b.node("Mul", &[], &[x, c])
            }
            2 => b.node("Tanh", &[], &[x]),
            _ => {
                let c = b.weight(&[WIDTH]);
                b.node("Sub", &[], &[x, c])
            }
        };
    }
    b.output(x);
    b.module
}

/// About `nodes` operators over `x, y: f32[b, 32]`: products, elementwise work, reductions, reshapes, transposes, slices, fan-out,
/// work done twice, and idioms that rewriting finds: x·1, x + 0, two transposes, GELU, SiLU and normalizations spelled out.
pub fn dag(registry: &Arc<Registry>, nodes: usize, seed: u64) -> Module<Onnx> {
    let mut b = Builder::new(registry.clone());
    b.random = Random(seed);
    let sources = [b.input("x", DType::F32, &["b", "32"]), b.input("y", DType::F32, &["b", "32"])];
    let mut g = Dag { b, r: Random(seed ^ 0x5eed), open: sources.to_vec(), recent: sources.to_vec() };
    // Joining two values takes two nodes, and so does the last step's.
    while g.b.n_nodes() + 2 * g.open.len() < nodes + 2 {
        let y = if g.open.len() >= OPEN { g.join() } else { g.step() };
        g.open.push(y);
        g.recent.push(y);
        if g.recent.len() > 2 * OPEN {
            g.recent.remove(0);
        }
        if g.r.below(64) == 0 {
            g.recent.extend(sources);
        }
    }
    while g.open.len() > 1 {
        let y = g.join();
        g.open.push(y);
    }
    let y = g.open[0];
    g.b.output(y);
    g.b.module
}

struct Dag {
    b: Builder,
    r: Random,
    /// Values not yet used, oldest first.
    open: Vec<Value>,
    /// Values that may be used again.
    recent: Vec<Value>,
}

impl Dag {
    /// An operand: every other time one that nothing uses yet.
    fn pick(&mut self) -> Value {
        if !self.open.is_empty() && self.r.below(2) == 0 {
            let i = self.r.below(self.open.len());
            return self.open.remove(i);
        }
        let v = self.recent[self.r.below(self.recent.len())];
        self.open.retain(|&o| o != v);
        v
    }
    fn join(&mut self) -> Value {
        let y = self.open.remove(0);
        let x = if self.open.is_empty() { y } else { self.open.remove(0) };
        self.mean(x, y)
    }
    /// A sum that keeps the size of its operands.
    fn mean(&mut self, x: Value, y: Value) -> Value {
        let s = self.b.node("Add", &[], &[x, y]);
        let c = self.b.scalar(std::f32::consts::FRAC_1_SQRT_2);
        self.b.node("Mul", &[], &[s, c])
    }
    fn transpose(&mut self, x: Value, perm: &[i64]) -> Value {
        self.b.node("Transpose", &[("perm", ints(perm))], &[x])
    }
    fn step(&mut self) -> Value {
        let x = self.pick();
        match self.r.below(16) {
            0 | 1 => {
                let (w, c) = (self.b.weight(&[WIDTH, WIDTH]), self.b.weight(&[WIDTH]));
                let y = self.b.node("MatMul", &[], &[x, w]);
                let y = self.b.node("Sub", &[], &[y, c]);
                let act = ["Relu", "Tanh", "Sigmoid", "Neg"][self.r.below(4)];
                self.b.node(act, &[], &[y])
            }
            2 | 3 => {
                let y = self.pick();
                self.mean(x, y)
            }
            4 => {
                let y = self.pick();
                let s = self.b.node("Sigmoid", &[], &[y]);
                self.b.node("Mul", &[], &[x, s])
            }
            5 => self.gelu(x),
            6 => {
                let s = self.b.node("Sigmoid", &[], &[x]);
                self.b.node("Mul", &[], &[s, x])
            }
            7 => {
                let (one, zero) = (self.b.scalar(1.0), self.b.scalar(0.0));
                let y = self.b.node("Mul", &[], &[x, one]);
                self.b.node("Add", &[], &[zero, y])
            }
            8 => {
                let y = self.transpose(x, &[1, 0]);
                let y = if self.r.below(2) == 0 { y } else { self.b.node("Abs", &[], &[y]) };
                self.transpose(y, &[1, 0])
            }
            9 => {
                let split = self.b.ints(&[0, GROUPS as i64, -1]);
                let merge = self.b.ints(&[0, WIDTH as i64]);
                let y = self.b.node("Reshape", &[], &[x, split]);
                let y = self.transpose(y, &[0, 2, 1]);
                self.b.node("Reshape", &[], &[y, merge])
            }
            10 => {
                let axes = self.b.ints(&[-1]);
                let op = ["ReduceMean", "ReduceMax", "ReduceMin"][self.r.below(3)];
                let m = self.b.node(op, &[], &[x, axes]);
                self.b.node("Sub", &[], &[x, m])
            }
            11 | 12 => self.norm(x),
            13 => {
                let y = self.pick();
                self.b.node(["Max", "Min", "Sub"][self.r.below(3)], &[], &[x, y])
            }
            14 => {
                let y = self.pick();
                let (half, axis) = ((WIDTH / 2) as i64, self.b.ints(&[1]));
                let [zero, half, all] = [0, half, WIDTH as i64].map(|i| self.b.ints(&[i]));
                let left = self.b.node("Slice", &[], &[x, zero, half, axis]);
                let right = self.b.node("Slice", &[], &[y, half, all, axis]);
                self.b.node("Concat", &[("axis", Attr::Int(1))], &[right, left])
            }
            // The same work twice, and a softmax that is not flat.
            _ => {
                let p = self.b.node("Softmax", &[("axis", Attr::Int(-1))], &[x]);
                let q = self.b.node("Softmax", &[("axis", Attr::Int(-1))], &[x]);
                let s = self.b.node("Add", &[], &[p, q]);
                let y = self.b.node("Identity", &[], &[x]);
                self.b.node("Add", &[], &[y, s])
            }
        }
    }
    fn gelu(&mut self, x: Value) -> Value {
        let [root, one, half] = [std::f32::consts::SQRT_2, 1.0, 0.5].map(|c| self.b.scalar(c));
        let y = self.b.node("Div", &[], &[x, root]);
        let y = self.b.node("Erf", &[], &[y]);
        let y = self.b.node("Add", &[], &[y, one]);
        let y = self.b.node("Mul", &[], &[x, y]);
        self.b.node("Mul", &[], &[y, half])
    }
    fn norm(&mut self, x: Value) -> Value {
        let (axes, two, eps) = (self.b.ints(&[-1]), self.b.scalar(2.0), self.b.scalar(1e-5));
        let (scale, bias) = (self.b.weight(&[WIDTH]), self.b.weight(&[WIDTH]));
        let mean = self.b.node("ReduceMean", &[], &[x, axes]);
        let d = self.b.node("Sub", &[], &[x, mean]);
        let s = self.b.node("Pow", &[], &[d, two]);
        let var = self.b.node("ReduceMean", &[], &[s, axes]);
        let var = self.b.node("Add", &[], &[var, eps]);
        let root = self.b.node("Sqrt", &[], &[var]);
        let y = self.b.node("Div", &[], &[d, root]);
        let y = self.b.node("Mul", &[], &[y, scale]);
        self.b.node("Add", &[], &[y, bias])
    }
}
