//! CUBIC (RFC 9438), in integer arithmetic.
//!
//! After a congestion event at window `W_max`, cwnd follows a cubic function of time. cwnd grows
//! fast at first, and slowly near `W_max`, which cwnd reaches after `K` seconds. Then cwnd grows
//! fast again:
//!
//! ```text
//! W_cubic(t) = C * (t - K)^3 + W_max          C = 0.4 segments per second cubed
//! K = cbrt((W_max - cwnd_epoch) / C)          so that W_cubic(0) = cwnd_epoch
//! ```
//!
//! An epoch is a time of congestion avoidance without a congestion event. `t` is the time since the
//! start of the epoch, and `cwnd_epoch` is cwnd at this start. If `W_est`, the window that Reno
//! would have, is larger than `W_cubic`, cwnd follows `W_est`.
//!
//! The code uses bytes for windows and milliseconds for times. The resolution suffices: three
//! seconds after `K`, the curve rises by 16 bytes per ms, with segments of 1460 bytes.

use tidelane_time::{Duration, Instant};

use crate::{CongestionControl, RttSample, Window, hystart::HyStart, window::SMSS_MAX};

/// `beta_cubic` = 0.7 as numerator and denominator: a congestion event multiplies cwnd by this
/// factor (RFC 9438 §4.6).
const BETA: (u64, u64) = (7, 10);
/// `alpha_cubic` = 3 * (1 - beta) / (1 + beta) = 9/17, as a numerator over [`ALPHA_UNIT`].
const ALPHA: u64 = 9;
/// Denominator of `alpha_cubic`.
const ALPHA_UNIT: u64 = 17;
/// Largest distance from `K` in ms for which the curve is computed. The value is larger than any
/// `K` for segments of 150 bytes or more, but so small that its cube, divided by 1000, times four
/// segments fits into 64 bits.
const OFFSET_MS_MAX: u64 = 1 << 18;
/// Time after the start of an epoch in which HyStart gets no RTT samples, because the samples still
/// belong to the recovery (as in Linux).
const SAMPLES_DISCARDED_FOR: Duration = Duration::from_secs(1);
const _: () = assert!(OFFSET_MS_MAX.pow(3) / 1_000 < u64::MAX / (4 * SMSS_MAX as u64));

/// State of CUBIC for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cubic {
    window: Window,
    /// W_max in bytes; zero before the first congestion event or epoch.
    w_max: u32,
    /// cwnd_prior: cwnd before the last reduction, in bytes.
    cwnd_prior: u32,
    /// K in milliseconds: the time from the start of the epoch to W_max.
    k_ms: u32,
    /// W_est in bytes.
    w_est: u32,
    /// Acknowledged bytes that have not yet grown `w_est`, times the numerator of alpha.
    w_est_credit: u64,
    /// Remainder of the division that computed the last growth of cwnd, in units of 1/cwnd bytes.
    growth_remainder: u32,
    /// True if the next epoch follows a congestion event, and not slow start or a timeout.
    after_congestion_event: bool,
    /// Start of the congestion avoidance epoch, delayed by the sum of the idle times since then.
    /// [`Instant::MAX`] outside of an epoch.
    epoch_start: Instant,
    /// Time of the last ACK of this epoch, or end of the last idle time, whichever is later.
    last_ack: Instant,
    /// HyStart, which ends slow start early.
    hystart: HyStart,
}

impl Cubic {
    pub(crate) const fn new(window: Window) -> Self {
        Self {
            window,
            w_max: 0,
            cwnd_prior: 0,
            k_ms: 0,
            w_est: 0,
            w_est_credit: 0,
            growth_remainder: 0,
            after_congestion_event: false,
            epoch_start: Instant::MAX,
            last_ack: Instant::ZERO,
            hystart: HyStart::new(),
        }
    }

    /// Returns W_max in bytes: cwnd at the last congestion event, or less with fast convergence. In
    /// an epoch that follows slow start or a timeout, W_max is cwnd at the start of the epoch.
    pub const fn w_max(&self) -> u32 {
        self.w_max
    }

