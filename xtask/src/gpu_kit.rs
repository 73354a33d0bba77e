//! One archive that checks and measures hip-ep on a machine with a GPU: a runner without LLVM, models as shared objects with code for
//! every architecture, inputs and expected outputs, one script. Nothing is needed there but the GPU's driver.

use crate::{models, setup, sh};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Make one archive that checks and measures hip-ep on a machine with a GPU
///
/// Take the archive to the machine with the GPU, which needs its driver alone (AMD: libamdhip64 of ROCm 5 to 7; NVIDIA: libcuda.so.1)
/// and a glibc as new as this machine's, and there:
///
///     tar xf gpu-kit.tar.xz && cd gpu-kit
///     ./amd-smoke    # AMD only: two small models, seconds
///     ./run          # all models, then benches: minutes; writes results.json
///
/// Then open an issue with results.json, also when everything passed. Making the archive takes 10 to 15 minutes.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Models of the corpus list (xtask/data/corpus.toml); without names those that CI checks, but for light-resnet50, which does not fit.
    names: Vec<String>,
    /// Targets to compile for, besides `cpu`.
    #[arg(long, default_value = TARGETS)]
    targets: String,
    /// Shapes per model with dynamic dims.
    #[arg(long, default_value_t = 5)]
    shapes: u32,
    /// The archive; one larger than 60 MB is an error.
    #[arg(long, default_value = "target/gpu-kit.tar.xz")]
    out: PathBuf,
    /// Leave out the benches.
    #[arg(long)]
    no_bench: bool,
}

const TARGETS: &str = "hip:gfx90a,hip:gfx942,hip:gfx1030,hip:gfx1100,hip:gfx1151,hip:gfx1201,cuda:sm_80,cuda:sm_90";
/// Largest archive: it must be easy to send.
const MAX_BYTES: u64 = 60_000_000;
/// Bits of the fraction that rounded weights keep: of trained models, and of those whose weights are random anyway.
const BITS: [&str; 2] = ["6", "3"];
/// Left out unless it is named: normalizations folded into its weights undo the rounding, and 100 MB of them do not pack.
const TOO_LARGE: &str = "light-resnet50";
/// Models of `amd-smoke`, at small shapes.
const SMOKE: &[&str] = &["light-squeezenet", "minilm-l3"];

