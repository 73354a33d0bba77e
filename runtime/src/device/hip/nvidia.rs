//! NVIDIA: HIP's other platform. The table is filled from the CUDA driver; where a function differs from HIP's, a few lines here
//! stand between.

use super::library::{Attempt, Found, find, pci_has};
use super::platform::Platform;
use super::probe::Probed;
use super::rtc::{Names, Rtc};
use super::table::{Failure, Functions, Handle, Status, Symbols, Table, flag};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use tensor::{Diagnostic, ErrorKind, Result};

const SONAMES: &[&str] = &["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"];
const RTC_SONAMES: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
const PCI_VENDOR: &str = "0x10de";

/// The driver's names of HIP's functions. `set_device`, `device_attribute` and `error_name` are those that the functions here call.
static SYMBOLS: Symbols = Symbols {
    init: "cuInit",
    driver_version: "cuDriverGetVersion",
    device_count: "cuDeviceGetCount",
    device_get: "cuDeviceGet",
    device_name: "cuDeviceGetName",
    device_total_mem: "cuDeviceTotalMem_v2",
    device_attribute: "cuDeviceGetAttribute",
    set_device: "cuCtxSetCurrent",
    mem_info: "cuMemGetInfo_v2",
    malloc: "cuMemAlloc_v2",
    free: "cuMemFree_v2",
    host_malloc: "cuMemHostAlloc",
    host_free: "cuMemFreeHost",
    host_device_pointer: "cuMemHostGetDevicePointer_v2",
    memcpy_htod_async: "cuMemcpyHtoDAsync_v2",
    memcpy_dtoh_async: "cuMemcpyDtoHAsync_v2",
    memcpy_dtod_async: "cuMemcpyDtoDAsync_v2",
    stream_create: "cuStreamCreate",
    stream_destroy: "cuStreamDestroy_v2",
    stream_synchronize: "cuStreamSynchronize",
    event_create: "cuEventCreate",
    event_destroy: "cuEventDestroy_v2",
    event_record: "cuEventRecord",
    event_synchronize: "cuEventSynchronize",
    event_elapsed: "cuEventElapsedTime",
    module_load: "cuModuleLoadData",
    module_unload: "cuModuleUnload",
    module_function: "cuModuleGetFunction",
    launch: "cuLaunchKernel",
    error_name: "cuGetErrorName",
};

/// `CU_DEVICE_ATTRIBUTE_*`.
const CU_MULTIPROCESSORS: c_int = 16;
const CU_CAPABILITY_MAJOR: c_int = 75;
const CU_CAPABILITY_MINOR: c_int = 76;
/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_NOT_INITIALIZED`.
const INVALID_VALUE: Status = 1;
const NOT_INITIALIZED: Status = 3;
/// `CU_LAUNCH_PARAM_END`: HIP has another number.
const LAUNCH_END: usize = 0;
/// `CU_JIT_ERROR_LOG_BUFFER`, `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const JIT_LOG: [c_uint; 2] = [5, 6];
const JIT_LOG_BYTES: usize = 8192;

/// Functions that HIP has in another form.
struct Driver {
    attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status,
    retain: unsafe extern "C" fn(*mut Handle, c_int) -> Status,
    set_current: unsafe extern "C" fn(Handle) -> Status,
    name: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    load_ex: unsafe extern "C" fn(*mut Handle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void) -> Status,
    /// Primary contexts by device; kept until the process ends, as the vendor's own runtime keeps them.
    contexts: Mutex<BTreeMap<c_int, usize>>,
}

/// There is one driver in a process.
static DRIVER: OnceLock<Driver> = OnceLock::new();

unsafe extern "C" fn set_device(ordinal: c_int) -> Status {
    let Some(d) = DRIVER.get() else { return NOT_INITIALIZED };
    let mut contexts = crate::team::lock(&d.contexts);
    let context = match contexts.get(&ordinal) {
        Some(&c) => std::ptr::with_exposed_provenance_mut(c),
        None => {
            let mut context: Handle = std::ptr::null_mut();
            // SAFETY: writes a handle; device handles are ordinals.
            let status = unsafe { (d.retain)(&mut context, ordinal) };
            if status != 0 {
                return status;
            }
            contexts.insert(ordinal, context.expose_provenance());
            context
        }
    };
    drop(contexts);
    // SAFETY: a context that is kept.
    unsafe { (d.set_current)(context) }
}

