//! What the tools break on purpose is broken: each way changes the results of a model that has something to break, and says what it did.

use super::kit::*;
use super::pools::transformer;
use hip_ep::ir::Registry;
use hip_ep::tensor::compare::{Tolerance, compare};
use hip_ep::tool::sabotage::{self, Choice, Found};
use hip_ep::{Compiler, DType, DeviceKind, Hooks, RunInputs, Tensor};

fn run(bytes: &[u8], hooks: &mut Hooks, x: &Tensor) -> Tensor {
    let m = hip_ep::ir::import::import_bytes(bytes.to_vec().into(), None, &Registry::builtin()).expect("it imports");
    let model = Compiler::new().compile_with(m, hooks).unwrap_or_else(|e| panic!("{e}"));
    let session = model.session(DeviceKind::Cpu, Default::default()).expect("a session");
    let inputs = RunInputs::in_order(std::slice::from_ref(x));
    session.collect(&inputs, &Default::default()).expect("it runs").0.remove(0)
}

fn broken(bytes: &[u8], how: &str, x: &Tensor) -> (Tensor, Found) {
    let (mut hooks, found) = sabotage::hooks(Choice::parse(how).unwrap());
    let y = run(bytes, &mut hooks, x);
    let found = found.lock().unwrap().clone();
    (y, found)
}

#[test]
fn every_way_changes_results() {
    let (bytes, x) = (transformer(1, 32, 4).bytes(), random(1, &[2, 17, 32]));
    let right = run(&bytes, &mut Hooks::new(), &x);
    for kind in ["epilogue", "operands", "pool"] {
        let (y, found) = broken(&bytes, kind, &x);
        assert!(found.places > 1 && !found.what.is_empty(), "{kind}: {found:?}");
        assert!(!compare(&y, &right, Tolerance::of(DType::F32)).unwrap().ok(), "{kind}: {found:?}");
        // Beyond the last place nothing is broken.
        let (y, none) = broken(&bytes, &format!("{kind}:{}", found.places), &x);
        assert_eq!((none.places, none.what.as_str()), (found.places, ""), "{kind}");
        assert_eq!(y, right, "{kind}");
    }
}

#[test]
fn a_model_without_an_epilogue_has_none_to_break() {
    let g = graph().input("x", DType::F32, &["n"]).node("Add", &["x", "x"], &["y"]).output("y");
    let (y, found) = broken(&g.bytes(), "operands", &Tensor::from_f32(&[2], &[1.0, 2.0]));
    assert_eq!((found, y.to_f64_vec()), (Found::default(), vec![2.0, 4.0]));
    assert!(Choice::parse("nothing").is_err() && Choice::parse("pool:x").is_err());
}
