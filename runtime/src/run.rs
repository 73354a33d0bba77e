//! One run's state and what the functions of the table do to it. Errors carry the node; the first one is kept.

use crate::abi::{KernelFn, Status, TensorDesc};
use crate::device::{Buffer, Device, Event, Loaded, Space, Stream, Work};
use crate::io::{HostBytes, OutputAllocator, OutputRequest};
use crate::model::Model;
use crate::profile::{Counters, Recorder};
use crate::sharing::Memory;
use kernels::catalog::{CATALOG, DRAW};
use kernels::team::Team;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// Elements a thread must touch to be worth its start: about ten microseconds of work.
const GRAIN_ELEMS: u64 = 16 << 10;
/// Highest rank that crosses the ABI.
const MAX_RANK: u32 = 64;

pub(crate) type Dims = SmallVec<[usize; 6]>;

/// Memory that grows on demand and is kept from run to run.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    buffer: Option<Buffer>,
}

impl Pool {
    /// Makes it at least `bytes` long and says whether it grew. The content does not survive growth.
    pub(crate) fn ensure(&mut self, device: &Arc<dyn Device>, space: Space, bytes: usize) -> Result<(usize, bool)> {
        let exact = device.properties().checks;
        if let Some(b) = &self.buffer
            && if exact { b.bytes() == bytes } else { b.bytes() >= bytes }
        {
            return Ok((b.addr(), false));
        }
        if let Some(old) = self.buffer.take() {
            old.free()?;
        }
        let b = Buffer::new(device, space, bytes)?;
        let addr = b.addr();
        self.buffer = Some(b);
        Ok((addr, true))
    }
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, Buffer::bytes)
    }
    pub(crate) fn release(&mut self) -> Result<()> {
        self.buffer.take().map_or(Ok(()), Buffer::free)
    }
}

/// What a run context keeps from run to run.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) pools: Vec<Pool>,
    /// Copies of inputs and outputs in device memory, where the host's cannot be used.
    pub(crate) staged_inputs: Vec<Pool>,
    pub(crate) staged_outputs: Vec<Pool>,
    pub(crate) frame: Vec<u64>,
    pub(crate) stream: Stream,
}

/// An input in place.
#[derive(Debug)]
pub(crate) struct InputState {
    pub(crate) addr: usize,
    pub(crate) dims: SmallVec<[i64; 6]>,
    /// The caller's memory.
    pub(crate) memory: Memory,
}

/// An output the program asked for.
#[derive(Debug)]
pub(crate) struct OutputState {
    /// Where the caller wants it, when the program writes elsewhere.
    pub(crate) copy_to: Option<(usize, Space)>,
    pub(crate) addr: usize,
    pub(crate) bytes: usize,
    /// The caller's memory.
    pub(crate) memory: Memory,
}

/// How many of the last nodes an error of queued work names.
const RECENT: usize = 4;

/// The state behind [`crate::abi::RunCtx`].
pub(crate) struct Run<'a> {
    pub(crate) model: &'a Model,
    pub(crate) device: &'a Arc<dyn Device>,
    pub(crate) loaded: &'a Loaded,
    pub(crate) constants: &'a [AtomicUsize],
    pub(crate) team: &'a dyn Team,
    pub(crate) stream: Stream,
    pub(crate) inputs: Vec<InputState>,
    pub(crate) pools: &'a mut [Pool],
    pub(crate) staged_outputs: &'a mut [Pool],
    pub(crate) outputs: Vec<Option<OutputState>>,
    /// For each output the input whose memory the caller gave for it.
    pub(crate) shared: Vec<Option<usize>>,
    pub(crate) allocator: &'a mut dyn OutputAllocator,
    pub(crate) cancel: Option<&'a AtomicBool>,
    pub(crate) failure: Option<Diagnostic>,
    pub(crate) counters: Counters,
    pub(crate) recorder: Recorder,
    /// Nodes of the last queued work, oldest first: what an error at a wait may come from.
    pub(crate) recent: SmallVec<[u32; RECENT]>,
    /// Seed of the session.
    pub(crate) seed: u64,
    /// How many runs of the session began before this one.
    pub(crate) number: i64,
    /// How often each node that draws random numbers has done so in this run.
    pub(crate) draws: BTreeMap<i64, i64>,
}

/// When an op began.
#[derive(Clone, Copy)]
struct Start {
    ns: u64,
    /// In the stream, on devices that return before their work is done.
    event: Option<Event>,
}

pub(crate) fn internal(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, message)
}

