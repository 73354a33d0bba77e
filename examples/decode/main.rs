//! Greedy decoding with a cache from one artifact: `decode ARTIFACT DIR TOKENS [shared]`.
//!
//! DIR holds the inputs of the first run as `input_N.pb`: the prompt as `input_ids`, what the caches `past…` begin with, and what else
//! the model takes. Every later run takes one token, and as `past…` what the run before gave as `present…`. With `shared`, caches that
//! the model updates in place are one tensor each from the first run to the last, with room for all tokens. Prints one JSON document:
//! the tokens, the logit of each, how many caches are shared, and what the last run did.

use hip_ep::tool::bench::counters;
use hip_ep::tool::caches::Caches;
use hip_ep::tool::data::DataSet;
use hip_ep::{Collect, CompiledModel, DeviceKind, Diagnostic, ErrorKind, Result, RunInputs, Tensor};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match &args[..] {
        [artifact, dir, n, rest @ ..] if rest.is_empty() || rest == ["shared"] => match n.parse() {
            Ok(n) => decode(Path::new(artifact), Path::new(dir), n, !rest.is_empty()),
            Err(_) => Err(Diagnostic::new(ErrorKind::Argument, format!("{n:?} is no number of tokens"))),
        },
        _ => Err(Diagnostic::new(ErrorKind::Argument, "usage: decode ARTIFACT DIR TOKENS [shared]")),
    };
    match result {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn decode(artifact: &Path, dir: &Path, n: usize, shared: bool) -> Result<serde_json::Value> {
    let session = CompiledModel::load(artifact)?.session(DeviceKind::Cpu, Default::default())?;
    let mut inputs = DataSet::read(dir)?.inputs;
    let prompt = inputs.iter().find(|(name, _)| name == "input_ids").map_or(0, |(_, t)| t.n_elems());
    let held = inputs.iter().map(|(_, t)| t.shape().get(2).copied().unwrap_or(0)).max().unwrap_or(0);
    let mut caches = if shared { Some(Caches::new(&session, &inputs, held + prompt + n)?) } else { None };
    inputs.retain(|(name, _)| !caches.as_ref().is_some_and(|c| c.has(name)));
    let (mut tokens, mut logits, mut last) = (Vec::new(), Vec::new(), Default::default());
    for _ in 0..n {
        let mut given = RunInputs::new();
        for (name, t) in &inputs {
            given.tensor(name, t);
        }
        if let Some(c) = &mut caches {
            c.bind(&mut given);
        }
        let mut outputs = Collect::new();
        last = session.run(&given, &mut outputs, &Default::default())?.counters;
        let (token, logit) = greedy(&outputs.take("logits").ok_or_else(|| missing("logits"))?);
        advance(&mut inputs, &mut outputs, token);
        tokens.push(token);
        logits.push(logit);
    }
    let n_shared = caches.map_or(0, |c| c.len());
    Ok(serde_json::json!({"tokens": tokens, "logits": logits, "shared": n_shared, "counters": counters(&last)}))
}

fn missing(name: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Argument, format!("the model has no output {name:?}"))
}

/// The likeliest token after the last one, the first of equals, and its logit.
fn greedy(logits: &Tensor) -> (i64, f64) {
    let vocabulary = logits.shape().last().copied().unwrap_or(0);
    let all = logits.to_f64_vec();
    let last = &all[all.len() - vocabulary..];
    let mut best = 0;
    for (i, x) in last.iter().enumerate() {
        if *x > last[best] {
            best = i;
        }
    }
    (best as i64, last[best])
}

/// Makes the inputs those of the next run.
fn advance(inputs: &mut [(String, Tensor)], outputs: &mut Collect, token: i64) {
    for (name, t) in inputs {
        let next = match name.as_str() {
            "input_ids" => Some(Tensor::from_i64_as(t.dtype(), &[1, 1], &[token])),
            "attention_mask" => Some(longer(t)),
            "position_ids" => Some(next_position(t)),
            past => outputs.take(&past.replacen("past_key_values", "present", 1).replacen("past", "present", 1)),
        };
        if let Some(next) = next {
            *t = next;
        }
    }
}

/// A mask of one row with one more 1.
fn longer(mask: &Tensor) -> Tensor {
    let mut values = mask.to_i64_vec();
    values.push(1);
    Tensor::from_i64_as(mask.dtype(), &[1, values.len()], &values)
}

/// The position after the last, along the last axis.
fn next_position(positions: &Tensor) -> Tensor {
    let mut shape = positions.shape().to_vec();
    let n = shape.last().copied().unwrap_or(1);
    let next: Vec<i64> = positions.to_i64_vec().chunks(n).filter_map(|row| Some(row.last()? + 1)).collect();
    if let Some(last) = shape.last_mut() {
        *last = 1;
    }
    Tensor::from_i64_as(positions.dtype(), &shape, &next)
}
