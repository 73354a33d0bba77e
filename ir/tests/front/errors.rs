//! The full text of what import says about models that are wrong.

use crate::import::{import, tempdir};
use crate::model::*;
use ir::import::{import_bytes, import_file};
use prost::Message;
use tensor::DType;
use tensor::onnx_pb::*;

#[track_caller]
fn check(m: &ModelProto, expected: &str) {
    let e = import(m).expect_err("must be refused");
    assert_eq!(e.to_string(), expected.trim_start_matches('\n'), "\n--- got ---\n{e}\n");
}

#[track_caller]
fn check_bytes(bytes: &[u8], expected: &str) {
    let e = import_bytes(bytes.to_vec().into(), None, &registry()).expect_err("must be refused");
    assert_eq!(e.to_string(), expected.trim_start_matches('\n'), "\n--- got ---\n{e}\n");
}

fn relu(ins: Vec<ValueInfoProto>) -> ModelProto {
    model(graph(vec![node("Relu", &["x"], &["y"])], ins, vec![value("y", DType::F32, &["2"])]))
}

#[test]
fn truncated_files() {
    let bytes = small().encode_to_vec();
    check_bytes(
        &bytes[..bytes.len() / 2],
        "
not an ONNX model, or a damaged one: field 7 needs 126 bytes but 65 are left at byte 8
  help  the file is truncated; copy or download it again",
    );
    check_bytes(&bytes[..1], "not an ONNX model, or a damaged one: the file ends inside a number at byte 1");
    check_bytes(b"", "not an ONNX model: the file is empty\n  help  copy or download it again");
}

#[test]
fn files_that_are_something_else() {
    check_bytes(
        b"PK\x03\x04rest",
        "
not an ONNX model but a zip archive
  help  unpack it; a PyTorch checkpoint must be exported with torch.onnx.export",
    );
    check_bytes(
        b"version https://git-lfs.github.com/spec/v1\n",
        "
not an ONNX model but a Git LFS pointer
  help  fetch the file itself with `git lfs pull`",
    );
    check_bytes(
        b"\x7fELF\x02\x01\x01\0",
        "
not an ONNX model but a program or shared object
  help  a model that was compiled to a shared object runs with hip-test",
    );
    check_bytes(
        b"\x7fAAA\x02\x01\x01\0",
        "
not an ONNX model, or a damaged one: field 15 has wire type 7 at byte 0
  help  is this file an ONNX model? If it is, copy or download it again",
    );
    check_bytes(
        &ModelProto { ir_version: Some(8), ..Default::default() }.encode_to_vec(),
        "not an ONNX model: it has no graph",
    );
}

#[test]
fn circles() {
    let g = graph(
        vec![
            named("/a", node("Add", &["x", "c"], &["a"])),
            named("/b", node("Relu", &["a"], &["b"])),
            named("/c", node("Relu", &["b"], &["c"])),
        ],
        vec![value("x", DType::F32, &["2"])],
        vec![value("c", DType::F32, &["2"])],
    );
    check(
        &model(g),
        "
3 nodes depend on each other in a circle
  node    /b
  circle  /b -> /c -> /a -> /b
  help    a graph's results may only depend on earlier ones; values that go around belong in a Loop",
    );
}

