//! Calls of every kernel: odd sizes, every stride and epilogue, every tile, masked rows, NaN.

use crate::case::{Call, Case, Data, Want};
use crate::plain::{self, Gemm, Rand};
use kernels::gpu::catalog::{fill, store_ints};

/// f32 and f16 versions of a float case share inputs and answer.
fn both(
    name: &str,
    what: &str,
    inputs: &[Option<Vec<f32>>],
    ints: &[i64],
    scalars: &[f64],
    want: Vec<f64>,
) -> Vec<Case> {
    let mut out = Vec::new();
    for half in [false, true] {
        let data = inputs.iter().map(|b| b.as_ref().map(|v| Data::floats(v, half))).collect();
        let tolerance = match (half, name) {
            (false, _) => 1e-5,
            (true, "attention") => 2e-3,
            (true, _) => 1e-3,
        };
        let want = Want::Near { values: want.clone(), half, tolerance };
        let kernel = format!("{name}.{}", if half { "f16" } else { "f32" });
        out.push(Case::catalog(&kernel, what.to_string(), data, ints.to_vec(), scalars.to_vec(), want));
    }
    out
}

/// With every address off alignment by some elements.
fn skewed(cases: Vec<Case>, skew: usize) -> impl Iterator<Item = Case> {
    cases.into_iter().map(move |c| Case { skew, ..c })
}

/// Matrix products.
pub fn gemm() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(11), Vec::new());
    // (batch, m, n, k): few rows, small tiles, large tiles (by batch), nothing to sum.
    let sizes = [
        (1, 1, 130, 257),
        (2, 4, 65, 40),
        (1, 3, 70, 64),
        (1, 2, 9, 100),
        (2, 5, 17, 33),
        (1, 64, 64, 64),
        (1, 67, 130, 31),
        (1, 33, 200, 96),
        (1, 70, 66, 0),
        (1, 130, 129, 7),
        (48, 65, 130, 40),
        (96, 66, 128, 17),
    ];
    for (i, &(batch, m, n, k)) in sizes.iter().cycle().take(2 * sizes.len() - 2).enumerate() {
        let (ta, tb, shared_b) = (r.chance(), if m <= 4 { i < sizes.len() } else { r.chance() }, r.chance());
        // Every activation and bias, and none.
        let (act, bias, residual) = (i % 9, i % 4, i % 3 != 0);
        let alpha = r.of(&[1.0, 0.5]);
        let c = Gemm { batch, m, n, k, ta, tb, shared_b, alpha, bias, residual, act }.call(&mut r);
        out.extend(skewed(both("gemm", &c.what, &c.inputs, &c.ints, &c.scalars, c.want), i % 5 / 4));
    }
    out
}

/// Convolutions.
pub fn conv() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(12), Vec::new());
    // n, c/group, m/group, group, h, w, kh, kw, stride, dilation, pad
    let sizes = [
        (1, 3, 7, 1, 9, 17, 3, 3, (1, 1), (1, 1), (1, 1)),
        (2, 5, 66, 1, 5, 6, 3, 1, (1, 2), (1, 1), (1, 0)),
        (1, 16, 20, 2, 8, 8, 1, 1, (1, 1), (1, 1), (0, 0)),
        (2, 4, 3, 3, 11, 7, 2, 5, (2, 1), (2, 1), (2, 3)),
        (1, 8, 70, 1, 9, 9, 3, 3, (2, 2), (1, 2), (1, 2)),
        (1, 1, 1, 12, 9, 8, 3, 3, (1, 1), (1, 1), (1, 1)),
        (2, 1, 3, 4, 7, 10, 3, 5, (2, 1), (1, 2), (2, 3)),
        (3, 3, 130, 1, 60, 48, 3, 3, (1, 1), (1, 1), (1, 1)),
    ];
    for (i, &(n, cg, mg, group, h, w, kh, kw, (sh, sw), (dh, dw), (ph, pw))) in
        sizes.iter().cycle().take(2 * sizes.len() - 1).enumerate()
    {
        // The image and its neighbours below and to the right need not be padded alike.
        let (pb, pr) = (r.of(&[0, ph]), r.of(&[0, pw]));
        let (c, m) = (cg * group, mg * group);
        let (oh, ow) = ((h + ph + pb - (kh - 1) * dh - 1) / sh + 1, (w + pw + pr - (kw - 1) * dw - 1) / sw + 1);
        let (act, with_bias, with_res) =
            ([1, 0, 7, 8, 4][i % 5], i % 2 == 0 || i % 3 == 0 || i == 7, i % 3 != 1 || i == 7);
        let (x, wt) = (r.vec(n * c * h * w), r.vec(m * cg * kh * kw));
        let bias = with_bias.then(|| r.vec(m));
        let res = with_res.then(|| r.vec(n * m * oh * ow));
        let ints = [n, c, h, w, m, kh, kw, group, sh, sw, ph, pw, dh, dw, oh, ow, act].map(|x| x as i64);
        let want = plain::conv2d(&x, &wt, bias.as_deref(), res.as_deref(), &ints, &[-0.25, 0.5]);
        let what = format!("{ints:?} bias {with_bias} residual {with_res}");
        out.extend(skewed(
            both("conv2d", &what, &[Some(x), Some(wt), bias, res], &ints, &[-0.25, 0.5], want),
            i % 5 / 4,
        ));
    }
    out
}

