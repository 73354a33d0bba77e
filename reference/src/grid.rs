//! Sampling of images at computed places: grids, regions of interest, deformed convolution.
//!
//! As in `resize`, coordinates are computed in f32 (f64 where they are given as such): which elements are the next must be the same
//! everywhere. Sums are in f64.

use crate::conv::Window;
use crate::data::{f64s, from_f64s};
use crate::movement::{count, each_coord, strides};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

fn fail(text: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// What stands outside of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Zeros.
    Zeros,
    /// The nearest element.
    Border,
    /// The image mirrored at its borders, again and again.
    Reflection,
}

/// How elements are made of those around a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// The nearest; the even one of two.
    Nearest,
    /// Weights that fall linearly with the distance.
    Linear,
    /// Cubic convolution with a = -0.75.
    Cubic,
}

/// Attributes of GridSample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridSample {
    /// See [`Sampling`].
    pub mode: Sampling,
    /// See [`Padding`].
    pub padding: Padding,
    /// Whether -1 and 1 are the centers of the outermost elements, else their outer edges.
    pub align_corners: bool,
}

/// A number in the precision of coordinates.
fn rounded(v: f64, wide: bool) -> f64 {
    if wide { v } else { f64::from(v as f32) }
}

/// `x` mirrored at `lo` and `hi` until it lies between them.
pub fn reflected(x: f64, lo: f64, hi: f64, wide: bool) -> f64 {
    let (r, range) = (|v| rounded(v, wide), hi - lo);
    if !(x < lo || x > hi) {
        return x;
    }
    if range <= 0.0 {
        return lo;
    }
    let below = x < lo;
    let d = r(if below { lo - x } else { x - hi });
    let n = r(d / range).trunc();
    let rest = r(d - r(n * range));
    let odd = n - 2.0 * (n * 0.5).floor() != 0.0;
    if below != odd { r(lo + rest) } else { r(hi - rest) }
}

/// The elements of an axis of `n` elements that make one at `x`, with their weights; `None` stands for zeros.
fn taps(how: GridSample, n: usize, x: f64, wide: bool) -> Vec<(Option<usize>, f64)> {
    let r = |v| rounded(v, wide);
    let len = n as f64;
    let (lo, hi) = if how.align_corners { (0.0, len - 1.0) } else { (-0.5, len - 0.5) };
    let mut x = match how.align_corners {
        true => r(r(r(x + 1.0) / 2.0) * (len - 1.0)),
        false => r(r(r(r(x + 1.0) * len) - 1.0) / 2.0),
    };
    if how.mode == Sampling::Nearest {
        x = x.round_ties_even();
    }
    match how.padding {
        Padding::Border if how.mode != Sampling::Cubic && (x < lo || x > hi) => x = x.clamp(0.0, len - 1.0),
        Padding::Reflection => x = reflected(x, lo, hi, wide),
        _ => {}
    }
    let pixel = |i: f64| {
        let i = if how.padding == Padding::Reflection { reflected(i, lo, hi, wide).trunc() } else { i };
        let inside = i >= 0.0 && i <= len - 1.0;
        (inside || how.padding != Padding::Zeros).then(|| i.max(0.0).min(len - 1.0) as usize)
    };
    if how.mode == Sampling::Nearest {
        return vec![(pixel(x), 1.0)];
    }
    let (floor, part) = (x.floor(), x - x.floor());
    if how.mode == Sampling::Linear {
        return vec![(pixel(floor), 1.0 - part), (pixel(r(floor + 1.0)), part)];
    }
    [-1.0, 0.0, 1.0, 2.0].into_iter().map(|k| (pixel(r(floor + k)), cubic(k - part))).collect()
}

fn cubic(d: f64) -> f64 {
    let (a, d) = (-0.75, d.abs());
    if d <= 1.0 { ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0 } else { ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a }
}

