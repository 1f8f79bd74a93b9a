//! The hold (a short delay) of late timers. A late timer means that the core's thread got its CPU
//! late. The kernel thread that delivers the peers' ACKs was then probably late, too. The hold lets
//! this kernel thread run before a timer retransmits.

use tidelane_time::{Duration, Instant};

/// A timer counts as late if the present time is at least this long after its due time.
const LATE_MIN: Duration = Duration::from_millis(2);
/// Limit of the time for which the host holds late timers back.
const HOLD_MAX: Duration = Duration::from_millis(10);

/// The most recent hold of the engine's timers.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimerHold {
    /// The due time of the timers in the most recent hold, and the time at which this hold ends.
    /// `None` before the first hold.
    held: Option<(Instant, Instant)>,
}

impl TimerHold {
    /// Returns true if the host holds back the timers that are due at `due`. Returns false if `due`
    /// is `None`, because no timer runs. Begins a hold if these timers are late and have not been
    /// held yet. The hold lasts for the time by which the timers are late, but at most for
    /// [`HOLD_MAX`].
    #[cold]
    pub fn holds(&mut self, now: Instant, due: Option<Instant>) -> bool {
        let Some(due) = due else {
            return false;
        };
        match self.held {
            Some((held, until)) if held == due => now < until,
            _ if now - due < LATE_MIN => false,
            _ => {
                self.held = Some((due, now + (now - due).min(HOLD_MAX)));
                true
            }
        }
    }

    /// Returns the time at which the timers with the due time `due` run. If the host holds the
    /// timers back, this time is the end of the hold.
    pub fn run_time(&self, due: Instant) -> Instant {
        match self.held {
            Some((held, until)) if held == due => until,
            _ => due,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_timer_waits_once_and_for_a_bounded_time() {
        let mut hold = TimerHold::default();
        let due = Instant(0) + Duration::from_secs(1);
        assert!(!hold.holds(due, None));
        assert!(!hold.holds(due + Duration::from_millis(1), Some(due)));
        let late = due + Duration::from_millis(4);
        assert!(hold.holds(late, Some(due)));
        let end = late + Duration::from_millis(4);
        assert_eq!(hold.run_time(due), end);
        assert!(!hold.holds(end, Some(due)));
        let next = end + Duration::from_secs(1);
        assert_eq!(hold.run_time(next), next);
        assert!(hold.holds(next + Duration::from_secs(9), Some(next)));
        let bound = next + Duration::from_secs(9) + HOLD_MAX;
        assert_eq!(hold.run_time(next), bound);
    }
}
