//! Instants and durations in nanoseconds, and a timer wheel.
//!
//! This crate has no `now()`. The program that runs the protocol code reads a clock, or a simulator
//! advances a clock of its own, and passes the time as an argument. [`Instant`] and [`Duration`]
//! wrap a `u64`, so they cost as much as a plain number. All arithmetic saturates: a wrong clock
//! makes timers late or early, but causes no panic.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod duration;
mod instant;
mod wheel;

pub use crate::{
    duration::Duration,
    instant::Instant,
    wheel::{TimerHandle, TimerWheel},
};

#[cfg(test)]
mod props;
