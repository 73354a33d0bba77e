//! Compile time grows linearly with nodes.
//!
//! Each compilation is a process of its own, cold, and is measured by its processor time: unlike the clock on the wall that changes
//! little when other work shares the machine. Kernels are compiled in parallel and are most of the work, so the bound in seconds is for
//! the processor time divided by the number of cores, at most [`CORES`], which is about what the clock shows on an idle machine.

use super::kit::Folder;
use std::path::Path;
use std::process::{Command, Stdio};

/// The cores of a small machine.
const CORES: f64 = 2.0;

/// Seconds of processor time, all threads together, that a command takes. It must succeed.
fn cpu_seconds(tool: &str, args: &[&str]) -> f64 {
    // The kernel counts in hundredths of a second for every program.
    const TICKS: f64 = 100.0;
    let mut child = Command::new(tool).args(args).stdout(Stdio::null()).spawn().expect("the tool starts");
    let path = format!("/proc/{}/stat", child.id());
    let ticks = loop {
        let stat = std::fs::read_to_string(&path).expect("Linux");
        // After the name, which may have blanks: state, …, the 12th and 13th field are user and system time.
        let fields: Vec<&str> = stat[stat.rfind(')').expect("a name") + 1..].split_whitespace().collect();
        // A process that has ended keeps its times until somebody waits for it.
        if fields[0] == "Z" {
            break fields[11..13].iter().map(|f| f.parse::<f64>().expect("a number")).sum::<f64>();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(child.wait().expect("a child").success(), "{tool} {args:?}");
    ticks / TICKS
}

fn text(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

#[test]
fn a_graph_ten_times_as_large_takes_at_most_twelve_times_as_long() {
    let f = Folder::new("scale-dag");
    let out = f.file("dag.hipep");
    let compile = |spec: &str| cpu_seconds(env!("CARGO_BIN_EXE_hip-compiler"), &["--generate", spec, "-o", text(&out)]);
    let small = compile("dag:2000:1").min(compile("dag:2000:1"));
    let large = compile("dag:20000:1");
    let cores = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64).min(CORES);
    println!("2000 nodes {small:.2} s, 20000 nodes {large:.2} s of processor time: {:.1} times", large / small);
    assert!(large <= 12.0 * small, "{large} s for 20000 nodes, {small} s for 2000");
    assert!(large / cores <= 30.0, "{large} s on {cores} cores");
}

#[test]
fn every_attention_and_norm_of_a_400_layer_decoder_is_found_in_time() {
    let f = Folder::new("scale-decoder");
    let (model, found) = (f.file("decoder.onnx"), f.file("decoder.hir"));
    let tool = env!("CARGO_BIN_EXE_hip-opt");
    let args = ["--generate", "decoder:400", "--stop-after", "infer", "--emit", "onnx", "-o", text(&model)];
    cpu_seconds(tool, &args);
    let seconds = cpu_seconds(tool, &[text(&model), "--pipeline", "onnx", "-o", text(&found)]);
    let ir = std::fs::read_to_string(&found).expect("the tool wrote it");
    let count = |op: &str| ir.lines().filter(|l| l.contains(op)).count();
    println!("400 layers in {seconds:.2} s of processor time");
    assert_eq!(count("= hip:Attention-"), 400);
    assert_eq!(count("= LayerNormalization-") + count("= RMSNormalization-"), 801);
    assert_eq!(count("= Softmax-"), 0);
    assert!(seconds <= 20.0, "{seconds} s");
}
