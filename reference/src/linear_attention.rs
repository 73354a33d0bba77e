//! Attention as a recurrence over a state, and the short convolution that stands before it.

use crate::data::{f64s, from_f64s};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// How a step changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The state decays first, by `exp(decay)`.
    pub gated: bool,
    /// What the state already gives for the key is taken off the value, and the rest is weighed by `beta`.
    pub delta: bool,
}

/// What a step takes besides query, key and value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// State before the first step `[b, h, d_k, d_v]`; zeros when absent.
    pub state: Option<&'a Tensor>,
    /// Logarithm of the decay `[b, t, h]` or `[b, t, h · d_k]`.
    pub decay: Option<&'a Tensor>,
    /// Rate `[b, t, h]` or `[b, t, 1]`.
    pub beta: Option<&'a Tensor>,
}

/// `LinearAttention`: of queries `[b, t, n_q · d_k]`, keys `[b, t, h · d_k]` and values `[b, t, h · d_v]`, the result
/// `[b, t, n_q · d_v]` and the state after the last step, in the type of the given state or of the queries. Each step adds
/// key ⊗ value to the state; the result is `scale` · query · state. `n_q / h` queries share a state.
///
/// # Errors
/// `Shape` for operands that do not fit the numbers of heads.
pub fn linear_attention(
    [q, k, v]: [&Tensor; 3],
    extra: Extra,
    (n_q, h): (usize, usize),
    rule: Rule,
    scale: Option<f64>,
) -> Result<[Tensor; 2]> {
    let fail = |what: &str| Diagnostic::new(ErrorKind::Shape, format!("LinearAttention: {what}"));
    let [&[b, t, q_width], &[_, _, k_width], &[_, _, v_width]] = [q.shape(), k.shape(), v.shape()] else {
        return Err(fail("operands have 3 axes"));
    };
    if h == 0 || n_q % h != 0 || q_width % n_q != 0 || k_width % h != 0 || v_width % h != 0 {
        return Err(fail("the heads do not divide the operands"));
    }
    let (d_k, d_v, share) = (q_width / n_q, v_width / h, n_q / h);
    if k_width / h != d_k || k.shape()[..2] != [b, t] || v.shape()[..2] != [b, t] {
        return Err(fail("queries, keys and values do not fit"));
    }
    let per_step =
        |x: Option<&Tensor>, widths: [usize; 2]| x.is_none_or(|x| widths.iter().any(|&w| x.shape() == [b, t, w]));
    let has_state = extra.state.is_none_or(|s| s.shape() == [b, h, d_k, d_v]);
    if !has_state || !per_step(extra.decay, [h, h * d_k]) || !per_step(extra.beta, [h, 1]) {
        return Err(fail("the state, decay or beta do not fit the heads"));
    }
    let scale = scale.unwrap_or(1.0 / (d_k as f64).sqrt());
    let (qs, ks, vs) = (f64s(q), f64s(k), f64s(v));
    let (decay, beta) = (extra.decay.map(f64s), extra.beta.map(f64s));
    let last = |x: Option<&Tensor>| x.and_then(|x| x.shape().last().copied()).unwrap_or(1);
    let (decay_width, beta_width) = (last(extra.decay), last(extra.beta));
    let mut state = extra.state.map_or_else(|| vec![0.0; b * h * d_k * d_v], f64s);
    let mut y = vec![0.0; b * t * n_q * d_v];
    for (image, step, head) in (0..b).flat_map(|i| (0..t).flat_map(move |s| (0..h).map(move |head| (i, s, head)))) {
        let at = image * t + step;
        let own = &mut state[(image * h + head) * d_k * d_v..][..d_k * d_v];
        let key = &ks[at * k_width + head * d_k..][..d_k];
        let mut value = vs[at * v_width + head * d_v..][..d_v].to_vec();
        if let Some(g) = decay.as_ref().filter(|_| rule.gated) {
            for (i, row) in own.chunks_mut(d_v.max(1)).enumerate() {
                let place = if decay_width == h { head } else { head * d_k + i };
                let factor = g[at * decay_width + place].exp();
                row.iter_mut().for_each(|s| *s *= factor);
            }
        }
        if let Some(rate) = beta.as_ref().filter(|_| rule.delta) {
            let rate = rate[at * beta_width + if beta_width == 1 { 0 } else { head }];
            for (j, v) in value.iter_mut().enumerate() {
                let known: f64 = (0..d_k).map(|i| own[i * d_v + j] * key[i]).sum();
                *v = rate * (*v - known);
            }
        }
        for (i, j) in (0..d_k).flat_map(|i| (0..d_v).map(move |j| (i, j))) {
            own[i * d_v + j] += key[i] * value[j];
        }
        for s in 0..share {
            let query = head * share + s;
            for j in 0..d_v {
                let sum: f64 = (0..d_k).map(|i| qs[at * q_width + query * d_k + i] * own[i * d_v + j]).sum();
                y[(at * n_q + query) * d_v + j] = scale * sum;
            }
        }
    }
    let state_type = extra.state.map_or(q.dtype(), |s| s.dtype());
    Ok([from_f64s(q.dtype(), &[b, t, n_q * d_v], &y), from_f64s(state_type, &[b, h, d_k, d_v], &state)])
}