pub(crate) fn index(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Writes a result of a table function.
///
/// # Safety
/// `out` is null or writable.
unsafe fn put(out: *mut i64, value: i64) -> Result<()> {
    if out.is_null() {
        return Err(internal("the program gave no place for a result"));
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// An address as the program's register holds it: the same 64 bits.
fn register(addr: usize) -> i64 {
    u64::try_from(addr).unwrap_or(0).cast_signed()
}

fn address(register: i64) -> Result<usize> {
    usize::try_from(register.cast_unsigned()).map_err(|_| internal("an address beyond the address space"))
}

/// # Safety
/// `p` points to `n` live values, or `n` is 0.
unsafe fn words<'s, T>(p: *const T, n: usize) -> Result<&'s [T]> {
    match (n, p.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(internal("the program gave a null list")),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(p, n) }),
    }
}

fn known(dtype: i32) -> Result<DType> {
    DType::from_onnx(dtype).ok_or_else(|| internal(format!("the program uses element type {dtype}")))
}

fn space_of(n: u32) -> Result<Space> {
    Space::from_number(n).ok_or_else(|| internal(format!("the program uses memory space {n}")))
}

impl Run<'_> {
    /// Adds the node to an error.
    fn at(&self, node: u32, e: Diagnostic) -> Diagnostic {
        match self.model.metadata().debug.get(index(node)) {
            Some(d) if !d.path.is_empty() => e.node(d.path.clone()).note("runs", d.what.clone()),
            _ => e,
        }
    }

    /// Begins to take an op's time, when times are asked for.
    fn begin(&self) -> Start {
        let timed = self.recorder.is_on() && self.device.properties().asynchronous;
        // An op without an event keeps the host's time: better than no run.
        let event = if timed { self.device.record(self.stream).ok() } else { None };
        Start { ns: self.recorder.now_ns(), event }
    }

    /// Ends it.
    fn end(&mut self, kind: &'static str, node: u32, start: Start, bytes: Option<u64>) {
        let until = start.event.and_then(|from| Some((from, self.device.record(self.stream).ok()?)));
        self.recorder.op(kind, node, start.ns, bytes, until);
    }

    /// Remembers that a node's work was queued.
    fn queued(&mut self, node: u32) {
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push(node);
    }

    /// Waits for the stream. Failures of queued work appear here: the error names the nodes that were queued last.
    pub(crate) fn wait(&self) -> Result<()> {
        self.device.synchronize(self.stream).map_err(|e| {
            let debug = &self.model.metadata().debug;
            let name = |&n: &u32| {
                debug.get(index(n)).map_or_else(|| format!("node {n}"), |d| format!("{} ({})", d.path, d.what))
            };
            if self.recent.is_empty() {
                return e;
            }
            let last: Vec<String> = self.recent.iter().map(name).collect();
            e.note("queued last", last.join(", "))
        })
    }

    /// What every call that does work checks first: the node exists and the run is not cancelled.
    fn step(&self, node: u32) -> Result<()> {
        let n = self.model.metadata().debug.len();
        if index(node) >= n {
            return Err(internal(format!("the program speaks of node {node}; the debug table has {n}")));
        }
        self.check_cancel().map_err(|e| self.at(node, e))
    }

    fn check_cancel(&self) -> Result<()> {
        match self.cancel {
            Some(flag) if flag.load(Relaxed) => Err(Diagnostic::new(ErrorKind::Cancelled, "the run was cancelled")),
            _ => Ok(()),
        }
    }

    /// # Safety
    /// `out` is null or writable.
    pub(crate) unsafe fn input_dim(&mut self, input: u32, axis: u32, out: *mut i64) -> Result<()> {
        let dim = self.inputs.get(index(input)).and_then(|i| i.dims.get(index(axis)));
        let &dim = dim.ok_or_else(|| internal(format!("the program reads axis {axis} of input {input}")))?;
        // SAFETY: the caller's promise.
        unsafe { put(out, dim) }
    }

    /// # Safety
    /// `out` is null or writable.
    pub(crate) unsafe fn input_ptr(&mut self, input: u32, out: *mut i64) -> Result<()> {
        let i = self.inputs.get(index(input)).ok_or_else(|| internal(format!("the program reads input {input}")))?;
        // SAFETY: the caller's promise.
        unsafe { put(out, register(i.addr)) }
    }

    /// # Safety
    /// `out` is null or writable.
    pub(crate) unsafe fn const_ptr(&mut self, i: u32, out: *mut i64) -> Result<()> {
        let cached = self.constants.get(index(i)).ok_or_else(|| internal(format!("the program reads constant {i}")))?;
        let mut addr = cached.load(Acquire);
        if addr == 0 {
            let (at, uploaded) = self.model.constants().addr_on(index(i), self.device, self.stream)?;
            addr = at;
            self.counters.constant_copies += u64::from(uploaded);
            self.counters.syncs += u64::from(uploaded);
            cached.store(addr, Release);
        }
        // SAFETY: the caller's promise.
        unsafe { put(out, register(addr)) }
    }

    /// # Safety
    /// `out` is null or writable.
    pub(crate) unsafe fn reserve(&mut self, domain: u32, bytes: i64, out: *mut i64) -> Result<()> {
        self.check_cancel()?;
        let meta = self.model.metadata().domains.get(index(domain));
        let (Some(meta), Some(pool)) = (meta, self.pools.get_mut(index(domain))) else {
            return Err(internal(format!("the program reserves domain {domain}")));
        };
        let n = usize::try_from(bytes).map_err(|_| {
            Diagnostic::new(
                ErrorKind::Shape,
                format!("pool {domain} would need {bytes} bytes: an extent is negative or too large"),
            )
            .note("peak", meta.peak.clone())
        })?;
        let (addr, grew) =
            pool.ensure(self.device, space_of(meta.space)?, n).map_err(|e| e.note("peak", meta.peak.clone()))?;
        self.counters.pool_growths += u64::from(grew);
        self.recorder.memory(domain, n);
        // SAFETY: the caller's promise.
        unsafe { put(out, register(addr)) }
    }

    /// # Safety
    /// `dims` points to `rank` values; `out` is null or writable.
    pub(crate) unsafe fn output(&mut self, i: u32, rank: u32, dims: *const i64, out: *mut i64) -> Result<()> {
        self.check_cancel()?;
        let meta = self.model.metadata().outputs.get(index(i));
        let meta = meta.ok_or_else(|| internal(format!("the program asks for output {i}")))?;
        let named = |e: Diagnostic| e.note("output", format!("{i} {:?} {}", meta.name, meta.display()));
        if rank > MAX_RANK || index(rank) != meta.rank() {
            return Err(named(internal(format!("the program gives {rank} extents"))));
        }
        // SAFETY: the caller's promise.
        let dims = unsafe { words(dims, index(rank))? };
        let shape: Option<Dims> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
        let fixed = dims.iter().enumerate().all(|(axis, &d)| meta.fixed_dim(axis).is_none_or(|f| f == d));
        let shape = shape.filter(|_| fixed);
        let bad = || named(Diagnostic::new(ErrorKind::Shape, format!("the output would have extents {dims:?}")));
        let shape = shape.ok_or_else(bad)?;
        let dtype = meta.dtype()?;
        let n = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d)).and_then(|n| dtype.size_bytes(n));
        let bytes = n.ok_or_else(bad)?;
        match self.outputs.get(index(i)) {
            Some(None) => {}
            _ => return Err(named(internal("the program asks for an output twice"))),
        }
        let host_is_device = self.device.properties().host_is_device;
        let direct = if host_is_device { Space::Host } else { Space::Device };
        let request =
            OutputRequest { index: index(i), name: &meta.name, dtype, shape: &shape, bytes, space: direct, device: 0 };
        self.counters.outputs += 1;
        let shared = self.shared.get(index(i)).copied().flatten();
        let got = match shared.and_then(|k| self.inputs.get(k)) {
            Some(input) => input.memory.buffer(),
            None => self.allocator.allocate(&request).map_err(named)?,
        };
        let memory = Memory { start: got.ptr.expose_provenance(), bytes, space: got.space };
        let in_place = self.check_memory(index(i), memory, dims, shared).map_err(named)?;
        self.counters.shared_outputs += u64::from(in_place);
        let bad =
            |why: String| named(Diagnostic::new(ErrorKind::Argument, format!("the memory given for an output {why}")));
        if got.bytes < bytes {
            return Err(bad(format!("has {} bytes instead of {bytes}", got.bytes)));
        }
        if got.ptr.is_null() && bytes > 0 {
            return Err(bad("is null".into()));
        }
        let given = got.ptr.expose_provenance();
        if !given.is_multiple_of(dtype.size().unwrap_or(1).clamp(1, 8)) {
            return Err(bad(format!("at {given:#x} is not aligned for {dtype}")));
        }
        let state = if host_is_device || got.space == Space::Device {
            OutputState { copy_to: None, addr: if bytes == 0 { 64 } else { given }, bytes, memory }
        } else {
            let pool = self.staged_outputs.get_mut(index(i)).ok_or_else(|| internal("no staging for an output"))?;
            let (addr, _) = pool.ensure(self.device, Space::Device, bytes).map_err(named)?;
            OutputState { copy_to: Some((given, got.space)), addr, bytes, memory }
        };
        self.recorder.memory(u32::MAX, bytes);
        let addr = state.addr;
        if let Some(slot) = self.outputs.get_mut(index(i)) {
            *slot = Some(state);
        }
        // SAFETY: the caller's promise.
        unsafe { put(out, register(addr)) }
    }

    pub(crate) fn guard_failed(&mut self, what: u32, node: u32, lhs: i64, rhs: i64) -> Result<()> {
        let sentence = self
            .model
            .metadata()
            .guards
            .get(index(what))
            .map_or("an assumption of the compiled model does not hold", |s| s);
        let e = Diagnostic::new(ErrorKind::Guard, format!("{sentence} (it is {lhs}, against {rhs})")).help(
            "the model was compiled for inputs where this holds: change the inputs, or compile with other extents",
        );
        Err(self.at(node, e))
    }

    pub(crate) fn arith_failed(&mut self, node: u32) -> Result<()> {
        Err(self.at(node, Diagnostic::new(ErrorKind::Shape, "an extent is divided by zero, or overflows")))
    }

    /// # Safety
    /// `args` points to `n_bufs + n_ints` words that are what `func` takes, over live memory.
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn launch(
        &mut self,
        kernel: u32,
        func: Option<KernelFn>,
        args: *const u64,
        n_bufs: u32,
        n_ints: u32,
        points: i64,
        work: i64,
        node: u32,
    ) -> Result<()> {
        self.step(node)?;
        let start = self.begin();
        let n_bufs = index(n_bufs);
        // SAFETY: the caller's promise.
        let args = unsafe { words(args, n_bufs.saturating_add(index(n_ints)))? };
        let points = usize::try_from(points)
            .map_err(|_| self.at(node, Diagnostic::new(ErrorKind::Shape, format!("a kernel over {points} points"))))?;
        self.counters.launches += 1;
        if points > 0 {
            let grain = GRAIN_ELEMS.div_ceil(work.unsigned_abs().max(1)).max(1);
            let grain = usize::try_from(grain).unwrap_or(usize::MAX);
            let work = Work::Generated { kernel, func, args, n_bufs, points, grain };
            // SAFETY: the caller's promise.
            unsafe { self.device.launch(self.stream, self.team, self.loaded, &work) }.map_err(|e| self.at(node, e))?;
            self.queued(node);
        }
        self.end("launch", node, start, None);
        Ok(())
    }

    /// # Safety
    /// `args` points to `n_bufs + n_ints + n_scalars` words that are what the kernel takes, over live memory.
    pub(crate) unsafe fn kernel(
        &mut self,
        id: u32,
        args: *const u64,
        n_bufs: u32,
        n_ints: u32,
        n_scalars: u32,
        node: u32,
    ) -> Result<()> {
        self.step(node)?;
        let start = self.begin();
        let n = [n_bufs, n_ints, n_scalars].iter().fold(0usize, |a, &n| a.saturating_add(index(n)));
        // SAFETY: the caller's promise.
        let args = unsafe { words(args, n)? };
        let (bufs, rest) = args.split_at(index(n_bufs).min(args.len()));
        let (ints, scalars) = rest.split_at(index(n_ints).min(rest.len()));
        let mut ints: SmallVec<[i64; 24]> = ints.iter().map(|&w| w.cast_signed()).collect();
        if CATALOG.get(index(id)).is_some_and(|k| k.name == DRAW) {
            self.next_draw(&mut ints);
        }
        let scalars: SmallVec<[f64; 4]> = scalars.iter().map(|&w| f64::from_bits(w)).collect();
        self.counters.kernel_calls += 1;
        let work = Work::Catalog { kernels: self.model.kernels(), id, bufs, ints: &ints, scalars: &scalars };
        // SAFETY: the caller's promise.
        unsafe { self.device.launch(self.stream, self.team, self.loaded, &work) }.map_err(|e| self.at(node, e))?;
        self.queued(node);
        self.end("kernel", node, start, None);
        Ok(())
    }

    /// Fills in what only the run knows of a draw of random numbers: the session's seed, how often the node has drawn in this run, and
    /// which run of the session this is.
    fn next_draw(&mut self, ints: &mut [i64]) {
        if let [stream, _, session, draw, run] = ints {
            let count = self.draws.entry(*stream).or_insert(0);
            (*session, *draw, *run) = (self.seed.cast_signed(), *count, self.number);
            *count += 1;
        }
    }

    /// # Safety
    /// `tensors` points to `n` descriptors of live memory.
    pub(crate) unsafe fn host_op(
        &mut self,
        op: u32,
        tensors: *const TensorDesc,
        n: u32,
        n_reads: u32,
        node: u32,
    ) -> Result<()> {
        self.step(node)?;
        let start = Start { ns: self.recorder.now_ns(), event: None };
        // SAFETY: the caller's promise.
        let all = unsafe { words(tensors, index(n))? };
        let (reads, writes) = all.split_at(index(n_reads).min(all.len()));
        let op = self.model.host_op(index(op)).ok_or_else(|| internal(format!("the program calls host op {op}")))?;
        self.counters.host_ops += 1;
        let mut copies = Vec::with_capacity(reads.len());
        let mut queued = Ok(());
        for d in reads {
            // SAFETY: the caller's promise.
            match unsafe { self.host_copy(d) } {
                Ok(copy) => copies.push(copy),
                Err(e) => {
                    queued = Err(e);
                    break;
                }
            }
        }
        // Also after a failure: the copies that were queued write to memory that ends here.
        let waited = self.wait();
        self.counters.syncs += 1;
        queued.and(waited).map_err(|e| self.at(node, e))?;
        let tensor = |c: Option<HostCopy>| {
            c.map(|c| Tensor::new(c.dtype, &c.shape, bytes::Bytes::from_owner(c.bytes))).transpose()
        };
        let operands = copies.into_iter().map(tensor).collect::<Result<Vec<_>>>().map_err(|e| self.at(node, e))?;
        let results = (op.func)(&op.call, &operands).map_err(|e| self.at(node, e))?;
        for (i, d) in writes.iter().enumerate() {
            // SAFETY: the caller's promise.
            let Some((dtype, shape, space)) = (unsafe { described(d)? }) else { continue };
            let t = results.get(i).filter(|t| t.dtype() == dtype && t.shape() == &shape[..]).ok_or_else(|| {
                let got = results.get(i).map(|t| format!("{}{:?}", t.dtype(), t.shape()));
                let text =
                    format!("host op {} gave {got:?} for result {i}; {dtype}{shape:?} was planned", op.call.name);
                self.at(node, internal(text))
            })?;
            let from = (t.bytes().as_ptr().expose_provenance(), Space::Host);
            // SAFETY: the descriptor's memory is live and as long as its extents say.
            unsafe { self.device.copy(self.stream, (d.data.expose_provenance(), space), from, t.bytes().len()) }
                .map_err(|e| self.at(node, e))?;
        }
        self.end("host op", node, start, None);
        Ok(())
    }

    /// Queues a copy of a tensor to the host.
    ///
    /// # Safety
    /// The descriptor is of live memory; the copy lives until the stream was waited for.
    unsafe fn host_copy(&self, d: &TensorDesc) -> Result<Option<HostCopy>> {
        // SAFETY: the caller's promise.
        let Some((dtype, shape, space)) = (unsafe { described(d)? }) else { return Ok(None) };
        let n = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d)).and_then(|n| dtype.size_bytes(n));
        let n = n.ok_or_else(|| internal(format!("{dtype}{shape:?} has too many bytes")))?;
        let mut bytes = HostBytes::zeroed(n)?;
        let (to, from) = (bytes.as_mut_ptr().expose_provenance(), d.data.expose_provenance());
        // SAFETY: the caller's promise; the copy has `n` bytes.
        unsafe { self.device.copy(self.stream, (to, Space::Host), (from, space), n)? };
        Ok(Some(HostCopy { dtype, shape, bytes }))
    }

    /// # Safety
    /// Both ranges are live memory of their spaces.
    pub(crate) unsafe fn copy(&mut self, dst: (i64, u32), src: (i64, u32), bytes: i64, node: u32) -> Result<()> {
        self.step(node)?;
        let start = self.begin();
        let n = usize::try_from(bytes)
            .map_err(|_| self.at(node, Diagnostic::new(ErrorKind::Shape, format!("a copy of {bytes} bytes"))))?;
        let dst = (address(dst.0)?, space_of(dst.1)?);
        let src = (address(src.0)?, space_of(src.1)?);
        // What is in its place already: a cache that the caller gave one memory for. And nothing.
        if n == 0 || dst == src {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.copy(self.stream, dst, src, n) }.map_err(|e| self.at(node, e))?;
        self.counters.copies += 1;
        self.counters.copied_bytes += u64::try_from(n).unwrap_or(0);
        self.queued(node);
        self.end("copy", node, start, u64::try_from(n).ok());
        Ok(())
    }

    /// # Safety
    /// `ptr` is host-mapped memory for `n` integers; `values` points to `n` values.
    pub(crate) unsafe fn store_ints(&mut self, ptr: i64, dtype: i32, n: u32, values: *const i64) -> Result<()> {
        // SAFETY: the caller's promise.
        let values = unsafe { words(values, index(n))? };
        self.counters.stores += 1;
        // SAFETY: the caller's promise.
        unsafe { self.device.store_ints(self.stream, self.loaded, address(ptr)?, known(dtype)?, values) }
    }

    /// # Safety
    /// `ptr` is live memory of `space` that holds element `i`; `out` is null or writable.
    pub(crate) unsafe fn readback(
        &mut self,
        ptr: i64,
        space: u32,
        dtype: i32,
        i: u32,
        node: u32,
        out: *mut i64,
    ) -> Result<()> {
        self.step(node)?;
        let start = Start { ns: self.recorder.now_ns(), event: None };
        let dtype = known(dtype)?;
        let size = dtype.size().filter(|_| dtype.is_int() || dtype == DType::Bool);
        let size = size.ok_or_else(|| self.at(node, internal(format!("the program reads back a {dtype}"))))?;
        let offset = index(i).checked_mul(size).and_then(|o| address(ptr).ok()?.checked_add(o));
        let from = offset.ok_or_else(|| internal("an address beyond the address space"))?;
        let mut raw = [0u8; 8];
        let to = (raw.as_mut_ptr().expose_provenance(), Space::Host);
        // SAFETY: the caller's promise; `raw` has room for every integer and outlives the wait.
        unsafe { self.device.copy(self.stream, to, (from, space_of(space)?), size) }.map_err(|e| self.at(node, e))?;
        self.wait().map_err(|e| self.at(node, e))?;
        let word = u64::from_le_bytes(raw);
        let shift = 64 - 8 * u32::try_from(size).unwrap_or(8);
        let value = match dtype {
            DType::Bool => i64::from(word != 0),
            d if d.is_signed() => (word << shift).cast_signed() >> shift,
            _ => i64::try_from(word).map_err(|_| {
                self.at(node, Diagnostic::new(ErrorKind::Shape, format!("{word} is too large for an extent")))
            })?,
        };
        self.counters.syncs += 1;
        self.end("readback", node, start, u64::try_from(size).ok());
        // SAFETY: the caller's promise.
        unsafe { put(out, value) }
    }

    /// The error of a run that ended with a status, or the outputs it did not produce.
    pub(crate) fn verdict(&mut self, status: Status) -> Result<()> {
        if let Some(e) = self.failure.take() {
            return Err(e);
        }
        if status != 0 {
            return Err(internal(format!("the compiled program failed with status {status} and gave no reason")));
        }
        match self.outputs.iter().position(Option::is_none) {
            None => Ok(()),
            Some(i) => {
                let name = self.model.metadata().outputs.get(i).map_or("", |o| &o.name);
                Err(internal(format!("the compiled program did not produce output {i} {name:?}")))
            }
        }
    }
}

/// A tensor on its way to the host.
struct HostCopy {
    dtype: DType,
    shape: Dims,
    bytes: HostBytes,
}

/// What a descriptor says, or `None` where the operand is absent.
///
/// # Safety
/// `dims` points to `rank` values.
unsafe fn described(d: &TensorDesc) -> Result<Option<(DType, Dims, Space)>> {
    if d.data.is_null() && d.rank == u32::MAX {
        return Ok(None);
    }
    if d.rank > MAX_RANK || !d.strides.is_null() {
        return Err(internal("a tensor given to a host op has too many axes or is not contiguous"));
    }
    // SAFETY: the caller's promise.
    let dims = unsafe { words(d.dims, index(d.rank))? };
    let shape: Option<Dims> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    let shape = shape.ok_or_else(|| Diagnostic::new(ErrorKind::Shape, format!("a tensor with extents {dims:?}")))?;
    Ok(Some((known(d.dtype)?, shape, space_of(d.space)?)))
}
