//! The SACK scoreboard records the unacknowledged transmissions of one flow (connection). Each
//! record covers a range of sequence numbers that was sent at one time and is in one state.
//!
//! A flow without losses usually has no scoreboard, so that its transmissions need no record. At
//! the first sign of a loss, the flow builds a scoreboard from the [transmission
//! times](crate::send_times) of the data in flight. The scoreboard then records every further
//! transmission. Some time after the last sign of a loss, the flow drops the scoreboard. RACK (RFC
//! 8985) finds lost segments and lost retransmissions by their transmission times.
//!
//! ```text
//! snd_una                                                                     snd_nxt
//!    | Lost | Sacked ........ | InFlight (retransmitted) | Sacked | InFlight ... |
//! ```

mod record;

use std::collections::VecDeque;

use tidelane_wire::SeqNumber;

use crate::{
    delivered_data::{DeliveredData, earlier},
    send_times::Sent,
};

pub use self::record::Timing;
use self::record::{RangeState, Record};

/// Largest number of records after the scoreboard has processed a SACK block. A SACK block may
/// split two records and so add two records. The scoreboard ignores the block if there is no room
/// for two more records.
const RECORDS_MAX: usize = 16_384;

/// RACK.segment: the delivered segment that was sent last (RFC 8985 §5.2).
#[derive(Clone, Copy, Debug)]
struct Rack {
    /// RACK.xmit_ts: transmission time in us modulo 2^32.
    sent_us: u32,
    /// RACK.end_seq: sequence number after the segment.
    end: SeqNumber,
    /// RACK.rtt: time from the transmission to the ACK, in us.
    rtt_us: u32,
}

/// SACK scoreboard of one flow. The scoreboard finds lost segments and counts the data in flight.
#[derive(Clone, Debug, Default)]
pub struct Scoreboard {
    /// Contiguous records from SND.UNA to SND.NXT, in sequence order.
    records: VecDeque<Record>,
    /// Bytes of the records in state `InFlight`.
    in_flight: u32,
    /// Bytes of the records in state `Sacked`.
    sacked: u32,
    /// Bytes of the records in state `Lost`.
    lost: u32,
    /// RACK.segment; `None` before the first delivery, and again after a timeout or a reduction of
    /// the path MTU.
    rack: Option<Rack>,
    /// RACK.fack: sequence number after the highest byte that the peer has SACKed or acknowledged.
    fack: SeqNumber,
    /// Value of `fack` before the ACK that is being processed.
    fack_before: SeqNumber,
}

impl Scoreboard {
    /// Creates a scoreboard for the data in flight. `sent` lists the ranges of this data, of which
    /// the first begins at `una`. The transmission times in `sent` are not exact, so the records of
    /// these ranges give no RTT samples.
    pub fn begin(una: SeqNumber, sent: &[Sent]) -> Self {
        let mut scoreboard = Self {
            fack: una,
            fack_before: una,
            ..Self::default()
        };
        let mut start = una;
        for range in sent {
            scoreboard.on_send(start, range.end, range.segment, range.sent_us);
            start = range.end;
        }
        for record in &mut scoreboard.records {
            record.timed = false;
        }
        scoreboard
    }

    /// Returns the number of bytes in flight: neither SACKed nor marked lost.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the number of SACKed bytes.
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Returns the number of bytes that are marked lost and not yet retransmitted.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns the number of retransmitted bytes in flight.
    pub fn retrans_out(&self) -> u32 {
        let retransmitted = self
            .records
            .iter()
            .filter(|r| r.retransmitted && r.state == RangeState::InFlight);
        retransmitted.map(Record::len).sum()
    }

    /// Returns the number of bytes from `start` to RACK.fack.
    pub fn bytes_to_fack(&self, start: SeqNumber) -> u32 {
        self.fack.distance_from(start)
    }

