//! Breaks kernels on purpose; the checks must notice.

use crate::case::Case;
use crate::exec::Executor;
use crate::{clang, execute, module};
use kernels::gpu::Arch;
use kernels::gpu::catalog::ENTRIES;
use serde_json::{Value, json};

/// Macros that the sources know, what they break, and the kernels that they touch.
const MACROS: &[(&str, &str, &[&str])] = &[
    ("-DPK_NO_BIAS", "no bias", &["gemm", "conv2d", "nbits"]),
    ("-DPK_NO_RESIDUAL", "no residual", &["gemm", "conv2d"]),
    ("-DPK_NO_ACTIVATION", "no activation", &["gemm", "conv2d"]),
    ("-DPK_NO_MASK", "no mask", &["attention"]),
    ("-DPK_NO_ZERO", "NaN stays", &["attention"]),
    ("-DPK_NO_RESCALE", "old sums keep their scale", &["attention"]),
    ("-DPK_SHIFT=1", "an index is shifted", &["conv2d", "pool2d", "attention", "nonzero", "argsort", "nms", "dft"]),
    ("-DPK_NO_TILE_SYNC", "no barriers", &["gemm", "conv2d", "attention", "nonzero", "argsort", "nms", "dft"]),
];

/// Share of the broken kernels that must be noticed.
const BAR: f64 = 0.95;

/// Runs every breakage; a kernel counts as noticed when one of its calls fails.
///
/// # Errors
/// When a broken variant does not compile.
pub fn run(all: &[Case]) -> Result<Value, String> {
    let (mut total, mut missed) = (0usize, Vec::new());
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let source = dir.path().join("kernels.hip");
    std::fs::write(&source, kernels::gpu::sources::joined()).map_err(|e| e.to_string())?;
    let arch = Arch::find("gfx942")?;
    let notices = |x: &Executor, arch: &Arch, entry: &str, skip: Option<u32>| {
        let calls = all.iter().filter(|c| c.plan(arch).is_ok_and(|p| p.entry == entry));
        calls.map(|c| execute::run(x, arch, c, skip)).any(|r| r.is_err())
    };
    for (option, what, families) in MACROS {
        let bc = dir.path().join("broken.bc");
        // What is left out may leave a parameter without use.
        clang::module(arch.name, &source, &bc, &[option, "-Wno-error"])?;
        let x = Executor::load(&std::fs::read(&bc).map_err(|e| e.to_string())?, arch)?;
        for (entry, _) in ENTRIES.iter().filter(|e| families.iter().any(|f| e.0.contains(f))) {
            // Kernels that have no barrier cannot lose it.
            if *option == "-DPK_NO_TILE_SYNC" && ["dots", "depthwise"].iter().any(|n| entry.contains(n)) {
                continue;
            }
            total += 1;
            if !notices(&x, arch, entry, None) {
                missed.push(format!("{entry}: {what}"));
            }
        }
    }
    for name in ["gfx942", "gfx1100", "sm_90"] {
        let arch = Arch::find(name)?;
        let Some(bitcode) = module(arch) else { continue };
        let x = Executor::load(bitcode, arch)?;
        for (entry, _) in ENTRIES {
            for site in x.barriers(entry) {
                total += 1;
                if !notices(&x, arch, entry, Some(site)) {
                    missed.push(format!("{entry} on {name}: without barrier {site}"));
                }
            }
        }
    }
    let noticed = total - missed.len();
    let share = noticed as f64 / total.max(1) as f64;
    let mut text = format!("sabotage: {noticed} of {total} noticed ({:.1} %)", share * 100.0);
    missed.iter().for_each(|m| text += &format!("\nnot noticed: {m}"));
    Ok(json!({"ok": total > 0 && share >= BAR, "text": text, "total": total, "noticed": noticed, "missed": missed}))
}
