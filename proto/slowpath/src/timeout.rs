//! Expiry of the timers of a flow (connection): retransmission, tail loss probe, persist, RACK
//! reordering, pacing, keepalive, FIN-WAIT-2 and path MTU. Also the start of the retransmission,
//! tail loss probe, persist and keepalive timers.

use tidelane_flow::{CaState, CloseCause, Driver, Event, Millis, State, flags};

use tidelane_wire::{SeqNumber, TcpFlags};

use crate::{Outcome, SlowPath};

/// ACK delay of the peer in ms that the PTO (timeout of a tail loss probe) assumes while losses are
/// suspected. 200 ms, as in RFC 8985 §7.2, would make the probe useless, because the default
/// RTO_MIN is also 200 ms. Many receivers delay an ACK by about 40 ms.
const PROBE_DELAYED_ACK_MS: u32 = 50;
/// R1: number of consecutive timeouts after which the IP layer gets negative advice about the path.
/// RFC 9293 SHLD-10 asks for at least three retransmissions.
const R1: u8 = 3;
/// Time in ms that the PTO adds to two round trips and the ACK delay while losses are suspected.
const PROBE_MS_MIN: u32 = 3;
/// Longest time in ms until a deadline: 12 days. Comparisons modulo 2^32 hold within 24 days.
const DEADLINE_MAX_MS: u64 = 1 << 30;

