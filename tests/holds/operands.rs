//! Operands in their places, and values of operands that only a run knows.

use super::kit::*;
use hip_ep::{Compiler, DType, DeviceKind, Tensor};
use prost::Message;

/// Every operator of two operands whose order matters, both ways: elementwise in one fused kernel, with broadcasts, with a literal,
/// behind and before kernels of the catalog.
#[test]
fn operands_stay_in_their_places() {
    let mut g = graph()
        .input("a", DType::F32, &["n", "6"])
        .input("b", DType::F32, &["n", "6"])
        .input("row0", DType::F32, &["6"])
        .node("Sigmoid", &["row0"], &["row"])
        .weight("three", &Tensor::from_f32(&[], &[3.0]))
        .weight("w", &random(1, &[6, 6]))
        // Positive, so that powers are numbers; about 0.6 to 1.6 and 1.3 to 3.3.
        .node("Sigmoid", &["a"], &["pa0"])
        .node("Add", &["pa0", "half"], &["pa"])
        .node("Sigmoid", &["b"], &["pb0"])
        .node("Mul", &["pb0", "three"], &["pb"])
        .weight("half", &Tensor::from_f32(&[], &[0.5]));
    for op in ["Sub", "Div", "Pow"] {
        for (x, y) in [("pa", "pb"), ("pa", "three"), ("pa", "row")] {
            for (x, y) in [(x, y), (y, x)] {
                let z = format!("{op}_{x}_{y}");
                g = g.node(op, &[x, y], &[&z]).output(&z);
            }
        }
    }
    for (x, y) in [("a", "b"), ("b", "a")] {
        let name = |what: &str| format!("{what}_{x}_{y}");
        let (less, chosen, mod_, slope) = (name("less"), name("where"), name("mod"), name("prelu"));
        g = g
            .node("Less", &[x, y], &[&less])
            .node("Where", &[&less, x, "row"], &[&chosen])
            .output(&chosen)
            .node_with("Mod", &[x, y], &[&mod_], vec![int("fmod", 1)])
            .output(&mod_)
            .node("PRelu", &[x, y], &[&slope])
            .output(&slope);
        // Products: of two inputs, with a weight on either side, and what is taken from them in an epilogue or fed to them.
        let (t, p, q, d, f) = (name("t"), name("product"), name("weighted"), name("rest"), name("fed"));
        g = g
            .node_with("Transpose", &[y], &[&t], vec![ints("perm", &[1, 0])])
            .node("MatMul", &[x, &t], &[&p])
            .output(&p)
            .node("MatMul", &[x, "w"], &[&q])
            .node("Sub", &[&q, y], &[&d])
            .output(&d)
            .node("Sub", &[y, &q], &[&name("minus")])
            .output(&name("minus"))
            .node("MatMul", &["w", &t], &[&f])
            .output(&f);
    }
    g = g
        .node_with("Gemm", &["a", "w", "row"], &["gemm"], vec![int("transB", 1), float("beta", 2.0)])
        .output("gemm")
        .node_with("Gemm", &["w", "a", "half"], &["gemm2"], vec![int("transB", 1)])
        .output("gemm2")
        .node_with("Concat", &["a", "b"], &["ab"], vec![int("axis", 1)])
        .output("ab")
        .node_with("Concat", &["b", "a"], &["ba"], vec![int("axis", 1)])
        .output("ba");
    let case = |seed, n| vec![random(seed, &[n, 6]), random(seed + 1, &[n, 6]), random(seed + 2, &[6])];
    check(&g, &[case(10, 6), case(20, 1), case(30, 37)]);
}