/// Pooling.
pub fn pool() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(13), Vec::new());
    for i in 0..12 {
        let (nc, h, w) = (r.of(&[1, 3, 7]), r.of(&[4, 9]), r.of(&[5, 12]));
        let (kh, kw) = (r.of(&[1, 2, 3]), r.of(&[2, 3]));
        let (sh, sw, dh, dw) = (r.of(&[1, 2]), r.of(&[1, 2]), r.of(&[1, 1]), r.of(&[1, 2]));
        let (pt, pl, pb, pr) = (r.of(&[0, 1]).min(kh - 1), r.of(&[0, 1]), r.of(&[0, 1]).min(kh - 1), r.of(&[0, 1]));
        let (oh, ow) = ((h + pt + pb - (kh - 1) * dh - 1) / sh + 1, (w + pl + pr - (kw - 1) * dw - 1) / sw + 1);
        let kind = i % 3;
        let mut x = r.vec(nc * h * w);
        if i == 3 {
            x[h * w / 2] = f32::NAN;
        }
        let ints = [nc, h, w, kh, kw, sh, sw, pt, pl, dh, dw, oh, ow, kind, pb, pr].map(|x| x as i64);
        let Some(want) = plain::pool2d(&x, &ints) else { continue };
        out.extend(skewed(both("pool2d", &format!("{ints:?}"), &[Some(x)], &ints, &[], want), 0));
    }
    out
}

/// Attention.
pub fn attention() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(14), Vec::new());
    // batch, heads, s, t, d, e
    let sizes = [
        (1, 2, 5, 7, 8, 16),
        (2, 3, 33, 70, 64, 64),
        (1, 1, 100, 33, 33, 20),
        (1, 2, 1, 300, 64, 32),
        (1, 1, 66, 40, 128, 100),
        (1, 2, 20, 65, 72, 128),
        (1, 1, 3, 270, 20, 130),
        (2, 1, 2, 5, 160, 8),
        (1, 1, 4, 0, 8, 8),
        (1, 1, 16, 96, 64, 64),
        (1, 2, 12, 20, 16, 16),
    ];
    for (i, &(b, h, s, t, d, e)) in sizes.iter().enumerate() {
        let (k_row, k_col) = if i % 3 == 1 { (1, t) } else { (d, 1) };
        let (q, k, v) = (r.vec(b * h * s * d), r.vec(b * h * t * d), r.vec(b * h * t * e));
        // Masks per key; per row and key with the first row shut out; none. Values grow, so that the maximum moves late.
        let kind = i % 3;
        let selects = usize::from(i % 4 == 3 || i == 1);
        // Rows of the mask repeat where they can.
        let mask_rows = if kind == 1 && s % 2 == 0 { s / 2 } else { s };
        let (mask_len, mb, mr) = [(b * t, t, 0), (b * mask_rows * t, mask_rows * t, t), (0, 0, 0)][kind];
        let mask = (kind < 2).then(|| {
            let mut m = r.vec(mask_len);
            let late = |j: usize| (j % t.max(1)) as f32 / 16.0;
            m.iter_mut().enumerate().for_each(|(j, x)| *x = half::f16::from_f32(*x + late(j)).to_f32());
            let shut = if kind == 1 { 0..t } else { t.saturating_sub(1).max(1).min(t)..t };
            m[shut].fill(f32::NEG_INFINITY);
            if selects == 1 {
                m.iter_mut().step_by(3).for_each(|x| *x = 0.0);
            }
            m
        });
        // Once as it is, once with a row of NaN, which gives 0.
        for nan_to_zero in 0..=usize::from(kind == 1) {
            let mut q = q.clone();
            if nan_to_zero == 1 {
                q[(s - 1) * d] = f32::NAN;
            }
            let of_mask = [mb, 0, mr, 1, selects, mask_rows, nan_to_zero];
            let ints = plain::attention_ints([b, h, s, t, d, e], [k_row, k_col], of_mask);
            let want = plain::attention(&q, &k, &v, mask.as_deref(), &ints, 0.7);
            let inputs = [Some(q), Some(k.clone()), Some(v.clone()), mask.clone()];
            let calls = both("attention", &format!("{ints:?}"), &inputs, &ints, &[0.7], want);
            out.extend(skewed(calls, usize::from(i == 9)));
        }
    }
    out
}

