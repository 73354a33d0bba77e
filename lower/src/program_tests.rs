//! Models through plan and host program: the program's interpreter gives what the HIP dialect's gives, at any shape, and the plan holds.
//! Every test of lowering comes through [`same`], too.

use crate::host::{Func, HostProgram, Stmt};
use crate::lower_tests::{Builder, check};
use crate::plan::Reserve;
use crate::{Plan, check_plan, hip_interp, host_interp, host_program, plan};
use ir::attrs::Attr;
use ir::hip::{Hip, HipOp};
use ir::{Module, Value};
use tensor::dims::Origin;
use tensor::{DType, ErrorKind, SymId, Tensor};

/// Extents of input axes at given inputs.
fn at_inputs(m: &Module<Hip>, ins: &[Tensor]) -> impl Fn(SymId) -> Option<i64> {
    let mut values = vec![];
    for (&v, t) in m.graph().inputs.iter().zip(ins) {
        for (&d, &n) in m.graph().values[v].ty.shape.iter().zip(t.shape()) {
            values.extend(m.dims.as_symbol(d).map(|s| (s, i64::try_from(n).unwrap())));
        }
    }
    move |s| values.iter().find(|(x, _)| *x == s).map(|(_, v)| *v)
}

/// Plans a module and writes its program; checks that the program computes what the module does, takes what the plan says, and that the
/// plan holds at these inputs and at other extents.
pub(crate) fn same(mut m: Module<Hip>, inputs: &[&[Tensor]]) -> (Module<Hip>, Plan, HostProgram) {
    let p = plan(&mut m).unwrap_or_else(|e| panic!("{e}"));
    let prog = host_program(&mut m, &p).unwrap_or_else(|e| panic!("{e}\n{}", p.display(&m)));
    for ins in inputs {
        let want = hip_interp::run(&m, ins).unwrap();
        let (got, trace) =
            host_interp::run(&prog, &m, ins).unwrap_or_else(|e| panic!("{e}\n{}\n{prog}", p.display(&m)));
        assert_eq!(got, want, "{}\n{prog}", p.display(&m));
        let from_inputs = at_inputs(&m, ins);
        if m.dims.symbols().all(|(s, _)| from_inputs(s).is_some()) {
            let uses = check_plan(&m, &p, &from_inputs).unwrap_or_else(|e| panic!("{e}\n{}", p.display(&m)));
            let peaks: Vec<i64> = uses.iter().map(|u| u.peak).collect();
            assert_eq!(peaks, trace.pools, "the run takes what the plan says");
            for (d, peak) in p.domains.iter().zip(peaks) {
                let text = p.peak_text(&m.dims, d);
                let read = crate::plan::eval_peak(&m.dims, &text, &from_inputs);
                assert_eq!(read.unwrap_or_else(|e| panic!("{e}: {text}")), peak, "{text}");
            }
        }
    }
    // Symbols of device results and regions get some values here; what matters is that no two live buffers meet.
    for k in [0, 1, 5, 13, 64] {
        let env = |s: SymId| {
            let f = m.dims.sym(s);
            let v = k + i64::try_from(tensor::Entity::index(s)).unwrap() % 3;
            let v = v.clamp(f.lo, f.hi.max(f.lo));
            Some((v / f.multiple_of * f.multiple_of).max(f.lo))
        };
        check_plan(&m, &p, &env)
            .unwrap_or_else(|e| panic!("{e}\n{}\n{prog}\n{}", p.display(&m), crate::lower_tests::dump(&m)));
    }
    (m, p, prog)
}

fn fill(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_f32(shape, &(0..n).map(|i| ((i * 37 + 11) % 23) as f32 / 4.0 - 2.0).collect::<Vec<_>>())
}

fn truth(b: bool) -> Tensor {
    Tensor::from_bool(&[], &[b])
}

/// Through lowering, with fusion; gives module, plan and program.
fn compile(b: Builder, inputs: &[&[Tensor]]) -> (Module<Hip>, Plan, HostProgram) {
    let (_, fused, _) = check(b, inputs);
    same(fused, inputs)
}

