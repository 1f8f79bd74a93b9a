//! One reading of the driver's clock in the units that flows keep.
//!
//! Hot state has no room for 64-bit instants. Deadlines are kept in milliseconds modulo 2^32 (which
//! is also the RFC 7323 timestamp clock), round-trip stamps in microseconds modulo 2^32.

use tidelane_time::Instant;

/// A point in time in milliseconds modulo 2^32; comparisons hold within 24 days.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Millis(pub u32);

impl Millis {
    /// The point `ms` milliseconds later.
    pub const fn plus(self, ms: u32) -> Self {
        Self(self.0.wrapping_add(ms))
    }

    /// Whether `self` is at or before `now`.
    pub const fn is_due(self, now: Self) -> bool {
        now.0.wrapping_sub(self.0) as i32 >= 0
    }

    /// Whether `self` precedes `other`.
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Milliseconds from `now` to `self`, zero if it is past.
    pub const fn until(self, now: Self) -> u32 {
        let left = self.0.wrapping_sub(now.0);
        if (left as i32) < 0 { 0 } else { left }
    }
}

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

/// What the clock says, in every unit that the engine uses.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The instant itself.
    pub now: Instant,
    /// When the next millisecond begins.
    turns_at: Instant,
    /// Milliseconds: deadlines, and `tsval` (RFC 7323 §5.4: a tick of 1 ms).
    pub ms: Millis,
}

impl Clock {
    /// Reads `now` in all units.
    pub const fn at(now: Instant) -> Self {
        let ms = now.0 / MS;
        Self {
            now,
            turns_at: Instant((ms * MS).saturating_add(MS)),
            ms: Millis(ms as u32),
        }
    }

    /// Moves on to `now`, which is not before it. False, and nothing changes, if that is not in the
    /// same millisecond, as most readings are: then it is to be read anew.
    #[inline(always)]
    pub const fn moves_to(&mut self, now: Instant) -> bool {
        let within = now.0 < self.turns_at.0;
        if within {
            self.now = now;
        }
        within
    }

    /// Microseconds modulo 2^32: round-trip times. Few segments need it.
    #[inline]
    pub const fn us(&self) -> u32 {
        (self.now.0 / 1_000) as u32
    }

    /// When the present millisecond began, as [`us`](Self::us) counts.
    pub const fn turned_us(&self) -> u32 {
        (self.now.0 / MS * 1_000) as u32
    }

    /// The first instant at which `deadline` is due.
    pub const fn instant_of(&self, deadline: Millis) -> Instant {
        let left = deadline.until(self.ms);
        if left == 0 {
            return self.now;
        }
        Instant(self.turns_at.0.saturating_add((left as u64 - 1) * MS))
    }
}
