//! Runs the threads of a block as fibers of one thread. A barrier is a meeting of the block, a wave operation a meeting of the wave;
//! between meetings a fiber runs alone, so that every run in one order gives the same result.
//!
//! Noticed: accesses outside what the launch may touch, reads of shared memory that nobody wrote, two threads at the same shared memory
//! without a barrier between them, meetings that not everybody comes to.

use super::wave;
use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;

/// Bytes between arguments of a wave operation.
pub(super) const SLOT: usize = 64;
const STACK_BYTES: usize = 64 << 10;

/// Wave operations; arguments as of the intrinsic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Op {
    Bpermute,
    Ballot,
    ReadLane,
    ReadFirstLane,
    Dpp,
    Swizzle,
    Mfma,
    Wmma11,
    Wmma12,
    Shuffle,
    MmaSync,
}
const OPS: [Op; 11] = [
    Op::Bpermute,
    Op::Ballot,
    Op::ReadLane,
    Op::ReadFirstLane,
    Op::Dpp,
    Op::Swizzle,
    Op::Mfma,
    Op::Wmma11,
    Op::Wmma12,
    Op::Shuffle,
    Op::MmaSync,
];

/// Memory that a launch may touch.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First address.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Whether the kernel may write it.
    pub writable: bool,
}

/// In which order the fibers of a block get their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By thread number.
    Forward,
    /// From the last thread on.
    Reverse,
}

/// What a suspended fiber waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Ready,
    Barrier(u32),
    Wave { op: Op, site: u32, args: usize, result: usize },
    Fault,
    Done,
}

/// Who touched two bytes of shared memory last. Threads are counted from 1; `u16::MAX` stands for several.
#[derive(Clone, Copy, Default)]
struct Shadow {
    write_epoch: u32,
    read_epoch: u32,
    writer: u16,
    reader: u16,
}
const SEVERAL: u16 = u16::MAX;

/// A kernel's shared memory with its shadow, which blocks pass on: what an earlier block did has an earlier epoch.
pub(super) struct Shared {
    regions: Vec<(Region, Vec<Shadow>)>,
    epoch: u32,
}

impl Shared {
    pub(super) fn new(regions: Vec<Region>) -> Shared {
        let shadow = |r: Region| (r, vec![Shadow::default(); r.bytes.div_ceil(2)]);
        Shared { regions: regions.into_iter().map(shadow).collect(), epoch: 0 }
    }
}

struct Block {
    thread: usize,
    wave: usize,
    ids: [u32; 3],
    regions: Vec<Region>,
    shared: Vec<(Region, Vec<Shadow>)>,
    first_epoch: u32,
    epoch: u32,
    stack: (usize, usize),
    yielder: *const Yielder<(), Wait>,
    fault: Option<String>,
    skip_barrier: Option<u32>,
}

thread_local! {
    static BLOCK: Cell<*mut Block> = const { Cell::new(std::ptr::null_mut()) };
}

/// The block that runs on this thread.
///
/// # Safety
/// Only called by code that `run_block` runs, and the reference is not kept across a suspension.
unsafe fn block<'a>() -> &'a mut Block {
    // SAFETY: `run_block` sets the pointer before it resumes a fiber, and the block outlives it.
    unsafe { &mut *BLOCK.get() }
}

fn suspend(wait: Wait) {
    // SAFETY: called by generated code inside a fiber; the yielder is that of the fiber that runs.
    unsafe { (*block().yielder).suspend(wait) };
}

/// Ends the fiber's run with an error; it is never resumed.
fn fault(why: String) -> ! {
    // SAFETY: as above.
    let b = unsafe { block() };
    b.fault = Some(format!("block {:?}, thread {}: {why}", b.ids, b.thread));
    suspend(Wait::Fault);
    // A fiber that failed gets no further turn.
    std::process::abort()
}

pub(super) extern "C" fn on_id(what: u32) -> u32 {
    // SAFETY: called by generated code inside a fiber.
    let b = unsafe { block() };
    match what {
        0 => b.thread as u32,
        1 => b.ids[0],
        2 => b.ids[1],
        _ => b.ids[2],
    }
}

pub(super) extern "C" fn on_mbcnt(high: u32, mask: u32, base: u32) -> u32 {
    // SAFETY: called by generated code inside a fiber.
    let b = unsafe { block() };
    let lane = (b.thread % b.wave) as u64;
    let below = (1u64 << lane) - 1;
    let part = if high == 1 { (below >> 32) as u32 } else { below as u32 };
    (part & mask).count_ones() + base
}

pub(super) extern "C" fn on_barrier(site: u32) {
    // SAFETY: called by generated code inside a fiber.
    if unsafe { block() }.skip_barrier == Some(site) {
        return;
    }
    suspend(Wait::Barrier(site));
}

