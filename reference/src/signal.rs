//! Signal processing: Fourier transforms, windows, the mel scale.

use crate::data::{f64s, from_f64s};
use std::f64::consts::{LN_10, TAU};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

fn fail(text: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// What a transform does besides summing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    /// Positive exponents and a factor of 1/n.
    pub inverse: bool,
    /// The half of a spectrum that determines it, where the signal is real: the result of a transform, the operand of an inverse one.
    pub onesided: bool,
}

/// The roots of unity `[n, 2]`: cos and sin of 2πk/n.
pub fn roots(n: usize) -> Vec<(f64, f64)> {
    (0..n).map(|k| (TAU * k as f64 / n as f64).sin_cos()).map(|(s, c)| (c, s)).collect()
}

/// Discrete Fourier transform along axis 1 of `[outer, t, inner, 1 or 2]`, by its definition: with `roots` as of [`roots`]. Elements
/// beyond the operand are 0, those beyond the length count for nothing.
///
/// # Errors
/// `Shape` when the operand has other axes, or there are no roots.
pub fn dft_rows(x: &Tensor, roots: &[(f64, f64)], d: Direction) -> Result<Tensor> {
    let (&[outer, t, inner, c @ (1 | 2)], n) = (x.shape(), roots.len()) else {
        return Err(fail(format!("a transform of {:?}: not [outer, t, inner, 1 or 2]", x.shape())));
    };
    if n == 0 {
        return Err(fail("a transform needs a length"));
    }
    let half = n / 2 + 1;
    let (bins, parts) = match (d.onesided, d.inverse) {
        (true, false) => (half, 2),
        (true, true) => (n, 1),
        (false, _) => (n, 2),
    };
    let v = f64s(x);
    let at = |o: usize, i: usize, k: usize| -> (f64, f64) {
        if k >= t {
            return (0.0, 0.0);
        }
        let p = ((o * t + k) * inner + i) * c;
        (v[p], if c == 2 { v[p + 1] } else { 0.0 })
    };
    let mut y = vec![];
    for (o, k) in (0..outer * bins).map(|p| (p / bins, p % bins)) {
        for i in 0..inner {
            let (mut re, mut im) = (0.0, 0.0);
            for u in 0..n {
                let (a, b) = match d.onesided && d.inverse && u >= half {
                    true => (at(o, i, n - u).0, -at(o, i, n - u).1),
                    false => at(o, i, u),
                };
                let (c, s) = roots[u * k % n];
                let s = if d.inverse { s } else { -s };
                re += a * c - b * s;
                im += a * s + b * c;
            }
            let scale = if d.inverse { n as f64 } else { 1.0 };
            y.extend([re / scale, im / scale][..parts].iter());
        }
    }
    Ok(from_f64s(x.dtype(), &[outer, bins, inner, parts], &y))
}

/// `DFT` along `axis` of an operand whose last axis holds real (and imaginary) parts.
///
/// # Errors
/// `Shape` when there is no such axis or `n` is 0.
pub fn dft(x: &Tensor, axis: usize, n: usize, d: Direction) -> Result<Tensor> {
    let Some((&parts, rest)) = x.shape().split_last() else { return Err(fail("a transform needs an axis")) };
    let Some(&t) = rest.get(axis) else {
        return Err(fail(format!("a transform along axis {axis} of {:?}", x.shape())));
    };
    let (outer, inner) = (rest[..axis].iter().product(), rest[axis + 1..].iter().product());
    let y = dft_rows(&crate::movement::with_shape(x, &[outer, t, inner, parts])?, &roots(n), d)?;
    let mut shape = x.shape().to_vec();
    (shape[axis], shape[rest.len()]) = (y.shape()[1], y.shape()[3]);
    crate::movement::with_shape(&y, &shape)
}

