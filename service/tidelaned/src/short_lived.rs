//! Listeners of the Tidelane service whose program forks for each connection.
//!
//! A child that takes over a connection costs the control thread more than a whole short connection
//! costs the kernel's stack: see `docs/design/fork.md`. A program with long-lived children gains by
//! accelerated connections. A program with short-lived children does not gain. [`ShortLived`]
//! distinguishes the two kinds of programs by the lifetimes of their children.

use tidelane_time::{Duration, Instant};

/// Lifetime below which a child counts as short-lived. The lifetime begins when the child takes
/// over its first connection.
const SHORT: Duration = Duration::from_secs(1);
/// Time in which the leaky bucket [`ShortLived`] forgets one short-lived child. A listener with at
/// most one short-lived child in this time stays with the service.
const OUTWEIGHED_AFTER: Duration = Duration::from_secs(1);
/// Number of short-lived children, minus the forgotten children, at which the kernel gets the
/// listener's new connections.
const SHORT_LIVED_MAX: u64 = 16;

/// A leaky bucket that counts the short-lived children which took over connections of one listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortLived {
    /// Time from `at` until the bucket has forgotten all children.
    level: Duration,
    /// The time at which `level` was computed.
    at: Instant,
}

impl ShortLived {
    /// Records that a child ended at `now`. `lived` is the time since the child took over its first
    /// connection. Returns true if the kernel has to get the listener's new connections.
    pub fn child_ended(&mut self, now: Instant, lived: Duration) -> bool {
        let passed = now - self.at;
        self.at = now;
        self.level = Duration(self.level.0.saturating_sub(passed.0));
        if lived < SHORT {
            self.level = Duration(self.level.0 + OUTWEIGHED_AFTER.0);
        }
        self.level.0 > (SHORT_LIVED_MAX - 1) * OUTWEIGHED_AFTER.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_millis(20);

    /// Lets up to 1000 children with the lifetime `lived` end, at intervals of `pace`. Returns the
    /// number of children after which the kernel gets the listener's new connections. Returns
    /// `None` if the service keeps the listener.
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
    fn rare_or_long_lived_children_are_not_too_many() {
        assert_eq!(leaves_with(Duration::from_secs(1), BRIEF), None);
        assert_eq!(leaves_with(Duration::from_millis(1), SHORT), None);
    }
}
