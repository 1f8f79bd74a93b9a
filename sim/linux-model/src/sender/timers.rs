//! The one timer: retransmission timeout, tail loss probe (RFC 8985 §7), reordering.

use super::{Phase, Sender, Timer, Undo, output::Next};
use crate::{
    rack::DUP_THRESH,
    rtt::{RTO_MAX, RTO_MIN},
};

/// The least that the probe and the reordering timer wait beyond what is due, in microseconds.
const TIMEOUT_MIN: u64 = 2_000;

impl Sender {
    pub(super) fn arm(&mut self, timer: Timer, span: u64) {
        let span = span.clamp(1, RTO_MAX);
        self.timer = Some((timer, self.ticks.deadline(self.now, span)));
    }

    /// What is left of the timeout, counted from when the first segment in flight was sent.
    fn timeout_left(&self) -> u64 {
        let sent = self.board.get(self.board.una).map_or(self.now, |s| s.at);
        (sent + self.ticks.round_up(self.rto)).saturating_sub(self.now)
    }

    pub(super) fn rearm(&mut self) {
        if self.board.out() == 0 {
            self.timer = None;
            return;
        }
        let other = matches!(self.timer, Some((Timer::Reordering | Timer::Probe, _)));
        let span = if other { self.timeout_left() } else { self.rto };
        self.arm(Timer::Timeout, span);
    }

    /// After an acknowledgment.
    pub(super) fn set_timer(&mut self) {
        if !self.schedule_probe(true) {
            self.rearm();
        }
    }

    /// RFC 8985 §7.2. `advancing`: the timeout begins anew. Whether one was scheduled.
    pub(super) fn schedule_probe(&mut self, advancing: bool) -> bool {
        let calm = matches!(self.phase, Phase::Open | Phase::Cwr);
        if !calm || self.board.out() == 0 {
            return false;
        }
        // A single segment may wait for its delayed acknowledgment.
        let more = match self.board.out() {
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
        self.arm(Timer::Probe, span);
        true
    }

    /// RFC 8985 §7.3.
    pub(super) fn send_probe(&mut self) {
        if self.board.out() == 0 {
            return;
        }
        if self.probe.is_none() {
            let new = self.send_new(false);
            if !new {
                let last = self.board.nxt() - 1;
                self.send_again(last);
            }
            self.counters.loss_probes += 1;
            self.probe = Some((self.board.nxt(), !new));
            // From now, not from when the first segment was sent.
            self.timer = None;
            return self.rearm();
        }
        self.timer = Some((Timer::Probe, self.now));
        self.rearm();
    }

    /// RFC 8985 §6.3.
    pub(super) fn on_reordering_timer(&mut self) {
        let before = self.board.in_flight();
        self.give_up_late();
        if self.board.in_flight() != before {
            if self.phase != Phase::Recovery {
                self.enter_recovery();
                self.reduce(1, false, true);
            }
            self.repair(Next::Lost);
        }
        if !matches!(self.timer, Some((Timer::Timeout, _))) {
            self.timer.get_or_insert((Timer::Reordering, self.now));
            self.rearm();
        }
    }

    /// RFC 6298 §5.4 to §5.6, and RFC 5682 step 1.
    pub(super) fn on_timeout(&mut self) {
        if self.board.out() == 0 {
            return;
        }
        self.counters.timeouts += 1;
        self.enter_loss();
        self.timeouts += 1;
        self.send_again(self.board.una);
        self.rto = (2 * self.rto).min(RTO_MAX);
        self.arm(Timer::Timeout, self.rto);
    }

    fn enter_loss(&mut self) {
        let fresh = self.phase < Phase::Recovery;
        self.give_up_old();
        let again = self.phase == Phase::Loss && self.timeouts == 0;
        if self.phase <= Phase::Disorder || self.high_seq <= self.board.una || again {
            let prior = Some((self.cubic.cwnd, self.threshold_before()));
            self.cubic.reduce();
            self.begin_undo(prior);
        }
        self.cubic.cwnd = self.board.in_flight() + 1;
        if self.phase <= Phase::Disorder && self.board.sacked >= DUP_THRESH {
            self.rack.reordering = self.rack.reordering.min(DUP_THRESH);
        }
        self.phase = Phase::Loss;
        self.cubic.reset();
        self.high_seq = self.board.nxt();
        self.probe = None;
        self.frto = fresh || self.timeouts > 0;
    }

    /// All is lost but what was sent within a round trip.
    fn give_up_old(&mut self) {
        let (first, now, rtt) = (self.board.una, self.now, self.rack.rtt);
        for seq in first..self.board.nxt() {
            let sent = self.board.get(seq);
            let recent = sent.is_some_and(|sent| sent.at + rtt > now);
            if seq == first || !recent {
                self.board.lose(seq);
            }
        }
    }

    pub(super) fn begin_undo(&mut self, prior: Option<(u64, u64)>) {
        let again = self.board.again;
        self.undo = Undo {
            marker: Some(self.board.una),
            repairs: (again > 0).then_some(again),
            prior,
            first: self.undo.first,
        };
    }
}
