//! Batched matrix product with epilogue.
//!
//! Bound: 2·m·n·k flops at two FMA a cycle, or the bytes of b when m is small. Fewer than [`SMALL_M`] rows are not packed:
//! each thread takes columns and streams b once.

use super::elem::Elem;
use super::epilogue::{self, Bias, Epilogue, with_tier};
use super::tile::{self, Matrix};
use super::{Args, KernelError, Out, Tier, missing, product};
use crate::team::Team;

/// Below this many rows packing b costs more than it saves.
const SMALL_M: usize = 5;
/// Columns a task takes in the small-m path.
const SMALL_COLS: usize = 64;

struct Problem<'a, T> {
    m: usize,
    n: usize,
    k: usize,
    a: &'a [T],
    b: &'a [T],
    bias: Option<&'a [T]>,
    residual: Option<&'a [T]>,
    c: Out<T>,
    ab: [usize; 6],
    bias_strides: (usize, usize),
    residual_strides: (usize, usize),
    epilogue: Epilogue,
}

/// Elements from the first to the last of a strided tensor; 0 when it has none.
fn span(dims: &[(usize, usize)]) -> Result<usize, KernelError> {
    if dims.iter().any(|d| d.0 == 0) {
        return Ok(0);
    }
    let last = dims.iter().try_fold(0usize, |s, (n, stride)| s.checked_add((n - 1).checked_mul(*stride)?));
    last.and_then(|l| l.checked_add(1)).ok_or_else(|| KernelError(format!("strided extents {dims:?} overflow")))
}

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn gemm<T: Elem>(tier: Tier, team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let mut z = [0usize; 14];
    for (i, z) in z.iter_mut().enumerate() {
        *z = args.size(i)?;
    }
    let [batch, m, n, k, a_b, a_r, a_c, b_b, b_r, b_c, bias_r, bias_c, res_b, res_r] = z;
    if product(&[batch, m, n])? == 0 {
        return Ok(());
    }
    // SAFETY: the caller promises buffers for these sizes and strides.
    let p = unsafe {
        Problem {
            m,
            n,
            k,
            a: args.read::<T>(0, span(&[(batch, a_b), (m, a_r), (k, a_c)])?).ok_or_else(|| missing("a"))?,
            b: args.read::<T>(1, span(&[(batch, b_b), (k, b_r), (n, b_c)])?).ok_or_else(|| missing("b"))?,
            bias: args.read::<T>(2, span(&[(m, bias_r), (n, bias_c)])?),
            residual: args.read::<T>(3, span(&[(batch, res_b), (m, res_r), (n, 1)])?),
            c: args.out::<T>(4),
            ab: [a_b, a_r, a_c, b_b, b_r, b_c],
            bias_strides: (bias_r, bias_c),
            residual_strides: (res_b, res_r),
            epilogue: Epilogue {
                alpha: args.scalars[0] as f32,
                activation: args.ints[14],
                lo: args.scalars[1] as f32,
                hi: args.scalars[2] as f32,
            },
        }
    };
    if m < SMALL_M {
        let tasks = n.div_ceil(SMALL_COLS);
        let grain = (1usize << 15).div_ceil((m * k * SMALL_COLS).max(1)).max(1);
        team.run(batch * tasks, grain, &|begin, end| {
            with_tier!(tier, {
                for t in begin..end {
                    let col = t % tasks * SMALL_COLS;
                    p.small(t / tasks, col, SMALL_COLS.min(n - col));
                }
            })
        });
        return Ok(());
    }
    let (br, bc) = tile::cut(batch, m, n, team.n_threads());
    let (row_blocks, col_blocks) = (m.div_ceil(br), n.div_ceil(bc));
    team.run(batch * row_blocks * col_blocks, 1, &|begin, end| {
        with_tier!(tier, {
            for t in begin..end {
                let (row, col) = (t / col_blocks % row_blocks * br, t % col_blocks * bc);
                p.block(tier, t / (col_blocks * row_blocks), (row, br.min(m - row)), (col, bc.min(n - col)));
            }
        })
    });
    Ok(())
}

