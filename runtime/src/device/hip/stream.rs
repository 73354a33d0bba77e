//! A stream with what its copies need: pinned memory between the host's and the device's, and the copies to the host that wait for
//! the stream.

use super::table::{DevicePtr, Handle, Table, flag};
use std::ffi::c_void;
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use tensor::{Diagnostic, Result};

/// Longest copy that is staged whole; longer ones go through two windows, and the call waits.
pub(super) const STAGED_BYTES: usize = 64 << 20;
/// Bytes of a window.
pub(super) const WINDOW_BYTES: usize = 8 << 20;
/// Least size of a block of pinned memory.
const BLOCK_BYTES: usize = 1 << 20;

/// Pinned host memory.
#[derive(Debug)]
struct Pinned {
    addr: usize,
    bytes: usize,
}

/// A copy to the host: from pinned memory to where the caller wants it, once the stream's work is done.
#[derive(Debug)]
struct Pending {
    dst: usize,
    src: usize,
    bytes: usize,
}

/// Pinned memory of a stream, taken front to back and free again after a wait.
#[derive(Debug, Default)]
struct Staging {
    blocks: Vec<Pinned>,
    /// The block that is being filled, and its used bytes.
    at: (usize, usize),
    pending: Vec<Pending>,
    windows: Option<[Window; 2]>,
}

#[derive(Debug)]
struct Window {
    memory: Pinned,
    /// A `Handle`.
    event: usize,
}

/// A stream. Its work is queued by one thread at a time.
#[derive(Debug)]
pub(super) struct StreamState {
    raw: usize,
    /// Pieces of work queued, and how many of them are known to be done.
    queued: AtomicU64,
    done: AtomicU64,
    staging: Mutex<Staging>,
}

fn pointer(addr: usize) -> *mut c_void {
    with_exposed_provenance_mut(addr)
}

fn pin(t: &Table, bytes: usize) -> Result<Pinned> {
    let mut p: *mut c_void = null_mut();
    // SAFETY: writes an address.
    unsafe { t.host_malloc(&mut p, bytes, flag::HOST_PORTABLE | flag::HOST_MAPPED) }.map_err(|f| {
        Diagnostic::from(f).note("for", format!("{bytes} bytes of pinned memory between host and device"))
    })?;
    Ok(Pinned { addr: p.expose_provenance(), bytes })
}

/// # Safety
/// Both ranges are live host memory and do not overlap.
unsafe fn host_copy(dst: usize, src: usize, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(
            with_exposed_provenance::<u8>(src),
            with_exposed_provenance_mut::<u8>(dst),
            bytes,
        );
    }
}

impl Staging {
    /// Room for `bytes`; stays untouched until the next wait.
    fn take(&mut self, t: &Table, bytes: usize) -> Result<usize> {
        let want = bytes.next_multiple_of(256);
        loop {
            let (i, used) = self.at;
            match self.blocks.get(i) {
                Some(b) if b.bytes - used >= want => {
                    self.at.1 += want;
                    return Ok(b.addr + used);
                }
                Some(_) => self.at = (i + 1, 0),
                None => self.blocks.push(pin(t, want.max(BLOCK_BYTES).next_power_of_two())?),
            }
        }
    }

    fn windows(&mut self, t: &Table) -> Result<&[Window; 2]> {
        if self.windows.is_none() {
            let window = || -> Result<Window> {
                let memory = pin(t, WINDOW_BYTES)?;
                let mut event: Handle = null_mut();
                // SAFETY: writes a handle.
                let made = unsafe { t.event_create(&mut event, flag::EVENT_NO_TIMING) };
                if let Err(f) = made {
                    // SAFETY: just made, not used.
                    let _ = unsafe { t.host_free(pointer(memory.addr)) };
                    return Err(f.into());
                }
                Ok(Window { memory, event: event.expose_provenance() })
            };
            self.windows = Some([window()?, window()?]);
        }
        self.windows.as_ref().ok_or_else(|| crate::run::internal("no windows"))
    }
}

impl StreamState {
    pub(super) fn new(t: &Table) -> Result<StreamState> {
        let mut raw: Handle = null_mut();
        // SAFETY: writes a handle.
        unsafe { t.stream_create(&mut raw, flag::STREAM_NON_BLOCKING)? };
        let zero = || AtomicU64::new(0);
        Ok(StreamState { raw: raw.expose_provenance(), queued: zero(), done: zero(), staging: Mutex::default() })
    }

    pub(super) fn raw(&self) -> Handle {
        pointer(self.raw)
    }

    /// Says that a piece of work was queued.
    pub(super) fn mark(&self) {
        self.queued.fetch_add(1, AcqRel);
    }

    /// The number of the last piece of work, if it may still be under way.
    pub(super) fn busy(&self) -> Option<u64> {
        let queued = self.queued.load(Acquire);
        (queued > self.done.load(Acquire)).then_some(queued)
    }

    /// Whether the piece of that number is done.
    pub(super) fn has_done(&self, number: u64) -> bool {
        self.done.load(Acquire) >= number
    }

    /// Waits for the stream alone, without the copies to the host.
    pub(super) fn drain(&self, t: &Table) -> Result<()> {
        let until = self.queued.load(Acquire);
        // SAFETY: a live stream.
        let waited = unsafe { t.stream_synchronize(self.raw()) };
        // After a failure nothing of it will run any more.
        self.done.fetch_max(until, AcqRel);
        Ok(waited?)
    }

