//! The one list of operator rows. Each file holds the rows of one family, with their shape rules and candidates.

pub mod activation;
pub mod broadcast;
pub mod cast;
pub mod elementwise;
pub mod pointwise;
pub mod row;

use crate::op::OpDef;

/// Every built-in row.
pub fn rows() -> Vec<OpDef> {
    let families: &[&[OpDef]] = &[elementwise::ROWS, cast::ROWS, activation::ROWS];
    families.concat()
}
