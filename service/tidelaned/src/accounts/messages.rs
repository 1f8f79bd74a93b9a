//! How many messages a user may send: a token bucket that holds what a second brings.
//!
//! A message is taken as long as there is a token, whatever it costs: one that is more work leaves
//! a debt. Nothing is dropped. A user without tokens is not read, so their messages wait in their
//! sockets, and they with them.

use tidelane_time::{Duration, Instant};

const SECOND: u64 = 1_000_000_000;

/// A user's tokens.
#[derive(Debug, Default)]
pub struct Bucket {
    /// When it would have been empty last, had all that was paid since been there before: what is
    /// left is what came between that and now. `None`: nothing was paid yet.
    empty_at: Option<Instant>,
    /// Nanoseconds per token.
    interval: u64,
}

impl Bucket {
    /// When there is a token, if there is none now. `rate` come each second.
    pub fn due(&mut self, now: Instant, rate: u64) -> Option<Instant> {
        self.interval = SECOND / rate.clamp(1, SECOND);
        let full = Instant(now.0.saturating_sub(SECOND));
        let empty_at = self.empty_at.map_or(full, |at| at.max(full));
        self.empty_at = Some(empty_at);
        let due = empty_at + Duration::from_nanos(self.interval);
        (due > now).then_some(due)
    }

    /// Takes `tokens`, more than there are perhaps.
    pub fn pay(&mut self, tokens: u64) {
        if let Some(at) = &mut self.empty_at {
            *at += Duration::from_nanos(self.interval.saturating_mul(tokens).min(60 * SECOND));
        }
    }
}
