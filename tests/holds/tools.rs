//! What the command-line tools refuse, and what they say.

use super::kit::*;
use hip_ep::{CompiledModel, Compiler, DType, DeviceKind, Tensor};
use std::path::Path;
use std::process::Command;

const COMPILER: &str = env!("CARGO_BIN_EXE_hip-compiler");
const TEST: &str = env!("CARGO_BIN_EXE_hip-test");
const OPT: &str = env!("CARGO_BIN_EXE_hip-opt");
const RUNNER: &str = env!("CARGO_BIN_EXE_hip-onnx-runner");
const INSPECT: &str = env!("CARGO_BIN_EXE_hip-inspect");

/// Runs a tool in a folder; whether it succeeded, and what it printed.
fn tool(exe: &str, folder: &Path, arguments: &[&str]) -> (bool, String) {
    let out = Command::new(exe).args(arguments).current_dir(folder).output().expect("the tool starts");
    let both = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&both).into_owned())
}

fn refused(exe: &str, folder: &Path, arguments: &[&str], words: &str) {
    let (ok, said) = tool(exe, folder, arguments);
    assert!(!ok && said.contains(words) && said.contains("help "), "{arguments:?}: {words:?} not in: {said}");
}

/// `y = x · w`, with weights of a seed.
fn product(seed: u64) -> Vec<u8> {
    let g = graph().input("x", DType::F32, &["n", "4"]).weight("w", &random(seed, &[4, 2]));
    g.node("MatMul", &["x", "w"], &["y"]).output("y").bytes()
}

#[test]
fn the_compiler_overwrites_neither_the_model_nor_what_is_no_file() {
    let f = Folder::new("tools-compiler");
    let model = product(1);
    for name in ["m.onnx", "m.hipep", "n.constants"] {
        std::fs::write(f.file(name), &model).expect("the folder is ours");
    }
    std::fs::create_dir(f.file("folder")).expect("the folder is ours");
    std::fs::create_dir(f.file("taken.constants")).expect("the folder is ours");
    std::os::unix::fs::symlink("m.onnx", f.file("link.hipep")).expect("the folder is ours");
    let refused = |arguments: &[&str], words: &str| refused(COMPILER, f.path(), arguments, words);
    refused(&["m.onnx", "-o", "./m.onnx"], "would overwrite the model");
    refused(&["m.onnx", "-o", "link.hipep"], "would overwrite the model");
    refused(&["m.hipep"], "would overwrite the model");
    refused(&["n.constants"], "would overwrite the model");
    refused(&["folder"], "folder is a folder, not a model");
    refused(&["m.onnx", "-o", "k.constants"], "the name of its constants file");
    refused(&["m.onnx", "-o", "/dev/full"], "is no regular file");
    refused(&["m.onnx", "-o", "folder"], "is no regular file");
    refused(&["m.onnx", "-o", "taken.hipep"], "taken.constants: it is there and is no regular file");
    assert!(!f.file("k.constants").exists());
    for name in ["m.onnx", "m.hipep", "n.constants"] {
        assert_eq!(std::fs::read(f.file(name)).expect("still there"), model, "{name}");
    }
    assert!(tool(COMPILER, f.path(), &["m.onnx", "-o", "new.hipep"]).0);
    assert!(tool(COMPILER, f.path(), &["m.onnx", "-o", "new.hipep"]).0, "an artifact may be replaced");
}

#[test]
fn constants_of_another_model_are_refused() {
    let f = Folder::new("tools-stale");
    std::fs::write(f.file("a.onnx"), product(1)).expect("the folder is ours");
    std::fs::write(f.file("b.onnx"), product(2)).expect("the folder is ours");
    let run = |path: &str| tool(TEST, f.path(), &[path, "--shape", "x=3x4"]);
    let compile = |arguments: &[&str]| assert!(tool(COMPILER, f.path(), arguments).0);
    compile(&["a.onnx", "-o", "net.hipep"]);
    assert!(run("net.hipep").0);
    compile(&["b.onnx", "--mode", "native", "-o", "net.so"]);
    assert!(run("net.so").0);
    refused(TEST, f.path(), &["net.hipep", "--shape", "x=3x4"], "belongs to another model");
    // Two forms of one model share the file.
    compile(&["a.onnx", "--mode", "native", "-o", "net.so"]);
    assert!(run("net.hipep").0 && run("net.so").0);
}

