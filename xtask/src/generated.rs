//! Compiles graphs that exporters have made into a folder (`xtask/data/generated.toml` lists them), and runs each artifact in fresh
//! processes, one per shape, against onnxruntime by the rule of `corpus`: within tolerance of its outputs, and of the interpreter's within
//! twice its error plus a floor. onnxruntime runs each shape twice, with and without rewriting the model. What it does not run is compared
//! with the interpreter alone.
//!
//! Decoders with a cache also decode greedily, in onnxruntime and from the one artifact: the prompt, then a token at a time. In f32 the
//! tokens must be the same. With `--shared` those whose caches are updated in place decode once more, each cache in one place with room
//! for all tokens: the tokens must be those of the other decoding, and no byte of a cache copied. A graph that is not there has not passed.

use crate::measure::{both_runs, compiler, data, interpret, judge, once, script, test, tool};
use crate::models::Model;
use crate::{models, sh};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// Folder that the graphs were made into, from the repository's root.
    dir: PathBuf,
    /// Only graphs whose name or script contains one of these.
    names: Vec<String>,
    /// Shapes per graph with dynamic dims.
    #[arg(long, default_value_t = 4)]
    shapes: u32,
    /// Tokens that a decoder decodes; 0 leaves decoding out.
    #[arg(long, default_value_t = 16)]
    tokens: u32,
    /// Also decode with each cache in one place, where the model updates it: past and present share memory.
    #[arg(long)]
    shared: bool,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Folder with the tools and `examples/decode`; without it they are built.
    #[arg(long)]
    tools: Option<PathBuf>,
}

const LIST: &str = "xtask/data/generated.toml";
/// How far the logit of a decoded token may be from onnxruntime's, of its magnitude: caches hold what earlier runs have rounded.
const LOGIT: f64 = 1e-3;

pub fn run(args: &Args) -> Result<()> {
    let picked = pick(models::entries(LIST, "generated")?, &args.names)?;
    if !args.dir.is_dir() {
        bail!("there is no folder {}", args.dir.display());
    }
    let bin = tools(args)?;
    let mut rows = Vec::new();
    for m in &picked {
        let row = model(args, m, &bin).unwrap_or_else(|e| json!({"error": format!("{e:#}")}));
        if !args.json {
            println!("{}", line(&m.name, &row));
        }
        rows.push((m.name.as_str(), row));
    }
    let passed = rows.iter().filter(|(_, r)| r["passed"] == true).count();
    if args.json {
        let models: BTreeMap<&str, &Value> = rows.iter().map(|(n, r)| (*n, r)).collect();
        println!("{}", serde_json::to_string_pretty(&json!({"passed": passed, "of": rows.len(), "models": models}))?);
    } else {
        missing(&rows).iter().for_each(|(n, op)| println!("{n:5} without {op}"));
        println!("{passed} of {}", rows.len());
    }
    if passed < rows.len() {
        bail!("{} graphs did not pass", rows.len() - passed);
    }
    Ok(())
}

/// The entries whose name or script contains one of the names.
fn pick(mut all: Vec<Model>, names: &[String]) -> Result<Vec<Model>> {
    let is = |m: &Model, n: &String| m.name.contains(n) || m.str("script").is_ok_and(|s| s.contains(n));
    if let Some(bad) = names.iter().find(|n| !all.iter().any(|m| is(m, n))) {
        bail!("no graph {bad} in {LIST}");
    }
    all.retain(|m| names.is_empty() || names.iter().any(|n| is(m, n)));
    if all.is_empty() {
        bail!("no graph in {LIST}");
    }
    Ok(all)
}

fn tools(args: &Args) -> Result<PathBuf> {
    if let Some(dir) = &args.tools {
        return Ok(std::path::absolute(dir)?);
    }
    sh::run(&mut sh::cargo(&["build", "--quiet", "--package", "hip-ep", "--example", "decode"]))?;
    sh::tools()
}

