//! Products of matrices, with what our fused ops do after them. Sums in f64, or in wrapping 64-bit integers.

use crate::data::{broadcast_shape, expand, f64s, from_f64s, from_ints, ints};
use crate::math;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// What a fused op does with each element at its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// Nothing.
    None,
    /// max(x, 0)
    Relu,
    /// x/2 (1 + erf(x/√2))
    Gelu,
    /// x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))
    GeluTanh,
    /// x · sigmoid(x)
    Silu,
    /// 1 / (1 + exp(-x))
    Sigmoid,
    /// tanh(x)
    Tanh,
    /// min(max(x, lo), hi)
    Clip(f64, f64),
    /// min(max(α·x + β, 0), 1)
    HardSigmoid(f64, f64),
}

impl Activation {
    /// By the name in attributes; `lo` and `hi` are for those with parameters.
    pub fn from_name(name: &str, lo: f64, hi: f64) -> Option<Activation> {
        Some(match name {
            "" => Activation::None,
            "relu" => Activation::Relu,
            "gelu" => Activation::Gelu,
            "gelu_tanh" => Activation::GeluTanh,
            "silu" => Activation::Silu,
            "sigmoid" => Activation::Sigmoid,
            "tanh" => Activation::Tanh,
            "clip" => Activation::Clip(lo, hi),
            "hard_sigmoid" => Activation::HardSigmoid(lo, hi),
            _ => return None,
        })
    }
    /// The value at `x`; NaN stays NaN.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Activation::None => x,
            Activation::Relu => math::max(x, 0.0),
            Activation::Gelu => math::gelu(x),
            Activation::GeluTanh => math::gelu_tanh(x),
            Activation::Silu => x * math::sigmoid(x),
            Activation::Sigmoid => math::sigmoid(x),
            Activation::Tanh => x.tanh(),
            Activation::Clip(lo, hi) => math::min(math::max(x, lo), hi),
            Activation::HardSigmoid(a, b) => math::min(math::max(a * x + b, 0.0), 1.0),
        }
    }
}

/// `out[m, n] += a[m, k] · b[k, n]`, all row-major.
pub(crate) fn multiply_add(out: &mut [f64], a: &[f64], b: &[f64], k: usize, n: usize) {
    if k == 0 || n == 0 {
        return;
    }
    for (row, arow) in out.chunks_exact_mut(n).zip(a.chunks_exact(k)) {
        for (&x, brow) in arow.iter().zip(b.chunks_exact(n)) {
            row.iter_mut().zip(brow).for_each(|(o, &y)| *o += x * y);
        }
    }
}

/// Where the matrices of a batched product lie: extents of the product and, per result matrix, positions of its operands.
struct Plan {
    batch: Vec<usize>,
    m: usize,
    k: usize,
    n: usize,
    a_at: Vec<usize>,
    b_at: Vec<usize>,
}

fn plan(a: &[usize], b: &[usize]) -> Result<Plan> {
    let fail = || Diagnostic::new(ErrorKind::Shape, format!("MatMul cannot multiply {a:?} by {b:?}"));
    let ([abatch @ .., m, k], [bbatch @ .., k2, n]) = (a, b) else { return Err(fail()) };
    if k != k2 {
        return Err(fail());
    }
    let batch = broadcast_shape(&[abatch, bbatch]).map_err(|_| fail())?;
    let at = |from: &[usize]| -> Vec<usize> {
        let all: Vec<usize> = (0..from.iter().product()).collect();
        expand(&all, from, &batch).to_vec()
    };
    Ok(Plan { a_at: at(abatch), b_at: at(bbatch), batch, m: *m, k: *k, n: *n })
}

/// The operand with its last two axes swapped.
fn swapped(t: &Tensor) -> Result<Tensor> {
    let r = t.shape().len();
    let mut perm: Vec<usize> = (0..r).collect();
    perm.swap(r.saturating_sub(2), r.saturating_sub(1));
    crate::movement::transpose(t, &perm)
}

