//! What the verifiers accept and refuse.

use crate::import::import;
use crate::model::*;
use ir::text::{parse_hip, parse_onnx, print_onnx};
use ir::verify::{verify_hip, verify_onnx};

const ONNX: &str = r#"onnx module "m"
dim b : input(0, 0)
const @c0 : f32[2] = [0.5, 1.0]

graph(%v0 "x" : f32[b, 2], %v1 : bool[]) {
  %v2 = Add-7 %v0, @c0 : f32[b, 2]  ; /add
  %v3 = test:Mixed-1 %v2 {i = 1} : f32[b, 2]  ; /mixed
  %v4 = If-1 %v1 captures [%v3] : f32[b, 2]  ; /if
  region then_branch(%v0 : f32[b, 2]) {
    %v1 = Relu-1 %v0 : f32[b, 2]
    return %v1
  }
  region else_branch(%v0 : f32[b, 2]) {
    return %v0
  }
  return %v4 "y"
}
"#;

#[track_caller]
fn onnx(from: &str, to: &str, expected: &str) {
    let text = ONNX.replacen(from, to, 1);
    assert_ne!(text, ONNX);
    let m = parse_onnx(&text, &registry()).unwrap();
    let e = verify_onnx(&m).expect_err("must be refused").to_string();
    assert_eq!(e.lines().next(), Some(expected), "\n--- got ---\n{e}\n");
}

#[test]
fn imported_models_are_accepted() {
    for m in [small(), nested()] {
        verify_onnx(&import(&m).unwrap()).unwrap();
    }
    let m = parse_onnx(ONNX, &registry()).unwrap();
    verify_onnx(&m).unwrap_or_else(|e| panic!("{e}\n{}", print_onnx(&m)));
}

#[test]
fn onnx_rules() {
    onnx("Add-7 %v0", "Add-7 %v4", "operand 0, %v4, is used before it is defined");
    onnx("Add-7 %v0, @c0", "Add-7 %v0", "Add-7 needs operand 1, \"B\"");
    onnx("Add-7 %v0, @c0", "Add-7 %v0, @c0, @c0", "Add-7 has at most 2 operands but 3 are given");
    onnx(
        ": f32[b, 2]  ; /add",
        ": f64[b, 2]  ; /add",
        "Add-7: operand 0 is f32 but result 0 is f64; they must be equal",
    );
    onnx(
        "Add-7 %v0, @c0 : f32",
        "Add-7 %v1, %v1 : bool",
        "Add-7: operand 0 is bool, which is not one of f32, f16, f64",
    );
    onnx("{i = 1}", "{i = _}", "attribute \"i\" must be IntReq but is Absent");
    onnx(
        "then_branch(%v0 : f32[b, 2]) {",
        "then_branch() {\n %v0 = Relu-1 @c0 : ?",
        "r1 has fewer parameters than the node has captures",
    );
    onnx(
        "else_branch(%v0 : f32[b, 2]) {",
        "else_branch(%v0 : f16[b, 2]) {",
        "%v3 of r0 is f32, but the parameter %v0 of r2 that it is captured as is f16",
    );
    onnx("  region else_branch(%v0 : f32[b, 2]) {\n    return %v0\n  }\n", "", "If-1 has 2 bodies but 1 are given");
}

const HIP: &str = r#"hip module "m"
dim b : input(0, 0)
const @c0 : f32[8, 8] = splat 1.0

graph(%v0 "x" : f32[b, 8], %v1 : bool[]) {
  %v2 = const @c0 : f32[8, 8]
  %v3 = alloc : f32[4, 8]
  call gemm.f32 %v0, %v2 -> %v3  ; /gemm
  %v4 = view %v3 offset(8) : f32[3, 8]  ; /view
  %v5 = output(0) : f32[b, 8]
  launch %v4 -> %v5 {
    outer [b] inner [8]
    p0 : f32[3, 8]
    p1 : f32[b, 8] written
    e0 = load p0[o0, i0]
    e1 = reduced 0
    e2 = Sub e0, e1
    reduce Max e0
    store inner p1[o0, i0] = e2
  }  ; /sub
  %v6 = if %v1 captures [%v3] : f32[8]
  region(%v0 : f32[4, 8]) {
    %v1 = alloc : f32[8]
    copy %v0 -> %v1
    return %v1
  }
  region(%v0 : f32[4, 8]) {
    %v1 = alloc : f32[8]
    call fill -> %v1
    return %v1
  }
  return %v5 "y"
}
"#;

#[track_caller]
fn hip(from: &str, to: &str, expected: &str) {
    let text = HIP.replacen(from, to, 1).replace("    copy %v0 -> %v1\n", "    call f %v0 -> %v1\n");
    let m = parse_hip(&text, &registry()).unwrap();
    match (verify_hip(&m), expected) {
        (Ok(()), "") => {}
        (Err(e), _) => assert_eq!(e.to_string().lines().next(), Some(expected), "\n--- got ---\n{e}\n"),
        (Ok(()), _) => panic!("accepted, but expected: {expected}"),
    }
}