    /// Records the transmission of `[start, end)`, which is new data, at `sent_us`. `segment` is
    /// the size of the segments, of which the last may be shorter. A `segment` of zero stands for
    /// unknown sizes.
    pub fn on_send(&mut self, start: SeqNumber, end: SeqNumber, segment: u16, sent_us: u32) {
        if start == end {
            return;
        }
        self.in_flight += end.distance_from(start);
        if let Some(last) = self.records.back_mut() {
            let alike = last.state == RangeState::InFlight && !last.retransmitted && last.timed;
            let alike = alike && last.segment == segment && last.within_segment(start) == 0;
            if alike && last.sent_us == sent_us && last.end == start {
                last.end = end;
                return;
            }
        }
        self.records.push_back(Record {
            start,
            end,
            sent_us,
            segment,
            state: RangeState::InFlight,
            retransmitted: false,
            timed: true,
        });
    }

    /// Returns the byte counter of `state`.
    fn bytes_in(&mut self, state: RangeState) -> &mut u32 {
        match state {
            RangeState::InFlight => &mut self.in_flight,
            RangeState::Sacked => &mut self.sacked,
            RangeState::Lost => &mut self.lost,
        }
    }

    /// Moves the record with index `at` to `state`, and updates the byte counters.
    fn set_state(&mut self, at: usize, state: RangeState) {
        let Some(record) = self.records.get_mut(at) else {
            return;
        };
        let (old, len) = (record.state, record.len());
        record.state = state;
        *self.bytes_in(old) -= len;
        *self.bytes_in(state) += len;
    }

    /// Returns the index of the record that contains `seq`, or of the first record after `seq`.
    fn index_of(&self, seq: SeqNumber) -> usize {
        self.records.partition_point(|r| r.end.at_or_before(seq))
    }

    /// If `seq` lies inside a record, splits the record, so that a record begins at `seq`. Returns
    /// the index of the record that begins at `seq`.
    fn split(&mut self, seq: SeqNumber) -> usize {
        let at = self.index_of(seq);
        if let Some(record) = self.records.get_mut(at)
            && record.start.before(seq)
        {
            let mut rest = *record;
            if record.within_segment(seq) > 0 {
                rest.segment = 0;
            }
            record.end = seq;
            rest.start = seq;
            self.records.insert(at + 1, rest);
            return at + 1;
        }
        at
    }

    /// Saves RACK.fack before the SACK blocks of an ACK advance RACK.fack.
    /// [`acknowledge`](Self::acknowledge) compares the data that the same ACK acknowledges with the
    /// saved value. Compared with the new value, this data would look reordered.
    pub fn begin_segment(&mut self) {
        self.fack_before = self.fack;
    }

    /// Updates RACK.segment for a range that was delivered, and adds the range to `delivery` (RFC
    /// 8985 §6.2 steps 1 to 3). A retransmitted range whose original transmission seems to have
    /// arrived does not update RACK.segment.
    fn note_arrival(&mut self, record: &Record, timing: &Timing, delivery: &mut DeliveredData) {
        delivery.bytes += record.len();
        delivery.retransmitted |= record.retransmitted;
        let rtt_us = timing.now_us.wrapping_sub(record.sent_us);
        if record.retransmitted && (record.is_original(timing) || timing.echoes_earlier(record)) {
            return;
        }
        delivery.note_newest(record.sent_us);
        if !record.retransmitted {
            delivery.note_original(record.end);
            delivery.rtt_us = record.timed.then_some(rtt_us).or(delivery.rtt_us);
        }
        let newer = self.rack.is_none_or(|rack| {
            earlier(rack.sent_us, record.sent_us)
                || (rack.sent_us == record.sent_us && rack.end.before(record.end))
        });
        if newer {
            self.rack = Some(Rack {
                sent_us: record.sent_us,
                end: record.end,
                rtt_us,
            });
        }
    }

    /// Removes all records and parts of records below `una`, the new SND.UNA. Returns the data that
    /// was not SACKed before.
    pub fn acknowledge(&mut self, una: SeqNumber, timing: &Timing) -> DeliveredData {
        let mut delivery = DeliveredData::default();
        while let Some(first) = self.records.front().copied() {
            if first.start.at_or_after(una) {
                break;
            }
            let whole = first.end.at_or_before(una);
            let part = Record {
                end: first.end.earlier_of(una),
                ..first
            };
            *self.bytes_in(first.state) -= part.len();
            if first.state != RangeState::Sacked {
                if part.is_original(timing) && part.end.before(self.fack_before) {
                    delivery.note_reordered(part.start);
                }
                self.note_arrival(&part, timing, &mut delivery);
            }
            let boundary = first.boundary_from(una);
            if !whole && boundary != una {
                // Give the rest of the segment a record of its own, so that the segment boundaries
                // stay known.
                self.split(boundary);
            }
            if whole {
                self.records.pop_front();
            } else if let Some(record) = self.records.front_mut() {
                record.start = una;
                break;
            }
        }
        self.fack = self.fack.later_of(una);
        delivery
    }

