//! The cost model. Unit: picoseconds on the described target — a launch, plus the larger of the time to move the bytes of
//! operands and results and the time of the arithmetic. Extents that are not known are estimated.

use crate::facts::{Facts, Graph};
use crate::lang::{ENode, Head};
use ir::Type;
use tensor::DimId;

/// What a target costs. Everything else is derived from shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CostModel {
    /// Fixed time of one operator, in picoseconds.
    pub launch_ps: u64,
    /// Bytes moved per nanosecond (GB/s).
    pub bytes_per_ns: u64,
    /// Floating-point operations per nanosecond (GFLOP/s).
    pub flops_per_ns: u64,
    /// The value that an unknown extent is taken to have.
    pub typical_dim: i64,
}

impl CostModel {
    /// A desktop CPU core group: 1 µs a launch, 20 GB/s, 100 GFLOP/s.
    pub const CPU: CostModel = CostModel { launch_ps: 1_000_000, bytes_per_ns: 20, flops_per_ns: 100, typical_dim: 64 };
    /// A data-center GPU: 4 µs a launch, 2 TB/s, 50 TFLOP/s.
    pub const GPU: CostModel =
        CostModel { launch_ps: 4_000_000, bytes_per_ns: 2_000, flops_per_ns: 50_000, typical_dim: 256 };
}

impl Default for CostModel {
    fn default() -> CostModel {
        CostModel::CPU
    }
}

/// Operators that only change how the same bytes are seen.
const VIEWS: &[&str] = &["Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size"];
/// Operators that are views when the consumer takes strides, else copies.
const STRIDED: &[&str] = &["Transpose", "Slice", "Split", "Expand"];

impl CostModel {
    /// The number an extent is estimated as.
    fn dim(&self, f: &Facts, d: DimId) -> u64 {
        let v = f.dims.as_const(d).or_else(|| {
            let env = |s| {
                let s = f.dims.sym(s);
                Some(self.typical_dim.clamp(s.lo.max(1), s.hi.max(1)))
            };
            f.dims.eval(d, &env).ok()
        });
        v.unwrap_or(self.typical_dim).max(1).unsigned_abs()
    }
    fn n_elems(&self, f: &Facts, ty: &Type) -> u64 {
        match ty.shape() {
            Some(s) => s.iter().fold(1u64, |a, &d| a.saturating_mul(self.dim(f, d))),
            None => 4096,
        }
    }
    fn bytes(&self, f: &Facts, ty: &Type) -> u64 {
        let bits = ty.dtype().map_or(32, |d| d.bits().max(1)) as u64;
        self.n_elems(f, ty).saturating_mul(bits) / 8
    }
    fn extent(&self, f: &Facts, ty: &Type, axis_from_end: usize) -> u64 {
        let s = ty.shape();
        s.and_then(|s| s.len().checked_sub(axis_from_end).map(|i| self.dim(f, s[i]))).unwrap_or(1)
    }

