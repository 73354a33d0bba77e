//! A block of a matrix product on one thread: packs panels, runs the micro-kernel, leaves f32 sums in a buffer.
//!
//! Blocks of k are 256 deep: a panel of b (16 KB) stays in the L1 cache while the panels of a pass by it.

use super::Tier;
use super::elem::Elem;
use super::micro::{self, MR, NR};
use std::cell::RefCell;

/// Depth of a block of k.
const KC: usize = 256;
/// Products that are summed one after another; sums of sections are added in order. Part of the numeric result: the error of a
/// sum in one go grows with its length. A section costs 12 loads, adds and stores where its products cost 768 multiply-adds.
pub(crate) const SECTION: usize = 64;

/// A left operand that can write panels: for each group of MR rows, `kc` steps of MR values, zero beyond the last row.
pub(crate) trait PackA: Sync {
    fn pack(&self, row: usize, rows: usize, k: usize, kc: usize, out: &mut [f32]);
}

/// A right operand that can write panels: for each group of NR columns, `kc` steps of NR values, zero beyond the last column.
pub(crate) trait PackB: Sync {
    fn pack(&self, k: usize, kc: usize, col: usize, cols: usize, out: &mut [f32]);
}

/// A strided matrix in memory.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub data: &'a [T],
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<T: Elem> PackA for Matrix<'_, T> {
    #[inline(always)]
    fn pack(&self, row: usize, rows: usize, k: usize, kc: usize, out: &mut [f32]) {
        for (p, panel) in out.chunks_exact_mut(kc * MR).take(rows.div_ceil(MR)).enumerate() {
            let here = MR.min(rows - p * MR);
            if here < MR {
                panel.fill(0.0);
            }
            for i in 0..here {
                let base = (row + p * MR + i) * self.row_stride + k * self.col_stride;
                if self.col_stride == 1 {
                    let src = &self.data[base..base + kc];
                    src.iter().enumerate().for_each(|(s, v)| panel[s * MR + i] = v.get());
                } else {
                    (0..kc).for_each(|s| panel[s * MR + i] = self.data[base + s * self.col_stride].get());
                }
            }
        }
    }
}

impl<T: Elem> PackB for Matrix<'_, T> {
    #[inline(always)]
    fn pack(&self, k: usize, kc: usize, col: usize, cols: usize, out: &mut [f32]) {
        for (p, panel) in out.chunks_exact_mut(kc * NR).take(cols.div_ceil(NR)).enumerate() {
            let (j0, here) = (col + p * NR, NR.min(cols - p * NR));
            if here == NR && self.col_stride == 1 {
                for (s, dst) in panel.chunks_exact_mut(NR).enumerate() {
                    let base = (k + s) * self.row_stride + j0;
                    dst.iter_mut().zip(&self.data[base..base + NR]).for_each(|(d, v)| *d = v.get());
                }
                continue;
            }
            if here < NR {
                panel.fill(0.0);
            }
            for j in 0..here {
                let base = k * self.row_stride + (j0 + j) * self.col_stride;
                (0..kc).for_each(|s| panel[s * NR + j] = self.data[base + s * self.row_stride].get());
            }
        }
    }
}

/// Buffers of one thread, kept between calls.
#[derive(Default)]
pub(crate) struct Scratch {
    a: Vec<f32>,
    b: Vec<f32>,
    /// Sums of a block; what callers store from.
    pub c: Vec<f32>,
    /// For the caller's own use.
    pub extra: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Calls `f` with this thread's buffers. `f` is not inlined into the caller for sure: what is to be compiled for a tier says so in `f`.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|s| match s.try_borrow_mut() {
        Ok(mut s) => f(&mut s),
        // A kernel never calls a kernel on the same thread; if a team did run tasks nested, fresh buffers are right, if slow.
        Err(_) => f(&mut Scratch::default()),
    })
}

fn grow(v: &mut Vec<f32>, n: usize) -> &mut [f32] {
    if v.len() < n {
        v.resize(n, 0.0);
    }
    &mut v[..n]
}

/// Row stride of the sums that [`block`] leaves for `cols` columns.
pub(crate) fn padded_cols(cols: usize) -> usize {
    cols.next_multiple_of(NR)
}

/// `scratch.c[i·padded_cols + j] = Σ_k a[row + i, k] · b[k, col + j]` over all of `k`. `k = 0` gives zeros.
#[inline(always)]
pub(crate) fn block(
    tier: Tier,
    a: &impl PackA,
    b: &impl PackB,
    (row, rows): (usize, usize),
    (col, cols): (usize, usize),
    k: usize,
    s: &mut Scratch,
) {
    let ldc = padded_cols(cols);
    let (row_panels, col_panels) = (rows.div_ceil(MR), cols.div_ceil(NR));
    let c = grow(&mut s.c, row_panels * MR * ldc);
    if k == 0 {
        c.fill(0.0);
        return;
    }
    for k0 in (0..k).step_by(KC) {
        let kc = KC.min(k - k0);
        let pa = grow(&mut s.a, row_panels * MR * kc);
        a.pack(row, rows, k0, kc, pa);
        let pb = grow(&mut s.b, col_panels * NR * kc);
        b.pack(k0, kc, col, cols, pb);
        for q in 0..col_panels {
            for p in 0..row_panels {
                let (at, bt, ct) = (p * MR * kc, q * NR * kc, p * MR * ldc + q * NR);
                debug_assert!(ct + (MR - 1) * ldc + NR <= c.len());
                for s0 in (0..kc).step_by(SECTION) {
                    // SAFETY: panel p of a has kc·MR elements from `at`, panel q of b kc·NR from `bt`, the section ends within
                    // them, and the tile at `ct` ends within c, whose rows are padded to whole tiles. The tier is one this
                    // machine has.
                    unsafe {
                        micro::tile(
                            tier,
                            SECTION.min(kc - s0),
                            pa.as_ptr().add(at + s0 * MR),
                            pb.as_ptr().add(bt + s0 * NR),
                            c.as_mut_ptr().add(ct),
                            ldc,
                            k0 + s0 == 0,
                        );
                    }
                }
            }
        }
    }
}

/// Cuts `rows × cols` into blocks of at most 480 × 256, smaller while there are fewer than two a thread. Where an element's
/// sum is formed does not change its value, so the cut may depend on the number of threads.
pub(crate) fn cut(batch: usize, rows: usize, cols: usize, threads: usize) -> (usize, usize) {
    let (mut r, mut c) = (480usize, 256usize);
    let count = |r: usize, c: usize| batch.saturating_mul(rows.div_ceil(r)).saturating_mul(cols.div_ceil(c));
    let want = if threads == 1 { 1 } else { 2 * threads };
    while count(r, c) < want && (r > 24 || c > 64) {
        if (c >= r || r <= 24) && c > 64 { c /= 2 } else { r = (r / 2).next_multiple_of(MR) }
    }
    (r, c)
}
