//! TCP sequence numbers: 32-bit, modulo 2^32, and therefore **not ordered**.
//!
//! For any three numbers `a before b` and `b before c` do not imply `a before c`, so this type
//! implements neither `PartialOrd` nor subtraction; every comparison names the question it answers.

use core::fmt;

/// A point in sequence space (RFC 9293 §3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// The number as it stands in a header.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// Whether `self` precedes `other` by less than half the space.
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether `self` follows `other` by less than half the space.
    #[inline]
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Whether `self` is `other` or precedes it.
    #[inline]
    pub const fn at_or_before(self, other: Self) -> bool {
        !other.before(self)
    }

    /// Whether `self` is `other` or follows it.
    #[inline]
    pub const fn at_or_after(self, other: Self) -> bool {
        !self.before(other)
    }

    /// Whether `self` lies in `[start, start + len)`: the test behind "SEG.SEQ is in the window".
    #[inline]
    pub const fn in_window(self, start: Self, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }

    /// The number `count` further on.
    #[inline]
    #[allow(
        clippy::should_implement_trait,
        reason = "the counterpart of `Sub` does not exist"
    )]
    pub const fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The number `count` further back.
    #[inline]
    pub const fn back(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// How many numbers `self` is further on than `start`, modulo 2^32: asks no question of order.
    #[inline]
    pub const fn distance_from(self, start: Self) -> u32 {
        self.0.wrapping_sub(start.0)
    }

    /// The later of two numbers that are less than half the space apart.
    #[inline]
    pub const fn later_of(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// The earlier of two numbers that are less than half the space apart.
    #[inline]
    pub const fn earlier_of(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }
}

impl fmt::Display for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
