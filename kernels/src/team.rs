//! How a kernel is spread over threads.

/// Runs ranges on several threads and returns when all are done. Implemented by the runtime's thread team.
pub trait Team: Sync {
    /// Number of threads that take part, the caller included.
    fn n_threads(&self) -> usize;
    /// Calls `task(begin, end)` for disjoint ranges that cover `0..n`, each at least `grain` long but for the last. The cut depends on
    /// `n` and `grain` alone where a result may depend on it; kernels whose results do not may be cut by the number of threads.
    fn run(&self, n: usize, grain: usize, task: &(dyn Fn(usize, usize) + Sync));
}

/// One thread: the caller.
pub struct Solo;

impl Team for Solo {
    fn n_threads(&self) -> usize {
        1
    }
    fn run(&self, n: usize, _grain: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if n > 0 {
            task(0, n);
        }
    }
}
