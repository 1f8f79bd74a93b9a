//! The mux ports that wait until their rate limits let them send. A mux port is a pair of packet
//! rings through which a program with a TCP/IP stack of its own shares the NIC.

use std::collections::BTreeSet;

use tidelane_time::Instant;

use crate::claims::PortId;

/// Waiting mux ports, ordered by the time at which the wait ends.
#[derive(Debug, Default)]
pub struct Waiting(BTreeSet<(Instant, PortId)>);

impl Waiting {
    /// Returns true if no mux port waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a mux port that waits until `due`.
    pub fn add(&mut self, due: Instant, port: PortId) {
        self.0.insert((due, port));
    }

    /// Removes a mux port that waits until `due`.
    pub fn remove(&mut self, due: Instant, port: PortId) {
        self.0.remove(&(due, port));
    }

    /// Removes and returns a mux port whose wait ends by `now`. Returns `None` if there is no such
    /// port.
    pub fn pop(&mut self, now: Instant) -> Option<PortId> {
        let first = *self.0.first().filter(|(due, _)| *due <= now)?;
        self.0.remove(&first);
        Some(first.1)
    }

    /// Returns the earliest time at which a wait ends. Returns `None` if no mux port waits, or if
    /// all waits last for ever, because the rates are zero.
    pub fn next_due(&self) -> Option<Instant> {
        let (due, _) = self.0.first()?;
        (due.0 < u64::MAX).then_some(*due)
    }
}
