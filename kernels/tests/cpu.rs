//! Every CPU kernel against plain loops in f64, in every tier, on one thread and on several.

mod plain;

use half::f16;
use kernels::catalog::{self, CATALOG};
use kernels::cpu::{self, Args, Tier};
use kernels::team::{Solo, Team};
use plain::{Gemm, Rand};

/// Runs each range on a thread of its own.
struct Threads(usize);
impl Team for Threads {
    fn n_threads(&self) -> usize {
        self.0
    }
    fn run(&self, n: usize, grain: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let step = n.div_ceil(self.0).max(grain).max(1);
        std::thread::scope(|s| {
            for begin in (0..n).step_by(step) {
                s.spawn(move || task(begin, (begin + step).min(n)));
            }
        });
    }
}

fn tiers() -> Vec<Tier> {
    let mut t = vec![Tier::Portable];
    if Tier::detect() != Tier::Portable {
        t.push(Tier::detect());
    }
    t
}

/// Calls `name`.f32 and `name`.f16 in every tier and with several teams; compares with `want` and for equal bits between teams.
fn check(
    name: &str,
    inputs: &[Option<Vec<f32>>],
    n_out: usize,
    ints: &[i64],
    scalars: &[f64],
    want: &[f64],
    what: &str,
) {
    let scale = want.iter().filter(|x| x.is_finite()).fold(1e-3f64, |a, x| a.max(x.abs()));
    for tier in tiers() {
        let mut first: Option<Vec<f32>> = None;
        for team in [&Solo as &dyn Team, &Threads(2), &Threads(3)] {
            let mut out = vec![7f32; n_out + 4];
            let mut bufs: Vec<u64> = inputs.iter().map(|b| b.as_ref().map_or(0, |b| b.as_ptr() as u64)).collect();
            bufs.push(out.as_mut_ptr() as u64);
            let id = catalog::find(&format!("{name}.f32")).unwrap();
            // SAFETY: buffers have the sizes that the integers say.
            unsafe { cpu::run(id, tier, team, &Args { bufs: &bufs, ints, scalars }) }.unwrap();
            for (i, (got, want)) in out.iter().zip(want).enumerate() {
                let close = (f64::from(*got) - want).abs() <= 1e-5 * scale || (got.is_nan() && want.is_nan());
                assert!(close, "{name} {tier:?} {what}: element {i} is {got}, not {want}");
            }
            assert_eq!(&out[n_out..], &[7.0; 4], "{name} wrote beyond its output");
            out.truncate(n_out);
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            match &first {
                None => first = Some(out),
                Some(f) => assert_eq!(bits(f), bits(&out), "{name} {tier:?} {what}: threads change bits"),
            }
        }
        let half: Vec<Option<Vec<f16>>> =
            inputs.iter().map(|b| b.as_ref().map(|b| b.iter().map(|&x| f16::from_f32(x)).collect())).collect();
        let mut out = vec![f16::ZERO; n_out];
        let mut bufs: Vec<u64> = half.iter().map(|b| b.as_ref().map_or(0, |b| b.as_ptr() as u64)).collect();
        bufs.push(out.as_mut_ptr() as u64);
        let id = catalog::find(&format!("{name}.f16")).unwrap();
        // SAFETY: buffers have the sizes that the integers say.
        unsafe { cpu::run(id, tier, &Solo, &Args { bufs: &bufs, ints, scalars }) }.unwrap();
        for (i, (got, want)) in out.iter().zip(want).enumerate() {
            let close = (got.to_f64() - want).abs() <= 1e-3 * scale || (got.is_nan() && want.is_nan());
            assert!(close, "{name}.f16 {tier:?} {what}: element {i} is {got}, not {want}");
        }
    }
}

