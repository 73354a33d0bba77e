//! The text form: goldens, reading back, errors with their places.

use crate::import::import;
use crate::model::*;
use ir::consts::{Const, ConstData};
use ir::text::*;
use ir::{Module, Onnx};
use tensor::dims::Origin;
use tensor::{DType, Tensor};

/// Reads a text and prints it again.
#[track_caller]
fn same_onnx(text: &str) {
    let m = parse_onnx(text, &registry()).unwrap();
    assert_eq!(print_onnx(&m), text);
}

#[track_caller]
fn same_hip(text: &str) {
    let m = parse_hip(text, &registry()).unwrap();
    let again = print_hip(&m);
    assert_eq!(again, text, "\n--- got ---\n{again}");
}

const SMALL: &str = r#"onnx module "main"
producer "test"
opset "" 17
opset "test" 1
dim batch : input(0, 0)
const @c0 "w" : f32[2] = [0.5, -1.0]

graph(%v0 "x" : f32[batch, 2]) {
  %v2 = Add-7 %v0, @c0 : ?  ; /add
  %v3 = Softmax-13 %v2 : f32[batch, 2]  ; /softmax
  return %v3 "y"
}
"#;

#[test]
fn a_small_model() {
    assert_eq!(print_onnx(&import(&small()).unwrap()), SMALL);
    // What was read has the same text but for constants, which are numbered when first used.
    let again = print_onnx(&parse_onnx(SMALL, &registry()).unwrap());
    assert_eq!(again, SMALL);
}

#[test]
fn bodies_nest() {
    let text = print_onnx(&import(&nested()).unwrap());
    let expected = r#"onnx module "main"
producer "test"
opset "" 17
opset "test" 1
const @c0 "trips" : i64[] = [3]
const @c1 "w" : f32[2] = [1.0, 2.0]

graph(%v0 "x" : f32[2], %v1 "c" : bool[]) {
  %v2 = Relu-1 %v0 : ?  ; h
  %v3 = If-1 %v1 captures [%v2, %v0] : f32[2]  ; if
  region then_branch(%v0 : ?, %v1 : f32[2]) {
    %v3, %v4 = Loop-1 @c0, _, %v0 captures [%v1] : ?, ?  ; if/then_branch/loop
    region body(%v0 : i64[*], %v1 : bool[*], %v2 : f32[*], %v3 : f32[2]) {
      %v4 = Add-7 %v2, %v3 : ?  ; if/then_branch/loop/body/Add(s)
      %v6 = Add-7 %v4, @c1 : ?  ; if/then_branch/loop/body/Add(acc_next)
      %v7 = Relu-1 %v4 : ?  ; if/then_branch/loop/body/Relu(row)
      return %v1, %v6, %v7
    }
    return %v3
  }
  region else_branch(%v0 : ?, %v1 : f32[2]) {
    %v2 = Relu-1 %v0 : ?  ; if/else_branch/Relu(r)
    return %v2
  }
  return %v3 "y"
}
"#;
    assert_eq!(text, expected, "\n--- got ---\n{text}");
    same_onnx(expected);
}

#[test]
fn everything_the_onnx_dialect_has() {
    same_onnx(
        r#"onnx module "a \"quoted\" name"
producer "by hand"
opset "test" 1
prop "k" "v"
dim b : input(0, 0) in 1..512 multiple 8
dim "odd name" : unknown in -3..
dim n : device_result
dim k : shape_value in 0..7
dim r : region
guard b == 2*n : "they meet" at "/node"
guard n <= floordiv(b, 3) + 1 : "it fits"
const @c0 : f32[0] = []
const @c1 "inf" : f32[4] = [inf, -inf, NaN, 1e-45]
const @c2 : f32[1] = bits "010080ff"
const @c3 : f16[1000, 2] = splat 0.5
const @c4 : str[2] = ["a\nb", ""]
const @c5 : i4[3] = [-8, 7, 0]
const @c6 : bool[2] = [true, false]
const @c7 "big" : u8[100] = digest "abc"
const @c8 : u64[] = [18446744073709551615]
const @c9 : f64[8] = file("w.bin", 64, 64)
const @c10 : f32[1000000000000] = splat bits "010080ff"
const @c11 : bf16[3, 4] = seeded(7, 0.0, 0.125)

graph(%v0 "x" : f32[b, 2*n - 1], %v1 : seq<i64[*]>, %v2 : opt<map<str, f32[2]>>, %v9 : f32[*]) {
  %v4 = test:Mixed-1 %v0, _, %v9, @c3 {i = -1} : f32["odd name"*k]  ; "; odd\norigin"
  %v5, %v6 = test:Mixed-1 %v4 {i = 2, f = 1e-10, s = "s", is = [1, -2], fs = [0.5, NaN], ss = ["a", "b"], t = @c5, ty = seq<f32[*]>} : ?, f32[]
  return %v5 "y", %v0 "x", @c1 "inf"
}
"#,
    );
}

