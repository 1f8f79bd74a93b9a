//! Reordering: how far and how often the path does it, and how much grace that gives to what is
//! late (RFC 8985 §6.2 steps 3 and 4).

use tidelane_flow::{CaState, Env};
use tidelane_wire::SeqNumber;

use crate::{Slow, recover::DUP_THRESH};

/// The farthest that one segment is believed to overtake another, in segments (Linux:
/// `tcp_max_reordering`).
const REORDERING_MAX: u32 = 300;

/// What the peer's reports have told.
#[derive(Clone, Copy, Debug)]
pub struct Reordering {
    /// How often something came late (RFC 8985 §6.2 step 3).
    pub seen: u32,
    /// The farthest that anything was overtaken, in segments; DupThresh at first.
    pub degree: u32,
    /// DSACK blocks: what was sent again had only been late.
    pub dsacks: u32,
    /// RACK.reo_wnd_mult: quarters of the least round-trip time that reordering is given.
    pub quarters: u32,
    /// RACK.reo_wnd_persist: recoveries until that is forgotten.
    pub persist: u8,
    /// RACK.dsack_round: a duplicate that is reported before this is acknowledged is old news.
    pub round: SeqNumber,
}

impl Reordering {
    /// Nothing is known yet.
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

impl<E: Env> Slow<'_, E> {
    /// What begins at `start` was sent only once and came late.
    pub(crate) fn note_reordering(&mut self, start: SeqNumber) {
        let extent = self.track().extent_from(start);
        let segments = extent.div_ceil(u32::from(self.hot.mss)).min(REORDERING_MAX);
        let known = &mut self.cold.reordering;
        known.seen = known.seen.saturating_add(1);
        known.degree = known.degree.max(segments);
    }

    /// SACK brought news, and SND.UNA did not move. On a path that reorders far what arrives is
    /// rarely in order: it opens the window all the same (as in Linux).
    pub(crate) fn grow_out_of_order(&mut self) {
        let calm = matches!(self.cold.ca_state, CaState::Open | CaState::Disorder);
        if calm && self.cold.reordering.degree > DUP_THRESH {
            self.grow(self.cold.delivered.bytes, 0);
        }
    }

    /// RFC 8985 §6.2 step 4: how much later than in order a segment may come.
    pub(crate) fn reorder_us(&self) -> u32 {
        let enough = self
            .cold
            .board
            .as_ref()
            .is_some_and(|board| board.sacked() > (DUP_THRESH - 1) * u32::from(self.hot.mss));
        if self.cold.reordering.seen == 0 && (enough || self.is_repairing()) {
            return 0;
        }
        let quarter = (self.rtt_min_us() / 4).max(1);
        quarter
            .saturating_mul(self.cold.reordering.quarters)
            .min(self.hot.srtt >> 3)
    }

    /// What was given time to come late is lost now (RFC 8985 §6.2 step 5). No acknowledgment tells
    /// how much has left the network: one segment goes, the rest as acknowledgments come.
    pub(crate) fn on_reorder_timeout(&mut self) {
        let was_repairing = self.is_repairing();
        if self.find_lost() && !was_repairing {
            self.reduce(u32::from(self.hot.mss), false, true);
        }
    }
}
