//! The GPU device over the fake driver: order, staging, memory that queued work needs, errors, code of an artifact.

use crate::call;
use crate::conformance::conforms;
use crate::fake::*;
use crate::fake_gpu::FakeGpu;
use artifact::{Builder, Domain, GpuLaunch, Kernel, Kind, Metadata};
use runtime::abi::{RunCtx, Status};
use runtime::device::{Buffer, Device, Loaded, Space, Work};
use runtime::*;
use std::sync::Arc;
use tensor::{DType, ErrorKind, Result, Tensor};

fn generated(name: &str) -> Kernel {
    let gpu = Some(GpuLaunch { schedule: "grid-stride".into(), block: 256, vector: 4 });
    Kernel { name: name.into(), kind: "loops".into(), id: None, gpu }
}

/// One input and one output, kernels by name, code for `targets`.
fn build(mut m: Metadata, kernels: &[&str], targets: &[&str], catalog: bool) -> Arc<artifact::Artifact> {
    m.kernels = kernels.iter().map(|n| generated(n)).collect();
    let mut b = Builder::new(m);
    for t in targets {
        b.section(Kind::GpuCode, format!("{t}/generated"), format!("kernels {}\0", kernels.join(" ")).into_bytes());
        if catalog {
            let all = b"kernels hip_ep_store_ints hip_ep_nonzero_count_f32\0";
            b.section(Kind::GpuCode, format!("{t}/catalog"), all.to_vec());
        }
    }
    Arc::new(artifact::Artifact::from_bytes(b.finish().unwrap().into()).unwrap())
}

/// The same with real code for one target.
pub fn build_with(mut m: Metadata, kernels: &[&str], target: &str, image: &[u8]) -> Arc<artifact::Artifact> {
    m.kernels = kernels.iter().map(|n| generated(n)).collect();
    let mut b = Builder::new(m);
    b.section(Kind::GpuCode, format!("{target}/generated"), image.to_vec());
    b.section(Kind::GpuCode, format!("{target}/catalog"), image.to_vec());
    Arc::new(artifact::Artifact::from_bytes(b.finish().unwrap().into()).unwrap())
}

pub fn meta(dtype: DType) -> Metadata {
    let mut m = metadata(vec![port("x", dtype, &["n"])], vec![port("y", dtype, &["n"])]);
    m.target = Some(artifact::Target { device: "hip:gfx942".into(), ..Default::default() });
    m
}

pub fn open_on(a: &Arc<artifact::Artifact>, program: RunFn, device: Arc<dyn Device>) -> Result<Session> {
    let m = Model::new(a.clone(), code(program), &ConstantStore::new(), &ConstantsFrom::default())?;
    Session::new(m, device, SessionOptions { threads: Some(1), ..Default::default() })
}

fn open(a: &Arc<artifact::Artifact>, program: RunFn, gpu: &FakeGpu) -> Result<Session> {
    open_on(a, program, Arc::new(gpu.hip.clone()))
}

fn mi300() -> FakeGpu {
    FakeGpu::new("hip", "gfx942:sramecc+:xnack-", false)
}

fn f32s(n: usize) -> Tensor {
    Tensor::from_f32(&[n], &(0..n).map(|i| i as f32).collect::<Vec<_>>())
}

fn run(s: &Session, x: &Tensor) -> Result<(Vec<Tensor>, Report)> {
    s.collect(&RunInputs::in_order(std::slice::from_ref(x)), &RunOptions::default())
}

fn check_run(s: &Session, n: usize, added: f64) -> Report {
    let (y, report) = run(s, &f32s(n)).unwrap_or_else(|e| panic!("{e}"));
    let want: Vec<f64> = (0..n).map(|i| i as f64 + added).collect();
    assert_eq!(y[0].to_f64_vec(), want, "at {n}");
    report
}

#[test]
fn the_device_conforms() {
    let gpu = mi300();
    let a = build(meta(DType::I32), &["add_i32", "crash"], &["hip:gfx942"], true);
    let loaded = gpu.hip.load(&a).unwrap();
    conforms(Arc::new(gpu.hip.clone()), &loaded);
}

