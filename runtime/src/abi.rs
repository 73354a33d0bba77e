//! The function table that `init` of a compiled model receives, and the types that cross it. `codegen` emits calls by the
//! positions of [`FIELDS`]; generated code has no undefined symbol.

pub use crate::abi_doc::render_markdown;
use std::ffi::c_void;

/// Version of everything in this module; part of the ABI hash.
pub const ABI_VERSION: u32 = 1;

/// Status of a call; 0 is success. Details are in the run context.
pub type Status = i32;

/// One run's state, opaque to generated code.
#[repr(C)]
pub struct RunCtx {
    _private: [u8; 0],
}

/// A generated or catalog kernel on the CPU: runs outer points `begin..end`. `args` are 8-byte words: buffer addresses, then i64
/// dims and strides, then scalars (bits of f64). `ctx` is opaque.
pub type KernelFn = unsafe extern "C" fn(ctx: *mut c_void, args: *const u64, begin: i64, end: i64) -> Status;

/// A tensor across the ABI.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorDesc {
    /// First element; may be null for zero-size tensors.
    pub data: *mut c_void,
    /// `rank` extents.
    pub dims: *const i64,
    /// `rank` strides in elements, or null when contiguous.
    pub strides: *const i64,
    /// Bytes of the buffer from `data` on.
    pub bytes: u64,
    /// Number of axes.
    pub rank: u32,
    /// ONNX element type.
    pub dtype: i32,
    /// 0 device, 1 host, 2 host-mapped.
    pub space: u32,
    /// 0.
    pub flags: u32,
    /// Device id.
    pub device: u32,
    /// 0.
    pub reserved: u32,
}

