//! The round-trip time as Linux measures it: a sample for each acknowledgment. The engine times one
//! segment per flight, which is enough for its timeouts; the sizes of Linux' packets follow from
//! the pacing rate, and that from this.

use std::collections::VecDeque;

use tidelane_engine::{Duration, Instant};

/// Packets that are timed at most.
const PACKETS_MAX: usize = 1024;

/// The packets of one flow that are not acknowledged, and what came of the others.
#[derive(Debug, Default)]
pub struct RoundTrips {
    /// Ends in the stream, ascending, and when they left.
    sent: VecDeque<(u32, Instant)>,
    srtt: Option<Duration>,
}

impl RoundTrips {
    /// A packet that ends at `end` left. One that was sent before ends all measurements: its
    /// acknowledgment may be for either (RFC 6298 §3).
    pub fn sent(&mut self, end: u32, now: Instant) {
        let newest = self.sent.back();
        if newest.is_some_and(|(last, _)| (end.wrapping_sub(*last) as i32) <= 0) {
            self.sent.clear();
        } else if self.sent.len() < PACKETS_MAX {
            self.sent.push_back((end, now));
        }
    }

    /// All before `acked` is acknowledged: a sample from the oldest of it. `first` is the smoothed
    /// time before the first sample here.
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
            // RFC 6298 (2.3): an eighth of the difference.
            self.srtt = Some(Duration((srtt.0 * 7 + sample.0) / 8));
        }
    }

    /// The smoothed time, once something was measured.
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
        // Sent again: nothing is known of what is in flight.
        trips.sent(3000, at(30));
        trips.acknowledged(3000, at(90), first);
        assert_eq!(trips.srtt(), Some(Duration::from_millis(9)));
    }
}
