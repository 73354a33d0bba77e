//! A compiled model: save it, load it elsewhere, open sessions on it.

use crate::emit;
use crate::options::{CompileOptions, Constants, real_folder};
use artifact::{Artifact, Kind, Metadata};
use bytes::Bytes;
use ir::Module;
use ir::hip::Hip;
use lower::host::HostProgram;
use runtime::{Code, ConstantStore, ConstantsFrom, Device, Model, Session, SessionOptions};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tensor::{Diagnostic, ErrorKind, Result};

/// What the compiler hands out and what an artifact loads as. Cheap to clone; sessions share its code and constants.
#[derive(Clone)]
pub struct CompiledModel(Arc<Inner>);

struct Inner {
    artifact: Arc<Artifact>,
    from: ConstantsFrom,
    /// Code that came with the model (a shared object); else made from the artifact's object on first use.
    code: Option<Code>,
    model: Mutex<Option<Arc<Model>>>,
    /// Present after a compile in this process: what is needed to write the constants file.
    fresh: Option<(Module<Hip>, HostProgram, CompileOptions)>,
    /// How long code generation took, by target.
    times: Vec<(String, std::time::Duration)>,
}

/// Which device a session runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// This machine's processor.
    #[default]
    Cpu,
    /// The processor with memory that host code may not touch: finds code that only works when device and host share memory.
    Guard,
    /// Checks calls and computes nothing.
    Null,
    /// A GPU, by its position among all that this machine has.
    Hip(usize),
}

impl DeviceKind {
    /// From its name.
    ///
    /// # Errors
    /// `Argument` with the known names.
    pub fn parse(name: &str) -> Result<DeviceKind> {
        match name {
            "cpu" => Ok(DeviceKind::Cpu),
            "guard" => Ok(DeviceKind::Guard),
            "null" => Ok(DeviceKind::Null),
            _ => DeviceKind::gpu(name).ok_or_else(|| {
                Diagnostic::new(ErrorKind::Argument, format!("there is no device {name:?}"))
                    .help("the devices are cpu, hip (the first GPU), hip:N, guard and null")
            }),
        }
    }
    /// `hip`, `hip:1`; `gpu` and `cuda` say the same.
    fn gpu(name: &str) -> Option<DeviceKind> {
        let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
        // A sign or a space is no number of a device.
        let digits = index.bytes().all(|b| b.is_ascii_digit());
        let index = index.parse().ok().filter(|_| digits)?;
        matches!(kind, "hip" | "gpu" | "cuda").then_some(DeviceKind::Hip(index))
    }
    /// The target to compile for so that a model runs on this device: `cpu`, `hip:gfx942`, `cuda:sm_90`.
    ///
    /// # Errors
    /// `Device` when there is no such GPU, `Unsupported` when no code is generated for its architecture.
    pub fn target(self) -> Result<String> {
        match self {
            DeviceKind::Hip(index) => runtime::device::Hip::open(index)?.target(),
            _ => Ok("cpu".into()),
        }
    }
    /// Opens the device: what sessions run on, for those who use its memory themselves.
    ///
    /// # Errors
    /// `Device` when there is no such device.
    pub fn open(self) -> Result<Arc<dyn Device>> {
        Ok(match self {
            DeviceKind::Cpu => Arc::new(runtime::device::Cpu::new()),
            DeviceKind::Guard => Arc::new(runtime::device::Guard::new()),
            DeviceKind::Null => Arc::new(runtime::device::Null::new()),
            DeviceKind::Hip(index) => Arc::new(runtime::device::Hip::open(index)?),
        })
    }
}

impl std::fmt::Debug for CompiledModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompiledModel({:?})", self.metadata().model)
    }
}

