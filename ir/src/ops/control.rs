//! Rows of control flow. Shapes of bodies are inferred, and bodies run and lowered, by those who know graphs.

use super::row::{ANY, BOOL, ROW};
use crate::lowering::Candidate;
use crate::op::{AttrKind, OpDef, OpTraits, attr, opt, req, var};
use tensor::DType::I64;

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
];
