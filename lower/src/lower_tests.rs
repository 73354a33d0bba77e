//! Graphs of the ONNX dialect against their lowered forms: the reference functions, the HIP interpreter without fusion, and with.

use crate::{FuseReport, Options, hip_interp, to_hip};
use ir::attrs::Attr;
use ir::consts::Const;
use ir::graph::{Graph, RegionId, Value};
use ir::hip::{Hip, HipOp};
use ir::{Module, Onnx, Origin, Registry, Type};
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
    /// An operator of the project's own domain without attributes, with one result.
    pub fn hip(&mut self, name: &str, ins: &[Option<Value>]) -> Value {
        self.of(ir::op::HIP_DOMAIN, name, ins)
    }
    /// The same in any domain.
    pub fn of(&mut self, domain: &str, name: &str, ins: &[Option<Value>]) -> Value {
        let id = self.m.registry.find(domain, name, 1).unwrap_or_else(|| panic!("no row {name}"));
        let attrs = self.m.registry[id].attrs_with(&[]);
        let attrs = self.m.attrs.intern(attrs);
        let outs = [(Type::Unknown, name.into())];
        let g = &mut self.m.graphs[self.at];
        let n = g.add_node(id, attrs, ins.to_vec(), outs, [], Origin(format!("/{name}").into()));
        g.nodes[n].outs[0]
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

fn close(a: &Tensor, b: &Tensor) -> bool {
    let (x, y) = (a.to_f64_vec(), b.to_f64_vec());
    let top = x.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
    a.dtype() == b.dtype()
        && a.shape() == b.shape()
        && x.iter().zip(&y).all(|(p, q)| p == q || (p.is_nan() && q.is_nan()) || (p - q).abs() <= 2e-6 * top)
}

/// The lowered module, unfused and fused, after checking that both compute what the reference functions do, planned and as host
/// programs, too.
pub(crate) fn check(b: Builder, inputs: &[&[Tensor]]) -> (Module<Hip>, Module<Hip>, FuseReport) {
    let (m, hip, fused, report) = check_dialect(b, inputs);
    for h in [hip.clone(), fused.clone()] {
        let (h, _, p) = crate::program_tests::same(h, inputs);
        for ins in inputs {
            let want = ir::interp::run(&m, ins).unwrap_or_else(|e| panic!("{e}"));
            let (got, _) = crate::host_interp::run(&p, &h, ins).unwrap_or_else(|e| panic!("{e}\n{}\n{p}", dump(&h)));
            for (i, (a, b)) in want.iter().zip(&got).enumerate() {
                assert!(close(a, b), "program, output {i}: {a:?} but {b:?}\n{}\n{p}", dump(&h));
            }
        }
    }
    (hip, fused, report)
}

/// The module, lowered and fused, after checking that the HIP dialect computes what the reference functions do.
fn check_dialect(b: Builder, inputs: &[&[Tensor]]) -> (Module<Onnx>, Module<Hip>, Module<Hip>, FuseReport) {
    let mut m = b.m;
    let info = ir::infer::infer(&mut m).unwrap_or_else(|e| panic!("{e}"));
    let (hip, _) = to_hip(&m, &info, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let mut fused = hip.clone();
    let report = crate::fuse(&mut fused);
    for h in [&hip, &fused] {
        ir::verify::verify_hip(h).unwrap_or_else(|e| panic!("{e}\n{}", dump(h)));
    }
    for ins in inputs {
        let want = ir::interp::run(&m, ins).unwrap_or_else(|e| panic!("{e}"));
        let run = |name: &str, h: &Module<Hip>| {
            let got = hip_interp::run(h, ins).unwrap_or_else(|e| panic!("{name}: {e}\n{}", dump(h)));
            for (i, (a, b)) in want.iter().zip(&got).enumerate() {
                assert!(close(a, b), "{name}, output {i}: {a:?} but {b:?}\n{}", dump(h));
            }
            got
        };
        let (a, b) = (run("unfused", &hip), run("fused", &fused));
        assert!(a == b, "fusion changes bits: {a:?} {b:?}");
    }
    (m, hip, fused, report)
}

pub(crate) fn dump(m: &Module<Hip>) -> String {
    ir::text::print_hip(m)
}

/// How many ops of the main graph satisfy `f`.
pub(crate) fn count(m: &Module<Hip>, f: impl Fn(&HipOp) -> bool) -> usize {
    let g = m.graph();
    g.order.iter().filter(|&&n| f(&g.nodes[n].op)).count()
}
fn launches(m: &Module<Hip>) -> usize {
    count(m, |o| matches!(o, HipOp::Launch(_)))
}

pub(crate) fn seq(shape: &[usize]) -> Tensor {
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

/// A producer behind a reshape: the axis of extent 1 has another stride in its place than in its own buffer, which moves no element.
#[test]
fn a_place_with_a_unit_axis_is_not_copied_onto_itself() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "4"]);
    let p = b.op("Relu", &[], &[x]);
    let axes = b.ints(&[0]);
    let (p, z) = (b.op("Unsqueeze", &[], &[p, axes]), b.op("Unsqueeze", &[], &[x, axes]));
    let c = b.op("Concat", &[("axis", Attr::Int(1))], &[p, z]);
    b.output(c);
    let (plain, ..) = check(b, &[&[seq(&[3, 4])], &[seq(&[1, 4])], &[seq(&[0, 4])]]);
    // The producer writes its place, and the input is copied.
    assert_eq!((launches(&plain), count(&plain, |o| matches!(o, HipOp::Alloc))), (2, 0), "{}", dump(&plain));
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

/// Bounds that wrapped in an i32 tensor are read from it; the exact value would be another place.
#[test]
fn extents_from_i32_arithmetic_wrap() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let e = b.input(DType::I64, &["1"]);
    let (z, w) = (b.input(DType::I32, &["1"]), b.input(DType::I32, &["1"]));
    let to = |d: DType| [("to", Attr::Int(d.onnx().into()))];
    let narrow = b.op("Cast", &to(DType::I32), &[e]);
    let product = b.op("Mul", &[], &[z, w]);
    let zero = b.ints(&[0]);
    for end in [narrow, product] {
        let end = b.op("Cast", &to(DType::I64), &[end]);
        let y = b.op("Slice", &[], &[x, zero, end]);
        b.output(y);
    }
    let run = |e: i64, z: i64, w: i64| {
        let i32s = |v: i64| Tensor::from_i64_as(DType::I32, &[1], &[v]);
        [seq(&[9]), Tensor::from_i64(&[1], &[e]), i32s(z), i32s(w)]
    };
    check(b, &[&run((1 << 32) + 3, (1 << 16) + 1, 1 << 16), &run(5, 2, 3), &run(-1, -2, 1)]);
}

