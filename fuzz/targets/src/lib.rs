//! What is fuzzed: functions from any bytes to nothing, which panic if a promise is broken.
//!
//! `fuzz/fuzz_targets` puts libFuzzer around them; `tests/corpus.rs` runs each over the inputs that
//! are kept in `fuzz/corpus`, as an ordinary test without a fuzzer.
#![forbid(unsafe_code)]

mod bytes;
mod fragments;
mod region;
mod registration;
mod script;
mod segments;
mod service;
mod wire;

pub use crate::{
    fragments::fragments,
    region::region,
    registration::registration,
    script::script,
    segments::segments,
    wire::{options, wire},
};

/// Takes any bytes; panics if a promise is broken.
pub type Target = fn(&[u8]);

/// The targets by their names, which are those of their corpora.
pub const TARGETS: [(&str, Target); 7] = [
    ("wire", wire),
    ("options", options),
    ("fragments", fragments),
    ("segments", segments),
    ("script", script),
    ("registration", registration),
    ("region", region),
];
