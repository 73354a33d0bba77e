//! Modes of sampling that not all element types of a row have.

use super::{Extents, check, families};
use crate::cases;
use std::collections::BTreeMap;
use tensor::DType::{self, *};

#[test]
fn floats_are_interpolated() {
    let cases = [
        "[2,3,4,5];[2,3,2,2]",
        "[1,2,4,5];[1,3,4,2] padding_mode=border",
        "[1,2,4,5];[1,3,4,2] padding_mode=reflection",
        "[1,2,1,5];[1,3,4,2] padding_mode=reflection align_corners=1",
        "[1,1,3,4,2];[1,2,2,3,3] align_corners=1",
        "[1,1,3,4];[1,2,3,2] mode=cubic",
        "[1,1,3,4];[1,2,3,2] mode=cubic padding_mode=border align_corners=1",
        "[1,1,3,4];[1,2,3,2] mode=cubic padding_mode=reflection",
        "[1,1,2,3,2];[1,2,1,2,3] mode=cubic",
        "[1,2,5];[1,4,1]",
        "[1,1,2,2];[1,2,2,2]{nan,0.1,1000,-1000}",
    ];
    let mut wrong = vec![];
    for def in families().filter(|d| d.name == "GridSample" && d.since >= 20) {
        for (n, text) in (0..).zip(cases) {
            let case = cases::parse(def, text).unwrap();
            for (x, grid) in [(F32, F32), (F16, F32), (F64, F64), (F32, F64), (BF16, F16)] {
                let types: BTreeMap<&str, DType> = BTreeMap::from([("T1", x), ("T2", grid)]);
                for extents in [Extents::Constant, Extents::Symbolic] {
                    if let Err(e) = check(def, &case, &types, extents, n) {
                        wrong.push(format!("{text} {types:?} {extents:?}: {e}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
