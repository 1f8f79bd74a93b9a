//! The fuzz targets. A target is a function that accepts any bytes and panics if an invariant is
//! broken.
//!
//! `fuzz/fuzz_targets` wraps each target for libFuzzer. `tests/corpus.rs` runs each target over the
//! inputs in `fuzz/corpus`, as an ordinary test without a fuzzer.
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

/// A fuzz target, which accepts any bytes and panics if an invariant is broken.
pub type Target = fn(&[u8]);

/// All targets with their names. The corpus of a target has the same name.
pub const TARGETS: [(&str, Target); 7] = [
    ("wire", wire),
    ("options", options),
    ("fragments", fragments),
    ("segments", segments),
    ("script", script),
    ("registration", registration),
    ("region", region),
];
