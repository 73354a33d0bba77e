//! Models that were exported import to the same text.

use crate::import::import;
use crate::model::*;
use ir::export::{to_onnx, to_proto};
use ir::import::import_bytes;
use ir::text::{parse_onnx, print_onnx};
use ir::{Module, Onnx};

/// The text without names and numbers of constants, which export may change.
fn shape_of(m: &Module<Onnx>) -> Vec<String> {
    print_onnx(m).lines().filter(|l| !l.starts_with("const") && !l.is_empty()).map(strip).collect()
}

fn strip(line: &str) -> String {
    // Numbers of values and constants, and quoted names.
    let mut out = String::new();
    let mut it = line.chars().peekable();
    while let Some(c) = it.next() {
        out.push(c);
        match c {
            '"' => while it.next_if(|&c| c != '"').is_some() {},
            '%' | '@' => {
                it.next();
                while it.next_if(char::is_ascii_digit).is_some() {}
            }
            _ => {}
        }
    }
    out
}

#[track_caller]
fn check(m: &Module<Onnx>) {
    let bytes = to_onnx(m).unwrap();
    let back = import_bytes(bytes.into(), None, &registry()).unwrap();
    assert_eq!(shape_of(&back), shape_of(m), "\n{}\n{}", print_onnx(m), print_onnx(&back));
    let consts = |m: &Module<Onnx>| {
        let mut all: Vec<String> = m.consts.values().map(|c| format!("{:?} {:?}", c.name, c.read().unwrap())).collect();
        all.sort();
        all
    };
    assert_eq!(consts(&back), consts(m));
}

#[test]
fn models_come_back() {
    check(&import(&small()).unwrap());
    check(&import(&nested()).unwrap());
}

#[test]
fn attributes_come_back() {
    let text = r#"onnx module "m"
opset "test" 1
dim b : input(0, 0)
const @c0 "t" : i64[2] = [1, 2]

graph(%v0 "x" : f32[b, 2], %v1 "s" : seq<i64[*]>) {
  %v2 = test:Mixed-1 %v0, _, %v0 {i = -1, f = 2.5, s = "s", is = [1, -2], fs = [0.5], ss = ["a", "b"], t = @c0, ty = opt<f32[2]>} : f32[b, 2]  ; /m
  return %v2 "y"
}
"#;
    check(&parse_onnx(text, &registry()).unwrap());
}

#[test]
fn a_value_that_is_two_outputs_gets_a_copy() {
    let text = r#"onnx module "m"

graph(%v0 "x" : f32[2]) {
  %v1 = Relu-1 %v0 : f32[2]
  return %v1 "y", %v1 "y"
}
"#;
    let p = to_proto(&parse_onnx(text, &registry()).unwrap()).unwrap();
    let g = p.graph.unwrap();
    let names: Vec<&str> = g.output.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["y", "y_out"]);
    assert_eq!(g.node[1].op_type, "Identity");
}

#[test]
fn rows_of_versions_that_never_met_are_refused() {
    let text = r#"onnx module "m"

graph(%v0 "x" : f32[2]) {
  %v1 = Softmax-1 %v0 : f32[2]
  %v2 = Softmax-13 %v1 : f32[2]
  return %v2 "y"
}
"#;
    let e = to_proto(&parse_onnx(text, &registry()).unwrap()).unwrap_err();
    assert_eq!(e.message(), "no version of the operator set \"ai.onnx\" has both Softmax-13 and Softmax-1 (until 12)");
}
