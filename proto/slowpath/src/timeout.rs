//! What is due: retransmission, probes, delayed acknowledgment, keepalive, FIN-WAIT-2.

use tidelane_flow::{CaState, CloseCause, Env, Millis, State, flags};

use crate::{Fate, Slow};

/// Tail loss probe: bounds of its timeout in ms (RFC 8985 §7.2).
const PTO_MIN_MS: u32 = 10;
/// Upper bound of the persist timeout in ms.
const PERSIST_MAX_MS: u32 = 60_000;

impl<E: Env> Slow<'_, E> {
    /// RTO in ms with its backoff (RFC 6298 §2 and (5.5)).
    pub fn rto_ms(&self) -> u32 {
        let min = (self.config.rto_min.0 / 1_000_000) as u32;
        let max = (self.config.rto_max.0 / 1_000_000) as u32;
        let base = if self.hot.srtt == 0 {
            (self.config.rto_initial.0 / 1_000_000) as u32
        } else {
            (self.hot.srtt >> 3) / 1000 + (self.hot.rttvar / 1000).max(min)
        };
        base.saturating_mul(1 << self.cold.backoff.min(12))
            .clamp(min, max)
    }

    /// Starts the retransmission timer, or that of a tail loss probe where one may be sent.
    pub fn arm_rto(&mut self) {
        let rto = self.rto_ms();
        let probe = self.cold.ca_state == CaState::Open
            && !self.cold.probed
            && self.hot.srtt != 0
            && self.hot.has(flags::SACK)
            && self.hot.flight_size() > u32::from(self.hot.mss)
            && self.hot.state.sends();
        let pto = ((self.hot.srtt >> 2) / 1000 + 2).max(PTO_MIN_MS);
        self.hot.put(flags::PROBE, probe && pto < rto);
        let wait = if self.hot.has(flags::PROBE) { pto } else { rto };
        self.hot.rto_deadline = self.clock.ms.plus(wait + 1);
        self.hot.set(flags::RTO_ARMED);
        self.hot.clear(flags::PERSIST);
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
            self.on_reorder_timeout();
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
        self.cold.backoff = self.cold.backoff.saturating_add(1);
        if self.cold.backoff > self.retries_max() {
            return self.give_up();
        }
        match self.hot.state {
            State::SynSent | State::SynReceived => {
                self.counters.timeouts += 1;
                self.counters.retrans_segs += 1;
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
        if self.hot.state == State::SynReceived && self.cold.listener.is_some() {
            self.counters.attempt_fails += 1;
            return Fate::Release;
        }
        self.end(cause)
    }

    /// RFC 8985 §7.3: the last segment again, so that its acknowledgment shows what is lost.
    fn on_probe(&mut self) -> Fate {
        self.cold.probed = true;
        self.counters.loss_probes += 1;
        let flight = self.hot.flight_size();
        if flight > 0 {
            let len = flight.min(u32::from(self.hot.mss));
            let _ = self.retransmit(self.hot.snd_nxt.back(len), len);
            self.cold.retransmissions.pop_back();
        }
        self.arm_rto();
        Fate::Keep
    }

    /// A zero-window probe: one byte beyond the window, or what a cork held.
    fn on_persist(&mut self) -> Fate {
        self.hot.clear(flags::PERSIST);
        if self.hot.flight_size() > 0 || !self.hot.tx_end.after(self.hot.snd_nxt) {
            return Fate::Keep;
        }
        self.counters.window_probes += 1;
        self.cold.backoff = self.cold.backoff.saturating_add(1).min(20);
        if self.hot.has(flags::ORPHAN) && self.cold.backoff > self.config.orphan_retries {
            return self.end(CloseCause::TimedOut);
        }
        let unsent = self.hot.tx_end.distance_from(self.hot.snd_nxt);
        let len = if self.hot.snd_wnd == 0 {
            1
        } else {
            self.hot.snd_wnd.min(unsent)
        };
        let len = len.min(u32::from(self.hot.mss));
        // The byte stays outside SND.NXT: an acknowledgment of it is one of new data.
        let out = self.hot.segment_out(
            self.id,
            &self.clock,
            self.hot.snd_nxt,
            tidelane_wire::TcpFlags::PSH,
            len,
        );
        if self.env.transmit(&out).is_ok() {
            self.hot.snd_nxt = self.hot.snd_nxt.add(len);
        }
        let wait = self.rto_ms().min(PERSIST_MAX_MS);
        self.hot.rto_deadline = self.clock.ms.plus(wait);
        self.hot.set(flags::RTO_ARMED);
        Fate::Keep
    }

    fn on_slow_deadline(&mut self) -> Fate {
        if self.hot.state == State::FinWait2 && self.hot.has(flags::ORPHAN) {
            return Fate::TimeWait;
        }
        if !self.hot.has(flags::KEEPALIVE) || !self.hot.state.is_synchronized() {
            return Fate::Keep;
        }
        let idle = (self.cold.options.keepalive_idle.0 / 1_000_000) as u32;
        let silent = self.clock.ms.0.wrapping_sub(self.cold.last_arrival.0);
        if silent < idle {
            self.cold.slow_deadline = Some(self.cold.last_arrival.plus(idle));
            return Fate::Keep;
        }
        if self.cold.keepalive_probes >= self.cold.options.keepalive_probes {
            self.send_reset();
            return self.end(CloseCause::TimedOut);
        }
        self.cold.keepalive_probes += 1;
        // RFC 9293 §3.8.4: SEG.SEQ = SND.NXT-1, no data.
        let seq = self.hot.snd_una.back(1);
        let out = self
            .hot
            .segment_out(self.id, &self.clock, seq, tidelane_wire::TcpFlags::ACK, 0);
        let _ = self.env.transmit(&out);
        let wait = (self.cold.options.keepalive_interval.0 / 1_000_000) as u32;
        self.cold.slow_deadline = Some(self.clock.ms.plus(wait));
        Fate::Keep
    }

    /// Starts or stops keepalive by the socket's options.
    pub fn arm_keepalive(&mut self) {
        if self.hot.has(flags::KEEPALIVE) && self.hot.state.is_synchronized() {
            let idle = (self.cold.options.keepalive_idle.0 / 1_000_000) as u32;
            self.cold.slow_deadline = Some(self.clock.ms.plus(idle));
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
