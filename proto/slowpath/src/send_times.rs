//! Transmission times of the data in flight, for a flow (connection) that has no scoreboard. A
//! scoreboard records every transmission.
//!
//! A record per transmission would cost time even on flows without losses. Instead, this table has
//! one entry per eighth of a round trip (RFC 8985 §4). An entry has the time of the most recent
//! transmission in its eighth of a round trip. The segment that is timed for an RTT sample (RFC
//! 6298 §3) has its exact time. Other segments may appear younger than they are, by at most an
//! eighth of a round trip. Two kinds of segments may appear much younger: segments that were sent
//! before the oldest entry, and segments that were sent while the flow had a scoreboard.
//!
//! The table also records where segments begin, as long as consecutive transmissions have the same
//! segment size.

use tidelane_flow::{FlowState, flags};
use tidelane_wire::SeqNumber;

/// Number of entries, which together span at least two round trips. Segments that were sent earlier
/// get the time of the oldest entry.
const SEND_TIMES_MAX: usize = 16;
/// Shift from `srtt`, in units of 1/8 us, to an eighth of a round trip in us.
const PART_OF_SRTT: u32 = 6;

/// SND.NXT after a transmission, and the time of the transmission in us modulo 2^32.
type SendTime = (SeqNumber, u32);

/// A range of data in flight that was sent at one time. The range begins where the range before it
/// ends, and the first range begins at SND.UNA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// End of the range.
    pub end: SeqNumber,
    /// Time of the transmission in us modulo 2^32.
    pub sent_us: u32,
    /// Size in bytes of the segments in the range, of which the last may be shorter; zero if
    /// unknown.
    pub segment: u16,
}

/// Segment boundaries of the most recent transmissions. From `start` to `end` a segment begins
/// every `size` bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Boundaries {
    start: SeqNumber,
    end: SeqNumber,
    size: u16,
    /// End of the earlier transmissions, whose boundaries are not stored.
    forgotten: SeqNumber,
}

impl Boundaries {
    /// Records segments of `size` bytes from `start` to `end`, of which the last one may be
    /// shorter.
    fn note(&mut self, start: SeqNumber, end: SeqNumber, size: u16) {
        let len = self.end.distance_from(self.start);
        let continues = start == self.end && size == self.size && len.is_multiple_of(size.into());
        if start == end {
            return;
        }
        if !continues {
            self.forgotten = self.end;
            (self.start, self.size) = (start, size);
        }
        self.end = end;
    }

    /// Forgets all boundaries before `end`.
    fn forget(&mut self, end: SeqNumber) {
        *self = Self {
            start: end,
            end,
            size: 0,
            forgotten: end,
        };
    }
}

/// Transmission times of a flow: a ring of entries, and the segment boundaries of the most recent
/// transmissions.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendTimes {
    /// Ring of entries.
    send_times: [SendTime; SEND_TIMES_MAX],
    /// Index of the most recent entry.
    latest: usize,
    /// Start of the most recent entry's span, in us modulo 2^32.
    begun_us: u32,
    /// Segment boundaries of the most recent transmissions.
    boundaries: Boundaries,
}

impl SendTimes {
    /// Records a transmission from `start` to SND.NXT in segments of `size` bytes, of which the
    /// last may be shorter.
    pub fn note(&mut self, hot: &FlowState, start: SeqNumber, size: u16, now_us: u32) {
        // `cut` derives the boundaries of the timed segment from `rtt_seq`, the end of this
        // segment. Do not record these boundaries here, because the fast path does not record a
        // transmission that ends with the timed segment.
        if hot.rtt_seq != hot.snd_nxt {
            self.boundaries.note(start, hot.snd_nxt, size);
        }
        self.note_time(hot, now_us);
    }

    /// Gives the time `now_us` to the data in flight that is beyond all earlier entries, and
    /// forgets the segment sizes.
    pub fn note_all(&mut self, hot: &FlowState, now_us: u32) {
        self.boundaries.forget(hot.snd_nxt);
        self.note_time(hot, now_us);
    }