impl<T: Elem> Problem<'_, T> {
    /// Stores one row of sums; `acc` holds columns `col..`.
    #[inline(always)]
    fn store(&self, batch: usize, i: usize, col: usize, acc: &mut [f32]) {
        let bias = match self.bias {
            None => Bias::None,
            Some(b) if self.bias_strides.1 == 0 => Bias::One(b[i * self.bias_strides.0].get()),
            Some(b) => Bias::Cols(&b[i * self.bias_strides.0 + col * self.bias_strides.1..], self.bias_strides.1),
        };
        let residual = self.residual.map(|r| {
            let base = batch * self.residual_strides.0 + i * self.residual_strides.1 + col;
            &r[base..base + acc.len()]
        });
        // SAFETY: rows of c are disjoint between blocks, and this block's columns belong to this task alone.
        let out = unsafe { self.c.slice((batch * self.m + i) * self.n + col, acc.len()) };
        epilogue::row(&self.epilogue, acc, bias, residual, out);
    }

    #[inline(always)]
    fn block(&self, tier: Tier, batch: usize, (row, rows): (usize, usize), (col, cols): (usize, usize)) {
        let [a_b, a_r, a_c, b_b, b_r, b_c] = self.ab;
        // An operand without elements (k = 0) has no batch to start at.
        let a = Matrix { data: self.a.get(batch * a_b..).unwrap_or(&[]), row_stride: a_r, col_stride: a_c };
        let b = Matrix { data: self.b.get(batch * b_b..).unwrap_or(&[]), row_stride: b_r, col_stride: b_c };
        tile::with_scratch(|s| {
            tile::block(tier, &a, &b, (row, rows), (col, cols), self.k, s);
            let ld = tile::padded_cols(cols);
            with_tier!(tier, {
                for i in 0..rows {
                    self.store(batch, row + i, col, &mut s.c[i * ld..i * ld + cols]);
                }
            })
        });
    }

    /// A few rows, up to [`SMALL_COLS`] columns.
    #[inline(always)]
    fn small(&self, batch: usize, col: usize, cols: usize) {
        let [a_b, a_r, a_c, b_b, b_r, b_c] = self.ab;
        let (a, b) = (self.a.get(batch * a_b..).unwrap_or(&[]), self.b.get(batch * b_b..).unwrap_or(&[]));
        for i in 0..self.m {
            let mut acc = [0f32; SMALL_COLS];
            if b_c == 1 && cols == SMALL_COLS {
                for k0 in (0..self.k).step_by(tile::SECTION) {
                    let mut section = [0f32; SMALL_COLS];
                    for k in k0..self.k.min(k0 + tile::SECTION) {
                        let x = a[i * a_r + k * a_c].get();
                        let row = &b[k * b_r + col..k * b_r + col + SMALL_COLS];
                        section.iter_mut().zip(row).for_each(|(s, b)| *s = x.mul_add(b.get(), *s));
                    }
                    acc.iter_mut().zip(section).for_each(|(s, part)| *s += part);
                }
            } else if b_r == 1 && a_c == 1 && self.k > 0 {
                let row = &a[i * a_r..i * a_r + self.k];
                for (j, s) in acc[..cols].iter_mut().enumerate() {
                    *s = dot(row, &b[(col + j) * b_c..(col + j) * b_c + self.k]);
                }
            } else {
                for k0 in (0..self.k).step_by(tile::SECTION) {
                    let mut section = [0f32; SMALL_COLS];
                    for k in k0..self.k.min(k0 + tile::SECTION) {
                        let x = a[i * a_r + k * a_c].get();
                        for (j, s) in section[..cols].iter_mut().enumerate() {
                            *s = x.mul_add(b[k * b_r + (col + j) * b_c].get(), *s);
                        }
                    }
                    acc.iter_mut().zip(section).for_each(|(s, part)| *s += part);
                }
            }
            self.store(batch, i, col, &mut acc[..cols]);
        }
    }
}

/// Inner product in 32 running sums.
#[inline(always)]
fn dot<T: Elem>(x: &[T], y: &[T]) -> f32 {
    let mut acc = [0f32; 32];
    let (cx, cy) = (x.chunks_exact(32), y.chunks_exact(32));
    let (rx, ry) = (cx.remainder(), cy.remainder());
    for (x, y) in cx.zip(cy) {
        acc.iter_mut().zip(x.iter().zip(y)).for_each(|(s, (x, y))| *s = x.get().mul_add(y.get(), *s));
    }
    let tail: f32 = rx.iter().zip(ry).map(|(x, y)| x.get() * y.get()).sum();
    acc.iter().sum::<f32>() + tail
}
