//! A device that runs nothing and checks every call: ranges lie in live allocations, nothing is freed twice or leaked, streams are
//! open. What it hands to the host is zero.

use super::region::{ALIGN, Clock, Live, Meter, Region, check_size};
use super::*;
use crate::team::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// See the module.
#[derive(Debug)]
pub struct Null {
    meter: Meter,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: Live,
    regions: BTreeMap<usize, Region>,
}

impl Null {
    /// A new one, without memory.
    pub fn new() -> Null {
        Null { meter: Meter::default(), clock: Clock::new(), state: Mutex::default() }
    }
}

impl Default for Null {
    fn default() -> Null {
        Null::new()
    }
}

impl Device for Null {
    fn properties(&self) -> Properties {
        Properties {
            name: "null",
            host_is_device: false,
            executes: false,
            checks: true,
            asynchronous: false,
            align: ALIGN,
        }
    }
    fn memory(&self) -> MemoryInfo {
        self.meter.info()
    }
    fn alloc(&self, space: Space, bytes: usize) -> Result<Allocation> {
        check_size(bytes)?;
        // Device memory is address space alone; host code that touches it faults.
        let region = Region::new(bytes, space == Space::Device)?;
        let a = Allocation { addr: region.addr(), bytes, space };
        let mut s = lock(&self.state);
        s.live.insert(&a);
        s.regions.insert(a.addr, region);
        self.meter.add(bytes);
        Ok(a)
    }
    unsafe fn free(&self, a: Allocation) -> Result<()> {
        let mut s = lock(&self.state);
        s.live.remove(&a)?;
        s.regions.remove(&a.addr);
        self.meter.sub(a.bytes);
        Ok(())
    }
    unsafe fn copy(&self, stream: Stream, dst: (usize, Space), src: (usize, Space), bytes: usize) -> Result<()> {
        self.clock.check(stream)?;
        let s = lock(&self.state);
        s.live.check_range("the source", src.0, src.1, bytes)?;
        s.live.check_range("the destination", dst.0, dst.1, bytes)?;
        if bytes == 0 || dst.1 == Space::Device {
            return Ok(());
        }
        let to = std::ptr::with_exposed_provenance_mut::<u8>(dst.0);
        if src.1 == Space::Device {
            // SAFETY: host memory the caller answers for; what comes from this device is zero.
            unsafe { std::ptr::write_bytes(to, 0, bytes) };
        } else {
            // SAFETY: host memory on both sides that the caller answers for.
            unsafe { super::cpu::copy_bytes(dst.0, src.0, bytes) };
        }
        Ok(())
    }
    fn load(&self, _: &artifact::Artifact) -> Result<Loaded> {
        Ok(Loaded::default())
    }
    unsafe fn launch(&self, stream: Stream, _: &dyn Team, _: &Loaded, work: &Work<'_>) -> Result<()> {
        self.clock.check(stream)?;
        let s = lock(&self.state);
        work.buffers().iter().enumerate().try_for_each(|(i, &a)| s.live.check_operand(i, a))
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
