//! 2-D convolution as an implicit matrix product: the image is gathered while panels are packed, no im2col buffer exists.
//!
//! Per image and group: `y[m, oh·ow] = w[m, c·kh·kw] × x̃[c·kh·kw, oh·ow]`. Bound: 2·m·c·kh·kw·oh·ow flops. Depthwise
//! convolutions go to their own loop (bound by bytes).

use super::elem::Elem;
use super::epilogue::{self, Bias, Epilogue, with_tier};
use super::micro::NR;
use super::tile::{self, Matrix, PackB};
use super::{Args, KernelError, Out, Tier, depthwise, missing, product};
use crate::team::Team;

/// Geometry of a convolution.
#[derive(Clone, Copy)]
pub(crate) struct Geometry {
    pub n: usize,
    pub c: usize,
    pub h: usize,
    pub w: usize,
    pub m: usize,
    pub kh: usize,
    pub kw: usize,
    pub group: usize,
    pub stride: (usize, usize),
    pub pad: (usize, usize),
    pub dil: (usize, usize),
    pub oh: usize,
    pub ow: usize,
}

/// Buffers and epilogue of a convolution.
pub(crate) struct Buffers<'a, T> {
    pub x: &'a [T],
    pub w: &'a [T],
    pub bias: Option<&'a [T]>,
    pub residual: Option<&'a [T]>,
    pub y: Out<T>,
    pub epilogue: Epilogue,
}

impl<T: Elem> Buffers<'_, T> {
    /// Stores sums of channel `ch` (over all images: `image·m + channel`) at pixels `pixel..`.
    #[inline(always)]
    pub fn store(&self, g: &Geometry, ch: usize, pixel: usize, acc: &mut [f32]) {
        let bias = self.bias.map_or(Bias::None, |b| Bias::One(b[ch % g.m].get()));
        let at = ch * g.oh * g.ow + pixel;
        let residual = self.residual.map(|r| &r[at..at + acc.len()]);
        // SAFETY: each task owns its channels and pixels.
        let out = unsafe { self.y.slice(at, acc.len()) };
        epilogue::row(&self.epilogue, acc, bias, residual, out);
    }
}

/// The gathered image of one group: rows are (channel, ky, kx), columns are output pixels.
struct Gather<'a, T> {
    x: &'a [T],
    g: Geometry,
}

