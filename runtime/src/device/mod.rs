//! Devices: where memory is and what runs kernels.
//!
//! The trait is small; pools, constants, sessions and profiles are written once above it. Work is queued on a stream and errors
//! appear at the call or at [`Device::synchronize`]; the CPU devices finish each call before they return, which that contract
//! allows. The caller of the unsafe functions answers for addresses and lengths; [`null`] and [`guard`] check them.
//!
//! What host memory may do meanwhile: the source of a copy may be reused as soon as [`Device::copy`] returns; its destination holds
//! the bytes after the stream is next waited for. Freed memory stays usable for the work that was queued before.
//!
//! - [`cpu`] runs kernels on the host's memory,
//! - [`null`] runs nothing and checks every call,
//! - [`guard`] runs them on memory that host code cannot touch,
//! - [`hip`] runs them on a GPU.

pub mod cpu;
mod fault;
pub mod guard;
pub mod hip;
pub mod null;
mod region;

pub use cpu::Cpu;
pub use guard::Guard;
pub use hip::Hip;
pub use null::Null;
pub(crate) use region::Region;

use crate::abi::KernelFn;
use crate::catalog::Kernels;
use artifact::Artifact;
use kernels::team::Team;
use std::any::Any;
use std::sync::Arc;
use tensor::{DType, Diagnostic, ErrorKind, Result};

/// Where memory is; the numbers are the ABI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Space {
    /// Memory of the device; host code may not touch it.
    Device = 0,
    /// Ordinary host memory; kernels may not touch it.
    Host = 1,
    /// Host memory that kernels may read and write.
    HostMapped = 2,
}

impl Space {
    /// From the ABI's number.
    pub fn from_number(n: u32) -> Option<Space> {
        match n {
            0 => Some(Space::Device),
            1 => Some(Space::Host),
            2 => Some(Space::HostMapped),
            _ => None,
        }
    }
}

/// What a device is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Properties {
    /// `cpu`, `null`, `guard`, `hip`.
    pub name: &'static str,
    /// Host code may use device memory and kernels may use any host memory: inputs, outputs and constants are used in place.
    pub host_is_device: bool,
    /// Kernels really run; without it, results mean nothing.
    pub executes: bool,
    /// Looks for misuse: pools are then exactly as long as a run needs, so that overruns show.
    pub checks: bool,
    /// Calls return before their work is done: only events tell how long it took.
    pub asynchronous: bool,
    /// Alignment of allocations.
    pub align: usize,
}

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// All there is.
    pub total: u64,
    /// Allocated now, through this device.
    pub live: u64,
    /// Most that was allocated at once.
    pub peak: u64,
    /// Allocations so far.
    pub n_allocs: u64,
}

/// Memory got from [`Device::alloc`]; given back by [`Device::free`].
#[derive(Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First byte, at least 256-byte aligned; never null.
    pub addr: usize,
    /// Usable bytes.
    pub bytes: usize,
    /// Space.
    pub space: Space,
}

/// A queue of work on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub u64);

/// A point in a stream. The value is the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// What a device keeps of a model so that it can launch the model's kernels; nothing on the devices that call host code. The value
/// is the device's.
#[derive(Clone, Default)]
pub struct Loaded(pub(crate) Option<Arc<dyn Any + Send + Sync>>);

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Loaded(device code)" } else { "Loaded(host code)" })
    }
}

/// A kernel to run. Addresses in `args` come first.
pub enum Work<'a> {
    /// A generated kernel over `points` outer points.
    Generated {
        /// Its position in the metadata's list of kernels.
        kernel: u32,
        /// Its code for the host, if the model was compiled for the CPU, too.
        func: Option<KernelFn>,
        /// `n_bufs` addresses, then integers.
        args: &'a [u64],
        /// Number of addresses.
        n_bufs: usize,
        /// Outer points.
        points: usize,
        /// Least points a host thread takes.
        grain: usize,
    },
    /// A kernel of the catalog.
    Catalog {
        /// The catalog.
        kernels: &'a dyn Kernels,
        /// Its id.
        id: u32,
        /// Addresses, null where an operand is absent.
        bufs: &'a [u64],
        /// Integer arguments.
        ints: &'a [i64],
        /// Scalar arguments.
        scalars: &'a [f64],
    },
}