/// Product in f64 of operands of rank 2 and more.
fn product(a: &Tensor, b: &Tensor) -> Result<(Vec<usize>, Vec<f64>)> {
    let p = plan(a.shape(), b.shape())?;
    let (av, bv) = (f64s(a), f64s(b));
    let mut out = vec![0.0; p.a_at.len() * p.m * p.n];
    for (i, (&x, &y)) in p.a_at.iter().zip(&p.b_at).enumerate() {
        let (am, bm) = (&av[x * p.m * p.k..(x + 1) * p.m * p.k], &bv[y * p.k * p.n..(y + 1) * p.k * p.n]);
        multiply_add(&mut out[i * p.m * p.n..(i + 1) * p.m * p.n], am, bm, p.k, p.n);
    }
    Ok(([p.batch, vec![p.m, p.n]].concat(), out))
}

/// Product in wrapping 64-bit integers.
fn int_product(a: &Tensor, b: &Tensor) -> Result<(Vec<usize>, Vec<i64>)> {
    let p = plan(a.shape(), b.shape())?;
    let (av, bv) = (a.to_i64_vec(), b.to_i64_vec());
    let mut out = vec![0i64; p.a_at.len() * p.m * p.n];
    for (i, (&x, &y)) in p.a_at.iter().zip(&p.b_at).enumerate() {
        for (r, c, k) in (0..p.m).flat_map(|r| (0..p.n).flat_map(move |c| (0..p.k).map(move |k| (r, c, k)))) {
            let t = av[(x * p.m + r) * p.k + k].wrapping_mul(bv[(y * p.k + k) * p.n + c]);
            let o = &mut out[(i * p.m + r) * p.n + c];
            *o = o.wrapping_add(t);
        }
    }
    Ok(([p.batch, vec![p.m, p.n]].concat(), out))
}

/// Operands of rank 1 as matrices, and which axes of the result go again.
fn matrices(a: &Tensor, b: &Tensor) -> (Tensor, Tensor, bool, bool) {
    let (ra, rb) = (a.shape().len(), b.shape().len());
    let a2 = if ra == 1 { a.reshaped(&[1, a.shape()[0]]) } else { a.clone() };
    let b2 = if rb == 1 { b.reshaped(&[b.shape()[0], 1]) } else { b.clone() };
    (a2, b2, ra == 1, rb == 1)
}

fn without(mut shape: Vec<usize>, row: bool, col: bool) -> Vec<usize> {
    if col {
        shape.pop();
    }
    if row {
        shape.remove(shape.len() - if col { 1 } else { 2 });
    }
    shape
}

/// `MatMul` as numpy does it: batch axes broadcast, operands of rank 1 are a row on the left and a column on the right.
///
/// # Errors
/// `Shape` when inner extents differ or batch axes do not broadcast.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a2, b2, row, col) = matrices(a, b);
    if a.dtype().is_float() {
        let (shape, v) = product(&a2, &b2)?;
        return Ok(from_f64s(a.dtype(), &without(shape, row, col), &v));
    }
    let (shape, v) = int_product(&a2, &b2)?;
    Ok(Tensor::from_i64_as(a.dtype(), &without(shape, row, col), &v))
}

/// `Gemm`: `alpha · op(a) · op(b) + beta · c`, `c` broadcast.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn gemm(a: &Tensor, b: &Tensor, c: Option<&Tensor>, trans: (bool, bool), alpha: f64, beta: f64) -> Result<Tensor> {
    let a2 = if trans.0 { swapped(a)? } else { a.clone() };
    let b2 = if trans.1 { swapped(b)? } else { b.clone() };
    if !a.dtype().is_float() {
        let (shape, v) = int_product(&a2, &b2)?;
        c.map_or(Ok(()), |c| broadcasts_to(c, &shape))?;
        let c = c.map(|c| crate::movement::expand(c, &shape)).transpose()?;
        // The product wraps in its type before it is scaled.
        let product = ints(&Tensor::from_i64_as(a.dtype(), &shape, &v));
        let added = c.map_or(vec![0; product.len()], |c| ints(&c));
        let both = product.iter().zip(&added);
        if (alpha, beta) == (1.0, 1.0) {
            return Ok(from_ints(a.dtype(), &shape, &both.map(|(x, y)| x + y).collect::<Vec<_>>()));
        }
        let scaled: Vec<f64> = both.map(|(x, y)| alpha * *x as f64 + beta * *y as f64).collect();
        return crate::cast::cast(&from_f64s(DType::F64, &shape, &scaled), a.dtype(), Default::default());
    }
    let (shape, mut v) = product(&a2, &b2)?;
    v.iter_mut().for_each(|x| *x *= alpha);
    if let Some(c) = c {
        broadcasts_to(c, &shape)?;
        let cv = f64s(c);
        let cv = expand(&cv, c.shape(), &shape);
        v.iter_mut().zip(cv.iter()).for_each(|(x, &y)| *x += beta * y);
    }
    Ok(from_f64s(a.dtype(), &shape, &v))
}