pub fn run(args: &Args) -> Result<()> {
    setup::llvm()?;
    let python = setup::python()?;
    let kit = folder("gpu-kit")?;
    runner(&kit.join("bin"), Profile::Release)?;
    let bin = sh::tools()?;
    let compile = |source: &[&str], name: &str| compile(&bin, &kit, &args.targets, source, name);
    let mut picked = models::pick(&args.names)?;
    if args.names.is_empty() {
        picked.retain(|m| m.name != TOO_LARGE);
        eprintln!("left out for its size: {TOO_LARGE} (name it to make a kit of it alone)");
    }
    for m in picked {
        let path = models::fetch(&m)?;
        let rounded = path.with_extension("rounded.onnx");
        let bits = BITS[usize::from(m.is_light())];
        sh::read(Command::new(&python).arg("xtask/py/round_weights.py").args([&path, &rounded]).arg(bits))?;
        compile(&[text(&rounded)?], &m.name)?;
        expected(&python, &m, &rounded, &kit.join("data").join(&m.name), args.shapes, false)?;
        if SMOKE.contains(&m.name.as_str()) {
            expected(&python, &m, &rounded, &kit.join("smoke").join(&m.name), 1, true)?;
        }
    }
    growth(&python, &kit.join("data"), compile)?;
    if !args.no_bench {
        for file in std::fs::read_dir("xtask/gpu-kit/bench")?.flatten().map(|e| e.path()) {
            let name = file.file_stem().and_then(|s| s.to_str()).context("a bench without a name")?;
            compile(&[text(&file)?], name)?;
        }
        compile(&["--generate", "encoder:12"], "encoder12")?;
        compile(&["--generate", "resnet50:16"], "resnet50")?;
    }
    for f in ["run", "amd-smoke", "README.txt", "bench.txt"] {
        std::fs::copy(Path::new("xtask/gpu-kit").join(f), kit.join(f)).with_context(|| f.to_string())?;
    }
    let version = sh::read(Command::new("git").args(["describe", "--always", "--dirty"]))?;
    std::fs::write(kit.join("VERSION"), version)?;
    pack(&python, &kit, &args.out)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// A kit without files, in the target folder.
pub fn folder(name: &str) -> Result<PathBuf> {
    let kit = sh::target().join(name);
    let _ = std::fs::remove_dir_all(&kit);
    for d in ["bin", "models", "data", "smoke"] {
        std::fs::create_dir_all(kit.join(d))?;
    }
    Ok(kit)
}

/// How the runner is built.
pub enum Profile {
    /// As the tools with LLVM, from the same dependencies.
    Dev,
    /// Optimized and stripped.
    Release,
}

/// The tools that need no LLVM, built without it.
pub fn runner(to: &Path, profile: Profile) -> Result<()> {
    let tools = ["hip-test", "hip-onnx-runner"];
    let mut c = sh::cargo(&["build", "--quiet", "--package", "hip-ep", "--no-default-features", "--features", "tools"]);
    tools.iter().for_each(|t| {
        c.args(["--bin", t]);
    });
    let built = match profile {
        Profile::Dev => {
            // Nothing of it is built, but features of dependencies are as it wants them: what the tools with LLVM use is used again.
            c.args(["--package", "hip-ep-codegen"]);
            sh::target().join("debug")
        }
        Profile::Release => {
            let target = sh::target().join("no-llvm");
            c.arg("--release").env("CARGO_PROFILE_RELEASE_STRIP", "true").env("CARGO_TARGET_DIR", &target);
            target.join("release")
        }
    };
    sh::run(&mut c)?;
    for t in tools {
        std::fs::copy(built.join(t), to.join(t)).with_context(|| t.to_string())?;
    }
    Ok(())
}

/// Compiles a model into the kit, for the CPU and `targets`.
pub fn compile(bin: &Path, kit: &Path, targets: &str, source: &[&str], name: &str) -> Result<()> {
    let out = kit.join("models").join(format!("{name}.so"));
    let mut c = Command::new(bin.join("hip-compiler"));
    c.args(source).args(["--mode", "native", "--target", &format!("{targets},cpu"), "-o"]).arg(out);
    sh::read(&mut c).map(|_| eprintln!("compiled {name}"))
}

/// The models that grow while they run, with their inputs and onnxruntime's outputs in `data`.
pub fn growth(python: &Path, data: &Path, compile: impl Fn(&[&str], &str) -> Result<()>) -> Result<()> {
    sh::read(Command::new(python).arg("xtask/py/growth.py").arg(data))?;
    for name in ["growth", "loop"] {
        let onnx = data.join(format!("{name}.onnx"));
        compile(&[text(&onnx)?], name)?;
        std::fs::remove_file(onnx)?;
    }
    Ok(())
}

/// Inputs and onnxruntime's outputs; `small` for the least shapes that a model takes.
fn expected(python: &Path, m: &models::Model, onnx: &Path, dir: &Path, shapes: u32, small: bool) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let spec = dir.join("spec.json");
    std::fs::write(&spec, m.json()?)?;
    let mut c = Command::new(python);
    c.arg("xtask/py/reference.py").arg(onnx).arg(&spec).arg(dir).args([&shapes.to_string(), "7"]);
    if small {
        c.arg("small");
    }
    let report: serde_json::Value = serde_json::from_str(sh::read(&mut c)?.trim())?;
    std::fs::remove_file(spec)?;
    match report["sets"].as_array() {
        Some(s) if !s.is_empty() => Ok(()),
        _ => bail!("{}: onnxruntime ran no shape: {}", m.name, report["error"]),
    }
}

/// Packs the folder; code first, so that what repeats from model to model lies within one window of the packer.
fn pack(python: &Path, kit: &Path, out: &Path) -> Result<()> {
    const PACK: &str = "import sys, tarfile, lzma, pathlib\n\
        kit, out = map(pathlib.Path, sys.argv[1:3])\n\
        files = sorted(p for p in kit.rglob('*') if p.is_file())\n\
        files.sort(key=lambda p: (p.suffix == '.constants', p.suffix != '.so'))\n\
        filters = [{'id': lzma.FILTER_LZMA2, 'preset': 9, 'lc': 0, 'lp': 2, 'pb': 2}]\n\
        with lzma.open(out, 'wb', filters=filters) as f, tarfile.open(fileobj=f, mode='w') as t:\n\
        \x20   for p in files: t.add(p, pathlib.Path('gpu-kit') / p.relative_to(kit))\n";
    sh::read(Command::new(python).args(["-c", PACK]).arg(kit).arg(out))?;
    let bytes = std::fs::metadata(out)?.len();
    println!("{}: {:.1} MB", out.display(), bytes as f64 / 1e6);
    if bytes > MAX_BYTES {
        bail!("the kit has {bytes} bytes, more than {MAX_BYTES}");
    }
    Ok(())
}
