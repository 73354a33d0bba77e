//! Detection and signals: counts of boxes that only the data tells, also in branches and loops; transforms of lengths that the run gives.

use super::kit::*;
use hip_ep::{DType, Tensor};

/// Boxes of two opposite corners, many of which cover others, with scores that repeat.
fn boxes(seed: u64, batch: usize, classes: usize, n: usize) -> [Tensor; 2] {
    let corner: Vec<f32> = noise(seed, batch * n * 4).iter().map(|v| (v * 4.0).round()).collect();
    let score: Vec<f32> = noise(seed + 1, batch * classes * n).iter().map(|v| (v * 8.0).round() / 8.0).collect();
    [Tensor::from_f32(&[batch, n, 4], &corner), Tensor::from_f32(&[batch, classes, n], &score)]
}

fn inputs(g: G) -> G {
    g.input("boxes", DType::F32, &["b", "n", "4"]).input("scores", DType::F32, &["b", "c", "n"])
}

fn suppression(g: G) -> G {
    g.node("NonMaxSuppression", &["boxes", "scores", "limit", "iou", "least"], &["kept"])
}

fn limits(g: G) -> G {
    g.ints("limit", &[4])
        .weight("iou", &Tensor::from_f32(&[1], &[0.25]))
        .weight("least", &Tensor::from_f32(&[], &[-0.5]))
}

#[test]
fn kept_boxes_are_gathered_whatever_their_number() {
    let g = limits(inputs(graph()))
        .node("NonMaxSuppression", &["boxes", "scores", "limit", "iou", "least"], &["kept"])
        .ints("last", &[2])
        .node_with("Gather", &["kept", "last"], &["at"], vec![int("axis", 1)])
        .node("Shape", &["kept"], &["count"])
        .output("kept")
        .output("at")
        .output("count");
    let case = |b: usize, c: usize, n: usize| boxes(n as u64, b, c, n).to_vec();
    check(&g, &[case(1, 1, 40), case(2, 3, 9), case(1, 2, 1), case(1, 2, 0), case(3, 1, 300), case(0, 2, 5)]);
}

#[test]
fn branches_and_loops_keep_boxes() {
    let then = suppression(graph()).output("kept");
    let none = Tensor::from_i64(&[0, 3], &[]);
    let other = graph().weight("none", &none).node("Identity", &["none"], &["nothing"]).output("nothing");
    let g = limits(inputs(graph()))
        .input("any", DType::Bool, &[])
        .node_with("If", &["any"], &["y"], vec![body("then_branch", then), body("else_branch", other)])
        .output("y");
    let case = |n: usize, any: bool| {
        let [b, s] = boxes(n as u64, 1, 2, n);
        vec![b, s, Tensor::from_bool(&[], &[any])]
    };
    check(&g, &[case(20, true), case(20, false), case(0, true), case(7, true)]);

    // Each iteration demands a higher score; how many are left is carried on.
    let step =
        suppression(graph().input("i", DType::I64, &[]).input("go", DType::Bool, &[]).input("least", DType::F32, &[]))
            .node("Identity", &["go"], &["on"])
            .weight("more", &Tensor::from_f32(&[], &[0.25]))
            .node("Add", &["least", "more"], &["next"])
            .node_with("Shape", &["kept"], &["count"], vec![int("end", 1)])
            .output("on")
            .output("next")
            .output("count");
    let g = limits(inputs(graph()))
        .input("trips", DType::I64, &[])
        .weight("true", &Tensor::from_bool(&[], &[true]))
        .node_with("Loop", &["trips", "true", "least"], &["last", "counts"], vec![body("body", step)])
        .output("last")
        .output("counts");
    let case = |n: usize, trips: i64| {
        let [b, s] = boxes(n as u64, 2, 2, n);
        vec![b, s, Tensor::from_i64(&[], &[trips])]
    };
    check(&g, &[case(30, 5), case(3, 0), case(0, 2), case(64, 3)]);
}

#[test]
fn spectra_of_lengths_that_the_run_gives() {
    let g = graph()
        .input("x", DType::F32, &["b", "samples", "1"])
        .input("step", DType::I64, &[])
        .input("length", DType::I64, &[])
        .node("HannWindow", &["length"], &["window"])
        .node("STFT", &["x", "step", "window", "length"], &["spectra"])
        .node("DFT", &["x", "length"], &["whole"])
        .output("spectra")
        .output("whole");
    let case = |b: usize, samples: usize, step: i64, length: i64| {
        vec![random(samples as u64, &[b, samples, 1]), Tensor::from_i64(&[], &[step]), Tensor::from_i64(&[], &[length])]
    };
    check(&g, &[case(1, 400, 160, 400), case(2, 64, 5, 16), case(1, 50, 7, 37), case(3, 8, 1, 1), case(300, 9, 2, 8)]);
    refuses(&g, &case(1, 10, 2, 11), "a frame is no longer than the signal");
    refuses(&g, &case(1, 10, 0, 4), "frames are at least one element apart");
    refuses(&g, &case(1, 10, 2, 0), "length");
}
