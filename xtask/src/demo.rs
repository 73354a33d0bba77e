//! The first thing a newcomer runs: a real model, real text, an answer. Magika tells the type of a file from its bytes.

use crate::{models, setup, sh};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Bytes that Magika looks at from the beginning and from the end of a file.
const WINDOW: usize = 1024;
/// The token for "no byte here".
const PADDING: i32 = 256;
/// Real files to ask about: they lie in this repository.
const FILES: &[&str] = &["xtask/src/demo.rs", "README.md", "Cargo.toml", "xtask/py/reference.py"];

pub fn run() -> Result<()> {
    setup::llvm()?;
    setup::python()?;
    let model = models::pick(&["magika".into()])?.pop().context("magika is in the corpus list")?;
    let path = models::fetch(&model)?;
    let labels = labels(&model)?;
    println!(
        "model: Magika, which tells the type of a file from its bytes, from the PyPI package magika ({})",
        path.display()
    );
    println!("building the tools: some minutes the first time, nothing when they are fresh");
    let bin = sh::tools()?;
    let dir = sh::target().join("demo");
    std::fs::create_dir_all(&dir)?;
    let artifact = dir.join("magika.hipep");
    let start = Instant::now();
    sh::read(Command::new(bin.join("hip-compiler")).arg(&path).arg("-o").arg(&artifact))?;
    println!("compiled in {} ms: {}", start.elapsed().as_millis(), artifact.display());
    let mut tokens = Vec::new();
    for f in FILES {
        tokens.extend(features(&std::fs::read(f).with_context(|| (*f).to_string())?));
    }
    let input = dir.join("bytes.npy");
    write_npy(&input, &[FILES.len(), 2 * WINDOW], &tokens)?;
    let mut run = Command::new(bin.join("hip-test"));
    run.arg(&artifact)
        .arg("--input")
        .arg(format!("bytes={}", input.display()))
        .args(["--json", "--values", "--repeat", "20"]);
    let out: Value = serde_json::from_str(&sh::read(&mut run)?)?;
    let scores: Vec<f64> =
        out["outputs"][0]["values"].as_array().context("no values")?.iter().filter_map(Value::as_f64).collect();
    for (file, row) in FILES.iter().zip(scores.chunks(labels.len())) {
        let (best, p) = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).context("no scores")?;
        println!("{file:24} is {} ({:.1} %)", labels[best], p * 100.0);
    }
    let ms = out["median_us"].as_f64().unwrap_or(0.0) / 1e3;
    println!("{} files in one run: median {ms:.1} ms on the CPU device", FILES.len());
    println!("look inside: {} {}", bin.join("hip-inspect").display(), artifact.display());
    Ok(())
}

/// The first and the last [`WINDOW`] bytes without surrounding white space, as tokens.
fn features(content: &[u8]) -> Vec<i32> {
    let pad = |v: Vec<i32>, front: bool| {
        let fill = std::iter::repeat_n(PADDING, WINDOW - v.len());
        if front { fill.chain(v).collect::<Vec<_>>() } else { v.into_iter().chain(fill).collect() }
    };
    let ints = |b: &[u8]| b.iter().map(|&x| i32::from(x)).collect::<Vec<_>>();
    let head = content.trim_ascii_start();
    let tail = content.trim_ascii_end();
    let mut out = pad(ints(&head[..head.len().min(WINDOW)]), false);
    out.extend(pad(ints(&tail[tail.len().saturating_sub(WINDOW)..]), true));
    out
}

/// Names of the model's classes, from the package's configuration.
fn labels(model: &models::Model) -> Result<Vec<String>> {
    let get = |k: &str| model.entry.get(k).and_then(toml::Value::as_str).with_context(|| format!("magika: no {k}"));
    let archive = models::download("pypi", get("package")?, get("version")?)?;
    let member = get("member")?.replace("model.onnx", "config.min.json");
    let config: Value = serde_json::from_slice(&models::member(&archive, &member)?)?;
    let names = config["target_labels_space"].as_array().context("no target_labels_space")?;
    Ok(names.iter().filter_map(Value::as_str).map(str::to_string).collect())
}

/// A NumPy file of i32.
fn write_npy(path: &Path, shape: &[usize], values: &[i32]) -> Result<()> {
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    let mut header = format!("{{'descr': '<i4', 'fortran_order': False, 'shape': ({},), }}", dims.join(", "));
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(header.len())?.to_le_bytes());
    bytes.extend(header.as_bytes());
    values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
    std::fs::write(path, bytes)?;
    Ok(())
}
