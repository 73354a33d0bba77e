//! See the crate's page.

use hip_runtime_sys as sys;
use runtime::device::hip::ARCH_OFFSETS;
use runtime::device::hip::table::{flag, signatures};
use std::mem::offset_of;

type Signature = Vec<(&'static str, usize)>;

/// Argument types of a function pointer.
trait Arguments {
    fn arguments(&self) -> Signature;
}

macro_rules! arguments {
    ($($($t:ident)*;)*) => {$(
        impl<$($t,)* R> Arguments for unsafe extern "C" fn($($t),*) -> R {
            fn arguments(&self) -> Signature {
                assert_eq!(size_of::<R>(), 4, "a status");
                vec![$((std::any::type_name::<$t>(), size_of::<$t>())),*]
            }
        }
    )*};
}
arguments! { A; A B; A B C; A B C D; A B C D E F G H I J K; }

macro_rules! functions {
    ($($name:ident($($u:tt)*);)*) => {
        vec![$((stringify!($name), (sys::$name as unsafe extern "C" fn($($u)*) -> _).arguments())),*]
    };
}

/// A type as far as passing it goes: how many pointers, then what kind of number; handles and enums are numbers of their size.
fn passed((name, bytes): &(&'static str, usize)) -> (usize, usize, &'static str) {
    let depth = name.matches("*mut ").count() + name.matches("*const ").count();
    let base = name.rsplit(' ').next().unwrap_or(name);
    let known = ["i8", "i32", "u32", "usize", "f32"].into_iter().find(|k| base == *k);
    match (depth, known) {
        // A handle is a pointer to something, or a pointer to nothing known.
        (_, Some(k)) if depth > 0 => (depth, *bytes, k),
        (0, _) => (0, *bytes, "number"),
        _ => (depth, *bytes, "opaque"),
    }
}

#[test]
fn the_table_is_hips() {
    let theirs = functions! {
        hipInit(_);
        hipDriverGetVersion(_);
        hipGetDeviceCount(_);
        hipDeviceGet(_, _);
        hipDeviceGetName(_, _, _);
        hipDeviceTotalMem(_, _);
        hipDeviceGetAttribute(_, _, _);
        hipSetDevice(_);
        hipMemGetInfo(_, _);
        hipMalloc(_, _);
        hipFree(_);
        hipHostMalloc(_, _, _);
        hipHostFree(_);
        hipHostGetDevicePointer(_, _, _);
        hipMemcpyHtoDAsync(_, _, _, _);
        hipMemcpyDtoHAsync(_, _, _, _);
        hipMemcpyDtoDAsync(_, _, _, _);
        hipStreamCreateWithFlags(_, _);
        hipStreamDestroy(_);
        hipStreamSynchronize(_);
        hipEventCreateWithFlags(_, _);
        hipEventDestroy(_);
        hipEventRecord(_, _);
        hipEventSynchronize(_);
        hipEventElapsedTime(_, _, _);
        hipModuleLoadData(_, _);
        hipModuleUnload(_);
        hipModuleGetFunction(_, _, _);
        hipModuleLaunchKernel(_, _, _, _, _, _, _, _, _, _, _);
    };
    let ours = signatures();
    let names = |all: &[(&'static str, Signature)]| all.iter().map(|s| s.0).collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs), "a function of the table is not compared, or the other way round");
    for ((name, a), (_, b)) in ours.iter().zip(&theirs) {
        let (a, b): (Vec<_>, Vec<_>) = (a.iter().map(passed).collect(), b.iter().map(passed).collect());
        assert_eq!(a, b, "{name}: ours first");
    }
}

#[test]
fn constants_are_hips() {
    use sys::hipDeviceAttribute_t as attribute;
    use sys::hipError_t as error;
    let errors = [
        (flag::OUT_OF_MEMORY, error::hipErrorOutOfMemory),
        (flag::NO_DEVICE, error::hipErrorNoDevice),
        (flag::INVALID_DEVICE, error::hipErrorInvalidDevice),
        (flag::INVALID_IMAGE, error::hipErrorInvalidImage),
        (flag::NO_BINARY_FOR_GPU, error::hipErrorNoBinaryForGpu),
        (flag::NOT_FOUND, error::hipErrorNotFound),
        (flag::ILLEGAL_ADDRESS, error::hipErrorIllegalAddress),
        (flag::LAUNCH_FAILURE, error::hipErrorLaunchFailure),
    ];
    errors.iter().for_each(|&(ours, theirs)| assert_eq!(ours, theirs as i32, "{theirs:?}"));
    let flags = [
        (flag::HOST_PORTABLE, sys::hipHostMallocPortable),
        (flag::HOST_MAPPED, sys::hipHostMallocMapped),
        (flag::STREAM_NON_BLOCKING, sys::hipStreamNonBlocking),
        (flag::EVENT_DEFAULT, sys::hipEventDefault),
        (flag::EVENT_NO_TIMING, sys::hipEventDisableTiming),
    ];
    flags.iter().for_each(|(ours, theirs)| assert_eq!(ours, theirs));
    let multiprocessors = attribute::hipDeviceAttributeMultiprocessorCount;
    assert_eq!(flag::ATTRIBUTE_MULTIPROCESSORS, multiprocessors as i32);
    // The struct of HIP 5; HIP 6 has another function for another one.
    let at = ARCH_OFFSETS.iter().find(|a| a.0 == "hipGetDeviceProperties").map(|a| a.1);
    assert_eq!(at, Some(offset_of!(sys::hipDeviceProp_t, gcnArchName)));
}
