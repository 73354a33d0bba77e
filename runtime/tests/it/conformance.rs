//! What every device must do, run over all of them; then what only the checking ones do.

use kernels::team::Solo;
use runtime::Teams;
use runtime::device::{Allocation, Buffer, Device, Loaded, Space, Work, cpu::Cpu, guard::Guard, null::Null};
use std::ffi::c_void;
use std::sync::Arc;
use tensor::{ErrorKind, Result};

pub fn devices() -> Vec<Arc<dyn Device>> {
    vec![Arc::new(Cpu::new()), Arc::new(Null::new()), Arc::new(Guard::new())]
}

fn host(bytes: &mut [u8]) -> (usize, Space) {
    (bytes.as_mut_ptr().expose_provenance(), Space::Host)
}

/// `y[i] = x[i] + k`, over i32.
unsafe extern "C" fn add(_: *mut c_void, args: *const u64, begin: i64, end: i64) -> i32 {
    // SAFETY: two addresses and an integer, as the tests give.
    unsafe {
        let (x, y, k) = (*args as *const i32, *args.add(1) as *mut i32, *args.add(2) as i32);
        (begin as usize..end as usize).for_each(|i| y.add(i).write(x.add(i).read() + k));
    }
    0
}

unsafe extern "C" fn fails(_: *mut c_void, _: *const u64, _: i64, _: i64) -> i32 {
    7
}

