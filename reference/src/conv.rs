//! Convolution and pooling over any number of spatial axes. Sums in f64.

use crate::data::{f64s, from_f64s};
use crate::matmul::{Activation, add_and_activate, multiply_add};
use crate::movement::{each_coord, strides};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// Geometry of sliding windows, one entry per spatial axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Extents of the window.
    pub kernel: Vec<usize>,
    /// Steps between windows.
    pub strides: Vec<usize>,
    /// Steps within a window.
    pub dilations: Vec<usize>,
    /// Elements added before each axis; negative ones remove.
    pub begin: Vec<i64>,
    /// Elements added after each axis.
    pub end: Vec<i64>,
    /// Whether a last window that begins inside the padded axis counts though it does not fit.
    pub ceil: bool,
}

impl Window {
    /// Elements that a dilated window spans along axis `a`.
    pub fn span(&self, a: usize) -> i64 {
        (self.kernel[a] as i64 - 1) * self.dilations[a] as i64 + 1
    }
    /// Number of windows along each axis of an image of these extents. An empty image may have an empty result; with `ceil` a
    /// window that begins inside the padded image counts.
    ///
    /// # Errors
    /// `Shape` when a window is larger than the padded image.
    pub fn outputs(&self, image: &[usize]) -> Result<Vec<usize>> {
        let one = |(a, &d): (usize, &usize)| {
            let (room, s) = (d as i64 + self.begin[a] + self.end[a] - self.span(a), self.strides[a] as i64);
            let n =
                if self.ceil { room.div_euclid(s) + i64::from(room.rem_euclid(s) != 0) } else { room.div_euclid(s) }
                    + 1;
            // A window that begins in the padding after the image does not count.
            let n = if self.ceil && (n - 1) * s >= d as i64 + self.begin[a] { n - 1 } else { n };
            let text = || format!("a window of {} is larger than {d} with its padding", self.span(a));
            let n = if room < 0 && d > 0 && !self.ceil { -1 } else { n };
            usize::try_from(n).map_err(|_| Diagnostic::new(ErrorKind::Shape, text()))
        };
        image.iter().enumerate().map(one).collect()
    }
    /// Position in the image of element `k` of window `o` along axis `a`, which may be outside.
    pub(crate) fn at(&self, a: usize, o: usize, k: usize) -> i64 {
        (o * self.strides[a] + k * self.dilations[a]) as i64 - self.begin[a]
    }
}

fn count(s: &[usize]) -> usize {
    s.iter().product()
}

/// The windows of one group of channels as a matrix `[channels · kernel, outputs]`.
fn columns(x: &[f64], channels: usize, image: &[usize], w: &Window, outs: &[usize]) -> Vec<f64> {
    let (n_out, st) = (count(outs), strides(image));
    let mut cols = vec![0.0; channels * count(&w.kernel) * n_out];
    let last = outs.len() - 1;
    let mut row = 0;
    for c in 0..channels {
        let plane = &x[c * count(image)..(c + 1) * count(image)];
        each_coord(&w.kernel, |k| {
            let dst = &mut cols[row * n_out..(row + 1) * n_out];
            row += 1;
            let mut line = 0;
            each_coord(&outs[..last], |o| {
                let dst = &mut dst[line * outs[last]..(line + 1) * outs[last]];
                line += 1;
                let mut base = 0;
                for a in 0..last {
                    let i = w.at(a, o[a], k[a]);
                    if i < 0 || i >= image[a] as i64 {
                        return;
                    }
                    base += i as usize * st[a];
                }
                for (j, d) in dst.iter_mut().enumerate() {
                    let i = w.at(last, j, k[last]);
                    if i >= 0 && i < image[last] as i64 {
                        *d = plane[base + i as usize];
                    }
                }
            });
        });
    }
    cols
}

/// `act(conv(x, w) + bias + residual)`: `x [n, c, spatial…]`, `w [m, c/group, kernel…]`, `bias [m]`, rounded once.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn conv(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    window: &Window,
    group: usize,
    act: Activation,
) -> Result<Tensor> {
    let fail = |s: String| Diagnostic::new(ErrorKind::Shape, s);
    let ([n, c, image @ ..], [m, cg, _kernel @ ..]) = (x.shape(), w.shape()) else {
        return Err(fail(format!("Conv of {:?} by {:?}", x.shape(), w.shape())));
    };
    if group == 0 || cg * group != *c || m % group != 0 || image.is_empty() || w.shape().len() != x.shape().len() {
        return Err(fail(format!("Conv of {:?} by {:?} in {group} groups", x.shape(), w.shape())));
    }
    let outs = window.outputs(image)?;
    let (n_out, size, mg) = (count(&outs), count(image), m / group);
    let (xv, wv) = (f64s(x), f64s(w));
    let rows = cg * count(&window.kernel);
    let mut out = vec![0.0; n * m * n_out];
    for (b, g) in (0..*n).flat_map(|b| (0..group).map(move |g| (b, g))) {
        let from = (b * c + g * cg) * size;
        let cols = columns(&xv[from..from + cg * size], *cg, image, window, &outs);
        let to = (b * m + g * mg) * n_out;
        let weights = &wv[g * mg * rows..(g + 1) * mg * rows];
        multiply_add(&mut out[to..to + mg * n_out], weights, &cols, rows, n_out);
    }
    if let Some(bias) = bias {
        let bv = f64s(bias);
        if bv.len() != *m {
            return Err(fail(format!("Conv: {} biases for {m} channels", bv.len())));
        }
        if n_out > 0 {
            out.chunks_exact_mut(n_out).enumerate().for_each(|(i, v)| v.iter_mut().for_each(|x| *x += bv[i % m]));
        }
    }
    let shape = [&[*n, *m], outs.as_slice()].concat();
    let added: Vec<&Tensor> = residual.into_iter().collect();
    add_and_activate(&mut out, &shape, &added, act)?;
    Ok(from_f64s(x.dtype(), &shape, &out))
}