#[test]
fn gemm_matches_plain_loops() {
    let mut r = Rand::new(1);
    let mut covered = [0; 9];
    for case in 0..120 {
        let batch = r.of(&[1, 1, 2, 3]);
        let (m, n, k) =
            (r.of(&[1, 2, 5, 6, 7, 33, 130]), r.of(&[1, 3, 16, 17, 64, 65, 200, 300]), r.of(&[0, 1, 7, 64, 257, 600]));
        let (ta, tb, shared_b) = (r.chance(), r.chance(), r.chance());
        let act = r.of(&[0, 1, 2, 3, 4, 5, 6, 7, 8]);
        covered[act] += 1;
        let alpha = r.of(&[0.5, 1.0]);
        let (bias, residual) = (r.of(&[0, 1, 2, 3]), r.chance());
        let c = Gemm { batch, m, n, k, ta, tb, shared_b, alpha, bias, residual, act }.call(&mut r);
        check("gemm", &c.inputs, batch * m * n, &c.ints, &c.scalars, &c.want, &format!("case {case}: {}", c.what));
    }
    assert!(covered.iter().all(|&c| c > 0), "activations drawn: {covered:?}");
}

/// A long sum is one of short sums: the error stays below that of 64 products and as many sections, far below one per product.
#[test]
fn long_sums_keep_their_digits() {
    let k = 4096;
    for (m, n, tb) in [(1, 64, false), (1, 3, false), (8, 20, false)] {
        let (a, b) = (vec![1f32; m * k], vec![0.1f32; k * n]);
        let want: f64 = b[..k].iter().map(|&x| f64::from(x)).sum();
        let shape =
            Gemm { batch: 1, m, n, k, ta: false, tb, shared_b: true, alpha: 1.0, bias: 0, residual: false, act: 0 };
        let call = shape.call(&mut Rand::new(1));
        let id = catalog::find("gemm.f32").unwrap();
        for tier in tiers() {
            let mut out = vec![0f32; m * n];
            let bufs = [a.as_ptr() as u64, b.as_ptr() as u64, 0, 0, out.as_mut_ptr() as u64];
            // SAFETY: buffers have the sizes that the integers say.
            unsafe { cpu::run(id, tier, &Solo, &Args { bufs: &bufs, ints: &call.ints, scalars: &call.scalars }) }
                .unwrap();
            let error = out.iter().map(|&x| (f64::from(x) - want).abs() / want).fold(0.0, f64::max);
            assert!(error < 8.0 * f64::from(f32::EPSILON), "{m}x{n} {tier:?}: off by {error:.1e}");
        }
    }
}

#[test]
fn nbits_matches_plain_loops() {
    let mut r = Rand::new(7);
    for case in 0..60 {
        let (m, n) = (r.of(&[1, 2, 3, 7, 33]), r.of(&[1, 3, 16, 64, 65, 130]));
        let (k, bits, block) = (r.of(&[0, 1, 16, 40, 64, 100, 300, 515]), r.of(&[2, 4, 8]), r.of(&[16, 32, 128]));
        let c = plain::nbits([m, n, k, bits, block], r.chance(), r.chance(), &mut r);
        let scale = c.want.iter().fold(1e-3f64, |a, x| a.max(x.abs()));
        let half = |v: &[f32]| v.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
        let (a, scales, bias) = (half(&c.a), half(&c.scales), c.bias.as_deref().map(half));
        for tier in tiers() {
            let mut first: Option<Vec<f32>> = None;
            for team in [&Solo as &dyn Team, &Threads(2), &Threads(3)] {
                let mut out = vec![7f32; m * n + 4];
                let zeros = c.zeros.as_ref().map_or(0, |z| z.as_ptr() as u64);
                let own_bias = c.bias.as_ref().map_or(0, |z| z.as_ptr() as u64);
                let [x, s, y] = [c.a.as_ptr() as u64, c.scales.as_ptr() as u64, out.as_mut_ptr() as u64];
                let bufs = [x, c.b.as_ptr() as u64, s, zeros, own_bias, y];
                let id = catalog::find("nbits.f32").unwrap();
                // SAFETY: buffers have the sizes that the integers say.
                unsafe { cpu::run(id, tier, team, &Args { bufs: &bufs, ints: &c.ints, scalars: &[] }) }.unwrap();
                for (got, want) in out.iter().zip(&c.want) {
                    let close = (f64::from(*got) - want).abs() <= 1e-5 * scale;
                    assert!(close, "{tier:?} case {case} {:?}: {got}, not {want}", c.ints);
                }
                assert_eq!(&out[m * n..], &[7.0; 4]);
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                match &first {
                    None => first = Some(out),
                    Some(f) => assert_eq!(bits(f), bits(&out), "{tier:?} {:?}: threads change bits", c.ints),
                }
            }
            let mut out = vec![f16::ZERO; m * n];
            let zeros = c.zeros.as_ref().map_or(0, |z| z.as_ptr() as u64);
            let own_bias = bias.as_ref().map_or(0, |z| z.as_ptr() as u64);
            let [x, s, y] = [a.as_ptr() as u64, scales.as_ptr() as u64, out.as_mut_ptr() as u64];
            let bufs = [x, c.b.as_ptr() as u64, s, zeros, own_bias, y];
            let id = catalog::find("nbits.f16").unwrap();
            // SAFETY: buffers have the sizes that the integers say.
            unsafe { cpu::run(id, tier, &Solo, &Args { bufs: &bufs, ints: &c.ints, scalars: &[] }) }.unwrap();
            for (got, want) in out.iter().zip(&c.want) {
                assert!((got.to_f64() - want).abs() <= 1e-3 * scale, "f16 {:?}: {got}, not {want}", c.ints);
            }
        }
    }
}

