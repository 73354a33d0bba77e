//! Processor time, for what is held to a bound on compile time: it does not depend on what else the machine does.

/// Seconds this thread has been on a processor; where the system does not say, seconds since the first call.
pub fn thread_seconds() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    match text.split(' ').next().and_then(|t| t.parse::<f64>().ok()) {
        Some(ns) => ns / 1e9,
        None => START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64(),
    }
}