/// `act(alpha · op(a) · op(b) + bias + residual)`, rounded once. Bias and residual broadcast to the product.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn fused_matmul(
    a: &Tensor,
    b: &Tensor,
    added: &[&Tensor],
    trans: (bool, bool),
    alpha: f64,
    act: Activation,
) -> Result<Tensor> {
    let (a2, b2, row, col) = matrices(a, b);
    let a2 = if trans.0 && !row { swapped(&a2)? } else { a2 };
    let b2 = if trans.1 && !col { swapped(&b2)? } else { b2 };
    let (shape, mut v) = product(&a2, &b2)?;
    let shape = without(shape, row, col);
    v.iter_mut().for_each(|x| *x *= alpha);
    add_and_activate(&mut v, &shape, added, act)?;
    Ok(from_f64s(a.dtype(), &shape, &v))
}

fn broadcasts_to(t: &Tensor, shape: &[usize]) -> Result<()> {
    if broadcast_shape(&[t.shape(), shape])? == shape {
        return Ok(());
    }
    Err(Diagnostic::new(ErrorKind::Shape, format!("{:?} does not broadcast to {shape:?}", t.shape())))
}

/// Adds broadcast operands and applies the activation.
pub(crate) fn add_and_activate(v: &mut [f64], shape: &[usize], added: &[&Tensor], act: Activation) -> Result<()> {
    for t in added {
        broadcasts_to(t, shape)?;
        let tv = f64s(t);
        let tv = expand(&tv, t.shape(), shape);
        v.iter_mut().zip(tv.iter()).for_each(|(x, &y)| *x += y);
    }
    if act != Activation::None {
        v.iter_mut().for_each(|x| *x = act.apply(*x));
    }
    Ok(())
}

/// How [`attention`] computes.
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// The factor of the products.
    pub scale: f64,
    /// Whether k is already transposed.
    pub k_trans: bool,
    /// Whether the mask takes the scores' place where it is not 0, instead of being added.
    pub selects: bool,
    /// Whether a weight that is NaN counts as 0.
    pub nan_to_zero: bool,
}

/// `softmax(scale · q · kᵀ + mask) · v`; the rows of the mask repeat along those of the scores.
///
/// # Errors
/// `Shape` when extents do not fit.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, how: &Attend) -> Result<Tensor> {
    let kt = if how.k_trans { k.clone() } else { swapped(k)? };
    let (shape, mut scores) = product(q, &kt)?;
    scores.iter_mut().for_each(|x| *x *= how.scale);
    let mask = mask.map(|m| repeat_rows(m, shape.len().checked_sub(2).map_or(1, |i| shape[i]))).transpose()?;
    match &mask {
        Some(mask) if how.selects => {
            let mut chosen = vec![0.0; scores.len()];
            add_and_activate(&mut chosen, &shape, &[mask], Activation::None)?;
            scores.iter_mut().zip(chosen).filter(|(_, m)| *m != 0.0).for_each(|(x, m)| *x = m);
        }
        Some(mask) => add_and_activate(&mut scores, &shape, &[mask], Activation::None)?,
        None => {}
    }
    let t = shape.last().copied().unwrap_or(0);
    if t > 0 {
        for row in scores.chunks_exact_mut(t) {
            let m = row.iter().copied().fold(f64::NEG_INFINITY, math::max);
            row.iter_mut().for_each(|x| *x = (*x - m).exp());
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|x| *x /= sum);
            row.iter_mut().filter(|x| how.nan_to_zero && x.is_nan()).for_each(|x| *x = 0.0);
        }
    }
    let p = Tensor::from_f64(&shape, &scores);
    let (shape, out) = product(&p, v)?;
    Ok(from_f64s(q.dtype(), &shape, &out))
}

