//! RTT samples, and the timeouts that follow from them: retransmission and tail loss probe.

use tidelane_interface::{Clock, EngineConfig};
use tidelane_time::Duration;

use crate::flow_state::{FlowState, flags};

/// Longest timeout in ms. The limit keeps deadlines less than 2^31 ms apart, so that comparisons
/// modulo 2^32 are correct.
const TIMEOUT_MS_MAX: u64 = 1 << 30;
/// Longest RTT that a sample may have, in us: about a minute.
const RTT_US_MAX: u32 = 1 << 26;
/// Longest ACK delay in ms. The delay must be below 500 ms (RFC 9293 §3.8.6.3, MUST-40).
const DELAYED_ACK_MS_MAX: u32 = 499;
/// TLP.max_ack_delay of RFC 8985 §7.2: the longest ACK delay to expect from a receiver, in ms.
const PROBE_DELAYED_ACK_MS: u32 = 200;
/// Least RTO in ms of an established connection without an RTT sample (RFC 6298 (5.7)).
const RTO_OPENED_MS: u32 = 3000;
/// Largest number of times that the RTO is doubled. With the default bounds of the RTO, 200 ms and
/// 120 s, ten doublings of the lower bound already exceed the upper bound.
const BACKOFF_MAX: u8 = 12;

/// The timeouts of [`EngineConfig`], converted to milliseconds and microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Lower bound of the RTO.
    pub rto_min_ms: u32,
    /// Upper bound of the RTO.
    pub rto_max_ms: u32,
    /// RTO before the first RTT sample.
    pub rto_initial_ms: u32,
    /// Lower bound of the PTO, the timeout of a tail loss probe.
    pub pto_min_ms: u32,
    /// If [`FlowState::rttvar`] is below this value, the variance term of the RTO is `rto_min_ms`,
    /// and the PTO of a single segment is not below the RTO. The value is zero if `rto_min_ms` is
    /// so large that the PTO may be below the RTO.
    pub rttvar_rto_min_us: u32,
    /// Longest delay of an ACK.
    pub delayed_ack_ms: u32,
    /// Time in FIN-WAIT-2 of an orphan, a connection whose socket is closed.
    pub fin_wait_2_ms: u32,
    /// True if quick-ack mode applies to small segments, too. In this mode, ACKs are not delayed. A
    /// flow (a connection) is in this mode at its start and after a loss.
    pub eager_acks: bool,
}

const fn at_most(value: u32, max: u32) -> u32 {
    if value > max { max } else { value }
}

/// Converts a duration to milliseconds, rounded up: at least one, at most [`TIMEOUT_MS_MAX`].
const fn to_ms(span: Duration) -> u32 {
    let ms = span.0.div_ceil(1_000_000);
    if ms == 0 {
        1
    } else if ms > TIMEOUT_MS_MAX {
        TIMEOUT_MS_MAX as u32
    } else {
        ms as u32
    }
}

impl Timeouts {
    /// Converts the timeouts of `config`.
    pub const fn of(config: &EngineConfig) -> Self {
        let rto_min_ms = to_ms(config.rto_min);
        // The PTO of a single segment is 2 SRTT plus `PROBE_DELAYED_ACK_MS`, and the RTO is SRTT
        // plus `rto_min_ms`. The PTO is therefore not below the RTO if `rto_min_ms` is at most
        // `PROBE_DELAYED_ACK_MS`.
        let rttvar_rto_min_us = if rto_min_ms <= PROBE_DELAYED_ACK_MS {
            (rto_min_ms + 1) * 1000
        } else {
            0
        };
        Self {
            rto_min_ms,
            rttvar_rto_min_us,
            rto_max_ms: to_ms(config.rto_max),
            rto_initial_ms: to_ms(config.rto_initial),
            pto_min_ms: to_ms(config.pto_min),
            delayed_ack_ms: at_most(to_ms(config.delayed_ack), DELAYED_ACK_MS_MAX),
            fin_wait_2_ms: to_ms(config.fin_wait_2),
            eager_acks: config.eager_acks,
        }
    }
}

impl FlowState {
    /// Takes an RTT sample in microseconds (RFC 6298 (2.2), (2.3)).
    #[inline]
    pub fn sample_rtt(&mut self, rtt_us: u32) {
        let rtt = rtt_us.clamp(1, RTT_US_MAX);
        if self.srtt == 0 {
            self.srtt = rtt << 3;
            self.rttvar = rtt << 1;
            return;
        }
        let srtt = self.srtt >> 3;
        let error = srtt.abs_diff(rtt);
        self.rttvar = self.rttvar - (self.rttvar >> 2) + error;
        self.srtt = self.srtt - srtt + rtt;
    }

