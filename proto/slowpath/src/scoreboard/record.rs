//! Records of the scoreboard. The scoreboard is the list of the unacknowledged transmissions of a
//! flow (connection). This file also has the times by which the scoreboard tells an original
//! transmission from a retransmission.

use tidelane_wire::SeqNumber;

use crate::delivered_data::earlier;

/// State of the data of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangeState {
    /// Sent or retransmitted, and neither SACKed nor lost.
    InFlight,
    /// SACKed by the peer (RFC 2018).
    Sacked,
    /// Marked lost, and not retransmitted since.
    Lost,
}

/// A range `[start, end)` of sequence numbers that was sent at one time and is in one state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: SeqNumber,
    pub(super) end: SeqNumber,
    /// Time of the most recent transmission, in microseconds modulo 2^32.
    pub(super) sent_us: u32,
    /// Size in bytes of the segments from `start` on, of which the last may be shorter. Zero if the
    /// size is unknown. Not valid in state `Sacked`, because adjacent SACKed ranges are merged.
    pub(super) segment: u16,
    pub(super) state: RangeState,
    /// True if the range was retransmitted.
    pub(super) retransmitted: bool,
    /// True if `sent_us` is exact, so that the range can give an RTT sample.
    pub(super) timed: bool,
}

impl Record {
    pub(super) fn len(&self) -> u32 {
        self.end.distance_from(self.start)
    }

    /// Returns the number of bytes before `seq` that belong to the same segment as `seq`. Returns
    /// zero if a segment begins at `seq`, or if the segment boundaries are unknown.
    pub(super) fn within_segment(&self, seq: SeqNumber) -> u32 {
        let known = self.segment > 0 && self.state != RangeState::Sacked;
        let offset = seq.distance_from(self.start);
        if known {
            offset % u32::from(self.segment)
        } else {
            0
        }
    }

    /// Returns the first segment boundary at or after `seq`. Returns `seq` if the segment
    /// boundaries are unknown.
    pub(super) fn boundary_from(&self, seq: SeqNumber) -> SeqNumber {
        match self.within_segment(seq) {
            0 => seq,
            within => seq
                .add(u32::from(self.segment) - within)
                .earlier_of(self.end),
        }
    }

    /// Returns true if the range was never retransmitted, or if the retransmission was less than a
    /// minimum RTT before `timing.now_us`. An ACK that arrives at `timing.now_us` then acknowledges
    /// the original transmission (RFC 8985 §6.2 step 2).
    pub(super) fn is_original(&self, timing: &Timing) -> bool {
        !self.retransmitted || timing.now_us.wrapping_sub(self.sent_us) < timing.rtt_min_us
    }
}

/// Times that tell an original transmission from a retransmission, in us modulo 2^32.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Arrival time of the ACK.
    pub now_us: u32,
    /// Minimum RTT of the path.
    pub rtt_min_us: u32,
    /// The segment whose TSval the ACK echoes was sent before this time. `None` if the ACK echoes
    /// no usable timestamp.
    pub sent_before_us: Option<u32>,
}

impl Timing {
    /// Returns true if the echoed timestamp is older than the most recent transmission of `record`
    /// (RFC 8985 §6.2 step 2).
    pub(super) fn echoes_earlier(&self, record: &Record) -> bool {
        let before = self.sent_before_us;
        before.is_some_and(|before| !earlier(record.sent_us, before))
    }
}