const HIP: &str = r#"hip module "m"
dim b : input(0, 0)
dim n : device_result
dim i : region
dim len : region
dim last : shape_value
const @c0 "w" : f32[8, 8] = splat 1.0

graph(%v0 "x" : f32[b, 8], %v1 : bool[] mapped) {
  %v2 = const @c0 : f32[8, 8] packed
  %v3 = alloc : f32[b, 8]  ; /h
  call gemm.f32 %v0, %v2 -> %v3 ints [1, b, 8, 8*b] scalars [1.0, -inf]  ; /h
  %v4 = view %v3 offset(4*b + 1) : f32[8, b] strides(1, 8)
  %v5 = output(0) : f32[b, 8]
  launch %v3 -> %v5 {
    outer [b] inner [8]
    p0 : f32[b, 8]
    p1 : f32[b, 8] strides(1, b) written
    e0 = load p0[o0, i0]
    e1 = reduced 0
    e2 = Sub e0, e1
    e3 = Exp e2
    e4 = float 0.5 : f32
    e5 = int -3 : i64
    e6 = index i0
    e7 = dim (2*b + 1)
    e8 = Lt e6, e7
    e9 = load_if e8 p0[o0, 2*i0 + e6 + (b - 1)] else e4
    e10 = select e8, e3, e9
    e11 = cast e10 : f64
    e12 = round e10 : bf16
    reduce Max e0
    reduce Sum e3, ArgMax e0
    store inner p1[o0, i0] = e12
    store p1[o0, (b)*i0 + 3] = e4, p1[0, 0] = e4
  }  ; /softmax
  host_call Softmax-13 %v3 -> %v5 {axis = 0}
  copy %v0 -> %v3
  carry %v0 -> %v5
  reuse %v0 -> %v5
  %v6 = alloc : i64[2] mapped
  store_dims [b, 8*b] -> %v6
  readback n(1) max(8*b) %v6
  %v7 = if %v1 captures [%v3] dims [last = (b, n)] : f32[last]
  region(%v0 : f32[b, 8]) {
    %v1 = alloc : f32[b]
    return %v1
  }
  region(%v0 : f32[b, 8]) {
    %v1 = alloc : f32[n]
    return %v1
  }
  %v8 = loop _, %v3 captures [%v0] iter i trips(n) cond carried 1 counts [last] dims [len = (b, len + 1) -> last] : f32[len, 8]
  region(%v0 : f32[len, 8], %v1 : f32[b, 8]) {
    %v2 = alloc : bool[] host
    %v3 = alloc : f32[len + 1, 8]
    return %v2, %v3
  }
  pass_output(1) %v0
  return %v5 "y", %v0 "x"
}
"#;

/// Texts that fuzzing starts from.
pub const SEEDS: &[&str] = &[HIP];

#[test]
fn everything_the_hip_dialect_has() {
    same_hip(HIP);
}

#[test]
fn large_constants_are_digests_or_in_a_sidecar() {
    let mut m = import(&small()).unwrap();
    let t = Tensor::from_f32(&[100], &(0..100).map(|i| i as f32).collect::<Vec<_>>());
    m.consts.push(Const::from_tensor("big", &t));
    let text = print_onnx(&m);
    assert!(text.contains("const @c1 \"big\" : f32[100] = digest \""), "{text}");
    let read = parse_onnx(&text, &registry()).unwrap();
    assert_eq!(print_onnx(&read), text);
    let c = read.consts.values().last().unwrap();
    assert!(matches!(c.data, ConstData::Digest(_)));
    assert!(c.read().unwrap_err().to_string().starts_with("only the digest of a constant is known"));

    let mut options =
        PrintOptions { sidecar: Some(Sidecar { path: "side.bin".into(), bytes: Vec::new() }), ..Default::default() };
    let text = print_onnx_with(&m, &mut options);
    let dir = crate::import::tempdir("sidecar");
    std::fs::write(dir.join("side.bin"), options.sidecar.unwrap().bytes).unwrap();
    let read = parse_onnx_in(&text, &registry(), &dir).unwrap();
    assert_eq!(read.consts.values().last().unwrap().read().unwrap(), t);
}

#[test]
fn numbers_of_values_are_kept() {
    let text = SMALL.replace("%v2", "%v20").replace("%v3", "%v7");
    same_onnx(&text);
}

