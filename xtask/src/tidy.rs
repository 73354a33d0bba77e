//! Rules of the tree: which crate may use which, where `unsafe` may stand, which ops run on the host, what each preferred
//! package is for, that text speaks of the project alone.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Our crates and the crates of ours that each may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("reference", &["tensor"]),
    ("ir", &["tensor", "reference"]),
    ("rewrite", &["tensor", "ir"]),
    ("kernels", &["tensor"]),
    ("artifact", &["tensor"]),
    ("lower", &["tensor", "ir", "rewrite", "kernels"]),
    ("runtime", &["tensor", "reference", "kernels", "artifact"]),
    ("codegen", &["tensor", "ir", "kernels", "artifact", "lower", "runtime"]),
    (".", &["tensor", "ir", "rewrite", "kernels", "lower", "artifact", "runtime", "codegen"]),
    ("xtask", &[]),
];

/// Where `unsafe` may stand, as path prefixes.
const UNSAFE: &[&str] =
    &["codegen/", "runtime/", "kernels/", "tensor/src/map.rs", "artifact/src/map.rs", "tests/holds/outputs.rs"];

/// Vendors are named in these files of the runtime only; everything else there speaks HIP's language.
const PLATFORMS: &[&str] = &["runtime/src/device/hip/amd.rs", "runtime/src/device/hip/nvidia.rs"];
/// Words that name a vendor or its software.
const VENDORS: &[&str] = &["amd", "nvidia", "cuda", "rocm", "nvrtc", "hiprtc", "libamdhip64", "libcuda"];

/// Operators that may run as host ops: irregular ones that need no speed. The same list as the runtime's table.
const HOST_OPS: &[&str] = &[];

/// Preferred packages and a file that shows their use, as ARCHITECTURE.md lists them. (cranelift-codegen joins with the part that
/// needs it.)
const PREFERRED: &[(&str, &str)] = &[
    ("egg", "rewrite/src"),
    ("inkwell", "codegen/src"),
    ("petgraph", "rewrite/src"),
    ("prost", "tensor/src"),
    ("smallvec", "ir/src"),
    ("bumpalo", "rewrite/src"),
    ("proptest", "rewrite/src"),
    ("hip-runtime-sys", "runtime/compare/tests"),
];

pub fn run() -> Result<()> {
    let mut problems = Vec::new();
    arrows(&mut problems)?;
    let sources = files(Path::new("."), &["rs"])?;
    for path in &sources {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        source(path, &text, &mut problems);
    }
    preferred(&mut problems)?;
    words(&mut problems)?;
    if problems.is_empty() {
        println!("tidy: {} source files", sources.len());
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

fn arrows(problems: &mut Vec<String>) -> Result<()> {
    let ours: Vec<&str> = ARROWS.iter().map(|a| a.0).filter(|n| *n != ".").collect();
    for (name, allowed) in ARROWS {
        let path = Path::new(name).join("Cargo.toml");
        let manifest: toml::Value = toml::from_str(&std::fs::read_to_string(&path)?)?;
        let deps = manifest.get("dependencies").and_then(toml::Value::as_table);
        for dep in deps.into_iter().flat_map(|t| t.keys()) {
            if ours.contains(&dep.as_str()) && !allowed.contains(&dep.as_str()) {
                problems.push(format!("{}: `{name}` may not depend on `{dep}`", path.display()));
            }
        }
    }
    Ok(())
}

fn source(path: &Path, text: &str, problems: &mut Vec<String>) {
    let shown = path.strip_prefix("./").unwrap_or(path).display().to_string();
    let in_xtask = shown.starts_with("xtask/");
    let may_unsafe = UNSAFE.iter().any(|p| shown.starts_with(p)) || in_xtask;
    for (i, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        let mut say = |what: &str| problems.push(format!("{shown}:{}: {what}", i + 1));
        if !may_unsafe && (code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")) {
            say("`unsafe` may not stand here");
        }
        if !in_xtask && (code.contains("todo!(") || code.contains("unimplemented!(") || code.contains("#[ignore")) {
            say("unfinished work");
        }
        if !in_xtask && code.contains("inkwell::") && !shown.starts_with("codegen/") {
            say("only `codegen` sees LLVM");
        }
        if shown.starts_with("runtime/src/") && !PLATFORMS.contains(&shown.as_str()) {
            // Modules are named after vendors; that is how the platforms are reached.
            let rest = ["mod amd;", "mod nvidia;", "amd::", "nvidia::", "{amd, nvidia}"]
                .iter()
                .fold(line.to_lowercase(), |l, ours| l.replace(ours, ""));
            let words = rest.split(|c: char| !c.is_ascii_alphanumeric());
            if let Some(w) = words.into_iter().find(|w| VENDORS.contains(w)) {
                say(&format!("`{w}` may stand in the platforms' files only: {}", PLATFORMS.join(", ")));
            }
        }
        if shown.starts_with("runtime/src/host_ops") {
            for op in code.split('"').skip(1).step_by(2).filter(|w| w.starts_with("op:")) {
                if !HOST_OPS.contains(&&op[3..]) {
                    say(&format!("{op} is not on the list of host ops"));
                }
            }
        }
    }
    let lines = text.lines().count();
    if lines > 1200 && !shown.contains("onnx_pb") {
        problems.push(format!("{shown} has {lines} lines: which second idea moved in?"));
    }
}

fn preferred(problems: &mut Vec<String>) -> Result<()> {
    let page = std::fs::read_to_string("ARCHITECTURE.md").context("ARCHITECTURE.md")?;
    for (package, folder) in PREFERRED {
        if !page.contains(&format!("`{package}`")) {
            problems.push(format!("ARCHITECTURE.md does not say what `{package}` is for"));
        }
        let used = files(Path::new(folder), &["rs"])?.iter().any(|p| {
            std::fs::read_to_string(p).is_ok_and(|t| {
                let name = package.replace('-', "_");
                t.contains(&format!("{name}::")) || t.contains(&format!("use {name}"))
            })
        });
        if !used {
            problems.push(format!("`{package}` has no use in {folder}"));
        }
    }
    Ok(())
}

/// Words of people's workplaces have no place in the project.
fn words(problems: &mut Vec<String>) -> Result<()> {
    for path in files(Path::new("."), &["rs", "md", "toml", "py", "sh"])? {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for (i, line) in text.lines().enumerate() {
            if line.contains(concat!("/wo", "rk/")) || line.contains(concat!("../sha", "red")) {
                problems.push(format!("{}:{}: a path of somebody's machine", path.display(), i + 1));
            }
        }
    }
    Ok(())
}

/// Files with one of the extensions, sorted, without build output and fetched things.
fn files(dir: &Path, ext: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(d) = todo.pop() {
        for e in std::fs::read_dir(&d).with_context(|| d.display().to_string())?.flatten() {
            let (path, name) = (e.path(), e.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "venv" {
                    todo.push(path);
                }
            } else if path.extension().is_some_and(|x| ext.iter().any(|e| x == *e)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
