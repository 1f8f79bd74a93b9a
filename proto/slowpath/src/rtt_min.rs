//! Minimum RTT of the last five minutes. Older samples do not count, because the path of a long
//! connection may change (RFC 8985 §6.2 step 1).

use tidelane_cc::MaxFilter;
use tidelane_flow::Millis;

/// Length of the time window of the minimum in ms (Linux: `tcp_min_rtt_wlen`, in seconds).
const WINDOW_MS: u32 = 300_000;

/// Windowed minimum of the RTT, stored as the maximum of the samples' bitwise complements.
#[derive(Clone, Copy, Default, Debug)]
pub struct RttMin(MaxFilter);

impl RttMin {
    /// Returns the minimum in us; `u32::MAX` before the first sample.
    pub fn us(&self) -> u32 {
        !self.0.max()
    }

    /// Returns the minimum in us; `u32::MAX` if the sample of the minimum is older than the window,
    /// and before the first sample.
    pub fn recent_us(&self, now: Millis) -> u32 {
        if now.0.wrapping_sub(self.0.round()) > WINDOW_MS {
            return u32::MAX;
        }
        self.us()
    }

    /// Adds a sample in us. A sample of zero counts as 1 us.
    pub fn update(&mut self, now: Millis, us: u32) {
        self.0.update(now.0, WINDOW_MS, !us.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8985_section_6_2_the_least_of_a_window_of_time() {
        let mut least = RttMin::default();
        assert_eq!(least.us(), u32::MAX);
        least.update(Millis(0), 500);
        assert_eq!(least.us(), 500);
        // The path changes, and the minimum of the old path expires after the window.
        for second in 1..=400 {
            least.update(Millis(second * 1000), 800 + second % 7);
            let expected = if second <= 300 { 500 } else { 800 };
            assert_eq!(least.us() / 100 * 100, expected, "after {second} s");
        }
        least.update(Millis(401_000), 300);
        assert_eq!(least.us(), 300);
        assert_eq!(least.recent_us(Millis(701_000)), 300);
        assert_eq!(least.recent_us(Millis(702_000)), u32::MAX);
    }

    #[test]
    fn the_estimate_is_between_the_minimum_of_the_window_and_a_bound() {
        let mut least = RttMin::default();
        let (mut all, mut state) = (Vec::new(), 12345u32);
        for step in 0..5_000u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (at, us) = (step * 1_000, 1 + (state >> 20) % 1000);
            least.update(Millis(at), us);
            all.push((at, us));
            let window = all.iter().filter(|(then, _)| at - then <= WINDOW_MS);
            let exact = window.map(|(_, us)| *us).min();
            assert!(Some(least.us()) >= exact, "step {step}");
            // The filter keeps only the three best samples. When the best sample expires, the next
            // of the three replaces the best sample.
            assert!(least.us() <= 100, "step {step}");
        }
    }
}
