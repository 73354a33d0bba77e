//! Regions of images, and pooling of what a mask leaves.

use crate::conv::Window;
use crate::data::{f64s, from_f64s, ints};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

fn fail(text: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// `CropAndResize`: of images `x [n, c, h, w]` the regions `rois [r, 4]`, each y and x of its first and last place as fractions of the
/// image, of the images `batch [r]`, resized to `size`. Places outside the image are `other`.
///
/// Coordinates are computed in f32, in f64 where `x` is: which places are outside depends on it.
///
/// # Errors
/// `Shape` when operands do not fit.
pub fn crop_and_resize([x, rois, batch]: [&Tensor; 3], size: &[usize], nearest: bool, other: f64) -> Result<Tensor> {
    let (&[n, c, h, w], &[r, 4], &[rows, columns]) = (x.shape(), rois.shape(), size) else {
        return Err(fail("CropAndResize: operands do not fit"));
    };
    if batch.shape() != [r] || (h * w == 0 && r * c * rows * columns > 0) {
        return Err(fail("CropAndResize: operands do not fit, or an image has no elements"));
    }
    let round = |v: f64| if x.dtype() == DType::F64 { v } else { f64::from(v as f32) };
    let (v, rois, batch) = (f64s(x), f64s(rois), ints(batch));
    let place = |from: f64, to: f64, extent: usize, count: usize, i: usize| {
        let last = extent as f64 - 1.0;
        if count == 1 {
            return round(round(round(from + to) * 0.5) * last);
        }
        let step = round(round(round(to - from) * last) / (count as f64 - 1.0));
        match i {
            0 => round(from * last),
            i if i + 1 == count => round(to * last),
            i => round(round(from * last) + round(i as f64 * step)),
        }
    };
    // The two elements around a place, and how near it is to the second.
    let around = |at: f64, extent: usize| {
        let within = at >= 0.0 && at <= extent as f64 - 1.0;
        within.then(|| (at.floor() as usize, at.ceil() as usize, at - at.floor()))
    };
    let mut y = Vec::with_capacity(r * c * rows * columns);
    for (roi, channel, i, j) in (0..r)
        .flat_map(|r| (0..c).flat_map(move |c| (0..rows).flat_map(move |i| (0..columns).map(move |j| (r, c, i, j)))))
    {
        let b = &rois[roi * 4..][..4];
        let row = around(place(b[0], b[2], h, rows, i), h);
        let column = around(place(b[1], b[3], w, columns, j), w);
        let image = usize::try_from(batch[roi]).ok().filter(|&i| i < n).ok_or_else(|| fail("no such image"))?;
        let e = |i: usize, j: usize| v[((image * c + channel) * h + i) * w + j];
        y.push(match (row, column) {
            (Some((top, bottom, down)), Some((left, right, along))) if nearest => {
                e(if down >= 0.5 { bottom } else { top }, if along >= 0.5 { right } else { left })
            }
            (Some((top, bottom, down)), Some((left, right, along))) => {
                let mix = |i: usize| e(i, left) * (1.0 - along) + e(i, right) * along;
                mix(top) * (1.0 - down) + mix(bottom) * down
            }
            _ => other,
        });
    }
    Ok(from_f64s(x.dtype(), &[r, c, rows, columns], &y))
}

/// `MaxpoolWithMask`: the greatest element of every window of `x [n, c, image…]`, the least number of f32 where there is none. Along the
/// last axis a row of a window ends at the first element whose mask is 0; of images of several axes the first element counts whatever its
/// mask is. Batch and channels of the mask are those of `x`, or 1.
///
/// # Errors
/// `Shape` when operands do not fit.
pub fn masked_max_pool(x: &Tensor, mask: &Tensor, window: &Window) -> Result<Tensor> {
    let wrong = || fail("MaxpoolWithMask: operands do not fit");
    let ([n, c, image @ ..], [mn, mc, rest @ ..]) = (x.shape(), mask.shape()) else { return Err(wrong()) };
    let rank = image.len();
    if rest != image || rank == 0 || ![1, *n].contains(mn) || ![1, *c].contains(mc) {
        return Err(wrong());
    }
    let outs = window.outputs(image)?;
    let (v, m) = (f64s(x), ints(mask));
    let size: usize = image.iter().product();
    let (n_out, n_rows): (usize, usize) = (outs.iter().product(), window.kernel[..rank - 1].iter().product());
    let split = |mut k: usize, shape: &[usize]| {
        let mut at = vec![0; shape.len()];
        for (a, &d) in shape.iter().enumerate().rev() {
            (at[a], k) = (k % d, k / d);
        }
        at
    };
    let mut y = Vec::new();
    for (plane, out) in (0..n * c).flat_map(|p| (0..n_out).map(move |o| (p, o))) {
        let of_mask = if *mn == 1 { 0 } else { plane / c * mc } + if *mc == 1 { 0 } else { plane % c };
        let first: Vec<i64> = split(out, &outs)
            .iter()
            .enumerate()
            .map(|(a, &o)| (o * window.strides[a]) as i64 - window.begin[a])
            .collect();
        let mut best = f64::from(f32::MIN);
        for row in 0..n_rows {
            let row = split(row, &window.kernel[..rank - 1]);
            for k in 0..window.kernel[rank - 1] {
                let at = first.iter().zip(row.iter().chain([&k])).map(|(&f, &k)| f + k as i64);
                let at: Option<Vec<usize>> =
                    at.zip(image).map(|(i, &n)| usize::try_from(i).ok().filter(|&i| i < n)).collect();
                let Some(at) = at else { continue };
                let p = at.iter().zip(image).fold(0, |p, (i, n)| p * n + i);
                if m[of_mask * size + p] == 0 && (rank == 1 || p > 0) {
                    break;
                }
                let e = v[plane * size + p];
                best = if e > best { e } else { best };
            }
        }
        y.push(best);
    }
    Ok(from_f64s(x.dtype(), &[&[*n, *c], outs.as_slice()].concat(), &y))
}