impl Work<'_> {
    /// The addresses.
    pub fn buffers(&self) -> &[u64] {
        match self {
            Work::Generated { args, n_bufs, .. } => args.get(..*n_bufs).unwrap_or_default(),
            Work::Catalog { bufs, .. } => bufs,
        }
    }
}

/// A device.
pub trait Device: Send + Sync {
    /// What it is.
    fn properties(&self) -> Properties;

    /// Tells devices apart: what was uploaded to one is there for every handle of the same one.
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Its memory.
    fn memory(&self) -> MemoryInfo;

    /// Gets memory. Zero bytes are legal and have an address of their own. The content is undefined.
    ///
    /// # Errors
    /// `Device` when there is not enough memory.
    fn alloc(&self, space: Space, bytes: usize) -> Result<Allocation>;

    /// Gives memory back. Work that was queued before still finds it; a device that runs later keeps it until that work is done.
    ///
    /// # Errors
    /// `Device` when it is not a live allocation of this device (nothing is freed then), or was overrun (it is freed).
    ///
    /// # Safety
    /// Nothing but work that is queued uses the memory any more, and it came from this device.
    unsafe fn free(&self, allocation: Allocation) -> Result<()>;

    /// Copies bytes between spaces, after the work queued before. Host memory may be anybody's: a source may be reused when the call
    /// returns, a destination holds the bytes after the next [`Device::synchronize`] and must live until then.
    ///
    /// # Errors
    /// `Device` when a range is not memory of its space, where the device can tell.
    ///
    /// # Safety
    /// Both ranges are live memory of their spaces and do not overlap; the destination is not in use.
    unsafe fn copy(&self, stream: Stream, dst: (usize, Space), src: (usize, Space), bytes: usize) -> Result<()>;

    /// Gets what it takes to launch the kernels of a model. Once per session.
    ///
    /// # Errors
    /// `Unsupported` when the artifact holds no code that this device runs, with the targets it has; `Device` when the driver refuses
    /// the code.
    fn load(&self, artifact: &Artifact) -> Result<Loaded> {
        host_code(artifact, self.properties().name)
    }

    /// Runs a kernel: over a team on the host, or as queued work on a device of its own.
    ///
    /// # Errors
    /// `Device` when the kernel reports failure, or an address is not memory that kernels may touch, where the device can tell.
    ///
    /// # Safety
    /// The arguments are those the kernel's signature asks for, over live memory.
    unsafe fn launch(&self, stream: Stream, team: &dyn Team, loaded: &Loaded, work: &Work<'_>) -> Result<()>;

    /// Writes integers as i32 or i64 to memory that kernels may touch, after the work queued before.
    ///
    /// # Errors
    /// `Shape` when a value does not fit, `Internal` for another element type, and as [`Device::copy`].
    ///
    /// # Safety
    /// The range is live host-mapped memory for that many elements.
    unsafe fn store_ints(&self, stream: Stream, _: &Loaded, dst: usize, dtype: DType, values: &[i64]) -> Result<()> {
        let bytes = int_bytes(dtype, values)?;
        let from = (bytes.as_ptr().expose_provenance(), Space::Host);
        // SAFETY: the caller's promise; the source may end when the call returns.
        unsafe { self.copy(stream, (dst, Space::HostMapped), from, bytes.len()) }
    }

    /// A new stream.
    ///
    /// # Errors
    /// `Device` when there are too many.
    fn stream(&self) -> Result<Stream>;

    /// Ends a stream, after its work.
    ///
    /// # Errors
    /// `Device` when it is no live stream, where the device can tell.
    fn close_stream(&self, stream: Stream) -> Result<()>;

    /// Marks the point the stream has reached.
    ///
    /// # Errors
    /// `Device` when it is no live stream, where the device can tell.
    fn record(&self, stream: Stream) -> Result<Event>;

    /// Nanoseconds from one event to a later one; both must have passed.
    ///
    /// # Errors
    /// `Device` when the second is not later or equal, or has not passed.
    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64>;

    /// Gives an event back.
    fn forget(&self, _: Event) {}

    /// Waits until the stream's work is done; failures of queued work appear here.
    ///
    /// # Errors
    /// `Device` with the first failure.
    fn synchronize(&self, stream: Stream) -> Result<()>;
}

/// Memory that frees itself.
pub struct Buffer {
    device: Arc<dyn Device>,
    allocation: Option<Allocation>,
}

impl Buffer {
    /// Gets memory from a device.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    pub fn new(device: &Arc<dyn Device>, space: Space, bytes: usize) -> Result<Buffer> {
        Ok(Buffer { allocation: Some(device.alloc(space, bytes)?), device: device.clone() })
    }
    /// First byte; 0 never.
    pub fn addr(&self) -> usize {
        self.allocation.as_ref().map_or(0, |a| a.addr)
    }
    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.allocation.as_ref().map_or(0, |a| a.bytes)
    }
    /// Frees it now and says whether it was overrun, where the device can tell.
    ///
    /// # Errors
    /// As [`Device::free`].
    pub fn free(mut self) -> Result<()> {
        match self.allocation.take() {
            // SAFETY: the buffer owns the allocation and ends here.
            Some(a) => unsafe { self.device.free(a) },
            None => Ok(()),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(a) = self.allocation.take() {
            // SAFETY: the buffer owns the allocation and ends here.
            if let Err(e) = unsafe { self.device.free(a) } {
                tracing::error!(error = %e, "memory cannot be freed");
            }
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.allocation)
    }
}