/// Each channel of `x` `[b, c, n]` times its kernel `w` `[c, 1, k]`, whose taps are `dilation` apart, at every place where the kernel fits,
/// plus its bias.
///
/// # Errors
/// `Shape` for operands that do not fit.
pub fn depthwise(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, dilation: usize) -> Result<Tensor> {
    let fail = || Diagnostic::new(ErrorKind::Shape, "operands of a depthwise convolution do not fit");
    let (&[b, c, n], &[_, _, k]) = (x.shape(), w.shape()) else { return Err(fail()) };
    let reach = k.saturating_sub(1) * dilation;
    if w.shape()[..2] != [c, 1] || k == 0 || n < reach || bias.is_some_and(|b| b.n_elems() != c) {
        return Err(fail());
    }
    let (xs, ws, bias) = (f64s(x), f64s(w), bias.map(f64s));
    let places = n - reach;
    let mut y = vec![];
    for (row, i) in (0..b * c).flat_map(|row| (0..places).map(move |i| (row, i))) {
        let channel = row % c;
        let sum: f64 = (0..k).map(|j| xs[row * n + i + j * dilation] * ws[channel * k + j]).sum();
        y.push(sum + bias.as_ref().map_or(0.0, |b| b[channel]));
    }
    Ok(from_f64s(x.dtype(), &[b, c, places], &y))
}

/// `CausalConvWithState`: each channel of `x` `[b, c, n]` convolved with its kernel `w` `[c, 1, k]`, whose taps are `dilation` apart, looking
/// back; what lies before the first position is `state` `[b, c, (k - 1) · dilation]` or zeros. Then `x · sigmoid(x)` where `swish`. The
/// result, and as many last positions as the state has.
///
/// # Errors
/// `Shape` for operands of other ranks.
pub fn causal_conv(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    state: Option<&Tensor>,
    dilation: usize,
    swish: bool,
) -> Result<[Tensor; 2]> {
    let (&[b, c, n], &[_, _, k]) = (x.shape(), w.shape()) else {
        return Err(Diagnostic::new(ErrorKind::Shape, "CausalConvWithState: operands have 3 axes"));
    };
    let before = k.saturating_sub(1) * dilation;
    if w.shape()[..2] != [c, 1]
        || k == 0
        || bias.is_some_and(|b| b.n_elems() != c)
        || state.is_some_and(|s| s.shape() != [b, c, before])
    {
        return Err(Diagnostic::new(ErrorKind::Shape, "CausalConvWithState: operands do not fit the channels"));
    }
    let (xs, old) = (f64s(x), state.map_or_else(|| vec![0.0; b * c * before], f64s));
    let at = |row: usize, i: usize| if i < before { old[row * before + i] } else { xs[row * n + i - before] };
    let all: Vec<f64> =
        (0..b * c).flat_map(|row| (0..n + before).map(move |i| (row, i))).map(|(r, i)| at(r, i)).collect();
    let last: Vec<f64> =
        (0..b * c).flat_map(|row| (n..n + before).map(move |i| (row, i))).map(|(r, i)| at(r, i)).collect();
    let y = depthwise(&Tensor::from_f64(&[b, c, n + before], &all), w, bias, dilation)?;
    let y: Vec<f64> = f64s(&y).into_iter().map(|v| if swish { v / (1.0 + (-v).exp()) } else { v }).collect();
    let d: DType = x.dtype();
    Ok([from_f64s(d, x.shape(), &y), from_f64s(d, &[b, c, before], &last)])
}
