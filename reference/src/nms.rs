//! Choice of boxes.

use crate::data;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// Corners of a box, lesser first: `[x0, y0, x1, y1]`.
type Corners = [f32; 4];

/// Of one set of boxes in an order: which are kept. One is kept that is `eligible` and whose intersection over union with each kept
/// before it is at most `iou`, until there are `limit`. All in f32, which a comparison at the threshold depends on.
fn kept(boxes: &[Corners], order: &[usize], eligible: &[bool], limit: usize, iou: f32) -> Vec<usize> {
    let mut kept: Vec<usize> = vec![];
    for (&at, _) in order.iter().zip(eligible).filter(|(_, e)| **e) {
        if kept.len() >= limit {
            break;
        }
        if !kept.iter().any(|&k| overlap(&boxes[k], &boxes[at]) > iou) {
            kept.push(at);
        }
    }
    kept
}

/// Intersection over union; below any threshold where the boxes do not meet or one has no area.
fn overlap(a: &Corners, b: &Corners) -> f32 {
    let span = |i: usize| a[i + 2].min(b[i + 2]) - a[i].max(b[i]);
    let area = |c: &Corners| (c[2] - c[0]) * (c[3] - c[1]);
    let (w, h) = (span(0), span(1));
    let inter = w * h;
    let union = area(a) + area(b) - inter;
    let meet = w > 0.0 && h > 0.0 && inter > 0.0;
    if meet && area(a) > 0.0 && area(b) > 0.0 && union > 0.0 { inter / union } else { f32::NEG_INFINITY }
}

/// Corners of `[n, 4]`: two opposite corners y, x, or with `center` the middle x, y with width and height.
fn corners(v: &[f32], center: bool) -> Vec<Corners> {
    let one = |b: &[f32]| {
        if center {
            let (w, h) = (b[2] / 2.0, b[3] / 2.0);
            return [b[0] - w, b[1] - h, b[0] + w, b[1] + h];
        }
        [b[1].min(b[3]), b[0].min(b[2]), b[1].max(b[3]), b[0].max(b[2])]
    };
    v.chunks_exact(4).map(one).collect()
}

/// Boxes `[batch, n, 4]` and, for each of `[batch, classes]`, an order `[batch, classes, n]` and which places of it are eligible, to the
/// positions of kept boxes in that order, followed by -1.
///
/// # Errors
/// `Shape` when extents do not fit, or an order names a box that there is not.
pub fn suppress(
    boxes: &Tensor,
    order: &Tensor,
    eligible: &Tensor,
    limit: i64,
    iou: f32,
    center: bool,
) -> Result<Tensor> {
    let fail = |what: &str| Diagnostic::new(ErrorKind::Shape, format!("suppression of boxes: {what}"));
    let (&[batch, n, 4], &[b, classes, m]) = (boxes.shape(), order.shape()) else {
        return Err(fail("boxes are [batch, n, 4], the order [batch, classes, n]"));
    };
    if batch != b || n != m || eligible.shape() != order.shape() {
        return Err(fail("extents differ"));
    }
    let values: Vec<f32> = data::f64s(boxes).iter().map(|&x| x as f32).collect();
    let places: Option<Vec<usize>> =
        order.to_i64_vec().iter().map(|&i| usize::try_from(i).ok().filter(|&i| i < n)).collect();
    let places = places.ok_or_else(|| fail("the order names a box that there is not"))?;
    let open: Vec<bool> = eligible.to_i64_vec().iter().map(|&e| e != 0).collect();
    let mut y = vec![-1i64; places.len()];
    for row in 0..batch * classes {
        let set = corners(&values[row / classes * n * 4..][..n * 4], center);
        let range = row * n..(row + 1) * n;
        let limit = usize::try_from(limit).unwrap_or(0);
        let found = kept(&set, &places[range.clone()], &open[range.clone()], limit, iou);
        for (y, k) in y[range].iter_mut().zip(found) {
            *y = i64::try_from(k).unwrap_or(i64::MAX);
        }
    }
    Ok(Tensor::from_i64(order.shape(), &y))
}

/// `NonMaxSuppression`: boxes `[batch, n, 4]` and scores `[batch, classes, n]` to `[count, 3]` of batch, class and box: by batch and
/// class, of each the boxes kept in the order of falling scores, of equal ones the first first. Those with a score of `least` or below
/// are left out.
///
/// # Errors
/// As [`suppress`].
pub fn non_max_suppression(
    boxes: &Tensor,
    scores: &Tensor,
    limit: i64,
    iou: f32,
    least: Option<f32>,
    center: bool,
) -> Result<Tensor> {
    let &[batch, classes, n] = scores.shape() else {
        return Err(Diagnostic::new(ErrorKind::Shape, "NonMaxSuppression: scores are [batch, classes, n]"));
    };
    let s: Vec<f32> = data::f64s(scores).iter().map(|&x| x as f32).collect();
    let (mut order, mut open) = (vec![], vec![]);
    for row in 0..batch * classes {
        let s = &s[row * n..(row + 1) * n];
        let mut at: Vec<usize> = (0..n).collect();
        // NaN is first, as elsewhere in orders of floats.
        let rank = |x: f32| if x.is_nan() { (0, 0.0) } else { (1, -x) };
        at.sort_by(|&a, &b| rank(s[a]).partial_cmp(&rank(s[b])).unwrap_or(std::cmp::Ordering::Equal));
        open.extend(at.iter().map(|&i| i64::from(least.is_none_or(|l| s[i] > l))));
        order.extend(at.iter().map(|&i| i64::try_from(i).unwrap_or(i64::MAX)));
    }
    let order = Tensor::from_i64(&[batch, classes, n], &order);
    let open = Tensor::from_i64_as(DType::Bool, &[batch, classes, n], &open);
    let kept = suppress(boxes, &order, &open, limit, iou, center)?.to_i64_vec();
    let found = kept.iter().enumerate().filter(|(_, k)| **k >= 0);
    let index = |i: usize| i64::try_from(i).unwrap_or(i64::MAX);
    let y: Vec<i64> = found.flat_map(|(i, &k)| [index(i / n / classes), index(i / n % classes), k]).collect();
    Ok(Tensor::from_i64(&[y.len() / 3, 3], &y))
}
