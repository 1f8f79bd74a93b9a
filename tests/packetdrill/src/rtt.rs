//! The round-trip time as Linux measures it, with a sample for each ACK.
//!
//! The engine times one segment per flight, which is enough for its timeouts. The size of Linux'
//! packets depends on the pacing rate, and that on Linux' smoothed RTT.

use std::collections::VecDeque;

use tidelane_engine::{Duration, Instant};

/// Bound on the timed packets.
const PACKETS_MAX: usize = 1024;

/// The unacknowledged packets of a flow, and its smoothed RTT.
#[derive(Debug, Default)]
pub struct RoundTrips {
    /// Stream position of each packet's end, ascending, and its time of sending.
    sent: VecDeque<(u32, Instant)>,
    srtt: Option<Duration>,
}

impl RoundTrips {
    /// Records the sending of a packet that ends at `end`. A retransmission ends all measurements,
    /// because its ACK may be for either transmission (RFC 6298 §3).
    pub fn sent(&mut self, end: u32, now: Instant) {
        let newest = self.sent.back();
        if newest.is_some_and(|(last, _)| (end.wrapping_sub(*last) as i32) <= 0) {
            self.sent.clear();
        } else if self.sent.len() < PACKETS_MAX {
            self.sent.push_back((end, now));
        }
    }

    /// Takes a sample from the oldest packet that an ACK up to `acked` covers. `first` is the
    /// smoothed RTT before the first sample.
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

    /// Returns the smoothed RTT, once there was a sample.
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
        trips.acknowledged(500, at(11), first);
        assert_eq!(trips.srtt(), None);
        trips.acknowledged(2000, at(26), first);
        assert_eq!(trips.srtt(), Some(Duration::from_millis(9)));
        // A retransmission invalidates the measurements in flight.
        trips.sent(3000, at(30));
        trips.acknowledged(3000, at(90), first);
        assert_eq!(trips.srtt(), Some(Duration::from_millis(9)));
    }
}
