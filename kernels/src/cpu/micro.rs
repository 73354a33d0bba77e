//! The micro-kernel: a tile of 6 rows and 16 columns, one multiply-add per element and step of k.
//!
//! 6 × 16 f32 are 12 of AVX2's 16 registers; a step loads two vectors of b and broadcasts 6 elements of a: 12 multiply-adds on
//! 8 loads, bound by the two FMA ports. Measured share of that bound: see `cargo bench`.

use super::Tier;

/// Rows of a tile.
pub(crate) const MR: usize = 6;
/// Columns of a tile.
pub(crate) const NR: usize = 16;

/// `c[i·ldc + j] (+)= Σ_k a[k·MR + i] · b[k·NR + j]` over `kc` steps; overwrites when `first`.
///
/// # Safety
/// `a` has `kc·MR`, `b` has `kc·NR` elements, `c` has `(MR-1)·ldc + NR`; for `Avx2` the machine has AVX2 and FMA.
#[inline(always)]
pub(crate) unsafe fn tile(tier: Tier, kc: usize, a: *const f32, b: *const f32, c: *mut f32, ldc: usize, first: bool) {
    // SAFETY: by this function's contract.
    unsafe {
        match tier {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => avx2(kc, a, b, c, ldc, first),
            _ => portable(kc, a, b, c, ldc, first),
        }
    }
}

unsafe fn portable(kc: usize, a: *const f32, b: *const f32, c: *mut f32, ldc: usize, first: bool) {
    // Four columns at a time keep 6 vectors of 4 in registers on any machine with 128-bit vectors.
    for j0 in (0..NR).step_by(4) {
        let mut acc = [[0f32; 4]; MR];
        for k in 0..kc {
            for (i, acc) in acc.iter_mut().enumerate() {
                for (j, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: within the panels by the caller's contract.
                    *acc += unsafe { *a.add(k * MR + i) * *b.add(k * NR + j0 + j) };
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (j, acc) in acc.iter().enumerate() {
                // SAFETY: within the tile by the caller's contract.
                unsafe {
                    let p = c.add(i * ldc + j0 + j);
                    *p = if first { *acc } else { *p + *acc };
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(kc: usize, a: *const f32, b: *const f32, c: *mut f32, ldc: usize, first: bool) {
    use std::arch::x86_64::*;
    // SAFETY: all pointers stay within the panels and the tile by the caller's contract.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); 2]; MR];
        let (mut a, mut b) = (a, b);
        for _ in 0..kc {
            let (b0, b1) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
            for (i, acc) in acc.iter_mut().enumerate() {
                let x = _mm256_broadcast_ss(&*a.add(i));
                acc[0] = _mm256_fmadd_ps(x, b0, acc[0]);
                acc[1] = _mm256_fmadd_ps(x, b1, acc[1]);
            }
            a = a.add(MR);
            b = b.add(NR);
        }
        for (i, acc) in acc.iter().enumerate() {
            let p = c.add(i * ldc);
            let (mut y0, mut y1) = (acc[0], acc[1]);
            if !first {
                y0 = _mm256_add_ps(y0, _mm256_loadu_ps(p));
                y1 = _mm256_add_ps(y1, _mm256_loadu_ps(p.add(8)));
            }
            _mm256_storeu_ps(p, y0);
            _mm256_storeu_ps(p.add(8), y1);
        }
    }
}
