//! The kit's `amd-smoke` on a machine without an AMD GPU, with the runner that needs no LLVM: what it says, and the status it ends with.

use crate::gpu_kit::{self, Profile};
use crate::{setup, sh};
use anyhow::{Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The driver library's versions that the runtime looks for.
const VERSIONS: [u32; 3] = [7, 6, 5];

pub fn run() -> Result<()> {
    let kit = make()?;
    // Models run, and wrong results are noticed.
    check(
        "a model on the CPU",
        &mut smoke(&kit, "cpu"),
        0,
        &["\ngrowth:\n", "\nloop:\n", "\n3 sets", "amd-smoke: ok: 2 models on cpu"],
    )?;
    let expected = |set: u32| kit.join(format!("smoke/growth/test_data_set_{set}/output_0.pb"));
    std::fs::copy(expected(1), expected(0))?;
    check("a wrong result", &mut smoke(&kit, "cpu"), 1, &["FAIL set 0", "amd-smoke: FAILED on cpu: growth\n"])?;
    check("an unknown device", &mut smoke(&kit, "gpu"), 2, &["amd-smoke: there is no device gpu", FIX])?;
    no_library(&kit)?;
    no_device(&kit)?;
    devices(&kit)?;
    std::fs::remove_dir_all(kit.join("smoke"))?;
    check("no models", &mut smoke(&kit, "cpu"), 2, &["amd-smoke: smoke/ holds no model", FIX])?;
    std::fs::remove_file(kit.join("bin/hip-onnx-runner"))?;
    check("no runner", &mut smoke(&kit, "hip"), 2, &["amd-smoke: bin/hip-onnx-runner does not start", FIX])?;
    Ok(())
}

/// How the line begins that says what to do.
const FIX: &str = "\namd-smoke: fix: ";

/// A small kit: its models are quick to compile, and neither their sizes nor their control flow is simple.
fn make() -> Result<PathBuf> {
    let python = setup::python()?;
    let kit = gpu_kit::folder("smoke-kit")?;
    gpu_kit::runner(&kit.join("bin"), Profile::Dev)?;
    let runner = std::fs::read(kit.join("bin/hip-test"))?;
    ensure!(!runner.windows(7).any(|w| w == b"libLLVM"), "the runner without LLVM is linked with libLLVM");
    // After the runner: the tools in the target folder are those with LLVM again.
    let bin = sh::tools()?;
    let compile = |source: &[&str], name: &str| gpu_kit::compile(&bin, &kit, "hip:gfx942", source, name);
    gpu_kit::growth(&python, &kit.join("smoke"), compile)?;
    std::fs::copy("xtask/gpu-kit/amd-smoke", kit.join("amd-smoke"))?;
    Ok(kit)
}

/// The script, whatever ROCm the user has set, and on a machine with GPUs, too, without them.
fn smoke(kit: &Path, device: &str) -> Command {
    let mut c = Command::new(kit.join("amd-smoke"));
    c.arg(device).env_remove("HIP_PATH").env_remove("ROCM_PATH");
    c.env("HIP_VISIBLE_DEVICES", "-1").env("CUDA_VISIBLE_DEVICES", "-1");
    c
}

/// Files that are no libraries stand before the real ones.
fn no_library(kit: &Path) -> Result<()> {
    let installed = |e: std::fs::DirEntry| e.file_name().to_string_lossy().starts_with("rocm");
    if std::fs::read_dir("/opt").is_ok_and(|d| d.flatten().any(installed)) {
        println!("amd-smoke: the case without libamdhip64 is left out: ROCm lies in /opt, where it is always found");
        return Ok(());
    }
    let dir = kit.join("no-library");
    std::fs::create_dir_all(&dir)?;
    for v in VERSIONS {
        std::fs::write(dir.join(format!("libamdhip64.so.{v}")), "")?;
    }
    let mut c = smoke(kit, "hip");
    check("no library", c.env("LD_LIBRARY_PATH", dir), 3, &["amd-smoke: libamdhip64 is missing: ", FIX])?;
    Ok(())
}

/// A real driver library, and no device for it.
fn no_device(kit: &Path) -> Result<()> {
    if let Err(why) = setup::hip() {
        println!("amd-smoke: the case without a device is left out, for HIP's library cannot be installed: {why:#}");
        return Ok(());
    }
    let out = check("no device", &mut smoke(kit, "hip"), 4, &[FIX])?;
    // A library's name and the version that it tells have the same number.
    let says = |v: &u32| {
        out.contains(&format!("libamdhip64.so.{v} (HIP {v}.")) && out.contains(") is loaded and finds no GPU")
    };
    if !VERSIONS.iter().any(says) {
        bail!("amd-smoke names no library with its version that finds no GPU:\n{out}");
    }
    Ok(())
}

/// What a machine with one GPU of AMD and one of NVIDIA says; the models themselves find none here.
fn devices(kit: &Path) -> Result<()> {
    const DOCTOR: &str = "#!/bin/sh\ncat <<'END'\n\
        hip:0  AMD Radeon PRO W7900  gfx1100  96 units  46064 MiB  hip-compiler --target hip:gfx1100\n\
        hip:1  NVIDIA H200  sm_90  132 units  143771 MiB  hip-compiler --target cuda:sm_90\n\
        AMD\n  /opt/my rocm/lib/libamdhip64.so.6 loaded\n  version    HIP 6.2\n  devices    1\n\
        NVIDIA\n  libcuda.so.1                         loaded\n  version    12.8\n  devices    1\nEND\n";
    let tool = kit.join("bin/hip-onnx-runner");
    // In place: the file stays executable.
    std::fs::write(tool, DOCTOR)?;
    let on = "amd-smoke: FAILED on hip with /opt/my rocm/lib/libamdhip64.so.6 (HIP 6.2): growth loop\n";
    check("models without their GPU", &mut smoke(kit, "hip"), 1, &["error: there is no GPU", on])?;
    let none = "libamdhip64.so.6 (HIP 6.2) is loaded and finds no GPU 1\n";
    check("another vendor's GPU", &mut smoke(kit, "hip:1"), 4, &[none, FIX])?;
    Ok(())
}

/// Runs the script, which must end with `status` and say all of `texts`; returns what it said.
fn check(what: &str, c: &mut Command, status: i32, texts: &[&str]) -> Result<String> {
    let out = sh::output(c)?;
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    let missing: Vec<&&str> = texts.iter().filter(|t| !said.contains(**t)).collect();
    if out.status.code() != Some(status) || !missing.is_empty() {
        bail!("amd-smoke, {what}: {} instead of {status}; it does not say {missing:?}:\n{said}", out.status);
    }
    println!("amd-smoke: {what}: status {status}");
    Ok(said.into_owned())
}