/// `y = (x + 1) + 2` through a pool buffer.
pub unsafe extern "C" fn chain(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let pool = call!(get reserve(ctx, 0, n * 4));
    let y = call!(get output(ctx, 0, 1, &n));
    call!(launch(ctx, 0, None, [x as u64, pool as u64, 1].as_ptr(), 2, 1, n, 2, 0));
    call!(launch(ctx, 0, None, [pool as u64, y as u64, 2].as_ptr(), 2, 1, n, 2, 1));
    0
}

#[test]
fn a_steady_state_waits_once_and_allocates_nothing() {
    let gpu = mi300();
    let s = open(&build(meta(DType::F32), &["add"], &["hip:gfx942"], true), chain, &gpu).unwrap();
    for n in [1, 10, 0, 10, 100_000, 3] {
        check_run(&s, n, 3.0);
    }
    let before = gpu.counts();
    for n in [100_000, 5, 77] {
        let r = check_run(&s, n, 3.0).counters;
        assert_eq!((r.launches, r.syncs, r.copies, r.pool_growths, r.constant_copies), (2, 0, 0, 0, 0));
        assert_eq!((r.input_copies, r.output_copies), (1, 1));
    }
    let after = gpu.counts();
    assert_eq!(after.stream_syncs - before.stream_syncs, 3, "one wait a run");
    assert_eq!((after.uploads - before.uploads, after.downloads - before.downloads), (3, 3));
    assert_eq!(after.launches - before.launches, 6);
    let kept = |c: crate::fake_gpu::Counts| (c.mallocs, c.host_mallocs, c.functions, c.event_syncs, c.streams_live);
    assert_eq!(kept(after), kept(before));
    assert_eq!(gpu.hip.n_retired(), 0);
    drop(s);
    assert_eq!((gpu.used(), gpu.hip.memory().live, gpu.counts().streams_live, gpu.counts().modules_live), (0, 0, 0, 0));
}

/// The domain grows while the kernels that use it are queued; they must find its old memory.
unsafe extern "C" fn grows(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let old = call!(get reserve(ctx, 0, n * 4));
    call!(launch(ctx, 0, None, [x as u64, old as u64, 1].as_ptr(), 2, 1, n, 2, 0));
    let y = call!(get output(ctx, 0, 1, &n));
    call!(launch(ctx, 0, None, [old as u64, y as u64, 2].as_ptr(), 2, 1, n, 2, 1));
    let new = call!(get reserve(ctx, 0, n * 40));
    call!(launch(ctx, 0, None, [y as u64, new as u64, 4].as_ptr(), 2, 1, n, 2, 0));
    call!(launch(ctx, 0, None, [new as u64, y as u64, 8].as_ptr(), 2, 1, n, 2, 1));
    0
}

#[test]
fn a_domain_grows_while_the_stream_is_busy() {
    let gpu = mi300();
    let s = open(&build(meta(DType::F32), &["add"], &["hip:gfx942"], true), grows, &gpu).unwrap();
    for n in [3, 50, 20, 600] {
        let before = gpu.counts().stream_syncs;
        check_run(&s, n, 15.0);
        assert_eq!(gpu.counts().stream_syncs - before, 1, "growth does not wait");
        assert_eq!(gpu.hip.n_retired(), 0, "given back at the wait");
    }
    // With no room for both, growth waits for the queued work and takes its memory.
    s.trim().unwrap();
    check_run(&s, 1000, 15.0);
    s.trim().unwrap();
    gpu.limit_to_used_and(4096 + 4096 + 40_192 + 256);
    check_run(&s, 1000, 15.0);
    gpu.limit_to_used_and(0);
    let e = run(&s, &f32s(2000)).unwrap_err();
    assert!(
        e.kind() == ErrorKind::Device && e.to_string().contains("hipMalloc failed: hipErrorOutOfMemory (2)"),
        "{e}"
    );
    assert!(e.to_string().contains("8000 bytes of Device memory"), "{e}");
    check_run(&s, 10, 15.0);
}

#[test]
fn runs_at_once_have_streams_of_their_own() {
    let gpu = mi300();
    let s = open(&build(meta(DType::F32), &["add"], &["hip:gfx942"], true), grows, &gpu).unwrap();
    std::thread::scope(|scope| {
        for t in 0..6usize {
            let s = &s;
            scope.spawn(move || (0..40).for_each(|i| _ = check_run(s, (t * 13 + i * 7) % 101, 15.0)));
        }
    });
    let streams = gpu.counts().streams_live;
    assert!((1..=6).contains(&streams), "{streams} streams");
    s.trim().unwrap();
    assert_eq!((gpu.used(), gpu.counts().streams_live), (0, 0));
}