/// Counting and listing.
pub fn nonzero() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(15), Vec::new());
    for dims in [vec![3usize, 5, 7], vec![2100], vec![1, 2, 1, 3, 2, 5, 1, 20], vec![0, 4], vec![1025]] {
        let n: usize = dims.iter().product();
        let picks: Vec<bool> = (0..n).map(|_| r.of(&[true, false, false])).collect();
        let places: Vec<usize> = (0..n).filter(|&i| picks[i]).collect();
        let mut fill_want = vec![0i64; dims.len() * places.len()];
        for (j, &p) in places.iter().enumerate() {
            let mut rest = p;
            for axis in (0..dims.len()).rev() {
                fill_want[axis * places.len() + j] = (rest % dims[axis]) as i64;
                rest /= dims[axis];
            }
        }
        let mut fill_ints = vec![dims.len() as i64, places.len() as i64];
        fill_ints.extend((0..8).map(|i| dims.get(i).map_or(1, |&d| d as i64)));
        for dtype in ["bool", "f32", "i64", "i32"] {
            let data = match dtype {
                "bool" => Data::U8(picks.iter().map(|&p| u8::from(p)).collect()),
                // NaN is not zero, -0 is; an integer whose low half is 0 is not.
                "f32" => Data::F32(
                    picks
                        .iter()
                        .enumerate()
                        .map(|(i, &p)| {
                            if !p {
                                -0.0
                            } else if i % 2 == 0 {
                                f32::NAN
                            } else {
                                -2.5
                            }
                        })
                        .collect(),
                ),
                "i64" => Data::I64(picks.iter().map(|&p| i64::from(p) << 40).collect()),
                _ => Data::I32(picks.iter().map(|&p| -i32::from(p)).collect()),
            };
            let count = Want::Exact((places.len() as i64).to_ne_bytes().to_vec());
            let what = format!("{dims:?}");
            let inputs = vec![Some(data)];
            out.push(Case::catalog(
                &format!("nonzero_count.{dtype}"),
                what.clone(),
                inputs.clone(),
                vec![n as i64],
                vec![],
                count,
            ));
            let list = Want::Exact(Data::I64(fill_want.clone()).bytes());
            out.push(Case::catalog(&format!("nonzero_fill.{dtype}"), what, inputs, fill_ints.clone(), vec![], list));
        }
    }
    out
}

/// Sorting: rows within a chunk of 1024 keys, rows of several chunks, ends that are not full, few of many, equal keys.
pub fn argsort() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(16), Vec::new());
    for (rows, n, k) in [
        (3usize, 7usize, 7usize),
        (2, 1024, 1024),
        (2, 1500, 1500),
        (1, 5000, 600),
        (3, 1025, 11),
        (1, 5000, 512),
        (2, 4000, 1),
        (4, 1, 1),
        (2, 33, 0),
    ] {
        let keys: Vec<i64> = (0..rows * n)
            .map(|i| if i % 3 == 0 { r.of(&[-1, 5, 0]) } else { r.of(&[1i64, 2, 3, 4, 5]) << r.of(&[0u32, 31, 61]) })
            .collect();
        let mut want = Vec::new();
        for row in keys.chunks(n) {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&i| row[i] as u64);
            want.extend(order[..k].iter().map(|&i| i as i64));
        }
        let ints = vec![rows as i64, n as i64, k as i64];
        let want = Want::Exact(Data::I64(want).bytes());
        let case = Case::catalog("argsort.u64", format!("{ints:?}"), vec![Some(Data::I64(keys))], ints, vec![], want);
        out.push(Case { scratch: 16 * rows * n, ..case });
    }
    out
}

