//! Age of TS.Recent (RFC 7323 §5.5). After 24 days without a segment, the peer's timestamp clock
//! may have wrapped by half of its range, and PAWS would reject valid segments.
//!
//! The fast path (the engine's code for in-order segments) records only 16 bits of a segment's
//! arrival time, in units of 1.024 s. These bits wrap after 18 hours, so the engine checks them
//! every 8 hours and copies them to the record of this file.

use tidelane_flow::{Clock, Driver, FlowState};
use tidelane_time::{Duration, Instant};

use crate::SlowPath;

/// Interval at which the engine checks each flow for new segments.
pub const TS_RECENT_CHECK_INTERVAL: Duration = Duration::from_secs(8 * 3600);
/// Age at which TS.Recent expires. A clock of 1 ms wraps by half of its range in 24.8 days.
const TS_RECENT_AGE: Duration = Duration::from_secs(24 * 86_400);

/// The most recent check that found a new segment, and the arrival time of this segment.
#[derive(Clone, Copy, Debug)]
pub struct TsRecentAge {
    /// Time of the check.
    at: Instant,
    /// Arrival time of the segment: 16 bits, in units of 1.024 s.
    second: u16,
}

impl TsRecentAge {
    /// Returns the state of a new connection.
    pub fn at(clock: &Clock) -> Self {
        Self {
            at: clock.now,
            second: (clock.ms.0 >> 10) as u16,
        }
    }

    /// Records the time `now` of a check if a segment has arrived since the previous check.
    pub fn update(&mut self, now: Instant, hot: &FlowState) {
        if self.second != hot.last_arrival {
            self.at = now;
            self.second = hot.last_arrival;
        }
    }
}

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if TS.Recent has expired, so that PAWS must not use it.
    pub(crate) fn is_ts_recent_old(&self) -> bool {
        let ts_recent_age = self.cold.ts_recent_age;
        ts_recent_age.second == self.hot.last_arrival
            && self.clock.now - ts_recent_age.at > TS_RECENT_AGE
    }
}