#[test]
fn rows_get_prologues_and_epilogues() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "s", "8"]);
    let mask = b.input(DType::F32, &["n", "1", "8"]);
    let k = b.konst(&Tensor::from_f32(&[], &[0.125]));
    let t = b.op("Mul", &[], &[x, k]);
    let t = b.op("Add", &[], &[t, mask]);
    let t = b.op("Softmax", &[("axis", Attr::Int(-1))], &[t]);
    let y = b.op("Sqrt", &[], &[t]);
    b.output(y);
    let (plain, fused, _) = check(b, &[&[seq(&[2, 3, 8]), seq(&[2, 1, 8])]]);
    assert_eq!((launches(&plain), launches(&fused)), (4, 1));
}

#[test]
fn a_norm_written_out_becomes_one_nest_with_its_residual() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "s", "8"]);
    let r = b.input(DType::F32, &["n", "s", "8"]);
    let axes = b.ints(&[-1]);
    let h = b.op("Add", &[], &[x, r]);
    let mean = b.op("ReduceMean", &[], &[h, axes]);
    let d = b.op("Sub", &[], &[h, mean]);
    let sq = b.op("Mul", &[], &[d, d]);
    let var = b.op("ReduceMean", &[], &[sq, axes]);
    let eps = b.konst(&Tensor::from_f32(&[], &[1e-5]));
    let e = b.op("Add", &[], &[var, eps]);
    let s = b.op("Sqrt", &[], &[e]);
    let y = b.op("Div", &[], &[d, s]);
    let z = b.op("Add", &[], &[h, y]);
    b.output(y);
    b.output(z);
    let (_, fused, _) = check(b, &[&[seq(&[2, 3, 8]), seq(&[2, 3, 8])]]);
    assert_eq!(launches(&fused), 1, "{}", dump(&fused));
}

fn branchy(shapes_differ: bool) -> Builder {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "4"]);
    let c = b.input(DType::Bool, &[]);
    let k = b.konst(&seq(&[4]));
    let t = b.op("Relu", &[], &[x]);
    let then = b.region(|b| {
        let (p, q) = (b.input(DType::F32, &["n", "4"]), b.input(DType::F32, &["4"]));
        let y = b.op("Add", &[], &[p, q]);
        b.output(y);
        b.output(p);
    });
    let els = b.region(|b| {
        let (p, _) = (b.input(DType::F32, &["n", "4"]), b.input(DType::F32, &["4"]));
        let y = b.op("Neg", &[], &[p]);
        let y = if shapes_differ { b.op("Concat", &[("axis", Attr::Int(0))], &[y, p]) } else { y };
        b.output(y);
        b.output(y);
    });
    let outs = b.control("If", &[Some(c)], &[t, k], &[then, els], 2);
    let y = b.op("Abs", &[], &[outs[0]]);
    b.output(y);
    b.output(outs[1]);
    b
}

