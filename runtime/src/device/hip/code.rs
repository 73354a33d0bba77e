//! A model's code on a device: modules, the functions of its kernels, and how each is launched.

use super::Shared;
use super::table::Handle;
use artifact::{Artifact, Kind};
use kernels::gpu::{Arch, Launch, Schedule};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ffi::{CString, c_uint, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex};
use tensor::{Diagnostic, ErrorKind, Result};

/// Integers that one launch of the kernel that stores them takes.
const STORE_INTS_MAX: usize = 16;

/// Arguments of a launch: words, as they lie in the kernel's argument segment.
pub(super) type Args = SmallVec<[u64; 48]>;

/// A generated kernel.
#[derive(Clone, Copy, Debug)]
struct Generated {
    /// A `Handle`.
    function: usize,
    launch: Launch,
}

/// What [`super::Hip`] keeps of a model. Ends its modules when the last session does.
pub(super) struct Code {
    device: Arc<Shared>,
    arch: &'static Arch,
    /// `Handle`s.
    modules: Vec<usize>,
    /// By position in the metadata; `None` for catalog kernels.
    generated: Vec<Option<Generated>>,
    /// The module of the hand-written kernels.
    catalog: Option<usize>,
    /// Why there is none, for the first call of one.
    no_catalog: Option<Diagnostic>,
    entries: Mutex<BTreeMap<&'static str, usize>>,
}

fn pointer(addr: usize) -> *mut c_void {
    with_exposed_provenance_mut(addr)
}

/// Splits `hip:gfx942/generated`.
fn label(text: &str) -> Option<(&str, &str, &str)> {
    let (target, part) = text.split_once('/')?;
    let (prefix, arch) = target.split_once(':')?;
    Some((prefix, arch, part))
}

/// The architecture of the artifact's code that fits the device best: for code objects its own, else the latest it runs.
fn choose(artifact: &Artifact, device: &Shared) -> Result<&'static Arch> {
    let labels: Vec<String> = artifact.sections_of(Kind::GpuCode).map(|(l, _)| l.to_string()).collect();
    let prefix = device.platform.prefix();
    let fits = labels.iter().filter_map(|l| {
        let (p, arch, part) = label(l)?;
        let arch = Arch::find(arch).ok()?;
        (p == prefix && part == "generated" && arch.runs_on(&device.arch)).then_some(arch)
    });
    let position = |a: &&'static Arch| kernels::gpu::arch::ARCHS.iter().position(|b| b.name == a.name);
    if let Some(best) = fits.max_by_key(position) {
        return Ok(best);
    }
    let mut there: Vec<&str> = labels.iter().filter_map(|l| l.split('/').next()).collect();
    there.dedup();
    let there = if there.is_empty() { "no GPU code".to_string() } else { format!("code for {}", there.join(", ")) };
    let base = device.arch.split(':').next().unwrap_or(&device.arch);
    let text = format!("the model holds {there}; this device is {} ({prefix}:{base})", device.name);
    let known = kernels::gpu::arch::ARCHS.iter().rev().find(|a| a.platform.name() == prefix && a.runs_on(base));
    let e = Diagnostic::new(ErrorKind::Unsupported, text);
    Err(match known {
        Some(a) => e.help(format!("compile it for the device: hip-compiler --target {}", a.target())),
        None => e.help(match Arch::find(base) {
            Err(why) => format!("run it on the cpu: {why}"),
            Ok(_) => "run it on the cpu".into(),
        }),
    })
}

