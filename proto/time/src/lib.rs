//! Time as an argument: instants and durations in nanoseconds, and the wheel that holds deadlines.
//!
//! There is no `now()` here: the driver reads a clock (or the simulator advances one) and passes
//! the result in. Both types are plain `u64` nanoseconds, so that they cost what a number costs,
//! and all arithmetic saturates: a wrong clock makes timers late or early, never a panic.
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
