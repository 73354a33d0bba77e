//! What kernels of the catalog compute, in plain loops and f64, from the integers and scalars of a call; and calls of GEMM.
//! The tests of the kernels for CPUs and the checks of those for GPUs share it.

use half::f16;
use rand::{Rng, SeedableRng};

/// Random numbers and choices, the same every time.
pub struct Rand(rand_chacha::ChaCha8Rng);

impl Rand {
    pub fn new(seed: u64) -> Rand {
        Rand(rand_chacha::ChaCha8Rng::seed_from_u64(seed))
    }
    /// Numbers that f16 holds exactly, so that both types have one reference.
    pub fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| f16::from_f32(self.0.random_range(-1.0..1.0)).to_f32()).collect()
    }
    pub fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.random_range(0..from.len())]
    }
    pub fn chance(&mut self) -> bool {
        self.0.random_range(0..2) == 1
    }
}

/// A call: buffers read, integers, scalars, and the right answer.
pub struct Call {
    pub what: String,
    pub inputs: [Option<Vec<f32>>; 4],
    pub ints: Vec<i64>,
    pub scalars: Vec<f64>,
    pub want: Vec<f64>,
}

/// A product with packed weights and the right answer.
pub struct Nbits {
    pub a: Vec<f32>,
    pub b: Vec<u8>,
    pub scales: Vec<f32>,
    pub zeros: Option<Vec<u8>>,
    pub bias: Option<Vec<f32>>,
    pub ints: [i64; 5],
    pub want: Vec<f64>,
}

pub fn nbits([m, n, k, bits, block]: [usize; 5], with_zeros: bool, with_bias: bool, r: &mut Rand) -> Nbits {
    let blocks = k.div_ceil(block);
    let (row, zero_row) = (blocks * block * bits / 8, (blocks * bits).div_ceil(8));
    let mut bytes = |len: usize| (0..len).map(|_| r.0.random_range(0..=255u8)).collect::<Vec<_>>();
    let (b, zeros) = (bytes(n * row), with_zeros.then(|| bytes(n * zero_row)));
    let (a, scales, bias) = (r.vec(m * k), r.vec(n * blocks), with_bias.then(|| r.vec(n)));
    let code = |line: &[u8], i: usize| f64::from(line[i * bits / 8] >> (i * bits % 8) & ((1u16 << bits) - 1) as u8);
    let half = f64::from(1u32 << (bits - 1));
    let mut want = vec![];
    for (i, j) in (0..m * n).map(|t| (t / n, t % n)) {
        let mut sum = bias.as_ref().map_or(0.0, |b| f64::from(b[j]));
        for t in 0..k {
            let zero = zeros.as_ref().map_or(half, |z| code(&z[j * zero_row..], t / block));
            let scale = f64::from(scales[j * blocks + t / block]);
            sum += f64::from(a[i * k + t]) * (code(&b[j * row..], t) - zero) * scale;
        }
        want.push(sum);
    }
    let ints = [m, n, k, bits, block].map(|x| x as i64);
    Nbits { a, b, scales, zeros, bias, ints, want }
}

/// A matrix product: extents, layouts and what follows the sum.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// The first matrix lies column by column.
    pub ta: bool,
    /// The second matrix lies column by column.
    pub tb: bool,
    /// One second matrix for the whole batch.
    pub shared_b: bool,
    pub alpha: f64,
    /// 0: none; 1: one a column; 2: one a row; 3: one an element.
    pub bias: usize,
    pub residual: bool,
    pub act: usize,
}

impl Gemm {
    /// The call on random matrices.
    pub fn call(&self, r: &mut Rand) -> Call {
        let Gemm { batch, m, n, k, .. } = *self;
        // Nothing to sum may be cut from something: its strides need not be 0.
        let (a_row, a_col) = if self.ta { (1, m) } else { (k.max(1), 1) };
        let (b_row, b_col) = if self.tb { (1, k.max(1)) } else { (n, 1) };
        let b_batch = if self.shared_b { 0 } else { k * n };
        let (bias_row, bias_col, n_bias) = match self.bias {
            1 => (0, 1, n),
            2 => (1, 0, m),
            _ => (n, 1, m * n),
        };
        let (a, b) = (r.vec(batch * m * k), r.vec(if self.shared_b { k * n } else { batch * k * n }));
        let bias = (self.bias > 0).then(|| r.vec(n_bias));
        let residual = self.residual.then(|| r.vec(batch * m * n));
        let scalars = [self.alpha, -0.25, 0.5];
        let mut want = vec![0f64; batch * m * n];
        for (at, w) in want.iter_mut().enumerate() {
            let (bi, i, j) = (at / (m * n), at / n % m, at % n);
            let term = |p: usize| {
                let (x, y) = (a[bi * m * k + i * a_row + p * a_col], b[bi * b_batch + p * b_row + j * b_col]);
                f64::from(x) * f64::from(y)
            };
            let mut v = (0..k).map(term).sum::<f64>() * self.alpha;
            v += bias.as_ref().map_or(0.0, |b| b[i * bias_row + j * bias_col].into());
            v += residual.as_ref().map_or(0.0, |r| r[at].into());
            *w = activate(self.act, v, scalars[1], scalars[2]);
        }
        let ints = [batch, m, n, k, m * k, a_row, a_col, b_batch, b_row, b_col, bias_row, bias_col, m * n, n, self.act];
        Call {
            what: format!("{self:?}"),
            inputs: [Some(a), Some(b), bias, residual],
            ints: ints.map(|x| x as i64).to_vec(),
            scalars: scalars.to_vec(),
            want,
        }
    }
}

