//! TCP sequence numbers: 32-bit, modulo 2^32, and therefore **not ordered**.
//!
//! `a before b` and `b before c` do not imply `a before c`. The type therefore implements neither
//! `PartialOrd` nor `Sub`, and every comparison is a named function.

use core::fmt;

/// A point in sequence space (RFC 9293 §3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// Returns the number as in the header, in host byte order.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// Returns true if `self` precedes `other` by 1 to 2^31 (half the space). Two numbers that are
    /// exactly half the space apart precede each other.
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns true if `self` follows `other` by 1 to 2^31 (half the space).
    #[inline]
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Returns true if `self` equals `other` or precedes `other` by less than half the space.
    #[inline]
    pub const fn at_or_before(self, other: Self) -> bool {
        !other.before(self)
    }

    /// Returns true if `self` equals `other` or follows `other` by less than half the space.
    #[inline]
    pub const fn at_or_after(self, other: Self) -> bool {
        !self.before(other)
    }

    /// Returns true if `self` lies in `[start, start + len)`: the test for "SEG.SEQ is in the
    /// window".
    #[inline]
    pub const fn in_window(self, start: Self, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }

    /// Returns the sequence number that is `count` after `self`.
    #[inline]
    #[allow(
        clippy::should_implement_trait,
        reason = "`Add` would suggest that `Sub` exists, too"
    )]
    pub const fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Returns the sequence number that is `count` before `self`.
    #[inline]
    #[allow(
        clippy::should_implement_trait,
        reason = "`Sub` would suggest the difference of two numbers"
    )]
    pub const fn sub(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// Returns the distance from `start` forward to `self`, modulo 2^32. The result does not tell
    /// which of the two numbers is later.
    #[inline]
    pub const fn distance_from(self, start: Self) -> u32 {
        self.0.wrapping_sub(start.0)
    }

    /// Returns the later of two numbers that are less than half the space apart.
    #[inline]
    pub const fn later_of(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// Returns the earlier of two numbers that are less than half the space apart.
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