#[test]
fn facts_and_origins_of_dims_are_kept() {
    let mut m: Module<Onnx> = import(&small()).unwrap();
    let s = m.dims.find_symbol("batch").unwrap();
    m.dims.sym_mut(s).hi = 64;
    m.dims.sym_mut(s).multiple_of = 4;
    let read = parse_onnx(&print_onnx(&m), &registry()).unwrap();
    let s = read.dims.sym(read.dims.find_symbol("batch").unwrap());
    assert_eq!((s.lo, s.hi, s.multiple_of, &s.origin), (0, 64, 4, &Origin::Input { input: 0, axis: 0 }));
    assert_eq!(read.consts.values().next().unwrap().dtype, DType::F32);
}

#[track_caller]
fn fails(from: &str, to: &str, expected: &str) {
    let text = SMALL.replacen(from, to, 1);
    assert_ne!(text, SMALL, "the text to change is there");
    let e = parse_onnx(&text, &registry()).expect_err("must fail").to_string();
    let (e, help) = e.rsplit_once("\n  help  ").expect("it says what to do");
    assert!(["docs/IR.md", "docs/OPS.md", "attributes"].iter().any(|w| help.contains(w)), "{help}");
    assert_eq!(e, expected.trim_start_matches('\n'), "\n--- got ---\n{e}\n");
}

#[test]
fn errors_say_what_to_write() {
    let help = |from: &str, to: &str| {
        let e = parse_onnx(&SMALL.replacen(from, to, 1), &registry()).expect_err("must fail").to_string();
        e.rsplit_once("\n  help  ").expect("it says what to do").1.to_string()
    };
    let all = help("Softmax-13", "Softmax");
    assert!(all.starts_with("an operator is written NAME-VERSION: ") && all.contains("Softmax-13"), "{all}");
    assert!(help("Softmax-13", "Sotfmax").starts_with("an operator is written NAME-VERSION: Relu-6"));
    let all = help("Softmax-13", "Softmax-0");
    assert!(all.contains(": of this name there are ") && all.ends_with("Softmax-13"), "{all}");
    assert_eq!(help("Softmax-13 %v2", "Softmax-13 %v2 {axes = 1}"), "its attributes are axis");
    assert_eq!(help("Add-7 %v0, @c0", "Add-7 %v0, @c0 {axis = 1}"), "its attributes are none");
}

#[test]
fn errors_say_where_and_what() {
    fails(
        "Add-7 %v0, @c0",
        "Add-7 %v0 @c0",
        "
line 9, column 19: expected \":\", found \"@\"
  line  %v2 = Add-7 %v0 @c0 : ?  ; /add",
    );
    fails(
        "Softmax-13 %v2",
        "Softmax-13 %v9",
        "
line 10, column 20: %v9 is not defined in this graph
  line  %v3 = Softmax-13 %v9 : f32[batch, 2]  ; /softmax",
    );
    fails(
        "[batch, 2]) {",
        "[batsch, 2]) {",
        "
line 8, column 21: there is no dim \"batsch\"
  line  graph(%v0 \"x\" : f32[batsch, 2]) {",
    );
    fails("Softmax-13", "Sotfmax-13", "line 10, column 9: there is no operator Sotfmax of domain \"\" at version 13");
    fails(
        "Softmax-13 %v2",
        "Softmax-13 %v2 {axes = 1}",
        "
line 10, column 25: Softmax-13 has no attribute \"axes\"
  line  %v3 = Softmax-13 %v2 {axes = 1} : f32[batch, 2]  ; /softmax",
    );
    fails(
        "%v3 =",
        "%v2 =",
        "
line 10, column 3: %v2 is defined twice
  line  %v2 = Softmax-13 %v2 : f32[batch, 2]  ; /softmax",
    );
    fails(
        "= [0.5, -1.0]",
        "= [0.5]",
        "
line 6, column 26: f32[2] cannot hold 1 values
  line  const @c0 \"w\" : f32[2] = [0.5]",
    );
    fails(
        "  return %v3 \"y\"\n}",
        "}",
        "
line 11, column 1: expected a node or \"return\", found \"}\"
  line  }",
    );
    fails(
        "opset \"\" 17",
        "opset \"\" seventeen",
        "
line 3, column 9: \"seventeen\" is not a 64-bit integer
  line  opset \"\" seventeen",
    );
    fails(
        "%v3 = Soft",
        "%v99999999 = Soft",
        "
line 10, column 3: value number 99999999 is too large
  line  %v99999999 = Softmax-13 %v2 : f32[batch, 2]  ; /softmax",
    );
    fails(
        "onnx module",
        "onnx nodule",
        "
line 1, column 6: expected \"module\", found \"nodule\"
  line  onnx nodule \"main\"",
    );
}
