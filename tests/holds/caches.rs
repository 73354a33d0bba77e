//! Caches that the caller holds in one place: a step writes what is new and copies nothing.

use super::kit::*;
use hip_ep::runtime::Counters;
use hip_ep::tool::memory::{Extents, Need};
use hip_ep::{Collect, CompiledModel, Compiler, DType, DeviceKind, DeviceTensor, Result, RunInputs, Session, Tensor};
use prost::Message;

const HEADS: usize = 4;
const KV: usize = 2;
const D: usize = 8;

/// One GroupQueryAttention over packed queries, keys and values, `past` and `present` of any length.
fn grouped(dtype: DType, attributes: Vec<hip_ep::tensor::onnx_pb::AttributeProto>) -> G {
    let packed = ((HEADS + 2 * KV) * D).to_string();
    let cache = ["batch", &KV.to_string(), "past", &D.to_string()];
    let mut all = vec![int("num_heads", HEADS as i64), int("kv_num_heads", KV as i64), int("do_rotary", 1)];
    all.extend(attributes);
    let angles = |f: fn(f32) -> f32| {
        let v: Vec<f32> = (0..64 * D / 2).map(|i| f((i / (D / 2)) as f32 * 0.3 / (1 + i % (D / 2)) as f32)).collect();
        Tensor::from_f32(&[64, D / 2], &v)
    };
    let mut g = graph()
        .input("x", DType::F32, &["batch", "seq", &packed])
        .input("past_key", dtype, &cache)
        .input("past_value", dtype, &cache)
        .input("last", DType::I32, &["batch"])
        .input("total", DType::I32, &[])
        .weight("cos", &angles(f32::cos))
        .weight("sin", &angles(f32::sin));
    g = g.node_with(
        "GroupQueryAttention",
        &["x", "", "", "past_key", "past_value", "last", "total", "cos", "sin"],
        &["y", "present_key", "present_value"],
        all,
    );
    for n in &mut g.0.node {
        n.domain = "com.microsoft".into();
    }
    g.output("y").output("present_key").output("present_value")
}

pub fn model(g: G, opset: i64) -> Vec<u8> {
    use hip_ep::tensor::onnx_pb::OperatorSetIdProto;
    let mut p = g.proto();
    p.opset_import = vec![
        OperatorSetIdProto { domain: String::new(), version: opset },
        OperatorSetIdProto { domain: "com.microsoft".into(), version: 1 },
    ];
    p.encode_to_vec()
}

pub fn compiled(g: G, opset: i64) -> CompiledModel {
    Compiler::new().compile_bytes(model(g, opset), None).unwrap_or_else(|e| panic!("{e}"))
}

/// A step: new rows per sample, lengths of all samples after it.
struct Step {
    x: Tensor,
    last: Tensor,
    total: Tensor,
}

fn step(seed: u64, seq: usize, ends: &[i64]) -> Step {
    let last: Vec<i32> = ends.iter().map(|&e| e as i32 - 1).collect();
    Step {
        x: random(seed, &[ends.len(), seq, (HEADS + 2 * KV) * D]),
        last: Tensor::from_i32(&[ends.len()], &last),
        total: Tensor::from_i32(&[], &[*ends.iter().max().expect("a sample") as i32]),
    }
}

impl Step {
    fn inputs(&self) -> RunInputs<'_> {
        let mut r = RunInputs::new();
        r.tensor("x", &self.x).tensor("last", &self.last).tensor("total", &self.total);
        r
    }
    /// In memory of its own.
    fn apart(&self, s: &Session, caches: &mut [Tensor; 2]) -> (Tensor, Counters) {
        let mut r = self.inputs();
        let [key, value] = &*caches;
        r.tensor("past_key", key).tensor("past_value", value);
        let (mut outs, report) = s.collect(&r, &Default::default()).unwrap_or_else(|e| panic!("{e}"));
        let [y, key, value] = [outs.remove(0), outs.remove(0), outs.remove(0)];
        *caches = [key, value];
        (y, report.counters)
    }
    /// In place.
    fn shared(&self, s: &Session, [key, value]: &mut [DeviceTensor; 2]) -> Result<(Tensor, Counters)> {
        let mut r = self.inputs();
        r.shared("past_key", "present_key", key).shared("past_value", "present_value", value);
        let mut outs = Collect::new();
        let report = s.run(&r, &mut outs, &Default::default())?;
        Ok((outs.take("y").expect("an output of its own"), report.counters))
    }
}

fn zeros(s: &Session, dtype: DType, batch: usize, room: usize) -> [DeviceTensor; 2] {
    [0, 1].map(|_| s.zeros(dtype, &[batch, KV, room, D]).unwrap_or_else(|e| panic!("{e}")))
}

