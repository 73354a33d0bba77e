//! A shared object made by the compiler runs in a process that has no LLVM.

use std::process::Command;

fn run(c: &mut Command) -> String {
    let out = c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{c:?}: {text}");
    text
}

#[test]
fn shared_object_runs_where_no_llvm_is() {
    let dir = std::env::temp_dir().join(format!("native-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder for the shared object");
    let so = dir.join("relu.so");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    // The compiler is a process of its own, with LLVM.
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut compiler = Command::new(cargo);
    compiler.args(["run", "--quiet", "-p", "hip-ep", "--bin", "hip-compiler", "--", "src/relu.hir", "--mode", "native"]);
    run(compiler.arg("-o").arg(&so).current_dir(root));
    let said = run(Command::new(env!("CARGO_BIN_EXE_native")).arg(&so));
    assert!(said.contains("[3] [1.0, 1.0, 1.0]"), "{said}");
    assert!(said.contains("0 files of LLVM are mapped"), "{said}");
    std::fs::remove_dir_all(dir).expect("the folder is ours");
}
