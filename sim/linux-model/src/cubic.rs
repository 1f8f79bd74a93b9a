//! CUBIC (RFC 9438) in whole segments and ticks, as Linux counts it.

use crate::{
    hystart::{HyStart, Sample},
    ticks::Ticks,
};

/// RFC 9438 §4.1.2.
const C: f64 = 0.4;
/// K is counted in parts of a second, rounded down.
const K_PARTS: f64 = 1024.0;
/// The factor of a reduction: 717 of 1024.
const BETA: f64 = 717.0 / 1024.0;
/// Windows that are acknowledged per segment of growth, at most, before anything was lost.
const GROWTH_UNKNOWN: u64 = 20;
/// No threshold.
pub(crate) const INFINITE: u64 = u64::MAX / 2;

/// Window and threshold in segments, and CUBIC's own state.
#[derive(Debug)]
pub(crate) struct Cubic {
    pub(crate) cwnd: u64,
    pub(crate) ssthresh: u64,
    /// Acknowledged since the window last grew.
    counted: u64,
    w_max: u64,
    /// Ticks; what an epoch is measured from.
    epoch: Option<u64>,
    /// Seconds.
    k: f64,
    origin: u64,
    /// Window and tick of the last look at the function.
    looked: (u64, u64),
    /// Acknowledged segments per segment of growth.
    pace: u64,
    /// RFC 9438 §4.3.
    w_est: u64,
    est_counted: u64,
    delay_min: u64,
    hystart: HyStart,
    ticks: Ticks,
}

impl Cubic {
    pub(crate) fn new(cwnd: u64, ticks: Ticks) -> Self {
        Self {
            cwnd,
            ssthresh: INFINITE,
            counted: 0,
            w_max: 0,
            epoch: None,
            k: 0.0,
            origin: 0,
            looked: (0, 0),
            pace: 1,
            w_est: 0,
            est_counted: 0,
            delay_min: 0,
            hystart: HyStart::default(),
            ticks,
        }
    }

    pub(crate) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// `acked` segments have arrived.
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

    /// One segment per `pace` acknowledged ones.
    fn count(&mut self, acked: u64) {
        if self.counted >= self.pace {
            (self.counted, self.cwnd) = (0, self.cwnd + 1);
        }
        self.counted += acked;
        self.cwnd += self.counted / self.pace;
        self.counted %= self.pace;
    }

    /// Linux looks at the function once per tick, or 1/32 s if the window is the same.
    fn update(&mut self, now: u64, acked: u64) {
        let tick = self.ticks.at(now);
        self.est_counted += acked;
        let (window, looked) = self.looked;
        let since = self.ticks.span(tick - looked);
        if window == self.cwnd && since <= 1_000_000 / 32 {
            return;
        }
        if self.epoch.is_none() || tick != looked {
            self.looked = (self.cwnd, tick);
            self.follow_function(tick, acked);
        }
        self.follow_reno();
        // §4.4: at most half as much again per round trip.
        self.pace = self.pace.max(2);
    }

    fn follow_function(&mut self, tick: u64, acked: u64) {
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => self.begin_epoch(tick, acked),
        };
        // The shortest round trip counts as whole ticks.
        let passed = self.ticks.span(tick - epoch) + self.ticks.round_up(self.delay_min);
        let t = passed as f64 / 1e6 - self.k;
        // Whole segments from the origin, rounded towards it: below it, the target is above the
        // window from the first look on.
        let distance = (C * t.abs().powi(3)) as u64;
        let target = match t {
            ..0.0 => self.origin - distance.min(self.origin),
            _ => self.origin + distance,
        };
        self.pace = match target.checked_sub(self.cwnd) {
            Some(more @ 1..) => self.cwnd / more,
            _ => 100 * self.cwnd,
        };
        if self.w_max == 0 {
            self.pace = self.pace.min(GROWTH_UNKNOWN);
        }
    }

    fn begin_epoch(&mut self, tick: u64, acked: u64) -> u64 {
        self.epoch = Some(tick);
        (self.est_counted, self.w_est) = (acked, self.cwnd);
        self.origin = self.w_max.max(self.cwnd);
        let k = ((self.origin - self.cwnd) as f64 / C).cbrt();
        self.k = (k * K_PARTS).floor() / K_PARTS;
        tick
    }

    /// RFC 9438 §4.3, with the estimate that Reno would have.
    fn follow_reno(&mut self) {
        let alpha = 3.0 * (1.0 - BETA) / (1.0 + BETA);
        let per_segment = ((self.cwnd as f64 / alpha) as u64).max(1);
        let grown = self.est_counted.saturating_sub(1) / per_segment;
        self.est_counted -= grown * per_segment;
        self.w_est += grown;
        if let Some(ahead @ 1..) = self.w_est.checked_sub(self.cwnd) {
            self.pace = self.pace.min(self.cwnd / ahead);
        }
    }

    /// Congestion: the threshold, which the caller's reduction leads the window to.
    pub(crate) fn reduce(&mut self) {
        self.epoch = None;
        self.w_max = if self.cwnd < self.w_max {
            // §4.7, fast convergence.
            (self.cwnd as f64 * (1.0 + BETA) / 2.0) as u64
        } else {
            self.cwnd
        };
        self.ssthresh = ((self.cwnd as f64 * BETA) as u64).max(2);
        self.counted = 0;
    }

    /// After a timeout nothing of before counts, the threshold apart.
    pub(crate) fn reset(&mut self) {
        let (cwnd, ssthresh) = (self.cwnd, self.ssthresh);
        *self = Self::new(cwnd, self.ticks);
        self.ssthresh = ssthresh;
    }

    /// A round trip was measured.
    pub(crate) fn on_sample(&mut self, sample: &Sample, mss: u64) {
        let tick = self.ticks.at(sample.now);
        // Not within a second of a reduction.
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

    /// Round trips of 100 ms, acknowledged segment by segment.
    fn rounds(cubic: &mut Cubic, from: u64, count: u64) {
        for round in 0..count {
            let window = cubic.cwnd;
            for n in 0..window {
                cubic.grow(from + round * 100_000 + n * 100_000 / window, 1);
            }
        }
    }

    fn avoiding(window: u64) -> Cubic {
        let mut cubic = Cubic::new(window, Ticks::new(1000));
        cubic.reduce();
        cubic.cwnd = cubic.ssthresh;
        cubic
    }

    #[test]
    fn the_window_follows_the_cubic_function_and_is_back_after_k() {
        let mut cubic = avoiding(1000);
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
        let mut cubic = avoiding(5);
        assert_eq!(cubic.cwnd, 3);
        // The same tick: one segment per window, as long as the function is not looked at again.
        (0..8).for_each(|_| cubic.grow(0, 1));
        assert_eq!(cubic.cwnd, 5);
    }

    #[test]
    fn a_small_window_grows_as_reno_would_with_this_factor() {
        let mut cubic = avoiding(20);
        for round in 0..60u64 {
            let window = cubic.cwnd;
            (0..window).for_each(|n| cubic.grow(round * 40_000 + n * 40_000 / window, 1));
        }
        // 0.53 segments per round trip.
        assert!((14 + 28..=14 + 36).contains(&cubic.cwnd), "{}", cubic.cwnd);
    }

    #[test]
    fn fast_convergence_lowers_the_plateau() {
        let mut cubic = avoiding(1000);
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
                n < 50.min(n + 1) && cubic.ssthresh == INFINITE
            );
        }
        assert_eq!(cubic.ssthresh, 20);
    }
}
