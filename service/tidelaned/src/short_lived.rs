//! Listeners whose program forks for each connection.
//!
//! A child that takes over a connection costs the control thread more than the kernel's stack needs
//! for a short connection altogether: see "What it costs" in `docs/design/fork.md`. A program whose
//! children live for long gains by its connections; one whose children end at once is better off
//! with the kernel. [`ShortLived`] tells them apart by what its children did.

use tidelane_time::{Duration, Instant};

/// A child that ends sooner after it took its connection lived for a short time.
const SHORT: Duration = Duration::from_secs(1);
/// Each of these times outweighs a short-lived child: a listener with less of them than one in this
/// time stays.
const OUTWEIGHED_AFTER: Duration = Duration::from_secs(1);
/// Short-lived children, more than were outweighed, that make a listener the kernel's.
const CHILDREN_MAX: u64 = 16;

/// Short-lived children that had connections of a listener, as a bucket that leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortLived {
    /// Time that outweighs them.
    level: Duration,
    /// When that was so.
    at: Instant,
}

impl ShortLived {
    /// A child that took a connection has ended, so long after. Returns true if the program's
    /// connections are to be the kernel's.
    pub fn child_ended(&mut self, now: Instant, lived: Duration) -> bool {
        let passed = now - self.at;
        self.at = now;
        self.level = Duration(self.level.0.saturating_sub(passed.0));
        if lived < SHORT {
            self.level = Duration(self.level.0 + OUTWEIGHED_AFTER.0);
        }
        self.level.0 > (CHILDREN_MAX - 1) * OUTWEIGHED_AFTER.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_millis(20);

    /// The number of the child that makes the listener the kernel's, of 1000 that end at this pace.
    fn leaves_with(pace: Duration, lived: Duration) -> Option<u32> {
        let mut children = ShortLived::default();
        let mut now = Instant(5_000_000_000);
        (1..=1000).find(|_| {
            now += pace;
            children.child_ended(now, lived)
        })
    }

    #[test]
    fn many_short_lived_children_are_too_many() {
        assert_eq!(leaves_with(Duration::from_millis(1), BRIEF), Some(16));
        assert_eq!(leaves_with(Duration::from_millis(100), BRIEF), Some(17));
        assert_eq!(leaves_with(Duration::from_millis(500), BRIEF), Some(30));
    }

    #[test]
    fn rare_ones_and_long_lived_ones_are_not() {
        assert_eq!(leaves_with(Duration::from_secs(1), BRIEF), None);
        assert_eq!(leaves_with(Duration::from_millis(1), SHORT), None);
    }
}
