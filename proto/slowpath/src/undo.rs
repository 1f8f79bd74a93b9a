//! Detection of spurious retransmissions by DSACK (RFC 2883) or by an echoed timestamp (RFC 3522).
//! If a recovery proves to be spurious, its window reduction is undone.

use tidelane_cc::{CongestionControl, Controller};
use tidelane_flow::{CaState, Driver, Millis, flags};
use tidelane_wire::{Segment, SeqNumber};

use crate::SlowPath;

/// Upper bound of RACK's reordering window, in quarters of the minimum RTT (as in Linux). The
/// reordering window is the time by which a segment may arrive late without counting as lost. SRTT
/// is a further upper bound.
const REORDER_QUARTERS_MAX: u32 = 255;
/// Number of recoveries since the reordering window last grew, after which the window is reset (RFC
/// 8985 §6.2 step 4).
const REORDER_PERSIST: u8 = 16;

/// State to restore if a recovery proves to be spurious.
#[derive(Clone, Debug)]
pub struct Undo {
    /// Congestion control before the recovery.
    pub controller: Controller,
    /// Bytes that the recovery has retransmitted and that no DSACK has reported as duplicates
    /// (Linux: `undo_retrans`).
    pub undo_retrans: u32,
    /// Time of the first retransmission of the recovery (Linux: `retrans_stamp`).
    pub retrans_stamp: Option<Millis>,
}

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if the first SACK block is a DSACK (RFC 2883 §4).
    pub(crate) fn is_dsack(&self, segment: &Segment<'_>) -> bool {
        let blocks = segment.options.sack.as_slice();
        let Some((start, end)) = blocks.first() else {
            return false;
        };
        let inside = |(left, right): &(SeqNumber, SeqNumber)| {
            left.at_or_before(*start) && end.at_or_before(*right)
        };
        start.before(*end) && (end.at_or_before(segment.ack) || blocks.get(1).is_some_and(inside))
    }

    /// Handles a DSACK of the data from `start` to `end`: a retransmission was spurious, so the
    /// reordering window grows, at most once in a round trip (RFC 8985 §6.2 step 4). If all
    /// retransmissions were spurious, the recovery is undone.
    pub(crate) fn on_dsack(&mut self, start: SeqNumber, end: SeqNumber) {
        self.counters.dsack_recv += 1;
        self.cold.reordering.dsacks += 1;
        if self.cold.probe_end == Some(end) {
            self.cold.probe_end = None;
        }
        if self.cold.reordering.round.at_or_before(self.hot.snd_una) {
            self.cold.reordering.round = self.hot.snd_nxt;
            self.cold.reordering.persist = REORDER_PERSIST;
            let more = self.cold.reordering.quarters + 1;
            self.cold.reordering.quarters = more.min(REORDER_QUARTERS_MAX);
        }
        let Some(undo) = &mut self.cold.undo else {
            return;
        };
        undo.undo_retrans = undo.undo_retrans.saturating_sub(end.distance_from(start));
        if undo.undo_retrans == 0 {
            self.undo_reduction();
            self.end_reduction();
            if self
                .cold
                .scoreboard
                .as_ref()
                .is_none_or(|scoreboard| scoreboard.lost() == 0)
            {
                self.cold.ca_state = CaState::Open;
            }
        }
    }

    /// Handles an ACK that advanced SND.UNA from `prior_una`. If the sender is in fast recovery and
    /// the ACK echoes the timestamp of the original transmission, records reordering (as in Linux).
    pub(crate) fn check_late_original(&mut self, segment: &Segment<'_>, prior_una: SeqNumber) {
        if self.cold.ca_state == CaState::Recovery && self.echoes_original(segment) {
            self.note_reordering(prior_una);
        }
    }

    /// Returns true if the echoed timestamp is older than the first retransmission of the recovery
    /// (RFC 3522 §3.2).
    pub(crate) fn echoes_original(&self, segment: &Segment<'_>) -> bool {
        let first = self.cold.undo.as_ref().and_then(|undo| undo.retrans_stamp);
        match (first, segment.options.timestamps) {
            (Some(first), Some(t)) if self.hot.has(flags::TIMESTAMPS) => {
                (t.tsecr.wrapping_sub(first.0) as i32) < 0
            }
            _ => false,
        }
    }

    /// Restores cwnd and ssthresh from before the recovery, but lowers neither. Returns false if
    /// there was no recovery to undo.
    pub(crate) fn undo_reduction(&mut self) -> bool {
        let Some(undo) = self.cold.undo.take() else {
            return false;
        };
        let since = *self.cold.controller.window();
        self.cold.controller.undo(&undo.controller);
        let window = self.cold.controller.window_mut();
        window.raise_to(since.cwnd(), since.ssthresh());
        self.cold.reduced_until = self.hot.snd_una;
        true
    }
}
