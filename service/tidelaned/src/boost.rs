//! The precedence of a starved core (a polling thread). A core in the idle scheduling class may
//! wait for a long time behind programs that do not sleep. The core's watchdog (a thread that
//! observes the core) then moves the core to the real-time class for a while. The normal class
//! would not suffice: the kernel first compares the scheduling groups of two threads (cgroups, or
//! the groups that `sched_autogroup` makes), and the niceness counts only within a group.
//!
//! A core with much work could keep its CPU in the real-time class. A core that uses more than half
//! of its CPU therefore shares the CPU with the programs for the next period, in the normal class.
//! The kernel limits its own packet processing in the same way: softirqs that run for too long move
//! to ksoftirqd.

use tidelane_time::{Duration, Instant};

use crate::sys::Class;

/// Length of a period of precedence in the real-time class, and of the period in the normal class
/// that may follow.
pub const PERIOD: Duration = Duration::from_millis(100);
/// CPU time in a period of precedence. If the core uses more, it shares its CPU in the next period.
const SHARE: Duration = Duration(PERIOD.0 / 2);
/// Smallest mean length of a starved core's waits for its CPU. The waits of a core behind a program
/// that sleeps often, such as a busy server, are shorter.
const LONG_WAIT: Duration = Duration::from_millis(1);

/// The periods of precedence of a core, as the core's thread sees them.
#[derive(Debug, Default)]
pub struct Boost {
    /// The present period, or `None` while the core is in the idle class.
    period: Option<Period>,
}

/// A period in the real-time class, or the following period in the normal class.
#[derive(Debug)]
struct Period {
    end: Instant,
    /// CPU time of the core at the start of a period in the real-time class. `None` in a period in
    /// the normal class.
    used_before: Option<Duration>,
}

impl Boost {
    /// Starts a period in the real-time class. `used` is the CPU time of the core so far.
    pub fn begin(&mut self, now: Instant, used: Duration) {
        self.period = Some(Period {
            end: now + PERIOD,
            used_before: Some(used),
        });
    }

    /// Returns true if the core is in a period.
    pub fn is_in_period(&self) -> bool {
        self.period.is_some()
    }

    /// Returns the end of the present period, or `None` if the core is in no period.
    pub fn end(&self) -> Option<Instant> {
        self.period.as_ref().map(|period| period.end)
    }

    /// Returns the class to which the core moves because its period is over. Returns `None` if no
    /// period is over. `used` returns the CPU time of the core so far.
    pub fn next_class(&mut self, now: Instant, used: impl FnOnce() -> Duration) -> Option<Class> {
        let period = self.period.take_if(|period| now >= period.end)?;
        let shares = period
            .used_before
            .is_some_and(|before| used().0.saturating_sub(before.0) > SHARE.0);
        if !shares {
            return Some(Class::Idle);
        }
        self.period = Some(Period {
            end: now + PERIOD,
            used_before: None,
        });
        Some(Class::Normal)
    }
}

/// The completed waits of a thread for a CPU, as `/proc/self/task/TID/schedstat` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuWaits {
    /// Sum of the waits.
    pub time: Duration,
    /// Number of times that the thread got a CPU.
    pub count: u64,
}

impl CpuWaits {
    /// Returns true if the thread was starved between two checks. `before` has the waits at the
    /// first check, `self` has the waits at the second check, and `interval` is the time between
    /// the checks. A thread was starved if its mean wait was at least [`LONG_WAIT`], and if its
    /// waits took more than a quarter of `interval`.
    pub fn show_starvation(self, before: Self, interval: Duration) -> bool {
        let time = self.time.0.saturating_sub(before.time.0);
        let count = self.count.saturating_sub(before.count).max(1);
        time > interval.0 / 4 && time / count >= LONG_WAIT.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(7_000_000_000);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_core_with_little_work_returns_to_the_idle_class() {
        let mut boost = Boost::default();
        assert_eq!(boost.end(), None);
        boost.begin(START, ms(400));
        assert!(boost.is_in_period());
        assert_eq!(boost.end(), Some(START + PERIOD));
        assert_eq!(boost.next_class(START + ms(99), || unreachable!()), None);
        let used = ms(400) + SHARE;
        assert_eq!(boost.next_class(START + PERIOD, || used), Some(Class::Idle));
        assert!(!boost.is_in_period());
        assert_eq!(boost.next_class(START + ms(500), || used), None);
    }

    #[test]
    fn a_core_that_keeps_its_cpu_shares_the_cpu_in_every_second_period() {
        let mut boost = Boost::default();
        let mut now = START;
        let mut used = ms(0);
        for _ in 0..5 {
            boost.begin(now, used);
            now += PERIOD;
            used += PERIOD;
            assert_eq!(boost.next_class(now, || used), Some(Class::Normal));
            assert!(boost.is_in_period());
            now += PERIOD;
            used += PERIOD;
            // The kernel limits the CPU time of a thread in the normal class, so the CPU time that
            // the core has used in this period does not matter.
            assert_eq!(boost.next_class(now, || used), Some(Class::Idle));
            assert!(!boost.is_in_period());
        }
    }

    #[test]
    fn few_long_waits_are_starvation_but_many_short_waits_are_not() {
        let interval = ms(4);
        let before = CpuWaits {
            time: ms(900),
            count: 1_000,
        };
        let after = |time, count| CpuWaits {
            time: before.time + time,
            count: before.count + count,
        };
        assert!(after(ms(3), 1).show_starvation(before, interval));
        assert!(after(ms(3), 3).show_starvation(before, interval));
        // The waits behind a busy server that sleeps after each request.
        assert!(!after(ms(3), 60).show_starvation(before, interval));
        assert!(!after(ms(1), 1).show_starvation(before, interval));
        assert!(!before.show_starvation(before, interval));
        // A wait of several intervals, which counts only when it has ended.
        assert!(after(ms(30), 1).show_starvation(before, interval));
    }
}
