//! What import makes of models that are right.

use crate::model::*;
use ir::consts::ConstData;
use ir::graph::Def;
use ir::import::{Files, import_bytes, import_file, import_proto};
use ir::{Module, Onnx};
use prost::Message;
use tensor::dims::Origin;
use tensor::onnx_pb::*;
use tensor::{DType, Result};

pub fn import(m: &ModelProto) -> Result<Module<Onnx>> {
    import_bytes(m.encode_to_vec().into(), None, &registry())
}

#[test]
fn a_model_becomes_a_module() {
    let m = import(&small()).unwrap();
    let g = m.graph();
    assert_eq!((g.inputs.len(), g.outputs.len(), g.order.len()), (1, 1, 2));
    let ops: Vec<(&str, i64)> =
        g.order.iter().map(|&n| (m.registry[g.nodes[n].op].name, m.registry[g.nodes[n].op].since)).collect();
    assert_eq!(ops, [("Add", 7), ("Softmax", 13)]);
    assert_eq!(m.attrs_of(&g.nodes[g.order[1]]).int(0), Some(-1), "the default is filled in");
    assert_eq!(g.values[g.inputs[0]].ty.display(&m.dims), "f32[batch, 2]");
    assert_eq!(&*g.nodes[g.order[0]].origin.0, "/add");
    assert!(matches!(g.values[g.nodes[g.order[0]].ins[1].unwrap()].def, Def::Const(_)));
    assert_eq!((m.meta.name.as_str(), m.meta.opsets[0].1), ("main", 17));
}

#[test]
fn weights_are_slices_of_the_file() {
    let big = f32s("w", &[64, 64], &[1.0; 4096]);
    let g = graph(
        vec![node("Add", &["x", "w"], &["y"])],
        vec![value("x", DType::F32, &["64", "64"])],
        vec![value("y", DType::F32, &["64", "64"])],
    );
    let bytes: bytes::Bytes = model(GraphProto { initializer: vec![big], ..g }).encode_to_vec().into();
    let range = bytes.as_ptr_range();
    let m = import_bytes(bytes, None, &registry()).unwrap();
    let ConstData::Bytes(b) = &m.consts.values().next().unwrap().data else { panic!("bytes") };
    assert!(range.contains(&b.as_ptr()));
}

#[test]
fn an_output_with_an_empty_shape_has_the_shape_that_it_has() {
    let g = graph(
        vec![node("Relu", &["x"], &["y"])],
        vec![value("x", DType::F32, &["n", "3"])],
        vec![value("y", DType::F32, &[])],
    );
    let mut m = import(&model(g)).unwrap();
    ir::infer::infer(&mut m).unwrap();
    assert_eq!(m.graph().values[m.graph().outputs[0]].ty.display(&m.dims), "f32[n, 3]");
}

#[test]
fn unknown_extents_of_inputs_are_symbols_named_after_them() {
    let g = graph(
        vec![node("Relu", &["x"], &["y"])],
        vec![value("x", DType::F32, &["n", "0", "-1", "?", "3", "n"])],
        vec![value("y", DType::F32, &["n"])],
    );
    let m = import(&model(g)).unwrap();
    assert_eq!(m.graph().values[m.graph().inputs[0]].ty.display(&m.dims), "f32[n, x_1, x_2, x_3, 3, n]");
    let n = m.dims.find_symbol("n").unwrap();
    assert_eq!(m.dims.sym(n).origin, Origin::Input { input: 0, axis: 0 });
}

#[test]
fn unsorted_nodes_are_sorted() {
    let g = graph(
        vec![node("Relu", &["b"], &["y"]), node("Relu", &["x"], &["a"]), node("Relu", &["a"], &["b"])],
        vec![value("x", DType::F32, &["2"])],
        vec![value("y", DType::F32, &["2"])],
    );
    let m = import(&model(g)).unwrap();
    let g = m.graph();
    let outs: Vec<&str> = g.order.iter().map(|&n| &*g.values[g.nodes[n].outs[0]].name).collect();
    assert_eq!(outs, ["a", "b", "y"]);
    assert_eq!(&*g.nodes[g.order[2]].origin.0, "Relu(y)");
}

