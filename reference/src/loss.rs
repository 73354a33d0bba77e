//! Losses over classes, sums in f64.

use crate::data::{f64s, from_f64s, ints};
use crate::math;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// What becomes of the losses of all samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Each by itself.
    None,
    /// Their sum.
    Sum,
    /// Their sum divided by the sum of their weights.
    Mean,
}

/// `-x[n, c, …] · weight[c]` with `c = target[n, …]`, 0 where the target is `ignored`; reduced. Targets count from the end where they
/// are negative and are clamped to the classes.
///
/// # Shapes
/// x `[n, c, d…]`, target `[n, d…]`, weight `[c]` → `[n, d…]` or `[]`
///
/// # Errors
/// `Shape` when they do not fit together, or samples have no classes.
pub fn negative_log_likelihood(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    ignored: Option<i64>,
    reduction: Reduction,
) -> Result<Tensor> {
    let (shape, samples) = (x.shape(), target.shape());
    let fits = shape.len() >= 2 && [&shape[..1], &shape[2..]].concat() == samples;
    let classes = shape.get(1).copied().unwrap_or(0);
    if !fits || (classes == 0 && target.n_elems() > 0) || weight.is_some_and(|w| w.shape() != [classes]) {
        let text = format!("targets {samples:?} and {:?} weights for scores {shape:?}", weight.map(|w| w.n_elems()));
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let (v, w) = (f64s(x), weight.map(f64s));
    let inner: usize = shape[2..].iter().product();
    let (mut losses, mut total) = (Vec::with_capacity(target.n_elems()), 0.0);
    for (i, t) in ints(target).into_iter().enumerate() {
        if ignored.is_some_and(|k| i128::from(k) == t) {
            losses.push(0.0);
            continue;
        }
        let n = classes as i128;
        let c = (if t < 0 { t + n } else { t }).clamp(0, n - 1) as usize;
        let scale = w.as_ref().map_or(1.0, |w| w[c]);
        total += scale;
        losses.push(-v[((i / inner) * classes + c) * inner + i % inner] * scale);
    }
    let sum = math::sum(losses.iter().copied());
    Ok(match reduction {
        Reduction::None => from_f64s(x.dtype(), samples, &losses),
        Reduction::Sum => from_f64s(x.dtype(), &[], &[sum]),
        Reduction::Mean => from_f64s(x.dtype(), &[], &[sum / total]),
    })
}

/// The loss of [`negative_log_likelihood`] over the logarithms of softmax along axis 1, and these logarithms.
///
/// # Errors
/// As [`negative_log_likelihood`].
pub fn softmax_cross_entropy(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    ignored: Option<i64>,
    reduction: Reduction,
) -> Result<[Tensor; 2]> {
    let shape = x.shape();
    let (classes, inner) = (shape.get(1).copied().unwrap_or(0), shape.iter().skip(2).product::<usize>());
    let mut v = f64s(x);
    for block in v.chunks_mut((classes * inner).max(1)) {
        for i in 0..inner {
            let each = |block: &[f64]| (0..classes).map(|c| block[c * inner + i]).collect::<Vec<_>>();
            let row = each(block);
            let greatest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log = row.iter().map(|x| (x - greatest).exp()).sum::<f64>().ln();
            (0..classes).for_each(|c| block[c * inner + i] -= greatest + log);
        }
    }
    let exact = from_f64s(DType::F64, shape, &v);
    let loss = negative_log_likelihood(&exact, target, weight, ignored, reduction)?;
    Ok([from_f64s(x.dtype(), loss.shape(), &f64s(&loss)), from_f64s(x.dtype(), shape, &v)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_the_specification() {
        let x = [1.0, 2.0, 2.0, 2.0, 3.0, 2.0, 0.0, 1.0, 2.0, 2.0, 1.0, 2.0];
        let (x, t) = (Tensor::from_f32(&[2, 3, 2], &x), Tensor::from_i64(&[2, 2], &[2, 1, 0, 2]));
        let w = Tensor::from_f32(&[3], &[0.2, 0.3, 0.1]);
        let loss = |w, ignored, how| {
            let y = negative_log_likelihood(&x, &t, w, ignored, how).unwrap();
            y.to_f64_vec().into_iter().map(|v| (v * 1e4).round() / 1e4).collect::<Vec<_>>()
        };
        assert_eq!(loss(None, None, Reduction::None), [-3.0, -2.0, 0.0, -2.0]);
        assert_eq!(loss(Some(&w), None, Reduction::Sum), [-1.1]);
        assert_eq!(loss(Some(&w), None, Reduction::Mean), [-1.5714]);
        assert_eq!(loss(None, Some(2), Reduction::Mean), [-1.0]);
    }
}
