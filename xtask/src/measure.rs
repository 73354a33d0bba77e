//! What `corpus` and `generated` share: test data from onnxruntime, compiling, running an artifact in a fresh process, the interpreter.

use crate::models::Model;
use crate::{setup, sh};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a tool that prints one JSON document and returns it.
pub fn tool(cmd: &mut Command) -> Result<Value> {
    let out = sh::output(cmd)?;
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text)
        .with_context(|| format!("{} ({}): {}", sh::show(cmd), out.status, String::from_utf8_lossy(&out.stderr).trim()))
}

/// The command that compiles a model to an artifact.
pub fn compiler(bin: &Path, model: &Path, output: &Path) -> Command {
    let mut c = Command::new(bin.join("hip-compiler"));
    c.arg(model).arg("-o").arg(output);
    c
}

fn with_sets<'a>(c: &'a mut Command, sets: &[PathBuf]) -> &'a mut Command {
    sets.iter().for_each(|s| {
        c.arg("--data-dir").arg(s);
    });
    c
}

/// Runs an artifact on data sets in a process of its own; what `hip-test` says of it.
pub fn test(bin: &Path, file: &Path, sets: &[PathBuf], extra: &[&str]) -> Result<Value> {
    tool(with_sets(Command::new(bin.join("hip-test")).arg(file).arg("--json").args(extra), sets))
}

/// The artifact's metadata.
pub fn inspect(bin: &Path, artifact: &Path) -> Result<Value> {
    tool(Command::new(bin.join("hip-inspect")).arg(artifact).arg("--json"))
}

/// Whether a model computes in half precision, by its metadata. Two right answers then differ by more than a tolerance from one another,
/// and only the interpreter decides.
pub fn is_half(metadata: &Value) -> bool {
    let half = |v: &Value| v["dtype"] == "f16" || v["dtype"] == "bf16";
    let is_weight = |v: &Value| v["shape"].as_array().is_some_and(|s| s.len() > 1);
    metadata["outputs"].as_array().into_iter().flatten().any(half)
        || metadata["constants"].as_array().into_iter().flatten().any(|c| is_weight(c) && half(c))
}

/// What decides whether outputs of a model of a list are right, as options of `hip-test`.
pub fn judge(m: &Model) -> &'static [&'static str] {
    match (m.flag("quantised"), m.flag("ties")) {
        (Some(true), _) => &["--judge", "together"],
        (_, Some(true)) => &["--judge", "interpreter"],
        _ => &[],
    }
}

/// Test data of each shape: onnxruntime's outputs as the operators' text has them, and the same inputs with those of the model that it
/// rewrites.
pub fn both_runs(m: &Model, path: &Path, shapes: u32, dir: &Path) -> Result<Vec<Vec<PathBuf>>> {
    let sets = |name: &str, flags: &[&str]| data(m, path, shapes, &dir.join(name), flags);
    let pairs = sets("plain", &["plain"])?.into_iter().zip(sets("rewritten", &[])?);
    Ok(pairs.map(|(a, b)| vec![a, b]).collect())
}

/// Has the interpreter compute the outputs anew at the first `n` shapes, whose folders have the same inputs; the others lose what it may
/// have left there.
pub fn interpret(bin: &Path, model: &Path, shapes: &[Vec<PathBuf>], n: usize) -> Result<()> {
    for set in shapes.iter().flatten() {
        for f in std::fs::read_dir(set)?.flatten() {
            if f.file_name().to_string_lossy().starts_with("exact_") {
                std::fs::remove_file(f.path())?;
            }
        }
    }
    let firsts: Vec<PathBuf> = shapes[..n].iter().map(|folders| folders[0].clone()).collect();
    if n > 0 {
        let mut c = Command::new(bin.join("hip-onnx-runner"));
        sh::read(with_sets(c.arg(model).arg("--write-exact"), &firsts))?;
    }
    for (first, other) in shapes.iter().flat_map(|folders| folders[1..].iter().map(|o| (&folders[0], o))) {
        for file in
            std::fs::read_dir(first)?.flatten().filter(|f| f.file_name().to_string_lossy().starts_with("exact_"))
        {
            std::fs::copy(file.path(), other.join(file.file_name()))?;
        }
    }
    Ok(())
}

/// Test data of the model at `path` by its entry of a list, made once per number of shapes; `flags` are those of `reference.py`.
pub fn data(m: &Model, path: &Path, shapes: u32, dir: &Path, flags: &[&str]) -> Result<Vec<PathBuf>> {
    let data = dir.join(format!("data-{shapes}"));
    let mut c = script(m, "reference.py", path, &data)?;
    let report = once(&data, c.args([&shapes.to_string(), "7"]).args(flags))?;
    let n = report["sets"].as_array().map_or(0, Vec::len);
    if n == 0 {
        bail!("onnxruntime ran no shape: {}", report["error"]);
    }
    Ok((0..n).map(|i| data.join(format!("test_data_set_{i}"))).collect())
}

/// A script that takes a model, its entry and a folder to write to.
pub fn script(m: &Model, name: &str, path: &Path, out: &Path) -> Result<Command> {
    std::fs::create_dir_all(out)?;
    let spec = out.join("spec.json");
    std::fs::write(&spec, m.json()?)?;
    let mut c = Command::new(setup::python()?);
    c.arg(Path::new("xtask/py").join(name)).args([path, &spec, out]);
    Ok(c)
}

/// What a script says that fills a folder: it runs the first time only.
pub fn once(dir: &Path, script: &mut Command) -> Result<Value> {
    let done = dir.join("done.json");
    if !done.exists() {
        let said = sh::read(script)?;
        serde_json::from_str::<Value>(said.trim())?;
        std::fs::write(&done, said)?;
    }
    Ok(serde_json::from_str(&std::fs::read_to_string(done)?)?)
}
