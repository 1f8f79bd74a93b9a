//! Conversion of the driver's clock to the time units in the state of a flow (a connection). The
//! driver is the program that runs the TCP engine (crate `tidelane-engine`).
//!
//! The flow state that the fast path (the engine's code for in-order segments) uses has no room for
//! 64-bit instants. Its deadlines are in milliseconds modulo 2^32, which are also the timestamp
//! clock of RFC 7323. Its transmission times are in microseconds modulo 2^32.

use tidelane_time::Instant;

/// A time in milliseconds modulo 2^32. Comparisons are valid for two times that differ by at most
/// 24 days.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Millis(pub u32);

impl Millis {
    /// Returns the time `ms` milliseconds later.
    pub const fn plus(self, ms: u32) -> Self {
        Self(self.0.wrapping_add(ms))
    }

    /// Returns true if `self` is at or before `now`.
    pub const fn is_due(self, now: Self) -> bool {
        now.0.wrapping_sub(self.0) as i32 >= 0
    }

    /// Returns true if `self` is before `other`.
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns the milliseconds from `now` to `self`; zero if `self` has passed.
    pub const fn until(self, now: Self) -> u32 {
        let left = self.0.wrapping_sub(now.0);
        if (left as i32) < 0 { 0 } else { left }
    }
}

/// Nanoseconds per millisecond.
const MS: u64 = 1_000_000;

/// One reading of the driver's clock, with conversions to the units that the engine uses.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The time of the reading.
    pub now: Instant,
    /// Start of the first millisecond after the reading.
    next_ms_at: Instant,
    /// The time of the reading in milliseconds, for deadlines and for TSval (RFC 7323 §5.4: a tick
    /// of 1 ms).
    pub ms: Millis,
}

impl Clock {
    /// Returns the reading of the clock at `now`.
    pub const fn at(now: Instant) -> Self {
        let ms = now.0 / MS;
        Self {
            now,
            next_ms_at: Instant((ms * MS).saturating_add(MS)),
            ms: Millis(ms as u32),
        }
    }

    /// Advances the reading to `now` and returns true if `now` lies in the same millisecond as the
    /// reading. Otherwise returns false, and the caller makes a new reading with [`Clock::at`].
    /// `now` must not be earlier than the reading.
    #[inline(always)]
    pub const fn advance_within_ms(&mut self, now: Instant) -> bool {
        let within = now.0 < self.next_ms_at.0;
        if within {
            self.now = now;
        }
        within
    }

    /// Returns the time in microseconds modulo 2^32, for RTT samples. The value is computed on
    /// demand, because few segments need it.
    #[inline]
    pub const fn us(&self) -> u32 {
        (self.now.0 / 1_000) as u32
    }

    /// Returns the milliseconds since `past`.
    pub const fn since_ms(&self, past: Millis) -> u32 {
        self.ms.0.wrapping_sub(past.0)
    }

    /// Returns the start of the present millisecond in microseconds modulo 2^32.
    pub const fn ms_start_us(&self) -> u32 {
        (self.now.0 / MS * 1_000) as u32
    }

    /// Returns the first instant at which `deadline` is due; the time of the reading if `deadline`
    /// is already due.
    pub const fn instant_of(&self, deadline: Millis) -> Instant {
        let left = deadline.until(self.ms);
        if left == 0 {
            return self.now;
        }
        Instant(self.next_ms_at.0.saturating_add((left as u64 - 1) * MS))
    }
}