unsafe extern "C" fn device_attribute(value: *mut c_int, attribute: c_int, device: c_int) -> Status {
    let Some(d) = DRIVER.get() else { return NOT_INITIALIZED };
    let attribute = match attribute {
        flag::ATTRIBUTE_MULTIPROCESSORS => CU_MULTIPROCESSORS,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's promise.
    unsafe { (d.attribute)(value, attribute, device) }
}

unsafe extern "C" fn error_name(status: Status) -> *const c_char {
    let mut text: *const c_char = std::ptr::null();
    if let Some(d) = DRIVER.get() {
        // SAFETY: writes a static text or null.
        unsafe { (d.name)(status, &mut text) };
    }
    text
}

static RTC: Names = Names {
    version: "nvrtcVersion",
    error_text: "nvrtcGetErrorString",
    create: "nvrtcCreateProgram",
    compile: "nvrtcCompileProgram",
    log_size: "nvrtcGetProgramLogSize",
    log: "nvrtcGetProgramLog",
    code_size: "nvrtcGetPTXSize",
    code: "nvrtcGetPTX",
    destroy: "nvrtcDestroyProgram",
};

struct Nvidia {
    table: Table,
    soname: String,
    rtc: OnceLock<std::result::Result<Rtc, String>>,
    _keep: libloading::Library,
}

/// # Safety
/// `F` is a function pointer type, that of the symbol.
unsafe fn function<F: Copy>(found: &Found, name: &str) -> std::result::Result<F, String> {
    let p = found.symbol(name).ok_or_else(|| format!("it lacks {name}"))?;
    // SAFETY: the caller's promise; a function pointer has the size of an address.
    Ok(unsafe { std::mem::transmute_copy::<*const c_void, F>(&p) })
}

impl Nvidia {
    fn new(found: Found) -> std::result::Result<Nvidia, String> {
        // SAFETY: the driver's functions of these names have these signatures.
        let driver = unsafe {
            Driver {
                attribute: function(&found, "cuDeviceGetAttribute")?,
                retain: function(&found, "cuDevicePrimaryCtxRetain")?,
                set_current: function(&found, "cuCtxSetCurrent")?,
                name: function(&found, "cuGetErrorName")?,
                load_ex: function(&found, "cuModuleLoadDataEx")?,
                contexts: Mutex::default(),
            }
        };
        let mut symbol = |name: &'static str| found.symbol(name);
        // SAFETY: each of these functions takes the arguments of HIP's of that meaning, by the same rules of passing; those that
        // do not are replaced below.
        let mut functions = unsafe { Functions::resolve(&SYMBOLS, &mut symbol) }
            .map_err(|missing| format!("it lacks {}", missing.join(", ")))?;
        functions.set_device = set_device;
        functions.device_attribute = device_attribute;
        functions.error_name = error_name;
        if DRIVER.set(driver).is_err() {
            return Err("the driver was loaded twice".into());
        }
        Ok(Nvidia {
            table: Table { functions, symbols: &SYMBOLS },
            soname: found.name,
            rtc: OnceLock::new(),
            _keep: found.handle,
        })
    }

    fn attribute(&self, attribute: c_int, ordinal: c_int) -> Result<c_int> {
        let d = DRIVER.get().ok_or_else(|| Diagnostic::new(ErrorKind::Internal, "there is no driver"))?;
        let mut value = 0;
        // SAFETY: writes a number.
        match unsafe { (d.attribute)(&mut value, attribute, ordinal) } {
            0 => Ok(value),
            status => {
                let name = super::probe::status_name(&self.table, status);
                Err(Failure { call: "cuDeviceGetAttribute", status, name }.into())
            }
        }
    }

    fn rtc(&self) -> &std::result::Result<Rtc, String> {
        self.rtc.get_or_init(|| {
            let mut list: Vec<PathBuf> = RTC_SONAMES.iter().map(PathBuf::from).collect();
            let roots = std::env::var_os("CUDA_PATH").map(PathBuf::from).into_iter();
            for root in roots.chain(["/usr/local/cuda".into()]) {
                list.extend(RTC_SONAMES.iter().map(|s| root.join("lib64").join(s)));
            }
            let mut attempts: Vec<Attempt> = Vec::new();
            let found = find(&list, &mut attempts, |f| {
                let name = f.name.clone();
                Rtc::new(f.handle, &name, &RTC)
            });
            found.ok_or_else(|| format!("none of {} loads", RTC_SONAMES.join(", ")))
        })
    }
}

impl Platform for Nvidia {
    fn vendor(&self) -> &'static str {
        "NVIDIA"
    }
    fn prefix(&self) -> &'static str {
        "cuda"
    }
    fn table(&self) -> &Table {
        &self.table
    }
    fn library(&self) -> &str {
        &self.soname
    }
    fn arch(&self, ordinal: c_int) -> Result<String> {
        let (major, minor) =
            (self.attribute(CU_CAPABILITY_MAJOR, ordinal)?, self.attribute(CU_CAPABILITY_MINOR, ordinal)?);
        Ok(format!("sm_{major}{minor}"))
    }
    fn launch_end(&self) -> usize {
        LAUNCH_END
    }
    fn load_module(&self, image: &[u8]) -> Result<Handle> {
        let d = DRIVER.get().ok_or_else(|| Diagnostic::new(ErrorKind::Internal, "there is no driver"))?;
        let mut module: Handle = std::ptr::null_mut();
        let mut log = vec![0u8; JIT_LOG_BYTES];
        let mut keys = JIT_LOG;
        // The second value is the number itself, in the place of a pointer.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(JIT_LOG_BYTES)];
        // SAFETY: the image is text with a NUL at its end, the options are a buffer and its length.
        let status =
            unsafe { (d.load_ex)(&mut module, image.as_ptr().cast(), 2, keys.as_mut_ptr(), values.as_mut_ptr()) };
        if status == 0 {
            return Ok(module);
        }
        let name = super::probe::status_name(&self.table, status);
        let e: Diagnostic = Failure { call: "cuModuleLoadDataEx", status, name }.into();
        let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(log.get(..end).unwrap_or_default()).trim().to_string();
        Err(if log.is_empty() { e } else { e.note("log", log) })
    }
    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>> {
        let rtc = self.rtc().as_ref().map_err(|why| {
            Diagnostic::new(ErrorKind::Unsupported, format!("NVRTC is not there: {why}"))
                .help("install libnvrtc of CUDA 12 or later")
        })?;
        let number = arch.trim_start_matches("sm_");
        rtc.compile(source, &[format!("--gpu-architecture=compute_{number}"), "--std=c++17".into()])
    }
    fn compiler(&self) -> std::result::Result<String, String> {
        self.rtc()
            .as_ref()
            .map(|r| format!("NVRTC {}.{} from {}", r.version.0, r.version.1, r.soname))
            .map_err(Clone::clone)
    }
}