impl CompiledModel {
    #[cfg(feature = "llvm")]
    pub(crate) fn fresh(
        artifact: Artifact,
        parts: std::collections::BTreeMap<usize, Bytes>,
        hip: Module<Hip>,
        program: HostProgram,
        options: CompileOptions,
        times: Vec<(String, std::time::Duration)>,
    ) -> CompiledModel {
        let mut from = ConstantsFrom::default();
        from.parts = parts;
        from.folder = options.artifact_folder.clone();
        let fresh = Some((hip, program, options));
        CompiledModel(Arc::new(Inner {
            artifact: Arc::new(artifact),
            from,
            code: None,
            model: Mutex::default(),
            fresh,
            times,
        }))
    }

    /// Loads an artifact that [`CompiledModel::save`] wrote, or a shared object that [`CompiledModel::save_native`] wrote. Constants
    /// are mapped from the file beside it. A shared object's code runs in this process: load only what you trust.
    ///
    /// # Errors
    /// `Io` when a file is missing, `Malformed` when it is not what it should be or belongs to another version.
    pub fn load(path: impl AsRef<Path>) -> Result<CompiledModel> {
        CompiledModel::read(path.as_ref()).map_err(Diagnostic::or_help)
    }

    fn read(path: &Path) -> Result<CompiledModel> {
        let head = Head::read(path)?;
        let (artifact, code) = if head.is_elf {
            let (artifact, code) = runtime::open_shared_object(path)?;
            (artifact, Some(code))
        } else {
            (Arc::new(Artifact::open(path)?), None)
        };
        let from = ConstantsFrom::default();
        let times = Vec::new();
        Ok(CompiledModel(Arc::new(Inner { artifact, from, code, model: Mutex::default(), fresh: None, times })))
    }

    /// Inputs, outputs, constants, kernels, memory: everything the artifact says about itself.
    pub fn metadata(&self) -> &Metadata {
        self.0.artifact.metadata()
    }

    /// The artifact, with its sections.
    pub fn artifact(&self) -> &Artifact {
        &self.0.artifact
    }

    /// Time that generating code took, by target, in the threads that did it; empty for a loaded model.
    pub fn code_times(&self) -> &[(String, std::time::Duration)] {
        &self.0.times
    }

    /// LLVM bitcode of the host code and the generated kernels. `None` for a shared object.
    pub fn bitcode(&self) -> Option<Bytes> {
        self.0.artifact.section(Kind::HostBitcode, "")
    }

    /// Sections of GPU code: label (`hip:gfx942/generated`) and bytes.
    pub fn gpu_code(&self) -> Vec<(String, Bytes)> {
        self.0.artifact.sections_of(Kind::GpuCode).map(|(label, b)| (label.to_string(), b)).collect()
    }

