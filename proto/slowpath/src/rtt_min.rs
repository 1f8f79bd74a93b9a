//! The least of the round-trip samples of the last five minutes: paths change, and a connection
//! that lives long outlives its path (RFC 8985 §6.2 step 1).

use tidelane_flow::Millis;

/// How long a sample counts: what Linux has (`tcp_min_rtt_wlen`).
const WINDOW_MS: u32 = 300_000;

/// A sample in microseconds and when it was taken.
type Sample = (u32, Millis);

/// The least sample of the window, the least after it, and the least after that: when the first
/// gets too old, the others know what came since, without a list of all.
#[derive(Clone, Copy, Debug)]
pub struct RttMin([Sample; 3]);

impl Default for RttMin {
    fn default() -> Self {
        Self([(u32::MAX, Millis(0)); 3])
    }
}

/// How long before `now` the sample was taken.
fn age(now: Millis, sample: Sample) -> u32 {
    now.0.wrapping_sub(sample.1.0)
}

impl RttMin {
    /// The least; `u32::MAX` before the first sample.
    pub fn us(&self) -> u32 {
        self.0[0].0
    }

    /// The least, unless it is too old by now.
    pub fn recent_us(&self, now: Millis) -> u32 {
        if age(now, self.0[0]) > WINDOW_MS {
            return u32::MAX;
        }
        self.us()
    }

    /// A sample was taken.
    pub fn take(&mut self, now: Millis, us: u32) {
        let sample = (us.max(1), now);
        let [first, second, third] = &mut self.0;
        if sample.0 <= first.0 || age(now, *third) > WINDOW_MS {
            self.0 = [sample; 3];
            return;
        }
        if sample.0 <= second.0 {
            (*second, *third) = (sample, sample);
        } else if sample.0 <= third.0 {
            *third = sample;
        }
        let oldest = age(now, *first);
        if oldest > WINDOW_MS {
            (*first, *second, *third) = (*second, *third, sample);
            if age(now, *first) > WINDOW_MS {
                (*first, *second) = (*second, *third);
            }
        } else if second.1 == first.1 && oldest > WINDOW_MS / 4 {
            // Nothing since a quarter of the window: one sample of each part of it is kept.
            (*second, *third) = (sample, sample);
        } else if third.1 == second.1 && oldest > WINDOW_MS / 2 {
            *third = sample;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8985_section_6_2_the_least_of_a_window_of_time() {
        let mut least = RttMin::default();
        assert_eq!(least.us(), u32::MAX);
        least.take(Millis(0), 500);
        assert_eq!(least.us(), 500);
        // The path has changed: after the window the old value is gone.
        for second in 1..=400 {
            least.take(Millis(second * 1000), 800 + second % 7);
            let expected = if second <= 300 { 500 } else { 800 };
            assert_eq!(least.us() / 100 * 100, expected, "after {second} s");
        }
        least.take(Millis(401_000), 300);
        assert_eq!(least.us(), 300);
        assert_eq!(least.recent_us(Millis(701_000)), 300);
        assert_eq!(least.recent_us(Millis(702_000)), u32::MAX);
    }

    #[test]
    fn it_is_never_below_nor_far_above_the_least_of_the_window() {
        let mut least = RttMin::default();
        let (mut all, mut state) = (Vec::new(), 12345u32);
        for step in 0..5_000u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (at, us) = (step * 1_000, 1 + (state >> 20) % 1000);
            least.take(Millis(at), us);
            all.push((at, us));
            let window = all.iter().filter(|(then, _)| at - then <= WINDOW_MS);
            let exact = window.map(|(_, us)| *us).min();
            assert!(Some(least.us()) >= exact, "step {step}");
            // The second and third least stand for the rest of the window.
            assert!(least.us() <= 100, "step {step}");
        }
    }
}
