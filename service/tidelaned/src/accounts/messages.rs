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
    /// The time at which the bucket was empty last, with all payments counted. The bucket holds the
    /// tokens of the time since then. During a debt, `empty_at` lies in the future. `None` before
    /// the first call of [`due`](Self::due).
    empty_at: Option<Instant>,
    /// Nanoseconds per token, by the rate of the last call of [`due`](Self::due).
    interval: u64,
}

impl Bucket {
    /// Returns the time of the next token, at `rate` tokens per second. Returns `None` if the
    /// bucket holds a token now.
    pub fn due(&mut self, now: Instant, rate: u64) -> Option<Instant> {
        self.interval = SECOND / rate.clamp(1, SECOND);
        let full = Instant(now.0.saturating_sub(SECOND));
        let empty_at = self.empty_at.map_or(full, |at| at.max(full));
        self.empty_at = Some(empty_at);
        let due = empty_at + Duration::from_nanos(self.interval);
        (due > now).then_some(due)
    }

    /// Takes `tokens` out of the bucket, possibly more tokens than the bucket holds. One payment
    /// counts as at most the tokens of 60 s. A payment before the first call of [`due`](Self::due)
    /// is not counted.
    pub fn pay(&mut self, tokens: u64) {
        if let Some(at) = &mut self.empty_at {
            *at += Duration::from_nanos(self.interval.saturating_mul(tokens).min(60 * SECOND));
        }
    }
}