/// `m` with its rows one after the other until there are `n`.
fn repeat_rows(m: &Tensor, n: usize) -> Result<Tensor> {
    let [batch @ .., rows, cols] = m.shape() else { return Ok(m.clone()) };
    if *rows < 2 || n == 0 || !n.is_multiple_of(*rows) {
        return Ok(m.clone());
    }
    let one = f64s(m);
    let all: Vec<f64> = one.chunks(rows * cols.max(&1)).flat_map(|m| m.repeat(n / rows)).collect();
    let shape = [batch, &[n, *cols]].concat();
    Ok(from_f64s(m.dtype(), &shape, &all))
}

/// `Inverse`: inverses of the square matrices in the last two axes, each solved for from the identity by elimination with the greatest
/// element as pivot, and substitution backwards. Of a matrix without an inverse infinities or NaN.
///
/// # Errors
/// `Shape` when the last two axes do not exist or differ.
pub fn inverse(x: &Tensor) -> Result<Tensor> {
    let [batch @ .., rows, n] = x.shape() else {
        return Err(Diagnostic::new(ErrorKind::Shape, "Inverse needs matrices"));
    };
    let n = *n;
    if *rows != n {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("Inverse: {rows} rows and {n} columns")));
    }
    let all = f64s(x);
    let mut y = Vec::new();
    for b in 0..batch.iter().product() {
        let mut a = all[b * n * n..(b + 1) * n * n].to_vec();
        let mut solved: Vec<f64> = (0..n * n).map(|p| if p / n == p % n { 1.0 } else { 0.0 }).collect();
        for i in 0..n {
            let best = (i..n).fold(i, |best, r| if a[r * n + i].abs() > a[best * n + i].abs() { r } else { best });
            for c in 0..n {
                a.swap(i * n + c, best * n + c);
                solved.swap(i * n + c, best * n + c);
            }
            for r in i + 1..n {
                let factor = a[r * n + i] / a[i * n + i];
                for c in 0..n {
                    a[r * n + c] -= factor * a[i * n + c];
                    solved[r * n + c] -= factor * solved[i * n + c];
                }
            }
        }
        for (r, c) in (0..n).rev().flat_map(|r| (0..n).map(move |c| (r, c))) {
            let known: f64 = (r + 1..n).map(|k| a[r * n + k] * solved[k * n + c]).sum();
            solved[r * n + c] = (solved[r * n + c] - known) / a[r * n + r];
        }
        y.extend(solved);
    }
    Ok(from_f64s(x.dtype(), x.shape(), &y))
}

/// `Det`: determinants of the square matrices in the last two axes, by elimination with the greatest element as pivot.
///
/// # Errors
/// `Shape` when the last two axes do not exist or differ.
pub fn det(x: &Tensor) -> Result<Tensor> {
    let [batch @ .., rows, n] = x.shape() else {
        return Err(Diagnostic::new(ErrorKind::Shape, "Det needs matrices"));
    };
    let n = *n;
    if *rows != n {
        return Err(Diagnostic::new(ErrorKind::Shape, format!("Det: {rows} rows and {n} columns")));
    }
    let all = x.to_f64_vec();
    let mut out = Vec::new();
    for b in 0..batch.iter().product() {
        let mut a = all[b * n * n..(b + 1) * n * n].to_vec();
        let mut product = 1.0;
        for i in 0..n {
            let best = (i..n).fold(i, |best, r| if a[r * n + i].abs() > a[best * n + i].abs() { r } else { best });
            if best != i {
                (0..n).for_each(|c| a.swap(i * n + c, best * n + c));
                product = -product;
            }
            let pivot = a[i * n + i];
            product *= pivot;
            if pivot == 0.0 {
                break;
            }
            for r in i + 1..n {
                let factor = a[r * n + i] / pivot;
                (i..n).for_each(|c| a[r * n + c] -= factor * a[i * n + c]);
            }
        }
        out.push(product);
    }
    Ok(Tensor::from_f64_as(x.dtype(), batch, &out))
}
