//! What a machine without a GPU says. Needs no library; with libamdhip64 (Debian: libamdhip64-5) it also goes through a real driver.

use runtime::device::hip::{Hip, doctor, probe, report};
use tensor::ErrorKind;

#[test]
fn a_machine_without_a_gpu_says_what_was_looked_for_and_how_to_mend_it() {
    let all = probe();
    if let Some(d) = all.iter().flat_map(|p| &p.devices).next() {
        println!("left out: this machine has {} ({})", d.name, d.arch);
        return;
    }
    let e = Hip::open(0).expect_err("no device");
    assert_eq!(e.kind(), ErrorKind::Device);
    assert!(e.to_string().starts_with("there is no GPU") && e.to_string().contains("--doctor"), "{e}");
    let text = report(all);
    assert!(text.starts_with("no GPU was found\n"), "{text}");
    for p in all {
        let fix = p.fix.as_ref().unwrap_or_else(|| panic!("{} has no fix:\n{text}", p.vendor));
        assert!(text.contains(fix) && e.to_string().contains(fix), "{text}\n{e}");
        assert!(!p.attempts.is_empty());
        let loaded = p.attempts.iter().find(|a| a.failure.is_none());
        match (loaded, &p.failure) {
            // 100 and 101 both mean "no device"; which one depends on version and call. Some drivers succeed and count none.
            (Some(a), Some(f)) => {
                let none = f.contains("hipErrorNoDevice (100)") || f.contains("hipErrorInvalidDevice (101)");
                assert!(p.vendor != "AMD" || none, "{f}");
                println!("{}: {} loads, {f}", p.vendor, a.soname);
            }
            (Some(a), None) => println!("{}: {} loads and has no device", p.vendor, a.soname),
            (None, _) => println!("{}: no library loads, so its driver is not asked", p.vendor),
        }
    }
    assert!(doctor().starts_with("no GPU was found\n"));
}