/// Choice of boxes: more kept than a block has threads, limits, equal boxes, none eligible, boxes without area.
pub fn nms() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(18), Vec::new());
    // batch, classes, n, center, limit, iou
    for (batch, classes, n, center, limit, iou) in [
        (2usize, 3usize, 40usize, 0i64, 40i64, 0.5f32),
        (1, 1, 900, 1, 900, 0.9),
        (1, 2, 300, 0, 7, 0.3),
        (1, 1, 12, 1, 0, 0.5),
        (1, 2, 65, 0, 65, 0.0),
    ] {
        // Sides are multiples of a quarter: products and quotients come out alike in f32 and in f64.
        let boxes: Vec<f32> = (0..batch * n * 4)
            .map(|i| if i % 4 < 2 { r.of(&[0.0, 0.25, 3.0, 7.5, 9.0]) } else { r.of(&[0.0, 1.0, 2.5, 8.0]) })
            .collect();
        let rows = batch * classes;
        let step = [7, 11, 13].into_iter().find(|s| n % s != 0).unwrap_or(1);
        let order: Vec<i64> = (0..rows * n).map(|i| ((i % n * step + i / n) % n) as i64).collect();
        let eligible: Vec<u8> = (0..rows * n).map(|_| r.of(&[1, 1, 1, 0])).collect();
        let mut want = vec![-1i64; rows * n];
        for row in 0..rows {
            let corners = |at: i64| {
                let b = &boxes[(row / classes * n + at as usize) * 4..][..4];
                let b: Vec<f64> = b.iter().map(|&x| f64::from(x)).collect();
                match center {
                    0 => [b[0].min(b[2]), b[1].min(b[3]), b[0].max(b[2]), b[1].max(b[3])],
                    _ => [b[1] - b[3] / 2.0, b[0] - b[2] / 2.0, b[1] + b[3] / 2.0, b[0] + b[2] / 2.0],
                }
            };
            let area = |c: [f64; 4]| (c[2] - c[0]) * (c[3] - c[1]);
            let mut kept: Vec<i64> = vec![];
            for i in row * n..(row + 1) * n {
                let a = corners(order[i]);
                let covered = kept.iter().any(|&k| {
                    let b = corners(k);
                    let (h, w) = (a[2].min(b[2]) - a[0].max(b[0]), a[3].min(b[3]) - a[1].max(b[1]));
                    w > 0.0 && h > 0.0 && w * h / (area(a) + area(b) - w * h) > f64::from(iou)
                });
                if eligible[i] != 0 && !covered && (kept.len() as i64) < limit {
                    kept.push(order[i]);
                }
            }
            want[row * n..][..kept.len()].copy_from_slice(&kept);
        }
        let ints = vec![batch as i64, classes as i64, n as i64, center];
        let data = vec![
            Some(Data::F32(boxes)),
            Some(Data::I64(order)),
            Some(Data::U8(eligible)),
            Some(Data::I64(vec![limit])),
            Some(Data::F32(vec![iou])),
        ];
        let want = Want::Exact(Data::I64(want).bytes());
        out.push(Case::catalog("nms.f32", format!("{ints:?} {limit}"), data, ints, vec![], want));
    }
    out
}

/// Transforms: powers of two, mixed factors, primes, one element; padded, cut, of halves of spectra; more signals than blocks.
pub fn dft() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(19), Vec::new());
    // outer, t, inner, parts, n, bins, out_parts, inverse
    for [outer, t, inner, parts, n, bins, out_parts, inverse] in [
        [2usize, 8, 1, 1, 8, 8, 2, 0],
        [3, 12, 2, 2, 12, 12, 2, 1],
        [1, 300, 1, 1, 512, 257, 2, 0],
        [2, 40, 1, 2, 37, 37, 2, 0],
        [1, 16, 3, 2, 30, 30, 1, 1],
        [1, 9, 1, 2, 17, 17, 1, 1],
        [300, 4, 1, 1, 4, 3, 2, 0],
        [1, 1, 1, 1, 1, 1, 2, 0],
        [1, 600, 1, 2, 600, 600, 2, 1],
    ] {
        let x: Vec<f32> = (0..outer * t * inner * parts).map(|_| r.of(&[-1.0, -0.5, 0.25, 0.75, 2.0])).collect();
        let turn = |k: usize| std::f64::consts::TAU * k as f64 / n as f64;
        let roots: Vec<f64> = (0..n).flat_map(|k| [turn(k).cos(), turn(k).sin()]).collect();
        let mut want = vec![];
        for (o, k) in (0..outer * bins).map(|p| (p / bins, p % bins)) {
            for i in 0..inner {
                let at = |u: usize, part: usize| match u < t && part < parts {
                    true => f64::from(x[((o * t + u) * inner + i) * parts + part]),
                    false => 0.0,
                };
                let mut sum = [0.0; 2];
                for u in 0..n {
                    let mirrored = out_parts == 1 && u > n / 2;
                    let from = if mirrored { n - u } else { u };
                    let (a, b) = (at(from, 0), if mirrored { -at(from, 1) } else { at(from, 1) });
                    let angle = if inverse == 1 { turn(u * k % n) } else { -turn(u * k % n) };
                    sum[0] += a * angle.cos() - b * angle.sin();
                    sum[1] += a * angle.sin() + b * angle.cos();
                }
                let scale = if inverse == 1 { n as f64 } else { 1.0 };
                want.extend(sum[..out_parts].iter().map(|s| s / scale));
            }
        }
        let ints: Vec<i64> = [outer, t, inner, parts, n, bins, out_parts, inverse].map(|v| v as i64).to_vec();
        let wide = Data::F64(x.iter().map(|&x| f64::from(x)).collect());
        let calls = [
            ("dft.f32", Data::F32(x), Want::Near { values: want.clone(), half: false, tolerance: 1e-6 }),
            ("dft.f64", wide, Want::Wide { values: want, tolerance: 1e-13 }),
        ];
        for (name, x, want) in calls {
            let data = vec![Some(x), Some(Data::F64(roots.clone()))];
            let case = Case::catalog(name, format!("{ints:?}"), data, ints.clone(), vec![], want);
            out.push(Case { scratch: 32 * n * (outer * inner).min(256), ..case });
        }
    }
    out
}

