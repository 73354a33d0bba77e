//! Normalizations. Means and variances in f64, whatever the type.

use crate::data::{broadcast_shape, expand, f64s, from_f64s};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// Elements of `t` broadcast to `shape`.
fn spread(t: &Tensor, shape: &[usize]) -> Result<Vec<f64>> {
    if broadcast_shape(&[t.shape(), shape])? != shape {
        let text = format!("{:?} does not broadcast to {shape:?}", t.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    Ok(expand(&f64s(t), t.shape(), shape).into_owned())
}

/// Elements of a list with one element for each of `n` channels.
fn per_channel(t: &Tensor, n: usize, what: &str) -> Result<Vec<f64>> {
    if t.n_elems() != n {
        let text = format!("{what} has {} elements for {n} channels", t.n_elems());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    Ok(f64s(t))
}

/// Mean and variance (of the whole, not of a sample).
fn moments(v: &[f64]) -> (f64, f64) {
    let n = v.len() as f64;
    let mean = v.iter().sum::<f64>() / n;
    (mean, v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n)
}

/// `(x - mean) / √(var + epsilon) · scale + bias` over the axes from `axis` on; also the mean and `1 / √(var + epsilon)` in
/// type `stats`, with those axes of extent 1.
///
/// # Errors
/// `Shape` when scale or bias do not broadcast to `x`.
pub fn layer_norm(
    x: &Tensor,
    scale: &Tensor,
    bias: Option<&Tensor>,
    axis: usize,
    epsilon: f64,
    stats: DType,
) -> Result<[Tensor; 3]> {
    let shape = x.shape();
    let n: usize = shape[axis..].iter().product();
    let rows: usize = shape[..axis].iter().product();
    let (mut y, s) = (f64s(x), spread(scale, shape)?);
    let b = bias.map(|b| spread(b, shape)).transpose()?;
    let (mut means, mut invs) = (vec![0.0; rows], vec![0.0; rows]);
    for r in 0..rows {
        let row = &mut y[r * n..(r + 1) * n];
        let (mean, var) = moments(row);
        let inv = 1.0 / (var + epsilon).sqrt();
        for (k, v) in row.iter_mut().enumerate() {
            *v = (*v - mean) * inv * s[r * n + k] + b.as_ref().map_or(0.0, |b| b[r * n + k]);
        }
        (means[r], invs[r]) = (mean, inv);
    }
    let small: Vec<usize> = shape.iter().enumerate().map(|(i, &d)| if i < axis { d } else { 1 }).collect();
    Ok([from_f64s(x.dtype(), shape, &y), from_f64s(stats, &small, &means), from_f64s(stats, &small, &invs)])
}

/// `x / √(mean(x²) + epsilon) · scale` over the axes from `axis` on.
///
/// # Errors
/// `Shape` when scale does not broadcast to `x`.
pub fn rms_norm(x: &Tensor, scale: &Tensor, axis: usize, epsilon: f64) -> Result<Tensor> {
    let shape = x.shape();
    let n: usize = shape[axis..].iter().product();
    let (mut y, s) = (f64s(x), spread(scale, shape)?);
    for (row, s) in y.chunks_mut(n.max(1)).zip(s.chunks(n.max(1))) {
        let inv = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / n as f64 + epsilon).sqrt();
        row.iter_mut().zip(s).for_each(|(v, s)| *v *= inv * s);
    }
    Ok(from_f64s(scale.dtype(), shape, &y))
}

/// `(x - mean) / √(var + epsilon) · scale + bias` with given statistics per channel (axis 1), else (not `spatial`) per element of an image.
///
/// # Errors
/// `Shape` when a list does not have one element per channel.
pub fn batch_norm(
    x: &Tensor,
    scale: &Tensor,
    bias: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    epsilon: f64,
    spatial: bool,
) -> Result<Tensor> {
    if !spatial {
        // Every element of an image is a channel.
        let n: usize = x.shape().iter().skip(1).product();
        let flat = x.reshaped(&[x.shape().first().copied().unwrap_or(1), n]);
        let y = batch_norm(&flat, scale, bias, mean, var, epsilon, true)?;
        return Ok(y.reshaped(x.shape()));
    }
    let c = x.shape().get(1).copied().unwrap_or(1);
    let (scale, bias) = (per_channel(scale, c, "scale")?, per_channel(bias, c, "B")?);
    let (mean, var) = (per_channel(mean, c, "mean")?, per_channel(var, c, "var")?);
    let plane: usize = x.shape().iter().skip(2).product();
    let mut y = f64s(x);
    for (i, row) in y.chunks_mut(plane.max(1)).enumerate() {
        let k = i % c.max(1);
        let inv = 1.0 / (var[k] + epsilon).sqrt();
        row.iter_mut().for_each(|v| *v = (*v - mean[k]) * inv * scale[k] + bias[k]);
    }
    Ok(from_f64s(x.dtype(), x.shape(), &y))
}

/// [`batch_norm`] with the batch's own statistics: the result, `momentum` of the given mean and variance and the rest of the batch's, and
/// the batch's mean and variance.
///
/// # Errors
/// `Shape` when a list does not have one element per channel.
pub fn batch_norm_training(
    x: &Tensor,
    scale: &Tensor,
    bias: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    epsilon: f64,
    momentum: f64,
) -> Result<[Tensor; 5]> {
    let c = x.shape().get(1).copied().unwrap_or(1);
    let plane: usize = x.shape().iter().skip(2).product();
    let v = f64s(x);
    let of_channel = |k: usize| -> Vec<f64> {
        v.iter().enumerate().filter(|(i, _)| i / plane.max(1) % c.max(1) == k).map(|(_, &v)| v).collect()
    };
    let own: Vec<(f64, f64)> = (0..c).map(|k| moments(&of_channel(k))).collect();
    let (means, vars): (Vec<f64>, Vec<f64>) = own.into_iter().unzip();
    let wide = |v: &[f64]| Tensor::from_f64(&[c], v);
    let y = batch_norm(x, scale, bias, &wide(&means), &wide(&vars), epsilon, true)?;
    let running = |old: &Tensor, own: &[f64]| -> Result<Tensor> {
        let old = per_channel(old, c, "a running statistic")?;
        let v: Vec<f64> = old.iter().zip(own).map(|(o, n)| o * momentum + n * (1.0 - momentum)).collect();
        Ok(from_f64s(mean.dtype(), &[c], &v))
    };
    let (running_mean, running_var) = (running(mean, &means)?, running(var, &vars)?);
    let list = |v: &[f64]| from_f64s(mean.dtype(), &[c], v);
    Ok([y, running_mean, running_var, list(&means), list(&vars)])
}

/// Normalizes each of `groups` groups of channels (axis 1) of each image over its channels and places, then scales and shifts:
/// `scale` and `bias` have one element per channel, or one per group.
///
/// # Errors
/// `Shape` when the groups do not divide the channels, or a list has the wrong length.
pub fn group_norm(x: &Tensor, scale: &Tensor, bias: &Tensor, groups: usize, epsilon: f64) -> Result<Tensor> {
    let c = x.shape().get(1).copied().unwrap_or(1);
    if groups == 0 || c % groups != 0 {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("{groups} groups do not divide {c} channels")));
    }
    let list = |t: &Tensor, what| match t.n_elems() == groups {
        true => Ok(f64s(t).into_iter().flat_map(|v| vec![v; c / groups]).collect()),
        false => per_channel(t, c, what),
    };
    let (scale, bias): (Vec<f64>, Vec<f64>) = (list(scale, "scale")?, list(bias, "bias")?);
    let plane: usize = x.shape().iter().skip(2).product();
    let mut y = f64s(x);
    let per_group = c / groups * plane;
    for (g, all) in y.chunks_mut(per_group.max(1)).enumerate() {
        let (mean, var) = moments(all);
        let inv = 1.0 / (var + epsilon).sqrt();
        for (k, v) in all.iter_mut().enumerate() {
            let channel = g % groups * (c / groups) + k / plane;
            *v = (*v - mean) * inv * scale[channel] + bias[channel];
        }
    }
    Ok(from_f64s(x.dtype(), x.shape(), &y))
}

