//! AMD: HIP itself, from libamdhip64 of ROCm 5, 6 or 7.

use super::library::{Attempt, Found, find, pci_has, versions_of};
use super::platform::Platform;
use super::probe::Probed;
use super::rtc::{Names, Rtc};
use super::table::{Failure, Functions, HIP_SYMBOLS, Status, Table, flag};
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tensor::{Diagnostic, ErrorKind, Result};

const SONAMES: &[&str] = &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];
const RTC_SONAMES: &[&str] = &["libhiprtc.so.7", "libhiprtc.so.6"];
const PCI_VENDOR: &str = "0x1002";

/// Functions that describe a device, newest first, and where the name of the architecture lies in what they write, in bytes. HIP 6
/// changed the struct and gave the function a new symbol.
pub const ARCH_OFFSETS: &[(&str, usize)] = &[("hipGetDevicePropertiesR0600", 1160), ("hipGetDeviceProperties", 396)];
/// More than any version's struct.
const PROPERTIES_BYTES: usize = 8192;

static RTC: Names = Names {
    version: "hiprtcVersion",
    error_text: "hiprtcGetErrorString",
    create: "hiprtcCreateProgram",
    compile: "hiprtcCompileProgram",
    log_size: "hiprtcGetProgramLogSize",
    log: "hiprtcGetProgramLog",
    code_size: "hiprtcGetCodeSize",
    code: "hiprtcGetCode",
    destroy: "hiprtcDestroyProgram",
};

struct Amd {
    table: Table,
    soname: String,
    /// As HIP numbers it: major · 10^7 + minor · 10^5 + patch.
    version: c_int,
    properties: unsafe extern "C" fn(*mut c_void, c_int) -> Status,
    properties_name: &'static str,
    arch_at: usize,
    rtc: OnceLock<std::result::Result<Rtc, String>>,
    _keep: libloading::Library,
}

/// Folders that may hold ROCm, in the order they are looked at.
fn roots() -> Vec<PathBuf> {
    let set = ["HIP_PATH", "ROCM_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut all: Vec<PathBuf> = set.collect();
    all.push("/opt/rocm".into());
    all.extend(versions_of("/opt", "rocm-"));
    all
}

/// Folders the user named first, then the system's own search, then the usual places.
fn candidates(sonames: &[&str]) -> Vec<PathBuf> {
    let in_folder = |root: &Path| -> Vec<PathBuf> {
        ["lib", "lib64"].iter().flat_map(|l| sonames.iter().map(|s| root.join(l).join(s)).collect::<Vec<_>>()).collect()
    };
    let n_set = ["HIP_PATH", "ROCM_PATH"].iter().filter(|v| std::env::var_os(v).is_some()).count();
    let roots = roots();
    let (set, usual) = roots.split_at(n_set.min(roots.len()));
    let mut all: Vec<PathBuf> = set.iter().flat_map(|r| in_folder(r)).collect();
    all.extend(sonames.iter().map(PathBuf::from));
    all.extend(usual.iter().filter(|r| r.exists()).flat_map(|r| in_folder(r)));
    all
}

impl Amd {
    fn new(found: Found) -> std::result::Result<Amd, String> {
        let mut symbol = |name: &'static str| found.symbol(name);
        // SAFETY: these are HIP's names, whose signatures the table states (a test compares them with HIP's headers).
        let functions = unsafe { Functions::resolve(&HIP_SYMBOLS, &mut symbol) }
            .map_err(|missing| format!("it lacks {}", missing.join(", ")))?;
        let properties = ARCH_OFFSETS.iter().find_map(|&(name, at)| Some((name, at, found.symbol(name)?)));
        let (properties_name, arch_at, properties) =
            properties.ok_or_else(|| "it lacks hipGetDeviceProperties".to_string())?;
        // SAFETY: `hipGetDeviceProperties(hipDeviceProp_t*, int)` in every version.
        let properties = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_void, c_int) -> Status>(properties)
        };
        Ok(Amd {
            table: Table { functions, symbols: &HIP_SYMBOLS },
            soname: found.name,
            version: 0,
            properties,
            properties_name,
            arch_at,
            rtc: OnceLock::new(),
            _keep: found.handle,
        })
    }

    fn major(&self) -> c_int {
        self.version / 10_000_000
    }

    fn rtc(&self) -> &std::result::Result<Rtc, String> {
        self.rtc.get_or_init(|| {
            let mut list = candidates(RTC_SONAMES);
            // Older versions have the compiler in the runtime's own library.
            list.push(self.soname.clone().into());
            let mut attempts: Vec<Attempt> = Vec::new();
            let found = find(&list, &mut attempts, |f| {
                let name = f.name.clone();
                Rtc::new(f.handle, &name, &RTC)
            });
            found.ok_or_else(|| format!("none of {} loads", RTC_SONAMES.join(", ")))
        })
    }
}