impl<T: Elem> PackB for Gather<'_, T> {
    #[inline(always)]
    fn pack(&self, k: usize, kc: usize, col: usize, cols: usize, out: &mut [f32]) {
        let g = &self.g;
        let taps = g.kh * g.kw;
        for (p, panel) in out.chunks_exact_mut(kc * NR).take(cols.div_ceil(NR)).enumerate() {
            let (first, here) = (col + p * NR, NR.min(cols - p * NR));
            // Top-left corner of each pixel's window, in input coordinates.
            let mut corner = [(0isize, 0isize); NR];
            for (j, c) in corner.iter_mut().enumerate().take(here) {
                let (oy, ox) = ((first + j) / g.ow, (first + j) % g.ow);
                *c = ((oy * g.stride.0) as isize - g.pad.0 as isize, (ox * g.stride.1) as isize - g.pad.1 as isize);
            }
            let one_row = here == NR && g.stride.1 == 1 && first / g.ow == (first + NR - 1) / g.ow;
            for (s, dst) in panel.chunks_exact_mut(NR).enumerate() {
                let (ch, tap) = ((k + s) / taps, (k + s) % taps);
                let (dy, dx) = ((tap / g.kw * g.dil.0) as isize, (tap % g.kw * g.dil.1) as isize);
                let plane = &self.x[ch * g.h * g.w..(ch + 1) * g.h * g.w];
                let (y, x) = (corner[0].0 + dy, corner[0].1 + dx);
                if one_row && x >= 0 && x as usize + NR <= g.w {
                    if y >= 0 && (y as usize) < g.h {
                        let at = y as usize * g.w + x as usize;
                        dst.iter_mut().zip(&plane[at..at + NR]).for_each(|(d, v)| *d = v.get());
                    } else {
                        dst.fill(0.0);
                    }
                    continue;
                }
                for (j, d) in dst.iter_mut().enumerate() {
                    let (y, x) = (corner[j].0 + dy, corner[j].1 + dx);
                    let inside = j < here && y >= 0 && (y as usize) < g.h && x >= 0 && (x as usize) < g.w;
                    *d = if inside { plane[y as usize * g.w + x as usize].get() } else { 0.0 };
                }
            }
        }
    }
}

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn conv2d<T: Elem>(tier: Tier, team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let mut z = [0usize; 16];
    for (i, z) in z.iter_mut().enumerate() {
        *z = args.size(i)?;
    }
    let [n, c, h, w, m, kh, kw, group, sh, sw, pt, pl, dh, dw, oh, ow] = z;
    if group == 0 || c % group != 0 || m % group != 0 {
        return Err(KernelError(format!("{c} input and {m} output channels do not divide into {group} groups")));
    }
    let g = Geometry { n, c, h, w, m, kh, kw, group, stride: (sh, sw), pad: (pt, pl), dil: (dh, dw), oh, ow };
    let (cg, mg) = (c / group, m / group);
    let pixels = product(&[oh, ow])?;
    let n_out = product(&[n, m, pixels])?;
    if n_out == 0 {
        return Ok(());
    }
    // SAFETY: the caller promises buffers of these sizes.
    let bufs = unsafe {
        Buffers {
            x: args.read::<T>(0, product(&[n, c, h, w])?).ok_or_else(|| missing("x"))?,
            w: args.read::<T>(1, product(&[m, cg, kh, kw])?).ok_or_else(|| missing("w"))?,
            bias: args.read::<T>(2, m),
            residual: args.read::<T>(3, n_out),
            y: args.out::<T>(4),
            epilogue: Epilogue {
                alpha: 1.0,
                activation: args.ints[16],
                lo: args.scalars[0] as f32,
                hi: args.scalars[1] as f32,
            },
        }
    };
    if cg == 1 {
        depthwise::run(tier, team, &g, &bufs);
        return Ok(());
    }
    let k = product(&[cg, kh, kw])?;
    let (br, bc) = tile::cut(n * group, mg, pixels, team.n_threads());
    let (row_blocks, col_blocks) = (mg.div_ceil(br), pixels.div_ceil(bc));
    let pointwise = kh == 1 && kw == 1 && (sh, sw) == (1, 1) && (pt, pl) == (0, 0) && (oh, ow) == (h, w);
    team.run(n * group * row_blocks * col_blocks, 1, &|begin, end| {
        with_tier!(tier, {
            for t in begin..end {
                let (row, col) = (t / col_blocks % row_blocks * br, t % col_blocks * bc);
                let (image, gi) = (t / (col_blocks * row_blocks) / group, t / (col_blocks * row_blocks) % group);
                let (rows, cols) = (br.min(mg - row), bc.min(pixels - col));
                let weights = Matrix { data: &bufs.w[gi * mg * k..(gi + 1) * mg * k], row_stride: k, col_stride: 1 };
                let x = &bufs.x[(image * c + gi * cg) * h * w..(image * c + (gi + 1) * cg) * h * w];
                tile::with_scratch(|s| {
                    if pointwise {
                        let x = Matrix { data: x, row_stride: pixels, col_stride: 1 };
                        tile::block(tier, &weights, &x, (row, rows), (col, cols), k, s);
                    } else {
                        tile::block(tier, &weights, &Gather { x, g }, (row, rows), (col, cols), k, s);
                    }
                    let ld = tile::padded_cols(cols);
                    with_tier!(tier, {
                        for i in 0..rows {
                            let ch = image * m + gi * mg + row + i;
                            bufs.store(&g, ch, col, &mut s.c[i * ld..i * ld + cols]);
                        }
                    })
                });
            }
        })
    });
    Ok(())
}