#[test]
fn conv2d_matches_plain_loops() {
    let mut r = Rand::new(2);
    for case in 0..120 {
        let (n, group) = (r.of(&[1, 2]), r.of(&[1, 1, 2, 4, 12]));
        let (cg, mg) = (r.of(&[1, 1, 3, 8, 40]), r.of(&[1, 2, 7, 20]));
        let (c, m) = (cg * group, mg * group);
        let (h, w) = (r.of(&[1, 5, 9, 18, 33]), r.of(&[1, 6, 17, 35]));
        let (kh, kw) = (r.of(&[1, 1, 2, 3]).min(h), r.of(&[1, 1, 3, 5]).min(w));
        let (sh, sw, dh, dw) = (r.of(&[1, 1, 2]), r.of(&[1, 1, 2, 3]), r.of(&[1, 1, 2]), r.of(&[1, 1, 2]));
        let (pt, pl, pb, pr) = (r.of(&[0, 1, 2]), r.of(&[0, 1, 2]), r.of(&[0, 1]), r.of(&[0, 1, 3]));
        let (eh, ew) = ((kh - 1) * dh + 1, (kw - 1) * dw + 1);
        if h + pt + pb < eh || w + pl + pr < ew {
            continue;
        }
        let (oh, ow) = ((h + pt + pb - eh) / sh + 1, (w + pl + pr - ew) / sw + 1);
        let act = r.of(&[0, 1, 7, 8]);
        let (x, wt) = (r.vec(n * c * h * w), r.vec(m * cg * kh * kw));
        let bias = (r.of(&[0, 1]) == 1).then(|| r.vec(m));
        let res = (r.of(&[0, 1]) == 1).then(|| r.vec(n * m * oh * ow));
        let ints = [n, c, h, w, m, kh, kw, group, sh, sw, pt, pl, dh, dw, oh, ow, act].map(|x| x as i64);
        let want = plain::conv2d(&x, &wt, bias.as_deref(), res.as_deref(), &ints, &[-0.25, 0.5]);
        let what = format!("case {case}: {ints:?}");
        check("conv2d", &[Some(x), Some(wt), bias, res], n * m * oh * ow, &ints, &[-0.25, 0.5], &want, &what);
    }
}

