//! Catalog kernels as plain loops, sums in f64.

use super::scalar::{Val, unary};
use super::{Interp, Ptr, internal};
use ir::hip::Call;
use ir::nest::UnOp;
use kernels::catalog::activation;
use tensor::Result;

impl Interp<'_> {
    pub fn call(&mut self, call: &Call, ops: &[Option<Ptr>]) -> Result<()> {
        let ints = call.ints.iter().map(|&d| self.eval(d)).collect::<Result<Vec<i64>>>()?;
        let scalars: Vec<f64> = call.scalars.iter().map(|&b| f64::from_bits(b)).collect();
        match call.kernel.split('.').next().unwrap_or("") {
            "gemm" => self.gemm(&ints, &scalars, ops),
            "conv2d" => self.conv(&ints, &scalars, ops),
            "pool2d" => self.pool(&ints, ops),
            "attention" => self.attention(&ints, &scalars, ops),
            "nonzero_count" => {
                let x = some(ops, 0)?;
                let mut n = 0;
                for i in 0..ints[0] {
                    n += i64::from(self.at(x, x.offset + i)? != 0.0);
                }
                let y = some(ops, 1)?;
                self.store(y, y.offset, Val::I64(n))
            }
            "nonzero_fill" => {
                let (x, y) = (some(ops, 0)?, some(ops, 1)?);
                let (rank, count) = (ints[0] as usize, ints[1]);
                let shape = &ints[2..2 + rank];
                let mut n = 0;
                for i in 0..shape.iter().product() {
                    if self.at(x, x.offset + i)? != 0.0 {
                        for (k, c) in super::unravel(i, shape).into_iter().enumerate() {
                            self.store(y, y.offset + k as i64 * count + n, Val::I64(c))?;
                        }
                        n += 1;
                    }
                }
                Ok(())
            }
            "nbits" => self.nbits(&ints, ops),
            "nms" => self.nms(&ints, ops),
            // The first draw of the first run.
            "draw" => {
                let y = some(ops, 0)?;
                let key = if ints[1] < 0 { ints[0] << 32 } else { ints[1] | i64::MIN };
                (0..).zip([key, 0, 0]).try_for_each(|(i, w)| self.store(y, y.offset + i, Val::I64(w)))
            }
            "dft" => self.dft(&ints, ops),
            "argsort" => {
                let (x, y) = (some(ops, 0)?, some(ops, 1)?);
                let [rows, n, k] =
                    <[i64; 3]>::try_from(ints).map_err(|_| internal("argsort takes 3 integers".into()))?;
                for row in 0..rows {
                    let mut order = (0..n)
                        .map(|i| Ok((self.load(x, x.offset + row * n + i)?.as_i64() as u64, i)))
                        .collect::<Result<Vec<_>>>()?;
                    order.sort_unstable();
                    for (j, (_, i)) in (0..k).zip(order) {
                        self.store(y, y.offset + row * k + j, Val::I64(i))?;
                    }
                }
                Ok(())
            }
            _ => Err(internal(format!("{} is not known here", call.kernel))),
        }
    }
    fn at(&self, p: &Ptr, at: i64) -> Result<f64> {
        Ok(self.load(p, at)?.as_f64())
    }
    fn put(&mut self, p: &Ptr, at: i64, x: f64) -> Result<()> {
        self.store(p, at, Val::F32(x as f32))
    }

    fn gemm(&mut self, i: &[i64], s: &[f64], ops: &[Option<Ptr>]) -> Result<()> {
        let (a, b, c) = (some(ops, 0)?, some(ops, 1)?, some(ops, 4)?);
        let (bias, residual) = (&ops[2], &ops[3]);
        let (batch, m, n, k) = (i[0], i[1], i[2], i[3]);
        for p in 0..batch {
            for r in 0..m {
                for q in 0..n {
                    let mut sum = 0.0;
                    for t in 0..k {
                        let x = self.at(a, a.offset + p * i[4] + r * i[5] + t * i[6])?;
                        sum += x * self.at(b, b.offset + p * i[7] + t * i[8] + q * i[9])?;
                    }
                    sum *= s[0];
                    if let Some(z) = bias {
                        sum += self.at(z, z.offset + r * i[10] + q * i[11])?;
                    }
                    if let Some(z) = residual {
                        sum += self.at(z, z.offset + p * i[12] + r * i[13] + q)?;
                    }
                    let y = act(i[14], sum, s[1], s[2])?;
                    self.put(c, c.offset + (p * m + r) * n + q, y)?;
                }
            }
        }
        Ok(())
    }
    fn nbits(&mut self, i: &[i64], ops: &[Option<Ptr>]) -> Result<()> {
        let (a, b, scales, c) = (some(ops, 0)?, some(ops, 1)?, some(ops, 2)?, some(ops, 5)?);
        let [m, n, k, bits, block] = <[i64; 5]>::try_from(i).map_err(|_| internal("nbits takes 5 integers".into()))?;
        let blocks = (k + block - 1) / block;
        let (row, zero_row) = (blocks * block * bits / 8, (blocks * bits + 7) / 8);
        let code = |x: &Interp, p: &Ptr, from: i64, at: i64| -> Result<f64> {
            let byte = x.at(p, p.offset + from + at * bits / 8)? as i64;
            Ok((byte >> (at * bits % 8) & ((1 << bits) - 1)) as f64)
        };
        for (r, q) in (0..m * n).map(|t| (t / n, t % n)) {
            let mut sum = ops[4].as_ref().map_or(Ok(0.0), |z| self.at(z, z.offset + q))?;
            for t in 0..k {
                let at = t / block;
                let zero = match &ops[3] {
                    Some(z) => code(self, z, q * zero_row, at)?,
                    None => (1i64 << (bits - 1)) as f64,
                };
                let w = (code(self, b, q * row, t)? - zero) * self.at(scales, scales.offset + q * blocks + at)?;
                sum += self.at(a, a.offset + r * k + t)? * w;
            }
            self.put(c, c.offset + r * n + q, sum)?;
        }
        Ok(())
    }
    fn dft(&mut self, i: &[i64], ops: &[Option<Ptr>]) -> Result<()> {
        let (x, roots, y) = (some(ops, 0)?, some(ops, 1)?, some(ops, 2)?);
        let [outer, t, inner, parts, n, bins, out_parts, inverse] =
            <[i64; 8]>::try_from(i).map_err(|_| internal("dft takes 8 integers".into()))?;
        for (o, k) in (0..outer * bins).map(|p| (p / bins, p % bins)) {
            for i in 0..inner {
                let (mut re, mut im) = (0.0, 0.0);
                for u in 0..n {
                    let mirrored = out_parts == 1 && u > n / 2;
                    let from = if mirrored { n - u } else { u };
                    let at = x.offset + ((o * t + from) * inner + i) * parts;
                    let a = if from < t { self.at(x, at)? } else { 0.0 };
                    let b = if from < t && parts == 2 { self.at(x, at + 1)? } else { 0.0 };
                    let b = if mirrored { -b } else { b };
                    let root = roots.offset + u * k % n * 2;
                    let (c, s) = (self.at(roots, root)?, self.at(roots, root + 1)?);
                    let s = if inverse == 1 { s } else { -s };
                    re += a * c - b * s;
                    im += a * s + b * c;
                }
                let scale = if inverse == 1 { n as f64 } else { 1.0 };
                for (part, v) in (0..out_parts).zip([re, im]) {
                    self.store(y, y.offset + ((o * bins + k) * inner + i) * out_parts + part, Val::F64(v / scale))?;
                }
            }
        }
        Ok(())
    }
    fn nms(&mut self, i: &[i64], ops: &[Option<Ptr>]) -> Result<()> {
        let [batch, classes, n, center] =
            <[i64; 4]>::try_from(i).map_err(|_| internal("nms takes 4 integers".into()))?;
        let y = some(ops, 5)?;
        let f32s = |x: &Interp, k: usize, at: i64| x.at(some(ops, k)?, some(ops, k)?.offset + at).map(|v| v as f32);
        let (limit, iou) = (self.at(some(ops, 3)?, some(ops, 3)?.offset)? as i64, f32s(self, 4, 0)?);
        for row in 0..batch * classes {
            let mut kept: Vec<(i64, [f32; 4])> = vec![];
            for j in row * n..(row + 1) * n {
                if f32s(self, 2, j)? == 0.0 || kept.len() as i64 >= limit {
                    continue;
                }
                let at = self.at(some(ops, 1)?, some(ops, 1)?.offset + j)? as i64;
                let mut b = [0f32; 4];
                for (k, b) in (0..).zip(&mut b) {
                    *b = f32s(self, 0, (row / classes * n + at) * 4 + k)?;
                }
                if center == 1 {
                    let (w, h) = (b[2] / 2.0, b[3] / 2.0);
                    b = [b[0] - w, b[1] - h, b[0] + w, b[1] + h];
                }
                let side = |c: &[f32; 4], k: usize| (c[k].min(c[k + 2]), c[k].max(c[k + 2]));
                let area = |c: &[f32; 4]| (side(c, 0).1 - side(c, 0).0) * (side(c, 1).1 - side(c, 1).0);
                let covered = kept.iter().any(|(_, c)| {
                    let span = |k: usize| side(&b, k).1.min(side(c, k).1) - side(&b, k).0.max(side(c, k).0);
                    let (w, h) = (span(0), span(1));
                    let union = area(c) + area(&b) - w * h;
                    w > 0.0 && h > 0.0 && w * h > 0.0 && w * h / union > iou
                });
                if !covered {
                    kept.push((at, b));
                }
            }
            for j in 0..n {
                let at = kept.get(j as usize).map_or(-1, |k| k.0);
                self.store(y, y.offset + row * n + j, Val::I64(at))?;
            }
        }
        Ok(())
    }
    fn conv(&mut self, i: &[i64], s: &[f64], ops: &[Option<Ptr>]) -> Result<()> {
        let (x, w, y) = (some(ops, 0)?, some(ops, 1)?, some(ops, 4)?);
        let (bias, residual) = (&ops[2], &ops[3]);
        let [n, c, h, wd, m, kh, kw, group, sh, sw, pt, pl, dh, dw, oh, ow, code] =
            <[i64; 17]>::try_from(i).map_err(|_| internal("conv2d takes 17 integers".into()))?;
        let (cg, mg) = (c / group, m / group);
        for b in 0..n {
            for o in 0..m {
                for r in 0..oh {
                    for q in 0..ow {
                        let mut sum = 0.0;
                        for ci in 0..cg {
                            for (kr, kq) in (0..kh * kw).map(|t| (t / kw, t % kw)) {
                                let (yy, xx) = (r * sh - pt + kr * dh, q * sw - pl + kq * dw);
                                if (0..h).contains(&yy) && (0..wd).contains(&xx) {
                                    let ch = o / mg * cg + ci;
                                    let v = self.at(x, x.offset + ((b * c + ch) * h + yy) * wd + xx)?;
                                    sum += v * self.at(w, w.offset + ((o * cg + ci) * kh + kr) * kw + kq)?;
                                }
                            }
                        }
                        let at = ((b * m + o) * oh + r) * ow + q;
                        if let Some(z) = bias {
                            sum += self.at(z, z.offset + o)?;
                        }
                        if let Some(z) = residual {
                            sum += self.at(z, z.offset + at)?;
                        }
                        self.put(y, y.offset + at, act(code, sum, s[0], s[1])?)?;
                    }
                }
            }
        }
        Ok(())
    }
    fn pool(&mut self, i: &[i64], ops: &[Option<Ptr>]) -> Result<()> {
        let (x, y) = (some(ops, 0)?, some(ops, 1)?);
        let [nc, h, w, kh, kw, sh, sw, pt, pl, dh, dw, oh, ow, kind, pb, pr] =
            <[i64; 16]>::try_from(i).map_err(|_| internal("pool2d takes 16 integers".into()))?;
        for p in 0..nc {
            for (r, q) in (0..oh * ow).map(|t| (t / ow, t % ow)) {
                let (mut best, mut sum, mut n) = (f64::NEG_INFINITY, 0.0, 0);
                for (kr, kq) in (0..kh * kw).map(|t| (t / kw, t % kw)) {
                    let (yy, xx) = (r * sh - pt + kr * dh, q * sw - pl + kq * dw);
                    if (0..h).contains(&yy) && (0..w).contains(&xx) {
                        let v = self.at(x, x.offset + (p * h + yy) * w + xx)?;
                        best = if v.is_nan() || best.is_nan() { f64::NAN } else { best.max(v) };
                        sum += v;
                        n += 1;
                    } else if kind == 2 && yy < h + pb && xx < w + pr {
                        n += 1;
                    }
                }
                let v = if kind == 0 { best } else { sum / f64::from(n.max(1)) };
                self.put(y, y.offset + (p * oh + r) * ow + q, v)?;
            }
        }
        Ok(())
    }
    fn attention(&mut self, i: &[i64], s: &[f64], ops: &[Option<Ptr>]) -> Result<()> {
        let (q, k, v, y) = (some(ops, 0)?, some(ops, 1)?, some(ops, 2)?, some(ops, 4)?);
        let (batch, heads, rows, t, d, e) = (i[0], i[1], i[2], i[3], i[4], i[5]);
        let st = &i[6..];
        for (b, h) in (0..batch * heads).map(|x| (x / heads, x % heads)) {
            for r in 0..rows {
                let mut w = vec![];
                for c in 0..t {
                    let mut sum = 0.0;
                    for z in 0..d {
                        let a = self.at(q, q.offset + b * st[0] + h * st[1] + r * st[2] + z)?;
                        sum += a * self.at(k, k.offset + b * st[3] + h * st[4] + c * st[5] + z * st[6])?;
                    }
                    sum *= s[0];
                    if let Some(m) = &ops[3] {
                        let row = r % st[15].max(1);
                        let m = self.at(m, m.offset + b * st[10] + h * st[11] + row * st[12] + c * st[13])?;
                        sum = if st[14] == 0 {
                            sum + m
                        } else if m == 0.0 {
                            sum
                        } else {
                            m
                        };
                    }
                    w.push(sum);
                }
                let top = w.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                w.iter_mut().for_each(|x| *x = (*x - top).exp());
                let total: f64 = w.iter().sum();
                w.iter_mut().for_each(|x| *x /= total);
                if st[16] != 0 && total.is_nan() {
                    w.fill(0.0);
                }
                for z in 0..e {
                    let mut sum = 0.0;
                    for (c, x) in (0..t).zip(&w) {
                        sum += x * self.at(v, v.offset + b * st[7] + h * st[8] + c * st[9] + z)?;
                    }
                    self.put(y, y.offset + ((b * heads + h) * rows + r) * e + z, sum)?;
                }
            }
        }
        Ok(())
    }
}

fn some(ops: &[Option<Ptr>], k: usize) -> Result<&Ptr> {
    ops.get(k).and_then(|p| p.as_ref()).ok_or_else(|| internal(format!("buffer {k} is missing")))
}

fn act(code: i64, x: f64, lo: f64, hi: f64) -> Result<f64> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    Ok(match code {
        activation::NONE => x,
        activation::RELU => x.max(0.0),
        activation::GELU => x / 2.0 * (1.0 + unary(UnOp::Erf, Val::F64(x / 2f64.sqrt()))?.as_f64()),
        activation::GELU_TANH => {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        activation::SILU => x * sigmoid(x),
        activation::SIGMOID => sigmoid(x),
        activation::TANH => x.tanh(),
        activation::CLIP => x.max(lo).min(hi),
        activation::HARD_SIGMOID => (lo * x + hi).clamp(0.0, 1.0),
        _ => return Err(internal(format!("activation {code} is not known here"))),
    })
}
