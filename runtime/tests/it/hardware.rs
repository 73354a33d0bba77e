//! The device on a real GPU, where there is one with a run-time compiler: the kernels are compiled here.

use crate::conformance::conforms;
use crate::gpu::{build_with, chain, meta, open_on};
use runtime::device::hip::{Hip, probe};
use runtime::device::{Buffer, Device, Space, Work};
use runtime::*;
use std::sync::Arc;
use tensor::{DType, Tensor};

/// One thread a point, as many blocks as the schedule gives; blocks beyond the points have nothing to do.
const SOURCE: &str = r#"
#define BLOCK 256
typedef long long i64;
#define POINTS(i, n) for (i64 i = (i64)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (i64)gridDim.x * BLOCK)
extern "C" __global__ void add(const float *x, float *y, i64 k, i64 n) { POINTS(i, n) y[i] = x[i] + (float)k; }
extern "C" __global__ void add_i32(const int *x, int *y, i64 k, i64 n) { POINTS(i, n) y[i] = x[i] + (int)k; }
extern "C" __global__ void crash(i64 n) { POINTS(i, n) *(volatile int *)(16 + 4 * i) = 1; }
"#;

#[test]
fn the_device_conforms_on_hardware() {
    let Some(info) = probe().iter().flat_map(|p| &p.devices).next() else {
        println!("left out: this machine has no GPU; hip-onnx-runner --doctor says what was looked for");
        return;
    };
    let hip = Hip::open(0).unwrap();
    let code = match hip.compile(SOURCE) {
        Ok(code) => code,
        Err(e) => return println!("left out: {} has no run-time compiler here: {e}", info.name),
    };
    let target = hip.target().unwrap();
    println!("on {} ({}), code for {target}", info.name, info.arch);
    let image = |kernels: &[&str], dtype| build_with(meta(dtype), kernels, &target, &code);
    let d: Arc<dyn Device> = Arc::new(hip.clone());
    // Sessions: growth, steady state, two at once.
    let s = open_on(&image(&["add"], DType::F32), chain, d.clone()).unwrap();
    let run = |n: usize| {
        let x = Tensor::from_f32(&[n], &(0..n).map(|i| i as f32).collect::<Vec<_>>());
        let (y, r) = s.collect(&RunInputs::in_order(&[x]), &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let good = y[0].to_f64_vec().iter().enumerate().all(|(i, &v)| v == i as f64 + 3.0);
        assert!(good && y[0].shape() == [n], "at {n}");
        r.counters
    };
    [1, 1000, 0, 1 << 20, 7].into_iter().for_each(|n| _ = run(n));
    let c = run(1 << 20);
    assert_eq!((c.launches, c.syncs, c.copies, c.pool_growths), (2, 0, 0, 0));
    std::thread::scope(|scope| {
        for t in 0..4usize {
            let run = &run;
            scope.spawn(move || (0..50).for_each(|i| _ = run((t * 7919 + i * 104_729) % 300_000)));
        }
    });
    s.trim().unwrap();
    // Copies longer than what is staged whole, with the bandwidth they reach.
    let stream = d.stream().unwrap();
    let n = 256 << 20;
    let b = Buffer::new(&d, Space::Device, n).unwrap();
    let from: Vec<u8> = (0..n).map(|i| (i * 7 % 251) as u8).collect();
    let mut to = vec![0u8; n];
    let start = std::time::Instant::now();
    // SAFETY: both have `n` bytes and outlive the wait.
    unsafe {
        d.copy(stream, (b.addr(), Space::Device), (from.as_ptr().expose_provenance(), Space::Host), n).unwrap();
        d.copy(stream, (to.as_mut_ptr().expose_provenance(), Space::Host), (b.addr(), Space::Device), n).unwrap();
    }
    d.synchronize(stream).unwrap();
    println!("up and down: {:.1} GB/s", 2.0 * n as f64 / start.elapsed().as_secs_f64() / 1e9);
    assert!(from == to);
    // What a launch costs the host, and the device's own time for a kernel.
    let loaded = d.load(&image(&["add"], DType::F32)).unwrap();
    let args = [b.addr() as u64, b.addr() as u64, 0];
    let work = Work::Generated { kernel: 0, func: None, args: &args, n_bufs: 2, points: 1 << 20, grain: 1 };
    let launch = || {
        // SAFETY: the buffer holds the points.
        unsafe { d.launch(stream, &kernels::team::Solo, &loaded, &work) }.unwrap()
    };
    launch();
    d.synchronize(stream).unwrap();
    let (first, start) = (d.record(stream).unwrap(), std::time::Instant::now());
    (0..1000).for_each(|_| launch());
    let host_us = start.elapsed().as_secs_f64() * 1e3;
    let last = d.record(stream).unwrap();
    let device_us = d.elapsed_ns(first, last).unwrap() as f64 / 1e6;
    println!("launch: {host_us:.2} us of the host, {device_us:.2} us apart on the device");
    d.close_stream(stream).unwrap();
    // Opened anew, with nothing allocated. Last, for its failing kernel may end the device's state.
    drop((b, loaded, s, d, hip));
    let hip = Hip::open(0).unwrap();
    let loaded = hip.load(&image(&["add_i32", "crash"], DType::I32)).unwrap();
    conforms(Arc::new(hip), &loaded);
}
