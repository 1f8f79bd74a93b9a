//! What is due: retransmission, probes, delayed acknowledgment, keepalive, FIN-WAIT-2.

use tidelane_flow::{CaState, CloseCause, Env, Millis, State, flags};

use tidelane_wire::{SeqNumber, TcpFlags};

use crate::{Fate, Slow};

/// How long the acknowledgment of a single segment may be delayed, for a tail loss probe: RFC 8985
/// has 200 ms, which is the timeout itself; nearly all receivers wait 40 ms.
const PROBE_DELAYED_ACK_MS: u32 = 50;
/// Timeouts in a row after which the way to the peer is in doubt (RFC 9293 SHLD-10: at least three
/// retransmissions).
const R1: u8 = 3;
/// What a probe waits beyond two round trips on a path with losses.
const PROBE_MS_MIN: u32 = 3;
/// The longest that a deadline may be ahead, so that modulo arithmetic holds (24 days).
const DEADLINE_MAX_MS: u64 = 1 << 30;

impl<E: Env> Slow<'_, E> {
    /// RTO in ms with its backoff (RFC 6298 §2 and (5.5)).
    pub fn rto_ms(&self) -> u32 {
        let linear = match self.hot.state {
            State::SynSent => self.config.syn_linear_timeouts,
            _ => 0,
        };
        let backoff = self.cold.backoff.saturating_sub(linear);
        self.hot.rto_ms_after(self.timeouts, backoff)
    }

    /// Starts the retransmission timer, or that of a tail loss probe where one may be sent.
    pub fn arm_rto(&mut self) {
        let rto = self.within_user_timeout(self.cold.retrans_since, self.rto_ms());
        let probe = self.cold.ca_state != CaState::Loss
            && !self.cold.probed
            && self.hot.state.sends()
            && self.hot.has(flags::SACK);
        // What comes out of order is acknowledged at once.
        let several = self.hot.has_several_in_flight();
        let probe = probe && self.hot.may_probe() && self.hot.flight_size() > 0;
        self.hot
            .arm_rto(&self.clock, self.timeouts, rto, probe, several);
        // On a path with losses a single segment is probed for, too (RFC 8985 §7.2 (2)), and
        // sooner.
        if probe && self.cold.trouble {
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
        let paced = self.cold.pacing.deadline.is_some();
        if !waits || paced || self.hot.has(flags::RTO_ARMED) {
            return;
        }
        // Nagle and a cork hold data without a timer, except that a cork gives way after 200 ms.
        let closed = self.hot.snd_wnd < self.hot.tx_end.distance_from(self.hot.snd_nxt);
        if !closed && !held {
            return;
        }
        let wait = self.within_user_timeout(self.cold.persist_since, self.rto_ms());
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
            self.on_reorder_timeout();
        }
        let pacing = self.cold.pacing.deadline;
        if pacing.is_some_and(|at| at.is_due(self.clock.ms)) {
            self.on_pacing();
        }
        if self
            .cold
            .slow_deadline
            .is_some_and(|at| at.is_due(self.clock.ms))
        {
            self.cold.slow_deadline = None;
            return self.on_slow_deadline();
        }
        if self
            .cold
            .path_deadline
            .is_some_and(|at| at.is_due(self.clock.ms))
        {
            self.cold.path_deadline = None;
            self.widen_path();
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
        if self.has_waited_enough() && !self.is_deferred() {
            return self.give_up();
        }
        let acknowledged = self.is_deferred();
        self.cold.backoff = self.cold.backoff.saturating_add(1);
        self.cold.timeouts = self.cold.timeouts.saturating_add(1);
        if acknowledged && self.is_deferred() {
            self.arm_rto();
            return Fate::Keep;
        }
        if self.cold.timeouts == R1 {
            self.env.doubt_path(self.id);
        }
        self.cold.retrans_since.get_or_insert(self.clock.ms);
        self.note_unanswered();
        match self.hot.state {
            State::SynSent | State::SynReceived => {
                self.counters.timeouts += 1;
                self.counters.retrans_segs += 1;
                self.counters.syn_retrans += 1;
                self.cold.controller.on_handshake_retransmit();
                // A passive open has its window already.
                self.hot.cwnd = self.cold.controller.cwnd();
                self.hot.clear(flags::RTT_TIMING);
                self.cold.fast_open.repeated = true;
                let _ = self.send_syn();
                self.arm_rto();
            }
            _ => {
                self.forget_mtu_probe();
                self.check_black_hole();
                self.enter_loss();
                self.hot.set(flags::SEND_WANTED);
                self.arm_rto();
            }
        }
        Fate::Keep
    }

    /// R2 (RFC 9293 §3.8.3, MUST-20): so many retransmissions, or USER TIMEOUT where the program
    /// set one. A peer that answers with a closed window is alive (§3.8.6.1, MUST-37), and so is
    /// one whose window's edge came back so far that the oldest segment is beyond it (§3.8.6,
    /// SHLD-17).
    fn has_waited_enough(&self) -> bool {
        let retries = self.retries_max();
        let synchronized = self.hot.state.is_synchronized();
        if self.is_user_timeout(self.cold.retrans_since) || self.has_opened_long_enough() {
            return true;
        }
        if synchronized && !self.cold.options.user_timeout.is_zero() {
            return false;
        }
        let oldest = self.hot.flight_size().min(u32::from(self.hot.mss));
        let beyond = self.hot.snd_wnd < oldest && synchronized;
        (!beyond && self.cold.timeouts >= retries) || self.cold.unanswered_probes >= retries
    }

    /// Returns true if an active open has taken as long as its retransmissions would without those
    /// that wait no longer than the first: Linux (`retransmits_timed_out`) bounds the time so, too.
    fn has_opened_long_enough(&self) -> bool {
        if self.hot.state != State::SynSent {
            return false;
        }
        let first = self.config.rto_initial.as_millis();
        let longest = self.config.rto_max.as_millis();
        let doubled = |timeout: u32| first.saturating_mul(1 << timeout.min(32)).min(longest);
        let span: u64 = (0..=u32::from(self.syn_retries())).map(doubled).sum();
        u64::from(self.clock.ms.0.wrapping_sub(self.cold.last_arrival.0)) >= span
    }

    /// Retransmissions of SYN with a doubled timeout.
    fn syn_retries(&self) -> u8 {
        match self.cold.options.syn_retries {
            0 => self.config.syn_retries,
            asked => asked,
        }
    }

    /// For SYN, too (RFC 9293 MUST-22); by default that is 131 s, as in Linux, and not the three
    /// minutes of MUST-23, which a program gets by TCP_SYNCNT.
    fn retries_max(&self) -> u8 {
        let asked = self.cold.options.syn_retries;
        match self.hot.state {
            State::SynSent => {
                let linear = self.config.syn_linear_timeouts;
                self.syn_retries().saturating_add(linear)
            }
            State::SynReceived if asked > 0 => asked,
            State::SynReceived => self.config.syn_ack_retries,
            _ if self.cold.is_orphan => self.config.orphan_retries,
            _ => self.config.retries,
        }
    }

    /// The peer has acknowledged our SYN,ACK, and its listener waits for text (TCP_DEFER_ACCEPT).
    /// Meanwhile the SYN,ACK's timer runs on, without the SYN,ACK. It is sent once more at the end:
    /// its acknowledgment completes the handshake, as in Linux.
    fn is_deferred(&self) -> bool {
        self.cold.deferred && self.cold.backoff < self.cold.options.defer_accept
    }

    fn give_up(&mut self) -> Fate {
        let cause = self.cold.soft_error.unwrap_or(CloseCause::TimedOut);
        self.counters.abort_on_timeout += u64::from(self.hot.state.is_synchronized());
        if self.is_unseen() {
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
            && let Some((start, len)) = self.last_sent(mss)
            && self.retransmit(start, len).is_ok()
        {
            self.cold.probe_end = Some(start.add(len));
        }
        self.arm_rto();
        Fate::Keep
    }

    /// The last segment that was sent; a FIN that went alone is one.
    fn last_sent(&mut self, mss: u32) -> Option<(SeqNumber, u32)> {
        let last = self.track().last(mss);
        if self.cold.fin_alone {
            return Some((self.hot.tx_end, 1));
        }
        last
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
    /// small one or that a cork held (RFC 9293 §3.8.6.1, SHLD-29, SHLD-30; §3.8.6.2.1 (4)).
    ///
    /// The probe is an old, empty segment, as Linux sends it: it is answered in any state of the
    /// window, and nothing of it is in flight. A peer that answers is never given up (MUST-37).
    fn on_persist(&mut self) -> Fate {
        self.hot.clear(flags::PERSIST);
        if self.hot.flight_size() > 0 || !self.hot.tx_end.after(self.hot.snd_nxt) {
            self.cold.persist_since = None;
            if self.hot.flight_size() > 0 {
                self.arm_rto();
            }
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
            // A program that set USER TIMEOUT does not wait longer for a window than for an
            // acknowledgment, whatever the peer answers (as in Linux).
            let unanswered = self.cold.unanswered_probes >= self.retries_max();
            if unanswered || self.is_user_timeout(self.cold.persist_since) {
                return self.give_up();
            }
            self.cold.persist_since.get_or_insert(self.clock.ms);
            self.counters.window_probes += 1;
            self.send_probe();
            self.cold.backoff = self.cold.backoff.saturating_add(1);
        }
        self.arm_persist();
        Fate::Keep
    }

    /// What is left of USER TIMEOUT (RFC 9293 §3.10.8, RFC 5482; TCP_USER_TIMEOUT) in ms, for
    /// trouble that began at `since`; `None` if the program set none, or there is no trouble.
    fn user_timeout_left(&self, since: Option<Millis>) -> Option<u32> {
        let limit = self.cold.options.user_timeout;
        if limit.is_zero() {
            return None;
        }
        let limit = limit.as_millis().clamp(1, DEADLINE_MAX_MS) as u32;
        Some(limit.saturating_sub(self.clock.ms.0.wrapping_sub(since?.0)))
    }

    fn is_user_timeout(&self, since: Option<Millis>) -> bool {
        self.user_timeout_left(since) == Some(0)
    }

    /// A timeout of `wait` ms, but not beyond USER TIMEOUT.
    fn within_user_timeout(&self, since: Option<Millis>, wait: u32) -> u32 {
        let left = self.user_timeout_left(since).unwrap_or(wait);
        wait.min(left.max(1))
    }

    /// One more sign that the peer is silent.
    fn note_unanswered(&mut self) {
        self.cold.unanswered_probes = self.cold.unanswered_probes.saturating_add(1);
    }

    /// An old, empty segment, which the peer answers (RFC 9293 §3.8.4).
    fn send_probe(&mut self) {
        self.note_unanswered();
        self.probe_urgent();
        let seq = self.hot.snd_una.back(1);
        let out = self
            .hot
            .segment_out(self.id, &self.clock, seq, TcpFlags::ACK, 0);
        // One that finds no frame is lost, as any may be.
        if self.transmit(&out).is_ok() {
            self.hot.note_acknowledged(out.wnd);
        }
    }

    /// A peer whose window is closed hears of urgent data by an empty segment in the window: it
    /// looks at nothing in an old one (RFC 9293 MUST-66; as in Linux).
    fn probe_urgent(&mut self) {
        let una = self.hot.snd_una;
        let ahead = self.cold.urgent.snd_up.map(|up| up.distance_from(una));
        if ahead.is_some_and(|ahead| ahead <= u32::from(u16::MAX)) {
            let out = self
                .hot
                .segment_out(self.id, &self.clock, una, TcpFlags::ACK, 0);
            // One that finds no frame is lost, as any may be.
            let _ = self.transmit(&out);
        }
    }

    fn on_slow_deadline(&mut self) -> Fate {
        if self.hot.state == State::FinWait2 && self.cold.is_orphan {
            // Nothing is kept: a FIN that still comes would wait for its ACK for ever in TIME-WAIT,
            // whose RCV.NXT it never moved, and draws a RST, as in Linux.
            return self.end(CloseCause::Finished);
        }
        if !self.cold.options.keepalive || !self.is_kept_alive() {
            return Fate::Keep;
        }
        self.on_keepalive()
    }

    /// RFC 9293 §3.8.4: MUST-24 to MUST-29. With something to send its own timers find out.
    fn on_keepalive(&mut self) -> Fate {
        let idle = self.keepalive_idle_ms();
        let silent = self.silent_ms();
        let sending = self.hot.flight_size() > 0 || self.hot.tx_end.after(self.hot.snd_nxt);
        let wait = if sending {
            idle
        } else if silent < idle {
            self.cold.unanswered_probes = 0;
            idle - silent
        } else if self.is_dead(silent) {
            self.send_reset();
            self.counters.abort_on_timeout += 1;
            return self.end(self.cold.soft_error.unwrap_or(CloseCause::TimedOut));
        } else {
            self.counters.keepalive_probes += 1;
            self.send_probe();
            let interval = self.cold.options.keepalive_interval.as_millis();
            interval.clamp(1, DEADLINE_MAX_MS) as u32
        };
        self.cold.slow_deadline = Some(self.clock.ms.plus(wait));
        Fate::Keep
    }

    /// Whether enough probes went unanswered; USER TIMEOUT counts instead of their number where
    /// the program set it (as in Linux).
    fn is_dead(&self, silent_ms: u32) -> bool {
        let limit = self.cold.options.user_timeout;
        if limit.is_zero() {
            return self.cold.unanswered_probes >= self.cold.options.keepalive_probes;
        }
        self.cold.unanswered_probes > 0 && u64::from(silent_ms) >= limit.as_millis()
    }

    fn keepalive_idle_ms(&self) -> u32 {
        let idle = self.cold.options.keepalive_idle.as_millis();
        idle.clamp(1, DEADLINE_MAX_MS) as u32
    }

    /// How long nothing has come, at least: the fast path keeps only the low bits of about a
    /// second.
    fn silent_ms(&self) -> u32 {
        let slow = self.clock.ms.0.wrapping_sub(self.cold.last_arrival.0);
        if self.hot.last_arrival == (self.cold.last_arrival.0 >> 10) as u16 {
            return slow;
        }
        let now = (self.clock.ms.0 >> 10) as u16;
        let fast = u32::from(now.wrapping_sub(self.hot.last_arrival)) << 10;
        slow.min(fast.saturating_sub(1 << 10))
    }

    /// A connection that is over, or only waits to be, is not probed.
    fn is_kept_alive(&self) -> bool {
        self.hot.state.receives() || self.hot.state.sends()
    }

    /// Starts or stops keepalive by the socket's options.
    pub fn arm_keepalive(&mut self) {
        // A flow without program has a deadline of its own.
        if self.cold.is_orphan {
            return;
        }
        let on = self.cold.options.keepalive && self.is_kept_alive();
        self.cold.slow_deadline = on.then(|| {
            let idle = self.keepalive_idle_ms();
            let left = idle.saturating_sub(self.silent_ms());
            self.clock.ms.plus(left.max(1))
        });
    }
}
