//! Run-time compilers: the two vendors' have the same functions under other names.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use tensor::{Diagnostic, ErrorKind, Result};

type Program = *mut c_void;

/// What the functions are called.
pub(crate) struct Names {
    pub(crate) version: &'static str,
    pub(crate) error_text: &'static str,
    pub(crate) create: &'static str,
    pub(crate) compile: &'static str,
    pub(crate) log_size: &'static str,
    pub(crate) log: &'static str,
    pub(crate) code_size: &'static str,
    pub(crate) code: &'static str,
    pub(crate) destroy: &'static str,
}

/// A compiler, loaded.
pub(crate) struct Rtc {
    pub(crate) soname: String,
    pub(crate) version: (c_int, c_int),
    names: &'static Names,
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    code_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    code: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    _keep: libloading::Library,
}

/// # Safety
/// The symbol of that name has type `F`.
unsafe fn get<F: Copy>(library: &libloading::Library, name: &str) -> std::result::Result<F, String> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|f| *f).map_err(|_| format!("{name} is missing"))
}

impl Rtc {
    /// Takes the functions of a library.
    pub(crate) fn new(
        library: libloading::Library,
        path: &str,
        names: &'static Names,
    ) -> std::result::Result<Rtc, String> {
        // SAFETY: functions of these names have these signatures in every version of the vendors' compilers.
        let rtc = unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = get(&library, names.version)?;
            let mut found = (0, 0);
            if version(&mut found.0, &mut found.1) != 0 {
                return Err(format!("{} failed", names.version));
            }
            Rtc {
                soname: path.into(),
                version: found,
                names,
                error_text: get(&library, names.error_text)?,
                create: get(&library, names.create)?,
                compile: get(&library, names.compile)?,
                log_size: get(&library, names.log_size)?,
                log: get(&library, names.log)?,
                code_size: get(&library, names.code_size)?,
                code: get(&library, names.code)?,
                destroy: get(&library, names.destroy)?,
                _keep: library,
            }
        };
        Ok(rtc)
    }

    fn check(&self, call: &str, status: c_int, log: Option<String>) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: takes any number; gives null or a static text.
        let text = unsafe { (self.error_text)(status) };
        // SAFETY: not null: a static text with a NUL at its end.
        let text = if text.is_null() { "?".into() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy() };
        let e = Diagnostic::new(ErrorKind::Device, format!("{call} failed: {text} ({status})"))
            .note("library", self.soname.clone());
        Err(match log {
            Some(log) if !log.trim().is_empty() => e.note("log", log.trim().to_string()),
            _ => e,
        })
    }

    /// Compiles; the result ends with a NUL where it is text.
    pub(crate) fn compile(&self, source: &str, options: &[String]) -> Result<Vec<u8>> {
        let text = |s: &str| {
            CString::new(s).map_err(|_| Diagnostic::new(ErrorKind::Internal, "a kernel source or option with a NUL"))
        };
        let (source, name) = (text(source)?, text("kernels.hip")?);
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let n = c_int::try_from(pointers.len()).unwrap_or(0);
        let mut program = Ending { rtc: self, program: null_mut() };
        // SAFETY: texts with NULs that outlive the program; no headers.
        unsafe {
            let made = (self.create)(&mut program.program, source.as_ptr(), name.as_ptr(), 0, null_mut(), null_mut());
            self.check(self.names.create, made, None)?;
            let done = (self.compile)(program.program, n, pointers.as_ptr());
            self.check(self.names.compile, done, if done == 0 { None } else { self.read_log(program.program) })?;
            let mut len = 0usize;
            self.check(self.names.code_size, (self.code_size)(program.program, &mut len), None)?;
            let mut code = vec![0u8; len];
            self.check(self.names.code, (self.code)(program.program, code.as_mut_ptr().cast()), None)?;
            Ok(code)
        }
    }

    /// # Safety
    /// A live program.
    unsafe fn read_log(&self, program: Program) -> Option<String> {
        let mut len = 0usize;
        // SAFETY: the caller's promise; the buffer has the length that the compiler states.
        unsafe {
            if (self.log_size)(program, &mut len) != 0 || len == 0 {
                return None;
            }
            let mut log = vec![0u8; len];
            ((self.log)(program, log.as_mut_ptr().cast()) == 0)
                .then(|| String::from_utf8_lossy(&log).trim_end_matches('\0').to_string())
        }
    }
}

/// Ends a program however the work goes.
struct Ending<'a> {
    rtc: &'a Rtc,
    program: Program,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: made by `create`, ended once.
            unsafe { (self.rtc.destroy)(&mut self.program) };
        }
    }
}