#[test]
fn elementwise_chains_of_symbolic_extents() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "m"]);
    let y = b.input(DType::F32, &["m"]);
    let a = b.op("Add", &[], &[x, y]);
    let e = b.op("Exp", &[], &[a]);
    let c = b.op("Softmax", &[], &[e]);
    let d = b.op("Mul", &[], &[c, x]);
    let s = b.op("ReduceSum", &[], &[d]);
    let r = b.op("Relu", &[], &[d]);
    [r, s].into_iter().for_each(|v| b.output(v));
    let shapes = [(2, 3), (0, 5), (7, 1), (5, 67)].map(|(n, m)| [fill(&[n, m]), fill(&[m])]);
    let shapes: Vec<&[Tensor]> = shapes.iter().map(|s| s.as_slice()).collect();
    let (m, _, prog) = compile(b, &shapes);
    // The extent that two inputs share is checked.
    assert_eq!(prog.guards, ["input \"in1\" axis 0: the extent must equal m"]);
    let e = host_interp::run(&prog, &m, &[fill(&[2, 3]), fill(&[4])]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Guard);
    assert!(e.message().starts_with("input \"in1\" axis 0"), "{e}");
}

#[test]
fn views_transposes_and_repeated_outputs() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "4"]);
    let t = b.op("Transpose", &[("perm", Attr::Ints([1, 0].as_slice().into()))], &[x]);
    let s = b.op("Tanh", &[], &[t]);
    let k = b.ints(&[2, -1]);
    let r = b.op("Reshape", &[], &[s, k]);
    let z = b.op("Neg", &[], &[r]);
    [x, t, z, z].into_iter().for_each(|v| b.output(v));
    let (_, _, prog) = compile(b, &[&[fill(&[3, 4])], &[fill(&[0, 4])], &[fill(&[11, 4])]]);
    assert_eq!(prog.outputs.len(), 4);
    assert_eq!(prog.outputs[1].dims, ["4", "n"]);
}

#[test]
fn equal_nests_become_one_kernel() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "m"]);
    let y = b.input(DType::F32, &["k", "n"]);
    for v in [x, y] {
        let s = b.op("Softmax", &[], &[v]);
        b.output(s);
    }
    let (_, _, prog) = compile(b, &[&[fill(&[2, 3]), fill(&[5, 2])]]);
    assert_eq!(prog.kernels.len(), 1, "{prog}");
    assert_eq!(prog.n_calls()[0], 2);
    assert!(prog.kernels[0].name.starts_with("k0_max_sum"), "{}", prog.kernels[0].name);
}

#[test]
fn long_programs_are_cut_into_functions() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let mut v = x;
    for _ in 0..130 {
        let e = b.op("Softmax", &[], &[v]);
        v = b.op("Add", &[], &[e, x]);
    }
    b.output(v);
    let (_, _, prog) = compile(b, &[&[fill(&[3])]]);
    let calls = |f: &Func| f.body.iter().filter(|s| !matches!(s, Stmt::Const(..) | Stmt::Int(..))).count();
    assert!(prog.funcs.iter().all(|f| calls(f) <= 50));
    assert!(prog.funcs.len() > 2, "{prog}");
    assert_eq!(prog.funcs[0].name, "run");
}

#[test]
fn device_results_have_pools_of_their_own() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let w = b.input(DType::F32, &["n"]);
    let a = b.op("Relu", &[], &[x]);
    let nz = b.op("NonZero", &[], &[a]);
    let axes = b.ints(&[0]);
    let i = b.op("Squeeze", &[], &[nz, axes]);
    let picked = b.op("Gather", &[], &[w, i]);
    let e = b.op("Softmax", &[], &[picked]);
    let f = b.op("Mul", &[], &[e, picked]);
    let g = b.op("Softmax", &[], &[f]);
    b.output(g);
    let ins = [4, 0, 9].map(|n| [fill(&[n]), fill(&[n])]);
    let ins: Vec<&[Tensor]> = ins.iter().map(|s| s.as_slice()).collect();
    let (m, p, prog) = compile(b, &ins);
    let device = p.domains.iter().filter(|d| d.space == ir::hip::Space::Device);
    let at: Vec<Reserve> = device.map(|d| d.reserve).collect();
    assert_eq!(at.len(), 2, "{}", p.display(&m));
    assert!(matches!(at[1], Reserve::At(p) if p.region == m.main && p.pos > 0));
    assert_eq!(prog.n_calls()[4], 1, "one readback");
}

