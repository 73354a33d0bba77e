//! Weights of a few bits in bytes: `(code - zero point) · scale`, with one scale for each run of a row; products with such weights.

use crate::data::{f64s, from_f64s, ints};
use crate::math::sum;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

fn misfit(what: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, format!("{what} do not fit the extents"))
}

/// Element `i` of numbers of `bits` bits that lie one after the other in bytes, lowest bits first.
pub fn code(bytes: &[u8], bits: usize, i: usize) -> f64 {
    let bit = |k: usize| bytes.get(k / 8).map_or(0, |b| u32::from(b >> (k % 8) & 1));
    (0..bits).map(|k| bit(i * bits + k) << k).sum::<u32>().into()
}

/// A matrix of packed weights, or several one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// The codes, each row from the start of a byte on. Of another type than u8 or with 0 bits: the weights themselves.
    pub codes: &'a Tensor,
    /// One for each block of each row; 1 where there are none.
    pub scales: Option<&'a Tensor>,
    /// As many, packed like the codes if they are of u8; half of the range where there are none.
    pub zeros: Option<&'a Tensor>,
    /// Bits of a code.
    pub bits: usize,
    /// Rows of a matrix.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Elements of a block; 0 when a row is one.
    pub block: usize,
}

impl Packed<'_> {
    /// Blocks of a row.
    fn blocks(&self) -> usize {
        if self.block == 0 { 1 } else { self.k.div_ceil(self.block) }
    }
    /// The block of an element of a row.
    fn block_of(&self, k: usize) -> usize {
        k.checked_div(self.block).unwrap_or(0)
    }
    /// Zero points of all blocks of `rows` rows. Packed ones start a byte with each row, or with each matrix where a row is a block.
    fn zero_points(&self, rows: usize) -> Vec<f64> {
        let blocks = self.blocks();
        match self.zeros {
            None => vec![f64::from(1u32 << self.bits.saturating_sub(1)); rows * blocks],
            Some(z) if z.dtype() == DType::U8 => {
                let (lines, per) = if self.block == 0 { (rows / self.n.max(1), self.n) } else { (rows, blocks) };
                let stride = (per * self.bits).div_ceil(8);
                let line = |l: usize| z.bytes().get(l * stride..).unwrap_or(&[]);
                (0..lines).flat_map(|l| (0..per).map(move |i| code(line(l), self.bits, i))).collect()
            }
            Some(z) => f64s(z),
        }
    }
    /// The weights of all rows. `groups` says which block's scale and zero point an element takes, if not its own's.
    ///
    /// # Errors
    /// `Shape` when there are too few scales or codes.
    pub fn dense(&self, groups: Option<&Tensor>) -> Result<Vec<f64>> {
        if self.bits == 0 {
            return Ok(f64s(self.codes));
        }
        let blocks = self.blocks();
        let scales = self.scales.map(f64s).unwrap_or_default();
        let rows = scales.len() / blocks.max(1);
        let zeros = self.zero_points(rows);
        let stride = self.codes.bytes().len() / rows.max(1);
        let groups = groups.map(ints);
        let few = groups.as_ref().is_some_and(|g| g.len() < self.k);
        if zeros.len() < rows * blocks || stride * 8 < self.k * self.bits || few {
            return Err(misfit("the packed weights"));
        }
        let mut all = Vec::with_capacity(rows * self.k);
        for r in 0..rows {
            let row = &self.codes.bytes()[r * stride..(r + 1) * stride];
            for k in 0..self.k {
                let g = groups.as_ref().map_or(self.block_of(k), |g| g[k].clamp(0, blocks as i128 - 1) as usize);
                all.push((code(row, self.bits, k) - zeros[r * blocks + g]) * scales[r * blocks + g]);
            }
        }
        Ok(all)
    }
}