/// `x [n, c, image…]` at the places of `grid [n, outs…, r]`, each listed from the last spatial axis to the first, in -1 … 1 over the image.
///
/// # Errors
/// `Shape` when the two do not fit, or there is no element to repeat.
pub fn grid_sample(x: &Tensor, grid: &Tensor, how: GridSample) -> Result<Tensor> {
    let wrong = || fail(format!("GridSample of {:?} at {:?}", x.shape(), grid.shape()));
    let ([n, c, image @ ..], [m, outs @ .., r]) = (x.shape(), grid.shape()) else { return Err(wrong()) };
    let shape = [&[*n, *c], outs].concat();
    if n != m || *r != image.len() || outs.len() != image.len() || (count(image) == 0 && count(&shape) > 0) {
        return Err(wrong());
    }
    let (v, g, st, wide) = (f64s(x), f64s(grid), strides(image), grid.dtype() == DType::F64);
    let mut y = Vec::with_capacity(count(&shape));
    for plane in 0..n * c {
        let v = &v[plane * count(image)..(plane + 1) * count(image)];
        for p in 0..count(outs) {
            let at = &g[(plane / c * count(outs) + p) * r..][..*r];
            let axes: Vec<_> = (0..*r).map(|a| taps(how, image[a], at[r - 1 - a], wide)).collect();
            y.push(sum(v, &st, &axes, Some(0)));
        }
    }
    Ok(from_f64s(x.dtype(), &shape, &y))
}

/// The weighted sum over the taps of all axes; zeros outside.
fn sum(v: &[f64], strides: &[usize], axes: &[Vec<(Option<usize>, f64)>], base: Option<usize>) -> f64 {
    let Some((taps, rest)) = axes.split_first() else { return base.map_or(0.0, |p| v[p]) };
    let one = |&(i, w): &(Option<usize>, f64)| {
        let part = sum(v, &strides[1..], rest, base.zip(i).map(|(b, i)| b + i * strides[0]));
        if taps.len() == 1 { part } else { w * part }
    };
    taps.iter().map(one).sum()
}

/// Places of an image of extents `image`, evenly from -1 to 1, under the affine maps `theta [n, r, r + 1]`: `[n, image…, r]`, listed from the
/// last spatial axis to the first.
///
/// # Errors
/// `Shape` when the maps are not of the image's axes.
pub fn affine_grid(theta: &Tensor, image: &[usize], align_corners: bool) -> Result<Tensor> {
    let r = image.len();
    let &[n, rows, columns] = theta.shape() else { return Err(fail(format!("AffineGrid of {:?}", theta.shape()))) };
    if rows != r || columns != r + 1 {
        return Err(fail(format!("AffineGrid of {:?} for {r} axes", theta.shape())));
    }
    let (t, mut y) = (f64s(theta), Vec::new());
    let place = |i: usize, n: usize| match align_corners {
        // The text says nothing of one element between two corners; onnxruntime takes the second.
        true if n == 1 => 1.0,
        true => 2.0 * i as f64 / (n as f64 - 1.0) - 1.0,
        false => (2.0 * i as f64 + 1.0) / n as f64 - 1.0,
    };
    for map in t.chunks_exact(r * (r + 1)).take(n) {
        each_coord(image, |at| {
            for row in map.chunks_exact(r + 1) {
                let moved = (0..r).map(|a| row[a] * place(at[r - 1 - a], image[r - 1 - a])).sum::<f64>();
                y.push(moved + row[r]);
            }
        });
    }
    Ok(from_f64s(theta.dtype(), &[&[n], image, &[r]].concat(), &y))
}

/// Attributes of RoiAlign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiAlign {
    /// Whether the greatest weighted element counts, else the mean of the samples.
    pub max: bool,
    /// Whether regions are half a pixel to the left and above; then they may also be smaller than a pixel.
    pub half_pixel: bool,
    /// Rows and columns of the result.
    pub bins: [usize; 2],
    /// Samples along each axis of a bin; 0 for as many as it has pixels.
    pub ratio: usize,
    /// From coordinates of regions to pixels.
    pub scale: f32,
}

