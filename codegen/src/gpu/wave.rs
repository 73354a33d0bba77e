//! What threads of a wave and of a block do together, in the instructions of each platform.

use crate::emit::{Em, I};
use crate::scalar::{Val, Why};
use inkwell::AddressSpace;
use inkwell::module::Linkage;
use inkwell::types::BasicType;
use inkwell::values::PointerValue;
use kernels::gpu::{Arch, Platform};
use tensor::DType;

/// Global memory.
pub(crate) const GLOBAL: u16 = 1;
/// Memory shared by a block.
const SHARED: u16 = 3;

/// `s_barrier` with workgroup-scope fences. LLVM 19's C interface has no sync scopes, so it comes from text.
const BARRIER: &str = "define void @hip_ep_barrier() alwaysinline convergent nounwind {\n  fence syncscope(\"workgroup\") release\n  call void @llvm.amdgcn.s.barrier()\n  fence syncscope(\"workgroup\") acquire\n  ret void\n}\ndeclare void @llvm.amdgcn.s.barrier() convergent nounwind\n";

/// The instructions of one architecture.
#[derive(Clone, Copy)]
pub(crate) struct Wave<'e, 'a, 'c> {
    pub e: &'e Em<'a, 'c>,
    pub arch: &'static Arch,
}

impl<'c> Wave<'_, '_, 'c> {
    fn is_amd(&self) -> bool {
        self.arch.platform == Platform::Hip
    }
    /// Position of the thread in its block, i32.
    pub fn thread(&self) -> I<'c> {
        let name = if self.is_amd() { "llvm.amdgcn.workitem.id.x" } else { "llvm.nvvm.read.ptx.sreg.tid.x" };
        self.e.intr(name, &[], &[]).into_int_value()
    }
    /// Position of the block in the grid, i32.
    pub fn block(&self) -> I<'c> {
        let name = if self.is_amd() { "llvm.amdgcn.workgroup.id.x" } else { "llvm.nvvm.read.ptx.sreg.ctaid.x" };
        self.e.intr(name, &[], &[]).into_int_value()
    }

    /// Position in the wave, i32: blocks are one-dimensional and made of whole waves.
    pub fn lane(&self, thread: I<'c>) -> I<'c> {
        self.e.and(thread, self.e.c32(self.arch.wave - 1))
    }

    /// The value of the lane whose number differs by `mask`. All lanes of the wave take part.
    pub fn shuffle_xor(&self, v: Val<'c>, mask: u32, lane: I<'c>) -> Val<'c> {
        let e = self.e;
        match v {
            Val::FloatValue(x) => {
                let bits = self.shuffle_xor(e.bits(x).into(), mask, lane).into_int_value();
                e.from_bits(bits).into()
            }
            _ => {
                let x = v.into_int_value();
                match x.get_type().get_bit_width() {
                    64 => {
                        let (lo, hi) = (e.trunc(x, e.i32()), e.trunc(e.lshr(x, e.c64(32)), e.i32()));
                        let (lo, hi) = (self.shuffle32(lo, mask, lane), self.shuffle32(hi, mask, lane));
                        e.or(e.zext(lo, e.i64()), e.shl(e.zext(hi, e.i64()), e.c64(32))).into()
                    }
                    32 => self.shuffle32(x, mask, lane).into(),
                    _ => {
                        let wide = self.shuffle32(e.zext(x, e.i32()), mask, lane);
                        e.trunc(wide, x.get_type()).into()
                    }
                }
            }
        }
    }
    fn shuffle32(&self, x: I<'c>, mask: u32, lane: I<'c>) -> I<'c> {
        let e = self.e;
        if self.is_amd() {
            // The address is that of a lane's register in bytes.
            let from = e.shl(e.xor(lane, e.c32(mask)), e.c32(2));
            return e.intr("llvm.amdgcn.ds.bpermute", &[], &[from.into(), x.into()]).into_int_value();
        }
        let args = [e.c32(u32::MAX).into(), x.into(), e.c32(mask).into(), e.c32(31).into()];
        e.intr("llvm.nvvm.shfl.sync.bfly.i32", &[], &args).into_int_value()
    }

    /// Waits for all threads of the block and makes their writes to shared and global memory visible to each other.
    pub fn barrier(&self) -> Why<()> {
        let e = self.e;
        if !self.is_amd() {
            e.intr_void("llvm.nvvm.barrier0", &[]);
            return Ok(());
        }
        let f = match e.m.get_function("hip_ep_barrier") {
            Some(f) => f,
            None => {
                let buffer =
                    inkwell::memory_buffer::MemoryBuffer::create_from_memory_range_copy(BARRIER.as_bytes(), "barrier");
                let helper = e.ctx.create_module_from_ir(buffer).map_err(|why| why.to_string())?;
                helper.set_triple(&e.m.get_triple());
                helper.set_data_layout(&e.m.get_data_layout());
                e.m.link_in_module(helper).map_err(|why| why.to_string())?;
                let f = e.m.get_function("hip_ep_barrier").ok_or("the barrier was lost in linking")?;
                f.set_linkage(Linkage::Internal);
                f
            }
        };
        e.call_void(f, &[]);
        Ok(())
    }

    /// An array in shared memory for `n` values of compute type `d`.
    pub fn shared(&self, name: &str, d: DType, n: u32) -> Shared<'c> {
        let e = self.e;
        // A bool takes a whole word: neighbors are written by different threads.
        let t = if d == DType::Bool { e.i32().into() } else { crate::scalar::value_type(e, d) };
        let array = t.array_type(n);
        let g = e.m.add_global(array, Some(AddressSpace::from(SHARED)), name);
        g.set_linkage(Linkage::Internal);
        g.set_initializer(&array.get_undef());
        g.set_alignment(16);
        Shared { base: g.as_pointer_value(), is_bool: d == DType::Bool, ty: t }
    }
    /// Writes an element of a shared array.
    pub fn put(&self, s: &Shared<'c>, at: I<'c>, v: Val<'c>) {
        let e = self.e;
        let v = if s.is_bool { e.zext(v.into_int_value(), e.i32()).into() } else { v };
        e.store(e.gep(s.ty, s.base, at), v);
    }
    /// Reads one.
    pub fn get(&self, s: &Shared<'c>, at: I<'c>) -> Val<'c> {
        let e = self.e;
        let v = e.load(s.ty, e.gep(s.ty, s.base, at));
        if s.is_bool { e.trunc(v.into_int_value(), e.i1()).into() } else { v }
    }
}

/// An array in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'c> {
    base: PointerValue<'c>,
    is_bool: bool,
    ty: inkwell::types::BasicTypeEnum<'c>,
}