    /// Stores the present SND.NXT and `now_us` in the most recent entry. If the span of this entry
    /// is over, begins a new entry first.
    fn note_time(&mut self, hot: &FlowState, now_us: u32) {
        let part_us = hot.srtt >> PART_OF_SRTT;
        if now_us.wrapping_sub(self.begun_us) > part_us {
            self.latest = (self.latest + 1) % SEND_TIMES_MAX;
            self.begun_us = now_us;
        }
        self.send_times[self.latest] = (hot.snd_nxt, now_us);
    }

    /// Returns the ranges of the data in flight in sequence order, with the timed segment and the
    /// known segment sizes. The last range ends at SND.NXT.
    pub fn in_flight(&self, hot: &FlowState, now_us: u32) -> Vec<Sent> {
        self.cut(hot, &self.times(hot, now_us))
    }

    /// Splits the ranges of `times` at the start and at the end of the known segment boundaries,
    /// and at the end of a segment that SND.UNA divides.
    fn cut(&self, hot: &FlowState, times: &[SendTime]) -> Vec<Sent> {
        // All offsets are from SND.UNA.
        let (una, flight) = (hot.snd_una, hot.flight_size());
        let offset = |seq: SeqNumber| seq.distance_from(una);
        let in_flight = |seq: SeqNumber| (1..=flight).contains(&offset(seq));
        let known = &self.boundaries;
        let size = u32::from(known.size);
        let known_end = match size > 0 && in_flight(known.end) {
            true => offset(known.end),
            false => 0,
        };
        let begins_later = offset(known.start) < known_end;
        let known_start = if begins_later { offset(known.start) } else { 0 };
        // SND.UNA may lie within a segment.
        let part = match known_end > 0 && !begins_later {
            true => (size - una.distance_from(known.start) % size) % size,
            false => 0,
        };
        let first = (known_start + part).min(known_end);
        let timed = hot.has(flags::RTT_TIMING) && !in_flight(known.forgotten);
        let mut ranges = Vec::new();
        let mut from = 0;
        for (end, sent_us) in times {
            for stop in [known_start, first, known_end, offset(*end)] {
                if stop <= from || stop > offset(*end) {
                    continue;
                }
                let len = stop - from;
                let within = from >= known_start && stop <= known_end;
                // The timed segment has an entry of its own, so the data from the entry before it
                // up to its end is one segment.
                let single = timed && hot.rtt_seq == una.add(stop) && len <= hot.mss.into();
                let segment = match (within, single) {
                    (true, _) => known.size,
                    (false, true) => len as u16,
                    (false, false) => 0,
                };
                let (end, sent_us) = (una.add(stop), *sent_us);
                ranges.push(Sent {
                    end,
                    sent_us,
                    segment,
                });
                from = stop;
            }
        }
        ranges
    }