#[test]
fn pool2d_matches_plain_loops() {
    let mut r = Rand::new(3);
    for case in 0..120 {
        let (nc, h, w) = (r.of(&[1, 3, 7]), r.of(&[1, 4, 9]), r.of(&[1, 5, 12]));
        let (kh, kw) = (r.of(&[1, 2, 3]).min(h), r.of(&[1, 2, 3]).min(w));
        let (sh, sw, dh, dw) = (r.of(&[1, 2]), r.of(&[1, 2, 3]), r.of(&[1, 1, 2]), r.of(&[1, 2]));
        let (eh, ew) = ((kh - 1) * dh + 1, (kw - 1) * dw + 1);
        let (pt, pl, pb, pr) = (r.of(&[0, 1]).min(kh - 1), r.of(&[0, 1]).min(kw - 1), r.of(&[0, 1]), r.of(&[0, 1]));
        if h + pt + pb < eh || w + pl + pr < ew {
            continue;
        }
        // Rounded up, as ceil_mode does, but never starting a window in the padding after the image.
        let out = |h: usize, pt: usize, pb: usize, eh: usize, s: usize| {
            let o = (h + pt + pb - eh).div_ceil(s) + 1;
            if (o - 1) * s >= h + pt { o - 1 } else { o }
        };
        let (oh, ow) = (out(h, pt, pb, eh, sh), out(w, pl, pr, ew, sw));
        for kind in 0..3usize {
            let x = r.vec(nc * h * w);
            let ints = [nc, h, w, kh, kw, sh, sw, pt, pl, dh, dw, oh, ow, kind, pb, pr].map(|x| x as i64);
            let Some(want) = plain::pool2d(&x, &ints) else { continue };
            check("pool2d", &[Some(x)], nc * oh * ow, &ints, &[], &want, &format!("case {case}: {ints:?}"));
        }
    }
    // Taps a step of 2 apart around an image of one column: nothing but padding.
    let ints = [1, 3, 1, 2, 2, 1, 1, 0, 1, 1, 2, 2, 1, 1, 0, 1];
    check("pool2d", &[Some(vec![1.0, 2.0, 3.0])], 2, &ints, &[], &[0.0, 0.0], "nothing but padding");
}

#[test]
fn attention_matches_plain_loops() {
    let mut r = Rand::new(4);
    for case in 0..60 {
        let (b, h) = (r.of(&[1, 2]), r.of(&[1, 3]));
        let (s, t) = (r.of(&[1, 5, 48, 50, 100]), r.of(&[1, 7, 16, 130, 300]));
        let (d, e) = (r.of(&[1, 8, 32, 33]), r.of(&[1, 16, 20]));
        let k_trans = r.of(&[0, 1]) == 1;
        let (k_row, k_col) = if k_trans { (1, t) } else { (d, 1) };
        let (mut q, k, v) = (r.vec(b * h * s * d), r.vec(b * h * t * d), r.vec(b * h * t * e));
        let (selects, nan_to_zero) = (r.of(&[0, 1]), r.of(&[0, 1]));
        if nan_to_zero == 1 {
            q[s / 2 * d] = f32::NAN;
        }
        // The mask is per batch and key, or its rows repeat; one key is shut out, and where NaN becomes 0, a row.
        let (mask_rows, mr) = r.of(&[(1, 0), (s, t), (if s % 5 == 0 { s / 5 } else { s }, t)]);
        let mask = (r.of(&[0, 1]) == 1).then(|| {
            let mut m = r.vec(b * mask_rows * t);
            if t > 1 {
                m[t - 1] = f32::NEG_INFINITY;
            }
            if nan_to_zero == 1 && mask_rows > 1 {
                m[t..2 * t].fill(f32::NEG_INFINITY);
            }
            if selects == 1 {
                m.iter_mut().step_by(2).for_each(|x| *x = 0.0);
            }
            m
        });
        let ints = plain::attention_ints(
            [b, h, s, t, d, e],
            [k_row, k_col],
            [mask_rows * t, 0, mr, 1, selects, mask_rows, nan_to_zero],
        );
        let want = plain::attention(&q, &k, &v, mask.as_deref(), &ints, 0.3);
        let what = format!("case {case}: {ints:?}");
        check("attention", &[Some(q), Some(k), Some(v), mask], b * h * s * e, &ints, &[0.3], &want, &what);
    }
}

