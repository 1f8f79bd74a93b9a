//! Time as an argument: instants and durations in nanoseconds. There is no `now()` here.
#![forbid(unsafe_code)]
#![no_std]

/// A point in time, nanoseconds since an origin that the driver chose (boot, or zero in simulation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Instant(pub u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Duration(pub u64);