    /// Cost of one node whose class has type `ty`.
    pub fn node(&self, eg: &Graph, ty: &Type, node: &ENode) -> u64 {
        let f = &eg.analysis;
        let op = match node.head {
            Head::Op { op, .. } => op,
            // A constant that rewriting made has to be stored; a little for its bytes.
            Head::Const(c) => return f.made_const_bytes(c) / 1024,
            _ => return 0,
        };
        let def = &f.registry[op];
        if VIEWS.contains(&def.name) {
            return self.launch_ps / 20;
        }
        let kid = |i: usize| node.kids.get(i).map(|&k| &*eg[k].data.ty);
        let out = match &eg_outs(eg, node) {
            Some(outs) => outs.iter().fold(0, |a: u64, t| a.saturating_add(self.bytes(f, &t.0))),
            None => self.bytes(f, ty),
        };
        let known = |t: &&Type| t.as_tensor().is_some();
        let moved = node.kids.iter().map(|&k| &*eg[k].data.ty).filter(known);
        let mut bytes = moved.fold(out, |a, t| a.saturating_add(self.bytes(f, t)));
        if STRIDED.contains(&def.name) {
            return (self.launch_ps / 4).saturating_add(out.saturating_mul(500) / self.bytes_per_ns);
        }
        let n = self.n_elems(f, ty);
        let flops = match def.name {
            "MatMul" | "Gemm" | "FusedMatMul" | "MatMulNBits" => {
                let k = kid(0).map_or(1, |a| {
                    let trans = def.slot("transA").and_then(|s| node.attrs().and_then(|a| f.attrs[a].int(s)));
                    self.extent(f, a, if trans == Some(1) { 2 } else { 1 })
                });
                n.saturating_mul(2 * k)
            }
            "Conv" | "FusedConv" | "ConvTranspose" => {
                let w = kid(1).map_or(1, |w| self.n_elems(f, w) / kid(1).map_or(1, |w| self.first(f, w)).max(1));
                n.saturating_mul(2 * w)
            }
            "Attention" if def.domain == ir::op::HIP_DOMAIN => {
                let (t, d) = (kid(2).map_or(1, |v| self.extent(f, v, 2)), kid(0).map_or(1, |q| self.extent(f, q, 1)));
                let rows = n / kid(2).map_or(1, |v| self.extent(f, v, 1)).max(1);
                rows.saturating_mul(t).saturating_mul(4 * d + 8)
            }
            "Softmax" | "LogSoftmax" | "LayerNormalization" | "RMSNormalization" => {
                bytes = bytes.saturating_add(out / 2);
                n.saturating_mul(8)
            }
            "Erf" | "Tanh" | "Exp" | "Sigmoid" | "Gelu" | "Silu" | "Pow" | "Log" => n.saturating_mul(8),
            _ => n,
        };
        // Keys are read faster row by row.
        let slot = (def.name == "Attention").then(|| def.slot("k_trans")).flatten();
        if slot.and_then(|s| node.attrs().and_then(|a| f.attrs[a].int(s))) == Some(1) {
            bytes = bytes.saturating_add(kid(1).map_or(0, |k| self.bytes(f, k)));
        }
        let time = (bytes.saturating_mul(1000) / self.bytes_per_ns).max(flops.saturating_mul(1000) / self.flops_per_ns);
        // A run of few rows does little but read weights: those that are quantized are not to be read, or kept, at their full width.
        let wide = matches!(def.name, "MatMul" | "Gemm" | "FusedMatMul") && is_widened(eg, node);
        self.launch_ps.saturating_add(time).saturating_mul(if wide { 2 } else { 1 })
    }
    fn first(&self, f: &Facts, ty: &Type) -> u64 {
        ty.shape().and_then(|s| s.first()).map_or(1, |&d| self.dim(f, d))
    }
}

/// Whether the second operand of a product is a constant that is quantized, transposed or not.
fn is_widened(eg: &Graph, node: &ENode) -> bool {
    let operand_of = |n: &ENode, name: &str| {
        let is = n.op().is_some_and(|o| eg.analysis.registry[o].name == name);
        n.kids.first().copied().filter(|_| is)
    };
    let is_quantized = |id: egg::Id| {
        eg[id].nodes.iter().filter_map(|n| operand_of(n, "DequantizeLinear")).any(|w| eg[w].data.konst.is_some())
    };
    let Some(&b) = node.kids.get(1) else { return false };
    is_quantized(b) || eg[b].nodes.iter().filter_map(|n| operand_of(n, "Transpose")).any(is_quantized)
}

type Outs = std::sync::Arc<[(Type, Option<ir::Shape>)]>;

/// The results of a node with several, from the class it is in.
fn eg_outs(eg: &Graph, node: &ENode) -> Option<Outs> {
    match node.head {
        Head::Op { n_outs, .. } if n_outs > 1 => eg.lookup(node.clone()).and_then(|id| eg[id].data.outs.clone()),
        _ => None,
    }
}
