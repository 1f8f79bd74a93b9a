//! Round-trip estimation and retransmission timeout: RFC 6298 with Linux's constants.
//!
//! The timeout is SRTT plus a variance term. Linux applies the minimum of 200 ms to the variance
//! term instead of the timeout. The term aims at a target: four times the largest smoothed
//! deviation in the current round trip, but at least 200 ms. If the term is below the target, the
//! term rises to the target immediately. If the term is above the target, the term falls slowly: at
//! the end of each round trip, by a quarter of its distance from the target.

/// Smallest variance term, in microseconds.
pub(crate) const RTO_MIN: f64 = 200_000.0;
/// Largest timeout, in microseconds.
pub(crate) const RTO_MAX: u64 = 120_000_000;

/// Round-trip estimates in microseconds.
#[derive(Debug)]
pub(crate) struct Rtt {
    pub(crate) srtt: f64,
    /// Smallest sample. `u64::MAX` before the first sample.
    pub(crate) min: u64,
    /// Smoothed deviation of the samples from `srtt` (Linux: `mdev_us`).
    deviation: f64,
    /// Four times the largest `deviation` in this round trip, but at least [`RTO_MIN`] (Linux:
    /// `mdev_max_us`).
    largest: f64,
    /// Variance term in use (Linux: `rttvar_us`).
    variance: f64,
    /// SND.NXT at the start of this round trip. The round trip ends when SND.UNA passes this
    /// number.
    round: u64,
}

impl Rtt {
    pub(crate) const fn new() -> Self {
        Self {
            srtt: 0.0,
            min: u64::MAX,
            deviation: 0.0,
            largest: RTO_MIN,
            variance: RTO_MIN,
            round: 0,
        }
    }

    /// Updates all estimates except `min` with a round-trip time of `us` microseconds.
    pub(crate) fn sample(&mut self, us: u64, snd_una: u64, snd_nxt: u64) {
        let us = us.max(1) as f64;
        if self.srtt == 0.0 {
            (self.srtt, self.deviation) = (us, us / 2.0);
            self.variance = (4.0 * self.deviation).max(RTO_MIN);
            (self.largest, self.round) = (self.variance, snd_nxt);
            return;
        }
        let error = us - self.srtt;
        self.srtt += error / 8.0;
        let more = error.abs() - self.deviation;
        // A sample that is below the estimate and increases the deviation has a smaller weight, so
        // that a shorter round trip hardly lengthens the timeout.
        let gain = if error < 0.0 && more > 0.0 { 32.0 } else { 4.0 };
        self.deviation += more / gain;
        self.largest = self.largest.max(4.0 * self.deviation);
        self.variance = self.variance.max(self.largest);
        if snd_una > self.round {
            self.variance -= (self.variance - self.largest) / 4.0;
            (self.round, self.largest) = (snd_nxt, RTO_MIN);
        }
    }

    /// Updates only `min`.
    pub(crate) fn note_min(&mut self, us: u64) {
        self.min = self.min.min(us.max(1));
    }

    /// Returns the retransmission timeout in microseconds, without backoff.
    pub(crate) fn rto(&self) -> u64 {
        ((self.srtt + self.variance) as u64).min(RTO_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_200_ms_above_a_short_round_trip_and_follows_a_long_one() {
        let mut rtt = Rtt::new();
        rtt.sample(1_000, 0, 10);
        assert_eq!(rtt.rto(), 201_000);
        let mut rtt = Rtt::new();
        rtt.sample(400_000, 0, 10);
        assert_eq!(rtt.rto(), 1_200_000);
        for una in 1..200 {
            rtt.sample(400_000, 10 * una, 10 * una + 10);
        }
        assert!((600_000..610_000).contains(&rtt.rto()), "{}", rtt.rto());
    }
}
