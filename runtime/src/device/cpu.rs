//! The CPU: device memory is host memory, and work is done when a call returns.

use super::region::{ALIGN, Clock, Meter, Region, check_size};
use super::*;
use std::alloc::Layout;

/// From here on memory is mapped on its own, with huge pages.
const BIG: usize = 2 << 20;

/// See the module.
#[derive(Debug)]
pub struct Cpu {
    meter: Meter,
    clock: Clock,
}

impl Cpu {
    /// The CPU of this process.
    pub fn new() -> Cpu {
        Cpu { meter: Meter::default(), clock: Clock::new() }
    }
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu::new()
    }
}

fn small_layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGN).map_err(|e| device_error(format!("{bytes} bytes: {e}")))
}

impl Device for Cpu {
    fn properties(&self) -> Properties {
        Properties {
            name: "cpu",
            host_is_device: true,
            executes: true,
            checks: false,
            asynchronous: false,
            align: ALIGN,
        }
    }
    fn memory(&self) -> MemoryInfo {
        self.meter.info()
    }
    fn alloc(&self, space: Space, bytes: usize) -> Result<Allocation> {
        check_size(bytes)?;
        let addr = if bytes >= BIG {
            let region = Region::new(bytes, false)?;
            region.huge();
            let addr = region.addr();
            std::mem::forget(region);
            addr
        } else {
            // SAFETY: the layout has a size.
            let p = unsafe { std::alloc::alloc(small_layout(bytes)?) };
            if p.is_null() {
                return Err(device_error(format!("no memory for {bytes} bytes")));
            }
            p.expose_provenance()
        };
        self.meter.add(bytes);
        Ok(Allocation { addr, bytes, space })
    }
    unsafe fn free(&self, a: Allocation) -> Result<()> {
        self.meter.sub(a.bytes);
        if a.bytes >= BIG {
            Region::adopt(a.addr, a.bytes);
        } else {
            // SAFETY: `alloc` made it with this layout, and the caller gives it up.
            unsafe { std::alloc::dealloc(std::ptr::with_exposed_provenance_mut(a.addr), small_layout(a.bytes)?) };
        }
        Ok(())
    }
    unsafe fn copy(&self, _: Stream, dst: (usize, Space), src: (usize, Space), bytes: usize) -> Result<()> {
        if bytes > 0 {
            // SAFETY: the caller answers for both ranges.
            unsafe { copy_bytes(dst.0, src.0, bytes) };
        }
        Ok(())
    }
    unsafe fn launch(&self, _: Stream, team: &dyn Team, _: &Loaded, work: &Work<'_>) -> Result<()> {
        // SAFETY: the caller answers for the arguments.
        unsafe { run_on_host(team, work) }
    }
    fn stream(&self) -> Result<Stream> {
        self.clock.stream()
    }
    fn close_stream(&self, stream: Stream) -> Result<()> {
        self.clock.close(stream)
    }
    fn record(&self, stream: Stream) -> Result<Event> {
        self.clock.check(stream)?;
        Ok(self.clock.now())
    }
    fn elapsed_ns(&self, from: Event, to: Event) -> Result<u64> {
        Clock::elapsed_ns(from, to)
    }
    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.clock.check(stream)
    }
}

/// # Safety
/// Both ranges are live and do not overlap.
pub(super) unsafe fn copy_bytes(dst: usize, src: usize, bytes: usize) {
    let (dst, src) = (std::ptr::with_exposed_provenance_mut::<u8>(dst), std::ptr::with_exposed_provenance::<u8>(src));
    // SAFETY: the caller's promise; `copy` rather than `copy_nonoverlapping` keeps an overlap defined.
    unsafe { std::ptr::copy(src, dst, bytes) };
}
