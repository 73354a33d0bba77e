//! Runs of fake models on all devices.

use crate::call;
use crate::conformance::devices;
use crate::fake::*;
use artifact::constants::ConstantsWriter;
use artifact::{Domain, Kernel, Metadata};
use kernels::team::Team;
use runtime::abi::{RunCtx, Status, abi_hash};
use runtime::catalog::Kernels;
use runtime::device::{Space, cpu::Cpu, guard::Guard};
use runtime::host_ops::HostCall;
use runtime::*;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor, View};

/// `y[i] = x[i] + k`, over f32; `k` an integer argument.
unsafe extern "C" fn add(_: *mut c_void, args: *const u64, begin: i64, end: i64) -> Status {
    // SAFETY: two addresses and an integer, as the programs below give.
    unsafe {
        let (x, y, k) = (*args as *const f32, *args.add(1) as *mut f32, *args.add(2) as i64);
        (begin as usize..end as usize).for_each(|i| y.add(i).write(x.add(i).read() + k as f32));
    }
    0
}

/// `z[i] = x[i] + y[i]`.
unsafe extern "C" fn add2(_: *mut c_void, args: *const u64, begin: i64, end: i64) -> Status {
    // SAFETY: three addresses.
    unsafe {
        let (x, y, z) = (*args as *const f32, *args.add(1) as *const f32, *args.add(2) as *mut f32);
        (begin as usize..end as usize).for_each(|i| z.add(i).write(x.add(i).read() + y.add(i).read()));
    }
    0
}

/// `y = (x + 1) + 2` through a pool buffer; `n` at most 100.
unsafe extern "C" fn chain(ctx: *mut RunCtx, frame: *mut u64) -> Status {
    // SAFETY: the frame has four words of this run, zeroed.
    unsafe {
        if (0..4).any(|i| *frame.add(i) != 0) {
            return 99;
        }
        *frame = 1;
    }
    let n = call!(get input_dim(ctx, 0, 0));
    if n > 100 {
        // SAFETY: the context is this run's.
        return unsafe { (table().guard_failed)(ctx, 0, 0, n, 100) };
    }
    let x = call!(get input_ptr(ctx, 0));
    let pool = call!(get reserve(ctx, 0, n * 4));
    let y = call!(get output(ctx, 0, 1, &n));
    call!(launch(ctx, 0, Some(add), [x as u64, pool as u64, 1].as_ptr(), 2, 1, n, 2, 0));
    call!(launch(ctx, 0, Some(add), [pool as u64, y as u64, 2].as_ptr(), 2, 1, n, 2, 1));
    0
}

fn chain_meta() -> Metadata {
    metadata(vec![port("x", DType::F32, &["n"])], vec![port("y", DType::F32, &["n"])])
}

fn f32s(n: usize) -> Tensor {
    Tensor::from_f32(&[n], &(0..n).map(|i| i as f32).collect::<Vec<_>>())
}

fn session(m: &Arc<Model>, d: &Arc<dyn Device>) -> Session {
    Session::new(m.clone(), d.clone(), SessionOptions { threads: Some(2), ..Default::default() }).unwrap()
}

fn run(s: &Session, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    s.collect(&RunInputs::in_order(inputs), &RunOptions::default()).map(|(t, _)| t)
}

#[test]
fn a_chain_runs_on_every_device_at_any_size() {
    let m = model(chain_meta(), chain);
    for d in devices() {
        let s = session(&m, &d);
        let mut grown = 0;
        for n in [1, 10, 0, 10, 100, 3] {
            let x = f32s(n);
            let (y, report) =
                s.collect(&RunInputs::in_order(std::slice::from_ref(&x)), &RunOptions::default()).unwrap();
            let want: Vec<f64> =
                if d.properties().executes { x.to_f64_vec().iter().map(|v| v + 3.0).collect() } else { vec![0.0; n] };
            assert_eq!(y[0].to_f64_vec(), want, "{} at {n}", d.properties().name);
            assert_eq!((report.counters.launches, report.counters.outputs, report.profile.is_none()), (2, 1, true));
            grown += report.counters.pool_growths;
        }
        if !d.properties().checks {
            assert_eq!((grown, s.pool_bytes()), (3, 400), "pools grow with 1, 10 and 100 only");
        }
        s.trim().unwrap();
        assert_eq!((s.pool_bytes(), d.memory().live), (0, 0));
    }
}

