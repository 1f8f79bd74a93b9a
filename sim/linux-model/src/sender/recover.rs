//! From phase to phase: recovery (RFC 6675, 8985), proportional rate reduction (RFC 6937), F-RTO.

use super::{Phase, Reduction, Sender, Timer, ack::Seen, output::Next};
use crate::{cubic::INFINITE, rack::Grace};

/// The least that the reordering timer waits beyond what is due, in microseconds.
const REORDERING_MIN: u64 = 2_000;

impl Sender {
    /// Looks for losses if something has arrived that was sent later than all before. Whether it
    /// gave up something that had been sent again.
    fn find_lost(&mut self) -> bool {
        std::mem::take(&mut self.rack.advanced) && self.give_up_late()
    }

    /// RACK. Whether it gave up something that had been sent again.
    pub(super) fn give_up_late(&mut self) -> bool {
        let grace = Grace {
            repairing: self.phase >= Phase::Recovery,
            sacked: self.board.sacked,
            rtt_min: self.rtt.min,
            srtt: self.rtt.srtt,
        };
        let (window, before) = (self.rack.window(&grace), self.board.again);
        if let Some(wait) = self.rack.find_lost(&mut self.board, self.now, window) {
            self.arm(Timer::Reordering, wait + REORDERING_MIN);
            self.reordering_armed = true;
        }
        self.board.again < before
    }

    /// An acknowledgment that is not plain.
    pub(super) fn alert(&mut self, seen: &mut Seen) -> Next {
        if self.phase == Phase::Open {
            self.undo.first = None;
        } else if self.board.una >= self.high_seq {
            match self.phase {
                Phase::Cwr if self.board.una != self.high_seq => {
                    self.end_reduction();
                    self.phase = Phase::Open;
                }
                Phase::Recovery => {
                    let reduced = self.undo.marker.is_some();
                    self.end_repair();
                    // What was taken back stays so.
                    if reduced && self.undo.marker.is_some() {
                        self.cubic.cwnd = self.cubic.ssthresh;
                    }
                }
                _ => {}
            }
        }
        match self.phase {
            Phase::Recovery => self.alert_in_recovery(seen),
            Phase::Loss => {
                let next = self.process_loss(seen);
                seen.gave_up_repair |= self.find_lost();
                if self.phase != Phase::Open && !seen.gave_up_repair {
                    return next;
                }
                self.alert_elsewhere();
                Next::Lost
            }
            _ => {
                self.alert_elsewhere();
                Next::Lost
            }
        }
    }

    fn alert_in_recovery(&mut self, seen: &mut Seen) -> Next {
        if seen.advanced && self.undo_partially(seen.prior_una) {
            return Next::Nothing;
        }
        if self.undo_by_duplicates() {
            self.try_to_open();
        }
        self.find_lost();
        if self.phase != Phase::Recovery {
            if self.board.lost == 0 {
                return Next::Nothing;
            }
            self.enter_recovery();
        }
        Next::Lost
    }

    fn alert_elsewhere(&mut self) {
        if self.phase <= Phase::Disorder {
            self.undo_by_duplicates();
        }
        self.find_lost();
        if self.board.lost == 0 {
            self.try_to_open();
        } else {
            self.enter_recovery();
        }
    }

    pub(super) fn enter_recovery(&mut self) {
        self.counters.fast_retrans += 1;
        if self.is_reducing() {
            self.begin_undo(None);
        } else {
            let prior = Some((self.cubic.cwnd, self.threshold_before()));
            self.begin_undo(prior);
            self.begin_reduction();
        }
        self.phase = Phase::Recovery;
    }

    pub(super) fn begin_reduction(&mut self) {
        self.high_seq = self.board.nxt();
        self.probe = None;
        self.reduction = Reduction {
            prior_cwnd: self.cubic.cwnd,
            ..Reduction::default()
        };
        self.cubic.reduce();
    }

    /// RFC 6937 §3.1, with the slow start part where SND.UNA moves and nothing more is lost.
    pub(super) fn reduce(&mut self, delivered: u64, advanced: bool, more_lost: bool) {
        let reduction = &mut self.reduction;
        if delivered == 0 || reduction.prior_cwnd == 0 {
            return;
        }
        reduction.delivered += delivered;
        let (flight, target) = (self.board.in_flight(), self.cubic.ssthresh);
        let count = if flight > target {
            let share = (target * reduction.delivered).div_ceil(reduction.prior_cwnd);
            share.saturating_sub(reduction.out)
        } else {
            let conserved = reduction.delivered.saturating_sub(reduction.out);
            let bonus = u64::from(advanced && !more_lost);
            (conserved.max(delivered) + bonus).min(target - flight)
        };
        // The fast retransmission goes at once.
        let count = count.max(u64::from(reduction.out == 0));
        self.cubic.cwnd = flight + count;
    }

    pub(super) fn end_reduction(&mut self) {
        let reduced = self.phase == Phase::Cwr || self.undo.marker.is_some();
        if self.cubic.ssthresh < INFINITE && reduced {
            self.cubic.cwnd = self.cubic.ssthresh;
        }
    }

    /// RFC 5682 §3.1.
    fn process_loss(&mut self, seen: &Seen) -> Next {
        let recovered = self.board.una >= self.high_seq;
        if seen.advanced && self.undo_timeout(false) {
            return Next::Lost;
        }
        if self.frto {
            if seen.original && self.undo_timeout(true) {
                return Next::Lost;
            }
            if self.board.nxt() > self.high_seq {
                self.frto &= !(seen.sacked || seen.is_duplicate());
            } else if seen.advanced && !recovered {
                self.high_seq = self.board.nxt();
                if self.board.out() < self.settings.window {
                    return Next::New;
                }
                self.frto = false;
            }
        }
        if recovered {
            self.end_repair();
        }
        Next::Lost
    }
}