/// Convolution with bias, residual and activation.
pub fn conv2d(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
    ints: &[i64; 17],
    scalars: &[f64; 2],
) -> Vec<f64> {
    let [n, c, h, w, m, kh, kw, group, sh, sw, ph, pw, dh, dw, oh, ow, act] = ints.map(|x| x as usize);
    let (cg, mg) = (c / group, m / group);
    let mut want = vec![0f64; n * m * oh * ow];
    for (at, o) in want.iter_mut().enumerate() {
        let (img, ch, oy, ox) = (at / (m * oh * ow), at / (oh * ow) % m, at / ow % oh, at % ow);
        let mut v = bias.map_or(0.0, |b| b[ch].into()) + residual.map_or(0.0, |r| f64::from(r[at]));
        for ic in 0..cg {
            for (ky, kx) in (0..kh).flat_map(|a| (0..kw).map(move |b| (a, b))) {
                let (y, xx) = ((oy * sh + ky * dh).wrapping_sub(ph), (ox * sw + kx * dw).wrapping_sub(pw));
                if y < h && xx < w {
                    let xi = ((img * c + ch / mg * cg + ic) * h + y) * w + xx;
                    v += f64::from(x[xi]) * f64::from(weight[((ch * cg + ic) * kh + ky) * kw + kx]);
                }
            }
        }
        *o = activate(act, v, scalars[0], scalars[1]);
    }
    want
}

/// Pooling; `None` where a window lies in the padding alone.
pub fn pool2d(x: &[f32], ints: &[i64; 16]) -> Option<Vec<f64>> {
    let [nc, h, w, kh, kw, sh, sw, pt, pl, dh, dw, oh, ow, kind, pb, pr] = ints.map(|x| x as usize);
    let mut want = vec![0f64; nc * oh * ow];
    for (at, o) in want.iter_mut().enumerate() {
        let (ch, oy, ox) = (at / (oh * ow), at / ow % oh, at % ow);
        let (mut max, mut sum, mut inside, mut padded) = (f64::NEG_INFINITY, 0.0, 0, 0);
        for (ky, kx) in (0..kh).flat_map(|a| (0..kw).map(move |b| (a, b))) {
            let (y, xx) = (oy * sh + ky * dh, ox * sw + kx * dw);
            padded += i32::from(y < h + pt + pb && xx < w + pl + pr);
            if (pt..h + pt).contains(&y) && (pl..w + pl).contains(&xx) {
                let v = f64::from(x[(ch * h + y - pt) * w + xx - pl]);
                max = if v.is_nan() || v > max { v } else { max };
                (sum, inside) = (sum + v, inside + 1);
            }
        }
        if inside == 0 {
            return None;
        }
        *o = [max, sum / f64::from(inside.max(1)), sum / f64::from(padded.max(1))][kind];
    }
    Some(want)
}

/// The integers of an attention whose operands are contiguous, but for the keys' rows and columns; `mask`: its strides, whether it
/// selects, its rows, and whether NaN becomes 0.
pub fn attention_ints([b, h, s, t, d, e]: [usize; 6], [k_row, k_col]: [usize; 2], mask: [usize; 7]) -> [i64; 23] {
    let operands = [h * s * d, s * d, d, h * t * d, t * d, k_row, k_col, h * t * e, t * e, e];
    let mut all = [b, h, s, t, d, e].into_iter().chain(operands).chain(mask);
    std::array::from_fn(|_| all.next().map_or(0, |x| x as i64))
}

/// Attention; the result is contiguous.
pub fn attention(q: &[f32], k: &[f32], v: &[f32], mask: Option<&[f32]>, ints: &[i64; 23], scale: f64) -> Vec<f64> {
    let [b, h, s, t, d, e, rest @ ..] = ints.map(|x| x as usize);
    let [q_b, q_h, q_r, k_b, k_h, k_r, k_c, v_b, v_h, v_r, m_b, m_h, m_r, m_c, selects, m_rows, nan_to_zero] = rest;
    let mut want = Vec::with_capacity(b * h * s * e);
    for row in 0..b * h * s {
        let (bi, hi, qi) = (row / (h * s), row / s % h, row % s);
        let score = |j: usize| {
            let term = |p: usize| {
                let (x, y) = (q[bi * q_b + hi * q_h + qi * q_r + p], k[bi * k_b + hi * k_h + j * k_r + p * k_c]);
                f64::from(x) * f64::from(y)
            };
            let masked: f64 = mask.map_or(0.0, |m| m[bi * m_b + hi * m_h + qi % m_rows * m_r + j * m_c].into());
            let x = (0..d).map(term).sum::<f64>() * scale;
            if selects == 0 {
                x + masked
            } else if masked == 0.0 {
                x
            } else {
                masked
            }
        };
        let scores: Vec<f64> = (0..t).map(score).collect();
        let max = scores.iter().fold(f64::NEG_INFINITY, |a, &x| a.max(x));
        let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
        let none = nan_to_zero != 0 && sum.is_nan();
        let weight = |j: usize| if none { 0.0 } else { (scores[j] - max).exp() / sum };
        want.extend(
            (0..e).map(|c| (0..t).map(|j| weight(j) * f64::from(v[bi * v_b + hi * v_h + j * v_r + c])).sum::<f64>()),
        );
    }
    want
}

/// The error function by its series: enough for the values here.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..90 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// The activations by their codes.
pub fn activate(code: usize, x: f64, lo: f64, hi: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match code {
        1 => x.max(0.0),
        2 => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        3 => 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        4 => x * sigmoid(x),
        5 => sigmoid(x),
        6 => x.tanh(),
        7 => x.clamp(lo, hi),
        8 => (lo * x + hi).clamp(0.0, 1.0),
        _ => x,
    }
}
