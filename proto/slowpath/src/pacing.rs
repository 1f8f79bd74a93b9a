//! Pacing: the segments of a flow (connection) are sent at a rate instead of in bursts of a window.
//!
//! A flow is paced if its congestion control has a rate (BBR) or if the application has set a
//! largest rate (SO_MAX_PACING_RATE). Linux without the fq qdisc paces the same flows. The data of
//! a paced flow is sent only by the slow path (the TCP engine's code for all uncommon cases). The
//! fast path, the code for the common cases, has no pacing, so pacing costs nothing on flows that
//! are not paced.

use tidelane_cc::{CongestionControl, Controller};
use tidelane_flow::{Clock, Driver, FlowState, Millis, PACING_RATE_UNLIMITED, flags};
use tidelane_time::{Duration, Instant};

use crate::{SlowPath, delivery_rate::Sampler};

/// Time that one burst takes at the pacing rate: one tick of the timer. If the timer is late, the
/// burst may be up to twice as large.
const BURST: Duration = Duration::from_millis(1);
/// Least length of a burst in segments, even if the rate is low.
const BURST_SEGMENTS: u32 = 2;
/// Number of segments that a new connection sends without pacing: the initial window (as in Linux).
const UNPACED_SEGMENTS: u32 = 10;
/// Pacing rate while cwnd is below half of ssthresh, in percent of a window per round trip (Linux:
/// `tcp_pacing_ss_ratio`).
const SLOW_START_PERCENT: u64 = 200;
/// Pacing rate while cwnd is at least half of ssthresh, in percent of a window per round trip
/// (Linux: `tcp_pacing_ca_ratio`).
const AVOIDANCE_PERCENT: u64 = 120;

/// Pacing state of a flow.
#[derive(Debug)]
pub struct Pacing {
    /// Time at which the pacing rate allows the next transmission.
    free_at: Instant,
    /// True once the first [`UNPACED_SEGMENTS`] segments of the connection, which are not paced,
    /// have been sent.
    initial_burst_sent: bool,
    /// Time at which the flow may continue to send; `None` unless pacing holds data back.
    pub deadline: Option<Millis>,
    /// Delivery rate samples, for a congestion control that uses delivery rates (BBR).
    pub(crate) sampler: Option<Box<Sampler>>,
}

impl Pacing {
    /// Returns the state of a new flow.
    pub const fn new() -> Self {
        Self {
            free_at: Instant::ZERO,
            initial_burst_sent: false,
            deadline: None,
            sampler: None,
        }
    }

    /// Returns the number of bytes that a flow with a rate of `rate` bytes per second may send at
    /// `now`. The result is zero before `free_at`, and at least `least` afterwards.
    fn room(&self, now: Instant, rate: u64, least: u32) -> u32 {
        if now < self.free_at {
            return 0;
        }
        let late = (now - self.free_at).min(BURST);
        let room = u128::from(rate) * u128::from((late + BURST).as_nanos()) / 1_000_000_000;
        u32::try_from(room).unwrap_or(u32::MAX).max(least)
    }

    /// Accounts for `len` bytes that are sent at `now`: moves `free_at` to a later time.
    fn charge(&mut self, now: Instant, rate: u64, len: u32) {
        let span = u128::from(len) * 1_000_000_000 / u128::from(rate.max(1));
        let span = Duration(u64::try_from(span).unwrap_or(u64::MAX));
        let from = self
            .free_at
            .max(now.checked_sub(BURST).unwrap_or(Instant::ZERO));
        self.free_at = from.checked_add(span).unwrap_or(Instant::MAX);
    }

    /// Returns the timer tick at which more data may be sent.
    fn next_tick(&self, clock: &Clock) -> Millis {
        let wait = (self.free_at - clock.now).as_nanos() + clock.now.as_nanos() % 1_000_000;
        let ms = wait
            .div_ceil(1_000_000)
            .clamp(1, u64::from(DEADLINE_MAX_MS));
        clock.ms.plus(ms as u32)
    }
}

