//! Changes of the congestion state: recovery (RFC 6675, 8985), proportional rate reduction (RFC
//! 6937) and F-RTO (RFC 5682).

use super::{CaState, Prr, Sender, Timer, ack::AckEffects, output::Next};
use crate::{cubic::SSTHRESH_INFINITE, rack::WindowInputs};

/// Time in microseconds that is added to the computed wait of the reordering timer (Linux:
/// `TCP_TIMEOUT_MIN`).
const REORDERING_TIMEOUT_EXTRA: u64 = 2_000;

impl Sender {
    /// Runs loss detection if RACK has advanced since the last run. Returns true if a
    /// retransmission was marked lost.
    fn detect_loss(&mut self) -> bool {
        std::mem::take(&mut self.rack.advanced) && self.run_rack()
    }

    /// Runs RACK loss detection. Returns true if a retransmission was marked lost.
    pub(super) fn run_rack(&mut self) -> bool {
        let inputs = WindowInputs {
            recovering: self.ca_state >= CaState::Recovery,
            sacked: self.scoreboard.sacked,
            rtt_min: self.rtt.min,
            srtt: self.rtt.srtt,
        };
        let (window, before) = (self.rack.reo_wnd(&inputs), self.scoreboard.retrans_out);
        if let Some(wait) = self
            .rack
            .detect_loss(&mut self.scoreboard, self.now, window)
        {
            self.arm(Timer::Reordering, wait + REORDERING_TIMEOUT_EXTRA);
            self.reordering_armed = true;
        }
        self.scoreboard.retrans_out < before
    }

    /// Handles an ACK that indicates a problem (such as a SACK or a duplicate ACK), or that arrives
    /// in a congestion state other than Open (`tcp_fastretrans_alert`).
    pub(super) fn process_dubious_ack(&mut self, effects: &mut AckEffects) -> Next {
        if self.ca_state == CaState::Open {
            self.undo.retrans_stamp = None;
        } else if self.scoreboard.snd_una >= self.high_seq {
            match self.ca_state {
                CaState::Cwr if self.scoreboard.snd_una != self.high_seq => {
                    self.end_reduction();
                    self.ca_state = CaState::Open;
                }
                CaState::Recovery => {
                    let reduced = self.undo.marker.is_some();
                    self.try_undo_recovery();
                    // An undo clears `marker`. The window that the undo restored is then kept.
                    if reduced && self.undo.marker.is_some() {
                        self.cubic.cwnd = self.cubic.ssthresh;
                    }
                }
                _ => {}
            }
        }
        match self.ca_state {
            CaState::Recovery => self.process_recovery(effects),
            CaState::Loss => {
                let next = self.process_loss(effects);
                effects.lost_retrans |= self.detect_loss();
                if self.ca_state != CaState::Open && !effects.lost_retrans {
                    return next;
                }
                self.detect_and_recover();
                Next::Lost
            }
            _ => {
                self.detect_and_recover();
                Next::Lost
            }
        }
    }

    fn process_recovery(&mut self, effects: &mut AckEffects) -> Next {
        if effects.advanced && self.undo_partially(effects.prior_una) {
            return Next::Nothing;
        }
        if self.undo_by_dsack() {
            self.try_to_open();
        }
        self.detect_loss();
        if self.ca_state != CaState::Recovery {
            if self.scoreboard.lost == 0 {
                return Next::Nothing;
            }
            self.enter_recovery();
        }
        Next::Lost
    }

    fn detect_and_recover(&mut self) {
        if self.ca_state <= CaState::Disorder {
            self.undo_by_dsack();
        }
        self.detect_loss();
        if self.scoreboard.lost == 0 {
            self.try_to_open();
        } else {
            self.enter_recovery();
        }
    }

    pub(super) fn enter_recovery(&mut self) {
        self.counters.fast_retrans += 1;
        if self.is_reducing() {
            self.init_undo(None);
        } else {
            let prior = Some((self.cubic.cwnd, self.current_ssthresh()));
            self.init_undo(prior);
            self.begin_reduction();
        }
        self.ca_state = CaState::Recovery;
    }

    pub(super) fn begin_reduction(&mut self) {
        self.high_seq = self.scoreboard.snd_nxt();
        self.probe = None;
        self.prr = Prr {
            prior_cwnd: self.cubic.cwnd,
            ..Prr::default()
        };
        self.cubic.reduce();
    }

    /// Sets the window by proportional rate reduction (RFC 6937 §3). `delivered` is the number of
    /// newly delivered segments. The slow start reduction bound (PRR-SSRB) allows an additional
    /// segment only if `advanced` is true (SND.UNA has advanced) and `more_lost` is false (no new
    /// losses).
    pub(super) fn cwnd_reduction(&mut self, delivered: u64, advanced: bool, more_lost: bool) {
        let prr = &mut self.prr;
        if delivered == 0 || prr.prior_cwnd == 0 {
            return;
        }
        prr.delivered += delivered;
        let (flight, target) = (self.scoreboard.in_flight(), self.cubic.ssthresh);
        let count = if flight > target {
            let share = (target * prr.delivered).div_ceil(prr.prior_cwnd);
            share.saturating_sub(prr.out)
        } else {
            let conserved = prr.delivered.saturating_sub(prr.out);
            let bonus = u64::from(advanced && !more_lost);
            (conserved.max(delivered) + bonus).min(target - flight)
        };
        // The first retransmission is sent immediately.
        let count = count.max(u64::from(prr.out == 0));
        self.cubic.cwnd = flight + count;
    }

    pub(super) fn end_reduction(&mut self) {
        let reduced = self.ca_state == CaState::Cwr || self.undo.marker.is_some();
        if self.cubic.ssthresh < SSTHRESH_INFINITE && reduced {
            self.cubic.cwnd = self.cubic.ssthresh;
        }
    }

    /// Handles an ACK in Loss, with F-RTO (RFC 5682 §3.1).
    fn process_loss(&mut self, effects: &AckEffects) -> Next {
        let recovered = self.scoreboard.snd_una >= self.high_seq;
        if effects.advanced && self.undo_loss(false) {
            return Next::Lost;
        }
        if self.frto {
            if effects.original_acked && self.undo_loss(true) {
                return Next::Lost;
            }
            if self.scoreboard.snd_nxt() > self.high_seq {
                self.frto &= !(effects.sacked || effects.is_duplicate());
            } else if effects.advanced && !recovered {
                self.high_seq = self.scoreboard.snd_nxt();
                if self.scoreboard.packets_out() < self.settings.window {
                    return Next::New;
                }
                self.frto = false;
            }
        }
        if recovered {
            self.try_undo_recovery();
        }
        Next::Lost
    }
}