/// `y[…, n] = Σ a[…, k] · w(n, k) + bias[n]` with rows of `a` of `k` elements.
///
/// # Errors
/// `Shape` when the rows of `a` or the bias are of other lengths.
fn product(
    a: &Tensor,
    (n, k): (usize, usize),
    w: impl Fn(usize, usize) -> f64,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let mut shape = a.shape().to_vec();
    if shape.last() != Some(&k) || bias.is_some_and(|b| b.n_elems() != n) {
        return Err(misfit("the operands"));
    }
    let rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    let (x, bias) = (f64s(a), bias.map(f64s));
    let term = |m: usize, n: usize| sum((0..k).map(|i| x[m * k + i] * w(n, i)));
    let y: Vec<f64> = (0..rows)
        .flat_map(|m| (0..n).map(move |n| (m, n)))
        .map(|(m, n)| term(m, n) + bias.as_ref().map_or(0.0, |b| b[n]))
        .collect();
    Ok(from_f64s(a.dtype(), &shape, &y))
}

/// `y = a · wᵀ + bias`; without codes the product is 0.
///
/// # Errors
/// Those of [`Packed::dense`].
pub fn matmul_nbits(a: &Tensor, w: &Packed, groups: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    if w.codes.n_elems() == 0 {
        return product(a, (w.n, w.k), |_, _| 0.0, bias);
    }
    let dense = w.dense(groups)?;
    if dense.len() != w.n * w.k {
        return Err(misfit("the packed weights"));
    }
    product(a, (w.n, w.k), |n, k| dense[n * w.k + k], bias)
}

/// The values of 4-bit floats of exponent and fraction, over 12, by their three lower bits; the highest is the sign.
pub const FP4: [f32; 8] = [0.0, 0.0625 / 12.0, 8.0 / 12.0, 1.0, 4.0 / 12.0, 6.0 / 12.0, 2.0 / 12.0, 3.0 / 12.0];
/// Quantiles of the normal distribution, scaled to [-1, 1] (Dettmers et al., QLoRA, arXiv:2305.14314, appendix E).
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// What a code of 4 bits stands for.
pub fn bnb4(code: u8, normal: bool) -> f64 {
    let magnitude = FP4[usize::from(code & 7)];
    match normal {
        true => NF4[usize::from(code & 15)].into(),
        false => f64::from(if code & 8 == 0 { magnitude } else { -magnitude }),
    }
}

/// `y = a · wᵀ` or, not transposed, `a · w`, with `w[n, k]` of 4-bit codes, the higher half of a byte first, and one factor for each
/// `block` of them across rows.
///
/// # Errors
/// `Shape` when there are too few codes or factors.
pub fn matmul_bnb4(
    a: &Tensor,
    codes: &Tensor,
    absmax: &Tensor,
    (n, k): (usize, usize),
    block: usize,
    (normal, trans): (bool, bool),
) -> Result<Tensor> {
    let (bytes, scales) = (codes.bytes(), f64s(absmax));
    if bytes.len() < (n * k).div_ceil(2) || scales.len() < (n * k).div_ceil(block.max(1)) {
        return Err(misfit("the packed weights"));
    }
    let w = |n: usize, i: usize| {
        let at = n * k + i;
        bnb4(bytes[at / 2] >> if at.is_multiple_of(2) { 4 } else { 0 }, normal) * scales[at / block]
    };
    if trans { product(a, (n, k), w, None) } else { product(a, (k, n), |i, n| w(n, i), None) }
}

/// How [`gather_blocks`] finds its elements.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// The axis of the indices.
    pub gather: usize,
    /// The axis that has blocks.
    pub quantize: usize,
    /// Elements of a block; 0 for the whole axis.
    pub block: usize,
    /// Bits of an element of bytes; 0 for other types.
    pub bits: usize,
}

