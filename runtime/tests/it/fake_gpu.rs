//! A GPU made of Rust functions behind the driver's table. It is as lazy and as strict as a driver may be: work runs only when
//! somebody waits for it, device memory has addresses that fault when host code touches them, freed memory is gone at once, and
//! asynchronous copies take pinned memory only. So wrong order, early frees and unstaged copies show.

use runtime::device::hip::table::{HIP_SYMBOLS, Handle, Status};
use runtime::device::hip::{DeviceInfo, Functions, Hip, Platform, Table};
use std::alloc::Layout;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensor::{Diagnostic, ErrorKind, Result};

/// Device addresses start here; no host address does.
const DEVICE_BASE: usize = 1 << 56;
const INVALID_VALUE: Status = 1;
const NO_MEMORY: Status = 2;
const NOT_FOUND: Status = 500;
const NOT_READY: Status = 600;
const ILLEGAL_ADDRESS: Status = 700;

/// How often the driver was asked for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub stream_syncs: u64,
    pub event_syncs: u64,
    pub mallocs: u64,
    pub host_mallocs: u64,
    pub uploads: u64,
    pub downloads: u64,
    pub launches: u64,
    pub functions: u64,
    pub modules_live: u64,
    pub streams_live: u64,
}

enum Op {
    Copy { dst: usize, src: usize, bytes: usize },
    Record { event: usize },
    Kernel { name: String, words: Vec<u64> },
}

/// Host memory behind an allocation.
struct Block {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: an allocation of its own.
unsafe impl Send for Block {}

impl Block {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), 4096).unwrap()
    }
    /// Fresh memory is NaN for floats.
    fn new(len: usize) -> Block {
        // SAFETY: the layout has a size; the whole of it is filled.
        unsafe {
            let ptr = std::alloc::alloc(Block::layout(len));
            ptr.write_bytes(0xff, len);
            Block { ptr, len }
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: made with this layout.
        unsafe { std::alloc::dealloc(self.ptr, Block::layout(self.len)) };
    }
}

/// Memory, queues and counts of one device.
#[derive(Default)]
pub struct Gpu {
    device: BTreeMap<usize, Block>,
    pinned: BTreeMap<usize, Block>,
    streams: BTreeMap<usize, VecDeque<Op>>,
    events: BTreeMap<usize, Option<u64>>,
    modules: BTreeMap<usize, Vec<String>>,
    functions: BTreeMap<usize, String>,
    last: usize,
    clock: u64,
    failed: Status,
    limit: usize,
    pub counts: Counts,
}

