//! Frames that came and found no room: whether that was lately.

use tidelane_time::{Duration, Instant};

/// What was lost longer ago than this explains nothing that is missing now.
const RECENT: Duration = Duration::from_secs(1);

/// What was seen of the ports' count when it was looked at last.
#[derive(Debug, Default)]
pub struct Overruns {
    count: u64,
    /// Until when the last of them are recent.
    until: Option<Instant>,
}

impl Overruns {
    /// Whether some of the `count` frames that were lost ever were lost lately, or since this was
    /// asked before.
    pub fn are_recent(&mut self, count: u64, now: Instant) -> bool {
        if count != self.count {
            self.count = count;
            self.until = Some(now + RECENT);
        }
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_recent_for_a_while() {
        let mut overruns = Overruns::default();
        let at = |ms| Instant(ms * 1_000_000);
        let asked = [
            (0, 1),
            (3, 2),
            (3, 1001),
            (3, 1002),
            (4, 5000),
            (4, 5999),
            (4, 6000),
        ];
        let recent = asked.map(|(count, ms)| overruns.are_recent(count, at(ms)));
        assert_eq!(recent, [false, true, true, false, true, true, false]);
    }
}