#[test]
fn writers_of_one_name_leave_files_that_belong_together() {
    let f = Folder::new("tools-writers");
    let models = [1, 2].map(|seed| Compiler::new().compile_bytes(product(seed), None).expect("it compiles"));
    let path = f.file("net.hipep");
    for _ in 0..100 {
        std::thread::scope(|s| {
            models.iter().for_each(|m| drop(s.spawn(|| m.save(&path).expect("the folder is ours"))));
        });
        let whole = CompiledModel::load(&path).and_then(|m| m.session(DeviceKind::Cpu, Default::default()));
        assert!(whole.is_ok(), "{whole:?}");
    }
}

#[test]
fn the_tester_passes_nothing_without_data() {
    let f = Folder::new("tools-tester");
    let case = f.file("case");
    std::fs::create_dir(&case).expect("the folder is ours");
    let neg = graph().input("x", DType::F32, &["2"]).node("Neg", &["x"], &["y"]).output("y");
    std::fs::write(case.join("model.onnx"), neg.bytes()).expect("the folder is ours");
    let suite = || tool(TEST, f.path(), &["--suite", "case"]);
    let (ok, said) = suite();
    assert!(!ok && said.starts_with("error") && said.contains("no data"), "{said}");
    let set = case.join("test_data_set_0");
    std::fs::create_dir(&set).expect("the folder is ours");
    let write = |name: &str, file: &str, v: [f32; 2]| {
        let bytes = prost::Message::encode_to_vec(&tensor(name, &Tensor::from_f32(&[2], &v)));
        std::fs::write(set.join(file), bytes).expect("the folder is ours");
    };
    write("x", "input_0.pb", [1.0, 2.0]);
    // Inputs alone compare nothing.
    let (ok, said) = suite();
    assert!(!ok && said.starts_with("error") && said.contains("no data"), "{said}");
    write("y", "output_0.pb", [-1.0, f32::INFINITY]);
    let (ok, said) = suite();
    assert!(!ok && said.starts_with("wrong"), "{said}");
    write("y", "output_0.pb", [-1.0, -2.0]);
    let (ok, said) = suite();
    assert!(ok && said.starts_with("pass"), "{said}");
    refused(TEST, f.path(), &["a.hipep", "b.hipep"], "2 artifacts are given");
}

#[test]
fn sizes_of_pools_are_not_asked_at_negative_extents() {
    let f = Folder::new("tools-inspect");
    std::fs::write(f.file("m.onnx"), mixed().bytes()).expect("the folder is ours");
    assert!(tool(COMPILER, f.path(), &["m.onnx"]).0);
    let (ok, said) = tool(INSPECT, f.path(), &["m.hipep", "--memory", "batch=0,h=8"]);
    assert!(ok, "{said}");
    refused(INSPECT, f.path(), &["m.hipep", "--memory", "batch=-8,h=8"], "is not SYMBOL=SIZE");
}

/// A folder with `m.onnx` and `m.hipep`, `y = x · w`.
fn compiled(name: &str) -> Folder {
    let f = Folder::new(name);
    std::fs::write(f.file("m.onnx"), product(1)).expect("the folder is ours");
    assert!(tool(COMPILER, f.path(), &["m.onnx"]).0);
    f
}

/// Writes a tensor of ones with an offset into a data set.
fn put(f: &Folder, file: &str, name: &str, shape: &[usize], offset: f32) {
    let path = f.file(file);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is ours");
    let t = Tensor::from_f32(shape, &vec![1.0 + offset; shape.iter().product()]);
    std::fs::write(path, prost::Message::encode_to_vec(&tensor(name, &t))).expect("the folder is ours");
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let f = compiled("tools-full");
    let calls: [(&str, &[&str]); 9] = [
        (OPT, &["m.onnx"]),
        (OPT, &["--list-passes"]),
        (COMPILER, &["m.onnx"]),
        (COMPILER, &["--docs", "options"]),
        (RUNNER, &["m.onnx"]),
        (RUNNER, &["m.onnx", "--json"]),
        (INSPECT, &["m.hipep"]),
        (TEST, &["m.hipep"]),
        (TEST, &["--suite", "nothing"]),
    ];
    for (exe, arguments) in calls {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is full");
        let out = Command::new(exe).args(arguments).current_dir(f.path()).stdout(full).output().expect("it starts");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{exe} {arguments:?}: {said}");
        assert!(
            said.starts_with("error: cannot write to standard output: ") && said.contains("help "),
            "{exe}: {said}"
        );
    }
}

