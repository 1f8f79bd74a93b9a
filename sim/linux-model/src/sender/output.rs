//! What is sent, new or again.

use super::{Sender, Timer};
use crate::packet::Data;

/// What follows an acknowledgment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Nothing,
    /// Repairs.
    Lost,
    /// F-RTO: new text first.
    New,
}

impl Sender {
    /// The timestamp clock.
    pub(super) const fn millis(&self) -> u64 {
        self.now / 1000
    }

    fn emit(&mut self, seq: u64) {
        self.counters.out_segs += 1;
        self.queue.push(Data {
            seq,
            tsval: self.millis(),
        });
    }

    /// One new segment, if the peer's window has room.
    pub(super) fn send_new(&mut self) -> bool {
        if self.board.out() >= self.settings.window {
            return false;
        }
        let was_empty = self.board.out() == 0;
        let seq = self.board.send(self.now, self.delivered);
        self.emit(seq);
        if was_empty || matches!(self.timer, Some((Timer::Probe, _))) {
            self.rearm();
        }
        true
    }

    /// New segments, as many as the window lets go.
    pub(super) fn write(&mut self) {
        let mut sent = 0;
        while self.board.in_flight() < self.cubic.cwnd && self.send_new() {
            sent += 1;
        }
        if sent > 0 {
            if self.is_reducing() {
                self.reduction.out += sent;
            }
            self.schedule_probe(false);
        }
        self.cwnd_limited = self.board.in_flight() >= self.cubic.cwnd;
    }

    pub(super) fn send_again(&mut self, seq: u64) {
        let (now, delivered) = (self.now, self.delivered);
        self.board.send_again(seq, now, delivered);
        self.counters.retrans_segs += 1;
        let millis = self.millis();
        self.undo.first.get_or_insert(millis);
        *self.undo.repairs.get_or_insert(0) += 1;
        self.emit(seq);
    }

    /// What was marked lost, as far as the window lets it go.
    fn send_lost(&mut self) {
        while self.board.in_flight() < self.cubic.cwnd {
            let Some(seq) = self.board.next_lost() else {
                break;
            };
            self.send_again(seq);
            if self.is_reducing() {
                self.reduction.out += 1;
            }
            let reordering = matches!(self.timer, Some((Timer::Reordering, _)));
            if seq == self.board.una && !reordering {
                self.arm(Timer::Timeout, self.rto);
            }
        }
    }

    pub(super) fn repair(&mut self, next: Next) {
        match next {
            Next::Nothing => return,
            Next::Lost => {}
            Next::New => {
                self.write();
                if self.board.nxt() > self.high_seq {
                    return;
                }
                self.frto = false;
            }
        }
        self.send_lost();
    }
}
