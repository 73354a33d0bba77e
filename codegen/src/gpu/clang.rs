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

/// Kernels for an architecture as an optimised LLVM module.
///
/// # Errors
/// The compiler's messages.
pub fn module(arch: &str, source: &Path, to: &Path, extra: &[&str]) -> Result<(), String> {
    let mut c = Command::new(program());
    c.args(["--cuda-device-only", "-emit-llvm", "-c"]).args(OPTIONS).args(extra);
    if arch.starts_with("sm_") {
        c.args(["-x", "cuda", "-nocudainc", "-nocudalib", PTX_FEATURE]).arg(format!("--cuda-gpu-arch={arch}"));
    } else {
        c.args(["-x", "hip", "-nogpuinc", "-nogpulib", "--no-gpu-bundle-output"]).arg(format!("--offload-arch={arch}"));
        // Else the code would hold a hash of the source file's path.
        c.arg("-fuse-cuid=none");
    }
    run(c.arg(source).arg("-o").arg(to))
}

/// PTX of CUDA 11.8, which all drivers in use take.
const PTX_FEATURE: &str = "--cuda-feature=+ptx78";

/// The back end alone: a module to what the driver loads. AMD: a code object. NVIDIA: PTX with a null byte at its end.
///
/// # Errors
/// The compiler's or linker's messages, or that of the file system.
pub fn back_end(arch: &str, module: &Path, to: &Path) -> Result<(), String> {
    let mut c = Command::new(program());
    c.args(["-O3", "-Xclang", "-disable-llvm-passes", "-nogpulib", "-x", "ir"]).arg(module).arg("-o").arg(to);
    if !arch.starts_with("sm_") {
        return run(c.args(["-target", "amdgcn-amd-amdhsa"]).arg(format!("-mcpu={arch}")));
    }
    c.args(["-target", "nvptx64-nvidia-cuda", "-Xclang", "-target-feature", "-Xclang", "+ptx78", "-S"]);
    run(c.arg(format!("-march={arch}")))?;
    let mut text = std::fs::read(to).map_err(|e| e.to_string())?;
    text.push(0);
    std::fs::write(to, text).map_err(|e| e.to_string())
}
