//! Small models built in code, and a registry of a few rows to import them with.

use ir::op::{AttrKind, OpTraits, Tol, attr, opt, req, var};
use ir::{OpDef, Registry};
use std::sync::Arc;
use tensor::DType;
use tensor::onnx_pb::*;

pub const F: &[DType] = &[DType::F32, DType::F16, DType::F64];
pub const ANY: &[DType] = DType::ALL;
const I: &[DType] = &[DType::I64];
const B: &[DType] = &[DType::Bool];

const BASE: OpDef = OpDef {
    name: "",
    domain: "",
    since: 1,
    until: i64::MAX,
    inputs: &[],
    outputs: &[],
    attrs: &[],
    dtypes: &[("T", F), ("A", ANY), ("I", I), ("B", B)],
    infer: |c| {
        let ty = c.ty(0).clone();
        c.set_type(0, ty);
        Ok(())
    },
    reference: None,
    lower: &[],
    traits: OpTraits::NONE,
    tolerance: Tol::Exact,
    cases: &[],
};

/// Rows enough for the tests: shapes are those of operand 0.
static ROWS: &[OpDef] = &[
    OpDef { name: "Relu", inputs: &[req("X", "T")], outputs: &[req("Y", "T")], ..BASE },
    OpDef { name: "Add", inputs: &[req("A", "T"), req("B", "T")], outputs: &[req("C", "T")], since: 7, ..BASE },
    OpDef {
        name: "Softmax",
        since: 1,
        until: 12,
        inputs: &[req("input", "T")],
        outputs: &[req("output", "T")],
        attrs: &[attr("axis", AttrKind::Int(1))],
        ..BASE
    },
    OpDef {
        name: "Softmax",
        since: 13,
        inputs: &[req("input", "T")],
        outputs: &[req("output", "T")],
        attrs: &[attr("axis", AttrKind::Int(-1))],
        ..BASE
    },
    OpDef {
        name: "Reshape",
        inputs: &[req("data", "A"), req("shape", "I")],
        outputs: &[req("reshaped", "A")],
        attrs: &[attr("allowzero", AttrKind::Int(0))],
        since: 5,
        ..BASE
    },
    OpDef {
        name: "Mixed",
        domain: "test",
        inputs: &[req("x", "A"), opt("y", "A"), var("z", "A")],
        outputs: &[req("o", "A"), opt("p", "A")],
        attrs: &[
            attr("i", AttrKind::IntReq),
            attr("f", AttrKind::Float(0.5)),
            attr("s", AttrKind::StrOpt),
            attr("is", AttrKind::Ints),
            attr("fs", AttrKind::Floats),
            attr("ss", AttrKind::Strs),
            attr("t", AttrKind::Tensor),
            attr("ty", AttrKind::Type),
        ],
        ..BASE
    },
    OpDef {
        name: "If",
        inputs: &[req("cond", "B")],
        outputs: &[var("outputs", "")],
        attrs: &[attr("then_branch", AttrKind::Graph), attr("else_branch", AttrKind::Graph)],
        traits: OpTraits { regions: true, ..OpTraits::NONE },
        ..BASE
    },
    OpDef {
        name: "Loop",
        inputs: &[opt("M", "I"), opt("cond", "B"), var("v_initial", "")],
        outputs: &[var("v_final_and_scan_outputs", "")],
        attrs: &[attr("body", AttrKind::Graph)],
        traits: OpTraits { regions: true, ..OpTraits::NONE },
        ..BASE
    },
];

pub fn registry() -> Arc<Registry> {
    Arc::new(Registry::with_rows(ROWS.iter().cloned()))
}

pub fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|s| s.to_string()).collect()
}

pub fn node(op: &str, ins: &[&str], outs: &[&str]) -> NodeProto {
    NodeProto { op_type: op.into(), input: strings(ins), output: strings(outs), ..Default::default() }
}

pub fn named(name: &str, n: NodeProto) -> NodeProto {
    NodeProto { name: name.into(), ..n }
}

