//! Native libraries: what is no compiled model is refused. (That real ones load is tested where they are made.)

use runtime::{Code, open_shared_object};
use tensor::ErrorKind;

#[test]
fn foreign_libraries_are_refused() {
    let missing = Code::from_shared_object("/nowhere/model.so").unwrap_err();
    assert!(missing.kind() == ErrorKind::Io && missing.to_string().contains("/nowhere/model.so"), "{missing}");
    let libc = ["/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/libm.so.6", "/lib64/libm.so.6"]
        .iter()
        .find(|p| std::path::Path::new(p).exists());
    let Some(libc) = libc else {
        println!("skipped the second half: no system library found");
        return;
    };
    let e = open_shared_object(libc).unwrap_err();
    assert!(e.kind() == ErrorKind::Malformed && e.to_string().contains("the symbol hip_ep_init is missing"), "{e}");
}

/// This test's own program, an ELF file like a library, cut off at several places.
#[test]
fn truncated_libraries_are_refused_before_they_are_mapped() {
    let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let path = std::env::temp_dir().join(format!("truncated-{}.so", std::process::id()));
    for kept in [40, 64, 4096, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..kept]).unwrap();
        let e = open_shared_object(&path).unwrap_err();
        assert!(e.kind() == ErrorKind::Malformed && e.to_string().contains("is truncated"), "{kept}: {e}");
    }
    // What is whole is the loader's to judge.
    std::fs::write(&path, &whole).unwrap();
    let e = open_shared_object(&path).unwrap_err().to_string();
    assert!(!e.contains("is truncated"), "{e}");
    std::fs::remove_file(&path).unwrap();
}
