//! Damaged and altered models and artifacts: an answer or an error, never a panic.
//!
//! The default run takes a few seconds; `HIP_EP_MUTANTS=50000` sets the number of models, of artifacts there are twice as many;
//! `HIP_EP_SEED` sets another stream. All processors work; a mutant may take 10 s and the process 1 GB.

use super::kit::*;
use hip_ep::tensor::onnx_pb::*;
use hip_ep::{Compiler, DType, ErrorKind, Tensor};
use prost::Message;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Small models that together use many operators.
fn seeds() -> Vec<ModelProto> {
    let unary = [
        "Relu",
        "Exp",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Neg",
        "Abs",
        "Sqrt",
        "Floor",
        "HardSigmoid",
        "LeakyRelu",
        "Softplus",
    ];
    let mut elementwise = graph().input("x", DType::F32, &["n", "6"]).input("z", DType::F32, &["1", "6"]);
    let mut x = "x".to_string();
    for (i, op) in unary.iter().enumerate() {
        let (y, w) = (format!("u{i}"), format!("v{i}"));
        let binary = ["Add", "Mul", "Sub", "Div", "Max", "Pow"][i % 6];
        elementwise = elementwise.node(op, &[&x], &[&y]).node(binary, &[&y, "z"], &[&w]);
        x = w;
    }
    let elementwise = elementwise
        .node_with("Cast", &[&x], &["i"], vec![int("to", 7)])
        .node("Equal", &["i", "i"], &["e"])
        .node("Where", &["e", "x", "z"], &["y"])
        .node_with("Clip", &["y"], &["c"], vec![])
        .output("c")
        .output("i");
    let shapes = graph()
        .input("x", DType::F32, &["n", "3", "4"])
        .node("Shape", &["x"], &["s"])
        .ints("zero", &[0])
        .ints("one", &[1])
        .ints("two", &[2])
        .ints("minus1", &[-1])
        .node_with("Gather", &["s", "zero"], &["n"], vec![int("axis", 0)])
        .node_with("Concat", &["n", "minus1"], &["to"], vec![int("axis", 0)])
        .node("Reshape", &["x", "to"], &["r"])
        .node("Slice", &["r", "one", "minus1", "one", "two"], &["sl"])
        .node_with("Transpose", &["sl"], &["t"], vec![ints("perm", &[1, 0])])
        .node_with("Split", &["r"], &["p", "q"], vec![int("axis", 1)])
        .node("Unsqueeze", &["p", "two"], &["us"])
        .node("Squeeze", &["us", "two"], &["sq"])
        .node_with("Concat", &["sq", "q"], &["k"], vec![int("axis", 1)])
        .ints("pads", &[0, 1, 0, 2])
        .node("Pad", &["k", "pads"], &["pd"])
        .node("Expand", &["n", "two"], &["ex"])
        .node("ConstantOfShape", &["n"], &["cs"])
        .node("Tile", &["t", "ex"], &["ti"])
        .output("pd")
        .output("ti")
        .output("cs");
    let then = graph().node_with("Concat", &["x", "x"], &["a"], vec![int("axis", 0)]).output("a");
    let els = graph().node("Neg", &["x"], &["b"]).output("b");
    let inner = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("v", DType::F32, &["rows", "2"])
        .node("Identity", &["go"], &["go_on"])
        .node_with("Concat", &["v", "v"], &["next"], vec![int("axis", 0)])
        .node_with("ReduceSum", &["next"], &["sum"], vec![int("keepdims", 0)])
        .output("go_on")
        .output("next")
        .output("sum");
    let control = graph()
        .input("c", DType::Bool, &[])
        .input("trips", DType::I64, &[])
        .input("x", DType::F32, &["n", "2"])
        .weight("true", &Tensor::from_bool(&[], &[true]))
        .node_with("If", &["c"], &["f"], vec![body("then_branch", then), body("else_branch", els)])
        .node_with("Loop", &["trips", "true", "f"], &["last", "sums"], vec![body("body", inner)])
        .output("last")
        .output("sums");
    let vision = graph()
        .input("x", DType::F32, &["n", "3", "h", "w"])
        .weight("k", &random(1, &[4, 3, 3, 3]))
        .weight("s", &random(2, &[4]))
        .weight("v", &Tensor::from_f32(&[4], &[1.0, 2.0, 3.0, 4.0]))
        .node_with(
            "Conv",
            &["x", "k"],
            &["c"],
            vec![ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 1]), int("group", 1)],
        )
        .node_with("BatchNormalization", &["c", "s", "s", "s", "v"], &["b"], vec![float("epsilon", 1e-3)])
        .node("Relu", &["b"], &["r"])
        .node_with("MaxPool", &["r"], &["m"], vec![ints("kernel_shape", &[2, 2]), int("ceil_mode", 1)])
        .node_with("AveragePool", &["m"], &["a"], vec![ints("kernel_shape", &[1, 1]), text("auto_pad", "SAME_UPPER")])
        .node("GlobalAveragePool", &["a"], &["g"])
        .node_with("Flatten", &["g"], &["f"], vec![int("axis", 1)])
        .node_with("Gemm", &["f", "fw", "s"], &["y"], vec![int("transB", 1), float("alpha", 0.5)])
        .weight("fw", &random(3, &[4, 4]))
        .output("y");
    let rows = graph()
        .input("keep", DType::F32, &["n"])
        .input("x", DType::F32, &["n", "4"])
        .weight("w", &random(7, &[4, 3]))
        .ints("minus1", &[-1])
        .node("NonZero", &["keep"], &["where"])
        .node("Reshape", &["where", "minus1"], &["rows"])
        .node("Gather", &["x", "rows"], &["kept"])
        .node("MatMul", &["kept", "w"], &["y"])
        .node_with("LayerNormalization", &["y", "g"], &["l"], vec![int("axis", -1)])
        .weight("g", &random(8, &[3]))
        .node_with("Softmax", &["l"], &["p"], vec![int("axis", -1)])
        .output("p");
    let transformer = super::pools::transformer(1, 8, 2);
    [elementwise, shapes, control, vision, rows, mixed(), transformer].map(G::proto).into()
}

