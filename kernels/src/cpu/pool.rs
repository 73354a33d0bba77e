//! 2-D max and average pooling; bound by bytes.

use super::elem::Elem;
use super::epilogue::with_tier;
use super::{Args, KernelError, Tier, missing, product};
use crate::team::Team;

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn pool2d<T: Elem>(tier: Tier, team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let mut z = [0usize; 16];
    for (i, z) in z.iter_mut().enumerate() {
        *z = args.size(i)?;
    }
    let [nc, h, w, kh, kw, sh, sw, pt, pl, dh, dw, oh, ow, kind, pb, pr] = z;
    if kind > 2 {
        return Err(KernelError(format!("pooling kind {kind} is not 0, 1 or 2")));
    }
    let pixels = product(&[oh, ow])?;
    if product(&[nc, pixels])? == 0 {
        return Ok(());
    }
    // SAFETY: the caller promises buffers of these sizes.
    let x = unsafe { args.read::<T>(0, product(&[nc, h, w])?) }.ok_or_else(|| missing("x"))?;
    let y = args.out::<T>(1);
    // Taps k with 0 ≤ o·stride + k·dil - pad < limit, as a range; `limit` counts padding for kind 2's divisor.
    let taps = |o: usize, stride: usize, dil: usize, pad: usize, n_taps: usize, limit: usize, inside: bool| {
        let at = o * stride;
        let lo = if inside { pad.saturating_sub(at).div_ceil(dil) } else { 0 };
        let hi = (limit + pad).saturating_sub(at).div_ceil(dil).min(n_taps);
        (lo.min(hi), hi)
    };
    let grain = (1usize << 14).div_ceil((pixels * kh * kw).max(1));
    team.run(nc, grain, &|begin, end| {
        with_tier!(tier, {
            for ch in begin..end {
                let plane = &x[ch * h * w..(ch + 1) * h * w];
                // SAFETY: each task owns its channels.
                let out = unsafe { y.slice(ch * pixels, pixels) };
                for oy in 0..oh {
                    let (y0, y1) = taps(oy, sh, dh, pt, kh, h, true);
                    for ox in 0..ow {
                        let (x0, x1) = taps(ox, sw, dw, pl, kw, w, true);
                        let (mut max, mut sum) = (f32::NEG_INFINITY, 0f32);
                        for ky in y0..y1 {
                            let row = &plane[(oy * sh + ky * dh - pt) * w..][..w];
                            for kx in x0..x1 {
                                let v = row[ox * sw + kx * dw - pl].get();
                                max = if v > max || v.is_nan() { v } else { max };
                                sum += v;
                            }
                        }
                        out[oy * ow + ox] = T::set(match kind {
                            0 => max,
                            1 => sum / ((y1 - y0) * (x1 - x0)).max(1) as f32,
                            _ => {
                                let (a, b) = taps(oy, sh, dh, pt, kh, h + pb, false);
                                let (c, d) = taps(ox, sw, dw, pl, kw, w + pr, false);
                                sum / ((b - a) * (d - c)).max(1) as f32
                            }
                        });
                    }
                }
            }
        })
    });
    Ok(())
}