    /// Writes the artifact to `path` and its constants beside it, with the extension `constants`.
    ///
    /// # Errors
    /// `Io` with the path; `Argument` for a model that was itself loaded (copy its files instead), and for another folder than the
    /// [`CompileOptions::artifact_folder`] it was compiled for.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let write = || artifact::write_beside(path, |f| std::io::Write::write_all(f, self.0.artifact.bytes()));
        let _both = artifact::lock_folder(path);
        self.save_constants(path).and_then(|()| write()).map_err(Diagnostic::or_help)
    }

    /// Writes a shared object that runs in processes without LLVM, and its constants beside it.
    ///
    /// # Errors
    /// As [`CompiledModel::save`], and when linking fails.
    #[cfg(feature = "llvm")]
    pub fn save_native(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let write = || {
            let gpu: Vec<_> = self.0.artifact.sections_of(Kind::GpuCode).collect();
            codegen::native::link_shared(&self.object()?, &artifact::gpu::pack(&gpu), path)
        };
        let _both = artifact::lock_folder(path);
        self.save_constants(path).and_then(|()| write()).map_err(Diagnostic::or_help)
    }

    fn save_constants(&self, path: &Path) -> Result<()> {
        let Some((hip, program, options)) = &self.0.fresh else {
            return Err(Diagnostic::new(ErrorKind::Argument, "this model was loaded, not compiled, in this process")
                .help("copy its artifact and its .constants file"));
        };
        if options.constants == Constants::Reference
            && let Some(folder) = &options.artifact_folder
        {
            let (meant, here) = (real_folder(folder).ok(), path.parent().and_then(|p| real_folder(p).ok()));
            if meant != here {
                let text =
                    format!("the model was compiled for the folder {}, not for {}", folder.display(), path.display());
                return Err(Diagnostic::new(ErrorKind::Argument, text).help("save it there, then move the folder"));
            }
        }
        emit::write_constants(path, hip, program, options)
    }

    #[cfg(feature = "llvm")]
    fn object(&self) -> Result<Bytes> {
        let artifact = &self.0.artifact;
        let first = artifact.sections_of(Kind::HostObject).next().map(|(label, _)| label);
        // Its hash first: a damaged object would run as whatever its bytes now say.
        let intact = first.map_or(Ok(None), |label| artifact.intact(Kind::HostObject, label));
        let intact = intact.map_err(|e| match artifact.path() {
            Some(p) => e.note("file", p.display().to_string()),
            None => e,
        });
        intact?.ok_or_else(|| Diagnostic::new(ErrorKind::Malformed, "the artifact holds no code for this machine"))
    }

    fn model(&self) -> Result<Arc<Model>> {
        let mut slot = self.0.model.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(m) = &*slot {
            return Ok(m.clone());
        }
        let code = match &self.0.code {
            Some(c) => c.clone(),
            None => self.load_code()?,
        };
        let m = Model::new(self.0.artifact.clone(), code, store(), &self.0.from)?;
        Ok(slot.insert(m).clone())
    }

    #[cfg(feature = "llvm")]
    fn load_code(&self) -> Result<Code> {
        Ok(codegen::jit::load(&self.object()?)?.into_runtime())
    }

    #[cfg(not(feature = "llvm"))]
    fn load_code(&self) -> Result<Code> {
        Err(Diagnostic::new(ErrorKind::Unsupported, "this build has no LLVM and cannot load an artifact's object")
            .help("compile with --mode native and load the shared object"))
    }

    /// Opens a session on a device.
    ///
    /// # Errors
    /// `Malformed` when the artifact does not fit this build, `Io` when constants are missing, `Device` when there is no such device,
    /// `Unsupported` when the artifact holds no code for it.
    pub fn session(&self, device: DeviceKind, options: SessionOptions) -> Result<Session> {
        self.model().and_then(|m| Session::new(m, device.open()?, options)).map_err(Diagnostic::or_help)
    }
}

/// Constants of every model of the process: shared by content.
fn store() -> &'static Arc<ConstantStore> {
    static STORE: std::sync::OnceLock<Arc<ConstantStore>> = std::sync::OnceLock::new();
    STORE.get_or_init(ConstantStore::new)
}

/// The first bytes of a file.
struct Head {
    is_elf: bool,
}

impl Head {
    fn read(path: &Path) -> Result<Head> {
        use std::io::Read;
        let fail = |e: std::io::Error| Diagnostic::new(ErrorKind::Io, format!("cannot read {}: {e}", path.display()));
        let mut magic = Vec::new();
        std::fs::File::open(path).map_err(fail)?.take(4).read_to_end(&mut magic).map_err(fail)?;
        Ok(Head { is_elf: magic == b"\x7fELF" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_by_name() {
        let check = |name: &str, want: Option<DeviceKind>| assert_eq!(DeviceKind::parse(name).ok(), want, "{name}");
        check("cpu", Some(DeviceKind::Cpu));
        check("hip", Some(DeviceKind::Hip(0)));
        check("gpu:2", Some(DeviceKind::Hip(2)));
        check("cuda:10", Some(DeviceKind::Hip(10)));
        ["hip:", "hip:-1", "hip:+1", "hip:x", "tpu", "cpu:0", "", ":", "hip:99999999999999999999"]
            .iter()
            .for_each(|n| check(n, None));
    }
}
