//! The one list of operator rows. Each file holds the rows of one family, with their shape rules and candidates.

pub mod activation;
pub mod broadcast;
pub mod cast;
pub mod elementwise;
pub mod extents;
pub mod loops;
pub mod movement;
pub mod pointwise;
pub mod row;
pub mod shape;

use crate::op::OpDef;

/// Every built-in row.
pub fn rows() -> Vec<OpDef> {
    let families: &[&[OpDef]] = &[elementwise::ROWS, cast::ROWS, activation::ROWS, shape::ROWS, movement::ROWS];
    families.concat()
}
