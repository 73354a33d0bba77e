//! Operators with axes that the model computes, against their reference functions.

use super::{Extents, Prepared, prepare, run_loops, seen};
use crate::cases::{self, Case};
use crate::lowering::{Candidate, NodeCtx, Operand};
use crate::op::{OpDef, RefCtx, Registry};
use std::collections::BTreeMap;
use tensor::Tensor;

/// The result of a node by its loops, or by its view.
fn result(def: &OpDef, case: &Case, p: &mut Prepared) -> Result<Tensor, String> {
    let Some(Candidate::View(view)) = def.lower.first() else { return Ok(run_loops(def, case, p)?.swap_remove(0)) };
    let (types, guards) = p.infer(def, case).map_err(|e| format!("infer: {e}"))?;
    p.check_guards(&guards)?;
    let shape = types[0].shape().ok_or("the result has no shape")?.clone();
    let dtype = types[0].dtype().ok_or("the result has no type")?;
    let outs = [Operand { dtype, shape: shape.clone(), values: None, konst: None }];
    let mut ctx =
        NodeCtx { dims: &mut p.dims, attrs: &case.attrs, ins: &p.operands, outs: &outs, consts: &p.consts, below: &[] };
    let view = view(&mut ctx).map_err(|r| r.0)?;
    let values = p.values.clone();
    let env = |s| values.get(&s).copied();
    let shape: Result<Vec<usize>, _> = shape.iter().map(|&d| p.dims.eval(d, &env).map(|n| n as usize)).collect();
    let x = p.tensors[0].clone().ok_or("no operand")?;
    seen(&mut p.dims, &env, &x, &view, 0, (x.dtype(), &shape.map_err(|e| e.to_string())?))
}

/// Runs a node whose integer operands are computed.
fn check(def: &OpDef, text: &str) {
    let case = cases::parse(def, text).unwrap();
    let mut p = prepare(def, &case, &BTreeMap::new(), Extents::Computed, 3).unwrap();
    let seen = RefCtx { def, attrs: &case.attrs, consts: &p.consts, ins: &p.tensors, n_outs: 1 };
    let want = ((def.reference.unwrap())(&seen)).unwrap().swap_remove(0);
    let got = result(def, &case, &mut p).unwrap_or_else(|e| panic!("{} {text}: {e}", def.name));
    assert_eq!(got.shape(), want.shape(), "{} {text}", def.name);
    for (g, w) in got.to_f64_vec().iter().zip(want.to_f64_vec()) {
        assert!(g == &w || (g - w).abs() <= 1e-5 * w.abs().max(1.0), "{} {text}: {g}, not {w}", def.name);
    }
}

#[test]
fn reductions() {
    let registry = Registry::builtin();
    for name in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp", "ReduceL2"] {
        let def = &registry[registry.newest("", name)];
        for keep in [0, 1] {
            for axes in ["1]{0", "1]{1", "1]{2", "1]{-1", "2]{0,2", "2]{-1,1", "2]{2,0", "0]{"] {
                check(def, &format!("[2,3,4];i64[{axes}}} keepdims={keep}").replace("{}", ""));
            }
            check(def, &format!("[5];i64[1]{{0}} keepdims={keep}"));
            check(def, &format!("[2,1,3];i64[1]{{1}} keepdims={keep}"));
        }
        check(def, "[2,3];i64[0] noop_with_empty_axes=1");
    }
    let sum = &registry[registry.newest("", "ReduceSum")];
    check(sum, "[2,0,3];i64[1]{1}");
    check(sum, "[2,0,3];i64[1]{0} keepdims=0");
}

#[test]
fn bad_axes_do_not_start() {
    let registry = Registry::builtin();
    let def = &registry[registry.newest("", "ReduceSum")];
    for axes in ["1]{2", "1]{-3", "2]{0,0", "2]{1,-1"] {
        let text = format!("[2,3];i64[{axes}}}");
        let case = cases::parse(def, &text).unwrap();
        let mut p = prepare(def, &case, &BTreeMap::new(), Extents::Computed, 3).unwrap();
        let e = run_loops(def, &case, &mut p).map(|_| ()).expect_err(&text);
        assert!(e.starts_with("guard "), "{text}: {e}");
    }
}

