//! What one iteration of a loop reads: parts of captured tensors are views, and a layer of one step is no loop.

use crate::lower_tests::{Builder, check, count, seq};
use ir::attrs::Attr;
use ir::hip::HipOp;
use tensor::{DType, Tensor};

/// Launches and loops of `y[i] = 2·x[i]` over the steps, by the index that a body makes of the iteration's number.
fn steps(index: impl Fn(&mut Builder, ir::Value) -> ir::Value, rows: &str) -> (usize, usize) {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "3"]);
    let rows =
        if rows == "n" { b.op("Shape", &[("end", Attr::Int(1))], &[x]) } else { b.ints(&[rows.parse().unwrap()]) };
    let zero = b.ints(&[0]);
    let trips = b.op("Squeeze", &[], &[rows, zero]);
    let body = b.region(|b| {
        let i = b.input(DType::I64, &[]);
        let go = b.input(DType::Bool, &[]);
        let x = b.input(DType::F32, &["n", "3"]);
        let i = index(b, i);
        let row = b.op("Gather", &[], &[x, i]);
        let y = b.op("Softmax", &[], &[row]);
        b.output(go);
        b.output(y);
    });
    let out = b.control("Loop", &[Some(trips), None], &[x], &[body], 1)[0];
    b.output(out);
    let (plain, ..) = check(b, &[&[seq(&[4, 3])], &[seq(&[2, 3])]]);
    let launches = plain.graphs.values().flat_map(|g| g.order.iter().map(|&n| &g.nodes[n].op));
    (launches.filter(|o| matches!(o, HipOp::Launch(_))).count(), count(&plain, |o| matches!(o, HipOp::Loop(_))))
}

/// The iteration's number names a part that is there; any other integer may be out of range and is looked at by a kernel.
#[test]
fn the_part_of_an_iteration_is_a_view() {
    assert_eq!(steps(|_, i| i, "n"), (1, 1));
    let launches = |f: fn(&mut Builder, ir::Value) -> ir::Value, rows| steps(f, rows).0;
    let back = |b: &mut Builder, i| b.op("Neg", &[], &[i]);
    // One trip more than there are rows, or fewer than there may be: the extent does not say that the number is below it.
    assert!(launches(|_, i| i, "2") > 1);
    assert!(launches(back, "n") > 1);
}

#[test]
fn an_index_that_is_known_is_a_view() {
    for (index, rank) in [(1, 0), (-1, 0), (2, 1), (-3, 1)] {
        let mut b = Builder::new();
        let x = b.input(DType::F32, &["n", "3", "2"]);
        let i = b.konst(&Tensor::from_i64(&vec![1; rank], &[index]));
        let part = b.op("Gather", &[("axis", Attr::Int(1))], &[x, i]);
        let y = b.op("Neg", &[], &[part]);
        b.output(y);
        let (plain, ..) = check(b, &[&[seq(&[4, 3, 2])], &[seq(&[0, 3, 2])], &[seq(&[1, 3, 2])]]);
        assert_eq!(count(&plain, |o| matches!(o, HipOp::Launch(_))), 1, "{index}");
    }
}

#[test]
fn a_layer_of_one_step_is_no_loop() {
    for (n, loops) in [("1", 0), ("3", 1)] {
        let mut b = Builder::new();
        let x = b.input(DType::F32, &[n, "b", "2"]);
        let weight = |b: &mut Builder, shape: &[usize]| {
            let n = shape.iter().product::<usize>();
            b.konst(&Tensor::from_f32(shape, &(0..n).map(|k| (k % 7) as f32 * 0.1 - 0.3).collect::<Vec<_>>()))
        };
        let (w, r) = (weight(&mut b, &[1, 12, 2]), weight(&mut b, &[1, 12, 3]));
        let outs = b.ops("LSTM", &[("hidden_size", Attr::Int(3))], &[Some(x), Some(w), Some(r)], 3);
        outs.into_iter().for_each(|v| b.output(v));
        ir::infer::infer(&mut b.m).unwrap();
        assert!(ir::expand::expand(&mut b.m).unwrap());
        let k = n.parse().unwrap();
        let (plain, ..) = check(b, &[&[seq(&[k, 2, 2])], &[seq(&[k, 1, 2])]]);
        assert_eq!(count(&plain, |o| matches!(o, HipOp::Loop(_))), loops);
    }
}

/// An extent of at most 1 against the one that a loop carries: the carried one stays what it is.
#[test]
fn a_carried_extent_is_kept_by_one_of_at_most_one() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let m = b.input(DType::I64, &[]);
    let (from, to) = (b.ints(&[0]), b.ints(&[1]));
    let first = b.op("Slice", &[], &[x, from, to]);
    let one = b.op("Reshape", &[], &[first, to]);
    let body = b.region(|b| {
        b.input(DType::I64, &[]);
        let go = b.input(DType::Bool, &[]);
        let (v, w) = (b.input(DType::F32, &["n"]), b.input(DType::F32, &["n"]));
        let next = b.op("Sub", &[], &[v, w]);
        let each = b.op("Neg", &[], &[next]);
        [go, next, each].into_iter().for_each(|v| b.output(v));
    });
    let outs = b.control("Loop", &[Some(m), None, Some(one)], &[first], &[body], 2);
    outs.into_iter().for_each(|v| b.output(v));
    let trips = Tensor::from_i64(&[], &[3]);
    check(b, &[&[seq(&[4]), trips.clone()], &[seq(&[1]), trips]]);
}
