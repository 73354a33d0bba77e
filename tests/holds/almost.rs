//! Models that are almost what a rewrite rule looks for: what only looks like it is left alone.

use super::kit::*;
use hip_ep::{DType, DeviceKind, RunInputs, Tensor};

const F64: DType = DType::F64;
const F16: DType = DType::F16;

fn scalar(d: DType, v: f64) -> Tensor {
    Tensor::from_f64_as(d, &[], &[v])
}

/// `op(x, c)` with `x` of type `d`.
fn with_scalar(d: DType, op: &str, c: f64) -> G {
    graph().input("x", d, &["n"]).weight("c", &scalar(d, c)).node(op, &["x", "c"], &["y"]).output("y")
}

/// Elements as the reference functions give them: NaN as NaN, others within a few roundings of their type.
fn same(what: &str, g: &G, inputs: &[Tensor]) {
    let got = run(&session(&g.clone().compile(), DeviceKind::Cpu), inputs);
    let want = interpret(&g.clone().bytes(), inputs);
    for (a, b) in got.iter().zip(&want) {
        assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()), "{what}");
        let rel = match a.dtype() {
            DType::F64 => 1e-14,
            DType::F32 => 1e-6,
            DType::F16 => 1e-3,
            _ => 0.0,
        };
        for (x, y) in a.to_f64_vec().into_iter().zip(b.to_f64_vec()) {
            let fine = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= rel * y.abs();
            assert!(fine, "{what}: {x}, not {y}");
        }
    }
}

#[test]
fn factors_near_one_are_factors() {
    for (d, c) in [(DType::F32, 1.000_009), (F64, 1.000_009), (F64, 1.0 + 1e-13), (F16, 1.000_976_6)] {
        for op in ["Mul", "Div", "Pow"] {
            let x = Tensor::from_f64_as(d, &[3], &[300.0, 0.5, 7.0]);
            same(&format!("{op} {d} {c}"), &with_scalar(d, op, c), &[x]);
        }
    }
}

#[test]
fn factors_that_meet_stay_within_the_type() {
    for (x, ops) in [
        (0.001, [("Mul", 300.0), ("Mul", 300.0)]),
        (100.0, [("Mul", 1e-4), ("Mul", 1e-4)]),
        (8.0, [("Div", 3e4), ("Mul", 1e-3)]),
    ] {
        let g = graph()
            .input("x", F16, &["n"])
            .weight("a", &scalar(F16, ops[0].1))
            .weight("b", &scalar(F16, ops[1].1))
            .node(ops[0].0, &["x", "a"], &["t"])
            .node(ops[1].0, &["t", "b"], &["y"])
            .output("y");
        let x = Tensor::from_f64_as(F16, &[1], &[x]);
        let y = run(&session(&g.clone().compile(), DeviceKind::Cpu), std::slice::from_ref(&x));
        let want = interpret(&g.bytes(), &[x])[0].to_f64_vec()[0];
        // Subnormal results keep few digits.
        assert!((y[0].to_f64_vec()[0] - want).abs() <= 1e-3 * want.abs() + 6e-8, "{ops:?}: {y:?}, not {want}");
    }
}

#[test]
fn nothing_is_known_of_a_nan() {
    for (op, fill) in [("Add", 0.0), ("Sub", 0.0), ("Mul", 1.0), ("Div", 1.0)] {
        let c = Tensor::from_f32(&[3], &[fill, f32::NAN, fill]);
        let g = graph().input("x", DType::F32, &["n", "3"]).weight("c", &c).node(op, &["x", "c"], &["y"]).output("y");
        same(op, &g, &[random(3, &[2, 3])]);
    }
}

#[test]
fn bounds_in_the_wrong_order_give_the_upper_one() {
    let clip = |lo: f64, hi: f64| {
        graph()
            .input("x", DType::F32, &["n", "4"])
            .weight("lo", &scalar(DType::F32, lo))
            .weight("hi", &scalar(DType::F32, hi))
    };
    let after = clip(5.0, 1.0)
        .weight("w", &random(1, &[4, 4]))
        .node("MatMul", &["x", "w"], &["p"])
        .node("Clip", &["p", "lo", "hi"], &["y"])
        .output("y");
    same("Clip of a product", &after, &[random(2, &[3, 4])]);
    let below = clip(0.0, -3.0).node("Clip", &["x", "lo", "hi"], &["c"]).node("Relu", &["c"], &["y"]).output("y");
    same("Relu of an empty Clip", &below, &[random(2, &[3, 4])]);
}

