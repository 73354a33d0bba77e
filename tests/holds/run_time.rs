//! Extents and axes that only a run knows.

use super::kit::*;
use hip_ep::{Compiler, DType, DeviceKind, RunInputs, Tensor};
use prost::Message;

fn list(v: &[i64]) -> Tensor {
    Tensor::from_i64(&[v.len()], v)
}

/// A range of floats and what is computed from it; a range without an end does not start.
#[test]
fn ranges_end_where_floats_say() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let g = graph()
            .input("start", dtype, &[])
            .input("limit", dtype, &["1"])
            .input("delta", dtype, &[])
            .node("Range", &["start", "limit", "delta"], &["r"])
            .node("Neg", &["r"], &["y"])
            .output("y");
        let case = |s: f64, l: f64, d: f64| {
            let t = |shape: &[usize], v| Tensor::from_f64_as(dtype, shape, &[v]);
            vec![t(&[], s), t(&[1], l), t(&[], d)]
        };
        check(&g, &[case(1.0, 5.0, 2.0), case(4.0, 1.0, -0.75), case(4.0, 1.0, 1.0), case(0.0, 100.0, 0.5)]);
        for (limit, delta) in [(1.0, 0.0), (f64::NAN, 1.0), (f64::INFINITY, 1.0), (0.0, 0.0)] {
            refuses(&g, &case(0.0, limit, delta), "must be fewer than");
        }
    }
}

/// A depth that is a float.
#[test]
fn depths_are_cast() {
    let g = graph()
        .input("i", DType::I64, &["n"])
        .input("depth", DType::F32, &[])
        .input("v", DType::F32, &["2"])
        .node_with("OneHot", &["i", "depth", "v"], &["y"], vec![int("axis", 0)])
        .output("y");
    let case = |n: f32| vec![list(&[0, -1, 3, 9]), Tensor::from_f32(&[], &[n]), Tensor::from_f32(&[2], &[-1.0, 2.5])];
    check(&g, &[case(4.0), case(12.9), case(0.0)]);
    refuses(&g, &case(-2.0), "an extent must not be negative");
}

/// Axes, however many, of every operator that takes them.
#[test]
fn axes_are_where_the_run_says() {
    let x = || graph().input("x", DType::F32, &["n", "3", "m"]);
    let unsqueezed =
        x().input("axes", DType::I64, &["2"]).node("Unsqueeze", &["x", "axes"], &["u"]).node("Neg", &["u"], &["y"]);
    let unsqueezed = unsqueezed.output("y");
    let data = || random(7, &[2, 3, 4]);
    check(&unsqueezed, &[[0, 1], [-1, 0], [4, 2], [1, 3]].map(|a| vec![data(), list(&a)]));
    for bad in [[0, 0], [5, 0], [-6, 1], [4, -1]] {
        refuses(&unsqueezed, &[data(), list(&bad)], "the number of elements must stay the same");
        refuses(
            &unsqueezed,
            &[Tensor::from_f32(&[0, 3, 4], &[]), list(&bad)],
            "the number of elements must stay the same",
        );
    }

    let padded = x()
        .input("pads", DType::I64, &["4"])
        .input("axes", DType::I64, &["2"])
        .weight("value", &Tensor::from_f32(&[], &[0.5]))
        .node("Pad", &["x", "pads", "value", "axes"], &["y"])
        .output("y");
    // Axes came with opset 18.
    let mut proto = padded.proto();
    proto.opset_import[0].version = 18;
    let bytes = proto.encode_to_vec();
    let m = Compiler::new().compile_bytes(bytes.clone(), None).unwrap_or_else(|e| panic!("{e}"));
    let s = session(&m, DeviceKind::Guard);
    for axes in [[0, 2], [2, 0], [-1, 1]] {
        let inputs = [data(), list(&[1, 0, 0, -1]), list(&axes)];
        assert_close(&run(&s, &inputs), &interpret(&bytes, &inputs), "padded");
    }
    let twice = [data(), list(&[0; 4]), list(&[1, -2])];
    let e = s.collect(&RunInputs::in_order(&twice), &Default::default()).map(|_| ()).expect_err("one axis twice");
    assert!(e.to_string().contains("Pad: an extent must not be negative"), "{e}");

    let sliced = x()
        .input("starts", DType::I64, &["3"])
        .input("ends", DType::I64, &["3"])
        .input("axes", DType::I64, &["3"])
        .input("steps", DType::I64, &["3"])
        .node("Slice", &["x", "starts", "ends", "axes", "steps"], &["y"])
        .output("y");
    let case = |a: &[i64]| vec![data(), list(&[0, -1, 1]), list(&[i64::MAX, i64::MIN, 3]), list(a), list(&[1, -2, 1])];
    check(&sliced, &[case(&[0, 1, 2]), case(&[2, 0, 1]), case(&[-1, -2, -3])]);
    refuses(&sliced, &case(&[0, 1, 1]), "Slice");
    refuses(&sliced, &case(&[0, 1, 3]), "Slice");
}

/// Reductions over as many axes as the run gives, none included.
#[test]
fn reductions_over_any_number_of_axes() {
    for noop in [0, 1] {
        let g = graph()
            .input("x", DType::F32, &["n", "3", "m"])
            .input("axes", DType::I64, &["k"])
            .node_with("ReduceSum", &["x", "axes"], &["r"], vec![int("noop_with_empty_axes", noop)])
            .node("Neg", &["r"], &["y"])
            .output("y");
        let axes: [&[i64]; 5] = [&[], &[1], &[-1, 0], &[2, 1, 0], &[0, 2]];
        check(&g, &axes.map(|a| vec![random(3, &[2, 3, 4]), list(a)]));
        for bad in [&[3][..], &[0, 0], &[1, -2], &[-4]] {
            refuses(&g, &[random(3, &[2, 3, 4]), list(bad)], "ReduceSum: axes are from -3 to 2, each at most once");
        }
    }
}

