//! What callers get as outputs, and how memory for them is asked for.

use super::caches::{compiled, model, refused, scatter};
use super::kit::*;
use hip_ep::runtime::device::Space;
use hip_ep::tensor::{Diagnostic, ErrorKind};
use hip_ep::{DType, DeviceKind, OutputAllocator, OutputBuffer, OutputRequest, RunInputs, Tensor};

/// Memory that remembers what was asked of it, and refuses one output.
#[derive(Default)]
struct Asked {
    log: Vec<(usize, String, DType, Vec<usize>, usize)>,
    memory: Vec<Vec<u64>>,
    refuse: Option<usize>,
}

// SAFETY: each buffer is a `Vec` of its own, aligned to 8 bytes, that lives in `self` until after the run.
#[allow(unsafe_code)]
unsafe impl OutputAllocator for Asked {
    fn allocate(&mut self, r: &OutputRequest<'_>) -> hip_ep::Result<OutputBuffer> {
        self.log.push((r.index, r.name.into(), r.dtype, r.shape.to_vec(), r.bytes));
        if self.refuse == Some(r.index) {
            return Err(Diagnostic::new(ErrorKind::Limit, "the caller has no memory left"));
        }
        self.memory.push(vec![0; r.bytes.div_ceil(8)]);
        let ptr = self.memory.last_mut().map_or(std::ptr::null_mut(), |m| m.as_mut_ptr().cast());
        Ok(OutputBuffer { ptr, bytes: r.bytes, space: Space::Host })
    }
}

fn positives() -> G {
    graph()
        .input("x", DType::F32, &["n"])
        .node("Relu", &["x"], &["r"])
        .node("NonZero", &["r"], &["where"])
        .node("Neg", &["r"], &["n"])
        .output("where")
        .output("n")
}

#[test]
fn each_output_is_asked_for_once_with_its_exact_shape() {
    let m = check(
        &positives(),
        &[vec![random(1, &[50])], vec![random(2, &[0])], vec![Tensor::from_f32(&[2], &[-1., -2.])]],
    );
    for device in [DeviceKind::Cpu, DeviceKind::Guard] {
        let s = session(&m, device);
        let x = Tensor::from_f32(&[5], &[1.0, -1.0, 2.0, 0.0, 3.0]);
        let mut asked = Asked::default();
        s.run(&RunInputs::in_order(&[x]), &mut asked, &Default::default()).expect("the run succeeds");
        asked.log.sort();
        let want =
            [(0, "where".to_string(), DType::I64, vec![1, 3], 24), (1, "n".to_string(), DType::F32, vec![5], 20)];
        assert_eq!(asked.log, want, "{device:?}");
    }
}

#[test]
fn a_refused_allocation_names_the_output_and_the_session_goes_on() {
    let m = positives().compile();
    for device in [DeviceKind::Cpu, DeviceKind::Guard] {
        let s = session(&m, device);
        let x = [random(3, &[100])];
        let want = run(&s, &x);
        for refuse in [0, 1] {
            let mut asked = Asked { refuse: Some(refuse), ..Asked::default() };
            let e = s.run(&RunInputs::in_order(&x), &mut asked, &Default::default()).expect_err("memory is refused");
            let name = ["\"where\"", "\"n\""][refuse];
            let said = e.to_string();
            assert!(said.contains("the caller has no memory left") && said.contains(name), "{device:?}: {said}");
            assert_eq!(e.kind(), ErrorKind::Limit);
            assert_eq!(run(&s, &x), want, "after a refusal the session works");
        }
    }
}

#[test]
fn inputs_constants_and_shared_values_may_be_outputs() {
    let c = Tensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let pass = graph().input("x", DType::F32, &["n", "2"]).weight("c", &c).node("MatMul", &["x", "c"], &["y"]);
    // An input passed through, a constant, a value twice (once by another name), and a view of a value.
    let g = pass
        .node("Identity", &["y"], &["again"])
        .ints("minus1", &[-1])
        .node("Reshape", &["y", "minus1"], &["flat"])
        .output("x")
        .output("c")
        .output("y")
        .output("again")
        .output("y")
        .output("flat");
    check(
        &g,
        &[vec![random(1, &[3, 2])], vec![random(2, &[1, 2])], vec![random(3, &[0, 2])], vec![random(4, &[40, 2])]],
    );
    check(&graph().input("x", DType::I64, &["n"]).output("x"), &[vec![Tensor::from_i64(&[3], &[1, 2, 3])]]);
}

#[test]
fn outputs_may_have_no_elements() {
    let g = graph()
        .input("x", DType::F32, &["n", "4"])
        .ints("zero", &[0])
        .node("Slice", &["x", "zero", "zero"], &["none"])
        .node("Exp", &["x"], &["e"])
        .node_with("Concat", &["none", "e"], &["y"], vec![int("axis", 0)])
        .output("none")
        .output("e")
        .output("y");
    check(&g, &[vec![random(1, &[0, 4])], vec![random(1, &[3, 4])]]);
}

