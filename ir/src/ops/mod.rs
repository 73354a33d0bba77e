//! The one list of operator rows. Each file holds the rows of one family, with their shape rules and candidates.

pub mod activate;
pub mod activation;
pub mod aligned;
pub mod arrange;
pub mod attention;
pub mod batch;
pub mod blocks;
mod bounds;
pub mod broadcast;
pub mod cache;
pub mod cast;
pub mod contrib;
pub mod control;
pub mod conv;
pub mod deform;
pub mod det;
pub mod dft;
pub mod dropout;
pub mod einsum;
pub mod elementwise;
pub mod extents;
pub mod grid;
pub mod index;
pub mod linear_attention;
pub mod loops;
pub mod loss;
pub mod lp_pool;
pub mod marked;
mod matmul;
pub mod movement;
pub mod nms;
pub mod norm;
pub mod number;
pub mod pointwise;
pub mod pool;
pub mod qproduct;
pub mod quant;
pub mod random;
pub mod recurrence;
pub mod reduce;
mod resample;
pub mod resize;
pub mod roi;
pub mod rotary;
pub mod row;
mod run_axes;
mod sample;
pub(crate) mod scan;
pub mod shape;
pub mod signal;
pub mod sort;
pub mod split;
pub mod training;
pub mod window;

#[cfg(test)]
mod tests;

use crate::op::OpDef;

/// The families of rows.
static FAMILIES: &[&[OpDef]] = &[
    elementwise::ROWS,
    aligned::ROWS,
    cast::ROWS,
    activation::ROWS,
    reduce::ROWS,
    marked::ROWS,
    norm::ROWS,
    batch::ROWS,
    shape::ROWS,
    movement::ROWS,
    index::ROWS,
    sort::ROWS,
    nms::ROWS,
    dft::ROWS,
    signal::ROWS,
    random::ROWS,
    dropout::ROWS,
    matmul::ROWS,
    einsum::ROWS,
    det::ROWS,
    conv::ROWS,
    pool::ROWS,
    quant::ROWS,
    qproduct::ROWS,
    control::ROWS,
    loss::ROWS,
    training::ROWS,
    attention::ROWS,
    rotary::ROWS,
    cache::ROWS,
    contrib::attention::ROWS,
    contrib::bias::ROWS,
    contrib::embed::ROWS,
    contrib::gqa::ROWS,
    contrib::mha::ROWS,
    contrib::packed::ROWS,
    contrib::padding::ROWS,
    contrib::position::ROWS,
    contrib::qattention::ROWS,
    contrib::qconvert::ROWS,
    contrib::qembed::ROWS,
    contrib::qfloat::ROWS,
    contrib::qlinear::ROWS,
    contrib::qlstm::ROWS,
    contrib::qpool::ROWS,
    contrib::qproduct::ROWS,
    contrib::bnb4::ROWS,
    contrib::experts::ROWS,
    contrib::gather_blocks::ROWS,
    contrib::moe::ROWS,
    contrib::nbits::ROWS,
    contrib::residual::ROWS,
    contrib::rotary::ROWS,
    contrib::sparse::ROWS,
    contrib::fused::ROWS,
    contrib::softmax::ROWS,
    contrib::conv::ROWS,
    contrib::group_norm::ROWS,
    contrib::state::ROWS,
    contrib::mrotary::ROWS,
    contrib::crop::ROWS,
    contrib::masked::ROWS,
    contrib::inverse::ROWS,
    contrib::words::ROWS,
    contrib::earlier::ROWS,
    contrib::compositions::ROWS,
    linear_attention::ROWS,
    recurrence::ROWS,
    resize::ROWS,
    blocks::ROWS,
    arrange::ROWS,
    lp_pool::ROWS,
    grid::ROWS,
    roi::ROWS,
    deform::ROWS,
];

/// Every built-in row.
pub fn rows() -> Vec<OpDef> {
    FAMILIES.concat()
}
