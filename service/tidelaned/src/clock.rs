//! The clock of the service.

use tidelane_time::Instant;

/// Returns the time of the monotonic clock, the only clock of the service.
pub fn now() -> Instant {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}
