//! The smoothed round-trip time (RTT) of a flow (connection), as Linux measures it: each ACK that
//! covers a timed packet gives a sample.
//!
//! The engine (Tidelane's TCP) may time only one segment per round trip, so that its smoothed RTT
//! may differ from the smoothed RTT of Linux. Linux derives the pacing rate from its smoothed RTT,
//! and the size of packets from the pacing rate ([`crate::offload`]).

use std::collections::VecDeque;

use tidelane_engine::{Duration, Instant};

/// Largest number of packets of a flow that are timed at the same time. Further packets are not
/// timed.
const PACKETS_MAX: usize = 1024;

/// The RTT measurement of one flow: the packets that are timed, and the smoothed RTT.
#[derive(Debug, Default)]
pub struct RoundTrips {
    /// The timed packets. Each entry has the stream position after the packet's last byte, and the
    /// time of sending. The positions are ascending.
    sent: VecDeque<(u32, Instant)>,
    /// The smoothed RTT. `None` before the first sample.
    srtt: Option<Duration>,
}

impl RoundTrips {
    /// Records that a packet was sent at `now`. `end` is the stream position after the last byte of
    /// the packet.
    ///
    /// A packet that ends at or before the end of the newest timed packet is a retransmission. All
    /// timed packets are then discarded, because an ACK may acknowledge either transmission (Karn's
    /// algorithm, RFC 6298 §3).
    pub fn sent(&mut self, end: u32, now: Instant) {
        let newest = self.sent.back();
        if newest.is_some_and(|(last, _)| (end.wrapping_sub(*last) as i32) <= 0) {
            self.sent.clear();
        } else if self.sent.len() < PACKETS_MAX {
            self.sent.push_back((end, now));
        }
    }

    /// Takes an RTT sample from an ACK that arrives at `now`. The ACK covers all bytes before the
    /// stream position `acked`. The sample is the RTT of the oldest timed packet that the ACK
    /// covers. An ACK that covers no timed packet gives no sample. `first` is the smoothed RTT to
    /// assume before the first sample.
    pub fn acknowledged(&mut self, acked: u32, now: Instant, first: Duration) {
        let mut oldest = None;
        while let Some((end, at)) = self.sent.front().copied()
            && (acked.wrapping_sub(end) as i32) >= 0
        {
            oldest.get_or_insert(at);
            self.sent.pop_front();
        }
        if let Some(at) = oldest {
            let srtt = self.srtt.unwrap_or(first);
            let sample = now.since(at);
            // RFC 6298 (2.3): alpha is 1/8.
            self.srtt = Some(Duration((srtt.0 * 7 + sample.0) / 8));
        }
    }

    /// Returns the smoothed RTT, or `None` before the first sample.
    pub fn srtt(&self) -> Option<Duration> {
        self.srtt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_acknowledgment_gives_a_sample_of_the_oldest_packet() {
        let at = Instant::from_millis;
        let mut trips = RoundTrips::default();
        for end in [1000, 2000, 3000] {
            trips.sent(end, at(10));
        }
        let first = Duration::from_millis(8);
        // An ACK before the end of the first packet gives no sample.
        trips.acknowledged(500, at(11), first);
        assert_eq!(trips.srtt(), None);
        trips.acknowledged(2000, at(26), first);
        assert_eq!(trips.srtt(), Some(Duration::from_millis(9)));
        // A retransmission discards the timed packets, so that the next ACK gives no sample.
        trips.sent(3000, at(30));
        trips.acknowledged(3000, at(90), first);
        assert_eq!(trips.srtt(), Some(Duration::from_millis(9)));
    }
}
