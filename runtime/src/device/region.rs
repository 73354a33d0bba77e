//! What the CPU devices share: counters, a clock, streams, and mapped regions.

use super::{Allocation, Event, MemoryInfo, Space, Stream, device_error, physical_memory};
use crate::team::lock;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tensor::Result;

pub(crate) const PAGE: usize = 4096;
pub(crate) const ALIGN: usize = 256;

/// Live and peak bytes.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    live: AtomicU64,
    peak: AtomicU64,
    n: AtomicU64,
}

impl Meter {
    pub(crate) fn add(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let live = self.live.fetch_add(bytes, Relaxed).saturating_add(bytes);
        self.peak.fetch_max(live, Relaxed);
        self.n.fetch_add(1, Relaxed);
    }
    pub(crate) fn sub(&self, bytes: usize) {
        self.live.fetch_sub(u64::try_from(bytes).unwrap_or(u64::MAX), Relaxed);
    }
    pub(crate) fn info(&self) -> MemoryInfo {
        MemoryInfo {
            total: physical_memory(),
            live: self.live.load(Relaxed),
            peak: self.peak.load(Relaxed),
            n_allocs: self.n.load(Relaxed),
        }
    }
}

/// Refuses what can never fit, so that the system need not end the process for it.
pub(crate) fn check_size(bytes: usize) -> Result<()> {
    let total = physical_memory();
    if u64::try_from(bytes).is_ok_and(|b| b <= total) {
        return Ok(());
    }
    Err(device_error(format!("{bytes} bytes are needed at once; the machine has {total}"))
        .help("run with smaller extents"))
}

