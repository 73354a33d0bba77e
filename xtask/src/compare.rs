//! Compares the runtime's table of driver functions with HIP's headers, where Debian's or Ubuntu's HIP can be installed.

use crate::{setup, sh};
use anyhow::Result;
use std::path::Path;

pub fn run() -> Result<()> {
    if let Err(why) = setup::hip() {
        println!("compare: left out, for HIP's headers and library cannot be installed: {why:#}");
        return Ok(());
    }
    let mut c = sh::cargo(&["test", "--quiet"]);
    // The distribution's packages lie under /usr; hip-runtime-sys looks for ROCm's own layout unless told.
    if !Path::new("/opt/rocm/include/hip").exists() && std::env::var_os("HIP_PATH").is_none() {
        c.env("HIP_PATH", "/usr");
    }
    sh::run(c.env("CARGO_TARGET_DIR", sh::target().join("compare")).current_dir("runtime/compare"))
}