    /// Starts a congestion avoidance epoch at the present window (RFC 9438 §4.2, §4.8, §4.10).
    fn start_epoch(&mut self, now: Instant) {
        let cwnd = self.window.cwnd();
        self.epoch_start = now;
        self.last_ack = now;
        self.w_est = cwnd;
        self.w_est_credit = 0;
        self.growth_remainder = 0;
        if self.after_congestion_event && cwnd < self.w_max {
            self.k_ms = k_for_distance_ms(self.w_max - cwnd, self.window.smss());
        } else {
            self.w_max = cwnd;
            self.k_ms = 0;
        }
    }

    /// Ends the epoch. The next ACK in congestion avoidance starts a new epoch.
    fn end_epoch(&mut self) {
        self.epoch_start = Instant::MAX;
    }

    /// Excludes the time since the last ACK from the epoch, because a time in which cwnd does not
    /// limit the flow must not count (RFC 9438 §5.8).
    fn skip_idle_time(&mut self, now: Instant) {
        if self.epoch_start != Instant::MAX {
            self.epoch_start += now - self.last_ack;
            self.last_ack = now;
        }
    }

    /// Returns W_cubic(`elapsed`) in bytes.
    fn w_cubic(&self, elapsed: Duration) -> u64 {
        let k_ms = u64::from(self.k_ms);
        let offset = elapsed.as_millis().abs_diff(k_ms).min(OFFSET_MS_MAX);
        // 0.4 segments/s^3 * smss * offset^3, in bytes and ms, in two steps that fit into 64 bits.
        let cube = offset * offset * offset / 1_000;
        let delta = cube * (4 * u64::from(self.window.smss())) / 10_000_000;
        let w_max = u64::from(self.w_max);
        if elapsed.as_millis() < k_ms {
            w_max.saturating_sub(delta)
        } else {
            w_max + delta
        }
    }

    /// Advances W_est by alpha segments per acknowledged window, or by one segment once W_est has
    /// reached `cwnd_prior` (RFC 9438 §4.3).
    fn advance_w_est(&mut self, acked_bytes: u32) {
        let alpha = if self.w_est < self.cwnd_prior {
            ALPHA
        } else {
            ALPHA_UNIT
        };
        self.w_est_credit += alpha * u64::from(acked_bytes);
        let price = ALPHA_UNIT * u64::from(self.window.cwnd());
        if self.w_est_credit >= price {
            self.w_est_credit = (self.w_est_credit - price).min(price);
            self.w_est = self.w_est.saturating_add(self.window.smss());
        }
    }

    fn avoid_congestion(&mut self, now: Instant, acked_bytes: u32, srtt: Duration) {
        if self.epoch_start == Instant::MAX {
            self.start_epoch(now);
        }
        self.last_ack = now;
        self.advance_w_est(acked_bytes);
        let elapsed = now - self.epoch_start;
        let cwnd = self.window.cwnd();
        if self.w_cubic(elapsed) < u64::from(self.w_est) {
            // The Reno-friendly region (§4.3).
            return self.window.grow(self.w_est.saturating_sub(cwnd));
        }
        // The concave and the convex region (§4.4, §4.5): grow within one RTT to the curve's value
        // one RTT ahead, but by at most half of cwnd.
        let cwnd = u64::from(cwnd);
        let target = self.w_cubic(elapsed + srtt).clamp(cwnd, cwnd + cwnd / 2);
        let growth = (target - cwnd) * u64::from(acked_bytes) + u64::from(self.growth_remainder);
        self.growth_remainder = (growth % cwnd) as u32;
        self.window
            .grow(u32::try_from(growth / cwnd).unwrap_or(u32::MAX));
    }

    /// Sets W_max at a congestion event. Fast convergence lowers W_max further if the window was
    /// below the previous W_max, to leave room for new flows (§4.7).
    fn save_w_max(&mut self) {
        let cwnd = self.window.cwnd();
        let (factor, unit) = BETA;
        self.w_max = if cwnd < self.w_max {
            (u64::from(cwnd) * (unit + factor) / (2 * unit)) as u32
        } else {
            cwnd
        };
        self.cwnd_prior = cwnd;
    }
}

fn times_beta(bytes: u32) -> u32 {
    let (factor, unit) = BETA;
    (u64::from(bytes) * factor / unit) as u32
}