/// A number of those that break things.
fn number(r: &mut Rng) -> i64 {
    const ODD: [i64; 14] = [0, 1, -1, 2, 3, 7, -2, 64, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, i64::MAX, i64::MIN];
    ODD[r.below(ODD.len())]
}

fn tensor_mutant(t: &mut TensorProto, r: &mut Rng) {
    let at = r.below(t.dims.len());
    match r.below(7) {
        0 if !t.dims.is_empty() => t.dims[at] = number(r),
        1 => t.dims.push(number(r)),
        2 => _ = t.dims.pop(),
        3 => t.data_type = r.below(26) as i32,
        4 => t.raw_data = t.raw_data.as_ref().map(|b| b.slice(..r.below(b.len()))),
        5 => t.data_location = 1,
        _ => {
            let mut b = t.raw_data.clone().unwrap_or_default().to_vec();
            let at = r.below(b.len());
            if !b.is_empty() {
                b[at] = r.next() as u8;
            }
            t.raw_data = Some(b.into());
        }
    }
}

fn attribute_mutant(a: &mut AttributeProto, r: &mut Rng) {
    if let Some(g) = &mut a.g
        && r.below(4) > 0
    {
        return graph_mutant(g, r);
    }
    match r.below(7) {
        0 => a.i = Some(number(r)),
        1 => a.f = Some([0.0, -1.0, f32::NAN, f32::INFINITY, 1e-30][r.below(5)]),
        2 => a.ints.push(number(r)),
        3 => _ = a.ints.pop(),
        4 => a.r#type = Some(r.below(16) as i32),
        5 => a.s = Some(["SAME_LOWER", "VALID", "reflect", "edge", "", "tanh"][r.below(6)].into()),
        _ => {
            let at = r.below(a.ints.len());
            if let Some(x) = a.ints.get_mut(at) {
                *x = number(r);
            }
        }
    }
}

