//! Rate limit of RSTs to peers without a connection.
//!
//! A limit that all peers share is a side channel (CVE-2016-5696, for challenge ACKs). An off-path
//! attacker sends segments with the forged source address of another peer, and then counts the
//! RSTs that answer segments from the attacker's own address. The count shows if the other peer
//! got RSTs. Each peer therefore has a limit of its own, which only peers in the same hash bucket
//! share. The limit for all peers varies randomly from second to second.

use tidelane_wire::IpAddress;

use crate::secret::Secret;

/// Number of buckets. A keyed hash assigns each peer to a bucket, which limits the RSTs to its
/// peers.
const BUCKETS: usize = 1024;
/// Bit that separates hashes of addresses from hashes of seconds. A second is below this value.
const BUCKET_NUMBER: u64 = 1 << 63;

/// Number of RSTs sent to the peers of one bucket in one second.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Low bits of the second.
    second: u32,
    /// Number of RSTs sent in this second.
    sent: u32,
}

/// Limits RSTs in the present second: in total, and for the peers of each bucket.
#[derive(Debug)]
pub struct ResetLimiter {
    /// RSTs that may still be sent in this second.
    left: u32,
    /// Low bits of the present second.
    second: u32,
    buckets: Box<[Bucket]>,
}

impl ResetLimiter {
    /// Creates a limiter that allows no RST before the first [`refill`](Self::refill).
    pub fn new() -> Self {
        Self {
            left: 0,
            second: u32::MAX,
            buckets: vec![Bucket::default(); BUCKETS].into(),
        }
    }

    /// Starts a new second, with the shared limit `limit`.
    pub fn refill(&mut self, second: u64, limit: u32) {
        self.second = second as u32;
        self.left = limit;
    }

    /// Counts a RST to `peer`, whose limit is `limit`. Returns true if the RST may be sent.
    pub fn take(&mut self, secret: &Secret, peer: IpAddress, limit: u32) -> bool {
        let address = u128::from_be_bytes(peer.0);
        let (high, low) = ((address >> 64) as u64, address as u64);
        let number = secret.hash(high ^ secret.hash(low ^ BUCKET_NUMBER));
        let Some(bucket) = self.buckets.get_mut(number as usize % BUCKETS) else {
            return false;
        };
        if bucket.second != self.second {
            *bucket = Bucket {
                second: self.second,
                sent: 0,
            };
        }
        let may = bucket.sent < limit && self.left > 0;
        if may {
            bucket.sent += 1;
            self.left -= 1;
        }
        may
    }
}

/// Returns a value between half of `limit` and one and a half times `limit`, which is unpredictable
/// without the secret (RFC 5961 §7; Linux does so for challenge ACKs). `u32::MAX` means no limit.
pub fn with_noise(secret: &Secret, second: u64, limit: u32) -> u32 {
    if limit == u32::MAX {
        return limit;
    }
    let noise = secret.hash(second) as u32;
    limit / 2 + noise % limit.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret::new([9; 16]);

    fn peer(number: u32) -> IpAddress {
        IpAddress::from_v4(number.to_be_bytes())
    }

    fn taken(resets: &mut ResetLimiter, peer: IpAddress, limit: u32) -> u32 {
        (0..1000)
            .map(|_| u32::from(resets.take(&SECRET, peer, limit)))
            .sum()
    }

    #[test]
    fn one_peer_has_its_share_and_leaves_the_others_theirs() {
        let mut resets = ResetLimiter::new();
        resets.refill(1, 100);
        assert_eq!(taken(&mut resets, peer(1), 30), 30);
        // RSTs to other peers reveal nothing while the shared limit is not exhausted.
        assert_eq!(taken(&mut resets, peer(2), 30), 30);
        assert_eq!(taken(&mut resets, peer(3), 30), 30);
        assert_eq!(taken(&mut resets, peer(4), 30), 10);
        resets.refill(2, 100);
        assert_eq!(taken(&mut resets, peer(1), 30), 30);
    }

    #[test]
    fn the_secret_spreads_peers_over_the_buckets() {
        let bucket = |secret: &Secret, number| {
            let mut resets = ResetLimiter::new();
            resets.refill(1, 1);
            resets.take(secret, peer(number), 1);
            resets.buckets.iter().position(|bucket| bucket.sent > 0)
        };
        let used: std::collections::BTreeSet<_> = (0..500).map(|n| bucket(&SECRET, n)).collect();
        assert!(used.len() > 350, "{}", used.len());
        let moved = (0..100).filter(|n| bucket(&SECRET, *n) != bucket(&Secret::new([1; 16]), *n));
        assert!(moved.count() > 90);
    }

    #[test]
    fn no_two_seconds_need_have_the_same_limit() {
        let limits: Vec<u32> = (0..50).map(|n| with_noise(&SECRET, n, 1000)).collect();
        assert!(limits.iter().all(|limit| (500..1500).contains(limit)));
        let distinct: std::collections::BTreeSet<_> = limits.iter().collect();
        assert!(distinct.len() > 40);
        assert_eq!(with_noise(&SECRET, 7, u32::MAX), u32::MAX);
        assert_eq!(with_noise(&SECRET, 7, 0), 0);
    }
}