#[test]
fn integers_wrap_into_the_negative() {
    let x = Tensor::from_f64_as(DType::I32, &[3], &[f64::from(i32::MAX), 3.0, f64::from(i32::MIN)]);
    let sum = graph()
        .input("x", DType::I32, &["n"])
        .node("Relu", &["x"], &["a"])
        .node("Add", &["a", "a"], &["s"])
        .node("Relu", &["s"], &["y"])
        .output("y")
        .node("Abs", &["x"], &["b"])
        .node("Relu", &["b"], &["z"])
        .output("z");
    same("Relu", &sum, &[x]);
    let unsigned = graph()
        .input("x", DType::U8, &["n"])
        .weight("lo", &scalar(DType::U8, 0.0))
        .node("Clip", &["x", "lo"], &["y"])
        .output("y");
    same("Clip of unsigned", &unsigned, &[Tensor::from_f64_as(DType::U8, &[2], &[0.0, 200.0])]);
}

/// Attributes of fused operators are f32.
#[test]
fn numbers_of_f64_are_not_rounded_to_attributes() {
    let product = || {
        let w = Tensor::from_f64_as(F64, &[4, 4], &noise(1, 16).into_iter().map(f64::from).collect::<Vec<_>>());
        graph().input("x", F64, &["n", "4"]).weight("w", &w).node("MatMul", &["x", "w"], &["p"])
    };
    let x = Tensor::from_f64_as(F64, &[3, 4], &noise(2, 12).into_iter().map(f64::from).collect::<Vec<_>>());
    for (op, c) in [("Mul", 0.1), ("Div", 3.0)] {
        let g = product().weight("c", &scalar(F64, c)).node(op, &["p", "c"], &["y"]).output("y");
        same(op, &g, std::slice::from_ref(&x));
    }
    let clip = product()
        .weight("lo", &scalar(F64, -0.1))
        .weight("hi", &scalar(F64, 0.1))
        .node("Clip", &["p", "lo", "hi"], &["y"])
        .output("y");
    same("Clip", &clip, std::slice::from_ref(&x));
    let gelu = graph()
        .input("x", F64, &["n", "4"])
        .weight("root", &scalar(F64, 1.414_213_54))
        .weight("one", &scalar(F64, 1.0))
        .weight("half", &scalar(F64, 0.5))
        .node("Div", &["x", "root"], &["d"])
        .node("Erf", &["d"], &["e"])
        .node("Add", &["e", "one"], &["f"])
        .node("Mul", &["x", "f"], &["g"])
        .node("Mul", &["g", "half"], &["y"])
        .output("y");
    same("GELU of another root", &gelu, std::slice::from_ref(&x));
}

/// `Where(p, scores, low)` in an attention: a row of which everything is masked is the mean of the values, and what the keys that are
/// masked hold does not matter.
#[test]
fn masks_that_select_do_not_add() {
    for (d, low, tolerance) in [(F16, -65504.0, 2e-2), (DType::F32, -1e4, 1e-5)] {
        let fill = |seed, shape: &[usize]| {
            let n = shape.iter().product();
            Tensor::from_f64_as(d, shape, &noise(seed, n).into_iter().map(|v| 4.0 * f64::from(v)).collect::<Vec<_>>())
        };
        let g = graph()
            .input("q", d, &["b", "2", "s", "4"])
            .input("k", d, &["b", "2", "4", "t"])
            .input("v", d, &["b", "2", "t", "4"])
            .input("p", DType::Bool, &["s", "t"])
            .weight("low", &scalar(d, low))
            .node("MatMul", &["q", "k"], &["z"])
            .node("Where", &["p", "z", "low"], &["m"])
            .node_with("Softmax", &["m"], &["w"], vec![int("axis", -1)])
            .node("MatMul", &["w", "v"], &["y"])
            .output("y");
        let p = [1., 1., 0., 0., 1., 0., 0., 0., 0., 0., 0., 1., 0., 1., 0.];
        let mut k = fill(2, &[1, 2, 4, 5]).to_f64_vec();
        k.iter_mut().skip(2).step_by(5).for_each(|x| *x = f64::NAN);
        let k = Tensor::from_f64_as(d, &[1, 2, 4, 5], &k);
        let p = Tensor::from_f64_as(DType::Bool, &[3, 5], &p);
        let inputs = [fill(1, &[1, 2, 3, 4]), k, fill(3, &[1, 2, 5, 4]), p];
        let m = g.clone().compile();
        assert!(m.metadata().kernels.iter().any(|k| k.name.starts_with("attention")), "no attention was found");
        let want = interpret(&g.bytes(), &inputs);
        let got = run(&session(&m, DeviceKind::Cpu), &inputs);
        for (x, y) in got[0].to_f64_vec().into_iter().zip(want[0].to_f64_vec()) {
            assert!((x - y).abs() <= tolerance, "{d}: {x}, not {y}");
        }
    }
}