fn graph_mutant(g: &mut GraphProto, r: &mut Rng) {
    const OPS: [&str; 30] = [
        "Add",
        "MatMul",
        "Softmax",
        "Concat",
        "Reshape",
        "Gather",
        "Slice",
        "ReduceMean",
        "Transpose",
        "Conv",
        "Gemm",
        "Where",
        "Cast",
        "Expand",
        "Split",
        "NonZero",
        "Range",
        "Pad",
        "MaxPool",
        "Shape",
        "Squeeze",
        "Tile",
        "TopK",
        "Einsum",
        "ConstantOfShape",
        "BatchNormalization",
        "CumSum",
        "ScatterND",
        "GatherElements",
        "Identity",
    ];
    let names: Vec<String> = g.node.iter().flat_map(|n| n.input.iter().chain(&n.output)).cloned().collect();
    let name = names.get(r.below(names.len())).cloned().unwrap_or_default();
    let at = r.below(g.node.len());
    let op = OPS[r.below(OPS.len())];
    match r.below(16) {
        0 if !g.node.is_empty() => _ = g.node.remove(at),
        1 if !g.node.is_empty() => g.node.insert(0, g.node[at].clone()),
        2 if !g.node.is_empty() => {
            let mut n = g.node[at].clone();
            n.output.iter_mut().for_each(|o| o.push_str("_copy"));
            g.output.extend(n.output.iter().map(|o| ValueInfoProto { name: o.clone(), ..Default::default() }));
            g.node.push(n);
        }
        3 if !g.node.is_empty() => {
            let other = r.below(g.node.len());
            g.node.swap(at, other);
        }
        4 if !g.input.is_empty() => {
            let k = r.below(g.input.len());
            let ty = g.input[k].r#type.as_mut().and_then(|t| t.value.as_mut());
            if let Some(type_proto::Value::TensorType(t)) = ty {
                match r.below(5) {
                    0 => t.elem_type = r.below(26) as i32,
                    1 => t.shape = None,
                    _ => {
                        let dims = &mut t.shape.get_or_insert_default().dim;
                        let k = r.below(dims.len() + 1);
                        let value = match r.below(3) {
                            0 => Some(dimension::Value::DimValue(number(r))),
                            1 => Some(dimension::Value::DimParam(["n", "batch", "k"][r.below(3)].into())),
                            _ => None,
                        };
                        let d = Dimension { value, ..Default::default() };
                        match dims.get_mut(k) {
                            Some(old) => *old = d,
                            None => dims.push(d),
                        }
                    }
                }
            }
        }
        5 if !g.initializer.is_empty() => {
            let k = r.below(g.initializer.len());
            tensor_mutant(&mut g.initializer[k], r);
        }
        6 => g.output.push(ValueInfoProto { name, ..Default::default() }),
        7 if !g.output.is_empty() => g.output[0].name = name,
        8 if !g.initializer.is_empty() => {
            let k = r.below(g.initializer.len());
            _ = g.initializer.remove(k);
        }
        _ if g.node.is_empty() => {}
        9 | 10 => {
            let n = &mut g.node[at];
            let k = r.below(n.input.len() + 1);
            match n.input.get_mut(k) {
                Some(i) => *i = name,
                None => n.input.push(name),
            }
        }
        11 => g.node[at].op_type = op.into(),
        12 => _ = g.node[at].input.pop(),
        13 => {
            let names = ["axis", "axes", "to", "perm", "pads", "keepdims", "strides", "group", "alpha", "mode"];
            let a = int(names[r.below(names.len())], number(r));
            g.node[at].attribute.push(a);
        }
        _ => {
            // Those that have attributes are what matters here.
            let with: Vec<usize> = (0..g.node.len()).filter(|&i| !g.node[i].attribute.is_empty()).collect();
            if let Some(&i) = with.get(r.below(with.len())) {
                let k = r.below(g.node[i].attribute.len());
                attribute_mutant(&mut g.node[i].attribute[k], r);
            }
        }
    }
}

/// Flips, cuts, inserts and repeats bytes.
fn bytes_mutant(b: &mut Vec<u8>, r: &mut Rng) {
    for _ in 0..=r.below(4) {
        let at = r.below(b.len());
        match r.below(6) {
            _ if b.is_empty() => b.push(r.next() as u8),
            0 => b.truncate(at),
            1 => b.insert(at, r.next() as u8),
            2 => _ = b.remove(at),
            3 => {
                let end = (at + r.below(40)).min(b.len());
                let part = b[at..end].to_vec();
                b.splice(at..at, part);
            }
            4 => b[at] ^= 1 << r.below(8),
            _ => b[at] = [0, 1, 0x7f, 0x80, 0xff][r.below(5)],
        }
    }
}