impl RoiAlign {
    /// First pixel, extent of a bin and number of samples of a region along rows, then columns.
    fn axes(&self, roi: &[f64], wide: bool) -> [(f64, f64, usize); 2] {
        let r = |v| rounded(v, wide);
        let shift = if self.half_pixel { 0.5 } else { 0.0 };
        let edge = |a: usize| r(r(roi[a] * f64::from(self.scale)) - shift);
        [1, 0].map(|a| {
            let len = r(edge(a + 2) - edge(a));
            let len = if self.half_pixel { len } else { len.max(1.0) };
            let bin = r(len / self.bins[1 - a] as f64);
            (edge(a), bin, if self.ratio > 0 { self.ratio } else { bin.ceil().max(0.0) as usize })
        })
    }
    /// Most samples of a bin of the regions `rois [m, 4]`, along rows and columns.
    pub fn samples(&self, rois: &Tensor) -> [usize; 2] {
        let (v, wide) = (f64s(rois), rois.dtype() == DType::F64);
        let all = v.chunks_exact(4).map(|roi| self.axes(roi, wide).map(|a| a.2));
        all.fold([0, 0], |m, n| [m[0].max(n[0]), m[1].max(n[1])])
    }
}

/// `x [n, c, h, w]` sampled in the regions `rois [m, 4]` (x₁, y₁, x₂, y₂) of the images `batch [m]`: `[m, c, bins…]`.
///
/// # Errors
/// `Shape` when operands do not fit or an image is not there.
pub fn roi_align(x: &Tensor, rois: &Tensor, batch: &Tensor, how: RoiAlign) -> Result<Tensor> {
    let (&[n, c, h, w], &[m, 4], &[k]) = (x.shape(), rois.shape(), batch.shape()) else {
        return Err(fail(format!("RoiAlign of {:?} at {:?}", x.shape(), rois.shape())));
    };
    let batch = batch.to_i64_vec();
    if m != k || batch.iter().any(|&b| b < 0 || b >= n as i64) || (h * w == 0 && m * c > 0) {
        return Err(fail(format!("RoiAlign: {m} regions of images {batch:?}, of which there are {n}")));
    }
    let wide = x.dtype() == DType::F64;
    let r = |v| rounded(v, wide);
    let (v, rois) = (f64s(x), f64s(rois));
    let mut y = Vec::new();
    for i in 0..m {
        let axes = how.axes(&rois[i * 4..i * 4 + 4], wide);
        let places = |a: usize, o: usize| {
            let ((first, bin, n), len) = (axes[a], [h, w][a]);
            let start = r(first + r(o as f64 * bin));
            let place = move |s: usize| {
                let p = r(start + r(r(r(s as f64 + 0.5) * bin) / n as f64));
                if p < -1.0 || p > len as f64 {
                    return None;
                }
                let p = p.max(0.0).min(len as f64 - 1.0);
                let next = (p.floor() as usize + 1).min(len - 1);
                Some([(p.floor() as usize, 1.0 - (p - p.floor())), (next, p - p.floor())])
            };
            (0..n).map(place).collect::<Vec<_>>()
        };
        for ch in 0..c {
            let plane = &v[(batch[i] as usize * c + ch) * h * w..][..h * w];
            each_coord(&how.bins, |o| {
                let (rows, columns) = (places(0, o[0]), places(1, o[1]));
                let (mut total, mut best): (f64, Option<f64>) = (0.0, None);
                for (row, column) in rows.iter().flat_map(|r| columns.iter().map(move |c| (r, c))) {
                    let mut greatest = None;
                    let both = row.zip(*column);
                    for (&(i, a), &(j, b)) in
                        both.iter().flat_map(|(r, c)| r.iter().flat_map(move |r| c.iter().map(move |c| (r, c))))
                    {
                        let e = a * b * plane[i * w + j];
                        total += e;
                        greatest = Some(greatest.map_or(e, |g: f64| g.max(e)));
                    }
                    // A sample outside of the image is 0.
                    let greatest = greatest.unwrap_or(0.0);
                    best = Some(best.map_or(greatest, |g| g.max(greatest)));
                }
                let samples = (rows.len() * columns.len()).max(1);
                y.push(if how.max { best.unwrap_or(0.0) } else { total / samples as f64 });
            });
        }
    }
    Ok(from_f64s(x.dtype(), &[m, c, how.bins[0], how.bins[1]], &y))
}

