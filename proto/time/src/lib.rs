//! Instants and durations in nanoseconds, and a timer wheel.
//!
//! This crate has no `now()`: the program that runs the protocol code, or a simulator with a clock
//! of its own, passes the time as an argument. [`Instant`] and [`Duration`] wrap a `u64` and cost
//! as much as a plain number. Sums, differences and products saturate, so a wrong clock makes
//! timers late or early, but causes no panic.
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
