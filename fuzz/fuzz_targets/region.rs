//! libFuzzer's entry point for `tidelane_fuzz::region`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidelane_fuzz::region(data));