/// Longest time in ms until a deadline, so that comparisons modulo 2^32 hold.
const DEADLINE_MAX_MS: u32 = 1 << 30;

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if the flow is paced.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.cold.options.pacing_rate_max != PACING_RATE_UNLIMITED
            || self.cold.controller.pacing_rate().is_some()
    }

    /// Returns the pacing rate in bytes per second, or `None` if the flow is not paced.
    fn pacing_rate(&self) -> Option<u64> {
        self.is_paced().then(|| self.cold.pacing_rate(self.hot))
    }

    /// Returns the part of `cwnd` that pacing allows the flow to fill. If the flow is not paced,
    /// returns `cwnd`.
    pub(crate) fn paced_window(&self, cwnd: u32) -> u32 {
        let Some(rate) = self.pacing_rate() else {
            return cwnd;
        };
        let least = BURST_SEGMENTS * u32::from(self.hot.mss);
        let paced = self.cold.pacing.room(self.clock.now, rate, least);
        let room = paced.max(self.initial_burst_left(0));
        cwnd.min(self.hot.flight_size().saturating_add(room))
    }

    /// Returns the number of bytes of the unpaced initial burst that remain to be sent. The `len`
    /// bytes that were sent most recently count as not sent.
    fn initial_burst_left(&self, len: u32) -> u32 {
        if self.cold.pacing.initial_burst_sent {
            return 0;
        }
        // Use stream positions, because a counter of the slow path would miss data that the fast
        // path handled.
        let in_flight = self.hot.flight_size().saturating_sub(len);
        let sent = u64::from(self.hot.tx_acked()) + u64::from(in_flight);
        let free = UNPACED_SEGMENTS * u32::from(self.hot.mss);
        free.saturating_sub(u32::try_from(sent).unwrap_or(u32::MAX))
    }

    /// Returns true if nothing may be sent before the pacing timer expires.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_paced() && self.clock.now < self.cold.pacing.free_at
    }

    /// Accounts for `len` bytes that were sent or retransmitted.
    pub(crate) fn note_paced(&mut self, len: u32) {
        let len = len.saturating_sub(self.initial_burst_left(len));
        self.cold.pacing.initial_burst_sent |= self.initial_burst_left(0) == 0;
        if len == 0 {
            return;
        }
        if let Some(rate) = self.pacing_rate() {
            self.cold.pacing.charge(self.clock.now, rate, len);
        }
    }

    /// Starts the pacing timer if pacing holds data back, and otherwise stops the timer.
    pub(crate) fn arm_pacing(&mut self) {
        let lost = self.cold.scoreboard.as_ref().is_some_and(|b| b.lost() > 0);
        let waits = lost || self.hot.tx_end.after(self.hot.snd_nxt);
        let held = waits && self.is_held_back();
        self.cold.pacing.deadline = held.then(|| self.cold.pacing.next_tick(&self.clock));
    }

    /// Handles the expiry of the pacing timer.
    pub(crate) fn on_pacing(&mut self) {
        self.cold.pacing.deadline = None;
        self.hot.set(flags::SEND_WANTED);
    }
}

/// Returns the rate in bytes per second at which a paced flow sends: the rate of the congestion
/// control if it has one (BBR), and otherwise a rate that follows from the window. The
/// application's limit `max` bounds both rates.
pub(crate) fn pacing_rate(controller: &Controller, hot: &FlowState, max: u64) -> u64 {
    let own = controller.pacing_rate();
    own.unwrap_or_else(|| window_rate(controller, hot)).min(max)
}

/// Returns [`SLOW_START_PERCENT`] or [`AVOIDANCE_PERCENT`] percent of one window per SRTT, in bytes
/// per second (Linux: `tcp_update_pacing_rate`). The window is cwnd, or FlightSize if FlightSize is
/// larger. Returns `u64::MAX` before the first RTT sample.
fn window_rate(controller: &Controller, hot: &FlowState) -> u64 {
    let srtt_us = u64::from(hot.srtt >> 3);
    if srtt_us == 0 {
        return u64::MAX;
    }
    let doubles = hot.cwnd < controller.ssthresh() / 2;
    let percent = if doubles {
        SLOW_START_PERCENT
    } else {
        AVOIDANCE_PERCENT
    };
    let window = u64::from(hot.cwnd.max(hot.flight_size()));
    window * percent * 10_000 / srtt_us
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    /// Sends all whole segments that pacing allows at each of `ticks`. Returns the number of bytes
    /// sent.
    fn sent_at(rate: u64, ticks: impl Iterator<Item = Instant>) -> u64 {
        let (mut pacing, mut sent) = (Pacing::new(), 0);
        for now in ticks {
            let room = pacing.room(now, rate, 2 * MSS) / MSS * MSS;
            pacing.charge(now, rate, room);
            sent += u64::from(room);
        }
        sent
    }

    #[test]
    fn the_rate_is_kept_with_a_tick_of_a_millisecond() {
        for rate in [20_000, 1_250_000, 12_500_000, 1_250_000_000] {
            let ticks = (1_000..2_000).map(Instant::from_millis);
            let sent = sent_at(rate, ticks);
            let most = rate + rate / 500 + u64::from(2 * MSS);
            let least = rate - rate / 50 - u64::from(2 * MSS).min(rate / 20);
            assert!((least..=most).contains(&sent), "{rate}: {sent}");
        }
    }

    #[test]
    fn an_idle_time_gives_no_credit() {
        let mut pacing = Pacing::new();
        let rate = 10_000_000;
        let now = Instant::from_secs(10);
        let room = pacing.room(now, rate, 2 * MSS);
        assert_eq!(room, 20_000, "not the bytes of two ticks");
        pacing.charge(now, rate, room);
        assert_eq!(pacing.room(now, rate, 2 * MSS), 0);
        let clock = Clock::at(now + Duration::from_micros(300));
        assert_eq!(pacing.next_tick(&clock), clock.ms.plus(1));
    }
}
