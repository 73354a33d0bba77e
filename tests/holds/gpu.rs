//! Models with code for GPUs: what the files carry, what a machine without a GPU says, and results where there is one.

use super::kit::*;
use hip_ep::{CompileOptions, CompiledModel, Compiler, DType, DeviceKind, ErrorKind, Target, Tensor};

/// `softmax(x w + b)` with a free batch.
fn model() -> G {
    let w = random(1, &[24, 40]);
    graph()
        .input("x", DType::F32, &["n", "24"])
        .weight("w", &w)
        .weight("b", &random(2, &[40]))
        .node("MatMul", &["x", "w"], &["p"])
        .node("Add", &["p", "b"], &["q"])
        .node("Softmax", &["q"], &["y"])
        .output("y")
}

fn compile(targets: &str) -> CompiledModel {
    let mut o = CompileOptions::default();
    o.targets = Target::parse_list(targets).unwrap_or_else(|e| panic!("{e}"));
    Compiler::with(o).compile_bytes(model().bytes(), None).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn artifact_and_shared_object_carry_the_same_gpu_code() {
    let f = Folder::new("gpu-code");
    let m = compile("hip:gfx942,cuda:sm_90,cpu");
    let (file, so) = (f.file("m.hipep"), f.file("m.so"));
    m.save(&file).and_then(|()| m.save_native(&so)).unwrap_or_else(|e| panic!("{e}"));
    let want = m.gpu_code();
    let has = |label: &str| want.iter().any(|(l, code)| l == label && !code.is_empty());
    assert!(
        has("hip:gfx942/generated") && has("cuda:sm_90/generated"),
        "{:?}",
        want.iter().map(|w| &w.0).collect::<Vec<_>>()
    );
    let x = random(3, &[5, 24]);
    let exact = interpret(&model().bytes(), std::slice::from_ref(&x));
    for path in [&file, &so] {
        let m = CompiledModel::load(path).unwrap_or_else(|e| panic!("{e}"));
        assert!(m.gpu_code() == want, "{}", path.display());
        assert_close(&run(&session(&m, DeviceKind::Cpu), std::slice::from_ref(&x)), &exact, "on the cpu");
    }
}

#[test]
fn devices_refuse_what_they_cannot_run() {
    let m = compile("hip:gfx1100");
    let e = m.session(DeviceKind::Cpu, Default::default()).expect_err("there is no code for the cpu");
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("compiled for device \"hip:gfx1100\", not for \"cpu\""), "{e}");
    let e = m.session(DeviceKind::Hip(99), Default::default()).expect_err("there is no such GPU");
    assert!(e.kind() == ErrorKind::Device && e.to_string().contains("there is no GPU"), "{e}");
}

#[test]
fn results_on_a_gpu_are_those_of_the_reference() {
    let target = match DeviceKind::Hip(0).target() {
        Ok(t) => t,
        Err(e) => return println!("left out: {e}"),
    };
    let s = session(&compile(&target), DeviceKind::Hip(0));
    for n in [1usize, 7, 0, 1000, 3] {
        let x: Tensor = random(n as u64, &[n, 24]);
        let exact = interpret(&model().bytes(), std::slice::from_ref(&x));
        assert_close(&run(&s, std::slice::from_ref(&x)), &exact, &target);
    }
}