#[test]
fn nonzero_counts_and_lists() {
    let x: Vec<i64> = (0..24).map(|i| if i % 5 == 0 { i } else { 0 }).collect();
    let call = |name: &str, bufs: &[u64], ints: &[i64]| {
        let id = catalog::find(name).unwrap();
        // SAFETY: buffers have the sizes that the integers say.
        unsafe { cpu::run(id, Tier::detect(), &Solo, &Args { bufs, ints, scalars: &[] }) }
    };
    let mut n = 0i64;
    call("nonzero_count.i64", &[x.as_ptr() as u64, &raw mut n as u64], &[24]).unwrap();
    assert_eq!(n, 4);
    let mut y = vec![0i64; 12];
    call("nonzero_fill.i64", &[x.as_ptr() as u64, y.as_mut_ptr() as u64], &[3, 4, 2, 3, 4, 1, 1, 1, 1, 1]).unwrap();
    assert_eq!(y, [0, 0, 1, 1, 1, 2, 0, 2, 1, 2, 3, 0]);
    let short = call("nonzero_fill.i64", &[x.as_ptr() as u64, y.as_mut_ptr() as u64], &[3, 3, 2, 3, 4, 1, 1, 1, 1, 1]);
    assert!(short.is_err(), "a wrong count is noticed");
}

#[test]
fn argsort_gives_the_first_of_equal_keys_first() {
    let keys: Vec<u64> = [3, 1, 1 << 63, 1, 0, 2, 2, 2, 2, 2].to_vec();
    let (mut work, id) = (vec![(0u64, 0u64); 10], catalog::find("argsort.u64").unwrap());
    let mut call = |y: &mut [i64], ints: &[i64]| {
        let bufs = [keys.as_ptr() as u64, y.as_mut_ptr() as u64, work.as_mut_ptr() as u64];
        // SAFETY: buffers have the sizes that the integers say.
        unsafe { cpu::run(id, Tier::detect(), &Threads(2), &Args { bufs: &bufs, ints, scalars: &[] }) }
    };
    let mut y = vec![-1i64; 10];
    call(&mut y, &[2, 5, 5]).unwrap();
    assert_eq!(y, [4, 1, 3, 0, 2, 0, 1, 2, 3, 4]);
    call(&mut y, &[2, 5, 2]).unwrap();
    assert_eq!(y[..4], [4, 1, 0, 1]);
    assert!(call(&mut y, &[2, 5, 6]).is_err(), "more keys than there are");
}

#[test]
fn boxes_that_cover_one_before_them_are_left_out() {
    // Opposite corners y, x: the second covers the first by 1/3, the third has no area, the fourth is far away.
    let boxes = [0.0f32, 0.0, 1.0, 1.0, 1.5, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0, 5.0, 5.0, 6.0, 6.0];
    let id = catalog::find("nms.f32").unwrap();
    let call = |order: [i64; 8], eligible: [u8; 8], limit: i64, iou: f32| {
        let mut kept = [7i64; 8];
        let bufs = [
            boxes.as_ptr() as u64,
            order.as_ptr() as u64,
            eligible.as_ptr() as u64,
            &raw const limit as u64,
            &raw const iou as u64,
            kept.as_mut_ptr() as u64,
        ];
        // SAFETY: buffers have the sizes that the integers say.
        let r = unsafe {
            cpu::run(id, Tier::detect(), &Threads(2), &Args { bufs: &bufs, ints: &[1, 2, 4, 0], scalars: &[] })
        };
        r.map(|()| kept)
    };
    let order = [0, 1, 2, 3, 3, 2, 1, 0];
    assert_eq!(call(order, [1; 8], 4, 0.3).unwrap(), [0, 2, 3, -1, 3, 2, 1, -1]);
    assert_eq!(call(order, [1; 8], 4, 0.34).unwrap(), [0, 1, 2, 3, 3, 2, 1, 0]);
    assert_eq!(call(order, [0, 1, 1, 1, 1, 1, 1, 1], 2, 0.3).unwrap(), [1, 2, -1, -1, 3, 2, -1, -1]);
    assert_eq!(call(order, [1; 8], -1, 0.3).unwrap(), [-1; 8]);
    assert!(call([4; 8], [1; 8], 1, 0.3).is_err(), "a box that there is not");
}