pub(super) extern "C" fn on_wave(op: u32, site: u32, args: usize, result: usize) {
    let op = OPS[op as usize];
    suspend(Wait::Wave { op, site, args, result });
}

pub(super) extern "C" fn on_load(address: usize, n: usize) {
    access(address, n, false);
}

pub(super) extern "C" fn on_store(address: usize, n: usize) {
    access(address, n, true);
}

#[inline]
fn access(address: usize, n: usize, write: bool) {
    // SAFETY: called by generated code inside a fiber.
    let b = unsafe { block() };
    if address >= b.stack.0 && address + n <= b.stack.1 {
        return;
    }
    let (thread, epoch) = (b.thread as u16 + 1, b.epoch);
    for (region, shadow) in &mut b.shared {
        let Some(at) = address.checked_sub(region.address).filter(|at| at + n <= region.bytes) else { continue };
        for s in &mut shadow[at / 2..(at + n).div_ceil(2)] {
            if write {
                let read = s.read_epoch == epoch && s.reader != thread;
                let written = s.write_epoch == epoch && s.writer != thread;
                // Neighbouring bytes share a shadow.
                if n > 1 && (read || written) {
                    let what = if written { "wrote" } else { "read" };
                    let who = if written { s.writer } else { s.reader };
                    fault(format!(
                        "writes byte {at} of shared memory that thread {} {what} since the last barrier",
                        i32::from(who) - 1
                    ));
                }
                (s.write_epoch, s.writer) = (epoch, thread);
            } else {
                if s.write_epoch < b.first_epoch {
                    fault(format!("reads byte {at} of shared memory, which was never written"));
                }
                if n > 1 && s.write_epoch == epoch && s.writer != thread {
                    let other = i32::from(s.writer) - 1;
                    fault(format!("reads byte {at} of shared memory that thread {other} wrote since the last barrier"));
                }
                let same = s.read_epoch != epoch || s.reader == thread;
                (s.read_epoch, s.reader) = (epoch, if same { thread } else { SEVERAL });
            }
        }
        return;
    }
    let inside = |r: &&Region| address >= r.address && address + n <= r.address + r.bytes;
    match b.regions.iter().find(inside) {
        Some(r) if r.writable || !write => {}
        Some(r) => fault(format!("writes {n} bytes at offset {} of a buffer it may only read", address - r.address)),
        None => {
            let verb = if write { "writes" } else { "reads" };
            let near = b.regions.iter().min_by_key(|r| (r.address + r.bytes / 2).abs_diff(address));
            let offset = near.map_or(0, |r| address.wrapping_sub(r.address) as isize);
            let of = near.map_or(0, |r| r.bytes);
            fault(format!("{verb} {n} bytes outside every buffer: offset {offset} from the nearest, of {of} bytes"))
        }
    }
}

/// Everything that a block needs.
pub(super) struct Job<'a> {
    pub entry: unsafe extern "C" fn(*const u8),
    pub kernarg: &'a [u8],
    pub ids: [u32; 3],
    pub threads: usize,
    pub wave: usize,
    pub regions: &'a [Region],
    pub order: Order,
    pub skip_barrier: Option<u32>,
}

/// Runs one block; `stacks` are kept from block to block.
///
/// # Errors
/// What was noticed, with block and thread.
///
/// # Safety
/// `entry` is a kernel's wrapper that reads exactly `kernarg`; the regions are memory that nobody else uses now.
pub(super) unsafe fn run_block(
    job: &Job<'_>,
    shared: &mut Shared,
    stacks: &mut Vec<DefaultStack>,
) -> Result<(), String> {
    for (r, _) in &shared.regions {
        // Threads cannot rely on what an earlier block left.
        // SAFETY: shared memory of the module, which only this block uses now.
        unsafe { std::ptr::write_bytes(r.address as *mut u8, 0xff, r.bytes) };
    }
    let mut b = Block {
        thread: 0,
        wave: job.wave,
        ids: job.ids,
        regions: job.regions.to_vec(),
        shared: std::mem::take(&mut shared.regions),
        first_epoch: shared.epoch + 1,
        epoch: shared.epoch + 1,
        stack: (0, 0),
        yielder: std::ptr::null(),
        fault: None,
        skip_barrier: job.skip_barrier,
    };
    while stacks.len() < job.threads {
        stacks.push(DefaultStack::new(STACK_BYTES).map_err(|e| format!("no memory for a fiber: {e}"))?);
    }
    let (entry, kernarg) = (job.entry, job.kernarg.as_ptr());
    let mut fibers = Fibers { list: Vec::with_capacity(job.threads), stacks };
    for _ in 0..job.threads {
        let Some(stack) = fibers.stacks.pop() else { return Err("no stack".into()) };
        let bounds = (stack.limit().get(), stack.base().get());
        let co = Coroutine::with_stack(stack, move |y: &Yielder<(), Wait>, ()| {
            // SAFETY: inside a fiber.
            unsafe { block().yielder = y };
            // SAFETY: by this function's contract.
            unsafe { entry(kernarg) };
        });
        fibers.list.push(Fiber { co, wait: Wait::Ready, bounds, yielder: std::ptr::null() });
    }
    BLOCK.set(&mut b);
    let r = schedule(&mut fibers.list, job);
    BLOCK.set(std::ptr::null_mut());
    (shared.regions, shared.epoch) = (b.shared, b.epoch);
    r
}