/// First pixel of a region and extent of its bins along an axis (0: rows).
fn pixels(roi: &[f64], a: usize, bins: [usize; 2], scale: f32, wide: bool) -> (f64, f64) {
    let edge = |k: usize| rounded(roi[k] * f64::from(scale), wide).round();
    let (first, last) = (edge(2 - a), edge(4 - a));
    (first, rounded((last - first + 1.0).max(1.0) / bins[a] as f64, wide))
}

/// At least the most rows and columns that a bin of the regions `rois [m, 5]` has.
pub fn roi_pixels(rois: &Tensor, bins: [usize; 2], scale: f32) -> [usize; 2] {
    let (v, wide) = (f64s(rois), rois.dtype() == DType::F64);
    let all = v.chunks_exact(5).map(|roi| [0, 1].map(|a| pixels(roi, a, bins, scale, wide).1.floor() as usize + 2));
    all.fold([0, 0], |m, n| [m[0].max(n[0]), m[1].max(n[1])])
}

/// The greatest elements of `x [n, c, h, w]` in the bins of the regions `rois [m, 5]` (image, x₁, y₁, x₂, y₂), whose pixels are whole: `[m, c, bins…]`; 0
/// for bins without pixels.
///
/// # Errors
/// `Shape` when operands do not fit or an image is not there.
pub fn max_roi_pool(x: &Tensor, rois: &Tensor, bins: [usize; 2], scale: f32) -> Result<Tensor> {
    let (&[n, c, h, w], &[m, 5]) = (x.shape(), rois.shape()) else {
        return Err(fail(format!("MaxRoiPool of {:?} at {:?}", x.shape(), rois.shape())));
    };
    let wide = x.dtype() == DType::F64;
    let r = |v| rounded(v, wide);
    let (v, rois) = (f64s(x), f64s(rois));
    let mut y = Vec::new();
    for roi in rois.chunks_exact(5).take(m) {
        let image = roi[0].trunc();
        if !(image >= 0.0 && image < n as f64) {
            return Err(fail(format!("MaxRoiPool: a region of image {image} of {n}")));
        }
        let range = |a: usize, o: usize| {
            let ((first, bin), len) = (pixels(roi, a, bins, scale, wide), [h, w][a] as f64);
            let from = (r(o as f64 * bin).floor() + first).max(0.0).min(len);
            let to = (r((o + 1) as f64 * bin).ceil() + first).max(0.0).min(len);
            from as usize..to as usize
        };
        for ch in 0..c {
            let plane = &v[(image as usize * c + ch) * h * w..][..h * w];
            each_coord(&bins, |o| {
                let columns = range(1, o[1]);
                let all = range(0, o[0]).flat_map(|i| columns.clone().map(move |j| plane[i * w + j]));
                y.push(all.reduce(f64::max).unwrap_or(0.0));
            });
        }
    }
    Ok(from_f64s(x.dtype(), &[m, c, bins[0], bins[1]], &y))
}