    /// Marks `[start, end)`, which lies within the outstanding data, as SACKed. Returns the data
    /// that was not SACKed before. Only whole segments count (as in Linux), so that a peer that
    /// reports a part of a segment cannot make RACK believe that the segment arrived. The echoed
    /// timestamp of an ACK does not tell which transmission of SACKed data arrived, so
    /// `sent_before_us` of `timing` is `None`.
    pub fn sack(&mut self, start: SeqNumber, end: SeqNumber, timing: &Timing) -> DeliveredData {
        let mut delivery = DeliveredData::default();
        let (start, end) = (self.boundary_from(start), self.boundary_until(end));
        let nothing = !start.before(end) || self.is_sacked(start, end);
        if nothing || self.records.len() + 2 > RECORDS_MAX {
            return delivery;
        }
        let first = self.split(start);
        let past = self.split(end);
        for at in first..past {
            let Some(record) = self.records.get(at).copied() else {
                break;
            };
            if record.state != RangeState::Sacked {
                if record.is_original(timing) && record.end.before(self.fack) {
                    delivery.note_reordered(record.start);
                }
                self.note_arrival(&record, timing, &mut delivery);
                self.set_state(at, RangeState::Sacked);
            }
        }
        self.fack = self.fack.later_of(end);
        self.merge_sacked(first, past);
        delivery
    }

    /// Returns the first segment boundary at or after `seq`, as far as boundaries are known.
    fn boundary_from(&self, seq: SeqNumber) -> SeqNumber {
        let record = self.records.get(self.index_of(seq));
        record.map_or(seq, |record| record.boundary_from(seq))
    }

    /// Returns the last segment boundary at or before `seq`, as far as boundaries are known.
    fn boundary_until(&self, seq: SeqNumber) -> SeqNumber {
        let record = self.records.get(self.index_of(seq));
        record.map_or(seq, |record| seq.sub(record.within_segment(seq)))
    }

    /// Returns true if one SACKed record covers `[start, end)`.
    fn is_sacked(&self, start: SeqNumber, end: SeqNumber) -> bool {
        self.records.get(self.index_of(start)).is_some_and(|r| {
            r.state == RangeState::Sacked && r.start.at_or_before(start) && end.at_or_before(r.end)
        })
    }

    /// Merges adjacent SACKed records with indices from `first` to `past`, including the neighbors
    /// of this range.
    fn merge_sacked(&mut self, first: usize, past: usize) {
        let mut at = first.saturating_sub(1);
        let mut left = past.saturating_sub(first) + 2;
        while left > 0 && at + 1 < self.records.len() {
            left -= 1;
            let (a, b) = (self.records[at], self.records[at + 1]);
            if a.state == RangeState::Sacked && b.state == RangeState::Sacked {
                self.records[at].end = b.end;
                self.records[at].segment = 0;
                self.records.remove(at + 1);
            } else {
                at += 1;
            }
        }
    }

    /// Marks lost the data in flight that was sent before RACK.segment and is overdue: sent at
    /// least RACK.rtt plus `reorder_us` ago (RFC 8985 §6.2 step 5). Returns the number of bytes
    /// marked lost, and the number of retransmitted bytes among them. Also returns the time in us
    /// until all other data that was sent before RACK.segment is overdue, or `None` if there is no
    /// other data.
    pub fn rack_detect_loss(&mut self, now_us: u32, reorder_us: u32) -> (u32, u32, Option<u32>) {
        let Some(rack) = self.rack else {
            return (0, 0, None);
        };
        let (mut lost, mut lost_again, mut next) = (0, 0, None);
        for at in 0..self.records.len() {
            let record = self.records[at];
            let before = earlier(record.sent_us, rack.sent_us)
                || (record.sent_us == rack.sent_us && record.end.before(rack.end));
            if !before {
                if record.retransmitted || record.state != RangeState::InFlight {
                    continue;
                }
                // The data of all later records was sent at the same time or later, and so not
                // before RACK.segment.
                break;
            }
            if record.state != RangeState::InFlight {
                continue;
            }
            let age = now_us.wrapping_sub(record.sent_us);
            let limit = rack.rtt_us.saturating_add(reorder_us);
            if age >= limit {
                lost += record.len();
                lost_again += if record.retransmitted {
                    record.len()
                } else {
                    0
                };
                self.set_state(at, RangeState::Lost);
            } else {
                next = next.max(Some(limit - age));
            }
        }
        (lost, lost_again, next)
    }

