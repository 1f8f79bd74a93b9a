//! What is lost, and how fast it is sent again.
//!
//! RFC 8985 (RACK-TLP) where SACK is in use: a segment is lost when one that was sent later has
//! arrived and a round trip has passed, with some grace once the path was seen to reorder. Without
//! SACK, NewReno (RFC 6582). How much is in flight meanwhile follows RFC 6675's pipe.

use tidelane_cc::{CongestionControl, Controller};
use tidelane_flow::{CaState, Env, Millis, flags};
use tidelane_time::Duration;
use tidelane_wire::{SACK_BLOCKS_MAX, Segment, SeqNumber};

use crate::{Slow, frto::Frto, prr::Prr, scoreboard::Delivery};

/// DupThresh (RFC 5681 §3.2).
pub const DUP_THRESH: u32 = 3;
/// Most quarters of the round trip that reordering is given (RFC 8985 §6.2 step 4; Linux: 16 such).
const REORDER_QUARTERS_MAX: u32 = 16;
/// Recoveries after which that is forgotten (RFC 8985 §6.2 step 4).
const REORDER_PERSIST: u8 = 16;
/// What a repair changed, to be taken back if it turns out that nothing was lost.
#[derive(Clone, Copy, Debug)]
pub struct Undo {
    /// The controller before.
    pub controller: Controller,
    /// Bytes sent again that the peer has not reported as duplicates.
    pub unneeded: u32,
    /// When the first of them was, by our timestamp clock.
    pub first_sent: Option<Millis>,
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
    pub fn rtt_min_us(&self) -> u32 {
        self.cold.rtt_min_us.min(self.hot.srtt >> 3)
    }

