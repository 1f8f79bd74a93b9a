//! libFuzzer's entry point for `tidelane_fuzz::options`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidelane_fuzz::options(data));
