//! Indices out of range: constant ones are refused, computed ones clamped (gathering) or dropped (scattering).

use super::{Extents, Prepared, prepare, run_loops};
use crate::cases::{self, Case};
use crate::consts::ConstData;
use crate::op::{OpDef, Registry};
use std::collections::BTreeMap;
use tensor::Diagnostic;

/// What `f` makes of a node of the newest row of the operator.
pub(super) fn with<T>(op: &str, text: &str, extents: Extents, f: impl FnOnce(&OpDef, &Case, Prepared) -> T) -> T {
    let registry = Registry::builtin();
    let (domain, name) = op.split_once(':').unwrap_or(("", op));
    let def = &registry[registry.newest(domain, name)];
    let case = cases::parse(def, text).unwrap();
    let p = prepare(def, &case, &BTreeMap::new(), extents, 1).unwrap();
    f(def, &case, p)
}

fn refusal(op: &str, text: &str) -> Diagnostic {
    with(op, text, Extents::Constant, |def, case, mut p| p.infer(def, case).expect_err(text))
}

fn check_refused(op: &str, text: &str, words: &str) {
    let e = refusal(op, text);
    assert_eq!(e.node_path(), Some("/case"));
    let name = op.rsplit(':').next().unwrap_or(op);
    assert!(e.to_string().starts_with(&format!("{name}: {words}")), "{text}: {e}");
}

#[test]
fn constant_indices_out_of_range_are_refused() {
    check_refused("Gather", "[5,3];i64[2,2]{0,1,5,2}", "index 5 at [1, 0] is out of range for axis 0 of extent 5");
    check_refused("Gather", "[5,3];i32[2]{-3,-4} axis=-1", "index -4 at [1] is out of range for axis 1 of extent 3");
    check_refused(
        "com.microsoft:CropAndResize",
        "[2,1,4,4];[2,4];i32[2]{0,2};i32[2]{2,2}",
        "index 2 at [1] is out of range for axis 0 of extent 2",
    );
    check_refused("com.microsoft:CropAndResize", "[2,1,4,4];[1,4];i32[1]{-1};i32[2]{2,2}", "there is no image -1");
    check_refused("Gather", "[5];i64[]{9}", "index 9 is out of range for axis 0 of extent 5");
    check_refused("Gather", "[0,2];i64[1]{0}", "index 0 at [0] is out of range for axis 0 of extent 0");
    check_refused(
        "GatherElements",
        "[3,4];i64[1,4]{0,2,3,1}",
        "index 3 at [0, 2] is out of range for axis 0 of extent 3",
    );
    check_refused("GatherND", "[3,4,2];i64[2,2]{2,3,0,4}", "index 4 at [1, 1] is out of range for axis 1 of extent 4");
    let batched = "[2,3,4];i64[2,1]{1,3} batch_dims=1";
    check_refused("GatherND", batched, "index 3 at [1, 0] is out of range for axis 1 of extent 3");
    let text = "[3,4];i64[2,3]{0,2,-5,0,0,0};[2,3] axis=1";
    check_refused("ScatterElements", text, "index -5 at [0, 2] is out of range for axis 1 of extent 4");
    check_refused(
        "ScatterND",
        "[4,3];i64[2,1]{1,-5};[2,3]",
        "index -5 at [1, 0] is out of range for axis 0 of extent 4",
    );
    let e = refusal("Gather", "[5];i64[1]{5}").to_string();
    assert!(e.contains("indices along this axis are from -5 to 4"), "{e}");
    // Both ends are in range.
    with("Gather", "[5];i64[2]{-5,4}", Extents::Constant, |def, case, mut p| p.infer(def, case).unwrap());
}

#[test]
fn a_constant_element_among_computed_ones_is_refused() {
    with("Gather", "[1];i64[3]{0,0,0}", Extents::Computed, |def, case, mut p| {
        p.infer(def, case).unwrap();
        let nine = p.dims.constant(9);
        p.operands[1].as_mut().unwrap().values.as_mut().unwrap()[2] = nine;
        let e = p.infer(def, case).unwrap_err().to_string();
        assert!(e.contains("index 9 at [2]"), "{e}");
    });
}

#[test]
fn a_splat_of_indices_is_not_written_out() {
    with("GatherND", "[3,9];i64[4,2]{0}", Extents::Constant, |def, case, mut p| {
        let c = p.operands[1].as_ref().unwrap().konst.unwrap();
        p.consts[c].shape = [1 << 50, 2].into_iter().collect();
        for (index, refused) in [(2i64, false), (3, true)] {
            p.consts[c].data = ConstData::Splat(index.to_le_bytes().into_iter().collect());
            assert_eq!(p.infer(def, case).is_err(), refused, "{index}");
        }
    });
}

#[test]
fn indices_beyond_the_data_along_other_axes_are_refused() {
    check_refused("GatherElements", "[3,4];i64[3,5]{0}", "5 indices along axis 1 are more than the 4 elements");
    check_refused("ScatterElements", "[3,4];i64[4,4]{0};[4,4] axis=1", "4 indices along axis 0 are more than the 3");
    with("GatherElements", "[3,4];i64[3,5]{0}", Extents::Symbolic, |def, case, mut p| {
        let e = run_loops(def, case, &mut p).unwrap_err();
        assert!(e.contains("indices must not reach beyond the data along axis 1"), "{e}");
    });
}

fn check(op: &str, text: &str, extents: Extents, want: &[f64]) {
    let y = with(op, text, extents, |def, case, mut p| run_loops(def, case, &mut p));
    assert_eq!(y.unwrap_or_else(|e| panic!("{op} {text}: {e}"))[0].to_f64_vec(), want, "{op} {text}");
}

#[test]
fn computed_indices_are_clamped_when_gathering() {
    let check = |op, text, want: &[f64]| check(op, text, Extents::Computed, want);
    check("Gather", "[5]{10,11,12,13,14};i64[4]{5,-6,-1,100}", &[14.0, 10.0, 14.0, 14.0]);
    check("Gather", "[0];i64[1]{3}", &[0.0]);
    check("GatherElements", "[2,3]{0,1,2,3,4,5};i64[1,3]{2,-3,1}", &[3.0, 1.0, 5.0]);
    check("GatherND", "[2,3]{0,1,2,3,4,5};i64[2,2]{0,3,2,-4}", &[2.0, 3.0]);
}

#[test]
fn computed_indices_out_of_range_are_dropped_when_scattering() {
    let check = |op: &str, text: &str, want: &[f64]| check(op, text, Extents::Computed, want);
    for op in ["ScatterElements", "ScatterND"] {
        let indices = if op == "ScatterND" { "i64[3,1]{3,-4,1}" } else { "i64[3]{3,-4,1}" };
        check(op, &format!("[3]{{0,1,2}};{indices};[3]{{7,8,9}}"), &[0.0, 9.0, 2.0]);
        check(op, &format!("[3]{{0,1,2}};{indices};[3]{{7,8,9}} reduction=add"), &[0.0, 10.0, 2.0]);
    }
    check("ScatterND", "[2,2]{0,1,2,3};i64[2,2]{0,2,1,1};[2]{7,8}", &[0.0, 1.0, 2.0, 8.0]);
}

#[test]
fn constant_indices_into_extents_of_the_run_are_treated_as_computed() {
    check("Gather", "[5]{10,11,12,13,14};i64[3]{7,-9,1}", Extents::Symbolic, &[14.0, 10.0, 11.0]);
    check("ScatterElements", "[3]{0,1,2};i64[3]{3,-4,1};[3]{7,8,9}", Extents::Symbolic, &[0.0, 9.0, 2.0]);
}