    /// Returns the RTO in ms without backoff (RFC 6298 (2.3)). As in Linux, the lower bound applies
    /// to the variance term.
    #[inline(always)]
    pub fn rto_ms(&self, timeouts: &Timeouts) -> u32 {
        if self.srtt == 0 {
            return timeouts.rto_initial_ms;
        }
        let variance = (self.rttvar / 1000).max(timeouts.rto_min_ms);
        ((self.srtt >> 3) / 1000 + variance).min(timeouts.rto_max_ms)
    }

    /// Returns the RTO in ms after `backoff` doublings (RFC 6298 (5.5)). If the SYN timed out, the
    /// handshake gave no RTT sample, and the RTO is at least 3 s (5.7). The fast path (the code for
    /// in-order segments) need not apply this minimum, because the engine sends new data of a flow
    /// without an RTT sample on the slow path.
    pub fn rto_ms_after(&self, timeouts: &Timeouts, backoff: u8) -> u32 {
        let mut rto = self.rto_ms(timeouts);
        if self.srtt == 0 && self.state.is_synchronized() {
            rto = rto.max(RTO_OPENED_MS);
        }
        rto.saturating_mul(1 << backoff.min(BACKOFF_MAX))
            .min(timeouts.rto_max_ms)
    }

    /// Returns true if a tail loss probe is useful: SACK is in use, so that the answer to the probe
    /// shows losses, and SRTT is known.
    #[inline]
    pub const fn may_send_tlp(&self) -> bool {
        self.flags & flags::SACK != 0 && self.srtt != 0
    }

    /// Returns true if more bytes than one full segment are in flight, so that the peer does not
    /// delay its ACK.
    #[inline]
    pub const fn has_multiple_segments_in_flight(&self) -> bool {
        self.snd_nxt.distance_from(self.snd_una) > self.mss as u32
    }

    /// Restarts the retransmission or probe timer after a transmission or an ACK (RFC 6298 (5.1),
    /// (5.3)). `flight` is [`flight_size`](Self::flight_size).
    #[inline(always)]
    pub fn restart_rto(&mut self, flight: u32, clock: &Clock, timeouts: &Timeouts) {
        let (rto, several) = (self.rto_ms(timeouts), flight > u32::from(self.mss));
        self.arm_rto(clock, timeouts, rto, self.may_send_tlp(), several);
    }

    /// Restarts the timer like [`restart_rto`](Self::restart_rto), for a single segment in flight.
    /// The caller has checked that SRTT is known and `rttvar` is below
    /// [`Timeouts::rttvar_rto_min_us`]. `flags_now` is the present value of the flow's flags.
    /// Returns the flags to set; the caller clears all other flags of [`flags::TIMER`].
    #[inline(always)]
    pub fn restart_rto_for_single_segment(
        &mut self,
        flags_now: u32,
        clock: &Clock,
        timeouts: &Timeouts,
    ) -> u32 {
        debug_assert!(self.srtt != 0 && self.rttvar < timeouts.rttvar_rto_min_us);
        let rto = (self.srtt / 8000 + timeouts.rto_min_ms).min(timeouts.rto_max_ms);
        self.rto_deadline = clock.ms.plus(rto + 1);
        let probe = (flags_now & flags::SACK) << (flags::PTO_SHIFT - flags::SACK_SHIFT);
        flags::RTO_ARMED | probe
    }

    /// Starts the retransmission timer with `rto` ms. If `probe` is true, starts the probe timer
    /// with the PTO instead (RFC 8985 §7.2). `several` is
    /// [`has_multiple_segments_in_flight`](Self::has_multiple_segments_in_flight). If `several` is
    /// true, the PTO is 2 SRTT plus 2 ms; otherwise, the PTO is 2 SRTT plus the longest ACK delay
    /// to expect from the peer. The PTO is at least `pto_min_ms`, and at most `rto`.
    #[inline(always)]
    pub fn arm_rto(
        &mut self,
        clock: &Clock,
        timeouts: &Timeouts,
        rto: u32,
        probe: bool,
        several: bool,
    ) {
        let mut armed = flags::RTO_ARMED;
        let mut wait = rto;
        if probe {
            let late = if several { 2 } else { PROBE_DELAYED_ACK_MS };
            let pto = ((self.srtt >> 2) / 1000 + late).max(timeouts.pto_min_ms);
            armed |= flags::PTO_ARMED;
            wait = pto.min(rto);
        }
        self.flags = self.flags & !flags::TIMER | armed;
        // A deadline is due at the start of its millisecond, so add one millisecond to keep the
        // timer from expiring early.
        self.rto_deadline = clock.ms.plus(wait + 1);
    }
}