/// 1 is above 0, also where vectors of single bits are compared.
#[test]
fn bits_have_no_sign() {
    let int32 = || vec![int("to", i64::from(DType::I32.onnx()))];
    let mut g = graph()
        .input("x", DType::Bool, &["n", "5"])
        .input("k", DType::I32, &["n", "8"])
        .ints("last", &[1])
        .weight("one", &Tensor::from_f64_as(DType::I32, &[], &[1.0]))
        .node_with("Cast", &["x"], &["i"], int32())
        .node("BitwiseAnd", &["k", "one"], &["odd"]);
    for op in ["ReduceMin", "ReduceMax"] {
        for x in ["x", "i", "odd"] {
            let y = format!("{op}_{x}");
            g = g.node(op, &[x, "last"], &[&y]).output(&y);
        }
    }
    let case = |rows: &[[u8; 5]]| {
        let bits: Vec<f64> = rows.iter().flatten().map(|&b| f64::from(b)).collect();
        let numbers: Vec<f64> =
            rows.iter().flat_map(|r| (0..8).map(|i| f64::from(r[i % 5]) + 2.0 * i as f64)).collect();
        let n = rows.len();
        vec![Tensor::from_f64_as(DType::Bool, &[n, 5], &bits), Tensor::from_f64_as(DType::I32, &[n, 8], &numbers)]
    };
    let mut proto = g.proto();
    proto.opset_import[0].version = 20;
    let bytes = proto.encode_to_vec();
    let s = session(&Compiler::new().compile_bytes(bytes.clone(), None).unwrap(), DeviceKind::Cpu);
    for inputs in [case(&[[1, 0, 1, 0, 1]]), case(&[[0, 0, 0, 0, 1], [1; 5], [0; 5]]), case(&[[0, 1, 1, 1, 1]; 37])] {
        assert_close(&run(&s, &inputs), &interpret(&bytes, &inputs), "bits");
    }
}

/// 0 is above -0, whatever computes it.
#[test]
fn signs_of_zeros_agree() {
    let g = graph()
        .input("x", DType::F32, &["n"])
        .input("y", DType::F32, &["n"])
        .node("Max", &["x", "y"], &["max"])
        .output("max")
        .node("Min", &["x", "y"], &["min"])
        .output("min")
        .node_with("ReduceMax", &["x"], &["top"], vec![ints("axes", &[0])])
        .output("top")
        .node_with("ReduceMin", &["x"], &["least"], vec![ints("axes", &[0])])
        .output("least");
    let mut x = vec![0.0, -0.0, 0.0, -0.0];
    let y = Tensor::from_f32(&[4], &[-0.0, 0.0, 0.0, -0.0]);
    let m = g.clone().compile();
    let s = session(&m, DeviceKind::Cpu);
    for _ in 0..2 {
        let inputs = [Tensor::from_f32(&[4], &x), y.clone()];
        let signs = |all: Vec<Tensor>| -> Vec<bool> {
            all.iter().flat_map(|t| t.to_f64_vec()).map(f64::is_sign_negative).collect()
        };
        assert_eq!(signs(run(&s, &inputs)), signs(interpret(&g.clone().bytes(), &inputs)), "{x:?}");
        x.reverse();
    }
}

/// What is far below 0 keeps its digits, and a product may leave the range of its type on the way.
#[test]
fn results_far_from_one_keep_their_digits() {
    let mut g = graph().input("x", DType::F32, &["n"]).input("y", DType::F64, &["n"]).input("z", DType::F32, &["4"]);
    for x in ["x", "y"] {
        for op in ["Softplus", "Mish"] {
            let y = format!("{op}_{x}");
            g = g.node(op, &[x], &[&y]).output(&y);
        }
    }
    g = g.node("ReduceProd", &["z"], &["product"]).output("product");
    let case = |x: f64, z: [f32; 4]| {
        vec![Tensor::from_f64_as(DType::F32, &[1], &[x]), Tensor::from_f64(&[1], &[x]), Tensor::from_f32(&[4], &z)]
    };
    let (low, high) = ([1e-30, 1e-20, 1e30, 1e25], [1e25, 1e30, 1e-20, 1e-30]);
    let mut proto = g.proto();
    proto.opset_import[0].version = 18;
    let bytes = proto.encode_to_vec();
    let s = session(&Compiler::new().compile_bytes(bytes.clone(), None).unwrap(), DeviceKind::Cpu);
    for inputs in [case(-55.0, low), case(-30.0, high), case(-17.0, low), case(-3.0, high), case(20.0, low)] {
        assert_close(&run(&s, &inputs), &interpret(&bytes, &inputs), "far from one");
    }
}