/// Lengths of every kind of factors, by the definition; the same bits for any number of threads.
#[test]
fn transforms_of_any_length() {
    let id = catalog::find("dft.f64").unwrap();
    for (n, t, inverse) in
        [(1usize, 1usize, 0i64), (2, 2, 0), (8, 8, 1), (12, 9, 0), (30, 40, 1), (37, 37, 0), (49, 49, 0), (121, 100, 1)]
    {
        let (outer, inner) = (2usize, 3usize);
        let mut rand = Rand::new(n as u64);
        let x: Vec<f64> = (0..outer * t * inner * 2).map(|_| f64::from(rand.of(&[-1.0f32, 0.5, 0.25, 3.0]))).collect();
        let turn = |k: usize| std::f64::consts::TAU * (k % n) as f64 / n as f64;
        let roots: Vec<f64> = (0..n).flat_map(|k| [turn(k).cos(), turn(k).sin()]).collect();
        let ints = [outer, t, inner, 2, n, n, 2, inverse as usize].map(|v| v as i64);
        let run = |team: &dyn Team| {
            let (mut y, mut work) = (vec![7f64; outer * n * inner * 2 + 1], vec![[0f64; 2]; 2 * n * outer * inner]);
            let bufs = [x.as_ptr() as u64, roots.as_ptr() as u64, y.as_mut_ptr() as u64, work.as_mut_ptr() as u64];
            // SAFETY: buffers have the sizes that the integers say.
            unsafe { cpu::run(id, Tier::detect(), team, &Args { bufs: &bufs, ints: &ints, scalars: &[] }) }.unwrap();
            y
        };
        let y = run(&Solo);
        assert_eq!(y, run(&Threads(3)));
        assert_eq!(y.last(), Some(&7.0), "nothing beyond the result is written");
        for (p, got) in y[..y.len() - 1].chunks(2).enumerate() {
            let (o, k, i) = (p / inner / n, p / inner % n, p % inner);
            let mut sum = [0.0; 2];
            for u in 0..n.min(t) {
                let at = ((o * t + u) * inner + i) * 2;
                let (s, c) = turn(u * k).sin_cos();
                let s = if inverse == 1 { s } else { -s };
                sum[0] += x[at] * c - x[at + 1] * s;
                sum[1] += x[at] * s + x[at + 1] * c;
            }
            let scale = if inverse == 1 { n as f64 } else { 1.0 };
            for (g, s) in got.iter().zip(sum) {
                assert!((g - s / scale).abs() < 1e-11, "n = {n}, bin {k}: {g}, not {}", s / scale);
            }
        }
    }
}

#[test]
fn wrong_calls_are_errors() {
    // SAFETY: these calls fail before any buffer is touched.
    let run = |id, bufs: &[u64], ints: &[i64], s: &[f64]| unsafe {
        cpu::run(id, Tier::Portable, &Solo, &Args { bufs, ints, scalars: s })
    };
    assert!(run(999, &[], &[], &[]).unwrap_err().0.contains("no kernel"));
    assert!(run(0, &[0], &[], &[]).unwrap_err().0.contains("gemm.f32 takes 5 buffers"));
    let mut ints = [1i64; 15];
    ints[2] = -4;
    assert!(run(0, &[0; 5], &ints, &[1.0, 0.0, 0.0]).unwrap_err().0.contains("is -4"));
    assert!(run(0, &[0; 5], &[1; 15], &[1.0, 0.0, 0.0]).unwrap_err().0.contains("buffer a is missing"));
    let names: std::collections::BTreeSet<_> = CATALOG.iter().map(|k| k.name).collect();
    assert_eq!(names.len(), CATALOG.len(), "names are unique");
}