fn check_error(s: &Session, inputs: &RunInputs<'_>, kind: ErrorKind, want: &str) {
    let e = s.collect(inputs, &RunOptions::default()).expect_err(want);
    // Every error has a help line; here it is what comes before that counts.
    let said = e.to_string();
    assert_eq!((e.kind(), said.split_once("\n  help").map(|(said, _)| said)), (kind, Some(want)));
}

#[test]
fn wrong_inputs_are_told_apart() {
    let mut meta = chain_meta();
    meta.inputs.push(port("mask", DType::I64, &["n", "4"]));
    let s = session(&model(meta, chain), &(Arc::new(Cpu::new()) as Arc<dyn Device>));
    let (x, mask, odd) = (f32s(3), Tensor::from_i64(&[3, 4], &[0; 12]), Tensor::from_i64(&[3, 5], &[0; 15]));
    let with = |list: &[(&'static str, View<'_>)], kind, want: &str| {
        let mut inputs = RunInputs::new();
        list.iter().for_each(|(n, v)| _ = inputs.view(n, v.clone()));
        check_error(&s, &inputs, kind, want);
    };
    let (x, mask, odd) = (x.view(), mask.view(), odd.view());
    with(&[], ErrorKind::Argument, "missing input \"x\" f32[n], \"mask\" i64[n, 4]");
    with(
        &[("x", x.clone()), ("z", x.clone())],
        ErrorKind::Argument,
        "the model has no input \"z\"\n  inputs  \"x\" f32[n], \"mask\" i64[n, 4]",
    );
    with(&[("x", x.clone()), ("x", x.clone())], ErrorKind::Argument, "input \"x\" is given twice");
    with(
        &[("x", x.clone()), ("mask", x.clone())],
        ErrorKind::Type,
        "input \"mask\" is f32 but i64 is needed\n  expected  i64[n, 4]\n  got       f32[3]",
    );
    with(
        &[
            ("x", x.clone()),
            ("mask", View { shape: [12].as_slice().into(), strides: [1].as_slice().into(), ..mask.clone() }),
        ],
        ErrorKind::Shape,
        "input \"mask\" has 1 axes but 2 are needed\n  expected  i64[n, 4]\n  got       i64[12]",
    );
    with(
        &[("x", x.clone()), ("mask", odd)],
        ErrorKind::Shape,
        "input \"mask\" has extent 5 at axis 1 but 4 is needed\n  expected  i64[n, 4]\n  got       i64[3, 5]",
    );
    let outside = View { offset: 1, ..x.clone() };
    with(
        &[("x", outside), ("mask", mask)],
        ErrorKind::Argument,
        "a view f32[3] with strides [1] reaches outside its 12 bytes\n  input  \"x\"",
    );
}

#[test]
fn strided_inputs_are_copied() {
    let m = model(chain_meta(), chain);
    for d in devices().into_iter().filter(|d| d.properties().executes) {
        let s = session(&m, &d);
        let x = f32s(6);
        let mut inputs = RunInputs::new();
        inputs.view("x", View { shape: [3].as_slice().into(), strides: [-2].as_slice().into(), offset: 5, ..x.view() });
        let (y, report) = s.collect(&inputs, &RunOptions::default()).unwrap();
        assert_eq!(y[0].to_f64_vec(), [8.0, 6.0, 4.0]);
        assert_eq!(report.counters.input_copies, 1);
    }
}