#[test]
fn hip_rules() {
    hip("", "", "");
    hip("  call gemm.f32 %v0, %v2 -> %v3  ; /gemm\n", "", "%v3 is read before anything is written to it");
    hip("-> %v3  ; /gemm", "-> %v2  ; /gemm", "writes to %v2, which is a constant or an input of the graph");
    hip("offset(8)", "offset(9)", "the view shows elements 9 to 32 of a buffer that has 0 to 31");
    hip("view %v3 offset(8) : f32[3, 8]", "view %v3 offset(8) : f16[3, 8]", "a view of f32 as f16");
    hip("    call fill -> %v1\n", "", "%v1 is read before anything is written to it");
    hip(
        "    return %v1\n",
        "    return %v0\n",
        "output %v0 of r1 is not a buffer that the body allocates for it alone",
    );
    hip("%v5 = output(0)", "%v5 = output(1)", "graph output 1 is handed out twice, in a body, or does not exist");
    hip("%v5 = output(0)", "%v5 = alloc", "nothing hands out graph output 0");
    hip("if %v1 captures", "if %v0 captures", "a condition is bool, not f32");
}

#[test]
fn nest_rules() {
    hip("load p0[o0, i0]", "load p0[o0]", "p0 has 2 axes but 1 coordinates");
    hip("load p0[o0, i0]", "load p0[o0, i1]", "Inner(1) is beyond the 1 axes there are");
    hip("Sub e0, e1", "Sub e0, e2", "e2 is used before it is defined");
    hip("e1 = reduced 0", "e1 = int 0 : i64", "Sub takes two operands of one type, not f32 and i64");
    hip("e2 = Sub e0, e1", "e2 = Not e0", "Not takes a bool");
    hip("e2 = Sub e0, e1", "e2 = load p0[o0, e0]", "e0 is a coordinate but is f32, not i64");
    hip(
        "    reduce Max e0\n    store inner p1[o0, i0] = e2\n",
        "    store inner p1[o0, i0] = e2\n    reduce Max e0\n",
        "phase 0 uses reduction 0 before it is complete",
    );
    hip("store inner p1[o0, i0]", "store p1[o0, i0]", "phase 1 stores once but depends on an inner axis");
    hip("= e2\n  }", "= e2\n    store inner p0[o0, i0] = e2\n  }", "phase 2 stores to p0, which is only read");
    hip("    store inner p1[o0, i0] = e2\n", "", "p1 is written by no store");
    hip("launch %v4 -> %v5", "launch %v5 -> %v5", "p0 and p1 are one buffer, and points touch what is not their own");
    hip("p0 : f32[3, 8]", "p0 : f16[3, 8]", "operand 0 is f32 but the nest's p0 is f16");
}

/// Pairs of a module that carries its first input into its output, with other nodes before and after.
#[track_caller]
fn shares(before: &str, after: &str, expected: &[(u32, u32)]) {
    for op in ["carry", "reuse"] {
        let text = format!(
            "hip module \"m\"\ndim b : input(0, 0)\n\ngraph(%v0 \"past\" : f32[b, 8], %v1 \"x\" : f32[b, 8], %v2 : bool[]) {{\n  \
             %v3 = output(0) : f32[b, 8]\n  %v4 = alloc : f32[b, 8]\n{before}  {op} %v0 -> %v3\n  copy %v1 -> %v3\n{after}  \
             return %v3 \"present\"\n}}\n"
        );
        let m = parse_hip(&text, &registry()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(ir::hip::aliases(&m), expected, "{text}");
    }
}

#[test]
fn memory_is_shared_where_the_past_is_read_before() {
    shares("", "", &[(0, 0)]);
    shares("  copy %v0 -> %v4\n", "  copy %v3 -> %v4\n", &[(0, 0)]);
    shares("", "  copy %v0 -> %v4\n", &[]);
    shares("", "  %v5 = view %v0 offset(0) : f32[8, b]\n  host_call Softmax-13 %v5 -> %v4 {axis = 0}\n", &[]);
    shares("  copy %v1 -> %v3\n", "", &[]);
    shares("", "  carry %v0 -> %v4\n", &[]);
    let branch = "  %v5 = if %v2 captures [%v0] : f32[8]\n  region(%v0 : f32[b, 8]) {\n    %v1 = alloc : f32[8]\n    return %v1\n  }\n  \
                  region(%v0 : f32[b, 8]) {\n    %v1 = alloc : f32[8]\n    return %v1\n  }\n";
    shares("", branch, &[]);
    shares(branch, "", &[(0, 0)]);
}
