//! The 4-tuple of a connection.

use core::fmt;

use crate::address::{Endpoint, IpAddress};

/// The 4-tuple of a connection, from the view of this host.
#[derive(Clone, Copy, Eq, PartialOrd, Ord, Debug, Default)]
pub struct FlowKey {
    /// Address and port of this host.
    pub local: Endpoint,
    /// Address and port of the peer.
    pub peer: Endpoint,
}

/// Odd constants with irregular bits: digits of the golden ratio and of the square root of two.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const ROOT_TWO: u64 = 0x6a09_e667_f3bc_c909;

impl FlowKey {
    /// Creates a key.
    pub const fn new(local: Endpoint, peer: Endpoint) -> Self {
        Self { local, peer }
    }

    /// Returns the 4-tuple from the view of the peer.
    pub const fn reversed(self) -> Self {
        Self {
            local: self.peer,
            peer: self.local,
        }
    }

    /// Returns an unkeyed hash of the ports and of the last four bytes of the peer's address. A
    /// peer can predict this hash, so use it only as the index of a cache that compares the full
    /// key.
    #[inline]
    pub const fn quick_hash(&self) -> u32 {
        let last = (u128::from_ne_bytes(self.peer.addr.0) >> 96) as u32;
        let host = last.wrapping_mul(GOLDEN as u32) >> 20;
        self.peer.port as u32 ^ (self.local.port as u32).rotate_left(4) ^ host
    }

    /// Returns a keyed hash over all 36 bytes of the key, made of folded multiplications. If both
    /// addresses are IPv4, the first eight bytes of each address are zero and are skipped.
    ///
    /// The `seed` must be secret. A peer that chooses addresses and ports then cannot cause
    /// collisions on purpose, as long as the peer sees no hash and cannot measure the time of
    /// single lookups. The hash is not a pseudo-random function: do not derive sequence numbers or
    /// cookies from it.
    #[inline]
    pub fn hash64(&self, seed: [u64; 2]) -> u64 {
        let [local_high, local_low] = halves(self.local.addr);
        let [peer_high, peer_low] = halves(self.peer.addr);
        let ports = u64::from(self.local.port) << 16 | u64::from(self.peer.port);
        let mut hash = fold(local_low ^ ports ^ seed[0], peer_low ^ seed[1]);
        if local_high | peer_high != 0 {
            hash ^= fold(local_high ^ seed[1] ^ GOLDEN, peer_high ^ seed[0] ^ GOLDEN);
        }
        // The ports vary most, so they pass through two multiplications.
        fold(
            hash ^ ports.rotate_left(32),
            seed[1] ^ seed[0].rotate_left(32) ^ ROOT_TWO,
        )
    }
}

impl PartialEq for FlowKey {
    /// Compares both addresses in one condition, without an early exit after the first address.
    /// Nearly all compared keys are equal, so an early exit would only add branches.
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

/// Returns the exclusive or of both halves of the 128-bit product of `a` and `b`.
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
