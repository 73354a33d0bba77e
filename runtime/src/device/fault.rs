//! What a fault on guarded memory says before the process ends: which allocation was touched, and how.
//!
//! A handler of `SIGSEGV` is installed while a guard device is alive. It prints one message and hands the signal on to the handler
//! that was there before; a fault elsewhere is handed on without a word.

use super::Space;
use crate::team::lock;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A block of a guard device: `usable` bytes from the key on can be opened, the page behind them never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guarded {
    pub usable: usize,
    pub addr: usize,
    pub bytes: usize,
    pub space: Space,
    /// Pages behind the usable ones, in bytes.
    pub behind: usize,
}

struct State {
    n_watches: usize,
    before: Option<libc::sigaction>,
    blocks: BTreeMap<usize, Guarded>,
}

static STATE: Mutex<State> = Mutex::new(State { n_watches: 0, before: None, blocks: BTreeMap::new() });

/// Keeps the handler installed.
#[derive(Debug)]
pub(super) struct Watch(());

impl Watch {
    pub fn new() -> Watch {
        let mut s = lock(&STATE);
        s.n_watches += 1;
        if s.n_watches == 1 {
            s.before = install();
        }
        Watch(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut s = lock(&STATE);
        s.n_watches -= 1;
        if s.n_watches > 0 {
            return;
        }
        if let Some(before) = s.before.take() {
            // SAFETY: an all-zero `sigaction` is a valid value to be overwritten.
            let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: both structures live through the calls. Another handler that was installed since stays.
            unsafe {
                if libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == handler() {
                    libc::sigaction(libc::SIGSEGV, &before, std::ptr::null_mut());
                }
            }
        }
    }
}

/// Remembers a block by the start of its region.
pub(super) fn insert(start: usize, block: Guarded) {
    lock(&STATE).blocks.insert(start, block);
}

/// Forgets a block.
pub(super) fn remove(start: usize) {
    lock(&STATE).blocks.remove(&start);
}

fn handler() -> libc::sighandler_t {
    (on_fault as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)) as libc::sighandler_t
}

/// Installs the handler and returns what was there. A system that refuses leaves faults without a message.
fn install() -> Option<libc::sigaction> {
    // SAFETY: all zeros are a valid `sigaction`: the default action, no flags, an empty mask.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    new.sa_sigaction = handler();
    // On the thread's alternate stack, where Rust's own handler of stack overflows runs, too.
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both structures live through the call; the handler calls only what may run in a signal handler.
    (unsafe { libc::sigaction(libc::SIGSEGV, &new, &mut old) } == 0).then_some(old)
}

/// The state, without waiting for ever: who holds the lock runs on while this thread is in its handler.
fn try_state() -> Option<MutexGuard<'static, State>> {
    for _ in 0..10_000_000 {
        match STATE.try_lock() {
            Ok(s) => return Some(s),
            Err(TryLockError::Poisoned(s)) => return Some(s.into_inner()),
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    None
}

/// Runs in a signal handler: takes no memory and waits for no lock.
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the signal's information to a handler with SA_SIGINFO.
    let at = unsafe { (*info).si_addr() }.addr();
    let mut before = None;
    if let Some(s) = try_state() {
        before = s.before;
        if let Some((_, b)) = s.blocks.range(..=at).next_back().filter(|(start, b)| at - **start < b.usable + b.behind)
        {
            let mut line = Line { text: [0; 400], len: 0 };
            let _ = describe(&mut line, at, b);
            let _ = rustix::io::write(rustix::stdio::stderr(), line.text.get(..line.len).unwrap_or_default());
        }
    }
    match before {
        Some(old) if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN => {
            if old.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: a handler installed with SA_SIGINFO has this type.
                let f: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(old.sa_sigaction) };
                f(signal, info, context);
            } else {
                // SAFETY: a handler installed without SA_SIGINFO has this type.
                let f: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(old.sa_sigaction) };
                f(signal);
            }
        }
        _ => {
            // The instruction runs again when this returns; it then ends the process by the signal.
            // SAFETY: setting the default action is always possible.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

fn describe(out: &mut impl Write, at: usize, b: &Guarded) -> std::fmt::Result {
    let (bytes, space, addr) = (b.bytes, b.space, b.addr);
    match at.checked_sub(addr + bytes) {
        None => write!(
            out,
            "error: host code touched {space:?} memory of the guard device: byte {} of an allocation of {bytes} bytes at {addr:#x}",
            at.saturating_sub(addr)
        )?,
        Some(n) => write!(
            out,
            "error: something touched memory of the guard device {} bytes behind the end of an allocation of {bytes} bytes at {addr:#x}",
            n.saturating_add(1)
        )?,
    }
    out.write_str("\n  help  only kernels and copies of the device may touch its memory; a debugger shows who did\n")
}

/// Text in a fixed place; what does not fit is left out.
struct Line {
    text: [u8; 400],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = self.text.get_mut(self.len..).unwrap_or_default();
        let n = s.len().min(room.len());
        if let (Some(to), Some(from)) = (room.get_mut(..n), s.as_bytes().get(..n)) {
            to.copy_from_slice(from);
        }
        self.len += n;
        Ok(())
    }
}
