//! Undo of spurious window reductions. The sender detects a spurious reduction by DSACK (RFC 3708),
//! by timestamps (RFC 3522) or by F-RTO (RFC 5682).

use super::{CaState, Sender};

impl Sender {
    /// Returns the ssthresh that an undo restores (`tcp_current_ssthresh`).
    pub(super) fn current_ssthresh(&self) -> u64 {
        if self.is_reducing() {
            return self.cubic.ssthresh;
        }
        let cwnd = self.cubic.cwnd;
        self.cubic.ssthresh.max(cwnd / 2 + cwnd / 4)
    }

    /// Returns true if the current ACK echoes a timestamp from before the first retransmission, or
    /// if there was no retransmission.
    pub(super) fn acks_original_transmission(&self) -> bool {
        self.undo
            .retrans_stamp
            .is_none_or(|first| self.tsecr < first)
    }

    fn may_undo(&self) -> bool {
        self.undo.marker.is_some()
            && (self.undo.undo_retrans == Some(0) || self.acks_original_transmission())
    }

    /// Raises the window and ssthresh to the values in `Undo::prior`, if any. If `unmark` is true,
    /// also removes all loss marks.
    pub(super) fn undo_reduction(&mut self, unmark: bool) {
        if unmark {
            self.scoreboard.unmark_lost();
        }
        if let Some((cwnd, ssthresh)) = self.undo.prior {
            self.cubic.cwnd = self.cubic.cwnd.max(cwnd);
            self.cubic.ssthresh = self.cubic.ssthresh.max(ssthresh);
            self.counters.undone += 1;
        }
        self.undo.marker = None;
        self.rack.advanced = true;
    }

    /// Ends Recovery or Loss. Undoes the window reduction if the losses were spurious.
    pub(super) fn try_undo_recovery(&mut self) {
        if self.may_undo() {
            self.undo_reduction(false);
        } else {
            self.rack.reo_wnd_persist = self.rack.reo_wnd_persist.saturating_sub(1);
        }
        self.ca_state = CaState::Open;
    }

    /// Undoes the window reduction if DSACKs have reported all retransmissions. Returns true if the
    /// reduction was undone.
    pub(super) fn undo_by_dsack(&mut self) -> bool {
        let all = self.undo.marker.is_some() && self.undo.undo_retrans == Some(0);
        if all {
            self.undo_reduction(false);
        }
        all
    }

    /// Undoes a spurious timeout. Returns true if the timeout was undone. `arrived` is true if an
    /// original transmission has arrived, which proves that the timeout was spurious.
    pub(super) fn undo_loss(&mut self, arrived: bool) -> bool {
        if !arrived && !self.may_undo() {
            return false;
        }
        self.undo_reduction(true);
        self.counters.spurious_timeouts += u64::from(arrived);
        self.timeouts = 0;
        self.ca_state = CaState::Open;
        true
    }

    /// Handles an ACK in Recovery that has advanced SND.UNA from `prior`. If the ACK is for an
    /// original transmission and no retransmission is in flight, undoes the window reduction.
    /// Returns true if the ACK is for an original transmission and retransmissions are in flight.
    /// No further segments should then be marked lost.
    pub(super) fn undo_partially(&mut self, prior: u64) -> bool {
        if self.undo.marker.is_none() || !self.acks_original_transmission() {
            return false;
        }
        let high = self.scoreboard.high_sacked();
        self.rack.note_reordering(prior, high);
        if self.scoreboard.retrans_out > 0 {
            return true;
        }
        if !self.scoreboard.has_retransmissions() {
            self.undo.retrans_stamp = None;
        }
        self.undo_reduction(true);
        self.keep_open();
        false
    }

    /// Enters Disorder if segments are SACKed, lost or retransmitted. Enters Open otherwise.
    pub(super) fn keep_open(&mut self) {
        let missing = self.scoreboard.sacked + self.scoreboard.lost > 0;
        let ca_state = if missing || self.scoreboard.has_retransmissions() {
            CaState::Disorder
        } else {
            CaState::Open
        };
        if ca_state != self.ca_state {
            self.ca_state = ca_state;
            self.high_seq = self.scoreboard.snd_nxt();
        }
    }

    /// Updates the state after an ACK that indicates no losses (`tcp_try_to_open`).
    pub(super) fn try_to_open(&mut self) {
        if !self.scoreboard.has_retransmissions() {
            self.undo.retrans_stamp = None;
        }
        if self.ca_state != CaState::Cwr {
            self.keep_open();
        }
    }
}
