//! The clock of a run. It moves when it is asked to, and by a microsecond whenever it is read.

use tidelane_engine::{Duration, Instant};

/// Where the clock starts, in microseconds of the Unix epoch: some day in 2023.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// The engine's time at the start. Not zero: what happened before the start has a time too.
const START: Instant = Instant::from_secs(1000);
/// What one look at the clock takes.
const READ: Duration = Duration::from_micros(1);

/// See the module.
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
    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Moves to `to`, unless it is past.
    pub fn advance_to(&mut self, to: Instant) {
        self.now = self.now.max(to);
    }

    /// Looks at the clock: microseconds since the Unix epoch.
    pub fn read_us(&mut self) -> u64 {
        self.now += READ;
        wall_us(self.now)
    }
}

/// Microseconds of the Unix epoch at `at`.
pub fn wall_us(at: Instant) -> u64 {
    EPOCH_US + (at.as_micros() - START.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_spins_reaches_any_time() {
        let mut clock = VirtualClock::default();
        let target = wall_us(clock.now()) + 20;
        let spins = (0..100).take_while(|_| clock.read_us() < target).count();
        assert_eq!(spins, 19);
    }

    #[test]
    fn it_never_goes_back() {
        let mut clock = VirtualClock::default();
        let now = clock.now();
        clock.advance_to(Instant::ZERO);
        assert_eq!(clock.now(), now);
    }
}