/// What [`mean_variance_norm`] adds to the root of the variance.
pub const MVN_EPSILON: f64 = 1e-9;

/// `(x - mean) / (√variance + 1e-9)` over the marked axes.
pub fn mean_variance_norm(x: &Tensor, over: &[bool]) -> Tensor {
    let steps = crate::movement::strides(x.shape());
    // The row that an element belongs to: its position with the marked coordinates at 0.
    let row = |i: usize| -> usize {
        (0..over.len()).filter(|&a| !over[a]).map(|a| i / steps[a] % x.shape()[a].max(1) * steps[a]).sum()
    };
    let mut y = f64s(x);
    let mut rows = std::collections::BTreeMap::<usize, Vec<usize>>::new();
    (0..y.len()).for_each(|i| rows.entry(row(i)).or_default().push(i));
    for members in rows.values() {
        let (mean, var) = moments(&members.iter().map(|&i| y[i]).collect::<Vec<_>>());
        members.iter().for_each(|&i| y[i] = (y[i] - mean) / (var.sqrt() + MVN_EPSILON));
    }
    from_f64s(x.dtype(), x.shape(), &y)
}

/// `x / (bias + alpha/size · Σ x²)^beta`, the sum over `size` channels (axis 1) around each.
pub fn lrn(x: &Tensor, size: usize, alpha: f64, beta: f64, bias: f64) -> Tensor {
    let c = x.shape().get(1).copied().unwrap_or(1);
    let plane: usize = x.shape().iter().skip(2).product();
    let v = f64s(x);
    let below = (size - size.min(1)) / 2;
    let at = |i: usize| {
        let (image, channel, place) = (i / (c * plane), i / plane % c, i % plane);
        let from = channel.saturating_sub(below);
        let to = (channel + size - below).min(c);
        let sum: f64 = (from..to).map(|k| v[(image * c + k) * plane + place].powi(2)).sum();
        v[i] / (bias + alpha / size as f64 * sum).powf(beta)
    };
    from_f64s(x.dtype(), x.shape(), &(0..v.len()).map(at).collect::<Vec<_>>())
}