/// Stores, reads, stores again to the same place, reads: each kernel sees what was stored before it.
unsafe extern "C" fn stores(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let shape = call!(get reserve(ctx, 1, 8 * 20));
    let y = call!(get output(ctx, 0, 1, &40));
    let first: [i64; 20] = std::array::from_fn(|i| i as i64);
    call!(store_ints(ctx, shape, 7, 20, first.as_ptr()));
    call!(launch(ctx, 0, None, [shape as u64, y as u64].as_ptr(), 2, 0, 20, 1, 0));
    let second: [i64; 20] = std::array::from_fn(|i| -(i as i64));
    call!(store_ints(ctx, shape, 7, 20, second.as_ptr()));
    call!(launch(ctx, 0, None, [shape as u64, y as u64 + 160].as_ptr(), 2, 0, 20, 1, 1));
    0
}

#[test]
fn extents_are_stored_in_the_streams_order() {
    let gpu = mi300();
    let mut m = meta(DType::I64);
    m.inputs.clear();
    m.outputs = vec![port("y", DType::I64, &["40"])];
    m.domains.push(Domain { space: 2, peak: "160".into() });
    let s = open(&build(m, &["copy_i64"], &["hip:gfx942"], true), stores, &gpu).unwrap();
    for _ in 0..2 {
        let before = gpu.counts();
        let (y, r) = s.collect(&RunInputs::new(), &RunOptions::default()).unwrap();
        let want: Vec<f64> = (0..20).map(f64::from).chain((0..20).map(|i| -f64::from(i))).collect();
        assert_eq!(y[0].to_f64_vec(), want);
        assert_eq!((r.counters.stores, r.counters.syncs), (2, 0));
        assert_eq!(gpu.counts().stream_syncs - before.stream_syncs, 1);
        assert_eq!(gpu.counts().launches - before.launches, 6, "16 integers a launch");
    }
}

/// An extent that the device computes: counts, reads back, gives as many.
unsafe extern "C" fn counts(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let count = call!(get reserve(ctx, 0, 8));
    let id = kernels::catalog::find("nonzero_count.f32").unwrap_or(u32::MAX);
    call!(kernel(ctx, id, [x as u64, count as u64, n as u64].as_ptr(), 2, 1, 0, 1));
    let k = call!(get readback(ctx, count, 0, 7, 0, 1));
    let mapped = call!(get reserve(ctx, 1, 16));
    call!(store_ints(ctx, mapped, 6, 2, [7, k].as_ptr()));
    if call!(get readback(ctx, mapped, 2, 6, 1, 0)) != k {
        return 77;
    }
    let y = call!(get output(ctx, 0, 1, &k));
    call!(launch(ctx, 0, None, [x as u64, y as u64, 1].as_ptr(), 2, 1, k, 2, 0));
    0
}

#[test]
fn values_are_read_back_from_both_kinds_of_memory() {
    let gpu = mi300();
    let mut m = meta(DType::F32);
    m.outputs = vec![port("y", DType::F32, &["k"])];
    m.domains.push(Domain { space: 2, peak: "16".into() });
    let s = open(&build(m, &["add"], &["hip:gfx942"], true), counts, &gpu).unwrap();
    let (y, r) = run(&s, &Tensor::from_f32(&[6], &[1.0, 0.0, 2.0, 0.0, 3.0, 4.0])).unwrap();
    assert_eq!((y[0].shape(), r.counters.syncs, r.counters.kernel_calls), (&[4usize][..], 2, 1));
}

/// `y = c + 1` for a constant.
unsafe extern "C" fn constant(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let c = call!(get const_ptr(ctx, 0));
    let y = call!(get output(ctx, 0, 1, &n));
    call!(launch(ctx, 0, None, [c as u64, y as u64, 1].as_ptr(), 2, 1, n, 2, 0));
    0
}

