//! Tensors for tools: from `.pb` and `.npy` files, from data folders, random.

use artifact::Port;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::{Path, PathBuf};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor, Writer};

/// A folder `test_data_set_0`: `input_0.pb …`, `output_0.pb …` with the names the files carry.
#[derive(Clone, Debug, Default)]
pub struct DataSet {
    /// Inputs in order.
    pub inputs: Vec<(String, Tensor)>,
    /// Expected outputs in order: what another runtime computes.
    pub outputs: Vec<(String, Tensor)>,
    /// The same outputs by the interpreter, which sums in f64: `exact_0.pb …`, where [`DataSet::write_exact`] has written them.
    pub exact: Vec<(String, Tensor)>,
}

impl DataSet {
    /// Reads a folder.
    ///
    /// # Errors
    /// `Io` when it has no files, or misses one before others, and as reading them.
    pub fn read(dir: &Path) -> Result<DataSet> {
        let series = |stem: &str| -> Result<Vec<(String, Tensor)>> {
            let path = |i: usize| dir.join(format!("{stem}_{i}.pb"));
            let all = numbered(dir, stem);
            if let Some((i, last)) = (0..all.len()).find(|i| !all.contains(i)).zip(all.last()) {
                let text = format!("{} has {stem}_{last}.pb but no {stem}_{i}.pb", dir.display());
                return Err(Diagnostic::new(ErrorKind::Io, text)
                    .help(format!("files are numbered as the model's {stem}s are, from 0 on, without gaps")));
            }
            (0..all.len()).map(|i| tensor::pb::read_tensor(&path(i))).collect()
        };
        let set = DataSet { inputs: series("input")?, outputs: series("output")?, exact: series("exact")? };
        if set.inputs.is_empty() && set.outputs.is_empty() {
            let text = format!("{} holds no input_0.pb and no output_0.pb", dir.display());
            let e = Diagnostic::new(ErrorKind::Io, text);
            let inside = |d: PathBuf| (!numbered(&d, "input").is_empty()).then(|| d.display().to_string());
            let mut sets: Vec<String> =
                std::fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|f| inside(f.path())).collect();
            sets.sort();
            return Err(match &sets[..] {
                [] => e,
                [one] => e.help(format!("{one} does: --data-dir {one}")),
                [one, .., last] => {
                    e.help(format!("{} folders in it do, {one} to {last}: a --data-dir for each", sets.len()))
                }
            });
        }
        Ok(set)
    }
    /// Whether there is something to compare with.
    pub fn is_expected(&self) -> bool {
        !self.outputs.is_empty() || !self.exact.is_empty()
    }
    /// Writes the interpreter's outputs into the folder.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn write_exact(dir: &Path, outputs: &[(String, Tensor)]) -> Result<()> {
        let path = |i: usize| dir.join(format!("exact_{i}.pb"));
        outputs.iter().enumerate().try_for_each(|(i, (name, t))| tensor::pb::write_tensor(&path(i), name, t))
    }
    /// A set of inputs without expected outputs.
    pub fn of_inputs(inputs: Vec<(String, Tensor)>) -> DataSet {
        DataSet { inputs, ..DataSet::default() }
    }
    /// Inputs in the order of the model: by the names that files carry, else as they are. `default` gives what an input is that is
    /// left out, if it has a default.
    ///
    /// # Errors
    /// `Argument` when an input without a default is not given, and those of `default`.
    pub fn in_order(&self, names: &[&str], default: &dyn Fn(usize) -> Result<Option<Tensor>>) -> Result<Vec<Tensor>> {
        let by_name = self.inputs.iter().all(|(n, _)| names.contains(&n.as_str()));
        if !by_name {
            let mut all: Vec<Tensor> = self.inputs.iter().map(|(_, t)| t.clone()).collect();
            while all.len() < names.len()
                && let Some(t) = default(all.len())?
            {
                all.push(t);
            }
            return Ok(all);
        }
        let find = |name: &str| self.inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
        let missing = |name: &str| Diagnostic::new(ErrorKind::Argument, format!("input {name:?} is not given"));
        let each = |(i, n): (usize, &&str)| match find(n) {
            Some(t) => Ok(t),
            None => default(i)?.ok_or_else(|| missing(n)),
        };
        names.iter().enumerate().map(each).collect()
    }
}

/// Why a set is not compared.
pub const NOT_COMPARED: &str = "no expected outputs (output_0.pb, …) are there";

/// The numbers `N` of the files `STEM_N.pb` in a folder, in order.
fn numbered(dir: &Path, stem: &str) -> std::collections::BTreeSet<usize> {
    let number = |name: String| name.strip_prefix(stem)?.strip_prefix('_')?.strip_suffix(".pb")?.parse().ok();
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|f| f.file_name().into_string().ok());
    names.filter_map(number).collect()
}

