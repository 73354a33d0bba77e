//! What users read when something is wrong: what, where in the model, what to do. The full texts are in `errors.txt`;
//! `UPDATE_ERRORS=1` writes it anew.

use super::kit::*;
use bytes::Bytes;
use hip_ep::artifact::Kind;
use hip_ep::tensor::onnx_pb::{EXTERNAL, StringStringEntryProto, TensorProto};
use hip_ep::{CompiledModel, Compiler, DType, DeviceKind, Result, RunInputs, Tensor};
use std::fmt::Write;
use std::path::Path;

/// Collects the texts.
struct Texts<'f> {
    out: String,
    folder: &'f Folder,
}

impl Texts<'_> {
    fn add<T>(&mut self, name: &str, r: Result<T>) {
        let said = match r {
            Ok(_) => panic!("{name}: accepted"),
            Err(e) => e.to_string().replace(&self.folder.path().display().to_string(), "DIR"),
        };
        // Sizes and hashes of code change with the compiler.
        let said = words(&said);
        assert!(said.contains("\n  help "), "{name}: nothing says what to do:\n{said}");
        let _ = writeln!(self.out, "== {name}\n{}\n", said.trim_end());
    }
    fn graph(&mut self, name: &str, g: G) {
        self.add(name, Compiler::new().compile_bytes(g.bytes(), Some(self.folder.path())));
    }
}

/// The text with hashes, and sizes of artifacts, as letters.
fn words(said: &str) -> String {
    let artifact = said.starts_with("the artifact has");
    let change = |w: &str| match w {
        w if w.starts_with("0x") => "HASH".to_string(),
        w if artifact && w.parse::<u64>().is_ok() => "N".to_string(),
        w => w.to_string(),
    };
    said.split_inclusive([' ', '\n', ';'])
        .map(|w| {
            let end = w.trim_end_matches([' ', '\n', ';']).len();
            change(&w[..end]) + &w[end..]
        })
        .collect()
}

/// `y = x · w` with a batch of any size.
fn product() -> G {
    let w = random(1, &[4, 2]);
    graph().input("x", DType::F32, &["n", "4"]).weight("w", &w).node("MatMul", &["x", "w"], &["y"]).output("y")
}

fn external(location: &str, length: u64) -> G {
    let mut g = graph().input("x", DType::F32, &["n", "4"]);
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
    g.0.initializer.push(TensorProto {
        name: "w".into(),
        dims: vec![4, 2],
        data_type: DType::F32 as i32,
        data_location: EXTERNAL,
        external_data: vec![entry("location", location.into()), entry("length", length.to_string())],
        ..Default::default()
    });
    g.node("MatMul", &["x", "w"], &["y"]).output("y")
}

