//! Reordering of the path, and RACK's reordering window: the time by which a segment may arrive
//! late without counting as lost (RFC 8985 §6.2 steps 3 and 4).

use tidelane_flow::{CaState, Driver};
use tidelane_wire::SeqNumber;

use crate::{SlowPath, recover::DUP_THRESH};

/// Upper bound of the reordering degree, in segments (Linux: `tcp_max_reordering`).
const REORDERING_MAX: u32 = 300;

/// Measured reordering of the path.
#[derive(Clone, Copy, Debug)]
pub struct Reordering {
    /// Number of times that a segment arrived after later data (RFC 8985 §6.2 step 3).
    pub seen: u32,
    /// Largest distance by which a segment was overtaken, in segments; at least DupThresh.
    pub degree: u32,
    /// Number of received DSACK blocks, each of which reports a spurious retransmission.
    pub dsacks: u32,
    /// RACK.reo_wnd_mult: the reordering window in quarters of the minimum RTT.
    pub quarters: u32,
    /// RACK.reo_wnd_persist: number of recoveries until `quarters` is reset to 1.
    pub persist: u8,
    /// RACK.dsack_round: further DSACKs do not raise `quarters` until this sequence number is
    /// acknowledged.
    pub round: SeqNumber,
}

impl Reordering {
    /// Returns the state of a path without known reordering.
    pub fn new() -> Self {
        Self {
            seen: 0,
            degree: DUP_THRESH,
            dsacks: 0,
            quarters: 1,
            persist: 0,
            round: SeqNumber(0),
        }
    }
}

impl<E: Driver> SlowPath<'_, E> {
    /// Notes that the original transmission of the data from `start` arrived after later data.
    pub(crate) fn note_reordering(&mut self, start: SeqNumber) {
        let extent = self.scoreboard_for_loss().bytes_to_fack(start);
        let segments = extent.div_ceil(u32::from(self.hot.mss)).min(REORDERING_MAX);
        let known = &mut self.cold.reordering;
        known.seen = known.seen.saturating_add(1);
        known.degree = known.degree.max(segments);
    }

    /// Grows cwnd after an ACK that SACKed new data but did not advance SND.UNA. cwnd grows only in
    /// Open and Disorder, and only if the measured reordering exceeds DupThresh (as in Linux). On a
    /// path with much reordering, most data arrives out of order.
    pub(crate) fn grow_out_of_order(&mut self) {
        let not_reducing = matches!(self.cold.ca_state, CaState::Open | CaState::Disorder);
        if not_reducing && self.cold.reordering.degree > DUP_THRESH {
            self.grow(self.cold.delivered.bytes, 0);
        }
    }

    /// Returns RACK's reordering window in us: the time by which a segment may arrive late without
    /// counting as lost (RFC 8985 §6.2 step 4). While no reordering has been seen, returns zero in
    /// two cases: in Recovery and Loss, and if more than DupThresh - 1 full segments are SACKed.
    pub(crate) fn reorder_us(&self) -> u32 {
        let enough = self.cold.scoreboard.as_ref().is_some_and(|scoreboard| {
            scoreboard.sacked() > (DUP_THRESH - 1) * u32::from(self.hot.mss)
        });
        if self.cold.reordering.seen == 0 && (enough || self.is_recovering()) {
            return 0;
        }
        let quarter = (self.rtt_min_us() / 4).max(1);
        quarter
            .saturating_mul(self.cold.reordering.quarters)
            .min(self.hot.srtt >> 3)
    }

    /// Marks late segments lost when the reordering timer expires (RFC 8985 §6.2 step 5). If a
    /// reduction of cwnd begins here, only one segment is retransmitted immediately, because no ACK
    /// has arrived that could clock more retransmissions. The ACK of this segment clocks the
    /// others.
    pub(crate) fn on_reorder_timeout(&mut self) {
        let was_recovering = self.is_recovering();
        if self.rack_detect_loss() && !was_recovering {
            self.reduce(u32::from(self.hot.mss), false, true);
        }
    }
}
