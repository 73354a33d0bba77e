//! What the execution on the host must notice, on kernels of a few lines.

use super::{Executor, Launch, Order, Region};
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use kernels::gpu::Arch;

const HEAD: &str = r#"
target triple = "amdgcn-amd-amdhsa"
@lds = internal addrspace(3) global [256 x i32] undef, align 16
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare void @llvm.amdgcn.s.barrier()
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
declare i64 @llvm.amdgcn.ballot.i64(i1)
declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32 immarg, i32 immarg, i32 immarg, i1 immarg)
define amdgpu_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out) {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %b = call i32 @llvm.amdgcn.workgroup.id.x()
  %b128 = mul i32 %b, 128
  %i = add i32 %b128, %t
  %from = getelementptr i32, ptr addrspace(1) %in, i32 %i
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %i
  %mine = getelementptr i32, ptr addrspace(3) @lds, i32 %t
  %other_t = xor i32 %t, 1
  %other = getelementptr i32, ptr addrspace(3) @lds, i32 %other_t
  %lane4 = shl i32 %other_t, 2
  %odd = trunc i32 %t to i1
  %v = load i32, ptr addrspace(1) %from, align 4
"#;

/// Runs the body, or the text with its null byte at the end, on two blocks of 128 threads; input element i is 10 i.
fn run(body: &str, arch: &str, order: Order) -> Result<Vec<i32>, String> {
    run_text(&format!("{HEAD}{body}\n  ret void\n}}\n\0"), arch, order)
}

fn run_text(text: &str, arch: &str, order: Order) -> Result<Vec<i32>, String> {
    let arch = Arch::find(arch)?;
    let ctx = Context::create();
    let buffer = MemoryBuffer::create_from_memory_range_copy(&text.as_bytes()[..text.len() - 1], "k");
    let module = ctx.create_module_from_ir(buffer).map_err(|e| e.to_string())?;
    let x = Executor::load(module.write_bitcode_to_memory().as_slice(), arch)?;
    let input: Vec<i32> = (0..256).map(|i| i * 10).collect();
    let mut out = vec![-1i32; 256];
    let regions = [
        Region { address: input.as_ptr() as usize, bytes: 1024, writable: false },
        Region { address: out.as_mut_ptr() as usize, bytes: 1024, writable: true },
    ];
    let kernarg: Vec<u8> = regions.iter().flat_map(|r| r.address.to_ne_bytes()).collect();
    let launch = Launch {
        kernel: "k",
        grid: [2, 1, 1],
        block: 128,
        kernarg: &kernarg,
        regions: &regions,
        order,
        skip_barrier: None,
    };
    // SAFETY: the regions are this function's.
    unsafe { x.run(&launch) }?;
    Ok(out)
}

const EXCHANGE: &str = "store i32 %v, ptr addrspace(3) %mine\n BARRIER %w = load i32, ptr addrspace(3) %other\n \
     store i32 %w, ptr addrspace(1) %to";

#[test]
fn neighbours_exchange_through_shared_memory() {
    let body = EXCHANGE.replace("BARRIER", "call void @llvm.amdgcn.s.barrier()\n");
    let want: Vec<i32> = (0..256).map(|i| (i ^ 1) * 10).collect();
    for (arch, order) in [("gfx942", Order::Forward), ("gfx1100", Order::Reverse)] {
        assert_eq!(run(&body, arch, order).unwrap(), want);
    }
}

#[test]
fn a_missing_barrier_is_noticed() {
    let body = EXCHANGE.replace("BARRIER", "");
    for order in [Order::Forward, Order::Reverse] {
        let e = run(&body, "gfx942", order).unwrap_err();
        assert!(e.contains("never written") || e.contains("since the last barrier"), "{e}");
    }
    let written_later = "%w = load i32, ptr addrspace(1) %from\n store i32 %v, ptr addrspace(3) %other\n \
         store i32 %w, ptr addrspace(3) %mine";
    let e = run(written_later, "gfx942", Order::Forward).unwrap_err();
    assert!(e.contains("since the last barrier"), "{e}");
}

#[test]
fn a_barrier_that_half_the_block_comes_to_is_noticed() {
    let body = "br i1 %odd, label %yes, label %no\nyes:\n call void @llvm.amdgcn.s.barrier()\n br label %no\nno:\n";
    let e = run(body, "gfx1100", Order::Forward).unwrap_err();
    assert!(e.contains("a barrier not everybody comes to"), "{e}");
}

#[test]
fn accesses_outside_are_noticed() {
    let beyond = "%p = getelementptr i32, ptr addrspace(1) %to, i32 1\n store i32 %v, ptr addrspace(1) %p";
    let e = run(beyond, "gfx942", Order::Forward).unwrap_err();
    assert!(e.contains("outside every buffer") && e.contains("thread 127"), "{e}");
    let e = run("store i32 %v, ptr addrspace(1) %from", "gfx942", Order::Forward).unwrap_err();
    assert!(e.contains("may only read"), "{e}");
    let e = run(
        "%p = getelementptr i32, ptr addrspace(3) %mine, i32 200\n store i32 %v, ptr addrspace(3) %p",
        "gfx942",
        Order::Forward,
    );
    assert!(e.is_err());
}

#[test]
fn waves_have_the_size_of_the_architecture() {
    // The votes of the first lanes of a block: all even lanes of a wave.
    let ballot = "%even = xor i1 %odd, true\n %w = call i64 @llvm.amdgcn.ballot.i64(i1 %even)\n %h = lshr i64 %w, 32\n \
         %x = trunc i64 %h to i32\n store i32 %x, ptr addrspace(1) %to";
    assert_eq!(run(ballot, "gfx942", Order::Forward).unwrap(), [0x5555_5555; 256]);
    assert_eq!(run(ballot, "gfx1100", Order::Forward).unwrap(), [0; 256]);
    let shuffle = "%w = call i32 @llvm.amdgcn.ds.bpermute(i32 %lane4, i32 %v)\n store i32 %w, ptr addrspace(1) %to";
    let want: Vec<i32> = (0..256).map(|i| (i ^ 1) * 10).collect();
    assert_eq!(run(shuffle, "gfx1100", Order::Reverse).unwrap(), want);
    // row_shr:1 with bound control: lane 0 of a row of 16 gets 0.
    let dpp = "%w = call i32 @llvm.amdgcn.update.dpp.i32(i32 7, i32 %v, i32 273, i32 15, i32 15, i1 true)\n \
         store i32 %w, ptr addrspace(1) %to";
    let want: Vec<i32> = (0..256).map(|i| if i % 16 == 0 { 0 } else { (i - 1) * 10 }).collect();
    assert_eq!(run(dpp, "gfx942", Order::Forward).unwrap(), want);
}

#[test]
fn a_wave_operation_in_a_branch_is_noticed() {
    let body = "br i1 %odd, label %yes, label %no\nyes:\n %w = call i32 @llvm.amdgcn.ds.bpermute(i32 %lane4, i32 %v)\n \
         store i32 %w, ptr addrspace(1) %to\n br label %no\nno:\n call void @llvm.amdgcn.s.barrier()\n";
    let e = run(body, "gfx942", Order::Forward).unwrap_err();
    assert!(e.contains("a wave operation not everybody comes to"), "{e}");
}

#[test]
fn nvidias_kernels_run_in_waves_of_32() {
    let text = |body: &str| {
        format!(
            r#"
target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out) {{
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %b128 = mul i32 %b, 128
  %i = add i32 %b128, %t
  %from = getelementptr i32, ptr addrspace(1) %in, i32 %i
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %i
  %v = load i32, ptr addrspace(1) %from, align 4
  {body}
  store i32 %w, ptr addrspace(1) %to
  ret void
}}
"#
        ) + "\0"
    };
    let shuffle = text("%w = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %v, i32 16, i32 31)");
    let want: Vec<i32> = (0..256).map(|i| (i ^ 16) * 10).collect();
    assert_eq!(run_text(&shuffle, "sm_90", Order::Forward).unwrap(), want);
    let index = text(
        "%w = call i32 asm sideeffect \"shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;\", \"=r,r,r\"(i32 %v, i32 3)",
    );
    let want: Vec<i32> = (0..256).map(|i| (i / 32 * 32 + 3) * 10).collect();
    assert_eq!(run_text(&index, "sm_80", Order::Reverse).unwrap(), want);
    let unknown = text("%w = call i32 asm \"brev.b32 $0, $1;\", \"=r,r\"(i32 %v)");
    assert!(run_text(&unknown, "sm_80", Order::Forward).unwrap_err().contains("brev"));
}

#[test]
fn what_is_not_known_is_refused() {
    let body = "%w = call i32 @llvm.amdgcn.alignbyte(i32 %v, i32 %v, i32 %v)\n ret void\n}\n\
         declare i32 @llvm.amdgcn.alignbyte(i32, i32, i32)\ndefine void @rest() {";
    assert!(run(body, "gfx942", Order::Forward).unwrap_err().contains("alignbyte is not known"));
}
