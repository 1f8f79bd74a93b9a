//! Whether the peer was silent for so long that TS.Recent says nothing any more (RFC 7323 §5.5):
//! its clock may have gone half of its way round, and would seem to have gone back.
//!
//! The fast path keeps the low bits of the second in which a segment last came, 18 hours of them.
//! The engine looks at them more often than that.

use tidelane_flow::{Clock, Env, FlowState};
use tidelane_time::{Duration, Instant};

use crate::Slow;

/// How often the engine looks.
pub const HEARD_INTERVAL: Duration = Duration::from_secs(8 * 3600);
/// When TS.Recent is too old: a clock of 1 ms goes half of its way in 24.8 days.
const TS_RECENT_AGE: Duration = Duration::from_secs(24 * 86_400);

/// What was found at the last look at which something had come since the one before.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// When that was.
    at: Instant,
    /// Low bits of the second in which it had come.
    second: u16,
}

impl Heard {
    /// A connection begins.
    pub fn at(clock: &Clock) -> Self {
        Self {
            at: clock.now,
            second: (clock.ms.0 >> 10) as u16,
        }
    }

    /// The engine looks.
    pub fn look(&mut self, now: Instant, hot: &FlowState) {
        if self.second != hot.last_arrival {
            self.at = now;
            self.second = hot.last_arrival;
        }
    }
}

impl<E: Env> Slow<'_, E> {
    /// See the module.
    pub(crate) fn is_ts_recent_old(&self) -> bool {
        let heard = self.cold.heard;
        heard.second == self.hot.last_arrival && self.clock.now - heard.at > TS_RECENT_AGE
    }
}
