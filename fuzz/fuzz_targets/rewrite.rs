//! `cargo +nightly fuzz run rewrite`. The check is the one that the crate's one-second smoke test calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rewrite::fuzz::rewrite(data);
});
