//! Sessions: runs of a model on a device.

use crate::abi::RunCtx;
use crate::device::{Buffer, Device, Loaded, Space, Stream};
use crate::device_tensor::DeviceTensor;
use crate::io::{Collect, Given, HostInput, Key, OutputAllocator, RunInputs, contiguous};
use crate::model::Model;
use crate::profile::{Counters, Op, Profile, Recorder, Report};
use crate::run::{Context, InputState, Pool, Run};
use crate::sharing::{Memory, may_share};
use crate::table::panic_error;
use crate::team::{Teams, lock};
use artifact::Port;
use kernels::team::Team;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor, View};

/// How a session runs.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// Threads a run may use, the caller's included; by default one per processor. Not used with `teams`.
    pub threads: Option<usize>,
    /// A team shared with other sessions.
    pub teams: Option<Arc<Teams>>,
    /// Where random numbers of nodes without a seed of their own begin: sessions with the same seed draw the same in their first run,
    /// in their second, and so on.
    pub seed: u64,
}

/// How one run runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions<'a> {
    /// At most so many threads.
    pub threads: Option<usize>,
    /// Ends the run at its next step once it is true.
    pub cancel: Option<&'a AtomicBool>,
    /// Takes the time of every op.
    pub profile: bool,
}

/// A model on a device. `Send` and `Sync`: any number of threads may run it at once.
pub struct Session {
    model: Arc<Model>,
    device: Arc<dyn Device>,
    loaded: Loaded,
    teams: Arc<Teams>,
    idle: Mutex<Vec<Context>>,
    /// Addresses of constants on the device; 0 until first used.
    constants: Vec<AtomicUsize>,
    seed: u64,
    /// How many runs have begun.
    runs: AtomicU64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?} on {})", self.model, self.device.properties().name)
    }
}

