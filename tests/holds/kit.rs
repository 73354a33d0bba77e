//! ONNX models built in a few lines, and how to run them.

use hip_ep::tensor::onnx_pb::*;
use hip_ep::{CompiledModel, Compiler, DType, DeviceKind, RunInputs, Session, Tensor};
use prost::Message;
use std::path::{Path, PathBuf};

/// A graph under construction.
#[derive(Clone, Default)]
pub struct G(pub GraphProto);

pub fn graph() -> G {
    G(GraphProto { name: "main".into(), ..Default::default() })
}

fn value(name: &str, dtype: DType, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| match d.parse() {
        Ok(n) => dimension::Value::DimValue(n),
        Err(_) => dimension::Value::DimParam(d.to_string()),
    };
    let ty = tensor_type(dtype as i32, Some(dims.iter().map(dim).collect()));
    ValueInfoProto { name: name.into(), r#type: Some(ty), ..Default::default() }
}

impl G {
    pub fn input(mut self, name: &str, dtype: DType, dims: &[&str]) -> G {
        self.0.input.push(value(name, dtype, dims));
        self
    }
    /// A graph output of a type that inference finds.
    pub fn output(mut self, name: &str) -> G {
        self.0.output.push(ValueInfoProto { name: name.into(), ..Default::default() });
        self
    }
    pub fn weight(mut self, name: &str, t: &Tensor) -> G {
        self.0.initializer.push(tensor(name, t));
        self
    }
    pub fn ints(self, name: &str, v: &[i64]) -> G {
        self.weight(name, &Tensor::from_i64(&[v.len()], v))
    }
    /// A node named `/OUTPUT`.
    pub fn node(self, op: &str, ins: &[&str], outs: &[&str]) -> G {
        self.node_with(op, ins, outs, vec![])
    }
    pub fn node_with(mut self, op: &str, ins: &[&str], outs: &[&str], attribute: Vec<AttributeProto>) -> G {
        self.0.node.push(NodeProto {
            op_type: op.into(),
            name: format!("/{}", outs[0]),
            input: ins.iter().map(|s| s.to_string()).collect(),
            output: outs.iter().map(|s| s.to_string()).collect(),
            attribute,
            ..Default::default()
        });
        self
    }
    pub fn proto(self) -> ModelProto {
        ModelProto {
            ir_version: Some(8),
            producer_name: "tests".into(),
            graph: Some(self.0),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
            ..Default::default()
        }
    }
    pub fn bytes(self) -> Vec<u8> {
        self.proto().encode_to_vec()
    }
    pub fn compile(self) -> CompiledModel {
        Compiler::new().compile_bytes(self.bytes(), None).unwrap_or_else(|e| panic!("{e}"))
    }
}

pub fn tensor(name: &str, t: &Tensor) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: t.shape().iter().map(|&d| d as i64).collect(),
        data_type: t.dtype() as i32,
        raw_data: Some(t.bytes().clone()),
        ..Default::default()
    }
}

fn attr(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: Some(kind as i32), ..Default::default() }
}
pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { i: Some(i), ..attr(name, AttributeType::Int) }
}
pub fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { f: Some(f), ..attr(name, AttributeType::Float) }
}
pub fn ints(name: &str, v: &[i64]) -> AttributeProto {
    AttributeProto { ints: v.to_vec(), ..attr(name, AttributeType::Ints) }
}
pub fn text(name: &str, s: &str) -> AttributeProto {
    AttributeProto { s: Some(s.to_string().into()), ..attr(name, AttributeType::String) }
}
pub fn body(name: &str, g: G) -> AttributeProto {
    AttributeProto { g: Some(Box::new(g.0)), ..attr(name, AttributeType::Graph) }
}

/// Numbers in -1 to 1 that look random and are the same on every machine.
pub fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (0..n).map(|_| (rng.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}
pub fn random(seed: u64, shape: &[usize]) -> Tensor {
    Tensor::from_f32(shape, &noise(seed, shape.iter().product()))
}

/// xorshift with a multiplication at the end.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    /// Below `n`, or 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 20) as usize % n.max(1)
    }
}

pub fn session(m: &CompiledModel, device: DeviceKind) -> Session {
    m.session(device, Default::default()).unwrap_or_else(|e| panic!("{e}"))
}
pub fn run(s: &Session, inputs: &[Tensor]) -> Vec<Tensor> {
    s.collect(&RunInputs::in_order(inputs), &Default::default()).unwrap_or_else(|e| panic!("{e}")).0
}