/// Bounds and indices count from the end where they are negative, also when only the run knows them.
#[test]
fn negative_values_of_a_run_count_from_the_end() {
    let g = graph()
        .input("x", DType::F32, &["n", "5"])
        .input("start", DType::I64, &["1"])
        .input("end", DType::I64, &["1"])
        .input("i", DType::I64, &[])
        .ints("axis0", &[0])
        .ints("axis1", &[1])
        .ints("back", &[-1])
        .node("Slice", &["x", "start", "end", "axis1"], &["s"])
        .output("s")
        .node("Slice", &["x", "start", "end", "axis0"], &["rows"])
        .node("Relu", &["rows"], &["r"])
        .output("r")
        .node("Slice", &["x", "end", "start", "axis1", "back"], &["reversed"])
        .output("reversed")
        .node("Neg", &["start"], &["minus"])
        .node("Slice", &["x", "minus", "end", "axis1"], &["computed"])
        .output("computed")
        .node_with("Gather", &["x", "i"], &["g"], vec![int("axis", 1)])
        .output("g")
        .node("Shape", &["x"], &["shape"])
        .node_with("Gather", &["shape", "i2"], &["extent"], vec![int("axis", 0)])
        .weight("i2", &Tensor::from_i64(&[1], &[-1]))
        .node("Sub", &["extent", "start"], &["most"])
        .node("Slice", &["x", "start", "most", "axis1"], &["upto"])
        .output("upto");
    let one = |v: i64| Tensor::from_i64(&[1], &[v]);
    let mut cases = Vec::new();
    for (start, end) in [(0, -1), (-4, -1), (-2, 5), (1, 4), (-100, 100), (3, -4), (2, i64::MIN), (-100, i64::MAX)] {
        for i in [-5, -1, 4] {
            cases.push(vec![random(3, &[4, 5]), one(start), one(end), Tensor::from_i64(&[], &[i])]);
        }
    }
    check(&g, &cases);
}

/// Pads that only the run knows: what they remove goes first, what they add repeats the rest.
#[test]
fn pads_of_a_run_repeat_what_they_leave() {
    let mut g = graph().input("x", DType::F32, &["n", "3"]).input("pads", DType::I64, &["4"]);
    for mode in ["reflect", "edge", "constant"] {
        g = g.node_with("Pad", &["x", "pads"], &[mode], vec![text("mode", mode)]).output(mode);
    }
    let pads = [[1, -1, -1, 1], [-2, 1, 3, -1], [2, 0, -3, 0], [0, 2, 0, 2], [-1, -1, -1, -1]];
    let case = |p: [i64; 4]| vec![random(5, &[6, 3]), Tensor::from_i64(&[4], &p)];
    let m = check(&g, &pads.map(case));
    let refused = |p: [i64; 4]| {
        let s = session(&m, DeviceKind::Cpu);
        let e = s.collect(&hip_ep::RunInputs::in_order(&case(p)), &Default::default()).unwrap_err().to_string();
        assert!(e.contains("elements that mode") && e.contains("must be left along axis"), "{p:?}: {e}");
    };
    // Nothing left along axis 1; less than is mirrored.
    refused([0, -3, 0, 1]);
    refused([0, 1, 0, -2]);
}

