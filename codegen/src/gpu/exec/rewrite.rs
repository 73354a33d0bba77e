//! The module of GPU kernels as a module for this machine: same instructions, one address space, intrinsics and inline assembly as calls.
//!
//! Works on LLVM's text, where an address space is a word. What is not known is an error, never passed over.

use super::{fiber, wave};
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

/// Inline assembly that the kernels use: how its text begins, and the function that stands for it.
const ASM: &[(&str, &str)] = &[
    ("cvt.rn.f16.f32 ", "i16 @hipx.asm.to_f16(float)"),
    ("cvt.f32.f16 ", "float @hipx.asm.from_f16(i16)"),
    ("popc.b64 ", "i32 @hipx.asm.popc(i64)"),
    ("shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;", "i32 @hipx.asm.shuffle(i32, i32)"),
    ("{ .reg .pred q; setp.ne.u32 q, $1, 0; vote.sync.ballot.b32 $0, q, 0xffffffff; }", "i32 @hipx.asm.ballot(i32)"),
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$0,$1,$2,$3};",
        "{ float, float, float, float } @hipx.asm.mma(i32, i32, i32, i32, i32, i32, float, float, float, float)",
    ),
];

/// Prefixes of the intrinsics of GPUs.
const VENDORS: [&str; 2] = ["@llvm.amdgcn.", "@llvm.nvvm."];

