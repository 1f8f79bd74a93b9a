//! CUBIC (RFC 9438) as Linux computes it. Windows are in whole segments, and the time of the cubic
//! function is in ticks of Linux's timer clock. The model's sender owns a [`Cubic`], and calls its
//! functions for ACKs and congestion signals.

use crate::{
    hystart::{HyStart, Sample},
    ticks::Ticks,
};

/// The constant C of RFC 9438 §4.1.1.
const C: f64 = 0.4;
/// Resolution of the time K (see [`Cubic`]), in parts of a second. K is rounded down.
const K_PARTS: f64 = 1024.0;
/// Multiplicative decrease factor beta_cubic. Linux uses 717/1024.
const BETA: f64 = 717.0 / 1024.0;
/// Largest value of `cnt` (ACKed segments per segment of growth) while W_max is unknown.
const GROWTH_UNKNOWN: u64 = 20;
/// Initial value of ssthresh.
pub(crate) const SSTHRESH_INFINITE: u64 = u64::MAX / 2;

/// Congestion window and ssthresh in segments, and the state of CUBIC. Times are in microseconds
/// unless a field says otherwise.
#[derive(Debug)]
pub(crate) struct Cubic {
    pub(crate) cwnd: u64,
    pub(crate) ssthresh: u64,
    /// ACKed segments that have not yet made the window grow (Linux: `snd_cwnd_cnt`).
    cwnd_cnt: u64,
    /// W_max: the window before the last reduction, or a lower value after fast convergence. 0 if
    /// W_max is unknown.
    w_max: u64,
    /// Tick at which the congestion avoidance epoch began. `None` if no epoch has begun since the
    /// last reduction.
    epoch: Option<u64>,
    /// K: seconds from the start of the epoch until the cubic function reaches `origin`.
    k: f64,
    /// Window at which the cubic function has its inflection point (Linux: `bic_origin_point`).
    origin: u64,
    /// Window and tick of the last evaluation of the cubic function.
    last_update: (u64, u64),
    /// Number of ACKed segments per segment of growth (Linux: `cnt`).
    cnt: u64,
    /// Estimate of the window that Reno would have (RFC 9438 §4.3).
    w_est: u64,
    /// Number of ACKed segments that `w_est` does not include yet.
    ack_cnt: u64,
    /// Smallest round-trip time. 0 before the first sample.
    delay_min: u64,
    hystart: HyStart,
    ticks: Ticks,
}

impl Cubic {
    pub(crate) fn new(cwnd: u64, ticks: Ticks) -> Self {
        Self {
            cwnd,
            ssthresh: SSTHRESH_INFINITE,
            cwnd_cnt: 0,
            w_max: 0,
            epoch: None,
            k: 0.0,
            origin: 0,
            last_update: (0, 0),
            cnt: 1,
            w_est: 0,
            ack_cnt: 0,
            delay_min: 0,
            hystart: HyStart::default(),
            ticks,
        }
    }

    pub(crate) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows the window after `acked` segments were ACKed at time `now`.
    pub(crate) fn grow(&mut self, now: u64, acked: u64) {
        let mut left = acked;
        if self.in_slow_start() {
            let grown = (self.cwnd + acked).min(self.ssthresh);
            left -= grown - self.cwnd;
            self.cwnd = grown;
        }
        if left > 0 {
            self.update(now, left);
            self.count(left);
        }
    }

    /// Grows the window by one segment per `cnt` ACKed segments.
    fn count(&mut self, acked: u64) {
        if self.cwnd_cnt >= self.cnt {
            (self.cwnd_cnt, self.cwnd) = (0, self.cwnd + 1);
        }
        self.cwnd_cnt += acked;
        self.cwnd += self.cwnd_cnt / self.cnt;
        self.cwnd_cnt %= self.cnt;
    }

