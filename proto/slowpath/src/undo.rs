//! Repairs that were not needed: how that is seen, by DSACK (RFC 2883) or by an echoed timestamp
//! (RFC 3522), and what it takes back.

use tidelane_cc::{CongestionControl, Controller};
use tidelane_flow::{CaState, Env, Millis, flags};
use tidelane_wire::{Segment, SeqNumber};

use crate::Slow;

/// Most quarters of the least round trip that reordering is given, within SRTT (Linux: as many).
const REORDER_QUARTERS_MAX: u32 = 255;
/// Recoveries after which that is forgotten (RFC 8985 §6.2 step 4).
const REORDER_PERSIST: u8 = 16;

/// What a repair changed, to be taken back if it turns out that nothing was lost.
#[derive(Clone, Copy, Debug)]
pub struct Undo {
    /// The controller before.
    pub controller: Controller,
    /// Bytes sent again that the peer has not reported as duplicates.
    pub unneeded: u32,
    /// When the first of them was, by our timestamp clock.
    pub first_sent: Option<Millis>,
}

impl<E: Env> Slow<'_, E> {
    /// Whether the first block tells of a duplicate (RFC 2883 §4).
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

    /// Something was sent again without need: the path reorders more than was thought
    /// (RFC 8985 §6.2 step 4), and if that holds for all of it, nothing was lost.
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
        undo.unneeded = undo.unneeded.saturating_sub(end.distance_from(start));
        if undo.unneeded == 0 {
            self.take_back();
            self.end_reduction();
            if self
                .cold
                .board
                .as_ref()
                .is_none_or(|board| board.lost() == 0)
            {
                self.cold.ca_state = CaState::Open;
            }
        }
    }

    /// In fast recovery SND.UNA moved from `prior_una`. If the segment echoes what was sent at
    /// first, that was only late: the path reorders (as in Linux).
    pub(crate) fn check_repair(&mut self, segment: &Segment<'_>, prior_una: SeqNumber) {
        if self.cold.ca_state == CaState::Recovery && self.echoes_original(segment) {
            self.note_reordering(prior_una);
        }
    }

    /// RFC 3522 §3.2: the echoed timestamp is older than the first retransmission.
    pub(crate) fn echoes_original(&self, segment: &Segment<'_>) -> bool {
        let first = self.cold.undo.and_then(|undo| undo.first_sent);
        match (first, segment.options.timestamps) {
            (Some(first), Some(t)) if self.hot.has(flags::TIMESTAMPS) => {
                (t.tsecr.wrapping_sub(first.0) as i32) < 0
            }
            _ => false,
        }
    }

    /// The window is what it was before the repair, or what it has become since, if that is more.
    /// Whether there was a repair to take back.
    pub(crate) fn take_back(&mut self) -> bool {
        let Some(undo) = self.cold.undo.take() else {
            return false;
        };
        let since = self.cold.controller;
        self.cold.controller.undo(&undo.controller);
        let window = self.cold.controller.window_mut();
        window.widen(since.cwnd(), since.ssthresh());
        self.cold.reduced_until = self.hot.snd_una;
        true
    }
}
