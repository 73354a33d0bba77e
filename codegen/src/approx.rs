//! What GPUs have as an instruction of limited accuracy: 2^x and 1/x of f32 (AMD: 1 ulp; NVIDIA: 2 and 1 ulp, by the PTX manual). Used
//! inside functions whose bound allows for it, and where results are only kept as f16 or bf16.

use crate::emit::{Em, F};
use inkwell::FloatPredicate as FP;
use kernels::gpu::Platform;

fn is_f32_of<'c>(e: &Em<'_, 'c>, x: F<'c>) -> Option<Platform> {
    e.caps.gpu.filter(|_| !e.is64(x))
}

fn call<'c>(e: &Em<'_, 'c>, name: &str, x: F<'c>) -> F<'c> {
    let overload = if name.starts_with("llvm.amdgcn.") { vec![x.get_type().into()] } else { vec![] };
    e.intr(name, &overload, &[x.into()]).into_float_value()
}

/// 2^x with results below the smallest normal number kept; `None` where no instruction has it.
pub(crate) fn exp2<'c>(e: &Em<'_, 'c>, x: F<'c>) -> Option<F<'c>> {
    Some(match is_f32_of(e, x)? {
        // The instruction flushes; LLVM scales around it.
        Platform::Hip => e.fintr("llvm.exp2", x),
        Platform::Cuda => call(e, "llvm.nvvm.ex2.approx.f", x),
    })
}

/// 2^x, 0 for results below the smallest normal number.
pub(crate) fn exp2_flushed<'c>(e: &Em<'_, 'c>, x: F<'c>) -> Option<F<'c>> {
    let name = match is_f32_of(e, x)? {
        Platform::Hip => "llvm.amdgcn.exp2",
        Platform::Cuda => "llvm.nvvm.ex2.approx.ftz.f",
    };
    Some(call(e, name, x))
}

/// a / b for a `b` whose magnitude lies within 2^±126: exact where there is no instruction for 1/x.
pub(crate) fn quotient<'c>(e: &Em<'_, 'c>, a: F<'c>, b: F<'c>) -> F<'c> {
    let name = match is_f32_of(e, b) {
        Some(Platform::Hip) => "llvm.amdgcn.rcp",
        Some(Platform::Cuda) => "llvm.nvvm.rcp.approx.ftz.f",
        None => return e.fdiv(a, b),
    };
    e.fmul(a, call(e, name, b))
}

/// What is kept of a divisor d that many numerators have in common: a division has branches, which keep a GPU from working on several
/// at once.
#[derive(Clone, Copy)]
pub(crate) struct Reciprocal<'c> {
    /// d·scale, of which 1/(d·scale) is a normal number.
    divisor: F<'c>,
    inverse: F<'c>,
    scale: F<'c>,
}

impl<'c> Reciprocal<'c> {
    /// Of an f32.
    pub fn new(e: &Em<'_, 'c>, d: F<'c>) -> Self {
        let (one, up, down) = (e.fk(d, 1.0), e.fk(d, 64f64.exp2()), e.fk(d, (-64f64).exp2()));
        let size = e.fabs(d);
        let scale = e.fsel(e.fcmp(FP::OLT, size, down), up, one);
        let scale = e.fsel(e.fcmp(FP::OGT, size, up), down, scale);
        let divisor = e.fmul(d, scale);
        Reciprocal { divisor, inverse: e.fdiv(one, divisor), scale }
    }
    /// x / d: correctly rounded (Markstein, IBM J. Res. Dev. 34, 1990) but for a last bit of subnormal results and where x or x·scale is below 2⁻¹⁰⁰;
    /// where results are kept as halves, within 2⁻²².
    pub fn times(&self, e: &Em<'_, 'c>, x: F<'c>) -> F<'c> {
        let x = e.fmul(x, self.scale);
        let q = e.fmul(x, self.inverse);
        if e.caps.half {
            return q;
        }
        let rest = e.fma(e.fneg(q), self.divisor, x);
        let y = e.fma(rest, self.inverse, q);
        // NaN where the first quotient is infinite, and 0 loses its sign: that one stands.
        let better = e.fcmp(FP::OGT, e.fabs(y), e.fk(x, 0.0));
        e.fsel(better, y, q)
    }
}
