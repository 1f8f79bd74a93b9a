//! What is due: retransmission, probes, delayed acknowledgment, keepalive, FIN-WAIT-2.

use tidelane_flow::{CaState, CloseCause, Env, Millis, State, flags};

use tidelane_wire::TcpFlags;

use crate::{Fate, Slow};

/// How long the acknowledgment of a single segment may be delayed, for a tail loss probe: RFC 8985
/// has 200 ms, which is the timeout itself; nearly all receivers wait 40 ms.
const PROBE_DELAYED_ACK_MS: u32 = 50;
/// What a probe waits beyond two round trips on a path with losses.
const PROBE_MS_MIN: u32 = 3;
/// The longest that a deadline may be ahead, so that modulo arithmetic holds (24 days).
const DEADLINE_MAX_MS: u64 = 1 << 30;
/// Upper bound of the persist timeout in ms.
const PERSIST_MAX_MS: u32 = 60_000;

impl<E: Env> Slow<'_, E> {
    /// RTO in ms with its backoff (RFC 6298 §2 and (5.5)).
    pub fn rto_ms(&self) -> u32 {
        self.hot.rto_ms_after(self.timeouts, self.cold.backoff)
    }

    /// Starts the retransmission timer, or that of a tail loss probe where one may be sent.
    pub fn arm_rto(&mut self) {
        let rto = self.rto_ms();
        let probe = self.cold.ca_state != CaState::Loss
            && !self.cold.probed
            && self.hot.state.sends()
            && self.hot.has(flags::SACK);
        // What comes out of order is acknowledged at once.
        let several = self.hot.may_probe();
        self.hot
            .arm_rto(&self.clock, self.timeouts, rto, probe && several);
        // On a path with losses a single segment is probed for, too (RFC 8985 §7.2 (2)), and
        // sooner.
        if probe && self.cold.board.is_some() && self.hot.srtt != 0 && self.hot.flight_size() > 0 {
            let late = if several { 0 } else { PROBE_DELAYED_ACK_MS };
            let pto = ((self.hot.srtt >> 2) / 1000 + PROBE_MS_MIN).saturating_add(late);
            if pto < rto {
                self.hot.set(flags::PROBE);
                self.hot.rto_deadline = self.clock.ms.plus(pto + 1);
            }
        }
    }

    /// Starts the persist timer when data waits for a closed window (RFC 9293 §3.8.6.1, MUST-36).
    pub fn arm_persist(&mut self) {
        let waits = self.hot.tx_end.after(self.hot.snd_nxt) && self.hot.flight_size() == 0;
        let held = self.hot.has(flags::CORK) && self.hot.snd_wnd > 0;
        if !waits || self.hot.has(flags::RTO_ARMED) {
            return;
        }
        // Nagle and a cork hold data without a timer, except that a cork gives way after 200 ms.
        let closed = self.hot.snd_wnd < self.hot.tx_end.distance_from(self.hot.snd_nxt);
        if !closed && !held {
            return;
        }
        let wait = self.rto_ms().min(PERSIST_MAX_MS);
        self.hot.rto_deadline = self.clock.ms.plus(wait);
        self.hot.set(flags::RTO_ARMED | flags::PERSIST);
        self.hot.clear(flags::PROBE);
    }

    /// Does all that is due.
    pub fn on_time(&mut self) -> Fate {
        if self.hot.has(flags::RTO_ARMED) && self.hot.rto_deadline.is_due(self.clock.ms) {
            self.hot.clear(flags::RTO_ARMED);
            let fate = self.on_retransmission_timeout();
            if fate != Fate::Keep || self.hot.state == State::Closed {
                return fate;
            }
        }
        if self
            .cold
            .reorder_deadline
            .is_some_and(|at| at.is_due(self.clock.ms))
        {
            self.cold.reorder_deadline = None;
            self.find_lost();
        }
        if self
            .cold
            .slow_deadline
            .is_some_and(|at| at.is_due(self.clock.ms))
        {
            self.cold.slow_deadline = None;
            return self.on_slow_deadline();
        }
        Fate::Keep
    }

    fn on_retransmission_timeout(&mut self) -> Fate {
        if self.hot.has(flags::PERSIST) {
            return self.on_persist();
        }
        if self.hot.has(flags::PROBE) {
            self.hot.clear(flags::PROBE);
            return self.on_probe();
        }
        if self.hot.flight_size() == 0 && self.hot.state.is_synchronized() {
            return Fate::Keep;
        }
        // A peer that answers with a closed window is alive (RFC 9293 §3.8.6.1, MUST-37).
        let retries = self.retries_max();
        let closed = self.hot.snd_wnd == 0 && self.hot.state.is_synchronized();
        if (!closed && self.cold.backoff >= retries) || self.is_unanswered(retries) {
            return self.give_up();
        }
        self.cold.backoff = self.cold.backoff.saturating_add(1);
        self.note_unanswered();
        match self.hot.state {
            State::SynSent | State::SynReceived => {
                self.counters.timeouts += 1;
                self.counters.retrans_segs += 1;
                self.counters.syn_retrans += 1;
                self.cold.controller.on_handshake_retransmit();
                self.hot.clear(flags::RTT_TIMING);
                let _ = self.send_syn();
                self.arm_rto();
            }
            _ => {
                self.enter_loss();
                self.hot.set(flags::SEND_WANTED);
                self.arm_rto();
            }
        }
        Fate::Keep
    }

    fn retries_max(&self) -> u8 {
        match self.hot.state {
            State::SynSent => self.config.syn_retries,
            State::SynReceived => self.config.syn_ack_retries,
            _ if self.hot.has(flags::ORPHAN) => self.config.orphan_retries,
            _ => self.config.retries,
        }
    }

    fn give_up(&mut self) -> Fate {
        let cause = self.cold.soft_error.unwrap_or(CloseCause::TimedOut);
        self.counters.abort_on_timeout += u64::from(self.hot.state.is_synchronized());
        if self.hot.state == State::SynReceived && self.cold.listener.is_some() {
            self.counters.attempt_fails += 1;
            return Fate::Release;
        }
        self.end(cause)
    }

    /// RFC 8985 §7.3: something new, or else the last segment again, so that its acknowledgment
    /// shows what is lost.
    fn on_probe(&mut self) -> Fate {
        self.cold.probed = true;
        self.counters.loss_probes += 1;
        let mss = u32::from(self.hot.mss);
        self.track();
        if self.is_repairing() {
            // Beyond RFC 8985: when all repairs were lost, too, nothing later can show that.
            if let Some((start, len)) = self.track().first_out(mss) {
                let _ = self.retransmit(start, len);
            }
        } else if !self.probe_with_new_text(mss)
            && let Some((start, len)) = self.track().last(mss)
            && self.retransmit(start, len).is_ok()
        {
            self.cold.probe_end = Some(start.add(len));
        }
        self.arm_rto();
        Fate::Keep
    }

    fn probe_with_new_text(&mut self, mss: u32) -> bool {
        if self.hot.has(flags::FIN_SENT) {
            return false;
        }
        let len = self.hot.tx_end.distance_from(self.hot.snd_nxt).min(mss);
        let fits = self.hot.flight_size().saturating_add(len) <= self.hot.snd_wnd;
        len > 0 && fits && self.send_text(len).is_ok()
    }

    /// The persist timeout: probes a closed window, or sends the part of a segment that fits into a
    /// small one or that a cork held (RFC 9293 §3.8.6.1, §3.8.6.2.1 (4)).
    ///
    /// The probe is an old, empty segment, as Linux sends it: it is answered in any state of the
    /// window, and nothing of it is in flight. A peer that answers is never given up (MUST-37).
    fn on_persist(&mut self) -> Fate {
        self.hot.clear(flags::PERSIST);
        if self.hot.flight_size() > 0 || !self.hot.tx_end.after(self.hot.snd_nxt) {
            return Fate::Keep;
        }
        if self.hot.snd_wnd > 0 {
            let unsent = self.hot.tx_end.distance_from(self.hot.snd_nxt);
            let len = self.hot.snd_wnd.min(unsent).min(u32::from(self.hot.mss));
            self.counters.window_probes += 1;
            // Without a frame it is sent at the next timeout.
            if self.send_text(len).is_ok() {
                return Fate::Keep;
            }
        } else {
            if self.is_unanswered(self.retries_max()) {
                return self.give_up();
            }
            self.counters.window_probes += 1;
            self.send_probe();
            self.cold.backoff = self.cold.backoff.saturating_add(1);
        }
        self.arm_persist();
        Fate::Keep
    }

    /// Whether as many probes as that went unanswered, or data stayed unacknowledged for longer
    /// than the program wants to wait.
    fn is_unanswered(&self, probes: u8) -> bool {
        self.cold.unanswered_probes >= probes || self.is_user_timeout()
    }

    /// USER TIMEOUT (RFC 9293 §3.10.8; TCP_USER_TIMEOUT).
    fn is_user_timeout(&self) -> bool {
        let limit = self.cold.options.user_timeout;
        let since = self.clock.ms.0.wrapping_sub(self.cold.silent_since.0);
        self.cold.unanswered_probes > 0 && !limit.is_zero() && u64::from(since) >= limit.as_millis()
    }

    /// One more sign that the peer is silent.
    fn note_unanswered(&mut self) {
        if self.cold.unanswered_probes == 0 {
            self.cold.silent_since = self.clock.ms;
        }
        self.cold.unanswered_probes = self.cold.unanswered_probes.saturating_add(1);
    }

    /// An old, empty segment, which the peer answers (RFC 9293 §3.8.4).
    fn send_probe(&mut self) {
        self.note_unanswered();
        let seq = self.hot.snd_una.back(1);
        let out = self
            .hot
            .segment_out(self.id, &self.clock, seq, TcpFlags::ACK, 0);
        // One that finds no frame is lost, as any may be.
        let _ = self.env.transmit(&out);
    }

    fn on_slow_deadline(&mut self) -> Fate {
        if self.hot.state == State::FinWait2 && self.hot.has(flags::ORPHAN) {
            return Fate::TimeWait;
        }
        if !self.hot.has(flags::KEEPALIVE) || !self.is_kept_alive() {
            return Fate::Keep;
        }
        let idle = self.keepalive_idle_ms();
        let silent = self.silent_ms();
        if silent < idle {
            self.cold.slow_deadline = Some(self.clock.ms.plus(idle - silent));
            return Fate::Keep;
        }
        if self.is_unanswered(self.cold.options.keepalive_probes) {
            self.send_reset();
            self.counters.abort_on_timeout += 1;
            return self.end(self.cold.soft_error.unwrap_or(CloseCause::TimedOut));
        }
        // With something in flight its retransmissions find out.
        if self.hot.flight_size() == 0 {
            self.counters.keepalive_probes += 1;
            self.send_probe();
        }
        let wait = self.cold.options.keepalive_interval.as_millis();
        self.cold.slow_deadline = Some(self.clock.ms.plus(wait.clamp(1, DEADLINE_MAX_MS) as u32));
        Fate::Keep
    }

    fn keepalive_idle_ms(&self) -> u32 {
        let idle = self.cold.options.keepalive_idle.as_millis();
        idle.clamp(1, DEADLINE_MAX_MS) as u32
    }

    /// How long nothing has come: the fast path keeps only the low bits of about a second.
    fn silent_ms(&self) -> u32 {
        let slow = self.clock.ms.0.wrapping_sub(self.cold.last_arrival.0);
        let now = (self.clock.ms.0 >> 10) as u16;
        let fast = u32::from(now.wrapping_sub(self.hot.last_arrival)) << 10;
        slow.min(fast)
    }

    /// A connection that is over, or only waits to be, is not probed.
    fn is_kept_alive(&self) -> bool {
        self.hot.state.receives() || self.hot.state.sends()
    }

    /// Starts or stops keepalive by the socket's options.
    pub fn arm_keepalive(&mut self) {
        // A flow without program has a deadline of its own.
        if self.hot.has(flags::KEEPALIVE) && self.is_kept_alive() && !self.hot.has(flags::ORPHAN) {
            self.cold.slow_deadline = Some(self.clock.ms.plus(self.keepalive_idle_ms()));
        }
    }

    /// The earliest of the flow's deadlines.
    pub fn next_deadline(&self) -> Option<Millis> {
        let rto = self
            .hot
            .has(flags::RTO_ARMED)
            .then_some(self.hot.rto_deadline);
        [rto, self.cold.reorder_deadline, self.cold.slow_deadline]
            .into_iter()
            .flatten()
            .reduce(|a, b| if b.before(a) { b } else { a })
    }
}
