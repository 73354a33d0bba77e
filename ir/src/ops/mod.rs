//! The one list of operator rows. Each file holds the rows of one family, with their shape rules and candidates.

pub mod activation;
pub mod broadcast;
pub mod cast;
pub mod elementwise;
pub mod extents;
pub mod index;
pub mod loops;
pub mod movement;
pub mod norm;
pub mod pointwise;
pub mod reduce;
pub mod row;
pub mod shape;
pub mod split;

use crate::op::OpDef;

/// Every built-in row.
pub fn rows() -> Vec<OpDef> {
    let families: &[&[OpDef]] = &[
        elementwise::ROWS,
        cast::ROWS,
        activation::ROWS,
        reduce::ROWS,
        norm::ROWS,
        shape::ROWS,
        movement::ROWS,
        index::ROWS,
    ];
    families.concat()
}
