//! Processor time, for what is held to a bound on compile time: it does not depend on what else the machine does.

use rustix::time::{ClockId, clock_gettime};

/// Seconds this thread has been on a processor.
pub fn thread_seconds() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
