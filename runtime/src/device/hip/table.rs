//! The driver's functions that the device uses: one table in HIP's terms. A platform fills it from the library it finds; nothing is
//! linked. Each function has a method of the same name that checks the status.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use tensor::{Diagnostic, ErrorKind};

/// `hipError_t`: 0 is success.
pub type Status = c_int;
/// A stream, an event, a module or a function of the driver.
pub type Handle = *mut c_void;
/// An address in device memory.
pub type DevicePtr = *mut c_void;

/// Constants of the API that are the same on every platform.
pub mod flag {
    use super::{Status, c_int, c_uint};
    /// `hipErrorOutOfMemory`.
    pub const OUT_OF_MEMORY: Status = 2;
    /// `hipErrorNoDevice`.
    pub const NO_DEVICE: Status = 100;
    /// `hipErrorInvalidDevice`: what some versions say when there is no device.
    pub const INVALID_DEVICE: Status = 101;
    /// `hipErrorInvalidImage`: the code is damaged or of an unknown kind.
    pub const INVALID_IMAGE: Status = 200;
    /// `hipErrorNoBinaryForGpu`: the code is for another architecture.
    pub const NO_BINARY_FOR_GPU: Status = 209;
    /// `hipErrorNotFound`.
    pub const NOT_FOUND: Status = 500;
    /// `hipErrorIllegalAddress`.
    pub const ILLEGAL_ADDRESS: Status = 700;
    /// `hipErrorLaunchFailure`.
    pub const LAUNCH_FAILURE: Status = 719;
    /// `hipHostMallocPortable`: pinned for all devices.
    pub const HOST_PORTABLE: c_uint = 1;
    /// `hipHostMallocMapped`: kernels may use it.
    pub const HOST_MAPPED: c_uint = 2;
    /// `hipStreamNonBlocking`: does not wait for the default stream.
    pub const STREAM_NON_BLOCKING: c_uint = 1;
    /// `hipEventDefault`: with times.
    pub const EVENT_DEFAULT: c_uint = 0;
    /// `hipEventDisableTiming`.
    pub const EVENT_NO_TIMING: c_uint = 2;
    /// `hipDeviceAttributeMultiprocessorCount`.
    pub const ATTRIBUTE_MULTIPROCESSORS: c_int = 63;
    /// `HIP_LAUNCH_PARAM_BUFFER_POINTER`.
    pub const LAUNCH_BUFFER_POINTER: usize = 1;
    /// `HIP_LAUNCH_PARAM_BUFFER_SIZE`.
    pub const LAUNCH_BUFFER_SIZE: usize = 2;
    /// `HIP_LAUNCH_PARAM_END`; other platforms have another value.
    pub const LAUNCH_END: usize = 3;
}

/// A call of the driver that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function, as the platform calls it.
    pub call: &'static str,
    /// What it returned.
    pub status: Status,
    /// The platform's name of the status.
    pub name: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {} ({})", self.call, self.name, self.status)
    }
}

impl From<Failure> for Diagnostic {
    fn from(f: Failure) -> Diagnostic {
        let e = Diagnostic::new(ErrorKind::Device, f.to_string());
        match f.status {
            flag::OUT_OF_MEMORY => e.help("run with smaller extents, or end what else uses the device's memory"),
            flag::NO_BINARY_FOR_GPU | flag::INVALID_IMAGE => {
                e.help("compile the model for this device: hip-onnx-runner --doctor names its target")
            }
            flag::ILLEGAL_ADDRESS | flag::LAUNCH_FAILURE => {
                e.help("the device's state is lost: start the process again, and report the model if it recurs")
            }
            _ => e,
        }
    }
}

/// Whether a status says that there is no device.
pub fn is_no_device(status: Status) -> bool {
    matches!(status, flag::NO_DEVICE | flag::INVALID_DEVICE)
}

