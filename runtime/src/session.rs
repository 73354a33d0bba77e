//! Sessions: runs of a model on a device.

use crate::abi::RunCtx;
use crate::device::{Buffer, Device, Loaded, Space, Stream};
use crate::io::{Collect, HostInput, Key, OutputAllocator, RunInputs, contiguous};
use crate::model::Model;
use crate::profile::{Counters, Op, Profile, Recorder, Report};
use crate::run::{Context, InputState, Pool, Run};
use crate::table::panic_error;
use crate::team::{Teams, lock};
use artifact::Port;
use kernels::team::Team;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tensor::{Diagnostic, ErrorKind, Result, Tensor, View};

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

    /// Runs and collects the outputs as tensors.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn collect(&self, inputs: &RunInputs<'_>, options: &RunOptions<'_>) -> Result<(Vec<Tensor>, Report)> {
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
        let views = self.bind(inputs, &defaults)?;
        let mut context = match lock(&self.idle).pop() {
            Some(c) => c,
            None => self.context()?,
        };
        let team = self.teams.enter(options.threads);
        let result = self.run_in(&mut context, &views, outputs, options, &team);
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
        views: &[View<'_>],
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
        let mut held = Vec::with_capacity(views.len());
        let mut states = Vec::with_capacity(views.len());
        for ((v, port), staged) in views.iter().zip(self.inputs()).zip(&mut context.staged_inputs) {
            let named = |e: Diagnostic| e.note("input", format!("{:?}", port.name));
            let host = contiguous(v).map_err(named)?;
            let mut addr = host.addr();
            let copied = matches!(host, HostInput::Copied(_));
            if !properties.host_is_device {
                let n = host.bytes();
                addr = staged.ensure(device, Space::Device, n).map_err(named)?.0;
                // SAFETY: the staging buffer has `n` bytes and is this run's; the host range was checked and is borrowed.
                unsafe { device.copy(stream, (addr, Space::Device), (host.addr(), Space::Host), n) }.map_err(named)?;
            }
            counters.input_copies += u64::from(copied || !properties.host_is_device);
            held.push(host);
            let dims: Option<_> = v.shape.iter().map(|&d| i64::try_from(d).ok()).collect();
            let dims = dims.ok_or_else(|| named(Diagnostic::new(ErrorKind::Shape, "an extent beyond 63 bits")))?;
            states.push(InputState { addr, dims });
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

    fn bind<'v>(&self, inputs: &RunInputs<'v>, defaults: &'v [Option<Tensor>]) -> Result<Vec<View<'v>>> {
        let ports = self.inputs();
        let argument = |text: String| Diagnostic::new(ErrorKind::Argument, text);
        let all = || ports.iter().map(|p| format!("{:?} {}", p.name, p.display())).collect::<Vec<_>>().join(", ");
        let mut bound: Vec<Option<View<'v>>> = vec![None; ports.len()];
        for (key, view) in &inputs.items {
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
            if slot.replace(view.clone()).is_some() {
                let name = i.and_then(|i| ports.get(i)).map_or("", |p| p.name.as_str());
                return Err(argument(format!("input {name:?} is given twice")).help("leave one of the two out"));
            }
        }
        for (slot, default) in bound.iter_mut().zip(defaults) {
            *slot = slot.take().or_else(|| default.as_ref().map(Tensor::view));
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
        let mut views = Vec::with_capacity(ports.len());
        for (v, p) in bound.into_iter().flatten().zip(ports) {
            check_input(&v, p)?;
            views.push(v);
        }
        Ok(views)
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

fn check_input(v: &View<'_>, p: &Port) -> Result<()> {
    let want = p.dtype()?;
    let fail = |kind, text: String| {
        Err(Diagnostic::new(kind, text)
            .note("expected", p.display())
            .note("got", format!("{}{:?}", v.dtype, v.shape.as_slice()))
            .help("give the input as the model declares it; names stand for extents of any size"))
    };
    if v.dtype != want {
        return fail(ErrorKind::Type, format!("input {:?} is {} but {want} is needed", p.name, v.dtype));
    }
    if want.bits() == 0 {
        return fail(ErrorKind::Unsupported, format!("input {:?} holds strings, which no device takes", p.name));
    }
    if v.shape.len() != p.rank() {
        let text = format!("input {:?} has {} axes but {} are needed", p.name, v.shape.len(), p.rank());
        return fail(ErrorKind::Shape, text);
    }
    for (axis, &d) in v.shape.iter().enumerate() {
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
