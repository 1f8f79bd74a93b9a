//! What is lost, and how fast it is sent again.
//!
//! RFC 8985 (RACK-TLP) where SACK is in use: a segment is lost when one that was sent later has
//! arrived and a round trip has passed, with some grace once the path was seen to reorder. Without
//! SACK, NewReno (RFC 6582). How much is in flight meanwhile follows RFC 6675's pipe.

use tidelane_cc::{CongestionControl, Controller};
use tidelane_flow::{CaState, Env, flags};
use tidelane_time::Duration;
use tidelane_wire::{Segment, SeqNumber};

use crate::{
    Slow,
    scoreboard::{Delivery, Scoreboard},
};

/// DupThresh (RFC 5681 §3.2).
const DUP_THRESH: u32 = 3;
/// Most quarters of the round trip that reordering is given (RFC 8985 §6.2 step 4; Linux: 16 such).
const REORDER_QUARTERS_MAX: u32 = 16;
/// Recoveries after which that is forgotten (RFC 8985 §6.2 step 4).
const REORDER_PERSIST: u8 = 16;
/// How long after the last trouble transmissions are recorded: as many round trips, and at least
/// as many ms.
const RECORD_ROUND_TRIPS: u32 = 8;
/// See above.
const RECORD_MS_MIN: u32 = 1000;

/// What a repair changed, to be taken back if it turns out that nothing was lost.
#[derive(Clone, Copy, Debug)]
pub struct Undo {
    /// The controller before.
    pub controller: Controller,
    /// Bytes sent again that the peer has not reported as duplicates.
    pub unneeded: u32,
}