#[test]
fn constants_are_uploaded_once_per_device() {
    let gpu = mi300();
    let mut m = meta(DType::F32);
    m.constants = vec![artifact::splat("c", DType::F32, &[4], &2.5f32.to_le_bytes()).unwrap()];
    let a = build(m, &["add"], &["hip:gfx942"], true);
    let model = Model::new(a, code(constant), &ConstantStore::new(), &ConstantsFrom::default()).unwrap();
    let session = || Session::new(model.clone(), Arc::new(gpu.hip.clone()), SessionOptions::default()).unwrap();
    let (first, second) = (session(), session());
    for (s, copies) in [(&first, 1), (&first, 0), (&second, 0)] {
        let (y, r) = run(s, &f32s(4)).unwrap();
        assert_eq!((y[0].to_f64_vec(), r.counters.constant_copies, r.counters.syncs), (vec![3.5; 4], copies, copies));
    }
}

/// The second kernel touches memory that is not there.
unsafe extern "C" fn crashes(ctx: *mut RunCtx, _: *mut u64) -> Status {
    let n = call!(get input_dim(ctx, 0, 0));
    let x = call!(get input_ptr(ctx, 0));
    let y = call!(get output(ctx, 0, 1, &n));
    call!(launch(ctx, 0, None, [x as u64, y as u64, 1].as_ptr(), 2, 1, n, 2, 0));
    call!(launch(ctx, 1, None, [x as u64].as_ptr(), 1, 0, n, 2, 1));
    0
}

#[test]
fn errors_of_queued_work_name_the_last_nodes() {
    let gpu = mi300();
    let s = open(&build(meta(DType::F32), &["add", "crash"], &["hip:gfx942"], true), crashes, &gpu).unwrap();
    let e = run(&s, &f32s(4)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device);
    let text = e.to_string();
    assert!(text.starts_with("hipStreamSynchronize failed: hipErrorIllegalAddress (700)"), "{text}");
    assert!(text.contains("queued last  /first (loops k0), /second (kernel test)"), "{text}");
    let e = run(&s, &f32s(4)).unwrap_err();
    assert!(e.to_string().contains("(700)"), "the device stays lost: {e}");
}

#[test]
fn copies_of_host_memory_are_staged_whole_or_in_windows() {
    let gpu = mi300();
    let d: Arc<dyn Device> = Arc::new(gpu.hip.clone());
    let s = d.stream().unwrap();
    // Longer than what is staged whole, and not a multiple of a window.
    for n in [5usize, 4096, (64 << 20) + 12_345] {
        let mut data: Vec<u8> = (0..n).map(|i| (i * 7 % 251) as u8).collect();
        let want = data.clone();
        let b = Buffer::new(&d, Space::Device, n).unwrap();
        let mut back = vec![0u8; n];
        let host = |v: &mut Vec<u8>| (v.as_mut_ptr().expose_provenance(), Space::Host);
        // SAFETY: both buffers have `n` bytes and outlive the wait.
        unsafe {
            d.copy(s, (b.addr(), Space::Device), host(&mut data), n).unwrap();
            // The source may be reused at once.
            data.fill(0);
            d.copy(s, host(&mut back), (b.addr(), Space::Device), n).unwrap();
        }
        d.synchronize(s).unwrap();
        assert!(back == want, "{n} bytes");
    }
    // Several copies between two waits do not share their pinned memory.
    let buffers = [1u8, 2, 3].map(|v| (v, Buffer::new(&d, Space::Device, 999).unwrap(), vec![0u8; 999]));
    let mut data = vec![0u8; 999];
    let mut buffers = buffers;
    // SAFETY: all have 999 bytes and outlive the wait.
    unsafe {
        for (v, b, _) in &buffers {
            data.fill(*v);
            d.copy(s, (b.addr(), Space::Device), (data.as_ptr().expose_provenance(), Space::Host), 999).unwrap();
        }
        for (_, b, back) in &mut buffers {
            let to = (back.as_mut_ptr().expose_provenance(), Space::Host);
            d.copy(s, to, (b.addr(), Space::Device), 999).unwrap();
        }
    }
    d.synchronize(s).unwrap();
    assert!(buffers.iter().all(|(v, _, back)| back.iter().all(|b| b == v)));
    drop(buffers);
    d.close_stream(s).unwrap();
    assert_eq!(gpu.used(), 0);
}

