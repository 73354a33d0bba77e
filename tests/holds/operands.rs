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

/// Bounds and indices count from the end where they are negative, also when only the run knows them.
#[test]
fn negative_values_of_a_run_count_from_the_end() {
    let g = graph()
        .input("x", DType::F32, &["n", "5"])
        .input("start", DType::I64, &["1"])
        .input("end", DType::I64, &["1"])
        .input("i", DType::I64, &[])
        .ints("axis0", &[0])
        .ints("axis1", &[1])
        .ints("back", &[-1])
        .node("Slice", &["x", "start", "end", "axis1"], &["s"])
        .output("s")
        .node("Slice", &["x", "start", "end", "axis0"], &["rows"])
        .node("Relu", &["rows"], &["r"])
        .output("r")
        .node("Slice", &["x", "end", "start", "axis1", "back"], &["reversed"])
        .output("reversed")
        .node("Neg", &["start"], &["minus"])
        .node("Slice", &["x", "minus", "end", "axis1"], &["computed"])
        .output("computed")
        .node_with("Gather", &["x", "i"], &["g"], vec![int("axis", 1)])
        .output("g")
        .node("Shape", &["x"], &["shape"])
        .node_with("Gather", &["shape", "i2"], &["extent"], vec![int("axis", 0)])
        .weight("i2", &Tensor::from_i64(&[1], &[-1]))
        .node("Sub", &["extent", "start"], &["most"])
        .node("Slice", &["x", "start", "most", "axis1"], &["upto"])
        .output("upto");
    let one = |v: i64| Tensor::from_i64(&[1], &[v]);
    let mut cases = Vec::new();
    for (start, end) in [(0, -1), (-4, -1), (-2, 5), (1, 4), (-100, 100), (3, -4), (2, i64::MIN), (-100, i64::MAX)] {
        for i in [-5, -1, 4] {
            cases.push(vec![random(3, &[4, 5]), one(start), one(end), Tensor::from_i64(&[], &[i])]);
        }
    }
    check(&g, &cases);
}
