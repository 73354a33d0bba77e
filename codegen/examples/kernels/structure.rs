//! What compiled kernels must look like: arguments as the catalog says and no others, the architecture's wave size, no spilled registers,
//! every instruction decodable.

use kernels::gpu::catalog::ENTRIES;
use kernels::gpu::{Arch, Platform};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Problems by kernel; those of the whole file stand under every kernel.
pub type Problems = BTreeMap<&'static str, Vec<String>>;

/// Checks the code of an architecture.
///
/// # Errors
/// When a tool of LLVM cannot be run.
pub fn check(arch: &Arch, code: &[u8], dir: &Path) -> Result<Problems, String> {
    let found = match arch.platform {
        Platform::Hip => code_object(arch, code, dir)?,
        Platform::Cuda => ptx(arch, code)?,
    };
    let mut problems = Problems::new();
    for (entry, catalog) in ENTRIES {
        let list = problems.entry(entry).or_default();
        let want = crate::case::kernarg_bytes(entry, *catalog);
        match found.kernels.get(*entry) {
            None => list.push("is missing".into()),
            Some(k) => {
                if k.kernarg_bytes != want {
                    list.push(format!("takes {} bytes of arguments, not {want}", k.kernarg_bytes));
                }
                list.extend(k.problems.iter().cloned());
            }
        }
        list.extend(found.problems.iter().cloned());
    }
    if found.kernels.len() != ENTRIES.len() {
        let extra: Vec<_> = found.kernels.keys().filter(|k| !ENTRIES.iter().any(|e| e.0 == **k)).collect();
        problems.values_mut().for_each(|l| l.push(format!("the code also holds {extra:?}")));
    }
    Ok(problems)
}

#[derive(Default)]
struct Found {
    kernels: BTreeMap<String, Kernel>,
    problems: Vec<String>,
}

#[derive(Default)]
struct Kernel {
    kernarg_bytes: usize,
    problems: Vec<String>,
}

fn tool(name: &str, args: &[&str], file: &Path) -> Result<String, String> {
    let out = Command::new(name).args(args).arg(file).output().map_err(|e| format!("cannot start {name}: {e}"))?;
    if !out.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&out.stderr)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn code_object(arch: &Arch, code: &[u8], dir: &Path) -> Result<Found, String> {
    let file = dir.join(format!("{}.co", arch.name));
    std::fs::write(&file, code).map_err(|e| e.to_string())?;
    let mut found = Found::default();
    let notes = tool("llvm-readelf-19", &["--notes"], &file)?;
    if !notes.contains(&format!("amdhsa.target:   amdgcn-amd-amdhsa--{}", arch.name)) {
        found.problems.push(format!("the code object is not for {}", arch.name));
    }
    // A kernel's part of the notes begins with the line that holds `- .`, at two blanks.
    let mut parts: Vec<Vec<(String, String)>> = Vec::new();
    for line in notes.lines() {
        if line.starts_with("  - ") {
            parts.push(Vec::new());
        }
        let Some((key, value)) = line.trim_start_matches([' ', '-']).split_once(':') else { continue };
        if let Some(p) = parts.last_mut() {
            p.push((key.trim().into(), value.trim().into()));
        }
    }
    for p in parts {
        let get = |key: &str| p.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let Some(name) = get(".symbol").and_then(|s| s.strip_suffix(".kd")) else { continue };
        let number = |key: &str| get(key).and_then(|v| v.parse::<usize>().ok());
        let mut k = Kernel { kernarg_bytes: number(".kernarg_segment_size").unwrap_or(0), ..Kernel::default() };
        if let Some((_, kind)) = p.iter().find(|(k, v)| k == ".value_kind" && v.starts_with("hidden")) {
            k.problems.push(format!("takes the hidden argument {kind}"));
        }
        if number(".wavefront_size") != usize::try_from(arch.wave).ok() {
            k.problems.push(format!("has waves of {:?}", number(".wavefront_size")));
        }
        for key in [".sgpr_spill_count", ".vgpr_spill_count", ".private_segment_fixed_size"] {
            if number(key) != Some(0) {
                k.problems.push(format!("{key} is {:?}", number(key)));
            }
        }
        if number(".group_segment_fixed_size").is_none_or(|n| n > arch.lds_bytes as usize) {
            k.problems.push(format!("takes {:?} bytes of shared memory", number(".group_segment_fixed_size")));
        }
        found.kernels.insert(name.to_string(), k);
    }
    let asm = tool("llvm-objdump-19", &["-d"], &file)?;
    if let Some(bad) = asm.lines().find(|l| l.contains("<unknown>") || l.trim_start().starts_with(".long")) {
        found.problems.push(format!("an instruction does not decode: {}", bad.trim()));
    }
    if !asm.contains("s_endpgm") {
        found.problems.push("the disassembly has no end of a kernel".into());
    }
    let unit = match arch.matrix {
        kernels::gpu::MatrixUnit::Mfma => Some("v_mfma_f32_16x16x16"),
        kernels::gpu::MatrixUnit::Wmma11 | kernels::gpu::MatrixUnit::Wmma12 => Some("v_wmma_f32_16x16x16_f16"),
        _ => None,
    };
    if unit.is_some_and(|u| !asm.contains(u)) {
        found.problems.push(format!("the matrix unit is not used: no {}", unit.unwrap_or("")));
    }
    Ok(found)
}

fn ptx(arch: &Arch, code: &[u8]) -> Result<Found, String> {
    let text = code.strip_suffix(b"\0").ok_or("the PTX does not end with a null byte")?;
    let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
    let mut found = Found::default();
    if !text.contains(&format!(".target {}\n", arch.name)) {
        found.problems.push(format!("the PTX is not for {}", arch.name));
    }
    if !text.contains("mma.sync.aligned.m16n8k16") {
        found.problems.push("the matrix unit is not used".into());
    }
    for part in text.split(".visible .entry ").skip(1) {
        let name = part.split('(').next().unwrap_or("").to_string();
        let head = part.split(')').next().unwrap_or("");
        let mut k = Kernel::default();
        for p in head.split(".param").skip(1) {
            let ty = p.split_whitespace().next().unwrap_or("");
            k.kernarg_bytes += 8;
            if ![".u64", ".f64", ".b64"].contains(&ty) {
                k.problems.push(format!("takes an argument of type {ty}"));
            }
        }
        if part.contains(".local ") {
            k.problems.push("keeps an array in local memory".into());
        }
        if !part.contains(".maxntid") {
            k.problems.push("has no fixed block size".into());
        }
        found.kernels.insert(name, k);
    }
    Ok(found)
}
