//! Choice of boxes along an order.

use super::{Args, KernelError, missing, product};
use crate::team::Team;

/// Corners of box `b`, lesser first: `[x0, y0, x1, y1]`.
fn corners(b: &[f32], center: bool) -> [f32; 4] {
    if center {
        let (w, h) = (b[2] / 2.0, b[3] / 2.0);
        return [b[0] - w, b[1] - h, b[0] + w, b[1] + h];
    }
    [b[1].min(b[3]), b[0].min(b[2]), b[1].max(b[3]), b[0].max(b[2])]
}

fn area(c: &[f32; 4]) -> f32 {
    (c[2] - c[0]) * (c[3] - c[1])
}

/// Whether intersection over union is above `iou`. Products and sums round one by one: the GPU kernel decides alike.
fn covers(a: &[f32; 4], b: &[f32; 4], iou: f32) -> bool {
    let w = a[2].min(b[2]) - a[0].max(b[0]);
    let h = a[3].min(b[3]) - a[1].max(b[1]);
    // Most boxes do not meet; NaN meets nothing.
    if !(w > 0.0 && h > 0.0) {
        return false;
    }
    let (inter, of_a, of_b) = (w * h, area(a), area(b));
    let union = of_a + of_b - inter;
    inter > 0.0 && of_a > 0.0 && of_b > 0.0 && union > 0.0 && inter / union > iou
}

/// See the catalog. One task for a row of `order`: `n · kept` comparisons.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn nms(team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let (batch, classes, n, center) = (args.size(0)?, args.size(1)?, args.size(2)?, args.ints[3] == 1);
    let rows = product(&[batch, classes])?;
    let total = product(&[rows, n])?;
    let all = product(&[batch, n, 4])?;
    // SAFETY: the caller promises buffers of these sizes.
    let (boxes, order, eligible, limit, iou) = unsafe {
        (
            args.read::<f32>(0, all).ok_or_else(|| missing("boxes"))?,
            args.read::<i64>(1, total).ok_or_else(|| missing("order"))?,
            args.read::<u8>(2, total).ok_or_else(|| missing("eligible"))?,
            args.read::<i64>(3, 1).and_then(|v| v.first().copied()).ok_or_else(|| missing("limit"))?,
            args.read::<f32>(4, 1).and_then(|v| v.first().copied()).ok_or_else(|| missing("iou_threshold"))?,
        )
    };
    if order.iter().any(|&i| usize::try_from(i).map_or(true, |i| i >= n)) {
        return Err(KernelError(format!("the order names a box that is not among {n}")));
    }
    let (limit, out) = (usize::try_from(limit).unwrap_or(0), args.out::<i64>(5));
    team.run(rows, 1, &|begin, end| {
        for row in begin..end {
            let boxes = &boxes[row / classes * n * 4..][..n * 4];
            // SAFETY: each task owns its rows.
            let kept = unsafe { out.slice(row * n, n) };
            let mut count = 0;
            for (&at, _) in order[row * n..].iter().zip(&eligible[row * n..][..n]).filter(|(_, e)| **e != 0) {
                if count >= limit {
                    break;
                }
                let corner = |at: i64| corners(&boxes[at as usize * 4..][..4], center);
                let this = corner(at);
                if !kept[..count].iter().any(|&k| covers(&corner(k), &this, iou)) {
                    kept[count] = at;
                    count += 1;
                }
            }
            kept[count..].fill(-1);
        }
    });
    Ok(())
}
