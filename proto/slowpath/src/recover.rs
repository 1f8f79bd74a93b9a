//! What is lost, and how fast it is sent again.
//!
//! SACK-based recovery after RFC 6675 where SACK is in use, NewReno (RFC 6582) otherwise. Beyond
//! them: a reordering window in time, in the spirit of RFC 8985, finds losses of short flights, and
//! a retransmission is taken for lost when data sent after it has arrived.

use tidelane_cc::CongestionControl;
use tidelane_flow::{CaState, Env, flags};
use tidelane_time::Duration;
use tidelane_wire::{Segment, SeqNumber};

use crate::Slow;

/// DupThresh (RFC 5681 §3.2).
const DUP_THRESH: u32 = 3;

impl<E: Env> Slow<'_, E> {
    /// SRTT as a duration.
    pub fn srtt(&self) -> Duration {
        Duration::from_micros(u64::from(self.hot.srtt >> 3))
    }

    /// Takes the SACK blocks of a segment. Whether they say anything new. A block below SND.UNA, or
    /// beyond SND.NXT, says nothing (RFC 2018 §5; DSACK, RFC 2883, is only ignored).
    pub fn take_sack(&mut self, segment: &Segment<'_>) -> bool {
        if !self.hot.has(flags::SACK) {
            return false;
        }
        let mut news = false;
        let flight = self.hot.flight_size();
        for (start, end) in segment.options.sack.as_slice() {
            let inside = start.distance_from(self.hot.snd_una) <= flight
                && end.distance_from(self.hot.snd_una) <= flight
                && start.before(*end);
            if inside {
                news |= self.cold.sacked.insert(*start, *end);
            }
        }
        news
    }

    /// Bytes in flight by RFC 6675 §4 "SetPipe": sent, not sacked, and not lost unless sent again.
    pub fn pipe(&self) -> u32 {
        let cold = &*self.cold;
        let flight = self.hot.flight_size();
        let mut out = cold.sacked.bytes();
        let from = cold.high_rxt.later_of(self.hot.snd_una);
        if cold.lost_to.after(from) {
            let sacked = cold.sacked.bytes_above(from) - cold.sacked.bytes_above(cold.lost_to);
            out += cold.lost_to.distance_from(from).saturating_sub(sacked);
        }
        flight.saturating_sub(out)
    }

    /// SND.UNA moved to `ack`, `acked` bytes.
    pub fn on_ack_advance(&mut self, ack: SeqNumber, acked: u32) {
        self.hot.snd_una = ack;
        self.cold.sacked.remove_below(ack);
        self.cold.dup_acks = 0;
        self.cold.backoff = 0;
        self.cold.probed = false;
        self.cold.soft_error = None;
        self.cold.bytes_acked += u64::from(acked);
        while self
            .cold
            .retransmissions
            .front()
            .is_some_and(|r| r.end.at_or_before(ack))
        {
            self.cold.retransmissions.pop_front();
        }
        self.cold.high_rxt = self.cold.high_rxt.later_of(ack);
        self.cold.lost_to = self.cold.lost_to.later_of(ack);
        if self.hot.has(flags::RTT_TIMING) && self.hot.rtt_seq.at_or_before(ack) {
            self.hot.clear(flags::RTT_TIMING);
            // What waited for a hole to be filled says nothing of the path.
            if self.cold.ca_state == CaState::Open {
                let rtt = self.clock.us.wrapping_sub(self.hot.rtt_stamp);
                self.cold.rtt_min_us = self.cold.rtt_min_us.min(rtt);
                self.hot.sample_rtt(rtt);
            }
        }
        let repairing = matches!(self.cold.ca_state, CaState::Recovery | CaState::Loss);
        if repairing && ack.at_or_after(self.cold.recovery_point) {
            self.leave_recovery();
        } else if self.cold.ca_state != CaState::Recovery {
            self.grow(acked);
        } else if !self.hot.has(flags::SACK) {
            // NewReno (RFC 6582 §3.2 step 3): a partial acknowledgment shows the next hole.
            self.cold.lost_to = ack
                .add(u32::from(self.hot.mss))
                .earlier_of(self.hot.snd_nxt);
            self.cold.high_rxt = ack;
            self.cold.retransmissions.clear();
        }
        if self.hot.snd_una == self.hot.snd_nxt {
            self.hot
                .clear(flags::RTO_ARMED | flags::PROBE | flags::PERSIST | flags::SMALL_SENT);
        } else {
            self.arm_rto();
        }
        self.hot.set(flags::SEND_WANTED);
    }

    fn grow(&mut self, acked: u32) {
        let limited = self.hot.has(flags::CWND_LIMITED);
        self.cold
            .controller
            .on_ack(self.clock.now, acked, self.srtt(), limited);
        self.hot.cwnd = self.cold.controller.cwnd();
    }

    fn leave_recovery(&mut self) {
        self.cold.controller.on_recovery_exit(self.clock.now);
        self.hot.cwnd = self.cold.controller.cwnd();
        self.cold.ca_state = CaState::Open;
        self.cold.retransmissions.clear();
        self.cold.lost_to = self.hot.snd_una;
        self.cold.high_rxt = self.hot.snd_una;
        self.cold.reorder_deadline = None;
    }

    /// Looks for losses after an acknowledgment that brought `news` (new SACK information), or was
    /// a `duplicate`.
    pub fn detect_loss(&mut self, news: bool, duplicate: bool) {
        if self.hot.flight_size() == 0 {
            return;
        }
        if duplicate {
            self.cold.dup_acks += 1;
        }
        self.find_lost_retransmissions();
        let repairing = matches!(self.cold.ca_state, CaState::Recovery | CaState::Loss);
        let lost_to = if self.hot.has(flags::SACK) {
            self.sack_lost_to()
        } else if self.cold.dup_acks >= DUP_THRESH && !repairing {
            Some(
                self.hot
                    .snd_una
                    .add(u32::from(self.hot.mss))
                    .earlier_of(self.hot.snd_nxt),
            )
        } else {
            None
        };
        if let Some(to) = lost_to
            && to.after(self.cold.lost_to)
        {
            self.mark_lost(to);
        } else if news && !self.cold.sacked.is_empty() && self.cold.reorder_deadline.is_none() {
            // RFC 8985 §6.2: something arrived early; wait a quarter of the round trip for it.
            let wait = (self.hot.srtt >> 5).div_ceil(1000).max(1);
            self.cold.reorder_deadline = Some(self.clock.ms.plus(wait + 1));
        }
        if self.cold.ca_state == CaState::Open && !self.cold.sacked.is_empty() {
            self.cold.ca_state = CaState::Disorder;
        } else if self.cold.ca_state == CaState::Disorder && self.cold.sacked.is_empty() {
            self.cold.ca_state = CaState::Open;
        }
    }

    /// RFC 6675 §4 "IsLost": DupThresh segments, or as many bytes, sacked above.
    fn sack_lost_to(&self) -> Option<SeqNumber> {
        let enough = (DUP_THRESH - 1) * u32::from(self.hot.mss) + 1;
        let mut above = 0;
        let mut ranges = 0;
        for (start, end) in self.cold.sacked.iter().rev() {
            above += end.distance_from(start);
            ranges += 1;
            if above >= enough || ranges >= DUP_THRESH {
                return Some(start);
            }
        }
        None
    }

    /// A retransmission is lost when data that was sent after it has arrived, by the same
    /// threshold.
    fn find_lost_retransmissions(&mut self) {
        let enough = (DUP_THRESH - 1) * u32::from(self.hot.mss) + 1;
        let reorder = Duration((self.srtt().0 / 4).max(1_000_000)) + self.srtt();
        let mut again: Option<SeqNumber> = None;
        while let Some(first) = self.cold.retransmissions.front().copied() {
            let hole = self
                .cold
                .sacked
                .hole(first.start.later_of(self.hot.snd_una), first.end);
            if hole.is_none() {
                self.cold.retransmissions.pop_front();
                continue;
            }
            let late = self.clock.now - first.at >= reorder;
            if late && self.cold.sacked.bytes_above(first.snd_nxt) >= enough {
                again = Some(again.map_or(first.start, |a| a.earlier_of(first.start)));
                self.counters.lost_retransmit += 1;
                self.cold.retransmissions.pop_front();
                continue;
            }
            break;
        }
        if let Some(start) = again {
            self.cold.high_rxt = self.cold.high_rxt.earlier_of(start);
        }
    }

    /// All below `to` that is not sacked is lost: enters recovery, unless it is under way.
    pub fn mark_lost(&mut self, to: SeqNumber) {
        self.cold.lost_to = to.later_of(self.cold.lost_to);
        self.cold.reorder_deadline = None;
        self.hot.set(flags::SEND_WANTED);
        if matches!(self.cold.ca_state, CaState::Recovery | CaState::Loss) {
            return;
        }
        self.cold.ca_state = CaState::Recovery;
        self.cold.recovery_point = self.hot.snd_nxt;
        self.cold.high_rxt = self.hot.snd_una;
        self.counters.fast_retrans += 1;
        self.cold
            .controller
            .on_congestion_signal(self.clock.now, self.hot.flight_size());
        self.hot.cwnd = self.cold.controller.cwnd();
    }

    /// The reordering window is over: what is still missing below the highest SACK is lost.
    pub fn on_reorder_timeout(&mut self) {
        self.cold.reorder_deadline = None;
        if let Some(highest) = self.cold.sacked.highest() {
            self.mark_lost(highest);
        }
    }

    /// RETRANSMISSION TIMEOUT (RFC 6298 §5, RFC 5681 §3.1): everything outstanding is lost.
    pub fn enter_loss(&mut self) {
        if self.cold.sacked.containing(self.hot.snd_una).is_some() {
            // The peer took back what it had (RFC 2018 §8).
            self.cold.sacked.clear();
        }
        self.cold
            .controller
            .on_rto(self.clock.now, self.hot.flight_size());
        self.hot.cwnd = self.cold.controller.cwnd();
        self.cold.ca_state = CaState::Loss;
        self.cold.recovery_point = self.hot.snd_nxt;
        self.cold.lost_to = self.hot.snd_nxt;
        self.cold.high_rxt = self.hot.snd_una;
        self.cold.retransmissions.clear();
        self.cold.reorder_deadline = None;
        self.hot.clear(flags::RTT_TIMING);
        self.counters.timeouts += 1;
    }
}
