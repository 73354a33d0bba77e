//! Discrete Fourier transforms of any length.
//!
//! The length's prime factors r are taken one after the other: from transforms of length l of every (n/l)-th element, those of length l·r
//! of every (n/lr)-th (Stockham's order, so that the last stage leaves bins in order). A signal takes n · Σ r complex products in f64:
//! n log n where factors are small, n² at a prime length.

use super::{Args, KernelError, missing, product};
use crate::team::Team;

/// Signals that have scratch memory of their own: twice `n` complex numbers each.
const SLOTS: usize = 256;

/// A complex number.
type Complex = [f64; 2];

fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}
fn plus(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

/// One stage with factor `r`: `from` holds transforms of length `l`.
fn stage(from: &[Complex], to: &mut [Complex], l: usize, r: usize, root: &dyn Fn(usize) -> Complex) {
    let n = from.len();
    let m = n / (l * r);
    for k in 0..l {
        let rows = &from[k * m * r..(k + 1) * m * r];
        for a in 0..r {
            let out = &mut to[(k + l * a) * m..][..m];
            out.copy_from_slice(&rows[..m]);
            for v in 1..r {
                let w = root(v * (k + l * a) % (l * r) * m);
                for (y, &x) in out.iter_mut().zip(&rows[v * m..]) {
                    *y = plus(*y, times(w, x));
                }
            }
        }
    }
}

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn dft<T: Real>(team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let (outer, t, inner, parts) = (args.size(0)?, args.size(1)?, args.size(2)?, args.size(3)?);
    let (n, bins, out_parts, inverse) = (args.size(4)?, args.size(5)?, args.size(6)?, args.ints[7] == 1);
    let signals = product(&[outer, inner])?;
    if n == 0 || !(1..=2).contains(&parts) || !(1..=2).contains(&out_parts) || bins > n {
        return Err(KernelError(format!(
            "{bins} bins of a transform of {n} elements with {parts} parts to {out_parts}"
        )));
    }
    let (total, written) = (product(&[signals, t, parts])?, product(&[signals, bins, out_parts])?);
    // SAFETY: the caller promises buffers of these sizes.
    let (x, roots) = unsafe {
        (
            args.read::<T>(0, total).ok_or_else(|| missing("x"))?,
            args.read::<f64>(1, product(&[n, 2])?).ok_or_else(|| missing("roots"))?,
        )
    };
    let (y, work) = (args.out::<T>(2), args.out::<Complex>(3));
    let root = |i: usize| if inverse { [roots[2 * i], roots[2 * i + 1]] } else { [roots[2 * i], -roots[2 * i + 1]] };
    let half = n / 2 + 1;
    let slots = signals.min(SLOTS);
    let scale = if inverse { n as f64 } else { 1.0 };
    team.run(slots, 1, &|begin, end| {
        for slot in begin..end {
            // SAFETY: each task owns its slots, and a slot its signals: those whose number is `slot` more than a multiple of `slots`.
            let (mut now, mut next) = unsafe { (work.slice(slot * 2 * n, n), work.slice((slot * 2 + 1) * n, n)) };
            for signal in (slot..signals).step_by(slots) {
                let (o, i) = (signal / inner, signal % inner);
                let at = |k: usize| -> Complex {
                    if k >= t {
                        return [0.0; 2];
                    }
                    let p = ((o * t + k) * inner + i) * parts;
                    [x[p].wide(), if parts == 2 { x[p + 1].wide() } else { 0.0 }]
                };
                for (k, v) in now.iter_mut().enumerate() {
                    // One part is asked for: the operand is one half of a spectrum whose other half mirrors it.
                    let mirrored = out_parts == 1 && k >= half;
                    let z = at(if mirrored { n - k } else { k });
                    *v = if mirrored { [z[0], -z[1]] } else { z };
                }
                let (mut l, mut rest, mut r) = (1, n, 2);
                while rest > 1 {
                    // The least factor that is left; a rest without one up to its root is prime.
                    while rest % r != 0 {
                        r = if r * r > rest { rest } else { r + 1 };
                    }
                    stage(now, next, l, r, &root);
                    std::mem::swap(&mut now, &mut next);
                    (l, rest) = (l * r, rest / r);
                }
                for (k, z) in now[..bins].iter().enumerate() {
                    let p = ((o * bins + k) * inner + i) * out_parts;
                    debug_assert!(p + out_parts <= written);
                    // SAFETY: within the result; no other signal has these elements.
                    let y = unsafe { y.slice(p, out_parts) };
                    y.iter_mut().zip(z).for_each(|(y, z)| *y = T::narrow(z / scale));
                }
            }
        }
    });
    Ok(())
}

/// Elements of signals.
pub(crate) trait Real: Copy + Send + Sync {
    fn wide(self) -> f64;
    fn narrow(v: f64) -> Self;
}
impl Real for f32 {
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn narrow(v: f64) -> f32 {
        v as f32
    }
}
impl Real for f64 {
    fn wide(self) -> f64 {
        self
    }
    fn narrow(v: f64) -> f64 {
        v
    }
}
