//! The code of a model as `llvm-dis` shows it, and the shared object as the loader sees it.

use super::kit::*;
use hip_ep::lower::host::{HostProgram, IntOp, Stmt};
use hip_ep::{Compiler, DType};
use std::path::Path;
use std::process::Command;

/// Text of a model's bitcode, extracted by the tool, with the host program it was made from. `None` where there is no `llvm-dis`.
fn disassemble(g: &G, name: &str) -> Option<(String, HostProgram)> {
    let Some(dis) = ["llvm-dis-19", "llvm-dis"].into_iter().find(|t| Command::new(t).arg("--version").output().is_ok())
    else {
        println!("skipped: there is no llvm-dis-19 and no llvm-dis; install the package llvm-19");
        return None;
    };
    let f = Folder::new(name);
    let bytes = g.clone().bytes();
    let m = Compiler::new().compile_bytes(bytes.clone(), None).unwrap_or_else(|e| panic!("{e}"));
    let artifact = f.file("m.hipep");
    m.save(&artifact).expect("the folder is ours");
    let bc = f.file("m.bc");
    let out = Command::new(env!("CARGO_BIN_EXE_hip-inspect"))
        .arg(&artifact)
        .args(["--extract", "bitcode", "-o"])
        .arg(&bc)
        .output()
        .expect("hip-inspect starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out = Command::new(dis).arg(&bc).args(["-o", "-"]).output().expect("llvm-dis starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let module =
        hip_ep::ir::import::import_bytes(bytes.into(), None, &hip_ep::ir::Registry::builtin()).expect("imports");
    let program = Compiler::new().lower(module, &mut Default::default()).expect("the model lowers").program;
    Some((String::from_utf8(out.stdout).expect("LLVM prints text"), program))
}

fn count(p: &HostProgram, f: impl Fn(&Stmt) -> bool) -> usize {
    p.funcs.iter().flat_map(|f| &f.body).filter(|s| f(s)).count()
}

fn check_text(g: &G, name: &str) {
    let Some((text, p)) = disassemble(g, name) else { return };
    let lines = |what: &str| text.lines().filter(|l| l.contains(what)).count();
    // The table's functions are loaded into values of their names and called: `%launch12 = load ptr …`, `call i32 %launch12(…)`.
    let calls = |field: &str| {
        let site = |l: &&str| {
            l.split_once("call i32 %").is_some_and(|(_, rest)| {
                let called = rest.split('(').next().unwrap_or("");
                called.trim_end_matches(|c: char| c.is_ascii_digit()) == field
            })
        };
        text.lines().filter(site).count()
    };
    let (launches, kernels) =
        (count(&p, |s| matches!(s, Stmt::Launch { .. })), count(&p, |s| matches!(s, Stmt::Kernel { .. })));
    assert!(launches > 0 && kernels > 0, "the model exercises both");
    assert_eq!(calls("launch"), launches, "a call site per launch");
    assert_eq!(calls("kernel"), kernels, "a call site per catalog kernel");
    assert_eq!(calls("host_op"), 0, "no host op");
    assert_eq!(calls("output"), count(&p, |s| matches!(s, Stmt::Output { .. })), "a call site per output");
    assert_eq!(calls("readback"), count(&p, |s| matches!(s, Stmt::Readback { .. })), "a call site per readback");
    // Sizes and offsets: the products and sums of the program are instructions on registers.
    let program_has = |op| count(&p, |s| matches!(s, Stmt::Int(_, o, ..) if *o == op));
    assert!(program_has(IntOp::Mul) > 0 && program_has(IntOp::Add) > 0, "extents are symbolic");
    let arithmetic =
        |names: [&str; 2]| text.lines().filter(|l| names.iter().any(|n| l.contains(n)) && l.contains("%r")).count();
    assert!(arithmetic(["mul i64", "@llvm.smul.with.overflow.i64("]) > 0, "products of extents");
    assert!(arithmetic(["add i64", "@llvm.sadd.with.overflow.i64("]) > 0, "offsets added to bases");
    // Nothing comes from elsewhere.
    let foreign: Vec<&str> = text.lines().filter(|l| l.starts_with("declare ") && !l.contains(" @llvm.")).collect();
    assert!(foreign.is_empty(), "foreign symbols: {foreign:?}");
    assert_eq!(lines("external global"), 0, "no foreign data");
}

#[test]
fn bitcode_has_a_call_site_per_op_offsets_as_arithmetic_and_no_foreign_symbol() {
    check_text(&mixed(), "text");
    let rows = graph()
        .input("keep", DType::F32, &["n"])
        .input("x", DType::F32, &["n", "16"])
        .weight("w", &random(7, &[16, 24]))
        .ints("minus1", &[-1])
        .node("NonZero", &["keep"], &["where"])
        .node("Reshape", &["where", "minus1"], &["rows"])
        .node("Gather", &["x", "rows"], &["kept"])
        .node("MatMul", &["kept", "w"], &["y"])
        .node("Tanh", &["y"], &["z"])
        .node_with("Softmax", &["z"], &["p"], vec![int("axis", -1)])
        .output("p");
    check_text(&rows, "rows");
}

fn u16_at(b: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([b[at], b[at + 1]]))
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("8 bytes"))
}