#[test]
fn branches_write_results_of_their_own() {
    for differ in [false, true] {
        for c in [false, true] {
            check(branchy(differ), &[&[seq(&[3, 4]), Tensor::from_bool(&[], &[c])]]);
        }
    }
}

#[test]
fn loops_carry_values_whose_shape_may_change() {
    for grows in [false, true] {
        let mut b = Builder::new();
        let x = b.input(DType::F32, &["n"]);
        let m = b.input(DType::I64, &[]);
        let body = b.region(|b| {
            let i = b.input(DType::I64, &[]);
            let c = b.input(DType::Bool, &[]);
            let v = b.input(DType::F32, &["n"]);
            let w = b.input(DType::F32, &["n"]);
            let f = b.op("Cast", &[("to", Attr::Int(1))], &[i]);
            let s = b.op("Add", &[], &[v, f]);
            let next =
                if grows { b.op("Concat", &[("axis", Attr::Int(0))], &[s, w]) } else { b.op("Mul", &[], &[s, w]) };
            let e = b.op("Mul", &[], &[w, f]);
            b.output(c);
            b.output(next);
            b.output(e);
        });
        let truth = b.konst(&Tensor::from_bool(&[], &[true]));
        let outs = b.control("Loop", &[Some(m), Some(truth), Some(x)], &[x], &[body], 2);
        let y = b.op("Neg", &[], &[outs[0]]);
        b.output(y);
        b.output(outs[1]);
        check(b, &[&[seq(&[3]), Tensor::from_i64(&[], &[4])]]);
    }
}

#[test]
fn a_loop_runs_until_its_condition_is_false() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["2"]);
    let limit = b.konst(&Tensor::from_f32(&[], &[40.0]));
    let two = b.konst(&Tensor::from_f32(&[], &[2.0]));
    let body = b.region(|b| {
        b.input(DType::I64, &[]);
        b.input(DType::Bool, &[]);
        // The two values change places: all outputs are complete before the first is copied.
        let (p, q) = (b.input(DType::F32, &["2"]), b.input(DType::F32, &["2"]));
        let (limit, two) = (b.input(DType::F32, &[]), b.input(DType::F32, &[]));
        let d = b.op("Mul", &[], &[p, two]);
        let top = b.op("ReduceMax", &[("keepdims", Attr::Int(0))], &[d]);
        let go = b.op("Less", &[], &[top, limit]);
        b.output(go);
        b.output(q);
        b.output(d);
    });
    let one = b.konst(&Tensor::from_f32(&[2], &[1.0, 1.5]));
    let outs = b.control("Loop", &[None, None, Some(x), Some(one)], &[limit, two], &[body], 2);
    b.output(outs[0]);
    b.output(outs[1]);
    check(b, &[&[Tensor::from_f32(&[2], &[3.0, 1.0])], &[Tensor::from_f32(&[2], &[300.0, 1.0])]]);
}