/// Products with packed weights.
pub fn nbits() -> Vec<Case> {
    let (mut r, mut out) = (Rand::new(17), Vec::new());
    // m, n, k, bits, block
    let sizes = [
        (1, 9, 96, 4, 32),
        (3, 5, 70, 4, 16),
        (5, 7, 40, 2, 16),
        (4, 3, 64, 8, 64),
        (2, 6, 100, 8, 16),
        (9, 2, 33, 2, 128),
    ];
    for (i, &(m, n, k, bits, block)) in sizes.iter().cycle().take(2 * sizes.len()).enumerate() {
        let c = plain::nbits([m, n, k, bits, block], i % 3 != 0, i % 2 == 0, &mut r);
        for half in [false, true] {
            let float = |v: &Vec<f32>| Data::floats(v, half);
            let data = vec![
                Some(float(&c.a)),
                Some(Data::U8(c.b.clone())),
                Some(float(&c.scales)),
                c.zeros.clone().map(Data::U8),
                c.bias.as_ref().map(float),
            ];
            let want = Want::Near { values: c.want.clone(), half, tolerance: if half { 1e-3 } else { 1e-5 } };
            let kernel = if half { "nbits.f16" } else { "nbits.f32" };
            let skew = i % 5 / 4;
            let case = Case::catalog(kernel, format!("{:?}", c.ints), data, c.ints.to_vec(), vec![], want);
            out.push(Case { skew, ..case });
        }
    }
    out
}

/// What a draw depends on, with a seed of the node and without.
pub fn draw() -> Vec<Case> {
    let case = |ints: [i64; 5], want: [i64; 3]| {
        let want = Want::Exact(Data::I64(want.to_vec()).bytes());
        Case::catalog("draw.i64", format!("{ints:?}"), vec![], ints.to_vec(), vec![], want)
    };
    vec![case([3, -1, 9, 5, 6], [9 ^ 3 << 32, 5, 6]), case([3, 77, 9, 5, 6], [77 | i64::MIN, 5, 0])]
}

/// The runtime's own kernels: one written buffer, then words.
pub fn own() -> Vec<Case> {
    let case = |what: String, plan, ints: Vec<i64>, want: Vec<u8>| Case {
        what,
        call: Call::Own(plan),
        inputs: vec![],
        ints,
        scalars: vec![],
        want: Want::Exact(want),
        skew: 0,
        scratch: 0,
    };
    let mut out = Vec::new();
    let values: Vec<i64> = (0..16).map(|i| i * 0x1_0000_0001 - 7).collect();
    for (dtype, n) in [(7i64, 16usize), (7, 3), (6, 5), (6, 0)] {
        let mut ints = vec![dtype, n as i64];
        ints.extend(&values);
        let want =
            values[..n].iter().flat_map(|v| v.to_ne_bytes()[..if dtype == 7 { 8 } else { 4 }].to_vec()).collect();
        out.push(case(format!("store_ints {dtype} {n}"), store_ints(), ints, want));
    }
    for size in [1usize, 2, 4, 8] {
        let (n, value) = (300usize, 0x1234_5678_9abc_def0i64);
        let Ok(plan) = fill(n as u64) else { continue };
        let want = value.to_ne_bytes()[..size].repeat(n);
        out.push(case(format!("fill {size}"), plan, vec![size as i64, n as i64, value], want));
    }
    out
}