/// Streams and events of a device that finishes work at once.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    streams: Mutex<(u64, BTreeSet<u64>)>,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { start: Instant::now(), streams: Mutex::default() }
    }
    pub(crate) fn stream(&self) -> Result<Stream> {
        let mut s = lock(&self.streams);
        s.0 += 1;
        let id = s.0;
        s.1.insert(id);
        Ok(Stream(id))
    }
    pub(crate) fn check(&self, stream: Stream) -> Result<()> {
        if lock(&self.streams).1.contains(&stream.0) {
            return Ok(());
        }
        Err(device_error(format!("stream {} is not open", stream.0)))
    }
    pub(crate) fn close(&self, stream: Stream) -> Result<()> {
        if lock(&self.streams).1.remove(&stream.0) {
            return Ok(());
        }
        Err(device_error(format!("stream {} is not open", stream.0)))
    }
    pub(crate) fn now(&self) -> Event {
        Event(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
    pub(crate) fn elapsed_ns(from: Event, to: Event) -> Result<u64> {
        let ns = to.0.checked_sub(from.0);
        ns.ok_or_else(|| device_error("the second event was recorded before the first"))
    }
}

/// Live allocations by address, for the devices that check.
#[derive(Debug, Default)]
pub(crate) struct Live(BTreeMap<usize, (usize, Space)>);

impl Live {
    pub(crate) fn insert(&mut self, a: &Allocation) {
        self.0.insert(a.addr, (a.bytes, a.space));
    }
    pub(crate) fn remove(&mut self, a: &Allocation) -> Result<()> {
        match self.0.get(&a.addr) {
            Some(&(bytes, space)) if (bytes, space) != (a.bytes, a.space) => Err(device_error(format!(
                "{:#x} is freed as {} bytes of {:?} memory but was allocated as {bytes} of {space:?}",
                a.addr, a.bytes, a.space
            ))),
            Some(_) => {
                self.0.remove(&a.addr);
                Ok(())
            }
            None => Err(device_error(format!("{:#x} is freed but not allocated, or freed twice", a.addr))),
        }
    }
    /// The allocation an address lies in, or just after the end of.
    pub(crate) fn find(&self, addr: usize) -> Option<(usize, usize, Space)> {
        let (&start, &(bytes, space)) = self.0.range(..=addr).next_back()?;
        (addr - start <= bytes).then_some((start, bytes, space))
    }
    /// Checks that a range lies in one live allocation of a space; host ranges may be anybody's memory but not the device's.
    pub(crate) fn check_range(&self, what: &str, addr: usize, space: Space, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match self.find(addr) {
            Some((start, len, s)) if addr - start < len || s == space => {
                if s != space && !(s == Space::HostMapped && space == Space::Host) {
                    return Err(device_error(format!(
                        "{what} {addr:#x} is said to be {space:?} memory but is {s:?} memory"
                    )));
                }
                if bytes > len - (addr - start) {
                    let text =
                        format!("{what} {addr:#x} of {bytes} bytes runs past the end of its allocation of {len} bytes");
                    return Err(device_error(text));
                }
                Ok(())
            }
            _ if space == Space::Host && addr != 0 => Ok(()),
            _ => Err(device_error(format!(
                "{what} {addr:#x} of {bytes} bytes is in no live allocation of {space:?} memory"
            ))),
        }
    }
    /// Checks an address given to a kernel.
    pub(crate) fn check_operand(&self, position: usize, addr: u64) -> Result<()> {
        if addr == 0 {
            return Ok(());
        }
        match usize::try_from(addr).ok().and_then(|a| self.find(a)) {
            Some((_, _, Space::Device | Space::HostMapped)) => Ok(()),
            Some((_, _, Space::Host)) => Err(device_error(format!(
                "operand {position} at {addr:#x} is host memory, which kernels may not touch"
            ))),
            None => {
                Err(device_error(format!("operand {position} at {addr:#x} is in no live allocation of the device")))
            }
        }
    }
}

/// A private anonymous mapping.
#[derive(Debug)]
pub(crate) struct Region {
    addr: usize,
    len: usize,
}

impl Region {
    /// `len` bytes rounded up to pages, without access when `reserve`.
    pub(crate) fn new(len: usize, reserve: bool) -> Result<Region> {
        let too_big = || device_error(format!("{len} bytes cannot be mapped"));
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(too_big)?;
        let prot = if reserve { ProtFlags::empty() } else { ProtFlags::READ | ProtFlags::WRITE };
        let flags = if reserve { MapFlags::PRIVATE | MapFlags::NORESERVE } else { MapFlags::PRIVATE };
        // SAFETY: a new mapping at an address of the system's choice overlaps nothing.
        let addr = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) };
        let addr = addr.map_err(|e| device_error(format!("{len} bytes cannot be mapped: {e}")))?;
        Ok(Region { addr: addr.addr(), len })
    }
    /// Ends a region given away with `mem::forget`.
    pub(crate) fn adopt(addr: usize, len: usize) {
        drop(Region { addr, len: len.next_multiple_of(PAGE) });
    }
    pub(crate) fn addr(&self) -> usize {
        self.addr
    }
    /// Asks for huge pages; a system without them is fine.
    pub(crate) fn huge(&self) {
        // SAFETY: the region is this mapping; the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(self.ptr(0), self.len, Advice::LinuxHugepage) };
    }
    fn ptr(&self, offset: usize) -> *mut std::ffi::c_void {
        std::ptr::with_exposed_provenance_mut(self.addr + offset)
    }
    /// Allows or forbids access to pages `offset..offset + len`.
    pub(crate) fn protect(&self, offset: usize, len: usize, access: bool) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        if offset.checked_add(len).is_none_or(|e| e > self.len) {
            return Err(device_error("pages outside a region"));
        }
        let flags = if access { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: the pages belong to this mapping.
        let done = unsafe { rustix::mm::mprotect(self.ptr(offset), len, flags) };
        done.map_err(|e| device_error(format!("pages cannot be protected: {e}")))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region owns the mapping; users hold allocations whose end precedes this.
        let _ = unsafe { rustix::mm::munmap(self.ptr(0), self.len) };
    }
}