/// What the reference functions say.
pub fn interpret(bytes: &[u8], inputs: &[Tensor]) -> Vec<Tensor> {
    let registry = hip_ep::ir::Registry::builtin();
    let mut m = hip_ep::ir::import::import_bytes(bytes.to_vec().into(), None, &registry).expect("the model imports");
    hip_ep::ir::infer::infer(&mut m).expect("the model has types");
    hip_ep::ir::interp::run(&m, inputs).unwrap_or_else(|e| panic!("{e}"))
}

/// Fails unless types, shapes and, to 1e-4 of the largest magnitude, elements agree.
pub fn assert_close(got: &[Tensor], want: &[Tensor], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: number of outputs");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!((g.dtype(), g.shape()), (w.dtype(), w.shape()), "{what}: output {i}");
        let (a, b) = (g.to_f64_vec(), w.to_f64_vec());
        let top = b.iter().fold(0f64, |m, v| m.max(v.abs()));
        let tolerance = if w.dtype().is_float() { 1e-4 * top } else { 0.0 };
        for (j, (x, y)) in a.iter().zip(&b).enumerate() {
            assert!((x - y).abs() <= tolerance, "{what}: output {i} element {j}: {x} but {y} is right");
        }
    }
}

/// Compiles, runs on `cpu` and `guard`, and compares with the reference functions. One session per device runs all cases in turn.
pub fn check(g: &G, cases: &[Vec<Tensor>]) -> CompiledModel {
    let m = g.clone().compile();
    let bytes = g.clone().bytes();
    for device in [DeviceKind::Cpu, DeviceKind::Guard] {
        let s = session(&m, device);
        for (i, inputs) in cases.iter().enumerate() {
            assert_close(&run(&s, inputs), &interpret(&bytes, inputs), &format!("{device:?}, case {i}"));
        }
    }
    m
}

/// Inputs that a run must refuse, with these words.
pub fn refuses(g: &G, inputs: &[Tensor], words: &str) {
    let m = g.clone().compile();
    for device in [DeviceKind::Cpu, DeviceKind::Guard] {
        let e = session(&m, device).collect(&RunInputs::in_order(inputs), &Default::default());
        let e = e.map(|_| ()).expect_err(words).to_string();
        assert!(e.contains(words), "{e}");
    }
}

/// A folder of this test's own, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let p = std::env::temp_dir().join(format!("hip-ep-holds-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&p).expect("the temporary folder is writable");
        Folder(p)
    }
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small model with everything that the tests of the whole artifact want: a dynamic batch, weights, a convolution, a product,
/// an idiom that rewriting finds, several generated kernels, two outputs.
pub fn mixed() -> G {
    graph()
        .input("x", DType::F32, &["batch", "3", "h", "8"])
        .weight("conv.w", &random(1, &[4, 3, 3, 3]))
        .weight("conv.b", &random(2, &[4]))
        .weight("w", &random(3, &[8, 16]))
        .weight("bias", &random(4, &[16]))
        .weight("half", &Tensor::from_f32(&[], &[0.5]))
        .weight("one", &Tensor::from_f32(&[], &[1.0]))
        .weight("root2", &Tensor::from_f32(&[], &[std::f32::consts::SQRT_2]))
        .node_with("Conv", &["x", "conv.w", "conv.b"], &["c"], vec![ints("pads", &[1, 1, 1, 1])])
        .node("Relu", &["c"], &["r"])
        .node("MatMul", &["r", "w"], &["m"])
        .node("Add", &["m", "bias"], &["b"])
        .node("Div", &["b", "root2"], &["g0"])
        .node("Erf", &["g0"], &["g1"])
        .node("Add", &["g1", "one"], &["g2"])
        .node("Mul", &["b", "g2"], &["g3"])
        .node("Mul", &["g3", "half"], &["g"])
        .node_with("Softmax", &["g"], &["s"], vec![int("axis", -1)])
        .node_with("Transpose", &["s"], &["t"], vec![ints("perm", &[0, 2, 1, 3])])
        .node("Exp", &["t"], &["y"])
        .node_with("ReduceMean", &["g"], &["z"], vec![ints("axes", &[-1]), int("keepdims", 0)])
        .output("y")
        .output("z")
}