impl Gpu {
    fn next(&mut self) -> usize {
        self.last += 1;
        self.last
    }
    fn used(&self) -> usize {
        self.device.values().map(|b| b.len).sum()
    }
    /// The bytes of a range that the device may touch.
    fn range(&mut self, addr: usize, len: usize) -> Option<&mut [u8]> {
        let all = if addr >= DEVICE_BASE { &mut self.device } else { &mut self.pinned };
        let (&start, block) = all.range_mut(..=addr).next_back()?;
        let at = addr - start;
        if at + len > block.len {
            return None;
        }
        // SAFETY: the block has this length.
        let bytes = unsafe { std::slice::from_raw_parts_mut(block.ptr, block.len) };
        bytes.get_mut(at..at + len)
    }
    fn read<const N: usize>(&mut self, addr: u64) -> Option<[u8; N]> {
        self.range(addr as usize, N)?.try_into().ok()
    }
    fn write(&mut self, addr: u64, bytes: &[u8]) -> Option<()> {
        self.range(addr as usize, bytes.len())?.copy_from_slice(bytes);
        Some(())
    }
    /// Runs a kernel; `None` when it touches memory that is not there.
    fn kernel(&mut self, name: &str, w: &[u64]) -> Option<()> {
        match name {
            // y[i] = x[i] + k over f32, and over i32.
            "add" => (0..w[3]).try_for_each(|i| {
                let x = f32::from_ne_bytes(self.read(w[0] + 4 * i)?);
                self.write(w[1] + 4 * i, &(x + w[2] as i64 as f32).to_ne_bytes())
            }),
            "add_i32" => (0..w[3]).try_for_each(|i| {
                let x = i32::from_ne_bytes(self.read(w[0] + 4 * i)?);
                self.write(w[1] + 4 * i, &(x + w[2] as i32).to_ne_bytes())
            }),
            // y[i] = x[i] over i64.
            "copy_i64" => (0..w[2]).try_for_each(|i| {
                let x: [u8; 8] = self.read(w[0] + 8 * i)?;
                self.write(w[1] + 8 * i, &x)
            }),
            "crash" => None,
            "hip_ep_store_ints" => (0..w[2]).try_for_each(|i| match w[1] {
                7 => self.write(w[0] + 8 * i, &w[3 + i as usize].to_ne_bytes()),
                6 => self.write(w[0] + 4 * i, &(w[3 + i as usize] as i32).to_ne_bytes()),
                _ => None,
            }),
            "hip_ep_nonzero_count_f32" => {
                let mut n = 0i64;
                for i in 0..w[2] {
                    n += i64::from(f32::from_ne_bytes(self.read(w[0] + 4 * i)?) != 0.0);
                }
                self.write(w[1], &n.to_ne_bytes())
            }
            _ => None,
        }
    }
    fn step(&mut self, op: Op) {
        self.clock += 1_000_000;
        let done = match op {
            _ if self.failed != 0 => Some(()),
            Op::Copy { dst, src, bytes } => {
                let data = self.range(src, bytes).map(|d| d.to_vec());
                data.and_then(|d| self.write(dst as u64, &d))
            }
            Op::Record { event } => {
                let now = self.clock;
                self.events.get_mut(&event).map(|e| *e = Some(now))
            }
            Op::Kernel { name, words } => self.kernel(&name, &words),
        };
        if done.is_none() {
            self.failed = ILLEGAL_ADDRESS;
        }
    }
    /// Runs what is queued on a stream; until an event, if one is given.
    fn drain(&mut self, stream: usize, until: Option<usize>) -> Status {
        while let Some(op) = self.streams.get_mut(&stream).and_then(VecDeque::pop_front) {
            let stop = matches!(op, Op::Record { event } if Some(event) == until);
            self.step(op);
            if stop {
                break;
            }
        }
        self.failed
    }
}

static GPUS: Mutex<BTreeMap<c_int, Gpu>> = Mutex::new(BTreeMap::new());
static LAST: AtomicI32 = AtomicI32::new(-1);

std::thread_local! {
    /// As in a driver: the device that a thread speaks to.
    static CURRENT: Cell<c_int> = const { Cell::new(-1) };
}

fn gpus() -> MutexGuard<'static, BTreeMap<c_int, Gpu>> {
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread's device; fails as a driver does when the thread has none.
fn with(f: impl FnOnce(&mut Gpu) -> Status) -> Status {
    let current = CURRENT.get();
    gpus().get_mut(&current).map_or(101, f)
}

