//! `cargo +nightly fuzz run ir_text`. The check is the one that the crate's one-second smoke test calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ir::fuzz::text(data);
});
