//! CPU implementations, in tiers chosen at load: `Portable` (any machine) and `Avx2` (AVX2, FMA and F16C).
//!
//! Results depend on shapes and tier, never on the number of threads: every output element is summed by one thread in an
//! order that its shape fixes.

mod argsort;
mod attention;
mod conv;
mod depthwise;
mod dft;
mod elem;
mod epilogue;
mod gemm;
mod math;
mod micro;
mod nbits;
mod nms;
mod nonzero;
mod pool;
mod tile;

use crate::catalog::{CATALOG, DRAW};
use crate::team::Team;
use half::f16;

/// Instruction-set tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// No assumption about the machine.
    Portable,
    /// x86-64 with AVX2, FMA and F16C (x86-64-v3).
    Avx2,
}

impl Tier {
    /// The best tier this machine runs.
    pub fn detect() -> Tier {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            return Tier::Avx2;
        }
        Tier::Portable
    }
    /// Its name in artifacts and reports.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Portable => "portable",
            Tier::Avx2 => "avx2",
        }
    }
}

/// Why a kernel did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError(pub String);

/// The arguments of a call, split by kind as the kernel's signature says.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// Buffer addresses; 0 where an optional buffer is missing.
    pub bufs: &'a [u64],
    /// Integers.
    pub ints: &'a [i64],
    /// Scalars.
    pub scalars: &'a [f64],
}

impl Args<'_> {
    /// Integer `i`, which must be a size: not negative.
    fn size(&self, i: usize) -> Result<usize, KernelError> {
        usize::try_from(self.ints[i]).map_err(|_| KernelError(format!("integer argument {i} is {}", self.ints[i])))
    }
    /// Buffer `i` as `n` elements to read.
    ///
    /// # Safety
    /// As for [`run`]: the buffer holds at least `n` elements that nobody writes during the call.
    unsafe fn read<T: Copy>(&self, i: usize, n: usize) -> Option<&[T]> {
        match self.bufs[i] {
            0 => (n == 0).then_some(&[]),
            // SAFETY: by this function's contract.
            p => Some(unsafe { std::slice::from_raw_parts(p as *const T, n) }),
        }
    }
    fn out<T>(&self, i: usize) -> Out<T> {
        Out(self.bufs[i] as *mut T)
    }
}

/// An output buffer shared by tasks that write disjoint parts.
#[derive(Clone, Copy)]
struct Out<T>(*mut T);

// SAFETY: tasks of one kernel call write disjoint ranges, each through `slice`, whose contract demands it.
unsafe impl<T: Send> Sync for Out<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Out<T> {}

impl<T> Out<T> {
    /// Elements `begin..begin + len`.
    ///
    /// # Safety
    /// In bounds of the buffer, and not touched by another task of the call.
    #[allow(clippy::mut_from_ref)]
    unsafe fn slice(&self, begin: usize, len: usize) -> &mut [T] {
        if len == 0 {
            return &mut [];
        }
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(begin), len) }
    }
}

/// Runs kernel `id` of the catalog.
///
/// # Errors
/// When the number of arguments is not that of the signature, a size is negative or overflows, or a value is out of range.
///
/// # Safety
/// The buffers are valid for what the kernel's documentation says it reads and writes at these sizes and strides, written
/// buffers overlap no other, and all are aligned to their element.
pub unsafe fn run(id: u32, tier: Tier, team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let def = CATALOG.get(id as usize).ok_or_else(|| KernelError(format!("no kernel with id {id}")))?;
    let (b, i, s) = (def.buffers.len(), def.ints.len(), def.scalars.len());
    if (args.bufs.len(), args.ints.len(), args.scalars.len()) != (b, i, s) {
        return Err(KernelError(format!(
            "{} takes {b} buffers, {i} integers, {s} scalars, got {}, {}, {}",
            def.name,
            args.bufs.len(),
            args.ints.len(),
            args.scalars.len()
        )));
    }
    // SAFETY: the caller's promise about the buffers is passed on.
    unsafe {
        match def.name {
            "gemm.f32" => gemm::gemm::<f32>(tier, team, args),
            "gemm.f16" => gemm::gemm::<f16>(tier, team, args),
            "conv2d.f32" => conv::conv2d::<f32>(tier, team, args),
            "conv2d.f16" => conv::conv2d::<f16>(tier, team, args),
            "pool2d.f32" => pool::pool2d::<f32>(tier, team, args),
            "pool2d.f16" => pool::pool2d::<f16>(tier, team, args),
            "attention.f32" => attention::attention::<f32>(tier, team, args),
            "attention.f16" => attention::attention::<f16>(tier, team, args),
            "nonzero_count.bool" => nonzero::count::<u8>(args),
            "nonzero_count.f32" => nonzero::count::<f32>(args),
            "nonzero_count.i64" => nonzero::count::<i64>(args),
            "nonzero_count.i32" => nonzero::count::<i32>(args),
            "nonzero_fill.bool" => nonzero::fill::<u8>(args),
            "nonzero_fill.f32" => nonzero::fill::<f32>(args),
            "nonzero_fill.i64" => nonzero::fill::<i64>(args),
            "nonzero_fill.i32" => nonzero::fill::<i32>(args),
            "nbits.f32" => nbits::nbits::<f32>(tier, team, args),
            "nbits.f16" => nbits::nbits::<f16>(tier, team, args),
            "argsort.u64" => argsort::argsort(team, args),
            "nms.f32" => nms::nms(team, args),
            DRAW => draw(args),
            "dft.f32" => dft::dft::<f32>(team, args),
            "dft.f64" => dft::dft::<f64>(team, args),
            name => Err(KernelError(format!("{name} has no CPU implementation"))),
        }
    }
}

/// See the catalog.
///
/// # Safety
/// As for [`run`].
unsafe fn draw(args: &Args) -> Result<(), KernelError> {
    let [stream, seed, session, draw, run] =
        <[i64; 5]>::try_from(args.ints).map_err(|_| KernelError("a draw takes 5 integers".into()))?;
    let words = if seed < 0 { [session ^ stream << 32, draw, run] } else { [seed | i64::MIN, draw, 0] };
    let out = args.out::<i64>(0);
    // SAFETY: the caller promises a buffer of three words.
    unsafe { out.slice(0, 3) }.copy_from_slice(&words);
    Ok(())
}

fn product(sizes: &[usize]) -> Result<usize, KernelError> {
    let p = sizes.iter().try_fold(1usize, |a, &s| a.checked_mul(s));
    p.ok_or_else(|| KernelError(format!("sizes {sizes:?} overflow")))
}

fn missing(name: &str) -> KernelError {
    KernelError(format!("buffer {name} is missing"))
}
