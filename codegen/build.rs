//! Compiles the hand-written GPU kernels for every architecture, so that whoever runs a model needs no compiler.
//!
//! Per architecture: `<arch>.bc`, the optimised module (which the host execution of kernels takes), and `<arch>.bin`, what the back end
//! makes of it: for AMD a code object, for NVIDIA PTX text with a null byte at its end. Without clang 19 the files are empty, and
//! compiling a model for a GPU is refused with that reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

#[path = "../kernels/src/gpu/arch.rs"]
#[allow(dead_code)]
mod arch;
#[path = "src/gpu/clang.rs"]
mod clang;
#[path = "../kernels/src/gpu/sources.rs"]
mod sources;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/gpu/clang.rs");
    println!("cargo::rerun-if-changed=../kernels/hip");
    println!("cargo::rerun-if-changed=../kernels/src/gpu/arch.rs");
    println!("cargo::rerun-if-changed=../kernels/src/gpu/sources.rs");
    println!("cargo::rerun-if-env-changed={}", clang::ENV);
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    table(&out);
    let version = Command::new(clang::program()).arg("--version").output();
    let Some(version) = version.ok().filter(|v| v.status.success()) else {
        println!(
            "cargo::warning={} is missing: this build cannot compile models for GPUs; install clang-19 and lld-19",
            clang::program()
        );
        for a in arch::ARCHS {
            write(&out.join(format!("{}.bin", a.name)), b"");
            write(&out.join(format!("{}.bc", a.name)), b"");
        }
        return;
    };
    let source = sources::joined();
    // Compiling takes seconds an architecture; what stands there from the same text, options and compiler is kept.
    let key = format!("{}\n{:?}\n{source}", String::from_utf8_lossy(&version.stdout), clang::OPTIONS);
    let (stamp, input) = (out.join("kernels.key"), out.join("kernels.hip"));
    if std::fs::read_to_string(&stamp).is_ok_and(|k| k == key) {
        return;
    }
    write(&input, source.as_bytes());
    let next = AtomicUsize::new(0);
    let n = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| {
        for _ in 0..n {
            s.spawn(|| {
                while let Some(a) = arch::ARCHS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (bc, bin) = (out.join(format!("{}.bc", a.name)), out.join(format!("{}.bin", a.name)));
                    let done =
                        clang::module(a.name, &input, &bc, &[]).and_then(|()| clang::back_end(a.name, &bc, &bin));
                    if let Err(e) = done {
                        panic!("the GPU kernels do not compile for {}:\n{e}", a.name);
                    }
                }
            });
        }
    });
    write(&stamp, key.as_bytes());
}

/// The list of precompiled code that the library includes.
fn table(out: &Path) {
    let mut text = String::from("static TABLE: &[(&str, &[u8])] = &[\n");
    for a in arch::ARCHS {
        text += &format!("    (\"{0}\", include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{0}.bin\"))),\n", a.name);
    }
    write(&out.join("gpu_table.rs"), (text + "];\n").as_bytes());
}

fn write(path: &Path, bytes: &[u8]) {
    if let Err(e) = std::fs::write(path, bytes) {
        panic!("cannot write {}: {e}", path.display());
    }
}
