//! Graphs of the ONNX dialect against their lowered forms: the reference functions, the HIP interpreter without fusion, and with.

use crate::{FuseReport, Options, hip_interp, to_hip};
use ir::attrs::Attr;
use ir::consts::Const;
use ir::graph::{Graph, RegionId, Value};
use ir::hip::{Hip, HipOp};
use ir::op::RefCtx;
use ir::{Module, Onnx, Origin, Registry, Type};
use rustc_hash::FxHashMap;
use tensor::{DType, DimId, Tensor, dims};

/// Builds graphs of one module.
pub(crate) struct Builder {
    pub m: Module<Onnx>,
    /// The graph that ops go to.
    pub at: RegionId,
}

impl Builder {
    pub fn new() -> Builder {
        let m = Module::new(Registry::builtin());
        let at = m.main;
        Builder { m, at }
    }
    pub fn dim(&mut self, d: &str, origin: dims::Origin) -> DimId {
        match (d.parse::<i64>(), self.m.dims.find_symbol(d)) {
            (Ok(c), _) => self.m.dims.constant(c),
            (_, Some(s)) => self.m.dims.sym_dim(s),
            _ => self.m.dims.symbol(d, origin),
        }
    }
    /// A graph input (or parameter of the current body).
    pub fn input(&mut self, dtype: DType, shape: &[&str]) -> Value {
        let input = u32::try_from(self.m.graphs[self.at].inputs.len()).unwrap();
        let dims: Vec<DimId> =
            (0u32..).zip(shape).map(|(axis, d)| self.dim(d, dims::Origin::Input { input, axis })).collect();
        self.m.graphs[self.at].add_input(Type::tensor(dtype, dims), format!("in{input}"))
    }
    pub fn konst(&mut self, t: &Tensor) -> Value {
        let c = self.m.consts.push(Const::from_tensor("", t));
        let dims: Vec<DimId> = t.shape().iter().map(|&d| self.m.dims.constant(i64::try_from(d).unwrap())).collect();
        self.m.graphs[self.at].add_const(c, Type::tensor(t.dtype(), dims), "")
    }
    pub fn ints(&mut self, v: &[i64]) -> Value {
        self.konst(&Tensor::from_i64(&[v.len()], v))
    }
    pub fn ops(&mut self, name: &str, attrs: &[(&str, Attr)], ins: &[Option<Value>], n_outs: usize) -> Vec<Value> {
        let id = self.m.registry.find("", name, 21).unwrap_or_else(|| panic!("no row {name}"));
        let attrs = self.m.registry[id].attrs_with(attrs);
        let attrs = self.m.attrs.intern(attrs);
        let g = &mut self.m.graphs[self.at];
        let k = g.nodes.len();
        let outs = (0..n_outs).map(|i| (Type::Unknown, format!("{name}{k}_{i}").into()));
        let n = g.add_node(id, attrs, ins.to_vec(), outs, [], Origin(format!("/{name}_{k}").into()));
        g.nodes[n].outs.to_vec()
    }
    pub fn op(&mut self, name: &str, attrs: &[(&str, Attr)], ins: &[Value]) -> Value {
        let ins: Vec<Option<Value>> = ins.iter().map(|&v| Some(v)).collect();
        self.ops(name, attrs, &ins, 1)[0]
    }
    pub fn output(&mut self, v: Value) {
        self.m.graphs[self.at].outputs.push(v);
    }
    /// A body; `f` builds it.
    pub fn region(&mut self, f: impl FnOnce(&mut Builder)) -> RegionId {
        let r = self.m.graphs.push(Graph::default());
        let old = std::mem::replace(&mut self.at, r);
        f(self);
        self.at = old;
        r
    }
    pub fn control(
        &mut self,
        name: &str,
        ins: &[Option<Value>],
        caps: &[Value],
        bodies: &[RegionId],
        n_outs: usize,
    ) -> Vec<Value> {
        let ins: Vec<Option<Value>> = ins.iter().copied().chain(caps.iter().map(|&v| Some(v))).collect();
        let outs = self.ops(name, &[], &ins, n_outs);
        let g = &mut self.m.graphs[self.at];
        let n = *g.order.last().unwrap();
        g.nodes[n].regions = bodies.iter().copied().collect();
        g.nodes[n].n_captures = u32::try_from(caps.len()).unwrap();
        outs
    }
}

