//! The one list of operator rows. Each file holds the rows of one family, with their shape rules and candidates.

pub mod broadcast;
pub mod row;

use crate::op::OpDef;

/// Every built-in row.
pub fn rows() -> Vec<OpDef> {
    let families: &[&[OpDef]] = &[];
    families.concat()
}
