//! What an acknowledgment says has arrived.

use tidelane_wire::SeqNumber;

/// What an acknowledgment brought.
#[derive(Clone, Copy, Default, Debug)]
pub struct Delivery {
    /// Bytes that are known to have arrived since.
    pub bytes: u32,
    /// Round-trip time of the last of them that was sent only once.
    pub rtt_us: Option<u32>,
    /// When the newest of them was last sent.
    pub sent_us: Option<u32>,
    /// The least start of what was sent at first and arrived after something beyond it: the path
    /// reorders (RFC 8985 §6.2 step 3).
    pub reordered_from: Option<SeqNumber>,
    /// The least end of what arrived and was sent only once.
    pub original_end: Option<SeqNumber>,
    /// Some of it was sent more than once.
    pub again: bool,
    /// It gave a round-trip sample.
    pub sampled: bool,
}

impl Delivery {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.rtt_us = other.rtt_us.or(self.rtt_us);
        if let Some(sent_us) = other.sent_us {
            self.note_newest(sent_us);
        }
        if let Some(start) = other.reordered_from {
            self.note_reordered(start);
        }
        self.again |= other.again;
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

/// Whether `a` was sent before `b`.
pub(crate) const fn earlier(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
