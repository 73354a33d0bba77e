//! Operands in their places, and values of operands that only a run knows.

use super::kit::*;
use hip_ep::{DType, DeviceKind, Tensor};

/// 0 is above -0, whatever computes it.
#[test]
fn signs_of_zeros_agree() {
    let g = graph()
        .input("x", DType::F32, &["n"])
        .input("y", DType::F32, &["n"])
        .node("Max", &["x", "y"], &["max"])
        .output("max")
        .node("Min", &["x", "y"], &["min"])
        .output("min")
        .node_with("ReduceMax", &["x"], &["top"], vec![ints("axes", &[0])])
        .output("top")
        .node_with("ReduceMin", &["x"], &["least"], vec![ints("axes", &[0])])
        .output("least");
    let mut x = vec![0.0, -0.0, 0.0, -0.0];
    let y = Tensor::from_f32(&[4], &[-0.0, 0.0, 0.0, -0.0]);
    let m = g.clone().compile();
    let s = session(&m, DeviceKind::Cpu);
    for _ in 0..2 {
        let inputs = [Tensor::from_f32(&[4], &x), y.clone()];
        let signs = |all: Vec<Tensor>| -> Vec<bool> {
            all.iter().flat_map(|t| t.to_f64_vec()).map(f64::is_sign_negative).collect()
        };
        assert_eq!(signs(run(&s, &inputs)), signs(interpret(&g.clone().bytes(), &inputs)), "{x:?}");
        x.reverse();
    }
}
