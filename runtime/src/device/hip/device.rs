//! The device.

use super::super::region::{ALIGN, Live, Meter};
use super::super::*;
use super::code::Code;
use super::platform::Platform;
use super::stream::StreamState;
use super::table::{DevicePtr, Handle, Table, flag};
use super::{DeviceInfo, probe};
use crate::team::lock;
use kernels::gpu::Arch;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Mutex, OnceLock, RwLock, Weak};

/// A GPU.
#[derive(Clone)]
pub struct Hip(Arc<Shared>);

/// What the device shares with the code it loaded.
pub(super) struct Shared {
    pub(super) platform: Arc<dyn Platform>,
    ordinal: c_int,
    pub(super) name: String,
    /// As the driver says, with suffixes.
    pub(super) arch: String,
    total: u64,
    meter: Meter,
    memory: Mutex<Memory>,
    streams: RwLock<Streams>,
    /// Events that nobody holds: `Handle`s.
    events: Mutex<Vec<usize>>,
    /// Hand-written kernels compiled here, by architecture.
    compiled: Mutex<BTreeMap<&'static str, Result<Arc<Vec<u8>>>>>,
}

#[derive(Default)]
struct Memory {
    live: Live,
    retired: Vec<Retired>,
}

/// Memory that was freed while work was queued.
struct Retired {
    allocation: Allocation,
    /// Streams, and the last piece of their work that may use it.
    after: Vec<(u64, u64)>,
}

#[derive(Default)]
struct Streams {
    last: u64,
    open: BTreeMap<u64, Arc<StreamState>>,
}

fn pointer(addr: usize) -> *mut c_void {
    with_exposed_provenance_mut(addr)
}

impl Shared {
    pub(super) fn table(&self) -> &Table {
        self.platform.table()
    }

    /// Makes the device the calling thread's; every entry does it first.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: an ordinal that the driver gave.
        Ok(unsafe { self.table().set_device(self.ordinal) }?)
    }

    fn stream(&self, stream: Stream) -> Result<Arc<StreamState>> {
        let streams = self.streams.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let none = || device_error(format!("stream {} is not open", stream.0));
        streams.open.get(&stream.0).cloned().ok_or_else(none)
    }

    /// The hand-written kernels, compiled by the vendor's run-time compiler; once per device and architecture.
    pub(super) fn compiled(&self, arch: &'static Arch) -> Result<Arc<Vec<u8>>> {
        let mut all = lock(&self.compiled);
        all.entry(arch.name)
            .or_insert_with(|| {
                let start = std::time::Instant::now();
                let code = self.platform.compile(&kernels::gpu::sources::joined(), arch.name)?;
                tracing::info!(
                    arch = arch.name,
                    time_ms = start.elapsed().as_millis(),
                    "compiled the hand-written kernels"
                );
                Ok(Arc::new(code))
            })
            .clone()
    }

    /// Gives memory back to the driver.
    fn release(&self, a: &Allocation) -> Result<()> {
        // SAFETY: got from the same function, not used by queued work any more.
        let done = unsafe {
            match a.space {
                Space::Device => self.table().free(pointer(a.addr)),
                Space::Host | Space::HostMapped => self.table().host_free(pointer(a.addr)),
            }
        };
        self.meter.sub(a.bytes);
        Ok(done?)
    }

    /// Gives back what no queued work can use any more.
    fn reap(&self) -> Result<()> {
        let ready = {
            let streams = self.streams.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            let done = |&(stream, number): &(u64, u64)| streams.open.get(&stream).is_none_or(|s| s.has_done(number));
            let mut m = lock(&self.memory);
            let (ready, wait) = std::mem::take(&mut m.retired).into_iter().partition(|r| r.after.iter().all(done));
            m.retired = wait;
            ready
        };
        ready.iter().map(|r: &Retired| self.release(&r.allocation)).fold(Ok(()), Result::and)
    }

    /// One try of an allocation.
    fn try_alloc(&self, space: Space, bytes: usize) -> std::result::Result<usize, super::Failure> {
        let t = self.table();
        let want = bytes.max(1).next_multiple_of(ALIGN);
        let mut p: *mut c_void = null_mut();
        // SAFETY: writes an address.
        unsafe {
            match space {
                Space::Device => t.malloc(&mut p, want)?,
                Space::Host => t.host_malloc(&mut p, want, flag::HOST_PORTABLE)?,
                Space::HostMapped => t.host_malloc(&mut p, want, flag::HOST_PORTABLE | flag::HOST_MAPPED)?,
            }
        }
        Ok(p.expose_provenance())
    }

    /// Checks that kernels see mapped memory at the host's address: programs know one address only.
    fn check_mapped(&self, addr: usize) -> Result<()> {
        let mut device: DevicePtr = null_mut();
        // SAFETY: mapped memory that was just made.
        unsafe { self.table().host_device_pointer(&mut device, pointer(addr), 0)? };
        if device.addr() == addr {
            return Ok(());
        }
        let text = format!("mapped memory at {addr:#x} is at {:#x} for kernels", device.addr());
        Err(device_error(text).help("host and device do not share addresses here: run on another device"))
    }

    /// Waits for all streams; the copies to the host stay pending.
    fn drain_all(&self) -> Result<()> {
        let all: Vec<Arc<StreamState>> = {
            let s = self.streams.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            s.open.values().cloned().collect()
        };
        all.iter().map(|s| s.drain(self.table())).fold(Ok(()), Result::and)
    }
}