/// `ConvTranspose`: every element of `x [n, c, spatial…]` adds its multiple of `w [c, m/group, kernel…]` to the result, whose
/// spatial extents are `outs`; `window.begin` elements are cut off before each axis.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn conv_transpose(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    window: &Window,
    group: usize,
    outs: &[usize],
) -> Result<Tensor> {
    let fail = |s: String| Diagnostic::new(ErrorKind::Shape, s);
    let ([n, c, image @ ..], [wc, mg, _kernel @ ..]) = (x.shape(), w.shape()) else {
        return Err(fail(format!("ConvTranspose of {:?} by {:?}", x.shape(), w.shape())));
    };
    if group == 0 || wc != c || c % group != 0 || image.len() != outs.len() {
        return Err(fail(format!("ConvTranspose of {:?} by {:?} in {group} groups", x.shape(), w.shape())));
    }
    let (m, cg, n_out, size, taps) = (mg * group, c / group, count(outs), count(image), count(&window.kernel));
    if let Some(b) = bias.filter(|b| b.n_elems() != m) {
        return Err(fail(format!("ConvTranspose gives {m} channels but the bias is {:?}", b.shape())));
    }
    let (xv, wv, bv, st) = (f64s(x), f64s(w), bias.map(f64s), strides(outs));
    let mut out = vec![0.0; n * m * n_out];
    for (b, ch) in (0..*n).flat_map(|b| (0..*c).map(move |ch| (b, ch))) {
        let g = ch / cg;
        let mut p = 0;
        each_coord(image, |i| {
            let v = xv[(b * c + ch) * size + p];
            p += 1;
            for o in 0..*mg {
                let mut t = 0;
                each_coord(&window.kernel, |k| {
                    let weight = wv[(ch * mg + o) * taps + t];
                    t += 1;
                    let mut to = 0;
                    for a in 0..k.len() {
                        let y = window.at(a, i[a], k[a]);
                        if y < 0 || y >= outs[a] as i64 {
                            return;
                        }
                        to += y as usize * st[a];
                    }
                    out[(b * m + g * mg + o) * n_out + to] += v * weight;
                });
            }
        });
    }
    if let (Some(bv), true) = (bv, n_out > 0) {
        out.chunks_exact_mut(n_out).enumerate().for_each(|(i, v)| v.iter_mut().for_each(|x| *x += bv[i % m]));
    }
    Ok(from_f64s(x.dtype(), &[&[*n, m], outs].concat(), &out))
}

/// What a pool makes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The greatest element; NaN wins. Padding never does.
    Max,
    /// The mean over elements of the image.
    Average,
    /// The mean over elements of the image and its padding (not beyond it), padding counted as 0.
    AveragePadded,
}

/// Pooling of `x [n, c, spatial…]`. With the result come positions of greatest elements in the whole tensor (row-major), for
/// `Max`; `column_major` counts the last two spatial axes the other way round within the image.
///
/// # Errors
/// `Shape` when a window does not fit.
pub fn pool(x: &Tensor, window: &Window, kind: Pool, column_major: bool) -> Result<(Tensor, Tensor)> {
    let [n, c, image @ ..] = x.shape() else {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("pooling of {:?}", x.shape())));
    };
    let outs = window.outputs(image)?;
    let (v, size, st) = (f64s(x), count(image), strides(image));
    let column: Vec<usize> = (0..image.len()).map(|a| image[..a].iter().product()).collect();
    // The mean over a window of nothing but padding is 0.
    let least = count(&window.kernel).min(1);
    let (mut y, mut at) = (Vec::new(), Vec::new());
    for p in 0..n * c {
        let plane = &v[p * size..(p + 1) * size];
        each_coord(&outs, |o| {
            let (mut best, mut where_, mut sum, mut seen, mut padded) = (f64::NEG_INFINITY, 0, 0.0, 0usize, 0usize);
            each_coord(&window.kernel, |k| {
                let (mut pos, mut col, mut inside, mut in_pad) = (0, 0, true, true);
                for a in 0..k.len() {
                    let i = window.at(a, o[a], k[a]);
                    inside &= i >= 0 && i < image[a] as i64;
                    in_pad &= i < image[a] as i64 + window.end[a];
                    if inside {
                        pos += i as usize * st[a];
                        col += i as usize * column[a];
                    }
                }
                padded += usize::from(in_pad);
                if inside {
                    let e = plane[pos];
                    if seen == 0 || e > best || (e.is_nan() && !best.is_nan()) {
                        best = e;
                        where_ = p * size + if column_major { col } else { pos };
                    }
                    sum += e;
                    seen += 1;
                }
            });
            y.push(match kind {
                Pool::Max => best,
                Pool::Average => sum / seen.max(least) as f64,
                Pool::AveragePadded => sum / padded.max(least) as f64,
            });
            at.push(where_ as i64);
        });
    }
    let shape = [&[*n, *c], outs.as_slice()].concat();
    Ok((from_f64s(x.dtype(), &shape, &y), Tensor::from_i64(&shape, &at)))
}
