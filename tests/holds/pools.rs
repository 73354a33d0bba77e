//! Pools are hardly larger than what lives in them, at shapes that no one knew at compile time.

use super::kit::*;
use hip_ep::ir::Registry;
use hip_ep::{Compiler, DType, Tensor};

/// `layers` blocks of attention and feed-forward over `[batch, seq, width]`, then a convolutional head.
pub fn transformer(layers: usize, width: usize, heads: usize) -> G {
    let (w, d) = (width, width / heads);
    let (ws, hs, ds) = (w as i64, heads as i64, d as i64);
    let mut g = graph()
        .input("x", DType::F32, &["batch", "seq", &w.to_string()])
        .ints("split", &[0, 0, hs, ds])
        .ints("join", &[0, 0, ws])
        .weight("scale", &Tensor::from_f32(&[], &[(d as f32).sqrt()]))
        .weight("gain", &random(90, &[w]))
        .weight("shift", &random(91, &[w]));
    let mut x = "x".to_string();
    for l in 0..layers {
        let n = |s: &str| format!("l{l}.{s}");
        for (i, m) in ["q", "k", "v"].into_iter().enumerate() {
            let perm: &[i64] = if m == "k" { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] };
            g = g
                .weight(&n(&format!("{m}.w")), &random((l * 10 + i) as u64, &[w, w]))
                .node("MatMul", &[&x, &n(&format!("{m}.w"))], &[&n(m)])
                .node("Reshape", &[&n(m), "split"], &[&n(&format!("{m}4"))])
                .node_with("Transpose", &[&n(&format!("{m}4"))], &[&n(&format!("{m}t"))], vec![ints("perm", perm)]);
        }
        g = g
            .node("MatMul", &[&n("qt"), &n("kt")], &[&n("qk")])
            .node("Div", &[&n("qk"), "scale"], &[&n("scaled")])
            .node_with("Softmax", &[&n("scaled")], &[&n("p")], vec![int("axis", -1)])
            .node("MatMul", &[&n("p"), &n("vt")], &[&n("o4")])
            .node_with("Transpose", &[&n("o4")], &[&n("ot")], vec![ints("perm", &[0, 2, 1, 3])])
            .node("Reshape", &[&n("ot"), "join"], &[&n("o")])
            .node("Add", &[&x, &n("o")], &[&n("r1")])
            .node_with("LayerNormalization", &[&n("r1"), "gain", "shift"], &[&n("n1")], vec![int("axis", -1)])
            .weight(&n("up"), &random((l * 10 + 5) as u64, &[w, 3 * w]))
            .weight(&n("down"), &random((l * 10 + 6) as u64, &[3 * w, w]))
            .node("MatMul", &[&n("n1"), &n("up")], &[&n("h")])
            .node("Sigmoid", &[&n("h")], &[&n("s")])
            .node("Mul", &[&n("h"), &n("s")], &[&n("silu")])
            .node("MatMul", &[&n("silu"), &n("down")], &[&n("f")])
            .node("Add", &[&n("n1"), &n("f")], &[&n("y")]);
        x = n("y");
    }
    g.ints("axis1", &[1])
        .node("Unsqueeze", &[&x, "axis1"], &["image"])
        .weight("c1", &random(80, &[6, 1, 3, 3]))
        .weight("c2", &random(81, &[12, 6, 3, 3]))
        .node_with("Conv", &["image", "c1"], &["c1y"], vec![ints("pads", &[1, 1, 1, 1])])
        .node("Relu", &["c1y"], &["c1r"])
        .node_with("Conv", &["c1r", "c2"], &["c2y"], vec![ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 2])])
        .node_with("Concat", &["c2y", "c2y"], &["both"], vec![int("axis", 1)])
        .node("GlobalAveragePool", &["both"], &["y"])
        .output("y")
}

#[test]
fn pools_hold_little_more_than_what_lives() {
    let bytes = transformer(3, 64, 4).bytes();
    let m = hip_ep::ir::import::import_bytes(bytes.into(), None, &Registry::builtin()).expect("it imports");
    let l = Compiler::new().lower(m, &mut Default::default()).unwrap_or_else(|e| panic!("{e}"));
    let mut total = (0, 0);
    for shape in [[1, 1, 64], [1, 509, 64], [7, 31, 64], [3, 2048, 64]] {
        let u = hip_ep::tool::pools::at_shapes(&l.hip, &l.plan, &[shape.to_vec()]).unwrap_or_else(|e| panic!("{e}"));
        println!("{shape:?}: pools of {} bytes, {} live: {:.3}", u.peak, u.live, u.peak as f64 / u.live as f64);
        assert!(u.live > 0 && u.peak as f64 <= 1.15 * u.live as f64, "{shape:?}: {u:?}");
        total = (total.0 + u.peak, total.1 + u.live);
    }
    assert!(total.1 > 1 << 20, "the pools matter");
}

#[test]
fn the_transformer_of_this_test_runs_right() {
    let cases = [[1, 1, 32], [2, 17, 32], [5, 3, 32]].map(|s| vec![random(s[1] as u64, &s)]);
    check(&transformer(2, 32, 4), &cases);
}
