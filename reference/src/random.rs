//! Random numbers: a function of three words and a position, the same on every device.
//!
//! Element `i` of a draw is one block of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): counter
//! `(i, draw, run)` of 64, 32 and 32 bits, key of 64 bits. Its first two words are the element's 64 bits, the first the lower.

use crate::data::{f64s, from_f64s, from_ints};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// What a draw depends on: key, number of the draw in its run, number of the run.
pub type Words = [i64; 3];

/// The words of a node's first draw in the first run of a session whose seed is 0: by the node's seed (of an f32 its bits) where it has one,
/// else by its place among the nodes that draw.
pub fn first_words(stream: i64, seed: Option<i64>) -> Words {
    [seed.map_or(stream << 32, |s| s | i64::MIN), 0, 0]
}

/// One block of Philox4x32-10.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..10 {
        let (p, q) = (u64::from(a) * 0xD251_1F53, u64::from(c) * 0xCD9E_8D57);
        (a, b, c, d) = ((q >> 32) as u32 ^ b ^ k, q as u32, (p >> 32) as u32 ^ d ^ l, p as u32);
        (k, l) = (k.wrapping_add(0x9E37_79B9), l.wrapping_add(0xBB67_AE85));
    }
    [a, b, c, d]
}

/// The 64 bits of each of `n` elements.
pub fn bits(w: Words, n: usize) -> Vec<u64> {
    let key = [w[0] as u32, (w[0] >> 32) as u32];
    let block = |i: usize| philox([i as u32, (i as u64 >> 32) as u32, w[1] as u32, w[2] as u32], key);
    (0..n).map(block).map(|x| u64::from(x[0]) | u64::from(x[1]) << 32).collect()
}

/// Binary digits of a float type's significand.
pub fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 53,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

/// Numbers in [0, 1): the upper bits, as many as the type has digits.
pub fn unit(dtype: DType, bits: u64) -> f64 {
    let p = digits(dtype);
    (bits >> (64 - p)) as f64 / 2f64.powi(p as i32)
}

/// `RandomUniform`: low + u (high - low).
pub fn uniform(dtype: DType, shape: &[usize], w: Words, (low, high): (f64, f64)) -> Tensor {
    let v: Vec<f64> = bits(w, shape.iter().product()).iter().map(|&b| low + unit(dtype, b) * (high - low)).collect();
    from_f64s(dtype, shape, &v)
}

/// `RandomNormal`: mean + scale √(-2 ln u) cos(2πv) (Box and Muller) with u from the upper 32 bits, in (0, 1), and v from the lower.
pub fn normal(dtype: DType, shape: &[usize], w: Words, (mean, scale): (f64, f64)) -> Tensor {
    let one = |b: &u64| {
        let (u, v) = (((b >> 32) as f64 + 0.5) / 2f64.powi(32), (b & 0xffff_ffff) as f64 / 2f64.powi(32));
        mean + scale * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    };
    let v: Vec<f64> = bits(w, shape.iter().product()).iter().map(one).collect();
    from_f64s(dtype, shape, &v)
}

/// `Bernoulli`: 1 where a number in [0, 1) of f64 is below the element.
pub fn bernoulli(dtype: DType, p: &Tensor, w: Words) -> Tensor {
    let of = f64s(p);
    let v: Vec<i128> = bits(w, of.len()).iter().zip(&of).map(|(&b, &p)| i128::from(unit(DType::F64, b) < p)).collect();
    match dtype.is_float() {
        true => from_f64s(dtype, p.shape(), &v.iter().map(|&x| x as f64).collect::<Vec<_>>()),
        false => from_ints(dtype, p.shape(), &v),
    }
}

/// `Dropout` in training: what is kept, divided by the share that is; and the mask of what is kept, where a number in [0, 1) of f64 is
/// not below the ratio.
pub fn dropout(x: &Tensor, ratio: f64, w: Words) -> [Tensor; 2] {
    let v = f64s(x);
    let kept: Vec<bool> = bits(w, v.len()).iter().map(|&b| unit(DType::F64, b) >= ratio).collect();
    let y: Vec<f64> = v.iter().zip(&kept).map(|(x, &k)| if k { x / (1.0 - ratio) } else { 0.0 }).collect();
    let mask: Vec<i128> = kept.iter().map(|&k| i128::from(k)).collect();
    [from_f64s(x.dtype(), x.shape(), &y), from_ints(DType::Bool, x.shape(), &mask)]
}

/// `Multinomial`: from log-weights `[b, classes]`, classes `[b, n]`: the first whose sum of weights up to it is above u times their sum.
///
/// # Errors
/// `Shape` when there are no classes to draw from, or other axes.
pub fn multinomial(dtype: DType, logs: &Tensor, n: usize, w: Words) -> Result<Tensor> {
    let &[b, classes] = logs.shape() else {
        return Err(Diagnostic::new(ErrorKind::Shape, "Multinomial: the weights are [batch, classes]"));
    };
    if classes == 0 && b * n > 0 {
        return Err(Diagnostic::new(ErrorKind::Shape, "Multinomial: there is no class to draw"));
    }
    let (v, drawn) = (f64s(logs), bits(w, b * n));
    let mut y = vec![];
    for (i, &bits) in drawn.iter().enumerate() {
        let row = &v[i / n * classes..][..classes];
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        let sums: Vec<f64> = row
            .iter()
            .map(|x| {
                sum += (x - top).exp();
                sum
            })
            .collect();
        let at = unit(DType::F64, bits) * sum;
        y.push(sums.iter().filter(|s| **s <= at).count().min(classes - 1) as i128);
    }
    Ok(from_ints(dtype, &[b, n], &y))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the generator's authors.
    #[test]
    fn blocks_are_philox() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// Moments and shares of cells: within five deviations of what they must be.
    #[test]
    fn numbers_are_spread_as_they_must_be() {
        let n = 1 << 16;
        let u = f64s(&uniform(DType::F32, &[n], first_words(3, None), (-1.0, 3.0)));
        let mean = u.iter().sum::<f64>() / n as f64;
        assert!((mean - 1.0).abs() < 5.0 * (16.0f64 / 12.0 / n as f64).sqrt(), "{mean}");
        assert!(u.iter().all(|x| (-1.0..=3.0).contains(x)));
        let mut cells = [0f64; 64];
        u.iter().for_each(|x| cells[(((x + 1.0) * 16.0) as usize).min(63)] += 1.0);
        let want = n as f64 / 64.0;
        let chi: f64 = cells.iter().map(|c| (c - want).powi(2) / want).sum();
        assert!((chi - 63.0).abs() < 5.0 * 126f64.sqrt(), "chi-square of 63 degrees: {chi}");
        let z = f64s(&normal(DType::F64, &[n], first_words(0, Some(7)), (2.0, 3.0)));
        let mean = z.iter().sum::<f64>() / n as f64;
        let moment = |k: i32| z.iter().map(|x| ((x - 2.0) / 3.0).powi(k)).sum::<f64>() / n as f64;
        assert!((mean - 2.0).abs() < 15.0 / (n as f64).sqrt(), "{mean}");
        assert!((moment(2) - 1.0).abs() < 5.0 * (2.0 / n as f64).sqrt(), "{}", moment(2));
        assert!((moment(4) - 3.0).abs() < 5.0 * (96.0 / n as f64).sqrt(), "{}", moment(4));
    }
}
