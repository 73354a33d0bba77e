//! Weights stay in their file: compiling and loading a model with 2 GB of them takes little memory of its own.

use super::kit::*;
use hip_ep::tensor::onnx_pb::{EXTERNAL, StringStringEntryProto, TensorProto};
use hip_ep::{CompileOptions, CompiledModel, Compiler, Constants, DType, DeviceKind};
use std::process::Command;
use std::time::Instant;

const SIDE: usize = 8192;
const N_WEIGHTS: usize = 8;
const WEIGHT_BYTES: usize = SIDE * SIDE * 4;

/// Kilobytes of anonymous memory of this process.
fn anonymous_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("Linux 4.5 or later");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// The largest seen while `f` runs.
fn peak_of<T>(f: impl FnOnce() -> T) -> (T, u64) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let watch = s.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(anonymous_kb());
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            most
        });
        let r = f();
        let now = anonymous_kb();
        done.store(true, Ordering::Relaxed);
        (r, watch.join().expect("the watcher reads a file").max(now))
    })
}

fn model(f: &Folder) -> std::path::PathBuf {
    // A file of holes: 2 GB long, no block used.
    let weights = std::fs::File::create(f.file("weights.bin")).expect("the folder is ours");
    weights.set_len((WEIGHT_BYTES * N_WEIGHTS) as u64).expect("a sparse file");
    let mut g = graph().input("x", DType::F32, &["n", &SIDE.to_string()]);
    let mut x = "x".to_string();
    for i in 0..N_WEIGHTS {
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        g.0.initializer.push(TensorProto {
            name: format!("w{i}"),
            dims: vec![SIDE as i64, SIDE as i64],
            data_type: DType::F32 as i32,
            data_location: EXTERNAL,
            external_data: vec![
                entry("location", "weights.bin".into()),
                entry("offset", (i * WEIGHT_BYTES).to_string()),
                entry("length", WEIGHT_BYTES.to_string()),
            ],
            ..Default::default()
        });
        let y = format!("y{i}");
        g = g.node("MatMul", &[&x, &format!("w{i}")], &[&y]);
        x = y;
    }
    let path = f.file("model.onnx");
    std::fs::write(&path, g.output(&x).bytes()).expect("the folder is ours");
    path
}

#[test]
fn two_gigabytes_of_external_weights_take_under_200_mb() {
    const CHILD: &str = "HIP_EP_MEMORY_CHILD";
    if let Ok(folder) = std::env::var(CHILD) {
        return child(std::path::Path::new(&folder));
    }
    let f = Folder::new("memory");
    model(&f);
    let start = Instant::now();
    let out = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "holds::memory::two_gigabytes_of_external_weights_take_under_200_mb", "--nocapture"])
        .env(CHILD, f.path())
        .output()
        .expect("this test starts itself");
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let figures = said.lines().find(|l| l.contains("MB more")).unwrap_or_else(|| panic!("no figures: {said}"));
    println!("{figures} ({:.1} s)", start.elapsed().as_secs_f64());
}

/// In a process of its own, so that no other test's memory is counted.
fn child(folder: &std::path::Path) {
    let mut options = CompileOptions::default();
    options.constants = Constants::Reference;
    let before = anonymous_kb();
    let (session, peak) = peak_of(|| {
        let m = Compiler::with(options).compile_path(folder.join("model.onnx")).unwrap_or_else(|e| panic!("{e}"));
        let artifact = folder.join("model.hipep");
        m.save(&artifact).unwrap_or_else(|e| panic!("{e}"));
        drop(m);
        let m = CompiledModel::load(&artifact).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(m.metadata().constants.iter().map(|c| c.bytes).sum::<u64>(), (WEIGHT_BYTES * N_WEIGHTS) as u64);
        session(&m, DeviceKind::Cpu)
    });
    let grown = peak.saturating_sub(before) as f64 / 1024.0;
    let (y, running) = peak_of(|| run(&session, &[random(1, &[1, SIDE])]));
    assert!(y[0].to_f64_vec().iter().all(|v| *v == 0.0), "the weights are holes");
    let run = running.saturating_sub(before) as f64 / 1024.0;
    println!("2 GB of weights: import, compile, save and load take {grown:.1} MB more; with a run {run:.1} MB more");
    assert!(grown < 200.0 && run < 200.0, "{grown:.1} MB and {run:.1} MB");
    // The measure sees memory that is really used.
    let (v, seen) = peak_of(|| std::hint::black_box(vec![1u8; 300 << 20]));
    assert!(seen - before > 290 << 10, "{} bytes were not seen", v.len());
}

