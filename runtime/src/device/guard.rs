//! The CPU behind walls: device memory is accessible only while a copy or a kernel of the device is running, so host code that
//! touches it faults at once. The end of an allocation abuts a page that is never accessible; the bytes that alignment leaves
//! between the two are filled with a pattern and looked at after every call. New memory is filled with 0xff: NaN for floats.
//! A fault names the allocation that was touched before it ends the process (`fault.rs`).

use super::fault::{self, Guarded, Watch};
use super::region::{ALIGN, Clock, Live, Meter, PAGE, Region, check_size};
use super::*;
use crate::team::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What lies behind an allocation up to the page that cannot be touched.
const CANARY: u8 = 0xc5;
/// What new memory is filled with.
const FRESH: u8 = 0xff;

/// See the module.
#[derive(Debug)]
pub struct Guard {
    meter: Meter,
    clock: Clock,
    state: Mutex<State>,
    /// After the memory, so that the handler is there as long as blocks are.
    _watch: Watch,
}

#[derive(Debug, Default)]
struct State {
    live: Live,
    blocks: BTreeMap<usize, Block>,
    /// Calls that are running; memory is accessible while there are any.
    n_open: usize,
}

#[derive(Debug)]
struct Block {
    region: Region,
    /// Bytes of the region before the page that is never accessible.
    usable: usize,
    addr: usize,
    bytes: usize,
    space: Space,
}

impl Block {
    fn new(space: Space, bytes: usize) -> Result<Block> {
        let too_big = || device_error(format!("{bytes} bytes cannot be mapped"));
        let padded = bytes.checked_next_multiple_of(ALIGN).ok_or_else(too_big)?;
        let usable = padded.max(1).checked_next_multiple_of(PAGE).ok_or_else(too_big)?;
        let region = Region::new(usable.checked_add(PAGE).ok_or_else(too_big)?, true)?;
        let addr = region.addr() + (usable - padded);
        fault::insert(region.addr(), Guarded { usable, addr, bytes, space, behind: PAGE });
        Ok(Block { region, usable, addr, bytes, space })
    }
    fn open(&self) -> Result<()> {
        self.region.protect(0, self.usable, true)
    }
    fn close(&self) -> Result<()> {
        if self.space == Space::Device { self.region.protect(0, self.usable, false) } else { Ok(()) }
    }
    fn slack(&self) -> (usize, usize) {
        (self.addr + self.bytes, self.region.addr() + self.usable)
    }
    /// Fills a block that is accessible.
    fn fill(&self) {
        let (slack, end) = self.slack();
        let at = |a: usize| std::ptr::with_exposed_provenance_mut::<u8>(a);
        // SAFETY: the whole range is this block's own accessible pages, not handed out yet.
        unsafe {
            std::ptr::write_bytes(at(self.addr), FRESH, self.bytes);
            std::ptr::write_bytes(at(slack), CANARY, end - slack);
        }
    }
    /// Looks at the pattern of a block that is accessible.
    fn check(&self) -> Result<()> {
        let (slack, end) = self.slack();
        for a in slack..end {
            // SAFETY: within this block's accessible pages; kernels own only bytes before `slack`.
            if unsafe { std::ptr::with_exposed_provenance::<u8>(a).read() } != CANARY {
                return Err(device_error(format!(
                    "something wrote {} bytes behind the end of an allocation of {} bytes at {:#x}",
                    a - slack + 1,
                    self.bytes,
                    self.addr
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        fault::remove(self.region.addr());
    }
}

impl Guard {
    /// A new one, without memory.
    pub fn new() -> Guard {
        Guard { meter: Meter::default(), clock: Clock::new(), state: Mutex::default(), _watch: Watch::new() }
    }

    /// Runs `f` with device memory accessible.
    fn opened(&self, check: impl FnOnce(&Live) -> Result<()>, f: impl FnOnce() -> Result<()>) -> Result<()> {
        /// Closes memory however the work ends.
        struct Closing<'g>(&'g Guard);
        impl Closing<'_> {
            fn close(&self) -> Result<()> {
                let mut s = lock(&self.0.state);
                s.n_open -= 1;
                if s.n_open > 0 {
                    return Ok(());
                }
                let checked = s.blocks.values().try_for_each(Block::check);
                s.blocks.values().try_for_each(Block::close)?;
                checked
            }
        }
        impl Drop for Closing<'_> {
            fn drop(&mut self) {
                let _ = self.close();
            }
        }
        {
            let mut s = lock(&self.state);
            check(&s.live)?;
            if s.n_open == 0 {
                s.blocks.values().try_for_each(Block::open)?;
            }
            s.n_open += 1;
        }
        let closing = Closing(self);
        f()?;
        let closed = closing.close();
        std::mem::forget(closing);
        closed
    }
}

impl Default for Guard {
    fn default() -> Guard {
        Guard::new()
    }
}

impl Device for Guard {
    fn properties(&self) -> Properties {
        Properties {
            name: "guard",
            host_is_device: false,
            executes: true,
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
        let block = Block::new(space, bytes)?;
        block.open()?;
        block.fill();
        let a = Allocation { addr: block.addr, bytes, space };
        let mut s = lock(&self.state);
        if s.n_open == 0 {
            block.close()?;
        }
        s.live.insert(&a);
        s.blocks.insert(a.addr, block);
        self.meter.add(bytes);
        Ok(a)
    }
    unsafe fn free(&self, a: Allocation) -> Result<()> {
        let mut s = lock(&self.state);
        s.live.remove(&a)?;
        self.meter.sub(a.bytes);
        match s.blocks.remove(&a.addr) {
            Some(block) => {
                block.open()?;
                block.check()
            }
            None => Ok(()),
        }
    }
    unsafe fn copy(&self, stream: Stream, dst: (usize, Space), src: (usize, Space), bytes: usize) -> Result<()> {
        self.clock.check(stream)?;
        let check = |live: &Live| {
            live.check_range("the source", src.0, src.1, bytes)?;
            live.check_range("the destination", dst.0, dst.1, bytes)
        };
        self.opened(check, || {
            if bytes > 0 {
                // SAFETY: the caller answers for both ranges; device memory is accessible now.
                unsafe { super::cpu::copy_bytes(dst.0, src.0, bytes) };
            }
            Ok(())
        })
    }
    unsafe fn launch(&self, stream: Stream, team: &dyn Team, _: &Loaded, work: &Work<'_>) -> Result<()> {
        self.clock.check(stream)?;
        let check = |live: &Live| work.buffers().iter().enumerate().try_for_each(|(i, &a)| live.check_operand(i, a));
        // SAFETY: the caller answers for the arguments; device memory is accessible now.
        self.opened(check, || unsafe { run_on_host(team, work) })
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