    /// Computes `cnt` from the cubic function and the Reno-friendly window. While the window does
    /// not change, Linux updates `cnt` at most every 1/32 s. In an epoch, Linux evaluates the cubic
    /// function at most once per tick.
    fn update(&mut self, now: u64, acked: u64) {
        let tick = self.ticks.at(now);
        self.ack_cnt += acked;
        let (window, last_update) = self.last_update;
        let since = self.ticks.span(tick - last_update);
        if window == self.cwnd && since <= 1_000_000 / 32 {
            return;
        }
        if self.epoch.is_none() || tick != last_update {
            self.last_update = (self.cwnd, tick);
            self.update_target(tick, acked);
        }
        self.update_reno_estimate();
        // The window grows by at most half of its size per round trip (RFC 9438 §4.2).
        self.cnt = self.cnt.max(2);
    }

    fn update_target(&mut self, tick: u64, acked: u64) {
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => self.begin_epoch(tick, acked),
        };
        // The smallest round-trip time is rounded up to whole ticks.
        let passed = self.ticks.span(tick - epoch) + self.ticks.round_up(self.delay_min);
        let t = passed as f64 / 1e6 - self.k;
        // Linux rounds the distance from the origin down to whole segments. Below the origin, the
        // target therefore exceeds the window from the first evaluation on.
        let distance = (C * t.abs().powi(3)) as u64;
        let target = match t {
            ..0.0 => self.origin - distance.min(self.origin),
            _ => self.origin + distance,
        };
        self.cnt = match target.checked_sub(self.cwnd) {
            Some(more @ 1..) => self.cwnd / more,
            _ => 100 * self.cwnd,
        };
        if self.w_max == 0 {
            self.cnt = self.cnt.min(GROWTH_UNKNOWN);
        }
    }

    /// Begins an epoch at `tick`, and returns `tick`.
    fn begin_epoch(&mut self, tick: u64, acked: u64) -> u64 {
        self.epoch = Some(tick);
        (self.ack_cnt, self.w_est) = (acked, self.cwnd);
        self.origin = self.w_max.max(self.cwnd);
        let k = ((self.origin - self.cwnd) as f64 / C).cbrt();
        self.k = (k * K_PARTS).floor() / K_PARTS;
        tick
    }

    /// Updates `w_est` (RFC 9438 §4.3). If `w_est` is larger than the window, lowers `cnt` to make
    /// the window grow faster.
    fn update_reno_estimate(&mut self) {
        let alpha = 3.0 * (1.0 - BETA) / (1.0 + BETA);
        let per_segment = ((self.cwnd as f64 / alpha) as u64).max(1);
        let grown = self.ack_cnt.saturating_sub(1) / per_segment;
        self.ack_cnt -= grown * per_segment;
        self.w_est += grown;
        if let Some(ahead @ 1..) = self.w_est.checked_sub(self.cwnd) {
            self.cnt = self.cnt.min(self.cwnd / ahead);
        }
    }

    /// Ends the epoch, and sets W_max and ssthresh after a congestion signal. The caller lowers the
    /// window.
    pub(crate) fn reduce(&mut self) {
        self.epoch = None;
        self.w_max = if self.cwnd < self.w_max {
            // Fast convergence (RFC 9438 §4.7).
            (self.cwnd as f64 * (1.0 + BETA) / 2.0) as u64
        } else {
            self.cwnd
        };
        self.ssthresh = ((self.cwnd as f64 * BETA) as u64).max(2);
        self.cwnd_cnt = 0;
    }

    /// Resets all state except the window and ssthresh, after a retransmission timeout.
    pub(crate) fn reset(&mut self) {
        let (cwnd, ssthresh) = (self.cwnd, self.ssthresh);
        *self = Self::new(cwnd, self.ticks);
        self.ssthresh = ssthresh;
    }

    /// Handles a round-trip sample. `mss` is in bytes.
    pub(crate) fn on_sample(&mut self, sample: &Sample, mss: u64) {
        let tick = self.ticks.at(sample.now);
        // Linux ignores samples in the first second of an epoch, because they may be from a
        // recovery.
        let early = |epoch| self.ticks.span(tick - epoch) < 1_000_000;
        if self.epoch.is_some_and(early) {
            return;
        }
        let rtt = sample.rtt.max(1);
        if self.delay_min == 0 || self.delay_min > rtt {
            self.delay_min = rtt;
        }
        if self.in_slow_start() && self.hystart.on_sample(sample, self.delay_min, mss) {
            self.ssthresh = self.cwnd;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `count` round trips of 100 ms from time `from` on, with an ACK for each segment.
    fn rounds(cubic: &mut Cubic, from: u64, count: u64) {
        for round in 0..count {
            let window = cubic.cwnd;
            for n in 0..window {
                cubic.grow(from + round * 100_000 + n * 100_000 / window, 1);
            }
        }
    }

    /// Returns the state after a reduction from a window of `window` segments.
    fn in_congestion_avoidance(window: u64) -> Cubic {
        let mut cubic = Cubic::new(window, Ticks::new(1000));
        cubic.reduce();
        cubic.cwnd = cubic.ssthresh;
        cubic
    }

    #[test]
    fn the_window_follows_the_cubic_function_and_is_back_after_k() {
        let mut cubic = in_congestion_avoidance(1000);
        assert_eq!(cubic.cwnd, 700);
        // K = cbrt(300 / 0.4) = 9.1 s.
        let at = |t: f64| 1000.0 + C * (t - 9.086).powi(3);
        for second in 0..12 {
            rounds(&mut cubic, second * 1_000_000, 10);
            let (window, ideal) = (cubic.cwnd as f64, at(second as f64 + 1.0));
            assert!(
                (window - ideal).abs() < 0.02 * ideal,
                "{second}: {window} {ideal}"
            );
        }
    }

    #[test]
    fn below_the_plateau_the_target_is_a_segment_ahead_at_once() {
        let mut cubic = in_congestion_avoidance(5);
        assert_eq!(cubic.cwnd, 3);
        // Within one tick, the cubic function is evaluated once. The target is one segment above
        // the window.
        (0..8).for_each(|_| cubic.grow(0, 1));
        assert_eq!(cubic.cwnd, 5);
    }

    #[test]
    fn a_small_window_grows_as_reno_would_with_this_factor() {
        let mut cubic = in_congestion_avoidance(20);
        for round in 0..60u64 {
            let window = cubic.cwnd;
            (0..window).for_each(|n| cubic.grow(round * 40_000 + n * 40_000 / window, 1));
        }
        // With this decrease factor, the window of Reno grows by 0.53 segments per round trip.
        assert!((14 + 28..=14 + 36).contains(&cubic.cwnd), "{}", cubic.cwnd);
    }

    #[test]
    fn fast_convergence_lowers_the_plateau() {
        let mut cubic = in_congestion_avoidance(1000);
        cubic.reduce();
        assert_eq!((cubic.w_max, cubic.ssthresh), (595, 490));
        cubic.reset();
        assert_eq!((cubic.w_max, cubic.ssthresh), (0, 490));
    }

    #[test]
    fn slow_start_ends_where_round_trips_become_longer() {
        let mut cubic = Cubic::new(20, Ticks::new(1000));
        for n in 0..40 {
            let sample = Sample {
                now: n * 3_000,
                rtt: if n < 20 { 40_000 } else { 46_000 },
                srtt: 40_000.0,
                cwnd: 20,
                snd_una: n,
                snd_nxt: n + 20,
            };
            cubic.on_sample(&sample, 1448);
            assert_eq!(
                cubic.in_slow_start(),
                n < 50.min(n + 1) && cubic.ssthresh == SSTHRESH_INFINITE
            );
        }
        assert_eq!(cubic.ssthresh, 20);
    }
}