#[test]
fn branches_merge_results_of_known_and_unknown_size() {
    for grows in [false, true] {
        let mut b = Builder::new();
        let c = b.input(DType::Bool, &[]);
        let x = b.input(DType::F32, &["n"]);
        let y = b.op("Exp", &[], &[x]);
        let then = b.region(|b| {
            let p = b.input(DType::F32, &["n"]);
            let s = b.op("Softmax", &[], &[p]);
            let t = b.op("Softmax", &[], &[s]);
            b.output(t);
        });
        let els = b.region(|b| {
            let p = b.input(DType::F32, &["n"]);
            let s = b.op("Softmax", &[], &[p]);
            let both = if grows { b.op("Concat", &[("axis", Attr::Int(0))], &[s, p]) } else { b.op("Neg", &[], &[s]) };
            b.output(both);
        });
        let r = b.control("If", &[Some(c)], &[y], &[then, els], 1)[0];
        let z = b.op("Mul", &[], &[r, r]);
        let z2 = b.op("Softmax", &[], &[z]);
        b.output(z2);
        b.output(y);
        let ins = [(true, 3), (false, 3), (false, 0), (true, 17)].map(|(c, n)| [truth(c), fill(&[n])]);
        let ins: Vec<&[Tensor]> = ins.iter().map(|s| s.as_slice()).collect();
        let (m, p, _) = compile(b, &ins);
        let own = p.domains.iter().any(|d| matches!(d.reserve, Reserve::Results(..)));
        assert_eq!(own, grows, "{}", p.display(&m));
    }
}

/// A body: parameters are iteration, condition, carried values and captures; outputs are condition and next values.
fn body(
    b: &mut Builder,
    caps: &[&str],
    f: impl FnOnce(&mut Builder, Value, Value, &[Value]) -> (Value, Value),
) -> ir::RegionId {
    b.region(|b| {
        let i = b.input(DType::I64, &[]);
        let c = b.input(DType::Bool, &[]);
        let s = b.dim("state", Origin::Region);
        let ty = ir::Type::tensor(DType::F32, [s]);
        let v = b.m.graphs[b.at].add_input(ty, "v");
        let caps: Vec<Value> = caps.iter().map(|d| b.input(DType::F32, &[d])).collect();
        let (go, next) = f(b, i, v, &caps);
        b.output(if go == i { c } else { go });
        b.output(next);
    })
}

#[test]
fn loops_carry_values_of_growing_size() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let trips = b.input(DType::I64, &[]);
    let start = b.op("Exp", &[], &[x]);
    let each = b.op("Neg", &[], &[x]);
    let r = body(&mut b, &["n"], |b, i, v, caps| {
        let s = b.op("Softmax", &[], &[v]);
        (i, b.op("Concat", &[("axis", Attr::Int(0))], &[s, caps[0]]))
    });
    let go = b.konst(&truth(true));
    let out = b.control("Loop", &[Some(trips), Some(go), Some(start)], &[each], &[r], 1)[0];
    let z = b.op("Softmax", &[], &[out]);
    b.output(z);
    b.output(each);
    let ins = [(3, 2), (1, 4), (4, 0), (0, 3)].map(|(n, t)| [fill(&[n]), Tensor::from_i64(&[], &[t])]);
    let ins: Vec<&[Tensor]> = ins.iter().map(|s| s.as_slice()).collect();
    let (m, p, prog) = compile(b, &ins);
    assert!(p.domains.iter().any(|d| matches!(d.reserve, Reserve::Results(..))), "{}", p.display(&m));
    assert!(prog.funcs.iter().any(|f| f.name.starts_with("loop_")));
}

#[test]
fn loops_run_until_their_condition_fails() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["1"]);
    let r = b.region(|b| {
        b.input(DType::I64, &[]);
        b.input(DType::Bool, &[]);
        let v = b.input(DType::F32, &["1"]);
        let two = b.konst(&Tensor::from_f32(&[1], &[2.0]));
        let most = b.konst(&Tensor::from_f32(&[1], &[50.0]));
        let next = b.op("Mul", &[], &[v, two]);
        let go = b.op("Less", &[], &[next, most]);
        let shape = b.konst(&Tensor::from_i64(&[0], &[]));
        let go = b.op("Reshape", &[], &[go, shape]);
        b.output(go);
        b.output(next);
    });
    let go = b.konst(&truth(true));
    let out = b.control("Loop", &[None, Some(go), Some(x)], &[], &[r], 1)[0];
    let z = b.op("Neg", &[], &[out]);
    b.output(z);
    let one = |v: f32| [Tensor::from_f32(&[1], &[v])];
    compile(b, &[&one(3.0), &one(60.0)]);
}

/// A chain with several live buffers, for sabotage.
fn chain() -> (Module<Hip>, Plan) {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "m"]);
    let mut keep = vec![];
    let mut v = x;
    for _ in 0..5 {
        v = b.op("Softmax", &[], &[v]);
        keep.push(v);
    }
    let mut sum = b.op("Add", &[], &[keep[0], keep[4]]);
    for k in [1, 3, 2] {
        let s = b.op("Softmax", &[], &[sum]);
        sum = b.op("Add", &[], &[s, keep[k]]);
    }
    b.output(sum);
    let (_, fused, _) = check(b, &[&[fill(&[3, 100])]]);
    let (m, p, _) = same(fused, &[]);
    (m, p)
}