/// Wave operations by intrinsic name without its vendor's prefix; types that only distinguish overloads are left out.
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
        "asm.shuffle" => Op::Shuffle,
        "asm.ballot" => Op::Ballot,
        "asm.mma" => Op::MmaSync,
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
        if let Some(d) = line.strip_prefix("declare ").filter(|d| VENDORS.iter().any(|v| d.contains(v))) {
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
            out = out.replacen(" amdgpu_kernel", "", 1).replacen(" ptx_kernel", "", 1).replacen(" protected", "", 1);
            function = out.split(['@', '(']).nth(1).unwrap_or("").to_string();
        }
        if out.contains('@') {
            for g in r.shared.iter_mut().filter(|g| names(&out, &g.name)) {
                g.users.insert(function.clone());
            }
        }
        if let Some(at) = out.find(" asm ") {
            let (text, rest) = quoted(&out[at..]).ok_or_else(|| format!("cannot read {out}"))?;
            let rest = quoted(rest).ok_or_else(|| format!("cannot read {out}"))?.1;
            let known = ASM.iter().find(|a| text.starts_with(a.0));
            let signature = known.ok_or_else(|| format!("the assembly \"{text}\" is not known here"))?.1;
            let name = signature.split(['@', '(']).nth(1).unwrap_or("");
            let args = rest.rfind(") #").map_or(rest, |p| &rest[..=p]);
            out = format!("{} @{name}(i32 {site}, {}", &out[..at], &args[1..]);
            declared.insert(name.trim_start_matches("hipx.").to_string(), asm_signature(signature));
            site += 1;
        }
        while let Some((at, vendor)) = VENDORS.iter().find_map(|v| Some((out.find(v)?, v))) {
            let rest = &out[at + vendor.len()..];
            let name = rest.split('(').next().unwrap_or(rest).to_string();
            let args = at + vendor.len() + name.len() + 1;
            let comma = if out[args..].starts_with(')') { "" } else { ", " };
            // What an intrinsic promises about memory does not hold for a meeting of fibers.
            let tail = match out.rfind(") #") {
                Some(p) => out[args..=p].to_string(),
                None => out[args..].to_string(),
            };
            if name == "s.barrier" || name == "barrier0" {
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

/// The first quoted text, and what follows it.
fn quoted(s: &str) -> Option<(&str, &str)> {
    let (_, s) = s.split_once('"')?;
    s.split_once('"')
}

/// Return and argument types of a function of [`ASM`].
fn asm_signature(s: &str) -> (String, Vec<String>) {
    let (ret, rest) = s.split_once(" @").unwrap_or((s, ""));
    let args = rest.split_once('(').map_or("", |r| r.1).trim_end_matches(')');
    (ret.to_string(), args.split(", ").map(str::to_string).collect())
}

/// Return and argument types of a declaration `T @llvm.amdgcn.NAME(T, T attr) #1`.
fn signature(declare: &str) -> Result<(String, (String, Vec<String>)), String> {
    let bad = || format!("cannot read the declaration {declare}");
    let (before, rest) = VENDORS.iter().find_map(|v| declare.split_once(v)).ok_or_else(bad)?;
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
        "workitem.id.x" | "read.ptx.sreg.tid.x" => return id(0),
        "asm.to_f16" => {
            let body = "  %h = fptrunc float %a0 to half\n  %r = bitcast half %h to i16\n  ret i16 %r\n}\n";
            return Ok(format!("{head}{body}"));
        }
        "asm.from_f16" => {
            let body = "  %h = bitcast i16 %a0 to half\n  %r = fpext half %h to float\n  ret float %r\n}\n";
            return Ok(format!("{head}{body}"));
        }
        "asm.popc" => {
            let body = "  %n = call i64 @llvm.ctpop.i64(i64 %a0)\n  %r = trunc i64 %n to i32\n  ret i32 %r\n}\n";
            return Ok(format!("{head}{body}"));
        }
        "workitem.id.y" | "workitem.id.z" | "read.ptx.sreg.tid.y" | "read.ptx.sreg.tid.z" => {
            return Ok(format!("{head}  ret i32 0\n}}\n"));
        }
        "workgroup.id.x" | "read.ptx.sreg.ctaid.x" => return id(1),
        "workgroup.id.y" | "read.ptx.sreg.ctaid.y" => return id(2),
        "workgroup.id.z" | "read.ptx.sreg.ctaid.z" => return id(3),
        "mbcnt.lo" | "mbcnt.hi" => {
            let (f, high) = (absolute(fiber::on_mbcnt as *const () as usize), u32::from(name == "mbcnt.hi"));
            return Ok(format!("{head}  %r = call i32 {f}(i32 {high}, i32 %a0, i32 %a1)\n  ret i32 %r\n}}\n"));
        }
        "s.barrier" | "barrier0" => {
            let f = absolute(fiber::on_barrier as *const () as usize);
            return Ok(format!("{head}  call void {f}(i32 %site)\n  ret void\n}}\n"));
        }
        "exp2.f32" | "ex2.approx.ftz.f" | "ex2.approx.f" | "rcp.f32" | "rcp.approx.ftz.f" => {
            let f = absolute(match name {
                "exp2.f32" | "ex2.approx.ftz.f" => wave::exp2_flushed as *const () as usize,
                "ex2.approx.f" => wave::exp2 as *const () as usize,
                _ => wave::recip_flushed as *const () as usize,
            });
            return Ok(format!("{head}  %r = call float {f}(float %a0)\n  ret float %r\n}}\n"));
        }
        "ff2f16x2.rn" => {
            let body = "  %l = fptrunc float %a1 to half\n  %h = fptrunc float %a0 to half\n  \
                %v = insertelement <2 x half> poison, half %l, i32 0\n  \
                %r = insertelement <2 x half> %v, half %h, i32 1\n  ret <2 x half> %r\n}\n";
            return Ok(format!("{head}{body}"));
        }
        // Only order instructions, which here are in order anyway.
        "wave.barrier" | "sched.barrier" | "sched.group.barrier" => return Ok(format!("{head}  ret void\n}}\n")),
        _ => {}
    }
    let mut s = head;
    let mut operands: Vec<(String, String)> =
        args.iter().enumerate().map(|(i, t)| (t.clone(), format!("%a{i}"))).collect();
    let op = match name {
        // Members, value, mask of lane bits, clamp: a shuffle from the lane that differs in these bits.
        "shfl.sync.bfly.i32" | "shfl.sync.bfly.f32" => {
            let f = absolute(fiber::on_mbcnt as *const () as usize);
            let _ = writeln!(s, "  %lane = call i32 {f}(i32 0, i32 -1, i32 0)\n  %from = xor i32 %lane, %a2");
            operands = vec![operands.swap_remove(1), ("i32".into(), "%from".into())];
            fiber::Op::Shuffle
        }
        _ => wave_op(name).ok_or_else(|| format!("the intrinsic {name} is not known to the execution on the host"))?,
    };
    let slot = fiber::SLOT;
    let bytes = slot * operands.len();
    let _ = writeln!(s, "  %args = alloca [{bytes} x i8], align 64\n  %result = alloca [{slot} x i8], align 64");
    for (i, (t, v)) in operands.iter().enumerate() {
        let _ = writeln!(s, "  %p{i} = getelementptr i8, ptr %args, i64 {}\n  store {t} {v}, ptr %p{i}", i * slot);
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