impl Session {
    /// A session. Loads the model's code where the device needs it and allocates nothing else; pools grow with the first runs.
    ///
    /// # Errors
    /// As [`Device::load`]: above all `Unsupported` when the model was compiled for another kind of device.
    pub fn new(model: Arc<Model>, device: Arc<dyn Device>, options: SessionOptions) -> Result<Session> {
        let loaded = device.load(model.artifact())?;
        let teams = options.teams.unwrap_or_else(|| Arc::new(Teams::new(options.threads)));
        let constants = (0..model.constants().len()).map(|_| AtomicUsize::new(0)).collect();
        Ok(Session {
            model,
            device,
            loaded,
            teams,
            idle: Mutex::default(),
            constants,
            seed: options.seed,
            runs: AtomicU64::new(0),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }
    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    /// Graph inputs.
    pub fn inputs(&self) -> &[Port] {
        &self.model.metadata().inputs
    }
    /// Graph outputs.
    pub fn outputs(&self) -> &[Port] {
        &self.model.metadata().outputs
    }

    /// A tensor of zeros in the device's memory, which runs read and write in place: see [`RunInputs::shared`].
    ///
    /// # Errors
    /// `Device` when the device has no memory for it, `Limit` when it has too many bytes.
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<DeviceTensor> {
        DeviceTensor::zeros(&self.device, dtype, shape)
    }

    /// Runs and collects the outputs as tensors.
    ///
    /// # Errors
    /// As [`Session::run`]; `Argument` when an output is in the memory of an input, as then it is no tensor of its own.
    pub fn collect(&self, inputs: &RunInputs<'_>, options: &RunOptions<'_>) -> Result<(Vec<Tensor>, Report)> {
        let shared = inputs.items.iter().find_map(|(_, g)| match g {
            Given::Shared { present, .. } => Some(present),
            Given::View(_) => None,
        });
        if let Some(present) = shared {
            let text = format!("output {present:?} is in the memory of an input and cannot be collected");
            return Err(Diagnostic::new(ErrorKind::Argument, text)
                .help("call Session::run with a Collect and take the other outputs from that by name"));
        }
        let mut outputs = Collect::new();
        let report = self.run(inputs, &mut outputs, options)?;
        Ok((outputs.finish()?, report))
    }

    /// Runs the model once. Inputs are checked before the program starts; memory for outputs is asked of `outputs` as soon as their
    /// shapes are known.
    ///
    /// # Errors
    /// `Argument`, `Type` or `Shape` when inputs do not fit the model; `Guard` when they are outside what it was compiled for;
    /// `Cancelled`; `Device` and others from the program, with the node. Memory given for outputs then holds anything.
    pub fn run(
        &self,
        inputs: &RunInputs<'_>,
        outputs: &mut dyn OutputAllocator,
        options: &RunOptions<'_>,
    ) -> Result<Report> {
        self.run_once(inputs, outputs, options).map_err(Diagnostic::or_help)
    }

    fn run_once(
        &self,
        inputs: &RunInputs<'_>,
        outputs: &mut dyn OutputAllocator,
        options: &RunOptions<'_>,
    ) -> Result<Report> {
        let defaults = self.defaults(inputs)?;
        let (bound, shared) = self.bind(inputs, &defaults)?;
        let _in_use = bound.iter().filter_map(Bound::tensor).map(DeviceTensor::enter).collect::<Result<Vec<_>>>()?;
        let mut context = match lock(&self.idle).pop() {
            Some(c) => c,
            None => self.context()?,
        };
        let team = self.teams.enter(options.threads);
        let result = self.run_in(&mut context, (&bound, shared), outputs, options, &team);
        drop(team);
        lock(&self.idle).push(context);
        result
    }

    fn context(&self) -> Result<Context> {
        let m = self.model.metadata();
        let pools = |n: usize| (0..n).map(|_| Pool::default()).collect();
        Ok(Context {
            pools: pools(m.domains.len()),
            staged_inputs: pools(m.inputs.len()),
            staged_outputs: pools(m.outputs.len()),
            frame: vec![0; self.model.frame_words()],
            stream: self.device.stream()?,
        })
    }

    fn run_in(
        &self,
        context: &mut Context,
        (bound, shared): (&[Bound<'_>], Vec<Option<usize>>),
        allocator: &mut dyn OutputAllocator,
        options: &RunOptions<'_>,
        team: &dyn Team,
    ) -> Result<Report> {
        let mut counters = Counters::default();
        let recorder = Recorder::new(options.profile);
        let (device, stream) = (&self.device, context.stream);
        let properties = device.properties();
        let timed = recorder.is_on() && properties.asynchronous;
        let first = if timed { Some((device.record(stream)?, recorder.now_ns())) } else { None };
        // Held until the run ends: inputs that had to be made contiguous.
        let mut held = Vec::with_capacity(bound.len());
        let mut states = Vec::with_capacity(bound.len());
        for ((b, port), staged) in bound.iter().zip(self.inputs()).zip(&mut context.staged_inputs) {
            let named = |e: Diagnostic| e.note("input", format!("{:?}", port.name));
            let dims: Option<_> = b.shape().iter().map(|&d| i64::try_from(d).ok()).collect();
            let dims = dims.ok_or_else(|| named(Diagnostic::new(ErrorKind::Shape, "an extent beyond 63 bits")))?;
            let v = match b {
                Bound::View(v) => v,
                Bound::Shared(t) => {
                    let memory = Memory { start: t.addr(), bytes: t.size_bytes(), space: Space::Device };
                    states.push(InputState { addr: t.addr(), dims, memory });
                    continue;
                }
            };
            let host = contiguous(v).map_err(named)?;
            let mut addr = host.addr();
            // What the run copies first it does not read in place.
            let in_place = if let HostInput::InPlace { bytes, .. } = &host { *bytes } else { 0 };
            let memory = Memory { start: addr, bytes: in_place, space: Space::Host };
            let copied = matches!(host, HostInput::Copied(_));
            if !properties.host_is_device {
                let n = host.bytes();
                addr = staged.ensure(device, Space::Device, n).map_err(named)?.0;
                // SAFETY: the staging buffer has `n` bytes and is this run's; the host range was checked and is borrowed.
                unsafe { device.copy(stream, (addr, Space::Device), (host.addr(), Space::Host), n) }.map_err(named)?;
            }
            counters.input_copies += u64::from(copied || !properties.host_is_device);
            held.push(host);
            states.push(InputState { addr, dims, memory });
        }
        let _lead = if timed { Some(lead(device, stream)?) } else { None };
        context.frame.fill(0);
        let mut run = Run {
            model: &self.model,
            device,
            loaded: &self.loaded,
            constants: &self.constants,
            team,
            stream,
            inputs: states,
            pools: &mut context.pools,
            staged_outputs: &mut context.staged_outputs,
            outputs: (0..self.outputs().len()).map(|_| None).collect(),
            shared,
            allocator,
            cancel: options.cancel,
            failure: None,
            counters,
            recorder,
            recent: Default::default(),
            seed: self.seed,
            number: self.runs.fetch_add(1, Ordering::Relaxed).cast_signed(),
            draws: BTreeMap::new(),
        };
        let ctx = std::ptr::from_mut(&mut run).cast::<RunCtx>();
        let (entry, frame) = (self.model.entry(), context.frame.as_mut_ptr());
        // SAFETY: the code follows the ABI; context and frame are this run's own and outlive the call.
        let status = catch_unwind(AssertUnwindSafe(|| unsafe { entry(ctx, frame) }));
        let done = match status {
            Ok(status) => run.verdict(status),
            Err(payload) => Err(panic_error(&*payload)),
        };
        let mut n_copies = 0;
        let done = done.and_then(|()| {
            for (o, port) in run.outputs.iter().flatten().zip(self.outputs()) {
                if let Some(to) = o.copy_to {
                    n_copies += 1;
                    // SAFETY: the staging buffer and the caller's memory have `bytes` bytes.
                    unsafe { device.copy(stream, to, (o.addr, Space::Device), o.bytes) }
                        .map_err(|e| e.note("output", format!("{:?}", port.name)))?;
                }
            }
            Ok(())
        });
        // Also after a failure: nothing of this run may be under way when its memory is used again.
        let waited = run.wait();
        run.recorder.resolve(&**device, first);
        done?;
        waited?;
        run.counters.output_copies = n_copies;
        let profile = run.recorder.is_on().then(|| self.profile(&run.recorder, team.n_threads()));
        Ok(Report { counters: run.counters, profile })
    }

    fn profile(&self, r: &Recorder, threads: usize) -> Profile {
        let debug = &self.model.metadata().debug;
        let op = |o: &crate::profile::RawOp| {
            let d = usize::try_from(o.node).ok().and_then(|i| debug.get(i));
            Op {
                kind: o.kind,
                node: o.node,
                path: d.map_or(String::new(), |d| d.path.clone()),
                what: d.map_or(String::new(), |d| d.what.clone()),
                start_ns: o.start_ns,
                time_ns: o.time_ns,
                bytes: o.bytes,
            }
        };
        Profile { ops: r.ops.iter().map(op).collect(), memory: r.memory.clone(), total_ns: r.now_ns(), threads }
    }

    /// Puts inputs in the model's order and checks them.
    /// What an input is where the caller gives nothing, for inputs that have a default.
    ///
    /// # Errors
    /// What reading the constant gives.
    pub fn default_input(&self, index: usize) -> Result<Option<Tensor>> {
        let Some(i) = self.inputs().get(index).and_then(|p| p.default).and_then(|i| usize::try_from(i).ok()) else {
            return Ok(None);
        };
        let missing = || Diagnostic::new(ErrorKind::Malformed, format!("there is no constant {i}"));
        let c = self.model.metadata().constants.get(i).ok_or_else(missing)?;
        let extent = |&n: &u64| usize::try_from(n).map_err(|_| missing());
        let shape: Vec<usize> = c.shape.iter().map(extent).collect::<Result<_>>()?;
        Tensor::new(c.dtype()?, &shape, self.model.constants().host(i)?).map(Some)
    }

    /// Defaults of the inputs that are not given.
    fn defaults(&self, inputs: &RunInputs<'_>) -> Result<Vec<Option<Tensor>>> {
        let given = |i: usize, p: &Port| {
            inputs.items.iter().any(|(key, _)| match *key {
                Key::Index(k) => k == i,
                Key::Name(n) => n == p.name,
            })
        };
        let ports = self.inputs().iter().enumerate();
        ports.map(|(i, p)| if given(i, p) { Ok(None) } else { self.default_input(i) }).collect()
    }

    /// The inputs in order, and for each output the input whose memory it goes to.
    fn bind<'v>(
        &self,
        inputs: &RunInputs<'v>,
        defaults: &'v [Option<Tensor>],
    ) -> Result<(Vec<Bound<'v>>, Vec<Option<usize>>)> {
        let ports = self.inputs();
        let argument = |text: String| Diagnostic::new(ErrorKind::Argument, text);
        let all = || ports.iter().map(|p| format!("{:?} {}", p.name, p.display())).collect::<Vec<_>>().join(", ");
        let mut bound: Vec<Option<Bound<'v>>> = vec![None; ports.len()];
        let mut shared = vec![None; self.outputs().len()];
        for (key, given) in &inputs.items {
            let i = match *key {
                Key::Index(i) => Some(i),
                Key::Name(n) => ports.iter().position(|p| p.name == n),
            };
            let Some(slot) = i.and_then(|i| bound.get_mut(i)) else {
                let what = match key {
                    Key::Index(i) => format!("there is no input {i}; the model has {}", ports.len()),
                    Key::Name(n) => format!("the model has no input {n:?}"),
                };
                return Err(argument(what)
                    .note("inputs", all())
                    .help("use the names or positions of the model's inputs"));
            };
            let b = match given {
                Given::View(v) => Bound::View(v.clone()),
                Given::Shared { tensor, present } => {
                    self.share(i.unwrap_or(usize::MAX), present, tensor, &mut shared)?;
                    Bound::Shared(tensor)
                }
            };
            if slot.replace(b).is_some() {
                let name = i.and_then(|i| ports.get(i)).map_or("", |p| p.name.as_str());
                return Err(argument(format!("input {name:?} is given twice")).help("leave one of the two out"));
            }
        }
        for (slot, default) in bound.iter_mut().zip(defaults) {
            *slot = slot.take().or_else(|| default.as_ref().map(|t| Bound::View(t.view())));
        }
        let missing: Vec<String> = bound
            .iter()
            .zip(ports)
            .filter(|(b, _)| b.is_none())
            .map(|(_, p)| format!("{:?} {}", p.name, p.display()))
            .collect();
        if !missing.is_empty() {
            let e = argument(format!("missing input {}", missing.join(", ")));
            return Err(e.help("every input of the model without a default needs a tensor"));
        }
        let bound: Vec<Bound<'v>> = bound.into_iter().flatten().collect();
        bound.iter().zip(ports).try_for_each(|(b, p)| check_input(b.dtype(), b.shape(), p))?;
        Ok((bound, shared))
    }

    /// Notes that output `present` goes to the memory of input `i`.
    fn share(&self, i: usize, present: &str, tensor: &DeviceTensor, shared: &mut [Option<usize>]) -> Result<()> {
        let argument = |text: String| Diagnostic::new(ErrorKind::Argument, text);
        let Some(o) = self.outputs().iter().position(|p| p.name == present) else {
            let names: Vec<&str> = self.outputs().iter().map(|p| p.name.as_str()).collect();
            return Err(argument(format!("the model has no output {present:?}"))
                .help(format!("its outputs are {}", names.join(", "))));
        };
        if tensor.device().identity() != self.device.identity() {
            return Err(argument(format!("{tensor:?} is in the memory of another device than the session's"))
                .help("make it with Session::zeros of this session"));
        }
        may_share(self.model.metadata(), i, o)?;
        match shared.get_mut(o).and_then(|s| s.replace(i)) {
            Some(_) => Err(argument(format!("output {present:?} goes to the memory of two inputs"))
                .help("give each input that is shared an output of its own")),
            None => Ok(()),
        }
    }

    /// Bytes of pools that idle contexts hold.
    pub fn pool_bytes(&self) -> usize {
        lock(&self.idle).iter().flat_map(|c| &c.pools).map(Pool::bytes).sum()
    }

    /// Gives the memory of idle contexts back.
    ///
    /// # Errors
    /// `Device` when a device finds that memory was overrun.
    pub fn trim(&self) -> Result<()> {
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.into_iter().try_for_each(|c| self.end(c))
    }

    fn end(&self, mut c: Context) -> Result<()> {
        let pools = c.pools.iter_mut().chain(&mut c.staged_inputs).chain(&mut c.staged_outputs);
        let freed = pools.map(Pool::release).fold(Ok(()), Result::and);
        self.device.close_stream(c.stream).and(freed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(e) = self.trim() {
            tracing::error!(error = %e, "a session ended with damaged memory");
        }
    }
}

/// Copies that keep an idle device busy for a while: what is timed after them was queued before the device came to it, so that its time
/// is the device's own. The memory is in use until the stream was waited for.
fn lead(device: &Arc<dyn Device>, stream: Stream) -> Result<Buffer> {
    const HALF: usize = 16 << 20;
    let scratch = Buffer::new(device, Space::Device, 2 * HALF)?;
    let at = |offset: usize| (scratch.addr() + offset, Space::Device);
    for _ in 0..16 {
        // SAFETY: the halves of a live buffer.
        unsafe { device.copy(stream, at(HALF), at(0), HALF)? };
    }
    Ok(scratch)
}

/// An input as it is given.
#[derive(Clone)]
enum Bound<'v> {
    View(View<'v>),
    Shared(&'v DeviceTensor),
}

impl<'v> Bound<'v> {
    fn dtype(&self) -> DType {
        match self {
            Bound::View(v) => v.dtype,
            Bound::Shared(t) => t.dtype(),
        }
    }
    fn shape(&self) -> &[usize] {
        match self {
            Bound::View(v) => &v.shape,
            Bound::Shared(t) => t.shape(),
        }
    }
    fn tensor(&self) -> Option<&'v DeviceTensor> {
        match self {
            Bound::View(_) => None,
            Bound::Shared(t) => Some(t),
        }
    }
}

fn check_input(dtype: DType, shape: &[usize], p: &Port) -> Result<()> {
    let want = p.dtype()?;
    let fail = |kind, text: String| {
        Err(Diagnostic::new(kind, text)
            .note("expected", p.display())
            .note("got", format!("{}{:?}", dtype, shape))
            .help("give the input as the model declares it; names stand for extents of any size"))
    };
    if dtype != want {
        return fail(ErrorKind::Type, format!("input {:?} is {} but {want} is needed", p.name, dtype));
    }
    if want.bits() == 0 {
        return fail(ErrorKind::Unsupported, format!("input {:?} holds strings, which no device takes", p.name));
    }
    if shape.len() != p.rank() {
        let text = format!("input {:?} has {} axes but {} are needed", p.name, shape.len(), p.rank());
        return fail(ErrorKind::Shape, text);
    }
    for (axis, &d) in shape.iter().enumerate() {
        if let Some(f) = p.fixed_dim(axis)
            && usize::try_from(f).ok() != Some(d)
        {
            let text = format!("input {:?} has extent {d} at axis {axis} but {f} is needed", p.name);
            return fail(ErrorKind::Shape, text);
        }
    }
    Ok(())
}

/// Compile-time proof that sessions may be shared.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Session>();
    shared::<Model>();
};