fn model_mutant(seeds: &[ModelProto], r: &mut Rng) -> Vec<u8> {
    let mut m = seeds[r.below(seeds.len())].clone();
    let structural = r.below(4) > 0;
    if structural {
        for _ in 0..=r.below(3) {
            if let Some(g) = &mut m.graph {
                graph_mutant(g, r);
            }
        }
        match r.below(20) {
            0 => m.opset_import.clear(),
            1 | 2 => m.opset_import[0].version = [7, 9, 10, 11, 13, 14, 18, 21, -1, i64::MAX][r.below(10)],
            _ => {}
        }
    }
    let mut b = m.encode_to_vec();
    if !structural {
        bytes_mutant(&mut b, r);
    }
    b
}

/// Panics seen by the hook, whether something caught them or not, with the mutant.
static PANICS: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
thread_local! {
    /// The mutant that this thread works on.
    static NOW: Cell<u64> = const { Cell::new(u64::MAX) };
}
const MOST_TIME: Duration = Duration::from_secs(10);
const MOST_KB: u64 = 1_000_000;

/// What came of the mutants.
#[derive(Default)]
struct Tally {
    accepted: usize,
    kinds: BTreeMap<String, usize>,
    /// Errors that say a bug of ours, panics, what takes too long.
    wrong: BTreeMap<String, (usize, u64)>,
    slowest: Duration,
}

impl Tally {
    /// `n` mutants over all processors, each from a stream of its own.
    fn run(n: u64, stream: u64, one: impl Fn(u64, &mut Rng) -> hip_ep::Result<()> + Sync) -> Tally {
        let threads = std::thread::available_parallelism().map_or(1, |p| p.get() as u64);
        let (one, mut all) = (&one, Tally::default());
        std::thread::scope(|s| {
            let work = |t: u64| {
                move || {
                    let mut tally = Tally::default();
                    (t..n).step_by(threads as usize).for_each(|i| tally.add(i, || one(i, &mut rng(stream, i))));
                    tally
                }
            };
            let running: Vec<_> = (0..threads).map(|t| s.spawn(work(t))).collect();
            running.into_iter().for_each(|t| all.merge(t.join().expect("panics are caught")));
        });
        for (i, p) in std::mem::take(&mut *PANICS.lock().expect("the hook does not panic")) {
            all.wrong(p, i);
        }
        all
    }
    fn wrong(&mut self, what: String, i: u64) {
        let w = self.wrong.entry(what).or_insert((0, i));
        *w = (w.0 + 1, w.1.min(i));
    }
    fn merge(&mut self, other: Tally) {
        self.accepted += other.accepted;
        other.kinds.into_iter().for_each(|(k, n)| *self.kinds.entry(k).or_default() += n);
        for (what, (n, i)) in other.wrong {
            let w = self.wrong.entry(what).or_insert((0, i));
            *w = (w.0 + n, w.1.min(i));
        }
        self.slowest = self.slowest.max(other.slowest);
    }
    fn add(&mut self, i: u64, f: impl FnOnce() -> hip_ep::Result<()>) {
        NOW.set(i);
        let start = Instant::now();
        let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let time = start.elapsed();
        self.slowest = self.slowest.max(time);
        if time > MOST_TIME {
            self.wrong(format!("takes more than {MOST_TIME:?}"), i);
        }
        match r {
            Ok(Ok(())) => self.accepted += 1,
            Ok(Err(e)) => {
                *self.kinds.entry(format!("{:?}", e.kind())).or_default() += 1;
                // So is what the verifier says of a pass's result.
                let text = e.to_string();
                if e.kind() == ErrorKind::Internal || text.contains("after pass") {
                    let pass = text.lines().find(|l| l.contains("after pass")).unwrap_or("");
                    self.wrong(format!("{}{pass}", text.lines().next().unwrap_or("")), i);
                }
            }
            Err(_) => {}
        }
    }
}

