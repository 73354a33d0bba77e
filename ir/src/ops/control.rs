//! Rows of control flow. Shapes of bodies are inferred, and bodies run and lowered, by those who know graphs.

use super::row::{ANY, BOOL, ROW};
use super::scan::expand_scan;
use crate::lowering::Candidate;
use crate::op::{AttrKind, OpDef, OpTraits, attr, opt, req, var};
use tensor::DType::I64;

const SCAN: OpDef = OpDef {
    name: "Scan",
    inputs: &[var("initial_state_and_scan_inputs", "")],
    outputs: &[var("final_state_and_scan_outputs", "")],
    attrs: &[
        attr("body", AttrKind::Graph),
        attr("num_scan_inputs", AttrKind::IntReq),
        attr("scan_input_axes", AttrKind::Ints),
        attr("scan_input_directions", AttrKind::Ints),
        attr("scan_output_axes", AttrKind::Ints),
        attr("scan_output_directions", AttrKind::Ints),
    ],
    dtypes: &[("V", ANY)],
    lower: &[Candidate::Expand(expand_scan)],
    traits: REGIONS,
    ..ROW
};
const REGIONS: OpTraits = OpTraits { regions: true, ..OpTraits::NONE };

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        name: "If",
        inputs: &[req("cond", "B")],
        outputs: &[var("outputs", "")],
        attrs: &[attr("then_branch", AttrKind::Graph), attr("else_branch", AttrKind::Graph)],
        dtypes: &[("B", BOOL), ("V", ANY)],
        lower: &[Candidate::Regions],
        traits: REGIONS,
        ..ROW
    },
    OpDef {
        name: "Loop",
        inputs: &[opt("M", "I"), opt("cond", "B"), var("v_initial", "")],
        outputs: &[var("v_final_and_scan_outputs", "")],
        attrs: &[attr("body", AttrKind::Graph)],
        dtypes: &[("I", &[I64]), ("B", BOOL), ("V", ANY)],
        lower: &[Candidate::Regions],
        traits: REGIONS,
        ..ROW
    },
    // The body over the elements of each sample's sequences in turn; axis 0 is the batch, axis 1 what is gone along
    OpDef {
        since: 8,
        until: 8,
        inputs: &[opt("sequence_lens", "I"), var("initial_state_and_scan_inputs", "")],
        attrs: &[
            attr("body", AttrKind::Graph),
            attr("num_scan_inputs", AttrKind::IntReq),
            attr("directions", AttrKind::Ints),
        ],
        dtypes: &[("I", &[I64]), ("V", ANY)],
        ..SCAN
    },
    // The body over the elements of sequences along axes counted from the start
    OpDef { since: 9, until: 10, ..SCAN },
    // The same along axes counted from either end
    OpDef { since: 11, ..SCAN },
];
