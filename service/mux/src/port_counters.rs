//! Counters of a mux port, which connects a program that has its own TCP/IP stack.

use std::collections::BTreeMap;

use crate::check::SendRefusal;

/// Counters of the packets of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that the port has received.
    pub received: u64,
    /// Packets that the port has sent. Each segment of a GSO frame counts.
    pub sent: u64,
    /// GSO frames that the port has sent.
    pub gso_frames: u64,
    /// Packets for the port that were lost because the port's packet ring had no room.
    pub overruns: u64,
    /// Packets in `sent` that were lost because the NIC or the host had no room.
    pub lost: u64,
    /// Number of times that packets of the port waited for the port's rate.
    pub delays: u64,
    /// Packets of the port that the mux refused to send, by reason.
    pub refused: BTreeMap<SendRefusal, u64>,
}

impl PortCounters {
    /// Counts packets that the port has sent. `are_lost` is true if the NIC or the host had no room
    /// for the packets.
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
