//! Shows what an artifact holds.
#![deny(clippy::print_stdout)] // `say!` does not panic

use clap::Parser;
use hip_ep::artifact::{Kind, Source};
use hip_ep::tool::memory::{Extents, Need};
use hip_ep::{CompiledModel, Diagnostic, ErrorKind, Result};
use hip_ep::{say, tool};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    version,
    about = "Show the metadata of a compiled model: inputs, outputs, constants, kernels, memory, placement"
)]
struct Cli {
    /// Artifact or shared object.
    #[arg(required_unless_present = "docs")]
    artifact: Option<PathBuf>,
    /// Print the metadata as JSON.
    #[arg(long)]
    json: bool,
    /// Bytes that a run takes at given sizes, `batch=8,seq=512`: of each pool at its peak, of inputs and of outputs.
    #[arg(long, value_name = "SYMBOL=SIZE,…", num_args = 0..=1, default_missing_value = "")]
    memory: Option<String>,
    /// Check the hashes of every section and constant.
    #[arg(long)]
    verify: bool,
    /// Write a section to --output: bitcode, object, host, metadata, or GPU code by its label (hip:gfx942/generated).
    #[arg(long, value_name = "SECTION", requires = "output")]
    extract: Option<String>,
    /// Where --extract writes.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Print a generated page and stop.
    #[arg(long, value_name = "PAGE", value_parser = ["abi"])]
    docs: Option<String>,
}

fn main() -> ExitCode {
    tool::init_log();
    tool::exit(run(&Cli::parse()))
}

fn run(cli: &Cli) -> Result<bool> {
    if cli.docs.is_some() {
        tool::print(hip_ep::runtime::abi::render_markdown().as_bytes());
        return Ok(true);
    }
    let path = cli.artifact.as_ref().ok_or_else(|| Diagnostic::new(ErrorKind::Argument, "no artifact is given"))?;
    let model = CompiledModel::load(path)?;
    let m = model.metadata();
    if cli.verify {
        model.artifact().verify()?;
        let file = hip_ep::artifact::constants::open(&hip_ep::artifact::constants_path(path), m)?;
        hip_ep::artifact::constants::verify(&file, m)?;
        let (sections, constants) = (model.artifact().sections().len(), m.constants.len());
        if cli.json {
            say!("{}", serde_json::json!({"intact": true, "sections": sections, "constants": constants}));
        } else {
            say!("{sections} sections and {constants} constants are intact");
        }
        return Ok(true);
    }
    if let (Some(what), Some(output)) = (&cli.extract, &cli.output) {
        let kind = match what.as_str() {
            "bitcode" => Kind::HostBitcode,
            "object" => Kind::HostObject,
            "host" => Kind::Debug,
            "metadata" => Kind::MetadataJson,
            _ => Kind::GpuCode,
        };
        let gpu = model.gpu_code();
        let section = match kind {
            Kind::GpuCode => gpu.iter().find(|(label, _)| label == what).map(|(_, b)| b.clone()),
            kind => model.artifact().sections_of(kind).next().map(|(_, b)| b),
        };
        let bytes = section.ok_or_else(|| {
            let labels: Vec<&str> =
                gpu.iter().map(|g| g.0.as_str()).chain(["bitcode", "object", "host", "metadata"]).collect();
            Diagnostic::new(ErrorKind::Argument, format!("{} has no {what}", path.display()))
                .help(format!("what a model may have: {}", labels.join(", ")))
        })?;
        tool::save(output, &bytes)?;
        return Ok(true);
    }
    if cli.json {
        say!("{}", m.to_json()?);
        return Ok(true);
    }
    if let Some(at) = &cli.memory {
        return memory(m, at);
    }
    say!("model       {:?}, compiled by hip-ep {}", m.model, m.compiler_version);
    if let Some(t) = &m.target {
        say!("target      {} {} {}", t.device, t.triple, t.features);
    }
    for p in &m.inputs {
        let default = p.default.map_or_else(String::new, |c| format!(" = constant {c} unless given"));
        say!("input       {}: {}{default}", p.name, p.display());
    }
    m.outputs.iter().for_each(|p| say!("output      {}: {}", p.name, p.display()));
    let total: u64 = m
        .constants
        .iter()
        .filter(|c| !matches!(c.source, Some(Source::Splat(_) | Source::Seeded(_))))
        .map(|c| c.bytes)
        .sum();
    let size = if total < 1_000_000 { format!("{total} bytes") } else { format!("{:.1} MB", total as f64 / 1e6) };
    for (past, present) in tool::caches::pairs(m) {
        say!("shares      {} with {}", past.name, present.name);
    }
    say!("constants   {} of {size}", m.constants.len());
    let n = |kind: &str| m.kernels.iter().filter(|k| k.kind == kind).count();
    let called: Vec<&str> = m.kernels.iter().filter(|k| k.id.is_some()).map(|k| k.name.as_str()).collect();
    say!("kernels     {} generated; catalog: {}", n("loops"), called.join(", "));
    m.counts.iter().for_each(|c| say!("{:11} {}", c.what, c.n));
    for (i, d) in m.domains.iter().enumerate() {
        say!(
            "pool {i}      {} bytes = {}",
            ["device", "host", "host-mapped"].get(d.space as usize).unwrap_or(&"?"),
            d.peak
        );
    }
    m.options.iter().for_each(|o| say!("option      {o}"));
    m.guards.iter().for_each(|g| say!("guard       {g}"));
    for (label, code) in model.gpu_code() {
        gpu(&label, &code)?;
    }
    for s in model.artifact().sections() {
        say!("section     {:?} {} {} bytes", s.kind, s.label, s.len);
    }
    Ok(true)
}