#[test]
fn everything_unsupported_is_in_one_error() {
    let g = graph(
        vec![
            named("/1", node("Nope", &["x"], &["a"])),
            named("/2", node("Nope", &["a"], &["b"])),
            named("/3", NodeProto { domain: "other".into(), ..node("Thing", &["b"], &["c"]) }),
            with(named("/4", node("Softmax", &["c"], &["d"])), [int("axis", 0), int("axes", 1)]),
            with(
                named("/5", node("Softmax", &["d"], &["e"])),
                [AttributeProto { name: "axis".into(), f: Some(1.0), r#type: Some(1), ..Default::default() }],
            ),
            named("/6", NodeProto { domain: "test".into(), ..node("Mixed", &["e"], &["y"]) }),
        ],
        vec![value("x", DType::F32, &["2"])],
        vec![value("y", DType::F32, &["2"])],
    );
    check(
        &model(g),
        r#"
the model uses 2 operators, 3 attributes that are not supported
  operator   Nope of ai.onnx at opset 17: 2 nodes, first /1; no such operator: add a row, or include its function in the model
  operator   Thing of other: 1 node, first /3; the model imports no operator set of this domain: add it to opset_import
  attribute  "axes" of Softmax-13: 1 node, first /4; the operator has none of this name
  attribute  "axis" of Softmax-13: 1 node, first /5; it must be int but is float
  attribute  "i" of test:Mixed-1: 1 node, first /6; it must be given
  help       each line says what would help; docs/OPS.md lists the operators that are supported"#,
    );
}

/// They hold their decoder, whose nodes are not looked at.
#[test]
fn searches_through_what_a_decoder_says() {
    for op in ["BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"] {
        let decoder = graph(
            vec![node("Nope", &["ids"], &["logits"])],
            vec![value("ids", DType::I32, &["b", "1"])],
            vec![value("logits", DType::F32, &["b", "1", "50"])],
        );
        let search = NodeProto { domain: "com.microsoft".into(), ..node(op, &["ids", "longest"], &["sequences"]) };
        let g = graph(
            vec![with(named("/search", search), [graph_attr("decoder", decoder), int("eos_token_id", 1)])],
            vec![value("ids", DType::I32, &["b", "s"]), value("longest", DType::I32, &["1"])],
            vec![value("sequences", DType::I32, &["b", "n"])],
        );
        let mut m = model(g);
        m.opset_import.push(OperatorSetIdProto { domain: "com.microsoft".into(), version: 1 });
        check(
            &m,
            &format!(
                "
the model uses 1 operator that is not supported
  operator  {op} of com.microsoft at opset 1: 1 node, first /search; it generates token by token with a decoder that it holds: compile the \
                 decoder's step as a model of its own, and keep the loop and the choice of tokens in the program that runs it
  help      each line says what would help; docs/OPS.md lists the operators that are supported"
            ),
        );
    }
}

#[test]
fn operators_that_changed_after_their_row() {
    let g = graph(
        vec![
            with(named("/cast", node("Cast", &["x"], &["a"])), [int("to", 1)]),
            named("/relu", node("Relu", &["a"], &["y"])),
        ],
        vec![value("x", DType::F32, &["2"])],
        vec![value("y", DType::F32, &["2"])],
    );
    let mut m = model(g);
    m.opset_import[0].version = 27;
    // The rows as they were before one was written for opset 28.
    let all = ir::Registry::builtin();
    let old = all.rows().map(|(_, d)| d.clone()).filter(|d| d.since < 28);
    let old =
        ir::Registry::with_rows(old.map(|d| ir::OpDef { until: if d.until == 27 { i64::MAX } else { d.until }, ..d }));
    let old = std::sync::Arc::new(old);
    let import = |m: &ModelProto| import_bytes(m.encode_to_vec().into(), None, &old);
    import(&m).unwrap_or_else(|e| panic!("{e}"));
    m.opset_import[0].version = 28;
    let e = import(&m).expect_err("must be refused").to_string();
    assert_eq!(
        e,
        "\
the model uses 1 operator that is not supported
  operator  Cast of ai.onnx at opset 28: 1 node, first /cast; it changed in opset 28, and that meaning is not known: convert the model to opset 27
  help      each line says what would help; docs/OPS.md lists the operators that are supported"
    );
}

#[test]
fn operator_sets() {
    let mut m = small();
    m.opset_import[0].version = 99;
    check(
        &m,
        "
the model uses 1 opset that is not supported
  opset  ai.onnx 99: 2 nodes, first /add; the newest known is 28: convert the model to it
  help   each line says what would help; docs/OPS.md lists the operators that are supported",
    );
    m.opset_import[0].version = 6;
    check(
        &m,
        "
the model uses 1 operator that is not supported
  operator  Add of ai.onnx at opset 6: 1 node, first /add; known at opset 7 on: convert the model to one of these
  help      each line says what would help; docs/OPS.md lists the operators that are supported",
    );
}

#[test]
fn extents() {
    check(
        &relu(vec![value("x", DType::F32, &["4611686018427387904", "4"])]),
        "graph input \"x\" has rank 2 and extents [4611686018427387904, 4]: too large",
    );
    let mut m = small();
    let w = |dims: &[i64]| TensorProto { dims: dims.to_vec(), ..f32s("w", &[2], &[0.0, 0.0]) };
    m.graph.as_mut().unwrap().initializer = vec![w(&[-2])];
    check(
        &m,
        "
tensor \"w\" declares the negative extent -2
  node  /add",
    );
    m.graph.as_mut().unwrap().initializer = vec![w(&[i64::MAX, i64::MAX])];
    check(
        &m,
        "
tensor \"w\" declares dims [9223372036854775807, 9223372036854775807]: too large
  node  /add",
    );
    m.graph.as_mut().unwrap().initializer = vec![w(&[3])];
    check(
        &m,
        "
tensor \"w\" has raw data of the wrong size
  node  /add
  data  f32[3] needs 12 bytes but the data has 8",
    );
}

#[test]
fn types() {
    check(
        &relu(vec![ValueInfoProto { name: "x".into(), ..Default::default() }]),
        "
graph input \"x\" declares no type
  help  declare its element type, and its rank if known",
    );
    let mut m = small();
    m.graph.as_mut().unwrap().initializer[0].data_type = 77;
    check(
        &m,
        "
tensor \"w\" has element type number 77
  node  /add
  help  known element types are 1 to 26 of TensorProto.DataType",
    );
}

#[test]
fn names_and_operands() {
    let x = || vec![value("x", DType::F32, &["2"])];
    let y = || vec![value("y", DType::F32, &["2"])];
    check(
        &model(graph(vec![named("/a", node("Relu", &["nothing"], &["y"]))], x(), y())),
        "
operand \"nothing\" is defined nowhere
  node  /a
  help  it must be an input, an initializer or a result of this graph or of one around it",
    );
    check(
        &model(graph(vec![node("Relu", &["x"], &["y"]), node("Relu", &["x"], &["y"])], x(), y())),
        "
two results are named \"y\"
  node  Relu(y)
  also  Relu(y)
  help  names of values must be unique within a graph",
    );
    check(
        &model(graph(vec![named("/a", node("Add", &["x"], &["y"]))], x(), y())),
        "
Add-7 needs operand 1, \"B\"
  node  /a",
    );
    check(
        &model(graph(vec![named("/a", node("Relu", &["x", "x"], &["y"]))], x(), y())),
        "
Relu-1 has at most 1 operands but 2 are given
  node  /a",
    );
    check(
        &model(graph(vec![], x(), y())),
        "
graph output \"y\" is defined nowhere
  help  it must be an input, an initializer or a result of this graph or of one around it",
    );
}

#[test]
fn functions_that_call_themselves() {
    let f = |name: &str, calls: &str| FunctionProto {
        name: name.into(),
        domain: "fn".into(),
        input: strings(&["a"]),
        output: strings(&["b"]),
        node: vec![NodeProto { domain: "fn".into(), ..node(calls, &["a"], &["b"]) }],
        ..Default::default()
    };
    let g = graph(
        vec![named("/f", NodeProto { domain: "fn".into(), ..node("F", &["x"], &["y"]) })],
        vec![value("x", DType::F32, &["2"])],
        vec![value("y", DType::F32, &["2"])],
    );
    check(
        &ModelProto { functions: vec![f("F", "G"), f("G", "F")], ..model(g) },
        "
function fn:F calls itself
  node   /f/G(b)/F(b)
  calls  fn:F -> fn:G -> fn:F",
    );
}

#[test]
fn external_data() {
    let dir = tempdir("missing");
    std::fs::write(dir.join("short.bin"), [0u8; 4]).unwrap();
    let entry = |k: &str, v: &str| StringStringEntryProto { key: k.into(), value: v.into() };
    let external = |entries: Vec<StringStringEntryProto>| {
        let mut m = small();
        let w = TensorProto { raw_data: None, data_location: EXTERNAL, external_data: entries, ..f32s("w", &[2], &[]) };
        m.graph.as_mut().unwrap().initializer = vec![w];
        m
    };
    let check = |entries, expected: &str| {
        let path = dir.join("m.onnx");
        std::fs::write(&path, external(entries).encode_to_vec()).unwrap();
        let e = import_file(&path, &registry()).expect_err("must be refused").to_string();
        let e = e.replace(&path.display().to_string(), "DIR/m.onnx");
        assert_eq!(e, expected.trim_start_matches('\n'), "\n--- got ---\n{e}\n");
    };
    check(
        vec![entry("location", "gone.bin")],
        "
tensor \"w\" keeps its data in \"gone.bin\", which cannot be read: No such file or directory (os error 2)
  node  /add
  file  DIR/m.onnx
  help  copy the data file next to the model",
    );
    check(
        vec![entry("location", "short.bin")],
        "
tensor \"w\" needs 8 bytes at offset 0 of \"short.bin\", which has 4 bytes
  node  /add
  file  DIR/m.onnx
  help  the data file is truncated or belongs to another model",
    );
    check(
        vec![entry("location", "../../etc/passwd")],
        "
tensor \"w\" keeps its data in \"../../etc/passwd\", outside the model's directory
  node  /add
  file  DIR/m.onnx
  help  external data must lie in the model's directory or below it",
    );
    check(
        vec![entry("location", "short.bin"), entry("length", "4")],
        "
tensor \"w\" is f32[2] and takes 8 bytes but its external data has 4
  node  /add
  file  DIR/m.onnx",
    );
    let e = import(&external(vec![entry("location", "short.bin")])).expect_err("no directory");
    assert_eq!(
        e.to_string(),
        "\
tensor \"w\" keeps its data in \"short.bin\", but the model was given without a directory
  node  /add
  help  import it from its file, or pass the directory"
    );
}
