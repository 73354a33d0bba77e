//! The same model and options give the same bytes; the same artifact and inputs give the same bits.

use super::kit::*;
use hip_ep::{CompileOptions, CompiledModel, Compiler, DeviceKind, RunOptions, SessionOptions, Tensor};
use std::path::Path;
use std::process::Command;

/// Compiles in a process of its own; on one processor if asked.
fn compile(model: &Path, to: &Path, one_processor: bool, extra: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let tool = env!("CARGO_BIN_EXE_hip-compiler");
    let mut c = if one_processor { Command::new("taskset") } else { Command::new(tool) };
    if one_processor {
        c.args(["-c", "0", tool]);
    }
    let out = c.arg(model).arg("-o").arg(to).args(extra).output().expect("hip-compiler starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let constants = hip_ep::artifact::constants_path(to);
    (std::fs::read(to).expect("the artifact"), std::fs::read(constants).expect("the constants"))
}

/// Many kernels, so that several threads have work.
fn wide() -> G {
    let mut g = mixed();
    for i in 0..24 {
        let (a, b, c, w) = (format!("a{i}"), format!("b{i}"), format!("c{i}"), format!("w{i}"));
        g = g
            .weight(&w, &random(100 + i, &[1, 8 + i as usize]))
            .ints(&format!("axes{i}"), &[-1])
            .node("Unsqueeze", &["z", &format!("axes{i}")], &[&a])
            .node("Mul", &[&a, &w], &[&b])
            .node_with(if i % 2 == 0 { "ReduceMax" } else { "ReduceL2" }, &[&b], &[&c], vec![ints("axes", &[-1])])
            .output(&c);
    }
    g
}

#[test]
fn artifacts_are_equal_bytes_whoever_where_and_with_how_many_threads() {
    let (a, b) = (Folder::new("a"), Folder::new("b-with-a-longer-name"));
    let bytes = wide().bytes();
    let models = [a.file("model.onnx"), b.file("model.onnx")];
    models.iter().for_each(|m| std::fs::write(m, &bytes).expect("the folder is ours"));
    for (mode, name) in [("bitcode", "m.hipep"), ("native", "m.so")] {
        let extra = ["--mode", mode];
        let first = compile(&models[0], &a.file(name), false, &extra);
        assert!(first == compile(&models[0], &a.file("again"), false, &extra), "{mode}: two processes differ");
        assert!(first == compile(&models[1], &b.file(name), false, &extra), "{mode}: two folders differ");
        assert!(first == compile(&models[1], &b.file("one"), true, &extra), "{mode}: 1 thread and all differ");
        let other = compile(&models[0], &a.file("o"), false, &["--mode", mode, "--disable", "rewrite"]);
        assert!(first != other, "{mode}: options do not matter, so this test sees nothing");
    }
    // In this process, too, and with more threads than there are processors.
    let lowered = |o| Compiler::with(o).lower(module(&bytes), &mut Default::default()).expect("the model lowers");
    let program = lowered(CompileOptions::default()).program;
    let code = |n: usize| {
        let mut how = codegen::Options::new(codegen::CpuTarget::tier("x86-64-v2").expect("a known tier"));
        how.n_threads = n;
        let c = codegen::compile(&program, &how, b"metadata").expect("the program compiles");
        (c.bitcode, c.object)
    };
    assert!(code(1) == code(7), "code depends on the number of threads");
}

fn module(bytes: &[u8]) -> hip_ep::ir::Module<hip_ep::ir::Onnx> {
    hip_ep::ir::import::import_bytes(bytes.to_vec().into(), None, &hip_ep::ir::Registry::builtin()).expect("it imports")
}

fn cases() -> Vec<Vec<Tensor>> {
    let shapes = [[1, 3, 8, 8], [5, 3, 31, 8], [0, 3, 8, 8], [2, 3, 1, 8], [13, 3, 64, 8]];
    shapes.iter().map(|s| vec![random(s[0] as u64, s)]).collect()
}

#[test]
fn jit_and_shared_object_one_thread_and_all_give_equal_bits() {
    let f = Folder::new("bits");
    let m = check(&wide(), &cases());
    let (jit, native) = (f.file("m.hipep"), f.file("m.so"));
    m.save(&jit).and_then(|()| m.save_native(&native)).unwrap_or_else(|e| panic!("{e}"));
    let load = |p: &Path| CompiledModel::load(p).unwrap_or_else(|e| panic!("{e}"));
    let open = |m: &CompiledModel, threads| {
        let mut o = SessionOptions::default();
        o.threads = threads;
        m.session(DeviceKind::Cpu, o).unwrap_or_else(|e| panic!("{e}"))
    };
    let (jit, native) = (load(&jit), load(&native));
    let fresh = open(&m, Some(1));
    for inputs in cases() {
        let want = run(&fresh, &inputs);
        for (name, m) in [("jit", &jit), ("shared object", &native)] {
            for threads in [Some(1), Some(2), Some(5), None] {
                let got = run(&open(m, threads), &inputs);
                assert!(got == want, "{name} with {threads:?} threads differs at {:?}", inputs[0].shape());
            }
        }
        let mut one = RunOptions::default();
        one.threads = Some(1);
        let all = open(&jit, None);
        let few = all.collect(&hip_ep::RunInputs::in_order(&inputs), &one).expect("the run succeeds").0;
        assert!(few == want, "a run with fewer threads than its session differs");
    }
}

#[test]
fn runs_at_the_same_time_do_not_disturb_each_other() {
    let m = wide().compile();
    let s = session(&m, DeviceKind::Cpu);
    let cases = cases();
    let want: Vec<Vec<Tensor>> = cases.iter().map(|c| run(&s, c)).collect();
    std::thread::scope(|scope| {
        for t in 0..8 {
            let (s, cases, want) = (&s, &cases, &want);
            scope.spawn(move || {
                for k in 0..20 {
                    let i = (t + k) % cases.len();
                    assert!(run(s, &cases[i]) == want[i], "thread {t}, run {k} differs");
                }
            });
        }
    });
}
