//! A thread team: workers that spin for the next piece of work for a while, then park. Entered once per run.
//!
//! A dispatch publishes the job, lets workers that are awake join, and takes part itself. It waits only for workers that joined, so
//! a worker the system did not schedule costs nothing but its help. A task that dispatches again, or a second thread that uses an
//! entered team, runs its work inline.

use kernels::team::Team;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Polls before a worker parks: about half a millisecond.
const SPINS: u32 = 10_000;
/// The same when more threads are in teams than there are processors.
const SPINS_OVERSUBSCRIBED: u32 = 200;
/// Polls between two `yield`s of a worker when there are more threads than processors. Otherwise it does not yield: on a busy machine
/// that would give away the time slice and with it the help for the rest of the run.
const SPINS_PER_YIELD: u32 = 8;
/// Polls before the dispatching thread yields to a worker that the system took off its processor.
const SPINS_BEFORE_YIELD: u32 = 2_000;
/// Chunks per thread: enough that a late thread costs little.
const CHUNKS_PER_THREAD: usize = 4;

/// Set in [`Shared::state`] while workers may join; the bits above count dispatches, those below workers inside.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 32;

/// Threads in entered teams, over the process.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

fn processors() -> usize {
    static N: OnceLock<usize> = OnceLock::new();
    *N.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The work of one dispatch.
struct Job {
    task: *const (dyn Fn(usize, usize) + Sync),
    n: usize,
    chunk: usize,
    /// Workers of a smaller number take part.
    limit: usize,
}

struct Shared {
    state: AtomicU64,
    /// Start of the next chunk.
    next: AtomicUsize,
    /// Written by the dispatching thread alone while the job is closed and nobody is inside.
    job: UnsafeCell<Option<Job>>,
    /// Held by the dispatching thread.
    busy: AtomicBool,
    stop: AtomicBool,
    n_parked: AtomicUsize,
    parked: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only by the thread that holds `busy`, while `state` is closed with nobody inside, and read only by
// threads that joined through `state`; the release store that opens it and the acquiring join order the two.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only while the dispatch that put it there is running.
unsafe impl Send for Shared {}

struct Crew {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
}

impl Crew {
    fn start(n_threads: usize) -> Crew {
        let n = n_threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            n_parked: AtomicUsize::new(0),
            parked: (0..n).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        // A system out of threads gives a smaller team, not an error.
        let handles: Vec<JoinHandle<()>> = (0..n)
            .map_while(|i| {
                let shared = shared.clone();
                std::thread::Builder::new().name(format!("hip-ep-{}", i + 1)).spawn(move || work(&shared, i)).ok()
            })
            .collect();
        Crew { threads: handles.iter().map(|h| h.thread().clone()).collect(), shared, handles }
    }

    fn wake(&self, limit: usize) {
        if self.shared.n_parked.load(SeqCst) == 0 {
            return;
        }
        for (flag, thread) in self.shared.parked.iter().zip(&self.threads).take(limit.saturating_sub(1)) {
            if flag.swap(false, SeqCst) {
                thread.unpark();
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.threads.iter().for_each(Thread::unpark);
        for h in self.handles.drain(..) {
            let _ = h.join();
        }
    }
}

/// Takes chunks until none is left.
fn take_chunks(shared: &Shared, job: &Job) {
    // SAFETY: `run` keeps the closure alive until everybody who joined has left.
    let task = unsafe { &*job.task };
    loop {
        let begin = shared.next.fetch_add(job.chunk, Relaxed);
        if begin >= job.n {
            return;
        }
        task(begin, begin.saturating_add(job.chunk).min(job.n));
    }
}

fn work(shared: &Shared, me: usize) {
    let mut seen = 0;
    let mut spins = 0u32;
    while !shared.stop.load(Acquire) {
        let state = shared.state.load(Acquire);
        if state & OPEN != 0 && state / EPOCH != seen {
            if shared.state.compare_exchange(state, state + 1, AcqRel, Relaxed).is_err() {
                continue;
            }
            seen = state / EPOCH;
            spins = 0;
            // SAFETY: joined while open, so the job was published and stays until this thread leaves.
            if let Some(job) = unsafe { &*shared.job.get() }
                && me + 1 < job.limit
                && let Err(payload) = catch_unwind(AssertUnwindSafe(|| take_chunks(shared, job)))
            {
                shared.next.store(job.n, Relaxed);
                lock(&shared.panic).get_or_insert(payload);
            }
            shared.state.fetch_sub(1, Release);
            continue;
        }
        spins += 1;
        let crowded = ENTERED.load(Relaxed) > processors();
        if spins < if crowded { SPINS_OVERSUBSCRIBED } else { SPINS } {
            if crowded && spins.is_multiple_of(SPINS_PER_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            continue;
        }
        park(shared, me, seen);
        spins = 0;
    }
}

/// Parks until woken. The flag goes up before the state is read again, and a dispatcher changes the state before it reads flags:
/// one of the two sees the other.
fn park(shared: &Shared, me: usize, seen: u64) {
    let Some(flag) = shared.parked.get(me) else { return };
    shared.n_parked.fetch_add(1, SeqCst);
    flag.store(true, SeqCst);
    let state = shared.state.load(SeqCst);
    if (state & OPEN == 0 || state / EPOCH == seen) && !shared.stop.load(SeqCst) {
        // A spurious return is harmless: the worker looks for work again.
        std::thread::park();
    }
    flag.store(false, SeqCst);
    shared.n_parked.fetch_sub(1, SeqCst);
}

/// Thread teams for runs: one team that one run at a time enters; others run on their own thread.
pub struct Teams {
    n_threads: usize,
    crew: OnceLock<Crew>,
    taken: AtomicBool,
}

impl std::fmt::Debug for Teams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Teams({} threads)", self.n_threads)
    }
}

impl Teams {
    /// A team of `n_threads`, the caller of a run included; `None` for one per processor. Threads start with the first run.
    pub fn new(n_threads: Option<usize>) -> Teams {
        let n_threads = n_threads.unwrap_or_else(processors).clamp(1, 1024);
        Teams { n_threads, crew: OnceLock::new(), taken: AtomicBool::new(false) }
    }

    /// Number of threads a run gets when no other is running.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Enters for a run with at most `limit` threads. When another run has the team, this one gets a single thread.
    pub fn enter(&self, limit: Option<usize>) -> Entered<'_> {
        let limit = limit.unwrap_or(self.n_threads).clamp(1, self.n_threads);
        if limit == 1 || self.taken.swap(true, Acquire) {
            return Entered { crew: None, teams: self, limit: 1 };
        }
        let crew = self.crew.get_or_init(|| Crew::start(self.n_threads));
        let limit = limit.min(crew.threads.len() + 1);
        ENTERED.fetch_add(limit, Relaxed);
        crew.wake(limit);
        Entered { crew: Some(crew), teams: self, limit }
    }
}

/// A team for the time of a run.
pub struct Entered<'t> {
    crew: Option<&'t Crew>,
    teams: &'t Teams,
    limit: usize,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.crew.is_some() {
            ENTERED.fetch_sub(self.limit, Relaxed);
            self.teams.taken.store(false, Release);
        }
    }
}

