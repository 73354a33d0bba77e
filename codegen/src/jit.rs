//! Loads compiled code into this process.

use crate::elf::{self, Object};
use crate::orc::Orc;
use runtime::abi;
use tensor::{Diagnostic, ErrorKind, Result};

/// Code in this process; it is unmapped when dropped, so nothing got from it may outlive it.
pub struct Code {
    init: abi::InitFn,
    run: abi::RunFn,
    frame_words: u64,
    abi_hash: u64,
    metadata: (*const u8, usize),
    _code: Orc,
}

// SAFETY: the addresses are those of immutable code and constants that `_code` keeps mapped.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// See [`abi::InitFn`].
    pub fn init(&self) -> abi::InitFn {
        self.init
    }
    /// See [`abi::RunFn`].
    pub fn run(&self) -> abi::RunFn {
        self.run
    }
    /// Words of the run frame.
    pub fn frame_words(&self) -> u64 {
        self.frame_words
    }
    /// [`abi::abi_hash`] at compile time; the loader compares it with its own.
    pub fn abi_hash(&self) -> u64 {
        self.abi_hash
    }
    /// The same for the runtime, which keeps it mapped as long as a model uses it.
    pub fn into_runtime(self) -> runtime::Code {
        let code = std::sync::Arc::new(self);
        let (init, run, words, hash) = (code.init, code.run, code.frame_words, code.abi_hash);
        // SAFETY: the code was generated for the ABI that its hash names, uses no state but its frame and context, and stays mapped
        // while `code` lives.
        unsafe { runtime::Code::new(init, run, words, hash, code) }
    }
    /// The metadata section's bytes.
    pub fn metadata(&self) -> &[u8] {
        // SAFETY: the code defines `metadata_len` bytes there, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.metadata.0, self.metadata.1) }
    }
}

/// Loads an object, or the archive of objects that compiling makes. Nothing is resolved from the process.
///
/// # Errors
/// `Malformed` when it is neither, or leaves symbols undefined; `Internal` with LLVM's words when it cannot be loaded.
pub fn load(object: &[u8]) -> Result<Code> {
    let members = elf::members(object)?;
    let parsed: Vec<_> = members.iter().map(|m| Object::parse(m)).collect::<Result<_>>()?;
    let missing = elf::undefined(&parsed);
    if !missing.is_empty() {
        let what =
            format!("the code needs symbols from outside, which compiled models never do: {}", missing.join(", "));
        return Err(Diagnostic::new(ErrorKind::Malformed, what).help("compile the model again"));
    }
    let fail = |why: String| Diagnostic::new(ErrorKind::Internal, format!("LLVM cannot load the code: {why}"));
    let orc = Orc::new().map_err(fail)?;
    for m in members {
        orc.add(m).map_err(fail)?;
    }
    let address = |name: &str| orc.lookup(name).map_err(fail);
    // SAFETY: the symbol is a u64 that the code defines.
    let word = |name: &str| -> Result<u64> { Ok(unsafe { *(address(name)? as *const u64) }) };
    let (init, run) = (address(abi::SYM_INIT)?, address(abi::SYM_RUN)?);
    let length = usize::try_from(word("hip_ep_metadata_len")?).map_err(|e| fail(e.to_string()))?;
    Ok(Code {
        // SAFETY: compiled code defines the symbol with this signature.
        init: unsafe { std::mem::transmute::<usize, abi::InitFn>(init) },
        // SAFETY: as above.
        run: unsafe { std::mem::transmute::<usize, abi::RunFn>(run) },
        frame_words: word(abi::SYM_FRAME_WORDS)?,
        abi_hash: word(abi::SYM_ABI_HASH)?,
        metadata: (address(abi::SYM_METADATA)? as *const u8, length),
        _code: orc,
    })
}
