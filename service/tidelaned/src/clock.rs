//! The clock of the service.

use tidelane_time::Instant;

/// Returns the time of the kernel's monotonic clock (CLOCK_MONOTONIC).
pub fn now() -> Instant {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}
