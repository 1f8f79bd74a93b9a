//! Round-trip samples and what follows from them: retransmission and tail loss probe timeouts.

use tidelane_time::Duration;

use crate::{
    clock::Clock,
    config::EngineConfig,
    flow_state::{FlowState, flags},
};

/// Longest timeout that is kept in milliseconds modulo 2^32.
const TIMEOUT_MS_MAX: u64 = 1 << 30;
/// Longest round-trip time that is believed, in us: about a minute.
const RTT_US_MAX: u32 = 1 << 26;
/// Longest delay of an acknowledgment (RFC 9293 §3.8.6.3, MUST-40).
const DELAYED_ACK_MS_MAX: u32 = 500;
/// WCDelAckT of RFC 8985 §7.2: the longest that most receivers delay an acknowledgment.
const PROBE_DELAYED_ACK_MS: u32 = 200;
/// Least timeout of an established connection without a sample (RFC 6298 (5.7)).
const RTO_OPENED_MS: u32 = 3000;
/// Backoff by which no timeout grows any more.
const BACKOFF_MAX: u8 = 12;

/// The timeouts of [`EngineConfig`] in the unit of flows.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Lower bound of the retransmission timeout.
    pub rto_min_ms: u32,
    /// Its upper bound.
    pub rto_max_ms: u32,
    /// The one before the first sample.
    pub rto_initial_ms: u32,
    /// Lower bound of the tail loss probe's.
    pub pto_min_ms: u32,
    /// RTTVAR below which a single segment's timer is that of the timeout, with the lower bound as
    /// its variance's term; zero if there is none.
    pub steady_us: u32,
    /// Longest delay of an acknowledgment.
    pub delayed_ack_ms: u32,
    /// FIN-WAIT-2 without a program.
    pub fin_wait_2_ms: u32,
    /// Small segments are acknowledged at once in quick-ack mode, too.
    pub eager_acks: bool,
}

const fn at_most(value: u32, max: u32) -> u32 {
    if value > max { max } else { value }
}

/// A span in whole milliseconds, at least one.
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
    /// Those of `config`.
    pub const fn of(config: &EngineConfig) -> Self {
        let rto_min_ms = to_ms(config.rto_min);
        // Two SRTT and the delay, which the probe waits, are no less than SRTT and the variance.
        let steady_us = if rto_min_ms <= PROBE_DELAYED_ACK_MS {
            (rto_min_ms + 1) * 1000
        } else {
            0
        };
        Self {
            rto_min_ms,
            steady_us,
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
    /// One sample of the round-trip time in microseconds (RFC 6298 (2.2), (2.3)).
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

    /// RTO in ms (RFC 6298 (2.3)); as in Linux the lower bound is that of the variance's term.
    #[inline(always)]
    pub fn rto_ms(&self, timeouts: &Timeouts) -> u32 {
        if self.srtt == 0 {
            return timeouts.rto_initial_ms;
        }
        let variance = (self.rttvar / 1000).max(timeouts.rto_min_ms);
        ((self.srtt >> 3) / 1000 + variance).min(timeouts.rto_max_ms)
    }

    /// RTO in ms, doubled `backoff` times (RFC 6298 (5.5)). An open that gave no sample, as its SYN
    /// timed out, may have found a slow path (5.7): the fast path leaves such a flow alone.
    pub fn rto_ms_after(&self, timeouts: &Timeouts, backoff: u8) -> u32 {
        let mut rto = self.rto_ms(timeouts);
        if self.srtt == 0 && self.state.is_synchronized() {
            rto = rto.max(RTO_OPENED_MS);
        }
        rto.saturating_mul(1 << backoff.min(BACKOFF_MAX))
            .min(timeouts.rto_max_ms)
    }

    /// Whether a tail loss probe may help: a SACK tells what it finds.
    #[inline]
    pub const fn may_probe(&self) -> bool {
        self.flags & flags::SACK != 0 && self.srtt != 0
    }

    /// Whether more than one segment is in flight: then the acknowledgment is not delayed.
    #[inline]
    pub const fn has_several_in_flight(&self) -> bool {
        self.snd_nxt.distance_from(self.snd_una) > self.mss as u32
    }

    /// Starts the retransmission timer, or that of a tail loss probe, when something was sent or
    /// acknowledged (RFC 6298 (5.1), (5.3)). `flight` is [`flight_size`](Self::flight_size).
    #[inline(always)]
    pub fn restart_rto(&mut self, flight: u32, clock: &Clock, timeouts: &Timeouts) {
        let (rto, several) = (self.rto_ms(timeouts), flight > u32::from(self.mss));
        self.arm_rto(clock, timeouts, rto, self.may_probe(), several);
    }

    /// [`restart_rto`](Self::restart_rto) for a single segment in flight, where a sample was taken
    /// and RTTVAR is below [`Timeouts::steady_us`]. The flags were `before`. Returns those to set;
    /// what of [`flags::TIMER`] is not among them is to be cleared.
    #[inline(always)]
    pub fn restart_steady(&mut self, before: u32, clock: &Clock, timeouts: &Timeouts) -> u32 {
        debug_assert!(self.srtt != 0 && self.rttvar < timeouts.steady_us);
        let rto = (self.srtt / 8000 + timeouts.rto_min_ms).min(timeouts.rto_max_ms);
        self.rto_deadline = clock.ms.plus(rto + 1);
        let probe = (before & flags::SACK) << (flags::PROBE_SHIFT - flags::SACK_SHIFT);
        flags::RTO_ARMED | probe
    }

    /// Starts the retransmission timer with `rto` ms, or, where `probe` allows it, that of a tail
    /// loss probe (RFC 8985 §7.2): 2 SRTT, for a single segment with the time that its
    /// acknowledgment may be delayed by, and never later than the timeout would be. `several`:
    /// [`has_several_in_flight`](Self::has_several_in_flight).
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
            armed |= flags::PROBE;
            wait = pto.min(rto);
        }
        self.flags = self.flags & !flags::TIMER | armed;
        // A deadline is due when its millisecond begins: one more, or it would come early.
        self.rto_deadline = clock.ms.plus(wait + 1);
    }
}
