//! Metadata that tells LLVM what it may do with a loop.

use crate::emit::Em;
use inkwell::values::{InstructionValue, MetadataValue};

/// `distinct !{}`, which the C interface cannot make: it comes from a line of text.
pub(super) fn distinct_node<'c>(e: &Em<'_, 'c>) -> MetadataValue<'c> {
    let text = "!g = !{!0}\n!0 = distinct !{}\n";
    let buffer = inkwell::memory_buffer::MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "group");
    let m = e.ctx.create_module_from_ir(buffer).expect("two lines of metadata");
    m.get_global_metadata("g")[0]
}

/// What LLVM is told of a loop.
#[derive(Clone, Copy, Default)]
pub(super) struct Marks<'c> {
    /// Accesses of this group do not depend on each other across iterations.
    pub group: Option<MetadataValue<'c>>,
    /// Iterations stay one by one.
    pub scalar: bool,
}

impl<'c> Marks<'c> {
    /// Marks the loop that `latch` closes.
    pub fn put(self, e: &Em<'_, 'c>, latch: InstructionValue<'c>) {
        let ctx = e.ctx;
        let node = |name: &str, value| ctx.metadata_node(&[ctx.metadata_string(name).into(), value]);
        let parallel = self.group.map(|g| node("llvm.loop.parallel_accesses", g.into()));
        let off = || node("llvm.loop.vectorize.enable", e.i1().const_zero().into());
        let all: Vec<MetadataValue<'c>> = parallel.into_iter().chain(self.scalar.then(off)).collect();
        if !all.is_empty() {
            set_loop_id(latch, &all, ctx);
        }
    }
}

/// Attaches `!llvm.loop`. The node must refer to itself in its first operand, which the interface only allows by a temporary node.
fn set_loop_id<'c>(latch: InstructionValue<'c>, properties: &[MetadataValue<'c>], ctx: &'c inkwell::context::Context) {
    use inkwell::llvm_sys::core::{LLVMMDNodeInContext2, LLVMMetadataAsValue, LLVMSetMetadata, LLVMValueAsMetadata};
    use inkwell::llvm_sys::debuginfo::{LLVMMetadataReplaceAllUsesWith, LLVMTemporaryMDNode};
    use inkwell::values::AsValueRef;
    let c = ctx.raw();
    // SAFETY: all handles belong to `ctx`, which outlives the call; the temporary node is replaced, which frees it.
    unsafe {
        let temporary = LLVMTemporaryMDNode(c, std::ptr::null_mut(), 0);
        let properties = properties.iter().map(|p| LLVMValueAsMetadata(p.as_value_ref()));
        let mut operands: Vec<_> = std::iter::once(temporary).chain(properties).collect();
        let node = LLVMMDNodeInContext2(c, operands.as_mut_ptr(), operands.len());
        LLVMMetadataReplaceAllUsesWith(temporary, node);
        LLVMSetMetadata(latch.as_value_ref(), ctx.get_kind_id("llvm.loop"), LLVMMetadataAsValue(c, node));
    }
}
