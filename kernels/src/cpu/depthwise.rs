//! Convolution with one input channel a group: bound by bytes, so rows are swept once per tap from the cache.

use super::Tier;
use super::conv::{Buffers, Geometry};
use super::elem::Elem;
use super::epilogue::with_tier;
use super::tile;
use crate::team::Team;

pub(crate) fn run<T: Elem>(tier: Tier, team: &dyn Team, g: &Geometry, bufs: &Buffers<T>) {
    let work = (g.oh * g.ow * g.kh * g.kw).max(1);
    team.run(g.n * g.m, (1usize << 14).div_ceil(work), &|begin, end| {
        tile::with_scratch(|s| {
            with_tier!(tier, {
                for ch in begin..end {
                    channel(g, bufs, ch, &mut s.extra);
                }
            })
        })
    });
}

/// One output channel of one image.
#[inline(always)]
fn channel<T: Elem>(g: &Geometry, bufs: &Buffers<T>, ch: usize, acc: &mut Vec<f32>) {
    let (image, m) = (ch / g.m, ch % g.m);
    let c = m / (g.m / g.group);
    let x = &bufs.x[(image * g.c + c) * g.h * g.w..(image * g.c + c + 1) * g.h * g.w];
    let w = &bufs.w[m * g.kh * g.kw..(m + 1) * g.kh * g.kw];
    acc.clear();
    acc.resize(g.ow, 0.0);
    for oy in 0..g.oh {
        acc.fill(0.0);
        for ky in 0..g.kh {
            let y = (oy * g.stride.0 + ky * g.dil.0).wrapping_sub(g.pad.0);
            if y >= g.h {
                continue;
            }
            let row = &x[y * g.w..(y + 1) * g.w];
            for kx in 0..g.kw {
                tap(g, row, w[ky * g.kw + kx].get(), kx * g.dil.1, acc);
            }
        }
        bufs.store(g, ch, oy * g.ow, acc);
    }
}

/// Adds `weight · row[ox·stride + shift - pad]` to every `acc[ox]` whose element exists.
#[inline(always)]
fn tap<T: Elem>(g: &Geometry, row: &[T], weight: f32, shift: usize, acc: &mut [f32]) {
    let s = g.stride.1;
    let first = g.pad.1.saturating_sub(shift).div_ceil(s);
    // ox·s + shift - pad ≤ w - 1
    let end = (g.w + g.pad.1).saturating_sub(shift).div_ceil(s).min(g.ow);
    if first >= end {
        return;
    }
    let start = first * s + shift - g.pad.1;
    let acc = &mut acc[first..end];
    if s == 1 {
        acc.iter_mut().zip(&row[start..]).for_each(|(a, x)| *a = weight.mul_add(x.get(), *a));
    } else {
        acc.iter_mut().zip(row[start..].iter().step_by(s)).for_each(|(a, x)| *a = weight.mul_add(x.get(), *a));
    }
}