/// Weights in their own file: the folder with model, weights and artifact can be moved; elsewhere the path is absolute.
#[test]
fn a_folder_with_external_weights_can_be_moved() {
    let f = Folder::new("moved");
    let (first, second) = (f.file("first"), f.file("second"));
    std::fs::create_dir_all(first.join("data")).expect("the folder is ours");
    let w = random(9, &[4, 5]);
    std::fs::write(first.join("data/weights.bin"), w.bytes()).expect("the folder is ours");
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let mut g = graph().input("x", DType::F32, &["n", "4"]).node("MatMul", &["x", "w"], &["y"]).output("y");
    let whole = g.clone().weight("w", &w);
    g.0.initializer.push(TensorProto {
        name: "w".into(),
        dims: vec![4, 5],
        data_type: DType::F32 as i32,
        data_location: EXTERNAL,
        external_data: vec![entry("location", "data/weights.bin")],
        ..Default::default()
    });
    std::fs::write(first.join("model.onnx"), g.bytes()).expect("the folder is ours");
    let x = random(10, &[3, 4]);
    let want = interpret(&whole.bytes(), std::slice::from_ref(&x));
    let run = |path: &std::path::Path| {
        let m = CompiledModel::load(path).unwrap_or_else(|e| panic!("{e}"));
        assert_close(&run(&session(&m, DeviceKind::Cpu), std::slice::from_ref(&x)), &want, &path.display().to_string());
    };
    let compile = |folder: Option<&std::path::Path>| {
        let mut options = CompileOptions::default();
        options.constants = Constants::Reference;
        options.artifact_folder = folder.map(Into::into);
        Compiler::with(options).compile_path(first.join("model.onnx")).unwrap_or_else(|e| panic!("{e}"))
    };
    let m = compile(Some(&first));
    assert_close(
        &super::kit::run(&session(&m, DeviceKind::Cpu), std::slice::from_ref(&x)),
        &want,
        "before it is saved",
    );
    for name in ["model.hipep", "model.so"] {
        let save = if name == "model.so" { CompiledModel::save_native } else { CompiledModel::save };
        save(&m, first.join(name)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(std::fs::metadata(first.join("model.constants")).expect("written").len(), 96, "no weight is copied");
        let e = save(&m, f.file(name)).expect_err("its paths are those of the other folder").to_string();
        assert!(e.contains("was compiled for the folder"), "{e}");
    }
    let elsewhere = f.file("elsewhere.hipep");
    compile(Some(f.path())).save(&elsewhere).unwrap_or_else(|e| panic!("{e}"));
    let absolute = f.file("absolute.hipep");
    compile(None).save(&absolute).unwrap_or_else(|e| panic!("{e}"));
    run(&absolute);
    run(&elsewhere);
    std::fs::rename(&first, &second).expect("the folder is ours");
    run(&second.join("model.hipep"));
    run(&second.join("model.so"));
    let m = CompiledModel::load(&absolute).expect("the artifact is intact");
    let e = m.session(DeviceKind::Cpu, Default::default()).expect_err("the weights are gone").to_string();
    assert!(e.contains("cannot read external data") && e.contains("help"), "{e}");
}
