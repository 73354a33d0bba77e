//! Writes random models with inputs and what the interpreter computes, one folder each: `model.onnx`, `test_data_set_0/input_N.pb`,
//! `output_N.pb`. Prints one line of JSON per model: its folder, its opset, and the rows in it with their element types.
//!
//! `cargo xtask random` drives it.

use anyhow::{Context, Result, bail};
use clap::Parser;
use ir::generate::random::{Peer, Sample, Sampler};
use ir::{OpDef, Registry};
use serde_json::json;
use std::path::{Path, PathBuf};
use tensor::DType;

#[derive(Parser)]
struct Cli {
    /// Seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many models.
    #[arg(long, default_value_t = 100)]
    count: usize,
    /// Models of one node instead, for each row and element type: of ai.onnx an unchanged case at each opset that has the row; of another
    /// domain, whose versions are its own, each case at the newest opset.
    #[arg(long)]
    single: bool,
    /// Print the rows with their element types, one a line, and stop.
    #[arg(long)]
    list: bool,
    /// Models of the rows of one domain alone: ai.onnx, com.microsoft.
    #[arg(long)]
    domain: Option<String>,
    /// What another implementation runs: lines of operator, first opset of the row, element type, opsets joined by commas,
    /// or a dash and why it does not.
    #[arg(long)]
    shared: Option<PathBuf>,
    /// Where the folders go.
    #[arg(long, default_value = "random_models")]
    out: PathBuf,
    /// What the folders' names begin with.
    #[arg(long, default_value = "m")]
    prefix: String,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let registry = Registry::builtin();
    let shared = match &cli.shared {
        Some(path) => Some(read_peer(&std::fs::read_to_string(path).with_context(|| path.display().to_string())?)?),
        None => None,
    };
    let domain = cli.domain.as_deref().map(|d| if d == "ai.onnx" { "" } else { d });
    let mut sampler = Sampler::new(registry.clone(), cli.seed, shared, domain);
    if sampler.coverage().is_empty() {
        bail!("no rows of domain {:?}: ai.onnx and com.microsoft have some", domain.unwrap_or_default());
    }
    if cli.list {
        sampler.coverage().iter().for_each(|(pair, _)| println!("{}", name(&registry[pair.0], pair.1)));
        return Ok(());
    }
    if cli.single {
        for (i, (pair, _)) in sampler.coverage().into_iter().enumerate() {
            let opsets: Vec<i64> = sampler.opsets(pair.0).collect();
            if !registry[pair.0].domain.is_empty() {
                for (nth, sample) in sampler.singles(pair).enumerate() {
                    write(&cli, &format!("{i:05}_{nth}"), &sample, &opsets)?;
                }
            } else if let Some(mut sample) = sampler.singles(pair).next() {
                for opset in opsets {
                    sample.module.meta.opsets[0].1 = opset;
                    write(&cli, &format!("{i:05}_{opset}"), &sample, &[opset])?;
                }
            }
        }
        return Ok(());
    }
    for i in 0..cli.count {
        write(&cli, &format!("{i:05}"), &sampler.sample(), &[])?;
    }
    Ok(())
}

fn name(def: &OpDef, dtype: DType) -> String {
    format!("{} {} {}", def.full_name(), def.since, dtype.name())
}

fn read_peer(text: &str) -> Result<Peer> {
    let registry = Registry::builtin();
    let mut peer = Peer::default();
    for line in text.lines().filter(|l| !l.is_empty() && !l.contains(" - ")) {
        let [op, since, dtype, opsets] = line.split(' ').collect::<Vec<_>>()[..] else {
            bail!("{line:?} is not OP SINCE TYPE OPSETS")
        };
        let (domain, op) = op.split_once(':').unwrap_or(("", op));
        let row = registry.find(domain, op, since.parse()?).with_context(|| format!("no row for {line:?}"))?;
        let dtype = DType::from_name(dtype).with_context(|| format!("no type {dtype:?}"))?;
        for opset in opsets.split(',') {
            peer.insert((row, dtype), opset.parse()?);
        }
    }
    Ok(peer)
}

/// Writes a model that speaks for these opsets.
fn write(cli: &Cli, case: &str, sample: &Sample, opsets: &[i64]) -> Result<()> {
    let case = format!("{}{case}", cli.prefix);
    let dir = cli.out.join(&case);
    let data = dir.join("test_data_set_0");
    std::fs::create_dir_all(&data)?;
    std::fs::write(dir.join("model.onnx"), ir::export::to_onnx(&sample.module)?)?;
    // Compared by the ceilings of the element types, not by a tolerance of the case.
    std::fs::write(dir.join("tolerance.json"), r#"{"by": "dtype"}"#)?;
    let put = |path: PathBuf, name: &str, t| tensor::pb::write_tensor(Path::new(&path), name, t);
    let g = sample.module.graph();
    for (k, (t, &v)) in sample.inputs.iter().zip(&g.inputs).enumerate() {
        put(data.join(format!("input_{k}.pb")), &g.values[v].name, t)?;
    }
    for (k, (t, &v)) in sample.outputs.iter().zip(&g.outputs).enumerate() {
        put(data.join(format!("output_{k}.pb")), &g.values[v].name, t)?;
    }
    let registry = &sample.module.registry;
    let pairs: Vec<String> = sample.pairs.iter().map(|&(row, dtype)| name(&registry[row], dtype)).collect();
    println!("{}", json!({"case": case, "opsets": opsets, "pairs": pairs, "shared": sample.shared}));
    Ok(())
}