macro_rules! table {
    ($($(#[doc = $doc:literal])* $field:ident = $symbol:literal ($($arg:ident: $ty:ty),*);)*) => {
        /// The functions.
        #[derive(Clone, Copy)]
        pub struct Functions {
            $($(#[doc = $doc])* pub $field: unsafe extern "C" fn($($ty),*) -> Status,)*
            /// `hipGetErrorName`: a static text; null for unknown numbers.
            pub error_name: unsafe extern "C" fn(Status) -> *const c_char,
        }

        /// What a platform calls each function.
        #[derive(Clone, Copy, Debug)]
        pub struct Symbols {
            $(#[allow(missing_docs)] pub $field: &'static str,)*
            #[allow(missing_docs)]
            pub error_name: &'static str,
        }

        /// HIP's own names.
        pub const HIP_SYMBOLS: Symbols = Symbols { $($field: $symbol,)* error_name: "hipGetErrorName" };

        impl Functions {
            /// Looks every function up by the platform's name.
            ///
            /// # Errors
            /// The names that are missing.
            ///
            /// # Safety
            /// What `find` returns for a name are functions of the signature that the table states, and they stay valid.
            pub unsafe fn resolve(
                symbols: &Symbols,
                find: &mut dyn FnMut(&'static str) -> Option<*const c_void>,
            ) -> std::result::Result<Functions, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(let $field = find(symbols.$field);
                if $field.is_none() {
                    missing.push(symbols.$field);
                })*
                let error_name = find(symbols.error_name);
                if error_name.is_none() {
                    missing.push(symbols.error_name);
                }
                match ($($field,)* error_name) {
                    ($(Some($field),)* Some(error_name)) => Ok(Functions {
                        // SAFETY: the caller's promise about signatures; a function pointer has the size of an address.
                        $($field: unsafe {
                            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> Status>($field)
                        },)*
                        // SAFETY: as above.
                        error_name: unsafe {
                            std::mem::transmute::<*const c_void, unsafe extern "C" fn(Status) -> *const c_char>(error_name)
                        },
                    }),
                    _ => Err(missing),
                }
            }
        }

        impl Table {
            $($(#[doc = $doc])*
            ///
            /// # Errors
            /// The driver's status.
            ///
            /// # Safety
            /// The arguments are what the driver asks for.
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $field(&self, $($arg: $ty),*) -> std::result::Result<(), Failure> {
                // SAFETY: the caller's promise.
                let status = unsafe { (self.functions.$field)($($arg),*) };
                if status == 0 { Ok(()) } else { Err(self.failure(self.symbols.$field, status)) }
            })*
        }

        /// The signatures of the table: HIP's name, and the type of each argument.
        pub fn signatures() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
            vec![$(($symbol, vec![$((std::any::type_name::<$ty>(), size_of::<$ty>())),*])),*]
        }
    };
}

table! {
    /// Starts the driver; flags are 0.
    init = "hipInit"(flags: c_uint);
    /// Version of the driver.
    driver_version = "hipDriverGetVersion"(version: *mut c_int);
    /// Number of devices.
    device_count = "hipGetDeviceCount"(count: *mut c_int);
    /// Handle of a device.
    device_get = "hipDeviceGet"(device: *mut c_int, ordinal: c_int);
    /// Name of a device, with a NUL at its end.
    device_name = "hipDeviceGetName"(name: *mut c_char, len: c_int, device: c_int);
    /// Bytes of a device's memory.
    device_total_mem = "hipDeviceTotalMem"(bytes: *mut usize, device: c_int);
    /// A number about a device.
    device_attribute = "hipDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: c_int);
    /// Makes a device the calling thread's.
    set_device = "hipSetDevice"(ordinal: c_int);
    /// Free and total bytes of the thread's device.
    mem_info = "hipMemGetInfo"(free: *mut usize, total: *mut usize);
    /// Gets device memory.
    malloc = "hipMalloc"(ptr: *mut DevicePtr, bytes: usize);
    /// Gives device memory back; waits for the device.
    free = "hipFree"(ptr: DevicePtr);
    /// Gets pinned host memory.
    host_malloc = "hipHostMalloc"(ptr: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Gives pinned host memory back.
    host_free = "hipHostFree"(ptr: *mut c_void);
    /// The address by which kernels see mapped host memory.
    host_device_pointer = "hipHostGetDevicePointer"(device: *mut DevicePtr, host: *mut c_void, flags: c_uint);
    /// Queues a copy from pinned host memory to the device.
    memcpy_htod_async = "hipMemcpyHtoDAsync"(dst: DevicePtr, src: *mut c_void, bytes: usize, stream: Handle);
    /// Queues a copy from the device to pinned host memory.
    memcpy_dtoh_async = "hipMemcpyDtoHAsync"(dst: *mut c_void, src: DevicePtr, bytes: usize, stream: Handle);
    /// Queues a copy on the device.
    memcpy_dtod_async = "hipMemcpyDtoDAsync"(dst: DevicePtr, src: DevicePtr, bytes: usize, stream: Handle);
    /// A new stream.
    stream_create = "hipStreamCreateWithFlags"(stream: *mut Handle, flags: c_uint);
    /// Ends a stream.
    stream_destroy = "hipStreamDestroy"(stream: Handle);
    /// Waits for a stream's work.
    stream_synchronize = "hipStreamSynchronize"(stream: Handle);
    /// A new event.
    event_create = "hipEventCreateWithFlags"(event: *mut Handle, flags: c_uint);
    /// Ends an event.
    event_destroy = "hipEventDestroy"(event: Handle);
    /// Marks the point a stream has reached.
    event_record = "hipEventRecord"(event: Handle, stream: Handle);
    /// Waits for an event.
    event_synchronize = "hipEventSynchronize"(event: Handle);
    /// Milliseconds between two events that have passed.
    event_elapsed = "hipEventElapsedTime"(ms: *mut f32, from: Handle, to: Handle);
    /// Loads code: a code object, or text with a NUL at its end.
    module_load = "hipModuleLoadData"(module: *mut Handle, image: *const c_void);
    /// Ends a module.
    module_unload = "hipModuleUnload"(module: Handle);
    /// A kernel of a module by its name.
    module_function = "hipModuleGetFunction"(function: *mut Handle, module: Handle, name: *const c_char);
    /// Queues a kernel.
    launch = "hipModuleLaunchKernel"(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
}

/// The functions with the names to speak of them.
#[derive(Clone, Copy)]
pub struct Table {
    /// The functions.
    pub functions: Functions,
    /// What the platform calls them.
    pub symbols: &'static Symbols,
}

impl Table {
    fn failure(&self, call: &'static str, status: Status) -> Failure {
        // SAFETY: takes any number; gives null or a static text.
        let text = unsafe { (self.functions.error_name)(status) };
        let name = if text.is_null() {
            "an unknown error".into()
        } else {
            // SAFETY: a static text with a NUL at its end, as the driver promises.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Failure { call, status, name }
    }
}