/// Runs a graph without bodies by reference functions.
fn reference(m: &Module<Onnx>, r: RegionId, inputs: &[Tensor]) -> Vec<Tensor> {
    let g = &m.graphs[r];
    let mut at: FxHashMap<Value, Tensor> = g.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
    let get = |at: &FxHashMap<Value, Tensor>, v: Value| match g.as_const(v) {
        Some(c) => m.consts[c].read().unwrap(),
        None => at[&v].clone(),
    };
    for &n in &g.order {
        let node = &g.nodes[n];
        let def = &m.registry[node.op];
        let ins: Vec<Option<Tensor>> = node.ins.iter().map(|v| v.map(|v| get(&at, v))).collect();
        let outs = match def.reference {
            Some(f) => {
                let cx =
                    RefCtx { def, attrs: &m.attrs[node.attrs], consts: &m.consts, ins: &ins, n_outs: node.outs.len() };
                f(&cx).unwrap_or_else(|e| panic!("{}: {e}", node.origin))
            }
            None => control(m, node, ins),
        };
        at.extend(node.outs.iter().copied().zip(outs));
    }
    g.outputs.iter().map(|&v| get(&at, v)).collect()
}

fn control(m: &Module<Onnx>, node: &ir::NodeData<Onnx>, ins: Vec<Option<Tensor>>) -> Vec<Tensor> {
    let n_caps = node.n_captures as usize;
    let caps: Vec<Tensor> = ins[ins.len() - n_caps..].iter().cloned().flatten().collect();
    let truth = |t: &Tensor| t.view().i64_at(0) != 0;
    if m.registry[node.op].name == "If" {
        let taken = node.regions[usize::from(!truth(ins[0].as_ref().unwrap()))];
        return reference(m, taken, &caps);
    }
    let trips = ins[0].as_ref().map_or(i64::MAX, |t| t.view().i64_at(0));
    let mut go = ins[1].as_ref().is_none_or(truth);
    let mut carried: Vec<Tensor> = ins[2..ins.len() - n_caps].iter().cloned().flatten().collect();
    let mut scans: Vec<Vec<Tensor>> = vec![vec![]; node.outs.len() - carried.len()];
    let mut i = 0;
    while go && i < trips {
        let mut params = vec![Tensor::from_i64(&[], &[i]), Tensor::from_bool(&[], &[go])];
        params.extend(carried.iter().chain(&caps).cloned());
        let mut outs = reference(m, node.regions[0], &params);
        go = truth(&outs[0]);
        let rest = outs.split_off(1 + carried.len());
        carried = outs.split_off(1);
        scans.iter_mut().zip(rest).for_each(|(s, t)| s.push(t));
        i += 1;
    }
    for s in scans {
        let mut shape = vec![s.len()];
        shape.extend(s.first().expect("at least one iteration").shape());
        let bytes: Vec<u8> = s.iter().flat_map(|t| t.bytes().to_vec()).collect();
        carried.push(Tensor::new(s[0].dtype(), &shape, bytes.into()).unwrap());
    }
    carried
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    let (x, y) = (a.to_f64_vec(), b.to_f64_vec());
    let top = x.iter().filter(|v| v.is_finite()).fold(1e-3f64, |m, v| m.max(v.abs()));
    a.dtype() == b.dtype()
        && a.shape() == b.shape()
        && x.iter().zip(&y).all(|(p, q)| p == q || (p.is_nan() && q.is_nan()) || (p - q).abs() <= 1e-5 * top)
}

