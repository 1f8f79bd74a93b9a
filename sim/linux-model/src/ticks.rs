//! The tick clock ("jiffies") of Linux's timers.

/// A clock with ticks of equal length. Times and durations are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    /// Length of a tick in microseconds.
    us: u64,
}

impl Ticks {
    /// Creates a clock with `hz` ticks per second.
    pub(crate) fn new(hz: u64) -> Self {
        Self {
            us: 1_000_000 / hz.clamp(1, 1_000_000),
        }
    }

    /// Returns the number of the tick at time `now`.
    pub(crate) const fn at(self, now: u64) -> u64 {
        now / self.us
    }

    /// Returns the duration of `ticks` ticks in microseconds.
    pub(crate) const fn span(self, ticks: u64) -> u64 {
        ticks * self.us
    }

    /// Returns `span` rounded up to a whole number of ticks, in microseconds.
    pub(crate) const fn round_up(self, span: u64) -> u64 {
        span.div_ceil(self.us) * self.us
    }

    /// Returns the time at which a timer of length `span` expires if it is set at `now`. Timers
    /// expire at a tick and never early. Linux's timer wheel therefore adds one tick for the
    /// current tick, of which a part has passed.
    pub(crate) const fn deadline(self, now: u64, span: u64) -> u64 {
        (now / self.us + span.div_ceil(self.us) + 1) * self.us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_expire_at_ticks_and_never_early() {
        let ticks = Ticks::new(250);
        assert_eq!(ticks.round_up(4_001), 8_000);
        for now in [0, 1, 3_999, 4_000] {
            let at = ticks.deadline(now, 4_000);
            assert!(
                at.is_multiple_of(4_000) && (4_000..=8_000).contains(&(at - now)),
                "{now}"
            );
        }
    }
}