fn models(t: &mut Texts<'_>) {
    let bytes = product().bytes();
    let compile = |b: Vec<u8>| Compiler::new().compile_bytes(b, None);
    t.add("no such model", Compiler::new().compile_path(t.folder.file("none.onnx")));
    t.add("truncated model", compile(bytes[..bytes.len() / 2].to_vec()));
    t.add("empty model", compile(vec![]));
    t.add("model that is a zip archive", compile(b"PK\x03\x04 and so on".to_vec()));
    t.add("model that is compiled", compile(b"\x89HEP\r\n\x1a\n and so on".to_vec()));
    t.add("model that is text", compile(b"hello, this is no model".to_vec()));
    t.graph(
        "cycle",
        graph().input("x", DType::F32, &["n"]).node("Add", &["x", "b"], &["a"]).node("Neg", &["a"], &["b"]).output("b"),
    );
    let x = || graph().input("x", DType::F32, &["n", "4"]);
    t.graph("unknown op", x().node("Frobnicate", &["x"], &["y"]).node("Frobnicate", &["y"], &["z"]).output("z"));
    t.graph("unknown attribute", x().node_with("Relu", &["x"], &["y"], vec![int("slope", 2)]).output("y"));
    t.graph(
        "attribute of another type",
        x().node_with("Softmax", &["x"], &["y"], vec![float("axis", 0.5)]).output("y"),
    );
    t.graph("undefined operand", x().node("Add", &["x", "nowhere"], &["y"]).output("y"));
    t.graph("too few operands", x().node("Add", &["x"], &["y"]).output("y"));
    let whole = Tensor::from_i64(&[4], &[1, 2, 3, 4]);
    t.graph("dtype mismatch", x().weight("w", &whole).node("Add", &["x", "w"], &["y"]).output("y"));
    t.graph("shape mismatch", x().weight("w", &random(1, &[3, 2])).node("MatMul", &["x", "w"], &["y"]).output("y"));
    t.graph("broadcast mismatch", x().weight("w", &random(1, &[3])).node("Add", &["x", "w"], &["y"]).output("y"));
    t.graph("axis beyond the rank", x().node_with("Softmax", &["x"], &["y"], vec![int("axis", 2)]).output("y"));
    let mirrored = x().ints("pads", &[0, 4, 0, 0]);
    t.graph(
        "more mirrored than there is",
        mirrored.node_with("Pad", &["x", "pads"], &["y"], vec![text("mode", "reflect")]).output("y"),
    );
    let indexed = x().ints("i", &[0, 4]).node_with("Gather", &["x", "i"], &["y"], vec![int("axis", 1)]);
    t.graph("index out of range", indexed.output("y"));
    t.graph("missing external data", external("none.bin", 32));
    std::fs::write(t.folder.file("short.bin"), [0; 31]).expect("the folder is ours");
    t.graph("short external data", external("short.bin", 32));
    t.graph("external data of another length", external("short.bin", 30));
    t.graph("external data outside the folder", external("../secret.bin", 32));
    t.add("external data without a folder", compile(external("none.bin", 32).bytes()));
    let mut g = product();
    g.0.initializer[0].dims = vec![4, -2];
    t.graph("negative dims of a weight", g);
    let mut g = product();
    g.0.initializer[0].dims = vec![i64::MAX, 1 << 40];
    t.graph("huge dims of a weight", g);
    let mut g = product();
    g.0.initializer[0].raw_data = Some(Bytes::from_static(&[0; 12]));
    t.graph("weight with too few bytes", g);
    let huge = i64::MAX.to_string();
    let many = graph().input("x", DType::F32, &[&huge, &huge, "4"]).node("Exp", &["x"], &["y"]).output("y");
    t.graph("huge dims of an input", many);
    let fill = x().ints("s", &[1 << 40, 1 << 40]).node("ConstantOfShape", &["s"], &["y"]).output("y");
    t.graph("huge dims of a result", fill);
    let fill = x().ints("s", &[2, -3]).node("ConstantOfShape", &["s"], &["y"]).output("y");
    t.graph("negative dims of a result", fill);
    let mut p = product().proto();
    p.opset_import[0].version = 99;
    t.add("opset of the future", compile(prost::Message::encode_to_vec(&p)));
}

fn runs(t: &mut Texts<'_>) {
    // `a` and `b` must agree along their first axis, which is known only at run time.
    let two = graph()
        .input("a", DType::F32, &["n", "4"])
        .input("b", DType::F32, &["m", "4"])
        .node_with("Concat", &["a", "b"], &["c"], vec![int("axis", 1)])
        .node("Exp", &["c"], &["y"])
        .output("y");
    let s = session(&two.compile(), DeviceKind::Cpu);
    let (a, b) = (random(1, &[3, 4]), random(2, &[3, 4]));
    let mut run = |name: &str, inputs: &[(&str, &Tensor)]| {
        let mut given = RunInputs::new();
        inputs.iter().for_each(|(n, v)| {
            given.tensor(n, v);
        });
        t.add(name, s.collect(&given, &Default::default()));
    };
    run("missing input", &[("a", &a)]);
    run("input that does not exist", &[("a", &a), ("b", &b), ("c", &b)]);
    run("input given twice", &[("a", &a), ("a", &a), ("b", &b)]);
    run("wrong rank", &[("a", &random(1, &[3, 4, 1])), ("b", &b)]);
    run("wrong dtype", &[("a", &Tensor::from_i64(&[3, 4], &[0; 12])), ("b", &b)]);
    run("wrong fixed extent", &[("a", &random(1, &[3, 5])), ("b", &b)]);
    run("guard failure", &[("a", &a), ("b", &random(2, &[5, 4]))]);
    // The same name twice: two extents that must be equal.
    let same = graph().input("a", DType::F32, &["n"]).input("b", DType::F32, &["n"]);
    let s = session(&same.node("Add", &["a", "b"], &["y"]).output("y").compile(), DeviceKind::Cpu);
    let unequal = [random(1, &[3]), random(1, &[4])];
    t.add("unequal extents of one name", s.collect(&RunInputs::in_order(&unequal), &Default::default()));
    let gather = graph().input("x", DType::F32, &["n"]).input("i", DType::I64, &["k"]);
    let s = session(&gather.node("Gather", &["x", "i"], &["y"]).output("y").compile(), DeviceKind::Cpu);
    let x = Tensor::from_f32(&[3], &[10.0, 11.0, 12.0]);
    // Computed indices out of range are clamped.
    let picked = super::kit::run(&s, &[x, Tensor::from_i64(&[4], &[-1, 2, 7, -9])]);
    assert_eq!(picked[0].to_f64_vec(), [12.0, 12.0, 12.0, 10.0]);
}

