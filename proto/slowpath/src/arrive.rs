//! SEGMENT ARRIVES (RFC 9293 §3.10.7), split by the RFC's own steps.

use tidelane_flow::{CaState, CloseCause, Env, Event, State, StateEvent, flags};
use tidelane_wire::{DropReason, Segment, SeqNumber, TcpFlags};

use crate::{Fate, Slow, SynSeen};

/// A step's verdict: go on with the next, or stop.
type Step = Result<(), Fate>;

impl<E: Env> Slow<'_, E> {
    /// A segment for a flow in any state but LISTEN and CLOSED.
    pub fn segment_arrives(&mut self, segment: &Segment<'_>) -> Fate {
        self.counters.slow_receives += 1;
        self.cold.last_arrival = self.clock.ms;
        self.cold.keepalive_probes = 0;
        let fate = match self.hot.state {
            State::SynSent => self.arrives_in_syn_sent(segment),
            State::Closed => Fate::Keep,
            _ => match self.eight_checks(segment) {
                Ok(()) => Fate::Keep,
                Err(fate) => fate,
            },
        };
        self.settle();
        fate
    }

    /// §3.10.7.4, in its order.
    fn eight_checks(&mut self, segment: &Segment<'_>) -> Step {
        self.check_sequence(segment)?;
        self.check_rst(segment)?;
        self.check_syn(segment)?;
        self.check_ack(segment)?;
        self.process_text(segment)?;
        self.check_fin(segment)
    }

    fn drop(&mut self, reason: DropReason) -> Step {
        self.counters.drops[reason.index()] += 1;
        Err(Fate::Keep)
    }

    /// First: sequence number, and PAWS before it (RFC 7323 §5.3).
    fn check_sequence(&mut self, segment: &Segment<'_>) -> Step {
        let rst = segment.flags.contains(TcpFlags::RST);
        if self.hot.has(flags::TIMESTAMPS)
            && let Some(t) = segment.options.timestamps
            && !rst
        {
            if (t.tsval.wrapping_sub(self.hot.ts_recent) as i32) < 0 {
                let _ = self.send_ack();
                return self.drop(DropReason::Paws);
            }
            // R3: only from a segment that is next in order or before.
            if segment.seq.at_or_before(self.hot.last_ack_sent) {
                self.hot.ts_recent = t.tsval;
            }
        }
        let wnd = self.hot.rcv_adv.distance_from(self.hot.rcv_nxt);
        let len = segment.len();
        let next = self.hot.rcv_nxt;
        let acceptable = match (len, wnd) {
            (0, 0) => segment.seq == next,
            (0, _) => segment.seq.in_window(next, wnd),
            (_, 0) => false,
            _ => {
                segment.seq.in_window(next, wnd)
                    || segment.seq.add(len - 1).in_window(next, wnd)
                    || (segment.seq.before(next) && segment.seq.add(len).after(next))
            }
        };
        // A pure ACK just before the window (a keepalive, or after a probe) still acknowledges.
        if acceptable {
            return Ok(());
        }
        if rst {
            return self.drop(DropReason::OutOfWindow);
        }
        if self.hot.state == State::SynReceived && segment.flags.contains(TcpFlags::SYN) {
            // The peer has not seen our SYN,ACK.
            let _ = self.send_syn();
            return Err(Fate::Keep);
        }
        let stale = segment.seq.add(len).at_or_before(next);
        let ack_counts = stale && segment.flags.contains(TcpFlags::ACK);
        if ack_counts && segment.ack.after(self.hot.snd_una) {
            if let Err(over @ (Fate::TimeWait | Fate::Release)) = self.check_ack(segment) {
                // It acknowledged our FIN, which was all that was missing.
                let _ = self.send_ack();
                return Err(over);
            }
        } else if ack_counts && self.take_sack(segment) {
            self.detect_loss(true, false);
        }
        self.hot.set(flags::ACK_NOW | flags::ACK_OWED);
        let reason = if stale {
            DropReason::Duplicate
        } else {
            DropReason::OutOfWindow
        };
        self.counters.dup_segs += u64::from(stale);
        self.drop(reason)
    }

    /// Second: RST, exact or challenged (RFC 5961 §3).
    fn check_rst(&mut self, segment: &Segment<'_>) -> Step {
        if !segment.flags.contains(TcpFlags::RST) {
            return Ok(());
        }
        if segment.seq != self.hot.rcv_nxt {
            self.challenge_ack();
            return self.drop(DropReason::InexactRst);
        }
        if self.hot.state == State::SynReceived && self.cold.listener.is_some() {
            self.counters.attempt_fails += 1;
            return Err(Fate::Release);
        }
        self.counters.estab_resets += 1;
        Err(self.end(CloseCause::Reset))
    }

    /// Fourth: a SYN in a synchronized state gets a challenge ACK (RFC 5961 §4).
    fn check_syn(&mut self, segment: &Segment<'_>) -> Step {
        if !segment.flags.contains(TcpFlags::SYN) {
            return Ok(());
        }
        if self.hot.state == State::SynReceived && segment.seq == self.hot.irs {
            return Ok(());
        }
        self.challenge_ack();
        self.drop(DropReason::UnexpectedSyn)
    }

    /// Fifth: ACK.
    fn check_ack(&mut self, segment: &Segment<'_>) -> Step {
        if !segment.flags.contains(TcpFlags::ACK) {
            return self.drop(DropReason::NoAck);
        }
        if self.hot.state == State::SynReceived {
            self.complete_handshake(segment)?;
        }
        let ack = segment.ack;
        if ack.after(self.hot.snd_nxt) {
            self.hot.set(flags::ACK_NOW | flags::ACK_OWED);
            return self.drop(DropReason::AckUnsent);
        }
        // RFC 5961 §5: not older than the largest window.
        if ack.before(self.hot.snd_una.back(self.cold.snd_wnd_max.max(1 << 16))) {
            self.challenge_ack();
            return self.drop(DropReason::AckTooOld);
        }
        let news = self.take_sack(segment);
        let window_changed = self.update_window(segment);
        if ack.after(self.hot.snd_una) {
            let acked = ack.distance_from(self.hot.snd_una);
            self.on_ack_advance(ack, acked);
            self.env.event(self.id, Event::Writable);
            self.detect_loss(news, false);
            return self.after_fin_acked();
        }
        let duplicate = ack == self.hot.snd_una
            && segment.payload.is_empty()
            && !window_changed
            && !segment.flags.intersects(TcpFlags::SYN | TcpFlags::FIN)
            && self.hot.flight_size() > 0;
        self.detect_loss(news, duplicate && (news || !self.hot.has(flags::SACK)));
        Ok(())
    }

    /// SND.WND, SND.WL1, SND.WL2. Whether the window changed.
    fn update_window(&mut self, segment: &Segment<'_>) -> bool {
        let newer = self.cold.snd_wl1.before(segment.seq)
            || (self.cold.snd_wl1 == segment.seq && self.cold.snd_wl2.at_or_before(segment.ack));
        if !newer || segment.ack.before(self.hot.snd_una) {
            return false;
        }
        let shift = if segment.flags.contains(TcpFlags::SYN) {
            0
        } else {
            self.hot.snd_wscale()
        };
        let wnd = u32::from(segment.wnd) << shift;
        self.cold.snd_wl1 = segment.seq;
        self.cold.snd_wl2 = segment.ack;
        let changed = wnd != self.hot.snd_wnd;
        self.hot.snd_wnd = wnd;
        self.cold.snd_wnd_max = self.cold.snd_wnd_max.max(wnd);
        if changed {
            self.hot.set(flags::SEND_WANTED);
            if self.hot.has(flags::PERSIST) && wnd > 0 {
                self.hot.clear(flags::RTO_ARMED | flags::PERSIST);
                self.cold.backoff = 0;
            }
        }
        changed
    }

    /// SYN-RECEIVED with an ACK: ESTABLISHED. The listener's room was checked before.
    fn complete_handshake(&mut self, segment: &Segment<'_>) -> Step {
        let exact = segment.ack == self.hot.iss.add(1);
        if !exact {
            let key = self.hot.key;
            self.reset_for(segment, key);
            return self.drop(DropReason::AckUnsent);
        }
        self.hot.state = self.hot.state.next(StateEvent::SynAcked);
        self.hot.clear(flags::RTO_ARMED);
        self.cold.snd_wl1 = segment.seq;
        self.cold.snd_wl2 = segment.ack;
        self.hot.snd_wnd = u32::from(segment.wnd) << self.hot.snd_wscale();
        self.cold.snd_wnd_max = self.hot.snd_wnd;
        self.established();
        match self.cold.listener {
            Some(listener) => {
                self.counters.passive_opens += 1;
                self.env.event(self.id, Event::Accepted(listener));
            }
            None => self.env.event(self.id, Event::Connected),
        }
        if self.hot.has(flags::FIN_QUEUED) {
            self.hot.state = self.hot.state.next(StateEvent::CloseCall);
        }
        Ok(())
    }

    /// Common to both opens.
    fn established(&mut self) {
        if self.hot.has(flags::RTT_TIMING) {
            self.hot.clear(flags::RTT_TIMING);
            let rtt = self.clock.us.wrapping_sub(self.hot.rtt_stamp);
            self.hot.sample_rtt(rtt);
            self.cold.rtt_min_us = rtt;
        }
        self.cold.backoff = 0;
        self.hot.snd_una = self.hot.iss.add(1);
        self.cold.recovery_point = self.hot.snd_una;
        self.cold.lost_to = self.hot.snd_una;
        self.cold.high_rxt = self.hot.snd_una;
        self.hot.set(flags::SEND_WANTED);
        self.arm_keepalive();
    }

    /// The flow's FIN may be acknowledged now.
    fn after_fin_acked(&mut self) -> Step {
        if !self.hot.has(flags::FIN_SENT) || self.hot.snd_una != self.hot.snd_nxt {
            return Ok(());
        }
        let before = self.hot.state;
        self.hot.state = before.next(StateEvent::FinAcked);
        if self.hot.state != before {
            self.env.event(self.id, Event::FinAcked);
        }
        match self.hot.state {
            State::FinWait2 if self.hot.has(flags::ORPHAN) => {
                let wait = (self.config.fin_wait_2.0 / 1_000_000) as u32;
                self.cold.slow_deadline = Some(self.clock.ms.plus(wait));
                Ok(())
            }
            State::TimeWait => Err(self.finish(Fate::TimeWait)),
            State::Closed => Err(self.finish(Fate::Release)),
            _ => Ok(()),
        }
    }

    /// Both sides are done: the flow goes at once if the program has closed it.
    fn finish(&mut self, fate: Fate) -> Fate {
        if self.hot.has(flags::ORPHAN) {
            return fate;
        }
        if self.cold.cause.is_none() {
            self.cold.cause = Some(CloseCause::Finished);
            self.env.event(self.id, Event::Closed(CloseCause::Finished));
        }
        Fate::Keep
    }

    /// Seventh: text. (Sixth, URG: the urgent pointer is ignored and its data stays in line.)
    fn process_text(&mut self, segment: &Segment<'_>) -> Step {
        if segment.payload.is_empty() {
            return Ok(());
        }
        if !self.hot.state.receives() {
            return Ok(());
        }
        if self.hot.has(flags::ORPHAN)
            && segment
                .seq
                .add(segment.payload.len() as u32)
                .after(self.hot.rcv_nxt)
        {
            // RFC 9293 §3.10.7.4 and Linux: data for a program that is gone is answered by RST.
            self.counters.drops[DropReason::DataAfterClose.index()] += 1;
            self.send_reset();
            return Err(self.end(CloseCause::Aborted));
        }
        let next = self.hot.rcv_nxt;
        let skip = if segment.seq.before(next) {
            next.distance_from(segment.seq)
        } else {
            0
        };
        let Some(text) = segment.payload.get(skip as usize..) else {
            return Ok(());
        };
        let start = segment.seq.add(skip);
        let room = self.hot.rcv_adv.distance_from(start) as usize;
        let text = &text[..text.len().min(room)];
        self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
        if text.is_empty() {
            return Ok(());
        }
        let end = start.add(text.len() as u32);
        if self.cold.fin_at.is_some_and(|fin| end.after(fin)) {
            return self.drop(DropReason::DataAfterFin);
        }
        if start != next && self.cold.ooo.len() >= crate::ranges::RANGES_MAX {
            return self.drop(DropReason::ReassemblyFull);
        }
        if !self.env.place(self.id, self.hot.rx_pos(start), text) {
            return self.drop(DropReason::RxBufferFull);
        }
        if start != next {
            self.counters.ofo_queue += 1;
            self.cold.ooo.insert(start, end);
            self.cold.ooo_latest = start;
            return Ok(());
        }
        let in_order_before = self.cold.ooo.is_empty();
        self.advance_rcv_nxt(end);
        if in_order_before {
            self.delay_ack(text.len() as u32);
        }
        self.env.event(self.id, Event::Readable);
        Ok(())
    }

    /// RCV.NXT moves to `end`, and over what was out of order behind it.
    fn advance_rcv_nxt(&mut self, end: SeqNumber) {
        self.hot.rcv_nxt = end;
        if let Some((_, joined)) = self
            .cold
            .ooo
            .iter()
            .next()
            .filter(|r| r.0.at_or_before(end))
        {
            self.hot.rcv_nxt = joined.later_of(end);
        }
        let next = self.hot.rcv_nxt;
        self.cold.ooo.remove_below(next);
    }

    /// In-order data may be acknowledged later (RFC 9293 §3.8.6.3).
    fn delay_ack(&mut self, len: u32) {
        self.hot.rcv_mss = self.hot.rcv_mss.max(len.min(0xffff) as u16);
        let unacked = self.hot.rcv_nxt.distance_from(self.hot.last_ack_sent);
        let now = unacked >= 2 * u32::from(self.hot.rcv_mss)
            || self.hot.has(flags::QUICKACK)
            || self.hot.quick_acks() > 0;
        self.hot.put(flags::ACK_NOW, now);
    }

    /// Eighth: FIN.
    fn check_fin(&mut self, segment: &Segment<'_>) -> Step {
        if segment.flags.contains(TcpFlags::FIN) {
            let at = segment.seq.add(segment.payload.len() as u32);
            if at.in_window(
                self.hot.rcv_nxt,
                self.hot.rcv_adv.distance_from(self.hot.rcv_nxt) + 1,
            ) {
                self.cold.fin_at = Some(at);
            }
            self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
        }
        let in_order = self.cold.fin_at == Some(self.hot.rcv_nxt) && self.hot.state.receives()
            || (self.cold.fin_at == Some(self.hot.rcv_nxt) && self.hot.state == State::SynReceived);
        if !in_order {
            return Ok(());
        }
        self.cold.fin_at = None;
        self.hot.rcv_nxt = self.hot.rcv_nxt.add(1);
        self.hot.rcv_adv = self.hot.rcv_adv.later_of(self.hot.rcv_nxt);
        self.hot
            .set(flags::FIN_RECEIVED | flags::ACK_OWED | flags::ACK_NOW);
        self.hot.state = self.hot.state.next(StateEvent::FinReceived);
        self.env.event(self.id, Event::PeerClosed);
        if self.hot.state == State::TimeWait {
            let _ = self.send_ack();
            return Err(self.finish(Fate::TimeWait));
        }
        Ok(())
    }

    /// §3.10.7.3: SYN-SENT.
    fn arrives_in_syn_sent(&mut self, segment: &Segment<'_>) -> Fate {
        let has_ack = segment.flags.contains(TcpFlags::ACK);
        let good_ack = has_ack && segment.ack == self.hot.iss.add(1);
        if has_ack && !good_ack {
            if !segment.flags.contains(TcpFlags::RST) {
                let key = self.hot.key;
                self.reset_for(segment, key);
            }
            self.counters.drops[DropReason::AckUnsent.index()] += 1;
            return Fate::Keep;
        }
        if segment.flags.contains(TcpFlags::RST) {
            if !good_ack {
                return Fate::Keep;
            }
            self.counters.attempt_fails += 1;
            return self.end(CloseCause::Refused);
        }
        if !segment.flags.contains(TcpFlags::SYN) {
            self.counters.drops[DropReason::BadFlags.index()] += 1;
            return Fate::Keep;
        }
        let syn = SynSeen {
            irs: segment.seq,
            options: segment.options,
            wnd: segment.wnd,
        };
        self.cold.see_syn(self.config, self.hot, &syn);
        if good_ack {
            self.hot.state = self.hot.state.next(StateEvent::SynAckReceived);
            self.hot.clear(flags::RTO_ARMED);
            self.cold.snd_wl2 = segment.ack;
            self.established();
            self.cold.ca_state = CaState::Open;
            self.env.event(self.id, Event::Connected);
            let _ = self.send_ack();
            if self.hot.has(flags::FIN_QUEUED) {
                self.hot.state = self.hot.state.next(StateEvent::CloseCall);
            }
        } else {
            // Simultaneous open (§3.5).
            self.hot.state = self.hot.state.next(StateEvent::SynReceived);
            let _ = self.send_syn();
            self.arm_rto();
        }
        Fate::Keep
    }

    /// RST in answer to `segment` (RFC 9293 §3.10.7.1).
    pub fn reset_for(&mut self, segment: &Segment<'_>, key: tidelane_wire::FlowKey) {
        if let Some(out) = crate::reset_reply(segment, key, self.hot.link) {
            self.counters.out_rsts += 1;
            let _ = self.env.transmit(&out);
        }
    }
}
