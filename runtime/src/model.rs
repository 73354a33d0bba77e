//! A compiled model: metadata, code and constants, checked and ready for sessions.

use crate::abi::{self, InitFn, RunFn, Table, abi_hash};
use crate::catalog::{CpuKernels, Kernels};
use crate::constants::{ConstantSet, ConstantStore, ConstantsFrom};
use crate::host_ops::{HOST_OPS, HostFn, Resolved, resolve};
use crate::table::TABLE;
use artifact::{Artifact, Metadata};
use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use tensor::{Diagnostic, ErrorKind, Result};

/// Longest run frame, in words.
const MAX_FRAME_WORDS: u64 = 1 << 24;

/// The entry points of a compiled model.
#[derive(Clone)]
pub struct Code {
    init: InitFn,
    run: RunFn,
    frame_words: u64,
    abi_hash: u64,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Code({} frame words, ABI {:#018x})", self.frame_words, self.abi_hash)
    }
}

impl Code {
    /// Code that is already in memory. `keep` holds whatever owns it.
    ///
    /// # Safety
    /// The functions follow the ABI of `docs/ABI.md` as of `abi_hash`, stay valid while `keep` lives, and `run` may be called from
    /// several threads at once with contexts and frames of their own.
    pub unsafe fn new(
        init: InitFn,
        run: RunFn,
        frame_words: u64,
        abi_hash: u64,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Code {
        Code { init, run, frame_words, abi_hash, _keep: keep }
    }

    /// Loads a native library. Its code runs in this process: load only what you trust.
    ///
    /// # Errors
    /// `Io` when the library cannot be loaded, `Malformed` when it is truncated or no compiled model.
    pub fn from_shared_object(path: impl AsRef<Path>) -> Result<Code> {
        let path = path.as_ref();
        let library = Library::open(path)?;
        let code = Code {
            init: library.function(abi::SYM_INIT)?,
            run: library.function(abi::SYM_RUN)?,
            frame_words: library.word(abi::SYM_FRAME_WORDS)?,
            abi_hash: library.word(abi::SYM_ABI_HASH)?,
            _keep: Arc::new(()),
        };
        Ok(Code { _keep: Arc::new(library), ..code })
    }

    /// Hash of the ABI it was compiled against.
    pub fn abi_hash(&self) -> u64 {
        self.abi_hash
    }
}

/// Loads a native library with the metadata and the GPU code it carries. Constants lie beside it, as beside an artifact.
///
/// # Errors
/// As [`Code::from_shared_object`] and [`Artifact::from_metadata`].
pub fn open_shared_object(path: impl AsRef<Path>) -> Result<(Arc<Artifact>, Code)> {
    let path = path.as_ref();
    let code = Code::from_shared_object(path)?;
    let library = Library::open(path)?;
    let len = library.word("hip_ep_metadata_len")?;
    let len = usize::try_from(len).ok().filter(|&l| l <= artifact::metadata::MAX_METADATA_BYTES);
    let len = len.ok_or_else(|| library.malformed("its metadata is too long"))?;
    let start: *const u8 = library.data(abi::SYM_METADATA)?;
    // SAFETY: the library states that so many bytes lie there; it stays loaded while they are read.
    let bytes = unsafe { std::slice::from_raw_parts(start, len) };
    let named = |e: Diagnostic| e.note("library", path.display().to_string());
    let artifact = Artifact::from_metadata(bytes, Some(path)).map_err(named)?;
    let gpu = match library.word(artifact::gpu::SYM_GPU_LEN) {
        // Libraries for the CPU alone need not have the symbol.
        Err(_) => Vec::new(),
        Ok(len) => {
            let len = usize::try_from(len).ok().filter(|&l| l <= artifact::gpu::MAX_BYTES);
            let len = len.ok_or_else(|| library.malformed("its GPU code is too long"))?;
            let start: *const u8 = library.data(artifact::gpu::SYM_GPU)?;
            // SAFETY: the library states that so many bytes lie there; it stays loaded while they are read.
            artifact::gpu::unpack(unsafe { std::slice::from_raw_parts(start, len) }).map_err(named)?
        }
    };
    Ok((Arc::new(artifact.with_gpu_code(&gpu).map_err(named)?), code))
}

struct Library {
    inner: libloading::Library,
    path: String,
}

impl Library {
    fn open(path: &Path) -> Result<Library> {
        let name = path.display().to_string();
        // A name without a folder would be searched in the system's folders.
        let full = std::fs::canonicalize(path)
            .map_err(|e| Diagnostic::new(ErrorKind::Io, format!("cannot read the native library {name}: {e}")))?;
        crate::elf::check_whole(&full)?;
        // SAFETY: loading runs the library's initializers; a compiled model has none, and the caller trusts the file.
        let inner = unsafe { libloading::Library::new(&full) }.map_err(|e| {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            Diagnostic::new(ErrorKind::Io, format!("cannot load the native library {name}: {why}"))
                .help("it must be a shared object that hip-compiler --mode native wrote for this machine")
        })?;
        Ok(Library { inner, path: name })
    }
    fn malformed(&self, why: &str) -> Diagnostic {
        Diagnostic::new(ErrorKind::Malformed, format!("{} is no compiled model: {why}", self.path))
    }
    fn address(&self, name: &str) -> Result<*const std::ffi::c_void> {
        // SAFETY: only the address is taken.
        let found = unsafe { self.inner.get::<*const std::ffi::c_void>(name.as_bytes()) };
        let p = *found.map_err(|_| self.malformed(&format!("the symbol {name} is missing")))?;
        if p.is_null() { Err(self.malformed(&format!("the symbol {name} is null"))) } else { Ok(p) }
    }
    fn data<T>(&self, name: &str) -> Result<*const T> {
        let p = self.address(name)?.cast::<T>();
        if p.is_aligned() { Ok(p) } else { Err(self.malformed(&format!("the symbol {name} is not aligned"))) }
    }
    fn word(&self, name: &str) -> Result<u64> {
        // SAFETY: the symbol of that name is a u64 in every compiled model.
        Ok(unsafe { self.data::<u64>(name)?.read() })
    }
    fn function<F: Copy>(&self, name: &str) -> Result<F> {
        self.address(name)?;
        // SAFETY: the symbol of that name is a function of that type in every compiled model; the library outlives the code.
        let f = unsafe { self.inner.get::<F>(name.as_bytes()) };
        f.map(|f| *f).map_err(|_| self.malformed(&format!("the symbol {name} is missing")))
    }
}

/// What a model may call outside its own code.
#[derive(Clone)]
#[non_exhaustive]
pub struct Services {
    /// Catalog kernels.
    pub kernels: Arc<dyn Kernels>,
    /// Host ops.
    pub host_ops: &'static [(&'static str, HostFn)],
}

