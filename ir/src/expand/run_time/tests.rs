use crate::expand::expand;
use crate::infer::infer;
use crate::interp;
use crate::op::Registry;
use crate::text::{parse_onnx, print_onnx};
use tensor::dims::Origin;
use tensor::{DType, Tensor};

/// The model of one node gives the same before and after expansion, which leaves no extent open.
fn check(head: &str, node: &str, inputs: &[Tensor]) {
    let text = format!("onnx module \"m\"\nopset \"\" 18\n{head} {{ {node} return %v9 \"y\" }}");
    let mut m = parse_onnx(&text, &Registry::builtin()).unwrap();
    infer(&mut m).unwrap();
    let want = interp::run(&m, inputs).unwrap();
    assert!(expand(&mut m).unwrap(), "{text}");
    crate::verify::verify_onnx(&m).unwrap();
    let left = print_onnx(&m);
    assert!(!expand(&mut m).unwrap(), "nothing is left to expand");
    let got = interp::run(&m, inputs).unwrap_or_else(|e| panic!("{e}\n{left}"));
    assert_eq!(got[0].shape(), want[0].shape(), "{left}");
    assert_eq!(got[0].to_f64_vec(), want[0].to_f64_vec(), "{left}");
    let ty = &m.graph().values[m.graph().outputs[0]].ty;
    let symbols = ty.shape().into_iter().flatten().flat_map(|&d| m.dims.symbols_of(d));
    assert!(symbols.into_iter().all(|s| m.dims.sym(s).origin != Origin::Unknown), "{left}");
}

fn counted(shape: &[usize]) -> Tensor {
    let v: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32 - 3.0).collect();
    Tensor::from_f32(shape, &v)
}

fn ints(v: &[i64]) -> Tensor {
    Tensor::from_i64(&[v.len()], v)
}

#[test]
fn ranges_of_floats() {
    let cases = [(1.0, 5.0, 2.0), (1.0, 5.0, 0.3), (10.0, 6.0, -1.5), (3.0, 1.0, 1.0), (0.0, 1.0, 0.1)];
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let head = format!("graph(%v0 \"s\" : {dtype}[], %v1 \"l\" : {dtype}[], %v2 \"d\" : {dtype}[])");
        let node = format!("%v9 = Range-11 %v0, %v1, %v2 : {dtype}[*]");
        for (s, l, d) in cases {
            let ins = [s, l, d].map(|v| Tensor::from_f64_as(dtype, &[], &[v]));
            check(&head, &node, &ins);
        }
    }
    let head = "graph(%v0 \"s\" : i16[], %v1 \"l\" : i16[], %v2 \"d\" : i16[])";
    let ins = [5, -4, -2].map(|v| Tensor::from_i64_as(DType::I16, &[], &[v]));
    check(head, "%v9 = Range-11 %v0, %v1, %v2 : i16[*]", &ins);
}

#[test]
fn depths_that_are_floats() {
    let head = "graph(%v0 \"i\" : i64[3], %v1 \"n\" : f32[], %v2 \"v\" : f32[2])";
    let ins = [ints(&[0, 4, -1]), Tensor::from_f32(&[], &[5.7]), counted(&[2])];
    check(head, "%v9 = OneHot-11 %v0, %v1, %v2 : f32[*]", &ins);
}

#[test]
fn unsqueezed_axes() {
    for (shape, axes) in [
        (vec![3, 4, 5], vec![0]),
        (vec![3, 4, 5], vec![-1]),
        (vec![3, 4, 5], vec![2, 4, 5]),
        (vec![3, 4, 5], vec![5, 4, 2]),
        (vec![1, 3, 1, 5], vec![-2, 0]),
        (vec![0, 3], vec![1]),
        (vec![], vec![1, 0]),
    ] {
        let dims: Vec<String> = shape.iter().map(|n: &usize| n.to_string()).collect();
        let head = format!("graph(%v0 \"x\" : f32[{}], %v1 \"a\" : i64[{}])", dims.join(", "), axes.len());
        check(&head, "%v9 = Unsqueeze-13 %v0, %v1 : f32[*]", &[counted(&shape), ints(&axes)]);
    }
}

#[test]
fn padded_axes() {
    let head = "graph(%v0 \"x\" : f32[1, 3, 4], %v1 \"p\" : i64[4], %v2 \"c\" : f32[], %v3 \"a\" : i64[2])";
    for mode in ["constant", "edge", "reflect"] {
        let node = format!("%v9 = Pad-18 %v0, %v1, %v2, %v3 {{mode = \"{mode}\"}} : f32[*]");
        for axes in [[1, 2], [2, 1], [-1, -2]] {
            let ins = [counted(&[1, 3, 4]), ints(&[0, 1, 2, -1]), Tensor::from_f32(&[], &[7.0]), ints(&axes)];
            check(head, &node, &ins);
        }
    }
}

#[test]
fn sliced_axes() {
    let head = "graph(%v0 \"x\" : f32[4, 5, 6], %v1 \"s\" : i64[3], %v2 \"e\" : i64[3], %v3 \"a\" : i64[3], \
        %v4 \"t\" : i64[3])";
    for axes in [[0, 1, 2], [2, 0, 1], [-1, 1, -3]] {
        let ins =
            [counted(&[4, 5, 6]), ints(&[0, -1, 3]), ints(&[i64::MAX, i64::MIN, 4]), ints(&axes), ints(&[2, -1, 1])];
        check(head, "%v9 = Slice-13 %v0, %v1, %v2, %v3, %v4 : f32[*]", &ins);
        check(head, "%v9 = Slice-13 %v0, %v1, %v2, %v3 : f32[*]", &ins);
    }
}

#[test]
fn reduced_axes() {
    for (noop, axes) in [(0, vec![]), (1, vec![]), (0, vec![1]), (1, vec![-1, 0]), (0, vec![2, 0, 1])] {
        let head = "dim n : input(1, 0)\ngraph(%v0 \"x\" : f32[2, 3, 4], %v1 \"a\" : i64[n])";
        for name in ["ReduceSum-13", "ReduceMax-18", "ReduceL1-18"] {
            let node = format!("%v9 = {name} %v0, %v1 {{noop_with_empty_axes = {noop}}} : f32[*]");
            check(head, &node, &[counted(&[2, 3, 4]), ints(&axes)]);
        }
    }
}