/// The lowered module, unfused and fused, after checking that both compute what the reference functions do.
pub(crate) fn check(b: Builder, inputs: &[&[Tensor]]) -> (Module<Hip>, Module<Hip>, FuseReport) {
    let mut m = b.m;
    let info = ir::infer::infer(&mut m).unwrap_or_else(|e| panic!("{e}"));
    let (hip, _) = to_hip(&m, &info, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let mut fused = hip.clone();
    let report = crate::fuse(&mut fused);
    for ins in inputs {
        let want = reference(&m, m.main, ins);
        for (name, h) in [("unfused", &hip), ("fused", &fused)] {
            let got = hip_interp::run(h, ins).unwrap_or_else(|e| panic!("{name}: {e}\n{}", dump(h)));
            for (i, (a, b)) in want.iter().zip(&got).enumerate() {
                assert!(close(a, b), "{name}, output {i}: {a:?} but {b:?}\n{}", dump(h));
            }
        }
        let (a, b) = (hip_interp::run(&hip, ins).unwrap(), hip_interp::run(&fused, ins).unwrap());
        assert!(a == b, "fusion changes bits: {a:?} {b:?}");
    }
    (hip, fused, report)
}

pub(crate) fn dump(m: &Module<Hip>) -> String {
    let mut out = String::new();
    for (r, g) in m.graphs.iter() {
        out += &format!("{r} inputs {:?} outputs {:?}\n", g.inputs, g.outputs);
        for &n in &g.order {
            let node = &g.nodes[n];
            let ty = |v: &Value| {
                let t = &g.values[*v].ty;
                let s = |x: &[DimId]| x.iter().map(|&d| m.dims.display(d).to_string()).collect::<Vec<_>>().join(",");
                format!("{v}:{}[{}]({}) {:?}", t.dtype, s(&t.shape), s(&t.strides), t.space)
            };
            let ins: Vec<String> = node.ins.iter().map(|v| v.as_ref().map_or("-".into(), ty)).collect();
            let outs: Vec<String> = node.outs.iter().map(ty).collect();
            out += &format!("  {outs:?} = {:?} {ins:?}\n", node.op);
        }
    }
    out
}

/// How many ops of the main graph satisfy `f`.
pub(crate) fn count(m: &Module<Hip>, f: impl Fn(&HipOp) -> bool) -> usize {
    let g = m.graph();
    g.order.iter().filter(|&&n| f(&g.nodes[n].op)).count()
}
fn launches(m: &Module<Hip>) -> usize {
    count(m, |o| matches!(o, HipOp::Launch(_)))
}

fn seq(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let v: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin() * 2.0).collect();
    Tensor::from_f32(shape, &v)
}

fn perm(p: &[i64]) -> (&'static str, Attr) {
    ("perm", Attr::Ints(p.into()))
}

#[test]
fn a_chain_becomes_one_nest_that_writes_the_output() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "8"]);
    let bias = b.konst(&seq(&[8]));
    let t = b.op("Add", &[], &[x, bias]);
    let t = b.op("Relu", &[], &[t]);
    let y = b.op("Mul", &[], &[t, x]);
    b.output(y);
    let (plain, fused, _) = check(b, &[&[seq(&[3, 8])], &[seq(&[1, 8])], &[seq(&[0, 8])]]);
    assert_eq!((launches(&plain), launches(&fused)), (3, 1));
    assert_eq!(count(&fused, |o| matches!(o, HipOp::Alloc)), 0);
    assert_eq!(count(&fused, |o| matches!(o, HipOp::Output(0))), 1);
}

#[test]
fn views_cost_nothing_and_compose() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "6", "4"]);
    let t = b.op("Transpose", &[perm(&[0, 2, 1])], &[x]);
    let (s, e, a, st) = (b.ints(&[-1]), b.ints(&[-100]), b.ints(&[2]), b.ints(&[-2]));
    let t = b.op("Slice", &[], &[t, s, e, a, st]);
    let ax = b.ints(&[1]);
    let t = b.op("Unsqueeze", &[], &[t, ax]);
    let y = b.op("Relu", &[], &[t]);
    b.output(y);
    let (plain, ..) = check(b, &[&[seq(&[2, 6, 4])]]);
    assert_eq!(launches(&plain), 1);
}

#[test]
fn shapes_of_tensors_never_reach_the_device() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "s", "6"]);
    let shape = b.op("Shape", &[("end", Attr::Int(2))], &[x]);
    let tail = b.ints(&[2, 3]);
    let to = b.op("Concat", &[("axis", Attr::Int(0))], &[shape, tail]);
    let t = b.op("Reshape", &[], &[x, to]);
    let t = b.op("Transpose", &[perm(&[0, 2, 1, 3])], &[t]);
    let y = b.op("Relu", &[], &[t]);
    b.output(y);
    b.output(to);
    let (plain, ..) = check(b, &[&[seq(&[2, 5, 6])], &[seq(&[1, 1, 6])]]);
    assert_eq!(launches(&plain), 1);
    assert_eq!(count(&plain, |o| matches!(o, HipOp::StoreDims(_))), 1);
}

