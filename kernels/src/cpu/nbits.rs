//! Product with weights of 2, 4 or 8 bits in blocks of equal scale, which are widened in registers.
//!
//! Bound: the bytes of b when there are few rows, else 2·m·n·k flops. Fewer than [`SMALL_M`] rows are not packed: each thread takes
//! columns and streams b once for each row. Codes of a byte meet elements of a that are not neighbors, so the row is first put in
//! the order in which codes leave their bytes.

use super::elem::Elem;
use super::epilogue::with_tier;
use super::tile::{self, Matrix, PackB};
use super::{Args, KernelError, Out, Tier, missing, product};
use crate::team::Team;

/// Below this many rows packing b costs more than it saves.
const SMALL_M: usize = 3;
/// Columns a task takes in the small-m path.
const SMALL_COLS: usize = 64;
/// Elements that are summed side by side.
const LANES: usize = 8;

struct Problem<'a, T> {
    m: usize,
    n: usize,
    k: usize,
    bits: usize,
    block: usize,
    blocks: usize,
    a: &'a [T],
    b: &'a [u8],
    scales: &'a [T],
    zeros: Option<&'a [u8]>,
    bias: Option<&'a [T]>,
    c: Out<T>,
}

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn nbits<T: Elem>(tier: Tier, team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let mut z = [0usize; 5];
    for (i, z) in z.iter_mut().enumerate() {
        *z = args.size(i)?;
    }
    let [m, n, k, bits, block] = z;
    if ![2, 4, 8].contains(&bits) || block < 16 || !block.is_power_of_two() {
        return Err(KernelError(format!("nbits: {bits} bits in blocks of {block}")));
    }
    if product(&[m, n])? == 0 {
        return Ok(());
    }
    let blocks = k.div_ceil(block);
    let row = product(&[blocks, block / 8, bits])?;
    // SAFETY: the caller promises buffers for these sizes.
    let p = unsafe {
        Problem {
            m,
            n,
            k,
            bits,
            block,
            blocks,
            a: args.read::<T>(0, product(&[m, k])?).ok_or_else(|| missing("a"))?,
            b: args.read::<u8>(1, product(&[n, row])?).ok_or_else(|| missing("b"))?,
            scales: args.read::<T>(2, product(&[n, blocks])?).ok_or_else(|| missing("scales"))?,
            zeros: args.read::<u8>(3, product(&[n, (blocks * bits).div_ceil(8)])?),
            bias: args.read::<T>(4, n),
            c: args.out::<T>(5),
        }
    };
    if m < SMALL_M {
        let tasks = n.div_ceil(SMALL_COLS);
        let grain = (1usize << 15).div_ceil((m * k * SMALL_COLS).max(1)).max(1);
        team.run(tasks, grain, &|begin, end| {
            tile::with_scratch(|s| {
                let (begin, end) = (begin * SMALL_COLS, n.min(end * SMALL_COLS));
                match tier {
                    // SAFETY: the tier is `Avx2` only on machines where these features were detected.
                    #[cfg(target_arch = "x86_64")]
                    Tier::Avx2 => unsafe { p.columns_avx2(begin, end, &mut s.extra) },
                    _ => p.columns(begin, end, &mut s.extra),
                }
            })
        });
        return Ok(());
    }
    let (br, bc) = tile::cut(1, m, n, team.n_threads());
    let (row_blocks, col_blocks) = (m.div_ceil(br), n.div_ceil(bc));
    team.run(row_blocks * col_blocks, 1, &|begin, end| {
        with_tier!(tier, {
            for t in begin..end {
                let (row, col) = (t / col_blocks * br, t % col_blocks * bc);
                p.tile(tier, (row, br.min(m - row)), (col, bc.min(n - col)));
            }
        })
    });
    Ok(())
}