#[test]
fn passes_are_named_counted_and_left_out() {
    use crate::pass::{self, Hooks, Slot, Unit};
    let build = || {
        let mut b = Builder::new();
        let x = b.input(DType::F32, &["n", "4"]);
        let t = b.op("Relu", &[], &[x]);
        let y = b.op("Neg", &[], &[t]);
        b.output(y);
        b.m
    };
    let mut o = pass::Options::default();
    o.disable = vec!["fuze".into()];
    let e = pass::run(Unit::from_onnx(build()), &o, &mut Hooks::new()).unwrap_err();
    assert!(e.to_string().contains("no pass or rewrite rule \"fuze\"\n  help  did you mean fuse? "), "{e}");
    o.disable = vec!["mul-won".into()];
    let e = pass::run(Unit::from_onnx(build()), &o, &mut Hooks::new()).unwrap_err();
    assert!(e.to_string().contains("did you mean mul-one"), "{e}");
    (o.disable, o.stop_after) = (vec![], Some("fuze".into()));
    let e = pass::run(Unit::from_onnx(build()), &o, &mut Hooks::new()).unwrap_err();
    assert!(e.to_string().contains("no pass \"fuze\"\n  help  known passes: infer, "), "{e}");
    o.stop_after = None;
    o.disable = vec!["plan".into()];
    let e = pass::run(Unit::from_onnx(build()), &o, &mut Hooks::new()).unwrap_err();
    assert!(e.to_string().contains("required") && e.to_string().contains("optional passes are refine, "), "{e}");
    o.disable.clear();
    o.bisect = Some(2);
    let u = pass::run(Unit::from_onnx(build()), &o, &mut Hooks::new()).unwrap();
    assert_eq!(u.fuse, FuseReport::default());
    o.bisect = None;
    o.stop_after = Some("to-hip".into());
    let u = pass::run(Unit::from_onnx(build()), &o, &mut Hooks::new()).unwrap();
    assert!(u.hip.is_some() && u.plan.is_none());
    o.stop_after = None;
    let (tx, rx) = std::sync::mpsc::channel();
    let mut hooks = Hooks::new();
    for s in Slot::ALL {
        let tx = tx.clone();
        hooks.add(s, move |_| {
            tx.send(s).map_err(|e| tensor::Diagnostic::new(tensor::ErrorKind::Internal, e.to_string()))
        });
    }
    let lowered = crate::compile(build(), &o, &mut hooks).unwrap();
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), Slot::ALL[..6]);
    assert_eq!(launches(&lowered.hip), 1);
    // Every fact that a pass needs was given by one before it.
    assert!(pass::render().contains("| `fuse` | optional | buffers |"));
}

/// A small random number generator: the same graphs on every machine.
struct Dice(u64);
impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n.max(1)
    }
}

/// A graph of `n_ops` random ops over one input `[n, 4, 6]`.
fn random_graph(seed: u64, n_ops: usize) -> Builder {
    let mut d = Dice(seed.wrapping_mul(977) + 13);
    d.roll(9);
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "4", "6"]);
    let mut all = vec![x];
    for _ in 0..n_ops {
        ir::infer::infer(&mut b.m).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        // Mostly the newest values, so that chains form.
        let back = d.roll(3).min(all.len() - 1);
        let v = all[all.len() - 1 - back];
        let shape: Vec<DimId> = b.m.graph().values[v].ty.shape().unwrap().to_vec();
        let fixed: Vec<Option<i64>> = shape.iter().map(|&s| b.m.dims.as_const(s)).collect();
        let rank = shape.len();
        let n_fixed: i64 = fixed.iter().map(|f| f.unwrap_or(1)).product();
        let axis = d.roll(rank);
        let axis_i = i64::try_from(axis).unwrap();
        let keep = ("keepdims", Attr::Int(1));
        let new = match d.roll(17) {
            0 | 1 => {
                let op = ["Relu", "Neg", "Sigmoid", "Abs"][d.roll(4)];
                b.op(op, &[], &[v])
            }
            2 | 3 => {
                let op = ["Add", "Mul", "Sub", "Max"][d.roll(4)];
                let same: Vec<Value> = all
                    .iter()
                    .copied()
                    .filter(|&w| b.m.graph().values[w].ty.shape().is_some_and(|s| s.as_slice() == shape))
                    .collect();
                let w = same[d.roll(same.len())];
                b.op(op, &[], &[v, w])
            }
            4 => {
                let last = fixed.last().copied().flatten().unwrap_or(1);
                let k = b.konst(&seq(&[usize::try_from(last).unwrap()]));
                b.op("Add", &[], &[v, k])
            }
            5 => {
                let mut p: Vec<i64> = (0..i64::try_from(rank).unwrap()).collect();
                for i in (1..rank).rev() {
                    p.swap(i, d.roll(i + 1));
                }
                b.op("Transpose", &[perm(&p)], &[v])
            }
            6 if rank >= 2 => {
                let mut to = vec![0; rank - 2];
                to.push(-1);
                let to = b.ints(&to);
                b.op("Reshape", &[], &[v, to])
            }
            7 if fixed[axis].is_some_and(|f| f >= 2) => {
                let (s, e, st) = [(1, i64::MAX, 1), (-1, i64::MIN + 1, -1), (0, i64::MAX, 2)][d.roll(3)];
                let (s, e, a, st) = (b.ints(&[s]), b.ints(&[e]), b.ints(&[axis_i]), b.ints(&[st]));
                b.op("Slice", &[], &[v, s, e, a, st])
            }
            8 if n_fixed < 100 => {
                let w = if d.roll(2) == 0 { v } else { b.op("Neg", &[], &[v]) };
                b.op("Concat", &[("axis", Attr::Int(axis_i))], &[v, w])
            }
            9 => b.op("Softmax", &[("axis", Attr::Int(axis_i))], &[v]),
            10 => {
                let op = ["ReduceMean", "ReduceMax", "ReduceSum"][d.roll(3)];
                let a = b.ints(&[axis_i]);
                let r = b.op(op, &[keep], &[v, a]);
                b.op("Sub", &[], &[v, r])
            }
            11 if rank < 4 => {
                let a = b.ints(&[axis_i]);
                b.op("Unsqueeze", &[], &[v, a])
            }
            12 if fixed[axis].is_some_and(|f| f >= 2) => {
                let i = b.ints(&[1, -1, 0]);
                b.op("Gather", &[("axis", Attr::Int(axis_i))], &[v, i])
            }
            13 => {
                let h = b.op("Cast", &[("to", Attr::Int(10))], &[v]);
                b.op("Cast", &[("to", Attr::Int(1))], &[h])
            }
            14 if n_fixed < 100 => {
                let mut pads = vec![0; 2 * rank];
                (pads[axis], pads[rank + axis]) = ([0, 1, -1][d.roll(3)], [2, 1, 0][d.roll(3)]);
                if fixed[axis].is_none_or(|f| f < 2) {
                    pads[axis] = 1;
                }
                let pads = b.ints(&pads);
                b.op("Pad", &[], &[v, pads])
            }
            15 if fixed[axis].is_some_and(|f| f % 2 == 0) => {
                let attrs = [("axis", Attr::Int(axis_i)), ("num_outputs", Attr::Int(2))];
                let halves = b.ops("Split", &attrs, &[Some(v)], 2);
                b.op("Mul", &[], &halves)
            }
            16 if n_fixed < 60 => {
                let mut to = vec![1; rank + 1];
                to[0] = 3;
                let to = b.ints(&to);
                if rank < 4 { b.op("Expand", &[], &[v, to]) } else { b.op("Abs", &[], &[v]) }
            }
            _ => b.op("Tanh", &[], &[v]),
        };
        all.push(new);
    }
    b.output(*all.last().unwrap());
    let k = d.roll(all.len());
    b.output(all[k]);
    b
}

