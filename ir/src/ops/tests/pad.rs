//! `Pad` against values computed with onnxruntime 1.32: negative pads remove elements before the others repeat what is left.

use super::{Extents, prepare, run_loops};
use crate::cases::{self, Case};
use crate::op::{OpDef, RefCtx, Registry};
use std::collections::BTreeMap;
use tensor::Tensor;

const EXTENTS: [Extents; 3] = [Extents::Constant, Extents::Symbolic, Extents::Computed];

/// The node, by reference and by its loops for each kind of extents.
fn results(def: &OpDef, case: &Case) -> (tensor::Result<Tensor>, Vec<Result<Tensor, String>>) {
    let by_loops = EXTENTS.map(|extents| {
        let mut p = prepare(def, case, &BTreeMap::new(), extents, 1)?;
        run_loops(def, case, &mut p).map(|mut y| y.swap_remove(0))
    });
    let p = prepare(def, case, &BTreeMap::new(), Extents::Constant, 1).unwrap();
    let seen = RefCtx { def, attrs: &case.attrs, consts: &p.consts, ins: &p.tensors, n_outs: 1 };
    ((def.reference.unwrap())(&seen).map(|mut y| y.swap_remove(0)), by_loops.into())
}

fn newest() -> (std::sync::Arc<Registry>, crate::op::OpId) {
    let registry = Registry::builtin();
    let id = registry.newest("", "Pad");
    (registry, id)
}

fn check(text: &str, want: &[i64]) {
    let (registry, id) = newest();
    let case = cases::parse(&registry[id], text).unwrap();
    let (by_reference, by_loops) = results(&registry[id], &case);
    let want: Vec<f64> = want.iter().map(|&v| v as f64).collect();
    assert_eq!(by_reference.unwrap().to_f64_vec(), want, "{text}");
    for (y, extents) in by_loops.into_iter().zip(EXTENTS) {
        assert_eq!(y.unwrap_or_else(|e| panic!("{text} {extents:?}: {e}")).to_f64_vec(), want, "{text} {extents:?}");
    }
}

fn check_refused(text: &str) {
    let (registry, id) = newest();
    let case = cases::parse(&registry[id], text).unwrap();
    let (by_reference, by_loops) = results(&registry[id], &case);
    by_reference.expect_err(text);
    for (y, extents) in by_loops.into_iter().zip(EXTENTS) {
        let e = y.expect_err(text);
        // Where everything is known the rule refuses; else a guard does when a run starts.
        let known = extents == Extents::Constant;
        assert!(e.starts_with("infer: ") || (!known && e.starts_with("guard ")), "{text} {extents:?}: {e}");
    }
}

fn check_six(mode: &str, pads: [i64; 2], want: &[i64]) {
    check(&format!("[6]{{0,1,2,3,4,5}};i64[2]{{{},{}}} mode={mode}", pads[0], pads[1]), want);
}

#[test]
fn wrapped() {
    let check = |pads, want: &[i64]| check_six("wrap", pads, want);
    check([1, -1], &[4, 0, 1, 2, 3, 4]);
    check([-1, 1], &[1, 2, 3, 4, 5, 1]);
    check([2, -2], &[2, 3, 0, 1, 2, 3]);
    check([-2, 2], &[2, 3, 4, 5, 2, 3]);
    check([7, -1], &[3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    check([-4, 3], &[4, 5, 4, 5, 4]);
    check([-5, 2], &[5, 5, 5]);
    check([3, -4], &[1, 0, 1, 0, 1]);
    check([-1, -1], &[1, 2, 3, 4]);
    check([9, 9], &[3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2]);
}

#[test]
fn mirrored() {
    let check = |pads, want: &[i64]| check_six("reflect", pads, want);
    check([1, -1], &[1, 0, 1, 2, 3, 4]);
    check([-1, 1], &[1, 2, 3, 4, 5, 4]);
    check([2, -2], &[2, 1, 0, 1, 2, 3]);
    check([-2, 3], &[2, 3, 4, 5, 4, 3, 2]);
    check([-1, -1], &[1, 2, 3, 4]);
    check([5, 0], &[5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5]);
    check([0, 5], &[0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn edges() {
    let check = |pads, want: &[i64]| check_six("edge", pads, want);
    check([1, -1], &[0, 0, 1, 2, 3, 4]);
    check([-1, 1], &[1, 2, 3, 4, 5, 5]);
    check([4, -2], &[0, 0, 0, 0, 0, 1, 2, 3]);
    check([-2, 4], &[2, 3, 4, 5, 5, 5, 5, 5]);
    check([3, -4], &[0, 0, 0, 0, 1]);
    check([-5, 2], &[5, 5, 5]);
    check([-1, -1], &[1, 2, 3, 4]);
}

#[test]
fn constants() {
    let check = |pads, want: &[i64]| check_six("constant", pads, want);
    check([1, -1], &[0, 0, 1, 2, 3, 4]);
    check([-4, 3], &[4, 5, 0, 0, 0]);
    check([3, -4], &[0, 0, 0, 0, 1]);
    check([-6, 1], &[0]);
    check([-6, 0], &[]);
    // More is removed than there is; what is added fills.
    check([-7, 2], &[0]);
    check([8, -6], &[0; 8]);
}

#[test]
fn two_axes() {
    let x = "[2,3]{0,1,2,3,4,5}";
    check(&format!("{x};i64[4]{{1,-1,0,2}} mode=wrap"), &[4, 5, 4, 5, 1, 2, 1, 2, 4, 5, 4, 5]);
    check(&format!("{x};i64[4]{{1,-1,0,2}} mode=edge"), &[1, 2, 2, 2, 1, 2, 2, 2, 4, 5, 5, 5]);
    check(&format!("{x};i64[4]{{1,-1,0,1}} mode=reflect"), &[4, 5, 4, 1, 2, 1, 4, 5, 4]);
}

#[test]
fn what_onnxruntime_refuses_is_refused() {
    let six = |mode: &str, pads: [i64; 2]| {
        check_refused(&format!("[6]{{0,1,2,3,4,5}};i64[2]{{{},{}}} mode={mode}", pads[0], pads[1]));
    };
    for mode in ["wrap", "reflect", "edge"] {
        // Nothing is left to repeat.
        [[-6, 1], [1, -6], [-7, 2], [8, -6], [-6, 0], [-3, -3], [-4, -4]].into_iter().for_each(|pads| six(mode, pads));
        check_refused(&format!("[0];i64[2]{{1,0}} mode={mode}"));
    }
    // More is mirrored than lies beside the edge.
    [[6, 0], [0, 6], [4, -2], [-2, 4], [-4, 3], [-5, 2], [3, -4], [9, 9]]
        .into_iter()
        .for_each(|pads| six("reflect", pads));
    check_refused("[1];i64[2]{1,0} mode=reflect");
    six("constant", [-4, -4]);
}