/// Runs the steps with caches in one place and in places of their own: same bits, and only the latter copies.
fn same_in_one_place(m: &CompiledModel, dtype: DType, batch: usize, room: usize, steps: &[Step], copies: bool) {
    for device in [DeviceKind::Cpu, DeviceKind::Guard] {
        let s = session(m, device);
        let mut apart = [0, 1].map(|_| Tensor::zeros(dtype, &[batch, KV, room, D]).expect("a tensor"));
        let mut shared = zeros(&s, dtype, batch, room);
        for (i, step) in steps.iter().enumerate() {
            let (want, c) = step.apart(&s, &mut apart);
            assert!(c.shared_outputs == 0 && (c.copied_bytes > 0) == copies, "{device:?}, step {i}: {c:?}");
            let (got, c) = step.shared(&s, &mut shared).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((c.shared_outputs, c.copied_bytes), (2, 0), "{device:?}, step {i}: {c:?}");
            assert_eq!(got.bytes(), want.bytes(), "{device:?}, step {i}");
            for (a, b) in shared.iter().zip(&apart) {
                assert_eq!(a.read().expect("it reads").bytes(), b.bytes(), "{device:?}, step {i}: caches");
            }
        }
    }
}

/// A prompt padded to the right, then one token at a time, for samples of different lengths.
fn ragged() -> Vec<Step> {
    let mut steps = vec![step(1, 5, &[5, 3])];
    steps.extend((1..6).map(|i| step(10 + i as u64, 1, &[5 + i, 3 + i])));
    steps
}

#[test]
fn samples_of_different_lengths_decode_in_place_from_one_artifact() {
    let g = grouped(DType::F32, vec![]);
    let m = compiled(g.clone(), 21);
    assert_eq!(m.metadata().aliases.len(), 2, "{:?}", m.metadata().aliases);
    same_in_one_place(&m, DType::F32, 2, 12, &ragged(), true);
    // What is in place is what the operator says.
    let s = session(&m, DeviceKind::Cpu);
    let (mut caches, mut past) = (zeros(&s, DType::F32, 2, 12), [0, 1].map(|_| random(0, &[2, KV, 0, D])));
    past = past.map(|_| Tensor::zeros(DType::F32, &[2, KV, 12, D]).expect("a tensor"));
    for step in ragged() {
        let (y, _) = step.shared(&s, &mut caches).unwrap_or_else(|e| panic!("{e}"));
        let [key, value] = past;
        let inputs = [step.x, key, value, step.last, step.total];
        let mut want = interpret(&model(g.clone(), 21), &inputs);
        past = [want.remove(1), want.remove(1)];
        let n = y.shape()[1];
        // Rows of padding have no meaning.
        if n == 1 {
            assert_close(&[y], &want, "in place");
        }
    }
}

/// A cache of the latest positions of a window: it moves up when it is full, of each sample by itself.
#[test]
fn a_window_of_positions_moves_on_in_place() {
    for room in [4, 6] {
        let m = compiled(grouped(DType::F32, vec![int("local_window_size", 4), int("sliding_window_cache", 1)]), 21);
        assert_eq!(m.metadata().aliases.len(), 2, "{:?}", m.metadata().aliases);
        let mut steps = vec![step(1, 5, &[5, 3])];
        steps.extend((1..14).map(|i| step(10 + i as u64, 1, &[5 + i, 3 + i])));
        same_in_one_place(&m, DType::F32, 2, room, &steps, false);
    }
}

#[test]
fn quantized_and_half_caches_are_in_place_too() {
    for dtype in [DType::F16, DType::F8E4M3FN, DType::I8, DType::U8] {
        let mut quant = vec![];
        if dtype != DType::F16 {
            quant = vec![text("k_quant_type", "PER_TENSOR"), text("v_quant_type", "PER_TENSOR")];
            quant.push(int("kv_cache_bit_width", if dtype == DType::U8 { 4 } else { 8 }));
        }
        let mut g = grouped(dtype, quant);
        let mut d = D;
        if dtype != DType::F16 {
            g.0.node[0].input.extend(["", "", "", "scale", "scale"].map(String::from));
            g = g.weight("scale", &Tensor::from_f32(&[1], &[0.05]));
        }
        if dtype == DType::U8 {
            d = D / 2;
            for v in &mut g.0.input[1..3] {
                *v = value_of(&v.name, dtype, d);
            }
        }
        let m = compiled(g, 21);
        assert_eq!(m.metadata().aliases.len(), 2, "{dtype}");
        let s = session(&m, DeviceKind::Guard);
        let shape = [2, KV, 12, d];
        let mut apart = [0, 1].map(|_| Tensor::zeros(dtype, &shape).expect("a tensor"));
        let mut shared = [0, 1].map(|_| s.zeros(dtype, &shape).unwrap_or_else(|e| panic!("{e}")));
        for step in ragged() {
            let (want, _) = step.apart(&s, &mut apart);
            let (got, c) = step.shared(&s, &mut shared).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((c.shared_outputs, c.copied_bytes), (2, 0), "{dtype}: {c:?}");
            assert_eq!(got.bytes(), want.bytes(), "{dtype}");
        }
    }
}