/// A `Device` error.
pub(crate) fn device_error(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Device, message)
}

/// What devices that run host code need of a model: that it was compiled for the CPU.
fn host_code(artifact: &Artifact, device: &str) -> Result<Loaded> {
    match &artifact.metadata().target {
        Some(t) if !t.device.split(',').any(|d| d == "cpu") => {
            let text = format!("the model was compiled for device {:?}, not for {device:?}", t.device);
            let e = Diagnostic::new(ErrorKind::Unsupported, text);
            Err(e.help("compile it for the cpu, too, as hip-compiler --target cpu or --target hip:gfx942,cpu"))
        }
        _ => Ok(Loaded::default()),
    }
}

/// Integers as the bytes of an element type.
pub(crate) fn int_bytes(dtype: DType, values: &[i64]) -> Result<smallvec::SmallVec<[u8; 64]>> {
    let mut bytes = smallvec::SmallVec::new();
    for &v in values {
        match dtype {
            DType::I64 => bytes.extend_from_slice(&v.to_ne_bytes()),
            DType::I32 => {
                let v = i32::try_from(v)
                    .map_err(|_| Diagnostic::new(ErrorKind::Shape, format!("extent {v} does not fit an i32 tensor")))?;
                bytes.extend_from_slice(&v.to_ne_bytes());
            }
            d => {
                let text = format!("the program stores extents as {d}");
                return Err(Diagnostic::new(ErrorKind::Internal, text));
            }
        }
    }
    Ok(bytes)
}

/// Runs work on the calling process's processors.
///
/// # Safety
/// As [`Device::launch`].
pub(crate) unsafe fn run_on_host(team: &dyn Team, work: &Work<'_>) -> Result<()> {
    match *work {
        Work::Generated { func, args, points, grain, .. } => {
            let func = func.ok_or_else(|| {
                device_error("the model holds no code of this kernel for the host").help("compile it for the cpu, too")
            })?;
            let failed = std::sync::atomic::AtomicI32::new(0);
            let (status, order) = (&failed, std::sync::atomic::Ordering::Relaxed);
            team.run(points, grain, &|begin, end| {
                let (Ok(begin), Ok(end)) = (i64::try_from(begin), i64::try_from(end)) else {
                    return status.store(-1, order);
                };
                // SAFETY: the caller of `launch` answers for the arguments; ranges are disjoint and within `points`.
                let s = unsafe { func(std::ptr::null_mut(), args.as_ptr(), begin, end) };
                if s != 0 {
                    status.store(s, order);
                }
            });
            match failed.into_inner() {
                0 => Ok(()),
                s => Err(device_error(format!("a generated kernel failed with status {s}"))),
            }
        }
        // SAFETY: the caller of `launch` answers for the arguments.
        Work::Catalog { kernels, id, bufs, ints, scalars } => unsafe { kernels.run(id, team, bufs, ints, scalars) },
    }
}

/// Bytes of physical memory, or a generous guess.
pub(crate) fn physical_memory() -> u64 {
    static TOTAL: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *TOTAL.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = text
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.map_or(1 << 40, |k| k.saturating_mul(1024))
    })
}
