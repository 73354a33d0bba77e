//! Extents that only the data tells: a pool for what is known at entry, another for what is not, both growing from run to run.

use super::kit::*;
use hip_ep::{DType, RunInputs, Tensor};

/// Rows of `x` where `keep` is not 0, times `w`; around it work whose size is known at entry.
fn rows_that_are_kept() -> G {
    graph()
        .input("keep", DType::F32, &["n"])
        .input("x", DType::F32, &["n", "16"])
        .weight("w", &random(7, &[16, 24]))
        .weight("w2", &random(8, &[24, 8]))
        .ints("minus1", &[-1])
        .node("MatMul", &["x", "w"], &["known"])
        .node_with("Softmax", &["known"], &["soft"], vec![int("axis", -1)])
        .node("NonZero", &["keep"], &["where"])
        .node("Reshape", &["where", "minus1"], &["rows"])
        .node_with("Gather", &["soft", "rows"], &["kept"], vec![int("axis", 0)])
        .node("MatMul", &["kept", "w2"], &["y"])
        .node("Tanh", &["y"], &["z"])
        .node_with("Softmax", &["z"], &["p"], vec![int("axis", -1)])
        .output("p")
        .output("soft")
}

fn case(n: usize, every: usize) -> Vec<Tensor> {
    let keep: Vec<f32> = (0..n).map(|i| if every > 0 && i % every == 0 { 1.5 } else { 0.0 }).collect();
    vec![Tensor::from_f32(&[n], &keep), random(n as u64, &[n, 16])]
}

#[test]
fn rows_that_data_chooses_live_in_pools_that_grow() {
    let cases = [case(4, 2), case(64, 3), case(700, 1), case(5, 1), case(9, 0), case(1, 1), case(2000, 7)];
    let m = check(&rows_that_are_kept(), &cases);
    let domains = &m.metadata().domains;
    assert!(domains.iter().filter(|d| d.space == 0).count() >= 2, "two device pools: {domains:?}");
    // Their peaks depend on different symbols: one is known at entry, one only after counting.
    assert!(domains[0].peak != domains[1].peak, "{domains:?}");

    let s = session(&m, Default::default());
    let mut last = 0;
    let mut growths = vec![];
    for inputs in [case(10, 2), case(1000, 2), case(20000, 2), case(20000, 1), case(30, 3)] {
        let (_, report) = s.collect(&RunInputs::in_order(&inputs), &Default::default()).expect("the run succeeds");
        assert!(s.pool_bytes() >= last, "pools never shrink between runs");
        last = s.pool_bytes();
        growths.push(report.counters.pool_growths);
    }
    // Bigger data grows both pools; as many rows of which more are kept grow the second alone; smaller data grows none.
    assert!(growths[1] >= 2 && growths[2] >= 2, "{growths:?}");
    assert_eq!((growths[3], growths[4]), (1, 0), "{growths:?}");
    s.trim().expect("no kernel wrote beyond its memory");
    assert_eq!(s.pool_bytes(), 0);
}

/// A loop that only its condition ends collects what its iterations give; how many there are, the data says.
#[test]
fn loops_without_a_trip_count_collect() {
    let body_graph = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("v", DType::F32, &["3"])
        .node("Mul", &["v", "half"], &["next"])
        .node_with("ReduceMax", &["next"], &["most"], vec![int("keepdims", 0)])
        .node("Greater", &["most", "least"], &["on"])
        .node("Sigmoid", &["next"], &["s"])
        .output("on")
        .output("next")
        .output("s");
    let g = graph()
        .input("x", DType::F32, &["3"])
        .input("start", DType::Bool, &[])
        .weight("half", &Tensor::from_f32(&[], &[0.5]))
        .weight("least", &Tensor::from_f32(&[], &[0.1]))
        .node_with("Loop", &["", "start", "x"], &["last", "all"], vec![body("body", body_graph)])
        .output("last")
        .output("all");
    let case = |x: &[f32], start: bool| vec![Tensor::from_f32(&[3], x), Tensor::from_bool(&[], &[start])];
    check(
        &g,
        &[
            case(&[1.0, 2.0, 0.5], true),
            case(&[0.1, 0.0, -3.0], true),
            case(&[9.0, 2.0, 0.5], false),
            case(&[1e6, 2.0, 0.5], true),
        ],
    );
}