    /// Takes the SACK blocks of a segment. Whether they say anything new. A block below SND.UNA, or
    /// beyond SND.NXT, says nothing (RFC 2018 §5).
    pub fn take_sack(&mut self, segment: &Segment<'_>) -> bool {
        if let Some(board) = &mut self.cold.board {
            board.begin_segment();
        }
        if !self.hot.has(flags::SACK) || segment.options.sack.is_empty() {
            return false;
        }
        let (una, flight) = (self.hot.snd_una, self.hot.flight_size());
        let (now, rtt_min) = (self.clock.us, self.rtt_min_us());
        let mut all = Delivery::default();
        let is_dsack = self.is_dsack(segment);
        let mut blocks = [(una, una); SACK_BLOCKS_MAX];
        for (at, (start, end)) in segment.options.sack.as_slice().iter().enumerate() {
            if at == 0 && is_dsack {
                self.on_dsack(*start, *end);
            } else if let Some(place) = blocks.get_mut(at) {
                *place = (*start, *end);
            }
        }
        // In the order of the stream: else several that are new at once, as after a lost
        // acknowledgment, would look like reordering.
        blocks.sort_unstable_by_key(|(start, _)| start.distance_from(una));
        for (start, end) in blocks {
            let inside = start.distance_from(una) <= flight && end.distance_from(una) <= flight;
            if inside && start.before(end) && end.after(segment.ack) {
                all.add(&self.track().sack(start, end, now, rtt_min));
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
        self.cold.reordering.dsacks += 1;
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
            self.end_reduction();
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
        self.cold.delivered.add(delivery);
        if let Some(start) = delivery.reordered_from {
            self.note_reordering(start);
        }
        if let Some(rtt) = delivery.rtt_us {
            self.hot.clear(flags::RTT_TIMING);
            self.cold.rtt_min_us = self.cold.rtt_min_us.min(rtt.max(1));
            self.hot.sample_rtt(rtt);
        }
    }

    /// SND.UNA moved to `ack`, `acked` bytes.
    pub fn on_ack_advance(&mut self, ack: SeqNumber, acked: u32) {
        let timed = self.sample_timed_segment(ack);
        if self.cold.acked_here != self.hot.snd_una {
            self.note_unlimited_time();
        }
        self.cold.acked_here = ack;
        self.hot.snd_una = ack;
        self.cold.backoff = 0;
        self.cold.retrans_since = None;
        self.cold.probed = false;
        self.cold.soft_error = None;
        self.cold.bytes_acked += u64::from(acked);
        let (now, rtt_min) = (self.clock.us, self.rtt_min_us());
        if let Some(board) = &mut self.cold.board {
            let delivery = board.acknowledge(ack, now, rtt_min);
            self.note_delivery(&delivery);
            self.tell_rtt(delivery.rtt_us);
        } else {
            self.cold.delivered.bytes += acked;
            self.tell_rtt(timed);
        }
        // What was reported before is no news to the congestion window; what this segment reports
        // besides is.
        let news = if self.hot.has(flags::SACK) {
            self.cold.delivered.bytes
        } else {
            let known = self.cold.dup_acks.saturating_mul(self.hot.mss.into());
            acked.saturating_sub(known)
        };
        if self.is_recovered(ack) {
            // After a timeout the window is in slow start: RFC 5681 §3.1.
            let slow_start = self.cold.ca_state == CaState::Loss;
            self.leave_recovery();
            if slow_start {
                self.grow(news, acked);
            }
        } else if !self.is_reducing() {
            self.grow(news, acked);
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

    /// Whether `ack` ends the repair or reduction. One for an echoed mark lasts until something
    /// later is acknowledged, which carried CWR: echoes before that are old (as in Linux).
    fn is_recovered(&self, ack: SeqNumber) -> bool {
        let point = self.cold.recovery_point;
        match self.cold.ca_state {
            CaState::Recovery | CaState::Loss => ack.at_or_after(point),
            CaState::Cwr => ack.after(point),
            CaState::Open | CaState::Disorder => false,
        }
    }

    /// A sample from the timed segment, where nothing is recorded (RFC 6298 §3).
    fn sample_timed_segment(&mut self, ack: SeqNumber) -> Option<u32> {
        if !self.hot.has(flags::RTT_TIMING) || self.hot.rtt_seq.after(ack) {
            return None;
        }
        self.hot.clear(flags::RTT_TIMING);
        if self.cold.board.is_some() {
            return None;
        }
        let rtt = self.clock.us.wrapping_sub(self.hot.rtt_stamp);
        self.cold.rtt_min_us = self.cold.rtt_min_us.min(rtt.max(1));
        self.hot.sample_rtt(rtt);
        Some(rtt)
    }

    /// NewReno (RFC 6582 §3.2 step 3): a partial acknowledgment shows the next hole.
    fn on_partial_ack(&mut self, acked: u32) {
        let mss = u32::from(self.hot.mss);
        // Duplicates have told of some of it (RFC 6937 §3).
        let told = self.cold.dup_acks.saturating_mul(mss);
        self.cold.delivered.bytes = acked.saturating_sub(told);
        self.cold.dup_acks = self.cold.dup_acks.saturating_sub(acked / mss);
        self.cold.repair_first = true;
        self.track().lose_first(mss);
    }

    /// Whether the congestion window is in use, so that it may grow: all of it, or in slow start
    /// half of it at some time in the round trip, as in Linux.
    fn is_cwnd_limited(&mut self, acked: u32) -> bool {
        let flight = self.hot.flight_size().saturating_add(acked);
        let before = self.hot.snd_una.back(acked);
        if flight > self.cold.flight_max || self.cold.flight_round.at_or_before(before) {
            self.cold.flight_max = flight;
            self.cold.flight_round = self.hot.snd_nxt;
        }
        if !self.hot.has(flags::CWND_LIMITED) {
            return false;
        }
        let slow_start = self.hot.cwnd < self.cold.controller.ssthresh();
        let mss = u32::from(self.hot.mss);
        let limited = flight.saturating_add(mss) > self.hot.cwnd
            || slow_start && self.cold.flight_max > self.hot.cwnd / 2;
        self.hot.put(flags::CWND_LIMITED, limited);
        limited
    }

    /// The fast path took acknowledgments since the last one here: the window was not in use then,
    /// and that time must not count (RFC 9438 §5.8).
    fn note_unlimited_time(&mut self) {
        let (now, srtt) = (self.clock.now, self.srtt());
        self.cold.controller.on_ack(now, 0, srtt, false);
    }

    /// `news` bytes are known to have arrived by now; SND.UNA moved by `acked`.
    pub(crate) fn grow(&mut self, news: u32, acked: u32) {
        let limited = self.is_cwnd_limited(acked);
        self.cold
            .controller
            .on_ack(self.clock.now, news, self.srtt(), limited);
        self.hot.cwnd = self.cold.controller.cwnd();
    }

    fn leave_recovery(&mut self) {
        self.cold.controller.on_recovery_exit(self.clock.now);
        self.end_reduction();
        self.cold.ca_state = CaState::Open;
        self.cold.frto = Frto::Off;
        self.cold.dup_acks = 0;
        self.cold.reorder_persist = self.cold.reorder_persist.saturating_sub(1);
        if self.cold.reorder_persist == 0 {
            self.cold.reorder_quarters = 1;
        }
    }

    /// Looks for losses after an acknowledgment that brought `news` (new SACK information), or was
    /// a `duplicate`.
    /// Whether more was lost.
    pub fn detect_loss(&mut self, news: bool, duplicate: bool) -> bool {
        if self.hot.flight_size() == 0 {
            self.cold.reorder_deadline = None;
            return false;
        }
        let mut more_lost = false;
        if duplicate {
            self.cold.dup_acks = self.cold.dup_acks.saturating_add(1);
        }
        if self.hot.has(flags::SACK) {
            more_lost = self.find_lost();
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
        more_lost
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

    /// RFC 8985 §6.2 step 5, after an acknowledgment or when the reordering timer is due.
    /// Whether anything was.
    pub fn find_lost(&mut self) -> bool {
        let grace = self.reorder_us();
        let Some(board) = &mut self.cold.board else {
            return false;
        };
        let (lost, again, next) = board.find_lost(self.clock.us, grace);
        // A deadline is due when its millisecond begins: one more, or it would come early.
        self.cold.reorder_deadline = next.map(|us| self.clock.ms.plus(us.div_ceil(1000) + 1));
        if lost == 0 {
            return false;
        }
        self.cold.trouble_at = self.clock.ms;
        self.counters.lost_retransmit += u64::from(again.div_ceil(u32::from(self.hot.mss)));
        self.hot.set(flags::SEND_WANTED);
        if !self.is_repairing() {
            self.enter_recovery();
        }
        true
    }

    /// Fast recovery (RFC 6675 §5 step 4). Once per window: where an echoed mark has reduced it
    /// already, that goes on (RFC 3168 §6.1.2).
    fn enter_recovery(&mut self) {
        self.counters.fast_retrans += 1;
        let begun = self.cold.prr.filter(|_| self.is_reducing());
        self.begin_repair(CaState::Recovery);
        if begun.is_some() {
            self.cold.prr = begun;
            return;
        }
        let flight = self.hot.flight_size();
        self.cold
            .controller
            .on_congestion_signal(self.clock.now, flight);
        self.hot.cwnd = self.cold.controller.cwnd();
        self.cold.prr = Some(Prr::begin(flight));
        self.queue_cwr();
    }

    fn begin_repair(&mut self, state: CaState) {
        if !self.is_repairing() {
            self.cold.undo = Some(Undo {
                controller: self.cold.controller,
                unneeded: 0,
                first_sent: None,
            });
        }
        if state != CaState::Loss {
            self.cold.frto = Frto::Off;
        }
        self.cold.ca_state = state;
        self.cold.prr = None;
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
        self.begin_frto(self.is_repairing());
        self.begin_repair(CaState::Loss);
        self.queue_cwr();
        self.cold
            .controller
            .on_rto(self.clock.now, self.hot.flight_size());
        self.hot.cwnd = self.cold.controller.cwnd();
        self.cold.reorder_deadline = None;
        self.cold.dup_acks = 0;
        self.hot.clear(flags::RTT_TIMING);
    }
}
