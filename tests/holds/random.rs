//! Random numbers: which runs, nodes, sessions, devices and threads draw the same, and which do not.

use super::kit::*;
use hip_ep::{DType, DeviceKind, SessionOptions, Tensor};

fn model() -> G {
    let half = Tensor::from_f32(&[3], &[0.1, 0.5, 0.9]);
    graph()
        .input("x", DType::F32, &["n", "3"])
        .weight("p", &half)
        .node("RandomNormalLike", &["x"], &["a"])
        .node("RandomNormalLike", &["x"], &["b"])
        .node_with("RandomUniformLike", &["x"], &["c"], vec![float("seed", 3.0), float("low", -1.0)])
        .node_with("RandomUniformLike", &["x"], &["d"], vec![float("seed", 3.0), float("low", -1.0)])
        .node_with("RandomUniform", &[], &["e"], vec![ints("shape", &[4, 1000]), float("high", 5.0)])
        .node("Expand", &["p", "like"], &["many"])
        .ints("like", &[500, 3])
        .node("Bernoulli", &["many"], &["f"])
        .node("Log", &["p"], &["logs"])
        .ints("front", &[0])
        .node("Unsqueeze", &["logs", "front"], &["row"])
        .node_with("Multinomial", &["row"], &["g"], vec![int("sample_size", 2000)])
        .output("a")
        .output("b")
        .output("c")
        .output("d")
        .output("e")
        .output("f")
        .output("g")
}

fn open(device: DeviceKind, seed: u64, threads: usize) -> hip_ep::Session {
    let mut o = SessionOptions::default();
    (o.seed, o.threads) = (seed, Some(threads));
    model().compile().session(device, o).unwrap_or_else(|e| panic!("{e}"))
}

fn zeros(n: usize) -> Vec<Tensor> {
    vec![Tensor::from_f32(&[n, 3], &vec![0.0; n * 3])]
}

#[test]
fn draws_depend_on_seeds_nodes_and_runs_alone() {
    let x = zeros(1000);
    let s = open(DeviceKind::Cpu, 0, 1);
    let (first, second) = (run(&s, &x), run(&s, &x));
    // The interpreter draws what a first run draws.
    assert_close(&first, &interpret(&model().bytes(), &x), "the interpreter");
    assert!(first[0] != first[1], "two nodes draw the same");
    assert!(first[2] == first[3], "nodes with one seed draw the same");
    for i in [0, 1, 4, 5, 6] {
        assert!(first[i] != second[i], "output {i}: two runs draw the same");
    }
    assert!(first[2] == second[2], "a node with a seed draws the same in each run");
    for (device, threads) in [(DeviceKind::Cpu, 3), (DeviceKind::Guard, 2)] {
        let s = open(device, 0, threads);
        assert!((run(&s, &x), run(&s, &x)) == (first.clone(), second.clone()), "{device:?} with {threads} threads");
    }
    let other = run(&open(DeviceKind::Cpu, 1, 1), &x);
    assert!(other[0] != first[0] && other[0] != second[0] && other[2] == first[2], "another seed of the session");
}

#[test]
fn draws_are_spread_as_they_must_be() {
    let s = open(DeviceKind::Cpu, 9, 2);
    let y: Vec<Vec<f64>> = run(&s, &zeros(20_000)).iter().map(Tensor::to_f64_vec).collect();
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let n = y[0].len() as f64;
    assert!(mean(&y[0]).abs() < 5.0 / n.sqrt());
    let square: Vec<f64> = y[0].iter().map(|v| v * v).collect();
    assert!((mean(&square) - 1.0).abs() < 5.0 * (2.0 / n).sqrt());
    let both: Vec<f64> = y[0].iter().zip(&y[1]).map(|(a, b)| a * b).collect();
    assert!(mean(&both).abs() < 5.0 / n.sqrt(), "two nodes are correlated");
    assert!(y[2].iter().all(|v| (-1.0..=1.0).contains(v)) && mean(&y[2]).abs() < 5.0 * (1.0f64 / 3.0 / n).sqrt());
    assert!((mean(&y[4]) - 2.5).abs() < 5.0 * (25.0f64 / 12.0 / 4000.0).sqrt());
    for (k, p) in [0.1, 0.5, 0.9].into_iter().enumerate() {
        let ones: Vec<f64> = y[5].iter().skip(k).step_by(3).copied().collect();
        assert!((mean(&ones) - p).abs() < 5.0 * (p * (1.0 - p) / 500.0f64).sqrt(), "Bernoulli of {p}");
        let share = y[6].iter().filter(|c| **c == k as f64).count() as f64 / 2000.0;
        let p = p / 1.5;
        assert!((share - p).abs() < 5.0 * (p * (1.0 - p) / 2000.0f64).sqrt(), "class {k}: {share}");
    }
}

#[test]
fn each_iteration_draws_anew() {
    let step = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .node("Identity", &["go"], &["on"])
        .node_with("RandomUniform", &[], &["r"], vec![ints("shape", &[8])])
        .node_with("RandomUniform", &[], &["q"], vec![ints("shape", &[8]), float("seed", 1.0)])
        .output("on")
        .output("r")
        .output("q");
    let g = graph()
        .input("trips", DType::I64, &[])
        .weight("true", &Tensor::from_bool(&[], &[true]))
        .node_with("Loop", &["trips", "true"], &["all", "seeded"], vec![body("body", step)])
        .output("all")
        .output("seeded");
    let s = session(&g.compile(), DeviceKind::Cpu);
    let trips = [Tensor::from_i64(&[], &[5])];
    let (a, b) = (run(&s, &trips), run(&s, &trips));
    for y in [&a[0], &a[1], &b[0]] {
        let v = y.to_f64_vec();
        let rows: std::collections::BTreeSet<String> = v.chunks(8).map(|r| format!("{r:?}")).collect();
        assert_eq!(rows.len(), 5, "iterations draw the same");
    }
    assert!(a[0] != b[0] && a[1] == b[1]);
}

#[test]
fn elements_are_dropped_in_training_alone() {
    let g = graph()
        .input("x", DType::F32, &["n"])
        .input("ratio", DType::F32, &[])
        .input("training", DType::Bool, &[])
        .node("Dropout", &["x", "ratio", "training"], &["y", "mask"])
        .output("y")
        .output("mask");
    let s = session(&g.clone().compile(), DeviceKind::Cpu);
    let x = Tensor::from_f32(&[10_000], &vec![3.0; 10_000]);
    let case = |ratio: f32, training: bool| {
        vec![x.clone(), Tensor::from_f32(&[], &[ratio]), Tensor::from_bool(&[], &[training])]
    };
    let first = run(&s, &case(0.25, true));
    assert_close(&first, &interpret(&g.bytes(), &case(0.25, true)), "the interpreter");
    let (y, mask) = (first[0].to_f64_vec(), first[1].to_i64_vec());
    assert!(y.iter().zip(&mask).all(|(y, m)| if *m == 1 { (y - 4.0).abs() < 1e-6 } else { *y == 0.0 }));
    let share = mask.iter().sum::<i64>() as f64 / 10_000.0;
    assert!((share - 0.75).abs() < 5.0 * (0.75f64 * 0.25 / 10_000.0).sqrt(), "{share}");
    assert!(run(&s, &case(0.25, true)) != first, "each run drops others");
    for (ratio, training) in [(0.25, false), (0.0, true), (1.0, false)] {
        let y = run(&s, &case(ratio, training));
        assert!(y[0] == x && y[1].to_i64_vec().iter().all(|m| *m == 1), "{ratio} {training}");
    }
}
