//! BBR version 1, in which the window follows a model of the path instead of losses.
//!
//! The model has two values: the largest delivery rate of the last ten round trips (`BtlBw`), and
//! the minimum RTT of the last ten seconds (`RTprop`). BBR sends at `pacing_gain * BtlBw` and keeps
//! at most `cwnd_gain * BtlBw * RTprop` in flight. The mode determines the gains:
//!
//! ```text
//! STARTUP    pacing gain 2/ln 2, until BtlBw grows by less than a quarter in three round trips
//! DRAIN      pacing gain ln 2/2, until the queue that STARTUP built is empty
//! PROBE_BW   pacing gains 5/4, 3/4, 1, 1, 1, 1, 1, 1 in turn, each for about one RTprop
//! PROBE_RTT  cwnd of four segments for at least 200 ms, when RTprop is older than ten seconds
//! ```
//!
//! The implementation follows draft-cardwell-iccrg-bbr-congestion-control-00, with additions of
//! Linux: extra window for ACK aggregation, two more segments in the phase with gain 5/4, and a
//! rate that is 1 % lower. Policers (`lt_bw` of Linux) are not detected, and ECN has no effect. A
//! loss lowers cwnd until its recovery ends, and can end a phase, but never affects the model.

use tidelane_time::{Duration, Instant};

use self::ack_aggregation::AckAggregation;
use crate::{CongestionControl, RateSample, Window, max_filter::MaxFilter};

mod ack_aggregation;

/// Unit of gains: thousandths.
pub(crate) const UNIT: u64 = 1_000;
/// 2/ln 2 = 2.885: the least gain that doubles the rate in each round trip.
const HIGH_GAIN: u64 = 2_885;
const DRAIN_GAIN: u64 = UNIT * UNIT / HIGH_GAIN;
/// `cwnd_gain` of PROBE_BW. The gain allows for delayed and lost ACKs.
const CWND_GAIN: u64 = 2 * UNIT;
/// `pacing_gain` of each phase of PROBE_BW.
const PACING_GAIN_CYCLE: [u64; 8] = [1_250, 750, UNIT, UNIT, UNIT, UNIT, UNIT, UNIT];
/// Length of the BtlBw filter, in rounds (round trips).
const BW_ROUNDS: u32 = 10;
/// Time after which a sample leaves the RTprop filter.
const MIN_RTT_AGE: Duration = Duration::from_secs(10);
/// Least time in PROBE_RTT once the flight is small. PROBE_RTT also lasts at least one round.
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// Window in PROBE_RTT in segments, and the least window in any mode, except after an RTO.
const CWND_MIN_SEGMENTS: u32 = 4;
/// Growth of BtlBw, as a ratio, that restarts the count of rounds for [`FULL_BW_ROUNDS`].
const FULL_BW_GROWTH: (u64, u64) = (5, 4);
/// Number of rounds without growth by [`FULL_BW_GROWTH`] that end STARTUP.
const FULL_BW_ROUNDS: u8 = 3;
/// Part of the rate that is not used, in percent, so that queues drain on average.
const MARGIN_PERCENT: u64 = 1;
/// RTT that the first pacing rate assumes, before the first RTT sample.
const FIRST_RTT: Duration = Duration::from_millis(1);
/// Time that one burst of a paced flow takes at the pacing rate.
const BURST: Duration = Duration::from_millis(1);
/// Least size of a burst in segments.
const BURST_SEGMENTS: u64 = 2;
/// Number of bursts for which cwnd has room: one each in sender, network and receiver.
const BURSTS_HELD: u64 = 3;

/// Mode of BBR, which determines the gains. The module's documentation describes the modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Startup,
    Drain,
    ProbeBw,
    ProbeRtt,
}

