//! How clang is asked to compile the hand-written kernels. Used by the build script, and by the check of the kernels for broken variants.

use std::path::Path;
use std::process::Command;

/// Environment variable that names another clang++ 19.
pub const ENV: &str = "HIP_EP_CLANG";

/// Options for every architecture. No contraction and nothing fast: a kernel says itself where it fuses.
pub const OPTIONS: &[&str] =
    &["-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"];

/// The compiler's name or path.
pub fn program() -> String {
    std::env::var(ENV).unwrap_or_else(|_| "clang++-19".into())
}

fn run(c: &mut Command) -> Result<(), String> {
    let out = c.output().map_err(|e| format!("cannot start {}: {e}", program()))?;
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

/// Kernels for an AMD architecture as an optimised LLVM module.
///
/// # Errors
/// The compiler's messages.
pub fn module(arch: &str, source: &Path, to: &Path, extra: &[&str]) -> Result<(), String> {
    let mut c = Command::new(program());
    c.args(["-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "--no-gpu-bundle-output"]);
    // Else the code would hold a hash of the source file's path.
    c.arg("-fuse-cuid=none");
    c.arg(format!("--offload-arch={arch}")).args(OPTIONS).args(extra).args(["-emit-llvm", "-c"]);
    run(c.arg(source).arg("-o").arg(to))
}

/// The back end alone: a module to a code object.
///
/// # Errors
/// The compiler's or linker's messages.
pub fn code_object(arch: &str, module: &Path, to: &Path) -> Result<(), String> {
    let mut c = Command::new(program());
    c.args(["-target", "amdgcn-amd-amdhsa", "-nogpulib", "-O3", "-Xclang", "-disable-llvm-passes", "-x", "ir"]);
    run(c.arg(format!("-mcpu={arch}")).arg(module).arg("-o").arg(to))
}

/// Kernels for an NVIDIA architecture as PTX with a null byte at its end, as `cuModuleLoadData` takes it.
///
/// # Errors
/// The compiler's messages, or that of the file system.
pub fn ptx(arch: &str, source: &Path, to: &Path, extra: &[&str]) -> Result<(), String> {
    let mut c = Command::new(program());
    c.args(["-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "--cuda-feature=+ptx78"]);
    c.arg(format!("--cuda-gpu-arch={arch}")).args(OPTIONS).args(extra).arg("-S");
    run(c.arg(source).arg("-o").arg(to))?;
    let mut text = std::fs::read(to).map_err(|e| e.to_string())?;
    text.push(0);
    std::fs::write(to, text).map_err(|e| e.to_string())
}