#[test]
fn concat_is_written_in_place_by_its_producers() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "4"]);
    let p = b.op("Relu", &[], &[x]);
    let q = b.op("Neg", &[], &[x]);
    let c = b.op("Concat", &[("axis", Attr::Int(1))], &[p, q, x]);
    let y = b.op("Abs", &[], &[c]);
    b.output(c);
    b.output(y);
    let (plain, ..) = check(b, &[&[seq(&[3, 4])]]);
    // Two producers write their places, the input is copied, and Abs.
    assert_eq!((launches(&plain), count(&plain, |o| matches!(o, HipOp::Alloc))), (4, 0));
}

#[test]
fn outputs_may_be_inputs_constants_views_and_twice_the_same() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "4"]);
    let k = b.konst(&seq(&[3]));
    let r = b.op("Relu", &[], &[x]);
    let t = b.op("Transpose", &[], &[x]);
    let flat = b.ints(&[-1]);
    let f = b.op("Reshape", &[], &[r, flat]);
    for v in [x, k, r, r, t, f, x] {
        b.output(v);
    }
    let (plain, ..) = check(b, &[&[seq(&[3, 4])]]);
    assert_eq!(count(&plain, |o| matches!(o, HipOp::PassOutput(_))), 5);
}

#[test]
fn split_and_expand_are_views() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "6"]);
    let parts = b.ops("Split", &[("axis", Attr::Int(1)), ("num_outputs", Attr::Int(3))], &[Some(x)], 3);
    let to = b.ints(&[4, 1, 1]);
    let e = b.op("Expand", &[], &[parts[2], to]);
    let t = b.op("Mul", &[], &[parts[0], parts[1]]);
    let y = b.op("Add", &[], &[t, e]);
    b.output(y);
    let (plain, fused, _) = check(b, &[&[seq(&[3, 6])]]);
    // Add reads each product four times: computing it again would read more than the buffer.
    assert_eq!((launches(&plain), launches(&fused)), (2, 2));
}

#[test]
fn half_precision_rounds_between_fused_ops() {
    let mut b = Builder::new();
    let x = b.input(DType::F16, &["n"]);
    let t = b.op("Mul", &[], &[x, x]);
    let y = b.op("Add", &[], &[t, x]);
    b.output(y);
    let v: Vec<f64> = (0..40).map(|i| f64::from(i) * 0.31).collect();
    let (_, fused, _) = check(b, &[&[Tensor::from_f64_as(DType::F16, &[40], &v)]]);
    assert_eq!(launches(&fused), 1);
}

#[test]
fn a_reshape_between_ops_does_not_stop_fusion() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "6", "4"]);
    let t = b.op("Relu", &[], &[x]);
    let to = b.ints(&[0, 2, 12]);
    let t = b.op("Reshape", &[], &[t, to]);
    let k = b.konst(&seq(&[12]));
    let y = b.op("Add", &[], &[t, k]);
    let z = b.op("Transpose", &[perm(&[2, 0, 1])], &[y]);
    let z = b.op("Neg", &[], &[z]);
    b.output(z);
    let (_, fused, _) = check(b, &[&[seq(&[3, 6, 4])]]);
    assert_eq!(launches(&fused), 1);
}

#[test]
fn elements_read_by_the_host_become_extents() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let shape = b.input(DType::I64, &["2"]);
    let two = b.ints(&[2, 2]);
    let to = b.op("Mul", &[], &[shape, two]);
    let y = b.op("Expand", &[], &[x, to]);
    let y = b.op("Relu", &[], &[y]);
    b.output(y);
    let (plain, ..) = check(b, &[&[seq(&[4]), Tensor::from_i64(&[2], &[3, 2])]]);
    assert_eq!(count(&plain, |o| matches!(o, HipOp::Readback { .. })), 2);
}
