//! An application that embeds hip-ep: `embed compile MODEL ARTIFACT`, then, in another process, `embed run ARTIFACT`.
//!
//! The second runs one session from eight threads at once and checks that all of them get the same bits.

use hip_ep::{CompiledModel, Compiler, DeviceKind, DType, Result, RunInputs, Tensor};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        ["compile", model, artifact] => compile(model, artifact),
        ["run", artifact] => run(artifact),
        _ => {
            eprintln!("usage: embed compile MODEL ARTIFACT | embed run ARTIFACT");
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn compile(model: &str, artifact: &str) -> Result<()> {
    let text = std::fs::read_to_string(model)?;
    Compiler::new().compile_text(&text)?.save(artifact)?;
    println!("saved {artifact}");
    Ok(())
}

fn run(artifact: &str) -> Result<()> {
    let session = CompiledModel::load(artifact)?.session(DeviceKind::Cpu, Default::default())?;
    // One artifact serves every batch size: thread i runs with a batch of i + 1.
    let outputs: Vec<Result<Vec<Tensor>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8usize)
            .map(|i| {
                let session = &session;
                scope.spawn(move || {
                    let rows = i + 1;
                    let values: Vec<f32> = (0..rows * 16).map(|v| (v % 16) as f32 - 8.0).collect();
                    let x = Tensor::from_f32(&[rows, 16], &values);
                    let mut first = None;
                    for _ in 0..100 {
                        let (y, _) = session.collect(&RunInputs::in_order(std::slice::from_ref(&x)), &Default::default())?;
                        assert!(first.is_none() || first.as_ref() == Some(&y), "the same input gave other bits");
                        first = Some(y);
                    }
                    Ok(first.unwrap_or_default())
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("a thread that runs a model does not panic")).collect()
    });
    let mut rows_of_first = None;
    for (i, y) in outputs.into_iter().enumerate() {
        let y = y?;
        assert_eq!((y[0].dtype(), y[0].shape()), (DType::F32, &[i + 1, 4][..]));
        // Every row has the same input, so every row of every thread has the same output.
        for row in y[0].to_f64_vec().chunks(4) {
            let want = rows_of_first.get_or_insert_with(|| row.to_vec());
            let close = row.iter().zip(want.iter()).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(close, "rows differ: {row:?} and {want:?}");
        }
    }
    println!("8 threads ran one session 100 times each");
    Ok(())
}