/// `(data - zero point) · scale` of the slices of `data` that `indices` name; those that do not exist are 0.
///
/// # Errors
/// `Shape` when scales do not fit.
pub fn gather_blocks(
    data: &Tensor,
    indices: &Tensor,
    scales: &Tensor,
    zeros: Option<&Tensor>,
    how: Blocks,
) -> Result<Tensor> {
    let per = 8usize.checked_div(how.bits).unwrap_or(1);
    let mut shape = data.shape().to_vec();
    *shape.last_mut().ok_or_else(|| misfit("the data"))? *= per;
    let values: Vec<f64> = match how.bits {
        0 => f64s(data),
        bits => (0..data.n_elems() * per).map(|i| code(data.bytes(), bits, i)).collect(),
    };
    let plain = zeros.map(f64s).unwrap_or_default();
    let zero = |at: usize, line: usize, count: usize| match (zeros, how.bits) {
        (None, 0) => 0.0,
        (None, bits) => f64::from(1u32 << (bits - 1)),
        (Some(_), 0 | 8) => plain.get(at).copied().unwrap_or(0.0),
        // Packed along the last axis, which is the one of blocks.
        (Some(z), bits) => {
            let line_bytes = z.bytes().get(line * (count * bits).div_ceil(8)..).unwrap_or(&[]);
            code(line_bytes, bits, at - line * count)
        }
    };
    if scales.shape().len() != shape.len() {
        return Err(misfit("the scales"));
    }
    let block = if how.block == 0 { shape[how.quantize].max(1) } else { how.block };
    let (n, s) = (shape[how.gather], f64s(scales));
    let mut out = shape[..how.gather].to_vec();
    out.extend(indices.shape());
    out.extend(&shape[how.gather + 1..]);
    let (inner, wanted): (usize, Vec<i64>) = (shape[how.gather + 1..].iter().product(), indices.to_i64_vec());
    let lead: usize = shape[..how.gather].iter().product();
    let mut y = Vec::new();
    for o in 0..lead {
        for &i in &wanted {
            let i = usize::try_from(if i < 0 { i + n as i64 } else { i }).ok().filter(|&i| i < n);
            for j in 0..inner {
                let Some(i) = i else {
                    y.push(0.0);
                    continue;
                };
                let at = (o * n + i) * inner + j;
                // The place in the scales, axis by axis.
                let (mut rest, mut place, mut step) = (at, 0, 1);
                for axis in (0..shape.len()).rev() {
                    let c = rest % shape[axis];
                    rest /= shape[axis];
                    let c = if axis == how.quantize { c / block } else { c };
                    place += step * if scales.shape()[axis] == 1 { 0 } else { c };
                    step *= scales.shape()[axis];
                }
                let count = scales.shape()[shape.len() - 1];
                let scale = *s.get(place).ok_or_else(|| misfit("the scales"))?;
                y.push((values[at] - zero(place, place / count.max(1), count)) * scale);
            }
        }
    }
    Ok(from_f64s(scales.dtype(), &out, &y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_cross_bytes() {
        let bytes = [0b1010_0011, 0b0000_1101];
        assert_eq!((0..4).map(|i| code(&bytes, 4, i)).collect::<Vec<_>>(), [3.0, 10.0, 13.0, 0.0]);
        // 011 100 10|1 110 000 0: from the lowest bit on.
        assert_eq!((0..5).map(|i| code(&bytes, 3, i)).collect::<Vec<_>>(), [3.0, 4.0, 6.0, 6.0, 0.0]);
    }

    #[test]
    fn a_block_has_its_scale() {
        let codes = Tensor::from_i64_as(DType::U8, &[1, 2, 1], &[0x91, 0x2f]);
        let scales = Tensor::from_f32(&[1, 2], &[1.0, 0.5]);
        let w = Packed { codes: &codes, scales: Some(&scales), zeros: None, bits: 4, n: 1, k: 3, block: 2 };
        assert_eq!(w.dense(None).unwrap(), [-7.0, 1.0, 3.5]);
        let zeros = Tensor::from_i64_as(DType::U8, &[1, 1], &[0x21]);
        let w = Packed { zeros: Some(&zeros), ..w };
        assert_eq!(w.dense(None).unwrap(), [0.0, 8.0, 6.5]);
    }
}
