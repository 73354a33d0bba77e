//! What a platform brings: the filled table, and the few things that no table entry says.

use super::table::{Handle, Table};
use std::ffi::{c_int, c_void};
use tensor::Result;

/// A vendor's driver, ready to be called.
pub trait Platform: Send + Sync {
    /// The vendor, for people.
    fn vendor(&self) -> &'static str;

    /// What stands before the colon of this platform's targets and of the artifact's labels.
    fn prefix(&self) -> &'static str;

    /// The driver's functions.
    fn table(&self) -> &Table;

    /// The library they come from.
    fn library(&self) -> &str;

    /// The architecture of a device, with the suffixes that the driver gives it.
    ///
    /// # Errors
    /// `Device` when the driver does not say.
    fn arch(&self, ordinal: c_int) -> Result<String>;

    /// The number that ends the list of launch parameters.
    fn launch_end(&self) -> usize;

    /// Loads code on the calling thread's device. `image` is a code object, or text with a NUL at its end.
    ///
    /// # Errors
    /// `Device` with what the driver says about the code.
    fn load_module(&self, image: &[u8]) -> Result<Handle> {
        let mut module: Handle = std::ptr::null_mut();
        // SAFETY: the image is whole: an ELF file states its own length, text ends with a NUL.
        unsafe { self.table().module_load(&mut module, image.as_ptr().cast::<c_void>())? };
        Ok(module)
    }

    /// Compiles the source of hand-written kernels for an architecture.
    ///
    /// # Errors
    /// `Unsupported` when the vendor's run-time compiler is not there, with what was looked for; `Device` with its log.
    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>>;

    /// The run-time compiler that `compile` would use: the library and its version, or why there is none.
    fn compiler(&self) -> std::result::Result<String, String>;
}