#[test]
fn random_graphs_compute_the_same_lowered_and_fused() {
    let mut fused = FuseReport::default();
    for seed in 0..60 {
        let n_ops = 3 + usize::try_from(seed % 9).unwrap();
        let b = random_graph(seed, n_ops);
        let result = std::panic::catch_unwind(|| check(b, &[&[seq(&[2, 4, 6])], &[seq(&[1, 4, 6])]]));
        let (.., r) = result.unwrap_or_else(|_| panic!("seed {seed}"));
        fused.inlined += r.inlined;
        fused.merged += r.merged;
    }
    // The generator still makes graphs in which there is something to fuse.
    assert!(fused.inlined > 40 && fused.merged > 8, "{fused:?}");
}

#[test]
fn extents_that_only_the_device_knows_are_counted_first() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let nz = b.op("NonZero", &[], &[x]);
    let flat = b.ints(&[-1]);
    let i = b.op("Reshape", &[], &[nz, flat]);
    let y = b.op("Gather", &[], &[x, i]);
    let y = b.op("Neg", &[], &[y]);
    b.output(y);
    let x = Tensor::from_f32(&[6], &[0.0, 1.5, 0.0, -2.0, 3.0, 0.0]);
    let (plain, ..) = check(b, &[&[x], &[Tensor::from_f32(&[2], &[0.0, 0.0])]]);
    assert_eq!(count(&plain, |o| matches!(o, HipOp::Readback { .. })), 1);
    assert_eq!(count(&plain, |o| matches!(o, HipOp::Call(_))), 2);
}

/// What counts runs also where only the number is used.
#[test]
fn a_count_of_which_only_the_number_is_used_runs() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "3"]);
    let nz = b.op("NonZero", &[], &[x]);
    let (shape, size) = (b.op("Shape", &[], &[nz]), b.op("Size", &[], &[nz]));
    let ones = b.op("ConstantOfShape", &[], &[shape]);
    [shape, size, ones].into_iter().for_each(|v| b.output(v));
    let x = |v: &[f32]| Tensor::from_f32(&[v.len() / 3, 3], v);
    check(b, &[&[x(&[0.0, 2.0, 0.0, 3.0, 0.0, 4.0])], &[x(&[0.0; 3])], &[x(&[1.0; 9])], &[x(&[])]]);
}