/// Tags of the dynamic section and names of undefined dynamic symbols of an ELF file.
fn dynamic(b: &[u8]) -> (Vec<u64>, usize) {
    let (at, size, n) = (u64_at(b, 40) as usize, u16_at(b, 58), u16_at(b, 60));
    let (mut tags, mut undefined) = (vec![], 0);
    for i in 0..n {
        let h = at + i * size;
        let kind = u32::from_le_bytes(b[h + 4..h + 8].try_into().expect("4 bytes"));
        let (from, len) = (u64_at(b, h + 24) as usize, u64_at(b, h + 32) as usize);
        match kind {
            6 => tags.extend(b[from..from + len].chunks(16).map(|e| u64_at(e, 0))),
            // The first symbol is empty.
            11 => undefined += b[from..from + len].chunks(24).skip(1).filter(|s| u16_at(s, 6) == 0).count(),
            _ => {}
        }
    }
    (tags, undefined)
}

#[test]
fn shared_object_needs_no_library_and_no_symbol() {
    let f = Folder::new("needed");
    let so = f.file("m.so");
    mixed().compile().save_native(&so).unwrap_or_else(|e| panic!("{e}"));
    let (tags, undefined) = dynamic(&std::fs::read(&so).expect("the object"));
    assert!(!tags.is_empty() && !tags.contains(&1), "no DT_NEEDED: {tags:?}");
    assert_eq!(undefined, 0, "no undefined symbol");
    // The reader sees both in a file that has them: this test's own.
    let own = std::fs::read(std::env::current_exe().expect("a path")).expect("this test");
    let (tags, undefined) = dynamic(&own);
    assert!(tags.contains(&1) && undefined > 0);
    if let Ok(out) = Command::new("ldd").arg(Path::new(&so)).output() {
        let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("statically linked") || said.contains("not a dynamic"), "{said}");
    }
}

/// What code for this very machine needs is in the artifact, feature by feature, so that another machine can refuse it.
#[test]
fn code_for_this_machine_says_what_it_needs() {
    let native = hip_ep::Target::parse("cpu:native").expect("a target");
    let m =
        hip_ep::Compiler::new().target(native).compile_bytes(mixed().bytes(), None).unwrap_or_else(|e| panic!("{e}"));
    let target = m.metadata().target.clone().expect("a target");
    assert!(target.features.split(',').all(|f| f.starts_with('+')), "{}", target.features);
    assert!(target.features.contains("+sse2"), "{}", target.features);
    let y = run(&session(&m, hip_ep::DeviceKind::Cpu), &[random(1, &[2, 3, 4, 8])]);
    assert_close(&y, &interpret(&mixed().bytes(), &[random(1, &[2, 3, 4, 8])]), "native");
}