#[test]
fn profiles_take_the_devices_times() {
    let gpu = mi300();
    let s = open(&build(meta(DType::F32), &["add"], &["hip:gfx942"], true), chain, &gpu).unwrap();
    let x = [f32s(50)];
    for _ in 0..2 {
        let options = RunOptions { profile: true, ..Default::default() };
        let p = s.collect(&RunInputs::in_order(&x), &options).unwrap().1.profile.unwrap();
        // A step of the fake takes a millisecond: the kernel and the event behind it.
        assert_eq!(p.ops.iter().map(|o| o.time_ns).collect::<Vec<_>>(), [2_000_000, 2_000_000]);
        assert!(p.ops[0].start_ns < p.ops[1].start_ns);
    }
    assert_eq!(gpu.counts().stream_syncs, 2);
}

fn refused(a: &Arc<artifact::Artifact>, gpu: &FakeGpu, kind: ErrorKind, words: &[&str]) {
    let e = open(a, chain, gpu).expect_err("refused");
    assert_eq!(e.kind(), kind, "{e}");
    words.iter().for_each(|w| assert!(e.to_string().contains(w), "{e} does not say {w:?}"));
    assert_eq!(gpu.counts().modules_live, 0);
}

#[test]
fn code_that_does_not_fit_is_refused_with_what_there_is() {
    let gpu = mi300();
    let m = || meta(DType::F32);
    let words = ["code for cuda:sm_90, hip:gfx1100", "fake GPU (hip:gfx942)", "hip-compiler --target hip:gfx942"];
    refused(&build(m(), &["add"], &["hip:gfx1100", "cuda:sm_90"], true), &gpu, ErrorKind::Unsupported, &words);
    refused(&build(m(), &["add"], &[], true), &gpu, ErrorKind::Unsupported, &["holds no GPU code"]);
    let unknown = FakeGpu::new("hip", "gfx950", false);
    let words = ["run it on the cpu", "LLVM 22"];
    refused(&build(m(), &["add"], &["hip:gfx942"], true), &unknown, ErrorKind::Unsupported, &words);
    // A kernel that the code lacks, a launch this build does not know, an image that is none.
    let with = |f: &dyn Fn(&mut Metadata), image: &[u8]| {
        let mut m = m();
        m.kernels = vec![generated("add")];
        f(&mut m);
        let mut b = Builder::new(m);
        b.section(Kind::GpuCode, "hip:gfx942/generated", image.to_vec());
        b.section(Kind::GpuCode, "hip:gfx942/catalog", b"kernels hip_ep_store_ints\0".to_vec());
        Arc::new(artifact::Artifact::from_bytes(b.finish().unwrap().into()).unwrap())
    };
    let image = b"kernels add\0";
    open(&with(&|_| {}, image), chain, &gpu).unwrap();
    let words = ["hipModuleGetFunction failed: hipErrorNotFound (500)", "other"];
    refused(&with(&|m| m.kernels[0].name = "other".into(), image), &gpu, ErrorKind::Device, &words);
    refused(
        &with(&|m| m.kernels[0].gpu = None, image),
        &gpu,
        ErrorKind::Malformed,
        &["does not say how it is launched"],
    );
    let odd = |m: &mut Metadata| m.kernels[0].gpu = Some(GpuLaunch { schedule: "spiral".into(), block: 64, vector: 1 });
    refused(&with(&odd, image), &gpu, ErrorKind::Malformed, &["schedule \"spiral\""]);
    let odd =
        |m: &mut Metadata| m.kernels[0].gpu = Some(GpuLaunch { schedule: "grid-stride".into(), block: 7, vector: 1 });
    refused(&with(&odd, image), &gpu, ErrorKind::Malformed, &["has launch"]);
    refused(
        &with(&|_| {}, b"garbage\0"),
        &gpu,
        ErrorKind::Device,
        &["hipErrorInvalidImage (200)", "8 bytes", "gfx942"],
    );
    refused(&with(&|_| {}, b"no NUL"), &gpu, ErrorKind::Malformed, &["neither a code object nor text"]);
}