impl<E: Driver> SlowPath<'_, E> {
    /// Returns the RTO in ms, with its backoff (RFC 6298 §2 and (5.5)). The first
    /// `syn_linear_timeouts` timeouts of a SYN do not back off.
    pub fn rto_ms(&self) -> u32 {
        let linear = match self.hot.state {
            State::SynSent => self.config.syn_linear_timeouts,
            _ => 0,
        };
        let backoff = self.cold.backoff.saturating_sub(linear);
        self.hot.rto_ms_after(self.timeouts, backoff)
    }

    /// Starts the timer of a tail loss probe if a probe may be sent, and the retransmission timer
    /// otherwise.
    pub fn arm_rto(&mut self) {
        let rto = self.within_user_timeout(self.cold.retrans_since, self.rto_ms());
        let probe = self.cold.ca_state != CaState::Loss
            && !self.cold.probe_sent
            && self.hot.state.sends()
            && self.hot.has(flags::SACK);
        // The peer does not delay the ACK of several segments, so the PTO includes no ACK delay for
        // them.
        let several = self.hot.has_multiple_segments_in_flight();
        let probe = probe && self.hot.may_send_tlp() && self.hot.flight_size() > 0;
        self.hot
            .arm_rto(&self.clock, self.timeouts, rto, probe, several);
        // While losses are suspected, the PTO assumes a shorter ACK delay than RFC 8985 §7.2, and
        // the lower bound `pto_min` does not apply.
        if probe && self.cold.loss_suspected {
            let late = if several { 0 } else { PROBE_DELAYED_ACK_MS };
            let pto = ((self.hot.srtt >> 2) / 1000 + PROBE_MS_MIN).saturating_add(late);
            if pto < rto {
                self.hot.set(flags::PTO_ARMED);
                self.hot.rto_deadline = self.clock.ms.plus(pto + 1);
            }
        }
    }

    /// Starts the persist timer if nothing is in flight, and a closed window, a small window or a
    /// cork (TCP_CORK) holds data back (RFC 9293 §3.8.6.1, MUST-36).
    pub fn arm_persist(&mut self) {
        let waits = self.hot.tx_end.after(self.hot.snd_nxt) && self.hot.flight_size() == 0;
        let held = self.hot.has(flags::CORK) && self.hot.snd_wnd > 0;
        let paced = self.cold.pacing.deadline.is_some();
        if !waits || paced || self.hot.has(flags::RTO_ARMED) {
            return;
        }
        // Data that Nagle holds back waits for an ACK and needs no timer. A cork holds data back
        // until the persist timer expires.
        let closed = self.hot.snd_wnd < self.hot.tx_end.distance_from(self.hot.snd_nxt);
        if !closed && !held {
            return;
        }
        let wait = self.within_user_timeout(self.cold.persist_since, self.rto_ms());
        self.hot.rto_deadline = self.clock.ms.plus(wait);
        self.hot.set(flags::RTO_ARMED | flags::PERSIST);
        self.hot.clear(flags::PTO_ARMED);
    }

    /// Handles the expired timers in turn, until a timer ends the flow. If the keepalive timer has
    /// expired, an expired path MTU timer waits for the next call.
    pub fn on_timer(&mut self) -> Outcome {
        if self.hot.has(flags::RTO_ARMED) && self.hot.rto_deadline.is_due(self.clock.ms) {
            self.hot.clear(flags::RTO_ARMED);
            let outcome = self.on_retransmission_timeout();
            if outcome != Outcome::Keep || self.hot.state == State::Closed {
                return outcome;
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
            .keepalive_deadline
            .is_some_and(|at| at.is_due(self.clock.ms))
        {
            self.cold.keepalive_deadline = None;
            return self.on_keepalive_deadline();
        }
        if self
            .cold
            .path_deadline
            .is_some_and(|at| at.is_due(self.clock.ms))
        {
            self.cold.path_deadline = None;
            self.raise_path_mtu();
        }
        Outcome::Keep
    }

    /// Handles the expiry of `rto_deadline`: persist, tail loss probe or retransmission timeout.
    fn on_retransmission_timeout(&mut self) -> Outcome {
        if self.hot.has(flags::PERSIST) {
            return self.on_persist();
        }
        if self.hot.has(flags::PTO_ARMED) {
            self.hot.clear(flags::PTO_ARMED);
            return self.on_pto();
        }
        if self.hot.flight_size() == 0 && self.hot.state.is_synchronized() {
            return Outcome::Keep;
        }
        if self.is_past_r2() && !self.is_deferred() {
            return self.end_timed_out();
        }
        let acknowledged = self.is_deferred();
        self.cold.backoff = self.cold.backoff.saturating_add(1);
        self.cold.timeouts = self.cold.timeouts.saturating_add(1);
        if acknowledged && self.is_deferred() {
            self.arm_rto();
            return Outcome::Keep;
        }
        if self.cold.timeouts == R1 {
            self.driver.event(self.id, Event::NegativeAdvice);
        }
        self.cold.retrans_since.get_or_insert(self.clock.ms);
        self.note_unanswered();
        match self.hot.state {
            State::SynSent | State::SynReceived => {
                self.counters.timeouts += 1;
                self.counters.retrans_segs += 1;
                self.counters.syn_retrans += 1;
                self.cold.retrans.add(0);
                self.cold.controller.on_handshake_retransmit();
                // A passive open copied cwnd to `hot` when the SYN arrived, so copy the new value.
                self.hot.cwnd = self.cold.controller.cwnd();
                self.hot.clear(flags::RTT_TIMING);
                self.cold.fast_open.syn_retransmitted = true;
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
        Outcome::Keep
    }

    /// Returns true if the connection has reached R2 and must be given up (RFC 9293 §3.8.3,
    /// MUST-20). R2 is the largest number of retransmissions. If the application set a USER
    /// TIMEOUT, this time replaces the number of retransmissions in a synchronized state, and is a
    /// further limit in the handshake. If the peer has closed its window (§3.8.6.1, MUST-37), or
    /// has shrunk its window to less than the oldest segment (§3.8.6, SHLD-17), only the timeouts
    /// since the peer's last answer count.
    fn is_past_r2(&self) -> bool {
        let retries = self.retries_max();
        let synchronized = self.hot.state.is_synchronized();
        if self.is_user_timeout(self.cold.retrans_since) || self.is_syn_timed_out() {
            return true;
        }
        if synchronized && !self.cold.options.user_timeout.is_zero() {
            return false;
        }
        let oldest = self.hot.flight_size().min(u32::from(self.hot.mss));
        let beyond = self.hot.snd_wnd < oldest && synchronized;
        (!beyond && self.cold.timeouts >= retries) || self.cold.unanswered_probes >= retries
    }

    /// Returns true if an active open has lasted for the sum of its timeouts with exponential
    /// backoff. Linear timeouts (without backoff) do not extend this time (Linux:
    /// `retransmits_timed_out`).
    fn is_syn_timed_out(&self) -> bool {
        if self.hot.state != State::SynSent {
            return false;
        }
        let first = self.config.rto_initial.as_millis();
        let longest = self.config.rto_max.as_millis();
        let doubled = |timeout: u32| first.saturating_mul(1 << timeout.min(32)).min(longest);
        let span: u64 = (0..=u32::from(self.syn_retries())).map(doubled).sum();
        u64::from(self.clock.ms.0.wrapping_sub(self.cold.last_arrival.0)) >= span
    }

    /// Returns the largest number of SYN retransmissions with exponential backoff.
    fn syn_retries(&self) -> u8 {
        match self.cold.options.syn_retries {
            0 => self.config.syn_retries,
            asked => asked,
        }
    }

    /// Returns the largest number of retransmissions, which applies to a SYN as well (RFC 9293
    /// MUST-22). With the default number, a SYN times out after 131 s, as in Linux. The application
    /// can get the three minutes of MUST-23 by TCP_SYNCNT.
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

    /// Returns true if the peer has acknowledged our SYN,ACK and the listener still waits for data
    /// (TCP_DEFER_ACCEPT). The SYN,ACK timer then runs without retransmissions. Afterwards, the
    /// SYN,ACK is sent once more, and the peer's ACK completes the handshake (as in Linux).
    fn is_deferred(&self) -> bool {
        self.cold.deferred && self.cold.backoff < self.cold.options.defer_accept
    }

    /// Ends a connection whose peer does not answer. The cause is the last soft ICMP error, if any.
    fn end_timed_out(&mut self) -> Outcome {
        let cause = self.cold.soft_error.unwrap_or(CloseCause::TimedOut);
        self.counters.abort_on_timeout += u64::from(self.hot.state.is_synchronized());
        if self.is_half_open_passive() {
            self.counters.attempt_fails += 1;
            return Outcome::Release;
        }
        self.end(cause)
    }

    /// Sends a tail loss probe (RFC 8985 §7.3): new data, or the last segment again if no new data
    /// can be sent. The ACK of the probe shows which segments are lost.
    fn on_pto(&mut self) -> Outcome {
        self.cold.probe_sent = true;
        self.counters.loss_probes += 1;
        let mss = u32::from(self.hot.mss);
        self.scoreboard_for_loss();
        if self.is_recovering() {
            // Unlike RFC 8985, send a probe in recovery, too: if all retransmissions were lost, no
            // ACK would show their loss.
            if let Some((start, len)) = self.scoreboard_for_loss().first_in_flight(mss) {
                let _ = self.retransmit(start, len);
            }
        } else if !self.probe_with_new_data(mss)
            && let Some((start, len)) = self.last_sent(mss)
            && self.retransmit(start, len).is_ok()
        {
            self.cold.probe_end = Some(start.add(len));
        }
        self.arm_rto();
        Outcome::Keep
    }

    /// Returns the start and length of the segment that ends at SND.NXT: at most `mss` bytes, or
    /// the FIN alone if the FIN was sent without payload.
    fn last_sent(&mut self, mss: u32) -> Option<(SeqNumber, u32)> {
        let last = self.scoreboard_for_loss().last(mss);
        if self.cold.fin_without_data {
            return Some((self.hot.tx_end, 1));
        }
        last
    }

    /// Sends a segment of new data as a tail loss probe. Returns true if the segment was sent.
    fn probe_with_new_data(&mut self, mss: u32) -> bool {
        if self.hot.has(flags::FIN_SENT) {
            return false;
        }
        let len = self.hot.tx_end.distance_from(self.hot.snd_nxt).min(mss);
        let fits = self.hot.flight_size().saturating_add(len) <= self.hot.snd_wnd;
        len > 0 && fits && self.send_new_data(len).is_ok()
    }

    /// Handles the persist timeout: probes a closed window, or sends the part of a segment that a
    /// small window or a cork held back (RFC 9293 §3.8.6.1, SHLD-29, SHLD-30; §3.8.6.2.1 (4)).
    ///
    /// A window probe is an empty segment before SND.UNA, as in Linux. The peer answers this
    /// segment whether its window is open or closed. The probe does not count as in flight. Without
    /// USER TIMEOUT, a connection whose peer answers is never given up (MUST-37).
    fn on_persist(&mut self) -> Outcome {
        self.hot.clear(flags::PERSIST);
        if self.hot.flight_size() > 0 || !self.hot.tx_end.after(self.hot.snd_nxt) {
            self.cold.persist_since = None;
            if self.hot.flight_size() > 0 {
                self.arm_rto();
            }
            return Outcome::Keep;
        }
        if self.hot.snd_wnd > 0 {
            let unsent = self.hot.tx_end.distance_from(self.hot.snd_nxt);
            let len = self.hot.snd_wnd.min(unsent).min(u32::from(self.hot.mss));
            self.counters.window_probes += 1;
            // If no frame is free, the data is sent at the next timeout.
            if self.send_new_data(len).is_ok() {
                return Outcome::Keep;
            }
        } else {
            // USER TIMEOUT also limits the wait for a window, even if the peer answers (as in
            // Linux).
            let unanswered = self.cold.unanswered_probes >= self.retries_max();
            if unanswered || self.is_user_timeout(self.cold.persist_since) {
                return self.end_timed_out();
            }
            self.cold.persist_since.get_or_insert(self.clock.ms);
            self.counters.window_probes += 1;
            self.send_probe();
            self.cold.backoff = self.cold.backoff.saturating_add(1);
        }
        self.arm_persist();
        Outcome::Keep
    }

    /// Returns the remaining time in ms of USER TIMEOUT (RFC 9293 §3.10.8, RFC 5482;
    /// TCP_USER_TIMEOUT), which counts from `since`. Returns `None` if the application set no
    /// timeout or `since` is `None`.
    fn user_timeout_left(&self, since: Option<Millis>) -> Option<u32> {
        let limit = self.cold.options.user_timeout;
        if limit.is_zero() {
            return None;
        }
        let limit = limit.as_millis().clamp(1, DEADLINE_MAX_MS) as u32;
        Some(limit.saturating_sub(self.clock.ms.0.wrapping_sub(since?.0)))
    }

    /// Returns true if USER TIMEOUT has passed since `since`.
    fn is_user_timeout(&self, since: Option<Millis>) -> bool {
        self.user_timeout_left(since) == Some(0)
    }

    /// Returns `wait`, but at most the remaining time of USER TIMEOUT, which counts as at least 1
    /// ms. `wait` and the result are in ms.
    fn within_user_timeout(&self, since: Option<Millis>, wait: u32) -> u32 {
        let left = self.user_timeout_left(since).unwrap_or(wait);
        wait.min(left.max(1))
    }

    /// Counts a timeout or a probe. The next acceptable segment on the slow path resets the count.
    fn note_unanswered(&mut self) {
        self.cold.unanswered_probes = self.cold.unanswered_probes.saturating_add(1);
    }

    /// Sends an empty segment before SND.UNA. The peer must answer this unacceptable segment by an
    /// ACK (RFC 9293 §3.8.4).
    fn send_probe(&mut self) {
        self.note_unanswered();
        self.probe_urgent();
        let seq = self.hot.snd_una.sub(1);
        let out = self
            .hot
            .segment_out(self.id, &self.clock, seq, TcpFlags::ACK, 0);
        // If no frame is free, the probe is dropped. The network might drop it, too.
        if self.transmit(&out).is_ok() {
            self.hot.note_ack_sent(out.wnd);
        }
    }

    /// Reports unacknowledged urgent data to a peer with a closed window, by a segment without
    /// payload at SND.UNA (RFC 9293 MUST-66). A window probe cannot report urgent data, because the
    /// peer ignores the urgent pointer of an old segment (as in Linux).
    fn probe_urgent(&mut self) {
        let una = self.hot.snd_una;
        let ahead = self.cold.urgent.snd_up.map(|up| up.distance_from(una));
        if ahead.is_some_and(|ahead| ahead <= u32::from(u16::MAX)) {
            let out = self
                .hot
                .segment_out(self.id, &self.clock, una, TcpFlags::ACK, 0);
            // If no frame is free, the segment is dropped. The network might drop it, too.
            let _ = self.transmit(&out);
        }
    }

    /// Handles the expiry of `keepalive_deadline`: the end of FIN-WAIT-2, or the keepalive timer.
    fn on_keepalive_deadline(&mut self) -> Outcome {
        if self.hot.state == State::FinWait2 && self.cold.is_orphan {
            // Do not move the flow to TIME-WAIT: RCV.NXT would not advance there, and a late FIN
            // would never be acknowledged. Without state, the engine answers the FIN by a RST, as
            // in Linux.
            return self.end(CloseCause::Finished);
        }
        if !self.cold.options.keepalive || !self.keepalive_applies() {
            return Outcome::Keep;
        }
        self.on_keepalive()
    }

    /// Handles the keepalive timer (RFC 9293 §3.8.4: MUST-24 to MUST-29). While data is outstanding
    /// or unsent, no probe is sent, because the other timers detect a dead peer.
    fn on_keepalive(&mut self) -> Outcome {
        let idle = self.keepalive_idle_ms();
        let silent = self.silent_ms();
        let sending = self.hot.flight_size() > 0 || self.hot.tx_end.after(self.hot.snd_nxt);
        let wait = if sending {
            idle
        } else if silent < idle {
            self.cold.unanswered_probes = 0;
            idle - silent
        } else if self.is_peer_dead(silent) {
            self.send_reset();
            self.counters.abort_on_timeout += 1;
            return self.end(self.cold.soft_error.unwrap_or(CloseCause::TimedOut));
        } else {
            self.counters.keepalive_probes += 1;
            self.send_probe();
            let interval = self.cold.options.keepalive_interval.as_millis();
            interval.clamp(1, DEADLINE_MAX_MS) as u32
        };
        self.cold.keepalive_deadline = Some(self.clock.ms.plus(wait));
        Outcome::Keep
    }

    /// Returns true if the peer counts as dead: it left the largest number of probes unanswered. If
    /// the application set a USER TIMEOUT, this time and one unanswered probe decide instead (as in
    /// Linux).
    fn is_peer_dead(&self, silent_ms: u32) -> bool {
        let limit = self.cold.options.user_timeout;
        if limit.is_zero() {
            return self.cold.unanswered_probes >= self.cold.options.keepalive_probes;
        }
        self.cold.unanswered_probes > 0 && u64::from(silent_ms) >= limit.as_millis()
    }

    /// Returns the idle time in ms before the first keepalive probe.
    fn keepalive_idle_ms(&self) -> u32 {
        let idle = self.cold.options.keepalive_idle.as_millis();
        idle.clamp(1, DEADLINE_MAX_MS) as u32
    }

    /// Returns the approximate time since the last segment arrived, in ms. The fast path (the
    /// engine's code for in-order segments) records the arrival in units of 1.024 s only. The
    /// result may be about 2 s too short or 1 s too long.
    fn silent_ms(&self) -> u32 {
        let slow = self.clock.ms.0.wrapping_sub(self.cold.last_arrival.0);
        if self.hot.last_arrival == (self.cold.last_arrival.0 >> 10) as u16 {
            return slow;
        }
        let now = (self.clock.ms.0 >> 10) as u16;
        let fast = u32::from(now.wrapping_sub(self.hot.last_arrival)) << 10;
        slow.min(fast.saturating_sub(1 << 10))
    }

    /// Returns true if keepalive probes are useful: after the handshake, until the peer has both
    /// sent a FIN and acknowledged our FIN.
    fn keepalive_applies(&self) -> bool {
        self.hot.state.receives() || self.hot.state.sends()
    }

    /// Starts the keepalive timer if SO_KEEPALIVE is set, and stops the timer otherwise.
    pub fn arm_keepalive(&mut self) {
        // After the application has closed the socket, the deadline is the end of FIN-WAIT-2.
        if self.cold.is_orphan {
            return;
        }
        let on = self.cold.options.keepalive && self.keepalive_applies();
        self.cold.keepalive_deadline = on.then(|| {
            let idle = self.keepalive_idle_ms();
            let left = idle.saturating_sub(self.silent_ms());
            self.clock.ms.plus(left.max(1))
        });
    }
}