/// Lists the kernels of a section of GPU code.
fn gpu(label: &str, code: &[u8]) -> Result<()> {
    if !code.starts_with(b"\x7fELF") {
        let text = String::from_utf8_lossy(code);
        let entries: Vec<&str> =
            text.lines().filter_map(|l| l.split_once(".entry ")).map(|(_, n)| n.trim_end_matches('(')).collect();
        say!("gpu         {label}: {} kernels, {} bytes of PTX", entries.len(), code.len());
        entries.iter().for_each(|n| say!("  {n}"));
        return Ok(());
    }
    let kernels = hip_ep::codegen::gpu::notes::kernels(code)?;
    say!("gpu         {label}: {} kernels, {} bytes", kernels.len(), code.len());
    for k in kernels {
        let spills = if k.spills > 0 { format!(", {} spilled", k.spills) } else { String::new() };
        say!(
            "  {:40} {:3} vector and {:3} scalar registers{spills}, {:5} bytes shared, blocks of {}, waves of {}",
            k.name,
            k.vgprs + k.agprs,
            k.sgprs,
            k.shared_bytes,
            k.block,
            k.wave
        );
    }
    Ok(())
}

/// Evaluates the pools' peak expressions, and what the caller holds.
fn memory(m: &hip_ep::artifact::Metadata, at: &str) -> Result<bool> {
    let extents = Extents::parse(m, at)?;
    for (i, d) in m.domains.iter().enumerate() {
        let space = ["device", "host", "host-mapped"].get(d.space as usize).unwrap_or(&"?");
        match extents.eval(&d.peak) {
            Ok(bytes) => say!("pool {i} ({space}): {bytes} bytes = {}", d.peak),
            Err(e) => say!("pool {i} ({space}): {} ({})", d.peak, e.message()),
        }
    }
    match Need::at(m, &extents) {
        Ok(n) => {
            say!("inputs: {} bytes", n.inputs);
            say!("outputs: {} bytes", n.outputs);
            say!("a run: {} bytes, weights aside", n.total());
            if n.shared > 0 {
                say!("a run with outputs in the memory of inputs: {} bytes", n.in_place());
            }
        }
        Err(e) => say!("a run: {}", e.message()),
    }
    Ok(true)
}
