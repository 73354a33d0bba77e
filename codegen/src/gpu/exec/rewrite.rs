//! The module of an AMD kernel as a module for this machine: same instructions, one address space, intrinsics as calls.
//!
//! Works on LLVM's text, where an address space is a word. What is not known is an error, never passed over.

use super::fiber;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A rewritten module.
pub(super) struct Rewritten {
    /// LLVM text for the host.
    pub text: String,
    /// Globals in shared memory.
    pub shared: Vec<Global>,
    /// Other globals.
    pub globals: Vec<Global>,
    /// Barriers by function, as numbers of call sites.
    pub barriers: BTreeMap<String, Vec<u32>>,
}

/// A global variable.
pub(super) struct Global {
    /// Accessor function of its address.
    pub address: String,
    /// Accessor function of its size in bytes.
    pub size: String,
    /// Functions whose text names it.
    pub users: BTreeSet<String>,
    name: String,
}

/// What generated code may use of the host: the psABI level with FMA and half floats.
const HOST_CPU: &str = "\"target-cpu\"=\"x86-64-v3\"";

/// Wave operations by intrinsic name without `llvm.amdgcn.`; types that only distinguish overloads are left out.
fn wave_op(name: &str) -> Option<fiber::Op> {
    use fiber::Op;
    Some(match name {
        "ds.bpermute" => Op::Bpermute,
        "ballot.i32" | "ballot.i64" => Op::Ballot,
        "readlane" | "readlane.i32" => Op::ReadLane,
        "readfirstlane" | "readfirstlane.i32" => Op::ReadFirstLane,
        "update.dpp.i32" => Op::Dpp,
        "ds.swizzle" => Op::Swizzle,
        "mfma.f32.16x16x16f16" => Op::Mfma,
        "wmma.f32.16x16x16.f16.v8f32.v16f16" => Op::Wmma11,
        "wmma.f32.16x16x16.f16.v8f32.v8f16" => Op::Wmma12,
        _ => return None,
    })
}

/// Rewrites a module's text.
///
/// # Errors
/// When it uses an intrinsic or a form of global that is not known here.
pub(super) fn rewrite(text: &str) -> Result<Rewritten, String> {
    let mut r = Rewritten {
        text: String::with_capacity(text.len() * 5 / 4),
        shared: Vec::new(),
        globals: Vec::new(),
        barriers: BTreeMap::new(),
    };
    let mut function = String::new();
    let mut declared = BTreeMap::new();
    let mut site = 0u32;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("target ") || trimmed.starts_with("fence ") || trimmed.starts_with("@llvm.") {
            continue;
        }
        if let Some(d) = line.strip_prefix("declare ").filter(|d| d.contains("@llvm.amdgcn.")) {
            let (name, signature) = signature(d)?;
            declared.insert(name, signature);
            continue;
        }
        if line.starts_with("attributes ") {
            let head = line.split('{').next().unwrap_or(line);
            let flags: Vec<&str> = line[head.len()..]
                .split_whitespace()
                .filter(|w| {
                    ["nounwind", "norecurse", "nocallback", "willreturn", "convergent", "speculatable"].contains(w)
                })
                .collect();
            let cpu = if flags.contains(&"nocallback") { "" } else { HOST_CPU };
            let _ = writeln!(r.text, "{head}{{ {} {cpu} }}", flags.join(" "));
            continue;
        }
        if line.starts_with('@') {
            global(line, &mut r)?;
            continue;
        }
        let mut out = one_space(line);
        if line.starts_with("define ") {
            out = out.replacen(" amdgpu_kernel", "", 1).replacen(" protected", "", 1);
            function = out.split(['@', '(']).nth(1).unwrap_or("").to_string();
        }
        if out.contains('@') {
            for g in r.shared.iter_mut().filter(|g| names(&out, &g.name)) {
                g.users.insert(function.clone());
            }
        }
        while let Some(at) = out.find("@llvm.amdgcn.") {
            let rest = &out[at + "@llvm.amdgcn.".len()..];
            let name = rest.split('(').next().unwrap_or(rest).to_string();
            let args = at + "@llvm.amdgcn.".len() + name.len() + 1;
            let comma = if out[args..].starts_with(')') { "" } else { ", " };
            // What an intrinsic promises about memory does not hold for a meeting of fibers.
            let tail = match out.rfind(") #") {
                Some(p) => out[args..=p].to_string(),
                None => out[args..].to_string(),
            };
            if name == "s.barrier" {
                r.barriers.entry(function.clone()).or_default().push(site);
            }
            out = format!("{}@hipx.{name}(i32 {site}{comma}{tail}", &out[..at]);
            site += 1;
        }
        r.text.push_str(&out);
        r.text.push('\n');
    }
    for (name, (ret, args)) in &declared {
        r.text.push_str(&shim(name, ret, args)?);
    }
    let checks =
        [("hipx.load", fiber::on_load as *const () as usize), ("hipx.store", fiber::on_store as *const () as usize)];
    for (name, address) in checks {
        let _ = writeln!(
            r.text,
            "define void @{name}(ptr %p, i64 %n) {{\n  call void inttoptr (i64 {address} to ptr)(ptr %p, i64 %n)\n  ret void\n}}"
        );
    }
    Ok(r)
}

