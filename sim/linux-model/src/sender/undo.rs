//! Reductions that were not needed: taken back by DSACK (RFC 3708), timestamps (RFC 3522) or F-RTO.

use super::{Phase, Sender};

impl Sender {
    /// What RFC 5681 would call the threshold before a reduction.
    pub(super) fn threshold_before(&self) -> u64 {
        if self.is_reducing() {
            return self.cubic.ssthresh;
        }
        let cwnd = self.cubic.cwnd;
        self.cubic.ssthresh.max(cwnd / 2 + cwnd / 4)
    }

    /// Whether the acknowledgment at hand is for something sent before the first repair.
    pub(super) fn is_merely_late(&self) -> bool {
        self.undo.first.is_none_or(|first| self.tsecr < first)
    }

    fn may_undo(&self) -> bool {
        self.undo.marker.is_some() && (self.undo.repairs == Some(0) || self.is_merely_late())
    }

    pub(super) fn take_back(&mut self, unmark: bool) {
        if unmark {
            self.board.find_all();
        }
        if let Some((cwnd, ssthresh)) = self.undo.prior {
            self.cubic.cwnd = self.cubic.cwnd.max(cwnd);
            self.cubic.ssthresh = self.cubic.ssthresh.max(ssthresh);
            self.counters.undone += 1;
        }
        self.undo.marker = None;
        self.rack.advanced = true;
    }

    /// A repair is over.
    pub(super) fn end_repair(&mut self) {
        if self.may_undo() {
            self.take_back(false);
        } else {
            self.rack.persist = self.rack.persist.saturating_sub(1);
        }
        self.phase = Phase::Open;
    }

    /// All that was sent again has been reported as duplicates.
    pub(super) fn undo_by_duplicates(&mut self) -> bool {
        let all = self.undo.marker.is_some() && self.undo.repairs == Some(0);
        if all {
            self.take_back(false);
        }
        all
    }

    /// A timeout; `arrived`: something that was never sent again has.
    pub(super) fn undo_timeout(&mut self, arrived: bool) -> bool {
        if !arrived && !self.may_undo() {
            return false;
        }
        self.take_back(true);
        self.counters.spurious_timeouts += u64::from(arrived);
        self.timeouts = 0;
        self.phase = Phase::Open;
        true
    }

    /// In recovery SND.UNA moved, from `prior`. Whether nothing more should be marked lost.
    pub(super) fn undo_partially(&mut self, prior: u64) -> bool {
        if self.undo.marker.is_none() || !self.is_merely_late() {
            return false;
        }
        let high = self.board.high_sacked();
        self.rack.note_reordering(prior, high);
        if self.board.again > 0 {
            return true;
        }
        if !self.board.is_repaired() {
            self.undo.first = None;
        }
        self.take_back(true);
        self.keep_open();
        false
    }

    /// Open, or disorder while something is missing or was sent again.
    pub(super) fn keep_open(&mut self) {
        let missing = self.board.sacked + self.board.lost > 0;
        let phase = if missing || self.board.is_repaired() {
            Phase::Disorder
        } else {
            Phase::Open
        };
        if phase != self.phase {
            self.phase = phase;
            self.high_seq = self.board.nxt();
        }
    }

    /// The end of what an acknowledgment does where nothing is lost.
    pub(super) fn try_to_open(&mut self) {
        if !self.board.is_repaired() {
            self.undo.first = None;
        }
        if self.phase != Phase::Cwr {
            self.keep_open();
        }
    }
}