/// What the shapes of a run must satisfy is checked also where the operator that needs it would do nothing, or nobody reads its elements.
#[test]
fn facts_of_a_run_are_checked_without_their_operators() {
    let g = graph()
        .input("x", DType::F32, &["n"])
        .input("to", DType::I64, &["1"])
        .node("Expand", &["x", "to"], &["wide"])
        .node("Shape", &["wide"], &["shape"])
        .output("shape")
        .node_with("ReduceSum", &["wide"], &["sum"], vec![int("keepdims", 0)])
        .output("sum");
    let m = g.compile();
    let s = session(&m, DeviceKind::Cpu);
    let inputs = |n: usize, to: i64| [random(3, &[n]), Tensor::from_i64(&[1], &[to])];
    assert_eq!(run(&s, &inputs(4, 4))[0].to_i64_vec(), [4]);
    for (n, to) in [(1, 4), (4, 3)] {
        let e = s.collect(&hip_ep::RunInputs::in_order(&inputs(n, to)), &Default::default()).unwrap_err().to_string();
        assert!(e.contains("broadcast along axis 0") && e.contains("Expand"), "{e}");
    }
}

/// Of an operator with several results, folding keeps the one that is asked for.
#[test]
fn constants_fold_to_the_first_result() {
    let x = random(3, &[2, 3]);
    let g = graph().input("z", DType::F32, &[]).weight("c", &x).node("Dropout", &["c"], &["d"]);
    let g = g.node("Add", &["d", "z"], &["y"]).output("y");
    let zero = Tensor::from_f32(&[], &[0.0]);
    check(&g, &[vec![zero]]);
}

/// A branch that captures what another branch made: planning sees buffers of several graphs.
#[test]
fn branches_capture_results_of_branches() {
    let distance = |x: &str, y: &str| graph().node("Abs", &[x], &["a"]).node("Sub", &["a", y], &["s"]).output("s");
    let greater = |x: &str, y: &str| graph().node("Neg", &[x], &["n"]).node("Max", &["n", y], &["m"]).output("m");
    let branches = |x: &str, y: &str| vec![body("then_branch", distance(x, y)), body("else_branch", greater(x, y))];
    let g = graph()
        .input("c", DType::Bool, &[])
        .input("d", DType::Bool, &[])
        .input("x", DType::F32, &["6"])
        .node("Sigmoid", &["x"], &["v"])
        .node_with("If", &["c"], &["p"], branches("v", "v"))
        .node_with("If", &["d"], &["q"], branches("p", "v"))
        .output("q");
    let flag = |v| Tensor::from_bool(&[], &[v]);
    let cases: Vec<_> = [(true, true), (true, false), (false, true), (false, false)]
        .map(|(c, d)| vec![flag(c), flag(d), random(4, &[6])])
        .into();
    check(&g, &cases);
}

/// As detectors build their grids: the end of a range of floats is an extent that was cast.
#[test]
fn a_range_of_floats_ends_at_an_extent() {
    let g = graph()
        .input("x", DType::F32, &["n", "2"])
        .weight("zero", &Tensor::from_f32(&[], &[0.0]))
        .weight("one", &Tensor::from_f32(&[], &[1.0]))
        .weight("axis", &Tensor::from_i64(&[], &[0]))
        .node("Shape", &["x"], &["s"])
        .node("Gather", &["s", "axis"], &["n"])
        .node_with("Cast", &["n"], &["end"], vec![int("to", 1)])
        .node("Range", &["zero", "end", "one"], &["r"])
        .node("Relu", &["x"], &["y"])
        .output("r")
        .output("y");
    check(&g, &[vec![random(1, &[5, 2])], vec![random(2, &[1, 2])]]);
}

