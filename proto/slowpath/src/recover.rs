//! What is lost, and how fast it is sent again.
//!
//! RFC 8985 (RACK-TLP) where SACK is in use: a segment is lost when one that was sent later has
//! arrived and a round trip has passed, with some grace once the path was seen to reorder. Without
//! SACK, NewReno (RFC 6582). How much is in flight meanwhile follows RFC 6675's pipe.

use tidelane_cc::CongestionControl;
use tidelane_flow::{CaState, Env, flags};
use tidelane_wire::{SACK_BLOCKS_MAX, Segment, SeqNumber};

use crate::{Slow, delivered::Delivery, frto::Frto, prr::Prr, scoreboard::Timing, undo::Undo};

/// DupThresh (RFC 5681 §3.2).
pub const DUP_THRESH: u32 = 3;

/// What an acknowledgment did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckSeen {
    /// Bytes by which it moved SND.UNA.
    pub acked: u32,
    /// It brought news by SACK.
    pub news: bool,
    /// It was a duplicate.
    pub duplicate: bool,
    /// The window may grow for it, unless it shows congestion.
    pub grows: bool,
}

impl<E: Env> Slow<'_, E> {
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
        let timing = self.timing();
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
                all.add(&self.track().sack(start, end, &timing));
            }
        }
        self.note_delivery(&all);
        all.bytes > 0
    }

    /// What tells transmissions apart where no timestamp does.
    fn timing(&self) -> Timing {
        Timing {
            now_us: self.clock.us(),
            rtt_min_us: self.rtt_min_us(),
            sent_before_us: None,
        }
    }

    fn note_delivery(&mut self, delivery: &Delivery) {
        self.cold.delivered.add(delivery);
        if let Some(start) = delivery.reordered_from {
            self.note_reordering(start);
        }
        if let Some(rtt) = delivery.rtt_us {
            self.hot.clear(flags::RTT_TIMING);
            self.take_rtt_sample(rtt);
        }
    }

    /// SND.UNA moves by `acked` bytes to the segment's acknowledgment. Whether the window may grow.
    pub fn on_ack_advance(&mut self, segment: &Segment<'_>, acked: u32) -> bool {
        let ack = segment.ack;
        let timed = self.sample_timed_segment(ack);
        if self.cold.acked_here != self.hot.snd_una {
            self.note_unlimited_time();
        }
        self.cold.acked_here = ack;
        self.hot.snd_una = ack;
        self.cold.timeouts = 0;
        self.cold.retrans_since = None;
        self.cold.probed = false;
        self.cold.soft_error = None;
        let timing = Timing {
            sent_before_us: self.echoed_before_us(segment),
            ..self.timing()
        };
        if let Some(board) = &mut self.cold.board {
            let delivery = board.acknowledge(ack, &timing);
            self.note_delivery(&delivery);
            self.tell_rtt(delivery.rtt_us);
            self.sample_echo(segment);
        } else {
            self.cold.delivered.bytes += acked;
            self.tell_rtt(timed);
        }
        if !self.hot.has(flags::SACK) {
            // Duplicates have told of some of it (RFC 6937 §3).
            let told = self.cold.dup_acks.saturating_mul(self.hot.mss.into());
            self.cold.delivered.bytes = acked.saturating_sub(told);
        }
        // After a timeout the window is in slow start: RFC 5681 §3.1.
        let grows = !self.is_reducing();
        self.check_repair(segment, ack.back(acked));
        if self.is_recovered(ack) {
            self.leave_recovery();
        } else if !grows && !self.hot.has(flags::SACK) {
            self.on_partial_ack(acked);
        }
        if self.cold.ca_state != CaState::Recovery {
            self.cold.dup_acks = 0;
        }
        self.check_probe(ack);
        self.check_mtu_probe();
        if self.hot.snd_una == self.hot.snd_nxt {
            self.hot
                .clear(flags::RTO_ARMED | flags::PROBE | flags::PERSIST | flags::SMALL_SENT);
        } else {
            self.arm_rto();
        }
        self.hot.set(flags::SEND_WANTED);
        self.forget_records();
        grows
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

    /// NewReno (RFC 6582 §3.2 step 3): a partial acknowledgment shows the next hole.
    fn on_partial_ack(&mut self, acked: u32) {
        let mss = u32::from(self.hot.mss);
        self.cold.dup_acks = self.cold.dup_acks.saturating_sub(acked / mss);
        self.cold.repair_first = true;
        self.track().lose_first(mss);
    }

    /// Whether something is in flight that was sent before the window was last reduced. What
    /// becomes of it is old news: once per window of data (RFC 5681 §3.2, RFC 3168 §6.1.2).
    pub(crate) fn is_reduced(&self) -> bool {
        let ahead = self.cold.reduced_until.distance_from(self.hot.snd_una);
        ahead > 0 && ahead <= self.hot.flight_size()
    }

    /// Whether the congestion window is in use, so that it may grow: all of it, or in slow start
    /// half of it at some time in the round trip, as in Linux.
    fn is_cwnd_limited(&mut self, acked: u32) -> bool {
        let flight = self.hot.flight_size().saturating_add(acked);
        let before = self.hot.snd_una.back(acked);
        if flight > self.cold.flight.max || self.cold.flight.round.at_or_before(before) {
            self.cold.flight.max = flight;
            self.cold.flight.round = self.hot.snd_nxt;
        }
        if !self.hot.has(flags::CWND_LIMITED) {
            return false;
        }
        let slow_start = self.hot.cwnd < self.cold.controller.ssthresh();
        let mss = u32::from(self.hot.mss);
        let limited = flight.saturating_add(mss) > self.hot.cwnd
            || slow_start && self.cold.flight.max > self.hot.cwnd / 2;
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
        let reordering = &mut self.cold.reordering;
        reordering.persist = reordering.persist.saturating_sub(1);
        if reordering.persist == 0 {
            reordering.quarters = 1;
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
        self.track();
        if self.cold.dup_acks == DUP_THRESH && !self.is_repairing() {
            let first = self.first_segment_len();
            self.track().lose_first(first);
            self.begin_recovery(first);
        }
    }

    /// `lost` bytes were found lost: a sign of congestion, unless it was a probe of their size.
    fn begin_recovery(&mut self, lost: u32) {
        let probe = self.is_lost_probe(lost);
        if self.is_repairing() {
            return;
        }
        if probe {
            self.begin_repair(CaState::Recovery);
        } else {
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
        let (lost, again, next) = board.find_lost(self.clock.us(), grace);
        // A deadline is due when its millisecond begins: one more, or it would come early.
        self.cold.reorder_deadline = next.map(|us| self.clock.ms.plus(us.div_ceil(1000) + 1));
        if lost == 0 {
            return false;
        }
        self.cold.trouble_at = self.clock.ms;
        self.note_lost(lost);
        self.counters.lost_retransmit += u64::from(again.div_ceil(u32::from(self.hot.mss)));
        self.hot.set(flags::SEND_WANTED);
        self.begin_recovery(lost);
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
        let flight = self.flight_in_use();
        self.cold.prr = Some(Prr::begin(flight));
        if self.is_reduced() {
            return;
        }
        self.cold
            .controller
            .on_congestion_signal(self.clock.now, flight);
        self.hot.cwnd = self.cold.controller.cwnd();
        self.cold.reduced_until = self.hot.snd_nxt;
        let own = self.cold.controller.models_delivery();
        self.cold.prr = (!own).then(|| Prr::begin(flight));
        self.queue_cwr();
    }

    /// What was in flight when a loss was seen (RFC 5681 §3.1): before what the acknowledgment that
    /// shows it took from that. A receiver that puts segments together acknowledges most of a small
    /// window as one.
    pub(crate) fn flight_in_use(&self) -> u32 {
        self.cold.flight.before.max(self.hot.flight_size())
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

    /// RETRANSMISSION TIMEOUT (RFC 6298 §5, RFC 5681 §3.1): what is outstanding is lost, but, where
    /// SACK tells later ones apart, not what was sent within a round trip (RFC 8985 §6.3).
    pub fn enter_loss(&mut self) {
        self.counters.timeouts += 1;
        let (now, srtt, grace) = (self.clock.us(), self.hot.srtt >> 3, self.reorder_us());
        let (mss, sack) = (u32::from(self.hot.mss), self.hot.has(flags::SACK));
        let board = self.track();
        // A peer may take back what it said it had (RFC 2018 §8).
        let reneged = board.is_reneged();
        if sack && !reneged && srtt != 0 {
            let rtt = board.rack_rtt_us().unwrap_or(srtt);
            board.lose_old(mss, now, rtt.saturating_add(grace));
        } else {
            board.lose_all(reneged);
        }
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
