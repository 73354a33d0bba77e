//! Empty tensors through whole models: control flow, indexing, counts that only the data tells.

use super::kit::*;
use hip_ep::{DType, Tensor};

fn empty(shape: &[usize]) -> Tensor {
    Tensor::from_f32(shape, &[])
}

#[test]
fn branches_and_loops_take_empty_tensors() {
    let then = graph().node_with("Concat", &["x", "x"], &["a"], vec![int("axis", 0)]).output("a");
    let els = graph().node("Neg", &["x"], &["b"]).output("b");
    let body_graph = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("v", DType::F32, &["rows", "2"])
        .node("Identity", &["go"], &["go_on"])
        .node_with("Concat", &["v", "v"], &["next"], vec![int("axis", 0)])
        .node("Sigmoid", &["next"], &["s"])
        .node_with("ReduceSum", &["s", "axis0"], &["sum"], vec![int("keepdims", 0)])
        .output("go_on")
        .output("s")
        .output("sum");
    let g = graph()
        .input("c", DType::Bool, &[])
        .input("trips", DType::I64, &[])
        .input("x", DType::F32, &["n", "2"])
        .weight("true", &Tensor::from_bool(&[], &[true]))
        .ints("axis0", &[0])
        .node_with("If", &["c"], &["f"], vec![body("then_branch", then), body("else_branch", els)])
        .node_with("Loop", &["trips", "true", "f"], &["last", "sums"], vec![body("body", body_graph)])
        .output("last")
        .output("sums");
    let mut cases = Vec::new();
    for c in [true, false] {
        for trips in [0, 1, 3] {
            for x in [empty(&[0, 2]), random(5, &[2, 2])] {
                cases.push(vec![Tensor::from_bool(&[], &[c]), Tensor::from_i64(&[], &[trips]), x]);
            }
        }
    }
    check(&g, &cases);
}

#[test]
fn indexing_takes_empty_tensors() {
    let g = graph()
        .input("x", DType::F32, &["n", "3"])
        .input("i", DType::I64, &["k"])
        .input("u", DType::F32, &["k", "3"])
        .ints("minus1", &[-1])
        .ints("one", &[1])
        .node_with("Gather", &["x", "i"], &["g"], vec![int("axis", 0)])
        .node("Unsqueeze", &["i", "one"], &["at"])
        .node("ScatterND", &["x", "at", "u"], &["s"])
        .node("GatherND", &["x", "at"], &["gn"])
        .node("NonZero", &["x"], &["nz"])
        .node_with("CumSum", &["u", "zero"], &["cs"], vec![])
        .weight("zero", &Tensor::from_i64(&[], &[0]))
        .node_with("Concat", &["x", "u"], &["cat"], vec![int("axis", 0)])
        .output("g")
        .output("s")
        .output("gn")
        .output("nz")
        .output("cs")
        .output("cat");
    let indices = |v: &[i64]| Tensor::from_i64(&[v.len()], v);
    let cases = [
        vec![empty(&[0, 3]), indices(&[]), empty(&[0, 3])],
        vec![random(6, &[4, 3]), indices(&[]), empty(&[0, 3])],
        vec![random(7, &[4, 3]), indices(&[3, 0]), random(8, &[2, 3])],
    ];
    check(&g, &cases);
}

/// Views without elements begin behind their buffer, or before it.
#[test]
fn empty_views_may_begin_outside_of_their_buffer() {
    let g = graph()
        .input("x", DType::F32, &["s", "4"])
        .ints("0", &[0])
        .ints("1", &[1])
        .ints("3", &[3])
        .ints("4", &[4])
        .ints("-1", &[-1])
        .ints("-9", &[-9])
        .node("Slice", &["x", "3", "4", "1"], &["last"])
        .node_with("ReduceSum", &["last", "0"], &["sum"], vec![int("keepdims", 0)])
        .node("Slice", &["x", "-1", "-9", "0", "-1"], &["back"])
        .node_with("ReduceMax", &["back"], &["tops"], vec![ints("axes", &[1]), int("keepdims", 0)])
        .node("Slice", &["last", "4", "-1", "0"], &["none"])
        .node_with("ReduceSum", &["none", "0"], &["zero"], vec![int("keepdims", 0)])
        .output("sum")
        .output("tops")
        .output("zero");
    check(&g, &[vec![empty(&[0, 4])], vec![random(9, &[4, 4])], vec![random(10, &[2, 4])]]);
}