/// Whether a line holds a name, not only as the beginning of a longer one.
fn names(line: &str, name: &str) -> bool {
    let longer = |c: char| c.is_ascii_alphanumeric() || ['_', '.', '$'].contains(&c);
    line.match_indices(name).any(|(at, _)| !line[at + name.len()..].starts_with(longer))
}

/// Without address spaces, in types and in the names of intrinsics.
fn one_space(line: &str) -> String {
    let mut s = line.replace("addrspacecast", "bitcast");
    for n in 0..10 {
        if !s.contains("addrspace") {
            break;
        }
        s = s.replace(&format!(", addrspace({n})"), "").replace(&format!(" addrspace({n})"), "");
    }
    if s.contains("@llvm.mem") || s.contains("@llvm.lifetime") {
        for n in 1..10 {
            s = s.replace(&format!(".p{n}"), ".p0");
        }
    }
    s
}

/// Return and argument types of a declaration `T @llvm.amdgcn.NAME(T, T attr) #1`.
fn signature(declare: &str) -> Result<(String, (String, Vec<String>)), String> {
    let bad = || format!("cannot read the declaration {declare}");
    let (before, rest) = declare.split_once("@llvm.amdgcn.").ok_or_else(bad)?;
    let (name, rest) = rest.split_once('(').ok_or_else(bad)?;
    let inside = rest.rsplit_once(')').ok_or_else(bad)?.0;
    let ty = |s: &str| -> String {
        let s = one_space(s.trim());
        match (s.find('<'), s.find('>')) {
            (Some(a), Some(b)) => s[a..=b].to_string(),
            _ => s.split_whitespace().find(|w| is_type(w)).unwrap_or("void").to_string(),
        }
    };
    let args = if inside.is_empty() { Vec::new() } else { inside.split(',').map(ty).collect() };
    Ok((name.to_string(), (ty(before), args)))
}

fn is_type(word: &str) -> bool {
    ["void", "ptr", "half", "float", "double"].contains(&word)
        || word.strip_prefix('i').is_some_and(|n| n.parse::<u32>().is_ok())
}

