//! libFuzzer's entry point for `tidelane_fuzz::script`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidelane_fuzz::script(data));
