//! `cargo +nightly fuzz run artifact`. The check is the one that the crate's one-second smoke test calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    artifact::fuzz::open(data);
});