fn value_of(name: &str, dtype: DType, d: usize) -> hip_ep::tensor::onnx_pb::ValueInfoProto {
    graph().input(name, dtype, &["batch", &KV.to_string(), "past", &d.to_string()]).0.input.remove(0)
}

/// `TensorScatter`, read by a sum.
pub fn scatter(mode: &str) -> G {
    graph()
        .input("past", DType::F32, &["batch", "2", "room", "3"])
        .input("new", DType::F32, &["batch", "2", "seq", "3"])
        .input("at", DType::I64, &["batch"])
        .node_with("TensorScatter", &["past", "new", "at"], &["present"], vec![text("mode", mode), int("axis", 2)])
        .ints("axes", &[2])
        .node_with("ReduceSum", &["present", "axes"], &["sum"], vec![int("keepdims", 0)])
        .output("present")
        .output("sum")
}

#[test]
fn a_ring_goes_round_in_place() {
    for mode in ["linear", "circular"] {
        let g = scatter(mode);
        let m = compiled(g.clone(), 24);
        assert_eq!(m.metadata().aliases.len(), 1, "{mode}");
        for device in [DeviceKind::Cpu, DeviceKind::Guard] {
            let s = session(&m, device);
            let mut ring = s.zeros(DType::F32, &[2, 2, 5, 3]).unwrap_or_else(|e| panic!("{e}"));
            let mut past = Tensor::zeros(DType::F32, &[2, 2, 5, 3]).expect("a tensor");
            for i in 0..9i64 {
                let n = 1 + (i as usize) % 3;
                let (new, at) = (random(i as u64 + 1, &[2, 2, n, 3]), Tensor::from_i64(&[2], &[2 * i, 3 * i - 4]));
                let mut r = RunInputs::new();
                r.tensor("new", &new).tensor("at", &at).shared("past", "present", &mut ring);
                let mut outs = Collect::new();
                let report = s.run(&r, &mut outs, &Default::default()).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!((report.counters.shared_outputs, report.counters.copied_bytes), (1, 0));
                let want = interpret(&model(g.clone(), 24), &[past, new, at]);
                let present = ring.read().expect("it reads");
                assert_eq!(present.bytes(), want[0].bytes(), "{mode}, {device:?}, step {i}");
                assert_close(&[outs.take("sum").expect("an output")], &want[1..], mode);
                past = present;
            }
        }
    }
}

/// Fails to be in place, with these words.
pub fn refused(r: Result<impl Sized>, words: &[&str]) {
    let e = r.map(|_| ()).expect_err("it is refused").to_string();
    words.iter().for_each(|w| assert!(e.contains(w), "{w:?} is not in {e}"));
}

#[test]
fn memory_that_is_shared_does_not_grow() {
    let m = compiled(grouped(DType::F32, vec![]), 21);
    for device in [DeviceKind::Cpu, DeviceKind::Guard] {
        let s = session(&m, device);
        let mut caches = zeros(&s, DType::F32, 1, 4);
        step(1, 4, &[4]).shared(&s, &mut caches).unwrap_or_else(|e| panic!("{e}"));
        let words = [
            "would have extents [1, 2, 5, 8] in the memory of input \"past_",
            "of extents [1, 2, 4, 8]",
            "does not grow",
        ];
        refused(step(2, 1, &[5]).shared(&s, &mut caches), &words);
        // Without sharing it grows.
        let mut apart = caches.map(|c| c.read().expect("it reads"));
        step(2, 1, &[5]).apart(&s, &mut apart);
        assert_eq!(apart[0].shape(), [1, KV, 5, D]);
    }
}