/// An intrinsic as a function of the call's site and the intrinsic's arguments.
fn shim(name: &str, ret: &str, args: &[String]) -> Result<String, String> {
    let params: Vec<String> = args.iter().enumerate().map(|(i, t)| format!(", {t} %a{i}")).collect();
    let head = format!("define internal {ret} @hipx.{name}(i32 %site{}) #9000 {{\n", params.concat());
    let absolute = |f: usize| format!("inttoptr (i64 {f} to ptr)");
    let id = |what: u32| {
        let f = absolute(fiber::on_id as *const () as usize);
        Ok(format!("{head}  %r = call i32 {f}(i32 {what})\n  ret i32 %r\n}}\n"))
    };
    match name {
        "workitem.id.x" => return id(0),
        "workitem.id.y" | "workitem.id.z" => return Ok(format!("{head}  ret i32 0\n}}\n")),
        "workgroup.id.x" => return id(1),
        "workgroup.id.y" => return id(2),
        "workgroup.id.z" => return id(3),
        "mbcnt.lo" | "mbcnt.hi" => {
            let (f, high) = (absolute(fiber::on_mbcnt as *const () as usize), u32::from(name == "mbcnt.hi"));
            return Ok(format!("{head}  %r = call i32 {f}(i32 {high}, i32 %a0, i32 %a1)\n  ret i32 %r\n}}\n"));
        }
        "s.barrier" => {
            let f = absolute(fiber::on_barrier as *const () as usize);
            return Ok(format!("{head}  call void {f}(i32 %site)\n  ret void\n}}\n"));
        }
        // Only order instructions, which here are in order anyway.
        "wave.barrier" | "sched.barrier" | "sched.group.barrier" => return Ok(format!("{head}  ret void\n}}\n")),
        _ => {}
    }
    let op = wave_op(name).ok_or_else(|| format!("llvm.amdgcn.{name} is not known to the execution on the host"))?;
    let mut s = head;
    let slot = fiber::SLOT;
    let _ = writeln!(s, "  %args = alloca [{} x i8], align 64\n  %result = alloca [{slot} x i8], align 64", slot * 6);
    for (i, t) in args.iter().enumerate() {
        let _ = writeln!(s, "  %p{i} = getelementptr i8, ptr %args, i64 {}\n  store {t} %a{i}, ptr %p{i}", i * slot);
    }
    let f = absolute(fiber::on_wave as *const () as usize);
    let _ = writeln!(s, "  call void {f}(i32 {}, i32 %site, ptr %args, ptr %result)", op as u32);
    let _ = writeln!(s, "  %r = load {ret}, ptr %result\n  ret {ret} %r\n}}");
    Ok(s)
}

/// A global variable: shared memory becomes plain memory of the process, of which one block at a time is the owner.
fn global(line: &str, r: &mut Rewritten) -> Result<(), String> {
    let bad = || format!("cannot read the global {line}");
    let (name, rest) = line.split_once(" = ").ok_or_else(bad)?;
    let shared = rest.contains("addrspace(3)");
    let (_, body) = rest.split_once("global ").or_else(|| rest.split_once("constant ")).ok_or_else(bad)?;
    if rest.starts_with("external") {
        return Err(format!("{name} is defined elsewhere; give shared memory its size in the module"));
    }
    // A type ends where brackets are closed and a blank follows.
    let mut depth = 0;
    let end = body.char_indices().find(|(_, c)| {
        match c {
            '[' | '<' | '{' => depth += 1,
            ']' | '>' | '}' => depth -= 1,
            _ => {}
        }
        depth == 0 && *c == ' '
    });
    let (ty, init) = body.split_at(end.ok_or_else(bad)?.0);
    let ty = one_space(ty);
    let list = if shared { &mut r.shared } else { &mut r.globals };
    let tag = format!("{}{}", if shared { "shared" } else { "global" }, list.len());
    let init = if shared {
        format!(" zeroinitializer{}", &init[init.find(',').unwrap_or(init.len())..])
    } else {
        one_space(init)
    };
    let kind = if rest.contains("constant ") { "constant" } else { "global" };
    let _ = writeln!(r.text, "{name} = internal {kind} {ty}{init}");
    let (address, size) = (format!("hipx.{tag}.address"), format!("hipx.{tag}.size"));
    let _ = writeln!(r.text, "define ptr @{address}() {{\n  ret ptr {name}\n}}");
    let _ = writeln!(
        r.text,
        "define i64 @{size}() {{\n  ret i64 ptrtoint (ptr getelementptr ({ty}, ptr null, i32 1) to i64)\n}}"
    );
    list.push(Global { address, size, users: BTreeSet::new(), name: name.to_string() });
    Ok(())
}

/// Attributes of the shims, which must agree with those of the kernels on how vectors are passed.
pub(super) fn shim_attributes() -> String {
    format!("attributes #9000 = {{ noinline nounwind {HOST_CPU} }}\n")
}