/// State of BBR for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bbr {
    window: Window,
    /// Filter of BtlBw, in bytes per second by round.
    bw: MaxFilter,
    /// RTprop in microseconds (`u32::MAX` before the first sample), and the start of its age.
    min_rtt_us: u32,
    min_rtt_at: Instant,
    /// Pacing rate in bytes per second.
    pacing_rate: u32,
    /// Number of rounds. A round ends at the ACK of data sent after delivery of `round_end` bytes.
    round: u32,
    round_end: u64,
    /// Number of bytes: samples with a lower `prior_delivered` count as app-limited (PROBE_RTT).
    app_limited_until: u64,
    /// BtlBw (bytes per second) at its last growth by a quarter, and the number of rounds since.
    full_bw: u32,
    full_bw_rounds: u8,
    /// Index of the present phase in [`PACING_GAIN_CYCLE`], and the time of its start.
    phase: u8,
    phase_at: Instant,
    /// Earliest end of PROBE_RTT; [`Instant::MAX`] until the flight is at most four segments.
    probe_rtt_end: Instant,
    /// True if a round has ended since the flight in PROBE_RTT became small.
    probe_rtt_round: bool,
    mode: Mode,
    round_start: bool,
    /// True from the first transmission after an app-limited idle time to the next delivery.
    idle_restart: bool,
    /// True if an RTT sample has set the pacing rate.
    has_seen_rtt: bool,
    in_recovery: bool,
    /// True from a recovery's start to its first ACK. Packet conservation then lasts for one round.
    entering_recovery: bool,
    packet_conservation: bool,
    /// Window in bytes to restore after a recovery or after PROBE_RTT.
    prior_cwnd: u32,
    ack_aggregation: AckAggregation,
}

fn to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn apply_gain(value: u64, gain: u64) -> u64 {
    value.saturating_mul(gain) / UNIT
}

impl Bbr {
    pub(crate) fn new(window: Window) -> Self {
        let mut bbr = Self {
            window,
            bw: MaxFilter::default(),
            min_rtt_us: u32::MAX,
            min_rtt_at: Instant::ZERO,
            pacing_rate: 0,
            round: 0,
            round_end: 0,
            app_limited_until: 0,
            full_bw: 0,
            full_bw_rounds: 0,
            phase: 0,
            phase_at: Instant::ZERO,
            probe_rtt_end: Instant::MAX,
            probe_rtt_round: false,
            mode: Mode::Startup,
            round_start: false,
            idle_restart: false,
            has_seen_rtt: false,
            in_recovery: false,
            entering_recovery: false,
            packet_conservation: false,
            prior_cwnd: 0,
            ack_aggregation: AckAggregation::default(),
        };
        bbr.set_first_rate(FIRST_RTT);
        bbr
    }

    /// Returns BtlBw in bytes per second, at most `u32::MAX`; zero before the first sample.
    pub const fn bandwidth(&self) -> u32 {
        self.bw.max()
    }

    /// Returns RTprop, or `None` before the first sample.
    pub const fn min_rtt(&self) -> Option<Duration> {
        if self.min_rtt_us == u32::MAX {
            return None;
        }
        Some(Duration::from_micros(self.min_rtt_us as u64))
    }

    /// Sets the pacing rate to one cwnd per `rtt`, times the gain of STARTUP.
    fn set_first_rate(&mut self, rtt: Duration) {
        let window = u64::from(self.window.cwnd()) * 1_000_000;
        let rate = window / rtt.as_micros().max(1);
        self.pacing_rate = to_u32(apply_gain(rate, HIGH_GAIN)).max(1);
    }

    fn is_full_bw_reached(&self) -> bool {
        self.full_bw_rounds >= FULL_BW_ROUNDS
    }

