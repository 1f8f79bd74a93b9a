//! SEGMENT ARRIVES (RFC 9293 §3.10.7), split by the RFC's own steps.

use tidelane_flow::{CaState, CloseCause, Driver, Event, State, StateEvent, flags};
use tidelane_wire::{DropReason, Ecn, Segment, TcpFlags};

use crate::{
    Outcome, PeerSyn, SlowPath, ack_effects::AckEffects, delivered_data::DeliveredData,
    open::has_invalid_wscale,
};

/// Result of one check: after `Ok`, the next check follows. `Err` stops the checks.
pub(crate) type Step = Result<(), Outcome>;

impl<E: Driver> SlowPath<'_, E> {
    /// Handles a segment for a flow in any state but LISTEN. A flow in CLOSED ignores the segment.
    pub fn segment_arrives(&mut self, segment: &Segment<'_>, ecn: Ecn) -> Outcome {
        self.counters.slow_receives += 1;
        self.hot.traffic.on_arrival(!segment.payload.is_empty());
        self.cold.delivered = DeliveredData::default();
        let outcome = match self.hot.state {
            State::SynSent => self.arrives_in_syn_sent(segment, ecn),
            State::Closed => Outcome::Keep,
            _ => match self.eight_checks(segment, ecn) {
                Ok(()) => Outcome::Keep,
                Err(outcome) => outcome,
            },
        };
        self.start_scoreboard_if_wanted();
        self.forget_urgent();
        self.update_fast_path();
        outcome
    }

    /// Runs the checks of §3.10.7.4 in the RFC's order.
    fn eight_checks(&mut self, segment: &Segment<'_>, ecn: Ecn) -> Step {
        let syn = segment.flags.contains(TcpFlags::SYN) && !segment.flags.contains(TcpFlags::RST);
        if syn && self.hot.state == State::SynReceived {
            return self.syn_in_syn_received(segment);
        }
        self.check_sequence(segment)?;
        self.check_rst(segment)?;
        self.check_security(segment)?;
        self.check_syn(segment)?;
        self.check_ack(segment)?;
        self.note_timestamp(segment);
        self.check_urg(segment);
        let (next, had_ooo) = (self.hot.rcv_nxt, !self.cold.ooo.is_empty());
        self.process_text(segment, ecn)?;
        self.check_fin(segment)?;
        self.end_run_after(segment, next, had_ooo);
        Ok(())
    }

    /// Counts a dropped segment, and stops the checks.
    pub(crate) fn drop(&mut self, reason: DropReason) -> Step {
        self.counters.drops[reason.index()] += 1;
        Err(Outcome::Keep)
    }

    /// First check: the sequence number. PAWS comes before this check (RFC 7323 §5.3).
    fn check_sequence(&mut self, segment: &Segment<'_>) -> Step {
        let rst = segment.flags.contains(TcpFlags::RST);
        let stale = segment
            .seq
            .add(segment.len())
            .at_or_before(self.hot.rcv_nxt);
        if self.fails_paws(segment) {
            self.ack_unacceptable(segment);
            self.note_duplicate_payload(segment, stale);
            return self.drop(DropReason::Paws);
        }
        if self.is_acceptable(segment) {
            return Ok(());
        }
        if rst {
            return self.drop(DropReason::OutOfWindow);
        }
        // The ACK of a duplicate segment counts if the segment starts within one window before
        // RCV.NXT. In a larger range, an attacker could guess a sequence number easily.
        let oldest = self.hot.rcv_nxt.sub(self.hot.rcv_wnd_limit);
        let recent = stale && segment.seq.at_or_after(oldest);
        let ack_counts = recent && segment.flags.contains(TcpFlags::ACK);
        if ack_counts && segment.ack.after(self.hot.snd_una) {
            if let Err(over @ (Outcome::TimeWait | Outcome::Release)) = self.check_ack(segment) {
                // The segment acknowledged our FIN, and the connection is complete.
                let _ = self.send_ack();
                return Err(over);
            }
        } else if ack_counts && self.process_sack(segment) {
            let effects = AckEffects {
                newly_sacked: true,
                ..AckEffects::default()
            };
            self.after_ack(segment, effects);
        }
        self.ack_unacceptable(segment);
        self.counters.dup_segs += u64::from(stale);
        self.note_duplicate_payload(segment, stale);
        self.drop(if stale {
            DropReason::Duplicate
        } else {
            DropReason::OutOfWindow
        })
    }

    /// If the segment ends at or before RCV.NXT (`stale`), reports its payload as a duplicate by
    /// DSACK. As in Linux, a segment that PAWS rejected is reported, too, because a delayed
    /// retransmission carries an old timestamp.
    fn note_duplicate_payload(&mut self, segment: &Segment<'_>, stale: bool) {
        if stale && !segment.payload.is_empty() {
            self.note_duplicate(segment.seq, segment.seq.add(segment.payload.len() as u32));
        }
    }

    /// Returns true if the segment passes the test of §3.10.7.4, or starts at the window's right
    /// edge (Linux: `tcp_sequence`). The ACKs of a peer that has filled the window, or that probes
    /// a closed window, start at this edge. No payload is accepted at the edge.
    fn is_acceptable(&self, segment: &Segment<'_>) -> bool {
        let (next, len) = (self.hot.rcv_nxt, segment.len());
        let ends_in_window = if len == 0 {
            segment.seq.at_or_after(next)
        } else {
            segment.seq.add(len).after(next)
        };
        ends_in_window && segment.seq.at_or_before(self.hot.rcv_adv)
    }

    /// Handles a SYN in SYN-RECEIVED: the peer's SYN again, or a simultaneous open (§3.5).
    fn syn_in_syn_received(&mut self, segment: &Segment<'_>) -> Step {
        if segment.seq != self.hot.irs {
            self.challenge_ack();
            return self.drop(DropReason::UnexpectedSyn);
        }
        let acks_ours = segment.flags.contains(TcpFlags::ACK) && self.acks_syn(segment);
        if acks_ours {
            // RFC 9293 §3.5 figure 8, line 6: the SYN is a duplicate, but its ACK is new. As in
            // Linux, the SYN is answered as a duplicate.
            let _ = self.check_ack(segment);
            self.note_duplicate(segment.seq, segment.seq.add(1));
            self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
        } else {
            // The timer retransmits the SYN,ACK if no frame is free now.
            if self.may_answer() {
                let _ = self.send_syn();
            }
        }
        Err(Outcome::Keep)
    }

    /// Second check: RST. An exact RST (at RCV.NXT, or see below) aborts the connection, and the
    /// application gets an event (RFC 9293 MUST-12). Any other RST in the window gets a challenge
    /// ACK (RFC 5961 §3). The payload of a RST is ignored (SHLD-2). A half-open flow of a listener
    /// ends without an event `Closed`, because the listener stays in LISTEN (MUST-11).
    fn check_rst(&mut self, segment: &Segment<'_>) -> Step {
        if !segment.flags.contains(TcpFlags::RST) {
            return Ok(());
        }
        // A RST carries the peer's SND.NXT, which is beyond RCV.NXT if a segment was lost. With
        // SACK, a RST at the end of the highest out-of-order range is therefore exact, too (as in
        // Linux).
        let reported = self.hot.has(flags::SACK) && self.cold.ooo.highest() == Some(segment.seq);
        if segment.seq != self.hot.rcv_nxt && !reported {
            self.challenge_ack();
            return self.drop(DropReason::InexactRst);
        }
        if self.hot.state == State::SynReceived {
            self.counters.attempt_fails += 1;
            if self.is_half_open_passive() {
                return Err(Outcome::Release);
            }
            let pending = self.is_fast_open_pending();
            let cause = if pending {
                CloseCause::Reset
            } else {
                CloseCause::Refused
            };
            return Err(self.end(cause));
        }
        self.counters.estab_resets += 1;
        Err(self.end(CloseCause::Reset))
    }

    /// Third check: security. The security option of IP is not in use (RFC 9293 appendix A.1), so
    /// every segment passes.
    fn check_security(&mut self, _segment: &Segment<'_>) -> Step {
        Ok(())
    }

    /// Fourth check: a SYN in a synchronized state gets a challenge ACK (RFC 5961 §4).
    fn check_syn(&mut self, segment: &Segment<'_>) -> Step {
        if !segment.flags.contains(TcpFlags::SYN) {
            return Ok(());
        }
        self.challenge_ack();
        self.drop(DropReason::UnexpectedSyn)
    }

    /// Fifth check: the ACK field. Applies the acknowledgment, the SACK blocks and the window.
    fn check_ack(&mut self, segment: &Segment<'_>) -> Step {
        if !segment.flags.contains(TcpFlags::ACK) {
            return self.drop(DropReason::NoAck);
        }
        if self.hot.state == State::SynReceived {
            self.complete_handshake(segment)?;
        }
        let ack = segment.ack;
        // RFC 5961 §5.2: SEG.ACK must be at most SND.NXT, and at least SND.UNA - MAX.SND.WND.
        self.note_window(self.hot.snd_wnd);
        if ack.after(self.hot.snd_nxt) {
            self.challenge_ack();
            return self.drop(DropReason::AckUnsent);
        }
        if ack.before(self.hot.snd_una.sub(self.cold.snd_wnd_max)) {
            self.challenge_ack();
            return self.drop(DropReason::AckTooOld);
        }
        if ack.at_or_after(self.hot.snd_una) {
            self.hot.traffic.ack_received_at = self.clock.ms;
        }
        self.note_peer_alive();
        self.cold.flight.before = self.hot.flight_size();
        let newly_sacked = self.process_sack(segment);
        let window_changed = self.update_window(segment);
        let prior_una = self.hot.snd_una;
        if ack.after(prior_una) {
            let acked = ack.distance_from(prior_una);
            let may_grow = self.on_ack_advance(segment, acked);
            self.driver.event(self.id, Event::WRITABLE);
            let effects = AckEffects {
                acked,
                newly_sacked,
                may_grow,
                duplicate: false,
            };
            self.after_ack(segment, effects);
            return self.after_fin_acked();
        }
        self.check_tlp_duplicate(segment);
        let duplicate = ack == self.hot.snd_una
            && segment.payload.is_empty()
            && !window_changed
            && !segment.flags.intersects(TcpFlags::SYN | TcpFlags::FIN)
            && self.hot.flight_size() > 0;
        let duplicate = duplicate && (newly_sacked || !self.hot.has(flags::SACK));
        let effects = AckEffects {
            newly_sacked,
            duplicate,
            ..AckEffects::default()
        };
        self.after_ack(segment, effects);
        Ok(())
    }

    /// Updates the congestion state after an ACK: loss detection, spurious RTOs, ECN echoes, PRR
    /// and growth of cwnd. An ACK that starts a reduction does not grow cwnd first (as in Linux).
    fn after_ack(&mut self, segment: &Segment<'_>, effects: AckEffects) {
        if self.cold.ca_state == CaState::Loss {
            self.on_ack_in_loss(segment, effects);
        }
        if effects.duplicate && !self.hot.has(flags::SACK) {
            self.cold.delivered.bytes += u32::from(self.hot.mss);
        }
        let more_lost = self.detect_loss(effects.newly_sacked, effects.duplicate);
        self.process_ecn_echo(segment, effects.acked);
        let delivered = self.cold.delivered.bytes;
        if self.is_reducing() {
            self.reduce(delivered, effects.acked > 0, more_lost);
        } else if effects.may_grow {
            self.grow(delivered, effects.acked);
        } else if effects.newly_sacked && effects.acked == 0 {
            self.grow_out_of_order();
        }
        self.report_rate_sample();
    }

    /// Records the arrival of an acceptable segment, which shows that the peer is alive.
    fn note_peer_alive(&mut self) {
        self.cold.last_arrival = self.clock.ms;
        self.hot.last_arrival = (self.clock.ms.0 >> 10) as u16;
        self.cold.unanswered_probes = 0;
    }

    /// Updates SND.WND and SND.WL1. Returns true if the window changed. SND.WL1 is the later of
    /// `snd_wl1` and RCV.NXT: the fast path accepts only segments with SEG.SEQ = RCV.NXT, and does
    /// not update `snd_wl1`. The network may reorder empty segments with equal SEG.SEQ and SEG.ACK,
    /// so the window of such a segment counts only if it is zero or exceeds SND.WND (as in Linux).
    fn update_window(&mut self, segment: &Segment<'_>) -> bool {
        let wl1 = self.cold.snd_wl1.later_of(self.hot.rcv_nxt);
        let shift = if segment.flags.contains(TcpFlags::SYN) {
            0
        } else {
            self.hot.snd_wscale()
        };
        let wnd = u32::from(segment.wnd) << shift;
        let counts = wnd > self.hot.snd_wnd || wnd == 0 || !segment.payload.is_empty();
        let newer = segment.ack.after(self.hot.snd_una)
            || segment.ack == self.hot.snd_una
                && (segment.seq.after(wl1) || segment.seq == wl1 && counts);
        if !newer {
            return false;
        }
        self.cold.snd_wl1 = segment.seq.later_of(wl1);
        let changed = wnd != self.hot.snd_wnd;
        self.hot.snd_wnd = wnd;
        self.note_window(wnd);
        if changed {
            self.hot.set(flags::SEND_WANTED);
            if self.hot.has(flags::PERSIST) && wnd > 0 {
                self.hot.clear(flags::RTO_ARMED | flags::PERSIST);
                self.hot.traffic.end_busy(&self.clock);
                self.cold.backoff = 0;
                self.cold.persist_since = None;
            }
        }
        changed
    }

    /// Records the peer's largest window, which limits the segment size. Without this limit, a
    /// receiver with a small buffer would get no segment before the persist timer expires (Linux:
    /// `tcp_bound_to_half_wnd`).
    fn note_window(&mut self, wnd: u32) {
        if wnd > self.cold.snd_wnd_max {
            self.cold.snd_wnd_max = wnd;
            self.cold.refresh_mss(self.config, self.hot);
        }
    }

    /// Moves a flow in SYN-RECEIVED to ESTABLISHED if the segment acknowledges our SYN.
    fn complete_handshake(&mut self, segment: &Segment<'_>) -> Step {
        if !self.acks_syn(segment) {
            let key = self.hot.key;
            self.reset_for(segment, key);
            return self.drop(DropReason::AckUnsent);
        }
        if self.waits_for_data(segment) {
            self.cold.deferred = true;
            self.hot.clear(flags::RTT_TIMING);
            return self.drop(DropReason::AcceptDeferred);
        }
        self.check_accept_queue()?;
        let pending = self.is_fast_open_pending();
        self.hot.state = self.hot.state.next(StateEvent::SynAcked);
        self.hot.clear(flags::RTO_ARMED);
        let shift = if segment.flags.contains(TcpFlags::SYN) {
            0
        } else {
            self.hot.snd_wscale()
        };
        self.cold.snd_wl1 = segment.seq;
        self.hot.snd_wnd = u32::from(segment.wnd) << shift;
        self.note_window(self.hot.snd_wnd);
        self.established(segment);
        if !pending {
            self.begin_counts(segment);
            self.on_syn_data_acked(segment);
        }
        match self.cold.listener {
            _ if pending => self.end_fast_open_pending(),
            Some(listener) => {
                self.counters.passive_opens += 1;
                self.driver.event(self.id, Event::Accepted(listener));
            }
            None => self.driver.event(self.id, Event::Connected),
        }
        if self.hot.has(flags::FIN_QUEUED) {
            self.hot.state = self.hot.state.next(StateEvent::CloseCall);
        }
        Ok(())
    }

    /// Returns true if the handshake stays incomplete because the ACK carries no data and the
    /// listener waits for data (TCP_DEFER_ACCEPT, as in Linux).
    fn waits_for_data(&self, segment: &Segment<'_>) -> bool {
        let waits = self.cold.backoff < self.cold.options.defer_accept;
        let empty = segment.seq.add(segment.len()) == self.hot.irs.add(1);
        waits && empty && self.is_half_open_passive()
    }

    /// Returns true if the segment acknowledges our SYN and no unsent data.
    fn acks_syn(&self, segment: &Segment<'_>) -> bool {
        let after = segment.ack.after(self.hot.iss);
        after && segment.ack.at_or_before(self.hot.snd_nxt)
    }

    /// Initializes the state of a flow that enters ESTABLISHED, for active and passive opens.
    fn established(&mut self, segment: &Segment<'_>) {
        self.note_peer_alive();
        self.cold.retrans_since = None;
        if self.hot.has(flags::RTT_TIMING) {
            self.hot.clear(flags::RTT_TIMING);
            let rtt = self.clock.us().wrapping_sub(self.hot.rtt_stamp);
            self.add_rtt_sample(rtt);
        } else {
            self.sample_echo(segment);
        }
        self.cold.backoff = 0;
        self.cold.timeouts = 0;
        self.hot.snd_una = self.hot.iss.add(1);
        self.cold.recovery_point = self.hot.snd_una;
        self.cold.reduced_until = self.hot.snd_una;
        self.cold.reordering.round = self.hot.snd_una;
        self.hot.set(flags::SEND_WANTED);
        self.begin_mtu_search();
        self.arm_keepalive();
    }

    /// Advances the state machine if an ACK has just acknowledged our FIN.
    fn after_fin_acked(&mut self) -> Step {
        if !self.hot.has(flags::FIN_SENT) || self.hot.snd_una != self.hot.snd_nxt {
            return Ok(());
        }
        let before = self.hot.state;
        self.hot.state = before.next(StateEvent::FinAcked);
        if self.hot.state != before {
            self.driver.event(self.id, Event::FinAcked);
        }
        match self.hot.state {
            State::FinWait2 if self.cold.is_orphan => {
                let Some(wait) = self.cold.fin_wait_2_ms(self.hot, self.timeouts) else {
                    self.send_reset();
                    return Err(self.end(CloseCause::Finished));
                };
                self.cold.keepalive_deadline = Some(self.clock.ms.plus(wait));
                Ok(())
            }
            State::TimeWait => Err(self.finish(Outcome::TimeWait)),
            State::Closed => Err(self.finish(Outcome::Release)),
            _ => Ok(()),
        }
    }

    /// Ends a connection that both sides have closed, and returns `outcome`. If the application has
    /// not closed the socket yet, reports the end, and returns `Keep` instead of `Release`.
    pub(crate) fn finish(&mut self, outcome: Outcome) -> Outcome {
        if self.cold.is_orphan {
            return outcome;
        }
        if self.cold.cause.is_none() {
            self.cold.cause = Some(CloseCause::Finished);
            self.driver
                .event(self.id, Event::Closed(CloseCause::Finished));
        }
        match outcome {
            Outcome::Release => Outcome::Keep,
            other => other,
        }
    }

    /// Handles a segment in SYN-SENT (§3.10.7.3).
    fn arrives_in_syn_sent(&mut self, segment: &Segment<'_>, ecn: Ecn) -> Outcome {
        let has_ack = segment.flags.contains(TcpFlags::ACK);
        let good_ack = has_ack && self.acks_syn(segment) && !self.echoes_foreign_timestamp(segment);
        if has_ack && !good_ack {
            if !segment.flags.contains(TcpFlags::RST) {
                let key = self.hot.key;
                self.reset_for(segment, key);
            }
            self.counters.drops[DropReason::AckUnsent.index()] += 1;
            return Outcome::Keep;
        }
        if segment.flags.contains(TcpFlags::RST) {
            if !good_ack {
                return Outcome::Keep;
            }
            self.counters.attempt_fails += 1;
            return self.end(CloseCause::Refused);
        }
        if !segment.flags.contains(TcpFlags::SYN) {
            self.counters.drops[DropReason::BadFlags.index()] += 1;
            return Outcome::Keep;
        }
        self.counters.impossible_wscales += u64::from(has_invalid_wscale(segment));
        let mut syn = PeerSyn::of(segment, ecn);
        syn.ecn &= self.asks_for_ecn();
        self.cold.apply_syn(self.config, self.hot, &syn);
        if good_ack {
            self.hot.state = self.hot.state.next(StateEvent::SynAckReceived);
            self.hot.clear(flags::RTO_ARMED);
            self.established(segment);
            self.begin_counts(segment);
            self.cold.ca_state = CaState::Open;
            self.driver.event(self.id, Event::Connected);
            // If data waits for the handshake or follows soon, a data segment carries the ACK.
            self.hot.set(flags::ACK_OWED);
            self.hot
                .assign(flags::ACK_NOW, !self.cold.fast_open.more_follows);
            self.on_syn_data_acked(segment);
            if self.hot.has(flags::FIN_QUEUED) {
                self.hot.state = self.hot.state.next(StateEvent::CloseCall);
            }
            return self.receive_syn_ack_data(segment, ecn);
        } else {
            // Simultaneous open (§3.5, MUST-10).
            self.hot.state = self.hot.state.next(StateEvent::SynReceived);
            let _ = self.send_syn();
            self.arm_rto();
        }
        Outcome::Keep
    }
}
