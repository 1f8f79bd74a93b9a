//! The coarse clock of Linux' timers.

/// Ticks ("jiffies") of equal length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    us: u64,
}

impl Ticks {
    /// `hz` in a second.
    pub(crate) fn new(hz: u64) -> Self {
        Self {
            us: 1_000_000 / hz.clamp(1, 1_000_000),
        }
    }

    /// The tick of a time.
    pub(crate) const fn at(self, now: u64) -> u64 {
        now / self.us
    }

    /// What `ticks` last, in microseconds.
    pub(crate) const fn span(self, ticks: u64) -> u64 {
        ticks * self.us
    }

    /// `span` in whole ticks, rounded up; in microseconds.
    pub(crate) const fn round_up(self, span: u64) -> u64 {
        span.div_ceil(self.us) * self.us
    }

    /// When a timer for `span` expires: at a tick, and never early, for which the timer wheel adds
    /// one to the tick that has begun.
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
