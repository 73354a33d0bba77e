//! Shape rules and nests on random nodes: extents with 0 and 1, axes from both ends, negative steps and pads.

use super::{Extents, assignments, check};
use crate::cases::{self, Random};
use crate::generate::random::{elementwise_case, movement_case};
use crate::op::OpDef;

/// Checks `per_row` random nodes of each row for which `random_case` has cases.
fn check_random(
    rows: &[&'static [OpDef]],
    per_row: usize,
    random_case: fn(&OpDef, &mut Random) -> Option<String>,
) -> u64 {
    let mut random = Random::new(7);
    let (mut n, mut wrong) = (0, vec![]);
    for def in rows.iter().copied().flatten() {
        for _ in 0..per_row {
            let Some(text) = random_case(def, &mut random) else { continue };
            let case = cases::parse(def, &text).unwrap_or_else(|e| panic!("{}: {text}: {e}", def.full_name()));
            let types = assignments(def);
            let types = &types[random.below(types.len() as u64) as usize];
            for extents in [Extents::Constant, Extents::Symbolic] {
                n += 1;
                if let Err(e) = check(def, &case, types, extents, n) {
                    wrong.push(format!("{} {text} {types:?} {extents:?}: {e}", def.full_name()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {n} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    n
}

#[test]
fn elementwise_and_reducing_rows_agree_with_the_reference() {
    use super::super::{activation, cast, elementwise, norm, reduce};
    let rows = [elementwise::ROWS, cast::ROWS, activation::ROWS, reduce::ROWS, norm::ROWS];
    let n = check_random(&rows, 24, elementwise_case);
    assert!(n > 3000, "only {n} nodes were checked");
}

#[test]
fn moving_and_sliding_rows_agree_with_the_reference() {
    use super::super::{conv, index, matmul, movement, pool, shape};
    let rows = [shape::ROWS, movement::ROWS, index::ROWS, matmul::ROWS, conv::ROWS, pool::ROWS];
    let n = check_random(&rows, 60, movement_case);
    assert!(n > 1500, "only {n} nodes were checked");
}