impl Team for Entered<'_> {
    fn n_threads(&self) -> usize {
        self.limit
    }

    fn run(&self, n: usize, grain: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if n == 0 {
            return;
        }
        let grain = grain.max(1);
        let chunks = (n / grain).min(self.limit * CHUNKS_PER_THREAD);
        let crew = match self.crew {
            Some(crew) if chunks > 1 && n < usize::MAX / 4 && !crew.shared.busy.swap(true, Acquire) => crew,
            _ => return task(0, n),
        };
        let shared = &*crew.shared;
        let chunk = n.div_ceil(chunks).next_multiple_of(grain);
        // The lifetime ends with this call, and nobody uses the job after it: see the wait below.
        let job = Job { task: erase(task), n, chunk, limit: self.limit };
        shared.next.store(0, Relaxed);
        // SAFETY: this thread holds `busy`; the last dispatch closed the job and waited until nobody was inside.
        let job = unsafe { (*shared.job.get()).insert(job) };
        let epoch = (shared.state.load(Relaxed) / EPOCH).wrapping_add(1);
        shared.state.store(epoch.wrapping_mul(EPOCH) | OPEN, SeqCst);
        crew.wake(self.limit);
        let mine = catch_unwind(AssertUnwindSafe(|| take_chunks(shared, job)));
        if mine.is_err() {
            shared.next.store(n, Relaxed);
        }
        shared.state.fetch_and(!OPEN, AcqRel);
        let mut spins = 0u32;
        while shared.state.load(Acquire) & INSIDE != 0 {
            spins = spins.saturating_add(1);
            if spins > SPINS_BEFORE_YIELD {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let theirs = lock(&shared.panic).take();
        shared.busy.store(false, Release);
        // A panic of a task is the caller's: it ends at the border of the run, and the team stays usable.
        if let Err(payload) = mine {
            resume_unwind(payload);
        }
        if let Some(payload) = theirs {
            resume_unwind(payload);
        }
    }
}

/// Drops the lifetime of a task.
fn erase<'a>(task: &'a (dyn Fn(usize, usize) + Sync + 'a)) -> *const (dyn Fn(usize, usize) + Sync + 'static) {
    // SAFETY: only the lifetime of a fat pointer changes; `run` does not return before the last use.
    unsafe {
        std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + 'a), *const (dyn Fn(usize, usize) + Sync + 'static)>(
            task,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(threads: usize, n: usize, grain: usize) {
        let teams = Teams::new(Some(threads));
        let team = teams.enter(None);
        for _ in 0..50 {
            let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            team.run(n, grain, &|b, e| {
                assert!(e == n || (e - b) >= grain.max(1), "{b}..{e} of {n} is below the grain {grain}");
                hits[b..e].iter().for_each(|h| _ = h.fetch_add(1, Relaxed));
            });
            assert!(hits.iter().all(|h| h.load(Relaxed) == 1), "{threads} threads, {n} points, grain {grain}");
        }
    }

    #[test]
    fn every_point_runs_once() {
        for threads in [1, 2, 3, 8] {
            for (n, grain) in [(0, 1), (1, 1), (2, 1), (7, 2), (1000, 1), (1000, 64), (64, 1000)] {
                check(threads, n, grain);
            }
        }
    }

    #[test]
    fn work_is_shared_and_parked_workers_wake() {
        let teams = Teams::new(Some(2));
        let team = teams.enter(None);
        for pause_ms in [0, 30] {
            std::thread::sleep(std::time::Duration::from_millis(pause_ms));
            // Both halves wait for each other, so it ends only when two threads take part.
            let met = AtomicUsize::new(0);
            team.run(8, 1, &|_, _| {
                if met.fetch_add(1, SeqCst) < 2 {
                    while met.load(SeqCst) < 2 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    }

    #[test]
    fn nested_use_runs_inline() {
        let teams = Teams::new(Some(4));
        let team = teams.enter(None);
        let sum = AtomicUsize::new(0);
        team.run(16, 1, &|b, e| team.run((e - b) * 10, 1, &|b, e| _ = sum.fetch_add(e - b, Relaxed)));
        assert_eq!(sum.load(Relaxed), 160);
    }

    #[test]
    fn a_second_run_gets_one_thread_and_limits_hold() {
        let teams = Teams::new(Some(3));
        let first = teams.enter(None);
        assert_eq!((first.n_threads(), teams.enter(None).n_threads()), (3, 1));
        drop(first);
        assert_eq!(teams.enter(Some(2)).n_threads(), 2);
        assert_eq!(teams.enter(Some(9)).n_threads(), 3);
    }

    #[test]
    fn panics_reach_the_caller_and_leave_the_team_usable() {
        let teams = Teams::new(Some(3));
        let team = teams.enter(None);
        for bad in 0..12 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(12, 1, &|b, _| {
                    if b == bad {
                        resume_unwind(Box::new("task"))
                    }
                });
            }));
            assert!(result.is_err(), "the panic at {bad} was lost");
        }
        let n = AtomicUsize::new(0);
        team.run(100, 1, &|b, e| _ = n.fetch_add(e - b, Relaxed));
        assert_eq!(n.load(Relaxed), 100);
    }

    #[test]
    fn many_threads_enter_one_team() {
        let teams = Teams::new(Some(3));
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for i in 0..300 {
                        let team = teams.enter(None);
                        let n = AtomicUsize::new(0);
                        team.run(i, 3, &|b, e| _ = n.fetch_add(e - b, Relaxed));
                        assert_eq!(n.load(Relaxed), i);
                    }
                });
            }
        });
    }
}