    /// Marks data lost after a retransmission timeout (RFC 8985 §6.3): the first `mss` bytes, and
    /// all data in flight that was sent at least `limit_us` ago. Forgets RACK.segment.
    pub fn mark_old_lost(&mut self, mss: u32, now_us: u32, limit_us: u32) {
        self.mark_first_lost(mss);
        for at in 0..self.records.len() {
            let record = self.records[at];
            if record.state == RangeState::InFlight
                && now_us.wrapping_sub(record.sent_us) >= limit_us
            {
                self.set_state(at, RangeState::Lost);
            }
        }
        self.rack = None;
    }

    /// Returns RACK.rtt, the RTT of RACK.segment, in us.
    pub fn rack_rtt_us(&self) -> Option<u32> {
        self.rack.map(|rack| rack.rtt_us)
    }

    /// Marks as lost all data that is not SACKed (RFC 6298 §5). If `reneged` is true, the function
    /// marks SACKed data as lost, too. Forgets RACK.segment.
    pub fn mark_all_lost(&mut self, reneged: bool) {
        for at in 0..self.records.len() {
            if reneged || self.records[at].state != RangeState::Sacked {
                self.set_state(at, RangeState::Lost);
            }
        }
        self.rack = None;
    }

    /// Marks all lost data as in flight again.
    pub fn unmark_lost(&mut self) {
        for at in 0..self.records.len() {
            if self.records[at].state == RangeState::Lost {
                self.set_state(at, RangeState::InFlight);
            }
        }
    }

    /// Marks the first `len` bytes lost if they are in flight (RFC 6582). If the first record is
    /// shorter, marks only this record lost.
    pub fn mark_first_lost(&mut self, len: u32) {
        let Some(first) = self.records.front().copied() else {
            return;
        };
        if first.state != RangeState::InFlight {
            return;
        }
        if len < first.len() {
            self.split(first.start.add(len));
        }
        self.set_state(0, RangeState::Lost);
    }

    /// Returns true if the data at SND.UNA is SACKed. The peer has then reneged, which means that
    /// it discarded this data (RFC 2018 §8). A peer that still has the data would have acknowledged
    /// the data.
    pub fn is_reneged(&self) -> bool {
        self.records
            .front()
            .is_some_and(|r| r.state == RangeState::Sacked)
    }

    /// Returns the start and length of the first lost range. The length is at most `mss` bytes.
    pub fn next_lost(&self, mss: u32) -> Option<(SeqNumber, u32)> {
        if self.lost == 0 {
            return None;
        }
        let at = self
            .records
            .iter()
            .position(|r| r.state == RangeState::Lost)?;
        let (start, mut len) = (self.records[at].start, 0);
        for record in self.records.range(at..) {
            if record.state != RangeState::Lost || len >= mss {
                break;
            }
            len += record.len();
        }
        Some((start, len.min(mss)))
    }

    /// Records the retransmission of `[start, start + len)` at `sent_us`. SACKed parts do not
    /// change.
    pub fn on_retransmit(&mut self, start: SeqNumber, len: u32, sent_us: u32) {
        let first = self.split(start);
        let past = self.split(start.add(len));
        for at in first..past {
            if self
                .records
                .get(at)
                .is_some_and(|r| r.state != RangeState::Sacked)
            {
                self.set_state(at, RangeState::InFlight);
                self.records[at].sent_us = sent_us;
                self.records[at].retransmitted = true;
            }
        }
    }