/// Elements that are not 0 are counted and listed by kernels of a few types; other types are read as truth values.
#[test]
fn elements_of_any_type_are_counted() {
    for dtype in [DType::U8, DType::F16, DType::F64, DType::I16, DType::U64] {
        let mut b = Builder::new();
        let x = b.input(dtype, &["n", "3"]);
        let nz = b.op("NonZero", &[], &[x]);
        b.output(nz);
        let x = Tensor::from_f64_as(dtype, &[2, 3], &[0.0, 2.0, 0.0, 1.0, 0.0, 255.0]);
        check(b, &[&[x], &[Tensor::from_f64_as(dtype, &[0, 3], &[])]]);
    }
}

#[test]
fn a_kernel_takes_the_strides_that_its_contract_allows() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "4", "6"]);
    let w = b.input(DType::F32, &["5", "6"]);
    let wt = b.op("Transpose", &[perm(&[1, 0])], &[w]);
    let y = b.op("MatMul", &[], &[x, wt]);
    let xt = b.op("Transpose", &[perm(&[0, 2, 1])], &[x]);
    let z = b.op("MatMul", &[], &[xt, y]);
    b.output(z);
    let (plain, ..) = check(b, &[&[seq(&[2, 4, 6]), seq(&[5, 6])]]);
    assert_eq!((launches(&plain), count(&plain, |o| matches!(o, HipOp::Call(_)))), (0, 2));
}

/// `x` with the axes backwards: a view with negative strides.
fn reversed(b: &mut Builder, x: Value, axes: &[i64]) -> Value {
    let of = |v: i64| vec![v; axes.len()];
    let ins = [of(-1), of(-1000), axes.to_vec(), of(-1)].map(|v| b.ints(&v));
    b.op("Slice", &[], &[&[x][..], &ins].concat())
}

#[test]
fn a_kernel_gets_copies_of_what_runs_backwards() {
    let x = |dtype: DType, shape: &[usize]| {
        let v: Vec<f64> = (0..shape.iter().product()).map(|i: usize| (i * 7 % 5) as f64 - 2.0).collect();
        Tensor::from_f64_as(dtype, shape, &v)
    };
    for dtype in [DType::F32, DType::F16] {
        // Each operand alone, by row, by column, both, and behind a transpose; then an axis with one element.
        for (axes, swap) in [(vec![0], false), (vec![1], false), (vec![0, 1], false), (vec![0], true), (vec![1], true)]
        {
            for k in 0..2 {
                let mut b = Builder::new();
                let mut ins = [b.input(dtype, &["3", "3"]), b.input(dtype, &["3", "3"])];
                ins[k] = reversed(&mut b, ins[k], &axes);
                if swap {
                    ins[k] = b.op("Transpose", &[perm(&[1, 0])], &[ins[k]]);
                }
                let y = b.op("MatMul", &[], &ins);
                b.output(y);
                let (plain, ..) = check(b, &[&[x(dtype, &[3, 3]), x(dtype, &[3, 3])]]);
                assert_eq!((launches(&plain), count(&plain, |o| matches!(o, HipOp::Call(_)))), (1, 1));
            }
        }
        for one in [["1", "3"], ["n", "3"]] {
            let mut b = Builder::new();
            let (p, q) = (b.input(dtype, &one), b.input(dtype, &["3", "2"]));
            let p = reversed(&mut b, p, &[0]);
            let y = b.op("MatMul", &[], &[p, q]);
            b.output(y);
            check(b, &[&[x(dtype, &[1, 3]), x(dtype, &[3, 2])]]);
        }
        for (ta, tb) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut b = Builder::new();
            let ins = [(); 3].map(|()| b.input(dtype, &["3", "3"]));
            let ins = ins.map(|v| reversed(&mut b, v, &[0]));
            let y = b.op("Gemm", &[("transA", Attr::Int(ta)), ("transB", Attr::Int(tb))], &ins);
            b.output(y);
            check(b, &[&[(); 3].map(|()| x(dtype, &[3, 3]))]);
        }
    }
    for axis in [0, 1, 2, 3] {
        let mut b = Builder::new();
        let ins = [(); 4].map(|()| b.input(DType::F32, &["2", "2", "4", "4"]));
        let ins = ins.map(|v| Some(reversed(&mut b, v, &[axis])));
        let y = b.hip("Attention", &ins);
        b.output(y);
        let (plain, ..) = check(b, &[&[(); 4].map(|()| x(DType::F32, &[2, 2, 4, 4]))]);
        assert_eq!(count(&plain, |o| matches!(o, HipOp::Call(_))), 1);
    }
}

