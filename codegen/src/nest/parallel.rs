//! Metadata that tells LLVM that the iterations of a loop touch places of their own.

use crate::emit::Em;
use inkwell::values::{InstructionValue, MetadataValue};

/// `distinct !{}`, which the C interface cannot make: it comes from a line of text.
pub(super) fn distinct_node<'c>(e: &Em<'_, 'c>) -> MetadataValue<'c> {
    let text = "!g = !{!0}\n!0 = distinct !{}\n";
    let buffer = inkwell::memory_buffer::MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "group");
    let m = e.ctx.create_module_from_ir(buffer).expect("two lines of metadata");
    m.get_global_metadata("g")[0]
}

/// Says that accesses of `group` do not depend on each other across iterations of the loop that `latch` closes.
pub(super) fn mark_loop<'c>(e: &Em<'_, 'c>, latch: InstructionValue<'c>, group: MetadataValue<'c>) {
    let ctx = e.ctx;
    let accesses = ctx.metadata_node(&[ctx.metadata_string("llvm.loop.parallel_accesses").into(), group.into()]);
    set_loop_id(latch, accesses, ctx);
}

/// Attaches `!llvm.loop`. The node must refer to itself in its first operand, which the interface only allows by a temporary node.
fn set_loop_id<'c>(latch: InstructionValue<'c>, property: MetadataValue<'c>, ctx: &'c inkwell::context::Context) {
    use inkwell::llvm_sys::core::{LLVMMDNodeInContext2, LLVMMetadataAsValue, LLVMSetMetadata, LLVMValueAsMetadata};
    use inkwell::llvm_sys::debuginfo::{LLVMMetadataReplaceAllUsesWith, LLVMTemporaryMDNode};
    use inkwell::values::AsValueRef;
    let c = ctx.raw();
    // SAFETY: all handles belong to `ctx`, which outlives the call; the temporary node is replaced, which frees it.
    unsafe {
        let temporary = LLVMTemporaryMDNode(c, std::ptr::null_mut(), 0);
        let mut operands = [temporary, LLVMValueAsMetadata(property.as_value_ref())];
        let node = LLVMMDNodeInContext2(c, operands.as_mut_ptr(), operands.len());
        LLVMMetadataReplaceAllUsesWith(temporary, node);
        LLVMSetMetadata(latch.as_value_ref(), ctx.get_kind_id("llvm.loop"), LLVMMetadataAsValue(c, node));
    }
}