    /// Returns the start and length of the first range in flight. The length is at most `mss`
    /// bytes.
    pub fn first_in_flight(&self, mss: u32) -> Option<(SeqNumber, u32)> {
        let first = self
            .records
            .iter()
            .find(|r| r.state == RangeState::InFlight)?;
        Some((first.start, first.len().min(mss)))
    }

    /// Returns the start and length of the data with the highest sequence numbers: at most `mss`
    /// bytes up to SND.NXT. Returns `None` if this data is SACKed.
    pub fn last(&self, mss: u32) -> Option<(SeqNumber, u32)> {
        let last = self
            .records
            .back()
            .filter(|r| r.state != RangeState::Sacked)?;
        let len = last.len().min(mss);
        Some((last.end.sub(len), len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u32) -> SeqNumber {
        SeqNumber(n)
    }

    /// Returns a range of unknown segment sizes.
    fn sent(end: u32, sent_us: u32) -> Sent {
        Sent {
            end: s(end),
            sent_us,
            segment: 0,
        }
    }

    /// Returns the number of bytes in flight, SACKed and lost. Checks the byte counters, and that
    /// the records are contiguous.
    fn sums(scoreboard: &Scoreboard) -> [u32; 3] {
        let sum = |state| {
            let of_state = scoreboard.records.iter().filter(|r| r.state == state);
            of_state.map(Record::len).sum::<u32>()
        };
        let sums = [
            sum(RangeState::InFlight),
            sum(RangeState::Sacked),
            sum(RangeState::Lost),
        ];
        assert_eq!(
            sums,
            [scoreboard.in_flight, scoreboard.sacked, scoreboard.lost]
        );
        for (a, b) in scoreboard
            .records
            .iter()
            .zip(scoreboard.records.iter().skip(1))
        {
            assert_eq!(a.end, b.start, "records are not contiguous");
        }
        sums
    }

    fn timing(now_us: u32, rtt_min_us: u32) -> Timing {
        Timing {
            now_us,
            rtt_min_us,
            sent_before_us: None,
        }
    }

    #[test]
    fn a_hole_is_lost_once_later_data_arrived_and_time_passed() {
        let mut scoreboard = Scoreboard::begin(s(0), &[sent(1000, 0)]);
        let delivery = scoreboard.sack(s(200), s(500), &timing(100, 50));
        assert_eq!(delivery.bytes, 300);
        assert_eq!(sums(&scoreboard), [700, 300, 0]);
        // The RTT is 100 us. At 110 us, the reordering window of 25 us is not over.
        assert_eq!(scoreboard.rack_detect_loss(110, 25), (0, 0, Some(15)));
        assert_eq!(scoreboard.rack_detect_loss(125, 25), (200, 0, None));
        assert_eq!(scoreboard.next_lost(150), Some((s(0), 150)));
        scoreboard.on_retransmit(s(0), 150, 130);
        assert_eq!(sums(&scoreboard), [650, 300, 50]);
        assert_eq!(scoreboard.next_lost(150), Some((s(150), 50)));
    }

    #[test]
    fn rfc8985_section_6_3_after_a_timeout_recent_data_is_not_lost() {
        let mut scoreboard =
            Scoreboard::begin(s(0), &[sent(3000, 0), sent(4000, 700), sent(5000, 950)]);
        scoreboard.sack(s(2000), s(2500), &timing(800, 50));
        scoreboard.mark_old_lost(1000, 1000, 300);
        assert_eq!(sums(&scoreboard), [1000, 500, 3500]);
        assert_eq!(scoreboard.first_in_flight(1000), Some((s(4000), 1000)));
        // The first segment counts as lost, however recently it was sent.
        let mut scoreboard = Scoreboard::begin(s(0), &[sent(3000, 990)]);
        scoreboard.mark_old_lost(1000, 1000, 300);
        assert_eq!(sums(&scoreboard), [2000, 0, 1000]);
        assert_eq!(scoreboard.next_lost(5000), Some((s(0), 1000)));
    }

    #[test]
    fn rfc8985_section_5_2_each_part_of_the_flight_has_its_time() {
        let send_times = [sent(1000, 0), sent(2000, 400), sent(3000, 800)];
        let mut scoreboard = Scoreboard::begin(s(0), &send_times);
        assert_eq!(sums(&scoreboard), [3000, 0, 0]);
        // The second range arrives after 600 us. The first range is lost. The third range was sent
        // later than the second range.
        scoreboard.sack(s(1000), s(2000), &timing(1000, 50));
        assert_eq!(scoreboard.rack_detect_loss(1000, 0), (1000, 0, None));
        assert_eq!(sums(&scoreboard), [1000, 1000, 1000]);
    }

    #[test]
    fn a_lost_retransmission_is_detected() {
        let mut scoreboard = Scoreboard::begin(s(0), &[sent(300, 0)]);
        scoreboard.sack(s(100), s(300), &timing(100, 50));
        assert_eq!(scoreboard.rack_detect_loss(100, 0).0, 100);
        scoreboard.on_retransmit(s(0), 100, 110);
        scoreboard.on_send(s(300), s(400), 0, 120);
        scoreboard.sack(s(300), s(400), &timing(220, 50));
        assert_eq!(scoreboard.rack_detect_loss(220, 0), (100, 100, None));
    }

    #[test]
    fn late_arrivals_of_first_transmissions_are_reordering() {
        let mut scoreboard = Scoreboard::begin(s(0), &[sent(300, 0)]);
        let first = scoreboard.sack(s(200), s(300), &timing(100, 50));
        assert_eq!(first.reordered_from, None);
        let late = scoreboard.sack(s(0), s(100), &timing(101, 50));
        assert_eq!(late.reordered_from, Some(s(0)));
        assert_eq!(scoreboard.bytes_to_fack(s(0)), 300);
        let mut scoreboard = Scoreboard::begin(s(0), &[sent(300, 0)]);
        scoreboard.begin_segment();
        scoreboard.sack(s(200), s(300), &timing(100, 50));
        let acknowledged = scoreboard.acknowledge(s(100), &timing(100, 50));
        assert_eq!(acknowledged.reordered_from, None, "wrongly reordered");
        assert_eq!(scoreboard.acknowledge(s(200), &timing(102, 50)).bytes, 100);
        assert_eq!(sums(&scoreboard), [0, 100, 0]);
        assert_eq!(scoreboard.acknowledge(s(300), &timing(102, 50)).bytes, 0);
        assert!(scoreboard.records.is_empty());
    }

    #[test]
    fn an_ack_within_the_minimum_rtt_acknowledges_the_original() {
        let mut scoreboard = Scoreboard::begin(s(0), &[sent(300, 0)]);
        scoreboard.mark_first_lost(100);
        scoreboard.on_retransmit(s(0), 100, 90);
        // The ACK comes 10 us after the retransmission, on a path with an RTT of 50 us: no other
        // data is lost.
        let delivery = scoreboard.acknowledge(s(100), &timing(100, 50));
        assert_eq!((delivery.bytes, delivery.rtt_us), (100, None));
        assert_eq!(scoreboard.rack_detect_loss(100, 0), (0, 0, None));
        // The ACK comes 60 us after the retransmission: all data that was sent before the
        // retransmission is lost.
        let mut scoreboard = Scoreboard::begin(s(0), &[sent(300, 0)]);
        scoreboard.mark_first_lost(100);
        scoreboard.on_retransmit(s(0), 100, 90);
        scoreboard.acknowledge(s(100), &timing(150, 50));
        assert_eq!(scoreboard.rack_detect_loss(150, 0), (200, 0, None));
    }

    #[test]
    fn an_ack_with_an_older_echo_acknowledges_the_original() {
        let repaired = |sent_before_us| {
            let mut scoreboard = Scoreboard::begin(s(0), &[sent(300, 0)]);
            scoreboard.mark_first_lost(100);
            scoreboard.on_retransmit(s(0), 100, 90);
            let timing = Timing {
                sent_before_us,
                ..timing(150, 50)
            };
            assert_eq!(scoreboard.acknowledge(s(100), &timing).bytes, 100);
            scoreboard.rack_detect_loss(150, 0).0
        };
        // If the ACK echoes the retransmission, all data that was sent before the retransmission is
        // lost. An ACK without an echo has the same effect.
        assert_eq!(repaired(Some(91)), 200);
        assert_eq!(repaired(None), 200);
        // If the ACK echoes an earlier transmission, no data is lost.
        assert_eq!(repaired(Some(90)), 0);
    }

    #[test]
    fn sums_hold_under_random_use() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u32| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 33) as u32 % below
        };
        for _ in 0..300 {
            let base = next(u32::MAX);
            let mut una = s(base);
            let mut nxt = una.add(next(5000) + 1);
            let mut scoreboard = Scoreboard::begin(una, &[sent(nxt.0, 0)]);
            for now in 1..200 {
                let flight = nxt.distance_from(una);
                match next(7) {
                    0 => {
                        let more = nxt.add(next(3000));
                        scoreboard.on_send(nxt, more, [0, 1, 100, 1460][next(4) as usize], now);
                        nxt = more;
                    }
                    1 => {
                        una = una.add(next(flight + 1));
                        scoreboard.acknowledge(una, &timing(now, 3));
                    }
                    2 if flight > 1 => {
                        let start = una.add(next(flight - 1));
                        let end = start.add(1 + next(nxt.distance_from(start)));
                        scoreboard.sack(start, end, &timing(now, 3));
                    }
                    3 => {
                        scoreboard.rack_detect_loss(now, 2);
                    }
                    4 => {
                        if let Some((start, len)) = scoreboard.next_lost(700) {
                            scoreboard.on_retransmit(start, len, now);
                        }
                    }
                    5 => scoreboard.mark_first_lost(500),
                    _ if next(10) == 0 => scoreboard.mark_all_lost(false),
                    _ => {
                        if let Some((start, len)) = scoreboard.last(700) {
                            scoreboard.on_retransmit(start, len, now);
                        }
                    }
                }
                assert_eq!(
                    sums(&scoreboard).iter().sum::<u32>(),
                    nxt.distance_from(una)
                );
            }
        }
    }
    #[test]
    fn only_whole_segments_are_sacked() {
        let mut scoreboard = Scoreboard::begin(s(0), &[]);
        scoreboard.on_send(s(0), s(2500), 1000, 10);
        // An MTU probe is one larger segment. Smaller segments follow.
        scoreboard.on_send(s(2500), s(3700), 1200, 10);
        scoreboard.on_send(s(3700), s(4700), 500, 10);
        let mut sack = |start, end| {
            scoreboard.sack(s(start), s(end), &timing(100, 50));
            let sums = sums(&scoreboard);
            assert_eq!(sums[0] + sums[1], 4700);
            sums[1]
        };
        assert_eq!(sack(1000, 1001), 0);
        assert_eq!(sack(1, 1999), 0);
        assert_eq!(sack(2000, 2499), 0);
        assert_eq!(sack(2501, 3700), 0);
        assert_eq!(sack(3800, 4650), 0);
        assert!(scoreboard.rack_rtt_us().is_none());
        let mut sack = |start, end| {
            scoreboard.sack(s(start), s(end), &timing(100, 50));
            sums(&scoreboard)[1]
        };
        assert_eq!(sack(3900, 4700), 500);
        assert_eq!(sack(2500, 3701), 1700);
        assert_eq!(sack(1999, 2500), 2200);
        // This range contains ranges that are SACKed already.
        assert_eq!(sack(900, 4000), 3200);
        assert_eq!(sack(0, 4700), 4700);
    }

    #[test]
    fn boundaries_survive_acks_and_retransmissions_of_parts() {
        let mut scoreboard = Scoreboard::begin(s(0), &[]);
        scoreboard.on_send(s(0), s(5000), 1000, 10);
        scoreboard.acknowledge(s(300), &timing(100, 50));
        let sacked = |scoreboard: &mut Scoreboard, start, end| {
            scoreboard.sack(s(start), s(end), &timing(100, 50));
            sums(scoreboard)[1]
        };
        assert_eq!(sacked(&mut scoreboard, 1300, 2300), 0);
        assert_eq!(sacked(&mut scoreboard, 1000, 2000), 1000);
        // After a retransmission in segments of another size, the peer may have segments of either
        // size.
        scoreboard.mark_all_lost(false);
        scoreboard.on_retransmit(s(2000), 700, 110);
        assert_eq!(sacked(&mut scoreboard, 2000, 2700), 1700);
        assert_eq!(sacked(&mut scoreboard, 3000, 4000), 2700);
    }
}
