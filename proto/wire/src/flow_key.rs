//! What names a connection.

use core::fmt;

use crate::address::{Endpoint, IpAddress};

/// Both ends of a connection as this host sees them.
#[derive(Clone, Copy, Eq, PartialOrd, Ord, Debug, Default)]
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

    /// A few bits that differ between flows of one host, from the ports and the peer's last bytes.
    /// Anyone can predict them: for guesses that are checked.
    #[inline]
    pub const fn quick_hash(&self) -> u32 {
        let last = (u128::from_ne_bytes(self.peer.addr.0) >> 96) as u32;
        let host = last.wrapping_mul(GOLDEN as u32) >> 20;
        self.peer.port as u32 ^ (self.local.port as u32).rotate_left(4) ^ host
    }

    /// A keyed hash: folded multiplications over all 36 bytes, two where both ends are IPv4 and
    /// the upper halves are known.
    ///
    /// Against a peer that picks addresses and ports but does not see hashes or timing of single
    /// lookups, a secret `seed` makes collisions a matter of luck. It is not a pseudo-random
    /// function: do not derive sequence numbers or cookies from it.
    #[inline]
    pub fn hash64(&self, seed: [u64; 2]) -> u64 {
        let [local_high, local_low] = halves(self.local.addr);
        let [peer_high, peer_low] = halves(self.peer.addr);
        let ports = u64::from(self.local.port) << 16 | u64::from(self.peer.port);
        let mut hash = fold(local_low ^ ports ^ seed[0], peer_low ^ seed[1]);
        if local_high | peer_high != 0 {
            hash ^= fold(local_high ^ seed[1] ^ GOLDEN, peer_high ^ seed[0] ^ GOLDEN);
        }
        // Ports vary most, so they pass through two multiplications.
        fold(
            hash ^ ports.rotate_left(32),
            seed[1] ^ seed[0].rotate_left(32) ^ ROOT_TWO,
        )
    }
}

impl PartialEq for FlowKey {
    /// Lookups ask, and it is nearly always so: then all of both is looked at anyway, the addresses
    /// as one.
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let local =
            u128::from_ne_bytes(self.local.addr.0) ^ u128::from_ne_bytes(other.local.addr.0);
        let peer = u128::from_ne_bytes(self.peer.addr.0) ^ u128::from_ne_bytes(other.peer.addr.0);
        local | peer == 0
            && self.local.port == other.local.port
            && self.peer.port == other.peer.port
    }
}

#[inline]
fn halves(address: IpAddress) -> [u64; 2] {
    let both = u128::from_ne_bytes(address.0);
    [both as u64, (both >> 64) as u64]
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
