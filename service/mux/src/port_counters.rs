//! Counters of a mux port, a pair of packet rings through which a program with a TCP/IP stack of
//! its own shares the NIC.

use std::collections::BTreeMap;

use crate::check::SendRefusal;

/// Counters of the packets of one mux port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that the mux port has received.
    pub received: u64,
    /// Packets that the mux port has sent. Each segment of a GSO frame counts.
    pub sent: u64,
    /// GSO frames that the mux port has sent.
    pub gso_frames: u64,
    /// Packets for the mux port that were lost because the port's packet ring had no room, or
    /// because the packet was longer than a frame of the ring.
    pub overruns: u64,
    /// Packets in `sent` that were lost because the NIC or the host had no room.
    pub lost: u64,
    /// Number of times that the mux port's packets had to wait because of the port's rate limits.
    pub delays: u64,
    /// Packets of the mux port that the mux refused to send, by reason. A GSO frame counts once.
    pub refused: BTreeMap<SendRefusal, u64>,
}

impl PortCounters {
    /// Counts packets that the mux port has sent. `are_lost` is true if the NIC or the host had no
    /// room for the packets.
    #[inline]
    pub fn count_sent(&mut self, packets: u64, are_lost: bool) {
        self.sent += packets;
        if are_lost {
            self.lost += packets;
        }
    }

    /// Counts a packet that the mux refused to send.
    pub fn count_refused(&mut self, refusal: SendRefusal) {
        *self.refused.entry(refusal).or_default() += 1;
    }
}
