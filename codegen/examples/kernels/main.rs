//! Checks the hand-written GPU kernels without a GPU: for every kernel and architecture whether it compiled, whether the code has the
//! right structure, and, where the host can execute it, whether it gives the right answers. `cargo xtask kernels` runs this.
//!
//! `--models FOLDER` checks the kernels that the folder's models are compiled to instead (`generated`).
//!
//! `--sabotage` breaks the kernels on purpose and counts how often the checks notice; `--json` prints one object; `--only TEXT` takes
//! calls whose name contains the text.

mod case;
mod cases;
#[path = "../../src/gpu/clang.rs"]
#[allow(dead_code)]
mod clang;
#[path = "../../src/gpu/exec/mod.rs"]
#[allow(dead_code)]
mod exec;
mod execute;
mod generated;
#[path = "../../../kernels/tests/plain/mod.rs"]
mod plain;
mod sabotage;
mod structure;

use case::Case;
use exec::Executor;
use kernels::gpu::Arch;
use kernels::gpu::arch::ARCHS;
use kernels::gpu::catalog::ENTRIES;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Modules that the host can execute: one architecture of each wave size and matrix unit.
const MODULES: &[(&str, &[u8])] = &[
    ("gfx942", include_bytes!(concat!(env!("OUT_DIR"), "/gfx942.bc"))),
    ("gfx1100", include_bytes!(concat!(env!("OUT_DIR"), "/gfx1100.bc"))),
    ("gfx1030", include_bytes!(concat!(env!("OUT_DIR"), "/gfx1030.bc"))),
    ("gfx1201", include_bytes!(concat!(env!("OUT_DIR"), "/gfx1201.bc"))),
    ("sm_90", include_bytes!(concat!(env!("OUT_DIR"), "/sm_90.bc"))),
];

/// One kernel on one architecture.
#[derive(Default)]
struct Cell {
    compiled: bool,
    executed: usize,
    error: f64,
    problems: Vec<String>,
}

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| args.iter().any(|a| a == name);
    let only = args.iter().position(|a| a == "--only").and_then(|i| args.get(i + 1)).cloned();
    if let Some(folder) = args.iter().position(|a| a == "--models").and_then(|i| args.get(i + 1)) {
        return show(&generated::check(folder.as_ref(), only.as_deref())?, flag("--json"));
    }
    let mut all = Vec::new();
    for family in [
        cases::gemm,
        cases::conv,
        cases::pool,
        cases::attention,
        cases::nonzero,
        cases::argsort,
        cases::nms,
        cases::dft,
        cases::draw,
        cases::nbits,
        cases::own,
    ] {
        all.extend(family());
    }
    all.retain(|c| only.as_ref().is_none_or(|o| c.what.contains(o.as_str())));
    if all.is_empty() {
        return Err(format!("no call contains {only:?}"));
    }
    let report = if flag("--sabotage") { sabotage::run(&all)? } else { check(&all, only.is_none())? };
    show(&report, flag("--json"))
}

/// Prints a report; an error where something is wrong.
fn show(report: &Value, json: bool) -> Result<(), String> {
    if json {
        println!("{report}");
    } else {
        println!("{}", report["text"].as_str().unwrap_or(""));
    }
    match report["ok"].as_bool() {
        Some(true) => Ok(()),
        _ => Err("the kernels are not right".into()),
    }
}

/// The module of an architecture that the host can execute.
fn module(arch: &Arch) -> Option<&'static [u8]> {
    MODULES.iter().find(|m| m.0 == arch.name).map(|m| m.1)
}

/// What one architecture gives: cells by kernel, what concerns no cell, seconds.
struct Column {
    cells: BTreeMap<&'static str, Cell>,
    general: Vec<String>,
    time: Value,
}