/// Returns `K` for a W_max that is `distance` bytes above cwnd (RFC 9438 §4.2 figure 2).
fn k_for_distance_ms(distance: u32, smss: u32) -> u32 {
    // `distance` / `smss` / 0.4 is in seconds cubed. Times 10^9, the quotient is in milliseconds
    // cubed.
    let cube = u64::from(distance) * 2_500_000_000 / u64::from(smss);
    cube_root(cube)
}

/// Returns the largest integer whose cube is at most `cube`, by Newton's method from above.
fn cube_root(cube: u64) -> u32 {
    if cube == 0 {
        return 0;
    }
    let bits = u64::BITS - cube.leading_zeros();
    let mut root = 1u64 << bits.div_ceil(3);
    loop {
        let next = (2 * root + cube / (root * root)) / 3;
        if next >= root {
            return root as u32;
        }
        root = next;
    }
}

impl CongestionControl for Cubic {
    #[inline]
    fn window(&self) -> &Window {
        &self.window
    }

    fn window_mut(&mut self) -> &mut Window {
        &mut self.window
    }

    #[inline]
    fn on_ack(&mut self, now: Instant, acked_bytes: u32, srtt: Duration, cwnd_limited: bool) {
        if !cwnd_limited {
            self.window.on_ack_without_growth();
            return self.skip_idle_time(now);
        }
        let acked_bytes = self.window.slow_start(acked_bytes);
        if acked_bytes > 0 {
            self.avoid_congestion(now, acked_bytes, srtt);
        }
    }

    fn on_rtt_sample(&mut self, now: Instant, sample: &RttSample) {
        let avoiding = self.epoch_start != Instant::MAX;
        if avoiding && now - self.epoch_start < SAMPLES_DISCARDED_FOR {
            return;
        }
        if self.hystart.on_sample(now, sample, &self.window) {
            self.window.end_slow_start();
        }
    }

    fn wants_rtt_samples(&self) -> bool {
        self.hystart.is_searching() && self.window.in_slow_start()
    }

    /// Reduces cwnd (§4.6), based on cwnd instead of FlightSize, as in Linux: see
    /// [`Cubic::on_rto`].
    fn on_congestion_signal(&mut self, _now: Instant, _flight_size: u32) -> u32 {
        self.save_w_max();
        self.window.reduce_to(times_beta(self.window.cwnd()));
        self.after_congestion_event = true;
        self.end_epoch();
        self.window.ssthresh()
    }

    fn on_recovery_exit(&mut self, _now: Instant) {
        self.end_epoch();
    }

    fn on_rto(&mut self, _now: Instant, flight_size: u32) -> u32 {
        if !self.window.in_timeout() {
            self.save_w_max();
        }
        // RFC 9438 §4.6 allows cwnd instead of FlightSize if cwnd grows only while the flow is
        // cwnd-limited, as here. With FlightSize, an application that pauses would be left with a
        // tiny window, because little is in flight. If fast recovery has already reduced cwnd for
        // this flight, FlightSize is larger than cwnd, and is used.
        let cwnd = flight_size.max(self.window.cwnd());
        self.window.collapse_to_loss_window(times_beta(cwnd));
        // §4.8: in the first epoch after a timeout, W_max is cwnd at the start of the epoch.
        self.after_congestion_event = false;
        self.hystart = HyStart::new();
        self.end_epoch();
        self.window.ssthresh()
    }

    fn on_idle_restart(&mut self, now: Instant, idle_rtos: u32) {
        self.window.restart(idle_rtos);
        self.skip_idle_time(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cube_root_is_exact(cube in any::<u64>(), shift in 0u32..64) {
            let cube = cube >> shift;
            let root = u128::from(cube_root(cube));
            prop_assert!(root.pow(3) <= u128::from(cube));
            prop_assert!((root + 1).pow(3) > u128::from(cube));
        }
    }

    #[test]
    fn cube_root_at_the_edges() {
        for root in [1u64, 2, 3, 1_000, 2_642_244] {
            assert_eq!(u64::from(cube_root(root.pow(3))), root.min(2_642_245));
            assert_eq!(u64::from(cube_root(root.pow(3) - 1)), root - 1);
        }
        assert_eq!((cube_root(0), cube_root(u64::MAX)), (0, 2_642_245));
    }
}
