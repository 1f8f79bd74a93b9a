//! [`Clock`]: the server's clock, for expiry and ages. The caller passes the present Unix time.
//!
//! An item stores 32-bit seconds of this clock. The clock starts at `FIRST`, so zero is never the
//! present time and can mean "never expires".

/// Largest relative `exptime` in seconds: 30 days. A larger `exptime` is a Unix time.
const RELATIVE_MAX: i32 = 60 * 60 * 24 * 30;
/// Reading of the clock when the server starts, in seconds. As in memcached, the reading is 60
/// (memcached's update interval) plus 2. A flush stores the present reading minus one, which must
/// not be zero.
const FIRST: u64 = 62;

/// A reading of the server's clock in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Second(pub u32);

/// The second from which an item is expired. Zero means that the item does not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry(pub u32);

impl Expiry {
    /// The item does not expire.
    pub const NEVER: Self = Self(0);
    /// The item is expired, because the clock never reads less than `FIRST`.
    const PAST: Self = Self(1);

    /// Returns true if an item with this expiry is expired at `now`.
    pub fn is_over(self, now: Second) -> bool {
        self != Self::NEVER && self.0 <= now.0
    }
}

/// Conversion between Unix time and the server's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Unix time at which the clock reads zero.
    zero: u64,
}

impl Clock {
    /// Returns the clock of a server that starts at the Unix time `start`.
    pub fn new(start: u64) -> Self {
        Self {
            zero: start.saturating_sub(FIRST),
        }
    }

    /// Returns the reading of the clock at a Unix time. A time before the start reads as the start.
    pub fn second(&self, unix: u64) -> Second {
        let reading = unix.saturating_sub(self.zero).max(FIRST);
        Second(u32::try_from(reading).unwrap_or(u32::MAX))
    }

    /// Returns the number of seconds since the start of the server.
    pub fn uptime(&self, now: Second) -> u64 {
        u64::from(now.0).saturating_sub(FIRST)
    }

    /// Returns the Unix time of a reading of the clock.
    pub fn unix(&self, at: Second) -> u64 {
        self.zero + u64::from(at.0)
    }

    /// Returns the expiry for the argument `exptime` of a command, in seconds. Zero means never,
    /// and a negative `exptime` is in the past. A positive `exptime` of up to 30 days is relative
    /// to `now`. A larger `exptime` is a Unix time.
    pub fn expiry(&self, now: Second, exptime: i32) -> Expiry {
        match exptime {
            ..0 => Expiry::PAST,
            0 => Expiry::NEVER,
            1..=RELATIVE_MAX => Expiry(now.0.saturating_add(exptime as u32)),
            _ => match (exptime as u64).checked_sub(self.zero) {
                None | Some(0) => Expiry::PAST,
                Some(second) => Expiry(second as u32),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_relative_up_to_thirty_days() {
        let start = 1_700_000_000;
        let clock = Clock::new(start);
        let now = clock.second(start + 100);
        assert_eq!(now, Second(162));
        assert_eq!((clock.uptime(now), clock.unix(now)), (100, start + 100));
        let cases = [
            (0, Expiry::NEVER),
            (1, Expiry(163)),
            (RELATIVE_MAX, Expiry(162 + RELATIVE_MAX as u32)),
            (RELATIVE_MAX + 1, Expiry::PAST),
            (-1, Expiry::PAST),
            (i32::MIN, Expiry::PAST),
            (1_700_000_000, Expiry(62)),
            (1_700_000_101, Expiry(163)),
            (1_699_000_000, Expiry::PAST),
        ];
        for (exptime, expiry) in cases {
            assert_eq!(clock.expiry(now, exptime), expiry, "{exptime}");
        }
        assert!(Expiry(162).is_over(now) && !Expiry(163).is_over(now));
        assert!(!Expiry::NEVER.is_over(now));
        // A clock that was set back to the epoch still reads the start.
        assert_eq!(clock.second(0), Second(62));
    }
}
