//! An open port: its packet rings, counters and place in the queues of [`Ports`](crate::Ports).

use crate::{check::SendRefusal, egress::copy_to, port_counters::PortCounters, port_end::PortEnd};

/// An open port.
pub struct Port<P> {
    /// The mux's end of the port's packet rings.
    pub io: P,
    /// Counters of the port.
    pub counters: PortCounters,
    /// True if the port got frames since the last flush.
    pub queued: bool,
    /// True if the port waits for a turn.
    pub in_turns: bool,
}

impl<P: PortEnd> Port<P> {
    /// Makes a port without packets. `io` is the mux's end of the port's packet rings.
    pub fn new(io: P) -> Self {
        Self {
            io,
            counters: PortCounters::default(),
            queued: false,
            in_turns: false,
        }
    }

    /// Copies a received packet to the port's packet ring. Returns true if the port has to be
    /// flushed and is not queued for it yet.
    #[inline]
    pub fn give(&mut self, frame: &[u8]) -> bool {
        if copy_to(&mut self.io, frame) {
            self.counters.received += 1;
        } else {
            self.counters.overruns += 1;
        }
        !std::mem::replace(&mut self.queued, true)
    }

    /// Counts a packet that is not sent.
    #[cold]
    pub fn count_refused(&mut self, refusal: SendRefusal) {
        *self.counters.refused.entry(refusal).or_default() += 1;
    }
}