/// A residual of more rows than the convolution has is a broadcast, which no epilogue does.
#[test]
fn a_residual_that_broadcasts_the_convolution_stays_an_addition() {
    let g = graph()
        .input("x", DType::F32, &["1", "2", "5", "5"])
        .input("r", DType::F32, &["n", "3", "3", "3"])
        .weight("w", &random(1, &[3, 2, 3, 3]))
        .node("Conv", &["x", "w"], &["c"])
        .node("Add", &["c", "r"], &["y"])
        .output("y");
    let case = |n| vec![random(4, &[1, 2, 5, 5]), random(5, &[n, 3, 3, 3])];
    check(&g, &[case(1), case(2)]);
}

/// Factors that would take folded weights out of their type stay factors.
#[test]
fn weights_are_not_folded_into_infinities() {
    for (op, c) in [("Mul", 1e38), ("Div", 1e-38), ("Div", 0.0)] {
        let g = graph()
            .input("x", DType::F32, &["n", "2", "5", "5"])
            .weight("w", &Tensor::from_f32(&[3, 2, 3, 3], &noise(1, 54).iter().map(|v| 9.0 * v).collect::<Vec<_>>()))
            .weight("c", &scalar(DType::F32, c))
            .node("Conv", &["x", "w"], &["t"])
            .node(op, &["t", "c"], &["y"])
            .output("y");
        let x = noise(2, 50).iter().map(|v| 1e-4 * v).collect::<Vec<_>>();
        let x = [Tensor::from_f32(&[1, 2, 5, 5], &x)];
        let got = run(&session(&g.clone().compile(), DeviceKind::Cpu), &x)[0].to_f64_vec();
        let want = interpret(&g.bytes(), &x)[0].to_f64_vec();
        for (a, b) in got.into_iter().zip(want) {
            assert!(a == b || (a - b).abs() <= 1e-5 * b.abs().max(1e33), "{op} {c}: {a}, not {b}");
        }
    }
}

/// Negative integers become floats, then unsigned: not as they become unsigned themselves.
#[test]
fn casts_by_way_of_floats_stay() {
    let cast = |to: DType| vec![int("to", i64::from(to.onnx()))];
    let g = graph()
        .input("x", DType::I8, &["n"])
        .node_with("Cast", &["x"], &["f"], cast(DType::F32))
        .node_with("Cast", &["f"], &["y"], cast(DType::U64))
        .output("y");
    same("Cast", &g, &[Tensor::from_f64_as(DType::I8, &[3], &[-1.0, 5.0, -128.0])]);
}

/// An extent of 0 beside a -1 means the operand's own.
#[test]
fn a_computed_0_beside_an_open_extent_is_no_extent() {
    let g = graph()
        .input("x", DType::F32, &["3", "n"])
        .input("y", DType::F32, &["m"])
        .ints("open", &[-1])
        .node("Shape", &["y"], &["s"])
        .node_with("Concat", &["s", "open"], &["to"], vec![int("axis", 0)])
        .node("Reshape", &["x", "to"], &["z"])
        .output("z");
    check(&g, &[vec![random(1, &[3, 2]), random(2, &[6])], vec![random(1, &[3, 4]), random(2, &[2])]]);
    let s = session(&g.compile(), DeviceKind::Cpu);
    let inputs = [random(1, &[3, 0]), random(2, &[0])];
    let e = s.collect(&RunInputs::in_order(&inputs), &Default::default()).unwrap_err().to_string();
    assert!(e.contains("an extent that is 0 beside a -1"), "{e}");
}
