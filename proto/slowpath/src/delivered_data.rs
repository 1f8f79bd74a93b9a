//! Data that one ACK newly reports as delivered.

use tidelane_wire::SeqNumber;

/// The data that one ACK newly acknowledges or SACKs (RFC 6937: DeliveredData).
#[derive(Clone, Copy, Default, Debug)]
pub struct DeliveredData {
    /// Newly delivered bytes.
    pub bytes: u32,
    /// RTT in us of a newly delivered segment that was sent only once, at an exactly known time. If
    /// there are several of these segments, the RTT of the segment that was added last.
    pub rtt_us: Option<u32>,
    /// Most recent transmission time of the newly delivered segments, in us modulo 2^32. A
    /// retransmission does not count if its original transmission seems to have arrived.
    pub sent_us: Option<u32>,
    /// Lowest start of a range whose original transmission arrived after later data: the path
    /// reorders (RFC 8985 §6.2 step 3).
    pub reordered_from: Option<SeqNumber>,
    /// Lowest end of a newly delivered range that was sent only once.
    pub original_end: Option<SeqNumber>,
    /// True if some of the newly delivered data was retransmitted.
    pub retransmitted: bool,
    /// True if the ACK gave an RTT sample.
    pub sampled: bool,
}

impl DeliveredData {
    /// Adds the data that another part of the same ACK reports.
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.rtt_us = other.rtt_us.or(self.rtt_us);
        if let Some(sent_us) = other.sent_us {
            self.note_newest(sent_us);
        }
        if let Some(start) = other.reordered_from {
            self.note_reordered(start);
        }
        self.retransmitted |= other.retransmitted;
        if let Some(end) = other.original_end {
            self.note_original(end);
        }
    }

    pub(crate) fn note_newest(&mut self, sent_us: u32) {
        if self.sent_us.is_none_or(|newest| earlier(newest, sent_us)) {
            self.sent_us = Some(sent_us);
        }
    }

    pub(crate) fn note_reordered(&mut self, start: SeqNumber) {
        let least = self.reordered_from.unwrap_or(start);
        self.reordered_from = Some(least.earlier_of(start));
    }

    pub(crate) fn note_original(&mut self, end: SeqNumber) {
        self.original_end = Some(self.original_end.map_or(end, |least| least.earlier_of(end)));
    }
}

/// Returns true if time `a` is before time `b`. Both times are in us modulo 2^32.
pub(crate) const fn earlier(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
