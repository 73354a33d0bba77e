//! What the command-line tools refuse.

use super::kit::*;
use hip_ep::{DType, Tensor};
use std::path::Path;
use std::process::Command;

const COMPILER: &str = env!("CARGO_BIN_EXE_hip-compiler");
const TEST: &str = env!("CARGO_BIN_EXE_hip-test");
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