impl Hip {
    /// Opens a device by its position among all that [`super::probe()`] finds. There is one per position in a process.
    ///
    /// # Errors
    /// `Device` when there is none, with what was looked for, and when the driver refuses it.
    pub fn open(index: usize) -> Result<Hip> {
        static OPEN: OnceLock<Mutex<BTreeMap<usize, Weak<Shared>>>> = OnceLock::new();
        let mut open = lock(OPEN.get_or_init(Mutex::default));
        if let Some(d) = open.get(&index).and_then(Weak::upgrade) {
            return Ok(Hip(d));
        }
        let Some((platform, info)) = probe::find(index) else {
            let n = probe().iter().map(|p| p.devices.len()).sum::<usize>();
            let text =
                if n == 0 { "there is no GPU".into() } else { format!("there is no GPU {index}; there are {n}") };
            let e = device_error(text).help("hip-onnx-runner --doctor tells what was looked for and how to mend it");
            let fixes = probe().iter().filter_map(|p| Some((p, p.fix.as_ref()?)));
            return Err(fixes.fold(e, |e, (p, fix)| match &p.failure {
                Some(f) => e.note(p.vendor, format!("{f}; {fix}")),
                None => e.note(p.vendor, fix.clone()),
            }));
        };
        let hip = Hip::with_platform(platform, info)?;
        open.insert(index, Arc::downgrade(&hip.0));
        Ok(hip)
    }

    /// Opens a device of a platform.
    ///
    /// # Errors
    /// As [`Hip::open`].
    pub fn with_platform(platform: Arc<dyn Platform>, info: &DeviceInfo) -> Result<Hip> {
        let ordinal = info.ordinal;
        // SAFETY: an ordinal of this platform.
        unsafe { platform.table().set_device(ordinal)? };
        let arch = platform.arch(ordinal)?;
        Ok(Hip(Arc::new(Shared {
            platform,
            ordinal,
            name: info.name.clone(),
            arch,
            total: info.memory_bytes,
            meter: Meter::default(),
            memory: Mutex::default(),
            streams: RwLock::default(),
            events: Mutex::default(),
            compiled: Mutex::default(),
        })))
    }

    /// The vendor's name of it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its architecture as the driver says it, as `gfx942:sramecc+:xnack-`.
    pub fn arch(&self) -> &str {
        &self.0.arch
    }

    /// The target to compile for so that a model runs here, as `hip:gfx942`.
    ///
    /// # Errors
    /// `Unsupported` when no code is generated for its architecture, with the known ones.
    pub fn target(&self) -> Result<String> {
        let base = self.0.arch.split(':').next().unwrap_or(&self.0.arch);
        let fits = |a: &&Arch| a.platform.name() == self.0.platform.prefix() && a.runs_on(base);
        kernels::gpu::arch::ARCHS.iter().rev().find(fits).map(Arch::target).ok_or_else(|| {
            let why = Arch::find(base).err().unwrap_or_else(|| format!("no code is generated for {base}"));
            Diagnostic::new(ErrorKind::Unsupported, why).help("run on another device or on the cpu")
        })
    }