    pub(crate) fn pacing_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::ProbeBw => PACING_GAIN_CYCLE[usize::from(self.phase) % PACING_GAIN_CYCLE.len()],
            Mode::ProbeRtt => UNIT,
        }
    }

    pub(crate) fn cwnd_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeBw => CWND_GAIN,
            Mode::ProbeRtt => UNIT,
        }
    }

    /// Returns `gain` times the bandwidth-delay product, plus `extra` and room for bursts (bytes).
    fn inflight(&self, gain: u64, extra: u64) -> u32 {
        if self.min_rtt_us == u32::MAX {
            return self.window.initial_window();
        }
        let bdp = u64::from(self.bandwidth()) * u64::from(self.min_rtt_us) / 1_000_000;
        let smss = u64::from(self.window.smss());
        let of_rate = u64::from(self.pacing_rate) * BURST.as_micros() / 1_000_000;
        let burst = of_rate.max(BURST_SEGMENTS * smss);
        let probing = self.mode == Mode::ProbeBw && self.phase == 0;
        let probe = if probing { 2 * smss } else { 0 };
        let held = apply_gain(bdp, gain) + extra + BURSTS_HELD * burst + probe;
        to_u32(held.div_ceil(smss) * smss)
    }

    /// Counts rounds. Adds the rate to the BtlBw filter, except an app-limited rate below BtlBw.
    fn update_bandwidth(&mut self, sample: &RateSample) {
        self.round_start = false;
        let Some(interval) = &sample.interval else {
            return;
        };
        if interval.prior_delivered >= self.round_end {
            self.round_end = sample.delivered;
            self.round = self.round.wrapping_add(1);
            self.round_start = true;
            self.packet_conservation = false;
        }
        let us = interval.span.as_micros().max(1);
        let rate = to_u32(interval.bytes.saturating_mul(1_000_000) / us);
        if !self.is_app_limited(sample) || rate >= self.bandwidth() {
            self.bw.update(self.round, BW_ROUNDS, rate);
        }
    }

    /// Returns true if the sample may be below BtlBw: the flow was app-limited or in PROBE_RTT.
    fn is_app_limited(&self, sample: &RateSample) -> bool {
        let of = |interval: &crate::Interval| {
            interval.app_limited || interval.prior_delivered < self.app_limited_until
        };
        sample.interval.as_ref().is_some_and(of)
    }

    fn update_phase(&mut self, now: Instant, sample: &RateSample) {
        if self.mode != Mode::ProbeBw {
            return;
        }
        let whole = (now - self.phase_at).as_micros() > u64::from(self.min_rtt_us);
        let gain = self.pacing_gain();
        let over = if gain > UNIT {
            // A path with a small buffer may never hold this flight, so a loss also ends the phase.
            whole && (sample.lost > 0 || sample.prior_flight >= self.inflight(gain, 0))
        } else if gain < UNIT {
            whole || sample.prior_flight <= self.inflight(UNIT, 0)
        } else {
            whole
        };
        if over {
            self.phase = (self.phase + 1) % PACING_GAIN_CYCLE.len() as u8;
            self.phase_at = now;
        }
    }

    /// Detects the end of STARTUP: three rounds in which BtlBw has not grown by a quarter.
    fn check_full_bw_reached(&mut self, sample: &RateSample) {
        if self.is_full_bw_reached() || !self.round_start || self.is_app_limited(sample) {
            return;
        }
        let (more, than) = FULL_BW_GROWTH;
        if u64::from(self.bandwidth()) * than >= u64::from(self.full_bw) * more {
            self.full_bw = self.bandwidth();
            self.full_bw_rounds = 0;
            return;
        }
        self.full_bw_rounds += 1;
    }

    fn check_drain(&mut self, now: Instant, sample: &RateSample) {
        if self.mode == Mode::Startup && self.is_full_bw_reached() {
            self.mode = Mode::Drain;
            let held = self.inflight(UNIT, 0);
            self.window.set_ssthresh(held);
        }
        if self.mode == Mode::Drain && sample.flight <= self.inflight(UNIT, 0) {
            self.enter_probe_bw(now);
        }
    }

    /// Enters PROBE_BW. A hash chooses a phase (not gain 3/4), so that flows do not probe together.
    fn enter_probe_bw(&mut self, now: Instant) {
        let mixed = (now.as_nanos() ^ self.round_end.rotate_left(32)).wrapping_mul(GOLDEN_RATIO);
        let at = (mixed >> 32) % 7;
        self.mode = Mode::ProbeBw;
        self.phase = if at == 0 { 0 } else { at as u8 + 1 };
        self.phase_at = now;
    }

    fn update_min_rtt(&mut self, now: Instant, sample: &RateSample) {
        let expired = now - self.min_rtt_at > MIN_RTT_AGE && self.min_rtt_us != u32::MAX;
        if let Some(rtt) = sample.rtt {
            let rtt_us = to_u32(rtt.as_micros()).max(1);
            if rtt_us <= self.min_rtt_us || expired {
                self.min_rtt_us = rtt_us;
                self.min_rtt_at = now;
            }
        }
        if expired && !self.idle_restart && self.mode != Mode::ProbeRtt {
            self.save_window();
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_end = Instant::MAX;
        }
        if self.mode == Mode::ProbeRtt {
            self.probe_rtt(now, sample);
        }
        if sample.newly_delivered > 0 {
            self.idle_restart = false;
        }
    }

    fn probe_rtt(&mut self, now: Instant, sample: &RateSample) {
        self.app_limited_until = sample.delivered + u64::from(sample.flight);
        let little = CWND_MIN_SEGMENTS * self.window.smss();
        if self.probe_rtt_end == Instant::MAX {
            if sample.flight <= little {
                self.probe_rtt_end = now + PROBE_RTT_TIME;
                self.probe_rtt_round = false;
                self.round_end = sample.delivered;
            }
            return;
        }
        self.probe_rtt_round |= self.round_start;
        if self.probe_rtt_round && now > self.probe_rtt_end {
            self.leave_probe_rtt(now);
        }
    }

    fn leave_probe_rtt(&mut self, now: Instant) {
        self.min_rtt_at = now;
        self.restore_window();
        if self.is_full_bw_reached() {
            self.enter_probe_bw(now);
        } else {
            self.mode = Mode::Startup;
        }
    }

    fn update_rate(&mut self, sample: &RateSample) {
        if !self.has_seen_rtt && !sample.srtt.is_zero() {
            self.has_seen_rtt = true;
            self.set_first_rate(sample.srtt);
        }
        let rate = apply_gain(u64::from(self.bandwidth()), self.pacing_gain());
        let rate = to_u32(rate * (100 - MARGIN_PERCENT) / 100);
        if self.is_full_bw_reached() || rate > self.pacing_rate {
            self.pacing_rate = rate.max(1);
        }
    }

    fn save_window(&mut self) {
        let cwnd = self.window.cwnd();
        self.prior_cwnd = if !self.in_recovery && self.mode != Mode::ProbeRtt {
            cwnd
        } else {
            self.prior_cwnd.max(cwnd)
        };
    }

    fn clear_recovery(&mut self) {
        self.in_recovery = false;
        (self.entering_recovery, self.packet_conservation) = (false, false);
    }

    fn restore_window(&mut self) {
        let cwnd = self.window.cwnd().max(self.prior_cwnd);
        self.window.set_cwnd(cwnd);
    }

    fn update_window(&mut self, sample: &RateSample) {
        let smss = self.window.smss();
        let mut cwnd = self.window.cwnd();
        if sample.newly_delivered > 0 {
            cwnd = self.next_window(cwnd, sample).max(CWND_MIN_SEGMENTS * smss);
        }
        if self.mode == Mode::ProbeRtt {
            cwnd = cwnd.min(CWND_MIN_SEGMENTS * smss);
        }
        self.window.set_cwnd(cwnd);
    }

    fn next_window(&mut self, cwnd: u32, sample: &RateSample) -> u32 {
        let arrived = sample.flight.saturating_add(sample.newly_delivered);
        let mut cwnd = cwnd.saturating_sub(sample.lost).max(self.window.smss());
        if self.entering_recovery {
            self.entering_recovery = false;
            self.packet_conservation = true;
            self.round_end = sample.delivered;
            cwnd = arrived;
        }
        if self.packet_conservation {
            return cwnd.max(arrived);
        }
        let extra = match self.is_full_bw_reached() {
            true => self.ack_aggregation.extra_acked(self.bandwidth()),
            false => 0,
        };
        let target = self.inflight(self.cwnd_gain(), extra);
        let more = cwnd.saturating_add(sample.newly_delivered);
        let begins = sample.delivered < u64::from(self.window.initial_window());
        if self.is_full_bw_reached() {
            more.min(target)
        } else if cwnd < target || begins {
            more
        } else {
            cwnd
        }
    }

    /// Restores the window after a spurious recovery.
    pub(crate) fn undo(&mut self, before: &Window) {
        let cwnd = self.window.cwnd().max(before.cwnd());
        self.window.set_cwnd(cwnd);
        self.full_bw = 0;
        if !self.is_full_bw_reached() {
            self.full_bw_rounds = 0;
        }
        self.clear_recovery();
    }
}

