//! What names a connection.

use core::fmt;

use crate::address::{Endpoint, IpAddress};

/// Both ends of a connection as this host sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FlowKey {
    /// Our end.
    pub local: Endpoint,
    /// The other end.
    pub peer: Endpoint,
}

/// Odd constants without structure (digits of the golden ratio and of the square root of two).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const ROOT_TWO: u64 = 0x6a09_e667_f3bc_c909;

impl FlowKey {
    /// The key with these ends.
    pub const fn new(local: Endpoint, peer: Endpoint) -> Self {
        Self { local, peer }
    }

    /// The key under which the other end knows the connection.
    pub const fn reversed(self) -> Self {
        Self {
            local: self.peer,
            peer: self.local,
        }
    }

    /// A keyed hash: three folded multiplications over all 36 bytes.
    ///
    /// Against a peer that picks addresses and ports but does not see hashes or timing of single
    /// lookups, a secret `seed` makes collisions a matter of luck. It is not a pseudo-random
    /// function: do not derive sequence numbers or cookies from it.
    #[inline]
    pub fn hash64(&self, seed: [u64; 2]) -> u64 {
        let [local_high, local_low] = halves(self.local.addr);
        let [peer_high, peer_low] = halves(self.peer.addr);
        let ports = u64::from(self.local.port) << 16 | u64::from(self.peer.port);
        // Ports vary most, so they pass through two multiplications.
        let local = fold(local_low ^ seed[0], local_high ^ ports ^ seed[1]);
        let peer = fold(peer_low ^ seed[1] ^ GOLDEN, peer_high ^ local ^ seed[0]);
        fold(
            peer ^ local.rotate_left(32) ^ ports.wrapping_mul(GOLDEN),
            seed[1] ^ ROOT_TWO,
        )
    }
}

#[inline]
fn halves(address: IpAddress) -> [u64; 2] {
    let both = u128::from_be_bytes(address.0);
    [(both >> 64) as u64, both as u64]
}

/// Both halves of the 128-bit product, mixed.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <-> {}", self.local, self.peer)
    }
}
