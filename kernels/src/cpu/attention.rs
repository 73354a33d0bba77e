//! softmax(scale · q · kᵀ + mask) · v, one block of query rows at a time; scores live in a thread's buffer, never in memory.
//!
//! Bound: 2·s·t·(d + e) flops a head, or, for a few query rows, the bytes of k and v, which are then read where they are.
//! A block is at most 48 query rows, so that its scores stay in cache for t up to a few thousand.

use super::elem::Elem;
use super::math;
use super::tile::{self, Matrix, PackA, Scratch};
use super::{Args, KernelError, Out, Tier, missing, product};
use crate::team::Team;

/// Query rows a task takes: whole tiles.
const ROWS: usize = 48;
/// So few rows read keys and values where they are: packing them costs more than it saves.
const FEW: usize = 4;
/// Elements that are summed side by side.
const LANES: usize = 16;

struct Problem<'a, T> {
    heads: usize,
    s: usize,
    t: usize,
    d: usize,
    e: usize,
    q: (&'a [T], [usize; 3]),
    k: (&'a [T], [usize; 4]),
    v: (&'a [T], [usize; 3]),
    mask: Option<(&'a [T], [usize; 4])>,
    y: Out<T>,
    scale: f32,
    /// Whether an element of the mask that is not 0 takes the score's place.
    selects: bool,
    /// Rows of the mask, which repeat.
    mask_rows: usize,
    /// Whether a row whose softmax is NaN has weights of 0.
    nan_to_zero: bool,
}

fn span(dims: &[usize], strides: &[usize]) -> Result<usize, KernelError> {
    if dims.contains(&0) {
        return Ok(0);
    }
    let last = dims.iter().zip(strides).try_fold(0usize, |s, (n, st)| s.checked_add((n - 1).checked_mul(*st)?));
    last.and_then(|l| l.checked_add(1)).ok_or_else(|| KernelError(format!("strided extents {dims:?} overflow")))
}

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn attention<T: Elem>(tier: Tier, team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let mut z = [0usize; 23];
    for (i, z) in z.iter_mut().enumerate() {
        *z = args.size(i)?;
    }
    let [
        batch,
        heads,
        s,
        t,
        d,
        e,
        qb,
        qh,
        qr,
        kb,
        kh,
        kr,
        kc,
        vb,
        vh,
        vr,
        mb,
        mh,
        mr,
        mc,
        selects,
        mask_rows,
        nan_to_zero,
    ] = z;
    if product(&[batch, heads, s, e])? == 0 {
        return Ok(());
    }
    // SAFETY: the caller promises buffers for these sizes and strides.
    let p = unsafe {
        let read = |i: usize, name: &str, dims: &[usize], strides: &[usize]| {
            args.read::<T>(i, span(dims, strides)?).ok_or_else(|| missing(name))
        };
        Problem {
            heads,
            s,
            t,
            d,
            e,
            q: (read(0, "q", &[batch, heads, s, d], &[qb, qh, qr, 1])?, [qb, qh, qr]),
            k: (read(1, "k", &[batch, heads, t, d], &[kb, kh, kr, kc])?, [kb, kh, kr, kc]),
            v: (read(2, "v", &[batch, heads, t, e], &[vb, vh, vr, 1])?, [vb, vh, vr]),
            mask: match args.bufs[3] {
                0 => None,
                _ => {
                    Some((read(3, "mask", &[batch, heads, s.min(mask_rows), t], &[mb, mh, mr, mc])?, [mb, mh, mr, mc]))
                }
            },
            y: args.out::<T>(4),
            scale: args.scalars[0] as f32,
            selects: selects != 0,
            mask_rows: mask_rows.max(1),
            nan_to_zero: nan_to_zero != 0,
        }
    };
    let blocks = s.div_ceil(ROWS);
    team.run(batch * heads * blocks, 1, &|begin, end| {
        tile::with_scratch(|scratch| {
            for task in begin..end {
                let row = task % blocks * ROWS;
                let rows = ROWS.min(s - row);
                match tier {
                    // SAFETY: the tier is `Avx2` only on machines where these features were detected.
                    #[cfg(target_arch = "x86_64")]
                    Tier::Avx2 => unsafe { p.block_avx2(task / blocks, row, rows, scratch) },
                    _ => p.block(tier, task / blocks, row, rows, scratch),
                }
            }
        })
    });
    Ok(())
}

impl<T: Elem> Problem<'_, T> {
    /// [`Problem::block`], compiled for the tier.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn block_avx2(&self, bh: usize, row: usize, rows: usize, scratch: &mut Scratch) {
        self.block(Tier::Avx2, bh, row, rows, scratch);
    }
    #[inline(always)]
    fn block(&self, tier: Tier, bh: usize, row: usize, rows: usize, scratch: &mut Scratch) {
        let (b, h) = (bh / self.heads, bh % self.heads);
        let at = |m: (&[T], usize)| m.1.min(m.0.len());
        let q = &self.q.0[at((self.q.0, b * self.q.1[0] + h * self.q.1[1]))..];
        let k = &self.k.0[at((self.k.0, b * self.k.1[0] + h * self.k.1[1]))..];
        let v = &self.v.0[at((self.v.0, b * self.v.1[0] + h * self.v.1[1]))..];
        let qm = Matrix { data: q, row_stride: self.q.1[2], col_stride: 1 };
        let kt = Matrix { data: k, row_stride: self.k.1[3], col_stride: self.k.1[2] };
        let ld = tile::padded_cols(self.t);
        let mut scores = std::mem::take(&mut scratch.extra);
        scores.clear();
        let few = rows <= FEW && self.k.1[3] == 1;
        if few {
            scores.resize(rows * ld, 0.0);
            for i in 0..rows {
                let q: Vec<f32> = q[(row + i) * self.q.1[2]..][..self.d].iter().map(|x| x.get()).collect();
                let line = &mut scores[i * ld..i * ld + self.t];
                for (j, x) in line.iter_mut().enumerate() {
                    *x = dot(&q, &k[j * self.k.1[2]..][..self.d]);
                }
            }
        } else {
            tile::block(tier, &qm, &kt, (row, rows), (0, self.t), self.d, scratch);
            scores.extend_from_slice(&scratch.c[..rows * ld]);
        }
        for i in 0..rows {
            let line = &mut scores[i * ld..i * ld + self.t];
            line.iter_mut().for_each(|x| *x *= self.scale);
            if let Some((m, [mb, mh, mr, mc])) = self.mask {
                let base = b * mb + h * mh + (row + i) % self.mask_rows * mr;
                if self.selects {
                    line.iter_mut().enumerate().for_each(|(j, x)| {
                        let m = m[base + j * mc].get();
                        *x = if m == 0.0 { *x } else { m };
                    });
                } else if mc == 1 {
                    line.iter_mut().zip(&m[base..]).for_each(|(x, m)| *x += m.get());
                } else {
                    line.iter_mut().enumerate().for_each(|(j, x)| *x += m[base + j * mc].get());
                }
            }
            softmax(line);
            // NaN in one weight is NaN in all.
            if self.nan_to_zero && line.first().is_some_and(|w| w.is_nan()) {
                line.fill(0.0);
            }
        }
        if few {
            let mut sums = vec![0f32; self.e];
            for i in 0..rows {
                sums.fill(0.0);
                for (j, &w) in scores[i * ld..i * ld + self.t].iter().enumerate() {
                    let v = &v[j * self.v.1[2]..][..self.e];
                    for (s, v) in sums.iter_mut().zip(v) {
                        *s = w.mul_add(v.get(), *s);
                    }
                }
                // SAFETY: each task owns its rows of y.
                let out = unsafe { self.y.slice((bh * self.s + row + i) * self.e, self.e) };
                out.iter_mut().zip(&sums).for_each(|(o, &c)| *o = T::set(c));
            }
            scratch.extra = scores;
            return;
        }
        let pm = Probabilities { data: &scores, ld };
        let vm = Matrix { data: v, row_stride: self.v.1[2], col_stride: 1 };
        tile::block(tier, &pm, &vm, (0, rows), (0, self.e), self.t, scratch);
        let ldo = tile::padded_cols(self.e);
        for i in 0..rows {
            // SAFETY: each task owns its rows of y.
            let out = unsafe { self.y.slice((bh * self.s + row + i) * self.e, self.e) };
            out.iter_mut().zip(&scratch.c[i * ldo..]).for_each(|(o, &c)| *o = T::set(c));
        }
        scratch.extra = scores;
    }
}

/// Σ q·k.
#[inline(always)]
fn dot<T: Elem>(q: &[f32], k: &[T]) -> f32 {
    let mut sums = [0f32; LANES];
    let (mut qs, mut ks) = (q.chunks_exact(LANES), k.chunks_exact(LANES));
    for (q, k) in (&mut qs).zip(&mut ks) {
        for ((s, q), k) in sums.iter_mut().zip(q).zip(k) {
            *s = q.mul_add(k.get(), *s);
        }
    }
    let rest = qs.remainder().iter().zip(ks.remainder()).fold(0f32, |s, (q, k)| q.mul_add(k.get(), s));
    rest + sums.iter().sum::<f32>()
}

/// The scores as left operand.
struct Probabilities<'a> {
    data: &'a [f32],
    ld: usize,
}

impl PackA for Probabilities<'_> {
    #[inline(always)]
    fn pack(&self, row: usize, rows: usize, k: usize, kc: usize, out: &mut [f32]) {
        Matrix { data: self.data, row_stride: self.ld, col_stride: 1 }.pack(row, rows, k, kc, out);
    }
}

/// In place; a row of -inf gives NaN, as the spelled-out operators do.
#[inline(always)]
fn softmax(x: &mut [f32]) {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut chunks = x.chunks_exact(16);
    for c in &mut chunks {
        lanes.iter_mut().zip(c).for_each(|(m, &v)| *m = if v > *m { v } else { *m });
    }
    let max = lanes.iter().chain(chunks.remainder()).fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
    let mut sums = [0f32; 16];
    let mut chunks = x.chunks_exact_mut(16);
    for c in &mut chunks {
        for (s, v) in sums.iter_mut().zip(c) {
            *v = math::exp(*v - max);
            *s += *v;
        }
    }
    let mut sum = 0f32;
    for v in chunks.into_remainder() {
        *v = math::exp(*v - max);
        sum += *v;
    }
    let inv = 1.0 / (sum + sums.iter().sum::<f32>());
    x.iter_mut().for_each(|v| *v *= inv);
}