#[test]
fn a_convolution_copies_what_it_cannot_stride() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "5", "6", "3"]);
    let w = b.konst(&seq(&[4, 3, 3, 3]));
    let t = b.op("Transpose", &[perm(&[0, 3, 1, 2])], &[x]);
    let y = b.op("Conv", &[], &[t, w]);
    b.output(y);
    let (plain, ..) = check(b, &[&[seq(&[1, 5, 6, 3])]]);
    assert_eq!((launches(&plain), count(&plain, |o| matches!(o, HipOp::Call(_)))), (1, 1));
}

/// The rows with other candidates for one operator.
fn registry_with(name: &str, lower: &'static [ir::lowering::Candidate]) -> std::sync::Arc<Registry> {
    let rows = ir::ops::rows().into_iter().map(|mut r| {
        if r.name == name {
            r.lower = lower;
        }
        r
    });
    std::sync::Arc::new(Registry::with_rows(rows))
}

#[test]
fn one_error_lists_every_node_that_nothing_takes() {
    let mut b = Builder::new();
    b.m.registry = registry_with("Tanh", &[]);
    let x = b.input(DType::F32, &["n"]);
    let t = b.op("Tanh", &[], &[x]);
    let t = b.op("Neg", &[], &[t]);
    let y = b.op("Tanh", &[], &[t]);
    let unused = b.op("Tanh", &[], &[y]);
    let _ = unused;
    b.output(y);
    let mut m = b.m;
    let info = ir::infer::infer(&mut m).unwrap();
    let e = to_hip(&m, &info, &Options::default()).unwrap_err().to_string();
    let want = "2 nodes cannot run on this target\n  node              /Tanh_0\n  \
                Tanh (since 6)   /Tanh_0: any: its row has no candidates\n  \
                Tanh (since 6)   /Tanh_2: any: its row has no candidates";
    assert_eq!(e.split_whitespace().collect::<Vec<_>>(), want.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn choices_are_explained() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "4"]);
    let t = b.op("Transpose", &[], &[x]);
    let s = b.op("Shape", &[], &[t]);
    let y = b.op("Relu", &[], &[t]);
    b.output(y);
    b.output(s);
    let mut m = b.m;
    let info = ir::infer::infer(&mut m).unwrap();
    let (_, explain) = to_hip(&m, &info, &Options::default()).unwrap();
    let want = "/Transpose_0 (Transpose): view\n/Shape_1 (Shape): shape\n/Relu_2 (Relu): loops\n\
                total: 1 loops, 1 shape, 1 view\n";
    assert_eq!(explain.to_string(), want);
}

#[test]
fn time_grows_with_the_number_of_nodes() {
    let time = |n: usize| {
        let mut b = Builder::new();
        let x = b.input(DType::F32, &["n", "8"]);
        let mut v = vec![x];
        for i in 0..n {
            let (p, q) = (v[v.len() - 1], v[v.len() - 1 - (i * 7) % v.len().min(5)]);
            v.push(match i % 4 {
                0 => b.op("Add", &[], &[p, q]),
                1 => b.op("Tanh", &[], &[p]),
                2 => b.op("Transpose", &[perm(&[0, 1])], &[p]),
                _ => b.op("Mul", &[], &[p, q]),
            });
        }
        b.output(v[n]);
        let mut m = b.m;
        let info = ir::infer::infer(&mut m).unwrap();
        let start = tensor::clock::thread_seconds();
        let (mut hip, _) = to_hip(&m, &info, &Options::default()).unwrap();
        crate::fuse(&mut hip);
        tensor::clock::thread_seconds() - start
    };
    let (small, large) = (time(200), time(1600));
    assert!(large < small * 24.0 + 0.2, "{small} s {large} s");
}

#[test]
fn host_ops_work_on_host_copies() {
    let mut b = Builder::new();
    b.m.registry = registry_with("Tanh", &[ir::lowering::Candidate::Host]);
    let x = b.input(DType::F32, &["n", "4"]);
    let t = b.op("Transpose", &[], &[x]);
    let t = b.op("Tanh", &[], &[t]);
    let y = b.op("Neg", &[], &[t]);
    b.output(t);
    b.output(y);
    let (_, plain, ..) = check_dialect(b, &[&[seq(&[3, 4])]]);
    let n = |f: fn(&HipOp) -> bool| count(&plain, f);
    assert_eq!((n(|o| matches!(o, HipOp::HostCall { .. })), n(|o| matches!(o, HipOp::Copy))), (1, 2));
}