unsafe fn put<T>(p: *mut T, value: T) -> Status {
    // SAFETY: the callers below give places to write to.
    unsafe { p.write(value) };
    0
}
fn handle(n: usize) -> Handle {
    std::ptr::without_provenance_mut(n)
}
unsafe extern "C" fn init(_: c_uint) -> Status {
    0
}
unsafe extern "C" fn number(p: *mut c_int) -> Status {
    // SAFETY: see `put`.
    unsafe { put(p, 1) }
}
unsafe extern "C" fn device_get(p: *mut c_int, ordinal: c_int) -> Status {
    // SAFETY: see `put`.
    unsafe { put(p, ordinal) }
}
unsafe extern "C" fn device_name(_: *mut c_char, _: c_int, _: c_int) -> Status {
    0
}
unsafe extern "C" fn device_total_mem(p: *mut usize, _: c_int) -> Status {
    // SAFETY: see `put`.
    unsafe { put(p, 1 << 40) }
}
unsafe extern "C" fn device_attribute(p: *mut c_int, _: c_int, _: c_int) -> Status {
    // SAFETY: see `put`.
    unsafe { put(p, 1) }
}
unsafe extern "C" fn set_device(ordinal: c_int) -> Status {
    CURRENT.set(ordinal);
    0
}
unsafe extern "C" fn mem_info(free: *mut usize, total: *mut usize) -> Status {
    // SAFETY: see `put`.
    with(|g| unsafe { put(free, g.limit - g.used()) + put(total, g.limit) })
}
unsafe extern "C" fn malloc(p: *mut *mut c_void, len: usize) -> Status {
    with(|g| {
        g.counts.mallocs += 1;
        if g.used() + len > g.limit {
            return NO_MEMORY;
        }
        let addr = DEVICE_BASE + (g.next() << 32);
        g.device.insert(addr, Block::new(len));
        // SAFETY: see `put`.
        unsafe { put(p, handle(addr)) }
    })
}
unsafe extern "C" fn free(p: *mut c_void) -> Status {
    with(|g| if g.device.remove(&p.addr()).is_some() { 0 } else { INVALID_VALUE })
}
unsafe extern "C" fn host_malloc(p: *mut *mut c_void, len: usize, _: c_uint) -> Status {
    with(|g| {
        g.counts.host_mallocs += 1;
        let b = Block::new(len);
        let at = b.ptr.expose_provenance();
        g.pinned.insert(at, b);
        // SAFETY: see `put`.
        unsafe { put(p, std::ptr::with_exposed_provenance_mut(at)) }
    })
}
unsafe extern "C" fn host_free(p: *mut c_void) -> Status {
    with(|g| if g.pinned.remove(&p.addr()).is_some() { 0 } else { INVALID_VALUE })
}
unsafe extern "C" fn host_device_pointer(d: *mut *mut c_void, h: *mut c_void, _: c_uint) -> Status {
    // SAFETY: see `put`.
    unsafe { put(d, h) }
}
fn copy(dst: *mut c_void, src: *mut c_void, bytes: usize, stream: Handle) -> Status {
    with(|g| {
        let (dst, src) = (dst.addr(), src.addr());
        if g.range(dst, bytes).is_none() || g.range(src, bytes).is_none() {
            return INVALID_VALUE;
        }
        match g.streams.get_mut(&stream.addr()) {
            Some(q) => q.push_back(Op::Copy { dst, src, bytes }),
            None => return INVALID_VALUE,
        }
        g.failed
    })
}
unsafe extern "C" fn upload(dst: *mut c_void, src: *mut c_void, bytes: usize, stream: Handle) -> Status {
    with(|g| {
        g.counts.uploads += 1;
        0
    });
    copy(dst, src, bytes, stream)
}
unsafe extern "C" fn download(dst: *mut c_void, src: *mut c_void, bytes: usize, stream: Handle) -> Status {
    with(|g| {
        g.counts.downloads += 1;
        0
    });
    copy(dst, src, bytes, stream)
}
unsafe extern "C" fn on_device(dst: *mut c_void, src: *mut c_void, bytes: usize, stream: Handle) -> Status {
    copy(dst, src, bytes, stream)
}
unsafe extern "C" fn stream_create(p: *mut Handle, _: c_uint) -> Status {
    with(|g| {
        let id = g.next();
        g.streams.insert(id, VecDeque::new());
        g.counts.streams_live += 1;
        // SAFETY: see `put`.
        unsafe { put(p, handle(id)) }
    })
}
unsafe extern "C" fn stream_destroy(s: Handle) -> Status {
    with(|g| {
        g.counts.streams_live -= 1;
        if g.streams.remove(&s.addr()).is_some_and(|q| q.is_empty()) { 0 } else { INVALID_VALUE }
    })
}
unsafe extern "C" fn stream_synchronize(s: Handle) -> Status {
    with(|g| {
        g.counts.stream_syncs += 1;
        g.drain(s.addr(), None)
    })
}
unsafe extern "C" fn event_create(p: *mut Handle, _: c_uint) -> Status {
    with(|g| {
        let id = g.next();
        g.events.insert(id, None);
        // SAFETY: see `put`.
        unsafe { put(p, handle(id)) }
    })
}
unsafe extern "C" fn event_destroy(e: Handle) -> Status {
    with(|g| if g.events.remove(&e.addr()).is_some() { 0 } else { INVALID_VALUE })
}
unsafe extern "C" fn event_record(e: Handle, s: Handle) -> Status {
    with(|g| match (g.events.get_mut(&e.addr()), g.streams.get_mut(&s.addr())) {
        (Some(time), Some(q)) => {
            *time = None;
            q.push_back(Op::Record { event: e.addr() });
            0
        }
        _ => INVALID_VALUE,
    })
}
unsafe extern "C" fn event_synchronize(e: Handle) -> Status {
    with(|g| {
        g.counts.event_syncs += 1;
        let on = |q: &VecDeque<Op>| q.iter().any(|op| matches!(op, Op::Record { event } if *event == e.addr()));
        match g.streams.iter().find(|(_, q)| on(q)).map(|(&s, _)| s) {
            Some(s) => g.drain(s, Some(e.addr())),
            None => g.failed,
        }
    })
}
unsafe extern "C" fn event_elapsed(ms: *mut f32, a: Handle, b: Handle) -> Status {
    with(|g| match (g.events.get(&a.addr()), g.events.get(&b.addr())) {
        // SAFETY: see `put`.
        (Some(Some(a)), Some(Some(b))) => unsafe { put(ms, (*b as f32 - *a as f32) / 1e6) },
        (Some(_), Some(_)) => NOT_READY,
        _ => INVALID_VALUE,
    })
}
unsafe extern "C" fn module_load(m: *mut Handle, image: *const c_void) -> Status {
    // SAFETY: the images of these tests are texts with a NUL.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
    if !text.starts_with("kernels") {
        return 200;
    }
    with(|g| {
        let id = g.next();
        g.counts.modules_live += 1;
        g.modules.insert(id, text.split(' ').skip(1).map(String::from).collect());
        // SAFETY: see `put`.
        unsafe { put(m, handle(id)) }
    })
}
unsafe extern "C" fn module_unload(m: Handle) -> Status {
    with(|g| {
        g.counts.modules_live -= 1;
        if g.modules.remove(&m.addr()).is_some() { 0 } else { INVALID_VALUE }
    })
}
unsafe extern "C" fn module_function(f: *mut Handle, m: Handle, name: *const c_char) -> Status {
    // SAFETY: a text with a NUL.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    with(|g| {
        g.counts.functions += 1;
        if !g.modules.get(&m.addr()).is_some_and(|all| all.contains(&name)) {
            return NOT_FOUND;
        }
        let id = g.next();
        g.functions.insert(id, name);
        // SAFETY: see `put`.
        unsafe { put(f, handle(id)) }
    })
}
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn launch(
    f: Handle,
    x: c_uint,
    y: c_uint,
    z: c_uint,
    block: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    stream: Handle,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    // SAFETY: the list of launch parameters, as the API has it.
    let (words, keys) = unsafe {
        let e = std::slice::from_raw_parts(extra, 5);
        let bytes = *e[3].cast::<usize>();
        (std::slice::from_raw_parts(e[1].cast::<u64>(), bytes / 8).to_vec(), [e[0].addr(), e[2].addr(), e[4].addr()])
    };
    with(|g| {
        g.counts.launches += 1;
        if !params.is_null() || keys != [1, 2, 3] || [x, y, z, block].contains(&0) || g.failed != 0 {
            return if g.failed != 0 { g.failed } else { INVALID_VALUE };
        }
        let name = g.functions.get(&f.addr()).cloned();
        match (name, g.streams.get_mut(&stream.addr())) {
            (Some(name), Some(q)) => q.push_back(Op::Kernel { name, words }),
            _ => return INVALID_VALUE,
        }
        0
    })
}
unsafe extern "C" fn error_name(status: Status) -> *const c_char {
    match status {
        INVALID_VALUE => c"hipErrorInvalidValue".as_ptr(),
        NO_MEMORY => c"hipErrorOutOfMemory".as_ptr(),
        200 => c"hipErrorInvalidImage".as_ptr(),
        NOT_FOUND => c"hipErrorNotFound".as_ptr(),
        ILLEGAL_ADDRESS => c"hipErrorIllegalAddress".as_ptr(),
        _ => std::ptr::null(),
    }
}