impl Code {
    pub(super) fn load(device: &Arc<Shared>, artifact: &Artifact) -> Result<Code> {
        let arch = choose(artifact, device)?;
        let mut code = Code {
            device: device.clone(),
            arch,
            modules: Vec::new(),
            generated: Vec::new(),
            catalog: None,
            no_catalog: None,
            entries: Mutex::default(),
        };
        // Hashes first: a driver may run damaged code, or fail in ways that say nothing.
        let section = |part: &str| artifact.intact(Kind::GpuCode, &format!("{}/{part}", arch.target()));
        let kernels = &artifact.metadata().kernels;
        if let Some(image) = section("generated")?
            && !image.is_empty()
        {
            let module = code.module(&image, "generated")?;
            for (i, k) in kernels.iter().enumerate() {
                code.generated.push(if k.id.is_some() { None } else { Some(code.kernel(module, i, k)?) });
            }
        }
        match section("catalog")? {
            Some(image) => code.catalog = Some(code.module(&image, "catalog")?),
            None => match device.compiled(arch) {
                Ok(image) => code.catalog = Some(code.module(&image, "catalog")?),
                Err(why) if kernels.iter().any(|k| k.id.is_some()) => {
                    let text = format!("the model calls hand-written kernels and holds none for {}", arch.target());
                    return Err(Diagnostic::new(ErrorKind::Unsupported, text)
                        .note("compiling them here", why.to_string())
                        .help("compile the model again where clang is installed, or install the vendor's run-time compiler"));
                }
                Err(why) => code.no_catalog = Some(why),
            },
        }
        Ok(code)
    }

    fn module(&mut self, image: &[u8], part: &str) -> Result<usize> {
        // Text ends with a NUL; a code object says how long it is. Anything else would be read past its end.
        if !image.starts_with(b"\x7fELF") && image.last() != Some(&0) {
            let text =
                format!("the {part} code for {} is neither a code object nor text with a NUL", self.arch.target());
            return Err(Diagnostic::new(ErrorKind::Malformed, text).help("compile the model again"));
        }
        let module = self.device.platform.load_module(image).map_err(|e| {
            e.note("code", format!("{} of {}, {} bytes", part, self.arch.target(), image.len()))
                .note("device", format!("{} ({})", self.device.name, self.device.arch))
        })?;
        let module = module.expose_provenance();
        self.modules.push(module);
        Ok(module)
    }

    fn function(&self, module: usize, name: &str) -> Result<usize> {
        let text = CString::new(name).map_err(|_| Diagnostic::new(ErrorKind::Malformed, format!("kernel {name:?}")))?;
        let mut f: Handle = null_mut();
        // SAFETY: a live module and a text with a NUL.
        unsafe { self.device.table().module_function(&mut f, pointer(module), text.as_ptr()) }
            .map_err(|e| Diagnostic::from(e).note("kernel", name.to_string()))?;
        Ok(f.expose_provenance())
    }

    fn kernel(&self, module: usize, i: usize, k: &artifact::Kernel) -> Result<Generated> {
        let malformed = |why: String| {
            let text = format!("kernel {i} {:?} {why}", k.name);
            Diagnostic::new(ErrorKind::Malformed, text).help("compile the model again with this version")
        };
        let gpu = k.gpu.as_ref().ok_or_else(|| malformed("does not say how it is launched on a GPU".into()))?;
        let schedule = Schedule::from_name(&gpu.schedule)
            .ok_or_else(|| malformed(format!("has schedule {:?}, which this build does not know", gpu.schedule)))?;
        let launch = Launch { schedule, block: gpu.block, vector: gpu.vector };
        if !launch.is_valid() {
            return Err(malformed(format!("has launch {launch:?}")));
        }
        Ok(Generated { function: self.function(module, &k.name)?, launch })
    }

