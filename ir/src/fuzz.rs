//! What fuzzers call: each takes bytes and panics only on a bug of ours.
//!
//! Errors are right answers here. What was accepted must print, read back, and be checked without a panic.

use crate::op::Registry;
use crate::{import, infer, text, verify};
use bytes::Bytes;

/// Imports bytes as a model; what is accepted is printed, read back, inferred, verified and exported. Says whether it was.
///
/// # Panics
/// When a stage breaks its promise: text that does not read back to itself, or an export that does not import.
pub fn import(data: &[u8]) -> bool {
    let registry = Registry::builtin();
    let Ok(mut m) = import::import_bytes(Bytes::copy_from_slice(data), None, &registry) else { return false };
    let check_text = |m: &crate::Module<crate::Onnx>| {
        let printed = text::print_onnx(m);
        let read = text::parse_onnx(&printed, &registry).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(text::print_onnx(&read), printed, "text reads back to itself");
    };
    check_text(&m);
    if let Ok(bytes) = crate::export::to_onnx(&m) {
        import::import_bytes(bytes.into(), None, &registry).unwrap_or_else(|e| panic!("export does not import: {e}"));
    }
    if infer::infer(&mut m).is_ok() {
        check_text(&m);
        let _ = verify::verify_onnx(&m);
    }
    true
}

/// Reads bytes as text of both dialects; what is accepted is verified and printed, and reads back to itself. Says whether any was.
///
/// # Panics
/// When text that was printed does not read back to itself.
pub fn text(data: &[u8]) -> bool {
    let registry = Registry::builtin();
    let Ok(source) = std::str::from_utf8(data) else { return false };
    let mut accepted = false;
    if let Ok(m) = text::parse_onnx(source, &registry) {
        accepted = true;
        let _ = verify::verify_onnx(&m);
        let printed = text::print_onnx(&m);
        let read = text::parse_onnx(&printed, &registry).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(text::print_onnx(&read), printed, "text reads back to itself");
    }
    if let Ok(m) = text::parse_hip(source, &registry) {
        accepted = true;
        let _ = verify::verify_hip(&m);
        let printed = text::print_hip(&m);
        let read = text::parse_hip(&printed, &registry).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(text::print_hip(&read), printed, "text reads back to itself");
    }
    accepted
}