    /// Compiles kernels for this device by the vendor's run-time compiler: C++ without includes, kernels `extern "C"`.
    ///
    /// # Errors
    /// `Unsupported` when the compiler is not there, `Device` with its log.
    pub fn compile(&self, source: &str) -> Result<Vec<u8>> {
        self.0.platform.compile(source, &self.0.arch)
    }

    /// Allocations that were freed and wait for queued work.
    pub fn n_retired(&self) -> usize {
        lock(&self.0.memory).retired.len()
    }
}

impl std::fmt::Debug for Hip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hip({}, {})", self.0.name, self.0.arch)
    }
}

impl Device for Hip {
    fn properties(&self) -> Properties {
        Properties {
            name: "hip",
            host_is_device: false,
            executes: true,
            checks: false,
            asynchronous: true,
            align: ALIGN,
        }
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { total: self.0.total, ..self.0.meter.info() }
    }

    fn alloc(&self, space: Space, bytes: usize) -> Result<Allocation> {
        let d = &*self.0;
        d.enter()?;
        if space == Space::Device && u64::try_from(bytes).map_or(true, |b| b > d.total) {
            return Err(device_error(format!("{bytes} bytes are needed at once; {} has {}", d.name, d.total))
                .help("run with smaller extents"));
        }
        let addr = match d.try_alloc(space, bytes) {
            // Memory that only waits for queued work may be enough.
            Err(f) if f.status == flag::OUT_OF_MEMORY && self.n_retired() > 0 => {
                d.drain_all()?;
                d.reap()?;
                d.try_alloc(space, bytes)
            }
            other => other,
        };
        let addr = addr.map_err(|f| {
            let (mut free, mut total) = (0, 0);
            // SAFETY: writes two numbers.
            let asked = unsafe { d.table().mem_info(&mut free, &mut total) };
            let e = Diagnostic::from(f).note("for", format!("{bytes} bytes of {space:?} memory on {}", d.name));
            if asked.is_ok() { e.note("free", format!("{free} bytes of {total}")) } else { e }
        })?;
        let a = Allocation { addr, bytes, space };
        d.meter.add(bytes);
        if space == Space::HostMapped
            && let Err(e) = d.check_mapped(addr)
        {
            let _ = d.release(&a);
            return Err(e);
        }
        lock(&d.memory).live.insert(&a);
        Ok(a)
    }

    unsafe fn free(&self, a: Allocation) -> Result<()> {
        let d = &*self.0;
        d.enter()?;
        let after: Vec<(u64, u64)> = {
            let s = d.streams.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            s.open.iter().filter_map(|(&id, s)| Some((id, s.busy()?))).collect()
        };
        {
            let mut m = lock(&d.memory);
            m.live.remove(&a)?;
            if !after.is_empty() {
                m.retired.push(Retired { allocation: a, after });
                return Ok(());
            }
        }
        d.release(&a)
    }

    unsafe fn copy(&self, stream: Stream, dst: (usize, Space), src: (usize, Space), bytes: usize) -> Result<()> {
        let d = &*self.0;
        let s = d.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        d.enter()?;
        let t = d.table();
        let pinned = |addr: usize| lock(&d.memory).live.find(addr).is_some_and(|(start, len, _)| addr - start < len);
        // SAFETY: the caller answers for both ranges.
        unsafe {
            match (dst.1, src.1) {
                (Space::Device, Space::Device) => {
                    s.mark();
                    Ok(t.memcpy_dtod_async(pointer(dst.0), pointer(src.0), bytes, s.raw())?)
                }
                // Mapped memory is pinned, and its owner keeps it as long as work is queued.
                (Space::Device, Space::HostMapped) => s.upload(t, dst.0, src.0, bytes, true),
                (Space::HostMapped, Space::Device) => s.download(t, dst.0, src.0, bytes, true),
                (Space::Device, Space::Host) => s.upload(t, dst.0, src.0, bytes, false),
                (Space::Host, Space::Device) => s.download(t, dst.0, src.0, bytes, pinned(dst.0)),
                // Both are the host's: done here, after what was queued.
                _ => {
                    s.drain(t)?;
                    super::super::cpu::copy_bytes(dst.0, src.0, bytes);
                    Ok(())
                }
            }
        }
    }