#[test]
fn bodies_are_isolated_and_captures_are_operands() {
    let m = import(&nested()).unwrap();
    let g = m.graph();
    let branch = &g.nodes[g.order[1]];
    // Own operand: the condition. Captured: h and x; w and trips are constants and come along as such.
    assert_eq!((branch.ins.len(), branch.n_captures, branch.regions.len()), (3, 2, 2));
    for &r in &branch.regions {
        assert_eq!(m.graphs[r].inputs.len(), 2);
    }
    let then = &m.graphs[branch.regions[0]];
    let the_loop = &then.nodes[then.order[0]];
    assert_eq!((the_loop.ins.len(), the_loop.n_captures), (4, 1));
    assert!(the_loop.ins[1].is_none());
    let body = &m.graphs[the_loop.regions[0]];
    assert_eq!((body.inputs.len(), body.outputs.len()), (4, 3));
    assert_eq!(body.outputs[0], body.inputs[1]);
    assert_eq!(&*body.nodes[body.order[0]].origin.0, "if/then_branch/loop/body/Add(s)");
}

#[test]
fn functions_are_inlined_with_their_attributes() {
    let soft = with(
        node("Softmax", &["a"], &["b"]),
        [AttributeProto { name: "axis".into(), ref_attr_name: "ax".into(), r#type: Some(2), ..Default::default() }],
    );
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 12 }];
    let inner = FunctionProto {
        name: "Inner".into(),
        domain: "fn".into(),
        input: strings(&["a", "unused"]),
        output: strings(&["b"]),
        attribute: strings(&["ax"]),
        node: vec![soft],
        opset_import: opset_import.clone(),
        ..Default::default()
    };
    let call = with(
        named("call", NodeProto { domain: "fn".into(), ..node("Inner", &["r"], &["out"]) }),
        [AttributeProto { name: "ax".into(), ref_attr_name: "k".into(), r#type: Some(2), ..Default::default() }],
    );
    let outer = FunctionProto {
        name: "Outer".into(),
        domain: "fn".into(),
        input: strings(&["p"]),
        output: strings(&["out"]),
        attribute_proto: vec![int("k", 0)],
        node: vec![node("Relu", &["p"], &["r"]), call],
        opset_import: vec![opset_import[0].clone(), OperatorSetIdProto { domain: "fn".into(), version: 1 }],
        ..Default::default()
    };
    let g = graph(
        vec![
            named("f", NodeProto { domain: "fn".into(), ..node("Outer", &["x"], &["t"]) }),
            with(named("g", NodeProto { domain: "fn".into(), ..node("Outer", &["t"], &["y"]) }), [int("k", 2)]),
        ],
        vec![value("x", DType::F32, &["2"])],
        vec![value("y", DType::F32, &["2"])],
    );
    let m = import(&ModelProto { functions: vec![inner, outer], ..model(g) }).unwrap();
    let g = m.graph();
    let paths: Vec<&str> = g.order.iter().map(|&n| &*g.nodes[n].origin.0).collect();
    assert_eq!(paths, ["f/Relu(r)", "f/call/Softmax(b)", "g/Relu(r)", "g/call/Softmax(b)"]);
    let axes: Vec<_> = [1, 3].map(|i| m.attrs_of(&g.nodes[g.order[i]]).int(0)).to_vec();
    assert_eq!(axes, [Some(0), Some(2)], "the default of the function, and what the call gives");
    assert_eq!(m.registry[g.nodes[g.order[1]].op].since, 1, "functions have operator sets of their own");
    assert_eq!(&*g.values[g.outputs[0]].name, "y");
}

#[test]
fn constants_of_every_form_are_read() {
    let k = |out: &str, a: AttributeProto| with(node("Constant", &[], &[out]), [a]);
    let attr = |name: &str, ty, a: AttributeProto| AttributeProto { name: name.into(), r#type: Some(ty), ..a };
    let sparse = SparseTensorProto {
        values: Some(Box::new(f32s("v", &[2], &[5.0, 7.0]))),
        indices: Some(Box::new(i64s("", &[2, 2], &[0, 1, 1, 0]))),
        dims: vec![2, 2],
    };
    let d = AttributeProto::default;
    let names = ["a", "b", "c", "d", "e", "f"];
    let nodes = vec![
        k("a", attr("value_int", 2, AttributeProto { i: Some(4), ..d() })),
        k("b", attr("value_floats", 6, AttributeProto { floats: vec![1.5, 2.5], ..d() })),
        k("c", attr("value_string", 3, AttributeProto { s: Some("hi".into()), ..d() })),
        k("d", attr("value", 4, AttributeProto { t: Some(Box::new(i64s("", &[1], &[9]))), ..d() })),
        k("e", attr("sparse_value", 11, AttributeProto { sparse_tensor: Some(Box::new(sparse)), ..d() })),
        k("f", attr("value_ints", 7, AttributeProto { ints: vec![1, 2], ..d() })),
    ];
    let outs = names.map(|n| ValueInfoProto { name: n.into(), ..Default::default() }).to_vec();
    let m = import(&model(graph(nodes, vec![], outs))).unwrap();
    let g = m.graph();
    let shown: Vec<String> = g
        .outputs
        .iter()
        .map(|&v| {
            let c = &m.consts[g.as_const(v).unwrap()];
            format!("{:?}", c.read().unwrap())
        })
        .collect();
    assert_eq!(
        shown,
        [
            "i64[] [4.0]",
            "f32[2] [1.5, 2.5]",
            "str[] [\"hi\"]",
            "i64[1] [9.0]",
            "f32[2, 2] [0.0, 5.0, 7.0, 0.0]",
            "i64[2] [1.0, 2.0]"
        ]
    );
}

#[test]
fn external_data_is_read_where_it_lies() {
    let dir = tempdir("external");
    let data: Vec<u8> = [9f32, 1.0, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(dir.join("w.bin"), [&[0u8][..], &data].concat()).unwrap();
    let entry = |k: &str, v: &str| StringStringEntryProto { key: k.into(), value: v.into() };
    let w = TensorProto {
        raw_data: None,
        data_location: EXTERNAL,
        external_data: vec![entry("location", "w.bin"), entry("offset", "5"), entry("length", "8")],
        ..f32s("w", &[2], &[])
    };
    let mut m = small();
    m.graph.as_mut().unwrap().initializer = vec![w];
    let path = dir.join("m.onnx");
    std::fs::write(&path, m.encode_to_vec()).unwrap();
    let m = import_file(&path, &registry()).unwrap().module;
    let c = m.consts.values().next().unwrap();
    assert!(matches!(c.data, ConstData::File { offset: 5, len: 8, .. }));
    assert_eq!(c.read().unwrap().to_f64_vec(), [1.0, 2.0]);
}

pub fn tempdir(name: &str) -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("hip-ep-front-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn an_initializer_that_is_an_input_is_its_default() {
    let mut m = small();
    m.graph.as_mut().unwrap().input.push(value("w", DType::F32, &["2"]));
    m.ir_version = Some(4);
    let i = import_proto(&m, &Files::new(None, None), &registry()).unwrap();
    assert_eq!((i.module.graph().inputs.len(), i.notes.len()), (2, 0));
    assert_eq!(i.module.default_input(0).unwrap().map(|t| t.to_f64_vec()), None);
    assert_eq!(i.module.default_input(1).unwrap().map(|t| t.to_f64_vec()), Some(vec![0.5, -1.0]));
    let text = ir::text::print_onnx(&i.module);
    assert!(text.contains("%v1 \"w\" : f32[2] = @c0) {"), "{text}");
    assert_eq!(ir::text::print_onnx(&ir::text::parse_onnx(&text, &registry()).unwrap()), text);
    let again = ir::export::to_proto(&i.module).unwrap();
    let again = import_proto(&again, &Files::new(None, None), &registry()).unwrap().module;
    assert_eq!(again.default_input(1).unwrap().map(|t| t.to_f64_vec()), Some(vec![0.5, -1.0]));

    // Before version 4 of the file format, every initializer was listed so.
    m.ir_version = Some(3);
    let i = import_proto(&m, &Files::new(None, None), &registry()).unwrap();
    assert_eq!(i.module.graph().inputs.len(), 1);
    assert_eq!(i.notes, ["input \"w\" is an initializer and kept as a constant"]);
}

#[test]
fn a_default_is_what_its_input_declares() {
    for (dtype, extent) in [(DType::F32, "3"), (DType::F16, "2")] {
        let mut m = small();
        m.graph.as_mut().unwrap().input.push(value("w", dtype, &[extent]));
        m.ir_version = Some(4);
        let e = import_proto(&m, &Files::new(None, None), &registry()).map(|_| ()).unwrap_err().to_string();
        assert!(e.contains("the default of graph input \"w\" is not what the input declares"), "{e}");
    }
}