/// The numbers of mutant `i`.
fn rng(stream: u64, i: u64) -> Rng {
    Rng(((stream << 32) + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
}

/// Import to host program; for a few, code, and the saved artifact again as input.
fn compile(bytes: Vec<u8>, with_code: bool) -> hip_ep::Result<()> {
    let registry = hip_ep::ir::Registry::builtin();
    let m = hip_ep::ir::import::import_bytes(bytes.into(), None, &registry)?;
    let c = Compiler::new();
    match with_code {
        true => c.compile(m).map(drop),
        false => c.lower(m, &mut Default::default()).map(drop),
    }
}

#[test]
fn mutants_never_panic() {
    const CHILD: &str = "HIP_EP_MUTANTS_CHILD";
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(v) => v.parse().unwrap_or_else(|_| panic!("{name}={v:?} is no number")),
        Err(_) => default,
    };
    let (n, seed) = (number("HIP_EP_MUTANTS", 600), number("HIP_EP_SEED", 1));
    // A process of its own: the hook must not see panics of other tests.
    if std::env::var_os(CHILD).is_none() {
        let out = std::process::Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "holds::mutants::mutants_never_panic", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .expect("this test starts itself");
        let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        println!("{said}");
        assert!(out.status.success() && said.contains("mutants of models"), "see above; HIP_EP_SEED={seed}");
        return;
    }
    std::panic::set_hook(Box::new(|p| {
        let text = p.payload_as_str().unwrap_or("a panic without text").lines().next().unwrap_or("").to_string();
        let at = p.location().map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        let text = format!("panic{at}: {text}");
        PANICS.lock().expect("the hook does not panic").push((NOW.try_with(Cell::get).unwrap_or(u64::MAX), text));
    }));
    let seeds = seeds();
    let valid = Tally::run(seeds.len() as u64, 0, |i, _| compile(seeds[i as usize].encode_to_vec(), false));
    assert_eq!(valid.accepted, seeds.len(), "every seed is a valid model: {:?} {:?}", valid.kinds, valid.wrong);
    // Code for a few hundred of them: it takes most of the time of those that get it.
    let with_code = (n / 250).max(50);
    let start = Instant::now();
    let models = Tally::run(n, seed, |i, r| {
        let bytes = model_mutant(&seeds, r);
        // `HIP_EP_ONLY=2544` leaves that mutant in the temporary folder.
        if std::env::var("HIP_EP_ONLY").is_ok_and(|only| only == i.to_string()) {
            std::fs::write(std::env::temp_dir().join("mutant.onnx"), &bytes).expect("the temporary folder is writable");
        }
        compile(bytes, i % with_code == 0)
    });
    let report = |n: u64, what: &str, t: &Tally, start: Instant| {
        let time = start.elapsed().as_secs_f64();
        println!(
            "{n} mutants of {what} in {time:.1} s: {} accepted, {:?}, slowest {:?}",
            t.accepted, t.kinds, t.slowest
        );
    };
    report(n, "models", &models, start);
    let whole = mixed().compile();
    let whole = whole.artifact().bytes();
    let start = Instant::now();
    let artifacts = Tally::run(2 * n, seed ^ 0x5EED, |_, r| {
        let mut b = whole.to_vec();
        // Half of them in the header, the section table and the metadata; those with right hashes reach the checks behind them.
        match r.below(2) {
            0 => bytes_mutant(&mut b, r),
            _ => {
                let mut head = b[..2048.min(b.len())].to_vec();
                bytes_mutant(&mut head, r);
                b.splice(..2048.min(b.len()), head);
            }
        }
        hip_ep::artifact::Artifact::from_bytes(b.into()).and_then(|a| a.verify())
    });
    report(2 * n, "an artifact", &artifacts, start);
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("Linux says how much memory was used");
    let peak: u64 = peak.trim().trim_end_matches("kB").trim().parse().expect("a number");
    println!("peak memory {} MB", peak / 1000);
    let _ = std::panic::take_hook();
    assert!(peak < MOST_KB, "{peak} kB");
    let wrong: Vec<String> =
        models.wrong.iter().chain(&artifacts.wrong).map(|(w, (n, i))| format!("{n} times, first {i}: {w}")).collect();
    assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
}
