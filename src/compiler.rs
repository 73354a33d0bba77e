//! The way of a model, on one screen.

#[cfg(feature = "llvm")]
use crate::emit;
use crate::model::CompiledModel;
use crate::options::{CompileOptions, Target};
use bytes::Bytes;
use ir::{Module, Onnx, Registry};
#[cfg(feature = "llvm")]
use lower::pass::Slot;
use lower::pass::{Hooks, Lowered};
#[cfg(feature = "llvm")]
use prost::Message;
use std::path::Path;
use std::sync::Arc;
use tensor::{Diagnostic, Result};

/// Compiles models.
///
/// ```
/// use hip_ep::{Compiler, DeviceKind, RunInputs, Tensor};
/// # fn main() -> hip_ep::Result<()> {
/// # let text = hip_ep::doc::RELU_MODEL;
/// let model = Compiler::new().compile_text(text)?;
/// let session = model.session(DeviceKind::Cpu, Default::default())?;
/// let x = Tensor::from_f32(&[3], &[-1.0, 0.0, 2.0]);
/// let (y, _) = session.collect(&RunInputs::in_order(&[x]), &Default::default())?;
/// assert_eq!(y[0].to_f64_vec(), [0.0, 0.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    options: CompileOptions,
}

impl Compiler {
    /// With default options.
    pub fn new() -> Compiler {
        Compiler::default()
    }
    /// With these options.
    pub fn with(options: CompileOptions) -> Compiler {
        Compiler { options }
    }
    /// Compiles for `target` alone.
    pub fn target(mut self, target: Target) -> Compiler {
        self.options.targets = vec![target];
        self
    }
    /// Leaves out an optional pass or rewrite rule by name.
    pub fn disable(mut self, name: impl Into<String>) -> Compiler {
        self.options.disabled.push(name.into());
        self
    }
    /// The options.
    pub fn options(&self) -> &CompileOptions {
        &self.options
    }

    /// Compiles an ONNX file. Weights are mapped, not read.
    ///
    /// # Errors
    /// What is wrong, where in the model, what to do: see [`tensor::Diagnostic`].
    pub fn compile_path(&self, path: impl AsRef<Path>) -> Result<CompiledModel> {
        let module = ir::import::import_path(path.as_ref(), &Registry::builtin()).map_err(Diagnostic::or_help)?;
        self.compile(module)
    }
    /// Compiles ONNX bytes; external data is looked for in `folder`.
    ///
    /// # Errors
    /// As [`Compiler::compile_path`].
    pub fn compile_bytes(&self, bytes: impl Into<Bytes>, folder: Option<&Path>) -> Result<CompiledModel> {
        let module = ir::import::import_bytes(bytes.into(), folder, &Registry::builtin());
        self.compile(module.map_err(Diagnostic::or_help)?)
    }
    /// Compiles a module in text form (`docs/IR.md`).
    ///
    /// # Errors
    /// As [`Compiler::compile_path`].
    pub fn compile_text(&self, text: &str) -> Result<CompiledModel> {
        self.compile(ir::text::parse_onnx(text, &Registry::builtin()).map_err(Diagnostic::or_help)?)
    }
    /// Compiles a module.
    ///
    /// # Errors
    /// As [`Compiler::compile_path`].
    pub fn compile(&self, module: Module<Onnx>) -> Result<CompiledModel> {
        self.compile_with(module, &mut Hooks::default())
    }

    /// Compiles a module with callers' passes at the plugin slots and an observer of stages.
    ///
    /// # Errors
    /// As [`Compiler::compile_path`], and what the hooks return.
    pub fn compile_with(&self, module: Module<Onnx>, hooks: &mut Hooks) -> Result<CompiledModel> {
        let lowered = self.lower(module, hooks)?;
        self.generate(lowered, hooks).map_err(Diagnostic::or_help)
    }

