//! The virtual clock of one run of a packetdrill script.
//!
//! The clock advances on request, and by one microsecond at each call of
//! [`VirtualClock::read_us`]. packetdrill (the program that runs the script) reads the clock in a
//! loop until a given time, so a clock that did not advance would hang the script.

use tidelane_engine::{Duration, Instant};

/// Wall-clock time at the start, in microseconds since the Unix epoch: a day in November 2023.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// The time of the engine (Tidelane's TCP) at the start. The value is not zero, so that earlier
/// instants exist.
pub const START: Instant = Instant::from_secs(1000);
/// Advance of the clock at each call of [`VirtualClock::read_us`].
const READ: Duration = Duration::from_micros(1);

/// The engine's time in one script run. [`wall_us`] converts an engine time to wall-clock time.
#[derive(Clone, Copy, Debug)]
pub struct VirtualClock {
    now: Instant,
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self { now: START }
    }
}

impl VirtualClock {
    /// Returns the time without advancing the clock.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Advances the clock to `to`. Does nothing if `to` lies in the past.
    pub fn advance_to(&mut self, to: Instant) {
        self.now = self.now.max(to);
    }

    /// Advances the clock by one microsecond, and returns the wall-clock time in microseconds since
    /// the Unix epoch.
    pub fn read_us(&mut self) -> u64 {
        self.now += READ;
        wall_us(self.now)
    }
}

/// Converts `at` to microseconds since the Unix epoch. `at` must not lie before [`START`].
pub fn wall_us(at: Instant) -> u64 {
    EPOCH_US + (at.as_micros() - START.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reading advances the clock by 1 µs, so that the 20th reading reaches 20 µs.
    #[test]
    fn a_reader_that_spins_reaches_any_time() {
        let mut clock = VirtualClock::default();
        let target = wall_us(clock.now()) + 20;
        let spins = (0..100).take_while(|_| clock.read_us() < target).count();
        assert_eq!(spins, 19);
    }

    #[test]
    fn the_clock_never_goes_back() {
        let mut clock = VirtualClock::default();
        let now = clock.now();
        clock.advance_to(Instant::ZERO);
        assert_eq!(clock.now(), now);
    }
}