#[test]
fn the_tester_refuses_what_would_pass_anything() {
    let f = compiled("tools-pass");
    let ones = [("s/input_0.pb", "x", [3, 4]), ("s/output_0.pb", "y", [3, 2])];
    ones.iter().for_each(|(file, name, shape)| put(&f, file, name, shape, 0.0));
    for t in ["nan,nan", "-1,-1", "inf,0", "1e-3", "1,x,2", "1,2,3,4"] {
        let t = format!("--tolerance={t}");
        refused(TEST, f.path(), &["m.hipep", "--data-dir", "s", &t], "is not rtol,atol");
    }
    for (flag, value) in [("--shape", "x=3x4"), ("--input", "x=s/input_0.pb")] {
        let (ok, said) = tool(TEST, f.path(), &["m.hipep", "--data-dir", "s", flag, value]);
        assert!(!ok && said.contains("cannot be used with"), "{said}");
        let (ok, said) = tool(RUNNER, f.path(), &["m.onnx", "--data-dir", "s", flag, value]);
        assert!(!ok && said.contains("cannot be used with"), "{said}");
    }
    refused(TEST, f.path(), &["m.hipep", "--shape", "x=2,4"], "write sizes with an x between them: x=2x3x4");
    refused(TEST, f.path(), &["m.hipep", "--shape", "x=300000000000x4"], "more than the memory that is free");
    // The bytes of u64::MAX / 8 elements.
    refused(TEST, f.path(), &["m.hipep", "--shape", "x=4611686018427387904x4"], "than 64 bits can count");
    let (ok, said) = tool(TEST, f.path(), &["m.hipep", "--sabotage", "expected"]);
    assert!(!ok && said.contains("nothing was broken: there are no expected outputs"), "{said}");
    let (ok, said) = tool(TEST, f.path(), &["m.hipep", "--sabotage", "weight:1"]);
    assert!(!ok && said.contains("nothing was broken: of the 1 weights"), "{said}");
    assert!(
        tool(TEST, f.path(), &["m.hipep", "--sabotage", "weight"]).0,
        "a run that compares nothing notices nothing"
    );
    let neg = graph().input("x", DType::F32, &["n"]).node("Neg", &["x"], &["y"]).output("y");
    std::fs::write(f.file("n.onnx"), neg.bytes()).expect("the folder is ours");
    assert!(tool(COMPILER, f.path(), &["n.onnx"]).0);
    let (ok, said) = tool(TEST, f.path(), &["n.hipep", "--sabotage", "weight"]);
    assert!(!ok && said.contains("nothing was broken: of the 0 weights"), "{said}");
}