#[test]
fn guards_and_cancellation_name_what_happened() {
    let s = session(&model(chain_meta(), chain), &(Arc::new(Cpu::new()) as Arc<dyn Device>));
    let e = run(&s, &[f32s(101)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Guard);
    assert_eq!(e.node_path(), Some("/first"));
    assert_eq!(e.message(), "input \"x\" axis 0: n must be at most 100 (it is 101, against 100)");
    let flag = AtomicBool::new(true);
    let options = RunOptions { cancel: Some(&flag), ..Default::default() };
    let x = [f32s(2)];
    assert_eq!(s.collect(&RunInputs::in_order(&x), &options).unwrap_err().kind(), ErrorKind::Cancelled);
    flag.store(false, Relaxed);
    s.collect(&RunInputs::in_order(&x), &options).unwrap();
}

/// What an allocator may do wrong.
struct Odd(fn(&OutputRequest<'_>) -> Result<OutputBuffer>);

// SAFETY: the buffers the tests give are refused before they are written to.
unsafe impl OutputAllocator for Odd {
    fn allocate(&mut self, r: &OutputRequest<'_>) -> Result<OutputBuffer> {
        assert_eq!((r.index, r.name, r.dtype, r.shape, r.bytes), (0, "y", DType::F32, &[5usize][..], 20));
        (self.0)(r)
    }
}

#[test]
fn refused_and_wrong_output_memory_is_an_error() {
    let m = model(chain_meta(), chain);
    for d in devices() {
        let s = session(&m, &d);
        let check = |f: fn(&OutputRequest<'_>) -> Result<OutputBuffer>, kind, words: &str| {
            let x = [f32s(5)];
            let e = s.run(&RunInputs::in_order(&x), &mut Odd(f), &RunOptions::default()).unwrap_err();
            assert!(e.kind() == kind && e.to_string().contains(words), "{e:?}");
            assert!(e.to_string().contains("\"y\" f32[n]") || kind == ErrorKind::Internal, "{e}");
        };
        check(
            |_| Err(Diagnostic::new(ErrorKind::Limit, "the caller has no memory")),
            ErrorKind::Limit,
            "the caller has no memory",
        );
        check(
            |_| Ok(OutputBuffer { ptr: std::ptr::null_mut(), bytes: 20, space: Space::Host }),
            ErrorKind::Argument,
            "is null",
        );
        check(
            |_| Ok(OutputBuffer { ptr: std::ptr::null_mut(), bytes: 19, space: Space::Host }),
            ErrorKind::Argument,
            "19 bytes instead of 20",
        );
        check(
            |_| Ok(OutputBuffer { ptr: std::ptr::without_provenance_mut(4098), bytes: 20, space: Space::Host }),
            ErrorKind::Argument,
            "not aligned for f32",
        );
        check(|_| std::panic::resume_unwind(Box::new("allocator")), ErrorKind::Internal, "panicked: allocator");
        if d.properties().executes {
            assert_eq!(
                run(&s, &[f32s(5)]).unwrap()[0].to_f64_vec(),
                [3.0, 4.0, 5.0, 6.0, 7.0],
                "usable after failures"
            );
        }
    }
}

/// Outputs: a value twice and the input itself.
unsafe extern "C" fn passes(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    for i in 0..3u32 {
        let y = call!(get output(ctx, i, 1, &n));
        if i == 2 {
            call!(copy(ctx, y, 0, x, 0, n * 4, 1));
        } else {
            call!(launch(ctx, 0, Some(add), [x as u64, y as u64, 5].as_ptr(), 2, 1, n, 2, 0));
        }
    }
    0
}

#[test]
fn an_input_and_a_value_twice_may_be_outputs() {
    let outputs = ["a", "b", "x"].map(|n| port(n, DType::F32, &["n"])).to_vec();
    let m = model(metadata(vec![port("x", DType::F32, &["n"])], outputs), passes);
    for d in devices().into_iter().filter(|d| d.properties().executes) {
        let y = run(&session(&m, &d), &[f32s(3)]).unwrap();
        assert_eq!(y[0], y[1]);
        assert_eq!((y[0].to_f64_vec(), y[2].to_f64_vec()), (vec![5.0, 6.0, 7.0], vec![0.0, 1.0, 2.0]));
    }
}

/// Two domains: counts positive elements (a device result), then gives as many, from a pool sized by the count.
unsafe extern "C" fn data_dependent(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let count = call!(get reserve(ctx, 0, 8));
    call!(kernel(ctx, 0, [x as u64, count as u64, n as u64, 1.5f64.to_bits()].as_ptr(), 2, 1, 1, 1));
    let k = call!(get readback(ctx, count, 0, 7, 0, 1));
    let pool = call!(get reserve(ctx, 1, k * 4));
    let shape = call!(get reserve(ctx, 2, 16));
    call!(store_ints(ctx, shape, 7, 2, [k, 7].as_ptr()));
    let back = call!(get readback(ctx, shape, 2, 7, 1, 0));
    let y = call!(get output(ctx, 0, 1, &k));
    call!(launch(ctx, 0, Some(add), [x as u64, pool as u64, back as u64].as_ptr(), 2, 1, k, 2, 0));
    call!(launch(ctx, 0, Some(add), [pool as u64, y as u64, 0].as_ptr(), 2, 1, k, 2, 0));
    0
}

struct CountAbove;

impl Kernels for CountAbove {
    fn name(&self, id: u32) -> Option<&'static str> {
        (id == 0).then_some("count_above")
    }
    unsafe fn run(&self, _: u32, team: &dyn Team, bufs: &[u64], ints: &[i64], scalars: &[f64]) -> Result<()> {
        if ints[0] == 13 {
            return Err(Diagnostic::new(ErrorKind::Unsupported, "13 elements are unlucky"));
        }
        let count = AtomicUsize::new(0);
        team.run(ints[0] as usize, 1, &|b, e| {
            // SAFETY: `ints[0]` f32 values.
            let x = unsafe { std::slice::from_raw_parts(bufs[0] as *const f32, ints[0] as usize) };
            count.fetch_add(x[b..e].iter().filter(|&&v| f64::from(v) > scalars[0]).count(), Relaxed);
        });
        // SAFETY: an i64.
        unsafe { (bufs[1] as *mut i64).write(count.into_inner() as i64) };
        Ok(())
    }
}

fn services() -> Services {
    let mut s = Services::default();
    s.kernels = Arc::new(CountAbove);
    s
}

#[test]
fn extents_come_from_the_device() {
    let mut meta = metadata(vec![port("x", DType::F32, &["n"])], vec![port("y", DType::F32, &["k"])]);
    meta.domains.extend([Domain { space: 0, peak: "4*k".into() }, Domain { space: 2, peak: "16".into() }]);
    meta.kernels = vec![Kernel { name: "count_above".into(), kind: "catalog".into(), id: Some(0), gpu: None }];
    let m = model_with(meta.clone(), data_dependent, services(), &ConstantsFrom::default());
    for d in devices() {
        let s = session(&m, &d);
        for n in [4, 2, 0, 9] {
            let y = run(&s, &[f32s(n)]).unwrap();
            if d.properties().executes {
                let want: Vec<f64> = (0..n.saturating_sub(2)).map(|i| i as f64 + 7.0).collect();
                assert_eq!(y[0].to_f64_vec(), want, "{} at {n}", d.properties().name);
            }
        }
        if d.properties().executes {
            let e = run(&s, &[f32s(13)]).unwrap_err();
            assert_eq!(
                (e.kind(), e.node_path(), e.message()),
                (ErrorKind::Unsupported, Some("/second"), "13 elements are unlucky")
            );
        }
    }
    meta.kernels[0].name = "other".into();
    let made = Model::with(
        artifact(&meta),
        code(data_dependent),
        &ConstantStore::new(),
        &ConstantsFrom::default(),
        services(),
    );
    assert!(made.unwrap_err().to_string().contains("calls kernel 0 \"other\""));
}

#[test]
fn eight_threads_share_a_session() {
    let m = model(chain_meta(), chain);
    for d in devices().into_iter().filter(|d| d.properties().executes) {
        let s = Session::new(m.clone(), d.clone(), SessionOptions { threads: Some(3), ..Default::default() }).unwrap();
        let runs = if d.properties().checks { 20 } else { 200 };
        std::thread::scope(|scope| {
            for t in 0..8usize {
                let s = &s;
                scope.spawn(move || {
                    for i in 0..runs {
                        let n = (t * 13 + i * 7) % 101;
                        let y = run(s, &[f32s(n)]).unwrap();
                        let good = y[0].to_f64_vec().iter().enumerate().all(|(i, &v)| v == i as f64 + 3.0);
                        assert!(good && y[0].shape() == [n], "thread {t} run {i}");
                    }
                });
            }
        });
        s.trim().unwrap();
        assert_eq!(d.memory().live, 0);
    }
}

/// `y = x + c0 + c1`.
unsafe extern "C" fn with_constants(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let (a, b) = (call!(get const_ptr(ctx, 0)), call!(get const_ptr(ctx, 1)));
    let y = call!(get output(ctx, 0, 1, &n));
    call!(launch(ctx, 0, Some(add2), [x as u64, a as u64, y as u64].as_ptr(), 3, 0, n, 2, 0));
    call!(launch(ctx, 0, Some(add2), [y as u64, b as u64, y as u64].as_ptr(), 3, 0, n, 2, 0));
    0
}

#[test]
fn constants_are_shared_and_found_in_files() {
    let dir = std::env::temp_dir().join(format!("hip-ep-runtime-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut w = ConstantsWriter::new(Vec::new()).unwrap();
    let mut meta = metadata(vec![port("x", DType::F32, &["3"])], vec![port("y", DType::F32, &["3"])]);
    // External data at an odd offset; a splat beside it in the second model.
    let raw: Vec<u8> = std::iter::once(0).chain([10f32, 20.0, 30.0].iter().flat_map(|v| v.to_le_bytes())).collect();
    std::fs::write(dir.join("w.bin"), &raw).unwrap();
    let c = w.plain("c", DType::F32, &[3], f32s(3).bytes()).unwrap();
    let (file, bytes) = w.finish().unwrap();
    meta.constants = vec![c, artifact::constants::external("w", DType::F32, &[3], "w.bin", 1).unwrap()];
    meta.constants_file = Some(file);
    let mut second = meta.clone();
    second.constants[1] = artifact::constants::splat("s", DType::F32, &[3], &100f32.to_le_bytes()).unwrap();
    let store = ConstantStore::new();
    for (name, m) in [("one", &meta), ("two", &second)] {
        artifact::Builder::new(m.clone()).write(dir.join(format!("{name}.hipep"))).unwrap();
        std::fs::write(dir.join(format!("{name}.constants")), &bytes).unwrap();
    }
    let open = |name: &str| {
        let a = Arc::new(artifact::Artifact::open(dir.join(format!("{name}.hipep"))).unwrap());
        Model::new(a, code(with_constants), &store, &ConstantsFrom::default())
    };
    let (one, two) = (open("one").unwrap(), open("two").unwrap());
    assert_eq!(store.len(), 3, "the equal constant is held once");
    let (a, b) = (one.constants().host(0).unwrap(), two.constants().host(0).unwrap());
    assert_eq!(a.as_ptr(), b.as_ptr());
    for d in devices().into_iter().filter(|d| d.properties().executes) {
        for _ in 0..2 {
            assert_eq!(run(&session(&one, &d), &[f32s(3)]).unwrap()[0].to_f64_vec(), [10.0, 22.0, 34.0]);
            assert_eq!(run(&session(&two, &d), &[f32s(3)]).unwrap()[0].to_f64_vec(), [100.0, 102.0, 104.0]);
        }
        if d.properties().checks {
            assert_eq!(d.memory().live, 36, "each constant is uploaded once");
        }
    }
    // The same from memory, by part.
    let mut from = ConstantsFrom::default();
    from.parts = [(0, f32s(3).bytes().clone()), (1, f32s(3).bytes().clone())].into();
    let m = model_with(meta.clone(), with_constants, Services::default(), &from);
    let cpu: Arc<dyn Device> = Arc::new(Cpu::new());
    assert_eq!(run(&session(&m, &cpu), &[f32s(3)]).unwrap()[0].to_f64_vec(), [0.0, 3.0, 6.0]);
    // The file of a model with other weights of the same sizes is refused, from a path and from memory.
    let mut w = ConstantsWriter::new(Vec::new()).unwrap();
    w.plain("c", DType::F32, &[3], &[7; 12]).unwrap();
    let stale = w.finish().unwrap().1;
    assert_eq!(stale.len(), bytes.len());
    std::fs::write(dir.join("two.constants"), &stale).unwrap();
    let e = open("two").unwrap_err();
    assert!(e.kind() == ErrorKind::Malformed && e.to_string().contains("belongs to another model"), "{e}");
    let mut from = ConstantsFrom::default();
    from.bytes = Some(stale.into());
    let a = artifact::Artifact::open(dir.join("two.hipep")).unwrap();
    assert_eq!(store.load(&a, &from).unwrap_err().kind(), ErrorKind::Malformed);
    from.bytes = Some(bytes.into());
    store.load(&a, &from).unwrap();
    // What is missing or too short is named.
    std::fs::write(dir.join("w.bin"), &raw[..5]).unwrap();
    let e = open("one").unwrap_err().to_string();
    assert!(e.contains("bytes 1..+12") && e.contains("1 \"w\""), "{e}");
    std::fs::remove_file(dir.join("w.bin")).unwrap();
    assert_eq!(open("one").unwrap_err().kind(), ErrorKind::Io);
    std::fs::remove_file(dir.join("two.constants")).unwrap();
    assert_eq!(open("two").unwrap_err().kind(), ErrorKind::Io);
    std::fs::remove_dir_all(&dir).unwrap();
}

fn doubled(call: &HostCall, x: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
    let x = x[0].as_ref().unwrap();
    let k = call.int("k").unwrap() as f64;
    Ok(vec![Tensor::from_f64_as(x.dtype(), x.shape(), &x.to_f64_vec().iter().map(|v| v * k).collect::<Vec<_>>())])
}

unsafe extern "C" fn host_op(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let y = call!(get output(ctx, 0, 1, &n));
    let desc = |p: i64| runtime::abi::TensorDesc {
        data: std::ptr::with_exposed_provenance_mut(p as usize),
        dims: &n,
        strides: std::ptr::null(),
        bytes: n as u64 * 4,
        rank: 1,
        dtype: 1,
        space: 0,
        flags: 0,
        device: 0,
        reserved: 0,
    };
    let absent = runtime::abi::TensorDesc { data: std::ptr::null_mut(), rank: u32::MAX, ..desc(x) };
    call!(host_op(ctx, 0, [desc(x), absent, desc(y)].as_ptr(), 3, 2, 1));
    0
}

#[test]
fn host_ops_run_and_unknown_ones_are_refused() {
    let mut meta = chain_meta();
    meta.host_ops = vec!["Times-1 {k = 3}".into()];
    let mut with = Services::default();
    with.host_ops = &[("Times", doubled)];
    let m = model_with(meta.clone(), host_op, with, &ConstantsFrom::default());
    for d in devices().into_iter().filter(|d| d.properties().executes) {
        assert_eq!(run(&session(&m, &d), &[f32s(3)]).unwrap()[0].to_f64_vec(), [0.0, 3.0, 6.0]);
    }
    let e = Model::new(artifact(&meta), code(host_op), &ConstantStore::new(), &ConstantsFrom::default()).unwrap_err();
    assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("Times"), "{e}");
}

#[test]
fn models_that_do_not_fit_are_refused() {
    let refused = |m: &Metadata, c: Code, words: &str| {
        let e = Model::new(artifact(m), c, &ConstantStore::new(), &ConstantsFrom::default()).expect_err(words);
        assert!(e.to_string().contains(words), "{e}");
    };
    let good = chain_meta();
    refused(&Metadata { abi_hash: 1, ..good.clone() }, code(chain), "metadata is of ABI 0x0000000000000001");
    // SAFETY: refused before it runs.
    let old = unsafe { Code::new(init, chain, 4, 2, Arc::new(())) };
    refused(&good, old, "code is of ABI 0x0000000000000002");
    refused(&Metadata { frame_words: 5, ..good.clone() }, code(chain), "frame of 4 words, the metadata says 5");
    unsafe extern "C" fn no(_: *const runtime::abi::Table) -> Status {
        3
    }
    // SAFETY: `init` alone runs.
    refused(
        &good,
        unsafe { Code::new(no, chain, 4, abi_hash(), Arc::new(())) },
        "refused the runtime's table with status 3",
    );
    let gpu = Metadata { target: Some(artifact::Target { device: "hip".into(), ..Default::default() }), ..good };
    let e = Session::new(model(gpu, chain), Arc::new(Cpu::new()), SessionOptions::default()).unwrap_err();
    assert!(e.to_string().contains("compiled for device \"hip\""), "{e}");
}

macro_rules! program {
    ($name:ident, $ctx:ident, $body:block) => {
        unsafe extern "C" fn $name($ctx: *mut RunCtx, _: *mut u64) -> Status {
            $body
        }
    };
}
program!(no_output, _ctx, { 0 });
program!(silent, _ctx, { 42 });
program!(bad_node, ctx, {
    call!(copy(ctx, 0, 0, 0, 0, 0, 77));
    0
});
program!(bad_input, ctx, {
    call!(get input_dim(ctx, 0, 9));
    0
});
program!(negative_pool, ctx, {
    call!(get reserve(ctx, 0, -5));
    0
});
program!(huge_pool, ctx, {
    call!(get reserve(ctx, 0, 1 << 60));
    0
});
program!(negative_output, ctx, {
    call!(get output(ctx, 0, 1, &-1));
    0
});
program!(twice, ctx, {
    call!(get output(ctx, 0, 1, &1));
    call!(get output(ctx, 0, 1, &1));
    0
});
program!(division, ctx, {
    call!(arith_failed(ctx, 1));
    0
});

#[test]
fn broken_programs_are_errors_with_reasons() {
    let check = |program: RunFn, kind: ErrorKind, words: &str| {
        for d in devices() {
            let e = run(&session(&model(chain_meta(), program), &d), &[f32s(1)]).expect_err(words);
            assert!(e.kind() == kind && e.to_string().contains(words), "{e:?}");
        }
    };
    check(no_output, ErrorKind::Internal, "did not produce output 0 \"y\"");
    check(silent, ErrorKind::Internal, "failed with status 42");
    check(bad_node, ErrorKind::Internal, "node 77; the debug table has 2");
    check(bad_input, ErrorKind::Internal, "axis 9 of input 0");
    check(negative_pool, ErrorKind::Shape, "would need -5 bytes");
    check(huge_pool, ErrorKind::Device, "bytes are needed at once");
    check(negative_output, ErrorKind::Shape, "extents [-1]");
    check(twice, ErrorKind::Internal, "asks for an output twice");
    check(division, ErrorKind::Shape, "divided by zero");
}

#[test]
fn guard_names_the_node_that_overruns() {
    unsafe extern "C" fn overruns(ctx: *mut RunCtx, _: *mut u64) -> Status {
        let n = call!(get input_dim(ctx, 0, 0));
        let x = call!(get input_ptr(ctx, 0));
        let pool = call!(get reserve(ctx, 0, n * 4 - 4));
        call!(launch(ctx, 0, Some(add), [x as u64, pool as u64, 1].as_ptr(), 2, 1, n, 2, 1));
        0
    }
    let d: Arc<dyn Device> = Arc::new(Guard::new());
    let e = run(&session(&model(chain_meta(), overruns), &d), &[f32s(10)]).unwrap_err();
    assert_eq!((e.kind(), e.node_path()), (ErrorKind::Device, Some("/second")), "{e}");
}

#[test]
fn profiles_are_taken_when_asked() {
    let s = session(&model(chain_meta(), chain), &(Arc::new(Cpu::new()) as Arc<dyn Device>));
    let x = [f32s(50)];
    let (_, r) = s.collect(&RunInputs::in_order(&x), &RunOptions { profile: true, ..Default::default() }).unwrap();
    let p = r.profile.unwrap();
    let ops: Vec<(&str, &str, &str)> = p.ops.iter().map(|o| (o.kind, o.path.as_str(), o.what.as_str())).collect();
    assert_eq!(ops, [("launch", "/first", "loops k0"), ("launch", "/second", "kernel test")]);
    assert_eq!(p.memory.iter().map(|m| (m.domain, m.bytes)).collect::<Vec<_>>(), [(0, 200), (u32::MAX, 200)]);
    assert!(p.total_ns >= p.ops.iter().map(|o| o.time_ns).sum() && p.threads == 2);
    assert!(p.chrome_trace().contains("\"/second\"") && p.table(9).contains("/first"));
}

#[test]
fn threads_do_not_change_results() {
    let m = model(Metadata { guards: vec![], ..chain_meta() }, big_chain);
    let cpu: Arc<dyn Device> = Arc::new(Cpu::new());
    let s = Session::new(m, cpu, SessionOptions { threads: Some(4), ..Default::default() }).unwrap();
    let x = [f32s(300_000)];
    let with = |threads| {
        s.collect(&RunInputs::in_order(&x), &RunOptions { threads: Some(threads), ..Default::default() }).unwrap().0
    };
    assert!(with(1) == with(4) && with(1)[0].to_f64_vec()[299_999] == 300_000.0);
}

unsafe extern "C" fn big_chain(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let y = call!(get output(ctx, 0, 1, &n));
    call!(launch(ctx, 0, Some(add), [x as u64, y as u64, 1].as_ptr(), 2, 1, n, 2, 0));
    0
}

/// `y = x · x` by the catalog's GEMM, 2 by 2.
unsafe extern "C" fn square(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let x = call!(get input_ptr(ctx, 0));
    let y = call!(get output(ctx, 0, 2, [2, 2].as_ptr()));
    let id = kernels::catalog::find("gemm.f32").unwrap_or(u32::MAX);
    let ints = [1, 2, 2, 2, 0, 2, 1, 0, 2, 1, 0, 0, 0, 0, 0];
    let mut args = vec![x as u64, x as u64, 0, 0, y as u64];
    args.extend(ints);
    args.extend([1.0, 0.0, 0.0].map(f64::to_bits));
    call!(kernel(ctx, id, args.as_ptr(), 5, 15, 3, 1));
    0
}

#[test]
fn catalog_kernels_run() {
    let meta = metadata(vec![port("x", DType::F32, &["2", "2"])], vec![port("y", DType::F32, &["2", "2"])]);
    let m = model(meta, square);
    for d in devices().into_iter().filter(|d| d.properties().executes) {
        let y = run(&session(&m, &d), &[Tensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0])]).unwrap();
        assert_eq!(y[0].to_f64_vec(), [7.0, 10.0, 15.0, 22.0]);
    }
}

fn rss_anon_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    text.lines().find_map(|l| l.strip_prefix("RssAnon:")?.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap()
}

/// `y = x + c[last]` for constants of half a gigabyte.
unsafe extern "C" fn far(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let y = call!(get output(ctx, 0, 1, &n));
    for c in 0..4 {
        let last = call!(get const_ptr(ctx, c)) + (512 << 20) - 4;
        call!(launch(ctx, 0, Some(add2), [x as u64, last as u64, y as u64].as_ptr(), 3, 0, n, 2, 0));
    }
    0
}

#[test]
fn two_gigabytes_of_external_weights_stay_in_the_file() {
    let dir = std::env::temp_dir().join(format!("hip-ep-runtime-big-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // Sparse: takes no room on the disk.
    std::fs::File::create(dir.join("w.bin")).unwrap().set_len(2 << 30).unwrap();
    let mut meta = metadata(vec![port("x", DType::F32, &["1"])], vec![port("y", DType::F32, &["1"])]);
    let part = |i: u64| artifact::external("w", DType::F32, &[128 << 20], "w.bin", i * (512 << 20)).unwrap();
    meta.constants = (0..4).map(part).collect();
    let mut from = ConstantsFrom::default();
    from.folder = Some(dir.clone());
    let before = rss_anon_kib();
    let m = model_with(meta, far, Services::default(), &from);
    let cpu: Arc<dyn Device> = Arc::new(Cpu::new());
    assert_eq!(run(&session(&m, &cpu), &[Tensor::from_f32(&[1], &[5.0])]).unwrap()[0].to_f64_vec(), [5.0]);
    let grown = rss_anon_kib().saturating_sub(before) >> 10;
    assert!(grown < 200, "anonymous memory grew by {grown} MB");
    std::fs::remove_dir_all(&dir).unwrap();
}
