//! From a host program to an artifact: metadata, constants, code.

use crate::options::{CompileOptions, Constants};
use artifact::{Constant, ConstantsWriter, Metadata};
use bytes::Bytes;
use ir::Module;
use ir::consts::{Const, ConstData};
use ir::hip::{Hip, Space};
use lower::host::{HostProgram, Stmt};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use tensor::{Diagnostic, ErrorKind, Result};

/// The constants of a program with what the metadata says of each.
pub(crate) struct ConstantTable {
    pub lines: Vec<Constant>,
    pub file: artifact::ConstantsFile,
    /// Bytes by index, shared with the model's mapping; splats and external ranges are not in it.
    pub parts: BTreeMap<usize, Bytes>,
}

/// Streams the program's constants to `out` and describes them. No weight is held in memory: mapped bytes are written from the mapping.
///
/// # Errors
/// `Io` when a constant cannot be read or written, `Unsupported` for string constants in device code.
pub(crate) fn constants<W: Write>(
    m: &Module<Hip>,
    p: &HostProgram,
    o: &CompileOptions,
    out: W,
) -> Result<ConstantTable> {
    let mut writer = ConstantsWriter::new(out)?;
    let (mut lines, mut parts) = (Vec::new(), BTreeMap::new());
    for (i, used) in p.constants.iter().enumerate() {
        let c: &Const = &m.consts[used.konst];
        let line = match &c.data {
            ConstData::Seeded(s) => artifact::seeded(&c.name, c.dtype, &c.shape, s)?,
            ConstData::Splat(e) => artifact::splat(&c.name, c.dtype, &c.shape, e)?,
            ConstData::File { file, offset, .. } if o.constants == Constants::Reference => {
                let path = o.external_path(&file.path).to_string_lossy();
                artifact::external(&c.name, c.dtype, &c.shape, &path, *offset)?
            }
            ConstData::Strings(_) => {
                let text = format!("constant {:?} holds strings, which no kernel takes", c.name);
                return Err(Diagnostic::new(ErrorKind::Unsupported, text));
            }
            _ => {
                let t = c.read()?;
                let line = writer.plain(&c.name, c.dtype, &c.shape, t.bytes())?;
                parts.insert(i, t.bytes().clone());
                line
            }
        };
        lines.push(line);
    }
    let (file, _) = writer.finish()?;
    Ok(ConstantTable { lines, file, parts })
}

/// Everything the artifact says about the program. `launches` says of each generated kernel how GPUs run it; empty without GPUs.
pub(crate) fn metadata(
    m: &Module<Hip>,
    p: &HostProgram,
    table: &ConstantTable,
    o: &CompileOptions,
    (frame_words, features): (u64, String),
    launches: &[kernels::gpu::Launch],
) -> Metadata {
    let mut md = Metadata::new();
    md.compiler_version = env!("CARGO_PKG_VERSION").into();
    md.abi_hash = runtime::abi::abi_hash();
    md.model = m.meta.name.clone();
    md.target = Some(artifact::Target { device: o.devices(), triple: o.triple().into(), features });
    md.options = o.lines();
    md.options_hash = blake3::hash(md.options.join("\n").as_bytes()).to_hex().to_string();
    md.frame_words = frame_words;
    let port = |q: &lower::host::Port| artifact::Port::new(q.name.clone(), q.dtype, q.dims.clone(), &q.fixed);
    md.inputs = p.inputs.iter().map(|q| artifact::Port { default: q.default, ..port(q) }).collect();
    md.outputs = p.outputs.iter().map(port).collect();
    md.aliases = p.aliases.iter().map(|&(input, output)| artifact::Alias { input, output }).collect();
    md.constants = table.lines.clone();
    md.constants_file = Some(table.file.clone());
    let space = |s: Space| match s {
        Space::Device => 0,
        Space::Host => 1,
        Space::HostMapped => 2,
    };
    md.domains = p.domains.iter().map(|d| artifact::Domain { space: space(d.space), peak: d.peak.clone() }).collect();
    md.kernels = kernels(p, launches);
    md.debug = p.debug.iter().map(|d| artifact::DebugNode { path: d.path.clone(), what: d.what.clone() }).collect();
    md.guards = p.guards.clone();
    md.host_ops = p.host_ops.clone();
    let symbol = |s: &tensor::dims::Symbol| artifact::Symbol {
        name: s.name.clone(),
        lo: s.lo,
        hi: s.hi,
        multiple_of: s.multiple_of,
        origin: format!("{:?}", s.origin),
    };
    md.symbols = m.dims.symbols().map(|(_, s)| symbol(s)).collect();
    md.counts = counts(p);
    md
}