/// 2^64 divided by the golden ratio, for multiplicative hashing.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

impl CongestionControl for Bbr {
    #[inline]
    fn window(&self) -> &Window {
        &self.window
    }

    fn window_mut(&mut self) -> &mut Window {
        &mut self.window
    }

    /// Does nothing, because [`Bbr::on_delivery`] sets the window.
    fn on_ack(&mut self, _now: Instant, _acked: u32, _srtt: Duration, _cwnd_limited: bool) {}

    fn uses_delivery_rate(&self) -> bool {
        true
    }

    fn on_delivery(&mut self, now: Instant, sample: &RateSample) {
        self.update_bandwidth(sample);
        if sample.interval.is_some() && sample.newly_delivered > 0 {
            let most = self.window.cwnd();
            let (rate, round) = (self.bandwidth(), self.round_start);
            self.ack_aggregation
                .update(now, rate, round, sample.newly_delivered, most);
        }
        self.update_phase(now, sample);
        self.check_full_bw_reached(sample);
        self.check_drain(now, sample);
        self.update_min_rtt(now, sample);
        self.update_rate(sample);
        self.update_window(sample);
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.pacing_rate.into())
    }

    fn on_congestion_signal(&mut self, _now: Instant, _flight_size: u32) -> u32 {
        self.save_window();
        self.in_recovery = true;
        self.entering_recovery = true;
        self.window.ssthresh()
    }

    fn on_ecn_echo(&mut self, _now: Instant, _flight_size: u32) -> u32 {
        self.window.ssthresh()
    }

    fn on_recovery_exit(&mut self, _now: Instant) {
        if self.in_recovery {
            self.restore_window();
        }
        self.clear_recovery();
    }

    fn on_rto(&mut self, _now: Instant, _flight_size: u32) -> u32 {
        self.save_window();
        self.in_recovery = true;
        (self.entering_recovery, self.packet_conservation) = (false, false);
        self.full_bw = 0;
        self.window.set_cwnd(self.window.smss());
        self.window.ssthresh()
    }

    /// Does nothing, because the model stays valid and pacing prevents a burst.
    fn on_idle_restart(&mut self, _now: Instant, _idle_rtos: u32) {}

    fn on_transmit_start(&mut self, now: Instant, app_limited: bool) {
        if !app_limited {
            return;
        }
        self.idle_restart = true;
        self.ack_aggregation.start_epoch(now);
        match self.mode {
            // The queue is empty after the idle time, so the first segments may leave at BtlBw.
            Mode::ProbeBw => self.pacing_rate = self.bandwidth().max(1),
            Mode::ProbeRtt if now > self.probe_rtt_end => self.leave_probe_rtt(now),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