macro_rules! table {
    ($($(#[doc = $doc:literal])* $name:ident($($arg:ident: $ty:ty as $ir:literal),*);)*) => {
        /// The table. Sizes and order are the ABI; new fields go at the end.
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct Table {
            /// `size_of::<Table>()`, so that older code can be told from newer.
            pub size_bytes: u64,
            /// [`ABI_VERSION`].
            pub version: u64,
            $($(#[doc = $doc])* pub $name: unsafe extern "C" fn($($arg: $ty),*) -> Status,)*
        }
        /// Name, argument types in LLVM terms and meaning of each function of the [`Table`], in order; they start after two u64.
        pub const FIELDS: &[Field] = &[$(Field {
            name: stringify!($name),
            args: &[$((stringify!($arg), $ir)),*],
            doc: concat!($($doc),*),
        },)*];
    };
}

/// A function of the [`Table`]. All return i32, the status.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name.
    pub name: &'static str,
    /// Arguments: name and LLVM type (`ptr`, `i64`, `i32`).
    pub args: &'static [(&'static str, &'static str)],
    /// Meaning.
    pub doc: &'static str,
}

table! {
    /// Writes the extent of a graph input's axis to `out`.
    input_dim(ctx: *mut RunCtx as "ptr", input: u32 as "i32", axis: u32 as "i32", out: *mut i64 as "ptr");
    /// Writes the address of a graph input, contiguous and in device memory, to `out`.
    input_ptr(ctx: *mut RunCtx as "ptr", input: u32 as "i32", out: *mut i64 as "ptr");
    /// Writes the device address of a constant to `out`.
    const_ptr(ctx: *mut RunCtx as "ptr", index: u32 as "i32", out: *mut i64 as "ptr");
    /// Makes the domain at least `bytes` long and writes its base address to `out`.
    reserve(ctx: *mut RunCtx as "ptr", domain: u32 as "i32", bytes: i64 as "i64", out: *mut i64 as "ptr");
    /// Gets the buffer of a graph output of the given extents and writes its address to `out`.
    output(ctx: *mut RunCtx as "ptr", index: u32 as "i32", rank: u32 as "i32", dims: *const i64 as "ptr", out: *mut i64 as "ptr");
    /// Reports that a guard does not hold (`what`, `node`, the two sides) and returns the failure.
    guard_failed(ctx: *mut RunCtx as "ptr", what: u32 as "i32", node: u32 as "i32", lhs: i64 as "i64", rhs: i64 as "i64");
    /// Reports an arithmetic failure (division by zero) at a node and returns the failure.
    arith_failed(ctx: *mut RunCtx as "ptr", node: u32 as "i32");
    /// Runs a generated kernel: `kernel` is its position, `func` its CPU code (null where there is none); `args` are `n_bufs` addresses then `n_ints` integers.
    launch(ctx: *mut RunCtx as "ptr", kernel: u32 as "i32", func: Option<KernelFn> as "ptr", args: *const u64 as "ptr", n_bufs: u32 as "i32", n_ints: u32 as "i32", points: i64 as "i64", work: i64 as "i64", node: u32 as "i32");
    /// Runs a catalog kernel by id: `args` are `n_bufs` addresses, `n_ints` integers, `n_scalars` f64 bits.
    kernel(ctx: *mut RunCtx as "ptr", id: u32 as "i32", args: *const u64 as "ptr", n_bufs: u32 as "i32", n_ints: u32 as "i32", n_scalars: u32 as "i32", node: u32 as "i32");
    /// Runs a host op: `tensors` are `n` descriptors (null data and rank `u32::MAX` where absent), the first `n_reads` are read.
    host_op(ctx: *mut RunCtx as "ptr", op: u32 as "i32", tensors: *const TensorDesc as "ptr", n: u32 as "i32", n_reads: u32 as "i32", node: u32 as "i32");
    /// Copies bytes between spaces (0 device, 1 host, 2 host-mapped).
    copy(ctx: *mut RunCtx as "ptr", dst: i64 as "i64", dst_space: u32 as "i32", src: i64 as "i64", src_space: u32 as "i32", bytes: i64 as "i64", node: u32 as "i32");
    /// Writes `n` integers as `dtype` to host-mapped memory at `ptr`, in the stream's order.
    store_ints(ctx: *mut RunCtx as "ptr", ptr: i64 as "i64", dtype: i32 as "i32", n: u32 as "i32", values: *const i64 as "ptr");
    /// Waits for the stream and writes integer element `index` at `ptr` to `out`.
    readback(ctx: *mut RunCtx as "ptr", ptr: i64 as "i64", space: u32 as "i32", dtype: i32 as "i32", index: u32 as "i32", node: u32 as "i32", out: *mut i64 as "ptr");
}

/// `init(table) → status`: keeps the table's functions. Refuses another size or version.
pub type InitFn = unsafe extern "C" fn(table: *const Table) -> Status;
/// `run(ctx, frame) → status`: one run. `frame` are `frame_words` u64 of the run's own, zeroed.
pub type RunFn = unsafe extern "C" fn(ctx: *mut RunCtx, frame: *mut u64) -> Status;

/// Symbols an artifact exports.
pub const SYM_INIT: &str = "hip_ep_init";
/// See [`RunFn`].
pub const SYM_RUN: &str = "hip_ep_run";
/// A u64: number of words of the run frame.
pub const SYM_FRAME_WORDS: &str = "hip_ep_frame_words";
/// A u64: [`abi_hash`] at compile time.
pub const SYM_ABI_HASH: &str = "hip_ep_abi_hash";
/// The metadata section's bytes; its length is the u64 `hip_ep_metadata_len`.
pub const SYM_METADATA: &str = "hip_ep_metadata";

/// Hash of the table, its version and the types that cross it: FNV-1a over their description.
#[allow(clippy::indexing_slicing)] // positions are below the lengths, and a constant function has no iterators
pub const fn abi_hash() -> u64 {
    const fn mix(mut h: u64, s: &str) -> u64 {
        let b = s.as_bytes();
        let mut i = 0;
        while i < b.len() {
            h = (h ^ b[i] as u64).wrapping_mul(0x100_0000_01b3);
            i += 1;
        }
        (h ^ 0xff).wrapping_mul(0x100_0000_01b3)
    }
    let mut h = 0xcbf2_9ce4_8422_2325u64 ^ ABI_VERSION as u64;
    let mut i = 0;
    while i < FIELDS.len() {
        h = mix(h, FIELDS[i].name);
        let mut a = 0;
        while a < FIELDS[i].args.len() {
            h = mix(h, FIELDS[i].args[a].1);
            a += 1;
        }
        i += 1;
    }
    (h ^ std::mem::size_of::<TensorDesc>() as u64).wrapping_mul(0x100_0000_01b3)
}