impl Platform for Amd {
    fn vendor(&self) -> &'static str {
        "AMD"
    }
    fn prefix(&self) -> &'static str {
        "hip"
    }
    fn table(&self) -> &Table {
        &self.table
    }
    fn library(&self) -> &str {
        &self.soname
    }
    fn arch(&self, ordinal: c_int) -> Result<String> {
        let mut raw = vec![0u64; PROPERTIES_BYTES / 8];
        // SAFETY: the buffer is longer than the struct of any version, and aligned as it.
        let status = unsafe { (self.properties)(raw.as_mut_ptr().cast(), ordinal) };
        if status != 0 {
            let name = super::probe::status_name(&self.table, status);
            return Err(Failure { call: self.properties_name, status, name }.into());
        }
        let bytes: Vec<u8> = raw.iter().flat_map(|w| w.to_ne_bytes()).collect();
        arch_in(&bytes, self.arch_at).ok_or_else(|| {
            let text = format!("{} does not say which architecture device {ordinal} has", self.properties_name);
            Diagnostic::new(ErrorKind::Device, text).note("library", self.soname.clone())
        })
    }
    fn launch_end(&self) -> usize {
        flag::LAUNCH_END
    }
    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>> {
        let rtc = self.rtc().as_ref().map_err(|why| {
            Diagnostic::new(ErrorKind::Unsupported, format!("hipRTC is not there: {why}")).help("install ROCm's hiprtc")
        })?;
        // An old compiler ends the process when it is asked for an architecture it does not know.
        let base = arch.split(':').next().unwrap_or(arch);
        if self.major() < 6 && !matches!(base, "gfx906" | "gfx908" | "gfx90a" | "gfx1030") {
            let text = format!("hipRTC of HIP {} does not compile for {base}", self.major());
            return Err(Diagnostic::new(ErrorKind::Unsupported, text).help("install ROCm 6 or later"));
        }
        rtc.compile(source, &[format!("--offload-arch={base}"), "-O3".into(), "-std=c++17".into()])
    }
    fn compiler(&self) -> std::result::Result<String, String> {
        self.rtc()
            .as_ref()
            .map(|r| format!("hipRTC {}.{} from {}", r.version.0, r.version.1, r.soname))
            .map_err(Clone::clone)
    }
}

/// Reads `gfx…` at its offset, or else finds it behind the device's name: a later struct may move it.
fn arch_in(properties: &[u8], at: usize) -> Option<String> {
    let text_at = |at: usize| {
        let tail = properties.get(at..)?;
        let end = tail.iter().take(256).position(|&b| b == 0)?;
        let text = std::str::from_utf8(tail.get(..end)?).ok()?;
        let hex = text.strip_prefix("gfx")?.split(':').next()?;
        (hex.len() >= 3 && hex.chars().all(|c| c.is_ascii_hexdigit())).then(|| text.to_string())
    };
    text_at(at).or_else(|| (256..properties.len()).find_map(text_at))
}

/// Looks for HIP and asks it for devices.
pub(super) fn probe() -> Probed {
    let mut p = Probed::new("AMD");
    let found = find(&candidates(SONAMES), &mut p.attempts, Amd::new);
    let Some(mut amd) = found else {
        p.fix = Some(match pci_has(PCI_VENDOR) {
            Some(false) => "nothing to do: this machine has no AMD GPU".into(),
            _ => "install ROCm 6 or later (package rocm-hip-runtime), or set ROCM_PATH to its folder".into(),
        });
        return p;
    };
    // SAFETY: writes one number.
    let _ = unsafe { amd.table.driver_version(&mut amd.version) };
    p.version = (amd.version > 0).then(|| format!("HIP {}.{}", amd.major(), amd.version / 100_000 % 100));
    p.ask(std::sync::Arc::new(amd));
    if p.devices.is_empty() {
        p.fix = Some(no_device(&p));
    }
    p
}

/// What to do when the library is there and finds no device.
fn no_device(p: &Probed) -> String {
    let open = |f: &str| std::fs::OpenOptions::new().read(true).write(true).open(f);
    match (pci_has(PCI_VENDOR), open("/dev/kfd")) {
        (Some(false), Err(_)) => "nothing to do: this machine has no AMD GPU".into(),
        (_, Err(e)) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            "let this user use /dev/kfd: usermod -aG render,video $USER, then log in again".into()
        }
        (_, Err(_)) => "load the driver: modprobe amdgpu; in a container: --device /dev/kfd --device /dev/dri".into(),
        (_, Ok(_)) => match std::env::var("HIP_VISIBLE_DEVICES") {
            Ok(v) => format!("HIP_VISIBLE_DEVICES is {v:?}: unset it, or name a device"),
            Err(_) => match &p.failure {
                Some(_) => {
                    "the driver is older than the library or damaged: install matching versions, see dmesg".into()
                }
                None => "no device is visible: see rocminfo".into(),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_found_wherever_the_struct_has_it() {
        let with = |at: usize, text: &str| {
            let mut b = vec![0u8; 2000];
            b[..13].copy_from_slice(b"AMD gfx9 name");
            b[at..at + text.len()].copy_from_slice(text.as_bytes());
            arch_in(&b, 1160)
        };
        assert_eq!(with(1160, "gfx942:sramecc+:xnack-").as_deref(), Some("gfx942:sramecc+:xnack-"));
        assert_eq!(with(1264, "gfx1100").as_deref(), Some("gfx1100"), "a later struct");
        assert_eq!(with(396, "gfx90a").as_deref(), Some("gfx90a"));
        assert_eq!(with(1160, "gfz942"), None);
        assert_eq!(arch_in(b"gfx942", 0), None, "no NUL");
    }
}