#[test]
fn sets_that_are_not_compared_are_told() {
    let f = compiled("tools-sets");
    put(&f, "all/none/input_0.pb", "x", &[3, 4], 0.0);
    put(&f, "all/gap/input_0.pb", "x", &[3, 4], 0.0);
    put(&f, "all/gap/output_1.pb", "y", &[3, 2], 7.0);
    put(&f, "all/wrong/input_0.pb", "x", &[3, 4], 0.0);
    put(&f, "all/wrong/output_0.pb", "y", &[3, 2], 50.0);
    let test = |sets: &[&str]| {
        let dirs = sets.iter().flat_map(|s| ["--data-dir", s]);
        tool(TEST, f.path(), &["m.hipep"].into_iter().chain(dirs).collect::<Vec<_>>())
    };
    let (ok, said) = test(&["all/none"]);
    assert!(ok && said.contains("1 sets, not compared: no expected outputs") && !said.contains("ok"), "{said}");
    let (ok, said) = test(&["all/none", "all/wrong"]);
    assert!(!ok && said.contains("2 sets, 1 of them not compared") && said.ends_with("FAILED\n"), "{said}");
    refused(TEST, f.path(), &["m.hipep", "--data-dir", "all/gap"], "has output_1.pb but no output_0.pb");
    refused(TEST, f.path(), &["m.hipep", "--data-dir", "all"], "3 folders in it do, all/gap to all/wrong");
    let (ok, said) = tool(RUNNER, f.path(), &["m.onnx", "--data-dir", "all/none"]);
    assert!(ok && said.contains("1 of 1 sets not compared: no expected outputs"), "{said}");
    // What is dumped can be read, and an interpreter that agrees says nothing of others.
    assert!(tool(RUNNER, f.path(), &["m.onnx", "--data-dir", "all/none", "--dump", "d"]).0);
    assert!(test(&["d/set_0"]).1.ends_with(": ok\n"));
    refused(TEST, f.path(), &["m.hipep", "--data-dir", "d"], "--data-dir d/set_0");
    refused(RUNNER, f.path(), &["m.onnx", "--dump", "m.onnx/d"], "cannot make the folder m.onnx/d");
}

#[test]
fn what_is_no_model_is_told_with_what_to_do() {
    let f = compiled("tools-models");
    for exe in [OPT, RUNNER, COMPILER] {
        let out: &[&str] = if exe == COMPILER { &["-o", "out.hipep"] } else { &[] };
        let refused = |file: &str, words: &str| refused(exe, f.path(), &[&[file], out].concat(), words);
        refused("m.hipep", "a compiled model\n  file  m.hipep\n  help  run it with hip-test");
        refused("m.constants", "the constants file of a compiled model");
        let text = "onnx module \"m\"\nopset \"\" 17\ngraph(%v0 \"x\" : f32[2]) {\n  %v1 = OP %v0 : ?\n  return %v1 \"y\"\n}\n";
        for (op, words) in [
            ("Relu", "help  an operator is written NAME-VERSION: Relu-6"),
            ("Snap-1", "help  docs/OPS.md has the operators"),
            ("Softmax-13 %v0 {axes = 1} :? %v2 = Relu-6", "help  its attributes are axis"),
        ] {
            std::fs::write(f.file("m.hir"), text.replace("OP", op)).expect("the folder is ours");
            refused("m.hir", words);
        }
    }
    refused(OPT, f.path(), &["m.onnx", "--disable", "mul-won"], "help  did you mean mul-one?");
    let (ok, said) = tool(OPT, f.path(), &["--list-rules"]);
    assert!(ok && said.lines().any(|l| l.starts_with("mul-one ") && l.contains(" exact    (Mul~ ?x 1)")), "{said}");
    let (ok, said) = tool(OPT, f.path(), &["m.onnx", "--disable", "mul-one"]);
    assert!(ok, "{said}");
}

#[test]
fn an_intact_artifact_is_told_as_json_too() {
    let f = compiled("tools-verify");
    let (ok, said) = tool(INSPECT, f.path(), &["m.hipep", "--verify", "--json"]);
    assert!(ok && said.starts_with("{\"constants\":1,\"intact\":true,\"sections\":"), "{said}");
    let (_, said) = tool(INSPECT, f.path(), &["m.hipep"]);
    assert!(said.contains("constants   1 of 32 bytes\n"), "{said}");
}

/// What no shape rule derives is listed on request.
#[test]
fn what_stays_unknown_is_listed() {
    let flat = graph().ints("all", &[-1]).node("Reshape", &["x", "all"], &["f"]).output("f");
    let same = graph().node("Neg", &["x"], &["n"]).output("n");
    let g = graph()
        .input("x", DType::F32, &["n", "m"])
        .input("c", DType::Bool, &[])
        .node_with("If", &["c"], &["y"], vec![body("then_branch", flat), body("else_branch", same)])
        .output("y");
    let f = Folder::new("unknown");
    std::fs::write(f.file("m.onnx"), g.bytes()).unwrap();
    let (ok, out) = tool(OPT, f.path(), &["m.onnx", "--stop-after", "infer", "--report", "--emit", "none"]);
    assert!(ok && out.contains("unknown    ") && out.contains("the rank of \"y\" is not known"), "{out}");
}
