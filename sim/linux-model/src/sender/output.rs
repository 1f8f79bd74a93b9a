//! Transmission and retransmission of segments.
//!
//! New segments leave in super-frames: bursts that Linux passes to TSO as one packet.

use super::{CaState, Sender, Timer};
use crate::packet::Data;

/// Largest length of a super-frame, in bytes.
const BURST_BYTES: u64 = 65_536;
/// Smallest value of the limit of a super-frame's length, in segments.
const BURST_MIN: u64 = 2;
/// Time in microseconds after a transmission during which a super-frame may be deferred.
const DEFER_MAX: u64 = 1_000;

/// Kind of transmission with which the processing of an ACK ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// No retransmission.
    Nothing,
    /// Retransmit lost segments.
    Lost,
    /// Send new segments (F-RTO). If no new segment can be sent, retransmit lost segments.
    New,
}

impl Sender {
    /// Returns the timestamp clock in milliseconds.
    pub(super) const fn millis(&self) -> u64 {
        self.now / 1000
    }

    fn emit(&mut self, seq: u64) {
        self.counters.out_segs += 1;
        self.last_sent = self.now;
        self.queue.push(Data {
            seq,
            tsval: self.millis(),
            push: self.scoreboard.get(seq).is_some_and(|sent| sent.push),
        });
    }

    /// Sends one new segment, with PSH if `push` is true. Returns false if the peer's window is
    /// full.
    pub(super) fn send_new(&mut self, push: bool) -> bool {
        if self.scoreboard.packets_out() >= self.settings.window {
            return false;
        }
        let was_empty = self.scoreboard.packets_out() == 0;
        let seq = self.scoreboard.send(self.now, self.delivered);
        if push {
            self.scoreboard.push();
        }
        self.emit(seq);
        if was_empty || matches!(self.timer, Some((Timer::LossProbe, _))) {
            self.rearm();
        }
        true
    }

    /// Sends new segments in super-frames while the congestion window allows it (`tcp_write_xmit`).
    pub(super) fn write(&mut self) {
        let mut sent = 0;
        let mut deferred = false;
        while self.scoreboard.in_flight() < self.cubic.cwnd && !deferred {
            let most = self.burst_max();
            deferred = self.defers(most);
            let count = if deferred { 0 } else { self.send_burst(most) };
            if count == 0 {
                break;
            }
            sent += count;
        }
        if sent > 0 {
            if self.is_reducing() {
                self.prr.out += sent;
            }
            self.schedule_loss_probe(false);
        }
        self.cwnd_limited = deferred || self.scoreboard.in_flight() >= self.cubic.cwnd;
    }

    /// Returns the largest length of a super-frame in segments (`tcp_tso_autosize`). The length
    /// corresponds to about one millisecond at the pacing rate, plus an allowance for short paths.
    /// Linux computes the pacing rate even without pacing.
    fn burst_max(&self) -> u64 {
        let (cwnd, threshold) = (self.cubic.cwnd, self.cubic.ssthresh);
        let ahead = if cwnd < threshold / 2 { 2.0 } else { 1.2 };
        let bytes = (cwnd * self.settings.mss) as f64;
        let paced = ahead * bytes / self.rtt.srtt.max(1.0) * 1e6 / 1024.0;
        let near = BURST_BYTES
            .checked_shr((self.rtt.min >> 9).min(63) as u32)
            .unwrap_or(0);
        let bytes = (paced as u64 + near).min(BURST_BYTES);
        (bytes / self.settings.mss).max(BURST_MIN)
    }

    /// Returns true if the next super-frame is deferred so that it becomes longer
    /// (`tcp_tso_should_defer`). The sender defers only outside of Recovery and Loss, and within
    /// [`DEFER_MAX`] of the last transmission. The next ACK must be expected soon: at least half of
    /// SRTT must have passed since the last transmission of the segment at SND.UNA. The free window
    /// must be less than a third of the window and less than `most` segments.
    fn defers(&self, most: u64) -> bool {
        let free = self.cubic.cwnd - self.scoreboard.in_flight();
        let Some(head) = self.scoreboard.get(self.scoreboard.snd_una) else {
            return false;
        };
        let not_recovering = self.ca_state < CaState::Recovery;
        let recent = self.now - self.last_sent <= DEFER_MAX;
        let due = (self.now - head.at) as f64 >= self.rtt.srtt / 2.0;
        not_recovering && recent && due && free < most && 3 * free < self.cubic.cwnd
    }

    /// Sends one super-frame of at most `most` segments and at most half a congestion window.
    /// Returns its length in segments. If the super-frame has several segments, the last segment
    /// has PSH.
    fn send_burst(&mut self, most: u64) -> u64 {
        let cwnd = self.cubic.cwnd;
        let free = cwnd - self.scoreboard.in_flight();
        let room = self
            .settings
            .window
            .saturating_sub(self.scoreboard.packets_out());
        let count = (cwnd / 2).max(1).min(free).min(room).min(most);
        for n in 1..=count {
            self.send_new(n == count && count > 1);
        }
        count
    }

    pub(super) fn retransmit(&mut self, seq: u64) {
        let (now, delivered) = (self.now, self.delivered);
        self.scoreboard.retransmit(seq, now, delivered);
        self.counters.retrans_segs += 1;
        let millis = self.millis();
        self.undo.retrans_stamp.get_or_insert(millis);
        *self.undo.undo_retrans.get_or_insert(0) += 1;
        self.emit(seq);
    }

    /// Retransmits lost segments while the congestion window allows it.
    fn retransmit_lost(&mut self) {
        while self.scoreboard.in_flight() < self.cubic.cwnd {
            let Some(seq) = self.scoreboard.next_lost() else {
                break;
            };
            self.retransmit(seq);
            if self.is_reducing() {
                self.prr.out += 1;
            }
            let reordering = matches!(self.timer, Some((Timer::Reordering, _)));
            if seq == self.scoreboard.snd_una && !reordering {
                self.arm(Timer::Rto, self.rto);
            }
        }
    }

    /// Performs the transmission with which the processing of an ACK ends.
    pub(super) fn xmit_recovery(&mut self, next: Next) {
        match next {
            Next::Nothing => return,
            Next::Lost => {}
            Next::New => {
                self.write();
                if self.scoreboard.snd_nxt() > self.high_seq {
                    return;
                }
                self.frto = false;
            }
        }
        self.retransmit_lost();
    }
}
