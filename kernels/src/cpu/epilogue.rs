//! What happens to a row of sums before it is stored: scale, bias, residual, activation.

use super::elem::Elem;
use super::math;
use crate::catalog::activation as act;

/// The parts of an epilogue that are the same for all rows.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue {
    pub alpha: f32,
    pub activation: i64,
    pub lo: f32,
    pub hi: f32,
}

/// Bias of one output row.
#[derive(Clone, Copy)]
pub(crate) enum Bias<'a, T> {
    None,
    /// The same for every column.
    One(f32),
    /// Column `j` takes element `j · stride`.
    Cols(&'a [T], usize),
}

/// `out[j] = act(alpha · acc[j] + bias[j] + residual[j])`.
#[inline(always)]
pub(crate) fn row<T: Elem>(e: &Epilogue, acc: &mut [f32], bias: Bias<T>, residual: Option<&[T]>, out: &mut [T]) {
    let n = out.len();
    let acc = &mut acc[..n];
    if e.alpha != 1.0 {
        acc.iter_mut().for_each(|a| *a *= e.alpha);
    }
    match bias {
        Bias::None => {}
        Bias::One(b) => acc.iter_mut().for_each(|a| *a += b),
        Bias::Cols(b, 1) => acc.iter_mut().zip(b).for_each(|(a, b)| *a += b.get()),
        Bias::Cols(b, stride) => acc.iter_mut().enumerate().for_each(|(j, a)| *a += b[j * stride].get()),
    }
    if let Some(r) = residual {
        acc.iter_mut().zip(r).for_each(|(a, r)| *a += r.get());
    }
    let (lo, hi) = (e.lo, e.hi);
    match e.activation {
        act::RELU => each(acc, out, |x| if x < 0.0 { 0.0 } else { x }),
        act::GELU => each(acc, out, |x| 0.5 * x * (1.0 + math::erf(x * std::f32::consts::FRAC_1_SQRT_2))),
        act::GELU_TANH => {
            each(acc, out, |x| 0.5 * x * (1.0 + math::tanh(0.797_884_6 * 0.044_715f32.mul_add(x * x * x, x))))
        }
        act::SILU => each(acc, out, |x| x * math::sigmoid(x)),
        act::SIGMOID => each(acc, out, math::sigmoid),
        act::TANH => each(acc, out, math::tanh),
        // NaN stays NaN: both comparisons are false.
        act::CLIP => each(acc, out, |x| {
            if x < lo {
                lo
            } else if x > hi {
                hi
            } else {
                x
            }
        }),
        act::HARD_SIGMOID => each(acc, out, |x| {
            let y = lo.mul_add(x, hi);
            y.clamp(0.0, 1.0)
        }),
        _ => each(acc, out, |x| x),
    }
}

#[inline(always)]
fn each<T: Elem>(acc: &[f32], out: &mut [T], f: impl Fn(f32) -> f32) {
    for (o, &a) in out.iter_mut().zip(acc) {
        *o = T::set(f(a));
    }
}

/// Runs `body` with the instruction set of the tier enabled, so that what is inlined into it is compiled for it. What a function of another
/// crate calls, as the closure of [`super::tile::with_scratch`] is, may not be inlined: it needs its own.
macro_rules! with_tier {
    ($tier:expr, $body:expr) => {{
        #[cfg(target_arch = "x86_64")]
        if $tier == crate::cpu::Tier::Avx2 {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2<R>(f: impl FnOnce() -> R) -> R {
                f()
            }
            let body = || $body;
            // SAFETY: the tier is `Avx2` only on machines where these features were detected.
            unsafe { avx2(body) }
        } else {
            $body
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = $tier;
            $body
        }
    }};
}
pub(crate) use with_tier;