/// Frames of a signal `[b, length, parts]`: `[b, frames, n, parts]`, one every `step` elements.
///
/// # Errors
/// `Shape` when none fits, or they would not move.
pub fn frames(x: &Tensor, step: usize, n: usize) -> Result<Tensor> {
    let &[b, length, parts] = x.shape() else { return Err(fail("the signal is [b, length, 1 or 2]")) };
    if n == 0 || n > length || step == 0 {
        return Err(fail(format!("frames of {n} every {step} of {length} elements")));
    }
    let (v, count) = (f64s(x), (length - n) / step + 1);
    let mut cut = vec![];
    for (p, f) in (0..b * count).map(|i| (i / count, i % count)) {
        let at = (p * length + f * step) * parts;
        cut.extend_from_slice(&v[at..at + n * parts]);
    }
    Ok(from_f64s(x.dtype(), &[b, count, n, parts], &cut))
}

/// `STFT` of a signal `[b, length, 1 or 2]`: a transform of each frame of `n` elements times the window, a frame every `step` elements.
///
/// # Errors
/// `Shape` when a frame does not fit or the window has another length.
pub fn stft(x: &Tensor, step: usize, window: Option<&Tensor>, n: usize, onesided: bool) -> Result<Tensor> {
    if window.is_some_and(|w| w.n_elems() != n) {
        return Err(fail(format!("STFT: the window is not of {n} elements")));
    }
    let cut = frames(x, step, n)?;
    let (w, parts) = (window.map_or(vec![1.0; n], f64s), cut.shape()[3]);
    let v: Vec<f64> = f64s(&cut).iter().enumerate().map(|(i, v)| v * w[i / parts % n]).collect();
    // Frames are rounded like operands of a transform.
    let cut = from_f64s(x.dtype(), cut.shape(), &v);
    dft(&cut, 2, n, Direction { inverse: false, onesided })
}

/// A window of `size` elements: a₀ - a₁ cos(2πk/N) + a₂ cos(4πk/N), N = size where it is periodic, else size - 1.
pub fn window(dtype: DType, size: usize, periodic: bool, a: [f64; 3]) -> Tensor {
    let n = size as f64 - if periodic { 0.0 } else { 1.0 };
    let at = |k: usize| {
        let t = TAU * k as f64 / n;
        a[0] - a[1] * t.cos() + a[2] * (2.0 * t).cos()
    };
    number(dtype, &[size], &(0..size).map(at).collect::<Vec<_>>())
}

/// Floats in a type; in integers without their fractions.
fn number(dtype: DType, shape: &[usize], v: &[f64]) -> Tensor {
    match dtype.is_float() {
        true => from_f64s(dtype, shape, v),
        // Casts saturate, and NaN is 0.
        false => crate::data::from_ints(dtype, shape, &v.iter().map(|&x| x as i128).collect::<Vec<_>>()),
    }
}

/// `MelWeightMatrix`: `[dft_length / 2 + 1, n_mel]`, triangles between `n_mel + 2` frequencies that are equally far apart in mel.
///
/// # Errors
/// `Shape` when the sample rate is 0.
pub fn mel_weights(
    dtype: DType,
    n_mel: usize,
    dft_length: usize,
    rate: i64,
    (low, high): (f64, f64),
) -> Result<Tensor> {
    if rate == 0 {
        return Err(fail("MelWeightMatrix: sample_rate is 0"));
    }
    let mel = |hz: f64| 2595.0 * (1.0 + hz / 700.0).ln() / LN_10;
    let hz = |mel: f64| 700.0 * ((mel / 2595.0 * LN_10).exp() - 1.0);
    let step = (mel(high) - mel(low)) / (n_mel as f64 + 2.0);
    let bin = |i: usize| ((dft_length as f64 + 1.0) * hz(mel(low) + i as f64 * step) / rate as f64).floor();
    let bins = dft_length / 2 + 1;
    let mut y = vec![0.0; bins * n_mel];
    for (j, i) in (0..bins * n_mel).map(|p| (p / n_mel, p % n_mel)) {
        let (k, from, peak, to) = (j as f64, bin(i), bin(i + 1), bin(i + 2));
        y[j * n_mel + i] = if k == peak {
            1.0
        } else if from <= k && k < peak {
            (k - from) / (peak - from)
        } else if peak < k && k < to {
            (to - k) / (to - peak)
        } else {
            0.0
        };
    }
    Ok(number(dtype, &[bins, n_mel], &y))
}