    /// Waits for the stream and finishes the copies to the host.
    pub(super) fn synchronize(&self, t: &Table) -> Result<()> {
        let mut s = crate::team::lock(&self.staging);
        let pending = std::mem::take(&mut s.pending);
        self.drain(t)?;
        s.at = (0, 0);
        for p in pending {
            // SAFETY: pinned memory of this stream, and a destination that its owner keeps until this wait.
            unsafe { host_copy(p.dst, p.src, p.bytes) };
        }
        Ok(())
    }

    /// Queues a copy to the device. Pinned sources are used in place.
    ///
    /// # Safety
    /// Both ranges are live; a pinned source stays as it is until the stream was waited for.
    pub(super) unsafe fn upload(&self, t: &Table, dst: usize, src: usize, bytes: usize, pinned: bool) -> Result<()> {
        if bytes > STAGED_BYTES && !pinned {
            // SAFETY: the caller's promise.
            return unsafe { self.upload_in_windows(t, dst, src, bytes) };
        }
        let from = if pinned {
            src
        } else {
            let at = crate::team::lock(&self.staging).take(t, bytes)?;
            // SAFETY: the caller's source, and room of this length.
            unsafe { host_copy(at, src, bytes) };
            at
        };
        self.mark();
        // SAFETY: device memory and pinned memory of this length.
        Ok(unsafe { t.memcpy_htod_async(pointer(dst), pointer(from), bytes, self.raw()) }?)
    }

    /// Queues a copy from the device; the bytes arrive with the next wait.
    ///
    /// # Safety
    /// Both ranges are live until the stream was waited for.
    pub(super) unsafe fn download(&self, t: &Table, dst: usize, src: usize, bytes: usize, pinned: bool) -> Result<()> {
        if bytes > STAGED_BYTES && !pinned {
            // SAFETY: the caller's promise.
            return unsafe { self.download_in_windows(t, dst, src, bytes) };
        }
        let mut s = crate::team::lock(&self.staging);
        let to: DevicePtr = if pinned { pointer(dst) } else { pointer(s.take(t, bytes)?) };
        self.mark();
        // SAFETY: pinned memory and device memory of this length.
        unsafe { t.memcpy_dtoh_async(to, pointer(src), bytes, self.raw())? };
        if !pinned {
            s.pending.push(Pending { dst, src: to.expose_provenance(), bytes });
        }
        Ok(())
    }

    /// # Safety
    /// Both ranges are live.
    unsafe fn upload_in_windows(&self, t: &Table, dst: usize, src: usize, bytes: usize) -> Result<()> {
        let mut s = crate::team::lock(&self.staging);
        let windows = s.windows(t)?;
        for (i, at) in (0..bytes).step_by(WINDOW_BYTES).enumerate() {
            let n = WINDOW_BYTES.min(bytes - at);
            let Some(w) = windows.get(i % 2) else { break };
            // SAFETY: a window is written again only after the copy out of it; ranges are parts of the caller's.
            unsafe {
                if i >= 2 {
                    t.event_synchronize(pointer(w.event))?;
                }
                host_copy(w.memory.addr, src + at, n);
                self.mark();
                t.memcpy_htod_async(pointer(dst + at), pointer(w.memory.addr), n, self.raw())?;
                t.event_record(pointer(w.event), self.raw())?;
            }
        }
        for w in windows {
            // SAFETY: an event of this stream. The next user of the windows finds them free.
            unsafe { t.event_synchronize(pointer(w.event))? };
        }
        Ok(())
    }

    /// # Safety
    /// Both ranges are live.
    unsafe fn download_in_windows(&self, t: &Table, dst: usize, src: usize, bytes: usize) -> Result<()> {
        let mut s = crate::team::lock(&self.staging);
        let windows = s.windows(t)?;
        let mut before: Option<(usize, usize, usize)> = None;
        let starts = (0..bytes).step_by(WINDOW_BYTES).map(Some).chain([None]);
        for (i, start) in starts.enumerate() {
            // SAFETY: a window is read only after the copy into it; ranges are parts of the caller's.
            unsafe {
                let next = match (start, windows.get(i % 2)) {
                    (Some(at), Some(w)) => {
                        let n = WINDOW_BYTES.min(bytes - at);
                        self.mark();
                        t.memcpy_dtoh_async(pointer(w.memory.addr), pointer(src + at), n, self.raw())?;
                        t.event_record(pointer(w.event), self.raw())?;
                        Some((i % 2, at, n))
                    }
                    _ => None,
                };
                if let Some((k, at, n)) = before
                    && let Some(w) = windows.get(k)
                {
                    t.event_synchronize(pointer(w.event))?;
                    host_copy(dst + at, w.memory.addr, n);
                }
                before = next;
            }
        }
        Ok(())
    }

    /// Ends it: waits, then gives everything back.
    pub(super) fn close(&self, t: &Table) -> Result<()> {
        let waited = self.synchronize(t);
        let mut s = crate::team::lock(&self.staging);
        let windows = s.windows.take().into_iter().flatten();
        let mut freed = Ok(());
        let mut keep = |r: std::result::Result<(), super::table::Failure>| {
            if freed.is_ok() {
                freed = r;
            }
        };
        // SAFETY: nothing of the stream is under way; each is given back once.
        unsafe {
            for w in windows {
                keep(t.event_destroy(pointer(w.event)));
                keep(t.host_free(pointer(w.memory.addr)));
            }
            for b in s.blocks.drain(..) {
                keep(t.host_free(pointer(b.addr)));
            }
            s.at = (0, 0);
            keep(t.stream_destroy(self.raw()));
        }
        waited?;
        Ok(freed?)
    }
}