#[test]
fn branches_nest_and_constant_ones_are_inlined() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let yes = b.konst(&Tensor::from_bool(&[], &[true]));
    let body = b.region(|b| {
        let i = b.input(DType::I64, &[]);
        let c = b.input(DType::Bool, &[]);
        let (v, w) = (b.input(DType::F32, &["n"]), b.input(DType::F32, &["n"]));
        let one = b.konst(&Tensor::from_i64(&[], &[1]));
        let first = b.op("Less", &[], &[i, one]);
        let then = b.region(|b| {
            let (p, q) = (b.input(DType::F32, &["n"]), b.input(DType::F32, &["n"]));
            let y = b.op("Add", &[], &[p, q]);
            b.output(y);
        });
        let els = b.region(|b| {
            let (p, _) = (b.input(DType::F32, &["n"]), b.input(DType::F32, &["n"]));
            b.output(p);
        });
        let r = b.control("If", &[Some(first)], &[v, w], &[then, els], 1);
        let r = b.op("Neg", &[], &[r[0]]);
        b.output(c);
        b.output(r);
    });
    let trips = b.konst(&Tensor::from_i64(&[], &[3]));
    let then = b.region(|b| {
        let p = b.input(DType::F32, &["n"]);
        let y = b.op("Relu", &[], &[p]);
        b.output(y);
    });
    let els = b.region(|b| {
        let p = b.input(DType::F32, &["n"]);
        b.output(p);
    });
    let t = b.control("If", &[Some(yes)], &[x], &[then, els], 1);
    let outs = b.control("Loop", &[Some(trips), Some(yes), Some(t[0])], &[x], &[body], 1);
    b.output(outs[0]);
    let (plain, ..) = check(b, &[&[seq(&[5])]]);
    assert_eq!(count(&plain, |o| matches!(o, HipOp::If { .. })), 0);
    assert_eq!(count(&plain, |o| matches!(o, HipOp::Loop(_))), 1);
}

/// A scale of one element belongs to every element, also of a tensor that has no axes.
#[test]
fn lists_of_one_element_are_scalars() {
    let mut b = Builder::new();
    let x = b.input(DType::U8, &[]);
    let rows = b.input(DType::U8, &["n", "3"]);
    let scale = b.konst(&Tensor::from_f32(&[1], &[0.25]));
    let zero = b.konst(&Tensor::from_i64_as(DType::U8, &[1], &[3]));
    for x in [x, rows] {
        let y = b.of("com.microsoft", "QLinearSigmoid", &[Some(x), Some(scale), Some(zero), Some(scale), None]);
        b.output(y);
    }
    let byte = |shape: &[usize], v: i64| Tensor::from_i64_as(DType::U8, shape, &vec![v; shape.iter().product()]);
    check(b, &[&[byte(&[], 200), byte(&[2, 3], 1)], &[byte(&[], 0), byte(&[0, 3], 0)]]);
}

/// What an operator asks of an integer that only the run knows is checked even where its result is known without it.
#[test]
fn guards_over_elements_are_checked_where_nothing_reads_them() {
    use crate::pass::{self, Hooks, Unit};
    for computed in [false, true] {
        let mut b = Builder::new();
        let x = b.input(DType::I32, &["1"]);
        let four = b.konst(&Tensor::from_i64_as(DType::I32, &[1], &[4]));
        // Products of 32 bits wrap, so that no expression over x stands for them.
        let square = b.op("Mul", &[], &[x, x]);
        let n = b.op("Sub", &[], &[if computed { square } else { x }, four]);
        let n = b.op("Cast", &[("to", Attr::Int(DType::I64.onnx().into()))], &[n]);
        let ones = b.op("ConstantOfShape", &[], &[n]);
        let axes = b.ints(&[0]);
        let sum = b.op("ReduceSum", &[], &[ones, axes]);
        let y = b.op("Shape", &[], &[sum]);
        b.output(y);
        for disable in [vec![], vec!["rewrite".to_string()]] {
            let options = pass::Options { disable, ..Default::default() };
            let unit = pass::run(Unit::from_onnx(b.m.clone()), &options, &mut Hooks::new());
            let unit = unit.unwrap_or_else(|e| panic!("{e}"));
            let (p, h) = (unit.program.unwrap(), unit.hip.unwrap());
            let run = |x: i64| crate::host_interp::run(&p, &h, &[Tensor::from_i64_as(DType::I32, &[1], &[x])]);
            assert_eq!(run(5).unwrap_or_else(|e| panic!("{e}\n{p}")).0[0].to_i64_vec(), [1]);
            assert!(run(1).is_err_and(|e| e.to_string().contains("must not be negative")), "{p}");
        }
    }
}