/// Generated kernels in order, then the catalog kernels that are called.
fn kernels(p: &HostProgram, launches: &[kernels::gpu::Launch]) -> Vec<artifact::Kernel> {
    let gpu = |l: &kernels::gpu::Launch| artifact::GpuLaunch {
        schedule: l.schedule.name().into(),
        block: l.block,
        vector: l.vector,
    };
    let generated = p.kernels.iter().enumerate().map(|(i, k)| artifact::Kernel {
        name: k.name.clone(),
        kind: "loops".into(),
        id: None,
        gpu: launches.get(i).map(gpu),
    });
    let called: BTreeSet<u32> = statements(p)
        .filter_map(|s| match s {
            Stmt::Kernel { id, .. } => Some(*id),
            _ => None,
        })
        .collect();
    let name = |id: u32| kernels::catalog::CATALOG.get(id as usize).map_or("?", |k| k.name).to_string();
    let catalog = called.into_iter().map(|id| artifact::Kernel {
        name: name(id),
        kind: "catalog".into(),
        id: Some(id),
        gpu: None,
    });
    generated.chain(catalog).collect()
}

fn statements(p: &HostProgram) -> impl Iterator<Item = &Stmt> {
    p.funcs.iter().flat_map(|f| &f.body)
}

/// How often each kind of statement occurs.
fn counts(p: &HostProgram) -> Vec<artifact::Count> {
    let mut n: BTreeMap<&str, u64> = BTreeMap::new();
    for s in statements(p) {
        let what = match s {
            Stmt::Launch { .. } => "launches",
            Stmt::Kernel { .. } => "kernel calls",
            Stmt::HostOp { .. } => "host ops",
            Stmt::Copy { .. } => "copies",
            Stmt::Readback { .. } => "readbacks",
            Stmt::Guard { .. } => "guards",
            Stmt::If { .. } => "branches",
            Stmt::Loop { .. } => "loops",
            Stmt::Reserve { .. } => "reservations",
            _ => continue,
        };
        *n.entry(what).or_default() += 1;
    }
    n.into_iter().map(|(what, n)| artifact::Count { what: what.into(), n }).collect()
}

/// The container around metadata and code.
///
/// # Errors
/// `Internal` when the metadata is inconsistent.
#[cfg(feature = "llvm")]
pub(crate) fn container(
    md: Metadata,
    code: codegen::Compiled,
    o: &CompileOptions,
    host_text: String,
) -> Result<artifact::Artifact> {
    use artifact::Kind;
    let mut b = artifact::Builder::new(md);
    b.section(Kind::HostBitcode, "", code.bitcode);
    b.section(Kind::HostObject, format!("{}+{}", o.triple(), o.tier()), code.object);
    for g in code.gpu {
        b.section(Kind::GpuCode, g.label, g.bytes);
    }
    b.section(Kind::Debug, "host", host_text.into_bytes());
    artifact::Artifact::from_bytes(b.finish()?.into())
}

/// Writes the constants file beside an artifact.
///
/// # Errors
/// `Io` with the path.
pub(crate) fn write_constants(path: &Path, m: &Module<Hip>, p: &HostProgram, o: &CompileOptions) -> Result<()> {
    let path = artifact::constants_path(path);
    let mut failed = None;
    let written = artifact::write_beside(&path, |f| {
        constants(m, p, o, std::io::BufWriter::new(f)).map(|_| ()).map_err(|e| {
            let io = std::io::Error::other(e.to_string());
            failed = Some(e);
            io
        })
    });
    match failed {
        Some(e) => Err(e),
        None => written,
    }
}