pub fn with(n: NodeProto, attrs: impl IntoIterator<Item = AttributeProto>) -> NodeProto {
    NodeProto { attribute: attrs.into_iter().collect(), ..n }
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i: Some(i), r#type: Some(2), ..Default::default() }
}

pub fn graph_attr(name: &str, g: GraphProto) -> AttributeProto {
    AttributeProto { name: name.into(), g: Some(Box::new(g)), r#type: Some(5), ..Default::default() }
}

/// A declared value: a dim is a number, a name, or `?`.
pub fn value(name: &str, dtype: DType, dims: &[&str]) -> ValueInfoProto {
    let dim = |s: &&str| match (s.parse(), *s) {
        (Ok(n), _) => dimension::Value::DimValue(n),
        (_, "?") => dimension::Value::DimParam(String::new()),
        (_, s) => dimension::Value::DimParam(s.into()),
    };
    let ty = tensor_type(dtype.onnx(), Some(dims.iter().map(dim).collect()));
    ValueInfoProto { name: name.into(), r#type: Some(ty), ..Default::default() }
}

pub fn f32s(name: &str, dims: &[i64], v: &[f32]) -> TensorProto {
    let raw: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: 1,
        raw_data: Some(raw.into()),
        ..Default::default()
    }
}

pub fn i64s(name: &str, dims: &[i64], v: &[i64]) -> TensorProto {
    TensorProto { name: name.into(), dims: dims.to_vec(), data_type: 7, int64_data: v.to_vec(), ..Default::default() }
}

pub fn graph(nodes: Vec<NodeProto>, ins: Vec<ValueInfoProto>, outs: Vec<ValueInfoProto>) -> GraphProto {
    GraphProto { name: "main".into(), node: nodes, input: ins, output: outs, ..Default::default() }
}

pub fn model(graph: GraphProto) -> ModelProto {
    let opset = |d: &str, version| OperatorSetIdProto { domain: d.into(), version };
    ModelProto {
        ir_version: Some(8),
        producer_name: "test".into(),
        graph: Some(graph),
        opset_import: vec![opset("", 17), opset("test", 1)],
        ..Default::default()
    }
}

/// `y = Softmax(x + w)` with one dynamic extent.
pub fn small() -> ModelProto {
    let g = graph(
        vec![named("/add", node("Add", &["x", "w"], &["t"])), named("/softmax", node("Softmax", &["t"], &["y"]))],
        vec![value("x", DType::F32, &["batch", "2"])],
        vec![value("y", DType::F32, &["batch", "2"])],
    );
    model(GraphProto { initializer: vec![f32s("w", &[2], &[0.5, -1.0])], ..g })
}

/// A loop inside a branch, with captures of a parameter, a result and a constant.
pub fn nested() -> ModelProto {
    let body = graph(
        vec![
            node("Add", &["acc", "x"], &["s"]),
            node("Add", &["s", "w"], &["acc_next"]),
            node("Relu", &["s"], &["row"]),
        ],
        vec![value("it", DType::I64, &[]), value("go", DType::Bool, &[]), value("acc", DType::F32, &["2"])],
        vec![value("go", DType::Bool, &[]), value("acc_next", DType::F32, &["2"]), value("row", DType::F32, &["2"])],
    );
    let then = graph(
        vec![with(named("loop", node("Loop", &["trips", "", "h"], &["final", "rows"])), [graph_attr("body", body)])],
        vec![],
        vec![value("final", DType::F32, &["2"])],
    );
    let other = graph(vec![node("Relu", &["h"], &["r"])], vec![], vec![value("r", DType::F32, &["2"])]);
    let g = graph(
        vec![
            named("h", node("Relu", &["x"], &["h"])),
            with(
                named("if", node("If", &["c"], &["y"])),
                [graph_attr("then_branch", then), graph_attr("else_branch", other)],
            ),
        ],
        vec![value("x", DType::F32, &["2"]), value("c", DType::Bool, &[])],
        vec![value("y", DType::F32, &["2"])],
    );
    model(GraphProto { initializer: vec![f32s("w", &[2], &[1.0, 2.0]), i64s("trips", &[], &[3])], ..g })
}
