//! Runs a model that `hip-compiler --mode native` wrote, in a process without LLVM: `native MODEL.so`.
//!
//! Every input of the model gets ones, with 3 for each extent that the model leaves open.

use hip_ep::{CompiledModel, DType, DeviceKind, Result, RunInputs, Tensor};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: native MODEL.so");
        return ExitCode::FAILURE;
    };
    match run(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &str) -> Result<()> {
    let model = CompiledModel::load(path)?;
    let session = model.session(DeviceKind::Cpu, Default::default())?;
    let mut inputs = Vec::new();
    for port in session.inputs() {
        let extent = |axis| port.fixed_dim(axis).and_then(|d| usize::try_from(d).ok()).unwrap_or(3);
        let shape: Vec<usize> = (0..port.rank()).map(extent).collect();
        let ones = vec![1.0; shape.iter().product()];
        inputs.push(Tensor::from_f64_as(port.dtype()?, &shape, &ones));
    }
    let (outputs, _) = session.collect(&RunInputs::in_order(&inputs), &Default::default())?;
    for (port, y) in session.outputs().iter().zip(&outputs) {
        let elements = y.to_f64_vec();
        assert!(y.dtype() != DType::F32 || elements.iter().all(|v| v.is_finite()));
        println!("{} {:?} {:?}", port.name, y.shape(), elements);
    }
    // What the process has mapped by now, the model's code included.
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let of_llvm: Vec<&str> = maps.lines().filter(|l| l.contains("LLVM")).collect();
    println!("{} files of LLVM are mapped", of_llvm.len());
    Ok(())
}