#[test]
fn the_checker_notices_a_shortened_life() {
    let (m, p) = chain();
    let env = |_: SymId| Some(100);
    let good = check_plan(&m, &p, &env).unwrap();
    assert!(good[0].peak as f64 <= 1.15 * good[0].live as f64);
    for i in 0..p.buffers.len() {
        let mut bad = p.clone();
        bad.buffers[i].span.1 -= 1;
        assert!(check_plan(&m, &bad, &env).is_err(), "buffer {i} ends early unnoticed");
    }
}

#[test]
fn the_checker_notices_shared_bytes() {
    let (m, p) = chain();
    let env = |_: SymId| Some(100);
    let d = p.buffers[0].domain;
    for i in 0..p.buffers.len() {
        for j in 0..p.buffers.len() {
            let (a, b) = (&p.buffers[i], &p.buffers[j]);
            // Two that live at once, given one place.
            if a.interval == b.interval || a.span.1 < b.span.0 || b.span.1 < a.span.0 {
                continue;
            }
            let mut bad = p.clone();
            for l in &mut bad.domains[d].packing.layouts {
                l.offsets[a.interval] = l.offsets[b.interval];
            }
            assert!(check_plan(&m, &bad, &env).is_err(), "{i} over {j} goes unnoticed\n{}", bad.display(&m));
        }
    }
}

#[test]
fn a_nest_that_sees_its_buffers_flat_runs_in_place() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n", "6"]);
    let s = b.op("Softmax", &[], &[x]);
    let r = b.op("ReduceMax", &[], &[s]);
    let t = b.op("Mul", &[], &[s, r]);
    let u = b.op("ReduceSum", &[], &[t]);
    let v = b.op("Div", &[], &[t, u]);
    b.output(v);
    let ins = [fill(&[5, 6])];
    let (plain, fused, _) = check(b, &[&ins]);
    let mut n = 0;
    for h in [plain, fused] {
        let (_, p, _) = same(h, &[&ins]);
        n += p.buffers.iter().filter(|b| b.in_place_of.is_some()).count();
    }
    assert!(n > 0);
}

#[test]
fn long_peaks_read_back() {
    let mut dims = tensor::DimPool::new();
    // Names that ours must not be taken for.
    for name in ["t1", "u", "a; b = \"c"] {
        dims.symbol(name, Origin::Unknown);
    }
    let mut iv = vec![];
    for i in 0..200u32 {
        let d = dims.symbol(&format!("x{i}"), Origin::Unknown);
        let odd = dims.find_symbol("a; b = \"c").unwrap();
        let odd = dims.sym_dim(odd);
        let d = dims.add(d, odd);
        let k = dims.constant(256);
        iv.push(crate::plan::Interval { start: i, end: i + i % 5, size: dims.mul(d, k) });
    }
    let mut p = Plan::default();
    let packing = crate::plan::pack(&mut dims, &mut p.offsets, &iv).unwrap();
    p.domains.push(crate::plan::PoolDomain {
        space: ir::hip::Space::Device,
        reserve: Reserve::At(crate::plan::Point { region: tensor::Entity::new(0), pos: 0 }),
        intervals: iv,
        packing,
    });
    let env = |s: SymId| Some(1 + i64::try_from(tensor::Entity::index(s)).unwrap() * 7919 % 113);
    let text = p.peak_text(&dims, &p.domains[0]);
    assert!(text.contains("; ") && text.len() < 100_000, "{} bytes", text.len());
    assert_eq!(crate::plan::eval_peak(&dims, &text, &env).unwrap(), p.peaks_at(&dims, &env)[0].unwrap());
}

#[test]
fn a_kernel_that_the_catalog_lacks_is_named() {
    let mut b = Builder::new();
    let x = b.input(DType::F32, &["n"]);
    let y = b.op("Relu", &[], &[x]);
    b.output(y);
    let (mut m, ..) = check(b, &[]);
    let p = plan(&mut m).unwrap();
    let g = m.graph_mut();
    for n in g.order.clone() {
        if matches!(g.nodes[n].op, HipOp::Launch(_)) {
            let call = ir::hip::Call { kernel: "nothing.f32", n_reads: 1, ints: vec![], scalars: vec![] };
            g.nodes[n].op = HipOp::Call(std::sync::Arc::new(call));
        }
    }
    let e = host_program(&mut m, &p).unwrap_err();
    assert_eq!((e.kind(), e.node_path()), (ErrorKind::Internal, Some("/Relu_0")));
    assert!(e.message().contains("nothing.f32"), "{e}");
}