/// An initializer that is an input, too: what the caller gives counts, else the default, on every device and at any shape.
#[test]
fn inputs_may_have_defaults() {
    let w = random(5, &[3]);
    let g = graph()
        .input("x", DType::F32, &["n", "3"])
        .input("w", DType::F32, &["k"])
        .weight("w", &w)
        .input("to", DType::I64, &["2"])
        .ints("to", &[-1, 1])
        .node("Add", &["x", "w"], &["s"])
        .node("Reshape", &["s", "to"], &["y"])
        .output("y");
    let bytes = g.clone().bytes();
    let m = g.compile();
    let folder = Folder::new("defaults");
    let path = folder.file("m.hipep");
    m.save(&path).unwrap_or_else(|e| panic!("{e}"));
    let loaded = hip_ep::CompiledModel::load(&path).unwrap_or_else(|e| panic!("{e}"));
    let (x, to) = (random(6, &[2, 3]), Tensor::from_i64(&[2], &[2, 3]));
    for device in [DeviceKind::Cpu, DeviceKind::Guard] {
        let s = session(&loaded, device);
        for w in [None, Some(random(7, &[3])), Some(random(8, &[3]))] {
            for to in [None, Some(to.clone())] {
                let mut inputs = hip_ep::RunInputs::new();
                inputs.tensor("x", &x);
                for (name, t) in [("w", &w), ("to", &to)] {
                    if let Some(t) = t {
                        inputs.tensor(name, t);
                    }
                }
                let (got, _) = s.collect(&inputs, &Default::default()).unwrap_or_else(|e| panic!("{e}"));
                let w = w.clone().or_else(|| s.default_input(1).unwrap()).unwrap();
                let to = to.clone().unwrap_or_else(|| Tensor::from_i64(&[2], &[-1, 1]));
                assert_close(&got, &interpret(&bytes, &[x.clone(), w, to]), "defaults");
            }
        }
        assert_close(&run(&s, std::slice::from_ref(&x)), &interpret(&bytes, std::slice::from_ref(&x)), "all defaults");
        let e = s.collect(&hip_ep::RunInputs::new(), &Default::default()).unwrap_err().to_string();
        assert!(e.contains("missing input \"x\"") && !e.contains("\"w\""), "{e}");
    }
}

/// An index that wraps at a power of two stays within the operand, however the loops around it are made vectors.
#[test]
fn remainders_wrap_within_vectors() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for (rows, columns) in [(16, 4), (4, 16), (2, 32), (32, 2), (8, 8)] {
            let g = graph()
                .input("x", dtype, &["16"])
                .ints("times", &[4])
                .node("Tile", &["x", "times"], &["t"])
                .ints("shape", &[rows, columns])
                .node("Reshape", &["t", "shape"], &["r"])
                .node_with("ReduceL1", &["r"], &["y"], vec![int("keepdims", 0)])
                .node("ReduceMax", &["r"], &["z"])
                .output("y")
                .output("z");
            let x = random(5, &[16]);
            check(&g, &[vec![Tensor::from_f64_as(dtype, &[16], &x.to_f64_vec())]]);
        }
    }
}

/// Squares leave the range of f32 above and below where their root does not.
#[test]
fn squares_may_leave_the_range() {
    let g = graph()
        .input("x", DType::F32, &["2", "n"])
        .node_with("ReduceL2", &["x"], &["norm"], vec![ints("axes", &[1])])
        .node("LpNormalization", &["x"], &["unit"])
        .output("norm")
        .output("unit");
    let row = |scale: f32| [3.0 * scale, -4.0 * scale];
    let m = g.compile();
    let s = session(&m, DeviceKind::Cpu);
    for scale in [1e30, 1e-30] {
        let x = Tensor::from_f32(&[2, 2], &[row(scale), row(-scale)].concat());
        let got = run(&s, &[x]);
        let relative = got[0].to_f64_vec().into_iter().map(|v| v / f64::from(scale));
        assert!(relative.clone().all(|v| (v - 5.0).abs() < 1e-5), "{:?}", got[0].to_f64_vec());
        let unit = got[1].to_f64_vec();
        assert!(unit.iter().zip([0.6, -0.8, -0.6, 0.8]).all(|(v, w)| (v - w).abs() < 1e-6), "{unit:?}");
    }
}
