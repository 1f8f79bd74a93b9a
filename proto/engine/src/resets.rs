//! Rate limits of the RSTs that answer segments without a connection.
//!
//! A limit that all peers share is a side channel (CVE-2016-5696 describes this side channel for
//! challenge ACKs). An off-path attacker sends segments with the forged source address of a victim,
//! and then counts the RSTs that answer segments from the attacker's own address. If the count is
//! below the limit, the forged segments also elicited RSTs. The attacker thereby learns that the
//! forged segments matched no connection of the victim.
//!
//! A RST must therefore be within two limits. Each hash bucket of peer addresses has a limit, so
//! that an attacker rarely competes with its victim. The limit for all peers together varies
//! randomly from second to second, so that a count proves nothing.

use tidelane_wire::IpAddress;

use crate::secret::Secret;

/// Number of buckets. A keyed hash assigns each peer address to a bucket, so that an attacker
/// cannot choose the bucket of its victim.
const BUCKETS: usize = 1024;
/// Bit that separates the hash input for an address from the hash input for a second. The bit is
/// clear in the number of a second. `take` inverts the bit in the low half of an address. The bit
/// is clear there in every IPv4 address (`::ffff:a.b.c.d`), so it is set in the hash input for an
/// IPv4 address.
const BUCKET_NUMBER: u64 = 1 << 63;

/// Number of RSTs sent to the peers of one bucket in one second.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// The second to which `sent` belongs: low 32 bits of the number of seconds on the engine's
    /// clock.
    second: u32,
    /// Number of RSTs sent in the second `second`.
    sent: u32,
}

/// Limits the RSTs of one second: in total, and for the peers of each bucket.
#[derive(Debug)]
pub struct ResetLimiter {
    /// Number of RSTs that may still be sent in this second, to all peers together.
    left: u32,
    /// The current second: low 32 bits of the number of seconds on the engine's clock.
    second: u32,
    buckets: Box<[Bucket]>,
}

impl ResetLimiter {
    /// Creates a limiter that allows no RST before the first [`begin_second`](Self::begin_second).
    pub fn new() -> Self {
        Self {
            left: 0,
            second: u32::MAX,
            buckets: vec![Bucket::default(); BUCKETS].into(),
        }
    }

    /// Starts the second `second`, in which at most `limit` RSTs may be sent to all peers together.
    pub fn begin_second(&mut self, second: u64, limit: u32) {
        self.second = second as u32;
        self.left = limit;
    }

    /// Returns true if a RST may be sent to `peer`, and counts this RST. `limit` is the largest
    /// number of RSTs per second to the peers of one bucket.
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

/// Returns a value between half of `limit` and one and a half times `limit`. A peer cannot predict
/// the value without the secret (RFC 5961 §7; Linux varies its limit of challenge ACKs in the same
/// way). `u32::MAX` means no limit.
pub fn randomized_limit(secret: &Secret, second: u64, limit: u32) -> u32 {
    if limit == u32::MAX {
        return limit;
    }
    let noise = secret.hash(second) as u32;
    limit.div_ceil(2).saturating_add(noise % limit.max(1))
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
        resets.begin_second(1, 100);
        assert_eq!(taken(&mut resets, peer(1), 30), 30);
        // Until the limit of all peers is exhausted, each peer gets its full share and so learns
        // nothing about the RSTs to other peers.
        assert_eq!(taken(&mut resets, peer(2), 30), 30);
        assert_eq!(taken(&mut resets, peer(3), 30), 30);
        assert_eq!(taken(&mut resets, peer(4), 30), 10);
        resets.begin_second(2, 100);
        assert_eq!(taken(&mut resets, peer(1), 30), 30);
    }

    #[test]
    fn a_randomized_limit_is_at_least_half_of_the_limit() {
        for limit in [1, 100, u32::MAX - 1] {
            for second in 0..100 {
                let randomized = randomized_limit(&SECRET, second, limit);
                assert!(randomized >= limit / 2, "{randomized} for {limit}");
            }
        }
        assert_eq!(randomized_limit(&SECRET, 1, u32::MAX), u32::MAX);
    }

    #[test]
    fn the_secret_spreads_peers_over_the_buckets() {
        let bucket = |secret: &Secret, number| {
            let mut resets = ResetLimiter::new();
            resets.begin_second(1, 1);
            resets.take(secret, peer(number), 1);
            resets.buckets.iter().position(|bucket| bucket.sent > 0)
        };
        let used: std::collections::BTreeSet<_> = (0..500).map(|n| bucket(&SECRET, n)).collect();
        assert!(used.len() > 350, "{}", used.len());
        let moved = (0..100).filter(|n| bucket(&SECRET, *n) != bucket(&Secret::new([1; 16]), *n));
        assert!(moved.count() > 90);
    }

    #[test]
    fn the_limit_varies_from_second_to_second() {
        let limits: Vec<u32> = (0..50)
            .map(|n| randomized_limit(&SECRET, n, 1000))
            .collect();
        assert!(limits.iter().all(|limit| (500..1500).contains(limit)));
        let distinct: std::collections::BTreeSet<_> = limits.iter().collect();
        assert!(distinct.len() > 40);
        assert_eq!(randomized_limit(&SECRET, 7, u32::MAX), u32::MAX);
        assert_eq!(randomized_limit(&SECRET, 7, 0), 0);
        // The smallest limit above zero allows one RST in each second.
        assert!((0..50).all(|n| randomized_limit(&SECRET, n, 1) == 1));
    }
}
