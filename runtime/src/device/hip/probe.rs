//! What was looked for and what was found: libraries, drivers, devices, and the line that mends what is missing.

use super::library::Attempt;
use super::platform::Platform;
use super::table::{Failure, Status, Table};
use super::{amd, nvidia};
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write;
use std::sync::{Arc, OnceLock};

/// A device that a platform has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its position among all devices: `hip:N`.
    pub index: usize,
    /// Its number on its platform.
    pub ordinal: i32,
    /// The vendor's name of it.
    pub name: String,
    /// Architecture, without suffixes.
    pub arch: String,
    /// The target to compile for, as `hip:gfx942`; for an architecture that no code is generated for, what stands nearest.
    pub target: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Compute units, or multiprocessors; 0 where the driver does not say.
    pub multiprocessors: u32,
}

impl DeviceInfo {
    /// A device of a platform that [`probe()`] does not know.
    pub fn new(ordinal: i32, name: &str, arch: &str, memory_bytes: u64) -> DeviceInfo {
        DeviceInfo {
            index: 0,
            ordinal,
            name: name.into(),
            arch: arch.into(),
            target: None,
            memory_bytes,
            multiprocessors: 0,
        }
    }
}

/// What was found of one vendor.
#[derive(Clone)]
pub struct Probed {
    /// The vendor.
    pub vendor: &'static str,
    /// Libraries that were tried, in order.
    pub attempts: Vec<Attempt>,
    /// Version of the driver.
    pub version: Option<String>,
    /// Why a library that loads gives no devices.
    pub failure: Option<String>,
    /// The run-time compiler: found, or why not. `None` when nobody looked.
    pub compiler: Option<std::result::Result<String, String>>,
    /// Devices.
    pub devices: Vec<DeviceInfo>,
    /// What to do about what is missing.
    pub fix: Option<String>,
    platform: Option<Arc<dyn Platform>>,
}

/// The platform's name of a status.
pub(super) fn status_name(table: &Table, status: Status) -> String {
    // SAFETY: takes any number; gives null or a static text.
    let text = unsafe { (table.functions.error_name)(status) };
    if text.is_null() {
        return "an unknown error".into();
    }
    // SAFETY: not null: a static text with a NUL at its end.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Probed {
    pub(super) fn new(vendor: &'static str) -> Probed {
        Probed {
            vendor,
            attempts: Vec::new(),
            version: None,
            failure: None,
            compiler: None,
            devices: Vec::new(),
            fix: None,
            platform: None,
        }
    }

    /// Starts the driver and lists its devices.
    pub(super) fn ask(&mut self, platform: Arc<dyn Platform>) {
        match devices_of(&*platform) {
            Ok(devices) => self.devices = devices,
            Err(f) => self.failure = Some(f.to_string()),
        }
        self.platform = Some(platform);
    }
}

fn devices_of(platform: &dyn Platform) -> std::result::Result<Vec<DeviceInfo>, tensor::Diagnostic> {
    let t = platform.table();
    let mut count = 0;
    // SAFETY: writes a number.
    let asked: std::result::Result<(), Failure> = unsafe { t.init(0).and_then(|()| t.device_count(&mut count)) };
    asked?;
    (0..count).map(|ordinal| device(platform, ordinal)).collect()
}

fn device(platform: &dyn Platform, ordinal: c_int) -> std::result::Result<DeviceInfo, tensor::Diagnostic> {
    let t = platform.table();
    let (mut handle, mut memory, mut name, mut units) = (0, 0usize, [0u8; 256], 0);
    // SAFETY: each writes what it is given room for; one byte of the name stays 0.
    unsafe {
        t.device_get(&mut handle, ordinal)?;
        t.device_name(name.as_mut_ptr().cast::<c_char>(), 255, handle)?;
        t.device_total_mem(&mut memory, handle)?;
        // For people only: a driver that does not say is good enough.
        let _ = t.device_attribute(&mut units, super::table::flag::ATTRIBUTE_MULTIPROCESSORS, handle);
    }
    let name = CStr::from_bytes_until_nul(&name).map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let arch = platform.arch(ordinal)?;
    let base = arch.split(':').next().unwrap_or(&arch).to_string();
    let target = kernels::gpu::arch::ARCHS
        .iter()
        .rev()
        .find(|a| a.platform.name() == platform.prefix() && a.runs_on(&base))
        .map(kernels::gpu::Arch::target);
    let (memory_bytes, multiprocessors) = (u64::try_from(memory).unwrap_or(0), u32::try_from(units).unwrap_or(0));
    Ok(DeviceInfo { index: 0, ordinal, name, arch: base, target, memory_bytes, multiprocessors })
}

/// All platforms of this machine. Looked for once per process.
pub fn probe() -> &'static [Probed] {
    static ALL: OnceLock<Vec<Probed>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = vec![amd::probe(), nvidia::probe()];
        all.iter_mut().flat_map(|p| &mut p.devices).enumerate().for_each(|(i, d)| d.index = i);
        all
    })
}

/// A device by its position among all.
pub(super) fn find(index: usize) -> Option<(Arc<dyn Platform>, &'static DeviceInfo)> {
    let with = |p: &'static Probed| Some((p.platform.clone()?, p.devices.iter().find(|d| d.index == index)?));
    probe().iter().find_map(with)
}

/// The report of a probe as text: devices first, then what each platform lacks and how to mend it.
pub fn report(all: &[Probed]) -> String {
    let mut out = String::new();
    for d in all.iter().flat_map(|p| &p.devices) {
        let target = d
            .target
            .as_deref()
            .map_or_else(|| format!("no code is generated for {}", d.arch), |t| format!("hip-compiler --target {t}"));
        let _ = writeln!(
            out,
            "hip:{}  {}  {}  {} units  {} MiB  {target}",
            d.index,
            d.name,
            d.arch,
            d.multiprocessors,
            d.memory_bytes >> 20
        );
    }
    if out.is_empty() {
        out += "no GPU was found\n";
    }
    for p in all {
        let _ = writeln!(out, "{}", p.vendor);
        for a in &p.attempts {
            let _ = writeln!(out, "  {:<36} {}", a.soname, a.failure.as_deref().unwrap_or("loaded"));
        }
        let mut line = |what: &str, text: &str| {
            let _ = writeln!(out, "  {what:<10} {text}");
        };
        if let Some(v) = &p.version {
            line("version", v);
        }
        if p.attempts.iter().any(|a| a.failure.is_none()) {
            line("devices", &p.devices.len().to_string());
        }
        if let Some(f) = &p.failure {
            line("failure", f);
        }
        match &p.compiler {
            Some(Ok(c)) => line("compiler", c),
            Some(Err(why)) => line("compiler", &format!("none: {why}; precompiled kernels are used")),
            None => {}
        }
        if let Some(fix) = &p.fix {
            line("fix", fix);
        }
    }
    out
}

/// [`report`] of this machine, with the run-time compilers looked for, too.
pub fn doctor() -> String {
    let mut all = probe().to_vec();
    for p in &mut all {
        p.compiler = p.platform.as_ref().map(|p| p.compiler());
    }
    report(&all)
}
