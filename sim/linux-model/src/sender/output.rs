//! What is sent, new or again.

use super::{Phase, Sender, Timer};
use crate::packet::Data;

/// Bytes of a super-frame, at most.
const BURST_BYTES: u64 = 65_536;
/// Segments of a super-frame that is as long as it may be, at least.
const BURST_MIN: u64 = 2;
/// Microseconds since something was sent after which nothing waits.
const DEFER_MAX: u64 = 1_000;

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
        self.written = self.now;
        self.queue.push(Data {
            seq,
            tsval: self.millis(),
            push: self.board.get(seq).is_some_and(|sent| sent.push),
        });
    }

    /// One new segment, if the peer's window has room.
    pub(super) fn send_new(&mut self, push: bool) -> bool {
        if self.board.out() >= self.settings.window {
            return false;
        }
        let was_empty = self.board.out() == 0;
        let seq = self.board.send(self.now, self.delivered);
        if push {
            self.board.push();
        }
        self.emit(seq);
        if was_empty || matches!(self.timer, Some((Timer::Probe, _))) {
            self.rearm();
        }
        true
    }

    /// New segments, as many as the window lets go, in super-frames.
    pub(super) fn write(&mut self) {
        let mut sent = 0;
        let mut deferred = false;
        while self.board.in_flight() < self.cubic.cwnd && !deferred {
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
                self.reduction.out += sent;
            }
            self.schedule_probe(false);
        }
        self.cwnd_limited = deferred || self.board.in_flight() >= self.cubic.cwnd;
    }

    /// Segments of a super-frame, at most: about a millisecond at the rate that pacing would have,
    /// and more the shorter the path is.
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

    /// Whether a super-frame waits to become longer: less than a third of the window is free, and
    /// the next acknowledgment is about to come.
    fn defers(&self, most: u64) -> bool {
        let free = self.cubic.cwnd - self.board.in_flight();
        let Some(head) = self.board.get(self.board.una) else {
            return false;
        };
        let calm = self.phase < Phase::Recovery;
        let recent = self.now - self.written <= DEFER_MAX;
        let due = (self.now - head.at) as f64 >= self.rtt.srtt / 2.0;
        calm && recent && due && free < most && 3 * free < self.cubic.cwnd
    }

    /// One super-frame: at most half a window. Its last segment has PSH, if there are several.
    fn send_burst(&mut self, most: u64) -> u64 {
        let cwnd = self.cubic.cwnd;
        let free = cwnd - self.board.in_flight();
        let room = self.settings.window.saturating_sub(self.board.out());
        let count = (cwnd / 2).max(1).min(free).min(room).min(most);
        for n in 1..=count {
            self.send_new(n == count && count > 1);
        }
        count
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
