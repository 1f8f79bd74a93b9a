//! The ports that wait until their rate lets them send.

use std::collections::BTreeSet;

use tidelane_time::Instant;

use crate::claims::PortId;

/// Waiting ports, in the order of the times until which they wait.
#[derive(Debug, Default)]
pub struct Waiting(BTreeSet<(Instant, PortId)>);

impl Waiting {
    /// Returns true if no port waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a port that waits until `due`.
    pub fn add(&mut self, due: Instant, port: PortId) {
        self.0.insert((due, port));
    }

    /// Removes a port that waits until `due`.
    pub fn remove(&mut self, due: Instant, port: PortId) {
        self.0.remove(&(due, port));
    }

    /// Removes and returns a port that has waited until `now`.
    pub fn pop(&mut self, now: Instant) -> Option<PortId> {
        let first = *self.0.first().filter(|(due, _)| *due <= now)?;
        self.0.remove(&first);
        Some(first.1)
    }

    /// Returns the time at which a port has waited long enough. `None` if no port waits, or if all
    /// wait for ever.
    pub fn next_due(&self) -> Option<Instant> {
        let (due, _) = self.0.first()?;
        (due.0 < u64::MAX).then_some(*due)
    }
}