    fn load(&self, artifact: &Artifact) -> Result<Loaded> {
        self.0.enter()?;
        let code = Code::load(&self.0, artifact).map_err(|e| match artifact.path() {
            Some(p) => e.note("file", p.display().to_string()),
            None => e,
        })?;
        Ok(Loaded(Some(Arc::new(code))))
    }

    unsafe fn launch(&self, stream: Stream, _: &dyn Team, loaded: &Loaded, work: &Work<'_>) -> Result<()> {
        let s = self.0.stream(stream)?;
        let code = code_of(loaded)?;
        self.0.enter()?;
        s.mark();
        // SAFETY: the caller's promise.
        unsafe {
            match *work {
                Work::Generated { kernel, args, points, .. } => code.launch_generated(s.raw(), kernel, args, points),
                Work::Catalog { id, bufs, ints, scalars, .. } => code.launch_catalog(s.raw(), id, bufs, ints, scalars),
            }
        }
    }

    unsafe fn store_ints(
        &self,
        stream: Stream,
        loaded: &Loaded,
        dst: usize,
        dtype: DType,
        values: &[i64],
    ) -> Result<()> {
        // The same refusals as elsewhere.
        int_bytes(dtype, values)?;
        let s = self.0.stream(stream)?;
        let code = code_of(loaded)?;
        self.0.enter()?;
        s.mark();
        // SAFETY: the caller's promise.
        unsafe { code.store_ints(s.raw(), dst, dtype, values) }
    }

    fn stream(&self) -> Result<Stream> {
        self.0.enter()?;
        let state = Arc::new(StreamState::new(self.0.table())?);
        let mut s = self.0.streams.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        s.last += 1;
        let id = s.last;
        s.open.insert(id, state);
        Ok(Stream(id))
    }

    fn close_stream(&self, stream: Stream) -> Result<()> {
        let s = self.0.stream(stream)?;
        self.0.enter()?;
        let closed = s.close(self.0.table());
        {
            let mut all = self.0.streams.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            all.open.remove(&stream.0);
        }
        closed.and(self.0.reap())
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        let s = self.0.stream(stream)?;
        self.0.enter()?;
        let t = self.0.table();
        let event = match lock(&self.0.events).pop() {
            Some(e) => e,
            None => {
                let mut e: Handle = null_mut();
                // SAFETY: writes a handle.
                unsafe { t.event_create(&mut e, flag::EVENT_DEFAULT)? };
                e.expose_provenance()
            }
        };
        s.mark();
        // SAFETY: a live event and a live stream.
        unsafe { t.event_record(pointer(event), s.raw())? };
        Ok(Event(u64::try_from(event).unwrap_or(0)))
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64> {
        self.0.enter()?;
        let handle = |e: Event| pointer(usize::try_from(e.0).unwrap_or(0));
        let (t, mut ms) = (self.0.table(), 0f32);
        // SAFETY: events that `record` made.
        unsafe {
            t.event_synchronize(handle(to))?;
            t.event_elapsed(&mut ms, handle(from), handle(to))?;
        }
        if ms < 0.0 {
            return Err(device_error("the second event was recorded before the first"));
        }
        Ok(std::time::Duration::try_from_secs_f64(f64::from(ms) * 1e-3)
            .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn forget(&self, event: Event) {
        if let Ok(e) = usize::try_from(event.0) {
            lock(&self.0.events).push(e);
        }
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let s = self.0.stream(stream)?;
        self.0.enter()?;
        let waited = s.synchronize(self.0.table());
        // Memory that cannot be freed after a failure is the failure's consequence: the wait's error says more.
        waited.and(self.0.reap())
    }
}

/// What [`Hip::load`] kept.
fn code_of(loaded: &Loaded) -> Result<&Code> {
    let code = loaded.0.as_ref().and_then(|l| l.downcast_ref::<Code>());
    code.ok_or_else(|| crate::run::internal("a kernel is launched on a GPU without loaded code"))
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        let t = self.platform.table();
        let streams = self.streams.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for s in streams.open.values() {
            let _ = s.close(t);
        }
        let events = self.events.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for &e in events.iter() {
            // SAFETY: made by this device, held by nobody.
            let _ = unsafe { t.event_destroy(pointer(e)) };
        }
        streams.open.clear();
        let _ = self.reap();
    }
}