#[test]
fn a_past_that_is_read_later_is_not_shared() {
    let late = graph()
        .input("past", DType::F32, &["n", "2", "room", "3"])
        .input("new", DType::F32, &["n", "2", "1", "3"])
        .input("at", DType::I64, &["n"])
        .node_with("TensorScatter", &["past", "new", "at"], &["present"], vec![int("axis", 2)])
        .node_with("CumSum", &["present", "zero"], &["sums"], vec![])
        .weight("zero", &Tensor::from_i64(&[], &[2]))
        .node("Add", &["sums", "past"], &["y"])
        .output("present")
        .output("y");
    let m = compiled(late, 24);
    assert!(m.metadata().aliases.is_empty(), "{:?}", m.metadata().aliases);
    let s = session(&m, DeviceKind::Cpu);
    let (new, at) = (random(1, &[1, 2, 1, 3]), Tensor::from_i64(&[1], &[0]));
    let mut cache = s.zeros(DType::F32, &[1, 2, 4, 3]).expect("memory");
    let mut r = RunInputs::new();
    r.tensor("new", &new).tensor("at", &at).shared("past", "present", &mut cache);
    refused(
        s.run(&r, &mut Collect::new(), &Default::default()),
        &["\"present\" cannot be in the memory of input \"past\""],
    );
}

#[test]
fn a_shared_tensor_is_checked_like_any_input() {
    let m = compiled(scatter("linear"), 24);
    let (s, other) = (session(&m, DeviceKind::Cpu), session(&m, DeviceKind::Guard));
    let (new, at) = (random(1, &[1, 2, 1, 3]), Tensor::from_i64(&[1], &[0]));
    let run = |past: &str, present: &str, t: &mut DeviceTensor| {
        let mut r = RunInputs::new();
        r.tensor("new", &new).tensor("at", &at).shared(past, present, t);
        s.run(&r, &mut Collect::new(), &Default::default())
    };
    let mut good = s.zeros(DType::F32, &[1, 2, 4, 3]).expect("memory");
    run("past", "present", &mut good).unwrap_or_else(|e| panic!("{e}"));
    refused(run("past", "nothing", &mut good), &["no output \"nothing\"", "present, sum"]);
    refused(run("past", "sum", &mut good), &["\"sum\" cannot be in the memory"]);
    refused(run("past", "present", &mut s.zeros(DType::F16, &[1, 2, 4, 3]).expect("memory")), &["f16"]);
    refused(run("past", "present", &mut s.zeros(DType::F32, &[1, 3, 4, 3]).expect("memory")), &["extent 3 at axis 1"]);
    let mut foreign = other.zeros(DType::F32, &[1, 2, 4, 3]).expect("memory");
    refused(run("past", "present", &mut foreign), &["memory of another device"]);
    let mut r = RunInputs::new();
    r.tensor("new", &new).tensor("at", &at).shared("past", "present", &mut good);
    refused(s.collect(&r, &Default::default()), &["\"present\" is in the memory of an input"]);
}

#[test]
fn the_memory_of_a_long_cache_is_known_before_the_run() {
    const ROOM: usize = 32 << 10;
    let m = compiled(grouped(DType::F32, vec![]), 21);
    let s = session(&m, DeviceKind::Cpu);
    for (batch, seq, end) in [(1, 1, ROOM), (1, 1, 9), (2, 3, 700)] {
        // The symbol of the positions is that of an element of the input `total`.
        let total = m.metadata().symbols.iter().find(|s| s.name.contains("total")).map(|s| s.name.clone());
        let total = total.unwrap_or_else(|| panic!("{:?}", m.metadata().symbols));
        let e = format!("batch={batch},seq={seq},past={ROOM},{total}={end}");
        let need = Need::at(m.metadata(), &Extents::parse(m.metadata(), &e).expect("extents")).expect("a statement");
        s.trim().expect("nothing is overrun");
        let mut caches = zeros(&s, DType::F32, batch, ROOM);
        let mut step = step(1, seq, &vec![end as i64; batch]);
        let (y, _) = match end > 64 {
            // The tables of positions are short: a window of theirs will do.
            true => {
                step.last = Tensor::from_i32(&[batch], &vec![40; batch]);
                step.shared(&s, &mut caches)
            }
            false => step.shared(&s, &mut caches),
        }
        .unwrap_or_else(|e| panic!("{e}"));
        let small = step.x.bytes().len() + step.last.bytes().len() + step.total.bytes().len() + y.bytes().len();
        let taken = s.pool_bytes() + small + caches.iter().map(DeviceTensor::size_bytes).sum::<usize>();
        let off = (need.in_place() as f64 / taken as f64 - 1.0).abs();
        println!("{e}: {} bytes stated, {taken} taken, {:.4} % off", need.in_place(), 100.0 * off);
        assert!(off <= 0.01, "{need:?}, but {taken} bytes were taken");
        assert!(need.total() - need.in_place() == caches.iter().map(|c| c.size_bytes() as i64).sum::<i64>());
    }
}