fn artifacts(t: &mut Texts<'_>) {
    let path = t.folder.file("m.hipep");
    product().compile().save(&path).expect("the folder is ours");
    let bytes = std::fs::read(&path).expect("just written");
    let open = |p: &Path| CompiledModel::load(p).and_then(|m| m.session(DeviceKind::Cpu, Default::default()));
    let bad = t.folder.file("bad.hipep");
    let mut changed = |name: &str, b: &[u8]| {
        std::fs::write(&bad, b).expect("the folder is ours");
        t.add(name, open(&bad));
    };
    changed("truncated artifact", &bytes[..bytes.len() - 100]);
    changed("artifact cut in its header", &bytes[..40]);
    changed("artifact with another magic", &[b"PK\x03\x04", &bytes[4..]].concat());
    let mut flipped = bytes.clone();
    flipped[20] ^= 1;
    changed("artifact with a damaged header", &flipped);
    let a = CompiledModel::load(&path).expect("it is whole");
    // A byte of the code: the header and the metadata are as they were.
    let code = a.artifact().sections().iter().find(|s| s.kind == Kind::HostObject).expect("it has code");
    let middle = usize::try_from(code.offset + code.len / 2).expect("it is in memory");
    let mut flipped = bytes.clone();
    flipped[middle] ^= 1;
    changed("artifact with damaged code", &flipped);
    // The same artifact as a build with another ABI would write it.
    let mut md = a.metadata().clone();
    md.abi_hash ^= 1;
    let mut b = hip_ep::artifact::Builder::new(md);
    for s in a.artifact().sections() {
        if !matches!(s.kind, Kind::Metadata | Kind::MetadataJson) {
            b.section(s.kind, s.label.clone(), a.artifact().section(s.kind, &s.label).expect("it is listed"));
        }
    }
    changed("wrong ABI hash", &b.finish().expect("it is consistent"));
    std::fs::copy(hip_ep::artifact::constants_path(&path), hip_ep::artifact::constants_path(&bad)).expect("a copy");
    changed("wrong ABI hash, constants present", &b.finish().expect("it is consistent"));
    std::fs::remove_file(hip_ep::artifact::constants_path(&bad)).expect("it was there");
    changed("missing constants file", &bytes);
    std::fs::write(hip_ep::artifact::constants_path(&bad), b"short").expect("the folder is ours");
    changed("constants file of another model", &bytes);
    t.add("no such artifact", CompiledModel::load(t.folder.file("none.hipep")));
    std::fs::write(t.folder.file("bad.so"), b"\x7fELF and nothing more").expect("the folder is ours");
    t.add("shared object that is none", CompiledModel::load(t.folder.file("bad.so")));
    t.add("saving a loaded model", a.save(t.folder.file("again.hipep")));
    t.add("unknown pass", Compiler::new().disable("no-such-pass").compile_bytes(product().bytes(), None));
    t.add("unknown device", DeviceKind::parse("tpu"));
    t.add("unknown target", hip_ep::Target::parse("tpu"));
}

#[test]
fn errors_say_what_where_and_what_to_do() {
    let folder = Folder::new("errors");
    let mut t = Texts { out: String::new(), folder: &folder };
    models(&mut t);
    runs(&mut t);
    artifacts(&mut t);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/holds/errors.txt");
    if std::env::var_os("UPDATE_ERRORS").is_some() {
        std::fs::write(&path, &t.out).expect("the repository is writable");
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = t.out.lines().zip(want.lines()).position(|(a, b)| a != b);
    let line = differ.unwrap_or_else(|| t.out.lines().count().min(want.lines().count()));
    assert!(
        t.out == want,
        "{} line {} says {:?}, but now it is {:?}; UPDATE_ERRORS=1 writes the file anew",
        path.display(),
        line + 1,
        want.lines().nth(line),
        t.out.lines().nth(line)
    );
}
