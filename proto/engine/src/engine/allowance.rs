//! What may be sent per second to whom nothing is owed: challenge ACKs and resets.

use tidelane_slowpath::iss;
use tidelane_time::Instant;

use super::Engine;

impl Engine {
    /// Gives the allowances of a new second.
    pub(super) fn refill(&mut self, now: Instant) {
        let second = now.0 / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.challenges = self.challenge_allowance(second);
            self.resets = self.config.resets_per_second;
        }
    }

    /// Challenge ACKs of a second. A limit that a forger knows tells it, by what is left, what its
    /// forgeries hit (CVE-2016-5696), so no two seconds have the same.
    fn challenge_allowance(&self, second: u64) -> u32 {
        let limit = self.config.challenge_acks_per_second;
        if limit == u32::MAX {
            return limit;
        }
        let noise = iss::mix(&self.secret, second) as u32;
        limit / 2 + noise % limit.max(1)
    }
}