    /// Returns the entries for the data in flight in sequence order, with an entry for the timed
    /// segment. The last entry ends at SND.NXT.
    fn times(&self, hot: &FlowState, now_us: u32) -> Vec<SendTime> {
        let timed = hot.has(flags::RTT_TIMING);
        let timed = timed.then_some((hot.rtt_seq, hot.rtt_stamp));
        let age = |entry: &SendTime| now_us.wrapping_sub(entry.1);
        // Data cannot stay in flight for AGE_US_MAX without a retransmission timeout. The sequence
        // number of an older entry is therefore from before a wrap.
        let believed = |entry: &SendTime| {
            let ahead = entry.0.distance_from(hot.snd_una);
            ahead > 0 && ahead <= hot.flight_size() && age(entry) < AGE_US_MAX
        };
        let mut send_times: Vec<SendTime> = self.send_times.into_iter().chain(timed).collect();
        send_times.retain(believed);
        send_times.sort_by_key(|entry| entry.0.distance_from(hot.snd_una));
        // A higher sequence number cannot have been sent earlier.
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

/// Age in us from which entries are ignored: twice the default RTO_MAX of 120 s.
const AGE_US_MAX: u32 = 240_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a flow that has sent and timed 1,000 bytes, on a path with an RTT of 8 ms.
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
            send_times.note(&hot, hot.snd_nxt.sub(100), 1000, 50 + now);
        }
        let found = send_times.times(&hot, 5_000);
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
        assert!(send_times.times(&hot, 5_000).len() < found.len());
    }

    #[test]
    fn entries_from_before_a_wrap_are_ignored() {
        let (mut hot, mut send_times) = (flow(), SendTimes::default());
        hot.snd_nxt = SeqNumber(2000);
        send_times.note(&hot, SeqNumber(1000), 1000, 9_000);
        let later = 9_000 + AGE_US_MAX;
        hot.rtt_stamp = later;
        let found = send_times.times(&hot, later + 10);
        assert_eq!(found, [(SeqNumber(1000), later), (SeqNumber(2000), later)]);
    }

    #[test]
    fn the_oldest_entry_stands_for_earlier_transmissions() {
        let (mut hot, mut send_times) = (flow(), SendTimes::default());
        hot.clear(flags::RTT_TIMING);
        for round in 1..=20 {
            hot.snd_nxt = hot.snd_nxt.add(1000);
            send_times.note(&hot, hot.snd_nxt.sub(1000), 1000, round * 2_000);
        }
        let found = send_times.times(&hot, 41_000);
        assert_eq!(found.len(), SEND_TIMES_MAX);
        assert_eq!(found[0], (SeqNumber(6000), 10_000));
    }
    /// Returns the ends and segment sizes of the ranges in flight.
    fn sizes(send_times: &SendTimes, hot: &FlowState) -> Vec<(u32, u16)> {
        let ranges = send_times.in_flight(hot, 5_000);
        ranges
            .iter()
            .map(|sent| (sent.end.0, sent.segment))
            .collect()
    }

    #[test]
    fn segment_boundaries_follow_the_transmissions() {
        let (mut hot, mut send_times) = (flow(), SendTimes::default());
        hot.mss = 1000;
        // Only the timed segment is in flight, and the table has no entry.
        assert_eq!(sizes(&send_times, &hot), [(1000, 1000)]);
        hot.snd_nxt = SeqNumber(3500);
        send_times.note(&hot, SeqNumber(1000), 1000, 3_000);
        assert_eq!(sizes(&send_times, &hot), [(1000, 1000), (3500, 1000)]);
        // An ACK of part of a segment moves no boundary.
        hot.clear(flags::RTT_TIMING);
        hot.snd_una = SeqNumber(1300);
        assert_eq!(sizes(&send_times, &hot), [(2000, 1000), (3500, 1000)]);
        // The boundaries change after a short segment, and when the segment size changes.
        hot.snd_nxt = SeqNumber(5500);
        send_times.note(&hot, SeqNumber(3500), 1000, 3_100);
        assert_eq!(sizes(&send_times, &hot), [(3500, 0), (5500, 1000)]);
        hot.snd_nxt = SeqNumber(6700);
        send_times.note(&hot, SeqNumber(5500), 1200, 3_200);
        assert_eq!(sizes(&send_times, &hot), [(5500, 0), (6700, 1200)]);
        send_times.note_all(&hot, 3_300);
        assert_eq!(sizes(&send_times, &hot), [(6700, 0)]);
    }

    #[test]
    fn small_segments_are_not_taken_for_a_large_one() {
        let (mut hot, mut send_times) = (flow(), SendTimes::default());
        hot.mss = 1000;
        hot.clear(flags::RTT_TIMING);
        hot.snd_nxt = SeqNumber(100);
        send_times.note(&hot, SeqNumber(0), 1000, 3_000);
        // The next segment is timed and has no entry. The segment after it has an entry.
        hot.set(flags::RTT_TIMING);
        hot.rtt_seq = SeqNumber(200);
        hot.snd_nxt = SeqNumber(300);
        send_times.note(&hot, SeqNumber(200), 1000, 3_000);
        assert_eq!(sizes(&send_times, &hot), [(200, 0), (300, 1000)]);
    }
}