/// Looks for the CUDA driver and asks it for devices.
pub(super) fn probe() -> Probed {
    let mut p = Probed::new("NVIDIA");
    let list: Vec<PathBuf> = SONAMES.iter().map(PathBuf::from).collect();
    let Some(nvidia) = find(&list, &mut p.attempts, Nvidia::new) else {
        p.fix = Some(match pci_has(PCI_VENDOR) {
            Some(false) => "nothing to do: this machine has no NVIDIA GPU".into(),
            _ => "install NVIDIA's driver, version 525 or later; in a container: --gpus all".into(),
        });
        return p;
    };
    let mut version = 0;
    // SAFETY: writes a number.
    let _ = unsafe { nvidia.table.driver_version(&mut version) };
    p.version = (version > 0).then(|| format!("CUDA {}.{}", version / 1000, version / 10 % 100));
    p.ask(Arc::new(nvidia));
    if p.devices.is_empty() {
        p.fix = Some(match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(v) => format!("CUDA_VISIBLE_DEVICES is {v:?}: unset it, or name a device"),
            Err(_) if std::path::Path::new("/dev/nvidiactl").exists() => {
                "library and driver do not fit together: run nvidia-smi, then restart or install one version of both"
                    .into()
            }
            Err(_) => "load the driver: modprobe nvidia; in a container: --gpus all".into(),
        });
    }
    p
}