/// Elements of windows that are moved by `offset [n, groups · kernel · r, outs…]` (linear interpolation, zeros outside) and multiplied by
/// `mask [n, groups · kernel, outs…]`, of `x [n, c, image…]`: `[n, c, kernel, outs…]`, unrounded, with its shape. Channels are in as many groups, each
/// with offsets of its own.
///
/// # Errors
/// `Shape` when operands do not fit.
pub fn deform_columns(
    x: &Tensor,
    offset: &Tensor,
    mask: Option<&Tensor>,
    window: &Window,
    groups: usize,
) -> Result<(Vec<f64>, Vec<usize>)> {
    let wrong = || fail(format!("DeformConv of {:?} at {:?}", x.shape(), offset.shape()));
    let [n, c, image @ ..] = x.shape() else { return Err(wrong()) };
    let (r, outs, area) = (image.len(), window.outputs(image)?, count(&window.kernel));
    let expected = |per: usize| [&[*n, groups * area * per], outs.as_slice()].concat();
    if groups == 0 || c % groups != 0 || offset.shape() != expected(r) || mask.is_some_and(|t| t.shape() != expected(1))
    {
        return Err(wrong());
    }
    let wide = x.dtype() == DType::F64;
    let (v, offset, mask) = (f64s(x), f64s(offset), mask.map(f64s));
    let (st, n_out) = (strides(image), count(&outs));
    let mut y = Vec::with_capacity(n * c * area * n_out);
    for plane in 0..n * c {
        let v = &v[plane * count(image)..][..count(image)];
        let group = plane / c * groups + plane % c / (c / groups);
        let mut k = 0;
        each_coord(&window.kernel, |kernel| {
            let mut p = 0;
            each_coord(&outs, |o| {
                let moved = |a: usize| {
                    let by = offset[((group * area + k) * r + a) * n_out + p];
                    let at = rounded(window.at(a, o[a], kernel[a]) as f64 + by, wide);
                    let pixel = |i: f64| (i >= 0.0 && i < image[a] as f64).then_some(i as usize);
                    let part = at - at.floor();
                    vec![(pixel(at.floor()), 1.0 - part), (pixel(at.floor() + 1.0), part)]
                };
                let axes: Vec<_> = (0..r).map(moved).collect();
                let weight = mask.as_ref().map_or(1.0, |t| t[(group * area + k) * n_out + p]);
                y.push(weight * sum(v, &st, &axes, Some(0)));
                p += 1;
            });
            k += 1;
        });
    }
    Ok((y, [&[*n, *c, area], outs.as_slice()].concat()))
}

/// Convolution of such elements by `w [m, c / groups, kernel…]`, plus `bias [m]`; `columns` are those of [`deform_columns`].
///
/// # Errors
/// `Shape` when operands do not fit.
pub fn deform_conv(
    columns: &(Vec<f64>, Vec<usize>),
    w: &Tensor,
    bias: Option<&Tensor>,
    groups: usize,
) -> Result<Tensor> {
    let wrong = || fail(format!("DeformConv by {:?} in {groups} groups", w.shape()));
    let (samples, shape) = columns;
    let (&[n, c, area, ref outs @ ..], [m, cg, _kernel @ ..]) = (shape.as_slice(), w.shape()) else {
        return Err(wrong());
    };
    let (n_out, bias) = (count(outs), bias.map(f64s));
    if groups == 0
        || cg * groups != c
        || m % groups != 0
        || w.n_elems() != m * cg * area
        || bias.as_ref().is_some_and(|b| b.len() != *m)
    {
        return Err(wrong());
    }
    let (wv, rows) = (f64s(w), cg * area);
    let mut y = Vec::with_capacity(n * m * n_out);
    for (b, o) in (0..n).flat_map(|b| (0..*m).map(move |o| (b, o))) {
        let first = b * c * area + o / (m / groups) * rows;
        for p in 0..n_out {
            let terms = (0..rows).map(|k| wv[o * rows + k] * samples[(first + k) * n_out + p]);
            y.push(terms.sum::<f64>() + bias.as_ref().map_or(0.0, |b| b[o]));
        }
    }
    Ok(from_f64s(w.dtype(), &[&[n, *m], outs].concat(), &y))
}
