//! A range of the scoreboard.

use tidelane_wire::SeqNumber;

use crate::delivered_data::earlier;

/// State of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangeState {
    /// In flight.
    InFlight,
    /// SACKed by the peer (RFC 2018).
    Sacked,
    /// Lost, and to be retransmitted.
    Lost,
}

/// A range of sequence space in one state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: SeqNumber,
    pub(super) end: SeqNumber,
    /// Time of the last transmission, in microseconds modulo 2^32.
    pub(super) sent_us: u32,
    /// Size of the segments from `start` on, of which the last one may be shorter; zero if unknown.
    pub(super) segment: u16,
    pub(super) state: RangeState,
    /// The range was retransmitted.
    pub(super) retransmitted: bool,
    /// `sent_us` is exact.
    pub(super) timed: bool,
}

impl Record {
    pub(super) fn len(&self) -> u32 {
        self.end.distance_from(self.start)
    }

    /// Returns the number of bytes before `seq` that belong to the same segment as `seq`, zero if a
    /// segment begins there or if boundaries are unknown.
    pub(super) fn within_segment(&self, seq: SeqNumber) -> u32 {
        let known = self.segment > 0 && self.state != RangeState::Sacked;
        let offset = seq.distance_from(self.start);
        if known {
            offset % u32::from(self.segment)
        } else {
            0
        }
    }

    /// Returns the first segment boundary at or after `seq`.
    pub(super) fn boundary_from(&self, seq: SeqNumber) -> SeqNumber {
        match self.within_segment(seq) {
            0 => seq,
            within => seq
                .add(u32::from(self.segment) - within)
                .earlier_of(self.end),
        }
    }

    /// Returns true if an ACK that arrives now must be that of the original transmission: there was
    /// no other, or the retransmission was less than a minimum RTT ago (RFC 8985 §6.2 step 2).
    pub(super) fn is_original(&self, timing: &Timing) -> bool {
        !self.retransmitted || timing.now_us.wrapping_sub(self.sent_us) < timing.rtt_min_us
    }
}

/// Times that tell the transmissions of the same data apart, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Arrival of the ACK.
    pub now_us: u32,
    /// Minimum RTT.
    pub rtt_min_us: u32,
    /// Upper bound of the echoed transmission's time, from its timestamp.
    pub sent_before_us: Option<u32>,
}

impl Timing {
    /// Returns true if the echoed timestamp is that of an earlier transmission than the last one
    /// (RFC 8985 §6.2 step 2).
    pub(super) fn echoes_earlier(&self, record: &Record) -> bool {
        let before = self.sent_before_us;
        before.is_some_and(|before| !earlier(record.sent_us, before))
    }
}
