//! The decision whether a thread polls its channel before it sleeps. A channel is a set of rings
//! that this process shares with the service (the process `tidelaned`).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// Number of polls in a row without an event after which polling counts as useless. The thread of
/// the service then probably waits for a CPU, perhaps for the CPU on which this thread polls.
const FAILURES_MAX: u32 = 8;
/// While polling counts as useless, one in this many waits still polls, to find out whether events
/// arrive in time again.
const TRIAL_INTERVAL: u32 = 32;

/// The success of the most recent polls that threads of a channel made before a sleep.
#[derive(Debug)]
pub(super) struct SpinRecord {
    /// Number of waits, with a poll or without, since a poll last found an event.
    waits: AtomicU32,
}

impl SpinRecord {
    pub(super) const fn new() -> Self {
        Self {
            waits: AtomicU32::new(0),
        }
    }

    /// Returns true if the thread should poll before it sleeps. Otherwise counts a wait without a
    /// poll, and returns false.
    pub(super) fn is_promising(&self) -> bool {
        let waits = self.waits.load(Ordering::Relaxed);
        if waits < FAILURES_MAX || waits.is_multiple_of(TRIAL_INTERVAL) {
            return true;
        }
        self.waits.store(waits.wrapping_add(1), Ordering::Relaxed);
        false
    }

    /// Polls with `poll` until the time `end` in nanoseconds of CLOCK_MONOTONIC, or until `poll`
    /// returns true. Returns true if `poll` did.
    pub(super) fn spin(&self, end: u64, mut poll: impl FnMut() -> bool) -> bool {
        let mut found = false;
        while !found && sys::monotonic_ns() < end {
            for _ in 0..16 {
                sys::spin_hint();
            }
            found = poll();
        }
        self.add(found);
        found
    }

    /// Records a poll. `found` is true if the poll found an event.
    fn add(&self, found: bool) {
        let waits = match found {
            true => 0,
            false => self.waits.load(Ordering::Relaxed).wrapping_add(1),
        };
        self.waits.store(waits, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_rarely_poll_after_several_failures_until_a_poll_succeeds() {
        let record = SpinRecord::new();
        for _ in 0..FAILURES_MAX {
            assert!(record.is_promising());
            record.add(false);
        }
        let polls = (0..10 * TRIAL_INTERVAL).filter(|_| {
            let polls = record.is_promising();
            if polls {
                record.add(false);
            }
            polls
        });
        assert_eq!(polls.count(), 10);
        while !record.is_promising() {}
        record.add(true);
        assert!(record.is_promising());
    }
}