const FUNCTIONS: Functions = Functions {
    init,
    driver_version: number,
    device_count: number,
    device_get,
    device_name,
    device_total_mem,
    device_attribute,
    set_device,
    mem_info,
    malloc,
    free,
    host_malloc,
    host_free,
    host_device_pointer,
    memcpy_htod_async: upload,
    memcpy_dtoh_async: download,
    memcpy_dtod_async: on_device,
    stream_create,
    stream_destroy,
    stream_synchronize,
    event_create,
    event_destroy,
    event_record,
    event_synchronize,
    event_elapsed,
    module_load,
    module_unload,
    module_function,
    launch,
    error_name,
};

struct Fake {
    table: Table,
    prefix: &'static str,
    arch: &'static str,
    compiles: bool,
}

impl Platform for Fake {
    fn vendor(&self) -> &'static str {
        "fake"
    }
    fn prefix(&self) -> &'static str {
        self.prefix
    }
    fn table(&self) -> &Table {
        &self.table
    }
    fn library(&self) -> &str {
        "fake"
    }
    fn arch(&self, _: c_int) -> Result<String> {
        Ok(self.arch.into())
    }
    fn launch_end(&self) -> usize {
        3
    }
    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>> {
        if !self.compiles {
            return Err(Diagnostic::new(ErrorKind::Unsupported, "the fake compiler is not there"));
        }
        assert!(source.contains("hip_ep_store_ints") && self.arch.starts_with(arch));
        Ok(b"kernels hip_ep_store_ints hip_ep_nonzero_count_f32\0".to_vec())
    }
    fn compiler(&self) -> std::result::Result<String, String> {
        Err("the fake compiler is not there".into())
    }
}