/// What is cut off along an axis that the run names has long extents: compiling them must not take long.
#[test]
fn slices_along_any_axis_compile_at_once() {
    let g = graph()
        .input("x", DType::I16, &["n", "1", "33", "1"])
        .input("axis", DType::I64, &["1"])
        .ints("from", &[0])
        .ints("to", &[5])
        .ints("step", &[3])
        .node("Slice", &["x", "from", "to", "axis", "step"], &["y"])
        .output("y");
    let start = std::time::Instant::now();
    let x = || Tensor::from_i64_as(DType::I16, &[4, 1, 33, 1], &(0..4 * 33).collect::<Vec<i64>>());
    check(&g, &[0, 1, 2, -1].map(|axis| vec![x(), list(&[axis])]));
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

/// What is cut down to one element along an axis repeats, whatever the extent of the axis, and leaves nothing of an empty one.
#[test]
fn a_slice_of_at_most_one_element_repeats() {
    let cases = |shapes: &[[usize; 2]]| -> Vec<Vec<Tensor>> {
        shapes.iter().enumerate().map(|(i, s)| vec![random(i as u64, &[2, s[0], s[1]])]).collect()
    };
    let all = [[3, 4], [1, 4], [2, 1], [5, 3], [0, 4], [3, 0], [0, 0], [1, 1]];
    let slice = |from: i64, to: i64, step: i64| {
        let g = graph().input("x", DType::F32, &["2", "s", "d"]).ints("from", &[from]).ints("to", &[to]);
        let g = g.ints("axis", &[1]).ints("step", &[step]);
        g.node("Slice", &["x", "from", "to", "axis", "step"], &["one"])
    };
    for (from, to, step) in [(-1, i64::MAX, 1), (0, 1, 1), (-1, -2, -1)] {
        let g = || slice(from, to, step);
        // Pointwise, and what fuses with it.
        let sum = || g().node("Add", &["x", "one"], &["sum"]);
        check(&sum().output("sum"), &cases(&all));
        check(&sum().node_with("Softmax", &["sum"], &["y"], vec![int("axis", 1)]).output("y"), &cases(&all));
        check(&sum().node("Mul", &["one", "sum"], &["p"]).node("Sub", &["p", "x"], &["y"]).output("y"), &cases(&all));
        let chosen = g().node("Greater", &["x", "one"], &["c"]).node("Where", &["c", "one", "x"], &["y"]);
        check(&chosen.output("y"), &cases(&all));
        // Views, copies, products with one matrix for all.
        let expanded = g().node("Shape", &["x"], &["to_x"]).node("Expand", &["one", "to_x"], &["y"]);
        check(&expanded.output("y"), &cases(&all));
        check(&sum().node_with("Concat", &["sum", "one"], &["y"], vec![int("axis", 1)]).output("y"), &cases(&all));
        let weight = || {
            sum().weight("w", &random(77, &[4, 4])).node("MatMul", &["x", "w"], &["m"]).node(
                "Add",
                &["m", "one"],
                &["y"],
            )
        };
        check(&weight().output("y"), &cases(&[[3, 4], [1, 4], [0, 4], [7, 4]]));
        let product = g().node_with("Transpose", &["x"], &["t"], vec![ints("perm", &[1, 2, 0])]).node_with(
            "Transpose",
            &["one"],
            &["u"],
            vec![ints("perm", &[1, 0, 2])],
        );
        check(&product.node("MatMul", &["u", "t"], &["y"]).output("y"), &cases(&all));
        let einsum = |how| g().node_with("Einsum", &["x", "one"], &["y"], vec![text("equation", how)]).output("y");
        check(&einsum("bsd,bsd->bd"), &cases(&all));
        check(&einsum("bsd,bsd->bsd"), &cases(&all));
    }
}

/// Beside an extent that is not that of the axis it was cut from, it repeats where there is one, and where there is none only 1 and 0 go.
#[test]
fn what_may_be_empty_beside_another_extent() {
    let g = graph().input("x", DType::F32, &["s", "3"]).input("z", DType::F32, &["t", "3"]);
    let g = g.ints("from", &[2]).ints("to", &[3]).ints("axis", &[0]);
    let g = g.node("Slice", &["x", "from", "to", "axis"], &["one"]).node("Add", &["z", "one"], &["sum"]);
    let g = g.node("Add", &["sum", "z"], &["again"]).node("Mul", &["one", "again"], &["y"]).output("y").output("sum");
    let case = |s, t| vec![random(3, &[s, 3]), random(4, &[t, 3])];
    check(&g, &[case(3, 4), case(7, 1), case(3, 0), case(2, 1), case(0, 1), case(1, 0)]);
    refuses(&g, &case(2, 2), "where an extent is 0");
    refuses(&g, &case(0, 5), "where an extent is 0");
    // Beside a number above 1 there must be one.
    let g = graph().input("x", DType::F32, &["s", "3"]).weight("w", &random(5, &[4, 3]));
    let g = g.ints("from", &[-1]).ints("to", &[i64::MAX]).node("Slice", &["x", "from", "to"], &["one"]);
    let g = g.node("Add", &["one", "w"], &["y"]).output("y");
    check(&g, &[vec![random(3, &[3, 3])], vec![random(3, &[1, 3])]]);
    refuses(&g, &[random(3, &[0, 3])], "broadcast along axis 0");
}
