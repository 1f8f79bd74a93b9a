//! Times of items. The caller gives the present time as Unix time.
//!
//! Items hold 32-bit seconds of the server's own clock, which starts shortly before the server.
//! Zero therefore never is the present time, and stands for "never".

/// Unix times of items, in seconds, from which `exptime` is absolute: 30 days.
const RELATIVE_MAX: i32 = 60 * 60 * 24 * 30;
/// Reading of the clock when the server starts. As in memcached, a delayed flush and an age may
/// lie a minute before the start.
const FIRST: u64 = 62;

/// A second of the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Second(pub u32);

/// The second from which an item is expired; zero for an item that does not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry(pub u32);

impl Expiry {
    /// The item does not expire.
    pub const NEVER: Self = Self(0);
    /// The item is expired since the start of the server.
    const PAST: Self = Self(1);

    /// Returns true if the item is expired at `now`.
    pub fn is_over(self, now: Second) -> bool {
        self != Self::NEVER && self.0 <= now.0
    }
}

/// The relation of Unix time and the server's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Unix time at which the clock reads zero.
    zero: u64,
}

impl Clock {
    /// Returns the clock of a server that starts at this Unix time.
    pub fn new(start: u64) -> Self {
        Self {
            zero: start.saturating_sub(FIRST),
        }
    }

    /// Returns the reading of the clock at this Unix time. Times before the start are the start.
    pub fn second(&self, unix: u64) -> Second {
        let reading = unix.saturating_sub(self.zero).max(FIRST);
        Second(u32::try_from(reading).unwrap_or(u32::MAX))
    }

    /// Returns the number of seconds since the start.
    pub fn uptime(&self, now: Second) -> u64 {
        u64::from(now.0).saturating_sub(FIRST)
    }

    /// Returns the Unix time of a second.
    pub fn unix(&self, at: Second) -> u64 {
        self.zero + u64::from(at.0)
    }

    /// Returns the expiry for the argument `exptime` of a command: zero is never, a negative time
    /// is past, up to 30 days are relative, and larger times are Unix times.
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
        // A clock that was set back does not reach zero.
        assert_eq!(clock.second(0), Second(62));
    }
}
