//! GFLOP/s of the CPU kernels on one thread, and their share of the multiply-add rate measured in the same run.
//!
//! `cargo bench -p hip-ep-kernels`

use kernels::catalog;
use kernels::cpu::{self, Args, Tier};
use kernels::team::Solo;
use std::hint::black_box;
use std::time::Instant;

/// Best of the runs that fit in 0.3 s, in seconds.
fn time(mut f: impl FnMut()) -> f64 {
    f();
    let start = Instant::now();
    let mut best = f64::MAX;
    while start.elapsed().as_secs_f64() < 0.3 {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_secs_f64());
    }
    best
}

/// Independent fused multiply-adds on 8-wide registers, in GFLOP/s.
fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if Tier::detect() == Tier::Avx2 {
        #[target_feature(enable = "avx2,fma")]
        fn fma(n: usize) -> f32 {
            use std::arch::x86_64::*;
            let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
            let mut acc = [_mm256_setzero_ps(); 12];
            for _ in 0..n {
                acc.iter_mut().for_each(|a| *a = _mm256_fmadd_ps(*a, x, y));
            }
            let sum = acc.into_iter().fold(_mm256_setzero_ps(), |s, a| _mm256_add_ps(s, a));
            _mm256_cvtss_f32(sum)
        }
        let n = 100_000;
        let t = time(|| {
            // SAFETY: the tier says that the machine has AVX2 and FMA.
            black_box(unsafe { fma(n) });
        });
        return (n * 12 * 16) as f64 / t / 1e9;
    }
    f64::NAN
}

fn main() {
    let peak = peak();
    println!("tier {}, multiply-add rate of one thread {peak:.0} GFLOP/s", Tier::detect().name());
    let fill = |n: usize| (0..n).map(|i| ((i * 7919 % 1013) as f32 / 1013.0) - 0.5).collect::<Vec<f32>>();
    let report = |what: &str, flops: f64, t: f64| {
        println!(
            "{what:32} {:9.3} ms {:7.1} GFLOP/s {:5.1} % of peak",
            t * 1e3,
            flops / t / 1e9,
            flops / t / 1e7 / peak
        );
    };
    for (m, n, k) in
        [(1, 4096, 4096), (128, 768, 768), (128, 3072, 768), (384, 768, 768), (1024, 1024, 1024), (128, 384, 384)]
    {
        let (a, b, mut c) = (fill(m * k), fill(k * n), vec![0f32; m * n]);
        let ints = [1, m, n, k, 0, k, 1, 0, n, 1, 0, 0, 0, 0, 0].map(|x| x as i64);
        let bufs = [a.as_ptr() as u64, b.as_ptr() as u64, 0, 0, c.as_mut_ptr() as u64];
        let id = catalog::find("gemm.f32").expect("in the catalog");
        // SAFETY: the buffers have the sizes that the integers say.
        let t = time(|| unsafe {
            cpu::run(id, Tier::detect(), &Solo, &Args { bufs: &bufs, ints: &ints, scalars: &[1.0, 0.0, 0.0] })
                .expect("runs")
        });
        report(&format!("gemm {m}x{n}x{k}"), 2.0 * (m * n * k) as f64, t);
    }
    for (m, n, k, bits) in [(1, 4096, 4096, 4), (1, 4096, 4096, 8), (1, 4096, 4096, 2), (128, 3072, 768, 4)] {
        let block = 32;
        let (a, scales, mut c) = (fill(m * k), fill(n * k / block), vec![0f32; m * n]);
        let b: Vec<u8> = (0..n * k * bits / 8).map(|i| (i * 7919 % 251) as u8).collect();
        let ints = [m, n, k, bits, block].map(|x| x as i64);
        let [x, s, y] = [a.as_ptr() as u64, scales.as_ptr() as u64, c.as_mut_ptr() as u64];
        let bufs = [x, b.as_ptr() as u64, s, 0, 0, y];
        let id = catalog::find("nbits.f32").expect("in the catalog");
        // SAFETY: the buffers have the sizes that the integers say.
        let t = time(|| unsafe {
            cpu::run(id, Tier::detect(), &Solo, &Args { bufs: &bufs, ints: &ints, scalars: &[] }).expect("runs")
        });
        let gbs = (b.len() + 4 * scales.len()) as f64 / t / 1e9;
        report(&format!("nbits {m}x{n}x{k} u{bits} {gbs:.1} GB/s"), 2.0 * (m * n * k) as f64, t);
    }
    for (c, h, m, kk, s, group) in [
        (64, 56, 64, 3, 1, 1),
        (256, 56, 64, 1, 1, 1),
        (3, 224, 64, 7, 2, 1),
        (96, 112, 96, 3, 1, 96),
        (512, 7, 512, 3, 1, 1),
    ] {
        let (pad, cg) = (kk / 2, c / group);
        let o = (h + 2 * pad - kk) / s + 1;
        let (x, w, mut y) = (fill(c * h * h), fill(m * cg * kk * kk), vec![0f32; m * o * o]);
        let ints = [1, c, h, h, m, kk, kk, group, s, s, pad, pad, 1, 1, o, o, 1].map(|x| x as i64);
        let bufs = [x.as_ptr() as u64, w.as_ptr() as u64, 0, 0, y.as_mut_ptr() as u64];
        let id = catalog::find("conv2d.f32").expect("in the catalog");
        // SAFETY: the buffers have the sizes that the integers say.
        let t = time(|| unsafe {
            cpu::run(id, Tier::detect(), &Solo, &Args { bufs: &bufs, ints: &ints, scalars: &[0.0, 0.0] }).expect("runs")
        });
        report(&format!("conv {c}x{h}x{h} {kk}x{kk}/{s} -> {m} g{group}"), 2.0 * (m * o * o * cg * kk * kk) as f64, t);
    }
}
