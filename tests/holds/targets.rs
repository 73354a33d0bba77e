//! One artifact for several targets: what it holds, that it is the same bytes every time, what runs where.

use super::kit::*;
use hip_ep::artifact::Kind;
use hip_ep::{CompileOptions, CompiledModel, Compiler, DeviceKind, ErrorKind, Target};
use std::process::Command;

const TARGETS: &str = "hip:gfx942,hip:gfx1100,cuda:sm_90,cpu";

fn compile(targets: &str) -> CompiledModel {
    let mut o = CompileOptions::default();
    o.targets = Target::parse_list(targets).unwrap_or_else(|e| panic!("{e}"));
    Compiler::with(o).compile_bytes(mixed().bytes(), None).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn an_artifact_holds_code_for_each_target_once() {
    let m = compile(TARGETS);
    let labels: Vec<String> = m.gpu_code().into_iter().map(|g| g.0).collect();
    let each = ["cuda:sm_90", "hip:gfx1100", "hip:gfx942"];
    let want: Vec<String> = each.iter().flat_map(|t| [format!("{t}/catalog"), format!("{t}/generated")]).collect();
    assert_eq!(labels, want);
    assert_eq!(m.metadata().target.as_ref().map(|t| t.device.as_str()), Some("hip:gfx942,hip:gfx1100,cuda:sm_90,cpu"));
    let generated: Vec<_> = m.metadata().kernels.iter().filter(|k| k.kind == "loops").collect();
    assert!(generated.len() > 1);
    for k in &generated {
        let g = k.gpu.as_ref().unwrap_or_else(|| panic!("{} has no launch", k.name));
        let schedule = kernels::gpu::Schedule::from_name(&g.schedule).expect("a known schedule");
        assert!(kernels::gpu::Launch { schedule, block: g.block, vector: g.vector }.is_valid());
    }
    // Every kernel of the metadata is in every section.
    for (label, code) in m.gpu_code().iter().filter(|g| g.0.ends_with("/generated")) {
        let names: Vec<String> = match label.starts_with("hip:") {
            true => codegen::gpu::notes::kernels(code).expect("a code object").into_iter().map(|k| k.name).collect(),
            false => {
                let text = String::from_utf8_lossy(code).into_owned();
                text.split(".visible .entry ").skip(1).filter_map(|e| Some(e.split_once('(')?.0.to_string())).collect()
            }
        };
        assert!(generated.iter().all(|k| names.contains(&k.name)) && names.len() == generated.len(), "{label}");
    }
    // The host program and the code of the CPU are those of a CPU artifact; a CPU artifact has no code for GPUs.
    let cpu = compile("cpu");
    let host = |m: &CompiledModel| m.artifact().section(Kind::Debug, "host");
    assert_eq!(host(&m), host(&cpu));
    assert!(cpu.gpu_code().is_empty() && cpu.metadata().kernels.iter().all(|k| k.gpu.is_none()));
}

#[test]
fn the_tools_write_equal_bytes_on_any_number_of_threads_and_list_what_there_is() {
    let f = Folder::new("targets");
    let model = f.file("m.onnx");
    std::fs::write(&model, mixed().bytes()).expect("the folder is ours");
    let tool = env!("CARGO_BIN_EXE_hip-compiler");
    let run = |to: &str, one: bool, mode: &str| {
        let mut c = if one { Command::new("taskset") } else { Command::new(tool) };
        if one {
            c.args(["-c", "0", tool]);
        }
        let to = f.file(to);
        let out = c.arg(&model).arg("-o").arg(&to).args(["--mode", mode, "--target", TARGETS, "--timings"]).output();
        let out = out.expect("hip-compiler starts");
        let log = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{log}");
        assert!(log.contains("code for hip:gfx942") && log.contains("code for cuda:sm_90"), "{log}");
        std::fs::read(to).expect("the artifact")
    };
    let artifact = run("a.hipep", false, "bitcode");
    assert!(artifact == run("b.hipep", true, "bitcode"), "1 thread and all differ");
    let library = run("a.so", false, "native");
    assert!(library == run("b.so", true, "native"), "1 thread and all differ");
    // The library carries the sections of the artifact.
    let code = CompiledModel::load(f.file("a.hipep")).unwrap_or_else(|e| panic!("{e}")).gpu_code();
    let sections: Vec<_> = code.iter().map(|(label, b)| (label.as_str(), b.clone())).collect();
    let packed = hip_ep::artifact::gpu::pack(&sections);
    assert!(library.windows(packed.len()).any(|w| w == packed), "the shared object lacks GPU code");

    let inspect = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_hip-inspect")).arg(f.file("a.hipep")).args(args).output();
        let out = out.expect("hip-inspect starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let text = inspect(&[]);
    for line in ["hip:gfx942/generated: ", "cuda:sm_90/generated: ", "waves of 64", "waves of 32", "bytes of PTX"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let out = f.file("gfx942.co");
    inspect(&["--extract", "hip:gfx942/generated", "-o", &out.to_string_lossy()]);
    assert!(std::fs::read(out).expect("extracted").starts_with(b"\x7fELF"));
}

#[test]
fn a_model_for_gpus_alone_is_refused_by_the_cpu() {
    let m = compile("hip:gfx1100");
    let e = m.session(DeviceKind::Cpu, Default::default()).expect_err("there are no kernels for the CPU");
    assert!(e.to_string().contains("hip:gfx1100"), "{e}");
    let mut o = CompileOptions::default();
    o.targets = vec![];
    let e = Compiler::with(o).compile_bytes(mixed().bytes(), None).expect_err("nothing to compile for");
    assert_eq!(e.kind(), ErrorKind::Argument);
}