fn model(args: &Args, m: &Model, bin: &Path) -> Result<Value> {
    let path = std::path::absolute(args.dir.join(m.str("file")?))?;
    if !path.exists() {
        bail!("is not there: {} makes {}", m.str("script")?, path.display());
    }
    let dir = sh::target().join("generated").join(&m.name).join(key(m, &path)?);
    std::fs::create_dir_all(&dir)?;
    let artifact = dir.join("model.hipep");
    let start = Instant::now();
    let compiled = sh::output(&mut compiler(bin, &path, &artifact))?;
    let compile_ms = start.elapsed().as_millis() as u64;
    if !compiled.status.success() {
        return Ok(refused(&String::from_utf8_lossy(&compiled.stderr)));
    }
    let mut shapes = shapes(args, m, &path, &dir)?;
    let prompt = (args.tokens > 0 && is_decoder(m)).then(|| dir.join(format!("decode-{}", args.tokens)));
    let mut peer = Value::Null;
    if let Some(folder) = &prompt {
        peer = once(folder, script(m, "decode.py", &path, folder)?.arg(args.tokens.to_string()))?;
        shapes.push(vec![folder.clone()]);
    }
    interpret(bin, &path, &shapes, shapes.len())?;
    let (mut problems, mut exact_share, mut worst) = (Vec::new(), 0f64, 0f64);
    for r in tests(bin, &artifact, &shapes, judge(m))? {
        let said = r["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
        problems.extend(said.map(str::to_string));
        exact_share = exact_share.max(r["exact_share"].as_f64().unwrap_or(f64::INFINITY));
        worst = worst.max(r["worst"].as_f64().unwrap_or(f64::INFINITY));
    }
    let mut row = json!({"compile_ms": compile_ms, "sets": shapes.len(), "worst": worst, "exact_share": exact_share});
    if let Some(folder) = &prompt {
        let (text, problem) = decode(args, bin, &artifact, folder, &peer)?;
        row["tokens"] = text.into();
        problems.extend(problem);
    }
    row["passed"] = problems.is_empty().into();
    row["problems"] = problems.into();
    Ok(row)
}

/// Data sets of each shape; inputs alone where onnxruntime does not run the model.
fn shapes(args: &Args, m: &Model, path: &Path, dir: &Path) -> Result<Vec<Vec<PathBuf>>> {
    if m.flag("ort_cpu") == Some(false) {
        return Ok(data(m, path, args.shapes, &dir.join("alone"), &["alone"])?.into_iter().map(|s| vec![s]).collect());
    }
    both_runs(m, path, args.shapes, dir)
}

/// What `hip-test` says: of each shape, of the first of onnxruntime's runs that it passes with; or of all together, with the judge that
/// takes them so.
fn tests(bin: &Path, artifact: &Path, shapes: &[Vec<PathBuf>], judge: &[&str]) -> Result<Vec<Value>> {
    if !judge.is_empty() {
        return Ok(vec![test(bin, artifact, &shapes.concat(), judge)?]);
    }
    shapes.iter().map(|folders| best(bin, artifact, folders)).collect()
}

fn best(bin: &Path, artifact: &Path, folders: &[PathBuf]) -> Result<Value> {
    let mut first = None;
    for set in folders {
        let mut r = test(bin, artifact, std::slice::from_ref(set), &[])?;
        if r["passed"] == true {
            return Ok(r);
        }
        // It ran one set, which was its first.
        let name = folders[0].file_name().unwrap_or_default().to_string_lossy();
        for p in r["problems"].as_array_mut().into_iter().flatten() {
            *p = p.as_str().unwrap_or_default().replacen("set 0", &name, 1).into();
        }
        first = first.or(Some(r));
    }
    first.context("no data")
}

/// Names the data of a graph: by its bytes, those of its weights beside it, its entry, and the scripts that make the data.
fn key(m: &Model, path: &Path) -> Result<String> {
    let mut h = blake3::Hasher::new();
    h.update(m.json()?.as_bytes());
    let mut beside = path.as_os_str().to_owned();
    beside.push(".data");
    let files = [path, Path::new(&beside), Path::new("xtask/py/reference.py"), Path::new("xtask/py/decode.py")];
    for file in files.into_iter().filter(|f| f.exists()) {
        h.update(&std::fs::read(file).with_context(|| file.display().to_string())?);
    }
    Ok(h.finalize().to_hex()[..16].to_string())
}

/// What the compiler says of a model that it does not take: the operators it lacks, or the first line.
fn refused(said: &str) -> Value {
    let operator = |l: &str| {
        let (name, rest) = l.trim().strip_prefix("operator")?.split_once(" at opset")?;
        let nodes = rest.split(", first").next()?.split(": ").last()?;
        Some((name.trim().to_string(), nodes.to_string()))
    };
    let missing: BTreeMap<String, String> = said.lines().filter_map(operator).collect();
    let texts: Vec<String> = missing.iter().map(|(name, nodes)| format!("{name} ({nodes})")).collect();
    let first = said.lines().find(|l| l.starts_with("error: ")).or(said.lines().last()).unwrap_or("?");
    let reason = if texts.is_empty() { first.trim_start_matches("error: ").to_string() } else { texts.join(", ") };
    json!({"error": format!("is refused: {reason}"), "missing": missing, "detail": said})
}

/// Whether the graph takes what it gives as `present` as `past`. Caches that another graph fills are not followed.
fn is_decoder(m: &Model) -> bool {
    let inputs = m.entry.get("input").and_then(toml::Value::as_array).into_iter().flatten();
    let names: Vec<&str> = inputs.filter_map(|i| i.get("name")?.as_str()).collect();
    names.iter().any(|n| n.starts_with("past")) && !names.iter().any(|n| n.contains(".encoder."))
}

/// Decodes from the artifact. How many tokens are as the peer's, and what is wrong.
fn decode(args: &Args, bin: &Path, artifact: &Path, start: &Path, peer: &Value) -> Result<(String, Option<String>)> {
    let program = bin.join("examples").join("decode");
    let run =
        |extra: &[&str]| tool(Command::new(&program).args([artifact, start]).arg(args.tokens.to_string()).args(extra));
    let got = run(&[])?;
    let n_shared = if args.shared { aliases(bin, artifact)? } else { 0 };
    let in_place = if n_shared > 0 { Some(run(&["shared"])?) } else { None };
    let wrong = in_place.and_then(|s| not_in_place(&got, &s, n_shared));
    let shared = if args.shared { format!(", {n_shared} caches in place") } else { String::new() };
    let list = |v: &Value| -> Vec<(i64, f64)> {
        let items = |key: &str| v[key].as_array().cloned().unwrap_or_default().into_iter();
        let pairs = items("tokens").zip(items("logits"));
        pairs.map(|(t, l)| (t.as_i64().unwrap_or(-1), l.as_f64().unwrap_or(f64::NAN))).collect()
    };
    let (got, want) = (list(&got), list(peer));
    if want.is_empty() {
        return Ok((format!("{}, not compared{shared}", got.len()), wrong));
    }
    let is_same = |(a, b): &(&(i64, f64), &(i64, f64))| a.0 == b.0 && (a.1 - b.1).abs() <= LOGIT * b.1.abs().max(1.0);
    let same = got.iter().zip(&want).take_while(is_same).count();
    let differs = peer["dtype"] == "float32" && same < want.len();
    let problem =
        differs.then(|| format!("decoding: step {same} gives {:?}, expected {:?}", got.get(same), want[same]));
    Ok((format!("{same} of {}{shared}", want.len()), problem.or(wrong)))
}

/// How many inputs may share memory with an output.
fn aliases(bin: &Path, artifact: &Path) -> Result<usize> {
    let about = tool(Command::new(bin.join("hip-inspect")).arg(artifact).arg("--json"))?;
    Ok(about["aliases"].as_array().map_or(0, Vec::len))
}

/// What is wrong with a decoding in place: other tokens than with memory of their own, or bytes of caches copied.
fn not_in_place(apart: &Value, shared: &Value, n: usize) -> Option<String> {
    let c = &shared["counters"];
    if shared["tokens"] != apart["tokens"] {
        return Some(format!("decoding in place gives other tokens: {}", shared["tokens"]));
    }
    if shared["shared"] != n || c["shared_outputs"] != n {
        return Some(format!("{} of {n} caches are in place", c["shared_outputs"]));
    }
    let [own, all] = [&shared["counters"], &apart["counters"]].map(|c| c["copied_bytes"].as_u64().unwrap_or(u64::MAX));
    // What is copied besides caches is copied in both; apart, caches grow.
    (own > all).then(|| format!("{own} bytes are copied in place, {all} with memory of their own"))
}

fn line(name: &str, r: &Value) -> String {
    if let Some(e) = r["error"].as_str() {
        return format!("FAIL {name:36} {}", e.lines().next().unwrap_or(""));
    }
    let verdict = if r["passed"] == true { "ok  " } else { "FAIL" };
    let tokens = r["tokens"].as_str().map(|t| format!(", tokens {t}")).unwrap_or_default();
    let problems: Vec<&str> = r["problems"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let problem = match &problems[..] {
        [] => String::new(),
        [one] => format!("; {one}"),
        [first, rest @ ..] => format!("; {first}; {} more", rest.len()),
    };
    format!(
        "{verdict} {name:36} compile {:>6} ms, {:>2} sets, worst error {:.1e}, {:.2} of what the interpreter allows{tokens}{problem}",
        r["compile_ms"].as_u64().unwrap_or(0),
        r["sets"].as_u64().unwrap_or(0),
        r["worst"].as_f64().unwrap_or(f64::INFINITY),
        r["exact_share"].as_f64().unwrap_or(f64::INFINITY),
    )
}

/// Operators that graphs were refused for, and in how many, the most frequent first.
fn missing(rows: &[(&str, Value)]) -> Vec<(usize, String)> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for op in rows.iter().filter_map(|(_, r)| r["missing"].as_object()).flat_map(|ops| ops.keys()) {
        *counts.entry(op).or_default() += 1;
    }
    let mut by_count: Vec<(usize, String)> = counts.into_iter().map(|(op, n)| (n, op.clone())).collect();
    by_count.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    by_count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_operators() {
        let said = "error: the model uses 1 operator that is not supported\n  operator  GroupQueryAttention of com.microsoft at opset 1: \
                    2 nodes, first /attn; no such operator: add a row\n  file      model.onnx\n";
        let row = refused(said);
        assert_eq!(row["error"], "is refused: GroupQueryAttention of com.microsoft (2 nodes)");
        assert_eq!(missing(&[("a", row)]), [(1, "GroupQueryAttention of com.microsoft".to_string())]);
        assert_eq!(refused("error: no\n  help  yes")["error"], "is refused: no");
    }

    #[test]
    fn a_name_that_matches_nothing_is_an_error() {
        let all = || models::entries(&sh::root().join(LIST).display().to_string(), "generated").expect("the list");
        assert!(pick(all(), &["no such graph".into()]).is_err());
        assert!(pick(all(), &["llama-".into()]).is_ok_and(|p| p.iter().all(|m| m.name.contains("llama-"))));
        let decoders = all().iter().filter(|m| is_decoder(m)).count();
        assert_eq!((all().len(), decoders), (73, 29));
    }
}