/// Sums over nothing that is cut from something: strides are those of the whole.
#[test]
fn products_over_no_elements_are_zero() {
    let g = graph()
        .input("x", DType::F32, &["m", "n"])
        .input("w", DType::F32, &["p", "n"])
        .input("end", DType::I64, &["1"])
        .ints("0", &[0])
        .ints("1", &[1])
        .node("Slice", &["x", "0", "end", "1"], &["a"])
        .node("Slice", &["w", "0", "end", "1"], &["b"])
        .node_with("Transpose", &["b"], &["t"], vec![ints("perm", &[1, 0])])
        .node("MatMul", &["a", "t"], &["y"])
        .output("y");
    let case = |m, end| vec![random(1, &[m, 4]), random(2, &[5, 4]), Tensor::from_i64(&[1], &[end])];
    check(&g, &[case(3, 0), case(3, 2), case(70, 0), case(70, -1)]);
}

/// A window in the padding alone has no greatest element and no mean.
#[test]
fn pools_whose_windows_miss_the_image_are_refused() {
    let pool = |op: &str, pads: &[i64]| {
        let attrs = vec![ints("kernel_shape", &[2, 3]), ints("pads", pads)];
        graph().input("x", DType::F32, &["n", "1", "h", "8"]).node_with(op, &["x"], &["y"], attrs).output("y")
    };
    for op in ["MaxPool", "AveragePool"] {
        for (pads, said) in [
            ([0, 3, 0, 0], "a pad of 3 along axis 3 is not below the kernel's extent of 3"),
            ([0, 0, 2, 0], "a pad of 2 along axis 2 is not below the kernel's extent of 2"),
        ] {
            let e = hip_ep::Compiler::new().compile_bytes(pool(op, &pads).bytes(), None).unwrap_err().to_string();
            assert!(e.contains(&format!("{op}: {said}")) && e.contains("/y") && e.contains("help"), "{e}");
        }
        check(&pool(op, &[1, 2, 1, 2]), &[vec![random(1, &[1, 1, 1, 8])], vec![random(2, &[2, 1, 5, 8])]]);
    }
}

/// A window that is larger than the padded image: the formula rounds down to no window, others count one that leaves the image.
#[test]
fn windows_larger_than_the_image_are_refused() {
    let pool = |op: &str| {
        graph()
            .input("x", DType::F32, &["n", "1", "h", "8"])
            .node_with(op, &["x"], &["p"], vec![ints("kernel_shape", &[4, 2]), ints("strides", &[2, 2])])
            .node("GlobalAveragePool", &["p"], &["y"])
            .output("y")
    };
    for op in ["MaxPool", "AveragePool"] {
        let m = check(&pool(op), &[vec![random(1, &[1, 1, 4, 8])], vec![random(2, &[2, 1, 9, 8])]]);
        let s = session(&m, hip_ep::DeviceKind::Cpu);
        let e = s.collect(&hip_ep::RunInputs::in_order(&[random(3, &[1, 1, 3, 8])]), &Default::default()).unwrap_err();
        let said = e.to_string();
        assert!(said.contains("a window must not be larger than the padded image") && said.contains("/p"), "{said}");
        let mut fixed = pool(op);
        fixed.0.input.clear();
        let fixed = fixed.input("x", DType::F32, &["1", "1", "3", "8"]);
        let e = hip_ep::Compiler::new().compile_bytes(fixed.bytes(), None).unwrap_err().to_string();
        assert!(e.contains("a window of 4 is larger than the padded image, 3 along axis 2") && e.contains("/p"), "{e}");
    }
}

/// An index into an axis without elements is refused: there is nothing that it could be clamped to.
#[test]
fn indices_need_something_to_look_into() {
    let aligned = graph()
        .input("x", DType::F32, &["n", "2", "3", "4"])
        .input("r", DType::F32, &["m", "4"])
        .input("i", DType::I64, &["m"])
        .node("RoiAlign", &["x", "r", "i"], &["a"])
        .node("Relu", &["a"], &["y"])
        .output("y");
    let regions = |n: usize, m: usize| {
        let r = Tensor::from_f32(&[m, 4], &[0.0, 0.0, 2.0, 2.0].repeat(m));
        vec![random(1, &[n, 2, 3, 4]), r, Tensor::from_i64(&[m], &vec![0; m])]
    };
    check(&aligned, &[regions(2, 3), regions(1, 0), regions(0, 0)]);
    refuses(&aligned, &regions(0, 2), "there is no image for regions");
    let lost = graph()
        .input("s", DType::F32, &["n", "c"])
        .input("t", DType::I64, &["n"])
        .node_with("NegativeLogLikelihoodLoss", &["s", "t"], &["y"], vec![text("reduction", "none")])
        .output("y");
    let samples = |n: usize, c: usize| vec![random(2, &[n, c]), Tensor::from_i64(&[n], &vec![0; n])];
    check(&lost, &[samples(3, 2), samples(0, 2), samples(0, 0)]);
    refuses(&lost, &samples(2, 0), "there is no class for targets");
}