    /// Queues a generated kernel: the arguments as the program has them, then the number of points.
    ///
    /// # Safety
    /// As [`super::super::Device::launch`].
    pub(super) unsafe fn launch_generated(
        &self,
        stream: Handle,
        kernel: u32,
        args: &[u64],
        points: usize,
    ) -> Result<()> {
        let k = usize::try_from(kernel).ok().and_then(|i| self.generated.get(i).copied().flatten());
        let k = k.ok_or_else(|| crate::run::internal(format!("the program launches kernel {kernel}")))?;
        let points = i64::try_from(points).map_err(|_| crate::run::internal("more points than an i64 holds"))?;
        let grid = k.launch.grid(self.arch.wave, points);
        if grid == 0 {
            return Ok(());
        }
        let mut words: Args = args.into();
        words.push(points.cast_unsigned());
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, k.function, [grid, 1, 1], k.launch.block, 0, &mut words) }
    }

    /// Queues a kernel of the catalog: addresses, integers, scalars.
    ///
    /// # Safety
    /// As [`super::super::Device::launch`].
    pub(super) unsafe fn launch_catalog(
        &self,
        stream: Handle,
        id: u32,
        bufs: &[u64],
        ints: &[i64],
        scalars: &[f64],
    ) -> Result<()> {
        let plan = kernels::gpu::catalog::plan(id, ints, self.arch)
            .map_err(|why| Diagnostic::new(ErrorKind::Unsupported, why.0))?;
        if plan.grid.contains(&0) {
            return Ok(());
        }
        let function = self.entry(plan.entry)?;
        let mut words: Args = bufs.into();
        words.extend(ints.iter().map(|i| i.cast_unsigned()));
        words.extend(scalars.iter().map(|s| s.to_bits()));
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, function, plan.grid, plan.block, plan.shared_bytes, &mut words) }
    }

    /// Queues writes of integers: a kernel's arguments carry them, so neither the host nor the stream waits.
    ///
    /// # Safety
    /// As [`super::super::Device::store_ints`].
    pub(super) unsafe fn store_ints(
        &self,
        stream: Handle,
        dst: usize,
        dtype: tensor::DType,
        values: &[i64],
    ) -> Result<()> {
        let size = dtype.size().unwrap_or(8);
        let plan = kernels::gpu::catalog::store_ints();
        let function = self.entry(plan.entry)?;
        for (i, part) in values.chunks(STORE_INTS_MAX).enumerate() {
            let at = dst + i * STORE_INTS_MAX * size;
            let mut words: Args = SmallVec::new();
            words.push(u64::try_from(at).unwrap_or(0));
            words.push(i64::from(dtype.onnx()).cast_unsigned());
            words.push(u64::try_from(part.len()).unwrap_or(0));
            words.extend(part.iter().map(|v| v.cast_unsigned()));
            words.resize(3 + STORE_INTS_MAX, 0);
            // SAFETY: the caller's promise.
            unsafe { self.launch(stream, function, plan.grid, plan.block, plan.shared_bytes, &mut words)? };
        }
        Ok(())
    }

    fn entry(&self, name: &'static str) -> Result<usize> {
        let mut entries = crate::team::lock(&self.entries);
        if let Some(&f) = entries.get(name) {
            return Ok(f);
        }
        let module = self.catalog.ok_or_else(|| {
            let none = || crate::run::internal("no hand-written kernels are loaded");
            self.no_catalog.clone().unwrap_or_else(none).note("kernel", name.to_string())
        })?;
        let f = self.function(module, name)?;
        entries.insert(name, f);
        Ok(f)
    }

    /// # Safety
    /// The words are what the function takes, over live memory; the stream is live.
    unsafe fn launch(
        &self,
        stream: Handle,
        function: usize,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        words: &mut Args,
    ) -> Result<()> {
        use super::table::flag;
        let mut bytes = size_of_val(&words[..]);
        let number = std::ptr::without_provenance_mut::<c_void>;
        let mut extra = [
            number(flag::LAUNCH_BUFFER_POINTER),
            words.as_mut_ptr().cast(),
            number(flag::LAUNCH_BUFFER_SIZE),
            std::ptr::from_mut(&mut bytes).cast(),
            number(self.device.platform.launch_end()),
        ];
        let [x, y, z]: [c_uint; 3] = grid;
        // SAFETY: the driver copies the arguments before it returns; the rest is the caller's promise.
        unsafe {
            self.device.table().launch(
                pointer(function),
                x,
                y,
                z,
                block,
                1,
                1,
                shared_bytes,
                stream,
                null_mut(),
                extra.as_mut_ptr(),
            )?;
        }
        Ok(())
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let _ = self.device.enter();
        for &m in &self.modules {
            // SAFETY: sessions wait for their streams; nobody launches these any more.
            if let Err(e) = unsafe { self.device.table().module_unload(pointer(m)) } {
                tracing::error!(error = %e, "a module cannot be ended");
            }
        }
    }
}
