//! Transmission times of the data in flight, kept while there is no scoreboard.
//!
//! A record per transmission would cost time on every flow, also on those without losses. This
//! table keeps one entry per eighth of a round trip instead, with the time of the last transmission
//! in that span (RFC 8985 §4). The timed segment of each window (RFC 6298 §3) has its exact time.
//! All other segments appear younger than they are, by at most an eighth of a round trip.

use tidelane_flow::{FlowState, flags};
use tidelane_wire::SeqNumber;

/// Number of entries, which cover two round trips. Older segments get the time of the oldest entry.
const SEND_TIMES_MAX: usize = 16;
/// Shift from `srtt`, in units of 1/8 us, to an eighth of a round trip in us.
const PART_OF_SRTT: u32 = 6;

/// SND.NXT after a transmission, and the time of the transmission in us modulo 2^32.
pub type SendTime = (SeqNumber, u32);

/// Transmission times of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendTimes {
    /// Ring of entries.
    send_times: [SendTime; SEND_TIMES_MAX],
    /// Index of the latest entry.
    latest: usize,
    /// Start of the latest entry's span.
    begun_us: u32,
}

impl SendTimes {
    /// Records a transmission that ended at SND.NXT, behind other data in flight.
    pub fn note(&mut self, hot: &FlowState, now_us: u32) {
        let part_us = hot.srtt >> PART_OF_SRTT;
        if now_us.wrapping_sub(self.begun_us) > part_us {
            self.latest = (self.latest + 1) % SEND_TIMES_MAX;
            self.begun_us = now_us;
        }
        self.send_times[self.latest] = (hot.snd_nxt, now_us);
    }

    /// Returns the entries for the data in flight, with that of the timed segment, in sequence
    /// order. The last one ends at SND.NXT.
    pub fn in_flight(&self, hot: &FlowState, now_us: u32) -> Vec<SendTime> {
        let timed = hot.has(flags::RTT_TIMING);
        let timed = timed.then_some((hot.rtt_seq, hot.rtt_stamp));
        let age = |entry: &SendTime| now_us.wrapping_sub(entry.1);
        // Data that was in flight for longer has timed out, so an older entry belongs to numbers
        // before a wrap.
        let believed = |entry: &SendTime| {
            let ahead = entry.0.distance_from(hot.snd_una);
            ahead > 0 && ahead <= hot.flight_size() && age(entry) < AGE_US_MAX
        };
        let mut send_times: Vec<SendTime> = self.send_times.into_iter().chain(timed).collect();
        send_times.retain(believed);
        send_times.sort_by_key(|entry| entry.0.distance_from(hot.snd_una));
        // A higher sequence number was first sent later.
        let mut youngest = u32::MAX;
        for entry in &mut send_times {
            youngest = youngest.min(age(entry));
            entry.1 = now_us.wrapping_sub(youngest);
        }
        let last = send_times
            .last()
            .map_or(now_us.wrapping_sub(hot.srtt >> 3), |entry| entry.1);
        if send_times.last().is_none_or(|entry| entry.0 != hot.snd_nxt) {
            send_times.push((hot.snd_nxt, last));
        }
        send_times.dedup_by(|next, this| next.0 == this.0);
        send_times
    }
}

/// Twice the longest RTO.
const AGE_US_MAX: u32 = 240_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow with an RTT of 8 ms, which has sent and timed 1,000 bytes at the start.
    fn flow() -> FlowState {
        FlowState {
            snd_nxt: SeqNumber(1000),
            srtt: 8_000 << 3,
            flags: flags::RTT_TIMING,
            rtt_seq: SeqNumber(1000),
            rtt_stamp: 50,
            ..FlowState::default()
        }
    }

    #[test]
    fn transmissions_within_an_eighth_of_a_round_trip_share_an_entry() {
        let (mut hot, mut send_times) = (flow(), SendTimes::default());
        for now in (500..4500).step_by(250) {
            hot.snd_nxt = hot.snd_nxt.add(100);
            send_times.note(&hot, 50 + now);
        }
        let found = send_times.in_flight(&hot, 5_000);
        assert_eq!(found.first(), Some(&(SeqNumber(1000), 50)));
        assert_eq!(found.last(), Some(&(SeqNumber(2600), 4_300)));
        assert_eq!(found.len(), 5, "{found:?}");
        for pair in found[1..].windows(2) {
            assert_eq!(
                pair[1].0.distance_from(pair[0].0),
                500 - 100 * u32::from(pair[1].0.0 == 2600)
            );
        }
        // Entries of acknowledged data are left out.
        hot.snd_una = SeqNumber(1500);
        assert!(send_times.in_flight(&hot, 5_000).len() < found.len());
    }

    #[test]
    fn entries_from_before_a_wrap_are_ignored() {
        let (mut hot, mut send_times) = (flow(), SendTimes::default());
        hot.snd_nxt = SeqNumber(2000);
        send_times.note(&hot, 9_000);
        let later = 9_000 + AGE_US_MAX;
        hot.rtt_stamp = later;
        let found = send_times.in_flight(&hot, later + 10);
        assert_eq!(found, [(SeqNumber(1000), later), (SeqNumber(2000), later)]);
    }

    #[test]
    fn the_oldest_entry_stands_for_earlier_transmissions() {
        let (mut hot, mut send_times) = (flow(), SendTimes::default());
        hot.clear(flags::RTT_TIMING);
        for round in 1..=20 {
            hot.snd_nxt = hot.snd_nxt.add(1000);
            send_times.note(&hot, round * 2_000);
        }
        let found = send_times.in_flight(&hot, 41_000);
        assert_eq!(found.len(), SEND_TIMES_MAX);
        assert_eq!(found[0], (SeqNumber(6000), 10_000));
    }
}
