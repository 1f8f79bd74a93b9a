//! The fuzz targets: functions of any bytes that panic if a promise is broken.
//!
//! `fuzz/fuzz_targets` wraps them for libFuzzer. `tests/corpus.rs` runs each over the inputs in
//! `fuzz/corpus`, as an ordinary test without a fuzzer.
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

/// A fuzz target: accepts any bytes, and panics if a promise is broken.
pub type Target = fn(&[u8]);

/// The targets by name; each corpus has the name of its target.
pub const TARGETS: [(&str, Target); 7] = [
    ("wire", wire),
    ("options", options),
    ("fragments", fragments),
    ("segments", segments),
    ("script", script),
    ("registration", registration),
    ("region", region),
];
