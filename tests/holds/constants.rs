//! Seeded constants: nothing of them is stored, and every machine makes the same elements.

use super::kit::*;
use hip_ep::tensor::Seeded;
use hip_ep::{CompiledModel, Compiler, DeviceKind, RunInputs, Tensor};

const MODEL: &str = r#"onnx module "seeded"
opset "" 17
dim n : input(0, 0)
const @c0 "w" : f32[64, 48] = seeded(9, 0.5, 0.25)

graph(%v0 "x" : f32[n, 64]) {
  %v1 = MatMul-13 %v0, @c0 : f32[n, 48]  ; /product
  return %v1 "y"
}
"#;

#[test]
fn seeded_weights_are_made_at_load() {
    let f = Folder::new("seeded");
    let path = f.file("m.hipep");
    Compiler::new().compile_text(MODEL).and_then(|m| m.save(&path)).unwrap_or_else(|e| panic!("{e}"));
    let stored = std::fs::metadata(f.file("m.constants")).map_or(0, |m| m.len());
    assert!(stored <= 96, "{stored} bytes of constants");
    let s = session(&CompiledModel::load(&path).unwrap_or_else(|e| panic!("{e}")), DeviceKind::Guard);
    // The identity matrix shows the weights.
    let one = |i: usize| if i / 64 == i % 64 { 1.0 } else { 0.0 };
    let x = Tensor::from_f32(&[64, 64], &(0..64 * 64).map(one).collect::<Vec<f32>>());
    let (y, _) = s.collect(&RunInputs::in_order(&[x]), &Default::default()).unwrap_or_else(|e| panic!("{e}"));
    let w = Seeded { seed: 9, middle: 0.5, spread: 0.25 };
    let want: Vec<f64> = (0..64 * 48).map(|i| f64::from(w.at(i))).collect();
    assert_eq!(y[0].to_f64_vec(), want);
}