impl<T: Elem> Problem<'_, T> {
    /// Bytes of a row of b.
    #[inline(always)]
    fn row(&self) -> usize {
        self.blocks * (self.block / 8 * self.bits)
    }
    #[inline(always)]
    fn zero(&self, col: usize, block: usize) -> i32 {
        let Some(z) = self.zeros else { return 1 << (self.bits - 1) };
        let bit = block * self.bits;
        let byte = z[col * (self.blocks * self.bits).div_ceil(8) + bit / 8];
        i32::from(byte >> (bit % 8)) & ((1 << self.bits) - 1)
    }
    /// Stores sums of columns from `col` on of row `i`.
    #[inline(always)]
    fn store(&self, i: usize, col: usize, sums: &[f32]) {
        // SAFETY: rows of c are disjoint between blocks, and this block's columns belong to this task alone.
        let out = unsafe { self.c.slice(i * self.n + col, sums.len()) };
        for (j, (o, s)) in out.iter_mut().zip(sums).enumerate() {
            *o = T::set(s + self.bias.map_or(0.0, |b| b[col + j].get()));
        }
    }

    /// [`Problem::columns`] for its tier: too large to be inlined where that is left to the compiler.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn columns_avx2(&self, begin: usize, end: usize, reordered: &mut Vec<f32>) {
        self.columns(begin, end, reordered);
    }
    /// All rows, columns `begin..end`.
    #[inline(always)]
    fn columns(&self, begin: usize, end: usize, reordered: &mut Vec<f32>) {
        for i in 0..self.m {
            reordered.clear();
            reordered.resize(self.blocks * self.block, 0.0);
            self.reorder(&self.a[i * self.k..(i + 1) * self.k], reordered);
            for col in (begin..end).step_by(SMALL_COLS) {
                let mut sums = [0f32; SMALL_COLS];
                let here = SMALL_COLS.min(end - col);
                for (j, sum) in sums[..here].iter_mut().enumerate() {
                    *sum = match self.bits {
                        2 => self.dot::<2>(reordered, col + j),
                        4 => self.dot::<4>(reordered, col + j),
                        _ => self.dot::<8>(reordered, col + j),
                    };
                }
                self.store(i, col, &sums[..here]);
            }
        }
    }
    /// Of each block first what meets the first codes of all bytes, then the second ones, and so on.
    #[inline(always)]
    fn reorder(&self, a: &[T], to: &mut [f32]) {
        let per = 8 / self.bits;
        let bytes = self.block / per;
        for (k, v) in a.iter().enumerate() {
            let (block, at) = (k / self.block, k % self.block);
            to[block * self.block + at % per * bytes + at / per] = v.get();
        }
    }
    /// A reordered row times a column.
    #[inline(always)]
    fn dot<const BITS: usize>(&self, a: &[f32], col: usize) -> f32 {
        let (bytes, mask) = (self.block / 8 * BITS, (1i32 << BITS) - 1);
        let codes = &self.b[col * self.row()..(col + 1) * self.row()];
        let scales = &self.scales[col * self.blocks..(col + 1) * self.blocks];
        let mut sum = [0f32; LANES];
        for (block, (codes, scale)) in codes.chunks_exact(bytes).zip(scales).enumerate() {
            let (zero, scale) = (self.zero(col, block), scale.get());
            let a = &a[block * self.block..(block + 1) * self.block];
            let mut acc = [[0f32; LANES]; 2];
            for (part, a) in a.chunks_exact(bytes).enumerate() {
                let shift = part * BITS;
                let code = |c: u8| ((i32::from(c) >> shift & mask) - zero) as f32;
                let (whole_c, whole_a) = (codes.chunks_exact(LANES), a.chunks_exact(LANES));
                let rest = whole_c.remainder().iter().zip(whole_a.remainder());
                for (x, (c, v)) in acc[1].iter_mut().zip(rest) {
                    *x = v.mul_add(code(*c), *x);
                }
                for (i, (c, v)) in whole_c.zip(whole_a).enumerate() {
                    let acc = &mut acc[i % 2];
                    for l in 0..LANES {
                        acc[l] = v[l].mul_add(code(c[l]), acc[l]);
                    }
                }
            }
            for l in 0..LANES {
                sum[l] = scale.mul_add(acc[0][l] + acc[1][l], sum[l]);
            }
        }
        sum.iter().sum()
    }

    #[inline(always)]
    fn tile(&self, tier: Tier, (row, rows): (usize, usize), (col, cols): (usize, usize)) {
        let a = Matrix { data: self.a, row_stride: self.k, col_stride: 1 };
        tile::with_scratch(|s| {
            tile::block(tier, &a, self, (row, rows), (col, cols), self.k, s);
            let ld = tile::padded_cols(cols);
            with_tier!(tier, {
                for i in 0..rows {
                    self.store(row + i, col, &s.c[i * ld..i * ld + cols]);
                }
            })
        });
    }
}

impl<T: Elem> PackB for Problem<'_, T> {
    #[inline(always)]
    fn pack(&self, k: usize, kc: usize, col: usize, cols: usize, out: &mut [f32]) {
        const NR: usize = super::micro::NR;
        let (per, mask) = (8 / self.bits, (1i32 << self.bits) - 1);
        for (p, panel) in out.chunks_exact_mut(kc * NR).take(cols.div_ceil(NR)).enumerate() {
            let (first, here) = (col + p * NR, NR.min(cols - p * NR));
            if here < NR {
                panel.fill(0.0);
            }
            for j in 0..here {
                let (col, row) = (first + j, self.row());
                let codes = &self.b[col * row..(col + 1) * row];
                let mut s = 0;
                while s < kc {
                    let block = (k + s) / self.block;
                    let end = kc.min((block + 1) * self.block - k);
                    let (zero, scale) = (self.zero(col, block), self.scales[col * self.blocks + block].get());
                    for s in s..end {
                        let at = k + s;
                        let code = i32::from(codes[at / per]) >> (at % per * self.bits) & mask;
                        panel[s * NR + j] = (code - zero) as f32 * scale;
                    }
                    s = end;
                }
            }
        }
    }
}