impl Default for Services {
    fn default() -> Services {
        Services { kernels: Arc::new(CpuKernels::default()), host_ops: HOST_OPS }
    }
}

/// A compiled model, shared by its sessions.
pub struct Model {
    artifact: Arc<Artifact>,
    code: Code,
    constants: ConstantSet,
    kernels: Arc<dyn Kernels>,
    host_ops: Vec<Resolved>,
    _store: Arc<ConstantStore>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({:?}, {:?})", self.metadata().model, self.code)
    }
}

impl Model {
    /// Puts a model together.
    ///
    /// # Errors
    /// `Malformed` when code, metadata and this build do not fit (another ABI, an unknown kernel), `Unsupported` for unknown host
    /// ops and for code this machine cannot run, and as [`ConstantStore::load`].
    pub fn new(
        artifact: Arc<Artifact>,
        code: Code,
        store: &Arc<ConstantStore>,
        from: &ConstantsFrom,
    ) -> Result<Arc<Model>> {
        Model::with(artifact, code, store, from, Services::default())
    }

    /// The same with other kernels and host ops.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn with(
        artifact: Arc<Artifact>,
        code: Code,
        store: &Arc<ConstantStore>,
        from: &ConstantsFrom,
        services: Services,
    ) -> Result<Arc<Model>> {
        let m = artifact.metadata();
        for (what, hash) in [("metadata", m.abi_hash), ("code", code.abi_hash)] {
            if hash != abi_hash() {
                let text = format!("the model's {what} is of ABI {hash:#018x}; this runtime has {:#018x}", abi_hash());
                let e = Diagnostic::new(ErrorKind::Malformed, text).help("compile the model again with this version");
                return Err(match artifact.path() {
                    Some(p) => e.note("file", p.display().to_string()),
                    None => e,
                });
            }
        }
        // The compiler may embed metadata before it knows the frame: then the code alone says.
        if (m.frame_words != 0 && code.frame_words != m.frame_words) || code.frame_words > MAX_FRAME_WORDS {
            let text =
                format!("the code has a frame of {} words, the metadata says {}", code.frame_words, m.frame_words);
            return Err(Diagnostic::new(ErrorKind::Malformed, text));
        }
        if let Some(t) = &m.target {
            crate::machine::check(&t.features)?;
        }
        for k in &m.kernels {
            let Some(id) = k.id else { continue };
            match services.kernels.name(id) {
                Some(name) if name == k.name => {}
                other => {
                    let text = format!("the model calls kernel {id} {:?}, which is {other:?} in this build", k.name);
                    let e = Diagnostic::new(ErrorKind::Malformed, text);
                    return Err(e.help("compile the model again with this version"));
                }
            }
        }
        let host_ops = resolve(&m.host_ops, services.host_ops)?;
        let constants = store.load(&artifact, from)?;
        let table: &'static Table = &TABLE;
        // SAFETY: the code follows this ABI, as its hash says; the table is static.
        let status = unsafe { (code.init)(table) };
        if status != 0 {
            let text = format!("the compiled model refused the runtime's table with status {status}");
            return Err(Diagnostic::new(ErrorKind::Malformed, text).help("compile the model again with this version"));
        }
        Ok(Arc::new(Model { artifact, code, constants, kernels: services.kernels, host_ops, _store: store.clone() }))
    }

    /// What the model says about itself.
    pub fn metadata(&self) -> &Metadata {
        self.artifact.metadata()
    }
    /// The artifact it came from.
    pub fn artifact(&self) -> &Arc<Artifact> {
        &self.artifact
    }
    /// Its constants.
    pub fn constants(&self) -> &ConstantSet {
        &self.constants
    }
    pub(crate) fn kernels(&self) -> &dyn Kernels {
        &*self.kernels
    }
    pub(crate) fn host_op(&self, i: usize) -> Option<&Resolved> {
        self.host_ops.get(i)
    }
    pub(crate) fn frame_words(&self) -> usize {
        usize::try_from(self.code.frame_words).unwrap_or(0)
    }
    pub(crate) fn entry(&self) -> RunFn {
        self.code.run
    }
}
