//! The message rate of a user: a token bucket that holds at most the tokens of one second.
//!
//! The service reads a message of a user (a request on a registration socket) only if the user's
//! bucket holds a token. A message may cost more tokens than the bucket holds, and then leaves a
//! debt. No message is dropped: the messages of a user without tokens stay in the sockets, and the
//! user's calls wait.

use tidelane_time::{Duration, Instant};

/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// A user's tokens.
#[derive(Debug, Default)]
pub struct Bucket {
    /// The time at which the bucket has neither tokens nor a debt. Later, the bucket holds the
    /// tokens of the time since `empty_at`, but at most the tokens of one second. During a debt,
    /// `empty_at` lies in the future.
    empty_at: Instant,
}

impl Bucket {
    /// Returns the time of the next token, at `rate` tokens per second. Returns `None` if the
    /// bucket holds a token at `now`.
    pub fn due(&mut self, now: Instant, rate: u64) -> Option<Instant> {
        self.drop_surplus(now);
        let due = self.empty_at + Duration::from_nanos(interval(rate));
        (due > now).then_some(due)
    }

    /// Takes `tokens` out of the bucket, possibly more tokens than the bucket holds. One payment
    /// counts as at most the tokens of 60 s.
    pub fn pay(&mut self, now: Instant, rate: u64, tokens: u64) {
        self.drop_surplus(now);
        let time = interval(rate).saturating_mul(tokens).min(60 * SECOND);
        self.empty_at += Duration::from_nanos(time);
    }

    /// Drops the tokens beyond the tokens of one second.
    fn drop_surplus(&mut self, now: Instant) {
        self.empty_at = self.empty_at.max(Instant(now.0.saturating_sub(SECOND)));
    }
}

/// Returns the nanoseconds per token, at `rate` tokens per second.
fn interval(rate: u64) -> u64 {
    SECOND / rate.clamp(1, SECOND)
}