#[test]
fn branches_may_differ_in_shape() {
    let then = graph().node_with("Concat", &["x", "x"], &["t"], vec![int("axis", 0)]).output("t");
    let els = graph().node("Neg", &["x"], &["e"]).output("e");
    let g = graph()
        .input("c", DType::Bool, &[])
        .input("x", DType::F32, &["n", "3"])
        .node_with("If", &["c"], &["b"], vec![body("then_branch", then), body("else_branch", els)])
        .node("Exp", &["b"], &["y"])
        .output("y")
        .output("b");
    let mut cases = vec![];
    for n in [1, 5, 0, 300] {
        for c in [true, false] {
            cases.push(vec![Tensor::from_bool(&[], &[c]), random(n as u64, &[n, 3])]);
        }
    }
    check(&g, &cases);
}

/// Doubles its rows each time; also collects the sum of each iteration.
fn doubling() -> G {
    let inner = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("v", DType::F32, &["rows", "2"])
        .node("Identity", &["go"], &["go_on"])
        .node_with("Concat", &["v", "v"], &["v2"], vec![int("axis", 0)])
        .node("Mul", &["v2", "half"], &["next"])
        .node_with("ReduceSum", &["next"], &["sum"], vec![int("keepdims", 0)])
        .output("go_on")
        .output("next")
        .output("sum");
    graph()
        .input("trips", DType::I64, &[])
        .input("x", DType::F32, &["n", "2"])
        .weight("true", &Tensor::from_bool(&[], &[true]))
        .weight("half", &Tensor::from_f32(&[], &[0.75]))
        .node_with("Loop", &["trips", "true", "x"], &["last", "sums"], vec![body("body", inner)])
        .node("Exp", &["last"], &["y"])
        .output("y")
        .output("last")
        .output("sums")
}

#[test]
fn loops_may_change_shapes_and_may_not_run_at_all() {
    let mut cases = vec![];
    for (trips, n) in [(3, 2), (0, 4), (1, 1), (6, 5), (2, 0), (0, 0)] {
        cases.push(vec![Tensor::from_i64(&[], &[trips]), random(n as u64 + 1, &[n, 2])]);
    }
    check(&doubling(), &cases);
}

/// Memory given by address.
struct At(Vec<(usize, usize)>);

// SAFETY: the tests below give memory that they own and that nothing else reads meanwhile, or that the run refuses.
#[allow(unsafe_code)]
unsafe impl OutputAllocator for At {
    fn allocate(&mut self, r: &OutputRequest<'_>) -> hip_ep::Result<OutputBuffer> {
        let (start, bytes) = self.0[r.index];
        Ok(OutputBuffer { ptr: std::ptr::with_exposed_provenance_mut(start), bytes, space: Space::Host })
    }
}

#[test]
fn memory_that_meets_other_memory_is_refused() {
    let m = compiled(scatter("linear"), 24);
    for device in [DeviceKind::Cpu, DeviceKind::Guard] {
        let s = session(&m, device);
        let (past, new, at) = (random(3, &[1, 2, 4, 3]), random(4, &[1, 2, 4, 3]), Tensor::from_i64(&[1], &[1]));
        let start = |t: &Tensor| t.bytes().as_ptr().expose_provenance();
        let mut own = vec![0f32; 64];
        let free = own.as_mut_ptr().expose_provenance();
        let run = |outs: Vec<(usize, usize)>| {
            let mut r = RunInputs::new();
            r.tensor("past", &past).tensor("new", &new).tensor("at", &at);
            s.run(&r, &mut At(outs), &Default::default())
        };
        refused(
            run(vec![(start(&new), 96), (free, 24)]),
            &["\"present\" cannot be in the memory of input \"new\"", "past"],
        );
        refused(run(vec![(free, 96), (start(&past), 24)]), &["\"sum\" cannot be in the memory of input \"past\""]);
        refused(run(vec![(start(&past) - 12, 96), (free, 24)]), &["begins 12 bytes from that of input \"past\""]);
        refused(run(vec![(free, 96), (free + 92, 24)]), &["\"sum\" overlaps that of output \"present\""]);
        run(vec![(free, 96), (free + 96, 24)]).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn an_allocator_may_give_the_memory_of_the_past() {
    let m = compiled(scatter("linear"), 24);
    let s = session(&m, DeviceKind::Cpu);
    let mut memory = noise(5, 24);
    let start = memory.as_mut_ptr().expose_provenance();
    let mut sum = vec![0f32; 6];
    #[allow(unsafe_code)]
    // SAFETY: the bytes of `memory`, which lives on and is touched by nothing else until the run has ended.
    let bytes =
        bytes::Bytes::from_static(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), 96) });
    let past = Tensor::new(DType::F32, &[1, 2, 4, 3], bytes).expect("a tensor");
    let (new, at) = (random(6, &[1, 2, 1, 3]), Tensor::from_i64(&[1], &[2]));
    let copy = Tensor::from_f32(&[1, 2, 4, 3], &memory);
    let want = interpret(&model(scatter("linear"), 24), &[copy, new.clone(), at.clone()]);
    let mut r = RunInputs::new();
    r.tensor("past", &past).tensor("new", &new).tensor("at", &at);
    let mut outs = At(vec![(start, 96), (sum.as_mut_ptr().expose_provenance(), 24)]);
    let c = s.run(&r, &mut outs, &Default::default()).unwrap_or_else(|e| panic!("{e}")).counters;
    assert_eq!((c.shared_outputs, c.copied_bytes), (1, 0));
    assert_close(&[Tensor::from_f32(&[1, 2, 4, 3], &memory), Tensor::from_f32(&[1, 2, 3], &sum)], &want, "in place");
}
