//! LLVM's ORC JIT, fed with object files only: each thread may compile in a context of its own, and what is loaded is what is saved.

use inkwell::llvm_sys::error::{LLVMDisposeErrorMessage, LLVMErrorRef, LLVMGetErrorMessage};
use inkwell::llvm_sys::orc2::LLVMOrcExecutorAddress;
use inkwell::llvm_sys::orc2::lljit::{
    LLVMOrcCreateLLJIT, LLVMOrcDisposeLLJIT, LLVMOrcLLJITAddObjectFile, LLVMOrcLLJITGetMainJITDylib,
    LLVMOrcLLJITLookup, LLVMOrcLLJITRef,
};
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::targets::{InitializationConfig, Target};
use std::ffi::{CStr, CString};

/// A JIT with objects of its own; dropping it frees their code.
pub(crate) struct Orc(LLVMOrcLLJITRef);

// SAFETY: LLJIT has its own locks; after loading we only read addresses.
unsafe impl Send for Orc {}
// SAFETY: as above.
unsafe impl Sync for Orc {}

fn check(e: LLVMErrorRef) -> Result<(), String> {
    if e.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is ours; taking its message consumes it, and the message is freed once.
    unsafe {
        let m = LLVMGetErrorMessage(e);
        let text = CStr::from_ptr(m).to_string_lossy().into_owned();
        LLVMDisposeErrorMessage(m);
        Err(text)
    }
}

impl Orc {
    pub(crate) fn new() -> Result<Orc, String> {
        static INIT: std::sync::Once = std::sync::Once::new();
        INIT.call_once(|| Target::initialize_x86(&InitializationConfig::default()));
        let mut jit = std::ptr::null_mut();
        // SAFETY: a null builder asks for the default JIT of this process.
        check(unsafe { LLVMOrcCreateLLJIT(&mut jit, std::ptr::null_mut()) })?;
        Ok(Orc(jit))
    }
    pub(crate) fn add(&self, object: &[u8]) -> Result<(), String> {
        let buffer = MemoryBuffer::create_from_memory_range_copy(object, "object");
        let raw = buffer.as_mut_ptr();
        // The JIT owns the buffer from here on, whatever it returns.
        std::mem::forget(buffer);
        // SAFETY: the JIT is alive and the buffer was handed over.
        check(unsafe { LLVMOrcLLJITAddObjectFile(self.0, LLVMOrcLLJITGetMainJITDylib(self.0), raw) })
    }
    pub(crate) fn lookup(&self, name: &str) -> Result<usize, String> {
        let c = CString::new(name).map_err(|e| e.to_string())?;
        let mut address: LLVMOrcExecutorAddress = 0;
        // SAFETY: the JIT is alive, the name ends with a null byte, the address is ours to write.
        check(unsafe { LLVMOrcLLJITLookup(self.0, &mut address, c.as_ptr()) })?;
        usize::try_from(address).map_err(|e| e.to_string())
    }
}

impl Drop for Orc {
    fn drop(&mut self) {
        // SAFETY: made by `new`, dropped once. An error here means code that could not be unmapped; there is nobody to tell.
        let _ = check(unsafe { LLVMOrcDisposeLLJIT(self.0) });
    }
}