#[test]
fn damaged_code_never_reaches_the_driver() {
    let whole = build(meta(DType::F32), &["add"], &["cuda:sm_90", "hip:gfx942"], true);
    let flipped = |label: &str| {
        let s = whole.sections().iter().find(|s| s.label == label).unwrap();
        let mut bytes = whole.bytes().to_vec();
        bytes[(s.offset + s.len) as usize - 2] ^= 1;
        Arc::new(artifact::Artifact::from_bytes(bytes.into()).unwrap())
    };
    let gpu = mi300();
    for label in ["hip:gfx942/generated", "hip:gfx942/catalog"] {
        let words = [&format!("section GpuCode {label:?} is damaged"), "compile the model again"];
        refused(&flipped(label), &gpu, ErrorKind::Malformed, &words);
    }
    // Code that this device does not run is not read.
    check_run(&open(&flipped("cuda:sm_90/generated"), chain, &gpu).unwrap(), 5, 3.0);
}

#[test]
fn text_code_runs_on_later_devices_and_the_latest_is_taken() {
    let gpu = FakeGpu::new("cuda", "sm_100", false);
    let mut b = Builder::new(Metadata { kernels: vec![generated("add")], ..meta(DType::F32) });
    for (arch, image) in [("sm_80", "garbage\0"), ("sm_90", "kernels add\0")] {
        b.section(Kind::GpuCode, format!("cuda:{arch}/generated"), image.as_bytes().to_vec());
        b.section(Kind::GpuCode, format!("cuda:{arch}/catalog"), b"kernels hip_ep_store_ints\0".to_vec());
    }
    let a = Arc::new(artifact::Artifact::from_bytes(b.finish().unwrap().into()).unwrap());
    gpu.hip.load(&a).unwrap();
    let older = FakeGpu::new("cuda", "sm_75", false);
    refused(&a, &older, ErrorKind::Unsupported, &["code for cuda:sm_80, cuda:sm_90", "cuda:sm_75"]);
}

#[test]
fn hand_written_kernels_are_compiled_where_the_artifact_has_none() {
    let mut m = meta(DType::F32);
    m.outputs = vec![port("y", DType::F32, &["k"])];
    m.domains.push(Domain { space: 2, peak: "16".into() });
    let x = Tensor::from_f32(&[3], &[1.0, 0.0, 2.0]);
    let a = build(m.clone(), &["add"], &["hip:gfx942"], false);
    let gpu = FakeGpu::new("hip", "gfx942", true);
    assert_eq!(run(&open(&a, counts, &gpu).unwrap(), &x).unwrap().0[0].shape(), [2]);
    // Without a compiler the first call says so; a model that states its calls is refused when it is loaded.
    let e = run(&open(&a, counts, &mi300()).unwrap(), &x).unwrap_err();
    assert!(e.to_string().contains("the fake compiler is not there") && e.node_path() == Some("/second"), "{e}");
    let id = kernels::catalog::find("gemm.f32");
    m.kernels = vec![generated("add"), Kernel { name: "gemm.f32".into(), kind: "catalog".into(), id, gpu: None }];
    let mut b = Builder::new(m);
    b.section(Kind::GpuCode, "hip:gfx942/generated", b"kernels add\0".to_vec());
    let a = Arc::new(artifact::Artifact::from_bytes(b.finish().unwrap().into()).unwrap());
    refused(&a, &mi300(), ErrorKind::Unsupported, &["holds none for hip:gfx942", "the fake compiler is not there"]);
}

#[test]
fn a_model_for_a_gpu_alone_is_refused_on_the_cpu() {
    let a = build(meta(DType::F32), &["add"], &["hip:gfx942"], true);
    let m = Model::new(a, code(chain), &ConstantStore::new(), &ConstantsFrom::default()).unwrap();
    let e = Session::new(m, Arc::new(runtime::device::Cpu::new()), SessionOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("compiled for device \"hip:gfx942\", not for \"cpu\""), "{e}");
}

#[test]
fn work_without_code_is_an_error() {
    let gpu = mi300();
    let s = gpu.hip.stream().unwrap();
    let work = Work::Generated { kernel: 0, func: None, args: &[], n_bufs: 0, points: 1, grain: 1 };
    // SAFETY: refused.
    let e = unsafe { gpu.hip.launch(s, &kernels::team::Solo, &Loaded::default(), &work) }.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Internal);
}