    /// Options of the pass list as these compile options set them.
    pub fn pass_options(&self) -> lower::pass::Options {
        let mut o = lower::pass::Options::default();
        o.rewrite.rewrites = self.options.rewrites;
        // A name is a pass's or a rewrite rule's; an unknown one is reported by the pass list.
        let (rules, passes) =
            self.options.disabled.iter().cloned().partition(|n| rewrite::rules::all().iter().any(|r| r.name == *n));
        o.rewrite.disabled = rules;
        o.disable = passes;
        // Refused here, with the node, rather than when the model is loaded.
        o.lower.host_ops = !runtime::host_ops::HOST_OPS.is_empty();
        o
    }

    /// Runs the pass list (`lower/src/pass.rs`): infer, rewrite, onnx → hip, fuse, plan, host program.
    ///
    /// # Errors
    /// As [`Compiler::compile_path`].
    pub fn lower(&self, module: Module<Onnx>, hooks: &mut Hooks) -> Result<Lowered> {
        lower::pass::compile(module, &self.pass_options(), hooks).map_err(Diagnostic::or_help)
    }

    /// LLVM IR and assembly of a host program's code, as text: of the CPU target, then of the kernels for each GPU.
    ///
    /// # Errors
    /// As [`Compiler::compile_path`].
    #[cfg(feature = "llvm")]
    pub fn code_text(&self, program: &lower::host::HostProgram) -> Result<(String, String)> {
        let (mut ir, mut asm) = (String::new(), String::new());
        if self.options.has_cpu() {
            let mut how = self.code_options()?;
            (how.want_ir, how.want_asm, how.gpus) = (true, true, vec![]);
            let code = codegen::compile(program, &how, &[])?;
            (ir, asm) = (code.ir.unwrap_or_default(), code.asm.unwrap_or_default());
        }
        for arch in self.options.gpus() {
            let (i, a) = codegen::gpu_text(program, arch, self.options.level())?;
            ir += &i;
            asm += &a;
        }
        Ok((ir, asm))
    }

    #[cfg(feature = "llvm")]
    fn code_options(&self) -> Result<codegen::Options> {
        let mut how = codegen::Options::new(codegen::CpuTarget::tier(self.options.tier())?);
        how.level = self.options.level();
        how.cpu_kernels = self.options.has_cpu();
        how.gpus = self.options.gpus().collect();
        Ok(how)
    }

    /// Host program → LLVM → artifact.
    #[cfg(feature = "llvm")]
    pub(crate) fn generate(&self, mut lowered: Lowered, hooks: &mut Hooks) -> Result<CompiledModel> {
        hooks.run(Slot::AfterInterface, &mut lowered.unit)?;
        let Lowered { hip, program, .. } = lowered;
        let o = &self.options;
        if o.targets.is_empty() {
            return Err(Diagnostic::new(tensor::ErrorKind::Argument, "there is no target to compile for")
                .help("leave the targets at their default, or name one: cpu, hip:gfx942, cuda:sm_90"));
        }
        let table = emit::constants(&hip, &program, o, std::io::sink())?;
        let launches: Vec<_> = match o.gpus().next() {
            Some(_) => program.kernels.iter().map(codegen::gpu::launch).collect(),
            None => vec![],
        };
        let how = self.code_options()?;
        let needs = (codegen::frame_words(&program)?, how.target.requirement());
        let md = emit::metadata(&hip, &program, &table, o, needs, &launches);
        let bytes = md.encode_to_vec();
        let mut code = codegen::compile(&program, &how, &bytes)?;
        let times = std::mem::take(&mut code.times);
        let artifact = emit::container(md, code, o, program.to_string())?;
        Ok(CompiledModel::fresh(artifact, table.parts, hip, program, o.clone(), times))
    }

    #[cfg(not(feature = "llvm"))]
    pub(crate) fn generate(&self, _: Lowered, _: &mut Hooks) -> Result<CompiledModel> {
        Err(Diagnostic::new(tensor::ErrorKind::Unsupported, "this build has no code generator")
            .help("build hip-ep with the feature llvm"))
    }

    /// The rows the compiler knows.
    pub fn registry() -> Arc<Registry> {
        Registry::builtin()
    }
}