#[test]
fn cumulative() {
    let registry = Registry::builtin();
    for name in ["CumSum", "CumProd"] {
        let def = &registry[registry.newest("", name)];
        for axis in [0, 1, -1, 2] {
            for flags in ["", " exclusive=1", " reverse=1", " exclusive=1 reverse=1"] {
                check(def, &format!("[2,3,4];i64[]{{{axis}}}{flags}"));
            }
        }
        check(def, "[5];i64[]{-1}");
    }
}

#[test]
fn ones_go() {
    let registry = Registry::builtin();
    let squeeze = &registry[registry.newest("", "Squeeze")];
    for axes in ["1]{0", "1]{2", "1]{-1", "2]{0,2", "2]{-1,0"] {
        check(squeeze, &format!("[1,3,1];i64[{axes}}}"));
    }
}

#[test]
fn slices() {
    let registry = Registry::builtin();
    let def = &registry[registry.newest("", "Slice")];
    for text in [
        "[5,4];i64[1]{1};i64[1]{-1};i64[1]{0}",
        "[5,4];i64[1]{1};i64[1]{-1};i64[1]{1}",
        "[5];i64[1]{-1};i64[1]{-100};i64[1]{0};i64[1]{-2}",
        "[5];i64[1]{0};i64[1]{100};i64[1]{0};i64[1]{2}",
        "[5,6];i64[2]{1,-3};i64[2]{1000,9223372036854775807}",
        "[4,3,5];i64[2]{1,3};i64[2]{3,0};i64[2]{0,-1};i64[2]{1,-2}",
        "[4,3,5];i64[2]{-1,-9223372036854775808};i64[2]{-9223372036854775808,2};i64[2]{-1,-2};i64[2]{-3,1}",
        "[7];i64[1]{1};i64[1]{7};i64[1]{-1};i64[1]{3}",
        "[7];i64[1]{5};i64[1]{2};i64[1]{0};i64[1]{1}",
    ] {
        check(def, text);
    }
    let case = cases::parse(def, "[5];i64[1]{0};i64[1]{3};i64[1]{0};i64[1]{0}").unwrap();
    let mut p = prepare(def, &case, &BTreeMap::new(), Extents::Computed, 3).unwrap();
    let e = result(def, &case, &mut p).map(|_| ()).expect_err("a step of 0");
    assert!(e.starts_with("guard "), "{e}");
}

#[test]
fn too_many_computed_axes_are_refused() {
    let registry = Registry::builtin();
    let def = &registry[registry.newest("", "ReduceSum")];
    let case = cases::parse(def, "[2,3,4];i64[3]{0,1,2} keepdims=0").unwrap();
    let mut p = prepare(def, &case, &BTreeMap::new(), Extents::Computed, 3).unwrap();
    let e = run_loops(def, &case, &mut p).map(|_| ()).unwrap_err();
    assert!(e.contains("3 axes of 3 that only the run knows"), "{e}");
}

#[test]
fn a_constant_axis_out_of_range_is_refused() {
    let registry = Registry::builtin();
    for name in ["CumSum", "CumProd"] {
        let def = &registry[registry.newest("", name)];
        for axis in [3, -4, 7, i64::MAX] {
            let case = cases::parse(def, &format!("[2,3,4];i64[]{{{axis}}}")).unwrap();
            let mut p = prepare(def, &case, &BTreeMap::new(), Extents::Constant, 3).unwrap();
            let e = run_loops(def, &case, &mut p).map(|_| ()).unwrap_err();
            assert!(e.starts_with("infer: ") && e.contains("axes are from -3 to 2"), "{name} {axis}: {e}");
        }
    }
}
