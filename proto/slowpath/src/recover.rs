//! Loss detection and loss recovery of a flow (connection). The code of this file enters and leaves
//! the phases Disorder, Recovery and Loss. The scoreboard is the record of unacknowledged
//! transmissions.
//!
//! With SACK, RACK-TLP (RFC 8985) detects losses. RACK marks a segment lost under two conditions: a
//! segment that was sent later was delivered, and the segment was sent at least one RTT plus the
//! reordering window (RACK.reo_wnd) ago. Without SACK, NewReno (RFC 6582) applies. `pipe` (RFC
//! 6675) is an estimate of the data in the network.

use tidelane_cc::CongestionControl;
use tidelane_flow::{CaState, Driver, flags};
use tidelane_wire::{SACK_BLOCKS_MAX, Segment, SeqNumber};

use crate::{
    SlowPath, delivered_data::DeliveredData, frto::Frto, prr::Prr, scoreboard::Timing, undo::Undo,
};

/// DupThresh: number of duplicate ACKs that start fast retransmit (RFC 5681 §3.2).
pub const DUP_THRESH: u32 = 3;

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true while the sender is in Recovery or Loss.
    pub fn is_recovering(&self) -> bool {
        matches!(self.cold.ca_state, CaState::Recovery | CaState::Loss)
    }

    /// Returns `pipe` (RFC 6675 §4): the outstanding bytes that are neither SACKed nor marked lost.
    /// Without SACK, each duplicate ACK counts like one SACKed segment.
    pub fn pipe(&self) -> u32 {
        let Some(scoreboard) = &self.cold.scoreboard else {
            return self.hot.flight_size();
        };
        if self.hot.has(flags::SACK) {
            return scoreboard.in_flight();
        }
        // Each duplicate ACK shows that one segment has left the network.
        let left = self.cold.dup_acks.saturating_mul(u32::from(self.hot.mss));
        scoreboard.in_flight().saturating_sub(left)
    }

    /// Processes the SACK blocks of a segment. Returns true if the blocks cover data that was not
    /// SACKed before. If the first block is a DSACK, the block reports a duplicate (RFC 2883). Any
    /// other block is ignored if the block begins before SND.UNA, ends at or before SEG.ACK, or
    /// ends after SND.NXT (RFC 2018 §5).
    pub fn process_sack(&mut self, segment: &Segment<'_>) -> bool {
        if let Some(scoreboard) = &mut self.cold.scoreboard {
            scoreboard.begin_segment();
        }
        if !self.hot.has(flags::SACK) || segment.options.sack.is_empty() {
            return false;
        }
        let (una, flight) = (self.hot.snd_una, self.hot.flight_size());
        let timing = self.timing();
        let mut all = DeliveredData::default();
        let is_dsack = self.is_dsack(segment);
        let mut blocks = [(una, una); SACK_BLOCKS_MAX];
        for (at, (start, end)) in segment.options.sack.as_slice().iter().enumerate() {
            if at == 0 && is_dsack {
                self.on_dsack(*start, *end);
            } else if let Some(place) = blocks.get_mut(at) {
                *place = (*start, *end);
            }
        }
        // Process the blocks in sequence order. The option lists the most recent block first. If an
        // ACK was lost, the option may have several new blocks, and their order in the option would
        // look like reordering.
        blocks.sort_unstable_by_key(|(start, _)| start.distance_from(una));
        for (start, end) in blocks {
            let inside = start.distance_from(una) <= flight && end.distance_from(una) <= flight;
            if inside && start.before(end) && end.after(segment.ack) {
                let scoreboard = self.ensure_scoreboard();
                all.add(&scoreboard.sack(start, end, &timing));
                if scoreboard.sacked() > 0 {
                    self.scoreboard_for_loss();
                }
            }
        }
        self.note_delivered(&all);
        all.bytes > 0
    }

    /// Returns the times by which the scoreboard tells an original transmission from a
    /// retransmission. `on_ack_advance` adds `sent_before_us` if the segment echoes a timestamp.
    fn timing(&self) -> Timing {
        Timing {
            now_us: self.clock.us(),
            rtt_min_us: self.rtt_min_us(),
            sent_before_us: None,
        }
    }

    /// Adds `delivery` to the data that the present segment delivered, and records its reordering
    /// and its RTT sample.
    fn note_delivered(&mut self, delivery: &DeliveredData) {
        self.cold.delivered.add(delivery);
        if let Some(start) = delivery.reordered_from {
            self.note_reordering(start);
        }
        if let Some(rtt) = delivery.rtt_us {
            self.hot.clear(flags::RTT_TIMING);
            self.add_rtt_sample(rtt);
        }
    }

    /// Advances SND.UNA by `acked` bytes to the segment's ACK. Returns true if cwnd may grow.
    pub fn on_ack_advance(&mut self, segment: &Segment<'_>, acked: u32) -> bool {
        let ack = segment.ack;
        let timed = self.sample_timed_segment(ack);
        if self.cold.snd_una_seen != self.hot.snd_una {
            self.report_cwnd_not_limited();
        }
        self.cold.snd_una_seen = ack;
        self.hot.snd_una = ack;
        self.hot.traffic.note_acked(acked);
        self.cold.timeouts = 0;
        self.cold.retrans_since = None;
        self.cold.probe_sent = false;
        self.cold.soft_error = None;
        let timing = Timing {
            sent_before_us: self.echoed_before_us(segment),
            ..self.timing()
        };
        if let Some(scoreboard) = &mut self.cold.scoreboard {
            let delivery = scoreboard.acknowledge(ack, &timing);
            self.note_delivered(&delivery);
            self.report_rtt_sample(delivery.rtt_us);
            self.sample_echo(segment);
        } else {
            self.cold.delivered.bytes += acked;
            self.report_rtt_sample(timed);
        }
        if !self.hot.has(flags::SACK) {
            // Duplicate ACKs have already counted a part of these bytes (RFC 6937 §3).
            let counted = self.cold.dup_acks.saturating_mul(self.hot.mss.into());
            self.cold.delivered.bytes = acked.saturating_sub(counted);
        }
        // The sender is in slow start in Loss (RFC 5681 §3.1), so cwnd grows in Loss, too.
        let may_grow = !self.is_reducing();
        self.check_late_original(segment, ack.sub(acked));
        if self.is_recovered(ack) {
            self.leave_recovery();
        } else if self.cold.ca_state == CaState::Recovery && !self.hot.has(flags::SACK) {
            self.on_partial_ack(acked);
        }
        if self.cold.ca_state != CaState::Recovery {
            self.cold.dup_acks = 0;
        }
        self.check_tlp(ack);
        self.check_mtu_probe();
        if self.hot.snd_una == self.hot.snd_nxt {
            self.hot
                .clear(flags::RTO_ARMED | flags::PTO_ARMED | flags::PERSIST | flags::SMALL_SENT);
            self.hot.traffic.end_busy(&self.clock);
        } else {
            self.arm_rto();
        }
        self.hot.set(flags::SEND_WANTED);
        self.drop_scoreboard_if_idle();
        may_grow
    }

    /// Returns true if `ack` ends Recovery, Loss or CWR. The recovery point is SND.NXT when the
    /// phase began (in Loss, F-RTO may move this point). Recovery and Loss end when the recovery
    /// point is acknowledged. CWR ends only when data beyond the recovery point is acknowledged, as
    /// in Linux: the first segment beyond that point carries the CWR flag, so an ECE in an earlier
    /// ACK still belongs to the old window.
    fn is_recovered(&self, ack: SeqNumber) -> bool {
        let point = self.cold.recovery_point;
        match self.cold.ca_state {
            CaState::Recovery | CaState::Loss => ack.at_or_after(point),
            CaState::Cwr => ack.after(point),
            CaState::Open | CaState::Disorder => false,
        }
    }

    /// Handles an ACK that does not reach the recovery point, on a flow without SACK. This partial
    /// ACK shows that the next segment is lost, too (RFC 6582 §3.2 step 3).
    fn on_partial_ack(&mut self, acked: u32) {
        let mss = u32::from(self.hot.mss);
        self.cold.dup_acks = self.cold.dup_acks.saturating_sub(acked / mss);
        self.cold.ignore_cwnd_once = true;
        self.scoreboard_for_loss().mark_first_lost(mss);
    }

    /// Returns true if data from before the most recent reduction of cwnd is in flight. A loss or
    /// CE mark then does not reduce cwnd again, because cwnd is reduced once per window of data
    /// (RFC 5681 §3.2, RFC 3168 §6.1.2).
    pub(crate) fn is_reduced_this_window(&self) -> bool {
        let ahead = self.cold.reduced_until.distance_from(self.hot.snd_una);
        ahead > 0 && ahead <= self.hot.flight_size()
    }

    /// Returns true if the flow is cwnd-limited, so that cwnd may grow (as in Linux). The flag
    /// CWND_LIMITED must be set. In addition, the flight before the ACK must fill cwnd except for
    /// less than one segment. In slow start, it is enough that the largest flight of this round
    /// trip exceeds half of cwnd.
    fn is_cwnd_limited(&mut self, acked: u32) -> bool {
        let flight = self.hot.flight_size().saturating_add(acked);
        let before = self.hot.snd_una.sub(acked);
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
        self.hot.assign(flags::CWND_LIMITED, limited);
        limited
    }

    /// Tells the congestion control that the flow was not cwnd-limited while the fast path (the
    /// engine's code for the common cases) handled the ACKs. CUBIC must not count this period (RFC
    /// 9438 §5.8).
    fn report_cwnd_not_limited(&mut self) {
        let (now, srtt) = (self.clock.now, self.srtt());
        self.cold.controller.on_ack(now, 0, srtt, false);
    }

    /// Grows cwnd after an ACK that delivered `delivered` bytes and advanced SND.UNA by `acked`.
    pub(crate) fn grow(&mut self, delivered: u32, acked: u32) {
        let limited = self.is_cwnd_limited(acked);
        self.cold
            .controller
            .on_ack(self.clock.now, delivered, self.srtt(), limited);
        self.hot.cwnd = self.cold.controller.cwnd();
    }

    /// Ends Recovery, Loss or CWR, and returns to Open.
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

    /// Detects losses after an ACK. `newly_sacked` is true if the ACK had new SACK information.
    /// `duplicate` is true if the ACK was a duplicate ACK. Returns true if RACK marked data lost.
    pub fn detect_loss(&mut self, newly_sacked: bool, duplicate: bool) -> bool {
        if self.hot.flight_size() == 0 {
            self.cold.reorder_deadline = None;
            return false;
        }
        let mut more_lost = false;
        if duplicate {
            self.cold.dup_acks = self.cold.dup_acks.saturating_add(1);
        }
        if self.hot.has(flags::SACK) {
            more_lost = self.rack_detect_loss();
        } else if duplicate {
            self.check_dup_thresh();
        }
        let disorder = self.cold.dup_acks > 0
            || self
                .cold
                .scoreboard
                .as_ref()
                .is_some_and(|scoreboard| scoreboard.sacked() > 0);
        match self.cold.ca_state {
            CaState::Open if disorder => self.cold.ca_state = CaState::Disorder,
            CaState::Disorder if !disorder => self.cold.ca_state = CaState::Open,
            _ => {}
        }
        if newly_sacked || duplicate {
            self.hot.set(flags::SEND_WANTED);
        }
        more_lost
    }

    /// Starts fast retransmit at DupThresh duplicate ACKs on a flow without SACK (RFC 6582 §3.2
    /// step 2).
    fn check_dup_thresh(&mut self) {
        self.scoreboard_for_loss();
        if self.cold.dup_acks == DUP_THRESH && !self.is_recovering() {
            let first = self.first_segment_len();
            self.scoreboard_for_loss().mark_first_lost(first);
            self.begin_recovery(first);
        }
    }

    /// Starts recovery after `lost` bytes were marked lost, unless the sender is already in
    /// Recovery or Loss. If only an MTU probe (RFC 4821) was lost, cwnd is not reduced.
    fn begin_recovery(&mut self, lost: u32) {
        let probe = self.on_probe_loss(lost);
        if self.is_recovering() {
            return;
        }
        if probe {
            self.enter_ca_state(CaState::Recovery);
        } else {
            self.enter_recovery();
        }
    }

    /// Runs RACK's loss detection (RFC 8985 §6.2 step 5), after an ACK or when the reordering timer
    /// expires. Returns true if data was marked lost.
    pub fn rack_detect_loss(&mut self) -> bool {
        let reo_wnd = self.reorder_us();
        let Some(scoreboard) = &mut self.cold.scoreboard else {
            return false;
        };
        let (lost, lost_again, next) = scoreboard.rack_detect_loss(self.clock.us(), reo_wnd);
        // A deadline expires at the start of its millisecond. The added millisecond keeps the timer
        // from expiring early.
        self.cold.reorder_deadline = next.map(|us| self.clock.ms.plus(us.div_ceil(1000) + 1));
        if lost == 0 {
            return false;
        }
        self.cold.loss_suspected_at = self.clock.ms;
        self.note_lost(lost);
        self.counters.lost_retransmit += u64::from(lost_again.div_ceil(u32::from(self.hot.mss)));
        self.hot.set(flags::SEND_WANTED);
        self.begin_recovery(lost);
        true
    }

    /// Enters fast recovery (RFC 6675 §5 step 4). If an ECE has already started a reduction of
    /// cwnd, this reduction continues, because cwnd is reduced once per window of data (RFC 3168
    /// §6.1.2).
    fn enter_recovery(&mut self) {
        self.counters.fast_retrans += 1;
        let prr_of_cwr = self.cold.prr.filter(|_| self.is_reducing());
        self.enter_ca_state(CaState::Recovery);
        if prr_of_cwr.is_some() {
            self.cold.prr = prr_of_cwr;
            return;
        }
        let flight = self.flight_in_use();
        self.cold.prr = Some(Prr::begin(flight));
        if self.is_reduced_this_window() {
            return;
        }
        self.cold
            .controller
            .on_congestion_signal(self.clock.now, flight);
        self.hot.cwnd = self.cold.controller.cwnd();
        self.cold.reduced_until = self.hot.snd_nxt;
        let uses_delivery_rate = self.cold.controller.uses_delivery_rate();
        self.cold.prr = (!uses_delivery_rate).then(|| Prr::begin(flight));
        self.queue_cwr();
    }

    /// Returns FlightSize at a loss (RFC 5681 §3.1): the value before the ACK that showed the loss,
    /// or the present value if larger. The value after this ACK may be too small, because a
    /// receiver with GRO acknowledges most of a small window by one ACK.
    pub(crate) fn flight_in_use(&self) -> u32 {
        self.cold.flight.before.max(self.hot.flight_size())
    }

    /// Enters `state`, which is Recovery or Loss. Saves the congestion control for an undo, unless
    /// the sender is already in Recovery or Loss.
    fn enter_ca_state(&mut self, state: CaState) {
        if !self.is_recovering() {
            self.cold.undo = Some(Undo {
                controller: self.cold.controller.clone(),
                undo_retrans: 0,
                retrans_stamp: None,
            });
        }
        if state != CaState::Loss {
            self.cold.frto = Frto::Off;
        }
        self.cold.ca_state = state;
        self.cold.prr = None;
        self.cold.recovery_point = self.hot.snd_nxt;
        self.cold.ignore_cwnd_once = true;
        self.cold.probe_end = None;
        self.hot.set(flags::SEND_WANTED);
    }

    /// Marks lost all data that is not SACKed, after the path MTU was lowered. The data is then
    /// retransmitted in smaller segments. A lower path MTU is no congestion signal, so cwnd does
    /// not change (RFC 1191 §6.4).
    pub fn retransmit_flight(&mut self) {
        if self.hot.flight_size() > 0 {
            self.scoreboard_for_loss().mark_all_lost(false);
            self.enter_ca_state(CaState::Recovery);
        }
    }

    /// Handles a RETRANSMISSION TIMEOUT (RFC 6298 §5, RFC 5681 §3.1). If the peer reneged, marks
    /// all outstanding data lost. If SACK is not in use or there is no RTT sample, marks lost all
    /// data that is not SACKed. In all other cases, marks lost the first segment, and all data in
    /// flight that was sent at least an RTT plus a reordering window ago (RFC 8985 §6.3).
    pub fn enter_loss(&mut self) {
        self.counters.timeouts += 1;
        let (now, srtt, reo_wnd) = (self.clock.us(), self.hot.srtt >> 3, self.reorder_us());
        let (mss, sack) = (u32::from(self.hot.mss), self.hot.has(flags::SACK));
        let scoreboard = self.scoreboard_for_loss();
        // A peer reneges if it discards data that it has SACKed (RFC 2018 §8).
        let reneged = scoreboard.is_reneged();
        if sack && !reneged && srtt != 0 {
            let rtt = scoreboard.rack_rtt_us().unwrap_or(srtt);
            scoreboard.mark_old_lost(mss, now, rtt.saturating_add(reo_wnd));
        } else {
            scoreboard.mark_all_lost(reneged);
        }
        self.begin_frto(self.is_recovering());
        self.enter_ca_state(CaState::Loss);
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
