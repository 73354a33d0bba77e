//! `cargo +nightly fuzz run plan`. The check is the one that the crate's one-second smoke test calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Every input makes legal intervals: whatever the planner or the checker says is a finding.
    lower::fuzz::plan(data).expect("the plan holds");
});