/// `whole`: every kernel must have been executed.
fn column(arch: &'static Arch, all: &[Case], whole: bool) -> Result<Column, String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut col = Column { cells: BTreeMap::new(), general: Vec::new(), time: Value::Null };
    let code = codegen::gpu::catalog_code(arch).map_err(|e| e.to_string())?;
    for (entry, list) in structure::check(arch, code, dir.path())? {
        let compiled = !list.iter().any(|p| p == "is missing");
        col.cells.insert(entry, Cell { compiled, problems: list, ..Cell::default() });
    }
    let Some(bitcode) = module(arch) else { return Ok(col) };
    let start = Instant::now();
    same_code(arch, bitcode, code, dir.path())?;
    let x = Executor::load(bitcode, arch)?;
    let loaded = start.elapsed().as_secs_f64();
    let names: BTreeSet<&str> = x.kernels().map(|k| k.0).collect();
    if names != ENTRIES.iter().map(|e| e.0).collect() {
        col.general.push(format!("{}: the executed module's kernels are not those of the catalog", arch.name));
    }
    for c in all {
        let Some(cell) = c.plan(arch).ok().and_then(|p| col.cells.get_mut(p.entry)) else {
            col.general.push(format!("{}: {} is not launched", arch.name, c.what));
            continue;
        };
        match execute::run(&x, arch, c, None) {
            Ok(error) => {
                cell.executed += 1;
                cell.error = cell.error.max(error);
            }
            Err(e) => cell.problems.push(format!("{}: {e}", c.what)),
        }
    }
    for cell in col.cells.values_mut().filter(|c| whole && c.executed == 0 && c.problems.is_empty()) {
        cell.problems.push("no call executed it".into());
    }
    col.time = json!({"load_s": loaded, "run_s": start.elapsed().as_secs_f64() - loaded});
    Ok(col)
}

/// All architectures, as many at once as there are cores.
fn check(all: &[Case], whole: bool) -> Result<Value, String> {
    let columns: Vec<Mutex<Option<Result<Column, String>>>> = ARCHS.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            s.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(arch) = ARCHS.get(i) else { return };
                    let result = column(arch, all, whole);
                    if let Ok(mut slot) = columns[i].lock() {
                        *slot = Some(result);
                    }
                }
            });
        }
    });
    let mut table: BTreeMap<(&'static str, &'static str), Cell> = BTreeMap::new();
    let (mut general, mut times) = (Vec::new(), BTreeMap::new());
    for (arch, slot) in ARCHS.iter().zip(columns) {
        let col = slot.into_inner().ok().flatten().ok_or("a thread gave up")??;
        general.extend(col.general);
        times.insert(arch.name, col.time);
        table.extend(col.cells.into_iter().map(|(entry, c)| ((entry, arch.name), c)));
    }
    let mut text = format!("{:<30}", "kernel");
    ARCHS.iter().for_each(|a| text += &format!(" {:>9}", a.name));
    let mut rows = Vec::new();
    for (entry, _) in ENTRIES {
        text += &format!("\n{entry:<30}");
        for a in ARCHS {
            let empty = Cell::default();
            let c = table.get(&(entry, a.name)).unwrap_or(&empty);
            let executes = module(a).is_some();
            text += &format!(
                " {:>9}",
                match (c.problems.is_empty(), executes) {
                    (false, _) => "WRONG".to_string(),
                    (true, true) => format!("{} ({:.2})", c.executed, c.error),
                    (true, false) => "code".to_string(),
                }
            );
            rows.push(
                json!({"kernel": entry, "arch": a.name, "compiled": c.compiled, "checked": c.problems.is_empty(),
                "executed": c.executed, "error": c.error, "problems": c.problems}),
            );
        }
    }
    text += "\n\nn (e): n calls executed on the host in two orders, largest error as a share of the tolerance; code: compiled and its structure checked.";
    for ((entry, arch), c) in &table {
        c.problems.iter().for_each(|p| text += &format!("\n{arch} {entry}: {p}"));
    }
    general.iter().for_each(|g| text += &format!("\n{g}"));
    let ok = general.is_empty()
        && table.len() == ARCHS.len() * ENTRIES.len()
        && table.values().all(|c| c.problems.is_empty());
    Ok(json!({"ok": ok, "text": text, "rows": rows, "times": times, "calls": all.len(), "problems": general}))
}

/// The code that ships must be what the back end makes of the very module that is executed.
fn same_code(arch: &Arch, bitcode: &[u8], code: &[u8], dir: &std::path::Path) -> Result<(), String> {
    let (bc, bin) = (dir.join("module.bc"), dir.join("module.bin"));
    std::fs::write(&bc, bitcode).map_err(|e| e.to_string())?;
    clang::back_end(arch.name, &bc, &bin)?;
    let again = std::fs::read(&bin).map_err(|e| e.to_string())?;
    if again == code {
        Ok(())
    } else {
        Err(format!("{}: the shipped code is not that of the executed module", arch.name))
    }
}
