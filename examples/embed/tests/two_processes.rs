//! One process compiles and saves; another loads the artifact and runs one session from eight threads.

use std::process::Command;

fn embed(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_embed")).args(args).output().expect("embed starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "embed {args:?}: {text}");
    text
}

#[test]
fn compiled_in_one_process_runs_in_another_from_eight_threads() {
    let dir = std::env::temp_dir().join(format!("embed-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder for the artifact");
    let artifact = dir.join("layer.hipep");
    let artifact = artifact.to_str().expect("a name in UTF-8");
    embed(&["compile", concat!(env!("CARGO_MANIFEST_DIR"), "/model.hir"), artifact]);
    let said = embed(&["run", artifact]);
    assert!(said.contains("8 threads ran one session 100 times each"), "{said}");
    std::fs::remove_dir_all(dir).expect("the folder is ours");
}
