//! Empty tensors: every row's cases with extents set to 0, one by one and all equal ones together. References and shape rules may refuse
//! them, but do not panic, and where the reference gives a result, the shape rule and the nests agree with it.

use super::{Extents, assignments, check, families};
use crate::cases::{self, Case};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The case with extents set to 0. The second part says whether operands still fit together: all extents of one size were set.
fn emptied(case: &Case) -> Vec<(Case, bool)> {
    let sizes: BTreeSet<usize> =
        case.operands.iter().flatten().filter(|o| o.dtype.is_none()).flat_map(|o| o.shape.iter().copied()).collect();
    let mut all = Vec::new();
    for n in sizes.into_iter().filter(|&n| n > 1) {
        let mut c = case.clone();
        let of_row = c.operands.iter_mut().flatten().filter(|o| o.dtype.is_none());
        of_row.flat_map(|o| &mut o.shape).filter(|d| **d == n).for_each(|d| *d = 0);
        all.push((c, true));
    }
    for i in 0..case.operands.len() {
        for axis in 0..case.operands[i].as_ref().map_or(0, |o| o.shape.len()) {
            let mut c = case.clone();
            if let Some(o) = &mut c.operands[i] {
                o.shape[axis] = 0;
            }
            all.push((c, case.operands.len() == 1));
        }
    }
    all
}

#[test]
fn empty_tensors_are_refused_or_right() {
    let (mut n, mut right, mut wrong) = (0, 0, vec![]);
    for def in families() {
        for text in def.cases {
            let case = cases::parse(def, text).unwrap_or_else(|e| panic!("{}: {text}: {e}", def.full_name()));
            let types = assignments(def).swap_remove(0);
            for (c, fits) in emptied(&case) {
                for extents in [Extents::Constant, Extents::Symbolic] {
                    n += 1;
                    let name = || {
                        let shapes: Vec<_> = c.operands.iter().map(|o| o.as_ref().map(|o| &o.shape)).collect();
                        format!("{} {text} with {shapes:?} {extents:?}", def.full_name())
                    };
                    match catch_unwind(AssertUnwindSafe(|| check(def, &c, &types, extents, n))) {
                        Ok(Ok(_)) => right += 1,
                        // Where only one operand is empty the others need not fit, and either side may be the one that says so.
                        Ok(Err(e)) if e.starts_with("reference: ") || e.starts_with("infer: ") || !fits => {}
                        Ok(Err(e)) => wrong.push(format!("{}: {e}", name())),
                        Err(_) => wrong.push(format!("{}: panics", name())),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {n} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
    assert!(n > 1500 && right > 500, "only {n} cases, {right} of them with a result");
}