/// `x / (Σ |x|ᵖ)^(1/p)` along an axis, p 1 or 2; 0 where the sum is 0.
pub fn lp_norm(x: &Tensor, axis: usize, p: i64) -> Tensor {
    use crate::reduce::{Reduce, reduce};
    let over: Vec<bool> = (0..x.shape().len()).map(|i| i == axis).collect();
    let wide = from_f64s(DType::F64, x.shape(), &f64s(x));
    let norm = reduce(if p == 1 { Reduce::L1 } else { Reduce::L2 }, &wide, &over, true);
    let d = f64s(&norm);
    let d = expand(&d, norm.shape(), x.shape());
    from_f64s(
        x.dtype(),
        x.shape(),
        &f64s(x).iter().zip(&*d).map(|(v, d)| if *d == 0.0 { 0.0 } else { v / d }).collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalized_rows_have_mean_0_and_variance_1() {
        let x = Tensor::from_f32(&[2, 4], &[1.0, 2.0, 3.0, 4.0, -1.0, 0.0, 5.0, 9.0]);
        let one = Tensor::from_f32(&[1], &[1.0]);
        let [y, mean, _] = layer_norm(&x, &one, None, 1, 0.0, DType::F32).unwrap();
        for row in f64s(&y).chunks(4) {
            let (m, v) = moments(row);
            assert!(m.abs() < 1e-6 && (v - 1.0).abs() < 1e-6);
        }
        assert_eq!((mean.shape(), mean.to_f64_vec()), (&[2, 1][..], vec![2.5, 3.25]));
        // One group per channel is instance normalization; one row per image of one channel is the layer's.
        let z = group_norm(&x.reshaped(&[2, 1, 4]), &one, &Tensor::from_f32(&[1], &[0.0]), 1, 0.0).unwrap();
        assert_eq!(z.reshaped(&[2, 4]), y);
    }
}