impl<E: Env> Slow<'_, E> {
    /// SRTT as a duration.
    pub fn srtt(&self) -> Duration {
        Duration::from_micros(u64::from(self.hot.srtt >> 3))
    }

    /// Whether losses are being repaired.
    pub fn is_repairing(&self) -> bool {
        matches!(self.cold.ca_state, CaState::Recovery | CaState::Loss)
    }

    /// Bytes in flight in the sense of RFC 6675 §4: not those that arrived, nor those that are
    /// lost.
    pub fn pipe(&self) -> u32 {
        let Some(board) = &self.cold.board else {
            return self.hot.flight_size();
        };
        if self.hot.has(flags::SACK) {
            return board.out();
        }
        // Each duplicate acknowledgment tells of one segment that has left the network.
        let left = self.cold.dup_acks.saturating_mul(u32::from(self.hot.mss));
        board.out().saturating_sub(left)
    }

    /// Least round-trip time of the path.
    fn rtt_min_us(&self) -> u32 {
        self.cold.rtt_min_us.min(self.hot.srtt >> 3)
    }

    /// Records what is sent from now on, if that is not done yet.
    pub fn track(&mut self) -> &mut Scoreboard {
        self.cold.trouble_at = self.clock.ms;
        let hot = &*self.hot;
        let sent_us = if hot.has(flags::RTT_TIMING) {
            hot.rtt_stamp
        } else {
            self.clock.us.wrapping_sub(hot.srtt >> 3)
        };
        self.cold
            .board
            .get_or_insert_with(|| Box::new(Scoreboard::begin(hot.snd_una, hot.snd_nxt, sent_us)))
    }

    /// New text, or FIN, went out from `start` to SND.NXT.
    pub fn note_sent(&mut self, start: SeqNumber) {
        if let Some(board) = &mut self.cold.board {
            board.sent(start, self.hot.snd_nxt, self.clock.us);
        }
    }

    /// Takes the SACK blocks of a segment. Whether they say anything new. A block below SND.UNA, or
    /// beyond SND.NXT, says nothing (RFC 2018 §5).
    pub fn take_sack(&mut self, segment: &Segment<'_>) -> bool {
        if !self.hot.has(flags::SACK) || segment.options.sack.is_empty() {
            return false;
        }
        let (una, flight) = (self.hot.snd_una, self.hot.flight_size());
        let (now, rtt_min) = (self.clock.us, self.rtt_min_us());
        let mut all = Delivery::default();
        for (at, (start, end)) in segment.options.sack.as_slice().iter().enumerate() {
            if at == 0 && self.is_dsack(segment) {
                self.on_dsack(*start, *end);
                continue;
            }
            let inside = start.distance_from(una) <= flight && end.distance_from(una) <= flight;
            if inside && start.before(*end) && end.after(segment.ack) {
                let delivery = self.track().sack(*start, *end, now, rtt_min);
                all.bytes += delivery.bytes;
                all.reordered |= delivery.reordered;
                all.rtt_us = delivery.rtt_us.or(all.rtt_us);
            }
        }
        self.note_delivery(&all);
        all.bytes > 0
    }

    /// Whether the first block tells of a duplicate (RFC 2883 §4).
    fn is_dsack(&self, segment: &Segment<'_>) -> bool {
        let blocks = segment.options.sack.as_slice();
        let Some((start, end)) = blocks.first() else {
            return false;
        };
        let inside = |(left, right): &(SeqNumber, SeqNumber)| {
            left.at_or_before(*start) && end.at_or_before(*right)
        };
        start.before(*end) && (end.at_or_before(segment.ack) || blocks.get(1).is_some_and(inside))
    }

    /// Something was sent again without need: the path reorders more than was thought
    /// (RFC 8985 §6.2 step 4), and if that holds for all of it, nothing was lost.
    fn on_dsack(&mut self, start: SeqNumber, end: SeqNumber) {
        self.counters.dsack_recv += 1;
        if self.cold.probe_end == Some(end) {
            self.cold.probe_end = None;
        }
        if self.cold.reorder_round.at_or_before(self.hot.snd_una) {
            self.cold.reorder_round = self.hot.snd_nxt;
            self.cold.reorder_persist = REORDER_PERSIST;
            let more = self.cold.reorder_quarters + 1;
            self.cold.reorder_quarters = more.min(REORDER_QUARTERS_MAX);
        }
        let Some(undo) = &mut self.cold.undo else {
            return;
        };
        undo.unneeded = undo.unneeded.saturating_sub(end.distance_from(start));
        if undo.unneeded == 0 {
            self.cold.controller = undo.controller;
            self.cold.undo = None;
            self.hot.cwnd = self.cold.controller.cwnd();
            if self
                .cold
                .board
                .as_ref()
                .is_none_or(|board| board.lost() == 0)
            {
                self.cold.ca_state = CaState::Open;
            }
        }
    }

    fn note_delivery(&mut self, delivery: &Delivery) {
        self.cold.reorders |= delivery.reordered;
        if let Some(rtt) = delivery.rtt_us {
            self.hot.clear(flags::RTT_TIMING);
            self.cold.rtt_min_us = self.cold.rtt_min_us.min(rtt.max(1));
            self.hot.sample_rtt(rtt);
        }
    }

    /// SND.UNA moved to `ack`, `acked` bytes.
    pub fn on_ack_advance(&mut self, ack: SeqNumber, acked: u32) {
        self.sample_timed_segment(ack);
        self.hot.snd_una = ack;
        self.cold.backoff = 0;
        self.cold.probed = false;
        self.cold.soft_error = None;
        self.cold.bytes_acked += u64::from(acked);
        let (now, rtt_min) = (self.clock.us, self.rtt_min_us());
        if let Some(board) = &mut self.cold.board {
            let delivery = board.acknowledge(ack, now, rtt_min);
            self.note_delivery(&delivery);
        }
        if self.is_repairing() && ack.at_or_after(self.cold.recovery_point) {
            self.leave_recovery();
        } else if self.cold.ca_state != CaState::Recovery {
            self.grow(acked);
        } else if !self.hot.has(flags::SACK) {
            self.on_partial_ack(acked);
        }
        if self.cold.ca_state != CaState::Recovery {
            self.cold.dup_acks = 0;
        }
        self.check_probe(ack);
        if self.hot.snd_una == self.hot.snd_nxt {
            self.hot
                .clear(flags::RTO_ARMED | flags::PROBE | flags::PERSIST | flags::SMALL_SENT);
        } else {
            self.arm_rto();
        }
        self.hot.set(flags::SEND_WANTED);
        self.forget_records();
    }

    /// A sample from the timed segment, where nothing is recorded (RFC 6298 §3).
    fn sample_timed_segment(&mut self, ack: SeqNumber) {
        if self.hot.has(flags::RTT_TIMING) && self.hot.rtt_seq.at_or_before(ack) {
            self.hot.clear(flags::RTT_TIMING);
            if self.cold.board.is_none() {
                let rtt = self.clock.us.wrapping_sub(self.hot.rtt_stamp);
                self.cold.rtt_min_us = self.cold.rtt_min_us.min(rtt.max(1));
                self.hot.sample_rtt(rtt);
            }
        }
    }

    /// NewReno (RFC 6582 §3.2 step 3): a partial acknowledgment shows the next hole.
    fn on_partial_ack(&mut self, acked: u32) {
        let mss = u32::from(self.hot.mss);
        self.cold.dup_acks = self.cold.dup_acks.saturating_sub(acked / mss);
        self.cold.repair_first = true;
        self.track().lose_first(mss);
    }

    /// A tail loss probe that was needed shows a loss, which has been repaired by it already
    /// (RFC 8985 §7.4).
    fn check_probe(&mut self, ack: SeqNumber) {
        let Some(end) = self.cold.probe_end else {
            return;
        };
        if ack.before(end) {
            return;
        }
        self.cold.probe_end = None;
        if !self.is_repairing() {
            self.cold.controller.on_congestion_signal(
                self.clock.now,
                self.hot.flight_size().max(u32::from(self.hot.mss)),
            );
            self.cold.controller.on_recovery_exit(self.clock.now);
            self.hot.cwnd = self.cold.controller.cwnd();
        }
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
        self.cold.dup_acks = 0;
        self.cold.reorder_persist = self.cold.reorder_persist.saturating_sub(1);
        if self.cold.reorder_persist == 0 {
            self.cold.reorder_quarters = 1;
        }
    }

    /// A while after the last trouble transmissions are not recorded any more.
    fn forget_records(&mut self) {
        let calm = self.cold.board.as_ref().is_some_and(|board| {
            self.cold.ca_state == CaState::Open && board.sacked() == 0 && board.lost() == 0
        });
        let since = self.clock.ms.0.wrapping_sub(self.cold.trouble_at.0);
        let round_trips = (self.hot.srtt >> 3) / 1000 * RECORD_ROUND_TRIPS;
        if calm && since > round_trips.max(RECORD_MS_MIN) {
            self.cold.board = None;
            self.cold.undo = None;
            self.cold.reorder_deadline = None;
            self.hot.clear(flags::RTT_TIMING);
        }
    }

    /// Looks for losses after an acknowledgment that brought `news` (new SACK information), or was
    /// a `duplicate`.
    pub fn detect_loss(&mut self, news: bool, duplicate: bool) {
        if self.hot.flight_size() == 0 {
            self.cold.reorder_deadline = None;
            return;
        }
        if duplicate {
            self.cold.dup_acks = self.cold.dup_acks.saturating_add(1);
        }
        if self.hot.has(flags::SACK) {
            self.find_lost();
        } else if duplicate {
            self.count_duplicates();
        }
        let early = self.cold.dup_acks > 0
            || self
                .cold
                .board
                .as_ref()
                .is_some_and(|board| board.sacked() > 0);
        match self.cold.ca_state {
            CaState::Open if early => self.cold.ca_state = CaState::Disorder,
            CaState::Disorder if !early => self.cold.ca_state = CaState::Open,
            _ => {}
        }
        if news || duplicate {
            self.hot.set(flags::SEND_WANTED);
        }
    }

    /// Fast retransmit without SACK (RFC 6582 §3.2 step 2).
    fn count_duplicates(&mut self) {
        let mss = u32::from(self.hot.mss);
        self.track();
        if self.cold.dup_acks == DUP_THRESH && !self.is_repairing() {
            self.track().lose_first(mss);
            self.enter_recovery();
        }
    }

    /// RFC 8985 §6.2 step 4: how much later than in order a segment may come.
    fn reorder_us(&self) -> u32 {
        let enough = self
            .cold
            .board
            .as_ref()
            .is_some_and(|board| board.sacked() > (DUP_THRESH - 1) * u32::from(self.hot.mss));
        if !self.cold.reorders && (enough || self.is_repairing()) {
            return 0;
        }
        let quarter = (self.rtt_min_us() / 4).max(1);
        quarter
            .saturating_mul(self.cold.reorder_quarters)
            .min(self.hot.srtt >> 3)
    }

    /// RFC 8985 §6.2 step 5, after an acknowledgment or when the reordering timer is due.
    pub fn find_lost(&mut self) {
        let grace = self.reorder_us();
        let Some(board) = &mut self.cold.board else {
            return;
        };
        let (lost, again, next) = board.find_lost(self.clock.us, grace);
        self.cold.reorder_deadline = next.map(|us| self.clock.ms.plus(us.div_ceil(1000).max(1)));
        if lost == 0 {
            return;
        }
        self.cold.trouble_at = self.clock.ms;
        self.counters.lost_retransmit += u64::from(again.div_ceil(u32::from(self.hot.mss)));
        self.hot.set(flags::SEND_WANTED);
        if !self.is_repairing() {
            self.enter_recovery();
        }
    }

    /// Fast recovery (RFC 6675 §5 step 4).
    fn enter_recovery(&mut self) {
        self.counters.fast_retrans += 1;
        self.begin_repair(CaState::Recovery);
        let flight = self.hot.flight_size();
        self.cold
            .controller
            .on_congestion_signal(self.clock.now, flight);
        self.hot.cwnd = self.cold.controller.cwnd();
    }

    fn begin_repair(&mut self, state: CaState) {
        if !self.is_repairing() {
            self.cold.undo = Some(Undo {
                controller: self.cold.controller,
                unneeded: 0,
            });
        }
        self.cold.ca_state = state;
        self.cold.recovery_point = self.hot.snd_nxt;
        self.cold.repair_first = true;
        self.cold.probe_end = None;
        self.hot.set(flags::SEND_WANTED);
    }

    /// The path takes only smaller segments: all in flight is sent again in the new size, which is
    /// no sign of congestion (RFC 1191 §6.4).
    pub fn resend_all(&mut self) {
        if self.hot.flight_size() > 0 {
            self.track().lose_all(false);
            self.begin_repair(CaState::Recovery);
        }
    }

    /// RETRANSMISSION TIMEOUT (RFC 6298 §5, RFC 5681 §3.1): everything outstanding is lost.
    pub fn enter_loss(&mut self) {
        self.counters.timeouts += 1;
        let board = self.track();
        // A peer may take back what it said it had (RFC 2018 §8).
        let reneged = board.is_reneged();
        board.lose_all(reneged);
        self.begin_repair(CaState::Loss);
        self.cold
            .controller
            .on_rto(self.clock.now, self.hot.flight_size());
        self.hot.cwnd = self.cold.controller.cwnd();
        self.cold.reorder_deadline = None;
        self.cold.dup_acks = 0;
        self.hot.clear(flags::RTT_TIMING);
    }
}