fn bytes_of(v: &[i32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

/// Uploads, adds one on the device, downloads.
fn add_one(d: &Arc<dyn Device>, loaded: &Loaded, n: usize) -> Result<Vec<i32>> {
    let teams = Teams::new(Some(2));
    let team = teams.enter(None);
    let s = d.stream()?;
    let (x, y) = (Buffer::new(d, Space::Device, 4 * n)?, Buffer::new(d, Space::Device, 4 * n)?);
    let mut data = bytes_of(&(0..n as i32).collect::<Vec<_>>());
    let args = [x.addr() as u64, y.addr() as u64, 1];
    // SAFETY: ranges and arguments are those of the buffers.
    unsafe {
        d.copy(s, (x.addr(), Space::Device), host(&mut data), 4 * n)?;
        d.launch(
            s,
            &team,
            loaded,
            &Work::Generated { kernel: 0, func: Some(add), args: &args, n_bufs: 2, points: n, grain: 16 },
        )?;
        data.fill(9);
        d.copy(s, host(&mut data), (y.addr(), Space::Device), 4 * n)?;
    }
    d.synchronize(s)?;
    d.close_stream(s)?;
    y.free()?;
    Ok(data.chunks_exact(4).map(|c| i32::from_ne_bytes(c.try_into().unwrap())).collect())
}

/// Kernel 0 of `loaded` is [`add`], kernel 1 fails.
pub fn conforms(d: Arc<dyn Device>, loaded: &Loaded) {
    let p = d.properties();
    assert!(p.align >= 256);
    for n in [0, 1, 1000, 1 << 20] {
        let want: Vec<i32> = if p.executes { (1..=n as i32).collect() } else { vec![0; n] };
        assert!(add_one(&d, loaded, n).unwrap() == want, "{} at {n}", p.name);
    }
    assert_eq!(d.memory().live, 0, "{}", p.name);
    assert!(d.memory().peak >= 8 << 20 && d.memory().n_allocs == 8, "{:?}", d.memory());
    // Alignment, distinct addresses, host-mapped memory that the host may use.
    let all: Vec<Buffer> = [0, 1, 255, 256, 5000, 3 << 20].map(|n| Buffer::new(&d, Space::Device, n).unwrap()).into();
    let mut addrs: Vec<usize> = all.iter().map(Buffer::addr).collect();
    assert!(addrs.iter().all(|a| a % 256 == 0 && *a != 0), "{}: {addrs:x?}", p.name);
    addrs.sort();
    addrs.dedup();
    assert_eq!(addrs.len(), all.len());
    drop(all);
    let mapped = Buffer::new(&d, Space::HostMapped, 64).unwrap();
    // SAFETY: host-mapped memory of 64 bytes.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(mapped.addr()).write(5) };
    drop(mapped);
    // Streams and events.
    let s = d.stream().unwrap();
    let (a, b) = (d.record(s).unwrap(), d.record(s).unwrap());
    assert!(d.elapsed_ns(a, b).unwrap() < 1_000_000_000);
    d.close_stream(s).unwrap();
    assert!(d.close_stream(s).is_err() && d.record(s).is_err());
    // Failures have a reason.
    let e = d.alloc(Space::Device, usize::MAX / 2).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device);
    let s = d.stream().unwrap();
    let work = Work::Generated { kernel: 1, func: Some(fails), args: &[], n_bufs: 0, points: 1, grain: 1 };
    // SAFETY: the kernel takes nothing.
    let failed = unsafe { d.launch(s, &Solo, loaded, &work) }.and_then(|()| d.synchronize(s));
    assert_eq!(failed.is_err(), p.executes, "{}", p.name);
}

#[test]
fn devices_conform() {
    devices().into_iter().for_each(|d| conforms(d, &Loaded::default()));
}

fn check_refused(d: &Arc<dyn Device>, words: &str, f: impl FnOnce() -> Result<()>) {
    let e = f().expect_err(words);
    assert!(e.to_string().contains(words), "{} said {e}, not {words:?}", d.properties().name);
}

#[test]
fn misuse_is_found() {
    let checking: [Arc<dyn Device>; 2] = [Arc::new(Null::new()), Arc::new(Guard::new())];
    for d in &checking {
        let s = d.stream().unwrap();
        let b = Buffer::new(d, Space::Device, 100).unwrap();
        let h = Buffer::new(d, Space::Host, 100).unwrap();
        let mut own = [0u8; 100];
        let own = host(&mut own);
        let copy = |dst, src, n| {
            // SAFETY: the device refuses before it touches anything.
            unsafe { d.copy(s, dst, src, n) }
        };
        let free = |a: Allocation| {
            // SAFETY: as above.
            unsafe { d.free(a) }
        };
        check_refused(d, "runs past the end", || copy((b.addr() + 10, Space::Device), own, 91));
        check_refused(d, "no live allocation", || copy((b.addr() + (1 << 30), Space::Device), own, 8));
        check_refused(d, "is said to be Host", || copy(own, (b.addr(), Space::Host), 8));
        check_refused(d, "is said to be Device", || copy(own, (h.addr(), Space::Device), 8));
        let launch = |addr: usize| {
            let args = [addr as u64];
            // SAFETY: refused before it runs, or over no points.
            unsafe {
                d.launch(
                    s,
                    &Solo,
                    &Loaded::default(),
                    &Work::Generated { kernel: 0, func: Some(add), args: &args, n_bufs: 1, points: 0, grain: 1 },
                )
            }
        };
        launch(b.addr() + 100).unwrap();
        launch(0).unwrap();
        check_refused(d, "host memory", || launch(h.addr()));
        check_refused(d, "no live allocation", || launch(own.0));
        let a = d.alloc(Space::Device, 8).unwrap();
        let again = || Allocation { addr: a.addr, bytes: a.bytes, space: a.space };
        check_refused(d, "freed as 9 bytes", || free(Allocation { bytes: 9, ..again() }));
        free(again()).unwrap();
        check_refused(d, "freed twice", || free(again()));
        d.close_stream(s).unwrap();
        check_refused(d, "is not open", || copy((b.addr(), Space::Device), own, 8));
    }
}

#[test]
fn guard_finds_overruns() {
    let d: Arc<dyn Device> = Arc::new(Guard::new());
    let s = d.stream().unwrap();
    let b = Buffer::new(&d, Space::Device, 40).unwrap();
    let args = [b.addr() as u64, b.addr() as u64, 1];
    let run = |points| {
        // SAFETY: the overrun stays within the allocation's padding.
        unsafe {
            d.launch(
                s,
                &Solo,
                &Loaded::default(),
                &Work::Generated { kernel: 0, func: Some(add), args: &args, n_bufs: 2, points, grain: 1 },
            )
        }
    };
    run(10).unwrap();
    let e = run(11).unwrap_err();
    assert!(e.to_string().contains("behind the end of an allocation of 40 bytes"), "{e}");
    assert!(b.free().is_err(), "the damage stays");
}

/// Touching guarded memory kills the process, so a child does it; what it prints names the allocation.
#[test]
fn guard_memory_faults_outside_calls() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "HIP_EP_TEST_TOUCH";
    if let Ok(what) = std::env::var(CHILD) {
        let d: Arc<dyn Device> = if what == "null" { Arc::new(Null::new()) } else { Arc::new(Guard::new()) };
        let _other = Buffer::new(&d, Space::Device, 100).unwrap();
        let b = Buffer::new(&d, if what == "mapped" { Space::HostMapped } else { Space::Device }, 64).unwrap();
        let at = match what.as_str() {
            "behind" => b.addr() + 256,
            "elsewhere" => 4096,
            _ => b.addr() + 12,
        };
        // A guard that has come and gone leaves the handler of the other.
        drop(Guard::new());
        // SAFETY: the point of the test; the process ends here, or the memory is host-mapped.
        let _ = unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
        std::process::exit(0);
    }
    let told = "host code touched Device memory of the guard device: byte 12 of an allocation of 64 bytes";
    let behind = "touched memory of the guard device 193 bytes behind the end of an allocation of 64 bytes";
    for (what, signal, text) in [
        ("guard", Some(11), told),
        ("behind", Some(11), behind),
        ("elsewhere", Some(11), ""),
        ("null", Some(11), ""),
        ("mapped", None, ""),
    ] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "conformance::guard_memory_faults_outside_calls", "--test-threads=1"])
            .env(CHILD, what)
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), signal, "{what}: {:?}", child.status);
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(said.contains(text) && said.contains("guard device") != text.is_empty(), "{what}: {said}");
    }
}
