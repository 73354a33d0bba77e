//! Finding the vendors' libraries: candidates in order, what each attempt gave, and which one was taken.

use std::ffi::c_void;
use std::path::{Path, PathBuf};

/// One attempt to load a library.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// Name or path.
    pub soname: String,
    /// Why it was not taken; `None` for the one that was.
    pub failure: Option<String>,
}

/// A library that was found.
pub(crate) struct Found {
    pub(crate) handle: libloading::Library,
    pub(crate) name: String,
}

impl Found {
    /// The address of a symbol.
    pub(crate) fn symbol(&self, name: &str) -> Option<*const c_void> {
        // SAFETY: only the address is taken.
        let found = unsafe { self.handle.get::<*const c_void>(name.as_bytes()) };
        found.ok().map(|p| *p).filter(|p| !p.is_null())
    }
}

/// Loads the first candidate that `accept` takes. A plain name is looked for as the system's loader does, a path only if it is there.
pub(crate) fn find<T>(
    candidates: &[PathBuf],
    attempts: &mut Vec<Attempt>,
    mut accept: impl FnMut(Found) -> Result<T, String>,
) -> Option<T> {
    for path in candidates {
        let name = path.display().to_string();
        if path.is_absolute() && !path.exists() {
            attempts.push(Attempt { soname: name, failure: Some("there is no such file".into()) });
            continue;
        }
        // SAFETY: loading runs the library's initializers; these are the system's own drivers, or where the user pointed to.
        let loaded = unsafe { libloading::Library::new(path) };
        let result = loaded
            .map_err(|e| std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string))
            .and_then(|library| accept(Found { handle: library, name: name.clone() }));
        match result {
            Ok(t) => {
                attempts.push(Attempt { soname: name, failure: None });
                return Some(t);
            }
            Err(why) => {
                // The loader repeats the name.
                let why = why.strip_prefix(&format!("{name}: ")).unwrap_or(&why).to_string();
                attempts.push(Attempt { soname: name, failure: Some(why) });
            }
        }
    }
    None
}

/// The folders that an environment variable or a pattern `PARENT/PREFIX*` gives, newest version first.
pub(crate) fn versions_of(parent: &str, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
        .collect();
    let key = |p: &PathBuf| {
        let name = p.display().to_string();
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    found.sort_by_key(|p| std::cmp::Reverse(key(p)));
    found
}

/// Vendor numbers of the PCI devices of this machine that are display or processing units; empty where the system does not say.
pub(crate) fn pci_has(vendor: &str) -> Option<bool> {
    let read = |p: &Path, f: &str| std::fs::read_to_string(p.join(f)).unwrap_or_default();
    let all: Vec<PathBuf> = std::fs::read_dir("/sys/bus/pci/devices").ok()?.flatten().map(|e| e.path()).collect();
    Some(all.iter().any(|p| {
        let class = read(p, "class");
        read(p, "vendor").trim() == vendor && (class.starts_with("0x03") || class.starts_with("0x12"))
    }))
}