/// Reads one tensor by the file's extension.
///
/// # Errors
/// `Argument` for another extension, and as reading.
pub fn read_tensor(path: &Path) -> Result<Tensor> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("pb") => tensor::pb::read_tensor(path).map(|(_, t)| t),
        Some("npy") => tensor::npy::read(path),
        _ => Err(Diagnostic::new(ErrorKind::Argument, format!("{} is neither .pb nor .npy", path.display()))),
    }
}

/// Inputs for a model: those given by file, the others random, but for those that have defaults, at the given shapes; a symbolic dim without a given size is 1, or what
/// another input of the same symbol has.
///
/// # Errors
/// `Argument` for unknown names and malformed arguments.
pub fn inputs(ports: &[Port], files: &[String], shapes: &[String], seed: u64) -> Result<Vec<(String, Tensor)>> {
    let known = |name: &str| {
        ports.iter().any(|p| p.name == name).then_some(()).ok_or_else(|| {
            let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
            Diagnostic::new(ErrorKind::Argument, format!("the model has no input {name:?}"))
                .help(format!("its inputs are {}", names.join(", ")))
        })
    };
    let mut given = std::collections::BTreeMap::new();
    for f in files {
        let (name, path) = super::named(f)?;
        known(name)?;
        given.insert(name.to_string(), read_tensor(&PathBuf::from(path))?);
    }
    let mut sizes = std::collections::BTreeMap::new();
    let mut wanted = std::collections::BTreeMap::new();
    for s in shapes {
        let (name, dims) = super::named(s)?;
        known(name)?;
        let parse = |d: &str| {
            d.parse::<usize>().map_err(|_| {
                Diagnostic::new(ErrorKind::Argument, format!("{d:?} in {s:?} is no size"))
                    .help(format!("write sizes with an x between them: {name}=2x3x4"))
            })
        };
        let dims: Vec<usize> = dims.split('x').filter(|d| !d.is_empty()).map(parse).collect::<Result<_>>()?;
        wanted.insert(name.to_string(), dims);
    }
    for p in ports {
        let shape = wanted.get(&p.name).map(Vec::as_slice).or(given.get(&p.name).map(|t| t.shape()));
        for (dim, &n) in p.dims.iter().zip(shape.unwrap_or_default()) {
            sizes.insert(dim.clone(), n);
        }
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut out = Vec::new();
    for (i, p) in ports.iter().enumerate() {
        let t = match (given.remove(&p.name), wanted.get(&p.name)) {
            (Some(t), _) => t,
            (None, None) if p.default.is_some() => continue,
            (None, Some(shape)) => random(p.dtype()?, shape, &mut rng)?,
            (None, None) => {
                let fixed = |(axis, dim): (usize, &String)| {
                    p.fixed_dim(axis).and_then(|d| usize::try_from(d).ok()).or(sizes.get(dim).copied()).unwrap_or(1)
                };
                let shape: Vec<usize> = p.dims.iter().enumerate().map(fixed).collect();
                random(p.dtype()?, &shape, &mut rng)?
            }
        };
        out.push((if p.name.is_empty() { format!("input {i}") } else { p.name.clone() }, t));
    }
    Ok(out)
}

/// Normal floats, integers 0 to 9, bools.
///
/// # Errors
/// `Unsupported` for dtypes without random values, `Limit` when too large.
pub fn random(dtype: DType, shape: &[usize], rng: &mut ChaCha8Rng) -> Result<Tensor> {
    if !(dtype.is_float() || dtype.is_int() || dtype == DType::Bool) {
        return Err(Diagnostic::new(ErrorKind::Unsupported, format!("there are no random values of type {dtype}"))
            .help("give the input as a file"));
    }
    let too_large = |why: &str| {
        Diagnostic::new(ErrorKind::Limit, format!("a random input {dtype}{shape:?} {why}"))
            .help("give smaller extents: --shape NAME=2x3x4")
    };
    let n = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let Some((n, bytes)) = n.and_then(|n| Some((n, dtype.size_bytes(n)?))) else {
        return Err(too_large("takes more bytes than 64 bits can count"));
    };
    if bytes > available() || Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
        return Err(too_large(&format!("takes {bytes} bytes, more than the memory that is free")));
    }
    let mut w = Writer::new(dtype, shape);
    for _ in 0..n {
        match dtype {
            DType::Bool => w.push_i64(rng.random_range(0..2)),
            d if d.is_int() => w.push_i64(rng.random_range(0..if d.bits() < 4 { 2 } else { 8 })),
            // The sum of 12 uniform numbers is normal enough, and the same on every platform.
            _ => w.push_f64((0..12).map(|_| rng.random_range(-0.5..0.5)).sum()),
        }
    }
    Ok(w.finish())
}

/// Bytes of memory that are free, by the kernel's estimate; any number where it gives none.
fn available() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok());
    line.map_or(usize::MAX, |kib: usize| kib.saturating_mul(1024))
}