/// A device of a test's own, and its number for [`counts`].
pub struct FakeGpu {
    pub hip: Hip,
    pub ordinal: c_int,
}

impl FakeGpu {
    pub fn new(prefix: &'static str, arch: &'static str, compiles: bool) -> FakeGpu {
        let ordinal = LAST.fetch_add(1, Relaxed) + 1;
        gpus().insert(ordinal, Gpu { limit: 1 << 40, ..Gpu::default() });
        let table = Table { functions: FUNCTIONS, symbols: &HIP_SYMBOLS };
        let platform: Arc<dyn Platform> = Arc::new(Fake { table, prefix, arch, compiles });
        let hip = Hip::with_platform(platform, &DeviceInfo::new(ordinal, "fake GPU", arch, 1 << 40)).unwrap();
        FakeGpu { hip, ordinal }
    }
    pub fn counts(&self) -> Counts {
        gpus()[&self.ordinal].counts
    }
    /// Bytes of device memory that the driver has given.
    pub fn used(&self) -> usize {
        gpus()[&self.ordinal].used()
    }
    /// Least memory it can have now, plus `more` bytes.
    pub fn limit_to_used_and(&self, more: usize) {
        let mut all = gpus();
        let g = all.get_mut(&self.ordinal).unwrap();
        g.limit = g.used() + more;
    }
}