struct Fiber {
    co: Coroutine<(), Wait, (), DefaultStack>,
    wait: Wait,
    bounds: (usize, usize),
    yielder: *const Yielder<(), Wait>,
}

/// Fibers whose stacks go back, also after an error.
struct Fibers<'a> {
    list: Vec<Fiber>,
    stacks: &'a mut Vec<DefaultStack>,
}

impl Drop for Fibers<'_> {
    fn drop(&mut self) {
        for mut f in self.list.drain(..) {
            if f.co.started() && !f.co.done() {
                // SAFETY: the frames on the stack are generated code and ours, none of which has anything to drop.
                unsafe { f.co.force_reset() };
            }
            if f.co.done() {
                self.stacks.push(f.co.into_stack());
            }
        }
    }
}

fn schedule(fibers: &mut [Fiber], job: &Job<'_>) -> Result<(), String> {
    let n = fibers.len();
    let turn = |i: usize, n: usize| if job.order == Order::Forward { i } else { n - 1 - i };
    let n_waves = n.div_ceil(job.wave);
    loop {
        for w in 0..n_waves {
            let first = turn(w, n_waves) * job.wave;
            let lanes = job.wave.min(n - first);
            loop {
                for i in 0..lanes {
                    let thread = first + turn(i, lanes);
                    advance(&mut fibers[thread], thread)?;
                }
                if !meet_wave(&mut fibers[first..first + lanes], job, first)? {
                    break;
                }
            }
        }
        if fibers.iter().all(|f| f.wait == Wait::Done) {
            return Ok(());
        }
        // Nobody can go on: all must stand at one barrier.
        let at = fibers[0].wait;
        if let Some((i, f)) = fibers.iter().enumerate().find(|(_, f)| f.wait != at) {
            let what = |w: Wait| match w {
                Wait::Done => "has ended".to_string(),
                Wait::Barrier(s) => format!("waits at barrier {s}"),
                _ => "waits for its wave".to_string(),
            };
            let (a, b) = (what(at), what(f.wait));
            return Err(format!("block {:?}: a barrier not everybody comes to: thread 0 {a}, thread {i} {b}", job.ids));
        }
        fibers.iter_mut().for_each(|f| f.wait = Wait::Ready);
        // SAFETY: the block is alive, and no fiber runs.
        unsafe { block().epoch += 1 };
    }
}

/// Lets a fiber run to its next meeting.
fn advance(f: &mut Fiber, thread: usize) -> Result<(), String> {
    if f.wait != Wait::Ready {
        return Ok(());
    }
    // SAFETY: the block is alive, and no fiber runs.
    let b = unsafe { block() };
    (b.thread, b.stack, b.yielder) = (thread, f.bounds, f.yielder);
    f.wait = match f.co.resume(()) {
        CoroutineResult::Yield(w) => w,
        CoroutineResult::Return(()) => Wait::Done,
    };
    // SAFETY: as above.
    let b = unsafe { block() };
    f.yielder = b.yielder;
    if f.wait == Wait::Fault { Err(b.fault.take().unwrap_or_default()) } else { Ok(()) }
}

/// Whether the wave's living lanes met, so that they can go on.
fn meet_wave(fibers: &mut [Fiber], job: &Job<'_>, first: usize) -> Result<bool, String> {
    let Some(Wait::Wave { op, site, .. }) = fibers.iter().map(|f| f.wait).find(|w| matches!(w, Wait::Wave { .. }))
    else {
        return Ok(false);
    };
    let mut lanes = Vec::with_capacity(job.wave);
    for (i, f) in fibers.iter().enumerate() {
        match f.wait {
            Wait::Wave { op: o, site: s, args, result } if o == op && s == site => lanes.push(Some((args, result))),
            Wait::Done => lanes.push(None),
            w => {
                return Err(format!(
                    "block {:?}: a wave operation not everybody comes to: {op:?} at site {site}, while thread {} is at {w:?}",
                    job.ids,
                    first + i
                ));
            }
        }
    }
    lanes.resize(job.wave, None);
    // SAFETY: argument and result slots lie on the stacks of suspended fibers.
    unsafe { wave::perform(op, &lanes) }.map_err(|e| format!("block {:?}: {op:?}: {e}", job.ids))?;
    fibers.iter_mut().filter(|f| f.wait != Wait::Done).for_each(|f| f.wait = Wait::Ready);
    Ok(true)
}
