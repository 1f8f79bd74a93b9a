//! The sender's only timer, which has one of three purposes at a time: retransmission timeout
//! (RTO), tail loss probe (RFC 8985 §7), or RACK's wait for reordered segments (reordering timer).

use super::{CaState, Sender, Timer, Undo, output::Next};
use crate::{
    rack::DUP_THRESH,
    rtt::{RTO_MAX, RTO_MIN},
};

/// Time in microseconds by which the delay of a tail loss probe exceeds two round trips if several
/// segments are outstanding (`TCP_TIMEOUT_MIN`).
const TIMEOUT_MIN: u64 = 2_000;

impl Sender {
    /// Sets the timer for the purpose `timer`. The timer expires after `span` microseconds.
    pub(super) fn arm(&mut self, timer: Timer, span: u64) {
        let span = span.clamp(1, RTO_MAX);
        self.timer = Some((timer, self.ticks.deadline(self.now, span)));
    }

    /// Returns the time in microseconds until the retransmission timeout, counted from the last
    /// transmission of the segment at SND.UNA.
    fn timeout_left(&self) -> u64 {
        let sent = self
            .scoreboard
            .get(self.scoreboard.snd_una)
            .map_or(self.now, |s| s.at);
        (sent + self.ticks.round_up(self.rto)).saturating_sub(self.now)
    }

    /// Sets the retransmission timer, or stops the timer if no segment is in flight. If the timer
    /// is set for another purpose, the timeout counts from the last transmission of the segment at
    /// SND.UNA. Otherwise, the timeout counts from now (`tcp_rearm_rto`).
    pub(super) fn rearm(&mut self) {
        if self.scoreboard.packets_out() == 0 {
            self.timer = None;
            return;
        }
        let other = matches!(self.timer, Some((Timer::Reordering | Timer::LossProbe, _)));
        let span = if other { self.timeout_left() } else { self.rto };
        self.arm(Timer::Rto, span);
    }

    /// Sets the timer after an ACK (`tcp_set_xmit_timer`).
    pub(super) fn set_xmit_timer(&mut self) {
        if !self.schedule_loss_probe(true) {
            self.rearm();
        }
    }

    /// Schedules a tail loss probe (RFC 8985 §7.2). Returns true if a probe was scheduled.
    /// `advancing` is true if an ACK restarts the retransmission timeout.
    pub(super) fn schedule_loss_probe(&mut self, advancing: bool) -> bool {
        let may_probe = matches!(self.ca_state, CaState::Open | CaState::Cwr);
        if !may_probe || self.scoreboard.packets_out() == 0 {
            return false;
        }
        // The peer may delay the ACK of a single segment.
        let more = match self.scoreboard.packets_out() {
            1 => RTO_MIN as u64,
            _ => TIMEOUT_MIN,
        };
        let mut span = (2.0 * self.rtt.srtt) as u64 + more;
        let left = if advancing {
            self.rto
        } else {
            self.timeout_left()
        };
        if left > 0 {
            span = span.min(left);
        }
        self.arm(Timer::LossProbe, span);
        true
    }

    /// Handles the expiry of the probe timer. If no probe is outstanding, sends a tail loss probe
    /// (RFC 8985 §7.3). Sets the retransmission timer in both cases.
    pub(super) fn send_loss_probe(&mut self) {
        if self.scoreboard.packets_out() == 0 {
            return;
        }
        if self.probe.is_none() {
            let new = self.send_new(false);
            if !new {
                let last = self.scoreboard.snd_nxt() - 1;
                self.retransmit(last);
            }
            self.counters.loss_probes += 1;
            self.probe = Some((self.scoreboard.snd_nxt(), !new));
            // The retransmission timeout counts from the probe instead of from the first segment in
            // flight.
            self.timer = None;
            return self.rearm();
        }
        // A probe is outstanding. With the timer `LossProbe`, `rearm` counts the timeout from the
        // transmission of the segment at SND.UNA, instead of from now.
        self.timer = Some((Timer::LossProbe, self.now));
        self.rearm();
    }

    /// Handles the expiry of the reordering timer (RFC 8985 §6.2 step 5).
    pub(super) fn on_reordering_timer(&mut self) {
        let before = self.scoreboard.in_flight();
        self.run_rack();
        if self.scoreboard.in_flight() != before {
            if self.ca_state != CaState::Recovery {
                self.enter_recovery();
                self.cwnd_reduction(1, false, true);
            }
            self.xmit_recovery(Next::Lost);
        }
        if !matches!(self.timer, Some((Timer::Rto, _))) {
            self.timer.get_or_insert((Timer::Reordering, self.now));
            self.rearm();
        }
    }

    /// Handles the expiry of the retransmission timer (RFC 6298 §5.4 to §5.6, RFC 5682 §2.1 step
    /// 1).
    pub(super) fn on_timeout(&mut self) {
        if self.scoreboard.packets_out() == 0 {
            return;
        }
        self.counters.timeouts += 1;
        self.enter_loss();
        self.timeouts += 1;
        self.retransmit(self.scoreboard.snd_una);
        self.rto = (2 * self.rto).min(RTO_MAX);
        self.arm(Timer::Rto, self.rto);
    }

    fn enter_loss(&mut self) {
        let fresh = self.ca_state < CaState::Recovery;
        self.mark_old_lost();
        let again = self.ca_state == CaState::Loss && self.timeouts == 0;
        if self.ca_state <= CaState::Disorder || self.high_seq <= self.scoreboard.snd_una || again {
            let prior = Some((self.cubic.cwnd, self.current_ssthresh()));
            self.cubic.reduce();
            self.init_undo(prior);
        }
        self.cubic.cwnd = self.scoreboard.in_flight() + 1;
        if self.ca_state <= CaState::Disorder && self.scoreboard.sacked >= DUP_THRESH {
            self.rack.reordering = self.rack.reordering.min(DUP_THRESH);
        }
        self.ca_state = CaState::Loss;
        self.cubic.reset();
        self.high_seq = self.scoreboard.snd_nxt();
        self.probe = None;
        self.frto = fresh || self.timeouts > 0;
    }

    /// Marks the segment at SND.UNA lost, and all segments whose last transmission is at least a
    /// round trip old. SACKed segments are not marked.
    fn mark_old_lost(&mut self) {
        let (first, now, rtt) = (self.scoreboard.snd_una, self.now, self.rack.rtt);
        for seq in first..self.scoreboard.snd_nxt() {
            let sent = self.scoreboard.get(seq);
            let recent = sent.is_some_and(|sent| sent.at + rtt > now);
            if seq == first || !recent {
                self.scoreboard.mark_lost(seq);
            }
        }
    }

    /// Begins the undo state of a window reduction. [`Undo`] describes `prior`.
    pub(super) fn init_undo(&mut self, prior: Option<(u64, u64)>) {
        let again = self.scoreboard.retrans_out;
        self.undo = Undo {
            marker: Some(self.scoreboard.snd_una),
            undo_retrans: (again > 0).then_some(again),
            prior,
            retrans_stamp: self.undo.retrans_stamp,
        };
    }
}
