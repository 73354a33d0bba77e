//! The functions of the table: the border between generated code and this crate. Each checks its context, catches panics, keeps the
//! error in the run and returns a status.

use crate::abi::{ABI_VERSION, KernelFn, RunCtx, Status, Table, TensorDesc};
use crate::run::{Run, internal};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tensor::{Diagnostic, Result};

/// The call failed; the run holds the reason.
pub const FAILED: Status = 1;
/// There was no run context.
pub const NO_CONTEXT: Status = 2;
/// Our own code panicked; the run holds what it said.
pub const PANICKED: Status = 3;

/// What `init` of a compiled model gets.
pub static TABLE: Table = Table {
    size_bytes: size_of::<Table>() as u64,
    version: ABI_VERSION as u64,
    input_dim,
    input_ptr,
    const_ptr,
    reserve,
    output,
    guard_failed,
    arith_failed,
    launch,
    kernel,
    host_op,
    copy,
    store_ints,
    readback,
};

/// What a panic said.
pub(crate) fn panic_error(payload: &(dyn Any + Send)) -> Diagnostic {
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    internal(format!("the runtime panicked: {}", text.unwrap_or("no message")))
}

/// # Safety
/// `ctx` is null or the context of a run that is going on, on this thread.
unsafe fn enter(ctx: *mut RunCtx, f: impl FnOnce(&mut Run<'_>) -> Result<()>) -> Status {
    if ctx.is_null() {
        return NO_CONTEXT;
    }
    // SAFETY: a context is a `Run`, and the program is the only one to use it while it runs.
    let run = unsafe { &mut *ctx.cast::<Run<'_>>() };
    match catch_unwind(AssertUnwindSafe(|| f(run))) {
        Ok(Ok(())) => 0,
        Ok(Err(e)) => {
            run.failure.get_or_insert(e);
            FAILED
        }
        Err(payload) => {
            run.failure.get_or_insert_with(|| panic_error(&*payload));
            PANICKED
        }
    }
}

// SAFETY (all below): generated code calls with the context of its run and with pointers as the table's documentation says.

unsafe extern "C" fn input_dim(ctx: *mut RunCtx, input: u32, axis: u32, out: *mut i64) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.input_dim(input, axis, out)) }
}
unsafe extern "C" fn input_ptr(ctx: *mut RunCtx, input: u32, out: *mut i64) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.input_ptr(input, out)) }
}
unsafe extern "C" fn const_ptr(ctx: *mut RunCtx, index: u32, out: *mut i64) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.const_ptr(index, out)) }
}
unsafe extern "C" fn reserve(ctx: *mut RunCtx, domain: u32, bytes: i64, out: *mut i64) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.reserve(domain, bytes, out)) }
}
unsafe extern "C" fn output(ctx: *mut RunCtx, index: u32, rank: u32, dims: *const i64, out: *mut i64) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.output(index, rank, dims, out)) }
}
unsafe extern "C" fn guard_failed(ctx: *mut RunCtx, what: u32, node: u32, lhs: i64, rhs: i64) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.guard_failed(what, node, lhs, rhs)) }
}
unsafe extern "C" fn arith_failed(ctx: *mut RunCtx, node: u32) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.arith_failed(node)) }
}
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn launch(
    ctx: *mut RunCtx,
    kernel: u32,
    func: Option<KernelFn>,
    args: *const u64,
    n_bufs: u32,
    n_ints: u32,
    points: i64,
    work: i64,
    node: u32,
) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.launch(kernel, func, args, n_bufs, n_ints, points, work, node)) }
}
unsafe extern "C" fn kernel(
    ctx: *mut RunCtx,
    id: u32,
    args: *const u64,
    n_bufs: u32,
    n_ints: u32,
    n_scalars: u32,
    node: u32,
) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.kernel(id, args, n_bufs, n_ints, n_scalars, node)) }
}
unsafe extern "C" fn host_op(
    ctx: *mut RunCtx,
    op: u32,
    tensors: *const TensorDesc,
    n: u32,
    n_reads: u32,
    node: u32,
) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.host_op(op, tensors, n, n_reads, node)) }
}
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn copy(
    ctx: *mut RunCtx,
    dst: i64,
    dst_space: u32,
    src: i64,
    src_space: u32,
    bytes: i64,
    node: u32,
) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.copy((dst, dst_space), (src, src_space), bytes, node)) }
}
unsafe extern "C" fn store_ints(ctx: *mut RunCtx, ptr: i64, dtype: i32, n: u32, values: *const i64) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.store_ints(ptr, dtype, n, values)) }
}
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn readback(
    ctx: *mut RunCtx,
    ptr: i64,
    space: u32,
    dtype: i32,
    index: u32,
    node: u32,
    out: *mut i64,
) -> Status {
    // SAFETY: see above.
    unsafe { enter(ctx, |r| r.readback(ptr, space, dtype, index, node, out)) }
}
